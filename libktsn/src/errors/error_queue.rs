// SPDX-License-Identifier: Apache-2.0
//! `recvmsg(MSG_ERRQUEUE)`, `recvfrom` and `recv` on a timed socket: the kernel's entries as they are, and for each marker the completion
//! that it stands for (`docs/design/error-queue.md`).
//!
//! In: a descriptor and the program's header. Out: what the kernel would have answered had it sent the frame itself.
//! An entry is read with a head and control data of our own, as the program's may be too small to show which socket it belongs to.
//! It never waits: reading an error queue never blocks.

use core::ffi::{c_int, c_void};

use ktsn_ring::completion::{Completion, Outcome, Place, kind};
use ktsn_ring::marker::{self, Marker};
use ktsn_ring::{Producer, SlotHeader};

use crate::attach::txtime;
use crate::errors::reply::{Reply, SEGMENTS};
use crate::process::abi::{
    EAGAIN, ECANCELED, EFAULT, EINVAL, ENOMSG, IP_RECVERR, IPV6_RECVERR, MSG_CMSG_CLOEXEC, MSG_CTRUNC,
    MessageHeader, PACKET_TX_TIMESTAMP, SO_TIMESTAMPING, SOL_IP, SOL_IPV6, SOL_PACKET, SOL_SOCKET, Segment,
};
use crate::process::page::PLACES_COUNT;
use crate::process::region::RegionUse;
use crate::streams::Stream;
use crate::streams::stamps::{OPT_CMSG, OPT_ID, OPT_TSONLY, SOFTWARE};
use crate::{
    call::control_messages, call::memory, process::clock, process::env, process::originals, process::page,
    process::sys, streams::stamps,
};

/// Octets of an entry's data that are looked at: Ethernet, IPv6 with an option, UDP, a marker are 102.
const HEAD: usize = 128;
/// Octets of control messages that the kernel can make for one entry, generously.
const CONTROL: usize = 1024;
/// Where a marker lies in its frame: behind Ethernet and IPv4, IPv6, IPv6 with an option; or alone.
const MARKERS_AT: [usize; 4] = [42, 62, 70, 14];
/// A completion of this age without a marker has lost the marker, ns.
const MARKERLESS: u64 = 50_000_000;
/// Markers of no completion that one call passes over; the kernel's queue holds no more.
const STRAY_MAX: u32 = 65_536;

const ORIGIN_TIMESTAMPING: u8 = 4;
const ORIGIN_TXTIME: u8 = 6;
const CODE_INVALID_PARAM: u8 = 1;
const CODE_MISSED: u8 = 2;
/// ee_info of timestamps.
const STAMP_SND: u32 = 0;
const STAMP_SCHED: u32 = 1;

/// How a read of the error queue ends.
#[derive(Clone, Copy)]
pub(crate) enum Answer {
    /// The program's call goes to the kernel as it is.
    Kernel,
    /// An entry of so many octets.
    Octets(usize),
    /// Fails with this errno.
    Fail(c_int),
}

/// One entry as the kernel gave it.
#[repr(C, align(8))]
struct Entry {
    control: [u8; CONTROL],
    head: [u8; HEAD],
    octets: usize,
    control_octets: usize,
    name_octets: u32,
    flags: c_int,
}

/// The parts of a `struct sock_extended_err` that matter here.
struct ExtendedError {
    origin: u8,
    info: u32,
    data: u32,
}

