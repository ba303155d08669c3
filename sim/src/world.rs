// SPDX-License-Identifier: Apache-2.0
//! Everything outside the worker: time, the link, the tenants, and what the control plane says.
//!
//! In: the worker's readings of the clock, its sleeps, stages and commits. Out: virtual time that passes, and all that
//! happens in it. The worker is never called from here, and nothing here is a real clock or a thread.

use std::cell::RefCell;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use ktsn_port::SendError;
use ktsnd::stats::PortStats;
use ktsnd::worker::{ClientKey, Command, Outbox};

use crate::broken::Broken;
use crate::clocks::Clocks;
use crate::control::{self, Unmade};
use crate::event::Agenda;
use crate::ledger::{Arrival, Disturbance, Ledger};
use crate::link::Link;
use crate::plan::{BEGAN, Plan, TAI_BEGAN};
use crate::port::{Behind, LinkPort};
use crate::random::Random;
use crate::stamp;
use crate::tenant::Tenant;
use crate::trace::{Note, Trace};

/// What would wake a sleeping worker.
#[derive(Debug, Default)]
pub struct News {
    /// A command was sent.
    pub command: bool,
    /// TAI was set.
    pub clock_set: bool,
    /// Somebody may have rung.
    pub bell: bool,
}

/// The world.
#[derive(Debug)]
pub struct World {
    /// Its plan.
    pub plan: Plan,
    /// Its clocks.
    pub clocks: Clocks,
    /// What will happen.
    pub agenda: Agenda,
    /// Its link.
    pub link: Link,
    /// Its tenants.
    pub tenants: Vec<Tenant>,
    /// The truth.
    pub ledger: Ledger,
    /// The record.
    pub trace: Trace,
    /// What the worker could be woken for.
    pub news: News,
    /// The port's counters, as ktsnd keeps them.
    pub port_stats: Arc<PortStats>,
    /// What is broken on purpose.
    pub broken: Broken,
    /// Whether the faults have ended.
    pub healed: bool,
    /// Whether the daemon has been asked to end.
    pub draining: bool,
    pub(crate) random: Random,
    pub(crate) known: Vec<bool>,
    pub(crate) generation: u64,
    pub(crate) keys: u64,
    outbox: Option<Outbox<LinkPort>>,
    itself: Weak<RefCell<World>>,
    stalled_until: u64,
    taken: u64,
    kept_back: Option<(u64, Vec<u8>)>,
}

impl World {
    /// The world of `plan`, at its start.
    #[must_use]
    pub fn new(
        mut plan: Plan,
        outbox: Outbox<LinkPort>,
        broken: Broken,
        kept_max: usize,
    ) -> Rc<RefCell<Self>> {
        let mut agenda = Agenda::default();
        for (at, event) in &plan.events {
            agenda.add(BEGAN + at, *event);
        }
        let tenants: Vec<_> = plan.tenants.iter().map(|tenant| Tenant::new(*tenant)).collect();
        let link = Link::new(plan.link, plan.random.fork());
        let random = plan.random.fork();
        Rc::new_cyclic(|itself| {
            RefCell::new(Self {
                clocks: Clocks::new(BEGAN, TAI_BEGAN, plan.machine.drift_ppb),
                agenda,
                link,
                known: vec![true; tenants.len()],
                tenants,
                ledger: Ledger::default(),
                trace: Trace::new(kept_max),
                news: News::default(),
                port_stats: Arc::default(),
                broken,
                healed: false,
                draining: false,
                random,
                generation: 1,
                keys: 0,
                outbox: Some(outbox),
                itself: itself.clone(),
                stalled_until: 0,
                taken: 0,
                kept_back: None,
                plan,
            })
        })
    }

    /// Notes what happens now.
    pub fn note(&mut self, note: Note) {
        self.trace.note(self.clocks.at(), note);
    }

