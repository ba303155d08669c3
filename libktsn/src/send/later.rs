// SPDX-License-Identifier: Apache-2.0
//! A datagram with a transmit time that only the kernel can send: the kernel gets it at that time, never before.
//!
//! In: the call, and how the kernel gets it. Out: a [`Verdict`]. The daemon takes the datagram in one message with the socket
//! ([`ktsn_ring::control::Later`]) and hands it to the kernel in time. What cannot travel so waits here, in the call. What the kernel
//! refuses at the call is refused at the call. A process that was never attached has the kernel alone, and no wait. Nothing is allocated
//! or copied but control data, and nothing is held while this waits: a signal handler may send.
//!
//! The wait lasts until the transmit time, on a non-blocking socket too, and without a daemon: the kernel would send such a datagram at
//! once, before its time. One that is further ahead than the daemon's horizon ([`AHEAD_MAX`] without a daemon) fails with EINVAL instead.

use core::ffi::c_int;

use ktsn_ring::SlotFlags;
use ktsn_ring::control::{LATER_CLOCKS, LATER_FLAGS, LATER_PAYLOAD_MAX, LaterHeader};

use crate::attach::{handshake, register};
use crate::call::control_messages::{self, Changed, Parsed};
use crate::call::message::Message;
use crate::process::abi::{
    self, DATAGRAM_MAX as DATAGRAM_V4_MAX, EAGAIN, EFAULT, EINVAL, ENOBUFS, ENOMEM, ETOOMANYREFS, MSG_OOB,
    MessageHeader, SOL_IP, SOL_IPV6, SOL_SOCKET, SOL_UDP, Segment,
};
use crate::process::page::PLACES_COUNT;
use crate::process::region::RegionUse;
use crate::send::batch::{Batch, Full, Wait};
use crate::send::verdict::{SendCall, Verdict};
use crate::streams::Stream;
use crate::{process::env, process::kernel, process::page, process::sys, streams::packet, streams::stamps};

/// Pieces of a message to the daemon: header, address, control data, and those of the payload.
const PIECES_MAX: usize = 60;
/// The longest UDP datagram over IPv6.
const DATAGRAM_V6_MAX: usize = 65_527;
/// SOF_TXTIME_DEADLINE_MODE: the transmit time is the last instant.
const DEADLINE_MODE: u32 = 1;
/// An Ethernet header without tag.
const HEADER_OCTETS: usize = 14;
/// How often, and at which distance in nanoseconds, a non-blocking send looks whether the daemon has read what came before: 20 ms, as for
/// a registration.
const ATTEMPTS: u32 = 100;
const ATTEMPT_NAP: u32 = 200_000;
/// The furthest ahead that a call waits where no daemon says how far it may: as far as any attachment may allow, nanoseconds.
const AHEAD_MAX: u64 = 3_600_000_000_000;

/// Why a datagram does not go to the daemon.
enum Stays {
    /// The kernel refuses it now.
    Refused,
    /// It fails with this errno.
    Fails(c_int),
    /// It cannot travel.
    Waits,
}

/// The kernel's call, and its key where the socket has keys.
fn counted(send: SendCall, verdict: Verdict) -> Verdict {
    match verdict {
        Verdict::Kernel if send.stream.reports().has_keys() => Verdict::KernelCounted { is_stripped: false },
        Verdict::KernelStripped if send.stream.reports().has_keys() => {
            Verdict::KernelCounted { is_stripped: true }
        }
        verdict => verdict,
    }
}

