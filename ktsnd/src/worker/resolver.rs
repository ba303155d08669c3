// SPDX-License-Identifier: Apache-2.0
//! The tables in force, and a cache of resolved destinations with the stream that their datagrams belong to.
//!
//! In: a flow. Out: its headers, port and stream. An entry holds for one generation of the tables; an attachment's entries are
//! also forgotten when its policy changes. Where only the kernel knows a flow's route, the entry keeps the kernel's answer for as long as
//! the tables say that answers of its revision hold. A flow has one set of entries, found by its hash. Tags rule out most entries of
//! other flows without a look at them. So a thousand flows stay ready beside each other. Nothing is allocated after the start.

use std::net::IpAddr;
use std::sync::Arc;

use ktsn_model::DropReason;
use ktsn_resolve::{
    AttachmentIndex, AttachmentTables, Flow, NextHop, Refusal, Replica, Resolved, RouteAnswer, Tables,
    next_replica, resolve_ahead, resolve_answered, resolve_replica,
};
use ktsn_sched::policing::{StreamHandle, StreamIdentification};
use ktsn_time::Monotonic;

use super::policing::stream_of;

use crate::limits::{CACHE_ENTRIES, CACHE_WAYS, NEWS_PAUSE};

/// What a flow's frames wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Missing {
    /// The MAC address of the next hop.
    Neighbour(NextHop),
    /// The kernel's answer about the route.
    Route,
}

/// Why nothing leaves by an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Blocked {
    Missing(Missing),
    /// By the kernel's answer.
    Refused(Refusal),
}

/// The kernel's answer about a flow's route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Answered {
    revision: u64,
    answer: RouteAnswer,
}

#[derive(Debug, Clone)]
struct Entry {
    generation: u64,
    flow: Flow,
    replica: Replica,
    resolved: Resolved,
    /// Set while nothing leaves by the entry.
    blocked: Option<Blocked>,
    answered: Option<Answered>,
    /// When the kernel was asked last.
    asked_at: Option<Monotonic>,
    /// The stream of the flow, if there is one; `None` until it is asked for.
    stream: Option<Option<StreamHandle>>,
}

/// The tables and the cache.
#[derive(Debug)]
pub(super) struct Resolver {
    tables: Arc<Tables>,
    cache: Cache,
}

/// The cache of entries.
#[derive(Debug)]
struct Cache {
    /// Sets of [`CacheWay`]s.
    sets: Box<[[CacheWay; CACHE_WAYS]]>,
    /// In the order in which they were first needed: few flows lie close together, however their hashes fall.
    entries: Vec<Entry>,
    /// Which way of a full set is replaced next.
    next: usize,
}

/// One way of a set (the word of set-associative caches): a part of its flow's hash, never 0, and the entry's place. 0 and 0: none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct CacheWay {
    tag: u16,
    at: u16,
}

const SETS: usize = CACHE_ENTRIES / CACHE_WAYS;
/// No tables have this generation.
const FORGOTTEN: u64 = u64::MAX;

/// A cheap hash: the cache is private and bounded, so a client that provokes collisions only slows its own frames
/// down to an uncached resolve. The set, and the tag.
fn place_of(flow: &Flow, replica: Replica) -> (usize, u16) {
    const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
    let bits = |address| match address {
        IpAddr::V4(a) => u64::from(a.to_bits()),
        IpAddr::V6(a) => {
            ((a.to_bits() >> 64) as u64).wrapping_mul(SPREAD).rotate_left(32) ^ a.to_bits() as u64
        }
    };
    let copy = match replica {
        Replica::First => 0,
        Replica::Vtep(vtep) => bits(vtep).rotate_left(17),
        Replica::Interface => 1 << 16,
    };
    let address = (bits(flow.destination) ^ copy).wrapping_mul(SPREAD).rotate_left(29);
    let ports = u64::from(flow.destination_port) << 32 | u64::from(flow.source_port) << 48;
    let mixed = (address ^ ports ^ u64::from(flow.attachment.0)).wrapping_mul(SPREAD);
    ((mixed >> 40) as usize & (SETS - 1), (mixed >> 16) as u16 | 1)
}

