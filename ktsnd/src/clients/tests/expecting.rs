// SPDX-License-Identifier: Apache-2.0
//! Clients that only listen: they register no socket, and ask for a grant of expected arrival.

use ktsn_eventually::eventually;
use ktsn_ring::ClientMapping;
use ktsn_ring::control::Expect;
use ktsn_ring::receive::ListenerName;

use super::*;
use crate::worker::monotonic_now;

/// Attaches; the connection and a mapping of the region.
fn attach(running: &Running) -> (OwnedFd, ClientMapping) {
    let (fd, udp) = (running.connect(), UdpSocket::bind("127.0.0.1:0").unwrap());
    let hello = Hello { abi_min: ABI as u16, abi_max: ABI as u16, interface_index: 0 }.encode();
    write(&fd, hello.as_slice(), &[udp.as_fd()]).unwrap();
    let message = answer(&fd);
    let reply = HelloReply::parse(message.octets()).unwrap();
    let mapping = ClientMapping::open(&message.descriptors[0]).unwrap();
    let shared = mapping.producer().layout().shared_octets();
    assert_eq!((reply.status, reply.region_octets as usize), (HelloStatus::Attached, shared));
    (fd, mapping)
}

/// Expect seals the region and gives it to the worker, once; a grant follows when the client uses an entry.
#[test]
fn a_client_that_expects_arrivals_registers_nothing() {
    let running = start(4);
    let receivers = running.directory.receivers().clone();
    let (fd, region) = attach(&running);
    let period = region.producer().receive().unwrap().period();
    assert_eq!(
        Some(period),
        running.directory.lock().served[0].attachment.clients.receive_period,
        "before it asks"
    );
    assert_eq!(period, Nanos::from_millis(4));
    write(&fd, &Expect.encode(), &[]).unwrap();
    write(&fd, &Expect.encode(), &[]).unwrap();
    eventually("a receiver", PATIENCE, || receivers.list().len() == 1);
    let receive = region.producer().receive().unwrap();
    let now = monotonic_now();
    receivers.renew(now, 200, |_| true);
    assert_eq!(receive.grant(now), 0, "it uses no entry");
    assert!(receive.claim(ListenerName::Udp4(7), 9).is_some());
    receivers.renew(now, 200, |_| true);
    assert_eq!(receive.grant(now), 100);
    drop(fd);
    running.wait_for_clients(0);
    assert!(receivers.list().is_empty());
    assert_eq!(running.finish(), ["add", "end"]);
}

/// Expect before Hello, and with a descriptor: the connection ends, and nothing is kept.
#[test]
fn expect_out_of_place_ends_the_connection() {
    let running = start(4);
    let stranger = running.connect();
    write(&stranger, &Expect.encode(), &[]).unwrap();
    assert!(running.ended(&stranger));
    let (fd, _region) = attach(&running);
    let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
    write(&fd, &Expect.encode(), &[udp.as_fd()]).unwrap();
    assert!(running.ended(&fd));
    running.wait_for_clients(0);
    assert!(running.directory.receivers().list().is_empty());
    running.finish();
}
