// SPDX-License-Identifier: Apache-2.0
//! What a virtual program writes into its payload, so that the wire can tell frames apart and see a changed octet.

/// Octets of the shortest payload.
pub const STAMP_OCTETS: usize = 24;
const MAGIC: u64 = u64::from_le_bytes(*b"ktsn-sim");

/// A payload of `octets` for frame `id`.
#[must_use]
pub fn payload(id: u64, octets: usize) -> Vec<u8> {
    let mut payload = vec![0; octets.max(STAMP_OCTETS)];
    payload[..8].copy_from_slice(&MAGIC.to_be_bytes());
    payload[8..16].copy_from_slice(&id.to_be_bytes());
    payload[16..24].copy_from_slice(&(octets as u64).to_be_bytes());
    for (index, octet) in payload.iter_mut().enumerate().skip(STAMP_OCTETS) {
        *octet = filling(id, index);
    }
    payload
}

fn filling(id: u64, index: usize) -> u8 {
    (id.wrapping_mul(0x9e37_79b9).wrapping_add(index as u64 * 31) >> 3) as u8
}

/// The id in a payload, or `None` when any octet is not what was written.
#[must_use]
pub fn read(seen: &[u8]) -> Option<u64> {
    let word = |at: usize| Some(u64::from_be_bytes(seen.get(at..at + 8)?.try_into().ok()?));
    let (magic, id, octets) = (word(0)?, word(8)?, word(16)?);
    let whole = magic == MAGIC && octets.max(STAMP_OCTETS as u64) == seen.len() as u64;
    let filled =
        seen.iter().enumerate().skip(STAMP_OCTETS).all(|(index, octet)| *octet == filling(id, index));
    (whole && filled).then_some(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_octet_is_seen() {
        let good = payload(77, 60);
        assert_eq!(read(&good), Some(77));
        assert_eq!(read(&payload(1, 0)), Some(1));
        for index in 0..good.len() {
            let mut bad = good.clone();
            bad[index] ^= 0x10;
            assert_ne!(read(&bad), Some(77), "octet {index}");
        }
        assert_eq!(read(&good[..59]), None);
    }
}
