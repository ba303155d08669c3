// SPDX-License-Identifier: Apache-2.0
//! Which frames the worker expects: when the next frame of each periodic stream is due, before its program has sent it.
//!
//! In: the transmit times of frames as they are taken over; frames that were not there when they were expected. Out: the instant for
//! which the worker must have polled the rings, and how many frames are expected at it. It decides nothing about sleep or promises
//! (`pacing`, `attention`). A wrong expectation costs a wake-up and never a frame: a program whose frame comes before the promise
//! rings the doorbell.
//!
//! ```text
//!   a stream's frames:  learn ──► expected ──────► in the ring when the worker wakes: the next one is expected
//!                         ▲          │ not there, EMPTY_IN_A_ROW times
//!                         │          ▼
//!                         └─────── pause: its frames ring the doorbell, for four frames, then for twice as many each time
//! ```
//!
//! A stream has a [`Mark`] in its client's memory; the mark names an entry here. There are [`limits::EXPECTED_MAX`] entries, and one
//! attachment has [`limits::EXPECTED_A_ATTACHMENT`] of them at most. The earliest one is found by a tournament tree (`earliest`).
//! Memory is allocated when the worker or the client is made.

use ktsn_expect::{Predictor, Seen};
use ktsn_resolve::AttachmentIndex;
use ktsn_time::{Monotonic, Nanos, Now, Tai, TxTime};

use super::earliest::Earliest;
use crate::limits;

/// What a client knows of one stream's expectation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Mark(u16);

/// Bit of a mark that counts frames.
const COUNTS: u16 = 1 << 15;

impl Mark {
    const NONE: Self = Self(0);

    /// The entry that it names.
    fn entry(self) -> Option<usize> {
        (self.0 & COUNTS == 0).then(|| usize::from(self.0).checked_sub(1)).flatten()
    }

    fn names(entry: usize) -> Self {
        Self(entry as u16 + 1) // an entry is below EXPECTED_MAX
    }

    /// So many frames of the stream are not looked at.
    fn skips(frames: u16) -> Self {
        Self(COUNTS | frames)
    }

    /// Counts a frame; true when it is not to be looked at.
    fn skip(&mut self) -> bool {
        if self.0 & COUNTS == 0 {
            return false;
        }
        *self = if self.0 == COUNTS { Self::NONE } else { Self(self.0 - 1) };
        *self != Self::NONE
    }
}

/// The marks of a client's streams.
pub(super) fn marks() -> Box<[Mark]> {
    vec![Mark::NONE; limits::STREAMS_MAX as usize].into_boxed_slice()
}

/// A stream, as its frames name it: the place of its client, its index and its token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StreamKey {
    pub client: usize,
    pub index: u32,
    pub token: u32,
}

/// A frame that was just queued.
#[derive(Clone, Copy, Debug)]
pub(super) struct QueuedFrame {
    pub stream: StreamKey,
    pub attachment: AttachmentIndex,
    pub tx_time: TxTime,
    pub port: usize,
}

/// The frame that is expected first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Nearest {
    /// Its entry.
    pub entry: usize,
    pub stream: StreamKey,
    pub attachment: AttachmentIndex,
    pub port: usize,
    /// The earliest instant for which it may be due.
    pub from: Monotonic,
    /// Frames that are expected so close together that they are taken over one after the other, itself included.
    pub together: usize,
}

/// What was learnt of a stream, by the clock of its transmit times.
#[derive(Clone, Copy, Debug)]
enum Learnt {
    Tai(Predictor<Tai>),
    Monotonic(Predictor<Monotonic>),
}

impl Learnt {
    /// Nothing, on the clock of this transmit time.
    fn nothing(at: TxTime) -> Self {
        match at {
            TxTime::Tai(_) => Self::Tai(Predictor::new()),
            TxTime::Monotonic(_) => Self::Monotonic(Predictor::new()),
        }
    }

    /// Learns from a transmit time; one of another clock begins again.
    fn observe(&mut self, at: TxTime) {
        match (&mut *self, at) {
            (Self::Tai(predictor), TxTime::Tai(at)) => predictor.observe(at, Seen::Exact),
            (Self::Monotonic(predictor), TxTime::Monotonic(at)) => predictor.observe(at, Seen::Exact),
            _ => {
                *self = Self::nothing(at);
                self.observe(at);
            }
        }
    }

