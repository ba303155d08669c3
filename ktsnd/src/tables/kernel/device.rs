// SPDX-License-Identifier: Apache-2.0
//! A network device as the kernel describes it, and which device is the host end of a pod's veth.
//!
//! In: link messages. Out: a [`Device`]; the number of the veth device in the daemon's own namespace whose peer a pod's
//! interface is. Devices name their peer by its number and by a number for its namespace; both are compared, as device
//! numbers alone repeat in every namespace.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;
use std::path::Path;

use ktsn_wire::MacAddress;
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{
    AfSpecInet6, AfSpecUnspec, InfoKind, LinkAttribute, LinkExtentMask, LinkFlags, LinkInfo, LinkMessage,
};
use netlink_packet_route::nsid::{NsidAttribute, NsidMessage};

use super::netlink::Netlink;
use super::vxlan_device::{self, VxlanDevice};

/// What kind of device it is, as far as that matters here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Kind {
    Veth,
    Bridge,
    #[default]
    Other,
}

/// A network device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Device {
    pub(crate) name: String,
    /// `None` when it is no Ethernet device.
    pub(crate) mac: Option<MacAddress>,
    pub(crate) mtu: u32,
    /// The hop limit of IPv6 datagrams whose program sets none.
    pub(crate) hop_limit_v6: Option<u8>,
    /// Administratively up.
    pub(crate) up: bool,
    pub(crate) loopback: bool,
    pub(crate) kind: Kind,
    /// The device that it is a port of.
    pub(crate) master: Option<u32>,
    /// For a veth: the peer's number, and the number of the peer's namespace.
    pub(crate) peer: Option<(u32, i32)>,
    /// For a VXLAN device: its parameters.
    pub(crate) vxlan: Option<VxlanDevice>,
}

impl Device {
    /// The device of a link message, with its number.
    pub(crate) fn of(link: LinkMessage) -> (u32, Self) {
        let (mut peer, mut namespace) = (None, None);
        let mut device = Self {
            up: link.header.flags.contains(LinkFlags::Up),
            loopback: link.header.flags.contains(LinkFlags::Loopback),
            ..Self::default()
        };
        for attribute in link.attributes {
            match attribute {
                LinkAttribute::IfName(name) => device.name = name,
                LinkAttribute::Mtu(mtu) => device.mtu = mtu,
                LinkAttribute::Address(octets) => device.mac = mac(&octets),
                LinkAttribute::Controller(master) => device.master = Some(master),
                LinkAttribute::Link(index) => peer = Some(index),
                LinkAttribute::LinkNetNsId(id) => namespace = Some(id),
                LinkAttribute::AfSpecUnspec(families) => device.hop_limit_v6 = hop_limit_v6(&families),
                LinkAttribute::LinkInfo(infos) => {
                    device.vxlan = vxlan_device::of_link(&infos);
                    device.kind = kind(&infos);
                }
                _ => {}
            }
        }
        device.peer = peer.zip(namespace).filter(|_| device.kind == Kind::Veth);
        (link.header.index, device)
    }
}

fn hop_limit_v6(families: &[AfSpecUnspec]) -> Option<u8> {
    let v6 = families.iter().find_map(|family| match family {
        AfSpecUnspec::Inet6(attributes) => Some(attributes),
        _ => None,
    })?;
    v6.iter().find_map(|attribute| match attribute {
        AfSpecInet6::DevConf(settings) => u8::try_from(settings.hoplimit).ok().filter(|limit| *limit != 0),
        _ => None,
    })
}

fn kind(infos: &[LinkInfo]) -> Kind {
    let kind = infos.iter().find_map(|info| match info {
        LinkInfo::Kind(InfoKind::Veth) => Some(Kind::Veth),
        LinkInfo::Kind(InfoKind::Bridge) => Some(Kind::Bridge),
        _ => None,
    });
    kind.unwrap_or_default()
}

/// The Ethernet address of these octets, where it is one and not zero.
pub(crate) fn mac(octets: &[u8]) -> Option<MacAddress> {
    octets.try_into().ok().map(MacAddress).filter(|mac| *mac != MacAddress::ZERO)
}

/// All devices of the socket's namespace, by number.
pub(crate) fn devices<C: FromIterator<(u32, Device)>>(netlink: &mut Netlink) -> io::Result<C> {
    let mut request = LinkMessage::default();
    // Without their counters, which would be most of the answer.
    request.attributes.push(LinkAttribute::ExtMask(vec![LinkExtentMask::SkipStats]));
    let devices = netlink.dump(&RouteNetlinkMessage::GetLink(request), |message| match message {
        RouteNetlinkMessage::NewLink(link) => Some(Device::of(link)),
        _ => None,
    });
    devices.map(|devices| devices.into_iter().collect())
}

/// The number of the host end of a pod's veth; `None` when the interface's peer is not here, or it is no veth.
pub(crate) fn host_end(netns: &Path, interface_index: u32) -> io::Result<Option<u32>> {
    let mut netlink = Netlink::open()?;
    // A namespace without a number is no peer's.
    let Some(id) = namespace_number(&mut netlink, netns)? else { return Ok(None) };
    let devices: Vec<(u32, Device)> = devices(&mut netlink)?;
    Ok(devices.iter().find(|(_, device)| device.peer == Some((interface_index, id))).map(|(index, _)| *index))
}

/// The number that the daemon's namespace has for another one; `None` before any device leads there.
pub(crate) fn namespace_number(netlink: &mut Netlink, netns: &Path) -> io::Result<Option<i32>> {
    let namespace = File::open(netns)?;
    let mut question = NsidMessage::default();
    question.attributes.push(NsidAttribute::Fd(namespace.as_raw_fd().unsigned_abs()));
    let ids = netlink.query(&RouteNetlinkMessage::GetNsId(question), |answer| match answer {
        RouteNetlinkMessage::NewNsId(message) => {
            message.attributes.iter().find_map(|attribute| match attribute {
                NsidAttribute::Id(id) if *id >= 0 => Some(*id),
                _ => None,
            })
        }
        _ => None,
    })?;
    Ok(ids.first().copied())
}
