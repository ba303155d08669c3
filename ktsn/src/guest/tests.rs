// SPDX-License-Identifier: Apache-2.0
//! Plans, refusals, records and counts, without a device. tests/tests/vm_guest.rs sets up the device of a real guest.

use super::apply::{carry_out, describe, refused};
use super::device::{Facts, Qdisc, is_name, parsed, root_of};
use super::plan::{Action, Gates, Mode, Plan, Request, Rhythm, classes_of, compact, plan};
use super::record::Record;
use super::verify::{Verified, drops, times};
use super::{Daemon, setup, undo};
use ktsn_eventually::eventually;
use std::time::Duration;

use ktsn_host::HostError;
use ktsn_schedule::{Format, parse};
use ktsn_time::{Nanos, Tai};

const THREE: &str = include_str!("../../../examples/schedules/three-classes.yaml");
const TC: &str = include_str!("../../../examples/schedules/three-classes.taprio");

fn facts() -> Facts {
    Facts {
        device: "eth0".to_owned(),
        ifindex: 2,
        mac: [2, 0, 0, 0, 0, 1],
        driver: "virtio_net".to_owned(),
        is_up: true,
        queues: (4, 1),
        link: Some((u32::MAX, 255)),
        root: None,
    }
}

fn request(mode: Mode) -> Request {
    Request {
        mode,
        device: "eth0".to_owned(),
        classes: None,
        priority: 6,
        delta: Nanos::from_micros(500),
        gates: None,
        daemon: None,
    }
}

fn gates(text: &str) -> Option<Gates> {
    Some(Gates {
        file: "/s".into(),
        schedule: parse(text, Format::Auto).unwrap_or_else(|faults| panic!("{faults}")),
    })
}

/// The steps as text, each with what takes it back.
fn shown(plan: &Plan) -> Vec<String> {
    let line = |undo: &Option<Action>| {
        undo.as_ref().map_or_else(String::new, |undo| format!(" | {}", describe(undo)))
    };
    plan.steps.iter().map(|step| format!("{}{}", describe(&step.action), line(&step.undo))).collect()
}

fn refusal(request: &Request, facts: &Facts) -> (u8, String) {
    let error = plan(request, facts).expect_err("refused");
    (error.exit_status(), error.to_string())
}

#[test]
fn etf_gets_a_class_of_its_own() {
    let made = plan(&request(Mode::Etf), &facts()).unwrap();
    assert_eq!(
        shown(&made),
        [
            "4 queue pairs | 1 queue pairs",
            "tc qdisc add dev eth0 root handle 6b74: mqprio num_tc 4 map 0 0 0 0 1 1 3 2 0 0 0 0 0 0 0 0 queues 1@0 1@1 1@2 1@3 hw 0 | \
             tc qdisc del dev eth0 root",
            "tc qdisc add dev eth0 parent 6b74:4 etf clockid CLOCK_TAI delta 500000",
        ]
    );
    // A device that is down, and has the queues already.
    let made = plan(
        &Request { classes: Some(2), priority: 3, ..request(Mode::Etf) },
        &Facts { is_up: false, queues: (2, 2), ..facts() },
    )
    .unwrap();
    assert_eq!(shown(&made)[0], "device up | device down");
    assert!(shown(&made)[1].contains("num_tc 2 map 0 0 0 1 0 0 0 0 0"), "{:?}", shown(&made));
    assert_eq!((made.rhythm.priority, made.steps.len()), (3, 3));
}

#[test]
fn the_timed_priority_is_alone_and_the_others_keep_their_order() {
    for count in 2..=8 {
        for timed in 0..16_u8 {
            let map = classes_of(count, timed);
            for (priority, class) in map.into_iter().enumerate() {
                assert_eq!(class == count - 1, priority == usize::from(timed), "{count} {timed}: {map:?}");
            }
            // Best effort (priority 0) is above background (1), never below.
            assert!(map[1] <= map[0] || timed <= 1, "{count} {timed}: {map:?}");
        }
        // Each class but the timed one has a priority when the timed one is none of the eight.
        let map = classes_of(count, 15);
        assert!((0..count - 1).all(|class| map[..8].contains(&class)), "{count}: {map:?}");
    }
}

