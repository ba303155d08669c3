// SPDX-License-Identifier: Apache-2.0
//! Whether a port is warmed up before a transmit time ([`Port::warm_up`](ktsn_port::Port::warm_up)).
//!
//! In: how long warming up took. Out: whether to warm up again. A port that usually takes so long that a frame could be late is
//! left alone, and tried again now and then.

use ktsn_time::Nanos;

use crate::limits;

/// Warming up stops when so many more calls were slow than quick.
const OFF: u8 = 16;
/// Frames until a port that was slow is tried again.
const PAUSE: u16 = 1024;

/// The experience with one port.
#[derive(Debug, Default)]
pub(super) struct WarmUp {
    slow: u8,
    left_out: u16,
}

impl WarmUp {
    /// Whether the next frame, `ahead` of its time, is warmed up for.
    #[inline]
    pub(super) fn is_wanted(&mut self, ahead: Nanos) -> bool {
        if ahead < limits::WARM_UP {
            return false;
        }
        if self.slow < OFF {
            return true;
        }
        self.left_out += 1;
        if self.left_out < PAUSE {
            return false;
        }
        self.left_out = 0;
        true
    }

    /// Notes how long one call took.
    #[inline]
    pub(super) fn took(&mut self, span: Nanos) {
        let is_slow = span.saturating_mul(2) > limits::WARM_UP;
        self.slow = if is_slow { (self.slow + 1).min(OFF) } else { self.slow.saturating_sub(1) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_off_where_it_is_usually_slow_and_comes_back() {
        let mut port = WarmUp::default();
        let (quick, slow) = (Nanos::new(300), Nanos::new(3_000));
        assert!(!port.is_wanted(Nanos::new(1_999)) && port.is_wanted(limits::WARM_UP));
        // A stall now and then changes nothing.
        for _ in 0..1_000 {
            port.took(slow);
            port.took(quick);
            assert!(port.is_wanted(limits::WARM_UP));
        }
        (0..OFF).for_each(|_| port.took(slow));
        let tried = |port: &mut WarmUp| (0..4 * PAUSE).filter(|_| port.is_wanted(limits::WARM_UP)).count();
        assert_eq!(tried(&mut port), 4);
        port.took(slow);
        assert_eq!(tried(&mut port), 4);
        port.took(quick);
        assert_eq!(tried(&mut port), usize::from(4 * PAUSE));
    }
}
