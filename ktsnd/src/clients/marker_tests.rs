// SPDX-License-Identifier: Apache-2.0
//! Markers on real sockets of this kernel: each leaves one readable entry, no program receives it, and no option changes.

use std::net::UdpSocket;
use std::os::fd::{AsFd, OwnedFd};

use ktsn_ring::marker::PAYLOAD_OCTETS;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::super::sys;
use super::*;

const MARKER: Marker = Marker { nonce: 0x0123_4567_89ab_cdef, sequence: 0x0007_1234, slot: 0x456, kind: 4 };
const OPT_TSONLY: u32 = 1 << 11;

fn target(socket: &UdpSocket) -> Target {
    let copy = OwnedFd::from(socket.try_clone().unwrap());
    Target::new(copy, sockopt::socket_cookie(socket).unwrap(), socket.local_addr().unwrap()).unwrap()
}

fn has_error(socket: &UdpSocket) -> bool {
    let mut polled = [PollFd::new(socket, PollFlags::empty())];
    let wait = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };
    poll(&mut polled, Some(&wait)).unwrap() == 1 && polled[0].revents().contains(PollFlags::ERR)
}

/// Marks a socket once; its entry's data and key.
fn mark(socket: &UdpSocket, flags: u32) -> (Vec<u8>, u32) {
    if flags != 0 {
        sys::tests::set_timestamping(socket.as_fd(), flags);
    }
    target(socket).mark(&MARKER).unwrap();
    assert!(has_error(socket), "POLLERR");
    assert_eq!(sys::timestamping(socket).unwrap(), flags, "no option is touched");
    let entry = sys::tests::read_error(socket.as_fd());
    socket.set_nonblocking(true).unwrap();
    let nobody = socket.recv(&mut [0; 64]).unwrap_err();
    assert_eq!(nobody.kind(), io::ErrorKind::WouldBlock, "nobody receives it");
    entry
}

fn ends_with_payload(data: &[u8]) -> bool {
    data.ends_with(&MARKER.payload()) && [42, 70].contains(&(data.len() - PAYLOAD_OCTETS))
}

#[test]
fn every_kind_of_udp_socket_can_be_marked() {
    for bound in ["0.0.0.0:0", "127.0.0.1:0", "[::]:0", "[::1]:0", "[::ffff:127.0.0.1]:0"] {
        let socket = UdpSocket::bind(bound).unwrap();
        let (data, _) = mark(&socket, 0);
        assert!(ends_with_payload(&data), "{bound}: {data:02x?}");
    }
}

#[test]
fn connected_sockets_stay_connected() {
    let peer = UdpSocket::bind("127.0.0.1:0").unwrap();
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.connect(peer.local_addr().unwrap()).unwrap();
    assert!(ends_with_payload(&mark(&socket, 0).0));
    assert_eq!(socket.peer_addr().unwrap(), peer.local_addr().unwrap());
    peer.set_nonblocking(true).unwrap();
    assert!(peer.recv(&mut [0; 64]).is_err(), "the peer hears nothing");
}

#[test]
fn only_ipv6_sockets_can_be_marked() {
    let socket = rustix::net::socket(AddressFamily::INET6, rustix::net::SocketType::DGRAM, None).unwrap();
    sockopt::set_ipv6_v6only(&socket, true).unwrap();
    rustix::net::bind(&socket, &"[::]:0".parse::<std::net::SocketAddr>().unwrap()).unwrap();
    let (data, _) = mark(&socket.into(), 0);
    assert!(data.len() == 70 + PAYLOAD_OCTETS && ends_with_payload(&data), "{data:02x?}");
}

/// Linux 6.13: the key says which completion is meant, and the socket's own count stands still.
#[test]
fn an_entry_without_data_is_named_by_its_key() {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let (data, key) = mark(&socket, SOF_TIMESTAMPING_OPT_ID | OPT_TSONLY);
    assert!(data.is_empty());
    assert!(key == 0xa545_6234 || key == 0, "{key:#x}");
    let (_, key) = mark(&UdpSocket::bind("[::]:0").unwrap(), SOF_TIMESTAMPING_OPT_ID);
    assert!(key == 0xa545_6234 || key == 0, "{key:#x}");
}

