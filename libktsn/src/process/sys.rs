// SPDX-License-Identifier: Apache-2.0
//! Raw system calls that the typed crate does not have, because the option or the address is the program's.
//!
//! In: descriptors and plain values. Out: values or an errno number. It never touches the program's `errno`,
//! never allocates and never blocks (except in [`nap`], whose length the caller gives).

use core::ffi::{c_int, c_void};
use core::mem::size_of;
use core::ptr::NonNull;

use rustix::fd::{AsRawFd, FromRawFd, OwnedFd};

use crate::process::abi::{self, EBADF, EINVAL, MessageHeader, Segment};

pub(crate) mod number;
mod numbers;
pub(crate) mod passing;

pub(crate) use numbers::{close, duplicate, move_high, socket};

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!("libktsn knows the system calls of x86-64 and AArch64 only");

/// One system call. The result is a value, or `-errno`.
///
/// # Safety
/// The arguments must be what the call with this number expects; pointers must be valid for what it does with them.
pub(crate) unsafe fn call<const N: usize>(number: usize, arguments: [usize; N]) -> isize {
    let a = |index: usize| arguments.get(index).copied().unwrap_or(0);
    let result: isize;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the instruction follows the kernel's calling convention (rcx and r11 are clobbered); the caller answers
    // for the arguments.
    unsafe {
        core::arch::asm!(
            "syscall",
            inlateout("rax") number as isize => result,
            in("rdi") a(0), in("rsi") a(1), in("rdx") a(2), in("r10") a(3), in("r8") a(4), in("r9") a(5),
            lateout("rcx") _, lateout("r11") _,
            options(nostack)
        );
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above, with the registers of this architecture.
    unsafe {
        core::arch::asm!(
            "svc 0",
            in("x8") number,
            inlateout("x0") a(0) as isize => result,
            in("x1") a(1), in("x2") a(2), in("x3") a(3), in("x4") a(4), in("x5") a(5),
            options(nostack)
        );
    }
    result
}

/// What a system call returned, or its errno.
const fn checked(result: isize) -> Result<usize, c_int> {
    if result < 0 { Err(result.wrapping_neg() as c_int) } else { Ok(result.cast_unsigned()) }
}

/// An `int` as a system call argument: the kernel sees the same bits, sign extended.
pub(crate) const fn word(value: c_int) -> usize {
    value as isize as usize
}

/// Reads an option into `value`; the answer is the length that the kernel wrote.
pub(crate) fn option_octets(fd: c_int, level: c_int, name: c_int, value: &mut [u8]) -> Result<usize, c_int> {
    let mut octets = value.len() as u32;
    // SAFETY: `value` and `octets` are ours, writable and outlive the call.
    let result = unsafe {
        call(
            number::GETSOCKOPT,
            [word(fd), word(level), word(name), value.as_mut_ptr() as usize, (&raw mut octets) as usize],
        )
    };
    checked(result).map(|_| (octets as usize).min(value.len()))
}

/// An `int` option; `None` when the socket has no such option.
pub(crate) fn option_int(fd: c_int, level: c_int, name: c_int) -> Option<c_int> {
    let mut value = [0; size_of::<c_int>()];
    // Some options of the IP level answer with one octet when one suffices; the rest is zero then.
    option_octets(fd, level, name, &mut value).ok().map(|_| c_int::from_ne_bytes(value))
}

/// Sets an option; whether the kernel took it.
pub(crate) fn set_option_int(fd: c_int, level: c_int, name: c_int, value: c_int) -> bool {
    let value = value.to_ne_bytes();
    let arguments = [word(fd), word(level), word(name), value.as_ptr() as usize, value.len()];
    // SAFETY: the kernel reads the four octets of `value`.
    unsafe { call(number::SETSOCKOPT, arguments) == 0 }
}

/// The socket's cookie; `None` when the descriptor is no socket. Never 0.
pub(crate) fn cookie(fd: c_int) -> Option<u64> {
    let mut value = [0; 8];
    match option_octets(fd, abi::SOL_SOCKET, abi::SO_COOKIE, &mut value) {
        Ok(8) => Some(u64::from_ne_bytes(value)),
        _ => None,
    }
}

/// A socket address as the kernel gave it: its octets, at most 28 used here.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
pub(crate) struct Name {
    pub(crate) octets: [u8; abi::NAME_MAX],
    pub(crate) len: usize,
}

fn name_of(number: usize, fd: c_int) -> Option<Name> {
    let mut name = Name { octets: [0; abi::NAME_MAX], len: 0 };
    let mut len = name.octets.len() as u32;
    // SAFETY: both pointers are to our own memory, which outlives the call.
    let result =
        unsafe { call(number, [word(fd), name.octets.as_mut_ptr() as usize, (&raw mut len) as usize]) };
    name.len = (len as usize).min(name.octets.len());
    (result == 0).then_some(name)
}

/// The socket's own address.
pub(crate) fn local_name(fd: c_int) -> Option<Name> {
    name_of(number::GETSOCKNAME, fd)
}

/// The address that the socket is connected to.
pub(crate) fn peer_name(fd: c_int) -> Option<Name> {
    name_of(number::GETPEERNAME, fd)
}

/// Gives an unbound socket this port on any address; 0: one that the kernel chooses, as at the first send.
pub(crate) fn bind_any(fd: c_int, v6: bool, port: u16) -> bool {
    let mut address = [0u8; 28];
    let (family, len) = if v6 { (abi::AF_INET6, 28) } else { (abi::AF_INET, 16) };
    address[..2].copy_from_slice(&family.to_ne_bytes());
    [address[2], address[3]] = port.to_be_bytes();
    // SAFETY: the kernel reads `len` octets of `address`, which has at least that many.
    unsafe { call(number::BIND, [word(fd), address.as_ptr() as usize, len]) == 0 }
}

/// Reads a clock by system call, nanoseconds.
pub(crate) fn clock_by_call(clock: c_int) -> u64 {
    let mut time = [0i64; 2];
    // SAFETY: the kernel writes one timespec (two 64-bit words) to `time`.
    unsafe { call(number::CLOCK_GETTIME, [word(clock), time.as_mut_ptr() as usize]) };
    (time[0] as u64).saturating_mul(1_000_000_000).saturating_add(time[1] as u64)
}

/// Sleeps for `nanos` (less than a second); false when a signal ended the sleep.
pub(crate) fn nap(nanos: u32) -> bool {
    use rustix::thread::{NanosleepRelativeResult, Timespec, nanosleep};
    let span = Timespec { tv_sec: 0, tv_nsec: i64::from(nanos) };
    !matches!(nanosleep(&span), NanosleepRelativeResult::Interrupted(_))
}

/// The calling process.
pub(crate) fn pid() -> u32 {
    rustix::process::getpid().as_raw_nonzero().get() as u32
}

/// Whether the kernel can read the page that begins at this address.
pub(crate) fn is_page_readable(page: usize) -> bool {
    /// None of SIG_BLOCK, SIG_UNBLOCK, SIG_SETMASK: the set is copied, then the call fails without having done anything.
    const NOTHING: usize = usize::MAX;
    // Not its beginning: a null pointer is no set at all.
    let at = page | 8;
    // SAFETY: the kernel reads eight octets of the program's memory, or finds that it cannot; nothing is changed.
    let result = unsafe { call(number::RT_SIGPROCMASK, [NOTHING, at, 0, 8]) };
    result != (abi::EFAULT as isize).wrapping_neg()
}

/// Whether the page that begins at this address can be written. Kernels before 5.14 do not say: yes.
pub(crate) fn is_page_writable(page: usize) -> bool {
    const MADV_POPULATE_WRITE: usize = 23;
    // SAFETY: the kernel makes the page as present as a write would; its content stays.
    let result = unsafe { call(number::MADVISE, [page, 1, MADV_POPULATE_WRITE]) };
    // Anything else is a sandbox that forbids the question.
    let is_no = [abi::EFAULT, abi::ENOMEM, abi::EINVAL]
        .iter()
        .any(|errno| result == (*errno as isize).wrapping_neg());
    !is_no || !crate::process::kernel::knows_populate()
}

/// The kernel's version, major and minor; 0.0 where it cannot be read.
pub(crate) fn kernel_version() -> (u32, u32) {
    /// Octets of each of the six fields of `struct utsname`.
    const FIELD: usize = 65;
    let mut names = [0u8; 6 * FIELD];
    // SAFETY: the kernel writes one struct utsname, which is as long as `names`.
    if unsafe { call(number::UNAME, [names.as_mut_ptr() as usize]) } != 0 {
        return (0, 0);
    }
    let mut numbers = names.get(2 * FIELD..3 * FIELD).unwrap_or(&[]).split(|octet| !octet.is_ascii_digit());
    let mut number = || {
        numbers.next().unwrap_or(&[]).iter().fold(0u32, |sum, digit| {
            sum.saturating_mul(10).saturating_add(u32::from(digit.wrapping_sub(b'0')))
        })
    };
    (number(), number())
}

/// Whether the calling thread may give its datagrams any priority: CAP_NET_ADMIN or CAP_NET_RAW is in effect.
pub(crate) fn may_prioritise() -> bool {
    const VERSION_3: u32 = 0x2008_0522;
    const CAP_NET_ADMIN_OR_RAW: u32 = 1 << 12 | 1 << 13;
    let header = [VERSION_3, 0];
    // Effective, permitted, inheritable; twice.
    let mut sets = [0u32; 6];
    // SAFETY: the kernel reads two words of `header` and writes six to `sets`.
    let result = unsafe { call(number::CAPGET, [header.as_ptr() as usize, sets.as_mut_ptr() as usize]) };
    result == 0 && sets[0] & CAP_NET_ADMIN_OR_RAW != 0
}

/// Writes a line to the program's standard error, once, best effort.
pub(crate) fn complain(line: &[u8]) {
    // SAFETY: descriptor 2 is only borrowed for one call; a closed one is an error, which is fine.
    let stderr = unsafe { rustix::fd::BorrowedFd::borrow_raw(2) };
    let _ = rustix::io::write(stderr, line);
}

/// The index of a network interface in the socket's namespace; 0 when there is none of this name.
pub(crate) fn interface_index(socket: c_int, name: [u8; 16]) -> u32 {
    const SIOCGIFINDEX: usize = 0x8933;
    // struct ifreq: the name, then the index.
    let mut request = [0u32; 10];
    for (word, octets) in request.iter_mut().zip(name.as_chunks::<4>().0) {
        *word = u32::from_ne_bytes(*octets);
    }
    // SAFETY: the kernel reads and writes one struct ifreq, which is ours.
    let result = unsafe { call(number::IOCTL, [word(socket), SIOCGIFINDEX, request.as_mut_ptr() as usize]) };
    if result < 0 { 0 } else { request[4] }
}

/// `struct ifreq` with a pointer in its union.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Request {
    pub(crate) name: [u8; 16],
    pub(crate) data: *mut c_void,
    rest: [usize; 2],
}

