// SPDX-License-Identifier: Apache-2.0
//! What one thread did, from its marks in the kernel's trace.
//!
//! In: marks, in any order. Out: system calls, and spans in which the thread had a CPU. What began before the trace, or ended
//! after it, is neither; nothing is guessed. Linux 6.18 leaves out many a switch from idle to the thread: such a span is
//! missing here, so what lies in it is proven by nothing.

use ktsn_time::{Monotonic, Nanos};

/// A frame belongs to a call that ended no longer before it was seen.
const AFTER_MAX: Nanos = Nanos::from_micros(50);

/// One thing that the trace saw.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Mark {
    /// The call returns.
    Exit,
    /// The thread leaves its CPU.
    Off,
    /// It gets one.
    On,
    /// The call begins.
    Enter,
}

/// One call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// It begins.
    pub began_at: Monotonic,
    /// It has returned.
    pub ended_at: Monotonic,
}

/// A span in which the thread had a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// It got it.
    pub from: Monotonic,
    /// It left it.
    pub to: Monotonic,
}

/// Calls and runs of one thread, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Timeline {
    calls: Vec<Call>,
    runs: Vec<Run>,
}

impl Timeline {
    /// From marks, on whichever CPU.
    pub(crate) fn of(mut marks: Vec<(u64, Mark)>) -> Self {
        // At one instant what ends comes before what begins.
        marks.sort_unstable();
        let mut line = Self { calls: Vec::with_capacity(marks.len() / 4), runs: Vec::new() };
        let (mut began, mut on) = (None, None);
        for (nanos, mark) in marks {
            let at = Monotonic::from_nanos(nanos);
            match mark {
                Mark::Enter => began = Some(at),
                Mark::On => on = Some(at),
                Mark::Exit => {
                    line.calls.extend(began.take().map(|began_at| Call { began_at, ended_at: at }));
                }
                Mark::Off => line.runs.extend(on.take().map(|from| Run { from, to: at })),
            }
        }
        line
    }

    /// The calls of the thread.
    #[must_use]
    pub fn calls(&self) -> &[Call] {
        &self.calls
    }

    /// The spans in which the thread had a CPU.
    #[must_use]
    pub fn runs(&self) -> &[Run] {
        &self.runs
    }

    /// The call that a frame was handed over by: the one within which `seen_at` lies (on a veth the far end sees the frame
    /// before the call returns), else the last one that ended no more than 50 µs before.
    #[must_use]
    pub fn call_of(&self, seen_at: Monotonic) -> Option<Call> {
        let after = self.calls.partition_point(|call| call.began_at <= seen_at);
        let call = *self.calls.get(after.checked_sub(1)?)?;
        (seen_at.since(call.ended_at) <= AFTER_MAX).then_some(call)
    }

    /// Whether it had a CPU from `from` to `to` without a break.
    #[must_use]
    pub fn kept_cpu(&self, from: Monotonic, to: Monotonic) -> bool {
        let after = self.runs.partition_point(|run| run.from <= from);
        after.checked_sub(1).is_some_and(|at| from <= to && to < self.runs[at].to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(nanos: u64) -> Monotonic {
        Monotonic::from_nanos(nanos)
    }

    fn call(began: u64, ended: u64) -> Call {
        Call { began_at: at(began), ended_at: at(ended) }
    }

    #[test]
    fn entries_and_exits_become_calls() {
        let marks = vec![
            (5, Mark::Exit),
            (10, Mark::Enter),
            (14, Mark::Enter),
            (14, Mark::Exit),
            (20, Mark::Exit),
            (30, Mark::Enter),
        ];
        assert_eq!(Timeline::of(marks).calls(), [call(10, 14), call(14, 20)]);
    }

    #[test]
    fn a_frame_belongs_to_the_call_that_it_was_seen_in() {
        let calls = vec![call(100, 200), call(300, 400), call(100_000, 100_010)];
        let line = Timeline { calls: calls.clone(), runs: Vec::new() };
        assert_eq!(line.call_of(at(99)), None);
        assert_eq!(line.call_of(at(100)), Some(calls[0]));
        assert_eq!(line.call_of(at(250)), Some(calls[0]));
        assert_eq!(line.call_of(at(350)), Some(calls[1]));
        assert_eq!(line.call_of(at(50_400)), Some(calls[1]));
        assert_eq!(line.call_of(at(50_401)), None);
        assert_eq!(Timeline::default().call_of(at(1)), None);
    }

    #[test]
    fn on_the_cpu_or_away() {
        // Off first: it ran since before the trace. It sleeps within the second call.
        let marks = vec![
            (50, Mark::Off),
            (100, Mark::On),
            (110, Mark::Enter),
            (130, Mark::Exit),
            (150, Mark::Enter),
            (160, Mark::Off),
            (170, Mark::On),
            (180, Mark::Exit),
            (200, Mark::Off),
            (300, Mark::On),
        ];
        let line = Timeline::of(marks);
        let run = |from, to| Run { from: at(from), to: at(to) };
        assert_eq!(line.runs(), [run(100, 160), run(170, 200)]);
        assert!(line.kept_cpu(at(110), at(159)) && line.kept_cpu(at(170), at(199)));
        assert!(!line.kept_cpu(at(150), at(180)) && !line.kept_cpu(at(40), at(45)));
        assert!(!line.kept_cpu(at(120), at(119)));
    }
}
