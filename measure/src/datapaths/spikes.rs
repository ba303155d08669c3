// SPDX-License-Identifier: Apache-2.0
//! Why a frame took long.
//!
//! In: how long, what its sender and its receiver saw, what the host counted in that tenth of a second and what it counts usually. Out: a
//! [`Cause`], always: [`Cause::Unknown`] where nothing stands out. The host's counters are given with each spike.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A latency above this is a spike.
pub const SPIKE_NS: i64 = 500_000;
/// A latency above this is counted as a great one, too.
pub const GREAT_SPIKE_NS: i64 = 1_000_000;

/// The rule in words, for the results.
pub const RULE: &str = "the excess is the latency minus the run's median. In this order: in a guest under TCG the excess is 500 µs or \
                        less (interpreted); a thread of the experiment, or of a guest's QEMU, waited in a run queue for half of the \
                        excess beyond what they usually wait; the receiver did not run for half of it while it \
                        was to poll, or the sender's call took half of it (steal, if the hypervisor took time in that tenth of a \
                        second); the hypervisor took time; tasks waited for a CPU for half of it beyond what is usual (PSI); \
                        interrupts, or soft interrupts of one kind, were twice the run's median and 100 more; else unknown";

/// What the host counted in a span.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Host {
    /// Length of the span, microseconds.
    pub span_us: u64,
    /// Ticks of 10 ms that the hypervisor took, all CPUs.
    pub steal_ticks: u64,
    /// Time in which some task waited for a CPU, microseconds; absent without PSI.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_pressure_us: Option<u64>,
    /// Time that the experiment's two threads waited in run queues, microseconds.
    pub waited_us: u64,
    /// Interrupts.
    pub interrupts: u64,
    /// Context switches.
    pub context_switches: u64,
    /// Soft interrupts by kind.
    pub softirqs: BTreeMap<String, u64>,
}

/// What the two ends saw of a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Evidence {
    /// The latency, nanoseconds.
    pub latency_ns: i64,
    /// The median of the run, nanoseconds.
    pub usual_ns: i64,
    /// How long the sender's call took, nanoseconds.
    pub call_ns: i64,
    /// Longest time between two looks of the receiver from when it was to wake for the frame until the frame came, nanoseconds.
    pub gap_ns: i64,
    /// An end is a guest that QEMU interprets.
    pub interpreted: bool,
}

ktsn_model::words! {
    /// Why a frame took long.
    pub enum Cause {
        /// QEMU interprets the guest: its usual latency is above or near the limit.
        Interpreted = "interpreted",
        /// A thread of the experiment was ready and waited for its CPU.
        RunQueue = "run-queue",
        /// The hypervisor took the CPU away.
        Steal = "steal",
        /// The receiver did not run while it was to poll, and waited in no run queue: a late timer, interrupts, or time taken uncounted.
        ReceiverStalled = "receiver-stalled",
        /// The sender's call took that long: work in the kernel, interrupts, or time taken uncounted.
        SenderStalled = "sender-stalled",
        /// Tasks waited for a CPU.
        CpuPressure = "cpu-pressure",
        /// Many interrupts.
        Interrupts = "interrupts",
        /// Many soft interrupts of one kind.
        SoftInterrupts = "soft-interrupts",
        /// Nothing stands out.
        Unknown = "unknown",
    }
}

/// One spike of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spike {
    /// The path.
    pub path: String,
    /// Direction and load.
    pub load: String,
    /// The round.
    pub round: u32,
    /// The frame, from 0.
    pub sequence: u64,
    /// When it was sent, seconds since the run's first frame.
    pub at_s: f64,
    /// Network latency, nanoseconds.
    pub latency_ns: i64,
    /// [`Cause`] in a word.
    pub cause: String,
    /// What shows the cause.
    pub detail: String,
    /// What the host counted around it.
    pub host: Host,
}

/// More than twice the usual, and 100 more.
const fn stands_out(count: u64, usual: u64) -> bool {
    count > usual.saturating_mul(2).saturating_add(100)
}

