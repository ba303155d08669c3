// SPDX-License-Identifier: Apache-2.0
//! The report in a real browser: it draws every plot with every point that it should, in light and in dark,
//! complains of nothing and asks the network for nothing. Pictures are left in `out/test/`.

mod devtools;
mod generate;

use devtools::Browser;
use generate::{FRAMES, PATHS, PAYLOADS, ROUNDS, experiment};
use ktsn_measure::report::{self, POINTS_MAX, Source};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const PLACES: [&str; 7] = [
    "cdf-latency",
    "cdf-wire-offset",
    "box-latency",
    "box-wire-offset",
    "histogram-jitter",
    "histogram-wire-jitter",
    "time-latency",
];

/// Points per round and trace that thinning to [`POINTS_MAX`] leaves of `frames`: a lowest and a highest per run.
fn thinned(frames: usize) -> usize {
    let limit = POINTS_MAX / ROUNDS as usize - 1;
    2 * frames.div_ceil(frames.div_ceil(limit / 2))
}

/// The data of a plot as the browser holds it.
fn traces(browser: &mut Browser, place: &str) -> Vec<Value> {
    let data = browser.evaluate(&format!(
        "document.querySelector('#d0-{place} .js-plotly-plot').data.map((t) => ({{ name: t.name, type: t.type, \
         x: t.x && Array.from(t.x), y: t.y && Array.from(t.y), median: t.median && Array.from(t.median), \
         colour: (t.line || t.marker).color }}))"
    ));
    data.as_array().cloned().unwrap_or_default()
}

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().into_iter().flatten().filter_map(Value::as_f64).collect()
}

fn output(name: &str) -> PathBuf {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../out/test");
    std::fs::create_dir_all(&directory).expect("out/test");
    directory.canonicalize().expect("out/test").join(name)
}

/// Writes a picture of the page; it must be a PNG of some size.
fn picture(browser: &mut Browser, name: &str) {
    let encoded = browser.picture();
    let mut base64 = Command::new("base64")
        .arg("-d")
        .stdin(Stdio::piped())
        .stdout(std::fs::File::create(output(name)).expect("a picture"))
        .spawn()
        .expect("base64 of coreutils");
    std::io::Write::write_all(&mut base64.stdin.take().expect("a pipe"), encoded.as_bytes())
        .expect("a picture");
    assert!(base64.wait().expect("base64 ends").success());
    let octets = std::fs::read(output(name)).expect("a picture");
    assert!(octets.starts_with(b"\x89PNG") && octets.len() > 50_000, "{name}: {} octets", octets.len());
}

fn size(browser: &mut Browser, width: u32, height: u32) {
    let metrics = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
    browser.call("Emulation.setDeviceMetricsOverride", &metrics);
}

fn prefer(browser: &mut Browser, scheme: &str) {
    let features = json!([{ "name": "prefers-color-scheme", "value": scheme }]);
    browser.call("Emulation.setEmulatedMedia", &json!({ "features": features }));
}

/// The brightness of what an element is filled with, 0 to 255.
fn brightness(browser: &mut Browser, selector: &str) -> f64 {
    let colour = browser.evaluate(&format!(
        "getComputedStyle(document.querySelector('{selector}')).backgroundColor.match(/\\d+/g).map(Number)"
    ));
    numbers(&colour).iter().take(3).sum::<f64>() / 3.0
}

const DRAWN: &str = "document.documentElement.dataset.drawn === 'yes'";

fn check_points(browser: &mut Browser) {
    for place in ["cdf-latency", "cdf-wire-offset"] {
        for trace in traces(browser, place) {
            let (x, y) = (numbers(&trace["x"]), numbers(&trace["y"]));
            assert!(x.len() > 400 && x.len() <= POINTS_MAX && x.len() == y.len(), "{place}: {}", x.len());
            assert_eq!(y.last(), Some(&100.0), "{place}: a distribution ends at all frames");
            assert!(x.is_sorted() && y.is_sorted(), "{place}: a distribution rises");
        }
    }
    for place in ["box-latency", "box-wire-offset"] {
        for trace in traces(browser, place) {
            assert_eq!(trace["type"], "box");
            assert_eq!(numbers(&trace["median"]).len(), PAYLOADS.len(), "{place}: one box per payload");
        }
    }
    for place in ["histogram-jitter", "histogram-wire-jitter"] {
        let all = traces(browser, place);
        let points = numbers(&all[0]["y"]).len();
        for trace in &all {
            let shares = numbers(&trace["y"]);
            assert_eq!(shares.len(), points, "{place}: all paths share their bins");
            assert!((shares.iter().sum::<f64>() - 100.0).abs() < 1e-6, "{place}: every frame is counted");
        }
    }
    for trace in traces(browser, "time-latency") {
        let points = trace["x"].as_array().map_or(0, Vec::len);
        let frames = FRAMES as usize;
        // Between the rounds lies a gap of one point.
        let gaps = ROUNDS as usize - 1;
        let lossy = if trace["name"] == "flannel" { thinned(frames - 1) } else { thinned(frames) };
        assert_eq!(points, lossy + 2 * thinned(frames) + gaps, "points of {}", trace["name"]);
        assert_eq!(numbers(&trace["y"]).len(), points - gaps);
    }
}

