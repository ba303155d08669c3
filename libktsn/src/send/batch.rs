// SPDX-License-Identifier: Apache-2.0
//! The frames of one call: filled one by one, published together, with one look at the clock and one decision on the
//! doorbell.
//!
//! In: frames and payloads in the program's order. Out: published slots, and whether there is a daemon to take them.
//! It waits for slots only, and publishes before it waits. A message takes all its slots or none. The caller
//! ends a batch before the kernel gets a call, so that no slot is held and no frame is unpublished meanwhile.

use core::ffi::c_int;
use core::hint::cold_path;

use ktsn_ring::{Bell, Claims, ClockId, Producer, RegionState, Run, SlotFrame, counter};

use crate::attach::{handshake, register};
use crate::call::message::Message;
use crate::process::abi::{EAGAIN, EINTR, MSG_DONTWAIT};
use crate::process::page::Page;
use crate::process::region::RegionUse;
use crate::send::verdict::Verdict;
use crate::streams::Stream;
use crate::{process::clock, process::signals, process::sys, send::share, send::waits, streams::buffer};

/// Between two looks for a free slot, ns.
const SLOT_NAP: u32 = 200_000;
/// A run of so many frames is published: a killed thread loses no more slots than this, and one message's. What is
/// claimed for the frames that are still to come counts too.
const RUN_MAX: u16 = 64;

/// Why a message got no slots.
pub(crate) enum Full {
    /// The send fails like one on a full socket buffer: EAGAIN, EINTR.
    Fail(c_int),
    /// There is no daemon any more.
    Gone,
    /// The payload does not fit after all.
    TooLong,
}

/// A message as slots hold it.
#[derive(Clone, Copy)]
pub(crate) struct Filling<'a> {
    /// The fields that all frames of the message share.
    pub(crate) frame: SlotFrame,
    /// The clock of `frame.tx_time`.
    pub(crate) clock: ClockId,
    /// The payload.
    pub(crate) message: &'a Message<'a>,
    /// Octets of each frame but the last; at least 1.
    pub(crate) segment_octets: usize,
}

/// The frames of one call: filled slots that are not published yet, and the slots that the call has claimed.
pub(crate) struct Batch {
    page: &'static Page,
    /// Which attachment's region is meant: the number of one of the process's attachments, an index of [`Page::places`].
    place: usize,
    held: Option<RegionUse>,
    run: Option<Run>,
    /// Slots for what is still to come, of the region in `held`.
    claims: Claims,
    /// Messages of the call that are still to come, this one included.
    expected_count: u32,
    /// The call's reading of CLOCK_MONOTONIC, ns; 0 = none since the last wait.
    now: u64,
    /// The earliest transmit times in `run`, by MONOTONIC and by TAI.
    earliest: [u64; 2],
    /// A stream, and how many more slots it may take.
    allowance: (u32, usize),
    /// No more slots are claimed at once.
    ahead_max: u32,
}

/// A safeguard: no return of a call leaves filled slots unpublished, or claimed ones unused.
impl Drop for Batch {
    #[inline]
    fn drop(&mut self) {
        if self.held.is_some() {
            self.end();
        }
    }
}

impl Batch {
    /// Nothing yet, of a call of one message.
    pub(crate) const fn new(page: &'static Page) -> Self {
        let (claims, earliest) = (Claims::NONE, [u64::MAX; 2]);
        let (allowance, ahead_max) = ((0, 0), u32::MAX);
        Self {
            page,
            place: 0,
            held: None,
            run: None,
            claims,
            expected_count: 1,
            now: 0,
            earliest,
            allowance,
            ahead_max,
        }
    }

    /// Announces that `count` messages of the call are still to come.
    pub(crate) const fn expect(&mut self, count: u32) {
        self.expected_count = count;
    }

    /// Gives the region up for this call, and what was claimed in it.
    fn release_region(&mut self) {
        let claims = core::mem::replace(&mut self.claims, Claims::NONE);
        self.allowance = (0, 0);
        if let Some(held) = self.held.take() {
            held.producer().cancel_some(claims);
        }
    }

