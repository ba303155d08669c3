// SPDX-License-Identifier: Apache-2.0
//! The page: in: sources. Out: one HTML document with its style, its script and plotly.js inside.
//! It must never name an address that a browser would fetch; its content security policy refuses all of them.

use super::canvas::Drawing;
use super::colours::Colours;
use super::escape::html;
use super::plots;
use super::source::Source;
use super::verdict::{self, Mood};
use super::{
    ReportError, apart, conditions, datapaths, deadline, guests, published, realtime, stacks, tables,
};
use std::fmt::Write as _;

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");
const POLICY: &str = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; \
                      img-src data: blob:; base-uri 'none'; form-action 'none'";

/// Groups of plots: anchor, heading, the places in it.
const GROUPS: [(&str, &str, &[&str]); 13] = [
    ("medians", "Medians", &["medians"]),
    ("network", "Network latency", &["cdf-network", "histogram-network"]),
    ("network-time", "Network latency over time", &["time-network"]),
    ("phase", "Phase in the cycle", &["phase"]),
    ("published", "Beside what was published", &["published-medians", "published-cdf"]),
    ("deadline", "Cycles that a deadline would lose", &["deadline"]),
    ("bandwidth", "TCP bandwidth", &["bandwidth-tcp", "bandwidth-posted", "interrupts-posted"]),
    ("averages", "Averages over time", &["averages"]),
    ("distribution", "Distributions", &["cdf-latency", "cdf-wire-offset"]),
    ("parts", "Where time and CPU go", &["parts", "cpu"]),
    ("boxes", "Box plots", &["box-latency", "box-wire-offset"]),
    ("histogram", "Jitter histogram", &["histogram-jitter", "histogram-wire-jitter"]),
    ("time", "Latency over time", &["time-latency"]),
];

/// Whether a group of plots says something about this document.
fn applies(source: &Source, anchor: &str) -> bool {
    match anchor {
        "phase" => source.gates.is_some(),
        "deadline" => deadline::applies(source),
        "bandwidth" => guests::applies(source),
        "medians" | "network" | "network-time" => datapaths::applies(&source.document),
        // Round trips follow each other without a period.
        "histogram" => !guests::applies(source) && !datapaths::applies(&source.document),
        "averages" => source.document.experiment == "vm",
        "published" => !source.document.published.is_empty(),
        "parts" => source.document.series.iter().any(stacks::has_parts),
        _ => true,
    }
}

/// plotly.js in its script element. `build.rs` compressed it: a quarter of its octets.
///
/// # Errors
/// [`ReportError::Script`] when this program's file is damaged.
fn plotly_script() -> Result<String, ReportError> {
    const COMPRESSED: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/plotly.js.zst"));
    let script = zstd::decode_all(COMPRESSED).map_err(ReportError::Script)?;
    String::from_utf8(script).map_err(|error| ReportError::Script(std::io::Error::other(error)))
}

/// The whole page.
pub(super) fn page(sources: &[Source]) -> Result<String, ReportError> {
    let documents = sources.len();
    let sources: &[Source] = &sources.iter().flat_map(apart::parts).collect::<Vec<_>>();
    let all_series = sources.iter().flat_map(|source| &source.document.series);
    let cells =
        sources.iter().filter_map(|source| source.document.realtime.as_ref()).flat_map(|found| &found.cells);
    let systems = cells.map(|cell| cell.system.as_str());
    let colours = Colours::of(all_series.map(|series| series.path.as_str()).chain(systems));
    let mut body = String::new();
    let mut any_plot = false;
    for (index, source) in sources.iter().enumerate() {
        let drawings = plots::drawings(source, &colours)?;
        any_plot |= !drawings.is_empty();
        body.push_str(&article(index, source, &colours, &drawings));
    }
    let mut titles: Vec<&str> = sources.iter().map(|source| source.document.experiment.as_str()).collect();
    titles.dedup();
    let title = html(&titles.join(", "));
    let plotly = if any_plot { plotly_script()? } else { String::new() };
    Ok(format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{POLICY}\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"referrer\" content=\"no-referrer\">\n<link rel=\"icon\" href=\"data:,\">\n\
         <title>KTSN report: {title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n{}{body}\
         <footer>Made by ktsn {} from {} of the schema ktsn.results/1. This page needs no network.</footer>\n\
         {plotly}\n<script>\n{SCRIPT}</script>\n</body>\n</html>\n",
        bar(sources),
        env!("CARGO_PKG_VERSION"),
        if documents == 1 { "one document".to_owned() } else { format!("{documents} documents") },
    ))
}

