// SPDX-License-Identifier: Apache-2.0
//! Target `api`: messages of the control API, decoded and checked as ktsnd does it.
//!
//! In: an octet that chooses between Attach (255), SetPeers (even) and ApplySchedule (odd), then the message as gRPC carries it, or the
//! attachment's JSON. What is accepted keeps the model's rules, can be made tables of, and reads the same when it is sent back as it is
//! listed; what is refused is named in one line.

use std::collections::HashSet;
use std::net::{Ipv4Addr, Ipv6Addr};

use ktsn_model::Priority;
use ktsn_proto::v1::{ApplyScheduleRequest, GateParameters, QueueMaxSdu, SetPeersRequest, VxlanPeer};
use ktsn_resolve::{Peer, Tunnel, Vxlan, VxlanRouted, limits::PEERS_MAX};
use ktsn_wire::{MacAddress, Vni};
use ktsnd::config::{Attachment, AttachmentConfig, ConfigError};
use ktsnd::messages::{gate_schedule, peers};
use prost::Message as _;

/// Longest text that names what is wrong, besides what it quotes.
const TEXT_OCTETS_MAX: usize = 1_000;

/// Decodes and checks `data`.
///
/// # Panics
/// When an invariant does not hold.
pub fn api(data: &[u8]) {
    run(data);
}

/// Runs one request; true if it was accepted.
fn run(data: &[u8]) -> bool {
    let Some((first, octets)) = data.split_first() else { return false };
    let accepted = match first {
        255 => attach(octets),
        first if first % 2 == 0 => set_peers(octets).map(as_text),
        _ => apply_schedule(octets).map(as_text),
    };
    match accepted {
        None => false,
        Some(Ok(())) => true,
        Some(Err(text)) => {
            assert!(!text.is_empty() && !text.chars().any(char::is_control), "{text:?}");
            assert!(text.len() <= TEXT_OCTETS_MAX + 6 * octets.len(), "{text:?}");
            false
        }
    }
}

fn as_text(checked: Result<(), ConfigError>) -> Result<(), String> {
    checked.map_err(|error| error.to_string())
}

fn attach(octets: &[u8]) -> Option<Result<(), String>> {
    let json = std::str::from_utf8(octets).ok()?;
    let config = match AttachmentConfig::parse("attachment", json) {
        Ok(config) => config,
        Err(fault) => return Some(Err(fault.to_string())),
    };
    let again = AttachmentConfig::parse("attachment", &config.json()).expect("its own JSON");
    assert_eq!(again, config);
    let attachment = match Attachment::check("attachment", config.clone()) {
        Ok(attachment) => attachment,
        Err(error) => return Some(Err(error.to_string())),
    };
    assert_eq!(attachment.raw, config);
    assert!(attachment.is_asked_by(&attachment) && attachment.classes != 0);
    Some(Ok(()))
}

fn set_peers(octets: &[u8]) -> Option<Result<(), ConfigError>> {
    let message = SetPeersRequest::decode(octets).ok()?;
    let (target, accepted) = match peers(message.clone()) {
        Ok(accepted) => accepted,
        Err(error) => return Some(Err(error)),
    };
    assert!(accepted.len() <= PEERS_MAX && accepted.len() == message.peers.len());
    let prefixes: HashSet<_> = accepted.iter().map(|peer| peer.prefix).collect();
    assert_eq!(prefixes.len(), accepted.len(), "a prefix has one end");
    let over_v4 = accepted.first().is_none_or(|peer| peer.vtep.is_ipv4());
    for peer in &accepted {
        assert!(!peer.vtep.is_unspecified() && !peer.vtep.is_multicast() && peer.vtep.is_ipv4() == over_v4);
        assert!(peer.mac != MacAddress::ZERO && !peer.mac.is_multicast());
    }
    let listed = accepted.iter().map(|peer| VxlanPeer {
        prefix: peer.prefix.to_string(),
        vtep: peer.vtep.to_string(),
        mac: peer.mac.to_string(),
    });
    let again = SetPeersRequest { target: message.target, peers: listed.collect() };
    let again = SetPeersRequest::decode(again.encode_to_vec().as_slice()).expect("its own message");
    assert_eq!(peers(again).expect("what was accepted"), (target, accepted.clone()));
    let local = if over_v4 { Ipv4Addr::LOCALHOST.into() } else { Ipv6Addr::LOCALHOST.into() };
    let vxlan = Vxlan {
        tunnel: Tunnel::new(Vni::new(1).unwrap_or_default(), 8472, local),
        device_mac: MacAddress([2, 0, 0, 0, 0, 1]),
        peers: accepted.iter().map(|p| Peer { prefix: p.prefix, vtep: p.vtep, mac: p.mac }).collect(),
    };
    VxlanRouted::new(vxlan).expect("tables");
    Some(Ok(()))
}

fn apply_schedule(octets: &[u8]) -> Option<Result<(), ConfigError>> {
    let message = ApplyScheduleRequest::decode(octets).ok()?;
    let schedule = match gate_schedule(message.clone()) {
        Ok(Some(schedule)) => schedule,
        Ok(None) => {
            assert!(message.admin.is_none(), "a schedule is wanted");
            return Some(Ok(()));
        }
        Err(error) => return Some(Err(error)),
    };
    schedule.admin.check().expect("the model's rules");
    let map = schedule
        .priority_map
        .map(|map| (0..16).map(|p| u32::from(map.class(Priority::capped(p)).get())).collect());
    let limits = (0..).zip(&schedule.queue_max_sdu);
    let again = ApplyScheduleRequest {
        port: message.port,
        admin: Some(GateParameters::from(&schedule.admin)),
        queue_max_sdu: limits
            .filter_map(|(traffic_class, limit)| {
                Some(QueueMaxSdu { traffic_class, queue_max_sdu: (*limit)? })
            })
            .collect(),
        name: schedule.name.clone().unwrap_or_default(),
        link_speed: schedule.link_speed.unwrap_or(0),
        check_only: message.check_only,
        priority_map: map.unwrap_or_default(),
    };
    let again = ApplyScheduleRequest::decode(again.encode_to_vec().as_slice()).expect("its own message");
    assert_eq!(gate_schedule(again).expect("what was accepted"), Some(schedule));
    Some(Ok(()))
}

#[cfg(test)]
mod tests {
    use super::run;

    /// The corpus reaches what its names say.
    #[test]
    fn corpus_of_api_gets_far() {
        for (at, data) in [
            &include_bytes!("../corpus/api/peers-v4.bin")[..],
            include_bytes!("../corpus/api/peers-v6.bin"),
            include_bytes!("../corpus/api/schedule.bin"),
            include_bytes!("../corpus/api/forget.bin"),
        ]
        .into_iter()
        .enumerate()
        {
            assert!(run(data), "{at}");
        }
        for data in
            [&include_bytes!("../corpus/api/twice.bin")[..], include_bytes!("../corpus/api/gates.bin")]
        {
            assert!(!run(data));
        }
    }
}
