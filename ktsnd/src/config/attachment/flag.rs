// SPDX-License-Identifier: Apache-2.0
//! `--attach NETNS:IFACE[,key=value…]`: the keys of an attachment and of its overlay side by side.

use super::Attachment;
use crate::config::ConfigError;
use ktsn_proto::attachment::{AttachmentConfig, OverlayConfig, VxlanConfig};

/// The keys that NETNS:IFACE stands for.
const PLACE: [&str; 2] = ["netns", "interface"];
/// Keys of lists, and their names for one entry. Such a key may be repeated.
const ENTRIES: [(&str, &str); 5] = [
    ("addresses", "address"),
    ("destinations", "destination"),
    ("classes", "class"),
    ("peers", "peer"),
    ("flood", "flood"),
];

/// The keys of `--attach`, as a refusal and ktsnd's help list them.
#[must_use]
pub fn attach_keys() -> String {
    let all = AttachmentConfig::KEYS.iter().chain(VxlanConfig::KEYS);
    let named = all.filter(|key| **key != "overlay" && !PLACE.contains(key)).map(|key| {
        ENTRIES
            .iter()
            .find(|entry| entry.0 == *key)
            .map_or((*key).to_owned(), |entry| format!("{} (repeatable)", entry.1))
    });
    let list: Vec<String> = named.collect();
    format!(
        "{}; take=txtime|all|PRIORITY_MIN, peer=PREFIX@VTEP@MAC, in mode=bridged PREFIX@VTEP or MAC@VTEP",
        list.join(", ")
    )
}

/// Parses the value of one `--attach`.
///
/// # Errors
/// [`ConfigError`] naming the key at fault.
pub fn parse_attach(text: &str) -> Result<Attachment, ConfigError> {
    let mut parts = text.split(',');
    let place = parts.next().unwrap_or_default();
    // A namespace may be a path; the interface never holds a colon.
    let Some((netns, interface)) = place.rsplit_once(':') else {
        return Err(ConfigError::value("--attach", text, "NETNS:INTERFACE[,key=value…]"));
    };
    let mut raw = AttachmentConfig {
        netns: Some(netns.to_owned()),
        interface: Some(interface.to_owned()),
        name: Some(format!("{}/{interface}", netns.rsplit('/').next().unwrap_or(netns))),
        ..AttachmentConfig::default()
    };
    let mut vxlan = VxlanConfig::default();
    for part in parts {
        let Some((name, value)) = part.split_once('=') else {
            return Err(ConfigError::value("--attach", part, "key=value"));
        };
        let key = ENTRIES.iter().find(|entry| entry.1 == name).map_or(name, |entry| entry.0);
        let found =
            if PLACE.contains(&key) { None } else { raw.set(key, value).or_else(|| vxlan.set(key, value)) };
        let Some(result) = found else {
            return Err(ConfigError::value("--attach", name, format!("one of {}", attach_keys())));
        };
        result.map_err(|expected| ConfigError::value(&format!("--attach {name}"), value, expected))?;
    }
    if vxlan != VxlanConfig::default() {
        raw.overlay = Some(OverlayConfig::Vxlan(Box::new(vxlan)));
    }
    Attachment::check("--attach", raw)
}
