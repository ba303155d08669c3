// SPDX-License-Identifier: Apache-2.0
//! One daemon a directory, a directory that can be trusted, a state file that survives.

use std::os::unix::fs::PermissionsExt as _;

use super::*;
use crate::config::{AttachmentConfig, OverlayConfig, PeerConfig, VxlanConfig};

#[test]
fn one_daemon_a_directory() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run");
    let first = RunDir::take(&path).unwrap();
    let second = RunDir::take(&path).unwrap_err().to_string();
    assert!(second.contains(&format!("pid {}", std::process::id())), "{second}");
    drop(first);
    RunDir::take(&path).unwrap();
}

/// A ktsnd that was killed while it started a tool leaves a copy of the lock's descriptor for a moment.
#[test]
fn a_lock_that_is_let_go_soon_is_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let first = RunDir::take(dir.path()).unwrap();
    let path = dir.path().to_owned();
    let second = std::thread::spawn(move || RunDir::take(&path).map(drop));
    // The second meets the lock meanwhile, which nothing tells.
    std::thread::sleep(Duration::from_millis(20));
    drop(first);
    second.join().unwrap().unwrap();
}

/// Opening a pipe waits for a writer: a start would hang without a word.
#[test]
fn a_pipe_is_no_state_file() {
    let dir = tempfile::tempdir().unwrap();
    let run = RunDir::take(dir.path()).unwrap();
    for name in ["state.json", COUNTERS] {
        let made = std::process::Command::new("mkfifo").arg(dir.path().join(name)).status().unwrap();
        assert!(made.success());
    }
    let refused = run.load().unwrap_err().to_string();
    assert!(
        refused.contains("state.json: it is no regular file; ktsnd does not start without it"),
        "{refused}"
    );
    assert!(run.counters().unwrap_err().to_string().contains("no regular file"));
}

#[test]
fn state_survives_and_damage_is_set_aside() {
    let dir = tempfile::tempdir().unwrap();
    let run = RunDir::take(dir.path()).unwrap();
    assert_eq!(run.load().unwrap(), (State::default(), Vec::new()));
    let kept = AttachmentConfig { name: Some("a".into()), ..AttachmentConfig::default() };
    let schedule = crate::config::write_schedule(&crate::config::Schedule::default());
    let state = State {
        attachments: vec![kept.clone().into()],
        schedules: vec![KeptSchedule { port: "eth1".into(), schedule }],
        ..State::default()
    };
    run.save(&state).unwrap();
    let text = || fs::read_to_string(dir.path().join("state.json")).unwrap();
    assert!(text().contains("\"version\": 1") && !text().contains("peers\""), "an older ktsnd reads it");
    assert_eq!(run.load().unwrap(), (state.clone(), Vec::new()));
    let peer = PeerConfig { prefix: Some("10.244.1.0/24".into()), ..PeerConfig::default() };
    let peers = vec![KeptPeers { attachment: None, vni: Some(1), peers: vec![peer] }];
    let state = State { peers, ..state };
    run.save(&state).unwrap();
    assert!(text().contains("\"version\": 2"));
    assert_eq!(run.load().unwrap(), (state, Vec::new()));
    // The form that had attachments only.
    fs::write(dir.path().join("state.json"), serde_json::to_string(&[&kept]).unwrap()).unwrap();
    assert_eq!(
        run.load().unwrap(),
        (State { attachments: vec![kept.into()], ..State::default() }, Vec::new())
    );
    for damaged in [&b"{"[..], b"", b"\xff\xfe", b"7", b"{\"attachments\":7}", b"{\"version\":\"2\"}"] {
        fs::write(dir.path().join("state.json"), damaged).unwrap();
        let (none, warning) = run.load().unwrap();
        assert!(none == State::default() && warning.len() == 1);
        assert_eq!(fs::read(dir.path().join("state.json.damaged")).unwrap(), damaged);
        assert_eq!(run.load().unwrap(), (State::default(), Vec::new()));
    }
}

/// A network as tsn-cni attaches it: fields that were not given are not written, and a file that says `null` is read as before.
#[test]
fn two_hundred_attachments_are_written_without_what_is_default() {
    let dir = tempfile::tempdir().unwrap();
    let run = RunDir::take(dir.path()).unwrap();
    let attachment = |number| AttachmentConfig {
        name: Some(format!("default/talker-{number}/net1")),
        netns: Some(format!("/run/netns/cni-{number}")),
        interface: Some("net1".into()),
        uplink: Some("eth1".into()),
        overlay: Some(OverlayConfig::Vxlan(Box::new(VxlanConfig {
            device: Some("flannel.1".into()),
            peers: Some(vec![PeerConfig { prefix: Some("10.244.1.0/24".into()), ..PeerConfig::default() }]),
            ..VxlanConfig::default()
        }))),
        ..AttachmentConfig::default()
    };
    let state =
        State { attachments: (0..200).map(|number| attachment(number).into()).collect(), ..State::default() };
    run.save(&state).unwrap();
    let path = dir.path().join("state.json");
    let text = fs::read_to_string(&path).unwrap();
    assert!(!text.contains("null"), "{}", &text[..1000]);
    assert_eq!(run.load().unwrap(), (state.clone(), Vec::new()));
    let mut older: serde_json::Value = serde_json::from_str(&text).unwrap();
    for attachment in older["attachments"].as_array_mut().unwrap() {
        for field in ["destinations", "classes", "take", "vlan", "octets_max"] {
            attachment[field] = serde_json::Value::Null;
        }
        for field in ["mode", "vni", "flood", "ttl"] {
            attachment["overlay"]["vxlan"][field] = serde_json::Value::Null;
        }
        attachment["overlay"]["vxlan"]["peers"][0]["mac"] = serde_json::Value::Null;
    }
    fs::write(&path, older.to_string()).unwrap();
    assert_eq!(run.load().unwrap(), (state, Vec::new()));
}

