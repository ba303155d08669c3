// SPDX-License-Identifier: Apache-2.0
//! One process, one thread: which datagrams are taken, with which metadata, and which are the kernel's.

use std::collections::BTreeMap;
use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::time::Duration;

use ktsn_ring::{ClockId, SlotFlags};
use ktsn_tests::hook::{self, LIBCS, Libc};
use ktsn_tests::peer::{Behaviour, Peer, Received};

/// Runs a script against a fresh peer; what it printed and what the peer got.
fn run(
    libc: Libc,
    script: &str,
    behaviour: Behaviour,
) -> (BTreeMap<String, i64>, Vec<Received>, [u64; 32], u16) {
    let run_dir = hook::open_directory();
    let peer = Peer::start(run_dir.path(), behaviour);
    let receiver = UdpSocket::bind("127.0.0.1:0").expect("receiver");
    let port = receiver.local_addr().expect("address").port();
    let output = hook::scenario(libc, run_dir.path(), script, port).output().expect("program");
    let values = hook::values(&output);
    let _ = peer.texts();
    let events = peer.events();
    assert_eq!((events.slot_errors, events.broken, events.clients), (0, 0, 1), "{script} {libc:?}");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    (values, events.frames.clone(), events.counters[0], port)
}

fn find<'a>(frames: &'a [Received], text: &str) -> &'a Received {
    let mut found = frames.iter().filter(|frame| frame.text() == text);
    let frame = found.next().unwrap_or_else(|| panic!("{text} was not taken"));
    assert!(found.next().is_none(), "{text} was taken twice");
    frame
}

fn mapped(address: [u8; 4]) -> [u8; 16] {
    std::net::Ipv4Addr::from(address).to_ipv6_mapped().octets()
}

#[test]
fn addresses_of_both_families() {
    let script = "timed 0
        timed 1 inet6
        v4: send 0 text=v4
        wide: send 0 text=wide namelen=128 dontwait=1 nosignal=1
        v6: send 1 text=v6 to=::1,{port}
        mapped: send 1 text=mapped to=::ffff:127.0.0.1,{port}
        v4-on-v6: send 1 text=v4-on-v6
        port4: port 0
        port6: port 1
        timed 2
        bind: bind 2 127.0.0.1,0
        bound: send 2 text=bound
        port-bound: port 2
        timed 3
        no-peer: send 3 text=no-peer to=none
        connect: connect 3 127.0.0.1,{port}
        peer: send 3 text=peer to=none
        override: send 3 text=override
        far: send 0 text=far to=127.9.9.9,9";
    for libc in LIBCS {
        let (values, frames, counters, port) = run(libc, script, Behaviour::default());
        for text in ["v4", "wide", "mapped", "v4-on-v6", "bound", "override"] {
            let frame = find(&frames, text).frame;
            assert_eq!((frame.address, frame.port, frame.scope), (mapped([127, 0, 0, 1]), port, 0), "{text}");
            assert_eq!(ClockId::from_id(frame.clock), Some(ClockId::Tai));
            assert!(!frame.flags.contains(SlotFlags::CONNECTED));
            assert_eq!(values[text], text.len() as i64, "{text}");
        }
        let six = find(&frames, "v6");
        assert_eq!(six.frame.address, std::net::Ipv6Addr::LOCALHOST.octets());
        let peer = find(&frames, "peer");
        assert!(peer.frame.flags.contains(SlotFlags::CONNECTED));
        assert_eq!(peer.peer, Some(SocketAddr::from(([127, 0, 0, 1], port))));
        // An unbound socket has its port before its first frame, and the daemon knows it.
        for (text, what) in [("v4", "port4"), ("v6", "port6"), ("bound", "port-bound")] {
            let local = find(&frames, text).local.expect("local address");
            assert!(local.port() != 0 && i64::from(local.port()) == values[what], "{text} {local}");
        }
        assert_eq!((values["no-peer"], values["far"]), (-89, 3)); // EDESTADDRREQ; to the kernel
        assert!(frames.iter().all(|frame| frame.text() != "far"));
        assert_eq!((counters[2], counters[16], counters[18]), (1, 0, frames.len() as u64));
        assert_eq!(frames.len(), 8);
    }
}

