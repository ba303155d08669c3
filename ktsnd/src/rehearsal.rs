// SPDX-License-Identifier: Apache-2.0
//! A frame that goes nowhere, handed to the kernel shortly before a frame that comes after a pause.
//!
//! In: nothing. Out: one datagram over a veth pair in a network namespace of its own, which the kernel receives there and drops. What the
//! next hand-over needs is in the caches then: after a pause of 50 ms a frame is on the wire 20 µs later without it
//! (`docs/design/wake-up.md`). The namespace has no name, and ends with the socket in it.

use std::io;
use std::net::Ipv4Addr;

use ktsn_port::af_packet::AfPacket;
use ktsn_port::{Device, Options, Port};
use ktsn_wire::template::{Ends, HeaderTemplate, Network, TemplateRepr};
use ktsn_wire::{DsField, MacAddress};
use netlink_packet_route::RouteNetlinkMessage;
use rtnetlink::{LinkUnspec, LinkVeth};

use crate::sys;
use crate::tables::Netlink;

const NEAR: &str = "near";
const FAR: &str = "far";
/// Locally administered, as the near end's.
const FAR_MAC: MacAddress = MacAddress([2, 0, 0, 0, 0, 2]);
/// The payload of the shortest frame.
const PAYLOAD: [u8; 18] = [0; 18];

/// The near end of the pair.
#[derive(Debug)]
pub(crate) struct Rehearsal {
    port: AfPacket,
    headers: HeaderTemplate,
}

impl Rehearsal {
    /// Makes the namespace and the pair.
    ///
    /// # Errors
    /// The kernel's: EPERM without CAP_SYS_ADMIN, EOPNOTSUPP without veth.
    pub(crate) fn open() -> io::Result<Self> {
        // No other thread is ever in the namespace.
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().spawn_scoped(scope, open_in_new_namespace)?;
            thread
                .join()
                .unwrap_or_else(|_| Err(io::Error::other("the thread in the new namespace panicked")))
        })
    }

    /// Hands the frame over. Errors are ignored: no program waits for this frame.
    pub(crate) fn run(&mut self) {
        let staged = self.port.stage(&mut |buffer| self.headers.write_frame(&PAYLOAD, buffer).ok());
        if let Ok(stage) = staged {
            let _ = self.port.commit(stage);
        }
        self.port.reap();
    }
}

fn open_in_new_namespace() -> io::Result<Rehearsal> {
    sys::enter_new_network_namespace()?;
    let mut netlink = Netlink::open()?;
    let far = LinkUnspec::new_with_name(FAR).address(FAR_MAC.0.to_vec()).up().build();
    let near = LinkUnspec::new_with_name(NEAR).up().build();
    // An end comes up only where the other one is there.
    for message in [LinkVeth::new(NEAR, FAR).build(), far, near] {
        netlink.make(RouteNetlinkMessage::NewLink(message))?;
    }
    let options = Options { stage_count: 1, ..Options::default() };
    let port = AfPacket::open(&Device { netns: None, ifname: NEAR }, &options).map_err(io::Error::other)?;
    Ok(Rehearsal { port, headers: headers().map_err(io::Error::other)? })
}

/// Those of a datagram from 192.0.2.1 to 192.0.2.2 (TEST-NET-1, RFC 5737), port 9.
fn headers() -> Result<HeaderTemplate, ktsn_wire::WireError> {
    HeaderTemplate::new(&TemplateRepr {
        outer: None,
        ethernet: Ends { source: MacAddress([2, 0, 0, 0, 0, 1]), destination: FAR_MAC },
        vlan: None,
        network: Network::V4 {
            source: Ipv4Addr::new(192, 0, 2, 1),
            destination: Ipv4Addr::new(192, 0, 2, 2),
            ttl: 64,
            ds: DsField(0),
            dont_fragment: false,
        },
        udp: Ends { source: 9, destination: 9 },
        udp_checksum: true,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the far end has received, in the calling thread's namespace.
    fn heard() -> u64 {
        let devices = std::fs::read_to_string("/proc/thread-self/net/dev").unwrap();
        let line = devices.lines().find_map(|line| line.trim_start().strip_prefix("far:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }

    #[test]
    fn the_far_end_receives_each_frame() {
        let inside = || {
            let mut rehearsal = open_in_new_namespace().unwrap();
            let before = heard();
            (0..100).for_each(|_| rehearsal.run());
            assert!(heard() >= before + 100, "{before} {}", heard());
        };
        std::thread::spawn(inside).join().unwrap();
    }

    #[test]
    fn no_other_thread_is_in_the_namespace() {
        let here = || std::fs::read_link("/proc/thread-self/ns/net").unwrap();
        let before = here();
        let mut rehearsal = Rehearsal::open().unwrap();
        rehearsal.run();
        assert_eq!(here(), before);
    }
}
