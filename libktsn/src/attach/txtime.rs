// SPDX-License-Identifier: Apache-2.0
//! SO_TXTIME: which sockets become streams, and what the program gets as an answer.
//!
//! In: a `setsockopt`, with the kernel's own answer to it. Out: the answer for the program. The kernel's error
//! stands, with one exception: while attached, an unprivileged program gets CLOCK_TAI if the daemon grants it.

use core::ffi::c_int;
use core::hint::cold_path;

use ktsn_ring::{ClockId, StreamCode, stream_flags};

use crate::attach::handshake;
use crate::attach::register::{attach_and_register, reserve_and_show_port};
use crate::call::message::Message;
use crate::call::options::{self, Change};
use crate::process::abi::{
    AF_INET, AF_INET6, CLOCK_MONOTONIC, CLOCK_TAI, EPERM, IP_TTL, IPPROTO_UDP, IPV6_UNICAST_HOPS,
    MessageHeader, SO_DOMAIN, SO_PROTOCOL, SO_TXTIME, SO_TYPE, SOCK_DGRAM, SOL_IP, SOL_IPV6, SOL_SOCKET,
    SockTxtime,
};
use crate::process::region::RegionUse;
use crate::streams::fds::{self, Entry};
use crate::streams::{self, Stream};
use crate::{
    call::control_messages, process::env, process::page, process::sys, streams::packet,
    streams::wanted_interface,
};

/// The clocks that a schedule can serve.
pub(crate) const fn clock_id(clock: c_int) -> Option<ClockId> {
    match clock {
        CLOCK_MONOTONIC => Some(ClockId::Monotonic),
        CLOCK_TAI => Some(ClockId::Tai),
        _ => None,
    }
}

/// Whether a socket is UDP, over IPv4 (`Some(false)`) or IPv6 (`Some(true)`).
fn udp_family(fd: c_int) -> Option<bool> {
    let read = |name| sys::option_int(fd, SOL_SOCKET, name);
    let domain = u16::try_from(read(SO_DOMAIN)?).ok()?;
    if !matches!(domain, AF_INET | AF_INET6)
        || read(SO_TYPE)? != SOCK_DGRAM
        || read(SO_PROTOCOL)? != IPPROTO_UDP
    {
        return None;
    }
    Some(domain == AF_INET6)
}

/// The stream behind a descriptor; one that was never seen is asked once whether it is timed.
pub(crate) fn stream_or_adopt(fd: c_int) -> Option<Stream> {
    match fds::get(fd) {
        Entry::Stream(index) => streams::get(index),
        Entry::NotOurs => None,
        Entry::Unknown => {
            cold_path();
            adopt(fd)
        }
    }
}

/// Whether KTSN has a part in the kernel's answer to `setsockopt(SO_TXTIME)` (0 or an errno).
pub(crate) fn concerns_ktsn(asked: SockTxtime, answer: c_int) -> bool {
    answer == 0 || (answer == EPERM && asked.clock == CLOCK_TAI)
}

/// The stream of a descriptor, if it is this socket's and not that of an earlier one with the same number.
pub(crate) fn known(fd: c_int) -> Option<Stream> {
    match fds::get(fd) {
        Entry::Stream(index) => streams::get(index).filter(|stream| stream.is_of(fd)),
        _ => None,
    }
}

