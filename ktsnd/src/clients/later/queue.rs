// SPDX-License-Identifier: Apache-2.0
//! The datagrams of one namespace that the kernel is to send at their transmit times.
//!
//! In: datagrams, and a function that reads a clock. Out: the next datagram whose time has come, never before; how long none is due; what
//! does not fit, to be dropped. Each client and each attachment has its bounds. The same socket is held once, however many datagrams it has.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use ktsn_model::DropReason;
use ktsn_resolve::AttachmentIndex;
use ktsn_ring::ClockId;

use crate::limits;
use crate::stats::AttachmentStats;
use crate::worker::{ClientKey, Judged};

/// A datagram that waits for its transmit time.
#[derive(Debug)]
pub(in crate::clients) struct Datagram {
    /// The program's socket.
    pub socket: Arc<OwnedFd>,
    /// SO_COOKIE of the socket.
    pub cookie: u64,
    /// The client's message, which was found to be a [`ktsn_ring::control::Later`].
    pub octets: Box<[u8]>,
    /// The Linux number of the clock of `tx_time`.
    pub clock: u32,
    /// Nanoseconds of that clock.
    pub tx_time: u64,
    pub client: ClientKey,
    pub attachment: AttachmentIndex,
    /// True when the socket belongs to another namespace than the attachment.
    pub is_foreign: bool,
    /// Counters of the attachment.
    pub stats: Arc<AttachmentStats>,
    /// What a frame of a ring asked for besides; `None`: the message has all.
    pub asked: Option<Asked>,
}

/// The header fields that a frame asks for. The datagram gets a control message only for a field that differs from its socket's option:
/// an IP_TOS message changes more than the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::clients) struct Asked {
    pub is_v4: bool,
    /// Type of service or traffic class.
    pub class: u8,
    /// TTL or hop limit, where the program set one.
    pub hop_limit: Option<u8>,
    /// The key of its timestamps, where the program wants any.
    pub key: Option<u32>,
}

/// What is kept for a client, or for an attachment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Usage {
    datagrams: usize,
    octets: usize,
}

impl Usage {
    const fn with(self, octets: usize) -> Self {
        Self { datagrams: self.datagrams + 1, octets: self.octets + octets }
    }

    const fn without(self, octets: usize) -> Self {
        Self { datagrams: self.datagrams.saturating_sub(1), octets: self.octets.saturating_sub(octets) }
    }

    const fn is_within(self, datagrams: usize, octets: usize) -> bool {
        self.datagrams <= datagrams && self.octets <= octets
    }
}

/// Octets that a datagram counts as.
fn cost(datagram: &Datagram) -> usize {
    datagram.octets.len() + limits::LATER_DATAGRAM_OCTETS
}

/// Replaces what is kept; an entry of nothing is forgotten.
fn put<K: Ord>(of: &mut BTreeMap<K, Usage>, key: K, usage: Usage) {
    if usage == Usage::default() {
        of.remove(&key);
    } else {
        of.insert(key, usage);
    }
}

/// The datagrams of one namespace.
#[derive(Debug, Default)]
pub(super) struct Queue {
    /// By clock, then by transmit time and arrival.
    waiting: BTreeMap<u32, BTreeMap<(u64, u64), Datagram>>,
    /// Those that are not judged yet, by arrival.
    unjudged: BTreeMap<u64, Datagram>,
    clients: BTreeMap<ClientKey, Usage>,
    attachments: BTreeMap<AttachmentIndex, Usage>,
    /// Sockets by cookie, with the number of their datagrams.
    sockets: BTreeMap<u64, (Arc<OwnedFd>, usize)>,
    /// Datagrams that ever came.
    arrived: u64,
    /// Octets of all namespaces' datagrams.
    all_octets: Arc<AtomicUsize>,
}

