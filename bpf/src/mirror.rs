// SPDX-License-Identifier: Apache-2.0
//! A map of the kernel's, and a note of what was put into it.
//!
//! In: the entries that are wanted. Out: a map that holds them, changed entry by entry. After an error the note says what the
//! map holds, so that the next call goes on from there.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

use crate::error::BpfError;
use crate::sys;

/// The entries that were put into a map.
#[derive(Debug)]
pub(crate) struct Mirror<const K: usize, const V: usize> {
    what: &'static str,
    count_max: usize,
    entries: BTreeMap<[u8; K], [u8; V]>,
}

impl<const K: usize, const V: usize> Mirror<K, V> {
    /// The mirror of an empty map for at most `count_max` entries; errors name the entries by `what`.
    pub(crate) const fn new(what: &'static str, count_max: usize) -> Self {
        Self { what, count_max, entries: BTreeMap::new() }
    }

    /// Checks that there is room for so many entries.
    ///
    /// # Errors
    /// `TooMany`.
    pub(crate) fn check_count(&self, count: usize) -> Result<(), BpfError> {
        let (what, count_max) = (self.what, self.count_max);
        if count > count_max { Err(BpfError::TooMany { what, count, count_max }) } else { Ok(()) }
    }

    /// Takes out every entry that is not kept. Returns how many.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn retain(
        &mut self,
        map: &OwnedFd,
        is_kept: impl Fn(&[u8; K], &[u8; V]) -> bool,
    ) -> Result<usize, BpfError> {
        let gone = self.entries.iter().filter(|(key, value)| !is_kept(key, value));
        let gone: Vec<[u8; K]> = gone.map(|(key, _)| *key).collect();
        for key in &gone {
            sys::map_delete(map, key).map_err(BpfError::os(self.what))?;
            self.entries.remove(key);
        }
        Ok(gone.len())
    }

    /// Puts these entries in, beside others.
    ///
    /// # Errors
    /// `TooMany`, before anything is put in; or the kernel's.
    pub(crate) fn put(&mut self, map: &OwnedFd, wanted: &BTreeMap<[u8; K], [u8; V]>) -> Result<(), BpfError> {
        self.check_count(wanted.len())?;
        for (key, value) in wanted {
            if self.entries.get(key) != Some(value) {
                sys::map_update(map, key, value).map_err(BpfError::os(self.what))?;
                self.entries.insert(*key, *value);
            }
        }
        Ok(())
    }

    /// Replaces the entries, what goes first. With `TooMany` all that go are gone.
    ///
    /// # Errors
    /// Those of [`Self::put`].
    pub(crate) fn replace(
        &mut self,
        map: &OwnedFd,
        wanted: &BTreeMap<[u8; K], [u8; V]>,
    ) -> Result<(), BpfError> {
        self.retain(map, |key, _| wanted.contains_key(key))?;
        self.put(map, wanted)
    }

    /// Replaces the entries; for a moment old and new ones stand side by side. The map holds twice the most.
    ///
    /// # Errors
    /// Those of [`Self::put`].
    pub(crate) fn replace_overlapping(
        &mut self,
        map: &OwnedFd,
        wanted: &BTreeMap<[u8; K], [u8; V]>,
    ) -> Result<(), BpfError> {
        self.put(map, wanted)?;
        self.retain(map, |key, _| wanted.contains_key(key)).map(drop)
    }
}
