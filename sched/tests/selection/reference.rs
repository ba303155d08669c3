// SPDX-License-Identifier: Apache-2.0
//! The rules once more, as plainly as they can be said: one `Vec`, scanned for every answer, in integers wide
//! enough that nothing saturates. Shares no code with the crate beyond the words of its edge.

use crate::turn_rule::Rule;
use ktsn_model::{DropReason, LatePolicy};
use ktsn_sched::{Decision, Frame, Refused};
use ktsn_time::{Monotonic, Nanos, Now, Tai, TxTime};

#[derive(Clone, Copy)]
struct Waiting {
    frame: Frame,
    /// Which clock the due instant is read on.
    on_tai: bool,
    due: i128,
    arrival: i128,
    late: bool,
    overrun_counts: bool,
    /// The last instant of a deadline frame, and whether it is on TAI.
    deadline: Option<(bool, i128)>,
}

pub(crate) struct Reference {
    capacity: usize,
    /// Within an attachment, not by due instant.
    by_arrival: bool,
    arrivals: i128,
    /// The next one that comes back is in front.
    front: i128,
    waiting: Vec<Waiting>,
    rule: Rule,
}

fn clock(now: Now, on_tai: bool) -> i128 {
    if on_tai { now.tai.as_nanos().into() } else { now.monotonic.as_nanos().into() }
}

impl Waiting {
    /// Nanoseconds since it became due; negative while it is not.
    fn overdue(&self, now: Now) -> i128 {
        clock(now, self.on_tai) - self.due
    }
    fn class(&self) -> u8 {
        self.frame.class.get()
    }
}

impl Reference {
    pub(crate) fn new(capacity: usize, attachments: u32) -> Self {
        let rule = Rule::new(attachments);
        Self { capacity, by_arrival: false, arrivals: 0, front: -1, waiting: Vec::new(), rule }
    }

    pub(crate) fn by_arrival(capacity: usize, attachments: u32) -> Self {
        Self { by_arrival: true, ..Self::new(capacity, attachments) }
    }

    /// How many frames of `attachment` wait.
    pub(crate) fn count(&self, attachment: u32) -> usize {
        self.waiting.iter().filter(|w| w.frame.attachment == attachment).count()
    }

    /// How many frames wait of those from `places` on, who share.
    pub(crate) fn count_beyond(&self, places: u32) -> usize {
        self.waiting.iter().filter(|w| w.frame.attachment >= places).count()
    }

    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    pub(crate) fn offer(&mut self, frame: Frame, now: Now) -> Result<(), Refused> {
        self.rule.see(now);
        let entry = self.judged(frame, now)?;
        self.arrivals += 1;
        self.waiting.push(entry);
        Ok(())
    }

    /// A frame that was chosen and did not leave comes back in front of those of its attachment.
    pub(crate) fn put_back(&mut self, frame: Frame, now: Now) -> Result<(), Refused> {
        self.rule.see(now);
        let mut entry = self.judged(frame, now)?;
        let due = self.rule.take_back(&frame);
        // A due instant that was computed from the arrival does not move later the second time, nor before its TxTime.
        let is_kept = !entry.on_tai && frame.late != LatePolicy::Drop;
        if !entry.overrun_counts || is_kept {
            let place = self.rule.place(&frame);
            let own = self
                .waiting
                .iter()
                .filter(|w| self.rule.place(&w.frame) == place && w.on_tai == entry.on_tai);
            let own = own.map(|w| w.due).filter(|_| !self.by_arrival);
            let least = own.chain(due).chain([entry.due]).min().unwrap();
            entry.due = match frame.tx_time {
                Some(TxTime::Monotonic(at)) if entry.overrun_counts => least.max(at.as_nanos().into()),
                _ => least,
            };
        }
        entry.arrival = self.front;
        self.front -= 1;
        self.waiting.push(entry);
        Ok(())
    }

