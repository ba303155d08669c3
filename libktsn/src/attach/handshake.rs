// SPDX-License-Identifier: Apache-2.0
//! Finding the daemon, and finding it again.
//!
//! In: a socket whose namespace the daemon may know, and the time. Out: a region in use, or not. One step never
//! blocks; it is taken by whatever timed send finds no region and gets the lock at once, so that a program that
//! gave up waiting is attached by its next send. Only [`wait`] waits, for [`ATTACH_WAIT`]: for `SO_TXTIME`, for the ioctls of
//! [`hwtstamp`](super::hwtstamp), and for a send of a fork's child, of a socket never seen before, or after a displaced descriptor.
//!
//! ```text
//! idle ──connect, Hello + socket──► waiting ──HelloReply + memfd + doorbell──► attached
//!   ▲ 5 ms for 2 s, then 100 ms;      │ refused, 10 s of silence                  │ doorbell fails, state ≠ 0
//!   │ never attached: 1 s             │                                           │
//!   └─────────────────────────────────┴───────────────────────────────────────────┘
//! ```
//! Where the region names other attachments of the namespace, the same steps are made for each of them, by the
//! number of its interface.

use core::ffi::{CStr, c_int};
use core::sync::atomic::{
    AtomicBool, AtomicU32,
    Ordering::{Acquire, Relaxed, Release},
};

use ktsn_ring::control::{Hello, HelloReply, HelloStatus, MESSAGE_OCTETS_MAX};
use ktsn_ring::layout::ABI;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsRawFd, BorrowedFd, OwnedFd};

use crate::process::abi::{EAGAIN, EBADF, EMFILE, ENOMEM, EPROTO};
use crate::process::page::{Locked, Page};
use crate::process::region::{self, Region, RegionUse};
use crate::{process::clock, process::env, process::limit, process::root, process::sys, streams};

/// How long the first connection to ktsnd may take, ns: a daemon that accepts has hundreds of others before us at worst.
pub(crate) const ATTACH_WAIT: u64 = 1_000_000_000;
/// Between two attempts to come back, ns.
const RETRY: u64 = 100_000_000;
/// The same for a daemon that has just gone, ns: the next one may take over at once, and each frame until then is lost.
const RETRY_SOON: u64 = 5_000_000;
/// How long a daemon counts as just gone, ns.
const SOON: u64 = 2_000_000_000;
/// Between two attempts of a program that was never attached, ns: most of these never will be.
const RETRY_STRANGER: u64 = 1_000_000_000;
/// Between two attempts when the daemon has more callers than it can hear at once, ns.
const BUSY_NAP: u32 = 1_000_000;
/// A daemon that accepts and says nothing, ns. Long: one that dies ends the connection.
const REPLY_WAIT: u64 = 10_000_000_000;

/// Whether this process or an ancestor was ever attached: then timed sends never go to the kernel unseen.
static ONCE: AtomicBool = AtomicBool::new(false);
/// The daemon's last refusal, [`HelloStatus`] as a number; 0 = none, it was not there.
static REFUSAL: AtomicU32 = AtomicU32::new(0);
/// In its place: this program has no descriptor left for the two that are needed.
const NO_DESCRIPTOR: u32 = u32::MAX;
/// In its place: the daemon is there and ended the last connection without an answer.
const CUT_OFF: u32 = u32::MAX - 1;
/// In its place: the daemon attached this program, whose memory is locked and has no room for the region.
const LOCKED_MEMORY: u32 = u32::MAX - 2;
/// In its place: the daemon attached this program, which has no address space for the region.
const NO_MEMORY: u32 = u32::MAX - 3;

/// How far a connection to ktsnd is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    Attached,
    /// The daemon's answer is under way.
    Waiting(u32),
    /// The daemon is there and busy.
    Busy,
    /// There is no region now.
    Absent,
}

/// Whether this process or an ancestor was ever attached.
pub(crate) fn was_attached() -> bool {
    ONCE.load(Acquire)
}

/// One step, if no other thread is at it; never blocks.
pub(crate) fn advance(page: &'static Page, socket: c_int) {
    // A vfork's child shares the page, and must not attach in its parent's name.
    if page.may_change()
        && let Some(locked) = page.try_lock()
    {
        step(page, &locked, socket);
    }
}

/// Attaches, and waits for it until `deadline` (CLOCK_MONOTONIC, ns). An absent or refusing daemon is known at once. One that
/// is there and does not answer, or ends the connection without an answer, is asked again until then.
pub(crate) fn wait(page: &'static Page, socket: c_int, deadline: u64) -> bool {
    loop {
        let taken = page.try_lock().map(|locked| step(page, &locked, socket));
        let now = clock::monotonic();
        match taken {
            Some(Step::Attached) => return true,
            Some(Step::Absent) => return false,
            // One attachment of several is enough.
            _ if now >= deadline => return is_attached(page),
            Some(Step::Waiting(number)) => wait_for_reply(number, deadline.saturating_sub(now)),
            // Another thread is attaching, or the daemon's queue of callers is full.
            Some(Step::Busy) | None => {
                sys::nap(BUSY_NAP);
            }
        }
    }
}

