// SPDX-License-Identifier: Apache-2.0
use super::*;
use proptest::prelude::*;

fn probe(sequence: u64) -> Probe {
    Probe { sequence, tx_time: Tai::from_nanos(1_000 * sequence) }
}

fn talk(sequence: u64) -> TalkRecord {
    let called_at = Tai::from_nanos(1_000 * sequence + 3);
    TalkRecord { probe: probe(sequence), called_at, returned_at: Tai::from_nanos(1_000 * sequence + 9) }
}

fn arrival(sequence: u64, at: u64) -> ArrivalRecord {
    let at = Tai::from_nanos(1_000 * sequence + at);
    ArrivalRecord { probe: probe(sequence), kernel_at: Some(at), received_at: Some(at) }
}

#[test]
fn joining_matches_by_sequence_and_time_and_counts_the_rest() {
    let stranger =
        ArrivalRecord { probe: Probe { sequence: 1, tx_time: Tai::from_nanos(5) }, ..arrival(1, 50) };
    let (records, counts) = join(
        &[talk(0), talk(1), talk(2)],
        &[arrival(0, 10), arrival(1, 11), arrival(0, 90), arrival(9, 1)],
        &[arrival(1, 31), arrival(0, 30), stranger, arrival(1, 99)],
        true,
    );
    assert_eq!(
        counts,
        JoinCounts { tap_duplicates: 1, listener_duplicates: 1, strangers: 2, reordered: 1, unsent: 0 }
    );
    assert_eq!(records.len(), 3);
    assert_eq!(records[0].wire_at, Some(Tai::from_nanos(10)));
    assert_eq!(records[1].received_at, Some(Tai::from_nanos(1_031)));
    assert_eq!(records[1].handed_at, Some(Tai::from_nanos(1_003)));
    assert_eq!((records[2].wire_at, records[2].received_at), (None, None));
    let (records, _) = join(&[talk(0)], &[], &[], false);
    assert_eq!(records[0].handed_at, None);
}

#[test]
fn equal_stamps_do_not_hide_disorder_and_copies_do_not_make_it() {
    let talked = [talk(0), talk(1), talk(2), talk(3)];
    let same = |sequence: u64| ArrivalRecord { probe: probe(sequence), ..arrival(9, 0) };
    let reordered = |order: &[u64]| {
        let listened: Vec<ArrivalRecord> = order.iter().map(|&sequence| same(sequence)).collect();
        join(&talked, &[], &listened, true).1.reordered
    };
    assert_eq!(reordered(&[0, 1, 2, 3]), 0);
    assert_eq!(reordered(&[1, 0, 2, 3]), 1);
    assert_eq!(reordered(&[3, 0, 1, 2]), 3);
    assert_eq!(reordered(&[0, 1, 0, 3]), 0);
}

#[test]
fn a_frame_that_was_not_sent_is_a_gap_and_what_arrives_in_its_name_a_stranger() {
    let (records, counts) = join(&[talk(5), talk(2), talk(6)], &[], &[arrival(3, 1), arrival(2, 1)], true);
    let rows: Vec<(u64, u64)> = records.iter().map(|r| (r.sequence, r.tx_time.as_nanos())).collect();
    assert_eq!(rows, [(2, 2_000), (3, 3_000), (4, 4_000), (5, 5_000), (6, 6_000)]);
    assert_eq!((counts.unsent, counts.strangers), (2, 1));
    assert!(records[1..3].iter().all(|r| r.handed_at.is_none() && r.received_at.is_none()));
    assert_eq!(records[3].handed_at, Some(Tai::from_nanos(5_003)));
}

proptest! {
    /// Against the definition, on arrivals of which many share a stamp: has any frame with a higher number come before?
    #[test]
    fn reordering_meets_its_definition(order in prop::collection::vec(0_u64..20, 0..40)) {
        let talked: Vec<TalkRecord> = (0..20).map(talk).collect();
        let listened: Vec<ArrivalRecord> =
            order.iter().map(|&sequence| ArrivalRecord { probe: probe(sequence), ..arrival(sequence / 8, 0) }).collect();
        let late = (0..order.len())
            .filter(|&index| !order[..index].contains(&order[index]))
            .filter(|&index| order[..index].iter().any(|&before| before > order[index]))
            .count();
        prop_assert_eq!(join(&talked, &[], &listened, true).1.reordered, late as u64);
    }
}

#[test]
fn files_hold_what_was_written_plain_and_compressed() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["r.csv", "r.csv.zst"] {
        let path = folder.path().join(name);
        let talked = vec![talk(0), talk(7)];
        save_talk(&path, &talked).unwrap();
        assert_eq!(load_talk(&path).unwrap(), talked);
        let arrived = vec![arrival(3, 1), ArrivalRecord { received_at: None, ..arrival(4, 2) }];
        save_arrivals(&path, &arrived).unwrap();
        assert_eq!(load_arrivals(&path).unwrap(), arrived);
        let (records, _) = join(&talked, &[arrival(7, 3)], &[], true);
        let run = |round| RunRecords {
            path: "bare".into(),
            payload_octets: 64,
            load: None,
            round,
            records: records.clone(),
        };
        let runs = vec![run(1), run(2)];
        save_runs(&path, runs.iter()).unwrap();
        assert_eq!(load_runs(&path, "bare", 64).unwrap(), runs);
    }
}

#[test]
fn a_file_that_is_none_is_refused_with_the_place() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("r.csv");
    std::fs::write(&path, "sequence,tx_time,called_at,returned_at\n1,2,3,4\n1,x,3,4\n").unwrap();
    assert!(matches!(load_talk(&path), Err(RecordsError::Field { line: 3, field: 2 })));
    std::fs::write(&path, "sequence,tx_time,called_at,returned_at\n1,,3,4\n").unwrap();
    assert!(matches!(load_talk(&path), Err(RecordsError::Field { line: 2, field: 2 })));
    assert!(matches!(load_talk(&folder.path().join("none")), Err(RecordsError::File(_))));
}

#[test]
fn a_file_that_unpacks_to_more_rows_than_allowed_is_refused_early() {
    let directory = tempfile::tempdir().unwrap();
    for name in ["many.csv", "many.csv.zst"] {
        let path = directory.path().join(name);
        let arrival = ArrivalRecord {
            probe: Probe { sequence: u64::MAX, tx_time: Tai::MAX },
            kernel_at: Some(Tai::MAX),
            received_at: Some(Tai::MAX),
        };
        save_arrivals(&path, &vec![arrival; 1000]).unwrap();
        assert_eq!(load_arrivals_at_most(&path, 1000).unwrap().len(), 1000);
        let error = load_arrivals_at_most(&path, 999).unwrap_err();
        assert!(error.to_string().contains("more than the 999 rows"), "{error}");
    }
    // One row without an end.
    let path = directory.path().join("wide.csv");
    std::fs::write(&path, format!("sequence,tx_time,kernel_at,received_at\n{}", "1".repeat(1 << 20)))
        .unwrap();
    assert!(load_arrivals_at_most(&path, 10).is_err());
}
