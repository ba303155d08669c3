// SPDX-License-Identifier: Apache-2.0
//! The program itself, run by the kernel on frames that no device has received (BPF_PROG_TEST_RUN; root), held against `reference`.

use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use super::*;
use crate::test_run;
use frames::{Given, given, plain};
use reference::{ENDS, Expected, OWN, POD, PORT, TARGETS, UNBOUND_SLOT};

mod frames;
mod reference;

/// TCX's verdicts.
const GO_ON: i32 = -1;
const REDIRECT: i32 = 7;
/// BPF_PROG_TEST_RUN takes a page less the kernel's own room.
const FRAME_OCTETS_MAX: usize = 3_400;

/// Does this on a thread with a network of its own, whose only device is the loopback one.
fn inside(work: impl FnOnce() + Send) {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            test_run::own_network().expect("root may make network namespaces");
            work();
        });
        thread.join().expect("it ran");
    });
}

/// The program with all targets of the reference; each slot's device is there but one's.
fn loaded() -> Ingress {
    let mut ingress = Ingress::load().expect("root may load programs");
    for (_, delivery) in TARGETS.iter().filter(|(_, delivery)| delivery.slot != UNBOUND_SLOT) {
        ingress.set_device(delivery.slot, Some(1)).unwrap();
    }
    ingress.set_targets(TARGETS.iter().copied()).unwrap();
    ingress.set_ends(ends()).unwrap();
    ingress.set_own(OWN).unwrap();
    ingress
}

fn ends() -> impl Iterator<Item = End> {
    ENDS.into_iter().map(|(vni, local, remote)| End { vni, port: PORT, local, remote })
}

/// Verdict, and the frame as the program left it.
fn run(ingress: &Ingress, given: &Given) -> (i32, Vec<u8>) {
    let mut context = [0; 48];
    context[44] = given.segment_octets;
    let mut out = Vec::with_capacity(4096);
    let verdict = test_run::run(&ingress.loaded.program, &given.frame, &context, &mut out).expect("it runs");
    (verdict, out)
}

/// Frames counted for all slots, octets aside.
fn counted(ingress: &Ingress) -> u64 {
    let of = |slot| {
        let tallies = ingress.tallies(slot).unwrap();
        tallies.iter().sum::<u64>() - tallies[Tallied::Octets as usize]
    };
    (0..5).map(of).sum()
}

#[test]
fn frames_are_taken_exactly_when_the_reference_says_so_rfc_7348() {
    inside(|| {
        let ingress = loaded();
        let counts = std::cell::Cell::new((0_u64, 0_u64, 0_u64));
        let mut runner = TestRunner::new(ProptestConfig { cases: 30_000, ..ProptestConfig::default() });
        let result = runner.run(&given(), |given| {
            // BPF_PROG_TEST_RUN itself refuses frames that end inside of the IP header.
            let headers = match given.frame[12..14] {
                [8, 0] => 34,
                _ => 54,
            };
            prop_assume!(given.frame.len() >= headers && given.frame.len() <= FRAME_OCTETS_MAX);
            let before = counted(&ingress);
            let (verdict, out) = run(&ingress, &given);
            let grown = counted(&ingress) - before;
            let (mut taken, mut left, mut others) = counts.get();
            match reference::expected(&given) {
                Expected::Taken(frame) => {
                    prop_assert_eq!(verdict, REDIRECT);
                    prop_assert_eq!(out, frame);
                    prop_assert_eq!(grown, 1);
                    taken += 1;
                }
                Expected::Left => {
                    prop_assert_eq!(verdict, GO_ON);
                    prop_assert_eq!(&out, &given.frame, "untouched");
                    prop_assert_eq!(grown, 1, "counted for the pod");
                    left += 1;
                }
                Expected::NotOurs => {
                    prop_assert_eq!(verdict, GO_ON);
                    prop_assert_eq!(&out, &given.frame, "untouched");
                    prop_assert_eq!(grown, 0);
                    others += 1;
                }
            }
            counts.set((taken, left, others));
            Ok(())
        });
        result.unwrap();
        let (taken, left, others) = counts.get();
        assert!(taken > 2_000 && left > 2_000 && others > 2_000, "all often: {taken}, {left}, {others}");
        let failed: u64 = (0..5).map(|slot| ingress.tallies(slot).unwrap()[Tallied::Failed as usize]).sum();
        assert_eq!(failed, 0);
    });
}

