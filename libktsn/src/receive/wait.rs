// SPDX-License-Identifier: Apache-2.0
//! Waits for arrivals that are expected: sleeps in the kernel's wait until shortly before, then looks again and again.
//!
//! In: a call that found nothing, its listeners, its deadline. Out: what the call returns, or `None` where nothing is expected, and then
//! nothing has waited. Signals are blocked from before the first sleep to the end, except in the kernel's waits ([`crate::process::signals`]). So
//! the call is never handed to a wait without the program's mask: after a miss it goes on sleeping here.

use core::ffi::c_int;

use ktsn_expect::{Expected, Margin, Margins, Seen};
use ktsn_time::{Monotonic, Span};

use super::cleanup::{Held, with_cleanup};
use super::decide::{SPIN_MIN, Step, decide};
use super::grant::{self, Counts};
use super::guarded::Guarded;
use super::listeners::{Listener, Set};
use super::period;
use crate::process::abi::{EBADF, EINTR, ENOSYS, EPERM, PollFd, TimeSpec};
use crate::process::page::{self, Page};
use crate::process::signals::{self, Handlers, Mask};
use crate::{process::clock, process::originals};

/// How late sleeps of this process end.
static MARGIN: Guarded<Margin> = Guarded::new(Margin::new());

/// Looks of a spin between two questions for signals: every 5 to 10 µs.
const LOOKS: u32 = 16;
/// Waits in a row that said "ready" where nothing was there: an entry in the socket's error queue makes them all say so. Then the thread
/// pauses between two looks. (The original call would wait, but signals are handled before it does: those would not end it.)
const SPURIOUS_MAX: u32 = 16;
/// The first pause; each further one in a row is twice as long, up to [`PAUSE_MAX`].
const PAUSE_MIN: Span = Span::from_nanos(62_500);
const PAUSE_MAX: Span = Span::from_nanos(1_000_000);

/// What the kernel's wait said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waited {
    /// Something is there.
    Ready,
    /// The time is over.
    TimedOut,
    /// A signal handler ran.
    Interrupted,
    /// The call has to be made as the program made it: it does not wait, or its own wait would fail as this one did.
    Final,
}

/// A call of the program that may wait.
pub(crate) trait Call {
    /// Makes the call without waiting, its errno included; `None` when there is nothing, and then errno is of no meaning.
    fn attempt(&mut self, mask: &Mask) -> Option<isize>;
    /// Sleeps in the kernel until the call would find something, `timeout` at most.
    fn wait(&mut self, timeout: Option<Span>, mask: &Mask) -> Waited;
    /// Makes the call as the program made it.
    fn make(&mut self) -> isize;
    /// Which listeners had arrivals, by the answer of a call that found something.
    fn arrived(&self, answer: isize) -> Set;
    /// What the call returns when its time is over, errno included.
    fn time_out(&mut self) -> isize;
    /// Whether SA_RESTART of a handler lets the call go on.
    fn restarts(&self) -> bool {
        false
    }
    /// Whether the call's descriptor still is what it was when the call began.
    fn is_usable(&self) -> bool {
        true
    }
}

/// When a call ends, and which signals it lets in.
pub(crate) struct Bounds<'a> {
    /// The process's page.
    pub(crate) page: &'static Page,
    /// The instant at which the call's time is over.
    pub(crate) deadline: Option<Monotonic>,
    /// The call's own signal mask.
    pub(crate) mask: Option<&'a Mask>,
    /// The program's errno before the call.
    pub(crate) errno: c_int,
}

/// In a fork's child: the thread that had the margin is not there.
pub(crate) fn in_child() {
    MARGIN.free();
}

/// Now, by CLOCK_MONOTONIC.
pub(crate) fn now() -> Monotonic {
    Monotonic::from_nanos(clock::monotonic())
}

/// An expected arrival and its listener.
type Next = (Listener, Expected<Monotonic>);

