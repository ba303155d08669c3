// SPDX-License-Identifier: Apache-2.0
//! The host end of a pod's veth.
//!
//! In: the pod's namespace and its interface's number there. Out: the number of the veth device in the daemon's own
//! namespace whose peer that interface is. Devices name their peer by its number and by a number for its namespace; both
//! are compared, as device numbers alone repeat in every namespace.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;
use std::path::Path;

use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{InfoKind, LinkAttribute, LinkInfo, LinkMessage};
use netlink_packet_route::nsid::{NsidAttribute, NsidMessage};

use super::netlink::{Netlink, all_links};

/// Looks for it; `None` when the interface's peer is not here, or it is no veth.
pub(crate) fn host_end(netns: &Path, interface_index: u32) -> io::Result<Option<u32>> {
    let mut netlink = Netlink::open()?;
    // A namespace without a number is no peer's.
    let Some(id) = namespace_number(&mut netlink, netns)? else { return Ok(None) };
    let links = netlink.dump(&all_links(), |answer| match answer {
        RouteNetlinkMessage::NewLink(link) if is_peer(&link, interface_index, id) => Some(link.header.index),
        _ => None,
    })?;
    Ok(links.first().copied())
}

/// The number that the daemon's namespace has for another one; `None` before any device leads there.
pub(super) fn namespace_number(netlink: &mut Netlink, netns: &Path) -> io::Result<Option<i32>> {
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

fn is_peer(link: &LinkMessage, interface_index: u32, namespace: i32) -> bool {
    let has = |wanted: &dyn Fn(&LinkAttribute) -> bool| link.attributes.iter().any(wanted);
    has(&|a| matches!(a, LinkAttribute::Link(index) if *index == interface_index))
        && has(&|a| matches!(a, LinkAttribute::LinkNetNsId(id) if *id == namespace))
        && has(&|a| {
            matches!(a, LinkAttribute::LinkInfo(infos)
            if infos.iter().any(|info| matches!(info, LinkInfo::Kind(InfoKind::Veth))))
        })
}
