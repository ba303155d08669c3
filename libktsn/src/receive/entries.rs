// SPDX-License-Identifier: Apache-2.0
//! Where a listener is counted: its entry in the receive area of a region.
//!
//! In: a region's area, the listener's name and cookie. Out: the entry, claimed once and freed when the listener ends. Whatever a listener
//! counts, and how long it may spin, is `grant`'s.

use core::sync::atomic::{
    AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed},
};

use ktsn_ring::receive::{Listener as Counted, ListenerName, Receive};

use crate::process::page::{self, Page};
use crate::process::region::RegionUse;

/// Where a listener is counted: the region's epoch in the upper half, the entry's number plus 1 below; 0 = nowhere yet.
pub(crate) struct Place(AtomicU64);

impl Place {
    /// Nowhere.
    pub(crate) const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// In a fork's child: the place is the parent's.
    pub(crate) fn forget(&self) {
        self.0.store(0, Relaxed);
    }

    /// The listener's entry in the region of this epoch; claimed with its name and cookie where it has none there.
    pub(crate) fn entry(
        &self,
        epoch: u32,
        area: Receive,
        who: impl FnOnce() -> Option<(ListenerName, u64)>,
    ) -> Option<Counted> {
        let seen = self.0.load(Acquire);
        if (seen >> 32) as u32 == epoch {
            return (seen as u8).checked_sub(1).and_then(Counted::from_index);
        }
        let (name, cookie) = who()?;
        let counted = area.claim(name, cookie)?;
        let new = u64::from(epoch) << 32 | u64::from(counted.index()).wrapping_add(1);
        if self.0.compare_exchange(seen, new, AcqRel, Relaxed).is_err() {
            area.free(counted); // another thread was quicker
            return None;
        }
        Some(counted)
    }

    /// The listener ends: its entry is free.
    pub(crate) fn end(&self) {
        let word = self.0.swap(0, AcqRel);
        if word == 0 {
            return;
        }
        let Some(page) = page::get() else { return };
        for (held, area) in areas(page) {
            if (word >> 32) as u32 == held.epoch()
                && let Some(counted) = (word as u8).checked_sub(1).and_then(Counted::from_index)
            {
                area.free(counted);
            }
        }
    }
}

/// The receive areas of the process's regions.
pub(crate) fn areas(page: &'static Page) -> impl Iterator<Item = (RegionUse, Receive)> {
    RegionUse::all(page).filter_map(|held| {
        let area = held.producer().receive()?;
        Some((held, area))
    })
}
