// SPDX-License-Identifier: Apache-2.0
//! `tc qdisc … taprio …` commands (tc-taprio(8)).
//!
//! In: a text with one command, or a schedule. Out: the other. A command that tc and Linux take is read, and one that they refuse is not
//! written; `tests/taprio/commands.toml` holds what the real ones say. What a command cannot say (gate states before the
//! first cycle, disabled gates) is a fault that names it. What KTSN says beside the
//! gates (name, link speed, …) stands in comments `# ktsn LEAF: VALUE` above the command and is read back.

mod needs;
mod numbers;
mod place;
mod read;
mod reader;
mod rules;
mod script;
mod write;

use std::borrow::Cow;

use crate::fault::{Fault, Position};
use crate::schedule::{Schedule, Taprio};
use crate::units::{Number, integer};

pub use crate::schedule::Clock;
pub use needs::needs;
pub(crate) use place::check_stab;
pub(crate) use read::read;
pub(crate) use script::has_command;
pub(crate) use write::write;

/// The name of these rules.
pub(crate) const RULE: &str = "tc-taprio(8)";
pub(crate) const QUEUES_EXPECTED: &str = "COUNT@OFFSET, COUNT from 1";
pub(crate) const DEVICE_EXPECTED: &str = "the name of a device: 1 to 15 characters without blank and /";
pub(crate) const HANDLE_EXPECTED: &str = "a handle: 1 to ffff, and a colon";
pub(crate) const PARENT_EXPECTED: &str = "root: Linux attaches taprio nowhere else";
pub(crate) const STAB_EXPECTED: &str = "options of stab: overhead, mpu, linklayer, mtu, tsize";
/// Begins a comment with a leaf of KTSN.
const COMMENT: &str = "# ktsn ";
/// Linux takes no longer cycle: 2^31 - 1 ns.
const CYCLE_NANOS_MAX: i64 = i32::MAX as i64;
/// The most octets of a message that tc makes for taprio.
const MESSAGE_OCTETS_MAX: usize = 1024;

/// What may follow `taprio`.
const OPTIONS: [&str; 12] = [
    "num_tc",
    "map",
    "queues",
    "base-time",
    "cycle-time",
    "cycle-time-extension",
    "sched-entry",
    "clockid",
    "flags",
    "txtime-delay",
    "max-sdu",
    "fp",
];

pub(crate) const NUM_TC: Number =
    Number::new(integer, 1, 8, "1 to 8 traffic classes (802.1Q has eight)", RULE);
pub(crate) const FLAGS: Number =
    Number::new(integer, 0, 2, "0x0, 0x1 (txtime-assist) or 0x2 (full offload)", RULE);
pub(crate) const TXTIME_DELAY: Number =
    Number::new(integer, 0, u32::MAX as i128, "nanoseconds, 0 to 4294967295", RULE);

/// Whether a network device can have this name: what a shell hands on as it is, or `$NAME`, which people write for a device.
pub(crate) fn is_device(text: &str) -> bool {
    let is_plain = |octet: u8| octet.is_ascii_alphanumeric() || b"._:@$%+-=,{}".contains(&octet);
    let length_max = if text.starts_with('$') { 64 } else { 15 };
    (1..=length_max).contains(&text.len())
        && text.bytes().all(is_plain)
        && !text.starts_with('-')
        && !matches!(text, "." | "..")
}

/// A handle in its usual form; none in it for one that the kernel chooses.
pub(crate) fn normal_handle(text: &str) -> Option<Option<String>> {
    if text == "none" {
        return Some(None);
    }
    // As tc: hexadecimal up to a colon, behind which nothing is looked at.
    let major = text.split(':').next().unwrap_or_default();
    let number = numbers::unsigned(major, 16, 0xffff)?;
    let is_usual = text == format!("{number:x}") || text == format!("{number:x}:");
    let usual = if is_usual { text.to_owned() } else { format!("{number:x}:") };
    Some((number != 0).then_some(usual))
}

/// `COUNT@OFFSET`.
pub(crate) fn queue_range(text: &str) -> Option<(u16, u16)> {
    let (count, offset) = text.split_once('@')?;
    let is_digits = |part: &str| part.bytes().all(|octet| octet.is_ascii_digit());
    let range = (count.parse().ok()?, offset.parse().ok()?);
    (is_digits(count) && is_digits(offset) && range.0 > 0).then_some(range)
}

/// The leaves that could be read: a leaf that could not contradicts nothing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Known {
    pub(crate) num_tc: bool,
    pub(crate) flags: bool,
}

