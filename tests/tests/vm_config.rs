// SPDX-License-Identifier: Apache-2.0
//! `ktsn vm config`: libvirt's schema, the shell's linter and the real QEMU take what it prints.
//!
//! QEMU runs in a network namespace of the test's own, under TCG, with no program in the guest: the definition is judged, not a time. Go
//! types of KubeVirt read the files of `k8s/internal/vmconfig/testdata`, which this test holds to what is printed.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use ktsn_eventually::{eventually, try_eventually};
use ktsn_tests::cli::{err, ktsn, out, run};

const SCHEDULE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/schedules/three-classes.yaml");
const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../k8s/internal/vmconfig/testdata");
const LONG: Duration = Duration::from_secs(60);

/// What `ktsn vm config` prints.
fn config(format: &str, datapath: &str, more: &[&str]) -> String {
    let output = ktsn()
        .args(["vm", "config", "--schedule", SCHEDULE, "--format", format, "--datapath", datapath])
        .args(more)
        .output()
        .expect("ktsn starts");
    assert!(output.status.success(), "{}", err(&output));
    out(&output)
}

/// Each datapath with the options that it needs.
const DATAPATHS: [(&str, &[&str]); 7] = [
    ("tap-bridge", &[]),
    ("tap-xdp", &[]),
    ("tap-ovs", &[]),
    ("macvtap", &["--device", "eth1"]),
    ("ovs-afxdp", &[]),
    ("ovs-dpdk", &["--socket", "/run/a b&'c.sock"]),
    ("vfio", &["--device", "0000:03:10.1"]),
];
const FULL: [&str; 8] =
    ["--pin", "2-4", "--emulator-cpus", "0,1", "--disk", "/var/a b,<'&\">.qcow2", "--clock", "page"];

#[test]
fn libvirts_schema_takes_every_datapath() {
    let folder = tempfile::tempdir().unwrap();
    for (datapath, needed) in DATAPATHS {
        for more in [
            &FULL[..],
            &["--accelerator", "tcg", "--hugepages", "none"],
            &["--hugepages", "1G", "--priority", "0"],
        ] {
            let path = folder.path().join("domain.xml");
            std::fs::write(&path, config("libvirt", datapath, &[needed, more].concat())).unwrap();
            let checked =
                Command::new("virt-xml-validate").arg(&path).arg("domain").output().expect("libvirt-clients");
            assert!(checked.status.success(), "{datapath} {more:?}: {}{}", out(&checked), err(&checked));
        }
    }
    // The schema does judge: the same document with a word that libvirt does not know.
    let path = folder.path().join("domain.xml");
    let broken = config("libvirt", "tap-bridge", &[]).replace("name='vhost'", "name='vhorst'");
    std::fs::write(&path, broken).unwrap();
    let checked = Command::new("virt-xml-validate").arg(&path).arg("domain").output().unwrap();
    assert!(!checked.status.success());
}

#[test]
fn the_shells_linter_takes_every_datapath() {
    let folder = tempfile::tempdir().unwrap();
    let mut paths = Vec::new();
    for (datapath, needed) in DATAPATHS {
        for (at, more) in [&FULL[..], &["--accelerator", "tcg"]].into_iter().enumerate() {
            let path = folder.path().join(format!("{datapath}-{at}.sh"));
            std::fs::write(&path, config("qemu", datapath, &[needed, more].concat())).unwrap();
            paths.push(path);
        }
    }
    let checked = Command::new("shellcheck").args(&paths).output().expect("shellcheck");
    assert!(checked.status.success(), "{}", out(&checked));
}

#[test]
fn kubevirts_files_are_what_is_printed() {
    for (file, datapath, more) in [
        ("bridge.yaml", "tap-bridge", &["--disk", "plc", "--cpus", "4"][..]),
        ("macvtap.yaml", "macvtap", &["--network", "plant/tsn", "--clock", "none"]),
        ("sriov.yaml", "vfio", &["--hugepages", "1G", "--disk", "plc", "--name", "plc-7"]),
    ] {
        let path = Path::new(GOLDEN).join(file);
        // The schedule's file is not named in the text: its name is.
        let text = format!("# SPDX-License-Identifier: Apache-2.0\n{}", config("kubevirt", datapath, more));
        if std::env::var_os("KTSN_UPDATE").is_some() {
            std::fs::write(&path, &text).unwrap();
        }
        let kept = std::fs::read_to_string(&path).unwrap_or_default();
        assert_eq!(kept, text, "{file}: KTSN_UPDATE=1 writes it again");
    }
}

