// SPDX-License-Identifier: Apache-2.0
//! Guests of User-mode Linux: what a program sees, how a guest ends in every way, the network, its own schedule, damaged images, and what
//! such a guest cannot have.
//!
//! No time is judged.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use ktsn_eventually::eventually;
use ktsn_tests::cli::{err, out};
use serde_json::Value;

use super::network::{Space, ip, wait_ready};
use super::{Cache, LONG, children, image_of, skip, wait_until_gone};

/// Runs a program in a guest.
fn run(cache: &Cache, arguments: &[&str]) -> Output {
    cache.vm(&["run", "--kind", "uml"]).args(arguments).output().expect("ktsn starts")
}

/// A process and all that descend from it.
fn family(first: u32) -> Vec<u32> {
    let mut family = vec![first];
    let mut at = 0;
    while let Some(&pid) = family.get(at) {
        family.extend(children(pid));
        at += 1;
    }
    family
}

/// All processes of a guest that has booted.
fn processes_of(ktsn: &Child) -> Vec<u32> {
    eventually("a guest runs", LONG, || {
        let [first] = children(ktsn.id())[..] else { return None };
        // The two that wait, the kernel with its two helpers, a process of the guest.
        Some(family(first)).filter(|family| family.len() > 5)
    })
}

#[test]
fn a_program_runs_in_user_mode_linux_and_nothing_is_left() {
    let image = match image_of("uml") {
        Ok(image) => image,
        Err(reason) => return skip(reason),
    };
    let cache = Cache::new(image, true);
    let json = cache.0.path().join("run.json");
    let script = "uname -r; nproc; tc -V; cat /proc/cmdline | grep -c ' -- '; ktsn run -- sh -c 'echo $LD_PRELOAD'; yes | head -c 300000; \
                  printf 'a\\0\\r\\n\\004b' >&2; exit 7";
    let output = run(&cache, &["--json", json.to_str().unwrap(), "--", "sh", "-c", script]);
    assert_eq!(output.status.code(), Some(7), "{output:?}");
    let said = out(&output);
    let lines: Vec<&str> = said.lines().collect();
    assert!(matches!(lines[..5], [_, "1", _, "1", "/usr/lib/ktsn/libktsn.so"]), "{said}{}", err(&output));
    assert!(lines[2].starts_with("tc utility") && said.ends_with("y\ny\n"), "{said}");
    assert_eq!(said.len() - lines[..5].join("\n").len() - 1, 300_000);
    // Every octet comes as it was written.
    let end = err(&output);
    assert!(end.starts_with("a\0\r\n\u{4}bguest: uml, kernel 6.") && end.contains("exit status 7"), "{end}");
    let report: Value = serde_json::from_slice(&std::fs::read(json).unwrap()).unwrap();
    assert_eq!((&report["kind"], &report["accelerator"]), (&"uml".into(), &"uml".into()), "{report}");
    assert_eq!((&report["kernel"], &report["exit_status"]), (&lines[0].into(), &7.into()), "{report}");

    // This machine's files, which nothing changes: not the program, and not one that reaches below what the guest changes.
    let here = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    std::fs::write(here.path().join("input"), "of the host").unwrap();
    let program = format!(
        "import os, subprocess; print(open('input').read()); open('output', 'w').write('x'); print(os.listdir('.')); \
         os.makedirs('/run/under'); subprocess.check_call(['mount', '-t', 'hostfs', 'none', '/run/under', '-o', '{}']); \
         open('/run/under/input', 'w')",
        here.path().display()
    );
    let mut host_files = cache.vm(&["run", "--kind", "uml", "--host-files", "--", "python3", "-c", &program]);
    let output = host_files.current_dir(here.path()).output().unwrap();
    let said = out(&output);
    assert!(said.starts_with("of the host\n") && said.contains("'output'"), "{said}{}", err(&output));
    assert!(err(&output).contains("Read-only file system"), "{}", err(&output));
    assert_eq!(std::fs::read_to_string(here.path().join("input")).unwrap(), "of the host");
    assert!(!here.path().join("output").exists());
    assert_eq!(cache.records(), 0);
}

