// SPDX-License-Identifier: Apache-2.0
//! Properties that relate several runs of one port: polled or slept, shifted, split, flooded.
//!
//! In: a way to make a port and a drawn world. Out: `Err` says what differs. [`jumping_equals_polling`] proves that
//! no `WakeAt` is too late or too early, whatever the reference believes.

use crate::machines::Machines;
use crate::port::{ClassSetup, Order, Port, Setup};
use crate::properties::Make;
use crate::watch::Verdict;
use crate::world::{
    self, BEGIN, Event, FAST, List, Sent, Step, What, World, advance, begin, list, run, sent, setup,
};
use ktsn_model::LatePolicy;
use ktsn_sched::{Decision, Frame};
use ktsn_time::{Now, Tai, TxTime};
use proptest::prelude::*;

fn same<T: PartialEq + std::fmt::Debug>(what: &str, left: &T, right: &T) -> Verdict {
    if left == right { Ok(()) } else { Err(format!("{what}:\n left {left:?}\nright {right:?}")) }
}

/// Lists, each with the nanoseconds until it is configured.
#[derive(Clone, Debug)]
pub(crate) struct Changes(Vec<(u64, List)>);

pub(crate) fn changes() -> impl Strategy<Value = Changes> {
    prop::collection::vec((0u64..80, list()), 1..4).prop_map(Changes)
}

/// 8.6.9.3: at every nanosecond the status is what the polled state machines show.
pub(crate) fn change_exactly_at_config_change_time(make: Make, changes: &Changes) -> Verdict {
    let setup = Setup { capacity: 1, link_speed: None, hand_over: 0, classes: [ClassSetup::default(); 8] };
    let (mut port, mut machines) = (make(&setup), Machines::new());
    let (mut at, mut changes) = (begin(), changes.0.iter());
    let mut next = changes.next();
    let (mut since, mut configured) = (0, false);
    for _ in 0..500 {
        while let Some((_, list)) = next.filter(|(wait, _)| *wait == since) {
            let admin = list.admin(at);
            port.set_admin(&admin, at);
            machines.config_change(&admin, at.tai.as_nanos());
            (next, since, configured) = (changes.next(), 0, true);
        }
        machines.tick(at.tai.as_nanos());
        let status = port.status(at);
        let seen = (status.states.bits(), status.config_pending, status.config_change_error);
        let wanted = (machines.oper_gate_states, machines.config_pending, machines.config_change_error);
        same(&format!("states, pending, errors at {at:?}"), &seen, &wanted)?;
        if configured {
            same("change time", &status.config_change_time, &Some(machines.config_change_time.into()))?;
        }
        advance(&mut at, 1);
        since += 1;
    }
    Ok(())
}

/// A port with a list (and sometimes another one pending) and the frames that wait at the beginning.
#[derive(Clone, Debug)]
pub(crate) struct Start {
    setup: Setup,
    lists: Vec<List>,
    frames: Vec<Sent>,
}

impl Start {
    fn begin(&self, make: Make) -> Box<dyn Port> {
        let mut port = make(&self.setup);
        for list in &self.lists {
            port.set_admin(&list.admin(begin()), begin());
        }
        for (id, sent) in self.frames.iter().enumerate() {
            let _refused = port.offer(sent.frame(id as u64, begin()), begin());
        }
        port
    }
}

pub(crate) fn polled_worlds() -> impl Strategy<Value = Start> {
    (setup(), prop::collection::vec(list(), 0..3), prop::collection::vec(sent(), 0..10))
        .prop_map(|(setup, lists, frames)| Start { setup, lists, frames })
}

/// Everything that is decided at `at` but waiting; and the wait.
fn decide_all(port: &mut dyn Port, at: Now, seen: &mut Vec<(Now, Decision)>) -> Decision {
    loop {
        let decision = port.decide(at);
        if matches!(decision, Decision::WakeAt { .. } | Decision::Idle) {
            return decision;
        }
        seen.push((at, decision));
    }
}

/// Sleeping until each `WakeAt` decides the same at the same instants as asking at every nanosecond, and each
/// sleep ends with the frame that it was for.
pub(crate) fn jumping_equals_polling(make: Make, start: &Start) -> Verdict {
    const SPAN: u64 = 700;
    let (mut polled, mut by_polling, mut at) = (start.begin(make), Vec::new(), begin());
    for _ in 0..SPAN {
        decide_all(polled.as_mut(), at, &mut by_polling);
        advance(&mut at, 1);
    }
    let (mut jumped, mut by_jumping, mut at) = (start.begin(make), Vec::new(), begin());
    while let Decision::WakeAt { at: wake_at, next } = decide_all(jumped.as_mut(), at, &mut by_jumping) {
        let wait = wake_at.ahead_of(at).get();
        if wait <= 0 {
            return Err(format!("{wake_at:?} has come at {at:?}"));
        }
        advance(&mut at, wait.unsigned_abs());
        if at.monotonic.since(begin().monotonic).get() >= SPAN as i64 {
            break;
        }
        let mut first = jumped.decide(at);
        match &mut first {
            Decision::Transmit { frame, .. } | Decision::Drop { frame, .. } => {
                same("the frame woken for", &frame.id, &next)?;
            }
            other => return Err(format!("woken for {next:?} at {at:?}, got {other:?}")),
        }
        by_jumping.push((at, first));
    }
    same("decisions", &by_jumping, &by_polling)
}

