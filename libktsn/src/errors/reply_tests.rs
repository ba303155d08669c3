// SPDX-License-Identifier: Apache-2.0
//! Headers as programs pass them: what fits, what does not, what the kernel would say.

use super::*;

struct Program {
    data: [[u8; 5]; 3],
    control: [u64; 8],
    segments: [Segment; 3],
    header: MessageHeader,
}

/// Three segments of five octets and `control` octets for control messages.
fn program(control: usize) -> Box<Program> {
    let nothing = Segment { base: core::ptr::null(), octets: 0 };
    let header = MessageHeader {
        name: core::ptr::null(),
        name_octets: 77,
        segments: core::ptr::null(),
        segments_count: 3,
        control: core::ptr::null(),
        control_octets: control,
        flags: -1,
    };
    let mut program =
        Box::new(Program { data: [[0xee; 5]; 3], control: [u64::MAX; 8], segments: [nothing; 3], header });
    for (segment, data) in program.segments.iter_mut().zip(&mut program.data) {
        *segment = Segment { base: data.as_mut_ptr().cast(), octets: data.len() };
    }
    program.header.segments = program.segments.as_ptr();
    program.header.control = program.control.as_ptr().cast();
    program
}

fn reply(program: &mut Program) -> Reply {
    // SAFETY: everything that the header names lives in `program`.
    unsafe { Reply::new(&raw mut program.header, false) }.unwrap()
}

#[test]
fn data_runs_over_the_segments_and_is_cut_short() {
    let mut program = program(0);
    let mut reply = reply(&mut program);
    reply.data(0, b"abcdefg");
    reply.data(7, b"hijk");
    assert_eq!(reply.finish(11, 0, 0), 11);
    assert_eq!((&program.data.concat()[..11], program.header.flags), (&b"abcdefghijk"[..], MSG_ERRQUEUE));
    let mut reply = self::reply(&mut program);
    reply.data(0, b"0123456789");
    reply.data(10, b"abcdefgh");
    assert_eq!(reply.finish(18, 0, 0), 15);
    assert_eq!(program.data.concat(), b"0123456789abcde");
    assert_eq!(program.header.flags, MSG_ERRQUEUE | MSG_TRUNC);
    assert_eq!(program.header.name_octets, 77, "without a name its length is not written");
}

#[test]
fn a_head_is_put_in_front_of_what_the_kernel_wrote() {
    for (rest, octets) in [(&b""[..], 4), (b"efg", 7), (b"efghijklmno", 15), (b"efghijklmnopqrs", 19)] {
        let mut program = program(0);
        for (index, octet) in rest.iter().enumerate() {
            program.data[index / 5][index % 5] = *octet;
        }
        let mut reply = reply(&mut program);
        reply.put_in_front(b"abcd", octets);
        let fits = octets.min(15);
        assert_eq!(reply.finish(octets, 0, 0), fits);
        assert_eq!(program.data.concat()[..fits], b"abcdefghijklmno"[..fits], "{octets}");
        assert_eq!(program.header.flags & MSG_TRUNC != 0, octets > 15);
    }
}

#[test]
fn control_messages_are_cut_as_put_cmsg_does() {
    // room → what is used, what the length of the message says (if there is one), MSG_CTRUNC
    let cases = [
        (0, 0, None, true),
        (15, 0, None, true),
        (16, 16, Some(16), true),
        (20, 20, Some(20), true),
        (21, 21, Some(21), false),
        (24, 24, Some(21), false),
        (64, 24, Some(21), false),
    ];
    for (room, used, length, is_truncated) in cases {
        let mut program = program(room);
        let mut reply = reply(&mut program);
        reply.control(3, 4, b"value");
        reply.finish(0, 0, 0);
        assert_eq!(program.header.control_octets, used, "{room}");
        assert_eq!(program.header.flags & MSG_CTRUNC != 0, is_truncated, "{room}");
        match length {
            Some(length) => assert_eq!((program.control[0], program.control[1]), (length, 3 | 4 << 32)),
            None => assert_eq!(program.control[0], u64::MAX, "nothing is written"),
        }
    }
    let mut program = program(44);
    let mut reply = reply(&mut program);
    reply.control(1, 2, b"12345678");
    reply.control(3, 4, b"12345678");
    reply.finish(0, 0, 0);
    assert_eq!((program.header.control_octets, program.control[3]), (44, 20));
    assert_eq!(program.header.flags, MSG_ERRQUEUE | MSG_CTRUNC);
}

#[test]
fn headers_that_only_the_kernel_can_judge() {
    // SAFETY: null is refused before it is read.
    assert!(unsafe { Reply::new(core::ptr::null_mut(), false) }.is_none());
    let mut program = program(0);
    program.header.segments_count = 1025;
    // SAFETY: the count is refused before the segments are read.
    assert!(unsafe { Reply::new(&raw mut program.header, false) }.is_none());
    program.header.segments_count = 1;
    program.header.segments = core::ptr::null();
    // SAFETY: as above.
    assert!(unsafe { Reply::new(&raw mut program.header, false) }.is_none());
}
