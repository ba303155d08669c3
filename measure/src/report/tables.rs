// SPDX-License-Identifier: Apache-2.0
//! Tables: in: a document. Out: HTML that reads well without a script: paths, rounds, comparisons, micro
//! benchmarks, checks, and what the columns mean.

use super::colours::Colours;
use super::escape::html;
use super::figures::{count, maybe_count, micros, percent, significant};
use super::model::{Document, Figures, Series};
use super::verdict::{figure, metric, pair};

type Cell = fn(&Series) -> String;

/// A column: the name of its group, its own, its meaning, its cell.
struct Column {
    group: &'static str,
    name: &'static str,
    meaning: &'static str,
    cell: Cell,
}

fn of(figures: Option<Figures>, pick: fn(&Figures) -> Option<f64>) -> Option<f64> {
    figures.as_ref().and_then(pick)
}

const fn column(group: &'static str, name: &'static str, meaning: &'static str, cell: Cell) -> Column {
    Column { group, name, meaning, cell }
}

/// A percentile of a quantity in µs.
macro_rules! micros_of {
    ($group:literal, $quantity:ident . $percentile:ident, $decimals:literal) => {
        micros_of!($group, $quantity.$percentile, $decimals, "")
    };
    ($group:literal, $quantity:ident . $percentile:ident, $decimals:literal, $meaning:literal) => {
        column(concat!($group, ", µs"), stringify!($percentile), $meaning, |s| {
            micros(of(s.$quantity, |f| f.$percentile), $decimals)
        })
    };
}

const COLUMNS: [Column; 32] = [
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
        transmit_error.p50,
        3,
        "Hand-over to the port minus requested transmit time."
    ),
    micros_of!("Transmit error", transmit_error.p90, 3),
    micros_of!(
        "Wire offset",
        wire_offset.p50,
        2,
        "Seen by a tap on the receiving host's uplink minus requested time."
    ),
    micros_of!("Wire offset", wire_offset.p90, 2),
    micros_of!("Wire offset", wire_offset.p99, 2),
    micros_of!(
        "Wire jitter",
        wire_jitter.p50,
        2,
        "How far the distance of two neighbours on the wire is from the period."
    ),
    micros_of!("Latency", latency.p50, 2, "Received by the listening program minus requested time."),
    micros_of!("Latency", latency.p90, 2),
    micros_of!("Latency", latency.p99, 2),
    micros_of!("Jitter", jitter.p50, 2, "The same distance in the listening program."),
    micros_of!(
        "Before wake-up",
        before_wake_up.p50,
        2,
        "The listener's kernel stamp minus requested time: the latency without the wake-up."
    ),
    micros_of!("Wake-up", wake_up.p50, 2, "From the listener's kernel stamp to the program."),
    micros_of!("Wake-up", wake_up.p90, 2),
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
        after_opening.p50,
        2,
        "Hand-over to the port minus the opening of the window."
    ),
    micros_of!("After opening", after_opening.p90, 2),
    column("Late", "> 1 µs, %", "Frames handed to the port more than 1 µs late.", |s| {
        percent(s.late_over_1us_ratio, 1)
    }),
    column("Late", "deadline missed, %", "Frames received after their deadline.", |s| {
        percent(s.deadline_missed_ratio, 1)
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
    column("Load", "Mbit/s", "What the load beside it delivered.", |s| {
        s.load_bit_rate.map_or_else(|| "–".to_owned(), |rate| format!("{:.0}", rate / 1e6))
    }),
    column("Memory", "daemon, MiB", "Resident memory of ktsnd.", |s| {
        s.daemon_rss_octets
            .map_or_else(|| "–".to_owned(), |octets| format!("{:.1}", octets as f64 / 1048576.0))
    }),
];

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
fn swatch(colours: &Colours, path: &str, name: &str) -> String {
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
        let super::model::Round::Number(number) = entry.round else { continue };
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
    for entry in document.summary().into_iter().filter(|entry| !entry.way.is_empty()) {
        let words: Vec<String> = entry.way.iter().map(|(key, value)| format!("{key} {value}")).collect();
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
            "Frames" | "Window" | "Late" | "CPU, % of one core" | "Memory" => {
                format!("{}: {}", column.group, column.name)
            }
            group => group.to_owned(),
        };
        list.push_str(&format!("<dt>{}</dt><dd>{}</dd>", html(&title), html(column.meaning)));
    }
    format!("<details><summary>What the columns mean</summary><dl>{list}</dl></details>")
}

