// SPDX-License-Identifier: Apache-2.0
//! The credit of a port's shaped classes (802.1Q-2022 clause 8.6.8.2) under its gates.
//!
//! In: what is due, what was handed over, and the gates. Out: from when on a class has credit.
//!
//! Credit runs on the time of hand-overs, which lies the hand-over latency before the wire's; between two frames that
//! is the same. What happened since the last look is made up for from the head's due instant, so nothing has to be
//! called when a frame becomes due or a gate opens.

use super::{ClassOptions, Shaper};
use crate::credit::{Credit, CreditOptions};
use crate::gate::Gates;
use crate::queue::Head;
use ktsn_model::TrafficClass;
use ktsn_time::{Monotonic, Nanos, Now};

#[derive(Debug)]
pub(super) struct Shaping {
    credits: [Option<Credit>; TrafficClass::COUNT],
}

impl Shaping {
    pub(super) fn new(classes: &[ClassOptions; TrafficClass::COUNT]) -> Self {
        let mut shaping = Self { credits: [None; TrafficClass::COUNT] };
        shaping.set_classes(classes);
        shaping
    }

    /// A class that was shaped before keeps its credit.
    pub(super) fn set_classes(&mut self, classes: &[ClassOptions; TrafficClass::COUNT]) {
        for (credit, class) in self.credits.iter_mut().zip(classes) {
            match class.shaper {
                Shaper::StrictPriority => *credit = None,
                Shaper::CreditBased { idle_slope } => {
                    let options = CreditOptions::new(idle_slope);
                    credit.get_or_insert_with(|| Credit::new(options)).set_options(options);
                }
            }
        }
    }

    pub(super) fn is_shaped(&self, class: usize) -> bool {
        self.credits[class].is_some()
    }

    /// Bring the credit of `class` to `now`; `head` is its next frame.
    pub(super) fn update(&mut self, class: usize, head: Option<&Head>, now: Now, gates: &Gates) {
        let Some(credit) = &mut self.credits[class] else { return };
        let waits = head.is_some_and(|head| head.wait == 0);
        if let Some(head) = head.filter(|head| waits && !credit.is_waiting() && head.wait == 0) {
            let due = now.monotonic.as_nanos().saturating_sub(head.overdue);
            wait_from(credit, class, Monotonic::from_nanos(due), now, gates);
        }
        pass(credit, class, now.monotonic, now, gates);
        if !waits {
            // Perhaps not any more: TAI stepped back.
            credit.set_waiting(false);
        }
    }

    /// The head of `class` was dropped in the instant that its credit was last brought to; `next` is the head behind it. Credit is lost if
    /// time passes without one that is due.
    pub(super) fn drop_head(&mut self, class: usize, next: Option<&Head>) {
        if let Some(credit) = &mut self.credits[class] {
            credit.set_waiting(next.is_some_and(|next| next.wait == 0));
        }
    }

    /// Frames of `classes`, a bit each, were taken out at an instant that is not known. Whether others wait shows at the next look.
    pub(super) fn remove(&mut self, classes: u8) {
        for class in (0..TrafficClass::COUNT).filter(|class| classes >> class & 1 == 1) {
            self.drop_head(class, None);
        }
    }

    /// Time from `now` until `head`, which may leave in `ready` for all else, has credit. The credit has been brought to `now`.
    pub(super) fn allowed_after(
        &self,
        class: usize,
        head: &Head,
        ready: u64,
        now: Now,
        gates: &Gates,
    ) -> u64 {
        let Some(mut credit) = self.credits[class] else { return ready };
        let after = |span| Monotonic::from_nanos(now.monotonic.as_nanos().saturating_add(span));
        if !credit.is_waiting() {
            wait_from(&mut credit, class, after(head.wait), now, gates);
        }
        pass(&mut credit, class, after(ready), now, gates);
        let needed = credit.open_time_needed();
        if needed == Nanos::ZERO {
            return ready;
        }
        let from = credit.as_of().as_nanos().saturating_sub(now.monotonic.as_nanos()).max(ready);
        let at = now.tai.as_nanos().saturating_add(from);
        let open = gates.open_after(class, at, needed.get().unsigned_abs()).unwrap_or(u64::MAX);
        from.saturating_add(open)
    }

    /// A frame of `wire_octets` is handed over at `now` and occupies the link for `taken`; `next` is the head behind it.
    pub(super) fn transmit(
        &mut self,
        class: usize,
        next: Option<&Head>,
        now: Now,
        taken: u64,
        wire_octets: u32,
    ) {
        let Some(credit) = &mut self.credits[class] else { return };
        let end = Monotonic::from_nanos(now.monotonic.as_nanos().saturating_add(taken));
        credit.transmit(now.monotonic, end, wire_octets);
        credit.set_waiting(next.is_some_and(|next| next.wait <= taken));
    }
}

/// A frame waits from `due` on, where none did.
fn wait_from(credit: &mut Credit, class: usize, due: Monotonic, now: Now, gates: &Gates) {
    if due > credit.as_of() {
        pass(credit, class, due, now, gates);
    }
    credit.set_waiting(true);
}

/// Time passes up to `until`, with the gates as they are and the clocks as they stand at `now`.
fn pass(credit: &mut Credit, class: usize, until: Monotonic, now: Now, gates: &Gates) {
    if until <= credit.as_of() {
        return;
    }
    let span = until.as_nanos() - credit.as_of().as_nanos();
    let ago = i128::from(now.monotonic.as_nanos()) - i128::from(credit.as_of().as_nanos());
    let at = i128::from(now.tai.as_nanos()) - ago;
    // A credit that has never been looked at is older than TAI; nothing waited then.
    let at = u64::try_from(at.max(0)).unwrap_or(u64::MAX);
    let open = gates.open_time(class, at, span);
    credit.advance(until, Nanos::new(i64::try_from(open).unwrap_or(i64::MAX)));
}
