// SPDX-License-Identifier: Apache-2.0
//! A frame that its port did not take: tried again.
//!
//! In: a frame whose time has come, and why it was not taken. Out: the same frame once more, after a pause that doubles.
//! Nothing of it has left, and the port keeps nothing of it. While one is held, nothing else leaves by the port, so none is
//! overtaken; the worker sleeps or does other things. Before each try the clocks are asked as before the first: outside of
//! its window it is queued again, and one that is dropped for its lateness once it is later than its `overrun_limit`, any other after
//! [`limits::HELD_MAX`]: `port_error`. What a device took and threw away is never tried again.

use ktsn_model::DropReason;
use ktsn_port::Port;
use ktsn_resolve::PortIndex;
use ktsn_time::{Monotonic, Nanos, Now, TxTime};

use super::due::Due;
use super::transmit::{Next, NotStaged, Ready};
use super::{Environment, Worker};
use crate::limits;
use crate::stats::{PortRefusal, count};

/// How often a frame was tried.
#[derive(Clone, Copy)]
pub(super) struct Tries {
    since: Monotonic,
    pause: Nanos,
}

/// See the module.
pub(super) struct Held {
    pub due: Due,
    tries: Tries,
    again_at: Monotonic,
}

impl<P: Port, E: Environment> Worker<P, E> {
    /// The port will take a frame later; `before`: it said so the last time, too.
    #[cold]
    pub(super) fn hold(&mut self, port: usize, due: &Due, why: PortRefusal, before: Option<Tries>) {
        let now = self.env.monotonic();
        let Some(state) = self.ports[port].as_mut() else { return };
        count(&state.stats.refused[why as usize]);
        let tries = match before {
            None => Tries { since: now, pause: limits::HELD_PAUSE },
            Some(Tries { since, pause }) => {
                Tries { since, pause: pause.saturating_mul(2).min(limits::HELD_PAUSE_MAX) }
            }
        };
        if now.since(tries.since) > limits::HELD_MAX {
            return self.drop_frame(due.frame.id, due.frame.tenant, DropReason::PortError);
        }
        state.held = Some(Held { due: *due, tries, again_at: now.saturating_add(tries.pause) });
        self.busy.insert(port);
    }

    /// Tries the port's held frame if it is time to; `None`: something became of it.
    #[cold]
    pub(super) fn try_held(&mut self, port: usize, now: Now) -> Option<Next> {
        let state = self.ports[port].as_mut()?;
        let again_at = state.held.as_ref()?.again_at;
        if now.monotonic < again_at {
            return Some(Next { at: TxTime::Monotonic(again_at), port });
        }
        let Held { due, tries, .. } = state.held.take()?;
        if self.waits_for_clock(port, &due.frame, due.latest.is_some()) {
            return None;
        }
        match self.stage(port, due.frame.id) {
            Ok(staged) => {
                if self.hand_over(port, &Ready::new(due, staged), Some(tries)) {
                    let now = self.env.now();
                    self.handed_over(now);
                }
            }
            Err(NotStaged::Full) => self.hold(port, &due, PortRefusal::NoBuffer, Some(tries)),
            Err(NotStaged::For(reason)) => self.drop_copy(&due.frame, reason),
        }
        None
    }

    /// A frame that was held has left.
    #[cold]
    pub(super) fn was_held(&mut self, port: usize) {
        if let Some(state) = self.ports[port].as_ref() {
            count(&state.stats.retried);
        }
    }

    /// Other gates hold from now on: what was chosen by the old ones is queued again.
    pub(super) fn queue_held(&mut self, index: PortIndex) {
        let port = usize::from(index.0);
        if let Some(held) = self.port(index).and_then(|state| state.held.take()) {
            self.queue_again(port, &held.due.frame);
        }
    }

    /// Drops a port's held frame as `detached` if it is one of `which`.
    pub(super) fn remove_held(&mut self, port: usize, which: impl Fn(u32) -> bool) {
        let Some(Some(state)) = self.ports.get_mut(port) else { return };
        if let Some(held) = state.held.take_if(|held| which(held.due.frame.tenant)) {
            self.drop_frame(held.due.frame.id, held.due.frame.tenant, DropReason::Detached);
        }
    }
}
