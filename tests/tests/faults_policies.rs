// SPDX-License-Identifier: Apache-2.0
//! Network policies that come after the attachment: what they forbid past the node's packet filter is dropped with its reason,
//! nothing takes the ingress fast path, and both survive a kill.

use ktsn_proto::v1::{self, AttachmentPolicy};
use ktsn_tests::faults::bed::{Bed, POD_B, PODS_B, UPLINK};
use ktsn_tests::faults::control::{Control, reason, with};
use ktsn_tests::faults::daemon::{self, Attachment, Daemon, NAME};
use ktsn_tests::faults::talker::{Talker, talk};
use ktsn_tests::faults::{Tap, eventually};
use serde_json::json;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(20);

fn restricted(attachment: &str, allowed: &[&str]) -> AttachmentPolicy {
    AttachmentPolicy {
        attachment: attachment.to_owned(),
        egress_restricted: true,
        egress_allowed: allowed.iter().map(|prefix| (*prefix).to_owned()).collect(),
        ingress_blocked: true,
        reason: "egress NetworkPolicy deny-all".to_owned(),
    }
}

fn free(attachment: &str) -> AttachmentPolicy {
    AttachmentPolicy { attachment: attachment.to_owned(), ..AttachmentPolicy::default() }
}

fn counts(daemon: &Daemon) -> (u64, u64, u64) {
    let counters = daemon.control().counters(NAME);
    (counters.sent, reason(&counters.dropped, "network_policy"), reason(&counters.bypassed, "not_allowed"))
}

/// Under traffic: dropped from the answer on, none goes by the kernel instead, what is allowed goes on, and all again after it.
#[test]
fn what_a_policy_forbids_is_dropped_and_counted() {
    let bed = Bed::new();
    let mut daemon = Daemon::start(&bed, &[Attachment::pod_a(&bed)]);
    let tap = Tap::open(&bed.host_b, UPLINK);
    let talker = Talker::start(&daemon, &bed.pod_a, POD_B, 1, "count=60000 period_us=1000 lead_us=2000");
    eventually("sent", SOON, || counts(&daemon).0 > 100);
    let unknown = daemon.control().set_policies(vec![restricted(NAME, &[]), free("nobody's")]).expect("set");
    assert_eq!(unknown, ["nobody's"]);
    eventually("dropped", SOON, || counts(&daemon).1 > 100);
    let sent = counts(&daemon).0;
    eventually("more dropped", SOON, || counts(&daemon).1 > 300);
    assert_eq!((counts(&daemon).0, counts(&daemon).2), (sent, 0), "none leaves, none is the kernel's");
    let shown = daemon.control().list().attachments.remove(0).policy.expect("shown");
    assert_eq!(shown, restricted(NAME, &[]));
    // What a policy allows by address leaves.
    talk(&daemon, &bed.pod_a, "10.244.1.77", 2, "count=10");
    assert_eq!(counts(&daemon).0, sent);
    daemon.control().set_policies(vec![restricted(NAME, &["10.244.1.64/26"])]).expect("set");
    talk(&daemon, &bed.pod_a, "10.244.1.77", 3, "count=10");
    assert_eq!((tap.wait(3, 10, SOON).len(), tap.of(2).len()), (10, 0));
    eventually("counted", SOON, || counts(&daemon).0 == sent + 10);
    // A killed daemon forgets no policy: not one frame leaves before the agent says it again.
    let before = tap.of(1).len();
    daemon.kill();
    daemon.spawn();
    eventually("dropped again", SOON, || counts(&daemon).1 > 100);
    assert_eq!((counts(&daemon).0, tap.of(1).len()), (0, before));
    daemon.control().set_policies(vec![free(NAME)]).expect("set");
    eventually("sent again", SOON, || counts(&daemon).0 > 100);
    assert!(daemon.control().list().attachments.remove(0).policy.is_none());
    let log = daemon.log();
    assert!(
        log.contains("egress NetworkPolicy deny-all") && log.contains("no network policy restricts it"),
        "{log}"
    );
    drop(talker);
}

