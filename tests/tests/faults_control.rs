// SPDX-License-Identifier: Apache-2.0
//! Attaching and detaching by the control API, its errors, and what a restart takes up again.

use std::time::Duration;

use ktsn_tests::faults::bed::{Bed, POD_B, PODS_B, UPLINK};
use ktsn_tests::faults::control::with;
use ktsn_tests::faults::daemon::{Daemon, NAME, configuration};
use ktsn_tests::faults::talker::arrive;
use ktsn_tests::faults::{Tap, eventually};
use serde_json::{Value, json};
use tonic::Code;

const SOON: Duration = Duration::from_secs(20);

fn attachment(bed: &Bed) -> Value {
    let peer = json!({ "prefix": PODS_B, "vtep": "192.168.50.2", "mac": "02:00:00:00:01:02" });
    json!({
        "name": NAME, "netns": bed.pod_a, "interface": "eth0", "uplink": UPLINK, "overrun_limit": "10s",
        "overlay": { "vxlan": { "local": "192.168.50.1", "peers": [peer] } },
    })
}

fn empty(bed: &Bed) -> Daemon {
    let mut daemon = Daemon::prepare(&bed.host_a, &configuration(&[]));
    daemon.spawn();
    daemon
}

fn names(daemon: &Daemon) -> Vec<String> {
    daemon.control().list().attachments.into_iter().map(|state| state.name).collect()
}

#[test]
fn attach_list_detach() {
    let bed = Bed::new();
    let daemon = empty(&bed);
    let tap = Tap::open(&bed.host_b, UPLINK);
    let mut control = daemon.control();
    assert!(!control.attach(attachment(&bed)).expect("attach"));
    assert!(control.attach(attachment(&bed)).expect("the same contents"), "existed");
    let other = with(attachment(&bed), &json!({ "slots": 64 }));
    let error = control.attach(other).expect_err("other contents");
    assert_eq!(error.code(), Code::AlreadyExists);
    assert!(error.message().contains("attachment.name") && error.message().contains(NAME), "{error}");
    arrive(&daemon, &tap, &bed.pod_a, POD_B, 1, 3);
    let listed = control.list().attachments.remove(0).fields();
    assert_eq!((&listed["slots"], &listed["late"]), (&json!(1024), &json!("by-clock")));
    assert_eq!(
        (&listed["classes"], &listed["destinations"]),
        (&json!([0, 1, 2, 3, 4, 5, 6, 7]), &json!([PODS_B]))
    );
    control.detach(NAME).expect("detach");
    let gone = control.detach(NAME).expect_err("twice");
    assert_eq!(gone.code(), Code::NotFound);
    assert!(gone.message().contains("name") && gone.message().contains(NAME), "{gone}");
    assert_eq!(control.statistics_of(NAME).expect_err("gone").code(), Code::NotFound);
    assert!(control.list().attachments.is_empty());
    // And once more, with other contents.
    assert!(!control.attach(with(attachment(&bed), &json!({ "slots": 64 }))).expect("attach"));
    arrive(&daemon, &tap, &bed.pod_a, POD_B, 2, 3);
}

/// Each fault names the path of its field.
#[test]
fn invalid_arguments() {
    let bed = Bed::new();
    let daemon = empty(&bed);
    let mut control = daemon.control();
    let good = attachment(&bed);
    let changed = |changes: Value| with(good.clone(), &changes);
    let vxlan = |pointer: &str, value: Value| {
        let mut attachment = good.clone();
        let (place, key) = pointer.rsplit_once('/').expect("a pointer");
        attachment.pointer_mut(&format!("/overlay/vxlan{place}")).expect("a place")[key] = value;
        attachment
    };
    for (wrong, path) in [
        (changed(json!({ "name": "" })), "attachment.name"),
        (changed(json!({ "netns": "" })), "attachment.netns"),
        (changed(json!({ "interface": "a/b" })), "attachment.interface"),
        (changed(json!({ "late": "never" })), "attachment.late"),
        (changed(json!({ "slots": 1 })), "attachment.slots"),
        (changed(json!({ "slots": "many" })), "attachment.slots"),
        (changed(json!({ "colour": 1 })), "attachment.colour"),
        (changed(json!({ "classes": [300] })), "attachment.classes"),
        (changed(json!({ "horizon": "99999d" })), "attachment.horizon"),
        (changed(json!({ "destinations": ["x"] })), "attachment.destinations[0]"),
        (vxlan("/vni", json!(1 << 24)), "attachment.overlay.vxlan.vni"),
        (vxlan("/port", json!(65_536)), "attachment.overlay.vxlan.port"),
        (vxlan("/mode", json!("magic")), "attachment.overlay.vxlan.mode"),
        (vxlan("/peers/0/mac", json!("02")), "attachment.overlay.vxlan.peers[0].mac"),
        (vxlan("/peers/0/vtep", json!("fd00::1")), "attachment.overlay.vxlan.peers[0].vtep"),
    ] {
        let checked = control.check_attach(&wrong).expect_err(path);
        let error = control.attach(wrong).expect_err(path);
        assert_eq!(error.code(), Code::InvalidArgument, "{path}: {error}");
        assert!(error.message().starts_with(path), "{path}: {error}");
        assert_eq!((checked.code(), checked.message()), (error.code(), error.message()));
    }
    let error = control.attach_nothing().expect_err("nothing");
    assert_eq!((error.code(), error.message().starts_with("attachment")), (Code::InvalidArgument, true));
    for (wrong, part) in [
        (changed(json!({ "netns": "ktsnf-none" })), "ktsnf-none"),
        (changed(json!({ "interface": "eth7" })), "attachment.interface"),
        (changed(json!({ "uplink": "up7" })), "attachment.uplink"),
    ] {
        let error = control.attach(wrong).expect_err(part);
        assert_eq!(error.code(), Code::FailedPrecondition, "{error}");
        assert!(error.message().contains(part), "{error}");
    }
    // Nothing of all that stays, and a good one is still taken.
    assert!(control.list().attachments.is_empty() && control.list().ports.is_empty(), "{:?}", control.list());
    assert!(!control.attach(good).expect("attach"));
}

