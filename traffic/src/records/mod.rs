// SPDX-License-Identifier: Apache-2.0
//! Records: one per frame and observer, and the joined record of a run.
//!
//! In: what talker, listener and tap saw. Out: CSV files (compressed when the name ends in `.zst`) and
//! [`RunRecords`], joined by sequence number *and* transmit time. All instants are TAI, in nanoseconds.
//! Joining leaves nothing out: copies, strangers and frames that were never sent are counted, not dropped in silence.

use crate::payload::Probe;
use ktsn_time::{Nanos, Tai};
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::Path;

/// Records kept by an observer that has no end in its plan (17 minutes at 1 kHz).
pub const RECORDS_ENDLESS: usize = 1 << 20;
/// Most records kept by one observer; further frames are counted as unrecorded.
pub const RECORDS_MAX: usize = 1 << 24;

/// How many records an observer of `count` frames (0: no end) makes room for.
#[must_use]
pub fn capacity(count: u64) -> usize {
    if count == 0 { RECORDS_ENDLESS } else { usize::try_from(count).unwrap_or(RECORDS_MAX).min(RECORDS_MAX) }
}

/// An empty vector with room for the records of `count` frames. Its memory is there already: a page fault in the loop
/// would be measured as a delay.
pub fn prefaulted<T: Clone>(count: u64, blank: T) -> Vec<T> {
    let mut records = vec![blank; capacity(count)];
    records.clear();
    records
}

/// One frame as the talker saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TalkRecord {
    /// Sequence number and transmit time.
    pub probe: Probe,
    /// Read right before the send call.
    pub called_at: Tai,
    /// Read right after it.
    pub returned_at: Tai,
}

impl TalkRecord {
    /// A record without a meaning, of octets other than zero.
    pub const BLANK: Self = Self { probe: Probe::BLANK, called_at: Tai::MAX, returned_at: Tai::MAX };
}

/// One frame as the tap or the listener saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArrivalRecord {
    /// Sequence number and transmit time.
    pub probe: Probe,
    /// The kernel's receive stamp (the tap's is `wire_at`).
    pub kernel_at: Option<Tai>,
    /// Read right after `recvmsg` returned; a tap has none.
    pub received_at: Option<Tai>,
}

impl ArrivalRecord {
    /// A record without a meaning, of octets other than zero.
    pub const BLANK: Self = Self { probe: Probe::BLANK, kernel_at: Some(Tai::MAX), received_at: None };
}

/// One frame with every point of the time line that was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Sequence number within the run.
    pub sequence: u64,
    /// Transmit time asked for.
    pub tx_time: Tai,
    /// The port's system call (or ring write) begins; unknown when ktsnd hands the frame over.
    pub handed_at: Option<Tai>,
    /// Seen by the tap on the receiving host's uplink.
    pub wire_at: Option<Tai>,
    /// The listener's kernel receive stamp.
    pub kernel_at: Option<Tai>,
    /// `recvmsg` has returned in the listener.
    pub received_at: Option<Tai>,
}

/// All frames of one path, payload and round, in order of sequence number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunRecords {
    /// The path's name (`bare`, `flannel`, …).
    pub path: String,
    /// Octets of payload.
    pub payload_octets: usize,
    /// The load beside the run; `None` where all runs have the same.
    pub load: Option<String>,
    /// Round, from 1.
    pub round: u32,
    /// One record per frame that was sent, and one without any instant for each number in between that was not.
    pub records: Vec<Record>,
}

/// What joining found besides the records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JoinCounts {
    /// Second and further copies at the tap.
    pub tap_duplicates: u64,
    /// Second and further copies at the listener.
    pub listener_duplicates: u64,
    /// Arrivals that no frame of this talker matches.
    pub strangers: u64,
    /// Frames that arrived at the listener after one with a higher sequence number, in the order of its records: two
    /// frames may bear the same stamp.
    pub reordered: u64,
    /// Records of frames that were never sent: numbers missing between the talker's. What it failed to send before its
    /// first and after its last frame only its own count of instants shows.
    pub unsent: u64,
}

