// SPDX-License-Identifier: Apache-2.0
//! The one thing that JSON says and YAML does not: characters beyond U+FFFF as two `\u` escapes.

use crate::fault::{Fault, Position};

/// How much longer the escapes were than the character that stands for them now.
const SHORTER_BY: usize = 11;

/// A text with those characters as themselves, and where each one ends now.
pub(super) struct Unescaped {
    pub(super) text: String,
    ends: Vec<Position>,
}

impl Unescaped {
    /// The text must be JSON: an escape outside of a string would be taken for one inside.
    pub(super) fn new(json: &str) -> Self {
        let mut unescaped = Self { text: String::with_capacity(json.len()), ends: Vec::new() };
        let mut at = Position::START;
        let mut rest = json;
        while let Some(character) = rest.chars().next() {
            let is_escape = character == '\\';
            // An escape is two characters at least: the second of `\\` begins none.
            let length = character.len_utf8() + usize::from(is_escape && rest.len() > 1);
            match is_escape.then(|| pair(rest)).flatten() {
                Some(character) => {
                    unescaped.text.push(character);
                    rest = &rest[SHORTER_BY + 1..];
                    at.column += 1;
                    unescaped.ends.push(at);
                }
                None => {
                    // In JSON only ASCII follows a backslash.
                    let (taken, left) = rest.split_at_checked(length).unwrap_or((rest, ""));
                    unescaped.text.push_str(taken);
                    rest = left;
                    if character == '\n' {
                        at = Position { line: at.line + 1, column: 1 };
                    } else {
                        at.column += taken.chars().count();
                    }
                }
            }
        }
        unescaped
    }

    /// Puts a fault where it stands in the JSON.
    pub(super) fn restore(&self, fault: &mut Fault) {
        let before = |end: &&Position| end.line == fault.at.line && end.column <= fault.at.column;
        fault.at.column += self.ends.iter().filter(before).count() * SHORTER_BY;
    }
}

/// The character of `\uD83D\uDE00` at the text's start.
fn pair(text: &str) -> Option<char> {
    let unit = |text: &str| u32::from_str_radix(text.strip_prefix("\\u")?.get(..4)?, 16).ok();
    let high = unit(text).filter(|unit| (0xd800..0xdc00).contains(unit))?;
    let low = unit(text.get(6..)?).filter(|unit| (0xdc00..0xe000).contains(unit))?;
    char::from_u32(0x1_0000 + ((high - 0xd800) << 10) + (low - 0xdc00))
}

#[cfg(test)]
mod tests {
    use crate::{Format, parse};

    #[test]
    fn characters_beyond_the_first_plane_are_read_and_places_stay() {
        let table = "\"gate-parameter-table\": {\"gate-enabled\": true}";
        let text = format!("{{ {table}, \"name\": \"\\\\ud83d \\ud83d\\ude00\\ud83d\\ude00 ü\" }}");
        let schedule = parse(&text, Format::Json).unwrap_or_else(|faults| panic!("{faults}"));
        assert_eq!(schedule.name.as_deref(), Some("\\ud83d 😀😀 ü"));
        let text = format!("{{ \"name\": \"\\ud83d\\ude00\", \"mtu\": 0, {table},\n\"hand-over\": -1 }}");
        let faults = parse(&text, Format::Json).expect_err("two faults").to_string();
        assert!(faults.starts_with("1:34: mtu: ") && faults.contains("\n2:14: hand-over: "), "{faults}");
        for text in ["{\"name\": \"\\ud83d\"}", "{\"name\": \"\\ude00\\ud83d\"}", "{\"name\": \"\\ud83dx\"}"]
        {
            assert!(
                parse(text, Format::Json).expect_err(text).to_string().contains("syntax error"),
                "{text}"
            );
        }
    }
}
