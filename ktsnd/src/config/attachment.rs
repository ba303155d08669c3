// SPDX-License-Identifier: Apache-2.0
//! `[[attachment]]`, in the file, in `--attach`, in the state file and in the control API.
//!
//! In: [`AttachmentConfig`], untrusted. Out: [`Attachment`], and from that the configuration with every default filled in. A new key
//! stands in `AttachmentConfig`, here in a field, in `check` and in `config`, and where it is used.

mod addresses;
mod egress;
mod flag;
mod overlay;
mod segment;

use std::ops::RangeInclusive;
use std::path::PathBuf;

use ktsn_expect::predictor::{PERIOD_MAX, PERIOD_MIN};
use ktsn_model::{IpPrefix, LatePolicy, TrafficClass};
use ktsn_proto::attachment::{AttachmentConfig, TakeConfig};
use ktsn_resolve::limits::NAMED_MAX;
use ktsn_time::Nanos;
use ktsn_wire::{MacAddress, Pcp, Tci, Vid};

use super::ConfigError;
use super::values::{Checked, bounded, device_name, prefix, required, span, time, time_or, word};
use crate::limits;
pub use addresses::Given;
pub use egress::EgressMode;
pub use flag::{attach_keys, parse_attach};
pub use overlay::{Overlay, PeersTarget, Vxlan, VxlanPeer};
pub(crate) use overlay::{check_peers, check_vni};
pub use segment::SegmentFrom;
use segment::prefixes_of;

/// Greatest `overrun_limit`.
const OVERRUN_LIMIT_MAX: Nanos = Nanos::from_seconds(10);
/// Most prefixes of peers that stand for an attachment's destinations in a listing.
const LISTED_MAX: usize = 64;

ktsn_model::words! {
    /// Where frames go that are neither IP nor ARP. IP and ARP go by prefixes.
    #[derive(Default)]
    pub enum Ethernet {
        /// Frames go to every MAC address except reserved groups; to a reserved group if `destinations` names it.
        #[default]
        Any = "any",
        /// Frames go only to MAC addresses that `destinations` names.
        Listed = "listed",
    }
}

ktsn_model::words! {
    /// How frames that arrive for the pod get into it.
    #[derive(Default)]
    pub enum IngressMode {
        /// Frames arrive by the kernel's path: VXLAN device, netfilter, bridge.
        #[default]
        Kernel = "kernel",
        /// UDP datagrams out of the overlay straight from the uplink, past all of that.
        Short = "short",
    }
}

ktsn_model::words! {
    /// How the attachment's programs may wait for frames.
    #[derive(Default)]
    pub enum ReceiveMode {
        /// As the kernel has it: a thread that waits sleeps until the frame is there.
        #[default]
        Kernel = "kernel",
        /// A program that asks may be awake when a frame is expected.
        Expect = "expect",
    }
}

