// SPDX-License-Identifier: Apache-2.0
//! The truth: every frame that a program made, what was seen of it on the wire, and what was disturbed when.
//!
//! In: notes of the virtual programs, the virtual wire and the faults. Out: the same, for the checkers. Nothing of
//! the worker is asked here.

use ktsn_time::{Monotonic, Now, TxTime};

use crate::gates::Sent;

/// What must become of a frame, by its program's doing alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// The frame has to arrive on time.
    Good,
    /// Its TxTime had passed by far: TAI is dropped, MONOTONIC sent at once.
    Late,
    /// TxTime 0: TAI is dropped, MONOTONIC sent at once.
    Zero,
    /// Beyond the horizon: dropped.
    FarAhead,
    /// A class that is not granted: dropped.
    Policed,
    /// A registration that is not its own: dropped.
    Corrupt,
}

/// What was seen on the wire.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    /// The commit.
    pub handed: Now,
    /// First bit, MONOTONIC.
    pub wire_from: u64,
    /// TAI at that instant.
    pub wire_from_tai: u64,
    /// After the last bit, MONOTONIC.
    pub wire_until: u64,
    /// Octets of the frame without FCS.
    pub octets: u64,
    /// How many frames arrived before it.
    pub position: u64,
}

/// One frame.
#[derive(Clone, Debug)]
pub struct Frame {
    /// Whose.
    pub tenant: u16,
    /// The process that sent it.
    pub key: u64,
    /// Its class.
    pub class: u8,
    /// Its TxTime; the clock belongs to it.
    pub tx_time: TxTime,
    /// When the program's call began.
    pub pushed: Now,
    /// When it was published, if it was.
    pub published_at: Option<u64>,
    /// Counts publications.
    pub turn: u64,
    /// Octets of payload.
    pub payload_octets: usize,
    /// What is to become of it.
    pub kind: Kind,
    /// Whether it belongs to the fresh ones after the faults.
    pub fresh: bool,
    /// Where it was seen.
    pub arrival: Option<Arrival>,
}

impl Frame {
    /// Its TxTime in nanoseconds, and now on the same clock.
    #[must_use]
    pub fn due(&self, now: Now) -> (u64, u64) {
        match self.tx_time {
            TxTime::Tai(at) => (at.as_nanos(), now.tai.as_nanos()),
            TxTime::Monotonic(at) => (at.as_nanos(), now.monotonic.as_nanos()),
        }
    }

    /// Whether its TxTime is one of TAI.
    #[must_use]
    pub fn is_tai(&self) -> bool {
        matches!(self.tx_time, TxTime::Tai(_))
    }

    /// "At once", as fq reads it.
    #[must_use]
    pub fn at_once(&self) -> bool {
        self.tx_time == TxTime::Monotonic(Monotonic::ZERO)
    }

    /// Whether its TxTime had passed when its program sent it.
    #[must_use]
    pub fn was_late(&self) -> bool {
        let (due, now) = self.due(self.pushed);
        due < now
    }

    /// How long after its TxTime it was handed over, on its own clock; negative is early.
    #[must_use]
    pub fn error(&self) -> Option<i64> {
        let (due, handed) = self.due(self.arrival?.handed);
        Some(handed.wrapping_sub(due) as i64)
    }
}

/// What can be an excuse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disturbance {
    /// The worker's thread did not run.
    Stall,
    /// TAI was set by so much.
    Step(i64),
    /// No carrier.
    LinkDown,
    /// No device, or its new port is not there yet.
    DeviceGone,
    /// Commits fail.
    PortErrors,
    /// The port was full.
    PortFull,
    /// A tenant's next hop is unknown.
    NoNeighbour(u16),
    /// A tenant has no attachment.
    Detached(u16),
    /// A tenant fills its slots.
    Flood(u16),
}

/// A disturbance from when until when (MONOTONIC).
#[derive(Clone, Copy, Debug)]
pub struct Disturbed {
    /// What.
    pub what: Disturbance,
    /// The start of the span.
    pub from: u64,
    /// Until; `u64::MAX` while it lasts.
    pub until: u64,
}

/// A rule that was broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The rule's name, as in the list of checks.
    pub rule: &'static str,
    /// When, MONOTONIC.
    pub at: u64,
    /// What was seen and what was expected.
    pub detail: String,
}

/// All of it.
#[derive(Debug, Default)]
pub struct Ledger {
    /// Frames by their id.
    pub frames: Vec<Frame>,
    /// Frames seen on the wire.
    pub arrived: u64,
    /// Publications.
    pub published: u64,
    /// What was disturbed.
    pub disturbed: Vec<Disturbed>,
    /// What was found.
    pub violations: Vec<Violation>,
    /// How often TAI was set.
    pub steps: u64,
    /// Gate schedules that were sent, in that order.
    pub schedules: Vec<Sent>,
}

impl Ledger {
    /// A frame was claimed or published: its id.
    pub fn add(&mut self, frame: Frame) -> u64 {
        self.frames.push(frame);
        self.frames.len() as u64 - 1
    }

    /// A frame was published.
    pub fn publish(&mut self, id: u64, at: u64) {
        self.published += 1;
        let turn = self.published;
        if let Some(frame) = self.frames.get_mut(id as usize) {
            frame.published_at = Some(at);
            frame.turn = turn;
        }
    }

    /// A rule was broken.
    pub fn violated(&mut self, rule: &'static str, at: u64, detail: String) {
        self.violations.push(Violation { rule, at, detail });
    }

    /// Something begins.
    pub fn begin(&mut self, what: Disturbance, from: u64) {
        self.disturbed.push(Disturbed { what, from, until: u64::MAX });
    }

    /// And ends.
    pub fn end(&mut self, what: Disturbance, until: u64) {
        for one in self.disturbed.iter_mut().rev() {
            if one.what == what && one.until == u64::MAX {
                one.until = until;
            }
        }
    }

    /// Something that lasts this long.
    pub fn during(&mut self, what: Disturbance, from: u64, until: u64) {
        self.disturbed.push(Disturbed { what, from, until });
    }

    /// Whether something that `which` names overlaps the span.
    pub fn overlaps(&self, from: u64, until: u64, which: impl Fn(Disturbance) -> bool) -> bool {
        self.disturbed.iter().any(|one| one.from <= until && one.until >= from && which(one.what))
    }
}
