// SPDX-License-Identifier: Apache-2.0
//! 802.1Q-2022 8.6.8.1 and 8.6.8.2 as they are written: one list that is scanned, credits that rise and fall in every single
//! nanosecond with idleSlope and sendSlope, and a wake-up that is found by trying. Shares no code with the crate
//! beyond the words of its edge.

use crate::turn_rule::Rule;
use ktsn_model::{DropReason, LatePolicy};
use ktsn_sched::{CreditOptions, Decision, Frame, Refused};
use ktsn_time::{Monotonic, Nanos, Now, Tai, TxTime};

#[derive(Clone, Copy)]
struct Waiting {
    frame: Frame,
    on_tai: bool,
    due: i128,
    arrival: i128,
    late: bool,
    overrun_counts: bool,
    deadline: Option<(bool, i128)>,
}

/// A frame on the wire.
#[derive(Clone, Copy)]
struct OnWire {
    class: u8,
    /// Billionths of a bit that are still to come.
    left: i128,
}

/// Billionths of a bit.
#[derive(Clone, Copy)]
struct Level {
    value: i128,
    options: CreditOptions,
}

#[derive(Clone)]
pub(crate) struct Reference {
    capacity: usize,
    /// In the order of arrival.
    waiting: Vec<Waiting>,
    arrivals: i128,
    rule: Rule,
    link_speed: Option<u64>,
    levels: [Option<Level>; 8],
    on_wire: Option<OnWire>,
    monotonic: i128,
    tai: i128,
}

const BILLION: i128 = 1_000_000_000;

