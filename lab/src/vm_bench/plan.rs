// SPDX-License-Identifier: Apache-2.0
//! What the experiment `vm` measures. In: names from the command line. Out: rows by name, checked.

use crate::error::LabError;
use crate::experiment::{Setup, none_twice};
use crate::remote::hosts::Hosts;
use crate::vm::protocol::Clock;
use crate::vm::{Cache, Choice};
use ktsn_time::Nanos;
use std::time::Duration;

ktsn_model::words! {
    /// What is between publisher and subscriber.
    pub enum Datapath {
        /// No guests: both programs are processes of the hosts, and the uplink is theirs.
        NoVm = "no-vm",
        /// Guests; on each host a tap device and the uplink are ports of a bridge of the kernel.
        Bridge = "bridge",
        /// Guests; on each host a private OVS-DPDK has the guest's vhost-user socket and the uplink.
        OvsDpdk = "ovs-dpdk",
    }
}

ktsn_model::words! {
    /// What keeps the publisher's transmit times.
    pub enum Keeper {
        /// The publisher itself: it sleeps until each instant, and sends.
        Send = "send",
        /// The kernel's queueing disciplines beside the publisher: mqprio with etf.
        Etf = "etf",
        /// A ktsnd beside the publisher.
        Ktsnd = "ktsnd",
    }
}

ktsn_model::words! {
    /// What goes over the same uplink.
    pub enum Load {
        /// Nothing but the experiment.
        Idle = "idle",
        /// A second sender on the publisher's host floods a receiver on the subscriber's host with UDP datagrams (iperf3).
        Udp = "udp",
    }
}

/// Most seconds of one row.
const SECONDS_MAX: f64 = 86_400.0;
/// A payload begins with a probe.
const PAYLOAD_MIN: usize = 16;
/// What fits into a frame.
const PAYLOAD_MAX: usize = 1472;

/// Publisher's side of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// What is between publisher and subscriber.
    pub datapath: Datapath,
    /// What keeps the transmit times.
    pub keeper: Keeper,
    /// What goes over the same uplink.
    pub load: Load,
}

impl Row {
    /// The path's name in the results.
    #[must_use]
    pub fn path(&self) -> String {
        format!("{}-{}", self.datapath, self.keeper)
    }
}

/// What to measure.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What is between publisher and subscriber, each of them.
    pub datapaths: Vec<Datapath>,
    /// What keeps the transmit times, each of them.
    pub keepers: Vec<Keeper>,
    /// What goes over the same uplink, each of them.
    pub loads: Vec<Load>,
    /// Payloads, which follow each other in one run.
    pub payloads: Vec<usize>,
    /// Distance of two transmit times.
    pub period: Nanos,
    /// Frames of each payload in a round.
    pub frames: u64,
    /// Rounds.
    pub rounds: u32,
    /// What the load sends, Mbit/s; 0: all that it can.
    pub load_mbit: u32,
    /// How long a guest may take to boot.
    pub boot_within: Duration,
    /// What the guests' clocks follow.
    pub clock: Clock,
    /// How guests run, and why so.
    pub choice: Choice,
    /// Where their image is.
    pub cache: Cache,
    /// The subscriber's host, if it is another machine.
    pub hosts: Option<Hosts>,
    /// Programs, lock, command.
    pub setup: Setup,
}

impl Plan {
    /// The rows of a round in the order in which they are measured: interleaved by what is compared.
    #[must_use]
    pub fn rows(&self) -> Vec<Row> {
        let mut rows = Vec::new();
        for &load in &self.loads {
            for &datapath in &self.datapaths {
                rows.extend(self.keepers.iter().map(|&keeper| Row { datapath, keeper, load }));
            }
        }
        rows
    }

    /// How long the frames of one run take.
    #[must_use]
    pub fn traffic(&self) -> Duration {
        let one = u64::try_from(self.period.get()).unwrap_or(0).saturating_mul(self.frames);
        Duration::from_nanos(one.saturating_mul(self.payloads.len() as u64))
    }

    /// Whether a row has guests.
    #[must_use]
    pub fn has_guests(&self) -> bool {
        self.datapaths.iter().any(|&datapath| datapath != Datapath::NoVm)
    }

    /// # Errors
    /// [`LabError::Usage`] names what cannot be measured.
    pub fn check(&self) -> Result<(), LabError> {
        none_twice("datapath", &self.datapaths)?;
        none_twice("schedule", &self.keepers)?;
        none_twice("load", &self.loads)?;
        none_twice("payload", &self.payloads)?;
        for (what, count) in [
            ("datapath", self.datapaths.len()),
            ("schedule", self.keepers.len()),
            ("load", self.loads.len()),
            ("payload", self.payloads.len()),
        ] {
            if count == 0 {
                return Err(LabError::Usage(format!("{what}: expected one at least")));
            }
        }
        let wrong = self.payloads.iter().find(|payload| !(PAYLOAD_MIN..=PAYLOAD_MAX).contains(payload));
        if let Some(payload) = wrong {
            return Err(LabError::Usage(format!(
                "payload {payload}: expected {PAYLOAD_MIN} to {PAYLOAD_MAX} octets"
            )));
        }
        let seconds = self.traffic().as_secs_f64();
        if self.frames == 0 || self.period < Nanos::from_micros(100) || seconds > SECONDS_MAX {
            return Err(LabError::Usage(format!(
                "{} frames every {}: expected one at least, a period of 100 us at least, and a day at most",
                self.frames, self.period
            )));
        }
        Ok(())
    }
}
