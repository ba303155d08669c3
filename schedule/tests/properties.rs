// SPDX-License-Identifier: Apache-2.0
//! Text → schedule → text, over random schedules; and the analysis against counting every nanosecond.

use ktsn_model::{AdminPort, GateControlEntry, GateOperation, GateStates, PriorityMap, TrafficClass};
use ktsn_schedule::analysis::{Link, Window, analyse};
use ktsn_schedule::taprio::Clock;
use ktsn_schedule::{Format, Schedule, Taprio, parse, write};
use ktsn_time::{Nanos, Tai};
use proptest::prelude::*;

/// Names as people give them, and as they should not.
fn name() -> impl Strategy<Value = String> {
    prop_oneof![
        "[a-z][a-z0-9 _-]{0,20}[a-z]",
        "[\"'#:{}\\[\\],&*!|>%@`\\\\-]{1,10}",
        Just("true".to_owned()),
        Just("1e3".to_owned()),
        Just("~".to_owned()),
        "\\PC{1,20}",
    ]
    .prop_map(|text| text.trim().to_owned())
    .prop_filter("a name is not empty and holds no control character", |text| {
        !text.is_empty() && !text.chars().any(char::is_control)
    })
}

fn operation() -> impl Strategy<Value = GateOperation> {
    prop_oneof![8 => Just(GateOperation::SetGateStates), 1 => Just(GateOperation::SetAndHoldMac), 1 => Just(GateOperation::SetAndReleaseMac)]
}

/// Parameters without faults.
fn admin() -> impl Strategy<Value = AdminPort> {
    let entry = (operation(), any::<u8>(), 1i64..200_000_000).prop_map(|(operation, states, interval)| {
        GateControlEntry { operation, states: GateStates::from_bits(states), interval: Nanos::new(interval) }
    });
    let list = prop::collection::vec(entry, 0..40);
    (any::<bool>(), any::<u8>(), 0u64..=1 << 62, 0i64..1_000_000, -1_000_000i64..1_000_000, list)
        .prop_map(|(gate_enabled, states, base, extension, more, control_list)| {
            let sum: i64 = control_list.iter().map(|entry| entry.interval.get()).sum();
            let cycle = (sum + more.clamp(-extension, extension)).clamp(50_000, 10_000_000_000);
            AdminPort {
                gate_enabled,
                gate_states: GateStates::from_bits(states),
                base_time: Tai::from_nanos(base),
                cycle_time: Nanos::new(cycle),
                cycle_time_extension: Nanos::new(extension),
                control_list,
            }
        })
        .prop_filter("without faults", |admin| admin.check().is_ok())
}

fn taprio() -> impl Strategy<Value = Taprio> {
    let flags = prop_oneof![Just(None), Just(Some(0)), Just(Some(1)), Just(Some(2))];
    let stab = prop_oneof![
        Just(None),
        Just(Some("overhead 24".to_owned())),
        Just(Some("mpu 64 linklayer atm".to_owned()))
    ];
    (stab, prop::option::of(1u16..), prop::option::of(1u8..=8), flags, 1u32.., 1u16..1000).prop_map(
        |(stab, handle, num_tc, flags, delay, width)| {
            let count = num_tc.unwrap_or_default();
            Taprio {
                device: Some("eth0".into()),
                parent: "root".into(),
                handle: handle.map(|major| format!("{major:x}:")),
                stab,
                num_tc,
                queues: (0..count).map(|class| (width, u16::from(class) * width)).collect(),
                clock: (flags != Some(2)).then_some(Clock::Tai),
                flags,
                txtime_delay: (flags == Some(1)).then_some(delay),
                is_preemptible: (0..count).map(|class| flags == Some(2) && class % 2 == 0).collect(),
            }
        },
    )
}

