// SPDX-License-Identifier: Apache-2.0
//! The routing rules of a namespace, as far as datagrams of its own sockets meet them.
//!
//! In: rules as the kernel lists them, of one family, in their order. Out: whether these datagrams are routed by the tables local,
//! main and default alone. A rule that could not be read, or that is not understood, has a say.

use netlink_packet_route::rule::{RuleAction, RuleAttribute, RuleFlags, RuleMessage};

use super::routes::{TABLE_DEFAULT, TABLE_LOCAL, TABLE_MAIN};

/// IPPROTO_UDP.
const UDP: i32 = 17;
/// The name of the interface that a datagram of a namespace's own socket comes in by, for rules.
const LOOPBACK: &str = "lo";

/// Which datagrams a rule is held against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// Those of the namespace's own sockets.
    Own,
    /// Those that the namespace forwards.
    Forwarded,
}

/// What a rule does with UDP datagrams without a mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rule {
    /// The rule matches none of them.
    Never,
    /// The rule looks all of them up in this table.
    All(u32),
    /// The rule matches some, does something else, or is not understood.
    Some,
}

/// Whether the rules of a family, in their order, are no more than `local`, `main`, and perhaps `default`.
pub(crate) fn are_usual(rules: impl Iterator<Item = Rule>) -> bool {
    let mut matching = rules.filter(|rule| *rule != Rule::Never);
    let is = |rule: Option<Rule>, table| rule == Some(Rule::All(table));
    let begins = is(matching.next(), TABLE_LOCAL) && is(matching.next(), TABLE_MAIN);
    begins && matching.all(|rule| rule == Rule::All(TABLE_DEFAULT))
}

/// What a rule does with datagrams of this origin.
pub(crate) fn rule(message: &RuleMessage, origin: Origin) -> Rule {
    let header = &message.header;
    let is_inverted = header.flags.contains(RuleFlags::Invert);
    if !is_inverted && message.attributes.iter().any(|attribute| matches_none(attribute, message, origin)) {
        return Rule::Never;
    }
    let mut table = u32::from(header.table);
    for attribute in &message.attributes {
        match attribute {
            RuleAttribute::Table(number) => table = *number,
            RuleAttribute::Priority(_)
            | RuleAttribute::Protocol(_)
            | RuleAttribute::SuppressPrefixLen(u32::MAX)
            | RuleAttribute::SuppressIfGroup(u32::MAX) => {}
            _ => return Rule::Some,
        }
    }
    let is_plain = header.src_len == 0 && header.dst_len == 0 && header.tos == 0;
    let is_known = header.flags.difference(RuleFlags::Permanent).is_empty();
    if is_plain && is_known && header.action == RuleAction::ToTable { Rule::All(table) } else { Rule::Some }
}

/// Whether this attribute keeps the rule from every UDP datagram of this origin that has no mark.
fn matches_none(attribute: &RuleAttribute, message: &RuleMessage, origin: Origin) -> bool {
    match attribute {
        RuleAttribute::Iifname(name) => origin == Origin::Own && name != LOOPBACK,
        // Linux compares under the mask, which is all ones where none is given.
        RuleAttribute::FwMark(mark) => {
            let mask = message.attributes.iter().find_map(|attribute| match attribute {
                RuleAttribute::FwMask(mask) => Some(*mask),
                _ => None,
            });
            mark & mask.unwrap_or(u32::MAX) != 0
        }
        RuleAttribute::IpProtocol(protocol) => i32::from(*protocol) != UDP,
        _ => false,
    }
}

#[cfg(test)]
#[path = "rules_tests.rs"]
mod tests;
