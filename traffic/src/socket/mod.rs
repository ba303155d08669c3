// SPDX-License-Identifier: Apache-2.0
//! The UDP socket of talker and listener, over libc's own functions.
//!
//! In: an address, payloads, transmit times. Out: datagrams, kernel receive stamps. All calls go through the
//! dynamic symbols of libc, as in any C program, so that whatever a user preloads sees them; rustix's would not.
//! A transmit time is passed on unchanged, on the clock the program chose.

mod sys;
mod waiting;

pub use waiting::{Epoll, Peer};

use crate::clock::{ScheduleClock, nanos_of};
use ktsn_time::{Nanos, TxTime};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, AsRawFd, BorrowedFd, OwnedFd};

/// Sends a datagram or frame with a transmit time, nanoseconds of the socket's `SO_TXTIME` clock (`sendmsg` with `SCM_TXTIME`). The octets
/// sent.
///
/// # Errors
/// The kernel's.
pub fn send_at(socket: BorrowedFd<'_>, payload: &[u8], tx_time: u64) -> io::Result<usize> {
    sys::send_at(socket.as_raw_fd(), payload, tx_time)
}

/// A UDP socket.
#[derive(Debug)]
pub struct Udp {
    fd: OwnedFd,
}

/// One datagram's arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// Octets of payload (at most the buffer's).
    pub octets: usize,
    /// The kernel's receive stamp: nanoseconds of `CLOCK_REALTIME`.
    pub stamp_realtime: Option<u64>,
}

impl Udp {
    /// A socket connected to `destination`.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn connected(destination: SocketAddr) -> io::Result<Self> {
        let fd = sys::socket(destination)?;
        sys::connect(fd.as_raw_fd(), destination)?;
        Ok(Self { fd })
    }

    /// A socket bound to `local`.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn bound(local: SocketAddr) -> io::Result<Self> {
        let fd = sys::socket(local)?;
        sys::bind(fd.as_raw_fd(), local)?;
        Ok(Self { fd })
    }

    /// Sets `SO_PRIORITY` (0 to 6 without privilege).
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn set_priority(&self, priority: u8) -> io::Result<()> {
        sys::set_int(self.fd.as_raw_fd(), libc::SO_PRIORITY, i32::from(priority))
    }

    /// Asks for transmit times on `clock` (`SO_TXTIME`).
    ///
    /// # Errors
    /// `EPERM`: the kernel gives `CLOCK_TAI` to privileged programs only.
    pub fn set_tx_time(&self, clock: ScheduleClock) -> io::Result<()> {
        sys::set_tx_time(self.fd.as_raw_fd(), clock.id())
    }

    /// Asks for a kernel stamp with every datagram received (`SO_TIMESTAMPNS`).
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn stamp_receives(&self) -> io::Result<()> {
        sys::set_int(self.fd.as_raw_fd(), libc::SO_TIMESTAMPNS, 1)
    }

    /// Makes [`Udp::receive`] return `WouldBlock` after `span` without a datagram.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn set_receive_timeout(&self, span: Nanos) -> io::Result<()> {
        sys::set_receive_timeout(self.fd.as_raw_fd(), span.get())
    }

    /// Asks for a receive buffer of `octets`; the system may give less.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn set_receive_buffer(&self, octets: i32) -> io::Result<()> {
        sys::set_int(self.fd.as_raw_fd(), libc::SO_RCVBUF, octets)
    }

    /// Sends now (`sendto`).
    ///
    /// # Errors
    /// The kernel's; `ConnectionRefused` reports an *earlier* datagram and means that this one was not sent.
    pub fn send(&self, payload: &[u8]) -> io::Result<usize> {
        sys::send(self.fd.as_raw_fd(), payload)
    }

    /// Sends with a transmit time (`sendmsg` with `SCM_TXTIME`).
    ///
    /// # Errors
    /// The error that [`Udp::send`] returns.
    pub fn send_at(&self, payload: &[u8], tx_time: TxTime) -> io::Result<usize> {
        send_at(self.fd.as_fd(), payload, nanos_of(tx_time))
    }

    /// Sends now, as [`Udp::send`], by `sendmsg`.
    ///
    /// # Errors
    /// The error that [`Udp::send`] returns.
    pub fn send_message(&self, payload: &[u8]) -> io::Result<usize> {
        sys::send_message(self.fd.as_raw_fd(), payload)
    }

    /// Sends all datagrams of `burst` by one `sendmmsg`, the one of index `i` at `tx_times(i)`. How many the kernel
    /// took, and how long the call alone lasted.
    ///
    /// # Errors
    /// The error of the first datagram, as [`Udp::send`] returns it.
    pub fn send_burst(
        &self,
        burst: &mut Burst,
        tx_times: impl Fn(usize) -> TxTime,
    ) -> io::Result<(usize, Nanos)> {
        burst.0.with(
            |index| nanos_of(tx_times(index)),
            |messages| {
                let before = crate::clock::monotonic_now();
                let sent = sys::send_burst(self.fd.as_raw_fd(), messages);
                let lasted = crate::clock::monotonic_now().since(before);
                sent.map(|count| (count, lasted))
            },
        )
    }

    /// Waits for a datagram (`recvmsg`).
    ///
    /// # Errors
    /// The kernel's; `WouldBlock` after the receive timeout, `Interrupted` after a signal.
    pub fn receive(&self, buffer: &mut [u8]) -> io::Result<Received> {
        sys::receive(self.fd.as_raw_fd(), buffer, 0)
    }

    /// Takes a datagram that is there, without waiting (`recvmsg` with `MSG_DONTWAIT`).
    ///
    /// # Errors
    /// The kernel's; `WouldBlock` when no datagram is there.
    pub fn receive_now(&self, buffer: &mut [u8]) -> io::Result<Received> {
        sys::receive(self.fd.as_raw_fd(), buffer, libc::MSG_DONTWAIT)
    }

    /// The address the socket is bound to.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn local(&self) -> io::Result<SocketAddr> {
        std::net::UdpSocket::from(self.fd.try_clone()?).local_addr()
    }
}