#[test]
fn taprio_gets_the_classes_that_are_used_and_an_etf_below_each() {
    let made = plan(&Request { gates: gates(THREE), ..request(Mode::Taprio) }, &facts()).unwrap();
    let steps = shown(&made);
    assert_eq!(steps[0], "3 queue pairs | 1 queue pairs");
    assert_eq!(steps[1], "link speed 1000 Mbit/s | link speed unknown");
    // Classes 0, 5, 7 are numbered 0, 1, 2.
    assert_eq!(
        steps[2],
        "tc qdisc add dev eth0 parent root handle 6b74: taprio num_tc 3 map 0 0 0 0 1 1 2 2 0 0 0 0 0 0 0 0 queues 1@0 1@1 1@2 base-time 0 \
         sched-entry S 04 200000 sched-entry S 03 300000 sched-entry S 01 500000 cycle-time 1000000 flags 0x1 txtime-delay 600000 clockid \
         CLOCK_TAI | tc qdisc del dev eth0 root"
    );
    for (number, step) in steps[3..].iter().enumerate() {
        let minor = number + 1;
        let line = format!(
            "tc qdisc add dev eth0 parent 6b74:{minor} etf clockid CLOCK_TAI delta 500000 skip_sock_check"
        );
        assert_eq!(*step, line);
    }
    assert_eq!(steps.len(), 6);
    // Priority 6 is class 7, open in the first 200 us of a cycle.
    assert_eq!(
        made.rhythm,
        Rhythm { priority: 6, base: Tai::from_nanos(50_000), cycle: Nanos::from_millis(1) }
    );
    let five =
        plan(&Request { gates: gates(THREE), priority: 5, ..request(Mode::Taprio) }, &facts()).unwrap();
    assert_eq!(five.rhythm.base, Tai::from_nanos(275_000));
    // A `tc` command is a schedule, too; the speed that the device has is kept.
    let speed = Facts { link: Some((1000, 1)), queues: (8, 8), ..facts() };
    let made = plan(&Request { gates: gates(TC), ..request(Mode::Taprio) }, &speed).unwrap();
    assert_eq!(shown(&made)[0], "3 queue pairs | 8 queue pairs");
    assert!(
        shown(&made)[1].contains("base-time 1528743495910289987 sched-entry S 01 300000"),
        "{:?}",
        shown(&made)
    );
}

/// A veth pair tells 10 Gbit/s, and takes no other speed.
#[test]
fn a_device_that_tells_its_speed_keeps_it_unless_the_schedule_says_another() {
    let veth = Facts { link: Some((10_000, 1)), queues: (3, 3), ..facts() };
    let made = plan(&Request { gates: gates(TC), ..request(Mode::Taprio) }, &veth).unwrap();
    assert!(!shown(&made).iter().any(|step| step.contains("speed")), "{:?}", shown(&made));
    let mut gates = gates(TC).unwrap();
    gates.schedule.link_speed = Some(100_000_000);
    let made = plan(&Request { gates: Some(gates), ..request(Mode::Taprio) }, &veth).unwrap();
    assert_eq!(shown(&made)[0], "link speed 100 Mbit/s | link speed 10000 Mbit/s");
}

#[test]
fn compact_schedules_open_the_same_classes() {
    let schedule = gates(THREE).unwrap().schedule;
    let (compact, used) = compact(&schedule);
    assert_eq!(used.iter().map(|class| class.get()).collect::<Vec<_>>(), [0, 5, 7]);
    for (before, after) in schedule.admin.control_list.iter().zip(&compact.admin.control_list) {
        for (number, class) in used.iter().enumerate() {
            assert_eq!(before.states.is_open(*class), after.states.bits() >> number & 1 == 1);
        }
    }
}

