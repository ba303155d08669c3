// SPDX-License-Identifier: Apache-2.0
//! Configuration: `/etc/ktsn/ktsnd.toml`, `--attach` and the control API, all checked into the same values.
//!
//! In: untrusted text. Out: [`Config`], or one error that names the field, the value and what was expected.
//! Nothing here touches the system; whether a device exists is found out by who opens it.

mod attachment;
mod daemon;
mod policing;
mod port;
mod schedule;
mod values;

use serde::Deserialize;

pub use attachment::{
    Attachment, CaptureMode, ClientLimits, EgressMode, Ethernet, Given, IngressMode, Overlay, PeersTarget,
    ReceiveMode, SegmentFrom, Vxlan, VxlanPeer, attach_keys, parse_attach,
};
pub(crate) use attachment::{check_peers, check_vni};
pub use daemon::{ClockSource, Daemon};
pub use ktsn_proto::attachment::{
    AddressesConfig, AttachmentConfig, OuterConfig, OverlayConfig, PeerConfig, TakeConfig, VxlanConfig,
};
pub use ktsn_schedule::Schedule;
pub use policing::{FilterName, Identity, Policing};
pub use port::{AdapterChoice, ClassChoice, ClassOrder, Mode, Port, SelectionChoice, SpinMargin};
pub(crate) use schedule::{gate_fault, read as read_schedule, write as write_schedule};

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

    pub(crate) fn missing(field: &str, expected: &str) -> Self {
        Self::Missing { field: field.to_owned(), expected: expected.to_owned() }
    }

    pub(crate) fn duplicate(field: &str, value: impl std::fmt::Display) -> Self {
        Self::Duplicate { field: field.to_owned(), value: value.to_string() }
    }
}

/// The whole configuration.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Config {
    /// `[daemon]`.
    pub daemon: Daemon,
    /// `[[port]]`.
    pub ports: Vec<Port>,
    /// `[[attachment]]`.
    pub attachments: Vec<Attachment>,
    /// The names of those that must be attached for ktsnd to start: those of the command line.
    pub required: Vec<String>,
    /// `[[schedule]]`.
    pub schedules: Vec<Schedule>,
    /// `[policing]`.
    pub policing: Option<Policing>,
}

/// The shape of the TOML document. Unknown fields are errors.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawConfig {
    #[serde(default)]
    daemon: daemon::RawDaemon,
    #[serde(default)]
    port: Vec<port::RawPort>,
    #[serde(default)]
    attachment: Vec<AttachmentConfig>,
    #[serde(default)]
    schedule: Vec<toml::Table>,
    policing: Option<policing::RawPolicing>,
}

impl Config {
    /// Reads a TOML document.
    ///
    /// # Errors
    /// [`ConfigError`] for the first fault found.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        let raw: RawConfig = toml::from_str(text)
            .map_err(|error| ConfigError::Syntax(error.to_string().trim_end().to_owned()))?;
        check(raw)
    }
}

fn check(raw: RawConfig) -> Result<Config, ConfigError> {
    let mut config = Config { daemon: Daemon::check(&raw.daemon)?, ..Config::default() };
    for (i, schedule) in raw.schedule.iter().enumerate() {
        let field = format!("schedule[{i}]");
        let schedule = schedule::check(&field, schedule)?;
        if config.schedules.iter().any(|s| s.name == schedule.name) {
            return Err(ConfigError::duplicate(&format!("{field}.name"), schedule.name.unwrap_or_default()));
        }
        config.schedules.push(schedule);
    }
    for (i, port) in raw.port.into_iter().enumerate() {
        let field = format!("port[{i}]");
        let port = Port::check(&field, &port)?;
        if config.ports.iter().any(|p| p.device == port.device) {
            return Err(ConfigError::duplicate(&format!("{field}.device"), port.device));
        }
        if let Some(name) =
            port.schedule.as_ref().filter(|n| config.schedules.iter().all(|s| s.name.as_ref() != Some(*n)))
        {
            let known: Vec<&str> = config.schedules.iter().filter_map(|s| s.name.as_deref()).collect();
            let expected = if known.is_empty() {
                "the name of a [[schedule]]; this file has none".to_owned()
            } else {
                format!("the name of a [[schedule]]: {}", known.join(", "))
            };
            return Err(ConfigError::value(&format!("{field}.schedule"), name, expected));
        }
        config.ports.push(port);
    }
    for (i, attachment) in raw.attachment.into_iter().enumerate() {
        let field = format!("attachment[{i}]");
        let attachment = Attachment::check(&field, attachment)?;
        if config.attachments.iter().any(|a| a.name == attachment.name) {
            return Err(ConfigError::duplicate(&format!("{field}.name"), attachment.name));
        }
        config.attachments.push(attachment);
    }
    if let Some(raw) = raw.policing {
        let ports = config.ports.iter().map(|port| port.device.as_str());
        let uplinks = config.attachments.iter().filter_map(|attachment| attachment.uplink.as_deref());
        config.policing = Some(Policing::check(raw, &ports.chain(uplinks).collect::<Vec<_>>())?);
    }
    Ok(config)
}

#[cfg(test)]
#[path = "config/policing_tests.rs"]
mod policing_tests;
#[cfg(test)]
#[path = "config/port_tests.rs"]
mod port_tests;
#[cfg(test)]
mod tests;
