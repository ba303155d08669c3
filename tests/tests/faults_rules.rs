// SPDX-License-Identifier: Apache-2.0
//! Rules of the node's packet filter that KTSN's frames would bypass: the attachment is refused, or what they name is the
//! kernel's from then on, unless the attachment says that it may be skipped.

use ktsn_eventually::make_program;
use ktsn_proto::v1::RuleState;
use ktsn_tests::faults::bed::{Bed, POD_A, POD_B, UPLINK};
use ktsn_tests::faults::control::{reason, with};
use ktsn_tests::faults::daemon::{self, Attachment, Daemon, NAME};
use ktsn_tests::faults::talker::{Talker, talk};
use ktsn_tests::faults::{Tap, eventually};
use serde_json::json;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(20);

#[test]
fn a_rule_about_the_pod_refuses_its_attachment() {
    let bed = Bed::new();
    let nft = |text: &str| bed.run(&format!("ip netns exec {} nft '{text}'", bed.host_a));
    nft("add table inet rules");
    nft("add chain inet rules forward { type filter hook forward priority 0; }");
    // Another pod's rule, and a service's address: not about pod A.
    nft("add rule inet rules forward ip saddr 10.244.0.77 drop");
    nft("add rule inet rules forward ip daddr 10.96.0.10 counter reject");
    let daemon = Daemon::start(&bed, &[Attachment::pod_a(&bed)]);
    let tap = Tap::open(&bed.host_b, UPLINK);
    talk(&daemon, &bed.pod_a, POD_B, 1, "count=5");
    let mut control = daemon.control();
    let model = control.list().attachments[0].fields();
    control.detach(NAME).expect("detach");
    eventually("its client is gone", SOON, || daemon.clients() == 0);
    nft(&format!("add rule inet rules forward ip saddr {POD_A} udp dport 7788 drop"));
    // Rules are read again when they are a second old.
    std::thread::sleep(Duration::from_millis(1100));
    let before = (daemon.descriptors(), control.list().ports.len());
    let refused = control.attach(model.clone()).expect_err("a pod with a rule");
    assert_eq!(refused.code(), tonic::Code::FailedPrecondition, "{refused}");
    let text = refused.message();
    assert!(text.contains("allow_policy_bypass: false") && text.contains(POD_A), "{text}");
    eventually("nothing is held of it", SOON, || {
        daemon.descriptors() <= before.0 && control.list().ports.len() == before.1
    });
    assert!(control.list().attachments.is_empty());
    let willing = with(model, &json!({ "allow_policy_bypass": true }));
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
            make_program(&path, text.as_bytes());
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

/// Rules that cannot be read may be about anything: the attachment is refused with the tool's name, unless it says that they
/// may be skipped.
#[test]
fn rules_that_cannot_be_read_refuse_the_attachment() {
    let bed = Bed::new();
    let tools = Tools::new();
    let configuration = daemon::configuration(&[Attachment::pod_a(&bed)]);
    let mut daemon = Daemon::prepare(&bed.host_a, &configuration).with_variable("PATH", tools.path());
    daemon.spawn();
    let mut control = daemon.control();
    let model = control.list().attachments[0].fields();
    control.detach(NAME).expect("detach");
    tools.set("exit 1");
    // Rules are read again when they are a second old.
    std::thread::sleep(Duration::from_millis(1100));
    let refused = control.attach(model.clone()).expect_err("rules that cannot be read");
    assert_eq!(refused.code(), tonic::Code::FailedPrecondition, "{refused}");
    let text = refused.message();
    assert!(text.contains("cannot be read") && text.contains("allow_policy_bypass: false"), "{text}");
    assert!(["nft fails", "iptables-save fails"].iter().any(|tool| text.contains(tool)), "{text}");
    let willing = with(model.clone(), &json!({ "allow_policy_bypass": true }));
    control.attach(willing).expect("attach");
    control.detach(NAME).expect("detach");
    // A failure is not kept: the next attachment does not meet it.
    tools.set("true");
    control.attach(model).expect("attach");
}

/// What a listing says of why the attachment is closed.
fn closed(daemon: &Daemon, name: &str) -> Option<String> {
    let all = daemon.control().list().attachments;
    let found = all.into_iter().find(|state| state.name == name);
    let policy = found.expect("served").policy?;
    assert!(policy.egress_restricted && policy.egress_allowed.is_empty() && policy.ingress_blocked);
    Some(policy.reason)
}

/// Waits until so many frames have left, and so many were dropped as `network_policy`.
fn until_sent(daemon: &Daemon, name: &str, sent: u64, dropped: u64) {
    eventually("counted", SOON, || {
        let counters = daemon.control().counters(name);
        (counters.sent, reason(&counters.dropped, "network_policy")) == (sent, dropped)
    });
}

/// A moment in which no rule can be read must not end attachments: those of the configuration and of the state file are
/// closed, and opened by themselves. Policies that come meanwhile are in force then.
#[test]
fn attachments_are_taken_up_closed_while_rules_cannot_be_read() {
    let bed = Bed::new();
    let tools = Tools::new();
    let mut daemon = Daemon::prepare(&bed.host_a, &daemon::configuration(&[Attachment::pod_a(&bed)]))
        .with_variable("PATH", tools.path());
    tools.set("exit 1");
    daemon.spawn();
    assert!(closed(&daemon, NAME).expect("closed").contains("fails"), "the configuration's");
    talk(&daemon, &bed.pod_a, POD_B, 1, "count=20");
    until_sent(&daemon, NAME, 0, 20);
    tools.set("true");
    eventually("opened", SOON, || closed(&daemon, NAME).is_none());
    // The same one by the control API, and so in the state file.
    let mut control = daemon.control();
    let model = control.list().attachments[0].fields();
    let kept = with(model, &json!({ "name": "kept" }));
    daemon.terminate(SOON);
    let mut daemon = Daemon::prepare(&bed.host_a, &daemon::port("auto")).with_variable("PATH", tools.path());
    daemon.spawn();
    daemon.control().attach(kept).expect("attach");
    daemon.kill();
    tools.set("exit 1");
    daemon.spawn();
    assert!(closed(&daemon, "kept").expect("closed").contains("fails"), "the state file's");
    let policy = |allowed: &[&str]| ktsn_proto::v1::AttachmentPolicy {
        attachment: "kept".to_owned(),
        egress_restricted: true,
        egress_allowed: allowed.iter().map(|prefix| (*prefix).to_owned()).collect(),
        reason: "a policy".to_owned(),
        ..ktsn_proto::v1::AttachmentPolicy::default()
    };
    let (open, other) = (policy(&["10.244.1.0/24"]), policy(&["10.244.1.64/26"]));
    daemon.control().set_policies(vec![open]).expect("set");
    talk(&daemon, &bed.pod_a, POD_B, 2, "count=20");
    // A policy opens nothing.
    until_sent(&daemon, "kept", 0, 20);
    daemon.control().set_policies(vec![other]).expect("set");
    // Also over one more start: what was not read is no reason to forget.
    daemon.kill();
    daemon.spawn();
    closed(&daemon, "kept").expect("closed");
    tools.set("true");
    eventually("opened as far as the policy lets it", SOON, || {
        let policy = daemon.control().list().attachments.remove(0).policy.expect("a policy");
        policy.reason == "a policy"
    });
    talk(&daemon, &bed.pod_a, POD_B, 3, "count=20");
    talk(&daemon, &bed.pod_a, "10.244.1.77", 4, "count=20");
    until_sent(&daemon, "kept", 20, 20);
    assert!(daemon.log().contains("taken up closed"), "{}", daemon.log());
}

/// Tools that hang keep the start once, not once for each attachment.
#[test]
fn a_start_waits_once_for_tools_that_hang() {
    let bed = Bed::new();
    let tools = Tools::new();
    let asked = tools.0.path().join("asked");
    tools.set(&format!("echo $$ >> {}; exec sleep 1000", asked.display()));
    let pod_q =
        Attachment { name: "pod-q".to_owned(), namespace: bed.pod_q.clone(), ..Attachment::pod_a(&bed) };
    let mut daemon = Daemon::prepare(&bed.host_a, &daemon::configuration(&[Attachment::pod_a(&bed), pod_q]))
        .with_variable("PATH", tools.path());
    daemon.spawn();
    for name in [NAME, "pod-q"] {
        assert!(closed(&daemon, name).expect("closed").contains("did not answer within 3s"), "{name}");
    }
    // One reading for the attachments, one that follows.
    assert_eq!(std::fs::read_to_string(&asked).expect("asked").lines().count(), 2);
    tools.set("true");
    for name in [NAME, "pod-q"] {
        eventually("opened", 3 * SOON, || closed(&daemon, name).is_none());
    }
}

/// A rule that came after the attachment leaves its destinations to the kernel, before and after a restart.
#[test]
fn a_rule_that_came_later_is_met_after_a_restart_too() {
    let bed = Bed::new();
    let nft = |text: &str| bed.run(&format!("ip netns exec {} nft \"{text}\"", bed.host_a));
    nft("add table inet rules; add chain inet rules forward { type filter hook forward priority 0; }");
    let daemon = Daemon::start(&bed, &[Attachment::pod_a(&bed)]);
    let model = daemon.control().list().attachments[0].fields();
    drop(daemon);
    let mut daemon = Daemon::prepare(&bed.host_a, &daemon::port("auto"));
    daemon.spawn();
    daemon.control().attach(model).expect("attach");
    nft(&format!("add rule inet rules forward ip daddr {POD_B} udp dport 9 counter drop"));
    until_rules(&daemon, 1);
    daemon.kill();
    daemon.spawn();
    until_rules(&daemon, 1);
    eventually("opened", SOON, || closed(&daemon, NAME).is_none());
    talk(&daemon, &bed.pod_a, POD_B, 1, "count=20");
    talk(&daemon, &bed.pod_a, "10.244.1.77", 2, "count=20");
    until_counted(&daemon, (20, 20));
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

/// Waits until the daemon has counted these frames: a program's last ones may be in its ring when it ends.
fn until_counted(daemon: &Daemon, expected: (u64, u64)) {
    eventually("all frames are counted", SOON, || counts(daemon) == expected);
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
    eventually("taken", 12 * SOON, || counts(&daemon).0 > 100);
    assert_eq!(rules(&daemon), (Vec::new(), 0));
    bed.run(&format!("ip netns exec {} {appears}", bed.host_a));
    let found = until_rules(&daemon, 1);
    assert_eq!(
        (found[0].destinations.as_slice(), found[0].is_arrival),
        (&[format!("{POD_B}/32")][..], false)
    );
    eventually("left to the kernel", SOON, || counts(&daemon).1 > 100);
    let taken = counts(&daemon).0;
    // Other destinations of the same peer are taken as before.
    talk(&daemon, &bed.pod_a, "10.244.1.77", 2, "count=10");
    eventually("taken as before", SOON, || counts(&daemon).0 == taken + 10);
    bed.run(&format!("ip netns exec {} {goes}", bed.host_a));
    until_rules(&daemon, 0);
    eventually("taken again", SOON, || counts(&daemon).0 > taken + 110);
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

/// The older iptables sends no notification: it is read every few seconds while it has tables.
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
    // Rules that are followed are read again when they are a second old.
    std::thread::sleep(Duration::from_secs(2));
    talk(&daemon, &bed.pod_a, POD_B, 1, "count=20");
    until_counted(&daemon, (20, 0));
    assert_eq!(rules(&daemon), (Vec::new(), 0));
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
    eventually("it is named", 2 * SOON, || daemon.log().contains("nft did not end within 10s"));
    let first = std::fs::read_to_string(&hung).expect("hung").lines().next().expect("one").to_owned();
    assert!(!std::path::Path::new(&format!("/proc/{first}")).exists(), "it was ended");
    assert_eq!(rules(&daemon).0.len(), 1, "what was read last holds");
    tools.set("true");
    until_rules(&daemon, 0);
}
