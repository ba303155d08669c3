// SPDX-License-Identifier: Apache-2.0
//! The paper's tables as data. In: Tables 1, 3, 4 and 5 as printed. Out: its conclusions, from our definitions: which services hypervisor
//! A, B and C satisfy, that its maximum jitter is the distance between the whiskers, and which definitions of the whiskers its rows refute.

use ktsn_realtime::Profile;
use ktsn_realtime::isolation::isolation;
use ktsn_realtime::requirements::{Requirement, table_1};
use ktsn_realtime::stability::{Window, drift};
use ktsn_realtime::statistics::BoxStatistics;
use ktsn_realtime::verdict::{Outcome, Share, judge};

/// System, profile (Table 5: hours), and the eight columns in microseconds.
type Row = (char, u8, [u64; 8]);

/// Table 3. 0 is the baseline.
const GPOS: [Row; 22] = [
    ('0', 1, [2, 2, 2, 2, 0, 3, 3, 1]),
    ('0', 2, [2, 2, 2, 2, 0, 3, 3, 1]),
    ('0', 3, [5, 7, 9, 37, 146, 12, 572, 567]),
    ('0', 4, [2, 4, 5, 5, 2, 6, 7, 5]),
    ('A', 1, [5, 6, 7, 7, 1, 7, 9, 4]),
    ('A', 2, [5, 6, 7, 7, 1, 8, 9, 4]),
    ('A', 3, [6, 8, 9, 30, 111, 11, 464, 458]),
    ('A', 4, [5, 7, 7, 8, 1, 8, 10, 5]),
    ('A', 5, [7, 9, 11, 11, 3, 13, 20, 13]),
    ('A', 6, [7, 10, 12, 13, 4, 14, 22, 14]),
    ('B', 1, [9, 10, 11, 11, 2, 12, 16, 7]),
    ('B', 2, [9, 11, 12, 12, 3, 13, 17, 8]),
    ('B', 3, [9, 13, 16, 40, 120, 18, 552, 542]),
    ('B', 4, [11, 13, 16, 16, 13, 18, 24, 13]),
    ('B', 5, [13, 23, 30, 37, 214, 38, 51, 38]),
    ('B', 6, [18, 25, 31, 29, 187, 40, 55, 37]),
    ('C', 1, [19, 22, 23, 23, 5, 25, 26, 7]),
    // The upper quartile is printed as 0.015 ms, below the median: a misprint of the paper.
    ('C', 2, [21, 24, 25, 25, 15, 15, 27, 6]),
    ('C', 3, [13, 17, 19, 39, 105, 22, 372, 359]),
    ('C', 4, [23, 27, 30, 31, 6, 34, 40, 18]),
    ('C', 5, [26, 40, 51, 53, 95, 57, 74, 49]),
    ('C', 6, [32, 42, 53, 56, 90, 59, 73, 41]),
];

/// Table 4.
const RTOS: [Row; 22] = [
    ('0', 1, [0, 0, 0, 0, 0, 0, 0, 0]),
    ('0', 2, [0, 0, 0, 0, 0, 0, 0, 0]),
    ('0', 3, [1, 2, 3, 3, 1, 4, 5, 4]),
    ('0', 4, [0, 1, 1, 1, 1, 2, 3, 2]),
    ('A', 1, [2, 2, 2, 2, 0, 2, 3, 1]),
    ('A', 2, [2, 2, 2, 2, 0, 2, 3, 1]),
    ('A', 3, [2, 3, 3, 3, 1, 4, 5, 3]),
    ('A', 4, [2, 2, 2, 3, 0, 3, 4, 2]),
    ('A', 5, [3, 4, 4, 5, 1, 5, 8, 5]),
    ('A', 6, [3, 4, 5, 5, 2, 6, 9, 5]),
    ('B', 1, [5, 5, 6, 6, 17, 7, 8, 3]),
    ('B', 2, [4, 7, 7, 7, 1, 8, 9, 5]),
    ('B', 3, [4, 5, 6, 7, 5, 8, 10, 6]),
    ('B', 4, [5, 7, 8, 8, 24, 9, 12, 7]),
    ('B', 5, [8, 12, 17, 21, 139, 22, 34, 27]),
    ('B', 6, [12, 18, 22, 24, 106, 27, 37, 25]),
    ('C', 1, [5, 6, 6, 7, 5, 6, 9, 4]),
    ('C', 2, [5, 6, 6, 6, 2, 6, 7, 2]),
    ('C', 3, [5, 6, 7, 11, 11, 9, 49, 45]),
    ('C', 4, [6, 7, 7, 8, 4, 8, 12, 6]),
    ('C', 5, [8, 13, 21, 25, 91, 27, 49, 41]),
    ('C', 6, [14, 20, 26, 31, 88, 32, 49, 36]),
];

