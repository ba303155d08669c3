// SPDX-License-Identifier: Apache-2.0
//! Whether to warm up the way into the kernel before a transmit time: by a call of the port
//! ([`Port::warm_up`](ktsn_port::Port::warm_up)), or by a rehearsal.
//!
//! In: how long that took. Out: whether to do it again. Where it usually takes so long that a frame could be late, it is left out,
//! and tried again now and then.

use ktsn_time::Nanos;

use crate::limits;

/// Warming a port up stops when so many more calls were slow than quick.
const OFF: u8 = 16;
/// Frames until a port that was slow is tried again.
const PAUSE: u16 = 1024;
/// Rehearsals stop when so many more of them were slow than quick.
const REHEARSALS_OFF: u8 = 4;
/// Rare frames until a rehearsal is tried again.
const REHEARSALS_PAUSE: u16 = 64;

/// The experience with one way to warm up.
#[derive(Debug)]
pub(super) struct WarmUp {
    slow: u8,
    left_out: u16,
    /// Warming up is left out where less time than this is left before the frame.
    least: Nanos,
    /// A longer call is a slow one.
    quick: Nanos,
    off: u8,
    pause: u16,
}

impl WarmUp {
    /// The experience with calls of a port.
    pub(super) fn for_port() -> Self {
        let least = limits::WARM_UP;
        Self { slow: 0, left_out: 0, least, quick: Nanos::new(least.get() / 2), off: OFF, pause: PAUSE }
    }

    /// The experience with rehearsals.
    pub(super) fn for_rehearsal() -> Self {
        let least = limits::REHEARSAL_LEAST;
        Self { slow: 0, left_out: 0, least, quick: least, off: REHEARSALS_OFF, pause: REHEARSALS_PAUSE }
    }

    /// True when to warm up is worth it for a frame that is due in `ahead`.
    #[inline]
    pub(super) fn is_worth(&mut self, ahead: Nanos) -> bool {
        if ahead < self.least {
            return false;
        }
        if self.slow < self.off {
            return true;
        }
        self.left_out += 1;
        if self.left_out < self.pause {
            return false;
        }
        self.left_out = 0;
        true
    }

    /// Notes how long one call took.
    #[inline]
    pub(super) fn took(&mut self, span: Nanos) {
        self.slow =
            if span > self.quick { (self.slow + 1).min(self.off) } else { self.slow.saturating_sub(1) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_off_where_it_is_usually_slow_and_comes_back() {
        let mut port = WarmUp::for_port();
        let (quick, slow) = (Nanos::new(2_500), Nanos::new(3_500));
        assert!(!port.is_worth(Nanos::new(5_999)) && port.is_worth(limits::WARM_UP));
        // A stall now and then changes nothing.
        for _ in 0..1_000 {
            port.took(slow);
            port.took(quick);
            assert!(port.is_worth(limits::WARM_UP));
        }
        (0..OFF).for_each(|_| port.took(slow));
        let tried = |port: &mut WarmUp| (0..4 * PAUSE).filter(|_| port.is_worth(limits::WARM_UP)).count();
        assert_eq!(tried(&mut port), 4);
        port.took(slow);
        assert_eq!(tried(&mut port), 4);
        port.took(quick);
        assert_eq!(tried(&mut port), usize::from(4 * PAUSE));
    }
}
