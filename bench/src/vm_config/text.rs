// SPDX-License-Identifier: Apache-2.0
//! Values inside a definition: quoted for the shell, for QEMU, XML and YAML, and checked where no quoting helps.

use super::{Refused, refused};

/// A path that every format can hold: absolute, without control characters.
pub(super) fn check_path(field: &'static str, path: &str) -> Result<(), Refused> {
    if path.starts_with('/') && path.len() <= 4095 && !path.chars().any(is_unprintable) {
        return Ok(());
    }
    Err(refused(field, path, "an absolute path without control characters"))
}

/// A label of RFC 1123, which Kubernetes takes as a name.
pub(super) fn check_label(field: &'static str, name: &str, what: &str) -> Result<(), Refused> {
    let is_end =
        |octet: Option<&u8>| octet.is_some_and(|octet| octet.is_ascii_lowercase() || octet.is_ascii_digit());
    let octets = name.as_bytes();
    let is_allowed = |octet: &u8| octet.is_ascii_lowercase() || octet.is_ascii_digit() || *octet == b'-';
    if octets.len() <= 63 && octets.iter().all(is_allowed) && is_end(octets.first()) && is_end(octets.last())
    {
        return Ok(());
    }
    Err(refused(
        field,
        name,
        format!("{what}: 1 to 63 of a-z, 0-9 and '-', a letter or digit first and last"),
    ))
}

/// A subdomain of RFC 1123, which Kubernetes takes as the name of most objects: labels with dots between them.
pub(super) fn check_subdomain(field: &'static str, name: &str, what: &str) -> Result<(), Refused> {
    let are_labels = name.split('.').all(|label| check_label(field, label, "").is_ok());
    if are_labels && name.len() <= 253 {
        return Ok(());
    }
    let expected = "at most 253 of a-z, 0-9, '-' and '.', a letter or digit first and last in each part";
    Err(refused(field, name, format!("{what}: {expected}")))
}

/// `NAME` or `NAMESPACE/NAME`: Multus takes labels only.
pub(super) fn check_network_name(field: &'static str, name: &str) -> Result<(), Refused> {
    let parts: Vec<&str> = name.split('/').collect();
    let is_name = |part: &&str| check_label(field, part, "").is_ok();
    if parts.len() <= 2 && parts.iter().all(is_name) {
        return Ok(());
    }
    Err(refused(field, name, "the NAME or NAMESPACE/NAME of a NetworkAttachmentDefinition"))
}

/// Control characters, line breaks of YAML 1.1, and characters that change the direction of what follows or that no XML text may have.
fn is_unprintable(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}')
}

/// A word of a shell command.
pub(super) fn shell(word: &str) -> String {
    let is_plain = |octet: u8| octet.is_ascii_alphanumeric() || b"/._-,=:+@%".contains(&octet);
    if !word.is_empty() && word.bytes().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// A value inside an option of QEMU: a comma would begin the next part.
pub(super) fn qemu(value: &str) -> String {
    value.replace(',', ",,")
}

/// A value inside an attribute or text of XML.
pub(super) fn xml(value: &str) -> String {
    let mut out = String::with_capacity(value.len());
    for c in value.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&apos;"),
            c if is_unprintable(c) => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

/// A string of YAML: JSON's form, which YAML has too.
pub(super) fn yaml(value: &str) -> String {
    serde_json::Value::from(printable(value)).to_string()
}

/// Text for a comment, on one line.
pub(super) fn printable(value: &str) -> String {
    value.chars().map(|c| if is_unprintable(c) { '\u{fffd}' } else { c }).collect()
}

/// Text inside a comment of XML, in which `--` is not allowed: such hyphens stand apart.
pub(super) fn xml_comment(value: &str) -> String {
    let mut out = String::with_capacity(value.len());
    for c in printable(value).chars() {
        if c == '-' && out.ends_with('-') {
            out.push(' ');
        }
        out.push(c);
    }
    out
}

/// CPUs as a list: `2,4-6`.
pub(super) fn cpu_list(cpus: &[u32]) -> String {
    let mut sorted = cpus.to_vec();
    sorted.sort_unstable();
    sorted.dedup();
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for cpu in sorted {
        match ranges.last_mut() {
            Some(range) if range.1 + 1 == cpu => range.1 = cpu,
            _ => ranges.push((cpu, cpu)),
        }
    }
    let shown = |(first, last): (u32, u32)| {
        if first == last { first.to_string() } else { format!("{first}-{last}") }
    };
    ranges.into_iter().map(shown).collect::<Vec<_>>().join(",")
}
