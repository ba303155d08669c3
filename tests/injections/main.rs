// SPDX-License-Identifier: Apache-2.0
//! A signal at every instruction of a call that expects an arrival, by ptrace (`make test-injections`, some minutes).
//!
//! A traced listener waits for datagrams that come each millisecond. First the tracer notes which instructions of libktsn its calls run
//! through. Then a trap stops a call at each of them, and the thread gets a signal there. Time goes on as usual up to the trap, so the
//! thread is in the spin that the trap is in.
//!
//! - A handler without SA_RESTART, and no datagram: the next wait lets the signal in, and the call says EINTR.
//! - A handler with SA_RESTART: a receive call goes on, and has the next datagram.
//! - A datagram as well: the call has it, or says EINTR and leaves it.

#![cfg(target_arch = "x86_64")]

use ktsn_tests::hook::{self, Libc};
use ktsn_tests::peer::{Behaviour, Peer};

mod instructions;
mod rounds;
mod sender;
mod tracer;

use rounds::{Injector, Scenario};

/// So many injections at least: fewer would not have gone through a call.
const INJECTIONS_MIN: usize = 300;
/// So many of them while the thread looks again and again.
const SPINNING_MIN: usize = 50;
/// Instructions at which no round could stop, of all that were seen: those of a lost CPU, of an early datagram.
const UNREACHED_PERCENT_MAX: usize = 33;

/// Injects into all instructions of a call and judges the count.
fn inject(libc: Libc, how: &'static str, restarts: bool) {
    let scenario = Scenario { libc, how, restarts };
    let run_dir = hook::open_directory();
    let _peer = Peer::start(run_dir.path(), Behaviour { receive_share: Some(1_000), ..Behaviour::default() });
    let counts = Injector::new(scenario, run_dir.path()).run();
    println!("{scenario:?}: {counts:?}");
    let is_enough = counts.injections >= INJECTIONS_MIN && counts.spinning >= SPINNING_MIN;
    assert!(is_enough, "{scenario:?}: {counts:?}");
    assert!(counts.unreached * 100 <= counts.seen * UNREACHED_PERCENT_MAX, "{scenario:?}: {counts:?}");
}

#[test]
fn a_handler_ends_a_receive_call_from_every_instruction() {
    inject(Libc::Gnu, "recv", false);
}

#[test]
fn a_handler_ends_a_receive_call_of_musl_from_every_instruction() {
    inject(Libc::Musl, "recv", false);
}

#[test]
fn a_receive_call_goes_on_from_every_instruction() {
    inject(Libc::Gnu, "recv", true);
}

#[test]
fn a_handler_ends_poll_from_every_instruction() {
    inject(Libc::Gnu, "poll", true);
}
