// SPDX-License-Identifier: Apache-2.0
//! What the two ends do in a run: the sender behind its gates, the receiver that polls.
//!
//! In: an end, the gates, how many frames. Out: an entry for each frame that was sent, and for each that arrived; counts of the load.
//!
//! ```text
//!  0      101    204    313         503 µs = 0        two cycles: an interval of 1,006 µs
//!  │measured│ PTP │ other │   bulk    │
//!  ▲ a measured frame, every second cycle   ▲ ▲ ▲ a frame of each stream of the load, twice, every cycle
//! ```
//! Both sleep, wake before the instant, and poll: the same on all paths. A frame that misses its window waits for the next one.

use super::endpoint::Endpoint;
use super::frame::{self, Kind, LOAD_OCTETS, STREAMS};
use super::path::{Direction, Load};
use super::windows::{Gates, INTERVAL};
use ktsn_measure::clock::{StampClock, nanos_of, sleep_until, spin_until, stop_requested, tai_now};
use ktsn_measure::payload::Probe;
use ktsn_time::{Nanos, Tai, TxTime};
use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

/// The sender polls its clock from so long before an instant on.
pub(super) const SENDER_AHEAD: Nanos = Nanos::from_micros(50);
/// The receiver polls its end from so long before a frame is sent on.
pub(super) const RECEIVER_AHEAD: Nanos = Nanos::from_micros(100);
/// From the last frame's call to the reading of its transmit stamp.
const LAST_STAMP: std::time::Duration = std::time::Duration::from_millis(1);
/// Frames of each stream of the load in a cycle.
pub(super) const LOAD_FRAMES: u16 = 2;

/// What a run sends.
#[derive(Clone, Copy, Debug)]
pub(super) struct Order<'a> {
    pub(super) direction: Direction,
    pub(super) load: Load,
    /// Measured frames.
    pub(super) frames: u64,
    pub(super) gates: &'a Gates,
    /// When the first of them is due.
    pub(super) first: Tai,
    /// The clock of the kernel's stamps.
    pub(super) stamps: &'a StampClock,
}

impl Order<'_> {
    /// When a frame is due: the opening of its window.
    pub(super) fn due(&self, sequence: u64) -> Tai {
        let after = INTERVAL.saturating_mul(i64::try_from(sequence).unwrap_or(i64::MAX));
        self.first.saturating_add(after)
    }
}

/// A measured frame that was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SentFrame {
    pub(super) sequence: u64,
    /// When it was due.
    pub(super) due: Tai,
    /// Read right before the call.
    pub(super) called_at: Tai,
    /// Read right after it.
    pub(super) returned_at: Tai,
    /// The kernel's transmit stamp.
    pub(super) stamp: Option<Tai>,
}

/// What the sender did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Sending {
    pub(super) frames: Vec<SentFrame>,
    /// Frames that its end refused, by reason; they were not sent.
    pub(super) refused: BTreeMap<String, u64>,
    /// Measured frames that missed the window they were meant for, and left in a later one.
    pub(super) late_windows: u64,
    pub(super) load_sent: u64,
    /// Frames of the load for which the window was too short.
    pub(super) load_unsent: u64,
}

/// A measured frame that arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Arrival {
    pub(super) sequence: u64,
    /// The sender's clock before its call, as the frame says.
    pub(super) called_at: Tai,
    /// The kernel's receive stamp.
    pub(super) stamp: Option<Tai>,
    /// Read right after the end gave it.
    pub(super) received_at: Tai,
    /// Longest time between two looks since the receiver was to wake for it.
    pub(super) gap: Nanos,
}

/// What the receiver saw.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Receiving {
    pub(super) arrivals: Vec<Arrival>,
    pub(super) load_received: u64,
    /// Frames of others.
    pub(super) strangers: u64,
}

fn tai(at: Tai) -> TxTime {
    TxTime::Tai(at)
}

/// Sleeps, then polls the clock until `at`; returns the reading that ended it.
fn wait_until(at: Tai, ahead: Nanos) -> Tai {
    let wake = at.saturating_sub(ahead);
    if tai_now() < wake {
        sleep_until(tai(wake));
    }
    Tai::from_nanos(nanos_of(spin_until(tai(at))))
}

/// Sends all frames of the order. Ends early when the program is asked to stop, or when the run is `over`.
///
/// # Errors
/// The end's.
pub(super) fn send(order: &Order<'_>, end: &mut Endpoint, over: &AtomicBool) -> io::Result<Sending> {
    let mut measured = frame::build(order.direction, Kind::Measured, frame::PAYLOAD_OCTETS);
    let mut load: Vec<Vec<u8>> =
        (0..STREAMS).map(|stream| frame::build(order.direction, Kind::Load(stream), LOAD_OCTETS)).collect();
    let mut done = Sending { frames: Vec::with_capacity(order.frames as usize), ..Sending::default() };
    for sequence in 0..order.frames {
        if stop_requested() || over.load(Ordering::Acquire) {
            break;
        }
        let due = order.due(sequence);
        // Not right after the call: where a switch shares this CPU, it waits for the sender to sleep.
        take_stamp(order, &mut done, end)?;
        let mut called_at = wait_until(order.gates.measured_from(due), SENDER_AHEAD);
        if !order.gates.may_measure(called_at) {
            done.late_windows += 1;
            while !order.gates.may_measure(called_at) {
                called_at = wait_until(order.gates.measured_from(called_at), SENDER_AHEAD);
            }
        }
        called_at = tai_now();
        frame::set_probe(&mut measured, Probe { sequence, tx_time: called_at });
        let sent = end.send(&measured, true)?;
        let returned_at = tai_now();
        match sent {
            Ok(()) => {
                done.frames.push(SentFrame { sequence, due, called_at, returned_at, stamp: None });
            }
            Err(reason) => *done.refused.entry(reason.to_owned()).or_insert(0) += 1,
        }
        if order.load == Load::Udp {
            send_load(order, end, &mut load, order.due(sequence + 1), &mut done)?;
        }
    }
    // The last frame's device may be slower than this.
    std::thread::sleep(LAST_STAMP);
    take_stamp(order, &mut done, end)?;
    Ok(done)
}