#[test]
fn another_socket_is_left_alone() {
    let (one, other) = (UdpSocket::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
    let cookie = sockopt::socket_cookie(&one).unwrap();
    let local = one.local_addr().unwrap();
    assert!(Target::new(other.try_clone().unwrap().into(), cookie, local).is_err());
    assert!(Target::new(std::fs::File::open("/dev/null").unwrap().into(), cookie, local).is_err());
}

/// The kernel appends to a datagram in the making whatever is sent, wherever it is to go.
#[test]
fn a_datagram_in_the_making_stays_the_programs() {
    let peer = UdpSocket::bind("127.0.0.1:0").unwrap();
    peer.set_read_timeout(Some(std::time::Duration::from_secs(5))).unwrap();
    let heard = || {
        let mut octets = [0; 256];
        let count = peer.recv(&mut octets).expect("a datagram");
        octets[..count].to_vec()
    };
    for bound in ["127.0.0.1:0", "[::ffff:127.0.0.1]:0"] {
        let socket = UdpSocket::bind(bound).unwrap();
        let to = peer.local_addr().unwrap();
        let mapped = |ip: std::net::IpAddr| match ip {
            std::net::IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            std::net::IpAddr::V6(ip) => ip,
        };
        match bound.starts_with('[') {
            true => socket.connect((mapped(to.ip()), to.port())).unwrap(),
            false => socket.connect(to).unwrap(),
        }
        // The option, before and after there is something.
        sys::tests::set_cork(&socket, true);
        assert!(target(&socket).mark(&MARKER).is_err());
        socket.send(b"corked").unwrap();
        assert!(target(&socket).mark(&MARKER).is_err());
        sys::tests::set_cork(&socket, false);
        assert_eq!(heard(), b"corked");
        // The flag, which no option shows.
        rustix::net::send(&socket, b"one", rustix::net::SendFlags::MORE).unwrap();
        assert!(target(&socket).mark(&MARKER).is_err());
        socket.send(b" more").unwrap();
        assert_eq!(heard(), b"one more");
        // And again as ever.
        assert!(ends_with_payload(&mark(&socket, 0).0));
    }
}

/// A frame too short for the tag that its type promises reaches no program: the kernel looks for the tag before it shows a frame
/// to any packet socket, also to one that hears every interface.
#[test]
fn every_kind_of_packet_socket_can_be_marked() {
    use rustix::net::{Protocol, RecvFlags, SocketFlags, SocketType, recv, socket_with};
    // Root's rights to packet sockets; `lo` is up wherever tests run.
    let all = Protocol::from_raw(std::num::NonZeroU32::new(u32::from(3u16.to_be())).unwrap());
    for (kind, protocol) in
        [(SocketType::RAW, Some(all)), (SocketType::DGRAM, Some(all)), (SocketType::RAW, None)]
    {
        let socket = socket_with(AddressFamily::PACKET, kind, SocketFlags::NONBLOCK, protocol).unwrap();
        let cookie = sockopt::socket_cookie(&socket).unwrap();
        let nowhere: SocketAddr = "0.0.0.0:0".parse().unwrap();
        for flags in [0, SOF_TIMESTAMPING_OPT_ID, SOF_TIMESTAMPING_OPT_ID | OPT_TSONLY] {
            sys::tests::set_timestamping(&socket, flags);
            let target = Target::new(socket.try_clone().unwrap(), cookie, nowhere).unwrap();
            target.mark(&MARKER).unwrap();
            let (data, key) = sys::tests::read_error(&socket);
            if flags & OPT_TSONLY == 0 {
                let read = Marker { nonce: u64::from(MARKER.nonce as u32), ..MARKER };
                assert_eq!(Marker::parse_frame(&data), Some(read), "{kind:?} {data:02x?}");
            } else {
                assert!(data.is_empty());
            }
            assert!(flags == 0 || key == 0xa545_6234 || key == 0, "{key:#x}");
            assert_eq!(sys::timestamping(&socket).unwrap(), flags, "no option is touched");
        }
        // No marker may arrive.
        std::thread::sleep(std::time::Duration::from_millis(20));
        let mut octets = [0; 2048];
        while let Ok((_, length)) = recv(&socket, &mut octets[..], RecvFlags::empty()) {
            assert_eq!(Marker::parse_frame(&octets[..length]), None, "nobody receives it");
        }
    }
}
