// SPDX-License-Identifier: Apache-2.0
//! The records of one cell on disk. In: records. Out: a file that only grows, and the same records again after a kill.
//!
//! Each record is one line with number and checksum, written by one call (`ktsn_realtime::journal`). Opening a file for more takes its whole
//! records and cuts what a kill left of the last one. Damage in the middle is refused: it cannot come from a kill. The file is not synced:
//! it survives the end of any process, not that of the machine.

use crate::error::LabError;
use ktsn_realtime::Profile;
use ktsn_realtime::causes::Explained;
use ktsn_realtime::journal::{self, Scan};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{BufRead, BufReader, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long a lock is waited for.
const LOCK_MAX: Duration = Duration::from_secs(1);
const LOOK_AGAIN: Duration = Duration::from_millis(5);
/// What to do where a run has been.
const HOLDS: &str =
    "holds the records of an earlier run: go on with --resume, or choose another directory with --out";

/// What a file's records are of: all that must be the same when a run goes on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Header {
    pub(super) version: u32,
    pub(super) system: String,
    pub(super) profile: Profile,
    pub(super) period_ns: u64,
    pub(super) samples: u64,
    pub(super) limit_ns: u64,
    pub(super) workers: u32,
    pub(super) worker_mib: u64,
    /// How a Linux guest's instructions run: latencies of KVM and of TCG must not be mixed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) accelerator: Option<String>,
    /// The program that makes the load.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) load: Option<String>,
}

/// A late wake-up among the samples of its record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Late {
    /// Its place among them, from 0.
    pub(super) index: usize,
    /// What there is to explain.
    pub(super) lateness_ns: u64,
    pub(super) causes: Vec<Explained>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) thread: Option<String>,
}

/// One record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Record {
    /// The first one.
    Header(Header),
    /// The probe begins.
    Start { fifo: Option<u8>, cpu: Option<u32> },
    /// Latencies that follow each other, in nanoseconds; negative: the wake-up came before its instant.
    Samples { ns: Vec<i64>, late: Vec<Late> },
}

/// An open file of records.
#[derive(Debug)]
pub(super) struct Store {
    path: PathBuf,
    file: File,
    scan: Scan,
}

/// Takes the lock of a file. A child that another thread is just starting has the lock of a file that was closed, until its program runs.
fn lock(file: &File) -> rustix::io::Result<()> {
    let until = Instant::now() + LOCK_MAX;
    loop {
        match flock(file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) if Instant::now() < until => std::thread::sleep(LOOK_AGAIN),
            other => return other,
        }
    }
}

/// The directory of a run, for this run alone as long as the value lives.
///
/// # Errors
/// Another run has it; or it holds what an earlier run wrote, and `resume` is not asked for.
pub(super) fn own(directory: &Path, resume: bool) -> Result<File, LabError> {
    let file = File::open(directory).map_err(LabError::file(directory))?;
    lock(&file).map_err(|_| {
        LabError::Usage(format!("{}: another run writes this directory", directory.display()))
    })?;
    let records = directory.join("records");
    let has_records = std::fs::read_dir(&records).map_err(LabError::file(&records))?.next().is_some();
    if !resume && (has_records || directory.join("rt.json").exists()) {
        return Err(LabError::Usage(format!("{}: {HOLDS}", directory.display())));
    }
    Ok(file)
}

impl Store {
    /// Opens the file; `taken` gets every record that it holds, but the header. A new file begins with `header`.
    ///
    /// # Errors
    /// It holds records and `resume` is not asked for, or they are of something else, or damaged; another run writes it.
    pub(super) fn open(
        path: &Path,
        header: &Header,
        resume: bool,
        mut taken: impl FnMut(Record),
    ) -> Result<Self, LabError> {
        let mut options = File::options();
        let file = options
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .map_err(LabError::file(path))?;
        lock(&file)
            .map_err(|_| LabError::Usage(format!("{}: another run writes this file", path.display())))?;
        let mut store = Self { path: path.to_owned(), file, scan: Scan::default() };
        let holds = store.file.metadata().map_err(LabError::file(path))?.len() > 0;
        if holds && !resume {
            return Err(LabError::Usage(format!("{}: {HOLDS}", path.display())));
        }
        store.read(header, &mut taken)?;
        if store.scan.next() == 0 {
            store.append(&Record::Header(header.clone()))?;
        }
        Ok(store)
    }

