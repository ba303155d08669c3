// SPDX-License-Identifier: Apache-2.0
//! DPDK behind safe words: the environment (EAL), one device, its buffers.
//!
//! In: names, arguments, indices. Out: octets to write to, and answers. No pointer leaves this file.

use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_uint, c_void};
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;
use std::ptr::{self, NonNull};

/// `struct ktsn_dpdk_info` of shim.c.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Info {
    pub(super) mtu: u16,
    pub(super) descriptors: u16,
    pub(super) mac: [u8; 6],
}

// SAFETY: each is declared as shim.c defines it, which is compiled and linked with this file.
unsafe extern "C" {
    fn ktsn_dpdk_init(argc: c_int, argv: *mut *mut c_char) -> c_int;
    fn ktsn_dpdk_directory() -> *const c_char;
    fn ktsn_dpdk_attach(devargs: *const c_char, name: *const c_char, port: *mut u16) -> c_int;
    fn ktsn_dpdk_detach(port: u16);
    fn ktsn_dpdk_info(port: u16, wanted: u16, out: *mut Info) -> c_int;
    fn ktsn_dpdk_start(port: u16, descriptors: u16, receivers: u16, pool: *mut c_void) -> c_int;
    fn ktsn_dpdk_link_up(port: u16) -> c_int;
    fn ktsn_dpdk_pool_new(name: *const c_char, count: c_uint, octets: u16, status: *mut c_int)
    -> *mut c_void;
    fn ktsn_dpdk_pool_free(pool: *mut c_void);
    fn ktsn_dpdk_buffer_new(pool: *mut c_void, octets: *mut *mut u8) -> *mut c_void;
    fn ktsn_dpdk_buffer_free(buffer: *mut c_void);
    fn ktsn_dpdk_send(port: u16, buffer: *mut c_void, length: u16) -> c_int;
}

/// 0 or the error number.
fn answer(status: c_int) -> Result<(), i32> {
    if status < 0 { Err(-status) } else { Ok(()) }
}

/// Starts DPDK's environment. Once in a process: the caller sees to that.
pub(super) fn init(arguments: Vec<CString>) -> Result<(), i32> {
    // DPDK keeps some of them for as long as the process lives: they are never freed.
    let mut raw: Vec<*mut c_char> = arguments.into_iter().map(CString::into_raw).collect();
    let count = c_int::try_from(raw.len()).map_err(|_| libc::E2BIG)?;
    raw.push(ptr::null_mut());
    let raw = Box::leak(raw.into_boxed_slice());
    // SAFETY: `raw` holds `count` strings that live for ever and a null pointer behind them, as main's arguments do.
    answer(unsafe { ktsn_dpdk_init(count, raw.as_mut_ptr()) })
}

/// The directory that the environment made for itself.
pub(super) fn directory() -> PathBuf {
    // SAFETY: once the environment is up this is a string of DPDK's own with a NUL at its end, and stays as it is.
    let name = unsafe { CStr::from_ptr(ktsn_dpdk_directory()) };
    PathBuf::from(OsStr::from_bytes(name.to_bytes()))
}

/// An attached device. Dropping it stops it and gives it back.
#[derive(Debug)]
pub(super) struct Attached(u16);

impl Attached {
    /// Attaches the device called `name` as `devargs` say; DPDK's environment must be up.
    pub(super) fn new(devargs: &CStr, name: &CStr) -> Result<Self, i32> {
        let mut port = 0;
        // SAFETY: both strings end with a NUL and live through the call; `port` is a live u16.
        answer(unsafe { ktsn_dpdk_attach(devargs.as_ptr(), name.as_ptr(), &raw mut port) })?;
        Ok(Self(port))
    }

    /// What it can do, with the count of descriptors nearest to `wanted` that it allows.
    pub(super) fn info(&self, wanted: u16) -> Result<Info, i32> {
        let mut info = Info::default();
        // SAFETY: `info` is a live structure of the layout that shim.c writes.
        answer(unsafe { ktsn_dpdk_info(self.0, wanted, &raw mut info) })?;
        Ok(info)
    }

    pub(super) fn link_up(&self) -> bool {
        // SAFETY: only numbers are passed; DPDK checks the port's.
        unsafe { ktsn_dpdk_link_up(self.0) != 0 }
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        // SAFETY: the port is this value's own since `new`, and no thread sends on it any more.
        unsafe { ktsn_dpdk_detach(self.0) }
    }
}

/// A pool of buffers, all of one size. Dropping it frees them.
#[derive(Debug)]
struct Pool(NonNull<c_void>);

impl Drop for Pool {
    fn drop(&mut self) {
        // SAFETY: `Lane` drops its buffers and its device first: no buffer of the pool is in use any more.
        unsafe { ktsn_dpdk_pool_free(self.0.as_ptr()) }
    }
}

