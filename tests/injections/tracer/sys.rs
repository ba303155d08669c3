// SPDX-License-Identifier: Apache-2.0
//! ptrace on one thread of x86-64: the requests, nothing else.

use std::io;
use std::mem::zeroed;

/// The registers of a stopped thread.
pub(crate) type Registers = libc::user_regs_struct;

/// In the signal of a stop at a system call.
const AT_SYSTEM_CALL: i32 = 0x80;

/// Why a thread has stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// A trap, or the end of one step.
    Trap,
    /// The begin or the end of a system call.
    SystemCall,
    /// A signal that it is about to get.
    Signal(i32),
    /// It has ended.
    Ended,
}

/// How a stopped thread goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Go {
    /// To the next trap or signal.
    On,
    /// To the next of these, or the begin or end of a system call.
    ToSystemCall,
}

fn answer(result: libc::c_long) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Traces a process with one thread; it is killed when the calling thread ends.
pub(super) fn seize(process: i32) -> io::Result<()> {
    let options = (libc::PTRACE_O_EXITKILL | libc::PTRACE_O_TRACESYSGOOD) as usize;
    // SAFETY: no pointer is passed.
    answer(unsafe { libc::ptrace(libc::PTRACE_SEIZE, process, 0_usize, options) })
}

/// Lets it go on, with a signal that it gets first; 0: none.
pub(super) fn go(process: i32, how: Go, signal: i32) -> io::Result<()> {
    let request = match how {
        Go::On => libc::PTRACE_CONT,
        Go::ToSystemCall => libc::PTRACE_SYSCALL,
    };
    // SAFETY: no pointer is passed.
    answer(unsafe { libc::ptrace(request, process, 0_usize, signal as usize) })
}

/// Its registers.
pub(super) fn registers(process: i32) -> io::Result<Registers> {
    // SAFETY: the structure is plain data.
    let mut registers: Registers = unsafe { zeroed() };
    // SAFETY: the kernel writes one such structure.
    answer(unsafe { libc::ptrace(libc::PTRACE_GETREGS, process, 0_usize, &raw mut registers) })?;
    Ok(registers)
}

/// Sets its registers.
pub(super) fn set_registers(process: i32, registers: &Registers) -> io::Result<()> {
    // SAFETY: the kernel reads one such structure.
    answer(unsafe { libc::ptrace(libc::PTRACE_SETREGS, process, 0_usize, &raw const *registers) })
}

/// The signals that it blocks: bit n - 1 is signal n.
pub(super) fn blocked(process: i32) -> io::Result<u64> {
    let mut mask = 0_u64;
    // SAFETY: the kernel writes eight octets.
    answer(unsafe { libc::ptrace(libc::PTRACE_GETSIGMASK, process, 8_usize, &raw mut mask) })?;
    Ok(mask)
}

/// Waits until it has stopped.
pub(super) fn wait(process: i32) -> io::Result<Stop> {
    loop {
        let mut status = 0;
        // SAFETY: the kernel writes one int.
        if unsafe { libc::waitpid(process, &raw mut status, libc::__WALL) } == -1 {
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        } else if !libc::WIFSTOPPED(status) {
            return Ok(Stop::Ended);
        } else {
            return Ok(match libc::WSTOPSIG(status) {
                libc::SIGTRAP => Stop::Trap,
                signal if signal == libc::SIGTRAP | AT_SYSTEM_CALL => Stop::SystemCall,
                signal => Stop::Signal(signal),
            });
        }
    }
}

/// Sends a signal to it.
pub(super) fn send(process: i32, signal: i32) -> io::Result<()> {
    // SAFETY: no pointer is passed. The process is stopped, so its number is its own.
    answer(libc::c_long::from(unsafe { libc::kill(process, signal) }))
}
