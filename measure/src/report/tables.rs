// SPDX-License-Identifier: Apache-2.0
//! Tables: in: a document. Out: HTML that reads well without a script: paths, rounds, comparisons, micro
//! benchmarks, checks, and what the columns mean.

use super::colours::Colours;
use super::escape::html;
use super::figures::{count, maybe_count, micros, percent, significant};
use super::verdict::{figure, metric, pair};
use crate::results::{Check, CheckOutcome, Comparison, Document, Micro, Round, Series};
use ktsn_traffic::stats::Statistics;

type CellOf = fn(&Series) -> String;

/// A column: the name of its group, its own, its meaning, its cell.
struct Column {
    group: &'static str,
    name: &'static str,
    meaning: &'static str,
    cell: CellOf,
}

const fn column(group: &'static str, name: &'static str, meaning: &'static str, cell: CellOf) -> Column {
    Column { group, name, meaning, cell }
}

/// A percentile of a quantity in µs.
macro_rules! micros_of {
    ($group:literal, $quantity:ident . $percentile:ident, $decimals:literal) => {
        micros_of!($group, $quantity.$percentile, $decimals, "")
    };
    ($group:literal, $quantity:ident . $percentile:ident, $decimals:literal, $meaning:literal) => {
        column(concat!($group, ", µs"), stringify!($percentile), $meaning, |s| {
            micros(s.$quantity.map(|statistics| statistics.$percentile as f64), $decimals)
        })
    };
}

