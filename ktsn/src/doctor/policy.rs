// SPDX-License-Identifier: Apache-2.0
//! Which engines of network policy work on this node: uplink egress and the ingress fast path bypass them (docs/guide/policy.md).
//!
//! In: the names of the packet filter's chains and of network devices. Out: one finding. It does not read the
//! rules themselves, and changes nothing.

use std::process::{Command, Stdio};

use super::finding::{Finding, Look};
use super::machine::text;

/// An engine, and how its chains or devices are called.
const ENGINES: [(&str, &[&str]); 6] = [
    ("Calico", &["cali-", "cali", "vxlan.calico"]),
    ("Cilium", &["CILIUM_", "cilium_"]),
    ("kube-router", &["KUBE-ROUTER-", "KUBE-POD-FW-", "KUBE-NWPLCY-"]),
    ("kube-network-policies", &["kube-network-policies"]),
    ("Weave", &["WEAVE-NPC"]),
    ("Antrea", &["ANTREA-", "antrea-gw"]),
];

/// The engines that left names; `names` are chains, tables and devices.
fn engines<'a>(names: impl Iterator<Item = &'a str>) -> Vec<&'static str> {
    let mut found = [false; ENGINES.len()];
    for name in names {
        for ((_, prefixes), found) in ENGINES.iter().zip(&mut found) {
            *found |= prefixes.iter().any(|prefix| name.starts_with(prefix));
        }
    }
    ENGINES.iter().zip(found).filter(|(_, found)| *found).map(|((engine, _), _)| *engine).collect()
}

/// Names in what `iptables-save` (`:CHAIN POLICY`) and `nft list chains` (`table ip NAME {`, `chain NAME {`) print.
fn names(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter_map(|line| {
        let line = line.trim_start();
        let mut words = line.split_whitespace();
        match words.next()? {
            "chain" => words.next(),
            "table" => words.nth(1),
            word => word.strip_prefix(':'),
        }
    })
}

fn printed(program: &str, arguments: &[&str]) -> Option<String> {
    let mut command = Command::new(program);
    let output = command.args(arguments).stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

/// A packet filter's program, its arguments, and the list of tables that its older kernel interface has.
type Tool = (&'static str, &'static [&'static str], Option<&'static str>);
const TOOLS: [Tool; 3] = [
    ("iptables-save", &[], Some("/proc/net/ip_tables_names")),
    ("ip6tables-save", &[], Some("/proc/net/ip6_tables_names")),
    ("nft", &["list", "chains"], None),
];

/// The finding: which policy engines work on this node.
pub(super) fn finding() -> Finding {
    let (mut texts, mut silent) = (Vec::new(), Vec::new());
    for (program, arguments, tables) in TOOLS {
        match printed(program, arguments) {
            Some(text) => texts.push(text),
            // nft shows all chains but those of the older interface, which lists its tables.
            None if tables.is_some_and(|list| text(list).is_none_or(|tables| tables.is_empty())) => {}
            None => silent.push(program),
        }
    }
    let devices: Vec<String> = std::fs::read_dir("/sys/class/net")
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    if devices.is_empty() {
        silent.push("/sys/class/net");
    }
    let all = texts.iter().flat_map(|text| names(text)).chain(devices.iter().map(String::as_str));
    of(&engines(all), &silent)
}

/// `silent`: the sources that did not answer.
fn of(engines: &[&str], silent: &[&str]) -> Finding {
    const LOOK: Look = Look::at(
        "network_policy",
        "names of chains and tables (iptables-save, ip6tables-save, nft list chains), devices in /sys/class/net",
    );
    const SKIPPED: &str =
        "frames that leave by an uplink or come by ingress = \"short\" pass none of its rules";
    const REMEDY: &str = "read docs/guide/policy.md; list in destinations only what the policy allows, and say \
                          allow_policy_bypass = true where ktsnd refuses a pod that needs none of it";
    if !engines.is_empty() {
        return LOOK.warn(format!("found: {}", engines.join(", ")), SKIPPED, REMEDY);
    }
    if !silent.is_empty() {
        return LOOK.not_known(
            format!("no answer: {}", silent.join(", ")),
            "whether rules of this node are about TSN pods is unknown; ktsnd does not find them either",
            "install nftables and iptables beside ktsnd, and run both as root on the node",
        );
    }
    LOOK.ok("no known engine", "no policy that KTSN's frames would bypass is known here")
}

#[cfg(test)]
mod tests {
    use super::super::finding::State;
    use super::*;

    #[test]
    fn engines_are_known_by_their_names() {
        let iptables = "# Generated\n*filter\n:INPUT ACCEPT [0:0]\n:cali-FORWARD - [0:0]\n:KUBE-POD-FW-X - [0:0]\n\
                        -A INPUT -j ACCEPT\nCOMMIT\n";
        let nft = "table inet kube-network-policies {\n\tchain forward {\n\t\ttype filter hook forward priority 0;\n\t}\n}\n";
        let found = |texts: &[&str]| engines(texts.iter().flat_map(|text| names(text)));
        assert_eq!(found(&[iptables]), ["Calico", "kube-router"]);
        assert_eq!(found(&[nft]), ["kube-network-policies"]);
        assert_eq!(engines(["lo", "cilium_host"].into_iter()), ["Cilium"]);
        let ordinary =
            ":FLANNEL-FWD - [0:0]\n:KUBE-SERVICES - [0:0]\n:KUBE-FORWARD - [0:0]\n:DOCKER - [0:0]\n";
        assert!(
            found(&[ordinary]).is_empty() && engines(["eth0", "flannel.1", "cni0"].into_iter()).is_empty()
        );
        assert_eq!(of(&["Calico"], &["nft"]).state, State::Warn);
        assert_eq!((of(&[], &[]).state, of(&[], &["nft"]).state), (State::Ok, State::NotKnown));
    }
}
