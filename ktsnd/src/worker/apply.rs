// SPDX-License-Identifier: Apache-2.0
//! Commands. Each takes a bounded, short time: what takes longer is only begun here (`closing`). Frames in a ring keep the
//! registration that they were published under ([`Client::set_stream`]).

use std::sync::Arc;

use ktsn_model::{DropReason, TrafficClass};
use ktsn_port::Port;
use ktsn_resolve::{AttachmentIndex, PortIndex};
use ktsn_ring::RegionState;
use ktsn_sched::{ClassOptions, Frame, GateProgram, Strategy};
use ktsn_time::{Monotonic, Nanos};
use rustix::fd::AsFd;

use super::client::{Client, StreamInfo};
use super::command::{AttachmentPolicy, ClientKey, Command, GateView, NewPort, Offer, Returned};
use super::hand_over::{self, HandOver};
use super::slow::Slow;
use super::transmit::Next;
use super::turns::LEVELS;
use super::warm_up::WarmUp;
use super::{Environment, Policing, PortState, Selection, Worker};
use crate::limits;
use crate::stats::count;

impl<P: Port, E: Environment> Worker<P, E> {
    /// Applies what waits, a bounded number a pass; true when there may be more. A frame that is due before the next one would
    /// be applied comes first, but not for ever.
    pub(super) fn apply_commands(&mut self) -> bool {
        for _ in 0..limits::COMMANDS_A_PASS {
            let Some(command) = self.put_off.take().or_else(|| self.inbox.next()) else {
                self.put_off_at = None;
                return false;
            };
            if self.is_to_put_off() || self.is_to_wait_for_closing(&command) {
                self.put_off = Some(command);
                return false;
            }
            self.apply(command);
        }
        self.put_off_at = None;
        true
    }

    /// Whether a frame is due so soon that a command would make it late, and commands were not put off for long.
    fn is_to_put_off(&mut self) -> bool {
        // What was waited for last may have left.
        self.next = self.transmit_due();
        let now = self.env.now();
        let ahead = self.next.map(|next| next.at.ahead_of(now));
        if ahead.is_none_or(|ahead| ahead <= Nanos::ZERO || ahead >= limits::COMMANDS_STOP) {
            self.put_off_at = None;
            return false;
        }
        let since = *self.put_off_at.get_or_insert(now.monotonic);
        now.monotonic.since(since) < limits::COMMANDS_PUT_OFF_MAX
    }

    /// Whether a command was put off for a frame that has left meanwhile: nobody would wake the worker for it again.
    pub(super) fn is_put_off_for_nothing(&mut self) -> bool {
        self.put_off.is_some()
            && self.next.is_none_or(|next| next.at.ahead_of(self.env.now()) >= limits::COMMANDS_STOP)
    }

    fn apply(&mut self, command: Command<P>) {
        match command {
            Command::AddPort(index, new) => self.add_port(index, new),
            Command::ReplacePort(index, port) => {
                let (earlier, before) = match self.port(index) {
                    Some(state) => (state.successor.replace(port), state.succeed()),
                    None => (Some(port), None),
                };
                for old in [earlier, before].into_iter().flatten() {
                    self.inbox.give(Returned::Port(index, Some(old)));
                }
            }
            Command::RemovePort(index) => self.remove_port_in_turn(index),
            Command::SetAttachment(index, policy) => self.set_attachment(index, policy),
            Command::RemoveAttachment(index) => self.remove_attachment(index),
            Command::AddCaptured(captured) => self.add_captured(captured),
            Command::AddClient(client) => self.add_client(client),
            Command::Register(key, index, info) => self.register(key, index, info),
            Command::Unregister(key, index) => {
                if let Some(client) = self.client(key) {
                    client.set_stream(index, None);
                    // The registrar checked the index.
                    let _ = client.consumer.clear_stream(index);
                }
            }
            Command::Refuse(key, index, status) => {
                if let Some(client) = self.client(key) {
                    client.set_stream(index, None);
                    let _ = client.consumer.set_stream(index, status);
                }
            }
            Command::Offer(key, offer) => self.make_offer(key, offer),
            Command::EndClient(key) => {
                if let Some(at) = self.find(key) {
                    self.close_client(at, true);
                }
            }
            Command::Tables(tables) => {
                self.inbox.give(Returned::Tables(std::mem::replace(&mut self.tables, tables)));
            }
            Command::ChangeSchedule(index, program) => self.change_schedule(index, program),
            Command::SetClasses(index, classes) => self.set_classes(index, classes),
            Command::SetLinkSpeed(index, speed) => {
                if let Some(gates) = self.port(index).and_then(|state| state.sched.time_aware()) {
                    gates.set_link_speed(speed);
                }
            }
            Command::SetPriorityMap(index, map) => {
                if let Some(state) = self.port(index) {
                    state.priority_map = map;
                }
            }
            Command::LookAtGates(index, view) => self.look_at_gates(index, view),
            Command::ClockIsGood(is_good) => self.clock.set(is_good),
            Command::Drain => self.drain(),
        }
    }

