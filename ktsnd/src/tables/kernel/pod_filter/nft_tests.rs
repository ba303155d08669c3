// SPDX-License-Identifier: Apache-2.0
//! Rules of nf_tables as the kernel hands them out, and which datagrams they may change.

use super::*;

/// An attribute, padded.
fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let mut all = ((value.len() + 4) as u16).to_ne_bytes().to_vec();
    all.extend(kind.to_ne_bytes());
    all.extend(value);
    all.resize(all.len().next_multiple_of(4), 0);
    all
}

fn number(kind: u16, value: u32) -> Vec<u8> {
    attribute(kind, &value.to_be_bytes())
}

fn text(kind: u16, value: &str) -> Vec<u8> {
    attribute(kind, &[value.as_bytes(), &[0]].concat())
}

type Message = (u16, Vec<u8>);

/// A chain at a hook.
fn chain(family: u8, name: &str, hook: u32, policy: u32) -> Message {
    let hook = attribute(4, &[number(1, hook), number(2, 0)].concat());
    let all = [vec![family, 0, 0, 0], text(1, "t"), text(3, name), hook, number(5, policy)];
    (NEW_CHAIN, all.concat())
}

/// A chain of NAT at a hook.
fn nat_chain(family: u8, name: &str, hook: u32) -> Message {
    let (kind, mut octets) = chain(family, name, hook, NF_ACCEPT);
    octets.extend(text(7, "nat"));
    (kind, octets)
}

fn expression(name: &str, data: &[Vec<u8>]) -> Vec<u8> {
    attribute(1, &[text(1, name), attribute(2, &data.concat())].concat())
}

fn rule(family: u8, chain: &str, expressions: &[Vec<u8>]) -> Message {
    let all = [vec![family, 0, 0, 0], text(1, "t"), text(2, chain), attribute(4, &expressions.concat())];
    (NEW_RULE, all.concat())
}

fn meta(key: u32) -> Vec<u8> {
    expression("meta", &[number(2, key), number(1, 1)])
}

fn payload(offset: u32, octets: u32) -> Vec<u8> {
    expression("payload", &[number(1, 1), number(2, 1), number(3, offset), number(4, octets)])
}

fn compare(operation: u32, value: &[u8]) -> Vec<u8> {
    expression("cmp", &[number(1, 1), number(2, operation), attribute(3, &attribute(1, value))])
}

fn mask(octets: &[u8]) -> Vec<u8> {
    let zeros = vec![0; octets.len()];
    let of = |kind, value: &[u8]| attribute(kind, &attribute(1, value));
    expression("bitwise", &[number(1, 1), number(2, 1), of(4, octets), of(5, &zeros)])
}

fn verdict(code: u32, chain: Option<&str>) -> Vec<u8> {
    let verdict = [number(1, code), chain.map(|chain| text(2, chain)).unwrap_or_default()].concat();
    expression("immediate", &[number(1, 0), attribute(2, &attribute(2, &verdict))])
}

fn counter() -> Vec<u8> {
    expression("counter", &[])
}

fn masquerade() -> Vec<u8> {
    expression("masq", &[])
}

fn set_mark() -> Vec<u8> {
    expression("meta", &[number(2, 3), number(3, 1)])
}

/// A compatibility test of iptables.
fn older(name: &str, info: &[u8]) -> Vec<u8> {
    expression("match", &[text(1, name), number(2, 1), attribute(3, info)])
}

fn named(messages: &[Message]) -> Vec<String> {
    let filter = super::super::PodFilter { changed: changed(messages), fault: None };
    let own = [("10.244.0.5".parse().unwrap(), 24), ("fd00::5".parse().unwrap(), 64)];
    let mut all: Vec<String> = filter.destinations("eth0", &own).iter().map(ToString::to_string).collect();
    all.sort();
    all
}

/// What one rule of a chain `output` names.
fn of_rule(family: u8, expressions: &[Vec<u8>]) -> Vec<String> {
    named(&[chain(family, "o", LOCAL_OUT, 1), rule(family, "o", expressions)])
}

/// A family, the expressions of a rule, and the destinations that it names.
type Case = (u8, Vec<Vec<u8>>, &'static [&'static str]);

const V4: &[&str] = &["0.0.0.0/0"];
const BOTH: &[&str] = &["0.0.0.0/0", "::/0"];
const NONE: &[&str] = &[];

