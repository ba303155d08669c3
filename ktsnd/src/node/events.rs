// SPDX-License-Identifier: Apache-2.0
//! The events that wait for the node: a bounded number, whatever programs do.
//!
//! In: events from any thread; sending never waits. Out: the same in their order, less those that say nothing new. While the
//! node is busy, a flood of frames without a neighbour, or of changing tables, is remembered once for each neighbour, port and
//! attachment. What may not be lost is bounded by itself: an attachment that is gone, a worker that has ended, an answer.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ktsn_port::AnyPort;
use ktsn_resolve::{NextHop, PortIndex};
use tokio::sync::Notify;

use super::ports::UplinkNews;
use crate::tables;
use crate::worker::Returned;

/// An event that no request caused.
#[derive(Debug)]
pub(crate) enum Event {
    Tables(tables::Event),
    /// The clock went from good to not good or back.
    Clock,
    /// The programs in the kernel can be looked at without a wait.
    Programs,
    /// From the worker with this number: another one may serve its uplink by now.
    Worker(u64, Returned<AnyPort>),
    /// About the device of this uplink's port, whose worker has this number.
    Uplink(u64, PortIndex, UplinkNews),
}

/// Two events with the same key say the same, or the later one replaces the earlier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    Tables,
    Overlay(u16),
    Rules(u16),
    RulesRead,
    Clock,
    Programs,
    PortFailed(u64, u16, u64),
    PortSlow(u64, u16),
    Neighbour(u64, u16, NextHop),
}

fn key_of(event: &Event) -> Option<Key> {
    Some(match event {
        Event::Tables(tables::Event::Tables(_)) => Key::Tables,
        Event::Tables(tables::Event::Overlay(news)) => Key::Overlay(news.index.0),
        Event::Tables(tables::Event::Rules(news)) => Key::Rules(news.index.0),
        Event::Tables(tables::Event::RulesRead) => Key::RulesRead,
        Event::Clock => Key::Clock,
        Event::Programs => Key::Programs,
        Event::Worker(number, Returned::PortFailed(index, generation)) => {
            Key::PortFailed(*number, index.0, *generation)
        }
        Event::Worker(number, Returned::PortSlow(index, _)) => Key::PortSlow(*number, index.0),
        Event::Worker(number, Returned::NeighbourWanted(index, next_hop)) => {
            Key::Neighbour(*number, index.0, *next_hop)
        }
        _ => return None,
    })
}

/// Events of one kind of which a bounded number waits.
#[derive(Clone, Copy, Debug)]
enum Bounded {
    /// Missing neighbours; a worker tells of one again as long as frames need it.
    Neighbours,
    /// Questions about a flow's route, and answers: flows ask again.
    Routes,
    /// Hints and warnings for people.
    Hints,
}

impl Bounded {
    fn of(event: &Event) -> Option<Self> {
        match event {
            Event::Worker(_, Returned::NeighbourWanted(..)) => Some(Self::Neighbours),
            Event::Tables(tables::Event::Route(..)) | Event::Worker(_, Returned::RouteWanted(_)) => {
                Some(Self::Routes)
            }
            Event::Tables(tables::Event::Warning(_))
            | Event::Worker(_, Returned::Retired(..) | Returned::BeyondHorizon(..)) => Some(Self::Hints),
            _ => None,
        }
    }

    const fn most(self) -> usize {
        match self {
            Self::Neighbours | Self::Routes => 4096,
            Self::Hints => 256,
        }
    }
}

#[derive(Debug, Default)]
struct Waiting {
    events: VecDeque<Event>,
    keys: BTreeSet<Key>,
    /// How many wait of each [`Bounded`] kind.
    counts: [usize; 3],
    is_over: bool,
}

impl Waiting {
    fn put(&mut self, event: Event) {
        let key = key_of(&event);
        match key {
            Some(key) if !self.keys.contains(&key) => {}
            Some(Key::Tables) => {
                if let Some(before) = self.events.iter_mut().find(|other| key_of(other) == key) {
                    *before = event;
                }
                return;
            }
            // Behind what has happened to the attachment meanwhile.
            Some(Key::Overlay(_) | Key::Rules(_)) => self.events.retain(|other| key_of(other) != key),
            Some(_) => return,
            None => {}
        }
        if let Some(kind) = Bounded::of(&event) {
            let count = &mut self.counts[kind as usize];
            if *count >= kind.most() {
                return;
            }
            *count += 1;
        }
        self.keys.extend(key);
        self.events.push_back(event);
    }

    fn take(&mut self) -> Option<Event> {
        let event = self.events.pop_front()?;
        if let Some(kind) = Bounded::of(&event) {
            self.counts[kind as usize] -= 1;
        }
        if let Some(key) = key_of(&event) {
            self.keys.remove(&key);
        }
        Some(event)
    }
}

