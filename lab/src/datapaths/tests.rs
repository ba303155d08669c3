// SPDX-License-Identifier: Apache-2.0
//! Plans, figures and bars from made-up frames; no network.

use super::carried::{Carried, Seen};
use super::host::Sample;
use super::path::row;
use super::traffic::{Arrival, Receiving, Sending, SentFrame};
use super::*;
use crate::remote::Remote;
use crate::vm::Accelerator;
use ktsn_measure::environment::CpuUse;
use ktsn_measure::results::{CheckOutcome, Round};
use ktsn_time::Nanos;
use std::time::Duration;

fn plan() -> Plan {
    Plan {
        paths: vec![Path::TapBridge, Path::TapXdp],
        directions: Direction::ALL.to_vec(),
        loads: vec![Load::Idle],
        rounds: 3,
        frames: 100,
        ends: Ends::StandIn,
        guests: Err("none".to_owned()),
        sharing: Sharing::Apart,
        hosts: None,
        setup: Setup::nowhere(),
    }
}

#[test]
fn wrong_plans_are_named() {
    plan().check().unwrap();
    let twice = Plan { paths: vec![Path::Macvtap, Path::Macvtap], ..plan() };
    assert!(twice.check().unwrap_err().to_string().contains("macvtap is named twice"));
    for (plan, word) in [
        (Plan { loads: vec![], ..plan() }, "load: expected one"),
        (Plan { frames: 29, ..plan() }, "3 rounds of 29 frames"),
        (Plan { rounds: 0, ..plan() }, "one round at least"),
    ] {
        let error = plan.check().unwrap_err();
        assert!(error.to_string().contains(word), "{error}");
        assert_eq!(error.exit_status(), 2);
    }
}

/// A run of frames that each take 20 µs and arrive; `change` makes it odd.
fn seen(frames: u64, change: impl FnOnce(&mut Seen)) -> Seen {
    let begin = 1_000_000_000_000;
    let at = |sequence: u64, after: u64| Tai::from_nanos(begin + sequence * 1_006_000 + after);
    let sent = |sequence| SentFrame {
        sequence,
        due: at(sequence, 0),
        called_at: at(sequence, 1_000),
        returned_at: at(sequence, 9_000),
        stamp: Some(at(sequence, 2_000)),
    };
    let arrival = |sequence| Arrival {
        sequence,
        called_at: at(sequence, 1_000),
        stamp: Some(at(sequence, 21_000)),
        received_at: at(sequence, 22_000),
        gap: Nanos::from_micros(1),
    };
    let mut seen = Seen {
        carried: Carried {
            sending: Sending { frames: (0..frames).map(sent).collect(), ..Sending::default() },
            receiving: Receiving { arrivals: (0..frames).map(arrival).collect(), ..Receiving::default() },
            samples: vec![Sample::default(); 2],
            there: None,
            elapsed: Duration::from_secs(1),
            sender_cpu: Nanos::from_millis(10),
            receiver_cpu: Nanos::from_millis(20),
            drops: BTreeMap::new(),
            stepped: false,
            guest_clock: None,
        },
        drops: BTreeMap::new(),
        stepped: false,
        machine: (CpuUse::default(), CpuUse::default()),
    };
    change(&mut seen);
    seen
}

fn judged(direction: Direction, seen: &Seen) -> Run {
    let row = row(direction, Load::Idle);
    let intended = seen.carried.sending.frames.len() as u64;
    let is_guest = seen.carried.guest_clock.is_some();
    let label = Label {
        path: Path::TapBridge,
        end: if is_guest { End::Guest } else { End::StandIn },
        accelerator: is_guest.then_some(Accelerator::Tcg),
        direction,
        row: &row,
        round: 1,
        intended,
    };
    judge::judge(&label, seen)
}

/// The same frames with a guest.
fn seen_by_guest(state: &str) -> Seen {
    seen(90, |seen| seen.carried.guest_clock = Some((state.to_owned(), Nanos::new(400))))
}