/// Where a flow leaves, or will leave once what blocks it is over.
fn look_up(
    tables: &Tables,
    flow: &Flow,
    replica: Replica,
    answer: Option<RouteAnswer>,
) -> Result<(Resolved, Option<Blocked>), Refusal> {
    let found = match (&answer, replica) {
        (Some(answer), Replica::First) => resolve_answered(tables, flow, answer),
        _ => resolve_replica(tables, flow, replica),
    };
    let refusal = match found {
        Ok(resolved) => return Ok((resolved, None)),
        Err(refusal) => refusal,
    };
    let blocked = match refusal {
        _ if replica != Replica::First => return Err(refusal),
        Refusal::Drop(DropReason::NoNeighbour, Some(hop)) => Blocked::Missing(Missing::Neighbour(hop)),
        Refusal::Unanswered => Blocked::Missing(Missing::Route),
        _ if answer.is_some() => Blocked::Refused(refusal),
        _ => return Err(refusal),
    };
    // A refused flow has no headers. Its entry remembers the answer.
    let answer = answer.filter(|_| !matches!(blocked, Blocked::Refused(_)));
    Ok((resolve_ahead(tables, flow, answer.as_ref())?, Some(blocked)))
}

impl Cache {
    fn new() -> Self {
        let sets = vec![[CacheWay::default(); CACHE_WAYS]; SETS].into();
        // All that will ever be needed: nothing is allocated while frames wait.
        Self { sets, entries: Vec::with_capacity(CACHE_ENTRIES), next: 0 }
    }

    /// The place of a flow's entry, which has this tag and is in this set.
    #[inline]
    fn place(&self, (set, tag): (usize, u16), flow: &Flow, replica: Replica) -> Option<usize> {
        let is_its = |way: &&CacheWay| {
            let entry = (way.tag == tag).then(|| self.entries.get(usize::from(way.at))).flatten();
            entry.is_some_and(|entry| entry.flow == *flow && entry.replica == replica)
        };
        self.sets[set].iter().find(is_its).map(|way| usize::from(way.at))
    }

    fn entry(&mut self, tables: &Tables, flow: &Flow, replica: Replica) -> Result<&mut Entry, Refusal> {
        let (set, tag) = place_of(flow, replica);
        let generation = tables.generation_of(flow.attachment);
        let found = self.place((set, tag), flow, replica);
        let ways = &mut self.sets[set];
        let is_ready = |at: usize| {
            let is_now = |entry: &Entry| entry.generation == tables.generation_of(entry.flow.attachment);
            self.entries.get(at).is_some_and(is_now)
        };
        let at = match found {
            Some(at) if is_ready(at) => at,
            _ => {
                let old = found.and_then(|at| self.entries.get(at));
                let revision = tables.attachment(flow.attachment).map(AttachmentTables::answers_revision);
                let answered = old.and_then(|old| old.answered).filter(|of| Some(of.revision) == revision);
                let asked_at = old.and_then(|old| old.asked_at);
                let (resolved, blocked) = look_up(tables, flow, replica, answered.map(|of| of.answer))?;
                let (flow, stream) = (*flow, None);
                let entry =
                    Entry { generation, flow, replica, resolved, blocked, stream, answered, asked_at };
                let at = found.unwrap_or_else(|| {
                    let empty = ways.iter().position(|way| way.tag == 0);
                    let old = || ways.iter().position(|way| !is_ready(usize::from(way.at)));
                    let way = empty.or_else(old).unwrap_or_else(|| {
                        self.next = self.next.wrapping_add(1);
                        self.next % CACHE_WAYS
                    });
                    let at = if empty.is_some() { self.entries.len() } else { usize::from(ways[way].at) };
                    ways[way] = CacheWay { tag, at: at as u16 };
                    at
                });
                match self.entries.get_mut(at) {
                    Some(place) => *place = entry,
                    // An empty way is left, so there are fewer entries than ways.
                    None => self.entries.push(entry),
                }
                at
            }
        };
        self.entries.get_mut(at).ok_or(Refusal::Drop(DropReason::Bug, None))
    }
}

impl Resolver {
    /// An empty cache over these tables.
    pub(super) fn new(tables: Arc<Tables>) -> Self {
        Self { tables, cache: Cache::new() }
    }

    /// Other tables are in force from now on; returns the old ones.
    pub(super) fn set_tables(&mut self, tables: Arc<Tables>) -> Arc<Tables> {
        std::mem::replace(&mut self.tables, tables)
    }

    /// The tables in force.
    pub(super) fn tables(&self) -> &Tables {
        &self.tables
    }

