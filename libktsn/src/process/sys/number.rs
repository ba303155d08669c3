// SPDX-License-Identifier: Apache-2.0
//! The numbers of the system calls that libktsn makes by itself, for each machine.

macro_rules! calls {
    ($($name:ident = $number:ident)+) => {
        $(pub(crate) const $name: usize = linux_raw_sys::general::$number as usize;)+
    };
}

calls! {
    BIND = __NR_bind CAPGET = __NR_capget CLOCK_GETTIME = __NR_clock_gettime CLOCK_NANOSLEEP = __NR_clock_nanosleep CLOSE = __NR_close
    CLOSE_RANGE = __NR_close_range CONNECT = __NR_connect DUP = __NR_dup DUP3 = __NR_dup3 FCNTL = __NR_fcntl
    GETPEERNAME = __NR_getpeername GETSOCKNAME = __NR_getsockname GETSOCKOPT = __NR_getsockopt IOCTL = __NR_ioctl
    EPOLL_CTL = __NR_epoll_ctl EPOLL_PWAIT = __NR_epoll_pwait EPOLL_PWAIT2 = __NR_epoll_pwait2
    MADVISE = __NR_madvise PPOLL = __NR_ppoll PREADV2 = __NR_preadv2 PSELECT6 = __NR_pselect6 READ = __NR_read READV = __NR_readv
    RECVFROM = __NR_recvfrom RECVMMSG = __NR_recvmmsg RECVMSG = __NR_recvmsg
    RT_SIGACTION = __NR_rt_sigaction
    RT_SIGPROCMASK = __NR_rt_sigprocmask SENDMMSG = __NR_sendmmsg SENDMSG = __NR_sendmsg
    SETSOCKOPT = __NR_setsockopt SOCKET = __NR_socket UNAME = __NR_uname
}

#[cfg(target_arch = "x86_64")]
calls! { DUP2 = __NR_dup2 FORK = __NR_fork }

/// AArch64 has no such call. Every C library has the function, so the fallback is never reached.
#[cfg(target_arch = "aarch64")]
pub(crate) const DUP2: usize = usize::MAX;
/// AArch64 has no such call. Every C library has the function, so the fallback is never reached.
#[cfg(target_arch = "aarch64")]
pub(crate) const FORK: usize = usize::MAX;
