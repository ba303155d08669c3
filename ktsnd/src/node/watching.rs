// SPDX-License-Identifier: Apache-2.0
//! What the node does about what it watches: the clock, programs at devices, its health, grants of expected arrival.
//!
//! In: the clock's state, looks. Out: a command to each worker and one log line at each change of the clock; programs put back; notes
//! for `Health`; leases, renewed once a second and when a client asks.

use std::sync::atomic::Ordering::Relaxed;

use ktsn_model::UnsynchronisedPolicy;
use ktsn_resolve::AttachmentIndex;
use tracing::{info, warn};

use super::Node;
use super::watch::{ClockNotes, HealthNotes};
use crate::clients::ServedAttachment;
use crate::config::{Mode, ReceiveMode};
use crate::supervise;
use crate::worker::{Command, monotonic_now};

impl Node {
    /// The clock was judged first, or went from good to not good or back.
    pub(super) fn clock_changed(&self) {
        let view = self.watch.clock.view();
        let source = self.intent.config().daemon.clock_source.word();
        match &view.fault {
            None => info!(source, "the clock is good"),
            Some(why) => warn!(source, why, waiting = ?self.waiting_for_clock(), "the clock is not good"),
        }
        self.workers.send_all(|| Command::ClockIsGood(view.fault.is_none()));
    }

    /// Uplinks whose frames are held or dropped while the clock is not good.
    fn waiting_for_clock(&self) -> Vec<String> {
        let waits = |uplink: &&String| self.intent.port(uplink).unsynchronised != UnsynchronisedPolicy::Send;
        self.workers.uplinks().filter(waits).cloned().collect()
    }

    /// Puts back what others removed from devices.
    pub(super) fn look_at_programs(&mut self) {
        let with_captures = self.watch.is_look_for_captures() && !self.stopping;
        supervise::kernel("to look at programs", || {
            self.watch.look_at_ingress(&self.served);
            if with_captures {
                self.served.look_at_captures();
            }
        });
        self.watch.looked(self.served.has_captures());
    }

    /// Renews the grants of expected arrival, and reads what their processes count.
    pub(super) fn renew_grants(&self) {
        let does_grant = |index: AttachmentIndex| {
            self.served.get(index).is_some_and(|a| a.attachment.receive == ReceiveMode::Expect)
        };
        let cap = self.intent.config().daemon.receive_spin_max_permille;
        self.directory.receivers().renew(monotonic_now(), cap, does_grant);
    }

    /// Notes what `Health` answers while the node is busy.
    pub(crate) fn note_health(&self) {
        let mut warnings = self.watch.warnings().to_vec();
        warnings.extend(self.intent.warnings());
        for port in self.ports.uplinks() {
            let foreign = port.foreign_frames();
            if foreign > 0 && self.intent.port(&port.device).mode == Mode::Dedicated {
                let device = &port.device;
                warnings.push(format!(
                    "port {device} is dedicated, but {foreign} frames of others left by it: they may stand in \
                     front of scheduled ones (tcpdump -i {device} shows which program sends them)"
                ));
            }
        }
        let view = self.watch.clock.view();
        let holding = if view.fault.is_some() { self.waiting_for_clock() } else { Vec::new() };
        let clock = ClockNotes { source: self.intent.config().daemon.clock_source, view, holding };
        let (needs_clock, is_stopping) = (self.needs_clock(), self.stopping);
        self.watch.board.note(HealthNotes { warnings, needs_clock, is_stopping, clock });
    }

    /// Whether anything goes by the time of day: sockets with CLOCK_TAI, captured frames (their clock is not known), gates.
    fn needs_clock(&self) -> bool {
        let is_on_tai = |of: &ServedAttachment| of.stats.tai_streams.load(Relaxed) > 0;
        self.intent.has_gates() || self.served.has_captures() || self.served.iter().any(is_on_tai)
    }
}
