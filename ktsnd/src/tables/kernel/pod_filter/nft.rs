// SPDX-License-Identifier: Apache-2.0
//! The rules of nf_tables, which also holds those of the newer iptables (linux/netfilter/nf_tables.h).
//!
//! In: dumps of chains and rules. Out: chains of steps, and where the hooks enter them. A rule is read expression by expression: what
//! narrows the datagrams down is noted where it is understood, and what is neither a test nor a verdict counts as a change.

use std::collections::HashSet;
use std::io;

use rtnetlink::packet_core::{NLA_HEADER_SIZE as ATTRIBUTE_HEADER_OCTETS, NlaBuffer};
use rustix::net::{Protocol, netlink};

use super::extension::{Test, changes, test};
use super::scope::{DeviceName, Reach, Scope, leading_bits, prefix};
use super::walk::{Action, Chains, Found, Step};
use crate::policy::{GROUP_NFTABLES, changes_rules};
use crate::tables::kernel::netlink::{Hints, Netlink};
use crate::tables::kernel::raw::{Raw, RawProtocol};

/// nf_tables as netlink has it.
#[derive(Clone, Debug)]
pub(crate) struct Nft;

impl RawProtocol for Nft {
    const PROTOCOL: Protocol = netlink::NETFILTER;
    const GROUPS: u32 = GROUP_NFTABLES;

    fn note(kind: u16, hints: &mut Hints) {
        hints.filter |= changes_rules(kind);
    }
}

/// NFNL_SUBSYS_NFTABLES and NFT_MSG_NEWCHAIN, _GETCHAIN, _NEWRULE, _GETRULE.
const NEW_CHAIN: u16 = 10 << 8 | 3;
const GET_CHAIN: u16 = 10 << 8 | 4;
const NEW_RULE: u16 = 10 << 8 | 6;
const GET_RULE: u16 = 10 << 8 | 7;
/// struct nfgenmsg: family, version, and a number.
const HEADER_OCTETS: usize = 4;

/// NFPROTO_INET, _IPV4, _NETDEV and _IPV6.
const INET: u8 = 1;
const IPV4: u8 = 2;
const NETDEV: u8 = 5;
const IPV6: u8 = 10;
/// NF_INET_PRE_ROUTING, _LOCAL_IN, _LOCAL_OUT, _POST_ROUTING, and NF_NETDEV_EGRESS.
const PRE_ROUTING: u32 = 0;
const LOCAL_IN: u32 = 1;
const LOCAL_OUT: u32 = 3;
const POST_ROUTING: u32 = 4;
const EGRESS: u32 = 1;
/// IPPROTO_UDP.
const UDP: u8 = 17;

/// Verdicts: NF_ACCEPT, NFT_JUMP, NFT_GOTO, NFT_RETURN, NFT_CONTINUE and NFT_BREAK.
const NF_DROP: u32 = 0;
const NF_ACCEPT: u32 = 1;
const CONTINUE: u32 = -1_i32 as u32;
const BREAK: u32 = -2_i32 as u32;
const JUMP: u32 = -3_i32 as u32;
const GOTO: u32 = -4_i32 as u32;
const RETURN: u32 = -5_i32 as u32;

/// A chain: family, table, name.
type Name = (u8, Vec<u8>, Vec<u8>);

/// A chain that a hook enters, with the datagrams that it meets.
struct Base {
    name: Name,
    scope: Scope,
    drops: bool,
    /// The chain translates incoming datagrams, and so the answers to them. Their connections are not known here.
    is_incoming_nat: bool,
}

/// A rule with its chain, and whether it may concern UDP at all; `None`: it could not be read.
type Read = Option<(Name, Vec<Step<Name>>, bool)>;

/// Reads all rules, and notes what they may change.
pub(super) fn read(netlink: &mut Netlink<Raw<Nft>>, found: &mut Found) -> io::Result<()> {
    let request = |kind| Raw::new(kind, vec![0; HEADER_OCTETS]);
    let bases = netlink.dump(&request(GET_CHAIN), |message| a_base(message.kind, &message.octets))?;
    if bases.is_empty() {
        return Ok(());
    }
    let rules = netlink.dump(&request(GET_RULE), |message| a_rule(message.kind, &message.octets))?;
    look(bases, rules, found);
    Ok(())
}

