// SPDX-License-Identifier: Apache-2.0
//! Target `far`: what the other host of an experiment says, and what a first host says to it.
//!
//! In: the length of pieces (one octet), then what is said. Out: nothing. Broken promise: a message out of turn, longer than allowed, or other
//! than its octets; a message that depends on the pieces in which it came; a name that leaves its directory.

use crate::far_frames::{Decoder, Message, Order, PAYLOAD_OCTETS_MAX, Violation};

/// The messages in these octets, as octets again.
fn heard(octets: &[u8], piece: usize) -> (Vec<u8>, Option<Violation>) {
    let (mut decoder, mut heard) = (Decoder::default(), Vec::new());
    let (mut count, mut is_ready, mut has_ended, mut of_file) = (0, false, false, 0);
    let mut hear = |message: Message<'_>| {
        assert_eq!(count == 0, message == Message::Started, "the start is the first message, and it alone");
        count += 1;
        let is_talk = !matches!(message, Message::File(_) | Message::Data(_) | Message::NoFile(_));
        assert!(!(is_talk && (has_ended || of_file > 0)), "{message:?} after the end or within a file");
        match message {
            Message::Started => {}
            Message::Ready => assert!(!std::mem::replace(&mut is_ready, true), "ready twice"),
            Message::Stdout(octets) | Message::Stderr(octets) => {
                assert!((1..=PAYLOAD_OCTETS_MAX).contains(&octets.len()));
            }
            Message::Ended(_) => has_ended = true,
            Message::File(size) => {
                assert_eq!(of_file, 0, "a file within a file");
                of_file = size;
            }
            Message::Data(octets) => {
                assert!(!octets.is_empty() && octets.len() <= PAYLOAD_OCTETS_MAX);
                of_file = of_file.checked_sub(octets.len() as u64).expect("more than was announced");
            }
            Message::NoFile(octets) => assert!(of_file == 0 && octets.len() <= PAYLOAD_OCTETS_MAX),
        }
        message.write(&mut heard).expect("what was read can be written");
    };
    let violation = octets.chunks(piece).find_map(|part| decoder.take(part, &mut hear).err());
    assert!(octets.starts_with(&heard), "a message is not what was sent");
    (heard, violation)
}

/// See the module.
pub fn far(data: &[u8]) {
    let Some((&piece, octets)) = data.split_first() else { return };
    let whole = heard(octets, usize::MAX);
    assert_eq!(whole, heard(octets, usize::from(piece) + 1));
    let Ok(line) = std::str::from_utf8(octets) else { return };
    let Some(order) = Order::of_line(line) else { return };
    assert_eq!(order.to_string(), line);
    if let Order::Fetch(name) = order {
        let path = std::path::Path::new(&name);
        let is_plain = |part| matches!(part, std::path::Component::Normal(_));
        assert!(path.is_relative() && path.components().all(is_plain), "{name} leaves its directory");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The corpus reaches what its names say.
    #[test]
    fn corpus_of_far_gets_far() {
        let said = |data: &'static [u8]| {
            let (heard, violation) = heard(&data[1..], usize::from(data[0]) + 1);
            (heard.len() == data.len() - 1, violation.is_some())
        };
        assert_eq!(said(include_bytes!("../corpus/far/whole.bin")), (true, false));
        assert_eq!(said(include_bytes!("../corpus/far/after-end.bin")), (false, true));
        assert_eq!(said(include_bytes!("../corpus/far/too-long.bin")), (false, true));
        let order = &include_bytes!("../corpus/far/fetch.bin")[1..];
        assert_eq!(Order::of_line(std::str::from_utf8(order).unwrap()), Some(Order::Fetch("a/b.csv".into())));
    }
}