/// Passes a message that is the kernel's, by `verdict`, to the kernel at its transmit time: what becomes of the call.
///
/// # Safety
/// `header` is what the program passed.
#[cold]
#[inline(never)]
pub(crate) unsafe fn pass_to_kernel(
    send: SendCall,
    header: *const MessageHeader,
    batch: &mut Batch,
    verdict: Verdict,
) -> Verdict {
    let at_once = counted(send, verdict);
    if !handshake::was_attached() || (verdict == Verdict::Kernel && !send.stream.is_kernel_timed()) {
        return at_once;
    }
    let is_musl = env::is_musl();
    // SAFETY: the caller's promise.
    let Some(message) = (unsafe { Message::read_cold(header, is_musl) }) else {
        // SAFETY: as above.
        let control = unsafe { Message::control_alone(header, is_musl) };
        let at = control.and_then(|octets| control_messages::parse_cold(octets, is_musl)?.tx_time);
        return at.map_or(at_once, |at| wait(send, at, batch, at_once));
    };
    let Some(control) = control_messages::parse_cold(message.control, is_musl) else { return at_once };
    let Some(at) = control.tx_time else { return at_once };
    if message.is_for_kernel {
        // Too long for IPv4, and not for IPv6; else the kernel has the errno.
        let is_v6s = send.stream.is_v6() && (DATAGRAM_V4_MAX + 1..=DATAGRAM_V6_MAX).contains(&message.octets);
        return if is_v6s { wait(send, at, batch, at_once) } else { at_once };
    }
    if !is_ahead(send.stream, at) {
        return at_once;
    }
    batch.end();
    if batch.page().is_fresh() {
        let _ = register::attach_and_register(send.stream, send.fd);
    }
    match hand_over(send, &message, &control, at, batch) {
        Ok(()) => Verdict::Taken(message.octets),
        Err(Stays::Fails(errno)) => Verdict::Fail(errno),
        Err(Stays::Refused) => at_once,
        Err(Stays::Waits) => wait(send, at, batch, at_once),
    }
}

/// Whether the kernel would send too early.
fn is_ahead(stream: Stream, at: u64) -> bool {
    let txtime = stream.txtime();
    txtime.flags & DEADLINE_MODE == 0 && at > sys::clock_by_call(txtime.clock)
}

/// Waits until the datagram's transmit time, then `then`. Signals do not end the wait, and the daemon gets what the call has sent before.
pub(crate) fn wait(send: SendCall, at: u64, batch: &mut Batch, then: Verdict) -> Verdict {
    if !handshake::was_attached() || !is_ahead(send.stream, at) {
        return then;
    }
    batch.end();
    let horizon = daemon(batch).map(|(_, horizon)| horizon);
    if horizon == Some(0) {
        return then; // an older daemon
    }
    let clock = send.stream.txtime().clock;
    let horizon = horizon.map_or(AHEAD_MAX, |milliseconds| u64::from(milliseconds).saturating_mul(1_000_000));
    if at.saturating_sub(sys::clock_by_call(clock)) > horizon {
        return Verdict::Fail(EINVAL);
    }
    while is_ahead(send.stream, at) {
        if !sys::passing::sleep_until(clock, at) {
            break;
        }
    }
    then
}

/// A region of a daemon that takes datagrams, preferably the attachment's in use, and how far ahead, in milliseconds; 0: the daemon is an
/// older one and takes none. `None`: there is no daemon.
#[inline(never)]
fn daemon(batch: &Batch) -> Option<(RegionUse, u32)> {
    let (page, own) = (batch.page(), batch.place());
    let horizon = |place: &usize| {
        let held = RegionUse::at(page, *place)?;
        Some(held.producer().later_horizon())
    };
    let best = (0..PLACES_COUNT)
        .max_by_key(|place| (horizon(place).map(|horizon| horizon.min(1)), *place == own))?;
    let held = RegionUse::at(page, best)?;
    let horizon = held.producer().later_horizon();
    Some((held, horizon))
}