    /// The next transmit time after `after`, and its spread.
    fn expected(&self, after: TxTime) -> Option<Awaited> {
        match (self, after) {
            (Self::Tai(predictor), TxTime::Tai(after)) => predictor
                .expected(after)
                .map(|next| Awaited { at: TxTime::Tai(next.at), spread: next.spread.to_nanos() }),
            (Self::Monotonic(predictor), TxTime::Monotonic(after)) => predictor
                .expected(after)
                .map(|next| Awaited { at: TxTime::Monotonic(next.at), spread: next.spread.to_nanos() }),
            _ => None,
        }
    }

    fn missed(&mut self, at: TxTime) {
        match (self, at) {
            (Self::Tai(predictor), TxTime::Tai(at)) => predictor.missed(at),
            (Self::Monotonic(predictor), TxTime::Monotonic(at)) => predictor.missed(at),
            _ => {}
        }
    }
}

/// A frame that is expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Awaited {
    at: TxTime,
    spread: Nanos,
}

impl Awaited {
    /// True when a frame of this transmit time is the expected one.
    fn is_met_by(&self, at: TxTime) -> bool {
        span_between(self.at, at).is_some_and(|span| span.abs() <= self.spread)
    }
}

/// How much later `b` is than `a`; `None`: they are of different clocks.
fn span_between(a: TxTime, b: TxTime) -> Option<Nanos> {
    match (a, b) {
        (TxTime::Tai(a), TxTime::Tai(b)) => Some(b.since(a)),
        (TxTime::Monotonic(a), TxTime::Monotonic(b)) => Some(b.since(a)),
        _ => None,
    }
}

/// The later of two instants; `a`, where they are of different clocks.
fn later(a: TxTime, b: TxTime) -> TxTime {
    if span_between(a, b).is_some_and(|span| span > Nanos::ZERO) { b } else { a }
}

/// One stream.
#[derive(Clone, Copy, Debug)]
struct Entry {
    stream: StreamKey,
    attachment: AttachmentIndex,
    port: usize,
    learnt: Learnt,
    /// The furthest transmit time that was taken over.
    furthest: TxTime,
    /// When a frame was taken over last.
    taken_at: Monotonic,
    awaited: Option<Awaited>,
    /// The expected frame that was not there when the worker woke for it last, until it comes.
    absent: Option<Awaited>,
    /// Frames in a row after which none was expected.
    unpredicted: u16,
    /// Expected frames in a row that were not there.
    empty: u8,
    /// Expectations in a row that were passed over.
    passed: u8,
    /// Frames until one is expected again, and the length of the next pause.
    pause: u16,
    next_pause: u16,
}

impl Entry {
    fn new(frame: &QueuedFrame, now: Monotonic) -> Self {
        Self {
            stream: frame.stream,
            attachment: frame.attachment,
            port: frame.port,
            learnt: Learnt::nothing(frame.tx_time),
            furthest: frame.tx_time,
            taken_at: now,
            awaited: None,
            absent: None,
            unpredicted: 0,
            empty: 0,
            passed: 0,
            pause: 0,
            next_pause: limits::EXPECTED_PAUSE,
        }
    }

    /// Learns from a frame; true when it is the one that was expected.
    fn note(&mut self, frame: &QueuedFrame, now: Now) -> bool {
        let at = frame.tx_time;
        let is_met = self.awaited.is_some_and(|awaited| awaited.is_met_by(at));
        if is_met {
            (self.empty, self.next_pause) = (0, limits::EXPECTED_PAUSE);
        }
        if let Some(absent) = self.absent.take().filter(|absent| !absent.is_met_by(at))
            && span_between(absent.at, at).is_some_and(|span| span > Nanos::ZERO)
        {
            self.learnt.missed(absent.at);
        }
        self.learnt.observe(at);
        // While frames of several periods are queued, the next one comes after all of them.
        let is_ahead = self.furthest.ahead_of(now) > Nanos::ZERO;
        self.furthest = if is_ahead { later(at, self.furthest) } else { at };
        (self.port, self.taken_at, self.passed) = (frame.port, now.monotonic, 0);
        self.awaited = None;
        if self.pause > 0 {
            self.pause -= 1;
        }
        if self.pause == 0 {
            self.await_after(self.furthest, now);
        }
        is_met
    }

    /// Expects the next frame after `after`, where there is one before the client would be quiet.
    fn await_after(&mut self, after: TxTime, now: Now) {
        let reading = match after {
            TxTime::Tai(_) => TxTime::Tai(now.tai),
            TxTime::Monotonic(_) => TxTime::Monotonic(now.monotonic),
        };
        let after = later(after, reading);
        self.awaited = self.learnt.expected(after).filter(|next| {
            span_between(after, next.at).is_some_and(|span| span <= limits::EXPECTED_PERIOD_MAX)
        });
    }