/// Reads one entry of the error queue.
///
/// # Safety
/// `header` is what the program passed to `recvmsg`.
#[inline(never)]
pub(crate) unsafe fn recvmsg(fd: c_int, header: *mut MessageHeader, flags: c_int) -> Answer {
    let Some(stream) = txtime::stream_or_adopt(fd) else { return Answer::Kernel };
    originals::test_cancel();
    // SAFETY: the caller's promise.
    let Some(mut reply) = (unsafe { Reply::new(header, env::is_musl()) }) else { return Answer::Kernel };
    let held: [Option<RegionUse>; PLACES_COUNT] =
        core::array::from_fn(|place| page::get().and_then(|page| RegionUse::at(page, place)));
    let reader = Reader { stream, held: &held, flags };
    for _ in 0..STRAY_MAX {
        let mut entry = Entry {
            control: [0; CONTROL],
            head: [0; HEAD],
            octets: 0,
            control_octets: 0,
            name_octets: 0,
            flags: 0,
        };
        match entry.read(fd, &reply, flags) {
            Err(EAGAIN) => {
                let octets = reader.markerless(&mut reply);
                return octets.map_or(Answer::Fail(EAGAIN), |octets| reply.answer(octets));
            }
            Err(errno) => return Answer::Fail(errno),
            Ok(()) => {}
        }
        let written = match reader.owner(&entry) {
            Owner::Kernel => {
                let octets = entry.pass(&mut reply);
                return reply.answer(octets);
            }
            Owner::Stray => None,
            Owner::Ours(producer, slot, sequence, kinds) => {
                reader.write_entry(&mut reply, producer, slot, sequence, kinds)
            }
        };
        if let Some(octets) = written {
            return reply.answer(octets);
        }
        reply.restart();
    }
    Answer::Fail(EAGAIN)
}

/// Reads one entry of the error queue for `recvfrom(2)` (`recv(2)` with nulls), which shows no control messages.
///
/// # Safety
/// All is what the program passed to it.
#[inline(never)]
pub(crate) unsafe fn recvfrom(
    fd: c_int,
    buffer: *mut c_void,
    octets: usize,
    flags: c_int,
    name: *mut c_void,
    name_octets: *mut u32,
) -> Answer {
    let segment = Segment { base: buffer, octets };
    let mut header = MessageHeader {
        name,
        name_octets: 0,
        segments: &raw const segment,
        segments_count: 1,
        control: core::ptr::null(),
        control_octets: 0,
        flags: 0,
    };
    let octets = size_of::<u32>();
    let is_told = memory::is_readable(name_octets as usize, octets)
        && memory::is_writable(name_octets as usize, octets);
    if name.is_null() || !is_told {
        header.name = core::ptr::null();
    } else {
        // SAFETY: readable, as just found; it need not be aligned.
        header.name_octets = unsafe { name_octets.read_unaligned() };
    }
    // SAFETY: a header of our own around the program's arguments.
    let answer = unsafe { recvmsg(fd, &raw mut header, flags) };
    match answer {
        // Found when the entry was taken: so does the kernel.
        Answer::Octets(_) if !name.is_null() && !is_told => return Answer::Fail(EFAULT),
        // SAFETY: writable, as just found.
        Answer::Octets(_) if !name.is_null() => unsafe { name_octets.write_unaligned(header.name_octets) },
        _ => {}
    }
    answer
}

impl Reply {
    /// What the call comes to, with an entry of so many octets.
    const fn answer(&self, octets: usize) -> Answer {
        if self.is_faulty() { Answer::Fail(EFAULT) } else { Answer::Octets(octets) }
    }
}

fn word32(octets: &[u8], at: usize) -> Option<u32> {
    control_messages::field(octets, at).map(u32::from_ne_bytes)
}

impl Entry {
    /// The next entry: its first octets to our head, the rest to the program's segments.
    fn read(&mut self, fd: c_int, reply: &Reply, flags: c_int) -> Result<(), c_int> {
        let nothing = Segment { base: core::ptr::null(), octets: 0 };
        let mut segments = [nothing; SEGMENTS + 1];
        segments[0] = Segment { base: self.head.as_mut_ptr().cast(), octets: HEAD };
        for (to, from) in segments.iter_mut().skip(1).zip(reply.segments) {
            *to = from;
        }
        let mut header = MessageHeader {
            name: reply.program.name,
            name_octets: reply.program.name_octets,
            segments: segments.as_ptr(),
            segments_count: reply.count.wrapping_add(1),
            control: self.control.as_ptr().cast(),
            control_octets: CONTROL,
            flags: 0,
        };
        self.octets = sys::recvmsg(fd, &mut header, flags)?;
        self.control_octets = header.control_octets.min(CONTROL);
        self.name_octets = header.name_octets;
        self.flags = header.flags;
        Ok(())
    }

