// SPDX-License-Identifier: Apache-2.0
//! Reading a document. In: JSON. Out: a [`Document`], or the path of the field that is wrong.
//! Fields that the schema does not name are ignored; a field of the wrong type is never guessed at.

use super::{Document, SCHEMA};
use serde::de::DeserializeOwned;
use serde_json::Value;

/// The field of a document that is wrong, and how.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("field {field}: {problem}")]
pub struct WrongField {
    /// The field, as a path (`series[3].latency_ns.p50`).
    pub field: String,
    /// What is wrong with it.
    pub problem: String,
}

/// Reads `value`, which stands in the document below `parent` (empty: it is the document).
pub(crate) fn typed<T: DeserializeOwned>(value: &Value, parent: &str) -> Result<T, WrongField> {
    serde_path_to_error::deserialize(value).map_err(|error| {
        let path = error.path().to_string();
        let field = match (parent, path.as_str()) {
            ("", ".") => "(the document)".to_owned(),
            ("", path) => path.to_owned(),
            (parent, ".") => parent.to_owned(),
            (parent, path) => format!("{parent}.{path}"),
        };
        WrongField { field, problem: error.into_inner().to_string() }
    })
}

impl Document {
    /// Reads a document.
    ///
    /// # Errors
    /// It has another schema, or a field that is missing or has a wrong value.
    pub fn from_value(value: &Value) -> Result<Self, WrongField> {
        match value.get("schema") {
            Some(Value::String(schema)) if schema != SCHEMA => {
                let problem = format!("this program reads {SCHEMA:?}, not {schema:?}");
                Err(WrongField { field: "schema".to_owned(), problem })
            }
            None if !value.is_object() => {
                let problem = "an object is expected here".to_owned();
                Err(WrongField { field: "(the document)".to_owned(), problem })
            }
            _ => typed(value, ""),
        }
    }
}
