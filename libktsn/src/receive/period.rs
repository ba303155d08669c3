// SPDX-License-Identifier: Apache-2.0
//! The period of what a listener receives, where it is known: it is expected one arrival sooner.
//!
//! In: the socket option, `KTSN_RECEIVE_PERIOD`, the word of a region. The first of these that says one counts. Out: nanoseconds within the
//! predictor's bounds, or none. A period that is wrong costs nothing: the predictor learns from arrivals as without one.

use core::ffi::c_int;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use ktsn_expect::predictor::{PERIOD_MAX, PERIOD_MIN};
use ktsn_time::Nanos;

use super::entries::areas;
use super::listeners::{self, Listener};
use super::switch;
use crate::call::memory;
use crate::process::abi::{EFAULT, EINVAL, KTSN_RECEIVE_PERIOD, SOL_KTSN};
use crate::process::page::{self, Page};

/// `KTSN_RECEIVE_PERIOD`, nanoseconds; 0 = it says none.
static OF_ENVIRONMENT: AtomicU64 = AtomicU64::new(0);

/// The socket option's value: nanoseconds as an unsigned 64-bit number in the machine's order.
type Value = [u8; 8];
const VALUE_OCTETS: usize = size_of::<Value>();

/// Takes over what the environment says (by the constructor).
pub(crate) fn set_environment(period: Nanos) {
    OF_ENVIRONMENT.store(period.get().cast_unsigned(), Relaxed);
}

/// A period in nanoseconds that the predictor can use.
fn checked(nanos: u64) -> Option<Nanos> {
    let nanos = Nanos::new(i64::try_from(nanos).ok()?);
    (PERIOD_MIN..=PERIOD_MAX).contains(&nanos).then_some(nanos)
}

/// Reads a whole number with its unit (`ns`, `us`, `ms` or `s`); `None` where it is none, or out of the predictor's bounds.
pub(crate) fn parse(text: &[u8]) -> Option<Nanos> {
    let digits = text.iter().take_while(|octet| octet.is_ascii_digit()).count();
    let (number, unit) = text.split_at_checked(digits)?;
    let factor = match unit {
        b"ns" => 1,
        b"us" => 1_000,
        b"ms" => 1_000_000,
        b"s" => 1_000_000_000,
        _ => return None,
    };
    // An empty number is 0, which is no period.
    let add = |sum: u64, digit: &u8| sum.checked_mul(10)?.checked_add(u64::from(*digit & 15));
    checked(number.iter().try_fold(0, add)?.checked_mul(factor)?)
}

/// The period that counts for a listener; [`Nanos::ZERO`] where none is known.
pub(super) fn of(listener: Listener, page: Option<&'static Page>) -> Nanos {
    let of_daemon = || page.and_then(|page| areas(page).find_map(|(_, area)| checked_word(area.period())));
    let of_process = || checked(OF_ENVIRONMENT.load(Relaxed));
    checked(listener.stated_period()).or_else(of_process).or_else(of_daemon).unwrap_or(Nanos::ZERO)
}

fn checked_word(period: Nanos) -> Option<Nanos> {
    checked(period.get().cast_unsigned())
}

/// The listener that a descriptor is now: its number may have been used again behind our back.
fn listener_of(fd: c_int) -> Option<Listener> {
    if !switch::is_on() {
        return None;
    }
    if listeners::known(fd).is_some_and(|listener| !listener.is_of(fd)) {
        listeners::forget(fd);
    }
    listeners::of(fd)
}

/// Whether this is the option of a socket's period, and arrivals are expected at this socket. Otherwise the kernel answers, which has no
/// such level: ENOPROTOOPT, as without this library.
fn listener_of_option(fd: c_int, level: c_int, name: c_int) -> Option<Listener> {
    if (level, name) == (SOL_KTSN, KTSN_RECEIVE_PERIOD) { listener_of(fd) } else { None }
}

/// `setsockopt` of a socket's own period: 0, or an errno; `None`: the call is the kernel's. 0 ns takes the period back.
#[inline]
pub(crate) fn set_option(fd: c_int, level: c_int, name: c_int, value: usize, octets: u32) -> Option<c_int> {
    if level == SOL_KTSN { set(listener_of_option(fd, level, name)?, value, octets) } else { None }
}

