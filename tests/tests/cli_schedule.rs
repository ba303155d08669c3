// SPDX-License-Identifier: Apache-2.0
//! `ktsn schedule apply` and `status` on a real ktsnd, in a network namespace of its own.

#[allow(dead_code)]
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use ktsn_tests::cli::{err, folder, ktsn, out, run};
use ktsn_tests::faults::eventually;
use serde_json::Value;

const SOON: Duration = Duration::from_secs(30);

/// Two connected devices, then what is asked for.
const INSIDE: &str = "ip link set lo up && ip link add va type veth peer name vb address 02:00:00:00:00:02 && ip addr add 192.0.2.1/24 dev va \
                      && ip link set va up && ip link set vb up && ip neigh add 192.0.2.2 lladdr 02:00:00:00:00:02 dev va";

/// Class 7 alone for 300 µs of each millisecond, the others in the rest.
const TWO: &str = "name: two windows\nlink-speed: 1G\npriority-map: [0, 0, 0, 0, 0, 0, 7, 7, 0, 0, 0, 0, 0, 0, 0, 0]\n\
                   gate-parameter-table:\n  gate-enabled: true\n  admin-base-time: 0\n  admin-cycle-time: 1ms\n  \
                   admin-control-list:\n  - {gate-states-value: 128, time-interval-value: 300us}\n  \
                   - {gate-states-value: 127, time-interval-value: 700us}\n  \
                   queue-max-sdu-table:\n  - {traffic-class: 7, queue-max-sdu: 512}\n";

const CONFIGURATION: &str = r#"
[[port]]
device = "va"
priority = 0
link_speed = 1000000000
schedule = "always"
[[port]]
device = "absent"
link_speed = 1000000
[[schedule]]
name = "always"
gate-parameter-table = { gate-enabled = false }
[[attachment]]
name = "pod"
netns = "/proc/self/ns/net"
interface = "va"
uplink = "va"
destinations = ["192.0.2.0/24"]
overrun_limit = "10s"
late = "send"
"#;

/// A running ktsnd; it ends with the test.
struct Daemon {
    child: Child,
    dir: PathBuf,
}

impl Daemon {
    /// Starts ktsnd in the namespace that `enter` enters, and waits until it serves.
    fn start(dir: &Path, enter: Command) -> Self {
        Self::start_with(dir, enter, CONFIGURATION)
    }

    fn start_with(dir: &Path, mut enter: Command, configuration: &str) -> Self {
        let config = dir.join("ktsnd.toml");
        std::fs::write(&config, configuration).unwrap();
        let child = enter
            .arg(folder().join("ktsnd"))
            .arg("--config")
            .arg(&config)
            .arg("--run-dir")
            .arg(dir.join("run"))
            .stderr(Stdio::from(std::fs::File::create(dir.join("log")).unwrap()))
            .spawn()
            .expect("ktsnd starts");
        let daemon = Self { child, dir: dir.to_owned() };
        let log = || std::fs::read_to_string(dir.join("log")).unwrap_or_default();
        let what = std::fmt::from_fn(|f| write!(f, "ktsnd serves: {}", log()));
        eventually(what, SOON, || daemon.ask(&["status"]).status.success());
        daemon
    }

    fn in_new_namespace(dir: &Path) -> Self {
        let mut command = Command::new("unshare");
        command.args(["--net", "sh", "-c", &format!("{INSIDE} && exec \"$@\""), "sh"]);
        Self::start(dir, command)
    }

    /// `ktsn` with these arguments, asking this daemon.
    fn ask(&self, arguments: &[&str]) -> Output {
        ktsn().args(arguments).env("KTSN_RUN_DIR", self.dir.join("run")).output().unwrap()
    }

