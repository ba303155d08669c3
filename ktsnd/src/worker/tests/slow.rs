// SPDX-License-Identifier: Apache-2.0
//! A pod's interface with hand-overs that take too long: what the frames of others see of it, and what becomes of its own.
//!
//! Clocks are virtual, as in `isolation`. Frames carry their number. A port that returns buffers at a reap stands for one whose
//! frames leave by another thread.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex};

use ktsn_model::DropReason;
use ktsn_port::Port as _;
use ktsn_port::memory::{Completion, Memory};
use ktsn_resolve::{AttachmentIndex, PortIndex};
use ktsn_ring::{ClockId, SlotFlags, StreamCode, StreamStatus};
use ktsn_time::Nanos;

use super::isolation::{Innocent, world};
use super::world::{App, World};
use super::{MS, US};
use crate::stats::AttachmentStats;
use crate::worker::{Command, LinkKind, NewPort, Returned, StreamInfo};

const SLOW: PortIndex = PortIndex(1);

/// The innocent stream beside a pod that sends by its own interface as fast as it can.
struct Bed {
    world: World,
    innocent: Innocent,
    app: App,
    stats: Arc<AttachmentStats>,
    /// Numbers of the frames that left by the interface.
    left: Arc<Mutex<Vec<u32>>>,
    next: u32,
    /// The longest hand-over of the news to the node.
    notified: Option<Nanos>,
    /// Ports that came back.
    back: usize,
}

impl Bed {
    /// The interface's hand-overs take so long.
    fn new(takes: u64) -> Self {
        let (world, innocent, mut apps, stats) = world(1, 64);
        let app = apps.remove(0);
        let bed =
            Self { world, innocent, app, stats, left: Arc::default(), next: 0, notified: None, back: 0 };
        let new = NewPort {
            port: bed.port(takes),
            priority_map: ktsn_model::PriorityMap::default(),
            selection: Box::new(World::time_aware(None)),
            policing: None,
            stats: Arc::default(),
            is_pod_interface: true,
        };
        bed.world.outbox.send(Command::AddPort(SLOW, new)).unwrap();
        let socket = StreamInfo {
            interface: 0,
            uid: 0,
            token: 9,
            cookie: 2,
            attachment: AttachmentIndex(1),
            local: SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0),
            peer: None,
            link: Some(LinkKind::Payloads),
            is_deadline: false,
            status: StreamStatus { token: 9, code: StreamCode::Registered, ..StreamStatus::default() },
        };
        bed.world.outbox.send(Command::Register(bed.app.key, 1, Box::new(socket))).unwrap();
        bed
    }

    fn port(&self, takes: u64) -> Box<Memory> {
        let (clock, left) = (self.world.clocks.clone(), self.left.clone());
        let sink = move |frame: &[u8]| {
            clock.cpu.fetch_add(takes, SeqCst);
            clock.monotonic.fetch_add(takes, SeqCst);
            let number = frame[14..18].try_into().unwrap();
            left.lock().unwrap().push(u32::from_be_bytes(number));
        };
        Box::new(Memory::new(16, 1500).unwrap().with_sink(Box::new(sink)))
    }

    fn run(&mut self, millis: u64, mut done: impl FnMut(&Self) -> bool) {
        let end = self.world.clocks.at() + millis * MS;
        while self.world.clocks.at() < end && !done(self) {
            let by_interface = ktsn_ring::SlotFrame {
                stream_index: 1,
                token: 9,
                flags: SlotFlags::LINK_PAYLOAD,
                address: [2, 0, 0, 0, 0, 77, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
                scope: 2,
                port: 0x88b5,
                priority: 0,
                ..App::frame(ClockId::Monotonic, 0, self.world.clocks.at())
            };
            while self.app.push_frame(&by_interface, &self.next.to_be_bytes()) {
                self.next += 1;
            }
            self.innocent.push(&self.world);
            self.world.worker.pass();
            for returned in self.world.returned.try_iter() {
                match returned {
                    Returned::PortSlow(SLOW, longest) => self.notified = Some(longest),
                    Returned::Port(SLOW, Some(_)) => self.back += 1,
                    _ => {}
                }
            }
        }
    }

    fn sent(&self) -> usize {
        self.left.lock().unwrap().len()
    }

    fn dropped(&self) -> u64 {
        self.stats.dropped.iter().map(|count| count.load(SeqCst)).sum()
    }

    /// Frames of the innocent stream that another one's slow hand-over made late: two usual ones take less.
    fn late(&self) -> u64 {
        self.world.stats.transmit_error.snapshot().count_between(20 * US, u64::MAX)
    }
}

/// As long as the node does nothing about it: frames of the uplink are late until the pod is beyond its budget, and never again;
/// the pod's own leave in the gaps, or are dropped.
#[test]
fn slow_hand_overs_of_a_pods_interface_wait_for_gaps() {
    let mut bed = Bed::new(500 * US);
    bed.run(50, |bed| bed.notified.is_some());
    assert!(
        (2..5).contains(&bed.sent()) && bed.notified >= Some(Nanos::from_micros(500)),
        "{:?}",
        bed.notified
    );
    let before = bed.late();
    bed.run(200, |_| false);
    let (late, errors) = (bed.late() - before, bed.world.stats.transmit_error.snapshot());
    assert!(bed.sent() > 50, "{} slow frames left", bed.sent());
    assert!(errors.len() > 190 && late == 0, "{late} of {} late", errors.len());
    assert!(errors.value_at_quantile(0.98) < 8 * US, "{} ns", errors.value_at_quantile(0.98));
    assert_eq!(bed.stats.dropped[usize::from(DropReason::Bug.number())].load(SeqCst), 0);
}

