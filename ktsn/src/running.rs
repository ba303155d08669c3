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

use crate::control::{self, ControlError, RUN_DIR_DEFAULT};

/// What the names of `ktsn run`'s own directories begin with.
pub(crate) const PREFIX: &str = "ktsn-run.";
/// The longest wait for a socket that may have nobody behind it.
const CONNECT_MAX: Duration = Duration::from_millis(500);

/// Where `ktsn run` makes its directories: the first place that lets it.
pub(crate) fn parents() -> [PathBuf; 2] {
    [PathBuf::from("/run"), std::env::temp_dir()]
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
    let named =
        control::run_dir(flag).map_err(|error| ControlError::Unusable(PathBuf::from("--run-dir"), error))?;
    if flag.is_some() || named != Path::new(RUN_DIR_DEFAULT) {
        return Ok(Found { run_dir: named, others: Vec::new() });
    }
    let mut beside = Vec::new();
    for run_dir in parents().iter().flat_map(|parent| directories(parent)) {
        if is_there(&run_dir).await {
            beside.push(run_dir);
        }
    }
    let is_node_s_there = is_there(&named).await;
    choose(named, is_node_s_there, beside)
}

fn choose(node_s: PathBuf, is_node_s_there: bool, mut beside: Vec<PathBuf>) -> Result<Found, ControlError> {
    match beside.len() {
        _ if is_node_s_there => Ok(Found { run_dir: node_s, others: beside }),
        0 => Ok(Found { run_dir: node_s, others: Vec::new() }),
        1 => Ok(Found { run_dir: beside.remove(0), others: Vec::new() }),
        _ => Err(ControlError::Several(beside)),
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

/// Whether a ktsnd listens there, this user's to ask or not.
async fn is_there(run_dir: &Path) -> bool {
    let connected = tokio::time::timeout(CONNECT_MAX, UnixStream::connect(control::socket(run_dir))).await;
    match connected {
        Ok(Ok(_)) | Err(_) => true,
        Ok(Err(error)) => matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::WouldBlock),
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
        let of = |is_there, beside: &[&str]| {
            choose("/run/ktsn".into(), is_there, beside.iter().map(PathBuf::from).collect())
        };
        assert_eq!(of(true, &[]).unwrap(), found("/run/ktsn", &[]));
        assert_eq!(of(true, &["/a", "/b"]).unwrap(), found("/run/ktsn", &["/a", "/b"]));
        // Its error says how to start one.
        assert_eq!(of(false, &[]).unwrap(), found("/run/ktsn", &[]));
        assert_eq!(of(false, &["/a"]).unwrap(), found("/a", &[]));
        let several = of(false, &["/a", "/b"]).unwrap_err().to_string();
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
        let alive: Vec<bool> = listed.iter().map(|run_dir| runtime.block_on(is_there(run_dir))).collect();
        assert_eq!(alive, [true, false, false]);
        assert_eq!(directories(&at("nothing")), Vec::<PathBuf>::new());
    }

    #[test]
    fn a_named_one_is_not_looked_for() {
        let runtime = control::runtime().unwrap();
        let of_flag = runtime.block_on(find(Some(Path::new("/run/ktsn")))).unwrap();
        assert_eq!(of_flag, found("/run/ktsn", &[]));
    }
}
