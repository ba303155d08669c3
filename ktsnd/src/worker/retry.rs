// SPDX-License-Identifier: Apache-2.0
//! A frame that its port did not take, to be tried again.
//!
//! In: a frame that is due. Out: when it is tried again, after a pause that doubles, and when it is given up. Nothing of it
//! has left, and the port keeps nothing of it. While one frame waits for its retry, nothing else leaves by the port, so none is
//! overtaken; the worker sleeps or does other things. Before each try the clocks are read as before the first. Outside of its
//! window the frame is queued again. One that is dropped for its lateness ends once it is later than its `overrun_limit`, any
//! other after [`limits::RETRY_MAX`]: `port_error`. What a device took and threw away is never tried again.

use ktsn_time::{Monotonic, Nanos};

use super::due::Due;
use crate::limits;

/// How often a frame was tried.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tries {
    since: Monotonic,
    pause: Nanos,
    pub again_at: Monotonic,
}

impl Tries {
    /// One more try failed at `now`; `None`: the frame is given up.
    pub(super) fn after(before: Option<Self>, now: Monotonic) -> Option<Self> {
        let (since, pause) = match before {
            None => (now, limits::RETRY_PAUSE),
            Some(Self { since, pause, .. }) => (since, pause.saturating_mul(2).min(limits::RETRY_PAUSE_MAX)),
        };
        let again_at = now.saturating_add(pause);
        (now.since(since) <= limits::RETRY_MAX).then_some(Self { since, pause, again_at })
    }
}

/// The frame that a port tries again, before all that is queued.
pub(super) struct Retry {
    pub due: Due,
    pub tries: Tries,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_a_bound_until_the_frame_is_given_up() {
        let mut now = Monotonic::from_nanos(1_000_000_000);
        let begin = now;
        let (mut tries, mut pauses) = (None, Vec::new());
        while let Some(again) = Tries::after(tries, now) {
            now = again.again_at;
            pauses.push(again.pause);
            tries = Some(again);
        }
        assert_eq!(pauses[..3], [10, 20, 40].map(Nanos::from_micros));
        assert!(pauses.iter().all(|pause| *pause <= limits::RETRY_PAUSE_MAX));
        assert!(now.since(begin) > limits::RETRY_MAX);
        assert!(now.since(begin) <= limits::RETRY_MAX.saturating_add(limits::RETRY_PAUSE_MAX));
    }
}
