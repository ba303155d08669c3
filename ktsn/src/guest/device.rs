// SPDX-License-Identifier: Apache-2.0
//! What a device is and has now.
//!
//! In: its name. Out: [`Facts`], from ioctls and `tc`. Changes nothing.

use super::sys;
use ktsn_host::HostError;
use ktsn_host::command;
use serde::Deserialize;

/// A device as a plan needs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Facts {
    pub(super) device: String,
    pub(super) ifindex: u32,
    pub(super) mac: [u8; 6],
    /// The driver's name, such as `virtio_net`; empty where there is none.
    pub(super) driver: String,
    pub(super) is_up: bool,
    /// Queue pairs that it can have, and has.
    pub(super) queues: (u32, u32),
    /// Speed in Mbit/s (`u32::MAX`: unknown) and duplex; `None`: the driver says nothing of a link.
    pub(super) link: Option<(u32, u8)>,
    /// The qdisc that was set as root; `None`: the kernel's default.
    pub(super) root: Option<Qdisc>,
}

/// One qdisc as `tc -j -s` shows it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(super) struct Qdisc {
    pub(super) kind: String,
    pub(super) handle: String,
    #[serde(default)]
    pub(super) root: bool,
    /// What the qdisc above counts for its own, too.
    #[serde(default)]
    pub(super) drops: u64,
    #[serde(default)]
    pub(super) options: serde_json::Value,
}

impl Qdisc {
    /// A software `taprio`: without txtime-assist and without offload.
    pub(super) fn is_software_taprio(&self) -> bool {
        let flags = self.options.get("flags").and_then(|flags| {
            flags.as_u64().or_else(|| u64::from_str_radix(flags.as_str()?.trim_start_matches("0x"), 16).ok())
        });
        self.kind == "taprio" && flags.unwrap_or(0) == 0
    }
}

/// The qdiscs of a device.
///
/// # Errors
/// `tc` is missing or fails, or shows no JSON.
pub(super) fn qdiscs(device: &str) -> Result<Vec<Qdisc>, HostError> {
    let line = format!("tc -j -s qdisc show dev {device}");
    parsed(&command::output(None, &line)?).map_err(|error| HostError::Command {
        command: line,
        status: "unreadable answer".to_owned(),
        stderr: error.to_string(),
    })
}

/// Reads the JSON of `tc -j -s qdisc show`.
pub(super) fn parsed(text: &str) -> Result<Vec<Qdisc>, serde_json::Error> {
    if text.trim().is_empty() { Ok(Vec::new()) } else { serde_json::from_str(text) }
}

/// The root qdisc that was set. A handle of 0 is the kernel's default.
pub(super) fn root_of(qdiscs: Vec<Qdisc>) -> Option<Qdisc> {
    qdiscs.into_iter().find(|qdisc| qdisc.root && qdisc.handle != "0:")
}

/// The device's index; `None` if there is no such device.
pub(super) fn ifindex(device: &str) -> Option<u32> {
    sys::ifindex(device).ok()
}

/// Whether a name can be a device's: it goes into paths and command lines.
pub(super) fn is_name(device: &str) -> bool {
    let is_allowed = |octet: u8| octet.is_ascii_graphic() && !matches!(octet, b'/' | b':');
    !matches!(device, "" | "." | "..") && device.len() <= 15 && device.bytes().all(is_allowed)
}

/// # Errors
/// [`HostError::Usage`]: it can be no device's name.
pub(super) fn check_name(device: &str) -> Result<(), HostError> {
    if is_name(device) {
        return Ok(());
    }
    Err(HostError::Usage(format!(
        "--device {device:?}: expected a device's name of 1 to 15 octets, without space, colon and slash"
    )))
}

/// Reads what the device is.
///
/// # Errors
/// [`HostError::Usage`]: no such device.
pub(super) fn facts(device: &str) -> Result<Facts, HostError> {
    check_name(device)?;
    let ifindex = ifindex(device).ok_or_else(|| {
        HostError::Usage(format!(
            "--device {device}: no such device in this network namespace; `ip link` lists them"
        ))
    })?;
    let mac = sys::mac(device).map_err(HostError::system("SIOCGIFHWADDR"))?.ok_or_else(|| {
        HostError::Usage(format!("--device {device}: expected an Ethernet device, found another kind"))
    })?;
    Ok(Facts {
        device: device.to_owned(),
        ifindex,
        mac,
        driver: sys::driver(device).unwrap_or_default(),
        is_up: sys::is_up(device).map_err(HostError::system("SIOCGIFFLAGS"))?,
        // A driver that knows no channels has one.
        queues: sys::queues(device).unwrap_or((1, 1)),
        link: sys::link(device).ok(),
        root: root_of(qdiscs(device)?),
    })
}
