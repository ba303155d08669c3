// SPDX-License-Identifier: Apache-2.0
//! Tables of the older iptables, written as the kernel lays them out, and which datagrams their rules may change.

use super::*;

/// A rule in the making: its header is zeros, which match every datagram.
struct Rule {
    family: &'static Family,
    header: Vec<u8>,
    tests: Vec<u8>,
    target: Vec<u8>,
}

fn named_part(name: &str, data: &[u8]) -> Vec<u8> {
    let mut part = ((HEADER_OCTETS + data.len()) as u16).to_ne_bytes().to_vec();
    part.extend(name.as_bytes());
    part.resize(HEADER_OCTETS, 0);
    part.extend(data);
    part
}

impl Rule {
    fn new(is_v4: bool, target: &str, data: i32) -> Self {
        let family = FAMILIES.iter().find(|family| family.is_v4 == is_v4).unwrap();
        let target = named_part(target, &[data.to_ne_bytes(), [0; 4]].concat());
        Self { family, header: vec![0; family.octets], tests: Vec::new(), target }
    }
    fn to(mut self, destination: &[u8], mask: &[u8]) -> Self {
        let octets = self.family.address;
        self.header[octets..2 * octets].copy_from_slice(destination);
        self.header[3 * octets..4 * octets].copy_from_slice(mask);
        self
    }
    fn protocol(mut self, number: u16) -> Self {
        let (at, flags) = (self.family.protocol_at, self.family.flags_at);
        self.header[at..at + 2].copy_from_slice(&number.to_ne_bytes());
        self.header[flags] |= u8::from(!self.family.is_v4);
        self
    }
    fn by(mut self, device: &[u8]) -> Self {
        let (at, mask) = (self.family.device_at, self.family.device_mask_at);
        self.header[at..at + device.len()].copy_from_slice(device);
        self.header[mask..mask + device.len()].fill(0xff);
        self
    }
    fn inverted(mut self, flag: u8) -> Self {
        self.header[self.family.flags_at + 1] |= flag;
        self
    }
    fn tests(mut self, name: &str, info: &[u8]) -> Self {
        self.tests.extend(named_part(name, info));
        self
    }
    fn octets(mut self) -> Vec<u8> {
        let target_at = self.header.len() + self.tests.len();
        let all = target_at + self.target.len();
        for (place, value) in [(0, target_at), (2, all)] {
            let at = self.family.offsets_at + place;
            self.header[at..at + 2].copy_from_slice(&(value as u16).to_ne_bytes());
        }
        [self.header, self.tests, self.target].concat()
    }
}

/// A table whose only hook is `output`: these rules of the chain, its policy, and chains of its own behind it.
fn table(is_v4: bool, rules: Vec<Rule>, policy: i32, chains: Vec<Vec<Rule>>) -> Vec<u8> {
    let mut entries: Vec<u8> = rules.into_iter().flat_map(Rule::octets).collect();
    let underflow = entries.len();
    entries.extend(Rule::new(is_v4, "", policy).octets());
    for chain in chains {
        entries.extend(Rule::new(is_v4, "ERROR", 0).octets());
        entries.extend(chain.into_iter().flat_map(Rule::octets));
        entries.extend(Rule::new(is_v4, "", RETURN).octets());
    }
    entries.extend(Rule::new(is_v4, "ERROR", 0).octets());
    let mut info = vec![0; INFO_OCTETS];
    info[NAME_OCTETS..NAME_OCTETS + 4].copy_from_slice(&(1_u32 << 3).to_ne_bytes());
    let at = NAME_OCTETS + 24 + 4 * 3;
    info[at..at + 4].copy_from_slice(&(underflow as u32).to_ne_bytes());
    [info, entries].concat()
}

fn named(is_v4: bool, table: &[u8]) -> Vec<String> {
    let filter = super::super::PodFilter { changed: changed(is_v4, table), fault: None };
    let own = [("10.244.0.5".parse().unwrap(), 24), ("fd00::5".parse().unwrap(), 64)];
    filter.destinations("eth0", &own).iter().map(ToString::to_string).collect()
}

/// What a table with this rule names.
fn of_rule(rule: Rule) -> Vec<String> {
    named(rule.family.is_v4, &table(rule.family.is_v4, vec![rule], ACCEPT, vec![]))
}

const ALL: [&str; 1] = ["0.0.0.0/0"];
const NONE: [&str; 0] = [];