/// Joins the three observers. `handed` says whether the talker's own call is the hand-over to the port.
/// The first copy of a frame counts. A number missing between the talker's frames becomes a record without instants, so
/// that nothing computed from neighbours mistakes the frames around it for neighbours.
#[must_use]
pub fn join(
    talked: &[TalkRecord],
    tapped: &[ArrivalRecord],
    listened: &[ArrivalRecord],
    handed: bool,
) -> (Vec<Record>, JoinCounts) {
    let mut records: Vec<Record> = talked
        .iter()
        .map(|talk| Record {
            sequence: talk.probe.sequence,
            tx_time: talk.probe.tx_time,
            handed_at: handed.then_some(talk.called_at),
            wire_at: None,
            kernel_at: None,
            received_at: None,
        })
        .collect();
    records.sort_unstable_by_key(|record| record.sequence);
    let find = |records: &[Record], probe: Probe| {
        let index = records.binary_search_by_key(&probe.sequence, |record| record.sequence).ok()?;
        (records[index].tx_time == probe.tx_time).then_some(index)
    };
    let mut counts = JoinCounts::default();
    for arrival in tapped {
        match find(&records, arrival.probe) {
            None => counts.strangers += 1,
            Some(index) if records[index].wire_at.is_some() => counts.tap_duplicates += 1,
            Some(index) => records[index].wire_at = arrival.kernel_at,
        }
    }
    let mut greatest = 0;
    for arrival in listened {
        match find(&records, arrival.probe) {
            None => counts.strangers += 1,
            Some(index) if records[index].received_at.is_some() => counts.listener_duplicates += 1,
            Some(index) => {
                counts.reordered += u64::from(arrival.probe.sequence < greatest);
                greatest = greatest.max(arrival.probe.sequence);
                records[index].kernel_at = arrival.kernel_at;
                records[index].received_at = arrival.received_at;
            }
        }
    }
    // After matching: what arrives without having been sent stays a stranger.
    let records = with_gaps(records);
    counts.unsent = (records.len() - talked.len()) as u64;
    (records, counts)
}

/// `records` with one more, without instants, for each missing sequence number (up to [`RECORDS_MAX`] in all). Its
/// transmit time lies evenly between its neighbours': a talker's are a period apart.
fn with_gaps(records: Vec<Record>) -> Vec<Record> {
    let mut room = RECORDS_MAX.saturating_sub(records.len()) as u64;
    let mut whole: Vec<Record> = Vec::with_capacity(records.len());
    for record in records {
        if let Some(before) = whole.last().copied() {
            let steps = record.sequence.saturating_sub(before.sequence);
            let missing = steps.saturating_sub(1).min(room);
            room -= missing;
            let span = i128::from(record.tx_time.since(before.tx_time).get());
            whole.extend((1..=missing).map(|step| {
                let since = span * i128::from(step) / i128::from(steps);
                Record {
                    sequence: before.sequence + step,
                    tx_time: before
                        .tx_time
                        .saturating_add(Nanos::new(i64::try_from(since).unwrap_or(i64::MAX))),
                    handed_at: None,
                    wire_at: None,
                    kernel_at: None,
                    received_at: None,
                }
            }));
        }
        whole.push(record);
    }
    whole
}