    /// Sends a command as the control plane does.
    pub fn send(&mut self, name: [u8; 8], command: Command<LinkPort>) {
        self.note(Note::Command { name });
        self.news.command = true;
        if let Some(outbox) = &self.outbox
            && outbox.send(command).is_err()
        {
            self.outbox = None;
        }
    }

    /// A port on the device that is there now.
    #[must_use]
    pub fn open_port(&self) -> Box<LinkPort> {
        Box::new(LinkPort::open(self.itself.clone(), self.link.device, self.plan.link.stages))
    }

    /// The name of the next client.
    pub fn next_key(&mut self) -> ClientKey {
        self.keys += 1;
        ClientKey(self.keys)
    }

    /// The tables as they are now.
    ///
    /// # Errors
    /// The tables of the present state, made by [`control::tables`].
    pub fn tables(&self) -> Result<Arc<ktsn_resolve::Tables>, Unmade> {
        control::tables(self.generation, &self.known)
    }

    /// Time passes until `target`, and what is planned for it happens; a stall makes it longer.
    fn pass_until(&mut self, target: u64) {
        let mut target = target.max(self.stalled_until);
        while let Some((at, event)) = self.agenda.take(target) {
            self.clocks.pass_until(at);
            self.happen(event);
            target = target.max(self.stalled_until);
        }
        self.clocks.pass_until(target);
    }

    /// The worker works for so long.
    pub fn work(&mut self, span: u64) {
        self.pass_until(self.clocks.at() + span);
    }

    /// The worker reads a clock. What it took over since the last reading took its time too.
    pub fn read_clock(&mut self) {
        let taken: u64 = self.tenants.iter().map(|tenant| tenant.stats.taken.load(Relaxed)).sum();
        let slots = taken.saturating_sub(self.taken);
        self.taken = taken;
        self.work(self.plan.machine.read + slots * self.plan.machine.intake);
    }

    /// While the worker sleeps: lets the next event happen if it is planned by `until`.
    pub fn one_event_until(&mut self, until: u64) -> bool {
        let Some((at, event)) = self.agenda.take(until) else { return false };
        self.clocks.pass_until(at);
        self.happen(event);
        true
    }

    /// The sleep ends: by news now, else at `until`; a bit late, as always.
    pub fn wake(&mut self, until: u64, news: bool) {
        let machine = self.plan.machine;
        let mut late = if self.random.chance(10) {
            self.random.between(machine.lateness, machine.lateness_max)
        } else {
            self.random.between(machine.lateness / 2, machine.lateness * 3 / 2)
        };
        match self.broken {
            Broken::Oversleep if self.random.chance(5) => late += 400_000,
            Broken::Deaf => late += 1_000_000_000,
            _ => {}
        }
        let base = if news { self.clocks.at() } else { until.max(self.clocks.at()) };
        self.pass_until(base + late);
        self.note(Note::Slept { until, news });
    }

    /// The worker's thread does not run for `span` from now on.
    pub(crate) fn stall(&mut self, span: u64) {
        let now = self.clocks.at();
        self.stalled_until = self.stalled_until.max(now + span);
        self.ledger.during(Disturbance::Stall, now, now + span);
    }

    /// Hands a frame to the device: when its last bit leaves, or why it does not. The plan decides whether the device refuses it.
    fn commit(&mut self, device: u32, frame: &[u8]) -> Result<u64, SendError> {
        let refused = if device != self.link.device {
            Some(SendError::DeviceGone)
        } else if !self.link.up {
            Some(SendError::LinkDown)
        } else if self.link.fails() {
            let errors = [SendError::Busy, SendError::Dropped, SendError::Os { errno: 5 }];
            Some(errors[self.link.which(3) as usize])
        } else {
            None
        };
        if let Some(error) = refused {
            let id = read(frame).1.unwrap_or(u64::MAX);
            let number = matches!(error, SendError::DeviceGone | SendError::LinkDown);
            self.note(Note::Refused { id, error: u8::from(number) });
            return Err(error);
        }
        let wire_octets = ktsn_wire::wire_octets(frame.len());
        let mut handed_at = self.clocks.at();
        if self.broken == Broken::SlowDevice && self.healed {
            handed_at += 400_000;
        }
        let (from, until) = self.link.transmit(handed_at, wire_octets);
        self.break_wire(frame, from, until);
        Ok(until)
    }