/// Table 5.
const OVER_TIME: [Row; 12] = [
    ('A', 1, [3, 4, 4, 5, 1, 5, 8, 5]),
    ('A', 2, [3, 4, 4, 5, 1, 5, 8, 5]),
    ('A', 4, [3, 4, 4, 5, 1, 5, 8, 5]),
    ('A', 8, [3, 4, 4, 5, 1, 5, 8, 5]),
    ('B', 1, [7, 13, 17, 21, 129, 22, 34, 27]),
    ('B', 2, [7, 12, 17, 21, 131, 22, 34, 27]),
    ('B', 4, [7, 12, 17, 21, 142, 22, 34, 27]),
    ('B', 8, [7, 12, 17, 21, 138, 22, 34, 27]),
    ('C', 1, [8, 13, 21, 25, 85, 27, 49, 41]),
    ('C', 2, [8, 13, 21, 25, 89, 27, 49, 41]),
    ('C', 4, [8, 13, 21, 25, 92, 27, 49, 41]),
    ('C', 8, [8, 13, 21, 25, 90, 27, 49, 41]),
];

fn statistics(columns: [u64; 8]) -> BoxStatistics {
    let [
        lower_whisker_ns,
        lower_quartile_ns,
        median_ns,
        mean,
        stddev,
        upper_quartile_ns,
        upper_whisker_ns,
        max_jitter_ns,
    ] = columns.map(|micros| micros * 1000);
    BoxStatistics {
        lower_whisker_ns,
        lower_quartile_ns,
        median_ns,
        mean_ns: mean as f64,
        stddev_ns: stddev as f64,
        upper_quartile_ns,
        upper_whisker_ns,
        max_jitter_ns,
        ..BoxStatistics::default()
    }
}

fn row(table: &[Row], system: char, profile: u8) -> BoxStatistics {
    statistics(table.iter().find(|row| (row.0, row.1) == (system, profile)).unwrap().2)
}

/// The services that a system satisfies in profile 5, by the paper's figures, with this share for processing.
fn satisfied(table: &[Row], system: char, share: f64) -> Vec<String> {
    let figures = row(table, system, 5).paper_figures();
    let share = Share::try_from(share).unwrap();
    let holds = |requirement: &Requirement| judge(requirement, figures, share).outcome != Outcome::Fail;
    table_1().into_iter().filter(holds).map(|requirement| requirement.service).collect()
}

const MOTION: &str = "Factory automation (motion control)";
const PROCESS: &str = "Process automation (remote control)";
const FACTORY: &str = "Factory automation";

