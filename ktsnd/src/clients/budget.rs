// SPDX-License-Identifier: Apache-2.0
//! How much memory a new client gets, and whether it is admitted.
//!  
//! In: what the clients of each attachment have now, in octets of ktsnd's memory: region and private copies, all of it, touched
//! or not. Out: what the new client may have, or the budget that is used up. It knows nothing of regions. The sum over all
//! attachments never exceeds the daemon's budget. A part of the budget is reserved for each attachment, so that the clients of
//! the others cannot take all.

use ktsn_resolve::AttachmentIndex;

use crate::limits::{CLIENTS_EXPECTED, MEMORY_SHARES};
pub use crate::stats::RefusedBy;

/// One attachment's memory, in octets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Account {
    pub index: AttachmentIndex,
    /// What its clients have, octets.
    pub used: u64,
    /// What its clients may have, octets.
    pub max: u64,
}

/// What is reserved for each attachment of a daemon that may use `total` octets: half of `total`, divided by
/// [`MEMORY_SHARES`], or by the number of attachments where there are more.
pub(super) fn set_aside(total: u64, attachments: usize) -> u64 {
    total / 2 / attachments.max(MEMORY_SHARES) as u64
}

/// What a new client of attachment `of` may have at most, in octets.
pub(super) fn available(total: u64, accounts: &[Account], of: AttachmentIndex) -> u64 {
    let aside = set_aside(total, accounts.len());
    let claim = |account: &Account| account.used.max(aside.min(account.max));
    // A share is kept for attachments that do not exist yet.
    let to_come = MEMORY_SHARES.saturating_sub(accounts.len()) as u64 * aside;
    let claimed = accounts.iter().map(claim).fold(to_come, u64::saturating_add);
    let Some(own) = accounts.iter().find(|account| account.index == of) else { return 0 };
    let of_share = claim(own) - own.used;
    let of_all = total.saturating_sub(claimed);
    of_share.saturating_add(of_all).min(own.max.saturating_sub(own.used))
}

/// What a new client gets of the `available` octets; it asks for `wanted` and needs at least `least`. It gets all of `wanted` as
/// long as enough is left for the usual number of clients, `there` of which exist. The first client gets at least a quarter of
/// `available`.
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
