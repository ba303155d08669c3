// SPDX-License-Identifier: Apache-2.0
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;

use ktsn_eventually::{eventually, try_eventually};
use ktsn_ring::control::LaterHeader;

use super::*;

const NETNS: u64 = 7;
const HORIZON: u64 = 10_000_000_000;
const SECOND: u64 = 1_000_000_000;
const MONOTONIC: u32 = 1;
const TAI: u32 = 11;

fn receiver() -> UdpSocket {
    let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
    receiver.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    receiver
}

/// `struct sockaddr_in`.
fn name_of(address: SocketAddr) -> Vec<u8> {
    let SocketAddr::V4(v4) = address else { panic!("{address}") };
    let family = u16::try_from(libc::AF_INET).unwrap();
    [&family.to_ne_bytes()[..], &v4.port().to_be_bytes(), &v4.ip().octets(), &[0; 8]].concat()
}

/// A control message with an int.
fn control_of(level: i32, kind: i32, value: i32) -> Vec<u8> {
    let words = [&20u64.to_ne_bytes()[..], &level.to_ne_bytes(), &kind.to_ne_bytes()];
    [&words.concat()[..], &value.to_ne_bytes(), &[0; 4]].concat()
}

fn datagram(clock: u32, tx_time: u64, parts: [&[u8]; 3]) -> Datagram {
    let octets = |part: usize| u32::try_from(parts[part].len()).unwrap();
    let (name_octets, control_octets, payload_octets) = (octets(0), octets(1), octets(2));
    let header = LaterHeader { clock, tx_time, flags: 0, name_octets, control_octets, payload_octets };
    let socket = OwnedFd::from(UdpSocket::bind("0.0.0.0:0").unwrap());
    Datagram {
        cookie: rustix::net::sockopt::socket_cookie(&socket).unwrap(),
        socket: Arc::new(socket),
        octets: header.encode().iter().flat_map(|word| word.to_ne_bytes()).chain(parts.concat()).collect(),
        clock,
        tx_time,
        client: ClientKey(1),
        attachment: AttachmentIndex(0),
        is_foreign: false,
        stats: Arc::default(),
        asked: None,
    }
}

fn dropped(stats: &AttachmentStats) -> Vec<(&'static str, u64)> {
    let counts = DropReason::ALL.iter().map(|reason| reason.word()).zip(&stats.kernel_dropped);
    counts.map(|(word, count)| (word, count.load(Relaxed))).filter(|(_, count)| *count > 0).collect()
}

/// On each clock, the latest first.
#[test]
fn nothing_is_sent_before_its_time() {
    let (mut later, receiver) = (Later::new(), receiver());
    let name = name_of(receiver.local_addr().unwrap());
    let mut times = Vec::new();
    for number in (0..20u8).rev() {
        let clock = [MONOTONIC, TAI, 0, 7][usize::from(number) % 4];
        let tx_time = read_clock(clock) + SECOND / 2 + u64::from(number) * 20_000_000;
        times.push((number, clock, tx_time));
        later.give(NETNS, HORIZON, datagram(clock, tx_time, [&name, &[], &[number]]));
    }
    for _ in 0..times.len() {
        let mut octets = [0; 2];
        assert_eq!(receiver.recv(&mut octets).unwrap(), 1);
        let place = times.iter().position(|(number, ..)| *number == octets[0]).expect("each comes once");
        let (number, clock, tx_time) = times.swap_remove(place);
        let now = read_clock(clock);
        assert!(now >= tx_time, "{number} on {clock}: {now} {tx_time}");
    }
    eventually("nothing is left", Duration::from_secs(60), || later.is_empty());
}

/// What takes a capability is refused, whatever ktsnd may do; what takes none is not.
#[test]
fn the_kernel_judges_as_for_any_program() {
    let (mut later, receiver) = (Later::new(), receiver());
    let name = name_of(receiver.local_addr().unwrap());
    let mark = datagram(MONOTONIC, 1, [&name, &control_of(libc::SOL_SOCKET, libc::SO_MARK, 1), b"mark"]);
    let ttl = datagram(MONOTONIC, 2, [&name, &control_of(libc::IPPROTO_IP, libc::IP_TTL, 9), b"ttl"]);
    let stats = mark.stats.clone();
    later.give(NETNS, HORIZON, mark);
    later.give(NETNS, HORIZON, Datagram { stats: stats.clone(), ..ttl });
    later.finish(&|| {});
    let mut octets = [0; 8];
    assert_eq!(receiver.recv(&mut octets).unwrap(), 3);
    assert_eq!((dropped(&stats), stats.kernel_sent.load(Relaxed)), (vec![("port_error", 1)], 1));
}

#[test]
fn what_the_kernel_refuses_is_counted_by_reason() {
    let mut later = Later::new();
    let stats: Arc<AttachmentStats> = Arc::default();
    let give = |later: &mut Later, tx_time, name: &[u8], payload: &[u8]| {
        let datagram = datagram(MONOTONIC, tx_time, [name, &[], payload]);
        later.give(NETNS, HORIZON, Datagram { stats: stats.clone(), ..datagram });
    };
    let here = name_of("127.0.0.1:9".parse().unwrap());
    give(&mut later, 1, &here, &vec![0; 65_508]);
    give(&mut later, 1, &[], b"no destination");
    give(&mut later, read_clock(MONOTONIC) + HORIZON + SECOND, &here, b"too far ahead");
    later.finish(&|| {});
    assert_eq!(dropped(&stats), [("beyond_horizon", 1), ("too_long", 1), ("port_error", 1)]);
    assert_eq!(stats.kernel_sent.load(Relaxed), 0);
}

