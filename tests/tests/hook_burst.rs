// SPDX-License-Identifier: Apache-2.0
//! `sendmmsg`, UDP_SEGMENT, control messages beside SCM_TXTIME, pointers that point nowhere: what the program sees is
//! what the kernel alone shows it, and what the daemon gets is what was asked.

use std::collections::BTreeMap;
use std::net::UdpSocket;
use std::process::{Output, Stdio};
use std::time::Duration;

use ktsn_tests::hook::{self, LIBCS, Libc};
use ktsn_tests::peer::{Behaviour, Peer, Received};

fn lines(output: &Output) -> String {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{:?}\n{errors}", output.status);
    assert_eq!(errors, "");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// What a script prints on the kernel alone, and under the library without a daemon and with one: the same. The
/// frames that the daemon got, and its counters.
fn differential(libc: Libc, script: &str) -> (BTreeMap<String, i64>, Vec<Received>, [u64; 32]) {
    let run_dir = hook::open_directory();
    let receiver = UdpSocket::bind("127.0.0.1:0").expect("receiver");
    let port = receiver.local_addr().expect("address").port();
    let plain = lines(&hook::unhooked(libc, script, port).output().expect("program"));
    let hooked = || {
        let mut command = hook::scenario(libc, run_dir.path(), script, port);
        command.env("KTSN_LOG", "off").output().expect("program")
    };
    assert_eq!(lines(&hooked()), plain, "{script} without a daemon");
    let peer = Peer::start(run_dir.path(), Behaviour::default());
    let output = hooked();
    assert_eq!(lines(&output), plain, "{script} with a daemon");
    let _ = peer.texts();
    let events = peer.events();
    assert_eq!((events.slot_errors, events.broken, events.clients), (0, 0, 1), "{script} {libc:?}");
    (hook::values(&output), events.frames.clone(), events.counters[0])
}

fn texts(frames: &[Received]) -> Vec<String> {
    frames.iter().map(Received::text).collect()
}

#[test]
fn a_burst_keeps_its_order_and_the_kernels_answers() {
    for libc in LIBCS {
        let (values, frames, counters) = differential(libc, "burst");
        // The kernel's own rules, that the comparison is about something.
        assert_eq!((values["all"], values["none"], values["mixed"], values["mixed-len"]), (150, 0, 6, 4));
        assert_eq!((values["fails-third"], values["fails-first"], values["bad-second"]), (2, -22, 1));
        let taken = (0..150).chain([150, 151, 153, 155, 160, 161, 170, 171, 172, 173, 180]);
        assert_eq!(texts(&frames), taken.map(|number| format!("b{number}")).collect::<Vec<_>>());
        // To a destination that is not ours; without a transmit time.
        assert_eq!((counters[2], counters[0], counters[18]), (1, 1, frames.len() as u64));
        // One look at the clock for a call, and transmit times of their own.
        assert!(frames[..150].windows(2).all(|pair| pair[0].frame.tx_time + 1000 == pair[1].frame.tx_time));
        assert!(frames[..150].windows(2).all(|pair| pair[0].frame.pushed_at == pair[1].frame.pushed_at));
    }
}

/// What MSG_MORE began in the kernel is ended there; the datagram after it is taken again.
#[test]
fn pieces_of_a_datagram_stay_together() {
    let script = "timed 0
        connect 0 127.0.0.1,{port}
        base tai:+200000000
        begun: send 0 text=one- to=none tx=base:+0 more=1
        more: send 0 text=and- to=none tx=base:+0 more=1
        ended: send 0 text=the-same to=none tx=base:+0
        whole: send 0 text=another to=none tx=base:+0";
    for libc in LIBCS {
        let (values, frames, counters) = differential(libc, script);
        assert_eq!((values["begun"], values["more"], values["ended"], values["whole"]), (4, 4, 8, 7));
        assert_eq!(texts(&frames), ["another"]);
        assert_eq!(counters[5], 3);
    }
}

#[test]
fn segments_leave_together() {
    for libc in LIBCS {
        let (values, frames, counters) = differential(libc, "segments");
        assert_eq!(
            (values["three"], values["128"], values["129"], values["too-long"]),
            (250, 2560, -22, -90)
        );
        let lengths: Vec<usize> = frames.iter().map(|frame| frame.payload.len()).collect();
        let mut expected = vec![100, 100, 50, 100, 100, 99, 0, 250, 125, 125, 200, 50];
        expected.extend(vec![20; 64 + 128]);
        expected.extend(vec![1400; 46]);
        expected.extend([65507 - 46 * 1400, 1000, 60, 60, 60, 20]);
        expected.extend([250, 100, 100, 50]); // reset, v6
        assert_eq!(lengths, expected);
        assert_eq!(
            (texts(&frames[..3])[1].as_str(), texts(&frames[..3])[2].as_str()),
            (&*"b".repeat(100), &*"c".repeat(50))
        );
        let text: String =
            frames[expected.len() - 8..expected.len() - 4].iter().map(Received::text).collect();
        assert_eq!(text, "a".repeat(100) + &"b".repeat(100));
        let at = frames[0].frame.tx_time;
        assert!(frames.iter().all(|frame| frame.frame.tx_time == at), "every segment at the same TxTime");
        // Over the MTU; what the kernel refuses or does in another way: four octets, 129, no-check, corked.
        assert_eq!((counters[4], counters[5]), (1, 4));
    }
}

#[test]
fn control_messages_travel_in_the_frame() {
    for libc in LIBCS {
        let (values, frames, _) = differential(libc, "marks");
        assert_eq!((values["v4-0-2-0"], values["v6-0-2-0"], values["refused"]), (-22, 3, -1));
        let of = |text: &str| {
            let frame = frames.iter().find(|frame| frame.text() == text).unwrap_or_else(|| panic!("{text}"));
            (frame.frame.priority, frame.frame.traffic_class, frame.frame.hop_limit)
        };
        let default = |path: &str| -> u8 {
            let text = std::fs::read_to_string(path).expect("default");
            text.trim().parse().expect("a number")
        };
        let ttl = default("/proc/sys/net/ipv4/ip_default_ttl");
        assert_eq!(of("tos-ttl"), (4, 0xb8, 7)); // the kernel's rt_tos2priority
        assert_eq!((of("octet"), of("two-times")), ((6, 0x10, ttl), (3, 0, ttl)));
        assert_eq!((of("priority"), of("tos-last")), ((5, 0, ttl), (2, 8, ttl)));
        assert_eq!((of("six"), of("mapped")), ((0, 0x20, 9), (0, 0, ttl)));
        // IPV6_TCLASS = -1 is another class to each kernel.
        assert!(frames.iter().all(|frame| frame.text() != "default"));
        // CAP_NET_ADMIN or CAP_NET_RAW may ask for any priority.
        let mut priorities =
            frames.iter().filter(|frame| frame.text() == "odd").map(|frame| frame.frame.priority);
        assert!(
            priorities.clone().any(|priority| priority == 7) && priorities.any(|priority| priority == 15)
        );
    }
}

/// EFAULT instead of a crash, for every pointer of a message. (musl's own sendmsg reads the header and the control
/// data itself, and faults there.)
#[test]
fn pointers_that_point_nowhere() {
    let (values, frames, _) = differential(Libc::Gnu, "faults");
    assert_eq!((values["beyond"], values["array-ends"], values["constant"]), (-22, -22, -22));
    assert_eq!(texts(&frames)[..2], ["fault".to_owned(), "x".to_owned()]);
}

/// Wild pointers on a socket with a granted CLOCK_TAI, of which the kernel's socket knows nothing: a program without rights
/// gets root's answers.
#[test]
fn pointers_that_point_nowhere_on_a_granted_socket() {
    let run_dir = hook::open_directory();
    let receiver = UdpSocket::bind("127.0.0.1:0").expect("receiver");
    let port = receiver.local_addr().expect("address").port();
    let plain = lines(&hook::unhooked(Libc::Gnu, "faults", port).output().expect("program"));
    let peer = Peer::start(run_dir.path(), Behaviour::default());
    let mut granted = hook::scenario(Libc::Gnu, run_dir.path(), "faults granted", port);
    assert_eq!(lines(&granted.output().expect("program")), plain);
    assert!(peer.texts().contains(&"fault".to_owned()));
}

/// A message takes all its slots or none, a burst as many as there are; waiting goes on where there is room again.
#[test]
fn a_burst_into_a_full_ring() {
    let run_dir = hook::open_directory();
    let peer = Peer::start(run_dir.path(), Behaviour { slots: 64, takes_max: 0, ..Behaviour::default() });
    let mut command = hook::scenario(Libc::Gnu, run_dir.path(), "burst-full", 9);
    let mut child = hook::Running(command.stdout(Stdio::piped()).spawn().expect("program"));
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(child.0.stdout.take().expect("output")));
    let mut values = BTreeMap::new();
    let mut until = |name: &str| {
        while !values.contains_key(name) {
            let line = lines.next().expect("a line").expect("text");
            let (what, value) = line.split_once(' ').expect("words");
            values.insert(what.to_owned(), value.parse::<i64>().expect("value"));
        }
        values.clone()
    };
    let values = until("blocking");
    assert_eq!((values["some"], values["five"], values["three"]), (60, -11, 600)); // EAGAIN
    assert_eq!((values["last"], values["full"], values["timeout"]), (1, -11, -11));
    // It goes on waiting.
    std::thread::sleep(Duration::from_millis(50));
    assert!(child.0.try_wait().expect("child").is_none(), "a blocking burst must wait");
    peer.change(|behaviour| behaviour.takes_max = usize::MAX);
    let values = until("waited-five");
    assert_eq!((values["waited"], values["waited-five"]), (70, 1000));
    assert!(child.0.wait().expect("child").success());
    assert!(peer.wait(Duration::from_secs(20), |events| events.frames.len() == 64 + 70 + 5));
}

