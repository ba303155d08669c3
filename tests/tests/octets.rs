// SPDX-License-Identifier: Apache-2.0
//! The kernel's own octets: for each socket option and control message the frames under KTSN are those of the kernel alone, octet by
//! octet, at the far end. What KTSN does not follow goes to the kernel and is counted.
//!
//! Three fields are drawn, so they are checked otherwise: counted IPv4 identifications (not constant, not repeated), automatic IPv6
//! flow labels (there where the kernel's are there, the same for a socket), the source port of a tunnel (a hash of the flow).

#[path = "octets/table.rs"]
mod table;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::UdpSocket;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use ktsn_tests::faults::bed::{Bed, UPLINK, within};
use ktsn_tests::faults::control::Control;
use ktsn_tests::faults::daemon::{Attachment, Daemon, NAME};
use ktsn_tests::faults::eventually;
use ktsn_tests::faults::frames::{Arrived, Frames};
use ktsn_tests::faults::stands_still;
use ktsn_tests::hook;
use table::{By, Case};

/// Where the listeners of IPv4 are; those of IPv6 one above.
const PORT: u16 = 7788;
const SOON: Duration = Duration::from_secs(30);
/// Datagrams from this port on, one port a case.
const FIRST_PORT: usize = 20_000;

/// What a case did: the program's line, and the frames at the far end.
#[derive(Debug, Default)]
struct Outcome {
    line: String,
    frames: Vec<Vec<u8>>,
}

/// Runs all cases of `numbers` in one process, whose frames arrive in `ears`.
fn run(
    mut child: Child,
    cases: &[Case],
    numbers: &[usize],
    ears: &[Frames],
    done: impl FnOnce(),
) -> BTreeMap<usize, Outcome> {
    let mut input = child.stdin.take().expect("a pipe");
    let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    let mut outcomes = BTreeMap::new();
    for &number in numbers {
        let case = &cases[number];
        writeln!(input, "case={number} port={} {}", FIRST_PORT + number, case.words).expect("the program");
        let line = lines.next().unwrap_or_else(|| panic!("{}: the program ended", case.name)).expect("text");
        outcomes.insert(number, Outcome { line, frames: Vec::new() });
    }
    drop(input);
    assert!(child.wait().is_ok_and(|status| status.success()));
    done();
    stands_still("all frames are there", Duration::from_secs(20), || {
        ears.iter().map(|ear| ear.arrived().len()).sum::<usize>()
    });
    for arrived in ears.iter().flat_map(Frames::arrived) {
        let Arrived { frame, kind, .. } = arrived;
        let outcome = outcomes.get_mut(&(kind as usize));
        outcome.into_iter().for_each(|outcome| outcome.frames.push(frame.clone()));
    }
    outcomes
}

/// One's complement sum of 16-bit words, folded.
fn sum(octets: &[u8]) -> u32 {
    let words = octets.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0)));
    let sum: u32 = words.sum();
    let once = (sum >> 16) + (sum & 0xffff);
    (once >> 16) + (once & 0xffff)
}

fn two(octets: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([octets[at], octets[at + 1]])
}

/// The fields of one frame that are drawn, blanked out of `octets`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Drawn {
    /// The frame without them.
    octets: Vec<u8>,
    /// IPv4: destination and identification of each header, the outermost first.
    identifications: Vec<([u8; 4], u16)>,
    /// IPv6: the flow label of the innermost header.
    flow_label: Option<u32>,
}

/// `has_exact`: the innermost identification is compared as it is.
fn draw(frame: &[u8], has_exact: bool, what: &str) -> Drawn {
    let mut drawn = Drawn { octets: frame.to_vec(), ..Drawn::default() };
    let mut at = 14;
    loop {
        let is_v4 = frame[at - 2..at] == [0x08, 0x00];
        let udp_at = at + if is_v4 { usize::from(frame[at] & 0xf) * 4 } else { 40 };
        let is_tunnel = is_v4 && frame[at + 9] == 17 && two(frame, udp_at + 2) == 8472;
        if is_v4 {
            assert_eq!(sum(&frame[at..udp_at]), 0xffff, "{what}: header checksum {frame:02x?}");
            let destination = frame[at + 16..at + 20].try_into().expect("four octets");
            if is_tunnel || !has_exact {
                drawn.identifications.push((destination, two(frame, at + 4)));
                drawn.octets[at + 4..at + 6].fill(0);
                drawn.octets[at + 10..at + 12].fill(0);
            }
        } else {
            let label = u32::from_be_bytes(frame[at..at + 4].try_into().expect("four octets")) & 0xf_ffff;
            drawn.flow_label = Some(label);
            drawn.octets[at + 1] &= 0xf0;
            drawn.octets[at + 2..at + 4].fill(0);
        }
        if !is_tunnel {
            return drawn;
        }
        let pseudo = sum(&frame[at + 12..at + 20]) + 17 + (frame.len() - udp_at) as u32;
        let all = pseudo + sum(&frame[udp_at..]);
        assert_eq!((all >> 16) + (all & 0xffff), 0xffff, "{what}: the tunnel's checksum");
        drawn.octets[udp_at..udp_at + 2].fill(0);
        drawn.octets[udp_at + 6..udp_at + 8].fill(0);
        at = udp_at + 8 + 8 + 14;
    }
}