/// Gives the datagram to the daemon.
fn hand_over(
    send: SendCall,
    message: &Message<'_>,
    control: &Parsed,
    at: u64,
    batch: &Batch,
) -> Result<(), Stays> {
    let held = match daemon(batch) {
        Some((held, 1..)) => held,
        Some(_) => return Err(Stays::Refused),
        None => return Err(Stays::Waits),
    };
    let clock = send.stream.txtime().clock;
    let is_packet = send.stream.is_packet();
    let is_corked = || {
        let cork = sys::option_int(send.fd, SOL_UDP, abi::UDP_CORK);
        cork.is_some_and(|value| value != 0)
    };
    if !LATER_CLOCKS.contains(&clock.cast_unsigned())
        || message.octets > LATER_PAYLOAD_MAX
        || (!is_packet && is_corked())
    {
        return Err(Stays::Waits);
    }
    let is_musl = env::is_musl();
    let asked = Changed::copy(message.control, is_musl, true, None).ok_or(Stays::Waits)?;
    let peer = if is_packet || !message.name.is_empty() { None } else { sys::peer_name(send.fd) };
    let name = peer.as_ref().map_or(message.name, |peer| peer.octets.get(..peer.len).unwrap_or(&[]));
    if is_packet {
        refuse_frame(send, message, control)?;
    } else {
        refuse(send, message, control, name, &asked)?;
    }
    // The daemon may do less than this program.
    if (send.flags.cast_unsigned() & !LATER_FLAGS) != 0
        || control_messages::is_privileged(message.control, is_musl)
    {
        return Err(Stays::Waits);
    }
    let key = stamps::key(send.stream, control);
    let number = matches!(key, stamps::Key::Next).then(|| key.take(send.stream));
    let number = number.filter(|_| kernel::knows_key_messages());
    let keyed = match number {
        Some(number) => Changed::copy(message.control, is_musl, true, Some(number)),
        None => Some(asked),
    };
    let given = match &keyed {
        Some(keyed) => give(send, &held, (clock, at), name, keyed, message),
        None => Err(Stays::Waits),
    };
    if given.is_err() {
        key.give_back(send.stream);
    }
    given
}

/// What the kernel refuses at the call of a UDP socket, before the datagram would be made.
fn refuse(
    send: SendCall,
    message: &Message<'_>,
    control: &Parsed,
    name: &[u8],
    asked: &Changed,
) -> Result<(), Stays> {
    // Before the probe, which ends behind the route: an error that an earlier datagram met belongs to this call.
    let pending = sys::option_int(send.fd, SOL_SOCKET, abi::SO_ERROR).unwrap_or(0);
    let errno = if pending == 0 {
        let flags = send.flags & (MSG_OOB | abi::MSG_DONTROUTE);
        sys::passing::refusal(send.fd, message.name, asked.as_slice(), flags)
    } else {
        pending
    };
    if errno != 0 {
        return Err(Stays::Fails(errno));
    }
    let segment = usize::from(control.segment_octets.unwrap_or_else(|| send.stream.options().segment_octets));
    let is_v6 = name.first_chunk().is_some_and(|family| u16::from_ne_bytes(*family) == abi::AF_INET6)
        && name.get(8..20) != Some(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff]);
    if segment != 0 && message.octets.div_ceil(segment) > kernel::segments_max() {
        return Err(Stays::Refused);
    }
    if segment == 0 && !must_fit(send.fd, is_v6) {
        return Ok(());
    }
    let octets = if segment == 0 { message.octets } else { segment.min(message.octets) };
    let headers = if is_v6 { 48 } else { 28 };
    let mtu = if send.stream.is_connected() && message.name.is_empty() {
        sys::passing::connected_mtu(send.fd)
    } else {
        sys::passing::path_mtu(send.fd, name)
    };
    match mtu {
        None => Err(Stays::Waits),
        Some(mtu) if octets.saturating_add(headers) > mtu => Err(Stays::Refused),
        Some(_) => Ok(()),
    }
}

/// What the kernel refuses at the call of a packet socket. The kernel cannot be asked, so only frames that KTSN understands travel.
fn refuse_frame(send: SendCall, message: &Message<'_>, control: &Parsed) -> Result<(), Stays> {
    const TAG_OCTETS: usize = 4;
    let frame = packet::frame(send.stream, send.fd, message, control).ok_or(Stays::Waits)?;
    let header = if frame.flags.contains(SlotFlags::LINK_PAYLOAD) { 0 } else { HEADER_OCTETS };
    let mtu = sys::passing::interface_mtu(send.fd, frame.scope).ok_or(Stays::Waits)?;
    let over = message.octets.saturating_sub(mtu.saturating_add(header));
    match over {
        0 if message.octets >= header => Ok(()),
        // A tag may take more.
        0..=TAG_OCTETS => Err(Stays::Waits),
        _ => Err(Stays::Refused),
    }
}