impl Reference {
    pub(crate) fn new(
        capacity: usize,
        link_speed: Option<u64>,
        classes: [Option<CreditOptions>; 8],
        now: Now,
    ) -> Self {
        Self {
            capacity,
            waiting: Vec::new(),
            arrivals: 0,
            rule: Rule::new(4),
            link_speed,
            levels: classes.map(|options| options.map(|options| Level { value: 0, options })),
            on_wire: None,
            monotonic: now.monotonic.as_nanos().into(),
            tai: now.tai.as_nanos().into(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Whole bits of credit, rounded down.
    pub(crate) fn credit(&self, class: u8) -> Option<i128> {
        self.levels[usize::from(class)].map(|level| level.value.div_euclid(BILLION))
    }

    pub(crate) fn is_on_wire(&self) -> bool {
        self.on_wire.is_some()
    }

    fn clock(&self, on_tai: bool) -> i128 {
        if on_tai { self.tai } else { self.monotonic }
    }

    /// The first ones of each attachment in the class.
    fn heads(&self, class: u8) -> impl Iterator<Item = usize> {
        let place = |w: &Waiting| self.rule.place(&w.frame);
        let of_class = (0..self.waiting.len()).filter(move |&i| self.waiting[i].frame.class.get() == class);
        of_class.filter(move |&i| self.waiting[..i].iter().all(|w| place(w) != place(&self.waiting[i])))
    }

    /// The one of them whose turn it is, or will be soonest.
    fn head(&self, class: u8) -> Option<usize> {
        self.heads(class).max_by_key(|&i| {
            let w = &self.waiting[i];
            self.rule.rank(&w.frame, w.on_tai, w.due, w.arrival, self.now())
        })
    }

    fn now(&self) -> Now {
        let instant = |at: i128| u64::try_from(at).expect("an instant");
        Now {
            tai: Tai::from_nanos(instant(self.tai)),
            monotonic: Monotonic::from_nanos(instant(self.monotonic)),
        }
    }

    fn overdue(&self, w: &Waiting) -> i128 {
        self.clock(w.on_tai) - w.due
    }

    fn waits(&self, class: u8) -> bool {
        self.heads(class).any(|i| self.overdue(&self.waiting[i]) >= 0)
    }

    /// "If there are no frames in the queue, transmit is FALSE and credit is positive, then credit is set to zero." The clause
    /// says "at any time", so that holds between two events of one instant too.
    fn reset(&mut self) {
        for class in 0..8 {
            let transmits = self.on_wire.is_some_and(|on_wire| on_wire.class == class);
            let waits = self.waits(class);
            if let Some(level) = &mut self.levels[usize::from(class)]
                && !transmits
                && !waits
            {
                level.value = level.value.min(0);
            }
        }
    }

    /// One nanosecond of everything.
    fn tick(&mut self) {
        self.reset();
        let rate = i128::from(self.link_speed.unwrap_or(0));
        for class in 0..8 {
            let waits = self.waits(class);
            let Some(level) = &mut self.levels[usize::from(class)] else { continue };
            let (idle_slope, options) = (i128::from(level.options.idle_slope), level.options);
            match self.on_wire {
                Some(on_wire) if on_wire.class == class => {
                    level.value += idle_slope - rate.min(on_wire.left);
                    if on_wire.left <= rate {
                        level.limit(options);
                    }
                }
                _ if waits => {
                    level.value += idle_slope;
                    level.limit(options);
                }
                _ => level.value = (level.value + idle_slope).min(0),
            }
        }
        if let Some(on_wire) = &mut self.on_wire {
            on_wire.left -= rate;
            if on_wire.left <= 0 {
                self.on_wire = None;
            }
        }
        self.monotonic += 1;
        self.tai += 1;
    }

    pub(crate) fn advance(&mut self, span: u64) {
        for _ in 0..span {
            self.tick();
        }
        self.reset();
    }

    /// Time without credits may jump.
    pub(crate) fn set_now(&mut self, now: Now) {
        (self.monotonic, self.tai) = (now.monotonic.as_nanos().into(), now.tai.as_nanos().into());
    }

    pub(crate) fn offer(&mut self, frame: Frame) -> Result<(), Refused> {
        let refuse = |reason| Err(Refused { frame, reason });
        self.rule.see(self.now());
        self.reset();
        let age = (self.monotonic - i128::from(frame.pushed_at.as_nanos())).max(0);
        let waited = age.min(frame.overrun_limit.get().max(0).into());
        let mut entry = Waiting {
            frame,
            on_tai: false,
            due: self.monotonic - waited,
            arrival: self.arrivals,
            late: false,
            overrun_counts: false,
            deadline: None,
        };
        let asked = match frame.tx_time {
            None => None,
            Some(TxTime::Monotonic(at)) => Some((false, i128::from(at.as_nanos()))).filter(|&(_, at)| at > 0),
            Some(TxTime::Tai(at)) if at.as_nanos() == 0 => return refuse(DropReason::InvalidTime),
            Some(TxTime::Tai(at)) => Some((true, i128::from(at.as_nanos()))),
        };
        if let Some((on_tai, tx_time)) = asked {
            let here = self.clock(on_tai);
            if tx_time < here - age {
                let kept = frame.late == LatePolicy::Send || (frame.late == LatePolicy::ByClock && !on_tai);
                if !kept {
                    return refuse(DropReason::Missed);
                }
                (entry.on_tai, entry.due, entry.late) = (on_tai, here - waited, true);
            } else if tx_time - here > i128::from(frame.horizon.get().max(0)) {
                return refuse(DropReason::BeyondHorizon);
            } else if frame.late == LatePolicy::Deadline {
                entry.deadline = Some((on_tai, tx_time));
            } else {
                // What fq's rule keeps however late is due no longer than what etf's rule keeps.
                let is_kept = !on_tai && frame.late != LatePolicy::Drop;
                let due = if is_kept { tx_time.max(here - waited) } else { tx_time };
                (entry.on_tai, entry.due, entry.overrun_counts) = (on_tai, due, true);
            }
        }
        if self.waiting.len() >= self.capacity {
            return refuse(DropReason::QueueFull);
        }
        self.arrivals += 1;
        self.waiting.push(entry);
        Ok(())
    }

    /// The class that is served at this very instant.
    fn chosen(&self) -> Option<u8> {
        if self.on_wire.is_some() {
            return None;
        }
        let allowed = |class: u8| self.levels[usize::from(class)].is_none_or(|level| level.value >= 0);
        (0..8).rev().find(|&class| self.waits(class) && allowed(class))
    }

    pub(crate) fn decide(&mut self) -> Decision {
        self.rule.see(self.now());
        self.reset();
        if let Some(class) = self.chosen() {
            return self.take(class);
        }
        if self.waiting.is_empty() {
            return Decision::Idle;
        }
        if self.link_speed.is_none() && self.levels.iter().all(Option::is_none) {
            return self.soonest();
        }
        let mut later = self.clone();
        let class = (0..100_000).find_map(|_| {
            later.tick();
            later.reset();
            later.chosen()
        });
        let class = class.expect("a class is served some day");
        let head = &later.waiting[later.head(class).expect("it was chosen")];
        let at = if later.overdue(head) == 0 {
            instant(head.on_tai, head.due)
        } else {
            instant(false, later.monotonic)
        };
        Decision::WakeAt { at, next: head.frame.id }
    }

    /// The wake-up without credits, which may be far away: the first head that becomes due.
    fn soonest(&self) -> Decision {
        let heads = (0..8).rev().filter_map(|class| self.head(class)).map(|i| self.waiting[i]);
        // The first of equal ones is kept, so the highest class.
        let first = heads.min_by_key(|w| -self.overdue(w)).expect("something waits");
        Decision::WakeAt { at: instant(first.on_tai, first.due), next: first.frame.id }
    }

    fn take(&mut self, class: u8) -> Decision {
        let w = self.waiting.remove(self.head(class).expect("it was chosen"));
        self.rule.serve(&w.frame, w.due, self.now());
        let (frame, overdue) = (w.frame, self.overdue(&w));
        // fq sends what it has, however late; etf drops.
        let counts = w.overrun_counts && (w.on_tai || frame.late == LatePolicy::Drop);
        let overran = counts && overdue > i128::from(frame.overrun_limit.get().max(0));
        if overran || w.deadline.is_some_and(|(on_tai, last)| self.clock(on_tai) > last) {
            return Decision::Drop { frame, reason: DropReason::Overrun };
        }
        let left = i128::from(frame.wire_octets) * 8 * BILLION;
        if self.link_speed.is_some() {
            self.on_wire = Some(OnWire { class, left }).filter(|on_wire| on_wire.left > 0);
        } else if let Some(level) = &mut self.levels[usize::from(class)] {
            level.value -= left;
            let options = level.options;
            level.limit(options);
        }
        let overrun = Nanos::new(i64::try_from(overdue).unwrap_or(i64::MAX));
        Decision::Transmit { frame, overrun, late: w.late, window: None }
    }

    pub(crate) fn remove(&mut self, attachment: u32) -> Vec<u64> {
        self.reset();
        let gone = self.waiting.extract_if(.., |w| w.frame.attachment == attachment);
        gone.map(|w| w.frame.id.0).collect()
    }
}

impl Level {
    fn limit(&mut self, options: CreditOptions) {
        if let Some(highest) = options.hi_credit {
            self.value = self.value.min(i128::from(highest) * BILLION);
        }
        if let Some(lowest) = options.lo_credit {
            self.value = self.value.max(i128::from(lowest) * -BILLION);
        }
    }
}

fn instant(on_tai: bool, at: i128) -> TxTime {
    let at = u64::try_from(at).expect("an instant");
    if on_tai { TxTime::Tai(Tai::from_nanos(at)) } else { TxTime::Monotonic(Monotonic::from_nanos(at)) }
}
