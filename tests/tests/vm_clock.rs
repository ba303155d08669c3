// SPDX-License-Identifier: Apache-2.0
//! `ktsn vm run --clock`: the guest's clock follows this machine's.
//!
//! The truth is QEMU's own: under TCG the guest's counter is the host's and a constant, `cpu_ticks_offset` of QEMU, which is read from QEMU's
//! memory. The follower does not know it.

use std::cell::RefCell;
use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use ktsn_clock::kernel::{Pair, pair};
use ktsn_eventually::eventually;
use ktsn_lab::vm::qmp::Monitor;
use ktsn_lab::vm::truth::counter_offsets;
use ktsn_tests::cli::{err, ktsn, out};
use serde_json::{Value, json};

use super::network::{Space, ip};
use super::{Cache, LONG, image, qemu_of, skip};

#[test]
fn a_guests_clock_follows_its_hosts() {
    let image = match image() {
        Ok(image) => image,
        Err(reason) => return skip(reason),
    };
    let cache = Cache::new(image, true);
    let json = cache.0.path().join("run.json");
    let script = "ktsn clock status --json; chronyc -n sources | grep VPTP; sleep 2";
    let mut run =
        cache.vm(&["run", "--accelerator", "tcg", "--clock", "vptp", "--json", json.to_str().unwrap()]);
    let run = run.args(["--", "sh", "-c", script]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut run = run.spawn().unwrap();
    let qemu = qemu_of(&run);
    let mut lines = BufReader::new(run.stdout.take().unwrap()).lines();
    let status = lines.next().map(Result::unwrap).unwrap_or_default();
    let Ok(status) = serde_json::from_str::<serde_json::Value>(&status) else {
        panic!("{status:?} {}", err(&run.wait_with_output().unwrap()));
    };
    assert_eq!((&status["state"], &status["discipline"]), (&"following".into(), &"self".into()), "{status}");
    // How far the line between the counters is from QEMU's constant.
    let counter = |name: &str| status["counter"][name].as_u64().unwrap();
    let offset = i64::try_from(i128::from(counter("guest")) - i128::from(counter("host"))).unwrap();
    let truth = counter_offsets(qemu, offset, 300_000).unwrap();
    assert!(!truth.is_empty(), "QEMU has no such constant: {status}");
    let error = truth.iter().map(|truth| truth.abs_diff(offset)).min().unwrap() as f64;
    let bound = status["counter"]["error_ticks"].as_f64().unwrap();
    println!("the line is {error} ticks off QEMU's constant, bound {bound}: {status}");
    assert!(error <= bound, "{error} ticks, bound {bound}, of {truth:?}: {status}");
    assert_eq!(status["counter"]["rate"], 1.0, "{status}");
    assert!(lines.next().is_some_and(|line| line.unwrap().contains("VPTP")));
    let output = run.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    assert!(err(&output).contains(", clock vptp following, "), "{}", err(&output));
    let report: serde_json::Value = serde_json::from_slice(&std::fs::read(json).unwrap()).unwrap();
    assert_eq!(
        (&report["clock"], &report["clock_state"]["state"]),
        (&"vptp".into(), &"following".into()),
        "{report}"
    );
    // What the hypervisor does not offer is said, before anything boots.
    let output = cache.run(&["--clock", "kvm", "--", "true"]);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    assert!(err(&output).contains("--clock kvm needs a guest under KVM"), "{}", err(&output));
}

/// What a guest's clock may be off.
const NEAR_NS: i64 = 10_000;
/// What the guest's clock is off at first, at most, in ticks: to find QEMU's constant.
const ABOUT: u64 = 30_000_000;

/// A sample of `ktsn clock sample`: the guest's counter and CLOCK_REALTIME.
fn sample(line: &str) -> Option<(u64, u64)> {
    let fields: Vec<u64> = line.split(',').map(|field| field.parse().ok()).collect::<Option<_>>()?;
    (fields.len() == 5).then(|| (fields[0], fields[2]))
}

/// The host's clock beside its counter, read all the time.
struct Host {
    readings: Arc<Mutex<Vec<Pair>>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Host {
    fn new() -> Self {
        let (readings, stop) = (Arc::new(Mutex::new(vec![pair(3)])), Arc::new(AtomicBool::new(false)));
        let (to, until) = (Arc::clone(&readings), Arc::clone(&stop));
        let thread = std::thread::spawn(move || {
            while !until.load(Ordering::Relaxed) {
                to.lock().unwrap().push(pair(3));
                std::thread::sleep(Duration::from_millis(10));
            }
        });
        Self { readings, stop, thread: Some(thread) }
    }

    /// The host's time at a value of its counter, beside a given time: the difference in ns. `None`: it was not read there.
    fn error(&self, counter: i128, time: u64) -> Option<i64> {
        let readings = self.readings.lock().unwrap();
        let after = readings.partition_point(|pair| i128::from(pair.counter) <= counter);
        let (from, to) = (readings.get(after.checked_sub(1)?)?, readings.get(after)?);
        let share = (counter - i128::from(from.counter)) as f64 / (to.counter - from.counter) as f64;
        let passed = to.time.since(from.time).get() as f64 * share;
        Some(time.cast_signed() - from.time.0.cast_signed() - passed as i64)
    }

    /// The counter when the host's clock showed this, about.
    fn counter_at(&self, time: u64) -> i128 {
        let readings = self.readings.lock().unwrap();
        let (from, to) = (readings.first().unwrap(), readings.last().unwrap());
        let rate = (to.counter - from.counter) as f64 / to.time.since(from.time).get() as f64;
        i128::from(from.counter) + ((time.cast_signed() - from.time.0.cast_signed()) as f64 * rate) as i128
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// A QEMU that is ended with the test.
struct Qemu(Child);

impl Drop for Qemu {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Waits until the 25 newest of `lines` are samples near to the truth, then gives QEMU's constant.
fn wait_until_near(host: &Host, qemu: u32, lines: &dyn Fn() -> Vec<String>) -> i64 {
    let last = RefCell::new(String::new());
    let what = std::fmt::from_fn(|f| {
        let newest = lines().into_iter().rev().take(60).collect::<Vec<_>>();
        write!(f, "the guest's clock comes back, of which errors in ns are {} in {newest:?}", last.borrow())
    });
    eventually(what, LONG, || {
        let samples: Vec<_> = lines().iter().filter_map(|line| sample(line)).collect();
        let newest = samples.len().checked_sub(25).map(|from| &samples[from..])?;
        let (counter, time) = newest[0];
        let about = i64::try_from(i128::from(counter) - host.counter_at(time)).unwrap();
        let [offset] = counter_offsets(qemu, about, ABOUT).unwrap()[..] else { return None };
        let error =
            |&(counter, time): &(u64, u64)| host.error(i128::from(counter) - i128::from(offset), time);
        let errors: Vec<_> = newest.iter().map(error).collect();
        if errors.iter().all(|error| error.is_some_and(|error| error.abs() <= NEAR_NS)) {
            println!("errors in ns: {errors:?}");
            return Some(offset);
        }
        last.replace(format!("{errors:?}"));
        None
    })
}

/// Ends the migration out of the first QEMU, and lets a second one go on with the same devices.
fn move_to_another_qemu(qemu: u32, from: &mut Monitor, directory: &Path) -> (Qemu, Monitor) {
    let moved = directory.join("moved");
    from.execute("migrate-set-parameters", &json!({ "max-bandwidth": 8_000_000_000_u64 })).unwrap();
    from.execute("migrate", &json!({ "uri": format!("exec:cat >{}", moved.display()) })).unwrap();
    wait_for_state(from, "query-migrate", "completed");
    // The words of the first one; what it inherited is open in it still.
    let line = std::fs::read(format!("/proc/{qemu}/cmdline")).unwrap();
    let line = String::from_utf8(line).unwrap();
    let mut words: Vec<String> = line.split_terminator('\0').map(str::to_owned).collect();
    let second = directory.join("second.qmp");
    for word in &mut words {
        // QEMU writes the page once, when the guest arrives.
        *word = word.replace("/proc/self/fd/", &format!("/proc/{qemu}/fd/")).replace(",readonly=on", "");
        if word.starts_with("socket,id=run,") {
            *word = format!("file,id=run,path={}", directory.join("said").display());
        } else if word.starts_with("socket,id=events,") {
            "null,id=events".clone_into(word);
        } else if word.starts_with("socket,id=monitor,") {
            *word = format!("socket,id=monitor,path={},server=on,wait=off", second.display());
        }
    }
    let mut command = Command::new(&words[0]);
    command
        .args(&words[1..])
        .arg("-incoming")
        .arg(format!("exec:cat {}", moved.display()))
        .stdin(Stdio::null());
    let log = File::create(directory.join("second.log")).unwrap();
    let started = Qemu(command.stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap());
    let mut to = Monitor::connect(&second, LONG).unwrap_or_else(|error| {
        panic!("{error} {}", std::fs::read_to_string(directory.join("second.log")).unwrap_or_default())
    });
    wait_for_state(&mut to, "query-status", "running");
    (started, to)
}

fn wait_for_state(monitor: &mut Monitor, command: &str, state: &str) {
    eventually(format_args!("{command} says {state}"), LONG, || {
        let answer = monitor.execute(command, &Value::Null).unwrap();
        assert_ne!(answer["status"], "failed", "{command}: {answer}");
        answer["status"] == state
    });
}

/// The time never went back, and whenever it jumped, a step was said.
fn check_jumps(lines: &[String], host: &Host, status: &Value) {
    let samples: Vec<_> = lines.iter().filter_map(|line| sample(line)).collect();
    assert!(samples.is_sorted(), "{:?}", samples.windows(2).find(|two| two[0] > two[1]));
    assert!(samples.windows(2).all(|two| two[0].1 <= two[1].1), "CLOCK_REALTIME went back");
    let readings = host.readings.lock().unwrap();
    let (from, to) = (readings[0], readings[readings.len() - 1]);
    let period = to.time.since(from.time).get() as f64 / (to.counter - from.counter) as f64;
    let jumps = samples.windows(2).filter(|two| {
        let passed = (two[1].0 - two[0].0) as f64 * period;
        (two[1].1 - two[0].1) as f64 - passed > 200_000.0
    });
    let (jumps, steps) = (jumps.count() as u64, status["steps"].as_u64().unwrap());
    assert!((2..=steps).contains(&jumps), "{jumps} jumps, {steps} steps: {status}");
}

/// A pause of 5 s, of which QEMU's monitor tells, and a migration, of which nothing tells: both give the guest's counter another offset.
#[test]
fn a_guest_that_was_paused_or_moved_follows_again() {
    let image = match image() {
        Ok(image) => image,
        Err(reason) => return skip(reason),
    };
    let cache = Cache::new(image, true);
    let directory = cache.0.path().join("clock");
    std::fs::create_dir(&directory).unwrap();
    let socket = directory.join("first.qmp");
    let script = "while ktsn clock sample --count 50 --every 20ms; do ktsn clock status --json; done";
    let mut run = cache.vm(&["run", "--accelerator", "tcg", "--clock", "vptp"]);
    let run = run.args(["--qmp", socket.to_str().unwrap(), "--", "sh", "-c", script]);
    let mut run = Qemu(run.stdout(Stdio::piped()).spawn().unwrap());
    let qemu = qemu_of(&run.0);
    let (host, said) = (Host::new(), Arc::new(Mutex::new(Vec::new())));
    let (to, from) = (Arc::clone(&said), run.0.stdout.take().unwrap());
    let reader = std::thread::spawn(move || {
        BufReader::new(from).lines().map_while(Result::ok).for_each(|line| to.lock().unwrap().push(line));
    });
    let first = || said.lock().unwrap().clone();
    let before = wait_until_near(&host, qemu, &first);
    let mut monitor = Monitor::connect(&socket, LONG).unwrap();
    monitor.execute("stop", &Value::Null).unwrap();
    std::thread::sleep(Duration::from_secs(5));
    monitor.execute("cont", &Value::Null).unwrap();
    let paused = wait_until_near(&host, qemu, &first);
    assert!(before - paused > 5_000_000_000, "the guest did not stand: {before} {paused}");
    let (second, _monitor) = move_to_another_qemu(qemu, &mut monitor, &directory);
    // Messages with a head between the lines; the first may be cut.
    let file = directory.join("said");
    let later = || {
        let octets = std::fs::read(&file).unwrap_or_default();
        let text = String::from_utf8_lossy(&octets).into_owned();
        let line = |line: &str| match line.rfind(|c: char| !(c.is_ascii_digit() || c == ',')) {
            Some(at) if !line.contains('{') => {
                line[at..].trim_start_matches(|c: char| !c.is_ascii_digit()).to_owned()
            }
            _ => line[line.find('{').unwrap_or(0)..].to_owned(),
        };
        text.split_inclusive('\n')
            .skip(1)
            .filter_map(|part| part.strip_suffix('\n'))
            .map(line)
            .collect::<Vec<_>>()
    };
    let moved = wait_until_near(&host, second.0.id(), &later);
    assert_ne!(paused, moved);
    let status = || later().iter().rev().find_map(|line| serde_json::from_str::<Value>(line).ok());
    let words = ["a new disruption marker", "the guest was paused or moved", "CLOCK_REALTIME was stepped by"];
    // The guest writes its state once in 50 samples: the last one may be from before the move.
    let has_all = |status: &Value| {
        let events = status["events"].to_string();
        status["state"] == "following" && words.iter().all(|words| events.contains(words))
    };
    let what = std::fmt::from_fn(|f| write!(f, "the guest follows after the move: {:?}", later()));
    let status = eventually(what, LONG, || status().filter(has_all));
    let lines = [first(), later()].concat();
    check_jumps(&lines, &host, &status);
    drop(second);
    drop(run);
    reader.join().unwrap();
}

/// The baseline: chrony over the guest's network device, measured as `ktsn bench clock` does it.
#[test]
fn a_guests_clock_follows_by_chrony_over_its_bridge() {
    let image = match image() {
        Ok(image) => image,
        Err(reason) => return skip(reason),
    };
    let cache = Cache::new(image, true);
    for (arguments, words) in [
        (&["--clock", "chrony", "--", "true"][..], "expected --datapath bridge:BRIDGE and --address"),
        (
            &[
                "--clock",
                "chrony",
                "--datapath",
                "bridge:ktsn-none",
                "--address",
                "10.0.0.2/24",
                "--",
                "true",
            ],
            "--clock chrony: ",
        ),
    ] {
        let output = cache.run(arguments);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert!(err(&output).contains(words), "{}", err(&output));
    }
    let json = cache.0.path().join("clock.json");
    let mut bench = ktsn();
    bench.args([
        "bench",
        "clock",
        "--functional",
        "--clock",
        "chrony,kvm",
        "--seconds",
        "2",
        "--settle",
        "1s",
    ]);
    bench.args(["--pause", "0s", "--json", json.to_str().unwrap()]).env("KTSN_VM_CACHE", cache.0.path());
    let output = bench.current_dir(cache.0.path()).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    let document: Value = serde_json::from_slice(&std::fs::read(json).unwrap()).unwrap();
    let row = &document["series"][0];
    assert_eq!((&row["path"], &row["accelerator"]), (&"chrony".into(), &"tcg".into()), "{document}");
    assert!(row["clock_samples"].as_u64() > Some(20) && row["clock_error_ns"]["p50"].is_number(), "{row}");
    // What this machine has not is said.
    let checks = document["checks"].as_array().unwrap();
    let skipped = |check: &&Value| check["name"] == "kvm" && check["outcome"] == "skipped";
    assert_eq!(checks.iter().filter(skipped).count(), 1, "{document}");
    assert_eq!(cache.records(), 0);
}

/// chronyd gives up root's rights, so the kernel does not end it with a run that is killed, at whatever moment: `clean` does.
#[test]
fn a_killed_run_leaves_no_time_server() {
    let image = match image() {
        Ok(image) => image,
        Err(reason) => return skip(reason),
    };
    let (cache, space) = (Cache::new(image, true), Space::new());
    ip(&format!("-n {} addr add 10.0.0.1/24 dev br0", space.0));
    let datapath = format!("bridge:br0@{}", space.0);
    let servers = || ip(&format!("netns pids {}", space.0));
    let mut run = cache.vm(&["run", "--accelerator", "tcg", "--clock", "chrony", "--datapath", &datapath]);
    let mut run = run.args(["--address", "10.0.0.2/24", "--", "true"]).stderr(Stdio::null()).spawn().unwrap();
    // The guest has not been started yet.
    eventually("the time server listens", LONG, || {
        assert!(run.try_wait().unwrap().is_none(), "the run has ended");
        !ip(&format!("netns exec {} ss -Hlun", space.0)).is_empty()
    });
    run.kill().unwrap();
    run.wait().unwrap();
    assert!(!servers().trim().is_empty(), "the time server ended by itself");
    let cleaned = cache.vm(&["clean"]).output().unwrap();
    assert!(out(&cleaned).starts_with("killed runs: 1 removed, 1 guests ended"), "{cleaned:?}");
    // What the killed run had asked the kernel by ends by itself.
    eventually("all servers end", LONG, || servers().is_empty());
    assert_eq!(cache.records(), 0);
}
