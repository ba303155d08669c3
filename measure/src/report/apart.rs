// SPDX-License-Identifier: Apache-2.0
//! Guests apart from everything else. In: a source. Out: one part for each way in which guests ran (and one without guests), each of which
//! is shown by itself: what QEMU interprets (TCG) says nothing about a processor, so no plot and no table may hold both.

use super::source::Source;
use crate::datapaths::{Account, PARAMETER};
use crate::results::{Document, Series};

/// The parts, in the order in which they appear; the source itself where there are no guests.
pub(super) fn parts(source: &Source) -> Vec<Source> {
    let mut kinds: Vec<Option<&str>> = Vec::new();
    for series in &source.document.series {
        if !kinds.contains(&series.accelerator.as_deref()) {
            kinds.push(series.accelerator.as_deref());
        }
    }
    if kinds.iter().all(Option::is_none) {
        return vec![source.clone()];
    }
    kinds.iter().enumerate().map(|(index, kind)| part(source, *kind, index == 0)).collect()
}

fn part(source: &Source, kind: Option<&str>, is_first: bool) -> Source {
    let mut part = source.clone();
    let belongs = |series: &Series| series.accelerator.as_deref() == kind;
    let others: Vec<String> = source
        .document
        .series
        .iter()
        .filter(|series| !belongs(series))
        .map(|series| series.path.clone())
        .collect();
    part.document.series.retain(belongs);
    let paths: Vec<String> = part.document.series.iter().map(|series| series.path.clone()).collect();
    let has = |path: &String| paths.contains(path);
    part.samples.retain(|samples| has(&samples.path));
    part.document.comparisons.retain(|comparison| has(&comparison.of));
    // A check that names none of the paths stands once.
    part.document.checks.retain(|check| {
        let is_of = |path: &String| check.name.starts_with(&format!("{path} "));
        paths.iter().any(is_of) || (is_first && !others.iter().any(is_of))
    });
    let account = part.document.parameters.get_mut(PARAMETER);
    if let Some(account) = account
        && let Ok(mut of_part) = serde_json::from_value::<Account>(account.clone())
    {
        of_part.retain(|path| paths.iter().any(|other| other == path));
        // An account that was read can be written.
        *account = serde_json::to_value(of_part).unwrap_or_default();
    }
    for entry in &mut part.document.published {
        entry.ours.retain(|ours| has(&ours.of));
    }
    part.part = Some(match kind {
        None => "without guests".to_owned(),
        Some("tcg") => "guests under TCG".to_owned(),
        Some(kind) => format!("guests under {}", kind.to_uppercase()),
    });
    part.remark = remark(&part.document, kind);
    part
}

fn remark(document: &Document, kind: Option<&str>) -> String {
    let mut remark = String::new();
    if kind == Some("tcg") {
        remark.push_str(
            "TCG interprets the guests' instructions, many times slower than a processor runs them. These figures are compared with each \
             other only. ",
        );
    }
    if document.has_own_clocks() {
        remark.push_str(
            "The guests have clocks of their own: the latency of a frame is shown above that of the fastest frame of its row, an offset and \
             a constant drift removed. So the latency itself, and its budget, are not known.",
        );
    }
    remark.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::datapaths::SpikeCount;
    use crate::results::{Check, Comparison, Ours, Published, Round};
    use ktsn_traffic::stats::Statistics;

    fn document() -> Document {
        let series = |path: &str, accelerator: Option<&str>| Series {
            path: path.to_owned(),
            payload_octets: 64,
            accelerator: accelerator.map(str::to_owned),
            clock: Some(if accelerator.is_some() { "own" } else { "host" }.to_owned()),
            round: Round::All,
            jitter_ns: Some(Statistics::default()),
            ..Series::default()
        };
        let mut document = Document::new("vm", Vec::new());
        document.series = vec![series("no-vm-send", None), series("bridge-send", Some("tcg"))];
        document.checks = ["no-vm-send (idle), round 1", "bridge-send (idle), round 1", "other"]
            .map(|name| Check::of(name, true, None))
            .into();
        document.comparisons = vec![Comparison { of: "bridge-send".to_owned(), ..Comparison::default() }];
        let ours = |of: &str| Ours { of: of.to_owned(), to: None, value: 1.0 };
        document.published = vec![Published {
            source: "S".to_owned(),
            figure: "Fig. 1".to_owned(),
            metric: "latency_ns.p50".to_owned(),
            payload_octets: None,
            of: "x".to_owned(),
            to: None,
            value: 1.0,
            ours: vec![ours("no-vm-send"), ours("bridge-send")],
        }];
        document
    }

    #[test]
    fn what_tcg_ran_stands_by_itself() {
        let source = Source::of("vm.json", &document(), &[]).unwrap();
        let parts = parts(&source);
        let names = |part: &Source| -> Vec<String> {
            part.document.checks.iter().map(|check| check.name.clone()).collect()
        };
        assert_eq!(parts.len(), 2);
        assert_eq!(names(&parts[0]), ["no-vm-send (idle), round 1", "other"]);
        assert_eq!(names(&parts[1]), ["bridge-send (idle), round 1"]);
        assert_eq!((parts[0].document.comparisons.len(), parts[1].document.comparisons.len()), (0, 1));
        assert_eq!(parts[1].document.published[0].ours[0].of, "bridge-send");
        assert_eq!(parts[0].remark, "");
        assert!(
            parts[1].remark.contains("TCG interprets") && parts[1].remark.contains("clocks of their own")
        );
        let page = super::super::render(&[source]).unwrap();
        for words in ["“vm”: without guests", "“vm”: guests under TCG", "above that of the fastest frame"]
        {
            assert!(page.contains(words), "{words}");
        }
    }

    #[test]
    fn spikes_of_guests_stand_with_the_guests() {
        let mut document = document();
        let spikes = |path: &str| SpikeCount {
            path: path.to_owned(),
            load: "egress-idle".to_owned(),
            cause: "unknown".to_owned(),
            over_500us: 1,
            over_1ms: 0,
        };
        let account =
            Account { spikes: vec![spikes("no-vm-send"), spikes("bridge-send")], ..Account::default() };
        document.set_parameters(&serde_json::json!({ PARAMETER: account }));
        let parts = parts(&Source::of("d.json", &document, &[]).unwrap());
        let of = |part: &Source| part.document.parameters[PARAMETER]["spikes"][0]["path"].clone();
        assert_eq!([of(&parts[0]), of(&parts[1])], ["no-vm-send", "bridge-send"]);
        let spikes = parts[0].document.parameters[PARAMETER]["spikes"].as_array().map(Vec::len);
        assert_eq!(spikes, Some(1));
    }

    #[test]
    fn a_document_without_guests_stays_whole() {
        let mut document = document();
        document.series.truncate(1);
        let parts = parts(&Source::of("r.json", &document, &[]).unwrap());
        assert_eq!((parts.len(), parts[0].part.as_deref(), parts[0].document.checks.len()), (1, None, 3));
    }
}
