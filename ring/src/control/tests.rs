// SPDX-License-Identifier: Apache-2.0
use proptest::prelude::*;

use super::{
    ControlError, Expect, Hello, HelloReply, HelloStatus, MESSAGE_OCTETS_MAX, Message, Register, ShowPort,
    TxtimeClaim, Unregister, parse, select_abi,
};

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
    let mut register = Register { stream_index: 7, token: 0x0a0b_0c0d, txtime: TxtimeClaim::Kernels };
    assert_eq!(&register.encode(), b"KTSNRNG\0\x03\0\0\0\x07\0\0\0\x0d\x0c\x0b\x0a\0\0\0\0");
    register.txtime = TxtimeClaim::Asked;
    assert_eq!(register.encode()[20..], [1, 0, 0, 0]);
    register.txtime = TxtimeClaim::Tai(3);
    assert_eq!(register.encode()[20..], [2, 3, 0, 0]);
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
        parse(&message)
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
        parse(&message)
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
        parse(&message)
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
        kind in 0u8..8,
        length in 0usize..=MESSAGE_OCTETS_MAX + 1,
        body in proptest::array::uniform32(prop_oneof![3 => Just(0u8), 1 => any::<u8>()]),
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
            Err(_) => {}
        }
        if let Ok(reply) = HelloReply::parse(message) {
            prop_assert_eq!(message, &reply.encode()[..]);
        }
    }
}
