// SPDX-License-Identifier: Apache-2.0
//! Finds the ktsnd that a command asks: the named one, the node's, or that of a `ktsn run --with-daemon`.
//!
//! In: the flag, the environment, the directories that `ktsn run` makes. Out: a run directory, and the other directories where
//! a ktsnd answers. Without a name the node's ktsnd comes first. Of several that `ktsn run` started the user chooses one.

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::net::UnixStream;

use crate::control::{self, ControlError};

/// Prefix of the names of `ktsn run`'s own directories.
pub(crate) const PREFIX: &str = "ktsn-run.";
/// The longest wait for a socket to accept.
const CONNECT_MAX: Duration = Duration::from_millis(500);

/// The folders in which `ktsn run` makes its directories: the first one that it can write.
pub(crate) fn parents() -> Vec<PathBuf> {
    let mut parents = vec![PathBuf::from("/run"), std::env::temp_dir()];
    parents.dedup();
    parents
}

/// The ktsnd to ask.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) run_dir: PathBuf,
    /// Other directories where a ktsnd answers; empty when the directory was named.
    pub(crate) others: Vec<PathBuf>,
}

/// Finds the ktsnd to ask.
///
/// # Errors
/// [`ControlError::Several`]; [`ControlError::Unusable`] for a flag that is no path.
pub(crate) async fn find(flag: Option<&Path>) -> Result<Found, ControlError> {
    let run_dir =
        control::run_dir(flag).map_err(|error| ControlError::Unusable(PathBuf::from("--run-dir"), error))?;
    if flag.is_some() || control::is_named_by_environment() {
        return Ok(Found { run_dir, others: Vec::new() });
    }
    let mut beside = Vec::new();
    for parent in parents() {
        for run_dir in directories(&parent) {
            beside.push((probe(&run_dir).await, run_dir));
        }
    }
    choose((probe(&run_dir).await, run_dir), &beside)
}

/// What a run directory's control socket answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Presence {
    /// A ktsnd listens.
    Running,
    /// The user may not connect; the socket may be left over.
    Denied,
    /// No ktsnd listens.
    Absent,
}

fn choose(
    (node_s, run_dir): (Presence, PathBuf),
    beside: &[(Presence, PathBuf)],
) -> Result<Found, ControlError> {
    let of = |which: Presence| {
        beside.iter().filter(move |(presence, _)| *presence == which).map(|(_, at)| at.clone())
    };
    let mut others: Vec<PathBuf> = of(Presence::Running).collect();
    // A ktsnd that answers goes before a socket that this user may not open.
    if others.is_empty() && node_s == Presence::Absent {
        others.extend(of(Presence::Denied));
    }
    match others.len() {
        _ if node_s == Presence::Running => Ok(Found { run_dir, others }),
        0 => Ok(Found { run_dir, others }),
        1 => Ok(Found { run_dir: others.remove(0), others }),
        _ => Err(ControlError::Several(others)),
    }
}

/// `ktsn run`'s directories in a folder, by name. Other users may write there: only directories of root and of this user count.
fn directories(parent: &Path) -> Vec<PathBuf> {
    let user = rustix::process::geteuid().as_raw();
    let entries = std::fs::read_dir(parent).into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> = entries
        .filter(|entry| entry.file_name().as_encoded_bytes().starts_with(PREFIX.as_bytes()))
        .map(|entry| entry.path())
        .filter(|path| {
            std::fs::symlink_metadata(path)
                .is_ok_and(|metadata| metadata.is_dir() && [0, user].contains(&metadata.uid()))
        })
        .collect();
    found.sort();
    found
}

/// Connects to the control socket.
async fn probe(run_dir: &Path) -> Presence {
    let connected = tokio::time::timeout(CONNECT_MAX, UnixStream::connect(control::socket(run_dir))).await;
    match connected.map(|connected| connected.map_err(|error| error.kind())) {
        // A ktsnd that is too busy to accept runs.
        Ok(Ok(_) | Err(io::ErrorKind::WouldBlock)) | Err(_) => Presence::Running,
        Ok(Err(io::ErrorKind::PermissionDenied)) => Presence::Denied,
        Ok(Err(_)) => Presence::Absent,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    fn found(run_dir: &str, others: &[&str]) -> Found {
        Found { run_dir: run_dir.into(), others: others.iter().map(PathBuf::from).collect() }
    }

    #[test]
    fn the_node_s_comes_first_then_the_only_one() {
        use Presence::{Absent, Denied, Running};
        let of = |node_s, beside: &[(Presence, &str)]| {
            let beside: Vec<_> = beside.iter().map(|(presence, at)| (*presence, PathBuf::from(at))).collect();
            choose((node_s, "/run/ktsn".into()), &beside)
        };
        assert_eq!(of(Running, &[]).unwrap(), found("/run/ktsn", &[]));
        assert_eq!(
            of(Running, &[(Running, "/a"), (Absent, "/b"), (Denied, "/c")]).unwrap(),
            found("/run/ktsn", &["/a"])
        );
        // The error of the connection says how to start a ktsnd, or that this user may not ask it.
        assert_eq!(of(Absent, &[(Absent, "/a")]).unwrap(), found("/run/ktsn", &[]));
        assert_eq!(of(Denied, &[(Denied, "/a")]).unwrap(), found("/run/ktsn", &[]));
        // Another user's left-over socket hides no ktsnd of this user.
        assert_eq!(of(Absent, &[(Running, "/a"), (Denied, "/b")]).unwrap(), found("/a", &[]));
        assert_eq!(of(Denied, &[(Running, "/a")]).unwrap(), found("/a", &[]));
        assert_eq!(of(Absent, &[(Denied, "/b")]).unwrap(), found("/b", &[]));
        let several = of(Absent, &[(Running, "/a"), (Running, "/b")]).unwrap_err().to_string();
        assert!(several.contains("/a, /b") && several.contains("--run-dir"), "{several}");
    }

    #[test]
    fn what_is_left_over_or_no_directory_of_ours_does_not_count() {
        let parent = tempfile::tempdir().unwrap();
        let at = |name: &str| parent.path().join(name);
        for name in ["ktsn-run.1.0", "ktsn-run.2.0", "ktsn-run.3.0", "other"] {
            std::fs::create_dir(at(name)).unwrap();
        }
        std::fs::write(at("ktsn-run.file"), b"").unwrap();
        std::os::unix::fs::symlink(at("other"), at("ktsn-run.link")).unwrap();
        // The first directory has a listener, the second one a left-over socket, the third one no socket.
        let _listener = UnixListener::bind(at("ktsn-run.1.0/ktsnd.sock")).unwrap();
        drop(UnixListener::bind(at("ktsn-run.2.0/ktsnd.sock")).unwrap());
        let listed = directories(parent.path());
        assert_eq!(listed, [at("ktsn-run.1.0"), at("ktsn-run.2.0"), at("ktsn-run.3.0")]);
        let runtime = control::runtime().unwrap();
        let alive: Vec<Presence> = listed.iter().map(|run_dir| runtime.block_on(probe(run_dir))).collect();
        assert_eq!(alive, [Presence::Running, Presence::Absent, Presence::Absent]);
        assert_eq!(directories(&at("nothing")), Vec::<PathBuf>::new());
    }

    #[test]
    fn a_named_one_is_not_looked_for() {
        let runtime = control::runtime().unwrap();
        let of_flag = runtime.block_on(find(Some(Path::new("/run/ktsn")))).unwrap();
        assert_eq!(of_flag, found("/run/ktsn", &[]));
    }
}
