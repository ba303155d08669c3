// SPDX-License-Identifier: Apache-2.0
//! libktsn.so: the send core, preloaded into programs that use `SO_TXTIME`.
//!
//! In: the program's socket calls. Out: timed UDP datagrams and frames of packet sockets in the daemon's shared memory; everything else
//! goes to the kernel as it came. Where the program asks for it, blocking receive calls are awake when an arrival is expected
//! ([`receive`]). A program that was never attached behaves as without this library.
//!
//! It must never, in a hook: allocate, lock, log, panic, or change `errno` on success. A hook waits only where this list says so:
//! * **A send** ([`send`] has each wait with its bound): for slots as for room in a socket's buffer, for a daemon that lives, and until its
//!   transmit time where only the kernel can send the datagram and ktsnd cannot keep it.
//! * **`SO_TXTIME`, set or read, and the ioctls of [`hwtstamp`](attach::hwtstamp)**: for a daemon that is there, 1 s for each of attaching,
//!   registering and showing a port.
//! * **`close` of a timed socket**: until the daemon has let go of the socket and no report is under way, 50 ms for each of both at each
//!   attachment.
//! * **Receive calls of a program that asked for [`receive`]**: no longer than the kernel's call.
//!
//! # Where it runs
//! In any thread, in signal handlers, before `main`, after `fork`, between `vfork` and `exec`. So:
//! * **Threads and signal handlers.** Tables are arrays of atomics; every change is one atomic operation or is
//!   published by one ([`fds`](streams::fds), [`streams`]). A slot of the ring belongs to one call from claim to publish. The one
//!   lock, for attaching, is only ever tried: a thread that does not get it goes on without ([`handshake`](attach::handshake)).
//! * **fork.** One page is emptied by the kernel in the child ([`page`](process::page)): the child has no region, holds no lock,
//!   and attaches by itself at its first timed send. The tables of descriptors and sockets it keeps: they are its own.
//! * **vfork.** The child shares all memory: it may send through the parent's region, but closing and duplicating
//!   descriptors there changes no table, because the pid is another.
//! * **exec.** Our descriptors are CLOEXEC. An inherited timed socket is recognised at its first `sendmsg`; one whose
//!   SO_TXTIME only the daemon had granted after the kernel's refusal of its first timed send ([`txtime`](attach::txtime)).
//! * **Limits.** Our two descriptors lie above the program's limit of open files ([`limit`](process::limit)).
//! * **Cancellation.** A timed send is a cancellation point before it holds anything.
//!
//! # What it links
//! No C library: system calls are raw, the originals are found by `dlsym`, so one file serves glibc and musl. A C
//! shim holds the variadic functions.
//!
//! # Known limits
//! `sendto`, `send` and `write` carry no transmit time and are not hooked. A descriptor number that is closed by a
//! raw system call and then reused is noticed when the program sets `SO_TXTIME` on it again. A wild pointer in a
//! message gets the kernel's EFAULT, except into a page that was sent from before and given back since: there the
//! program faults. A timed message with more than 1,024 octets of control data is the kernel's, and waits for its time in the call. A
//! process that was never attached stays with the kernel until it sets `SO_TXTIME` again. A signal handler that leaves by `longjmp` out
//! of a send loses its slots (one, or the burst's, 64 and one message's at most), or, out of the microseconds of an attachment's step,
//! the ability to attach again. A member of a group in the sender's own namespace gets no copy of what KTSN sends to that group
//! (IP_MULTICAST_LOOP).
#![cfg_attr(not(test), no_std)]
// Without the exports and the constructor much is unused in the test build.
#![cfg_attr(test, allow(dead_code))]
#![allow(unsafe_code)] // a library of C functions; every block says why it is sound

mod attach;
mod call;
mod errors;
pub mod hooks;
mod process;
mod receive;
mod send;
mod streams;

/// Stops the program at once: a panic here is our bug, and unwinding through C would be a second one.
#[cfg(not(test))]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: an illegal instruction ends the process with SIGILL.
    unsafe {
        core::arch::asm!("ud2", options(noreturn))
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above.
    unsafe {
        core::arch::asm!("udf #0", options(noreturn))
    }
}
