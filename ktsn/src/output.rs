// SPDX-License-Identifier: Apache-2.0
//! Writing to standard output without a panic: a closed pipe ends quietly, a full disk is an error.

use std::io::{self, Write as _};

/// What became of a text.
#[derive(Debug)]
pub(crate) enum Written {
    /// It is out.
    Whole,
    /// Nobody reads any more (`| head`).
    NobodyReads,
}

/// Writes the text and flushes.
///
/// # Errors
/// The kernel's, for example a full disk behind a redirection.
pub(crate) fn write(text: &str) -> io::Result<Written> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(Written::Whole),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(Written::NobodyReads),
        Err(error) => Err(error),
    }
}

/// A span for people: three figures and the unit that fits.
pub(crate) fn span(nanos: u64) -> String {
    let (unit, name) = match nanos {
        0..1_000 => return format!("{nanos} ns"),
        1_000..1_000_000 => (1_000, "µs"),
        1_000_000..1_000_000_000 => (1_000_000, "ms"),
        _ => (1_000_000_000, "s"),
    };
    format!("{}.{:02} {name}", nanos / unit, nanos % unit * 100 / unit)
}

/// Columns aligned by their widest cell; the first one and those that hold text to the left, figures to the right.
pub(crate) fn columns(head: &[&str], rows: &[Vec<String>]) -> String {
    let width = |text: &str| text.chars().count();
    let widths: Vec<usize> = head
        .iter()
        .enumerate()
        .map(|(at, name)| rows.iter().map(|row| width(&row[at])).chain([width(name)]).max().unwrap_or(0))
        .collect();
    let is_figure = |at: usize| {
        !rows.is_empty()
            && rows.iter().all(|row| row[at] == "-" || row[at].starts_with(|c: char| c.is_ascii_digit()))
    };
    let line = |cells: &[&str]| {
        let mut text = String::from(" ");
        for (at, cell) in cells.iter().enumerate() {
            let gap = " ".repeat(widths[at] - width(cell));
            let (before, after) =
                if at > 0 && is_figure(at) { (gap, String::new()) } else { (String::new(), gap) };
            text.push_str(&format!(" {before}{cell}{after}"));
            text.push(' ');
        }
        format!("{}\n", text.trim_end())
    };
    let mut text = line(head);
    for row in rows {
        let cells: Vec<&str> = row.iter().map(String::as_str).collect();
        text.push_str(&line(&cells));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_readable() {
        for (nanos, text) in [
            (0, "0 ns"),
            (999, "999 ns"),
            (1_000, "1.00 µs"),
            (12_345, "12.34 µs"),
            (1_500_000, "1.50 ms"),
            (61_000_000_000, "61.00 s"),
        ] {
            assert_eq!(span(nanos), text);
        }
    }

    #[test]
    fn columns_align() {
        let rows = [vec!["a".to_owned(), "5".to_owned()], vec!["bcd".to_owned(), "120".to_owned()]];
        assert_eq!(columns(&["name", "n"], &rows), "  name    n\n  a       5\n  bcd   120\n");
    }
}
