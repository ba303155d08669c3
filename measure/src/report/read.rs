// SPDX-License-Identifier: Apache-2.0
//! Reading a document: in: JSON. Out: a [`Document`], or the path of the field that is wrong.
//! Fields that the schema does not name are ignored; a field of the wrong type is never guessed at.

use super::model::{Check, Comparison, Document, Figures, Gates, Micro, Published, Round, Series};
use serde_json::Value;

/// The schema that this report reads.
pub(super) const SCHEMA: &str = "ktsn.results/1";

/// Which field is wrong, and how.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Wrong {
    pub(super) field: String,
    pub(super) problem: String,
}

type Read<T> = Result<T, Wrong>;

/// A value and where it stands.
struct Node<'a> {
    value: &'a Value,
    field: String,
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

impl<'a> Node<'a> {
    fn wrong<T>(&self, problem: String) -> Read<T> {
        let field = if self.field.is_empty() { "(the document)".to_owned() } else { self.field.clone() };
        Err(Wrong { field, problem })
    }

    fn expected<T>(&self, what: &str) -> Read<T> {
        self.wrong(format!("{what} is expected here, not {}", kind(self.value)))
    }

    fn below(&self, key: &str) -> String {
        if self.field.is_empty() { key.to_owned() } else { format!("{}.{key}", self.field) }
    }

    /// The member `key`; absent and `null` are the same.
    fn get(&self, key: &str) -> Read<Option<Node<'a>>> {
        let Value::Object(members) = self.value else { return self.expected("an object") };
        let value = members.get(key).filter(|value| !value.is_null());
        Ok(value.map(|value| Node { value, field: self.below(key) }))
    }

    fn need(&self, key: &str) -> Read<Node<'a>> {
        self.get(key)?.ok_or_else(|| Wrong { field: self.below(key), problem: "is missing".to_owned() })
    }

    fn list(&self, key: &str) -> Read<Vec<Node<'a>>> {
        let Some(node) = self.get(key)? else { return Ok(Vec::new()) };
        let Value::Array(values) = node.value else { return node.expected("a list") };
        let member = |(index, value)| Node { value, field: format!("{}[{index}]", node.field) };
        Ok(values.iter().enumerate().map(member).collect())
    }

    fn members(&self, key: &str) -> Read<Vec<(String, Node<'a>)>> {
        let Some(node) = self.get(key)? else { return Ok(Vec::new()) };
        let Value::Object(members) = node.value else { return node.expected("an object") };
        let member =
            |(key, value): (&String, &'a Value)| (key.clone(), Node { value, field: node.below(key) });
        Ok(members.iter().map(member).collect())
    }

    fn text(&self) -> Read<String> {
        self.value.as_str().map_or_else(|| self.expected("a text"), |text| Ok(text.to_owned()))
    }

    fn number(&self) -> Read<f64> {
        self.value.as_f64().map_or_else(|| self.expected("a number"), Ok)
    }

    fn count(&self) -> Read<u64> {
        self.value.as_u64().map_or_else(|| self.expected("a whole number from 0"), Ok)
    }

    fn truth(&self) -> Read<bool> {
        self.value.as_bool().map_or_else(|| self.expected("true or false"), Ok)
    }

    fn maybe<T>(&self, key: &str, read: fn(&Node<'a>) -> Read<T>) -> Read<Option<T>> {
        self.get(key)?.map(|node| read(&node)).transpose()
    }
}

/// Any value as one line of text, for the tables of facts.
fn plain(value: &Value) -> String {
    match value {
        Value::Null => "–".to_owned(),
        Value::Bool(truth) => if *truth { "yes" } else { "no" }.to_owned(),
        Value::String(text) => text.clone(),
        Value::Number(number) => number.to_string(),
        Value::Array(values) => values.iter().map(plain).collect::<Vec<_>>().join(", "),
        Value::Object(members) => members
            .iter()
            .map(|(key, value)| format!("{key} {}", plain(value)))
            .collect::<Vec<_>>()
            .join(", "),
    }
}

/// The document that `value` is.
pub(super) fn document(value: &Value) -> Read<Document> {
    let root = Node { value, field: String::new() };
    let schema = root.need("schema")?;
    if schema.text()? != SCHEMA {
        return schema.wrong(format!("this report reads {SCHEMA:?}, not {}", schema.value));
    }
    let facts = |key| -> Read<Vec<(String, String)>> {
        Ok(root.members(key)?.into_iter().map(|(name, node)| (name, plain(node.value))).collect())
    };
    let environment = root.get("environment")?;
    let environment = environment.as_ref();
    Ok(Document {
        experiment: root.need("experiment")?.text()?,
        started_at: root.maybe("started_at", Node::text)?,
        command: root.list("command")?.iter().map(Node::text).collect::<Read<_>>()?,
        environment: facts("environment")?,
        clock_synchronised: environment
            .map_or(Ok(None), |node| node.maybe("clock_synchronised", Node::truth))?,
        tai_offset_seconds: environment
            .map_or(Ok(None), |node| node.maybe("tai_offset_seconds", Node::number))?,
        parameters: facts("parameters")?,
        gates: root.get("parameters")?.map_or(Ok(None), |node| node.maybe("gate_schedule", gates))?,
        series: root.list("series")?.iter().map(series).collect::<Read<_>>()?,
        micro: root.list("micro")?.iter().map(micro).collect::<Read<_>>()?,
        checks: root.list("checks")?.iter().map(check).collect::<Read<_>>()?,
        comparisons: root.list("comparisons")?.iter().map(comparison).collect::<Read<_>>()?,
        published: root.list("published")?.iter().map(published).collect::<Read<_>>()?,
    })
}

fn gates(node: &Node<'_>) -> Read<Gates> {
    let cycle_time = node.need("cycle_time")?;
    let window = |node: &Node<'_>| -> Read<(u64, u64, u64)> {
        Ok((node.need("class")?.count()?, node.need("opens_ns")?.count()?, node.need("closes_ns")?.count()?))
    };
    Ok(Gates {
        base_time: node.need("base_time")?.count()?,
        cycle_time: match cycle_time.count()? {
            0 => return cycle_time.wrong("a cycle is at least 1 ns long".to_owned()),
            nanos => nanos,
        },
        windows: node.list("windows")?.iter().map(window).collect::<Read<_>>()?,
    })
}

