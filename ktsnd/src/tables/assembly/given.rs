// SPDX-License-Identifier: Apache-2.0
//! Which of the addresses that a pod's interface has are the attachment's.
//!
//! In: what is given ([`Given`]; settled once, when the attachment is added), the interface as the pod's namespace shows it. Out:
//! the interface with its given addresses alone, those that are withheld, and a warning about these. The pod's namespace is the pod's word; it can take an address away from itself, but it
//! can give itself none.

use std::net::{IpAddr, Ipv6Addr};
use std::path::Path;

use ktsn_resolve::{AttachmentTables, Link};
use ktsn_wire::MacAddress;

use crate::config::Given;
use crate::tables::kernel::namespace::Identity;
use crate::tables::kernel::snapshot::Snapshot;
use crate::tables::tracked::TrackedAttachment;

/// Withheld addresses that a warning names; more are counted.
const NAMED_MAX: usize = 4;

/// Takes the addresses out of `link` that are not given; these. `None`: the interface is believed.
pub(super) fn withhold(tracked: &TrackedAttachment, link: &mut Link) -> Option<Vec<IpAddr>> {
    if tracked.addresses == Given::Interface {
        return None;
    }
    let is_segment = tracked.attachment.overlay.is_segment();
    let (own, mac) = (std::mem::take(&mut link.addresses), link.mac);
    let (given, withheld): (Vec<_>, Vec<_>) =
        own.into_iter().partition(|(address, _)| is_given(&tracked.addresses, *address, mac, is_segment));
    link.addresses = given;
    Some(withheld.into_iter().map(|(address, _)| address).collect())
}

/// Link-local IPv6 addresses are the kernel's to choose, and no router forwards them: the interface's own link is the only
/// place where they mean something. On a segment of an overlay other nodes' pods are on that link, too: there one counts
/// that is made of the interface's MAC address, by which the segment knows the station anyway.
fn is_given(given: &Given, address: IpAddr, mac: MacAddress, is_segment: bool) -> bool {
    let is_listed = match given {
        Given::Interface => true,
        Given::AtAttachment => false,
        Given::These(prefixes) => prefixes.iter().any(|prefix| prefix.contains(address)),
    };
    is_listed || matches!(address, IpAddr::V6(own) if is_own_link_local(own, mac, is_segment))
}

fn is_own_link_local(address: Ipv6Addr, mac: MacAddress, is_segment: bool) -> bool {
    address.is_unicast_link_local() && (!is_segment || address == from_mac(mac))
}

/// fe80::/64 with a modified EUI-64 interface identifier (RFC 4291 appendix A).
fn from_mac(mac: MacAddress) -> Ipv6Addr {
    let [a, b, c, d, e, f] = mac.0;
    Ipv6Addr::from([0xfe, 0x80, 0, 0, 0, 0, 0, 0, a ^ 2, b, c, 0xff, 0xfe, d, e, f])
}

/// What is given to an attachment; where nothing was said, what the interface has now. In the daemon's own namespace the
/// interface is believed: its addresses are the node's own.
pub(super) fn settled(tracked: &TrackedAttachment, pod: &Snapshot, namespace: Identity) -> Given {
    if tracked.addresses != Given::AtAttachment {
        return tracked.addresses.clone();
    }
    match Identity::of(Path::new("/proc/thread-self/ns/net")) {
        Ok(own) if own == namespace => Given::Interface,
        _ => Given::found(pod.addresses_of(tracked.interface_index)),
    }
}

/// The warning about addresses of an attachment's interface that are not given; `None`: there are none.
pub(super) fn warning(tracked: &TrackedAttachment, tables: &AttachmentTables) -> Option<String> {
    let withheld = tables.withheld();
    if withheld.is_empty() {
        return None;
    }
    let shown: Vec<String> = withheld.iter().take(NAMED_MAX).map(IpAddr::to_string).collect();
    let more = match withheld.len().saturating_sub(NAMED_MAX) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let (place, shown) = (tracked.place(), shown.join(", "));
    Some(format!(
        "{place}: {shown}{more}: not given to the attachment; KTSN sends nothing from there (not_allowed) and delivers \
         nothing to it; name it in `addresses`, or take it off"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MAC: MacAddress = MacAddress([2, 0, 0, 0, 0, 5]);

    fn given(texts: &[&str]) -> Given {
        Given::These(texts.iter().map(|text| text.parse().unwrap()).collect())
    }

    fn has(given: &Given, address: &str, is_segment: bool) -> bool {
        is_given(given, address.parse().unwrap(), MAC, is_segment)
    }

    #[test]
    fn link_local_addresses_are_the_links() {
        for list in [given(&[]), given(&["10.0.0.1"])] {
            assert!(has(&list, "fe80::1234", false) && has(&list, "fe80::ff:fe00:5", false));
            assert!(!has(&list, "fe80::1234", true), "perhaps another station's");
            assert!(has(&list, "fe80::ff:fe00:5", true), "its own by its MAC address");
            assert!(!has(&list, "169.254.1.1", false), "IPv4's are addresses like others");
        }
        assert!(has(&given(&["fe80::1234"]), "fe80::1234", true), "given in so many words");
        assert!(has(&Given::Interface, "fe80::1234", true));
    }

    #[test]
    fn a_prefix_gives_temporary_addresses() {
        let list = given(&["fd00:1::/64"]);
        assert!(has(&list, "fd00:1::7d3a:1", false) && !has(&list, "fd00:2::1", false));
        // Nothing said, and nothing found yet.
        assert!(!has(&Given::AtAttachment, "10.0.0.1", false));
    }

    proptest! {
        /// An IPv4 address is given exactly when it lies in one of the prefixes, and IPv6 never gives IPv4.
        #[test]
        fn ipv4_follows_the_list(list: Vec<(u32, u8)>, address: u32, is_segment: bool) {
            let prefixes = list.iter().map(|(net, bits)| (*net, bits % 33));
            let naive = prefixes.clone().any(|(net, bits)| bits == 0 || (net ^ address) >> (32 - u32::from(bits)) == 0);
            let list = prefixes.map(|(net, bits)| ktsn_model::IpPrefix::covering(std::net::Ipv4Addr::from(net).into(), bits).unwrap());
            let list = Given::These(list.collect());
            let address = std::net::Ipv4Addr::from(address);
            prop_assert_eq!(is_given(&list, address.into(), MAC, is_segment), naive);
            let mapped = address.to_ipv6_mapped();
            prop_assert!(!is_given(&list, mapped.into(), MAC, is_segment));
        }
    }
}
