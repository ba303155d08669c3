// SPDX-License-Identifier: Apache-2.0
//! select and pselect with UDP or packet sockets among the descriptors to read.
//!
//! In: the program's sets. Out: what the kernel answers. The waits work on copies: the program's sets change when the call ends, as the kernel
//! changes them, and not when a handler ends it.

use core::ffi::{c_int, c_void};

use ktsn_time::Span;

use super::listeners::{self, Set};
use super::wait::{Call, Waited, expect_or_make, is_forbidden, now, waited};
use crate::process::abi::TimeSpec;
use crate::process::signals::Mask;
use crate::{call::memory, process::originals};

/// Words of a set that is served: descriptors below FD_SETSIZE. A call with higher ones is the kernel's.
const WORDS: usize = 16;
/// The sets to read, to write, of exceptions.
const SETS: usize = 3;

type Sets = [[u64; WORDS]; SETS];

/// The program's sets.
#[derive(Clone, Copy)]
struct Given {
    count: c_int,
    words: usize,
    at: [*mut u64; SETS],
}

impl Given {
    /// The program's arguments; `None` where the call is not served.
    fn new(count: c_int, at: [*mut c_void; SETS]) -> Option<Self> {
        let words = usize::try_from(count).ok()?.div_ceil(64);
        let at = at.map(<*mut c_void>::cast::<u64>);
        let octets = words.wrapping_mul(8);
        let is_there = |at: &*mut u64| {
            at.is_null()
                || (memory::is_readable(*at as usize, octets) && memory::is_writable(*at as usize, octets))
        };
        (words <= WORDS && !at[0].is_null() && at.iter().all(is_there)).then_some(Self { count, words, at })
    }

    /// The sets as they are.
    fn read(&self) -> Sets {
        let mut sets = [[0; WORDS]; SETS];
        for (set, at) in sets.iter_mut().zip(self.at) {
            for (index, word) in set.iter_mut().enumerate().take(if at.is_null() { 0 } else { self.words }) {
                // SAFETY: readable, as `new` found; it need not be aligned.
                *word = unsafe { at.wrapping_add(index).read_unaligned() };
            }
        }
        sets
    }

    /// Writes the sets back.
    fn write(&self, sets: &Sets) {
        for (set, at) in sets.iter().zip(self.at) {
            for (index, word) in set.iter().enumerate().take(if at.is_null() { 0 } else { self.words }) {
                // SAFETY: writable, as `new` found.
                unsafe { at.wrapping_add(index).write_unaligned(*word) };
            }
        }
    }
}

/// The descriptors of a set.
fn descriptors(words: &[u64; WORDS]) -> impl Iterator<Item = c_int> {
    let (mut index, mut left) = (0_usize, words[0]);
    core::iter::from_fn(move || {
        while left == 0 {
            index = index.wrapping_add(1);
            left = *words.get(index)?;
        }
        let bit = left.trailing_zeros() as usize;
        left &= left.wrapping_sub(1);
        Some(index.wrapping_mul(64).wrapping_add(bit) as c_int)
    })
}

/// A select of the program.
struct Selected<'a> {
    given: Given,
    /// The sets as the program gave them.
    asked: Sets,
    make: &'a mut dyn FnMut() -> isize,
}

/// How a wait ended, and how long it could have gone on.
pub(crate) struct Ended {
    /// What the call returns.
    pub(crate) answer: isize,
    /// What is left of the timeout, for select; `None` where the kernel has written it.
    pub(crate) left: Option<Span>,
}

/// Selects, or waits for what is expected. `timeout`: `None` = without end. `mask`: the call's own. `make` is the call as it is.
///
/// # Safety
/// The pointers are what the program passed.
pub(crate) unsafe fn wait(
    count: c_int,
    sets: [*mut c_void; SETS],
    timeout: Option<Span>,
    mask: *const c_void,
    make: &mut dyn FnMut() -> isize,
) -> Ended {
    let given = if timeout == Some(Span::ZERO) { None } else { Given::new(count, sets) };
    let Some(given) = given else { return Ended { answer: make(), left: None } };
    let asked = given.read();
    let mut listening = Set::default();
    for listener in descriptors(&asked[0]).filter(|fd| *fd < count).filter_map(listeners::known) {
        listening.add(listener);
    }
    if listening.is_empty() {
        let answer = make();
        if answer > 0 {
            // From its first arrival on a socket is a listener.
            Selected { given, asked, make }.arrived(answer);
        }
        return Ended { answer, left: None };
    }
    let before = originals::errno();
    let mut found = asked;
    // SAFETY: the caller's promise for the mask.
    let answer = unsafe { select(count, &mut found, &given, Some(Span::ZERO), mask) };
    if is_forbidden(answer) {
        originals::set_errno(before);
        return Ended { answer: make(), left: None };
    }
    if answer != 0 {
        if answer > 0 {
            given.write(&found);
        }
        return Ended { answer: answer as isize, left: timeout };
    }
    // SAFETY: the kernel has just read the mask, of which it knows the first word.
    let own = (!mask.is_null()).then(|| Mask::new(unsafe { mask.cast::<u64>().read_unaligned() }));
    let mut call = Selected { given, asked, make };
    let (answer, deadline) = expect_or_make(&mut call, listening, timeout, own.as_ref(), before);
    Ended { answer, left: deadline.map(|deadline| deadline.span_since(now())) }
}

/// The kernel's select on copies of the program's sets.
///
/// # Safety
/// `mask` is null or what the program passed.
unsafe fn select(
    count: c_int,
    sets: &mut Sets,
    given: &Given,
    timeout: Option<Span>,
    mask: *const c_void,
) -> c_int {
    let limit = timeout.map(TimeSpec::of);
    let limit: *const TimeSpec = limit.as_ref().map_or(core::ptr::null(), |limit| limit);
    let mut at = [core::ptr::null_mut::<c_void>(); SETS];
    for ((to, set), program) in at.iter_mut().zip(sets.iter_mut()).zip(given.at) {
        if !program.is_null() {
            *to = set.as_mut_ptr().cast();
        }
    }
    let [to_read, to_write, exceptions] = at;
    // SAFETY: the sets are ours and have room for `count` descriptors; the caller's promise for the mask.
    unsafe { originals::pselect(count, to_read, to_write, exceptions, limit, mask) }
}

impl Call for Selected<'_> {
    fn attempt(&mut self, mask: &Mask) -> Option<isize> {
        let mut found = self.asked;
        // SAFETY: the mask is ours.
        let answer = unsafe {
            select(self.given.count, &mut found, &self.given, Some(Span::ZERO), (&raw const *mask).cast())
        };
        if answer > 0 {
            self.given.write(&found);
        }
        (answer != 0).then_some(answer as isize)
    }

    fn wait(&mut self, timeout: Option<Span>, mask: &Mask) -> Waited {
        let before = originals::errno();
        let mut found = self.asked;
        // SAFETY: the mask is ours.
        let answer =
            unsafe { select(self.given.count, &mut found, &self.given, timeout, (&raw const *mask).cast()) };
        waited(answer, before)
    }

    fn make(&mut self) -> isize {
        (self.make)()
    }

    fn arrived(&self, _answer: isize) -> Set {
        let mut set = Set::default();
        let [readable, ..] = self.given.read();
        for listener in
            descriptors(&readable).filter(|fd| *fd < self.given.count).filter_map(listeners::of_call)
        {
            set.add(listener);
        }
        set
    }

    fn time_out(&mut self) -> isize {
        self.given.write(&[[0; WORDS]; SETS]);
        0
    }
}
