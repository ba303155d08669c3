// SPDX-License-Identifier: Apache-2.0
//! Results as text for a terminal. In: a document. Out: tables; times in microseconds, ratios in per cent. What was not
//! measured is shown as `–`, never as zero. Nothing is computed here.

use crate::hosts::TwoHosts;
use crate::results::{CheckOutcome, Document, Round, Series};
use comfy_table::{CellAlignment, ContentArrangement, Table, presets};

pub(crate) mod realtime;

pub use realtime::{changes, differences};

const ABSENT: &str = "–";

type Column = (&'static str, &'static str, fn(f64) -> String);

/// Head, metric, form. p50, p90, p99, CPU and late ratios stand together.
const COLUMNS: &[Column] = &[
    ("frames", "frames_received", count),
    ("lost", "lost", count),
    ("early", "early", count),
    ("error p50", "transmit_error_ns.p50", micros),
    ("p90", "transmit_error_ns.p90", micros),
    ("> 1 µs", "late_over_1us_ratio", percent),
    ("wire p50", "wire_offset_ns.p50", micros),
    ("p90", "wire_offset_ns.p90", micros),
    ("p99", "wire_offset_ns.p99", micros),
    ("p99.9", "wire_offset_ns.p99_9", micros),
    ("w.jitter p50", "wire_jitter_ns.p50", micros),
    ("latency p50", "latency_ns.p50", micros),
    ("p90", "latency_ns.p90", micros),
    ("p99", "latency_ns.p99", micros),
    ("CPU talker", "talker_cpu_ratio", percent),
    ("daemon", "daemon_cpu_ratio", percent),
];

/// More of them where gates were judged.
const GATE_COLUMNS: &[Column] = &[
    ("outside window", "outside_window", count),
    ("overrun", "transmission_overrun", count),
    ("unproven", "transmission_overrun_unproven", count),
    ("wire outside", "wire_outside_window_ratio", percent),
    ("opening p50", "after_opening_ns.p50", micros),
    ("p90", "after_opening_ns.p90", micros),
];

/// The columns of listeners that were measured without a tap.
const RECEIVE_COLUMNS: &[Column] = &[
    ("frames", "frames_received", count),
    ("lost", "lost", count),
    ("latency p50", "latency_ns.p50", micros),
    ("p90", "latency_ns.p90", micros),
    ("p99", "latency_ns.p99", micros),
    ("jitter p50", "jitter_ns.p50", micros),
    ("p90", "jitter_ns.p90", micros),
    ("CPU listener", "listener_cpu_ratio", percent),
    ("spun", "spun_ratio", percent),
    ("expected", "arrivals_expected", count),
    ("hit", "arrivals_hit", count),
    ("early", "arrivals_early", count),
    ("missed", "arrivals_missed", count),
    ("far daemon", "far_daemon_cpu_ratio", percent),
    ("daemon", "daemon_cpu_ratio", percent),
];

/// The columns of a control loop.
const LOOP_COLUMNS: &[Column] = &[
    ("cycles", "frames_intended", count),
    ("lost", "lost", count),
    ("round trip p50", "latency_ns.p50", micros),
    ("p90", "latency_ns.p90", micros),
    ("p99", "latency_ns.p99", micros),
    ("request p50", "request_ns.p50", micros),
    ("lost at 250 µs", "missed_250us_ratio", percent),
    ("500 µs", "missed_500us_ratio", percent),
    ("1 ms", "missed_1ms_ratio", percent),
    ("CPU controller", "talker_cpu_ratio", percent),
    ("device", "listener_cpu_ratio", percent),
    ("daemon", "daemon_cpu_ratio", percent),
    ("far daemon", "far_daemon_cpu_ratio", percent),
];

/// The columns of datapaths.
const DATAPATHS_COLUMNS: &[Column] = &[
    ("frames", "frames_received", count),
    ("lost", "lost", count),
    ("uncounted", "lost_uncounted", count),
    ("network min", "network_latency_ns.min", micros),
    ("p50", "network_latency_ns.p50", micros),
    ("p99", "network_latency_ns.p99", micros),
    ("p99.9", "network_latency_ns.p99_9", micros),
    ("max", "network_latency_ns.max", micros),
    ("mean", "network_latency_ns.mean", micros),
    ("stddev", "network_latency_ns.stddev", micros),
    ("stable mean", "stable_latency_ns.mean", micros),
    ("stddev", "stable_latency_ns.stddev", micros),
    ("> 500 µs", "spikes_over_500us", count),
    ("> 1 ms", "spikes_over_1ms", count),
    ("user p50", "latency_ns.p50", micros),
    ("p99", "latency_ns.p99", micros),
];

