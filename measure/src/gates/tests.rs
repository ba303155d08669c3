// SPDX-License-Identifier: Apache-2.0
//! The calculation against one that looks at every nanosecond, and the verdicts case by case.
use super::*;
use crate::watchdog::{GAP_MIN, Gaps, Look, Proof};
use ktsn_model::{GateControlEntry, GateOperation, GateStates};
use proptest::prelude::*;

fn class(number: u8) -> TrafficClass {
    TrafficClass::new(number).unwrap()
}

fn tai(nanos: u64) -> Tai {
    Tai::from_nanos(nanos)
}

fn port(base: u64, cycle: i64, extension: i64, entries: &[(u8, i64)]) -> AdminPort {
    AdminPort {
        gate_enabled: true,
        gate_states: GateStates::from_bits(0x0f),
        base_time: tai(base),
        cycle_time: Nanos::new(cycle),
        cycle_time_extension: Nanos::new(extension),
        control_list: entries
            .iter()
            .map(|&(bits, interval)| GateControlEntry {
                operation: GateOperation::SetGateStates,
                states: GateStates::from_bits(bits),
                interval: Nanos::new(interval),
            })
            .collect(),
    }
}

/// Gate states at an offset into the cycle, by walking the list.
fn states(port: &AdminPort, offset: i64) -> u8 {
    let mut end = 0;
    for entry in &port.control_list {
        end += entry.interval.get();
        if offset < end {
            return entry.states.bits();
        }
    }
    port.control_list.last().unwrap().states.bits()
}

fn is_open(port: &AdminPort, class: u8, at: u64) -> bool {
    let base = port.base_time.as_nanos();
    let bits = if at < base {
        port.gate_states.bits()
    } else {
        states(port, ((at - base) % port.cycle_time.get() as u64) as i64)
    };
    bits >> class & 1 == 1
}

#[test]
fn windows_join_across_entries_and_cycles() {
    let port = port(1_000_000, 100_000, 0, &[(0x81, 20_000), (0x01, 30_000), (0x20, 30_000), (0x80, 20_000)]);
    let windows = Windows::of(&port).unwrap();
    let window = |number, at| windows.at(class(number), tai(at)).map(|w| (w.opens_at, w.closes_at));
    assert_eq!(window(0, 1_049_999), Some((tai(1_000_000), tai(1_050_000))));
    assert_eq!(window(0, 1_050_000), None);
    // Class 7: the last entry and the first of the next cycle are one window; the first cycle has no cycle before it.
    assert_eq!(window(7, 1_000_000), Some((tai(1_000_000), tai(1_020_000))));
    assert_eq!(window(7, 1_090_000), Some((tai(1_080_000), tai(1_120_000))));
    assert_eq!(window(7, 1_119_999), Some((tai(1_080_000), tai(1_120_000))));
    assert_eq!(windows.closed_before(class(7), tai(1_150_000)), Some(tai(1_120_000)));
    assert_eq!(windows.closed_before(class(7), tai(1_010_000)), None);
    assert_eq!(windows.closings(class(7)), [Nanos::new(20_000)]);
    assert_eq!(windows.phase(tai(1_250_001)), Nanos::new(50_001));
    // Before the base time: admin-gate-states.
    assert_eq!(window(0, 999_999), Some((Tai::ZERO, tai(1_000_000))));
    assert_eq!(window(7, 999_999), None);
}

#[test]
fn a_class_that_never_closes_has_a_window_without_end() {
    let windows = Windows::of(&port(500, 60_000, 0, &[(0x80, 20_000), (0xc0, 40_000)])).unwrap();
    let window = windows.at(class(7), tai(10_000_000)).unwrap();
    assert_eq!((window.opens_at, window.closes_at), (tai(500), Tai::MAX));
    assert_eq!(windows.closed_before(class(7), tai(10_000_000)), None);
    assert!(windows.closings(class(7)).is_empty());
    assert!(windows.spans(class(3)).is_empty());
}

#[test]
fn lists_that_gate_nothing_are_refused() {
    let mut open = port(0, 60_000, 0, &[(0xff, 60_000)]);
    open.gate_enabled = false;
    assert_eq!(Windows::of(&open), Err(WindowsError::Ungated));
    let wrong = Windows::of(&port(0, 60_000, 0, &[(0xff, 0)])).unwrap_err();
    assert!(wrong.to_string().contains("admin-control-list"), "{wrong}");
}

