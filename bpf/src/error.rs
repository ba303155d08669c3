// SPDX-License-Identifier: Apache-2.0
//! What can go wrong between us and the kernel's bpf(2).

use std::io;

/// Why capture cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum BpfError {
    /// The kernel refuses bpf(2) to this process.
    #[error("bpf {what}: {source}; CAP_BPF and CAP_NET_ADMIN (or root) are needed")]
    NotPermitted {
        /// What was asked for.
        what: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The kernel has no TCX (Linux 6.6), or something else of it is too old.
    #[error("bpf {what}: {source}; Linux 6.6 or newer is needed, and 6.11 for transmit times in TAI")]
    TooOld {
        /// What was asked for.
        what: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The verifier refused the program: our own fault.
    #[error("bpf program refused: {source}: {log}")]
    Refused {
        /// The kernel's answer.
        source: io::Error,
        /// The end of the verifier's log.
        log: String,
    },
    /// Anything else.
    #[error("bpf {what}: {source}")]
    Os {
        /// What was asked for.
        what: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
    /// More rules than the map holds.
    #[error("{count} {what}, at most {count_max} are possible")]
    TooMany {
        /// The kind of object.
        what: &'static str,
        /// How many there are.
        count: usize,
        /// How many there may be.
        count_max: usize,
    },
}

impl BpfError {
    pub(crate) fn os(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| match source.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => Self::NotPermitted { what, source },
            Some(libc::ENOSYS) => Self::TooOld { what, source },
            // TCX is an attach type that older kernels do not know.
            Some(libc::EINVAL) if what == "attach" || what == "load" => Self::TooOld { what, source },
            _ => Self::Os { what, source },
        }
    }
}
