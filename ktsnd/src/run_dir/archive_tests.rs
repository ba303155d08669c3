// SPDX-License-Identifier: Apache-2.0
//! State files of earlier commits (tests/state/README.md) are read whole, and one of a later form is left alone.

use serde_json::Value;

use super::*;
use crate::config::{Attachment, check_peers, read_schedule};

/// One archive: the commit that wrote it, its text, and how many schedules, lists of peers and policies it has. Each has two attachments.
type Archive = (&'static str, &'static str, usize, usize, usize);

macro_rules! archive {
    ($commit:literal, $schedules:literal, $peers:literal, $policies:literal) => {
        (
            $commit,
            include_str!(concat!("../../../tests/state/", $commit, ".json")),
            $schedules,
            $peers,
            $policies,
        )
    };
}

const ARCHIVES: [Archive; 7] = [
    archive!("d7ce791d", 0, 0, 0),
    archive!("fd8ed4f4", 1, 0, 0),
    archive!("d4f2a282", 1, 1, 0),
    archive!("4a3ccfa8", 1, 1, 0),
    archive!("adfae037", 1, 1, 0),
    archive!("a374368d", 1, 1, 1),
    archive!("a90546cd", 1, 1, 1),
];

/// A run directory with this state file.
fn with(text: &str) -> (tempfile::TempDir, RunDir) {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("state.json"), text).unwrap();
    let run = RunDir::take(dir.path()).unwrap();
    (dir, run)
}

/// Holds each value of `before`, that is not null, against `after`.
fn assert_holds(before: &Value, after: &Value, path: &str) {
    match before {
        Value::Null => {}
        Value::Object(fields) => {
            for (name, value) in fields {
                assert_holds(value, &after[name], &format!("{path}.{name}"));
            }
        }
        Value::Array(entries) => {
            for (index, value) in entries.iter().enumerate() {
                assert_holds(value, &after[index], &format!("{path}[{index}]"));
            }
        }
        value => assert_eq!(value, after, "{path}"),
    }
}

#[test]
fn each_is_read_and_nothing_of_it_is_lost() {
    for (commit, text, schedules, peers, policies) in ARCHIVES {
        let (dir, run) = with(text);
        let (state, notes) = run.load().unwrap();
        assert_eq!(notes, Vec::<String>::new(), "{commit}");
        let counts =
            (state.attachments.len(), state.schedules.len(), state.peers.len(), state.policies.len());
        assert_eq!(counts, (2, schedules, peers, policies), "{commit}");
        for kept in &state.attachments {
            assert!(kept.whole.is_none(), "{commit}: {:?}", kept.whole);
        }
        let fields = &state.attachments[0].raw;
        Attachment::check("state.json", fields.clone()).unwrap_or_else(|fault| panic!("{commit}: {fault}"));
        assert_eq!((fields.slots, fields.uplink.as_deref()), (Some(256), Some("eth0")), "{commit}");
        for kept in &state.schedules {
            let schedule = read_schedule("state.json", &kept.schedule).unwrap();
            assert_eq!(schedule.admin.control_list.len(), 3, "{commit}");
        }
        for list in &state.peers {
            assert_eq!(check_peers("state.json", &list.peers).unwrap().len(), 1, "{commit}");
        }
        run.save(&state).unwrap();
        let before: Value = serde_json::from_str(text).unwrap();
        let after: Value = serde_json::from_slice(&fs::read(dir.path().join("state.json")).unwrap()).unwrap();
        if before.is_array() {
            assert_holds(&before, &after["attachments"], commit);
        } else {
            assert_holds(&before, &after, commit);
        }
        assert_eq!(run.load().unwrap(), (state, Vec::new()), "{commit}");
    }
}

/// Today's form is the last archive's: a change of the form comes with an archive of the commit before.
#[test]
fn the_last_one_is_written_as_it_was() {
    let (_, text, ..) = ARCHIVES[ARCHIVES.len() - 1];
    let (dir, run) = with(text);
    run.save(&run.load().unwrap().0).unwrap();
    assert_eq!(fs::read_to_string(dir.path().join("state.json")).unwrap(), text.trim_end());
}

#[test]
fn one_of_a_later_form_is_refused_and_kept_as_it_was() {
    let (_, text, ..) = ARCHIVES[ARCHIVES.len() - 1];
    let form = state::VERSION + 1;
    let later = text.replacen("\"version\": 2", &format!("\"version\": {form}"), 1);
    assert_ne!(later, text);
    let (dir, run) = with(&later);
    let (state, notes) = run.load().unwrap();
    assert_eq!(state, State::default());
    let said =
        format!("it has form {form}, this ktsnd reads up to {}: a newer ktsnd wrote it", state::VERSION);
    assert!(
        notes.len() == 1 && notes[0].contains(&said) && notes[0].contains("state.json.newer"),
        "{notes:?}"
    );
    run.save(&state).unwrap();
    assert_eq!(fs::read_to_string(dir.path().join("state.json.newer")).unwrap(), later);
}
