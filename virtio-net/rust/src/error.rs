// SPDX-License-Identifier: BSD-2-Clause
//! Everything that can go wrong, as closed enums. `errno` fields are Linux error numbers.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// Longest path of a Unix socket: `sun_path` less its NUL.
pub const PATH_OCTETS_MAX: usize = 107;
/// Most queue pairs of a connection.
pub const QUEUES_MAX: u16 = 8;
/// Most receive buffers that are posted, and most frames under way, of each queue pair.
pub const SLOTS_MAX: u16 = 256;

/// Why there is no connection. Nothing is held when one of these is returned.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// The socket's path does not fit into a socket address.
    #[error("socket path {path:?} has {octets} octets: at most {PATH_OCTETS_MAX}; choose a shorter path")]
    PathLength {
        /// The path as given.
        path: PathBuf,
        /// Its length.
        octets: usize,
    },
    /// A count is out of range.
    #[error("{field} = {value}: must be 1 to {max}")]
    Count {
        /// Field of [`crate::Options`].
        field: &'static str,
        /// The value as given.
        value: u16,
        /// The largest value.
        max: u16,
    },
    /// Something that is no socket lies at the path; it stays there.
    #[error("{path:?} is no socket: remove it, or choose another path")]
    NotASocket {
        /// The path as given.
        path: PathBuf,
    },
    /// A running program listens at the path.
    #[error("socket {path:?} is in use: another program listens there")]
    InUse {
        /// The path as given.
        path: PathBuf,
    },
    /// A system call failed.
    #[error("{step}: {}", io::Error::from_raw_os_error(*errno))]
    Os {
        /// The call.
        step: &'static str,
        /// What the kernel said.
        errno: i32,
    },
    /// The backend did not answer in time.
    #[error("{step}: the backend did not answer within {limit:?}")]
    Timeout {
        /// The request, as the protocol calls it.
        step: &'static str,
        /// How long all requests together may take.
        limit: Duration,
    },
    /// The backend closed the connection.
    #[error("{step}: the backend closed the connection")]
    Closed {
        /// The request at which it did.
        step: &'static str,
    },
    /// An answer that breaks the protocol.
    #[error("{step}: the backend's answer breaks the protocol ({what})")]
    Protocol {
        /// The request.
        step: &'static str,
        /// What was wrong.
        what: &'static str,
    },
    /// The backend said no.
    #[error("{step}: the backend refused")]
    Refused {
        /// The request.
        step: &'static str,
    },
    /// The backend offers no VERSION_1: it is a legacy device.
    #[error("the backend offers features {offered:#x} without VERSION_1 (bit 32)")]
    Features {
        /// What it offers.
        offered: u64,
    },
    /// The backend has too few queue pairs. Without the protocol feature MQ it has one.
    #[error("queues = {asked}: the backend has {offered} queue pairs")]
    Queues {
        /// Queue pairs asked for.
        asked: u16,
        /// Queue pairs that it has: its answer to GET_QUEUE_NUM.
        offered: u64,
    },
    /// The driver refused (`enum vnet_status`).
    #[error("the driver refused: status {status}")]
    Driver {
        /// The status.
        status: i32,
    },
}

impl OpenError {
    pub(crate) fn os(step: &'static str, errno: rustix::io::Errno) -> Self {
        Self::Os { step, errno: errno.raw_os_error() }
    }

    pub(crate) fn io(step: &'static str, error: &io::Error) -> Self {
        Self::Os { step, errno: error.raw_os_error().unwrap_or(0) }
    }
}

/// Why a frame was not sent. The backend does not have it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// The transmit ring is full: the backend is slow.
    #[error("the transmit ring is full")]
    Full,
    /// Shorter or longer than a frame can be.
    #[error(
        "a frame of {octets} octets: must have {} to {}",
        crate::FRAME_OCTETS_MIN,
        crate::FRAME_OCTETS_MAX
    )]
    Length {
        /// The frame's length.
        octets: usize,
    },
    /// There is no such queue.
    #[error("no queue {queue}")]
    NoQueue {
        /// The queue asked for.
        queue: u16,
    },
    /// The backend broke a rule: drop the link.
    #[error("the backend broke a rule: {0}")]
    Broken(Fault),
}

/// Which rule of the rings the backend broke.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// The used index moved further than what is under way.
    #[error("the used index moved too far")]
    Index,
    /// A used element names a buffer that is not under way.
    #[error("a used element names a buffer that is not under way")]
    Id,
    /// A used length is below the header's or above the buffer's.
    #[error("a used length does not fit its buffer")]
    Length,
    /// Another one.
    #[error("the device has stopped")]
    Other,
}

impl Fault {
    /// Of `enum vnet_fault`.
    pub(crate) fn of(fault: u32) -> Self {
        match fault {
            1 => Self::Index,
            2 => Self::Id,
            3 => Self::Length,
            _ => Self::Other,
        }
    }
}