fn wait_for_reply(number: u32, nanos: u64) {
    let Some(fd) = Region::get(number).and_then(|region| region.control.get()).filter(|fd| *fd >= 0) else {
        return;
    };
    // SAFETY: not -1; borrowed for one call, and a descriptor that the program closes meanwhile is an error value.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    let timeout = Timespec { tv_sec: 0, tv_nsec: i64::try_from(nanos.min(ATTACH_WAIT)).unwrap_or(0) };
    let _ = poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&timeout));
}

fn is_attached(page: &Page) -> bool {
    RegionUse::current(page).is_some()
}

fn step(page: &'static Page, _locked: &Locked, socket: c_int) -> Step {
    if page.is_fresh() {
        region::forget_parents();
        streams::forget_registrations();
        page.own();
    }
    region::sweep(page);
    let is_attached = is_attached(page);
    let interface = region::missing(page);
    let waiting = page.waiting.load(Relaxed);
    if is_attached && interface == 0 && waiting == 0 {
        return Step::Attached;
    }
    let now = clock::monotonic();
    if !is_attached && page.absent_since.load(Relaxed) == 0 {
        page.absent_since.store(now, Relaxed);
    }
    let or_absent = if is_attached { Step::Attached } else { Step::Absent };
    if waiting != 0 {
        return match read_reply(page, waiting, now) {
            Step::Absent => or_absent,
            // The next one is asked for at once.
            Step::Attached if region::missing(page) != 0 => Step::Busy,
            step => step,
        };
    }
    if now < page.retry_at.load(Relaxed) {
        // A caller that may wait waits for a daemon that is there and busy.
        let is_busy = !is_attached && REFUSAL.load(Relaxed) == CUT_OFF;
        return if is_busy { Step::Busy } else { or_absent };
    }
    match connect(socket, interface) {
        Ok(number) => {
            page.waiting.store(number, Relaxed);
            page.reply_until.store(now.saturating_add(REPLY_WAIT), Relaxed);
            Step::Waiting(number)
        }
        Err(EAGAIN) => Step::Busy,
        Err(error) => {
            page.retry_at.store(now.saturating_add(retry_after(page, now)), Relaxed);
            REFUSAL.store(if error == EMFILE { NO_DESCRIPTOR } else { 0 }, Relaxed);
            or_absent
        }
    }
}

fn retry_after(page: &Page, now: u64) -> u64 {
    if !was_attached() {
        return RETRY_STRANGER;
    }
    let since = page.absent_since.load(Relaxed);
    if since != 0 && now.saturating_sub(since) < SOON { RETRY_SOON } else { RETRY }
}

/// Connects and sends Hello with the program's socket, for the attachment of this interface (0: the first one).
fn connect(socket: c_int, interface_index: u32) -> Result<u32, c_int> {
    let path = env::socket_path().ok_or(EBADF)?;
    let raised = limit::raise();
    let control = sys::connect_unix(path, raised.descriptor_min())?;
    let abi = ABI as u16;
    let hello = Hello { abi_min: abi, abi_max: abi, interface_index }.encode();
    sys::send(control.as_raw_fd(), hello.as_slice(), Some(socket))?;
    Region::connect(control).ok_or(EBADF)
}

/// The daemon's answer with its memfd and doorbell, or an errno.
fn receive(control: c_int) -> Result<(HelloReply, [Option<OwnedFd>; 2]), c_int> {
    let mut octets = [0; MESSAGE_OCTETS_MAX + 1];
    if !sys::is_readable(control) {
        return Err(EAGAIN);
    }
    let raised = limit::raise();
    let (received, descriptors) = sys::receive(control, &mut octets)?;
    let message = octets.get(..received).unwrap_or(&octets);
    let min = raised.descriptor_min();
    // The region is mapped and its descriptor closed within this step; the doorbell stays.
    let descriptors = match descriptors {
        [region, doorbell] => [region, doorbell.and_then(|doorbell| sys::move_high(doorbell, min).ok())],
    };
    HelloReply::parse(message).map(|reply| (reply, descriptors)).map_err(|_| EPROTO)
}

fn read_reply(page: &'static Page, number: u32, now: u64) -> Step {
    let Some(region) = Region::get(number) else { return Step::Absent };
    let received = region.control.get().map_or(Err(EBADF), receive);
    if received.as_ref().is_err_and(|error| *error == EAGAIN) && now < page.reply_until.load(Relaxed) {
        return Step::Waiting(number);
    }
    page.waiting.store(0, Relaxed);
    let is_attached = match received {
        Ok((reply, [Some(memfd), Some(doorbell)])) if reply.status == HelloStatus::Attached => {
            region.set_interface_index(reply.interface_index);
            let accepted = accept(page, number, reply.region_octets as usize, &memfd, doorbell);
            accepted.map_err(|error| REFUSAL.store(cause_of(error), Relaxed)).is_ok()
        }
        Ok((reply, _)) => {
            let is_cut_off = reply.status == HelloStatus::Attached;
            REFUSAL.store(if is_cut_off { NO_DESCRIPTOR } else { reply.status as u32 }, Relaxed);
            false
        }
        Err(_) => {
            REFUSAL.store(CUT_OFF, Relaxed);
            false
        }
    };
    if is_attached {
        ONCE.store(true, Release);
        page.absent_since.store(0, Relaxed);
        env::debug(b"ktsn: attached to ktsnd\n");
    } else {
        region.abandon();
    }
    // Also after success: a region that is lost again and again is not asked for at every send.
    let is_next = is_attached && region::missing(page) != 0;
    let is_cut_off = !is_attached && REFUSAL.load(Relaxed) == CUT_OFF;
    let pause = match (is_next, is_cut_off) {
        (true, _) => 0,
        (_, true) => retry_after(page, now).min(RETRY),
        _ => retry_after(page, now),
    };
    page.retry_at.store(now.saturating_add(pause), Relaxed);
    match (is_attached, is_cut_off) {
        (true, _) => Step::Attached,
        (_, true) => Step::Busy,
        _ => Step::Absent,
    }
}

