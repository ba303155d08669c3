// SPDX-License-Identifier: Apache-2.0
//! Nothing is allocated between opening a port and dropping it, whatever happens to the frames.

#[path = "counting/sys.rs"]
#[allow(unsafe_code)]
mod counting;
mod support;

use counting::allocation_count;
use ktsn_port::memory::{Completion, Memory};
use ktsn_port::{AnyPort, Options, Port, StageId, af_packet::AfPacket, af_xdp::AfXdp};
use support::{Bed, frame, unsupported};

fn work(port: &mut AnyPort, stages: &mut Vec<StageId>, frame: &[u8]) {
    for round in 0..50 {
        stages.clear();
        while stages.len() < 100 {
            match port.stage_copy(frame) {
                Ok(stage) => stages.push(stage),
                Err(_) => break,
            }
        }
        let failed_before = port.counters().failed_count;
        match round % 3 {
            0 | 1 => {
                let refused = stages.iter().filter(|stage| port.commit(**stage).is_err()).count();
                assert_eq!(port.counters().failed_count - failed_before, refused as u64);
            }
            _ => stages.iter().for_each(|stage| port.abandon(*stage)),
        }
        port.reap();
        assert!(port.counters().staged_count > 0 && port.occupancy().total() == 256);
    }
}

fn check(port: &mut AnyPort) {
    let mut stages = Vec::with_capacity(256);
    let frame = frame(1, 200);
    let before = allocation_count();
    work(port, &mut stages, &frame);
    assert_eq!(allocation_count() - before, 0, "{}", port.capabilities().adapter);
}

#[test]
fn an_open_port_allocates_nothing() {
    let seen = allocation_count();
    drop(std::hint::black_box(Box::new(1)));
    assert!(allocation_count() > seen, "the counter counts");

    let mut memory = Memory::new(256, 1500).unwrap();
    memory.set_completion(Completion::AtReap { at_most: 200 });
    check(&mut AnyPort::from(memory));

    let bed = Bed::new();
    check(&mut bed.with_device(|device| AfPacket::open(device, &Options::default())).unwrap().into());
    let mut port: AnyPort = match bed.with_device(|device| AfXdp::open(device, &Options::default())) {
        Ok(port) => port.into(),
        Err(error) if unsupported(&error) => return println!("SKIP af_xdp: {error}"),
        Err(error) => panic!("{error}"),
    };
    check(&mut port);
    // The refusals too: a link without carrier, then no device at all.
    bed.far(&format!("link set {} down", support::FAR));
    check(&mut port);
    bed.near(&format!("link del {}", support::NEAR));
    check(&mut port);
}
