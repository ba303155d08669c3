// SPDX-License-Identifier: Apache-2.0
//! Escaping: in: text of any origin. Out: text that a browser, or plotly, shows as it is and never obeys.
//! Every string that comes from a file passes through here.

/// Text for an HTML element or a quoted attribute.
pub(super) fn html(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            '\t' | '\n' => escaped.push(character),
            // Control characters can't be seen; bidirectional overrides make text read as something else.
            '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => escaped.push('\u{fffd}'),
            character if character.is_control() => escaped.push('\u{fffd}'),
            character => escaped.push(character),
        }
    }
    escaped
}

/// Text for a label of a plot: plotly reads a few HTML tags and entities in its labels.
pub(super) fn label(text: &str) -> String {
    text.chars()
        .map(|character| match character {
            '&' => "&amp;".to_owned(),
            '<' => "&lt;".to_owned(),
            '>' => "&gt;".to_owned(),
            character if character.is_control() => "\u{fffd}".to_owned(),
            character => character.to_string(),
        })
        .collect()
}

/// JSON for a `<script type="application/json">`: nothing in it can end the element, and it stays the same JSON.
pub(super) fn json_in_script(json: &str) -> String {
    json.replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026")
}

/// One word of a POSIX shell command line, quoted if it needs to be.
pub(super) fn shell_word(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:,=@%+".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markup_becomes_text() {
        assert_eq!(
            html("<img src=x onerror='a(\"b\")'>&"),
            "&lt;img src=x onerror=&#39;a(&quot;b&quot;)&#39;&gt;&amp;"
        );
        assert_eq!(html("a\u{0}b\u{202e}c\u{1b}[0m"), "a\u{fffd}b\u{fffd}c\u{fffd}[0m");
        assert_eq!(label("<a href=\"x\">&\n"), "&lt;a href=\"x\"&gt;&amp;\u{fffd}");
    }

    #[test]
    fn json_cannot_leave_its_script_element_and_stays_the_same() {
        let value = serde_json::json!({ "a": "</script><!--<script>&amp;", "n": 1.5 });
        let escaped = json_in_script(&value.to_string());
        assert!(!escaped.contains(['<', '>', '&']));
        assert_eq!(serde_json::from_str::<serde_json::Value>(&escaped).unwrap(), value);
    }

    #[test]
    fn shell_words_survive_a_shell() {
        assert_eq!(shell_word("--seconds"), "--seconds");
        assert_eq!(shell_word(""), "''");
        assert_eq!(shell_word("a b'c;$(d)"), "'a b'\\''c;$(d)'");
    }
}
