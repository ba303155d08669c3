// SPDX-License-Identifier: Apache-2.0
//! CLOCK_MONOTONIC, as cheap as the program itself reads it (through its C library and the vDSO).
//!
//! Out: nanoseconds. It never fails and touches no `errno`: the clock exists on every kernel.

use core::ffi::c_int;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crate::process::abi::CLOCK_MONOTONIC;
use crate::{process::originals, process::sys};

static READ: AtomicUsize = AtomicUsize::new(0);

/// Looks the C library's function up (by the constructor).
pub(crate) fn find() {
    READ.store(originals::any(c"clock_gettime") as usize, Relaxed);
}

/// Now, in nanoseconds of CLOCK_MONOTONIC.
pub(crate) fn monotonic() -> u64 {
    let at = READ.load(Relaxed);
    if at == 0 {
        return sys::clock_by_call(CLOCK_MONOTONIC);
    }
    let mut time = [0i64; 2];
    // SAFETY: `at` is the address of clock_gettime, which has this signature on 64-bit systems.
    let read: unsafe extern "C" fn(c_int, *mut [i64; 2]) -> c_int = unsafe { core::mem::transmute(at) };
    // SAFETY: it writes one timespec (two 64-bit words) to our own memory.
    unsafe { read(CLOCK_MONOTONIC, &raw mut time) };
    (time[0] as u64).wrapping_mul(1_000_000_000).wrapping_add(time[1] as u64)
}