    /// The control messages: level, kind, data.
    fn messages(&self) -> impl Iterator<Item = (c_int, c_int, &[u8])> {
        let mut rest = self.control.get(..self.control_octets).unwrap_or(&[]);
        core::iter::from_fn(move || {
            let octets = usize::try_from(u64::from_ne_bytes(rest.get(..8)?.try_into().ok()?)).ok()?;
            let (level, kind) = (word32(rest, 8)?, word32(rest, 12)?);
            let data = rest.get(16..octets)?;
            rest = rest.get(octets.checked_add(7)? & !7..).unwrap_or(&[]);
            Some((level.cast_signed(), kind.cast_signed(), data))
        })
    }

    fn extended_error(&self) -> Option<ExtendedError> {
        let is_error = |level, kind| {
            matches!(
                (level, kind),
                (SOL_IP, IP_RECVERR) | (SOL_IPV6, IPV6_RECVERR) | (SOL_PACKET, PACKET_TX_TIMESTAMP)
            )
        };
        let (_, _, data) = self.messages().find(|(level, kind, _)| is_error(*level, *kind))?;
        Some(ExtendedError { origin: *data.get(4)?, info: word32(data, 8)?, data: word32(data, 12)? })
    }

    /// Hands the kernel's own entry on.
    fn pass(&self, reply: &mut Reply) -> usize {
        let head = self.head.get(..self.octets.min(HEAD)).unwrap_or(&[]);
        if reply.takes(self.octets) {
            reply.put_in_front(head, self.octets);
        }
        for (level, kind, data) in self.messages() {
            reply.control(level, kind, data);
        }
        // The kernel's word about our buffer, unless its control data did not fit even there.
        let flags = if self.control_octets < CONTROL { self.flags & !MSG_CTRUNC } else { self.flags };
        reply.finish(self.octets, flags, self.name_octets)
    }
}

/// The owner of an entry.
enum Owner<'a> {
    Kernel,
    /// A marker of nothing that this process knows.
    Stray,
    /// The entry of these kinds (the first that is left) of the completion in this slot, with this number if known.
    Ours(&'a Producer, u16, Option<u32>, u8),
}

/// One read on one stream.
struct Reader<'a> {
    stream: Stream,
    /// The regions of the namespace's attachments.
    held: &'a [Option<RegionUse>],
    flags: c_int,
}

