// SPDX-License-Identifier: Apache-2.0
//! The gate parameter table (802.1Q-2022 12.29.1) of a text.

use ktsn_model::{AdminPort, GateControlEntry, GateOperation, GateStates, TrafficClass, Words};
use ktsn_time::{Nanos, Tai};

use super::CLASS;
use super::leaf::{FORMAT, Leaf, join, without_module};
use crate::admin::admin_faults;
use crate::fault::Position;
use crate::schedule::Schedule;
use crate::units::{Number, integer, span};

const TABLE: &str = "802.1Q-2022 12.29.1";
const LIMIT: &str = "limit of KTSN";
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

const STATES_EXPECTED: &str = "gate states of eight classes, 0 to 255 (bit 7 = class 7)";
const STATES: Number = Number::new(integer, 0, 255, STATES_EXPECTED, "802.1Q-2022 8.6.8.4");
const SPAN: Number =
    Number::new(span, i64::MIN as i128, i64::MAX as i128, "a span in ns, or like 250us", TABLE);
const BASE_TIME_EXPECTED: &str = "a mapping with seconds, nanoseconds, or ns since 1970 TAI, at most 2^62 ns";
const BASE_TIME: Number = Number::new(span, 0, u64::MAX as i128, BASE_TIME_EXPECTED, TABLE);
const SECONDS_MAX: i128 = (u64::MAX / 1_000_000_000 - 1) as i128;
const SECONDS: Number =
    Number::new(integer, 0, SECONDS_MAX, "seconds since 1970 TAI, at most 2^62 ns in all", TABLE);
const NANOSECONDS: Number = Number::new(integer, 0, 999_999_999, "0 to 999999999", TABLE);
const NUMERATOR: Number = Number::new(integer, 0, u64::MAX as i128, "a whole number, not negative", TABLE);
const DENOMINATOR: Number = Number::new(integer, 1, u64::MAX as i128, "a whole number from 1", TABLE);
const INDEX: Number = Number::new(integer, 0, u32::MAX as i128, "0 to 4294967295", TABLE);
const SDU_EXPECTED: &str = "octets, 0 to 4294967295 (0: no limit)";
const SDU: Number = Number::new(integer, 0, u32::MAX as i128, SDU_EXPECTED, "802.1Q-2022 8.6.8.4");

/// What was read of a control list.
#[derive(Default)]
struct ControlList {
    entries: Vec<GateControlEntry>,
    /// The place of each entry's interval, or of the entry.
    places: Vec<Position>,
    /// An interval could not be read: then the sum of the intervals is not judged.
    is_broken: bool,
}

pub(super) fn gate_parameter_table(table: Leaf<'_>, schedule: &mut Schedule) {
    let path = table.path.clone();
    let Some(fields) = table.fields(LEAVES) else { return };
    let list = fields.get("admin-control-list").map(control_list).unwrap_or_default();
    let enabled = fields.required("gate-enabled", "true or false", TABLE);
    let admin = &mut schedule.admin;
    *admin = AdminPort {
        gate_enabled: enabled.and_then(|leaf| leaf.flag(TABLE)).unwrap_or_default(),
        gate_states: fields
            .number("admin-gate-states", &STATES)
            .map(GateStates::from_bits)
            .unwrap_or_default(),
        base_time: fields.get("admin-base-time").and_then(base_time).unwrap_or_default(),
        cycle_time: Nanos::ZERO,
        cycle_time_extension: Nanos::new(
            fields.number("admin-cycle-time-extension", &SPAN).unwrap_or_default(),
        ),
        control_list: list.entries,
    };
    let mut cycle_leaf = "admin-cycle-time";
    let cycle_time = match fields.get(cycle_leaf) {
        Some(leaf) => cycle_time(leaf),
        None => {
            // As tc does: the cycle is as long as the list.
            cycle_leaf = "admin-control-list";
            sum(admin).filter(|_| !list.is_broken)
        }
    };
    admin.cycle_time = cycle_time.unwrap_or_default();
    if let Some(leaf) = fields.get("queue-max-sdu-table") {
        queue_max_sdu_table(&leaf, schedule);
    }
    if let Some(leaf) = fields.get("config-change")
        && leaf.flag(TABLE) == Some(false)
    {
        leaf.fault("false", "true or no such leaf: to apply a schedule is the change", FORMAT);
    }
    let faults = admin_faults(&schedule.admin, cycle_time.is_some(), |fault| {
        let (at, place) = match fault.entry_index {
            Some(index) => (list.places[index], format!("admin-control-list[{index}].{}", fault.leaf)),
            None if fault.leaf == "admin-cycle-time" => (fields.place(cycle_leaf), fault.leaf.to_owned()),
            None => (fields.place(fault.leaf), fault.leaf.to_owned()),
        };
        (at, join(&path, &place))
    });
    fields.extend(faults);
}