const COLUMNS: [Column; 62] = [
    column("Frames", "intended", "Instants that the talker meant to serve.", |s| {
        maybe_count(s.frames_intended)
    }),
    column("Frames", "sent", "Frames that the talker sent.", |s| maybe_count(s.frames_sent)),
    column("Frames", "lost", "Sent, never received.", |s| maybe_count(s.lost)),
    column("Frames", "early", "Handed to the port, or seen on the wire, before the requested time.", |s| {
        maybe_count(s.early)
    }),
    micros_of!(
        "Transmit error",
        transmit_error_ns.p50,
        3,
        "Hand-over to the port minus requested transmit time."
    ),
    micros_of!("Transmit error", transmit_error_ns.p90, 3),
    micros_of!(
        "Wire offset",
        wire_offset_ns.p50,
        2,
        "Seen by a tap on the receiving host's uplink minus requested time."
    ),
    micros_of!("Wire offset", wire_offset_ns.p90, 2),
    micros_of!("Wire offset", wire_offset_ns.p99, 2),
    micros_of!(
        "Wire jitter",
        wire_jitter_ns.p50,
        2,
        "How far the distance of two neighbours on the wire is from the period."
    ),
    column("Frames", "lost uncounted", "Lost, those of the load too, beyond what any counter shows.", |s| {
        maybe_count(s.lost_uncounted)
    }),
    micros_of!(
        "Network latency",
        network_latency_ns.p50,
        1,
        "From where the datapath begins to where it ends (see “How it was measured”)."
    ),
    micros_of!("Network latency", network_latency_ns.p99, 1),
    micros_of!("Network latency", network_latency_ns.p99_9, 1),
    micros_of!("Network latency", network_latency_ns.mean, 1),
    micros_of!("Network latency", network_latency_ns.stddev, 1),
    micros_of!("Network latency", network_latency_ns.max, 1),
    column("Spikes", "> 500 µs", "Frames with a network latency over 500 µs.", |s| {
        maybe_count(s.spikes_over_500us)
    }),
    column("Spikes", "> 1,000 µs", "Frames with a network latency over 1,000 µs.", |s| {
        maybe_count(s.spikes_over_1ms)
    }),
    micros_of!("Latency", latency_ns.p50, 2, "Received by the listening program minus requested time."),
    micros_of!("Latency", latency_ns.p90, 2),
    micros_of!("Latency", latency_ns.p99, 2),
    micros_of!(
        "Above the fastest",
        above_fastest_ns.p50,
        2,
        "Latency above that of the row's fastest frame: the ends have clocks of their own."
    ),
    micros_of!("Above the fastest", above_fastest_ns.p90, 2),
    micros_of!("Above the fastest", above_fastest_ns.p99, 2),
    micros_of!(
        "Between taps",
        taps_ns.p50,
        2,
        "From the publisher's tap device to the subscriber's: the hosts' part of the latency."
    ),
    micros_of!("Between taps", taps_ns.p99, 2),
    micros_of!("Jitter", jitter_ns.p50, 2, "The same distance in the listening program."),
    micros_of!(
        "Before wake-up",
        before_wake_up_ns.p50,
        2,
        "The listener's kernel stamp minus requested time: the latency without the wake-up."
    ),
    micros_of!("Wake-up", wake_up_ns.p50, 2, "From the listener's kernel stamp to the program."),
    micros_of!("Wake-up", wake_up_ns.p90, 2),
    column("Window", "outside", "Handed over while the gate of the class was closed.", |s| {
        maybe_count(s.outside_window)
    }),
    column("Window", "overrun", "Begun inside, not off the link at the close.", |s| {
        maybe_count(s.transmission_overrun)
    }),
    column(
        "Window",
        "wire outside, %",
        "Seen by the tap outside the window, or more than 10 µs after its end.",
        |s| percent(s.wire_outside_window_ratio, 2),
    ),
    micros_of!(
        "After opening",
        after_opening_ns.p50,
        2,
        "Hand-over to the port minus the opening of the window."
    ),
    micros_of!("After opening", after_opening_ns.p90, 2),
    column("Late", "> 1 µs, %", "Frames handed to the port more than 1 µs late.", |s| {
        percent(s.late_over_1us_ratio, 1)
    }),
    column("Late", "deadline missed, %", "Frames received after their deadline.", |s| {
        percent(s.deadline_missed_ratio, 1)
    }),
    micros_of!(
        "Request",
        request_ns.p50,
        2,
        "Received by the device minus the requested time of the request."
    ),
    column("Cycles lost, %", "at 250 µs", "Control cycles without an answer within 250 µs.", |s| {
        percent(s.missed_250us_ratio, 2)
    }),
    column("Cycles lost, %", "at 500 µs", "Control cycles without an answer within 500 µs.", |s| {
        percent(s.missed_500us_ratio, 2)
    }),
    column("Cycles lost, %", "at 1 ms", "Control cycles without an answer within 1 ms.", |s| {
        percent(s.missed_1ms_ratio, 2)
    }),
    column("CPU, % of one core", "talker", "The sending program.", |s| percent(s.talker_cpu_ratio, 1)),
    column("CPU, % of one core", "daemon", "ktsnd.", |s| percent(s.daemon_cpu_ratio, 1)),
    column("CPU, % of one core", "far daemon", "ktsnd on the receiving node.", |s| {
        percent(s.far_daemon_cpu_ratio, 1)
    }),
    column("CPU, % of one core", "all of KTSN", "Both daemons, and libktsn's share of the talker.", |s| {
        percent(s.ktsn_cpu_ratio, 1)
    }),
    column("CPU, % of one core", "listener", "The receiving program.", |s| percent(s.listener_cpu_ratio, 1)),
    column(
        "CPU, % of one core",
        "soft interrupts",
        "The whole machine's, by the kernel's ticks; also part of whom they interrupted.",
        |s| percent(s.softirq_cpu_ratio, 1),
    ),
    column(
        "Expected arrivals",
        "expected",
        "Waits of the listener for an arrival that was predicted.",
        |s| maybe_count(s.arrivals_expected),
    ),
    column("Expected arrivals", "hit", "The arrival came while the listener was awake for it.", |s| {
        maybe_count(s.arrivals_hit)
    }),
    column("Expected arrivals", "early", "The arrival came before the listener was awake for it.", |s| {
        maybe_count(s.arrivals_early)
    }),
    column("Expected arrivals", "missed", "The arrival did not come in its window.", |s| {
        maybe_count(s.arrivals_missed)
    }),
    column("Expected arrivals", "spun, %", "Time that the listener spun for arrivals, of one CPU.", |s| {
        percent(s.spun_ratio, 1)
    }),
    column("Load", "Mbit/s", "What the load beside it delivered.", |s| {
        s.load_bit_rate.map_or_else(|| "–".to_owned(), |rate| format!("{:.0}", rate / 1e6))
    }),
    column("Round trip, µs", "min", "The ends and the mean of a guest's round trips.", |s| {
        micros(round_trip(s).map(|trip| trip.min as f64), 1)
    }),
    column("Round trip, µs", "mean", "", |s| micros(round_trip(s).map(|trip| trip.mean), 1)),
    column("Round trip, µs", "max", "", |s| micros(round_trip(s).map(|trip| trip.max as f64), 1)),
    column("Stream", "Mbit/s", "What a TCP stream carried in its whole time.", |s| {
        s.bit_rate.map_or_else(|| "–".to_owned(), |rate| format!("{:.0}", rate / 1e6))
    }),
    column(
        "Guest",
        "interrupts",
        "Interrupts of the guest's network device for each message of 1,448 octets or round trip.",
        |s| s.interrupts_per_message.map_or_else(|| "–".to_owned(), |rate| format!("{rate:.3}")),
    ),
    column("Guest", "posted, KiB", "Receive buffers that the guest's driver had posted at most.", |s| {
        kibibytes(s.posted_peak_octets)
    }),
    column(
        "Guest",
        "buffers, KiB",
        "All buffers of the guest's driver and interface: posted, held, transmit.",
        |s| kibibytes(s.buffer_octets),
    ),
    column("Memory", "daemon, MiB", "Resident memory of ktsnd.", |s| {
        s.daemon_rss_octets
            .map_or_else(|| "–".to_owned(), |octets| format!("{:.1}", octets as f64 / 1048576.0))
    }),
];

