// SPDX-License-Identifier: Apache-2.0
//! The marker: what a datagram carries that leaves an entry on a program's error queue (`docs/design/error-queue.md`).
//!
//! In: which entry of which completion. Out: the datagram's payload and its key, and the way back.

/// First octets of a marker's payload.
pub const MAGIC: [u8; 8] = *b"KTSNMARK";
/// Octets of the payload: magic, nonce u64, sequence u32, slot u16, kind u8, zeros.
pub const PAYLOAD_OCTETS: usize = 32;
/// Upper octet of the key of an entry without data.
const KEY: u32 = 0xa5;

/// Which entry of which completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Marker {
    /// The region.
    pub nonce: u64,
    /// The completion's number.
    pub sequence: u32,
    /// Its slot.
    pub slot: u16,
    /// One kind ([`crate::completion::kind`]).
    pub kind: u8,
}

impl Marker {
    /// The datagram's payload.
    #[must_use]
    pub const fn payload(&self) -> [u8; PAYLOAD_OCTETS] {
        let first = self.nonce as u128;
        let second = self.sequence as u128 | (self.slot as u128) << 32 | (self.kind as u128) << 48;
        let [low, high] = [u64::from_le_bytes(MAGIC) as u128 | first << 64, second];
        let mut octets = [0; PAYLOAD_OCTETS];
        let (low, high) = (low.to_le_bytes(), high.to_le_bytes());
        let mut index = 0;
        while index < 16 {
            octets[index] = low[index];
            octets[index.wrapping_add(16)] = high[index];
            index = index.wrapping_add(1);
        }
        octets
    }

    /// The marker of a payload, if it is one.
    #[must_use]
    pub fn parse(payload: &[u8]) -> Option<Self> {
        let ([magic, nonce, third, ..], _) = payload.as_chunks::<8>() else { return None };
        if *magic != MAGIC {
            return None;
        }
        let third = u64::from_le_bytes(*third);
        Some(Self {
            nonce: u64::from_le_bytes(*nonce),
            sequence: third as u32,
            slot: (third >> 32) as u16,
            kind: (third >> 48) as u8,
        })
    }

    /// The key (SCM_TS_OPT_ID) that names the completion where the entry has no data: it says less than the payload.
    #[must_use]
    pub const fn key(&self) -> u32 {
        KEY << 24 | ((self.slot & 0xfff) as u32) << 12 | self.sequence & 0xfff
    }
}

/// The slot and the last twelve bits of the sequence that a marker's key names.
#[must_use]
pub const fn from_key(key: u32) -> Option<(u16, u32)> {
    if key >> 24 == KEY { Some(((key >> 12 & 0xfff) as u16, key & 0xfff)) } else { None }
}

#[cfg(test)]
mod tests {
    use super::{Marker, from_key};

    #[test]
    fn what_is_written_is_read() {
        let marker = Marker { nonce: 0x0123_4567_89ab_cdef, sequence: 0x8765_4321, slot: 4095, kind: 4 };
        assert_eq!(marker.payload()[..8], *b"KTSNMARK");
        assert_eq!(marker.payload()[16..23], [0x21, 0x43, 0x65, 0x87, 0xff, 0x0f, 4]);
        assert_eq!(Marker::parse(&marker.payload()), Some(marker));
        assert_eq!(Marker::parse(&marker.payload()[..24]), Some(marker));
        assert_eq!(Marker::parse(&marker.payload()[..23]), None);
        assert_eq!(Marker::parse(&marker.payload()[1..]), None);
        assert_eq!(from_key(marker.key()), Some((4095, 0x321)));
        assert_eq!(from_key(0x1234), None);
    }
}
