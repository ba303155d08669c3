// SPDX-License-Identifier: Apache-2.0
//! YAML as JSON values, and JSON values as YAML.
//!
//! In: text of one or more documents. Out: their values, as Helm reads them; or a value as Helm's `toYaml` writes it, octet for octet.
//! Tags are refused. Aliases are replaced by what they name, up to a number of values: they make a short text long.

use std::collections::BTreeMap;

use saphyr_parser::{Event, Parser, ScalarStyle, StrInput};
use serde_json::{Map, Number, Value};

/// Deepest nesting.
const DEPTH_MAX: usize = 64;
/// Most values of a text, those of aliases counted each time.
const VALUES_MAX: usize = 100_000;

/// All documents of a text that hold something.
///
/// # Errors
/// The line, and what is wrong there.
pub(crate) fn read(text: &str) -> Result<Vec<Value>, String> {
    let mut reader = Reader { parser: Parser::new_from_str(text), anchors: BTreeMap::new(), values: 0 };
    let mut found = Vec::new();
    while let Some((event, line)) = reader.next()? {
        match event {
            Event::StreamStart
            | Event::StreamEnd
            | Event::DocumentStart(_)
            | Event::DocumentEnd
            | Event::Nothing => {}
            event => found.push(reader.value(event, line, 0)?),
        }
    }
    found.retain(|value| !value.is_null());
    Ok(found)
}

struct Reader<'t> {
    parser: Parser<'t, StrInput<'t>>,
    anchors: BTreeMap<usize, Value>,
    /// How many values were read.
    values: usize,
}

impl<'t> Reader<'t> {
    fn next(&mut self) -> Result<Option<(Event<'t>, usize)>, String> {
        match self.parser.next() {
            None => Ok(None),
            Some(Ok((event, span))) => Ok(Some((event, span.start.line().max(1)))),
            Some(Err(error)) => Err(format!("line {}: {}", error.marker().line().max(1), error.info())),
        }
    }

    fn value(&mut self, event: Event<'_>, line: usize, depth: usize) -> Result<Value, String> {
        if depth > DEPTH_MAX {
            return Err(format!("line {line}: nested deeper than {DEPTH_MAX} levels"));
        }
        self.count(1, line)?;
        let untagged = |is_tagged: bool| {
            if is_tagged {
                Err(format!("line {line}: found a tag, expected the value alone"))
            } else {
                Ok(())
            }
        };
        let (anchor, value) = match event {
            Event::Scalar(text, style, anchor, tag) => {
                untagged(tag.is_some())?;
                let value = if style == ScalarStyle::Plain {
                    scalar(&text)
                } else {
                    Value::String(text.into_owned())
                };
                (anchor, value)
            }
            Event::SequenceStart(anchor, tag) => {
                untagged(tag.is_some())?;
                let mut items = Vec::new();
                while let Some(item) = self.inner(depth)? {
                    items.push(item);
                }
                (anchor, Value::Array(items))
            }
            Event::MappingStart(anchor, tag) => {
                untagged(tag.is_some())?;
                let mut fields = Map::new();
                while let Some(key) = self.inner(depth)? {
                    let key = match key {
                        Value::String(text) => text,
                        Value::Number(_) | Value::Bool(_) => key.to_string(),
                        _ => return Err(format!("line {line}: found a key that is no word")),
                    };
                    let value = self.inner(depth)?.unwrap_or_default();
                    if fields.insert(key.clone(), value).is_some() {
                        return Err(format!("line {line}: found the key {key} twice"));
                    }
                }
                (anchor, Value::Object(fields))
            }
            Event::Alias(anchor) => {
                let value = self.anchors.get(&anchor).cloned();
                let value =
                    value.ok_or_else(|| format!("line {line}: found an alias inside of what it names"))?;
                self.count(count(&value), line)?;
                (0, value)
            }
            _ => return Err(format!("line {line}: found no value")),
        };
        if anchor > 0 {
            self.anchors.insert(anchor, value.clone());
        }
        Ok(value)
    }

