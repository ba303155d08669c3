// SPDX-License-Identifier: Apache-2.0
//! A realistic experiment, made up from a seed: in: a directory. Out: `results.json` and `records/` in it.
//! Distributions are of the size that the paths have on an idle machine; the same seed makes the same files.

use ktsn_measure::records::{self, Record, RunRecords};
use ktsn_measure::stats::{Jitter, Statistics};
use ktsn_time::{Nanos, Tai};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

pub(crate) const PATHS: [&str; 5] = ["bare", "bare-spin", "flannel", "flannel-spin", "ktsn"];
pub(crate) const PAYLOADS: [usize; 4] = [16, 64, 256, 1024];
pub(crate) const ROUNDS: u32 = 3;
pub(crate) const FRAMES: u64 = 2_000;
/// This frame of the first round is lost on the path `flannel`, with every payload.
pub(crate) const LOST: u64 = 1_000;
const PERIOD: u64 = 1_000_000;

/// xorshift64*: enough for pictures.
struct Random(u64);

impl Random {
    /// Between 0 and 1.
    fn next(&mut self) -> f64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// About normal, mean 0, deviation 1.
    fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.next()).sum::<f64>() - 6.0
    }

    /// `median` nanoseconds, spread log-normally, now and then far out.
    fn delay(&mut self, median: f64, spread: f64) -> u64 {
        let rare = if self.next() < 0.004 { 3.0 + 5.0 * self.next() } else { 1.0 };
        (median * (spread * self.normal()).exp() * rare) as u64
    }
}

/// Medians of wire offset and of the way from the wire to the program, in nanoseconds, and the spread.
fn shape(path: &str) -> (f64, f64, f64) {
    match path {
        "bare" => (27_500.0, 30_000.0, 0.14),
        "bare-spin" => (4_000.0, 32_000.0, 0.06),
        "flannel" => (31_800.0, 38_000.0, 0.16),
        "flannel-spin" => (8_500.0, 37_000.0, 0.07),
        _ => (2_100.0, 36_000.0, 0.05),
    }
}

fn round(path: &str, payload: usize, round: u32, random: &mut Random) -> RunRecords {
    let (wire, rest, spread) = shape(path);
    let start = 1_795_000_000_000_000_000 + u64::from(round) * 60_000_000_000;
    let records = (0..FRAMES).map(|sequence| {
        let tx_time = start + sequence * PERIOD;
        let wire_at = tx_time + random.delay(wire + payload as f64, spread);
        let kernel_at = wire_at + random.delay(4_000.0, 0.1);
        let received_at = kernel_at + random.delay(rest, 0.12);
        let lost = path == "flannel" && round == 1 && sequence == LOST;
        let seen = |at: u64| (!lost).then(|| Tai::from_nanos(at));
        Record {
            sequence,
            tx_time: Tai::from_nanos(tx_time),
            handed_at: Some(Tai::from_nanos(tx_time + random.delay(47.0, 0.5))),
            wire_at: seen(wire_at),
            kernel_at: seen(kernel_at),
            received_at: seen(received_at),
        }
    });
    RunRecords {
        path: path.to_owned(),
        payload_octets: payload,
        load: None,
        round,
        records: records.collect(),
    }
}