    /// The copy of a flow's datagrams that follows `replica`.
    pub(super) fn next_replica(&self, attachment: AttachmentIndex, replica: Replica) -> Option<Replica> {
        next_replica(&self.tables, attachment, replica)
    }

    fn entry(&mut self, flow: &Flow, replica: Replica) -> Result<&mut Entry, Refusal> {
        self.cache.entry(&self.tables, flow, replica)
    }

    /// Where the flow will leave, and what is missing until then: no frame may be made by the answer before.
    pub(super) fn find_ahead(&mut self, flow: &Flow) -> Result<(&Resolved, Option<Missing>), Refusal> {
        let entry = self.entry(flow, Replica::First)?;
        match entry.blocked {
            None => Ok((&entry.resolved, None)),
            Some(Blocked::Missing(missing)) => Ok((&entry.resolved, Some(missing))),
            Some(Blocked::Refused(refusal)) => Err(refusal),
        }
    }

    /// Where the flow, or one of the copies that it leaves as, leaves now.
    #[inline]
    pub(super) fn find(&mut self, flow: &Flow, replica: Replica) -> Result<&Resolved, Refusal> {
        let entry = self.entry(flow, replica)?;
        match entry.blocked {
            None => Ok(&entry.resolved),
            Some(Blocked::Missing(Missing::Neighbour(hop))) => {
                Err(Refusal::Drop(DropReason::NoNeighbour, Some(hop)))
            }
            Some(Blocked::Missing(Missing::Route)) => Err(Refusal::Unanswered),
            Some(Blocked::Refused(refusal)) => Err(refusal),
        }
    }

    /// Whether the kernel is to be asked about the flow's route now: it has not been for [`NEWS_PAUSE`]. Notes that it is.
    pub(super) fn should_ask(&mut self, flow: &Flow, now: Monotonic) -> bool {
        let Ok(entry) = self.entry(flow, Replica::First) else { return false };
        let is_due = entry.asked_at.is_none_or(|at| now.since(at) >= NEWS_PAUSE);
        if is_due {
            entry.asked_at = Some(now);
        }
        is_due
    }

    /// Notes the kernel's answer about a flow. Where the flow has no entry any more, nobody waits for it.
    pub(super) fn set_answer(&mut self, flow: &Flow, revision: u64, answer: RouteAnswer) {
        let place = self.cache.place(place_of(flow, Replica::First), flow, Replica::First);
        if let Some(entry) = place.and_then(|at| self.cache.entries.get_mut(at)) {
            entry.answered = Some(Answered { revision, answer });
            (entry.generation, entry.asked_at) = (FORGOTTEN, None);
        }
    }

    /// The stream of the flow by its attachment's table. That is visited once for each entry of the cache.
    pub(super) fn stream(&mut self, flow: &Flow, streams: &StreamIdentification) -> Option<StreamHandle> {
        let Entry { resolved, blocked: None, stream, .. } = self.entry(flow, Replica::First).ok()? else {
            return None;
        };
        *stream.get_or_insert_with(|| stream_of(streams, flow, resolved))
    }

    /// Forgets the flows of an attachment.
    pub(super) fn forget(&mut self, attachment: AttachmentIndex) {
        for entry in self.cache.entries.iter_mut().filter(|entry| entry.flow.attachment == attachment) {
            entry.generation = FORGOTTEN;
        }
    }
}

#[cfg(test)]
mod tests {
    use ktsn_resolve::{AttachmentTables, Link, LinkTable, Marks, Neighbour, Overlay, PortIndex, Route, Via};
    use ktsn_wire::MacAddress;

    use super::*;

    /// A pod on a link where the stations 10.0.0.0 to 10.0.31.255 are known by this MAC address.
    fn tables(generation: u64, last: u8) -> Tables {
        let mac = MacAddress([2, 0, 0, 0, 0, last]);
        let station = |number: u32| Neighbour { address: IpAddr::V4((0x0a00_0000 + number).into()), mac };
        let link = |port| {
            let prefix = "10.0.0.0/8".parse().unwrap();
            LinkTable::new(Link {
                port: PortIndex(port),
                if_index: 1,
                mac,
                mtu: 1500,
                addresses: vec![("10.1.0.1".parse().unwrap(), 8)],
                routes: vec![Route { prefix, via: Via::OnLink, source: None }],
                neighbours: (0..8192).map(station).collect(),
            })
        };
        let attachment = || {
            AttachmentTables::new(
                link(1).unwrap(),
                link(0).unwrap().into(),
                Overlay::None,
                Some(vec!["10.0.0.0/8".parse().unwrap()]),
            )
        };
        Tables::new(generation, vec![Some(attachment().unwrap()), Some(attachment().unwrap())]).unwrap()
    }