/// What is wrong with a case; empty: nothing.
fn judge(
    case: &Case,
    way: Way,
    (alone, ours): (&Outcome, &Outcome),
    seen: &mut BTreeSet<([u8; 4], u16)>,
) -> Vec<String> {
    let mut faults = Vec::new();
    let what = &format!("{} ({})", case.name, case.words);
    if alone.line != ours.line {
        faults.push(format!("the calls answered {} instead of {}", ours.line, alone.line));
    }
    let draw_all = |of: &Outcome| -> Vec<Drawn> {
        of.frames.iter().map(|frame| draw(frame, case.has_exact_identifications, what)).collect()
    };
    let (theirs, ours) = (draw_all(alone), draw_all(ours));
    if theirs.len() != ours.len() || (theirs.is_empty() && case.by == By::Ktsn) {
        faults.push(format!("{} frames instead of {}", ours.len(), theirs.len()));
    }
    for (theirs, ours) in theirs.iter().zip(&ours) {
        if theirs.octets != ours.octets {
            faults.push(format!("the frame is\n{:02x?}\ninstead of\n{:02x?}", ours.octets, theirs.octets));
        }
        if theirs.flow_label.map(|label| label != 0) != ours.flow_label.map(|label| label != 0) {
            faults.push(format!("flow label {:x?} instead of {:x?}", ours.flow_label, theirs.flow_label));
        }
    }
    let labels: BTreeSet<Option<u32>> = ours.iter().map(|drawn| drawn.flow_label).collect();
    if labels.len() > 1 {
        faults.push(format!("flow labels of one socket: {labels:x?}"));
    }
    // What the kernel sent has the kernel's counters, which may be at any place.
    if case.by == By::Ktsn && way == Way::Library {
        let counted = ours.iter().flat_map(|drawn| &drawn.identifications);
        faults
            .extend(counted.filter(|one| !seen.insert(**one)).map(|one| format!("{one:?} was there before")));
    }
    faults
}

/// How KTSN gets the datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// By libktsn.
    Library,
    /// By kernel capture: whether a frame is taken depends on its headers.
    Capture,
}

/// Runs the cases by the kernel alone and under KTSN; nothing may differ.
fn compare(bed: &Bed, cases: &[Case], way: Way) {
    let program = hook::compiled("octets_talker");
    let _ = hook::library();
    // So that checksums are finished and segments are cut where they can be seen.
    bed.run(&format!(
        "ip netns exec {pod} ethtool -K eth0 tx off tso off gso off tx-udp-segmentation off
ip netns exec {host} ethtool -K {UPLINK} tx off tso off gso off tx-udp-segmentation off
ip netns exec {host} ethtool -K flannel.1 tx off tso off gso off tx-udp-segmentation off",
        pod = bed.pod_a,
        host = bed.host_a
    ));
    // Someone listens, so that no connected socket gets ECONNREFUSED.
    let _listeners = [&bed.pod_q, &bed.pod_b].map(|pod| {
        within(pod, || {
            [("0.0.0.0", PORT), ("::", PORT + 1)].map(|to| UdpSocket::bind(to).expect("a listener"))
        })
    });
    let ears = || [Frames::open(&bed.pod_q, "eth0"), Frames::open(&bed.host_b, UPLINK)];
    let all: Vec<usize> = (0..cases.len()).collect();
    let mut plain = Command::new(program);
    plain.stdin(Stdio::piped()).stdout(Stdio::piped());
    let alone = within(&bed.pod_a, || plain.spawn()).expect("the program");
    let alone = run(alone, cases, &all, &ears(), || ());
    let destinations = ["10.244.0.0/16", "fd10:244::/48", "239.0.0.0/8", "ff05::/16"];
    let attachment = Attachment::pod_a(bed).to(&destinations);
    let attachment = if way == Way::Capture { attachment.with("capture = \"kernel\"") } else { attachment };
    let daemon = Daemon::start(bed, &[attachment]);
    let (mut seen, mut wrong) = (BTreeSet::new(), 0);
    let mut before = (0, 0);
    for by in [By::Ktsn, By::Kernel, By::Any] {
        let its: Vec<usize> = all.iter().copied().filter(|number| cases[*number].by == by).collect();
        let child = match way {
            Way::Library => daemon.program(&bed.pod_a, program, &Vec::<String>::new()),
            Way::Capture => within(&bed.pod_a, || plain.spawn()).expect("the program"),
        };
        let sends = 3 * its.len() as u64;
        let mut counted = (0, 0);
        let ours = run(child, cases, &its, &ears(), || {
            counted = settled(&mut daemon.control(), sends + before.0 + before.1);
        });
        let grown = (counted.0 - before.0, counted.1 - before.1);
        before = counted;
        println!("{by:?}: {} cases, taken and left to the kernel: {grown:?}", its.len());
        // UDP_SEGMENT makes several frames of one send.
        let is_counted = match (by, way) {
            (By::Ktsn, Way::Library) => grown.0 >= sends && grown.1 == 0,
            (By::Kernel, Way::Library) => grown == (0, sends),
            (By::Any, Way::Library) => grown.0 + grown.1 >= sends,
            (_, Way::Capture) => by != By::Ktsn || grown.0 >= sends / 2,
        };
        wrong += usize::from(!is_counted);
        for (number, ours) in &ours {
            let case = &cases[*number];
            let faults = judge(case, way, (&alone[number], ours), &mut seen);
            wrong += usize::from(!faults.is_empty());
            faults.iter().for_each(|fault| println!("{} ({}): {fault}", case.name, case.words));
        }
    }
    assert_eq!(wrong, 0, "of {} cases: {:?}", cases.len(), daemon.control().counters(NAME));
}