impl<'a> Reader<'a> {
    fn producers(&self) -> impl Iterator<Item = &'a Producer> {
        self.held.iter().flatten().map(RegionUse::producer)
    }

    /// The stream's oldest completion.
    fn oldest(&self) -> Option<(&'a Producer, Place, Completion)> {
        let oldest = self.producers().filter_map(|producer| {
            let (place, completion, _) =
                producer.oldest_completion(|frame| stamps::is_sent_by(self.stream, frame))?;
            Some((producer, place, completion))
        });
        oldest.min_by_key(|(_, _, completion)| completion.done_at)
    }

    fn owner(&self, entry: &Entry) -> Owner<'a> {
        let Some(error) = entry.extended_error() else { return Owner::Kernel };
        if error.origin != ORIGIN_TIMESTAMPING || error.info != STAMP_SCHED {
            return Owner::Kernel;
        }
        if entry.octets != 0 {
            let head = entry.head.get(..entry.octets.min(HEAD)).unwrap_or(&[]);
            let (found, known) = if self.stream.is_packet() {
                (Marker::parse_frame(head), u64::from(u32::MAX))
            } else {
                let found = MARKERS_AT
                    .iter()
                    .filter(|at| entry.octets == at.wrapping_add(marker::PAYLOAD_OCTETS))
                    .find_map(|at| Marker::parse(head.get(*at..)?));
                (found, u64::MAX)
            };
            let Some(found) = found else { return Owner::Kernel };
            return match self.producers().find(|producer| found.nonce == producer.nonce() & known) {
                Some(producer) => Owner::Ours(producer, found.slot, Some(found.sequence), found.kind),
                None => Owner::Stray,
            };
        }
        // Without data: the key names the completion; without keys the oldest is meant.
        let flags = self.stream.reports().flags();
        if flags & OPT_ID != 0 {
            let Some((slot, sequence)) = marker::from_key(error.data) else { return Owner::Kernel };
            let found = self.producers().find_map(|producer| {
                let (place, _, header) = producer.completion(slot)?;
                let is_it =
                    place.sequence & 0xfff == sequence && stamps::is_sent_by(self.stream, &header.frame);
                is_it.then_some((producer, place))
            });
            return found.map_or(Owner::Stray, |(producer, place)| {
                Owner::Ours(producer, slot, Some(place.sequence), kind::ALL)
            });
        }
        self.oldest().map_or(Owner::Kernel, |(producer, place, _)| {
            Owner::Ours(producer, place.slot, Some(place.sequence), kind::ALL)
        })
    }

    /// Writes the entry of a completion whose marker was lost.
    fn markerless(&self, reply: &mut Reply) -> Option<usize> {
        loop {
            let (producer, place, completion) = self.oldest()?;
            if clock::monotonic() < completion.done_at.saturating_add(MARKERLESS) {
                return None;
            }
            if let Some(octets) =
                self.write_entry(reply, producer, place.slot, Some(place.sequence), kind::ALL)
            {
                return Some(octets);
            }
            reply.restart();
        }
    }

    /// Writes the first of `kinds` that is left of a completion; `None` when there is none, or another reader has it.
    fn write_entry(
        &self,
        reply: &mut Reply,
        producer: &Producer,
        slot: u16,
        sequence: Option<u32>,
        kinds: u8,
    ) -> Option<usize> {
        let (place, completion, header) = producer.completion(slot)?;
        let kinds = completion.kinds & kinds;
        let first = kinds & kinds.wrapping_neg();
        if first == 0
            || !stamps::is_sent_by(self.stream, &header.frame)
            || sequence.is_some_and(|sequence| sequence != place.sequence)
        {
            return None;
        }
        let has_data = first == kind::ERROR || self.stream.reports().flags() & OPT_TSONLY == 0;
        let octets = if has_data { write_frame(producer, reply, place, &completion, &header) } else { 0 };
        self.write_control(reply, first, has_data, &completion, &header);
        (producer.take(place, first) == first).then(|| reply.finish(octets, self.flags & MSG_CMSG_CLOEXEC, 0))
    }

    fn write_control(
        &self,
        reply: &mut Reply,
        first: u8,
        has_data: bool,
        completion: &Completion,
        header: &SlotHeader,
    ) {
        let flags = self.stream.reports().flags();
        let (low, high) = (header.frame.tx_time as u32, (header.frame.tx_time >> 32) as u32);
        let key = if flags & OPT_ID != 0 { header.frame.report_id } else { 0 };
        let (errno, origin, code, info, data) = match (first, completion.outcome) {
            (kind::SCHEDULED, _) => (ENOMSG, ORIGIN_TIMESTAMPING, 0, STAMP_SCHED, key),
            (kind::SOFTWARE, _) => (ENOMSG, ORIGIN_TIMESTAMPING, 0, STAMP_SND, key),
            (_, Outcome::Missed) => (ECANCELED, ORIGIN_TXTIME, CODE_MISSED, low, high),
            _ => (EINVAL, ORIGIN_TXTIME, CODE_INVALID_PARAM, low, high),
        };
        let at = match first {
            kind::SCHEDULED => Some(completion.scheduled_at),
            kind::SOFTWARE => Some(completion.handed_at),
            _ => None,
        };
        if let Some(at) = at.filter(|_| flags & SOFTWARE != 0) {
            // struct scm_timestamping: three timespecs, the first is the software time.
            let mut times = [0; 48];
            put(&mut times, 0, &(at / 1_000_000_000).to_ne_bytes());
            put(&mut times, 8, &(at % 1_000_000_000).to_ne_bytes());
            reply.control(SOL_SOCKET, SO_TIMESTAMPING, &times);
        }
        // struct sock_extended_err, then the offender's address.
        let mut value = [0; 44];
        put(&mut value, 0, &errno.to_ne_bytes());
        put(&mut value, 4, &[origin, 0, code, 0]);
        put(&mut value, 8, &info.to_ne_bytes());
        put(&mut value, 12, &data.to_ne_bytes());
        if self.stream.is_packet() {
            return reply.control(SOL_PACKET, PACKET_TX_TIMESTAMP, value.get(..16).unwrap_or(&[]));
        }
        let shows_source = at.is_some() && has_data && completion.interface != 0;
        if self.stream.is_v6() {
            if shows_source {
                offender_v6(&mut value, completion);
            }
            reply.control(SOL_IPV6, IPV6_RECVERR, &value);
        } else {
            if shows_source && flags & OPT_CMSG != 0 {
                put(&mut value, 16, &crate::process::abi::AF_INET.to_ne_bytes());
                put(&mut value, 20, source(completion, 4));
            }
            reply.control(SOL_IP, IP_RECVERR, value.get(..32).unwrap_or(&[]));
        }
    }
}

