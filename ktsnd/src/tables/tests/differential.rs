// SPDX-License-Identifier: Apache-2.0
//! Random rules and routes, random flows: what KTSN would send is what the kernel sends, or it is the kernel's.
//!
//! A flow is sent by the kernel alone; the frame is heard at the other end of the link. The same flow is resolved, where needed by the
//! kernel's answer. Both must have the same device, MAC addresses, IP addresses and hop limit. `KTSN_SEED` repeats a run.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use ktsn_model::{BypassReason, DropReason, IpPrefix};
use ktsn_resolve::{Flow, Marks, Refusal, Resolved, RouteAnswer, resolve, resolve_answered};
use ktsn_wire::{MacAddress, dissect};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::super::{AnsweredRoute, Event};
use super::place::{INDEX, PATIENCE, Place, Seen, ip, ip_batch, path_of};
use super::sys;
use crate::config::Overlay;

const WORLDS: u64 = 48;
const FLOWS: usize = 250;
/// Of the frames that the kernel sends by the attachment's interface to a plain next hop, KTSN sends so many of a hundred itself.
const SHARE: usize = 95;
/// Frames whose next hop has no MAC address do not come: nothing more is waited for after a quiet time.
const QUIET: Duration = Duration::from_millis(200);
const MARK: &[u8] = b"KTSN differential ";

/// Numbers that look random, and are the same for one seed.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        // xorshift64*
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % end
    }

    fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }

    fn of<'a>(&mut self, list: &[&'a str]) -> &'a str {
        list[self.below(list.len() as u64) as usize]
    }
}

/// A frame as it was, or would be, on a wire.
#[derive(Clone, Debug, PartialEq, Eq)]
struct OnWire {
    device: &'static str,
    macs: (MacAddress, MacAddress),
    addresses: (IpAddr, IpAddr),
    hop_limit: u8,
}

impl OnWire {
    fn is_from_eth1(&self) -> bool {
        matches!(self.addresses.0.to_string().as_str(), "10.2.0.5" | "10.2.0.6" | "fd02::5" | "fd02::6")
    }
}

fn read(device: &'static str, frame: &[u8]) -> Option<(usize, OnWire)> {
    let dissected = dissect(frame, None).ok()?;
    let inner = dissected.inner;
    let number = inner.datagram.payload().strip_prefix(MARK)?;
    let number = std::str::from_utf8(number).ok()?.trim().parse().ok()?;
    let mac = |at: usize| Some(MacAddress(frame.get(at..at + 6)?.try_into().ok()?));
    let macs = (mac(6)?, mac(0)?);
    let addresses = (inner.source, inner.destination);
    Some((number, OnWire { device, macs, addresses, hop_limit: inner.hop_limit }))
}

/// The pod's second device, its neighbours, and addresses.
fn furnish(place: &Place) {
    let Place { node, pod, .. } = place;
    ip(&format!("-n {node} link add pod1 type veth peer name eth1 netns {pod}"));
    ip(&format!("-n {node} link set pod1 up"));
    let mut commands = String::new();
    for (device, net) in [("eth0", 1), ("eth1", 2)] {
        let _ = writeln!(commands, "addr flush dev {device}");
        let _ = writeln!(commands, "link set {device} up mtu 1450");
        for host in [5, 6] {
            let _ = writeln!(commands, "addr add 10.{net}.0.{host}/24 dev {device}");
            let _ = writeln!(commands, "addr add fd0{net}::{host}/64 dev {device} nodad");
        }
        for host in [1, 2, 3, 4, 20, 21] {
            let lladdr = format!("lladdr 02:00:00:00:0{net}:{host:02}");
            let _ = writeln!(commands, "neigh replace 10.{net}.0.{host} {lladdr} dev {device} nud permanent");
            let _ = writeln!(commands, "neigh replace fd0{net}::{host} {lladdr} dev {device} nud permanent");
        }
    }
    ip_batch(pod, &commands);
}

/// The part of a route behind its prefix.
fn way(random: &mut Random, is_v4: bool) -> String {
    let gateway = |random: &mut Random| {
        let (net, host) = (1 + random.below(4) / 3, 1 + random.below(4));
        let address = if is_v4 { format!("10.{net}.0.{host}") } else { format!("fd0{net}::{host}") };
        format!("via {address} dev eth{}", net - 1)
    };
    let mut way = match random.below(16) {
        0 => format!("nexthop {} nexthop {}", gateway(random), gateway(random)),
        1 => format!("nexthop {} weight 3 nexthop {}", gateway(random), gateway(random)),
        _ => gateway(random),
    };
    if random.one_in(8) {
        let _ = write!(way, " mtu {}", random.of(&["1300", "1400"]));
    }
    if random.one_in(12) {
        let _ = write!(way, " hoplimit {}", 20 + random.below(9));
    }
    if is_v4 && random.one_in(5) && way.starts_with("via 10.1.") {
        way.push_str(" src 10.1.0.6");
    }
    way
}

