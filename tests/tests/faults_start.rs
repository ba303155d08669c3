// SPDX-License-Identifier: Apache-2.0
//! Starts that must fail: each says what is wrong, where, and what to do.

use std::process::Command;
use std::time::Duration;

use ktsn_tests::faults::bed::{Bed, UPLINK, within};
use ktsn_tests::faults::daemon::{Attachment, Daemon, binary, configuration, port};
use ktsn_tests::faults::eventually;

const SOON: Duration = Duration::from_secs(20);

/// Exit status for a wrong configuration or command line.
const WRONG: Option<i32> = Some(2);
/// Exit status for a start that failed.
const FAILED: Option<i32> = Some(1);

fn bare(arguments: &[&str]) -> (Option<i32>, String) {
    let run_dir = tempfile::tempdir().expect("directory");
    let output =
        Command::new(binary()).arg("--run-dir").arg(run_dir.path()).args(arguments).output().expect("ktsnd");
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

fn refused(text: &str, with: &[&str]) {
    let file = tempfile::NamedTempFile::new().expect("file");
    std::fs::write(file.path(), text).expect("file");
    let path = file.path().to_str().expect("path");
    let (code, errors) = bare(&["--config", path]);
    assert_eq!(code, WRONG, "{text}\n{errors}");
    for part in with.iter().chain(&[path]) {
        assert!(errors.contains(part), "{part:?} is not in {errors}");
    }
}

/// Each fault of the file names the field, what was found and what was expected, and the file.
#[test]
fn wrong_fields_and_values() {
    let whole =
        |line: &str| format!("[[attachment]]\nname = \"a\"\nnetns = \"n\"\ninterface = \"eth0\"\n{line}\n");
    for (text, parts) in [
        (whole("late = \"never\""), ["attachment[0].late", "\"never\"", "by-clock, drop, send"]),
        (whole("horizon = \"yesterday\""), ["attachment[0].horizon", "\"yesterday\"", "a time between"]),
        (whole("slots = 63"), ["attachment[0].slots", "\"63\"", "64 to 4096"]),
        (whole("classes = [8]"), ["attachment[0].classes", "\"8\"", "traffic classes 0 to 7"]),
        (
            whole("destinations = [\"10.0.0.1/8\"]"),
            ["attachment[0].destinations[0]", "10.0.0.1/8", "a prefix"],
        ),
        (whole("clients_max = 0"), ["attachment[0].clients_max", "\"0\"", "1 to 4096"]),
        (whole("uplink = \"a/b\""), ["attachment[0].uplink", "\"a/b\"", "1 to 15 characters"]),
        (whole("colour = \"red\""), ["colour", "unknown field", "expected one of"]),
        (whole("slots = \"many\""), ["slots", "\"many\"", "expected u32"]),
        (
            "[[attachment]]\nnetns = \"n\"\n".to_owned(),
            ["attachment[0].name", "missing", "unique on the node"],
        ),
        ("[[port]]\ndevice = \"e\"\npriority = 100\n".to_owned(), ["port[0].priority", "\"100\"", "1 to 99"]),
        (
            "[[port]]\ndevice = \"e\"\nadapter = \"x\"\n".to_owned(),
            ["port[0].adapter", "\"x\"", "auto, af_xdp or"],
        ),
        (
            "[policing]\nports = [\"eth7\"]\n".to_owned(),
            ["policing.ports[0]", "\"eth7\"", "device of a [[port]]"],
        ),
        ("[[port]\n".to_owned(), ["TOML parse error", "line 1", "[[port]"]),
    ] {
        refused(&text, &parts);
    }
}

#[test]
fn wrong_command_lines() {
    for (arguments, parts) in [
        (["--attach", "eth0"], ["--attach", "\"eth0\"", "NETNS:INTERFACE"]),
        (["--attach", "n:eth0,colour=red"], ["--attach", "\"colour\"", "one of name"]),
        (["--attach", "n:eth0,slots=many"], ["--attach slots", "\"many\"", "a whole number"]),
        (["--attach", "n:eth0,late=never"], ["--attach.late", "\"never\"", "by-clock"]),
        (["--attach", "n:"], ["--attach.interface", "missing", "network device"]),
        (["--attach", "n:eth0,local=here"], ["--attach.overlay.vxlan.local", "\"here\"", "an IP address"]),
        (["--config", "/nowhere/ktsnd.toml"], ["--config", "/nowhere/ktsnd.toml", "No such file"]),
        (["--log", "a=b=c"], ["--log", "a=b=c", "level"]),
        (["--log", "ktsnd=loud"], ["--log", "ktsnd=loud", "level"]),
        (["--log", "verbose"], ["--log", "\"verbose\" is no level", "ktsnd=debug"]),
        (["--take-over", "soon"], ["--take-over", "\"soon\"", "whole seconds, 1 to 86400"]),
        (["--take-over", "0"], ["--take-over", "\"0\"", "whole seconds"]),
        (["--speed", "9"], ["--speed", "unexpected argument", "Usage"]),
    ] {
        let (code, errors) = bare(&arguments);
        assert_eq!(code, WRONG, "{arguments:?}: {errors}");
        for part in parts {
            assert!(errors.contains(part), "{part:?} is not in {errors}");
        }
    }
}

/// What an attachment of the configuration names may be missing: ktsnd serves the others, says so, and attaches it once it can.
#[test]
fn missing_devices_and_namespaces() {
    let bed = Bed::new();
    let pod = Attachment::pod_a(&bed);
    let other = Attachment { name: "pod-q".to_owned(), namespace: bed.pod_q.clone(), ..pod.clone() };
    let text = configuration(std::slice::from_ref(&pod));
    for (from, to, parts, remedy) in [
        (
            bed.pod_a.as_str(),
            "ktsnf-none",
            ["attachment pod-a", "attachment.interface", "ktsnf-none"],
            String::new(),
        ),
        (
            "interface = \"eth0\"",
            "interface = \"eth7\"",
            ["attachment pod-a", "attachment.interface", "eth7"],
            format!("ip -n {} link add eth7 type veth peer name eth8", bed.pod_a),
        ),
        (
            "uplink = \"uplink\"",
            "uplink = \"up7\"",
            ["attachment pod-a", "attachment.uplink", "up7"],
            format!("ip -n {} link add up7 type veth peer name up8", bed.host_a),
        ),
        (
            "local = \"192.168.50.1\"",
            "device = \"vx7\", local = \"192.168.50.1\"",
            ["attachment pod-a", "overlay", "vx7"],
            String::new(),
        ),
        // Without a default route nobody knows which device is meant.
        (
            "uplink = \"uplink\"\n",
            "",
            ["attachment pod-a", "attachment.uplink", "default route"],
            String::new(),
        ),
    ] {
        assert!(text.contains(from), "{from}");
        let mut daemon = Daemon::prepare(&bed.host_a, &format!("{}{}", text.replace(from, to), other.toml()));
        daemon.spawn();
        let names = |daemon: &Daemon| -> Vec<String> {
            daemon.control().list().attachments.into_iter().map(|attached| attached.name).collect()
        };
        assert_eq!(names(&daemon), ["pod-q"], "{}", daemon.log());
        let health = daemon.control().health().expect("health");
        let warning = health.warnings.iter().find(|text| text.contains("is not attached"));
        for part in parts {
            assert!(
                health.serving && warning.is_some_and(|text| text.contains(part)),
                "{part:?}: {health:?}"
            );
        }
        if !remedy.is_empty() {
            bed.run(&remedy);
            eventually("it is attached", SOON, || names(&daemon).len() == 2);
            let health = daemon.control().health().expect("health");
            assert!(!health.warnings.iter().any(|text| text.contains("is not attached")), "{health:?}");
        }
    }
}

/// Who types an attachment wants to know at once that it cannot be.
#[test]
fn an_attachment_of_the_command_line_that_cannot_be() {
    let bed = Bed::new();
    let daemon = Daemon::prepare(&bed.host_a, &configuration(&[]));
    let mut command = daemon.command();
    let (code, errors) =
        daemon.fails(command.args(["--attach", &format!("{}:eth7,uplink={UPLINK}", bed.pod_a)]));
    assert_eq!(code, FAILED, "{errors}");
    let last = errors.lines().last().unwrap_or_default();
    assert!(last.contains("attachment.interface") && last.contains("eth7"), "{last}");
}

/// Without privileges it does not start, and says which it needs.
#[test]
fn no_privileges() {
    let bed = Bed::new();
    let daemon = Daemon::prepare(&bed.host_a, &configuration(&[Attachment::pod_a(&bed)]));
    let plain = daemon.command();
    for drop in
        [&["--bounding-set=-all", "--inh-caps=-all"][..], &["--bounding-set=-net_raw", "--inh-caps=-net_raw"]]
    {
        let mut command = Command::new("setpriv");
        command.args(drop).arg("--").arg(plain.get_program()).args(plain.get_args());
        let (code, errors) = daemon.fails(&mut command);
        assert!(code.is_some_and(|c| c != 0), "{errors}");
        let last = errors.lines().last().unwrap_or_default();
        assert!(last.contains("CAP_"), "{last}");
    }
}

#[test]
fn a_run_directory_in_use() {
    let bed = Bed::new();
    let first = Daemon::start(&bed, &[Attachment::pod_a(&bed)]);
    let second = Daemon::prepare(&bed.host_a, &configuration(&[])).at(first.run_dir());
    let (code, errors) = second.fails(&mut second.command());
    assert_eq!(code, FAILED, "{errors}");
    let holder = format!("another ktsnd (pid {})", first.pid());
    assert!(errors.contains(&holder) && errors.contains("--run-dir"), "{errors}");
    // The first one goes on.
    assert!(first.control().health().expect("health").serving);
}

/// One AF_XDP socket a queue: a second ktsnd on the device is refused, or takes AF_PACKET and says why.
#[test]
fn a_port_taken_by_another_daemon() {
    let bed = Bed::new();
    let attachment = Attachment::pod_a(&bed);
    let first = Daemon::start(&bed, std::slice::from_ref(&attachment));
    let adapter = |daemon: &Daemon| {
        daemon.control().list().ports.into_iter().find(|p| p.netns.is_empty()).expect("the uplink")
    };
    assert_eq!(adapter(&first).adapter, "af_xdp", "{}", first.log());
    let mut strict = Daemon::prepare(&bed.host_a, &format!("{}{}", port("af_xdp"), attachment.toml()));
    strict.spawn();
    let warnings = strict.control().health().expect("health").warnings;
    assert!(
        warnings.iter().any(|w| w.contains("not attached") && w.contains("uplink") && w.contains("another")),
        "{warnings:?}"
    );
    let mut second = Daemon::prepare(&bed.host_a, &configuration(std::slice::from_ref(&attachment)));
    second.spawn();
    let port = adapter(&second);
    assert_eq!(port.adapter, "af_packet");
    assert!(port.adapter_reason.contains("another"), "{}", port.adapter_reason);
    let warnings = second.control().health().expect("health").warnings;
    assert!(warnings.iter().any(|w| w.contains("AF_XDP") && w.contains("AF_PACKET")), "{warnings:?}");
}

/// The testbed's own claim: what runs in a namespace sees that namespace only.
#[test]
fn within_is_inside() {
    let bed = Bed::new();
    let output = within(&bed.pod_b, || Command::new("ip").args(["-o", "addr"]).output()).expect("ip");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("10.244.1.5/24") && !text.contains("192.168.50"), "{text}");
}

/// A state file that cannot be read may hold attachments and restrictions: ktsnd does not start without it, and leaves it as it is.
#[test]
fn a_state_file_that_cannot_be_read() {
    let bed = Bed::new();
    let daemon = Daemon::prepare(&bed.host_a, &port("auto"));
    let file = daemon.run_dir().join("state.json");
    std::fs::create_dir_all(&file).expect("a directory in its place");
    let (code, log) = daemon.fails(&mut daemon.command());
    assert!(code == FAILED && log.contains(&format!("state file {}: ", file.display())), "{code:?} {log}");
    assert!(file.is_dir());
}
