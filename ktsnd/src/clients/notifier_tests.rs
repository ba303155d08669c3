// SPDX-License-Identifier: Apache-2.0
//! Notices about this process's own sockets.

use std::net::UdpSocket;
use std::os::fd::AsRawFd;

use ktsn_ring::{Consumer, Layout, StreamCode, StreamStatus};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt;

use super::*;
use crate::queue::worker_to_thread;

const CLIENT: ClientKey = ClientKey(1);

/// Notices with these cookies, about one socket; whether it was marked.
fn is_marked(cookies: impl Fn(u64) -> Vec<u64>) -> bool {
    let mut consumer = Consumer::create(Layout::new(64, 2048, 4, 16).unwrap()).unwrap().0;
    let status = StreamStatus { token: 7, code: StreamCode::Registered, ..StreamStatus::default() };
    consumer.set_stream(0, status).unwrap();
    let processes = Processes::default();
    let own = rustix::process::getpid();
    let pidfd = rustix::process::pidfd_open(own, rustix::process::PidfdFlags::empty()).unwrap();
    processes.insert(CLIENT, Process::new(pidfd, 1, consumer.markers()));
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let (mut notifier, notices) = worker_to_thread(4096).unwrap();
    for cookie in cookies(sockopt::socket_cookie(&socket).unwrap()) {
        let notice = Notice {
            client: CLIENT,
            stream: 0,
            token: 7,
            descriptor: socket.as_raw_fd(),
            cookie,
            local: socket.local_addr().unwrap(),
            slot: 1,
            sequence: 1,
            kinds: kind::SOFTWARE,
        };
        notifier.try_send(notice).unwrap();
    }
    drop(notifier);
    run(&notices, &processes, "");
    let wait = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
    poll(&mut [PollFd::new(&socket, PollFlags::empty())], Some(&wait)).unwrap() == 1
}

#[test]
fn who_says_wrong_numbers_again_and_again_is_not_told_any_more() {
    assert!(is_marked(|own| vec![own]));
    // Different ones, as notices of one socket are one look.
    let wrong = |own: u64, count: u64| (1..=count).map(move |n| own ^ n << 32).collect::<Vec<u64>>();
    assert!(is_marked(|own| [wrong(own, 100), vec![own]].concat()), "now and then is no harm");
    assert!(!is_marked(|own| [wrong(own, 300), vec![own]].concat()));
}