/// The errno of asking (SIOCGHWTSTAMP) how an interface stamps; 0 = it has hardware stamps.
pub(crate) fn hwtstamp_error(socket: c_int, asked: &Request, request: u32) -> c_int {
    let mut config = [0u32; 3];
    let mut copy = *asked;
    copy.data = config.as_mut_ptr().cast();
    // SAFETY: the kernel writes a struct hwtstamp_config (12 octets) through the request, and both are ours.
    let result = unsafe { call(number::IOCTL, [word(socket), request as usize, (&raw mut copy) as usize]) };
    checked(result).err().unwrap_or(0)
}

/// Whether a descriptor is open.
pub(crate) fn is_open(fd: c_int) -> bool {
    const F_GETFD: usize = 1;
    // SAFETY: takes and gives plain values.
    unsafe { call(number::FCNTL, [word(fd), F_GETFD]) >= 0 }
}

/// Whether the file description is non-blocking right now.
pub(crate) fn is_nonblocking(fd: c_int) -> bool {
    const F_GETFL: usize = 3;
    const O_NONBLOCK: isize = 0o4000;
    // SAFETY: takes and gives plain values.
    let flags = unsafe { call(number::FCNTL, [word(fd), F_GETFL]) };
    flags >= 0 && flags & O_NONBLOCK != 0
}