/// A world whose list began in the past, and by how many cycles to shift it.
pub(crate) fn shifted_worlds() -> impl Strategy<Value = (World, u64)> {
    let event = prop_oneof![
        5 => sent().prop_map(Event::Offer),
        5 => Just(Event::DecideAll),
        3 => (1u64..20).prop_map(Event::Advance),
        3 => Just(Event::Sleep),
    ];
    (setup(), list(), prop::collection::vec(event, 1..40), 1u64..60).prop_map(
        |(setup, mut list, mut events, cycles)| {
            list.enabled = true;
            list.base_in = -list.base_in.abs() - 1;
            if list.entries.is_empty() {
                list.entries.push((1, list.cycle));
            }
            events.insert(0, Event::Configure(list));
            (World { setup, events }, cycles)
        },
    )
}

/// TAI moved on by whole cycles, the decisions move along.
pub(crate) fn shift_by_cycles(make: Make, drawn: &(World, u64)) -> Verdict {
    let (world, cycles) = drawn;
    let Some(Event::Configure(list)) = world.events.first() else { return Err("no list".into()) };
    let shift = list.cycle * cycles;
    let here = run(make(&world.setup).as_mut(), world);
    let mut later = list.clone();
    later.base_in -= shift as i64;
    let mut events = vec![Event::StepTai(shift as i64), Event::Configure(later)];
    events.extend(world.events[1..].iter().cloned());
    let moved = World { setup: world.setup.clone(), events };
    let there = run(make(&moved.setup).as_mut(), &moved);
    // The step has two entries of its own; the ids of the frames are one higher.
    let back: Vec<String> = there[2..].iter().map(|step| shown(step, shift, 1)).collect();
    let here: Vec<String> = here.iter().map(|step| shown(step, 0, 0)).collect();
    same("steps", &here[2..].to_vec(), &back[2..].to_vec())
}

/// A step as it would look with TAI `shift` earlier and ids `ids` lower.
fn shown(step: &Step, shift: u64, ids: u64) -> String {
    let tai = |at: Tai| Tai::from_nanos(at.as_nanos().saturating_sub(shift));
    let tx_time = |at: TxTime| match at {
        TxTime::Tai(at) => TxTime::Tai(tai(at)),
        on_monotonic => on_monotonic,
    };
    let moved = |frame: &Frame| {
        let mut frame = *frame;
        frame.id.0 -= ids;
        frame.tx_time = frame.tx_time.map(tx_time);
        frame
    };
    let what = match &step.what {
        What::Offered(frame, result) => {
            format!("{:?} {:?}", moved(frame), result.as_ref().map_err(|refused| refused.reason))
        }
        What::Decided(Decision::Transmit { frame, overrun, late, window }) => {
            let window = window.map(|window| (tai(window.opens_at), tai(window.latest)));
            // A window that reaches back to the start of oper does not move along.
            let latest = window.map(|window| window.1);
            format!("{:?} {overrun:?} {late} {latest:?}", moved(frame))
        }
        What::Decided(Decision::Drop { frame, reason }) => format!("{:?} {reason:?}", moved(frame)),
        What::Decided(Decision::WakeAt { at, next }) => format!("{:?} {}", tx_time(*at), next.0 - ids),
        other => format!("{other:?}"),
    };
    format!("{:?} {:?} {what}", step.at.monotonic, tai(step.at.tai))
}

/// A world, the entry to split and where.
pub(crate) fn split_worlds() -> impl Strategy<Value = (World, usize, u64)> {
    (world::any_world(), any::<prop::sample::Index>(), 1u64..23).prop_map(|(world, index, share)| {
        let entries = match world.events.first() {
            Some(Event::Configure(list)) => list.entries.len().max(1),
            _ => 1,
        };
        (world, index.index(entries), share)
    })
}

/// 8.6.9.2: two entries with the same states are one.
pub(crate) fn splitting_an_entry(make: Make, drawn: &(World, usize, u64)) -> Verdict {
    let (world, index, share) = drawn;
    let mut split = world.clone();
    if let Some(Event::Configure(list)) = split.events.first_mut()
        && let Some(&(states, interval)) = list.entries.get(*index)
        && *share < interval
    {
        list.entries[*index].1 = *share;
        list.entries.insert(*index + 1, (states, interval - share));
    }
    let decided = |world: &World| {
        let steps = run(make(&world.setup).as_mut(), world);
        let keep = |step: Step| match step.what {
            What::Configured(_) => None,
            what => Some(format!("{:?} {what:?}", step.at)),
        };
        steps.into_iter().filter_map(keep).collect::<Vec<_>>()
    };
    same("steps", &decided(world), &decided(&split))
}

