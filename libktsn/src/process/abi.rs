// SPDX-License-Identifier: Apache-2.0
//! The numbers and shapes of the Linux socket interface that the hooks meet.
//!
//! Out: constants and `#[repr(C)]` structs, the same on every 64-bit little-endian architecture that is supported
//! (x86-64, AArch64); those that the kernel's headers export come from `linux-raw-sys`. No code, no decision.

use core::ffi::{c_int, c_void};

use ktsn_time::Span;

/// Descriptor numbers that the library's tables know.
pub(crate) const FDS_COUNT: usize = 65_536;

/// The kernel's names as plain numbers of one type.
macro_rules! numbers {
    ($kind:ty, $header:ident: $($name:ident)+) => {
        $(pub(crate) const $name: $kind = linux_raw_sys::$header::$name as $kind;)+
    };
}

numbers! { c_int, net:
    SOL_IP SOL_SOCKET SOL_UDP SOL_PACKET SOL_IPV6
    SO_TYPE SO_DONTROUTE SO_BROADCAST SO_SNDBUF SO_NO_CHECK SO_PRIORITY SO_SNDTIMEO SO_RCVTIMEO SO_BINDTODEVICE SO_MARK
    SO_NOFCS SO_TIMESTAMPING SO_PROTOCOL SO_DOMAIN SO_COOKIE SO_ERROR SO_TXTIME SO_BINDTOIFINDEX SCM_TS_OPT_ID
    IP_TOS IP_TTL IP_OPTIONS IP_PKTINFO IP_RECVERR IP_MULTICAST_IF IP_MULTICAST_TTL IP_UNICAST_IF
    IP_LOCAL_PORT_RANGE IP_MTU IP_MTU_DISCOVER IP_IPSEC_POLICY IP_XFRM_POLICY
    IP_PMTUDISC_DONT IP_PMTUDISC_WANT IP_PMTUDISC_DO IP_PMTUDISC_PROBE IP_PMTUDISC_INTERFACE IP_PMTUDISC_OMIT
    IPV6_UNICAST_HOPS IPV6_MULTICAST_IF IPV6_MULTICAST_HOPS IPV6_RECVERR IPV6_V6ONLY IPV6_FLOWINFO_SEND
    IPV6_PKTINFO IPV6_HOPLIMIT IPV6_HOPOPTS IPV6_RTHDRDSTOPTS IPV6_RTHDR IPV6_DSTOPTS IPV6_TCLASS
    IPV6_UNICAST_IF IPV6_ADDRFORM IPV6_DONTFRAG IPV6_MTU IPV6_MTU_DISCOVER IPV6_IPSEC_POLICY IPV6_XFRM_POLICY IPV6_AUTOFLOWLABEL IPV6_ADDR_PREFERENCES
    IPV6_PREFER_SRC_TMP IPV6_PREFER_SRC_PUBLIC IPV6_PREFER_SRC_COA
    SOCK_DGRAM SOCK_RAW
    MSG_CTRUNC MSG_DONTROUTE MSG_PROBE MSG_TRUNC MSG_DONTWAIT MSG_CONFIRM MSG_ERRQUEUE MSG_NOSIGNAL MSG_MORE MSG_CMSG_CLOEXEC MSG_OOB
    MSG_WAITALL
}
numbers! { u16, net: AF_INET AF_INET6 AF_PACKET }
numbers! { c_int, if_packet:
    PACKET_TX_RING PACKET_LOSS PACKET_VNET_HDR PACKET_TX_TIMESTAMP PACKET_QDISC_BYPASS
}
numbers! { c_int, general: CLOCK_MONOTONIC CLOCK_TAI F_DUPFD F_DUPFD_CLOEXEC F_SETFL EPOLL_CTL_DEL }
numbers! { c_int, errno:
    EPERM EINTR EBADF EAGAIN ENOMEM EFAULT EINVAL EMFILE EPIPE ERANGE ENOSYS ENOMSG EPROTO EOPNOTSUPP ENETDOWN
    ECONNRESET ETOOMANYREFS ENOBUFS ENOTSOCK ENOTCONN ECANCELED
}

/// The level of this library's own socket options, "KTSN" in ASCII. The kernel has none there, and no socket of it answers anything but
/// ENOPROTOOPT (or, without any options, EOPNOTSUPP).
pub(crate) const SOL_KTSN: c_int = 0x4b54_534e;
/// The period of a socket's arrivals.
pub(crate) const KTSN_RECEIVE_PERIOD: c_int = 1;
pub(crate) const MSG_WAITFORONE: c_int = 0x10000;
pub(crate) const POLLIN: i16 = 0x1;
pub(crate) const POLLRDNORM: i16 = 0x40;
pub(crate) const POLLRDHUP: i16 = 0x2000;
pub(crate) const EPOLLIN: u32 = 0x1;
pub(crate) const EPOLLRDNORM: u32 = 0x40;
pub(crate) const FIONBIO: u32 = 0x5421;
pub(crate) const IPPROTO_UDP: c_int = 17;
pub(crate) const UDP_CORK: c_int = 1;
pub(crate) const UDP_NO_CHECK6_TX: c_int = 101;
pub(crate) const UDP_SEGMENT: c_int = 103;
pub(crate) const CLOSE_RANGE_CLOEXEC: u32 = 4;

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
pub struct Segment {
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

/// `struct pollfd`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct PollFd {
    pub(crate) fd: c_int,
    pub(crate) events: i16,
    pub(crate) revents: i16,
}

/// `struct epoll_event`: packed on x86-64 alone.
#[derive(Clone, Copy)]
#[cfg_attr(target_arch = "x86_64", repr(C, packed))]
#[cfg_attr(not(target_arch = "x86_64"), repr(C))]
pub struct EpollEvent {
    pub(crate) events: u32,
    pub(crate) data: u64,
}

/// `struct timespec`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct TimeSpec {
    pub(crate) seconds: i64,
    pub(crate) nanos: i64,
}

/// `struct timeval`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct TimeValue {
    pub(crate) seconds: i64,
    pub(crate) micros: i64,
}

const SECOND: u64 = 1_000_000_000;

impl TimeSpec {
    /// A span in this form.
    pub(crate) const fn of(span: Span) -> Self {
        let nanos = span.as_nanos();
        Self { seconds: (nanos / SECOND).cast_signed(), nanos: (nanos % SECOND).cast_signed() }
    }

    /// The span in this form; `None` where the kernel refuses it.
    pub(crate) fn span(self) -> Option<Span> {
        let seconds = u64::try_from(self.seconds).ok()?;
        let nanos = u64::try_from(self.nanos).ok().filter(|nanos| *nanos < SECOND)?;
        Some(Span::from_nanos(seconds.saturating_mul(SECOND).saturating_add(nanos)))
    }
}

impl TimeValue {
    /// The span in this form; `None` where it is no usual one.
    pub(crate) fn span(self) -> Option<Span> {
        const MICROS: i64 = 1_000_000;
        let nanos = if self.micros < MICROS { self.micros.wrapping_mul(1_000) } else { -1 };
        TimeSpec { seconds: self.seconds, nanos }.span()
    }

    /// A span in this form.
    pub(crate) const fn of(span: Span) -> Self {
        let nanos = span.as_nanos();
        Self { seconds: (nanos / SECOND).cast_signed(), micros: (nanos % SECOND / 1_000).cast_signed() }
    }
}
