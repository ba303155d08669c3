// SPDX-License-Identifier: Apache-2.0
//! What to change after a FAIL. In: findings about the machine, each with the causes that it can take away, and the cells of a run. Out: the
//! findings in the order of what they can explain of the lateness of cells with a FAIL. Nothing is advised where nothing failed.

pub use crate::results::Advice;

use crate::results::RealTime;
use crate::verdict::Outcome;

/// Orders the findings by what they explain in the cells that failed; empty when none did. Cells of another machine do not count: the
/// findings are of this one.
#[must_use]
pub fn advise(found: &RealTime, findings: Vec<Advice>) -> Vec<Advice> {
    let failed = |system: &str, profile| {
        found.verdicts.iter().any(|verdict| {
            verdict.judgement.outcome == Outcome::Fail
                && verdict.system == system
                && verdict.profile == profile
        })
    };
    let of_this_machine = found.cells.iter().filter(|cell| !cell.is_elsewhere());
    let cells: Vec<_> = of_this_machine.filter(|cell| failed(&cell.system, cell.profile)).collect();
    if cells.is_empty() {
        return Vec::new();
    }
    let explained = |advice: &Advice| {
        let ranked = cells.iter().flat_map(|cell| &cell.causes);
        let of = ranked.filter(|ranked| advice.causes.contains(&ranked.cause));
        of.map(|ranked| ranked.explained_ratio).fold(0.0, f64::max)
    };
    let mut advice: Vec<Advice> =
        findings.into_iter().map(|one| Advice { explained_ratio: explained(&one), ..one }).collect();
    advice.sort_by(|a, b| b.explained_ratio.total_cmp(&a.explained_ratio));
    advice
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::causes::{Cause, RankedCause};
    use crate::requirements::table_1;
    use crate::{BoxStatistics, Cell, Histogram, Profile};
    use ktsn_time::Span;

    fn advice(finding: &str, causes: &[Cause]) -> Advice {
        Advice {
            finding: finding.into(),
            value: String::new(),
            meaning: String::new(),
            remedy: "change it".into(),
            causes: causes.to_vec(),
            explained_ratio: 0.0,
        }
    }

    fn run(micros: &[u64], causes: Vec<RankedCause>) -> RealTime {
        let histogram: Histogram = micros.iter().map(|&micros| Span::from_nanos(micros * 1000)).collect();
        let statistics = BoxStatistics::of(&histogram);
        let cell = Cell { histogram, statistics, causes, ..Cell::new("host", Profile::ALL[0]) };
        let mut found = RealTime { requirements: table_1(), cells: vec![cell], ..RealTime::default() };
        found.conclude();
        found
    }

    #[test]
    fn what_explains_most_comes_first_and_only_after_a_fail() {
        let one = |cause, explained_ratio| RankedCause { cause, explained_ratio, wake_ups: 1, thread: None };
        let causes = vec![one(Cause::RtThrottling, 0.9), one(Cause::Interrupts, 0.2)];
        let findings = || {
            vec![
                advice("a", &[Cause::Steal]),
                advice("b", &[Cause::Interrupts]),
                advice("c", &[Cause::Interrupts, Cause::RtThrottling]),
            ]
        };
        let found = advise(&run(&[5, 900_000], causes.clone()), findings());
        let names: Vec<&str> = found.iter().map(|one| one.finding.as_str()).collect();
        assert_eq!(names, ["c", "b", "a"]);
        assert_eq!((found[0].explained_ratio, found[2].explained_ratio), (0.9, 0.0));
        // Even motion control is content with 5 µs that never change.
        assert_eq!(advise(&run(&[5, 5], causes), findings()), []);
    }
}