/// Waits for the next arrival at one of `set`; `None` when none is expected, and then nothing has waited.
#[inline(never)]
pub(crate) fn expect(call: &mut dyn Call, set: Set, bounds: &Bounds<'_>) -> Option<isize> {
    let begin = now();
    let socket = set.iter().find_map(Listener::descriptor)?;
    for listener in set.iter().filter(|listener| listener.expected(begin).is_none()) {
        listener.set_period(period::of(listener, Some(bounds.page)));
    }
    let left = grant::left(bounds.page, socket, begin);
    if left == Span::ZERO {
        for listener in set.iter().filter(|listener| listener.expected(begin).is_some()) {
            grant::request(bounds.page, listener);
        }
    }
    if left < SPIN_MIN {
        return None;
    }
    let mut held = Held::new();
    for listener in set.iter() {
        if listener.expected(begin).is_some()
            && let Some(lease) = listener.own(begin)
        {
            held.owned.add(listener);
            held.lease = lease;
        }
    }
    let first = next(held.owned, begin);
    if first.is_none() {
        held.give_back();
        return None;
    }
    let Some(mask) = signals::block() else {
        held.give_back();
        return None;
    };
    held.mask = Some(mask);
    // Handlers of this thread cannot change them any more.
    let handlers = if call.restarts() { Handlers::look() } else { Handlers::default() };
    if handlers.disagree(&mask) {
        // Nothing has waited yet: what is handled now came before the call.
        held.give_back();
        return None;
    }
    let margins = MARGIN.with(|margin| margin.margins()).unwrap_or(Margins::AT_START);
    Some(with_cleanup(held, |held| {
        let mask = *bounds.mask.unwrap_or(&mask);
        let mut wait = Wait {
            call,
            bounds,
            mask,
            handlers,
            held,
            margins,
            next: first,
            spurious: 0,
            pause: PAUSE_MIN,
            has_missed: false,
        };
        wait.run()
    }))
}

/// Waits for the next arrival at one of `set`, or makes the call as it is where none is expected. `timeout`: `None` = without end. `errno`:
/// the program's, before the call. Out: what the call returns, and the instant at which its time is over where the wait was ours.
#[cold]
#[inline(never)]
pub(crate) fn expect_or_make(
    call: &mut dyn Call,
    set: Set,
    timeout: Option<Span>,
    mask: Option<&Mask>,
    errno: c_int,
) -> (isize, Option<Monotonic>) {
    let begin = now();
    let deadline: Option<Monotonic> = timeout.and_then(|timeout| begin.checked_after(timeout));
    let Some(page) = page::make().filter(|page| page.may_change()) else { return (call.make(), None) };
    if let Some(answer) = expect(call, set, &Bounds { page, deadline, mask, errno }) {
        return (answer, deadline);
    }
    let answer = call.make();
    learn(call, answer);
    (answer, None)
}

/// A call that waited in the kernel has found arrivals that were not expected.
pub(crate) fn learn(call: &dyn Call, answer: isize) {
    if answer > 0 {
        let at = now();
        for listener in call.arrived(answer).iter() {
            listener.observe(at, Seen::NotAfter);
        }
    }
}

/// The earliest arrival that is expected at one of the listeners after `after`.
fn next(set: Set, after: Monotonic) -> Option<Next> {
    let lead = |(_, expected): &Next| expected.at.before(expected.spread);
    set.iter().filter_map(|listener| Some((listener, listener.expected(after)?))).min_by_key(lead)
}

/// One wait.
struct Wait<'a, 'b> {
    call: &'a mut dyn Call,
    bounds: &'a Bounds<'b>,
    /// The program's mask.
    mask: Mask,
    handlers: Handlers,
    held: *mut Held,
    margins: Margins,
    next: Option<Next>,
    /// Waits in a row that said "ready" where nothing was there.
    spurious: u32,
    /// How long the next pause is.
    pause: Span,
    /// An expected arrival of this wait did not come: the next one may be that, late.
    has_missed: bool,
}

/// Whether the wait is over.
enum Turn {
    Answer(isize),
    GoOn,
}

impl Wait<'_, '_> {
    fn run(&mut self) -> isize {
        self.renew();
        loop {
            if !self.call.is_usable() {
                // Closed, or replaced, by another thread.
                return fail(EBADF);
            }
            let now = now();
            let expected = self.next.map(|(_, expected)| expected);
            let left = grant::left_of_last(now);
            let turn = match decide(now, self.bounds.deadline, expected, &self.margins, left) {
                Step::Over => self.end(),
                Step::Missed => self.miss(now, Span::ZERO),
                Step::Sleep(until) => self.sleep(now, until),
                Step::Spin(until) => self.spin(now, until),
            };
            if let Turn::Answer(answer) = turn {
                return answer;
            }
        }
    }

