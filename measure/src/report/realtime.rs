// SPDX-License-Identifier: Apache-2.0
//! Fit for real time. In: the member `realtime` of a document. Out: its tables, the verdicts first, and its drawings: box plots, latency
//! over time, histograms, excursions against causes. Nothing is judged here.

mod drawings;

pub(super) use drawings::drawings;

use super::escape::html;
use super::figures::{count, maybe_count, micros};
use crate::table::realtime::{COLUMNS, basis, early, name, traced};
use ktsn_realtime::advice::Advice;
use ktsn_realtime::results::Verdict;
use ktsn_realtime::tracers::Tracer;
use ktsn_realtime::verdict::{Outcome, duration};
use ktsn_realtime::{Cell, RealTime, stability};
use ktsn_time::Span;

/// Sections with drawings: anchor, heading, kind.
pub(super) const SECTIONS: [(&str, &str, &str); 4] = [
    ("rt-boxes", "Box plots", "rt-boxes"),
    ("rt-time", "Latency over time", "rt-time"),
    ("rt-histograms", "Histograms", "rt-histogram"),
    ("rt-heat", "Late wake-ups and causes", "rt-heat"),
];

/// A table of HTML cells; empty without rows.
fn table(heads: &[String], rows: &[Vec<(&str, String)>]) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let heads: String = heads.iter().map(|head| format!("<th>{}</th>", html(head))).collect();
    let row = |cells: &Vec<(&str, String)>| {
        let cells = cells.iter().map(|(class, text)| format!("<td class=\"{class}\">{}</td>", html(text)));
        format!("<tr>{}</tr>\n", cells.collect::<String>())
    };
    let rows: String = rows.iter().map(row).collect();
    format!(
        "<div class=\"scroll\"><table><thead><tr>{heads}</tr></thead>\n<tbody>{rows}</tbody></table></div>\n"
    )
}

