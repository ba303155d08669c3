// SPDX-License-Identifier: Apache-2.0
//! The streams of one client, as the registrar and the control thread share them.
//!
//! In: registrations. Out: what is listed, and what the worker gets again when the tables change. The only other copy is the worker's
//! own, which exists from the client's beginning. This one grows by pages of [`PAGE_STREAMS`] streams, and the client's account grows
//! with it (`Known::keep_stream`). A list of clients shares the pages.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::limits::LISTED_STREAM_OCTETS;
use crate::worker::StreamInfo;

/// Streams of a page. libktsn takes the lowest index that is free, so most clients have one page.
const PAGE_STREAMS: usize = 16;
/// Octets of a page's place in the map, its counts, and what the allocator adds.
const PAGE_OVERHEAD: usize = 128;

type Page = [Option<StreamInfo>; PAGE_STREAMS];

/// Octets that a page takes at most, those for listing it included.
pub(super) const PAGE_OCTETS: u64 =
    (size_of::<Page>() + PAGE_OVERHEAD) as u64 + PAGE_STREAMS as u64 * LISTED_STREAM_OCTETS;

/// The streams of one client by their index.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Streams {
    /// Pages by the first index divided by [`PAGE_STREAMS`]; no page is empty.
    pages: BTreeMap<u32, Arc<Page>>,
}

const fn place(index: u32) -> (u32, usize) {
    (index / PAGE_STREAMS as u32, index as usize % PAGE_STREAMS)
}

impl Streams {
    /// Octets of the streams beyond their first page, for which each client has room.
    pub(super) fn octets(&self) -> u64 {
        (self.pages.len() as u64).saturating_sub(1) * PAGE_OCTETS
    }

    /// Octets by which [`Self::octets`] grows with a stream of this index.
    pub(super) fn growth(&self, index: u32) -> u64 {
        let is_there = self.pages.is_empty() || self.pages.contains_key(&place(index).0);
        if is_there { 0 } else { PAGE_OCTETS }
    }

    /// Sets a stream.
    pub(super) fn insert(&mut self, index: u32, info: StreamInfo) {
        let (page, at) = place(index);
        if let Some(entry) = Arc::make_mut(self.pages.entry(page).or_default()).get_mut(at) {
            *entry = Some(info);
        }
    }

    /// Forgets a stream; its page goes with the last one.
    pub(super) fn remove(&mut self, index: u32) {
        let (number, at) = place(index);
        let Some(page) = self.pages.get_mut(&number) else { return };
        if let Some(entry) = Arc::make_mut(page).get_mut(at) {
            *entry = None;
        }
        if page.iter().all(Option::is_none) {
            self.pages.remove(&number);
        }
    }

    /// The stream of this index.
    #[must_use]
    pub fn get(&self, index: u32) -> Option<&StreamInfo> {
        let (page, at) = place(index);
        self.pages.get(&page)?.get(at)?.as_ref()
    }

    /// The first stream of this index or a higher one.
    pub(super) fn first_from(&self, index: u32) -> Option<(u32, &StreamInfo)> {
        let from = place(index).0;
        self.pages.range(from..).flat_map(of_page).find(|(at, _)| *at >= index)
    }

    /// All streams with their index, in its order.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &StreamInfo)> {
        self.pages.iter().flat_map(of_page)
    }

    /// All streams, in the order of their index.
    pub fn values(&self) -> impl Iterator<Item = &StreamInfo> {
        self.iter().map(|(_, info)| info)
    }

    /// Whether there is no stream.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pages.is_empty()
    }
}

fn of_page<'a>((number, page): (&u32, &'a Arc<Page>)) -> impl Iterator<Item = (u32, &'a StreamInfo)> {
    let first = number * PAGE_STREAMS as u32;
    (first..).zip(page.iter()).filter_map(|(index, info)| Some((index, info.as_ref()?)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ktsn_resolve::AttachmentIndex;
    use proptest::prelude::*;

    fn stream(cookie: u64) -> StreamInfo {
        StreamInfo {
            interface: 0,
            uid: 0,
            token: 1,
            cookie,
            attachment: AttachmentIndex(0),
            local: ([10, 0, 0, 1], 5).into(),
            peer: None,
            link: None,
            is_deadline: false,
            status: ktsn_ring::StreamStatus::default(),
        }
    }

    proptest! {
        /// The streams are a map by index, and their octets are those of the pages.
        #[test]
        fn it_is_a_map(steps in proptest::collection::vec((0u32..200, any::<bool>()), 0..200), from in 0u32..220) {
            let (mut streams, mut model) = (Streams::default(), BTreeMap::new());
            for (cookie, (index, is_registered)) in (0..).zip(steps) {
                let (before, growth) = (streams.octets(), streams.growth(index));
                if is_registered {
                    streams.insert(index, stream(cookie));
                    model.insert(index, cookie);
                    prop_assert_eq!(streams.octets(), before + growth);
                } else {
                    streams.remove(index);
                    model.remove(&index);
                }
                prop_assert_eq!(streams.get(index).map(|info| info.cookie), model.get(&index).copied());
                prop_assert!(streams.iter().map(|(index, info)| (index, info.cookie)).eq(model.clone()));
                prop_assert_eq!(streams.is_empty(), model.is_empty());
                let pages = streams.pages.len();
                prop_assert!(pages <= model.len() && streams.octets() == pages.saturating_sub(1) as u64 * PAGE_OCTETS);
            }
            let first = model.range(from..).next().map(|(index, _)| *index);
            prop_assert_eq!(streams.first_from(from).map(|(index, _)| index), first);
        }
    }

    /// A list of clients does not copy their streams, and does not change with them.
    #[test]
    fn a_list_shares_the_pages() {
        let mut streams = Streams::default();
        (0..1024).for_each(|index| streams.insert(index, stream(7)));
        let listed = streams.clone();
        let shared = |a: &Streams, b: &Streams| {
            a.pages.values().zip(b.pages.values()).filter(|(a, b)| Arc::ptr_eq(a, b)).count()
        };
        assert_eq!((streams.pages.len(), shared(&streams, &listed)), (64, 64));
        streams.insert(20, stream(8));
        assert_eq!(shared(&streams, &listed), 63);
        assert_eq!((streams.get(20).unwrap().cookie, listed.get(20).unwrap().cookie), (8, 7));
    }
}
