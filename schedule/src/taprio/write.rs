// SPDX-License-Identifier: Apache-2.0
//! From a schedule to a `tc` command, or every reason why there is none that says the same.

use std::fmt::Write as _;

use ktsn_model::{GateOperation, GateStates, Priority, TrafficClass};

use super::{
    COMMENT, CYCLE_NANOS_MAX, DEVICE_EXPECTED, HANDLE_EXPECTED, PARENT_EXPECTED, RULE, is_device,
    message_octets, normal_handle, refusals,
};
use crate::fault::{Fault, Position};
use crate::schedule::{Schedule, Taprio};
use crate::units::show_span;
use crate::write::about_lines;

/// Writes the command, one option a line.
pub(crate) fn write(schedule: &Schedule) -> Result<String, Vec<Fault>> {
    let default = Taprio::default();
    let taprio = schedule.taprio.as_ref().unwrap_or(&default);
    let faults = inexpressible(schedule, taprio);
    if !faults.is_empty() {
        return Err(faults);
    }
    let mut text = String::new();
    for line in about_lines(schedule) {
        put(&mut text, format_args!("{COMMENT}{line}\n"));
    }
    put(&mut text, format_args!("tc qdisc replace dev {}", taprio.device.as_deref().unwrap_or_default()));
    put(&mut text, format_args!(" parent {}", taprio.parent));
    if let Some(handle) = &taprio.handle {
        put(&mut text, format_args!(" handle {handle}"));
    }
    if let Some(stab) = &taprio.stab {
        put(&mut text, format_args!(" stab {stab}"));
    }
    text.push_str(" taprio");
    for option in options(schedule, taprio) {
        text.push_str(" \\\n    ");
        text.push_str(&option);
    }
    text.push('\n');
    Ok(text)
}

fn put(text: &mut String, what: std::fmt::Arguments<'_>) {
    // A String takes everything.
    let _ = text.write_fmt(what);
}

fn options(schedule: &Schedule, taprio: &Taprio) -> Vec<String> {
    let admin = &schedule.admin;
    let mut options = Vec::new();
    if let Some(num_tc) = taprio.num_tc {
        options.push(format!("num_tc {num_tc}"));
    }
    if taprio.num_tc.is_some() {
        let map = schedule.priority_map.unwrap_or_default();
        let classes = (0..16).map(|priority| map.class(Priority::capped(priority)).get());
        options.push(format!("map {}", joined(classes)));
    }
    if !taprio.queues.is_empty() {
        let ranges = taprio.queues.iter().map(|(count, offset)| format!("{count}@{offset}"));
        options.push(format!("queues {}", joined(ranges)));
    }
    options.push(format!("base-time {}", admin.base_time.as_nanos()));
    for entry in &admin.control_list {
        let command = command(entry.operation);
        options.push(format!("sched-entry {command} {:02x} {}", entry.states.bits(), entry.interval.get()));
    }
    if writes_cycle(schedule) {
        options.push(format!("cycle-time {}", admin.cycle_time.get()));
    }
    if admin.cycle_time_extension.get() != 0 {
        options.push(format!("cycle-time-extension {}", admin.cycle_time_extension.get()));
    }
    if let Some(last) = schedule.queue_max_sdu.iter().rposition(Option::is_some) {
        let limits = schedule.queue_max_sdu[..=last].iter().map(|limit| limit.unwrap_or_default());
        options.push(format!("max-sdu {}", joined(limits)));
    }
    if !taprio.is_preemptible.is_empty() {
        options.push(format!(
            "fp {}",
            joined(taprio.is_preemptible.iter().map(|is| if *is { 'P' } else { 'E' }))
        ));
    }
    if let Some(flags) = taprio.flags {
        options.push(format!("flags {flags:#x}"));
    }
    if let Some(delay) = taprio.txtime_delay {
        options.push(format!("txtime-delay {delay}"));
    }
    if let Some(clock) = taprio.clock {
        options.push(format!("clockid {}", clock.word()));
    }
    options
}

fn joined<T: ToString>(items: impl Iterator<Item = T>) -> String {
    items.map(|item| item.to_string()).collect::<Vec<_>>().join(" ")
}

const fn command(operation: GateOperation) -> &'static str {
    match operation {
        GateOperation::SetGateStates => "S",
        GateOperation::SetAndHoldMac => "H",
        GateOperation::SetAndReleaseMac => "R",
    }
}

fn limits_count(schedule: &Schedule) -> usize {
    schedule.queue_max_sdu.iter().rposition(Option::is_some).map_or(0, |last| last + 1)
}

