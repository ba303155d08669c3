// SPDX-License-Identifier: Apache-2.0
//! Values that may be used without another look.

use std::net::IpAddr;
use std::path::PathBuf;

use ktsn_model::{IpPrefix, LatePolicy, PriorityMap, TrafficClass, UnsynchronisedPolicy};
use ktsn_time::Nanos;
use ktsn_wire::MacAddress;

use super::ConfigError;
use super::raw::{RawAttachment, RawConfig, RawDaemon, RawOverlay, RawPort, RawVxlan, RawVxlanPeer};

/// The whole configuration.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Config {
    /// `[daemon]`.
    pub daemon: Daemon,
    /// `[[port]]`.
    pub ports: Vec<Port>,
    /// `[[attachment]]`.
    pub attachments: Vec<Attachment>,
}

/// `[daemon]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Daemon {
    /// Sockets, state and lock; `None` = `--run-dir`, `KTSN_RUN_DIR` or `/run/ktsn`.
    pub run_dir: Option<PathBuf>,
    /// Whether memory is locked.
    pub mlock: bool,
}

impl Default for Daemon {
    fn default() -> Self {
        Self { run_dir: None, mlock: true }
    }
}

/// Which adapter a port is asked to use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AdapterChoice {
    /// AF_XDP in copy mode, else AF_PACKET.
    #[default]
    Auto,
    /// AF_XDP or nothing.
    AfXdp,
    /// AF_PACKET with qdisc bypass.
    AfPacket,
}

/// How long before a transmit time the worker stops sleeping.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SpinMargin {
    /// Follows the measured wake-up lateness.
    #[default]
    Adaptive,
    /// Fixed.
    Fixed(Nanos),
}

/// `[[port]]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Port {
    /// Network device, in ktsnd's namespace.
    pub device: String,
    /// Adapter asked for.
    pub adapter: AdapterChoice,
    /// bit/s; `None` = what ethtool says.
    pub link_speed: Option<u64>,
    /// Priority → traffic class.
    pub priority_map: PriorityMap,
    /// Spin margin.
    pub spin_margin: SpinMargin,
    /// Greatest share of a second spent spinning, in parts per thousand.
    pub spin_duty_max_permille: u32,
    /// CPU the worker is pinned to.
    pub cpu: Option<u32>,
    /// SCHED_FIFO priority of the worker; 0 = an ordinary thread.
    pub priority: u32,
    /// What happens while the clock is unsynchronised.
    pub unsynchronised: UnsynchronisedPolicy,
}

impl Port {
    /// A port with all defaults.
    #[must_use]
    pub fn on(device: &str) -> Self {
        Self {
            device: device.to_owned(),
            adapter: AdapterChoice::Auto,
            link_speed: None,
            priority_map: PriorityMap::default(),
            spin_margin: SpinMargin::Adaptive,
            spin_duty_max_permille: 800,
            cpu: None,
            priority: 50,
            unsynchronised: UnsynchronisedPolicy::Send,
        }
    }
}

/// `overlay = { vxlan = … }` in routed mode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vxlan {
    /// Network identifier, 24 bit.
    pub vni: u32,
    /// UDP destination port.
    pub port: u16,
    /// This node's address.
    pub local: IpAddr,
    /// This node's VXLAN device.
    pub device: String,
    /// The other nodes.
    pub peers: Vec<VxlanPeer>,
}

/// One remote node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VxlanPeer {
    /// Its pods.
    pub prefix: IpPrefix,
    /// Its address.
    pub vtep: IpAddr,
    /// Its VXLAN device's MAC address.
    pub mac: MacAddress,
}

/// `[[attachment]]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attachment {
    /// Unique on the node.
    pub name: String,
    /// Path of the pod's network namespace.
    pub netns: PathBuf,
    /// The pod's interface.
    pub interface: String,
    /// Device of the Port that remote frames leave by; `None` = the default route's.
    pub uplink: Option<String>,
    /// Overlay, or none.
    pub overlay: Option<Vxlan>,
    /// Allowed prefixes; empty = the peers' prefixes.
    pub destinations: Vec<IpPrefix>,
    /// Bit n = class n may be used.
    pub classes: u8,
    /// What happens to late frames.
    pub late: LatePolicy,
    /// Greatest oversleep at which a frame is still sent.
    pub overrun_limit: Nanos,
    /// Furthest transmit time ahead.
    pub horizon: Nanos,
    /// Whether unprivileged programs may use CLOCK_TAI.
    pub allow_tai: bool,
    /// Slots a client gets.
    pub slots: u32,
    /// Most clients at once.
    pub clients_max: u32,
    /// Most octets of slots a client gets.
    pub octets_max: u64,
    /// As it was written, for the state file and for listing.
    pub raw: RawAttachment,
}

