// SPDX-License-Identifier: Apache-2.0
//! Leaves secrets out of text that is given to other people.
//!
//! In: a configuration, a log, JSON. Out: the same without the values of what is called after a secret, without credentials in URLs and
//! without private keys. It leaves out too much rather than too little. Never: a judgement by a value's look.

use serde_json::Value;

/// What stands in place of a secret.
pub(super) const LEFT_OUT: &str = "(left out)";
/// Parts of names; compared without case, and with every other sign as `_`.
const NAMES: [&str; 15] = [
    "password",
    "passwd",
    "passphrase",
    "secret",
    "token",
    "credential",
    "private_key",
    "psk",
    "api_key",
    "apikey",
    "auth_key",
    "authorization",
    "signature",
    "basic_auth",
    "basicauth",
];
/// Ends of words within names, and whole words: too short to be looked for anywhere (`allow_policy_bypass`).
const ENDS: [&str; 4] = ["key", "keys", "pwd", "passcode"];
const WORDS: [&str; 5] = ["pass", "sig", "auth", "pw", "pin"];
const KEY_BEGIN: &str = "-----BEGIN";
const KEY_END: &str = "-----END";

fn names_a_secret(text: &str) -> bool {
    let text = text.to_ascii_lowercase().replace(|c: char| !c.is_alphanumeric(), "_");
    let is_secret = |word: &str| WORDS.contains(&word) || ENDS.iter().any(|end| word.ends_with(end));
    NAMES.iter().any(|name| text.contains(name)) || text.split('_').any(is_secret)
}

/// A text of lines: TOML, a log.
pub(super) fn text(whole: &str) -> String {
    let mut shown = String::new();
    let mut hidden = Hidden::Nothing;
    let mut is_secret_table = false;
    for line in whole.lines() {
        if !matches!(hidden, Hidden::Nothing) {
            hidden = hidden.after(line);
            continue;
        }
        let trimmed = line.trim_start();
        if trimmed.starts_with('[') && !trimmed.contains('=') {
            is_secret_table = names_a_secret(trimmed);
        } else if is_secret_table {
            // A list of lists has lines that look like another table's name.
            hidden = trimmed.split_once('=').map_or(Hidden::Nothing, |(_, value)| Hidden::begun_by(value));
            continue;
        }
        if trimmed.contains(KEY_BEGIN) {
            hidden = Hidden::Key.after(trimmed.split_once(KEY_BEGIN).map_or("", |(_, rest)| rest));
            shown.push_str(LEFT_OUT);
        } else {
            let (line, rest) = without_value(line);
            shown.push_str(&without_credentials(&line));
            hidden = rest.map_or(Hidden::Nothing, Hidden::begun_by);
        }
        shown.push('\n');
    }
    shown
}

/// What goes on in the next line and is left out.
#[derive(Clone, Copy, Debug)]
enum Hidden {
    Nothing,
    /// A private key, up to its end.
    Key,
    /// A value in three quotes, up to the next three.
    Quotes(&'static str),
    /// A list or table with so many open brackets.
    Brackets(usize),
}

impl Hidden {
    /// What a value that begins so leaves for the next lines.
    fn begun_by(value: &str) -> Self {
        let value = value.trim_start();
        for quotes in ["\"\"\"", "'''"] {
            if let Some(rest) = value.strip_prefix(quotes) {
                return Self::Quotes(quotes).after(rest);
            }
        }
        if value.starts_with(['[', '{']) { Self::Brackets(0).after(value) } else { Self::Nothing }
    }

