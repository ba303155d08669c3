// SPDX-License-Identifier: Apache-2.0
//! A YAML or JSON text as a tree whose every key and value knows its place.
//!
//! In: text. Out: one [`Node`], or the fault that ended the reading. It takes events one by one and stops at the first
//! one beyond a limit, so the size of a hostile text does not matter. Anchors, aliases and tags are refused: a schedule
//! needs none, and an alias makes a short text long.

use saphyr_parser::{Event, Parser, ScalarStyle, Span};

use crate::fault::{Fault, Position, syntax};
use crate::limits::{DEPTH_MAX, NODES_MAX, RULE};

const YAML: &str = "YAML 1.2";
const FORMAT: &str = "KTSN schedule format";

/// A value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Node {
    pub(crate) at: Position,
    pub(crate) kind: Kind,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Scalar { text: String, is_plain: bool },
    List(Vec<Node>),
    Map(Vec<(Key, Node)>),
}

/// A mapping's key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    pub(crate) at: Position,
    pub(crate) text: String,
}

impl Node {
    /// The value as a fault repeats it.
    pub(crate) fn shown(&self) -> String {
        match &self.kind {
            Kind::Scalar { text, is_plain: true } if text.is_empty() => "nothing".into(),
            Kind::Scalar { text, is_plain: true } => text.clone(),
            Kind::Scalar { text, .. } => format!("\"{text}\""),
            Kind::List(items) => format!("a list of {}", items.len()),
            Kind::Map(fields) => format!("a mapping of {}", fields.len()),
        }
    }

    /// Whether nothing was written (`key:` or `null`).
    pub(crate) fn is_nothing(&self) -> bool {
        matches!(&self.kind, Kind::Scalar { text, is_plain: true } if matches!(text.as_str(), "" | "~" | "null"))
    }
}

/// What is being built: a list, or a mapping with the key whose value comes next.
enum Open {
    List(Position, Vec<Node>),
    Map(Position, Vec<(Key, Node)>, Option<Key>),
}

/// The text's one document.
///
/// # Errors
/// The fault at which reading ended: a text that is no YAML has no places beyond it.
pub(crate) fn parse(text: &str) -> Result<Node, Fault> {
    let mut builder = Builder { open: Vec::new(), root: None, nodes_count: 0 };
    // A byte order mark is no part of the document.
    for event in Parser::new_from_str(text.strip_prefix('\u{feff}').unwrap_or(text)) {
        match event {
            Ok((event, span)) => builder.take(event, position(&span))?,
            Err(error) => {
                let mark = error.marker();
                let at = Position { line: mark.line().max(1), column: mark.col() + 1 };
                return Err(syntax(at, error.info(), "YAML", YAML));
            }
        }
    }
    builder.root.ok_or_else(|| Fault::new(Position::START, "", "nothing", "a schedule", FORMAT))
}

fn position(span: &Span) -> Position {
    Position { line: span.start.line().max(1), column: span.start.col() + 1 }
}

struct Builder {
    open: Vec<Open>,
    root: Option<Node>,
    nodes_count: usize,
}

impl Builder {
    fn take(&mut self, event: Event<'_>, at: Position) -> Result<(), Fault> {
        match event {
            Event::Scalar(text, style, anchor, tag) => {
                plain(at, anchor, tag.is_some())?;
                let is_plain = style == ScalarStyle::Plain;
                self.value(Node { at, kind: Kind::Scalar { text: text.into_owned(), is_plain } })
            }
            Event::SequenceStart(anchor, tag) => {
                plain(at, anchor, tag.is_some())?;
                self.enter(Open::List(at, Vec::new()), at)
            }
            Event::MappingStart(anchor, tag) => {
                plain(at, anchor, tag.is_some())?;
                self.enter(Open::Map(at, Vec::new(), None), at)
            }
            Event::SequenceEnd | Event::MappingEnd => match self.open.pop() {
                Some(Open::List(at, items)) => self.value(Node { at, kind: Kind::List(items) }),
                Some(Open::Map(at, fields, _)) => self.value(Node { at, kind: Kind::Map(fields) }),
                None => Ok(()),
            },
            Event::Alias(_) => {
                Err(Fault::new(at, "", "an alias", "the value itself: aliases are not read here", FORMAT))
            }
            Event::DocumentStart(_) if self.root.is_some() => {
                Err(Fault::new(at, "", "a second document", "one schedule in a file", FORMAT))
            }
            Event::DocumentStart(_)
            | Event::DocumentEnd
            | Event::StreamStart
            | Event::StreamEnd
            | Event::Nothing => Ok(()),
        }
    }

    fn enter(&mut self, open: Open, at: Position) -> Result<(), Fault> {
        if self.open.len() >= DEPTH_MAX {
            let expected = format!("at most {DEPTH_MAX} lists and mappings inside each other");
            return Err(Fault::new(at, "", "one more", expected, RULE));
        }
        self.open.push(open);
        Ok(())
    }

    fn value(&mut self, node: Node) -> Result<(), Fault> {
        self.nodes_count += 1;
        if self.nodes_count > NODES_MAX {
            let expected = format!("at most {NODES_MAX} keys and values");
            return Err(Fault::new(node.at, "", "one more", expected, RULE));
        }
        match self.open.last_mut() {
            None => self.root = Some(node),
            Some(Open::List(_, items)) => items.push(node),
            Some(Open::Map(_, fields, key)) => match (key.take(), node.kind) {
                (Some(key), kind) => fields.push((key, Node { at: node.at, kind })),
                (None, Kind::Scalar { text, .. }) => *key = Some(Key { at: node.at, text }),
                (None, _) => {
                    return Err(Fault::new(node.at, "", "a list or mapping as a key", "a word", FORMAT));
                }
            },
        }
        Ok(())
    }
}

/// Refuses anchors and tags.
fn plain(at: Position, anchor: usize, is_tagged: bool) -> Result<(), Fault> {
    if anchor > 0 {
        return Err(Fault::new(at, "", "an anchor", "the value alone: aliases are not read here", FORMAT));
    }
    if is_tagged {
        return Err(Fault::new(at, "", "a tag", "the value alone: its leaf has a type", FORMAT));
    }
    Ok(())
}
