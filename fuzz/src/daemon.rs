// SPDX-License-Identifier: Apache-2.0
//! Targets `state`, `netlink`, `rules`, `clock` and `config`: what ktsnd reads from files, from the kernel and from tools.

use std::collections::HashSet;

use ktsn_model::IpPrefix;
use ktsn_resolve::LinkTable;
use ktsnd::config::{Attachment, Config, ConfigError, parse_attach};
use ktsnd::fuzzing;

/// Longest text that names what is wrong, besides what it quotes.
const TEXT_OCTETS_MAX: usize = 1_000;
/// IFNAMSIZ without the zero.
const INTERFACE_OCTETS_MAX: usize = 15;

/// The state file: what was read is written so that it reads the same, and nothing that a newer ktsnd wrote is lost.
///
/// # Panics
/// When an invariant does not hold.
pub fn state(data: &[u8]) {
    let read = match fuzzing::state(data) {
        Ok(read) => read,
        Err(why) => return assert!(!why.is_empty()),
    };
    assert!(!read.is_damaged || !read.notes.is_empty(), "what is lost is told");
    let written = read.written.clone().expect("a state can be written");
    if read.is_inexact {
        return;
    }
    let again = fuzzing::state(&written).expect("its own file");
    assert!(!again.is_damaged, "its own file: {:?}", again.notes);
    // What is written once is written the same ever after. The first time, each entry also says what it needs.
    let raws = |read: &fuzzing::StateRead| {
        read.state.attachments.iter().map(|kept| kept.raw.clone()).collect::<Vec<_>>()
    };
    assert_eq!(raws(&again), raws(&read));
    assert_eq!(again.written.as_ref(), Some(&written));
    let third = fuzzing::state(&written).expect("its own file");
    assert_eq!(third.state, again.state);
}

/// Netlink messages: links, addresses, routes and neighbours (first octet even), chains and rules of nf_tables (a remainder of 5 by 8),
/// IPsec policies (odd). And (a remainder of 7) tables of the older iptables, and ICMP messages of routers.
///
/// # Panics
/// When an invariant does not hold.
pub fn netlink(data: &[u8]) {
    let Some((first, octets)) = data.split_first() else { return };
    let [own, own_v6] = fuzzing::own();
    if first % 8 == 5 {
        let named = fuzzing::nf_tables(octets, "eth0", own);
        return assert!(named.iter().all(|prefix| !prefix.address().is_loopback()), "never taken");
    }
    if first % 8 == 7 {
        let is_v4 = first & 8 == 0;
        let named = fuzzing::older_table(is_v4, octets, "eth0", if is_v4 { own } else { own_v6 });
        assert!(named.iter().all(|prefix| prefix.address().is_ipv4() == is_v4), "a table is of one family");
        let excepted = fuzzing::excepted(is_v4, octets);
        return assert!(excepted.is_none_or(|destination| destination.is_ipv4() == is_v4));
    }
    if first % 2 == 1 {
        let (protects, covers) = fuzzing::policies(octets, own, [192, 168, 50, 2].into());
        return assert!(protects || !covers, "what covers protects");
    }
    let layout = fuzzing::layout(octets);
    assert!(layout.messages <= octets.len() / 16, "a message has a header");
    for (_, bits) in &layout.routes {
        assert!(bits.is_none_or(|bits| bits <= 128));
    }
    for (index, link) in layout.links {
        assert_eq!(link.if_index, index);
        // Refused or made, for a reason that can be said.
        if let Err(error) = LinkTable::new(link) {
            assert!(!error.to_string().is_empty());
        }
    }
}

/// What `nft -j list ruleset` (first octet odd) and `iptables-save` (even) print.
///
/// # Panics
/// When an invariant does not hold.
pub fn rules(data: &[u8]) {
    let Some((first, octets)) = data.split_first() else { return };
    let (own, others) = (fuzzing::own(), fuzzing::others());
    let text = String::from_utf8_lossy(octets);
    let (named, hindrances) = fuzzing::rules(&text, first % 2 == 1, &own, &others);
    for rule in &named {
        let all = || rule.sources.iter().chain(&rule.destinations);
        assert!(all().count() > 0 && all().all(|prefix| prefix.bits() > 0), "it names addresses");
    }
    assert!(hindrances.len() <= named.len());
    let covers =
        |wide: &IpPrefix, narrow: &IpPrefix| wide.bits() <= narrow.bits() && wide.contains(narrow.address());
    for hindrance in &hindrances {
        assert!(!hindrance.rule.is_empty() && !hindrance.destinations.is_empty());
        for (at, one) in hindrance.destinations.iter().enumerate() {
            assert!(others.iter().any(|other| covers(other, one)), "{one} leaves past the packet filter");
            let rest = hindrance.destinations.iter().skip(at + 1);
            assert!(rest.into_iter().all(|other| !covers(one, other) && !covers(other, one)), "each once");
        }
    }
}

/// What `pmc` and `chronyc` answer.
///
/// # Panics
/// When an invariant does not hold.
pub fn clock(data: &[u8]) {
    for (fault, error) in fuzzing::clock_answers(&String::from_utf8_lossy(data)) {
        assert!(error.is_none_or(|error| error.get() >= 0), "{error:?}");
        assert!(fault.is_none() || error.is_none(), "a clock that is not trusted has no error");
        if let Some(fault) = fault {
            assert!(
                !fault.is_empty() && fault.len() < 200 && !fault.chars().any(char::is_control),
                "{fault:?}"
            );
        }
    }
}

/// The configuration as TOML (first octet even) and as `--attach` (odd).
///
/// # Panics
/// When an invariant does not hold.
pub fn config(data: &[u8]) {
    let Some((first, octets)) = data.split_first() else { return };
    let Ok(text) = core::str::from_utf8(octets) else { return };
    if first % 2 == 1 {
        match parse_attach(text) {
            Ok(attachment) => keeps_the_rules(&attachment),
            Err(error) => is_told(&error, text),
        }
        return;
    }
    match Config::parse(text) {
        Ok(config) => {
            let names: HashSet<_> = config.attachments.iter().map(|attachment| &attachment.name).collect();
            assert_eq!(names.len(), config.attachments.len(), "names are unique");
            config.attachments.iter().for_each(keeps_the_rules);
        }
        Err(error) => is_told(&error, text),
    }
}

fn keeps_the_rules(attachment: &Attachment) {
    assert!(!attachment.name.is_empty() && !attachment.interface.is_empty());
    assert!(attachment.interface.len() <= INTERFACE_OCTETS_MAX, "{}", attachment.interface);
    assert!(attachment.clients.slots > 0 && attachment.clients.clients_max > 0);
    assert!(attachment.horizon.get() > 0 && attachment.overrun_limit.get() >= 0);
    let _ = (attachment.allowed(), attachment.takes_no_datagram());
    // What is listed is accepted again, whatever keys there are, and lists the same. Bounds hold so for each key.
    let listed = attachment.config();
    let again = Attachment::check("listed", listed.clone());
    assert_eq!(again.map(|again| again.config()).as_ref(), Ok(&listed));
}

fn is_told(error: &ConfigError, given: &str) {
    let text = error.to_string();
    // TOML's own message shows the line at fault.
    let is_ours = !matches!(error, ConfigError::Syntax(_));
    assert!(!text.is_empty(), "what is wrong is said");
    assert!(!is_ours || !text.chars().any(char::is_control), "{text:?}");
    assert!(text.len() <= TEXT_OCTETS_MAX + 8 * given.len(), "{text:?}");
}