fn heads(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

/// The verdicts: services against systems and profiles.
pub(super) fn verdicts(found: &RealTime) -> String {
    let measured: Vec<&Cell> = found.cells.iter().filter(|cell| cell.statistics.is_some()).collect();
    let names = measured.iter().map(|cell| name(cell));
    let heads: Vec<String> =
        ["service", "latency", "jitter"].map(str::to_owned).into_iter().chain(names).collect();
    let limit = |nanos: u64| format!("{} µs", micros(Some(nanos as f64), 0));
    let row = |requirement: &ktsn_realtime::Requirement| {
        let mut cells = vec![
            ("text", requirement.service.clone()),
            ("", limit(requirement.latency_ns)),
            ("", limit(requirement.jitter_ns)),
        ];
        for cell in &measured {
            let is = |verdict: &&Verdict| {
                verdict.service == requirement.service
                    && verdict.system == cell.system
                    && verdict.profile == cell.profile
            };
            let Some(verdict) = found.verdicts.iter().find(is) else {
                cells.push(("", "–".to_owned()));
                continue;
            };
            let class = if verdict.judgement.outcome == Outcome::Fail { "bad" } else { "good" };
            let (own, paper) = (verdict.judgement, verdict.paper);
            let text = format!(
                "{} {:.0} % (paper’s figures: {} {:.0} %)",
                own.outcome,
                own.used_ratio * 100.0,
                paper.outcome,
                paper.used_ratio * 100.0
            );
            cells.push((class, text));
        }
        cells
    };
    let rows: Vec<_> = found.requirements.iter().map(row).collect();
    let note = format!(
        "<p class=\"note\">{}. The paper’s figures are mean and maximum jitter (between percentiles 2.5 and 97.5).</p>\n",
        html(&basis(found))
    );
    if measured.is_empty() { String::new() } else { note + &table(&heads, &rows) }
}

/// Statistics of every cell, those that were skipped with their reason, and stability.
pub(super) fn statistics(found: &RealTime) -> String {
    let columns = COLUMNS.iter().map(|column| column.0.to_owned());
    let head: Vec<String> =
        heads(&["cell", "measured", "samples", "missed periods"]).into_iter().chain(columns).collect();
    let row = |cell: &Cell| {
        let statistics = cell.statistics?;
        let mut cells = vec![
            ("text", name(cell)),
            ("", duration(Span::from_nanos(cell.measured_ns))),
            ("", count(statistics.samples)),
            ("", maybe_count(cell.missed_periods)),
        ];
        cells.extend(COLUMNS.iter().map(|(_, column)| ("", micros(Some(column(&statistics)), 1))));
        Some(cells)
    };
    let rows: Vec<_> = found.cells.iter().filter_map(row).collect();
    let skips = found.cells.iter().filter_map(|cell| {
        let skip = cell.skip.as_ref()?;
        Some(format!(
            "<li>{}: skipped, {} ({})</li>",
            html(&name(cell)),
            html(&skip.reason),
            html(&skip.kind)
        ))
    });
    let environments = found.cells.iter().filter_map(|cell| {
        let environment = cell.environment.as_ref()?;
        Some(format!("<li>{}: {}</li>", html(&cell.system), html(environment)))
    });
    let mut environments: Vec<String> = environments.collect();
    environments.dedup();
    let early = found.cells.iter().filter_map(early).map(|line| format!("<li>{}</li>", html(&line)));
    let skips: String = environments.into_iter().chain(early).chain(skips).collect();
    let skips = if skips.is_empty() { skips } else { format!("<ul>{skips}</ul>\n") };
    format!("<p class=\"note\">In µs.</p>\n{}{skips}{}", table(&head, &rows), over_windows(found))
}

fn over_windows(found: &RealTime) -> String {
    let row = |cell: &Cell| {
        let (mean, deviation) = stability::drift(&cell.stability)?;
        let ends = cell.stability.iter().map(|window| {
            let lasted = duration(Span::from_nanos(window.measured_ns));
            let (mean, deviation) = (window.statistics.mean_ns / 1e3, window.statistics.stddev_ns / 1e3);
            format!("{lasted}: {mean:.1} ± {deviation:.1}")
        });
        let ends = ends.collect::<Vec<_>>().join(" · ");
        Some(vec![
            ("text", name(cell)),
            ("text", ends),
            ("", micros(Some(mean), 1)),
            ("", micros(Some(deviation), 1)),
        ])
    };
    let rows: Vec<_> = found.cells.iter().filter_map(row).collect();
    let table = table(
        &heads(&["cell", "mean ± deviation up to", "drift of the mean", "drift of the deviation"]),
        &rows,
    );
    if table.is_empty() { table } else { format!("<h3>Stability</h3>\n{table}") }
}

/// What neighbours add to profile 4.
pub(super) fn isolation(found: &RealTime) -> String {
    let mut rows = Vec::new();
    for one in &found.isolation {
        for disturbance in &one.disturbances {
            let added = |nanos: f64| ("", format!("{:+.1}", nanos / 1e3));
            let most = if disturbance.profile == one.most { "disturbs most" } else { "" };
            rows.push(vec![
                ("text", format!("{} {}", one.system, disturbance.profile)),
                added(disturbance.mean_added_ns),
                added(disturbance.max_jitter_added_ns as f64),
                added(disturbance.p99_9_added_ns as f64),
                added(disturbance.max_added_ns as f64),
                ("text", most.to_owned()),
            ]);
        }
    }
    table(&heads(&["cell", "mean", "max. jitter", "p99.9", "greatest", ""]), &rows)
}

/// What to change, where a verdict is FAIL.
pub(super) fn advice(found: &RealTime) -> String {
    let row = |one: &Advice| {
        vec![
            ("text", one.finding.clone()),
            ("text", one.value.clone()),
            ("", format!("{:.1} %", one.explained_ratio * 100.0)),
            ("text prose", one.meaning.clone()),
            ("text prose", one.remedy.clone()),
        ]
    };
    let rows: Vec<_> = found.advice.iter().map(row).collect();
    if rows.is_empty() {
        return String::new();
    }
    let note = "<p class=\"note\">Findings of <code>ktsn doctor --rt</code>, since a verdict is FAIL. “Explains” is the largest share of a \
         failed cell’s lateness that the remedy can take away.</p>\n";
    format!("{note}{}", table(&heads(&["finding", "seen", "explains", "means", "remedy"]), &rows))
}

/// What the kernel's own tracers say.
pub(super) fn tracers(found: &RealTime) -> String {
    let row = |tracer: &Tracer| {
        let said = match &tracer.skip {
            Some(skip) => format!("skipped, {} ({})", skip.reason, skip.kind),
            None => traced(tracer),
        };
        vec![("text", tracer.kind.tracer().to_owned()), ("text", said)]
    };
    table(&heads(&["tracer", "found"]), &found.tracers.iter().map(row).collect::<Vec<_>>())
}

/// The causes of late wake-ups, the strongest first.
pub(super) fn causes(found: &RealTime) -> String {
    let mut rows = Vec::new();
    for cell in found.cells.iter().filter(|cell| cell.excursions > 0) {
        for cause in &cell.causes {
            let thread = cause.thread.as_ref().map_or_else(String::new, |thread| format!(": {thread}"));
            rows.push(vec![
                ("text", name(cell)),
                ("", count(cell.excursions)),
                ("text", format!("{}{thread}", cause.cause.describe())),
                ("", format!("{:.1} %", cause.explained_ratio * 100.0)),
                ("", count(cause.wake_ups)),
            ]);
        }
        rows.push(vec![
            ("text", name(cell)),
            ("", count(cell.excursions)),
            ("text", "no single cause".to_owned()),
            ("", format!("{:.1} %", cell.unexplained_ratio * 100.0)),
            ("", "–".to_owned()),
        ]);
    }
    table(&heads(&["cell", "late wake-ups", "cause", "of the lateness", "wake-ups by half or more"]), &rows)
}