/// A frame says that its TxTime passed while the program waited for a slot, also where the wait was an earlier frame's or another
/// socket's.
#[test]
fn a_frame_says_that_its_program_waited() {
    let run_dir = hook::open_directory();
    let peer = Peer::start(run_dir.path(), Behaviour { slots: 64, takes_max: 0, ..Behaviour::default() });
    let mut command = hook::scenario(Libc::Gnu, run_dir.path(), "burst-waits", 9);
    let mut child = hook::Running(command.spawn().expect("program"));
    let limit = Duration::from_secs(20);
    // The instant passes while the 65th waits. Eight slots later another wait begins, after it.
    assert!(peer.wait(limit, |events| events.counters.first().is_some_and(|counters| counters[18] == 64)));
    std::thread::sleep(Duration::from_millis(1_200));
    peer.change(|behaviour| behaviour.takes_max = 8);
    assert!(peer.wait(limit, |events| events.frames.len() == 8));
    std::thread::sleep(Duration::from_millis(100));
    peer.change(|behaviour| behaviour.takes_max = usize::MAX);
    assert!(peer.wait(limit, |events| events.frames.len() == 82));
    assert!(child.0.wait().expect("child").success());
    let waited = peer.events().frames.iter().map(|taken| taken.frame.has_waited).collect::<Vec<_>>();
    assert_eq!(waited, [[false; 64].as_slice(), &[true; 17], &[false]].concat());
}

/// The program dies at a system call that is no doorbell; how long it takes is said, and not judged here.
#[test]
fn a_burst_costs_no_system_call() {
    let run_dir = hook::open_directory();
    // Frames that are due later are not rung for.
    let promise = Duration::from_secs(1);
    let silent = Behaviour { slots: 4096, takes_max: 0, promise, ..Behaviour::default() };
    let peer = Peer::start(run_dir.path(), silent);
    let output = hook::scenario(Libc::Gnu, run_dir.path(), "burst-cost", 9).output().expect("program");
    let values = hook::values(&output);
    println!("a frame of 64 octets in a burst of 64: {} ns", values["frame-ns"]);
    assert!(peer.wait(Duration::from_secs(20), |events| events.counters[0][18] == 61 * 64));
}
