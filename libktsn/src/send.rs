// SPDX-License-Identifier: Apache-2.0
//! The send core: one datagram of a timed socket, from the program's call to a published slot.
//!
//! In: a descriptor and a `struct msghdr`. Out: a [`Verdict`]. On any doubt it is the kernel's, with a reason that
//! is counted. It never allocates, locks, logs or touches `errno`, and it may be interrupted anywhere by a signal
//! handler that sends: a claimed slot belongs to one call, everything else is single atomic operations.
//!
//! It waits here, and nowhere else:
//!
//! | for | at most | where |
//! |---|---|---|
//! | attaching and registering: a fork's child, a socket never seen before, a displaced descriptor of ours | 1 s each | [`register`] |
//! | the answer to a registration that the program made necessary | 20 ms, a blocking socket 1 s | `streams/registration.rs` |
//! | free slots, or room under SO_SNDBUF, on a blocking socket | SO_SNDTIMEO, while a daemon lives | [`Batch`] |
//! | another thread that gives the socket its port | 1 ms | [`SendCall::bind`] |
//! | a table that the daemon is writing | 1 ms | [`choice`], `streams/packet.rs` |
//! | a daemon that reads no datagrams for the kernel | 20 ms, a blocking socket as for slots | [`later`] |
//! | the transmit time of a datagram that only the kernel can send and no daemon can keep | the horizon; without a daemon 1 h | [`later`] |
//!
//! The last wait is the only one without a daemon, and the only one of more than 2 s on a non-blocking socket: the kernel would send too
//! early (`docs/txtime.md`). A process that was never attached has no such wait.

pub(crate) mod batch;
pub(crate) mod choice;
pub(crate) mod later;
pub(crate) mod multiple;
pub(crate) mod segments;
pub(crate) mod share;
pub(crate) mod verdict;
pub(crate) mod waits;

use core::ffi::c_int;
use core::hint::cold_path;

use ktsn_model::BypassReason;
use ktsn_ring::{ClockId, HeaderMarks, SlotFlags, SlotFrame, StreamCode, stream_flags};

use crate::attach::{handshake, register, txtime};
use crate::call::control_messages::{self, Parsed};
use crate::call::destination::{self, Address, Destination};
use crate::call::message::Message;
use crate::process::abi::{EAGAIN, MSG_CONFIRM, MSG_DONTWAIT, MSG_MORE, MSG_NOSIGNAL, MessageHeader};
use crate::process::page;
use crate::process::region::{self, RegionUse};
use crate::send::batch::{Batch, Filling, Full};
use crate::send::verdict::{SendCall, Verdict, bypass, count};
use crate::streams::Registration;
use crate::streams::stamps;
use crate::{
    call::options, process::env, process::originals, process::sys, streams::buffer, streams::packet,
    streams::wanted_interface,
};

/// Flags that change nothing for a datagram that leaves later.
const FLAGS: c_int = MSG_DONTWAIT | MSG_NOSIGNAL | MSG_CONFIRM;
/// How often a thread that lost the race for the socket's port looks for the winner's word, and the pause, ns.
const BIND_ATTEMPTS: u32 = 20;
const BIND_NAP: u32 = 50_000;

/// One `sendmsg`.
///
/// # Safety
/// `header` is what the program passed.
pub(crate) unsafe fn sendmsg(fd: c_int, header: *const MessageHeader, flags: c_int) -> Verdict {
    let Some(stream) = txtime::stream_or_adopt(fd) else { return Verdict::Kernel };
    originals::test_cancel();
    let Some(page) = page::get() else { return bypass(stream, BypassReason::NotAttached) };
    let mut batch = Batch::new(page);
    batch.acquire_and_prefetch(stream.index);
    // SAFETY: the caller's promise.
    let verdict = unsafe { message(SendCall { stream, fd, flags }, header, &mut batch) };
    batch.end(); // publishes the frame
    verdict
}