#[test]
fn bad_options_and_schedules_are_refused() {
    let refused = |arguments: &[&str]| {
        let output = run(&[&["vm", "config", "--schedule", SCHEDULE], arguments].concat());
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(out(&output).is_empty());
        err(&output)
    };
    let text = refused(&["--format", "kubevirt", "--datapath", "ovs-dpdk"]);
    assert!(text.contains("ktsn vm config: --datapath ovs-dpdk: expected tap-bridge"), "{text}");
    let text = refused(&["--format", "qemu", "--datapath", "tap-bridge", "--pin", "1-3"]);
    assert!(text.contains("--emulator-cpus"), "{text}");
    let text = refused(&["--format", "qemu", "--datapath", "tap-bridge", "--clock-page", "/x"]);
    assert!(text.contains("--clock-page /x: expected --clock page with it"), "{text}");
    let text = refused(&["--format", "qemu", "--datapath", "tap"]);
    assert!(text.contains("tap-bridge") && text.contains("'tap'"), "{text}");
    let faulty = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(faulty.path(), "name: x\nlink-sped: 1G\n").unwrap();
    let output = run(&[
        "vm",
        "config",
        "--format",
        "qemu",
        "--datapath",
        "tap-bridge",
        "--schedule",
        &faulty.path().to_string_lossy(),
    ]);
    assert_eq!(output.status.code(), Some(2));
    assert!(err(&output).contains(":2:1:"), "{}", err(&output));
}

/// A network namespace, mount namespace and process for a script; all of it ends with the value.
struct Place {
    shell: Child,
    folder: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let shell = Command::new("unshare")
            .args([
                "--net",
                "--mount",
                "sh",
                "-c",
                "mount -t sysfs sysfs /sys && ip link set lo up && echo ready && exec cat",
            ])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("unshare");
        let mut place = Self { shell, folder };
        let mut line = String::new();
        BufReader::new(place.shell.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        place
    }

    /// A command inside.
    fn command(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        let place = format!("/proc/{}/ns", self.shell.id());
        command.arg(format!("--net={place}/net")).arg(format!("--mount={place}/mnt")).arg(program);
        command.env("KTSN_VM_RUN", self.folder.path().join("run"));
        command
    }

    fn shell(&self, text: &str) {
        let output = self.command("sh").args(["-ec", text]).output().unwrap();
        assert!(output.status.success(), "{text}: {}", err(&output));
    }

    /// The script with these options, as a file.
    fn write(&self, datapath: &str, more: &[&str]) -> std::path::PathBuf {
        const TRIAL: [&str; 8] =
            ["--accelerator", "tcg", "--memory", "128", "--hugepages", "none", "--cpus", "1"];
        let path = self.folder.path().join("guest.sh");
        std::fs::write(&path, config("qemu", datapath, &[&TRIAL[..], more].concat())).unwrap();
        path
    }

    /// Runs a part of the script; its output, when it fails.
    fn run(&self, script: &Path, part: &str) -> Result<(), String> {
        let output = self.command("sh").arg(script).arg(part).output().unwrap();
        if output.status.success() { Ok(()) } else { Err(err(&output)) }
    }

    fn guest(&self) -> std::path::PathBuf {
        self.folder.path().join("run/tsn-guest")
    }

    fn pid(&self) -> u32 {
        std::fs::read_to_string(self.guest().join("qemu.pid")).unwrap().trim().parse().unwrap()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Ok(pid) = std::fs::read_to_string(self.guest().join("qemu.pid")) {
            let _ = Command::new("kill").args(["-KILL", pid.trim()]).status();
        }
        let _ = self.shell.kill();
        let _ = self.shell.wait();
    }
}

