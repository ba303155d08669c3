// SPDX-License-Identifier: Apache-2.0
//! bpf(2) and the memory that it shares with us. Structures are the parts of `union bpf_attr` (linux/bpf.h) that are used;
//! the kernel takes the rest as zero.

use std::ffi::{c_long, c_void};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::hook::Hook;

const MAP_CREATE: c_long = 0;
const MAP_LOOKUP: c_long = 1;
const MAP_UPDATE: c_long = 2;
const MAP_DELETE: c_long = 3;
const PROG_LOAD: c_long = 5;
const OBJ_GET_INFO: c_long = 15;
const PROG_QUERY: c_long = 16;
const LINK_CREATE: c_long = 28;

const LOG_OCTETS: usize = 1 << 16;

/// Types of maps (`enum bpf_map_type`).
#[derive(Clone, Copy, Debug)]
pub(crate) enum MapType {
    Hash = 1,
    Array = 2,
    PercpuArray = 6,
    LpmTrie = 11,
    Devmap = 14,
    DevmapHash = 25,
    Ringbuf = 27,
}

/// What a map is made of; lengths in octets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MapShape {
    map_type: MapType,
    key_octets: usize,
    value_octets: usize,
    entries_max: usize,
    flags: u32,
}

impl MapShape {
    /// A map with keys and values of these octets.
    pub(crate) const fn new(
        map_type: MapType,
        (key_octets, value_octets): (usize, usize),
        entries_max: usize,
        flags: u32,
    ) -> Self {
        Self { map_type, key_octets, value_octets, entries_max, flags }
    }
}

/// BPF_F_NO_PREALLOC, which tries need.
pub(crate) const NO_PREALLOC: u32 = 1;
/// BPF_F_MMAPABLE.
pub(crate) const MAPPABLE: u32 = 1 << 10;

