// SPDX-License-Identifier: Apache-2.0
//! Numbers as text: in: nanoseconds, ratios, counts. Out: microseconds, percent, counts with thin spaces,
//! always with as many decimals as the column's other numbers; what is absent is a dash.

const ABSENT: &str = "–";

/// `12 345`: groups of three with a narrow no-break space.
pub(super) fn count(value: u64) -> String {
    let digits = value.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push('\u{202f}');
        }
        text.push(digit);
    }
    text
}

/// A count that may be absent.
pub(super) fn maybe_count(value: Option<u64>) -> String {
    value.map_or_else(|| ABSENT.to_owned(), count)
}

/// Nanoseconds as microseconds.
pub(super) fn micros(nanos: Option<f64>, decimals: usize) -> String {
    nanos.map_or_else(|| ABSENT.to_owned(), |nanos| minus(&format!("{:.decimals$}", nanos / 1000.0)))
}

/// A fraction of one as percent, with the unit left to the column's head.
pub(super) fn percent(ratio: Option<f64>, decimals: usize) -> String {
    ratio.map_or_else(|| ABSENT.to_owned(), |ratio| minus(&format!("{:.decimals$}", ratio * 100.0)))
}

/// A ratio of two figures.
pub(super) fn ratio(value: Option<f64>) -> String {
    value.map_or_else(|| ABSENT.to_owned(), |value| minus(&significant(value)))
}

/// A number with three significant digits, without an exponent.
pub(super) fn significant(value: f64) -> String {
    if value == 0.0 || !value.is_finite() {
        return format!("{value:.0}");
    }
    let decimals = (2.0 - value.abs().log10().floor()).clamp(0.0, 9.0) as usize;
    let text = format!("{value:.decimals$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

/// A true minus sign in place of the hyphen, and no negative zero.
fn minus(text: &str) -> String {
    match text.strip_prefix('-') {
        Some(rest) if rest.chars().all(|c| c == '0' || c == '.') => rest.to_owned(),
        Some(rest) => format!("\u{2212}{rest}"),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_well() {
        assert_eq!(count(0), "0");
        assert_eq!(count(1_234_567), "1\u{202f}234\u{202f}567");
        assert_eq!(micros(Some(1234.0), 2), "1.23");
        assert_eq!(micros(Some(-1234.0), 2), "\u{2212}1.23");
        assert_eq!(micros(Some(-1.0), 2), "0.00");
        assert_eq!(micros(None, 2), "–");
        assert_eq!(percent(Some(0.0512), 1), "5.1");
        assert_eq!(ratio(Some(0.0659)), "0.0659");
        assert_eq!(ratio(Some(0.1)), "0.1");
        assert_eq!(significant(12345.6), "12346");
        assert_eq!(maybe_count(None), "–");
    }
}
