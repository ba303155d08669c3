// SPDX-License-Identifier: Apache-2.0
//! Configuration: `/etc/ktsn/ktsnd.toml`, `--attach` and the control API, all checked into the same values.
//!
//! In: untrusted text. Out: [`Config`], or one error that names the field, the value and what was expected.
//! Nothing here touches the system; whether a device exists is found out by who opens it.

mod addresses;
mod attach_flag;
mod capture;
mod checked;
mod clock;
mod egress;
mod ethernet;
mod ingress;
mod metrics;
mod overlay;
mod policing;
mod port;
mod raw;
mod receive;
mod schedule;
mod segment;
mod values;

pub use addresses::Given;
pub use attach_flag::{attach_keys, parse_attach};
pub use capture::CaptureMode;
pub use checked::{Attachment, ClientLimits, Config, Daemon};
pub use clock::ClockSource;
pub use egress::EgressMode;
pub use ethernet::Ethernet;
pub use ingress::IngressMode;
pub use ktsn_proto::attachment::{
    AddressesConfig, AttachmentConfig, OuterConfig, OverlayConfig, PeerConfig, TakeConfig, VxlanConfig,
};
pub use ktsn_schedule::Schedule;
pub use overlay::{Overlay, PeersTarget, Vxlan, VxlanPeer};
pub(crate) use overlay::{check_peers, check_vni};
pub use policing::{FilterName, Identity, Policing};
pub use port::{AdapterChoice, ClassChoice, ClassOrder, Mode, Port, SelectionChoice, SpinMargin};
pub use receive::ReceiveMode;
pub(crate) use schedule::{gate_fault, read as read_schedule, write as write_schedule};
pub use segment::SegmentFrom;
pub(crate) use segment::prefixes_of;

/// What is wrong with a configuration, with the path of the field.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The text is no TOML, or a field is unknown or of the wrong type; TOML's own message has line and column.
    #[error("{0}")]
    Syntax(String),
    /// A value that cannot be.
    #[error("{field}: {value:?}: expected {expected}")]
    Value {
        /// Path of the field, for example `attachment[0].overlay.vxlan.vni`.
        field: String,
        /// The value found.
        value: String,
        /// What would have been right.
        expected: String,
    },
    /// A field that must be there.
    #[error("{field}: missing; expected {expected}")]
    Missing {
        /// Path of the field.
        field: String,
        /// What belongs there.
        expected: String,
    },
    /// A field that is not allowed here.
    #[error("{field}: {value:?}: {why}; remove it")]
    NotAllowed {
        /// Path of the field.
        field: String,
        /// The value found.
        value: String,
        /// Where the field belongs, or what gives its value.
        why: String,
    },
    /// Two objects with one name.
    #[error("{field}: {value:?} is used twice; names are unique")]
    Duplicate {
        /// Path of the field.
        field: String,
        /// The name.
        value: String,
    },
}

impl ConfigError {
    pub(crate) fn value(field: &str, value: impl std::fmt::Display, expected: impl Into<String>) -> Self {
        Self::Value { field: field.to_owned(), value: value.to_string(), expected: expected.into() }
    }
}

impl Config {
    /// Reads a TOML document.
    ///
    /// # Errors
    /// [`ConfigError`] for the first fault found.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        let raw: raw::RawConfig = toml::from_str(text)
            .map_err(|error| ConfigError::Syntax(error.to_string().trim_end().to_owned()))?;
        checked::check(raw)
    }
}

#[cfg(test)]
#[path = "config/policing_tests.rs"]
mod policing_tests;
#[cfg(test)]
#[path = "config/port_tests.rs"]
mod port_tests;
#[cfg(test)]
mod tests;