    pub(super) fn port(&mut self, index: PortIndex) -> Option<&mut PortState<P>> {
        self.ports.get_mut(usize::from(index.0)).and_then(Option::as_mut)
    }

    fn set_attachment(&mut self, index: AttachmentIndex, mut policy: Box<AttachmentPolicy>) {
        // Another policy may know other streams.
        self.routes.forget(index);
        let at = usize::from(index.0);
        // The highest class that it is granted.
        self.turns.set_level(at, LEVELS.saturating_sub(1 + policy.classes.leading_zeros() as usize));
        if let Some(slot) = self.attachments.get_mut(at) {
            if let Some(old) = slot {
                std::mem::swap(&mut policy.usage, &mut old.usage);
            }
            if let Some(old) = slot.replace(policy) {
                self.inbox.give(Returned::Boxed(old));
            }
        }
    }

    fn make_offer(&mut self, key: ClientKey, offer: Box<Offer>) {
        if let Some(client) = self.client(key) {
            client.consumer.set_others(&offer.others);
            client.consumer.set_link(&offer.link);
            client.consumer.set_sole_v4(offer.sole_v4);
            if client.consumer.set_destinations(&offer.table).is_err() {
                count(&self.stats.bugs);
            }
        }
        self.inbox.give(Returned::Boxed(offer));
    }

    fn add_port(&mut self, index: PortIndex, new: NewPort<P>) {
        let slot = usize::from(index.0);
        let NewPort { port, priority_map, selection: sched, policing, stats, is_pods } = new;
        if slot >= self.ports.len() || self.draining {
            self.inbox.give(Returned::Boxed(sched));
            self.give_policing(policing);
            return self.inbox.give(Returned::Port(index, Some(port)));
        }
        self.remove_port(index);
        let hand_over = HandOver::new();
        let mut state = PortState {
            warm_up: WarmUp::of_port(),
            port,
            successor: None,
            sched,
            priority_map,
            policing,
            hand_over,
            is_pods,
            slow: Slow::new(),
            held: None,
            stats,
            failure_told_at: Monotonic::ZERO,
        };
        state.set_hand_over(hand_over::AT_START);
        self.ports[slot] = Some(state);
        self.ports_end = self.ports_end.max(slot + 1);
    }

    pub(super) fn give_policing(&mut self, policing: Option<Box<Policing>>) {
        if let Some(policing) = policing {
            self.inbox.give(Returned::Boxed(policing));
        }
    }

    /// From the program's config change time on other gates hold; every frame stays where it is.
    fn change_schedule(&mut self, index: PortIndex, program: Box<GateProgram>) {
        self.queue_held(index);
        let now = self.env.now();
        let Some(gates) = self.port(index).and_then(|state| state.sched.time_aware()) else {
            return self.inbox.give(Returned::Boxed(program));
        };
        let retired = gates.take_retired();
        let displaced = gates.set_admin(program, now);
        for old in [retired, displaced].into_iter().flatten() {
            self.inbox.give(Returned::Boxed(old));
        }
    }

