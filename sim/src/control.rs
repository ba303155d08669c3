// SPDX-License-Identifier: Apache-2.0
//! What ktsnd's control plane would make for the worker: tables, policies, clients, the transmission selection.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use ktsn_model::{IpPrefix, LatePolicy};
use ktsn_resolve::{
    AttachmentIndex, AttachmentTables, Link, LinkTable, Neighbour, Overlay, Peer, PortIndex, Route, Tables,
    Tunnel, Via, Vxlan, VxlanRouted,
};
use ktsn_ring::{ClientMapping, Consumer, Destination, DestinationAction, Layout, StreamCode, StreamStatus};
use ktsn_sched::policing::{
    FlowMeter, PolicingConfig, StreamFilter, StreamHandle, StreamIdentification, StreamIdentity, StreamMatch,
};
use ktsn_time::Nanos;
use ktsn_wire::{MacAddress, Vni};
use ktsnd::stats::AttachmentStats;
use ktsnd::worker::{AttachmentPolicy, Client, ClientKey, Policing, StreamInfo, Usage};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use crate::plan::{HORIZON, OVERRUN_LIMIT, TenantPlan};
use crate::tenant::{Process, TOKEN};

/// UDP port of VXLAN on the virtual wire.
pub const VXLAN_PORT: u16 = 8472;
const UPLINK: Ipv4Addr = Ipv4Addr::new(192, 168, 50, 1);
const REMOTE_VTEP: Ipv4Addr = Ipv4Addr::new(192, 168, 50, 2);

/// The address of a tenant's pod: the daemon writes it into every frame, so the wire knows which tenant sent it.
#[must_use]
pub const fn pod(tenant: u16) -> Ipv4Addr {
    Ipv4Addr::new(10, 244, 0, 5 + tenant as u8)
}

/// The tenant with this pod address.
#[must_use]
pub fn tenant_of(address: IpAddr) -> Option<u16> {
    let IpAddr::V4(address) = address else { return None };
    let [10, 244, 0, last] = address.octets() else { return None };
    last.checked_sub(5).map(u16::from)
}

/// What keeps anything from being made: descriptors or memory of the machine that the simulation itself runs on.
pub type Unmade = Box<dyn std::error::Error>;

fn link(
    port: u16,
    if_index: u32,
    mac: u8,
    address: Ipv4Addr,
    mtu: u32,
    routes: Vec<Route>,
    neighbours: Vec<Neighbour>,
) -> Result<LinkTable, Unmade> {
    let mac = MacAddress([2, 0, 0, 0, 0, mac]);
    let addresses = vec![(IpAddr::V4(address), 24)];
    Ok(LinkTable::new(Link { port: PortIndex(port), if_index, mac, mtu, addresses, routes, neighbours })?)
}

fn on_link(prefix: &str) -> Result<Route, Unmade> {
    Ok(Route { prefix: prefix.parse()?, via: Via::OnLink, source: None })
}

fn attachment(tenant: u16, known: bool) -> Result<AttachmentTables, Unmade> {
    let gateway = Ipv4Addr::new(10, 244, 0, 1);
    let neighbour =
        |address, last| Neighbour { address: IpAddr::V4(address), mac: MacAddress([2, 0, 0, 0, 9, last]) };
    let default =
        Route { prefix: "0.0.0.0/0".parse()?, via: Via::Gateway(IpAddr::V4(gateway)), source: None };
    let vtep_known = if known { vec![neighbour(REMOTE_VTEP, 1)] } else { Vec::new() };
    let vxlan = Vxlan {
        tunnel: Tunnel {
            udp_checksum: false,
            ..Tunnel::new(Vni::new(1).ok_or("VNI 1")?, VXLAN_PORT, IpAddr::V4(UPLINK))
        },
        device_mac: MacAddress([2, 0, 0, 0, 1, 1]),
        peers: vec![Peer {
            prefix: "10.244.1.0/24".parse()?,
            vtep: IpAddr::V4(REMOTE_VTEP),
            mac: MacAddress([2, 0, 0, 0, 1, 2]),
        }],
    };
    let (port, last) = (tenant + 1, 5 + tenant as u8);
    Ok(AttachmentTables::new(
        link(
            port,
            u32::from(port) + 1,
            last,
            pod(tenant),
            1_450,
            vec![on_link("10.244.0.0/24")?, default],
            vec![neighbour(gateway, last)],
        )?,
        link(0, 1, 1, UPLINK, 1_500, vec![on_link("192.168.50.0/24")?], vtep_known)?.into(),
        Overlay::VxlanRouted(VxlanRouted::new(vxlan)?),
        None,
    )?)
}

