// SPDX-License-Identifier: Apache-2.0
//! What services ask of latency and jitter, end to end. In: the paper's Table 1, or a file of the user's (YAML or JSON). Out:
//! [`Requirement`]s; a fault names the field, what it holds, and what it should hold.
//!
//! ```yaml
//! requirements:
//!   - service: Packing line
//!     latency: 4 ms
//!     jitter: 250 us
//! ```

mod yaml;

use ktsn_time::{Nanos, Span};
use serde::{Deserialize, Serialize};
use yaml::Node;

/// Most services in a file.
const SERVICES_MAX: usize = 1000;
/// Longest span of a requirement.
const SPAN_MAX: u128 = 3_600_000_000_000;
const SPAN_EXPECTED: &str =
    "a number and its unit (ns, us, ms or s), for example `20 us`, from 1 ns to 3600 s";

/// What a service asks for, end to end: network and processing together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Requirement {
    /// The service.
    pub service: String,
    /// Greatest latency.
    pub latency_ns: u64,
    /// Greatest jitter.
    pub jitter_ns: u64,
}

impl Requirement {
    /// Greatest latency.
    #[must_use]
    pub const fn latency(&self) -> Nanos {
        Span::from_nanos(self.latency_ns).to_nanos()
    }

    /// Greatest jitter.
    #[must_use]
    pub const fn jitter(&self) -> Nanos {
        Span::from_nanos(self.jitter_ns).to_nanos()
    }
}

/// The paper's Table 1: service, latency and jitter in microseconds.
const TABLE_1: [(&str, u64, u64); 8] = [
    ("Factory automation (motion control)", 1_000, 1),
    ("Factory automation", 10_000, 100),
    ("Process automation (remote control)", 50_000, 20),
    ("Process automation (monitoring)", 50_000, 20_000),
    ("Electricity distribution (medium voltage)", 25_000, 10_000),
    ("Electricity distribution (high voltage)", 5_000, 1_000),
    ("Intelligent transport systems (infrastructure backhaul)", 10_000, 2_000),
    ("Remote control", 5_000, 1_000),
];

/// The eight services of the paper's Table 1.
#[must_use]
pub fn table_1() -> Vec<Requirement> {
    let row = |(service, latency, jitter): (&str, u64, u64)| Requirement {
        service: service.to_owned(),
        latency_ns: latency * 1000,
        jitter_ns: jitter * 1000,
    };
    TABLE_1.into_iter().map(row).collect()
}

/// A fault of a requirements file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {field}: {found}: expected {expected}")]
pub struct WrongRequirement {
    /// The line, from 1.
    pub line: usize,
    /// The field (`requirements[2].jitter`).
    pub field: String,
    /// What it holds.
    pub found: String,
    /// What it should hold.
    pub expected: String,
}

impl WrongRequirement {
    fn at(node: &Node, field: impl Into<String>, expected: impl Into<String>) -> Self {
        let field = yaml::printable(&field.into());
        Self { line: node.line, field, found: node.shown(), expected: expected.into() }
    }
}

/// Reads a requirements file.
///
/// # Errors
/// The first fault, from the top.
pub fn read(text: &str) -> Result<Vec<Requirement>, WrongRequirement> {
    let root = yaml::parse(text)?;
    let fields = root.fields().ok_or_else(|| {
        WrongRequirement::at(&root, "(the file)", "a mapping with the one key `requirements`")
    })?;
    let mut rows = None;
    for (key, value) in fields {
        if key != "requirements" || rows.is_some() {
            return Err(WrongRequirement::at(value, key, "one key only: `requirements`, once"));
        }
        rows = Some(value);
    }
    let rows = rows.ok_or_else(|| WrongRequirement::at(&root, "requirements", "a list of services"))?;
    let expected = format!("a list of 1 to {SERVICES_MAX} services");
    let wrong = || WrongRequirement::at(rows, "requirements", expected.as_str());
    let items = rows.items().filter(|items| (1..=SERVICES_MAX).contains(&items.len())).ok_or_else(wrong)?;
    let mut read: Vec<Requirement> = Vec::new();
    for (index, item) in items.iter().enumerate() {
        let requirement = one(item, &format!("requirements[{index}]"))?;
        if read.iter().any(|other| other.service == requirement.service) {
            let field = format!("requirements[{index}].service");
            let (line, found) = (item.line, format!("`{}`", requirement.service));
            return Err(WrongRequirement {
                line,
                field,
                found,
                expected: "a name that no other service has".into(),
            });
        }
        read.push(requirement);
    }
    Ok(read)
}

