// SPDX-License-Identifier: Apache-2.0
//! What the experiment `vm` is held against, and what was published. In: a measured document. Out: its comparisons, `published`, and what
//! must not happen. Guests are compared with guests only: TCG says nothing about a processor.
//!
//! The publication measured two boards (i3-8145UE, I210, a cable between them, Linux 5.4, QEMU/KVM 4.2.1, OVS 2.13.3 with DPDK 19.11.7),
//! 1 ms, 100 s. Only figures that its text states are here, none read off a plot.

use super::plan::{Datapath, Keeper, Load};
use crate::vm::schedule_scene::{MAGNITUDE, OFFSET_MAX};
use ktsn_measure::results::{CheckOutcome, Document, Ours, Published, Question, Series};

/// The publication.
const SOURCE: &str = "A. Garbugli, L. Rosa, L. Foschini, A. Corradi, P. Bellavista: A Framework for TSN-enabled Virtual Environments \
                      for Ultra-Low Latency 5G Scenarios. IEEE ICC 2022, pp. 5023-5028, doi:10.1109/icc45855.2022.9839193";

/// Figure, payload (none: all of them), of, to, value; our datapath.
type Entry = (&'static str, Option<usize>, &'static str, Option<&'static str>, f64, Datapath);

const ROWS: [Entry; 4] = [
    // "about 3.25 times lower than the kernel-based alternative"
    ("Fig. 4a", None, "kernel datapath", None, 390_000.0, Datapath::Bridge),
    ("Fig. 4a", None, "OVS-DPDK", None, 120_000.0, Datapath::OvsDpdk),
    ("Fig. 4a", None, "kernel datapath", Some("OVS-DPDK"), 3.25, Datapath::Bridge),
    ("text", Some(64), "bare metal", None, 190_000.0, Datapath::NoVm),
];

fn path(datapath: Datapath, keeper: Keeper) -> String {
    format!("{datapath}-{keeper}")
}

/// The keepers of the document's rows of one datapath.
fn keepers(document: &Document, datapath: Datapath) -> Vec<Keeper> {
    let has = |keeper: &Keeper| document.series.iter().any(|series| series.path == path(datapath, *keeper));
    Keeper::ALL.into_iter().filter(has).collect()
}

/// The figure by which a row's latency is compared: the latency itself where both ends have one clock.
fn latency_metric(series: &Series) -> &'static str {
    if series.latency_ns.is_some() { "latency_ns.p50" } else { "above_fastest_ns.p50" }
}

/// Adds the comparisons that the document has the runs for, and the published figures.
pub(super) fn compare(document: &mut Document) {
    let payloads = document.payloads();
    for load in Load::ALL.map(Load::word) {
        for keeper in Keeper::ALL {
            let (of, to) = (path(Datapath::OvsDpdk, keeper), path(Datapath::Bridge, keeper));
            for &payload_octets in &payloads {
                let entry = |path: &str| document.all_rounds(path, payload_octets, Some(load));
                let (Some(metric), true) = (entry(&of).map(latency_metric), entry(&to).is_some()) else {
                    continue;
                };
                for metric in [metric, "jitter_ns.p50"] {
                    let question = Question {
                        metric,
                        payload_octets,
                        load: Some(load),
                        of: &of,
                        to: Some(&to),
                        bar: None,
                    };
                    document.compare(&question);
                }
            }
        }
    }
    compare_keepers(document);
    document.published = published(document);
}

/// ktsnd in a guest against etf in a guest, both seen at the tap device of the publisher's guest.
fn compare_keepers(document: &mut Document) {
    let (of, to) = (path(Datapath::Bridge, Keeper::Ktsnd), path(Datapath::Bridge, Keeper::Etf));
    for load in Load::ALL.map(Load::word) {
        for payload_octets in document.payloads() {
            let figure = |path: &str, metric: &str| {
                document.all_rounds(path, payload_octets, Some(load)).and_then(|series| series.metric(metric))
            };
            let lost = figure(&to, "lost");
            if figure(&of, MAGNITUDE).is_none() || figure(&to, MAGNITUDE).is_none() {
                continue;
            }
            let mut ask = |metric, bar| {
                document.compare(&Question {
                    metric,
                    payload_octets,
                    load: Some(load),
                    of: &of,
                    to: Some(&to),
                    bar: Some(bar),
                })
            };
            ask(MAGNITUDE, OFFSET_MAX);
            // Where etf lost none there is no ratio.
            if lost.is_some_and(|count| count > 0.0) {
                ask("lost", 1.0);
                // The bar is "fewer": as many miss it.
                if let Some(asked) = document.comparisons.last_mut() {
                    asked.holds = Some(asked.ratio.is_some_and(|ratio| ratio < 1.0));
                }
            }
        }
    }
}

fn published(document: &Document) -> Vec<Published> {
    let entry = |&(figure, payload_octets, of, to, value, datapath): &Entry| {
        let divisor = to.map(|_| Datapath::OvsDpdk);
        let ours = keepers(document, datapath).into_iter();
        Published {
            source: SOURCE.to_owned(),
            figure: figure.to_owned(),
            metric: "latency_ns.p50".to_owned(),
            payload_octets,
            of: of.to_owned(),
            to: to.map(str::to_owned),
            value,
            ours: ours
                .filter_map(|keeper| ours_of(document, payload_octets, datapath, keeper, divisor))
                .collect(),
        }
    };
    ROWS.iter().map(entry).collect()
}

/// One path's median latency; without a payload the mean over those that were measured.
fn ours_of(
    document: &Document,
    payload_octets: Option<usize>,
    datapath: Datapath,
    keeper: Keeper,
    divisor: Option<Datapath>,
) -> Option<Ours> {
    let figure = |datapath: Datapath, octets: usize| {
        document
            .all_rounds(&path(datapath, keeper), octets, Some(Load::Idle.word()))?
            .metric("latency_ns.p50")
    };
    let payloads =
        document.payloads().into_iter().filter(|&octets| payload_octets.is_none_or(|only| only == octets));
    let value = |octets: usize| {
        let own = figure(datapath, octets)?;
        divisor.map_or(Some(own), |divisor| Some(own / figure(divisor, octets)?))
    };
    let values: Vec<f64> = payloads.filter_map(value).filter(|value| value.is_finite()).collect();
    let value = (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)?;
    Some(Ours { of: path(datapath, keeper), to: divisor.map(|divisor| path(divisor, keeper)), value })
}

/// What must not happen and did: a lost frame without a counted reason.
#[must_use]
pub fn violations(document: &Document) -> Vec<String> {
    let failed = document.checks.iter().filter(|check| check.outcome == CheckOutcome::Failed);
    failed.map(|check| format!("{}: {}", check.name, check.reason.as_deref().unwrap_or("–"))).collect()
}
