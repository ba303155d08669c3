// SPDX-License-Identifier: Apache-2.0
//! How ports are opened, and given to their workers.
//!
//! In: an attachment; news of an uplink's device; news of a worker that a port is too slow. Out: ports in their workers. A port to
//! a virtual switch listens at its socket as long as the attachment is attached; the switch may come and go.

use std::sync::Arc;

use ktsn_port::vhost_user::{Socket, VhostUser};
use ktsn_port::{AnyPort, Device, OpenError, Opened, Options, Port as _};
use ktsn_resolve::PortIndex;
use ktsn_sched::{TimeAware, TimeAwareOptions};
use ktsn_time::Nanos;
use tracing::warn;

use super::events::Event;
use super::ports::{Backend, Inside, OpenPort, UplinkKeeper, UplinkNews, UplinkState, open_uplink, speed_of};
use super::{Node, NodeError};
use crate::config::Attachment;
use crate::limits;
use crate::stats::PortStats;
use crate::supervise;
use crate::worker::{Command, HAND_OVER_AT_START, NewPort};

/// Transmit buffers of a port to a virtual switch.
const SWITCH_STAGES: u16 = 256;

/// Uplinks.
impl Node {
    /// The index of an open uplink.
    pub(crate) fn open_index(&self, device: &str) -> Option<PortIndex> {
        self.ports.uplink(device).filter(|_| self.workers.has(device))
    }

    /// The port of an uplink that has a worker already.
    pub(super) fn known_uplink(&self, uplink: &str) -> Result<Option<PortIndex>, NodeError> {
        let Some(index) = self.open_index(uplink) else { return Ok(None) };
        if self.workers.is_over(uplink) {
            return Err(NodeError::WorkerEnded(uplink.to_owned()));
        }
        if let Some(silent) = supervise::stuck_worker(uplink) {
            return Err(NodeError::precondition(
                "attachment.uplink",
                &format_args!(
                    "the worker of {uplink} is stuck, it has not answered for {}; ktsnd restarts itself when it stays so, \
                     try again then",
                    supervise::in_words(silent)
                ),
            ));
        }
        Ok(Some(index))
    }

    /// The worker of an uplink and the uplink's port; started when missing.
    pub(super) fn uplink_worker(&mut self, uplink: &str) -> Result<(PortIndex, bool), NodeError> {
        if let Some(index) = self.known_uplink(uplink)? {
            return Ok((index, false));
        }
        let config = self.intent.port(uplink);
        let (opened, speed) =
            supervise::kernel("to open an uplink's device", || (open_uplink(&config), speed_of(&config)));
        let opened = opened.map_err(|e| NodeError::not_opened("attachment.uplink", e))?;
        let (selection, program) = self.selection(&config, limits::QUEUE_MAX)?;
        let policing = self.intent.policing(uplink)?;
        let number = self.workers.start(
            &config,
            self.latest.clone(),
            self.events.clone(),
            self.directory.clone(),
            self.watch.clock.is_good(),
        )?;
        let reason = self.note_fallback(uplink, &opened);
        let ifindex = opened.port.capabilities().ifindex;
        let counters = policing.as_ref().map_or_else(|| Arc::from([]), |policing| policing.stats());
        let mut open = OpenPort::new(uplink, None, &opened.port, speed);
        (open.reason, open.policing) = (reason, counters);
        let (index, stats) = self.ports.add(open);
        let (port, priority_map) = (Box::new(opened.port), self.intent.priority_map(uplink));
        let new = NewPort { port, priority_map, selection, policing, stats, is_pod_interface: false };
        if let Err(error) = self.workers.must_take(uplink, Command::AddPort(index, new)) {
            self.ports.remove(index);
            self.workers.drop_unused(uplink);
            return Err(error);
        }
        if let Some(program) = program {
            self.workers.send(uplink, Command::ChangeSchedule(index, program));
        }
        // A driver of DPDK may have a device that Linux does not know.
        if ifindex > 0 {
            let events = self.events.clone();
            let send = move |news| events.send(Event::Uplink(number, index, news)).is_ok();
            match UplinkKeeper::start(config, ifindex, send) {
                Ok(keeper) => self.ports.keep(index, keeper),
                Err(error) => {
                    self.watch
                        .warn(format!("port {uplink}: {error}: a device that is gone is not opened again"));
                }
            }
        }
        Ok((index, true))
    }

    pub(super) fn close_port(&mut self, uplink: &str, index: PortIndex) {
        self.ports.remove(index);
        self.workers.send(uplink, Command::RemovePort(index));
    }

    /// News of the device of an uplink.
    pub(super) fn uplink_news(&mut self, worker: u64, index: PortIndex, news: UplinkNews) {
        let Some(uplink) = self.workers.uplink_of(worker) else { return };
        if self.ports.get(index).is_none() {
            return;
        }
        match news {
            UplinkNews::Seen(seen) => self.uplink_seen(&uplink, index, seen),
            UplinkNews::Reopened(opened, speed) => self.reopened(&uplink, index, *opened, speed),
        }
    }

    fn uplink_seen(&mut self, uplink: &str, index: PortIndex, seen: UplinkState) {
        let is_speed_fixed = self.intent.port(uplink).link_speed.is_some();
        if let Some(speed) = self.ports.seen(index, seen, is_speed_fixed) {
            self.send_speed(uplink, index, speed);
        }
    }

