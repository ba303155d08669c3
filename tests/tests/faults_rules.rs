// SPDX-License-Identifier: Apache-2.0
//! Rules of the node's packet filter that the short cut would skip: the attachment is refused, or what they name is the
//! kernel's from then on, unless the attachment says that it may be skipped.

use ktsn_proto::v1::RuleState;
use ktsn_tests::faults::bed::{Bed, POD_A, POD_B, UPLINK, within};
use ktsn_tests::faults::control::{Control, reason};
use ktsn_tests::faults::daemon::{self, Attachment, Daemon, NAME};
use ktsn_tests::faults::talker::{Talker, talk};
use ktsn_tests::faults::{Tap, eventually};
use ktsn_tests::hook::Running;
use std::process::Stdio;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(20);

#[test]
fn a_rule_about_the_pod_refuses_its_attachment() {
    let bed = Bed::new();
    let nft = |text: &str| bed.run(&format!("ip netns exec {} nft '{text}'", bed.host_a));
    nft("add table inet rules");
    nft("add chain inet rules forward { type filter hook forward priority 0; }");
    // Another pod's rule, and a service's address: nobody's will about pod A.
    nft("add rule inet rules forward ip saddr 10.244.0.77 drop");
    nft("add rule inet rules forward ip daddr 10.96.0.10 counter reject");
    let daemon = Daemon::start(&bed, &[Attachment::pod_a(&bed)]);
    let tap = Tap::open(&bed.host_b, UPLINK);
    talk(&daemon, &bed.pod_a, POD_B, 1, "count=5");
    let mut control = daemon.control();
    let model = control.list().attachments[0].attachment.clone().expect("an attachment");
    control.detach(&model.name).expect("detach");
    eventually("its client is gone", SOON, || (daemon.clients() == 0).then_some(()));
    nft(&format!("add rule inet rules forward ip saddr {POD_A} udp dport 7788 drop"));
    // Rules are read again when they are a second old.
    std::thread::sleep(Duration::from_millis(1100));
    let before = (daemon.descriptors(), control.list().ports.len());
    let refused = control.attach(model.clone()).expect_err("a pod with a rule");
    assert_eq!(refused.code(), tonic::Code::FailedPrecondition, "{refused}");
    let text = refused.message();
    assert!(text.contains("allow_policy_bypass: false") && text.contains(POD_A), "{text}");
    eventually("nothing is held of it", SOON, || {
        (daemon.descriptors() <= before.0 && control.list().ports.len() == before.1).then_some(())
    });
    assert!(control.list().attachments.is_empty());
    let willing = ktsn_proto::v1::Attachment { allow_policy_bypass: Some(true), ..model };
    control.attach(willing).expect("attach");
    talk(&daemon, &bed.pod_a, POD_B, 2, "count=20");
    assert_eq!(tap.wait(2, 20, SOON).len(), 20);
}

/// Tools that print the node's rules, or do something else instead.
struct Tools(tempfile::TempDir);

impl Tools {
    /// They print the rules.
    fn new() -> Self {
        let tools = Self(tempfile::tempdir().expect("a directory"));
        tools.set("true");
        let own = std::env::var("PATH").expect("PATH");
        for tool in ["nft", "iptables-save", "ip6tables-save"] {
            let path = tools.0.path().join(tool);
            let before = tools.0.path().join("before");
            let text = format!("#!/bin/sh\n. {}\nPATH={own} exec {tool} \"$@\"\n", before.display());
            std::fs::write(&path, text).expect("written");
            std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755))
                .expect("mode");
        }
        tools
    }

    /// What each does before it prints rules, as a line of sh.
    fn set(&self, line: &str) {
        let new = self.0.path().join("new");
        std::fs::write(&new, format!("{line}\n")).expect("written");
        std::fs::rename(&new, self.0.path().join("before")).expect("renamed");
    }

    /// The PATH that finds them.
    fn path(&self) -> String {
        format!("{}:{}", self.0.path().display(), std::env::var("PATH").expect("PATH"))
    }
}

/// Rules that nobody can read may be about anything: the attachment is refused with the tool's name, unless it says that they
/// may be skipped.
#[test]
fn rules_that_cannot_be_read_refuse_the_attachment() {
    let bed = Bed::new();
    let tools = Tools::new();
    tools.set("exit 1");
    let path = tools.path();
    let of = |attachment| daemon::configuration(&[attachment]);
    let refused = Daemon::prepare(&bed.host_a, &of(Attachment::pod_a(&bed)));
    let (code, log) = refused.fails(refused.command().env("PATH", &path));
    assert_ne!(code, Some(0));
    assert!(log.contains("cannot be read") && log.contains("allow_policy_bypass: false"), "{log}");
    assert!(["nft fails", "iptables-save fails"].iter().any(|tool| log.contains(tool)), "{log}");
    let skips = Daemon::prepare(&bed.host_a, &of(Attachment::pod_a(&bed).with("allow_policy_bypass = true")));
    let mut command = skips.command();
    command.env("PATH", &path).stdout(Stdio::null()).stderr(Stdio::null());
    let _running = Running(within(&bed.host_a, || command.spawn()).expect("ktsnd"));
    eventually("it serves", SOON, || Control::connect(skips.run_dir()).ok()?.health().ok());
}

fn rules(daemon: &Daemon) -> (Vec<RuleState>, u64) {
    let state = daemon.control().list().attachments.remove(0);
    (state.rules, state.rules_count)
}

/// What a talker to pod B makes the daemon count: frames taken, and those left to the kernel as `not_allowed`.
fn counts(daemon: &Daemon) -> (u64, u64) {
    let counters = daemon.control().counters(NAME);
    (counters.taken, reason(&counters.bypassed, "not_allowed"))
}