/// One message of a call.
///
/// # Safety
/// `header` is what the program passed.
pub(crate) unsafe fn message(send: SendCall, header: *const MessageHeader, batch: &mut Batch) -> Verdict {
    // SAFETY: the caller's promise.
    match unsafe { decide(send, header, batch) } {
        // SAFETY: the caller's promise.
        verdict @ (Verdict::Kernel | Verdict::KernelStripped) => unsafe {
            later::pass_to_kernel(send, header, batch, verdict)
        },
        verdict => verdict,
    }
}

/// # Safety
/// `header` is what the program passed.
unsafe fn decide(send: SendCall, header: *const MessageHeader, batch: &mut Batch) -> Verdict {
    let is_musl = env::is_musl();
    // SAFETY: the caller's promise.
    let Some(message) = (unsafe { Message::read(header, is_musl) }) else { return Verdict::Kernel };
    let Some(control) = control_messages::parse(message.control, is_musl) else { return Verdict::Kernel };
    if message.is_for_kernel {
        cold_path();
        // Without SCM_TXTIME where the kernel never heard of SO_TXTIME: the errno is the payload's.
        return if send.stream.is_kernel_timed() { Verdict::Kernel } else { Verdict::KernelStripped };
    }
    let is_packet = send.stream.is_packet();
    let is_piece = !is_packet && send.stream.is_piece(send.flags & MSG_MORE != 0);
    match control.tx_time {
        at if is_piece => {
            let verdict = bypass(send.stream, BypassReason::UnsupportedOption);
            at.map_or(verdict, |at| later::wait(send, at, batch, verdict))
        }
        Some(at) if is_packet => send.send_packet(&message, &control, at, batch),
        Some(at) => send.send_udp(&message, &control, at, batch),
        None => send.send_untimed(&message, &control, batch).unwrap_or_else(|| {
            count(BypassReason::NoTxtime);
            Verdict::Kernel
        }),
    }
}

impl SendCall {
    /// Sends a UDP datagram that has a transmit time: all in one function, so that the frame is made in registers and written once, into its slot.
    #[inline(always)]
    fn send_udp(self, message: &Message<'_>, control: &Parsed, tx_time: u64, batch: &mut Batch) -> Verdict {
        self.send_timed::<true>(self.udp_frame(message, control), message, control, tx_time, batch)
    }

    /// Sends a packet socket's frame that has a transmit time.
    fn send_packet(
        self,
        message: &Message<'_>,
        control: &Parsed,
        tx_time: u64,
        batch: &mut Batch,
    ) -> Verdict {
        self.send_timed::<false>(self.packet_frame(message, control), message, control, tx_time, batch)
    }

    /// A message with a transmit time. `INLINE`: with its own copy of [`Self::enqueue`].
    #[inline(always)]
    fn send_timed<const INLINE: bool>(
        self,
        frame: Option<SlotFrame>,
        message: &Message<'_>,
        control: &Parsed,
        tx_time: u64,
        batch: &mut Batch,
    ) -> Verdict {
        let stream = self.stream;
        let Some(clock) = txtime::clock_id(stream.txtime().clock) else {
            return bypass(stream, BypassReason::UnsupportedOption);
        };
        let Some(mut frame) = frame else {
            return bypass(stream, BypassReason::UnsupportedOption);
        };
        (frame.clock, frame.tx_time) = (clock.id(), tx_time);
        frame.has_waited = waits::passed_while_waiting(clock, tx_time);
        if batch.page().is_fresh() && handshake::was_attached() {
            cold_path();
            // A fork's child: attach and register for ourselves, once with the patience of the first attachment. After a fork in a signal
            // handler the region is still the parent's.
            batch.end();
            let _ = register::attach_and_register(stream, self.fd);
        }
        choice::choose(self, &frame, batch);
        if batch.region_or_attach(self.fd).is_none() {
            cold_path();
            return self.without_region(message, batch);
        }
        if INLINE {
            self.enqueue(message, control, clock, frame, batch)
        } else {
            self.send_cold(message, control, clock, frame, batch)
        }
    }

