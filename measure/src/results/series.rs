// SPDX-License-Identifier: Apache-2.0
//! One path, payload, load and round in figures. In: what was measured. Out: the schema's fields, which
//! `docs/results-schema.md` defines, and all rounds of a series as one entry.

use super::Round;
use ktsn_traffic::stats::{Statistics, median};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A figure of a series. Counts are summed over the rounds; of ratios and statistics the median is taken.
trait Figure: Sized {
    /// The figure over the rounds that have it; `None` without such rounds.
    fn merged(rounds: Vec<Self>) -> Option<Self>;
    /// The value itself (no `statistic`), or the statistic of this name.
    fn value(&self, statistic: Option<&str>) -> Option<f64>;
}

impl Figure for u64 {
    fn merged(rounds: Vec<Self>) -> Option<Self> {
        rounds.into_iter().reduce(|sum, count| sum + count)
    }

    fn value(&self, statistic: Option<&str>) -> Option<f64> {
        statistic.is_none().then_some(*self as f64)
    }
}

impl Figure for f64 {
    fn merged(rounds: Vec<Self>) -> Option<Self> {
        median(rounds.into_iter())
    }

    fn value(&self, statistic: Option<&str>) -> Option<f64> {
        statistic.is_none().then_some(*self)
    }
}

impl Figure for Statistics {
    fn merged(rounds: Vec<Self>) -> Option<Self> {
        Self::median_of(&rounds)
    }

    fn value(&self, statistic: Option<&str>) -> Option<f64> {
        self.field(statistic?)
    }
}

