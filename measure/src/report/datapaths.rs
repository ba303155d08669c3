// SPDX-License-Identifier: Apache-2.0
//! Datapaths of virtual machines. In: a document of the experiment `datapaths`. Out: the answer to "which datapath" in one table, the stable
//! parts beside all frames, the spikes with their causes, and a figure of medians. Nothing is computed here but orders and sums.

use super::ReportError;
use super::canvas::{Drawing, layout, linear, logarithmic};
use super::colours::Colours;
use super::escape::html;
use super::figures::{count, maybe_count, micros, significant};
use super::source::Source;
use super::tables::{self, Cell, words};
use crate::datapaths::spikes::Spike;
use crate::datapaths::{Account, PARAMETER, SPIKES, SpikeCount};
use crate::results::{Document, Series};
use ktsn_traffic::stats::Statistics;
use plotly::common::{ErrorData, ErrorType};
use plotly::layout::{AxisType, BarMode};
use plotly::{Bar, Trace};

/// One figure of a distribution.
type Figure = fn(&Statistics) -> i64;

/// Spikes that the page shows one by one.
const SHOWN_MAX: usize = 40;

/// Whether the document is of datapaths.
pub(super) fn applies(document: &Document) -> bool {
    document.experiment == "datapaths"
}

/// What the experiment says beside its series; empty where it says nothing that can be read.
fn account(document: &Document) -> Account {
    let name = if applies(document) { PARAMETER } else { SPIKES };
    let account = document.parameters.get(name).cloned();
    account.and_then(|account| serde_json::from_value(account).ok()).unwrap_or_default()
}

/// The paths in the order of their first series.
fn paths<'a>(rows: &[&'a Series]) -> Vec<&'a str> {
    let mut paths: Vec<&str> = Vec::new();
    for row in rows {
        if !paths.contains(&row.path.as_str()) {
            paths.push(&row.path);
        }
    }
    paths
}

fn network(rows: &[&Series], path: &str, load: Option<&str>) -> Option<Statistics> {
    rows.iter().find(|row| row.path == path && row.load.as_deref() == load)?.network_latency_ns
}

/// The path with the least figure of a load.
fn least<'a>(rows: &[&'a Series], load: Option<&str>, figure: Figure) -> Option<(&'a str, i64)> {
    let known = paths(rows).into_iter().filter_map(|path| Some((path, figure(&network(rows, path, load)?))));
    known.min_by_key(|(_, value)| *value)
}

/// The answer: a sentence and a table with a row for each path; empty for other experiments.
pub(super) fn answer(document: &Document, colours: &Colours) -> String {
    let rows = document.summary();
    if !applies(document) || rows.is_empty() {
        return String::new();
    }
    let account = account(document);
    let loads = document.loads();
    let figures: [(&str, Figure); 2] = [("p50", |network| network.p50), ("p99.9", |network| network.p99_9)];
    let mut sentences = String::new();
    for (load, (name, figure)) in
        loads.iter().flat_map(|load| figures.iter().map(move |figure| (load, figure)))
    {
        if let Some((path, value)) = least(&rows, *load, *figure) {
            let load = html(load.unwrap_or("all"));
            let value = micros(Some(value as f64), 1);
            sentences.push_str(&format!("<li>{load}: least {name} <b>{}</b>, {value} µs</li>", html(path)));
        }
    }
    let mut heads = vec![("", "Path".to_owned())];
    for load in &loads {
        let load = html(load.unwrap_or("all"));
        heads.extend(figures.map(|(name, _)| ("", format!("{load}<br>{name}, µs"))));
    }
    heads.push(("", "spikes<br>> 500 µs".to_owned()));
    heads.push(("", "lost".to_owned()));
    heads.push(("text", "what it is".to_owned()));
    let heads: Vec<(&str, &str)> = heads.iter().map(|(class, head)| (*class, head.as_str())).collect();
    let body: Vec<Vec<Cell>> = paths(&rows)
        .into_iter()
        .map(|path| {
            let mut cells: Vec<Cell> = vec![("", tables::swatch(colours, path, path))];
            for load in &loads {
                for (_, figure) in figures {
                    let own = network(&rows, path, *load).map(|network| figure(&network));
                    let is_least = least(&rows, *load, figure).is_some_and(|(best, _)| best == path);
                    cells.push((if is_least { "good" } else { "" }, micros(own.map(|own| own as f64), 1)));
                }
            }
            let sum = |figure: fn(&Series) -> Option<u64>| {
                let of_path = rows.iter().filter(|row| row.path == path).filter_map(|row| figure(row));
                maybe_count(of_path.reduce(u64::saturating_add))
            };
            cells.push(("", sum(|row| row.spikes_over_500us)));
            cells.push(("", sum(|row| row.lost)));
            cells.push(words(account.paths.get(path).map_or("", String::as_str)));
            cells
        })
        .collect();
    format!(
        "<p class=\"note\">Network latency of 64-octet datagrams every 1,006 µs; {} s a row, {} of the published 900 s. Egress: from the \
         virtual machine or its stand-in to the remote host; ingress: into it. The best of each column is marked.</p>{}\
         <ul class=\"ways\">{sentences}</ul>",
        significant(account.scale * crate::datapaths::PUBLISHED_SECONDS),
        significant(account.scale),
        tables::table("", &heads, &body),
    )
}

