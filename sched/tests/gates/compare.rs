// SPDX-License-Identifier: Apache-2.0
//! The engine against the reference in random worlds: every answer and every status.

use crate::cases;
use crate::engine::time_aware;
use crate::port::{Port, Setup};
use crate::reference::Reference;
use crate::world::{
    Event, World, advance, any_world, begin, big_world, shaped_world, steady_world, step_tai,
};
use ktsn_sched::{Decision, TimeAware};
use ktsn_time::Now;
use proptest::prelude::*;

/// An engine and a reference to which the same happens.
pub(crate) struct Pair {
    pub(crate) engine: TimeAware,
    pub(crate) reference: Reference,
}

impl Pair {
    pub(crate) fn new(setup: &Setup) -> Self {
        let reference = Reference::new(setup.capacity, setup.link_speed, setup.hand_over, setup.classes);
        Self { engine: time_aware(setup), reference }
    }

    /// `Err` shows where they differ.
    fn same<T: PartialEq + std::fmt::Debug>(at: Now, ours: &T, wanted: &T) -> Result<(), String> {
        if ours == wanted { Ok(()) } else { Err(format!("{at:?}\n engine {ours:?}\n wanted {wanted:?}")) }
    }

    pub(crate) fn decide(&mut self, at: Now) -> Result<Decision, String> {
        let (decision, wanted) = (Port::decide(&mut self.engine, at), self.reference.wanted(at));
        if wanted.allows(&decision, at) {
            return Ok(decision);
        }
        Err(format!("{at:?}\n engine {decision:?}\n wanted {wanted:?}"))
    }

    pub(crate) fn decide_all(&mut self, at: Now) -> Result<Decision, String> {
        loop {
            let decision = self.decide(at)?;
            if matches!(decision, Decision::WakeAt { .. } | Decision::Idle) {
                return Ok(decision);
            }
        }
    }

    pub(crate) fn status(&mut self, at: Now) -> Result<(), String> {
        Self::same(at, &Port::status(&mut self.engine, at), &self.reference.observe(at))?;
        Self::same(at, &Port::len(&self.engine), &Port::len(&self.reference))
    }

    /// Lets `event` happen to both.
    pub(crate) fn meet(
        &mut self,
        id: usize,
        event: &Event,
        at: &mut Now,
        wake_in: &mut u64,
    ) -> Result<(), String> {
        let both: [&mut dyn Port; 2] = [&mut self.engine, &mut self.reference];
        match event {
            Event::Offer(sent) => {
                let frame = sent.frame(id as u64, *at);
                let [ours, wanted] = both.map(|port| port.offer(frame, *at));
                Self::same(*at, &ours, &wanted)?;
            }
            Event::Decide | Event::DecideAll => {
                let decision =
                    if matches!(event, Event::Decide) { self.decide(*at) } else { self.decide_all(*at) }?;
                if let Decision::WakeAt { at: wake_at, .. } = decision {
                    *wake_in = wake_at.ahead_of(*at).get().max(0).unsigned_abs();
                }
            }
            Event::Remove(attachment) => {
                let [ours, wanted] = both.map(|port| port.remove_attachment(*attachment));
                Self::same(*at, &ours, &wanted)?;
            }
            Event::Configure(list) => {
                let admin = list.admin(*at);
                both.into_iter().for_each(|port| port.set_admin(&admin, *at));
            }
            Event::HandOver(span) => both.into_iter().for_each(|port| port.set_hand_over(*span)),
            Event::LinkSpeed(speed) => both.into_iter().for_each(|port| port.set_link_speed(*speed)),
            Event::Classes(classes) => both.into_iter().for_each(|port| port.set_classes(**classes)),
            Event::Advance(span) => advance(at, *span),
            Event::Sleep => advance(at, std::mem::take(wake_in)),
            Event::StepTai(span) => step_tai(at, *span),
        }
        self.status(*at)
    }
}

fn agrees(world: &World) -> Result<(), TestCaseError> {
    let (mut pair, mut at, mut wake_in) = (Pair::new(&world.setup), begin(), 0);
    for (id, event) in world.events.iter().enumerate() {
        let met = pair.meet(id, event, &mut at, &mut wake_in);
        met.map_err(|difference| TestCaseError::fail(format!("event {id}: {difference}")))?;
    }
    Ok(())
}

#[test]
fn agrees_with_the_reference_whatever_happens() {
    cases::check(2, any_world(), |world| agrees(&world));
}

#[test]
fn agrees_with_the_reference_while_clocks_are_steady() {
    cases::check(4, steady_world(), |world| agrees(&world));
}

#[test]
fn agrees_with_the_reference_at_real_sizes() {
    cases::check(4, big_world(), |world| agrees(&world));
}

#[test]
fn clause_8_6_8_2_agrees_with_the_reference_where_classes_have_credit() {
    cases::check(10, shaped_world(), |world| agrees(&world));
}
