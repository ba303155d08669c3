// SPDX-License-Identifier: Apache-2.0
//! The verdict on one frame: handed over inside its window, an overrun, or outside.
//!
//! In: windows, what was seen of the frame, the gaps that a watchdog saw. Out: a verdict. No figure of the daemon is
//! looked at.
//!
//! ```text
//!   opens_at                              closes_at − T   closes_at
//!   ├──────────────── window ──────────────────┼─────────────┤
//!      handed_at · wire_at                                        wire_at + T ≤ closes_at: inside
//!                          handed_at ┄┄┄┄┄┄┄┄┄┄┄┄┄┄ wire_at        begun inside, ends after: an overrun
//!                                                              handed_at    outside, unless the machine stood still
//! ```
//! T is the time that the frame occupies the link. A frame that is handed over outside its window is an overrun only if
//! the worker's CPU was taken away across the close: then its last look at the clock lay inside. An overrun that no gap
//! explains stays unproven and is counted as that. So does an overrun with a hand-over that began too near the close to leave room for what
//! hand-overs usually take: a guard band that is too short is a fault of the scheduler.

use super::{Window, Windows};
use crate::watchdog::{Gaps, Proof, STALL_MIN};
use ktsn_model::TrafficClass;
use ktsn_time::{Nanos, Tai};
use ktsn_traffic::stats::Statistics;

/// How much later than its window's end the far end may see a frame: stamps and the path to the tap.
pub const WIRE_LATE_MAX: Nanos = Nanos::from_micros(10);

/// What was seen of one frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// The traffic class of the frame.
    pub class: TrafficClass,
    /// When the port's system call began.
    pub handed_at: Option<Tai>,
    /// When the far end saw it.
    pub wire_at: Option<Tai>,
    /// How long it occupies the link.
    pub on_link: Nanos,
    /// Since when the kernel did nothing but hand this frame over, without a pause, until the far end saw it: the beginning of the
    /// call, or the frame before it in the same call. `None`: the thread slept meanwhile, or the trace does not show it.
    pub carried_since: Option<Tai>,
}

/// What happened to one frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Handed over in an open window, and off the link before it closes.
    Inside,
    /// Begun in time, ended after the window's close.
    Overrun {
        /// What explains it.
        proof: Option<Proof>,
    },
    /// Handed over while its gate was closed, and nothing explains it.
    Outside,
    /// Nobody saw the hand-over.
    Unseen,
}

/// The verdict on one frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Judgement {
    /// What happened.
    pub verdict: Verdict,
    /// Whether the far end saw it inside its window, give or take [`WIRE_LATE_MAX`] at the end; `None`: not at all.
    pub wire_inside: Option<bool>,
    /// From the window's opening to the hand-over; `None` when it was not handed over in a window.
    pub after_opening: Option<Nanos>,
}

/// The verdicts of one class and round, counted.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Figures {
    /// Handed over outside their window.
    pub outside_window: u64,
    /// Overruns, proven or not.
    pub overruns: u64,
    /// Overruns that no gap explains.
    pub overruns_unproven: u64,
    /// Overruns proven by a hand-over that stood still, no gap of the watchdog's being long enough by itself.
    pub overruns_by_stall: u64,
    /// Frames without a hand-over in the trace.
    pub unseen: u64,
    /// Frames that the far end saw outside their window (and its allowance).
    pub wire_outside: u64,
    /// Frames that the far end saw.
    pub wire_seen: u64,
    /// From the opening of the window to the hand-over.
    pub after_opening: Option<Statistics>,
}

/// How long `octets` occupy a link of `link_speed` bit/s, rounded up.
#[must_use]
pub fn wire_time(octets: u64, link_speed: u64) -> Nanos {
    let nanos = (u128::from(octets) * 8 * 1_000_000_000).div_ceil(u128::from(link_speed.max(1)));
    Nanos::new(i64::try_from(nanos).unwrap_or(i64::MAX))
}

/// The verdict on one frame.
#[must_use]
pub fn judge(windows: &Windows, gaps: &Gaps, frame: &Facts) -> Judgement {
    let wire_inside = frame.wire_at.map(|at| {
        let tolerated = at.saturating_sub(WIRE_LATE_MAX);
        windows.at(frame.class, at).is_some()
            || windows.closed_before(frame.class, at).is_some_and(|closed_at| closed_at >= tolerated)
    });
    let Some(handed_at) = frame.handed_at else {
        return Judgement { verdict: Verdict::Unseen, wire_inside, after_opening: None };
    };
    let window = windows.at(frame.class, handed_at);
    let begun_at = frame.wire_at.map_or(handed_at, |at| at.max(handed_at));
    let verdict = match window {
        Some(Window { closes_at, .. }) if begun_at.saturating_add(frame.on_link) <= closes_at => {
            Verdict::Inside
        }
        Some(Window { closes_at, .. }) => {
            let last = closes_at.saturating_sub(frame.on_link);
            Verdict::Overrun { proof: proof(gaps, frame, last, begun_at) }
        }
        None => {
            let closed_at = windows.closed_before(frame.class, handed_at);
            if closed_at.is_some_and(|at| gaps.explain(at, handed_at)) {
                Verdict::Overrun { proof: Some(Proof::Gap) }
            } else {
                Verdict::Outside
            }
        }
    };
    Judgement { verdict, wire_inside, after_opening: window.map(|window| handed_at.since(window.opens_at)) }
}

/// What explains that a frame that had to be on the wire by `last` was there at `begun_at` only.
fn proof(gaps: &Gaps, frame: &Facts, last: Tai, begun_at: Tai) -> Option<Proof> {
    if gaps.explain(last, begun_at) {
        return Some(Proof::Gap);
    }
    // A hand-over that began late explains nothing, however long it then took.
    let since = frame.carried_since.filter(|since| last.since(*since) >= STALL_MIN)?;
    gaps.explain_call(since, begun_at).then_some(Proof::Stall)
}

/// All frames of a class.
#[must_use]
pub fn judge_all(windows: &Windows, gaps: &Gaps, frames: impl IntoIterator<Item = Facts>) -> Figures {
    let mut figures = Figures::default();
    let mut after = Vec::new();
    for frame in frames {
        let judgement = judge(windows, gaps, &frame);
        match judgement.verdict {
            Verdict::Inside => {}
            Verdict::Overrun { proof } => {
                figures.overruns += 1;
                figures.overruns_unproven += u64::from(proof.is_none());
                figures.overruns_by_stall += u64::from(proof == Some(Proof::Stall));
            }
            Verdict::Outside => figures.outside_window += 1,
            Verdict::Unseen => figures.unseen += 1,
        }
        if let Some(inside) = judgement.wire_inside {
            figures.wire_seen += 1;
            figures.wire_outside += u64::from(!inside);
        }
        after.extend(judgement.after_opening);
    }
    figures.after_opening = Statistics::of(after);
    figures
}
