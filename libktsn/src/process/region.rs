// SPDX-License-Identifier: Apache-2.0
//! The few regions that this process knows: one in use for each attachment of its namespace, others until their last
//! user has left.
//!
//! In: a mapping and two descriptors from the attachment. Out: a counted [`RegionUse`] of the region for one send. No thread
//! waits: a region that is given up is unmapped by a later send, when no thread and no interrupted frame is inside.
//!
//! ```text
//! user     in_use += 1 → the place still names this one? → use → in_use −= 1
//! give up  place ← given up → (later, under the lock) in_use = 0? → close → replaced: unmap → Free
//! ```
//! Both sides are sequentially consistent, so one of them sees the other. In a namespace with several attachments a
//! region that was given up stays readable until its successor is there: its tables say which datagrams were that
//! attachment's, and so must not go to the kernel.

use core::cell::UnsafeCell;
use core::ffi::c_int;
use core::mem::MaybeUninit;
use core::ptr::NonNull;
use core::sync::atomic::{
    AtomicBool, AtomicI32, AtomicU32, AtomicU64, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release, SeqCst},
};

use ktsn_ring::Producer;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsRawFd, BorrowedFd, IntoRawFd, OwnedFd};

use crate::process::limit::AFTER_STREAMS;
use crate::process::page::{PLACES_COUNT, Page};
use crate::process::sys;

/// How many regions a process can know at a time: a bound on what threads that never come back can leave mapped.
const REGIONS_COUNT: usize = 8;

const FREE: u32 = 0;
/// Connected, the daemon's reply is awaited.
const CONNECTING: u32 = 1;
const LIVE: u32 = 2;
/// Given up and replaced, perhaps still in use.
const DRAINING: u32 = 3;
/// Given up, and perhaps still in use; its place still names it.
const LAPSED: u32 = 4;

/// In a place's word: the region is in use no more.
pub(crate) const GIVEN_UP: u32 = 1 << 31;

/// Frames sent while no region was there to count them in, of the attachment at each place.
static ABSENT: [AtomicU64; PLACES_COUNT] = [const { AtomicU64::new(0) }; PLACES_COUNT];

/// Counts frames that found no daemon, of the attachment at this place.
pub(crate) fn count_absent(place: usize, frames: u64) {
    if let Some(absent) = ABSENT.get(place) {
        absent.fetch_add(frames, Relaxed);
    }
}

/// The frames of [`count_absent`] at this place, to be counted elsewhere.
pub(crate) fn take_absent(place: usize) -> u64 {
    ABSENT.get(place).map_or(0, |absent| absent.swap(0, Relaxed))
}

/// The program has replaced or closed a descriptor of ours behind the hooks' back, so a region was given up. Its daemon is there.
static IS_DISPLACED: AtomicBool = AtomicBool::new(false);

/// A region was given up for a descriptor that the program has replaced or closed.
fn note_displaced(page: &Page) {
    // It is asked for at once.
    page.retry_at.store(0, Relaxed);
    IS_DISPLACED.store(true, Release);
}

/// Whether [`note_displaced`] was called since the last true answer. Only for a process that may change the tables.
pub(crate) fn take_displaced(page: &Page) -> bool {
    IS_DISPLACED.load(Acquire) && page.may_change() && IS_DISPLACED.swap(false, Acquire)
}

/// A descriptor of ours in the program's table, where the program may close it or put another in its place.
pub(crate) struct Descriptor {
    /// 0 = none: no descriptor of ours is a standard stream.
    fd: AtomicI32,
    cookie: AtomicU64,
}

impl Descriptor {
    const fn none() -> Self {
        Self { fd: AtomicI32::new(0), cookie: AtomicU64::new(0) }
    }

    fn set(&self, fd: OwnedFd) {
        self.cookie.store(sys::cookie(fd.as_raw_fd()).unwrap_or(0), Relaxed);
        self.fd.store(fd.into_raw_fd(), Release);
    }

    /// The descriptor if it is still ours: the cookie of a socket is never given out twice.
    pub(crate) fn get(&self) -> Option<c_int> {
        let fd = self.fd.load(Acquire);
        (fd > 0 && sys::cookie(fd) == Some(self.cookie.load(Relaxed))).then_some(fd)
    }

    fn is(&self, fd: c_int) -> bool {
        self.fd.load(Relaxed) == fd && self.get().is_some()
    }

    /// Whether the program has put something else in its place, or has closed it.
    fn is_displaced(&self) -> bool {
        self.fd.load(Acquire) > 0 && self.get().is_none()
    }

