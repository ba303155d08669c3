// SPDX-License-Identifier: Apache-2.0
//! The properties of 802.1Q-2022 8.6.8 over the run of a port, whatever the reference says.
//!
//! In: the setup of a port and the steps of its run. Out: `Err` names the first step that breaks the property.

use crate::port::{Order, Setup};
use crate::timeline::Timeline;
use crate::watch::{Verdict, Watch, class_of, has_come, is_late};
use crate::world::{Step, What};
use ktsn_model::{DropReason, LatePolicy};
use ktsn_sched::{Decision, Frame};
use ktsn_time::TxTime;
use std::collections::HashMap;

pub(crate) type Check = fn(&Setup, &[Step]) -> Verdict;

fn ensure(holds: bool, text: &str, step: &Step) -> Verdict {
    if holds { Ok(()) } else { Err(format!("{text}: {step:?}")) }
}

fn each_transmission(
    setup: &Setup,
    steps: &[Step],
    mut check: impl FnMut(&Watch, &Step, &Frame) -> Verdict,
) -> Verdict {
    Watch::follow(setup, steps, |watch, step| match &step.what {
        What::Decided(Decision::Transmit { frame, .. }) => check(watch, step, frame),
        _ => Ok(()),
    })
}

/// 8.6.8.4: the gate is open when a frame is handed over.
pub(crate) fn nothing_starts_in_a_closed_gate(setup: &Setup, steps: &[Step]) -> Verdict {
    each_transmission(setup, steps, |watch, step, frame| {
        ensure(watch.is_open(class_of(frame), step.at), "started in a closed gate", step)
    })
}

/// 8.6.8.4 b: it stays open, under one configuration, until the last bit has left.
pub(crate) fn nothing_crosses_a_close(setup: &Setup, steps: &[Step]) -> Verdict {
    each_transmission(setup, steps, |watch, step, frame| {
        let fits = watch.stays_open(class_of(frame), step.at, watch.needs(frame));
        ensure(fits, "crossed a close", step)
    })
}

/// The window that comes with a transmission: handed over at its latest, the frame ends inside, and one
/// nanosecond later it would not.
pub(crate) fn the_window_is_the_gates(setup: &Setup, steps: &[Step]) -> Verdict {
    Watch::follow(setup, steps, |watch, step| {
        let What::Decided(Decision::Transmit { frame, window, .. }) = &step.what else { return Ok(()) };
        let class = class_of(frame);
        let needs = watch.needs(frame).max(1);
        let Some(window) = window else {
            return ensure(watch.stays_open(class, step.at, 500), "a window without end closes", step);
        };
        ensure(window.opens_at <= step.at.tai && step.at.tai <= window.latest, "outside its window", step)?;
        let left = (window.latest.as_nanos() - step.at.tai.as_nanos()) + needs;
        ensure(watch.stays_open(class, step.at, left), "the latest hand-over is too late", step)?;
        ensure(!watch.stays_open(class, step.at, left + 1), "the latest hand-over is too early", step)
    })
}

/// The wire carries one frame at a time, and decisions are not taken long before.
pub(crate) fn the_wire_carries_one_frame(setup: &Setup, steps: &[Step]) -> Verdict {
    each_transmission(setup, steps, |watch, step, _| {
        ensure(watch.is_wire_free(step.at), "handed over before the wire is free", step)
    })
}

/// No frame leaves before its TxTime; overruns are not negative.
pub(crate) fn never_early(setup: &Setup, steps: &[Step]) -> Verdict {
    Watch::follow(setup, steps, |_, step| match &step.what {
        What::Decided(Decision::Transmit { frame, overrun, .. }) => {
            let come = frame.not_before().is_none_or(|tx_time| has_come(tx_time, step.at));
            ensure(come && !overrun.is_negative(), "early", step)
        }
        _ => Ok(()),
    })
}

/// 8.6.6: frames of a class leave in its order.
pub(crate) fn order_within_a_class(setup: &Setup, steps: &[Step]) -> Verdict {
    Watch::follow(setup, steps, |watch, step| match &step.what {
        What::Decided(Decision::Transmit { frame, .. } | Decision::Drop { frame, .. }) => {
            let head = watch.due_head(class_of(frame), step.at);
            ensure(head.is_some_and(|head| head.frame == *frame), "not the head of its class", step)
        }
        _ => Ok(()),
    })
}