/// What the rules of a dump may change, by the kinds and the octets of its messages.
pub(super) fn changed(messages: &[(u16, Vec<u8>)]) -> Vec<Reach> {
    let mut found = Found::default();
    let bases = messages.iter().filter_map(|(kind, octets)| a_base(*kind, octets));
    let rules = messages.iter().filter_map(|(kind, octets)| a_rule(*kind, octets));
    look(bases.collect(), rules.collect(), &mut found);
    found.into_reaches()
}

fn a_base(kind: u16, octets: &[u8]) -> Option<Base> {
    if kind == NEW_CHAIN { base(octets) } else { None }
}

fn a_rule(kind: u16, octets: &[u8]) -> Option<Read> {
    (kind == NEW_RULE).then(|| rule(octets))
}

/// Follows each hook through the chains.
fn look(bases: Vec<Base>, rules: Vec<Read>, found: &mut Found) {
    let (mut chains, mut with_rules) = (Chains::default(), HashSet::new());
    for rule in rules {
        match rule {
            Some((chain, steps, may_be_udp)) => {
                if may_be_udp {
                    with_rules.insert(chain.clone());
                }
                chains.extend(chain, steps);
            }
            // The chain of the rule is not known.
            None => found.add(&Scope::all()),
        }
    }
    for base in bases {
        let is_all = if base.is_incoming_nat { with_rules.contains(&base.name) } else { base.drops };
        if is_all {
            found.add(&base.scope);
        }
        if !base.is_incoming_nat {
            chains.follow(&base.name, &base.scope, found);
        }
    }
}

/// An attribute: its type and its value.
type Attribute<'a> = (u16, &'a [u8]);

/// Splits off one attribute.
fn first_attribute(octets: &[u8]) -> Option<(Attribute<'_>, &[u8])> {
    let attribute = NlaBuffer::new_checked(octets).ok()?;
    let length = usize::from(attribute.length());
    let next = length.next_multiple_of(4).min(octets.len());
    Some(((attribute.kind(), octets.get(ATTRIBUTE_HEADER_OCTETS..length)?), octets.get(next..)?))
}

/// The attribute of this type.
fn attribute(mut octets: &[u8], wanted: u16) -> Option<&[u8]> {
    while let Some(((kind, value), rest)) = first_attribute(octets) {
        if kind == wanted {
            return Some(value);
        }
        octets = rest;
    }
    None
}

fn number(octets: &[u8], kind: u16) -> Option<u32> {
    Some(u32::from_be_bytes(attribute(octets, kind)?.try_into().ok()?))
}

/// A text without the zero behind it.
fn text(octets: &[u8], kind: u16) -> Option<&[u8]> {
    attribute(octets, kind)?.split(|octet| *octet == 0).next()
}

fn family_and_attributes(octets: &[u8]) -> Option<(u8, &[u8])> {
    Some((*octets.first()?, octets.get(HEADER_OCTETS..)?))
}

/// A chain that a hook of datagrams that leave enters; `None`: another one.
fn base(octets: &[u8]) -> Option<Base> {
    const TABLE: u16 = 1;
    const NAME: u16 = 3;
    const HOOK: u16 = 4;
    const POLICY: u16 = 5;
    const TYPE: u16 = 7;
    const HOOK_NUMBER: u16 = 1;
    const HOOK_DEVICE: u16 = 3;
    let (family, octets) = family_and_attributes(octets)?;
    let hook = attribute(octets, HOOK)?;
    let all = Scope::all();
    let number_of_hook = number(hook, HOOK_NUMBER)?;
    let is_incoming_nat =
        matches!(number_of_hook, PRE_ROUTING | LOCAL_IN) && text(octets, TYPE) == Some(b"nat");
    let scope = match (family, number_of_hook) {
        (IPV4 | IPV6, _) if is_incoming_nat => all.of_family(family == IPV4),
        (INET, _) if is_incoming_nat => all,
        (IPV4 | IPV6, LOCAL_OUT | POST_ROUTING) => all.of_family(family == IPV4),
        (INET, LOCAL_OUT | POST_ROUTING) => all,
        (NETDEV, EGRESS) => match text(hook, HOOK_DEVICE) {
            Some(device) => all.by(DeviceName { text: device.to_vec(), is_beginning: false }),
            None => all,
        },
        _ => return None,
    };
    let name = (family, text(octets, TABLE)?.to_vec(), text(octets, NAME)?.to_vec());
    Some(Base { name, scope, drops: number(octets, POLICY) == Some(NF_DROP), is_incoming_nat })
}