#[test]
fn the_report_draws_everything_and_asks_for_nothing() {
    let directory = tempfile::tempdir().expect("a directory");
    let source = Source::load(&experiment(directory.path(), true)).expect("the document is right");
    let page = output("report.html");
    report::write(&page, &[source]).expect("the page is written");

    let mut browser = Browser::start();
    prefer(&mut browser, "light");
    size(&mut browser, 1440, 900);
    browser.open(&page);
    browser.until(DRAWN);
    assert_eq!(browser.evaluate("document.querySelectorAll('.js-plotly-plot').length"), json!(PLACES.len()));
    let mut colours = None;
    for place in PLACES {
        let all = traces(&mut browser, place);
        let names: Vec<&str> = all.iter().filter_map(|trace| trace["name"].as_str()).collect();
        assert_eq!(names, PATHS, "{place}: one trace per path");
        let here: Vec<Value> = all.iter().map(|trace| trace["colour"].clone()).collect();
        assert_eq!(colours.get_or_insert_with(|| here.clone()), &here, "{place}: a path keeps its colour");
    }
    check_points(&mut browser);
    let rows = browser.evaluate("document.querySelectorAll('#d0-paths > .scroll tbody tr').length");
    assert_eq!(rows, json!(PATHS.len() * PAYLOADS.len()));
    assert!(brightness(&mut browser, "body") > 200.0, "light");
    picture(&mut browser, "report-light.png");

    // Another payload: other figures, as many points.
    let before = traces(&mut browser, "cdf-wire-offset");
    browser.evaluate("document.querySelector('.payload input[value=\"1024\"]').click()");
    browser.until(DRAWN);
    assert_ne!(before, traces(&mut browser, "cdf-wire-offset"));
    check_points(&mut browser);

    // Dark because the system asks for it, then light again because the reader does.
    prefer(&mut browser, "dark");
    browser.until(DRAWN);
    browser.until("document.getElementById('theme').textContent === 'Light'");
    assert!(brightness(&mut browser, "body") < 60.0, "dark");
    picture(&mut browser, "report-dark.png");
    browser.evaluate("document.getElementById('theme').click()");
    browser.until(DRAWN);
    assert!(brightness(&mut browser, "body") > 200.0, "the reader's choice");

    assert_eq!(browser.complaints(), Vec::<&Value>::new());
    let url = format!("file://{}", page.display());
    assert!(browser.requests().iter().all(|request| *request == url), "{:?}", browser.requests());
}

#[test]
fn without_records_the_statistics_are_drawn() {
    let directory = tempfile::tempdir().expect("a directory");
    let source = Source::load(&experiment(directory.path(), false)).expect("the document is right");
    let page = output("report-statistics.html");
    report::write(&page, &[source]).expect("the page is written");

    let mut browser = Browser::start();
    size(&mut browser, 1440, 900);
    browser.open(&page);
    browser.until(DRAWN);
    assert_eq!(browser.evaluate("document.querySelectorAll('.js-plotly-plot').length"), json!(4));
    for trace in traces(&mut browser, "cdf-latency") {
        assert_eq!(numbers(&trace["y"]), [0.0, 50.0, 90.0, 99.0, 99.9, 100.0]);
    }
    assert_eq!(traces(&mut browser, "box-latency").len(), PATHS.len());
    let text = browser.evaluate("document.querySelector('.plots').innerText");
    assert!(text.as_str().is_some_and(|text| text.contains("Raw records are missing for 20 of 20 rows")));
    picture(&mut browser, "report-statistics.png");
    assert_eq!(browser.complaints(), Vec::<&Value>::new());
}

/// Text of a hostile document is shown, never obeyed.
#[test]
fn hostile_text_stays_text() {
    let directory = tempfile::tempdir().expect("a directory");
    let evil =
        "</script><img src=http://192.0.2.1/x onerror=\"window.obeyed=1\"><a href='http://192.0.2.1'>x</a>";
    let number = json!({ "min": 1000, "p50": 2000, "p90": 3000, "p99": 4000, "p99_9": 5000, "max": 6000 });
    let document = json!({
        "schema": "ktsn.results/1", "experiment": evil, "started_at": evil, "command": [evil, "$(x)"],
        "environment": { evil: evil }, "parameters": { evil: evil },
        "series": [{ "path": evil, "payload_octets": 64, "load": evil, "round": "all", "latency_ns": number,
                     "class": 7, "egress": evil, "dropped": { evil: 1 } }],
        "micro": [{ "name": evil, "unit": evil }],
        "checks": [{ "name": evil, "outcome": "failed", "reason": evil }],
        "comparisons": [{ "metric": evil, "of": evil, "to": evil, "load": evil, "ratio": 2, "bar": 1, "holds": false }]
    });
    let page = directory.path().join("report.html");
    let source = Source::of(evil, &document, &[]).expect("strange, but right");
    report::write(&page, &[source.clone(), source]).expect("the page is written");

    let mut browser = Browser::start();
    browser.open(&page);
    browser.until(DRAWN);
    assert_eq!(browser.evaluate("window.obeyed === undefined"), json!(true));
    assert_eq!(browser.evaluate("document.querySelectorAll('img, a[href^=http]').length"), json!(0));
    assert_eq!(
        browser.evaluate("document.querySelector('#d1 h1').textContent"),
        json!(format!("Experiment “{evil}”"))
    );
    assert!(
        browser.requests().iter().all(|request| request.starts_with("file:")),
        "{:?}",
        browser.requests()
    );
    assert_eq!(browser.complaints(), Vec::<&Value>::new());
}
