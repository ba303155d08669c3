// SPDX-License-Identifier: Apache-2.0
//! What is wrong with a text, and where.

use std::fmt;

use crate::limits::{FAULTS_MAX, RULE, SHOWN_CHARS_MAX};

/// A place in a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// The line, from 1; 0 if there is no text (a schedule that cannot be written).
    pub line: usize,
    /// In characters, from 1.
    pub column: usize,
}

impl Position {
    /// The text's first character.
    pub const START: Self = Self { line: 1, column: 1 };
    /// No place: the fault is in a schedule, not in a text.
    pub const NOWHERE: Self = Self { line: 0, column: 0 };
}

/// What a reader says about a text that it takes: something was ignored, left out, or taken for something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remark {
    /// Where it stands.
    pub at: Position,
    /// The remark, without control characters.
    pub text: String,
}

impl fmt::Display for Remark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.at.line, self.at.column, self.text)
    }
}

/// One fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Where it stands.
    pub at: Position,
    /// The leaf from the text's root, for example `gate-parameter-table.admin-control-list[3].gate-states-value`;
    /// empty when it is the text as a whole.
    pub path: String,
    /// What was found, shortened and without control characters.
    pub value: String,
    /// What was expected.
    pub expected: String,
    /// The clause, or the name of the rule.
    pub rule: &'static str,
}

impl Fault {
    /// A fault; the value is made fit to be shown.
    pub(crate) fn new(
        at: Position,
        path: impl Into<String>,
        value: impl fmt::Display,
        expected: impl Into<String>,
        rule: &'static str,
    ) -> Self {
        Self { at, path: path.into(), value: shown(&value.to_string()), expected: expected.into(), rule }
    }
}

/// A syntax error as the library says it; the longest is a short sentence.
pub(crate) fn syntax(at: Position, what: &str, language: &'static str, rule: &'static str) -> Fault {
    let what: String = what.chars().take(200).flat_map(escaped).collect();
    let value = format!("a syntax error: {what}");
    Fault { at, path: String::new(), value, expected: language.to_owned(), rule }
}

/// Escaped and shortened: a text must not reach the terminal as it is.
pub(crate) fn shown(text: &str) -> String {
    let mut shown: String = text.chars().take(SHOWN_CHARS_MAX).flat_map(escaped).collect();
    if text.chars().nth(SHOWN_CHARS_MAX).is_some() {
        shown.push('…');
    }
    shown
}

fn escaped(character: char) -> Vec<char> {
    if character == '"' || character == '\'' { vec![character] } else { character.escape_debug().collect() }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.at != Position::NOWHERE {
            write!(f, "{}:{}: ", self.at.line, self.at.column)?;
        }
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        write!(f, "found {}, expected {} ({})", self.value, self.expected, self.rule)
    }
}

impl std::error::Error for Fault {}

/// Every fault of a text, in its order; never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Faults(Vec<Fault>);

impl Faults {
    /// The faults.
    #[must_use]
    pub fn as_slice(&self) -> &[Fault] {
        &self.0
    }

    pub(crate) fn from_list(mut faults: Vec<Fault>) -> Self {
        debug_assert!(!faults.is_empty(), "an error has a fault");
        if faults.len() > FAULTS_MAX {
            let more = faults.len() - FAULTS_MAX;
            faults.truncate(FAULTS_MAX);
            let at = faults.last().map_or(Position::START, |fault| fault.at);
            faults.push(Fault::new(at, "", format!("{more} more faults"), "fewer", RULE));
        }
        Self(faults)
    }

    pub(crate) fn sorted(mut faults: Vec<Fault>) -> Self {
        faults.sort_by_key(|fault| fault.at);
        Self::from_list(faults)
    }
}

impl From<Fault> for Faults {
    fn from(fault: Fault) -> Self {
        Self(vec![fault])
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, fault) in self.0.iter().enumerate() {
            if index > 0 {
                writeln!(f)?;
            }
            fault.fmt(f)?;
        }
        Ok(())
    }
}

impl std::error::Error for Faults {}