/// The round trips of a guest.
fn round_trip(series: &Series) -> Option<Statistics> {
    series.latency_ns.filter(|_| series.tcp_octets.is_some())
}

fn kibibytes(octets: Option<f64>) -> String {
    octets.map_or_else(|| "–".to_owned(), |octets| format!("{:.1}", octets / 1024.0))
}

/// The columns that some row fills: a document of another kind leaves whole groups out.
fn columns(series: &[&Series]) -> Vec<&'static Column> {
    COLUMNS.iter().filter(|column| series.iter().any(|entry| (column.cell)(entry) != "–")).collect()
}

/// The two rows of heads over `columns`: groups, then names.
fn heads(first: &[&str], columns: &[&Column]) -> String {
    let mut groups = String::new();
    for name in first {
        groups.push_str(&format!("<th rowspan=\"2\" scope=\"col\">{name}</th>"));
    }
    let mut names = String::new();
    let mut rest = columns;
    while let Some(column) = rest.first() {
        let width = rest.iter().take_while(|other| other.group == column.group).count();
        groups.push_str(&format!(
            "<th colspan=\"{width}\" scope=\"colgroup\" class=\"g\">{}</th>",
            column.group
        ));
        for (index, column) in rest[..width].iter().enumerate() {
            let class = if index == 0 { " class=\"g\"" } else { "" };
            names.push_str(&format!("<th scope=\"col\"{class}>{}</th>", html(column.name)));
        }
        rest = &rest[width..];
    }
    format!("<thead><tr>{groups}</tr><tr>{names}</tr></thead>")
}

fn cells(series: &Series, columns: &[&Column]) -> String {
    let mut cells = String::new();
    let mut group = "";
    for column in columns {
        let class = if column.group == group { "" } else { " class=\"g\"" };
        group = column.group;
        cells.push_str(&format!("<td{class}>{}</td>", html(&(column.cell)(series))));
    }
    cells
}

/// A path's name behind a mark of its colour.
pub(super) fn swatch(colours: &Colours, path: &str, name: &str) -> String {
    format!("<span class=\"swatch\" style=\"background:{}\"></span>{}", colours.look(path).colour, html(name))
}

/// The table of all paths and payloads.
pub(super) fn paths(document: &Document, colours: &Colours) -> String {
    let mut rows = String::new();
    let mut previous = None;
    let mut series = document.summary();
    let columns = columns(&series);
    let order: Vec<&str> = series.iter().map(|entry| entry.path.as_str()).collect();
    let place = |path: &str| order.iter().position(|name| *name == path);
    series.sort_by_key(|entry| (place(&entry.path), entry.load.clone(), entry.payload_octets));
    for entry in series {
        let name = document.name(entry);
        let class = if previous.as_ref() == Some(&name) { "" } else { " class=\"first\"" };
        rows.push_str(&format!(
            "<tr{class}><th scope=\"row\">{}</th><td>{}</td>{}</tr>\n",
            swatch(colours, &entry.path, &name),
            entry.payload_octets,
            cells(entry, &columns)
        ));
        previous = Some(name);
    }
    let heads = heads(&["Path", "Payload, B"], &columns);
    format!("<div class=\"scroll\"><table class=\"figures\">{heads}<tbody>\n{rows}</tbody></table></div>")
}