/// An attachment that goes takes its datagrams along; another one's stay. No socket of it is held any more.
#[test]
fn an_attachment_that_goes_takes_its_datagrams_along() {
    let mut later = Later::new();
    let far = read_clock(TAI) + HORIZON / 2;
    let to = name_of("127.0.0.1:9".parse().unwrap());
    let gone = datagram(TAI, far, [&to, &[], b"gone"]);
    let (stats, socket) = (gone.stats.clone(), Arc::downgrade(&gone.socket));
    let other = Datagram { attachment: AttachmentIndex(1), ..datagram(TAI, far, [&to, &[], b"other"]) };
    let others = other.stats.clone();
    later.give(NETNS, HORIZON, gone);
    later.give(NETNS, HORIZON, other);
    later.keep_served(|netns_cookie, index| netns_cookie == NETNS && index == AttachmentIndex(1));
    assert_eq!((dropped(&stats), dropped(&others)), (vec![("detached", 1)], vec![]));
    assert!(socket.upgrade().is_none(), "its socket is closed");
    later.keep_served(|_, _| false);
    assert_eq!(dropped(&others), [("detached", 1)]);
    assert!(later.is_empty() && later.lanes.is_empty());
}

/// A program that ends has sent what it has sent; what would hold a namespace without attachment for long is dropped.
#[test]
fn a_program_that_ends_leaves_its_datagrams() {
    let (mut later, receiver) = (Later::new(), receiver());
    let name = name_of(receiver.local_addr().unwrap());
    let now = read_clock(MONOTONIC);
    let stats: Arc<AttachmentStats> = Arc::default();
    for (text, after, is_foreign) in
        [("own", 2 * SECOND, false), ("soon", SECOND / 2, true), ("long", 5 * SECOND, true)]
    {
        let datagram = datagram(MONOTONIC, now + after, [&name, &[], text.as_bytes()]);
        later.give(NETNS, HORIZON, Datagram { stats: stats.clone(), is_foreign, ..datagram });
    }
    later.end_client(NETNS, ClientKey(1));
    later.finish(&|| {});
    assert_eq!((dropped(&stats), stats.kernel_sent.load(Relaxed)), (vec![("detached", 1)], 2));
    for text in ["soon", "own"] {
        let mut octets = [0; 8];
        let length = receiver.recv(&mut octets).unwrap();
        assert_eq!(std::str::from_utf8(&octets[..length]), Ok(text));
    }
}

/// An error that an earlier datagram met is not this one's.
#[test]
fn an_earlier_error_of_the_socket_drops_nothing() {
    let (mut later, receiver) = (Later::new(), receiver());
    let name = name_of(receiver.local_addr().unwrap());
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    // No socket listens at this address: the next send is refused.
    let closed = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    socket.connect(closed).unwrap();
    socket.send(b"refused").unwrap();
    let datagram = datagram(MONOTONIC, 1, [&name, &[], b"next"]);
    let stats = datagram.stats.clone();
    let cookie = rustix::net::sockopt::socket_cookie(&socket).unwrap();
    later.give(NETNS, HORIZON, Datagram { socket: Arc::new(socket.into()), cookie, ..datagram });
    later.finish(&|| {});
    assert_eq!(receiver.recv(&mut [0; 8]).unwrap(), 4);
    assert_eq!((dropped(&stats), stats.kernel_sent.load(Relaxed)), (vec![], 1));
}

static IS_OVER: AtomicBool = AtomicBool::new(false);

/// A datagram with a payload blocks its thread until the test is over, as one does whose program holds the socket's lock.
fn hang_until_over(datagram: &Datagram) -> io::Result<()> {
    let Ok(Message::Later(later)) = control::parse(&datagram.octets) else { panic!("no datagram") };
    while !later.payload.is_empty() && !IS_OVER.load(SeqCst) {
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// A program that blocks its thread delays its own namespace only, and that only when it blocks as many threads as it may.
#[test]
fn a_socket_that_hangs_delays_its_own_namespace_only() {
    let mut later = Later { send: Some(hang_until_over), ..Later::new() };
    let give = |later: &mut Later, netns_cookie, payload: &[u8]| {
        let datagram = datagram(MONOTONIC, 1, [&[], &[], payload]);
        let stats = datagram.stats.clone();
        later.give(netns_cookie, HORIZON, datagram);
        stats
    };
    const LONG: Duration = Duration::from_secs(60);
    let is_sent = |later: &mut Later, stats: &AttachmentStats, patience| {
        let ask = || {
            later.look();
            stats.kernel_sent.load(Relaxed) == 1
        };
        try_eventually(patience, ask).is_some()
    };
    for _ in 0..3 {
        give(&mut later, NETNS, b"hangs");
        let next = give(&mut later, NETNS, b"");
        assert!(is_sent(&mut later, &next, LONG), "another thread sends what follows");
    }
    give(&mut later, NETNS, b"hangs");
    let own = give(&mut later, NETNS, b"");
    let other = give(&mut later, NETNS + 1, b"");
    assert!(is_sent(&mut later, &other, LONG), "another namespace waits for nothing");
    assert!(!is_sent(&mut later, &own, LONG / 100), "its own has no thread left");
    IS_OVER.store(true, SeqCst);
    assert!(is_sent(&mut later, &own, LONG), "a thread that goes on makes room for another one");
    later.finish(&|| {});
}
