// SPDX-License-Identifier: Apache-2.0
//! `KTSN_EMULATE_HWTSTAMP`: for programs that go no further on an interface without hardware timestamps.
//!
//! In: an ioctl (SIOCSHWTSTAMP, SIOCGHWTSTAMP, ETHTOOL_GET_TS_INFO) that the kernel has answered. Out: the program's
//! answer. Without the variable, for any other interface than the attachment's, and where the kernel has hardware
//! stamps itself, the kernel's answer stands to the octet. Nothing is switched on: no stamp is ever made here, and
//! there is no clock (the PHC's index stays the kernel's unless the variable names one).

use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::attach::handshake;
use crate::process::abi::{EOPNOTSUPP, EPERM, ERANGE};
use crate::process::region::RegionUse;
use crate::process::sys::{self, Request};
use crate::{process::clock, process::env, process::page};

const SIOCETHTOOL: u32 = 0x8946;
const SIOCSHWTSTAMP: u32 = 0x89b0;
const SIOCGHWTSTAMP: u32 = 0x89b1;
const ETHTOOL_GET_TS_INFO: u32 = 0x41;

/// SOF_TIMESTAMPING_: TX_HARDWARE, TX_SOFTWARE, RX_HARDWARE, RX_SOFTWARE, SOFTWARE, RAW_HARDWARE.
const TX_HARDWARE: u32 = 1;
const MODES: u32 = TX_HARDWARE | 1 << 1 | 1 << 2 | 1 << 3 | 1 << 4 | 1 << 6;
/// Bits of the transmit types OFF and ON, and of the receive filters NONE and ALL.
const TYPES: u32 = 3;
const FILTERS: u32 = 3;
/// HWTSTAMP_TX_ON; one-step stamping is no network card's without a clock.
const TX_TYPE_MAX: u32 = 1;
/// HWTSTAMP_FILTER_NTP_ALL.
const RX_FILTER_MAX: u32 = 15;

/// What this process set: the transmit type in the low half, the receive filter in the high one.
static CONFIGURED: AtomicU64 = AtomicU64::new(0);

/// `struct hwtstamp_config`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Config {
    flags: u32,
    tx_type: u32,
    rx_filter: u32,
}

/// `struct ethtool_ts_info`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Info {
    command: u32,
    modes: u32,
    phc_index: i32,
    tx_types: u32,
    tx_reserved: [u32; 3],
    rx_filters: u32,
    rx_reserved: [u32; 3],
}

/// What becomes of an ioctl.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// The kernel's answer stands.
    Kernel,
    /// The program's memory holds ours: success.
    Done,
    /// The request fails with this errno.
    Fail(c_int),
}

/// After the kernel's answer (0 or an errno) to `request`.
///
/// # Safety
/// `argument` is what the program passed to that ioctl.
pub(crate) unsafe fn answer(fd: c_int, request: u32, argument: *mut c_void, kernel_errno: c_int) -> Answer {
    if !env::emulates_hwtstamp() || argument.is_null() {
        return Answer::Kernel;
    }
    let is_refused = match request {
        SIOCETHTOOL => kernel_errno == 0 || kernel_errno == EOPNOTSUPP,
        SIOCGHWTSTAMP => kernel_errno == EOPNOTSUPP,
        // Without rights the kernel does not say whether there is hardware.
        SIOCSHWTSTAMP => kernel_errno == EOPNOTSUPP || kernel_errno == EPERM,
        _ => false,
    };
    if !is_refused {
        return Answer::Kernel;
    }
    // SAFETY: the kernel has read this structure, or its answer would be EFAULT.
    let asked = unsafe { argument.cast::<Request>().read_unaligned() };
    if asked.data.is_null() {
        return Answer::Kernel;
    }
    // SAFETY: the caller's promise: a pointer into which the program wants an answer of this request's kind.
    unsafe {
        match request {
            SIOCETHTOOL => info(fd, &asked, kernel_errno),
            SIOCSHWTSTAMP => set(fd, &asked, kernel_errno),
            _ if !is_ours(fd, &asked) => Answer::Kernel,
            _ => {
                write_config(asked.data.cast());
                Answer::Done
            }
        }
    }
}

/// # Safety
/// `asked.data` points to what the program passed with SIOCETHTOOL.
unsafe fn info(fd: c_int, asked: &Request, kernel_errno: c_int) -> Answer {
    // SAFETY: every ethtool structure begins with its command.
    if unsafe { asked.data.cast::<u32>().read_unaligned() } != ETHTOOL_GET_TS_INFO {
        return Answer::Kernel;
    }
    let place = asked.data.cast::<Info>();
    // SAFETY: the command says that it is this structure.
    let mut info = unsafe { place.read_unaligned() };
    if kernel_errno != 0 {
        info = Info { modes: 0, phc_index: -1, tx_types: 0, rx_filters: 0, tx_reserved: [0; 3], ..info };
    }
    if info.modes & TX_HARDWARE != 0 || info.phc_index >= 0 || !is_ours(fd, asked) {
        return Answer::Kernel;
    }
    info.modes |= MODES;
    info.tx_types |= TYPES;
    info.rx_filters |= FILTERS;
    info.phc_index = env::hwtstamp_phc().unwrap_or(info.phc_index);
    // SAFETY: as above.
    unsafe { place.write_unaligned(info) };
    Answer::Done
}

/// # Safety
/// `asked.data` points to a `struct hwtstamp_config`.
unsafe fn set(fd: c_int, asked: &Request, kernel_errno: c_int) -> Answer {
    let is_of_hardware = kernel_errno == EPERM && sys::hwtstamp_error(fd, asked, SIOCGHWTSTAMP) != EOPNOTSUPP;
    if is_of_hardware || !is_ours(fd, asked) {
        return Answer::Kernel;
    }
    // SAFETY: the caller's promise.
    let config = unsafe { asked.data.cast::<Config>().read_unaligned() };
    if config.tx_type > TX_TYPE_MAX || config.rx_filter > RX_FILTER_MAX {
        return Answer::Fail(ERANGE);
    }
    CONFIGURED.store(u64::from(config.tx_type) | u64::from(config.rx_filter) << 32, Relaxed);
    // SAFETY: the caller's promise.
    unsafe { write_config(asked.data.cast()) };
    Answer::Done
}

/// # Safety
/// `place` is the program's `struct hwtstamp_config`.
unsafe fn write_config(place: *mut Config) {
    let configured = CONFIGURED.load(Relaxed);
    let config = Config { flags: 0, tx_type: configured as u32, rx_filter: (configured >> 32) as u32 };
    // SAFETY: the caller's promise.
    unsafe { place.write_unaligned(config) };
}

/// Whether the named interface is an attachment's; attaches for that if need be.
fn is_ours(fd: c_int, asked: &Request) -> bool {
    let Some(page) = page::make() else { return false };
    let deadline = clock::monotonic().saturating_add(handshake::ATTACH_WAIT);
    if !page.may_change() || !handshake::wait(page, fd, deadline) {
        return false;
    }
    let index = sys::interface_index(fd, asked.name);
    index != 0 && RegionUse::all(page).any(|held| index == held.region().interface_index())
}

const _: () = assert!(size_of::<Request>() == 40 && size_of::<Info>() == 44 && size_of::<Config>() == 12);