    /// The set of listeners that the thread owns.
    fn owned(&self) -> Set {
        // SAFETY: `expect` holds the value while this exists; only the thread itself changes it.
        unsafe { (*self.held).owned }
    }

    /// Lets the leases last until the next expected arrival; without one they are given back.
    fn renew(&mut self) {
        // SAFETY: as in `owned`.
        let held = unsafe { &mut *self.held };
        let Some((_, expected)) = self.next else {
            for listener in core::mem::take(&mut held.owned).iter() {
                listener.give_back(held.lease);
            }
            return;
        };
        let (mut kept, mut lease) = (Set::default(), held.lease);
        for listener in held.owned.iter() {
            if let Some(new) = listener.renew(held.lease, expected.at.after(expected.spread)) {
                kept.add(listener);
                lease = new;
            }
        }
        (held.owned, held.lease) = (kept, lease);
    }

    /// The call's time is over: a signal that came before counts more.
    fn end(&mut self) -> Turn {
        match self.call.wait(Some(Span::ZERO), &self.mask) {
            Waited::Interrupted => self.interrupted(),
            Waited::Ready => match self.call.attempt(&self.mask) {
                Some(answer) => Turn::Answer(self.finish(answer, now(), Seen::NotAfter, Span::ZERO)),
                None => Turn::Answer(self.call.time_out()),
            },
            Waited::TimedOut => Turn::Answer(self.call.time_out()),
            Waited::Final => self.make(),
        }
    }

    /// The expected arrival did not come: waits for the next one.
    fn miss(&mut self, now: Monotonic, spun: Span) -> Turn {
        if let Some((listener, expected)) = self.next {
            listener.missed(expected.at);
            grant::count(listener, &Counts { missed: 1, spun, ..Counts::default() });
            self.has_missed = true;
        }
        self.next = next(self.owned(), now);
        self.renew();
        Turn::GoOn
    }

    fn sleep(&mut self, from: Monotonic, until: Option<Monotonic>) -> Turn {
        let span = until.map(|until| until.span_since(from));
        if self.spurious >= SPURIOUS_MAX {
            return self.pause(span);
        }
        match self.call.wait(span, &self.mask) {
            Waited::Ready => {
                let at = now();
                match self.call.attempt(&self.mask) {
                    Some(answer) => return Turn::Answer(self.finish(answer, at, Seen::NotAfter, Span::ZERO)),
                    // A datagram that another thread took ends a wait that did sleep.
                    None if at.span_since(from) > PAUSE_MIN => (self.spurious, self.pause) = (0, PAUSE_MIN),
                    None => self.spurious = self.spurious.saturating_add(1),
                }
            }
            Waited::TimedOut => {
                (self.spurious, self.pause) = (0, PAUSE_MIN);
                if let Some(until) = until {
                    let (span, late) = (until.since(from), now().since(until));
                    MARGIN.with(|margin| margin.observe(span, late));
                }
            }
            Waited::Interrupted => return self.interrupted(),
            Waited::Final => return self.make(),
        }
        Turn::GoOn
    }

    /// Sleeps for a moment, `span` at most, without the descriptors, then looks once. Signals end it as they end the other waits.
    fn pause(&mut self, span: Option<Span>) -> Turn {
        let pause = span.map_or(self.pause, |span| span.min(self.pause));
        self.pause = self.pause.saturating_add(self.pause).min(PAUSE_MAX);
        // SAFETY: no entries.
        match unsafe { poll(core::ptr::null_mut(), 0, Some(pause), &self.mask) } {
            Waited::Interrupted => return self.interrupted(),
            Waited::Final => return self.make(),
            Waited::Ready | Waited::TimedOut => {}
        }
        if let Some(answer) = self.call.attempt(&self.mask) {
            return Turn::Answer(self.finish(answer, now(), Seen::NotAfter, Span::ZERO));
        }
        // One ordinary wait shows whether it is still so.
        self.spurious = SPURIOUS_MAX.wrapping_sub(1);
        Turn::GoOn
    }