#[test]
fn ktsnd_needs_one_queue() {
    let daemon =
        Daemon { program: "/ktsnd".into(), run_dir: "/r".into(), attach: "a".to_owned(), spin_margin: None };
    let wanted = Request { daemon: Some(daemon), ..request(Mode::Ktsnd) };
    let one = Facts { queues: (1, 1), ..facts() };
    assert_eq!(shown(&plan(&wanted, &one).unwrap()), ["/ktsnd --run-dir /r --attach a"]);
    // That of User-mode Linux.
    let no_speed = Facts { link: None, ..one.clone() };
    let error = plan(&Request { gates: gates(THREE), ..wanted.clone() }, &no_speed).unwrap_err();
    assert!(
        error.to_string().contains("it tells no speed and takes none") && error.exit_status() == 3,
        "{error}"
    );
    let config = |request: &Request| match plan(request, &one).unwrap().steps.pop().unwrap().action {
        Action::StartDaemon(.., config) => config,
        other => panic!("{other:?}"),
    };
    assert_eq!(config(&wanted), "");
    let spun =
        wanted.daemon.clone().map(|daemon| Daemon { spin_margin: Some(Nanos::from_micros(300)), ..daemon });
    let spun = Request { daemon: spun, ..wanted.clone() };
    assert_eq!(config(&spun), "[[port]]\ndevice = \"eth0\"\nspin_margin = \"300000ns\"\n");
    assert!(plan(&spun, &one).unwrap().notes[0].contains("spins 300 us"));
    let made = plan(&Request { gates: gates(THREE), ..wanted }, &one).unwrap();
    assert_eq!(
        shown(&made),
        ["link speed 1000 Mbit/s | link speed unknown", "/ktsnd --run-dir /r --attach a", "gates of /s"]
    );
    assert_eq!(made.rhythm.base, Tai::from_nanos(50_000));
}

#[test]
fn what_cannot_be_had_is_refused_with_field_value_and_remedy() {
    let one = Facts { queues: (1, 1), ..facts() };
    for mode in [Mode::Etf, Mode::Taprio] {
        let with = Request { gates: gates(THREE).filter(|_| mode == Mode::Taprio), ..request(mode) };
        let (status, text) = refusal(&with, &one);
        assert_eq!(status, 3);
        for words in ["device eth0: 1 queue pair(s); expected", "mq=on", "queues=", "--datapath tap --queues"]
        {
            assert!(text.contains(words), "{words}: {text}");
        }
    }
    let other = Facts { driver: "e1000e".to_owned(), ..one.clone() };
    assert!(!refusal(&request(Mode::Etf), &other).1.contains("QEMU"));
    let taprio = |text: &str| Request { gates: gates(text), ..request(Mode::Taprio) };
    let flags = |flags: &str| taprio(&TC.replace("clockid", &format!("flags {flags} clockid")));
    let closed = THREE.replace("0b10000000", "0b00000000");
    let one_class = THREE.replace("[0, 0, 0, 0, 5, 5, 7, 7,", "[0, 0, 0, 0, 0, 0, 0, 0,");
    for (request, words) in [
        (Request { gates: gates(THREE), ..request(Mode::Etf) }, "--schedule /s: mode etf has no gates"),
        (Request { classes: Some(9), ..request(Mode::Etf) }, "--classes 9: expected 2 to 8"),
        (Request { classes: Some(1), ..request(Mode::Etf) }, "--classes 1: expected 2 to 8"),
        (Request { priority: 16, ..request(Mode::Etf) }, "--priority 16: expected 0 to 15"),
        (Request { delta: Nanos::new(1), ..request(Mode::Etf) }, "--delta"),
        (request(Mode::Taprio), "--schedule: missing"),
        (Request { classes: Some(3), ..taprio(THREE) }, "--classes: the classes of mode taprio"),
        (flags("0x0"), "flags 0x0: a qdisc below the classes of a software taprio stalls all queues"),
        (taprio(&closed), "--priority 6: its traffic class 7 has no open gate"),
        (taprio(&one_class), "uses 1 traffic class; expected 2"),
    ] {
        let (status, text) = refusal(&request, &facts());
        assert!(status == 2 && text.contains(words), "{words}: {text}");
    }
}

