// SPDX-License-Identifier: Apache-2.0
//! Stream filters (802.1Q-2022 clause 8.6.5.3): which one decides about a frame.
//!
//! In: the filters in their order. Out: for a stream handle and a priority, the first filter that matches both.
//! The answer for each priority is worked out beforehand for every handle that is named, and for all others: a
//! look-up is one binary search, however many filters there are.

use super::config::{StreamFilter, StreamHandle};
use alloc::boxed::Box;
use alloc::vec::Vec;
use ktsn_model::Priority;

/// Priorities of [`Priority`].
const PRIORITIES: usize = 16;
/// No filter matches.
const NONE: u16 = u16::MAX;

type Row = [u16; PRIORITIES];

/// The first match for everything.
#[derive(Debug)]
pub(super) struct FirstMatch {
    handles: Box<[StreamHandle]>,
    rows: Box<[Row]>,
    /// The row for frames of any other stream, or of none.
    others: Row,
}

impl FirstMatch {
    /// At most 2^16 − 1 filters.
    pub(super) fn new(filters: &[StreamFilter]) -> Self {
        let mut handles: Vec<_> = filters.iter().filter_map(|filter| filter.stream).collect();
        handles.sort_unstable();
        handles.dedup();
        let rows = handles.iter().map(|&handle| row(filters, Some(handle))).collect();
        Self { handles: handles.into(), rows, others: row(filters, None) }
    }

    /// Index of the filter.
    pub(super) fn find(&self, stream: Option<StreamHandle>, priority: Priority) -> Option<usize> {
        let row = stream
            .and_then(|stream| self.handles.binary_search(&stream).ok())
            .map_or(&self.others, |index| &self.rows[index]);
        let filter = row[usize::from(priority.get()) % PRIORITIES];
        (filter != NONE).then_some(usize::from(filter))
    }
}

fn row(filters: &[StreamFilter], stream: Option<StreamHandle>) -> Row {
    let mut row = [NONE; PRIORITIES];
    for (priority, first) in row.iter_mut().enumerate() {
        let matches = |filter: &StreamFilter| {
            (filter.stream.is_none() || filter.stream == stream)
                && filter.priority.is_none_or(|wanted| usize::from(wanted.get()) == priority)
        };
        *first = filters.iter().position(matches).map_or(NONE, |index| index as u16);
    }
    row
}
