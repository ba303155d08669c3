// SPDX-License-Identifier: Apache-2.0
//! What is asked for, what the state file says, and what is in force when it cannot be written.

use super::*;
use crate::config::parse_attach;

const A: AttachmentIndex = AttachmentIndex(0);

/// An intent that has started, in a run directory of its own.
fn started() -> (tempfile::TempDir, Intent) {
    let directory = tempfile::tempdir().unwrap();
    let run_dir = RunDir::take(&directory.path().join("run")).unwrap();
    let mut intent = Intent::new(Config::default(), run_dir);
    intent.started(&|_| false);
    (directory, intent)
}

fn attachment(name: &str) -> Attachment {
    parse_attach(&format!("/run/netns/x:eth0,name={name}")).unwrap()
}

fn saved(directory: &tempfile::TempDir) -> serde_json::Value {
    let octets = std::fs::read(directory.path().join("run/state.json")).unwrap();
    serde_json::from_slice(&octets).unwrap()
}

/// The state file cannot be written while `work` runs.
fn unwritable(directory: &tempfile::TempDir, work: impl FnOnce()) {
    let (place, aside) = (directory.path().join("run"), directory.path().join("aside"));
    std::fs::rename(&place, &aside).unwrap();
    work();
    std::fs::rename(&aside, &place).unwrap();
}

fn only_to(prefix: &str) -> Arc<Restriction> {
    let egress = Some(vec![prefix.parse().unwrap()]);
    Arc::new(Restriction { egress, is_ingress_blocked: false, reason: String::new() })
}

#[test]
fn attachments_are_saved_by_index_and_go_with_their_lists() {
    let (directory, mut intent) = started();
    let names = |state: &serde_json::Value| -> Vec<String> {
        let all = state["attachments"].as_array().unwrap().iter();
        all.map(|attachment| attachment["name"].as_str().unwrap().to_owned()).collect()
    };
    intent.attached(AttachmentIndex(7), "b", Some(attachment("b").raw));
    intent.attached(A, "z", Some(attachment("z").raw));
    intent.attached(AttachmentIndex(3), "configured", None);
    intent.keep_whole(Some(A), Some(serde_json::json!({ "name": "z", "newer": 1 })));
    intent.set_peers(&PeersTarget::Attachment("z".to_owned()), Vec::new()).unwrap();
    let (changed, kept) = intent.restrict(vec![("z".to_owned(), Some(A), only_to("10.0.0.0/8"))]);
    kept.unwrap();
    assert_eq!(changed.len(), 1);
    let state = saved(&directory);
    assert_eq!(names(&state), ["z", "b"]);
    assert_eq!(
        (&state["attachments"][0]["newer"], &state["policies"][0]["attachment"]),
        (&1.into(), &"z".into())
    );
    assert!(!intent.detached(AttachmentIndex(3), "configured"), "the file does not have it");
    assert!(intent.detached(A, "z") && intent.restriction("z").is_none());
    intent.save();
    let state = saved(&directory);
    assert_eq!(names(&state), ["b"]);
    assert!(state["policies"].as_array().is_none_or(Vec::is_empty), "{state}");
}

#[test]
fn what_cannot_be_kept_changes_nothing_but_what_takes_away() {
    let (directory, mut intent) = started();
    let target = PeersTarget::Vni(7);
    let peer = |last: u8| VxlanPeer {
        prefix: format!("10.0.{last}.0/24").parse().unwrap(),
        vtep: std::net::Ipv4Addr::new(192, 0, 2, last).into(),
        mac: "02:00:00:00:00:02".parse().unwrap(),
    };
    intent.set_peers(&target, vec![peer(1)]).unwrap();
    intent.apply_schedule("up0", Some(Schedule::default())).unwrap();
    intent.restrict(vec![("a".to_owned(), Some(A), only_to("10.0.0.0/8"))]).1.unwrap();
    unwritable(&directory, || {
        let error = intent.set_peers(&target, vec![peer(2)]).unwrap_err().to_string();
        assert!(error.starts_with("state file: ") && error.ends_with("; nothing was changed"), "{error}");
        assert!(intent.apply_schedule("up0", None).is_err() && intent.schedule_of("up0").is_some());
        assert!(intent.apply_schedule("up1", Some(Schedule::default())).is_err());
        assert!(intent.schedule_of("up1").is_none());
        // Less than before is in force, more is not.
        let wider = vec![("a".to_owned(), Some(A), Arc::default())];
        let (changed, kept) = intent.restrict(wider);
        assert!(changed.is_empty() && kept.is_err() && intent.must_save_policies());
        let narrower = vec![("a".to_owned(), Some(A), only_to("10.1.0.0/16"))];
        assert_eq!(intent.restrict(narrower).0.len(), 1);
        assert_eq!(intent.restriction_of("a").egress, only_to("10.1.0.0/16").egress);
        intent.save();
        assert!(intent.is_unsaved() && intent.warnings().count() == 1);
    });
    assert_eq!(intent.peers[&target], [peer(1)]);
    intent.save();
    assert!(!intent.is_unsaved() && intent.warnings().count() == 0);
    assert_eq!(saved(&directory)["policies"][0]["egress_allowed"][0], "10.1.0.0/16");
}

#[test]
fn an_attachment_that_waits_is_tried_again_and_named() {
    let (_directory, mut intent) = started();
    intent.wait_for(attachment("a"), false, "no such device".to_owned());
    assert_eq!(intent.waiting.due().len(), 0, "its pause has begun");
    intent.waiting.retry_soon();
    assert_eq!(intent.waiting.due().len(), 1);
    intent.waiting.failed("a", "still none".to_owned());
    let warnings: Vec<String> = intent.warnings().collect();
    assert_eq!(warnings, ["attachment a is not attached: still none; tried again until it succeeds"]);
    assert!(intent.forget("a") && !intent.forget("a"));
}
