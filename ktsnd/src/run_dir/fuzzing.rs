// SPDX-License-Identifier: Apache-2.0
//! The state file's reader for a fuzz target.

use serde_json::Value;

use super::State;
use super::state::{read_state, write_state};

/// The result of reading a state file.
#[derive(Clone, Debug, PartialEq)]
pub struct StateRead {
    /// The state that a daemon restores.
    pub state: State,
    /// The file as it is written next; `None`: it could not be.
    pub written: Option<Vec<u8>>,
    /// The text holds a number with a fraction or beyond 64 bits; serde_json may read its last digit in two ways.
    pub is_inexact: bool,
    /// Entries are lost.
    pub is_damaged: bool,
    /// One line for each entry that is not used as it stands.
    pub notes: Vec<String>,
}

fn holds_a_fraction(value: &Value) -> bool {
    match value {
        Value::Array(all) => all.iter().any(holds_a_fraction),
        Value::Object(all) => all.values().any(holds_a_fraction),
        value => value.is_f64(),
    }
}

/// Reads a state file's octets.
///
/// # Errors
/// Why nothing of it is used.
pub fn state(octets: &[u8]) -> Result<StateRead, String> {
    let reading = read_state(octets).map_err(|error| error.to_string())?;
    let written = write_state(&reading.state).ok();
    let whole = written.as_ref().and_then(|octets| serde_json::from_slice(octets).ok());
    let is_inexact = whole.as_ref().is_some_and(holds_a_fraction);
    Ok(StateRead {
        is_inexact,
        written,
        state: reading.state,
        is_damaged: reading.is_damaged,
        notes: reading.notes,
    })
}
