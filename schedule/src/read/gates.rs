// SPDX-License-Identifier: Apache-2.0
//! The gate parameter table (802.1Q-2022 12.29.1) of a text.

use std::collections::HashMap;

use ktsn_model::{AdminPort, GateControlEntry, GateFault, GateOperation, GateStates, TrafficClass};
use ktsn_time::{Nanos, Tai};

use super::leaf::{FORMAT, Number, Reader, join, without_module};
use crate::fault::{Fault, Position};
use crate::schedule::Schedule;
use crate::tree::{Kind, Node};
use crate::units;

const TABLE: &str = "802.1Q-2022 12.29.1";
const LEAVES: &[&str] = &[
    "gate-enabled",
    "admin-gate-states",
    "admin-base-time",
    "admin-cycle-time",
    "admin-cycle-time-extension",
    "admin-control-list",
    "queue-max-sdu-table",
    "config-change",
];

const STATES: Number = Number {
    parse: units::integer,
    min: 0,
    max: 255,
    expected: "gate states of eight classes, 0 to 255 (bit 7 = class 7)",
    rule: "802.1Q-2022 8.6.8.4",
};
/// Sign and length are judged with the other rules; here it only has to be a span.
const SPAN: Number = Number {
    parse: units::span,
    min: i64::MIN as i128,
    max: i64::MAX as i128,
    expected: "a span in ns, or like 250us",
    rule: TABLE,
};
const BASE_TIME: Number = Number {
    parse: units::span,
    min: 0,
    max: u64::MAX as i128,
    expected: "a mapping with seconds, nanoseconds, or ns since 1970 TAI, at most 2^62 ns",
    rule: TABLE,
};
const SECONDS: Number = Number {
    parse: units::integer,
    min: 0,
    max: (u64::MAX / 1_000_000_000 - 1) as i128,
    expected: "seconds since 1970 TAI, at most 2^62 ns in all",
    rule: TABLE,
};
const NANOSECONDS: Number =
    Number { parse: units::integer, min: 0, max: 999_999_999, expected: "0 to 999999999", rule: TABLE };
const NUMERATOR: Number = Number {
    parse: units::integer,
    min: 0,
    max: u64::MAX as i128,
    expected: "a whole number, not negative",
    rule: TABLE,
};
const DENOMINATOR: Number = Number {
    parse: units::integer,
    min: 1,
    max: u64::MAX as i128,
    expected: "a whole number from 1",
    rule: TABLE,
};
const INDEX: Number =
    Number { parse: units::integer, min: 0, max: u32::MAX as i128, expected: "0 to 4294967295", rule: TABLE };
const SDU: Number = Number {
    parse: units::integer,
    min: 0,
    max: u32::MAX as i128,
    expected: "octets, 0 to 4294967295 (0: no limit)",
    rule: "802.1Q-2022 8.6.8.4",
};
const CLASS: Number = super::CLASS;

/// Where the leaves stand that rules about the whole table speak of.
#[derive(Default)]
struct Places {
    leaves: HashMap<&'static str, Position>,
    /// Of each entry's interval, or of the entry.
    intervals: Vec<Position>,
    /// Whether every interval could be read: only then is their sum looked at.
    is_list_whole: bool,
    is_cycle_time_known: bool,
}

impl Reader {
    pub(super) fn gate_parameter_table(&mut self, node: &Node, path: &str, schedule: &mut Schedule) {
        let Some(fields) = self.fields(node, path, LEAVES) else { return };
        let mut places = Places { is_list_whole: true, is_cycle_time_known: true, ..Places::default() };
        for leaf in LEAVES {
            places.leaves.insert(leaf, fields.get(leaf).map_or(fields.at, |(node, _)| node.at));
        }
        let admin = &mut schedule.admin;
        if let Some((node, path)) = self.required(&fields, "gate-enabled", "true or false", TABLE) {
            admin.gate_enabled = self.flag(node, &path, TABLE).unwrap_or_default();
        }
        if let Some((node, path)) = fields.get("admin-gate-states") {
            admin.gate_states = self.states(node, &path).unwrap_or_default();
        }
        if let Some((node, path)) = fields.get("admin-base-time") {
            admin.base_time = self.base_time(node, &path).unwrap_or_default();
        }
        if let Some((node, path)) = fields.get("admin-cycle-time-extension") {
            admin.cycle_time_extension = self.span(node, &path).unwrap_or_default();
        }
        if let Some((node, path)) = fields.get("admin-control-list") {
            self.control_list(node, &path, admin, &mut places);
        }
        let cycle_time = match fields.get("admin-cycle-time") {
            Some((node, path)) => self.cycle_time(node, &path),
            None => {
                // As tc does: the cycle is as long as the list.
                places.leaves.insert("admin-cycle-time", places.leaves["admin-control-list"]);
                sum(admin).filter(|_| places.is_list_whole)
            }
        };
        places.is_cycle_time_known = cycle_time.is_some();
        admin.cycle_time = cycle_time.unwrap_or_default();
        if let Some((node, path)) = fields.get("queue-max-sdu-table") {
            self.queue_max_sdu_table(node, &path, schedule);
        }
        if let Some((node, path)) = fields.get("config-change")
            && self.flag(node, &path, TABLE) == Some(false)
        {
            self.fault(
                node.at,
                &path,
                "false",
                "true or no such leaf: to apply a schedule is the change",
                FORMAT,
            );
        }
        self.rules(path, &schedule.admin, &places);
    }