/// The ingress fast path is closed and opened again; what arrives meanwhile is the kernel's, which has the policy's engine.
#[test]
fn a_policy_about_what_arrives_closes_the_ingress_fast_path() {
    let bed = Bed::new();
    let table = format!(
        "{}[[attachment]]\nname = \"pod-b\"\nnetns = \"{}\"\ninterface = \"eth0\"\nuplink = \"{UPLINK}\"\n\
         ingress = \"short\"\noverlay = {{ vxlan = {{ local = \"192.168.50.2\", peers = [\n  {{ prefix = \"10.244.0.0/24\", \
         vtep = \"192.168.50.1\", mac = \"02:00:00:00:01:01\" }} ] }} }}\n",
        daemon::port("auto"),
        bed.pod_b
    );
    let mut receiving = Daemon::prepare(&bed.host_b, &table);
    receiving.spawn();
    let sending = Daemon::start(&bed, &[Attachment::pod_a(&bed)]);
    let tap = Tap::open(&bed.pod_b, "eth0");
    let counted = || receiving.control().counters("pod-b").ingress.expect("ingress is short");
    talk(&sending, &bed.pod_a, POD_B, 1, "count=50 lead_us=100000");
    assert_eq!(tap.wait(1, 50, SOON).len(), 50);
    eventually("all are counted", SOON, || counted().taken == 50);
    let closed = AttachmentPolicy { ingress_blocked: true, reason: "in".to_owned(), ..free("pod-b") };
    receiving.control().set_policies(vec![closed]).expect("set");
    assert!(counted().idle.contains("a network policy"), "{:?}", counted());
    talk(&sending, &bed.pod_a, POD_B, 2, "count=50 lead_us=100000");
    assert_eq!((tap.wait(2, 50, SOON).len(), counted().taken), (50, 50), "by the kernel");
    receiving.control().set_policies(vec![free("pod-b")]).expect("set");
    assert_eq!(counted().idle, "");
    talk(&sending, &bed.pod_a, POD_B, 3, "count=50 lead_us=100000");
    assert_eq!(tap.wait(3, 50, SOON).len(), 50);
    eventually("all are counted", SOON, || counted().taken == 100);
}

/// Nothing is half in force: a request with a fault changes nothing. And who said that policies may be skipped is left alone.
#[test]
fn a_request_with_a_fault_changes_nothing_and_the_opt_out_is_heard() {
    let bed = Bed::new();
    let daemon = Daemon::start(&bed, &[Attachment::pod_a(&bed)]);
    let mut control = daemon.control();
    let wrong = AttachmentPolicy { egress_allowed: vec!["10.0.0.0/33".to_owned()], ..restricted("x", &[]) };
    for (policies, word) in [
        (vec![restricted(NAME, &[]), wrong], "policies[1].egress_allowed[0]"),
        (vec![restricted(NAME, &[]), restricted(NAME, &[])], "policies[1].attachment"),
        (vec![restricted("", &[])], "policies[0].attachment: missing"),
        (
            vec![AttachmentPolicy { egress_restricted: false, ..restricted(NAME, &["10.0.0.0/8"]) }],
            "egress_restricted",
        ),
    ] {
        let refused = control.set_policies(policies).expect_err(word);
        assert_eq!(refused.code(), tonic::Code::InvalidArgument, "{refused}");
        assert!(refused.message().contains(word), "{refused}");
    }
    assert!(control.list().attachments[0].policy.is_none());
    let model = control.list().attachments[0].fields();
    control.set_policies(vec![restricted(NAME, &[])]).expect("set");
    // It goes with the attachment, and is none of the next one's.
    control.detach(NAME).expect("detach");
    control.attach(with(model, &json!({ "allow_policy_bypass": true }))).expect("attach");
    assert!(control.list().attachments[0].policy.is_none());
    control.set_policies(vec![restricted(NAME, &[])]).expect("set");
    assert!(control.list().attachments[0].policy.is_none(), "allow_policy_bypass");
}

