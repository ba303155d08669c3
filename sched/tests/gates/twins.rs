// SPDX-License-Identifier: Apache-2.0
//! Ports with one fault each, and the proof that the property meant for it sees it: a property that no fault
//! breaks proves nothing.
//!
//! In: an engine behind a wrapper that breaks one rule. Out: the same worlds, passed by the engine, failed by its
//! twin.

use crate::cases::fixed;
use crate::checks::{self, Check};
use crate::engine::engine;
use crate::port::{ClassSetup, Port, Setup, Status, now};
use crate::properties::Make;
use crate::relations;
use crate::watch::Verdict;
use crate::world::{any_world, run, steady_world};
use ktsn_model::{AdminPort, DropReason, GateStates, TrafficClass};
use ktsn_sched::{Decision, Frame, Refused, Window};
use ktsn_time::{Nanos, Now, TxTime};
use std::collections::HashMap;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    None,
    ClockAhead,
    NoGuardBand,
    Lifo,
    ClassesUpsideDown,
    Lazy,
    Oversleeps,
    WakesEarly,
    Loses,
    Doubles,
    TakesEverySdu,
    ChangesLate,
    OldTime,
    LongLists,
    GatesForgotten,
    OddCycles,
    WindowTooLong,
    WindowForgotten,
    LateUnsaid,
    DropsOnTime,
    Early,
}

struct Twin<const FAULT: usize> {
    inner: Box<dyn Port>,
    original: HashMap<u64, Frame>,
    held: Option<Frame>,
    calls: u32,
    first_seen: Option<Now>,
    last_decided: Option<Now>,
}

const FAULTS: [Fault; 21] = [
    Fault::None,
    Fault::ClockAhead,
    Fault::NoGuardBand,
    Fault::Lifo,
    Fault::ClassesUpsideDown,
    Fault::Lazy,
    Fault::Oversleeps,
    Fault::WakesEarly,
    Fault::Loses,
    Fault::Doubles,
    Fault::TakesEverySdu,
    Fault::ChangesLate,
    Fault::OldTime,
    Fault::LongLists,
    Fault::GatesForgotten,
    Fault::OddCycles,
    Fault::WindowTooLong,
    Fault::WindowForgotten,
    Fault::LateUnsaid,
    Fault::DropsOnTime,
    Fault::Early,
];

fn twin<const FAULT: usize>(setup: &Setup) -> Box<dyn Port> {
    Box::new(Twin::<FAULT> {
        inner: engine(setup),
        original: HashMap::new(),
        held: None,
        calls: 0,
        first_seen: None,
        last_decided: None,
    })
}

impl<const FAULT: usize> Twin<FAULT> {
    fn is(&self, fault: Fault) -> bool {
        FAULTS[FAULT] == fault
    }

    /// Whether this call is one of those that go wrong.
    fn strikes(&mut self, fault: Fault) -> bool {
        self.calls += u32::from(self.is(fault));
        self.is(fault) && self.calls % 3 == 2
    }

    fn clock(&mut self, at: Now) -> Now {
        let (mono, tai) = (at.monotonic.as_nanos(), at.tai.as_nanos());
        match FAULTS[FAULT] {
            Fault::ClockAhead => now(mono, tai + 2),
            Fault::OddCycles => now(mono, tai + tai / 512 % 2),
            Fault::OldTime => {
                let first = *self.first_seen.get_or_insert(at);
                now(mono, first.tai.as_nanos() + (mono - first.monotonic.as_nanos()))
            }
            _ => at,
        }
    }

    fn changed(&self, mut frame: Frame) -> Frame {
        match FAULTS[FAULT] {
            Fault::NoGuardBand => frame.wire_octets = 1,
            Fault::ClassesUpsideDown => frame.class = TrafficClass::new(7 - frame.class.get()).unwrap(),
            Fault::TakesEverySdu => frame.sdu_octets = 0,
            Fault::Early => frame.tx_time = frame.tx_time.map(|at: TxTime| at.saturating_add(Nanos::new(-1))),
            _ => {}
        }
        frame
    }