    /// The rules about the parameters together.
    fn rules(&mut self, path: &str, admin: &AdminPort, places: &Places) {
        let faults = admin_faults(admin, places.is_cycle_time_known, places.is_list_whole, |fault| {
            let at = match fault.entry_index {
                Some(index) => places.intervals[index],
                None => places.leaves.get(fault.leaf).copied().unwrap_or(Position::START),
            };
            let place = match fault.entry_index {
                Some(index) => format!("admin-control-list[{index}].{}", fault.leaf),
                None => fault.leaf.to_owned(),
            };
            (at, join(path, &place))
        });
        self.faults.extend(faults);
    }

    fn states(&mut self, node: &Node, path: &str) -> Option<GateStates> {
        self.number(node, path, &STATES).map(|bits| GateStates::from_bits(bits as u8))
    }

    fn span(&mut self, node: &Node, path: &str) -> Option<Nanos> {
        self.number(node, path, &SPAN).map(|span| Nanos::new(span as i64))
    }

    fn base_time(&mut self, node: &Node, path: &str) -> Option<Tai> {
        if !matches!(node.kind, Kind::Map(_)) {
            return self.number(node, path, &BASE_TIME).map(|nanos| Tai::from_nanos(nanos as u64));
        }
        let fields = self.fields(node, path, &["seconds", "nanoseconds"])?;
        let mut part = |leaf, number| match fields.get(leaf) {
            Some((node, path)) => self.number(node, &path, number),
            None => Some(0),
        };
        let (seconds, nanoseconds) = (part("seconds", &SECONDS), part("nanoseconds", &NANOSECONDS));
        Some(Tai::from_nanos(seconds? as u64 * 1_000_000_000 + nanoseconds? as u64))
    }

    fn cycle_time(&mut self, node: &Node, path: &str) -> Option<Nanos> {
        if !matches!(node.kind, Kind::Map(_)) {
            return self.span(node, path);
        }
        let fields = self.fields(node, path, &["numerator", "denominator"])?;
        let numerator = self.required(&fields, "numerator", "seconds as numerator / denominator", TABLE);
        let denominator = self.required(&fields, "denominator", "seconds as numerator / denominator", TABLE);
        let numerator = numerator.and_then(|(node, path)| self.number(node, &path, &NUMERATOR));
        let denominator = denominator.and_then(|(node, path)| self.number(node, &path, &DENOMINATOR));
        let (numerator, denominator) = (numerator?, denominator?);
        let nanos = numerator * 1_000_000_000;
        if nanos % denominator != 0 {
            let expected = "a whole number of nanoseconds";
            self.fault(node.at, path, format!("{numerator}/{denominator} s"), expected, "limit of KTSN");
            return None;
        }
        let nanos = i64::try_from(nanos / denominator);
        if nanos.is_err() {
            self.fault(
                node.at,
                path,
                format!("{numerator}/{denominator} s"),
                "50 us to 10 s",
                "limit of KTSN",
            );
        }
        nanos.ok().map(Nanos::new)
    }

    /// `admin-control-list: { gate-control-entry: [ … ] }`, or the list itself.
    fn control_list(&mut self, node: &Node, path: &str, admin: &mut AdminPort, places: &mut Places) {
        let list = match &node.kind {
            Kind::Map(_) => self
                .fields(node, path, &["gate-control-entry"])
                .and_then(|fields| fields.get("gate-control-entry"))
                .map(|(node, _)| node),
            _ => Some(node),
        };
        let Some(list) = list else { return };
        if list.is_nothing() {
            return;
        }
        let Some(items) = self.list(list, path, "gate-control-entry") else {
            places.is_list_whole = false;
            return;
        };
        let mut index_before = None;
        for (at, item) in items.iter().enumerate() {
            let path = format!("{path}[{at}]");
            let (entry, index) = self.entry(item, &path, places);
            if let (Some((index, at)), Some((before, _))) = (index, index_before)
                && index <= before
            {
                let expected = format!("more than {before}: each index once, in the order of the list");
                self.fault(at, &join(&path, "index"), index, expected, TABLE);
            }
            index_before = index.or(index_before);
            // A placeholder keeps the others' places right; the list is refused anyway.
            let placeholder = GateControlEntry {
                operation: GateOperation::default(),
                states: GateStates::default(),
                interval: Nanos::new(1),
            };
            admin.control_list.push(entry.unwrap_or(placeholder));
        }
    }