/// `readv` that does not wait: octets or `-errno`; EOPNOTSUPP where the kernel's sockets do not know it.
///
/// # Safety
/// The arguments are those of a `readv` of the program.
pub(crate) unsafe fn readv_at_once(fd: c_int, segments: *const Segment, count: c_int) -> isize {
    const RWF_NOWAIT: usize = 8;
    /// Not at an offset.
    const NOWHERE: usize = usize::MAX;
    // SAFETY: the caller's promise.
    unsafe { call(number::PREADV2, [word(fd), segments as usize, word(count), NOWHERE, NOWHERE, RWF_NOWAIT]) }
}

/// SO_SNDTIMEO in nanoseconds; 0 = wait without end.
pub(crate) fn send_timeout(fd: c_int) -> u64 {
    timeout_option(fd, abi::SO_SNDTIMEO)
}

/// SO_RCVTIMEO in nanoseconds; 0 = wait without end.
pub(crate) fn receive_timeout(fd: c_int) -> u64 {
    timeout_option(fd, abi::SO_RCVTIMEO)
}

/// An option of `struct timeval` in nanoseconds; 0 where it cannot be read.
fn timeout_option(fd: c_int, name: c_int) -> u64 {
    let mut time = [0u8; 16];
    if option_octets(fd, abi::SOL_SOCKET, name, &mut time) != Ok(16) {
        return 0;
    }
    // The low half first, on the little-endian architectures that are supported.
    let time = u128::from_le_bytes(time);
    let (seconds, micros) = (time as u64, (time >> 64) as u64);
    seconds.saturating_mul(1_000_000_000).saturating_add(micros.saturating_mul(1_000))
}