#[test]
fn every_cut_of_a_frame_is_left() {
    inside(|| {
        let ingress = loaded();
        let whole = plain(64);
        assert_eq!(run(&ingress, &whole).0, REDIRECT);
        for octets in 34..whole.frame.len() {
            let cut = Given { frame: whole.frame[..octets].to_vec(), ..whole.clone() };
            assert_eq!(run(&ingress, &cut), (GO_ON, cut.frame), "{octets} octets");
        }
    });
}

#[test]
fn each_reason_is_counted_by_its_name() {
    inside(|| {
        let ingress = loaded();
        let changed = |what: &dyn Fn(&mut Given), tallied: Tallied| {
            let mut given = plain(64);
            what(&mut given);
            let before = ingress.tallies(0).unwrap();
            assert_eq!(run(&ingress, &given).0, GO_ON, "{tallied:?}");
            let after = ingress.tallies(0).unwrap();
            for one in Tallied::ALL {
                assert_eq!(after[one as usize] - before[one as usize], u64::from(one == tallied), "{one:?}");
            }
        };
        const INNER: usize = 14 + 20 + 8 + 8 + 14;
        changed(&|given| given.segment_octets = 10, Tallied::Segmented);
        changed(&|given| given.frame[INNER + 9] = 6, Tallied::NotUdp);
        changed(&|given| given.frame[INNER + 6] = 0x20, Tallied::Fragment);
        changed(&|given| given.frame[INNER] = 0x46, Tallied::Options);
        changed(&|given| given.frame[INNER + 10] ^= 1, Tallied::Malformed);
        // The outer checksum, of a datagram that has one.
        changed(&|given| given.frame[14 + 20 + 6] = 1, Tallied::Checksum);
        changed(&|given| given.frame[INNER - 14] ^= 2, Tallied::OtherMac);
        changed(&|given| *given = frames::with_hop_limit(1), Tallied::HopLimit);
        changed(&|given| *given = plain(1_500), Tallied::OverMtu);
        changed(&|given| *given = frames::with_congestion(), Tallied::Congestion);
        changed(&|given| *given = frames::with_source([127, 0, 0, 1]), Tallied::Source);
        changed(&|given| *given = frames::with_source([10, 1, 1, 200]), Tallied::Source);
        changed(&|given| *given = frames::from_end([192, 0, 2, 200]), Tallied::Source);
        changed(&|given| *given = frames::from_end([192, 0, 2, 4]), Tallied::TunnelEnd);
        ingress.set_device(0, None).unwrap();
        changed(&|_| {}, Tallied::Gone);
        ingress.set_device(0, Some(1)).unwrap();
        let before = ingress.tallies(0).unwrap();
        assert_eq!(run(&ingress, &plain(64)).0, REDIRECT);
        let after = ingress.tallies(0).unwrap();
        let octets = after[Tallied::Octets as usize] - before[Tallied::Octets as usize];
        assert_eq!(octets, 14 + 20 + 8 + 64);
        ingress.clear_tallies(0).unwrap();
        assert_eq!(ingress.tallies(0).unwrap(), [0; Tallied::ALL.len()]);
    });
}

#[test]
fn targets_are_replaced() {
    inside(|| {
        let mut ingress = loaded();
        assert_eq!(run(&ingress, &plain(64)).0, REDIRECT);
        ingress.set_targets(TARGETS[1..].iter().copied()).unwrap();
        assert_eq!(run(&ingress, &plain(64)).0, GO_ON);
        let (target, delivery) = TARGETS[0];
        let smaller = Delivery { packet_octets_max: 20 + 8 + 63, ..delivery };
        ingress.set_targets([(target, smaller)]).unwrap();
        assert_eq!((run(&ingress, &plain(64)).0, run(&ingress, &plain(63)).0), (GO_ON, REDIRECT));
        let other = Delivery { routed: Some(Routed { pod: [9; 6], ..delivery.routed.unwrap() }), ..delivery };
        ingress.set_targets([(target, other)]).unwrap();
        assert_eq!(run(&ingress, &plain(64)).1[..6], [9; 6]);
        let many = (0..=TARGETS_MAX as u32).map(|vni| (Target { vni, ..target }, delivery));
        assert!(matches!(ingress.set_targets(many), Err(BpfError::TooMany { .. })));
        assert_eq!(run(&ingress, &plain(64)).0, REDIRECT, "as before");
        let others = (0..=TARGETS_MAX as u32).map(|vni| (Target { vni: vni + 1000, ..target }, delivery));
        assert!(matches!(ingress.set_targets(others), Err(BpfError::TooMany { .. })));
        assert_eq!(run(&ingress, &plain(64)).0, GO_ON, "what goes is gone");
        ingress.set_targets(TARGETS.iter().copied()).unwrap();
        assert_eq!(run(&ingress, &plain(64)).1[..6], POD);
        // Another delivery is not put in, and the one before does not stay.
        assert_eq!(ingress.keep_targets(TARGETS.iter().copied()).unwrap(), 0);
        assert_eq!(ingress.keep_targets([(target, other)]).unwrap(), TARGETS.len());
        assert_eq!(run(&ingress, &plain(64)).0, GO_ON);
    });
}

