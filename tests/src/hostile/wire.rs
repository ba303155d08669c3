// SPDX-License-Identifier: Apache-2.0
//! The innocent stream on the wire, however much else is there: the kernel filters.
//!
//! In: a namespace and a device. Out: the frames of `ktsn talk` to [`PORT`] in VXLAN over IPv4, with the kernel's receive
//! stamp. It only hears. An observer that hears an attack's hundred thousand frames a second would lose some of the stream.

use super::judge::percentile;
use crate::faults::bed::within;
use crate::faults::ear::Ear;
use crate::faults::sys;
use crate::faults::tap::on_clock;

/// Where the stream goes.
pub const PORT: u16 = 7000;
/// Ethernet, IPv4, UDP, VXLAN, Ethernet, IPv4: the inner UDP header.
const INNER_UDP: usize = 14 + 20 + 8 + 8 + 14 + 20;
const CLOCK_TAI: u32 = 11;

/// A frame of the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Probe {
    sequence: u64,
    after_ns: i64,
}

/// A running observer.
#[derive(Debug)]
pub struct Wire(Ear<Probe>);

/// What came of a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Frames on the wire, each once.
    pub frames: u64,
    /// Of them, those before their transmit time.
    pub early: u64,
    /// Median of the instants after the transmit time, nanoseconds.
    pub p50: Option<i64>,
    /// 99th percentile.
    pub p99: Option<i64>,
    /// Greatest.
    pub max: Option<i64>,
}

fn probe(frame: &[u8], stamp: i64) -> Option<Probe> {
    let payload = frame.get(INNER_UDP + 8..INNER_UDP + 24)?;
    let word = |at: usize| u64::from_be_bytes(payload[at..at + 8].try_into().expect("eight octets"));
    Some(Probe {
        sequence: word(0),
        after_ns: on_clock(stamp, CLOCK_TAI).saturating_sub(word(8).cast_signed()),
    })
}

impl Wire {
    /// Listens on `device` of `namespace` from now on.
    ///
    /// # Panics
    /// When the packet socket cannot be made.
    #[must_use]
    pub fn open(namespace: &str, device: &str) -> Self {
        let socket = within(namespace, || {
            let socket = sys::open(device)?;
            sys::keep_port(&socket, INNER_UDP as u32 + 2, PORT).map(|()| socket)
        });
        Self(Ear::open(socket.expect("packet socket"), probe))
    }

    /// What has come of the first `frames` frames of the stream.
    #[must_use]
    pub fn seen(&self, frames: u64) -> Seen {
        let mut first: std::collections::BTreeMap<u64, i64> = std::collections::BTreeMap::new();
        for probe in self.0.heard().iter().filter(|probe| probe.sequence < frames) {
            first.entry(probe.sequence).or_insert(probe.after_ns);
        }
        let mut after: Vec<i64> = first.into_values().collect();
        after.sort_unstable();
        Seen {
            frames: after.len() as u64,
            early: after.iter().filter(|span| **span < 0).count() as u64,
            p50: percentile(&after, 500),
            p99: percentile(&after, 990),
            max: after.last().copied(),
        }
    }
}
