// SPDX-License-Identifier: Apache-2.0
//! What is sent and when its gates are open. In: a base time. Out: the gate parameters, the daemon's TOML for them, and
//! for each class what its talker does.
//!
//! ```text
//!  0        200 µs          500 µs                       1 ms = 0
//!  │ class 7 │ classes 5, 0  │ class 0                    │
//!      ▲50 µs: TxTime of class 7                          every 103 µs: a frame of class 0, at once
//!  ▲ 0: TxTime of class 5; it waits for its window
//! ```
//! The best effort comes by day and night, so that some of it lies before every opening and every close.

use ktsn_measure::gates::{GateSchedule, GateWindow, Windows, wire_time};
use ktsn_measure::watchdog::AHEAD;
use ktsn_model::{AdminPort, GateControlEntry, GateOperation, GateStates, TrafficClass};
use ktsn_time::{Nanos, Tai};
use std::fmt::Write as _;
use std::num::NonZeroU64;

/// The speed of the port's link in bit/s: a veth has none, so the guard bands are computed from this.
pub const LINK_SPEED: u64 = 1_000_000_000;
/// How long a cycle is.
pub const CYCLE_TIME: Nanos = Nanos::from_millis(1);
/// The schedule's name in the daemon's configuration.
pub const SCHEDULE: &str = "lab";
/// Gate states and how long they hold.
const LIST: [(u8, Nanos); 3] = [
    (0b1000_0000, Nanos::from_micros(200)),
    (0b0010_0001, Nanos::from_micros(300)),
    (0b0000_0001, Nanos::from_micros(500)),
];
/// Octets that a payload grows by: Ethernet, IPv4, UDP, VXLAN, and the same within it.
const HEADERS: u64 = 14 + 20 + 8 + 8 + 14 + 20 + 8;
/// Preamble, frame check sequence, inter-packet gap: they occupy the link as well.
const FRAMING: u64 = 8 + 4 + 12;

/// What one talker does. All are ordinary programs with SO_TXTIME.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stream {
    /// `SO_PRIORITY`, and so the traffic class.
    pub class: u8,
    /// What its window is called in tables.
    pub role: &'static str,
    /// Octets of payload; each class has its own.
    pub payload_octets: usize,
    /// Distance of two transmit times.
    pub period: Nanos,
    /// First transmit time after the beginning of a cycle.
    pub phase: Nanos,
    /// The talker's clock, as the command line calls it.
    pub clock: &'static str,
    /// How far ahead it sends; none: its transmit time has just passed, and its frame may leave at once.
    pub lead: Nanos,
    /// SCHED_FIFO priority, all below the worker's on the same CPU.
    pub fifo: u8,
}

/// The three classes.
pub const STREAMS: [Stream; 3] = [
    Stream {
        class: 7,
        role: "exclusive window",
        payload_octets: 64,
        period: CYCLE_TIME,
        phase: Nanos::from_micros(50),
        clock: "tai",
        lead: Nanos::from_micros(300),
        fifo: 40,
    },
    Stream {
        class: 5,
        role: "shared window",
        payload_octets: 256,
        period: CYCLE_TIME,
        phase: Nanos::ZERO,
        clock: "tai",
        lead: Nanos::from_micros(300),
        fifo: 40,
    },
    Stream {
        class: 0,
        role: "best effort, fills what is left",
        payload_octets: 1200,
        period: Nanos::from_micros(103),
        phase: Nanos::ZERO,
        clock: "monotonic",
        lead: Nanos::ZERO,
        fifo: 30,
    },
];

impl Stream {
    /// The traffic class of the stream.
    #[must_use]
    pub fn traffic_class(&self) -> TrafficClass {
        TrafficClass::new(self.class).unwrap_or_default()
    }

    /// How long one of its frames occupies the link.
    #[must_use]
    pub fn on_link(&self) -> Nanos {
        wire_time(self.payload_octets as u64 + HEADERS + FRAMING, LINK_SPEED)
    }

    /// How many frames it sends in `cycles` cycles.
    #[must_use]
    pub fn frames(&self, cycles: u64) -> u64 {
        cycles.saturating_mul(CYCLE_TIME.get() as u64) / self.period.get().max(1) as u64
    }
}

/// The gate parameters with this base time.
#[must_use]
pub fn admin_port(base_time: Tai) -> AdminPort {
    let entry = |(bits, interval): (u8, Nanos)| GateControlEntry {
        operation: GateOperation::SetGateStates,
        states: GateStates::from_bits(bits),
        interval,
    };
    AdminPort {
        gate_enabled: true,
        gate_states: GateStates::ALL_OPEN,
        base_time,
        cycle_time: CYCLE_TIME,
        cycle_time_extension: Nanos::ZERO,
        control_list: LIST.into_iter().map(entry).collect(),
    }
}