/// Calls bpf(2).
///
/// # Safety
/// `attributes` is the structure that `command` takes, and every address in it is valid for what the command reads and
/// writes there.
pub(crate) unsafe fn bpf<T>(command: c_long, attributes: &mut T) -> io::Result<c_long> {
    // SAFETY: the attributes are valid for reads and writes of their size; the rest is the caller's promise.
    let result = unsafe {
        libc::syscall(libc::SYS_bpf, command, std::ptr::from_mut(attributes).cast::<c_void>(), size_of::<T>())
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn owned(descriptor: c_long) -> OwnedFd {
    // SAFETY: the kernel has just returned this descriptor, and no other code knows it. Descriptors fit into an i32.
    unsafe { OwnedFd::from_raw_fd(descriptor as i32) }
}

pub(crate) fn address<T>(of: &[T]) -> u64 {
    of.as_ptr() as u64
}

pub(crate) fn number(descriptor: BorrowedFd<'_>) -> u32 {
    descriptor.as_raw_fd().unsigned_abs()
}

#[repr(C)]
#[derive(Default)]
struct MapCreate {
    map_type: u32,
    key_octets: u32,
    value_octets: u32,
    entries_max: u32,
    flags: u32,
    inner: u32,
    numa_node: u32,
    name: [u8; 16],
}

/// What the kernel shows as a name: 15 octets at most.
fn object_name(text: &str) -> [u8; 16] {
    let mut name = [0; 16];
    for (to, from) in name[..15].iter_mut().zip(text.bytes()) {
        *to = from;
    }
    name
}

/// Makes a map that the kernel shows under `name`.
pub(crate) fn map_create(name: &str, shape: &MapShape) -> io::Result<OwnedFd> {
    let mut attributes = MapCreate {
        map_type: shape.map_type as u32,
        key_octets: shape.key_octets as u32,
        value_octets: shape.value_octets as u32,
        entries_max: shape.entries_max as u32,
        flags: shape.flags,
        name: object_name(name),
        ..MapCreate::default()
    };
    // SAFETY: this is what BPF_MAP_CREATE takes; there is no address in it.
    unsafe { bpf(MAP_CREATE, &mut attributes) }.map(owned)
}

#[repr(C)]
struct MapElement {
    map: u32,
    pad: u32,
    key: u64,
    value: u64,
    flags: u64,
}

/// Calls bpf(2) for one element of a map.
///
/// # Safety
/// `key` and `value` are addresses that are valid for what `command` reads and writes: the lengths that the map was made with.
unsafe fn element(command: c_long, map: &OwnedFd, key: u64, value: u64) -> io::Result<()> {
    let mut attributes = MapElement { map: number(map.as_fd()), pad: 0, key, value, flags: 0 };
    // SAFETY: this is what the commands for elements take; the caller answers for the addresses.
    unsafe { bpf(command, &mut attributes) }.map(drop)
}

/// Sets an element. Keys and values have the lengths that the map was made with.
pub(crate) fn map_update<const K: usize, const V: usize>(
    map: &OwnedFd,
    key: &[u8; K],
    value: &[u8; V],
) -> io::Result<()> {
    // SAFETY: BPF_MAP_UPDATE_ELEM reads as many octets of key and value as the map was made with: the caller's types.
    unsafe { element(MAP_UPDATE, map, address(key), address(value)) }
}

/// Reads an element.
pub(crate) fn map_lookup<const K: usize, const V: usize>(
    map: &OwnedFd,
    key: &[u8; K],
) -> io::Result<[u8; V]> {
    let mut found = [0; V];
    // SAFETY: BPF_MAP_LOOKUP_ELEM reads as many octets of the key, and writes as many of the value, as the map was made with:
    // the caller's types.
    unsafe { element(MAP_LOOKUP, map, address(key), found.as_mut_ptr() as u64) }?;
    Ok(found)
}

/// Calls bpf(2) for an element, of so many octets, of a map that has one for each processor. The words of all processors, one
/// after the other: zeros that were set, or what was read.
fn percpu(command: c_long, map: &OwnedFd, key: u32, octets: usize) -> io::Result<Vec<u64>> {
    let mut words = vec![0_u64; octets.div_ceil(8) * processors()?];
    // SAFETY: both commands take a key of four octets and read or write a value, rounded up to eight octets, for each
    // possible processor: `words` has room for them and lives through the call.
    unsafe { element(command, map, address(&[key]), words.as_mut_ptr() as u64) }?;
    Ok(words)
}

/// Sets an element of a map that has one for each processor to zero, for all processors.
pub(crate) fn map_clear_percpu(map: &OwnedFd, key: u32, octets: usize) -> io::Result<()> {
    percpu(MAP_UPDATE, map, key, octets).map(drop)
}

/// Reads an element of a map that has one for each processor.
pub(crate) fn map_lookup_percpu(map: &OwnedFd, key: u32, octets: usize) -> io::Result<Vec<u64>> {
    percpu(MAP_LOOKUP, map, key, octets)
}

/// How many processors the kernel counts as possible: a map with an element for each has as many.
pub(crate) fn processors() -> io::Result<usize> {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/possible")?;
    let last = text.trim().rsplit([',', '-']).next().and_then(|last| last.parse::<usize>().ok());
    last.map(|last| last + 1).ok_or_else(|| io::Error::other(format!("possible processors: {text:?}")))
}

/// Removes an element; a missing one is no error.
pub(crate) fn map_delete<const K: usize>(map: &OwnedFd, key: &[u8; K]) -> io::Result<()> {
    // SAFETY: BPF_MAP_DELETE_ELEM reads as many octets of the key as the map was made with: the caller's type.
    match unsafe { element(MAP_DELETE, map, address(key), 0) } {
        Err(error) if error.raw_os_error() != Some(libc::ENOENT) => Err(error),
        _ => Ok(()),
    }
}

#[repr(C)]
#[derive(Default)]
struct ProgLoad {
    prog_type: u32,
    instruction_count: u32,
    instructions: u64,
    licence: u64,
    log_level: u32,
    log_octets: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
    name: [u8; 16],
    ifindex: u32,
    expected_attach_type: u32,
}

/// The verifier gives up where the thread has something else to see to, a freezing control group for example (EAGAIN).
const LOAD_TRIES: usize = 5;

/// Loads a program; on refusal the end of the verifier's log comes along.
pub(crate) fn program_load(
    name: &str,
    hook: Hook,
    instructions: &[u64],
) -> Result<OwnedFd, (io::Error, String)> {
    let mut attributes = ProgLoad {
        prog_type: hook.program_type(),
        instruction_count: instructions.len() as u32,
        instructions: address(instructions),
        licence: c"Dual BSD/GPL".as_ptr() as u64,
        name: object_name(name),
        expected_attach_type: hook.attach_type(),
        ..ProgLoad::default()
    };
    let _undisturbed = crate::signals::NoSignals::new();
    // SAFETY: this is what BPF_PROG_LOAD takes: instructions with their count, a licence with its zero, no log.
    let mut load = || unsafe { bpf(PROG_LOAD, &mut attributes) };
    let mut loaded = load();
    for _ in 1..LOAD_TRIES {
        if !loaded.as_ref().is_err_and(|error| error.raw_os_error() == Some(libc::EAGAIN)) {
            break;
        }
        loaded = load();
    }
    let refusal = match loaded {
        Ok(program) => return Ok(owned(program)),
        Err(error) => error,
    };
    let mut log = vec![0_u8; LOG_OCTETS];
    attributes.log_level = 1;
    attributes.log_octets = LOG_OCTETS as u32;
    attributes.log = log.as_mut_ptr() as u64;
    // SAFETY: as before, and the log is valid for writes of its length and lives through the call.
    match unsafe { bpf(PROG_LOAD, &mut attributes) } {
        Ok(program) => Ok(owned(program)),
        // Its own error may be the log's: ENOSPC, where that is longer than the room for it.
        Err(_) => {
            let end = log.iter().position(|octet| *octet == 0).unwrap_or(log.len());
            Err((refusal, String::from_utf8_lossy(&log[end.saturating_sub(1500)..end]).into_owned()))
        }
    }
}

#[repr(C)]
struct LinkCreate {
    program: u32,
    ifindex: u32,
    attach_type: u32,
    flags: u32,
}

/// Puts the program at the hook of the device, for as long as the link is open: in front of all others at the ingress, or alone in the
/// driver. The device is one of the calling thread's network namespace.
pub(crate) fn link_create(program: &OwnedFd, hook: Hook, ifindex: u32) -> io::Result<OwnedFd> {
    let program = number(program.as_fd());
    let mut attributes =
        LinkCreate { program, ifindex, attach_type: hook.attach_type(), flags: hook.flags() };
    // SAFETY: this is what BPF_LINK_CREATE takes for TCX and XDP; there is no address in it.
    unsafe { bpf(LINK_CREATE, &mut attributes) }.map(owned)
}

#[repr(C)]
struct GetInfo {
    descriptor: u32,
    octets: u32,
    info: u64,
}

#[repr(C)]
#[derive(Default)]
struct LinkInfo {
    link_type: u32,
    id: u32,
    program: u32,
    pad: u32,
    ifindex: u32,
    attach_type: u32,
    rest: [u64; 8],
}

/// The device that a link holds its program at (0 when the link was detached or the device is gone), and the link's number.
pub(crate) fn link_device(link: &OwnedFd) -> io::Result<(u32, u32)> {
    let mut info = LinkInfo::default();
    let mut attributes = GetInfo {
        descriptor: number(link.as_fd()),
        octets: size_of::<LinkInfo>() as u32,
        info: (&raw mut info) as u64,
    };
    // SAFETY: this is what BPF_OBJ_GET_INFO_BY_FD takes; `info` is valid for writes of its size and lives through the call.
    unsafe { bpf(OBJ_GET_INFO, &mut attributes) }?;
    Ok((info.ifindex, info.id))
}

#[repr(C)]
#[derive(Default)]
struct Query {
    target: u32,
    attach_type: u32,
    flags: u32,
    attach_flags: u32,
    programs: u64,
    count: u32,
    pad: u32,
    program_flags: u64,
    links: u64,
    link_flags: u64,
    revision: u64,
}

/// Whether the link with this number is the first at the device's ingress.
pub(crate) fn link_is_first(ifindex: u32, link: u32) -> io::Result<bool> {
    let (mut programs, mut links) = ([0_u32; 64], [0_u32; 64]);
    let mut attributes = Query {
        target: ifindex,
        attach_type: Hook::TcxIngress.attach_type(),
        programs: programs.as_mut_ptr() as u64,
        count: programs.len() as u32,
        links: links.as_mut_ptr() as u64,
        ..Query::default()
    };
    // SAFETY: this is what BPF_PROG_QUERY takes; both arrays have room for `count` numbers and live through the call.
    unsafe { bpf(PROG_QUERY, &mut attributes) }?;
    Ok(attributes.count > 0 && links[0] == link)
}

/// A shared mapping of a map.
#[derive(Debug)]
struct Mapping {
    start: NonNull<u8>,
    octets: usize,
}

// SAFETY: a mapping belongs to the process, not to a thread.
unsafe impl Send for Mapping {}
// SAFETY: it is read and written through atomics and copies only (below).
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: start and length are what mmap returned; references into it borrow from `self`.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.octets) };
    }
}

