// SPDX-License-Identifier: BSD-2-Clause
//! The driver's C code and the memory that it shares with a backend, behind safe words.
//!
//! In: numbers and slices. Out: copies. No reference to shared memory exists, here or elsewhere: the backend may write to it at
//! any time. The C code reads each field once and copies frames; what it trusts lies in memory that is not shared.

use std::os::fd::{AsRawFd as _, FromRawFd as _, IntoRawFd as _, OwnedFd};
use std::ptr::NonNull;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};
use vmm_sys_util::eventfd::EventFd;

/// `PAIR_BATCH` of pair.h.
pub(crate) const BATCH: usize = 32;
/// `VNET_FRAME_MIN` and `VNET_FRAME_MAX` of vnet.h.
pub(crate) const FRAME_OCTETS: std::ops::RangeInclusive<usize> = 14..=1518;
/// Octets between received frames: the longest frame, rounded up to cache lines.
const STRIDE: usize = 1536;

/// `struct pair_options` of pair.h.
#[repr(C)]
struct RawOptions {
    shared: *mut u8,
    own: *mut u8,
    shared_octets: usize,
    own_octets: usize,
    bus: u64,
    offered: u64,
    kicks: [i32; 2],
    posted: u16,
    tx_slots: u16,
}

/// `struct pair_ring` of pair.h: where a ring lies, as the backend calls it.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Ring {
    pub(crate) descriptors: u64,
    pub(crate) available: u64,
    pub(crate) used: u64,
    pub(crate) size: u64,
}

#[repr(C)]
struct RawPair {
    _opaque: [u8; 0],
}

// SAFETY: each is declared as pair.h declares it, whose code is compiled and linked with this file.
unsafe extern "C" {
    fn pair_octets() -> usize;
    fn pair_shared_octets(posted: u16, tx_slots: u16) -> usize;
    fn pair_own_octets(posted: u16, tx_slots: u16) -> usize;
    fn pair_start(pair: *mut RawPair, options: *const RawOptions) -> i32;
    fn pair_features(pair: *const RawPair) -> u64;
    fn pair_ring(pair: *const RawPair, queue: u32, ring: *mut Ring);
    fn pair_go_live(pair: *mut RawPair);
    fn pair_send(pair: *mut RawPair, frame: *const u8, octets: usize) -> i32;
    fn pair_warm_up(pair: *mut RawPair);
    fn pair_receive(pair: *mut RawPair, to: *mut u8, stride: usize, lengths: *mut u16, most: u32) -> u32;
    fn pair_is_broken(pair: *const RawPair) -> bool;
    fn pair_fault(pair: *mut RawPair) -> u32;
    fn pair_stop(pair: *mut RawPair) -> u64;
}

/// A mapping, and the file behind it if another process is to map it too.
#[derive(Debug)]
struct Mapping {
    start: NonNull<u8>,
    octets: usize,
}

// SAFETY: memory belongs to no thread. All accesses go through the pointer, by the C code, in calls on a `Pair` that is borrowed
// mutably for each call that changes something; the C code keeps no thread's identity.
unsafe impl Send for Mapping {}

impl Mapping {
    /// Memory of this process alone, all zeros, each page there.
    fn own(octets: usize) -> Result<Self, Errno> {
        let flags = MapFlags::PRIVATE | MapFlags::POPULATE;
        // SAFETY: a new mapping at a place that the kernel chooses touches no other memory.
        let start = unsafe {
            mmap_anonymous(std::ptr::null_mut(), octets, ProtFlags::READ | ProtFlags::WRITE, flags)
        }?;
        Ok(Self { start: NonNull::new(start.cast()).ok_or(Errno::NOMEM)?, octets })
    }

    /// A file's memory, all zeros, each page there.
    fn of(file: &OwnedFd, octets: usize) -> Result<Self, Errno> {
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: as in `own`; the file has `octets` octets and is sealed against shrinking, so no access ends in SIGBUS.
        let start = unsafe {
            mmap(std::ptr::null_mut(), octets, ProtFlags::READ | ProtFlags::WRITE, flags, file, 0)
        }?;
        Ok(Self { start: NonNull::new(start.cast()).ok_or(Errno::NOMEM)?, octets })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own and ends with it; its owner has stopped using pointers into it.
        let _only_fails_for_wrong_arguments = unsafe { munmap(self.start.as_ptr().cast(), self.octets) };
    }
}

/// The memory that all pairs of a connection share with the backend. The backend maps the same file.
#[derive(Debug)]
pub(crate) struct Shared {
    mapping: Mapping,
    file: OwnedFd,
}

impl Shared {
    /// Makes a file of `octets` that cannot change its size.
    pub(crate) fn new(octets: usize) -> Result<Self, Errno> {
        let file = memfd_create("ktsn-vhost-user", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&file, octets as u64)?;
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Ok(Self { mapping: Mapping::of(&file, octets)?, file })
    }

    pub(crate) fn octets(&self) -> usize {
        self.mapping.octets
    }

    pub(crate) fn file(&self) -> &OwnedFd {
        &self.file
    }
}

/// How a pair is made.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Room {
    pub(crate) posted: u16,
    pub(crate) tx_slots: u16,
}

impl Room {
    /// Octets of shared memory for one pair, a multiple of a page.
    pub(crate) fn shared_octets(self) -> usize {
        // SAFETY: only numbers are passed.
        unsafe { pair_shared_octets(self.posted, self.tx_slots) }
    }
}

/// A pair's end of the two notification sockets.
#[derive(Debug)]
pub(crate) struct Kicks(pub(crate) [OwnedFd; 2]);