#[test]
fn a_rule_that_changes_a_datagram_names_its_destinations() {
    let rule = |target| Rule::new(true, target, 0);
    assert_eq!(of_rule(rule("DSCP")), ALL);
    assert_eq!(of_rule(Rule::new(false, "HL", 0)), ["::/0"]);
    assert_eq!(of_rule(rule("LOG")), NONE);
    assert_eq!(of_rule(Rule::new(true, "", -1)), ALL, "DROP");
    assert_eq!(of_rule(Rule::new(true, "", ACCEPT)), NONE);
    assert_eq!(of_rule(rule("DNAT").to(&[10, 96, 0, 0], &[255, 240, 0, 0])), ["10.96.0.0/12"]);
    assert_eq!(of_rule(rule("DNAT").to(&[127, 0, 0, 11], &[255; 4])), NONE);
    assert_eq!(of_rule(rule("DNAT").to(&[10, 0, 0, 1], &[255, 0, 0, 255])), ALL, "no prefix");
    assert_eq!(of_rule(rule("DNAT").to(&[10, 0, 0, 1], &[255; 4]).inverted(0x10)), ALL);
    assert_eq!(of_rule(Rule::new(false, "DNAT", 0).to(&[0xfd; 16], &[255; 16])).len(), 1);
    assert_eq!(of_rule(rule("DNAT").protocol(6)), NONE);
    assert_eq!(of_rule(rule("DNAT").protocol(17)), ALL);
    assert_eq!(of_rule(rule("DNAT").protocol(17).inverted(0x40)), NONE);
    assert_eq!(of_rule(Rule::new(false, "DNAT", 0).protocol(6)), NONE);
    assert_eq!(of_rule(rule("MASQUERADE").by(b"wlan0\0")), NONE);
    assert_eq!(of_rule(rule("MASQUERADE").by(b"eth")), ALL);
    assert_eq!(of_rule(rule("MASQUERADE").by(b"wlan0\0").inverted(2)), ALL);
    // The first revision of addrtype lays its parameters out in another way.
    let local = [0, 0, 4, 0, 0, 0, 0, 0];
    assert_eq!(of_rule(rule("MARK").tests("addrtype", &local)), ALL);
    let mut second = rule("MARK").tests("addrtype", &local);
    second.tests[HEADER_OCTETS - 1] = 1;
    assert_eq!(of_rule(second), NONE);
    // What a test of TCP does with other datagrams is its own affair: the rule's protocol excludes them.
    assert_eq!(of_rule(rule("MARK").tests("comment", &[0; 8]).tests("tcp", &[0; 8])), ALL);
    assert_eq!(of_rule(rule("MARK").tests("tcp", &[0; 8]).protocol(6)), NONE);
    assert_eq!(of_rule(rule("SET")), ALL);
    assert_eq!(of_rule(rule("MARK").tests("owner", &[0; 8])), ALL);
}

#[test]
fn chains_are_followed_and_ended_as_linux_does() {
    let own_chain = || vec![Rule::new(true, "DNAT", 0).to(&[10, 99, 0, 0], &[255, 255, 0, 0])];
    // A table with one rule, its policy, and the name of the chain before that.
    let header = |rules: Vec<Rule>| table(true, rules, ACCEPT, vec![]).len() - INFO_OCTETS;
    let begin = header(vec![Rule::new(true, "", 0)]) as i32;
    let jump = || Rule::new(true, "", begin);
    assert_eq!(named(true, &table(true, vec![jump()], ACCEPT, vec![own_chain()])), ["10.99.0.0/16"]);
    let other = || jump().to(&[10, 98, 0, 0], &[255, 255, 0, 0]);
    assert_eq!(named(true, &table(true, vec![other()], ACCEPT, vec![own_chain()])), NONE);
    // No hook leads there.
    assert_eq!(named(true, &table(true, vec![Rule::new(true, "LOG", 0)], ACCEPT, vec![own_chain()])), NONE);
    assert_eq!(named(true, &table(true, vec![], -1, vec![])), ALL, "the policy DROP");
    let accepts = || vec![Rule::new(true, "", ACCEPT), Rule::new(true, "DNAT", 0)];
    assert_eq!(named(true, &table(true, accepts(), ACCEPT, vec![])), NONE);
    let some = vec![Rule::new(true, "", ACCEPT).protocol(17).by(b"eth0\0"), Rule::new(true, "DNAT", 0)];
    assert_eq!(named(true, &table(true, some, ACCEPT, vec![])), ALL);
}

#[test]
fn what_cannot_be_read_may_be_about_anything() {
    let whole = table(true, vec![Rule::new(true, "LOG", 0)], ACCEPT, vec![]);
    assert_eq!(named(true, &whole), NONE);
    for octets in INFO_OCTETS + 1..whole.len() {
        let read = named(true, &whole[..octets]);
        // Cut between two rules, the others can be read.
        assert!(read == ALL || (octets - INFO_OCTETS).is_multiple_of(8), "{octets} octets: {read:?}");
    }
}

/// What translates incoming datagrams translates the answers to them.
#[test]
fn nat_of_incoming_datagrams_concerns_all_answers() {
    let with = |name: &str, rule: Option<Rule>| {
        let mut octets = table(true, rule.into_iter().collect(), ACCEPT, vec![]);
        octets[..name.len()].copy_from_slice(name.as_bytes());
        // The hook before routing has the rules; the policy stands behind them.
        octets[NAME_OCTETS..NAME_OCTETS + 4].copy_from_slice(&1_u32.to_ne_bytes());
        let (last, at) = (NAME_OCTETS + 24 + 4 * 3, NAME_OCTETS + 24);
        octets.copy_within(last..last + 4, at);
        named(true, &octets)
    };
    let redirect = || Rule::new(true, "REDIRECT", 0);
    assert_eq!(with("nat", Some(redirect().protocol(17))), ALL);
    assert_eq!(with("nat", Some(redirect().protocol(6))), NONE);
    assert_eq!(with("nat", None), NONE);
    assert_eq!(with("raw", Some(redirect())), NONE);
}