prop_compose! {
    fn schedule()(
        admin in admin(),
        names in prop::array::uniform8(prop::option::of(name())),
        name in prop::option::of(name()),
        description in prop::option::of(name()),
        link_speed in prop::option::of(1_000u64..=10_000_000_000_000),
        mtu in prop::option::of(1u32..=65_535),
        hand_over in prop::option::of(0i64..=10_000_000_000),
        map in prop::option::of(prop::array::uniform16(0u8..8)),
        queue_max_sdu in prop::array::uniform8(prop::option::of(1u32..)),
        taprio in prop::option::of(taprio()),
    ) -> Schedule {
        Schedule {
            name, description, link_speed, mtu,
            hand_over: hand_over.map(Nanos::new),
            priority_map: map.and_then(|map| PriorityMap::new(map).ok()),
            class_names: names,
            queue_max_sdu,
            admin,
            taprio,
        }
    }
}

/// The schedule as a command can say it: only what it has room for.
fn for_a_command(mut schedule: Schedule) -> Schedule {
    schedule.admin.gate_enabled = true;
    schedule.admin.gate_states = GateStates::ALL_OPEN;
    // tc has room for some twenty entries, and Linux for a cycle of two seconds.
    schedule.admin.control_list.truncate(20);
    for entry in &mut schedule.admin.control_list {
        entry.interval = Nanos::new(entry.interval.get().min(50_000_000));
    }
    schedule.admin.cycle_time = schedule.admin.cycle_time.min(Nanos::new(i64::from(i32::MAX)));
    let taprio = schedule.taprio.get_or_insert_default();
    taprio.device = Some("eth0".into());
    if let Some(num_tc) = taprio.num_tc {
        let map = schedule.priority_map.unwrap_or_default();
        let class = |priority| map.class(ktsn_model::Priority::capped(priority)).get().min(num_tc - 1);
        let classes: Vec<u8> = (0..16).map(class).collect();
        schedule.priority_map = PriorityMap::new(classes.try_into().expect("sixteen")).ok();
        for limit in &mut schedule.queue_max_sdu[usize::from(num_tc)..] {
            *limit = None;
        }
    } else {
        // tc ignores a map without the number of classes.
        schedule.priority_map = None;
    }
    schedule
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn yaml_and_json_read_as_they_were_written(schedule in schedule()) {
        for format in [Format::Yaml, Format::Json] {
            let text = write(&schedule, format).expect("everything can be said");
            prop_assert_eq!(parse(&text, format), Ok(schedule.clone()), "{}", text);
            prop_assert_eq!(parse(&text, Format::Auto), Ok(schedule.clone()), "{}", text);
        }
    }

    #[test]
    fn a_command_reads_as_it_was_written(schedule in schedule().prop_filter("a list", |of| !of.admin.control_list.is_empty())) {
        let schedule = for_a_command(schedule);
        let text = write(&schedule, Format::Taprio).expect("it has room for that");
        prop_assert_eq!(parse(&text, Format::Taprio), Ok(schedule.clone()), "{}", text);
        prop_assert_eq!(parse(&text, Format::Auto), Ok(schedule.clone()), "{}", text);
        // And through the other formats, without loss.
        let yaml = write(&schedule, Format::Yaml).expect("everything can be said");
        let again = write(&parse(&yaml, Format::Yaml).expect("it was written by us"), Format::Taprio);
        prop_assert_eq!(again.as_deref(), Ok(text.as_str()));
    }

    /// What a command cannot say is named, and only that.
    #[test]
    fn what_a_command_cannot_say_is_an_error_that_names_it(schedule in schedule()) {
        let list = &schedule.admin.control_list;
        let named = match write(&schedule, Format::Taprio) {
            Ok(_) => String::new(),
            Err(faults) => faults.to_string(),
        };
        // How many entries there is room for depends on the options: `judged.rs` has the numbers.
        let has_no_room = list.len() > 20 && named.contains("tc has room for 1024 octets");
        let expected = [
            ("gate-enabled", !schedule.admin.gate_enabled),
            ("admin-gate-states", schedule.admin.gate_states != GateStates::ALL_OPEN),
            ("admin-control-list", list.is_empty() || has_no_room),
            ("taprio.device", schedule.taprio.is_none()),
            ("admin-cycle-time", schedule.admin.cycle_time.get() > i64::from(i32::MAX)),
        ];
        for (leaf, is_expected) in expected {
            let is_named = named.lines().any(|line| {
                let path = line.split(": ").next().unwrap_or_default();
                path == leaf || path.ends_with(&format!(".{leaf}"))
            });
            prop_assert_eq!(is_named, is_expected, "{}: {}", leaf, named);
        }
    }

    #[test]
    fn windows_and_shares_are_those_of_every_nanosecond(
        entries in prop::collection::vec((any::<u8>(), 1i64..12), 1..9),
        more in -8i64..8,
        sdu in 1u32..400,
        hand_over in 0i64..4,
    ) {
        let sum: i64 = entries.iter().map(|(_, interval)| interval).sum();
        let cycle = (sum + more).max(1);
        let control_list = entries.iter().map(|(states, interval)| GateControlEntry {
            operation: GateOperation::SetGateStates,
            states: GateStates::from_bits(*states),
            interval: Nanos::new(*interval),
        });
        let admin = AdminPort {
            gate_enabled: true,
            cycle_time: Nanos::new(cycle),
            control_list: control_list.collect(),
            ..AdminPort::default()
        };
        let schedule = Schedule { admin, mtu: Some(sdu), ..Schedule::default() };
        // At 1 Tbit/s a frame takes one to four nanoseconds.
        let link = Link { speed: Some(1_000_000_000_000), mtu: sdu, hand_over: Nanos::new(hand_over) };
        let analysis = analyse(&schedule, &link);
        let states: Vec<u8> = (0..cycle).map(|at| states_at(&entries, at)).collect();
        for class in &analysis.classes {
            let bit = 1u8 << class.class.get();
            let open: Vec<bool> = states.iter().map(|states| states & bit != 0).collect();
            let alone = states.iter().filter(|states| **states == bit).count() as i64;
            let windows = windows_of(&open);
            prop_assert_eq!(class.is_always_open, open.iter().all(|is| *is));
            prop_assert_eq!(class.open.get(), open.iter().filter(|is| **is).count() as i64);
            prop_assert_eq!(class.exclusive.get(), alone);
            prop_assert_eq!(&class.windows, &windows);
            let guard = class.guard_band.expect("the speed is known").get();
            prop_assert_eq!(guard, hand_over + ((i64::from(sdu) + 42).max(84) * 8 + 999) / 1000);
            // An instant is usable if the gate stays open for a guard band after it.
            let usable = (0..cycle).filter(|at| {
                class.is_always_open || (0..=guard).all(|on| open[((at + on) % cycle) as usize] || on == guard)
                    && open[*at as usize] && room(&windows, *at, cycle) > guard
            });
            prop_assert_eq!(class.usable.expect("the speed is known").get(), usable.count() as i64);
        }
    }
}

