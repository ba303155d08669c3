// SPDX-License-Identifier: Apache-2.0
//! The ports of one worker: which have something queued, the turns of the pods' interfaces, and the hand-over under way.
//!
//! In: ports as they come and go, frames for their queues. Out: the next active port of a kind. Memory is allocated when the worker
//! is made.

use ktsn_model::DropReason;
use ktsn_port::{Port, SendError};
use ktsn_resolve::PortIndex;
use ktsn_sched::{Frame, Refused};
use ktsn_time::{Monotonic, Nanos, Now, TxTime};

use super::command::{Command, Inbox, NewPort, Returned};
use super::environment::Environment;
use super::headers::Identifications;
use super::pacing::Preparation;
use super::port_state::{NotStaged, PortState, Staged};
use super::resolver::Resolver;
use super::source::{Queued, ToKernel};
use crate::limits;

/// A hand-over that began, until a clock is read after it.
pub(super) struct HandOverBegun {
    pub port: usize,
    /// The reading of a clock before it, if there was one.
    pub read: Option<TxTime>,
    /// When it began, on a pod's interface.
    pub began: Option<Monotonic>,
    /// The thread's CPU time then, where a hand-over before was long.
    pub cpu: Option<Nanos>,
    pub wire_octets: u32,
}

/// All ports of one worker.
pub(super) struct Ports<P> {
    all: Vec<Option<PortState<P>>>,
    /// One above the highest index in use.
    end: usize,
    /// Ports with frames in their queues, one bit for each; ports that were emptied may be among them.
    active: Box<[u64]>,
    /// The pod's interface that hands over first in the next turn.
    pods_turn: usize,
    last_hand_over: Option<HandOverBegun>,
    identifications: Identifications,
    second_began: Monotonic,
}

impl<P: Port> Ports<P> {
    /// No ports.
    pub(super) fn new() -> Self {
        Self {
            all: (0..limits::PORTS_MAX).map(|_| None).collect(),
            end: 0,
            active: vec![0; limits::PORTS_MAX.div_ceil(64)].into_boxed_slice(),
            pods_turn: 0,
            last_hand_over: None,
            identifications: Identifications::new(),
            second_began: Monotonic::ZERO,
        }
    }

    /// One above the highest index in use.
    pub(super) fn end(&self) -> usize {
        self.end
    }

    /// What this port can do ahead of its next frame.
    pub(super) fn preparation(&self, port: usize, now: Monotonic, can_rehearse: bool) -> Preparation {
        let is_made_ready = self.get(port).is_some_and(|state| state.makes_ready(now));
        Preparation { is_made_ready, can_rehearse }
    }

    /// The port with this number.
    pub(super) fn get(&self, port: usize) -> Option<&PortState<P>> {
        self.all.get(port)?.as_ref()
    }

    /// The port with this number, to hand frames over.
    pub(super) fn get_mut(&mut self, port: usize) -> Option<&mut PortState<P>> {
        self.all.get_mut(port)?.as_mut()
    }

    /// The port with this index.
    pub(super) fn at(&mut self, index: PortIndex) -> Option<&mut PortState<P>> {
        self.get_mut(usize::from(index.0))
    }

    /// True when there can be a port with this index.
    pub(super) fn has_place(&self, index: PortIndex) -> bool {
        usize::from(index.0) < self.all.len()
    }

    /// Adds a port in a free place.
    pub(super) fn add(&mut self, index: PortIndex, new: NewPort<P>) {
        let at = usize::from(index.0);
        if let Some(place) = self.all.get_mut(at) {
            *place = Some(PortState::new(new));
            self.end = self.end.max(at + 1);
        }
    }

    /// Takes a port out for good.
    pub(super) fn remove(&mut self, index: PortIndex) -> Option<PortState<P>> {
        let state = self.all.get_mut(usize::from(index.0))?.take()?;
        while self.end > 0 && self.all[self.end - 1].is_none() {
            self.end -= 1;
        }
        Some(state)
    }