    fn restored(&self, frame: &Frame) -> Frame {
        self.original[&frame.id.0]
    }

    fn spoiled(&mut self, decision: Decision, at: Now) -> Decision {
        match decision {
            Decision::Transmit { frame, overrun, mut late, mut window } => {
                let frame = self.restored(&frame);
                if self.strikes(Fault::DropsOnTime) {
                    return Decision::Drop { frame, reason: DropReason::Overrun };
                }
                if self.strikes(Fault::Doubles) {
                    self.held = Some(frame);
                }
                late ^= self.is(Fault::LateUnsaid);
                if self.is(Fault::WindowTooLong) {
                    let longer = |w: Window| Window { latest: w.latest.saturating_add(Nanos::new(1)), ..w };
                    window = window.map(longer);
                }
                if self.is(Fault::WindowForgotten) {
                    window = None;
                }
                Decision::Transmit { frame, overrun, late, window }
            }
            Decision::Drop { frame, reason } => Decision::Drop { frame: self.restored(&frame), reason },
            Decision::WakeAt { at: wake_at, next } => {
                let span = match FAULTS[FAULT] {
                    Fault::Oversleeps => 1,
                    Fault::WakesEarly if wake_at.ahead_of(at).get() > 1 => -1,
                    _ => 0,
                };
                Decision::WakeAt { at: wake_at.saturating_add(Nanos::new(span)), next }
            }
            Decision::Idle => Decision::Idle,
        }
    }
}

impl<const FAULT: usize> Port for Twin<FAULT> {
    fn offer(&mut self, frame: Frame, at: Now) -> Result<(), Refused> {
        self.original.insert(frame.id.0, frame);
        if self.strikes(Fault::Loses) {
            return Ok(());
        }
        let at = self.clock(at);
        if self.is(Fault::Lifo) {
            let Some(held) = self.held.take() else {
                self.held = Some(frame);
                return Ok(());
            };
            let offered = self.inner.offer(frame, at);
            let _lost_if_refused = self.inner.offer(held, at);
            return offered;
        }
        let offered = self.inner.offer(self.changed(frame), at);
        offered.map_err(|refused| Refused { frame, ..refused })
    }

    fn decide(&mut self, at: Now) -> Decision {
        if self.is(Fault::Lazy)
            && self.last_decided.replace(at) != Some(at)
            && let Some(&frame) = self.original.values().next()
        {
            let at = TxTime::Monotonic(at.monotonic).saturating_add(Nanos::new(1));
            return Decision::WakeAt { at, next: frame.id };
        }
        let seen = self.clock(at);
        if let Some(frame) = self.held.take() {
            if self.is(Fault::Doubles) {
                return Decision::Transmit { frame, overrun: Nanos::ZERO, late: false, window: None };
            }
            let _lost_if_refused = self.inner.offer(frame, seen);
        }
        let decision = self.inner.decide(seen);
        self.spoiled(decision, seen)
    }

    fn remove_attachment(&mut self, attachment: u32) -> Vec<Frame> {
        let removed = self.inner.remove_attachment(attachment);
        removed.iter().map(|frame| self.restored(frame)).collect()
    }

    fn set_admin(&mut self, admin: &AdminPort, at: Now) {
        let at = self.clock(at);
        let mut admin = admin.clone();
        match FAULTS[FAULT] {
            Fault::ChangesLate => admin.base_time = admin.base_time.saturating_add(Nanos::new(1)),
            Fault::LongLists => admin.control_list.truncate(2),
            Fault::GatesForgotten => {
                admin.control_list.iter_mut().for_each(|entry| entry.states = GateStates::ALL_OPEN);
            }
            _ => {}
        }
        self.inner.set_admin(&admin, at);
    }

    fn status(&mut self, at: Now) -> Status {
        let at = self.clock(at);
        self.inner.status(at)
    }
    fn set_hand_over(&mut self, hand_over: u64) {
        self.inner.set_hand_over(hand_over);
    }
    fn set_link_speed(&mut self, link_speed: Option<u64>) {
        self.inner.set_link_speed(link_speed);
    }
    fn set_classes(&mut self, classes: [ClassSetup; 8]) {
        self.inner.set_classes(classes);
    }
    fn len(&self) -> usize {
        self.inner.len() + usize::from(self.held.is_some() && self.is(Fault::Lifo))
    }
}

