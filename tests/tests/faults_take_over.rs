// SPDX-License-Identifier: Apache-2.0
//! A ktsnd that waits for the end of another one, and takes its run directory over under traffic.

use std::time::Duration;

use ktsn_tests::faults::bed::{Bed, POD_B, UPLINK};
use ktsn_tests::faults::control::reason;
use ktsn_tests::faults::daemon::{Attachment, Daemon, NAME, configuration};
use ktsn_tests::faults::talker::{Talker, arrive};
use ktsn_tests::faults::tap::Arrival;
use ktsn_tests::faults::{Tap, eventually};

const SOON: Duration = Duration::from_secs(20);

/// A ktsnd that waits for the end of this one.
fn successor(bed: &Bed, of: &Daemon) -> Daemon {
    let mut daemon = Daemon::prepare(&bed.host_a, &configuration(&[Attachment::pod_a(bed)])).at(of.run_dir());
    daemon.spawn_waiting();
    daemon
}

fn state(of: &Daemon) -> (Vec<u8>, std::time::SystemTime) {
    let path = of.run_dir().join("state.json");
    let changed = std::fs::metadata(&path).and_then(|found| found.modified()).expect("state file");
    (std::fs::read(&path).expect("state file"), changed)
}

/// Passes a stream from the first ktsnd to the second one: `end` ends the first. All but the frames of the gap arrive, these are
/// counted, and none is early.
fn passed_on(end: fn(&mut Daemon), is_exact: bool) {
    let bed = Bed::new();
    let mut first = Daemon::start_in_order(&bed, &[Attachment::pod_a(&bed)]);
    let tap = Tap::open(&bed.host_b, UPLINK);
    let mut second = successor(&bed, &first);
    let mut talker = Talker::start(&first, &bed.pod_a, POD_B, 1, "count=60000 last=500 lead_us=5000");
    eventually("traffic", SOON, || tap.of(1).len() > 300);
    end(&mut first);
    second.until_logged("ready");
    let before = tap.of(1).len();
    eventually("attached again", SOON, || tap.of(1).len() > before + 300);
    talker.go();
    let (values, errors) = talker.finish();
    assert_eq!((values["failed"], values["waits"]), (0, 0), "{values:?} {errors}");
    let sent = values["sent"].cast_unsigned();
    eventually("the last frame", SOON, || tap.of(1).last().filter(|a| a.sequence == sent - 1).cloned());
    let arrived = tap.of(1);
    assert!(tap.early().is_empty(), "{:?}", tap.early());
    let mut numbers: Vec<u64> = arrived.iter().map(|a: &Arrival| a.sequence).collect();
    numbers.sort_unstable();
    assert!(numbers.windows(2).all(|pair| pair[0] != pair[1]), "duplicated");
    let absent = reason(&second.control().counters(NAME).dropped, "daemon_absent");
    let lost = sent - arrived.len() as u64;
    // The fate of the frame that a killed ktsnd was just handing over is unknown.
    let most = if is_exact { lost } else { lost + 1 };
    assert!(lost > 0 && (lost..=most).contains(&absent), "daemon_absent {absent}, {lost} lost");
    // The queue of the one before is free again: a take-over costs no better adapter.
    let ports = second.control().list().ports;
    assert!(ports.iter().any(|p| p.device == UPLINK && p.adapter == "af_xdp"), "{ports:?}");
}

#[test]
fn takes_over_from_one_that_drains() {
    passed_on(|first| assert_eq!(first.terminate(SOON), Some(0)), true);
}

#[test]
fn takes_over_from_one_that_is_killed() {
    passed_on(Daemon::kill, false);
}