/// All frames beside the stable part, as the publication has them; empty for other experiments.
pub(super) fn stable(document: &Document, colours: &Colours) -> String {
    if !applies(document) {
        return String::new();
    }
    let account = account(document);
    let mut rows = Vec::new();
    for series in document.summary() {
        let load = series.load.as_deref().unwrap_or_default();
        let ranges = account.stable_parts.iter().filter(|part| part.path == series.path && part.load == load);
        let ranges: Vec<String> = ranges
            .map(|part| format!("{}–{} of {}", part.first + 1, part.first + part.frames, part.of))
            .collect();
        let parts = [
            ("all frames".to_owned(), series.network_latency_ns),
            (ranges.join("; "), series.stable_latency_ns),
        ];
        for (range, figures) in parts {
            let Some(figures) = figures else { continue };
            let of = |value: f64| ("", micros(Some(value), 1));
            rows.push(vec![
                ("", tables::swatch(colours, &series.path, &document.name(series))),
                words(&range),
                of(figures.min as f64),
                of(figures.mean),
                of(figures.max as f64),
                of(figures.stddev),
                of(figures.p50 as f64),
                of(figures.p99 as f64),
                of(figures.p99_9 as f64),
            ]);
        }
    }
    let heads = [
        ("", "Path"),
        ("text", "Range of data used"),
        ("", "min"),
        ("", "mean"),
        ("", "max"),
        ("", "stddev"),
        ("", "p50"),
        ("", "p99"),
        ("", "p99.9"),
    ];
    let table = tables::table("", &heads, &rows);
    if table.is_empty() {
        return table;
    }
    format!(
        "{table}<p class=\"note\">Network latency in µs, medians of the rounds. The rule of the range: {}.</p>",
        html(&account.stable_rule)
    )
}

/// From user space to user space beside the datapath alone; empty for other experiments.
pub(super) fn user(document: &Document, colours: &Colours) -> String {
    if !applies(document) {
        return String::new();
    }
    let rows: Vec<Vec<Cell>> = document
        .summary()
        .into_iter()
        .filter_map(|series| {
            let (network, user) = (series.network_latency_ns?, series.latency_ns?);
            let mut cells = vec![("", tables::swatch(colours, &series.path, &document.name(series)))];
            let figures = |of: Statistics| [of.p50, of.p99, of.p99_9, of.max];
            let values = figures(network).into_iter().chain(figures(user));
            cells.extend(values.map(|value| ("", micros(Some(value as f64), 1))));
            Some(cells)
        })
        .collect();
    let heads = [
        ("", "Path"),
        ("", "network<br>p50"),
        ("", "p99"),
        ("", "p99.9"),
        ("", "max"),
        ("", "latency-user<br>p50"),
        ("", "p99"),
        ("", "p99.9"),
        ("", "max"),
    ];
    let table = tables::table("", &heads, &rows);
    if table.is_empty() {
        return table;
    }
    format!(
        "{table}<p class=\"note\">µs, medians of the rounds. Network latency is of the datapath; latency-user is from the sender's clock right \
         before its call to the receiver's clock right after its receive call. A stand-in's two ends poll: with it both begin or end at the \
         same instant. A guest's network latency is between the stamps of the two kernels.</p>"
    )
}

