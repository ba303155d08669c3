// SPDX-License-Identifier: Apache-2.0
//! What the node's packet filter does to an attachment's datagrams. Frames that take a path past the filter would skip it.
//!  
//! In: what `iptables-save`, `ip6tables-save` and `nft -j list ruleset` print, where they are installed. Out: rules that
//! drop or translate, the destinations of an attachment that they name ([`hindrances`]), and news when they change ([`Watch`]).
//! Only rules that name an address or a prefix count: an administrator wrote them for these datagrams. Rules that cannot be
//! read (named sets, eBPF, another namespace's rules) are not found, so an empty result proves nothing
//! (`docs/guide/policy.md`). It changes no rule.

pub(crate) mod fuzzing;
mod named;
mod read;
mod reading;
mod restriction;
mod watch;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use ktsn_model::IpPrefix;
use serde_json::Value;

pub use named::Hindrance;
pub(crate) use named::{Prefixes, hindrances, is_past_the_kernel, past_the_kernel};
pub use restriction::Restriction;
pub(crate) use watch::{GROUP_NFTABLES, Known, Watch, changes_rules};

/// How long the tools may take; an attachment does not wait longer.
const PATIENCE: Duration = Duration::from_secs(3);
/// Targets of iptables that drop or change a destination, and chains of kube-proxy (services) and of kube-router (a pod's
/// NetworkPolicy) that do.
const DROPS: [&str; 3] = ["DROP", "REJECT", "KUBE-POD-FW-"];
const TRANSLATES: [&str; 6] = ["DNAT", "REDIRECT", "NETMAP", "KUBE-SVC-", "KUBE-EXT-", "KUBE-FW-"];

/// What a rule does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Drop,
    Translate,
}

/// A rule that names addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rule {
    /// Source of the datagrams; `None`: any.
    sources: Option<Prefixes>,
    /// Destination of the datagrams; `None`: any.
    destinations: Option<Prefixes>,
    action: Action,
    /// The text that the tool printed.
    pub(crate) text: String,
}

/// The node's rules as they were last read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    rules: Arc<Vec<Rule>>,
    /// Why the rules of a tool are not known: `rules` holds older ones of that tool.
    unread: Option<Unread>,
}

impl Seen {
    fn of(read: &read::Read) -> Self {
        Self { rules: Arc::new(read.rules()), unread: read.unread() }
    }

    /// The rules, where all could be read.
    fn known(&self) -> Result<Arc<Vec<Rule>>, Unread> {
        self.unread.map_or_else(|| Ok(self.rules.clone()), Err)
    }
}

/// Why the node's rules are not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unread {
    /// A tool is installed and fails.
    #[error("{0} fails (run it on this node to see why)")]
    Failed(&'static str),
    /// A tool is installed and hangs.
    #[error("{0} did not end within {limit:?} and was killed (run it on this node to see why)", limit = read::LIMIT)]
    Silent(&'static str),
    /// The kernel has rules that only a tool shows which is not installed.
    #[error(
        "{0} is not installed, and this kernel has tables of the older iptables: install it (Debian: package iptables)"
    )]
    Missing(&'static str),
    /// The tools take too long.
    #[error("iptables-save and nft did not answer within {PATIENCE:?}")]
    Late,
}

/// The node's rules that name addresses: those of the watch where it runs, else what the tools print now; none where no tool
/// is installed.
///
/// # Errors
/// [`Unread`]: rules that could not be read may be about anything.
pub(crate) async fn rules(followed: &Known) -> Result<Arc<Vec<Rule>>, Unread> {
    if let Some(known) = followed_rules(followed) {
        return known;
    }
    static READINGS: reading::Readings = reading::Readings::new();
    READINGS.rules(|| Seen::of(&read::Read::default().again(read::Wanted::All)), PATIENCE).await
}

/// The rules of the watch; `None`: they have not been read yet.
pub(crate) fn followed_rules(followed: &Known) -> Option<Result<Arc<Vec<Rule>>, Unread>> {
    followed.borrow().as_ref().map(Seen::known)
}

/// An address or prefix; `None` for every address.
fn prefix(text: &str) -> Option<IpPrefix> {
    let prefix: IpPrefix = text.parse().ok().or_else(|| text.parse::<IpAddr>().ok().map(IpPrefix::host))?;
    (prefix.bits() > 0).then_some(prefix)
}

