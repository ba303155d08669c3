// SPDX-License-Identifier: Apache-2.0
//! The numbers of the system calls that libktsn makes by itself, for each machine.

pub(crate) use of_machine::*;

#[cfg(target_arch = "x86_64")]
mod of_machine {
    pub(crate) const CLOSE: usize = 3;
    pub(crate) const DUP: usize = 32;
    pub(crate) const DUP2: usize = 33;
    pub(crate) const SOCKET: usize = 41;
    pub(crate) const CONNECT: usize = 42;
    pub(crate) const SENDMSG: usize = 46;
    pub(crate) const BIND: usize = 49;
    pub(crate) const GETSOCKNAME: usize = 51;
    pub(crate) const GETPEERNAME: usize = 52;
    pub(crate) const SETSOCKOPT: usize = 54;
    pub(crate) const FORK: usize = 57;
    pub(crate) const GETSOCKOPT: usize = 55;
    pub(crate) const FCNTL: usize = 72;
    pub(crate) const CLOCK_GETTIME: usize = 228;
    pub(crate) const DUP3: usize = 292;
    pub(crate) const SENDMMSG: usize = 307;
    pub(crate) const CLOSE_RANGE: usize = 436;
    pub(crate) const RECVMSG: usize = 47;
    pub(crate) const RECVFROM: usize = 45;
    pub(crate) const IOCTL: usize = 16;
    pub(crate) const RECVMMSG: usize = 299;
    pub(crate) const UNAME: usize = 63;
    pub(crate) const RT_SIGPROCMASK: usize = 14;
    pub(crate) const MADVISE: usize = 28;
    pub(crate) const CAPGET: usize = 125;
}

#[cfg(target_arch = "aarch64")]
mod of_machine {
    pub(crate) const CLOSE: usize = 57;
    pub(crate) const DUP: usize = 23;
    /// The architecture has no such call; every C library has the function, so the fallback is never reached.
    pub(crate) const DUP2: usize = usize::MAX;
    pub(crate) const SOCKET: usize = 198;
    pub(crate) const CONNECT: usize = 203;
    pub(crate) const SENDMSG: usize = 211;
    pub(crate) const BIND: usize = 200;
    pub(crate) const GETSOCKNAME: usize = 204;
    pub(crate) const GETPEERNAME: usize = 205;
    pub(crate) const SETSOCKOPT: usize = 208;
    /// As for DUP2.
    pub(crate) const FORK: usize = usize::MAX;
    pub(crate) const GETSOCKOPT: usize = 209;
    pub(crate) const FCNTL: usize = 25;
    pub(crate) const CLOCK_GETTIME: usize = 113;
    pub(crate) const DUP3: usize = 24;
    pub(crate) const SENDMMSG: usize = 269;
    pub(crate) const CLOSE_RANGE: usize = 436;
    pub(crate) const RECVMSG: usize = 212;
    pub(crate) const RECVFROM: usize = 207;
    pub(crate) const IOCTL: usize = 29;
    pub(crate) const RECVMMSG: usize = 243;
    pub(crate) const UNAME: usize = 160;
    pub(crate) const RT_SIGPROCMASK: usize = 135;
    pub(crate) const MADVISE: usize = 233;
    pub(crate) const CAPGET: usize = 90;
}