/// The spikes: how many by cause, and the greatest one by one; empty for other experiments.
pub(super) fn spikes(document: &Document) -> String {
    if !applies(document) && !document.parameters.contains_key(SPIKES) {
        return String::new();
    }
    let mut account = account(document);
    // A part of a document has the spikes of its own paths.
    let is_shown = |path: &String| document.series.iter().any(|series| series.path == *path);
    account.spikes.retain(|spikes| is_shown(&spikes.path));
    account.greatest.retain(|spike| is_shown(&spike.path));
    if account.spikes.is_empty() {
        let above = if applies(document) { "" } else { " above its run's median" };
        return format!("<p class=\"note\">No frame took more than 500 µs{above}.</p>");
    }
    let row = |spikes: &SpikeCount| {
        vec![
            words(&spikes.path),
            words(&spikes.load),
            words(&spikes.cause),
            ("", count(spikes.over_500us)),
            ("", count(spikes.over_1ms)),
        ]
    };
    let heads = [("", "Path"), ("text", "Load"), ("text", "Cause"), ("", "> 500 µs"), ("", "> 1,000 µs")];
    let counts = tables::table("", &heads, &account.spikes.iter().map(row).collect::<Vec<_>>());
    let mut greatest: Vec<&Spike> = account.greatest.iter().collect();
    greatest.sort_by_key(|spike| std::cmp::Reverse(spike.latency_ns));
    greatest.truncate(SHOWN_MAX);
    let rows: Vec<Vec<Cell>> = greatest.into_iter().map(one_spike).collect();
    let heads = [
        ("", "Path"),
        ("text", "Load"),
        ("", "Round"),
        ("", "Frame"),
        ("", "At, s"),
        ("", "Latency, µs"),
        ("text", "Cause"),
        ("text", "What shows it"),
        ("text", "The host around it"),
    ];
    let details = tables::table("", &heads, &rows);
    format!(
        "{counts}<details><summary>The greatest spikes one by one</summary>{details}</details><p class=\"note\">The rule: {}.</p>",
        html(&account.spike_rule)
    )
}

fn one_spike(spike: &Spike) -> Vec<Cell> {
    let host = &spike.host;
    let softirqs: Vec<String> = host.softirqs.iter().map(|(kind, count)| format!("{kind} {count}")).collect();
    let pressure =
        host.cpu_pressure_us.map_or_else(|| "no PSI".to_owned(), |waited| format!("PSI {waited} µs"));
    let around = format!(
        "{:.0} ms: steal {} ms, {pressure}, run queue {} µs, {} interrupts, {} switches; {}",
        host.span_us as f64 / 1e3,
        host.steal_ticks * 10,
        host.waited_us,
        host.interrupts,
        host.context_switches,
        softirqs.join(", ")
    );
    vec![
        words(&spike.path),
        words(&spike.load),
        ("", spike.round.to_string()),
        ("", count(spike.sequence)),
        ("", format!("{:.2}", spike.at_s)),
        ("", micros(Some(spike.latency_ns as f64), 0)),
        words(&spike.cause),
        words(&spike.detail),
        words(&around),
    ]
}