/// A buffer of a lane.
#[derive(Debug, Clone, Copy)]
struct Slot {
    buffer: NonNull<c_void>,
    octets: NonNull<u8>,
}

/// What a lane needs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Room {
    /// Slots.
    pub(super) slots: u16,
    /// Octets of each.
    pub(super) slot_octets: u16,
    /// Whether the driver insists on a queue to read.
    pub(super) reads: bool,
}

/// A started device with a buffer for each stage. Fields are dropped in this order, after the slots' buffers were freed.
#[derive(Debug)]
pub(super) struct Lane {
    slots: Box<[Option<Slot>]>,
    device: Attached,
    pool: Pool,
    slot_octets: u16,
}

// SAFETY: DPDK binds neither devices nor buffers to a thread; a lane is used by one thread at a time, since all that changes it
// takes `&mut self`, and its pool takes buffers from and gives them to any thread.
unsafe impl Send for Lane {}

impl Lane {
    /// Makes a buffer for each slot and for all that may be under way, and starts `device`.
    pub(super) fn start(device: Attached, name: &CStr, info: &Info, room: Room) -> Result<Self, i32> {
        let Room { slots, slot_octets, reads } = room;
        let mut status = 0;
        let count = c_uint::from(slots) + 2 * c_uint::from(info.descriptors);
        // SAFETY: the name ends with a NUL, `status` is a live int.
        let pool = unsafe { ktsn_dpdk_pool_new(name.as_ptr(), count, slot_octets, &raw mut status) };
        let Some(pool) = NonNull::new(pool).map(Pool) else { return Err(-status) };
        let start = |receivers| {
            // SAFETY: the device is attached, the pool lives as long as the device does (the lane's order of fields).
            answer(unsafe { ktsn_dpdk_start(device.0, info.descriptors, receivers, pool.0.as_ptr()) })
        };
        // Nothing is received here; a driver that insists gets a queue that is never read.
        if reads || start(0).is_err() {
            start(1)?;
        }
        Ok(Self { slots: vec![None; usize::from(slots)].into_boxed_slice(), device, pool, slot_octets })
    }

    pub(super) fn link_up(&self) -> bool {
        self.device.link_up()
    }

    /// Where the frame of slot `index` is built; `None` when every buffer is under way.
    pub(super) fn buffer(&mut self, index: usize) -> Option<&mut [u8]> {
        let slot = match self.slots.get(index)? {
            Some(slot) => *slot,
            None => {
                let mut octets = ptr::null_mut();
                // SAFETY: the pool lives; `octets` is a live pointer that is written where a buffer is returned.
                let buffer = unsafe { ktsn_dpdk_buffer_new(self.pool.0.as_ptr(), &raw mut octets) };
                let slot = Slot { buffer: NonNull::new(buffer)?, octets: NonNull::new(octets)? };
                self.slots[index] = Some(slot);
                slot
            }
        };
        // SAFETY: the buffer is this slot's alone until it is sent, its data area has `slot_octets` octets behind the headroom (the
        // pool was made so) in memory that DPDK mapped and filled with zeros, and `&mut self` is held as long as the slice.
        Some(unsafe { std::slice::from_raw_parts_mut(slot.octets.as_ptr(), usize::from(self.slot_octets)) })
    }

    /// The first `octets` of what was built into slot `index`.
    pub(super) fn frame(&self, index: usize, octets: usize) -> Option<&[u8]> {
        let slot = (*self.slots.get(index)?)?;
        let octets = octets.min(usize::from(self.slot_octets));
        // SAFETY: as in `buffer`; nothing writes to it while `&self` is held.
        Some(unsafe { std::slice::from_raw_parts(slot.octets.as_ptr(), octets) })
    }

    /// Sends the frame of slot `index`. `false`: the device took no frame, the slot keeps it.
    pub(super) fn send(&mut self, index: usize, octets: usize) -> bool {
        let Some(slot) = self.slots.get_mut(index) else { return false };
        let (Some(Slot { buffer, .. }), Ok(length)) = (*slot, u16::try_from(octets)) else { return false };
        // SAFETY: the device is started, the buffer is this slot's alone and at least `slot_octets` ≥ `length` long (checked here);
        // a taken buffer belongs to the device, so the slot forgets it at once.
        let taken = length <= self.slot_octets
            && unsafe { ktsn_dpdk_send(self.device.0, buffer.as_ptr(), length) != 0 };
        if taken {
            *slot = None;
        }
        taken
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        for slot in self.slots.iter_mut().filter_map(Option::take) {
            // SAFETY: a buffer that was not sent is this slot's alone, and is freed once: `take` forgot it.
            unsafe { ktsn_dpdk_buffer_free(slot.buffer.as_ptr()) }
        }
    }
}
