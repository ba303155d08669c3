// SPDX-License-Identifier: Apache-2.0
//! Frames that a worker leaves to the kernel become datagrams of their namespaces' lanes.
//!
//! In: a slot of a region, which its program may write at any time, and what the worker checked of it. Out: the datagram with its
//! program's socket, for [`super::later::Later`]. The socket is the one that is kept for the stream; where none is kept, the one with the
//! registered cookie among the process's descriptors, as far as ktsnd may look there. What a frame has of its socket's options the kernel
//! takes from the socket. Nothing here waits for a program.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ktsn_model::DropReason;
use ktsn_resolve::Flow;
use ktsn_ring::control::LaterHeader;
use ktsn_ring::{ClockId, SlotHeader};
use ktsn_time::TxTime;
use rustix::net::sockopt;
use rustix::process::{PidfdGetfdFlags, pidfd_getfd};
use tracing::debug;

use super::directory::Directory;
use super::later::{Asked, Datagram, count_dropped};
use super::notifier::Process;
use super::socket::close;
use super::sys::Control;
use crate::queue::Receiver;
use crate::worker::{ClientKey, Command, ForPasser, Outbox, Passed, StreamInfo};

/// Descriptors of a process that are looked at.
const DESCRIPTORS_MAX: usize = 4096;
/// After a look that found no socket a process's descriptors are not looked at for so long.
const LOOK_PAUSE: Duration = Duration::from_millis(100);

/// The thread's own: looks that found no socket.
#[derive(Debug, Default)]
pub(super) struct Looks(BTreeMap<ClientKey, Instant>);

impl Looks {
    /// The socket with this cookie among a process's descriptors.
    fn socket(&mut self, client: ClientKey, process: &Process, pid: u32, cookie: u64) -> Option<OwnedFd> {
        self.0.retain(|_, at| at.elapsed() < LOOK_PAUSE);
        if pid == 0 || self.0.contains_key(&client) {
            return None;
        }
        let found = find(process, pid, cookie);
        if found.is_none() {
            self.0.insert(client, Instant::now());
        }
        found
    }
}

fn find(process: &Process, pid: u32, cookie: u64) -> Option<OwnedFd> {
    for entry in std::fs::read_dir(format!("/proc/{pid}/fd")).ok()?.take(DESCRIPTORS_MAX).flatten() {
        // Only sockets are taken: the close of another file may block.
        let is_socket = std::fs::read_link(entry.path());
        let number = entry.file_name().to_str().and_then(|name| name.parse().ok());
        let Some(number) = number
            .filter(|_| is_socket.is_ok_and(|of| of.as_os_str().as_encoded_bytes().starts_with(b"socket:")))
        else {
            continue;
        };
        let Ok(socket) = pidfd_getfd(&process.pidfd, number, PidfdGetfdFlags::empty()) else { continue };
        if sockopt::socket_cookie(&socket) == Ok(cookie) {
            return Some(socket);
        }
        close(socket);
    }
    None
}

impl<P: Send + 'static> Directory<P> {
    /// Gives what a worker leaves to the kernel to the lanes; returns when the worker has gone.
    pub fn pass(&self, told: &Receiver<ForPasser>, worker: &Outbox<P>) {
        let mut looks = Looks::default();
        while let Ok(told) = told.recv() {
            match told {
                ForPasser::Passed(passed) => self.pass_one(&passed, worker, &mut looks),
                ForPasser::Settled(client, None) => self.kept().remove_client(client),
                // The program's close goes on when the worker has forgotten the stream.
                ForPasser::Settled(client, Some(stream)) if self.kept().end(client, stream) => {
                    let _ = worker.send(Command::Unregister(client, stream));
                }
                ForPasser::Settled(..) => {}
                ForPasser::Judged(netns_cookie, number, judged) => {
                    self.later().judge(netns_cookie, number, judged);
                }
            }
        }
    }

    fn pass_one(&self, passed: &Passed, worker: &Outbox<P>, looks: &mut Looks) {
        let &Passed { client, slot, stream, .. } = passed;
        let kept = self.kept().get(client, u32::from(stream));
        let process = kept.as_ref().map(|kept| kept.process.clone()).or_else(|| self.process(client));
        let mut payload = vec![0; usize::from(passed.payload_octets)];
        let header = process.as_ref().and_then(|process| {
            process.markers.read_payload(slot, &mut payload);
            process.markers.slot(slot)
        });
        // The worker that has gone needs no slot.
        let _ = worker.send(Command::Release(client, slot));
        let (served, info, pid) = {
            let known = self.lock();
            let served = known.served.iter().find(|served| served.index == passed.attachment);
            let view = known.clients.get(&client);
            let info = view.and_then(|view| view.streams.get(u32::from(stream)).cloned());
            let served = served.map(|of| (of.stats.clone(), of.attachment.horizon, of.netns_cookie));
            (served, info, view.map_or(0, |view| view.pid))
        };
        // Its namespace is gone.
        let Some((stats, horizon, netns_cookie)) = served else { return };
        let kept = kept.filter(|kept| kept.sent(&passed.flow, info.as_ref()));
        let socket = kept.map(|kept| (kept.socket, kept.cookie, kept.local)).or_else(|| {
            let info = info.filter(|info| is_its(&passed.flow, info))?;
            let socket = looks.socket(client, process.as_deref()?, pid, info.cookie)?;
            Some((Arc::new(socket), info.cookie, info.local))
        });
        let (Some(header), Some((socket, cookie, local))) = (header, socket) else {
            debug!(
                client = client.0,
                "a frame that is the kernel's cannot be given to it: its socket is gone"
            );
            return count_dropped(&stats, DropReason::NoRoute);
        };
        let (clock, tx_time) = match passed.tx_time {
            TxTime::Tai(at) => (u32::from(ClockId::Tai.id()), at.as_nanos()),
            TxTime::Monotonic(at) => (u32::from(ClockId::Monotonic.id()), at.as_nanos()),
        };
        let (octets, asked) = message(passed, &header, local, (clock, tx_time), &payload);
        let attachment = passed.attachment;
        let datagram = Datagram {
            socket,
            cookie,
            octets,
            clock,
            tx_time,
            client,
            attachment,
            is_foreign: false,
            stats,
            asked: Some(asked),
        };
        self.later().give(netns_cookie, horizon.get().unsigned_abs(), datagram);
    }
}

