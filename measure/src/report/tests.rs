// SPDX-License-Identifier: Apache-2.0
//! The report as a whole: order and completeness of the page, refused input, writing that leaves nothing behind.

use super::*;
use ktsn_time::Tai;
use ktsn_traffic::records::{self, Record, RunRecords};
use serde_json::{Value, json};

fn document() -> Value {
    let figures =
        json!({ "min": 1000, "p50": 31800, "p90": 45000, "p99": 99000, "p99_9": 120000, "max": 400000 });
    json!({
        "schema": "ktsn.results/1", "experiment": "container", "started_at": "2026-11-21T02:00:00Z",
        "command": ["ktsn", "bench", "container", "--path", "a b"],
        "environment": { "kernel": "6.18", "clock_synchronised": false, "tai_offset_seconds": 0 },
        "parameters": { "rounds": 3, "interleaved": true },
        "series": [
            { "path": "flannel", "payload_octets": 64, "round": 1, "latency_ns": figures },
            { "path": "flannel", "payload_octets": 64, "round": "all", "frames_sent": 5000, "frames_received": 4999,
              "lost": 1, "early": 0, "latency_ns": figures, "wire_offset_ns": figures, "daemon_cpu_ratio": 0.063,
              "steal_ratio": 0.015, "voided_rounds": 2 },
            { "path": "bare", "payload_octets": 64, "round": "all", "frames_sent": 5000 }
        ],
        "comparisons": [{ "metric": "latency_ns.p50", "of": "flannel", "to": "bare", "ratio": 1.23, "bar": 1.5, "holds": true }]
    })
}

fn page_of(document: &Value) -> String {
    render(&[Source::of("results.json", document, &[]).unwrap()]).unwrap()
}

/// What the document's reader sees; neither plotly.js nor our own script.
fn article(page: &str) -> &str {
    let begin = page.find("<article").unwrap();
    &page[begin..page.find("<footer>").unwrap()]
}

#[test]
fn the_page_keeps_its_order_and_stands_alone() {
    let page = page_of(&document());
    let anchors = [
        "<h1>",
        "d0-paths",
        "d0-comparisons",
        "d0-distribution",
        "d0-boxes",
        "d0-histogram",
        "d0-time",
        "d0-environment",
        "d0-clock",
        "d0-rule",
        "d0-command",
        "d0-not-shown",
    ];
    let article = article(&page);
    let places: Vec<Option<usize>> = anchors.iter().map(|anchor| article.find(anchor)).collect();
    assert!(places.iter().all(Option::is_some) && places.is_sorted(), "{places:?}");
    assert_eq!(page.matches("* plotly.js v").count(), 1, "plotly.js is embedded once");
    assert!(page.len() < 5_000_000, "MathJax, 2 MB that nothing here needs, stays out: {}", page.len());
    assert!(!page.contains("<script src") && !page.contains("<link rel=\"stylesheet"));
}

#[test]
fn tables_carry_the_figures_without_a_script() {
    let page = page_of(&document());
    let article = article(&page);
    for text in [
        "The one bar is held.",
        "1 lost (flannel)",
        "<td class=\"g\">31.80</td><td>45.00</td><td>99.00</td>",
        "6.3</td>",
        "<code>ktsn bench container --path &#39;a b&#39;</code>",
        "Not synchronised.",
        "TAI offset 0 s",
        "1.50 %",
        "Raw records are missing for 2 of 2 rows",
    ] {
        assert!(article.contains(text), "{text}");
    }
}

#[test]
fn figures_that_are_not_stated_are_dashes() {
    let mut document = document();
    document["micro"] = json!([{ "name": "n", "unit": "ns" }]);
    let page = page_of(&document);
    let row = "n</th><td>–</td><td>–</td><td class=\"text\">ns</td><td>–</td>";
    assert!(article(&page).contains(row), "{}", article(&page));
}

#[test]
fn two_documents_share_one_page() {
    let source = Source::of("a.json", &document(), &[]).unwrap();
    let page = render(&[source.clone(), source]).unwrap();
    assert!(page.contains("<article id=\"d0\">") && page.contains("<article id=\"d1\">"));
    assert_eq!(page.matches("* plotly.js v").count(), 1);
    assert!(matches!(render(&[]), Err(ReportError::Nothing)));
}

#[test]
fn this_crates_own_documents_are_understood() {
    use crate::results::{Document, Series};
    let series =
        Series { path: "ktsn".into(), payload_octets: 64, frames_sent: Some(7), ..Series::default() };
    let mut own: Document = serde_json::from_value(json!({
        "schema": "ktsn.results/1", "experiment": "own", "started_at": "x", "command": [],
        "environment": {}
    }))
    .unwrap();
    own.add_rounds(vec![series]);
    let page = render(&[Source::of("own", &own, &[]).unwrap()]).unwrap();
    assert!(article(&page).contains("ktsn</th><td>64</td><td class=\"g\">7</td>"));
}

