// SPDX-License-Identifier: Apache-2.0
//! An onlooker at a port: what is queued, whether the wire is free, and what the polled state machines say.
//!
//! In: the [`Step`]s of a run with steady clocks. Out: the answers that a property needs at each of them. It
//! knows the rules of the wire and of the gates, nothing of how a port decides.

use crate::machines::Machines;
use crate::port::{ATTACHMENTS, ClassSetup, Order, Setup};
use crate::turn_rule::Rule;
use crate::world::{BEGIN, Step, What};
use ktsn_model::LatePolicy;
use ktsn_sched::{Decision, Frame};
use ktsn_time::{Now, TxTime};

pub(crate) type Verdict = Result<(), String>;

#[derive(Clone, Debug)]
pub(crate) struct Queued {
    pub(crate) frame: Frame,
    /// When it became due, on MONOTONIC.
    pub(crate) due: i128,
    /// It has a TxTime to be on, and was sent before it.
    pub(crate) on_time: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct Watch {
    /// Ticked until just before the present step.
    machines: Machines,
    ticked: u64,
    /// In the order of arrival.
    pub(crate) queued: Vec<Queued>,
    rule: Rule,
    pub(crate) classes: [ClassSetup; 8],
    pub(crate) hand_over: u64,
    link_speed: Option<u64>,
    /// MONOTONIC instant at which the last bit has left.
    pub(crate) wire_free: u64,
}

pub(crate) fn class_of(frame: &Frame) -> usize {
    frame.class.get().into()
}

/// Whether `frame` was sent with its TxTime in the past, seen at `at`.
pub(crate) fn is_late(frame: &Frame, at: Now) -> bool {
    let age = at.monotonic.since(frame.pushed_at).get().max(0);
    frame.tx_time.is_some_and(|tx_time| tx_time.ahead_of(at).get() < -age)
}

fn due(frame: &Frame, at: Now) -> i128 {
    let arrival = i128::from(at.monotonic.as_nanos());
    let age = at.monotonic.since(frame.pushed_at).get().max(0);
    let sent = arrival - i128::from(age.min(frame.overrun_limit.get().max(0)));
    match frame.not_before() {
        Some(tx_time) if !is_late(frame, at) => {
            let due = arrival + i128::from(tx_time.ahead_of(at).get());
            let is_fq = matches!(tx_time, TxTime::Monotonic(_)) && frame.late != LatePolicy::Drop;
            if is_fq { due.max(sent) } else { due }
        }
        _ => sent,
    }
}

impl Watch {
    pub(crate) fn new(setup: &Setup) -> Self {
        Self {
            machines: Machines::new(),
            ticked: BEGIN - 1,
            queued: Vec::new(),
            rule: Rule::new(ATTACHMENTS),
            classes: setup.classes,
            hand_over: setup.hand_over,
            link_speed: setup.link_speed,
            wire_free: 0,
        }
    }

    /// Shows every step of a run to `inspect`, with the world as it was before the step.
    pub(crate) fn follow(
        setup: &Setup,
        steps: &[Step],
        mut inspect: impl FnMut(&Self, &Step) -> Verdict,
    ) -> Verdict {
        let mut watch = Self::new(setup);
        for step in steps {
            watch.tick_until(step.at.tai.as_nanos());
            inspect(&watch, step)?;
            watch.apply(step);
        }
        Ok(())
    }

    fn tick_until(&mut self, tai: u64) {
        while self.ticked + 1 < tai {
            self.ticked += 1;
            self.machines.tick(self.ticked);
        }
    }

    fn apply(&mut self, step: &Step) {
        match &step.what {
            What::Offered(frame, Ok(())) => {
                let on_time = frame.not_before().is_some() && !is_late(frame, step.at);
                self.queued.push(Queued { frame: *frame, due: due(frame, step.at), on_time });
            }
            What::Decided(Decision::Transmit { frame, .. }) => {
                let starts_at = self.wire_free.max(step.at.monotonic.as_nanos() + self.hand_over);
                self.wire_free = starts_at + self.wire_time(frame);
                self.chosen(frame, step.at);
            }
            What::Decided(Decision::Drop { frame, .. }) => self.chosen(frame, step.at),
            What::Removed(_, frames) => {
                self.queued.retain(|queued| frames.iter().all(|frame| frame.id != queued.frame.id));
            }
            What::Configured(admin) => self.machines.config_change(admin, step.at.tai.as_nanos()),
            _ => {}
        }
    }

