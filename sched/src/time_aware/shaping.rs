// SPDX-License-Identifier: Apache-2.0
//! The credit of a port's shaped classes (802.1Q-2022 clause 8.6.8.2) under its gates.
//!
//! In: heads with their due instants, hand-overs, and the gates. Out: the instant from which on a class has credit.
//!
//! Credit runs on the time of hand-overs, which lies the hand-over latency before the wire's; between two frames that
//! is the same. An update works out the time since the last update from the head's due instant, so no call is needed
//! when a frame becomes due or a gate opens.

use super::options::{ClassOptions, Shaper};
use crate::credit::Credit;
use crate::gate::Gates;
use crate::queue::Head;
use ktsn_model::TrafficClass;
use ktsn_time::{Monotonic, Nanos, Now, Span, Tai};

#[derive(Debug)]
pub(super) struct Shaping {
    credits: [Option<Credit>; TrafficClass::COUNT],
    /// Bit n: class n has a credit.
    shaped: u8,
}

impl Shaping {
    pub(super) fn new(classes: &[ClassOptions; TrafficClass::COUNT]) -> Self {
        let mut shaping = Self { credits: [None; TrafficClass::COUNT], shaped: 0 };
        shaping.set_classes(classes);
        shaping
    }

    /// Sets the shapers. A class that was shaped before keeps its credit.
    pub(super) fn set_classes(&mut self, classes: &[ClassOptions; TrafficClass::COUNT]) {
        self.shaped = 0;
        for (index, (credit, class)) in self.credits.iter_mut().zip(classes).enumerate() {
            match class.shaper {
                Shaper::StrictPriority => *credit = None,
                Shaper::CreditBased(options) => {
                    self.shaped |= 1 << index;
                    credit.get_or_insert_with(|| Credit::new(options)).set_options(options);
                }
            }
        }
    }

    pub(super) fn credit(&self, class: usize) -> Option<Credit> {
        self.credits[class]
    }

    pub(super) fn is_shaped(&self, class: usize) -> bool {
        self.shaped >> class & 1 == 1
    }

    pub(super) fn is_any(&self) -> bool {
        self.shaped != 0
    }

    /// Bring the credit of `class` to `now`; `head` is its next frame. Between the last call and now the class waited from the head's due
    /// instant on, as the clocks show that instant now: a step of TAI counts from the last call.
    pub(super) fn update(&mut self, class: usize, head: Option<&Head>, now: Now, gates: &Gates) {
        let Some(credit) = &mut self.credits[class] else { return };
        let due_head = head.filter(|head| head.wait == Span::ZERO);
        if let Some(head) = due_head {
            let due = now.monotonic.before(head.overdue);
            wait_from(credit, class, due, now, gates);
        }
        credit.set_waiting(due_head.is_some());
        pass(credit, class, now.monotonic, now, gates);
    }

    /// Time from `now` until `head` has credit; for everything else it may leave in `ready`. The credit has been brought to `now`.
    pub(super) fn allowed_after(
        &self,
        class: usize,
        head: &Head,
        ready: Span,
        now: Now,
        gates: &Gates,
    ) -> Span {
        let Some(mut credit) = self.credits[class] else { return ready };
        let after = |span| now.monotonic.after(span);
        if !credit.is_waiting() {
            wait_from(&mut credit, class, after(head.wait), now, gates);
        }
        pass(&mut credit, class, after(ready), now, gates);
        let needed = credit.open_time_needed();
        if needed == Nanos::ZERO {
            return ready;
        }
        let from = credit.as_of().span_since(now.monotonic).max(ready);
        let at = now.tai.after(from);
        let open = gates.open_after(class, at, Span::not_negative(needed)).unwrap_or(Span::ENDLESS);
        from.saturating_add(open)
    }

    /// A frame of `wire_octets` is handed over at `now` and occupies the link for `taken`.
    pub(super) fn transmit(&mut self, class: usize, now: Now, taken: Span, wire_octets: u32) {
        let Some(credit) = &mut self.credits[class] else { return };
        let end = now.monotonic.after(taken);
        credit.transmit(now.monotonic, end, wire_octets);
    }
}

/// A frame waits from `due` on, and none did before.
fn wait_from(credit: &mut Credit, class: usize, due: Monotonic, now: Now, gates: &Gates) {
    if due > credit.as_of() {
        credit.set_waiting(false);
        pass(credit, class, due, now, gates);
    }
    credit.set_waiting(true);
}

/// Time passes up to `until`, with the gates as they are and the clocks as they stand at `now`.
fn pass(credit: &mut Credit, class: usize, until: Monotonic, now: Now, gates: &Gates) {
    if until < credit.as_of() {
        return;
    }
    if until == credit.as_of() {
        // No time passes, but a class without a frame that waits loses what it has saved up.
        return credit.advance(until, Nanos::ZERO);
    }
    let span = until.span_since(credit.as_of());
    let ago = i128::from(now.monotonic.as_nanos()) - i128::from(credit.as_of().as_nanos());
    let at = i128::from(now.tai.as_nanos()) - ago;
    // A credit that has never been looked at is older than TAI; nothing waited then.
    let at = Tai::from_nanos(u64::try_from(at.max(0)).unwrap_or(u64::MAX));
    credit.advance(until, gates.open_time(class, at, span).to_nanos());
}
