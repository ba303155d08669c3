// SPDX-License-Identifier: Apache-2.0
//! From the tree of a YAML or JSON text to a schedule. Every leaf is looked at, whatever was wrong before it.

mod gates;
mod json;
mod leaf;

use ktsn_model::PriorityMap;
use ktsn_time::Nanos;

use crate::fault::{Fault, Position, syntax};
use crate::limits::{DESCRIPTION_CHARS_MAX, NAME_CHARS_MAX};
use crate::schedule::{CLASSES, CLOCK_EXPECTED, CLOCK_RULE, Clock, Schedule, Taprio};
use crate::taprio;
use crate::tree::{self, Node};
use crate::units::{self, Number};
use leaf::{FORMAT, Fields, Found, Leaf};

/// The leaves of a schedule.
const LEAVES: &[&str] = &[
    "name",
    "description",
    "link-speed",
    "mtu",
    "hand-over",
    "priority-map",
    "class-names",
    "gate-parameter-table",
    "taprio",
];

/// Those of them that a command's comments say.
const ABOUT_LEAVES: &[&str] = &["name", "description", "link-speed", "mtu", "hand-over", "class-names"];

const LINK_SPEED_EXPECTED: &str = "a link speed from 1k to 10T, in bit/s or like 1G";
const LINK_SPEED: Number = Number::new(units::speed, 1_000, 10_000_000_000_000, LINK_SPEED_EXPECTED, FORMAT);
const MTU: Number = Number::new(units::integer, 1, 65_535, "1 to 65535 octets", FORMAT);
const HAND_OVER_EXPECTED: &str = "a span from 0 to 10 s, in ns or like 20us";
const HAND_OVER: Number = Number::new(units::span, 0, 10_000_000_000, HAND_OVER_EXPECTED, FORMAT);
const CLASS: Number = Number::new(units::integer, 0, 7, "a traffic class, 0 to 7", "802.1Q-2022 8.6.6");

/// Reads YAML.
pub(crate) fn yaml(text: &str) -> Result<Schedule, Vec<Fault>> {
    schedule(&tree::parse(text).map_err(|fault| vec![fault])?)
}

/// Reads JSON: checked as JSON first, since YAML accepts more.
pub(crate) fn json(text: &str) -> Result<Schedule, Vec<Fault>> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    if let Err(error) = serde_json::from_str::<serde::de::IgnoredAny>(text) {
        let at = Position { line: error.line().max(1), column: error.column().max(1) };
        let what = error.to_string();
        // The place stands before it already.
        let what = what.split(" at line ").next().unwrap_or_default();
        return Err(vec![syntax(at, what, "JSON", "RFC 8259")]);
    }
    yaml(&json::without_pairs(text))
}

/// Reads what KTSN says beside the gates from YAML of its own; returns the faults.
pub(crate) fn about(text: &str, schedule: &mut Schedule) -> Vec<Fault> {
    if text.trim().is_empty() {
        return Vec::new();
    }
    let root = match tree::parse(text) {
        Ok(root) => root,
        Err(fault) => return vec![fault],
    };
    let found = Found::default();
    if let Some(fields) = Leaf::root(&root, &found).fields(ABOUT_LEAVES) {
        read_about(&fields, schedule);
    }
    found.take()
}

fn schedule(root: &Node) -> Result<Schedule, Vec<Fault>> {
    let found = Found::default();
    let mut schedule = Schedule::default();
    if let Some(fields) = Leaf::root(root, &found).fields(LEAVES) {
        read_about(&fields, &mut schedule);
        schedule.priority_map = fields.get("priority-map").and_then(|leaf| priority_map(&leaf));
        let expected = "the mapping of the gate parameters";
        if let Some(table) = fields.required("gate-parameter-table", expected, "802.1Q-2022 12.29.1") {
            gates::gate_parameter_table(table, &mut schedule);
        }
        schedule.taprio = fields.get("taprio").and_then(read_taprio);
    }
    let faults = found.take();
    if faults.is_empty() { Ok(schedule) } else { Err(faults) }
}