    fn spin(&mut self, from: Monotonic, until: Monotonic) -> Turn {
        let (mut last, mut look) = (from, 0_u32);
        loop {
            look = look.wrapping_add(1);
            let answer = self.call.attempt(&self.mask);
            let now = now();
            let spun = now.span_since(from);
            if let Some(answer) = answer {
                // What the first look finds came while the thread slept.
                let how = if look == 1 { Seen::NotAfter } else { Seen::Exact };
                return Turn::Answer(self.finish(answer, now, how, spun));
            }
            if now.since(last) > grant::LOSS {
                grant::note_loss(now);
            }
            last = now;
            let is_over = now >= until;
            if is_over || look % LOOKS == 0 {
                match self.call.wait(Some(Span::ZERO), &self.mask) {
                    Waited::Interrupted => {
                        grant::spend(spun);
                        return self.interrupted();
                    }
                    Waited::Final => {
                        grant::spend(spun);
                        return self.make();
                    }
                    // One look more finds it.
                    Waited::Ready if is_over => match self.call.attempt(&self.mask) {
                        Some(answer) => return Turn::Answer(self.finish(answer, now, Seen::Exact, spun)),
                        None => return self.miss(now, spun),
                    },
                    Waited::TimedOut if is_over => return self.miss(now, spun),
                    Waited::Ready | Waited::TimedOut => {}
                }
            }
            if !self.call.is_usable() {
                grant::spend(spun);
                return Turn::Answer(fail(EBADF));
            }
            core::hint::spin_loop();
        }
    }

    /// A handler ran.
    fn interrupted(&mut self) -> Turn {
        if self.call.restarts() && Handlers::look().restart_after(self.handlers, &self.mask) {
            return Turn::GoOn;
        }
        Turn::Answer(fail(EINTR))
    }

    /// The call as the program made it, with the program's mask. It does not wait: its socket is shut down, or its wait fails as ours did.
    fn make(&mut self) -> Turn {
        // SAFETY: as in `owned`.
        unsafe { (*self.held).give_back() };
        originals::set_errno(self.bounds.errno);
        Turn::Answer(self.call.make())
    }

    /// The call found something, or failed.
    fn finish(&mut self, answer: isize, at: Monotonic, how: Seen, spun: Span) -> isize {
        if answer < 0 {
            grant::spend(spun);
            return answer;
        }
        originals::set_errno(self.bounds.errno);
        let arrived = self.call.arrived(answer);
        for listener in arrived.iter() {
            listener.observe(at, how);
        }
        match self.next {
            Some((listener, _)) if arrived.has(listener) => {
                if how == Seen::Exact {
                    listener.note_turn();
                    grant::count(listener, &Counts { hit: 1, spun, ..Counts::default() });
                } else if !self.has_missed {
                    grant::count(listener, &Counts { early: 1, spun, ..Counts::default() });
                }
            }
            Some((listener, _)) => grant::count(listener, &Counts { spun, ..Counts::default() }),
            None => grant::spend(spun),
        }
        answer
    }
}

/// Waits in the kernel for some descriptors, with the program's mask.
///
/// # Safety
/// `asked` are `count` entries that the kernel may write to.
pub(crate) unsafe fn poll(asked: *mut PollFd, count: usize, timeout: Option<Span>, mask: &Mask) -> Waited {
    let before = originals::errno();
    let limit = timeout.map(TimeSpec::of);
    let limit: *const TimeSpec = limit.as_ref().map_or(core::ptr::null(), |limit| limit);
    // SAFETY: the caller's promise; the rest is ours and outlives the call.
    let answer = unsafe { originals::ppoll(asked, count, limit, (&raw const *mask).cast()) };
    waited(answer, before)
}

/// What the answer of the kernel's wait says; the program's errno is what it was before.
pub(crate) fn waited(answer: c_int, before: c_int) -> Waited {
    let waited = match answer {
        0 => Waited::TimedOut,
        1.. => Waited::Ready,
        _ if originals::errno() == EINTR => Waited::Interrupted,
        _ => Waited::Final,
    };
    originals::set_errno(before);
    waited
}

/// Whether a sandbox forbids a system call that the program itself did not make: `ppoll` instead of `poll`, say. The call that the program made
/// decides then.
pub(crate) fn is_forbidden(answer: c_int) -> bool {
    answer < 0 && matches!(originals::errno(), EPERM | ENOSYS)
}

/// Fails with an errno.
fn fail(errno: c_int) -> isize {
    originals::set_errno(errno);
    -1
}