    /// One entry, its index and where that stands.
    fn entry(
        &mut self,
        node: &Node,
        path: &str,
        places: &mut Places,
    ) -> (Option<GateControlEntry>, Option<(i128, Position)>) {
        const LEAVES: &[&str] = &["index", "operation-name", "time-interval-value", "gate-states-value"];
        places.intervals.push(node.at);
        let Some(fields) = self.fields(node, path, LEAVES) else {
            places.is_list_whole = false;
            return (None, None);
        };
        let index =
            fields.get("index").and_then(|(node, path)| Some((self.number(node, &path, &INDEX)?, node.at)));
        let operation = match fields.get("operation-name") {
            Some((node, path)) => self.operation(node, &path),
            None => Some(GateOperation::SetGateStates),
        };
        let interval = self.required(&fields, "time-interval-value", SPAN.expected, TABLE);
        if let (Some((node, _)), Some(place)) = (&interval, places.intervals.last_mut()) {
            *place = node.at;
        }
        let interval = interval.and_then(|(node, path)| self.span(node, &path));
        places.is_list_whole &= interval.is_some();
        let states = self.required(&fields, "gate-states-value", STATES.expected, STATES.rule);
        let states = states.and_then(|(node, path)| self.states(node, &path));
        let interval = match interval {
            Some(interval) => interval,
            None => return (None, index),
        };
        let (operation, states) = (operation.unwrap_or_default(), states.unwrap_or_default());
        (Some(GateControlEntry { operation, states, interval }), index)
    }

    fn operation(&mut self, node: &Node, path: &str) -> Option<GateOperation> {
        let found = match &node.kind {
            Kind::Scalar { text, .. } => GateOperation::from_word(without_module(text)),
            _ => None,
        };
        if found.is_none() {
            let words = GateOperation::ALL.map(GateOperation::word);
            self.fault(node.at, path, node.shown(), words.join(", "), "802.1Q-2022 table 8-7");
        }
        found
    }

    fn queue_max_sdu_table(&mut self, node: &Node, path: &str, schedule: &mut Schedule) {
        let mut seen = [false; TrafficClass::COUNT];
        let Some(items) = self.list(node, path, "traffic-class, queue-max-sdu") else { return };
        for (at, item) in items.iter().enumerate() {
            let path = format!("{path}[{at}]");
            let Some(fields) =
                self.fields(item, &path, &["traffic-class", "queue-max-sdu", "transmission-overrun"])
            else {
                continue;
            };
            if let Some((node, path)) = fields.get("transmission-overrun") {
                self.fault(node.at, &path, node.shown(), "no counter: it is read, never set", TABLE);
            }
            let class = self.required(&fields, "traffic-class", CLASS.expected, CLASS.rule);
            let class = class.and_then(|(node, path)| self.number(node, &path, &CLASS));
            let sdu = self.required(&fields, "queue-max-sdu", SDU.expected, SDU.rule);
            let sdu = sdu.and_then(|(node, path)| self.number(node, &path, &SDU));
            let Some(class) = class.map(|class| class as usize) else { continue };
            if seen[class] {
                self.fault(item.at, &join(&path, "traffic-class"), class, "each class once", TABLE);
            }
            seen[class] = true;
            schedule.queue_max_sdu[class] = sdu.filter(|octets| *octets > 0).map(|octets| octets as u32);
        }
    }
}

/// The list's length as the cycle; none where it can't be held or an interval is no length.
pub(crate) fn sum(admin: &AdminPort) -> Option<Nanos> {
    if admin.control_list.iter().any(|entry| entry.interval <= Nanos::ZERO) {
        return None;
    }
    let sum: i128 = admin.control_list.iter().map(|entry| i128::from(entry.interval.get())).sum();
    i64::try_from(sum).ok().map(Nanos::new)
}

/// The model's faults, each where `place` says. Rules about values that could not be read are left out.
pub(crate) fn admin_faults(
    admin: &AdminPort,
    is_cycle_time_known: bool,
    is_list_whole: bool,
    place: impl Fn(&GateFault) -> (Position, String),
) -> Vec<Fault> {
    let count = admin.control_list.len();
    let mut faults = Vec::new();
    for fault in admin.faults() {
        let is_count = fault.leaf == "admin-control-list" && fault.expected.contains("entries");
        let is_sum = fault.leaf == "admin-control-list" && !is_count;
        let is_cycle = fault.leaf == "admin-cycle-time";
        if (is_sum || is_cycle) && !is_cycle_time_known || is_sum && !is_list_whole {
            continue;
        }
        let value = match fault.leaf {
            _ if is_count => format!("{count} entries"),
            _ if is_sum => format!("a sum of {} ns with a cycle of {}", fault.value, admin.cycle_time),
            _ => format!("{} ns", fault.value),
        };
        let (at, path) = place(&fault);
        faults.push(Fault::new(at, path, value, fault.expected, fault.rule));
    }
    faults
}
