// SPDX-License-Identifier: Apache-2.0
//! The commands `talk` and `listen` as a user runs them, over loopback: readiness, files, figures, exit statuses.

use std::io::{BufRead as _, BufReader, Read as _};
use std::net::UdpSocket;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU8, Ordering};

use ktsn_traffic::records::{join, load_arrivals, load_talk};
use ktsn_traffic::{listener, talker};

fn ktsn(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ktsn"));
    command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// A listener that has said `ready`, and its output.
fn listening(arguments: &[&str]) -> (Child, BufReader<std::process::ChildStdout>) {
    let mut child = ktsn(arguments).args(["--ready-fd", "1"]).spawn().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    (child, output)
}

/// A loopback address of this process and this call alone: two tests side by side never meet.
fn port() -> String {
    static CALLS: AtomicU8 = AtomicU8::new(1);
    let [.., high, low] = std::process::id().to_be_bytes();
    format!("127.{high}.{low}.{}:7401", CALLS.fetch_add(1, Ordering::Relaxed))
}

fn json<T: serde::de::DeserializeOwned>(path: &Path) -> T {
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

#[test]
fn what_is_sent_is_heard_and_both_write_it_down() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (heard, heard_json) = (file("heard.csv"), file("heard.json"));
    let (sent, sent_json) = (file("sent.csv.zst"), file("sent.json"));
    let address = port();
    let line =
        ["listen", &address, "--count", "20", "--timeout", "5s", "--records", &heard, "--json", &heard_json];
    let (mut child, mut output) = listening(&line);
    let line = ["talk", &address, "--count", "20", "--mode", "sleep", "--first-sequence", "500"];
    let talked = ktsn(&line).args(["--records", &sent, "--json", &sent_json]).output().unwrap();
    assert!(talked.status.success(), "{}", String::from_utf8_lossy(&talked.stderr));
    assert!(String::from_utf8_lossy(&talked.stdout).contains("sent 20 of 20"));
    assert!(String::from_utf8_lossy(&talked.stderr).contains("--fifo"));
    assert!(child.wait().unwrap().success());
    let mut text = String::new();
    output.read_to_string(&mut text).unwrap();
    assert!(
        text.contains("received 20 datagrams, 0 duplicates, 0 reordered") && text.contains("latency"),
        "{text}"
    );

    let summary: talker::Summary = json(sent_json.as_ref());
    assert_eq!((summary.frames_intended, summary.frames_sent), (20, 20));
    let summary: listener::Summary = json(heard_json.as_ref());
    assert_eq!((summary.frames_received, summary.ended), (20, listener::Ended::Count));
    let (talked, listened) = (load_talk(sent.as_ref()).unwrap(), load_arrivals(heard.as_ref()).unwrap());
    let (records, counts) = join(&talked, &[], &listened, true);
    assert_eq!(counts.strangers, 0);
    assert_eq!(records.first().map(|record| record.sequence), Some(500));
    assert!(records.iter().all(|record| record.received_at > record.handed_at));
}

#[test]
fn a_signal_ends_an_endless_listener_with_its_figures() {
    let (mut child, mut output) = listening(&["listen", &port(), "--json", "-"]);
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert!(child.wait().unwrap().success());
    let mut text = String::new();
    output.read_to_string(&mut text).unwrap();
    let summary: listener::Summary = serde_json::from_str(&text).unwrap();
    assert_eq!((summary.ended, summary.frames_received), (listener::Ended::Stopped, 0));
}

#[test]
fn exit_statuses_tell_what_kind_of_failure_it_was() {
    let address = port();
    let taken = UdpSocket::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    for (line, status, words) in [
        (&["talk", &address, "--payload", "15"][..], 2, ["15", "16"]),
        (&["talk", &address, "--period", "0s"], 2, ["period", "1 us"]),
        (&["talk", &address, "--start-at", "5"], 2, ["start-at", "later"]),
        (&["talk", "nowhere"], 2, ["nowhere", "ADDRESS:PORT"]),
        (&["talk", &address, "--cpu", "4000", "--count", "1"], 3, ["4000", "nproc"]),
        (&["listen", "port"], 2, ["port", "ADDRESS:PORT"]),
        (&["listen", &taken], 3, [&taken, "in use"]),
        (&["listen", &address, "--count", "1", "--timeout", "10ms"], 1, ["", ""]),
        (&["tap", "ktsn-none0", "--port", "5"], 3, ["ktsn-none0", "ip link"]),
    ] {
        let output = ktsn(line).output().unwrap();
        let told = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{line:?}: {told}");
        assert!(words.iter().all(|word| told.contains(word)), "{line:?}: {told}");
    }
}

#[test]
fn help_shows_examples() {
    for command in ["talk", "listen", "tap"] {
        let output = ktsn(&[command, "--help"]).output().unwrap();
        assert!(output.status.success());
        assert!(String::from_utf8_lossy(&output.stdout).contains(&format!("ktsn {command} ")));
    }
}
