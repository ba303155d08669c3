// SPDX-License-Identifier: Apache-2.0
//! `ktsn top` on a pseudo-terminal of 80 columns and 24 lines, beside a real ktsnd. `script` (util-linux) makes the terminal; vt100
//! reads what a terminal would show.

use std::io::{Read as _, Write as _};
use std::num::NonZero;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ktsn_tests::cli::folder;
use ktsn_tests::faults::bed::{Bed, POD_B};
use ktsn_tests::faults::daemon::{Attachment, Daemon, configuration};
use ktsn_tests::faults::eventually;
use ktsn_tests::faults::talker::Talker;
use ktsn_tests::hook::Running;

const SOON: Duration = Duration::from_secs(30);

/// A program on a terminal.
struct Terminal {
    running: Running,
    parser: Arc<Mutex<vt100::Parser>>,
    raw: Arc<Mutex<Vec<u8>>>,
}

impl Terminal {
    fn start(command: &str) -> Self {
        let line = format!("stty rows 24 cols 80; {command}; echo \"ended $?\"");
        let mut child = Command::new("script")
            .args(["-qfec", &line, "/dev/null"])
            .env("TERM", "xterm")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("script");
        let mut output = child.stdout.take().expect("output");
        let parser = Arc::new(Mutex::new(vt100::Parser::new(
            NonZero::new(24).expect("rows"),
            NonZero::new(80).expect("columns"),
            0,
        )));
        let raw = Arc::new(Mutex::new(Vec::new()));
        let (seen, kept) = (parser.clone(), raw.clone());
        std::thread::spawn(move || {
            let mut octets = [0; 4096];
            while let Ok(count @ 1..) = output.read(&mut octets) {
                // What the screen shows is kept already.
                kept.lock().expect("octets").extend_from_slice(&octets[..count]);
                seen.lock().expect("parser").process(&octets[..count]);
            }
        });
        Self { running: Running(child), parser, raw }
    }

    fn screen(&self) -> String {
        self.parser.lock().expect("parser").screen().contents()
    }

    fn shows(&self, what: &str, is_so: impl Fn(&str) -> bool) -> String {
        let shown = std::fmt::from_fn(|f| write!(f, "{what}: the screen is\n{}\n", self.screen()));
        eventually(shown, SOON, || Some(self.screen()).filter(|screen| is_so(screen)))
    }

    fn press(&mut self, keys: &[u8]) {
        let input = self.running.0.stdin.as_mut().expect("input");
        input.write_all(keys).and_then(|()| input.flush()).expect("keys");
    }

    fn is_raw_screen(&self) -> bool {
        self.parser.lock().expect("parser").screen().alternate_screen()
    }
}

fn schedule() -> &'static str {
    "[[schedule]]\nname = \"line\"\n[schedule.gate-parameter-table]\ngate-enabled = true\nadmin-base-time = 0\n\
     admin-cycle-time = \"10ms\"\nadmin-control-list = [\n\
     { gate-states-value = 255, time-interval-value = \"5ms\" },\n\
     { gate-states-value = 64, time-interval-value = \"5ms\" } ]\n"
}

#[test]
fn a_terminal_shows_ports_attachments_and_streams() {
    // Built before anything sends: a build outlasts the frames.
    let (ktsn, bed) = (folder().join("ktsn"), Bed::new());
    let text = configuration(&[Attachment::pod_a(&bed)])
        .replace("priority = 0\n", "priority = 0\nschedule = \"line\"\n");
    let mut daemon = Daemon::prepare(&bed.host_a, &format!("{}{text}", schedule()));
    daemon.spawn();
    let talker =
        Talker::start(&daemon, &bed.pod_a, POD_B, 1, "count=60000 period_us=1000 lead_us=2000 priority=6");
    let top = format!("{} top --run-dir {} --interval 200ms", ktsn.display(), daemon.run_dir().display());
    let mut terminal = Terminal::start(&top);
    let screen = terminal.shows("attachments", |screen| screen.contains("pod-a") && screen.contains("µs"));
    assert!(screen.contains("ktsnd serving") && screen.contains("1-3 Tab pane"), "{screen}");
    assert!(terminal.is_raw_screen(), "the user's own screen stays as it is");
    terminal.press(b"3");
    terminal.shows("a stream with its sparkline", |screen| {
        let row = screen.lines().find(|line| line.starts_with("pod-a"));
        row.is_some_and(|row| row.contains("0.0.0.0:") && row.chars().any(|c| ('▁'..='█').contains(&c)))
    });
    terminal.press(b"1j");
    // On a busy machine an interval may be without a frame.
    terminal.shows("the gates, and frames of class 6", |screen| {
        let class = |class: char| {
            screen.lines().find(|line| line.starts_with(&format!("{class} "))).unwrap_or_default()
        };
        screen.contains("one cycle of 10.00 ms")
            && (class('0').contains('█') && class('0').contains('·'))
            && (class('6').contains('█') && !class('6').contains('·') && !class('6').ends_with(" 0/s"))
    });
    terminal.press(b"2/nothing\r");
    terminal.shows("a filter", |screen| screen.contains("no name has the filter's text"));
    terminal.press(b" ");
    terminal.shows("a pause", |screen| screen.starts_with("PAUSED"));
    terminal.press(b"?");
    terminal.shows("help", |screen| screen.contains("sort by the next column"));
    terminal.press(b"?q");
    terminal.shows("the end", |screen| screen.contains("ended 0"));
    assert!(!terminal.is_raw_screen());
    drop(talker);
}