fn route(random: &mut Random, is_v4: bool) -> String {
    let prefixes: &[&str] = if is_v4 {
        &[
            "default",
            "10.8.0.0/14",
            "10.9.0.0/16",
            "10.9.1.0/24",
            "10.9.1.128/25",
            "10.9.2.5/32",
            "10.10.0.0/16",
        ]
    } else {
        &[
            "default",
            "fd08::/13",
            "fd09::/16",
            "fd09:0:0:1::/64",
            "fd09:0:0:1::80/121",
            "fd09:0:0:2::5/128",
            "fd0a::/16",
        ]
    };
    let table = random.of(&["main", "main", "main", "100", "101", "102"]);
    let metric = if random.one_in(3) { format!(" metric {}", 10 + random.below(3)) } else { String::new() };
    let prefix = random.of(prefixes);
    if random.one_in(10) {
        let kind = random.of(&["blackhole", "unreachable", "prohibit", "throw"]);
        return format!("route append {kind} {prefix} table {table}{metric}");
    }
    let tos = if is_v4 && random.one_in(10) { " tos 0x10" } else { "" };
    format!("route append {prefix}{tos} {} table {table}{metric}", way(random, is_v4))
}

fn rule(random: &mut Random, is_v4: bool) -> String {
    let addresses: &[&str] = if is_v4 {
        &[
            "from 10.1.0.5",
            "from 10.1.0.6",
            "from 10.1.0.0/24",
            "from 10.2.0.5",
            "to 10.9.0.0/16",
            "to 10.9.1.0/24",
        ]
    } else {
        &[
            "from fd01::5",
            "from fd01::6",
            "from fd01::/64",
            "from fd02::5",
            "to fd09::/16",
            "to fd09:0:0:1::/64",
        ]
    };
    let others = [
        "tos 0x10",
        "uidrange 1000-1000",
        "ipproto udp",
        "ipproto tcp",
        "ipproto udp sport 5000-5001",
        "ipproto udp dport 6000-6002",
        "fwmark 7",
        "fwmark 0x100/0x300",
        "iif lo",
        "iif eth1",
        "oif eth0",
        "oif eth1",
    ];
    let mut rule = format!("rule add prio {} ", 1 + random.below(40_000));
    if random.one_in(10) {
        rule.push_str("not ");
    }
    for _ in 0..1 + random.below(2) {
        let selector = if random.one_in(2) { random.of(addresses) } else { random.of(&others) };
        // ip(8) takes each selector once.
        let kind = selector.split(' ').next().unwrap_or_default();
        let is_taken = rule.contains(kind) || (kind == "ipproto" && rule.contains("port"));
        if !is_taken {
            let _ = write!(rule, "{selector} ");
        }
    }
    let action = [
        "lookup 100",
        "lookup 100",
        "lookup 101",
        "lookup 102",
        "lookup main",
        "lookup main suppress_prefixlength 0",
        "blackhole",
        "unreachable",
        "prohibit",
    ];
    rule.push_str(random.of(&action));
    rule
}

/// Fills both families with routes and rules. Every fourth world has no rules.
fn fill(random: &mut Random, pod: &str, number: u64) -> String {
    let mut told = String::new();
    for (family, is_v4) in [("-4", true), ("-6", false)] {
        let mut lines = vec!["rule flush".to_owned(), "rule add prio 0 lookup local".to_owned()];
        lines.push("rule add prio 32766 lookup main".to_owned());
        for table in ["100", "101", "102"] {
            lines.push(format!("route flush table {table}"));
        }
        lines.push("route flush table main proto boot".to_owned());
        lines.extend((0..4 + random.below(9)).map(|_| route(random, is_v4)));
        let rules = if number.is_multiple_of(4) { 0 } else { 1 + random.below(6) };
        lines.extend((0..rules).map(|_| rule(random, is_v4)));
        let lines = lines.join("\n");
        // What contradicts another line is refused, and left out.
        let mut child = std::process::Command::new("ip")
            .args(["-n", pod, family, "-force", "-batch", "-"])
            .stdin(std::process::Stdio::piped())
            .stderr(std::process::Stdio::null())
            .spawn()
            .unwrap();
        std::io::Write::write_all(&mut child.stdin.take().unwrap(), lines.as_bytes()).unwrap();
        child.wait().unwrap();
        told.push_str(&lines);
    }
    told
}

/// A socket and where it sends, as facts.
struct Sent {
    flow: Flow,
    error: Option<std::io::Error>,
}

