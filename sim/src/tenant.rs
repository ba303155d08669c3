// SPDX-License-Identifier: Apache-2.0
//! A virtual tenant: an attachment and its processes, each with a real ring region and a real doorbell.
//!
//! It does what libktsn does (look at the region's state and the stream's word, claim, fill, publish, ring), one
//! step at a time, so that it can be killed or held up between any two.

use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use ktsn_ring::{Claim, ClientMapping, ClockId, RegionState, SlotFlags, SlotFrame, StreamCode, layout};
use ktsnd::stats::AttachmentStats;
use ktsnd::worker::ClientKey;
use rustix::net::SendFlags;

use crate::plan::TenantPlan;

/// The registration that every process makes.
pub const TOKEN: u32 = 7;
/// Where all frames go.
pub const REMOTE: Ipv4Addr = Ipv4Addr::new(10, 244, 1, 7);

/// A slot between claim and publish.
#[derive(Debug)]
pub struct Held {
    /// The frame.
    pub id: u64,
    /// The slot.
    pub claim: Claim,
}

/// One process.
#[derive(Debug)]
pub struct Process {
    /// Its name at the worker.
    pub key: ClientKey,
    mapping: ClientMapping,
    /// Its end of the doorbell; closed when it dies.
    bell: Option<OwnedFd>,
    /// Whether it runs.
    pub alive: bool,
    /// Whether it has announced its end.
    pub over: bool,
    /// Slots between claim and publish.
    pub held: Vec<Held>,
    /// Slots that will never be published.
    pub leaked: usize,
}

impl Process {
    /// A process that just got its region.
    #[must_use]
    pub fn new(key: ClientKey, mapping: ClientMapping, bell: OwnedFd) -> Self {
        Self { key, mapping, bell: Some(bell), alive: true, over: false, held: Vec::new(), leaked: 0 }
    }

    /// The region's state, as the daemon wrote it.
    #[must_use]
    pub fn state(&self) -> RegionState {
        self.mapping.producer().state()
    }

    /// Whether a send would go into the ring.
    #[must_use]
    pub fn can_push(&self) -> bool {
        let registered = |s: ktsn_ring::StreamStatus| s.code == StreamCode::Registered && s.token == TOKEN;
        self.alive
            && self.state() == RegionState::Attached
            && self.mapping.producer().stream(0).is_some_and(registered)
    }

    /// Claims and fills a slot; `None` when none is free.
    #[must_use]
    pub fn fill(&self, frame: &SlotFrame, payload: &[u8]) -> Option<Claim> {
        let producer = self.mapping.producer();
        let claim = producer.claim()?;
        if producer.fill(&claim, frame, [payload].into_iter()).is_err() {
            producer.cancel(claim);
            return None;
        }
        Some(claim)
    }

    /// Publishes; rings where the worker has to be woken. True when it was rung for.
    pub fn publish(&self, claim: Claim, clock: ClockId, tx_time: u64, now: u64) -> bool {
        let producer = self.mapping.producer();
        producer.publish(claim);
        let Some(bell) = producer.bell(clock, tx_time, now) else { return false };
        let rang = self.ring();
        if rang {
            producer.rung(bell);
        }
        rang
    }

    /// Sends one octet to the doorbell; false when the queue was full or the other end closed.
    #[must_use]
    pub fn ring(&self) -> bool {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        self.bell.as_ref().is_some_and(|bell| rustix::net::send(bell, &[1], flags).is_ok())
    }

    /// Dies: what is between claim and publish stays so for ever.
    pub fn die(&mut self) {
        self.alive = false;
        self.bell = None;
        self.leaked += self.held.len();
        self.held.clear();
    }

    /// Slots that are published or with the daemon: neither free nor claimed.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        let slots = self.mapping.producer().layout().slots_count();
        let words = self.mapping.producer().layout().free_words();
        let free: u32 = (0..words).map(|word| self.mapping.peek(layout::FREE + 8 * word).count_ones()).sum();
        slots.saturating_sub(free as usize + self.held.len() + self.leaked)
    }

    /// Writes a word that a correct program never writes.
    pub fn poke(&self, at: usize, value: u64) {
        self.mapping.poke(at, value);
    }

    /// Octets of its region.
    #[must_use]
    pub fn region_octets(&self) -> usize {
        self.mapping.producer().layout().region_octets()
    }
}

/// One tenant.
#[derive(Debug)]
pub struct Tenant {
    /// Its plan.
    pub plan: TenantPlan,
    /// Its counters, as ktsnd keeps them.
    pub stats: Arc<AttachmentStats>,
    /// Processes, the newest last.
    pub processes: Vec<Process>,
    /// Whether it has an attachment.
    pub attached: bool,
    /// Whether it ever wrote what is not its own: then its own counts may be anything.
    pub corrupted: bool,
    /// Doorbells that reached the queue.
    pub rang: u64,
    /// What the wire saw of it, by its source address.
    pub seen: Seen,
}

/// Frames on the wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// How many.
    pub frames: u64,
    /// Their octets without FCS.
    pub octets: u64,
}

impl Tenant {
    /// A tenant without processes.
    #[must_use]
    pub fn new(plan: TenantPlan) -> Self {
        Self {
            plan,
            stats: Arc::default(),
            processes: Vec::new(),
            attached: false,
            corrupted: false,
            rang: 0,
            seen: Seen::default(),
        }
    }

    /// The slot's fields of a frame of this tenant.
    #[must_use]
    pub fn slot_frame(&self, clock: ClockId, tx_time: u64, pushed_at: u64) -> SlotFrame {
        SlotFrame {
            stream_index: 0,
            token: TOKEN,
            flags: SlotFlags::NONE,
            clock: clock.id(),
            tx_time,
            pushed_at,
            address: REMOTE.to_ipv6_mapped().octets(),
            scope: 0,
            port: 6_000,
            priority: self.plan.class,
            traffic_class: 0,
            has_waited: false,
            marks: ktsn_ring::HeaderMarks::NONE,
            identification: 0,
            hop_limit: 0,
            report_id: 0,
            descriptor: 0,
        }
    }
}
