// SPDX-License-Identifier: Apache-2.0
//! The nouns: a schedule with what people say about it.

use ktsn_model::{AdminPort, PriorityMap, TrafficClass};
use ktsn_time::Nanos;

pub(crate) const CLOCK_EXPECTED: &str = "CLOCK_TAI: gate schedules run on TAI";
pub(crate) const CLOCK_RULE: &str = "802.1Q-2022 8.6.9.4";

/// The keys of `class-names`.
pub(crate) const CLASSES: [&str; TrafficClass::COUNT] = ["0", "1", "2", "3", "4", "5", "6", "7"];

/// A gate schedule of one port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Schedule {
    /// What it is called.
    pub name: Option<String>,
    /// What it is for.
    pub description: Option<String>,
    /// The link's speed in bit/s that it was made for.
    pub link_speed: Option<u64>,
    /// The longest service data unit in octets (what follows the MAC header and tag, without FCS).
    pub mtu: Option<u32>,
    /// From handing a frame to the port until its first bit is on the wire.
    pub hand_over: Option<Nanos>,
    /// Priority → traffic class of the port.
    pub priority_map: Option<PriorityMap>,
    /// What the classes are called.
    pub class_names: [Option<String>; TrafficClass::COUNT],
    /// `queue-max-sdu` in octets; none: whatever the port takes.
    pub queue_max_sdu: [Option<u32>; TrafficClass::COUNT],
    /// The gates.
    pub admin: AdminPort,
    /// What only a `tc` command says.
    pub taprio: Option<Taprio>,
}

/// What a `tc qdisc … taprio` command says beside the schedule. KTSN keeps it so that the command can be written
/// again, and does not act on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taprio {
    /// `dev`.
    pub device: Option<String>,
    /// `parent`: `root`.
    pub parent: String,
    /// `stab`: the options of a size table.
    pub stab: Option<String>,
    /// `handle`.
    pub handle: Option<String>,
    /// `num_tc`, 1 to 8; none in a command that leaves the classes as they are.
    pub num_tc: Option<u8>,
    /// `queues`: (count, offset) of each class.
    pub queues: Vec<(u16, u16)>,
    /// `clockid`. With full offload the clock is the device's and is not named.
    pub clock: Option<Clock>,
    /// `flags`: 0x1 txtime-assist, 0x2 full offload.
    pub flags: Option<u32>,
    /// `txtime-delay` in ns.
    pub txtime_delay: Option<u32>,
    /// `fp`: per class whether it is preemptible (`P`) or express (`E`).
    pub is_preemptible: Vec<bool>,
}

impl Default for Taprio {
    /// Eight classes with one queue each, in software.
    fn default() -> Self {
        Self {
            device: None,
            parent: "root".to_owned(),
            stab: None,
            handle: None,
            num_tc: Some(8),
            queues: (0..8).map(|offset| (1, offset)).collect(),
            clock: Some(Clock::Tai),
            flags: None,
            txtime_delay: None,
            is_preemptible: Vec::new(),
        }
    }
}

/// The clocks that tc and Linux take. Gate schedules of 802.1Q run on TAI: KTSN executes no other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// CLOCK_TAI.
    Tai,
    /// CLOCK_REALTIME.
    Realtime,
    /// CLOCK_MONOTONIC.
    Monotonic,
    /// CLOCK_BOOTTIME.
    Boottime,
}

impl Clock {
    const ALL: [(Self, &'static str); 4] = [
        (Self::Tai, "CLOCK_TAI"),
        (Self::Realtime, "CLOCK_REALTIME"),
        (Self::Monotonic, "CLOCK_MONOTONIC"),
        (Self::Boottime, "CLOCK_BOOTTIME"),
    ];
    pub(crate) const EXPECTED: &'static str =
        "CLOCK_TAI, or another clock that tc knows (REALTIME, MONOTONIC, BOOTTIME)";

    /// The clock's name, as in clock_gettime(2).
    #[must_use]
    pub fn word(self) -> &'static str {
        Self::ALL.iter().find(|(clock, _)| *clock == self).map_or("", |(_, word)| word)
    }

    /// As tc reads it: in any case, and without `CLOCK_` as well.
    pub(crate) fn read(text: &str) -> Option<Self> {
        let name = text.to_ascii_uppercase();
        let name = name.strip_prefix("CLOCK_").unwrap_or(&name);
        Self::ALL.iter().find(|(_, word)| word.strip_prefix("CLOCK_") == Some(name)).map(|(clock, _)| *clock)
    }
}

impl Schedule {
    /// Whether some priority leads to the class.
    #[must_use]
    pub fn is_class_used(&self, class: TrafficClass) -> bool {
        let map = self.priority_map.unwrap_or_default();
        (0..16).any(|priority| map.class(ktsn_model::Priority::capped(priority)) == class)
    }

    /// What to call a class: its name, or its number.
    #[must_use]
    pub fn class_label(&self, class: TrafficClass) -> String {
        match &self.class_names[usize::from(class.get())] {
            Some(name) => format!("{} {name}", class.get()),
            None => class.get().to_string(),
        }
    }
}
