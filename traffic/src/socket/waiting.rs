// SPDX-License-Identifier: Apache-2.0
//! Waiting for datagrams of one or several sockets, and answering them.
//!
//! In: sockets, a longest wait. Out: which sockets have a datagram; the sender of one, to answer to.

use super::{Udp, sys};
use ktsn_time::Nanos;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};

/// An epoll set of sockets, level-triggered.
#[derive(Debug)]
pub struct Epoll {
    fd: OwnedFd,
}

impl Epoll {
    /// A set of `sockets`; [`Epoll::wait`] names them by their index.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn of(sockets: &[Udp]) -> io::Result<Self> {
        let fd = sys::epoll_create()?;
        for (index, socket) in sockets.iter().enumerate() {
            sys::epoll_add(fd.as_raw_fd(), socket.fd.as_raw_fd(), index as u64)?;
        }
        Ok(Self { fd })
    }

    /// Waits at most `longest` (whole milliseconds) and calls `ready` with the index of each socket that has a datagram.
    ///
    /// # Errors
    /// The kernel's (`Interrupted` after a signal), or those of `ready`.
    pub fn wait(&self, longest: Nanos, ready: impl FnMut(usize) -> io::Result<()>) -> io::Result<()> {
        let milliseconds = i32::try_from(longest.get() / 1_000_000).unwrap_or(i32::MAX);
        let events = sys::epoll_wait(self.fd.as_raw_fd(), milliseconds)?;
        events.indices().try_for_each(ready)
    }
}

/// The sender of a datagram.
#[derive(Clone, Copy)]
pub struct Peer(pub(super) sys::Address);

impl std::fmt::Debug for Peer {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("Peer")
    }
}

impl Udp {
    /// Waits for a datagram (`recvfrom`): its octets, and who sent it.
    ///
    /// # Errors
    /// The kernel's; `WouldBlock` after the receive timeout, `Interrupted` after a signal.
    pub fn receive_from(&self, buffer: &mut [u8]) -> io::Result<(usize, Peer)> {
        sys::receive_from(self.fd.as_raw_fd(), buffer).map(|(octets, address)| (octets, Peer(address)))
    }

    /// Sends to `peer` now (`sendto`).
    ///
    /// # Errors
    /// The kernel's.
    pub fn send_to(&self, payload: &[u8], peer: &Peer) -> io::Result<usize> {
        sys::send_to(self.fd.as_raw_fd(), payload, &peer.0)
    }

    /// Waits at most `longest` for a datagram (`ppoll`), to the nanosecond; whether there is one.
    ///
    /// # Errors
    /// The kernel's; `Interrupted` after a signal.
    pub fn wait_readable(&self, longest: Nanos) -> io::Result<bool> {
        sys::poll_in(self.fd.as_raw_fd(), longest.get().max(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (Udp, Udp) {
        let listener = Udp::bound("127.0.0.1:0".parse().unwrap()).unwrap();
        let talker = Udp::connected(listener.local().unwrap()).unwrap();
        (listener, talker)
    }

    #[test]
    fn a_set_names_the_sockets_that_have_a_datagram() {
        let (pairs, talkers): (Vec<_>, Vec<_>) = (0..3).map(|_| pair()).unzip();
        let set = Epoll::of(&pairs).unwrap();
        let ready = |longest| {
            let mut found = Vec::new();
            set.wait(longest, |index| {
                found.push(index);
                pairs[index].receive_now(&mut [0; 16]).map(drop)
            })
            .unwrap();
            found.sort_unstable();
            found
        };
        assert_eq!(ready(Nanos::from_millis(1)), [0_usize; 0]);
        talkers[2].send(b"two").unwrap();
        talkers[0].send(b"none").unwrap();
        assert_eq!(ready(Nanos::from_seconds(5)), [0, 2]);
        assert_eq!(ready(Nanos::ZERO), [0_usize; 0]);
        assert_eq!(pairs[0].receive_now(&mut [0; 16]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn an_answer_reaches_the_sender() {
        for any in ["127.0.0.1:0", "[::1]:0"] {
            let listener = Udp::bound(any.parse().unwrap()).unwrap();
            let talker = Udp::connected(listener.local().unwrap()).unwrap();
            assert!(!talker.wait_readable(Nanos::from_micros(10)).unwrap());
            talker.send(b"ping").unwrap();
            let mut buffer = [0; 16];
            let (octets, peer) = listener.receive_from(&mut buffer).unwrap();
            listener.send_to(&buffer[..octets], &peer).unwrap();
            assert!(talker.wait_readable(Nanos::from_seconds(5)).unwrap());
            let mut answer = [0; 16];
            assert_eq!(talker.receive(&mut answer).unwrap().octets, 4);
            assert_eq!(&answer[..4], b"ping");
        }
    }
}
