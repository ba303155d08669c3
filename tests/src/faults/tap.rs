// SPDX-License-Identifier: Apache-2.0
//! Every marked datagram that arrives at a device, with the kernel's receive stamp; VXLAN is looked into.
//!
//! In: a namespace and a device. Out: [`Arrival`]s in the order of arrival. It only hears, and it knows the payload
//! of `faults_talker` only: other frames are left out.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use super::bed::within;
use super::ear::Ear;
use super::sys;
use ktsn_eventually::try_eventually;

const CLOCK_MONOTONIC: u32 = 1;
const VXLAN_PORT: u16 = 8472;
/// Two clocks are read one after the other to convert between them.
const CONVERSION_ERROR_NS: i64 = 2_000;

/// A datagram of `faults_talker` at the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// The talker's number.
    pub sender: u32,
    /// The datagram's number.
    pub sequence: u64,
    /// TxTime, nanoseconds of its clock.
    pub tx_time: i64,
    /// Nanoseconds from the TxTime to the arrival; a MONOTONIC TxTime is known to 2 µs, for the benefit of the frame.
    pub after_ns: i64,
    /// Destination, of the inner packet.
    pub destination: IpAddr,
    /// Source, of the inner packet.
    pub source: IpAddr,
    /// Whether it came in VXLAN.
    pub is_overlay: bool,
    /// Whether it is one piece of several.
    pub is_fragment: bool,
}

impl Arrival {
    /// When it arrived, on its TxTime's clock.
    #[must_use]
    pub fn at(&self) -> i64 {
        self.tx_time + self.after_ns
    }
}

/// A running tap.
#[derive(Debug)]
pub struct Tap(Ear<Arrival>);

impl Tap {
    /// Listens on `device` of `namespace` from now on.
    ///
    /// # Panics
    /// When the packet socket cannot be made.
    #[must_use]
    pub fn open(namespace: &str, device: &str) -> Self {
        let socket = within(namespace, || sys::open(device)).expect("packet socket");
        Self(Ear::open(socket, |frame, stamp| link(frame, stamp, false)))
    }

    /// What has arrived so far.
    #[must_use]
    pub fn arrivals(&self) -> Vec<Arrival> {
        self.0.heard().clone()
    }

    /// What one talker sent and has arrived so far.
    #[must_use]
    pub fn of(&self, sender: u32) -> Vec<Arrival> {
        self.0.heard().iter().filter(|a| a.sender == sender).cloned().collect()
    }

    /// Waits until `count` datagrams of `sender` are there, at most `limit`; what is there then.
    #[must_use]
    pub fn wait(&self, sender: u32, count: usize, limit: Duration) -> Vec<Arrival> {
        try_eventually(limit, || self.of(sender).len() >= count);
        self.of(sender)
    }

    /// The datagrams that came before their TxTime; there must be none.
    #[must_use]
    pub fn early(&self) -> Vec<Arrival> {
        self.0.heard().iter().filter(|a| a.after_ns < 0).cloned().collect()
    }
}

fn nanos(time: rustix::time::Timespec) -> i64 {
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}

fn now(clock: rustix::time::DynamicClockId<'_>) -> i64 {
    nanos(rustix::time::clock_gettime_dynamic(clock).expect("clock"))
}

/// CLOCK_TAI, nanoseconds.
#[must_use]
pub fn tai_now() -> i64 {
    now(rustix::time::DynamicClockId::Tai)
}

/// A stamp of CLOCK_REALTIME on the TxTime's clock.
pub(crate) fn on_clock(stamp: i64, clock: u32) -> i64 {
    let real = now(rustix::time::DynamicClockId::Known(rustix::time::ClockId::Realtime));
    if clock == CLOCK_MONOTONIC {
        let mono = now(rustix::time::DynamicClockId::Known(rustix::time::ClockId::Monotonic));
        // `mono` is read after `real`: the result is too late by the time between.
        return stamp + (mono - real) + CONVERSION_ERROR_NS;
    }
    // TAI and UTC differ by whole seconds.
    let seconds = (tai_now() - real + 500_000_000).div_euclid(1_000_000_000);
    stamp + seconds * 1_000_000_000
}

/// What a frame is that was found elsewhere than at a device; it arrived just now.
#[must_use]
pub fn read(frame: &[u8]) -> Option<Arrival> {
    link(frame, now(rustix::time::DynamicClockId::Known(rustix::time::ClockId::Realtime)), false)
}

fn u16_at(octets: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(octets.get(at..at + 2)?.try_into().ok()?))
}

fn link(frame: &[u8], stamp: i64, is_overlay: bool) -> Option<Arrival> {
    let packet = frame.get(14..)?;
    match u16_at(frame, 12)? {
        0x0800 => {
            let (source, destination): ([u8; 4], [u8; 4]) =
                (packet.get(12..16)?.try_into().ok()?, packet.get(16..20)?.try_into().ok()?);
            let pieces = u16_at(packet, 6)?;
            let header = usize::from(packet[0] & 15) * 4;
            let rest = (*packet.get(9)? == 17 && pieces & 0x1fff == 0).then(|| packet.get(header..))??;
            let ends = (Ipv4Addr::from(source).into(), Ipv4Addr::from(destination).into());
            datagram(rest, ends, stamp, is_overlay, pieces & 0x2000 != 0)
        }
        0x86dd => {
            let (source, destination): ([u8; 16], [u8; 16]) =
                (packet.get(8..24)?.try_into().ok()?, packet.get(24..40)?.try_into().ok()?);
            let ends = (Ipv6Addr::from(source).into(), Ipv6Addr::from(destination).into());
            match *packet.get(6)? {
                17 => datagram(packet.get(40..)?, ends, stamp, is_overlay, false),
                44 if *packet.get(40)? == 17 && u16_at(packet, 42)? & 0xfff8 == 0 => {
                    datagram(packet.get(48..)?, ends, stamp, is_overlay, true)
                }
                _ => None,
            }
        }
        _ => None,
    }
}

fn datagram(
    udp: &[u8],
    (source, destination): (IpAddr, IpAddr),
    stamp: i64,
    is_overlay: bool,
    is_fragment: bool,
) -> Option<Arrival> {
    if u16_at(udp, 2)? == VXLAN_PORT && !is_overlay {
        return link(udp.get(16..)?, stamp, true);
    }
    let mark = udp.get(8..40)?;
    let word = |at: usize| u32::from_ne_bytes(mark[at..at + 4].try_into().expect("four octets"));
    let long = |at: usize| u64::from_ne_bytes(mark[at..at + 8].try_into().expect("eight octets"));
    if &mark[..4] != b"KTSF" {
        return None;
    }
    let tx_time = long(16).cast_signed();
    Some(Arrival {
        sender: word(4),
        sequence: long(8),
        tx_time,
        after_ns: on_clock(stamp, word(24)).saturating_sub(tx_time),
        destination,
        source,
        is_overlay,
        is_fragment,
    })
}
