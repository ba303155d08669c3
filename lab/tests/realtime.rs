// SPDX-License-Identifier: Apache-2.0
//! `ktsn rt run` with real loads and injected disturbances. In: root's rights, `cyclictest`. Out: the injected cause is the first one of the
//! report, every profile yields all of its samples, and nothing stays behind.

use ktsn_eventually::eventually;
use ktsn_lab::Event;
use ktsn_lab::realtime::{Parts, Plan, System, run};
use ktsn_lab::vm::Cache;
use ktsn_measure::clock::RealTime as Wish;
use ktsn_realtime::causes::Cause;
use ktsn_realtime::requirements::table_1;
use ktsn_realtime::verdict::Share;
use ktsn_realtime::{Cell, Profile, RealTime};
use ktsn_time::Nanos;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Ends a disturbance with the measurement, which may panic: the scope waits for the disturbing thread.
struct Ending<'a>(&'a AtomicBool);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A plan that holds the machine's measuring lock.
fn plan(out: &Path, systems: &[System], profiles: &[u8], millis: i64) -> Plan {
    Plan {
        systems: systems.to_vec(),
        profiles: profiles.iter().map(|&number| Profile::try_from(number).unwrap()).collect(),
        period: Nanos::from_millis(10),
        duration: Nanos::from_millis(millis),
        limit: Nanos::from_micros(100),
        requirements: table_1(),
        share: Share::default(),
        workers: 2,
        worker_mib: 8,
        cpu: None,
        out: out.to_owned(),
        resume: false,
        guests: Parts {
            tools: Err("not used".to_owned()),
            cache: Cache::find(None),
            accelerator: None,
            workspace: Path::new(env!("CARGO_MANIFEST_DIR")).join(".."),
        },
        lock: Some(Path::new(env!("CARGO_MANIFEST_DIR")).join("../out/.measure.lock")),
        other: None,
        command: Vec::new(),
    }
}