/// The cycle stands in the command, unless it is the sum of the intervals and tc has no room for it.
fn writes_cycle(schedule: &Schedule) -> bool {
    let sum: i128 = schedule.admin.control_list.iter().map(|entry| i128::from(entry.interval.get())).sum();
    sum != i128::from(schedule.admin.cycle_time.get())
        || message_octets(schedule, limits_count(schedule), true).is_ok()
}

/// Everything that a command cannot say, or that tc and Linux refuse.
fn inexpressible(schedule: &Schedule, taprio: &Taprio) -> Vec<Fault> {
    let admin = &schedule.admin;
    let nowhere = Position::NOWHERE;
    let mut faults = Vec::new();
    let mut fault = |path: &str, value: String, expected: &str| {
        faults.push(Fault::new(nowhere, path, value, expected, RULE));
    };
    if !admin.gate_enabled {
        fault(
            "gate-enabled",
            "false".into(),
            "true: a command cannot say that gates are disabled (tc qdisc del)",
        );
    }
    if admin.gate_states != GateStates::ALL_OPEN {
        let value = format!("{:#04x}", admin.gate_states.bits());
        fault("admin-gate-states", value, "0xff: a command cannot say the states before the first cycle");
    }
    if admin.control_list.is_empty() {
        fault("admin-control-list", "an empty list".into(), "at least one entry");
    }
    for (index, entry) in admin.control_list.iter().enumerate() {
        if !(1..=CYCLE_NANOS_MAX).contains(&entry.interval.get()) {
            let path = format!("admin-control-list[{index}].time-interval-value");
            fault(
                &path,
                show_span(entry.interval.get()),
                "more than 0 ns, at most 2147483647 ns: Linux takes no longer cycle",
            );
        }
    }
    if !(1..=CYCLE_NANOS_MAX).contains(&admin.cycle_time.get()) {
        let expected = "at most 2147483647 ns: Linux takes no longer cycle";
        fault("admin-cycle-time", show_span(admin.cycle_time.get()), expected);
    }
    if i64::try_from(admin.base_time.as_nanos()).is_err() {
        fault("admin-base-time", admin.base_time.as_nanos().to_string(), "at most 2^63 - 1 ns");
    }
    match &taprio.device {
        None => fault("taprio.device", "nothing".into(), "the device of the command"),
        Some(device) if !is_device(device) => fault("taprio.device", device.clone(), DEVICE_EXPECTED),
        Some(_) => {}
    }
    if taprio.parent != "root" {
        fault("taprio.parent", taprio.parent.clone(), PARENT_EXPECTED);
    }
    if let Some(handle) = taprio.handle.as_ref().filter(|handle| normal_handle(handle).flatten().is_none()) {
        fault("taprio.handle", handle.clone(), HANDLE_EXPECTED);
    }
    if taprio.num_tc.is_none() && schedule.priority_map.is_some() {
        fault("taprio.num-tc", "nothing".to_owned(), "the number of classes: tc ignores a map without it");
    }
    for (leaf, value, expected) in refusals(taprio) {
        fault(&format!("taprio.{leaf}"), value, &expected);
    }
    let room = message_octets(schedule, limits_count(schedule), writes_cycle(schedule));
    faults.extend(room.err().map(|fault| Fault { path: "admin-control-list".to_owned(), ..fault }));
    let mut fault = |path: &str, value: String, expected: &str| {
        faults.push(Fault::new(nowhere, path, value, expected, RULE));
    };
    for (option, value, expected) in beyond_num_tc(schedule, taprio.num_tc) {
        let leaf = if option == "map" { "priority-map" } else { "queue-max-sdu-table" };
        fault(leaf, value, &expected);
    }
    faults
}

/// Classes that the command speaks of and does not have: (option, value, what was expected).
fn beyond_num_tc(schedule: &Schedule, num_tc: Option<u8>) -> Vec<(&'static str, String, String)> {
    let Some(num_tc) = num_tc else { return Vec::new() };
    let expected = format!("classes below num_tc {num_tc}");
    let mut found = Vec::new();
    let map = schedule.priority_map.unwrap_or_default();
    let classes = (0..16).map(|priority| map.class(Priority::capped(priority)));
    if let Some(class) = classes.map(TrafficClass::get).max().filter(|class| *class >= num_tc) {
        found.push(("map", format!("class {class}"), expected.clone()));
    }
    if let Some(class) = schedule.queue_max_sdu.iter().rposition(Option::is_some)
        && class >= usize::from(num_tc)
    {
        found.push(("max-sdu", format!("class {class}"), expected));
    }
    found
}