/// Declares [`Series`] with its figures, so that each of them is named once.
macro_rules! series {
    ($($(#[$doc:meta])* $figure:ident: $kind:ty,)*) => {
        /// One path, payload, load and round. Everything that was not measured is `None` or empty, and not written.
        #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
        pub struct Series {
            /// The path's name (`ktsn`, `flannel`, …).
            pub path: String,
            /// Octets of payload.
            pub payload_octets: usize,
            /// The load's name (`idle`, …).
            #[serde(skip_serializing_if = "Option::is_none")]
            pub load: Option<String>,
            /// Traffic class.
            #[serde(skip_serializing_if = "Option::is_none")]
            pub class: Option<u8>,
            /// Egress mode.
            #[serde(skip_serializing_if = "Option::is_none")]
            pub egress: Option<String>,
            /// Overlay mode.
            #[serde(skip_serializing_if = "Option::is_none")]
            pub overlay: Option<String>,
            /// Ingress mode.
            #[serde(skip_serializing_if = "Option::is_none")]
            pub ingress: Option<String>,
            /// `rtos`: octets of the guest's TCP buffers, each of both.
            #[serde(skip_serializing_if = "Option::is_none")]
            pub tcp_octets: Option<u64>,
            /// `rtos`: the bound of the receive buffers that the guest's driver posts.
            #[serde(skip_serializing_if = "Option::is_none")]
            pub posted_max: Option<u64>,
            /// How the guests' instructions ran (`kvm`, `tcg`); absent: there are no guests.
            #[serde(skip_serializing_if = "Option::is_none")]
            pub accelerator: Option<String>,
            /// `vm`: by which clock publisher and subscriber took their instants (`host`, `vptp`, `kvm`, `own`).
            #[serde(skip_serializing_if = "Option::is_none")]
            pub clock: Option<String>,
            /// The round.
            #[serde(default)]
            pub round: Round,
            /// Dropped frames by reason.
            #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
            pub dropped: BTreeMap<String, u64>,
            /// Frames left to the kernel by reason.
            #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
            pub bypassed: BTreeMap<String, u64>,
            $(
                $(#[$doc])*
                #[serde(skip_serializing_if = "Option::is_none")]
                pub $figure: Option<$kind>,
            )*
        }

        impl Series {
            /// The figures of all `rounds` together, and nothing else.
            fn merged_figures(rounds: &[Self]) -> Self {
                Self {
                    $($figure: Figure::merged(rounds.iter().filter_map(|round| round.$figure).collect()),)*
                    ..Self::default()
                }
            }

            fn value(&self, figure: &str, statistic: Option<&str>) -> Option<f64> {
                match figure {
                    $(stringify!($figure) => self.$figure.as_ref()?.value(statistic),)*
                    _ => None,
                }
            }
        }
    };
}

series! {
    /// Instants the talker meant to serve.
    frames_intended: u64,
    /// Sends that succeeded.
    frames_sent: u64,
    /// Different frames that reached the listener.
    frames_received: u64,
    /// Sent and never received (what was intended and not sent is neither sent nor lost).
    lost: u64,
    /// Second and further copies.
    duplicates: u64,
    /// Frames that arrived after one with a higher sequence number.
    reordered: u64,
    /// Frames with `handed_at < tx_time` or `wire_at < tx_time`.
    early: u64,
    /// Frames that the worker sent late.
    overrun: u64,
    /// Frames that the program sent after their transmit time, and that left all the same (`late = "send"`).
    late: u64,
    /// `handed_at − tx_time`.
    transmit_error_ns: Statistics,
    /// `wire_at − tx_time`.
    wire_offset_ns: Statistics,
    /// `vm`: magnitude of `wire_at − tx_time`, since etf also sends early.
    wire_offset_magnitude_ns: Statistics,
    /// `received_at − tx_time`.
    latency_ns: Statistics,
    /// Latency above that of the row's fastest frame, where the ends have clocks of their own.
    above_fastest_ns: Statistics,
    /// From the publisher's tap device to the subscriber's, by the host's clock.
    taps_ns: Statistics,
    /// Magnitude of the jitter of `received_at`.
    jitter_ns: Statistics,
    /// Frames received right after one that was lost or not sent: their jitter is left out.
    jitter_left_out: u64,
    /// Magnitude of the jitter of `wire_at`.
    wire_jitter_ns: Statistics,
    /// Frames at the tap right after one that it did not see: their jitter is left out.
    wire_jitter_left_out: u64,
    /// `received_at −` kernel receive stamp.
    wake_up_ns: Statistics,
    /// The listener's kernel receive stamp `− tx_time`: the latency without the listener's wake-up, frame by frame.
    before_wake_up_ns: Statistics,
    /// `datapaths`: from the sender's end of the datapath to the receiver's (`docs/design/datapaths.md`).
    network_latency_ns: Statistics,
    /// `datapaths`: the same, of the part of each round that a rule calls stable.
    stable_latency_ns: Statistics,
    /// `datapaths`: frames with a network latency over 500 µs.
    spikes_over_500us: u64,
    /// `datapaths`: frames with a network latency over 1 ms.
    spikes_over_1ms: u64,
    /// `datapaths`: frames lost, those of the load too, that no counter accounts for.
    lost_uncounted: u64,
    /// `datapaths`: frames of the load that were sent.
    load_sent: u64,
    /// `datapaths`: frames of the load that arrived.
    load_received: u64,
    /// A control loop's request: received by the device `− tx_time`.
    request_ns: Statistics,
    /// Share of a control loop's cycles without an answer within 250 µs.
    missed_250us_ratio: f64,
    /// Share of a control loop's cycles without an answer within 500 µs.
    missed_500us_ratio: f64,
    /// Share of a control loop's cycles without an answer within 1 ms.
    missed_1ms_ratio: f64,
    /// Share of frames whose transmit error exceeds 1 µs.
    late_over_1us_ratio: f64,
    /// Share of frames intended that were not sent, lost, or received after the deadline.
    deadline_missed_ratio: f64,
    /// Frames handed over outside their gate's window, and no stall of the machine explains it.
    outside_window: u64,
    /// Frames that were handed over in time and were not off the link when their gate closed.
    transmission_overrun: u64,
    /// Transmission overruns that no stall of the machine explains.
    transmission_overrun_unproven: u64,
    /// Share of the frames seen on the wire that were seen outside their gate's window, 10 µs after its end allowed.
    wire_outside_window_ratio: f64,
    /// `handed_at −` the opening of the window.
    after_opening_ns: Statistics,
    /// CPU time of the talker over elapsed time.
    talker_cpu_ratio: f64,
    /// CPU time of ktsnd over elapsed time.
    daemon_cpu_ratio: f64,
    /// CPU time of the receiving node's ktsnd over elapsed time.
    far_daemon_cpu_ratio: f64,
    /// CPU time of libktsn in the talker over elapsed time.
    library_cpu_ratio: f64,
    /// All of KTSN on both nodes: the daemons' CPU time and the library's over elapsed time.
    ktsn_cpu_ratio: f64,
    /// Soft interrupts of the whole machine in CPUs, by the kernel's own sampling.
    softirq_cpu_ratio: f64,
    /// What the load delivered, bit/s.
    load_bit_rate: f64,
    /// `rtos`: octets of a TCP stream over elapsed time, bit/s.
    bit_rate: f64,
    /// `rtos`: interrupts of the guest's network device, for each message or round trip.
    interrupts_per_message: f64,
    /// `rtos`: octets of receive buffers that the guest's driver had posted at most.
    posted_peak_octets: f64,
    /// `rtos`: octets of all buffers of the guest's driver and interface.
    buffer_octets: f64,
    /// CPU time of the listener over elapsed time.
    listener_cpu_ratio: f64,
    /// Waits of the listener for an arrival that was predicted.
    arrivals_expected: u64,
    /// Arrivals that came while the listener was awake for them.
    arrivals_hit: u64,
    /// Arrivals that came before the listener was awake for them.
    arrivals_early: u64,
    /// Predicted arrivals that did not come in their window.
    arrivals_missed: u64,
    /// Time that the listener spun for arrivals over elapsed time.
    spun_ratio: f64,
    /// Resident memory of ktsnd.
    daemon_rss_octets: u64,
    /// `clock`: samples of the guest's clock that the errors are of.
    clock_samples: u64,
    /// `clock`: magnitude of the guest's `CLOCK_REALTIME` − the host's.
    clock_error_ns: Statistics,
    /// `clock`: magnitude of the host's time as the guest reads it from the page − the host's clock.
    page_error_ns: Statistics,
    /// `clock`: from the end of a pause of the guest until its clock stays within 10 µs.
    clock_recovery_ns: f64,
    /// `clock`: samples with an earlier time than the sample before.
    clock_set_back: u64,
    /// `clock`: samples with a page error beyond the bound that the guest stated.
    bound_missed: u64,
    /// `clock`: CPU time of the follower in the guest over elapsed time.
    clock_guest_cpu_ratio: f64,
    /// `clock`: CPU time of the publisher on the host over elapsed time.
    clock_host_cpu_ratio: f64,
    /// `clock`: both together.
    clock_cpu_ratio: f64,
    /// Rounds that were repeated because the load rule, fixed beforehand, said so.
    voided_rounds: u64,
    /// Share of CPU time that the hypervisor took.
    steal_ratio: f64,
    /// Share of time in which some task waited for a CPU.
    cpu_pressure_some_ratio: f64,
}

impl Series {
    /// The figure with this name: a count, a ratio, or a statistic of a distribution (`latency_ns.p50`).
    #[must_use]
    pub fn metric(&self, name: &str) -> Option<f64> {
        match name.split_once('.') {
            Some((distribution, statistic)) => self.value(distribution, Some(statistic)),
            None if name == "transmission_overrun_ratio" => {
                let sent = self.frames_sent.filter(|&sent| sent > 0)?;
                Some(self.transmission_overrun? as f64 / sent as f64)
            }
            None => self.value(name, None),
        }
    }

    /// Whether `other` is a round of the same path, payload, load, class and configuration.
    pub(super) fn is_round_of_same(&self, other: &Self) -> bool {
        let key = |series: &Self| {
            let of = (series.path.clone(), series.payload_octets, series.load.clone(), series.class);
            (of, series.tcp_octets, series.posted_max)
        };
        key(self) == key(other)
    }

    /// The `metrics`, which must be 0, that are not 0 or are unknown: `lost is 1`.
    pub fn nonzero<'a>(&'a self, metrics: &'a [&'a str]) -> impl Iterator<Item = String> + 'a {
        metrics.iter().filter_map(|metric| match self.metric(metric) {
            Some(0.0) => None,
            Some(count) => Some(format!("{metric} is {count}")),
            None => Some(format!("{metric} is unknown")),
        })
    }

    /// The `"all"` entry of `rounds`, which are of one path, payload and load; `None` without rounds. For each
    /// statistic and ratio it holds the median of the rounds that have it; counts are summed. Memory counts as a
    /// statistic. Path, class, egress, overlay and ingress are those of the first round.
    #[must_use]
    pub fn merged(rounds: &[Self]) -> Option<Self> {
        let first = rounds.first()?;
        let by_reason = |field: fn(&Self) -> &BTreeMap<String, u64>| {
            let mut sums = BTreeMap::new();
            for (reason, count) in rounds.iter().flat_map(field) {
                *sums.entry(reason.clone()).or_insert(0) += count;
            }
            sums
        };
        let memory =
            median(rounds.iter().filter_map(|round| round.daemon_rss_octets).map(|octets| octets as f64));
        Some(Self {
            path: first.path.clone(),
            payload_octets: first.payload_octets,
            load: first.load.clone(),
            class: first.class,
            egress: first.egress.clone(),
            overlay: first.overlay.clone(),
            ingress: first.ingress.clone(),
            tcp_octets: first.tcp_octets,
            posted_max: first.posted_max,
            accelerator: first.accelerator.clone(),
            clock: first.clock.clone(),
            round: Round::All,
            dropped: by_reason(|round| &round.dropped),
            bypassed: by_reason(|round| &round.bypassed),
            daemon_rss_octets: memory.map(|octets| octets as u64),
            ..Self::merged_figures(rounds)
        })
    }
}