/// Comparisons with their bars; empty without any.
pub(super) fn comparisons(document: &Document) -> String {
    let mut rows = String::new();
    for comparison in &document.comparisons {
        let (class, word) = match comparison.holds {
            Some(true) => ("good", "✓ held"),
            Some(false) => ("bad", "✗ missed"),
            None => ("", "reported"),
        };
        let bar = comparison
            .bar
            .map_or_else(|| "–".to_owned(), |bar| format!("≤ {}", figure(comparison, Some(bar))));
        let payload = comparison.payload_octets.map_or_else(|| "–".to_owned(), |octets| octets.to_string());
        rows.push_str(&format!(
            "<tr><th scope=\"row\">{}</th><td class=\"text\">{}</td><td>{payload}</td><td class=\"text\">{}</td>\
             <td>{}</td><td>{bar}</td><td class=\"text {class}\">{word}</td></tr>\n",
            html(&metric(&comparison.metric)),
            html(&pair(comparison)),
            html(comparison.load.as_deref().unwrap_or("–")),
            figure(comparison, comparison.ratio),
        ));
    }
    if rows.is_empty() {
        return rows;
    }
    format!(
        "<div class=\"scroll\"><table><thead><tr><th scope=\"col\">Metric</th><th scope=\"col\" class=\"text\">Paths</th>\
         <th scope=\"col\">Payload, B</th><th scope=\"col\" class=\"text\">Load</th><th scope=\"col\">Ratio or figure</th>\
         <th scope=\"col\">Bar</th><th scope=\"col\" class=\"text\">Verdict</th></tr></thead><tbody>\n{rows}</tbody></table></div>"
    )
}

/// Micro-benchmarks; empty without any.
pub(super) fn micro(document: &Document) -> String {
    let mut rows = String::new();
    for micro in &document.micro {
        let figure = |value: Option<f64>| value.map_or_else(|| "–".to_owned(), significant);
        rows.push_str(&format!(
            "<tr><th scope=\"row\">{}</th><td>{}</td><td>{}</td><td class=\"text\">{}</td><td>{}</td></tr>\n",
            html(&micro.name),
            figure(micro.p50),
            figure(micro.p90),
            html(&micro.unit),
            maybe_count(micro.samples),
        ));
    }
    if rows.is_empty() {
        return rows;
    }
    format!(
        "<div class=\"scroll\"><table><thead><tr><th scope=\"col\">Benchmark</th><th scope=\"col\">p50</th>\
         <th scope=\"col\">p90</th><th scope=\"col\" class=\"text\">Unit</th><th scope=\"col\">Samples</th></tr></thead>\
         <tbody>\n{rows}</tbody></table></div>"
    )
}

/// Checks; empty without any.
pub(super) fn checks(document: &Document) -> String {
    let mut rows = String::new();
    for check in &document.checks {
        let class = match check.outcome.as_str() {
            "passed" => "good",
            "failed" => "bad",
            _ => "",
        };
        rows.push_str(&format!(
            "<tr><th scope=\"row\">{}</th><td class=\"text {class}\">{}</td><td class=\"text\">{}</td></tr>\n",
            html(&check.name),
            html(&check.outcome),
            html(check.reason.as_deref().unwrap_or("–")),
        ));
    }
    if rows.is_empty() {
        return rows;
    }
    format!(
        "<div class=\"scroll\"><table class=\"words\"><thead><tr><th scope=\"col\">Check</th><th scope=\"col\" class=\"text\">Outcome</th>\
         <th scope=\"col\" class=\"text\">Reason</th></tr></thead><tbody>\n{rows}</tbody></table></div>"
    )
}

/// Frames that were dropped, bypassed, overrun, doubled or out of order, by reason; empty when there are none.
pub(super) fn reasons(document: &Document) -> String {
    let mut rows = String::new();
    for entry in document.summary() {
        let mut all: Vec<(String, u64)> = Vec::new();
        all.extend(entry.dropped.iter().map(|(reason, value)| (format!("dropped: {reason}"), *value)));
        all.extend(
            entry.bypassed.iter().map(|(reason, value)| (format!("passed to the kernel: {reason}"), *value)),
        );
        let named =
            [("overrun", entry.overrun), ("duplicated", entry.duplicates), ("reordered", entry.reordered)];
        all.extend(named.iter().filter_map(|(name, value)| Some(((*name).to_owned(), (*value)?))));
        for (reason, value) in all.into_iter().filter(|(_, value)| *value > 0) {
            rows.push_str(&format!(
                "<tr><th scope=\"row\">{}</th><td>{}</td><td class=\"text\">{}</td><td>{}</td></tr>\n",
                html(&document.name(entry)),
                entry.payload_octets,
                html(&reason),
                count(value),
            ));
        }
    }
    if rows.is_empty() {
        return rows;
    }
    format!(
        "<details open><summary>Frames by reason</summary><div class=\"scroll\"><table><thead><tr>\
         <th scope=\"col\">Path</th><th scope=\"col\">Payload, B</th><th scope=\"col\" class=\"text\">Reason</th>\
         <th scope=\"col\">Frames</th></tr></thead><tbody>\n{rows}</tbody></table></div></details>"
    )
}
