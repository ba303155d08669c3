// SPDX-License-Identifier: Apache-2.0
//! The rules of the older iptables (linux/netfilter_ipv4/ip_tables.h, linux/netfilter_ipv6/ip6_tables.h).
//!
//! In: the tables that a namespace has, as the kernel hands them out. Out: chains of steps, and where the hooks enter them.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;

use rustix::net::{AddressFamily, Protocol, SocketFlags, SocketType, ipproto};

use super::extension::{Test, changes, half, test, word};
use super::scope::{DeviceName, Reach, Scope, leading_bits, prefix};
use super::walk::{Action, Chains, Found, Step};
use crate::sys;

/// IPPROTO_UDP.
const UDP: u16 = 17;
/// NF_INET_PRE_ROUTING and NF_INET_LOCAL_IN.
const INCOMING: [usize; 2] = [0, 1];
/// NF_INET_LOCAL_OUT and NF_INET_POST_ROUTING.
const HOOKS: [usize; 2] = [3, 4];
/// IPT_SO_GET_INFO and IPT_SO_GET_ENTRIES, which IPv6 numbers alike.
const GET_INFO: libc::c_int = 64;
const GET_ENTRIES: libc::c_int = 65;
/// struct ipt_getinfo: name, valid hooks, entry and last rule of each hook, number of entries, their octets.
const NAME_OCTETS: usize = 32;
const INFO_OCTETS: usize = NAME_OCTETS + 4 + 20 + 20 + 8;
/// struct ipt_get_entries: name, octets, and padding.
const ENTRIES_AT: usize = 40;
/// struct xt_entry_match and xt_entry_target: octets, name and revision; then the parameters.
const HEADER_OCTETS: usize = 32;
/// IFNAMSIZ.
const DEVICE_OCTETS: usize = 16;
/// The standard target's verdicts: -NF_ACCEPT - 1 and XT_RETURN.
const ACCEPT: i32 = -2;
const RETURN: i32 = -5;
/// Octets of one table that are looked at.
const TABLE_OCTETS_MAX: usize = 8 << 20;
/// The names of all tables together.
const NAMES_OCTETS_MAX: usize = 512;
/// How often a table that changes meanwhile is read.
const TRIES: u32 = 5;

/// The list of a namespace's older tables. Nothing announces that it changes.
#[derive(Debug)]
pub(crate) struct OlderTables {
    lists: Vec<File>,
}

impl OlderTables {
    /// Of the calling thread's namespace.
    pub(crate) fn here() -> Self {
        let open = |family: &Family| File::open(family.list).ok();
        Self { lists: FAMILIES.iter().filter_map(open).collect() }
    }

    /// Whether there are such tables now.
    pub(crate) fn are_there(&self) -> bool {
        self.lists.iter().any(|list| list.read_at(&mut [0], 0).is_ok_and(|octets| octets > 0))
    }
}

/// How a family lays out its rules.
struct Family {
    list: &'static str,
    is_v4: bool,
    level: libc::c_int,
    /// Octets of an address.
    address: usize,
    /// Where a rule has the name of the device by which a datagram leaves, its mask, the protocol, and its flags.
    device_at: usize,
    device_mask_at: usize,
    protocol_at: usize,
    flags_at: usize,
    /// The flag of a test that nothing is known of here (IPT_F_FRAG, IP6T_F_TOS).
    test_flag: u8,
    /// Where a rule has the offsets of its target and of the next rule.
    offsets_at: usize,
    octets: usize,
}

const FAMILIES: [Family; 2] = [
    Family {
        list: "/proc/thread-self/net/ip_tables_names",
        is_v4: true,
        level: libc::IPPROTO_IP,
        address: 4,
        device_at: 32,
        device_mask_at: 64,
        protocol_at: 80,
        flags_at: 82,
        test_flag: 1,
        offsets_at: 88,
        octets: 112,
    },
    Family {
        list: "/proc/thread-self/net/ip6_tables_names",
        is_v4: false,
        level: libc::IPPROTO_IPV6,
        address: 16,
        device_at: 80,
        device_mask_at: 112,
        protocol_at: 128,
        flags_at: 131,
        test_flag: 2,
        offsets_at: 140,
        octets: 168,
    },
];

/// Reads all tables of the calling thread's namespace, and notes what their rules may change.
pub(super) fn read(found: &mut Found) -> io::Result<()> {
    for family in &FAMILIES {
        let mut names = vec![0; NAMES_OCTETS_MAX];
        let octets = match File::open(family.list).and_then(|list| list.read_at(&mut names, 0)) {
            // This kernel has no such tables.
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            read => read?,
        };
        let names = names.get(..octets).unwrap_or_default().split(|octet| *octet == b'\n');
        let mut names = names.filter(|name| !name.is_empty()).peekable();
        if names.peek().is_none() {
            continue;
        }
        let socket = socket(family)?;
        for name in names {
            let (info, entries) = table(&socket, family, name)?;
            look(family, &info, &entries, found);
        }
    }
    Ok(())
}

