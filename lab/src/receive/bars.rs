// SPDX-License-Identifier: Apache-2.0
//! What the results of `receive` are held against. In: a document. Out: its comparisons, and what breaks a hard count.
//! Ratios are of medians over the rounds.

use super::path::{Path, Receiver};
use super::plan::PAYLOAD_OCTETS;
use super::scene::Scene;
use crate::container::bars::{HARD_COUNTS, faults};
use ktsn_measure::results::{Check, Comparison, Document, Question, Round};

/// What the document calls the difference of two listeners' CPU ratios.
const CPU_ABOVE: &str = "listener_cpu_ratio, of less to";

/// Scene, path, figure, the path it is divided by, the greatest ratio (none: it is only shown).
const RATIOS: [(Scene, Path, &str, Path, Option<f64>); 17] = [
    (Scene::Idle, Path::SHORT_EXPECT, "latency_ns.p50", Path::FLANNEL, None),
    (Scene::Idle, Path::SHORT_EXPECT, "latency_ns.p50", Path::SHORT_SPIN, Some(SPIN_MAX)),
    (Scene::Idle, Path::KTSN_EXPECT, "latency_ns.p50", Path::FLANNEL, Some(0.25)),
    (Scene::Idle, Path::KTSN_EXPECT, "latency_ns.p50", Path::KTSN_SPIN, None),
    (Scene::Idle, Path::SHORT_EXPECT, "jitter_ns.p50", Path::FLANNEL, Some(0.35)),
    (Scene::Idle, Path::SHORT_EXPECT, "latency_ns.p90", Path::FLANNEL, Some(0.5)),
    (Scene::Idle, Path::FLANNEL_EXPECT, "latency_ns.p50", Path::FLANNEL, None),
    (Scene::EightStreams, Path::SHORT_EXPECT, "latency_ns.p50", Path::SHORT, Some(0.6)),
    (Scene::EightStreams, Path::FLANNEL_EXPECT, "latency_ns.p50", Path::FLANNEL, None),
    (Scene::Poisson, Path::SHORT_EXPECT, "latency_ns.p50", Path::SHORT, Some(1.05)),
    (Scene::Poisson, Path::FLANNEL_EXPECT, "latency_ns.p50", Path::FLANNEL, Some(1.05)),
    (Scene::Epoll, Path::SHORT_EXPECT, "latency_ns.p50", Path::SHORT, None),
    (Scene::Python, Path::SHORT_EXPECT, "latency_ns.p50", Path::SHORT, None),
    (Scene::PythonEpoll, Path::SHORT_EXPECT, "latency_ns.p50", Path::SHORT, None),
    (Scene::Slow, Path::SHORT_EXPECT, "latency_ns.p50", Path::SHORT, None),
    (Scene::Iperf3Udp, Path::SHORT_EXPECT, "latency_ns.p50", Path::SHORT, None),
    (Scene::Iperf3Udp, Path::SHORT_EXPECT, "latency_ns.p50", Path::FLANNEL, None),
];
/// Greatest part of Flannel's latency.
const FLANNEL_MAX: f64 = 0.15;
/// How much later than a listener that spins all the time.
const SPIN_MAX: f64 = 1.3;
/// What a listener may use more than one that the kernel wakes, in CPUs.
const CPU_BARS: [(Scene, f64); 3] = [(Scene::Idle, 0.08), (Scene::Slow, 0.015), (Scene::Poisson, 0.003)];

/// Adds the comparisons that the document has the paths for.
pub fn compare(document: &mut Document) {
    for (scene, of, metric, to, bar) in RATIOS {
        let load = Some(scene.word());
        if [of, to].iter().all(|path| document.all_rounds(&path.to_string(), PAYLOAD_OCTETS, load).is_some())
        {
            let payload_octets = PAYLOAD_OCTETS;
            document.compare(&Question {
                metric,
                payload_octets,
                load,
                of: &of.to_string(),
                to: Some(&to.to_string()),
                bar,
            });
        }
    }
    document.checks.extend(near_flannel_or_spinning(document));
    for (scene, bar) in CPU_BARS {
        for of in [Path::SHORT_EXPECT, Path::FLANNEL_EXPECT] {
            let above = cpu_above(document, scene, of, bar);
            document.comparisons.extend(above);
        }
    }
}

fn figure(document: &Document, scene: Scene, path: Path, metric: &str) -> Option<f64> {
    document.all_rounds(&path.to_string(), PAYLOAD_OCTETS, Some(scene.word()))?.metric(metric)
}

/// The first bar: a part of Flannel's latency, or near a listener that spins all the time.
fn near_flannel_or_spinning(document: &Document) -> Option<Check> {
    let p50 = |path| figure(document, Scene::Idle, path, "latency_ns.p50");
    let own = p50(Path::SHORT_EXPECT)?;
    let [flannel, spinning] =
        [Path::FLANNEL, Path::SHORT_SPIN].map(|path| p50(path).map(|other| own / other));
    let within = |ratio: Option<f64>, bar| ratio.is_some_and(|ratio| ratio <= bar);
    let shown =
        |ratio: Option<f64>| ratio.map_or_else(|| "unknown".to_owned(), |ratio| format!("{ratio:.3}"));
    let reason = format!(
        "latency p50 of ktsn-short-expect is {} of flannel's (bar {FLANNEL_MAX}) and {} of a spinning listener's (bar {SPIN_MAX})",
        shown(flannel),
        shown(spinning)
    );
    let holds = within(flannel, FLANNEL_MAX) || within(spinning, SPIN_MAX);
    Some(Check::of("a listener that expects its frames: one of the two bars", holds, Some(reason)))
}

/// What a listener that expects uses more than one on the same way that the kernel wakes.
fn cpu_above(document: &Document, scene: Scene, of: Path, bar: f64) -> Option<Comparison> {
    let to = of.with(Receiver::Kernel);
    let ratio = |path| figure(document, scene, path, "listener_cpu_ratio");
    let above = ratio(of)? - ratio(to)?;
    Some(Comparison {
        payload_octets: Some(PAYLOAD_OCTETS),
        load: Some(scene.word().to_owned()),
        ..Comparison::held(CPU_ABOVE, &of.to_string(), Some(&to.to_string()), Some(above), bar)
    })
}

/// What must never be: one sentence each.
#[must_use]
pub fn violations(document: &Document) -> Vec<String> {
    let mut found = Vec::new();
    for series in document.series.iter().filter(|s| Path::is_ours(&s.path) && s.round == Round::All) {
        let scene = series.load.as_deref().unwrap_or_default();
        found.extend(faults(series, &format!("{} ({scene})", series.path), &HARD_COUNTS));
    }
    found
}
