// SPDX-License-Identifier: Apache-2.0
//! A YAML or JSON text as a small tree. In: text. Out: a [`Node`], or the fault that ended the reading. Reading stops at the first event
//! beyond a limit, and anchors, aliases and tags are refused: a hostile text costs no more than its length.

use super::WrongRequirement;
use saphyr_parser::{Event, Parser, StrInput};

/// Most keys and values.
const NODES_MAX: usize = 10_000;
/// Deepest nesting.
const DEPTH_MAX: usize = 8;
const ALONE: &str = "the value alone: anchors, aliases and tags are not read here";

/// A value and the line it begins in.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) line: usize,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Scalar(String),
    List(Vec<Node>),
    Map(Vec<(String, Node)>),
}

impl Node {
    /// The value as a fault repeats it.
    pub(super) fn shown(&self) -> String {
        match &self.kind {
            Kind::Scalar(text) if text.is_empty() => "nothing".to_owned(),
            Kind::Scalar(text) => {
                format!("`{}`", printable(&text.chars().take(60).collect::<String>()))
            }
            Kind::List(items) => format!("a list of {}", items.len()),
            Kind::Map(fields) => format!("a mapping of {}", fields.len()),
        }
    }

    pub(super) fn text(&self) -> Option<&str> {
        if let Kind::Scalar(text) = &self.kind { Some(text) } else { None }
    }

    pub(super) fn items(&self) -> Option<&[Node]> {
        if let Kind::List(items) = &self.kind { Some(items) } else { None }
    }

    pub(super) fn fields(&self) -> Option<&[(String, Node)]> {
        if let Kind::Map(fields) = &self.kind { Some(fields) } else { None }
    }
}

/// A text without what would control the reader's terminal.
pub(super) fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

fn fault(line: usize, found: impl Into<String>, expected: &str) -> WrongRequirement {
    WrongRequirement {
        line,
        field: "(the file)".to_owned(),
        found: found.into(),
        expected: expected.to_owned(),
    }
}

/// The text's one document.
pub(super) fn parse(text: &str) -> Result<Node, WrongRequirement> {
    let mut events =
        Events { parser: Parser::new_from_str(text.strip_prefix('\u{feff}').unwrap_or(text)), nodes: 0 };
    let mut root = None;
    while let Some((event, line)) = events.next()? {
        match event {
            Event::DocumentStart(_) if root.is_some() => {
                return Err(fault(line, "a second document", "one document in a file"));
            }
            Event::DocumentStart(_)
            | Event::DocumentEnd
            | Event::StreamStart
            | Event::StreamEnd
            | Event::Nothing => {}
            event => root = Some(events.node(event, line, 0)?),
        }
    }
    root.ok_or_else(|| fault(1, "nothing", "a mapping with the one key `requirements`"))
}

struct Events<'t> {
    parser: Parser<'t, StrInput<'t>>,
    nodes: usize,
}

impl<'t> Events<'t> {
    fn next(&mut self) -> Result<Option<(Event<'t>, usize)>, WrongRequirement> {
        match self.parser.next() {
            None => Ok(None),
            Some(Ok((event, span))) => Ok(Some((event, span.start.line().max(1)))),
            Some(Err(error)) => Err(fault(
                error.marker().line().max(1),
                format!("no YAML ({})", printable(error.info())),
                "YAML 1.2 or JSON",
            )),
        }
    }

    fn node(&mut self, event: Event<'_>, line: usize, depth: usize) -> Result<Node, WrongRequirement> {
        self.nodes += 1;
        if self.nodes > NODES_MAX || depth > DEPTH_MAX {
            return Err(fault(
                line,
                "too much",
                &format!("at most {NODES_MAX} values, {DEPTH_MAX} levels deep"),
            ));
        }
        let refuse = |anchor: usize, is_tagged: bool| match (anchor, is_tagged) {
            (0, false) => Ok(()),
            _ => Err(fault(line, "an anchor or a tag", ALONE)),
        };
        let kind = match event {
            Event::Scalar(text, _, anchor, tag) => {
                refuse(anchor, tag.is_some())?;
                Kind::Scalar(text.into_owned())
            }
            Event::SequenceStart(anchor, tag) => {
                refuse(anchor, tag.is_some())?;
                let mut items = Vec::new();
                while let Some(item) = self.inner(depth)? {
                    items.push(item);
                }
                Kind::List(items)
            }
            Event::MappingStart(anchor, tag) => {
                refuse(anchor, tag.is_some())?;
                let mut fields = Vec::new();
                while let Some(key) = self.inner(depth)? {
                    let Kind::Scalar(text) = key.kind else {
                        return Err(fault(key.line, "a list or mapping as a key", "a word"));
                    };
                    if let Some(value) = self.inner(depth)? {
                        fields.push((text, value));
                    }
                }
                Kind::Map(fields)
            }
            _ => return Err(fault(line, "an alias", ALONE)),
        };
        Ok(Node { line, kind })
    }

    /// The next value of a list or mapping; `None` at its end.
    fn inner(&mut self, depth: usize) -> Result<Option<Node>, WrongRequirement> {
        match self.next()? {
            None | Some((Event::SequenceEnd | Event::MappingEnd, _)) => Ok(None),
            Some((event, line)) => self.node(event, line, depth + 1).map(Some),
        }
    }
}