    /// A datagram without transmit time, where the attachment takes such ones: in the ring it has the TxTime 0 on
    /// MONOTONIC, and it may leave at once. `None` where it is the kernel's, also while the daemon is away: it is
    /// part of no schedule.
    #[inline(never)]
    fn send_untimed(self, message: &Message<'_>, control: &Parsed, batch: &mut Batch) -> Option<Verdict> {
        RegionUse::current(batch.page())?;
        let is_packet = self.stream.is_packet();
        let frame =
            if is_packet { self.packet_frame(message, control) } else { self.udp_frame(message, control) };
        let mut frame = frame?;
        choice::choose(self, &frame, batch);
        let Registration::Known(status) = self.registration(batch)? else { return None };
        if status.code != StreamCode::Registered || !stream_flags::takes_untimed(status.flags, frame.priority)
        {
            return None;
        }
        (frame.clock, frame.tx_time) = (ClockId::Monotonic.id(), 0);
        Some(self.send_cold(message, control, ClockId::Monotonic, frame, batch))
    }

    /// The frame that a call on a packet socket asks for; `None` when only the kernel can send it, or has the errno.
    fn packet_frame(self, message: &Message<'_>, control: &Parsed) -> Option<SlotFrame> {
        if self.flags & !FLAGS != 0 { None } else { packet::frame(self.stream, self.fd, message, control) }
    }

    /// The frame that a call on a UDP socket asks for; `None` when only the kernel can send it, or has the errno.
    #[inline(always)]
    fn udp_frame(self, message: &Message<'_>, control: &Parsed) -> Option<SlotFrame> {
        if self.flags & !FLAGS != 0 {
            return None;
        }
        let stream = self.stream;
        match destination::parse(message.name, stream.is_v6(), stream.is_v6_only()) {
            Destination::To(address) => self.frame_from_options(Some(address), control),
            Destination::Peer if stream.is_connected() => self.frame_from_options(None, control),
            Destination::Peer | Destination::Kernel => None,
        }
    }

    /// The frame as the socket's options and the control messages make it; `None` when only the kernel can send it.
    #[inline(always)]
    fn frame_from_options(self, to: Option<Address>, control: &Parsed) -> Option<SlotFrame> {
        let stream = self.stream;
        let options = stream.options();
        let (is_group, is_v4) = to.map_or_else(|| stream.peer(), |to| (to.is_multicast(), to.is_v4()));
        let is_v4 = is_v4 || !stream.is_v6();
        if options.is_unsupported
            || stream.is_pinned()
            || stream.is_bound_elsewhere(is_v4)
            || (to.is_some_and(|to| to.is_broadcast()) && !options.has_broadcast)
            || (control.is_any && is_for_kernel(control, is_v4))
        {
            cold_path();
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
            (control.priority, control.traffic_class.unwrap_or(options.traffic_class))
        };
        // A message's hop limit is the program's.
        let has_own = control.ttl.is_some() || matches!(control.hop_limit, Some(Some(_)));
        let defaults = HeaderMarks::DEFAULT_TTL.with(HeaderMarks::DEFAULT_HOPS);
        let marks = if has_own { options.marks.without(defaults) } else { options.marks };
        let asked = stamps::requested_flags(stream, control)?;
        let flags = SlotFlags::TRAFFIC_CLASS.with(SlotFlags::HOP_LIMIT).with(asked);
        let mut frame = SlotFrame {
            stream_index: stream.index,
            flags: if to.is_none() { flags.with(SlotFlags::CONNECTED) } else { flags },
            priority: priority.unwrap_or(options.priority),
            traffic_class,
            hop_limit,
            marks,
            ..SlotFrame::default()
        };
        if asked != SlotFlags::NONE {
            cold_path();
            frame.descriptor = self.fd;
        }
        if let Some(to) = to {
            (frame.address, frame.scope, frame.port) = (to.address, to.scope, to.port);
        }
        if wanted_interface::is_named(stream, control) {
            cold_path();
            let interface = wanted_interface::wanted(stream, control, is_v4, is_group).interface;
            let is_other = |of: u32| of != 0 && of != interface;
            if interface != 0 && (is_other(frame.scope) || is_other(stream.bound_interface())) {
                return None;
            }
            frame.scope = if interface == 0 { frame.scope } else { interface };
        }
        // A hop limit of 0 never leaves this node.
        (hop_limit != 0).then_some(frame)
    }

