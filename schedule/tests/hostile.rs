// SPDX-License-Identifier: Apache-2.0
//! Texts made to hurt: they are refused with a reason. A reader that expanded them would not come to an end.

use std::fmt::Write as _;

use ktsn_schedule::{Format, limits, parse};

#[track_caller]
fn refused(what: &str, text: &str, format: Format, expected: &str) {
    let faults = parse(text, format).expect_err(what).to_string();
    assert!(faults.contains(expected), "{what}: {faults}");
    assert!(faults.lines().count() <= limits::FAULTS_MAX + 1, "{what}");
    assert!(faults.chars().all(|c| c == '\n' || !c.is_control()), "{what}: {faults:?}");
}

#[test]
fn alias_bombs() {
    let mut bomb = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x]\n");
    for level in 1..30 {
        let before = level - 1;
        let _ = writeln!(
            bomb,
            "a{level}: &a{level} [*a{before}, *a{before}, *a{before}, *a{before}, *a{before}]"
        );
    }
    refused("billion laughs", &bomb, Format::Yaml, "anchor");
    refused("an anchor of itself", "name: &a [*a]", Format::Yaml, "anchor");
    refused("an alias without anchor", "name: *a", Format::Yaml, "syntax");
    refused("a merge key", "a: &a {b: 1}\n<<: *a", Format::Yaml, "anchor");
    refused("a tag", "name: !!binary aGk=", Format::Yaml, "tag");
}

#[test]
fn depth() {
    for (open, what) in [("[", "lists"), ("{a: ", "mappings"), ("- ", "block lists"), ("? ", "keys")] {
        let text = open.repeat(limits::OCTETS_MAX / open.len());
        refused(what, &text, Format::Yaml, "expected");
    }
    let mut text = String::new();
    for level in 0..1_000 {
        let _ = writeln!(text, "{}a:", " ".repeat(level));
    }
    refused("block mappings", &text, Format::Yaml, "inside each other");
    let text = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    refused("JSON lists", &text, Format::Json, "recursion limit");
}

#[test]
fn size() {
    let long = "#".repeat(limits::OCTETS_MAX + 1);
    for format in [Format::Auto, Format::Yaml, Format::Json, Format::Taprio] {
        refused("too many octets", &long, format, "octets");
    }
    refused(
        "too many values",
        &format!("[{}]", "1,".repeat(limits::NODES_MAX)),
        Format::Yaml,
        "keys and values",
    );
    let keys: String = (0..limits::NODES_MAX).fold(String::new(), |mut text, key| {
        let _ = writeln!(text, "k{key}:");
        text
    });
    refused("too many keys", &keys, Format::Yaml, "keys and values");
    let keys = keys.lines().take(20_000).collect::<Vec<_>>().join("\n");
    refused("many unknown leaves", &keys, Format::Yaml, "more faults");
    refused("one long word", &"x".repeat(limits::OCTETS_MAX), Format::Yaml, "a mapping");
    refused("one long number", &format!("mtu: {}", "9".repeat(1_000_000)), Format::Yaml, "too large");
    refused("one long command", &"tc ".repeat(300_000), Format::Taprio, "qdisc");
    let words = format!("tc qdisc add dev e taprio {}", "x ".repeat(400_000));
    refused("a command of strange words", &words, Format::Taprio, "…");
    let lines = "tc\n".repeat(300_000);
    refused("many commands", &lines, Format::Taprio, "qdisc");
    let lines = "tc qdisc add dev e root taprio\n".repeat(30_000);
    refused("many taprio commands", &lines, Format::Taprio, "second command");
}

#[test]
fn lists_beyond_the_limit_are_counted_not_cut() {
    let mut text = String::from("gate-parameter-table:\n  gate-enabled: true\n  admin-control-list:\n");
    for _ in 0..1_025 {
        text.push_str("    - { gate-states-value: 1, time-interval-value: 1us }\n");
    }
    refused(
        "1025 entries",
        &text,
        Format::Yaml,
        "admin-control-list: found 1025 entries, expected at most 1024",
    );
    let shorter = text.trim_end().rsplit_once('\n').expect("lines").0;
    let schedule = parse(shorter, Format::Yaml).expect("1024 entries are allowed");
    assert_eq!(schedule.admin.control_list.len(), 1_024);
}

#[test]
fn strange_documents() {
    for (what, text, expected) in [
        ("nothing", "", "nothing"),
        ("a comment", "# a schedule\n", "nothing"),
        ("a second document", "name: a\n---\nname: b\n", "second document"),
        ("a list", "- 1\n", "a mapping"),
        ("a key that is a list", "? [a]\n: b\n", "as a key"),
        ("tabs", "name:\n\t- a\n", "syntax"),
        ("an escape for the terminal", "na\u{1b}[31mme: x", "expected"),
        ("control characters in a name", "name: \"a\\u001b[31m\"", "line breaks"),
        ("a nul", "name: \0", "expected"),
    ] {
        refused(what, text, Format::Yaml, expected);
    }
    refused("YAML that is no JSON", "name: x", Format::Json, "RFC 8259");
    refused("a comma too many", "{\"name\": \"x\",}", Format::Json, "1:14");
    refused("no command", "# nothing\n\n", Format::Taprio, "nothing");
    refused("another command", "ip link", Format::Taprio, "expected a command: tc");
}
