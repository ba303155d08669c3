// SPDX-License-Identifier: Apache-2.0
//! What workers learnt about the sleeps of this machine, kept for the next daemon.
//!
//! In: a directory, and the margins of the running workers. Out: margins to begin with, of this machine and no older than
//! 30 days. A file that is missing, damaged, or of another machine is no fault: then workers begin with the usual margins.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use ktsn_expect::Margins;
use ktsn_time::Nanos;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, openat, renameat, unlinkat};
use serde::{Deserialize, Serialize};
use tracing::debug;

use crate::run_dir::fault_of;

const FILE: &str = "margins.json";
const NEW: &str = "margins.json.new";
const VERSION: u32 = 1;
/// Older margins are not used.
const AGE_MAX: Duration = Duration::from_secs(30 * 24 * 3600);
/// The file is written no more often than this, and at the daemon's end.
const PAUSE: Duration = Duration::from_secs(600);
/// Longer files are not read.
const OCTETS_MAX: u64 = 4096;

/// The file: spans in nanoseconds, `saved_at` in seconds since 1970.
#[derive(Debug, Serialize, Deserialize)]
struct Kept {
    version: u32,
    machine: String,
    saved_at: u64,
    short_ns: u64,
    medium_ns: u64,
    long_ns: u64,
}

/// The margins of this machine.
#[derive(Debug)]
pub(crate) struct MarginCache {
    dir: PathBuf,
    machine: String,
    known: Option<Margins>,
    /// Whether workers of this daemon have learnt anything that is not saved.
    is_new: bool,
    saved_at: Instant,
}

impl MarginCache {
    /// What an earlier daemon left in `dir`.
    pub(crate) fn open(dir: &Path) -> Self {
        Self::of_machine(dir, machine(), SystemTime::now())
    }

    fn of_machine(dir: &Path, machine: String, now: SystemTime) -> Self {
        let known = read(dir, &machine, seconds(now));
        Self { dir: dir.to_owned(), machine, known, is_new: false, saved_at: Instant::now() }
    }

    /// The margins for a worker to begin with.
    pub(crate) fn known(&self) -> Option<Margins> {
        self.known
    }

    /// The workers' margins now: for each length of sleep the greatest one of all that have learnt it.
    pub(crate) fn learn(&mut self, learnt: impl Iterator<Item = [Option<Nanos>; 3]>) {
        let greater = |one: [Option<Nanos>; 3], other: [Option<Nanos>; 3]| {
            [0, 1, 2].map(|length: usize| one[length].max(other[length]))
        };
        let Some(learnt) = learnt.reduce(greater).filter(|learnt| learnt.iter().any(Option::is_some)) else {
            return;
        };
        let Margins(mut margins) = self.known.unwrap_or(Margins::AT_START);
        for (margin, learnt) in margins.iter_mut().zip(learnt) {
            *margin = learnt.unwrap_or(*margin);
        }
        if self.known != Some(Margins(margins)) {
            (self.known, self.is_new) = (Some(Margins(margins)), true);
        }
    }

    /// Saves new margins, not too often.
    pub(crate) fn save_sometimes(&mut self) {
        if self.saved_at.elapsed() >= PAUSE {
            self.save();
        }
    }

    /// Saves new margins.
    pub(crate) fn save(&mut self) {
        if !std::mem::take(&mut self.is_new) {
            return;
        }
        self.saved_at = Instant::now();
        if let Err(error) = self.write() {
            debug!(dir = %self.dir.display(), %error, "the spin margins of this machine are not kept");
        }
    }

    fn write(&self) -> std::io::Result<()> {
        let Some(Margins(margins)) = self.known else { return Ok(()) };
        let [short_ns, medium_ns, long_ns] = margins.map(|margin| margin.get().unsigned_abs());
        let saved_at = seconds(SystemTime::now());
        let kept =
            Kept { version: VERSION, machine: self.machine.clone(), saved_at, short_ns, medium_ns, long_ns };
        std::fs::create_dir_all(&self.dir)?;
        let dir = own_directory(&self.dir)?;
        // Renamed into place: a daemon that is killed here leaves the file as it was, and a link in its place is not followed.
        let _ = unlinkat(&dir, NEW, AtFlags::empty());
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut file = File::from(openat(&dir, NEW, flags, Mode::from_raw_mode(0o644))?);
        let written = file.write_all(&serde_json::to_vec_pretty(&kept)?);
        match written {
            Ok(()) => Ok(renameat(&dir, NEW, &dir, FILE)?),
            Err(error) => {
                let _ = unlinkat(&dir, NEW, AtFlags::empty());
                Err(error)
            }
        }
    }
}

/// Opens a directory of root's or ktsnd's own user that no other user can write, as a run directory is.
fn own_directory(path: &Path) -> std::io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let dir = File::from(openat(CWD, path, flags, Mode::empty())?);
    match fault_of(&dir.metadata()?) {
        None => Ok(dir),
        Some(why) => Err(std::io::Error::new(std::io::ErrorKind::PermissionDenied, why)),
    }
}