/// QEMU's answer to a command of its monitor.
fn ask(socket: &Path, command: &str) -> serde_json::Value {
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    writeln!(stream, r#"{{"execute":"qmp_capabilities"}} {{"execute":"{command}","id":7}}"#).unwrap();
    for line in BufReader::new(stream).lines() {
        let message: serde_json::Value = serde_json::from_str(&line.unwrap()).unwrap();
        if message["id"] == 7 {
            return message["return"].clone();
        }
    }
    panic!("QEMU closed its monitor");
}

/// The CPUs on which each thread of a process may run, by the thread's name.
fn threads(pid: u32) -> Vec<(String, String)> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    tasks
        .map(|task| {
            let read = |name: &str| {
                std::fs::read_to_string(task.as_ref().unwrap().path().join(name)).unwrap_or_default()
            };
            let status = read("status");
            let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
            (read("comm").trim().to_owned(), allowed.unwrap_or_default().trim().to_owned())
        })
        .collect()
}

#[test]
fn qemu_starts_with_a_tap_device_is_pinned_and_leaves_nothing() {
    let place = Place::new();
    place.shell("ip link add br0 type bridge && ip link set br0 up");
    let disk = place.folder.path().join("a b,c.img");
    std::fs::File::create(&disk).unwrap().set_len(1 << 20).unwrap();
    let page = place.folder.path().join("page,1");
    for file in [page.clone(), page.with_file_name("page,1.exchange")] {
        std::fs::File::create(file).unwrap().set_len(64 << 10).unwrap();
    }
    let (disk, page) = (disk.to_string_lossy().into_owned(), page.to_string_lossy().into_owned());
    let mut more = vec!["--disk", &disk, "--disk-format", "raw", "--clock", "page", "--clock-page", &page];
    more.extend(["--pin", "0", "--emulator-cpus", "1", "--priority", "0"]);
    let script = place.write("tap-bridge", &more);

    let failed = place.run(&script, "pin").unwrap_err();
    assert!(failed.contains("the guest does not run"), "{failed}");
    place.run(&script, "start").unwrap();
    assert_eq!(ask(&place.guest().join("qmp.sock"), "query-status")["status"], "running");
    let threads = threads(place.pid());
    let on = |name: &str| threads.iter().find(|(thread, _)| thread == name).map(|(_, cpus)| cpus.as_str());
    assert_eq!(
        (on("CPU 0/TCG"), on("qemu-system-x86"), on("IO io")),
        (Some("0"), Some("1"), Some("1")),
        "{threads:?}"
    );
    // Three queue pairs of one device are three openings of the tap device.
    let fds = std::fs::read_dir(format!("/proc/{}/fd", place.pid())).unwrap();
    let taps = fds.filter(|fd| {
        std::fs::read_link(fd.as_ref().unwrap().path()).is_ok_and(|path| path == Path::new("/dev/net/tun"))
    });
    assert_eq!(taps.count(), 3);
    place.shell("ip link show master br0 | grep -q tsn0");

    // doctor finds it among all guests of this machine.
    let output = run(&["doctor", "--vm=host", "--json"]);
    let findings: serde_json::Value = serde_json::from_str(&out(&output)).unwrap();
    let said = |name: &str| {
        let ours = format!("tsn-guest (process {}): ", place.pid());
        let finding = findings["findings"].as_array().unwrap().iter().find(|finding| finding["name"] == name);
        let value = finding.unwrap_or_else(|| panic!("no {name}"))["value"].as_str().unwrap().to_owned();
        value.split("; ").find_map(|part| part.strip_prefix(&ours).map(str::to_owned))
    };
    assert_eq!(said("vm_host_queues"), None);
    assert_eq!(said("vm_priority").as_deref(), Some("ordinary threads: CPU 0/TCG"));
    assert_eq!(said("vm_vhost").as_deref(), Some("no vhost (tap)"));
    assert!(said("vm_pinning").is_none_or(|problem| problem == "shares CPU 0 with another vCPU"));

    // A second start touches neither the guest nor its device.
    let failed = place.run(&script, "start").unwrap_err();
    assert!(failed.contains("the guest runs, or was not stopped"), "{failed}");
    assert_eq!(ask(&place.guest().join("qmp.sock"), "query-status")["status"], "running");
    // Another guest with the same device does not start, and leaves the device.
    let other = place.folder.path().join("other.sh");
    std::fs::write(&other, config("qemu", "tap-bridge", &["--name", "other", "--accelerator", "tcg"]))
        .unwrap();
    place.run(&other, "start").unwrap_err();
    place.shell("ip link show tsn0 >/dev/null");
    assert!(!place.folder.path().join("run/other").exists());

    let pid = place.pid();
    place.run(&script, "stop").unwrap();
    assert!(std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default().is_empty());
    assert!(!place.guest().exists());
    place.shell("! ip link show tsn0 2>/dev/null");
}