/// 8.6.6 said without the onlooker: in a class of order `fifo` the arrivals of each attachment leave in ascending order.
pub(crate) fn fifo_within_a_class(setup: &Setup, steps: &[Step]) -> Verdict {
    let mut last = HashMap::new();
    Watch::follow(setup, steps, |_, step| {
        let What::Decided(Decision::Transmit { frame, .. }) = &step.what else { return Ok(()) };
        let class = class_of(frame);
        if setup.classes[class].order == Order::TxTime {
            return Ok(());
        }
        let before = last.insert((class, frame.attachment), frame.id.0);
        let is_later = before.is_none_or(|last| last < frame.id.0);
        ensure(is_later, "overtook", step)
    })
}

/// 8.6.8.1: no higher class could have left instead.
pub(crate) fn highest_eligible_class_first(setup: &Setup, steps: &[Step]) -> Verdict {
    each_transmission(setup, steps, |watch, step, frame| {
        let higher = (class_of(frame) + 1..8).find(|&class| watch.may_leave(class, step.at));
        ensure(higher.is_none(), "a higher class waits", step)
    })
}

/// While a frame may leave, the port does not wait; and it never sleeps past one.
pub(crate) fn work_conserving(setup: &Setup, steps: &[Step]) -> Verdict {
    Watch::follow(setup, steps, |watch, step| match &step.what {
        What::Decided(Decision::Idle) => ensure(watch.queued.is_empty(), "idle with frames queued", step),
        What::Decided(Decision::WakeAt { at, next }) => {
            let ahead = at.ahead_of(step.at).get();
            ensure(ahead > 0, "wakes in the past", step)?;
            let next = watch.queued.iter().find(|queued| queued.frame.id == *next);
            let Some(next) = next else { return Err(format!("next is not queued: {step:?}")) };
            // What is on time holds back lower classes for as long as a hand-over takes.
            let is_guard = next.on_time && ahead.unsigned_abs() < watch.hand_over.min(20_000);
            let from = if is_guard { class_of(&next.frame) } else { 0 };
            let leaves =
                watch.is_wire_free(step.at) && (from..8).any(|class| watch.may_leave(class, step.at));
            ensure(!leaves, "waits while a frame may leave", step)
        }
        _ => Ok(()),
    })
}

/// A drop has a cause: it never fits, or it overran its limit or its deadline.
pub(crate) fn drops_have_a_cause(setup: &Setup, steps: &[Step]) -> Verdict {
    Watch::follow(setup, steps, |watch, step| {
        let What::Decided(Decision::Drop { frame, reason }) = &step.what else { return Ok(()) };
        match reason {
            DropReason::GateNeverFits => {
                let machines = watch.machines(step.at);
                let change_in = machines.config_change_time.saturating_sub(step.at.tai.as_nanos());
                let change = machines.config_pending.then_some(change_in);
                let is_far = change.is_none_or(|change| change > frame.horizon.get().max(0).unsigned_abs());
                ensure(is_far, "a change is pending within its horizon", step)?;
                let fits = watch.will_fit(
                    class_of(frame),
                    step.at,
                    watch.needs(frame),
                    change.unwrap_or(1_200).min(1_200),
                );
                ensure(!fits, "would have fitted", step)
            }
            DropReason::Overrun if frame.late == LatePolicy::Deadline => {
                let expired = frame.tx_time.is_some_and(|at| at.ahead_of(step.at).is_negative());
                ensure(expired, "its deadline has not passed", step)
            }
            DropReason::Overrun => {
                let is_fq =
                    matches!(frame.tx_time, Some(TxTime::Monotonic(_))) && frame.late != LatePolicy::Drop;
                ensure(!is_fq, "fq sends it however late", step)?;
                let overdue = frame.tx_time.map(|at| at.ahead_of(step.at).saturating_mul(-1));
                let overran = overdue.is_some_and(|overdue| overdue.get() > frame.overrun_limit.get().max(0));
                ensure(overran, "it did not overrun", step)
            }
            _ => Err(format!("unknown cause: {step:?}")),
        }
    })
}