fn round(node: &Node<'_>) -> Read<Round> {
    match (node.value.as_str(), node.value.as_u64()) {
        (Some("all"), _) => Ok(Round::All),
        (_, Some(number)) => Ok(Round::Number(number)),
        _ => node.wrong(format!("a round is a number or \"all\", not {}", node.value)),
    }
}

fn figures(node: &Node<'_>) -> Read<Figures> {
    Ok(Figures {
        min: node.maybe("min", Node::number)?,
        p50: node.maybe("p50", Node::number)?,
        p90: node.maybe("p90", Node::number)?,
        p99: node.maybe("p99", Node::number)?,
        p99_9: node.maybe("p99_9", Node::number)?,
        max: node.maybe("max", Node::number)?,
    })
}

fn series(node: &Node<'_>) -> Read<Series> {
    let mut way = Vec::new();
    for key in ["class", "egress", "overlay", "ingress"] {
        way.extend(node.get(key)?.map(|value| (key.to_owned(), plain(value.value))));
    }
    let count = |key| node.maybe(key, Node::count);
    let ratio = |key| node.maybe(key, Node::number);
    let reasons = |key| -> Read<Vec<(String, u64)>> {
        node.members(key)?.into_iter().map(|(reason, node)| Ok((reason, node.count()?))).collect()
    };
    Ok(Series {
        path: node.need("path")?.text()?,
        payload_octets: node.need("payload_octets")?.count()?,
        load: node.maybe("load", Node::text)?,
        round: node.maybe("round", round)?.unwrap_or_default(),
        class: count("class")?,
        way,
        frames_intended: count("frames_intended")?,
        frames_sent: count("frames_sent")?,
        frames_received: count("frames_received")?,
        lost: count("lost")?,
        duplicates: count("duplicates")?,
        reordered: count("reordered")?,
        early: count("early")?,
        overrun: count("overrun")?,
        dropped: reasons("dropped")?,
        bypassed: reasons("bypassed")?,
        transmit_error: node.maybe("transmit_error_ns", figures)?,
        wire_offset: node.maybe("wire_offset_ns", figures)?,
        latency: node.maybe("latency_ns", figures)?,
        jitter: node.maybe("jitter_ns", figures)?,
        wire_jitter: node.maybe("wire_jitter_ns", figures)?,
        wake_up: node.maybe("wake_up_ns", figures)?,
        before_wake_up: node.maybe("before_wake_up_ns", figures)?,
        outside_window: count("outside_window")?,
        transmission_overrun: count("transmission_overrun")?,
        wire_outside_window_ratio: ratio("wire_outside_window_ratio")?,
        after_opening: node.maybe("after_opening_ns", figures)?,
        late_over_1us_ratio: ratio("late_over_1us_ratio")?,
        deadline_missed_ratio: ratio("deadline_missed_ratio")?,
        talker_cpu_ratio: ratio("talker_cpu_ratio")?,
        daemon_cpu_ratio: ratio("daemon_cpu_ratio")?,
        far_daemon_cpu_ratio: ratio("far_daemon_cpu_ratio")?,
        ktsn_cpu_ratio: ratio("ktsn_cpu_ratio")?,
        softirq_cpu_ratio: ratio("softirq_cpu_ratio")?,
        load_bit_rate: ratio("load_bit_rate")?,
        listener_cpu_ratio: ratio("listener_cpu_ratio")?,
        daemon_rss_octets: count("daemon_rss_octets")?,
        voided_rounds: count("voided_rounds")?,
        steal_ratio: ratio("steal_ratio")?,
        cpu_pressure_some_ratio: ratio("cpu_pressure_some_ratio")?,
    })
}

