// SPDX-License-Identifier: Apache-2.0
//! The nouns: a schedule with what people say about it.

use ktsn_model::{AdminPort, PriorityMap, TrafficClass};
use ktsn_time::Nanos;

use crate::fault::{Fault, Position};
use crate::read::admin_faults;
use crate::taprio::{self, Clock};

/// The keys of `class-names`.
pub(crate) const CLASSES: [&str; TrafficClass::COUNT] = ["0", "1", "2", "3", "4", "5", "6", "7"];

/// How a schedule is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// Found from the text: `{` is JSON; a `tc` command, also behind a prompt or among others, is taprio; anything else YAML.
    #[default]
    Auto,
    /// YAML 1.2 without anchors, tags and second documents.
    Yaml,
    /// JSON (RFC 8259), values as RFC 7951 writes YANG: numbers may stand in strings.
    Json,
    /// One `tc qdisc add|replace|change dev … taprio …` command, alone or among others.
    Taprio,
}

impl Format {
    /// The format itself, or for [`Format::Auto`] the one that the text looks like.
    #[must_use]
    pub fn of(self, text: &str) -> Self {
        if self != Self::Auto {
            return self;
        }
        let text = text.trim_start_matches('\u{feff}');
        let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        match lines.next() {
            Some(line) if line.starts_with('{') => Self::Json,
            _ if text.lines().any(|line| line.starts_with("gate-parameter-table")) => Self::Yaml,
            _ if crate::taprio::has_command(text) => Self::Taprio,
            _ => Self::Yaml,
        }
    }
}

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

impl Schedule {
    /// What tc and Linux take, and KTSN does not execute: other clocks than TAI, and times beyond the limits of [`AdminPort`]. Empty for what
    /// YAML or JSON said.
    #[must_use]
    pub fn limits(&self) -> Vec<Fault> {
        let mut limits = admin_faults(&self.admin, true, |fault| {
            let index =
                fault.entry_index.map(|index| format!("admin-control-list[{index}].")).unwrap_or_default();
            (Position::NOWHERE, format!("{index}{}", fault.leaf))
        });
        if let Some(clock) =
            self.taprio.as_ref().and_then(|taprio| taprio.clock).filter(|clock| *clock != Clock::Tai)
        {
            let (expected, rule) = (taprio::CLOCK_EXPECTED, taprio::CLOCK_RULE);
            limits.push(Fault::new(Position::NOWHERE, "clockid", clock.word(), expected, rule));
        }
        limits
    }

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_format_is_found_from_the_first_line_that_says_something() {
        for (text, format) in [
            ("", Format::Yaml),
            ("name: tc", Format::Yaml),
            ("tcp: 1", Format::Yaml),
            ("# tc\n\n  {", Format::Json),
            ("\u{feff}{}", Format::Json),
            ("# comment\ntc qdisc", Format::Taprio),
            ("tc\tqdisc", Format::Taprio),
            ("tc \\\n qdisc", Format::Taprio),
            ("sudo tc qdisc", Format::Taprio),
            ("user@host:~# tc qdisc replace dev eth0 root taprio", Format::Taprio),
            ("# tc qdisc replace dev eth0 root taprio", Format::Taprio),
            ("#!/bin/sh\nip link set eth0 up\ntc qdisc add dev eth0 root taprio", Format::Taprio),
            ("description: tc qdisc replace dev eth0 root taprio", Format::Yaml),
            ("# tc qdisc replace root taprio\ngate-parameter-table:", Format::Yaml),
        ] {
            assert_eq!(Format::Auto.of(text), format, "{text:?}");
            assert_eq!(Format::Json.of(text), Format::Json);
        }
    }
}
