// SPDX-License-Identifier: Apache-2.0
//! The form of a file of records that survives a kill. In: a record's text, its number. Out: a line with checksum; or a line that was read,
//! checked.
//!
//! A line is `CHECKSUM NUMBER TEXT` and a line feed. Records are appended, each by one write, and numbered from 0. A write that was cut
//! leaves a line that its checksum refuses; a record that stands there twice has a number that is not the next one. So a reader that takes
//! lines as long as [`Scan::accept`] takes them counts every whole record once.

/// Why a line is no record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Damage {
    /// The line is cut, or its checksum is not that of its text.
    #[error("the line is cut or changed")]
    Torn,
    /// The line is whole, but another record is the next one.
    #[error("record {found} stands where record {expected} belongs")]
    Sequence {
        /// The number that belongs there.
        expected: u64,
        /// The number of the line.
        found: u64,
    },
}

/// The line of the record with this number; `text` must have no line feed.
#[must_use]
pub fn line(number: u64, text: &str) -> String {
    let body = format!("{number} {text}");
    format!("{:08x} {body}\n", checksum(body.as_bytes()))
}

/// Takes the lines of a file one after the other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scan {
    next: u64,
    octets: u64,
}

impl Scan {
    /// The text of the next line, which includes its line feed.
    ///
    /// # Errors
    /// [`Damage`]: the line is not the next record; the scan stays where it is.
    pub fn accept<'l>(&mut self, line: &'l [u8]) -> Result<&'l str, Damage> {
        let whole =
            line.strip_suffix(b"\n").and_then(|line| std::str::from_utf8(line).ok()).ok_or(Damage::Torn)?;
        let (sum, body) = whole.split_once(' ').ok_or(Damage::Torn)?;
        if sum.len() != 8 || u32::from_str_radix(sum, 16) != Ok(checksum(body.as_bytes())) {
            return Err(Damage::Torn);
        }
        let (number, text) = body.split_once(' ').ok_or(Damage::Torn)?;
        let found: u64 = number.parse().map_err(|_| Damage::Torn)?;
        if found != self.next {
            return Err(Damage::Sequence { expected: self.next, found });
        }
        self.next += 1;
        self.octets += line.len() as u64;
        Ok(text)
    }

    /// The number of the record after those that were taken.
    #[must_use]
    pub const fn next(&self) -> u64 {
        self.next
    }

    /// How many octets the lines that were taken have: where the next one begins.
    #[must_use]
    pub const fn octets(&self) -> u64 {
        self.octets
    }
}

/// CRC-32 (IEEE 802.3).
fn checksum(octets: &[u8]) -> u32 {
    let step = |sum: u32, octet: &u8| {
        let mut sum = sum ^ u32::from(*octet);
        for _ in 0..8 {
            sum = if sum & 1 == 1 { (sum >> 1) ^ 0xEDB8_8320 } else { sum >> 1 };
        }
        sum
    };
    !octets.iter().fold(!0, step)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// What a reader takes of a file.
    fn read(file: &[u8]) -> (Vec<String>, Option<Damage>) {
        let mut scan = Scan::default();
        let mut texts = Vec::new();
        for line in file.split_inclusive(|&octet| octet == b'\n') {
            match scan.accept(line) {
                Ok(text) => texts.push(text.to_owned()),
                Err(damage) => {
                    assert_eq!(scan.next(), texts.len() as u64);
                    return (texts, Some(damage));
                }
            }
        }
        assert_eq!(scan.octets(), file.len() as u64);
        (texts, None)
    }

    #[test]
    fn the_checksum_is_that_of_the_standard() {
        assert_eq!(checksum(b"123456789"), 0xCBF4_3926);
    }

    #[test]
    fn a_record_that_stands_twice_is_not_counted_twice() {
        let file = [line(0, "a"), line(1, "b"), line(1, "b"), line(2, "c")].concat();
        let (texts, damage) = read(file.as_bytes());
        assert_eq!(texts, ["a", "b"]);
        assert_eq!(damage, Some(Damage::Sequence { expected: 2, found: 1 }));
    }

    proptest! {
        /// Cut at every octet: the whole records before the cut are read, and nothing else.
        #[test]
        fn a_cut_loses_the_last_record_only(texts in prop::collection::vec("[ -~]{0,12}", 1..6)) {
            let lines: Vec<String> = texts.iter().enumerate().map(|(number, text)| line(number as u64, text)).collect();
            let file = lines.concat();
            for cut in 0..=file.len() {
                let mut end = 0;
                let whole = lines.iter().take_while(|line| { end += line.len(); end <= cut }).count();
                let (read, damage) = read(&file.as_bytes()[..cut]);
                prop_assert_eq!(&read[..], &texts[..whole]);
                let is_cut = lines[..whole].concat().len() < cut;
                prop_assert_eq!(damage, is_cut.then_some(Damage::Torn));
            }
        }

        /// One changed octet is found.
        #[test]
        fn a_changed_octet_is_found(text in "[ -~]{0,30}", at in 0_usize..50, bit in 0_u8..8) {
            let mut file = line(0, &text).into_bytes();
            let at = at % file.len();
            file[at] ^= 1 << bit;
            let (texts, damage) = read(&file);
            // A changed letter of the checksum (`a` and `A`) may mean the same number.
            prop_assert!(damage.is_some() || texts == [text.clone()]);
            prop_assert!(texts.is_empty() || texts == [text]);
        }
    }
}