/// The bar at the top: the way to each document, and to each section of a single one.
fn bar(sources: &[Source]) -> String {
    let mut links = String::new();
    if let [source] = sources {
        let mut link = |anchor: &str, text: &str| {
            let _ = write!(links, "<a href=\"#d0-{anchor}\">{text}</a>");
        };
        if datapaths::applies(&source.document) {
            link("which", "Which datapath");
        }
        if !source.document.series.is_empty() {
            link("paths", "Table");
        }
        if !source.document.comparisons.is_empty() {
            link("comparisons", "Bars");
        }
        if !source.document.series.is_empty() {
            for (anchor, heading, _) in GROUPS.into_iter().filter(|group| applies(source, group.0)) {
                link(anchor, heading);
            }
        }
        if source.document.realtime.is_some() {
            link("rt-verdicts", "Verdicts");
            for (anchor, heading, _) in realtime::SECTIONS {
                link(anchor, heading);
            }
        }
        link("environment", "Environment");
        link("command", "Reproduce");
    } else {
        for (index, source) in sources.iter().enumerate() {
            let name = source.part.as_ref().unwrap_or(&source.document.experiment);
            let _ = write!(links, "<a href=\"#d{index}\">{}</a>", html(name));
        }
    }
    format!(
        "<header class=\"bar\"><b>KTSN</b><nav>{links}</nav>\
         <button id=\"theme\" type=\"button\" hidden>Dark</button></header>\n"
    )
}

fn section(index: usize, anchor: &str, heading: &str, content: &str) -> String {
    if content.is_empty() {
        return String::new();
    }
    format!("<section id=\"d{index}-{anchor}\"><h2>{heading}</h2>\n{content}</section>\n")
}

/// One document.
fn article(index: usize, source: &Source, colours: &Colours, drawings: &[Drawing]) -> String {
    let document = &source.document;
    let mut page = format!("<article id=\"d{index}\">\n{}", head(source));
    if let Some(found) = &document.realtime {
        page.push_str(&fitness(index, found, drawings));
    }
    let mut add = |anchor: &str, heading: &str, content: &str| {
        page.push_str(&section(index, anchor, heading, content));
    };
    add("which", "Which datapath", &datapaths::answer(document, colours));
    add("stable", "All frames, and the stable part", &datapaths::stable(document, colours));
    add("user", "From user space to user space", &datapaths::user(document, colours));
    add("spikes", "Spikes and their causes", &datapaths::spikes(document));
    if !document.series.is_empty() {
        let table = format!(
            "{}{}{}{}{}",
            tables::paths(document, colours),
            tables::ways(document, colours),
            tables::reasons(document),
            tables::rounds(document, colours),
            tables::meanings(document)
        );
        add("paths", "Paths", &table);
    }
    add("comparisons", "Comparisons and bars", &tables::comparisons(document));
    add("micro", "Micro-benchmarks", &tables::micro(document));
    add("checks", "Checks", &tables::checks(document));
    if !document.series.is_empty() {
        page.push_str(&all_plots(index, source, drawings));
    }
    let mut add = |anchor: &str, heading: &str, content: &str| {
        page.push_str(&section(index, anchor, heading, content));
    };
    add("environment", "Environment", &conditions::environment(document));
    add("clock", "Clock state", &conditions::clock(document));
    add("rule", "How it was measured", &conditions::rule(document));
    add("command", "Reproduce", &conditions::command(document));
    if !document.series.is_empty() {
        add("not-shown", "Not shown here", &conditions::not_shown(source));
    }
    page.push_str("</article>\n");
    page
}

/// The sections of `ktsn rt run`, the verdicts first.
fn fitness(index: usize, found: &ktsn_realtime::RealTime, drawings: &[Drawing]) -> String {
    let mut page = section(index, "rt-verdicts", "Verdicts", &realtime::verdicts(found));
    page.push_str(&section(index, "rt-statistics", "Statistics", &realtime::statistics(found)));
    page.push_str(&section(
        index,
        "rt-isolation",
        "Isolation: what neighbours add to profile 4, in µs",
        &realtime::isolation(found),
    ));
    page.push_str(&section(index, "rt-causes", "Why wake-ups were late", &realtime::causes(found)));
    page.push_str(&section(index, "rt-advice", "What to change", &realtime::advice(found)));
    page.push_str(&section(index, "rt-tracers", "The kernel’s tracers", &realtime::tracers(found)));
    let mut plots = String::new();
    for (anchor, heading, kind) in realtime::SECTIONS {
        let places =
            drawings.iter().filter(|drawing| drawing.kind == kind).map(|drawing| place(index, drawing));
        let places: String = places.collect();
        plots.push_str(&section(index, anchor, heading, &places));
    }
    format!("{page}<div class=\"plots\" data-document=\"{index}\">\n{plots}</div>\n")
}

