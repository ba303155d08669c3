// SPDX-License-Identifier: Apache-2.0
//! One intercepted call of a send function, and what becomes of it: the only answer of the safe code to the hooks.

use core::ffi::c_int;

use ktsn_model::BypassReason;
use ktsn_ring::{SlotFrame, StreamCode, StreamStatus};

use crate::process::abi::ENETDOWN;
use crate::process::region::RegionUse;
use crate::process::{env, page};
use crate::streams::{Stream, stamps};

/// The socket of one call.
#[derive(Clone, Copy)]
pub(crate) struct SendCall {
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

/// Counts a datagram that goes to the kernel, where there is a region to count in.
pub(super) fn count(reason: BypassReason) {
    if let Some(held) = page::get().and_then(RegionUse::current) {
        held.producer().count(usize::from(reason.number()));
    }
}

/// Passes a timed datagram to the kernel, which gets it at its transmit time ([`later`](crate::send::later)).
#[cold]
#[inline(never)]
pub(super) fn bypass(stream: Stream, reason: BypassReason) -> Verdict {
    count(reason);
    if stream.is_kernel_timed() { Verdict::Kernel } else { Verdict::KernelStripped }
}

impl SendCall {
    /// What becomes of a message whose stream may not be scheduled now, by what the daemon says of it; `None`: it is scheduled, and the
    /// reports that it wants can come.
    #[inline(always)]
    pub(super) fn refuse_or_begin_reports(
        self,
        status: &StreamStatus,
        frame: &SlotFrame,
        held: &RegionUse,
    ) -> Option<Verdict> {
        let stream = self.stream;
        Some(match status.code {
            // The grant is gone, like a socket without SO_TXTIME: the kernel has the errno.
            StreamCode::Registered if stream.is_revoked(status) => {
                count(BypassReason::NotAllowed);
                Verdict::Kernel
            }
            StreamCode::Registered => {
                if stamps::wants_report(frame) {
                    stamps::begin(stream, held);
                }
                return None;
            }
            StreamCode::NotAttached => self.not_attached(),
            StreamCode::Refused => bypass(stream, BypassReason::NotAllowed),
            StreamCode::Unsupported | StreamCode::Pending => bypass(stream, BypassReason::UnsupportedOption),
        })
    }

    #[cold]
    #[inline(never)]
    pub(super) fn not_attached(self) -> Verdict {
        if env::is_strict() {
            Verdict::Fail(ENETDOWN)
        } else {
            bypass(self.stream, BypassReason::NotAttached)
        }
    }
}
