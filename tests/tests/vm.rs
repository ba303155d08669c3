// SPDX-License-Identifier: Apache-2.0
//! `ktsn vm`: guests boot, run a program, give back what it wrote and how it ended, and leave nothing.
//!
//! The image lies in the user's cache (`make setup` fetches its packages), the runs' records in a cache of the test's own, which links to it.
//! Nothing here judges a time.

use std::fmt::Write as _;
use std::io::Read as _;
use std::net::TcpListener;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use ktsn_tests::cli::{err, ktsn, out};
use ktsn_tests::faults::eventually;

#[path = "vm_bench.rs"]
mod bench;
#[path = "vm_clock.rs"]
mod clock;
#[path = "vm_datapaths.rs"]
mod datapaths;
#[path = "vm_guest.rs"]
mod guest;
#[path = "vm_network.rs"]
mod network;
#[path = "vm_rt.rs"]
mod rt;
#[path = "vm_uml.rs"]
mod uml;

const LONG: Duration = Duration::from_secs(60);

/// The image of QEMU's guests.
fn image() -> Result<&'static Path, &'static str> {
    image_of("qemu")
}

/// The image's directory, or why there is none here.
fn image_of(kind: &str) -> Result<&'static Path, &'static str> {
    static IMAGES: [OnceLock<Result<PathBuf, String>>; 2] = [OnceLock::new(), OnceLock::new()];
    let made = IMAGES[usize::from(kind == "uml")].get_or_init(|| {
        let output = ktsn().args(["vm", "image", "--json", "--kind", kind]).output().expect("ktsn starts");
        match output.status.code() {
            Some(0) => {
                let image: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
                Ok(image["directory"].as_str().expect("a path").into())
            }
            // Only what cannot be fetched is a reason to skip.
            Some(3) if err(&output).contains("cannot be fetched") => Err(err(&output)),
            _ => panic!("{}", err(&output)),
        }
    });
    made.as_deref().map_err(String::as_str)
}

/// A cache of the test's own with the same packages, and the image unless the test makes its own. One exists at a time: a guest under TCG
/// keeps a CPU busy.
struct Cache(tempfile::TempDir, #[allow(dead_code)] MutexGuard<'static, ()>);

impl Cache {
    fn new(image: &Path, has_image: bool) -> Self {
        static ONE: Mutex<()> = Mutex::new(());
        let one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        let cache = Self(tempfile::tempdir().unwrap(), one);
        let from = image.ancestors().nth(2).unwrap();
        for name in ["packages", "packages-uml", "images", "images-uml"] {
            if from.join(name).exists() && (has_image || name.starts_with("packages")) {
                symlink(from.join(name), cache.0.path().join(name)).unwrap();
            }
        }
        cache
    }

    /// `ktsn vm` with this cache.
    fn vm(&self, arguments: &[&str]) -> Command {
        let mut command = ktsn();
        command.arg("vm").args(arguments).env("KTSN_VM_CACHE", self.0.path());
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.vm(&["run", "--accelerator", "tcg"]).args(arguments).output().expect("ktsn starts")
    }

    /// The records of runs.
    fn records(&self) -> usize {
        std::fs::read_dir(self.0.path().join("runs")).map_or(0, Iterator::count)
    }
}

/// The processes whose parent is this one, by number.
fn children(pid: u32) -> Vec<u32> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    text.split_whitespace().map(|number| number.parse().unwrap()).collect()
}

/// Waits until `ktsn` has started its QEMU.
fn qemu_of(ktsn: &Child) -> u32 {
    eventually("QEMU starts", LONG, || <[u32; 1]>::try_from(children(ktsn.id())).ok())[0]
}

fn wait_until_gone(pid: u32) {
    let path = format!("/proc/{pid}");
    eventually(format_args!("process {pid} ends"), LONG, || !Path::new(&path).exists());
}

fn skip(reason: &str) {
    println!("SKIP guest_packages_missing: {}", reason.lines().next().unwrap_or_default());
}

