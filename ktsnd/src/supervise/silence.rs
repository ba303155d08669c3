// SPDX-License-Identifier: Apache-2.0
//! For how long a thread has given no sign of life. In: its sign at each look. Out: looks without an answer. Pure.
//!
//! Looks are counted, not time: where the whole process is stopped, by a debugger or with its virtual machine, no
//! look takes place and no thread is to blame.

/// What a thread shows at a look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sign {
    /// The thread waits for work.
    Waits,
    /// The thread works, and has counted this many beats.
    Beats(u64),
}

/// The silence of one thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Silence {
    seen: Option<u64>,
    /// Looks that found no new beat; at the first of them it is asked.
    looks: u32,
}

impl Silence {
    /// Takes in a look. True: the thread is to be asked for an answer now.
    pub(super) fn look(&mut self, sign: Sign) -> bool {
        let beats = match sign {
            Sign::Waits => None,
            Sign::Beats(beats) => Some(beats),
        };
        if beats.is_none() || beats != self.seen {
            *self = Self { seen: beats, looks: 0 };
            return false;
        }
        self.looks = self.looks.saturating_add(1);
        self.looks == 1
    }

    /// Looks since it was asked without an answer.
    pub(super) fn unanswered(&self) -> u32 {
        self.looks.saturating_sub(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sign() -> impl Strategy<Value = Sign> {
        prop_oneof![Just(Sign::Waits), (0u64..3).prop_map(Sign::Beats)]
    }

    proptest! {
        /// The result counts the looks since the last change, without the first one and the one that asks.
        #[test]
        fn only_looks_without_a_change_count(signs in proptest::collection::vec(sign(), 0..40)) {
            let mut silence = Silence::default();
            for (i, sign) in signs.iter().enumerate() {
                let is_asked = silence.look(*sign);
                let same = signs[..=i].iter().rev().take_while(|s| *s == sign).count() as u32;
                let expected = if *sign == Sign::Waits { 0 } else { same.saturating_sub(2) };
                prop_assert_eq!(silence.unanswered(), expected);
                prop_assert_eq!(is_asked, *sign != Sign::Waits && same == 2);
            }
        }
    }
}