/// Whether the kernel refuses a datagram over the MTU: IP_MTU_DISCOVER, IPV6_MTU_DISCOVER, IPV6_DONTFRAG.
fn must_fit(fd: c_int, is_v6: bool) -> bool {
    let (level, name) =
        if is_v6 { (SOL_IPV6, abi::IPV6_MTU_DISCOVER) } else { (SOL_IP, abi::IP_MTU_DISCOVER) };
    let is_on = |option: Option<c_int>| option.is_some_and(|value| value != 0);
    matches!(
        sys::option_int(fd, level, name),
        Some(abi::IP_PMTUDISC_DO | abi::IP_PMTUDISC_PROBE | abi::IP_PMTUDISC_INTERFACE)
    ) || (is_v6 && is_on(sys::option_int(fd, SOL_IPV6, abi::IPV6_DONTFRAG)))
}

/// Sends the message to the daemon, with patience where its queue is full.
fn give(
    send: SendCall,
    held: &RegionUse,
    (clock, tx_time): (c_int, u64),
    name: &[u8],
    control: &Changed,
    message: &Message<'_>,
) -> Result<(), Stays> {
    let control = control.as_slice();
    let header = LaterHeader {
        clock: clock.cast_unsigned(),
        tx_time,
        flags: send.flags.cast_unsigned(),
        name_octets: name.len() as u32,
        control_octets: control.len() as u32,
        payload_octets: message.octets as u32,
    }
    .encode();
    let mut pieces = [Segment { base: core::ptr::null(), octets: 0 }; PIECES_MAX];
    let own = [
        (header.as_ptr().cast::<u8>(), size_of_val(&header)),
        (name.as_ptr(), name.len()),
        (control.as_ptr(), control.len()),
    ];
    let mut payload = message.pieces();
    payload.begin(message.octets);
    let mut count = 0usize;
    for (base, octets) in own.into_iter().chain(payload) {
        let Some(piece) = pieces.get_mut(count) else { return Err(Stays::Waits) };
        *piece = Segment { base: base.cast(), octets };
        count = count.wrapping_add(1);
    }
    let pieces = pieces.get(..count).unwrap_or(&[]);
    let (mut waiting, mut attempts): (Option<Wait>, u32) = (None, 0);
    loop {
        let Some(connection) = held.region().control.get() else { return Err(Stays::Waits) };
        // SAFETY: our own pieces, and those of the payload, which the program gave to be sent.
        let sent = unsafe { sys::passing::send_pieces(connection, pieces, send.fd) };
        match sent {
            Ok(()) => return Ok(()),
            Err(EFAULT) => return Err(Stays::Fails(EFAULT)),
            // Also: the user has too many descriptors under way.
            Err(EAGAIN | ENOBUFS | ENOMEM | ETOOMANYREFS) => {}
            // Longer than the connection takes, or the daemon is gone.
            Err(_) => return Err(Stays::Waits),
        }
        if waiting.is_none() {
            waiting = Wait::begin(send.fd, send.flags).ok();
        }
        match &mut waiting {
            Some(wait) => match page::get().map(|page| wait.nap(page, held)) {
                Some(Ok(())) => {}
                Some(Err(Full::Fail(errno))) => return Err(Stays::Fails(errno)),
                _ => return Err(Stays::Waits),
            },
            None if attempts < ATTEMPTS => {
                attempts = attempts.wrapping_add(1);
                sys::nap(ATTEMPT_NAP);
            }
            None => return Err(Stays::Fails(EAGAIN)),
        }
    }
}

const _: () = assert!(LATER_PAYLOAD_MAX >= DATAGRAM_V6_MAX);
