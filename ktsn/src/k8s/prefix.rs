// SPDX-License-Identifier: Apache-2.0
//! Ranges of addresses, as `10.99.0.0/16` and `fd99::/48`. In: text. Out: whether two ranges overlap.

use std::net::IpAddr;

/// A range of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Prefix {
    bits: u128,
    length: u8,
    is_v6: bool,
}

impl Prefix {
    /// Reads a prefix, or an address alone.
    ///
    /// # Errors
    /// What is wrong with the text.
    pub(crate) fn read(text: &str) -> Result<Self, String> {
        let expected = || format!("{text:?}: expected a prefix such as 10.99.0.0/16 or fd99::/48");
        let (address, length) =
            text.split_once('/').map_or((text, None), |(address, length)| (address, Some(length)));
        let address: IpAddr = address.parse().map_err(|_| expected())?;
        let (bits, most, is_v6) = match address {
            IpAddr::V4(four) => (u128::from(four.to_bits()) << 96, 32, false),
            IpAddr::V6(six) => (six.to_bits(), 128, true),
        };
        let length = length.map_or(Ok(most), str::parse).map_err(|_| expected())?;
        if length > most { Err(expected()) } else { Ok(Self { bits, length, is_v6 }) }
    }

    /// Whether an address is in both.
    pub(crate) fn overlaps(self, other: Self) -> bool {
        let shorter = self.length.min(other.length);
        let mask = u128::MAX.checked_shl(128 - u32::from(shorter)).unwrap_or(0);
        self.is_v6 == other.is_v6 && (self.bits ^ other.bits) & mask == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_overlap_where_one_holds_the_other() {
        let read = |text| Prefix::read(text).unwrap();
        for (left, right, expected) in [
            ("10.99.0.0/16", "10.99.3.0/24", true),
            ("10.99.0.0/16", "10.100.0.0/16", false),
            ("10.0.0.0/8", "10.96.0.1", true),
            ("0.0.0.0/0", "192.0.2.1", true),
            ("fd99::/48", "fd99:0:0:1::/64", true),
            ("::/0", "10.0.0.0/8", false),
        ] {
            assert_eq!(read(left).overlaps(read(right)), expected, "{left} {right}");
            assert_eq!(read(right).overlaps(read(left)), expected, "{right} {left}");
        }
        for wrong in ["", "10.0.0.0/33", "10.0.0/8", "x/8", "fd99::/129", "10.0.0.0/"] {
            assert!(Prefix::read(wrong).unwrap_err().contains("expected a prefix"), "{wrong}");
        }
    }
}
