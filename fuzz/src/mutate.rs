// SPDX-License-Identifier: Apache-2.0
//! Seeded mutations, so that every `cargo test` fuzzes a little and a failure can be repeated by its seed.
//!
//! In: a seed and corpus entries. Out: octets near one of them. It must be the same on every machine: no clock, no
//! randomness but the seed.

/// Longest mutated input.
pub const INPUT_OCTETS_MAX: usize = 4096;

/// Values at which length and index checks tend to be wrong.
const EDGES: [u8; 10] = [0x00, 0x01, 0x04, 0x07, 0x08, 0x0f, 0x7f, 0x80, 0xfe, 0xff];

/// A source of mutations.
#[derive(Clone, Debug)]
pub struct Mutator {
    state: u64,
}

impl Mutator {
    /// A source of mutations. Equal seeds give equal mutations.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// The next number (SplitMix64).
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number under `bound`, or 0.
    fn below(&mut self, bound: usize) -> usize {
        let bound = u64::try_from(bound).unwrap_or(u64::MAX).max(1);
        usize::try_from(self.next_u64() % bound).unwrap_or(0)
    }

    /// One to eight mutations of a random corpus entry. An empty corpus gives mutations of nothing.
    #[must_use]
    pub fn mutated(&mut self, corpus: &[Vec<u8>]) -> Vec<u8> {
        let mut octets = self.entry(corpus).to_vec();
        for _ in 0..=self.below(8) {
            self.mutate_once(&mut octets, corpus);
        }
        octets.truncate(INPUT_OCTETS_MAX);
        octets
    }

    fn entry<'a>(&mut self, corpus: &'a [Vec<u8>]) -> &'a [u8] {
        let index = self.below(corpus.len());
        corpus.get(index).map_or(&[], Vec::as_slice)
    }

    fn mutate_once(&mut self, octets: &mut Vec<u8>, corpus: &[Vec<u8>]) {
        let at = self.below(octets.len());
        let edge = EDGES[self.below(EDGES.len())];
        let random = self.next_u64();
        match self.below(9) {
            0 => octets.truncate(at),
            1 => octets.insert(at, edge),
            2 => octets.extend((0..self.below(32)).map(|_| edge)),
            // The end of another entry in this one's place.
            3 => {
                let other = self.entry(corpus);
                octets.truncate(at);
                octets.extend_from_slice(other.get(at..).unwrap_or(other));
            }
            4 => {
                let end = (at + 1 + self.below(16)).min(octets.len());
                let piece = octets.get(at..end).unwrap_or(&[]).to_vec();
                octets.splice(at..at, piece);
            }
            5 => {
                let end = (at + 1 + self.below(16)).min(octets.len());
                octets.drain(at.min(end)..end);
            }
            kind => {
                let Some(octet) = octets.get_mut(at) else { return };
                *octet = match kind {
                    6 => edge,
                    7 => *octet ^ 1 << (random % 8),
                    _ => random as u8,
                };
            }
        }
    }
}
