// SPDX-License-Identifier: Apache-2.0
//! The member `realtime` as text for a terminal. In: verdicts, cells. Out: the verdicts first, then the figures, isolation, causes. Times
//! are in microseconds. Nothing is computed here. A document may come from another machine: [`realtime`] and [`changes`] leave out what a
//! terminal would obey, text by text.

use super::{ABSENT, micros, percent, table};
use ktsn_realtime::compare::{Change, Conclusion, Difference, Tail};
use ktsn_realtime::tracers::{Traced, Tracer};
use ktsn_realtime::verdict::duration;
use ktsn_realtime::{BoxStatistics, Cell, RealTime};
use ktsn_time::Span;
use ktsn_traffic::plain::plain;

/// Head and figure of a column.
type Column = (&'static str, fn(&BoxStatistics) -> f64);

/// The columns of the paper's Table 3, and three more.
pub(crate) const COLUMNS: [Column; 11] = [
    ("lower whisker", |s| s.lower_whisker_ns as f64),
    ("lower quartile", |s| s.lower_quartile_ns as f64),
    ("median", |s| s.median_ns as f64),
    ("mean", |s| s.mean_ns),
    ("deviation", |s| s.stddev_ns),
    ("upper quartile", |s| s.upper_quartile_ns as f64),
    ("upper whisker", |s| s.upper_whisker_ns as f64),
    ("max. jitter", |s| s.max_jitter_ns as f64),
    ("p99.9", |s| s.p99_9_ns as f64),
    ("p99.99", |s| s.p99_99_ns as f64),
    ("greatest", |s| s.max_ns as f64),
];

/// A cell's name: system and profile.
pub(crate) fn name(cell: &Cell) -> String {
    format!("{} {}", cell.system, cell.profile)
}

/// What the verdicts of a document mean: how long its cells were measured.
pub(crate) fn basis(found: &RealTime) -> String {
    let measured = found.cells.iter().filter(|cell| cell.statistics.is_some()).map(|cell| cell.measured_ns);
    let shortest = measured.min().unwrap_or(0);
    let meaning = if Span::from_nanos(shortest) >= ktsn_realtime::verdict::FIT_AFTER {
        "PASS means fit, TIGHT fit with little room"
    } else {
        "PASS and TIGHT mean not unfit so far: only 8 h say fit"
    };
    let share = f64::from(found.share_ratio) * 100.0;
    format!(
        "after {} a cell: {meaning}; in per cent: what the greatest latency and its variation use of the {share:.0} % that processing may use",
        duration(Span::from_nanos(shortest))
    )
}

fn verdicts(found: &RealTime) -> String {
    let measured: Vec<&Cell> = found.cells.iter().filter(|cell| cell.statistics.is_some()).collect();
    let names: Vec<String> = measured.iter().map(|cell| plain(&name(cell))).collect();
    let mut table = table(std::iter::empty(), 0);
    table.set_header(std::iter::once("service").chain(names.iter().map(String::as_str)));
    for requirement in &found.requirements {
        let cell = |cell: &&Cell| {
            let is = |verdict: &&ktsn_realtime::results::Verdict| {
                verdict.system == cell.system
                    && verdict.profile == cell.profile
                    && verdict.service == requirement.service
            };
            let verdict = found.verdicts.iter().find(is);
            verdict.map_or_else(
                || ABSENT.to_owned(),
                |verdict| {
                    format!("{} {:.0} %", verdict.judgement.outcome, verdict.judgement.used_ratio * 100.0)
                },
            )
        };
        table.add_row(std::iter::once(plain(&requirement.service)).chain(measured.iter().map(cell)));
    }
    format!("{}\n{table}\n", basis(found))
}

fn figures(found: &RealTime) -> String {
    let heads =
        ["system, profile", "samples", "missed"].into_iter().chain(COLUMNS.iter().map(|column| column.0));
    let mut table = table(heads, 1);
    for cell in &found.cells {
        let Some(statistics) = &cell.statistics else { continue };
        let columns = COLUMNS.iter().map(|(_, column)| micros(column(statistics)));
        let counts = [Some(statistics.samples), cell.missed_periods];
        let counts = counts.map(|count| count.map_or_else(|| ABSENT.to_owned(), |count| count.to_string()));
        table.add_row(std::iter::once(plain(&name(cell))).chain(counts).chain(columns));
    }
    let early: String =
        found.cells.iter().filter_map(early).map(|line| format!("{}\n", plain(&line))).collect();
    format!(
        "latency in µs; missed: periods that passed while a wake-up was late; whiskers: percentiles 2.5 and 97.5\n{table}\n{early}"
    )
}

/// What a cell's early wake-ups mean; `None` without one.
pub(crate) fn early(cell: &Cell) -> Option<String> {
    let early = cell.early.filter(|early| early.wakeups > 0)?;
    Some(format!(
        "{}: {} of {} wake-ups came before their instant, the earliest by {} µs: the timer is early, or the probe's clock is not the timer's. Each counts as \
         0 µs above; the verdicts add the {} µs to the variation.",
        name(cell),
        early.wakeups,
        cell.histogram.count(),
        micros(early.most_ns as f64),
        micros(early.most_ns as f64),
    ))
}

fn isolation(found: &RealTime) -> String {
    let mut text = String::new();
    for one in &found.isolation {
        let most = one.disturbances.iter().find(|disturbance| disturbance.profile == one.most);
        if let Some(most) = most {
            text.push_str(&format!(
                "isolation of {}: neighbours disturb most in profile {} (against profile 4: mean {:+.1} µs, max. jitter {:+.1} µs, p99.9 {:+.1} µs, \
                 greatest {:+.1} µs)\n",
                plain(&one.system),
                one.most,
                most.mean_added_ns / 1e3,
                most.max_jitter_added_ns as f64 / 1e3,
                most.p99_9_added_ns as f64 / 1e3,
                most.max_added_ns as f64 / 1e3,
            ));
        }
    }
    text
}

fn causes(found: &RealTime) -> String {
    let mut table =
        table(["system, profile", "late wake-ups", "causes, the strongest first", "unexplained"], 3);
    for cell in found.cells.iter().filter(|cell| cell.excursions > 0) {
        let one = |cause: &ktsn_realtime::causes::RankedCause| {
            let thread =
                cause.thread.as_ref().map_or_else(String::new, |thread| format!(": {}", plain(thread)));
            format!("{} {}{thread}", cause.cause.word(), percent(cause.explained_ratio))
        };
        let causes: Vec<String> = cell.causes.iter().take(4).map(one).collect();
        let causes = if causes.is_empty() { ABSENT.to_owned() } else { causes.join("\n") };
        table.add_row([
            plain(&name(cell)),
            cell.excursions.to_string(),
            causes,
            percent(cell.unexplained_ratio),
        ]);
    }
    if table.is_empty() {
        return String::new();
    }
    let limit = micros(found.excursion_limit_ns as f64);
    format!(
        "wake-ups later than {limit} µs; in per cent: the share of their lateness that a cause can explain\n{table}\n"
    )
}

/// What to change, where a verdict is FAIL.
fn advice(found: &RealTime) -> String {
    if found.advice.is_empty() {
        return String::new();
    }
    let mut table = table(["finding of ktsn doctor --rt", "seen", "explains", "remedy"], 4);
    for one in &found.advice {
        table.add_row([
            plain(&one.finding),
            plain(&one.value),
            percent(one.explained_ratio),
            plain(&one.remedy),
        ]);
    }
    format!(
        "what to change after a FAIL; explains: the largest share of a failed cell's lateness that the remedy can take away\n{table}\n"
    )
}

/// What the kernel's own tracers say, one line for each.
fn tracers(found: &RealTime) -> String {
    let one = |tracer: &Tracer| {
        let name = tracer.kind.tracer();
        if let Some(skip) = &tracer.skip {
            return format!("tracer {name}: skipped, {} ({})\n", plain(&skip.reason), plain(&skip.kind));
        }
        format!(
            "tracer {name}, {}: {}\n",
            duration(Span::from_nanos(tracer.measured_ns)),
            plain(&traced(tracer))
        )
    };
    found.tracers.iter().map(one).collect()
}

/// A tracer's figures, CPU by CPU.
pub(crate) fn traced(tracer: &Tracer) -> String {
    let of_cpu = |traced: &Traced| {
        let cpu = traced.cpu.map_or_else(|| "all CPUs".to_owned(), |cpu| format!("CPU {cpu}"));
        let figure = |(name, value): &(String, u64)| match name.strip_suffix("_ns") {
            Some(name) => format!("{} {} µs", name.replace('_', " "), micros(*value as f64)),
            None => format!("{} {value}", name.replace('_', " ")),
        };
        let figures: Vec<String> = traced.figures.iter().map(figure).collect();
        format!("{cpu}: {}", if figures.is_empty() { "no sample".to_owned() } else { figures.join(", ") })
    };
    tracer.traced.iter().map(of_cpu).collect::<Vec<_>>().join("; ")
}

/// What the systems ran on, where that is not this machine.
fn environments(found: &RealTime) -> String {
    let mut lines: Vec<String> = Vec::new();
    for cell in &found.cells {
        if let Some(environment) = &cell.environment {
            let line = format!("{}: {}\n", plain(&cell.system), plain(environment));
            if !lines.contains(&line) {
                lines.push(line);
            }
        }
    }
    lines.concat()
}

/// All of it.
pub(super) fn realtime(found: &RealTime) -> String {
    let mut parts = Vec::new();
    if found.cells.iter().any(|cell| cell.statistics.is_some()) {
        parts.extend([verdicts(found), figures(found)]);
    }
    parts.extend(
        [environments(found), isolation(found), causes(found), advice(found), tracers(found)]
            .into_iter()
            .filter(|part| !part.is_empty()),
    );
    let skips = found.cells.iter().filter_map(|cell| Some((name(cell), cell.skip.as_ref()?)));
    let skips: String = skips
        .map(|(name, skip)| {
            format!("{}: skipped, {} ({})\n", plain(&name), plain(&skip.reason), plain(&skip.kind))
        })
        .collect();
    parts.extend((!skips.is_empty()).then_some(skips));
    parts.join("\n")
}

/// A conclusion in words: both tests where they do not agree.
fn conclusion(change: &Change) -> &'static str {
    use Conclusion::{Better, Same, Worse};
    match (change.usual, change.tail.conclusion) {
        (Worse, Worse) => "worse",
        (Better, Better) => "better",
        (Same, Same) => "no difference shown",
        (Worse, Same) => "worse; of the tail no difference shown",
        (Better, Same) => "better; of the tail no difference shown",
        (Same, Worse) => "worse: the tail only",
        (Same, Better) => "better: the tail only",
        (Worse, Better) => "worse, though the tail is better",
        (Better, Worse) => "worse: the tail, though usually better",
    }
}

