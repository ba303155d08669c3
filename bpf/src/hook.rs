// SPDX-License-Identifier: Apache-2.0
//! Where programs are attached. In: a hook. Out: the kernel's numbers for it (linux/bpf.h). No state.

/// BPF_F_BEFORE: with nothing named, in front of all others.
const BEFORE: u32 = 1 << 3;
/// XDP_FLAGS_DRV_MODE: in the driver, or not at all.
const IN_DRIVER: u32 = 1 << 2;

/// Where a program is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hook {
    /// A device's ingress, among other programs.
    TcxIngress,
    /// A device's driver, alone.
    Xdp,
}

impl Hook {
    /// BPF_PROG_TYPE_SCHED_CLS, BPF_PROG_TYPE_XDP.
    pub(crate) const fn program_type(self) -> u32 {
        match self {
            Self::TcxIngress => 3,
            Self::Xdp => 6,
        }
    }

    /// BPF_46, BPF_XDP.
    pub(crate) const fn attach_type(self) -> u32 {
        match self {
            Self::TcxIngress => 46,
            Self::Xdp => 37,
        }
    }

    /// The flags of BPF_LINK_CREATE.
    pub(crate) const fn flags(self) -> u32 {
        match self {
            Self::TcxIngress => BEFORE,
            Self::Xdp => IN_DRIVER,
        }
    }
}