    fn set_classes(&mut self, index: PortIndex, classes: Box<[ClassOptions; TrafficClass::COUNT]>) {
        self.queue_held(index);
        if let Some(gates) = self.port(index).and_then(|state| state.sched.time_aware()) {
            gates.set_classes(*classes);
        }
        self.inbox.give(Returned::Boxed(classes));
    }

    fn look_at_gates(&mut self, index: PortIndex, mut view: Box<GateView>) {
        let now = self.env.now();
        let gates = self.port(index).and_then(|state| state.sched.time_aware());
        let is_there = gates.is_some();
        if let Some(gates) = gates {
            view.fill(&gates.status(now), now);
        }
        self.inbox.give(Returned::Gates(index, view, is_there));
    }

    fn register(&mut self, key: ClientKey, index: u32, info: Box<StreamInfo>) {
        let mut is_bug = false;
        if let Some(client) = self.client(key) {
            client.set_stream(index, Some((*info).clone()));
            is_bug = client.consumer.set_stream(index, info.status).is_err();
        }
        if is_bug {
            count(&self.stats.bugs);
        }
        self.inbox.give(Returned::Boxed(info));
    }

    fn find(&self, key: ClientKey) -> Option<usize> {
        self.keys[..self.clients_end].iter().position(|other| *other == key)
    }

    fn client(&mut self, key: ClientKey) -> Option<&mut Client> {
        let at = self.find(key)?;
        self.clients[at].as_deref_mut()
    }

    fn add_client(&mut self, client: Box<Client>) {
        let place = self.clients.iter().position(Option::is_none);
        // Its attachment may have gone while its region was being made.
        let served = self.attachments.get(usize::from(client.attachment.0)).is_some_and(Option::is_some)
            && !self.closing.is_removed(client.attachment);
        let Some(at) = place.filter(|_| served && !self.draining) else {
            client.consumer.set_state(RegionState::Detached);
            return self.inbox.give(Returned::Client(client));
        };
        if self.env.watch(client.doorbell.as_fd(), at as u64).is_err() {
            client.consumer.set_state(RegionState::Detached);
            return self.inbox.give(Returned::Client(client));
        }
        self.keys[at] = client.key;
        self.attachment_of[at] = client.attachment;
        self.clients[at] = Some(client);
        self.clients_count += 1;
        self.clients_end = self.clients_end.max(at + 1);
        let now = self.env.now();
        self.attend(at, now);
    }

    /// Drops the frames that `which` names as `detached`.
    pub(super) fn remove_from(&mut self, sched: &mut Selection, which: impl Fn(&Frame) -> bool) {
        sched.remove(&mut |frame| which(frame), &mut |frame| {
            self.drop_frame(frame.id, frame.tenant, DropReason::Detached);
        });
    }

    /// Whether nothing is left to wait for. Frames in front of gates that stay closed for longer than anybody may ask ahead
    /// are given up.
    pub(super) fn is_drained(&mut self, next: Option<Next>) -> bool {
        if self.closing.is_at_work() {
            return false;
        }
        let now = self.env.now();
        let wait_is_over = next.is_none_or(|next| next.at.ahead_of(now) > limits::HORIZON_MAX);
        if wait_is_over && next.is_some() {
            for port in 0..self.ports_end {
                let Some(mut state) = self.ports[port].take() else { continue };
                self.remove_from(&mut state.sched, |_| true);
                self.ports[port] = Some(state);
            }
        }
        wait_is_over && self.clock.is_empty()
    }
}

/// Keeps the compiler honest about what crosses threads.
const _: fn() = || {
    fn crosses<T: Send>() {}
    crosses::<Arc<ktsn_resolve::Tables>>();
    crosses::<Box<Client>>();
};