fn rule(octets: &[u8]) -> Read {
    const TABLE: u16 = 1;
    const CHAIN: u16 = 2;
    const EXPRESSIONS: u16 = 4;
    const EXPRESSION_NAME: u16 = 1;
    const EXPRESSION_DATA: u16 = 2;
    let (family, octets) = family_and_attributes(octets)?;
    let (table, chain) = (text(octets, TABLE)?, text(octets, CHAIN)?);
    let mut reading = Reading::new(family, table);
    let mut expressions = attribute(octets, EXPRESSIONS)?;
    while !expressions.is_empty() {
        let ((_, expression), rest) = first_attribute(expressions)?;
        expressions = rest;
        let name = text(expression, EXPRESSION_NAME)?;
        let data = attribute(expression, EXPRESSION_DATA).unwrap_or_default();
        reading.take(name, data);
        if reading.scope.is_empty() {
            break;
        }
    }
    Some(((family, table.to_vec(), chain.to_vec()), reading.steps, reading.may_be_udp))
}

/// What a register holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Loaded {
    Source {
        is_v4: bool,
    },
    Destination {
        is_v4: bool,
    },
    /// The protocol in the IPv4 header, in the IPv6 header, or of both.
    Protocol {
        of: Option<bool>,
    },
    Family,
    EtherType,
    OutDevice,
    /// The packet's mark: zero.
    Mark,
    /// RTN_LOCAL and so on, of the destination.
    DestinationType,
}

/// A rule as far as it was read.
struct Reading<'a> {
    family: u8,
    table: &'a [u8],
    scope: Scope,
    /// All tests so far were understood, and every datagram of `scope` passes them.
    is_certain: bool,
    may_be_udp: bool,
    /// The register that was filled last, what it holds, and the mask over that.
    loaded: Option<(u32, Loaded, Option<Vec<u8>>)>,
    steps: Vec<Step<Name>>,
}

impl<'a> Reading<'a> {
    fn new(family: u8, table: &'a [u8]) -> Self {
        let (scope, is_certain, may_be_udp) = (Scope::all(), true, true);
        Self { family, table, scope, is_certain, may_be_udp, loaded: None, steps: Vec::new() }
    }

    fn then(&mut self, action: Action<Name>) {
        self.steps.push(Step { scope: self.scope.clone(), action });
    }

    fn narrow(&mut self, narrow: impl FnOnce(Scope) -> Scope) {
        self.scope = narrow(std::mem::replace(&mut self.scope, Scope::all()));
    }

    fn never(&mut self) {
        self.narrow(|scope| scope.without_family(true).without_family(false));
    }

