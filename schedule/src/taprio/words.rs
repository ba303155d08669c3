// SPDX-License-Identifier: Apache-2.0
//! The words of a command with their places, as a shell would split them; no quoting, no expansion.

use crate::fault::Position;
use crate::units::{NumberError, integer};

/// A word of the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Word<'a> {
    pub(super) at: Position,
    pub(super) text: &'a str,
}

/// The words of each command: a command ends with its line unless that ends in a backslash. Comments are left out.
pub(super) fn commands(text: &str) -> Vec<Vec<Word<'_>>> {
    let mut commands = vec![Vec::new()];
    for (index, line) in text.lines().enumerate() {
        let (line, is_continued) = match line.trim_end().strip_suffix('\\') {
            Some(line) => (line, true),
            None => (line, false),
        };
        if let Some(command) = commands.last_mut() {
            command.extend(words(line, index + 1));
        }
        if !is_continued {
            commands.push(Vec::new());
        }
    }
    commands.retain(|command| !command.is_empty());
    commands
}

fn words(line: &str, number: usize) -> Vec<Word<'_>> {
    let mut words = Vec::new();
    let (mut rest, mut column) = (line, 1);
    loop {
        let trimmed = rest.trim_start();
        column += rest[..rest.len() - trimmed.len()].chars().count();
        if trimmed.is_empty() || trimmed.starts_with('#') {
            return words;
        }
        let end = trimmed.find(char::is_whitespace).unwrap_or(trimmed.len());
        words.push(Word { at: Position { line: number, column }, text: &trimmed[..end] });
        column += trimmed[..end].chars().count();
        rest = &trimmed[end..];
    }
}

/// A decimal number, without a `+`.
pub(super) fn decimal(text: &str) -> Result<i128, NumberError> {
    let digits = text.strip_prefix('-').unwrap_or(text);
    if digits.bytes().all(|digit| digit.is_ascii_digit()) {
        integer(text)
    } else {
        Err(NumberError::NotANumber)
    }
}

/// A hexadecimal number, with or without `0x`.
pub(super) fn hexadecimal(text: &str) -> Result<i128, NumberError> {
    let (sign, digits) = text.strip_prefix('-').map_or(("", text), |digits| ("-", digits));
    let digits = digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")).unwrap_or(digits);
    integer(&format!("{sign}0x{digits}"))
}

/// A number as in C: `0x` hexadecimal, a leading 0 octal.
pub(super) fn c_number(text: &str) -> Result<i128, NumberError> {
    let (sign, digits) = text.strip_prefix('-').map_or(("", text), |digits| ("-", digits));
    match digits.get(..2) {
        Some("0x" | "0X") => hexadecimal(text),
        Some(_) if digits.starts_with('0') => integer(&format!("{sign}0o{digits}")),
        _ => decimal(text),
    }
}