#[test]
fn a_root_qdisc_of_another_hand_is_refused() {
    let shown = |text: &str| root_of(parsed(text).unwrap());
    let fq = shown(r#"[{"kind":"fq","handle":"8001:","root":true,"options":{}}]"#);
    let (status, text) = refusal(&request(Mode::Etf), &Facts { root: fq, ..facts() });
    assert!(
        status == 2
            && text.contains("its root qdisc is fq 8001:")
            && text.contains("tc qdisc del dev eth0 root"),
        "{text}"
    );
    assert!(!text.contains("stalls"), "{text}");
    for (options, stalls) in [("{}", true), (r#"{"flags":"0x1"}"#, false), (r#"{"flags":0}"#, true)] {
        let root =
            shown(&format!(r#"[{{"kind":"taprio","handle":"100:","root":true,"options":{options}}}]"#));
        let (_, text) = refusal(&request(Mode::Etf), &Facts { root, ..facts() });
        assert_eq!(text.contains("stalls all queues"), stalls, "{options}: {text}");
    }
    // The kernel's default.
    assert_eq!(
        shown(r#"[{"kind":"mq","handle":"0:","root":true},{"kind":"fq_codel","handle":"0:","parent":":1"}]"#),
        None
    );
    assert_eq!(parsed("").unwrap(), Vec::<Qdisc>::new());
}

#[test]
fn a_kernel_without_the_qdisc_is_no_fault_of_the_request() {
    let said = |stderr: &str| {
        refused("tc qdisc add dev x parent 1:1 etf delta 1".to_owned(), "2".to_owned(), stderr.to_owned())
    };
    let error = said("Error: Specified qdisc kind is unknown.");
    assert_eq!(error.exit_status(), 3);
    assert!(error.to_string().contains("CONFIG_NET_SCH_ETF"), "{error}");
    assert_eq!(said("RTNETLINK answers: Operation not permitted").exit_status(), 3);
    assert!(matches!(said("Error: what else"), HostError::Command { .. }));
}

#[test]
fn names_that_are_no_device_are_refused() {
    for name in ["", ".", "..", "a/b", "a b", "a:b", "sixteen-octets-x", "ü"] {
        assert!(!is_name(name), "{name:?}");
    }
    assert!(is_name("eth0") && is_name("enp0s3.100") && is_name("fifteen-octets-"));
    let directory = tempfile::tempdir().unwrap();
    let wanted = Request { device: "no-such-dev".to_owned(), ..request(Mode::Etf) };
    let error = setup(&wanted, directory.path(), &mut |_| panic!("no check")).unwrap_err();
    assert!(error.exit_status() == 2 && error.to_string().contains("no such device"), "{error}");
    assert_eq!(undo("no-such-dev", directory.path()).unwrap(), None);
    assert_eq!(undo("../x", directory.path()).unwrap_err().exit_status(), 2);
}

#[test]
fn records_outlive_a_kill_and_are_void_for_another_device() {
    let directory = tempfile::tempdir().unwrap();
    let open = |ifindex| Record::open(directory.path(), "d", ifindex);
    // A child that another test starts has the lock of a record that was dropped here, until it runs its program.
    let open_soon = |ifindex| {
        eventually("its lock is free", Duration::from_secs(20), || match open(ifindex) {
            Err(error) if error.to_string().contains("another `ktsn guest`") => None,
            opened => Some(opened.unwrap()),
        })
    };
    let stop = Action::StopDaemon { pid: 1, start: 2, run_dir: "/r".into(), is_dir_ours: true };
    let mut record = open(7).unwrap();
    record.begin(Mode::Etf).unwrap();
    record.push(Action::Queues(1)).unwrap();
    record.push(stop.clone()).unwrap();
    // One at a time.
    assert!(open(7).unwrap_err().to_string().contains("another `ktsn guest` works"));
    drop(record);
    let record = open_soon(7);
    assert_eq!((record.mode, &record.undo[..]), (Some(Mode::Etf), &[Action::Queues(1), stop.clone()][..]));
    drop(record);
    // The device went and came: its queues are another's, the daemon is still there.
    let mut record = open_soon(8);
    assert_eq!(record.undo, [stop]);
    record.end().unwrap();
    drop(record);
    assert_eq!(open_soon(7).mode, None);
    let damaged = std::fs::read_dir(directory.path()).unwrap().count();
    assert_eq!(damaged, 1, "the lock alone is left");
}

#[test]
fn records_that_others_write_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    assert_eq!(undo("no-such-dev", directory.path()).unwrap(), None);
    let all = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    std::fs::set_permissions(directory.path(), all).unwrap();
    let error = undo("no-such-dev", directory.path()).unwrap_err();
    assert!(error.exit_status() == 2 && error.to_string().contains("mode 777"), "{error}");
}

#[test]
fn checks_begin_in_time_and_in_step() {
    let rhythm = Rhythm { priority: 6, base: Tai::from_nanos(300), cycle: Nanos::new(1_000) };
    let (first, period) = times(&rhythm, Nanos::new(2_500), Tai::from_nanos(10_000), Nanos::new(100));
    assert_eq!((first, period), (Tai::from_nanos(10_300), Nanos::new(3_000)));
    // A base time in the future.
    let (first, _) = times(
        &Rhythm { base: Tai::from_nanos(90_300), ..rhythm },
        Nanos::new(1),
        Tai::from_nanos(10_000),
        Nanos::new(100),
    );
    assert_eq!(first, Tai::from_nanos(10_300));
}

#[test]
fn a_check_of_any_base_and_cycle_has_times() {
    let now = Tai::from_nanos(1_790_000_000_000_000_000);
    for base in [0, 1, now.as_nanos(), u64::MAX - 1, u64::MAX] {
        for cycle in [1, 3, 1_000, i64::MAX - 1, i64::MAX] {
            let rhythm = Rhythm { priority: 6, base: Tai::from_nanos(base), cycle: Nanos::new(cycle) };
            let (first, period) = times(&rhythm, Nanos::from_seconds(10), now, Nanos::from_millis(50));
            assert!(first > now && period >= Nanos::from_seconds(10), "{base} {cycle}: {first:?} {period}");
            assert!(cycle > 1_000 || first.since(now) <= Nanos::from_millis(51), "{base} {cycle}: {first:?}");
        }
    }
}

/// A disk that is full when a set-up is taken back.
#[test]
fn what_cannot_be_recorded_is_taken_back_all_the_same() {
    let directory = tempfile::tempdir().unwrap();
    let mut record = Record::open(directory.path(), "d", 7).unwrap();
    record.begin(Mode::Ktsnd).unwrap();
    let run_dirs = ["one", "two"].map(|name| directory.path().join(name));
    for run_dir in run_dirs.clone() {
        std::fs::create_dir(&run_dir).unwrap();
        // No process has the number 0.
        record.push(Action::StopDaemon { pid: 0, start: 0, run_dir, is_dir_ours: true }).unwrap();
    }
    let of = |end: &str| {
        let names = std::fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().path());
        names.into_iter().find(|path| path.to_string_lossy().ends_with(end))
    };
    let file = of("-d.json").unwrap();
    std::fs::create_dir(file.with_extension("new")).unwrap();
    assert!(record.push(Action::Up(false)).is_err());
    record.undo.pop();
    super::take_all_back(&mut record).unwrap();
    assert!(run_dirs.iter().all(|run_dir| !run_dir.exists()) && !file.exists());
}

/// The record names a ktsnd before it serves: a set-up that is killed meanwhile leaves no daemon that `undo` does not find.
#[test]
fn a_daemon_is_recorded_before_it_serves() {
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("ktsnd");
    ktsn_eventually::make_program(&program, b"#!/bin/sh\nsleep 0.3\nexit 7\n");
    let run_dir = directory.path().join("run");
    let action = Action::StartDaemon(program, run_dir.clone(), "x".to_owned(), String::new());
    let mut kept = Vec::new();
    let mut ran = false;
    let done = carry_out("d", &action, &mut |undo| {
        if let Action::StopDaemon { pid, .. } = &undo {
            ran = std::path::Path::new(&format!("/proc/{pid}/exe")).exists();
        }
        kept.push(undo);
        Ok(())
    });
    let error = done.unwrap_err().to_string();
    assert!(error.contains("ended before it served"), "{error}");
    assert!(
        ran && matches!(&kept[..], [Action::StopDaemon { start: 1.., is_dir_ours: true, .. }]),
        "{kept:?}"
    );
    // One that cannot be recorded does not stay.
    let done = carry_out("d", &action, &mut |_| Err(HostError::Usage("the disk is full".to_owned())));
    assert!(done.unwrap_err().to_string().contains("the disk is full") && !run_dir.exists());
}

#[test]
fn drops_are_not_counted_twice() {
    let qdiscs = parsed(
        r#"[{"kind":"mqprio","handle":"1:","root":true,"drops":9},{"kind":"etf","handle":"2:","parent":"1:4","drops":9},
            {"kind":"fq_codel","handle":"0:","parent":"1:3","drops":1}]"#,
    )
    .unwrap();
    assert_eq!(drops(&qdiscs), 10);
}

#[test]
fn half_of_the_frames_is_the_least() {
    let left = |left| Verified { frames: 5, left, ..Verified::default() };
    assert!(left(3).is_good() && !left(2).is_good() && !Verified::default().is_good());
    // Frames that left too early show that their time is not kept.
    assert!(!Verified { early: 1, ..left(3) }.is_good());
}