    fn count(&mut self, more: usize, line: usize) -> Result<(), String> {
        self.values += more;
        if self.values > VALUES_MAX {
            return Err(format!("line {line}: found more than {VALUES_MAX} values"));
        }
        Ok(())
    }

    /// The next value of a list or mapping; `None` at its end.
    fn inner(&mut self, depth: usize) -> Result<Option<Value>, String> {
        match self.next()? {
            None | Some((Event::SequenceEnd | Event::MappingEnd, _)) => Ok(None),
            Some((event, line)) => self.value(event, line, depth + 1).map(Some),
        }
    }
}

/// How many values a value holds.
fn count(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(count).sum::<usize>(),
        Value::Object(fields) => 1 + fields.values().map(count).sum::<usize>(),
        _ => 1,
    }
}

/// What a scalar without quotes means.
pub(crate) fn scalar(text: &str) -> Value {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Value::Null,
        "true" | "True" | "TRUE" => return Value::Bool(true),
        "false" | "False" | "FALSE" => return Value::Bool(false),
        _ => {}
    }
    if let Ok(number) = text.parse::<i64>() {
        return Value::Number(number.into());
    }
    let is_number = text.starts_with(|c: char| c.is_ascii_digit() || "+-.".contains(c))
        && text.chars().all(|c| c.is_ascii_digit() || "+-.eE".contains(c))
        && text.contains(|c: char| c.is_ascii_digit());
    match text.parse::<f64>().ok().filter(|_| is_number).and_then(Number::from_f64) {
        Some(number) => Value::Number(number),
        None => Value::String(text.to_owned()),
    }
}

/// A value as Helm's `toYaml` writes it: keys sorted, lists not indented, no line break at the end.
///
/// # Errors
/// A text of several lines: no value of the chart has one in this place.
pub(crate) fn write(value: &Value) -> Result<String, String> {
    let mut out = String::new();
    block(value, 0, &mut out)?;
    Ok(out.trim_end_matches('\n').to_owned())
}

fn block(value: &Value, depth: usize, out: &mut String) -> Result<(), String> {
    let indent = "  ".repeat(depth);
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            let mut sorted: Vec<_> = fields.iter().collect();
            sorted.sort_by_key(|(key, _)| *key);
            for (key, value) in sorted {
                out.push_str(&format!("{indent}{}:", flow(&Value::String(key.clone()))?));
                match value {
                    Value::Object(inner) if !inner.is_empty() => {
                        out.push('\n');
                        block(value, depth + 1, out)?;
                    }
                    Value::Array(inner) if !inner.is_empty() => {
                        out.push('\n');
                        block(value, depth, out)?;
                    }
                    _ => out.push_str(&format!(" {}\n", flow(value)?)),
                }
            }
        }
        Value::Array(items) if !items.is_empty() => {
            for item in items {
                let mut inner = String::new();
                block(item, depth + 1, &mut inner)?;
                out.push_str(&format!("{indent}- {}", inner.trim_start()));
            }
        }
        _ => out.push_str(&format!("{indent}{}\n", flow(value)?)),
    }
    Ok(())
}

/// A value on one line.
fn flow(value: &Value) -> Result<String, String> {
    Ok(match value {
        Value::Object(_) => "{}".to_owned(),
        Value::Array(_) => "[]".to_owned(),
        Value::String(text) if text.contains(|c: char| c.is_control()) => {
            return Err(format!("{text:?}: found a line break, expected a value of one line"));
        }
        Value::String(text) if is_otherwise_read(text) => format!("\"{text}\""),
        Value::String(text) if may_be_plain(text) => text.clone(),
        Value::String(text) => format!("'{}'", text.replace('\'', "''")),
        other => other.to_string(),
    })
}