#[test]
fn a_wrong_field_is_named_with_its_file() {
    let refused = |change: fn(&mut Value)| {
        let mut document = document();
        change(&mut document);
        let error = Source::of("r.json", &document, &[]).unwrap_err();
        assert!(error.is_input());
        error.to_string()
    };
    let schema = refused(|d| d["schema"] = json!("ktsn.results/9"));
    assert_eq!(schema, "r.json: field schema: this program reads \"ktsn.results/1\", not \"ktsn.results/9\"");
    assert_eq!(refused(|d| *d = json!({})), "r.json: field (the document): missing field `schema`");
    assert_eq!(refused(|d| *d = json!([])), "r.json: field (the document): an object is expected here");
    let deep = refused(|d| d["series"][1]["latency_ns"]["p50"] = json!("fast"));
    assert_eq!(deep, "r.json: field series[1].latency_ns.p50: invalid type: string \"fast\", expected i64");
    let negative = refused(|d| d["series"][1]["lost"] = json!(-1));
    assert_eq!(negative, "r.json: field series[1].lost: invalid value: integer `-1`, expected u64");
    let round = refused(|d| d["series"][0]["round"] = json!("last"));
    assert_eq!(round, "r.json: field series[0].round: a round is a number from 1 or \"all\"");
    let path = refused(|d| d["series"][0]["path"] = Value::Null);
    assert_eq!(path, "r.json: field series[0].path: invalid type: null, expected a string");
}

#[test]
fn files_that_are_none_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let missing = Source::load(&directory.path().join("none.json")).unwrap_err();
    assert!(missing.to_string().contains("none.json: No such file"), "{missing}");
    let file = directory.path().join("r.json");
    std::fs::write(&file, "{ \"schema\": ").unwrap();
    let cut = Source::load(&file).unwrap_err();
    assert!(cut.to_string().contains("r.json: this is no JSON: EOF"), "{cut}");
    std::fs::write(&file, document().to_string()).unwrap();
    std::fs::create_dir(directory.path().join("records")).unwrap();
    std::fs::write(directory.path().join("records/bare-64.csv"), "round,sequence\n1,x\n").unwrap();
    let records = Source::load(&file).unwrap_err();
    assert!(records.to_string().contains("records/bare-64.csv: records file: "), "{records}");
}

#[test]
fn records_beside_the_document_are_found_and_drawn() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("r.json");
    std::fs::write(&file, document().to_string()).unwrap();
    std::fs::create_dir(directory.path().join("records")).unwrap();
    let record = |sequence: u64| Record {
        sequence,
        tx_time: Tai::from_nanos(1_000_000 * sequence),
        handed_at: None,
        wire_at: Some(Tai::from_nanos(1_000_000 * sequence + 3_000)),
        kernel_at: None,
        received_at: Some(Tai::from_nanos(1_000_000 * sequence + 40_000 + sequence)),
    };
    let records: Vec<Record> = (0..50).map(record).collect();
    let run = RunRecords { path: "bare".into(), payload_octets: 64, load: None, round: 1, records };
    records::save_runs(&directory.path().join("records/bare-64.csv.zst"), [run].iter()).unwrap();
    let source = Source::load(&file).unwrap();
    assert_eq!(source.samples.len(), 1);
    assert_eq!((source.samples[0].latency.len(), source.samples[0].jitter.len()), (50, 49));
    let page = render(&[source]).unwrap();
    assert!(article(&page).contains("Raw records are missing for 1 of 2 rows"));
    assert!(article(&page).contains("id=\"d0-histogram-jitter\""));
}

#[test]
fn a_page_is_written_whole_or_not_at_all() {
    let directory = tempfile::tempdir().unwrap();
    let source = [Source::of("r.json", &document(), &[]).unwrap()];
    let page = directory.path().join("report.html");
    std::fs::write(&page, "old").unwrap();
    write(&page, &source).unwrap();
    assert!(std::fs::read_to_string(&page).unwrap().ends_with("</html>\n"));
    let nowhere = write(&directory.path().join("no/report.html"), &source).unwrap_err();
    assert!(!nowhere.is_input());
    assert!(nowhere.to_string().starts_with("cannot write the report "), "{nowhere}");
    let occupied = directory.path().join("d");
    std::fs::create_dir(&occupied).unwrap();
    assert!(write(&occupied, &source).is_err());
    let mut left: Vec<_> =
        std::fs::read_dir(directory.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["d", "report.html"], "nothing half-written stays");
}
