// SPDX-License-Identifier: Apache-2.0
//! One intercepted call of a send function, and what becomes of it: the only answer of the safe code to the hooks.

use core::ffi::c_int;

use crate::streams::Stream;

/// The socket of one call.
#[derive(Clone, Copy)]
pub(crate) struct Send {
    pub(crate) stream: Stream,
    pub(crate) fd: c_int,
    /// The call's flags.
    pub(crate) flags: c_int,
}

/// The answer of the send core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The kernel gets the call as it is.
    Kernel,
    /// The kernel gets the call without SCM_TXTIME: its socket never got SO_TXTIME.
    KernelStripped,
    /// The kernel gets the call, and its timestamps' key has to be counted; without SCM_TXTIME where said.
    KernelCounted {
        /// Without SCM_TXTIME: the socket never got SO_TXTIME.
        is_stripped: bool,
    },
    /// KTSN took the message; so many octets were sent.
    Taken(usize),
    /// The call fails with this errno, as the kernel's own call would.
    Fail(c_int),
}