fn destination(random: &mut Random, is_v4: bool) -> IpAddr {
    let (a, b) = (random.below(3), [1, 5, 129, 200][random.below(4) as usize]);
    let text = match (is_v4, random.below(12)) {
        (true, 0) => "10.1.0.20".to_owned(),
        (true, 1) => "10.2.0.21".to_owned(),
        (true, 2) => format!("10.8.{a}.{b}"),
        (true, 3) => format!("11.0.{a}.{b}"),
        (true, 4) => format!("10.10.{a}.{b}"),
        (true, _) => format!("10.9.{a}.{b}"),
        (false, 0) => "fd01::20".to_owned(),
        (false, 1) => "fd02::21".to_owned(),
        (false, 2) => format!("fd08::{a}:{b:x}"),
        (false, 3) => format!("fd77::{a}:{b:x}"),
        (false, 4) => format!("fd0a::{a}:{b:x}"),
        (false, _) => format!("fd09:0:0:{a}::{b:x}"),
    };
    text.parse().unwrap()
}

/// Sends one datagram by the kernel alone.
fn send(random: &mut Random, number: usize, eth0: u32) -> Option<Sent> {
    let is_v4 = random.one_in(2);
    let uid = [0, 1000, 1001][random.below(3) as usize];
    let any = if is_v4 { "0.0.0.0" } else { "::" };
    let own = if is_v4 { ["10.1.0.5", "10.1.0.6", "10.2.0.5"] } else { ["fd01::5", "fd01::6", "fd02::5"] };
    let bound = if random.one_in(2) { any } else { own[[0, 0, 0, 1, 1, 1, 1, 2][random.below(8) as usize]] };
    let local = SocketAddr::new(bound.parse().unwrap(), 5000 + random.below(4) as u16);
    let to = SocketAddr::new(destination(random, is_v4), 6000 + random.below(5) as u16);
    let class = [0, 0, 0x10, 0x28][random.below(4) as usize];
    let is_device_bound = random.one_in(10);
    let is_connected = random.one_in(4);
    let socket = sys::as_user(uid, || UdpSocket::bind(local)).ok()?;
    sys::set_traffic_class(&socket, is_v4, class).unwrap();
    if is_device_bound {
        sys::bind_to_device(&socket, "eth0").unwrap();
    }
    let payload = [MARK, format!("{number:>8}").as_bytes()].concat();
    let error = if is_connected {
        socket.connect(to).ok()?;
        socket.send(&payload).err()
    } else {
        socket.send_to(&payload, to).err()
    };
    let source = socket.local_addr().unwrap();
    let flow = Flow {
        is_connected,
        attachment: INDEX,
        uid: rustix::fs::fstat(&socket).unwrap().st_uid,
        bound: Some(source.ip()).filter(|address| !address.is_unspecified()),
        source_port: source.port(),
        destination: to.ip(),
        destination_port: to.port(),
        scope: if is_device_bound { eth0 } else { 0 },
        traffic_class: class,
        hop_limit: 0,
        marks: Marks::default(),
    };
    Some(Sent { flow, error })
}