#[test]
fn a_rule_that_changes_a_datagram_names_its_destinations() {
    let mark = || [meta(16), compare(0, &[17]), set_mark()].concat();
    let cases: [Case; 22] = [
        (IPV4, vec![mark()], V4),
        (INET, vec![mark()], BOTH),
        (IPV4, vec![counter()], NONE),
        (IPV4, vec![verdict(NF_DROP, None)], V4),
        (IPV4, vec![verdict(NF_ACCEPT, None)], NONE),
        (IPV4, vec![meta(16), compare(0, &[6]), masquerade()], NONE),
        (IPV4, vec![meta(16), compare(1, &[6]), masquerade()], V4),
        (IPV4, vec![payload(9, 1), compare(0, &[6]), masquerade()], NONE),
        (IPV4, vec![payload(16, 4), compare(0, &[127, 0, 0, 11]), masquerade()], NONE),
        (IPV4, vec![payload(16, 4), compare(0, &[10, 99, 0, 7]), masquerade()], &["10.99.0.7/32"]),
        (IPV4, vec![payload(16, 2), compare(0, &[10, 99]), masquerade()], &["10.99.0.0/16"]),
        (IPV4, vec![payload(16, 4), compare(1, &[10, 99, 0, 7]), masquerade()], V4),
        (
            IPV4,
            vec![payload(16, 4), mask(&[255, 240, 0, 0]), compare(0, &[10, 96, 0, 0]), masquerade()],
            &["10.96.0.0/12"],
        ),
        (IPV4, vec![payload(16, 4), mask(&[255, 0, 255, 0]), compare(0, &[10, 0, 1, 0]), masquerade()], V4),
        (
            INET,
            vec![meta(15), compare(0, &[10]), payload(24, 2), compare(0, &[0xfd, 1]), masquerade()],
            &["fd01::/16"],
        ),
        (IPV4, vec![payload(12, 2), compare(0, &[172, 17]), masquerade()], NONE),
        (IPV4, vec![payload(12, 4), compare(0, &[10, 244, 0, 5]), masquerade()], V4),
        (IPV4, vec![meta(7), compare(0, b"wlan0\0\0\0\0\0\0\0\0\0\0\0"), masquerade()], NONE),
        (IPV4, vec![meta(7), compare(0, b"eth"), masquerade()], V4),
        (IPV4, vec![expression("lookup", &[text(1, "s"), number(2, 1), number(3, 0)])], V4),
        (IPV4, vec![expression("brand-new", &[])], V4),
        (IPV4, vec![older("addrtype", &[0, 0, 4, 0, 0, 0, 0, 0]), masquerade()], NONE),
    ];
    for (number, (family, expressions, expected)) in cases.into_iter().enumerate() {
        assert_eq!(of_rule(family, &expressions), expected, "case {number}");
    }
}

#[test]
fn a_mark_that_no_datagram_has_matches_none() {
    let bits = 0x8000_u32.to_ne_bytes();
    let of = |mask: u32, mark: u32, inverted: u8| {
        let info =
            [mark.to_ne_bytes().to_vec(), mask.to_ne_bytes().to_vec(), vec![inverted, 0, 0, 0]].concat();
        of_rule(IPV4, &[older("mark", &info), verdict(NF_DROP, None)])
    };
    assert_eq!(of_rule(IPV4, &[meta(3), mask(&bits), compare(0, &bits), verdict(NF_DROP, None)]), NONE);
    assert_eq!(of_rule(IPV4, &[meta(3), mask(&bits), compare(1, &bits), verdict(NF_DROP, None)]), V4);
    assert_eq!((of(0x8000, 0x8000, 0), of(0x8000, 0x8000, 1)), (vec![], vec!["0.0.0.0/0".to_owned()]));
    assert_eq!((of(0x8000, 0, 0), of(0x8000, 0, 1)), (vec!["0.0.0.0/0".to_owned()], vec![]));
    // As kube-proxy returns what it has not marked itself.
    let returns = [meta(3), mask(&bits), compare(1, &bits), verdict(RETURN, None)];
    let base = chain(IPV4, "o", POST_ROUTING, 1);
    let jump = rule(IPV4, "o", &[verdict(JUMP, Some("k"))]);
    let last = rule(IPV4, "k", &[masquerade()]);
    assert_eq!(named(&[base.clone(), jump.clone(), rule(IPV4, "k", &returns), last.clone()]), NONE);
    assert_eq!(named(&[base, jump, last]), V4);
}

