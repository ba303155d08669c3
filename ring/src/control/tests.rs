// SPDX-License-Identifier: Apache-2.0
use std::format;
use std::vec;
use std::vec::Vec;

use proptest::prelude::*;

use super::{
    ControlError, Expect, Hello, HelloReply, HelloStatus, LATER_CONTROL_MAX, LATER_OCTETS_MAX, LaterHeader,
    MESSAGE_OCTETS_MAX, Message, Register, ShowPort, TxtimeClaim, Unregister, parse, select_abi,
};

/// A `Later` as a program sends it.
fn later(header: LaterHeader, parts: [&[u8]; 3]) -> Vec<u8> {
    header.encode().iter().flat_map(|word| word.to_ne_bytes()).chain(parts.concat()).collect()
}

#[test]
fn a_datagram_follows_its_header() {
    let header = LaterHeader {
        clock: 11,
        tx_time: 0x0102_0304_0506_0708,
        flags: 0x800,
        name_octets: 2,
        control_octets: 3,
        payload_octets: 4,
    };
    let message = later(header, [b"to", b"how", b"what"]);
    let octets = b"KTSNRNG\0\x07\0\0\0\x0b\0\0\0\x08\x07\x06\x05\x04\x03\x02\x01\0\x08\0\0\x02\0\0\0\x03\0\0\0\x04\0\0\0tohowwhat";
    assert_eq!(message, octets);
    let Ok(Message::Later(read)) = parse(&message) else { panic!("{:?}", parse(&message)) };
    assert_eq!(
        (read.header, read.name, read.control, read.payload),
        (header, &b"to"[..], &b"how"[..], &b"what"[..])
    );
    assert!(!format!("{read:?}").contains("119"), "the log has none of the program's octets");
    for length in 0..message.len() {
        assert!(parse(&message[..length]).is_err(), "{length}");
    }
    let longest = LaterHeader { name_octets: 128, control_octets: 1024, payload_octets: 65_535, ..header };
    let longest = later(longest, [&[1; 128], &[2; 1024], &[3; 65_535]]);
    assert_eq!(longest.len(), LATER_OCTETS_MAX);
    assert!(matches!(parse(&longest), Ok(Message::Later(_))));
}

#[test]
fn a_datagram_with_a_wrong_header_is_refused() {
    let good = LaterHeader { clock: 1, ..LaterHeader::default() };
    let refused = |header| parse(&later(header, [&[], &[], &[]])).unwrap_err();
    assert_eq!(refused(LaterHeader { clock: 2, ..good }), ControlError::Clock(2));
    // MSG_MORE, MSG_OOB, MSG_ZEROCOPY.
    for flags in [0x8000, 1, 0x0400_0000] {
        assert_eq!(refused(LaterHeader { flags, ..good }), ControlError::Reserved);
    }
    for header in [
        LaterHeader { name_octets: 1, ..good },
        LaterHeader { name_octets: u32::MAX, ..good },
        LaterHeader { control_octets: 1, ..good },
        LaterHeader { payload_octets: u32::MAX, ..good },
    ] {
        assert_eq!(refused(header), ControlError::Length(40));
    }
    let long = LATER_CONTROL_MAX as u32 + 1;
    let message = later(LaterHeader { control_octets: long, ..good }, [&[], &vec![0; long as usize], &[]]);
    assert_eq!(parse(&message), Err(ControlError::Length(message.len())));
    let mut reserved = later(good, [&[], &[], &[]]);
    reserved[10] = 1;
    assert_eq!(parse(&reserved), Err(ControlError::Reserved));
}

#[test]
fn octets_follow_the_page() {
    let hello = Hello { abi_min: 1, abi_max: 0x0203, interface_index: 0 };
    assert_eq!(hello.encode().as_slice(), b"KTSNRNG\0\x01\0\x01\0\x03\x02\0\0");
    let hello = Hello { interface_index: 0x0102_0304, ..hello };
    assert_eq!(hello.encode().as_slice(), b"KTSNRNG\0\x01\0\x01\0\x03\x02\0\0\x04\x03\x02\x01\0\0\0\0");
    let reply = HelloReply {
        status: HelloStatus::Version,
        abi: 5,
        abi_min: 4,
        region_octets: 0x0102_0304,
        interface_index: 9,
    };
    assert_eq!(&reply.encode(), b"KTSNRNG\0\x02\0\x02\0\x05\0\x04\0\x04\x03\x02\x01\x09\0\0\0");
    let mut register =
        Register { stream_index: 7, token: 0x0a0b_0c0d, txtime: TxtimeClaim::Kernel, is_kept: false };
    assert_eq!(&register.encode(), b"KTSNRNG\0\x03\0\0\0\x07\0\0\0\x0d\x0c\x0b\x0a\0\0\0\0");
    register.txtime = TxtimeClaim::Asked;
    assert_eq!(register.encode()[20..], [1, 0, 0, 0]);
    register.txtime = TxtimeClaim::Tai(3);
    assert_eq!(register.encode()[20..], [2, 3, 0, 0]);
    register.is_kept = true;
    assert_eq!(register.encode()[20..], [2, 3, 0, 0x80]);
    assert_eq!(parse(&register.encode()), Ok(Message::Register(register)));
    let unregister = Unregister { stream_index: 7, token: 1 };
    assert_eq!(&unregister.encode(), b"KTSNRNG\0\x04\0\0\0\x07\0\0\0\x01\0\0\0\0\0\0\0");
    let shown = ShowPort { stream_index: 7, token: 1 };
    assert_eq!(&shown.encode(), b"KTSNRNG\0\x05\0\0\0\x07\0\0\0\x01\0\0\0\0\0\0\0");
    assert_eq!(&Expect.encode(), b"KTSNRNG\0\x06\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0");
}