    /// The wire as it is, or as it is broken on purpose.
    fn break_wire(&mut self, frame: &[u8], from: u64, until: u64) {
        let some = |random: &mut Random| random.chance(20);
        match self.broken {
            Broken::Duplicate if some(&mut self.random) => self.arrive(frame, from, until),
            Broken::Lose if some(&mut self.random) => return,
            Broken::Corrupt if some(&mut self.random) => {
                let mut changed = frame.to_vec();
                let last = changed.len() - 1;
                changed[last] ^= 1;
                return self.arrive(&changed, from, until);
            }
            Broken::Reorder => {
                let tenant = read(frame).0.map_or(u64::MAX, u64::from);
                if self.kept_back.is_none() && self.random.chance(100) {
                    self.kept_back = Some((tenant, frame.to_vec()));
                    return;
                }
                self.arrive(frame, from, until);
                if let Some((_, kept)) = self.kept_back.take_if(|(whose, _)| *whose == tenant) {
                    self.arrive(&kept, until, until);
                }
                return;
            }
            _ => {}
        }
        self.arrive(frame, from, until);
    }

    /// A frame is seen on the wire.
    fn arrive(&mut self, frame: &[u8], wire_from: u64, wire_until: u64) {
        let handed = self.clocks.now();
        let at = self.clocks.at();
        let (source, id) = read(frame);
        let position = self.ledger.arrived;
        self.ledger.arrived += 1;
        let octets = frame.len() as u64;
        self.note(Note::Wire { id: id.unwrap_or(u64::MAX), from: wire_from, until: wire_until });
        let Some(tenant) = source.filter(|tenant| usize::from(*tenant) < self.tenants.len()) else {
            return self.ledger.violated("identity", at, "a frame of no tenant's address".to_owned());
        };
        let seen = &mut self.tenants[usize::from(tenant)].seen;
        seen.frames += 1;
        seen.octets += octets;
        let corrupted = self.tenants[usize::from(tenant)].corrupted;
        let Some(id) = id else {
            if !corrupted {
                self.ledger.violated(
                    "intact",
                    at,
                    format!("a frame of tenant {tenant} is not what was pushed"),
                );
            }
            return;
        };
        let arrival = Arrival {
            handed,
            wire_from,
            wire_from_tai: self.clocks.tai_at(wire_from),
            wire_until,
            octets,
            position,
        };
        if corrupted && self.ledger.frames.get(id as usize).is_none_or(|f| f.tenant == tenant) {
            // What it wrote over its own frames is its own affair.
            if let Some(frame) = self.ledger.frames.get_mut(id as usize) {
                frame.arrival = Some(arrival);
            }
            return;
        }
        crate::arrival::on_arrival(&mut self.ledger, tenant, id, arrival);
    }
}

impl Behind for World {
    fn at(&self) -> u64 {
        self.clocks.at()
    }

    fn is_up(&self) -> bool {
        self.link.up
    }

    fn port_full(&mut self) {
        let now = self.clocks.at();
        self.ledger.during(Disturbance::PortFull, now, now);
    }

    fn staged(&mut self) {
        self.work(self.plan.machine.stage);
    }

    fn hand_over(&mut self, device: u32, frame: &[u8]) -> Result<u64, SendError> {
        let handed = self.commit(device, frame);
        self.work(self.plan.machine.commit);
        handed
    }
}

/// Whose frame it is by its source address, and the id in its payload.
fn read(frame: &[u8]) -> (Option<u16>, Option<u64>) {
    match ktsn_wire::dissect(frame, Some(control::VXLAN_PORT)) {
        Ok(seen) => (control::tenant_of(seen.inner.source), stamp::read(seen.payload())),
        Err(_) => (None, None),
    }
}