/// Whether the text without quotes would be read as something else than this text. YAML 1.1, as Go's library has it.
fn is_otherwise_read(text: &str) -> bool {
    const WORDS: [&str; 11] = ["y", "yes", "on", "true", "n", "no", "off", "false", "null", "~", "<<"];
    let lower = text.to_ascii_lowercase();
    let number = text.replace('_', "");
    let is_date = text.len() >= 8
        && text.as_bytes()[..4].iter().all(u8::is_ascii_digit)
        && text.as_bytes()[4] == b'-'
        && text[5..].starts_with(|c: char| c.is_ascii_digit());
    let is_base_60 = text.contains(':') && text.chars().all(|c| c.is_ascii_digit() || ":._".contains(c));
    text.is_empty()
        || WORDS.contains(&lower.as_str())
        || matches!(lower.trim_start_matches(['+', '-']), ".inf" | ".nan")
        || !matches!(scalar(&number), Value::String(_))
        || (number.starts_with("0x") && i64::from_str_radix(&number[2..], 16).is_ok())
        || (number.starts_with("0b") && i64::from_str_radix(&number[2..], 2).is_ok())
        || is_date
        || is_base_60
}

fn may_be_plain(text: &str) -> bool {
    let begins_badly = text
        .starts_with(['#', ',', '[', ']', '{', '}', '&', '*', '!', '|', '>', '\'', '"', '%', '@', '`'])
        || matches!(text, "-" | "?" | ":")
        || ["- ", "? ", ": ", "---", "..."].iter().any(|start| text.starts_with(start));
    !(begins_badly
        || text.starts_with(' ')
        || text.ends_with([' ', ':'])
        || text.contains(": ")
        || text.contains(" #"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn documents_are_read_as_helm_reads_them() {
        let read =
            read("# only this\n---\na: 1\nb: {c: [x, 1.5, true, ~]}\n---\nd: \"1\"\ne: |\n  two\n  lines\n")
                .unwrap();
        assert_eq!(
            read,
            [json!({"a": 1, "b": {"c": ["x", 1.5, true, null]}}), json!({"d": "1", "e": "two\nlines\n"})]
        );
        let aliased = super::read(
            "a: &x {b: 1}
c: *x
",
        )
        .unwrap();
        assert_eq!(aliased, [json!({"a": {"b": 1}, "c": {"b": 1}})]);
        // Each line names nine times what the line above it names.
        let line = |n: usize| {
            format!(
                "l{n}: &l{n} [{}]
",
                vec![format!("*l{}", n - 1); 9].join(", ")
            )
        };
        let laughs = format!(
            "l0: &l0 [x]
{}",
            (1..12).map(line).collect::<String>()
        );
        assert!(super::read(&laughs).unwrap_err().contains("more than"));
        for (wrong, word) in
            [("a: &x [*x]", "inside"), ("a: 1\na: 2", "twice"), ("a: [", "line"), ("a: !!int 1", "tag")]
        {
            let fault = super::read(wrong).unwrap_err();
            assert!(fault.contains(word), "{wrong}: {fault}");
        }
    }

    #[test]
    fn values_are_written_as_helm_writes_them() {
        // As `helm template` 3.18 printed `toYaml` of these.
        let value = json!({"z": [], "m": {}, "requests": {"cpu": "200m", "memory": "64Mi"}, "on": true, "n": 3,
            "list": [{"operator": "Exists", "key": "a"}, "plain text", ["x"]], "quoted": "yes", "number": "1", "odd": "# no", "colon": "a: b"});
        let expected = "colon: 'a: b'\nlist:\n- key: a\n  operator: Exists\n- plain text\n- - x\nm: {}\n\"n\": 3\nnumber: \"1\"\nodd: '# no'\n\
                        \"on\": true\nquoted: \"yes\"\nrequests:\n  cpu: 200m\n  memory: 64Mi\nz: []";
        assert_eq!(write(&value).unwrap(), expected);
        assert!(write(&json!("two\nlines")).unwrap_err().contains("one line"));
    }
}
