// SPDX-License-Identifier: Apache-2.0
//! What each event does to the world.

use ktsn_resolve::{AttachmentIndex, PortIndex};
use ktsn_ring::{ClockId, RegionState, layout};
use ktsn_sched::GateProgram;
use ktsn_time::{Monotonic, Nanos, Now, Tai, TxTime};
use ktsnd::worker::{ClientKey, Command, GateView};

use crate::broken::Broken;
use crate::control;
use crate::event::Event;
use crate::gates::Sent;
use crate::ledger::{Disturbance, Frame, Kind};
use crate::plan::{Behaviour, HORIZON, MS, US};
use crate::stamp;
use crate::tenant::Held;
use crate::trace::Note;
use crate::world::World;

impl World {
    pub(crate) fn happen(&mut self, event: Event) {
        let now = self.clocks.at();
        match event {
            Event::Push { tenant } => self.push_next(tenant),
            Event::Publish { tenant, id } => self.publish_held(tenant, id),
            Event::Fresh { tenant, left } => {
                self.push(tenant, Kind::Good, true);
                if left > 1 {
                    self.agenda.add(now + MS, Event::Fresh { tenant, left: left - 1 });
                }
            }
            Event::Kill { tenant } => self.kill_in_mid_push(tenant),
            Event::Over { key } => self.send(*b"EndClien", Command::EndClient(key)),
            Event::Spawn { tenant } => self.spawn(tenant),
            Event::Detach { tenant } => self.detach(tenant),
            Event::Attach { tenant } => self.attach(tenant),
            Event::Poke { tenant } => self.poke(tenant),
            Event::Ring { tenant, left } => self.ring(tenant, left),
            Event::Neighbour { tenant, known } => self.set_neighbour(tenant, known),
            Event::Step { span } => {
                self.clocks.step(span);
                self.ledger.steps += 1;
                self.ledger.during(Disturbance::Step(span), now, now);
                self.news.clock_set = true;
                self.note(Note::Stepped { span });
            }
            Event::Stall { span } => {
                self.stall(span);
                self.note(Note::Stalled { span });
            }
            Event::Link { up } => self.set_link(up),
            Event::DeviceGone => {
                self.link.device += 1;
                self.ledger.begin(Disturbance::DeviceGone, now);
                self.note(Note::DeviceGone);
                let back = now + self.random.between(US, 5 * MS);
                self.agenda.add(back, Event::DeviceBack);
            }
            Event::DeviceBack => {
                let port = self.open_port();
                self.send(*b"ReplPort", Command::ReplacePort(PortIndex(0), port));
            }
            Event::PortErrors { permille } => self.set_port_errors(permille),
            Event::BestEffort { on } => {
                self.link.set_best_effort(on, now);
                self.note(Note::BestEffort { on });
            }
            Event::Schedule { index } => self.change_schedule(index),
            Event::LookAtGates => {
                let view = Box::new(GateView::new(0));
                self.send(*b"LookGate", Command::LookAtGates(PortIndex(0), view));
            }
            Event::Heal => self.heal(),
            Event::Drain => {
                self.draining = true;
                self.send(*b"Drain   ", Command::Drain);
            }
        }
    }

    /// The attachment, then its first process.
    pub(crate) fn attach(&mut self, tenant: u16) {
        let now = self.clocks.at();
        let index = usize::from(tenant);
        if self.tenants[index].attached {
            return;
        }
        self.tenants[index].attached = true;
        self.ledger.end(Disturbance::Detached(tenant), now);
        let policy = control::policy(tenant, self.tenants[index].plan.class, &self.tenants[index].stats);
        self.send(*b"SetAttac", Command::SetAttachment(AttachmentIndex(tenant), policy));
        self.end_processes(tenant);
        self.spawn(tenant);
    }

    fn detach(&mut self, tenant: u16) {
        let now = self.clocks.at();
        if std::mem::replace(&mut self.tenants[usize::from(tenant)].attached, false) {
            self.ledger.begin(Disturbance::Detached(tenant), now);
            self.send(*b"RemAttac", Command::RemoveAttachment(AttachmentIndex(tenant)));
        }
    }

    /// All processes of a tenant end; the registrar notices a bit later.
    fn end_processes(&mut self, tenant: u16) {
        let now = self.clocks.at();
        let mut ended: Vec<ClientKey> = Vec::new();
        for process in self.tenants[usize::from(tenant)].processes.iter_mut().filter(|p| p.alive) {
            process.die();
            ended.push(process.key);
        }
        for key in ended {
            self.news.bell = true;
            self.note(Note::Killed { tenant, key: key.0 });
            let noticed = now + self.random.between(20 * US, 500 * US);
            self.agenda.add(noticed, Event::Over { key });
        }
    }

