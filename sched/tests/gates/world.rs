// SPDX-License-Identifier: Apache-2.0
//! Random worlds: gate control lists, frames and what happens to a port, and the run of one.
//!
//! In: draws. Out: a [`World`] and, for one port, the [`Step`]s that it took. Spans are nanoseconds; the link
//! mostly has 8 Gbit/s, so that an octet takes one.

use crate::port::{ClassSetup, Order, Port, Setup, now};
use ktsn_model::{AdminPort, GateControlEntry, GateOperation, GateStates, LatePolicy, TrafficClass};
use ktsn_sched::{Decision, Frame, FrameId, Refused};
use ktsn_time::{Monotonic, Nanos, Now, Tai, TxTime};
use proptest::prelude::*;
use std::fmt;

/// Where the clocks begin, so that steps back and bases in the past have room.
pub(crate) const BEGIN: u64 = 10_000_000;

/// Octets that take one nanosecond each.
pub(crate) const FAST: u64 = 8_000_000_000;

/// A gate control list whose base time is relative to the instant of its configuration.
#[derive(Clone, Debug)]
pub(crate) struct List {
    pub(crate) enabled: bool,
    pub(crate) initial: u8,
    pub(crate) base_in: i64,
    pub(crate) cycle: u64,
    pub(crate) extension: u64,
    pub(crate) entries: Vec<(u8, u64)>,
}

impl List {
    pub(crate) fn admin(&self, at: Now) -> AdminPort {
        let entry = |&(states, interval): &(u8, u64)| GateControlEntry {
            operation: GateOperation::ALL[usize::from(states) % 3],
            states: GateStates::from_bits(states),
            interval: Nanos::new(interval as i64),
        };
        AdminPort {
            gate_enabled: self.enabled,
            gate_states: GateStates::from_bits(self.initial),
            base_time: at.tai.saturating_add(Nanos::new(self.base_in)),
            cycle_time: Nanos::new(self.cycle as i64),
            cycle_time_extension: Nanos::new(self.extension as i64),
            control_list: self.entries.iter().map(entry).collect(),
        }
    }
}

/// A frame, with times relative to the instant of the offer.
#[derive(Clone, Debug)]
pub(crate) struct Sent {
    pub(crate) class: u8,
    pub(crate) attachment: u32,
    /// Nanoseconds ahead, and whether on TAI.
    pub(crate) tx_time_in: Option<(i64, bool)>,
    pub(crate) age: i64,
    pub(crate) octets: u32,
    pub(crate) sdu_octets: u32,
    pub(crate) late: LatePolicy,
    pub(crate) overrun_limit: i64,
    pub(crate) horizon: i64,
}