#[test]
fn options_travel_in_the_frame() {
    let script = "timed 0
        send 0 text=default
        set 0 priority 5
        set 0 ttl 9
        send 0 text=priority-ttl
        set 0 tos 0xb8
        send 0 text=tos
        set 0 priority 3
        send 0 text=tos-priority
        set 0 nocheck 1
        no-check: send 0 text=no-check
        set 0 nocheck 0
        check: send 0 text=check
        timed 1 inet6
        set 1 tclass 0x20
        set 1 hops 7
        class: send 1 text=class to=::1,{port}";
    let (values, frames, counters, _) = run(Libc::Gnu, script, Behaviour::default());
    let of = |text| {
        let frame = find(&frames, text).frame;
        assert!(frame.flags.contains(SlotFlags::TRAFFIC_CLASS.with(SlotFlags::HOP_LIMIT)));
        (frame.priority, frame.traffic_class, frame.hop_limit)
    };
    let ttl = std::fs::read_to_string("/proc/sys/net/ipv4/ip_default_ttl").expect("ttl");
    assert_eq!(of("default"), (0, 0, ttl.trim().parse().expect("ttl")));
    assert_eq!(of("priority-ttl"), (5, 0, 9));
    assert_eq!(of("tos"), (4, 0xb8, 9)); // the kernel's rt_tos2priority
    assert_eq!(of("tos-priority"), (3, 0xb8, 9));
    assert_eq!(of("class"), (0, 0x20, 7));
    // What a frame cannot carry is the kernel's until it is reset.
    assert_eq!((values["no-check"], values["check"], counters[5]), (8, 5, 1));
    assert!(frames.iter().all(|frame| frame.text() != "no-check"));
    let _ = find(&frames, "check");
}

/// IP_PKTINFO, IPV6_PKTINFO, IP_MULTICAST_IF, IPV6_MULTICAST_IF: what the attachment does anyway is taken.
#[test]
fn where_a_datagram_is_to_leave() {
    // Interface 1 is lo.
    let script = "timed 0
        timed 1 inet6
        interface: send 0 text=interface leave=1,0.0.0.0
        source: send 0 text=source leave=0,127.0.0.1
        both: send 0 text=both leave=1,127.0.0.1
        foreign: send 0 text=foreign leave=0,127.0.0.2
        nowhere: send 0 text=nowhere leave=999999,0.0.0.0
        six: send 1 text=six leave=1,:: to=::1,{port}
        six-foreign: send 1 text=six-foreign leave=0,::1 to=::1,{port}
        set 0 mcast-if - interface=1
        group: send 0 text=group to=239.1.2.3,{port}
        set 0 mcast-if - source=127.0.0.1 len=4
        group-source: send 0 text=group-source to=239.1.2.3,{port}
        by-source: set 0 mcast-if - source=127.0.0.2 len=8
        by-both: set 0 mcast-if - interface=1 source=127.0.0.2
        group-foreign: send 0 text=group-foreign to=239.1.2.3,{port}
        not-group: send 0 text=not-group
        set 1 mcast6-if 1
        six-group: send 1 text=six-group to=ff0e::1,{port}";
    let mut behaviour = Behaviour::default();
    let mut group_six = [0; 16];
    group_six[0] = 0xff;
    behaviour.destinations.extend([(mapped([239, 0, 0, 0]), 96 + 8), (group_six, 8)]);
    let (values, frames, counters, _) = run(Libc::Gnu, script, behaviour);
    let mut taken: Vec<String> = frames.iter().map(Received::text).collect();
    taken.sort();
    let expected = ["both", "group", "group-source", "interface", "not-group", "six", "six-group", "source"];
    assert_eq!(taken, expected, "{values:?}");
    assert!(expected.iter().all(|text| values[*text] == text.len() as i64), "{values:?}");
    // The rest is the kernel's, and so are its errors.
    assert_eq!((values["foreign"], values["six-foreign"]), (7, 11), "{values:?}");
    assert!(values["nowhere"] < 0, "{values:?}");
    assert_eq!(counters[5], 4, "{counters:?}");
}

/// A program without rights: CLOCK_TAI needs CAP_NET_ADMIN, or the daemon's grant. The transmit time of `stripped` must not reach
/// the kernel, which knows nothing of SO_TXTIME on that socket.
const GRANTED: &str = "user 65534
    socket 0 inet
    socket 1 inet stream
    tai: txtime 0
    get: gettxtime 0
    short: gettxtime 0 len=3
    sent: send 0 text=granted
    stripped: send 0 text=stripped to=127.9.9.9,{port}
    tcp: txtime 1
    realtime: txtime 0 clock=real
    wrong: txtime 0 clock=99
    flags: txtime 0 flags=0xff00
    length: txtime 0 flags=0xff00 len=4
    socket 2 inet
    monotonic: txtime 2 clock=mono
    mono-sent: send 2 text=monotonic tx=mono:+200000000";