/// One page that the kernel empties in a child made by fork; `None` where the kernel cannot (before 4.14).
pub(crate) fn wiped_page(octets: usize) -> Option<*mut c_void> {
    use rustix::mm::{Advice, MapFlags, ProtFlags};
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new anonymous mapping at an address of the kernel's choice touches no existing mapping.
    let page =
        unsafe { rustix::mm::mmap_anonymous(core::ptr::null_mut(), octets, access, MapFlags::PRIVATE) };
    let page = page.ok()?;
    // SAFETY: the page was mapped right here and no other code knows it.
    if unsafe { rustix::mm::madvise(page, octets, Advice::LinuxWipeOnFork) }.is_err() {
        unmap(page as usize, octets);
        return None;
    }
    Some(page)
}

/// Maps a file of exactly `octets` octets, shared and writable. A longer mapping would fault when it is read. An error is the
/// kernel's: EAGAIN where the memory would be locked (mlockall) and RLIMIT_MEMLOCK has no room for it.
pub(crate) fn map_shared(file: &OwnedFd, octets: usize) -> Result<NonNull<u8>, c_int> {
    use rustix::mm::{MapFlags, ProtFlags};
    let fd = file.as_raw_fd();
    if fd < 0 {
        return Err(EBADF);
    }
    let number = |error: rustix::io::Errno| error.raw_os_error();
    // SAFETY: not -1, and open as long as `file`.
    let file = unsafe { rustix::fd::BorrowedFd::borrow_raw(fd) };
    if usize::try_from(rustix::fs::fstat(file).map_err(number)?.st_size) != Ok(octets) {
        return Err(EINVAL);
    }
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // Populated: the first send into each slot takes no page fault.
    let flags = MapFlags::SHARED | MapFlags::POPULATE;
    // SAFETY: a new mapping at an address of the kernel's choice touches no existing mapping.
    let base = unsafe { rustix::mm::mmap(core::ptr::null_mut(), octets, access, flags, file, 0) };
    NonNull::new(base.map_err(number)?.cast()).ok_or(EINVAL)
}

/// Gives a mapping of ours back.
pub(crate) fn unmap(base: usize, octets: usize) {
    // SAFETY: only called with the address and length of a mapping that this library made and no thread uses any more.
    let _ = unsafe { rustix::mm::munmap(base as *mut c_void, octets) };
}

/// Control data with descriptors: one SCM_RIGHTS message, room for two.
#[repr(C)]
struct Rights {
    octets: usize,
    level: c_int,
    kind: c_int,
    fds: [c_int; 2],
}

const SCM_RIGHTS: c_int = 1;
const RIGHTS_HEADER: usize = 16;

/// Whether something (also an end) can be read at once.
pub(crate) fn is_readable(fd: c_int) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    if fd < 0 {
        return true; // reading finds the error
    }
    // SAFETY: not -1; borrowed for one call, and a descriptor that is closed meanwhile is an error value.
    let fd = unsafe { rustix::fd::BorrowedFd::borrow_raw(fd) };
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&at_once)) != Ok(0)
}

/// `recvmsg`; the lengths and flags in `header` are the kernel's afterwards.
pub(crate) fn recvmsg(fd: c_int, header: &mut MessageHeader, flags: c_int) -> Result<usize, c_int> {
    let at: *mut MessageHeader = header;
    // SAFETY: the kernel writes to the header, and to the buffers that it names: ours, which outlive the call, and the
    // program's, which it gave for that.
    let result = unsafe { call(number::RECVMSG, [word(fd), at as usize, word(flags)]) };
    checked(result)
}

/// Sends one message, with a descriptor or without; never blocks, never raises SIGPIPE.
pub(crate) fn send(socket: c_int, message: &[u8], passed: Option<c_int>) -> Result<(), c_int> {
    let rights = Rights {
        octets: RIGHTS_HEADER.wrapping_add(size_of::<c_int>()),
        level: abi::SOL_SOCKET,
        kind: SCM_RIGHTS,
        fds: [passed.unwrap_or(-1), 0],
    };
    let segment = Segment { base: message.as_ptr().cast(), octets: message.len() };
    let header = MessageHeader {
        name: core::ptr::null(),
        name_octets: 0,
        segments: &raw const segment,
        segments_count: 1,
        control: (&raw const rights).cast(),
        control_octets: if passed.is_some() { size_of::<Rights>() } else { 0 },
        flags: 0,
    };
    let flags = word(abi::MSG_DONTWAIT | abi::MSG_NOSIGNAL);
    // SAFETY: header, segment, rights and message are ours and outlive the call, which reads them.
    let result = unsafe { call(number::SENDMSG, [word(socket), (&raw const header) as usize, flags]) };
    checked(result).map(drop)
}

