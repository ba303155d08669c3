// SPDX-License-Identifier: Apache-2.0
//! The configuration of an attachment: its one form in ktsnd's TOML file, in the state file and in the control API.
//!
//! In: TOML or JSON. Out: values of the right types, or an error that begins with the path of the field. What the values
//! may be is checked by ktsnd. The keys, their defaults and their bounds are in docs/interfaces.md, "Attachment".

use std::fmt;

use ktsn_model::IpPrefix;
use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{Error, MapAccess, SeqAccess, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

/// A value that a command line can give as text.
trait FromText: Sized {
    /// The value; an error says what is expected.
    fn from_text(text: &str) -> Result<Self, &'static str>;

    /// Sets the key.
    fn put(key: &mut Option<Self>, text: &str) -> Result<(), &'static str> {
        *key = Some(Self::from_text(text)?);
        Ok(())
    }
}

/// Declares how values are read from text.
macro_rules! from_text {
    ($($type:ty, $expected:literal, $text:ident => $read:expr;)*) => {$(
        impl FromText for $type {
            fn from_text($text: &str) -> Result<Self, &'static str> {
                $read.ok_or($expected)
            }
        }
    )*};
}

from_text! {
    String, "text", text => Some(text.to_owned());
    bool, "true or false", text => text.parse().ok();
    u8, "a whole number", text => text.parse().ok();
    u16, "a whole number", text => text.parse().ok();
    u32, "a whole number", text => text.parse().ok();
    u64, "a whole number", text => text.parse().ok();
    OuterConfig, "a number or inherit", text => Some(Self::Word(text.to_owned()));
    OverlayConfig, "none, or the keys of an overlay", text => (text == "none").then_some(Self::None);
    TakeConfig, "txtime, all or a priority", text => Some(match text.parse() {
        Ok(priority_min) => Self::From { priority_min },
        Err(_) => Self::Word(text.to_owned()),
    });
    PeerConfig, "PREFIX@VTEP@MAC, PREFIX@VTEP or MAC@VTEP", text => Some({
        let mut parts = text.split('@').map(str::to_owned);
        let (who, vtep, mac) = (parts.next(), parts.next(), parts.next());
        let is_prefix = who.as_ref().is_some_and(|who| who.parse::<IpPrefix>().is_ok());
        if is_prefix || mac.is_some() { Self { prefix: who, vtep, mac } } else { Self { prefix: None, vtep, mac: who } }
    });
}

impl<T: FromText> FromText for Vec<T> {
    fn from_text(text: &str) -> Result<Self, &'static str> {
        Ok(vec![T::from_text(text)?])
    }

    fn put(key: &mut Option<Self>, text: &str) -> Result<(), &'static str> {
        key.get_or_insert_default().push(T::from_text(text)?);
        Ok(())
    }
}

impl FromText for AddressesConfig {
    fn from_text(text: &str) -> Result<Self, &'static str> {
        FromText::from_text(text).map(Self::List)
    }

    fn put(key: &mut Option<Self>, text: &str) -> Result<(), &'static str> {
        match key {
            Some(Self::List(list)) => list.push(text.to_owned()),
            _ => *key = Some(Self::from_text(text)?),
        }
        Ok(())
    }
}

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

            /// Sets a key from text, as a command line names it; a list gets one more entry. `None`: there is no such key.
            ///
            /// # Errors
            /// What the key expects.
            pub fn set(&mut self, key: &str, text: &str) -> Option<Result<(), &'static str>> {
                match key {
                    $(stringify!($key) => Some(FromText::put(&mut self.$key, text)),)*
                    _ => None,
                }
            }
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
    ///
    /// A new key stands here, in ktsnd/src/config/attachment.rs (field, check, listing) and its tests' example, where it is used, in
    /// k8s/internal/nodeapi/attachment.keys and in docs/interfaces.md. The compiler and the tests name each place that lacks it; the
    /// command line, the state file and the control API take it from here.
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
        egress: String,
        vhost_socket: String,
        vhost_queues: u16,
        receive: String,
        receive_period: String,
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
mod tests;