/// The engine passes `verdict` in every one of `worlds`, its twin does not.
fn sees<W: std::fmt::Debug>(make: Make, worlds: &[W], verdict: impl Fn(Make, &W) -> Verdict) {
    for world in worlds {
        assert_eq!(verdict(twin::<0>, world), Ok(()), "{world:?}");
    }
    let caught = worlds.iter().any(|world| verdict(make, world).is_err());
    assert!(caught, "no world of {} shows it", worlds.len());
}

fn of_check(check: Check) -> impl Fn(Make, &crate::world::World) -> Verdict {
    move |make, world| check(&world.setup, &run(make(&world.setup).as_mut(), world))
}

macro_rules! faults {
    ($($name:ident: $fault:ident, $worlds:expr, $verdict:expr;)*) => {
        $(#[test] fn $name() {
            const FAULT: usize = {
                let mut index = 0;
                while FAULTS[index] as usize != Fault::$fault as usize { index += 1; }
                index
            };
            sees(twin::<FAULT>, &fixed(200, &$worlds), $verdict);
        })*
    };
}

faults! {
    a_clock_ahead_starts_in_a_closed_gate: ClockAhead, steady_world(), of_check(checks::nothing_starts_in_a_closed_gate);
    no_guard_band_crosses_a_close: NoGuardBand, steady_world(), of_check(checks::nothing_crosses_a_close);
    no_wire_time_sends_two_at_once: NoGuardBand, steady_world(), of_check(checks::the_wire_carries_one_frame);
    a_window_too_long: WindowTooLong, steady_world(), of_check(checks::the_window_is_the_gates);
    a_window_forgotten: WindowForgotten, steady_world(), of_check(checks::the_window_is_the_gates);
    lifo_breaks_fifo: Lifo, steady_world(), of_check(checks::fifo_within_a_class);
    lifo_breaks_the_order: Lifo, steady_world(), of_check(checks::order_within_a_class);
    classes_upside_down: ClassesUpsideDown, steady_world(), of_check(checks::highest_eligible_class_first);
    lazy_is_not_work_conserving: Lazy, steady_world(), of_check(checks::work_conserving);
    a_lost_frame: Loses, any_world(), of_check(checks::conservation);
    a_frame_twice: Doubles, any_world(), of_check(checks::conservation);
    every_sdu_taken: TakesEverySdu, any_world(), of_check(checks::queue_max_sdu);
    late_unsaid: LateUnsaid, steady_world(), of_check(checks::late_is_said);
    dropped_on_time: DropsOnTime, steady_world(), of_check(checks::drops_have_a_cause);
    sent_early: Early, steady_world(), of_check(checks::never_early);
    old_time_after_a_step: OldTime, any_world(), of_check(checks::steps_leave_nothing_in_a_closed_gate);
    a_change_one_late: ChangesLate, relations::changes(), relations::change_exactly_at_config_change_time;
    oversleeping: Oversleeps, relations::polled_worlds(), relations::jumping_equals_polling;
    waking_early: WakesEarly, relations::polled_worlds(), relations::jumping_equals_polling;
    odd_cycles: OddCycles, relations::shifted_worlds(), relations::shift_by_cycles;
    long_lists_cut: LongLists, relations::split_worlds(), relations::splitting_an_entry;
    a_flood_above: ClassesUpsideDown, relations::flooded_worlds(), relations::flood_from_below;
    a_flood_through_forgotten_gates: GatesForgotten, relations::exclusive_worlds(), relations::flood_beside_a_window;
}

/// All the steady properties at once hold for the engine in the worlds that its twins fail.
#[test]
fn the_engine_has_every_property_at_once() {
    for world in fixed(200, &steady_world()) {
        let steps = run(engine(&world.setup).as_mut(), &world);
        for (name, check) in checks::STEADY {
            assert_eq!(check(&world.setup, &steps), Ok(()), "{name}: {world:?}");
        }
    }
}