impl Mapping {
    fn new(map: &OwnedFd, octets: usize, offset: usize, protection: ProtFlags) -> io::Result<Self> {
        // SAFETY: a new mapping at a place of the kernel's choice.
        let start =
            unsafe { mmap(std::ptr::null_mut(), octets, protection, MapFlags::SHARED, map, offset as u64)? };
        let start = NonNull::new(start.cast()).ok_or_else(|| io::Error::other("mmap returned null"))?;
        Ok(Self { start, octets })
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        assert!(at.is_multiple_of(8) && at + 8 <= self.octets);
        // SAFETY: inside of the mapping and aligned (checked), mapped for as long as `self`; the kernel reads and writes such
        // words as wholes, too. Of a read-only mapping words are only loaded.
        unsafe { AtomicU64::from_ptr(self.start.as_ptr().add(at).cast()) }
    }

    fn half(&self, at: usize) -> &AtomicU32 {
        assert!(at.is_multiple_of(4) && at + 4 <= self.octets);
        // SAFETY: as in `word`.
        unsafe { AtomicU32::from_ptr(self.start.as_ptr().add(at).cast()) }
    }

    fn copy(&self, at: usize, into: &mut [u8]) {
        assert!(at.checked_add(into.len()).is_some_and(|end| end <= self.octets));
        // SAFETY: inside of the mapping (checked); a record that the program has submitted is not written until we give
        // it back.
        unsafe {
            std::ptr::copy_nonoverlapping(self.start.as_ptr().add(at), into.as_mut_ptr(), into.len());
        }
    }
}

