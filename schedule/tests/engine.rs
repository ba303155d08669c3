// SPDX-License-Identifier: Apache-2.0
//! What the analysis says, against what transmission selection does with the same schedule.

use ktsn_model::{
    AdminPort, DropReason, GateControlEntry, GateOperation, GateStates, LatePolicy, TrafficClass,
};
use ktsn_sched::{Decision, Frame, FrameId, GateProgram, TimeAware, TimeAwareOptions};
use ktsn_schedule::Schedule;
use ktsn_schedule::analysis::{Analysis, ClassUse, Link, OVERHEAD_OCTETS, WIRE_OCTETS_MIN, Warning, analyse};
use ktsn_time::{Monotonic, Nanos, Now, Tai, TxTime};
use proptest::prelude::*;

const SPEED: u64 = 1_000_000_000;

#[derive(Clone, Debug)]
struct World {
    schedule: Schedule,
    link: Link,
    analysis: Analysis,
}

prop_compose! {
    fn world()(
        entries in prop::collection::vec((any::<u8>(), 1i64..60_000), 1..10),
        more in -20_000i64..20_000,
        sdu in 1u32..3_000,
        hand_over in 0i64..20_000,
    ) -> World {
        let sum: i64 = entries.iter().map(|(_, interval)| interval).sum();
        let control_list = entries.into_iter().map(|(states, interval)| GateControlEntry {
            operation: GateOperation::SetGateStates,
            states: GateStates::from_bits(states),
            interval: Nanos::new(interval),
        });
        let admin = AdminPort {
            gate_enabled: true,
            cycle_time: Nanos::new((sum + more).max(50_000)),
            cycle_time_extension: Nanos::from_seconds(1),
            control_list: control_list.collect(),
            ..AdminPort::default()
        };
        let schedule = Schedule { admin, ..Schedule::default() };
        let link = Link { speed: Some(SPEED), mtu: sdu, hand_over: Nanos::new(hand_over) };
        let analysis = analyse(&schedule, &link);
        World { schedule, link, analysis }
    }
}

fn at(nanos: i64) -> Now {
    Now { tai: Tai::from_nanos(nanos as u64), monotonic: Monotonic::from_nanos(nanos as u64) }
}

impl World {
    /// Transmission selection with this schedule from 0 on, and so many of the class's largest frames.
    fn engine(&self, class: &ClassUse, frames_count: u64) -> TimeAware {
        let mut engine = TimeAware::new(TimeAwareOptions {
            link_speed: self.link.speed,
            hand_over: self.link.hand_over,
            ..TimeAwareOptions::gates(1_024, 1)
        });
        let program = GateProgram::new(&self.schedule.admin).expect("a program");
        assert!(engine.set_admin(Box::new(program), at(0)).is_none());
        for id in 0..frames_count {
            engine.offer(frame(class.class, class.sdu_max, id), at(0)).expect("room");
        }
        engine
    }
}

fn frame(class: TrafficClass, sdu_octets: u32, id: u64) -> Frame {
    let wire_octets = (u64::from(sdu_octets) + OVERHEAD_OCTETS).max(WIRE_OCTETS_MIN) as u32;
    Frame {
        id: FrameId(id),
        attachment: 0,
        class,
        tx_time: None,
        pushed_at: Monotonic::ZERO,
        wire_octets,
        sdu_octets,
        late: LatePolicy::Send,
        overrun_limit: Nanos::MAX,
        horizon: Nanos::MAX,
    }
}

