// SPDX-License-Identifier: Apache-2.0
//! Datagrams with the kernel's own receive stamps, and `later_talker`, which sends them.
//!
//! In: where it listens; lines for the program. Out: payloads with stamps in CLOCK_TAI; what the program's calls returned.

use std::io::{BufRead as _, BufReader, Lines, Write as _};
use std::net::UdpSocket;
use std::os::fd::OwnedFd;
use std::process::ChildStdout;
use std::time::Duration;

use super::bed::within;
use super::tap::on_clock;
use super::{Daemon, eventually, sys};
use crate::hook;
use ktsn_eventually::try_eventually;

const SOON: Duration = Duration::from_secs(30);
const CLOCK_TAI: u32 = 11;

/// A socket that receives datagrams with the kernel's stamps.
#[derive(Debug)]
pub struct Stamped {
    socket: OwnedFd,
}

impl Stamped {
    /// Listens there.
    ///
    /// # Panics
    /// When it cannot.
    #[must_use]
    pub fn listen(namespace: &str, address: &str, port: u16) -> Self {
        let bind = || within(namespace, || UdpSocket::bind((address, port))).ok();
        let socket = eventually("the port is free", SOON, bind);
        socket.set_nonblocking(true).expect("non-blocking");
        let socket = OwnedFd::from(socket);
        sys::stamp(&socket).expect("SO_TIMESTAMPNS");
        Self { socket }
    }

    /// Hears the broadcasts of `later_talker`'s packet sockets that come in at a device.
    ///
    /// # Panics
    /// When it cannot.
    #[must_use]
    pub fn hear(namespace: &str, device: &str) -> Self {
        let socket = within(namespace, || sys::open(device)).expect("a packet socket");
        // The type of an Ethernet frame.
        sys::keep_port(&socket, 12, 0x88b5).expect("a filter");
        Self { socket }
    }

    /// The next datagram, and when the kernel received it, nanoseconds of CLOCK_TAI; `None` where none comes within `limit`.
    #[must_use]
    pub fn next(&self, limit: Duration) -> Option<(Vec<u8>, i64)> {
        let mut octets = vec![0; 1 << 16];
        let received = || sys::receive_stamped(&self.socket, &mut octets).ok();
        let (count, stamp, _) = try_eventually(limit, received)?;
        octets.truncate(count);
        Some((octets, on_clock(stamp, CLOCK_TAI)))
    }
}

/// What one line of `later_talker` did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Said {
    /// What the call returned; negative: an errno.
    pub result: i64,
    /// The transmit time, nanoseconds of CLOCK_TAI.
    pub tx_time: i64,
    /// When the call had returned, nanoseconds of CLOCK_TAI.
    pub after: i64,
    /// More numbers.
    pub more: Vec<i64>,
}

/// A running `later_talker`; killed when dropped.
#[derive(Debug)]
pub struct LaterTalker {
    child: hook::Running,
    lines: Lines<BufReader<ChildStdout>>,
}

impl LaterTalker {
    /// Starts one.
    ///
    /// # Panics
    /// When it cannot be started.
    #[must_use]
    pub fn start(daemon: &Daemon, namespace: &str) -> Self {
        let mut child = daemon.program(namespace, hook::compiled("later_talker"), &[]);
        let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        Self { child: hook::Running(child), lines }
    }

    /// Lets it send as `line` says (after the number), and waits for the call's end.
    ///
    /// # Panics
    /// When the program ends.
    pub fn say(&mut self, number: usize, line: &str) -> Said {
        let input = self.child.0.stdin.as_mut().expect("a pipe");
        writeln!(input, "{number} {line}").expect("the program");
        let said = self.lines.next().unwrap_or_else(|| panic!("{line}: the program ended")).expect("text");
        let numbers: Vec<i64> = said.split(' ').map(|word| word.parse().expect("a number")).collect();
        let [own, result, tx_time, after, more @ ..] = &numbers[..] else { panic!("{said}") };
        assert_eq!(*own, number as i64);
        Said { result: *result, tx_time: *tx_time, after: *after, more: more.to_vec() }
    }

    /// Its process.
    pub fn child(&mut self) -> &mut std::process::Child {
        &mut self.child.0
    }
}

/// Whether it is the payload of this number, with so many octets.
#[must_use]
pub fn is_payload(octets: &[u8], number: usize, count: usize) -> bool {
    octets.len() == count && octets.iter().enumerate().all(|(n, octet)| *octet == (number + 7 * n) as u8)
}
