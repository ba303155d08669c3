// SPDX-License-Identifier: Apache-2.0
//! What the results of `datapaths` are held against, and the published figures beside them. In: a document. Out: its comparisons, one check,
//! its published figures.

use super::frame::PAYLOAD_OCTETS;
use super::path::{Direction, End, Load, Path, named, row};
use ktsn_measure::datapaths::{Account, PARAMETER};
use ktsn_measure::hosts::TwoHosts;
use ktsn_measure::results::{Check, Comparison, Document, Ours, Published, Question, Round};

/// A path with XDP is to be faster than the bridge.
const FASTER: f64 = 1.0;
/// OVS-DPDK with vhost-user against the bridge.
const DPDK_MAX: f64 = 0.6;
const P50: &str = "network_latency_ns.p50";

const SOURCE: &str = "A. Takahiro (Linaro): Network Latency with TSN on Virtual Machine, 2023";
const TABLE: &str = "Stats at a glance, 27 March 2023";

/// Mean, maximum and standard deviation in µs: the benchmark alone, and beside three netperf.
type Row = (Path, &'static str, [f64; 3], Option<[f64; 3]>);

/// The published rows: from the remote host into the guest, with a network card, a kernel with PREEMPT_RT, and four CPUs.
const ROWS: [Row; 6] = [
    (Path::Vfio, "VFIO", [39.3, 471.0, 5.1], None),
    (Path::Macvtap, "macvtap", [59.4, 498.9, 10.9], Some([84.6, 534.9, 17.2])),
    (Path::TapBridge, "tap+bridge", [65.9, 603.3, 14.0], Some([91.0, 365.1, 17.7])),
    (Path::TapXdp, "tap+XDP", [66.5, 492.2, 12.2], Some([72.8, 319.4, 14.0])),
    (Path::TapOvs, "tap+OVS", [63.1, 996.6, 10.9], Some([83.7, 689.9, 15.3])),
    (Path::OvsDpdk, "OVS+AF_XDP", [46.5, 845.0, 7.6], Some([70.5, 322.7, 13.7])),
];

/// Adds comparisons, the check of the spikes, and the published figures.
pub fn compare(document: &mut Document) {
    compare_medians(document);
    compare_guests(document);
    compare_losses(document);
    check_spikes(document);
    publish(document);
}

/// The figure of a row.
fn figure(document: &Document, path: Path, load: &str, metric: &str) -> Option<f64> {
    document.all_rounds(path.word(), PAYLOAD_OCTETS, Some(load))?.metric(metric)
}

/// Guests beside guests: how they ran is the same for all of them. They have no bars, and never stand beside a stand-in.
fn compare_guests(document: &mut Document) {
    let to = named(Path::TapBridge, End::Guest);
    for (direction, load) in Direction::ALL.into_iter().flat_map(|d| Load::ALL.map(|load| (d, load))) {
        let load_name = row(direction, load);
        for path in Path::ALL.into_iter().filter(|path| *path != Path::TapBridge) {
            let of = named(path, End::Guest);
            let has = |path: &str| document.all_rounds(path, PAYLOAD_OCTETS, Some(&load_name)).is_some();
            if has(&of) && has(&to) {
                document.compare(&Question {
                    metric: P50,
                    payload_octets: PAYLOAD_OCTETS,
                    load: Some(&load_name),
                    of: &of,
                    to: Some(&to),
                    bar: None,
                });
            }
        }
    }
}

fn compare_medians(document: &mut Document) {
    // By two clocks both medians have the clocks' difference in them: their ratio proves nothing.
    let has_one_clock = TwoHosts::of(document).is_none();
    for (direction, load) in Direction::ALL.into_iter().flat_map(|d| Load::ALL.map(|load| (d, load))) {
        let load_name = row(direction, load);
        let has = |document: &Document, path| figure(document, path, &load_name, P50);
        if has(document, Path::TapBridge).is_none() {
            continue;
        }
        let in_driver = [Path::OvsAfxdp, Path::TapXdp].into_iter();
        let in_driver = in_driver.filter_map(|path| Some((path, has(document, path)?)));
        let fastest = in_driver.min_by(|one, other| one.1.total_cmp(&other.1)).map(|(path, _)| path);
        for path in Path::ALL.into_iter().filter(|path| *path != Path::TapBridge) {
            if has(document, path).is_none() {
                continue;
            }
            // The bars are of the idle machine.
            let bar = match path {
                Path::OvsDpdk => Some(DPDK_MAX),
                path if Some(path) == fastest => Some(FASTER),
                _ => None,
            };
            let to = Some(Path::TapBridge.word());
            let comparison = document.compare(&Question {
                metric: P50,
                payload_octets: PAYLOAD_OCTETS,
                load: Some(&load_name),
                of: path.word(),
                to,
                bar: bar.filter(|_| load == Load::Idle && has_one_clock),
            });
            // "Lower than the bridge": the same median misses it.
            if bar == Some(FASTER)
                && let Some(last) = document.comparisons.last_mut().filter(|last| last.bar.is_some())
            {
                last.holds = Some(comparison.ratio.is_some_and(|ratio| ratio < FASTER));
            }
        }
    }
}

fn compare_losses(document: &mut Document) {
    let all = document.series.iter().filter(|series| series.round == Round::All);
    let held: Vec<Comparison> = all
        .map(|series| {
            let lost = series.lost_uncounted.map(|lost| lost as f64);
            Comparison {
                payload_octets: Some(series.payload_octets),
                load: series.load.clone(),
                ..Comparison::held("lost_uncounted", &series.path, None, lost, 0.0)
            }
        })
        .collect();
    document.comparisons.extend(held);
}

/// Every spike has a cause, or "unknown" with the host's counters.
fn check_spikes(document: &mut Document) {
    let Some(account) = document.parameters.get(PARAMETER) else { return };
    let Ok(account) = serde_json::from_value::<Account>(account.clone()) else { return };
    let explained: u64 = account.spikes.iter().map(|spikes| spikes.over_500us).sum();
    let rounds = document.series.iter().filter(|series| series.round == Round::All);
    let all: u64 = rounds.filter_map(|series| series.spikes_over_500us).sum();
    let unknown: u64 = account
        .spikes
        .iter()
        .filter(|spikes| spikes.cause == "unknown")
        .map(|spikes| spikes.over_500us)
        .sum();
    let sentence = format!(
        "{explained} of {all} spikes over 500 µs have a cause, {unknown} of them “unknown” with the host's counters"
    );
    document.checks.push(Check::of("every spike has a stated cause", explained == all, Some(sentence)));
}

/// The published figures, in nanoseconds, beside those of ours that were measured.
fn publish(document: &mut Document) {
    let ingress = [(Load::Idle, "alone"), (Load::Udp, "with 3 netperf")];
    for (path, name, alone, loaded) in ROWS {
        for ((load, words), values) in ingress.into_iter().zip([Some(alone), loaded]) {
            let Some(values) = values else { continue };
            let load_name = row(Direction::Ingress, load);
            for (statistic, value) in ["mean", "max", "stddev"].into_iter().zip(values) {
                let metric = format!("network_latency_ns.{statistic}");
                // The publication's guest port behind AF_XDP is vhost-user; ours with a tap stands beside it.
                let with_tap = (path == Path::OvsDpdk).then_some(Path::OvsAfxdp);
                let ours = [Some(path), with_tap].into_iter().flatten().filter_map(|path| {
                    let value = figure(document, path, &load_name, &metric)?;
                    Some(Ours { of: path.to_string(), to: None, value })
                });
                let ours = ours.collect();
                document.published.push(Published {
                    source: SOURCE.to_owned(),
                    figure: TABLE.to_owned(),
                    metric,
                    payload_octets: None,
                    of: format!("{name}, {words}"),
                    to: None,
                    value: value * 1_000.0,
                    ours,
                });
            }
        }
    }
}

/// Frames that were lost and that no counter accounts for.
#[must_use]
pub fn violations(document: &Document) -> Vec<String> {
    let all = document.series.iter().filter(|series| series.round == Round::All);
    all.flat_map(|series| {
        let load = series.load.as_deref().unwrap_or_default();
        let of = format!("{} {load}", series.path);
        series.nonzero(&["lost_uncounted"]).map(move |fault| format!("{of}: {fault}")).collect::<Vec<_>>()
    })
    .collect()
}