/// Every round as it was measured; empty when the document has none.
pub(super) fn rounds(document: &Document, colours: &Colours) -> String {
    let mut rows = String::new();
    let columns = columns(&document.series.iter().collect::<Vec<_>>());
    for entry in &document.series {
        let Round::Number(number) = entry.round else { continue };
        rows.push_str(&format!(
            "<tr><th scope=\"row\">{}</th><td>{}</td><td>{number}</td>{}</tr>\n",
            swatch(colours, &entry.path, &document.name_without_round(entry)),
            entry.payload_octets,
            cells(entry, &columns)
        ));
    }
    if rows.is_empty() {
        return rows;
    }
    let heads = heads(&["Path", "Payload, B", "Round"], &columns);
    format!(
        "<details><summary>Every round by itself</summary>\
         <div class=\"scroll\"><table class=\"figures\">{heads}<tbody>\n{rows}</tbody></table></div></details>"
    )
}

/// Which way each path took, where the document says so; empty if it never does.
pub(super) fn ways(document: &Document, colours: &Colours) -> String {
    let mut lines: Vec<String> = Vec::new();
    for entry in document.summary() {
        let class = entry.class.map(|class| class.to_string());
        let modes = [
            ("class", &class),
            ("egress", &entry.egress),
            ("overlay", &entry.overlay),
            ("ingress", &entry.ingress),
        ];
        let words = modes.into_iter().filter_map(|(key, mode)| Some(format!("{key} {}", mode.as_ref()?)));
        let words: Vec<String> = words.collect();
        if words.is_empty() {
            continue;
        }
        let path = swatch(colours, &entry.path, &document.name_without_load(entry));
        let line = format!("<li>{path}: {}</li>", html(&words.join(", ")));
        if !lines.contains(&line) {
            lines.push(line);
        }
    }
    if lines.is_empty() { String::new() } else { format!("<ul class=\"ways\">{}</ul>", lines.concat()) }
}

/// What the columns mean.
pub(super) fn meanings(document: &Document) -> String {
    let mut list = String::new();
    if document.wire_by_listener() {
        list.push_str(
            "<dt>Note</dt><dd>There was no tap: “on the wire” is the listener's own kernel stamp.</dd>",
        );
    }
    for column in COLUMNS.iter().filter(|column| !column.meaning.is_empty()) {
        let title = match column.group {
            "Frames" | "Spikes" | "Window" | "Late" | "Cycles lost, %" | "Expected arrivals"
            | "CPU, % of one core" | "Memory" | "Guest" => {
                format!("{}: {}", column.group, column.name)
            }
            group => group.to_owned(),
        };
        list.push_str(&format!("<dt>{}</dt><dd>{}</dd>", html(&title), html(column.meaning)));
    }
    format!("<details><summary>What the columns mean</summary><dl>{list}</dl></details>")
}

