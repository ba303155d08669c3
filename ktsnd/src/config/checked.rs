// SPDX-License-Identifier: Apache-2.0
//! Values that may be used without another look.

use std::net::SocketAddr;
use std::path::PathBuf;

use ktsn_model::{IpPrefix, LatePolicy, TrafficClass};
use ktsn_resolve::limits::NAMED_MAX;
use ktsn_schedule::Schedule;
use ktsn_time::Nanos;
use ktsn_wire::{MacAddress, Pcp, Tci, Vid};

use super::ConfigError;
use super::addresses::Given;
use super::capture::CaptureMode;
use super::clock::{self, ClockSource};
use super::egress::EgressMode;
use super::ethernet::Ethernet;
use super::ingress::IngressMode;
use super::metrics;
use super::overlay::Overlay;
use super::policing::Policing;
use super::port::Port;
use super::raw::{RawConfig, RawDaemon};
use super::receive::{self, ReceiveMode};
use super::schedule;
use super::segment;
use super::values::{Checked, bounded, device_name, duration, prefix, required, word};
use super::{AttachmentConfig, TakeConfig};

/// The whole configuration.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Config {
    /// `[daemon]`.
    pub daemon: Daemon,
    /// `[[port]]`.
    pub ports: Vec<Port>,
    /// `[[attachment]]`.
    pub attachments: Vec<Attachment>,
    /// `[[schedule]]`.
    pub schedules: Vec<Schedule>,
    /// `[policing]`.
    pub policing: Option<Policing>,
}

/// `[daemon]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Daemon {
    /// Sockets, state and lock; `None` = `--run-dir`, `KTSN_RUN_DIR` or `/run/ktsn`.
    pub run_dir: Option<PathBuf>,
    /// What is learnt of this machine is kept there; `None` = `KTSN_CACHE_DIR` or `/var/lib/ktsn`.
    pub cache_dir: Option<PathBuf>,
    /// Whether memory is locked.
    pub mlock: bool,
    /// Who says whether the clock is good.
    pub clock_source: ClockSource,
    /// The greatest error with which it is good; `None` = whatever its source admits.
    pub clock_error_max: Option<Nanos>,
    /// Octets of memory that all clients together have at most.
    pub memory_max: u64,
    /// Where metrics are served; `None` = nowhere.
    pub metrics_listen: Option<SocketAddr>,
    /// CPUs that all programs together may spin for expected arrivals, in thousandths of a CPU.
    pub receive_spin_max_permille: u32,
}

impl Default for Daemon {
    fn default() -> Self {
        Self {
            run_dir: None,
            cache_dir: None,
            mlock: true,
            memory_max: crate::limits::CLIENTS_MEMORY_MAX,
            receive_spin_max_permille: crate::limits::RECEIVE_SPIN_MAX,
            clock_source: ClockSource::default(),
            clock_error_max: None,
            metrics_listen: None,
        }
    }
}

/// What the clients of an attachment may have and do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientLimits {
    /// Slots of a client.
    pub slots: u32,
    /// Most octets of a client's slots.
    pub octets_max: u64,
    /// Most clients at once.
    pub clients_max: u32,
    /// Most octets of ktsnd's memory that all its clients have together.
    pub memory_max: u64,
    /// Whether unprivileged programs may use CLOCK_TAI.
    pub allow_tai: bool,
    /// The lowest priority of datagrams without transmit time that are taken; `None` = none are.
    pub take_from: Option<u8>,
    /// The period of what they receive, as the configuration states it.
    pub receive_period: Option<Nanos>,
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
    /// Its overlay network.
    pub overlay: Overlay,
    /// The addresses that are given to it.
    pub addresses: Given,
    /// Allowed prefixes; empty = the peers'.
    pub destinations: Vec<IpPrefix>,
    /// MAC addresses that packet sockets may send to.
    pub destination_macs: Vec<MacAddress>,
    /// Where frames go that are neither IP nor ARP.
    pub ethernet: Ethernet,
    /// Tag of frames that leave by the interface and bring none.
    pub tag: Option<Tci>,
    /// Bit n = class n may be used.
    pub classes: u8,
    /// What happens to late frames.
    pub late: LatePolicy,
    /// Greatest oversleep at which a frame is still sent.
    pub overrun_limit: Nanos,
    /// Furthest transmit time ahead.
    pub horizon: Nanos,
    /// Whether frames may leave by the uplink that the kernel would encrypt.
    pub allow_policy_bypass: bool,
    /// How arriving frames get into the pod.
    pub ingress: IngressMode,
    /// Which port sends what leaves by the pod's own interface.
    pub egress: EgressMode,
    /// How its programs may wait for frames.
    pub receive: ReceiveMode,
    /// How sends are seen.
    pub capture: CaptureMode,
    /// Priority of captured datagrams whose DS field names none.
    pub capture_priority: u8,
    /// What its clients may have and do.
    pub clients: ClientLimits,
    /// The configuration that it was made from, for the state file.
    pub raw: AttachmentConfig,
}