/// One entry of `series`.
fn entry(runs: &[RunRecords], round: &Value) -> Value {
    let each = |field: fn(&Record) -> Option<Tai>| -> Option<Statistics> {
        let after = |run: &RunRecords| {
            Statistics::of(run.records.iter().filter_map(|r| field(r).map(|at| at.since(r.tx_time))))
        };
        Statistics::median_of(&runs.iter().filter_map(after).collect::<Vec<_>>())
    };
    let jitter = |field: fn(&Record) -> Option<Tai>| -> Option<Statistics> {
        let of =
            |run: &RunRecords| Jitter::of(run.records.iter().map(|r| (r.tx_time, field(r)))).statistics();
        Statistics::median_of(&runs.iter().filter_map(of).collect::<Vec<_>>())
    };
    let all = || runs.iter().flat_map(|run| &run.records);
    let sent = all().count();
    let received = all().filter(|record| record.received_at.is_some()).count();
    let late =
        |record: &&Record| record.handed_at.is_some_and(|at| at.since(record.tx_time) > Nanos::new(1_000));
    let mut entry = json!({
        "path": runs[0].path, "payload_octets": runs[0].payload_octets, "load": "idle", "round": round,
        "frames_intended": sent, "frames_sent": sent, "frames_received": received, "lost": sent - received,
        "duplicates": 0, "reordered": 0, "early": 0,
        "transmit_error_ns": each(|r| r.handed_at), "wire_offset_ns": each(|r| r.wire_at),
        "latency_ns": each(|r| r.received_at), "jitter_ns": jitter(|r| r.received_at),
        "wire_jitter_ns": jitter(|r| r.wire_at),
        "late_over_1us_ratio": all().filter(late).count() as f64 / sent as f64,
        "talker_cpu_ratio": 0.041, "listener_cpu_ratio": 0.052, "voided_rounds": 0, "steal_ratio": 0.0012,
        "cpu_pressure_some_ratio": 0.004
    });
    if runs[0].path == "ktsn" {
        entry["class"] = json!(7);
        entry["overlay"] = json!("vxlan-routed");
        entry["ingress"] = json!("kernel");
        entry["daemon_cpu_ratio"] = json!(0.063);
        entry["overrun"] = json!(2);
    }
    entry
}

fn comparison(series: &[Value], quantity: &str, to: &str, bar: f64) -> Value {
    let p50 = |path: &str| {
        let found =
            series.iter().find(|s| s["path"] == path && s["payload_octets"] == 64 && s["round"] == "all");
        found.and_then(|s| s[quantity]["p50"].as_f64()).unwrap_or(f64::NAN)
    };
    let ratio = p50("ktsn") / p50(to);
    json!({ "metric": format!("{quantity}.p50"), "payload_octets": 64, "load": "idle", "of": "ktsn", "to": to,
            "ratio": ratio, "bar": bar, "holds": ratio <= bar })
}

/// Writes the experiment into `directory`; the records only when asked for. Returns the JSON's path.
pub(crate) fn experiment(directory: &Path, with_records: bool) -> PathBuf {
    let mut random = Random(0x6b74_736e);
    let mut series = Vec::new();
    std::fs::create_dir_all(directory.join("records")).expect("a directory");
    for path in PATHS {
        for payload in PAYLOADS {
            let runs: Vec<RunRecords> = (1..=ROUNDS).map(|n| round(path, payload, n, &mut random)).collect();
            series.extend(runs.iter().map(|run| entry(std::slice::from_ref(run), &json!(run.round))));
            series.push(entry(&runs, &json!("all")));
            if with_records {
                let file = directory.join(format!("records/{path}-{payload}.csv.zst"));
                records::save_runs(&file, runs.iter()).expect("records are written");
            }
        }
    }
    let comparisons = json!([
        comparison(&series, "wire_offset_ns", "flannel", 0.10),
        comparison(&series, "wire_offset_ns", "flannel-spin", 0.35),
        comparison(&series, "wire_offset_ns", "bare", 0.14),
        comparison(&series, "wire_offset_ns", "bare-spin", 0.65),
        comparison(&series, "wire_jitter_ns", "flannel", 0.30),
        comparison(&series, "wire_jitter_ns", "flannel-spin", 0.5),
        comparison(&series, "latency_ns", "flannel", 0.72),
        comparison(&series, "latency_ns", "bare", 0.60),
    ]);
    let document = json!({
        "schema": "ktsn.results/1", "experiment": "container", "started_at": "2026-11-21T02:00:00Z",
        "command": ["ktsn", "bench", "container", "--seconds", "2", "--path", PATHS.join(",")],
        "environment": { "kernel": "6.18.0 <made up>", "cpus": 2, "cpu_model": "Generated & seeded", "preempt": "none",
            "clocksource": "tsc", "tai_offset_seconds": 0, "clock_synchronised": false,
            "load_average": [0.5, 0.4, 0.3], "versions": { "ktsn": "0.1.0" } },
        "parameters": { "period_ns": PERIOD, "payload_octets": PAYLOADS, "frames": FRAMES, "rounds": ROUNDS,
            "interleaved": true, "deadline_ns": 400_000 },
        "series": series, "comparisons": comparisons
    });
    let file = directory.join("results.json");
    std::fs::write(&file, document.to_string()).expect("the document is written");
    file
}
