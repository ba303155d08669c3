// SPDX-License-Identifier: Apache-2.0
use super::*;
use ktsn_traffic::stats::Statistics;
use proptest::prelude::*;
use serde_json::json;
use std::collections::BTreeMap;

fn document() -> Document {
    Document::new("container", vec!["ktsn".into(), "bench".into()])
}

fn series(path: &str, round: Round, p50: i64) -> Series {
    Series {
        path: path.into(),
        payload_octets: 64,
        load: Some("idle".into()),
        round,
        wire_offset_ns: Some(Statistics { p50, ..Statistics::default() }),
        ..Series::default()
    }
}

/// The schema page's own example: every field it names must come back, and nothing else.
#[test]
fn the_example_of_the_schema_survives() {
    let page =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/results-schema.md")).unwrap();
    let example = page.split("```json").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let statistics =
        r#"{ "min": 1, "p50": 2, "p90": 3, "p99": 4, "p99_9": 5, "max": 6, "mean": 2.5, "stddev": 1.5 }"#;
    let example = example.replace(r#"{ "…": 0 }"#, statistics).replace("passed|failed|skipped", "skipped");
    let mut written: Value = serde_json::from_str(&example).unwrap();
    // The page's zeros stand for any number; means and deviations are real ones.
    for number in ["mean", "stddev"] {
        written["series"][0]["transmit_error_ns"][number] = json!(0.0);
    }
    for number in ["p50", "p90"] {
        written["micro"][0][number] = json!(0.0);
    }
    let read: Document = serde_json::from_value(written.clone()).unwrap();
    assert_eq!(serde_json::to_value(&read).unwrap(), written);
}

#[test]
fn absent_fields_are_left_out() {
    let mut document = document();
    document.series.push(Series { path: "bare".into(), payload_octets: 16, ..Series::default() });
    let value = serde_json::to_value(&document).unwrap();
    assert_eq!(value["series"][0], json!({ "path": "bare", "payload_octets": 16, "round": "all" }));
    assert!(value.get("micro").is_none() && value.get("comparisons").is_none());
    let started = document.started_at;
    assert!(started.ends_with('Z') && started.len() == 20, "{started}");
}

#[test]
fn files_are_replaced_whole_and_wrong_ones_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("r.json");
    let mut first = document();
    first.parameters.insert("period_ns".into(), json!(1_000_000));
    first.add_rounds(vec![series("ktsn", Round::Number(1), 5)]);
    first.save(&path).unwrap();
    let saved: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    assert_eq!(Document::from_value(&saved).unwrap(), first);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    let wrong = Document::from_value(&json!({ "schema": "ktsn.results/2" })).unwrap_err().to_string();
    assert!(wrong.contains("ktsn.results/2") && wrong.contains("ktsn.results/1"), "{wrong}");
    let mut value = serde_json::to_value(&first).unwrap();
    value["series"][0]["round"] = json!(0);
    let wrong = Document::from_value(&value).unwrap_err();
    assert_eq!(wrong.to_string(), "field series[0].round: a round is a number from 1 or \"all\"");
    assert!(first.save(&folder.path().join("none/r.json")).is_err());
    assert!(first.save(Path::new("/")).is_err());
}

#[test]
fn rounds_merge_to_medians_and_sums() {
    let round = |number, p50, lost, ratio| Series {
        lost: Some(lost),
        jitter_left_out: Some(lost),
        wire_jitter_left_out: Some(10 * lost),
        late_over_1us_ratio: Some(ratio),
        dropped: BTreeMap::from([("missed".to_owned(), lost)]),
        daemon_rss_octets: Some(100 * lost),
        ..series("ktsn", Round::Number(number), p50)
    };
    let rounds = [round(1, 900, 1, 0.3), round(2, 100, 2, 0.1), round(3, 500, 6, 0.2)];
    let all = Series::merged(&rounds).unwrap();
    assert_eq!((all.round, all.lost, all.daemon_rss_octets), (Round::All, Some(9), Some(200)));
    assert_eq!((all.jitter_left_out, all.wire_jitter_left_out), (Some(9), Some(90)));
    assert_eq!((all.metric("jitter_left_out"), all.metric("wire_jitter_left_out")), (Some(9.0), Some(90.0)));
    assert_eq!(all.metric("wire_offset_ns.p50"), Some(500.0));
    assert_eq!(all.late_over_1us_ratio, Some(0.2));
    assert_eq!(all.dropped["missed"], 9);
    assert_eq!((all.early, all.latency_ns, all.load.as_deref()), (None, None, Some("idle")));
    assert_eq!(Series::merged(&[]), None);
}