/// What people say about the schedule.
fn read_about(fields: &Fields<'_>, schedule: &mut Schedule) {
    schedule.name = fields.text("name", NAME_CHARS_MAX);
    schedule.description = fields.text("description", DESCRIPTION_CHARS_MAX);
    schedule.link_speed = fields.number("link-speed", &LINK_SPEED);
    schedule.mtu = fields.number("mtu", &MTU);
    schedule.hand_over = fields.number("hand-over", &HAND_OVER).map(Nanos::new);
    if let Some(names) = fields.get("class-names") {
        let Some(names) = names.fields(&CLASSES) else { return };
        schedule.class_names = CLASSES.map(|class| names.text(class, NAME_CHARS_MAX));
    }
}

fn priority_map(leaf: &Leaf<'_>) -> Option<PriorityMap> {
    let items = leaf.items("16 traffic classes, one a priority")?;
    if items.len() != 16 {
        leaf.fault(items.len(), "16 traffic classes, one a priority from 0 to 15", FORMAT);
    }
    let classes: Vec<Option<u8>> = items.iter().take(16).map(|item| item.number(&CLASS)).collect();
    let classes: Vec<u8> = classes.into_iter().collect::<Option<_>>()?;
    if items.len() == 16 { PriorityMap::new(classes.try_into().ok()?).ok() } else { None }
}

/// What only a `tc` command says.
fn read_taprio(leaf: Leaf<'_>) -> Option<Taprio> {
    const LEAVES: &[&str] =
        &["device", "parent", "handle", "stab", "num-tc", "queues", "clockid", "flags", "txtime-delay", "fp"];
    let fields = leaf.fields(LEAVES)?;
    let items = |name, what| fields.get(name).and_then(|leaf: Leaf<'_>| leaf.items(what)).unwrap_or_default();
    let clock = fields.get("clockid");
    if let Some(clock) = &clock {
        let is_clock = |text: &str| (text == Clock::Tai.word()).then_some(());
        clock.word(is_clock, CLOCK_EXPECTED, CLOCK_RULE);
    }
    // Numbers are written with units here, other than in a command.
    let number = |name, number: Number| fields.get(name)?.number(&Number { parse: units::span, ..number });
    let preemptible = |text: &str| matches!(text, "E" | "P").then_some(text == "P");
    let read = Taprio {
        device: fields.get("device").and_then(|leaf| {
            let device = |text: &str| taprio::is_device(text).then(|| text.to_owned());
            leaf.word(device, taprio::DEVICE_EXPECTED, taprio::RULE)
        }),
        parent: fields
            .get("parent")
            .and_then(|leaf| {
                let root = |text: &str| (text == "root").then(|| text.to_owned());
                leaf.word(root, taprio::PARENT_EXPECTED, taprio::RULE)
            })
            .unwrap_or_else(|| Taprio::default().parent),
        handle: fields.get("handle").and_then(|leaf| {
            let handle = |text: &str| taprio::normal_handle(text).flatten().filter(|usual| usual == text);
            leaf.word(handle, taprio::HANDLE_EXPECTED, taprio::RULE)
        }),
        stab: fields.get("stab").and_then(|leaf| {
            let stab = |text: &str| taprio::check_stab(&text.split_whitespace().collect::<Vec<_>>()).ok();
            leaf.word(stab, taprio::STAB_EXPECTED, taprio::RULE)
        }),
        num_tc: number("num-tc", taprio::NUM_TC).map(|count: i128| count as u8),
        queues: items("queues", "queue ranges like 1@0")
            .iter()
            .filter_map(|item| item.word(taprio::queue_range, taprio::QUEUES_EXPECTED, taprio::RULE))
            .collect(),
        clock: clock.is_some().then_some(Clock::Tai),
        flags: number("flags", taprio::FLAGS).map(|flags| flags as u32),
        txtime_delay: number("txtime-delay", taprio::TXTIME_DELAY).map(|delay| delay as u32),
        is_preemptible: items("fp", "E or P, one a class")
            .iter()
            .filter_map(|item| item.word(preemptible, "E or P", taprio::RULE))
            .collect(),
    };
    // The rules that a command is held to as well; a value that could not be read contradicts nothing.
    let is_known = |name, is_read| fields.get(name).is_none() || is_read;
    let known = taprio::Known {
        num_tc: is_known("num-tc", read.num_tc.is_some()),
        flags: is_known("flags", read.flags.is_some()),
    };
    for (name, value, expected) in taprio::contradictions(&read, known) {
        fields.fault(name, value, expected, taprio::RULE);
    }
    Some(read)
}
