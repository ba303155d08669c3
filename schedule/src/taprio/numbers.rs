// SPDX-License-Identifier: Apache-2.0
//! Numbers as tc reads them: by strtoul(3) and strtoll(3), to the word's end.

/// An unsigned number of at most `max`. `radix` 0: as in C, by `0x`, `0b` and a leading 0. As strtoul does, `+` and `-` are taken: `-0` is 0.
pub(super) fn unsigned(text: &str, radix: u32, max: u64) -> Option<u64> {
    let (is_negative, value) = magnitude(text, radix)?;
    let value = u64::try_from(value).ok()?;
    let value = if is_negative { value.wrapping_neg() } else { value };
    (value <= max).then_some(value)
}

/// A signed number of 64 bits, decimal.
pub(super) fn signed(text: &str) -> Option<i64> {
    let (is_negative, value) = magnitude(text, 10)?;
    let value = i128::try_from(value).ok()?;
    i64::try_from(if is_negative { -value } else { value }).ok()
}

fn magnitude(text: &str, radix: u32) -> Option<(bool, u128)> {
    let (is_negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let without_prefix = digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X"));
    let (radix, digits) = match (radix, without_prefix) {
        (0 | 16, Some(digits)) => (16, digits),
        // The newest C library's.
        (0, None) if digits.starts_with("0b") || digits.starts_with("0B") => (2, &digits[2..]),
        (0, None) if digits.len() > 1 && digits.starts_with('0') => (8, &digits[1..]),
        (0, None) => (10, digits),
        _ => (radix, digits),
    };
    // `from_str_radix` takes a second sign.
    if digits.is_empty() || !digits.chars().all(|digit| digit.is_digit(radix)) {
        return None;
    }
    Some((is_negative, u128::from_str_radix(digits, radix).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_c_library() {
        for (text, radix, value) in [
            ("12", 10, Some(12)),
            ("+2", 10, Some(2)),
            ("-0", 10, Some(0)),
            ("-1", 10, None),
            ("-18446744073709551615", 10, Some(1)),
            ("18446744073709551616", 10, None),
            ("02", 10, Some(2)),
            ("0x2", 10, None),
            ("0x493e0", 0, Some(300_000)),
            ("0100000", 0, Some(32_768)),
            ("089", 0, None),
            ("0", 0, Some(0)),
            ("0b11", 16, Some(0xb11)),
            ("0b11", 0, Some(3)),
            ("0x", 16, None),
            ("0x0f", 16, Some(15)),
            ("++1", 10, None),
            ("", 10, None),
            ("1 ", 10, None),
        ] {
            assert_eq!(unsigned(text, radix, u64::from(u32::MAX)), value, "{text} {radix}");
        }
        assert_eq!(signed("-9223372036854775808"), Some(i64::MIN));
        assert_eq!((signed("9223372036854775808"), signed("1e9"), signed("+5")), (None, None, Some(5)));
    }
}