impl Sent {
    pub(crate) fn frame(&self, id: u64, at: Now) -> Frame {
        let tx_time = self.tx_time_in.map(|(span, on_tai)| match on_tai {
            true => TxTime::Tai(at.tai.saturating_add(Nanos::new(span))),
            false => TxTime::Monotonic(at.monotonic.saturating_add(Nanos::new(span))),
        });
        Frame {
            id: FrameId(id),
            attachment: self.attachment,
            class: TrafficClass::new(self.class).unwrap(),
            tx_time,
            pushed_at: at.monotonic.saturating_sub(Nanos::new(self.age)),
            wire_octets: self.octets,
            sdu_octets: self.sdu_octets,
            late: self.late,
            overrun_limit: Nanos::new(self.overrun_limit),
            horizon: Nanos::new(self.horizon),
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) enum Event {
    Offer(Sent),
    Decide,
    /// Everything that leaves now.
    DecideAll,
    Remove(u32),
    Advance(u64),
    /// To the instant of the last `WakeAt`.
    Sleep,
    StepTai(i64),
    Configure(List),
    HandOver(u64),
    LinkSpeed(Option<u64>),
    Classes(Box<[ClassSetup; 8]>),
}

#[derive(Clone)]
pub(crate) struct World {
    pub(crate) setup: Setup,
    pub(crate) events: Vec<Event>,
}

impl fmt::Debug for World {
    /// An event a line: a shrunken world is read by people.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:?}", self.setup)?;
        self.events.iter().enumerate().try_for_each(|(id, event)| writeln!(f, "  {id}: {event:?}"))
    }
}

/// Something that happened to a port, and when.
#[derive(Clone, Debug)]
pub(crate) enum What {
    Offered(Frame, Result<(), Refused>),
    Decided(Decision),
    Removed(u32, Vec<Frame>),
    Configured(AdminPort),
    HandOver(u64),
    LinkSpeed(Option<u64>),
    Classes([ClassSetup; 8]),
    Stepped,
    /// So many frames are queued.
    Queued(usize),
}

#[derive(Clone, Debug)]
pub(crate) struct Step {
    pub(crate) at: Now,
    pub(crate) what: What,
}

pub(crate) fn advance(at: &mut Now, span: u64) {
    *at = now(at.monotonic.as_nanos() + span, at.tai.as_nanos() + span);
}

pub(crate) fn step_tai(at: &mut Now, span: i64) {
    at.tai = Tai::from_nanos(at.tai.as_nanos().saturating_add_signed(span));
}

pub(crate) fn begin() -> Now {
    // Apart, so that a value on the wrong clock shows.
    Now { tai: Tai::from_nanos(BEGIN), monotonic: Monotonic::from_nanos(BEGIN / 2 + 1) }
}

/// What `port` does in `world`; every step is followed by what is queued.
pub(crate) fn run(port: &mut dyn Port, world: &World) -> Vec<Step> {
    let (mut at, mut steps, mut wake_in) = (begin(), Vec::new(), 0);
    for (id, event) in world.events.iter().enumerate() {
        let what = match event {
            Event::Offer(sent) => {
                let frame = sent.frame(id as u64, at);
                What::Offered(frame, port.offer(frame, at))
            }
            Event::Decide | Event::DecideAll => loop {
                let decision = port.decide(at);
                let is_last = matches!(decision, Decision::WakeAt { .. } | Decision::Idle);
                if let Decision::WakeAt { at: wake_at, .. } = decision {
                    wake_in = wake_at.ahead_of(at).get().max(0);
                }
                if is_last || matches!(event, Event::Decide) {
                    break What::Decided(decision);
                }
                steps.push(Step { at, what: What::Decided(decision) });
            },
            Event::Remove(attachment) => What::Removed(*attachment, port.remove_attachment(*attachment)),
            Event::Configure(list) => {
                let admin = list.admin(at);
                port.set_admin(&admin, at);
                What::Configured(admin)
            }
            Event::HandOver(span) => {
                port.set_hand_over(*span);
                What::HandOver(*span)
            }
            Event::LinkSpeed(speed) => {
                port.set_link_speed(*speed);
                What::LinkSpeed(*speed)
            }
            Event::Classes(classes) => {
                port.set_classes(**classes);
                What::Classes(**classes)
            }
            Event::Advance(span) => {
                advance(&mut at, *span);
                continue;
            }
            Event::Sleep => {
                advance(&mut at, wake_in.unsigned_abs());
                wake_in = 0;
                continue;
            }
            Event::StepTai(span) => {
                step_tai(&mut at, *span);
                What::Stepped
            }
        };
        steps.push(Step { at, what });
        steps.push(Step { at, what: What::Queued(port.len()) });
    }
    steps
}

fn states() -> impl Strategy<Value = u8> {
    // Mostly classes 0 and 7 (which most frames have), often all open or all closed.
    prop_oneof![
        4 => prop::sample::select(vec![0x00u8, 0x01, 0x80, 0x81]),
        3 => Just(0xff),
        2 => any::<u8>(),
    ]
}

/// Lists of a few nanoseconds, shorter or longer than their cycle, some disabled or empty.
pub(crate) fn list() -> impl Strategy<Value = List> {
    (
        prop::bool::weighted(0.92),
        states(),
        prop_oneof![3 => -200i64..200, 2 => -3i64..4, 1 => 0i64..40],
        (-8i64..9, prop::bool::weighted(0.5)),
        prop_oneof![2 => Just(0u64), 1 => 0u64..40],
        prop::collection::vec((states(), prop_oneof![3 => 1u64..24, 1 => 24u64..90]), 0..6),
    )
        .prop_map(|(enabled, initial, base_in, (more, exact), extension, entries)| {
            let sum: u64 = entries.iter().map(|entry| entry.1).sum();
            let cycle = if exact { sum } else { sum.saturating_add_signed(more) };
            List { enabled, initial, base_in, cycle: cycle.max(1), extension, entries }
        })
}

pub(crate) fn sent() -> impl Strategy<Value = Sent> {
    let asks = prop_oneof![
        3 => Just(None),
        6 => (-12i64..60, any::<bool>()).prop_map(Some),
    ];
    let late = prop::sample::select(vec![
        LatePolicy::ByClock,
        LatePolicy::ByClock,
        LatePolicy::Drop,
        LatePolicy::Send,
        LatePolicy::Deadline,
    ]);
    let class = prop_oneof![3 => prop::sample::select(vec![0u8, 7]), 1 => 0u8..8];
    let overrun_limit = prop_oneof![3 => Just(i64::MAX), 2 => -1i64..30];
    let horizon = prop_oneof![6 => Just(i64::MAX), 1 => 20i64..60];
    let octets = prop_oneof![4 => 1u32..9, 1 => 1u32..40];
    (class, 0u32..3, asks, -4i64..16, octets, 0u32..20, late, (overrun_limit, horizon)).prop_map(
        |(class, attachment, tx_time_in, age, octets, sdu_octets, late, (overrun_limit, horizon))| Sent {
            class,
            attachment,
            tx_time_in,
            age,
            octets,
            sdu_octets,
            late,
            overrun_limit,
            horizon,
        },
    )
}

pub(crate) fn classes() -> impl Strategy<Value = [ClassSetup; 8]> {
    let one = (any::<bool>(), prop::option::weighted(0.3, 5u32..20)).prop_map(|(fifo, queue_max_sdu)| {
        let order = if fifo { Order::Fifo } else { Order::TxTime };
        ClassSetup { order, queue_max_sdu, idle_slope: None }
    });
    prop::array::uniform8(one)
}

pub(crate) fn link_speed() -> impl Strategy<Value = Option<u64>> {
    prop_oneof![5 => Just(Some(FAST)), 2 => Just(None), 2 => (1_000_000_000u64..90_000_000_000).prop_map(Some)]
}

pub(crate) fn setup() -> impl Strategy<Value = Setup> {
    (prop_oneof![9 => Just(24usize), 1 => 0usize..4], link_speed(), 0u64..4, classes()).prop_map(
        |(capacity, link_speed, hand_over, classes)| Setup { capacity, link_speed, hand_over, classes },
    )
}

/// What may happen where clocks only run, and the port's parameters stay.
fn steady_event() -> impl Strategy<Value = Event> {
    prop_oneof![
        12 => sent().prop_map(Event::Offer).boxed(),
        5 => Just(Event::Decide),
        8 => Just(Event::DecideAll),
        5 => (1u64..12).prop_map(Event::Advance),
        1 => (12u64..300).prop_map(Event::Advance),
        6 => Just(Event::Sleep),
        1 => (0u32..3).prop_map(Event::Remove),
        2 => list().prop_map(Event::Configure).boxed(),
    ]
}

/// Everything that may happen.
pub(crate) fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        50 => steady_event().boxed(),
        2 => (-60i64..60).prop_map(Event::StepTai),
        1 => (0u64..5).prop_map(Event::HandOver),
        1 => link_speed().prop_map(Event::LinkSpeed),
        1 => classes().prop_map(|classes| Event::Classes(Box::new(classes))).boxed(),
    ]
}

