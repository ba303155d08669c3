// SPDX-License-Identifier: Apache-2.0
//! The way to a running ktsnd: its control socket in a run directory.
//!
//! In: the directory. Out: a client of `ktsn.v1.Node`, or why there is none and what to do about it. A daemon that
//! does not answer within [`ANSWER_MAX`] counts as silent; nothing here waits longer.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use ktsn_cli::output::listed;
use ktsn_proto::v1::node_client::NodeClient;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint, Uri};

/// Octets of a reply: gRPC's own 4 MiB are too few for a list of all streams that the daemon's memory budget has room for.
const REPLY_OCTETS_MAX: usize = 128 << 20;
/// The longest wait for one answer.
pub(crate) const ANSWER_MAX: Duration = Duration::from_secs(3);

/// Where a daemon is looked for when no directory is named.
pub(crate) const RUN_DIR_DEFAULT: &str = "/run/ktsn";

/// A connected client.
pub(crate) type Client = NodeClient<Channel>;

/// Why ktsnd cannot be asked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ControlError {
    /// No socket.
    #[error(
        "no ktsnd runs in {run_dir} ({path} does not exist); start one with `ktsnd --run-dir {run_dir}`, or name its directory with \
         --run-dir or KTSN_RUN_DIR",
        run_dir = directory(.0),
        path = .0.display()
    )]
    Absent(PathBuf),
    /// A socket that no ktsnd listens on any more.
    #[error(
        "no ktsnd runs in {run_dir} any more ({path} is left over); start one with `ktsnd --run-dir {run_dir}`",
        run_dir = directory(.0),
        path = .0.display()
    )]
    Stale(PathBuf),
    /// None of the node's, and several beside programs.
    #[error(
        "no ktsnd runs in {RUN_DIR_DEFAULT}, and {} run beside programs (ktsn run --with-daemon), in {}; name one with \
         --run-dir",
        .0.len(),
        listed(.0)
    )]
    Several(Vec<PathBuf>),
    /// The socket is not ours to use.
    #[error("{} may not be opened by this user; run the command as root", .0.display())]
    Denied(PathBuf),
    /// Something else is in the way.
    #[error("{path}: {1}; name ktsnd's directory with --run-dir or KTSN_RUN_DIR", path = .0.display())]
    Unusable(PathBuf, io::Error),
    /// ktsnd accepts the connection and does not answer.
    #[error(
        "ktsnd at {} does not answer within {} s; look at its log, restart it if it hangs",
        .0.display(),
        ANSWER_MAX.as_secs()
    )]
    Silent(PathBuf),
    /// ktsnd answered with an error.
    #[error("ktsnd at {} answered: {} ({})", .0.display(), .1.message(), .1.code())]
    Refused(PathBuf, tonic::Status),
}

/// The directory of a socket.
fn directory(socket: &Path) -> std::path::Display<'_> {
    socket.parent().unwrap_or(socket).display()
}

/// The run directory meant: the flag, `KTSN_RUN_DIR`, or the default; always absolute.
pub(crate) fn run_dir(flag: Option<&Path>) -> io::Result<PathBuf> {
    let named = match flag {
        Some(path) => path.to_owned(),
        None => std::env::var_os("KTSN_RUN_DIR")
            .filter(|value| !value.is_empty())
            .map_or_else(|| PathBuf::from(RUN_DIR_DEFAULT), PathBuf::from),
    };
    std::path::absolute(named)
}

/// Whether `KTSN_RUN_DIR` names one.
pub(crate) fn is_named_by_environment() -> bool {
    std::env::var_os("KTSN_RUN_DIR").is_some_and(|value| !value.is_empty())
}

/// The control socket of a run directory.
pub(crate) fn socket(run_dir: &Path) -> PathBuf {
    run_dir.join("ktsnd.sock")
}

/// A runtime for a few questions; it has one thread, ours.
pub(crate) fn runtime() -> io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}

/// Connects to the daemon of this run directory.
///
/// # Errors
/// [`ControlError`].
pub(crate) async fn connect(run_dir: &Path) -> Result<Client, ControlError> {
    let path = socket(run_dir);
    let stream = match UnixStream::connect(&path).await {
        Ok(stream) => stream,
        Err(error) => {
            return Err(match error.kind() {
                io::ErrorKind::NotFound => ControlError::Absent(path),
                io::ErrorKind::ConnectionRefused => ControlError::Stale(path),
                io::ErrorKind::PermissionDenied => ControlError::Denied(path),
                _ => ControlError::Unusable(path, error),
            });
        }
    };
    // One connection is all that is ever needed: when it breaks, the command says so instead of trying again.
    let mut once = Some(TokioIo::new(stream));
    let connector = tower::service_fn(move |_: Uri| {
        let stream = once.take().ok_or(io::ErrorKind::NotConnected);
        async move { stream.map_err(io::Error::from) }
    });
    let endpoint = Endpoint::from_static("http://ktsnd").timeout(ANSWER_MAX);
    match tokio::time::timeout(ANSWER_MAX, endpoint.connect_with_connector(connector)).await {
        Ok(Ok(channel)) => Ok(NodeClient::new(channel).max_decoding_message_size(REPLY_OCTETS_MAX)),
        Ok(Err(error)) => Err(ControlError::Unusable(path, io::Error::other(error))),
        Err(_) => Err(ControlError::Silent(path)),
    }
}

/// The answer to one question, with the place in the error.
///
/// # Errors
/// [`ControlError::Silent`] or [`ControlError::Refused`].
pub(crate) async fn answer<T>(
    run_dir: &Path,
    question: impl Future<Output = Result<tonic::Response<T>, tonic::Status>>,
) -> Result<T, ControlError> {
    match tokio::time::timeout(ANSWER_MAX, question).await {
        Ok(Ok(response)) => Ok(response.into_inner()),
        Ok(Err(status)) if status.code() == tonic::Code::Cancelled => {
            Err(ControlError::Silent(socket(run_dir)))
        }
        Ok(Err(status)) => Err(ControlError::Refused(socket(run_dir), status)),
        Err(_) => Err(ControlError::Silent(socket(run_dir))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_flag_wins_and_paths_are_absolute() {
        assert_eq!(run_dir(Some(Path::new("/a/b"))).unwrap(), Path::new("/a/b"));
        assert!(run_dir(Some(Path::new("b"))).unwrap().is_absolute());
        assert_eq!(socket(Path::new("/a")), Path::new("/a/ktsnd.sock"));
    }

    #[test]
    fn each_error_says_what_to_do() {
        let path = PathBuf::from("/x/ktsnd.sock");
        for (error, remedy) in [
            (ControlError::Absent(path.clone()), "ktsnd --run-dir /x"),
            (ControlError::Stale(path.clone()), "ktsnd --run-dir /x"),
            (ControlError::Denied(path.clone()), "as root"),
            (ControlError::Unusable(path.clone(), io::ErrorKind::NotADirectory.into()), "--run-dir"),
            (ControlError::Silent(path), "its log"),
        ] {
            assert!(error.to_string().contains(remedy), "{error}");
        }
    }
}