fn measured(plan: &Plan, on_event: &mut dyn FnMut(Event<'_>)) -> RealTime {
    run(plan, on_event).unwrap().realtime.unwrap()
}

fn causes(cell: &Cell) -> String {
    format!("{} late of {}: {:?}", cell.excursions, cell.histogram.count(), cell.causes)
}

/// Control groups and namespaces of this process.
fn left_behind() -> Vec<String> {
    let pid = std::process::id();
    let places = ["/run/netns", "/sys/fs/cgroup", "/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpuset"];
    let entries = places.iter().flat_map(|place| std::fs::read_dir(place).into_iter().flatten().flatten());
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names
        .filter(|name| {
            name.starts_with(&format!("ktsnlab-{pid}-r")) || name.starts_with(&format!("ktsn-rt-{pid}-"))
        })
        .collect()
}

/// One after the other, since each of them is timed.
#[test]
fn injected_disturbances_are_named_and_all_profiles_are_measured() {
    a_fifo_hog_is_the_first_cause();
    a_cpu_quota_is_the_first_cause();
    every_profile_and_system_is_measured();
    assert_eq!(left_behind(), Vec::<String>::new());
}

/// Rounds of a disturbed measurement.
const ROUNDS: usize = 5;

/// The cell of the first round that names the injected cause first. Steal is passed over: it is this machine's own host.
///
/// Other work of the machine can disturb a round more than what the test injects; a true report then names that work. So only a
/// cause that no round names fails.
fn named_first(injected: Cause, mut round: impl FnMut() -> Cell) -> Cell {
    let mut seen = Vec::new();
    for _ in 0..ROUNDS {
        let cell = round();
        if cell.causes.iter().find(|one| one.cause != Cause::Steal).is_some_and(|one| one.cause == injected) {
            return cell;
        }
        seen.push(causes(&cell));
    }
    panic!("{injected:?} is first in none of {ROUNDS} rounds: {seen:#?}");
}

/// 5 ms of each second, on the probe's CPU, with its priority. 1,003 ms apart, so that the hog meets the probe in half of its wake-ups' phases.
fn a_fifo_hog_is_the_first_cause() {
    let cell = named_first(Cause::RtThreads, beside_a_fifo_hog);
    assert!(cell.excursions >= 1, "{}", causes(&cell));
    let hog = cell.causes.iter().find(|one| one.cause == Cause::RtThreads).unwrap();
    assert!(hog.thread.as_ref().unwrap().contains("priority 99"), "{}", causes(&cell));
}

fn beside_a_fifo_hog() -> Cell {
    let out = tempfile::tempdir().unwrap();
    let mut plan = plan(out.path(), &[System::Host], &[2], 9_000);
    // What this machine does by itself is shorter, as a rule.
    plan.limit = Nanos::from_micros(1_000);
    let cpus = std::thread::available_parallelism().unwrap().get();
    let cpu = cpus - 1;
    plan.cpu = u32::try_from(cpu).ok();
    let (has_begun, is_done) = (AtomicBool::new(false), AtomicBool::new(false));
    let mut found = std::thread::scope(|scope| {
        scope.spawn(|| {
            eventually("the run begins", Duration::from_secs(300), || {
                has_begun.load(Ordering::Relaxed) || is_done.load(Ordering::Relaxed)
            });
            Wish { cpu: Some(cpu), fifo: Some(99), ..Wish::default() }.apply().unwrap();
            let mut next = Instant::now();
            while !is_done.load(Ordering::Relaxed) {
                let begun = Instant::now();
                while begun.elapsed() < Duration::from_millis(5) {
                    std::hint::spin_loop();
                }
                next += Duration::from_millis(1_003);
                std::thread::sleep(next.saturating_duration_since(Instant::now()));
            }
        });
        let _ending = Ending(&is_done);
        measured(&plan, &mut |event| {
            if matches!(event, Event::Progress { done: 1.., .. }) {
                has_begun.store(true, Ordering::Relaxed);
            }
        })
    });
    let cell = found.cells.remove(0);
    assert_eq!(cell.histogram.count(), 900);
    cell
}

fn a_cpu_quota_is_the_first_cause() {
    let cell = named_first(Cause::CfsThrottling, under_a_cpu_quota);
    assert!(cell.excursions >= 1, "{}", causes(&cell));
}

fn under_a_cpu_quota() -> Cell {
    let out = tempfile::tempdir().unwrap();
    let mut plan = plan(out.path(), &[System::ContainerQuota], &[3], 4_000);
    // Four workers on two CPUs use up the quota of one CPU in each period.
    plan.limit = Nanos::from_millis(5);
    let cell = measured(&plan, &mut |_| ()).cells.remove(0);
    assert_eq!((cell.histogram.count(), cell.fifo_priority), (400, None));
    cell
}

fn every_profile_and_system_is_measured() {
    let out = tempfile::tempdir().unwrap();
    let all = plan(out.path(), &[System::Host, System::ContainerFifo], &[1, 2, 3, 4, 5, 6, 7, 8], 200);
    let mut notices = Vec::new();
    let found = measured(&all, &mut |event| {
        if let Event::Notice(text) = event {
            notices.push(text.to_owned());
        }
    });
    assert_eq!(found.cells.len(), 16);
    for cell in &found.cells {
        let name = format!("{} {}", cell.system, cell.profile);
        assert_eq!((cell.histogram.count(), cell.skip.as_ref()), (20, None), "{name}");
        assert_eq!((cell.segments, cell.fifo_priority), (1, Some(99)), "{name}");
        assert_eq!(cell.cpu.is_some(), cell.profile.is_pinned(), "{name}");
    }
    assert_eq!((found.verdicts.len(), found.isolation.len()), (16 * 8, 2));
    assert!(found.verdicts.iter().all(|verdict| !verdict.statement.starts_with("fit")));
    // A static CPU manager's container: its own CPU in every profile, an ordinary thread; beside neighbours, too.
    let out_static = tempfile::tempdir().unwrap();
    let pod = plan(out_static.path(), &[System::ContainerStatic], &[1, 3, 4, 6], 200);
    let pod = measured(&pod, &mut |_| ());
    let kinds: Vec<_> =
        pod.cells.iter().map(|cell| cell.skip.as_ref().map(|skip| skip.kind.as_str())).collect();
    assert_eq!(kinds, [None, None, Some("too_few_cpus"), None]);
    for cell in pod.cells.iter().filter(|cell| cell.skip.is_none()) {
        assert_eq!((cell.histogram.count(), cell.fifo_priority), (20, None), "profile {}", cell.profile);
        assert!(cell.cpu.is_some(), "profile {}", cell.profile);
    }
    // The machine's own limit on real-time threads is said first.
    let limit = std::fs::read_to_string("/proc/sys/kernel/sched_rt_runtime_us").unwrap();
    assert!(
        limit.trim() == "-1" || notices.iter().any(|text| text.contains("sched_rt_runtime_us")),
        "{notices:?}"
    );
    // Its records are there: a second run must not write over them.
    let error = run(&all, &mut |_| ()).unwrap_err();
    assert!(error.to_string().contains("--resume"), "{error}");
    assert_eq!(error.exit_status(), 2);
    // Complete already: resumed, it starts no probe.
    let again = measured(&Plan { resume: true, ..all }, &mut |_| ());
    assert_eq!(again.cells, found.cells);
    assert!(!out.path().join("neighbour-a.written").exists());
}

/// QEMU of a guest that this process has started.
fn qemu() -> Option<u32> {
    let own = std::process::id();
    let children = std::fs::read_dir(format!("/proc/{own}/task")).ok()?.flatten();
    let children = children.filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
    let children: Vec<u32> = children
        .flat_map(|list| list.split(' ').filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>())
        .collect();
    let is_qemu = |pid: &u32| {
        std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.starts_with("qemu-system"))
    };
    children.into_iter().find(is_qemu)
}

fn signal(pid: u32, name: &str) {
    assert!(std::process::Command::new("kill").args([name, &pid.to_string()]).status().unwrap().success());
}