/// Title, verdict, counts.
fn head(source: &Source) -> String {
    let document = &source.document;
    let verdict = verdict::verdict(document);
    let class = match verdict.mood {
        Mood::Good => "good",
        Mood::Bad => "bad",
        Mood::Neutral => "neutral",
    };
    let mut misses: String = verdict.misses.iter().map(|miss| format!("<li>{}</li>", html(miss))).collect();
    if !misses.is_empty() {
        misses = format!("<ul>{misses}</ul>");
    }
    let counts = verdict::counts(document);
    let counts =
        if counts.is_empty() { String::new() } else { format!("<p>{}.</p>", html(&counts.join("; "))) };
    let remark = match source.remark.as_str() {
        "" => String::new(),
        remark => format!("<p class=\"note\">{}</p>\n", html(remark)),
    };
    let started = match document.started_at.as_str() {
        "" => String::new(),
        at => format!("Started {at} · "),
    };
    format!(
        "<h1>Experiment “{}”{}</h1>\n<p class=\"origin\">{}{}</p>\n{remark}\
         <div class=\"verdict {class}\"><p class=\"line\">{}</p>{misses}{counts}</div>\n",
        html(&document.experiment),
        source.part.as_ref().map_or_else(String::new, |part| format!(": {}", html(part))),
        html(&started),
        html(&source.label),
        html(&verdict.line),
    )
}

/// The plots' groups with the choice of payload.
fn all_plots(index: usize, source: &Source, drawings: &[Drawing]) -> String {
    let document = &source.document;
    let mut content = String::new();
    let summary = document.summary();
    let has = |series: &&&crate::results::Series| source.lacks_samples(series);
    let without = summary.iter().filter(has).count();
    if without > 0 {
        let _ = writeln!(
            content,
            "<p class=\"note\">Raw records are missing for {without} of {} rows; what the stored statistics alone \
             can tell of these is drawn. Measure with <code>--records</code> to have them.</p>",
            summary.len()
        );
    }
    content.push_str(
        "<noscript><p class=\"note\">The plots need JavaScript; the tables do not.</p></noscript>\n",
    );
    content.push_str(&choice(index, source));
    for (anchor, heading, ids) in GROUPS.into_iter().filter(|group| applies(source, group.0)) {
        // A kind's loads stand side by side.
        let of_kinds =
            ids.iter().flat_map(|kind| drawings.iter().filter(move |drawing| drawing.kind == *kind));
        let places: String = of_kinds.map(|drawing| place(index, drawing)).collect();
        let grid = if places.is_empty() && anchor == "published" {
            String::new()
        } else if places.is_empty() {
            "<p class=\"note\">Not drawn: this needs the raw records.</p>".to_owned()
        } else {
            format!("<div class=\"grid\">{places}</div>")
        };
        let grid = if anchor == "published" { published::table(document) + &grid } else { grid };
        content.push_str(&section(index, anchor, heading, &grid));
    }
    format!("<div class=\"plots\" data-document=\"{index}\">\n{content}</div>\n")
}

/// The payloads to choose from: plain radio buttons.
fn choice(index: usize, source: &Source) -> String {
    let first = plots::first_payload(&source.document);
    let mut buttons = String::new();
    for payload in source.document.payloads() {
        let checked = if Some(payload) == first { " checked" } else { "" };
        let _ = write!(
            buttons,
            "<label><input type=\"radio\" name=\"payload-{index}\" value=\"{payload}\"{checked}>\
             <span>{payload} B</span></label>"
        );
    }
    format!("<fieldset class=\"payload\"><legend>Payload</legend>{buttons}</fieldset>\n")
}

/// A plot's place, its caption and its figures.
fn place(index: usize, drawing: &Drawing) -> String {
    let Drawing { id, title, caption, figures, .. } = drawing;
    let mut scripts = String::new();
    for (payload, json) in figures {
        let payload = payload.map_or_else(String::new, |payload| format!(" data-payload=\"{payload}\""));
        let _ = writeln!(scripts, "<script type=\"application/json\"{payload}>{json}</script>");
    }
    // Alone under a heading of the same words, a title says nothing.
    let title = if GROUPS.iter().any(|(_, heading, _)| heading == title) {
        String::new()
    } else {
        format!("<h3>{title}</h3>")
    };
    format!(
        "<figure id=\"d{index}-{id}\">{title}<div class=\"plot\"></div>\
         <figcaption>{caption}</figcaption>\n{scripts}</figure>\n"
    )
}
