// SPDX-License-Identifier: Apache-2.0
//! What another machine's end cannot have seen or done. In: its answer and samples, and what is known here. Out: the first problem. Pure.

use super::apart::ORIGIN;
use super::guest_run::traffic_time;
use super::host::Sample;
use super::path::Direction;
use super::task::{Answer, Task};
use super::traffic::{Receiving, Sending, SentFrame};
use crate::remote::hosts::is_within;
use ktsn_time::{Nanos, Tai};
use std::collections::BTreeMap;

/// What another machine's end cannot have seen or done in this run, if there is something.
pub(super) fn untrue(
    task: &Task,
    answer: &Answer,
    samples: &[Sample],
    run: [Tai; 2],
    within: Nanos,
) -> Option<String> {
    let Answer { sending, receiving, .. } = answer;
    let is_of_its_end = match task.direction {
        Direction::Egress => *sending == Sending::default(),
        Direction::Ingress => *receiving == Receiving::default(),
    };
    if !is_of_its_end {
        return Some(format!("its answer is not of the {} end of {}", ORIGIN, task.direction));
    }
    let outside = |at: &Tai| !is_within(*at, run, within);
    let odd = |what: &str, at: Tai| Some(format!("{what} is of {} ns, outside of the run", at.as_nanos()));
    let mut next = 0;
    for frame in &sending.frames {
        let of_frame = task.first.saturating_add(traffic_time(frame.sequence));
        if !(next..task.frames).contains(&frame.sequence) || frame.due != of_frame {
            return Some(format!("its frame {} is none of the run, or out of order", frame.sequence));
        }
        next = frame.sequence + 1;
        let instants = [Some(frame.called_at), Some(frame.returned_at), frame.stamp];
        if let Some(at) = instants.into_iter().flatten().find(outside) {
            return odd(&format!("its frame {}", frame.sequence), at);
        }
    }
    for arrival in &receiving.arrivals {
        if arrival.sequence >= task.frames {
            return Some(format!("frame {} arrived there and was not sent", arrival.sequence));
        }
        if let Some(at) = [arrival.stamp, Some(arrival.received_at)].into_iter().flatten().find(outside) {
            return odd(&format!("its arrival of frame {}", arrival.sequence), at);
        }
    }
    samples.iter().map(Sample::at).find(outside).and_then(|at| odd("its sample", at))
}

/// The first frame that arrived before it was handed over by more than two clocks `may_differ`. Such a latency no frame had; which of both
/// clocks is wrong is not known.
pub(super) fn too_early(sending: &Sending, receiving: &Receiving, may_differ: Nanos) -> Option<String> {
    let frames: BTreeMap<u64, &SentFrame> =
        sending.frames.iter().map(|frame| (frame.sequence, frame)).collect();
    receiving.arrivals.iter().find_map(|arrival| {
        let frame = frames.get(&arrival.sequence).filter(|frame| frame.called_at == arrival.called_at)?;
        let handed_at = frame.stamp.unwrap_or(frame.called_at);
        let arrived_at = arrival.stamp.map_or(arrival.received_at, |stamp| stamp.min(arrival.received_at));
        let early = handed_at.since(arrived_at);
        (early > may_differ).then(|| {
            format!(
                "the clocks do not agree: frame {} arrived {} ns before it was handed over, and they may differ by {} ns",
                frame.sequence,
                early.get(),
                may_differ.get()
            )
        })
    })
}

#[cfg(test)]
mod tests {
    use super::super::path::Load;
    use super::super::traffic::Arrival;
    use super::*;

    /// A second's run, 1,000 s after the clock's zero.
    const FIRST: Tai = Tai::from_nanos(1_000_000_000_000);
    const RUN: [Tai; 2] = [FIRST, FIRST.saturating_add(Nanos::from_seconds(1))];

    fn task(direction: Direction) -> Task {
        Task { number: 0, first: FIRST, direction, load: Load::Idle, frames: 3 }
    }

    fn sent(sequence: u64) -> SentFrame {
        let due = FIRST.saturating_add(traffic_time(sequence));
        SentFrame { sequence, due, called_at: due, returned_at: due, stamp: Some(due) }
    }

    fn got(sequence: u64) -> Arrival {
        let at = FIRST.saturating_add(traffic_time(sequence));
        Arrival { sequence, called_at: at, stamp: Some(at), received_at: at, gap: Nanos::ZERO }
    }

    fn sender(frames: &[SentFrame]) -> Answer {
        Answer { sending: Sending { frames: frames.to_vec(), ..Sending::default() }, ..Answer::default() }
    }

    fn receiver(arrivals: &[Arrival]) -> Answer {
        let receiving = Receiving { arrivals: arrivals.to_vec(), ..Receiving::default() };
        Answer { receiving, ..Answer::default() }
    }