    /// Takes a port out for a moment, so that the rest of the worker can be used beside it. [`Self::put`] brings it back.
    pub(super) fn lend(&mut self, port: usize) -> Option<PortState<P>> {
        self.all.get_mut(port)?.take()
    }

    /// Brings back a port that [`Self::lend`] took out.
    pub(super) fn put(&mut self, port: usize, state: PortState<P>) {
        self.all[port] = Some(state);
    }

    /// The identifications of IPv4 headers.
    pub(super) fn identifications(&mut self) -> &mut Identifications {
        &mut self.identifications
    }

    /// Queues a frame again that the scheduler chose and that did not leave, in front of those that it was chosen before.
    ///
    /// # Errors
    /// The scheduler's reason; `None`: there is no such port.
    #[inline]
    pub(super) fn put_back(&mut self, port: usize, frame: Frame, now: Now) -> Option<Result<(), Refused>> {
        let state = self.all.get_mut(port)?.as_mut()?;
        let result = state.selection.put_back(frame, now);
        self.activate(port);
        Some(result)
    }

    /// The port has something queued from now on.
    #[inline]
    pub(super) fn activate(&mut self, port: usize) {
        if let Some(word) = self.active.get_mut(port / 64) {
            *word |= 1 << (port % 64);
        }
    }

    /// The port has nothing queued now.
    #[inline]
    pub(super) fn deactivate(&mut self, port: usize) {
        if let Some(word) = self.active.get_mut(port / 64) {
            *word &= !(1 << (port % 64));
        }
    }

    /// The first active port that is not below `from`. To find none costs one word for each 64 ports.
    #[inline]
    pub(super) fn next_active(&self, from: usize) -> Option<usize> {
        let mut index = from / 64;
        let mut word = self.active.get(index)? & u64::MAX << (from % 64);
        while word == 0 {
            index += 1;
            word = *self.active.get(index)?;
        }
        Some(index * 64 + word.trailing_zeros() as usize)
    }

    /// True for a pod's interface.
    pub(super) fn is_pod_interface(&self, port: usize) -> bool {
        self.get(port).is_some_and(|state| state.is_pod_interface)
    }

    /// The pod's interface that hands over first.
    pub(super) fn pods_turn(&self) -> usize {
        self.pods_turn
    }

    /// The pod's interface after this one hands over first in the next turn.
    pub(super) fn pass_pods_turn(&mut self, port: usize) {
        self.pods_turn = port + 1;
    }

    /// True when a frame with a TxTime may leave by any port within `span` of `now`.
    pub(super) fn is_timed_within(&mut self, span: Nanos, now: Now) -> bool {
        let mut from = 0;
        while let Some(port) = self.next_active(from) {
            if self.get_mut(port).is_some_and(|state| state.selection.is_timed_within(span, now)) {
                return true;
            }
            from = port + 1;
        }
        false
    }

    /// Builds a queued frame in one of the port's buffers, with the headers of this instant.
    pub(super) fn resolve_and_stage(
        &mut self,
        port: usize,
        entry: Option<(&Queued, &[u8])>,
        resolver: &mut Resolver,
        inbox: &mut Inbox<P>,
    ) -> Result<Staged, NotStaged> {
        if let Some(state) = self.get_mut(port).filter(|state| state.successor.is_some()) {
            let before = state.succeed().ok_or(NotStaged::Full)?;
            inbox.hand_back(Returned::Port(PortIndex(port as u16), Some(before)));
        }
        let (queued, payload) = entry.ok_or(NotStaged::Dropped(DropReason::Bug))?;
        if queued.to_kernel != ToKernel::No {
            return Err(NotStaged::ToKernel);
        }
        let outgoing = queued.content.outgoing(resolver, payload, queued.copies.replica);
        let outgoing = outgoing.map_err(NotStaged::Refused)?;
        // A route that moved to another port while the frame waited is not followed: the other port has its own queue.
        if outgoing.port() != queued.port || usize::from(queued.port.0) != port {
            return Err(NotStaged::Dropped(DropReason::NoRoute));
        }
        let outer = outgoing.outer_address_pair().map_or(0, |pair| self.identifications.next(pair));
        let numbers = ktsn_wire::Identifications { outer, inner: queued.content.identification() };
        let state = self.get_mut(port).ok_or(NotStaged::Dropped(DropReason::LinkDown))?;
        state.write_to_buffer(&outgoing, payload, numbers, queued.copies)
    }