/// After an answer of the kernel to `setsockopt(SO_TXTIME)` that [concerns KTSN](concerns_ktsn): the program's answer (0 or an errno).
pub(crate) fn configured(fd: c_int, asked: SockTxtime, answer: c_int) -> c_int {
    let Some((stream, is_new)) =
        known(fd).map(|stream| (stream, false)).or_else(|| begin(fd).map(|new| (new, true)))
    else {
        return answer;
    };
    let before = stream.txtime();
    let was_kernel_timed = stream.is_kernel_timed();
    if answer == 0 {
        stream.know_txtime(asked);
    } else {
        stream.claim_txtime(asked);
    }
    // Another thread may be filling frames under the old token: that sender registers the change behind them.
    let is_senders = answer == 0 && !is_new && !stream.is_unused();
    let is_granted = !is_senders && clock_id(asked.clock).is_some() && connect(stream, fd, asked.clock);
    if is_granted {
        reserve_and_show_port(stream, fd);
    }
    if answer == 0 {
        if is_new {
            fds::set(fd, stream.index);
        }
        return 0;
    }
    if is_granted {
        if is_new {
            fds::set(fd, stream.index);
        }
        return 0;
    }
    if is_new {
        streams::release(stream.index);
    } else {
        stream.set_txtime(before, was_kernel_timed);
    }
    answer
}

/// A socket that was timed before this library saw it (inherited, received, opened early).
fn adopt(fd: c_int) -> Option<Stream> {
    let txtime = read_txtime(fd).unwrap_or_default();
    // A socket without SO_TXTIME answers clock 0.
    if clock_id(txtime.clock).is_none() {
        fds::set_not_ours(fd);
        return None;
    }
    let Some(stream) = begin(fd) else {
        fds::set_not_ours(fd);
        return None;
    };
    stream.set_txtime(txtime, true);
    connect(stream, fd, txtime.clock);
    fds::set(fd, stream.index);
    Some(stream)
}

/// A socket on which this process did not set SO_TXTIME: the stream, if the daemon granted it to the socket in
/// another process (before exec, or before the socket was passed on). Asked once for each descriptor.
fn recall(fd: c_int) -> Option<Stream> {
    if fds::was_asked(fd) || read_txtime(fd).is_none_or(|txtime| clock_id(txtime.clock).is_some()) {
        return None;
    }
    let stream = begin(fd)?;
    stream.ask_txtime();
    match attach_and_register(stream, fd).and_then(|status| stream_flags::recalled(status.flags)) {
        Some(flags) => {
            stream.claim_txtime(SockTxtime { clock: CLOCK_TAI, flags: u32::from(flags) });
            fds::set(fd, stream.index);
            Some(stream)
        }
        None => {
            streams::release(stream.index);
            if page::get().and_then(RegionUse::current).is_some() {
                fds::set_asked(fd); // a daemon that is not there has not answered
            }
            None
        }
    }
}

/// After the kernel's EINVAL: whether the datagram has a transmit time and the daemon granted SO_TXTIME to its socket
/// in another process. Then it is a stream now, and the call is to be made again.
///
/// # Safety
/// `header` is what the program passed, and the kernel has just read it.
pub(crate) unsafe fn is_recalled(fd: c_int, header: *const MessageHeader) -> bool {
    if fds::was_asked(fd) || stream_or_adopt(fd).is_some() {
        return false;
    }
    env::make_ready();
    let is_musl = env::is_musl();
    // SAFETY: the caller's promise.
    let Some(message) = (unsafe { Message::read_cold(header, is_musl) }) else { return false };
    control_messages::parse_cold(message.control, is_musl).is_some_and(|control| control.tx_time.is_some())
        && recall(fd).is_some()
}

/// SO_TXTIME as the kernel knows it: clock 0 when it was never set; `None` when this is no socket.
fn read_txtime(fd: c_int) -> Option<SockTxtime> {
    let mut octets = [0; 8];
    let read = sys::option_octets(fd, SOL_SOCKET, SO_TXTIME, &mut octets);
    (read == Ok(8)).then(|| from_octets(octets))
}