    fn spawn(&mut self, tenant: u16) {
        let index = usize::from(tenant);
        let wanted = self.tenants[index].attached && !self.tenants[index].processes.iter().any(|p| p.alive);
        if !wanted || self.draining {
            return;
        }
        let key = self.next_key();
        match control::client(tenant, key, self.tenants[index].plan.slots) {
            Ok((client, process)) => {
                self.tenants[index].processes.push(process);
                self.note(Note::Spawned { tenant, key: key.0 });
                self.send(*b"AddClien", Command::AddClient(client));
                self.send(*b"Register", Command::Register(key, 0, control::stream(tenant)));
            }
            Err(error) => {
                let now = self.clocks.at();
                self.ledger.violated("simulator", now, format!("no client could be made: {error}"));
            }
        }
    }

    /// What a tenant does at its next period.
    fn push_next(&mut self, tenant: u16) {
        let plan = self.tenants[usize::from(tenant)].plan;
        self.agenda.add(self.clocks.at() + plan.period, Event::Push { tenant });
        let bad = self.random.chance(150);
        let kind = match plan.behaviour {
            Behaviour::Late if bad => Kind::Late,
            Behaviour::FarAhead if bad => Kind::FarAhead,
            Behaviour::Zero if bad => Kind::Zero,
            Behaviour::Cheating if bad => self.random.of(&[Kind::Policed, Kind::Corrupt]),
            _ => Kind::Good,
        };
        if plan.behaviour == Behaviour::Saturating {
            for _ in 1..plan.slots {
                self.push(tenant, Kind::Zero, false);
            }
        }
        if plan.behaviour == Behaviour::Flood && bad {
            let now = self.clocks.at();
            self.ledger.during(Disturbance::Flood(tenant), now, now + 40 * MS);
            for _ in 0..plan.slots {
                self.push(tenant, Kind::Good, false);
            }
        }
        self.push(tenant, kind, false);
    }

    /// The TxTime of a frame that is pushed now.
    fn tx_time(&mut self, tenant: u16, kind: Kind, now: Now) -> TxTime {
        let plan = self.tenants[usize::from(tenant)].plan;
        let tai = plan.clock == ClockId::Tai;
        let here = if tai { now.tai.as_nanos() } else { now.monotonic.as_nanos() };
        let at = match kind {
            Kind::Late => here - self.random.between(20 * MS, 40 * MS),
            Kind::Zero => 0,
            _ if plan.behaviour == Behaviour::Saturating => 0,
            Kind::FarAhead => here + HORIZON + 3_000 * MS,
            Kind::Good | Kind::Policed | Kind::Corrupt => match plan.phase {
                Some(phase) => (here + plan.ahead - phase).next_multiple_of(plan.period) + phase,
                None => here + plan.ahead,
            },
        };
        if tai { TxTime::Tai(Tai::from_nanos(at)) } else { TxTime::Monotonic(Monotonic::from_nanos(at)) }
    }

    /// A program sends a frame, as libktsn does.
    fn push(&mut self, tenant: u16, kind: Kind, fresh: bool) {
        let now = self.clocks.now();
        let index = usize::from(tenant);
        let Some(place) = self.tenants[index].processes.iter().rposition(|p| p.can_push()) else {
            return self.cannot_push(tenant, fresh);
        };
        let mut tx_time = self.tx_time(tenant, kind, now);
        if fresh {
            let ahead = Nanos::from_millis(2);
            tx_time = if matches!(tx_time, TxTime::Tai(_)) {
                TxTime::Tai(now.tai.saturating_add(ahead))
            } else {
                TxTime::Monotonic(now.monotonic.saturating_add(ahead))
            };
        }
        let (clock, at) = clock_of(tx_time);
        let plan = self.tenants[index].plan;
        let mut slot = self.tenants[index].slot_frame(clock, at, now.monotonic.as_nanos());
        match kind {
            Kind::Policed => slot.priority = (plan.class + 1) % 8,
            Kind::Corrupt => slot.token += 1,
            _ => {}
        }
        let id = self.ledger.frames.len() as u64;
        let process = &mut self.tenants[index].processes[place];
        let Some(claim) = process.fill(&slot, &stamp::payload(id, plan.payload_octets)) else {
            if fresh {
                self.ledger.violated(
                    "progress",
                    now.monotonic.as_nanos(),
                    format!("tenant {tenant}: no slot"),
                );
            }
            return self.note(Note::NoSlot { tenant });
        };
        let key = process.key.0;
        process.held.push(Held { id, claim });
        self.ledger.add(Frame {
            tenant,
            key,
            class: plan.class,
            tx_time,
            pushed: now,
            published_at: None,
            turn: 0,
            payload_octets: plan.payload_octets,
            kind,
            fresh,
            arrival: None,
        });
        if !fresh && plan.behaviour == Behaviour::HeldUp && self.random.chance(150) {
            self.note(Note::Claimed { tenant, id });
            let later = now.monotonic.as_nanos() + self.random.between(US, 6 * MS);
            self.agenda.add(later, Event::Publish { tenant, id });
        } else {
            self.publish_held(tenant, id);
        }
    }