impl Queue {
    /// An empty queue that counts its octets in `all_octets`, too.
    pub(super) fn new(all_octets: Arc<AtomicUsize>) -> Self {
        Self { all_octets, ..Self::default() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.unjudged.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.waiting.values().map(BTreeMap::len).sum::<usize>() + self.unjudged.len()
    }

    /// Adds a datagram that is not due before [`Self::judge`] was called with the number that this answers.
    ///
    /// # Errors
    /// The datagram, where its client, its attachment or all together have as many as they may have.
    pub(super) fn add_unjudged(&mut self, mut datagram: Datagram) -> Result<u64, Box<Datagram>> {
        let octets = cost(&datagram);
        let of = |usage: Option<&Usage>| usage.copied().unwrap_or_default().with(octets);
        let (client, attachment) =
            (of(self.clients.get(&datagram.client)), of(self.attachments.get(&datagram.attachment)));
        let is_known = self.sockets.contains_key(&datagram.cookie);
        let all = self.all_octets.load(Relaxed) + octets;
        if !client.is_within(limits::LATER_OF_CLIENT_MAX, limits::LATER_OF_CLIENT_OCTETS)
            || !attachment.is_within(limits::LATER_OF_ATTACHMENT_MAX, limits::LATER_OF_ATTACHMENT_OCTETS)
            || all > limits::LATER_OCTETS
            || (!is_known && self.sockets.len() >= limits::LATER_SOCKETS_MAX)
        {
            return Err(Box::new(datagram));
        }
        let kept = self.sockets.entry(datagram.cookie).or_insert_with(|| (datagram.socket.clone(), 0));
        kept.1 += 1;
        datagram.socket = kept.0.clone();
        self.all_octets.fetch_add(octets, Relaxed);
        put(&mut self.clients, datagram.client, client);
        put(&mut self.attachments, datagram.attachment, attachment);
        self.arrived += 1;
        self.unjudged.insert(self.arrived, datagram);
        Ok(self.arrived)
    }

    /// A datagram is judged: it waits for its time or another one, or is given back to be dropped.
    pub(super) fn judge(&mut self, number: u64, judged: Judged) -> Option<Datagram> {
        let mut datagram = self.unjudged.remove(&number)?;
        let Ok(not_before) = judged else {
            self.forget(&datagram);
            return Some(datagram);
        };
        if let Some(at) = not_before {
            (datagram.clock, datagram.tx_time) = (u32::from(ClockId::Tai.id()), at.as_nanos());
        }
        let of_clock = self.waiting.entry(datagram.clock).or_default();
        of_clock.insert((datagram.tx_time, number), datagram);
        None
    }

    /// Takes the first datagram whose transmit time is not after its clock's reading.
    pub(super) fn take_due(&mut self, now: impl Fn(u32) -> u64) -> Option<Datagram> {
        let (clock, place) = self.waiting.iter().find_map(|(clock, of_clock)| {
            let place = *of_clock.keys().next()?;
            (place.0 <= now(*clock)).then_some((*clock, place))
        })?;
        self.take(clock, place)
    }

    /// How long no datagram is due, by the clocks as they are; `None`: there is none.
    pub(super) fn next_in(&self, now: impl Fn(u32) -> u64) -> Option<Duration> {
        let left = self.waiting.iter().filter_map(|(clock, of_clock)| {
            let (tx_time, _) = of_clock.keys().next()?;
            Some(Duration::from_nanos(tx_time.saturating_sub(now(*clock))))
        });
        left.min()
    }

    /// Takes all datagrams that are not to be kept.
    pub(super) fn take_unless(&mut self, is_kept: impl Fn(&Datagram) -> bool) -> Vec<Datagram> {
        let mut places = Vec::new();
        for (clock, of_clock) in &self.waiting {
            let gone = of_clock.iter().filter(|(_, datagram)| !is_kept(datagram));
            places.extend(gone.map(|(place, _)| (*clock, *place)));
        }
        let unjudged = self.unjudged.iter().filter(|(_, datagram)| !is_kept(datagram));
        let unjudged: Vec<u64> = unjudged.map(|(number, _)| *number).collect();
        let waiting = places.into_iter().filter_map(|(clock, place)| self.take(clock, place));
        let mut taken: Vec<Datagram> = waiting.collect();
        taken.extend(unjudged.into_iter().filter_map(|number| self.judge(number, Err(DropReason::Detached))));
        taken
    }

    /// Takes those whose transmit time was [`limits::LATER_JUDGED`] ago without a judgement.
    pub(super) fn take_unjudged(&mut self, now: impl Fn(u32) -> u64) -> Vec<Datagram> {
        let latest = limits::LATER_JUDGED.get().unsigned_abs();
        let is_over = |datagram: &Datagram| now(datagram.clock).saturating_sub(datagram.tx_time) > latest;
        let over = self.unjudged.iter().filter(|(_, datagram)| is_over(datagram));
        let over: Vec<u64> = over.map(|(number, _)| *number).collect();
        over.into_iter().filter_map(|number| self.judge(number, Err(DropReason::Detached))).collect()
    }

    fn take(&mut self, clock: u32, place: (u64, u64)) -> Option<Datagram> {
        let of_clock = self.waiting.get_mut(&clock)?;
        let datagram = of_clock.remove(&place)?;
        if of_clock.is_empty() {
            self.waiting.remove(&clock);
        }
        self.forget(&datagram);
        Some(datagram)
    }

    /// What it counted as is free again.
    fn forget(&mut self, datagram: &Datagram) {
        let octets = cost(datagram);
        self.all_octets.fetch_sub(octets, Relaxed);
        if let Some(usage) = self.clients.get(&datagram.client).copied() {
            put(&mut self.clients, datagram.client, usage.without(octets));
        }
        if let Some(usage) = self.attachments.get(&datagram.attachment).copied() {
            put(&mut self.attachments, datagram.attachment, usage.without(octets));
        }
        if let Some((_, count)) = self.sockets.get_mut(&datagram.cookie) {
            *count -= 1;
            if *count == 0 {
                self.sockets.remove(&datagram.cookie);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use ktsn_time::Tai;

    use super::*;

    impl Queue {
        /// Adds a datagram that is judged.
        fn add(&mut self, datagram: Datagram) -> Result<(), Box<Datagram>> {
            self.add_unjudged(datagram).map(|number| assert!(self.judge(number, Ok(None)).is_none()))
        }
    }

    fn datagram(client: u64, clock: u32, tx_time: u64, octets: usize) -> Datagram {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        Datagram {
            socket: Arc::new(socket.into()),
            cookie: client,
            octets: vec![0; octets].into(),
            clock,
            tx_time,
            client: ClientKey(client),
            attachment: AttachmentIndex(client as u16 / 100),
            is_foreign: false,
            stats: Arc::default(),
            asked: None,
        }
    }

    /// What is not judged is not due, and counts; what may not pass comes back.
    #[test]
    fn a_datagram_is_not_due_before_it_is_judged() {
        let mut queue = Queue::default();
        let numbers = [1, 2, 3].map(|octets| queue.add_unjudged(datagram(1, 1, 5, octets)).unwrap());
        let due = |queue: &mut Queue| queue.take_due(|_| 9).map(|datagram| datagram.octets.len());
        assert_eq!((due(&mut queue), queue.next_in(|_| 9), queue.len()), (None, None, 3));
        assert!(!queue.is_empty() && queue.judge(numbers[1], Ok(None)).is_none());
        assert_eq!((due(&mut queue), due(&mut queue)), (Some(2), None));
        queue.judge(numbers[2], Ok(Some(Tai::from_nanos(50))));
        let left = |tai| queue.next_in(|clock| if clock == 11 { tai } else { 9 }).map(|left| left.as_nanos());
        assert_eq!((left(20), left(50)), (Some(30), Some(0)), "another time");
        assert_eq!(queue.judge(numbers[0], Err(DropReason::Policed)).unwrap().octets.len(), 1);
        assert!(queue.judge(numbers[0], Ok(None)).is_none(), "it is gone");
        assert_eq!(queue.take_unless(|_| false).len(), 1);
        queue.add_unjudged(datagram(1, 1, 5, 1)).unwrap();
        let latest = 5 + limits::LATER_JUDGED.get().unsigned_abs();
        assert_eq!(
            (queue.take_unjudged(|_| latest).len(), queue.take_unjudged(|_| latest + 1).len()),
            (0, 1)
        );
        queue.add_unjudged(datagram(1, 1, 5, 1)).unwrap();
        assert_eq!(queue.take_unless(|_| false).len(), 1);
        assert!(queue.is_empty() && queue.clients.is_empty() && queue.sockets.is_empty());
        assert_eq!(queue.all_octets.load(Relaxed), 0);
    }

    /// Each clock has its own order. Datagrams with one transmit time leave in the order of the calls.
    #[test]
    fn a_datagram_is_due_by_its_own_clock() {
        let mut queue = Queue::default();
        for (clock, tx_time, octets) in [(11, 50, 1), (1, 20, 2), (1, 10, 3), (1, 20, 4), (1, 19, 5)] {
            queue.add(datagram(1, clock, tx_time, octets)).unwrap();
        }
        let mut due = |monotonic, tai| {
            let now = |clock| if clock == 1 { monotonic } else { tai };
            let left = queue.next_in(now).map(|left| left.as_nanos());
            let taken = std::iter::from_fn(|| queue.take_due(now)).map(|datagram| datagram.octets.len());
            (left, taken.collect::<Vec<_>>())
        };
        assert_eq!(due(9, 49), (Some(1), vec![]));
        assert_eq!(due(10, 0), (Some(0), vec![3]));
        assert_eq!(due(20, 49), (Some(0), vec![5, 2, 4]));
        assert_eq!(due(u64::MAX, 49), (Some(1), vec![]));
        assert_eq!(due(0, 50), (Some(0), vec![1]));
        assert_eq!(due(0, 0), (None, vec![]));
        assert!(queue.clients.is_empty() && queue.attachments.is_empty() && queue.sockets.is_empty());
        assert_eq!(queue.all_octets.load(Relaxed), 0);
    }

    #[test]
    fn a_client_and_an_attachment_have_their_bounds() {
        let fill = |queue: &mut Queue, client, octets| {
            (0..100_000).take_while(|_| queue.add(datagram(client, 1, 1, octets)).is_ok()).count()
        };
        let mut queue = Queue::default();
        assert_eq!(fill(&mut queue, 1, 0), limits::LATER_OF_CLIENT_MAX);
        assert_eq!(fill(&mut queue, 2, 0), limits::LATER_OF_ATTACHMENT_MAX - limits::LATER_OF_CLIENT_MAX);
        assert_eq!(fill(&mut queue, 3, 0), 0, "its attachment has all that it may have");
        assert_eq!(fill(&mut queue, 100, 0), limits::LATER_OF_CLIENT_MAX, "another attachment");
        let one = 65_536 + limits::LATER_DATAGRAM_OCTETS;
        let mut queue = Queue::default();
        assert_eq!(fill(&mut queue, 1, 65_536), limits::LATER_OF_CLIENT_OCTETS / one);
        assert!(fill(&mut queue, 2, 65_536) > 0);
        assert!(fill(&mut queue, 3, 65_536) <= 1);
        let taken = queue.take_unless(|datagram| datagram.client != ClientKey(1));
        assert_eq!(taken.len(), limits::LATER_OF_CLIENT_OCTETS / one);
        assert_eq!(fill(&mut queue, 1, 65_536), taken.len(), "it has its room again");
    }

    #[test]
    fn a_namespace_has_no_more_sockets_than_it_may_have() {
        let mut queue = Queue::default();
        let add =
            |queue: &mut Queue, cookie| queue.add(Datagram { cookie, ..datagram(1, 1, cookie, 0) }).is_ok();
        let sockets = limits::LATER_SOCKETS_MAX as u64;
        assert!((0..sockets).all(|cookie| add(&mut queue, cookie)));
        assert!(!add(&mut queue, sockets), "a further socket");
        assert!(add(&mut queue, 0), "the same socket");
        assert!(queue.take_due(|_| 0).is_some() && !add(&mut queue, sockets), "its second datagram holds it");
        assert!(queue.take_due(|_| 0).is_some() && add(&mut queue, sockets));
    }
}