/// Medians with p99 above them, by path.
pub(super) fn drawing(source: &Source) -> Result<Option<Drawing>, ReportError> {
    let document = &source.document;
    let rows = document.summary();
    if !applies(document) || rows.is_empty() {
        return Ok(None);
    }
    let paths = paths(&rows);
    let mut traces: Vec<Box<dyn Trace>> = Vec::new();
    for load in document.loads() {
        let known: Vec<(String, Statistics)> =
            paths.iter().filter_map(|path| Some(((*path).to_owned(), network(&rows, path, load)?))).collect();
        let above = |network: &Statistics| (network.p99 - network.p50) as f64 / 1e3;
        let error = ErrorData::new(ErrorType::Data)
            .array(known.iter().map(|(_, network)| above(network)).collect())
            .array_minus(vec![0.0; known.len()])
            .symmetric(false);
        let (x, y) = known.into_iter().map(|(path, network)| (path, network.p50 as f64 / 1e3)).unzip();
        let bar = Bar::new(x, y).name(super::escape::label(load.unwrap_or("all"))).error_y(error);
        traces.push(bar.hover_template("%{x}: %{y:.1f} µs"));
    }
    let x = linear("").type_(AxisType::Category);
    let layout = layout(x, logarithmic("Network latency [µs]")).bar_mode(BarMode::Group);
    let caption = "Bar: median; line: up to p99. Lower is better.";
    Drawing::single("medians", "Medians and p99", html(caption), (traces, layout)).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::datapaths::StablePart;
    use crate::datapaths::spikes::Host;
    use crate::results::Round;

    fn document() -> Document {
        let series = |path: &str, load: &str, p50, p99_9| Series {
            path: path.to_owned(),
            load: Some(load.to_owned()),
            payload_octets: 64,
            round: Round::All,
            network_latency_ns: Some(Statistics { p50, p99_9, ..Statistics::default() }),
            stable_latency_ns: Some(Statistics { p50: p50 / 2, ..Statistics::default() }),
            spikes_over_500us: Some(3),
            lost: Some(0),
            ..Series::default()
        };
        let spike = |sequence, latency_ns| Spike {
            path: "tap-xdp".into(),
            load: "egress-idle".into(),
            round: 1,
            sequence,
            at_s: 1.25,
            latency_ns,
            cause: "steal".into(),
            detail: "the hypervisor took 10 ms".into(),
            host: Host { span_us: 100_000, steal_ticks: 1, ..Host::default() },
        };
        let account = Account {
            scale: 0.5,
            paths: [("tap-xdp".to_owned(), "a tap & <XDP>".to_owned())].into(),
            stable_parts: vec![StablePart {
                path: "tap-xdp".into(),
                load: "egress-idle".into(),
                round: 1,
                first: 30,
                frames: 10,
                of: 90,
            }],
            spikes: vec![SpikeCount {
                path: "tap-xdp".into(),
                load: "egress-idle".into(),
                cause: "steal".into(),
                over_500us: 3,
                over_1ms: 1,
            }],
            greatest: vec![spike(7, 600_000), spike(8, 2_000_000)],
            ..Account::default()
        };
        let mut document = Document { experiment: "datapaths".into(), ..Document::default() };
        document.series = vec![
            series("tap-bridge", "egress-idle", 9_000, 20_000),
            series("tap-bridge", "ingress-idle", 8_000, 90_000),
            series("tap-xdp", "egress-idle", 7_000, 30_000),
            series("tap-xdp", "ingress-idle", 8_500, 80_000),
        ];
        document.set_parameters(&serde_json::json!({ PARAMETER: account }));
        document
    }

    #[test]
    fn latency_of_users_stands_beside_the_datapaths() {
        let mut document = document();
        let colours = Colours::of(["tap-bridge"].into_iter());
        assert_eq!(user(&document, &colours), "", "nothing is known of users");
        document.series[0].latency_ns = Some(Statistics { p50: 31_500, ..Statistics::default() });
        let page = user(&document, &colours);
        assert!(page.contains("31.5") && page.contains("9.0") && page.contains("latency-user"), "{page}");
        assert_eq!(user(&Document::default(), &colours), "");
    }

    #[test]
    fn one_look_says_which_path_is_least() {
        let answer = answer(&document(), &Colours::default());
        for line in [
            "egress-idle: least p50 <b>tap-xdp</b>, 7.0 µs",
            "egress-idle: least p99.9 <b>tap-bridge</b>, 20.0 µs",
            "ingress-idle: least p50 <b>tap-bridge</b>, 8.0 µs",
            "ingress-idle: least p99.9 <b>tap-xdp</b>, 80.0 µs",
            "450 s a row, 0.5 of the published 900 s",
            "a tap &amp; &lt;XDP&gt;",
        ] {
            assert!(answer.contains(line), "{line}: {answer}");
        }
        assert_eq!(answer.matches("class=\"good\"").count(), 4);
    }

    #[test]
    fn the_stable_part_stands_beside_all_frames_with_its_range() {
        let stable = stable(&document(), &Colours::default());
        assert!(stable.contains("31–40 of 90") && stable.matches("all frames").count() == 4, "{stable}");
        assert!(stable.contains("3.5"), "half of 7 µs");
    }

    #[test]
    fn spikes_have_their_causes_the_greatest_first() {
        let spikes = spikes(&document());
        let (great, small) = (spikes.find("2000").unwrap(), spikes.find("600").unwrap());
        assert!(great < small && spikes.contains("steal 10 ms, no PSI"), "{spikes}");
        let mut calm = document();
        calm.set_parameters(&serde_json::json!({ PARAMETER: Account::default() }));
        assert!(super::spikes(&calm).contains("No frame took more than 500"));
    }

    #[test]
    fn other_experiments_have_none_of_it() {
        let document = Document { experiment: "container".into(), ..document() };
        let colours = Colours::default();
        assert!(answer(&document, &colours).is_empty() && stable(&document, &colours).is_empty());
        assert!(spikes(&document).is_empty());
    }

    #[test]
    fn an_account_of_spikes_alone_is_shown_for_the_paths_of_the_document() {
        let mut document = Document { experiment: "vm".into(), ..document() };
        let account = document.parameters.remove(PARAMETER).unwrap();
        document.parameters.insert(SPIKES.to_owned(), account);
        assert!(spikes(&document).contains("steal 10 ms, no PSI"));
        document.series.clear();
        assert!(spikes(&document).contains("No frame took more than 500 µs above its run's median"));
    }
}