fn base_time(leaf: Leaf<'_>) -> Option<Tai> {
    if !leaf.is_mapping() {
        return leaf.number(&BASE_TIME).map(Tai::from_nanos);
    }
    let fields = leaf.fields(&["seconds", "nanoseconds"])?;
    let part = |name, number| fields.get(name).map_or(Some(0), |leaf| leaf.number::<u64>(number));
    let (seconds, nanoseconds) = (part("seconds", &SECONDS), part("nanoseconds", &NANOSECONDS));
    Some(Tai::from_nanos(seconds? * 1_000_000_000 + nanoseconds?))
}

fn cycle_time(leaf: Leaf<'_>) -> Option<Nanos> {
    if !leaf.is_mapping() {
        return leaf.number(&SPAN).map(Nanos::new);
    }
    let whole = leaf.at_path(leaf.path.clone());
    let fields = leaf.fields(&["numerator", "denominator"])?;
    let part = |name, number| {
        fields.required(name, "seconds as numerator / denominator", TABLE)?.number::<i128>(number)
    };
    let (numerator, denominator) = (part("numerator", &NUMERATOR), part("denominator", &DENOMINATOR));
    let (numerator, denominator) = (numerator?, denominator?);
    let nanos = numerator * 1_000_000_000;
    let expected = if nanos % denominator == 0 { "50 us to 10 s" } else { "a whole number of nanoseconds" };
    let exact = i64::try_from(nanos / denominator).ok().filter(|_| nanos % denominator == 0);
    if exact.is_none() {
        whole.fault(format!("{numerator}/{denominator} s"), expected, LIMIT);
    }
    exact.map(Nanos::new)
}

/// `admin-control-list: { gate-control-entry: [ … ] }`, or the list itself.
fn control_list(leaf: Leaf<'_>) -> ControlList {
    let path = leaf.path.clone();
    let mut list = ControlList::default();
    let inner = if leaf.is_mapping() {
        leaf.fields(&["gate-control-entry"]).and_then(|fields| fields.get("gate-control-entry"))
    } else {
        Some(leaf)
    };
    let Some(inner) = inner.filter(|inner| !inner.node.is_nothing()) else { return list };
    let inner = inner.at_path(path);
    let Some(items) = inner.items("gate-control-entry") else {
        list.is_broken = true;
        return list;
    };
    let mut index_before = None;
    for item in items {
        let index = list.read_entry(item);
        if let Some((index, leaf)) = index {
            if let Some(before) = index_before.filter(|before| index <= *before) {
                let expected = format!("more than {before}: each index once, in the order of the list");
                leaf.fault(index, expected, TABLE);
            }
            index_before = Some(index);
        }
    }
    list
}

impl ControlList {
    /// Reads one entry; gives back its index and the index's leaf. An entry that cannot be read gets a placeholder, which keeps the
    /// places of the others right: the list is refused anyway.
    fn read_entry<'a>(&mut self, item: Leaf<'a>) -> Option<(u32, Leaf<'a>)> {
        const LEAVES: &[&str] = &["index", "operation-name", "time-interval-value", "gate-states-value"];
        let mut entry = GateControlEntry {
            operation: GateOperation::default(),
            states: GateStates::default(),
            interval: Nanos::new(1),
        };
        let place = item.node.at;
        let Some(fields) = item.fields(LEAVES) else {
            self.places.push(place);
            self.entries.push(entry);
            self.is_broken = true;
            return None;
        };
        self.places.push(fields.place("time-interval-value"));
        let index = fields.get("index").and_then(|leaf| Some((leaf.number(&INDEX)?, leaf)));
        entry.operation = fields.get("operation-name").and_then(|leaf| operation(&leaf)).unwrap_or_default();
        let interval = fields.required_number("time-interval-value", &SPAN).map(Nanos::new);
        self.is_broken |= interval.is_none();
        entry.interval = interval.unwrap_or(entry.interval);
        let states = fields.required_number("gate-states-value", &STATES);
        entry.states = states.map(GateStates::from_bits).unwrap_or_default();
        self.entries.push(entry);
        index
    }
}

fn operation(leaf: &Leaf<'_>) -> Option<GateOperation> {
    let words = Words(&GateOperation::WORDS).to_string();
    leaf.word(|word| without_module(word).parse().ok(), words, "802.1Q-2022 table 8-7")
}

fn queue_max_sdu_table(table: &Leaf<'_>, schedule: &mut Schedule) {
    let mut seen = [false; TrafficClass::COUNT];
    for item in table.items("traffic-class, queue-max-sdu").unwrap_or_default() {
        let place = item.node.at;
        let class_path = join(&item.path, "traffic-class");
        let Some(fields) = item.fields(&["traffic-class", "queue-max-sdu", "transmission-overrun"]) else {
            continue;
        };
        if let Some(leaf) = fields.get("transmission-overrun") {
            leaf.fault(leaf.node.shown(), "no counter: it is read, never set", TABLE);
        }
        let class = fields.required_number::<usize>("traffic-class", &CLASS);
        let octets = fields.required_number::<u32>("queue-max-sdu", &SDU);
        let Some(class) = class else { continue };
        if seen[class] {
            table.fault_at(place, &class_path, class, "each class once", TABLE);
        }
        seen[class] = true;
        schedule.queue_max_sdu[class] = octets.filter(|octets| *octets > 0);
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