#[test]
fn time_on_the_link_is_rounded_up() {
    assert_eq!(wire_time(1250, 1_000_000_000), Nanos::from_micros(10));
    assert_eq!(wire_time(1, 3_000_000_000), Nanos::new(3));
    assert_eq!(wire_time(0, 1), Nanos::ZERO);
}

proptest! {
    /// 8.6.9.2: entries longer and shorter than the cycle; offset by offset.
    #[test]
    fn clause_8_6_9_2_windows_are_those_of_every_nanosecond(
        base in 0_u64..200_000,
        cycle in 50_000_i64..50_040,
        parts in prop::collection::vec((any::<u8>(), 1_i64..40), 1..6),
        spread in -30_i64..30,
        at in 0_u64..400_000,
        number in 0_u8..8,
    ) {
        // All but one entry are short, so that a window's edges are near; the rest of the cycle is the last one's.
        let short: i64 = parts.iter().map(|part| part.1).sum();
        let mut entries = parts;
        entries.push((entries[0].0 ^ 0x5a, cycle - short + spread));
        let port = port(base, cycle, 30, &entries);
        let windows = Windows::of(&port).unwrap();
        let near = |edge: i64| (0..80).map(move |step| edge + step - 40);
        let cycles = at as i64 / cycle * cycle + base as i64;
        for instant in near(at as i64).chain(near(cycles)).chain(near(cycles + short)).filter(|&i| i >= 0) {
            let instant = instant as u64;
            let window = windows.at(class(number), tai(instant));
            prop_assert_eq!(window.is_some(), is_open(&port, number, instant), "at {}", instant);
            if let Some(window) = window {
                prop_assert!(window.opens_at <= tai(instant) && tai(instant) < window.closes_at);
                let (opens, closes) = (window.opens_at.as_nanos(), window.closes_at.as_nanos());
                if closes < u64::MAX {
                    prop_assert!(!is_open(&port, number, closes) || closes == base);
                    prop_assert!(is_open(&port, number, closes - 1));
                }
                if opens > base {
                    prop_assert!(!is_open(&port, number, opens - 1) && is_open(&port, number, opens));
                }
            } else if let Some(closed) = windows.closed_before(class(number), tai(instant)) {
                let closed = closed.as_nanos();
                prop_assert!(closed <= instant && !is_open(&port, number, closed));
                prop_assert!(is_open(&port, number, closed - 1));
                // Nothing opened since: the ends of the closed span and its middle.
                prop_assert!(!is_open(&port, number, (closed + instant) / 2));
            }
        }
    }
}

/// 1 ms: class 7 alone for 200 µs, then class 0 for the rest.
fn example() -> Windows {
    Windows::of(&port(0, 1_000_000, 0, &[(0x80, 200_000), (0x01, 800_000)])).unwrap()
}

fn verdict(gaps: &[Look], number: u8, handed: u64, wire: u64) -> Verdict {
    let frame = Facts {
        class: class(number),
        handed_at: Some(tai(handed)),
        wire_at: Some(tai(wire)),
        on_link: Nanos::new(10_000),
        carried_since: None,
    };
    judge(&example(), &Gaps::of(gaps), &frame).verdict
}

const UNPROVEN: Verdict = Verdict::Overrun { proof: None };
const BY_GAP: Verdict = Verdict::Overrun { proof: Some(Proof::Gap) };
const BY_STALL: Verdict = Verdict::Overrun { proof: Some(Proof::Stall) };

#[test]
fn verdicts_follow_the_window_and_the_gaps() {
    assert_eq!(verdict(&[], 7, 0, 1_500), Verdict::Inside);
    assert_eq!(verdict(&[], 7, 188_000, 190_000), Verdict::Inside);
    assert_eq!(verdict(&[], 7, 188_000, 190_001), UNPROVEN);
    assert_eq!(verdict(&[], 7, 200_000, 201_000), Verdict::Outside);
    // The far end's window of class 0 begins when class 7's ends.
    assert_eq!(verdict(&[], 0, 199_999, 201_500), Verdict::Outside);
    assert_eq!(verdict(&[], 0, 1_000_001, 1_002_000), Verdict::Outside);
    let gap = [Look { due_at: tai(190_000), woke_at: tai(300_000) }];
    assert_eq!(verdict(&gap, 7, 188_000, 302_000), BY_GAP);
    assert_eq!(verdict(&gap, 7, 303_000, 304_500), BY_GAP);
    // The gap is over for long: whoever sends now has looked at no clock.
    assert_eq!(verdict(&gap, 7, 330_000, 331_000), Verdict::Outside);
    // A gap that lies elsewhere proves nothing.
    let elsewhere = [Look { due_at: tai(50_000), woke_at: tai(100_001).saturating_add(GAP_MIN) }];
    assert_eq!(verdict(&elsewhere, 7, 200_500, 202_000), Verdict::Outside);
    // Nor does a gap before the opening: too early is never excused.
    let before = [Look { due_at: tai(150_000), woke_at: tai(210_000) }];
    assert_eq!(verdict(&before, 0, 150_001, 151_000), Verdict::Outside);
}