    /// The process's page.
    pub(crate) const fn page(&self) -> &'static Page {
        self.page
    }

    /// Publishes, and lets the region go: before the kernel gets a call.
    pub(crate) fn end(&mut self) {
        self.publish();
        self.release_region();
        self.now = 0;
    }

    /// Switches to the attachment at `place`, if it is another one than before.
    pub(crate) fn select_place(&mut self, place: usize) {
        if place != self.place {
            self.end();
            self.place = place;
        }
    }

    /// Which attachment the messages are of.
    pub(crate) const fn place(&self) -> usize {
        self.place
    }

    /// The region of the selected attachment, while a daemon takes frames from it. Where none is held it is acquired. One from which no
    /// daemon takes frames is given up.
    #[inline(always)]
    pub(crate) fn usable_region(&mut self) -> Option<&RegionUse> {
        let is_usable = |held: &RegionUse| held.producer().state() == RegionState::Attached;
        if !self.held.as_ref().is_some_and(is_usable) {
            self.refresh_region();
        }
        self.held.as_ref()
    }

    /// Acquires the usable region, and prefetches what a send of this stream needs of it.
    #[inline(always)]
    pub(crate) fn acquire_and_prefetch(&mut self, stream: u32) {
        if let Some(held) = self.usable_region() {
            held.producer().prefetch(stream);
        }
    }

    /// Looks which region is to be used.
    #[inline(never)]
    fn refresh_region(&mut self) {
        self.end();
        self.held = RegionUse::at(self.page, self.place);
        let gone = self.held.take_if(|held| held.producer().state() != RegionState::Attached);
        if let Some(gone) = gone {
            gone.give_up(self.page);
        }
    }

    /// The usable region; where there is none, one step is made towards it: a part of attaching.
    pub(crate) fn region_or_attach(&mut self, socket: c_int) -> Option<&RegionUse> {
        if self.usable_region().is_none() {
            register::return_if_displaced(self.page, socket);
            handshake::advance(self.page, socket);
            self.held = RegionUse::at(self.page, self.place);
        }
        self.held.as_ref()
    }

    /// Fills slots for one message: at once, or after waiting as the kernel waits for room in a socket's buffer. The worker sees them
    /// when they are published: by [`Self::publish`], [`Self::end`], or the batch's drop.
    #[inline(always)]
    pub(crate) fn fill(&mut self, filling: &Filling<'_>, socket: c_int, flags: c_int) -> Result<(), Full> {
        if self.try_fill(filling)? { Ok(()) } else { self.fill_later(*filling, socket, flags) }
    }

    /// Fills slots for a message; false when too few are free, or more than its socket's share would be needed.
    #[inline(always)]
    fn try_fill(&mut self, filling: &Filling<'_>) -> Result<bool, Full> {
        let producer = *self.held.as_ref().ok_or(Full::Gone)?.producer();
        self.ahead_max = u32::MAX;
        if share::is_shared() && !self.is_allowed(&producer, filling) {
            return Ok(false);
        }
        if self.now == 0 {
            self.now = clock::monotonic();
        }
        let room = u32::from(RUN_MAX.saturating_sub(self.run.as_ref().map_or(0, Run::count)));
        let ahead = self.expected_count.min(room).min(self.ahead_max);
        let Some(run) = fill_slots(&producer, filling, self.now, &mut self.claims, ahead)? else {
            return Ok(false);
        };
        let earliest = &mut self.earliest[usize::from(filling.clock == ClockId::Tai)];
        *earliest = (*earliest).min(filling.frame.tx_time);
        let run = match self.run.take() {
            Some(before) => producer.join(before, run),
            None => run,
        };
        let is_long = run.count() >= RUN_MAX;
        self.run = Some(run);
        if is_long {
            cold_path();
            self.publish();
        }
        Ok(true)
    }

    /// Takes a message's slots from its socket's share of them; false when it has no more.
    #[inline(never)]
    fn is_allowed(&mut self, producer: &Producer, filling: &Filling<'_>) -> bool {
        let needed = filling.message.octets.div_ceil(filling.segment_octets.max(1)).max(1);
        let stream = filling.frame.stream_index;
        if self.allowance.0 != stream || self.allowance.1 < needed {
            self.allowance = (stream, share::allowance(producer, stream, needed));
        }
        let is_allowed = self.allowance.1 >= needed;
        // Slots claimed for the messages to come are its own, too.
        self.ahead_max = u32::try_from(self.allowance.1).unwrap_or(u32::MAX);
        self.allowance.1 = self.allowance.1.saturating_sub(needed);
        is_allowed
    }

    /// Waits until there are slots. A send that fails for want of them is counted.
    #[cold]
    #[inline(never)]
    fn fill_later(&mut self, mut filling: Filling<'_>, socket: c_int, flags: c_int) -> Result<(), Full> {
        let (clock, tx_time) = (filling.clock, filling.frame.tx_time);
        let since = waits::begin(clock, tx_time);
        let mut waiting: Option<Wait> = None;
        loop {
            if let Err(full) = self.wait(&mut waiting, socket, flags) {
                if let (Full::Fail(EAGAIN), Some(held)) = (&full, &self.held) {
                    held.producer().count(counter::RING_FULL);
                }
                return Err(full);
            }
            waits::note(clock, since);
            // What the program hands over after its TxTime is late without this wait.
            filling.frame.has_waited = tx_time >= since;
            if self.try_fill(&filling)? {
                return Ok(());
            }
        }
    }

    /// Waits until the send buffer of a charged stream has room. From here on slots are claimed one by one: those that
    /// are claimed and not filled could be charged.
    #[inline(never)]
    pub(crate) fn await_room(
        &mut self,
        stream: Stream,
        (clock, tx_time): (ClockId, u64),
        socket: c_int,
        flags: c_int,
    ) -> Result<(), Full> {
        self.expected_count = 1;
        let (mut waiting, mut since): (Option<Wait>, Option<u64>) = (None, None);
        while !buffer::has_room(stream, self.page) {
            let since = *since.get_or_insert_with(|| waits::begin(clock, tx_time));
            self.wait(&mut waiting, socket, flags)?;
            waits::note(clock, since);
        }
        Ok(())
    }

    /// Sleeps for a moment, having published; an error ends the wait.
    fn wait(&mut self, waiting: &mut Option<Wait>, socket: c_int, flags: c_int) -> Result<(), Full> {
        self.publish();
        (self.now, self.allowance) = (0, (0, 0));
        if let Some(held) = &self.held {
            // Claimed for messages to come: others may need them meanwhile.
            held.producer().cancel_some(core::mem::replace(&mut self.claims, Claims::NONE));
        }
        let wait = match waiting {
            Some(wait) => wait,
            None => waiting.insert(Wait::begin(socket, flags)?),
        };
        wait.nap(self.page, self.held.as_ref().ok_or(Full::Gone)?)
    }

    /// Hands the filled slots to the daemon and wakes it if it would look too late. Where no daemon hears the doorbell, the
    /// region is given up and the frames that the daemon has not taken are counted as absent.
    pub(crate) fn publish(&mut self) {
        let (Some(run), Some(held)) = (self.run.take(), &self.held) else { return };
        let (producer, count) = (held.producer(), u64::from(run.count()));
        producer.publish_run(run);
        producer.add(counter::SENT, count);
        let [monotonic, tai] = core::mem::replace(&mut self.earliest, [u64::MAX; 2]);
        let bell = |clock, at| producer.bell(clock, at, self.now);
        let bell = match (monotonic, tai) {
            (_, u64::MAX) => bell(ClockId::Monotonic, monotonic),
            (u64::MAX, _) => bell(ClockId::Tai, tai),
            _ => bell(ClockId::Monotonic, monotonic).or_else(|| bell(ClockId::Tai, tai)),
        };
        let is_unheard = bell.is_some_and(|bell| !ring(held, bell));
        if is_unheard || producer.state() != RegionState::Attached {
            cold_path();
            self.give_up_published(count);
        }
    }

    /// Gives up the region in which `count` frames were just published.
    #[cold]
    #[inline(never)]
    fn give_up_published(&mut self, count: u64) {
        let Some(held) = &self.held else { return };
        let place = held.place();
        let lost = match held.producer().state() {
            // The daemon that only cannot be woken any more takes the frames when it finds the connection closed.
            RegionState::Attached if held.region().is_displaced() => 0,
            RegionState::Attached => {
                held.region().note_absent(count);
                count
            }
            // It has taken a part of them, or none.
            _ => held.producer().take_back(),
        };
        held.give_up(self.page);
        self.release_region();
        register::count_absent(self.page, place, lost);
    }

    /// The daemon answers nothing, so a datagram cannot be handed over: counted as absent, and if the daemon has not
    /// looked for too long and no daemon hears the doorbell, its region is given up.
    pub(crate) fn absent(&mut self, octets: usize) -> Verdict {
        self.publish();
        if let Some(held) = &self.held {
            let producer = held.producer();
            let bell = producer.bell(ClockId::Monotonic, u64::MAX, clock::monotonic());
            if producer.state() != RegionState::Attached || bell.is_some_and(|bell| !ring(held, bell)) {
                held.give_up(self.page); // no daemon reads this region's counters any more
                self.release_region();
            }
        }
        register::count_absent(self.page, self.place, 1);
        Verdict::Taken(octets)
    }
}

