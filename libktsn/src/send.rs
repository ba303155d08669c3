// SPDX-License-Identifier: Apache-2.0
//! The send core: one datagram of a timed socket, from the program's call to a published slot.
//!
//! In: a descriptor and a `struct msghdr`. Out: a [`Verdict`]. On any doubt it is the kernel's, with a reason that
//! is counted. It never allocates, locks, logs or touches `errno`, and it may be interrupted anywhere by a signal
//! handler that sends: a claimed slot belongs to one call, everything else is single atomic operations. It waits in
//! two places only: for the answer to a registration that the program made necessary (20 ms), and for a free slot
//! on a blocking socket of a daemon that lives.

use core::ffi::c_int;

use ktsn_model::BypassReason;
use ktsn_ring::{
    Claim, ClockId, DestinationVerdict, Frame, RegionState, SlotFlags, StreamCode, StreamStatus, counter,
    stream_flags,
};

use crate::abi::{EAGAIN, EINTR, ENETDOWN, MSG_CONFIRM, MSG_DONTWAIT, MSG_NOSIGNAL, MessageHeader};
use crate::control_messages::{self, Parsed};
use crate::destination::{self, Address, Destination};
use crate::fds::{self, Entry};
use crate::message::Message;
use crate::page::{self, Page};
use crate::region::Use;
use crate::streams::{self, Registration, Stream};
use crate::verdict::Verdict;
use crate::{attach, clock, env, originals, sys, txtime};

/// Flags that change nothing for a datagram that leaves later.
const FLAGS: c_int = MSG_DONTWAIT | MSG_NOSIGNAL | MSG_CONFIRM;
/// Between two looks for a free slot, ns.
const SLOT_NAP: u32 = 200_000;
/// How often a destination table that is being written is read again, and the pause, ns.
const TABLE_ATTEMPTS: u32 = 20;
const TABLE_NAP: u32 = 50_000;
/// How often a thread that lost the race for the socket's port looks for the winner's word, and the pause, ns.
const BIND_ATTEMPTS: u32 = 20;
const BIND_NAP: u32 = 50_000;

/// The stream behind a descriptor; one that was never seen is asked once whether it is timed.
pub(crate) fn stream_of(fd: c_int) -> Option<Stream> {
    match fds::get(fd) {
        Entry::Stream(index) => streams::get(index),
        Entry::NotOurs => None,
        Entry::Unknown => txtime::adopt(fd),
    }
}

/// One `sendmsg`.
///
/// # Safety
/// `header` is what the program passed.
pub(crate) unsafe fn sendmsg(fd: c_int, header: *const MessageHeader, flags: c_int) -> Verdict {
    let Some(stream) = stream_of(fd) else { return Verdict::Kernel };
    originals::test_cancel();
    let is_musl = env::is_musl();
    // SAFETY: the caller's promise.
    let Some(message) = (unsafe { Message::read(header, is_musl) }) else { return Verdict::Kernel };
    let Some(control) = control_messages::parse(message.control, is_musl) else { return Verdict::Kernel };
    let send = Send { stream, fd, flags };
    match control.tx_time {
        Some(at) => send.at(&message, &control, at),
        None => send.untimed(&message, &control).unwrap_or_else(|| {
            count(BypassReason::NoTxtime);
            Verdict::Kernel
        }),
    }
}

/// After the kernel's EINVAL: whether the datagram has a transmit time and the daemon granted SO_TXTIME to its socket
/// in another process. Then it is a stream now, and the call is to be made again.
///
/// # Safety
/// As [`sendmsg`]; the kernel has just read the header.
pub(crate) unsafe fn is_recalled(fd: c_int, header: *const MessageHeader) -> bool {
    if fds::was_asked(fd) || stream_of(fd).is_some() {
        return false;
    }
    env::make_ready();
    let is_musl = env::is_musl();
    // SAFETY: the caller's promise.
    let Some(message) = (unsafe { Message::read(header, is_musl) }) else { return false };
    control_messages::parse(message.control, is_musl).is_some_and(|control| control.tx_time.is_some())
        && txtime::recall(fd).is_some()
}

/// Counts a datagram that goes to the kernel, where there is a region to count in.
fn count(reason: BypassReason) {
    if let Some(held) = page::get().and_then(Use::current) {
        held.producer().count(usize::from(reason.number()));
    }
}