#[test]
fn tai_is_granted_while_attached() {
    for libc in LIBCS {
        let (values, frames, counters, _) = run(libc, GRANTED, Behaviour::default());
        assert_eq!((values["tai"], values["get"]), (0, 0));
        assert_eq!((values["get-clock"], values["get-octets"]), (11, 8));
        // Three octets of 11; the fourth is what it was.
        assert_eq!((values["short-octets"], values["short-clock"]), (3, -0x0100_0000 + 11));
        let _ = find(&frames, "granted");
        let _ = find(&frames, "monotonic");
        // EPERM and EINVAL stay the kernel's.
        assert_eq!((values["tcp"], values["realtime"], values["wrong"]), (-1, -1, -1));
        assert_eq!((values["flags"], values["length"], values["monotonic"]), (-22, -22, 0));
        assert_eq!((values["stripped"], counters[2]), (8, 1));
    }
    // A daemon that does not grant it, and no daemon at all: the kernel's answer.
    let refused = Behaviour { grants_tai: false, ..Behaviour::default() };
    let (values, frames, _, _) = run(Libc::Gnu, GRANTED, refused);
    assert_eq!((values["tai"], values["sent"]), (-1, -22)); // EPERM, EINVAL
    assert_eq!(frames.len(), 1);
    let nowhere = hook::open_directory();
    let output = hook::scenario(Libc::Gnu, nowhere.path(), GRANTED, 9).output().expect("program");
    let plain = hook::unhooked(Libc::Gnu, GRANTED, 9).output().expect("program");
    assert_eq!(output.stdout, plain.stdout);
}

#[test]
fn untimed_datagrams_are_taken_where_the_attachment_says_so() {
    let script = "timed 0
        timed 1 clock=mono
        connect 1 127.0.0.1,{port}
        set 0 priority 0
        zero: send 0 text=zero tx=none
        set 0 priority 4
        four: send 0 text=four tx=none
        set 0 priority 6
        six: send 0 text=six tx=none
        set 1 priority 5
        peer: send 1 text=peer tx=none to=none
        others: send 1 text=others tx=none to=none ttl=3
        send 0 text=timed";
    for libc in LIBCS {
        let texts = |frames: &[Received]| frames.iter().map(Received::text).collect::<Vec<_>>();
        let takes = |takes_untimed_from| Behaviour { takes_untimed_from, ..Behaviour::default() };
        let (values, frames, counters, _) = run(libc, script, takes(Some(4)));
        let lengths = ["zero", "four", "six", "peer", "others"].map(|name| values[name]);
        assert_eq!(lengths, [4, 4, 3, 4, 6]);
        assert_eq!(
            (texts(&frames), counters[0]),
            (["four", "six", "peer", "others", "timed"].map(str::to_owned).to_vec(), 1)
        );
        let of = |text| find(&frames, text).frame;
        assert_eq!((of("four").tx_time, of("four").clock, of("four").priority), (0, 1, 4));
        assert_eq!((of("peer").tx_time, of("peer").clock, of("peer").priority), (0, 1, 5));
        assert_eq!((of("others").tx_time, of("others").hop_limit), (0, 3)); // IP_TTL as a control message
        let (_, frames, counters, _) = run(libc, script, takes(Some(0)));
        assert_eq!((frames.len(), counters[0]), (6, 0));
        let (_, frames, counters, _) = run(libc, script, takes(None));
        assert_eq!((texts(&frames), counters[0]), (vec!["timed".to_owned()], 5));
    }
}

#[test]
fn pieces_and_lengths() {
    let script = "timed 0
        three: send 0 text=abcde size=2+0+3
        empty: send 0 parts=0
        many: send 0 fill=m parts=1024
        too-many: send 0 fill=m parts=1025
        fits: send 0 fill=x size=1400
        over: send 0 fill=x size=1401
        longest: send 0 fill=x size=65507
        too-long: send 0 fill=x size=65508
        burst: send 0 text=burst count=5";
    for libc in LIBCS {
        let (values, frames, counters, _) = run(libc, script, Behaviour::default());
        let _ = find(&frames, "abcde");
        let _ = find(&frames, "");
        let _ = find(&frames, &"m".repeat(1024));
        let _ = find(&frames, &"x".repeat(1400));
        assert_eq!((values["three"], values["empty"], values["many"], values["fits"]), (5, 0, 1024, 1400));
        assert_eq!((values["too-many"], values["too-long"]), (-90, -90)); // EMSGSIZE
        assert_eq!((values["over"], values["longest"], counters[4]), (1401, 65507, 2)); // to the kernel
        assert_eq!((values["burst"], values["burst-len"]), (5, 5));
        assert_eq!(frames.iter().filter(|frame| frame.text() == "burst").count(), 5);
        assert_eq!(frames.len(), 9);
    }
}