type Checked<T> = Result<T, ConfigError>;

pub(super) fn check(raw: RawConfig) -> Checked<Config> {
    let mut config = Config { daemon: daemon(raw.daemon), ..Config::default() };
    for (i, port) in raw.port.into_iter().enumerate() {
        let field = format!("port[{i}]");
        let port = check_port(&field, &port)?;
        if config.ports.iter().any(|p| p.device == port.device) {
            return Err(ConfigError::Duplicate { field: format!("{field}.device"), value: port.device });
        }
        config.ports.push(port);
    }
    for (i, attachment) in raw.attachment.into_iter().enumerate() {
        let field = format!("attachment[{i}]");
        let attachment = Attachment::check(&field, attachment)?;
        if config.attachments.iter().any(|a| a.name == attachment.name) {
            return Err(ConfigError::Duplicate { field: format!("{field}.name"), value: attachment.name });
        }
        config.attachments.push(attachment);
    }
    Ok(config)
}

fn daemon(raw: RawDaemon) -> Daemon {
    Daemon { run_dir: raw.run_dir.map(PathBuf::from), mlock: raw.mlock.unwrap_or(true) }
}

fn check_port(field: &str, raw: &RawPort) -> Checked<Port> {
    let device = device_name(&format!("{field}.device"), raw.device.as_deref())?;
    let mut port = Port::on(&device);
    if let Some(netns) = &raw.netns {
        return Err(ConfigError::value(
            &format!("{field}.netns"),
            netns,
            "no value: an uplink lies in ktsnd's own namespace; run ktsnd there",
        ));
    }
    port.adapter = match raw.adapter.as_deref() {
        None | Some("auto") => AdapterChoice::Auto,
        Some("af_xdp") => AdapterChoice::AfXdp,
        Some("af_packet") => AdapterChoice::AfPacket,
        Some(other) => {
            return Err(ConfigError::value(&format!("{field}.adapter"), other, "auto, af_xdp or af_packet"));
        }
    };
    if let Some(mode) = raw.mode.as_deref().filter(|m| *m != "shared") {
        return Err(ConfigError::value(&format!("{field}.mode"), mode, "shared"));
    }
    if raw.link_speed == Some(0) {
        return Err(ConfigError::value(&format!("{field}.link_speed"), 0, "bit/s, at least 1"));
    }
    port.link_speed = raw.link_speed;
    if let Some(map) = &raw.priority_map {
        let name = format!("{field}.priority_map");
        let classes: [u8; 16] = map.as_slice().try_into().map_err(|_| {
            ConfigError::value(&name, format!("{} entries", map.len()), "16 traffic classes, one a priority")
        })?;
        port.priority_map = PriorityMap::new(classes)
            .map_err(|e| ConfigError::value(&name, e.value, "traffic classes 0 to 7"))?;
    }
    if let Some(margin) = raw.spin_margin.as_deref().filter(|m| *m != "adaptive") {
        let name = format!("{field}.spin_margin");
        port.spin_margin = SpinMargin::Fixed(duration(&name, margin, Nanos::ZERO, Nanos::from_millis(10))?);
    }
    if let Some(duty) = raw.spin_duty_max {
        if !(0.0..=0.95).contains(&duty) {
            return Err(ConfigError::value(
                &format!("{field}.spin_duty_max"),
                duty,
                "0 to 0.95 (the kernel throttles SCHED_FIFO above)",
            ));
        }
        port.spin_duty_max_permille = (duty * 1000.0).round() as u32;
    }
    port.cpu = raw.cpu;
    if let Some(priority) = raw.priority {
        if priority > 99 {
            return Err(ConfigError::value(
                &format!("{field}.priority"),
                priority,
                "a SCHED_FIFO priority of 1 to 99, or 0 for an ordinary thread",
            ));
        }
        port.priority = priority;
    }
    match raw.unsynchronised.as_deref() {
        None | Some("send") => {}
        Some(other) => {
            return Err(ConfigError::value(&format!("{field}.unsynchronised"), other, "send"));
        }
    }
    Ok(port)
}

