// SPDX-License-Identifier: Apache-2.0
//! Leaves of the tree: typed values, or a fault that says what was expected.

use crate::fault::{Fault, Position, shown};
use crate::tree::{Kind, Node};
use crate::units::NumberError;

/// Whose rule it is when no clause says so.
pub(super) const FORMAT: &str = "KTSN schedule format";

/// Collects faults and goes on.
#[derive(Default)]
pub(super) struct Reader {
    pub(super) faults: Vec<Fault>,
}

/// The fields of one mapping.
pub(super) struct Fields<'a> {
    pub(super) path: String,
    pub(super) at: Position,
    found: Vec<(&'static str, &'a Node)>,
}

impl<'a> Fields<'a> {
    /// The value of a field and its path.
    pub(super) fn get(&self, leaf: &str) -> Option<(&'a Node, String)> {
        let (_, node) = self.found.iter().find(|(known, _)| *known == leaf)?;
        Some((node, join(&self.path, leaf)))
    }
}

/// What a number may be.
pub(super) struct Number {
    pub(super) parse: fn(&str) -> Result<i128, NumberError>,
    pub(super) min: i128,
    pub(super) max: i128,
    pub(super) expected: &'static str,
    pub(super) rule: &'static str,
}

pub(super) fn join(path: &str, leaf: &str) -> String {
    if path.is_empty() { leaf.to_owned() } else { format!("{path}.{leaf}") }
}

/// A key or identity without the name of its YANG module.
pub(super) fn without_module(word: &str) -> &str {
    const MODULES: [&str; 3] = ["ieee802-dot1q-sched-bridge:", "ieee802-dot1q-sched:", "sched:"];
    MODULES.iter().find_map(|module| word.strip_prefix(module)).unwrap_or(word)
}

impl Reader {
    pub(super) fn fault(
        &mut self,
        at: Position,
        path: &str,
        value: impl std::fmt::Display,
        expected: impl Into<String>,
        rule: &'static str,
    ) {
        self.faults.push(Fault::new(at, path, value, expected, rule));
    }

    /// The fields of a mapping; unknown and repeated ones are faults.
    pub(super) fn fields<'a>(
        &mut self,
        node: &'a Node,
        path: &str,
        known: &[&'static str],
    ) -> Option<Fields<'a>> {
        let Kind::Map(pairs) = &node.kind else {
            let expected = format!("a mapping with {}", known.join(", "));
            self.fault(node.at, path, node.shown(), expected, FORMAT);
            return None;
        };
        let mut fields = Fields { path: path.to_owned(), at: node.at, found: Vec::new() };
        for (key, value) in pairs {
            let word = without_module(&key.text);
            match known.iter().find(|leaf| **leaf == word) {
                None => {
                    let expected = unknown(word, known);
                    self.fault(key.at, &join(path, &shown(word)), "an unknown leaf", expected, FORMAT);
                }
                Some(leaf) if fields.found.iter().any(|(seen, _)| seen == leaf) => {
                    self.fault(key.at, &join(path, leaf), "the leaf again", "each leaf once", FORMAT);
                }
                Some(leaf) => fields.found.push((leaf, value)),
            }
        }
        Some(fields)
    }

    /// The field, or a fault that it is missing.
    pub(super) fn required<'a>(
        &mut self,
        fields: &Fields<'a>,
        leaf: &'static str,
        expected: &str,
        rule: &'static str,
    ) -> Option<(&'a Node, String)> {
        let found = fields.get(leaf);
        if found.is_none() {
            self.fault(fields.at, &join(&fields.path, leaf), "nothing", expected, rule);
        }
        found
    }

    pub(super) fn number(&mut self, node: &Node, path: &str, number: &Number) -> Option<i128> {
        let Kind::Scalar { text, .. } = &node.kind else {
            self.fault(node.at, path, node.shown(), number.expected, number.rule);
            return None;
        };
        match (number.parse)(text) {
            Ok(value) if value >= number.min && value <= number.max => Some(value),
            Ok(_) => {
                self.fault(node.at, path, text, number.expected, number.rule);
                None
            }
            Err(error) => {
                // After the shortened value, so that it is seen.
                let why = match error {
                    NumberError::NotANumber => "",
                    NumberError::TooLarge => " (too large for any number here)",
                    NumberError::NotWhole => " (not a whole number of the smallest unit)",
                };
                let mut fault = Fault::new(node.at, path, node.shown(), number.expected, number.rule);
                fault.value.push_str(why);
                self.faults.push(fault);
                None
            }
        }
    }

    pub(super) fn flag(&mut self, node: &Node, path: &str, rule: &'static str) -> Option<bool> {
        match &node.kind {
            Kind::Scalar { text, is_plain: true } if text == "true" => Some(true),
            Kind::Scalar { text, is_plain: true } if text == "false" => Some(false),
            _ => {
                self.fault(node.at, path, node.shown(), "true or false", rule);
                None
            }
        }
    }

    /// Text of one line for people.
    pub(super) fn text(&mut self, node: &Node, path: &str, chars_max: usize) -> Option<String> {
        if let Kind::Scalar { text, is_plain } = &node.kind {
            let is_other = *is_plain
                && (node.is_nothing()
                    || matches!(text.as_str(), "true" | "false")
                    || text.parse::<f64>().is_ok()
                    || crate::units::integer(text).is_ok());
            let text = text.trim();
            let is_shown = !text.is_empty() && !text.chars().any(char::is_control);
            if !is_other && is_shown && text.chars().count() <= chars_max {
                return Some(text.to_owned());
            }
        }
        let expected = format!("text of 1 to {chars_max} characters without line breaks");
        self.fault(node.at, path, node.shown(), expected, FORMAT);
        None
    }

    /// The items of a list.
    pub(super) fn list<'a>(&mut self, node: &'a Node, path: &str, of: &str) -> Option<&'a [Node]> {
        match &node.kind {
            Kind::List(items) => Some(items),
            _ => {
                self.fault(node.at, path, node.shown(), format!("a list of {of}"), FORMAT);
                None
            }
        }
    }
}

/// What is said about an unknown leaf: the likely one, and all.
fn unknown(word: &str, known: &[&'static str]) -> String {
    let all = known.join(", ");
    let near = known.iter().map(|leaf| (distance(word, leaf), leaf)).min();
    match near {
        Some((steps, leaf)) if steps <= leaf.len() / 3 => format!("{leaf}? (known here: {all})"),
        _ => format!("one of {all}"),
    }
}

/// Edits from one word to another; words here are short, longer ones are far away.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().take(40).collect(), b.chars().collect());
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, left) in a.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, right) in b.iter().enumerate() {
            let changed = diagonal + usize::from(left != right);
            diagonal = row[j + 1];
            row[j + 1] = changed.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}