    fn after(self, line: &str) -> Self {
        match self {
            Self::Nothing => self,
            Self::Key if line.contains(KEY_END) => Self::Nothing,
            Self::Quotes(quotes) if line.contains(quotes) => Self::Nothing,
            Self::Key | Self::Quotes(_) => self,
            Self::Brackets(open) => match open_after(open, line) {
                0 => Self::Nothing,
                open => Self::Brackets(open),
            },
        }
    }
}

/// How many brackets are open behind a line; those in quotes are a value's.
fn open_after(mut open: usize, line: &str) -> usize {
    let (mut quote, mut is_escaped) = (None, false);
    for c in line.chars() {
        match (quote, c) {
            (Some('"'), _) if is_escaped => is_escaped = false,
            (Some('"'), '\\') => is_escaped = true,
            (Some(end), _) if c == end => quote = None,
            (Some(_), _) => {}
            (None, '"' | '\'') => quote = Some(c),
            (None, '[' | '{') => open += 1,
            (None, ']' | '}') => open = open.saturating_sub(1),
            (None, '#') => break,
            (None, _) => {}
        }
    }
    open
}

/// Where the value begins that a word of a command line (`--token VALUE`) or of HTTP (`Bearer VALUE`) announces.
fn value_of_a_word(line: &str) -> Option<usize> {
    let mut at = 0;
    for word in line.split_inclusive(char::is_whitespace) {
        at += word.len();
        let name = word.trim_end();
        let announces = name.starts_with("--") && names_a_secret(name) || name.eq_ignore_ascii_case("bearer");
        if announces && !name.contains(['=', ':']) && at < line.len() {
            return Some(at);
        }
    }
    None
}

/// The line up to the value of a name of a secret, and that value; else the whole line.
fn without_value(line: &str) -> (String, Option<&str>) {
    if let Some(at) = value_of_a_word(line) {
        return (format!("{}{LEFT_OUT}", &without_value(&line[..at]).0), None);
    }
    for (at, sign) in line.char_indices().filter(|(_, c)| matches!(c, '=' | ':')) {
        let name = line[..at].rsplit([' ', ',', '{', '=', '\t', ';', '&', '?']).find(|word| !word.is_empty());
        if name.is_some_and(names_a_secret) {
            return (format!("{}{sign} {LEFT_OUT}", &line[..at]), Some(&line[at + sign.len_utf8()..]));
        }
    }
    (line.to_owned(), None)
}

/// `scheme://user:password@host` without the part before the host. A password may have any sign but a blank and a quote: behind `user:`
/// everything up to the last `@` is left out, which may be a part of the path.
fn without_credentials(line: &str) -> String {
    let mut shown = String::new();
    let mut rest = line;
    while let Some((before, after)) = rest.split_once("://") {
        shown.push_str(before);
        shown.push_str("://");
        let url = &after[..after.find([' ', '\t', '"', '\'', '<', '>']).unwrap_or(after.len())];
        let authority = &url[..url.find(['/', '?', '#']).unwrap_or(url.len())];
        let credentials = if authority.contains(':') { url } else { authority };
        rest = match credentials.rfind('@') {
            Some(at) => {
                shown.push_str(LEFT_OUT);
                &after[at..]
            }
            None => after,
        };
    }
    shown + rest
}

/// A JSON value, at every depth.
pub(super) fn json(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (name, inner) in fields.iter_mut() {
                if names_a_secret(name) {
                    *inner = LEFT_OUT.into();
                } else {
                    json(inner);
                }
            }
        }
        Value::Array(values) => values.iter_mut().for_each(json),
        Value::String(words) => {
            let shown = text(words);
            *words = if words.ends_with('\n') { shown } else { shown.trim_end_matches('\n').to_owned() };
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_secrets_are_left_out_however_they_are_written() {
        for secret in [
            "token = \"hunter2\"",
            "a.Private-Key = 'hunter2'",
            "x = { name = 1, api_key = \"hunter2\" }",
            "# password: hunter2",
            "secrets = [\n  \"hunter2\",\n  \"hunter2\"\n]",
            "secrets = { a = [\n\"hunter2\" ],\nb = \"hunter2\" }",
            "token = \"\"\"\nhunter2\n\"\"\"",
            "[server.credentials]\nname = \"hunter2\"\nb = \"hunter2\"",
            "key = '''\n-----BEGIN PRIVATE KEY-----\nhunter2\n-----END PRIVATE KEY-----'''",
            "url = \"https://me:hunter2@host/x\"",
            "2026-11-26 WARN asked with token=hunter2 again",
            "GET http://host/?token=hunter2",
            "passwords = [\n  \"a]b\",\n  \"hunter2\"\n]",
            "[credentials]\nlist = [\n  [\"hunter2\", \"a\"],\n  \"hunter2\"\n]",
            "started: client --user me --auth-token hunter2 --verbose",
            "asked with Bearer hunter2",
            "pass=hunter2",
            "db_pass: hunter2",
            "pwd = \"hunter2\"",
            "key=hunter2",
            "\"api key\": \"hunter2\"",
            "api key: hunter2",
            "sharedAccessKey=hunter2",
            "basic_auth = \"me:hunter2\"",
            "basicAuth: hunter2",
            "GET https://host/blob?se=2026&sig=hunter2",
            "X-Amz-Signature=hunter2",
            "started: client --pass hunter2",
            "asked https://me:hunter2/x@host/y",
            "asked https://me:a/hunter2@host/y",
            "asked https://me:a?hunter2@host/y",
            "asked https://me:a@hunter2@host/y",
            "asked https://me:7/hunter2@host/y",
        ] {
            let shown = text(&format!("{secret}\n[after]\nlink_speed = 7\n"));
            assert!(!shown.contains("hunter2"), "{secret}: {shown}");
            assert!(shown.ends_with("[after]\nlink_speed = 7\n"), "{secret}: {shown}");
        }
    }

    #[test]
    fn what_is_no_secret_stays() {
        let whole = "[[port]]\ndevice = \"eth1\" # key of it\ncpu = 1\noverlay = { vxlan = { learn_from = \"flannel.1\" } }\nhttp://host/a@b\n\
                     allow_policy_bypass = true\nhttp://host:80/a\nssh://me\n";
        assert_eq!(text(whole), whole);
    }

    #[test]
    fn json_is_left_out_at_every_depth() {
        let mut value = serde_json::json!({ "a": [{ "authToken": [1, 2], "url": "x://u:p@h", "n": 1 }], "psk": "x",
                "why": "line 3:\n  token = \"hunter2\"\nGET /?api_key=hunter2", "name": "a: b" });
        json(&mut value);
        let expected = serde_json::json!({ "a": [{ "authToken": LEFT_OUT, "url": "x://(left out)@h", "n": 1 }], "psk": LEFT_OUT,
            "why": "line 3:\n  token = (left out)\nGET /?api_key= (left out)", "name": "a: b" });
        assert_eq!(value, expected);
    }
}
