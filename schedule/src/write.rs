// SPDX-License-Identifier: Apache-2.0
//! A schedule as YAML and as JSON. Both say everything; numbers are the YANG leaves' (nanoseconds, octets, bit/s), so
//! that other tools can read them too.

use ktsn_model::{AdminPort, GateControlEntry, Priority};
use serde_json::Value;

use crate::schedule::{CLASSES, Schedule, Taprio};

/// A value of a document.
enum Item {
    Leaf { json: String, yaml: String },
    Map(Fields),
    List(Vec<Fields>),
}

/// The leaves of a mapping, in the order in which people read them.
type Fields = Vec<(&'static str, Item)>;

/// A leaf that has the same form in JSON and YAML.
fn leaf(value: impl Into<Value>) -> Item {
    let json = value.into().to_string();
    Item::Leaf { yaml: json.clone(), json }
}

/// Gate states. They are hexadecimal in YAML: two digits are eight gates.
fn states(bits: u8) -> Item {
    Item::Leaf { json: bits.to_string(), yaml: format!("{bits:#04x}") }
}

/// A list of plain values in one line.
fn list<T: Into<Value>>(items: impl ExactSizeIterator<Item = T>) -> Option<Item> {
    (items.len() > 0).then(|| leaf(items.collect::<Vec<T>>()))
}

/// The leaves that are there.
fn present<const N: usize>(leaves: [(&'static str, Option<Item>); N]) -> Fields {
    leaves.into_iter().filter_map(|(name, item)| Some((name, item?))).collect()
}

/// What KTSN says beside the gates, without the priority map.
fn about(schedule: &Schedule) -> Fields {
    let names = CLASSES.into_iter().zip(&schedule.class_names);
    let names: Fields = names.filter_map(|(class, name)| Some((class, leaf(name.as_deref()?)))).collect();
    present([
        ("name", schedule.name.as_deref().map(leaf)),
        ("description", schedule.description.as_deref().map(leaf)),
        ("link-speed", schedule.link_speed.map(leaf)),
        ("mtu", schedule.mtu.map(leaf)),
        ("hand-over", schedule.hand_over.map(|span| leaf(span.get()))),
        ("class-names", (!names.is_empty()).then_some(Item::Map(names))),
    ])
}

/// The leaves about a schedule as lines of JSON, which is YAML too.
pub(crate) fn about_lines(schedule: &Schedule) -> impl Iterator<Item = String> {
    about(schedule).into_iter().map(|(name, item)| format!("{name}: {}", json_item(&item, 4)))
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

fn document(schedule: &Schedule) -> Fields {
    let class = |map: ktsn_model::PriorityMap, priority| map.class(Priority::capped(priority)).get();
    let map = schedule.priority_map.map(|map| leaf((0..16).map(|p| class(map, p)).collect::<Vec<_>>()));
    let mut fields = about(schedule);
    fields.extend(present([
        ("priority-map", map),
        ("gate-parameter-table", Some(Item::Map(gate_parameter_table(schedule)))),
        ("taprio", schedule.taprio.as_ref().map(|of| Item::Map(taprio(of)))),
    ]));
    fields
}

fn gate_parameter_table(schedule: &Schedule) -> Fields {
    let admin = &schedule.admin;
    let base = admin.base_time.as_nanos();
    let base = vec![("seconds", leaf(base / 1_000_000_000)), ("nanoseconds", leaf(base % 1_000_000_000))];
    let (numerator, denominator) = cycle_time(admin);
    let cycle = vec![("numerator", leaf(numerator)), ("denominator", leaf(denominator))];
    let entry = |(index, entry): (usize, &GateControlEntry)| {
        let word = entry.operation.word();
        vec![
            ("index", leaf(index)),
            ("operation-name", Item::Leaf { json: format!("\"{word}\""), yaml: word.to_owned() }),
            ("gate-states-value", states(entry.states.bits())),
            ("time-interval-value", leaf(entry.interval.get())),
        ]
    };
    let entries = admin.control_list.iter().enumerate().map(entry).collect();
    let limit = |(class, octets): (usize, &Option<u32>)| {
        Some(vec![("traffic-class", leaf(class)), ("queue-max-sdu", leaf((*octets)?))])
    };
    let limits: Vec<Fields> = schedule.queue_max_sdu.iter().enumerate().filter_map(limit).collect();
    present([
        ("gate-enabled", Some(leaf(admin.gate_enabled))),
        ("admin-gate-states", Some(states(admin.gate_states.bits()))),
        ("admin-base-time", Some(Item::Map(base))),
        ("admin-cycle-time", Some(Item::Map(cycle))),
        ("admin-cycle-time-extension", Some(leaf(admin.cycle_time_extension.get()))),
        ("admin-control-list", Some(Item::Map(vec![("gate-control-entry", Item::List(entries))]))),
        ("queue-max-sdu-table", (!limits.is_empty()).then_some(Item::List(limits))),
    ])
}

fn taprio(taprio: &Taprio) -> Fields {
    present([
        ("device", taprio.device.as_deref().map(leaf)),
        ("parent", Some(leaf(taprio.parent.as_str()))),
        ("handle", taprio.handle.as_deref().map(leaf)),
        ("num-tc", taprio.num_tc.map(leaf)),
        ("queues", list(taprio.queues.iter().map(|(count, offset)| format!("{count}@{offset}")))),
        ("stab", taprio.stab.as_deref().map(leaf)),
        ("clockid", taprio.clock.map(|clock| leaf(clock.word()))),
        ("flags", taprio.flags.map(leaf)),
        ("txtime-delay", taprio.txtime_delay.map(leaf)),
        ("fp", list(taprio.is_preemptible.iter().map(|is| if *is { "P" } else { "E" }))),
    ])
}

/// JSON. A mapping of plain values stands in one line.
pub(crate) fn json(schedule: &Schedule) -> String {
    format!("{}\n", json_map(&document(schedule), 2))
}

fn json_item(item: &Item, indent: usize) -> String {
    match item {
        Item::Leaf { json, .. } => json.clone(),
        Item::Map(fields) => json_map(fields, indent),
        Item::List(rows) if rows.is_empty() => "[]".to_owned(),
        Item::List(rows) => {
            let rows: Vec<String> = rows.iter().map(|row| json_map(row, indent + 2)).collect();
            lines(['[', ']'], &rows, indent)
        }
    }
}

fn json_map(fields: &Fields, indent: usize) -> String {
    let leaves = fields.iter().map(|(name, item)| format!("\"{name}\": {}", json_item(item, indent + 2)));
    let leaves: Vec<String> = leaves.collect();
    if fields.iter().all(|(_, item)| matches!(item, Item::Leaf { .. })) {
        return format!("{{ {} }}", leaves.join(", "));
    }
    lines(['{', '}'], &leaves, indent)
}

/// One item a line.
fn lines([open, close]: [char; 2], items: &[String], indent: usize) -> String {
    let pad = " ".repeat(indent);
    let items: Vec<String> = items.iter().map(|item| format!("{pad}{item}")).collect();
    format!("{open}\n{}\n{}{close}", items.join(",\n"), " ".repeat(indent - 2))
}

/// YAML.
pub(crate) fn yaml(schedule: &Schedule) -> String {
    let mut text = String::new();
    yaml_map(&document(schedule), 0, &mut text);
    text
}

fn yaml_map(fields: &Fields, indent: usize, text: &mut String) {
    for (name, item) in fields {
        text.push_str(&format!("{}{name}:", " ".repeat(indent)));
        match item {
            Item::Leaf { yaml, .. } => text.push_str(&format!(" {yaml}\n")),
            Item::Map(fields) => {
                text.push('\n');
                yaml_map(fields, indent + 2, text);
            }
            Item::List(rows) if rows.is_empty() => text.push_str(" []\n"),
            Item::List(rows) => {
                text.push('\n');
                for row in rows {
                    let dash = text.len() + indent + 2;
                    yaml_map(row, indent + 4, text);
                    text.replace_range(dash..=dash, "-");
                }
            }
        }
    }
}