/// A policy that cannot be kept is in force for what it takes away, and for nothing else; who says it again is answered when it
/// is kept.
#[test]
fn a_policy_that_cannot_be_kept_takes_away_all_the_same() {
    let bed = Bed::new();
    let mut daemon = Daemon::prepare(&bed.host_a, &daemon::port("auto"));
    daemon.spawn();
    let model = {
        let other = Daemon::start(&bed, &[Attachment::pod_a(&bed)]);
        other.control().list().attachments[0].fields()
    };
    let mut control = daemon.control();
    control.attach(model).expect("attach");
    let shown = |control: &mut Control| control.list().attachments.remove(0).policy;
    // No file can take a directory's place.
    let file = daemon.run_dir().join("state.json");
    let break_it = || {
        std::fs::remove_file(&file).expect("removed");
        std::fs::create_dir(&file).expect("made");
    };
    break_it();
    let tight = || vec![restricted(NAME, &["10.244.1.64/26"])];
    for _ in 0..2 {
        let refused = control.set_policies(tight()).expect_err("not kept");
        assert_eq!(refused.code(), tonic::Code::Internal, "{refused}");
        assert!(refused.message().contains("state file"), "{refused}");
        assert_eq!(shown(&mut control), tight().pop());
    }
    talk(&daemon, &bed.pod_a, POD_B, 1, "count=10");
    eventually("dropped", SOON, || counts(&daemon) == (0, 10, 0));
    // Neither is it lifted, nor does it permit more.
    control.set_policies(vec![free(NAME)]).expect_err("not kept");
    assert_eq!(shown(&mut control), tight().pop());
    let other = restricted(NAME, &["10.244.1.0/25", "10.244.1.128/25"]);
    control.set_policies(vec![other]).expect_err("not kept");
    assert_eq!(shown(&mut control).expect("a policy").egress_allowed, ["10.244.1.64/26"]);
    // Said again it is kept, although nothing else changes.
    std::fs::remove_dir(&file).expect("removed");
    control.set_policies(tight()).expect("kept");
    daemon.kill();
    daemon.spawn();
    let mut control = daemon.control();
    assert_eq!(shown(&mut control), tight().pop());
    control.set_policies(vec![free(NAME)]).expect("kept");
    assert!(shown(&mut control).is_none());
}

/// An entry of the state file that could not be attached after a restart keeps its restriction and its peers when an Attach under its name
/// fails at the last step. The uplink's device is free again afterwards.
#[test]
fn an_attach_that_fails_at_its_last_step_takes_nothing_from_the_state_file() {
    let bed = Bed::new();
    let mut daemon = Daemon::prepare(&bed.host_a, &daemon::port("auto"));
    daemon.spawn();
    let local = json!({ "vxlan": { "local": "192.168.50.1" } });
    let short = json!({
        "name": NAME, "netns": bed.pod_a, "interface": "eth0", "uplink": UPLINK, "ingress": "short", "overlay": local,
    });
    let mut control = daemon.control();
    control.attach(short.clone()).expect("attach");
    control.set_policies(vec![restricted(NAME, &["10.244.1.64/26"])]).expect("set");
    let peer =
        v1::VxlanPeer { prefix: PODS_B.into(), vtep: "192.168.50.2".into(), mac: "02:00:00:00:01:02".into() };
    let target = v1::set_peers_request::Target::Attachment(NAME.to_owned());
    control.set_peers(target, vec![peer]).expect("set");
    let adapter = |control: &mut Control| {
        control.list().ports.into_iter().find(|port| port.netns.is_empty()).expect("the uplink").adapter
    };
    assert_eq!(adapter(&mut control), "af_xdp", "{}", daemon.log());
    daemon.kill();
    // A bridge has no host end, which only the last step needs.
    let pod = &bed.pod_a;
    bed.run(&format!("ip -n {pod} link set eth0 down\nip -n {pod} link set eth0 name veth0"));
    daemon.spawn();
    let kept = || std::fs::read_to_string(daemon.run_dir().join("state.json")).expect("state.json");
    let before = kept();
    bed.run(&format!("ip -n {pod} link add eth0 type bridge\nip -n {pod} link set eth0 up"));
    let mut control = daemon.control();
    for _ in 0..5 {
        let refused = control.attach(short.clone()).expect_err("no host end");
        assert!(refused.message().starts_with("attachment.ingress"), "{refused}");
        assert!(control.list().attachments.is_empty() && control.list().ports.is_empty());
        assert_eq!(kept(), before);
    }
    let warnings = control.health().expect("health").warnings;
    assert!(!warnings.iter().any(|warning| warning.contains("AF_XDP")), "{warnings:?}");
    bed.run(&format!(
        "ip -n {pod} link del eth0\nip -n {pod} link set veth0 name eth0\nip -n {pod} link set eth0 up"
    ));
    assert!(!control.attach(short).expect("attach"));
    let listed = control.list().attachments.remove(0);
    assert_eq!(listed.policy, Some(restricted(NAME, &["10.244.1.64/26"])));
    assert_eq!(control.peers(NAME).expect("peers").len(), 1);
    assert_eq!(adapter(&mut control), "af_xdp", "{}", daemon.log());
}