/// The gate parameters in the daemon's configuration: `[[schedule]]` with the leaf names.
#[must_use]
pub fn toml(port: &AdminPort) -> String {
    const SECOND: u64 = 1_000_000_000;
    let base = port.base_time.as_nanos();
    let mut text = format!(
        "\n[[schedule]]\nname = \"{SCHEDULE}\"\n[schedule.gate-parameter-table]\ngate-enabled = {}\n\
         admin-gate-states = {}\nadmin-base-time = {{ seconds = {}, nanoseconds = {} }}\n\
         admin-cycle-time = {{ numerator = {}, denominator = {SECOND} }}\nadmin-cycle-time-extension = {}\n\
         admin-control-list = {{ gate-control-entry = [\n",
        port.gate_enabled,
        port.gate_states.bits(),
        base / SECOND,
        base % SECOND,
        port.cycle_time.get(),
        port.cycle_time_extension.get(),
    );
    for (index, entry) in port.control_list.iter().enumerate() {
        let _ = writeln!(
            text,
            "  {{ index = {index}, operation-name = \"{}\", gate-states-value = {}, time-interval-value = {} }},",
            entry.operation.word(),
            entry.states.bits(),
            entry.interval.get(),
        );
    }
    text + "] }\n"
}

/// Where in a cycle the watchdog looks: a little before the last instant to begin of each class.
#[must_use]
pub fn looks(windows: &Windows) -> Vec<Nanos> {
    let cycle = windows.cycle_time().get();
    let mut looks: Vec<Nanos> = STREAMS
        .iter()
        .flat_map(|stream| {
            let ahead = stream.on_link().saturating_add(AHEAD);
            windows
                .closings(stream.traffic_class())
                .into_iter()
                .map(move |closing| Nanos::new(closing.saturating_sub(ahead).get().rem_euclid(cycle)))
        })
        .collect();
    looks.sort_unstable();
    looks.dedup();
    looks
}

/// The schedule as the report draws it.
#[must_use]
pub fn gate_schedule(windows: &Windows) -> GateSchedule {
    let nanos = |span: Nanos| span.get().unsigned_abs();
    let of = |stream: &Stream| {
        let class = stream.class;
        windows.spans(stream.traffic_class()).iter().map(move |&(opens, length)| GateWindow {
            class,
            opens_ns: nanos(opens),
            closes_ns: nanos(opens.saturating_add(length)),
        })
    };
    GateSchedule {
        base_time: windows.base_time().as_nanos(),
        cycle_time: NonZeroU64::new(nanos(windows.cycle_time())).unwrap_or(NonZeroU64::MIN),
        windows: STREAMS.iter().flat_map(of).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_schedule_is_sound_and_every_frame_fits_its_window() {
        let port = admin_port(Tai::from_nanos(5_000_000_000));
        assert_eq!(port.faults(), []);
        let windows = Windows::of(&port).unwrap();
        for stream in STREAMS {
            let spans = windows.spans(stream.traffic_class());
            assert_eq!(spans.len(), 1, "{stream:?}");
            assert!(spans[0].1 > stream.on_link());
        }
        // 64 octets make a frame of 156 on the wire and 180 on the link.
        assert_eq!(STREAMS[0].on_link(), Nanos::new(1_440));
        let exclusive = windows.spans(STREAMS[0].traffic_class())[0];
        assert!(STREAMS[0].phase > exclusive.0 && STREAMS[0].phase < exclusive.1);
        // No other gate is open in the exclusive window; class 5 asks for an instant at which its own is closed.
        assert!(windows.at(STREAMS[1].traffic_class(), port.base_time).is_none());
        assert_eq!(
            looks(&windows),
            [Nanos::new(175_000 - 1_440), Nanos::new(475_000 - 2_976), Nanos::new(975_000 - 10_528)]
        );
        assert_eq!(STREAMS[2].frames(103), 1_000);
        // Payloads distinguish the classes in files and plots.
        let mut payloads = STREAMS.map(|stream| stream.payload_octets);
        payloads.sort_unstable();
        assert!(payloads.windows(2).all(|pair| pair[0] != pair[1]));
    }

    #[test]
    fn the_daemon_is_told_the_same_list() {
        let text = toml(&admin_port(Tai::from_nanos(5_000_000_007)));
        for line in [
            "admin-base-time = { seconds = 5, nanoseconds = 7 }",
            "admin-cycle-time = { numerator = 1000000, denominator = 1000000000 }",
            "gate-states-value = 128",
            "time-interval-value = 300000",
            "operation-name = \"set-gate-states\"",
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
        assert_eq!(text.matches("{ index = ").count(), 3);
    }

    #[test]
    fn the_report_gets_every_window() {
        let windows = Windows::of(&admin_port(Tai::ZERO)).unwrap();
        let schedule = gate_schedule(&windows);
        assert_eq!(schedule.windows.len(), 3);
        assert_eq!(schedule.windows[2].class, 0);
        assert_eq!(schedule.windows[2].closes_ns, 1_000_000);
    }
}
