// SPDX-License-Identifier: Apache-2.0
//! `[[schedule]]`: gate schedules with the leaf names of ieee802-dot1q-sched, read by `ktsn_schedule` like the files of
//! `ktsn schedule`; also their form in the state file.

use ktsn_model::{AdminPort, GateFault};
use ktsn_schedule::{Faults, Format, Schedule};

use super::ConfigError;
use super::values::Checked;

/// A schedule of the configuration; `field` is the path that errors begin with.
pub(super) fn check(field: &str, raw: &toml::Table) -> Checked<Schedule> {
    let schedule = read(field, &serde_json::to_value(raw).unwrap_or_default())?;
    let refused = [
        (
            "taprio",
            schedule.taprio.is_some(),
            "no such leaf: ktsnd takes no tc command; ktsn schedule convert does",
        ),
        ("hand-over", schedule.hand_over.is_some(), "no such leaf: ktsnd measures it"),
        ("mtu", schedule.mtu.is_some(), "no such leaf: the device has one; queue-max-sdu limits a class"),
    ];
    if let Some((leaf, _, expected)) = refused.into_iter().find(|(_, is_there, _)| *is_there) {
        return Err(ConfigError::value(&format!("{field}.{leaf}"), leaf, expected));
    }
    if schedule.name.is_none() {
        let expected = "a name that is unique in this file";
        return Err(ConfigError::missing(&format!("{field}.name"), expected));
    }
    Ok(schedule)
}

/// A schedule from the value that [`write`] made.
///
/// # Errors
/// [`ConfigError`] for the first fault found.
pub(crate) fn read(field: &str, value: &serde_json::Value) -> Checked<Schedule> {
    ktsn_schedule::parse(&value.to_string(), Format::Json).map_err(|faults| first(field, &faults))
}

/// The gate parameters of `table`, with the leaves of a gate parameter table.
pub(super) fn gate_parameters(
    field: &str,
    table: &serde_json::Map<String, serde_json::Value>,
) -> Checked<AdminPort> {
    const TABLE: &str = "gate-parameter-table";
    let value = serde_json::json!({ TABLE: table });
    let schedule = ktsn_schedule::parse(&value.to_string(), Format::Json).map_err(|faults| {
        match first(field, &faults) {
            ConfigError::Value { field, value, expected } => {
                ConfigError::Value { field: field.replace(&format!(".{TABLE}"), ""), value, expected }
            }
            other => other,
        }
    })?;
    Ok(schedule.admin)
}

/// A schedule as it would be written.
pub(crate) fn write(schedule: &Schedule) -> serde_json::Value {
    // JSON says everything that a schedule holds.
    let text = ktsn_schedule::write(schedule, Format::Json).unwrap_or_default();
    serde_json::from_str(&text).unwrap_or_default()
}

fn first(field: &str, faults: &Faults) -> ConfigError {
    match faults.as_slice().first() {
        Some(fault) => {
            let path =
                if fault.path.is_empty() { field.to_owned() } else { format!("{field}.{}", fault.path) };
            ConfigError::value(
                &path,
                fault.value.trim_matches('"'),
                format!("{} ({})", fault.expected, fault.rule),
            )
        }
        None => ConfigError::value(field, "", "a gate schedule"),
    }
}

/// A fault of gate parameters, with the path of its leaf.
pub(crate) fn gate_fault(field: &str, fault: &GateFault) -> ConfigError {
    let leaf = match fault.entry_index {
        Some(index) => format!("{field}.admin-control-list[{index}].{}", fault.leaf),
        None => format!("{field}.{}", fault.leaf),
    };
    ConfigError::value(&leaf, fault.value, format!("{} ({})", fault.expected, fault.rule))
}