#[test]
fn a_guest_of_user_mode_linux_ends_in_every_way() {
    let image = match image_of("uml") {
        Ok(image) => image,
        Err(reason) => return skip(reason),
    };
    let cache = Cache::new(image, true);
    for (arguments, words) in [
        (&["--boot-timeout", "1ms", "--", "true"][..], "(uml) has not booted within 1ms"),
        (&["--timeout", "500ms", "--", "sleep", "600"], "did not end within 500ms"),
        // A guest that starts again, and a kernel that panics: each is an end.
        (&["--", "sh", "-c", "echo b >/proc/sysrq-trigger; sleep 60"], "ended before its program did"),
        (&["--", "sh", "-c", "echo c >/proc/sysrq-trigger; sleep 60"], "ended before its program did"),
    ] {
        let output = run(&cache, arguments);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(err(&output).contains(words), "{arguments:?}: {}", err(&output));
        assert_eq!(cache.records(), 0, "{arguments:?}");
    }
    // Two at once; one is stopped, then the other one killed.
    let start = || {
        let mut run = cache.vm(&["run", "--kind", "uml", "--", "sleep", "600"]);
        run.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let both = [start(), start()];
    let groups = [processes_of(&both[0]), processes_of(&both[1])];
    assert_eq!(cache.records(), 2);
    for ((run, group), signal) in both.into_iter().zip(groups).zip(["TERM", "KILL"]) {
        let kill = format!("kill -{signal} {}", run.id());
        assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
        let output = run.wait_with_output().unwrap();
        group.into_iter().for_each(wait_until_gone);
        let is_killed = signal == "KILL";
        assert_eq!(err(&output).contains("stopped by a signal"), !is_killed, "SIG{signal}: {}", err(&output));
        assert_eq!(cache.records(), 1, "SIG{signal}");
    }
    let cleaned = cache.vm(&["clean"]).output().unwrap();
    assert_eq!(out(&cleaned), "killed runs: 1 removed, 0 guests ended\n", "{}", err(&cleaned));
    assert_eq!(cache.records(), 0);
}

/// What a guest cannot have is refused before anything is made.
#[test]
fn what_user_mode_linux_cannot_have_is_refused_by_its_option() {
    let directory = tempfile::tempdir().unwrap();
    for (option, words) in [
        (["--cpus", "2"], "its kernel runs on one CPU"),
        (["--clock", "vptp"], "no shared memory"),
        (["--clock", "kvm"], "not run under KVM"),
        (["--datapath", "user"], "that network is QEMU's"),
        (["--datapath", "vhost-user:/run/s"], "no virtio device"),
        (["--accelerator", "kvm"], "for guests of the kind qemu only"),
        (["--accelerator", "tcg"], "for guests of the kind qemu only"),
    ] {
        let mut run = ktsn_tests::cli::ktsn();
        run.args(["vm", "run", "--kind", "uml"]).args(option).args(["--", "true"]);
        let output = run.env("KTSN_VM_CACHE", directory.path().join("cache")).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        let said = err(&output);
        assert!(said.contains(&option.join(" ")) && said.contains(words), "{option:?}: {said}");
    }
    assert!(!directory.path().join("cache").exists());
}

#[test]
fn guests_of_user_mode_linux_hear_each_other_on_a_bridge() {
    let image = match image_of("uml") {
        Ok(image) => image,
        Err(reason) => return skip(reason),
    };
    let (cache, space) = (Cache::new(image, true), Space::new());
    let datapath = format!("bridge:br0@{}", space.0);
    let guest = |address: &str, program: &[&str]| {
        let mut run = cache.vm(&["run", "--kind", "uml", "--datapath", &datapath]);
        run.args(["--address", address, "--pin", "0", "--"]).args(program);
        run.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let listen = ["ktsn", "listen", "[::]:5000", "--ready-fd", "1", "--count", "200", "--timeout", "30s"];
    let mut far = guest("fd00::3/64", &listen);
    wait_ready(&mut far);
    for pid in processes_of(&far) {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        assert!(status.is_empty() || status.contains("Cpus_allowed_list:\t0\n"), "{status}");
    }
    let talk = ["ktsn", "talk", "[fd00::3]:5000", "--count", "200", "--period", "5ms", "--mode", "sleep"];
    let near = guest("fd00::2/64", &talk).wait_with_output().unwrap();
    assert!(near.status.success() && out(&near).contains("sent 200 of 200"), "{}{}", out(&near), err(&near));
    let far = far.wait_with_output().unwrap();
    assert!(out(&far).starts_with("received 200 datagrams, 0 duplicates, 0 reordered"), "{far:?}");
    assert!(err(&far).contains(&format!("datapath {datapath} with 1 queue(s)")), "{}", err(&far));
    assert!(!ip(&format!("-n {} -o link show", space.0)).contains("ktsn"));
    assert_eq!(cache.records(), 0);
}

/// Modes on a veth pair that the guest makes; and on the guest's own device, which has one queue.
const SCRIPT: &str = r#"
ip link add tsn0 numtxqueues 4 numrxqueues 4 type veth peer name tsn1 numtxqueues 4 numrxqueues 4
ip link set tsn1 up
setup() { ktsn guest setup --json --verify 40 --period 20ms --lead 15ms --delta 4ms "$@"; }
note etf setup --device tsn0 --mode etf
note taprio setup --device tsn0 --mode taprio --schedule /tmp/s.yaml
note undo ktsn guest undo --device tsn0
note one-queue setup --mode taprio --schedule /tmp/s.yaml
note no-speed setup --mode ktsnd --schedule /tmp/s.yaml
note ktsnd setup --mode ktsnd --attach overrun_limit=15ms
note ktsnd-undo ktsn guest undo
"#;

#[test]
fn a_guest_of_user_mode_linux_has_schedules_on_a_veth_pair() {
    let image = match image_of("uml") {
        Ok(image) => image,
        Err(reason) => return skip(reason),
    };
    let cache = Cache::new(image, true);
    let output = run(
        &cache,
        &["--datapath", "tap", "--timeout", "60s", "--", "sh", "-c", &[super::guest::BEGIN, SCRIPT].concat()],
    );
    println!("{}{}", out(&output), err(&output));
    let parts = super::guest::parts(&out(&output));
    let part =
        |name: &str| parts.get(name).unwrap_or_else(|| panic!("no {name}: {}{}", out(&output), err(&output)));
    for (name, gates_count) in [("etf", true), ("taprio", true), ("ktsnd", false)] {
        let (status, text) = part(name);
        assert_eq!(*status, 0, "{name}: {text}");
        let from = text.find('{').unwrap_or_else(|| panic!("{name}: {text}"));
        let document = serde_json::from_str(&text[from..]).unwrap();
        super::guest::assert_checked(name, &document, gates_count);
    }
    for name in ["undo", "ktsnd-undo"] {
        assert!(part(name).0 == 0 && part(name).1.contains("was taken back"), "{name}: {}", part(name).1);
    }
    let (status, text) = part("one-queue");
    assert!(*status == 3 && text.contains("device eth0: 1 queue pair(s); expected 3"), "{text}");
    assert!(text.contains("type veth peer name tsn1"), "{text}");
    let (status, text) = part("no-speed");
    assert!(*status == 3 && text.contains("eth0: it tells no speed"), "{text}");
}

/// A damaged kernel is made again, and a full disk leaves nothing half made.
#[test]
fn an_image_of_user_mode_linux_is_checked_and_made_of_its_packages() {
    let image: &Path = match image_of("uml") {
        Ok(image) => image,
        Err(reason) => return skip(reason),
    };
    let cache = Cache::new(image, false);
    let full = "mkdir -p $KTSN_VM_CACHE/images-uml && mount -t tmpfs -o size=30m,mode=755 tmpfs $KTSN_VM_CACHE/images-uml && \
                \"$@\"; status=$?; ls -A $KTSN_VM_CACHE/images-uml; exit $status";
    let mut within = Command::new("unshare");
    within.args(["--mount", "sh", "-c", full, "sh"]).arg(ktsn_tests::cli::folder().join("ktsn"));
    within.args(["vm", "image", "--kind", "uml"]).env("KTSN_VM_CACHE", cache.0.path());
    let output = within.output().unwrap();
    assert_eq!((output.status.code(), out(&output).as_str()), (Some(1), ""), "{}", err(&output));
    assert!(err(&output).contains("No space left on device"), "{}", err(&output));
    let make = || cache.vm(&["image", "--kind", "uml"]).output().unwrap();
    assert!(make().status.success());
    let made: PathBuf = cache.0.path().join("images-uml").join(image.file_name().unwrap());
    for name in ["kernel", "files.cpio", "image.json"] {
        let [ours, before] = [&made, image].map(|directory| std::fs::read(directory.join(name)).unwrap());
        assert!(ours == before, "{name}: {} and {} octets", ours.len(), before.len());
    }
    let kernel = made.join("kernel");
    let whole = std::fs::read(&kernel).unwrap();
    std::fs::write(&kernel, &whole[..whole.len() / 2]).unwrap();
    // A run finds the damage as well.
    let output = run(&cache, &["--quiet", "--", "true"]);
    assert!(output.status.success(), "{}", err(&output));
    assert!(std::fs::read(&kernel).unwrap() == whole, "the damaged kernel was not made again");
}