/// A new stream for a UDP or packet socket; the caller owns its one reference.
fn begin(fd: c_int) -> Option<Stream> {
    env::make_ready();
    let (is_v6, shape) = match udp_family(fd) {
        Some(is_v6) => (is_v6, None),
        None => (false, Some(packet::shape(fd)?)),
    };
    if usize::try_from(fd).ok()? >= crate::process::abi::FDS_COUNT || !page::make()?.may_change() {
        return None;
    }
    let stream = streams::create(is_v6, sys::cookie(fd)?)?;
    if let Some(shape) = shape {
        stream.set_packet(shape);
    }
    stream.read_addresses(fd);
    // A hop limit that the program set before.
    for (is_v4, option) in [(true, (SOL_IP, IP_TTL)), (false, (SOL_IPV6, IPV6_UNICAST_HOPS))] {
        if shape.is_none() && (is_v4 || is_v6) && options::is_usual(fd, is_v6, option) == Some(false) {
            stream.set_hop_limit(is_v4, true);
        }
    }
    stream.read_options(fd);
    if shape.is_none() {
        stream.set_groups(true, wanted_interface::groups_v4(fd));
    }
    Some(stream)
}

/// Attaches if need be and registers; whether the daemon serves this stream in this clock.
fn connect(stream: Stream, fd: c_int, clock: c_int) -> bool {
    let Some(status) = attach_and_register(stream, fd) else {
        if !handshake::was_attached() {
            handshake::warn();
        }
        return false;
    };
    clock != CLOCK_TAI || status.flags & stream_flags::TAI_GRANTED != 0
}

/// What `getsockopt(SO_TXTIME)` answers where the kernel's socket has never heard of it.
pub(crate) fn granted(fd: c_int) -> Option<[u8; 8]> {
    let stream = match fds::get(fd) {
        Entry::Stream(index) => streams::get(index)?,
        Entry::NotOurs | Entry::Unknown => recall(fd)?,
    };
    let said = |held: RegionUse| {
        let status = held.producer().stream(stream.index)?;
        (status.code == StreamCode::Registered).then(|| stream.is_revoked(&status))
    };
    // Where one attachment grants it and another does not, it is granted.
    let is_revoked =
        page::get().and_then(|page| RegionUse::all(page).filter_map(said).min()).unwrap_or(false);
    if stream.is_kernel_timed() || is_revoked {
        return None;
    }
    let txtime = stream.txtime();
    let [a, b, c, d] = txtime.clock.to_ne_bytes();
    let [e, f, g, h] = txtime.flags.to_ne_bytes();
    Some([a, b, c, d, e, f, g, h])
}

/// `struct sock_txtime` from its octets.
pub(crate) const fn from_octets(octets: [u8; 8]) -> SockTxtime {
    let [a, b, c, d, e, f, g, h] = octets;
    SockTxtime { clock: i32::from_ne_bytes([a, b, c, d]), flags: u32::from_ne_bytes([e, f, g, h]) }
}

/// The kernel accepted another option, of this value.
pub(crate) fn option_changed(fd: c_int, level: c_int, name: c_int, value: &[u8]) {
    let Entry::Stream(index) = fds::get(fd) else { return };
    let Some(stream) = streams::get(index) else { return };
    match options::change(level, name) {
        Change::Priority => stream.set_options(options::with_priority(stream.options(), fd)),
        Change::Options => stream.read_options(fd),
        Change::Registration => {
            stream.read_options(fd);
            stream.addresses_changed(fd);
            stream.announce(fd);
        }
        Change::Pinned => stream.pin(),
        Change::FlowLabels if options::has_usual_flow_labels(fd) => stream.read_options(fd),
        Change::FlowLabels => stream.pin(),
        Change::HopLimit => {
            // −1 is the default. The kernel also takes one octet, never −1.
            stream.set_hop_limit(level == SOL_IP, value.get(..4) != Some(&[0xff; 4]));
            stream.read_options(fd);
        }
        Change::GroupsV4 => stream.set_groups(true, wanted_interface::groups_of(value)),
    }
}

/// The kernel accepted a bind or connect.
pub(crate) fn addresses_changed(fd: c_int) {
    let Entry::Stream(index) = fds::get(fd) else { return };
    if let Some(stream) = streams::get(index) {
        stream.addresses_changed(fd);
        stream.announce(fd);
    }
}
