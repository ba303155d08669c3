// SPDX-License-Identifier: Apache-2.0
//! The slots of a process, shared between its sockets: one that queues far ahead never takes the last ones.
//!
//! In: how many slots a ring has, how many of them are free, and what each socket holds. Out: how many more a socket may take.
//! While a quarter is free each socket takes what it likes. Below that a socket that holds any gets up to a fair part: the
//! slots but an eighth, divided among the sockets that hold any. The eighth is for sockets that hold few or none. A process with one
//! timed socket has no such limits.
//!
//! ```text
//!   0                                        3/4        7/8      all slots
//!   ├─────────── no limits ──────────────────┼─ fair parts ─┼─ those below their part ─┤
//! ```

use ktsn_ring::{Producer, Usage};

use crate::streams;

/// Slots that a call takes before it looks again how many are free.
const AT_ONCE: usize = 16;

/// Whether the process has sockets to share its slots.
#[inline(always)]
pub(crate) fn is_shared() -> bool {
    streams::count() > 1
}

/// How many more slots `stream` may take now, at most [`AT_ONCE`] or as many as it needs: other threads take some meanwhile.
#[inline(never)]
pub(crate) fn allowance(producer: &Producer, stream: u32, needed: usize) -> usize {
    let slots = producer.layout().slots_count();
    let plenty = producer.free_count().saturating_sub(slots / 4);
    let more = if plenty >= needed {
        plenty
    } else {
        fair_allowance(slots, producer.usage(stream), needed).max(plenty)
    };
    more.min(AT_ONCE.max(needed))
}

/// How many more slots a socket may take of a ring with few free ones. One that holds none may send its first message, whatever
/// its length.
#[cold]
fn fair_allowance(slots: usize, usage: Usage, needed: usize) -> usize {
    let shared = slots.saturating_sub(slots / 8);
    let part = shared.checked_div(usage.others.saturating_add(1)).unwrap_or(0);
    if usage.own == 0 { part.max(needed) } else { part.saturating_sub(usage.own) }
}

#[cfg(test)]
mod tests {
    use super::fair_allowance;
    use ktsn_ring::Usage;

    /// Sockets that always want more, and one that comes last: it finds free slots.
    fn held_by_greedy(slots: usize, greedy: usize) -> usize {
        let mut held = vec![0usize; greedy];
        loop {
            let before: usize = held.iter().sum();
            for socket in 0..greedy {
                let in_use: usize = held.iter().sum();
                let others =
                    held.iter().enumerate().filter(|(at, count)| *at != socket && **count > 0).count();
                let usage = Usage { own: held[socket], others };
                let is_scarce = slots - in_use <= slots / 4;
                if in_use < slots && (!is_scarce || fair_allowance(slots, usage, 1) > 0) {
                    held[socket] += 1;
                }
            }
            if held.iter().sum::<usize>() == before {
                return before;
            }
        }
    }

    #[test]
    fn greedy_sockets_leave_an_eighth() {
        for slots in [64, 65, 100, 256, 1000, 1024, 4096] {
            for greedy in 1..20 {
                let held = held_by_greedy(slots, greedy);
                assert!(held + slots / 8 <= slots, "{held} of {slots} by {greedy}");
                assert!(held * 4 >= slots * 3, "{held} of {slots} by {greedy} is too few");
            }
        }
    }

    #[test]
    fn a_socket_below_its_part_may_take_the_rest_of_it() {
        for slots in [64, 100, 1024, 4096] {
            for (others, own) in (0..20).flat_map(|others| (1..slots).map(move |own| (others, own))) {
                let part = (slots - slots / 8) / (others + 1);
                let more = fair_allowance(slots, Usage { own, others }, 1);
                assert_eq!(more + own, part.max(own));
            }
        }
    }

    #[test]
    fn a_first_message_is_never_refused() {
        for needed in [1, 2, 64, 128] {
            assert_eq!(fair_allowance(64, Usage { own: 0, others: 1000 }, needed), needed);
        }
        // What comes after it in the same call is measured like any other.
        assert_eq!(fair_allowance(1024, Usage { own: 0, others: 1 }, 1), 448);
        assert_eq!(fair_allowance(1024, Usage { own: 1, others: 1 }, 64), 447);
    }
}
