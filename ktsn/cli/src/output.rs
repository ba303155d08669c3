// SPDX-License-Identifier: Apache-2.0
//! Writing to standard output without a panic: a closed pipe ends quietly, a full disk is an error.

use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

/// How writing a text ended.
#[derive(Debug)]
pub enum Written {
    /// The whole text was written.
    Whole,
    /// The reader has closed its end (`| head`).
    NoReader,
}

/// Writes the text and flushes.
///
/// # Errors
/// The kernel's, for example a full disk behind a redirection.
pub fn write(text: &str) -> io::Result<Written> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(Written::Whole),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(Written::NoReader),
        Err(error) => Err(error),
    }
}

/// Clears the terminal and puts the cursor to its top.
pub const CLEAR: &str = "\x1b[H\x1b[2J";

/// Writes to standard output as [`write()`] does, with an error that says what to do.
pub fn show(text: &str) -> Result<Written, String> {
    write(text).map_err(|error| format!("standard output: {error}; write to another place"))
}

/// The exit status of a command: 0, or 1 with the reason on standard error.
pub fn finish(command: &str, done: Result<(), impl std::fmt::Display>) -> ExitCode {
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(what) => {
            eprintln!("ktsn {command}: {what}");
            ExitCode::FAILURE
        }
    }
}

/// A span for people: three figures and the unit that fits.
pub fn span(nanos: u64) -> String {
    let (unit, name) = match nanos {
        0..1_000 => return format!("{nanos} ns"),
        1_000..1_000_000 => (1_000, "µs"),
        1_000_000..1_000_000_000 => (1_000_000, "ms"),
        _ => (1_000_000_000, "s"),
    };
    format!("{}.{:02} {name}", nanos / unit, nanos % unit * 100 / unit)
}

/// Lines of cells below heads. Columns are as wide as their widest cell; the first one and those that hold text are
/// aligned to the left, figures to the right.
fn columns(head: &[&str], rows: &[Vec<String>]) -> String {
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

/// Paths on one line.
pub fn listed(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
}

/// A column of a table: its head, and the cell of a row.
pub type Column<T> = (&'static str, fn(&T) -> String);

/// A line for each row below the heads of the columns; empty without rows.
pub fn table<T>(rows: impl IntoIterator<Item = T>, table: &[Column<T>]) -> String {
    let cells = |row: T| table.iter().map(|(_, cell)| cell(&row)).collect();
    let rows: Vec<Vec<String>> = rows.into_iter().map(cells).collect();
    let heads: Vec<&str> = table.iter().map(|(head, _)| *head).collect();
    if rows.is_empty() { String::new() } else { columns(&heads, &rows) }
}

/// [`table`] below a title; empty without rows.
pub fn titled<T>(title: &str, rows: impl IntoIterator<Item = T>, columns: &[Column<T>]) -> String {
    let text = table(rows, columns);
    if text.is_empty() { text } else { format!("\n{title}\n{text}") }
}

/// The text, or a dash where it is empty.
pub fn or_dash(text: &str) -> String {
    if text.is_empty() { "-".to_owned() } else { text.to_owned() }
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