    fn read(&mut self, header: &Header, taken: &mut dyn FnMut(Record)) -> Result<(), LabError> {
        let mut reader = BufReader::new(&self.file);
        let mut line = Vec::new();
        let contents = |problem: String| LabError::Contents { path: self.path.clone(), problem };
        let mut damage = None;
        loop {
            line.clear();
            if reader.read_until(b'\n', &mut line).map_err(LabError::file(&self.path))? == 0 {
                break;
            }
            let number = self.scan.next() + 1;
            if let Some(damage) = damage {
                return Err(contents(format!("line {number}: {damage}; lines follow, so no kill did this")));
            }
            match self.scan.accept(&line) {
                Ok(text) => {
                    let record: Record = serde_json::from_str(text).map_err(|error| {
                        contents(format!("line {number}: no record of this version: {error}"))
                    })?;
                    match record {
                        Record::Header(found) if number == 1 && found == *header => {}
                        Record::Header(found) => return Err(contents(different(&found, header))),
                        record => taken(record),
                    }
                }
                Err(found) => damage = Some(found),
            }
        }
        self.cut()
    }

    /// An error about what the file holds.
    pub(super) fn refuse(&self, problem: String) -> LabError {
        LabError::Contents { path: self.path.clone(), problem }
    }

    /// Cuts what lies behind the last whole record, and goes there.
    fn cut(&mut self) -> Result<(), LabError> {
        let end = self.scan.octets();
        let is_longer = self.file.metadata().is_ok_and(|metadata| metadata.len() > end);
        let cut = if is_longer { self.file.set_len(end) } else { Ok(()) };
        cut.and_then(|()| self.file.seek(SeekFrom::Start(end))).map(drop).map_err(LabError::file(&self.path))
    }

    /// Appends a record.
    ///
    /// # Errors
    /// It cannot be written whole (a full disk); then nothing of it stays.
    pub(super) fn append(&mut self, record: &Record) -> Result<(), LabError> {
        let json = |error: serde_json::Error| LabError::Contents {
            path: self.path.clone(),
            problem: error.to_string(),
        };
        let line = journal::line(self.scan.next(), &serde_json::to_string(record).map_err(json)?);
        if let Err(error) = self.file.write_all(line.as_bytes()) {
            // The full disk is the news; that the part of a line cannot be cut would be found by the next reader.
            let _ = self.cut();
            return Err(LabError::file(&self.path)(error));
        }
        // Our own line: it is the next record.
        let accepted = self.scan.accept(line.as_bytes());
        accepted
            .map(drop)
            .map_err(|damage| LabError::Contents { path: self.path.clone(), problem: damage.to_string() })
    }
}

