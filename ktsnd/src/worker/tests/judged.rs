// SPDX-License-Identifier: Apache-2.0
//! Datagrams that only the kernel can send: their fragments have one window.

use std::net::IpAddr;

use ktsn_model::{DropReason, Priority};
use ktsn_resolve::{AttachmentIndex, Flow, Marks};
use ktsn_time::{Monotonic, Tai, TxTime};

use super::gates::gated;
use super::world::{POD, REMOTE};
use super::{MS, US};
use crate::queue::worker_to_thread;
use crate::worker::{Command, ForPasser, Judged, Judging};

/// Class 6 is open from 300 µs to 400 µs of each millisecond, at 1 Gbit/s; 20 µs go to the hand-over.
#[test]
fn clause_8_6_8_4_fragments_wait_for_a_window_that_holds_all_of_them() {
    let (mut world, start) = gated();
    let (passer, passed) = worker_to_thread(8).unwrap();
    world.worker.passer = Some(passer);
    let (mut number, now) = (0, world.clocks.at());
    let mut judge = |payload_octets, tx_time, priority| -> Judged {
        number += 1;
        let flow = Flow {
            attachment: AttachmentIndex(0),
            uid: 0,
            is_connected: false,
            bound: Some(IpAddr::V4(POD)),
            source_port: 5000,
            destination: IpAddr::V4(REMOTE),
            destination_port: 9,
            scope: 0,
            traffic_class: 0,
            hop_limit: 0,
            marks: Marks::default(),
        };
        let priority = Priority::capped(priority);
        let judging =
            Judging { netns_cookie: 5, number, flow, priority, payload_octets, segment_octets: 0, tx_time };
        world.outbox.send(Command::Judge(Box::new(judging))).unwrap();
        world.worker.apply_commands();
        match passed.try_recv() {
            Ok(ForPasser::Judged(5, of, judged)) if of == number => judged,
            other => panic!("{other:?}"),
        }
    };
    let tai = |at| TxTime::Tai(Tai::from_nanos(start + at));
    let opens = |at| Ok(Some(Tai::from_nanos(start + at)));
    // 8,000 octets take 69 µs, 9,000 take 77 and 10,000 take 86.
    assert_eq!(judge(8_000, tai(100 * US), 6), opens(300 * US));
    assert_eq!(judge(8_000, tai(305 * US), 6), Ok(None), "at its own time");
    assert_eq!(judge(8_000, tai(320 * US), 6), opens(MS + 300 * US), "the rest of the window is too short");
    assert_eq!(judge(8_000, TxTime::Monotonic(Monotonic::from_nanos(now + 100 * US)), 6), opens(300 * US));
    assert_eq!(judge(8_000, TxTime::Monotonic(Monotonic::ZERO), 6), opens(300 * US), "in the past");
    assert_eq!(judge(9_000, tai(0), 6), opens(300 * US));
    assert_eq!(judge(10_000, tai(0), 6), Err(DropReason::GateNeverFits));
    assert_eq!(judge(65_507, tai(100 * US), 0), Ok(None), "another class is always open");
}