/// All frames with the mark that were heard, by their number.
fn heard(ears: &[(&'static str, OwnedFd)], expected: usize) -> BTreeMap<usize, OnWire> {
    let (mut frames, mut last, mut buffer) = (BTreeMap::new(), Instant::now(), [0; 2048]);
    while frames.len() < expected && last.elapsed() < QUIET {
        for (device, ear) in ears {
            while let Ok((octets, _)) =
                rustix::net::recv(ear, &mut buffer[..], rustix::net::RecvFlags::DONTWAIT)
            {
                frames.extend(read(device, &buffer[..octets]));
                last = Instant::now();
            }
        }
        std::thread::yield_now();
    }
    frames
}

/// KTSN's frame, by the kernel's answer where it must ask.
async fn ours(seen: &mut Seen, flow: &Flow, asked: &mut usize) -> Result<Resolved, Refusal> {
    let found = resolve(seen.latest.as_ref().unwrap(), flow);
    if !matches!(found, Err(Refusal::Unanswered)) {
        return found;
    }
    *asked += 1;
    seen.manager.ask_route(1, *flow);
    let answer: RouteAnswer = loop {
        match seen.next(PATIENCE).await.expect("an answer") {
            Event::Route(1, AnsweredRoute { flow: of, revision, answer }) if of == *flow => {
                assert_eq!(revision, seen.attachment().unwrap().answers_revision());
                break answer;
            }
            _ => {}
        }
    };
    resolve_answered(seen.latest.as_ref().unwrap(), flow, &answer)
}

fn as_frame(resolved: &Resolved, number: usize) -> OnWire {
    let mut out = [0; 2048];
    let payload = [MARK, format!("{number:>8}").as_bytes()].concat();
    let octets = resolved.template.write_frame(&payload, &mut out).unwrap();
    read("eth0", &out[..octets]).unwrap().1
}

/// What came of all flows.
#[derive(Debug, Default)]
struct Account {
    flows: usize,
    asked: usize,
    ours: usize,
    /// By the interface, and left to the kernel all the same.
    left: BTreeMap<&'static str, usize>,
    /// From an address of the other device: an attachment sends from its own interface's only.
    foreign: usize,
    elsewhere: usize,
    nowhere: usize,
}

impl Account {
    /// Holds one flow's answers against each other.
    fn judge(
        &mut self,
        found: &Result<Resolved, Refusal>,
        frame: Option<&OnWire>,
        sent: &Sent,
        number: usize,
    ) -> Result<(), String> {
        self.flows += 1;
        match (found, frame) {
            (Ok(resolved), Some(frame)) if as_frame(resolved, number) == *frame => self.ours += 1,
            (Ok(resolved), frame) => {
                let ours = as_frame(resolved, number);
                return Err(format!("{:?}: {ours:?}, but the kernel {frame:?} {:?}", sent.flow, sent.error));
            }
            (Err(Refusal::Bypass(_)), Some(frame)) if frame.is_from_eth1() => self.foreign += 1,
            (Err(Refusal::Bypass(reason)), Some(frame)) if frame.device == "eth0" => {
                *self.left.entry(reason.word()).or_default() += 1;
            }
            (Err(Refusal::Bypass(_)), Some(_)) => self.elsewhere += 1,
            (Err(Refusal::Bypass(_)), None) => self.nowhere += 1,
            // The kernel has no route either; or it asks for the next hop's MAC address, too.
            (Err(Refusal::Drop(DropReason::NoRoute, None)), None) if sent.error.is_some() => {
                self.nowhere += 1;
            }
            (Err(Refusal::Drop(DropReason::NoNeighbour, Some(_))), None) if sent.error.is_none() => {
                self.nowhere += 1;
            }
            (Err(refusal), frame) => {
                return Err(format!("{:?}: {refusal:?}, but the kernel {frame:?}", sent.flow));
            }
        }
        Ok(())
    }
}

#[test]
fn ten_thousand_random_flows_leave_as_the_kernels_do() {
    let seed: u64 = std::env::var("KTSN_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(20_261_128);
    Place::run(async |place, mut seen: Seen| {
        furnish(place);
        let ears = [("eth0", sys::hear("pod0").unwrap()), ("eth1", sys::hear("pod1").unwrap())];
        let all = vec!["0.0.0.0/0".parse().unwrap(), "::/0".parse().unwrap()];
        let tracked = place.tracked().changed(|a| (a.destinations, a.overlay) = (all, Overlay::None));
        let added = seen.manager.add(tracked).await.unwrap();
        let mut account = Account::default();
        for world in 0..WORLDS {
            let mut random = Random(seed.wrapping_mul(world + 1) | 1);
            let told = fill(&mut random, &place.pod, world);
            settle(place, &mut seen, world).await;
            let inside = std::fs::File::open(path_of(&place.pod)).unwrap();
            let sent: Vec<Option<Sent>> = std::thread::scope(|scope| {
                let send = || {
                    move_into_link_name_space(inside.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
                    (0..FLOWS).map(|number| send(&mut random, number, added.interface_index)).collect()
                };
                scope.spawn(send).join().unwrap()
            });
            let expected = sent.iter().flatten().filter(|sent| sent.error.is_none()).count();
            let frames = heard(&ears, expected);
            for (number, sent) in
                sent.iter().enumerate().filter_map(|(number, sent)| Some((number, sent.as_ref()?)))
            {
                let found = ours(&mut seen, &sent.flow, &mut account.asked).await;
                if let Err(differs) = account.judge(&found, frames.get(&number), sent, number) {
                    panic!("KTSN_SEED={seed}, world {world}: {differs}\n{told}");
                }
            }
        }
        let left: usize = account.left.values().sum();
        println!(
            "{account:?}: {}.{:02} %",
            account.ours * 100 / (account.ours + left),
            account.ours * 10_000 / (account.ours + left) % 100
        );
        assert!(account.flows > 9_000 && account.asked > 3_000 && account.nowhere > 500, "{account:?}");
        assert!(account.ours * 100 >= (account.ours + left) * SHARE, "{account:?}");
        let known = [BypassReason::RoutingRules, BypassReason::NotAllowed].map(BypassReason::word);
        assert!(account.left.keys().all(|reason| known.contains(reason)), "{account:?}");
    });
}

/// Waits until the tables show all that was done: the last route is one that only this world has.
async fn settle(place: &Place, seen: &mut Seen, world: u64) {
    let last = format!("fdff::{world:x}/128");
    ip(&format!("-n {} -6 route add {last} dev eth0", place.pod));
    let last: IpPrefix = last.parse().unwrap();
    seen.until("the last route", |t| t.interface().routes().any(|route| route.prefix == last)).await;
}