    /// Gives it another number, which is at least `min` if possible; false where none is left. The old number stays open, and is the
    /// caller's.
    fn move_away(&self, fd: c_int, min: c_int) -> bool {
        let moved = sys::duplicate(fd, min).or_else(|_| sys::duplicate(fd, AFTER_STREAMS));
        let has_moved = moved.is_ok();
        if let Ok(moved) = moved {
            self.fd.store(moved.into_raw_fd(), Release);
        }
        has_moved
    }

    /// Whether the other end is closed. Only of a socket.
    fn is_hung_up(&self) -> bool {
        let Some(fd) = self.get() else { return false };
        // SAFETY: not negative; borrowed for one call, and a descriptor that is closed meanwhile is an event of its own.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        let mut asked = [PollFd::new(&fd, PollFlags::empty())];
        poll(&mut asked, Some(&Timespec::default())) == Ok(1) && asked[0].revents().contains(PollFlags::HUP)
    }

    fn close(&self) {
        let is_ours = self.get().is_some();
        let fd = self.fd.swap(0, Relaxed);
        if is_ours {
            // SAFETY: the cookie says that it is the socket that this library opened; no other code closes it.
            unsafe { rustix::io::close(fd) };
        }
    }
}

/// One region.
pub(crate) struct Region {
    state: AtomicU32,
    in_use: AtomicU32,
    /// Number of the connection to ktsnd, never used twice; 0 = none.
    epoch: AtomicU32,
    base: AtomicUsize,
    octets: AtomicUsize,
    /// The attachment's interface in this namespace.
    interface_index: AtomicU32,
    /// Where it is, or was, named.
    place: AtomicUsize,
    /// Frames that were counted as absent and lie in it all the same.
    absent: AtomicU64,
    /// The connection for registrations.
    pub(crate) control: Descriptor,
    /// The connection that wakes the worker.
    pub(crate) doorbell: Descriptor,
    producer: UnsafeCell<MaybeUninit<Producer>>,
}

// SAFETY: `producer` is written only in state CONNECTING, by the holder of the page's lock, before a place names the
// region; it is read only by users whom a place sent here. Everything else is atomic.
unsafe impl Sync for Region {}

static REGIONS: [Region; REGIONS_COUNT] = [const {
    Region {
        state: AtomicU32::new(FREE),
        in_use: AtomicU32::new(0),
        epoch: AtomicU32::new(0),
        base: AtomicUsize::new(0),
        octets: AtomicUsize::new(0),
        interface_index: AtomicU32::new(0),
        place: AtomicUsize::new(0),
        absent: AtomicU64::new(0),
        control: Descriptor::none(),
        doorbell: Descriptor::none(),
        producer: UnsafeCell::new(MaybeUninit::uninit()),
    }
}; REGIONS_COUNT];

static EPOCHS: AtomicU32 = AtomicU32::new(0);

/// A region, held for one send.
pub(crate) struct RegionUse {
    region: &'static Region,
    number: u32,
    place: usize,
}

impl Drop for RegionUse {
    fn drop(&mut self) {
        self.region.in_use.fetch_sub(1, SeqCst);
    }
}

impl RegionUse {
    /// The first region in use, if there is one.
    pub(crate) fn current(page: &Page) -> Option<Self> {
        Self::all(page).next()
    }

    /// Whether it is the region of this number.
    pub(crate) fn is_of(&self, number: u32) -> bool {
        self.number == number
    }

    /// All regions in use.
    pub(crate) fn all(page: &Page) -> impl Iterator<Item = Self> {
        (0..page.places_end.load(SeqCst) as usize).filter_map(|place| Self::at(page, place))
    }

    /// The region in use at a place.
    #[inline]
    pub(crate) fn at(page: &Page, place: usize) -> Option<Self> {
        Self::hold(page, place, 0)
    }

    /// The region of a place that was given up and has no successor yet: good for reading its tables.
    pub(crate) fn given_up_at(page: &Page, place: usize) -> Option<Self> {
        Self::hold(page, place, GIVEN_UP)
    }

    #[inline]
    fn hold(page: &Page, place: usize, given_up: u32) -> Option<Self> {
        let word = page.places.get(place)?;
        let seen = word.load(SeqCst);
        let number = (seen & GIVEN_UP == given_up).then_some(seen & !GIVEN_UP)?;
        let region = REGIONS.get((number as usize).checked_sub(1)?)?;
        region.in_use.fetch_add(1, SeqCst);
        let held = Self { region, number, place };
        (word.load(SeqCst) == seen).then_some(held)
    }

    /// Which place it is of.
    pub(crate) const fn place(&self) -> usize {
        self.place
    }

