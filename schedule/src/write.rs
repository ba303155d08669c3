// SPDX-License-Identifier: Apache-2.0
//! A schedule as YAML and as JSON. Both say everything; numbers are the YANG leaves' (nanoseconds, octets, bit/s), so
//! that other tools can read them too.

use std::fmt::Write as _;

use ktsn_model::{AdminPort, Priority};
use serde_json::{Map, Value, json};

use crate::schedule::{Schedule, Taprio};

/// What KTSN says beside the gates, without the priority map: (leaf, value as JSON, which is YAML too).
pub(crate) fn about(schedule: &Schedule) -> Vec<(&'static str, Value)> {
    let mut about = Vec::new();
    about.extend(schedule.name.as_ref().map(|name| ("name", json!(name))));
    about.extend(schedule.description.as_ref().map(|text| ("description", json!(text))));
    about.extend(schedule.link_speed.map(|bits| ("link-speed", json!(bits))));
    about.extend(schedule.mtu.map(|octets| ("mtu", json!(octets))));
    about.extend(schedule.hand_over.map(|span| ("hand-over", json!(span.get()))));
    let mut names = Map::new();
    for (class, name) in schedule.class_names.iter().enumerate() {
        if let Some(name) = name {
            names.insert(class.to_string(), json!(name));
        }
    }
    if !names.is_empty() {
        about.push(("class-names", names.into()));
    }
    about
}

fn priorities(schedule: &Schedule) -> Option<Value> {
    let map = schedule.priority_map?;
    Some((0..16).map(|priority| json!(map.class(Priority::capped(priority)).get())).collect())
}

/// The cycle as a fraction of a second in lowest terms.
fn cycle_time(admin: &AdminPort) -> (i64, i64) {
    let (mut a, mut b) = (admin.cycle_time.get().unsigned_abs(), 1_000_000_000);
    while a != 0 {
        (a, b) = (b % a, a);
    }
    let divisor = b as i64;
    (admin.cycle_time.get() / divisor, 1_000_000_000 / divisor)
}

fn taprio(taprio: &Taprio) -> Vec<(&'static str, Value)> {
    let mut leaves = Vec::new();
    leaves.extend(taprio.device.as_ref().map(|device| ("device", json!(device))));
    leaves.push(("parent", json!(taprio.parent)));
    leaves.extend(taprio.handle.as_ref().map(|handle| ("handle", json!(handle))));
    leaves.extend(taprio.num_tc.map(|count| ("num-tc", json!(count))));
    if !taprio.queues.is_empty() {
        let ranges = taprio.queues.iter().map(|(count, offset)| json!(format!("{count}@{offset}")));
        leaves.push(("queues", ranges.collect()));
    }
    if taprio.is_clock_named {
        leaves.push(("clockid", json!(crate::taprio::CLOCK)));
    }
    leaves.extend(taprio.flags.map(|flags| ("flags", json!(flags))));
    leaves.extend(taprio.txtime_delay.map(|delay| ("txtime-delay", json!(delay))));
    if !taprio.is_preemptible.is_empty() {
        let classes = taprio.is_preemptible.iter().map(|is| json!(if *is { "P" } else { "E" }));
        leaves.push(("fp", classes.collect()));
    }
    leaves
}

/// JSON, in the order of the leaves.
pub(crate) fn json(schedule: &Schedule) -> String {
    let admin = &schedule.admin;
    let (numerator, denominator) = cycle_time(admin);
    let base = admin.base_time.as_nanos();
    let entries = admin.control_list.iter().enumerate().map(|(index, entry)| {
        pretty_line(&[
            ("index", json!(index)),
            ("operation-name", json!(entry.operation.word())),
            ("gate-states-value", json!(entry.states.bits())),
            ("time-interval-value", json!(entry.interval.get())),
        ])
    });
    let entries: Vec<String> = entries.collect();
    let limits = queue_max_sdu(schedule).map(|(class, octets)| {
        pretty_line(&[("traffic-class", json!(class)), ("queue-max-sdu", json!(octets))])
    });
    let mut table = vec![
        ("gate-enabled", json!(admin.gate_enabled).to_string()),
        ("admin-gate-states", json!(admin.gate_states.bits()).to_string()),
        (
            "admin-base-time",
            pretty_line(&[
                ("seconds", json!(base / 1_000_000_000)),
                ("nanoseconds", json!(base % 1_000_000_000)),
            ]),
        ),
        (
            "admin-cycle-time",
            pretty_line(&[("numerator", json!(numerator)), ("denominator", json!(denominator))]),
        ),
        ("admin-cycle-time-extension", json!(admin.cycle_time_extension.get()).to_string()),
        ("admin-control-list", format!("{{\n      \"gate-control-entry\": {}\n    }}", block(&entries, 8))),
    ];
    let limits: Vec<String> = limits.collect();
    if !limits.is_empty() {
        table.push(("queue-max-sdu-table", block(&limits, 6)));
    }
    let mut leaves: Vec<(&str, String)> =
        about(schedule).into_iter().map(|(leaf, value)| (leaf, value.to_string())).collect();
    leaves.extend(priorities(schedule).map(|map| ("priority-map", map.to_string())));
    leaves.push(("gate-parameter-table", object(&table, 4)));
    leaves.extend(schedule.taprio.as_ref().map(|of| ("taprio", pretty_line(&taprio(of)))));
    format!("{}\n", object(&leaves, 2))
}

