// SPDX-License-Identifier: Apache-2.0
//! The numbers and shapes of the Linux socket interface that the hooks meet.
//!
//! Out: constants and `#[repr(C)]` structs, the same on every 64-bit little-endian architecture that is supported
//! (x86-64, AArch64). No code, no decision.

use core::ffi::{c_int, c_void};

pub(crate) const SOL_IP: c_int = 0;
pub(crate) const SOL_SOCKET: c_int = 1;
pub(crate) const SOL_UDP: c_int = 17;
pub(crate) const SOL_PACKET: c_int = 263;
pub(crate) const SOL_IPV6: c_int = 41;

pub(crate) const SO_TYPE: c_int = 3;
pub(crate) const SO_DONTROUTE: c_int = 5;
pub(crate) const SO_SNDBUF: c_int = 7;
pub(crate) const SO_BROADCAST: c_int = 6;
pub(crate) const SO_NO_CHECK: c_int = 11;
pub(crate) const SO_PRIORITY: c_int = 12;
pub(crate) const SO_SNDTIMEO: c_int = 21;
pub(crate) const SO_BINDTODEVICE: c_int = 25;
pub(crate) const SO_MARK: c_int = 36;
pub(crate) const SO_TIMESTAMPING: c_int = 37;
pub(crate) const SO_PROTOCOL: c_int = 38;
pub(crate) const SO_DOMAIN: c_int = 39;
pub(crate) const SO_COOKIE: c_int = 57;
/// A control message only.
pub(crate) const SCM_TS_OPT_ID: c_int = 81;
/// Also the type of the control message, `SCM_TXTIME`.
pub(crate) const SO_TXTIME: c_int = 61;
pub(crate) const SO_BINDTOIFINDEX: c_int = 62;

pub(crate) const IP_TOS: c_int = 1;
pub(crate) const IP_TTL: c_int = 2;
pub(crate) const IP_OPTIONS: c_int = 4;
pub(crate) const IP_RECVERR: c_int = 11;
pub(crate) const IP_MULTICAST_TTL: c_int = 33;
pub(crate) const IP_UNICAST_IF: c_int = 50;
pub(crate) const IP_MULTICAST_IF: c_int = 32;
pub(crate) const IP_PKTINFO: c_int = 8;

pub(crate) const IPV6_UNICAST_HOPS: c_int = 16;
pub(crate) const IPV6_MULTICAST_IF: c_int = 17;
pub(crate) const IPV6_MULTICAST_HOPS: c_int = 18;
pub(crate) const IPV6_RECVERR: c_int = 25;
pub(crate) const IPV6_V6ONLY: c_int = 26;
pub(crate) const IPV6_FLOWINFO_SEND: c_int = 33;
pub(crate) const IPV6_PKTINFO: c_int = 50;
pub(crate) const IPV6_HOPLIMIT: c_int = 52;
pub(crate) const IPV6_HOPOPTS: c_int = 54;
pub(crate) const IPV6_RTHDR: c_int = 57;
pub(crate) const IPV6_RTHDRDSTOPTS: c_int = 55;
pub(crate) const IPV6_DSTOPTS: c_int = 59;
pub(crate) const IPV6_TCLASS: c_int = 67;
pub(crate) const IPV6_UNICAST_IF: c_int = 76;

pub(crate) const UDP_CORK: c_int = 1;
pub(crate) const UDP_NO_CHECK6_TX: c_int = 101;
pub(crate) const UDP_SEGMENT: c_int = 103;

pub(crate) const PACKET_TX_RING: c_int = 13;
pub(crate) const PACKET_LOSS: c_int = 14;
pub(crate) const PACKET_VNET_HDR: c_int = 15;
pub(crate) const PACKET_TX_TIMESTAMP: c_int = 16;
pub(crate) const PACKET_QDISC_BYPASS: c_int = 20;

pub(crate) const AF_INET: u16 = 2;
pub(crate) const AF_INET6: u16 = 10;
pub(crate) const AF_PACKET: u16 = 17;
pub(crate) const SOCK_DGRAM: c_int = 2;
pub(crate) const SOCK_RAW: c_int = 3;
pub(crate) const IPPROTO_UDP: c_int = 17;

pub(crate) const CLOCK_MONOTONIC: c_int = 1;
pub(crate) const CLOCK_TAI: c_int = 11;

pub(crate) const MSG_CTRUNC: c_int = 0x8;
pub(crate) const MSG_PROBE: c_int = 0x10;
pub(crate) const MSG_TRUNC: c_int = 0x20;
pub(crate) const MSG_DONTWAIT: c_int = 0x40;
pub(crate) const MSG_CONFIRM: c_int = 0x800;
pub(crate) const MSG_MORE: c_int = 0x8000;
pub(crate) const MSG_ERRQUEUE: c_int = 0x2000;
pub(crate) const MSG_NOSIGNAL: c_int = 0x4000;
pub(crate) const MSG_CMSG_CLOEXEC: c_int = 0x4000_0000;

pub(crate) const F_DUPFD: c_int = 0;
pub(crate) const F_DUPFD_CLOEXEC: c_int = 1030;
pub(crate) const CLOSE_RANGE_CLOEXEC: u32 = 4;

pub(crate) const EPERM: c_int = 1;
pub(crate) const EINTR: c_int = 4;
pub(crate) const ENOMEM: c_int = 12;
pub(crate) const EFAULT: c_int = 14;
pub(crate) const EINVAL: c_int = 22;
pub(crate) const EBADF: c_int = 9;
pub(crate) const EAGAIN: c_int = 11;
pub(crate) const EMFILE: c_int = 24;
pub(crate) const ERANGE: c_int = 34;
pub(crate) const EOPNOTSUPP: c_int = 95;
pub(crate) const ENOSYS: c_int = 38;
pub(crate) const EPIPE: c_int = 32;
pub(crate) const EPROTO: c_int = 71;
pub(crate) const ENOMSG: c_int = 42;
pub(crate) const ENETDOWN: c_int = 100;
pub(crate) const ECONNRESET: c_int = 104;
pub(crate) const ENOBUFS: c_int = 105;
pub(crate) const ENOTCONN: c_int = 107;
pub(crate) const ECANCELED: c_int = 125;

/// The most segments that one send may have (UIO_MAXIOV).
pub(crate) const SEGMENTS_MAX: usize = 1024;
/// The longest UDP datagram over IPv4; longer ones are the kernel's to refuse.
pub(crate) const DATAGRAM_MAX: usize = 65_507;
/// The longest control data that is looked at; more goes to the kernel as it is.
pub(crate) const CONTROL_MAX: usize = 1024;
/// `sizeof(struct sockaddr_storage)`: the kernel reads no more of a name.
pub(crate) const NAME_MAX: usize = 128;

/// `struct iovec`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Segment {
    pub(crate) base: *const c_void,
    pub(crate) octets: usize,
}

/// `struct msghdr` as the kernel sees it. In musl's two lengths the upper halves are padding of unknown content.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct MessageHeader {
    pub(crate) name: *const c_void,
    pub(crate) name_octets: u32,
    pub(crate) segments: *const Segment,
    pub(crate) segments_count: usize,
    pub(crate) control: *const c_void,
    pub(crate) control_octets: usize,
    pub(crate) flags: c_int,
}

/// `struct mmsghdr`.
#[repr(C)]
pub struct MultipleHeader {
    pub(crate) header: MessageHeader,
    pub(crate) octets: u32,
}

/// `struct sock_txtime`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct SockTxtime {
    pub(crate) clock: c_int,
    pub(crate) flags: u32,
}
