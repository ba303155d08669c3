// SPDX-License-Identifier: Apache-2.0
//! Names as they may be written to a terminal.
//!
//! In: text that other programs chose (names of attachments, ports, namespaces, reasons). Out: the same text without anything that a
//! terminal would obey, or that changes the order of what is beside it.

/// Takes the place of each character that is left out.
const LEFT_OUT: char = '\u{fffd}';

/// True for characters that are no part of a visible text: controls (C0, DEL, C1), and formats that hide or reorder text.
fn is_unsafe(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{ad}' | '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

/// The text with U+FFFD in place of each unsafe character.
#[must_use]
pub fn plain(text: &str) -> String {
    text.chars().map(|c| if is_unsafe(c) { LEFT_OUT } else { c }).collect()
}

/// A JSON document with its unsafe characters as escapes: a program reads the same names, a terminal obeys none of them.
/// Such characters stand only inside of strings.
#[must_use]
pub fn escaped(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    for c in json.chars() {
        if is_unsafe(c) {
            let mut units = [0; 2];
            c.encode_utf16(&mut units).iter().for_each(|unit| text.push_str(&format!("\\u{unit:04x}")));
        } else {
            text.push(c);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_a_terminal_obeys_passes() {
        assert_eq!(plain("pod-a/eth0 µ 漢字"), "pod-a/eth0 µ 漢字");
        assert_eq!(
            plain("a\x1b[2Jb\u{9b}c\u{7f}\r\n\u{202e}d"),
            "a\u{fffd}[2Jb\u{fffd}c\u{fffd}\u{fffd}\u{fffd}\u{fffd}d"
        );
        for c in (0..=0x10_ffff).filter_map(char::from_u32).filter(|c| c.is_control()) {
            assert_eq!(plain(&c.to_string()), "\u{fffd}");
        }
    }

    #[test]
    fn escaped_json_means_the_same() {
        let name = "a\x1b\u{9b}31m\u{202e}\u{7f}\"\\µ";
        let text = escaped(&serde_json::json!({ "name": name }).to_string());
        assert!(!text.chars().any(is_unsafe), "{text}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap()["name"], name);
    }
}
