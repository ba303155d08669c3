// SPDX-License-Identifier: Apache-2.0
//! What is known before the first call: the environment's words, the C library's kind, the originals.
//!
//! In: `environ`, read once by the constructor (later changes are not seen). Out: the path of the daemon's socket,
//! the policy, how much to say. In a set-user-id program (AT_SECURE) the environment is ignored, for the path
//! decides which daemon's memory is mapped.

use core::cell::UnsafeCell;
use core::ffi::{CStr, c_char, c_int, c_void};
use core::sync::atomic::{
    AtomicBool, AtomicU8, AtomicU32,
    Ordering::{Acquire, Relaxed, Release},
};

use crate::process::line::Line;
use crate::{
    process::clock, process::kernel, process::originals, process::page, process::root, process::sys,
};

const RUN_DIR_DEFAULT: &[u8] = b"/run/ktsn";
const SOCKET: &[u8] = b"/client/ktsn.sock";
/// `sun_path` without its NUL.
const PATH_MAX: usize = 107;
const AT_SECURE: u64 = 23;

static STRICT: AtomicBool = AtomicBool::new(false);
static MUSL: AtomicBool = AtomicBool::new(false);
/// 0 off, 1 warn, 2 debug.
static LOG: AtomicU8 = AtomicU8::new(1);
/// Descriptor 2 is closed, or the file that came after is no standard error: no dup2 put it there.
static STDERR_GONE: AtomicBool = AtomicBool::new(false);
/// `KTSN_EMULATE_HWTSTAMP`: 0 = no, else the PHC's index + 2, and 1 without one.
static HWTSTAMP: AtomicU32 = AtomicU32::new(0);
static WARNED: AtomicBool = AtomicBool::new(false);

struct Path(UnsafeCell<[u8; PATH_MAX + 1]>);
// SAFETY: written only by `start`, whose body runs once (`STARTED`), before threads can use the path:
// `SEALED` is set after the last write, and readers look at it first.
unsafe impl Sync for Path {}
static PATH: Path = Path(UnsafeCell::new([0; PATH_MAX + 1]));
static STARTED: AtomicBool = AtomicBool::new(false);
static SEALED: AtomicBool = AtomicBool::new(false);

/// The path of the daemon's client socket; `None` before the constructor ran, or when it does not fit an address.
pub(crate) fn socket_path() -> Option<&'static CStr> {
    if !SEALED.load(Acquire) {
        return None;
    }
    // SAFETY: sealed, so no thread writes any more.
    let path = unsafe { &*PATH.0.get() };
    CStr::from_bytes_until_nul(path).ok().filter(|path| !path.is_empty())
}

/// `KTSN_POLICY=strict`: without an attachment timed sends fail instead of going to the kernel.
pub(crate) fn is_strict() -> bool {
    STRICT.load(Relaxed)
}

/// Whether the C library is not glibc: then the upper halves of two lengths in `struct msghdr` are padding.
pub(crate) fn is_musl() -> bool {
    MUSL.load(Relaxed)
}

/// Says once, in a line of these pieces, that timed sends of this program do not reach KTSN, and what to do about it.
pub(crate) fn warn_once(pieces: &[&[u8]]) {
    if LOG.load(Relaxed) >= 1 && !STDERR_GONE.load(Relaxed) && !WARNED.swap(true, Relaxed) {
        sys::complain(Line::join(pieces).octets());
    }
}

/// The program closed descriptors `first` to `last`: what it opens as number 2 afterwards is a file of its own.
pub(crate) fn note_closed(first: u32, last: u32) {
    // A vfork's child prepares another program, not this one.
    if first <= 2 && last >= 2 && page::may_change() {
        STDERR_GONE.store(true, Relaxed);
    }
}

/// The program put a file at this number on purpose: it may be a standard error. Returns `fd`.
pub(crate) fn note_replaced(fd: c_int) -> c_int {
    if fd == 2 {
        STDERR_GONE.store(false, Relaxed);
    }
    fd
}

/// Says something under `KTSN_LOG=debug`.
pub(crate) fn debug(line: &[u8]) {
    if LOG.load(Relaxed) >= 2 && !STDERR_GONE.load(Relaxed) {
        sys::complain(line);
    }
}

/// Reads the environment, once. By the constructor, or by a timed socket of a library whose constructor runs before ours.
pub(crate) fn make_ready() {
    if !SEALED.load(Acquire) {
        start();
    }
}