#[cold]
fn set(listener: Listener, value: usize, octets: u32) -> Option<c_int> {
    // A vfork's child shares the tables and must not change them.
    if !page::may_change() {
        return None;
    }
    if octets as usize != VALUE_OCTETS {
        return Some(EINVAL);
    }
    if !memory::is_readable(value, VALUE_OCTETS) {
        return Some(EFAULT);
    }
    // SAFETY: so many octets can be read there; they may have any alignment.
    let nanos = u64::from_ne_bytes(unsafe { (value as *const Value).read_unaligned() });
    if nanos != 0 && checked(nanos).is_none() {
        return Some(EINVAL);
    }
    listener.state_period(nanos);
    Some(0)
}

/// `getsockopt` of the period that counts for a socket, 0 where none is known: 0, or an errno; `None`: the call is the kernel's.
#[inline]
pub(crate) fn option(fd: c_int, level: c_int, name: c_int, value: usize, octets: usize) -> Option<c_int> {
    if level == SOL_KTSN { Some(get(listener_of_option(fd, level, name)?, value, octets)) } else { None }
}

#[cold]
fn get(listener: Listener, value: usize, octets: usize) -> c_int {
    if !memory::is_writable(octets, size_of::<u32>()) || !memory::is_writable(value, VALUE_OCTETS) {
        return EFAULT;
    }
    let octets = octets as *mut u32;
    // SAFETY: it can be read and written; it may have any alignment.
    if (unsafe { octets.read_unaligned() } as usize) < VALUE_OCTETS {
        return EINVAL;
    }
    let period = of(listener, page::get()).get().cast_unsigned();
    // SAFETY: so many octets can be written at both; the program's lengths say that the first is so long.
    unsafe {
        (value as *mut Value).write_unaligned(period.to_ne_bytes());
        octets.write_unaligned(VALUE_OCTETS as u32);
    }
    0
}

#[cfg(test)]
mod tests {
    use super::{checked, parse};
    use ktsn_time::Nanos;

    #[test]
    fn a_whole_number_with_its_unit() {
        for (text, nanos) in [
            ("50us", 50_000),
            ("50000ns", 50_000),
            ("1ms", 1_000_000),
            ("001ms", 1_000_000),
            ("10s", 10_000_000_000),
            ("10000000000ns", 10_000_000_000),
        ] {
            assert_eq!(parse(text.as_bytes()), Some(Nanos::new(nanos)), "{text}");
        }
        for text in [
            "",
            "1",
            "ms",
            "1 ms",
            " 1ms",
            "1ms ",
            "1m",
            "1MS",
            "-1ms",
            "+1ms",
            "1.5ms",
            "1e3ns",
            "49us",
            "49999ns",
            "10001ms",
            "10000000001ns",
            "11s",
            "0s",
            "18446744073709551615ns",
            "18446744073709551617ms",
            "9223372036854775808ns",
            "99999999999999999999999999999999s",
            "1ms1us",
            "\u{661}ms",
        ] {
            assert_eq!(parse(text.as_bytes()), None, "{text}");
        }
    }

    /// Of all lengths and octets: what is accepted is within bounds, and reads the same in nanoseconds.
    #[test]
    fn any_octets_are_read_or_refused() {
        let alphabet = b"0159nums \0\xff";
        let mut accepted = 0;
        for length in 0..6_u32 {
            for mut number in 0..(alphabet.len() as u64).pow(length) {
                let mut text = Vec::new();
                for _ in 0..length {
                    text.push(alphabet[(number % alphabet.len() as u64) as usize]);
                    number /= alphabet.len() as u64;
                }
                if let Some(period) = parse(&text) {
                    accepted += 1;
                    assert_eq!(checked(period.get() as u64), Some(period), "{text:?}");
                    assert_eq!(parse(format!("{}ns", period.get()).as_bytes()), Some(period));
                }
            }
        }
        assert!(accepted > 100, "{accepted}");
    }
}