/// Fills the slots of one message: all, or none and `None` when too few are free. They are taken from `claims`, and
/// where these are spent, `ahead` new ones at a time if there are as many.
#[inline(always)]
fn fill_slots(
    producer: &Producer,
    filling: &Filling<'_>,
    now: u64,
    claims: &mut Claims,
    ahead: u32,
) -> Result<Option<Run>, Full> {
    let (mut pieces, mut left) = (filling.message.pieces(), filling.message.octets);
    let (mut run, mut segment_number): (Option<Run>, u16) = (None, 0);
    loop {
        if claims.is_empty() {
            *claims = producer.claim_some(ahead.max(1));
        }
        let Some(claim) = producer.next(claims) else {
            cold_path();
            if let Some(run) = run {
                producer.cancel_run(run);
            }
            return Ok(None);
        };
        let octets = left.min(filling.segment_octets);
        left = left.wrapping_sub(octets);
        pieces.begin(octets);
        // One datagram has one report: when its last frame is done.
        let mut frame = if left == 0 { filling.frame } else { filling.frame.without_reports() };
        (frame.pushed_at, frame.identification) = (now, segment_number);
        segment_number = segment_number.wrapping_add(1);
        // SAFETY: the program's own segments, which the kernel could read; none of them lies in the region, whose
        // address the program does not know.
        if unsafe { producer.fill_raw(&claim, &frame, &mut pieces) }.is_err() {
            cold_path();
            producer.cancel(claim);
            if let Some(run) = run {
                producer.cancel_run(run);
            }
            return Err(Full::TooLong);
        }
        let more = producer.run(claim);
        let all = match run {
            Some(run) => producer.join(run, more),
            None => more,
        };
        if left == 0 {
            return Ok(Some(all));
        }
        run = Some(all);
    }
}

