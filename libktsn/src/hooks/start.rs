// SPDX-License-Identifier: Apache-2.0
//! The constructor: what is found once, before `main`.
//!
//! In: the environment. Out: [`env`] is ready, and expected-arrival receive is on where the program asks for it.

use crate::receive::{period, switch};
use crate::{process::env, process::originals};

/// Run once by the dynamic linker before `main`.
extern "C" fn start() {
    env::make_ready();
    // Looking symbols up may leave an error number behind; the program starts with the one it would have had.
    let saved = originals::errno();
    if !env::is_secure() {
        ask_receive(env::variable(b"KTSN_RECEIVE"), env::variable(b"KTSN_RECEIVE_PERIOD"));
    }
    originals::set_errno(saved);
}

/// `KTSN_RECEIVE`: `expect`, or `kernel` (the default). `KTSN_RECEIVE_PERIOD`: the period of what is expected, where it is known.
fn ask_receive(how: Option<&'static [u8]>, period: Option<&'static [u8]>) {
    const SHOWN_MAX: usize = 40;
    let shown = |value: &'static [u8]| value.get(..value.len().min(SHOWN_MAX)).unwrap_or(value);
    match how {
        None | Some(b"" | b"kernel") => return,
        Some(b"expect") => {}
        Some(other) => {
            return env::warn_once(&[
                b"ktsn: KTSN_RECEIVE is '",
                shown(other),
                b"': this program receives as without it. Set it to expect or kernel.",
            ]);
        }
    }
    match period.filter(|text| !text.is_empty()).map(|text| (text, period::parse(text))) {
        None => {}
        Some((_, Some(period))) => period::set_environment(period),
        Some((text, None)) => {
            return env::warn_once(&[
                b"ktsn: KTSN_RECEIVE_PERIOD is '",
                shown(text),
                b"': this program receives as without KTSN_RECEIVE=expect. Set it to a time from 50us to 10s, as in 1ms or 500us.",
            ]);
        }
    }
    switch::turn_on();
}

/// An entry of the table of constructors, which the dynamic linker of both C libraries calls before `main`.
#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;