    /// libktsn's own recovery: a region that was given up is left for a new one.
    fn cannot_push(&mut self, tenant: u16, fresh: bool) {
        let now = self.clocks.at();
        if fresh {
            self.ledger.violated("progress", now, format!("tenant {tenant} is not served after the faults"));
        }
        let gone = |p: &crate::tenant::Process| p.alive && p.state() != RegionState::Attached;
        if self.tenants[usize::from(tenant)].attached
            && self.tenants[usize::from(tenant)].processes.iter().any(gone)
        {
            self.end_processes(tenant);
            let again = now + self.random.between(50 * US, 900 * US);
            self.agenda.add(again, Event::Spawn { tenant });
        }
    }

    fn publish_held(&mut self, tenant: u16, id: u64) {
        let now = self.clocks.at();
        let index = usize::from(tenant);
        let Some(frame) = self.ledger.frames.get(id as usize) else { return };
        let (clock, at) = clock_of(frame.tx_time);
        let tenant_state = &mut self.tenants[index];
        for process in &mut tenant_state.processes {
            let Some(place) = process.held.iter().position(|held| held.id == id) else { continue };
            let held = process.held.swap_remove(place);
            let rang = process.publish(held.claim, clock, at, now);
            tenant_state.rang += u64::from(rang);
            self.ledger.publish(id, now);
            self.note(Note::Pushed { tenant, id, tx_time: at });
            if rang {
                self.news.bell = true;
                self.note(Note::Rang { tenant });
            }
            return;
        }
    }

    /// A process dies: right after a publish, or between claim and publish.
    fn kill_in_mid_push(&mut self, tenant: u16) {
        let held_up = self.random.chance(500);
        let behaviour = self.tenants[usize::from(tenant)].plan.behaviour;
        if held_up {
            // The claim is made and nothing more: the frame never was.
            self.tenants[usize::from(tenant)].plan.behaviour = Behaviour::HeldUp;
            for _ in 0..8 {
                self.push(tenant, Kind::Good, false);
            }
            self.tenants[usize::from(tenant)].plan.behaviour = behaviour;
        } else {
            self.push(tenant, Kind::Good, false);
        }
        self.end_processes(tenant);
        let again = self.clocks.at() + self.random.between(300 * US, 3 * MS);
        self.agenda.add(again, Event::Spawn { tenant });
    }

    fn poke(&mut self, tenant: u16) {
        let kind = self.random.between(0, 8);
        let word = self.random.word();
        let index = usize::from(tenant);
        let Some(place) = self.tenants[index].processes.iter().rposition(|p| p.alive) else { return };
        let region = self.tenants[index].processes[place].region_octets();
        let at = match kind {
            0 | 1 => layout::HEAD,
            2 => layout::FREE + 8 * (word as usize % 4),
            3 => layout::LOOKS_AT_MONOTONIC,
            4 => layout::STATE,
            5 => layout::STREAMS,
            6 => layout::COUNTERS + 8 * (word as usize % 32),
            _ => layout::PAGE_OCTETS + word as usize % (region - layout::PAGE_OCTETS),
        };
        // Small numbers are the dangerous ones: they name things.
        let value = if self.random.chance(500) { self.random.between(0, 300) } else { self.random.word() };
        self.tenants[index].corrupted = true;
        self.tenants[index].processes[place].poke(at, value);
        self.note(Note::Poked { tenant, at: at as u64, value });
    }