    /// Reads one expression.
    fn take(&mut self, name: &[u8], data: &[u8]) {
        const META_KEY: u16 = 2;
        const META_SOURCE: u16 = 3;
        const NFT_META_NFTRACE: u32 = 12;
        const PAYLOAD_SOURCE: u16 = 5;
        const HEADER_SOURCE: u16 = 7;
        const LOOKUP_DESTINATION: u16 = 3;
        const OBJECT_TYPE: u16 = 1;
        let has = |kind| attribute(data, kind).is_some();
        match name {
            b"immediate" => self.immediate(data),
            b"cmp" => self.compare(data),
            b"bitwise" => self.mask(data),
            b"meta" if has(META_SOURCE) => {
                if number(data, META_KEY) != Some(NFT_META_NFTRACE) {
                    self.then(Action::Change);
                }
            }
            b"meta" => self.load(number(data, 1), meta(number(data, META_KEY))),
            b"payload" if has(PAYLOAD_SOURCE) => self.then(Action::Change),
            b"payload" => self.load(number(data, 1), payload(data)),
            b"fib" => self.load(number(data, 1), destination_type(data)),
            b"exthdr" if has(HEADER_SOURCE) => self.then(Action::Change),
            // A map of verdicts: it may drop, or lead to any chain.
            b"lookup" if number(data, LOOKUP_DESTINATION) == Some(0) => self.then(Action::Change),
            b"match" => self.older_match(data),
            b"target" if text(data, 1).is_none_or(changes) => self.then(Action::Change),
            b"objref" => match number(data, OBJECT_TYPE) {
                // Named quotas and limits are tests.
                Some(2 | 4 | 5) => (self.is_certain, self.loaded) = (false, None),
                Some(1 | 3 | 7..=9) => {}
                _ => self.then(Action::Change),
            },
            b"target" | b"counter" | b"log" | b"last" | b"notrack" => {}
            // Tests, and what fills registers for them. `ct` with a source changes the connection, not the datagram.
            b"lookup" | b"limit" | b"quota" | b"connlimit" | b"range" | b"dynset" | b"byteorder"
            | b"hash" | b"numgen" | b"rt" | b"socket" | b"osf" | b"xfrm" | b"tunnel" | b"ct" | b"exthdr"
            | b"inner" => {
                (self.is_certain, self.loaded) = (false, None);
            }
            _ => self.then(Action::Change),
        }
    }

    fn load(&mut self, register: Option<u32>, what: Option<Loaded>) {
        self.loaded = register.zip(what).map(|(register, what)| (register, what, None));
    }

    /// A verdict, or a value in a register.
    fn immediate(&mut self, data: &[u8]) {
        const DATA: u16 = 2;
        const VERDICT: u16 = 2;
        const CODE: u16 = 1;
        const CHAIN: u16 = 2;
        let Some(verdict) = attribute(data, DATA).and_then(|data| attribute(data, VERDICT)) else {
            self.loaded = None;
            return;
        };
        match (number(verdict, CODE), text(verdict, CHAIN)) {
            (Some(CONTINUE | BREAK), _) => {}
            (Some(JUMP | GOTO), Some(chain)) => {
                self.then(Action::Chain((self.family, self.table.to_vec(), chain.to_vec())));
            }
            (Some(NF_ACCEPT | RETURN), _) => self.end(),
            _ => self.then(Action::Change),
        }
    }

    /// Later rules see the datagrams no more, where the rule takes all.
    fn end(&mut self) {
        if self.is_certain && self.scope == Scope::all() {
            self.then(Action::End);
        }
    }

    /// A mask over what the register holds; anything else than a mask makes it unknown.
    fn mask(&mut self, data: &[u8]) {
        const MASK: u16 = 4;
        const XOR: u16 = 5;
        const OPERATION: u16 = 6;
        const VALUE: u16 = 1;
        let value = |kind| attribute(data, kind).and_then(|data| attribute(data, VALUE));
        let is_mask = number(data, OPERATION).unwrap_or(0) == 0
            && value(XOR).is_none_or(|octets| octets.iter().all(|octet| *octet == 0));
        let before = self.loaded.take().filter(|(register, ..)| Some(*register) == number(data, 1));
        self.loaded = match (before, number(data, 2), value(MASK)) {
            (Some((_, what, None)), Some(register), Some(mask)) if is_mask => {
                Some((register, what, Some(mask.to_vec())))
            }
            _ => None,
        };
    }