/// Receives one message and up to two descriptors (CLOEXEC); never blocks. The length may exceed `message`.
pub(crate) fn receive(socket: c_int, message: &mut [u8]) -> Result<(usize, [Option<OwnedFd>; 2]), c_int> {
    let mut rights = Rights { octets: 0, level: 0, kind: 0, fds: [-1; 2] };
    let segment = Segment { base: message.as_mut_ptr().cast(), octets: message.len() };
    let mut header = MessageHeader {
        name: core::ptr::null(),
        name_octets: 0,
        segments: &raw const segment,
        segments_count: 1,
        control: (&raw mut rights).cast(),
        control_octets: size_of::<Rights>(),
        flags: 0,
    };
    let flags = word(abi::MSG_DONTWAIT | abi::MSG_TRUNC | abi::MSG_CMSG_CLOEXEC);
    // What comes is no standard stream, not even for a moment: another thread may write there.
    let _taken = numbers::take_streams();
    // SAFETY: header, segment, rights and message are ours, writable, and outlive the call.
    let result = unsafe { call(number::RECVMSG, [word(socket), (&raw mut header) as usize, flags]) };
    let octets = checked(result)?;
    let is_rights = header.control_octets >= RIGHTS_HEADER
        && (rights.level, rights.kind) == (abi::SOL_SOCKET, SCM_RIGHTS);
    let count = if is_rights { rights.octets.saturating_sub(RIGHTS_HEADER) / size_of::<c_int>() } else { 0 };
    // SAFETY: the kernel has just opened these descriptors for us and no other code knows them.
    let own =
        |index: usize, fd: c_int| (index < count && fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) });
    Ok((octets, [own(0, rights.fds[0]), own(1, rights.fds[1])]))
}

/// A non-blocking SEQPACKET connection to a path socket, CLOEXEC, moved by [`move_high`].
pub(crate) fn connect_unix(path: &core::ffi::CStr, min: c_int) -> Result<OwnedFd, c_int> {
    use numbers::{AF_UNIX, SOCK_SEQPACKET};
    let socket = socket(AF_UNIX, SOCK_SEQPACKET)?;
    let mut address = [0u8; 110];
    let octets = path.to_bytes_with_nul();
    let text = address.get_mut(2..octets.len().saturating_add(2)).ok_or(abi::EINVAL)?;
    for (to, from) in text.iter_mut().zip(octets) {
        *to = *from;
    }
    if let Some(family) = address.first_chunk_mut() {
        *family = AF_UNIX.to_ne_bytes();
    }
    let len = octets.len().saturating_add(2);
    // SAFETY: the kernel reads `len` octets of `address`, which has at least that many.
    let result = unsafe { call(number::CONNECT, [word(socket.as_raw_fd()), address.as_ptr() as usize, len]) };
    checked(result)?;
    move_high(socket, min)
}

fn owned(result: isize) -> Result<OwnedFd, c_int> {
    let fd = checked(result)? as c_int & c_int::MAX;
    // SAFETY: the kernel has just opened this descriptor for us and no other code knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Changes the calling thread's signal mask; the mask as it was, or `None` where a sandbox forbids the call.
pub(crate) fn change_mask(how: usize, mask: u64) -> Option<u64> {
    let mut before = 0u64;
    let arguments = [how, (&raw const mask) as usize, (&raw mut before) as usize, size_of::<u64>()];
    // SAFETY: the kernel reads one word of eight octets and writes one, both ours.
    let result = unsafe { call(number::RT_SIGPROCMASK, arguments) };
    (result == 0).then_some(before)
}

/// The flags of a signal's handler; `None` where it has none.
pub(crate) fn handler_flags(signal: u32) -> Option<u64> {
    const SIG_IGN: u64 = 1;
    // The kernel's struct sigaction: handler, flags, restorer, mask.
    let mut action = [0u64; 4];
    let arguments = [signal as usize, 0, action.as_mut_ptr() as usize, size_of::<u64>()];
    // SAFETY: nothing is changed; the kernel writes one struct sigaction, which is as long as `action`.
    let result = unsafe { call(number::RT_SIGACTION, arguments) };
    let [handler, flags, _, _] = action;
    (result == 0 && handler > SIG_IGN).then_some(flags)
}
