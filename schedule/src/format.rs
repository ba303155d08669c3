// SPDX-License-Identifier: Apache-2.0
//! How a schedule is written.

/// The way in which a schedule is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// Found from the text: `{` is JSON; a `tc` command, also behind a prompt or among others, is taprio; anything else YAML.
    #[default]
    Auto,
    /// YAML 1.2 without anchors, tags and second documents.
    Yaml,
    /// JSON (RFC 8259), values as RFC 7951 writes YANG: numbers may stand in strings.
    Json,
    /// One `tc qdisc add|replace|change dev … taprio …` command, alone or among others.
    Taprio,
}

impl Format {
    /// The format itself, or for [`Format::Auto`] the one that the text looks like.
    #[must_use]
    pub fn of(self, text: &str) -> Self {
        if self != Self::Auto {
            return self;
        }
        let text = text.trim_start_matches('\u{feff}');
        let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        match lines.next() {
            Some(line) if line.starts_with('{') => Self::Json,
            _ if text.lines().any(|line| line.starts_with("gate-parameter-table")) => Self::Yaml,
            _ if crate::taprio::has_command(text) => Self::Taprio,
            _ => Self::Yaml,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_format_is_found_from_the_first_line_that_says_something() {
        for (text, format) in [
            ("", Format::Yaml),
            ("name: tc", Format::Yaml),
            ("tcp: 1", Format::Yaml),
            ("# tc\n\n  {", Format::Json),
            ("\u{feff}{}", Format::Json),
            ("# comment\ntc qdisc", Format::Taprio),
            ("tc\tqdisc", Format::Taprio),
            ("tc \\\n qdisc", Format::Taprio),
            ("sudo tc qdisc", Format::Taprio),
            ("user@host:~# tc qdisc replace dev eth0 root taprio", Format::Taprio),
            ("# tc qdisc replace dev eth0 root taprio", Format::Taprio),
            ("#!/bin/sh\nip link set eth0 up\ntc qdisc add dev eth0 root taprio", Format::Taprio),
            ("description: tc qdisc replace dev eth0 root taprio", Format::Yaml),
            ("# tc qdisc replace root taprio\ngate-parameter-table:", Format::Yaml),
        ] {
            assert_eq!(Format::Auto.of(text), format, "{text:?}");
            assert_eq!(Format::Json.of(text), Format::Json);
        }
    }
}
