// SPDX-License-Identifier: Apache-2.0
//! A datagram with a transmit time that only the kernel can send is never there before that time, whatever the reason, the family and
//! the length: the kernel's own receive stamps say so. None is lost, none is changed.

use std::time::Duration;

use ktsn_tests::faults::bed::{Bed, POD_A, POD_B, POD_B6, POD_Q, path};
use ktsn_tests::faults::control::reason;
use ktsn_tests::faults::daemon::{Attachment, Daemon, NAME, configuration, pinned_port, port};
use ktsn_tests::faults::eventually;
use ktsn_tests::faults::stamped::{LaterTalker, Said, Stamped, is_payload};
use rustix::process::{Pid, Signal, kill_process};

const POD_A6: &str = "fd10:244::5";
const POD_Q6: &str = "fd10:244::6";
const SOON: Duration = Duration::from_secs(30);
const FIRST_PORT: usize = 21_000;

/// A datagram on its way: its line, its listener, and what is expected of it.
struct Sent {
    line: String,
    number: usize,
    octets: usize,
    listener: Stamped,
    said: Said,
}

/// A program that has been attached, and what it has sent.
struct Talk {
    talker: LaterTalker,
    sent: Vec<Sent>,
}

impl Talk {
    /// A program in pod A that was attached by its first datagram, which KTSN takes.
    fn start(daemon: &Daemon, bed: &Bed) -> Self {
        let mut talker = LaterTalker::start(daemon, &bed.pod_a);
        let said = talker.say(0, &format!("{POD_B} 9 10 1"));
        assert_eq!(said.result, 10);
        assert_eq!(daemon.control().counters_of(NAME, 1, SOON).taken, 1);
        Self { talker, sent: Vec::new() }
    }

    /// Sends to a listener of its own in `namespace`.
    fn send(&mut self, namespace: &str, address: &str, octets: usize, words: &str) -> &Said {
        let number = self.sent.len() + 1;
        let port = FIRST_PORT + number;
        let listener = Stamped::listen(namespace, address, u16::try_from(port).expect("a port"));
        let line = format!("{address} {port} {octets} 400 {words}");
        let said = self.talker.say(number, &line);
        self.sent.push(Sent { line, number, octets, listener, said });
        &self.sent.last().expect("just pushed").said
    }

    /// All that was sent arrives once, whole, and not before its time.
    fn arrives(&self) {
        for Sent { line, number, octets, listener, said } in &self.sent {
            assert_eq!(said.result, *octets as i64, "{line}");
            let (payload, stamp) = listener.next(SOON).unwrap_or_else(|| panic!("{line}: lost"));
            assert!(is_payload(&payload, *number, *octets), "{line}: {} octets, not as sent", payload.len());
            assert!(stamp >= said.tx_time, "{line}: {} ns early", said.tx_time - stamp);
        }
        for Sent { line, listener, .. } in &self.sent {
            assert_eq!(listener.next(Duration::ZERO), None, "{line}: twice");
        }
    }
}

/// The payloads of each family that are tried: those that fit into a frame, and those that do not.
fn lengths(is_v4: bool) -> ([usize; 4], [usize; 3]) {
    let whole = if is_v4 { 1422 } else { 1402 };
    ([0, 1, 1400, whole], [whole + 1, 8000, 65_507])
}

#[test]
fn whatever_is_the_kernels_leaves_at_its_time() {
    let bed = Bed::new();
    let daemon = Daemon::start(&bed, &[Attachment::pod_a(&bed)]);
    let mut talk = Talk::start(&daemon, &bed);
    let elsewhere = format!("netns={}", path(&bed.pod_q));
    for is_v4 in [true, false] {
        let (short, long) = lengths(is_v4);
        let to = |v4, v6| if is_v4 { v4 } else { v6 };
        for octets in long {
            talk.send(&bed.pod_b, to(POD_B, POD_B6), octets, "");
        }
        for octets in short.into_iter().chain(long) {
            talk.send(&bed.pod_b, to(POD_B, POD_B6), octets, "mark");
            talk.send(&bed.pod_q, to(POD_Q, POD_Q6), octets, "");
            talk.send(&bed.pod_a, to(POD_A, POD_A6), octets, "");
            talk.send(&bed.pod_q, to("127.0.0.1", "::1"), octets, &elsewhere);
        }
    }
    talk.arrives();
    let count = talk.sent.len() as u64;
    let counters = eventually("all are counted", SOON, || {
        let counters = daemon.control().counters(NAME);
        (counters.kernel_sent == count && counters.bypassed.values().sum::<u64>() == count)
            .then_some(counters)
    });
    let of = |word| reason(&counters.bypassed, word);
    assert_eq!((of("over_mtu"), of("unsupported_option"), of("own_address")), (6, 14, 14), "{counters:?}");
    assert_eq!(of("not_allowed") + of("not_attached"), 28, "{counters:?}");
    assert_eq!((counters.kernel_dropped.len(), counters.taken), (0, 1), "{counters:?}");
}

