// SPDX-License-Identifier: Apache-2.0
//! Which fields a structure of the state file has, and what a file says beside them.
//!
//! In: a JSON value. Out: the same without the fields that this ktsnd does not know, and their names. Pure.

use std::fmt;

use serde::de::{self, Deserialize, Visitor};
use serde_json::Value;

use crate::config::RawAttachment;

/// Asks a structure for the names of its fields: its `Deserialize` tells them to the deserializer, which reads nothing.
struct Names<'a>(&'a mut &'static [&'static str]);

#[derive(Debug)]
struct Asked;

impl fmt::Display for Asked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "only the names were asked for")
    }
}

impl std::error::Error for Asked {}

impl de::Error for Asked {
    fn custom<T: fmt::Display>(_: T) -> Self {
        Self
    }
}

impl<'de> de::Deserializer<'de> for Names<'_> {
    type Error = Asked;

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Asked> {
        Err(Asked)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        _: V,
    ) -> Result<V::Value, Asked> {
        *self.0 = fields;
        Err(Asked)
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 u8 u16 u32 u64 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

/// The names of `T`'s fields; none where it is no structure.
fn names<T: for<'de> Deserialize<'de>>() -> &'static [&'static str] {
    let mut names: &'static [&'static str] = &[];
    let _ = T::deserialize(Names(&mut names));
    names
}

/// Takes out of an attachment what this ktsnd does not know. The names of it. An overlay's own fields stay: where frames
/// go must not be guessed.
pub(super) fn prune_attachment(value: &mut Value) -> Vec<String> {
    let (known, mut unknown) = (names::<RawAttachment>(), Vec::new());
    if let Some(fields) = value.as_object_mut() {
        fields.retain(|name, _| {
            let is_known = known.contains(&name.as_str());
            if !is_known {
                unknown.push(name.clone());
            }
            is_known
        });
    }
    unknown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_structure_tells_its_fields() {
        assert_eq!(names::<crate::config::RawVxlanPeer>(), ["prefix", "vtep", "mac"]);
        assert!(names::<RawAttachment>().contains(&"octets_max"));
        assert!(names::<String>().is_empty());
    }

    #[test]
    fn what_is_not_known_is_taken_out_and_named() {
        let mut value = serde_json::json!({
            "name": "a", "later": 1, "overlay": { "vxlan": { "vni": 7, "also": [] } },
        });
        assert_eq!(prune_attachment(&mut value), ["later"]);
        let expected = serde_json::json!({ "name": "a", "overlay": { "vxlan": { "vni": 7, "also": [] } } });
        assert_eq!(value, expected);
        assert_eq!(prune_attachment(&mut Value::Null), Vec::<String>::new());
    }
}