#[test]
fn chains_are_followed_with_what_leads_to_them() {
    let to = |octets: [u8; 2]| [payload(16, 2), compare(0, &octets)].concat();
    let base = || chain(IPV4, "o", LOCAL_OUT, 1);
    let from_base = |target| rule(IPV4, "o", &[to([10, 99]), verdict(JUMP, Some(target))]);
    let all = [base(), from_base("a"), rule(IPV4, "a", &[masquerade()])];
    assert_eq!(named(&all), ["10.99.0.0/16"]);
    let all = [base(), from_base("a"), rule(IPV4, "a", &[to([10, 98]), masquerade()])];
    assert_eq!(named(&all), NONE, "no datagram is of both");
    // Nothing leads there, or no datagram of the pod's own.
    assert_eq!(named(&[base(), rule(IPV4, "other", &[masquerade()])]), NONE);
    assert_eq!(named(&[chain(IPV4, "i", 1, 0), rule(IPV4, "i", &[verdict(NF_DROP, None)])]), NONE);
    // A policy drops what no rule names.
    assert_eq!(named(&[chain(INET, "o", LOCAL_OUT, 0)]), BOTH);
    // A circle, which the kernel would refuse, ends.
    let circle = [base(), from_base("a"), rule(IPV4, "a", &[verdict(GOTO, Some("a"))])];
    assert_eq!(named(&circle), BOTH);
    // Behind what takes all.
    let rest =
        [base(), rule(IPV4, "o", &[counter(), verdict(NF_ACCEPT, None)]), rule(IPV4, "o", &[masquerade()])];
    assert_eq!(named(&rest), NONE);
    let rest =
        [base(), rule(IPV4, "o", &[to([10, 1]), verdict(NF_ACCEPT, None)]), rule(IPV4, "o", &[masquerade()])];
    assert_eq!(named(&rest), V4);
}

#[test]
fn what_cannot_be_read_may_be_about_anything() {
    let (kind, whole) = rule(IPV4, "o", &[counter(), masquerade()]);
    for octets in 0..whole.len() {
        let cut = (kind, whole[..octets].to_vec());
        assert_eq!(named(&[chain(IPV4, "o", LOCAL_OUT, 1), cut]), BOTH, "{octets} octets");
    }
}

/// What translates incoming datagrams translates the answers to them, whatever they are to.
#[test]
fn nat_of_incoming_datagrams_concerns_all_answers() {
    let redirect = |of: &[Vec<u8>]| rule(IPV4, "i", &[of, &[expression("redir", &[])]].concat());
    let udp = [payload(9, 1), compare(0, &[UDP])].concat();
    let tcp = [payload(9, 1), compare(0, &[6])].concat();
    for hook in [PRE_ROUTING, LOCAL_IN] {
        let base = || nat_chain(IPV4, "i", hook);
        assert_eq!(named(&[base(), redirect(std::slice::from_ref(&udp))]), V4);
        assert_eq!(named(&[base(), redirect(&[payload(16, 4), compare(0, &[10, 0, 0, 1])])]), V4);
        assert_eq!(named(&[base(), redirect(std::slice::from_ref(&tcp))]), NONE);
        assert_eq!(named(&[base()]), NONE, "without a rule");
    }
}

/// Named limits and quotas are tests; a value of another length than the field's compares other octets, too.
#[test]
fn what_looks_certain_and_is_not() {
    let named_limit = expression("objref", &[number(1, 4), text(2, "l")]);
    let all = [
        chain(IPV4, "o", LOCAL_OUT, 1),
        rule(IPV4, "o", &[named_limit, verdict(NF_ACCEPT, None)]),
        rule(IPV4, "o", &[verdict(NF_DROP, None)]),
    ];
    assert_eq!(named(&all), V4);
    for (what, operation, value) in
        [(meta(16), 1, vec![UDP, 5]), (meta(1), 0, vec![8]), (meta(15), 1, vec![0])]
    {
        let of = [what, compare(operation, &value), verdict(NF_DROP, None)];
        assert_eq!(of_rule(IPV4, &of), V4, "{value:?}");
    }
}
