// SPDX-License-Identifier: Apache-2.0
//! What was published for the same experiment, with ours beside it. In: a measured document. Out: its `published`.
//!
//! KuberneTSN measured two workstations (i9-10980XE, I225, a TSN switch, Linux 5.16), pods through OVS-DPDK at the sender
//! and OVS's kernel datapath at the receiver, Flannel with a sleeping talker, 1 ms, 64, 256 and 1024 octets. Only figures that its
//! text states are here, none read off a plot. Ours are one machine's namespaces: the ratios say more than the microseconds.

use crate::container::{Load, Path};
use ktsn_measure::results::{Document, Ours, Published};

/// The publication.
const SOURCE: &str = "A. Garbugli, L. Rosa, A. Bujari, L. Foschini: KuberneTSN: a Deterministic Overlay Network for Time-Sensitive \
                      Containerized Environments. IEEE ICC 2023, pp. 1494-1499, doi:10.1109/icc45041.2023.10279214";

/// Our paths beside the paper's `tsn-cni`.
const KTSN: [Path; 3] = [Path::Ktsn, Path::KtsnShort, Path::KtsnOvsDpdk];
/// And beside its Flannel, which sleeps and sends.
const FLANNEL: [Path; 1] = [Path::Flannel];

/// Figure, metric, payload (none: mean of all), of, to, value, our paths, the path that ours are divided by.
type Row = (
    &'static str,
    &'static str,
    Option<usize>,
    &'static str,
    Option<&'static str>,
    f64,
    &'static [Path],
    Option<Path>,
);

const ROWS: [Row; 9] = [
    ("Fig. 3a", "latency_ns.p50", Some(64), "tsn-cni", None, 21_500.0, &KTSN, None),
    ("Fig. 3a", "latency_ns.p50", Some(1024), "tsn-cni", None, 41_700.0, &KTSN, None),
    // "almost identical to … bare metal"
    ("Fig. 3a", "latency_ns.p50", None, "tsn-cni", Some("bare metal"), 1.0, &KTSN, Some(Path::Bare)),
    // "12 % on average", over the same values
    ("Fig. 3a", "latency_ns.p50", None, "Flannel", Some("tsn-cni"), 1.12, &FLANNEL, Some(Path::Ktsn)),
    // "the median value is zero in almost all cases"
    ("Fig. 3b", "jitter_ns.p50", None, "tsn-cni", None, 0.0, &KTSN, None),
    ("Fig. 4", "latency_ns.p90", Some(256), "tsn-cni", None, 26_400.0, &KTSN, None),
    ("Fig. 4", "latency_ns.p99", Some(256), "tsn-cni", None, 28_100.0, &KTSN, None),
    ("Fig. 4", "latency_ns.p90", Some(256), "Flannel", None, 29_600.0, &FLANNEL, None),
    ("Fig. 4", "latency_ns.p99", Some(256), "Flannel", None, 30_700.0, &FLANNEL, None),
];

/// The published figures, each with ours that were measured without a load.
pub(super) fn beside(document: &Document) -> Vec<Published> {
    ROWS.iter()
        .map(|&(figure, metric, payload_octets, of, to, value, paths, divisor)| Published {
            source: SOURCE.to_owned(),
            figure: figure.to_owned(),
            metric: metric.to_owned(),
            payload_octets,
            of: of.to_owned(),
            to: to.map(str::to_owned),
            value,
            ours: paths
                .iter()
                .filter_map(|&path| ours(document, metric, payload_octets, path, divisor))
                .collect(),
        })
        .collect()
}

/// One path's figure; without a payload the mean over those that were measured.
fn ours(
    document: &Document,
    metric: &str,
    payload_octets: Option<usize>,
    path: Path,
    divisor: Option<Path>,
) -> Option<Ours> {
    let figure = |path: Path, octets: usize| {
        document.all_rounds(path.word(), octets, Some(Load::Idle.word()))?.metric(metric)
    };
    let mut payloads: Vec<usize> = document.series.iter().map(|series| series.payload_octets).collect();
    payloads.sort_unstable();
    payloads.dedup();
    payloads.retain(|&octets| payload_octets.is_none_or(|only| only == octets));
    let value = |octets: &usize| {
        let own = figure(path, *octets)?;
        divisor.map_or(Some(own), |divisor| Some(own / figure(divisor, *octets)?))
    };
    let values: Vec<f64> = payloads.iter().filter_map(value).filter(|value| value.is_finite()).collect();
    let value = (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)?;
    let to = divisor.map(|divisor| divisor.word().to_owned());
    Some(Ours { of: path.word().to_owned(), to, value })
}

#[cfg(test)]
mod tests {
    use super::*;
    use ktsn_measure::results::{Round, Series};
    use ktsn_measure::stats::Statistics;

    #[test]
    fn ours_stand_beside_what_was_published() {
        let mut document = Document::new("overlay", Vec::new());
        for (path, octets, p50) in [
            (Path::Ktsn, 64, 30_000),
            (Path::Ktsn, 256, 20_000),
            (Path::Flannel, 64, 60_000),
            (Path::Flannel, 256, 60_000),
        ] {
            document.series.push(Series {
                path: path.word().to_owned(),
                payload_octets: octets,
                load: Some(Load::Idle.word().to_owned()),
                round: Round::All,
                latency_ns: Some(Statistics { p50, p90: 2 * p50, ..Statistics::default() }),
                ..Series::default()
            });
        }
        let published = beside(&document);
        assert_eq!(published.len(), ROWS.len());
        assert_eq!(published[0].ours, [Ours { of: "ktsn".to_owned(), to: None, value: 30_000.0 }]);
        assert!(published[1].ours.is_empty(), "1024 octets were not measured");
        // Mean of 2 and 3.
        let ratio = Ours { of: "flannel".to_owned(), to: Some("ktsn".to_owned()), value: 2.5 };
        assert_eq!(published[3].ours, [ratio]);
        assert_eq!(published[7].ours[0].value, 120_000.0);
    }
}