/// ktsnd ends, or a signal comes: the terminal is as before, and the error can be read.
#[test]
fn the_terminal_is_restored_however_it_ends() {
    let (ktsn, bed) = (folder().join("ktsn"), Bed::new());
    let mut daemon = Daemon::start(&bed, &[Attachment::pod_a(&bed)]);
    let top = format!("{} top --run-dir {} --interval 200ms", ktsn.display(), daemon.run_dir().display());
    let terminal = Terminal::start(&top);
    terminal.shows("attachments", |screen| screen.contains("pod-a"));
    let signalled = Terminal::start(&format!("sh -c 'echo $$; exec {top}'"));
    signalled.shows("attachments", |screen| screen.contains("pod-a"));
    let first = String::from_utf8_lossy(&signalled.raw.lock().expect("octets")).into_owned();
    let pid = first.lines().next().expect("a line").trim().to_owned();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().expect("kill").success());
    signalled.shows("the end", |screen| screen.contains("ended 0"));
    assert!(!signalled.is_raw_screen());
    let _ = daemon.terminate(SOON);
    let screen = terminal.shows("the end", |screen| screen.contains("ended 1"));
    assert!(screen.contains("ktsn top: "), "{screen}");
    assert!(!terminal.is_raw_screen());
}

/// The name of an attachment may hold what a terminal obeys. None of it arrives there, in any form of output; JSON means the same.
#[test]
fn names_do_not_command_the_terminal() {
    let (ktsn, bed) = (folder().join("ktsn"), Bed::new());
    let daemon = Daemon::start(&bed, &[]);
    let name = "evil\u{1b}[2J\u{1b}]0;title\u{7}\u{9b}31m\u{202e}";
    let attachment = serde_json::json!({
        "name": name, "netns": format!("/run/netns/{}", bed.pod_a), "interface": "eth0", "uplink": "uplink",
        "destinations": ["10.244.1.0/24"],
    });
    daemon.control().attach(attachment).expect("attached");
    let top = format!("{} top --run-dir {} --interval 200ms", ktsn.display(), daemon.run_dir().display());
    let mut terminal = Terminal::start(&top);
    terminal.shows("the name", |screen| screen.contains("evil"));
    terminal.press(b"q");
    terminal.shows("the end", |screen| screen.contains("ended 0"));
    let raw = String::from_utf8_lossy(&terminal.raw.lock().expect("octets")).into_owned();
    for part in ["evil\u{1b}", "\u{1b}]0;title", "\u{9b}", "\u{202e}", "\u{7}"] {
        assert!(!raw.contains(part), "{part:?}");
    }
    for arguments in [["--once"].as_slice(), &["--once", "--json"]] {
        let mut command = Command::new(&ktsn);
        command.args(["top", "--interval", "200ms", "--run-dir"]).arg(daemon.run_dir()).args(arguments);
        let output =
            eventually("an answer", SOON, || command.output().ok().filter(|output| output.status.success()));
        let text = String::from_utf8(output.stdout).expect("text");
        assert!(
            text.contains("evil") && !text.chars().any(|c| (c.is_control() && c != '\n') || c == '\u{202e}'),
            "{text:?}"
        );
        if arguments.contains(&"--json") {
            let json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
            assert_eq!(json["attachments"][0]["name"], name);
        }
    }
}
