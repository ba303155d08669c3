// SPDX-License-Identifier: Apache-2.0
//! The marker: what a datagram carries that leaves an entry on a program's error queue (`docs/design/error-queue.md`).
//!
//! In: which entry of which completion. Out: the datagram's payload and its key, or a packet socket's frame, and the
//! way back.

use crate::completion::kind;

/// First octets of a marker's payload.
pub const MAGIC: [u8; 8] = *b"KTSNMARK";
/// Octets of the payload: magic, nonce u64, sequence u32, slot u16, kind u8, zeros.
pub const PAYLOAD_OCTETS: usize = 32;
/// Octets of a packet socket's marker: an Ethernet header, and less than a VLAN tag's rest with an EtherType.
pub const FRAME_OCTETS: usize = 19;
/// Where its payload begins.
pub const FRAME_HEADER_OCTETS: usize = 14;
/// The frame's type (802.1Q 9.6): a receiver looks for a tag that is not there, and drops the frame.
pub const FRAME_TYPE: u16 = 0x8100;
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

    /// The frame of a packet socket: the destination address (of an individual, locally administered) says kind, slot,
    /// and three octets of the sequence; the payload the fourth one, and half of the nonce.
    #[must_use]
    pub const fn frame(&self) -> [u8; FRAME_OCTETS] {
        let [s0, s1] = self.slot.to_le_bytes();
        let [q0, q1, q2, q3] = self.sequence.to_le_bytes();
        let [n0, n1, n2, n3] = (self.nonce as u32).to_le_bytes();
        let [t0, t1] = FRAME_TYPE.to_be_bytes();
        [self.kind << 2 | 2, s0, s1, q0, q1, q2, 0, 0, 0, 0, 0, 0, t0, t1, q3, n0, n1, n2, n3]
    }

    /// The marker of a whole frame, if it is one; of the nonce only the lower half is known.
    #[must_use]
    pub fn parse_frame(frame: &[u8]) -> Option<Self> {
        let [k, s0, s1, q0, q1, q2, 0, 0, 0, 0, 0, 0, 0x81, 0x00, q3, n0, n1, n2, n3] = *frame else {
            return None;
        };
        if k & 3 != 2 || !matches!(k >> 2, kind::SCHEDULED | kind::SOFTWARE | kind::ERROR) {
            return None;
        }
        Some(Self {
            nonce: u64::from(u32::from_le_bytes([n0, n1, n2, n3])),
            sequence: u32::from_le_bytes([q0, q1, q2, q3]),
            slot: u16::from_le_bytes([s0, s1]),
            kind: k >> 2,
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

    /// 802.3 3.2.3: no group address; 802.1Q 9.3: too short for a tag with what follows it.
    #[test]
    fn a_frame_is_read_back() {
        for kind in [1, 2, 4] {
            let marker = Marker { nonce: 0x0123_4567_89ab_cdef, sequence: 0x8765_4321, slot: 4095, kind };
            let frame = marker.frame();
            assert!(frame[0] & 3 == 2 && frame.len() < 14 + 6 && frame[12..14] == [0x81, 0]);
            let read = Marker { nonce: 0x89ab_cdef, ..marker };
            assert_eq!(Marker::parse_frame(&frame), Some(read));
            for cut in 0..frame.len() {
                assert_eq!(Marker::parse_frame(&frame[..cut]), None);
            }
            for (at, value) in [(0, 3), (0, 2), (6, 1), (11, 1), (12, 0x88), (13, 1)] {
                let mut other = frame;
                other[at] = value;
                assert_eq!(Marker::parse_frame(&other), None, "{at}");
            }
        }
    }
}