    /// No daemon: before the first attachment the kernel sends (or the send fails, if the policy says so); after it, the
    /// datagram is lost as on a link without carrier, and counted. What has no way, or is a broadcast without
    /// SO_BROADCAST, has the kernel's errno; the daemon's table would have left it to the kernel.
    #[cold]
    #[inline(never)]
    fn without_region(self, message: &Message<'_>, batch: &Batch) -> Verdict {
        if handshake::was_attached() {
            return self.refusal(message).unwrap_or_else(|| {
                region::count_absent(batch.place(), 1);
                Verdict::Taken(message.octets)
            });
        }
        self.not_attached()
    }

    /// The kernel's own refusal of a datagram that no daemon takes, found before the datagram would be made.
    #[cold]
    #[inline(never)]
    fn refusal(self, message: &Message<'_>) -> Option<Verdict> {
        let errno =
            if self.stream.is_packet() { 0 } else { sys::passing::refusal(self.fd, message.name, &[], 0) };
        (errno != 0).then_some(Verdict::Fail(errno))
    }

    /// [`Self::enqueue`] for all but the usual datagram.
    #[inline(never)]
    fn send_cold(
        self,
        message: &Message<'_>,
        control: &Parsed,
        clock: ClockId,
        frame: SlotFrame,
        batch: &mut Batch,
    ) -> Verdict {
        self.enqueue(message, control, clock, frame, batch)
    }

    /// Hands a message over, in the region that `batch` holds.
    #[inline(always)]
    fn enqueue(
        self,
        message: &Message<'_>,
        control: &Parsed,
        clock: ClockId,
        mut frame: SlotFrame,
        batch: &mut Batch,
    ) -> Verdict {
        let (stream, octets) = (self.stream, message.octets);
        let unsupported = || bypass(stream, BypassReason::UnsupportedOption);
        if !stream.is_bound() {
            self.bind();
        }
        if !stream.is_bound() {
            return unsupported(); // the kernel finds the errno
        }
        stream.begin_sending();
        let status = match self.registration(batch) {
            None => return self.without_region(message, batch),
            Some(Registration::Known(status)) => status,
            Some(Registration::NoRoom) => return unsupported(),
            Some(Registration::Unknown) => {
                return self.refusal(message).unwrap_or_else(|| batch.absent(octets));
            }
            Some(Registration::Late) => return self.refusal(message).unwrap_or(Verdict::Fail(EAGAIN)),
        };
        let Some(held) = batch.usable_region() else { return self.without_region(message, batch) };
        if let Some(verdict) = self.refuse_or_begin_reports(&status, &frame, held) {
            return verdict;
        }
        if wanted_interface::is_named(stream, control) {
            cold_path();
            let frame = frame; // a copy: the frame itself stays in registers
            if wanted_interface::is_elsewhere(stream, control, &frame, held) {
                return unsupported();
            }
        }
        let limit = match choice::limit(held, message, &frame, &status) {
            Some(Ok(limit)) => limit,
            Some(Err(reason)) => return bypass(stream, reason),
            None => return batch.absent(octets),
        };
        if limit.is_asked() && (status.flags & stream_flags::KEPT == 0 || control.leaving_v4.source != [0; 4])
        {
            return self.ask(message, control, clock, frame, batch);
        }
        let payload_max = limit.octets().min(held.producer().payload_max());
        let slots_count = held.producer().layout().slots_count();
        let segment_octets = match self.segment_octets(octets, control, payload_max, slots_count) {
            Ok(octets) => octets,
            Err(reason) => return bypass(stream, reason),
        };
        frame.token = status.token;
        let key = stamps::key(stream, control);
        frame.report_id = key.take(stream);
        let is_charged = buffer::is_charged(stream.index);
        if is_charged {
            cold_path();
            if let Err(full) = batch.await_room(stream, (clock, frame.tx_time), self.fd, self.flags) {
                return self.without_slots(&full, key, batch, octets);
            }
            frame.has_waited = waits::passed_while_waiting(clock, frame.tx_time);
        }
        match batch.fill(&Filling { frame, clock, message, segment_octets }, self.fd, self.flags) {
            Ok(()) => {
                if is_charged {
                    buffer::add(stream.index, octets);
                }
                Verdict::Taken(octets)
            }
            Err(full) => self.without_slots(&full, key, batch, octets),
        }
    }

