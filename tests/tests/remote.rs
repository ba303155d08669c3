// SPDX-License-Identifier: Apache-2.0
//! `ktsn remote`, and commands of ktsn on another host, between two network namespaces with a sshd of the test's own.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use ktsn_eventually::eventually;
use ktsn_lab::remote::{Ended, Remote, RemoteError, Said, Session, Task};
use ktsn_tests::cli::{err, folder, ktsn, out};
use ktsn_tests::two_hosts::{Hosts, Programs};

const LONG: Duration = Duration::from_secs(30);
/// `chronyc -n -c tracking` of chrony 4.3: off by 200 µs / 2 + 10 µs + 150 ns at most.
const CHRONY: &str = "C0A80101,192.168.1.1,3,1764155000.1,-0.000000150,0.000000021,0.000000180,-5.123,0.001,0.012,0.000200000,0.000010000,2.1,Normal";

fn remote_of(hosts: &Hosts) -> Remote {
    Remote {
        target: "ssh:peer".parse().unwrap(),
        ssh_config: Some(hosts.ssh_config()),
        ktsn: folder().join("ktsn").to_string_lossy().into_owned(),
    }
}

/// `ktsn remote check` with this path to the other ktsn; status and what it said.
fn check(hosts: &Hosts, other: &Path, more: &[&str]) -> (Option<i32>, String) {
    let path = format!("{}:{}", hosts.at("here").display(), std::env::var("PATH").unwrap());
    let output = ktsn()
        .args(["remote", "check", "ssh:peer", "--ssh-config"])
        .arg(hosts.at("ssh_config"))
        .arg("--remote-ktsn")
        .arg(other)
        .args(more)
        .env("PATH", path)
        .output()
        .unwrap();
    (output.status.code(), out(&output) + &err(&output))
}

/// Whether a process of `ktsn answer` with this address runs.
fn answers(address: &str) -> bool {
    std::fs::read_dir("/proc").unwrap().flatten().any(|entry| {
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let words: Vec<&[u8]> = line.split(|octet| *octet == 0).collect();
        words.get(1) == Some(&&b"answer"[..]) && words.contains(&address.as_bytes())
    })
}