/// While another one waits, the one that runs is the only one that serves; one that is stopped before its turn has touched nothing.
#[test]
fn the_one_that_runs_is_not_disturbed() {
    let bed = Bed::new();
    let first = Daemon::start(&bed, &[Attachment::pod_a(&bed)]);
    let tap = Tap::open(&bed.host_b, UPLINK);
    let before = state(&first);
    let mut second = successor(&bed, &first);
    // An old program and a new one, the control API.
    arrive(&first, &tap, &bed.pod_a, POD_B, 1, 20);
    assert_eq!(first.control().counters_of(NAME, 20, SOON).sent, 20);
    assert!(first.control().health().expect("health").serving);
    assert_eq!(second.terminate(SOON), Some(0), "{}", second.log());
    assert!(second.log().contains(&format!("waits for pid {} to end", first.pid())), "{}", second.log());
    assert!(!second.log().contains("ready"), "{}", second.log());
    assert_eq!(state(&first), before);
    arrive(&first, &tap, &bed.pod_a, POD_B, 2, 20);
    let (ports, warnings) =
        (first.control().list().ports, first.control().health().expect("health").warnings);
    assert!(ports.iter().any(|p| p.device == UPLINK && p.adapter == "af_xdp"), "{ports:?} {warnings:?}");
}

/// One of two takes over; the other one goes on waiting, for the new one.
#[test]
fn two_wait_and_one_takes_over() {
    let bed = Bed::new();
    let mut first = Daemon::start(&bed, &[Attachment::pod_a(&bed)]);
    let tap = Tap::open(&bed.host_b, UPLINK);
    let mut waiting = vec![successor(&bed, &first), successor(&bed, &first)];
    assert_eq!(first.terminate(SOON), Some(0));
    let at = eventually("one serves", SOON, || waiting.iter().position(|one| one.log().contains("ready")));
    let mut serving = waiting.swap_remove(at);
    let mut other = waiting.remove(0);
    arrive(&serving, &tap, &bed.pod_a, POD_B, 1, 20);
    assert!(other.has_ended().is_none() && !other.log().contains("ready"), "{}", other.log());
    assert_eq!(serving.terminate(SOON), Some(0));
    other.until_logged("ready");
    arrive(&other, &tap, &bed.pod_a, POD_B, 2, 20);
}

/// A wait in vain ends as a start without the option does.
#[test]
fn the_time_is_over() {
    let bed = Bed::new();
    let first = Daemon::start(&bed, &[Attachment::pod_a(&bed)]);
    let second = Daemon::prepare(&bed.host_a, &configuration(&[])).at(first.run_dir());
    let holder = format!("another ktsnd (pid {})", first.pid());
    let mut by_option = second.command();
    by_option.args(["--take-over", "1"]);
    let mut by_variable = second.command();
    by_variable.env("KTSN_TAKE_OVER", "1");
    for mut command in [by_option, by_variable] {
        let (code, errors) = second.fails(&mut command);
        assert_eq!(code, Some(1), "{errors}");
        assert!(errors.contains("waits for pid") && errors.contains(&holder), "{errors}");
    }
    assert!(first.control().health().expect("health").serving);
}

/// `metrics_listen` is free for the next one, also when a client keeps a connection to the control API open.
#[test]
fn the_metrics_port_is_passed_on() {
    let bed = Bed::new();
    let free = ktsn_tests::faults::bed::within(&bed.host_a, || {
        std::net::TcpListener::bind(("127.0.0.1", 0)).and_then(|listener| listener.local_addr())
    });
    let text = format!(
        "[daemon]\nmetrics_listen = \"{}\"\n{}",
        free.expect("a free port"),
        configuration(&[Attachment::pod_a(&bed)])
    );
    for end in [|first: &mut Daemon| assert_eq!(first.terminate(SOON), Some(0)), Daemon::kill] {
        let mut first = Daemon::prepare(&bed.host_a, &text);
        first.spawn();
        let mut second = Daemon::prepare(&bed.host_a, &text).at(first.run_dir());
        second.spawn_waiting();
        let mut control = first.control();
        assert!(control.health().expect("health").serving);
        end(&mut first);
        second.until_logged("ready");
        drop(control);
    }
}