/// The cause of a spike by [`RULE`], and what shows it.
#[must_use]
pub fn attribute(evidence: &Evidence, host: &Host, usual: &Host) -> (Cause, String) {
    let excess = (evidence.latency_ns - evidence.usual_ns).max(0);
    if evidence.interpreted && excess <= SPIKE_NS {
        let usual = evidence.usual_ns / 1000;
        return (Cause::Interpreted, format!("a guest under TCG; the run's median is {usual} µs"));
    }
    let half = excess / 2;
    let half_us = u64::try_from(half / 1000).unwrap_or(0);
    let stolen = host.steal_ticks > 0;
    let steal = || format!("the hypervisor took {} ms", host.steal_ticks.saturating_mul(10));
    let beyond = |span: u64, usual: u64| span.saturating_sub(usual) >= half_us.max(1);
    if beyond(host.waited_us, usual.waited_us) {
        let (waited, usual) = (host.waited_us, usual.waited_us);
        return (
            Cause::RunQueue,
            format!("sender and receiver waited {waited} µs for their CPUs, usually {usual}"),
        );
    }
    let stalls = [
        (evidence.gap_ns, Cause::ReceiverStalled, "the receiver was to poll and did not run for"),
        (evidence.call_ns, Cause::SenderStalled, "the sender's call took"),
    ];
    if let Some((span, cause, words)) = stalls.into_iter().find(|(span, ..)| *span >= half.max(1)) {
        let seen = format!("{words} {} µs", span / 1000);
        return if stolen { (Cause::Steal, format!("{seen}; {}", steal())) } else { (cause, seen) };
    }
    if stolen {
        return (Cause::Steal, steal());
    }
    let usual_pressure = usual.cpu_pressure_us.unwrap_or(0);
    if let Some(waited) = host.cpu_pressure_us.filter(|&waited| beyond(waited, usual_pressure)) {
        return (Cause::CpuPressure, format!("tasks waited {waited} µs for a CPU, usually {usual_pressure}"));
    }
    if stands_out(host.interrupts, usual.interrupts) {
        return (Cause::Interrupts, format!("{} interrupts, usually {}", host.interrupts, usual.interrupts));
    }
    let usually = |kind: &str| usual.softirqs.get(kind).copied().unwrap_or(0);
    let loud = host.softirqs.iter().filter(|(kind, count)| stands_out(**count, usually(kind)));
    match loud.max_by_key(|(_, count)| **count) {
        Some((kind, count)) => {
            (Cause::SoftInterrupts, format!("{count} soft interrupts {kind}, usually {}", usually(kind)))
        }
        None => (Cause::Unknown, "nothing stands out; the host's counters are given".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPIKE: Evidence =
        Evidence { latency_ns: 700_000, usual_ns: 20_000, call_ns: 9_000, gap_ns: 5_000, interpreted: false };

    fn usual() -> Host {
        let softirqs = [("NET_RX".to_owned(), 200), ("TIMER".to_owned(), 50)].into();
        let cpu_pressure_us = Some(50);
        Host {
            span_us: 100_000,
            waited_us: 100,
            cpu_pressure_us,
            interrupts: 400,
            context_switches: 300,
            softirqs,
            ..Host::default()
        }
    }

    fn cause(evidence: Evidence, host: &Host) -> (Cause, String) {
        attribute(&evidence, host, &usual())
    }

    #[test]
    fn nothing_that_stands_out_is_unknown() {
        assert_eq!(cause(SPIKE, &usual()).0, Cause::Unknown);
        // Half of the excess is 340 µs: just below it, nothing is shown.
        let below = Evidence { call_ns: 339_999, gap_ns: 339_999, ..SPIKE };
        let host = Host { waited_us: 439, cpu_pressure_us: Some(389), interrupts: 900, ..usual() };
        assert_eq!(cause(below, &host).0, Cause::Unknown);
    }

    #[test]
    fn each_cause_is_shown_by_its_counter() {
        let half = 340;
        for (evidence, host, expected, word) in [
            (SPIKE, Host { waited_us: half + 100, steal_ticks: 1, ..usual() }, Cause::RunQueue, "440 µs"),
            (
                Evidence { gap_ns: 340_000, call_ns: 400_000, ..SPIKE },
                usual(),
                Cause::ReceiverStalled,
                "did not run for 340",
            ),
            (Evidence { call_ns: 400_000, ..SPIKE }, usual(), Cause::SenderStalled, "took 400 µs"),
            (
                Evidence { call_ns: 400_000, ..SPIKE },
                Host { steal_ticks: 2, ..usual() },
                Cause::Steal,
                "took 20 ms",
            ),
            (SPIKE, Host { steal_ticks: 1, ..usual() }, Cause::Steal, "10 ms"),
            // Another host may say anything.
            (SPIKE, Host { steal_ticks: u64::MAX, ..usual() }, Cause::Steal, "18446744073709551615 ms"),
            (SPIKE, Host { cpu_pressure_us: Some(half + 50), ..usual() }, Cause::CpuPressure, "390"),
            (SPIKE, Host { interrupts: 901, ..usual() }, Cause::Interrupts, "usually 400"),
            (
                SPIKE,
                Host { softirqs: [("RCU".to_owned(), 101), ("NET_RX".to_owned(), 500)].into(), ..usual() },
                Cause::SoftInterrupts,
                "RCU",
            ),
        ] {
            let (cause, detail) = cause(evidence, &host);
            assert_eq!(cause, expected, "{detail}");
            assert!(detail.contains(word), "{expected}: {detail}");
        }
    }

    #[test]
    fn what_tcg_makes_slow_is_named_up_to_the_limit_above_the_median() {
        let slow = Evidence { latency_ns: 1_100_000, usual_ns: 600_000, interpreted: true, ..SPIKE };
        assert_eq!(cause(slow, &usual()).0, Cause::Interpreted);
        let slower = Evidence { latency_ns: 1_100_001, ..slow };
        assert_eq!(cause(slower, &usual()).0, Cause::Unknown);
        assert_eq!(cause(Evidence { interpreted: false, ..slow }, &usual()).0, Cause::Unknown);
    }

    #[test]
    fn a_latency_below_the_median_has_a_cause_too() {
        let odd = Evidence { latency_ns: 10, usual_ns: 900_000, ..Evidence::default() };
        assert_eq!(attribute(&odd, &Host::default(), &Host::default()).0, Cause::Unknown);
    }
}