    /// The ring.
    pub(crate) fn producer(&self) -> &Producer {
        // SAFETY: a place named this region after it was written, and it stays as it is while `in_use` is not 0.
        unsafe { (*self.region.producer.get()).assume_init_ref() }
    }

    /// Number of the connection to ktsnd, never used twice.
    pub(crate) fn epoch(&self) -> u32 {
        self.region.epoch.load(Relaxed)
    }

    /// The region with its descriptors.
    pub(crate) const fn region(&self) -> &'static Region {
        self.region
    }

    /// Gives the region up: the daemon is gone, or says so.
    pub(crate) fn give_up(&self, page: &Page) {
        let Some(word) = page.places.get(self.place) else { return };
        if word.compare_exchange(self.number, self.number | GIVEN_UP, SeqCst, SeqCst).is_ok() {
            self.region.state.store(LAPSED, Release);
            if self.region.is_displaced() {
                note_displaced(page);
            }
        }
    }
}

impl Region {
    /// A region for a new connection; its number, or `None` when all are taken. Only under the lock.
    pub(crate) fn connect(control: OwnedFd) -> Option<u32> {
        for (number, region) in (1..).zip(&REGIONS) {
            if region.state.load(Acquire) == FREE {
                region.control.set(control);
                region.state.store(CONNECTING, Release);
                return Some(number);
            }
        }
        None
    }

    /// The region of this number.
    pub(crate) fn get(number: u32) -> Option<&'static Self> {
        REGIONS.get((number as usize).checked_sub(1)?)
    }

    /// The attachment's interface.
    pub(crate) fn interface_index(&self) -> u32 {
        self.interface_index.load(Relaxed)
    }

    /// Remembers the attachment's interface. Only under the lock, before [`Self::install`].
    pub(crate) fn set_interface_index(&self, index: u32) {
        self.interface_index.store(index, Relaxed);
    }

    /// Notes frames in the region that no daemon takes any more, and that the caller counts as absent. The caller holds it.
    pub(crate) fn note_absent(&self, frames: u64) {
        self.absent.fetch_add(frames, Relaxed);
    }

    /// Counts the frames that a daemon took along that is gone: their slots never came back. One that ends well, or has
    /// heard that the client is over, closes the doorbell after the last of them. Only under the lock, without users,
    /// before the doorbell is closed.
    fn settle(&self) {
        if !self.doorbell.is_hung_up() {
            return;
        }
        let mut left = 0_u64;
        // SAFETY: the region was in use, so this was written; it is written again only after `release`.
        unsafe { (*self.producer.get()).assume_init_ref() }
            .for_each_queued(|_, _| left = left.saturating_add(1));
        let place = self.place.load(Relaxed);
        count_absent(place, left.saturating_sub(self.absent.load(Relaxed)));
    }

    /// Puts a mapping into use; false when it is no ring. Only under the lock, after [`Self::connect`].
    pub(crate) fn install(
        &self,
        page: &'static Page,
        number: u32,
        base: NonNull<u8>,
        octets: usize,
        doorbell: OwnedFd,
    ) -> bool {
        // SAFETY: the caller mapped `octets` from `base` on for this region alone; it is unmapped only in `sweep`.
        let Ok(producer) = (unsafe { Producer::from_mapping(base, octets) }) else { return false };
        let Some((place, word)) = self.place(page) else { return false };
        // SAFETY: state CONNECTING, under the lock: no other thread reads.
        unsafe { (*self.producer.get()).write(producer) };
        self.base.store(base.as_ptr() as usize, Relaxed);
        self.octets.store(octets, Relaxed);
        self.absent.store(0, Relaxed);
        self.place.store(place, Relaxed);
        self.doorbell.set(doorbell);
        let epoch = EPOCHS.fetch_add(1, Relaxed).wrapping_add(1);
        self.epoch.store(epoch.max(1), Relaxed);
        self.state.store(LIVE, Release);
        let before = word.swap(number, SeqCst);
        if let Some(region) = Self::get(before & !GIVEN_UP) {
            region.state.store(DRAINING, Release);
        }
        page.places_end.fetch_max(place as u32 + 1, SeqCst);
        true
    }

    /// Where a new region belongs: in place of its predecessor, else where none ever was, else in place of any that was
    /// given up.
    fn place(&self, page: &'static Page) -> Option<(usize, &'static AtomicU32)> {
        let interface = self.interface_index();
        // A process with a new region may not have noticed that the daemon of the old one is gone.
        let is_its = |word: u32| {
            Self::get(word & !GIVEN_UP).is_some_and(|region| region.interface_index() == interface)
        };
        let places = || (0..).zip(&page.places);
        let find = |which: &dyn Fn(u32) -> bool| places().find(|(_, word)| which(word.load(SeqCst)));
        find(&is_its).or_else(|| find(&|word| word == 0)).or_else(|| find(&|word| word & GIVEN_UP != 0))
    }

    /// Whether the program has replaced or closed one of its descriptors.
    pub(crate) fn is_displaced(&self) -> bool {
        self.control.is_displaced() || self.doorbell.is_displaced()
    }

    /// Whether its daemon is gone: the other end of the doorbell is closed.
    pub(crate) fn is_daemon_gone(&self) -> bool {
        self.doorbell.is_hung_up()
    }

    /// Ends a connection that came to nothing. Only under the lock.
    pub(crate) fn abandon(&self) {
        self.control.close();
        self.doorbell.close();
        self.state.store(FREE, Release);
    }

    fn release(&self) {
        let base = self.base.swap(0, Relaxed);
        if base != 0 {
            sys::unmap(base, self.octets.load(Relaxed));
        }
        self.abandon();
    }
}