    fn judged(&self, frame: Frame, now: Now) -> Result<Waiting, Refused> {
        let refuse = |reason| Err(Refused { frame, reason });
        let arrival = self.arrivals;
        let mono_now: i128 = clock(now, false);
        let age = (mono_now - i128::from(frame.pushed_at.as_nanos())).max(0);
        // Due since it was sent, as far as a frame on time may be overdue.
        let waited = age.min(frame.overrun_limit.get().max(0).into());
        let mut entry = Waiting {
            frame,
            on_tai: false,
            due: mono_now - waited,
            arrival,
            late: false,
            overrun_counts: false,
            deadline: None,
        };

        let asked: Option<(bool, i128)> = match frame.tx_time {
            None => None,
            Some(TxTime::Monotonic(at)) if at.as_nanos() == 0 => None,
            Some(TxTime::Monotonic(at)) => Some((false, at.as_nanos().into())),
            Some(TxTime::Tai(at)) if at.as_nanos() == 0 => return refuse(DropReason::InvalidTime),
            Some(TxTime::Tai(at)) => Some((true, at.as_nanos().into())),
        };
        if let Some((on_tai, tx_time)) = asked {
            entry.on_tai = on_tai;
            let now_there = clock(now, on_tai);
            if tx_time < now_there - age {
                match (frame.late, on_tai) {
                    (LatePolicy::Drop | LatePolicy::Deadline, _) | (LatePolicy::ByClock, true) => {
                        return refuse(DropReason::Missed);
                    }
                    (LatePolicy::Send, _) | (LatePolicy::ByClock, false) => {
                        entry.late = true;
                        entry.due = now_there - waited;
                    }
                }
            } else if tx_time - now_there > i128::from(frame.horizon.get().max(0)) {
                return refuse(DropReason::BeyondHorizon);
            } else if frame.late == LatePolicy::Deadline {
                // Due at once, like a frame without TxTime.
                entry.on_tai = false;
                entry.deadline = Some((on_tai, tx_time));
            } else {
                // What fq's rule keeps however late is due no longer than what etf's rule keeps.
                let is_kept = !on_tai && frame.late != LatePolicy::Drop;
                entry.due = if is_kept { tx_time.max(now_there - waited) } else { tx_time };
                entry.overrun_counts = true;
            }
        }
        if self.waiting.len() >= self.capacity {
            return refuse(DropReason::QueueFull);
        }
        Ok(entry)
    }

    /// Whether nothing of its own attachment and class has to leave before it, due or not.
    fn is_first(&self, w: &Waiting) -> bool {
        let place = self.rule.place(&w.frame);
        let before = |other: &Waiting| self.rule.place(&other.frame) == place && other.arrival < w.arrival;
        !self.by_arrival || !self.waiting.iter().any(before)
    }

    pub(crate) fn decide(&mut self, now: Now) -> Decision {
        self.rule.see(now);
        // The best is the greatest by: class, then whose turn it is.
        let chosen = (0..self.waiting.len())
            .filter(|&i| self.waiting[i].overdue(now) >= 0 && self.is_first(&self.waiting[i]))
            .max_by_key(|&i| {
                let w = &self.waiting[i];
                (w.class(), self.rule.rank(&w.frame, w.on_tai, w.due, w.arrival, now))
            });
        if let Some(i) = chosen {
            let w = self.waiting.remove(i);
            self.rule.serve(&w.frame, w.due, now);
            let overdue = w.overdue(now);
            // fq sends what it has, however late; etf drops.
            let counts = w.overrun_counts && (w.on_tai || w.frame.late == LatePolicy::Drop);
            if counts && overdue > i128::from(w.frame.overrun_limit.get().max(0)) {
                return Decision::Drop { frame: w.frame, reason: DropReason::Overrun };
            }
            if w.deadline.is_some_and(|(on_tai, last)| clock(now, on_tai) > last) {
                return Decision::Drop { frame: w.frame, reason: DropReason::Overrun };
            }
            let overrun = Nanos::new(i64::try_from(overdue).unwrap_or(i64::MAX));
            return Decision::Transmit { frame: w.frame, overrun, late: w.late, window: None };
        }
        // Nothing is due: the soonest, and of those the one that would be chosen at that instant.
        let first = self.waiting.iter().filter(|w| self.is_first(w));
        let next = first.max_by_key(|w| (w.overdue(now), w.class(), std::cmp::Reverse(w.arrival)));
        match next {
            None => Decision::Idle,
            Some(w) => {
                let due = u64::try_from(w.due).unwrap();
                let at = if w.on_tai {
                    TxTime::Tai(Tai::from_nanos(due))
                } else {
                    TxTime::Monotonic(Monotonic::from_nanos(due))
                };
                Decision::WakeAt { at, next: w.frame.id }
            }
        }
    }

    pub(crate) fn remove(&mut self, predicate: &mut dyn FnMut(&Frame) -> bool, out: &mut dyn FnMut(Frame)) {
        let mut kept = Vec::new();
        for w in self.waiting.drain(..) {
            if predicate(&w.frame) { out(w.frame) } else { kept.push(w) }
        }
        self.waiting = kept;
    }
}
