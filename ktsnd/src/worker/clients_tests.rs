// SPDX-License-Identifier: Apache-2.0
//! Clients with real regions, on virtual clocks and without a worker.

use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering::SeqCst;

use ktsn_ring::{ClientMapping, Consumer, Layout, Producer};

use ktsn_time::Nanos;

use super::*;
use crate::worker::attention::Polls;
use crate::worker::tests::{App, Clocks};

struct Known {
    producer: Producer,
    _mapping: ClientMapping,
    doorbell: OwnedFd,
}

struct All {
    clients: Clients,
    env: Clocks,
    attachments: Attachments,
    stats: WorkerStats,
    known: Vec<Known>,
}

impl All {
    fn new() -> Self {
        let env = Clocks::default();
        env.monotonic.store(1_000_000_000, SeqCst);
        let (clients, attachments) = (Clients::new(), Attachments::new());
        Self { clients, env, attachments, stats: WorkerStats::default(), known: Vec::new() }
    }

    /// A client of this attachment; its place.
    fn add(&mut self, attachment: u16) -> usize {
        let layout = Layout::new(64, 2048, limits::STREAMS_MAX, 64).unwrap();
        let (consumer, memfd) = Consumer::create(layout).unwrap();
        let mapping = ClientMapping::open(&memfd).unwrap();
        let (ours, doorbell) = App::doorbell();
        let key = ClientKey(1 + self.known.len() as u64);
        self.known.push(Known { producer: *mapping.producer(), _mapping: mapping, doorbell });
        let index = AttachmentIndex(attachment);
        let client = Client::new(key, index, consumer, ours, layout.slots_count(), layout.payload_max());
        let at = self.clients.add(Box::new(client), &mut self.env).unwrap();
        self.clients.activate(at, self.env.now());
        at
    }

    fn push(&self, at: usize) {
        let producer = &self.known[at].producer;
        let claim = producer.claim().unwrap();
        let frame = App::frame(ktsn_ring::ClockId::Monotonic, 0, 0);
        producer.fill(&claim, &frame, [&b"x"[..]].into_iter()).unwrap();
        producer.publish(claim);
    }

    fn served(&mut self, rounds: usize) -> Vec<usize> {
        let mut served = Vec::new();
        for _ in 0..rounds {
            let mut round = self.clients.begin_round();
            let now = self.env.monotonic();
            while let Some(at) = self.clients.next_waiting(&mut round, now, &mut self.env, |_| true) {
                served.push(at);
                self.clients.pass_turn(&mut round);
            }
        }
        served
    }

    fn may_sleep(&mut self) -> bool {
        let now = self.env.now();
        let until = Now { monotonic: now.monotonic.saturating_add(Nanos::from_millis(1)), ..now };
        self.clients.may_sleep_until(&Polls { at: until, unexpected: until }, now, false)
    }
}

#[test]
fn attachments_take_turns_whatever_number_of_clients_they_have() {
    let mut all = All::new();
    let many: Vec<usize> = (0..3).map(|_| all.add(0)).collect();
    let one = all.add(1);
    many.iter().chain([&one]).for_each(|at| all.push(*at));
    let served = all.served(1);
    assert_eq!(served.iter().filter(|at| **at == one).count(), served.len() / 2, "{served:?}");
}

#[test]
fn a_client_goes_with_its_last_frame_and_leaves_its_place() {
    let mut all = All::new();
    let (first, second) = (all.add(0), all.add(0));
    assert_eq!((all.clients.find(ClientKey(2)), all.clients.count()), (Some(second), 2));
    assert!(all.clients.begin_close(second, true) && !all.clients.begin_close(second, true));
    assert!(all.clients.take_if_over(second, &mut all.env).is_none());
    assert!(all.clients.try_close(second, &all.attachments));
    assert!(all.clients.take_if_over(second, &mut all.env).is_some());
    assert_eq!((all.clients.find(ClientKey(2)), all.clients.end), (None, first + 1));
    assert_eq!(all.add(0), second);
}

#[test]
fn a_frame_keeps_the_worker_awake_and_a_quiet_client_does_not() {
    let mut all = All::new();
    let at = all.add(0);
    assert!(all.may_sleep());
    all.push(at);
    assert!(!all.may_sleep());
    assert_eq!(all.served(1)[0], at);

    let quiet = all.add(1);
    all.env.monotonic.fetch_add(limits::QUIET_AFTER.get().unsigned_abs() + 1, SeqCst);
    let _ = all.may_sleep();
    assert!(!all.clients.turns.contains(quiet));
    all.push(quiet);
    assert!(all.clients.is_listen_due(all.env.monotonic()));
    // Its doorbell is lost: the housekeeping finds it.
    assert!(all.clients.begin_housekeeping(all.env.monotonic()));
    assert!(!all.clients.housekeeping(all.env.monotonic(), &all.attachments, &mut all.env));
    assert!(all.clients.turns.contains(quiet));
}

#[test]
fn a_flood_of_doorbells_is_muted_and_its_ring_still_polled() {
    let mut all = All::new();
    let at = all.add(0);
    all.attachments.set(AttachmentIndex(0), Box::new(crate::worker::tests::policy(&Default::default())));
    let policy = all.attachments.get_mut(AttachmentIndex(0)).unwrap();
    policy.count_doorbells(limits::DOORBELLS_A_SECOND, all.env.monotonic());
    rustix::net::send(&all.known[at].doorbell, b"x", rustix::net::SendFlags::empty()).unwrap();
    let mut woken = all.clients.take_woken();
    woken.doorbells.push(at as u64);
    all.clients.listen(woken, all.env.now(), &mut all.attachments, &mut all.env, &all.stats);
    assert!(all.clients.has_muted() && all.stats.doorbells_muted.load(SeqCst) == 1);
    // A muted client is quiet at once, and polled by itself.
    assert!(all.may_sleep() && !all.clients.turns.contains(at));
    all.push(at);
    all.clients.poll_muted(all.env.monotonic(), &mut all.env);
    assert!(all.clients.turns.contains(at));
}