    /// A command in this daemon's namespace.
    fn beside(&self) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/proc/{}/ns/net", self.child.id()));
        command.env("KTSN_RUN_DIR", self.dir.join("run")).env("KTSN_LIB", ktsn_tests::hook::library());
        command
    }

    fn schedule(&self, arguments: &[&str]) -> Output {
        self.ask(&[&["schedule"], arguments].concat())
    }

    fn gates(&self) -> Value {
        let output = self.schedule(&["status", "--port", "va", "--json"]);
        assert_eq!(output.status.code(), Some(0), "{}", err(&output));
        let value: Value = serde_json::from_str(&out(&output)).unwrap();
        value["ports"][0].clone()
    }

    /// The gates once they run, and no other schedule waits for its turn.
    fn running_gates(&self) -> Value {
        eventually("the gates run", SOON, || {
            let gates = self.gates();
            (gates["gates"] == "running" && gates["config_pending"] == false).then_some(gates)
        })
    }

    fn file(&self, name: &str, text: &str) -> String {
        let path = self.dir.join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_schedule_is_applied_shown_kept_and_forgotten() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = Daemon::in_new_namespace(dir.path());
    assert_eq!(daemon.gates()["gates"], "off");
    assert_eq!(daemon.gates()["name"], "always");
    let two = daemon.file("two.yaml", TWO);
    let output = daemon.schedule(&["apply", &two, "--port", "va"]);
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    assert!(out(&output).contains("va: schedule two windows"), "{}", out(&output));
    let gates = daemon.running_gates();
    assert_eq!(gates["oper"]["control_list"][0]["gate_states_value"], 128);
    assert_eq!(gates["oper"]["cycle_time"], 1_000_000);
    assert_eq!(gates["queue_max_sdu"][0]["queue_max_sdu"], 512);
    assert_eq!(gates["link_speed"], 1_000_000_000);
    assert_eq!(gates["config_change_error"], 0);
    let status = daemon.ask(&["status"]);
    assert!(out(&status).contains("running  two windows"), "{}", out(&status));
    // Again while gates run: the base time has passed, which 12.29.1 counts, and it takes place all the same.
    assert_eq!(daemon.schedule(&["apply", &two, "--port", "va"]).status.code(), Some(0));
    assert_eq!(daemon.gates()["config_change_error"], 1);

    // A restart in the same namespace.
    let namespace = std::fs::File::open(format!("/proc/{}/ns/net", daemon.child.id())).unwrap();
    let path = format!("/proc/{}/fd/{}", std::process::id(), std::os::fd::AsRawFd::as_raw_fd(&namespace));
    drop(daemon);
    let mut enter = Command::new("nsenter");
    enter.arg(format!("--net={path}"));
    let daemon = Daemon::start(dir.path(), enter);
    assert_eq!(daemon.running_gates()["name"], "two windows");

    let output = daemon.schedule(&["apply", "--configured", "--port", "va"]);
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    let gates = daemon.gates();
    assert_eq!((gates["gates"].as_str(), gates["name"].as_str()), (Some("off"), Some("always")));
    let state = std::fs::read_to_string(dir.path().join("run/state.json")).unwrap();
    assert!(!state.contains("two windows"), "{state}");
}

#[test]
fn what_is_wrong_is_named_and_nothing_changes() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = Daemon::in_new_namespace(dir.path());
    let before = daemon.gates();
    let faulty = daemon.file("faulty.yaml", &TWO.replace("700us", "0us"));
    // tc takes it.
    let realtime = "tc qdisc replace dev va root taprio num_tc 1 queues 1@0 sched-entry S 1 1000000 clockid CLOCK_REALTIME";
    let realtime = daemon.file("realtime.taprio", realtime);
    let fast = daemon.file("fast.yaml", &TWO.replace("1G", "10G"));
    let two = daemon.file("two.yaml", TWO);
    for (arguments, status, expected) in [
        (&["apply", &faulty, "--port", "va"][..], 2, "faulty.yaml:10"),
        (&["apply", &realtime, "--port", "va"], 2, "clockid: found CLOCK_REALTIME, expected CLOCK_TAI"),
        (&["apply", "/nonexistent/file", "--port", "va"], 2, "/nonexistent/file"),
        (&["apply", &two, "--port", "vz"], 1, "no such port; ktsnd has: absent, va"),
        (&["apply", &fast, "--port", "va"], 1, "was made for 10000000000 bit/s, va has 1000000000"),
        (&["apply", &fast, "--port", "absent"], 1, "was made for 10000000000 bit/s"),
        (
            &["apply", &fast, "--port", "va", "--check-only"],
            1,
            "was made for 10000000000 bit/s, va has 1000000000",
        ),
        (&["apply", &two], 2, "--port"),
        (&["apply", "--port", "va"], 2, "<FILE>"),
        (&["status", "--port", "vz"], 1, "no such port"),
        (&["status", "--run-dir", "/nonexistent/ktsn"], 1, "no ktsnd runs in /nonexistent/ktsn"),
    ] {
        let output = daemon.schedule(arguments);
        assert_eq!(output.status.code(), Some(status), "{arguments:?}: {}", err(&output));
        assert!(err(&output).contains(expected), "{arguments:?}: {}", err(&output));
        assert_eq!(out(&output), "", "{arguments:?}");
    }
    // What would be taken changes nothing either, when it is only asked.
    let output = daemon.schedule(&["apply", &two, "--port", "va", "--check-only"]);
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    let after = daemon.gates();
    assert_eq!((&after["name"], &after["config_pending"]), (&before["name"], &before["config_pending"]));
    assert_eq!((&after["admin"], &after["oper"]), (&before["admin"], &before["oper"]));
    for help in [&["schedule", "apply", "--help"], &["schedule", "status", "--help"]] {
        assert!(out(&run(help)).contains("Examples:"), "{help:?}");
    }
}

