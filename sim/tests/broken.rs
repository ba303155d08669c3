// SPDX-License-Identifier: Apache-2.0
//! Each part that is broken on purpose is found, by the rule that is there for it. A checker that no fault can wake
//! would hold for any worker.

use std::collections::BTreeSet;

use ktsn_sim::{Broken, Options, report, run};

/// Few seeds suffice: a fault must not need luck to be found.
const SEEDS: u64 = 12;

#[test]
fn every_broken_part_is_found_by_its_rule() {
    for (broken, word, rules) in Broken::ALL {
        let mut found = BTreeSet::new();
        for seed in 0..SEEDS {
            let outcome = run(seed, Options { broken, ..Options::default() }).unwrap();
            found.extend(outcome.violations.iter().map(|violation| violation.rule));
        }
        for rule in rules {
            assert!(found.contains(rule), "{word}: rule {rule} did not find it, only {found:?} did");
        }
    }
}

#[test]
fn a_failing_run_names_its_seed_its_rule_and_how_to_repeat_it() {
    let outcome = run(5, Options { broken: Broken::Duplicate, ..Options::default() }).unwrap();
    let text = report::failure(&outcome, Broken::Duplicate);
    assert!(text.starts_with("seed 5 broke"), "{text}");
    assert!(text.contains(" once: frame "), "{text}");
    assert!(text.contains("cargo run -p ktsn-sim -- --seed 5 --break duplicate --verbose"), "{text}");
    assert!(text.contains("Wire {"), "the last events: {text}");
}

#[test]
fn a_document_has_one_check_per_rule() {
    let broken = [("once", "seed 5: frame 7 arrived a second time".to_owned())].into();
    let document = report::document(&broken, 5, 1, vec!["ktsn-sim".to_owned()]);
    assert_eq!(document.checks.len(), ktsn_sim::check::RULES.len());
    let path = std::env::temp_dir().join(format!("ktsn-sim-checks-{}.json", std::process::id()));
    document.save(&path).unwrap();
    let text: String = std::fs::read_to_string(&path).unwrap().split_whitespace().collect();
    std::fs::remove_file(&path).unwrap();
    assert!(text.contains(r#""outcome":"failed","reason":"seed5:frame7"#), "{text}");
    assert_eq!(text.matches(r#""outcome":"passed""#).count(), ktsn_sim::check::RULES.len() - 1);
}