/// The first instant from `now` on at which the largest frame may start, by the windows; a cycle is enough to look at.
fn first_start(class: &ClassUse, cycle: i64, now: i64) -> Option<i64> {
    let guard = class.guard_band.expect("a speed").get();
    if class.is_always_open {
        return Some(now);
    }
    let base = now / cycle - 1;
    let starts = class.windows.iter().filter(|window| window.length.get() >= guard).flat_map(|window| {
        (base..base + 4).filter_map(move |number| {
            let opens = number * cycle + window.opens_at.get();
            let latest = opens + window.length.get() - guard;
            (latest >= now).then_some(opens.max(now))
        })
    });
    starts.min()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// 8.6.8.4, 8.6.9.2: the gate is open, and the frame ends before it closes.
    #[test]
    fn a_largest_frame_leaves_exactly_where_it_is_usable(world in world(), into in 0i64..1 << 40) {
        let cycle = world.analysis.cycle_time.get();
        // A window across the first cycle's start has not been open before it.
        let now = cycle * 2 + into % cycle;
        for class in &world.analysis.classes {
            let decision = world.engine(class, 1).decide(at(now));
            match first_start(class, cycle, now) {
                Some(start) if start == now => {
                    prop_assert!(matches!(decision, Decision::Transmit { .. }), "{decision:?} at {now}: {class:?}");
                }
                Some(start) => {
                    let expected = TxTime::Tai(Tai::from_nanos(start as u64));
                    let woken = matches!(decision, Decision::WakeAt { at, .. } if at == expected);
                    prop_assert!(woken, "{decision:?} at {now}, expected {start}: {class:?}");
                }
                None => {
                    let is_dropped =
                        matches!(decision, Decision::Drop { reason: DropReason::GateNeverFits, .. });
                    prop_assert!(is_dropped, "{decision:?} at {now}: {class:?}");
                    let is_warned = world.analysis.warnings.iter().any(|warning| match warning {
                        Warning::NeverOpens(of) | Warning::NeverFits(of, ..) => *of == class.class,
                        _ => false,
                    });
                    prop_assert!(is_warned, "{:?}", world.analysis.warnings);
                }
            }
        }
    }

    /// The service data unit that a warning names fits, and one octet more does not.
    #[test]
    fn what_a_warning_says_fits_is_the_largest_that_does(world in world()) {
        for warning in &world.analysis.warnings {
            let Warning::NeverFits(class, _, fits) = warning else { continue };
            let class = &world.analysis.classes[usize::from(class.get())];
            let now = world.analysis.cycle_time.get() * 2;
            let is_dropped = |sdu| {
                let mut engine = world.engine(class, 0);
                engine.offer(frame(class.class, sdu, 0), at(0)).expect("room");
                matches!(engine.decide(at(now)), Decision::Drop { .. })
            };
            match fits {
                Some(sdu) => prop_assert!(!is_dropped(*sdu) && is_dropped(*sdu + 1), "{warning}"),
                None => prop_assert!(is_dropped(1), "{warning}"),
            }
        }
    }

    /// One class alone, asked at every instant it named: so many frames leave in a cycle.
    #[test]
    fn as_many_frames_leave_in_a_cycle_as_the_analysis_counts(world in world()) {
        let cycle = world.analysis.cycle_time.get();
        for class in world.analysis.classes.iter().filter(|class| !class.is_always_open) {
            let mut engine = world.engine(class, 1_024);
            // From the first opening of the third cycle, so that no window is cut.
            let Some(opens_at) = class.windows.first().map(|window| window.opens_at.get()) else { continue };
            let (begin, end) = (cycle * 2 + opens_at, cycle * 3 + opens_at);
            let (mut now, mut left_count) = (begin, 0);
            while now < end {
                match engine.decide(at(now)) {
                    Decision::Transmit { .. } => left_count += 1,
                    Decision::WakeAt { at: TxTime::Tai(at), .. } => now = at.as_nanos() as i64,
                    Decision::WakeAt { at: TxTime::Monotonic(at), .. } => now = at.as_nanos() as i64,
                    Decision::Drop { .. } => break,
                    Decision::Idle => panic!("frames enough"),
                }
            }
            prop_assert_eq!(Some(left_count), class.frames_count, "{:?}", class);
        }
    }
}