/// One line: `{ "a": 1, "b": 2 }`.
fn pretty_line(leaves: &[(&str, Value)]) -> String {
    let leaves: Vec<String> = leaves.iter().map(|(leaf, value)| format!("\"{leaf}\": {value}")).collect();
    format!("{{ {} }}", leaves.join(", "))
}

/// One leaf a line.
fn object(leaves: &[(&str, String)], indent: usize) -> String {
    let pad = " ".repeat(indent);
    let leaves: Vec<String> =
        leaves.iter().map(|(leaf, value)| format!("{pad}\"{leaf}\": {value}")).collect();
    format!("{{\n{}\n{}}}", leaves.join(",\n"), " ".repeat(indent - 2))
}

/// One item a line.
fn block(items: &[String], indent: usize) -> String {
    if items.is_empty() {
        return "[]".into();
    }
    let pad = " ".repeat(indent);
    let lines: Vec<String> = items.iter().map(|item| format!("{pad}{item}")).collect();
    format!("[\n{}\n{}]", lines.join(",\n"), " ".repeat(indent - 2))
}

fn queue_max_sdu(schedule: &Schedule) -> impl Iterator<Item = (usize, u32)> {
    schedule.queue_max_sdu.iter().enumerate().filter_map(|(class, limit)| Some((class, (*limit)?)))
}

/// YAML. Gate states are hexadecimal: two digits are eight gates.
pub(crate) fn yaml(schedule: &Schedule) -> String {
    let admin = &schedule.admin;
    let mut text = String::new();
    let mut put = |line: std::fmt::Arguments<'_>| {
        // A String takes everything.
        let _ = writeln!(text, "{line}");
    };
    for (leaf, value) in about(schedule) {
        match value {
            Value::Object(names) => {
                put(format_args!("{leaf}:"));
                for (class, name) in names {
                    put(format_args!("  {class}: {name}"));
                }
            }
            value => put(format_args!("{leaf}: {value}")),
        }
    }
    if let Some(map) = priorities(schedule) {
        put(format_args!("priority-map: {map}"));
    }
    let (numerator, denominator) = cycle_time(admin);
    let base = admin.base_time.as_nanos();
    put(format_args!("gate-parameter-table:"));
    put(format_args!("  gate-enabled: {}", admin.gate_enabled));
    put(format_args!("  admin-gate-states: {:#04x}", admin.gate_states.bits()));
    put(format_args!("  admin-base-time:"));
    put(format_args!("    seconds: {}", base / 1_000_000_000));
    put(format_args!("    nanoseconds: {}", base % 1_000_000_000));
    put(format_args!("  admin-cycle-time:"));
    put(format_args!("    numerator: {numerator}"));
    put(format_args!("    denominator: {denominator}"));
    put(format_args!("  admin-cycle-time-extension: {}", admin.cycle_time_extension.get()));
    put(format_args!("  admin-control-list:"));
    let nothing = if admin.control_list.is_empty() { " []" } else { "" };
    put(format_args!("    gate-control-entry:{nothing}"));
    for (index, entry) in admin.control_list.iter().enumerate() {
        put(format_args!("      - index: {index}"));
        put(format_args!("        operation-name: {}", entry.operation.word()));
        put(format_args!("        gate-states-value: {:#04x}", entry.states.bits()));
        put(format_args!("        time-interval-value: {}", entry.interval.get()));
    }
    if queue_max_sdu(schedule).next().is_some() {
        put(format_args!("  queue-max-sdu-table:"));
    }
    for (class, octets) in queue_max_sdu(schedule) {
        put(format_args!("    - traffic-class: {class}"));
        put(format_args!("      queue-max-sdu: {octets}"));
    }
    if let Some(of) = &schedule.taprio {
        put(format_args!("taprio:"));
        for (leaf, value) in taprio(of) {
            put(format_args!("  {leaf}: {value}"));
        }
    }
    text
}