/// A cell: its class (empty: a figure) and its HTML.
pub(super) type Cell = (&'static str, String);

/// A cell of text.
pub(super) fn words(text: &str) -> Cell {
    ("text", html(text))
}

/// A table of this class (empty: none), with the names of the rows in its first column; empty without rows. A head is its class and
/// its name.
pub(super) fn table(class: &str, heads: &[(&str, &str)], rows: &[Vec<Cell>]) -> String {
    let attribute =
        |class: &str| if class.is_empty() { String::new() } else { format!(" class=\"{class}\"") };
    let head = |(class, name): &(&str, &str)| format!("<th scope=\"col\"{}>{name}</th>", attribute(class));
    let heads: String = heads.iter().map(head).collect();
    let mut body = String::new();
    for row in rows {
        body.push_str("<tr>");
        for (index, (class, cell)) in row.iter().enumerate() {
            body.push_str(&match index {
                0 => format!("<th scope=\"row\">{cell}</th>"),
                _ => format!("<td{}>{cell}</td>", attribute(class)),
            });
        }
        body.push_str("</tr>\n");
    }
    if rows.is_empty() {
        return String::new();
    }
    let thead = if heads.is_empty() { heads } else { format!("<thead><tr>{heads}</tr></thead>") };
    format!("<div class=\"scroll\"><table{}>{thead}<tbody>\n{body}</tbody></table></div>", attribute(class))
}

fn or_dash<T>(value: Option<T>, shown: impl FnOnce(T) -> String) -> String {
    value.map_or_else(|| "–".to_owned(), shown)
}

/// Comparisons with their bars; empty without any.
pub(super) fn comparisons(document: &Document) -> String {
    let row = |comparison: &Comparison| {
        let (class, word) = match comparison.holds {
            Some(true) => ("text good", "✓ held"),
            Some(false) => ("text bad", "✗ missed"),
            None => ("text ", "reported"),
        };
        vec![
            words(&metric(&comparison.metric)),
            words(&pair(comparison)),
            ("", or_dash(comparison.payload_octets, |octets| octets.to_string())),
            words(comparison.load.as_deref().unwrap_or("–")),
            ("", figure(comparison, comparison.ratio)),
            ("", or_dash(comparison.bar, |bar| format!("≤ {}", figure(comparison, Some(bar))))),
            (class, word.to_owned()),
        ]
    };
    let heads = [
        ("", "Metric"),
        ("text", "Paths"),
        ("", "Payload, B"),
        ("text", "Load"),
        ("", "Ratio or figure"),
        ("", "Bar"),
        ("text", "Verdict"),
    ];
    table("", &heads, &document.comparisons.iter().map(row).collect::<Vec<_>>())
}

/// Micro-benchmarks; empty without any.
pub(super) fn micro(document: &Document) -> String {
    let row = |micro: &Micro| {
        vec![
            words(&micro.name),
            ("", or_dash((!micro.p50.is_nan()).then_some(micro.p50), significant)),
            ("", or_dash(micro.p90, significant)),
            words(&micro.unit),
            ("", or_dash((micro.samples > 0).then_some(micro.samples), count)),
        ]
    };
    let heads = [("", "Benchmark"), ("", "p50"), ("", "p90"), ("text", "Unit"), ("", "Samples")];
    table("", &heads, &document.micro.iter().map(row).collect::<Vec<_>>())
}

/// Checks; empty without any.
pub(super) fn checks(document: &Document) -> String {
    let row = |check: &Check| {
        let (class, word) = match check.outcome {
            CheckOutcome::Passed => ("text good", "passed"),
            CheckOutcome::Failed => ("text bad", "failed"),
            CheckOutcome::Skipped => ("text ", "skipped"),
        };
        let reason = words(check.reason.as_deref().unwrap_or("–"));
        vec![words(&check.name), (class, word.to_owned()), reason]
    };
    let heads = [("", "Check"), ("text", "Outcome"), ("text", "Reason")];
    table("words", &heads, &document.checks.iter().map(row).collect::<Vec<_>>())
}

/// Frames that were dropped, bypassed, overrun, doubled or out of order, by reason; empty when there are none.
pub(super) fn reasons(document: &Document) -> String {
    let mut rows = Vec::new();
    for entry in document.summary() {
        let dropped = entry.dropped.iter().map(|(reason, value)| (format!("dropped: {reason}"), *value));
        let passed = entry.bypassed.iter();
        let passed = passed.map(|(reason, value)| (format!("passed to the kernel: {reason}"), *value));
        let named = [
            ("overrun", entry.overrun),
            ("late (the default late = by-clock drops these on TAI)", entry.late),
            ("duplicated", entry.duplicates),
            ("reordered", entry.reordered),
        ];
        let named = named.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
        for (reason, value) in dropped.chain(passed).chain(named).filter(|(_, value)| *value > 0) {
            let payload = entry.payload_octets.to_string();
            rows.push(vec![words(&document.name(entry)), ("", payload), words(&reason), ("", count(value))]);
        }
    }
    let heads = [("", "Path"), ("", "Payload, B"), ("text", "Reason"), ("", "Frames")];
    match table("", &heads, &rows) {
        empty if empty.is_empty() => empty,
        table => format!("<details open><summary>Frames by reason</summary>{table}</details>"),
    }
}
