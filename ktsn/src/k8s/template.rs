// SPDX-License-Identifier: Apache-2.0
//! The part of Go's templates that the chart is written in.
//!
//! In: a template's text, and what it may ask for. Out: the text that Helm would make of it. A function or an action that is not known
//! here is an error with its name: the chart's own tests find it.

mod parse;

use std::collections::BTreeMap;

use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::yaml;
use parse::{Node, Pipeline, Term};

/// All templates of a chart.
pub(crate) struct Templates {
    /// Name of the file or of the definition, and its content.
    named: BTreeMap<String, Vec<Node>>,
    /// What `.Files.Get` finds.
    files: BTreeMap<String, String>,
}

impl Templates {
    /// Reads the templates `(name, text)`.
    ///
    /// # Errors
    /// The file, the line, and what is not understood there.
    pub(crate) fn new(texts: &[(String, &str)], files: BTreeMap<String, String>) -> Result<Self, String> {
        let mut named = BTreeMap::new();
        for (name, text) in texts {
            let body = parse::parse(text, &mut named).map_err(|fault| format!("{name}: {fault}"))?;
            named.insert(name.clone(), body);
        }
        Ok(Self { named, files })
    }

    /// The text of the template of that name. `root` is `$` and `.`.
    ///
    /// # Errors
    /// The template's name, and what it asked for.
    pub(crate) fn render(&self, name: &str, root: &Value) -> Result<String, String> {
        let body = self.named.get(name).ok_or_else(|| format!("no template is called {name}"))?;
        let mut out = String::new();
        let scope = Scope { templates: self, root, dot: root };
        scope.nodes(body, &mut out).map_err(|fault| format!("{name}: {fault}"))?;
        Ok(out)
    }
}

#[derive(Clone, Copy)]
struct Scope<'s> {
    templates: &'s Templates,
    root: &'s Value,
    dot: &'s Value,
}