    /// The expected frame was not there.
    fn note_absent(&mut self, now: Now) {
        let Some(awaited) = self.awaited else { return };
        if let Some(absent) = self.absent.replace(awaited) {
            self.learnt.missed(absent.at);
        }
        self.empty += 1;
        if self.empty >= limits::EMPTY_IN_A_ROW {
            // After the pause one more is enough.
            self.empty = limits::EMPTY_IN_A_ROW - 1;
            self.pause = self.next_pause;
            self.next_pause = (self.next_pause * 2).min(limits::EXPECTED_PAUSE_MAX);
            self.awaited = None;
        } else {
            self.await_after(awaited.at, now);
        }
    }

    /// The frame is left to the doorbell.
    fn pass_over(&mut self, now: Now) {
        self.passed = self.passed.saturating_add(1);
        match self.awaited.take() {
            Some(awaited) if self.passed < limits::EMPTY_IN_A_ROW => self.await_after(awaited.at, now),
            _ => {}
        }
    }

    /// The earliest instant for which the expected frame may be due.
    fn from(&self, now: Now) -> Option<Monotonic> {
        let awaited = self.awaited?;
        Some(now.monotonic.saturating_add(awaited.at.ahead_of(now)).saturating_sub(awaited.spread))
    }
}

/// What became of a frame for the expectations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Noted {
    /// The frame was expected.
    pub is_met: bool,
    /// The stream's next frame is expected.
    pub is_expected: bool,
}

/// The expected frames of one worker.
#[derive(Debug)]
pub(super) struct Expectations {
    entries: Box<[Option<Entry>]>,
    /// By entry: the earliest instant for which its frame may be due.
    earliest: Earliest,
    free: Vec<u16>,
    /// Entries by attachment.
    shares: Box<[u16]>,
    /// The entry for which the worker sleeps or slept last.
    slept_for: Option<usize>,
    /// The entry that housekeeping visits next.
    visits: usize,
}

impl Expectations {
    /// No stream is expected.
    pub(super) fn new() -> Self {
        Self {
            entries: vec![None; limits::EXPECTED_MAX].into_boxed_slice(),
            earliest: Earliest::new(limits::EXPECTED_MAX),
            free: (0..limits::EXPECTED_MAX as u16).rev().collect(),
            shares: vec![0; limits::ATTACHMENTS_MAX].into_boxed_slice(),
            slept_for: None,
            visits: 0,
        }
    }

    /// A frame was queued. `mark` is its stream's.
    #[inline]
    pub(super) fn note_frame(&mut self, mark: &mut Mark, frame: &QueuedFrame, now: Now) -> Noted {
        if mark.skip() {
            return Noted::default();
        }
        let Some(at) = self.entry_for(mark, frame, now) else {
            *mark = Mark::skips(limits::EXPECTED_PAUSE_MAX);
            return Noted::default();
        };
        let Some(entry) = self.entries[at].as_mut() else { return Noted::default() };
        let is_met = entry.note(frame, now);
        let from = entry.from(now);
        self.earliest.set(at, from);
        if from.is_none() && entry.pause == 0 {
            entry.unpredicted += 1;
            if entry.unpredicted >= limits::EXPECTED_LEARNS {
                *mark = Mark::skips(limits::EXPECTED_PAUSE_MAX);
                self.release(at);
            }
        } else {
            entry.unpredicted = 0;
        }
        Noted { is_met, is_expected: from.is_some() }
    }

    /// The entry that the mark names, where it is one of this index of this client.
    fn entry_of(&self, mark: Mark, client: usize, index: u32) -> Option<usize> {
        let at = mark.entry()?;
        let stream = self.entries.get(at)?.as_ref()?.stream;
        (stream.client == client && stream.index == index).then_some(at)
    }

    /// The entry of the frame's stream; a new one, where the stream has none, or the index was registered again. `None`: all are in
    /// use, or the attachment has its share.
    fn entry_for(&mut self, mark: &mut Mark, frame: &QueuedFrame, now: Now) -> Option<usize> {
        let StreamKey { client, index, .. } = frame.stream;
        if let Some(at) = self.entry_of(*mark, client, index) {
            let is_its = |entry: &Entry| entry.stream == frame.stream && entry.attachment == frame.attachment;
            if self.entries[at].as_ref().is_some_and(is_its) {
                return Some(at);
            }
            self.release(at);
        }
        let share = self.shares.get_mut(usize::from(frame.attachment.0))?;
        if usize::from(*share) >= limits::EXPECTED_A_ATTACHMENT {
            return None;
        }
        let at = usize::from(self.free.pop()?);
        *share += 1;
        *mark = Mark::names(at);
        self.entries[at] = Some(Entry::new(frame, now.monotonic));
        Some(at)
    }