    /// Hands a staged frame to the device; the hand-over lasts until [`Self::end_hand_over`].
    ///
    /// # Errors
    /// The device's.
    #[inline]
    pub(super) fn begin_hand_over(&mut self, begun: HandOverBegun, staged: &Staged) -> Result<(), SendError> {
        let result = match self.get_mut(begun.port) {
            Some(state) => state.port.commit(staged.stage),
            None => Err(SendError::DeviceGone),
        };
        self.last_hand_over = Some(begun);
        result
    }

    /// Nothing was handed over: the link is as free as before.
    pub(super) fn forget_hand_over(&mut self) {
        self.last_hand_over = None;
    }

    /// The clocks were read after a hand-over, if there was one: that long it took at most, and the link is busy from then on.
    #[inline]
    pub(super) fn end_hand_over(&mut self, now: Now) -> Option<HandOverBegun> {
        let begun = self.last_hand_over.take()?;
        let took = begun.read.map(|read| match read {
            TxTime::Tai(read) => now.tai.since(read),
            TxTime::Monotonic(read) => now.monotonic.since(read),
        });
        if let Some(state) = self.get_mut(begun.port) {
            state.measure_hand_over(took, now.monotonic, begun.wire_octets);
        }
        Some(begun)
    }

    /// Applies a command about one port; others are none of its business.
    pub(super) fn apply(&mut self, command: Command<P>, env: &mut impl Environment, inbox: &mut Inbox<P>) {
        match command {
            Command::ReplacePort(index, port) => {
                let (earlier, before) = match self.at(index) {
                    Some(state) => {
                        state.generation += 1;
                        (state.successor.replace(port), state.succeed())
                    }
                    None => (Some(port), None),
                };
                for old in [earlier, before].into_iter().flatten() {
                    inbox.hand_back(Returned::Port(index, Some(old)));
                }
            }
            // From the program's config change time on other gates hold; every frame stays where it is.
            Command::ChangeSchedule(index, program) => {
                let now = env.now();
                let Some(state) = self.at(index) else { return inbox.hand_back_boxed([program]) };
                let retired = state.selection.take_retired();
                let displaced = state.selection.set_admin(program, now);
                inbox.hand_back_boxed([retired, displaced].into_iter().flatten());
            }
            Command::SetClasses(index, classes) => {
                self.at(index).into_iter().for_each(|state| state.selection.set_classes(*classes));
                inbox.hand_back_boxed([classes]);
            }
            Command::SetLinkSpeed(index, speed) => {
                self.at(index).into_iter().for_each(|state| state.selection.set_link_speed(speed));
            }
            Command::SetPriorityMap(index, map) => {
                self.at(index).into_iter().for_each(|state| state.priority_map = map);
            }
            Command::LookAtGates(index, mut view) => {
                view.at = env.now();
                let gates = self.at(index).filter(|state| state.selection.has_gates());
                view.status = gates.map(|state| state.selection.status(view.at));
                inbox.hand_back(Returned::Gates(index, view));
            }
            _ => {}
        }
    }