/// What is longer than a frame is metered as one: all of its fragments leave, or none.
#[test]
fn a_datagram_over_the_mtu_is_metered_with_all_its_fragments() {
    // 60,000 octets are 42 fragments with 1,424 octets of data and one with 200, and there was a frame with 10 before. Each has 50 octets
    // of tunnel, 34 of MAC and IP headers, and takes 24 octet times more; the first 8 octets of the data are UDP's.
    const ALL: u32 = 42 * (1424 + 84 + 24) + (200 + 84 + 24) + (10 + 8 + 84 + 24);
    // The meter fills by an octet a second.
    for (burst, passed) in [(ALL - 120, 0), (ALL, 1)] {
        let bed = Bed::new();
        let text = configuration(&[Attachment::pod_a(&bed)]).replace(&port("auto"), &pinned_port("auto"));
        let meter = format!(
            "\n[policing]\n[[policing.stream-identity]]\nhandle = 7\nattachment = \"{NAME}\"\n\
             [[policing.stream-filter-instance-table]]\nstream-filter-instance-id = 1\nstream-handle = 7\nflow-meter-ref = 3\n\
             [[policing.flow-meter-instance-table]]\nflow-meter-instance-id = 3\ncommitted-information-rate = 8\n\
             committed-burst-size = {burst}\n"
        );
        let mut daemon = Daemon::prepare(&bed.host_a, &(text + &meter));
        daemon.spawn();
        let mut talk = Talk::start(&daemon, &bed);
        for _ in 0..2 {
            talk.send(&bed.pod_b, POD_B, 60_000, "");
        }
        let counters = eventually("both are counted", SOON, || {
            let counters = daemon.control().counters(NAME);
            (counters.kernel_sent + reason(&counters.kernel_dropped, "policed") == 2).then_some(counters)
        });
        assert_eq!(counters.kernel_sent, passed, "{counters:?}");
        let dropped = talk.sent.split_off(usize::from(passed == 1));
        talk.arrives();
        for Sent { listener, line, .. } in &dropped {
            assert_eq!(listener.next(Duration::ZERO), None, "{line}");
        }
    }
}

/// What cannot travel to ktsnd waits in the call: it is not early either.
#[test]
fn what_cannot_travel_waits_in_the_call() {
    let bed = Bed::new();
    let daemon = Daemon::start(&bed, &[Attachment::pod_a(&bed)]);
    let mut talk = Talk::start(&daemon, &bed);
    for words in ["more", "cork", "cmark", "parts=58 mark", "parts=1000 mark"] {
        let said = talk.send(&bed.pod_b, POD_B, 1000, words).clone();
        assert!(said.after >= said.tx_time, "{words}: {said:?}");
    }
    // 57 pieces, and three before them.
    talk.send(&bed.pod_b, POD_B, 1000, "parts=57 mark");
    talk.arrives();
    assert_eq!(daemon.control().counters(NAME).kernel_sent, 1);
}

/// What the kernel refuses at the call is refused at the call, and sends nothing.
#[test]
fn what_the_kernel_refuses_fails_at_once() {
    let bed = Bed::new();
    bed.run(&format!("ip -n {} route del default", bed.pod_a));
    bed.run(&format!("ip -n {} route add {POD_B} via 10.244.0.1", bed.pod_a));
    let daemon = Daemon::start(&bed, &[Attachment::pod_a(&bed)]);
    let mut talk = Talk::start(&daemon, &bed);
    let cases = [
        (POD_B, 1423, "dontfrag", libc::EMSGSIZE),
        (POD_B, 1423, "dontfrag connect", libc::EMSGSIZE),
        (POD_B, 65_508, "", libc::EMSGSIZE),
        (POD_B6, 1403, "dontfrag", libc::EMSGSIZE),
        ("198.51.100.1", 100, "mark", libc::ENETUNREACH),
        (POD_B, 100, "mark oob", libc::EOPNOTSUPP),
        ("10.244.0.255", 100, "mark", libc::EACCES),
    ];
    for (number, (address, octets, words, errno)) in cases.into_iter().enumerate() {
        let said = talk.talker.say(number, &format!("{address} 9 {octets} 5000 {words}"));
        assert_eq!(said.result, -i64::from(errno), "{address} {octets} {words}");
        assert!(said.after < said.tx_time, "{address} {octets} {words}: it has waited");
    }
    // Frames over the MTU of 1,450 octets.
    let said = talk.talker.say(9, &format!("{POD_Q} 9 1469 5000 raw=eth0"));
    assert!(said.result == -i64::from(libc::EMSGSIZE) && said.after < said.tx_time, "{said:?}");
    assert_eq!(daemon.control().counters(NAME).kernel_sent, 0);
    // One octet less fits.
    for (address, words) in [(POD_B, "dontfrag mark"), (POD_B, "dontfrag connect mark")] {
        talk.send(&bed.pod_b, address, 1422, words);
    }
    talk.arrives();
}

