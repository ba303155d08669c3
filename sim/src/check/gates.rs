// SPDX-License-Identifier: Apache-2.0
//! What the worker says about its gates (12.29) equals what was asked for and what adding up intervals gives.

use ktsnd::worker::GateView;

use crate::world::World;

/// The worker's answer, long after the last change: the list that was sent last is in force, and none waits.
pub fn looked_at(world: &mut World, view: &GateView) {
    let Some(sent) = world.ledger.schedules.last() else { return };
    if world.ledger.steps > 0 {
        // A clock that was set back may still be waiting for a base time.
        return;
    }
    let Some(gates) = &view.status else { return };
    let mut found = Vec::new();
    let asked = sent.schedule.admin(sent.base_time);
    if gates.config_pending {
        found.push("a change is still pending".to_owned());
    }
    for (name, port) in [("oper", gates.oper.as_deref()), ("admin", gates.admin.as_deref())] {
        if port != Some(&asked) {
            found.push(format!("{name} is {port:?}, but {asked:?} was sent"));
        }
    }
    let tai = view.at.tai.as_nanos();
    let states = (0..8u8)
        .filter(|class| sent.repeated().open_for(*class, tai).is_some())
        .fold(0, |bits, class| bits | 1 << class);
    if gates.oper_gate_states.bits() != states {
        let said = gates.oper_gate_states.bits();
        found.push(format!("gate states are {said:08b} at {tai}, but {states:08b} is true"));
    }
    let change_at = gates.config_change_time.map_or(0, ktsn_time::Tai::as_nanos);
    let phase = change_at.wrapping_sub(sent.base_time) % sent.schedule.cycle_time();
    if change_at < sent.base_time || change_at > tai || phase != 0 {
        found.push(format!(
            "config change time {change_at} is no cycle's start of base time {}",
            sent.base_time
        ));
    }
    let at = world.clocks.at();
    for detail in found {
        world.ledger.violated("counters", at, format!("gates: {detail}"));
    }
}
