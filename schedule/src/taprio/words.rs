// SPDX-License-Identifier: Apache-2.0
//! The words of a command with their places, as a shell would split them; no quoting, no expansion.

use super::NumberLeaf;
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

/// How tc reads a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Base {
    /// Decimal.
    Ten,
    /// Hexadecimal, with or without `0x`.
    Sixteen,
    /// As in C: `0x` hexadecimal, a leading 0 octal.
    C,
}

/// The number as tc reads it, if it lies in the range.
pub(super) fn number(text: &str, base: Base, leaf: &NumberLeaf) -> Option<i128> {
    let digits = text.strip_prefix('-').unwrap_or(text);
    let prefixed = |prefix: &str, digits: &str| {
        integer(&format!("{}{prefix}{digits}", if text.starts_with('-') { "-" } else { "" }))
    };
    let hexadecimal = digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X"));
    let is_decimal = digits.bytes().all(|digit| digit.is_ascii_digit());
    let value = match base {
        Base::Sixteen => prefixed("0x", hexadecimal.unwrap_or(digits)),
        Base::C if hexadecimal.is_some() => prefixed("0x", hexadecimal.unwrap_or_default()),
        Base::C if digits.len() > 1 && digits.starts_with('0') => prefixed("0o", digits),
        _ if is_decimal => integer(text),
        _ => Err(NumberError::NotANumber),
    };
    value.ok().filter(|value| (leaf.min..=leaf.max).contains(value))
}
