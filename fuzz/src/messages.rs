// SPDX-License-Identifier: Apache-2.0
//! Target `messages`: the control data of a program's send, as libktsn walks them.
//!
//! In: one octet (bit 0: the C library is musl; bit 1: SCM_TXTIME stays; bit 2: a key is added), then control data. Checked against a second walk that was written
//! from cmsg(3) and ip(7) alone: the same messages, in the same order, none beyond the end; what was asked last
//! holds; what a frame cannot carry is marked; a copy holds everything but what was to go, and what was added.

use crate::control_messages::{Changed, parse};

/// Level, type, data.
type Item<'a> = (i32, i32, &'a [u8]);

fn int(octets: &[u8]) -> Option<i32> {
    Some(i32::from_le_bytes(octets.try_into().ok()?))
}

/// The messages one after the other; `None` when one is shorter than its header or longer than what is left.
fn walk(control: &[u8], is_musl: bool) -> Option<Vec<Item<'_>>> {
    let (mut items, mut at) = (Vec::new(), 0_usize);
    while control.len() >= at + 16 {
        let header = &control[at..at + 16];
        let wide = u64::from_le_bytes(header[..8].try_into().ok()?);
        let len = if is_musl { wide & 0xffff_ffff } else { wide };
        if len < 16 || len > (control.len() - at) as u64 {
            return None;
        }
        let len = len as usize;
        items.push((int(&header[8..12])?, int(&header[12..16])?, &control[at + 16..at + len]));
        at += len.div_ceil(8) * 8;
        if at > control.len() {
            break;
        }
    }
    Some(items)
}