/// One service of the list.
fn one(item: &Node, place: &str) -> Result<Requirement, WrongRequirement> {
    let keys = "a mapping with the keys `service`, `latency` and `jitter`";
    let fields = item.fields().ok_or_else(|| WrongRequirement::at(item, place, keys))?;
    let (mut service, mut latency, mut jitter) = (None, None, None);
    for (key, value) in fields {
        let field = format!("{place}.{key}");
        let slot = match key.as_str() {
            "service" => {
                let text = value.text().map(str::trim).filter(|text| !text.is_empty() && text.len() <= 200);
                let text = text.filter(|text| !text.contains(char::is_control));
                let expected = "a name of at most 200 octets without control characters";
                let text = text.ok_or_else(|| WrongRequirement::at(value, &field, expected))?;
                if service.replace(text.to_owned()).is_some() {
                    return Err(WrongRequirement::at(value, field, "this key once"));
                }
                continue;
            }
            "latency" => &mut latency,
            "jitter" => &mut jitter,
            _ => {
                return Err(WrongRequirement::at(
                    value,
                    field,
                    "one of the keys `service`, `latency`, `jitter`",
                ));
            }
        };
        let span = value.text().and_then(span);
        let span = span.ok_or_else(|| WrongRequirement::at(value, &field, SPAN_EXPECTED))?;
        if slot.replace(span.as_nanos()).is_some() {
            return Err(WrongRequirement::at(value, field, "this key once"));
        }
    }
    let missing = |key: &str, expected: &str| WrongRequirement {
        line: item.line,
        field: format!("{place}.{key}"),
        found: "nothing".into(),
        expected: expected.into(),
    };
    Ok(Requirement {
        service: service.ok_or_else(|| missing("service", "a name"))?,
        latency_ns: latency.ok_or_else(|| missing("latency", SPAN_EXPECTED))?,
        jitter_ns: jitter.ok_or_else(|| missing("jitter", SPAN_EXPECTED))?,
    })
}