/// SIGSTOP for 0.4 s of each 1.5 s.
#[test]
fn a_stopped_guest_is_the_first_cause() {
    let cell = named_first(Cause::Stopped, beside_sigstop);
    assert!(cell.excursions >= 1, "{}", causes(&cell));
    assert!(cell.environment.as_ref().unwrap().contains("TCG"), "{:?}", cell.environment);
}

fn beside_sigstop() -> Cell {
    let out = tempfile::tempdir().unwrap();
    let mut plan = plan(out.path(), &[System::Rtos], &[1], 4_000);
    // What emulation and this machine do by themselves is shorter, as a rule.
    plan.limit = Nanos::from_millis(100);
    let (has_begun, is_done) = (AtomicBool::new(false), AtomicBool::new(false));
    let mut found = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_done.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(1_100));
                let Some(pid) = qemu().filter(|_| has_begun.load(Ordering::Relaxed)) else { continue };
                signal(pid, "-STOP");
                std::thread::sleep(Duration::from_millis(400));
                signal(pid, "-CONT");
            }
        });
        let _ending = Ending(&is_done);
        measured(&plan, &mut |event| {
            if let Event::Progress { done, all } = event {
                // Not at its end: a signal must meet the guest.
                has_begun.store(done > 0 && done + 50 < all, Ordering::Relaxed);
            }
        })
    });
    let cell = found.cells.remove(0);
    assert_eq!((cell.skip.as_ref(), cell.histogram.count()), (None, 400));
    cell
}

#[test]
fn a_guest_under_freertos_is_measured_and_one_that_does_not_boot_is_skipped() {
    let out = tempfile::tempdir().unwrap();
    let all = plan(out.path(), &[System::Rtos], &[1, 2, 3, 4, 5, 6, 7, 8], 200);
    let found = measured(&all, &mut |_| ());
    for cell in &found.cells {
        let name = format!("{} {}", cell.system, cell.profile);
        if cell.profile.number() == 4 {
            assert_eq!(cell.skip.as_ref().unwrap().kind, "too_few_cpus");
            continue;
        }
        assert_eq!((cell.histogram.count(), cell.skip.as_ref()), (20, None), "{name}");
        assert_eq!((cell.fifo_priority, cell.cpu.is_some()), (None, cell.profile.is_pinned()), "{name}");
    }
    // A builder that makes no guest.
    let tree = tempfile::tempdir().unwrap();
    let builder = tree.path().join("virtio-net/test");
    std::fs::create_dir_all(&builder).unwrap();
    std::fs::write(builder.join("probe.py"), "print('/dev/null')").unwrap();
    let out = tempfile::tempdir().unwrap();
    let mut broken = plan(out.path(), &[System::Rtos, System::Host], &[1], 200);
    broken.guests.workspace = tree.path().to_owned();
    let found = measured(&broken, &mut |_| ());
    let [guest, host] = &found.cells[..] else { panic!("{:?}", found.cells) };
    let skip = guest.skip.as_ref().unwrap();
    assert!(skip.kind == "guest_failed" && skip.reason.contains("the guest ended with"), "{skip:?}");
    assert_eq!((host.skip.as_ref(), host.histogram.count()), (None, 20));
    assert!(found.verdicts.iter().all(|verdict| verdict.system == "host"));
}

/// A file system that is full after a while; unmounted with its value.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    fn new() -> Self {
        let disk = Self(tempfile::tempdir().unwrap());
        let mount = std::process::Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=640m", "ktsn-rt-test"])
            .arg(disk.0.path())
            .status();
        assert!(mount.unwrap().success());
        disk
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg(self.0.path()).status();
    }
}

#[test]
fn a_disk_that_fills_up_in_mid_run_ends_it_and_loses_no_record() {
    let disk = SmallDisk::new();
    let out = disk.0.path().join("out");
    let mut all = plan(&out, &[System::Host], &[1], 1_000);
    all.period = Nanos::from_millis(1);
    let filler = disk.0.path().join("filler");
    let mut recorded = 0;
    let error = run(&all, &mut |event| {
        if let Event::Progress { done: done @ 1.., .. } = event {
            recorded = done;
            if !filler.exists() {
                // It takes what there is, and fails then.
                let _ =
                    std::process::Command::new("fallocate").args(["--length", "639M"]).arg(&filler).status();
                let mut file = std::fs::File::options().append(true).create(true).open(&filler).unwrap();
                while std::io::Write::write(&mut file, &[0; 4096]).is_ok() {}
            }
        }
    })
    .unwrap_err();
    assert!(error.to_string().contains("No space left"), "{error}");
    assert!((1..1_000).contains(&recorded), "{recorded}");
    std::fs::remove_file(&filler).unwrap();
    let mut first = None;
    let found = measured(&Plan { resume: true, ..all }, &mut |event| {
        if let Event::Progress { done: done @ 1.., .. } = event {
            first.get_or_insert(done);
        }
    });
    // It goes on behind what was recorded.
    assert!(first.unwrap() >= recorded, "{first:?} {recorded}");
    assert_eq!((found.cells[0].histogram.count(), found.cells[0].segments), (1_000, 2));
}
