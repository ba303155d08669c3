// SPDX-License-Identifier: Apache-2.0
//! Target `link`: what a packet socket's program can put into a slot.
//!
//! Any octets as a frame, and as the payload of one: the parser says what `ktsn-wire` finds, and whatever leaves has the
//! interface's source, where that is judged no foreign IP source, one tag at most, an allowed destination, and no octet
//! that the program did not write.

use std::net::IpAddr;

use ktsn_model::{IpSource, LinkHead, link_frame::HEAD_OCTETS};
use ktsn_resolve::{
    AttachmentIndex, AttachmentTables, Link, LinkFlow, LinkShape, LinkTable, Overlay, PortIndex, Tables,
    resolve_link,
};
use ktsn_wire::{EtherType, EthernetFrame, MacAddress, Pcp, Tci, Vid, VlanTag};

const OWN: MacAddress = MacAddress([2, 0, 0, 0, 0, 5]);
const NAMED: MacAddress = MacAddress([1, 0x80, 0xc2, 0, 0, 0x0e]);
const MTU: u32 = 100;
const IF_INDEX: u32 = 2;

/// Judges `data` as frames: an octet of switches, then the frame or payload.
///
/// # Panics
/// When an invariant does not hold.
pub fn link(data: &[u8]) {
    run(data);
}

/// How many of the two frames left.
fn run(data: &[u8]) -> usize {
    let Some((switches, octets)) = data.split_first() else { return 0 };
    let has = |bit: u8| switches & (1 << bit) != 0;
    parsed(octets);
    let tag = has(0).then(|| Tci {
        pcp: Pcp::new(5).unwrap_or_default(),
        dei: false,
        vid: Vid::new(7).unwrap_or_default(),
    });
    let tables = tables(tag, has(1), has(3));
    let mut frame = octets.to_vec();
    if has(2) && frame.len() >= 12 {
        frame[6..12].copy_from_slice(&OWN.0);
    }
    let mut left = usize::from(sent(&tables, LinkShape::Frame, &frame, &frame));
    if let Some((header, _)) = frame.split_first_chunk::<14>() {
        let [a, b, c, d, e, f, .., high, low] = *header;
        let ether_type = EtherType(u16::from_be_bytes([high, low]));
        let shape = LinkShape::Payload { destination: MacAddress([a, b, c, d, e, f]), ether_type };
        frame[6..12].copy_from_slice(&OWN.0);
        let whole = frame.clone();
        left += usize::from(sent(&tables, shape, &whole[14..], &whole));
    }
    left
}

fn parsed(octets: &[u8]) {
    let head = LinkHead::parse(octets);
    assert_eq!(head, LinkHead::parse(octets.get(..HEAD_OCTETS).unwrap_or(octets)), "the head decides");
    let Some(head) = head else {
        let is_tagged = octets.get(12..14) == Some(&[0x81, 0]);
        return assert!(octets.len() < 14 || (is_tagged && octets.len() < 18), "a header is found");
    };
    let frame = EthernetFrame::new(octets).expect("an Ethernet header");
    assert_eq!((frame.destination().0, frame.source().0), (head.destination, head.source));
    let tag = (frame.ether_type() == EtherType::VLAN).then(|| VlanTag::new(frame.payload()).expect("a tag"));
    assert_eq!(tag.map(|tag| tag.tci().to_bits()), head.tag);
    assert_eq!(tag.map_or(frame.ether_type(), |tag| tag.ether_type()).0, head.ether_type);
}

/// Whatever leaves is the `whole` frame, with our tag where it had none.
fn sent(tables: &Tables, shape: LinkShape, payload: &[u8], whole: &[u8]) -> bool {
    let flow = LinkFlow { attachment: AttachmentIndex(0), if_index: IF_INDEX, shape };
    let Ok(way) = resolve_link(tables, &flow, payload) else { return false };
    let attachment = tables.attachment(AttachmentIndex(0)).expect("the attachment");
    let mut out = [0; 256];
    let octets = way.write(payload, 0, &mut out).expect("the MTU bounds it");
    let frame = &out[..octets];
    assert_eq!(octets, way.frame_octets);
    assert!(octets <= MTU as usize + 18);
    assert_eq!(frame[6..12], OWN.0, "the source");
    let head = LinkHead::parse(frame).expect("a frame");
    let is_own = match head.ip_source {
        IpSource::None | IpSource::Unspecified => true,
        IpSource::Address(address) => address.ends_with(&[0xff, 0xff, 10, 0, 0, 1]),
        IpSource::Unreadable => false,
    };
    assert!(is_own || !attachment.is_source_judged(), "the IP source");
    assert!(!matches!(head.ether_type, 0x8100 | 0x88a8 | 0x9100 | 0x9200), "one tag");
    if let (Some(own), Some(tag)) = (attachment.vlan(), head.tag) {
        assert!(tag & 0xfff == 0 || tag & 0xfff == own.vid.get(), "the attachment's VLAN");
    }
    assert!(!head.is_reserved() || attachment.names(MacAddress(head.destination)), "reserved groups");
    let is_ip = head.ip_source != IpSource::None;
    let in_prefix =
        head.ip_target.is_some_and(|to| to[..15] == [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0]);
    assert!(!is_ip || in_prefix, "IP and ARP go by prefixes");
    assert!(
        is_ip || !attachment.is_mac_listed() || head.destination == NAMED.0,
        "the others by MAC addresses"
    );
    let is_added = way.tag.is_some() && !way.is_own_tag;
    let rest = if is_added { &frame[16..] } else { &frame[12..] };
    assert_eq!((&frame[..12], rest), (&whole[..12], &whole[12..]), "the program's octets");
    true
}

fn tables(vlan: Option<Tci>, is_listed: bool, is_judged: bool) -> Tables {
    let link = |port| {
        let address = IpAddr::from([10, 0, 0, 1]);
        let link = Link {
            port: PortIndex(port),
            if_index: IF_INDEX,
            mac: OWN,
            mtu: MTU,
            addresses: vec![(address, 24)],
            routes: vec![],
            neighbours: vec![],
        };
        LinkTable::new(link).expect("a table")
    };
    let attachment = AttachmentTables::new(
        link(1),
        link(0).into(),
        Overlay::None,
        Some(vec!["10.0.0.0/24".parse().expect("a prefix")]),
    );
    let attachment = attachment.expect("tables").with_vlan(vlan).expect("a tag that the caller made");
    let attachment = attachment.naming(vec![NAMED], is_listed).expect("a list");
    let attachment = if is_judged { attachment.withholding(vec![]).expect("tables") } else { attachment };
    Tables::new(1, vec![Some(attachment)]).expect("tables")
}

#[cfg(test)]
mod tests {
    use super::run;

    /// The corpus reaches what its names say.
    #[test]
    fn corpus_of_link_gets_far() {
        let cases: [(&[u8], usize); 6] = [
            (include_bytes!("../corpus/link/plain.bin"), 2),
            (include_bytes!("../corpus/link/tagged.bin"), 2),
            (include_bytes!("../corpus/link/udp4-listed.bin"), 2),
            (include_bytes!("../corpus/link/lldp-named.bin"), 2),
            (include_bytes!("../corpus/link/two-tags.bin"), 0),
            (include_bytes!("../corpus/link/foreign.bin"), 1),
        ];
        for (at, (data, left)) in cases.into_iter().enumerate() {
            assert_eq!(run(data), left, "{at}");
        }
    }
}
