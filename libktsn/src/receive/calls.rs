// SPDX-License-Identifier: Apache-2.0
//! recv, recvfrom, recvmsg, recvmmsg, read and readv on a UDP or packet socket.
//!
//! In: a call of the program, twice: without waiting, and as it is. Out: what it returns, errno included. Data that waits is returned by
//! the first, which is one system call as without this library.

use core::ffi::c_int;

use ktsn_expect::Seen;
use ktsn_time::Span;

use super::cleanup::{Held, with_cleanup};
use super::grant;
use super::listeners::{self, Listener, Set};
use super::period;
use super::switch;
use super::wait::{Bounds, Call, Waited, expect, now, poll};
use crate::process::abi::{
    EAGAIN, EINTR, MSG_DONTWAIT, MSG_ERRQUEUE, MSG_OOB, MSG_WAITALL, POLLIN, POLLRDHUP, PollFd,
};
use crate::process::page::{self, Page};
use crate::process::signals::Mask;
use crate::{process::originals, process::sys};

/// The listener of a descriptor whose call with these flags may wait.
#[inline]
pub(crate) fn served(fd: c_int, flags: c_int) -> Option<Listener> {
    const NOT_SERVED: c_int = MSG_DONTWAIT | MSG_ERRQUEUE | MSG_OOB | MSG_WAITALL;
    if !switch::is_on() || flags & NOT_SERVED != 0 {
        return None;
    }
    listeners::of_call(fd).filter(|listener| !listener.is_nonblocking())
}

/// A receive call: with MSG_DONTWAIT or the like, and as the program made it.
pub(crate) struct Received<'a> {
    /// Its descriptor.
    pub(crate) fd: c_int,
    /// The socket behind it.
    pub(crate) listener: Listener,
    /// The cookie of that socket.
    pub(crate) cookie: u64,
    /// The call that does not wait.
    pub(crate) attempt: &'a mut dyn FnMut() -> isize,
    /// The call as it is.
    pub(crate) make: &'a mut dyn FnMut() -> isize,
    /// SO_RCVTIMEO is set: a handler ends the call whatever its SA_RESTART.
    pub(crate) is_timed: bool,
}

/// Receives at once, or waits.
#[inline]
pub(crate) fn receive(
    fd: c_int,
    listener: Listener,
    mut attempt: impl FnMut() -> isize,
    mut make: impl FnMut() -> isize,
) -> isize {
    let before = originals::errno();
    let answer = attempt();
    if answer >= 0 || originals::errno() != EAGAIN {
        return answer;
    }
    let cookie = listener.cookie();
    let call = Received { fd, listener, cookie, attempt: &mut attempt, make: &mut make, is_timed: false };
    receive_later(call, before)
}

#[cold]
#[inline(never)]
fn receive_later(mut call: Received<'_>, errno: c_int) -> isize {
    let (fd, listener) = (call.fd, call.listener);
    // A vfork's child shares the tables and must not change them.
    let page = page::make().filter(|page| page.may_change());
    if let Some(page) = page
        && is_idle(listener, page)
    {
        originals::set_errno(errno);
        return block(&mut call);
    }
    if sys::is_nonblocking(fd) {
        listener.set_nonblocking();
        return -1; // EAGAIN
    }
    originals::set_errno(errno);
    let Some(page) = page else { return (call.make)() };
    if !listener.is_of(fd) {
        listeners::forget(fd); // a close that no hook saw
        return (call.make)();
    }
    let timeout = sys::receive_timeout(fd);
    call.is_timed = timeout != 0;
    let begin = now();
    if listener.take_changed() {
        let answer = (call.make)();
        // A negative SO_RCVTIMEO reads as "without end" and does not wait.
        if answer < 0 && !call.is_timed && originals::errno() == EAGAIN {
            listener.set_nonblocking();
        }
        return answer;
    }
    let deadline = call.is_timed.then(|| begin.after(Span::from_nanos(timeout)));
    let bounds = Bounds { page, deadline, mask: None, errno };
    let mut set = Set::default();
    set.add(listener);
    if !listener.is_others_turn()
        && let Some(answer) = expect(&mut call, set, &bounds)
    {
        return answer;
    }
    block(&mut call)
}

/// Whether nothing is expected at a listener of a served process. Its call needs no preparation then: the kernel makes it as it is, and what
/// comes is learnt.
fn is_idle(listener: Listener, page: &'static Page) -> bool {
    let begin = now();
    if listener.expected(begin).is_some() || !grant::is_served(page) {
        return false;
    }
    listener.set_period(period::of(listener, Some(page)));
    listener.expected(begin).is_none()
}

/// The call as the program made it. What it receives is an arrival that was not expected.
fn block(call: &mut Received<'_>) -> isize {
    let mut held = Held::new();
    held.waiting = Some(call.listener);
    call.listener.begin_waiting();
    let answer = with_cleanup(held, |_| (call.make)());
    if answer >= 0 {
        call.listener.observe(now(), Seen::NotAfter);
    } else if originals::errno() == EAGAIN
        // A negative SO_RCVTIMEO reads as "without end" and does not wait.
        && (sys::is_nonblocking(call.fd) || sys::receive_timeout(call.fd) == 0)
    {
        call.listener.set_nonblocking();
    }
    answer
}

impl Call for Received<'_> {
    fn attempt(&mut self, _mask: &Mask) -> Option<isize> {
        let answer = (self.attempt)();
        // A datagram with a bad checksum, or one that another thread took, leaves nothing.
        (answer >= 0 || !matches!(originals::errno(), EAGAIN | EINTR)).then_some(answer)
    }

    fn wait(&mut self, timeout: Option<Span>, mask: &Mask) -> Waited {
        let mut asked = PollFd { fd: self.fd, events: POLLIN | POLLRDHUP, revents: 0 };
        // SAFETY: one entry of ours, which outlives the call.
        match unsafe { poll(&mut asked, 1, timeout, mask) } {
            // Shut down: the call itself says so, without waiting.
            Waited::Ready if asked.revents & POLLRDHUP != 0 => Waited::Final,
            waited => waited,
        }
    }

    fn make(&mut self) -> isize {
        (self.make)()
    }

    fn arrived(&self, _answer: isize) -> Set {
        let mut set = Set::default();
        set.add(self.listener);
        set
    }

    fn time_out(&mut self) -> isize {
        originals::set_errno(EAGAIN);
        -1
    }

    fn restarts(&self) -> bool {
        !self.is_timed
    }

    fn is_usable(&self) -> bool {
        // The number, and the listener's place, may be another socket's by now.
        self.listener.is_named(self.fd) && self.listener.cookie() == self.cookie
    }
}