    /// Another device has the uplink's name: its port takes the place of the one before.
    fn reopened(&mut self, uplink: &str, index: PortIndex, opened: Opened, speed: Option<u64>) {
        warn!(device = uplink, "the device is there again: port opened again");
        let reason = self.note_fallback(uplink, &opened);
        let mut open = OpenPort::new(uplink, None, &opened.port, speed);
        open.reason = reason;
        self.ports.replace(index, open);
        self.workers.send(uplink, Command::ReplacePort(index, Box::new(opened.port)));
        // Another device may be faster or slower; one that does not say keeps what was known.
        if let Some(speed) = speed {
            self.send_speed(uplink, index, speed);
        }
        self.intent.waiting.retry_soon();
    }

    /// The uplink's scheduler paces frames by this speed, where it paces frames.
    fn send_speed(&self, uplink: &str, index: PortIndex, speed: u64) {
        if self.intent.port(uplink).is_shaped() || self.intent.schedule_of(uplink).is_some() {
            self.workers.send(uplink, Command::SetLinkSpeed(index, Some(speed)));
        }
    }

    /// Why the port is not AF_XDP, which is said once; empty: it is.
    fn note_fallback(&mut self, uplink: &str, opened: &Opened) -> String {
        let reason = opened.fallback.as_ref().map(ToString::to_string).unwrap_or_default();
        if !reason.is_empty() {
            self.watch
                .warn(format!("port {uplink}: AF_XDP cannot be used ({reason}); AF_PACKET serves instead"));
        }
        reason
    }
}

/// What leaves by a pod's own interface. Gates, shapers and policing are the uplink's.
impl Node {
    /// Opens the pod's interface, whose frames go on the kernel's way.
    pub(super) fn open_interface(
        &mut self,
        attachment: &Attachment,
        uplink: &str,
    ) -> Result<PortIndex, NodeError> {
        let inside =
            Inside::open(attachment).map_err(|e| NodeError::not_opened("attachment.interface", e))?;
        let netns = Some(attachment.netns.as_path());
        let (open, port) = inside.into_port(&attachment.interface, netns);
        self.add_port_of_pod(uplink, open, port, true)
    }

    /// Opens the port to a virtual switch that sends for the attachment's interface. No rule of the pod runs in a hand-over: it is a
    /// copy.
    pub(super) fn open_vhost_user(
        &mut self,
        attachment: &Attachment,
        uplink: &str,
        socket: &Socket<'_>,
    ) -> Result<PortIndex, NodeError> {
        let netns = Some(attachment.netns.as_path());
        let device = Device { ifname: &attachment.interface, netns };
        let options = Options { stage_count: SWITCH_STAGES, ..Options::default() };
        let port = VhostUser::open(Some(&device), socket, &options).map_err(|error| {
            let is_socket = matches!(error, OpenError::VhostUser(_));
            let field = if is_socket { "attachment.vhost_socket" } else { "attachment.interface" };
            NodeError::not_opened(field, error)
        })?;
        let backend = Backend { socket: socket.path.to_owned(), status: port.status() };
        let port = AnyPort::from(port);
        let mut open = OpenPort::new(&attachment.interface, netns, &port, None);
        open.backend = Some(backend);
        self.add_port_of_pod(uplink, open, port, false)
    }

    /// Gives a port to the uplink's worker. It has one attachment: it is this pod's alone.
    fn add_port_of_pod(
        &mut self,
        uplink: &str,
        open: OpenPort,
        port: AnyPort,
        is_pod_interface: bool,
    ) -> Result<PortIndex, NodeError> {
        let (index, stats): (PortIndex, Arc<PortStats>) = self.ports.add(open);
        let selection = Box::new(TimeAware::new(TimeAwareOptions {
            hand_over: HAND_OVER_AT_START,
            ..TimeAwareOptions::gates(limits::INTERFACE_QUEUE_MAX, 1)
        }));
        let (port, priority_map) = (Box::new(port), self.intent.priority_map(uplink));
        let new = NewPort { port, priority_map, selection, policing: None, stats, is_pod_interface };
        if let Err(error) = self.workers.must_take(uplink, Command::AddPort(index, new)) {
            self.ports.remove(index);
            return Err(error);
        }
        Ok(index)
    }

    /// Hand-overs by a pod's interface are beyond their budget, the longest took `longest`.
    pub(super) fn defer(&mut self, index: PortIndex, longest: Nanos) {
        let served = self.served.iter().find(|served| served.interface_port == index);
        let Some(served) = served.filter(|_| !self.stopping) else { return };
        if let Some(port) = self.ports.defer(served, longest) {
            self.workers.send(&served.uplink, Command::ReplacePort(index, Box::new(port)));
        }
    }

    /// Frames of pods whose hand-overs have been within the budget for long leave by the worker again.
    pub(super) fn look_at_deferred(&mut self) {
        for served in self.served.iter().filter(|_| !self.stopping) {
            if let Some(port) = self.ports.end_deferral(served) {
                let index = served.interface_port;
                self.workers.send(&served.uplink, Command::ReplacePort(index, Box::new(port)));
            }
        }
    }
}