#[test]
fn bad_messages_have_names() {
    let hello: [u8; 16] =
        Hello { abi_min: 1, abi_max: 1, interface_index: 0 }.encode().as_slice().try_into().unwrap();
    let with = |at: usize, value: u8| {
        let mut message = hello;
        message[at] = value;
        parse(Vec::from(message).leak())
    };
    assert_eq!(parse(&[]), Err(ControlError::Length(0)));
    assert_eq!(parse(&hello[..15]), Err(ControlError::Length(15)));
    assert_eq!(parse(&[0; 32]), Err(ControlError::Length(32)));
    assert!(matches!(with(0, b'k'), Err(ControlError::Magic(_))));
    assert_eq!(with(8, 9), Err(ControlError::Type(9)));
    assert_eq!(with(8, 2), Err(ControlError::Type(2)));
    assert_eq!(with(8, 3), Err(ControlError::Length(16)));
    let at = |interface: u32, rest: u8| {
        let mut message = [&hello[..], &interface.to_le_bytes(), &[0; 4]].concat();
        message[20] = rest;
        parse(message.leak())
    };
    let named = Message::Hello(Hello { abi_min: 1, abi_max: 1, interface_index: 7 });
    assert_eq!(at(7, 0), Ok(named));
    assert_eq!(at(0, 0), Err(ControlError::Reserved));
    assert_eq!(at(7, 1), Err(ControlError::Reserved));
    assert_eq!(with(14, 1), Err(ControlError::Reserved));
    assert_eq!(with(10, 2), Err(ControlError::AbiRange(2, 1)));
    assert_eq!(with(10, 0), Err(ControlError::AbiRange(0, 1)));
    assert_eq!(HelloReply::parse(&hello), Err(ControlError::Type(1)));
    let claim = |kind: u8, claim: [u8; 4]| {
        let mut message = Unregister { stream_index: 0, token: 1 }.encode();
        message[8] = kind;
        message[20..].copy_from_slice(&claim);
        parse(Vec::from(message).leak())
    };
    assert_eq!(claim(3, [3, 0, 0, 0]), Err(ControlError::Claim(3)));
    assert_eq!(claim(3, [2, 4, 0, 0]), Err(ControlError::Claim(0x402)));
    assert_eq!(claim(3, [1, 1, 0, 0]), Err(ControlError::Claim(0x101)));
    assert_eq!(claim(4, [1, 0, 0, 0]), Err(ControlError::Reserved));
    assert_eq!(claim(5, [1, 0, 0, 0]), Err(ControlError::Reserved));
    for at in 10..MESSAGE_OCTETS_MAX {
        let mut message = Expect.encode();
        message[at] = 1;
        assert_eq!(parse(&message), Err(ControlError::Reserved), "octet {at}");
    }
    assert_eq!(parse(&Expect.encode()[..16]), Err(ControlError::Length(16)));
}

#[test]
fn the_highest_common_abi_wins() {
    assert_eq!(select_abi((1, 1), (1, 1)), Some(1));
    assert_eq!(select_abi((1, 3), (2, 9)), Some(3));
    assert_eq!(select_abi((2, 9), (1, 3)), Some(3));
    assert_eq!(select_abi((1, 1), (2, 3)), None);
    assert_eq!(select_abi((4, 5), (2, 3)), None);
}

proptest! {
    /// A message that is accepted is exactly the encoding of what was understood.
    #[test]
    fn accepted_means_canonical(
        kind in 0u8..9,
        length in prop_oneof![0usize..=MESSAGE_OCTETS_MAX + 1, 39usize..48],
        body in proptest::collection::vec(prop_oneof![3 => Just(0u8), 1 => any::<u8>()], 48),
    ) {
        let mut message = body;
        message[..8].copy_from_slice(b"KTSNRNG\0");
        message[8] = kind;
        message[9] = 0;
        let message = &message[..length];
        match parse(message) {
            Ok(Message::Hello(hello)) => {
                let encoded = hello.encode();
                prop_assert_eq!(message, encoded.as_slice());
            }
            Ok(Message::Register(register)) => prop_assert_eq!(message, &register.encode()[..]),
            Ok(Message::Unregister(unregister)) => prop_assert_eq!(message, &unregister.encode()[..]),
            Ok(Message::Expect(expect)) => prop_assert_eq!(message, &expect.encode()[..]),
            Ok(Message::ShowPort(shown)) => prop_assert_eq!(message, &shown.encode()[..]),
            Ok(Message::Later(sent)) => {
                prop_assert_eq!(message, &later(sent.header, [sent.name, sent.control, sent.payload])[..]);
            }
            Err(_) => {}
        }
        if let Ok(reply) = HelloReply::parse(message) {
            prop_assert_eq!(message, &reply.encode()[..]);
        }
    }
}
