// SPDX-License-Identifier: Apache-2.0
//! epoll_wait, epoll_pwait and epoll_pwait2 on sets with UDP or packet sockets, and epoll_ctl, which makes the sets.
//!
//! In: the program's calls. Out: what the kernel answers. The wait is `ppoll` on the set's own descriptor; events come from the program's call
//! alone, made without waiting, so edges, levels and one-shots stay the kernel's.

use core::ffi::{c_int, c_void};

use ktsn_time::Span;

use super::epolls;
use super::listeners::{self, Set};
use super::wait::{Call, Waited, expect_or_make, poll};
use crate::process::abi::{EPOLL_CTL_DEL, EPOLLIN, EPOLLRDNORM, EpollEvent, POLLIN, PollFd};
use crate::process::signals::Mask;
use crate::{process::originals, process::page};

/// After a successful `epoll_ctl`.
///
/// # Safety
/// The arguments are those of a call that the kernel accepted.
pub(crate) unsafe fn controlled(set: c_int, operation: c_int, fd: c_int, event: *const EpollEvent) {
    if !page::may_change() {
        return;
    }
    if operation == EPOLL_CTL_DEL {
        if let Some(listener) = listeners::known(fd) {
            epolls::remove(set, listener.index);
        }
        return;
    }
    // SAFETY: the kernel has just read it.
    let event = unsafe { event.read_unaligned() };
    let Some(listener) = listeners::of_call(fd) else { return };
    if event.events & (EPOLLIN | EPOLLRDNORM) != 0 {
        epolls::put(set, listener.index, event.data);
    } else {
        epolls::remove(set, listener.index);
    }
}

/// A wait of the program for a set.
struct Waiting<'a> {
    set: c_int,
    events: *const EpollEvent,
    attempt: &'a mut dyn FnMut() -> isize,
    make: &'a mut dyn FnMut() -> isize,
}

/// Waits for a set. `timeout`: `None` = without end. `attempt` is the call with a timeout of zero, `make` the call as it is.
///
/// # Safety
/// `events` and `mask` are what the program passed to both.
pub(crate) unsafe fn wait(
    set: c_int,
    events: *const EpollEvent,
    timeout: Option<Span>,
    mask: *const c_void,
    mut attempt: impl FnMut() -> isize,
    mut make: impl FnMut() -> isize,
) -> isize {
    let listeners = Set(epolls::listeners_of(set));
    if listeners.is_empty() || timeout == Some(Span::ZERO) {
        return make();
    }
    let before = originals::errno();
    let answer = attempt();
    if answer != 0 {
        return answer;
    }
    let mut call = Waiting { set, events, attempt: &mut attempt, make: &mut make };
    // SAFETY: the kernel has just read the mask, of which it knows the first word.
    let own = (!mask.is_null()).then(|| Mask::new(unsafe { mask.cast::<u64>().read_unaligned() }));
    expect_or_make(&mut call, listeners, timeout, own.as_ref(), before).0
}

impl Call for Waiting<'_> {
    fn attempt(&mut self, _mask: &Mask) -> Option<isize> {
        let answer = (self.attempt)();
        (answer != 0).then_some(answer)
    }

    fn wait(&mut self, timeout: Option<Span>, mask: &Mask) -> Waited {
        let mut asked = PollFd { fd: self.set, events: POLLIN, revents: 0 };
        // SAFETY: one entry of ours, which outlives the call.
        unsafe { poll(&raw mut asked, 1, timeout, mask) }
    }

    fn make(&mut self) -> isize {
        (self.make)()
    }

    fn arrived(&self, answer: isize) -> Set {
        let mut found = Set::default();
        for index in 0..answer.unsigned_abs() {
            // SAFETY: the kernel has just written so many events to the program's array.
            let event = unsafe { self.events.wrapping_add(index).read_unaligned() };
            if event.events & (EPOLLIN | EPOLLRDNORM) != 0
                && let Some(listener) = epolls::listener_of(self.set, event.data).and_then(listeners::get)
            {
                found.add(listener);
            }
        }
        found
    }

    fn time_out(&mut self) -> isize {
        0
    }
}