/// (leaf of the `taprio` mapping, value, what was expected) of everything that contradicts itself.
pub(crate) fn contradictions(
    taprio: &Taprio,
    known: Known,
) -> Vec<(&'static str, String, Cow<'static, str>)> {
    let mut found = Vec::new();
    if let Some(num_tc) = taprio.num_tc {
        let count = usize::from(num_tc);
        if taprio.queues.len() != count {
            let expected = format!("{count} queue ranges, one a class");
            found.push(("queues", taprio.queues.len().to_string(), expected.into()));
        }
        if taprio.is_preemptible.len() > count {
            let expected = format!("at most {count}, one a class");
            found.push(("fp", taprio.is_preemptible.len().to_string(), expected.into()));
        }
    } else if !taprio.queues.is_empty() && known.num_tc {
        found.push(("num-tc", "nothing".into(), "the number of classes that queues speaks of".into()));
    }
    let is_offloaded = taprio.flags == Some(2);
    if is_offloaded && let Some(clock) = taprio.clock {
        let expected = "no clock with flags 0x2: the device's own is used";
        found.push(("clockid", clock.word().to_owned(), expected.into()));
    }
    if taprio.txtime_delay.is_some() && taprio.flags != Some(1) && known.flags {
        found.push(("txtime-delay", "a delay".into(), "it only with flags 0x1 (txtime-assist)".into()));
    }
    found
}

/// (option, value, what was expected) of everything that sch_taprio refuses, whatever the device.
fn refusals(taprio: &Taprio) -> Vec<(&'static str, String, Cow<'static, str>)> {
    let mut found = contradictions(taprio, Known { num_tc: true, flags: true });
    if taprio.flags != Some(2) && taprio.clock.is_none() {
        found.push(("clockid", "nothing".into(), "a clock, as without flags 0x2 Linux asks for one".into()));
    }
    if taprio.flags != Some(2) && taprio.is_preemptible.contains(&true) {
        found.push(("fp", "P".into(), "E: Linux takes P only with flags 0x2 (full offload)".into()));
    }
    for (class, (count, offset)) in taprio.queues.iter().enumerate() {
        if *count == 0 {
            found.push(("queues", format!("no queue of class {class}"), QUEUES_EXPECTED.into()));
        }
        let ends = |(count, offset): &(u16, u16)| u32::from(*count) + u32::from(*offset);
        let range = (*count, *offset);
        let overlaps =
            |other: &&(u16, u16)| u32::from(*offset) < ends(other) && u32::from(other.1) < ends(&range);
        // With txtime-assist classes may share queues.
        if taprio.flags != Some(1)
            && let Some((other, at)) = taprio.queues[class + 1..].iter().find(overlaps)
        {
            let value = format!("{count}@{offset} of class {class} and {other}@{at}");
            found.push(("queues", value, "ranges that do not overlap (but with flags 0x1)".into()));
        }
    }
    found
}

/// The octets of tc's message; or a fault, as tc has room for [`MESSAGE_OCTETS_MAX`].
fn message_octets(schedule: &Schedule, limits_count: usize, has_cycle: bool) -> Result<usize, Fault> {
    // Attributes with their heads: each is a multiple of four octets.
    const HEADS: usize = 36 + 12 + 4 + 4;
    let none = Taprio::default();
    let taprio = schedule.taprio.as_ref().unwrap_or(&none);
    let admin = &schedule.admin;
    let (limits, marks) = (limits_count, taprio.is_preemptible.len());
    let octets = HEADS
        + if taprio.clock.is_some() { 8 } else { 0 }
        + if taprio.flags.unwrap_or(0) != 0 { 8 } else { 0 }
        + if taprio.num_tc.is_some() { 88 } else { 0 }
        + if taprio.txtime_delay.is_some() { 8 } else { 0 }
        + if admin.base_time.as_nanos() != 0 { 12 } else { 0 }
        + if has_cycle { 12 } else { 0 }
        + if admin.cycle_time_extension.get() != 0 { 12 } else { 0 }
        + limits.max(marks) * 12
        + (limits + marks) * 8
        + admin.control_list.len() * 28;
    if octets <= MESSAGE_OCTETS_MAX {
        return Ok(octets);
    }
    let count = admin.control_list.len();
    let possible = count.saturating_sub((octets - MESSAGE_OCTETS_MAX).div_ceil(28));
    let expected = format!("at most {possible}: tc has room for {MESSAGE_OCTETS_MAX} octets");
    Err(Fault::new(Position::NOWHERE, "sched-entry", format!("{count} entries"), expected, RULE))
}