/// Waits until the command there is ready; before that it may warn.
fn wait_ready(session: &mut Session) {
    loop {
        match session.next(LONG).unwrap() {
            Some(Said::Ready) => return,
            Some(Said::Word(_)) => {}
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn clocks_versions_and_connections_are_checked_over_ssh() {
    let hosts = Hosts::new();
    let other = folder().join("ktsn");
    let (status, said) = check(&hosts, &other, &[]);
    assert!(
        status == Some(3) && said.contains("no result: the clock of this host is not held"),
        "{status:?} {said}"
    );
    hosts.program("here/chronyc", CHRONY);
    let (status, said) = check(&hosts, &other, &["--within", "1ms"]);
    assert!(
        status == Some(3) && said.contains("the clock of ssh:peer is not held by chrony or ptp4l; start"),
        "{said}"
    );
    hosts.program("there/chronyc", CHRONY);
    let (status, said) = check(&hosts, &other, &["--within", "1ms", "--json"]);
    assert_eq!(status, Some(0), "{said}");
    let value: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!(
        (value["clock_bound_ns"].as_i64(), value["there"]["holder"]["by"].as_str()),
        (Some(220_302), Some("chrony"))
    );
    let (status, said) = check(&hosts, &other, &["--within", "100us"]);
    assert!(
        status == Some(3)
            && said.contains("the clocks agree within 220302 ns only")
            && said.contains("--within"),
        "{said}"
    );

    let older = hosts.program("older", "ktsn 0.0.9");
    let (status, said) = check(&hosts, &older, &["--within", "1ms"]);
    assert!(status == Some(3) && said.contains("ktsn 0.0.9 runs there, ktsn "), "{said}");
    let (status, said) = check(&hosts, Path::new("/nonexistent/ktsn"), &[]);
    assert!(status == Some(3) && said.contains("there is no program /nonexistent/ktsn; copy"), "{said}");
    // Another key of the host: refused without a question.
    std::fs::write(
        hosts.at("known"),
        "peer ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIE0000000000000000000000000000000000000000000\n",
    )
    .unwrap();
    let (status, said) = check(&hosts, &other, &[]);
    assert!(
        status == Some(3) && said.contains("ssh:peer: no connection: ") && said.contains("BatchMode"),
        "{said}"
    );
}

#[test]
fn what_runs_on_the_other_host_ends_with_this_side_and_with_the_connection() {
    let hosts = Hosts::new();
    let remote = remote_of(&hosts);
    let task = |arguments: &[&str], says_ready| Task {
        arguments: arguments.iter().map(|argument| (*argument).to_owned()).collect(),
        says_ready,
    };
    let start = |address: &str| {
        let mut session = remote.start(&task(&["answer", address], true)).unwrap();
        wait_ready(&mut session);
        assert!(answers(address));
        session
    };
    // Given up here.
    drop(start("192.0.2.2:7301"));
    eventually("it ends", LONG, || !answers("192.0.2.2:7301"));
    // The connection dies.
    let process = start("192.0.2.2:7302");
    let _ = Command::new("kill").args(["-KILL", &process.ssh_pid().to_string()]).status();
    eventually("it ends", LONG, || !answers("192.0.2.2:7302"));
    drop(process);
    // By itself: its output, or its failure.
    let mut said = Vec::new();
    let mut hear = |one| {
        said.push(one);
        Ok(())
    };
    let ended = remote.run(&task(&["--version"], false), LONG, &[], &mut hear).unwrap();
    let version = Said::Line(format!("ktsn {}", env!("CARGO_PKG_VERSION")));
    assert_eq!((ended, said), (Ended::Exited(0), vec![version]));
    let mut session = remote.start(&task(&["schedule", "check", "/nonexistent/a b"], false)).unwrap();
    let failed = session.wait(LONG).unwrap_err();
    assert!(
        matches!(&failed, RemoteError::Command { said, .. } if said.contains("/nonexistent/a b")),
        "{failed}"
    );
}

#[test]
fn files_come_back_and_nothing_else_does() {
    let hosts = Hosts::new();
    let remote = remote_of(&hosts);
    let arguments = ["answer", "192.0.2.2:7304", "--records", "a.csv", "--json", "a.json"];
    let task = Task { arguments: arguments.map(str::to_owned).to_vec(), says_ready: true };
    let mut session = remote.start(&task).unwrap();
    wait_ready(&mut session);
    session.ask_to_end();
    session.wait(LONG).unwrap();
    let to = hosts.at("fetched");
    session.fetch("a.json", &to, 1 << 20).unwrap();
    let value: serde_json::Value = serde_json::from_slice(&std::fs::read(&to).unwrap()).unwrap();
    assert_eq!(value["answered"], 0, "{value}");
    let problem = |fetched: Result<(), RemoteError>| fetched.unwrap_err().to_string();
    // What is here is kept, and no name leads out of the directory there.
    assert!(problem(session.fetch("a.csv", &to, 1 << 20)).contains("File exists"));
    for name in ["/etc/passwd", "../a.csv", "a/../../b", ".hidden", "a b", ""] {
        assert!(problem(session.fetch(name, &hosts.at("no"), 9)).contains("no name of a file"), "{name}");
    }
    assert!(problem(session.fetch("none", &hosts.at("no"), 9)).contains("none: No such file"));
    let problem = problem(session.fetch("a.csv", &hosts.at("no"), 3));
    assert!(problem.contains("at most 3 are taken") && !hosts.at("no").exists(), "{problem}");
    drop(session);
    eventually("the directory goes", LONG, || hosts.left().is_empty());
}

#[test]
fn only_ordinary_files_are_handed_over() {
    let hosts = Hosts::new();
    let made = "ln -s /etc/passwd link; mkfifo pipe; mkdir folder; ln -s /etc folder/out; echo done";
    let arguments = ["run", "--", "sh", "-c", made];
    let task = Task { arguments: arguments.map(str::to_owned).to_vec(), says_ready: false };
    let programs = Programs::new();
    let remote = Remote { ktsn: programs.ktsn().to_string_lossy().into_owned(), ..remote_of(&hosts) };
    let mut session = remote.start(&task).unwrap();
    session.wait(LONG).unwrap();
    let to = hosts.at("no");
    for (name, expected) in [
        ("link", "symbolic link"),
        ("pipe", "no ordinary file"),
        ("folder", "no ordinary file"),
        ("folder/out/passwd", "symbolic link"),
    ] {
        let problem = session.fetch(name, &to, 1 << 20).unwrap_err().to_string();
        assert!(problem.contains(expected) && !to.exists(), "{name}: {problem}");
    }
}

/// The other host's ktsn says what it likes: nothing of it is used, and it has no effect here.
#[test]
fn a_hostile_far_side_is_refused_within_bounds() {
    let hosts = Hosts::new();
    let flood = "while :; do printf 'o\\0\\1\\0\\0'; head -c 65536 /dev/zero | tr '\\0' ";
    let unasked = "printf 'f\\0\\0\\0\\10\\0\\0\\0\\0\\0\\0\\0\\1'; sleep 5";
    for (script, expected) in [
        ("echo Welcome; sleep 5".to_owned(), "octet 0x57 begins no message"),
        ("printf 's\\0\\0\\0\\0o\\377\\377\\377\\377'; sleep 5".to_owned(), "4294967295 octets"),
        (format!("printf 's\\0\\0\\0\\0'; {flood} x; done"), "a line of more than 1048576 octets"),
        (format!("printf 's\\0\\0\\0\\0'; {unasked}"), "a file that was not asked for"),
        ("printf 's\\0\\0\\0\\0x\\0\\0\\0\\2\\2\\0'; sleep 5".to_owned(), "out of turn"),
        ("printf '\\033[2Jbad\\n' >&2; exit 1".to_owned(), "failed (exit status: 1): [2Jbad"),
        ("printf 's\\0\\0\\0\\0'; echo 'No space left' >&2; exit 1".to_owned(), "ended in the middle of"),
    ] {
        let path = hosts.script("hostile", &script);
        let remote = Remote { ktsn: path.to_string_lossy().into_owned(), ..remote_of(&hosts) };
        let mut session = remote.start(&Task::default()).unwrap();
        let problem = session.wait(LONG).unwrap_err().to_string();
        assert!(problem.contains(expected), "{script}: {problem}");
    }
    // Lines without end in place of a file.
    let path = hosts.script("hostile", &format!("printf 's\\0\\0\\0\\0'; {flood} '\\n\\n'x; done"));
    let remote = Remote { ktsn: path.to_string_lossy().into_owned(), ..remote_of(&hosts) };
    let mut session = remote.start(&Task::default()).unwrap();
    let problem = session.fetch("a", &hosts.at("no"), 9).unwrap_err().to_string();
    assert!(problem.contains("without end"), "{problem}");
    // A short answer that is none.
    let path = hosts.script("hostile", "yes");
    let remote = Remote { ktsn: path.to_string_lossy().into_owned(), ..remote_of(&hosts) };
    let problem = remote.check_version("ktsn 1").unwrap_err().to_string();
    assert!(problem.contains("more than 1048576 octets"), "{problem}");
}

#[test]
fn a_silent_connection_ends_what_runs() {
    let mut guard = ktsn();
    guard.args(["remote", "guard", "--silence", "300ms", "--", "answer", "127.0.0.1:7303"]);
    let mut guard = guard.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    // The pipe stays open, and nothing comes.
    let pipe = guard.stdin.take();
    let output = guard.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(err(&output).contains("the first host is gone"), "{}", err(&output));
    assert!(!answers("127.0.0.1:7303"));
    drop(pipe);
}
