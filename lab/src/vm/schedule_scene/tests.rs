// SPDX-License-Identifier: Apache-2.0
//! Turns, what the guest says, and which delta of etf has the bar.

use super::*;
use ktsn_measure::payload::Probe;
use ktsn_time::Tai;

const US: i64 = 1000;

fn plan() -> Plan {
    Plan {
        rounds: 2,
        frames: 1000,
        period: Nanos::from_millis(1),
        lead: Nanos::from_micros(2_800),
        deltas: [200, 500].map(Nanos::from_micros).to_vec(),
        payload_octets: 64,
        accelerator: "auto".to_owned(),
        setup: Setup::nowhere(),
    }
}

#[test]
fn turns_have_numbers_of_their_own_and_alternate() {
    let script = plan().script();
    let turns: Vec<&str> = script.lines().filter(|line| line.starts_with("echo turn")).collect();
    assert_eq!(turns, [0, 1, 2, 5, 4, 3].map(|turn| format!("echo turn {turn}")));
    for turn in 0..6 {
        assert_eq!(script.matches(&format!("--first-sequence {} ", turn * TURN)).count(), 1);
    }
    assert_eq!(script.matches("ktsn run --policy strict -- ktsn talk").count(), 2);
    assert_eq!(script.matches("--mode etf --delta 500000ns").count(), 2);
    plan().check().unwrap();
    let refused = |plan: Plan| plan.check().unwrap_err().to_string();
    assert!(
        refused(Plan { lead: Nanos::from_micros(400), ..plan() }).contains("lead: 400000: expected 500000")
    );
    assert!(refused(Plan { frames: 103, ..plan() }).contains("frames: 103: expected 104"));
    assert!(refused(Plan { deltas: vec![Nanos::from_millis(1); 2], ..plan() }).contains("twice"));
}

#[test]
fn what_the_guest_says_is_read_and_a_clock_that_does_not_follow_is_an_error() {
    let text = "guest: x\nclocks tsc hpet\nturn 4\nnoise\n{\"frames_intended\":3}\nclock { \"state\": \"following\", \
                \"error_bound_ns\": 400 }\nturn 5\n{\"frames_intended\":7}\n";
    let said = Said::read(text).unwrap();
    assert_eq!((said.accelerator, said.clock_bound_ns), (Some("tcg"), Some(400)));
    assert_eq!(
        (&said.talks[&4]["frames_intended"], &said.talks[&5]["frames_intended"]),
        (&json!(3), &json!(7))
    );
    assert_eq!(Said::read("clocks kvm-clock tsc").unwrap().accelerator, Some("kvm"));
    let failed = Said::read("turn 5\nclock {\"state\":\"unsynchronised\"}").unwrap_err().to_string();
    assert!(failed.contains("did not follow") && failed.contains('5'), "{failed}");
    assert!(Said::read("clock").is_ok() && Said::read("clock ").is_err());
}

/// Frames of a turn that came so much after their transmit times; `None`: lost.
fn arrivals(turn: u64, offset: impl Fn(u64) -> Option<i64>) -> Vec<ArrivalRecord> {
    let frame = |number: u64| {
        let tx_time = Tai::from_nanos(1_000_000_000 + number * 1_000_000);
        let kernel_at = Some(tx_time.saturating_add(Nanos::new(offset(number)?)));
        let probe = Probe { sequence: turn * TURN + number, tx_time };
        Some(ArrivalRecord { probe, kernel_at, received_at: None })
    };
    (0..1000).filter_map(frame).collect()
}

#[test]
fn the_bar_is_held_against_the_delta_that_loses_the_fewest_frames() {
    let plan = Plan { rounds: 1, ..plan() };
    // Begin and end of a turn say nothing.
    let steady = |number: u64, offset: i64| if (100..997).contains(&number) { offset } else { 9_000 * US };
    let all = [
        arrivals(0, |number| (number % 5 != 0).then(|| steady(number, 10 * US))),
        arrivals(1, |number| (number % 100 != 7).then(|| steady(number, -300 * US))),
        arrivals(2, |number| (number != 500).then(|| steady(number, 100 * US))),
    ]
    .concat();
    let run = |(turn, path, _)| RunRecords {
        path,
        payload_octets: 64,
        load: None,
        round: 1,
        records: records_of(&plan, &all, turn),
    };
    let runs: Vec<RunRecords> = plan.turns(1).into_iter().map(run).collect();
    let talk = json!({"frames_intended": 1000, "frames_sent": 1000});
    let mut document = Document::new("vm-sender", Vec::new());
    document.add_series(runs.iter().map(|run| series(&plan, run, Some(&talk))));
    let lost = |path: &str| document.all_rounds(path, 64, None).unwrap().lost;
    assert_eq!(
        [lost("guest-etf-200us"), lost("guest-etf-500us"), lost(KTSND)],
        [Some(180), Some(9), Some(1)]
    );
    compare(&plan, &runs, &mut document);
    let shown: Vec<_> = document
        .comparisons
        .iter()
        .map(|one| (one.to.as_deref().unwrap(), one.ratio.map(|ratio| (ratio * 100.0).round()), one.holds))
        .collect();
    let (best, other) = ("guest-etf-500us", "guest-etf-200us");
    assert_eq!(
        shown,
        [
            (best, Some(33.0), Some(true)),
            (best, Some(11.0), Some(true)),
            (other, Some(1000.0), None),
            (other, Some(1.0), None)
        ]
    );
}