/// Neither a socket that is closed, nor one that is connected elsewhere, nor a program that has ended takes a datagram back.
#[test]
fn a_datagram_outlives_its_socket_and_its_program() {
    let bed = Bed::new();
    let daemon = Daemon::start(&bed, &[Attachment::pod_a(&bed)]);
    let mut talk = Talk::start(&daemon, &bed);
    for (address, words) in [(POD_B, "mark close"), (POD_B, "mark connect"), (POD_B6, "mark connect")] {
        talk.send(&bed.pod_b, address, 1000, words);
    }
    talk.talker.child().kill().expect("killed");
    talk.arrives();
}

/// What ktsnd has not read when the program ends is sent, too.
#[test]
fn a_datagram_that_was_not_read_outlives_its_program() {
    let bed = Bed::new();
    let daemon = Daemon::start(&bed, &[Attachment::pod_a(&bed)]);
    let mut talk = Talk::start(&daemon, &bed);
    let listener = Stamped::listen(&bed.pod_q, POD_Q, 22_000);
    let said = talk.talker.say(1, &format!("{POD_Q} 22000 1000 400 many=5 stop={}", daemon.pid()));
    assert_eq!(said.result, 5);
    talk.talker.child().kill().expect("killed");
    let _ = talk.talker.child().wait();
    let ktsnd = Pid::from_raw(daemon.pid().cast_signed()).expect("ktsnd");
    kill_process(ktsnd, Signal::CONT).expect("ktsnd goes on");
    for number in 0..5 {
        let (payload, stamp) = listener.next(SOON).unwrap_or_else(|| panic!("{number}: lost"));
        assert!(is_payload(&payload, 1, 1000) && stamp >= said.tx_time);
    }
}

/// ktsnd ends in order after what it holds is sent.
#[test]
fn ktsnd_ends_when_all_is_sent() {
    let bed = Bed::new();
    let mut daemon = Daemon::start(&bed, &[Attachment::pod_a(&bed)]);
    let mut talk = Talk::start(&daemon, &bed);
    for octets in [0, 1000, 65_507] {
        talk.send(&bed.pod_q, POD_Q, octets, "");
    }
    assert_eq!(daemon.terminate(SOON), Some(0));
    talk.arrives();
    // Without a daemon the call waits.
    talk.sent.clear();
    let said = talk.send(&bed.pod_b, POD_B, 1000, "mark").clone();
    assert!(said.after >= said.tx_time, "{said:?}");
    talk.arrives();
}

/// ktsnd lets a namespace go with its pod: what was to be sent there later is dropped.
#[test]
fn a_namespace_that_goes_is_not_held() {
    let bed = Bed::new();
    let daemon = Daemon::start(&bed, &[Attachment::pod_a(&bed)]);
    let mut talk = Talk::start(&daemon, &bed);
    let said = talk.talker.say(1, &format!("{POD_Q} 9 100 9000 mark"));
    assert_eq!(said.result, 100);
    talk.talker.child().kill().expect("killed");
    let _ = talk.talker.child().wait();
    bed.delete(&bed.pod_a);
    // The interface goes with the last that holds the namespace.
    eventually("the pod's interface is gone", Duration::from_secs(4), || !bed.has_link("pod5"));
}

/// The keys of a socket's timestamps are those of its calls, in whatever order the kernel sends.
#[test]
fn keys_are_those_of_the_calls() {
    let bed = Bed::new();
    let daemon = Daemon::start(&bed, &[Attachment::pod_a(&bed)]);
    let mut talk = Talk::start(&daemon, &bed);
    let said = talk.talker.say(1, &format!("{POD_B} 9 100 300 mark many=4 keys"));
    assert_eq!((said.result, said.more), (4, vec![0, 1, 2, 3]));
}

/// A packet socket's frame to a destination that is not allowed.
#[test]
fn a_packet_sockets_frame_leaves_at_its_time() {
    let bed = Bed::new();
    let daemon = Daemon::start(&bed, &[Attachment::pod_a(&bed)]);
    let mut talk = Talk::start(&daemon, &bed);
    let ear = Stamped::hear(&bed.pod_q, "eth0");
    let said = talk.talker.say(1, &format!("{POD_Q} 9 100 400 raw=eth0"));
    assert_eq!(said.result, 100);
    let (frame, stamp) = ear.next(SOON).expect("it arrives");
    assert_eq!(frame.len(), 100);
    assert!(stamp >= said.tx_time, "{} ns early", said.tx_time - stamp);
}

/// A burst on a non-blocking socket: each datagram that was taken arrives, at its time.
#[test]
fn a_burst_is_taken_whole() {
    let bed = Bed::new();
    let daemon = Daemon::start(&bed, &[Attachment::pod_a(&bed)]);
    let mut talk = Talk::start(&daemon, &bed);
    let listener = Stamped::listen(&bed.pod_b, POD_B, 22_000);
    let said = talk.talker.say(1, &format!("{POD_B} 22000 1000 800 mark many=64"));
    assert_eq!(said.result, 64);
    for number in 0..64 {
        let (payload, stamp) = listener.next(SOON).unwrap_or_else(|| panic!("{number}: lost"));
        assert!(is_payload(&payload, 1, 1000) && stamp >= said.tx_time);
    }
}