    /// The daemon asks the kernel about the datagram's route. Then it must be able to hand the datagram over, so it keeps the socket from
    /// now on. It knows no source but the socket's.
    #[cold]
    #[inline(never)]
    fn ask(
        self,
        message: &Message<'_>,
        control: &Parsed,
        clock: ClockId,
        frame: SlotFrame,
        batch: &mut Batch,
    ) -> Verdict {
        // A blackhole is the kernel's to name, at the call.
        self.refusal(message).unwrap_or_else(|| {
            if control.leaving_v4.source == [0; 4] && self.stream.begin_keeping() {
                self.send_cold(message, control, clock, frame, batch)
            } else {
                bypass(self.stream, BypassReason::RoutingRules)
            }
        })
    }

    /// The verdict on a message that got no slots.
    #[cold]
    #[inline(never)]
    fn without_slots(self, full: &Full, key: stamps::Key, batch: &mut Batch, octets: usize) -> Verdict {
        match full {
            Full::Fail(errno) => {
                key.give_back(self.stream);
                Verdict::Fail(*errno)
            }
            Full::Gone => batch.absent(octets),
            Full::TooLong => bypass(self.stream, BypassReason::OverMtu),
        }
    }

    /// What the daemon says about the stream; `None` without a region. What the batch holds goes first where that takes
    /// a new registration: these frames carry the old one's token, and the daemon takes them before it hears of the new.
    #[inline(always)]
    fn registration(self, batch: &mut Batch) -> Option<Registration> {
        if let Some(known) = self.stream.known_registration(batch.usable_region()?, self.fd, self.flags) {
            return Some(known);
        }
        cold_path();
        batch.publish();
        Some(self.stream.register_if_stale(batch.usable_region()?, self.fd, self.flags))
    }

    /// Gives the socket its port. Where another thread has just done so, that thread says that the registration is
    /// out of date: a second registration could cost its first frame.
    #[cold]
    #[inline(never)]
    fn bind(self) {
        if self.stream.take_port(self.fd, self.flags) {
            return;
        }
        if !sys::bind_any(self.fd, self.stream.is_v6(), 0) {
            for _ in 0..BIND_ATTEMPTS {
                if self.stream.is_bound() {
                    return;
                }
                sys::nap(BIND_NAP);
            }
            // No thread says so: the kernel gave the port at an untimed send, or this is a signal handler above the
            // thread that was about to.
        }
        self.stream.addresses_changed(self.fd);
    }
}

/// Whether the control messages ask for something that only the kernel does, or may refuse.
fn is_for_kernel(control: &Parsed, is_v4: bool) -> bool {
    control.is_for_kernel(is_v4) || options::has_refusable_priority(control)
}