/// Datagrams for one `sendmmsg`, of equal length.
pub struct Burst(sys::Burst);

impl std::fmt::Debug for Burst {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "Burst({} octets)", self.0.payloads.len())
    }
}

impl Burst {
    /// `count` copies of `payload`.
    #[must_use]
    pub fn new(payload: &[u8], count: usize) -> Self {
        Self(sys::Burst::new(payload, count))
    }

    /// The payload of the datagram of this index, if there is one.
    pub fn payload_mut(&mut self, index: usize) -> Option<&mut [u8]> {
        self.0.payloads.chunks_mut(self.0.payload_octets.max(1)).nth(index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_arrives_in_its_order() {
        let listener = Udp::bound("127.0.0.1:0".parse().unwrap()).unwrap();
        listener.set_receive_timeout(Nanos::from_seconds(2)).unwrap();
        let talker = Udp::connected(listener.local().unwrap()).unwrap();
        talker.set_tx_time(ScheduleClock::Monotonic).unwrap();
        let mut burst = Burst::new(b"0123", 3);
        burst.payload_mut(1).unwrap().copy_from_slice(b"abcd");
        assert!(burst.payload_mut(3).is_none());
        let at = ScheduleClock::Monotonic.now();
        let (sent, lasted) = talker.send_burst(&mut burst, |_| at).unwrap();
        assert!(sent == 3 && lasted > Nanos::new(0));
        assert_eq!(talker.send_message(b"last").unwrap(), 4);
        let mut buffer = [0_u8; 64];
        for text in [b"0123", b"abcd", b"0123", b"last"] {
            assert_eq!(listener.receive(&mut buffer).unwrap().octets, 4);
            assert_eq!(&buffer[..4], text);
        }
    }

    #[test]
    fn datagrams_arrive_with_a_kernel_stamp_on_both_families() {
        for any in ["127.0.0.1:0", "[::1]:0"] {
            let listener = Udp::bound(any.parse().unwrap()).unwrap();
            listener.stamp_receives().unwrap();
            listener.set_receive_timeout(Nanos::from_seconds(2)).unwrap();
            let talker = Udp::connected(listener.local().unwrap()).unwrap();
            talker.set_priority(6).unwrap();
            assert_eq!(talker.send(b"0123456789abcdef").unwrap(), 16);
            let mut buffer = [0_u8; 64];
            let received = listener.receive(&mut buffer).unwrap();
            assert_eq!((received.octets, &buffer[..16]), (16, b"0123456789abcdef".as_slice()));
            assert!(received.stamp_realtime.unwrap() > 1_500_000_000_000_000_000);
        }
    }

    #[test]
    fn a_timed_datagram_is_accepted_by_the_kernel() {
        let listener = Udp::bound("127.0.0.1:0".parse().unwrap()).unwrap();
        listener.set_receive_timeout(Nanos::from_seconds(2)).unwrap();
        let talker = Udp::connected(listener.local().unwrap()).unwrap();
        // CLOCK_MONOTONIC needs no privilege; loopback has no scheduler, so it is sent at once.
        talker.set_tx_time(ScheduleClock::Monotonic).unwrap();
        let at = ScheduleClock::Monotonic.now().saturating_add(Nanos::from_micros(100));
        assert_eq!(talker.send_at(&[7; 20], at).unwrap(), 20);
        let mut buffer = [0_u8; 64];
        assert_eq!(listener.receive(&mut buffer).unwrap().octets, 20);
        assert_eq!(buffer[..20], [7; 20]);
    }

    #[test]
    fn a_silent_port_times_out() {
        let listener = Udp::bound("127.0.0.1:0".parse().unwrap()).unwrap();
        listener.set_receive_timeout(Nanos::from_millis(5)).unwrap();
        let error = listener.receive(&mut [0; 16]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
    }
}