/// Copies `from` into `to` from `at` on, as far as it fits.
fn put(to: &mut [u8], at: usize, from: &[u8]) {
    for (to, from) in to.iter_mut().skip(at).zip(from) {
        *to = *from;
    }
}

/// Where the IP header begins in a frame's headers, and whether it is IPv4.
fn network(completion: &Completion) -> (usize, bool) {
    let headers = &completion.headers;
    let at = if headers[12..14] == [0x81, 0x00] { 18 } else { 14 };
    (at, headers[at] >> 4 == 4)
}

/// The source address, `octets` long, of the frame's headers.
fn source(completion: &Completion, octets: usize) -> &[u8] {
    let (at, is_v4) = network(completion);
    let at = at.wrapping_add(if is_v4 { 12 } else { 8 });
    completion.headers.get(at..at.wrapping_add(octets)).unwrap_or(&[])
}

fn offender_v6(value: &mut [u8; 44], completion: &Completion) {
    put(value, 16, &crate::process::abi::AF_INET6.to_ne_bytes());
    if network(completion).1 {
        put(value, 34, &[0xff, 0xff]);
        put(value, 36, source(completion, 4));
        return;
    }
    let address = source(completion, 16);
    put(value, 24, address);
    if address.starts_with(&[0xfe, 0x80]) {
        put(value, 40, &completion.interface.to_ne_bytes());
    }
}

/// Writes headers and payload; how many octets there are.
fn write_frame(
    producer: &Producer,
    reply: &mut Reply,
    place: Place,
    completion: &Completion,
    header: &SlotHeader,
) -> usize {
    let headers = completion.headers.get(..usize::from(completion.headers_octets)).unwrap_or(&[]);
    let octets = usize::from(header.payload_octets);
    if !reply.takes(headers.len().wrapping_add(octets)) {
        return headers.len().wrapping_add(octets);
    }
    reply.data(0, headers);
    let mut chunk = [0; 64];
    let mut at = 0usize;
    while at < octets {
        let part = octets.wrapping_sub(at).min(chunk.len());
        let Some(chunk) = chunk.get_mut(..part) else { break };
        producer.read_payload(place.slot, at, chunk);
        reply.data(headers.len().wrapping_add(at), chunk);
        at = at.wrapping_add(part);
    }
    headers.len().wrapping_add(octets)
}