#[derive(Debug, Default)]
struct Shared {
    waiting: Mutex<Waiting>,
    news: Notify,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Sends events to the node, from any thread.
#[derive(Clone, Debug)]
pub(crate) struct EventSender(Arc<Shared>);

/// The node has gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NodeGone;

impl EventSender {
    /// Puts an event in; it never waits.
    ///
    /// # Errors
    /// [`NodeGone`].
    pub(crate) fn send(&self, event: Event) -> Result<(), NodeGone> {
        let mut waiting = self.0.lock();
        if waiting.is_over {
            return Err(NodeGone);
        }
        waiting.put(event);
        drop(waiting);
        self.0.news.notify_one();
        Ok(())
    }
}

/// The node's end.
#[derive(Debug)]
pub(crate) struct EventQueue(Arc<Shared>);

impl EventQueue {
    pub(crate) fn new() -> (EventSender, Self) {
        let shared = Arc::new(Shared::default());
        (EventSender(shared.clone()), Self(shared))
    }

    /// The next event, as soon as there is one. Nothing is lost when it is not waited for to the end.
    pub(crate) async fn next(&mut self) -> Event {
        loop {
            if let Some(event) = self.take() {
                return event;
            }
            self.0.news.notified().await;
        }
    }

    /// The next event, if there is one.
    pub(crate) fn take(&mut self) -> Option<Event> {
        self.0.lock().take()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.lock().events.is_empty()
    }
}

impl Drop for EventQueue {
    fn drop(&mut self) {
        let mut waiting = self.0.lock();
        *waiting = Waiting { is_over: true, ..Waiting::default() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ktsn_resolve::{AttachmentIndex, PortIndex, Side, Tables};
    use std::net::{IpAddr, Ipv4Addr};

    fn wanted(attachment: u16, host: u32) -> Event {
        let address = IpAddr::V4(Ipv4Addr::from(0x0a00_0000 + host));
        let next_hop = NextHop { side: Side::Uplink, address };
        Event::Worker(1, Returned::NeighbourWanted(AttachmentIndex(attachment), next_hop))
    }

    fn tables(generation: u64) -> Event {
        Event::Tables(tables::Event::Tables(Arc::new(Tables::new(generation, Vec::new()).unwrap())))
    }

    /// A million of them while the node is busy: one for each next hop, and no more than there is room for.
    #[test]
    fn a_flood_of_missing_neighbours_is_remembered_once_for_each_and_bounded() {
        let (sender, mut queue) = EventQueue::new();
        for i in 0..100_000 {
            sender.send(wanted(3, i % 7)).unwrap();
            sender.send(wanted(4, i)).unwrap();
        }
        sender.send(Event::Worker(1, Returned::Ended)).unwrap();
        let mut taken = Vec::new();
        while let Some(event) = queue.take() {
            taken.push(event);
        }
        assert!(matches!(taken.pop(), Some(Event::Worker(1, Returned::Ended))), "what counts is not lost");
        assert_eq!(taken.len(), Bounded::Neighbours.most());
        let of = |index: u16| {
            let is =
                |e: &&Event| matches!(e, Event::Worker(_, Returned::NeighbourWanted(i, _)) if i.0 == index);
            taken.iter().filter(is).count()
        };
        assert_eq!(of(3), 7);
        // Taken, it may be wanted again.
        sender.send(wanted(3, 1)).unwrap();
        assert!(queue.take().is_some() && queue.is_empty());
    }

    #[test]
    fn of_tables_the_latest_counts_and_hints_are_bounded() {
        let (sender, mut queue) = EventQueue::new();
        let gone = || Event::Tables(tables::Event::NamespaceGone(AttachmentIndex(9)));
        for generation in 1..1000 {
            sender.send(tables(generation)).unwrap();
            sender.send(Event::Tables(tables::Event::Warning("again".to_owned()))).unwrap();
            sender.send(Event::Worker(1, Returned::PortFailed(PortIndex(2), 0))).unwrap();
            sender.send(Event::Clock).unwrap();
        }
        sender.send(gone()).unwrap();
        let first = queue.take();
        assert!(
            matches!(&first, Some(Event::Tables(tables::Event::Tables(all))) if all.generation() == 999),
            "{first:?}"
        );
        let rest: Vec<Event> = std::iter::from_fn(|| queue.take()).collect();
        assert_eq!(rest.len(), Bounded::Hints.most() + 3);
        assert!(matches!(rest.last(), Some(Event::Tables(tables::Event::NamespaceGone(_)))));
    }

    #[tokio::test]
    async fn who_waits_is_woken_and_a_node_that_is_gone_is_told() {
        let (sender, mut queue) = EventQueue::new();
        let second = sender.clone();
        let sends = std::thread::spawn(move || second.send(Event::Clock));
        assert!(matches!(queue.next().await, Event::Clock));
        sends.join().unwrap().unwrap();
        drop(queue);
        assert_eq!(sender.send(Event::Clock), Err(NodeGone));
    }
}