    /// Samples at these seconds after the first frame.
    fn samples(seconds: &[i64]) -> Vec<Sample> {
        let at = |second: &i64| FIRST.saturating_add(Nanos::from_seconds(*second)).as_nanos();
        let one = |second| {
            let text = serde_json::to_string(&Sample::default()).unwrap();
            text.replace("\"at_ns\":0", &format!("\"at_ns\":{}", at(second)))
        };
        seconds.iter().map(|second| serde_json::from_str(&one(second)).unwrap()).collect()
    }

    #[test]
    fn what_the_other_machine_can_have_seen_is_taken() {
        let within = Nanos::from_micros(1);
        for (direction, answer) in [
            (Direction::Ingress, sender(&[sent(0), sent(2)])),
            (Direction::Ingress, sender(&[])),
            (Direction::Egress, receiver(&[got(1), got(1), got(0)])),
        ] {
            let found = untrue(&task(direction), &answer, &samples(&[0, 1]), RUN, within);
            assert_eq!(found, None, "{answer:?}");
        }
    }

    #[test]
    fn what_it_cannot_have_seen_is_refused() {
        let within = Nanos::from_micros(1);
        let far = FIRST.saturating_add(Nanos::from_seconds(10));
        let (out, back) = (Direction::Egress, Direction::Ingress);
        for (direction, answer, word) in [
            (out, sender(&[sent(0)]), "not of the remote end"),
            (back, receiver(&[got(0)]), "not of the remote end"),
            (back, sender(&[sent(3)]), "its frame 3 is none"),
            (back, sender(&[sent(1), sent(1)]), "out of order"),
            (back, sender(&[SentFrame { due: FIRST, ..sent(1) }]), "its frame 1 is none"),
            (back, sender(&[SentFrame { called_at: far, ..sent(1) }]), "outside of the run"),
            (back, sender(&[SentFrame { returned_at: far, ..sent(1) }]), "outside of the run"),
            (back, sender(&[SentFrame { stamp: Some(Tai::ZERO), ..sent(1) }]), "its frame 1 is of 0 ns"),
            (out, receiver(&[got(3)]), "frame 3 arrived there and was not sent"),
            (out, receiver(&[Arrival { received_at: far, ..got(1) }]), "outside of the run"),
            (out, receiver(&[Arrival { stamp: Some(far), ..got(1) }]), "its arrival of frame 1"),
        ] {
            let found = untrue(&task(direction), &answer, &samples(&[0]), RUN, within);
            assert!(found.as_ref().is_some_and(|found| found.contains(word)), "{answer:?}: {found:?}");
        }
        let found = untrue(&task(out), &receiver(&[]), &samples(&[0, 10]), RUN, within);
        assert!(found.is_some_and(|found| found.contains("its sample")));
        // Clocks that may differ by more: an instant may be outside by as much.
        let wide = untrue(&task(out), &receiver(&[]), &samples(&[0, 10]), RUN, Nanos::from_seconds(20));
        assert_eq!(wide, None);
    }

    #[test]
    fn a_frame_that_arrives_before_it_left_shows_clocks_that_do_not_agree() {
        let within = Nanos::from_micros(1);
        let after = |at: Tai, ns: i64| at.saturating_add(Nanos::new(ns));
        let found = |frame: SentFrame, arrival: Arrival| {
            let sending = sender(&[sent(0), frame]).sending;
            too_early(&sending, &receiver(&[arrival]).receiving, within)
        };
        let (frame, arrival) = (sent(1), got(1));
        let at = arrival.received_at;
        // As much as the clocks may differ, and a lost stamp.
        let close = after(at, -1_000);
        assert_eq!(found(frame, Arrival { stamp: Some(close), received_at: close, ..arrival }), None);
        assert_eq!(found(SentFrame { stamp: None, ..frame }, Arrival { stamp: None, ..arrival }), None);
        for (frame, arrival) in [
            (frame, Arrival { stamp: Some(after(at, -1_001)), ..arrival }),
            (frame, Arrival { received_at: after(at, -1_001), ..arrival }),
            (frame, Arrival { stamp: None, received_at: after(at, -1_900_000_000), ..arrival }),
            (SentFrame { stamp: Some(after(at, 1_001)), ..frame }, arrival),
            (SentFrame { stamp: None, ..frame }, Arrival { stamp: Some(after(at, -1_001)), ..arrival }),
        ] {
            let problem = found(frame, arrival).unwrap();
            assert!(problem.starts_with("the clocks do not agree: frame 1 arrived "), "{problem}");
        }
        // A frame of another run has no latency.
        let other = Arrival { called_at: after(at, 5), received_at: after(at, -2_000), ..arrival };
        assert_eq!(found(frame, other), None);
    }
}
