// SPDX-License-Identifier: Apache-2.0
//! How the node's cap of spinning is divided: evenly over the attachments that use it, and each part evenly over their processes.
//!
//! In: the cap, and who uses it. Out: a share for each process. Pure. A tenant with many processes takes nothing from another one.

use std::collections::{BTreeMap, BTreeSet};

use ktsn_resolve::AttachmentIndex;

use crate::worker::ClientKey;

/// A process, where the kernel shows it; else its client stands for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Process {
    /// Its number as seen from here.
    Pid(u32),
    /// The client of a process that cannot be seen.
    Hidden(ClientKey),
}

impl Process {
    /// The process of a client; `pid` 0 = not visible.
    pub(super) const fn of(pid: u32, key: ClientKey) -> Self {
        if pid == 0 { Self::Hidden(key) } else { Self::Pid(pid) }
    }
}

/// A process that uses its entries at an attachment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct User {
    pub attachment: AttachmentIndex,
    pub process: Process,
}

/// The share of each process, in the unit of `cap`: at most half of the cap, and the least of its attachments' where it has several.
pub(super) fn divide(cap: u32, users: &[User]) -> BTreeMap<Process, u32> {
    let mut processes: BTreeMap<AttachmentIndex, BTreeSet<Process>> = BTreeMap::new();
    for user in users {
        processes.entry(user.attachment).or_default().insert(user.process);
    }
    let part = cap / u32::try_from(processes.len()).unwrap_or(u32::MAX).max(1);
    let mut shares = BTreeMap::new();
    for of in processes.values() {
        let share = (part / u32::try_from(of.len()).unwrap_or(u32::MAX).max(1)).min(cap / 2);
        for process in of {
            shares.entry(*process).and_modify(|least: &mut u32| *least = share.min(*least)).or_insert(share);
        }
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn user(attachment: u16, pid: u32) -> User {
        User { attachment: AttachmentIndex(attachment), process: Process::Pid(pid) }
    }

    #[test]
    fn shares_by_example() {
        let shares = |users: &[User]| divide(200, users).into_values().collect::<Vec<_>>();
        assert_eq!(shares(&[]), [0; 0]);
        assert_eq!(shares(&[user(0, 1)]), [100], "half of the cap for one process");
        assert_eq!(shares(&[user(0, 1), user(0, 2)]), [100, 100]);
        assert_eq!(shares(&[user(0, 1), user(0, 2), user(0, 3)]), [66, 66, 66]);
        assert_eq!(shares(&[user(0, 1), user(0, 1)]), [100], "two clients of a process are one process");
        // Three processes of one tenant, and one of another.
        assert_eq!(shares(&[user(0, 1), user(0, 2), user(0, 3), user(1, 4)]), [33, 33, 33, 100]);
        // A process at two attachments has the lesser share.
        assert_eq!(shares(&[user(0, 1), user(1, 1), user(1, 2)]), [50, 50]);
        let hidden = |key| User { attachment: AttachmentIndex(0), process: Process::of(0, ClientKey(key)) };
        assert_eq!(shares(&[hidden(1), hidden(2), hidden(3)]), [66, 66, 66]);
    }

    proptest! {
        #[test]
        fn no_division_exceeds_the_cap(
            cap in 0u32..=64_000,
            users in proptest::collection::vec((0u16..6, 1u32..20), 0..60),
        ) {
            let users: Vec<User> = users.into_iter().map(|(attachment, pid)| user(attachment, pid)).collect();
            let shares = divide(cap, &users);
            prop_assert!(shares.values().sum::<u32>() <= cap);
            prop_assert!(shares.values().all(|share| *share <= cap / 2));
            prop_assert!(users.iter().all(|user| shares.contains_key(&user.process)));
            // Whatever the others do, an attachment's processes have together what the number of attachments leaves them, but for
            // rounding, half-caps and processes of other attachments.
            let attachments: BTreeSet<AttachmentIndex> = users.iter().map(|user| user.attachment).collect();
            let part = cap / (attachments.len() as u32).max(1);
            for index in attachments {
                let of: BTreeSet<Process> =
                    users.iter().filter(|user| user.attachment == index).map(|user| user.process).collect();
                prop_assert!(of.iter().map(|process| shares[process]).sum::<u32>() <= part);
                let is_elsewhere = |process: &&Process| {
                    users.iter().any(|user| user.process == **process && user.attachment != index)
                };
                let own = (part / of.len() as u32).min(cap / 2);
                prop_assert!(of.iter().filter(|process| !is_elsewhere(process)).all(|process| shares[process] == own));
            }
        }
    }
}