#[test]
fn a_guest_is_measured_between_the_kernels_and_never_beside_a_stand_in() {
    let seen = seen_by_guest("following");
    for direction in Direction::ALL {
        let run = judged(direction, &seen);
        // The kernels' stamps at 2 and 21 µs; the programs at 1 and 22.
        assert_eq!(run.series.metric("network_latency_ns.p50"), Some(19_000.0), "{direction}");
        assert_eq!(run.series.metric("latency_ns.p50"), Some(21_000.0));
        assert_eq!(
            (run.series.path.as_str(), run.series.accelerator.as_deref(), run.series.clock.as_deref()),
            ("guest-tap-bridge", Some("tcg"), Some("vptp"))
        );
        let clocks = clocks(&[run.clone(), run]);
        assert_eq!((clocks.len(), clocks[0].outcome), (1, CheckOutcome::Passed));
        assert!(clocks[0].name.starts_with("guest-tap-bridge "), "{clocks:?}");
        assert_eq!(judge::fault(&seen, direction), None);
    }
    for direction in Direction::ALL {
        let lost = judge::fault(&seen_by_guest("unsynchronised"), direction);
        assert_eq!(lost.as_deref(), Some("the guest's clock was unsynchronised"));
        let mut no_stamp = seen_by_guest("following");
        no_stamp.carried.receiving.arrivals[3].stamp = None;
        no_stamp.carried.sending.frames[3].stamp = None;
        assert!(judge::fault(&no_stamp, direction).unwrap().contains("2 frames"));
    }
    let mut document = document(&[(Path::TapBridge, 10_000), (Path::TapXdp, 9_000)]);
    let mut guests = document.series.clone();
    for series in &mut guests {
        series.path = format!("guest-{}", series.path);
    }
    document.series.extend(guests);
    document.comparisons.clear();
    bars::compare(&mut document);
    let ratios = document.comparisons.iter().filter(|one| one.metric.ends_with("p50"));
    let pairs: Vec<_> =
        ratios.map(|one| (one.of.clone(), one.to.clone().unwrap(), one.bar.is_some())).collect();
    let pair = |of: &str, to: &str, has_bar| (of.to_owned(), to.to_owned(), has_bar);
    let (one, other) =
        (pair("tap-xdp", "tap-bridge", true), pair("guest-tap-xdp", "guest-tap-bridge", false));
    assert_eq!(pairs, [one.clone(), one, other.clone(), other]);
    assert!(
        document.published.iter().flat_map(|entry| &entry.ours).all(|ours| !ours.of.starts_with("guest"))
    );
}

#[test]
fn network_and_user_latency_begin_and_end_where_the_direction_says() {
    let seen = seen(90, |_| {});
    // Egress: the stand-in's call at 1 µs, the remote's stamp at 21, its user at 22. Ingress: the remote's stamp at 2, the read at 22.
    for (direction, network) in [(Direction::Egress, 20_000), (Direction::Ingress, 20_000)] {
        let series = judged(direction, &seen).series;
        assert_eq!(series.metric("network_latency_ns.p50"), Some(f64::from(network)), "{direction}");
        assert_eq!(series.metric("stable_latency_ns.max"), Some(f64::from(network)));
        assert_eq!(series.metric("latency_ns.p50"), Some(21_000.0));
        assert_eq!(series.metric("after_opening_ns.p50"), Some(1_000.0));
        assert_eq!(series.metric("wake_up_ns.p50"), Some(1_000.0));
        assert_eq!(
            (series.lost, series.lost_uncounted, series.spikes_over_500us),
            (Some(0), Some(0), Some(0))
        );
        assert_eq!(judge::fault(&seen, direction), None);
    }
}

#[test]
fn a_loss_is_held_against_the_counters() {
    let lossy = |drops: &[(&str, u64)]| {
        let seen = seen(90, |seen| {
            seen.carried.receiving.arrivals.remove(40);
            (seen.carried.sending.load_sent, seen.carried.receiving.load_received) = (100, 98);
            seen.drops = drops.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect();
        });
        judged(Direction::Egress, &seen).series
    };
    let uncounted = lossy(&[]);
    assert_eq!((uncounted.lost, uncounted.lost_uncounted), (Some(1), Some(3)));
    assert_eq!(lossy(&[("vm0_tx_dropped", 2)]).lost_uncounted, Some(1));
    let counted = lossy(&[("vm0_tx_dropped", 2), ("receiver_socket", 1)]);
    assert_eq!((counted.lost_uncounted, counted.dropped["vm0_tx_dropped"]), (Some(0), 2));
    // Frames that the slow path took are not lost.
    assert_eq!(lossy(&[(datapath::SLOW_PATH, 50)]).lost_uncounted, Some(3));
}

#[test]
fn copies_and_frames_out_of_order_are_counted_once() {
    let seen = seen(90, |seen| {
        let copy = seen.carried.receiving.arrivals[3];
        seen.carried.receiving.arrivals.push(copy);
        seen.carried.receiving.arrivals.swap(10, 11);
    });
    let series = judged(Direction::Egress, &seen).series;
    assert_eq!((series.duplicates, series.reordered, series.lost), (Some(1), Some(1), Some(0)));
}