    fn compare(&mut self, data: &[u8]) {
        const OPERATION: u16 = 2;
        const DATA: u16 = 3;
        const EQUAL: u32 = 0;
        const UNEQUAL: u32 = 1;
        let value = attribute(data, DATA).and_then(|data| attribute(data, 1));
        let loaded = self.loaded.clone().filter(|(register, ..)| Some(*register) == number(data, 1));
        let operation = number(data, OPERATION);
        let (Some((_, what, mask)), Some(value), Some(EQUAL | UNEQUAL)) = (loaded, value, operation) else {
            self.is_certain = false;
            return;
        };
        let is_equal = operation == Some(EQUAL);
        if what == Loaded::Mark {
            // It is zero, whatever the mask.
            if value.iter().all(|octet| *octet == 0) != is_equal {
                self.never();
            }
            return;
        }
        self.is_certain = false;
        match (what, mask, is_equal) {
            (Loaded::Source { is_v4 }, mask, true) => self.within(is_v4, value, mask.as_deref(), true),
            (Loaded::Destination { is_v4 }, mask, true) => self.within(is_v4, value, mask.as_deref(), false),
            // A value of another length compares other octets, too.
            (Loaded::Protocol { of }, None, _) if value.len() == 1 && (value == [UDP]) != is_equal => {
                self.may_be_udp = false;
                match of {
                    Some(is_v4) => self.narrow(|scope| scope.without_family(is_v4)),
                    None => self.never(),
                }
            }
            (Loaded::Family, None, _) => match value {
                [IPV4] => self.narrow(|scope| scope.of_family(is_equal)),
                [IPV6] => self.narrow(|scope| scope.of_family(!is_equal)),
                _ => {}
            },
            (Loaded::EtherType, None, true) => match value {
                [0x08, 0x00] => self.narrow(|scope| scope.of_family(true)),
                [0x86, 0xdd] => self.narrow(|scope| scope.of_family(false)),
                [_, _] => self.never(),
                _ => {}
            },
            (Loaded::OutDevice, None, true) => {
                let text = value.split(|octet| *octet == 0).next().unwrap_or_default().to_vec();
                let device = DeviceName { is_beginning: text.len() == value.len(), text };
                self.narrow(|scope| scope.by(device));
            }
            // RTN_LOCAL: no datagram to an own address is taken.
            (Loaded::DestinationType, None, true) if value == 2_u32.to_ne_bytes() => self.never(),
            _ => {}
        }
    }

    /// Only datagrams with an address that begins like this under the mask.
    fn within(&mut self, is_v4: bool, value: &[u8], mask: Option<&[u8]>, is_source: bool) {
        let Some(bits) = leading_bits(mask.unwrap_or(&[0xff; 16]), value.len()) else { return };
        let Some(prefix) = prefix(is_v4, value, bits) else { return };
        self.narrow(|scope| scope.within(prefix, is_source));
    }

    /// A test of the older iptables.
    fn older_match(&mut self, data: &[u8]) {
        let (name, info) = (text(data, 1).unwrap_or_default(), attribute(data, 3).unwrap_or_default());
        match test(name, number(data, 2).unwrap_or(0), info) {
            Test::Always => {}
            Test::Never => self.never(),
            Test::Perhaps => self.is_certain = false,
        }
    }
}

fn meta(key: Option<u32>) -> Option<Loaded> {
    match key? {
        1 => Some(Loaded::EtherType),
        3 => Some(Loaded::Mark),
        7 => Some(Loaded::OutDevice),
        15 => Some(Loaded::Family),
        16 => Some(Loaded::Protocol { of: None }),
        _ => None,
    }
}

/// A part of the IP header.
fn payload(data: &[u8]) -> Option<Loaded> {
    const NETWORK_HEADER: u32 = 1;
    let [base, offset, octets] = [2, 3, 4].map(|kind| number(data, kind));
    if base != Some(NETWORK_HEADER) {
        return None;
    }
    match (offset?, octets?) {
        (9, 1) => Some(Loaded::Protocol { of: Some(true) }),
        (6, 1) => Some(Loaded::Protocol { of: Some(false) }),
        (12, 1..=4) => Some(Loaded::Source { is_v4: true }),
        (16, 1..=4) => Some(Loaded::Destination { is_v4: true }),
        (8, 1..=16) => Some(Loaded::Source { is_v4: false }),
        (24, 1..=16) => Some(Loaded::Destination { is_v4: false }),
        _ => None,
    }
}

/// Of which type the destination's address is (NFT_FIB_RESULT_ADDRTYPE, NFTA_FIB_F_DADDR).
fn destination_type(data: &[u8]) -> Option<Loaded> {
    (number(data, 2) == Some(3) && number(data, 3) == Some(2)).then_some(Loaded::DestinationType)
}

#[cfg(test)]
#[path = "nft_tests.rs"]
mod tests;
