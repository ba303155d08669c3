// SPDX-License-Identifier: Apache-2.0
//! The configuration of an attachment: its one form in ktsnd's TOML file, in the state file and in the control API.
//!
//! In: TOML or JSON. Out: values of the right types, or an error that begins with the path of the field. What the values
//! may be is checked by ktsnd. The keys, their defaults and their bounds are in docs/interfaces.md, "Attachment".

use std::fmt;

use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{Error, MapAccess, SeqAccess, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

/// Declares how a value is read: which types it may have.
macro_rules! read {
    ($type:ident, $expected:literal, $($visit:item)*) => {
        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(reader: D) -> Result<Self, D::Error> {
                struct Of;
                impl<'de> Visitor<'de> for Of {
                    type Value = $type;
                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        f.write_str($expected)
                    }
                    $($visit)*
                }
                reader.deserialize_any(Of)
            }
        }
    };
}

/// A table of the configuration. A key that is left out has its default. A list is refused: what serde derives would read one
/// as the values of the keys in their order.
macro_rules! table {
    ($(#[$about:meta])* $name:ident { $($key:ident: $type:ty,)* }) => {
        $(#[$about])*
        #[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
        #[serde(remote = "Self", deny_unknown_fields)]
        #[allow(missing_docs)] // the keys are documented once, in docs/interfaces.md
        pub struct $name {
            $(#[serde(skip_serializing_if = "Option::is_none")] pub $key: Option<$type>,)*
        }

        impl $name {
            /// The names of its keys.
            pub const KEYS: &[&str] = &[$(stringify!($key)),*];
        }

        read! { $name, "an object",
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<$name, A::Error> {
                $name::deserialize(MapAccessDeserializer::new(map))
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, writer: S) -> Result<S::Ok, S::Error> {
                Self::serialize(self, writer)
            }
        }
    };
}

table! {
    /// An attachment.
    AttachmentConfig {
        name: String,
        netns: String,
        interface: String,
        uplink: String,
        overlay: OverlayConfig,
        addresses: AddressesConfig,
        destinations: Vec<String>,
        ethernet: String,
        classes: Vec<u8>,
        late: String,
        overrun_limit: String,
        horizon: String,
        allow_tai: bool,
        allow_policy_bypass: bool,
        take: TakeConfig,
        vlan: u32,
        pcp: u32,
        ingress: String,
        capture: String,
        capture_priority: u32,
        slots: u32,
        clients_max: u32,
        octets_max: u64,
        memory_max: u64,
    }
}

table! {
    /// `overlay.vxlan` of an attachment.
    VxlanConfig {
        mode: String,
        vni: u32,
        port: u16,
        local: String,
        device: String,
        learn_from: String,
        peers: Vec<PeerConfig>,
        flood: Vec<String>,
        flood_interface: bool,
        ttl: OuterConfig,
        tos: OuterConfig,
        df: String,
        udp_checksum: bool,
    }
}

table! {
    /// A peer of an overlay.
    PeerConfig {
        prefix: String,
        vtep: String,
        mac: String,
    }
}

/// `overlay`: `"none"` or `{ vxlan = { … } }`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum OverlayConfig {
    /// No overlay network.
    None,
    /// A VXLAN.
    Vxlan(Box<VxlanConfig>),
}

/// `take`: `"txtime"`, `"all"` or `{ priority_min = N }`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum TakeConfig {
    /// A word.
    Word(String),
    /// Also datagrams without transmit time, from a priority on.
    From {
        /// The least priority.
        priority_min: u64,
    },
}

/// `addresses`: `"interface"` or a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum AddressesConfig {
    /// A word.
    Word(String),
    /// Addresses and prefixes.
    List(Vec<String>),
}

/// `ttl` or `tos` of an outer header: a number or `"inherit"`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum OuterConfig {
    /// A number.
    Number(u64),
    /// A word.
    Word(String),
}

impl fmt::Display for OuterConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => number.fmt(f),
            Self::Word(word) => word.fmt(f),
        }
    }
}

/// Characters of an error: a client's own keys and values may be of any length.
const TEXT_MAX: usize = 600;

/// JSON that is no attachment.
#[derive(Debug)]
pub struct AttachmentFault {
    /// Path of the field at fault, for example `attachment.overlay.vxlan.vni`.
    pub field: String,
    /// The value found, and what was expected.
    pub why: String,
}

impl fmt::Display for AttachmentFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Keys and texts of a client may hold control characters.
        let text = format!("{}: {}", self.field, self.why);
        text.chars().take(TEXT_MAX).try_for_each(|c| {
            if c.is_control() { write!(f, "{}", c.escape_default()) } else { write!(f, "{c}") }
        })
    }
}

impl std::error::Error for AttachmentFault {}

