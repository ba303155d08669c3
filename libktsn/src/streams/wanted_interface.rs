// SPDX-License-Identifier: Apache-2.0
//! Where a program wants its datagrams to leave: IP_PKTINFO, IPV6_PKTINFO, IP_MULTICAST_IF, IPV6_MULTICAST_IF.
//!
//! In: what a message or the socket says, the attachment's region. Out: whether that is what the attachment does anyway:
//! by its own interface, from its only address. Anything else is the kernel's.

use core::ffi::c_int;

use ktsn_ring::{SlotFlags, SlotFrame};

use crate::call::control_messages::{Leaving, Parsed};
use crate::call::destination::Address;
use crate::process::abi::{IP_MULTICAST_IF, IPV6_MULTICAST_IF, SOL_IP, SOL_IPV6};
use crate::process::region::RegionUse;
use crate::process::sys;
use crate::streams::Stream;

/// Where datagrams to groups leave: IPV6_MULTICAST_IF.
pub(crate) fn groups_v6(fd: c_int) -> Leaving {
    let interface = sys::option_int(fd, SOL_IPV6, IPV6_MULTICAST_IF).unwrap_or(0).cast_unsigned();
    Leaving { interface, source: [0; 4] }
}

/// The address of IP_MULTICAST_IF; the kernel does not show its interface.
pub(crate) fn groups_v4(fd: c_int) -> Leaving {
    let mut source = [0; 4];
    let read = sys::option_octets(fd, SOL_IP, IP_MULTICAST_IF, &mut source);
    Leaving { interface: 0, source: if read == Ok(4) { source } else { [0; 4] } }
}

/// IP_MULTICAST_IF from its octets, in any of its three forms: `struct in_addr`, `ip_mreq`, `ip_mreqn`.
pub(crate) fn groups_of(value: &[u8]) -> Leaving {
    let octets = |at: usize| value.get(at..at.wrapping_add(4)).and_then(|four| four.try_into().ok());
    let source = if value.len() < 8 { octets(0) } else { octets(4) };
    let interface = octets(8).map_or(0, u32::from_ne_bytes);
    Leaving { interface, source: source.unwrap_or([0; 4]) }
}

/// Whether the program says anything about where its datagrams leave.
#[inline(always)]
pub(crate) fn is_named(stream: Stream, control: &Parsed) -> bool {
    !control.leaving_v4.is_any() || !control.leaving_v6.is_any() || stream.says_where()
}

/// Where the program wants a datagram to leave. As in the kernel a message goes before the socket's option for groups.
#[inline(never)]
pub(crate) fn wanted(stream: Stream, control: &Parsed, is_v4: bool, is_group: bool) -> Leaving {
    let mut leaving = control.leaving(is_v4);
    if is_group {
        let groups = stream.groups(is_v4);
        leaving.interface = if leaving.interface == 0 { groups.interface } else { leaving.interface };
        leaving.source = if leaving.source == [0; 4] { groups.source } else { leaving.source };
    }
    leaving
}

/// Whether a datagram is to leave by another interface than the attachment's, or from another address than its only
/// one.
#[inline(never)]
pub(crate) fn is_elsewhere(stream: Stream, control: &Parsed, frame: &SlotFrame, held: &RegionUse) -> bool {
    if frame.flags.is_link() {
        return false;
    }
    let to = Address { address: frame.address, scope: 0, port: 0 };
    let is_connected = frame.flags.contains(SlotFlags::CONNECTED);
    let (is_group, is_v4) = if is_connected { stream.peer() } else { (to.is_multicast(), to.is_v4()) };
    let leaving = wanted(stream, control, is_v4 || !stream.is_v6(), is_group);
    (leaving.interface != 0 && leaving.interface != held.region().interface_index())
        || (leaving.source != [0; 4] && leaving.source != held.producer().sole_v4())
}

#[cfg(test)]
mod tests {
    use super::{Leaving, groups_of};

    #[test]
    fn the_groups_interface_has_three_forms() {
        let (group, address, index) = ([239, 1, 2, 3], [10, 0, 0, 7], 5u32.to_ne_bytes());
        let of = |interface| Leaving { interface, source: address };
        assert_eq!(groups_of(&address), of(0));
        assert_eq!(groups_of(&[group, address].concat()), of(0));
        assert_eq!(groups_of(&[group, address, index].concat()), of(5));
        assert_eq!(groups_of(&[group, [0; 4], [0; 4]].concat()), Leaving::default());
        assert_eq!(groups_of(&[1, 2]), Leaving::default());
    }
}