fn different(found: &Header, asked: &Header) -> String {
    format!(
        "its records are of another plan ({found:?}; asked for: {asked:?}): repeat that plan, or choose another --out"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        Header {
            version: 1,
            system: "host".into(),
            profile: Profile::ALL[0],
            period_ns: 10_000_000,
            samples: 100,
            limit_ns: 100_000,
            workers: 10,
            worker_mib: 64,
            accelerator: None,
            load: None,
        }
    }

    fn samples(from: i64) -> Record {
        let late = Late { index: 1, lateness_ns: 5, causes: Vec::new(), thread: None };
        Record::Samples { ns: (from..from + 3).collect(), late: vec![late] }
    }

    fn reopened(path: &Path) -> Result<(Store, Vec<Record>), LabError> {
        let mut records = Vec::new();
        let store = Store::open(path, &header(), true, |record| records.push(record))?;
        Ok((store, records))
    }

    /// A kill at any instant leaves a prefix of the file. Whatever its length: whole records are taken once, and more can follow.
    #[test]
    fn a_kill_at_any_octet_counts_nothing_twice_and_loses_nothing_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cell");
        let mut store = Store::open(&path, &header(), false, |_| panic!("it is new")).unwrap();
        let all = [Record::Start { fifo: Some(99), cpu: None }, samples(0), samples(3)];
        let mut ends = vec![std::fs::metadata(&path).unwrap().len()];
        for record in &all {
            store.append(record).unwrap();
            ends.push(std::fs::metadata(&path).unwrap().len());
        }
        drop(store);
        let whole = std::fs::read(&path).unwrap();
        for cut in 0..=whole.len() {
            std::fs::write(&path, &whole[..cut]).unwrap();
            let expected = ends.iter().filter(|&&end| end <= cut as u64).count().saturating_sub(1);
            let (mut store, records) = reopened(&path).unwrap();
            assert_eq!(records, all[..expected], "cut at {cut}");
            store.append(&samples(50)).unwrap();
            drop(store);
            let (_, records) = reopened(&path).unwrap();
            assert_eq!(records.len(), expected + 1, "cut at {cut}");
            assert_eq!(records[expected], samples(50));
        }
    }

    #[test]
    fn what_is_no_end_of_a_kill_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cell");
        let mut store = Store::open(&path, &header(), false, |_| ()).unwrap();
        store.append(&samples(0)).unwrap();
        store.append(&samples(3)).unwrap();
        // The file of a run that still writes.
        let error = reopened(&path).map(drop).unwrap_err().to_string();
        assert!(error.contains("another run"), "{error}");
        drop(store);
        let error = Store::open(&path, &header(), false, |_| ()).map(drop).unwrap_err().to_string();
        assert!(error.contains("--resume"), "{error}");
        let other = Header { period_ns: 1_000_000, ..header() };
        let error = Store::open(&path, &other, true, |_| ()).map(drop).unwrap_err().to_string();
        assert!(error.contains("another plan") && error.contains("1000000"), "{error}");
        let other = Header { accelerator: Some("tcg".to_owned()), ..header() };
        let error = Store::open(&path, &other, true, |_| ()).map(drop).unwrap_err().to_string();
        assert!(error.contains("another plan") && error.contains("tcg"), "{error}");
        let other = Header { load: Some("stress-ng".to_owned()), ..header() };
        let error = Store::open(&path, &other, true, |_| ()).map(drop).unwrap_err().to_string();
        assert!(error.contains("another plan") && error.contains("stress-ng"), "{error}");
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, text.replacen("\"ns\":[0", "\"ns\":[7", 1)).unwrap();
        let error = reopened(&path).map(drop).unwrap_err().to_string();
        assert!(error.contains("line 2") && error.contains("lines follow"), "{error}");
        let line = text.lines().next_back().unwrap();
        std::fs::write(&path, format!("{text}{line}\n{line}\n")).unwrap();
        let error = reopened(&path).map(drop).unwrap_err().to_string();
        assert!(error.contains("record 2 stands where record 3"), "{error}");
    }

    #[test]
    fn a_directory_belongs_to_one_run() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("records")).unwrap();
        let own = |resume| super::own(folder.path(), resume);
        let first = own(false).unwrap();
        let error = own(true).map(drop).unwrap_err().to_string();
        assert!(error.contains("another run writes this directory"), "{error}");
        drop(first);
        for file in ["records/host-2.rt", "rt.json"] {
            std::fs::write(folder.path().join(file), "").unwrap();
            let error = own(false).map(drop).unwrap_err().to_string();
            assert!(error.contains("--resume") && error.contains("--out"), "{error}");
            own(true).unwrap();
            std::fs::remove_file(folder.path().join(file)).unwrap();
        }
    }

    #[test]
    fn a_full_disk_is_an_error_and_counts_nothing() {
        // It takes no octet; reading it never ends, so it is not opened as records.
        let path = Path::new("/dev/full");
        let file = File::options().write(true).open(path).unwrap();
        let mut store = Store { path: path.to_owned(), file, scan: Scan::default() };
        let error = store.append(&samples(0)).unwrap_err().to_string();
        assert!(error.contains("/dev/full") && error.contains("No space left"), "{error}");
        assert_eq!((store.scan.next(), store.scan.octets()), (0, 0));
    }
}