/// The counters' array.
#[derive(Debug)]
pub(crate) struct CounterMap(Mapping);

impl CounterMap {
    pub(crate) fn new(map: &OwnedFd, octets: usize) -> io::Result<Self> {
        let page = rustix::param::page_size();
        Mapping::new(map, octets.next_multiple_of(page), 0, ProtFlags::READ).map(Self)
    }

    pub(crate) fn get(&self, index: usize) -> u64 {
        self.0.word(index * 8).load(Ordering::Relaxed)
    }
}

/// A ring of records (BPF_MAP_TYPE_RINGBUF): one page with our position, one with the program's, then the data, twice in
/// a row so that no record is ever broken.
#[derive(Debug)]
pub(crate) struct RingMap {
    ours: Mapping,
    theirs: Mapping,
    page: usize,
    octets: usize,
}

/// Header of a record: length with two flags, page offset.
const HEADER_OCTETS: u64 = 8;
const BUSY: u32 = 1 << 31;
const DISCARDED: u32 = 1 << 30;

impl RingMap {
    pub(crate) fn new(map: &OwnedFd, octets: usize) -> io::Result<Self> {
        let page = rustix::param::page_size();
        let ours = Mapping::new(map, page, 0, ProtFlags::READ | ProtFlags::WRITE)?;
        let theirs = Mapping::new(map, page + 2 * octets, page, ProtFlags::READ)?;
        Ok(Self { ours, theirs, page, octets })
    }

    fn at(&self, position: u64) -> usize {
        self.page + (position as usize & (self.octets - 1))
    }

    /// Whether a finished record waits.
    pub(crate) fn is_waiting(&self) -> bool {
        let ours = self.ours.word(0).load(Ordering::Relaxed);
        ours < self.theirs.word(0).load(Ordering::Acquire)
            && self.theirs.half(self.at(ours)).load(Ordering::Acquire) & BUSY == 0
    }

    /// Copies the next record's first octets into `into`, gives the record back, and returns its length; discarded ones
    /// are skipped.
    pub(crate) fn take(&mut self, into: &mut [u8]) -> Option<usize> {
        loop {
            if !self.is_waiting() {
                return None;
            }
            let ours = self.ours.word(0).load(Ordering::Relaxed);
            let word = self.theirs.half(self.at(ours)).load(Ordering::Acquire);
            let octets = (word & !(BUSY | DISCARDED)) as usize;
            let copied = octets.min(into.len()).min(self.octets);
            let is_wanted = word & DISCARDED == 0;
            if is_wanted {
                self.theirs.copy(self.at(ours) + HEADER_OCTETS as usize, &mut into[..copied]);
            }
            let next = ours + (HEADER_OCTETS + octets as u64).next_multiple_of(8);
            self.ours.word(0).store(next, Ordering::Release);
            if is_wanted {
                return Some(octets);
            }
        }
    }
}