fn start() {
    if STARTED.swap(true, Relaxed) {
        return;
    }
    // Looking symbols up may leave an error number behind; the program starts with the one it would have had.
    let saved = originals::errno();
    originals::find_all();
    clock::find();
    kernel::set_version(sys::kernel_version());
    originals::find_test_cancel();
    STDERR_GONE.store(!sys::is_open(2), Relaxed);
    MUSL.store(originals::any(c"gnu_get_libc_version").is_null(), Relaxed);
    let mut run_dir = RUN_DIR_DEFAULT;
    if !is_secure() {
        if let Some(value) = variable(b"KTSN_RUN_DIR").filter(|value| !value.is_empty()) {
            run_dir = value;
        }
        HWTSTAMP.store(variable(b"KTSN_EMULATE_HWTSTAMP").map_or(0, hwtstamp), Relaxed);
        STRICT.store(variable(b"KTSN_POLICY") == Some(b"strict"), Relaxed);
        LOG.store(
            match variable(b"KTSN_LOG") {
                Some(b"off") => 0,
                Some(b"debug") => 2,
                _ => 1,
            },
            Relaxed,
        );
    }
    write_path(run_dir);
    root::note();
    SEALED.store(true, Release);
    originals::set_errno(saved);
}

/// `1`, or `1,phc=N`; anything else is no.
fn hwtstamp(value: &[u8]) -> u32 {
    match value.strip_prefix(b"1") {
        Some([]) => 1,
        Some([b',', b'p', b'h', b'c', b'=', digits @ ..]) if (1..=3).contains(&digits.len()) => {
            let mut index = 0u32;
            for digit in digits {
                if !digit.is_ascii_digit() {
                    return 0;
                }
                index = index.saturating_mul(10).saturating_add(u32::from(*digit & 15));
            }
            index.saturating_add(2)
        }
        _ => 0,
    }
}

/// Whether hardware timestamps are to be claimed ([`crate::process::hwtstamp`]).
pub(crate) fn emulates_hwtstamp() -> bool {
    HWTSTAMP.load(Relaxed) != 0
}

/// The index of the PHC that the user named.
pub(crate) fn hwtstamp_phc() -> Option<i32> {
    i32::try_from(HWTSTAMP.load(Relaxed)).ok().filter(|word| *word >= 2).map(|word| word.saturating_sub(2))
}

fn write_path(run_dir: &[u8]) {
    // SAFETY: only `start` gets here, once, and no thread reads before `SEALED`.
    let path = unsafe { &mut *PATH.0.get() };
    if run_dir.len() + SOCKET.len() > PATH_MAX {
        return; // stays empty: never attached, and the warning says so
    }
    for (to, from) in path.iter_mut().zip(run_dir.iter().chain(SOCKET)) {
        *to = *from;
    }
}

/// Whether the program has more rights than the user that started it. Unknown counts as yes.
pub(crate) fn is_secure() -> bool {
    let at = originals::any(c"getauxval");
    if at.is_null() {
        return true;
    }
    // SAFETY: getauxval has this signature in glibc and musl.
    let getauxval: unsafe extern "C" fn(u64) -> u64 = unsafe { core::mem::transmute(at) };
    // SAFETY: it only reads the process's auxiliary vector.
    unsafe { getauxval(AT_SECURE) != 0 }
}

/// The value of an environment variable. Only while constructors run.
pub(crate) fn variable(name: &[u8]) -> Option<&'static [u8]> {
    let environ = originals::any(c"environ").cast::<*const *const c_char>();
    // SAFETY: a non-null `environ` is the C library's pointer to a NULL-terminated array of strings, which no thread
    // changes while constructors run.
    let mut entry = unsafe { environ.as_ref() }.copied().unwrap_or(core::ptr::null());
    if entry.is_null() {
        return None;
    }
    loop {
        // SAFETY: within the array, whose end is a null pointer.
        let string = unsafe { *entry };
        if string.is_null() {
            return None;
        }
        // SAFETY: each entry is a NUL-terminated string.
        let text = unsafe { CStr::from_ptr(string) }.to_bytes();
        if let Some(value) = text.strip_prefix(name).and_then(|rest| rest.strip_prefix(b"=")) {
            return Some(value);
        }
        // SAFETY: not yet at the end.
        entry = unsafe { entry.add(1) };
    }
}

const _: () = assert!(size_of::<*const c_void>() == 8);
