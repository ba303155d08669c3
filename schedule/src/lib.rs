// SPDX-License-Identifier: Apache-2.0
//! Gate schedules as text.
//!
//! In: text (YAML or JSON with the IEEE YANG leaf names, or one `tc qdisc … taprio …` command). Out: a [`Schedule`]
//! around [`ktsn_model::AdminPort`], or every [`Fault`] of the text with its place; the same schedule as text again; what it gives
//! each traffic class ([`analysis`]) and drawings of that ([`draw`]).
//!
//! It never guesses. A leaf that this crate does not know, or a value that a format cannot express, is a
//! fault that names it. Any input is answered quickly ([`limits`]); nothing here reads a file, a clock or a network.
#![forbid(unsafe_code)]

pub mod analysis;
pub mod draw;

mod admin;
mod fault;
mod format;
pub mod limits;
mod read;
mod schedule;
pub mod taprio;
mod tree;
pub mod units;
mod write;

pub use fault::{Fault, Faults, Position, Remark};
pub use format::Format;
pub use schedule::{Schedule, Taprio};

/// Reads a schedule.
///
/// # Errors
/// As [`parse_with_remarks`].
pub fn parse(text: &str, format: Format) -> Result<Schedule, Faults> {
    parse_with_remarks(text, format).map(|(schedule, _)| schedule)
}

/// Reads a schedule; the remarks say what of a `tc` command or beside it was ignored or left out. What tc and Linux take and KTSN does not
/// execute is read, too: [`Schedule::limits`].
///
/// # Errors
/// Every fault of the text, in its order, at most [`limits::FAULTS_MAX`].
pub fn parse_with_remarks(text: &str, format: Format) -> Result<(Schedule, Vec<Remark>), Faults> {
    if text.len() > limits::OCTETS_MAX {
        let expected = format!("at most {} octets", limits::OCTETS_MAX);
        return Err(Fault::new(Position::START, "", text.len(), expected, limits::RULE).into());
    }
    let schedule = match format.of(text) {
        Format::Taprio => taprio::read(text),
        Format::Json => read::json(text).map(|schedule| (schedule, Vec::new())),
        Format::Auto | Format::Yaml => read::yaml(text).map(|schedule| (schedule, Vec::new())),
    };
    schedule.map_err(Faults::sorted)
}

/// Writes a schedule; [`Format::Auto`] is YAML. Reading the text gives the same schedule.
///
/// # Errors
/// What the format cannot say: YAML and JSON say everything that KTSN executes.
pub fn write(schedule: &Schedule, format: Format) -> Result<String, Faults> {
    if format != Format::Taprio {
        let limits = schedule.limits();
        if !limits.is_empty() {
            return Err(Faults::from_list(limits));
        }
    }
    match format {
        Format::Auto | Format::Yaml => Ok(write::yaml(schedule)),
        Format::Json => Ok(write::json(schedule)),
        Format::Taprio => taprio::write(schedule).map_err(Faults::from_list),
    }
}