pub(super) fn check(raw: RawConfig) -> Checked<Config> {
    let mut config = Config { daemon: daemon(&raw.daemon)?, ..Config::default() };
    for (i, schedule) in raw.schedule.iter().enumerate() {
        let field = format!("schedule[{i}]");
        let schedule = schedule::check(&field, schedule)?;
        if config.schedules.iter().any(|s| s.name == schedule.name) {
            let value = schedule.name.unwrap_or_default();
            return Err(ConfigError::Duplicate { field: format!("{field}.name"), value });
        }
        config.schedules.push(schedule);
    }
    for (i, port) in raw.port.into_iter().enumerate() {
        let field = format!("port[{i}]");
        let port = Port::check(&field, &port)?;
        if config.ports.iter().any(|p| p.device == port.device) {
            return Err(ConfigError::Duplicate { field: format!("{field}.device"), value: port.device });
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
            return Err(ConfigError::Duplicate { field: format!("{field}.name"), value: attachment.name });
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

fn daemon(raw: &RawDaemon) -> Checked<Daemon> {
    Ok(Daemon {
        run_dir: raw.run_dir.as_ref().map(PathBuf::from),
        cache_dir: raw.cache_dir.as_ref().map(PathBuf::from),
        mlock: raw.mlock.unwrap_or(true),
        memory_max: bounded(
            "daemon.memory_max",
            raw.memory_max,
            crate::limits::CLIENTS_MEMORY_MAX,
            16 << 20,
            1 << 40,
        )?,
        receive_spin_max_permille: receive::spin_max_permille(
            "daemon.receive_spin_max",
            raw.receive_spin_max,
        )?,
        clock_source: word("daemon.clock_source", raw.clock_source.as_deref())?,
        clock_error_max: clock::error_max("daemon.clock_error_max", raw.clock_error_max.as_deref())?,
        metrics_listen: metrics::listen("daemon.metrics_listen", raw.metrics_listen.as_deref())?,
    })
}

impl Attachment {
    /// Checks an attachment; `field` is the path that errors begin with.
    ///
    /// # Errors
    /// [`ConfigError`] for the first fault found.
    pub fn check(field: &str, raw: AttachmentConfig) -> Checked<Self> {
        let path = |name: &str| format!("{field}.{name}");
        let name = required(&path("name"), raw.name.as_deref(), "a name that is unique on the node")?;
        let netns = required(&path("netns"), raw.netns.as_deref(), "path or name of a network namespace")?;
        let netns =
            if netns.contains('/') { PathBuf::from(netns) } else { PathBuf::from("/run/netns").join(netns) };
        let interface = device_name(&path("interface"), raw.interface.as_deref())?;
        let uplink = raw.uplink.as_deref().map(|u| device_name(&path("uplink"), Some(u))).transpose()?;
        let overlay = Overlay::check(&path("overlay.vxlan"), raw.overlay.as_ref())?;
        let (destinations, destination_macs) =
            check_destinations(&path("destinations"), raw.destinations.as_deref().unwrap_or_default())?;
        let names_no_prefix = match &overlay {
            Overlay::None | Overlay::Routed(_) => false,
            Overlay::Bridged(segment) => segment::prefixes_of(segment).next().is_none(),
            Overlay::BridgedFrom(_) => true,
        };
        if names_no_prefix && raw.destinations.as_ref().is_none_or(Vec::is_empty) {
            let expected =
                "prefixes or MAC addresses; peers that are named by MAC address give none".to_owned();
            return Err(ConfigError::Missing { field: path("destinations"), expected });
        }
        let late = word(&path("late"), raw.late.as_deref())?;
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
            horizon: span("horizon", &raw.horizon, Nanos::from_seconds(10), crate::limits::HORIZON_MAX)?,
            allow_policy_bypass: raw.allow_policy_bypass.unwrap_or(false),
            ingress: IngressMode::check(&path("ingress"), raw.ingress.as_deref(), !overlay.is_none())?,
            egress: EgressMode::check(field, name, &raw)?,
            receive: word(&path("receive"), raw.receive.as_deref())?,
            capture: word(&path("capture"), raw.capture.as_deref())?,
            capture_priority: super::capture::priority(&path("capture_priority"), raw.capture_priority)?,
            clients: ClientLimits {
                slots,
                octets_max: bounded(&path("octets_max"), raw.octets_max, 4 << 20, 1 << 17, 1 << 28)?,
                clients_max: bounded(&path("clients_max"), raw.clients_max.map(u64::from), 128, 1, 4096)?
                    as u32,
                memory_max: bounded(
                    &path("memory_max"),
                    raw.memory_max,
                    crate::limits::MEMORY_MAX,
                    1 << 20,
                    1 << 40,
                )?,
                allow_tai: raw.allow_tai.unwrap_or(true),
                take_from: take(&path("take"), raw.take.as_ref())?,
                receive_period: receive::period(&path("receive_period"), raw.receive_period.as_deref())?,
            },
            name: name.to_owned(),
            netns,
            interface,
            uplink,
            overlay,
            addresses: Given::check(&path("addresses"), raw.addresses.as_ref())?,
            destinations,
            destination_macs,
            ethernet: word(&path("ethernet"), raw.ethernet.as_deref())?,
            tag: tag(field, raw.vlan, raw.pcp)?,
            late,
            raw,
        })
    }

    /// The same with the addresses that were found when it was attached; they are kept with it.
    pub fn give(&mut self, addresses: Given) {
        self.raw.addresses = addresses.config();
        self.addresses = addresses;
    }

    /// Applies the API's default of `ethernet`: `listed`. A CNI plugin attaches pods that it does not trust, and no rule about IP
    /// addresses judges the other EtherTypes.
    #[must_use]
    pub fn by_api(mut self) -> Self {
        if self.raw.ethernet.is_none() {
            self.ethernet = Ethernet::Listed;
        }
        self
    }

    /// Whether `asked` asks for this attachment as it stands, however its values are written. One without addresses or `ethernet`
    /// asks for those that this attachment has.
    #[must_use]
    pub fn is_asked_by(&self, asked: &Self) -> bool {
        let addresses = if asked.raw.addresses.is_none() { &self.addresses } else { &asked.addresses };
        let ethernet = if asked.raw.ethernet.is_none() { self.ethernet } else { asked.ethernet };
        Self { addresses: addresses.clone(), ethernet, raw: self.raw.clone(), ..asked.clone() } == *self
    }

    /// Whether arriving frames take the ingress fast path.
    #[must_use]
    pub fn is_short(&self) -> bool {
        self.ingress == IngressMode::Short
    }

    /// Whether ktsnd takes no datagram of this attachment: no prefix is listed, and without an overlay there are no peers. An
    /// attachment with MAC addresses alone is for packet sockets.
    #[must_use]
    pub fn takes_no_datagram(&self) -> bool {
        self.overlay.is_none() && self.destinations.is_empty() && self.destination_macs.is_empty()
    }

    /// The prefixes that frames may go to; `None` = those of the peers there are.
    #[must_use]
    pub fn allowed(&self) -> Option<Vec<IpPrefix>> {
        (!self.destinations.is_empty()).then(|| self.destinations.clone())
    }
}

/// Prefixes, and MAC addresses for packet sockets.
fn check_destinations(field: &str, raw: &[String]) -> Checked<(Vec<IpPrefix>, Vec<MacAddress>)> {
    let (mut prefixes, mut macs) = (Vec::new(), Vec::new());
    for (i, text) in raw.iter().enumerate() {
        match text.parse() {
            Ok(mac) => macs.push(mac),
            Err(_) => prefixes.push(prefix(&format!("{field}[{i}]"), text)?),
        }
    }
    if macs.len() > NAMED_MAX {
        return Err(ConfigError::value(field, macs.len(), format!("at most {NAMED_MAX} MAC addresses")));
    }
    Ok((prefixes, macs))
}

/// VLAN identifiers 0 and 4095 name no VLAN (802.1Q table 9-2); without one, a tag says the priority only.
fn tag(field: &str, vlan: Option<u32>, pcp: Option<u32>) -> Checked<Option<Tci>> {
    let within = |name: &str, value: Option<u32>, smallest: u32, largest: u32| match value {
        Some(v) if !(smallest..=largest).contains(&v) => {
            Err(ConfigError::value(&format!("{field}.{name}"), v, format!("{smallest} to {largest}")))
        }
        value => Ok(value.unwrap_or(0)),
    };
    let vid = within("vlan", vlan, 1, 4094)?;
    let pcp_value = within("pcp", pcp, 0, 7)?;
    let tci = Tci {
        pcp: Pcp::new(pcp_value as u8).unwrap_or_default(),
        dei: false,
        vid: Vid::new(vid as u16).unwrap_or_default(),
    };
    Ok((vlan.is_some() || pcp.is_some()).then_some(tci))
}

fn take(field: &str, raw: Option<&TakeConfig>) -> Checked<Option<u8>> {
    const EXPECTED: &str = "txtime, all or { priority_min = 0 to 15 }";
    match raw {
        None => Ok(None),
        Some(TakeConfig::Word(word)) => match word.as_str() {
            "txtime" => Ok(None),
            "all" => Ok(Some(0)),
            _ => Err(ConfigError::value(field, word, EXPECTED)),
        },
        Some(TakeConfig::From { priority_min: least }) => {
            let checked = u8::try_from(*least).ok().filter(|least| *least <= 15);
            checked
                .map(Some)
                .ok_or_else(|| ConfigError::value(&format!("{field}.priority_min"), least, "0 to 15"))
        }
    }
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