/// Frames of the watched class and of the flood, each with when it is sent.
#[derive(Clone, Debug)]
pub(crate) struct Flood {
    watched: Vec<(u64, u32)>,
    flood: Vec<(u64, u32)>,
    hand_over: u64,
    list: Option<List>,
    class: u8,
}

fn sendings(count: usize) -> impl Strategy<Value = Vec<(u64, u32)>> {
    prop::collection::vec((0u64..120, 1u32..12), 1..count)
}

pub(crate) fn flooded_worlds() -> impl Strategy<Value = Flood> {
    (sendings(6), sendings(20), 0u64..5).prop_map(|(watched, flood, hand_over)| Flood {
        watched,
        flood,
        hand_over,
        list: None,
        class: 0,
    })
}

pub(crate) fn exclusive_worlds() -> impl Strategy<Value = Flood> {
    (sendings(6), sendings(20), 0u64..5, (18u64..30, 18u64..30), -50i64..50, prop::sample::select(vec![0, 7]))
        .prop_map(|(watched, flood, hand_over, (ours, theirs), base_in, class)| {
            let entries = vec![(0x08, ours), (0xf7, theirs)];
            let (cycle, extension) = (ours + theirs, 0);
            let list = List { enabled: true, initial: 0, base_in, cycle, extension, entries };
            Flood { watched, flood, hand_over, list: Some(list), class }
        })
}

/// When each watched frame (class 3) is handed over, polled.
fn handed_over(make: Make, flood: &Flood, with_flood: bool) -> Vec<u64> {
    let class = ClassSetup { order: Order::Fifo, ..ClassSetup::default() };
    let setup =
        Setup { capacity: 64, link_speed: Some(FAST), hand_over: flood.hand_over, classes: [class; 8] };
    let (mut port, mut at) = (make(&setup), begin());
    if let Some(list) = &flood.list {
        port.set_admin(&list.admin(at), at);
        // A port that begins with both windows behind it.
        advance(&mut at, 200);
    }
    let mut leaves = vec![u64::MAX; flood.watched.len()];
    for after in 0..900 {
        let sends = |frames: &[(u64, u32)]| -> Vec<(usize, u32)> {
            let due = frames.iter().enumerate().filter(|(_, frame)| frame.0 == after);
            due.map(|(index, frame)| (index, frame.1)).collect()
        };
        if with_flood {
            for (_, octets) in sends(&flood.flood) {
                let sent = Sent { class: flood.class, octets, ..ordinary() };
                port.offer(sent.frame(1_000, at), at).unwrap();
            }
        }
        // After the flood of the same instant: the worst case.
        let mut seen = Vec::new();
        if with_flood {
            decide_all(port.as_mut(), at, &mut seen);
        }
        for (index, octets) in sends(&flood.watched) {
            let sent = Sent { class: 3, octets, ..ordinary() };
            port.offer(sent.frame(index as u64, at), at).unwrap();
        }
        decide_all(port.as_mut(), at, &mut seen);
        for (at, decision) in seen {
            if let Decision::Transmit { frame, .. } = decision
                && frame.id.0 < 1_000
            {
                leaves[frame.id.0 as usize] = at.tai.as_nanos() - BEGIN;
            }
        }
        advance(&mut at, 1);
    }
    leaves
}

/// An untimed frame that tolerates everything.
fn ordinary() -> Sent {
    Sent {
        class: 0,
        attachment: 0,
        tx_time_in: None,
        age: 0,
        octets: 1,
        sdu_octets: 0,
        late: LatePolicy::Send,
        overrun_limit: i64::MAX,
        horizon: i64::MAX,
    }
}

/// Whatever a lower class sends, a frame waits for at most one frame of it, the longest, longer than alone.
pub(crate) fn flood_from_below(make: Make, flood: &Flood) -> Verdict {
    let (alone, flooded) = (handed_over(make, flood, false), handed_over(make, flood, true));
    let longest = flood.flood.iter().map(|frame| u64::from(frame.1)).max().unwrap_or(0);
    for (alone, flooded) in alone.iter().zip(&flooded) {
        if *alone == u64::MAX || flooded.saturating_sub(*alone) > longest {
            return Err(format!("at {flooded} instead of {alone}, bound {longest}"));
        }
    }
    Ok(())
}

/// Whatever the other classes send, even higher ones, a window of one's own is as if one were alone.
pub(crate) fn flood_beside_a_window(make: Make, flood: &Flood) -> Verdict {
    let (alone, flooded) = (handed_over(make, flood, false), handed_over(make, flood, true));
    same("hand-overs", &alone, &flooded)
}