/// The columns of guests.
const RTOS_COLUMNS: &[Column] = &[
    ("round trip p50", "latency_ns.p50", micros),
    ("mean", "latency_ns.mean", micros),
    ("p99", "latency_ns.p99", micros),
    ("min", "latency_ns.min", micros),
    ("max", "latency_ns.max", micros),
    ("Mbit/s", "bit_rate", |rate| count(rate / 1e6)),
    ("interrupts/message", "interrupts_per_message", |rate| format!("{rate:.3}")),
    ("posted KiB", "posted_peak_octets", |octets| format!("{:.1}", octets / 1024.0)),
    ("buffers KiB", "buffer_octets", |octets| format!("{:.1}", octets / 1024.0)),
];

/// The columns of publishers and subscribers in guests.
const VM_COLUMNS: &[Column] = &[
    ("frames", "frames_received", count),
    ("lost", "lost", count),
    ("latency p50", "latency_ns.p50", micros),
    ("p99", "latency_ns.p99", micros),
    ("over 0.4 ms", "deadline_missed_ratio", percent),
    ("above fastest p50", "above_fastest_ns.p50", micros),
    ("p90", "above_fastest_ns.p90", micros),
    ("p99", "above_fastest_ns.p99", micros),
    ("at the tap p50", "wire_offset_ns.p50", micros),
    ("± p50", "wire_offset_magnitude_ns.p50", micros),
    ("taps p50", "taps_ns.p50", micros),
    ("p99", "taps_ns.p99", micros),
    ("jitter p50", "jitter_ns.p50", micros),
    ("p99", "jitter_ns.p99", micros),
    ("CPU talker", "talker_cpu_ratio", percent),
    ("daemon", "daemon_cpu_ratio", percent),
];

/// The columns of guests' clocks.
const CLOCK_COLUMNS: &[Column] = &[
    ("samples", "clock_samples", count),
    ("error p50", "clock_error_ns.p50", micros),
    ("p99", "clock_error_ns.p99", micros),
    ("max", "clock_error_ns.max", micros),
    ("page p50", "page_error_ns.p50", micros),
    ("p99", "page_error_ns.p99", micros),
    ("back after a pause, s", "clock_recovery_ns", |nanos| format!("{:.2}", nanos / 1e9)),
    ("set back", "clock_set_back", count),
    ("beyond bound", "bound_missed", count),
    ("CPU guest", "clock_guest_cpu_ratio", hundredths),
    ("host", "clock_host_cpu_ratio", hundredths),
];

fn hundredths(ratio: f64) -> String {
    format!("{:.2} %", ratio * 100.0)
}

fn count(value: f64) -> String {
    format!("{value:.0}")
}

fn micros(nanos: f64) -> String {
    let micros = nanos / 1e3;
    if micros.abs() < 10.0 { format!("{micros:.2}") } else { format!("{micros:.1}") }
}

fn percent(ratio: f64) -> String {
    format!("{:.1} %", ratio * 100.0)
}