/// A wait for slots, as for room in a socket's buffer.
pub(crate) struct Wait {
    /// SO_SNDTIMEO, ns; 0 = without end.
    timeout: u64,
    began_at: u64,
    is_interrupted: bool,
}

impl Wait {
    /// The begin of a wait; EAGAIN for a call that must not wait.
    pub(crate) fn begin(socket: c_int, flags: c_int) -> Result<Self, Full> {
        if flags & MSG_DONTWAIT != 0 || sys::is_nonblocking(socket) {
            return Err(Full::Fail(EAGAIN));
        }
        Ok(Self { timeout: sys::send_timeout(socket), began_at: clock::monotonic(), is_interrupted: false })
    }

    /// Sleeps for a moment; an error ends the wait.
    pub(crate) fn nap(&mut self, page: &Page, held: &RegionUse) -> Result<(), Full> {
        // After the signal there was still no slot. As in the kernel, SA_RESTART lets a wait go on that has no SO_SNDTIMEO.
        if self.is_interrupted && (self.timeout != 0 || !signals::restarts_now()) {
            return Err(Full::Fail(EINTR));
        }
        let (producer, now) = (held.producer(), clock::monotonic());
        if producer.state() != RegionState::Attached {
            return Err(Full::Gone);
        }
        // A daemon that has not looked for too long may be gone: the doorbell shows it.
        let bell = producer.bell(ClockId::Monotonic, u64::MAX, now);
        if bell.is_some_and(|bell| !ring(held, bell)) {
            held.give_up(page);
            return Err(Full::Gone);
        }
        if self.timeout != 0 && now.saturating_sub(self.began_at) >= self.timeout {
            return Err(Full::Fail(EAGAIN));
        }
        self.is_interrupted = !sys::nap(SLOT_NAP);
        Ok(())
    }
}

/// Wakes the worker; false when no daemon is there to hear it.
fn ring(held: &RegionUse, bell: Bell) -> bool {
    let Some(doorbell) = held.region().doorbell.get() else { return false };
    held.producer().count(counter::DOORBELLS);
    // A full queue is as good as rung.
    let is_heard = matches!(sys::send(doorbell, &[1], None), Ok(()) | Err(EAGAIN | EINTR));
    if is_heard {
        held.producer().rung(bell);
    }
    is_heard
}
