// SPDX-License-Identifier: Apache-2.0
//! Target `guest`: what a guest of `ktsn vm run` says to its host.
//!
//! In: the length of pieces (one octet), then what the guest says. Out: nothing. Broken promise: a message out of turn, longer than allowed,
//! or other than its octets; a message that depends on the pieces in which it came.

use crate::guest_protocol::{Decoder, Message, PAYLOAD_OCTETS_MAX, Violation};

/// The messages in these octets, as octets again.
fn heard(octets: &[u8], piece: usize) -> (Vec<u8>, Option<Violation>) {
    let (mut decoder, mut heard) = (Decoder::default(), Vec::new());
    let (mut is_ready, mut has_file, mut has_ended) = (false, false, false);
    let mut hear = |message: Message<'_>| {
        assert!(!has_ended, "a message after the end: {message:?}");
        match message {
            Message::Ready => assert!(!std::mem::replace(&mut is_ready, true), "ready twice"),
            Message::Part(octets) if !has_file => panic!("a part of no file: {octets:?}"),
            Message::Stdout(octets)
            | Message::Stderr(octets)
            | Message::Clock(octets)
            | Message::File(octets)
            | Message::Part(octets) => {
                has_file |= matches!(message, Message::File(_));
                assert!(octets.len() <= PAYLOAD_OCTETS_MAX);
            }
            Message::Impossible(_) => {
                assert!(!is_ready, "impossible, and ready");
                has_ended = true;
            }
            Message::Ended(_) => has_ended = true,
        }
        let is_early = matches!(message, Message::Clock(_) | Message::Impossible(_));
        assert!(is_ready || is_early, "{message:?} before it is ready");
        message.write(&mut heard).expect("what was read can be written");
    };
    let violation = octets.chunks(piece).find_map(|part| decoder.take(part, &mut hear).err());
    assert!(octets.starts_with(&heard), "a message is not what was sent");
    (heard, violation)
}

/// See the module.
pub fn guest(data: &[u8]) {
    let Some((&piece, octets)) = data.split_first() else { return };
    let whole = heard(octets, usize::MAX);
    assert_eq!(whole, heard(octets, usize::from(piece) + 1));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The corpus reaches what its names say.
    #[test]
    fn corpus_of_guest_gets_far() {
        let said = |data: &'static [u8]| {
            let (heard, violation) = heard(&data[1..], usize::from(data[0]) + 1);
            (heard.len() == data.len() - 1, violation.is_some())
        };
        assert_eq!(said(include_bytes!("../corpus/guest/whole.bin")), (true, false));
        assert_eq!(said(include_bytes!("../corpus/guest/killed.bin")), (true, false));
        assert_eq!(said(include_bytes!("../corpus/guest/files.bin")), (true, false));
        assert_eq!(said(include_bytes!("../corpus/guest/part-of-none.bin")), (false, true));
        assert_eq!(said(include_bytes!("../corpus/guest/after-end.bin")), (false, true));
        assert_eq!(said(include_bytes!("../corpus/guest/too-long.bin")), (false, true));
    }
}
