// SPDX-License-Identifier: Apache-2.0
//! How fast the registrar reads from one namespace: all namespaces share the workers' queues.
//!  
//! In: the time of each message. Out: whether it is read now. A message that is not read waits in its socket, and its sender
//! waits too: a program that opens a socket for each datagram is slowed down, never cut off. A window is shorter than the
//! time that a send waits for its registration.

use std::time::{Duration, Instant};

/// The time in which messages are counted.
pub(super) const WINDOW: Duration = Duration::from_millis(10);
/// Messages of one namespace in that time: sixty-four programs attach and register at once.
const MESSAGES_MAX: u32 = 128;

/// The messages of one namespace.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    began: Instant,
    count: u32,
}

impl Pace {
    pub(super) const fn new(now: Instant) -> Self {
        Self { began: now, count: 0 }
    }

    /// Whether one more message is read now.
    pub(super) fn may_read(&mut self, now: Instant) -> bool {
        if self.is_over(now) {
            *self = Self::new(now);
        }
        self.count += 1;
        self.count <= MESSAGES_MAX
    }

    /// Whether one more message would be read now.
    pub(super) fn has_left(&self, now: Instant) -> bool {
        self.is_over(now) || self.count < MESSAGES_MAX
    }

    /// Whether the window is over, so the namespace can be forgotten.
    pub(super) fn is_over(&self, now: Instant) -> bool {
        now.duration_since(self.began) >= WINDOW
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_in_a_window_and_then_again() {
        let began = Instant::now();
        let mut pace = Pace::new(began);
        let read = |pace: &mut Pace, at| (0..1000).filter(|_| pace.may_read(at)).count();
        assert_eq!(read(&mut pace, began), 128);
        assert!(Pace::new(began).has_left(began) && !pace.has_left(began + WINDOW / 2));
        assert_eq!(read(&mut pace, began + WINDOW / 2), 0);
        assert!(pace.has_left(began + WINDOW));
        assert_eq!(read(&mut pace, began + WINDOW), 128);
    }
}