/// Gives back the regions that no thread uses any more. Only under the lock.
pub(crate) fn sweep(page: &Page) {
    for (number, region) in (1..).zip(&REGIONS) {
        match region.state.load(Acquire) {
            DRAINING if region.in_use.load(SeqCst) == 0 => {
                region.settle();
                region.release();
            }
            LAPSED if region.in_use.load(SeqCst) == 0 => {
                region.settle();
                // A thread that holds it from here on only reads its tables.
                region.control.close();
                region.doorbell.close();
                if page.places_end.load(SeqCst) == 1
                    && page.places[0].compare_exchange(number | GIVEN_UP, 0, SeqCst, SeqCst).is_ok()
                {
                    // The only attachment: without it every datagram is lost, whatever the tables say.
                    region.state.store(DRAINING, Release);
                    if region.in_use.load(SeqCst) == 0 {
                        region.release();
                    }
                }
            }
            _ => {}
        }
    }
}

/// The place of the attachment with this interface, in use or given up.
pub(crate) fn place_of(page: &Page, interface: u32) -> Option<usize> {
    let is_its = |word: u32| Region::get(word & !GIVEN_UP).is_some_and(|r| r.interface_index() == interface);
    (0..).zip(&page.places).find(|(_, word)| is_its(word.load(SeqCst))).map(|(place, _)| place)
}

/// The interface of an attachment that the daemon names and this process has no region of; 0 = there is none, or no
/// place for it.
pub(crate) fn missing(page: &Page) -> u32 {
    let is_free = |word: u32| word == 0 || word & GIVEN_UP != 0;
    if !page.places.iter().any(|word| is_free(word.load(SeqCst))) {
        return 0;
    }
    let is_used = |interface| RegionUse::all(page).any(|held| held.region().interface_index() == interface);
    let named = |held: RegionUse| {
        let others = held.producer().others_count();
        let named = (0..others).map(|number| held.producer().other(number));
        named.filter(|interface| *interface != 0).find(|interface| !is_used(*interface))
    };
    RegionUse::all(page).find_map(named).unwrap_or(0)
}

/// In a fork's child: forgets the parent's regions and connections. A region in which the fork found a thread (or
/// the code below a signal handler that forked) stays mapped and its place stays taken. Only under the lock.
pub(crate) fn forget_parents() {
    for region in &REGIONS {
        if region.state.load(Acquire) == FREE {
            continue;
        }
        if region.in_use.load(SeqCst) == 0 {
            region.release();
        } else {
            region.control.close();
            region.doorbell.close();
            region.state.store(DRAINING, Release);
        }
    }
}

fn descriptors() -> impl Iterator<Item = &'static Descriptor> {
    REGIONS.iter().flat_map(|region| [&region.control, &region.doorbell])
}

/// Whether a descriptor number is one of ours.
pub(crate) fn owns(fd: c_int) -> bool {
    fd > 0 && descriptors().any(|descriptor| descriptor.is(fd))
}

/// Gives the descriptor of this number another one, which is at least `min` if possible; false where it is not ours, or none is left. The
/// old number stays open, and is the caller's. Only under the lock.
pub(crate) fn move_away(fd: c_int, min: c_int) -> bool {
    descriptors().find(|descriptor| descriptor.is(fd)).is_some_and(|descriptor| descriptor.move_away(fd, min))
}

/// The smallest of our descriptors that lies in `first..=last`.
pub(crate) fn first_owned(first: u32, last: u32) -> Option<u32> {
    descriptors()
        .filter_map(|descriptor| descriptor.get())
        .filter_map(|fd| u32::try_from(fd).ok())
        .filter(|fd| (first..=last).contains(fd))
        .min()
}
