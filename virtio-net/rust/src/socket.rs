// SPDX-License-Identifier: BSD-2-Clause
//! Sockets by their path: checked, listened at, connected to.
//!
//! In: a path. Out: a link. A stale socket (nothing listens there) is unlinked before this end listens; a file that is no socket,
//! and a socket that is in use, stay.

use std::io::ErrorKind;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use crate::error::{OpenError, PATH_OCTETS_MAX};
use crate::link::{Link, Options};

/// Refuses a path that does not fit into a socket address.
fn check_path(path: &Path) -> Result<(), OpenError> {
    let octets = path.as_os_str().as_bytes().len();
    if octets == 0 || octets > PATH_OCTETS_MAX {
        return Err(OpenError::PathLength { path: path.to_owned(), octets });
    }
    Ok(())
}

/// Connects to a backend that listens at `path`, and negotiates. Blocks for at most [`Options::limit`].
///
/// # Errors
/// An [`OpenError`]; the backend's socket is left as it is.
pub fn connect(path: &Path, options: &Options) -> Result<Link, OpenError> {
    check_path(path)?;
    options.check()?;
    let socket = UnixStream::connect(path).map_err(|error| OpenError::io("connect", &error))?;
    Link::open(socket, options)
}

/// A socket that backends connect to (OVS: `dpdkvhostuserclient`; testpmd: `client=1`). It stays when a backend goes away.
/// Dropping it removes the socket.
#[derive(Debug)]
pub struct Server {
    listener: UnixListener,
    path: PathBuf,
    /// Device and inode of the socket's file, so that another program's file of that name is not removed.
    identity: (u64, u64),
    options: Options,
}

impl Server {
    /// Listens at `path`, after a stale socket there was removed.
    ///
    /// # Errors
    /// An [`OpenError`]; nothing was changed, except that a stale socket may be gone.
    pub fn listen(path: &Path, options: &Options) -> Result<Self, OpenError> {
        check_path(path)?;
        options.check()?;
        remove_stale(path)?;
        let failed = |step| move |error: std::io::Error| OpenError::io(step, &error);
        let listener = UnixListener::bind(path).map_err(failed("bind"))?;
        let found = std::fs::symlink_metadata(path).map_err(failed("stat"))?;
        let server =
            Self { listener, path: path.to_owned(), identity: (found.dev(), found.ino()), options: *options };
        server.listener.set_nonblocking(true).map_err(failed("fcntl"))?;
        Ok(server)
    }

    /// Takes the next backend, and negotiates: blocks for at most [`Options::limit`]. `None`: no backend has connected.
    ///
    /// # Errors
    /// An [`OpenError`]; the server goes on listening.
    pub fn accept(&self) -> Result<Option<Link>, OpenError> {
        self.accept_socket()?.map(|socket| Link::open(socket, &self.options)).transpose()
    }

    /// Takes the next backend without a word to it: the caller calls [`Link::open`], and may end that by shutting a copy of the
    /// socket down. `None`: no backend has connected.
    ///
    /// # Errors
    /// [`OpenError::Os`]; the server goes on listening.
    pub fn accept_socket(&self) -> Result<Option<UnixStream>, OpenError> {
        let socket = match self.listener.accept() {
            Ok((socket, _)) => socket,
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::WouldBlock | ErrorKind::ConnectionAborted | ErrorKind::Interrupted
                ) =>
            {
                return Ok(None);
            }
            Err(error) => return Err(OpenError::io("accept", &error)),
        };
        socket.set_nonblocking(false).map_err(|error| OpenError::io("fcntl", &error))?;
        Ok(Some(socket))
    }

    /// Where it listens.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Readable when a backend has connected.
impl AsFd for Server {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let is_own = std::fs::symlink_metadata(&self.path)
            .is_ok_and(|found| (found.dev(), found.ino()) == self.identity);
        if is_own {
            let _gone_already = std::fs::remove_file(&self.path);
        }
    }
}

/// Removes a socket that no program listens at.
fn remove_stale(path: &Path) -> Result<(), OpenError> {
    let found = match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(OpenError::io("stat", &error)),
        Ok(found) => found,
    };
    if !found.file_type().is_socket() {
        return Err(OpenError::NotASocket { path: path.to_owned() });
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
            std::fs::remove_file(path).map_err(|error| OpenError::io("unlink", &error))
        }
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        _ => Err(OpenError::InUse { path: path.to_owned() }),
    }
}
