// SPDX-License-Identifier: Apache-2.0
//! What `ktsn status` says of ktsnd itself: whether it serves, its clock, its threads, its warnings.
//!
//! In: the answer to Health. Out: lines.

use ktsn_proto::v1;

use crate::output::span;

/// The lines below the first one.
pub(super) fn text(health: &v1::HealthReply) -> String {
    let synchronised = if health.clock_synchronised { "synchronised" } else { "NOT SYNCHRONISED" };
    let mut text = format!("clock {synchronised}, TAI - UTC = {} s\n", health.tai_offset_seconds);
    if let Some(clock) = &health.clock {
        text.push_str(&clock_text(clock));
    }
    for thread in health.threads.iter().filter(|thread| thread.is_stuck) {
        let of = if thread.device.is_empty() { String::new() } else { format!(" of {}", thread.device) };
        let silent = span(thread.silent_ns);
        text.push_str(&format!("STUCK: thread {}{of} has not answered for {silent}\n", thread.name));
    }
    for warning in &health.warnings {
        text.push_str(&format!("warning: {warning}\n"));
    }
    text
}

fn clock_text(clock: &v1::ClockState) -> String {
    let state = if clock.is_good { "good".to_owned() } else { format!("NOT GOOD ({})", clock.reason) };
    let error = clock.error_ns.map(|error| format!(", error at most {}", span(error))).unwrap_or_default();
    let mut text = format!(
        "clock by {}: {state} for {}{error}, {} transitions, {} steps\n",
        clock.source,
        span(clock.for_ns),
        clock.transitions,
        clock.steps
    );
    if !clock.holding.is_empty() {
        text.push_str(&format!(
            "frames wait for the clock, or are dropped, at: {}\n",
            clock.holding.join(", ")
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stuck_thread_and_a_clock_that_is_not_good_are_told() {
        let thread = |name: &str, device: &str, is_stuck| v1::ThreadState {
            name: name.to_owned(),
            device: device.to_owned(),
            silent_ns: 3_000_000_000,
            is_stuck,
        };
        let clock = v1::ClockState {
            source: "kernel".to_owned(),
            reason: "unsynchronised".to_owned(),
            for_ns: 2_000_000_000,
            transitions: 3,
            error_ns: Some(16_000_000),
            holding: vec!["eth1".to_owned()],
            ..v1::ClockState::default()
        };
        let health = v1::HealthReply {
            threads: vec![thread("ktsn-worker", "eth1", true), thread("ktsn-registrar", "", false)],
            clock: Some(clock),
            ..v1::HealthReply::default()
        };
        let text = text(&health);
        for part in [
            "STUCK: thread ktsn-worker of eth1 has not answered for ",
            "clock by kernel: NOT GOOD (unsynchronised) for ",
            "3 transitions, 0 steps",
            "frames wait for the clock, or are dropped, at: eth1",
        ] {
            assert!(text.contains(part), "{part:?} is not in\n{text}");
        }
        assert!(!text.contains("registrar"), "{text}");
        let json = serde_json::json!(health);
        assert_eq!(json["threads"][0]["is_stuck"], true);
        assert_eq!(json["clock"]["is_good"], false);
    }
}