/// Whether the stream's socket can have sent the flow's datagram.
fn is_its(flow: &Flow, info: &StreamInfo) -> bool {
    info.local.port() == flow.source_port && info.uid == flow.uid
}

/// The message that the program would have handed over itself, and what only the lane can compare with the socket.
fn message(
    passed: &Passed,
    header: &SlotHeader,
    local: SocketAddr,
    (clock, tx_time): (u32, u64),
    payload: &[u8],
) -> (Box<[u8]>, Asked) {
    let flow = &passed.flow;
    let (is_v6_socket, destination) = (local.is_ipv6(), flow.destination.to_canonical());
    let name = name(flow, destination, is_v6_socket);
    let mut control = Control::default();
    // The device that the socket is bound to is the socket's.
    let is_named = flow.scope != 0 && !flow.needs_scope();
    match destination {
        IpAddr::V4(_) if is_named => {
            let mut info = [0; 12]; // struct in_pktinfo: interface, two addresses
            info[..4].copy_from_slice(&flow.scope.to_ne_bytes());
            control.push(libc::IPPROTO_IP, libc::IP_PKTINFO, &info);
        }
        IpAddr::V6(_) if is_named => {
            let mut info = [0; 20]; // struct in6_pktinfo: address, interface
            info[16..].copy_from_slice(&flow.scope.to_ne_bytes());
            control.push(libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, &info);
        }
        _ => {}
    }
    let control = control.octets();
    let words = LaterHeader {
        clock,
        tx_time,
        flags: 0,
        name_octets: name.len() as u32,
        control_octets: control.len() as u32,
        payload_octets: payload.len() as u32,
    }
    .encode();
    let words = words.iter().flat_map(|word| word.to_ne_bytes());
    let octets = words.chain([&name[..], control, payload].concat()).collect();
    let asked = Asked {
        is_v4: destination.is_ipv4(),
        class: flow.traffic_class,
        hop_limit: (flow.hop_limit != 0 && !flow.marks.is_default_hop_limit).then_some(flow.hop_limit),
        key: header.frame.flags.wants_report().then_some(header.frame.report_id),
    };
    (octets, asked)
}

/// The destination as an address of the socket's family.
fn name(flow: &Flow, destination: IpAddr, is_v6_socket: bool) -> Vec<u8> {
    let mut name = Vec::with_capacity(28);
    let family = |family: libc::c_int| (family as u16).to_ne_bytes();
    let port = flow.destination_port.to_be_bytes();
    match destination {
        IpAddr::V4(v4) if !is_v6_socket => {
            name.extend_from_slice(&family(libc::AF_INET));
            name.extend_from_slice(&port);
            name.extend_from_slice(&v4.octets());
            name.extend_from_slice(&[0; 8]);
        }
        _ => {
            let v6 = match destination {
                IpAddr::V4(v4) => v4.to_ipv6_mapped(),
                IpAddr::V6(v6) => v6,
            };
            name.extend_from_slice(&family(libc::AF_INET6));
            name.extend_from_slice(&port);
            name.extend_from_slice(&[0; 4]);
            name.extend_from_slice(&v6.octets());
            let scope = if flow.needs_scope() { flow.scope } else { 0 };
            name.extend_from_slice(&scope.to_ne_bytes());
        }
    }
    name
}