impl Attachment {
    /// Checks an attachment; `field` is the path that errors begin with.
    ///
    /// # Errors
    /// [`ConfigError`] for the first fault found.
    pub fn check(field: &str, raw: RawAttachment) -> Checked<Self> {
        let path = |name: &str| format!("{field}.{name}");
        let name = required(&path("name"), raw.name.as_deref(), "a name that is unique on the node")?;
        let netns = required(&path("netns"), raw.netns.as_deref(), "path or name of a network namespace")?;
        let netns =
            if netns.contains('/') { PathBuf::from(netns) } else { PathBuf::from("/run/netns").join(netns) };
        let interface = device_name(&path("interface"), raw.interface.as_deref())?;
        let uplink = raw.uplink.as_deref().map(|u| device_name(&path("uplink"), Some(u))).transpose()?;
        let overlay = match &raw.overlay {
            None | Some(RawOverlay::None) => None,
            Some(RawOverlay::Vxlan(vxlan)) => Some(check_vxlan(&path("overlay.vxlan"), vxlan)?),
        };
        let mut destinations = Vec::new();
        for (i, text) in raw.destinations.iter().flatten().enumerate() {
            destinations.push(prefix(&format!("{field}.destinations[{i}]"), text)?);
        }
        let late = match raw.late.as_deref() {
            None => LatePolicy::default(),
            Some(word) => LatePolicy::from_word(word)
                .ok_or_else(|| ConfigError::value(&path("late"), word, LatePolicy::WORDS.join(", ")))?,
        };
        let span = |name: &str, text: &Option<String>, default: Nanos, largest: Nanos| match text {
            None => Ok(default),
            Some(text) => duration(&path(name), text, Nanos::new(1), largest),
        };
        let slots = bounded(&path("slots"), raw.slots.map(u64::from), 1024, 64, 4096)? as u32;
        Ok(Self {
            classes: classes(&path("classes"), raw.classes.as_deref())?,
            overrun_limit: span(
                "overrun_limit",
                &raw.overrun_limit,
                Nanos::from_millis(1),
                Nanos::from_seconds(10),
            )?,
            horizon: span("horizon", &raw.horizon, Nanos::from_seconds(10), Nanos::from_seconds(3600))?,
            allow_tai: raw.allow_tai.unwrap_or(true),
            clients_max: bounded(&path("clients_max"), raw.clients_max.map(u64::from), 256, 1, 4096)? as u32,
            octets_max: bounded(&path("octets_max"), raw.octets_max, 4 << 20, 1 << 17, 1 << 28)?,
            name: name.to_owned(),
            netns,
            interface,
            uplink,
            overlay,
            destinations,
            late,
            slots,
            raw,
        })
    }

    /// The prefixes that frames may go to.
    #[must_use]
    pub fn allowed(&self) -> Vec<IpPrefix> {
        if self.destinations.is_empty() {
            self.overlay.iter().flat_map(|o| o.peers.iter().map(|p| p.prefix)).collect()
        } else {
            self.destinations.clone()
        }
    }
}

