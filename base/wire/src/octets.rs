// SPDX-License-Identifier: Apache-2.0
//! Reading and writing fields of headers whose length was checked before.
//!
//! In: a header and a named field range inside its minimum length. Out: the field's value. A range outside the
//! header is a mistake in this crate (the ranges are constants), not something that a peer can cause.

use core::ops::Range;

use crate::error::{Header, WireError};

/// The first `N` octets and the rest, or `Truncated`.
pub(crate) fn split<const N: usize>(octets: &[u8], header: Header) -> Result<(&[u8; N], &[u8]), WireError> {
    octets.split_first_chunk::<N>().ok_or(WireError::truncated(header, N, octets.len()))
}

/// The octets of one field.
pub(crate) fn array<const N: usize>(header: &[u8], field: Range<usize>) -> [u8; N] {
    let mut value = [0; N];
    value.copy_from_slice(&header[field]);
    value
}

/// A 16-bit field in network order.
pub(crate) fn be16(header: &[u8], field: Range<usize>) -> u16 {
    u16::from_be_bytes(array(header, field))
}

/// Writes a 16-bit field in network order.
pub(crate) fn put16(header: &mut [u8], field: Range<usize>, value: u16) {
    header[field].copy_from_slice(&value.to_be_bytes());
}