fn world_of(event: impl Strategy<Value = Event>) -> impl Strategy<Value = World> {
    (setup(), list(), prop::collection::vec(event, 1..50)).prop_map(|(setup, list, mut events)| {
        events.insert(0, Event::Configure(list));
        World { setup, events }
    })
}

/// Worlds in which everything may happen, clock steps included.
pub(crate) fn any_world() -> impl Strategy<Value = World> {
    world_of(event())
}

/// Worlds with steady clocks and parameters.
pub(crate) fn steady_world() -> impl Strategy<Value = World> {
    world_of(steady_event())
}

/// [`steady_world`] with credits in two classes, on a link whose octets take whole nanoseconds. Credit is seen at
/// decisions only: nothing is removed, and frames are due at their arrival or later.
pub(crate) fn shaped_world() -> impl Strategy<Value = World> {
    (steady_world(), 500_000_000..FAST, 500_000_000..FAST).prop_map(|(mut world, upper, lower)| {
        world.setup.link_speed = Some(FAST);
        world.setup.classes[7].idle_slope = Some(upper);
        world.setup.classes[0].idle_slope = Some(lower);
        let lists = world.events.split_off(1);
        for event in &mut world.events {
            if let Event::Configure(list) = event {
                list.base_in = 0;
                list.initial = 0xff;
                list.entries.iter_mut().for_each(|entry| entry.1 += 40);
                list.cycle += 40 * list.entries.len() as u64;
                if let Some(entry) = list.entries.first_mut() {
                    entry.0 = 0xff;
                }
            }
        }
        world.events.extend(lists.into_iter().filter_map(|event| match event {
            Event::Remove(_) => None,
            Event::Offer(sent) => {
                let tx_time_in = sent.tx_time_in.map(|(span, on_tai)| (span.max(0), on_tai));
                Some(Event::Offer(Sent { tx_time_in, age: 0, ..sent }))
            }
            other => Some(other),
        }));
        world
    })
}

