// SPDX-License-Identifier: Apache-2.0
//! Everything that can go wrong, as closed enums. `errno` fields are Linux error numbers.

use std::io;
use std::path::PathBuf;

/// Why a port could not be opened. Nothing is held when one of these is returned.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// The interface name is empty, too long for the kernel, or holds a NUL or a slash.
    #[error("'{ifname}' is not an interface name")]
    Ifname {
        /// The name as given.
        ifname: String,
    },
    /// The network namespace's file could not be opened or entered.
    #[error("network namespace {path}: {}", io::Error::from_raw_os_error(*errno))]
    Namespace {
        /// The namespace's file.
        path: PathBuf,
        /// What the kernel said.
        errno: i32,
    },
    /// No such interface in that namespace.
    #[error("no interface '{ifname}'")]
    NoDevice {
        /// The name as given.
        ifname: String,
    },
    /// Another AF_XDP socket (of whatever process) is bound to this queue.
    #[error("queue {queue} of '{ifname}' is taken by another AF_XDP socket")]
    QueueBusy {
        /// The device.
        ifname: String,
        /// The queue.
        queue: u32,
    },
    /// The device has no such queue.
    #[error("'{ifname}' has no queue {queue}")]
    NoQueue {
        /// The device.
        ifname: String,
        /// The queue that was asked for.
        queue: u32,
    },
    /// A frame of this device's MTU does not fit into one AF_XDP buffer.
    #[error(
        "the MTU {mtu_octets} of '{ifname}' is over {mtu_octets_max}, the most that fits into an AF_XDP buffer"
    )]
    MtuTooLong {
        /// The device.
        ifname: String,
        /// Its MTU.
        mtu_octets: usize,
        /// The largest that would fit.
        mtu_octets_max: usize,
    },
    /// The device is not an Ethernet device.
    #[error("'{ifname}' is not an Ethernet device (hardware type {hardware_type})")]
    NotEthernet {
        /// The device.
        ifname: String,
        /// `ARPHRD_*`.
        hardware_type: u16,
    },
    /// The count of buffers is not a power of two within the limits.
    #[error("{stage_count} buffers: must be a power of two up to {}", crate::STAGE_COUNT_MAX)]
    StageCount {
        /// The count as given.
        stage_count: u16,
    },
    /// The pinned buffers are over RLIMIT_MEMLOCK and CAP_IPC_LOCK is missing.
    #[error("{octets} octets of pinned buffers are over RLIMIT_MEMLOCK: raise it or grant CAP_IPC_LOCK")]
    LockedMemory {
        /// What was asked for.
        octets: usize,
    },
    /// CAP_NET_RAW is missing (or, for another namespace, CAP_SYS_ADMIN).
    #[error("{step}: not permitted")]
    NotPermitted {
        /// The system call that was refused.
        step: &'static str,
    },
    /// The kernel has no such socket family or option.
    #[error("{step}: not supported by this kernel")]
    Unsupported {
        /// The system call that was refused.
        step: &'static str,
    },
    /// The devargs name no device.
    #[error(
        "devargs '{devargs}': expected a device and its arguments without blanks, as net_af_packet0,iface=eth1"
    )]
    Devargs {
        /// The devargs as given.
        devargs: String,
    },
    /// DPDK, or one of its drivers, refused.
    #[error("{step} for '{devargs}': {}", io::Error::from_raw_os_error(*errno))]
    Dpdk {
        /// DPDK's function that failed.
        step: &'static str,
        /// The devargs that were to be opened.
        devargs: String,
        /// What it said.
        errno: i32,
    },
    /// The socket of a vhost-user port, or its counts.
    #[error("vhost-user: {0}")]
    VhostUser(#[from] ktsn_virtio_net::OpenError),
    /// Any other refusal.
    #[error("{step}: {}", io::Error::from_raw_os_error(*errno))]
    Os {
        /// The system call that failed.
        step: &'static str,
        /// What the kernel said.
        errno: i32,
    },
}

impl OpenError {
    /// An error of `step`, sorted into the named cases.
    pub(crate) fn os(step: &'static str, errno: rustix::io::Errno) -> Self {
        use rustix::io::Errno;
        match errno {
            Errno::PERM | Errno::ACCESS => Self::NotPermitted { step },
            Errno::AFNOSUPPORT | Errno::OPNOTSUPP | Errno::NOPROTOOPT | Errno::PROTONOSUPPORT => {
                Self::Unsupported { step }
            }
            other => Self::Os { step, errno: other.raw_os_error() },
        }
    }

    /// Whether another adapter on the same device would fail just so.
    #[must_use]
    pub fn concerns_the_device(&self) -> bool {
        matches!(
            self,
            Self::Ifname { .. }
                | Self::Namespace { .. }
                | Self::NoDevice { .. }
                | Self::NotEthernet { .. }
                | Self::StageCount { .. }
        )
    }
}

/// Why no frame was staged. Nothing is occupied when one of these is returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum StageError {
    /// Every buffer is staged or in flight: reap, then try again.
    #[error("no free transmit buffer")]
    Full,
    /// The builder gave no frame.
    #[error("the builder gave no frame")]
    NotBuilt,
    /// Shorter than an Ethernet header.
    #[error("a frame of {octets} octets has no Ethernet header")]
    TooShort {
        /// The frame's length.
        octets: usize,
    },
    /// Longer than the device's MTU allows (the tag's four octets count for tagged frames only).
    #[error("a frame of {octets} octets is over {octets_max}")]
    TooLong {
        /// The frame's length.
        octets: usize,
        /// The longest for this frame (tagged or not).
        octets_max: usize,
    },
}

/// Why a frame did not go out. The frame is **not** on the wire and never will be; its buffer is released (at
/// once or at a later reap), so the caller counts it and forgets the stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// Not a staged frame: never staged, committed or abandoned before. A bug of the caller.
    #[error("not a staged frame")]
    NotStaged,
    /// The device is administratively down or has no carrier.
    #[error("the link is down")]
    LinkDown,
    /// The device was removed or moved to another namespace: drop the port and open it again.
    #[error("the device is gone")]
    DeviceGone,
    /// The device's MTU shrank after the port was opened.
    #[error("the frame is longer than the device's MTU")]
    TooLong,
    /// The device's queue is stopped or the socket's send buffer is exhausted: the device holds too many frames. It
    /// will take this one, built again, later.
    #[error("the device accepts no more frames now")]
    Busy,
    /// The kernel had no memory for a copy of the frame. It will take this one, built again, later.
    #[error("the kernel has no memory for the frame now")]
    NoMemory,
    /// The device or the peer of a virtual device took the frame and threw it away (its queue was full). Sending it
    /// again may make a duplicate: a device that sends to several others reports each that dropped it.
    #[error("the device dropped the frame")]
    Dropped,
    /// Anything else the kernel said.
    #[error("{}", io::Error::from_raw_os_error(*errno))]
    Os {
        /// The Linux error number.
        errno: i32,
    },
}