ktsn_model::words! {
    /// How sends of an attachment's programs are seen.
    #[derive(Default)]
    pub enum CaptureMode {
        /// libktsn sees the sends of programs that it is preloaded into.
        #[default]
        Preload = "preload",
        /// libktsn where it is preloaded, and a BPF program at the host end of the pod's veth.
        Kernel = "kernel",
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

impl Default for ClientLimits {
    fn default() -> Self {
        Self {
            slots: 1024,
            octets_max: 4 << 20,
            clients_max: 128,
            memory_max: limits::MEMORY_MAX,
            allow_tai: true,
            take_from: None,
            receive_period: None,
        }
    }
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
    /// The keys as they were written, for the state file; but [`Self::give`] puts in the addresses that are given.
    pub raw: AttachmentConfig,
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
            Overlay::Bridged(segment) => prefixes_of(segment).next().is_none(),
            Overlay::BridgedFrom(_) => true,
        };
        if names_no_prefix && raw.destinations.as_ref().is_none_or(Vec::is_empty) {
            let expected = "prefixes or MAC addresses; peers that are named by MAC address give none";
            return Err(ConfigError::missing(&path("destinations"), expected));
        }
        let time = |name: &str, text: &Option<String>, default: Nanos, largest: Nanos| {
            time_or(&path(name), text.as_deref(), default, largest)
        };
        let defaults = ClientLimits::default();
        let octets = |name: &str, value: Option<u64>, default: u64, range: RangeInclusive<u64>| {
            bounded(&path(name), value, default, &range)
        };
        Ok(Self {
            classes: classes(&path("classes"), raw.classes.as_deref())?,
            late: word(&path("late"), raw.late.as_deref())?,
            overrun_limit: time(
                "overrun_limit",
                &raw.overrun_limit,
                limits::OVERRUN_LIMIT_DEFAULT,
                OVERRUN_LIMIT_MAX,
            )?,
            horizon: time("horizon", &raw.horizon, Nanos::from_seconds(10), limits::HORIZON_MAX)?,
            allow_policy_bypass: raw.allow_policy_bypass.unwrap_or(false),
            ingress: ingress(&path("ingress"), raw.ingress.as_deref(), !overlay.is_none())?,
            egress: EgressMode::check(field, name, &raw)?,
            receive: word(&path("receive"), raw.receive.as_deref())?,
            capture: word(&path("capture"), raw.capture.as_deref())?,
            capture_priority: bounded(&path("capture_priority"), raw.capture_priority, 0, &(0..=15))? as u8,
            clients: ClientLimits {
                slots: bounded(&path("slots"), raw.slots, defaults.slots, &(64..=4096))?,
                clients_max: bounded(
                    &path("clients_max"),
                    raw.clients_max,
                    defaults.clients_max,
                    &(1..=4096),
                )?,
                octets_max: octets("octets_max", raw.octets_max, defaults.octets_max, 1 << 17..=1 << 28)?,
                memory_max: octets("memory_max", raw.memory_max, defaults.memory_max, 1 << 20..=1 << 40)?,
                allow_tai: raw.allow_tai.unwrap_or(defaults.allow_tai),
                take_from: take(&path("take"), raw.take.as_ref())?,
                receive_period: period(&path("receive_period"), raw.receive_period.as_deref())?,
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
            raw,
        })
    }

    /// The configuration with every default filled in. What only a device knows, and the device is away, is left out.
    #[must_use]
    pub fn config(&self) -> AttachmentConfig {
        AttachmentConfig {
            name: Some(self.name.clone()),
            netns: Some(self.netns.display().to_string()),
            interface: Some(self.interface.clone()),
            uplink: self.uplink.clone(),
            overlay: Some(self.overlay.config()),
            addresses: self.addresses.config(),
            destinations: Some(self.listed_destinations(std::iter::empty())),
            ethernet: Some(self.ethernet.word().to_owned()),
            classes: Some(
                (0..TrafficClass::COUNT as u8).filter(|class| self.classes & (1 << class) != 0).collect(),
            ),
            late: Some(self.late.word().to_owned()),
            overrun_limit: Some(span(self.overrun_limit)),
            horizon: Some(span(self.horizon)),
            allow_tai: Some(self.clients.allow_tai),
            allow_policy_bypass: Some(self.allow_policy_bypass),
            take: Some(match self.clients.take_from {
                None => TakeConfig::Word("txtime".to_owned()),
                Some(0) => TakeConfig::Word("all".to_owned()),
                Some(least) => TakeConfig::From { priority_min: u64::from(least) },
            }),
            vlan: self.tag.map(|tag| u32::from(tag.vid.get())).filter(|vid| *vid != 0),
            pcp: self.tag.map(|tag| u32::from(tag.pcp.get())),
            ingress: Some(self.ingress.word().to_owned()),
            egress: Some(self.egress.word().to_owned()),
            vhost_socket: self.egress.keys().0,
            vhost_queues: self.egress.keys().1,
            receive: Some(self.receive.word().to_owned()),
            receive_period: self.clients.receive_period.map(span),
            capture: Some(self.capture.word().to_owned()),
            capture_priority: Some(u32::from(self.capture_priority)),
            slots: Some(self.clients.slots),
            clients_max: Some(self.clients.clients_max),
            octets_max: Some(self.clients.octets_max),
            memory_max: Some(self.clients.memory_max),
        }
    }

    /// The destinations, or what stands for them in a listing: the prefixes of peers, of `learnt` ones first.
    pub(crate) fn listed_destinations(&self, learnt: impl Iterator<Item = IpPrefix>) -> Vec<String> {
        let allowed = self.allowed().unwrap_or_else(|| {
            let configured = self.overlay.bridged().into_iter().flat_map(prefixes_of);
            learnt.chain(configured).take(LISTED_MAX).collect()
        });
        let macs = self.destination_macs.iter().map(ToString::to_string);
        allowed.iter().map(ToString::to_string).chain(macs).collect()
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

/// The ingress fast path takes an overlay's frames.
fn ingress(field: &str, text: Option<&str>, has_overlay: bool) -> Checked<IngressMode> {
    let mode = word(field, text)?;
    if mode == IngressMode::Short && !has_overlay {
        let expected = "kernel without an overlay: the ingress fast path takes an overlay's frames (overlay = { vxlan = … })";
        return Err(ConfigError::value(field, mode, expected));
    }
    Ok(mode)
}

/// `receive_period`: the period of what the attachment's programs receive, where it is known.
fn period(field: &str, text: Option<&str>) -> Checked<Option<Nanos>> {
    let Some(text) = text else { return Ok(None) };
    let expected = "a time from 50us to 10s with its unit, such as 1ms";
    let read = time(text, PERIOD_MIN, PERIOD_MAX).ok_or_else(|| ConfigError::value(field, text, expected));
    read.map(Some)
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
    let vid = bounded(&format!("{field}.vlan"), vlan, 0, &(1..=4094))?;
    let pcp_value = bounded(&format!("{field}.pcp"), pcp, 0, &(0..=7))?;
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
