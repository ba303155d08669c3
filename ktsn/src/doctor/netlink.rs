// SPDX-License-Identifier: Apache-2.0
//! The netlink requests of doctor's trials: make a pair of devices, ask for a qdisc, list qdiscs.
//!
//! In: names. Out: the kernel's answer. Works in the network namespace of the thread that opened it; the trials
//! that change something run in a namespace of their own.

use std::io;

use futures_util::StreamExt as _;
use rtnetlink::packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload,
};
use rtnetlink::packet_route::RouteNetlinkMessage;
use rtnetlink::packet_route::link::{LinkAttribute, LinkMessage, LinkXdp, XdpAttached};
use rtnetlink::packet_route::tc::{TcAttribute, TcHandle, TcMessage};
use rtnetlink::{Handle, LinkUnspec, LinkVeth};
use rustix::io::Errno;

/// Makes something that must not be there yet, and asks for the result.
const CREATE: u16 = NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL;

/// A socket of the network namespace in which it was opened.
pub(super) struct Netlink {
    runtime: tokio::runtime::Runtime,
    handle: Handle,
}

impl Netlink {
    /// # Errors
    /// The kernel's.
    pub(super) fn open() -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (connection, handle, _) = runtime.block_on(async { rtnetlink::new_connection() })?;
        runtime.spawn(connection);
        Ok(Self { runtime, handle })
    }

    /// Makes a pair of veth devices of these names.
    ///
    /// # Errors
    /// The kernel's: EOPNOTSUPP without veth, EPERM without CAP_NET_ADMIN.
    pub(super) fn make_veth(&self, name: &str, peer: &str) -> io::Result<()> {
        let pair = LinkVeth::new(name, peer).build();
        self.ask(RouteNetlinkMessage::NewLink(pair), CREATE).map(drop)
    }

    /// # Errors
    /// The kernel's.
    pub(super) fn set_up(&self, interface_index: u32) -> io::Result<()> {
        let link = LinkUnspec::new_with_index(interface_index).up().build();
        self.ask(RouteNetlinkMessage::NewLink(link), NLM_F_ACK).map(drop)
    }

    /// Whether the kernel has this kind of qdisc. The request has none of the qdisc's parameters: a kernel that has
    /// the qdisc complains of the parameters, one that lacks it of the name.
    pub(super) fn has_qdisc(&self, interface_index: i32, kind: &str) -> io::Result<bool> {
        let mut qdisc = TcMessage::with_index(interface_index);
        qdisc.header.parent = TcHandle::ROOT;
        qdisc.attributes.push(TcAttribute::Kind(kind.to_owned()));
        let answer = self.ask(RouteNetlinkMessage::NewQueueDiscipline(qdisc), CREATE);
        match answer.as_ref().err().and_then(Errno::from_io_error) {
            Some(Errno::NOENT) => Ok(false),
            Some(Errno::PERM) => answer.map(|_| false),
            _ => Ok(true),
        }
    }

    /// The kinds of all qdiscs of this namespace (`etf`, `fq`, …).
    ///
    /// # Errors
    /// The kernel's.
    pub(super) fn qdiscs(&self) -> io::Result<Vec<String>> {
        let all = RouteNetlinkMessage::GetQueueDiscipline(TcMessage::default());
        let kind = |attribute| match attribute {
            TcAttribute::Kind(kind) => Some(kind),
            _ => None,
        };
        let replies = self.ask(all, NLM_F_DUMP)?.into_iter();
        Ok(replies
            .filter_map(|reply| match reply {
                RouteNetlinkMessage::NewQueueDiscipline(qdisc) => qdisc.attributes.into_iter().find_map(kind),
                _ => None,
            })
            .collect())
    }

    /// The names of this namespace's devices that have an XDP program.
    ///
    /// # Errors
    /// The kernel's.
    pub(super) fn with_xdp(&self) -> io::Result<Vec<String>> {
        let all = RouteNetlinkMessage::GetLink(LinkMessage::default());
        let has_program = |attribute: &LinkAttribute| {
            let LinkAttribute::Xdp(parts) = attribute else { return false };
            let is_attached =
                |part: &LinkXdp| matches!(part, LinkXdp::Attached(at) if *at != XdpAttached::None);
            parts.iter().any(is_attached)
        };
        let name = |attributes: Vec<LinkAttribute>| {
            attributes.into_iter().find_map(|attribute| match attribute {
                LinkAttribute::IfName(name) => Some(name),
                _ => None,
            })
        };
        Ok(self
            .ask(all, NLM_F_DUMP)?
            .into_iter()
            .filter_map(|reply| match reply {
                RouteNetlinkMessage::NewLink(link) if link.attributes.iter().any(has_program) => {
                    name(link.attributes)
                }
                _ => None,
            })
            .collect())
    }

    /// Sends a request and collects what comes back until its end.
    fn ask(&self, message: RouteNetlinkMessage, flags: u16) -> io::Result<Vec<RouteNetlinkMessage>> {
        let mut request = NetlinkMessage::from(message);
        request.header.flags = NLM_F_REQUEST | flags;
        self.runtime.block_on(async {
            let mut replies = self.handle.clone().request(request).map_err(io::Error::other)?;
            let mut found = Vec::new();
            while let Some(reply) = replies.next().await {
                match reply.payload {
                    NetlinkPayload::InnerMessage(message) => found.push(message),
                    NetlinkPayload::Error(error) if error.code.is_some() => return Err(error.to_io()),
                    _ => {}
                }
            }
            Ok(found)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_lists_our_qdiscs() {
        Netlink::open().unwrap().qdiscs().unwrap();
        Netlink::open().unwrap().with_xdp().unwrap();
    }

    #[test]
    fn the_loopback_device_answers_about_qdiscs() {
        let trial = std::thread::spawn(|| {
            crate::sys::enter_new_network_namespace().unwrap();
            let netlink = Netlink::open().unwrap();
            assert!(!netlink.has_qdisc(1, "nosuch").unwrap());
            netlink.set_up(1).unwrap();
            assert!(netlink.make_veth("a-name-that-is-too-long", "b").is_err());
        });
        trial.join().unwrap();
    }
}