/// What of two documents was not measured alike, a line each.
#[must_use]
pub fn differences(found: &[Difference]) -> String {
    found.iter().map(|difference| format!("differs: {}\n", plain(&difference.to_string()))).collect()
}

/// Two documents beside each other: one row for each cell that both measured.
#[must_use]
pub fn changes(changes: &[(String, Change)]) -> String {
    let heads = [
        "system, profile",
        "conclusion",
        "median",
        "max. jitter",
        "p99.9",
        "greatest",
        "longer",
        "p",
        "tail",
        "p of tail",
    ];
    let mut table = table(heads, 2);
    for (name, change) in changes {
        let pair = |column: fn(&BoxStatistics) -> u64| {
            format!("{} → {}", micros(column(&change.before) as f64), micros(column(&change.after) as f64))
        };
        let tail = |tail: &Tail| {
            let threshold = micros(tail.threshold_ns as f64);
            format!("{} → {} above {threshold}", tail.above_before, tail.above_after)
        };
        table.add_row([
            plain(name),
            conclusion(change).to_owned(),
            pair(|s| s.median_ns),
            pair(|s| s.max_jitter_ns),
            pair(|s| s.p99_9_ns),
            pair(|s| s.max_ns),
            percent(change.longer_probability),
            format!("{:.2e}", change.p_value),
            tail(&change.tail),
            format!("{:.2e}", change.tail.p_value),
        ]);
    }
    format!(
        "latency in µs, before → after; longer: the chance that a latency after exceeds one before (50 %: none); p: Mann and Whitney's test, \
         two-sided. tail: how many latencies exceed 1.1 times the lesser p99.9; p of tail: exact, two-sided. A conclusion needs p below 0.01 \
         (Holm's correction), and a chance beyond 44 to 56 %, or of the tail twice the share or half of it.\n{table}\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use ktsn_realtime::advice::Advice;
    use ktsn_realtime::causes::{Cause, RankedCause};
    use ktsn_realtime::requirements::table_1;
    use ktsn_realtime::results::{Early, Skip};
    use ktsn_realtime::tracers::Kind;
    use ktsn_realtime::{Histogram, Profile, compare};

    fn cell(profile: usize, micros: &[u64]) -> Cell {
        let histogram: Histogram = micros.iter().map(|&micros| Span::from_nanos(micros * 1000)).collect();
        let statistics = BoxStatistics::of(&histogram);
        Cell {
            histogram,
            statistics,
            measured_ns: 10_000_000_000,
            ..Cell::new("host", Profile::ALL[profile - 1])
        }
    }

    #[test]
    fn verdicts_come_first_and_name_the_duration() {
        let thread = Some("hog (thread 7, priority 99)".to_owned());
        let cause = RankedCause { cause: Cause::RtThreads, explained_ratio: 0.931, wake_ups: 4, thread };
        let skip = Some(Skip { kind: "program_missing".into(), reason: "iperf3 is not installed".into() });
        let late =
            Cell { excursions: 4, missed_periods: Some(4321), causes: vec![cause], ..cell(5, &[5, 30, 900]) };
        let cells = vec![cell(4, &[5, 10, 20]), late, Cell { skip, ..Cell::new("host", Profile::ALL[6]) }];
        let mut found =
            RealTime { requirements: table_1(), cells, excursion_limit_ns: 100_000, ..RealTime::default() };
        found.conclude();
        let text = realtime(&found);
        assert!(text.starts_with("after 10 s a cell: PASS and TIGHT mean not unfit so far"), "{text}");
        let row = text.lines().find(|line| line.contains("Factory automation  ")).unwrap();
        assert!(row.contains("PASS 38 %") && row.contains("FAIL 2238 %"), "{row}");
        assert!(
            text.contains("host 4") && text.contains("upper whisker") && text.contains("isolation of host")
        );
        let row = text.lines().find(|line| line.contains("host 5") && line.contains("900.0")).unwrap();
        assert!(row.contains(" 4321 "), "{row}");
        assert!(text.contains("rt_threads 93.1 %: hog (thread 7, priority 99)"), "{text}");
        assert!(text.contains("host 7: skipped, iperf3 is not installed (program_missing)"), "{text}");
        assert!(!text.contains("before their instant"), "{text}");
        // Two columns only: a cell that was skipped has no verdict.
        assert!(!text.lines().nth(2).unwrap().contains("host 7"));
    }

    #[test]
    fn early_wake_ups_are_said_and_are_no_pass() {
        let early = Some(Early { wakeups: 2, most_ns: 4_285_135_432 });
        let cells = vec![Cell { early, ..cell(1, &[0, 0, 20]) }];
        let mut found = RealTime { requirements: table_1(), cells, ..RealTime::default() };
        found.conclude();
        let text = realtime(&found);
        let words = "host 1: 2 of 3 wake-ups came before their instant, the earliest by 4285135.4 µs";
        assert!(text.contains(words), "{text}");
        assert_eq!(text.matches("FAIL ").count(), found.requirements.len(), "{text}");
    }

    #[test]
    fn remedies_tracers_and_what_guests_ran_on_are_shown_in_text_and_on_the_page() {
        let advice = Advice {
            finding: "rt_throttling".into(),
            value: "950 of 1000 ms".into(),
            meaning: "threads are stopped".into(),
            remedy: "sysctl -w kernel.sched_rt_runtime_us=-1".into(),
            causes: vec![Cause::RtThrottling],
            explained_ratio: 0.42,
        };
        let skip = Some(Skip { kind: "no_tracer".into(), reason: "the kernel has no tracer osnoise".into() });
        let figures = vec![("max_latency_ns".to_owned(), 179_000), ("samples_above_threshold".to_owned(), 3)];
        let traced = vec![Traced { cpu: None, figures }, Traced { cpu: Some(7), figures: Vec::new() }];
        let tracers = vec![
            Tracer { kind: Kind::Hwlat, skip: None, measured_ns: 10_000_000_000, traced },
            Tracer { kind: Kind::Osnoise, skip, measured_ns: 0, traced: Vec::new() },
        ];
        let environment = Some("Linux 6.1 on QEMU with TCG; no KVM: none".to_owned());
        let early = Some(Early { wakeups: 1, most_ns: 2_600 });
        let cells = vec![Cell { environment, early, system: "qemu".into(), ..cell(4, &[0, 10, 20]) }];
        let found = RealTime { cells, advice: vec![advice], tracers, ..RealTime::default() };
        let mut document = crate::results::Document::new("rt", Vec::new());
        document.realtime = Some(found.clone());
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("page.html");
        let source = crate::report::Source::of("rt.json", &document, &[]).unwrap();
        crate::report::write(&path, &[source]).unwrap();
        for text in [realtime(&found), std::fs::read_to_string(&path).unwrap()] {
            for word in [
                "sched_rt_runtime_us=-1",
                "42.0 %",
                "max latency 179.0 µs, samples above threshold 3; CPU 7: no sample",
                "the kernel has no tracer osnoise (no_tracer)",
                "qemu 4: 1 of 3 wake-ups came before their instant, the earliest by 2.60 µs",
                "qemu: Linux 6.1 on QEMU with TCG; no KVM: none",
            ] {
                assert!(text.contains(word), "{word}");
            }
        }
    }

    #[test]
    fn changes_are_shown_with_their_tests() {
        let of = |from: u64| (0..500).map(|i| Span::from_nanos(from + i * 37 % 101)).collect::<Histogram>();
        let mut change = [compare::compare(&of(50_000), &of(50_040)).unwrap()];
        compare::conclude(&mut change);
        let text = changes(&[("host 4".to_owned(), change[0].clone())]);
        assert!(text.contains("host 4") && text.contains("worse; of the tail no difference shown"), "{text}");
        assert!(text.contains("→") && text.contains("0 → 0 above 55.1"), "{text}");
        // Both tests are said where they do not agree.
        use Conclusion::{Better, Same, Worse};
        for (usual, of_tail, words) in [
            (Same, Worse, "worse: the tail only"),
            (Better, Worse, "worse: the tail, though usually better"),
            (Worse, Better, "worse, though the tail is better"),
        ] {
            change[0].usual = usual;
            change[0].tail.conclusion = of_tail;
            assert!(changes(&[("host 4".to_owned(), change[0].clone())]).contains(words), "{words}");
        }
    }

    /// No text of a document reaches the terminal with what it would obey.
    #[test]
    fn texts_of_another_machine_are_shown_without_controls() {
        let evil = || "evil\u{1b}]0;title\u{7}\u{9b}2J\r\n\u{202e}".to_owned();
        let advice = Advice {
            finding: evil(),
            value: evil(),
            meaning: evil(),
            remedy: evil(),
            causes: Vec::new(),
            explained_ratio: 0.5,
        };
        let skip = || Some(Skip { kind: evil(), reason: evil() });
        let traced = vec![Traced { cpu: None, figures: vec![(evil(), 1)] }];
        let tracers = vec![
            Tracer { kind: Kind::Hwlat, skip: None, measured_ns: 1, traced },
            Tracer { kind: Kind::Osnoise, skip: skip(), measured_ns: 0, traced: Vec::new() },
        ];
        let thread = Some(evil());
        let cause = RankedCause { cause: Cause::RtThreads, explained_ratio: 0.9, wake_ups: 1, thread };
        let measured =
            |profile| Cell { system: evil(), environment: Some(evil()), ..cell(profile, &[5, 900]) };
        let late = Cell { excursions: 1, causes: vec![cause], ..measured(6) };
        let cells = vec![measured(4), late, Cell { skip: skip(), ..Cell::new(&evil(), Profile::ALL[6]) }];
        let mut requirements = table_1();
        requirements[0].service = evil();
        let mut found =
            RealTime { requirements, cells, advice: vec![advice], tracers, ..RealTime::default() };
        found.conclude();
        let mut change = compare::compare(&found.cells[0].histogram, &found.cells[1].histogram).unwrap();
        change.conclusion = Conclusion::Worse;
        let difference = Difference { field: evil(), before: evil(), after: evil() };
        let shown = realtime(&found) + &changes(&[(evil(), change)]) + &differences(&[difference]);
        assert!(shown.matches("evil").count() >= 18, "{shown}");
        let obeyed = |c: char| (c.is_control() && c != '\n') || c == '\u{202e}';
        assert!(!shown.contains(obeyed), "{shown:?}");
        // Nor does a text begin a line of its own.
        assert!(!shown.lines().any(|line| line.starts_with('\u{fffd}')), "{shown:?}");
    }
}