    fn flow(attachment: u16, number: u32) -> Flow {
        Flow {
            is_connected: false,
            uid: 0,
            attachment: AttachmentIndex(attachment),
            bound: None,
            source_port: 5000,
            destination: IpAddr::V4((0x0a00_0000 + number).into()),
            destination_port: 6000,
            scope: 0,
            traffic_class: 0,
            hop_limit: 0,
            marks: Marks::default(),
        }
    }

    fn destination(routes: &mut Resolver, flow: &Flow) -> MacAddress {
        routes.find(flow, Replica::First).unwrap().template.destination().0
    }

    fn ready(routes: &Resolver, generation: u64) -> usize {
        routes.cache.entries.iter().filter(|entry| entry.generation == generation).count()
    }

    #[test]
    fn a_thousand_flows_stay_ready_beside_each_other() {
        let mut routes = Resolver::new(Arc::new(tables(1, 7)));
        for _ in 0..2 {
            for number in 0..1000 {
                assert_eq!(destination(&mut routes, &flow(0, number)).0[5], 7);
            }
        }
        assert!(ready(&routes, 1) >= 990, "{}", ready(&routes, 1));
        assert!((0..70_000).all(|number| place_of(&flow(0, number), Replica::First).1 != 0));
    }

    #[test]
    fn an_answer_of_old_tables_or_another_flow_is_never_given() {
        let mut routes = Resolver::new(Arc::new(tables(0, 0)));
        for (generation, last) in [(1, 7), (2, 8), (3, 9)] {
            routes.set_tables(Arc::new(tables(generation, last)));
            // More flows than entries, so that all sets are full.
            for number in (0..8000).chain((0..8000).step_by(7)) {
                let found = routes.find(&flow(0, number), Replica::First).unwrap();
                assert_eq!(found.template.destination().0.0[5], last);
                let mut frame = [0; 128];
                found.template.write_frame(b"12345678", &mut frame).unwrap();
                assert_eq!(frame[30..34], (0x0a00_0000 + number).to_be_bytes());
            }
            assert!(ready(&routes, generation) > CACHE_ENTRIES * 9 / 10);
            assert!(routes.cache.entries.len() <= CACHE_ENTRIES, "nothing more is allocated");
        }
    }

    #[test]
    fn an_attachment_that_is_forgotten_takes_only_its_own_flows_along() {
        let mut routes = Resolver::new(Arc::new(tables(1, 7)));
        for number in 0..200 {
            destination(&mut routes, &flow(0, number));
            destination(&mut routes, &flow(1, number));
        }
        routes.forget(AttachmentIndex(0));
        assert_eq!(ready(&routes, 1), 200);
        destination(&mut routes, &flow(0, 3));
        assert_eq!((ready(&routes, 1), routes.cache.entries.len()), (201, 400), "its old place");
    }

    #[test]
    fn an_attachment_whose_routes_flap_takes_only_its_own_flows_along() {
        let mut routes = Resolver::new(Arc::new(tables(1, 7)));
        for number in 0..200 {
            destination(&mut routes, &flow(0, number));
            destination(&mut routes, &flow(1, number));
        }
        for last in 8..12 {
            let kept = routes.tables().attachments()[0].clone();
            let other = tables(1, last).attachments()[1].clone();
            let next = routes.tables().next(vec![kept, other]).unwrap();
            routes.set_tables(Arc::new(next));
            assert_eq!(destination(&mut routes, &flow(1, 3)).0[5], last, "its own are those of now");
            assert_eq!(destination(&mut routes, &flow(0, 3)).0[5], 7);
        }
        assert_eq!(ready(&routes, 1), 200 + 199, "all of the other one's");
        // An attachment that goes and comes back is another one.
        let kept = routes.tables().attachments()[1].clone();
        routes.set_tables(Arc::new(routes.tables().next(vec![None, kept.clone()]).unwrap()));
        let again = tables(1, 13).attachments()[0].clone();
        routes.set_tables(Arc::new(routes.tables().next(vec![again, kept]).unwrap()));
        assert_eq!(destination(&mut routes, &flow(0, 3)).0[5], 13);
    }
}