/// One end's part of a run: it sends or it receives; what the other end does is empty.
///
/// # Errors
/// The end's.
pub(super) fn take_part(
    order: &Order<'_>,
    end: &mut Endpoint,
    over: &AtomicBool,
    sends: bool,
) -> io::Result<(Sending, Receiving)> {
    if sends {
        send(order, end, over).map(|sending| (sending, Receiving::default()))
    } else {
        receive(order, end, over).map(|receiving| (Sending::default(), receiving))
    }
}

/// Gives the frame that was sent last its transmit stamp. At most one frame waits for its stamp.
fn take_stamp(order: &Order<'_>, done: &mut Sending, end: &mut Endpoint) -> io::Result<()> {
    if let Some(last) = done.frames.last_mut().filter(|last| last.stamp.is_none()) {
        last.stamp = end.transmit_stamp()?.map(|stamp| order.stamps.tai(stamp));
    }
    Ok(())
}

/// Sends the load in all of its windows before `until`.
fn send_load(
    order: &Order<'_>,
    end: &mut Endpoint,
    load: &mut [Vec<u8>],
    until: Tai,
    done: &mut Sending,
) -> io::Result<()> {
    let mut from = order.gates.load_from(tai_now());
    while from < until {
        let mut now = wait_until(from, SENDER_AHEAD);
        for _ in 0..LOAD_FRAMES {
            for octets in load.iter_mut() {
                if !order.gates.has_room(now, octets.len()) {
                    done.load_unsent += 1;
                    continue;
                }
                frame::set_probe(octets, Probe { sequence: done.load_sent, tx_time: now });
                match end.send(octets, false)? {
                    Ok(()) => done.load_sent += 1,
                    Err(reason) => *done.refused.entry(reason.to_owned()).or_insert(0) += 1,
                }
                now = tai_now();
            }
        }
        // The next cycle's window.
        from = order.gates.load_from(order.gates.measured_from(now.saturating_add(Nanos::from_micros(1))));
        if stop_requested() {
            break;
        }
    }
    Ok(())
}

/// Takes what arrives, until `over` says that nothing more can come.
///
/// # Errors
/// The end's.
pub(super) fn receive(order: &Order<'_>, end: &mut Endpoint, over: &AtomicBool) -> io::Result<Receiving> {
    let mut seen =
        Receiving { arrivals: Vec::with_capacity(order.frames as usize + 1), ..Receiving::default() };
    let mut next = 0;
    while !over.load(Ordering::Acquire) {
        let wake = order.due(next).saturating_sub(RECEIVER_AHEAD);
        let sleeps = next < order.frames && tai_now() < wake;
        if sleeps {
            sleep_until(tai(wake));
        }
        let gives_up_at = wake.saturating_add(INTERVAL);
        // A late wake-up is time in which it did not look.
        let (mut last, mut gap) = (if sleeps { wake } else { tai_now() }, Nanos::ZERO);
        let before = seen.arrivals.len();
        loop {
            let taken = look(order, end, &mut seen)?;
            let now = tai_now();
            gap = gap.max(now.since(last));
            last = now;
            // An end may give several at once.
            for arrival in seen.arrivals[before..].iter_mut() {
                (arrival.received_at, arrival.gap) = (now, gap);
                next = next.max(arrival.sequence.saturating_add(1));
            }
            if seen.arrivals.len() > before || (now >= gives_up_at && taken == 0) {
                break;
            }
        }
        if seen.arrivals.len() == before {
            next += 1;
        }
        if next >= order.frames && seen.arrivals.len() == before {
            // Nothing more is expected: what is still under way is looked for now and then.
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }
    Ok(seen)
}

/// Takes what an end gives at one look; the instants of arrivals are the caller's to fill in. Returns how many frames.
fn look(order: &Order<'_>, end: &mut Endpoint, seen: &mut Receiving) -> io::Result<usize> {
    let Receiving { arrivals, load_received, strangers } = seen;
    end.poll(&mut |octets, stamp| match frame::read(octets) {
        Some((Kind::Measured, Probe { sequence, tx_time: called_at })) => {
            let stamp = stamp.map(|stamp| order.stamps.tai(stamp));
            arrivals.push(Arrival { sequence, called_at, stamp, received_at: Tai::MAX, gap: Nanos::ZERO });
        }
        Some((Kind::Load(_), _)) => *load_received += 1,
        Some((Kind::Trial | Kind::Task, _)) => {}
        None => *strangers += 1,
    })
}
