// SPDX-License-Identifier: Apache-2.0
use super::sender::Calls;
use super::*;
use crate::experiment::Setup;
use crate::sys::within;
use crate::testbed::UPLINK;
use ktsn_measure::clock::RealTime;
use ktsn_measure::results::CheckOutcome;
use std::net::UdpSocket;
use std::time::Duration;

fn micro(name: &str, p50: f64) -> Micro {
    Micro { name: name.to_owned(), unit: "ns".to_owned(), p50, p90: None, samples: 1 }
}

#[test]
fn bars_are_figures_or_ratios_and_a_missing_one_holds_nothing() {
    let mut document = Document::new("micro", Vec::new());
    document.micro = vec![micro("sendmsg.intercepted.64", 300.0), micro("sendmsg.kernel.64", 1000.0)];
    compare(&mut document);
    let held: Vec<Option<bool>> = document.comparisons.iter().map(|comparison| comparison.holds).collect();
    assert_eq!(held[..3], [Some(true), Some(true), Some(false)]);
    assert!((document.comparisons[1].ratio.unwrap() - 0.3).abs() < 1e-9);
    assert_eq!(document.comparisons[2].ratio, None);
}

#[test]
fn an_example_that_is_not_built_is_skipped_with_the_remedy() {
    let plan = Plan { seconds: 1.0, setup: Setup::nowhere() };
    let testbed = Testbed::new().unwrap();
    let figures =
        Figures(Costs { plan: &plan, testbed: &testbed, directory: std::path::Path::new("/nowhere") });
    let missing: Vec<_> = figures
        .rows()
        .iter()
        .filter_map(|row| figures.missing(row).map(|reason| (figures.name(row), reason)))
        .collect();
    let names: Vec<&str> = missing.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, [RATE, BURST]);
    assert!(missing.iter().all(|(_, reason)| reason.contains("--example worker_throughput")), "{missing:?}");
}

#[test]
fn the_worker_is_judged_where_it_was_measured() {
    let mut document = Document::new("micro", Vec::new());
    compare(&mut document);
    assert!(document.checks.is_empty());
    document.micro = vec![micro("worker.memory_port.64", 1.49e6), micro("worker.memory_port.burst32", 12e3)];
    compare(&mut document);
    let found: Vec<_> = document.checks.iter().map(|check| (check.name.as_str(), check.outcome)).collect();
    assert_eq!(found, [(RATE, CheckOutcome::Failed), (BURST, CheckOutcome::Passed)]);
    assert_eq!(document.checks[0].reason.as_deref(), Some("1.49 M frames/s"));
}

#[test]
fn the_peer_drops_until_the_descriptor_is_closed() {
    let testbed = Testbed::new().unwrap();
    let (a, b) = (&testbed.a, &testbed.b);
    let listener = within(&b.namespace, || UdpSocket::bind((b.address, 7001))).unwrap();
    listener.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
    let talker = within(&a.namespace, || UdpSocket::bind((a.address, 0))).unwrap();
    let arrives = || {
        talker.send_to(b"x", (b.address, 7001)).unwrap();
        listener.recv(&mut [0; 8]).is_ok()
    };
    assert!(arrives());
    let dropped = within(&b.namespace, || sys::drop_all(UPLINK)).unwrap();
    assert!(!arrives());
    drop(dropped);
    // The kernel removes the program a moment after the last descriptor is gone.
    assert!((0..20).any(|_| arrives()));
    let absent = within(&b.namespace, || sys::drop_all("none0")).unwrap_err().to_string();
    assert!(absent.contains("No such device"), "{absent}");
}

#[test]
fn the_sender_counts_every_call() {
    let listener = UdpSocket::bind("127.0.0.1:0").unwrap();
    let run =
        |calls, batches| sender::run(listener.local_addr().unwrap(), calls, batches, RealTime::default());
    for (calls, a_batch) in [(Calls::Timed, 256), (Calls::Untimed, 256), (Calls::Bursts, 4)] {
        let cost = run(calls, 2).unwrap();
        assert_eq!((cost.first_count, cost.rest_count), (2, 2 * (a_batch - 1)), "{calls:?}");
        assert!(cost.rest_ns.min > 0 && cost.clock_ns.min >= 0);
    }
    for calls in [Calls::Loop, Calls::Following] {
        let cost = run(calls, 1).unwrap();
        assert_eq!((cost.first_count, cost.rest_count), (1, u64::from(sender::LOOP)), "{calls:?}");
    }
    let nobody = run(Calls::Timed, 0);
    assert_eq!(nobody.unwrap_err().exit_status(), 2);
}
