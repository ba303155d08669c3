// SPDX-License-Identifier: Apache-2.0
//! From a schedule to a `tc` command, or every reason why there is none that says the same.

use std::fmt::Write as _;

use ktsn_model::{GateOperation, GateStates, Priority, TrafficClass};

use super::{CLOCK, COMMENT, Known, RULE, WORD_EXPECTED, contradictions, is_word};
use crate::fault::{Fault, Position};
use crate::read::admin_faults;
use crate::schedule::{Schedule, Taprio};
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
    if taprio.num_tc.is_some() || schedule.priority_map.is_some() {
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
        options.push(format!("sched-entry S {:02x} {}", entry.states.bits(), entry.interval.get()));
    }
    options.push(format!("cycle-time {}", admin.cycle_time.get()));
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
    if taprio.is_clock_named {
        options.push(format!("clockid {CLOCK}"));
    }
    options
}

fn joined<T: ToString>(items: impl Iterator<Item = T>) -> String {
    items.map(|item| item.to_string()).collect::<Vec<_>>().join(" ")
}

/// Everything that a command cannot say.
fn inexpressible(schedule: &Schedule, taprio: &Taprio) -> Vec<Fault> {
    let admin = &schedule.admin;
    let nowhere = Position::NOWHERE;
    let mut faults = admin_faults(admin, true, true, |fault| (nowhere, fault.leaf.to_owned()));
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
        if entry.operation != GateOperation::SetGateStates {
            let path = format!("admin-control-list[{index}].operation-name");
            fault(&path, entry.operation.word().into(), "set-gate-states: tc knows no other command");
        }
        if entry.interval.get() > i64::from(u32::MAX) {
            let path = format!("admin-control-list[{index}].time-interval-value");
            fault(
                &path,
                format!("{} ns", entry.interval.get()),
                "at most 4294967295 ns: tc has 32 bits for it",
            );
        }
    }
    match &taprio.device {
        None => fault("taprio.device", "nothing".into(), "the device of the command"),
        Some(device) if !is_word(device) => fault("taprio.device", device.clone(), WORD_EXPECTED),
        Some(_) => {}
    }
    for (leaf, word) in [("parent", Some(&taprio.parent)), ("handle", taprio.handle.as_ref())] {
        if let Some(word) = word.filter(|word| !is_word(word)) {
            fault(&format!("taprio.{leaf}"), word.clone(), WORD_EXPECTED);
        }
    }
    for (leaf, value, expected) in contradictions(taprio, Known { num_tc: true, flags: true }) {
        fault(&format!("taprio.{leaf}"), value, &expected);
    }
    for (option, value, expected) in beyond_num_tc(schedule, taprio.num_tc) {
        let leaf = if option == "map" { "priority-map" } else { "queue-max-sdu-table" };
        fault(leaf, value, &expected);
    }
    faults
}

/// Classes that the command speaks of and does not have: (option, value, what was expected).
pub(super) fn beyond_num_tc(schedule: &Schedule, num_tc: Option<u8>) -> Vec<(&'static str, String, String)> {
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
