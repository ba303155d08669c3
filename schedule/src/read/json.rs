// SPDX-License-Identifier: Apache-2.0
//! The one thing that JSON says and YAML does not: characters beyond U+FFFF as two `\u` escapes.

/// Returns the JSON with those characters written as themselves. Spaces behind a string that got shorter keep the places of what follows it.
/// The text must be JSON: an escape outside of a string would be taken for one inside.
pub(super) fn without_pairs(json: &str) -> String {
    const PAIR_OCTETS: usize = 12;
    let mut text = String::with_capacity(json.len());
    let (mut rest, mut missing) = (json, 0);
    while let Some(character) = rest.chars().next() {
        if let Some(character) = pair(rest) {
            text.push(character);
            rest = &rest[PAIR_OCTETS..];
            missing += PAIR_OCTETS - 1;
            continue;
        }
        // The second octet of an escape begins no escape and ends no string. It is ASCII.
        let length = if character == '\\' { 2 } else { character.len_utf8() };
        let (taken, left) = rest.split_at_checked(length).unwrap_or((rest, ""));
        text.push_str(taken);
        rest = left;
        if character == '"' {
            text.extend(std::iter::repeat_n(' ', missing));
            missing = 0;
        }
    }
    text
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