    fn chosen(&mut self, frame: &Frame, at: Now) {
        let due =
            self.queued.iter().find(|queued| queued.frame.id == frame.id).map_or(0, |queued| queued.due);
        self.rule.serve(frame, due, at);
        self.queued.retain(|queued| queued.frame.id != frame.id);
    }

    pub(crate) fn wire_time(&self, frame: &Frame) -> u64 {
        self.link_speed.map_or(0, |speed| (u64::from(frame.wire_octets) * 8_000_000_000).div_ceil(speed))
    }

    /// From hand-over until the last bit has left, on a free wire.
    pub(crate) fn needs(&self, frame: &Frame) -> u64 {
        self.hand_over + self.wire_time(frame)
    }

    /// The machines as they stand at `at`.
    pub(crate) fn machines(&self, at: Now) -> Machines {
        let mut machines = self.machines.clone();
        machines.tick(at.tai.as_nanos());
        machines
    }

    /// Whether the gate of `class` is open at `at`.
    pub(crate) fn is_open(&self, class: usize, at: Now) -> bool {
        self.machines(at).oper_gate_states >> class & 1 == 1
    }

    /// Whether it is open at `at` and stays so, under one configuration, for the next `span` nanoseconds.
    pub(crate) fn stays_open(&self, class: usize, at: Now, span: u64) -> bool {
        let mut machines = self.machines(at);
        stays_open(&mut machines, class, at.tai.as_nanos(), span)
    }

    /// Whether there is an instant from `at` on, within `horizon`, with the gate open for another `span`.
    pub(crate) fn will_fit(&self, class: usize, at: Now, span: u64, horizon: u64) -> bool {
        let mut machines = self.machines(at);
        let first = at.tai.as_nanos();
        (first..first + horizon).any(|tai| {
            if tai > first {
                machines.tick(tai);
            }
            stays_open(&mut machines.clone(), class, tai, span)
        })
    }

    pub(crate) fn is_wire_free(&self, at: Now) -> bool {
        self.link_speed.is_none() || at.monotonic.as_nanos() + self.hand_over >= self.wire_free
    }

    /// The one frame of `class` that may leave, if it is due.
    pub(crate) fn due_head(&self, class: usize, at: Now) -> Option<&Queued> {
        let mut places = Vec::new();
        let of_class = self.queued.iter().enumerate().filter(|(_, queued)| class_of(&queued.frame) == class);
        let heads = of_class.filter(|(_, queued)| {
            let place = self.rule.place(&queued.frame);
            let is_first = !places.contains(&place);
            places.push(place);
            is_first || self.classes[class].order == Order::TxTime
        });
        let head = heads.max_by_key(|(arrival, queued)| {
            self.rule.rank(&queued.frame, false, queued.due, *arrival as i128, at)
        });
        let head = head.map(|(_, queued)| queued);
        head.filter(|queued| queued.due <= i128::from(at.monotonic.as_nanos()))
    }

    /// Whether `class` has a frame that may leave at `at`, the wire being free.
    pub(crate) fn may_leave(&self, class: usize, at: Now) -> bool {
        self.due_head(class, at).is_some_and(|queued| self.stays_open(class, at, self.needs(&queued.frame)))
    }
}

fn stays_open(machines: &mut Machines, class: usize, tai: u64, span: u64) -> bool {
    let is_open = |machines: &Machines| machines.oper_gate_states >> class & 1 == 1;
    is_open(machines)
        && (1..span).all(|after| {
            machines.tick(tai + after);
            is_open(machines) && !machines.changed
        })
}

/// Whether `tx_time` has come.
pub(crate) fn has_come(tx_time: TxTime, at: Now) -> bool {
    tx_time.ahead_of(at).get() <= 0
}