/// The value of the last message of this kind that `value` understands.
fn last<T>(items: &[Item<'_>], level: i32, kind: i32, value: impl Fn(&[u8]) -> Option<T>) -> Option<T> {
    items.iter().rev().filter(|item| (item.0, item.1) == (level, kind)).find_map(|item| value(item.2))
}

fn octet(value: i32) -> Option<u8> {
    u8::try_from(value).ok()
}

fn tos(data: &[u8]) -> Option<u8> {
    match data {
        [tos] => Some(*tos),
        data => octet(int(data)?),
    }
}

fn ttl(data: &[u8]) -> Option<u8> {
    octet(int(data)?).filter(|ttl| *ttl > 0)
}

/// −1 means the socket's own.
fn octet_or_default(data: &[u8]) -> Option<Option<u8>> {
    if int(data)? == -1 { Some(None) } else { octet(int(data)?).map(Some) }
}

/// Interface and source of the IP_PKTINFO (in_pktinfo, 12 octets) or the IPV6_PKTINFO without an address (in6_pktinfo, 20
/// octets) among the messages: ip(7): the last address, the last interface that was named.
fn leaving(items: &[Item<'_>], level: i32, kind: i32, octets: usize) -> (u32, [u8; 4]) {
    let mut said = (0, [0; 4]);
    for (_, _, data) in items.iter().filter(|item| (item.0, item.1, item.2.len()) == (level, kind, octets)) {
        if kind == 50 && data[..16] != [0; 16] {
            continue;
        }
        let at = if kind == 50 { 16 } else { 0 };
        let index = int(&data[at..at + 4]).unwrap_or(0).cast_unsigned();
        said.0 = if index == 0 { said.0 } else { index };
        said.1 = if kind == 50 { [0; 4] } else { [data[4], data[5], data[6], data[7]] };
    }
    said
}

/// Which path a message that no frame carries belongs to: all, IPv4's, both IP ones.
fn others(&(level, kind, data): &Item<'_>) -> (bool, bool, bool) {
    match (level, kind) {
        (1, 61) => (false, false, false),
        // SO_PRIORITY, SO_TIMESTAMPING, SCM_TS_OPT_ID.
        (1, 12 | 37 | 81) => (int(data).is_none(), false, false),
        (17, 103) => (data.len() != 2, false, false),
        (0, 1) => (false, tos(data).is_none(), false),
        (0, 2) => (false, ttl(data).is_none(), false),
        (0, 8) => (false, data.len() != 12, false),
        (0, _) => (false, true, false),
        // in6_pktinfo without an address names no more than an interface.
        (41, 50) if data.len() == 20 && data[..16] == [0; 16] => (false, true, false),
        (41, 52) if octet_or_default(data).is_some() => (false, false, false),
        // −1 means the socket's own to some kernels, 255 to others.
        (41, 67) if octet_or_default(data).flatten().is_some() => (false, false, false),
        (41, _) => (false, false, true),
        _ => (true, false, false),
    }
}

/// Walks `data`.
///
/// # Panics
/// When an invariant does not hold.
pub fn messages(data: &[u8]) {
    let Some((first, control)) = data.split_first() else { return };
    let is_musl = first & 1 != 0;
    let items = walk(control, is_musl);
    let is_wrong = |item: &Item<'_>| (item.0, item.1) == (1, 61) && item.2.len() != 8;
    let items = match (items, parse(control, is_musl)) {
        (Some(items), Some(parsed)) => {
            assert!(!items.iter().any(is_wrong), "SCM_TXTIME has eight octets");
            let time = |data: &[u8]| Some(u64::from_le_bytes(data.try_into().ok()?));
            let segment = |data: &[u8]| Some(u16::from_le_bytes(data.try_into().ok()?));
            assert_eq!(parsed.tx_time, last(&items, 1, 61, time));
            assert_eq!(parsed.segment_octets, last(&items, 17, 103, segment));
            assert_eq!((parsed.tos, parsed.ttl), (last(&items, 0, 1, tos), last(&items, 0, 2, ttl)));
            assert_eq!(parsed.hop_limit, last(&items, 41, 52, octet_or_default));
            assert_eq!(parsed.traffic_class, last(&items, 41, 67, |data| octet_or_default(data)?));
            let priority = last(&items, 1, 12, int).map(|value| value.cast_unsigned().min(15) as u8);
            assert_eq!(parsed.priority, priority);
            let word = |data: &[u8]| int(data).map(i32::cast_unsigned);
            assert_eq!(parsed.timestamping, last(&items, 1, 37, word));
            assert_eq!(parsed.key, last(&items, 1, 81, word));
            assert_eq!(parsed.is_any, !items.is_empty());
            let (v4, v6) = (&parsed.leaving_v4, &parsed.leaving_v6);
            assert_eq!((v4.interface, v4.source), leaving(&items, 0, 8, 12));
            assert_eq!((v6.interface, v6.source), leaving(&items, 41, 50, 20));
            let found: Vec<_> = items.iter().map(others).collect();
            let all = found.iter().any(|found| found.0);
            let v6 = all || found.iter().any(|found| found.2);
            let v4 = v6 || found.iter().any(|found| found.1);
            assert_eq!((parsed.is_for_kernel(true), parsed.is_for_kernel(false)), (v4, v6));
            items
        }
        (items, None) => {
            assert!(items.is_none_or(|items| items.iter().any(is_wrong)), "well-formed and refused");
            return;
        }
        (None, Some(parsed)) => panic!("malformed and accepted: {parsed:?}"),
    };
    let (is_stripped, key) = (first & 2 == 0, (first & 4 != 0).then_some(0x0102_0304_u32));
    let octets_of_key = key.map(u32::to_le_bytes);
    let stays = |item: &Item<'_>| !is_stripped || (item.0, item.1) != (1, 61);
    let mut rest: Vec<Item<'_>> = items.into_iter().filter(stays).collect();
    rest.extend(octets_of_key.as_ref().map(|octets| (1, 81, octets.as_slice())));
    match Changed::copy(control, is_musl, is_stripped, key) {
        Some(changed) => assert_eq!(walk(changed.as_slice(), is_musl), Some(rest)),
        None => {
            let octets: usize = rest.iter().map(|item| 16 + item.2.len().next_multiple_of(8)).sum();
            assert!(octets > 1024, "{octets} octets fit");
        }
    }
}