#[test]
fn every_spike_has_a_cause() {
    let seen = seen(90, |seen| {
        for (frame, micros) in [(5, 700), (50, 1_500)] {
            let arrival = &mut seen.carried.receiving.arrivals[frame];
            arrival.received_at = arrival.received_at.saturating_add(Nanos::from_micros(micros));
            arrival.gap = Nanos::from_micros(if frame == 5 { micros } else { 1 });
        }
    });
    let run = judged(Direction::Ingress, &seen);
    assert_eq!((run.series.spikes_over_500us, run.series.spikes_over_1ms), (Some(2), Some(1)));
    let causes: Vec<_> = run.spikes.iter().map(|s| (s.cause.as_str(), s.over_500us, s.over_1ms)).collect();
    assert_eq!(causes, [("receiver-stalled", 1, 0), ("unknown", 1, 1)]);
    assert_eq!(run.greatest[0].sequence, 50);
    assert!(run.greatest.iter().all(|spike| !spike.detail.is_empty()));
    // The stable part has none of them.
    let stable = run.stable.unwrap();
    assert!(stable.first > 5 && !(stable.first..stable.first + stable.frames).contains(&50), "{stable:?}");
}

#[test]
fn a_spike_may_have_its_cause_on_the_other_host() {
    // A sample each 100 ms; the hypervisor took the other host's CPU between the first two.
    let samples = |steal: u64| -> Vec<Sample> {
        let sample = |(index, steal): (u64, u64)| {
            let at = 999_900_000_000 + index * 100_000_000;
            let text = serde_json::to_string(&Sample::default())
                .unwrap()
                .replace("\"at_ns\":0", &format!("\"at_ns\":{at}"));
            serde_json::from_str(&text.replace("\"steal_ticks\":0", &format!("\"steal_ticks\":{steal}")))
                .unwrap()
        };
        [(0, 0), (1, 0), (2, steal), (3, steal), (4, steal)].map(sample).into()
    };
    let seen = seen(90, |seen| {
        let late = &mut seen.carried.receiving.arrivals[5].stamp;
        *late = late.map(|at| at.saturating_add(Nanos::from_micros(900)));
        seen.carried.samples = samples(0);
        seen.carried.there = Some(("ssh:plc".to_owned(), samples(9)));
    });
    let run = judged(Direction::Egress, &seen);
    assert_eq!(run.greatest.len(), 1);
    assert!(run.greatest[0].detail.starts_with("ssh:plc: "), "{:?}", run.greatest);
    assert_eq!((run.greatest[0].cause.as_str(), run.greatest[0].host.steal_ticks), ("steal", 9));
}

#[test]
fn with_two_hosts_each_end_has_a_cpu_of_its_own() {
    let hosts = Hosts {
        remote: Remote { target: "ssh:plc".parse().unwrap(), ssh_config: None, ktsn: "ktsn".to_owned() },
        uplinks: ["eth1", "eth1"].map(str::to_owned),
        within: Nanos::from_micros(1),
        version: String::new(),
    };
    let setup = Setup { functional: false, ..Setup::nowhere() };
    let two = Plan { hosts: Some(hosts), setup, ..plan() };
    two.check().unwrap();
    for (end, guest_cpu, near) in
        [(End::StandIn, None, "the stand-in SCHED_FIFO"), (End::Guest, Some(0), "the guest (all of QEMU's")]
    {
        let placement = two.placement(end);
        assert_eq!((placement.switch_cpu, placement.guest_cpu), (1, guest_cpu), "{end}");
        let words = two.placement_in_words(end);
        assert!(words.starts_with(near) && words.ends_with("on CPU 1 of ssh:plc"), "{words}");
    }
    let together = Plan { sharing: Sharing::Together, ..two.clone() };
    assert_eq!(together.check().unwrap_err().exit_status(), 2);
    // A functional run has no places.
    let functional = Plan { setup: Setup::nowhere(), ..two };
    assert!(functional.placement_in_words(End::StandIn).starts_with("none: "));
    assert!(datapath::missing(Path::TapXdp, true).unwrap().starts_with("xdp_driver_missing: "));
    assert_eq!(
        (datapath::missing(Path::TapXdp, false), datapath::missing(Path::Macvtap, true)),
        (None, None)
    );
}