#[test]
fn a_program_runs_in_a_guest_and_nothing_is_left() {
    let image = match image() {
        Ok(image) => image,
        Err(reason) => return skip(reason),
    };
    let cache = Cache::new(image, true);
    let json = cache.0.path().join("run.json");
    let script = "uname -r; tc -V; chronyd -v; cyclictest -q -l 1 >/dev/null && echo ran; ktsn run -- sh -c 'echo $LD_PRELOAD'; \
                  printf 'a\\0b' >&2; exit 7";
    let output = cache.run(&["--json", json.to_str().unwrap(), "--", "sh", "-c", script]);
    assert_eq!(output.status.code(), Some(7), "{output:?}");
    let said = out(&output);
    let lines: Vec<&str> = said.lines().collect();
    assert!(matches!(lines[..], [_, _, _, "ran", "/usr/lib/ktsn/libktsn.so"]), "{said}{}", err(&output));
    assert!(lines[1].starts_with("tc utility") && lines[2].contains("chrony"), "{said}");
    let end = err(&output);
    assert!(
        end.starts_with("a\0bguest: qemu tcg (--accelerator tcg)") && end.contains("exit status 7"),
        "{end}"
    );
    let report: serde_json::Value = serde_json::from_slice(&std::fs::read(json).unwrap()).unwrap();
    assert_eq!((&report["accelerator"], &report["kernel"]), (&"tcg".into(), &lines[0].into()), "{report}");
    assert_eq!((&report["exit_status"], &report["signal"]), (&7.into(), &serde_json::Value::Null));
    assert_eq!(cache.records(), 0);
}

#[test]
fn two_guests_run_side_by_side_with_this_machines_files() {
    let image = match image() {
        Ok(image) => image,
        Err(reason) => return skip(reason),
    };
    let cache = Cache::new(image, true);
    // Unmodified programs with their libraries and directory. What they write does not come back.
    let here = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    std::fs::write(here.path().join("input"), "of the host").unwrap();
    let host = TcpListener::bind("127.0.0.1:0").unwrap();
    let program = format!(
        "import os, socket; socket.create_connection(('10.0.2.2', {})).sendall(b'hello'); print(open('input').read()); \
         open('output', 'w').write('x'); print(os.listdir('.'))",
        host.local_addr().unwrap().port()
    );
    let mut first = cache.vm(&["run", "--accelerator", "tcg", "--host-files", "--datapath", "user"]);
    first.args(["--", "python3", "-c", &program]).current_dir(here.path());
    let first = first.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // A program that sets up its device, floods both outputs, and is ended by a signal.
    let script = "set -e; ethtool -L eth0 combined 4; ip link set eth0 up; \
        tc qdisc add dev eth0 root handle 100: mqprio num_tc 4 map 0 1 2 3 0 0 0 0 0 0 0 0 0 0 0 0 queues 1@0 1@1 1@2 1@3 hw 0; \
        tc qdisc add dev eth0 parent 100:4 etf clockid CLOCK_TAI delta 500000; tc qdisc show dev eth0 | grep -c etf; \
        yes | head -c 3000000; yes | head -c 100000 >&2; kill -9 $$";
    let second = cache.run(&["--quiet", "--datapath", "tap", "--queues", "4", "--", "sh", "-c", script]);
    assert_eq!(second.status.code(), Some(128 + 9), "{}", err(&second));
    assert_eq!((second.stdout.len(), second.stderr.len()), (3_000_002, 100_000));
    assert!(second.stdout.starts_with(b"1\n"));
    let first = first.wait_with_output().unwrap();
    assert_eq!(first.status.code(), Some(0), "{}", err(&first));
    let said = out(&first);
    assert!(said.starts_with("of the host\n") && said.contains("'output'"), "{said}");
    assert!(!here.path().join("output").exists());
    let mut hello = [0; 5];
    host.accept().unwrap().0.read_exact(&mut hello).unwrap();
    assert_eq!(&hello, b"hello");
    assert_eq!(cache.records(), 0);
}