/// Tables of all tenants; `known[i]` says whether the next hop of tenant i is known.
///
/// # Errors
/// Never for a plan's tenants: the values are all ours.
pub fn tables(generation: u64, known: &[bool]) -> Result<Arc<Tables>, Unmade> {
    let all: Result<Vec<_>, _> =
        known.iter().enumerate().map(|(tenant, known)| attachment(tenant as u16, *known).map(Some)).collect();
    Ok(Arc::new(Tables::new(generation, all?)?))
}

/// The meters of all tenants: each attachment is the stream with its number.
///
/// # Errors
/// Never for a plan's meters.
pub fn policing(tenants: &[TenantPlan]) -> Result<Option<Box<Policing>>, Unmade> {
    let mut config = PolicingConfig::default();
    for (tenant, plan) in tenants.iter().enumerate() {
        let Some(meter) = plan.meter else { continue };
        let flow_meter = Some(config.flow_meters.len());
        let stream = Some(StreamHandle(tenant as u32));
        config.stream_filters.push(StreamFilter { stream, flow_meter, ..StreamFilter::default() });
        config.flow_meters.push(FlowMeter {
            committed_information_rate: meter.rate,
            committed_burst_size: meter.burst,
            ..FlowMeter::default()
        });
    }
    let is_policed = !config.stream_filters.is_empty();
    Ok(if is_policed { Some(Box::new(Policing::new(&config)?)) } else { None })
}

fn streams(tenant: u16) -> StreamIdentification {
    let (matches, stream) = (StreamMatch::All { attachment: None }, StreamHandle(tenant.into()));
    // One entry is no fault.
    StreamIdentification::new(&[StreamIdentity { matches, stream }]).unwrap_or_default()
}

/// The policy of a tenant that may use one class.
#[must_use]
pub fn policy(tenant: u16, class: u8, stats: &Arc<AttachmentStats>) -> Box<AttachmentPolicy> {
    Box::new(AttachmentPolicy {
        classes: 1 << class,
        late: LatePolicy::ByClock,
        overrun_limit: Nanos::new(OVERRUN_LIMIT as i64),
        horizon: Nanos::new(HORIZON as i64),
        streams: streams(tenant),
        stats: stats.clone(),
        usage: Usage::default(),
    })
}

/// A process that attaches: what the registrar makes of it, both ends.
///
/// # Errors
/// The machine has no descriptors or memory left.
pub fn client(tenant: u16, key: ClientKey, slots: u32) -> Result<(Box<Client>, Process), Unmade> {
    let layout = Layout::new(slots, 2_048, ktsnd::limits::STREAMS_MAX, 64)?;
    let (mut consumer, memfd) = Consumer::create(layout)?;
    let (address, prefix_bits) = "10.244.1.0/24".parse::<IpPrefix>()?.mapped();
    let action = DestinationAction::Take;
    consumer.set_destinations(&[Destination {
        address: address.octets(),
        prefix_bits,
        action,
        payload_max: 1_422,
    }])?;
    let mapping = ClientMapping::open(&memfd)?;
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    let index = AttachmentIndex(tenant);
    let client = Client::new(key, index, consumer, ours, layout.slots_count(), layout.payload_max());
    Ok((Box::new(client), Process::new(key, mapping, theirs)))
}

/// What the registrar read from the process's only socket.
#[must_use]
pub fn stream(tenant: u16) -> Box<StreamInfo> {
    Box::new(StreamInfo {
        token: TOKEN,
        cookie: 1,
        attachment: AttachmentIndex(tenant),
        local: SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 5_000),
        peer: None,
        interface: 0,
        uid: 0,
        link: None,
        is_deadline: false,
        status: StreamStatus { token: TOKEN, code: StreamCode::Registered, ..StreamStatus::default() },
    })
}