/// Why a region that the daemon sent is not in use.
const fn cause_of(error: c_int) -> u32 {
    match error {
        EAGAIN => LOCKED_MEMORY,
        ENOMEM => NO_MEMORY,
        EMFILE => NO_DESCRIPTOR,
        _ => HelloStatus::Version as u32,
    }
}

/// Maps what the daemon sent and puts it into use.
fn accept(
    page: &'static Page,
    number: u32,
    octets: usize,
    memfd: &OwnedFd,
    doorbell: OwnedFd,
) -> Result<(), c_int> {
    let region = Region::get(number).ok_or(EBADF)?;
    let base = sys::map_shared(memfd, octets)?;
    if !region.install(page, number, base, octets, doorbell) {
        sys::unmap(base.as_ptr() as usize, octets);
        return Err(EPROTO);
    }
    // A region of another interface may be there from before, with a daemon that is gone.
    if let Some(held) = RegionUse::all(page).find(|held| held.is_of(number)) {
        held.producer().add(ktsn_ring::counter::DAEMON_ABSENT, region::take_absent(held.place()));
    }
    Ok(())
}

/// Says once why timed sends of this program are not KTSN's, what becomes of them, and the remedy.
pub(crate) fn warn() {
    const ATTACHED: u32 = HelloStatus::Attached as u32;
    const NOT_ATTACHED: u32 = HelloStatus::NotAttached as u32;
    const VERSION: u32 = HelloStatus::Version as u32;
    const CLIENTS_MAX: u32 = HelloStatus::ClientsMax as u32;
    let path = env::socket_path().map_or(b"".as_slice(), CStr::to_bytes);
    let (why, which, remedy): (&[u8], &[u8], &[u8]) = match REFUSAL.load(Relaxed) {
        ATTACHED if path.is_empty() => (
            b"the path in KTSN_RUN_DIR is too long for a socket, 90 octets at most",
            b"",
            b"Move the directory",
        ),
        ATTACHED if root::has_changed() => (
            b"this program has another root directory (chroot) than at its start, and there is no ktsnd at ",
            path,
            b"Mount ktsnd's client directory there, or set SO_TXTIME before chroot",
        ),
        ATTACHED => (b"no ktsnd at ", path, b"Start ktsnd, or mount its client directory there"),
        LOCKED_MEMORY => (
            b"this program locks its memory (mlockall), and may not lock as much as ktsnd's region needs",
            b"",
            b"Raise the limit of locked memory (RLIMIT_MEMLOCK; ulimit -l, LimitMEMLOCK=), or grant CAP_IPC_LOCK",
        ),
        NO_MEMORY => (
            b"this program has no address space left for ktsnd's region",
            b"",
            b"Raise its limit (RLIMIT_AS; ulimit -v), or give the attachment fewer slots",
        ),
        NOT_ATTACHED => (
            b"ktsnd has no attachment for this network namespace",
            b"",
            b"Attach its interface (ktsnd --attach NETNS:IFACE)",
        ),
        VERSION => (
            b"libktsn speaks ring ABI 1..1 and this ktsnd only others",
            b"",
            b"Install libktsn and ktsnd of one release",
        ),
        NO_DESCRIPTOR => (
            b"no descriptor left for libktsn (it needs 2)",
            b"",
            b"Raise the hard limit of open files (RLIMIT_NOFILE)",
        ),
        CLIENTS_MAX => (
            b"the attachment has all its clients, or its memory, or this process all its connections",
            b"",
            b"See 'clients refused' in ktsn status; raise clients_max or memory_max",
        ),
        CUT_OFF => (
            b"ktsnd has not answered within a second at ",
            path,
            b"See ktsnd's log; the program may ask again",
        ),
        _ => (b"ktsnd refused this program at ", path, b"See ktsnd's log for the reason"),
    };
    let effect: &[u8] = if env::is_strict() {
        b": timed sends fail with ENETDOWN (KTSN_POLICY=strict). "
    } else {
        b": SO_TXTIME is left to the kernel. "
    };
    env::warn_once(&[b"ktsn: ", why, which, effect, remedy, b"; KTSN_LOG=off hides this line."]);
}

const _: () = assert!(ABI <= u16::MAX as u32);
