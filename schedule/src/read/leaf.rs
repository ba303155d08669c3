// SPDX-License-Identifier: Apache-2.0
//! Leaves of the tree: typed values, or a fault that says what was expected. A fault never stops the reading.

use std::cell::RefCell;
use std::fmt::Display;

use crate::fault::{Fault, Position, shown};
use crate::tree::{Kind, Node};
use crate::units::{Number, NumberError};

/// The rule that a fault names where no clause applies.
pub(super) const FORMAT: &str = "KTSN schedule format";

/// The faults that were found so far.
pub(super) type Found = RefCell<Vec<Fault>>;

/// A value of the text and its path.
pub(super) struct Leaf<'a> {
    pub(super) node: &'a Node,
    pub(super) path: String,
    found: &'a Found,
}

/// The fields of one mapping.
pub(super) struct Fields<'a> {
    mapping: Leaf<'a>,
    fields: Vec<(&'static str, &'a Node)>,
}

pub(super) fn join(path: &str, leaf: &str) -> String {
    if path.is_empty() { leaf.to_owned() } else { format!("{path}.{leaf}") }
}

/// A key or identity without the name of its YANG module.
pub(super) fn without_module(word: &str) -> &str {
    const MODULES: [&str; 3] = ["ieee802-dot1q-sched-bridge:", "ieee802-dot1q-sched:", "sched:"];
    MODULES.iter().find_map(|module| word.strip_prefix(module)).unwrap_or(word)
}

impl<'a> Leaf<'a> {
    /// The text as a whole.
    pub(super) fn root(node: &'a Node, found: &'a Found) -> Self {
        Self { node, path: String::new(), found }
    }

    /// This value, but with another path in faults.
    pub(super) fn at_path(&self, path: String) -> Self {
        Self { node: self.node, path, found: self.found }
    }

    pub(super) fn fault_at(
        &self,
        at: Position,
        path: &str,
        value: impl Display,
        expected: impl Into<String>,
        rule: &'static str,
    ) {
        self.found.borrow_mut().push(Fault::new(at, path, value, expected, rule));
    }

    /// A fault in this value, which is repeated as `value`.
    pub(super) fn fault(&self, value: impl Display, expected: impl Into<String>, rule: &'static str) {
        self.fault_at(self.node.at, &self.path, value, expected, rule);
    }

    /// The whole value is not what was expected.
    pub(super) fn wrong<T>(&self, expected: impl Into<String>, rule: &'static str) -> Option<T> {
        self.fault(self.node.shown(), expected, rule);
        None
    }

    pub(super) fn is_mapping(&self) -> bool {
        matches!(self.node.kind, Kind::Map(_))
    }

    /// The text of a scalar that `read` understands.
    pub(super) fn word<T>(
        &self,
        read: impl FnOnce(&str) -> Option<T>,
        expected: impl Into<String>,
        rule: &'static str,
    ) -> Option<T> {
        match &self.node.kind {
            Kind::Scalar { text, .. } => read(text),
            _ => None,
        }
        .or_else(|| self.wrong(expected, rule))
    }