/// The paper finds in profile 5 that most services of Table 1 are met. By its rows: A meets all but motion control, B and C all but motion
/// control and process automation by remote control (20 µs of jitter). It holds its figures against the whole budget.
#[test]
fn the_services_that_each_hypervisor_satisfies() {
    let all_but = |missing: &[&str]| {
        let services = table_1().into_iter().map(|requirement| requirement.service);
        services.filter(|service| !missing.contains(&service.as_str())).collect::<Vec<_>>()
    };
    for table in [&GPOS, &RTOS] {
        assert_eq!(satisfied(table, 'A', 1.0), all_but(&[MOTION]));
        assert_eq!(satisfied(table, 'B', 1.0), all_but(&[MOTION, PROCESS]));
        assert_eq!(satisfied(table, 'C', 1.0), all_but(&[MOTION, PROCESS]));
    }
    // It also asks for a safety margin: with 40 % for processing, C loses factory automation (49 and 41 µs of 40), and A with
    // Linux, though not with an RTOS, process automation (13 and 5 µs of 8).
    assert_eq!(satisfied(&GPOS, 'A', 0.4), all_but(&[MOTION, PROCESS]));
    assert_eq!(satisfied(&RTOS, 'A', 0.4), all_but(&[MOTION]));
    for table in [&GPOS, &RTOS] {
        assert_eq!(satisfied(table, 'B', 0.4), all_but(&[MOTION, PROCESS]));
        assert_eq!(satisfied(table, 'C', 0.4), all_but(&[MOTION, PROCESS, FACTORY]));
    }
    let tight = judge(&table_1()[1], row(&GPOS, 'B', 5).paper_figures(), Share::default());
    assert_eq!(tight.outcome, Outcome::Tight);
}

/// Maximum jitter is upper whisker less lower whisker; the tables' values are rounded to microseconds.
#[test]
fn the_maximum_jitter_is_the_distance_between_the_whiskers() {
    for (system, profile, columns) in GPOS.iter().chain(&RTOS).chain(&OVER_TIME) {
        let distance = columns[6] - columns[0];
        assert!(distance.abs_diff(columns[7]) <= 1, "{system} {profile}: {distance} {}", columns[7]);
    }
}

/// Bounds of a distribution are at least two standard deviations apart: 0.051 − 0.013 ms with a deviation of 0.214 ms are none.
#[test]
fn the_whiskers_are_not_the_extremes() {
    let refuted = |row: &&Row| row.2[4] * 2 > row.2[6] - row.2[0] + 3;
    assert!(GPOS.iter().chain(&RTOS).filter(refuted).count() >= 10);
}

/// Tukey's whiskers end at most 1.5 quartile distances beyond the quartiles: 0.572 ms beside 0.007 and 0.012 ms do not.
#[test]
fn the_whiskers_are_not_those_of_tukey() {
    let refuted = |row: &&Row| {
        let [_, lower, _, _, _, upper, whisker, _] = row.2;
        // Each quartile may be rounded by half a microsecond.
        lower <= upper && 2 * whisker > 2 * (upper + 2) + 3 * (upper + 1 - lower)
    };
    assert!(GPOS.iter().chain(&RTOS).filter(refuted).count() >= 5);
}

/// The paper's conclusion on isolation: the mean rises in profiles 5 and 6 against profile 4, in each hypervisor.
#[test]
fn neighbours_worsen_every_hypervisor() {
    for (table, system) in
        [&GPOS, &RTOS].into_iter().flat_map(|table| ['A', 'B', 'C'].map(|system| (table, system)))
    {
        let cells: Vec<_> = [4, 5, 6]
            .map(|profile| (Profile::try_from(profile).unwrap(), row(table, system, profile)))
            .to_vec();
        let found = isolation(&system.to_string(), &cells).unwrap();
        assert!(found.disturbances.iter().all(|one| one.mean_ratio.unwrap() > 1.2), "{found:?}");
        assert!(found.disturbances.iter().all(|one| one.max_jitter_added_ns > 0), "{found:?}");
    }
}

/// The means stay; the deviation moves by 0.013 ms in B and 0.007 ms in C (the paper's text names the two the other way round).
#[test]
fn table_5_is_stable() {
    for (system, deviation) in [('A', 0.0), ('B', 13_000.0), ('C', 7_000.0)] {
        let windows: Vec<Window> = OVER_TIME
            .iter()
            .filter(|row| row.0 == system)
            .map(|row| Window {
                measured_ns: u64::from(row.1) * 3_600_000_000_000,
                statistics: statistics(row.2),
            })
            .collect();
        assert_eq!(drift(&windows), Some((0.0, deviation)));
    }
}