/// How many datagrams were taken, and how many left to the kernel, once these are `sends` and nothing is queued, or nothing more
/// is counted for a while.
fn settled(control: &mut Control, sends: u64) -> (u64, u64) {
    let mut still = 0;
    let mut last = (0, 0);
    eventually("all frames have left", SOON, || {
        let counters = control.counters(NAME);
        let ended = counters.sent + counters.dropped.values().sum::<u64>();
        let now = (counters.taken, counters.bypassed.values().sum::<u64>());
        still = if now == last { still + 1 } else { 0 };
        last = now;
        // Counters of clients are read four times a second at least.
        (counters.taken == ended && (now.0 + now.1 >= sends || still > 200)).then_some(now)
    })
}

#[test]
fn each_option_and_control_message() {
    compare(&Bed::new(), &table::cases(), Way::Library);
}

#[test]
fn captured_frames_keep_the_kernels_octets() {
    compare(&Bed::new(), &table::cases(), Way::Capture);
}

/// The namespace's defaults: what a socket without any option has.
#[test]
fn sysctls_of_the_pod() {
    let bed = Bed::new();
    for (sysctls, labels) in [
        ("net.ipv4.ip_no_pmtu_disc=1 net.ipv6.auto_flowlabels=0", 0),
        ("net.ipv4.ip_no_pmtu_disc=0 net.ipv4.ip_default_ttl=77 net.ipv6.auto_flowlabels=2", 0),
        ("net.ipv4.ip_no_pmtu_disc=3 net.ipv6.conf.all.hop_limit=55 net.ipv6.conf.eth0.hop_limit=56", 1),
        ("net.ipv6.auto_flowlabels=1 net.ipv6.flowlabel_state_ranges=0", 1),
    ] {
        let labelled = if sysctls.contains("=3 ") { " net.ipv6.auto_flowlabels=3" } else { "" };
        bed.run(&format!("ip netns exec {} sysctl -qw {sysctls}{labelled}", bed.pod_a));
        compare(&bed, &table::of_sysctls(labels), Way::Library);
    }
}

/// The MAC address of a namespace's device `eth0`.
fn mac(namespace: &str) -> String {
    let output =
        Command::new("ip").args(["-n", namespace, "-o", "link", "show", "eth0"]).output().expect("ip");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut words = text.split_whitespace().skip_while(|word| *word != "link/ether");
    words.nth(1).expect("an address").replace(':', "")
}

#[test]
fn each_option_of_packet_sockets() {
    let bed = Bed::new();
    // 64 octets from 10.244.0.5 to 10.244.0.6, identification 0x1234, no UDP checksum.
    let ip = "4500005c123400004011526b0af400050af40006";
    let headers = format!("{}{}0800{ip}4e201e6c00480000", mac(&bed.pod_q), mac(&bed.pod_a));
    compare(&bed, &table::packets(&headers), Way::Library);
}