/// The machine stands still in each hand-over: that is not the pod's doing.
#[test]
fn a_thread_that_does_not_run_is_not_charged() {
    let mut bed = Bed::new(0);
    let clock = bed.world.clocks.clone();
    let left = bed.left.clone();
    let stalls = move |_: &[u8]| {
        clock.monotonic.fetch_add(500 * US, SeqCst);
        left.lock().unwrap().push(0);
    };
    let port = Box::new(Memory::new(16, 1500).unwrap().with_sink(Box::new(stalls)));
    bed.world.outbox.send(Command::ReplacePort(SLOW, port)).unwrap();
    bed.run(50, |bed| bed.back == 1);
    let sent = bed.sent();
    bed.run(200, |_| false);
    assert!(bed.sent() > sent + 100 && bed.notified.is_none(), "{} {:?}", bed.sent(), bed.notified);
}

/// Just below what one could see in a single hand-over, again and again: the account sees it.
#[test]
fn many_hand_overs_a_little_too_long_are_beyond_the_budget_and_short_ones_never() {
    let mut bed = Bed::new(99 * US);
    bed.run(50, |bed| bed.notified.is_some());
    assert!(bed.sent() < 10 && bed.notified.is_some(), "{}", bed.sent());
    let mut bed = Bed::new(15 * US);
    bed.run(200, |_| false);
    assert!(bed.sent() > 2_000 && bed.notified.is_none(), "{} {:?}", bed.sent(), bed.notified);
}

/// The port is replaced by one with frames that leave elsewhere, and later back by one of the worker's own.
#[test]
fn a_replaced_port_makes_nothing_late_and_loses_and_reorders_no_frame() {
    let mut bed = Bed::new(500 * US);
    bed.run(50, |bed| bed.notified.is_some());
    let mut deferred = bed.port(0);
    // Slower than the pod sends: a frame for each second try.
    deferred.set_completion(Completion::AtReap { at_most: 1 });
    bed.world.outbox.send(Command::ReplacePort(SLOW, deferred)).unwrap();
    bed.run(5, |bed| bed.back == 1);
    let (late, sent) = (bed.late(), bed.sent());
    assert_eq!(bed.back, 1, "the slow port came back");
    bed.run(200, |_| false);
    assert!(bed.sent() > sent + 500, "{}", bed.sent());
    assert_eq!(bed.late(), late);
    let at = ktsn_time::Monotonic::from_nanos(bed.world.clocks.at());
    assert!(bed.world.worker.ports.get(1).is_some_and(|state| !state.budget.is_slow(at)));

    // Back, while frames are on their way: they leave first.
    let state = bed.world.worker.ports.get_mut(1).unwrap();
    assert!(state.port.occupancy().in_flight > 1);
    state.port.set_completion(Completion::AtReap { at_most: 0 });
    let direct = bed.port(US);
    bed.world.outbox.send(Command::ReplacePort(SLOW, direct)).unwrap();
    let sent = bed.sent();
    bed.run(5, |_| false);
    assert!(bed.back == 1 && bed.sent() < sent + 16, "the thread has not given back what it has");
    let state = bed.world.worker.ports.get_mut(1).unwrap();
    state.port.set_completion(Completion::AtReap { at_most: 1 });
    bed.run(50, |bed| bed.back == 2);
    assert_eq!(bed.back, 2);
    bed.run(50, |_| false);
    assert!(bed.sent() > sent + 100);

    let left = bed.left.lock().unwrap().clone();
    assert!(left.is_sorted_by(|one, next| one < next), "once each, in order");
    let on_the_way = 64 + bed.world.worker.ports.get(1).map_or(0, |state| usize::from(state.retry.is_some()));
    let ends = left.len() + bed.dropped() as usize;
    assert!(ends <= bed.next as usize && ends + on_the_way >= bed.next as usize, "{ends} of {}", bed.next);
    assert_eq!(bed.stats.sent.load(SeqCst), left.len() as u64);
    assert_eq!(bed.stats.dropped[usize::from(DropReason::Bug.number())].load(SeqCst), 0);
}

/// A port that goes with its successor gives both back.
#[test]
fn a_port_that_goes_takes_its_successor_along() {
    let mut bed = Bed::new(0);
    let mut deferred = bed.port(0);
    deferred.set_completion(Completion::AtReap { at_most: 0 });
    bed.world.outbox.send(Command::ReplacePort(SLOW, deferred)).unwrap();
    bed.run(5, |bed| bed.sent() > 3);
    for _ in 0..2 {
        let direct = bed.port(0);
        bed.world.outbox.send(Command::ReplacePort(SLOW, direct)).unwrap();
    }
    bed.run(5, |_| false);
    assert_eq!(bed.back, 2, "the first port, and the successor that another one took the place of");
    bed.world.outbox.send(Command::RemovePort(SLOW)).unwrap();
    bed.run(5, |bed| bed.back == 4);
    assert_eq!(bed.back, 4);
}

/// Hand-overs within the budget, without end: a frame of the uplink waits for one of them, not for a whole turn.
#[test]
fn a_busy_interface_costs_a_frame_of_the_uplink_one_hand_over() {
    let mut bed = Bed::new(19 * US);
    bed.run(200, |_| false);
    let errors = bed.world.stats.transmit_error.snapshot();
    assert!(bed.notified.is_none() && bed.sent() > 2_000, "{} left by the interface", bed.sent());
    assert!(
        errors.len() > 190 && errors.max() < 40 * US,
        "{} frames, {} ns late",
        errors.len(),
        errors.max()
    );
}