fn check_vxlan(field: &str, raw: &RawVxlan) -> Checked<Vxlan> {
    let path = |name: &str| format!("{field}.{name}");
    if let Some(mode) = raw.mode.as_deref().filter(|m| *m != "routed") {
        return Err(ConfigError::value(&path("mode"), mode, "routed"));
    }
    let vni = raw.vni.unwrap_or(1);
    if vni == 0 || vni >= 1 << 24 {
        return Err(ConfigError::value(&path("vni"), vni, "1 to 16777215"));
    }
    if raw.port == Some(0) {
        return Err(ConfigError::value(&path("port"), 0, "a UDP port, 1 to 65535"));
    }
    let local = address(&path("local"), raw.local.as_deref())?;
    let mut peers: Vec<VxlanPeer> = Vec::new();
    for (i, peer) in raw.peers.iter().enumerate() {
        let peer = check_peer(&format!("{field}.peers[{i}]"), peer)?;
        if peer.vtep.is_ipv4() != local.is_ipv4() {
            let field = format!("{field}.peers[{i}].vtep");
            return Err(ConfigError::value(&field, peer.vtep, "an address of the same family as `local`"));
        }
        if peers.iter().any(|p| p.prefix == peer.prefix) {
            let value = peer.prefix.to_string();
            return Err(ConfigError::Duplicate { field: format!("{field}.peers[{i}].prefix"), value });
        }
        peers.push(peer);
    }
    let device = device_name(&path("device"), Some(raw.device.as_deref().unwrap_or("flannel.1")))?;
    Ok(Vxlan { vni, port: raw.port.unwrap_or(8472), local, device, peers })
}

fn check_peer(field: &str, raw: &RawVxlanPeer) -> Checked<VxlanPeer> {
    let prefix_field = format!("{field}.prefix");
    let text = required(&prefix_field, raw.prefix.as_deref(), "the peer's pods, for example 10.244.1.0/24")?;
    let mac_field = format!("{field}.mac");
    let mac = required(&mac_field, raw.mac.as_deref(), "the MAC address of the peer's VXLAN device")?;
    Ok(VxlanPeer {
        prefix: prefix(&prefix_field, text)?,
        vtep: address(&format!("{field}.vtep"), raw.vtep.as_deref())?,
        mac: mac
            .parse()
            .map_err(|_| ConfigError::value(&mac_field, mac, "six octets such as 02:00:00:00:00:01"))?,
    })
}

fn required<'a>(field: &str, value: Option<&'a str>, expected: &str) -> Checked<&'a str> {
    value
        .filter(|v| !v.is_empty())
        .ok_or_else(|| ConfigError::Missing { field: field.to_owned(), expected: expected.to_owned() })
}

fn device_name(field: &str, value: Option<&str>) -> Checked<String> {
    let name = required(field, value, "the name of a network device")?;
    let fits = name.len() < 16
        && name != "."
        && name != ".."
        && name.bytes().all(|b| b.is_ascii_graphic() && b != b'/' && b != b':');
    if fits {
        Ok(name.to_owned())
    } else {
        Err(ConfigError::value(field, name, "a device name of 1 to 15 characters without '/' and ':'"))
    }
}

fn address(field: &str, value: Option<&str>) -> Checked<IpAddr> {
    let text = required(field, value, "an IP address")?;
    text.parse().map_err(|_| ConfigError::value(field, text, "an IP address"))
}

fn prefix(field: &str, text: &str) -> Checked<IpPrefix> {
    text.parse()
        .map_err(|e: ktsn_model::PrefixError| ConfigError::value(field, text, format!("a prefix: {e}")))
}

fn duration(field: &str, text: &str, smallest: Nanos, largest: Nanos) -> Checked<Nanos> {
    let nanos = humantime::parse_duration(text)
        .ok()
        .and_then(|d| i64::try_from(d.as_nanos()).ok())
        .map(Nanos::new)
        .filter(|n| (smallest..=largest).contains(n));
    nanos.ok_or_else(|| {
        let expected = format!("a time between {smallest} and {largest} with its unit, such as 300us or 1ms");
        ConfigError::value(field, text, expected)
    })
}

fn classes(field: &str, raw: Option<&[u8]>) -> Checked<u8> {
    let Some(raw) = raw else { return Ok(0xff) };
    let mut bits = 0;
    for class in raw {
        let class = TrafficClass::new(*class)
            .map_err(|e| ConfigError::value(field, e.value, "traffic classes 0 to 7"))?;
        bits |= 1 << class.get();
    }
    if bits == 0 {
        return Err(ConfigError::value(field, "[]", "at least one traffic class"));
    }
    Ok(bits)
}

fn bounded(field: &str, value: Option<u64>, default: u64, smallest: u64, largest: u64) -> Checked<u64> {
    match value {
        None => Ok(default),
        Some(v) if (smallest..=largest).contains(&v) => Ok(v),
        Some(v) => Err(ConfigError::value(field, v, format!("{smallest} to {largest}"))),
    }
}