/// A span with its unit, exact: `1 ms`, `62.5us`. `None`: no such text, or a span that no requirement has.
fn span(text: &str) -> Option<Span> {
    let text = text.trim();
    let units = [
        ("ns", 1_u128),
        ("us", 1_000),
        ("µs", 1_000),
        ("μs", 1_000),
        ("ms", 1_000_000),
        ("s", 1_000_000_000),
    ];
    // The longest unit that fits: `us` before `s`.
    let (unit, factor) =
        units.into_iter().filter(|(unit, _)| text.ends_with(unit)).max_by_key(|(unit, _)| unit.len())?;
    let number = text[..text.len() - unit.len()].trim_end();
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let is_digits = |digits: &str| digits.bytes().all(|digit| digit.is_ascii_digit());
    if whole.is_empty() || whole.len() > 13 || fraction.len() > 9 || !is_digits(whole) || !is_digits(fraction)
    {
        return None;
    }
    if number.ends_with('.') {
        return None;
    }
    let parts = 10_u128.pow(u32::try_from(fraction.len()).ok()?);
    let product = format!("{whole}{fraction}").parse::<u128>().ok()? * factor;
    let nanos = (product % parts == 0).then_some(product / parts)?;
    (1..=SPAN_MAX).contains(&nanos).then(|| Span::from_wide(nanos))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_file_is_read() {
        let text = "requirements:\n  - service: Packing line\n    latency: 4 ms\n    jitter: 62.5us\n  - {service: b, latency: 1s, jitter: 7 ns}\n";
        let read = read(text).unwrap();
        assert_eq!(read.len(), 2);
        assert_eq!(
            (read[0].service.as_str(), read[0].latency_ns, read[0].jitter_ns),
            ("Packing line", 4_000_000, 62_500)
        );
        assert_eq!((read[1].latency_ns, read[1].jitter_ns), (1_000_000_000, 7));
        assert_eq!((read[0].latency(), read[0].jitter()), (Nanos::from_millis(4), Nanos::new(62_500)));
        // JSON is YAML.
        let json =
            serde_json::json!({"requirements": [{"service": "x", "latency": "1 ms", "jitter": "1 us"}]});
        assert_eq!(super::read(&json.to_string()).unwrap()[0].jitter_ns, 1000);
    }

    #[test]
    fn faults_name_field_value_and_expectation() {
        let row = |latency: &str| {
            format!("requirements:\n  - service: a\n    latency: {latency}\n    jitter: 1 us\n")
        };
        for (text, words) in [
            (row("4 parsec"), ["line 3", "requirements[0].latency", "`4 parsec`", "ns, us, ms or s"]),
            (row("4"), ["line 3", "requirements[0].latency", "`4`", "its unit"]),
            (row("0 ms"), ["line 3", "requirements[0].latency", "`0 ms`", "from 1 ns"]),
            (row("-1 ms"), ["line 3", "requirements[0].latency", "`-1 ms`", "number"]),
            (row("0.5 ns"), ["line 3", "requirements[0].latency", "`0.5 ns`", "number"]),
            (row("5. ms"), ["line 3", "requirements[0].latency", "`5. ms`", "number"]),
            (row("[1 ms]"), ["line 3", "requirements[0].latency", "a list of 1", "number"]),
            (row("2 h"), ["line 3", "requirements[0].latency", "`2 h`", "number"]),
            (row("1 ms\n    latency: 2 ms"), ["line 4", "requirements[0].latency", "`2 ms`", "once"]),
            (row("1 ms\n    delay: 2 ms"), ["line 4", "requirements[0].delay", "`2 ms`", "`latency`"]),
            ("requirements: []".into(), ["line 1", "requirements", "a list of 0", "1 to 1000"]),
            ("limits: []".into(), ["line 1", "limits", "a list of 0", "`requirements`"]),
            ("- a".into(), ["line 1", "(the file)", "a list of 1", "`requirements`"]),
            (
                "requirements:\n  - latency: 1 ms\n    jitter: 1 us".into(),
                ["line 2", "requirements[0].service", "nothing", "a name"],
            ),
            (
                format!("{}  - service: a\n    latency: 1 s\n    jitter: 1 s", row("1 ms")),
                ["line 5", "requirements[1].service", "`a`", "no other"],
            ),
            (
                "requirements:\n  - service: \"a\\e[2Jb\"".into(),
                ["line 2", "requirements[0].service", "`a\u{fffd}[2Jb`", "control characters"],
            ),
            (
                "requirements:\n  - \"a\\x9b2J\": b".into(),
                ["line 2", "requirements[0].a\u{fffd}2J", "`b`", "`service`"],
            ),
            ("requirements: [".into(), ["line 2", "(the file)", "no YAML", "YAML"]),
            ("requirements: &a [*a]".into(), ["line 1", "(the file)", "anchor", "alone"]),
            ("".into(), ["line 1", "(the file)", "nothing", "`requirements`"]),
        ] {
            let error = read(&text).unwrap_err().to_string();
            for word in words {
                assert!(error.contains(word), "{text}\n{error}\nlacks {word}");
            }
            assert!(!error.contains(char::is_control), "{error:?}");
        }
    }

    proptest! {
        /// Whatever the text is: an answer, no panic, and nothing that a terminal obeys.
        #[test]
        fn any_text_is_answered(text in "(?s).{0,200}") {
            if let Err(fault) = read(&text) {
                prop_assert!(!fault.to_string().contains(char::is_control), "{fault:?}");
            }
        }

        #[test]
        fn spans_are_exact(micros in 1_u64..1_000_000) {
            let text = format!("{}.{:03} ms", micros / 1000, micros % 1000);
            prop_assert_eq!(span(&text), Some(Span::from_nanos(micros * 1000)));
        }
    }
}