/// Leaves a timed datagram to the kernel.
fn leave(stream: Stream, reason: BypassReason) -> Verdict {
    count(reason);
    if stream.is_kernel_timed() { Verdict::Kernel } else { Verdict::KernelStripped }
}

/// One timed datagram on its way.
#[derive(Clone, Copy)]
struct Send {
    stream: Stream,
    fd: c_int,
    flags: c_int,
}

impl Send {
    fn at(self, message: &Message<'_>, control: &Parsed, tx_time: u64) -> Verdict {
        let Some(clock) = txtime::clock_id(self.stream.txtime().clock) else {
            return leave(self.stream, BypassReason::UnsupportedOption);
        };
        let stream = self.stream;
        let to = match destination::parse(message.name, stream.is_v6(), stream.is_v6_only()) {
            Destination::To(address) => Some(address),
            Destination::Peer if stream.is_connected() => None,
            Destination::Peer | Destination::Kernel => return leave(stream, BypassReason::UnsupportedOption),
        };
        if self.flags & !FLAGS != 0 {
            return leave(stream, BypassReason::UnsupportedOption);
        }
        let Some(mut frame) = self.frame(to, control) else {
            return leave(stream, BypassReason::UnsupportedOption);
        };
        frame.clock = clock.id();
        frame.tx_time = tx_time;
        let Some(page) = page::get() else { return leave(stream, BypassReason::NotAttached) };
        if page.is_fresh() && attach::was_attached() {
            // A fork's child: attach and register for ourselves, once with the patience of the first attachment.
            let _ = txtime::register(self.stream, self.fd);
        }
        let Some(held) = self.region(page) else { return self.without_region(message.octets) };
        self.into_region(page, &held, message, clock, frame)
    }

    /// A datagram without transmit time, where the attachment takes such ones: in the ring it has the TxTime 0 on
    /// MONOTONIC, and it may leave at once. `None` where it is the kernel's, also while the daemon is away: it is
    /// part of no schedule.
    fn untimed(self, message: &Message<'_>, control: &Parsed) -> Option<Verdict> {
        let page = page::get()?;
        let held = Use::current(page).filter(|held| held.producer().state() == RegionState::Attached)?;
        let to = match destination::parse(message.name, self.stream.is_v6(), self.stream.is_v6_only()) {
            Destination::To(address) => Some(address),
            Destination::Peer if self.stream.is_connected() => None,
            Destination::Peer | Destination::Kernel => return None,
        };
        let mut frame = self.frame(to, control).filter(|_| self.flags & !FLAGS == 0)?;
        let Registration::Known(status) = self.stream.registration(&held, self.fd) else { return None };
        if status.code != StreamCode::Registered || !stream_flags::takes_untimed(status.flags, frame.priority)
        {
            return None;
        }
        frame.clock = ClockId::Monotonic.id();
        frame.tx_time = 0;
        Some(self.into_region(page, &held, message, ClockId::Monotonic, frame))
    }

    /// The frame as the socket's options and the control messages make it; `None` when only the kernel can send it.
    fn frame(self, to: Option<Address>, control: &Parsed) -> Option<Frame> {
        let stream = self.stream;
        let options = stream.options();
        let (is_group, is_v4) = to.map_or_else(|| stream.peer(), |to| (to.is_multicast(), to.is_v4()));
        let is_v4 = is_v4 || !stream.is_v6();
        if options.is_unsupported
            || (is_group && options.is_multicast_unsupported)
            || stream.is_pinned(is_group)
            || stream.is_bound_elsewhere(is_v4)
            || (to.is_some_and(|to| to.is_broadcast()) && !options.has_broadcast)
            || (control.is_any && is_kernels(control, is_v4))
        {
            return None;
        }
        let hop_limit = match (is_v4, is_group) {
            (true, false) => control.ttl.unwrap_or(options.ttl),
            (true, true) => control.ttl.unwrap_or(options.multicast_ttl),
            (false, false) => control.hop_limit.flatten().unwrap_or(options.hops),
            (false, true) => control.hop_limit.flatten().unwrap_or(options.multicast_hops),
        };
        let (priority, traffic_class) = if is_v4 {
            (control.priority_v4, control.tos.unwrap_or(options.tos))
        } else {
            (control.priority, control.traffic_class.flatten().unwrap_or(options.traffic_class))
        };
        let flags = SlotFlags::TRAFFIC_CLASS.with(SlotFlags::HOP_LIMIT);
        let mut frame = Frame {
            stream_index: stream.index,
            flags: if to.is_none() { flags.with(SlotFlags::CONNECTED) } else { flags },
            priority: priority.unwrap_or(options.priority),
            traffic_class,
            hop_limit,
            ..Frame::default()
        };
        if let Some(to) = to {
            (frame.address, frame.scope, frame.port) = (to.address, to.scope, to.port);
        }
        // A hop limit of 0 never leaves this node.
        (hop_limit != 0).then_some(frame)
    }

