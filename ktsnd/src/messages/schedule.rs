// SPDX-License-Identifier: Apache-2.0
//! The state of a port's gates, as far as the node knows it, and with what its worker answers.

use std::sync::atomic::Ordering::Relaxed;

use ktsn_model::AdminPort;
use ktsn_proto::v1;

use super::queue_max_sdu_messages;
use super::statistics::all;
use crate::config::Schedule;
use crate::node::Node;
use crate::worker::{GateView, HAND_OVER_AT_START, tai_now};

/// What a schedule is called.
pub(crate) fn name_of(schedule: &Schedule) -> &str {
    schedule.name.as_deref().unwrap_or("applied")
}

/// What is known without the worker.
pub(crate) fn asked_state(node: &Node, device: &str) -> v1::ScheduleState {
    let config = node.intent.port(device);
    let schedule = node.intent.schedule_of(device);
    let open = node.open_index(device).and_then(|index| node.ports.get(index));
    let limits = config.queue_max_sdu(schedule);
    let stats = open.map(|p| &p.stats);
    v1::ScheduleState {
        port: device.to_owned(),
        name: schedule.map(|s| name_of(s).to_owned()).unwrap_or_default(),
        is_open: open.is_some(),
        oper_gate_states: 255,
        admin: schedule.map(|s| (&s.admin).into()),
        config_pending: open.is_none() && schedule.is_some(),
        current_time: tai_now().as_nanos(),
        tick_granularity: tick_granularity(),
        supported_list_max: AdminPort::ENTRIES_MAX as u64,
        supported_cycle_max: AdminPort::CYCLE_TIME_MAX.get().unsigned_abs(),
        supported_interval_max: AdminPort::CYCLE_TIME_MAX.get().unsigned_abs(),
        link_speed: open.map_or(config.link_speed.unwrap_or(0), |p| p.link_speed),
        hand_over_ns: stats.map_or(HAND_OVER_AT_START.get().unsigned_abs(), |s| s.hand_over_ns.load(Relaxed)),
        queue_max_sdu: queue_max_sdu_messages(&limits),
        transmission_overrun: stats.map_or_else(Vec::new, |s| all(&s.transmission_overrun)),
        frames: stats.map_or_else(Vec::new, |s| all(&s.frames)),
        ..v1::ScheduleState::default()
    }
}

/// Clock steps that the gates tell apart, in tenths of a nanosecond.
fn tick_granularity() -> u64 {
    let resolution = rustix::time::clock_getres(rustix::time::ClockId::Monotonic);
    u64::try_from(resolution.tv_nsec).map_or(10, |nanos| nanos.max(1) * 10)
}

/// Fills in what the worker answers.
pub(crate) fn fill_state(state: &mut v1::ScheduleState, view: &GateView) {
    let Some(gates) = &view.status else { return };
    let oper = gates.oper.as_deref();
    state.current_time = view.at.tai.as_nanos();
    state.oper = oper.map(Into::into);
    state.admin = gates.admin.as_deref().map(Into::into).or_else(|| state.admin.take());
    state.gate_enabled = oper.is_some_and(|oper| oper.gate_enabled);
    state.oper_gate_states = u32::from(gates.oper_gate_states.bits());
    state.config_pending = gates.config_pending;
    state.config_change_time = gates.config_change_time.map_or(0, ktsn_time::Tai::as_nanos);
    state.config_change_error = gates.config_change_error;
}
