// SPDX-License-Identifier: Apache-2.0
//! The programs, run by the kernel on frames that no device has received (BPF_PROG_TEST_RUN; root), with the loopback device of a
//! network namespace of the thread's own.

use super::*;
use crate::test_run;

const XDP_PASS: i32 = 2;
const XDP_REDIRECT: i32 = 4;
/// The only device of a new network namespace.
const LOOPBACK: u32 = 1;
const GUEST: Mac = [2, 0, 0, 0, 0, 1];
const REMOTE: Mac = [2, 0, 0, 0, 0, 2];

fn frame(to: Mac, from: Mac, octets: usize) -> Vec<u8> {
    let mut frame = [&to[..], &from, &[8, 0]].concat();
    frame.resize(octets, 7);
    frame
}

/// Runs `work` in a network namespace of its own: a test is run by a thread of its own.
fn alone(work: impl FnOnce() + Send) {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            test_run::own_network().expect("root has rights on networks");
            work();
        });
        thread.join().expect("the work is done");
    });
}

fn verdict(program: &Forward, frame: &[u8]) -> i32 {
    let mut out = Vec::with_capacity(2048);
    // struct xdp_md: data, data_end, and no device: the kernel takes loopback.
    let context = [0, frame.len() as u32, 0, 0, 0, 0];
    let verdict =
        test_run::run(&program.loaded.program, frame, &context, &mut out).expect("the kernel runs it");
    assert_eq!(out, frame, "no octet is changed");
    verdict
}

#[test]
fn the_table_decides_and_what_it_does_not_know_is_the_kernels() {
    alone(|| {
        let program = Forward::uplink().expect("loaded");
        let to_guest = frame(GUEST, REMOTE, 60);
        assert_eq!(verdict(&program, &to_guest), XDP_PASS, "an empty table");
        // The kernel runs the frame as if it came from the loopback device: a station there is one it came from.
        program.set_station(GUEST, LOOPBACK).expect("a station");
        assert_eq!(program.station(GUEST), Some(LOOPBACK));
        assert_eq!(verdict(&program, &to_guest), XDP_PASS, "never back to where it came from");
        assert_eq!(program.counted().unwrap(), Forwarded { forwarded: 0, unknown: 2, foreign: 0 });
        program.remove_station(GUEST).expect("removed");
        program.remove_station(GUEST).expect("a missing one is no error");
        assert_eq!(program.station(GUEST), None);
        let missing = program.set_station(GUEST, 4711).expect_err("there is no such device");
        assert!(missing.to_string().contains("bpf port"), "{missing}");
    });
}

/// A second device: a station behind it is forwarded to, by the uplink's program for every source, by the guest's for its own only.
#[test]
fn a_guest_speaks_in_its_own_name_only() {
    alone(|| {
        // A dummy cannot be made without netlink; a tap can.
        let tap = test_run::tap("ktsnfwd0").expect("a tap");
        let (uplink, guest) = (Forward::uplink().expect("loaded"), Forward::guest().expect("loaded"));
        for program in [&uplink, &guest] {
            program.set_station(GUEST, LOOPBACK).expect("a station");
            program.set_station(REMOTE, tap.ifindex).expect("a station");
        }
        assert_eq!(verdict(&uplink, &frame(REMOTE, [2; 6], 60)), XDP_REDIRECT, "any source");
        assert_eq!(verdict(&guest, &frame(REMOTE, GUEST, 60)), XDP_REDIRECT);
        assert_eq!(verdict(&guest, &frame(REMOTE, [2; 6], 60)), XDP_PASS, "an unknown source");
        assert_eq!(
            verdict(&guest, &frame(GUEST, REMOTE, 60)),
            XDP_PASS,
            "the source is behind another device"
        );
        assert_eq!(verdict(&guest, &frame([0xff; 6], GUEST, 60)), XDP_PASS, "broadcast is the bridge's");
        assert_eq!(guest.counted().unwrap(), Forwarded { forwarded: 1, unknown: 1, foreign: 2 });
        assert_eq!(uplink.counted().unwrap(), Forwarded { forwarded: 1, unknown: 0, foreign: 0 });
        drop(tap);
        // The kernel takes the device out of the table of ports with it.
        assert_eq!(verdict(&uplink, &frame(REMOTE, [2; 6], 60)), XDP_PASS);
    });
}

#[test]
fn a_program_is_in_the_driver_as_long_as_its_value_lives() {
    alone(|| {
        let tap = test_run::tap("ktsnfwd1").expect("a tap");
        let passing = Pass::attach(tap.ifindex).expect("attached");
        assert!(passing.is_attached().unwrap());
        let mut second = Forward::guest().expect("loaded");
        let error = second.attach(tap.ifindex).expect_err("XDP has room for one program");
        assert!(error.to_string().contains("attach"), "{error}");
        drop(passing);
        second.attach(tap.ifindex).expect("the driver is free again");
    });
}
