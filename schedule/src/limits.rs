// SPDX-License-Identifier: Apache-2.0
//! How much a text may ask of us. A schedule of 1,024 entries in the longest form needs a quarter of each.

/// Octets of a text.
pub const OCTETS_MAX: usize = 1 << 20;
/// Values and keys of a text.
pub const NODES_MAX: usize = 100_000;
/// Lists and mappings inside each other; the format itself needs five.
pub const DEPTH_MAX: usize = 16;
/// Faults that are reported; a last one says that there are more.
pub const FAULTS_MAX: usize = 1_000;
/// Characters of a name.
pub const NAME_CHARS_MAX: usize = 64;
/// Characters of a description.
pub const DESCRIPTION_CHARS_MAX: usize = 1_000;
/// Characters of a value that a fault repeats.
pub const SHOWN_CHARS_MAX: usize = 60;

/// What a fault gives as its rule when one of these is passed.
pub(crate) const RULE: &str = "limit of KTSN";

// The format's own depth fits.
const _: () = assert!(DEPTH_MAX > 5 && NODES_MAX > 1024 * 9 && OCTETS_MAX > 1024 * 256);