fn table(head: impl IntoIterator<Item = &'static str>, text_columns: usize) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(head);
    for column in table.column_iter_mut().skip(text_columns) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

fn name(series: &Series, with_class: bool) -> String {
    let class = series.class.filter(|_| with_class).map(|class| format!(", class {class}"));
    let load = series.load.as_deref().filter(|load| *load != "idle").map(|load| format!(" ({load})"));
    let round = match series.round {
        Round::All => String::new(),
        Round::Number(number) => format!(", round {number}"),
    };
    let (load, class) = (load.unwrap_or_default(), class.unwrap_or_default());
    format!("{}{load}{class}{}{round}", series.path, series.configuration())
}

/// One row per path and payload, of all rounds together; of the single rounds where no `"all"` entry exists.
#[must_use]
pub fn series(document: &Document) -> String {
    let mut rows = document.summary();
    // Paths stand together per payload; within one the document's order stays.
    rows.sort_by_key(|series| series.payload_octets);
    let gated = rows.iter().any(|row| row.outside_window.is_some());
    let columns: Vec<&Column> = match document.experiment.as_str() {
        "receive" => RECEIVE_COLUMNS.iter().collect(),
        "loop" => LOOP_COLUMNS.iter().collect(),
        "rtos" => RTOS_COLUMNS.iter().collect(),
        "datapaths" => DATAPATHS_COLUMNS.iter().collect(),
        "vm" => VM_COLUMNS.iter().collect(),
        "clock" => CLOCK_COLUMNS.iter().collect(),
        _ => COLUMNS.iter().chain(GATE_COLUMNS.iter().filter(|_| gated)).collect(),
    };
    let classes = rows.iter().any(|row| row.class != rows[0].class);
    let table = |rows: &[&Series]| {
        let mut table = table(["path", "octets"].into_iter().chain(columns.iter().map(|column| column.0)), 1);
        for row in rows {
            let mut cells = vec![name(row, classes), row.payload_octets.to_string()];
            let figure = |column: &Column| row.metric(column.1).map_or_else(|| ABSENT.to_owned(), column.2);
            cells.extend(columns.iter().copied().map(figure));
            table.add_row(cells);
        }
        table
    };
    let times = match document.experiment.as_str() {
        "rtos" => "round trips in µs; medians of the rounds",
        "datapaths" => {
            "µs through the datapath (network) and from user space to user space; medians of the rounds, counts summed"
        }
        "clock" => {
            "µs that the guest's clock, and the host's time by its page, are off the host's; medians of the rounds, counts summed"
        }
        _ => "µs after the transmit time asked for; medians of the rounds, counts summed",
    };
    // How guests ran decides what their figures may be compared with.
    let (guests, others): (Vec<&Series>, Vec<&Series>) =
        rows.iter().partition(|row| row.accelerator.is_some());
    let mut text = format!("{times}\n");
    if !others.is_empty() || guests.is_empty() {
        text.push_str(&format!("{}\n", table(&others)));
    }
    if let Some(accelerator) = guests.first().and_then(|row| row.accelerator.as_ref()) {
        text.push_str(&format!("guests ({accelerator})\n{}\n", table(&guests)));
    }
    text
}

/// The comparisons with their bars.
#[must_use]
pub fn comparisons(document: &Document) -> String {
    let mut table = table(["metric", "of / to", "octets", "ratio", "bar", "holds"], 2);
    let number = |value: Option<f64>| value.map_or_else(|| ABSENT.to_owned(), significant);
    for comparison in &document.comparisons {
        let to = comparison.to.as_ref().map_or_else(String::new, |to| format!(" / {to}"));
        let load = comparison.load.as_deref().filter(|load| *load != "idle");
        let load = load.map_or_else(String::new, |load| format!(" ({load})"));
        let paths = format!("{}{to}{load}", comparison.of);
        let holds = match comparison.holds {
            None => ABSENT,
            Some(true) => "yes",
            Some(false) => "NO",
        };
        let octets = comparison.payload_octets.map_or_else(|| ABSENT.to_owned(), |octets| octets.to_string());
        let bar = comparison.bar.map_or_else(|| ABSENT.to_owned(), |bar| format!("≤ {}", significant(bar)));
        table.add_row([
            comparison.metric.clone(),
            paths,
            octets,
            number(comparison.ratio),
            bar,
            holds.to_owned(),
        ]);
    }
    format!("{table}\n")
}

/// Three significant digits, whole numbers in full.
fn significant(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 1.0 || size == 0.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

/// The micro-benchmarks.
#[must_use]
pub fn micro(document: &Document) -> String {
    let mut table = table(["name", "unit", "p50", "p90", "samples"], 2);
    for micro in &document.micro {
        let p90 = micro.p90.map_or_else(|| ABSENT.to_owned(), significant);
        let cells =
            [micro.name.clone(), micro.unit.clone(), significant(micro.p50), p90, micro.samples.to_string()];
        table.add_row(cells);
    }
    format!("{table}\n")
}

/// The checks.
#[must_use]
pub fn checks(document: &Document) -> String {
    let mut table = table(["check", "outcome", "reason"], 3);
    for check in &document.checks {
        let outcome = match check.outcome {
            CheckOutcome::Passed => "passed",
            CheckOutcome::Failed => "FAILED",
            CheckOutcome::Skipped => "skipped",
        };
        table.add_row([check.name.as_str(), outcome, check.reason.as_deref().unwrap_or_default()]);
    }
    format!("{table}\n")
}

/// Every table that has rows.
#[must_use]
pub fn document(document: &Document) -> String {
    let mut shown = Vec::new();
    shown.extend(TwoHosts::of(document).map(|hosts| format!("{}\n", hosts.sentence())));
    shown.extend(document.realtime.as_ref().map(realtime::realtime));
    if !document.series.is_empty() {
        shown.push(series(document));
    }
    if !document.comparisons.is_empty() {
        shown.push(comparisons(document));
    }
    if !document.micro.is_empty() {
        shown.push(micro(document));
    }
    if !document.checks.is_empty() {
        shown.push(checks(document));
    }
    shown.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::{Check, Micro, Question};
    use ktsn_traffic::stats::Statistics;

    fn example() -> Document {
        let mut document = Document::new("container", Vec::new());
        for (path, p50) in [("flannel", 31_800), ("ktsn", 2_100)] {
            let round = Series {
                path: path.into(),
                payload_octets: 64,
                round: Round::Number(1),
                frames_received: Some(5000),
                late_over_1us_ratio: Some(0.0123),
                wire_offset_ns: Some(Statistics { p50, ..Statistics::default() }),
                ..Series::default()
            };
            document.add_rounds(vec![round]);
        }
        document
    }

    #[test]
    fn rows_show_microseconds_and_what_is_absent() {
        let text = series(&example());
        let row = text.lines().find(|line| line.contains("ktsn")).unwrap();
        assert!(
            row.contains("2.10") && row.contains("5000") && row.contains("1.2 %") && row.contains(ABSENT),
            "{row}"
        );
        assert!(text.contains("31.8"));
        // Single rounds are in the document, not in the table.
        assert_eq!(text.lines().filter(|line| line.contains("5000")).count(), 2);
    }

    #[test]
    fn classes_and_windows_are_shown_where_they_differ() {
        let mut document = Document::new("gates", Vec::new());
        for (class, outside) in [(7, 0), (0, 3)] {
            let round = Series {
                path: "ktsn".into(),
                payload_octets: 64 + usize::from(class),
                class: Some(class),
                round: Round::Number(1),
                outside_window: Some(outside),
                ..Series::default()
            };
            document.add_rounds(vec![round]);
        }
        let text = series(&document);
        assert!(text.contains("ktsn, class 7") && text.contains("ktsn, class 0"), "{text}");
        assert!(text.contains("outside window"));
        assert!(!series(&example()).contains("outside window"));
    }

    #[test]
    fn verdicts_are_shown_with_their_bars() {
        let mut document = example();
        let question = Question {
            metric: "wire_offset_ns.p50",
            payload_octets: 64,
            load: None,
            of: "ktsn",
            to: Some("flannel"),
            bar: Some(0.10),
        };
        document.compare(&question);
        document.compare(&Question { bar: Some(0.01), ..question });
        let text = comparisons(&document);
        assert!(
            text.contains("ktsn / flannel") && text.contains("0.066") && text.contains("≤ 0.100"),
            "{text}"
        );
        assert!(text.contains("yes") && text.contains("NO"));
    }

    #[test]
    fn guests_are_named_with_their_configuration() {
        let mut document = Document::new("rtos", Vec::new());
        for (posted_max, bit_rate) in [(None, 9e8), (Some(8), 8e8)] {
            let round = Series {
                path: "guest".into(),
                load: Some("receive".into()),
                tcp_octets: Some(65_536),
                posted_max,
                round: Round::Number(1),
                bit_rate: Some(bit_rate),
                posted_peak_octets: posted_max.map(|buffers| buffers as f64 * 1536.0),
                ..Series::default()
            };
            document.add_rounds(vec![round]);
        }
        let text = series(&document);
        assert!(text.contains("guest (receive), TCP 64 KiB ") && text.contains(" 900 "), "{text}");
        assert!(text.contains("guest (receive), TCP 64 KiB, 8 posted") && text.contains(" 12.0 "), "{text}");
    }

    #[test]
    fn only_tables_with_rows_are_shown() {
        let mut document = Document::new("x", Vec::new());
        assert_eq!(super::document(&document), "");
        document.micro.push(Micro {
            name: "send".into(),
            unit: "ns".into(),
            p50: 312.4,
            p90: None,
            samples: 9,
        });
        let reason = Some("no right".to_owned());
        document.checks.push(Check { name: "clock".into(), outcome: CheckOutcome::Skipped, reason });
        let text = super::document(&document);
        assert!(text.contains("312") && text.contains("skipped") && text.contains("no right"));
        assert!(!text.contains("path"));
    }
}
