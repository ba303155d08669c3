// SPDX-License-Identifier: Apache-2.0
//! A frame that goes nowhere, handed to the kernel shortly before a frame that comes after a pause.
//!
//! In: nothing. Out: one datagram over a veth pair in a network namespace of its own, which the kernel receives there and drops. What the
//! next hand-over needs is in the caches then: after a pause of 50 ms a frame is on the wire 20 µs later without it
//! (`docs/design/wake-up.md`). The namespace has no name, and ends with the socket in it.

use std::io;

use ktsn_port::af_packet::AfPacket;
use ktsn_port::{Device, Options, Port};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{
    InfoData, InfoKind, InfoVeth, LinkAttribute, LinkFlags, LinkInfo, LinkMessage,
};

use crate::sys;
use crate::tables::Netlink;

const NEAR: &str = "near";
const FAR: &str = "far";
/// Locally administered.
const FAR_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];

/// A datagram of 18 octets from 192.0.2.1 to 192.0.2.2 (TEST-NET-1, RFC 5737), port 9: the shortest frame.
const FRAME: [u8; 60] = {
    let mut frame = [0; 60];
    let head: [u8; 42] = [
        2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0, // Ethernet
        0x45, 0, 0, 46, 0, 0, 0, 0, 64, 17, 0xf6, 0xbb, 192, 0, 2, 1, 192, 0, 2, 2, // IPv4
        0, 9, 0, 9, 0, 26, 0, 0, // UDP
    ];
    let mut at = 0;
    while at < head.len() {
        frame[at] = head[at];
        at += 1;
    }
    frame
};

/// The near end of the pair.
#[derive(Debug)]
pub(crate) struct Rehearsal(AfPacket);

impl Rehearsal {
    /// Makes the namespace and the pair.
    ///
    /// # Errors
    /// The kernel's: EPERM without CAP_SYS_ADMIN, EOPNOTSUPP without veth.
    pub(crate) fn open() -> io::Result<Self> {
        // No other thread is ever in the namespace.
        let opened = std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().spawn_scoped(scope, open_in_new_namespace)?;
            thread
                .join()
                .unwrap_or_else(|_| Err(io::Error::other("the thread in the new namespace panicked")))
        });
        opened.map(Self)
    }

    /// Hands the frame over. Errors are ignored: no program waits for this frame.
    pub(crate) fn run(&mut self) {
        let staged = self.0.stage(&mut |buffer| {
            buffer.get_mut(..FRAME.len())?.copy_from_slice(&FRAME);
            Some(FRAME.len())
        });
        if let Ok(stage) = staged {
            let _ = self.0.commit(stage);
        }
        self.0.reap();
    }
}

fn open_in_new_namespace() -> io::Result<AfPacket> {
    sys::enter_new_network_namespace()?;
    let mut netlink = Netlink::open()?;
    // An end comes up only where the other one is there.
    for message in [pair(), up(FAR), up(NEAR)] {
        netlink.make(RouteNetlinkMessage::NewLink(message))?;
    }
    let options = Options { stage_count: 1, ..Options::default() };
    AfPacket::open(&Device { netns: None, ifname: NEAR }, &options).map_err(io::Error::other)
}

fn named(name: &str) -> LinkMessage {
    let mut link = LinkMessage::default();
    link.attributes.push(LinkAttribute::IfName(name.to_owned()));
    link
}

/// A new veth pair.
fn pair() -> LinkMessage {
    let (mut near, mut far) = (named(NEAR), named(FAR));
    far.attributes.push(LinkAttribute::Address(FAR_MAC.to_vec()));
    let far = InfoData::Veth(InfoVeth::Peer(far));
    near.attributes.push(LinkAttribute::LinkInfo(vec![LinkInfo::Kind(InfoKind::Veth), LinkInfo::Data(far)]));
    near
}

fn up(name: &str) -> LinkMessage {
    let mut link = named(name);
    link.header.flags = LinkFlags::Up;
    link.header.change_mask = LinkFlags::Up;
    link
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
            let mut rehearsal = Rehearsal(open_in_new_namespace().unwrap());
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