#[test]
fn tunnel_ends_and_own_addresses_are_replaced() {
    inside(|| {
        let mut ingress = loaded();
        let (good, own) = (plain(64), frames::with_source([10, 1, 1, 200]));
        let runs = |ingress: &Ingress| (run(ingress, &good).0, run(ingress, &own).0);
        assert_eq!(runs(&ingress), (REDIRECT, GO_ON));
        ingress.set_own([]).unwrap();
        assert_eq!(runs(&ingress), (REDIRECT, REDIRECT), "another node's by now");
        ingress.set_own(OWN).unwrap();
        // The other network's ends are not this one's.
        ingress.set_ends(ends().filter(|end| end.vni != 1)).unwrap();
        assert_eq!(runs(&ingress), (GO_ON, GO_ON));
        ingress.set_ends(ends()).unwrap();
        assert_eq!(runs(&ingress), (REDIRECT, GO_ON));
        let end = ends().next().unwrap();
        let many = (0..=ENDS_MAX as u32).map(|vni| End { vni, ..end });
        assert!(matches!(ingress.set_ends(many), Err(BpfError::TooMany { .. })));
        assert_eq!(runs(&ingress), (REDIRECT, GO_ON), "as before");
        let others = (0..=ENDS_MAX as u32).map(|vni| End { vni: vni + 1000, ..end });
        assert!(matches!(ingress.set_ends(others), Err(BpfError::TooMany { .. })));
        assert_eq!(runs(&ingress), (GO_ON, GO_ON), "what goes is gone");
    });
}

#[test]
fn a_device_that_goes_is_taken_out_by_the_kernel() {
    inside(|| {
        let ip = |arguments: &str| {
            let done = std::process::Command::new("ip").args(arguments.split(' ')).status().expect("ip");
            assert!(done.success(), "{arguments}");
        };
        let ingress = loaded();
        ip("link add d0 index 77 type bridge");
        ingress.set_device(0, Some(77)).unwrap();
        assert_eq!(ingress.device(0), Some(77));
        assert_eq!(run(&ingress, &plain(64)).0, REDIRECT);
        ip("link del d0");
        assert_eq!((ingress.device(0), run(&ingress, &plain(64)).0), (None, GO_ON));
        // Another device with its number.
        ip("link add d1 index 77 type bridge");
        assert_eq!((ingress.device(0), run(&ingress, &plain(64)).0), (None, GO_ON));
        assert!(ingress.set_device(0, Some(4242)).is_err());
    });
}

#[test]
fn the_program_loads_and_its_place_is_known() {
    inside(|| {
        let mut ingress = Ingress::load().unwrap();
        assert_eq!(ingress.place().unwrap(), Place::Nowhere);
        ingress.attach(1).unwrap(); // lo of a namespace of this test's own
        assert_eq!(ingress.place().unwrap(), Place::First);
        let mut other = Ingress::load().unwrap();
        other.attach(1).unwrap();
        assert_eq!((ingress.place().unwrap(), other.place().unwrap()), (Place::Behind, Place::First));
        ingress.attach(1).unwrap();
        assert_eq!((ingress.place().unwrap(), other.place().unwrap()), (Place::First, Place::Behind));
        assert!(ingress.attach(4242).is_err());
        assert_eq!(ingress.place().unwrap(), Place::Nowhere);
        ingress.detach();
        assert_eq!((ingress.place().unwrap(), other.place().unwrap()), (Place::Nowhere, Place::First));
    });
}