/// A frame of class 7 that must begin on the link by 190 µs, was carried by the kernel since `since`, and came out at `wire`;
/// the watchdog was to look at 165 µs and was late by `late`.
fn carried(since: u64, wire: u64, late: u64, alone: bool) -> Verdict {
    let frame = Facts {
        class: class(7),
        handed_at: Some(tai(since)),
        wire_at: Some(tai(wire)),
        on_link: Nanos::new(10_000),
        carried_since: alone.then_some(tai(since)),
    };
    let look = Look { due_at: tai(165_000), woke_at: tai(165_000 + late) };
    judge(&example(), &Gaps::of(&[look]), &frame).verdict
}

#[test]
fn a_hand_over_that_stands_still_across_the_close_is_the_machines() {
    // 39 µs from the call to the wire, where 2 are usual; the watchdog got the CPU only afterwards.
    assert_eq!(carried(152_000, 191_000, 45_000, true), BY_STALL);
    // The look alone was late enough.
    assert_eq!(carried(152_000, 191_000, 51_000, true), BY_GAP);
    // The worker slept within its call, or sent several frames by it.
    assert_eq!(carried(152_000, 191_000, 45_000, false), UNPROVEN);
    // The watchdog got the CPU while the frame was still under way.
    assert_eq!(carried(152_000, 191_000, 25_900, true), UNPROVEN);
}

/// What a worker does whose guard band is too short: it begins where nothing can be off the link in time.
#[test]
fn clause_8_6_8_4_a_guard_band_too_short_is_never_the_machines_fault() {
    for since in 165_001..190_000 {
        for wire in [190_001, since + 2_000, since + 40_000].map(|wire: u64| wire.max(190_001)) {
            // Whatever the watchdog says of the call, short of a gap that stands alone.
            assert_eq!(carried(since, wire, 49_000, true), UNPROVEN, "{since} {wire}");
        }
    }
    // And one that begins in time and takes as long as hand-overs do is inside.
    assert_eq!(carried(165_000, 190_000, 49_000, true), Verdict::Inside);
}

#[test]
fn the_far_end_has_ten_microseconds() {
    let inside = |number, wire| {
        let frame = Facts {
            class: class(number),
            handed_at: None,
            wire_at: Some(tai(wire)),
            on_link: Nanos::new(1_000),
            carried_since: None,
        };
        let judgement = judge(&example(), &Gaps::default(), &frame);
        assert_eq!(judgement.verdict, Verdict::Unseen);
        judgement.wire_inside.unwrap()
    };
    assert!(inside(7, 0) && inside(7, 199_999) && inside(7, 210_000) && !inside(7, 210_001));
    assert!(!inside(0, 199_999) && inside(0, 200_000) && inside(0, 1_010_000) && !inside(0, 1_010_001));
}

#[test]
fn figures_count_every_frame_once() {
    let frame = |handed: Option<u64>, wire: Option<u64>| Facts {
        class: class(7),
        handed_at: handed.map(tai),
        wire_at: wire.map(tai),
        on_link: Nanos::new(10_000),
        carried_since: None,
    };
    let frames = [
        frame(Some(10_000), Some(12_000)),
        frame(Some(1_030_000), Some(1_032_000)),
        frame(Some(189_000), Some(191_000)),
        frame(Some(400_000), Some(402_000)),
        frame(None, Some(5_000)),
        frame(Some(20_000), None),
    ];
    let figures = judge_all(&example(), &Gaps::default(), frames);
    assert_eq!((figures.outside_window, figures.overruns, figures.overruns_unproven), (1, 1, 1));
    assert_eq!((figures.unseen, figures.wire_seen, figures.wire_outside), (1, 5, 1));
    let after = figures.after_opening.unwrap();
    assert_eq!((after.min, after.max), (10_000, 189_000));
}