/// Why records could not be written or read.
#[derive(Debug, thiserror::Error)]
pub enum RecordsError {
    /// The file.
    #[error("records file: {0}")]
    File(#[from] io::Error),
    /// The contents of the file.
    #[error("records file: {0}")]
    Csv(#[from] csv::Error),
    /// A field that is no number.
    #[error("records file: field {field} of line {line} is no number")]
    Field {
        /// Line, from 1 (the head).
        line: usize,
        /// Column, from 1.
        field: usize,
    },
    /// More rows than the file may have.
    #[error("records file: more than the {rows_max} rows that it may have")]
    TooMany {
        /// Most rows.
        rows_max: usize,
    },
}

fn zstandard(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "zst")
}

fn write_rows<const N: usize>(
    path: &Path,
    head: [&str; N],
    rows: impl Iterator<Item = [Option<u64>; N]>,
) -> Result<(), RecordsError> {
    let file = BufWriter::new(File::create(path)?);
    if zstandard(path) {
        let encoder = zstd::Encoder::new(file, 3)?;
        write_csv(encoder, head, rows)?.finish()?.flush()?;
    } else {
        write_csv(file, head, rows)?.flush()?;
    }
    Ok(())
}

fn write_csv<W: Write, const N: usize>(
    writer: W,
    head: [&str; N],
    rows: impl Iterator<Item = [Option<u64>; N]>,
) -> Result<W, RecordsError> {
    let mut csv = csv::Writer::from_writer(writer);
    csv.write_record(head)?;
    for row in rows {
        csv.write_record(row.map(|value| value.map_or_else(String::new, |value| value.to_string())))?;
    }
    csv.into_inner().map_err(|error| RecordsError::File(error.into_error()))
}

fn read_rows<const N: usize>(path: &Path) -> Result<Vec<[Option<u64>; N]>, RecordsError> {
    read_rows_at_most(path, usize::MAX)
}

/// Reads rows; `rows_max` bounds the memory, whatever the file unpacks to.
fn read_rows_at_most<const N: usize>(
    path: &Path,
    rows_max: usize,
) -> Result<Vec<[Option<u64>; N]>, RecordsError> {
    let file = BufReader::new(File::open(path)?);
    let reader: Box<dyn Read> =
        if zstandard(path) { Box::new(zstd::Decoder::new(file)?) } else { Box::new(file) };
    // A number has 20 digits at most, and a row may be quoted.
    let octets_max = (rows_max as u64).saturating_add(2).saturating_mul(N as u64 * 24 + 2);
    let reader = reader.take(octets_max);
    let mut rows = Vec::new();
    for (index, row) in csv::Reader::from_reader(reader).records().enumerate() {
        if rows.len() >= rows_max {
            return Err(RecordsError::TooMany { rows_max });
        }
        let row = row?;
        let mut values = [None; N];
        for (column, value) in values.iter_mut().enumerate() {
            let bad = || RecordsError::Field { line: index + 2, field: column + 1 };
            let text = row.get(column).ok_or_else(bad)?;
            *value = if text.is_empty() { None } else { Some(text.parse().map_err(|_| bad())?) };
        }
        rows.push(values);
    }
    Ok(rows)
}

const TALK_HEAD: [&str; 4] = ["sequence", "tx_time", "called_at", "returned_at"];
const ARRIVAL_HEAD: [&str; 4] = ["sequence", "tx_time", "kernel_at", "received_at"];
const RUN_HEAD: [&str; 7] =
    ["round", "sequence", "tx_time", "handed_at", "wire_at", "kernel_at", "received_at"];

fn number(at: Option<Tai>) -> Option<u64> {
    at.map(Tai::as_nanos)
}

fn instant(nanos: Option<u64>) -> Option<Tai> {
    nanos.map(Tai::from_nanos)
}

/// A value that every row of the file must have; a missing one becomes an error that names the place.
fn needed(value: Option<u64>, line: usize, field: usize) -> Result<u64, RecordsError> {
    value.ok_or(RecordsError::Field { line, field })
}

/// Writes a talker's records.
///
/// # Errors
/// The file cannot be written.
pub fn save_talk(path: &Path, records: &[TalkRecord]) -> Result<(), RecordsError> {
    write_rows(
        path,
        TALK_HEAD,
        records.iter().map(|record| {
            [
                Some(record.probe.sequence),
                Some(record.probe.tx_time.as_nanos()),
                Some(record.called_at.as_nanos()),
                Some(record.returned_at.as_nanos()),
            ]
        }),
    )
}

/// Reads a talker's records.
///
/// # Errors
/// The file cannot be read or is none.
pub fn load_talk(path: &Path) -> Result<Vec<TalkRecord>, RecordsError> {
    let rows = read_rows::<4>(path)?.into_iter().enumerate();
    rows.map(|(index, row)| {
        let value = |column: usize| needed(row[column], index + 2, column + 1);
        Ok(TalkRecord {
            probe: Probe { sequence: value(0)?, tx_time: Tai::from_nanos(value(1)?) },
            called_at: Tai::from_nanos(value(2)?),
            returned_at: Tai::from_nanos(value(3)?),
        })
    })
    .collect()
}

/// Writes a listener's or a tap's records.
///
/// # Errors
/// The file cannot be written.
pub fn save_arrivals(path: &Path, records: &[ArrivalRecord]) -> Result<(), RecordsError> {
    write_rows(
        path,
        ARRIVAL_HEAD,
        records.iter().map(|record| {
            [
                Some(record.probe.sequence),
                Some(record.probe.tx_time.as_nanos()),
                number(record.kernel_at),
                number(record.received_at),
            ]
        }),
    )
}

/// Reads a listener's or a tap's records.
///
/// # Errors
/// The file cannot be read or is none.
pub fn load_arrivals(path: &Path) -> Result<Vec<ArrivalRecord>, RecordsError> {
    load_arrivals_at_most(path, usize::MAX)
}

/// The same of a file that is not trusted: it has `rows_max` rows at most.
///
/// # Errors
/// As [`load_arrivals`], or it has more rows.
pub fn load_arrivals_at_most(path: &Path, rows_max: usize) -> Result<Vec<ArrivalRecord>, RecordsError> {
    let rows = read_rows_at_most::<4>(path, rows_max)?.into_iter().enumerate();
    rows.map(|(index, row)| {
        let value = |column: usize| needed(row[column], index + 2, column + 1);
        Ok(ArrivalRecord {
            probe: Probe { sequence: value(0)?, tx_time: Tai::from_nanos(value(1)?) },
            kernel_at: instant(row[2]),
            received_at: instant(row[3]),
        })
    })
    .collect()
}

/// Writes the joined records of all rounds of one path and payload (`records/PATH-PAYLOAD.csv.zst`).
///
/// # Errors
/// The file cannot be written.
pub fn save_runs<'a>(path: &Path, runs: impl Iterator<Item = &'a RunRecords>) -> Result<(), RecordsError> {
    let rows = runs.flat_map(|run| {
        run.records.iter().map(|record| {
            [
                Some(u64::from(run.round)),
                Some(record.sequence),
                Some(record.tx_time.as_nanos()),
                number(record.handed_at),
                number(record.wire_at),
                number(record.kernel_at),
                number(record.received_at),
            ]
        })
    });
    write_rows(path, RUN_HEAD, rows)
}

/// Reads joined records; `name` and `payload_octets` are what the file's name says.
///
/// # Errors
/// The file cannot be read or is none.
pub fn load_runs(path: &Path, name: &str, payload_octets: usize) -> Result<Vec<RunRecords>, RecordsError> {
    let mut runs: Vec<RunRecords> = Vec::new();
    for (index, row) in read_rows::<7>(path)?.into_iter().enumerate() {
        let value = |column: usize| needed(row[column], index + 2, column + 1);
        let round =
            u32::try_from(value(0)?).map_err(|_| RecordsError::Field { line: index + 2, field: 1 })?;
        if runs.last().is_none_or(|run| run.round != round) {
            let path = name.to_owned();
            runs.push(RunRecords { path, payload_octets, load: None, round, records: Vec::new() });
        }
        let record = Record {
            sequence: value(1)?,
            tx_time: Tai::from_nanos(value(2)?),
            handed_at: instant(row[3]),
            wire_at: instant(row[4]),
            kernel_at: instant(row[5]),
            received_at: instant(row[6]),
        };
        if let Some(run) = runs.last_mut() {
            run.records.push(record);
        }
    }
    Ok(runs)
}

#[cfg(test)]
mod tests;
