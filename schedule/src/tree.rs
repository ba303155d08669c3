// SPDX-License-Identifier: Apache-2.0
//! A YAML or JSON text as a tree. Every key and value knows its place.
//!
//! In: text. Out: one [`Node`], or the fault that ended the reading. It takes events one by one and stops at the first
//! one beyond a limit, so the size of a hostile text does not matter. Anchors, aliases and tags are refused: a schedule
//! needs none, and an alias makes a short text long.

use saphyr_parser::{Event, Marker, Parser, ScalarStyle, StrInput};

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

/// The text's one document.
///
/// # Errors
/// The fault at which reading ended: a text that is no YAML has no places beyond it.
pub(crate) fn parse(text: &str) -> Result<Node, Fault> {
    // A byte order mark is no part of the document.
    let mut events = Events {
        parser: Parser::new_from_str(text.strip_prefix('\u{feff}').unwrap_or(text)),
        nodes_count: 0,
    };
    let mut root = None;
    while let Some((event, at)) = events.next()? {
        match event {
            Event::DocumentStart(_) if root.is_some() => {
                return Err(Fault::new(at, "", "a second document", "one schedule in a file", FORMAT));
            }
            Event::DocumentStart(_)
            | Event::DocumentEnd
            | Event::StreamStart
            | Event::StreamEnd
            | Event::Nothing => {}
            event => root = Some(events.node(event, at, 0)?),
        }
    }
    root.ok_or_else(|| Fault::new(Position::START, "", "nothing", "a schedule", FORMAT))
}

struct Events<'t> {
    parser: Parser<'t, StrInput<'t>>,
    nodes_count: usize,
}

impl<'t> Events<'t> {
    fn next(&mut self) -> Result<Option<(Event<'t>, Position)>, Fault> {
        let place = |mark: &Marker| Position { line: mark.line().max(1), column: mark.col() + 1 };
        match self.parser.next() {
            None => Ok(None),
            Some(Ok((event, span))) => Ok(Some((event, place(&span.start)))),
            Some(Err(error)) => Err(syntax(place(error.marker()), error.info(), "YAML", YAML)),
        }
    }

    /// The value that begins with `event`, inside of `depth` lists and mappings.
    fn node(&mut self, event: Event<'_>, at: Position, depth: usize) -> Result<Node, Fault> {
        let kind = match event {
            Event::Scalar(text, style, anchor, tag) => {
                plain(at, anchor, tag.is_some())?;
                Kind::Scalar { text: text.into_owned(), is_plain: style == ScalarStyle::Plain }
            }
            Event::SequenceStart(anchor, tag) => {
                plain(at, anchor, tag.is_some())?;
                let mut items = Vec::new();
                while let Some(item) = self.inner(at, depth)? {
                    items.push(item);
                }
                Kind::List(items)
            }
            Event::MappingStart(anchor, tag) => {
                plain(at, anchor, tag.is_some())?;
                let mut fields = Vec::new();
                while let Some(key) = self.inner(at, depth)? {
                    let Kind::Scalar { text, .. } = key.kind else {
                        return Err(Fault::new(key.at, "", "a list or mapping as a key", "a word", FORMAT));
                    };
                    if let Some(value) = self.inner(at, depth)? {
                        fields.push((Key { at: key.at, text }, value));
                    }
                }
                Kind::Map(fields)
            }
            // A value is a scalar, a list, a mapping or an alias.
            _ => {
                let expected = "the value itself: aliases are not read here";
                return Err(Fault::new(at, "", "an alias", expected, FORMAT));
            }
        };
        self.nodes_count += 1;
        if self.nodes_count > NODES_MAX {
            let expected = format!("at most {NODES_MAX} keys and values");
            return Err(Fault::new(at, "", "one more", expected, RULE));
        }
        Ok(Node { at, kind })
    }

    /// The next value of the list or mapping that began at `at`; `None` at its end.
    fn inner(&mut self, at: Position, depth: usize) -> Result<Option<Node>, Fault> {
        if depth >= DEPTH_MAX {
            let expected = format!("at most {DEPTH_MAX} lists and mappings inside each other");
            return Err(Fault::new(at, "", "one more", expected, RULE));
        }
        match self.next()? {
            None | Some((Event::SequenceEnd | Event::MappingEnd, _)) => Ok(None),
            Some((event, at)) => self.node(event, at, depth + 1).map(Some),
        }
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