fn socket(family: &Family) -> io::Result<OwnedFd> {
    let of = if family.is_v4 { AddressFamily::INET } else { AddressFamily::INET6 };
    let protocol: Option<Protocol> = Some(ipproto::UDP);
    Ok(rustix::net::socket_with(of, SocketType::DGRAM, SocketFlags::CLOEXEC, protocol)?)
}

/// A table's description and its rules.
fn table(socket: &OwnedFd, family: &Family, name: &[u8]) -> io::Result<(Vec<u8>, Vec<u8>)> {
    for _ in 0..TRIES {
        let mut info = vec![0; INFO_OCTETS];
        info.get_mut(..name.len()).ok_or(ErrorKind::InvalidData)?.copy_from_slice(name);
        sys::socket_option(socket, family.level, GET_INFO, &mut info)?;
        let octets = word(&info, INFO_OCTETS - 4).unwrap_or(0) as usize;
        if octets > TABLE_OCTETS_MAX {
            return Err(io::Error::other(format!("more than {TABLE_OCTETS_MAX} octets of rules")));
        }
        let mut entries = vec![0; ENTRIES_AT + octets];
        entries.get_mut(..name.len()).ok_or(ErrorKind::InvalidData)?.copy_from_slice(name);
        if let Some(place) = entries.get_mut(NAME_OCTETS..NAME_OCTETS + 4) {
            place.copy_from_slice(&(octets as u32).to_ne_bytes());
        }
        match sys::socket_option(socket, family.level, GET_ENTRIES, &mut entries) {
            Ok(_) => return Ok((info, entries.split_off(ENTRIES_AT))),
            // It has become another one.
            Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::Error::other("the table changes faster than it can be read"))
}

/// Follows the hooks of a table through its chains.
fn look(family: &Family, info: &[u8], entries: &[u8], found: &mut Found) {
    let valid = word(info, NAME_OCTETS).unwrap_or(0);
    let first = |hook: usize| word(info, NAME_OCTETS + 4 + 4 * hook).map(|at| at as usize);
    let is_valid = |hook: &usize| valid & 1 << hook != 0;
    let all = Scope::all().of_family(family.is_v4);
    let begins: Vec<usize> = (0..5).filter(is_valid).filter_map(first).collect();
    let Some(chains) = chains(family, entries, begins) else { return found.add(&all) };
    // What translates incoming datagrams translates the answers to them, too.
    let last = |hook: usize| word(info, NAME_OCTETS + 4 + 20 + 4 * hook).map(|at| at as usize);
    let is_nat = info.starts_with(b"nat\0");
    let translates = |hook: &usize| may_match(family, entries, first(*hook), last(*hook));
    if is_nat && INCOMING.iter().filter(|hook| is_valid(hook)).any(translates) {
        found.add(&all);
    }
    for begin in HOOKS.into_iter().filter(is_valid).filter_map(first) {
        chains.follow(&begin, &all, found);
    }
}

/// Whether a hook has a rule before its policy that may match UDP.
fn may_match(family: &Family, entries: &[u8], first: Option<usize>, last: Option<usize>) -> bool {
    let (Some(mut at), Some(last)) = (first, last) else { return true };
    while at < last {
        let Some(entry) = entries.get(at..) else { return true };
        if scope(family, entry).is_none_or(|scope| !scope.is_empty()) {
            return true;
        }
        let octets = half(entry, family.offsets_at + 2).filter(|octets| *octets > 0);
        at += usize::from(octets.unwrap_or(u16::MAX));
    }
    false
}

/// What the rules of a table may change: its description and its rules, one behind the other.
pub(super) fn changed(is_v4: bool, octets: &[u8]) -> Vec<Reach> {
    let mut found = Found::default();
    let (info, entries) = octets.split_at(octets.len().min(INFO_OCTETS));
    FAMILIES.iter().filter(|of| of.is_v4 == is_v4).for_each(|of| look(of, info, entries, &mut found));
    found.into_reaches()
}

/// The chains of a table, each by the place of its first rule. `begins`: those of the hooks. A chain of a user's own stands behind an
/// entry with its name. `None`: the rules could not be read.
fn chains(family: &Family, entries: &[u8], mut begins: Vec<usize>) -> Option<Chains<usize>> {
    let (mut chains, mut chain, mut at) = (Chains::default(), None, 0);
    while at < entries.len() {
        let rest = entries.get(at..)?;
        let [target_at, octets] = [0, 2].map(|place| half(rest, family.offsets_at + place));
        let (target_at, octets) = (usize::from(target_at?), usize::from(octets?));
        let entry = rest.get(..octets).filter(|entry| entry.len() >= family.octets)?;
        let target = entry.get(target_at..).filter(|target| target.len() >= HEADER_OCTETS)?;
        let next = at + octets;
        if begins.contains(&at) {
            chain = Some(at);
        }
        if name(target) == b"ERROR" {
            chain = None;
            begins.push(next);
        } else {
            let tests = entry.get(family.octets..target_at)?;
            chains.extend(chain?, steps(family, entry, tests, target));
        }
        at = next;
    }
    Some(chains)
}

/// What a rule does.
fn steps(family: &Family, entry: &[u8], mut tests: &[u8], target: &[u8]) -> Vec<Step<usize>> {
    let Some(mut scope) = scope(family, entry) else {
        return vec![Step { scope: Scope::all(), action: Action::Change }];
    };
    let mut is_certain = scope == Scope::all();
    while let (Some(octets @ 1..), Some(info)) = (half(tests, 0), tests.get(HEADER_OCTETS..)) {
        match test(name(tests), u32::from(tests[HEADER_OCTETS - 1]), info) {
            Test::Always => {}
            Test::Never => scope = scope.without_family(true).without_family(false),
            Test::Perhaps => is_certain = false,
        }
        tests = tests.get(usize::from(octets)..).unwrap_or_default();
    }
    // Of the standard target: the place of a chain, or a verdict.
    let verdict = word(target, HEADER_OCTETS).map(u32::cast_signed);
    let action = match (name(target), verdict) {
        (b"", Some(chain @ 0..)) => Action::Chain(chain.cast_unsigned() as usize),
        (b"", Some(ACCEPT | RETURN)) if is_certain => Action::End,
        (b"", Some(ACCEPT | RETURN)) => return Vec::new(),
        (name, _) if name.is_empty() || changes(name) => Action::Change,
        _ => return Vec::new(),
    };
    vec![Step { scope, action }]
}

/// The datagrams that a rule may match by its addresses, its device and its protocol; `None`: not known.
fn scope(family: &Family, entry: &[u8]) -> Option<Scope> {
    /// IPT_INV_VIA_OUT, _SRCIP, _DSTIP, _PROTO, which IPv6 has alike; IP6T_F_PROTO.
    const NOT_DEVICE: u8 = 0x02;
    const NOT_SOURCE: u8 = 0x08;
    const NOT_DESTINATION: u8 = 0x10;
    const NOT_PROTOCOL: u8 = 0x40;
    const HAS_PROTOCOL: u8 = 0x01;
    let (flags, inverted) = (*entry.get(family.flags_at)?, *entry.get(family.flags_at + 1)?);
    let octets = family.address;
    let address = |at: usize| entry.get(at * octets..(at + 1) * octets);
    let mut scope = Scope::all();
    for (at, inversion) in [(0, NOT_SOURCE), (1, NOT_DESTINATION)] {
        // Of another mask than a prefix's nothing follows.
        let Some(bits) = leading_bits(address(at + 2)?, octets) else { continue };
        if inverted & inversion == 0 {
            scope = scope.within(prefix(family.is_v4, address(at)?, bits)?, at == 0);
        } else if bits == 0 {
            return Some(scope.without_family(true).without_family(false));
        } else {
            // Not certain.
            scope = scope.of_family(family.is_v4);
        }
    }
    let protocol = half(entry, family.protocol_at)?;
    let is_named = if family.is_v4 { protocol != 0 } else { flags & HAS_PROTOCOL != 0 && protocol != 0 };
    if is_named && (protocol == UDP) != (inverted & NOT_PROTOCOL == 0) {
        scope = scope.without_family(true).without_family(false);
    } else if is_named {
        scope = scope.of_family(family.is_v4);
    }
    let name_at = |at: usize| entry.get(at..at + DEVICE_OCTETS);
    // The device by which datagrams come stands before, of these there is none.
    let incoming = name_at(family.device_mask_at - DEVICE_OCTETS)?;
    if flags & family.test_flag != 0 || incoming.iter().any(|octet| *octet != 0) {
        scope = scope.of_family(family.is_v4);
    }
    let (device, mask) = (name_at(family.device_at)?, name_at(family.device_mask_at)?);
    let compared = mask.iter().take_while(|octet| **octet != 0).count();
    if compared > 0 {
        let text: Vec<u8> = device.iter().take(compared).copied().take_while(|octet| *octet != 0).collect();
        let is_beginning = text.len() == compared;
        let named = if inverted & NOT_DEVICE == 0 {
            scope.by(DeviceName { text, is_beginning })
        } else {
            scope.of_family(family.is_v4)
        };
        scope = named;
    }
    Some(scope)
}

/// The name of a test or of a target.
fn name(octets: &[u8]) -> &[u8] {
    let name = octets.get(2..HEADER_OCTETS - 1).unwrap_or_default();
    name.split(|octet| *octet == 0).next().unwrap_or_default()
}

#[cfg(test)]
#[path = "older_tests.rs"]
mod tests;
