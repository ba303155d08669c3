// SPDX-License-Identifier: Apache-2.0
//! A template's text as nodes. In: text. Out: nodes and the definitions in it, or the line of the first fault.

use std::collections::BTreeMap;

/// Commands, each with the value of the one before as its last argument.
pub(super) type Pipeline = Vec<Vec<Term>>;

#[derive(Clone, Debug)]
pub(super) enum Node {
    Text(String),
    Show(Pipeline),
    If(Vec<(Pipeline, Vec<Node>)>, Vec<Node>),
    With(Pipeline, Vec<Node>, Vec<Node>),
    Range(Pipeline, Vec<Node>),
}

#[derive(Clone, Debug)]
pub(super) enum Term {
    Text(String),
    Number(i64),
    Field { of_root: bool, path: Vec<String> },
    Function(String),
    Inner(Pipeline),
}

/// Text or the inside of `{{ }}`, with its line.
enum Piece {
    Text(String),
    Action(String, usize),
}

/// Nodes of a text; its definitions go into `named`.
pub(super) fn parse(text: &str, named: &mut BTreeMap<String, Vec<Node>>) -> Result<Vec<Node>, String> {
    let mut parser = Parser { pieces: pieces(text)?.into_iter(), named };
    let (nodes, end) = parser.body()?;
    match end {
        None => Ok(nodes),
        Some((word, _, line)) => Err(format!("line {line}: found {word} without a beginning")),
    }
}

/// Cuts a text at its actions and takes the white space that they ask to take.
fn pieces(text: &str) -> Result<Vec<Piece>, String> {
    let mut found = Vec::new();
    let (mut rest, mut line, mut trims) = (text, 1, false);
    loop {
        let Some(begin) = rest.find("{{") else {
            found.push(Piece::Text(if trims { rest.trim_start() } else { rest }.to_owned()));
            return Ok(found);
        };
        let (before, action) = (&rest[..begin], &rest[begin + 2..]);
        line += before.matches('\n').count();
        let before = if trims { before.trim_start() } else { before };
        let takes_before = action.starts_with("- ") || action.starts_with("-\n");
        found.push(Piece::Text(if takes_before { before.trim_end() } else { before }.to_owned()));
        let end = action.find("}}").ok_or(format!("line {line}: found {{{{ without }}}}"))?;
        let inside = &action[usize::from(takes_before)..end];
        trims = inside.ends_with(" -");
        let inside = if trims { &inside[..inside.len() - 1] } else { inside }.trim();
        if !(inside.starts_with("/*") && inside.ends_with("*/")) {
            found.push(Piece::Action(inside.to_owned(), line));
        }
        line += action[..end].matches('\n').count();
        rest = &action[end + 2..];
    }
}

/// The word that ended a body, what came after it, and its line.
type End = Option<(String, String, usize)>;

struct Parser<'n> {
    pieces: std::vec::IntoIter<Piece>,
    named: &'n mut BTreeMap<String, Vec<Node>>,
}