fn micro(node: &Node<'_>) -> Read<Micro> {
    Ok(Micro {
        name: node.need("name")?.text()?,
        unit: node.need("unit")?.text()?,
        p50: node.maybe("p50", Node::number)?,
        p90: node.maybe("p90", Node::number)?,
        samples: node.maybe("samples", Node::count)?,
    })
}

fn check(node: &Node<'_>) -> Read<Check> {
    let outcome = node.need("outcome")?;
    let word = outcome.text()?;
    if !["passed", "failed", "skipped"].contains(&word.as_str()) {
        return outcome.wrong(format!("an outcome is passed, failed or skipped, not {}", outcome.value));
    }
    let reason = node.maybe("reason", Node::text)?;
    Ok(Check { name: node.need("name")?.text()?, outcome: word, reason })
}

fn comparison(node: &Node<'_>) -> Read<Comparison> {
    Ok(Comparison {
        metric: node.need("metric")?.text()?,
        payload_octets: node.maybe("payload_octets", Node::count)?,
        load: node.maybe("load", Node::text)?,
        of: node.need("of")?.text()?,
        to: node.maybe("to", Node::text)?,
        ratio: node.maybe("ratio", Node::number)?,
        bar: node.maybe("bar", Node::number)?,
        holds: node.maybe("holds", Node::truth)?,
    })
}

fn published(node: &Node<'_>) -> Read<Published> {
    let ours = |node: &Node<'_>| -> Read<(String, Option<String>, f64)> {
        Ok((node.need("of")?.text()?, node.maybe("to", Node::text)?, node.need("value")?.number()?))
    };
    Ok(Published {
        source: node.need("source")?.text()?,
        figure: node.need("figure")?.text()?,
        metric: node.need("metric")?.text()?,
        payload_octets: node.maybe("payload_octets", Node::count)?,
        of: node.need("of")?.text()?,
        to: node.maybe("to", Node::text)?,
        value: node.need("value")?.number()?,
        ours: node.list("ours")?.iter().map(ours).collect::<Read<_>>()?,
    })
}