impl AttachmentConfig {
    /// Reads JSON. `field` is the path that errors begin with.
    ///
    /// # Errors
    /// [`AttachmentFault`]: no JSON, an unknown key, or a value of the wrong type.
    pub fn parse(field: &str, json: &str) -> Result<Self, AttachmentFault> {
        if !json.trim_start().starts_with('{') {
            let why = "missing; expected an attachment as a JSON object".to_owned();
            return Err(AttachmentFault { field: field.to_owned(), why });
        }
        let mut reader = serde_json::Deserializer::from_str(json);
        let config = Self::read(field, &mut reader)?;
        let fault =
            |error: serde_json::Error| AttachmentFault { field: field.to_owned(), why: error.to_string() };
        reader.end().map_err(fault)?;
        Ok(config)
    }

    /// Reads a JSON value, without the keys that this version does not know. Returns their names too. An overlay with
    /// an unknown key is an error: a guess would send frames to the wrong place.
    ///
    /// # Errors
    /// [`AttachmentFault`]: a value of the wrong type.
    pub fn read_known(field: &str, mut value: Value) -> Result<(Self, Vec<String>), AttachmentFault> {
        let mut unknown = Vec::new();
        if let Some(fields) = value.as_object_mut() {
            fields.retain(|key, _| {
                let is_known = Self::KEYS.contains(&key.as_str());
                if !is_known {
                    unknown.push(key.clone());
                }
                is_known
            });
        }
        Ok((Self::read(field, value)?, unknown))
    }

    fn read<'de, D: Deserializer<'de>>(field: &str, reader: D) -> Result<Self, AttachmentFault> {
        serde_path_to_error::deserialize(reader).map_err(|error| {
            let path = error.path().to_string();
            // `?` stands for a place between two fields.
            let path = path.trim_end_matches(['.', '?']);
            let field = if path.is_empty() { field.to_owned() } else { format!("{field}.{path}") };
            AttachmentFault { field, why: error.into_inner().to_string() }
        })
    }

    /// The JSON text that [`Self::parse`] reads.
    #[must_use]
    pub fn json(&self) -> String {
        // Text, numbers and lists of them always have a JSON form.
        serde_json::to_string(self).unwrap_or_default()
    }
}

read! { OverlayConfig, "\"none\" or { vxlan = … }",
    fn visit_str<E: Error>(self, word: &str) -> Result<OverlayConfig, E> {
        if word == "none" {
            Ok(OverlayConfig::None)
        } else {
            Err(E::invalid_value(Unexpected::Str(word), &self))
        }
    }
    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<OverlayConfig, A::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Overlay {
            vxlan: Box<VxlanConfig>,
        }
        let Overlay { vxlan } = Overlay::deserialize(MapAccessDeserializer::new(map))?;
        Ok(OverlayConfig::Vxlan(vxlan))
    }
}

read! { TakeConfig, "\"txtime\", \"all\" or { priority_min = 0 to 15 }",
    fn visit_str<E: Error>(self, word: &str) -> Result<TakeConfig, E> {
        Ok(TakeConfig::Word(word.to_owned()))
    }
    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<TakeConfig, A::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct From {
            priority_min: u64,
        }
        let From { priority_min } = From::deserialize(MapAccessDeserializer::new(map))?;
        Ok(TakeConfig::From { priority_min })
    }
}

read! { AddressesConfig, "a list of IP addresses and prefixes, or \"interface\"",
    fn visit_str<E: Error>(self, word: &str) -> Result<AddressesConfig, E> {
        Ok(AddressesConfig::Word(word.to_owned()))
    }
    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<AddressesConfig, A::Error> {
        Vec::deserialize(SeqAccessDeserializer::new(list)).map(AddressesConfig::List)
    }
}

read! { OuterConfig, "a number or \"inherit\"",
    fn visit_str<E: Error>(self, word: &str) -> Result<OuterConfig, E> {
        Ok(OuterConfig::Word(word.to_owned()))
    }
    fn visit_u64<E: Error>(self, number: u64) -> Result<OuterConfig, E> {
        Ok(OuterConfig::Number(number))
    }
    fn visit_i64<E: Error>(self, number: i64) -> Result<OuterConfig, E> {
        u64::try_from(number).map(OuterConfig::Number).map_err(|_| E::invalid_value(Unexpected::Signed(number), &self))
    }
}

