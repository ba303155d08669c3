// SPDX-License-Identifier: Apache-2.0
//! Numbers with units, exactly: no floating point.

/// Units of a span, in nanoseconds.
const SPANS: &[(&str, i128)] =
    &[("ns", 1), ("us", 1_000), ("µs", 1_000), ("μs", 1_000), ("ms", 1_000_000), ("s", 1_000_000_000)];
const SPEEDS: &[(&str, i128)] =
    &[("k", 1_000), ("M", 1_000_000), ("G", 1_000_000_000), ("T", 1_000_000_000_000)];

/// What a number looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NumberError {
    /// The text is no number.
    NotANumber,
    /// The number is further from zero than any value here can be.
    TooLarge,
    /// The number has a part smaller than one unit.
    NotWhole,
}

/// The numbers that a leaf takes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Number {
    pub(crate) parse: fn(&str) -> Result<i128, NumberError>,
    pub(crate) min: i128,
    pub(crate) max: i128,
    pub(crate) expected: &'static str,
    pub(crate) rule: &'static str,
}

impl Number {
    /// A number from `min` to `max`, as `parse` reads it.
    pub(crate) const fn new(
        parse: fn(&str) -> Result<i128, NumberError>,
        min: i128,
        max: i128,
        expected: &'static str,
        rule: &'static str,
    ) -> Self {
        Self { parse, min, max, expected, rule }
    }

    /// The number of `text`, in a type that holds the range; `None` outside of the range.
    pub(crate) fn read<T: TryFrom<i128>>(&self, text: &str) -> Result<Option<T>, NumberError> {
        let value = (self.parse)(text)?;
        Ok((self.min..=self.max).contains(&value).then(|| T::try_from(value).ok()).flatten())
    }
}

/// A whole number: decimal, `0x`, `0o` or `0b`, with a sign.
///
/// # Errors
/// [`NumberError`].
pub fn integer(text: &str) -> Result<i128, NumberError> {
    let (is_negative, digits) = signed(text);
    let (radix, digits) = match digits.get(..2) {
        Some("0x" | "0X") => (16, &digits[2..]),
        Some("0o") => (8, &digits[2..]),
        Some("0b") => (2, &digits[2..]),
        _ => (10, digits),
    };
    if digits.is_empty() || !digits.chars().all(|digit| digit.is_digit(radix)) {
        return Err(NumberError::NotANumber);
    }
    let value = i128::from_str_radix(digits, radix).map_err(|_| NumberError::TooLarge)?;
    Ok(if is_negative { -value } else { value })
}

/// A span in nanoseconds: a whole number of them, or `250us`, `62.5 us`, `1ms`, `2 s`.
///
/// # Errors
/// [`NumberError`].
pub fn span(text: &str) -> Result<i128, NumberError> {
    // The longest unit that fits: `us` before `s`.
    let unit = SPANS.iter().filter(|(unit, _)| text.ends_with(unit)).max_by_key(|(unit, _)| unit.len());
    match unit {
        Some((unit, factor)) => scaled(text[..text.len() - unit.len()].trim_end(), *factor),
        None => integer(text),
    }
}

/// A link speed in bit/s: a whole number of them, or `100M`, `2.5G`, `1Gbit/s`, `1 Gbps`.
///
/// # Errors
/// [`NumberError`].
pub fn speed(text: &str) -> Result<i128, NumberError> {
    let named = ["bit/s", "bps", "bit"].iter().find_map(|ending| text.strip_suffix(ending));
    let text = named.unwrap_or(text).trim_end();
    match SPEEDS.iter().find_map(|(unit, factor)| Some((text.strip_suffix(unit)?, factor))) {
        Some((number, factor)) => scaled(number.trim_end(), *factor),
        None => integer(text),
    }
}

fn signed(text: &str) -> (bool, &str) {
    match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    }
}

/// A decimal fraction times `factor`, if that is whole.
fn scaled(text: &str, factor: i128) -> Result<i128, NumberError> {
    let (is_negative, text) = signed(text);
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let is_digits = |digits: &str| !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_digit());
    if !is_digits(whole) || !is_digits(fraction) {
        return Err(NumberError::NotANumber);
    }
    let fraction = fraction.trim_end_matches('0');
    if fraction.len() > 12 {
        return Err(NumberError::NotWhole);
    }
    let digits: i128 = format!("{whole}{fraction}").parse().map_err(|_| NumberError::TooLarge)?;
    let product = digits.checked_mul(factor).ok_or(NumberError::TooLarge)?;
    let parts = 10i128.pow(fraction.len() as u32);
    if product % parts != 0 {
        return Err(NumberError::NotWhole);
    }
    Ok(if is_negative { -product / parts } else { product / parts })
}