fn until_rules(daemon: &Daemon, count: usize) -> Vec<RuleState> {
    eventually("the rules are followed", SOON, || {
        let (rules, _) = rules(daemon);
        (rules.len() == count).then_some(rules)
    })
}

/// A talker's frames before, under and after a rule, however it is written.
fn a_rule_is_followed(bed: &Bed, appears: &str, goes: &str) {
    let daemon = Daemon::start(bed, &[Attachment::pod_a(bed)]);
    let talker = Talker::start(&daemon, &bed.pod_a, POD_B, 1, "count=30000 period_us=1000 lead_us=100000");
    eventually("taken", 12 * SOON, || (counts(&daemon).0 > 100).then_some(()));
    assert_eq!(rules(&daemon), (Vec::new(), 0));
    bed.run(&format!("ip netns exec {} {appears}", bed.host_a));
    let found = until_rules(&daemon, 1);
    assert_eq!(
        (found[0].destinations.as_slice(), found[0].is_arrival),
        (&[format!("{POD_B}/32")][..], false)
    );
    eventually("left to the kernel", SOON, || (counts(&daemon).1 > 100).then_some(()));
    let taken = counts(&daemon).0;
    // Other destinations of the same peer are taken as before.
    talk(&daemon, &bed.pod_a, "10.244.1.77", 2, "count=10");
    assert_eq!(counts(&daemon).0, taken + 10);
    bed.run(&format!("ip netns exec {} {goes}", bed.host_a));
    until_rules(&daemon, 0);
    eventually("taken again", SOON, || (counts(&daemon).0 > taken + 110).then_some(()));
    assert_eq!(rules(&daemon).1, 1, "counted");
    let log = daemon.log();
    assert_eq!(log.matches("has a rule about its datagrams").count(), 1, "told once: {log}");
    assert!(log.contains("they are taken again") && log.contains(POD_B), "{log}");
    drop(talker);
}

#[test]
fn a_rule_of_nft_that_comes_later_makes_what_it_names_the_kernels() {
    let bed = Bed::new();
    let nft = |text: &str| bed.run(&format!("ip netns exec {} nft \"{text}\"", bed.host_a));
    nft("add table inet rules; add chain inet rules forward { type filter hook forward priority 0; }");
    a_rule_is_followed(
        &bed,
        &format!("nft add rule inet rules forward ip daddr {POD_B} udp dport 9 counter drop"),
        "nft flush chain inet rules forward",
    );
}

#[test]
fn a_rule_of_iptables_that_comes_later_makes_what_it_names_the_kernels() {
    let bed = Bed::new();
    let rule = format!("FORWARD -s {POD_A} -d {POD_B} -p udp --dport 9 -j DROP");
    a_rule_is_followed(&bed, &format!("iptables -A {rule}"), &format!("iptables -D {rule}"));
}

/// The older iptables notifies nobody: it is looked at every few seconds while it has tables.
#[test]
fn a_rule_of_the_older_iptables_that_comes_later_makes_what_it_names_the_kernels() {
    let bed = Bed::new();
    let arguments = ["netns", "exec", &bed.host_a, "iptables-legacy", "-S"];
    if !std::process::Command::new("ip").args(arguments).output().is_ok_and(|done| done.status.success()) {
        println!("SKIP iptables_legacy_missing: this kernel or machine has no iptables-legacy");
        return;
    }
    let rule = format!("FORWARD -s {POD_A} -d {POD_B} -p udp --dport 9 -j DROP");
    a_rule_is_followed(&bed, &format!("iptables-legacy -A {rule}"), &format!("iptables-legacy -D {rule}"));
}

#[test]
fn a_rule_is_skipped_knowingly_and_costs_nothing_when_nobody_asks() {
    let bed = Bed::new();
    let daemon = Daemon::start(&bed, &[Attachment::pod_a(&bed).with("allow_policy_bypass = true")]);
    bed.run(&format!("ip netns exec {} iptables -A FORWARD -s {POD_A} -p udp --dport 9 -j DROP", bed.host_a));
    std::thread::sleep(Duration::from_secs(2));
    talk(&daemon, &bed.pod_a, POD_B, 1, "count=20");
    assert_eq!((counts(&daemon), rules(&daemon)), ((20, 0), (Vec::new(), 0)));
}

/// A tool that hangs while the rules are followed is named and ended, and rules are followed again when it answers.
#[test]
fn a_tool_that_hangs_is_named_and_ended() {
    let bed = Bed::new();
    let nft = |text: &str| bed.run(&format!("ip netns exec {} nft \"{text}\"", bed.host_a));
    nft("add table inet rules; add chain inet rules forward { type filter hook forward priority 0; }");
    let tools = Tools::new();
    let configuration = daemon::configuration(&[Attachment::pod_a(&bed)]);
    let mut daemon = Daemon::prepare(&bed.host_a, &configuration).with_variable("PATH", tools.path());
    daemon.spawn();
    nft(&format!("add rule inet rules forward ip saddr {POD_A} udp dport 9 drop"));
    until_rules(&daemon, 1);
    let hung = tools.0.path().join("hung");
    tools
        .set(&format!("test $(basename $0) != nft || {{ echo $$ >> {}; exec sleep 1000; }}", hung.display()));
    nft("flush chain inet rules forward");
    eventually("it is named", 2 * SOON, || daemon.log().contains("nft did not end within 10s").then_some(()));
    let first = std::fs::read_to_string(&hung).expect("hung").lines().next().expect("one").to_owned();
    assert!(!std::path::Path::new(&format!("/proc/{first}")).exists(), "it was ended");
    assert_eq!(rules(&daemon).0.len(), 1, "what was read last holds");
    tools.set("true");
    until_rules(&daemon, 0);
}
