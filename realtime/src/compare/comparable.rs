// SPDX-License-Identifier: Apache-2.0
//! Whether two documents were measured alike. In: both. Out: what differs, field by field, or why they cannot be compared at all.

use crate::results::{Cell, RealTime};
use std::fmt;

/// A value that the two documents do not share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The field, with its cell: `host 4: cpu`.
    pub field: String,
    /// Its value before.
    pub before: String,
    /// Its value after.
    pub after: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} before, {} after", self.field, self.before, self.after)
    }
}

/// Latencies of different periods come from different experiments.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("period_ns: {before} before, {after} after: expected the same period")]
pub struct NotComparable {
    /// The period before.
    pub before: u64,
    /// The period after.
    pub after: u64,
}

/// What differs: of the runs, then of each cell that both measured.
///
/// # Errors
/// The periods differ.
pub fn differences(before: &RealTime, after: &RealTime) -> Result<Vec<Difference>, NotComparable> {
    if before.period_ns != after.period_ns {
        return Err(NotComparable { before: before.period_ns, after: after.period_ns });
    }
    let runs = [
        ("planned_ns", before.planned_ns, after.planned_ns),
        ("excursion_limit_ns", before.excursion_limit_ns, after.excursion_limit_ns),
    ];
    let mut found = Vec::new();
    for (field, before, after) in runs {
        add(&mut found, field.to_owned(), Some(before), Some(after));
    }
    for one in before.cells.iter().filter(|cell| cell.histogram.count() > 0) {
        let other = after.cell(&one.system, one.profile).filter(|cell| cell.histogram.count() > 0);
        let Some(other) = other else { continue };
        let field = |name: &str| format!("{} {}: {name}", one.system, one.profile);
        let environment = |cell: &Cell| cell.environment.clone();
        add(&mut found, field("environment"), environment(one), environment(other));
        add(&mut found, field("fifo_priority"), one.fifo_priority, other.fifo_priority);
        add(&mut found, field("cpu"), one.cpu, other.cpu);
        // Each of them is a latency of 0 ns in the histograms.
        let early = |cell: &Cell| cell.early.map(|early| early.wakeups).filter(|&wakeups| wakeups > 0);
        add(&mut found, field("early.wakeups"), early(one), early(other));
    }
    Ok(found)
}

fn add<T: PartialEq + ToString>(
    found: &mut Vec<Difference>,
    field: String,
    before: Option<T>,
    after: Option<T>,
) {
    if before != after {
        let shown = |value: Option<T>| value.map_or_else(|| "none".to_owned(), |value| value.to_string());
        found.push(Difference { field, before: shown(before), after: shown(after) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::Profile;
    use crate::results::Early;
    use ktsn_time::Span;

    #[test]
    fn what_differs_is_named_with_both_values() {
        let cell = |system: &str| Cell {
            histogram: [Span::from_nanos(5)].into_iter().collect(),
            fifo_priority: Some(99),
            environment: Some("QEMU with KVM".into()),
            ..Cell::new(system, Profile::ALL[3])
        };
        let before =
            RealTime { period_ns: 7, planned_ns: 10, cells: vec![cell("qemu")], ..RealTime::default() };
        assert_eq!(differences(&before, &before), Ok(Vec::new()));
        let other = Cell {
            environment: Some("QEMU with TCG".into()),
            fifo_priority: None,
            cpu: Some(1),
            early: Some(Early { wakeups: 3, most_ns: 7 }),
            ..cell("qemu")
        };
        let after = RealTime {
            planned_ns: 20,
            excursion_limit_ns: 3,
            cells: vec![cell("host"), other],
            ..before.clone()
        };
        let found: Vec<String> =
            differences(&before, &after).unwrap().iter().map(ToString::to_string).collect();
        assert_eq!(
            found,
            [
                "planned_ns: 10 before, 20 after",
                "excursion_limit_ns: 0 before, 3 after",
                "qemu 4: environment: QEMU with KVM before, QEMU with TCG after",
                "qemu 4: fifo_priority: 99 before, none after",
                "qemu 4: cpu: none before, 1 after",
                "qemu 4: early.wakeups: none before, 3 after",
            ]
        );
        let wrong = differences(&before, &RealTime { period_ns: 8, ..before.clone() }).unwrap_err();
        assert_eq!(wrong.to_string(), "period_ns: 7 before, 8 after: expected the same period");
    }
}
