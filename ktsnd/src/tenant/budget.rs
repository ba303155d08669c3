// SPDX-License-Identifier: Apache-2.0
//! How much memory a new client gets, and whether there is to be one.
//!
//! In: what the clients of each attachment have now, in octets of ktsnd's memory: region and private copies, all of it, touched
//! or not. Out: what the new client may have, or the budget that is used up. It knows nothing of regions. The sum over all
//! attachments never exceeds the daemon's budget. A part of it is set aside for each attachment, so that the clients of the
//! others cannot take all.

use ktsn_resolve::AttachmentIndex;

use crate::limits::{CLIENTS_EXPECTED, MEMORY_SHARES};

/// Why a program does not become a client, or why a socket of a client does not become a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum RefusedBy {
    /// The attachment has as many clients as it may have.
    ClientsMax,
    /// There is no memory left in the attachment's budget, or in the daemon's.
    MemoryMax,
    /// The process has as many connections as one may have.
    ProcessMax,
    /// There is no memory left for a further stream of a client: its socket is refused.
    StreamsMemory,
}

impl RefusedBy {
    /// All reasons.
    pub const ALL: [Self; 4] = [Self::ClientsMax, Self::MemoryMax, Self::ProcessMax, Self::StreamsMemory];

    /// The word in counters and logs.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::ClientsMax => "clients_max",
            Self::MemoryMax => "memory_max",
            Self::ProcessMax => "process_max",
            Self::StreamsMemory => "streams_memory",
        }
    }
}

/// One attachment's memory, in octets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Account {
    pub index: AttachmentIndex,
    /// What its clients have.
    pub used: u64,
    /// What they may have.
    pub max: u64,
}

/// What is set aside for each attachment of a daemon that may use `total` octets: half of it for the first
/// [`MEMORY_SHARES`] attachments together, the same divided by more where there are more.
pub(super) fn set_aside(total: u64, attachments: usize) -> u64 {
    total / 2 / attachments.max(MEMORY_SHARES) as u64
}

/// What a new client of attachment `of` may have at most, in octets.
pub(super) fn available(total: u64, accounts: &[Account], of: AttachmentIndex) -> u64 {
    let aside = set_aside(total, accounts.len());
    let claim = |account: &Account| account.used.max(aside.min(account.max));
    // Attachments that may still come have their share, too.
    let to_come = MEMORY_SHARES.saturating_sub(accounts.len()) as u64 * aside;
    let claimed = accounts.iter().map(claim).fold(to_come, u64::saturating_add);
    let Some(own) = accounts.iter().find(|account| account.index == of) else { return 0 };
    let of_share = claim(own) - own.used;
    let of_all = total.saturating_sub(claimed);
    of_share.saturating_add(of_all).min(own.max.saturating_sub(own.used))
}

/// What a new client gets of the `available` octets, of which it would like `wanted` and needs `least`: all that it wants as
/// long as enough is left for as many clients as programs usually have, `there` of which are there. The first client gets no
/// less than a quarter of what there is.
pub(super) fn portion(available: u64, wanted: u64, least: u64, there: u64) -> Option<u64> {
    let further = CLIENTS_EXPECTED.saturating_sub(there + 1);
    let rest = available.saturating_sub(least.saturating_mul(further));
    let of_first = if there == 0 { available / 4 } else { 0 };
    let most = rest.max(of_first).max(least).min(wanted);
    (least <= available).then_some(most)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MIB: u64 = 1 << 20;

    proptest! {
        /// Whatever attachments ask for, in whatever order: the daemon's budget holds, each attachment's holds, and one that
        /// has less than its share always gets a client.
        #[test]
        fn budgets_hold(
            total in 64 * MIB..1024 * MIB,
            maxima in proptest::collection::vec(MIB..128 * MIB, 1..100),
            asks in proptest::collection::vec((any::<prop::sample::Index>(), MIB / 4..8 * MIB), 1..600),
        ) {
            let least = MIB / 8;
            let mut accounts: Vec<Account> = (0..).zip(&maxima)
                .map(|(index, max)| Account { index: AttachmentIndex(index), used: 0, max: *max })
                .collect();
            for (at, wanted) in &asks {
                let at = at.index(accounts.len());
                let available = available(total, &accounts, accounts[at].index);
                let portion = portion(available, *wanted, least, accounts[at].used / least);
                let share = set_aside(total, accounts.len()).min(accounts[at].max);
                prop_assert!(portion.is_some() || accounts[at].used + least > share);
                accounts[at].used += portion.unwrap_or(0);
                prop_assert!(portion.is_none_or(|portion| (least..=*wanted).contains(&portion)));
                prop_assert!(accounts[at].used <= accounts[at].max);
                prop_assert!(accounts.iter().map(|account| account.used).sum::<u64>() <= total);
            }
        }
    }

    /// One attachment that takes all it can get leaves every other one its share.
    #[test]
    fn a_greedy_attachment_leaves_the_others_theirs() {
        let total = 384 * MIB;
        let account = |index, used| Account { index: AttachmentIndex(index), used, max: 1024 * MIB };
        let mut accounts = vec![account(0, 0), account(1, 0)];
        accounts[0].used = available(total, &accounts, AttachmentIndex(0));
        assert_eq!(accounts[0].used, 195 * MIB, "half, and its own share");
        assert_eq!(available(total, &accounts, AttachmentIndex(0)), 0);
        assert_eq!(available(total, &accounts, AttachmentIndex(1)), 3 * MIB);
        assert_eq!(available(total, &accounts, AttachmentIndex(9)), 0);
    }

    #[test]
    fn the_first_get_all_and_the_last_get_something() {
        assert_eq!(portion(64 * MIB, 4 * MIB, MIB / 2, 0), Some(4 * MIB));
        assert_eq!(portion(34 * MIB, 4 * MIB, MIB / 2, 3), Some(4 * MIB));
        assert_eq!(portion(32 * MIB, 4 * MIB, MIB / 2, 3), Some(2 * MIB));
        assert_eq!(portion(3 * MIB, 4 * MIB, MIB / 2, 0), Some(3 * MIB / 4));
        assert_eq!(portion(MIB / 2, 4 * MIB, MIB / 2, 100), Some(MIB / 2));
        assert_eq!(portion(MIB / 2 - 1, 4 * MIB, MIB / 2, 0), None);
    }
}