    fn ring(&mut self, tenant: u16, left: u32) {
        let index = usize::from(tenant);
        let rang = self.tenants[index].processes.iter().rev().find(|p| p.alive).is_some_and(|p| p.ring());
        self.tenants[index].rang += u64::from(rang);
        self.news.bell |= rang;
        self.note(Note::Rang { tenant });
        if left > 1 {
            let next = self.clocks.at() + self.random.between(US, 30 * US);
            self.agenda.add(next, Event::Ring { tenant, left: left - 1 });
        }
    }

    fn set_neighbour(&mut self, tenant: u16, known: bool) {
        let now = self.clocks.at();
        let Some(entry) = self.known.get_mut(usize::from(tenant)) else { return };
        if std::mem::replace(entry, known) == known {
            return;
        }
        self.generation += 1;
        if known {
            self.ledger.end(Disturbance::NoNeighbour(tenant), now);
        } else {
            self.ledger.begin(Disturbance::NoNeighbour(tenant), now);
        }
        match self.tables() {
            Ok(tables) => self.send(*b"Tables  ", Command::Tables(tables)),
            Err(error) => self.ledger.violated("simulator", now, format!("no tables: {error}")),
        }
    }

    fn change_schedule(&mut self, index: u16) {
        let now = self.clocks.now();
        let Some(schedule) = self.plan.schedules.get(usize::from(index)).cloned() else { return };
        let base_time = now.tai.as_nanos().saturating_add_signed(schedule.base_ahead);
        let off = if self.broken == Broken::WrongGates { 90 * US } else { 0 };
        let mut admin = schedule.admin(base_time + off);
        if self.broken == Broken::NoExtension {
            admin.cycle_time_extension = Nanos::ZERO;
        }
        match GateProgram::new(&admin) {
            Ok(program) => {
                self.note(Note::Schedule { index, base_time });
                self.send(*b"ChgSched", Command::ChangeSchedule(PortIndex(0), Box::new(program)));
                let (at, at_tai) = (now.monotonic.as_nanos(), now.tai.as_nanos());
                self.ledger.schedules.push(Sent { schedule, base_time, at, at_tai });
            }
            Err(fault) => {
                let detail = format!("schedule {index} is refused: {fault}");
                self.ledger.violated("simulator", now.monotonic.as_nanos(), detail);
            }
        }
    }

    fn set_link(&mut self, up: bool) {
        let now = self.clocks.at();
        if std::mem::replace(&mut self.link.up, up) == up {
            return;
        }
        if up {
            self.ledger.end(Disturbance::LinkDown, now);
        } else {
            self.ledger.begin(Disturbance::LinkDown, now);
        }
        self.note(Note::Link { up });
    }

    fn set_port_errors(&mut self, permille: u32) {
        let now = self.clocks.at();
        self.ledger.end(Disturbance::PortErrors, now);
        if permille > 0 {
            self.ledger.begin(Disturbance::PortErrors, now);
        }
        self.link.errors_permille = permille;
        self.note(Note::PortErrors { permille });
    }

    /// All faults end; programs that misbehaved start again and behave.
    fn heal(&mut self) {
        self.agenda.forget(|event| {
            !matches!(
                event,
                Event::Publish { .. }
                    | Event::Fresh { .. }
                    | Event::LookAtGates
                    | Event::Over { .. }
                    | Event::Spawn { .. }
                    | Event::DeviceBack
                    | Event::Drain
            )
        });
        self.healed = true;
        self.note(Note::Healed);
        self.clocks.hold();
        self.set_link(true);
        self.set_port_errors(0);
        self.link.set_best_effort(false, self.clocks.at());
        for tenant in 0..self.tenants.len() as u16 {
            self.set_neighbour(tenant, true);
            self.attach(tenant);
            let plan = self.tenants[usize::from(tenant)].plan;
            // A clock that was set back may hold all slots of a region for seconds: back-pressure, as it should be.
            let waits = plan.clock == ClockId::Tai && self.ledger.steps > 0;
            if plan.behaviour != Behaviour::Good || waits {
                self.end_processes(tenant);
                let again = self.clocks.at() + self.random.between(US, MS);
                self.agenda.add(again, Event::Spawn { tenant });
            }
        }
    }
}

fn clock_of(tx_time: TxTime) -> (ClockId, u64) {
    match tx_time {
        TxTime::Tai(at) => (ClockId::Tai, at.as_nanos()),
        TxTime::Monotonic(at) => (ClockId::Monotonic, at.as_nanos()),
    }
}
