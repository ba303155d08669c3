// SPDX-License-Identifier: Apache-2.0
//! Every frame of `packet_talker` (and `faults_talker`, `octets_talker`) that arrives at a device, octet by octet, with the kernel's receive stamp.
//!
//! In: a namespace and a device. Out: [`Arrived`] frames in the order of arrival, their tag put back where the kernel
//! has taken it out. It only hears. Frames without the talker's mark are left out.

use std::path::Path;
use std::time::Duration;

use super::bed::within;
use super::ear::Ear;
use super::sys;
use super::tap::on_clock;
use crate::hook;
use ktsn_eventually::try_eventually;

/// The programs' payloads begin alike: mark, a number of the program's choice, number, TxTime (0 of `octets_talker`).
const MARKS: [&[u8; 4]; 3] = [b"KTSP", b"KTSF", b"KTSO"];
const CLOCK_MONOTONIC: u32 = 1;
/// Octets of the talker's payload.
pub const PAYLOAD_OCTETS: usize = 64;

/// What `packet_talker` sends, by its number there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // named as in the program
pub enum Kind {
    Raw = 0,
    Tagged = 1,
    Ipv4 = 2,
    Datagram = 3,
    Bound = 4,
    Many = 5,
    Foreign = 6,
    Split = 7,
    Spoofed = 8,
    SpoofedTagged = 9,
    SpoofedArp = 10,
}

/// A frame of the talker at the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrived {
    /// All octets.
    pub frame: Vec<u8>,
    /// [`Kind`], the sender's number of `faults_talker`, or the case of `octets_talker`.
    pub kind: u32,
    /// Its number.
    pub number: u64,
    /// Nanoseconds from the TxTime to the arrival, known to 2 µs, for the benefit of the frame.
    pub after_ns: i64,
}

fn marked(frame: &[u8]) -> Option<usize> {
    frame.windows(4).position(|octets| MARKS.iter().any(|mark| octets == *mark))
}

impl Arrived {
    fn of(frame: &[u8], stamp: i64) -> Option<Self> {
        let at = marked(frame)?;
        let mark = frame.get(at..at + 24)?;
        let long = |at: usize| u64::from_ne_bytes(mark[at..at + 8].try_into().expect("eight octets"));
        Some(Self {
            kind: u32::from_ne_bytes(mark[4..8].try_into().expect("four octets")),
            number: long(8),
            after_ns: on_clock(stamp, CLOCK_MONOTONIC).saturating_sub(long(16).cast_signed()),
            frame: frame.to_vec(),
        })
    }

    /// What the frame should be, from what its payload says of itself: `headers`, then the talker's payload.
    #[must_use]
    pub fn expected(&self, headers: &[u8]) -> Vec<u8> {
        let at = marked(&self.frame).unwrap_or(0);
        let mut whole = [headers, &self.frame[at..at + 24]].concat();
        whole.extend((24..PAYLOAD_OCTETS).map(|i| (self.number * 7 + i as u64) as u8));
        whole
    }
}

/// Puts a frame onto `device` of `namespace`, as it is.
///
/// # Panics
/// When the packet socket cannot be made, or does not take it.
pub fn inject(namespace: &str, device: &str, frame: &[u8]) {
    let socket = within(namespace, || sys::open(device)).expect("packet socket");
    let sent = rustix::net::send(&socket, frame, rustix::net::SendFlags::empty());
    assert_eq!(sent, Ok(frame.len()));
}

/// A running listener.
#[derive(Debug)]
pub struct Frames(Ear<Arrived>);

impl Frames {
    /// Listens on `device` of `namespace` from now on.
    ///
    /// # Panics
    /// When the packet socket cannot be made.
    #[must_use]
    pub fn open(namespace: &str, device: &str) -> Self {
        let socket = within(namespace, || sys::open(device).and_then(|fd| sys::keep_tags(&fd).map(|()| fd)));
        Self(Ear::open(socket.expect("packet socket"), Arrived::of))
    }

    /// What has arrived so far.
    #[must_use]
    pub fn arrived(&self) -> Vec<Arrived> {
        self.0.heard().clone()
    }

    /// Waits until `count` frames are there, at most `limit`, and a little longer for one too many; what is there then.
    #[must_use]
    pub fn wait(&self, count: usize, limit: Duration) -> Vec<Arrived> {
        try_eventually(limit, || self.arrived().len() >= count);
        // Nothing tells that no frame is on its way.
        std::thread::sleep(Duration::from_millis(20));
        self.arrived()
    }
}

/// `packet_talker`, compiled once per test binary.
///
/// # Panics
/// When it does not compile.
pub fn talker() -> &'static Path {
    hook::compiled("packet_talker")
}