    /// The region in use; where there is none, one step is made towards it.
    fn region(self, page: &'static Page) -> Option<Use> {
        if let Some(held) = Use::current(page) {
            if held.producer().state() == RegionState::Attached {
                return Some(held);
            }
            held.give_up(page);
        }
        attach::advance(page, self.fd);
        Use::current(page)
    }

    /// No daemon: before the first attachment the kernel sends (or nobody, if the policy says so); after it, the
    /// datagram is lost as on a link without carrier, and counted.
    fn without_region(self, octets: usize) -> Verdict {
        if attach::was_attached() {
            attach::count_absent();
            return Verdict::Taken(octets);
        }
        self.not_attached()
    }

    fn not_attached(self) -> Verdict {
        if env::is_strict() { Verdict::Fail(ENETDOWN) } else { leave(self.stream, BypassReason::NotAttached) }
    }

    fn into_region(
        self,
        page: &'static Page,
        held: &Use,
        message: &Message<'_>,
        clock: ClockId,
        mut frame: Frame,
    ) -> Verdict {
        if !self.stream.is_bound() {
            self.bind();
        }
        if !self.stream.is_bound() {
            return leave(self.stream, BypassReason::UnsupportedOption); // the kernel finds the errno
        }
        let status = match self.stream.registration(held, self.fd) {
            Registration::Known(status) => status,
            Registration::NoRoom => return leave(self.stream, BypassReason::UnsupportedOption),
            Registration::Unknown => return absent(page, held, message.octets),
        };
        match status.code {
            // As if SO_TXTIME had never been set: the kernel has the errno.
            StreamCode::Registered if self.stream.is_revoked(&status) => {
                count(BypassReason::NotAllowed);
                return Verdict::Kernel;
            }
            StreamCode::Registered => {}
            StreamCode::NotAttached => return self.not_attached(),
            StreamCode::Refused => return leave(self.stream, BypassReason::NotAllowed),
            StreamCode::Unsupported | StreamCode::Pending => {
                return leave(self.stream, BypassReason::UnsupportedOption);
            }
        }
        let payload_max = match payload_max(held, &frame, &status) {
            Some(Ok(octets)) => octets.min(held.producer().payload_max()),
            Some(Err(reason)) => return leave(self.stream, reason),
            None => return absent(page, held, message.octets),
        };
        if message.octets > payload_max {
            return leave(self.stream, BypassReason::OverMtu);
        }
        frame.token = status.token;
        match self.claim(page, held) {
            Ok(claim) => self.push(page, held, message, clock, frame, claim),
            Err(Full::Fail(errno)) => Verdict::Fail(errno),
            Err(Full::Gone) => absent(page, held, message.octets),
        }
    }

    /// Gives the socket its port. Where another thread has just done so, that thread says that the registration is
    /// out of date: a second registration could cost its first frame.
    fn bind(self) {
        if !sys::bind_any(self.fd, self.stream.is_v6()) {
            for _ in 0..BIND_ATTEMPTS {
                if self.stream.is_bound() {
                    return;
                }
                sys::nap(BIND_NAP);
            }
            // Nobody says it: the kernel gave the port at an untimed send, or this is a signal handler above the
            // thread that was about to.
        }
        self.stream.addresses_changed(self.fd);
    }