#[test]
fn frames_without_a_stamp_void_the_run() {
    let no_stamp = seen(90, |seen| seen.carried.sending.frames[7].stamp = None);
    assert!(judge::fault(&no_stamp, Direction::Ingress).unwrap().contains("1 frames"));
    assert_eq!(judge::fault(&no_stamp, Direction::Egress), None);
    let stepped = seen(90, |seen| seen.stepped = true);
    assert!(judge::fault(&stepped, Direction::Egress).unwrap().contains("stepped"));
}

/// A document with these medians of the network latency, idle, in both directions.
fn document(medians: &[(Path, i64)]) -> Document {
    let mut document = Document::new("datapaths", Vec::new());
    for (path, direction) in medians.iter().flat_map(|median| Direction::ALL.map(|d| (median, d))) {
        let mut series = judged(direction, &seen(90, |_| {})).series;
        series.path = path.0.to_string();
        if let Some(network) = &mut series.network_latency_ns {
            network.p50 = path.1;
        }
        document.add_series([series]);
    }
    document.set_parameters(&serde_json::json!({ PARAMETER: Account::default() }));
    bars::compare(&mut document);
    document
}

#[test]
fn medians_by_two_clocks_have_no_bar() {
    let mut document =
        document(&[(Path::TapBridge, 10_000), (Path::OvsAfxdp, 9_000), (Path::OvsDpdk, 6_100)]);
    let two = serde_json::json!({
        "remote": "ssh:plc", "clock_bound_ns": 9_000, "clock_within_ns": 9_000, "clock_here": null, "clock_there": null, "uplink": "eth1",
        "remote_uplink": "eth1", "environment_there": null
    });
    document.parameters.insert(ktsn_measure::hosts::PARAMETER.to_owned(), two);
    document.comparisons.clear();
    bars::compare(&mut document);
    let bars = document.comparisons.iter().filter(|comparison| comparison.bar.is_some());
    let metrics: Vec<_> = bars.map(|comparison| (comparison.metric.as_str(), comparison.holds)).collect();
    // What was lost needs no clock.
    assert_eq!(metrics, [("lost_uncounted", Some(true)); 6]);
    assert_eq!(document.comparisons.len(), 10);
}

#[test]
fn bars_are_those_of_the_faster_path_in_the_driver_and_of_dpdk() {
    let document = document(&[
        (Path::TapBridge, 10_000),
        (Path::TapXdp, 9_000),
        (Path::OvsAfxdp, 12_000),
        (Path::OvsDpdk, 6_100),
    ]);
    let of = |path: &str| {
        let mine = document.comparisons.iter().filter(move |c| c.of == path && c.metric.ends_with("p50"));
        mine.map(|c| (c.load.clone().unwrap(), c.bar, c.holds)).collect::<Vec<_>>()
    };
    for (path, bar, holds) in
        [("tap-xdp", Some(1.0), Some(true)), ("ovs-afxdp", None, None), ("ovs-dpdk", Some(0.6), Some(false))]
    {
        let expected = ["egress-idle", "ingress-idle"].map(|load| (load.to_owned(), bar, holds));
        assert_eq!(of(path), expected, "{path}");
    }
    let lost = document.comparisons.iter().filter(|c| c.metric == "lost_uncounted" && c.holds == Some(true));
    assert_eq!(lost.count(), 8);
    assert!(bars::violations(&document).is_empty());
    let check = &document.checks[0];
    assert_eq!(check.outcome, CheckOutcome::Passed, "{check:?}");
}

#[test]
fn the_same_median_is_not_faster_and_published_figures_have_ours() {
    let document = document(&[(Path::TapBridge, 10_000), (Path::TapXdp, 10_000)]);
    let held: Vec<_> = document.comparisons.iter().filter(|c| c.bar == Some(1.0)).map(|c| c.holds).collect();
    assert_eq!(held, [Some(false); 2]);
    let bridge =
        document.published.iter().find(|p| p.of == "tap+bridge, alone" && p.metric.ends_with("mean"));
    let bridge = bridge.unwrap();
    assert_eq!((bridge.value, bridge.ours[0].value), (65_900.0, 20_000.0));
    assert!(document.published.iter().any(|p| p.of == "VFIO, alone" && p.ours.is_empty()));
}

#[test]
fn a_spike_without_a_cause_fails_the_check() {
    let mut document = document(&[(Path::TapBridge, 10_000)]);
    document.checks.clear();
    for series in document.series.iter_mut().filter(|series| series.round == Round::All) {
        series.spikes_over_500us = Some(1);
    }
    bars::compare(&mut document);
    assert_eq!(document.checks[0].outcome, CheckOutcome::Failed);
}
