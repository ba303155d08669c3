// SPDX-License-Identifier: Apache-2.0
//! The tap: a passive AF_PACKET socket that sees every frame a device receives.
//!
//! In: an interface of the calling thread's network namespace, the listener's port. Out: one [`ArrivalRecord`] per frame
//! that carries a probe to that port, plain or inside VXLAN, with the kernel's stamp as `kernel_at` (this is `wire_at`).
//! It never waits in the socket: a sleeping reader costs the receive path a wake-up per frame, which would be
//! measured. It sleeps on its own and empties the buffer some fifty times a second. A frame that the kernel could
//! not keep for it is counted, and makes the round void.
//!
//! The socket keeps a clone of each frame until then, so the kernel copies it before it changes a header later (forwarding after decapsulation); a frame that ends on the tapped host is not changed. The cost is below what can be measured: over
//! Flannel's path, 64 octets each 1 ms, SCHED_FIFO, 2 CPUs, Linux 6.18, rounds of 2500 frames without and with the tap
//! in turn, p50 of the latency (median of the rounds) is
//!
//! ```text
//!  talker    without    with       with / without, round by round
//!  spin      47.7 us    46.2 us    0.89 to 1.01 (6 rounds each)
//!  sleep     82.0 us    81.6 us    0.96 to 1.00 (4 rounds each)
//! ```

mod sys;

use crate::clock::{self, StampClock};
use crate::payload::Probe;
use crate::records::{ArrivalRecord, prefaulted};
use ktsn_time::Nanos;
use ktsn_wire::dissect;
use serde::{Deserialize, Serialize};
use std::io;

/// VXLAN's port as Flannel (and Linux) use it.
pub const VXLAN_PORT: u16 = 8472;
/// Pause between two readings of the socket.
const PAUSE: Nanos = Nanos::from_millis(20);
/// Room for the frames of a pause, whatever load goes by.
const BUFFER_OCTETS: i32 = 64 << 20;

/// What to watch.
#[derive(Clone, Debug)]
pub struct TapOptions {
    /// The device, in the calling thread's network namespace.
    pub interface: String,
    /// The listener's UDP port: innermost destination port of the frames to record.
    pub port: u16,
    /// A datagram to this port is read as VXLAN.
    pub vxlan_port: Option<u16>,
    /// Frames with a probe; 0 means until it is asked to stop.
    pub count: u64,
    /// Ends after this long without such a frame.
    pub timeout: Option<Nanos>,
    /// Records what the machine sends out of the device, too.
    pub outgoing: bool,
}

/// What happened.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// The figures.
    pub summary: Summary,
    /// One record per frame with a probe, in the order of arrival.
    pub records: Vec<ArrivalRecord>,
}

/// The tap's figures, as its JSON shows them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Summary {
    /// Why it ended.
    pub ended: crate::listener::Ended,
    /// Frames with a probe.
    pub frames_seen: u64,
    /// Frames with a probe that came inside VXLAN.
    pub tunnelled: u64,
    /// All other frames.
    pub others: u64,
    /// Frames that the kernel could not keep for the tap: must be 0, else the round is void.
    pub kernel_drops: u64,
    /// Frames without a kernel stamp: must be 0.
    pub unstamped: u64,
    /// Seen without a record: the records were full.
    pub unrecorded: u64,
    /// A clock was stepped meanwhile: the records are void.
    pub clock_stepped: bool,
}

/// Why the tap cannot watch.
#[derive(Debug, thiserror::Error)]
pub enum TapError {
    /// No such device here.
    #[error("interface {interface:?}: {source}; expected one that `ip link` shows in this network namespace")]
    Interface {
        /// Its name.
        interface: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The packet socket.
    #[error("packet socket on {interface:?}: {source}; remedy: run as root, or grant CAP_NET_RAW")]
    Socket {
        /// The device.
        interface: String,
        /// The kernel's answer.
        source: io::Error,
    },
}

/// What one frame is to the tap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Frame {
    Probe { probe: Probe, tunnelled: bool },
    Other,
}

fn read_frame(frame: &[u8], port: u16, vxlan_port: Option<u16>) -> Frame {
    let Ok(dissected) = dissect(frame, vxlan_port) else { return Frame::Other };
    if dissected.inner.datagram.destination_port() != port {
        return Frame::Other;
    }
    let tunnelled = dissected.tunnel.is_some();
    Probe::read(dissected.payload()).map_or(Frame::Other, |probe| Frame::Probe { probe, tunnelled })
}

struct Watch<'a> {
    options: &'a TapOptions,
    stamps: StampClock,
    records: Vec<ArrivalRecord>,
    summary: Summary,
}

impl Watch<'_> {
    fn take(&mut self, frame: &[u8], stamp_realtime: Option<u64>) {
        let Frame::Probe { probe, tunnelled } = read_frame(frame, self.options.port, self.options.vxlan_port)
        else {
            self.summary.others += 1;
            return;
        };
        self.summary.frames_seen += 1;
        self.summary.tunnelled += u64::from(tunnelled);
        self.summary.unstamped += u64::from(stamp_realtime.is_none());
        if self.records.len() == self.records.capacity() {
            self.summary.unrecorded += 1;
            return;
        }
        let kernel_at = stamp_realtime.map(|stamp| self.stamps.tai(stamp));
        self.records.push(ArrivalRecord { probe, kernel_at, received_at: None });
    }
}

/// Watches as `options` say; `ready` is called once every frame from then on is seen. Ends by count, timeout, or when
/// `stop` says so (asked fifty times a second; what has arrived until then is still taken).
///
/// # Errors
/// [`TapError`].
pub fn run(options: &TapOptions, ready: impl FnOnce(), stop: &dyn Fn() -> bool) -> Result<Outcome, TapError> {
    use crate::listener::Ended;
    let interface = || options.interface.clone();
    let index = sys::index(&options.interface)
        .map_err(|source| TapError::Interface { interface: interface(), source })?;
    let failed = |source| TapError::Socket { interface: interface(), source };
    let tap = sys::Tap::open(index, BUFFER_OCTETS, options.outgoing).map_err(failed)?;
    let mut batch = sys::Batch::new();
    let stamps = StampClock::now();
    let records = prefaulted(options.count, ArrivalRecord::BLANK);
    let mut watch = Watch { options, stamps, records, summary: Summary::default() };
    ready();
    let mut quiet_since = clock::monotonic_now();
    watch.summary.ended = loop {
        // Asked before the socket is read, so that nothing which came before the stop is missed.
        let stopped = stop();
        let before = watch.summary.frames_seen;
        while tap.receive(&mut batch).map_err(failed)? > 0 {
            batch.each(|frame, stamp| watch.take(frame, stamp));
        }
        let now = clock::monotonic_now();
        if watch.summary.frames_seen > before {
            quiet_since = now;
        }
        if options.count > 0 && watch.summary.frames_seen >= options.count {
            break Ended::Count;
        }
        if stopped {
            break Ended::Stopped;
        }
        if options.timeout.is_some_and(|timeout| now.since(quiet_since) >= timeout) {
            break Ended::Timeout;
        }
        clock::sleep_until(clock::ScheduleClock::Monotonic.now().saturating_add(PAUSE));
    };
    watch.summary.kernel_drops = tap.drops().map_err(failed)?;
    watch.summary.clock_stepped = stamps.stepped(&StampClock::now());
    Ok(Outcome { summary: watch.summary, records: watch.records })
}

#[cfg(test)]
mod tests;
