// SPDX-License-Identifier: Apache-2.0
//! From the tree of a YAML or JSON text to a schedule. Every leaf is looked at, whatever was wrong before it.

mod gates;
mod json;
mod leaf;

use ktsn_model::{PriorityMap, TrafficClass};
use ktsn_time::Nanos;

use crate::fault::{Fault, Position, syntax};
use crate::limits::{DESCRIPTION_CHARS_MAX, NAME_CHARS_MAX};
use crate::schedule::{Schedule, Taprio};
use crate::tree::{self, Kind, Node};
use crate::{taprio, units};
use leaf::{FORMAT, Fields, Number, Reader, join};

pub(crate) use gates::{admin_faults, sum};

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

const LINK_SPEED: Number = Number {
    parse: units::speed,
    min: 1_000,
    max: 10_000_000_000_000,
    expected: "a link speed from 1k to 10T, in bit/s or like 1G",
    rule: FORMAT,
};
const MTU: Number =
    Number { parse: units::integer, min: 1, max: 65_535, expected: "1 to 65535 octets", rule: FORMAT };
const HAND_OVER: Number = Number {
    parse: units::span,
    min: 0,
    max: 10_000_000_000,
    expected: "a span from 0 to 10 s, in ns or like 20us",
    rule: FORMAT,
};
const CLASS: Number = Number {
    parse: units::integer,
    min: 0,
    max: 7,
    expected: "a traffic class, 0 to 7",
    rule: "802.1Q-2022 8.6.6",
};

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
    let unescaped = json::Unescaped::new(text);
    yaml(&unescaped.text).map_err(|mut faults| {
        faults.iter_mut().for_each(|fault| unescaped.restore(fault));
        faults
    })
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
    let mut reader = Reader::default();
    if let Some(fields) = reader.fields(&root, "", ABOUT_LEAVES) {
        reader.about(&fields, schedule);
    }
    reader.faults
}

fn schedule(root: &Node) -> Result<Schedule, Vec<Fault>> {
    let mut reader = Reader::default();
    let mut schedule = Schedule::default();
    if let Some(fields) = reader.fields(root, "", LEAVES) {
        reader.about(&fields, &mut schedule);
        let expected = "the mapping of the gate parameters";
        if let Some((node, path)) =
            reader.required(&fields, "gate-parameter-table", expected, "802.1Q-2022 12.29.1")
        {
            reader.gate_parameter_table(node, &path, &mut schedule);
        }
        if let Some((node, path)) = fields.get("taprio") {
            schedule.taprio = reader.taprio(node, &path);
        }
    }
    if reader.faults.is_empty() { Ok(schedule) } else { Err(reader.faults) }
}

impl Reader {
    /// What people say about the schedule.
    fn about(&mut self, fields: &Fields<'_>, schedule: &mut Schedule) {
        if let Some((node, path)) = fields.get("name") {
            schedule.name = self.text(node, &path, NAME_CHARS_MAX);
        }
        if let Some((node, path)) = fields.get("description") {
            schedule.description = self.text(node, &path, DESCRIPTION_CHARS_MAX);
        }
        if let Some((node, path)) = fields.get("link-speed") {
            schedule.link_speed = self.number(node, &path, &LINK_SPEED).map(|bits| bits as u64);
        }
        if let Some((node, path)) = fields.get("mtu") {
            schedule.mtu = self.number(node, &path, &MTU).map(|octets| octets as u32);
        }
        if let Some((node, path)) = fields.get("hand-over") {
            schedule.hand_over = self.number(node, &path, &HAND_OVER).map(|span| Nanos::new(span as i64));
        }
        if let Some((node, path)) = fields.get("priority-map") {
            schedule.priority_map = self.priority_map(node, &path);
        }
        if let Some((node, path)) = fields.get("class-names") {
            self.class_names(node, &path, schedule);
        }
    }

    fn priority_map(&mut self, node: &Node, path: &str) -> Option<PriorityMap> {
        let items = self.list(node, path, "16 traffic classes, one a priority")?;
        if items.len() != 16 {
            let expected = "16 traffic classes, one a priority from 0 to 15";
            self.fault(node.at, path, items.len(), expected, FORMAT);
        }
        let mut classes = [0; 16];
        let mut is_whole = items.len() == 16;
        for (index, item) in items.iter().enumerate().take(16) {
            match self.number(item, &format!("{path}[{index}]"), &CLASS) {
                Some(class) => classes[index] = class as u8,
                None => is_whole = false,
            }
        }
        if is_whole { PriorityMap::new(classes).ok() } else { None }
    }