/// The list by the clause: entries one after the other, the last one until the cycle's end.
fn states_at(entries: &[(u8, i64)], at: i64) -> u8 {
    let mut end = 0;
    for (states, interval) in entries {
        end += interval;
        if at < end {
            return *states;
        }
    }
    entries.last().map_or(0, |(states, _)| *states)
}

/// Maximal runs of a circle, by where they begin.
fn windows_of(open: &[bool]) -> Vec<Window> {
    let count = open.len();
    let window = |opens_at: usize, length: usize| Window {
        opens_at: Nanos::new(opens_at as i64),
        length: Nanos::new(length as i64),
    };
    if open.iter().all(|is| *is) {
        return vec![window(0, count)];
    }
    let begins = (0..count).filter(|at| open[*at] && !open[(at + count - 1) % count]);
    begins.map(|at| window(at, (0..count).take_while(|on| open[(at + on) % count]).count())).collect()
}

/// How long the window goes on after an instant.
fn room(windows: &[Window], at: i64, cycle: i64) -> i64 {
    let left = windows.iter().filter_map(|window| {
        let into = (at - window.opens_at.get()).rem_euclid(cycle);
        (into < window.length.get()).then(|| window.length.get() - into)
    });
    left.max().unwrap_or(0)
}

#[test]
fn a_class_is_used_when_a_priority_leads_to_it() {
    let map = PriorityMap::new([2, 2, 1, 0, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2]).expect("classes");
    let schedule = Schedule { priority_map: Some(map), ..Schedule::default() };
    let used: Vec<bool> =
        (0..8).map(|class| schedule.is_class_used(TrafficClass::new(class).expect("a class"))).collect();
    assert_eq!(used, [true, true, true, false, false, false, false, false]);
}
