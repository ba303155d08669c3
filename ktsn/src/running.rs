// SPDX-License-Identifier: Apache-2.0
//! Which ktsnd is meant: the named one, the node's, or the one beside a program (`ktsn run --with-daemon`).
//!
//! In: the flag, the environment, the directories that `ktsn run` makes. Out: a run directory and the others where a ktsnd
//! answers. Where none is named, the node's comes first; of several programs' ones the user chooses.

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::net::UnixStream;

use crate::control::{self, ControlError};

/// What the names of `ktsn run`'s own directories begin with.
pub(crate) const PREFIX: &str = "ktsn-run.";
/// The longest wait for a socket that may have nobody behind it.
const CONNECT_MAX: Duration = Duration::from_millis(500);

/// Where `ktsn run` makes its directories: the first place that lets it.
pub(crate) fn parents() -> Vec<PathBuf> {
    let mut parents = vec![PathBuf::from("/run"), std::env::temp_dir()];
    parents.dedup();
    parents
}

/// The ktsnd that is meant.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) run_dir: PathBuf,
    /// Where else one answers, if none was named.
    pub(crate) others: Vec<PathBuf>,
}

/// Looks for it.
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
            beside.push((is_there(&run_dir).await, run_dir));
        }
    }
    choose((is_there(&run_dir).await, run_dir), &beside)
}

/// Whether a ktsnd listens somewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum There {
    Yes,
    /// It is not this user's to ask; perhaps nobody listens any more.
    Denied,
    No,
}

fn choose((node_s, run_dir): (There, PathBuf), beside: &[(There, PathBuf)]) -> Result<Found, ControlError> {
    let of = |which: There| beside.iter().filter(move |(there, _)| *there == which).map(|(_, at)| at.clone());
    let mut others: Vec<PathBuf> = of(There::Yes).collect();
    // One that answers goes before one that may not be asked.
    if others.is_empty() && node_s == There::No {
        others.extend(of(There::Denied));
    }
    match others.len() {
        _ if node_s == There::Yes => Ok(Found { run_dir, others }),
        0 => Ok(Found { run_dir, others }),
        1 => Ok(Found { run_dir: others.remove(0), others }),
        _ => Err(ControlError::Several(others)),
    }
}

/// `ktsn run`'s directories, by name. Where everybody may write, those of root and of this user alone.
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

async fn is_there(run_dir: &Path) -> There {
    let connected = tokio::time::timeout(CONNECT_MAX, UnixStream::connect(control::socket(run_dir))).await;
    match connected.map(|connected| connected.map_err(|error| error.kind())) {
        // One that is too busy to accept is there.
        Ok(Ok(_) | Err(io::ErrorKind::WouldBlock)) | Err(_) => There::Yes,
        Ok(Err(io::ErrorKind::PermissionDenied)) => There::Denied,
        Ok(Err(_)) => There::No,
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
        use There::{Denied, No, Yes};
        let of = |node_s, beside: &[(There, &str)]| {
            let beside: Vec<_> = beside.iter().map(|(there, at)| (*there, PathBuf::from(at))).collect();
            choose((node_s, "/run/ktsn".into()), &beside)
        };
        assert_eq!(of(Yes, &[]).unwrap(), found("/run/ktsn", &[]));
        assert_eq!(of(Yes, &[(Yes, "/a"), (No, "/b"), (Denied, "/c")]).unwrap(), found("/run/ktsn", &["/a"]));
        // Its error says how to start one, or that it may not be asked.
        assert_eq!(of(No, &[(No, "/a")]).unwrap(), found("/run/ktsn", &[]));
        assert_eq!(of(Denied, &[(Denied, "/a")]).unwrap(), found("/run/ktsn", &[]));
        // What another user left over hides nobody's own.
        assert_eq!(of(No, &[(Yes, "/a"), (Denied, "/b")]).unwrap(), found("/a", &[]));
        assert_eq!(of(Denied, &[(Yes, "/a")]).unwrap(), found("/a", &[]));
        assert_eq!(of(No, &[(Denied, "/b")]).unwrap(), found("/b", &[]));
        let several = of(No, &[(Yes, "/a"), (Yes, "/b")]).unwrap_err().to_string();
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
        // Of the first one the listener lives; the second one's is gone, the third one never had any.
        let _listener = UnixListener::bind(at("ktsn-run.1.0/ktsnd.sock")).unwrap();
        drop(UnixListener::bind(at("ktsn-run.2.0/ktsnd.sock")).unwrap());
        let listed = directories(parent.path());
        assert_eq!(listed, [at("ktsn-run.1.0"), at("ktsn-run.2.0"), at("ktsn-run.3.0")]);
        let runtime = control::runtime().unwrap();
        let alive: Vec<There> = listed.iter().map(|run_dir| runtime.block_on(is_there(run_dir))).collect();
        assert_eq!(alive, [There::Yes, There::No, There::No]);
        assert_eq!(directories(&at("nothing")), Vec::<PathBuf>::new());
    }

    #[test]
    fn a_named_one_is_not_looked_for() {
        let runtime = control::runtime().unwrap();
        let of_flag = runtime.block_on(find(Some(Path::new("/run/ktsn")))).unwrap();
        assert_eq!(of_flag, found("/run/ktsn", &[]));
    }
}