#[test]
fn qemu_starts_with_xdp_and_macvtap_devices() {
    let place = Place::new();
    place.shell("ip link add br0 type bridge && ip link set br0 up && ip link add eth1 type veth peer name far && ip link set eth1 up");
    for (datapath, more) in [("tap-xdp", &[][..]), ("macvtap", &["--device", "eth1"])] {
        let script = place.write(datapath, more);
        place.run(&script, "start").unwrap_or_else(|error| panic!("{datapath}: {error}"));
        assert_eq!(ask(&place.guest().join("qmp.sock"), "query-status")["status"], "running");
        place.run(&script, "stop").unwrap();
        place.shell("! ip link show tsn0 2>/dev/null");
    }
}

#[test]
fn a_qemu_that_does_not_start_leaves_nothing() {
    let place = Place::new();
    place.shell("ip link add br0 type bridge");
    let script = place.write("tap-bridge", &["--disk", "/nonexistent/disk.img"]);
    let failed = place.run(&script, "start").unwrap_err();
    assert!(failed.contains("/nonexistent/disk.img"), "{failed}");
    assert!(!place.guest().exists());
    place.shell("! ip link show tsn0 2>/dev/null");
}

/// A backend of vhost-user that connects to the guest's socket: DPDK's own.
#[test]
fn qemu_starts_with_vhost_user_once_the_switch_has_connected() {
    let place = Place::new();
    let socket = place.folder.path().join("sock/a b,'c.sock");
    let socket = socket.to_string_lossy().into_owned();
    let script = place.write("ovs-dpdk", &["--socket", &socket]);
    let mut starting = place.command("sh").arg(&script).arg("start").process_group(0).spawn().unwrap();
    let group = format!("-{}", starting.id());
    eventually("a socket", LONG, || {
        assert!(starting.try_wait().unwrap().is_none(), "no socket");
        Path::new(&socket).exists()
    });
    // DPDK takes no comma in the value of a device's argument.
    let plain = place.folder.path().join("s");
    std::os::unix::fs::symlink(&socket, &plain).unwrap();
    let device = format!("net_vhost0,iface={},client=1,queues=3", plain.display());
    let mut switch = Command::new("dpdk-testpmd")
        .args(["--no-pci", "--no-huge", "-m", "64", "--no-telemetry", "--no-shconf", "--lcores", "0@0,1@0"])
        .args(["--vdev", &device, "--", "-i", "--rxq=3", "--txq=3", "--total-num-mbufs=4096"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("dpdk-testpmd");
    let ended = try_eventually(LONG, || match starting.try_wait().unwrap() {
        None => switch.try_wait().unwrap().map(|_| None),
        status => Some(status),
    });
    let status = ended.flatten();
    if status.is_none() {
        // QEMU waits for its switch, and is not a daemon yet.
        let _ = Command::new("kill").args(["-KILL", "--", &group]).status();
        let _ = starting.wait();
    }
    let is_running = status.is_some_and(|status| status.success())
        && ask(&place.guest().join("qmp.sock"), "query-status")["status"] == "running";
    let stopped = place.run(&script, "stop");
    drop(switch.stdin.take());
    let _ = switch.kill();
    let _ = switch.wait();
    assert!(is_running && stopped.is_ok(), "{status:?} {stopped:?}");
    assert!(!Path::new(&socket).exists());
}