#[test]
fn a_guest_that_cannot_run_the_program_says_why() {
    let image = match image() {
        Ok(image) => image,
        Err(reason) => return skip(reason),
    };
    let cache = Cache::new(image, true);
    let output = cache.run(&["--", "no-such-program"]);
    assert_eq!(output.status.code(), Some(127), "{output:?}");
    assert!(
        err(&output).contains("no-such-program cannot be started in the guest: No such file"),
        "{}",
        err(&output)
    );
    // A guest that does not boot in time shows its console, one that ends does so at once.
    let output = cache.run(&["--boot-timeout", "1ms", "--", "true"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(err(&output).contains("has not booted within 1ms"), "{}", err(&output));
    let output = cache.run(&["--", "sh", "-c", "echo b >/proc/sysrq-trigger; sleep 60"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(err(&output).contains("ended before its program did"), "{}", err(&output));
    let output = cache.run(&["--timeout", "1s", "--", "sleep", "600"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(err(&output).contains("did not end within 1s"), "{}", err(&output));
    let output = cache.run(&["--queues", "2", "--datapath", "user", "--", "true"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    // An empty search path has no QEMU.
    let output =
        cache.vm(&["run", "--accelerator", "tcg", "--", "true"]).env("PATH", "/nowhere").output().unwrap();
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    assert!(err(&output).contains("apt-get install qemu-system-x86"), "{}", err(&output));
    assert_eq!(cache.records(), 0);
}

#[test]
fn a_run_that_is_stopped_or_killed_leaves_no_guest() {
    let image = match image() {
        Ok(image) => image,
        Err(reason) => return skip(reason),
    };
    let cache = Cache::new(image, true);
    for signal in ["TERM", "INT", "KILL"] {
        let mut run = Command::new("env");
        run.args(["--default-signal=INT"]).arg(ktsn_tests::cli::folder().join("ktsn"));
        run.args(["vm", "run", "--accelerator", "tcg", "--", "sleep", "600"])
            .env("KTSN_VM_CACHE", cache.0.path());
        run.env("KTSN_LIB", ktsn_tests::hook::library());
        let run = run.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let qemu = qemu_of(&run);
        assert_eq!(cache.records(), 1, "SIG{signal}");
        let kill = format!("kill -{signal} {}", run.id());
        assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
        let output = run.wait_with_output().unwrap();
        wait_until_gone(qemu);
        let is_killed = signal == "KILL";
        assert_eq!(err(&output).contains("stopped by a signal"), !is_killed, "SIG{signal}: {}", err(&output));
        assert_eq!(cache.records(), usize::from(is_killed), "SIG{signal}");
    }
    let cleaned = cache.vm(&["clean"]).output().unwrap();
    assert_eq!(out(&cleaned), "killed runs: 1 removed, 0 guests ended\n", "{}", err(&cleaned));
    assert_eq!(cache.records(), 0);
}

/// The same packages give the same octets; a damaged image is made again; two that make it do not disturb each other.
#[test]
fn an_image_is_made_of_its_packages_alone() {
    let image = match image() {
        Ok(image) => image,
        Err(reason) => return skip(reason),
    };
    let cache = Cache::new(image, false);
    let make =
        || cache.vm(&["image", "--json"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let both = [make(), make()].map(|one| one.wait_with_output().unwrap());
    for output in &both {
        assert!(output.status.success(), "{}", err(output));
        assert_eq!(output.stdout, both[0].stdout);
    }
    let made = cache.0.path().join("images").join(image.file_name().unwrap());
    let mut differences = String::new();
    for name in ["kernel", "files.cpio", "image.json"] {
        let [ours, before] = [&made, image].map(|directory| std::fs::read(directory.join(name)).unwrap());
        if ours != before {
            writeln!(differences, "{name}: {} and {} octets", ours.len(), before.len()).unwrap();
        }
    }
    assert_eq!(differences, "");
    let kernel = made.join("kernel");
    let whole = std::fs::read(&kernel).unwrap();
    std::fs::write(&kernel, &whole[..whole.len() / 2]).unwrap();
    let output = cache.vm(&["image"]).output().unwrap();
    assert!(output.status.success(), "{}", err(&output));
    assert!(std::fs::read(&kernel).unwrap() == whole, "the damaged kernel was not made again");
    assert_eq!(std::fs::read_dir(cache.0.path().join("images")).unwrap().count(), 1);
    // A disk that is full is said, and nothing half made is left.
    let full = tempfile::tempdir().unwrap();
    let script = format!(
        "mount -t tmpfs -o size=30m,mode=755 tmpfs $KTSN_VM_CACHE && ln -s {} $KTSN_VM_CACHE/packages && \"$@\"; status=$?; \
         ls -A $KTSN_VM_CACHE/images; exit $status",
        image.ancestors().nth(2).unwrap().join("packages").display()
    );
    let ktsn = ktsn_tests::cli::folder().join("ktsn");
    let mut within = Command::new("unshare");
    within.args(["--mount", "sh", "-c", &script, "sh"]).arg(ktsn).args(["vm", "image"]);
    let output = within.env("KTSN_VM_CACHE", full.path()).output().unwrap();
    assert_eq!((output.status.code(), out(&output).as_str()), (Some(1), ""), "{}", err(&output));
    assert!(err(&output).contains("No space left on device"), "{}", err(&output));
}