    /// A free slot: at once, or after waiting as the kernel waits for room in a socket's buffer.
    fn claim(self, page: &'static Page, held: &Use) -> Result<Claim, Full> {
        let producer = held.producer();
        if let Some(claim) = producer.claim() {
            return Ok(claim);
        }
        if self.flags & MSG_DONTWAIT != 0 || sys::is_nonblocking(self.fd) {
            return Err(Full::Fail(EAGAIN));
        }
        let (timeout, start) = (sys::send_timeout(self.fd), clock::monotonic());
        loop {
            let now = clock::monotonic();
            if producer.state() != RegionState::Attached {
                return Err(Full::Gone);
            }
            // A daemon that has not looked for too long may be gone: the doorbell tells.
            if producer.needs_doorbell(ClockId::Monotonic, u64::MAX, now) && !ring(held) {
                held.give_up(page);
                return Err(Full::Gone);
            }
            if timeout != 0 && now.saturating_sub(start) >= timeout {
                return Err(Full::Fail(EAGAIN));
            }
            let is_whole = sys::nap(SLOT_NAP);
            if let Some(claim) = producer.claim() {
                return Ok(claim);
            }
            if !is_whole {
                return Err(Full::Fail(EINTR));
            }
        }
    }

    fn push(
        self,
        page: &'static Page,
        held: &Use,
        message: &Message<'_>,
        clock: ClockId,
        mut frame: Frame,
        claim: Claim,
    ) -> Verdict {
        let producer = held.producer();
        let now = clock::monotonic();
        frame.pushed_at = now;
        // SAFETY: the program's own segments, read as `sendmsg` would; none of them lies in the region, whose
        // address the program was never told.
        if unsafe { producer.fill_raw(&claim, &frame, message.pieces()) }.is_err() {
            producer.cancel(claim);
            return leave(self.stream, BypassReason::OverMtu);
        }
        producer.publish(claim);
        producer.count(counter::SENT);
        let is_unheard = producer.needs_doorbell(clock, frame.tx_time, now) && !ring(held);
        if is_unheard || producer.state() != RegionState::Attached {
            held.give_up(page);
            attach::count_absent();
        }
        Verdict::Taken(message.octets)
    }
}

/// Whether the control messages ask for something that only the kernel does, or may refuse.
fn is_kernels(control: &Parsed, is_v4: bool) -> bool {
    control.is_kernels(is_v4)
        || control.timestamping.is_some()
        || control.segment_octets.is_some_and(|octets| octets != 0)
        || (control.has_priority && !env::knows_priority_messages())
        || (control.is_privileged && !sys::may_prioritise())
}

/// Why there is no slot.
enum Full {
    Fail(c_int),
    Gone,
}

/// The daemon answers nothing, so this datagram cannot be handed over: counted as absent, and if the daemon has not
/// looked for too long and the doorbell finds nobody, its region is given up.
fn absent(page: &'static Page, held: &Use, octets: usize) -> Verdict {
    let producer = held.producer();
    let is_late = producer.needs_doorbell(ClockId::Monotonic, u64::MAX, clock::monotonic());
    if producer.state() != RegionState::Attached || (is_late && !ring(held)) {
        held.give_up(page);
        attach::count_absent(); // nobody reads this region's counters any more
    } else {
        producer.count(counter::DAEMON_ABSENT);
    }
    Verdict::Taken(octets)
}

/// The greatest payload that the daemon takes to the frame's destination, or why it takes none; `None` when its
/// table stays unreadable.
fn payload_max(held: &Use, frame: &Frame, status: &StreamStatus) -> Option<Result<usize, BypassReason>> {
    let reason = |number| BypassReason::from_number(number).unwrap_or(BypassReason::NotAllowed);
    if frame.flags.contains(SlotFlags::CONNECTED) {
        return Some(if status.limit == 0 { Err(reason(status.bypass)) } else { Ok(status.limit as usize) });
    }
    for _ in 0..TABLE_ATTEMPTS {
        match held.producer().destination(frame.address) {
            DestinationVerdict::Take { payload_max } => return Some(Ok(usize::from(payload_max))),
            DestinationVerdict::Bypass(number) => return Some(Err(reason(number))),
            DestinationVerdict::Unstable => {
                sys::nap(TABLE_NAP);
            }
        }
    }
    None
}

/// Wakes the worker; false when nobody is there to hear it.
fn ring(held: &Use) -> bool {
    let Some(doorbell) = held.region().doorbell.get() else { return false };
    held.producer().count(counter::DOORBELLS);
    // A full queue is as good as rung.
    matches!(sys::send(doorbell, &[1], None), Ok(()) | Err(EAGAIN | EINTR))
}
