// SPDX-License-Identifier: Apache-2.0
//! Messages and jobs in any pieces, and guests that lie.

use super::protocol::{Clock, Decoder, Ended, Job, Message, PAYLOAD_OCTETS_MAX, Violation};
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;

/// What a decoder makes of octets in pieces of one length.
fn heard(octets: &[u8], piece: usize) -> Result<Vec<String>, Violation> {
    let (mut decoder, mut heard) = (Decoder::default(), Vec::new());
    for part in octets.chunks(piece) {
        decoder.take(part, &mut |message| heard.push(format!("{message:?}")))?;
    }
    Ok(heard)
}

#[test]
fn messages_come_as_they_were_sent_in_pieces_of_any_length() {
    let long = vec![7; PAYLOAD_OCTETS_MAX];
    for ended in [Ended::Exited(0), Ended::Exited(255), Ended::Killed(9), Ended::NotStarted(2)] {
        let sent = [
            Message::Ready,
            Message::Stdout(b"out"),
            Message::Stderr(b""),
            Message::Stdout(&long),
            Message::Stderr(b"\xff\n"),
            Message::File(b"/root/a b"),
            Message::Part(b"\0\r"),
            Message::Ended(ended),
        ];
        let mut octets = Vec::new();
        for message in &sent {
            message.write(&mut octets).unwrap();
        }
        let expected: Vec<String> = sent.iter().map(|message| format!("{message:?}")).collect();
        for piece in [1, 2, 3, 5, 6, 7, 1000, octets.len()] {
            assert_eq!(heard(&octets, piece).unwrap(), expected, "pieces of {piece}");
        }
        // A message that is not complete is not heard.
        assert_eq!(heard(&octets[..octets.len() - 1], 4096).unwrap(), expected[..7]);
    }
    let too_long = vec![0; PAYLOAD_OCTETS_MAX + 1];
    assert!(Message::Stdout(&too_long).write(&mut Vec::new()).is_err());
}

#[test]
fn a_guest_that_lies_is_found_out_at_once() {
    const READY: &[u8] = b"r\0\0\0\0";
    let after_ready = |rest: &[u8]| heard(&[READY, rest].concat(), 3);
    assert_eq!(heard(b"q\0\0\0\0", 1), Err(Violation::Kind(b'q')));
    assert_eq!(after_ready(b"\x1b\0\0\0\0"), Err(Violation::Kind(0x1b)));
    // The length is refused before any octet of what it announces.
    assert_eq!(after_ready(b"o\x01\0\x01\0"), Err(Violation::Length(b'o', 65_537)));
    assert_eq!(after_ready(b"e\xff\xff\xff\xff"), Err(Violation::Length(b'e', u32::MAX)));
    assert_eq!(after_ready(b"x\0\0\0\0"), Err(Violation::Length(b'x', 0)));
    assert_eq!(after_ready(b"k\x02\0\0\0\0\0"), Err(Violation::Length(b'k', 2)));
    assert_eq!(heard(b"r\x01\0\0\0", 9), Err(Violation::Length(b'r', 1)));
    assert_eq!(heard(b"o\0\0\0\0", 9), Err(Violation::Order(b'o')));
    assert_eq!(heard(b"f\0\0\0\0", 9), Err(Violation::Order(b'f')));
    assert_eq!(after_ready(b"p\0\0\0\0"), Err(Violation::Order(b'p')));
    assert_eq!(after_ready(READY), Err(Violation::Order(b'r')));
    assert_eq!(after_ready(b"x\x01\0\0\0\0o\0\0\0\0"), Err(Violation::Order(b'o')));
    assert_eq!(after_ready(b"x\x01\0\0\0\0k\x01\0\0\0\x09"), Err(Violation::Order(b'k')));
}

#[test]
fn a_job_comes_whole() {
    let arguments: [&[u8]; 6] = [b"sh", b"-c", b"", b"a\nb", b"\xff\xfe", b"--"];
    let job = Job {
        in_host_tree: true,
        has_user_network: false,
        address: "10.0.0.2/24".to_owned(),
        clock: Clock::Chrony,
        time_server: "10.0.0.1 4711".to_owned(),
        directory: "/a b".into(),
        bring: vec!["/x".into(), "/y z".into()],
        program: arguments.iter().map(|argument| OsString::from_vec(argument.to_vec())).collect(),
    };
    assert_eq!(Job::decode(&job.encode()), Some(job.clone()));
    for damaged in [
        &b""[..],
        b"\0",
        b"1\x000\0\0none\0\0/\x000\0",
        b"1\x000\0\0none\0\0/\x001\0sh\0",
        b"1\x000\0\0none\0\0/\x002\0sh\0",
        b"1\x000\0\0none\0\0/\0sh\0",
        b"2\x000\0\0none\0\0/\x000\0sh\0",
        b"1\x000\0\0sun\0\0/\x000\0sh\0",
        b"1\x000\0\0none\0\0/\x000\0sh",
    ] {
        assert_eq!(Job::decode(damaged), None, "{damaged:?}");
    }
}