/// What needs no look into the pod's namespace is refused with the words of Attach. Nothing changes, whatever the answer is.
#[test]
fn a_check_alone_changes_nothing() {
    let bed = Bed::new();
    let daemon = empty(&bed);
    let mut control = daemon.control();
    let good = with(attachment(&bed), &json!({ "netns": "ktsnf-none" }));
    let state = || std::fs::read_to_string(daemon.run_dir().join("state.json")).expect("state.json");
    let before = state();
    assert!(!control.check_attach(&good).expect("a namespace that is not there yet"));
    for (changes, part) in [
        (json!({ "uplink": "up7" }), "attachment.uplink"),
        (
            json!({ "overlay": { "vxlan": { "local": "192.168.50.1", "device": "vx7" } } }),
            "overlay.vxlan.device",
        ),
    ] {
        let checked = control.check_attach(&with(good.clone(), &changes)).expect_err(part);
        let error = control.attach(with(attachment(&bed), &changes)).expect_err(part);
        assert_eq!((checked.code(), checked.message()), (error.code(), error.message()));
        assert!(error.message().contains(part), "{error}");
    }
    assert!(control.list().attachments.is_empty() && control.list().ports.is_empty(), "{:?}", control.list());
    assert_eq!(state(), before);
    // Beside an attachment: its name is taken, and its uplink is open.
    assert!(!control.attach(attachment(&bed)).expect("attach"));
    assert!(control.check_attach(&attachment(&bed)).expect("the same contents"), "existed");
    assert_eq!(control.check_attach(&good).expect_err("other contents").code(), Code::AlreadyExists);
    let before = (state(), control.list());
    assert!(!control.check_attach(&with(good, &json!({ "name": "another" }))).expect("a second one"));
    assert_eq!((state(), control.list()), before);
}

/// What came by the control API is taken up again after a restart, also after a SIGKILL; what was detached is not.
#[test]
fn a_restart_takes_attachments_up_again() {
    let bed = Bed::new();
    let mut daemon = empty(&bed);
    let tap = Tap::open(&bed.host_b, UPLINK);
    daemon.control().attach(attachment(&bed)).expect("attach");
    let second = with(attachment(&bed), &json!({ "name": "pod-q", "netns": bed.pod_q }));
    daemon.control().attach(second).expect("attach");
    daemon.kill();
    daemon.spawn();
    assert_eq!(names(&daemon), ["pod-a", "pod-q"]);
    arrive(&daemon, &tap, &bed.pod_a, POD_B, 1, 3);
    daemon.control().detach("pod-q").expect("detach");
    assert_eq!(daemon.terminate(SOON), Some(0));
    daemon.spawn();
    assert_eq!(names(&daemon), ["pod-a"]);
    assert!(daemon.control().attach(attachment(&bed)).expect("the same contents"));
}

/// A namespace that is gone after the restart costs its own attachment only, and `Health` tells it.
#[test]
fn a_restart_without_the_namespace() {
    let bed = Bed::new();
    let mut daemon = empty(&bed);
    let second = with(attachment(&bed), &json!({ "name": "pod-q", "netns": bed.pod_q }));
    daemon.control().attach(second).expect("attach");
    daemon.control().attach(attachment(&bed)).expect("attach");
    daemon.kill();
    bed.delete(&bed.pod_q);
    daemon.spawn();
    assert_eq!(names(&daemon), ["pod-a"]);
    let warnings = daemon.control().health().expect("health").warnings;
    assert!(warnings.iter().any(|w| w.contains("pod-q")), "{warnings:?}");
}

/// A damaged state file is set aside and logged; the daemon serves.
#[test]
fn a_damaged_state_file() {
    let bed = Bed::new();
    let mut daemon = empty(&bed);
    daemon.control().attach(attachment(&bed)).expect("attach");
    daemon.kill();
    let state = daemon.run_dir().join("state.json");
    let half = std::fs::read(&state).expect("state").len() / 2;
    std::fs::File::options().write(true).open(&state).and_then(|f| f.set_len(half as u64)).expect("state");
    daemon.spawn();
    assert!(names(&daemon).is_empty());
    let warnings = daemon.control().health().expect("health").warnings;
    assert!(warnings.iter().any(|w| w.contains("state.json")), "{warnings:?}");
    assert!(daemon.run_dir().join("state.json.damaged").exists());
}