/// Spans, octets and speeds as they are met: cycles of 50 µs and more, 100 Mbit/s to 10 Gbit/s, everything that
/// [`any_world`] draws stretched and its octets too.
pub(crate) fn big_world() -> impl Strategy<Value = World> {
    let speed = prop::sample::select(vec![100_000_000u64, 1_000_000_000, 2_500_000_000, 10_000_000_000]);
    (any_world(), speed, 2_000i64..7_000).prop_map(|(mut world, speed, stretch)| {
        world.setup.link_speed = world.setup.link_speed.map(|_| speed);
        world.setup.hand_over *= 1_900;
        for event in &mut world.events {
            stretch_event(event, stretch, speed);
        }
        world
    })
}

fn stretch_event(event: &mut Event, stretch: i64, speed: u64) {
    let longer = |span: &mut u64| *span *= stretch.unsigned_abs();
    match event {
        Event::Offer(sent) => {
            sent.octets = 64 + sent.octets * 37;
            if let Some((span, _)) = &mut sent.tx_time_in {
                *span *= stretch;
            }
            sent.age *= stretch;
            sent.overrun_limit = sent.overrun_limit.saturating_mul(stretch);
            sent.horizon = sent.horizon.saturating_mul(stretch);
        }
        Event::Advance(span) | Event::HandOver(span) => longer(span),
        Event::StepTai(span) => *span *= stretch,
        Event::LinkSpeed(other) => *other = other.map(|_| speed),
        Event::Configure(list) => {
            list.base_in *= stretch;
            longer(&mut list.cycle);
            longer(&mut list.extension);
            list.entries.iter_mut().for_each(|entry| longer(&mut entry.1));
        }
        Event::Decide | Event::DecideAll | Event::Remove(_) | Event::Sleep | Event::Classes(_) => {}
    }
}
