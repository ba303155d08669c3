// SPDX-License-Identifier: Apache-2.0
//! The tables of the node's uplinks, made once for all attachments that use them.
//!
//! In: a snapshot of the daemon's namespace, with its revision. Out: shared tables. An uplink's table holds all of the node's
//! routes: made for each attachment, a device more would cost the square of their number.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use ktsn_resolve::{Link, LinkTable, TableError};

use crate::tables::tracked::TrackedAttachment;

/// An uplink, its port, and whether what leads to tunnel devices is left out of it.
type Key = (String, u16, bool);

/// The link tables of the uplinks, by uplink and kind, each with its revision.
#[derive(Debug, Default)]
pub(super) struct Uplinks(BTreeMap<Key, (u64, Arc<LinkTable>)>);

impl Uplinks {
    /// The table of the uplink of `tracked`, made from `link` where the one of this revision is not there yet. Equal ones stay the
    /// same value.
    pub(super) fn of(
        &mut self,
        tracked: &TrackedAttachment,
        revision: u64,
        link: impl FnOnce() -> Link,
    ) -> Result<Arc<LinkTable>, TableError> {
        let key = (tracked.uplink.clone(), tracked.uplink_port.0, tracked.attachment.allow_policy_bypass);
        match self.0.entry(key) {
            Entry::Vacant(place) => {
                let table = Arc::new(LinkTable::new(link())?);
                Ok(place.insert((revision, table)).1.clone())
            }
            Entry::Occupied(place) => {
                let (made, table) = place.into_mut();
                if *made != revision {
                    let made_now = LinkTable::new(link())?;
                    if made_now != **table {
                        *table = Arc::new(made_now);
                    }
                    *made = revision;
                }
                Ok(table.clone())
            }
        }
    }

    /// Forgets uplinks that none of these uses.
    pub(super) fn keep<'a>(&mut self, attachments: &(impl Iterator<Item = &'a TrackedAttachment> + Clone)) {
        self.0.retain(|(uplink, ..), _| attachments.clone().any(|tracked| tracked.uplink == *uplink));
    }
}