impl Scope<'_> {
    fn nodes(&self, nodes: &[Node], out: &mut String) -> Result<(), String> {
        for node in nodes {
            match node {
                Node::Text(text) => out.push_str(text),
                Node::Show(pipeline) => out.push_str(&shown(&self.pipeline(pipeline)?)),
                Node::If(branches, otherwise) => {
                    let mut chosen = otherwise;
                    for (condition, body) in branches {
                        if is_true(&self.pipeline(condition)?) {
                            chosen = body;
                            break;
                        }
                    }
                    self.nodes(chosen, out)?;
                }
                Node::With(pipeline, body, otherwise) => match self.pipeline(pipeline)? {
                    dot if is_true(&dot) => Scope { dot: &dot, ..*self }.nodes(body, out)?,
                    _ => self.nodes(otherwise, out)?,
                },
                Node::Range(pipeline, body) => {
                    let Value::Array(items) = self.pipeline(pipeline)? else {
                        return Err("range: expected a list".to_owned());
                    };
                    for dot in &items {
                        Scope { dot, ..*self }.nodes(body, out)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn pipeline(&self, pipeline: &Pipeline) -> Result<Value, String> {
        let mut value = None;
        for command in pipeline {
            value = Some(self.command(command, value)?);
        }
        value.ok_or_else(|| "an empty action".to_owned())
    }

    /// A command's value; `piped` is its last argument.
    fn command(&self, terms: &[Term], piped: Option<Value>) -> Result<Value, String> {
        let (first, rest) = terms.split_first().ok_or("an empty command")?;
        let mut arguments = rest.iter().map(|term| self.term(term)).collect::<Result<Vec<_>, _>>()?;
        arguments.extend(piped);
        match first {
            Term::Function(name) => self.call(name, &arguments),
            Term::Field { path, .. } if path.ends_with(&["Get".to_owned()]) && path[0] == "Files" => {
                let name = text(arguments.first(), "Files.Get")?;
                let file =
                    self.templates.files.get(name).ok_or_else(|| format!("the chart has no file {name}"))?;
                Ok(Value::String(file.clone()))
            }
            Term::Field { path, .. } if path.ends_with(&["APIVersions".to_owned(), "Has".to_owned()]) => {
                let asked = text(arguments.first(), "APIVersions.Has")?;
                let known = &self.root["Capabilities"]["APIVersions"];
                Ok(Value::Bool(known.as_array().is_some_and(|known| known.iter().any(|one| one == asked))))
            }
            term if arguments.is_empty() => self.term(term),
            _ => Err("arguments after a value".to_owned()),
        }
    }

    fn term(&self, term: &Term) -> Result<Value, String> {
        match term {
            Term::Text(text) => Ok(Value::String(text.clone())),
            Term::Number(number) => Ok(Value::from(*number)),
            Term::Inner(pipeline) => self.pipeline(pipeline),
            Term::Function(name) => self.call(name, &[]),
            Term::Field { of_root, path } => {
                let mut at = if *of_root { self.root } else { self.dot };
                for name in path {
                    at = at.get(name).ok_or_else(|| format!("no value is called .{}", path.join(".")))?;
                }
                Ok(at.clone())
            }
        }
    }

    fn call(&self, name: &str, arguments: &[Value]) -> Result<Value, String> {
        let first = arguments.first();
        let last = arguments.last();
        let made = match (name, arguments.len()) {
            ("include", 2) => {
                let dot = &arguments[1];
                self.templates.render(text(first, name)?, dot)?
            }
            ("nindent", 2) => format!("\n{}", indented(arguments, name)?),
            ("indent", 2) => indented(arguments, name)?,
            ("toYaml", 1) => yaml::write(&arguments[0])?,
            ("quote", 1) => quoted(&shown(&arguments[0])),
            ("trim", 1) => text(last, name)?.trim().to_owned(),
            ("print", _) => arguments.iter().map(shown).collect(),
            ("sha256sum", 1) => hex(&Sha256::digest(text(last, name)?)),
            ("int" | "int64", 1) => return integer(&arguments[0]),
            ("not", 1) => return Ok(Value::Bool(!is_true(&arguments[0]))),
            ("eq", 2) => return Ok(Value::Bool(arguments[0] == arguments[1])),
            ("ne", 2) => return Ok(Value::Bool(arguments[0] != arguments[1])),
            ("and", 1..) => {
                return Ok(arguments.iter().find(|one| !is_true(one)).or(last).cloned().unwrap_or_default());
            }
            ("or", 1..) => {
                return Ok(arguments.iter().find(|one| is_true(one)).or(last).cloned().unwrap_or_default());
            }
            ("default", 2) => {
                return Ok(if is_true(&arguments[1]) { arguments[1].clone() } else { arguments[0].clone() });
            }
            _ => return Err(format!("no function is called {name} with {} arguments", arguments.len())),
        };
        Ok(Value::String(made))
    }
}

fn text<'v>(value: Option<&'v Value>, function: &str) -> Result<&'v str, String> {
    value.and_then(Value::as_str).ok_or_else(|| format!("{function}: expected a text"))
}

fn indented(arguments: &[Value], function: &str) -> Result<String, String> {
    let columns = arguments[0].as_u64().and_then(|columns| usize::try_from(columns).ok());
    let pad = " ".repeat(columns.ok_or_else(|| format!("{function}: expected a number of columns"))?);
    Ok(format!("{pad}{}", text(arguments.last(), function)?.replace('\n', &format!("\n{pad}"))))
}

fn integer(value: &Value) -> Result<Value, String> {
    match value {
        Value::Number(number) => Ok(Value::Number(
            number.as_i64().or_else(|| number.as_f64().map(|real| real as i64)).unwrap_or(0).into(),
        )),
        Value::String(digits) => {
            digits.parse::<i64>().map(Value::from).map_err(|_| format!("int: found {digits:?}"))
        }
        other => Err(format!("int: found {other}")),
    }
}

/// As Go's `if` sees it.
fn is_true(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(is) => *is,
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::String(text) => !text.is_empty(),
        Value::Array(items) => !items.is_empty(),
        Value::Object(fields) => !fields.is_empty(),
    }
}

/// A value as Go prints it. Helm's numbers are float64: from 21 digits on, or seven that are no round number, Go would write an exponent.
fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

fn quoted(text: &str) -> String {
    let inner: String = text
        .chars()
        .map(|c| match c {
            '"' => "\\\"".to_owned(),
            '\\' => "\\\\".to_owned(),
            '\n' => "\\n".to_owned(),
            '\t' => "\\t".to_owned(),
            c => c.to_string(),
        })
        .collect();
    format!("\"{inner}\"")
}

fn hex(octets: &[u8]) -> String {
    octets.iter().map(|octet| format!("{octet:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn render(text: &str) -> Result<String, String> {
        let templates = Templates::new(
            &[("t".to_owned(), text)],
            BTreeMap::from([("a.json".to_owned(), "{}".to_owned())]),
        )?;
        templates.render("t", &json!({"Values": {"s": "x", "n": 3, "none": "", "list": ["a", "b"]}, "Capabilities": {"APIVersions": ["v1"]}}))
    }

    #[test]
    fn actions_make_what_helm_makes() {
        for (text, expected) in [
            ("a\n  {{- /* said */ -}}\n  b", "ab"),
            ("{{ .Values.s | quote }} {{ $.Values.n }}", "\"x\" 3"),
            ("{{- if .Values.none }}1{{ else if eq .Values.s \"x\" }}2{{ else }}3{{ end }}", "2"),
            (
                "{{ with .Values.s }}<{{ . }}>{{ end }}{{ with .Values.none }}no{{ else }}yes{{ end }}",
                "<x>yes",
            ),
            ("{{ define \"d\" }}[{{ .Values.s }}]{{ end }}{{ include \"d\" . | nindent 2 }}", "\n  [x]"),
            ("{{ range .Values.list }}{{ . }};{{ end }}", "a;b;"),
            ("{{ toYaml .Values.list | indent 1 }}", " - a\n - b"),
            ("{{ .Files.Get \"a.json\" }}{{ if .Capabilities.APIVersions.Has \"v1\" }}v1{{ end }}", "{}v1"),
            (
                "{{ print .Values.s \"/y\" | trim }}{{ int .Values.n }}{{ default \"d\" .Values.none }}",
                "x/y3d",
            ),
        ] {
            assert_eq!(render(text).as_deref(), Ok(expected), "{text}");
        }
    }

    #[test]
    fn what_is_not_known_is_named() {
        for (text, word) in [
            ("\n\n{{ tpl .Values.s . }}", "tpl"),
            ("{{ .Values.other }}", ".Values.other"),
            ("{{ if .Values.s }}", "end"),
            ("{{ end }}", "end"),
            ("x {{ .Values.s ", "}}"),
            ("{{ block \"x\" . }}{{ end }}", "block"),
            ("{{ \"a }}", "quote"),
            ("{{ include \"none\" . }}", "none"),
            ("{{ .Files.Get \"b\" }}", "b"),
        ] {
            let fault = render(text).unwrap_err();
            assert!(fault.contains(word), "{text}: {fault}");
        }
    }
}