/// Frames leave while one schedule after the other is applied: every one is accounted for, by name.
#[test]
fn changes_under_load_lose_no_frame() {
    const COUNT: u64 = 1_000;
    let dir = tempfile::tempdir().unwrap();
    let daemon = Daemon::in_new_namespace(dir.path());
    let one = daemon.file("one.yaml", TWO);
    let other = daemon.file(
        "other.yaml",
        &TWO.replace("128", "127")
            .replace("value: 127, time-interval-value: 7", "value: 128, time-interval-value: 7"),
    );
    let count = COUNT.to_string();
    let mut talker = daemon
        .beside()
        .arg(folder().join("ktsn"))
        .args(["run", "--"])
        .arg(folder().join("ktsn"))
        .args(["talk", "192.0.2.2:5000", "--count", &count, "--priority", "6", "--lead", "2ms"])
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let mut changes = 0;
    while talker.try_wait().unwrap().is_none() {
        let file = if changes % 2 == 0 { &one } else { &other };
        assert_eq!(daemon.schedule(&["apply", file, "--port", "va"]).status.code(), Some(0));
        changes += 1;
    }
    assert!(changes >= 3, "{changes} changes");
    let of = eventually("every frame is counted", SOON, || {
        let status: Value = serde_json::from_str(&out(&daemon.ask(&["status", "--json"]))).unwrap();
        let of = status["statistics"]["attachments"][0].clone();
        let late: u64 =
            ["missed", "overrun"].map(|word| of["dropped"][word].as_u64().unwrap_or(0)).iter().sum();
        (of["taken"] == COUNT && of["sent"].as_u64().unwrap() + late == COUNT).then_some(of)
    });
    assert!(of["sent"].as_u64().unwrap() > COUNT / 2, "{of}");
    let gates = daemon.gates();
    assert_eq!(
        gates["frames"][7].as_u64().unwrap() + gates["frames"][0].as_u64().unwrap(),
        of["sent"].as_u64().unwrap()
    );
    assert!(gates["frames"][7].as_u64().unwrap() > COUNT / 2, "{gates}");
}

/// What is in force is what a restart takes up again: where the state file cannot be written, nothing changes.
#[test]
fn a_schedule_that_cannot_be_kept_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = Daemon::in_new_namespace(dir.path());
    let two = daemon.file("two.yaml", TWO);
    // As a full disk: the new file cannot take the old one's place.
    let state = dir.path().join("run/state.json");
    let _ = std::fs::remove_file(&state);
    std::fs::create_dir(&state).unwrap();
    for _ in 0..3 {
        let output = daemon.schedule(&["apply", &two, "--port", "va"]);
        assert_eq!(output.status.code(), Some(1), "{}", out(&output));
        assert!(err(&output).contains("nothing was changed"), "{}", err(&output));
    }
    let gates = daemon.gates();
    assert_eq!((gates["gates"].as_str(), gates["name"].as_str()), (Some("off"), Some("always")));
    std::fs::remove_dir(&state).unwrap();
    assert_eq!(daemon.schedule(&["apply", &two, "--port", "va"]).status.code(), Some(0));
    assert_eq!(daemon.gates()["name"], "two windows");
}

/// A link that is negotiated again keeps its device: guard bands must follow its speed.
#[test]
fn a_link_with_another_speed_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let inside = "ip link set lo up && ip tuntap add va mode tap && ip addr add 192.0.2.1/24 dev va && ip link set va up";
    let mut command = Command::new("unshare");
    command.args(["--net", "sh", "-c", &format!("{inside} && exec \"$@\""), "sh"]);
    let configuration = CONFIGURATION.replacen("link_speed = 1000000000\n", "", 1);
    let daemon = Daemon::start_with(dir.path(), command, &configuration);
    assert_eq!(daemon.gates()["link_speed"], 10_000_000_000_u64);
    let set = daemon.beside().args(["ethtool", "-s", "va", "speed", "100"]).status().unwrap();
    assert!(set.success());
    let speed = || daemon.gates()["link_speed"].clone();
    let what = std::fmt::from_fn(|f| write!(f, "the speed is 100 Mbit/s: {}", speed()));
    eventually(what, SOON, || speed() == 100_000_000);
}
