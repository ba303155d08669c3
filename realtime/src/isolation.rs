// SPDX-License-Identifier: Apache-2.0
//! Isolation: what neighbours cost. In: the statistics of profile 4 (load inside, CPUs apart) and of profiles 5 to 8 (load in neighbours).
//! Out: how much each of them worsens profile 4, and which neighbour disturbs most.

use crate::profile::Profile;
use crate::statistics::BoxStatistics;
use serde::{Deserialize, Serialize};

/// What one kind of neighbour changes against profile 4. A negative difference: it disturbs less than load inside does.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Disturbance {
    /// The profile of the neighbours.
    pub profile: Profile,
    /// Its mean over that of profile 4; `None` when that is 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mean_ratio: Option<f64>,
    /// Its mean less that of profile 4.
    pub mean_added_ns: f64,
    /// Its maximum jitter less that of profile 4.
    pub max_jitter_added_ns: i64,
    /// Its percentile 99.9 less that of profile 4.
    pub p99_9_added_ns: i64,
    /// Its greatest latency less that of profile 4.
    pub max_added_ns: i64,
}

/// Isolation of one system.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Isolation {
    /// The system.
    pub system: String,
    /// One entry for each measured profile of 5 to 8.
    pub disturbances: Vec<Disturbance>,
    /// The profile that adds most to percentile 99.9: the most that neighbours disturb.
    pub most: Profile,
}

/// Isolation of a system; `None` without profile 4, or without any profile with neighbours.
#[must_use]
pub fn isolation(system: &str, cells: &[(Profile, BoxStatistics)]) -> Option<Isolation> {
    let alone = cells.iter().find(|(profile, _)| *profile == Profile::ALONE)?.1;
    let added = |one: u64, other: u64| i64::try_from(i128::from(one) - i128::from(other)).unwrap_or(i64::MAX);
    let disturbances: Vec<Disturbance> = cells
        .iter()
        .filter(|(profile, _)| profile.has_neighbours())
        .map(|(profile, with)| Disturbance {
            profile: *profile,
            mean_ratio: (alone.mean_ns > 0.0).then(|| with.mean_ns / alone.mean_ns),
            mean_added_ns: with.mean_ns - alone.mean_ns,
            max_jitter_added_ns: added(with.max_jitter_ns, alone.max_jitter_ns),
            p99_9_added_ns: added(with.p99_9_ns, alone.p99_9_ns),
            max_added_ns: added(with.max_ns, alone.max_ns),
        })
        .collect();
    let most = disturbances.iter().max_by_key(|one| (one.p99_9_added_ns, one.max_added_ns))?.profile;
    Some(Isolation { system: system.to_owned(), disturbances, most })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_neighbour_is_named() {
        let profile = |number| Profile::try_from(number).unwrap();
        let cell = |number, mean_ns, p99_9_ns| {
            let jitter = p99_9_ns / 2;
            (
                profile(number),
                BoxStatistics {
                    mean_ns,
                    p99_9_ns,
                    max_jitter_ns: jitter,
                    max_ns: 2 * p99_9_ns,
                    ..BoxStatistics::default()
                },
            )
        };
        let cells = [
            cell(3, 90.0, 9000),
            cell(4, 10.0, 100),
            cell(5, 20.0, 160),
            cell(7, 15.0, 300),
            cell(8, 5.0, 40),
        ];
        let found = isolation("host", &cells).unwrap();
        assert_eq!((found.most, found.disturbances.len()), (profile(7), 3));
        let first = found.disturbances[0];
        assert_eq!((first.mean_ratio, first.mean_added_ns), (Some(2.0), 10.0));
        assert_eq!((first.max_jitter_added_ns, first.p99_9_added_ns, first.max_added_ns), (30, 60, 120));
        assert_eq!(found.disturbances[2].p99_9_added_ns, -60);
        assert_eq!(isolation("host", &cells[..2]), None);
        assert_eq!(isolation("host", &cells[2..]), None);
    }
}
