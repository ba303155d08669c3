// SPDX-License-Identifier: Apache-2.0
//! Conversations with a far side that is a script here, in place of ssh: it ends, says words without end, or leaves a process behind.

use super::hosts::Far;
use super::*;
use serde_json::{Value, json};
use std::path::Path;

/// Longer than any of these tests takes: what fails only then has waited.
const LONG: Duration = Duration::from_secs(60);
const STARTED: &str = r"printf 's\000\000\000\000'";
/// A word and an answer, as the guard passes them on.
const WORD: &str = r"printf 'e\000\000\000\002a\n'";
const ANSWER: &str = r#"printf 'o\000\000\000\013{"done":7}\n'"#;

fn remote() -> Remote {
    Remote { target: "ssh:plc".parse().unwrap(), ssh_config: None, ktsn: "/opt/ktsn".to_owned() }
}

fn session(script: &str) -> Session {
    let mut ssh = Command::new("sh");
    ssh.args(["-c", &format!("{STARTED}; {script}")]);
    remote().open(ssh, vec!["remote".to_owned(), "side".to_owned()]).unwrap()
}

fn far(script: &str) -> Far {
    Far::of(session(script), &remote())
}

fn ask(far: &mut Far, longest: Duration) -> Result<Value, RemoteError> {
    far.ask(&json!("question"), longest)
}

/// What failed once fails at once afterwards, with the same words.
fn is_over(far: &mut Far, error: &RemoteError) {
    let begun = Instant::now();
    let fetched = far.fetch("x.csv", Path::new("/nonexistent/x.csv"), 1).unwrap_err();
    let again = [ask(far, LONG).unwrap_err(), far.check().unwrap_err(), fetched];
    assert_eq!(again.map(|again| again.to_string()), [(); 3].map(|()| error.to_string()));
    assert!(begun.elapsed() < LONG / 2);
}

#[test]
fn an_answer_is_taken_between_words() {
    let mut far = far(&format!("{WORD}; {ANSWER}; {WORD}; cat >/dev/null; exit"));
    assert_eq!(ask(&mut far, LONG).unwrap(), json!(7));
    far.check().unwrap();
}

#[test]
fn an_error_shows_what_was_said_before() {
    let failed = r#"printf 'o\000\000\000\050{"failed":{"text":"no end","status":3}}\n'"#;
    let mut far = far(&format!("{failed}; {WORD}; {failed}; cat >/dev/null; exit"));
    assert_eq!(ask(&mut far, LONG).unwrap_err().to_string(), "ssh:plc: no end");
    let error = ask(&mut far, LONG).unwrap_err();
    assert_eq!((error.to_string().as_str(), error.exit_status()), ("ssh:plc: no end; it said before: a", 3));
}

#[test]
fn after_its_end_no_answer_is_waited_for() {
    // It was killed; the guard stays to hand files over.
    let mut far = far(r"printf 'x\000\000\000\002\001\011'; cat >/dev/null; exit");
    let error = ask(&mut far, LONG).unwrap_err();
    let expected =
        "ssh:plc: `remote side` failed (signal: 9): it said nothing before; signal 9 killed ktsn there: ";
    assert!(error.to_string().starts_with(expected), "{error}");
    is_over(&mut far, &error);
}

#[test]
fn after_a_late_answer_or_a_broken_rule_nothing_more_is_asked() {
    let mut late = far("cat >/dev/null; exit");
    let error = ask(&mut late, Duration::from_millis(50)).unwrap_err();
    assert!(error.to_string().contains("gave no answer within 50ms"), "{error}");
    is_over(&mut late, &error);
    let mut odd = far(r"printf 'o\000\000\000\002x\n'; cat >/dev/null; exit");
    let error = ask(&mut odd, LONG).unwrap_err();
    assert!(matches!(error, RemoteError::Untrue { .. }), "{error}");
    is_over(&mut odd, &error);
    let mut lying = far(&format!("{ANSWER}; cat >/dev/null; exit"));
    ask(&mut lying, LONG).unwrap();
    let error = lying.refuse("it cannot have seen this".to_owned());
    is_over(&mut lying, &error);
}

#[test]
fn names_of_the_other_side_become_plain() {
    let long = "x".repeat(300);
    assert_eq!(plain("a\u{1b}[2J\nb\r"), "a[2J b");
    assert_eq!(plain(&long), format!("{}…", &long[..200]));
    assert_eq!(plain(&long[..200]), &long[..200]);
    let answer = json!({ "a\u{1b}\n": ["b\u{7}", { "c": "x".repeat(2000) }], "n": 7 });
    let cleaned = hosts::cleaned(answer);
    assert_eq!((&cleaned["a "][0], &cleaned["n"]), (&json!("b"), &json!(7)));
    assert_eq!(cleaned["a "][1]["c"].as_str().unwrap().chars().count(), 1001);
    let error = serde_json::from_str::<hosts::SetUp>(r#"{"up\u001b[2J\u000alink": 1}"#).unwrap_err();
    let problem = no_json("the set-up", &error);
    assert!(
        problem.starts_with("its answer is not valid JSON of the set-up: unknown field `up[2J link`"),
        "{problem}"
    );
    assert!(problem.ends_with("; install the same ktsn on both hosts"), "{problem}");
}

#[test]
fn words_without_end_hold_nothing_up() {
    // Many words in a message: they come faster than they can be taken.
    let file = tempfile::NamedTempFile::new().unwrap();
    let words = b"a\n".repeat(frames::PAYLOAD_OCTETS_MAX / 2);
    (0..64).for_each(|_| frames::Message::Stderr(&words).write(&mut file.as_file()).unwrap());
    let flood = format!("(while cat '{}'; do :; done) & cat >/dev/null; kill $!", file.path().display());
    let begun = Instant::now();
    let soon = Duration::from_millis(200);
    let error = ask(&mut far(&flood), soon).unwrap_err();
    assert!(error.to_string().contains("gave no answer within 200ms"), "{error}");
    let error = session(&flood).wait(soon).unwrap_err();
    assert!(error.to_string().contains("did not end within 200ms"), "{error}");
    assert!(begun.elapsed() < LONG);
}

#[test]
fn a_process_that_outlives_ssh_holds_nothing_up() {
    let folder = tempfile::tempdir().unwrap();
    let wanted = folder.path().join("wanted");
    std::fs::write(&wanted, "").unwrap();
    // It has ssh's standard error, and nothing else of it.
    let holder = format!(
        "(i=0; while [ -e '{}' ] && [ $i -lt 1200 ]; do i=$((i+1)); sleep 0.05; done) </dev/null >/dev/null & exit 0",
        wanted.display()
    );
    let begun = Instant::now();
    let error = session(&holder).wait(LONG).unwrap_err();
    let expected = "`/opt/ktsn remote side`: ssh said nothing; what ran there ends by itself within 20 s";
    assert!(error.to_string().ends_with(expected) && begun.elapsed() < LONG / 2, "{error}");
}