    /// The stream's frames are not expected: they are wanted as early as they can be.
    pub(super) fn forget_stream(&mut self, mark: &mut Mark, client: usize, index: u32) {
        if let Some(at) = self.entry_of(*mark, client, index) {
            self.release(at);
        }
        *mark = Mark::NONE;
    }

    /// The client in this place ends.
    pub(super) fn forget_client(&mut self, marks: &mut [Mark], client: usize) {
        for (index, mark) in (0u32..).zip(marks).filter(|(_, mark)| **mark != Mark::NONE) {
            self.forget_stream(mark, client, index);
        }
    }

    /// Frees an entry. A mark that still names it finds another stream there, or none.
    pub(super) fn release(&mut self, at: usize) {
        let Some(entry) = self.entries.get_mut(at).and_then(Option::take) else { return };
        self.earliest.set(at, None);
        self.free.push(at as u16); // an entry is below EXPECTED_MAX
        if let Some(share) = self.shares.get_mut(usize::from(entry.attachment.0)) {
            *share = share.saturating_sub(1);
        }
        self.slept_for = self.slept_for.filter(|slept_for| *slept_for != at);
    }

    /// The frame that is expected first.
    pub(super) fn nearest(&self) -> Option<Nearest> {
        let (at, from) = self.earliest.first()?;
        let Entry { stream, attachment, port, .. } = self.entries.get(at)?.as_ref()?;
        let together = self.count_together(from);
        Some(Nearest { entry: at, stream: *stream, attachment: *attachment, port: *port, from, together })
    }

    /// How many frames are expected so soon after `from` that they are still being taken over when they are due.
    fn count_together(&self, from: Monotonic) -> usize {
        let mut together = 1;
        for _ in 0..limits::EXPECTED_COUNTS {
            let until = from.saturating_add(limits::INTAKE_FRAME.saturating_mul(together as i64));
            let count = self.earliest.count_until(until, limits::EXPECTED_TOGETHER_MAX);
            if count <= together {
                break;
            }
            together = count;
        }
        together
    }

    /// The worker sleeps until the look for this entry from now on; `None`: for something else.
    pub(super) fn sleep_for(&mut self, entry: Option<usize>) {
        self.slept_for = entry;
    }

    /// The entry's frame was not there when the rings had to be polled for it. True when the worker woke for it.
    pub(super) fn note_absent(&mut self, at: usize, now: Now) -> bool {
        self.change(at, now, Entry::note_absent);
        self.slept_for.take_if(|slept_for| *slept_for == at).is_some()
    }

    /// The worker does not wake for this frame: its program rings the doorbell.
    pub(super) fn pass_over(&mut self, at: usize, now: Now) {
        self.change(at, now, Entry::pass_over);
    }

    fn change(&mut self, at: usize, now: Now, change: impl FnOnce(&mut Entry, Now)) {
        if let Some(entry) = self.entries.get_mut(at).and_then(Option::as_mut) {
            change(entry, now);
            let from = entry.from(now);
            self.earliest.set(at, from);
        }
    }

    /// TAI was set: what was learnt of its transmit times is void.
    pub(super) fn note_step(&mut self) {
        for (at, entry) in self.entries.iter_mut().enumerate() {
            if let Some(entry) = entry
                && matches!(entry.learnt, Learnt::Tai(_))
            {
                entry.learnt = Learnt::nothing(TxTime::Tai(Tai::ZERO));
                (entry.awaited, entry.absent) = (None, None);
                self.earliest.set(at, None);
            }
        }
    }

    /// Frees some entries of streams that have had no frame for long.
    pub(super) fn housekeeping(&mut self, now: Monotonic) {
        let end = (self.visits + limits::EXPECTED_VISITS).min(self.entries.len());
        for at in self.visits..end {
            let is_idle = |entry: &Entry| now.since(entry.taken_at) > limits::EXPECTED_IDLE;
            if self.entries[at].as_ref().is_some_and(is_idle) {
                self.release(at);
            }
        }
        self.visits = if end == self.entries.len() { 0 } else { end };
    }
}

#[cfg(test)]
#[path = "expectations_tests.rs"]
mod tests;
