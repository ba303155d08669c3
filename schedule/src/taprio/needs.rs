// SPDX-License-Identifier: Apache-2.0
//! What a device must have for a taprio command that Linux would take from its text.

use crate::schedule::{Schedule, Taprio};
use crate::units::show_speed;

/// The shortest frame that Linux thinks of, in bits: 60 octets.
const FRAME_BITS: u128 = 480;
/// Any link is as fast.
const SPEED_MIN: u128 = 10_000_000;
/// Any device takes as long frames.
const MTU_MIN: u32 = 1_500;

/// Each need in words; empty without a `taprio` mapping.
#[must_use]
pub fn needs(schedule: &Schedule) -> Vec<String> {
    let Some(taprio) = &schedule.taprio else { return Vec::new() };
    let mut needs = vec![queues(taprio)];
    if taprio.flags == Some(2) {
        needs.push("taprio offload and a PTP hardware clock (flags 0x2)".to_owned());
    }
    if taprio.is_preemptible.contains(&true) {
        needs.push("frame preemption (fp P)".to_owned());
    }
    let admin = &schedule.admin;
    let entries = admin.control_list.len().max(1) as i64;
    let shortest = admin.control_list.iter().map(|entry| entry.interval.get()).min();
    let shortest = shortest.map(|interval| interval.min(admin.cycle_time.get() / entries).max(1));
    if let Some(nanos) = shortest.and_then(|nanos| u128::try_from(nanos).ok()) {
        let speed = (FRAME_BITS * 1_000_000_000).div_ceil(nanos);
        if speed > SPEED_MIN {
            let speed = show_speed(u64::try_from(speed).unwrap_or(u64::MAX));
            needs.push(format!("a link of at least {speed}bit/s, as Linux takes no interval shorter than a frame of 60 octets"));
        }
    }
    if let Some(octets) = schedule.queue_max_sdu.iter().flatten().max().filter(|octets| **octets > MTU_MIN) {
        needs.push(format!("an MTU of {octets} octets that it can have (max-sdu)"));
    }
    needs
}

fn queues(taprio: &Taprio) -> String {
    let Some(num_tc) = taprio.num_tc else {
        return "a taprio that runs already, as num_tc is not given".to_owned();
    };
    let ends = taprio.queues.iter().map(|(count, offset)| u32::from(*count) + u32::from(*offset));
    let count = ends.max().unwrap_or(0).max(num_tc.into());
    if count == 1 {
        "a transmit queue, and the driver's support of several".to_owned()
    } else {
        format!("{count} transmit queues")
    }
}