impl Parser<'_> {
    /// Nodes up to `end` or `else`.
    fn body(&mut self) -> Result<(Vec<Node>, End), String> {
        let mut nodes = Vec::new();
        while let Some(piece) = self.pieces.next() {
            let (action, line) = match piece {
                Piece::Text(text) => {
                    nodes.push(Node::Text(text));
                    continue;
                }
                Piece::Action(action, line) => (action, line),
            };
            let (word, rest) = action.split_once(char::is_whitespace).unwrap_or((&action, ""));
            let at = |fault: String| {
                if fault.starts_with("line ") { fault } else { format!("line {line}: {fault}") }
            };
            match word {
                "end" | "else" => return Ok((nodes, Some((word.to_owned(), rest.trim().to_owned(), line)))),
                "if" => nodes.push(self.choice(rest).map_err(at)?),
                "with" | "range" => {
                    let pipeline = pipeline(rest).map_err(at)?;
                    let (body, end) = self.body()?;
                    let otherwise = self.rest_of(end, word).map_err(at)?;
                    nodes.push(match word {
                        "with" => Node::With(pipeline, body, otherwise),
                        _ if otherwise.is_empty() => Node::Range(pipeline, body),
                        _ => return Err(at("range with else is not known".to_owned())),
                    });
                }
                "define" => {
                    let (body, end) = self.body()?;
                    self.rest_of(end, word).map_err(at)?;
                    self.named.insert(rest.trim().trim_matches('"').to_owned(), body);
                }
                "block" | "template" | "break" | "continue" => {
                    return Err(at(format!("{word} is not known")));
                }
                _ => nodes.push(Node::Show(pipeline(&action).map_err(at)?)),
            }
        }
        Ok((nodes, None))
    }

    fn choice(&mut self, condition: &str) -> Result<Node, String> {
        let mut branches = Vec::new();
        let mut condition = pipeline(condition)?;
        loop {
            let (body, end) = self.body()?;
            branches.push((condition, body));
            match end {
                Some((word, rest, _)) if word == "else" && rest.starts_with("if ") => {
                    condition = pipeline(&rest[3..])?;
                }
                end => return Ok(Node::If(branches, self.rest_of(end, "if")?)),
            }
        }
    }

    /// What stands after `else`, if the body ended there; nothing after `end`.
    fn rest_of(&mut self, end: End, word: &str) -> Result<Vec<Node>, String> {
        match end {
            Some((ended, rest, _)) if ended == "else" && rest.is_empty() => match self.body()? {
                (body, Some((ended, _, _))) if ended == "end" => Ok(body),
                _ => Err(format!("{word}: found no end after else")),
            },
            Some((ended, _, _)) if ended == "end" => Ok(Vec::new()),
            _ => Err(format!("{word}: found no end")),
        }
    }
}

/// The words of an action; parentheses are words too.
fn words(action: &str) -> Result<Vec<String>, String> {
    let mut found = Vec::new();
    let mut rest = action.trim_start();
    while let Some(first) = rest.chars().next() {
        let length = match first {
            '"' => rest[1..].find('"').ok_or("found no closing quote")? + 2,
            '(' | ')' | '|' => 1,
            _ => rest.find(|c: char| c.is_whitespace() || "()|\"".contains(c)).unwrap_or(rest.len()),
        };
        found.push(rest[..length].to_owned());
        rest = rest[length..].trim_start();
    }
    Ok(found)
}

fn pipeline(action: &str) -> Result<Pipeline, String> {
    let words = words(action)?;
    let mut at = 0;
    let pipeline = commands(&words, &mut at)?;
    if at < words.len() { Err("found a ) without its (".to_owned()) } else { Ok(pipeline) }
}

fn commands(words: &[String], at: &mut usize) -> Result<Pipeline, String> {
    let mut found = vec![Vec::new()];
    while let Some(word) = words.get(*at).filter(|word| *word != ")") {
        *at += 1;
        if word == "|" {
            found.push(Vec::new());
            continue;
        }
        let term = if word == "(" {
            let inner = commands(words, at)?;
            if words.get(*at).is_none() {
                return Err("found a ( without its )".to_owned());
            }
            *at += 1;
            Term::Inner(inner)
        } else {
            term(word)?
        };
        if let Some(last) = found.last_mut() {
            last.push(term);
        }
    }
    Ok(found)
}

fn term(word: &str) -> Result<Term, String> {
    if let Some(text) = word.strip_prefix('"') {
        let text = text.trim_end_matches('"');
        return if text.contains('\\') {
            Err(format!("{word}: escapes are not known"))
        } else {
            Ok(Term::Text(text.to_owned()))
        };
    }
    if let Ok(number) = word.parse() {
        return Ok(Term::Number(number));
    }
    let (of_root, path) = match word.strip_prefix('$') {
        Some(path) => (true, path),
        None => (false, word),
    };
    if of_root || path.starts_with('.') {
        if !path.is_empty() && !path.starts_with('.') {
            return Err(format!("{word}: variables are not known"));
        }
        let path = path.split('.').filter(|name| !name.is_empty()).map(str::to_owned).collect();
        return Ok(Term::Field { of_root, path });
    }
    if word.chars().all(|c| c.is_ascii_alphanumeric()) {
        return Ok(Term::Function(word.to_owned()));
    }
    Err(format!("{word} is not understood"))
}