    fn class_names(&mut self, node: &Node, path: &str, schedule: &mut Schedule) {
        const CLASSES: [&str; TrafficClass::COUNT] = ["0", "1", "2", "3", "4", "5", "6", "7"];
        let Some(fields) = self.fields(node, path, &CLASSES) else { return };
        for (name, class) in schedule.class_names.iter_mut().zip(CLASSES) {
            if let Some((node, path)) = fields.get(class) {
                *name = self.text(node, &path, NAME_CHARS_MAX);
            }
        }
    }

    /// What only a `tc` command says.
    fn taprio(&mut self, node: &Node, path: &str) -> Option<Taprio> {
        const LEAVES: &[&str] =
            &["device", "parent", "handle", "num-tc", "queues", "clockid", "flags", "txtime-delay", "fp"];
        let fields = self.fields(node, path, LEAVES)?;
        let mut taprio = Taprio {
            device: self.word(&fields, "device"),
            handle: self.word(&fields, "handle"),
            num_tc: None,
            queues: Vec::new(),
            is_clock_named: false,
            ..Taprio::default()
        };
        if let Some(parent) = self.word(&fields, "parent") {
            taprio.parent = parent;
        }
        if let Some((node, path)) = fields.get("num-tc") {
            taprio.num_tc = self.number(node, &path, &taprio::NUM_TC_LEAF.into()).map(|count| count as u8);
        }
        if let Some((node, path)) = fields.get("queues") {
            let items = self.list(node, &path, "queue ranges like 1@0").unwrap_or_default();
            for (index, item) in items.iter().enumerate() {
                taprio.queues.extend(self.queues(item, &format!("{path}[{index}]")));
            }
        }
        if let Some((node, path)) = fields.get("clockid") {
            taprio.is_clock_named = true;
            if !matches!(&node.kind, Kind::Scalar { text, .. } if text == taprio::CLOCK) {
                self.fault(node.at, &path, node.shown(), taprio::CLOCK_EXPECTED, taprio::CLOCK_RULE);
            }
        }
        if let Some((node, path)) = fields.get("flags") {
            taprio.flags = self.number(node, &path, &taprio::FLAGS_LEAF.into()).map(|flags| flags as u32);
        }
        if let Some((node, path)) = fields.get("txtime-delay") {
            let delay = self.number(node, &path, &taprio::TXTIME_DELAY_LEAF.into());
            taprio.txtime_delay = delay.map(|delay| delay as u32);
        }
        if let Some((node, path)) = fields.get("fp") {
            let items = self.list(node, &path, "E or P, one a class").unwrap_or_default();
            for (index, item) in items.iter().enumerate() {
                match &item.kind {
                    Kind::Scalar { text, .. } if text == "E" || text == "P" => {
                        taprio.is_preemptible.push(text == "P");
                    }
                    _ => {
                        self.fault(
                            item.at,
                            &format!("{path}[{index}]"),
                            item.shown(),
                            "E or P",
                            taprio::RULE,
                        );
                    }
                }
            }
        }
        self.taprio_rules(&fields, &taprio);
        Some(taprio)
    }

    /// The rules that a command is held to as well.
    fn taprio_rules(&mut self, fields: &Fields<'_>, taprio: &Taprio) {
        let is_unreadable = |leaf: &str, is_read: bool| fields.get(leaf).is_some() && !is_read;
        let known = taprio::Known {
            num_tc: !is_unreadable("num-tc", taprio.num_tc.is_some()),
            flags: !is_unreadable("flags", taprio.flags.is_some()),
        };
        for (leaf, value, expected) in taprio::contradictions(taprio, known) {
            let at = fields.get(leaf).map_or(fields.at, |(node, _)| node.at);
            self.fault(at, &join(&fields.path, leaf), value, expected, taprio::RULE);
        }
    }

    fn queues(&mut self, node: &Node, path: &str) -> Option<(u16, u16)> {
        let range = match &node.kind {
            Kind::Scalar { text, .. } => taprio::queue_range(text),
            _ => None,
        };
        if range.is_none() {
            self.fault(node.at, path, node.shown(), taprio::QUEUES_EXPECTED, taprio::RULE);
        }
        range
    }

    fn word(&mut self, fields: &Fields<'_>, leaf: &'static str) -> Option<String> {
        let (node, path) = fields.get(leaf)?;
        match &node.kind {
            Kind::Scalar { text, .. } if taprio::is_word(text) => Some(text.clone()),
            _ => {
                self.fault(node.at, &path, node.shown(), taprio::WORD_EXPECTED, taprio::RULE);
                None
            }
        }
    }
}

impl From<taprio::NumberLeaf> for Number {
    fn from(leaf: taprio::NumberLeaf) -> Self {
        Self { parse: units::span, min: leaf.min, max: leaf.max, expected: leaf.expected, rule: taprio::RULE }
    }
}