    /// The fields of a mapping; unknown and repeated ones are faults.
    pub(super) fn fields(self, known: &[&'static str]) -> Option<Fields<'a>> {
        let Kind::Map(pairs) = &self.node.kind else {
            return self.wrong(format!("a mapping with {}", known.join(", ")), FORMAT);
        };
        let mut fields: Vec<(&'static str, &'a Node)> = Vec::new();
        for (key, value) in pairs {
            let word = without_module(&key.text);
            match known.iter().find(|leaf| **leaf == word) {
                None => {
                    let path = join(&self.path, &shown(word));
                    self.fault_at(key.at, &path, "an unknown leaf", unknown(word, known), FORMAT);
                }
                Some(leaf) if fields.iter().any(|(seen, _)| seen == leaf) => {
                    self.fault_at(
                        key.at,
                        &join(&self.path, leaf),
                        "the leaf again",
                        "each leaf once",
                        FORMAT,
                    );
                }
                Some(leaf) => fields.push((leaf, value)),
            }
        }
        Some(Fields { mapping: self, fields })
    }

    /// A number, in the type that holds its range.
    pub(super) fn number<T: TryFrom<i128>>(&self, number: &Number) -> Option<T> {
        let Kind::Scalar { text, .. } = &self.node.kind else {
            return self.wrong(number.expected, number.rule);
        };
        let (value, why) = match number.read(text) {
            Ok(Some(value)) => return Some(value),
            Ok(None) => (text.clone(), ""),
            Err(NumberError::NotANumber) => (self.node.shown(), ""),
            Err(NumberError::TooLarge) => (self.node.shown(), " (too large for any number here)"),
            Err(NumberError::NotWhole) => (self.node.shown(), " (not a whole number of the smallest unit)"),
        };
        let mut fault = Fault::new(self.node.at, &self.path, value, number.expected, number.rule);
        // After the shortened value, so that it is seen.
        fault.value.push_str(why);
        self.found.borrow_mut().push(fault);
        None
    }

    pub(super) fn flag(&self, rule: &'static str) -> Option<bool> {
        match &self.node.kind {
            Kind::Scalar { text, is_plain: true } if text == "true" => Some(true),
            Kind::Scalar { text, is_plain: true } if text == "false" => Some(false),
            _ => self.wrong("true or false", rule),
        }
    }

    /// Text of one line for people.
    pub(super) fn text(&self, chars_max: usize) -> Option<String> {
        if let Kind::Scalar { text, is_plain } = &self.node.kind {
            let is_other = *is_plain
                && (self.node.is_nothing()
                    || matches!(text.as_str(), "true" | "false")
                    || text.parse::<f64>().is_ok()
                    || crate::units::integer(text).is_ok());
            let text = text.trim();
            let is_shown = !text.is_empty() && !text.chars().any(char::is_control);
            if !is_other && is_shown && text.chars().count() <= chars_max {
                return Some(text.to_owned());
            }
        }
        self.wrong(format!("text of 1 to {chars_max} characters without line breaks"), FORMAT)
    }

    /// The items of a list of `what`.
    pub(super) fn items(&self, what: &str) -> Option<Vec<Leaf<'a>>> {
        let Kind::List(items) = &self.node.kind else {
            return self.wrong(format!("a list of {what}"), FORMAT);
        };
        let leaf = |(index, node)| Leaf { node, path: format!("{}[{index}]", self.path), found: self.found };
        Some(items.iter().enumerate().map(leaf).collect())
    }
}

impl<'a> Fields<'a> {
    pub(super) fn get(&self, leaf: &str) -> Option<Leaf<'a>> {
        let (_, node) = self.fields.iter().find(|(known, _)| *known == leaf)?;
        Some(Leaf { node, path: join(&self.mapping.path, leaf), found: self.mapping.found })
    }

    /// The field, or a fault that it is missing.
    pub(super) fn required(&self, leaf: &str, expected: &str, rule: &'static str) -> Option<Leaf<'a>> {
        let found = self.get(leaf);
        if found.is_none() {
            let Leaf { node, path, .. } = &self.mapping;
            self.mapping.fault_at(node.at, &join(path, leaf), "nothing", expected, rule);
        }
        found
    }

    /// A number, if the field is there.
    pub(super) fn number<T: TryFrom<i128>>(&self, leaf: &str, number: &Number) -> Option<T> {
        self.get(leaf)?.number(number)
    }

    /// A number; a missing field is a fault.
    pub(super) fn required_number<T: TryFrom<i128>>(&self, leaf: &str, number: &Number) -> Option<T> {
        self.required(leaf, number.expected, number.rule)?.number(number)
    }

    /// Text for people, if the field is there.
    pub(super) fn text(&self, leaf: &str, chars_max: usize) -> Option<String> {
        self.get(leaf)?.text(chars_max)
    }

    /// Where the field stands, or the mapping where it is missing.
    pub(super) fn place(&self, leaf: &str) -> Position {
        self.get(leaf).map_or(self.mapping.node.at, |leaf| leaf.node.at)
    }

    /// Adds faults that were found elsewhere.
    pub(super) fn extend(&self, faults: Vec<Fault>) {
        self.mapping.found.borrow_mut().extend(faults);
    }

    /// A fault in a field, which may be missing.
    pub(super) fn fault(
        &self,
        leaf: &str,
        value: impl Display,
        expected: impl Into<String>,
        rule: &'static str,
    ) {
        self.mapping.fault_at(self.place(leaf), &join(&self.mapping.path, leaf), value, expected, rule);
    }
}

/// What is said about an unknown leaf: the likely one, and all.
fn unknown(word: &str, known: &[&'static str]) -> String {
    let all = known.join(", ");
    // Leaves are short, so a longer word is far away from each.
    let word: String = word.chars().take(40).collect();
    let near = known.iter().map(|leaf| (strsim::levenshtein(&word, leaf), leaf)).min();
    match near {
        Some((steps, leaf)) if steps <= leaf.len() / 3 => format!("{leaf}? (known here: {all})"),
        _ => format!("one of {all}"),
    }
}