/// Offered = refused + transmitted + dropped + removed + still queued, each frame once and unchanged.
pub(crate) fn conservation(_: &Setup, steps: &[Step]) -> Verdict {
    let (mut inside, mut seen) = (HashMap::new(), 0_usize);
    for step in steps {
        let gone: Vec<Frame> = match &step.what {
            What::Offered(frame, Ok(())) => {
                inside.insert(frame.id, *frame);
                seen += 1;
                continue;
            }
            What::Offered(frame, Err(refused)) => {
                ensure(refused.frame == *frame, "refused another frame", step)?;
                continue;
            }
            What::Decided(Decision::Transmit { frame, .. } | Decision::Drop { frame, .. }) => vec![*frame],
            What::Removed(attachment, frames) => {
                ensure(
                    frames.iter().all(|frame| frame.attachment == *attachment),
                    "removed another's",
                    step,
                )?;
                let left = inside.values().filter(|frame| frame.attachment == *attachment).count();
                ensure(left == frames.len(), "left some behind", step)?;
                frames.clone()
            }
            What::Decided(Decision::Idle) => {
                ensure(inside.is_empty(), "idle: frames were lost", step)?;
                continue;
            }
            What::Queued(count) => {
                ensure(inside.len() == *count, "frames were lost or made", step)?;
                continue;
            }
            _ => continue,
        };
        for frame in gone {
            ensure(inside.remove(&frame.id) == Some(frame), "left twice or changed", step)?;
        }
    }
    if inside.len() <= seen { Ok(()) } else { Err("more frames than were offered".into()) }
}

/// 8.6.8.4: a longer SDU than queueMaxSDU is refused as `too_long`, and nothing else is.
pub(crate) fn queue_max_sdu(setup: &Setup, steps: &[Step]) -> Verdict {
    let mut classes = setup.classes;
    for step in steps {
        match &step.what {
            What::Classes(others) => classes = *others,
            What::Offered(frame, result) => {
                let max = classes[class_of(frame)].queue_max_sdu;
                let is_long = max.is_some_and(|max| frame.sdu_octets > max);
                let refused = matches!(result, Err(refused) if refused.reason == DropReason::TooLong);
                ensure(is_long == refused, "queueMaxSDU", step)?;
            }
            _ => {}
        }
    }
    Ok(())
}

/// Whether a frame is late is a matter of its offer alone, and is said with the transmission.
pub(crate) fn late_is_said(_: &Setup, steps: &[Step]) -> Verdict {
    let mut late = HashMap::new();
    for step in steps {
        match &step.what {
            What::Offered(frame, Ok(())) => {
                late.insert(frame.id, is_late(frame, step.at));
            }
            What::Decided(Decision::Transmit { frame, late: said, .. }) => {
                ensure(late.get(&frame.id) == Some(said), "late", step)?;
            }
            _ => {}
        }
    }
    Ok(())
}

/// Clocks may step: at the TAI of the hand-over the gate is open, and stays so until the frame has ended.
pub(crate) fn steps_leave_nothing_in_a_closed_gate(setup: &Setup, steps: &[Step]) -> Verdict {
    let (mut timeline, mut hand_over, mut link_speed) =
        (Timeline::default(), setup.hand_over, setup.link_speed);
    for step in steps {
        let tai = i128::from(step.at.tai.as_nanos());
        match &step.what {
            What::Configured(admin) => timeline.set_admin(admin, tai),
            What::HandOver(span) => hand_over = *span,
            What::LinkSpeed(speed) => link_speed = *speed,
            What::Stepped | What::Removed(..) | What::Classes(_) | What::Queued(_) => {}
            What::Offered(..) => timeline.advance(tai),
            What::Decided(decision) => {
                timeline.advance(tai);
                let Decision::Transmit { frame, .. } = decision else { continue };
                let bits = u64::from(frame.wire_octets) * 8_000_000_000;
                let needs = hand_over + link_speed.map_or(0, |speed| bits.div_ceil(speed));
                let fits = timeline.first_fit(class_of(frame), needs.into(), tai) == Some(tai);
                ensure(fits, "in a closed window of the new time", step)?;
            }
        }
    }
    Ok(())
}

/// What holds in every run with steady clocks.
pub(crate) const STEADY: [(&str, Check); 13] = [
    ("nothing starts in a closed gate", nothing_starts_in_a_closed_gate),
    ("nothing crosses a close", nothing_crosses_a_close),
    ("the window is the gate's", the_window_is_the_gates),
    ("the wire carries one frame", the_wire_carries_one_frame),
    ("never early", never_early),
    ("order within a class", order_within_a_class),
    ("fifo within a class", fifo_within_a_class),
    ("highest eligible class first", highest_eligible_class_first),
    ("work conserving", work_conserving),
    ("drops have a cause", drops_have_a_cause),
    ("conservation", conservation),
    ("queueMaxSDU", queue_max_sdu),
    ("late is said", late_is_said),
];