/// Slots are the back-pressure: EAGAIN, SO_SNDTIMEO, EINTR, and going on when there is room.
#[test]
fn a_full_ring() {
    let run_dir = hook::open_directory();
    let peer = Peer::start(run_dir.path(), Behaviour { slots: 64, takes_max: 0, ..Behaviour::default() });
    let mut command = hook::scenario(Libc::Gnu, run_dir.path(), "full", 9);
    let mut child = hook::Running(command.stdout(std::process::Stdio::piped()).spawn().expect("program"));
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(child.0.stdout.take().expect("output")));
    let mut values = BTreeMap::new();
    while !values.contains_key("blocking") {
        let line = lines.next().expect("a line").expect("text");
        let (what, value) = line.split_once(' ').expect("words");
        values.insert(what.to_owned(), value.parse::<i64>().expect("value"));
    }
    assert_eq!((values["filled"], values["full"], values["nonblocking"]), (64, -11, -11)); // EAGAIN
    assert_eq!((values["timeout"], values["interrupted"]), (-11, -4)); // EAGAIN, EINTR
    // SA_RESTART does not count where SO_SNDTIMEO is set [signal(7)].
    assert_eq!(values["with-timeout"], -4);
    assert!(values["waited-ms"] >= 50, "{values:?}");
    // It goes on waiting.
    std::thread::sleep(Duration::from_millis(200));
    assert!(
        child.0.try_wait().expect("child").is_none(),
        "a blocking send waits, whatever a handler with SA_RESTART does"
    );
    peer.change(|behaviour| behaviour.takes_max = usize::MAX);
    assert_eq!(lines.next().expect("a line").expect("text"), "released 4");
    assert!(child.0.wait().expect("child").success());
    assert!(peer.wait(Duration::from_secs(20), |events| events.frames.len() == 65));
}

/// The program dies at a system call that is no doorbell; how long it takes is said, and not judged here.
#[test]
fn a_send_costs_no_system_call() {
    // Frames that are due later are not rung for.
    let promise = Duration::from_secs(1);
    let silent = Behaviour { slots: 4096, takes_max: 0, promise, ..Behaviour::default() };
    let (values, _, counters, _) = run(Libc::Gnu, "cost", silent);
    println!("an intercepted sendmsg of 64 octets: {} ns", values["send-ns"]);
    assert_eq!((counters[18], counters[16]), (4001, 0));
}

fn python(run_dir: &Path, program: &str, arguments: &[&str]) -> String {
    let output =
        hook::hooked("python3", run_dir).args(["-c", program]).args(arguments).output().expect("python3");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn python_sends_too() {
    let run_dir = hook::open_directory();
    let peer = Peer::start(run_dir.path(), Behaviour::default());
    let program = "import socket,struct,time,sys\n\
        s=socket.socket(socket.AF_INET,socket.SOCK_DGRAM)\n\
        s.setsockopt(socket.SOL_SOCKET,61,struct.pack('iI',1,0))\n\
        at=time.monotonic_ns()+100000000\n\
        print(at,s.sendmsg([b'py',b'thon'],[(socket.SOL_SOCKET,61,struct.pack('Q',at))],0,('127.0.0.1',int(sys.argv[1]))))";
    let printed = python(run_dir.path(), program, &["4321"]);
    let (at, sent) = printed.trim().split_once(' ').expect("two words");
    assert_eq!((sent, peer.texts()), ("6", vec!["python".to_owned()]));
    let frame = peer.events().frames[0].frame;
    assert_eq!((frame.tx_time, frame.clock, frame.port), (at.parse().expect("time"), 1, 4321));
    assert!(frame.pushed_at < frame.tx_time && frame.pushed_at > frame.tx_time - 100_000_000);
}

/// The program that README and guide begin with: each of its datagrams is taken, a millisecond apart.
#[test]
fn the_example_is_served() {
    let run_dir = hook::open_directory();
    let peer = Peer::start(run_dir.path(), Behaviour::default());
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/send.py");
    let output = hook::hooked("python3", run_dir.path())
        .arg(example)
        .args(["127.0.0.1", "4321", "20"])
        .output()
        .expect("python3");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(peer.texts(), (0..20).map(|number| number.to_string()).collect::<Vec<String>>());
    let times: Vec<u64> = peer.events().frames.iter().map(|frame| frame.frame.tx_time).collect();
    assert!(times.windows(2).all(|pair| pair[1] - pair[0] == 1_000_000), "{times:?}");
}