    /// Hands back what the ports are done with, and lets measurements age.
    pub(super) fn housekeeping(&mut self, now: Monotonic, inbox: &mut Inbox<P>) {
        let is_new_second = now.since(self.second_began) >= Nanos::from_seconds(1);
        if is_new_second {
            self.second_began = now;
        }
        for (index, state) in (0..).zip(&mut self.all[..self.end]) {
            let Some(state) = state else { continue };
            state.port.reap();
            state.count_lost();
            if let Some(before) = state.succeed() {
                inbox.hand_back(Returned::Port(PortIndex(index), Some(before)));
            }
            if is_new_second {
                state.tick();
            }
            if let Some(retired) = state.selection.take_retired() {
                inbox.hand_back(Returned::Boxed(retired));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;

    use ktsn_model::PriorityMap;
    use ktsn_port::memory::Memory;
    use proptest::prelude::*;

    use super::*;
    use crate::worker::command::queues;
    use crate::worker::tests::time_aware;

    fn new(is_pod_interface: bool) -> NewPort<Memory> {
        NewPort {
            port: Box::new(Memory::new(4, 1500).unwrap()),
            priority_map: PriorityMap::default(),
            selection: Box::new(time_aware()),
            policing: None,
            stats: Arc::default(),
            is_pod_interface,
        }
    }

    fn frame(at: u64) -> Frame {
        let tx_time = Some(TxTime::Monotonic(Monotonic::from_nanos(at)));
        Frame { tx_time, horizon: Nanos::MAX, ..Frame::empty() }
    }

    #[test]
    fn a_port_with_a_frame_is_active_and_timed() {
        let mut ports = Ports::new();
        (0..3).for_each(|index| ports.add(PortIndex(index), new(index > 0)));
        assert_eq!((ports.end(), ports.next_active(0), ports.is_pod_interface(2)), (3, None, true));
        let now = Now { tai: ktsn_time::Tai::ZERO, monotonic: Monotonic::from_nanos(1_000_000) };
        assert!(ports.put_back(9, frame(0), now).is_none());
        assert!(ports.put_back(1, frame(1_100_000), now).is_some_and(|result| result.is_ok()));
        assert_eq!(ports.next_active(0), Some(1));
        assert!(ports.is_timed_within(Nanos::from_micros(200), now));
        assert!(!ports.is_timed_within(Nanos::from_micros(50), now));
        ports.deactivate(1);
        assert_eq!(ports.next_active(0), None);
    }

    proptest! {
        #[test]
        fn active_ports_are_a_set(
            steps in proptest::collection::vec((0..limits::PORTS_MAX + 100, any::<bool>()), 0..100),
            from in 0..limits::PORTS_MAX + 200,
        ) {
            let (mut ports, mut set) = (Ports::<Memory>::new(), BTreeSet::new());
            for (port, is_in) in steps {
                if is_in {
                    ports.activate(port);
                    set.extend(Some(port).filter(|port| *port < limits::PORTS_MAX));
                } else {
                    ports.deactivate(port);
                    set.remove(&port);
                }
            }
            prop_assert_eq!(ports.next_active(from), set.range(from..).next().copied());
        }
    }

    #[test]
    fn a_port_is_handed_back_with_all_that_it_has() {
        let (_outbox, mut inbox, returned, _wake) = queues().unwrap();
        let mut ports = Ports::new();
        ports.add(PortIndex(3), new(false));
        ports.at(PortIndex(3)).unwrap().successor = Some(Box::new(Memory::new(4, 1500).unwrap()));
        let state = ports.lend(3).unwrap();
        assert!(ports.get(3).is_none());
        ports.put(3, state);
        ports.remove(PortIndex(3)).unwrap().hand_back(PortIndex(3), &mut inbox);
        assert_eq!(ports.end(), 0);
        let back: Vec<_> = returned.try_iter().collect();
        let devices = back.iter().filter(|back| matches!(back, Returned::Port(PortIndex(3), Some(_))));
        assert_eq!((back.len(), devices.count()), (3, 2));
    }
}