/// Rules of `iptables-save`.
fn of_iptables(text: &str) -> Vec<Rule> {
    text.lines().filter(|line| line.starts_with("-A ")).filter_map(iptables_rule).collect()
}

fn iptables_rule(line: &str) -> Option<Rule> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let after = |flag: &str| {
        let at = words.iter().position(|word| *word == flag)?;
        // "! -s …" names every other address, so it names none.
        let is_negated = at > 0 && words.get(at - 1) == Some(&"!");
        if is_negated { None } else { words.get(at + 1).copied() }
    };
    if after("-p").is_some_and(|protocol| !matches!(protocol, "udp" | "all")) {
        return None;
    }
    let target = after("-j").or_else(|| after("-g"))?;
    let is_of =
        |names: &[&str]| names.iter().any(|n| target == *n || (n.ends_with('-') && target.starts_with(n)));
    let action = match () {
        () if is_of(&DROPS) => Action::Drop,
        () if is_of(&TRANSLATES) => Action::Translate,
        () => return None,
    };
    let named = |flag| after(flag).and_then(prefix).map(|prefix| [prefix].into_iter().collect());
    rule_of(named("-s"), named("-d"), action, || line.to_owned())
}

/// A rule, if it names an address.
fn rule_of(
    sources: Option<Prefixes>,
    destinations: Option<Prefixes>,
    action: Action,
    text: impl FnOnce() -> String,
) -> Option<Rule> {
    let names = sources.is_some() || destinations.is_some();
    names.then(|| Rule { sources, destinations, action, text: text() })
}

/// Rules of `nft -j list ruleset`.
fn of_nft(text: &str) -> Vec<Rule> {
    let parsed: Value = serde_json::from_str(text).unwrap_or(Value::Null);
    let all = parsed["nftables"].as_array().map_or(&[][..], Vec::as_slice);
    all.iter().filter_map(|entry| entry.get("rule")).filter_map(nft_rule).collect()
}

/// The rule, with any number of addresses on each side: they are never paired.
fn nft_rule(rule: &Value) -> Option<Rule> {
    let statements = rule["expr"].as_array().map_or(&[][..], Vec::as_slice);
    let has = |name: &str| statements.iter().any(|statement| statement.get(name).is_some());
    let action = if has("drop") || has("reject") {
        Action::Drop
    } else if has("dnat") || has("redirect") {
        Action::Translate
    } else {
        return None;
    };
    let (mut sources, mut destinations) = (None, None);
    for statement in statements.iter().filter_map(|statement| statement.get("match")) {
        let (left, right) = (&statement["left"], &statement["right"]);
        let is_equal = matches!(statement["op"].as_str(), Some("==" | "in"));
        let protocol = &left["payload"]["protocol"];
        let is_l4 = left["meta"]["key"] == "l4proto" || left["payload"]["field"] == "protocol";
        if protocol == "tcp" || (is_l4 && is_equal && right == "tcp") {
            return None; // not about datagrams
        }
        let named = match left["payload"]["field"].as_str() {
            Some("saddr") if protocol != "ether" => &mut sources,
            Some("daddr") if protocol != "ether" => &mut destinations,
            _ => continue,
        };
        *named = if is_equal { nft_prefixes(right).or(named.take()) } else { named.take() };
    }
    // Without counters: the same rule must read the same.
    let is_constant =
        |statement: &&Value| statement.get("counter").is_none() && statement.get("quota").is_none();
    let constant: Value = statements.iter().filter(is_constant).cloned().collect();
    let text = || format!("{} {} {}: {constant}", rule["family"], rule["table"], rule["chain"]);
    rule_of(sources, destinations, action, text)
}

/// The addresses of one side of a comparison, if any; addresses of named sets are missing.
fn nft_prefixes(right: &Value) -> Option<Prefixes> {
    let one = |value: &Value| match value {
        Value::String(text) => prefix(text),
        _ => {
            let (address, bits) = (value["prefix"]["addr"].as_str()?, value["prefix"]["len"].as_u64()?);
            prefix(&format!("{address}/{bits}"))
        }
    };
    let all = right["set"].as_array().map_or(std::slice::from_ref(right), Vec::as_slice);
    let found: Prefixes = all.iter().filter_map(one).collect();
    (!found.is_empty()).then_some(found)
}

#[cfg(test)]
#[path = "policy_tests.rs"]
mod tests;
