// SPDX-License-Identifier: Apache-2.0
//! Rules as `ip rule` makes them.

use netlink_packet_route::AddressFamily;
use netlink_packet_route::rule::{RuleMessage, RulePortRange, RuleUidRange};

use super::*;

fn to_table(table: u32, attributes: Vec<RuleAttribute>) -> RuleMessage {
    let mut message = RuleMessage::default();
    message.header.family = AddressFamily::Inet;
    message.header.action = RuleAction::ToTable;
    message.header.flags = RuleFlags::Permanent;
    message.attributes = vec![RuleAttribute::Table(table), RuleAttribute::SuppressPrefixLen(u32::MAX)];
    message.attributes.extend(attributes);
    message
}

fn usual() -> Vec<RuleMessage> {
    let at = |table, priority| to_table(table, vec![RuleAttribute::Priority(priority)]);
    vec![at(TABLE_LOCAL, 0), at(TABLE_MAIN, 32766), at(TABLE_DEFAULT, 32767)]
}

/// Whether the usual rules with this one behind `local` are the usual ones for datagrams of this origin.
fn stays_usual(extra: &RuleMessage, origin: Origin) -> bool {
    let mut all = usual();
    all.insert(1, extra.clone());
    are_usual(all.iter().map(|message| rule(message, origin)))
}

#[test]
fn the_usual_rules_are_local_main_and_default() {
    let are = |rules: &[RuleMessage]| are_usual(rules.iter().map(|message| rule(message, Origin::Own)));
    assert!(are(&usual()) && are(&usual()[..2]));
    assert!(!are(&usual()[..1]) && !are(&usual()[1..]) && !are(&[]));
    let swapped = [usual()[1].clone(), usual()[0].clone()];
    assert!(!are(&swapped), "main before local");
}

#[test]
fn each_selector_that_can_match_has_a_say() {
    let address: std::net::IpAddr = "10.0.0.1".parse().unwrap();
    let range = |from, to| RulePortRange { start: from, end: to };
    let selectors = [
        vec![],
        vec![RuleAttribute::Source(address)],
        vec![RuleAttribute::Destination(address)],
        vec![RuleAttribute::UidRange(RuleUidRange { start: 0, end: 5 })],
        vec![RuleAttribute::IpProtocol(17.into())],
        vec![RuleAttribute::DestinationPortRange(range(1, 2))],
        vec![RuleAttribute::SourcePortRange(range(1, 2))],
        vec![RuleAttribute::Iifname("lo".into())],
        vec![RuleAttribute::Oifname("eth0".into())],
        vec![RuleAttribute::L3MDev(true)],
        vec![RuleAttribute::SuppressPrefixLen(0)],
        vec![RuleAttribute::FwMark(0), RuleAttribute::FwMask(0xff)],
        vec![RuleAttribute::FwMark(0x100), RuleAttribute::FwMask(0xff)],
    ];
    for attributes in selectors {
        for origin in [Origin::Own, Origin::Forwarded] {
            assert!(!stays_usual(&to_table(100, attributes.clone()), origin), "{attributes:?} {origin:?}");
        }
    }
    // Fields of the header, actions and flags.
    let changes: [fn(&mut RuleMessage); 6] = [
        |rule| rule.header.tos = 0x10,
        |rule| rule.header.src_len = 24,
        |rule| rule.header.dst_len = 24,
        |rule| rule.header.action = RuleAction::Prohibit,
        |rule| rule.header.flags |= RuleFlags::from_bits_retain(0x1_0000),
        |rule| rule.header.flags |= RuleFlags::Invert,
    ];
    for change in changes {
        let mut rule = to_table(TABLE_MAIN, vec![]);
        change(&mut rule);
        assert!(!stays_usual(&rule, Origin::Own), "{rule:?}");
    }
}

#[test]
fn rules_that_match_no_datagram_without_a_mark_have_no_say() {
    let never = [
        vec![RuleAttribute::FwMark(0x200), RuleAttribute::FwMask(0xf00)],
        vec![RuleAttribute::FwMark(7)],
        vec![RuleAttribute::IpProtocol(6.into())],
    ];
    for attributes in never {
        let mut rule = to_table(2004, attributes);
        assert!(stays_usual(&rule, Origin::Own) && stays_usual(&rule, Origin::Forwarded), "{rule:?}");
        // Inverted it matches all of them (WireGuard: `not fwmark 0xca6c`).
        rule.header.flags |= RuleFlags::Invert;
        assert!(!stays_usual(&rule, Origin::Own), "{rule:?}");
    }
    let arrives = to_table(100, vec![RuleAttribute::Iifname("eth0".into())]);
    assert!(stays_usual(&arrives, Origin::Own) && !stays_usual(&arrives, Origin::Forwarded));
}
