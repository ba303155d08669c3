// SPDX-License-Identifier: Apache-2.0
//! Latency and jitter per class of some fixed runs, checked in: a change of behaviour shows in review.
//!
//! Where a change is meant, `KTSN_UPDATE_SNAPSHOTS=1 cargo test -p ktsn-sim --test snapshots` writes the files again;
//! they go into the same commit as the change.

use std::fmt::Write;
use std::path::PathBuf;

use ktsn_sim::plan::{Mode, Plan};
use ktsn_sim::{Options, report, run, scenario};

fn compare(name: &str, is: &str) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("snapshots").join(name);
    if std::env::var_os("KTSN_UPDATE_SNAPSHOTS").is_some() {
        std::fs::write(&path, is).unwrap();
    }
    let was = std::fs::read_to_string(&path).unwrap_or_default();
    let differs = |(was, is): &(&str, &str)| was != is;
    let first = was.lines().zip(is.lines()).find(differs);
    assert!(
        was == is,
        "{name} is not what it was, first here: {first:?}\nif that is meant: \
         KTSN_UPDATE_SNAPSHOTS=1 cargo test -p ktsn-sim --test snapshots\n{is}"
    );
}

#[test]
fn latency_and_jitter_per_class_are_what_they_were() {
    let mut text = String::new();
    for seed in [1, 2, 3, 5, 8, 13, 21, 34] {
        let plan = Plan::new(seed);
        let gates = if plan.schedules.is_empty() { "without gates" } else { "with gates" };
        let outcome = run(seed, Options::default()).unwrap();
        let (mode, tenants) = (plan.link.mode.word(), plan.tenants.len());
        let _ = writeln!(text, "seed {seed}: {mode}, {:?} {gates}, {tenants} tenants", plan.select);
        let _ = writeln!(text, "{}", report::figures_table(&outcome.figures));
    }
    compare("classes.txt", &text);
}

/// [802.1Q 8.6.5.5] What a metered tenant does to another one's frames stays within the bound of `docs/guide/guarantees.md`,
/// whichever class it babbles in; without its meter the rule of the bound is broken, but few frames are lost.
#[test]
fn a_babbling_tenant_moves_another_one_by_no_more_than_the_bound() {
    let runs = scenario::babbling(0).unwrap();
    for run in &runs {
        assert!(run.outcome.violations.is_empty(), "{:?}", run.outcome.violations);
        let victim =
            run.outcome.figures.classes.iter().find(|class| class.class == scenario::VICTIM).unwrap();
        let (count, offset) = (victim.wire_offset.count(), victim.wire_offset.max());
        assert!(count > 900 && victim.pushed == count, "{count} of {}", victim.pushed);
        let most = run.bound + HAND_OVER_AND_WAKE;
        assert!(offset <= most, "babbler in class {}: {offset} ns, bound {most} ns", run.class);
        assert!(run.outcome.published > 10 * run.outcome.arrived, "it babbles");
    }
    compare("babbling.txt", &report::babbling_table(&runs));

    let run = scenario::unmetered(0).unwrap();
    assert!(run.outcome.violations.iter().any(|violation| violation.rule == "meter"));
    let victim = run.outcome.figures.classes.iter().find(|class| class.class == scenario::VICTIM).unwrap();
    let (count, pushed) = (victim.wire_offset.count(), victim.pushed);
    // Attachments take turns, so most of its frames leave all the same.
    assert!(
        pushed > 900 && count > pushed * 9 / 10,
        "{count} of {pushed} arrived beside an unmetered babbler"
    );
}

/// H + J here: hand-over and wake-up, as the scenario's machine has them.
const HAND_OVER_AND_WAKE: u64 = 3_000;

/// The bars: on a dedicated uplink a scheduled class's jitter is at most one longest frame and no frame is outside of
/// its window; on a shared one it is what `docs/guide/guarantees.md` states.
#[test]
fn a_saturated_link_moves_a_scheduled_class_by_no_more_than_the_bound() {
    let runs = scenario::saturated(0).unwrap();
    for run in &runs {
        assert!(run.outcome.violations.is_empty(), "{:?}", run.outcome.violations);
        assert_eq!(run.kernel_max > 0, run.mode == Mode::Shared);
        for class in run.outcome.figures.classes.iter().filter(|class| class.class > 0) {
            let jitter = class.wire_jitter.max();
            let bound = run.frame_max + run.kernel_max;
            let (offset, alone) = (class.wire_offset.max(), class.class == 7 && run.mode == Mode::Dedicated);
            let start = HAND_OVER_AND_WAKE + if alone { 0 } else { bound };
            assert!(offset <= start, "{:?}, class {}: {offset} ns, bound {start} ns", run.mode, class.class);
            assert!(class.wire_jitter.count() > 900);
            assert!(jitter <= bound, "{:?}, class {}: {jitter} ns, bound {bound} ns", run.mode, class.class);
        }
    }
    compare("saturated.txt", &report::saturated_table(&runs));
}