impl crate::v1::AttachmentState {
    /// The attachment as it is listed; keys that this version does not know are kept. `Null` where it is no JSON.
    #[must_use]
    pub fn fields(&self) -> Value {
        serde_json::from_str(&self.attachment).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn every_form_of_a_value_reads_back_as_it_was_written() {
        let whole = json!({
            "name": "a", "netns": "/run/netns/a", "interface": "eth0", "classes": [0, 7], "horizon": "10us",
            "addresses": ["10.0.0.1", "fd00::/64"], "take": { "priority_min": 4 }, "allow_tai": false,
            "overlay": { "vxlan": { "vni": 7, "ttl": 9, "tos": "inherit", "peers": [{ "vtep": "192.0.2.1" }] } },
        });
        let config = AttachmentConfig::parse("attachment", &whole.to_string()).unwrap();
        assert_eq!(serde_json::from_str::<Value>(&config.json()).unwrap(), whole);
        let words = json!({ "overlay": "none", "addresses": "interface", "take": "all" });
        let config = AttachmentConfig::parse("attachment", &words.to_string()).unwrap();
        assert_eq!(serde_json::from_str::<Value>(&config.json()).unwrap(), words);
        assert_eq!(config.overlay, Some(OverlayConfig::None));
    }

    #[test]
    fn an_error_begins_with_the_path_and_names_value_and_expectation() {
        for (json, begin, part) in [
            ("", "attachment: missing", "expected an attachment as a JSON object"),
            ("{", "attachment: ", "EOF"),
            ("[7]", "attachment: missing", "JSON object"),
            ("{} {}", "attachment: ", "trailing"),
            (r#"{"slots": "many"}"#, "attachment.slots: invalid type: string \"many\"", "u32"),
            (r#"{"classes": [1, 300]}"#, "attachment.classes[1]: ", "`300`"),
            (r#"{"colour": 1}"#, "attachment.colour: unknown field `colour`", "expected one of `name`"),
            (r#"{"take": 7}"#, "attachment.take: ", "`7`, expected \"txtime\", \"all\" or { priority_min"),
            (r#"{"take": {"priority_min": "x"}}"#, "attachment.take.priority_min: ", "string \"x\""),
            (r#"{"take": {"priority": 1}}"#, "attachment.take.priority: ", "expected `priority_min`"),
            (
                r#"{"addresses": {}}"#,
                "attachment.addresses: ",
                "expected a list of IP addresses and prefixes",
            ),
            (r#"{"addresses": ["a", 7]}"#, "attachment.addresses[1]: ", "`7`, expected a string"),
            (
                r#"{"overlay": {"geneve": {}}}"#,
                "attachment.overlay.geneve",
                "unknown field `geneve`, expected `vxlan`",
            ),
            (r#"{"overlay": []}"#, "attachment.overlay: ", "sequence, expected \"none\" or { vxlan"),
            (
                r#"{"overlay": {"vxlan": ["routed", 7]}}"#,
                "attachment.overlay.vxlan: ",
                "sequence, expected an object",
            ),
            (
                r#"{"overlay": {"vxlan": {"peers": [["10.0.0.0/8"]]}}}"#,
                "attachment.overlay.vxlan.peers[0]: ",
                "sequence, expected an object",
            ),
            (r#"{"take": [7]}"#, "attachment.take: ", "sequence, expected \"txtime\""),
            (r#"{"overlay": "vxlan"}"#, "attachment.overlay: ", "\"vxlan\", expected \"none\" or { vxlan"),
            (r#"{"overlay": {"vxlan": 7}}"#, "attachment.overlay.vxlan: ", "`7`, expected an object"),
            (
                r#"{"overlay": {"vxlan": {"vni": -1}}}"#,
                "attachment.overlay.vxlan.vni: ",
                "`-1`, expected u32",
            ),
            (
                r#"{"overlay": {"vxlan": {"ttl": -1}}}"#,
                "attachment.overlay.vxlan.ttl: ",
                "expected a number or \"inherit\"",
            ),
            (r#"{"overlay": {"vxlan": {"crypt": 1}}}"#, "attachment.overlay.vxlan.crypt: ", "unknown field"),
            (
                r#"{"overlay": {"vxlan": {"peers": [{"vtep": 1}]}}}"#,
                "attachment.overlay.vxlan.peers[0].vtep: ",
                "`1`",
            ),
        ] {
            let fault = AttachmentConfig::parse("attachment", json).unwrap_err().to_string();
            assert!(fault.starts_with(begin) && fault.contains(part), "{json}: {fault}");
        }
    }

    #[test]
    fn unknown_keys_are_named_and_left_out() {
        let value = json!({ "name": "a", "later": 1, "overlay": { "vxlan": { "vni": 7 } } });
        let (config, unknown) = AttachmentConfig::read_known("a", value).unwrap();
        assert_eq!((config.name.as_deref(), unknown), (Some("a"), vec!["later".to_owned()]));
        let value = json!({ "name": "a", "overlay": { "vxlan": { "vni": 7, "crypt": true } } });
        assert!(AttachmentConfig::read_known("a", value).is_err(), "an overlay is not guessed");
        let fault = AttachmentConfig::read_known("a", json!(["b", "/run/netns/b", "eth0"])).unwrap_err();
        assert_eq!(fault.to_string(), "a: invalid type: sequence, expected an object");
    }
}