#[test]
fn comparisons_use_all_rounds_and_a_missing_figure_holds_no_bar() {
    let mut document = document();
    document
        .add_rounds(vec![series("ktsn", Round::Number(1), 2_000), series("ktsn", Round::Number(2), 4_000)]);
    document.add_rounds(vec![series("flannel", Round::Number(1), 40_000)]);
    assert_eq!(document.series.len(), 5);
    let question = Question {
        metric: "wire_offset_ns.p50",
        payload_octets: 64,
        load: Some("idle"),
        of: "ktsn",
        to: Some("flannel"),
        bar: Some(0.10),
    };
    let held = document.compare(&question);
    assert_eq!((held.ratio, held.holds), (Some(0.075), Some(true)));
    assert_eq!(document.compare(&Question { bar: Some(0.05), ..question }).holds, Some(false));
    assert_eq!(document.compare(&Question { bar: None, ..question }).holds, None);
    let missing = document.compare(&Question { to: Some("bare"), ..question });
    assert_eq!((missing.ratio, missing.holds), (None, Some(false)));
    let fixed = document.compare(&Question { to: None, bar: Some(3_000.0), ..question });
    assert_eq!((fixed.ratio, fixed.holds), (Some(3_000.0), Some(true)));
    assert_eq!(document.comparisons.len(), 5);
}

fn statistics() -> impl Strategy<Value = Statistics> {
    (any::<[i32; 6]>(), -1e9..1e9_f64, 0.0..1e9_f64).prop_map(|(whole, mean, stddev)| {
        let [min, p50, p90, p99, p99_9, max] = whole.map(i64::from);
        Statistics { min, p50, p90, p99, p99_9, max, mean, stddev }
    })
}

fn any_series() -> impl Strategy<Value = Series> {
    let words = (
        "[a-z-]{1,9}",
        prop::option::of("[a-z]{1,5}"),
        prop::collection::btree_map("[a-z_]{1,8}", 0_u64..99, 0..3),
    );
    let figures =
        (prop::option::of(statistics()), prop::option::of(statistics()), prop::option::of(0.0..1.0_f64));
    let counts = (prop::option::of(any::<u32>()), prop::option::of(any::<u32>()), prop::option::of(1_u32..9));
    (words, figures, counts).prop_map(
        |((path, load, dropped), (wire, latency, ratio), (sent, lost, round))| Series {
            path,
            load,
            dropped,
            payload_octets: 64,
            round: round.map_or(Round::All, Round::Number),
            wire_offset_ns: wire,
            latency_ns: latency,
            daemon_cpu_ratio: ratio,
            frames_sent: sent.map(u64::from),
            lost: lost.map(u64::from),
            ..Series::default()
        },
    )
}

proptest! {
    #[test]
    fn series_survive_json(series in any_series()) {
        let text = serde_json::to_string(&series).unwrap();
        prop_assert_eq!(serde_json::from_str::<Series>(&text).unwrap(), series);
    }

    /// Against a naive median and sum of one figure each.
    #[test]
    fn merging_meets_its_definition(rounds in prop::collection::vec(any_series(), 1..6)) {
        let all = Series::merged(&rounds).unwrap();
        let sent: Vec<u64> = rounds.iter().filter_map(|round| round.frames_sent).collect();
        prop_assert_eq!(all.frames_sent, (!sent.is_empty()).then(|| sent.iter().sum::<u64>()));
        let mut p50: Vec<i64> = rounds.iter().filter_map(|round| Some(round.latency_ns?.p50)).collect();
        p50.sort_unstable();
        let middle = p50.len() / 2;
        let expected = match p50.len() {
            0 => None,
            odd if odd % 2 == 1 => Some(p50[middle]),
            _ => Some((p50[middle - 1] + p50[middle]).div_euclid(2)),
        };
        prop_assert_eq!(all.latency_ns.map(|statistics| statistics.p50), expected);
    }
}
