// SPDX-License-Identifier: Apache-2.0
//! What runs leave when they are killed, and how it is removed.
//!
//! In: the cache. A run holds a locked file there that names its QEMU by process number and start time, and its socket. Out:
//! processes ended, files gone.
//! A process is never found by its name; one whose start time differs is another one with the same number, and is left alone.

use super::cache::Cache;
use crate::error::LabError;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketType};
use rustix::process::{Pid, Signal, kill_process};
use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// A record is two numbers, and a path at most.
const RECORD_OCTETS_MAX: u64 = 8192;
/// How long a killed process may take to end.
const GONE_WITHIN: Duration = Duration::from_secs(5);
/// The line of a socket's name begins so.
const SOCKET: &str = "socket ";

/// The record of a run; gone with its value.
#[derive(Debug)]
pub(super) struct Record {
    path: PathBuf,
    file: File,
}

impl Record {
    /// Makes a record that names no process yet.
    ///
    /// # Errors
    /// The file cannot be made.
    pub(super) fn new(cache: &Cache) -> Result<Self, LabError> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let runs = cache.runs();
        std::fs::create_dir_all(&runs).map_err(LabError::file(&runs))?;
        // Processes of several containers that share the cache may have equal numbers.
        let (pid, number) = (std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        let path = runs.join(format!("{pid}-{}-{number}", start_time(pid).unwrap_or(0)));
        loop {
            let file = OpenOptions::new().create(true).truncate(true).write(true).open(&path);
            let file = file.map_err(LabError::file(&path))?;
            flock(&file, FlockOperation::LockExclusive)
                .map_err(|error| LabError::file(&path)(error.into()))?;
            // `clean` may have removed the file before it was locked.
            let inode = file.metadata().map_err(LabError::file(&path))?.ino();
            if std::fs::metadata(&path).is_ok_and(|named| named.ino() == inode) {
                return Ok(Self { path, file });
            }
        }
    }

    /// Names the run's process.
    ///
    /// # Errors
    /// The record cannot be written.
    pub(super) fn name_process(&mut self, pid: u32) -> Result<(), LabError> {
        let Some(start) = start_time(pid) else { return Ok(()) };
        writeln!(self.file, "{pid} {start}").map_err(LabError::file(&self.path))
    }

    /// A directory for what the run's processes write; gone with the record.
    ///
    /// # Errors
    /// It cannot be made.
    pub(super) fn directory(&self) -> Result<PathBuf, LabError> {
        let directory = directory_of(&self.path);
        std::fs::create_dir_all(&directory).map_err(LabError::file(&directory))?;
        Ok(directory)
    }

    /// Names a socket that the run has made.
    ///
    /// # Errors
    /// The record cannot be written.
    pub(super) fn name_socket(&mut self, socket: &Path) -> Result<(), LabError> {
        let line = [SOCKET.as_bytes(), socket.as_os_str().as_bytes(), b"\n"].concat();
        self.file.write_all(&line).map_err(LabError::file(&self.path))
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        // Where one cannot be removed, `ktsn vm clean` finds the record.
        if remove_directory(&self.path).is_ok() {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Beside the record.
fn directory_of(record: &Path) -> PathBuf {
    record.with_extension("files")
}

/// Removes a record's directory, if it has one.
fn remove_directory(record: &Path) -> Result<(), LabError> {
    let directory = directory_of(record);
    match std::fs::remove_dir_all(&directory) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        gone => gone.map_err(LabError::file(&directory)),
    }
}

/// When a process started, in the kernel's ticks since boot; `None` if there is none.
pub(super) fn start_time(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The program's name, in parentheses, may hold any octets.
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

/// What was found and removed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Removed {
    /// Records of runs that were killed.
    pub records: usize,
    /// Their processes that still ran, which were killed.
    pub processes: Vec<u32>,
    /// Sockets of vhost-user that they had made.
    pub sockets: usize,
}

/// Removes what killed runs left; runs that live are not touched.
///
/// # Errors
/// The directory of records cannot be read, or a record not be removed.
pub fn clean(cache: &Cache) -> Result<Removed, LabError> {
    let runs = cache.runs();
    let mut removed = Removed::default();
    if !runs.exists() {
        return Ok(removed);
    }
    cache.check_owner()?;
    for entry in std::fs::read_dir(&runs).map_err(LabError::file(&runs))?.flatten() {
        let path = entry.path();
        if !entry.file_type().is_ok_and(|kind| kind.is_file()) {
            continue;
        }
        let Ok(file) = File::open(&path) else { continue };
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            continue;
        }
        let mut octets = Vec::new();
        // What cannot be read names nothing.
        let _ = (&file).take(RECORD_OCTETS_MAX).read_to_end(&mut octets);
        // A line without its end was not written whole.
        let lines =
            octets.split_inclusive(|&octet| octet == b'\n').filter_map(|line| line.strip_suffix(b"\n"));
        let (sockets, processes): (Vec<_>, Vec<_>) =
            lines.partition(|line| line.starts_with(SOCKET.as_bytes()));
        // First the processes: a socket has a user as long as they live.
        removed
            .processes
            .extend(processes.into_iter().filter_map(|line| end_process(&String::from_utf8_lossy(line))));
        for line in sockets {
            let path = Path::new(OsStr::from_bytes(&line[SOCKET.len()..]));
            removed.sockets += usize::from(remove_socket(path));
        }
        remove_directory(&path)?;
        match std::fs::remove_file(&path) {
            // Its own run was quicker.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            gone => {
                gone.map_err(LabError::file(&path))?;
                removed.records += 1;
            }
        }
    }
    Ok(removed)
}

/// Ends the process that a record's line names; its number if it was there.
fn end_process(line: &str) -> Option<u32> {
    let (pid, start) = line.split_once(' ')?;
    let (pid, start) = (pid.parse().ok()?, start.parse().ok()?);
    kill(pid, start).then_some(pid)
}

/// Removes a socket that has no user. Another kind of file is not ours, and a run of another cache may have taken the name over since.
fn remove_socket(path: &Path) -> bool {
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket());
    is_socket && !has_user(path) && std::fs::remove_file(path).is_ok()
}

/// Whether a process has this socket open. The question does not reach that process: a datagram socket cannot connect to it, and the kernel
/// says that only where there is one.
fn has_user(path: &Path) -> bool {
    let asked = SocketAddrUnix::new(path).and_then(|address| {
        let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::DGRAM, None)?;
        rustix::net::connect(&socket, &address)
    });
    !matches!(asked, Err(Errno::CONNREFUSED | Errno::NOENT))
}

/// Kills the process that has this number and started then, and waits until it is gone or was waited for.
fn kill(pid: u32, start: u64) -> bool {
    let number = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let is_killed =
        start_time(pid) == Some(start) && number.is_some_and(|pid| kill_process(pid, Signal::KILL).is_ok());
    let until = Instant::now() + GONE_WITHIN;
    // A zombie has closed its sockets.
    while is_killed && start_time(pid) == Some(start) && !is_zombie(pid) && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(2));
    }
    is_killed
}

fn is_zombie(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with(['Z', 'X']))
}
