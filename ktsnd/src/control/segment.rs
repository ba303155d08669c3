// SPDX-License-Identifier: Apache-2.0
//! A segment (overlay in bridged mode) as the control API shows it.
//!
//! In: what the configuration was checked into. Out: the message, with every default filled in.

use ktsn_proto::v1;
use ktsn_resolve::{Bridged, Member, MemberAt, OuterDf, OuterDs, OuterTtl};

use crate::config::SegmentFrom;
use crate::tables::OverlayState;

/// A segment as it is listed.
pub(super) fn segment_message(segment: &Bridged) -> v1::Vxlan {
    let tunnel = &segment.tunnel;
    let inherit = || "inherit".to_owned();
    let peer = |member: &Member| {
        let (prefix, mac) = match member.at {
            MemberAt::Prefix(prefix) => (prefix.to_string(), String::new()),
            MemberAt::Mac(mac) => (String::new(), mac.to_string()),
        };
        v1::VxlanPeer { prefix, mac, vtep: member.vtep.to_string() }
    };
    v1::Vxlan {
        mode: "bridged".to_owned(),
        vni: tunnel.vni.get(),
        port: u32::from(tunnel.port),
        local: tunnel.local.to_string(),
        peers: segment.members.iter().map(peer).collect(),
        flood: segment.flood.iter().map(ToString::to_string).collect(),
        flood_interface: Some(segment.flood_interface),
        ttl: match tunnel.ttl {
            OuterTtl::Fixed(ttl) => ttl.to_string(),
            OuterTtl::Inherit => inherit(),
        },
        tos: match tunnel.ds {
            OuterDs::Fixed(ds) => ds.0.to_string(),
            OuterDs::Inherit => inherit(),
        },
        df: match tunnel.df {
            OuterDf::Unset => "unset".to_owned(),
            OuterDf::Set => "set".to_owned(),
            OuterDf::Inherit => inherit(),
        },
        udp_checksum: Some(tunnel.udp_checksum),
        ..v1::Vxlan::default()
    }
}

/// A learnt segment as it is listed.
pub(super) fn learnt_message(from: &SegmentFrom, overlay: Option<&OverlayState>) -> v1::Vxlan {
    v1::Vxlan {
        mode: "bridged".to_owned(),
        vni: overlay.map_or(0, |overlay| overlay.vni),
        port: overlay.map_or(0, |overlay| u32::from(overlay.port)),
        local: overlay.map(|overlay| overlay.local.to_string()).unwrap_or_default(),
        learn_from: from.device.clone(),
        flood_interface: Some(from.flood_interface),
        ..v1::Vxlan::default()
    }
}