/// One receive and one transmit ring.
#[derive(Debug)]
pub(crate) struct Pair {
    /// `struct pair` and behind it the driver's own memory. It is used through pointers only.
    own: Mapping,
    _kicks: Kicks,
    frames: Box<[u8]>,
    lengths: [u16; BATCH],
}

impl Pair {
    /// Makes the rings of pair number `index` in `shared`, which lies at `bus` for the backend. `Err`: enum vnet_status.
    ///
    /// The caller keeps `shared` until the pair is gone.
    pub(crate) fn start(
        shared: &Shared,
        index: usize,
        bus: u64,
        offered: u64,
        room: Room,
        kicks: Kicks,
    ) -> Result<Self, i32> {
        const OUT_OF_MEMORY: i32 = -2;
        let octets = room.shared_octets();
        let offset = index * octets;
        // SAFETY: only numbers are passed.
        let (head, own_octets) =
            unsafe { (pair_octets().next_multiple_of(64), pair_own_octets(room.posted, room.tx_slots)) };
        if offset + octets > shared.octets() {
            return Err(OUT_OF_MEMORY);
        }
        let own = Mapping::own(head + own_octets).map_err(|_| OUT_OF_MEMORY)?;
        let options = RawOptions {
            // SAFETY: `offset + octets` lies inside the mapping (checked above).
            shared: unsafe { shared.mapping.start.as_ptr().add(offset) },
            // SAFETY: the mapping has `head + own_octets` octets.
            own: unsafe { own.start.as_ptr().add(head) },
            shared_octets: octets,
            own_octets,
            bus: bus + offset as u64,
            offered,
            kicks: [kicks.0[0].as_raw_fd(), kicks.0[1].as_raw_fd()],
            posted: room.posted,
            tx_slots: room.tx_slots,
        };
        let frames = vec![0; BATCH * STRIDE].into_boxed_slice();
        let pair = Self { own, _kicks: kicks, frames, lengths: [0; BATCH] };
        // SAFETY: the mapping begins with room for a `struct pair`, divisible by 64; both areas are as long as stated, zeroed and
        // of this pair alone; `options` lives through the call.
        let status = unsafe { pair_start(pair.raw(), &raw const options) };
        if status < 0 { Err(status) } else { Ok(pair) }
    }

    fn raw(&self) -> *mut RawPair {
        self.own.start.as_ptr().cast()
    }

    /// What the driver has accepted of the offered features.
    pub(crate) fn features(&self) -> u64 {
        // SAFETY: the pair was started (as in all below); it lives as long as `self`.
        unsafe { pair_features(self.raw()) }
    }

    /// Where a ring lies; 0: receive, 1: transmit.
    pub(crate) fn ring(&self, queue: u32) -> Ring {
        let mut ring = Ring::default();
        // SAFETY: `ring` is a live structure of the layout that pair.h states.
        unsafe { pair_ring(self.raw(), queue, &raw mut ring) }
        ring
    }

    pub(crate) fn go_live(&mut self) {
        // SAFETY: `&mut self`: no other call is under way.
        unsafe { pair_go_live(self.raw()) }
    }

    /// enum vnet_status.
    #[inline]
    pub(crate) fn send(&mut self, frame: &[u8]) -> i32 {
        // SAFETY: `&mut self`; the frame is a live slice of that length, which is copied.
        unsafe { pair_send(self.raw(), frame.as_ptr(), frame.len()) }
    }

    /// Takes back what the backend has sent. What arrived is dropped.
    pub(crate) fn warm_up(&mut self) {
        // SAFETY: `&mut self`: no other call is under way.
        unsafe { pair_warm_up(self.raw()) }
    }

    /// Passes up to `most` received frames to `each`, in copies.
    #[inline]
    pub(crate) fn receive(&mut self, most: usize, each: &mut dyn FnMut(&[u8])) -> usize {
        let most = most.min(BATCH) as u32;
        // SAFETY: `&mut self`; `frames` has room for BATCH frames at multiples of STRIDE, `lengths` for as many lengths; the C
        // code writes `most` of them at most, which is at most BATCH.
        let count = unsafe {
            pair_receive(self.raw(), self.frames.as_mut_ptr(), STRIDE, self.lengths.as_mut_ptr(), most)
        };
        let frames = self.frames.chunks_exact(STRIDE).zip(self.lengths).take(count as usize);
        for (frame, octets) in frames {
            each(&frame[..usize::from(octets).min(STRIDE)]);
        }
        count as usize
    }

    #[inline]
    pub(crate) fn is_broken(&self) -> bool {
        // SAFETY: reads one field, which only calls with `&mut self` change.
        unsafe { pair_is_broken(self.raw()) }
    }

    /// enum vnet_fault.
    pub(crate) fn fault(&mut self) -> u32 {
        // SAFETY: `&mut self`: no other call is under way.
        unsafe { pair_fault(self.raw()) }
    }

    /// Ends the pair. Returns how many frames the backend has not taken.
    pub(crate) fn stop(&mut self) -> u64 {
        // SAFETY: as in `fault`.
        unsafe { pair_stop(self.raw()) }
    }
}

/// The backend's end of a notification socket, as the crate vhost wants it.
pub(crate) fn as_eventfd(socket: OwnedFd) -> EventFd {
    // SAFETY: the descriptor is open and passed on with its ownership; an `EventFd` reads and writes it, no more.
    unsafe { EventFd::from_raw_fd(socket.into_raw_fd()) }
}