/// A span for people, exact: `250 µs`, `1 ms`, `62.5 µs`, `300 ns`.
#[must_use]
pub fn show_span(nanos: i64) -> String {
    let magnitude = nanos.unsigned_abs();
    let (factor, unit) = match magnitude {
        0..1_000 => (1, "ns"),
        1_000..1_000_000 => (1_000, "µs"),
        1_000_000..1_000_000_000 => (1_000_000, "ms"),
        _ => (1_000_000_000, "s"),
    };
    format!("{}{} {unit}", if nanos < 0 { "-" } else { "" }, fraction(magnitude, factor))
}

/// A link speed for people, exact, in the form that [`speed`] reads.
#[must_use]
pub fn show_speed(bits: u64) -> String {
    let unit = SPEEDS.iter().rev().find(|(_, factor)| i128::from(bits) >= *factor);
    match unit {
        Some((unit, factor)) => format!("{}{unit}", fraction(bits, *factor as u64)),
        None => bits.to_string(),
    }
}

/// `value / factor` as a decimal fraction without trailing zeros; `factor` is a power of ten.
fn fraction(value: u64, factor: u64) -> String {
    let (whole, rest) = (value / factor, value % factor);
    if rest == 0 {
        return whole.to_string();
    }
    let width = factor.ilog10() as usize;
    format!("{whole}.{rest:0width$}").trim_end_matches('0').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_exact() {
        for (text, nanos) in [
            ("0", 0),
            ("250us", 250_000),
            ("62.5 µs", 62_500),
            ("1ms", 1_000_000),
            ("2 s", 2_000_000_000),
            ("-5us", -5_000),
            ("7ns", 7),
            ("1.0ns", 1),
            ("0x10", 16),
            ("0b11", 3),
            ("+4", 4),
        ] {
            assert_eq!(span(text), Ok(nanos), "{text}");
        }
        for (text, error) in [
            ("", NumberError::NotANumber),
            ("us", NumberError::NotANumber),
            ("1.5ns", NumberError::NotWhole),
            ("1.0000000000001s", NumberError::NotWhole),
            ("1e3", NumberError::NotANumber),
            ("1h", NumberError::NotANumber),
            ("0x", NumberError::NotANumber),
            ("--1", NumberError::NotANumber),
            ("1.us", NumberError::NotANumber),
            ("1 000", NumberError::NotANumber),
            (&"9".repeat(60), NumberError::TooLarge),
            (&format!("{}s", "9".repeat(60)), NumberError::TooLarge),
            (&format!("{}s", i128::MAX), NumberError::TooLarge),
        ] {
            assert_eq!(span(text), Err(error), "{text}");
        }
    }

    #[test]
    fn speeds_are_exact_and_read_as_shown() {
        for (text, bits) in [
            ("1G", 1_000_000_000),
            ("2.5Gbit/s", 2_500_000_000),
            ("100 Mbps", 100_000_000),
            ("42", 42),
            ("9k", 9_000),
        ] {
            assert_eq!(speed(text), Ok(bits), "{text}");
            let bits = u64::try_from(bits).unwrap();
            assert_eq!(speed(&show_speed(bits)), Ok(bits.into()));
        }
        assert_eq!(speed("fast"), Err(NumberError::NotANumber));
        assert_eq!(show_speed(2_500_000_000), "2.5G");
        assert_eq!(show_speed(1_234), "1.234k");
    }

    #[test]
    fn spans_are_shown_without_loss() {
        for (nanos, text) in [
            (0, "0 ns"),
            (999, "999 ns"),
            (62_500, "62.5 µs"),
            (1_000_000, "1 ms"),
            (-1_500, "-1.5 µs"),
            (10_000_000_001, "10.000000001 s"),
        ] {
            assert_eq!(show_span(nanos), text);
            assert_eq!(span(text), Ok(nanos.into()));
        }
    }
}
