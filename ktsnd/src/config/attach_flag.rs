// SPDX-License-Identifier: Apache-2.0
//! `--attach NETNS:IFACE[,key=value…]`.

use super::{
    AddressesConfig, Attachment, AttachmentConfig, ConfigError, OuterConfig, OverlayConfig, PeerConfig,
    TakeConfig, VxlanConfig,
};

/// The keys of `--attach`, as a refusal and ktsnd's help list them.
pub const KEYS: &str = "name, uplink, late, overrun_limit, horizon, allow_tai, allow_policy_bypass, take=txtime|all|PRIORITY_MIN, vlan, pcp, ingress=kernel|short, capture=preload|kernel, capture_priority, slots, clients_max, octets_max, memory_max, address=ADDRESS|PREFIX|interface (repeatable), \
                    destination=PREFIX|MAC (repeatable), ethernet=any|listed, mode, vni, port, local, device, learn_from, peer=PREFIX@VTEP@MAC (repeatable); mode=bridged: peer=PREFIX@VTEP, peer=MAC@VTEP, flood=VTEP \
                    (repeatable), flood_interface, ttl, tos, df, udp_checksum";

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
        let field = "--attach";
        let Some((key, value)) = part.split_once('=') else {
            return Err(ConfigError::value(field, part, "key=value"));
        };
        set(&mut raw, &mut vxlan, key, value)?;
    }
    if vxlan != VxlanConfig::default() {
        raw.overlay = Some(OverlayConfig::Vxlan(Box::new(vxlan)));
    }
    Attachment::check("--attach", raw)
}

fn set(
    raw: &mut AttachmentConfig,
    vxlan: &mut VxlanConfig,
    key: &str,
    value: &str,
) -> Result<(), ConfigError> {
    let text = || Some(value.to_owned());
    match key {
        "name" => raw.name = text(),
        "uplink" => raw.uplink = text(),
        "late" => raw.late = text(),
        "overrun_limit" => raw.overrun_limit = text(),
        "horizon" => raw.horizon = text(),
        "allow_tai" => raw.allow_tai = Some(parsed(key, value, "true or false")?),
        "allow_policy_bypass" => raw.allow_policy_bypass = Some(parsed(key, value, "true or false")?),
        "take" => {
            let least = value.parse().map(|priority_min| TakeConfig::From { priority_min });
            raw.take = Some(least.unwrap_or_else(|_| TakeConfig::Word(value.to_owned())));
        }
        "vlan" => raw.vlan = Some(parsed(key, value, "1 to 4094")?),
        "pcp" => raw.pcp = Some(parsed(key, value, "0 to 7")?),
        "ingress" => raw.ingress = text(),
        "capture" => raw.capture = text(),
        "capture_priority" => raw.capture_priority = Some(parsed(key, value, "0 to 15")?),
        "slots" => raw.slots = Some(parsed(key, value, "a count")?),
        "clients_max" => raw.clients_max = Some(parsed(key, value, "a count")?),
        "octets_max" => raw.octets_max = Some(parsed(key, value, "a count of octets")?),
        "address" => match raw.addresses.get_or_insert_with(|| AddressesConfig::List(Vec::new())) {
            AddressesConfig::List(list) => list.push(value.to_owned()),
            AddressesConfig::Word(_) => {}
        },
        "memory_max" => raw.memory_max = Some(parsed(key, value, "a count of octets")?),
        "destination" => raw.destinations.get_or_insert_default().push(value.to_owned()),
        "ethernet" => raw.ethernet = text(),
        "vni" => vxlan.vni = Some(parsed(key, value, "1 to 16777215")?),
        "port" => vxlan.port = Some(parsed(key, value, "a UDP port")?),
        "local" => vxlan.local = text(),
        "device" => vxlan.device = text(),
        "learn_from" => vxlan.learn_from = text(),
        "mode" => vxlan.mode = text(),
        "peer" => vxlan.peers.get_or_insert_default().push(peer(value)),
        "flood" => vxlan.flood.get_or_insert_default().push(value.to_owned()),
        "flood_interface" => vxlan.flood_interface = Some(parsed(key, value, "true or false")?),
        "ttl" => vxlan.ttl = Some(OuterConfig::Word(value.to_owned())),
        "tos" => vxlan.tos = Some(OuterConfig::Word(value.to_owned())),
        "df" => vxlan.df = text(),
        "udp_checksum" => vxlan.udp_checksum = Some(parsed(key, value, "true or false")?),
        _ => return Err(ConfigError::value("--attach", key, format!("one of {KEYS}"))),
    }
    Ok(())
}

/// `PREFIX@VTEP@MAC`; of a segment `PREFIX@VTEP` or `MAC@VTEP`.
fn peer(text: &str) -> PeerConfig {
    let mut parts = text.split('@').map(str::to_owned);
    let (who, vtep, mac) = (parts.next(), parts.next(), parts.next());
    let is_mac = who.as_ref().is_some_and(|who| who.parse::<ktsn_wire::MacAddress>().is_ok());
    if is_mac && mac.is_none() {
        PeerConfig { mac: who, vtep, prefix: None }
    } else {
        PeerConfig { prefix: who, vtep, mac }
    }
}

fn parsed<T: std::str::FromStr>(key: &str, value: &str, expected: &str) -> Result<T, ConfigError> {
    value.parse().map_err(|_| ConfigError::value(&format!("--attach {key}"), value, expected))
}