/// Going back to an older ktsnd loses nothing in silence: the newer one's file stays, under another name.
#[test]
fn the_state_of_a_newer_ktsnd_is_told_and_kept() {
    let dir = tempfile::tempdir().unwrap();
    let run = RunDir::take(dir.path()).unwrap();
    let path = dir.path().join("state.json");
    let newer = b"{\"version\":3,\"attachments\":[{\"name\":\"a\"}],\"later\":[]}";
    fs::write(&path, newer).unwrap();
    let (none, warning) = run.load().unwrap();
    let warning = warning.join(" ");
    assert_eq!(none, State::default());
    for part in ["state.json: it has form 3", "reads up to 2", "newer ktsnd", "state.json.newer"] {
        assert!(warning.contains(part), "{warning}");
    }
    assert_eq!(fs::read(dir.path().join("state.json.newer")).unwrap(), newer);
    assert_eq!(run.load().unwrap(), (State::default(), Vec::new()));
    // What this one writes says its form; without one it is the first.
    run.save(&State::default()).unwrap();
    assert!(fs::read_to_string(&path).unwrap().contains("\"version\": 1"));
    fs::write(&path, b"{\"attachments\":[]}").unwrap();
    assert_eq!(run.load().unwrap(), (State::default(), Vec::new()));
}

#[test]
fn a_file_in_the_way_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    let error = RunDir::take(&file).unwrap_err().to_string();
    assert!(error.contains("--run-dir"), "{error}");
}

#[test]
fn a_directory_that_others_can_write_or_own_is_refused_and_left_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let refused = |path: &Path, part: &str| {
        let error = RunDir::take(path).unwrap_err();
        assert!(matches!(error, RunDirError::Unsafe { .. }) && error.to_string().contains(part), "{error}");
    };
    let open = dir.path().join("open");
    fs::create_dir(&open).unwrap();
    for mode in [0o777, 0o1777, 0o775] {
        fs::set_permissions(&open, fs::Permissions::from_mode(mode)).unwrap();
        refused(&open, &format!("mode {mode:o}"));
        assert_eq!(fs::read_dir(&open).unwrap().count(), 0);
    }
    let link = dir.path().join("link");
    std::os::unix::fs::symlink(dir.path(), &link).unwrap();
    refused(&link, "symbolic link");
    // The clients' directory is looked at in the same way.
    let run = dir.path().join("run");
    fs::create_dir(&run).unwrap();
    std::os::unix::fs::symlink(dir.path(), run.join("client")).unwrap();
    refused(&run, "symbolic link");
    if rustix::process::geteuid().is_root() {
        let theirs = dir.path().join("theirs");
        fs::create_dir(&theirs).unwrap();
        std::os::unix::fs::chown(&theirs, Some(65534), None).unwrap();
        refused(&theirs, "user 65534");
    }
}

#[test]
fn no_symbolic_link_is_followed_to_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let (run, victim) = (dir.path().join("run"), dir.path().join("victim"));
    fs::create_dir(&run).unwrap();
    fs::write(&victim, "precious").unwrap();
    std::os::unix::fs::symlink(&victim, run.join("lock")).unwrap();
    assert!(RunDir::take(&run).is_err());
    fs::remove_file(run.join("lock")).unwrap();
    let held = RunDir::take(&run).unwrap();
    std::os::unix::fs::symlink(&victim, run.join("state.json.new")).unwrap();
    assert!(held.save(&State::default()).is_err());
    std::os::unix::fs::symlink(&victim, run.join("state.json")).unwrap();
    let error = held.load().unwrap_err().to_string();
    assert!(error.contains("state.json: "), "{error}");
    assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
}

#[test]
fn of_a_file_with_a_damaged_entry_a_copy_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let run = RunDir::take(dir.path()).unwrap();
    let text = r#"{"version":1,"attachments":[5,{"name":"a"}]}"#;
    fs::write(dir.path().join("state.json"), text).unwrap();
    let (state, notes) = run.load().unwrap();
    assert_eq!(state.attachments.len(), 1);
    assert!(notes.len() == 2 && notes[0].contains("attachments[0]"), "{notes:?}");
    assert_eq!(fs::read_to_string(dir.path().join("state.json.damaged")).unwrap(), text);
}

/// What cannot be read may be whole: it is not taken for none, which the next change would write in its place.
#[test]
fn a_state_file_that_cannot_be_read_or_set_aside_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let run = RunDir::take(dir.path()).unwrap();
    let path = dir.path().join("state.json");
    fs::create_dir(&path).unwrap();
    let error = run.load().unwrap_err();
    assert!(matches!(&error, RunDirError::State { path: named, .. } if *named == path), "{error}");
    assert!(error.to_string().contains("does not start"), "{error}");
    fs::remove_dir(&path).unwrap();
    fs::write(&path, "{").unwrap();
    // No file can take a directory's place.
    fs::create_dir(dir.path().join("state.json.damaged")).unwrap();
    assert!(matches!(run.load(), Err(RunDirError::State { .. })));
    assert_eq!(fs::read(&path).unwrap(), b"{");
}