/// Back from a newer ktsnd: what this one understands is attached, the rest is logged, kept as it is, and can be detached.
#[test]
fn the_state_file_of_a_newer_ktsnd() {
    let bed = Bed::new();
    let mut daemon = empty(&bed);
    daemon.control().attach(attachment(&bed)).expect("attach");
    daemon.kill();
    let path = daemon.run_dir().join("state.json");
    let read = || -> serde_json::Value {
        serde_json::from_slice(&std::fs::read(&path).expect("state")).expect("JSON")
    };
    let mut newer = read();
    let fenced = serde_json::json!({
        "name": "fenced", "netns": bed.pod_q.clone(), "interface": "eth0", "uplink": UPLINK,
        "fence": ["10.0.0.0/8"], "needs": ["fence"],
    });
    newer["attachments"][0]["colour"] = "red".into();
    newer["attachments"].as_array_mut().expect("attachments").push(fenced);
    std::fs::write(&path, newer.to_string()).expect("state");
    for _ in 0..2 {
        daemon.spawn();
        assert_eq!(names(&daemon), ["pod-a"]);
        let warnings = daemon.control().health().expect("health").warnings.join(" ");
        assert!(warnings.contains("colour") && warnings.contains("fenced: it needs \"fence\""), "{warnings}");
        assert_eq!(read(), newer);
        daemon.kill();
    }
    daemon.spawn();
    daemon.control().detach("fenced").expect("detach");
    daemon.control().detach(NAME).expect("detach");
    assert_eq!(read()["attachments"], serde_json::json!([]));
}

/// A state file that names an attachment twice: the second entry waits, and goes with the name.
#[test]
fn a_name_that_the_state_file_has_twice_is_detached_once() {
    let bed = Bed::new();
    let mut daemon = empty(&bed);
    daemon.control().attach(attachment(&bed)).expect("attach");
    daemon.kill();
    let path = daemon.run_dir().join("state.json");
    let mut state: Value =
        serde_json::from_str(&std::fs::read_to_string(&path).expect("state")).expect("JSON");
    let mut second = state["attachments"][0].clone();
    second["horizon"] = json!("1s");
    state["attachments"].as_array_mut().expect("a list").push(second);
    std::fs::write(&path, state.to_string()).expect("state");
    daemon.spawn();
    assert_eq!(names(&daemon), [NAME]);
    daemon.control().detach(NAME).expect("detach");
    daemon.kill();
    daemon.spawn();
    assert!(names(&daemon).is_empty(), "{:?}", names(&daemon));
}

struct Mounted(tempfile::TempDir);

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg(self.0.path()).status();
    }
}

/// No room for the state file: the attachment serves, `Health` says what will be lost, the old file stays whole.
#[test]
fn a_full_disk() {
    let bed = Bed::new();
    let disk = Mounted(ktsn_tests::hook::open_directory());
    bed.run(&format!("mount -t tmpfs -o size=16k,mode=755 ktsnf {}", disk.0.path().display()));
    let mut daemon = Daemon::prepare(&bed.host_a, &configuration(&[])).at(disk.0.path());
    daemon.spawn();
    daemon.control().attach(attachment(&bed)).expect("attach");
    let before = std::fs::read_to_string(daemon.run_dir().join("state.json")).expect("state");
    // The rest of the disk.
    let _ = std::fs::write(disk.0.path().join("rest"), vec![0; 1 << 16]);
    let second = with(attachment(&bed), &json!({ "name": "pod-q", "netns": bed.pod_q }));
    daemon.control().attach(second).expect("attach");
    let tap = Tap::open(&bed.host_b, UPLINK);
    arrive(&daemon, &tap, &bed.pod_q, POD_B, 1, 3);
    let warnings = daemon.control().health().expect("health").warnings;
    assert!(
        warnings.iter().any(|w| w.contains("state file") && w.contains("lost at the next restart")),
        "{warnings:?}"
    );
    assert_eq!(std::fs::read_to_string(daemon.run_dir().join("state.json")).expect("state"), before);
    daemon.kill();
    daemon.spawn();
    assert_eq!(names(&daemon), ["pod-a"]);
    // With room again the next file is written without another change.
    let second = with(attachment(&bed), &json!({ "name": "pod-q", "netns": bed.pod_q }));
    daemon.control().attach(second).expect("attach");
    std::fs::remove_file(disk.0.path().join("rest")).expect("room");
    let is_saved =
        || !daemon.control().health().expect("health").warnings.iter().any(|w| w.contains("state file"));
    eventually("the state file is written", SOON, is_saved);
    daemon.kill();
    daemon.spawn();
    assert_eq!(names(&daemon), ["pod-a", "pod-q"]);
}
