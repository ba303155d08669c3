// SPDX-License-Identifier: Apache-2.0
//! Target `qmp`: what QEMU's monitor says, of a QEMU that the guest may own.
//!
//! In: the length of pieces (one octet), then what is said. Out: nothing. Broken promise: a message that depends on the pieces in which it
//! came; another one than its line says; one before the greeting; a line longer than allowed; words that are long or control a terminal.

use crate::monitor_lines::{Decoder, LINE_OCTETS_MAX, Message, REFUSAL_MAX, Violation};
use serde_json::Value;

/// The messages in these octets.
fn heard(octets: &[u8], piece: usize) -> (Vec<Message>, Option<Violation>) {
    let (mut decoder, mut heard) = (Decoder::default(), Vec::new());
    let violation =
        octets.chunks(piece).find_map(|part| decoder.take(part, &mut |message| heard.push(message)).err());
    assert_eq!(decoder.is_greeted(), !heard.is_empty(), "the greeting is the first message");
    (heard, violation)
}

/// Whether this message is what the line says.
fn is_of(line: &[u8], message: &Message) -> bool {
    let said: Value = serde_json::from_slice(line).expect("a message of a line that is no JSON");
    let has = |member: &str| said.get(member).is_some();
    match message {
        Message::Greeting => has("QMP"),
        Message::Answer(answer) => said["return"] == *answer && has("return"),
        Message::Refusal(why) => {
            assert!(why.chars().count() <= REFUSAL_MAX && !why.chars().any(char::is_control), "{why:?}");
            has("error") && !has("return")
        }
        Message::Disruption => said["event"] == "RESUME" || said["event"] == "WAKEUP",
        Message::Other => said.is_object() && !has("return") && !has("error"),
    }
}

/// See the module.
pub fn qmp(data: &[u8]) {
    let Some((&piece, octets)) = data.split_first() else { return };
    let whole = heard(octets, usize::MAX);
    assert_eq!(whole, heard(octets, usize::from(piece) + 1));
    let (messages, violation) = whole;
    let mut lines = octets.split_inclusive(|&octet| octet == b'\n');
    for (at, message) in messages.iter().enumerate() {
        let line = lines.next().expect("more messages than lines");
        assert!(line.len() <= LINE_OCTETS_MAX && line.ends_with(b"\n"));
        assert_eq!(at == 0, *message == Message::Greeting, "the greeting is the first message, and it alone");
        assert!(is_of(line, message), "{message:?}");
    }
    // What follows is the line that broke the rules, or one without its end.
    match (lines.next(), violation) {
        (Some(line), Some(Violation::TooLong)) => assert!(line.len() > LINE_OCTETS_MAX),
        (Some(line), Some(_)) => assert!(line.ends_with(b"\n")),
        (Some(line), None) => assert!(!line.ends_with(b"\n") && lines.next().is_none()),
        (None, violation) => assert_eq!(violation, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The corpus reaches what its names say.
    #[test]
    fn corpus_of_qmp_gets_far() {
        let said = |data: &'static [u8]| heard(&data[1..], usize::from(data[0]) + 1);
        let (messages, violation) = said(include_bytes!("../corpus/qmp/whole.bin"));
        let kinds = [
            Message::Greeting,
            Message::Answer(serde_json::json!({})),
            Message::Disruption,
            Message::Other,
            Message::Refusal("no such device[2J".to_owned()),
        ];
        assert_eq!((messages, violation), (kinds.to_vec(), None));
        let violation = |data| said(data).1;
        assert_eq!(violation(include_bytes!("../corpus/qmp/no-greeting.bin")), Some(Violation::NoGreeting));
        assert_eq!(violation(include_bytes!("../corpus/qmp/human.bin")), Some(Violation::NoGreeting));
        assert_eq!(violation(include_bytes!("../corpus/qmp/no-object.bin")), Some(Violation::NoObject));
        // None of the corpus: that is cut at every length.
        for octets in [LINE_OCTETS_MAX, LINE_OCTETS_MAX + 1] {
            let line = [&b"{\"QMP\": 0}\n"[..], &vec![b' '; octets - 3], b"{}\n"].concat();
            let (messages, violation) = heard(&line, 4096);
            let is_allowed = octets == LINE_OCTETS_MAX;
            assert_eq!(
                (messages.len(), violation),
                if is_allowed { (2, None) } else { (1, Some(Violation::TooLong)) }
            );
            qmp(&[&[255], &line[..]].concat());
        }
    }
}
