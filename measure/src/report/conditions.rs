// SPDX-License-Identifier: Apache-2.0
//! Under which conditions it was measured: in: a document. Out: HTML: environment, clock state, the measuring
//! rule's facts, the command that repeats it, and what the page leaves out.

use super::escape::{html, shell_word};
use super::figures::{count, percent};
use super::source::Source;
use super::tables::{table, words};
use super::thin::{BINS_PER_DECADE, POINTS_MAX};
use crate::datapaths;
use crate::hosts::TwoHosts;
use crate::results::{Document, Series};
use serde_json::{Map, Value};

fn facts(rows: &[(String, String)]) -> String {
    let rows: Vec<_> = rows.iter().map(|(name, value)| vec![words(name), words(value)]).collect();
    table("facts", &[], &rows)
}

/// Any value as one line of text.
fn plain(value: &Value) -> String {
    match value {
        Value::Null => "–".to_owned(),
        Value::Bool(truth) => if *truth { "yes" } else { "no" }.to_owned(),
        Value::String(text) => text.clone(),
        Value::Number(number) => number.to_string(),
        Value::Array(values) => values.iter().map(plain).collect::<Vec<_>>().join(", "),
        Value::Object(members) => members
            .iter()
            .map(|(key, value)| format!("{key} {}", plain(value)))
            .collect::<Vec<_>>()
            .join(", "),
    }
}

/// Names and values of an object's members, in words: `cpu_model` reads better as `cpu model`.
fn members(members: &Map<String, Value>) -> Vec<(String, String)> {
    members.iter().map(|(name, value)| (name.replace('_', " "), plain(value))).collect()
}

/// The environment as a table.
pub(super) fn environment(document: &Document) -> String {
    if document.environment.is_empty() {
        return "<p>The document does not describe its environment.</p>".to_owned();
    }
    facts(&members(&document.environment))
}

/// The clock's state in sentences.
pub(super) fn clock(document: &Document) -> String {
    let synchronised = match document.environment.get("clock_synchronised").and_then(Value::as_bool) {
        Some(true) => "<b>Synchronised.</b> The kernel says that its clock follows a reference.",
        Some(false) => {
            "<b>Not synchronised.</b> The kernel says that its clock follows no reference. Talker, tap and \
             listener share this one clock, so the differences shown are unaffected; instants are not comparable \
             with another machine's."
        }
        None => "The document does not say whether the clock was synchronised.",
    };
    let hosts = TwoHosts::of(document);
    let synchronised = hosts.map_or_else(
        || synchronised.to_owned(),
        |hosts| format!("<b>Two hosts.</b> This report is of {}.", html(&hosts.sentence())),
    );
    let offset = match document.environment.get("tai_offset_seconds").and_then(Value::as_f64) {
        Some(0.0) => {
            "TAI offset 0 s: nobody has told the kernel the leap seconds, so CLOCK_TAI equals UTC here."
                .to_owned()
        }
        Some(seconds) => format!("TAI offset {seconds} s."),
        None => "The document does not state the TAI offset.".to_owned(),
    };
    format!("<p>{synchronised}</p><p>{}</p>", html(&offset))
}

fn greatest(series: &[Series], field: fn(&Series) -> Option<f64>) -> String {
    let greatest = series.iter().filter_map(field).reduce(f64::max);
    greatest.map_or_else(|| "not recorded".to_owned(), |ratio| format!("{} %", percent(Some(ratio), 2)))
}

/// Parameters, and what the measuring rule asks to be recorded.
pub(super) fn rule(document: &Document) -> String {
    // Accounts have sections of their own.
    let mut parameters = document.parameters.clone();
    parameters.retain(|name, _| name != datapaths::PARAMETER && name != datapaths::SPIKES);
    let mut rows = members(&parameters);
    let voided =
        document.summary().iter().filter_map(|series| series.voided_rounds).reduce(u64::saturating_add);
    let voided = voided.map_or_else(|| "not recorded".to_owned(), count);
    rows.push(("voided rounds (by load, never by result)".to_owned(), voided));
    rows.push((
        "greatest share of stolen CPU time in a row".to_owned(),
        greatest(&document.series, |s| s.steal_ratio),
    ));
    let pressure = greatest(&document.series, |s| s.cpu_pressure_some_ratio);
    rows.push(("greatest CPU pressure (some) in a row".to_owned(), pressure));
    facts(&rows)
}

/// The command line that repeats the experiment.
pub(super) fn command(document: &Document) -> String {
    if document.command.is_empty() {
        return "<p>The document does not record its command.</p>".to_owned();
    }
    let line: Vec<String> = document.command.iter().map(|word| shell_word(word)).collect();
    format!("<pre><code>{}</code></pre>", html(&line.join(" ")))
}

/// What the reader does not see here.
pub(super) fn not_shown(source: &Source) -> String {
    let document = &source.document;
    let mut items = vec![
        "Tables: the median of the rounds for each statistic, counts summed. p99.9, maximum, mean and standard \
         deviation stand in the JSON document only."
            .to_owned(),
        "A lost frame has no latency, offset or jitter; it is counted as lost. The first frame after a lost one \
         has no jitter. Nothing else is left out of a distribution."
            .to_owned(),
    ];
    let summary = document.summary();
    let without = summary.iter().filter(|s| source.lacks_samples(s)).count();
    if without < summary.len() {
        items.push(format!(
            "Latency over time is thinned to at most {} points a trace by keeping the least and the greatest of \
             neighbouring frames; the distributions are drawn through some 400 ranks and more in the tail. \
             Histograms ({BINS_PER_DECADE} bins per factor of ten) count every frame. No statistic is computed \
             from thinned points.",
            count(POINTS_MAX as u64)
        ));
    }
    if without > 0 {
        items.push(format!(
            "Raw records are missing for {without} of {} rows: their distributions are drawn through the stored \
             percentiles only, their boxes, histograms and courses over time are not drawn.",
            summary.len()
        ));
    }
    let list: String = items.iter().map(|item| format!("<li>{}</li>", html(item))).collect();
    format!("<ul>{list}</ul>")
}