fn read(dir: &Path, machine: &str, now: u64) -> Option<Margins> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = File::from(openat(own_directory(dir).ok()?, FILE, flags, Mode::empty()).ok()?);
    let mut octets = Vec::new();
    let length = file.metadata().ok().filter(std::fs::Metadata::is_file)?.len();
    if length > OCTETS_MAX || file.take(OCTETS_MAX).read_to_end(&mut octets).is_err() {
        return None;
    }
    let kept: Kept = serde_json::from_slice(&octets).ok()?;
    let age = now.checked_sub(kept.saved_at)?;
    let is_usable = kept.version == VERSION && kept.machine == machine && age <= AGE_MAX.as_secs();
    let margin = |nanos: u64| i64::try_from(nanos).map(Nanos::new).ok();
    is_usable.then_some(())?;
    Some(Margins([margin(kept.short_ns)?, margin(kept.medium_ns)?, margin(kept.long_ns)?]).bounded())
}

fn seconds(at: SystemTime) -> u64 {
    at.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// The kernel's release and the processor's name: what sleeps end late by depends on both.
fn machine() -> String {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let cpus = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = cpus.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    format!("{release}, {}", name.map_or("unknown processor", |(_, name)| name.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEARNT: Margins =
        Margins([Nanos::from_micros(31), Nanos::from_micros(90), Nanos::from_micros(400)]);

    fn saved(dir: &Path) {
        let mut cache = MarginCache::of_machine(dir, "m".into(), SystemTime::now());
        cache.learn([LEARNT.0.map(Some), [Some(Nanos::from_micros(30)); 3], [None; 3]].into_iter());
        assert_eq!(cache.known(), Some(LEARNT));
        cache.save();
    }

    #[test]
    fn the_next_daemon_of_this_machine_begins_with_what_was_learnt() {
        let dir = tempfile::tempdir().unwrap();
        let inner = dir.path().join("ktsn");
        saved(&inner);
        let now = SystemTime::now();
        assert_eq!(MarginCache::of_machine(&inner, "m".into(), now).known(), Some(LEARNT));
        assert_eq!(MarginCache::of_machine(&inner, "another".into(), now).known(), None);
        let later = now + AGE_MAX + Duration::from_secs(5);
        assert_eq!(MarginCache::of_machine(&inner, "m".into(), later).known(), None);
        let earlier = now - Duration::from_secs(60);
        assert_eq!(MarginCache::of_machine(&inner, "m".into(), earlier).known(), None, "saved in the future");
        assert_eq!(std::fs::read_dir(&inner).unwrap().count(), 1);
    }

    #[test]
    fn a_damaged_file_is_none_and_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FILE);
        let now = SystemTime::now();
        let longest = vec![b' '; OCTETS_MAX as usize + 1];
        for octets in [&b""[..], b"{", b"[1]", b"{\"version\":2}", &longest] {
            std::fs::write(&path, octets).unwrap();
            assert_eq!(MarginCache::of_machine(dir.path(), "m".into(), now).known(), None);
        }
        saved(dir.path());
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(MarginCache::of_machine(dir.path(), "m".into(), now).known().is_some(), "{text}");
        for (from, to) in [
            ("\"version\": 1", "\"version\": 2"),
            ("31000", "-1"),
            ("31000", "1e300"),
            ("31000", "18446744073709551615"),
        ] {
            assert!(text.contains(from), "{text}");
            std::fs::write(&path, text.replace(from, to)).unwrap();
            assert_eq!(MarginCache::of_machine(dir.path(), "m".into(), now).known(), None, "{to}");
        }
        std::fs::write(&path, text.replace("31000", "9000000000")).unwrap();
        let known = MarginCache::of_machine(dir.path(), "m".into(), now).known().unwrap();
        assert!(known.0[0] < Nanos::from_millis(1), "{known:?}");
    }

    /// What only short sleeps have taught is kept, too.
    #[test]
    fn each_length_is_kept_by_itself() {
        let dir = tempfile::tempdir().unwrap();
        let mut cache = MarginCache::of_machine(dir.path(), "m".into(), SystemTime::now());
        cache.learn([[None; 3]].into_iter());
        assert_eq!(cache.known(), None);
        cache.learn([[Some(LEARNT.0[0]), None, None]].into_iter());
        let Margins([short, medium, long]) = cache.known().unwrap();
        assert_eq!([short, medium, long], [LEARNT.0[0], Margins::AT_START.0[1], Margins::AT_START.0[2]]);
    }

    #[test]
    fn links_and_places_of_other_users_are_left_alone() {
        use std::os::unix::fs::{PermissionsExt as _, symlink};
        let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let victim = other.path().join("victim");
        std::fs::write(&victim, "as it was").unwrap();
        for name in [FILE, NEW] {
            symlink(&victim, dir.path().join(name)).unwrap();
        }
        saved(dir.path());
        assert_eq!(std::fs::read_to_string(&victim).unwrap(), "as it was");
        let now = SystemTime::now();
        assert_eq!(MarginCache::of_machine(dir.path(), "m".into(), now).known(), Some(LEARNT));
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
        assert_eq!(MarginCache::of_machine(dir.path(), "m".into(), now).known(), None);
    }

    #[test]
    fn a_directory_that_cannot_be_written_is_no_fault() {
        let mut cache = MarginCache::of_machine(Path::new("/proc/none"), "m".into(), SystemTime::now());
        cache.learn([LEARNT.0.map(Some)].into_iter());
        cache.save();
        assert_eq!(cache.known(), Some(LEARNT));
        assert!(!machine().is_empty());
    }
}
