// SPDX-License-Identifier: Apache-2.0
//! `tc qdisc … taprio …` commands (tc-taprio(8)).
//!
//! In: the words of one command, or a schedule. Out: the other. What a command cannot say (hold and release operations,
//! gate states before the first cycle, disabled gates) is a fault that names it. What KTSN says beside the
//! gates (name, link speed, …) stands in comments `# ktsn LEAF: VALUE` above the command and is read back.

mod read;
mod words;
mod write;

use std::borrow::Cow;

use crate::schedule::Taprio;
use crate::units::Number;
use words::{c_number, decimal, hexadecimal};

pub(crate) use read::read;
pub(crate) use write::write;

/// The name of these rules.
pub(crate) const RULE: &str = "tc-taprio(8)";
/// The clock of a gate schedule.
pub(crate) const CLOCK: &str = "CLOCK_TAI";
pub(crate) const CLOCK_EXPECTED: &str = "CLOCK_TAI: gate schedules run on TAI";
pub(crate) const CLOCK_RULE: &str = "802.1Q-2022 8.6.9.4";
pub(crate) const QUEUES_EXPECTED: &str = "COUNT@OFFSET, COUNT from 1";
pub(crate) const WORD_EXPECTED: &str = "one word that a shell takes as it is";
/// Begins a comment with a leaf of KTSN.
const COMMENT: &str = "# ktsn ";

pub(crate) const NUM_TC: Number =
    Number::new(decimal, 1, 8, "1 to 8 traffic classes (802.1Q has eight)", RULE);
pub(crate) const FLAGS: Number =
    Number::new(c_number, 0, 2, "0x0, 0x1 (txtime-assist) or 0x2 (full offload)", RULE);
pub(crate) const TXTIME_DELAY: Number =
    Number::new(c_number, 0, u32::MAX as i128, "nanoseconds, 0 to 4294967295", RULE);
const CLASS: Number = Number::new(decimal, 0, 7, "a traffic class, 0 to 7", RULE);
const SDU: Number = Number::new(decimal, 0, u32::MAX as i128, "octets, 0 to 4294967295 (0: no limit)", RULE);
const MASK: Number =
    Number::new(hexadecimal, 0, 255, "a gate mask of eight classes in hexadecimal, 00 to ff", RULE);
/// Sign and length are judged by the rules of the list.
const INTERVAL: Number =
    Number::new(c_number, i64::MIN as i128, u32::MAX as i128, "nanoseconds, at most 4294967295", RULE);
const BASE_TIME: Number =
    Number::new(decimal, 0, i64::MAX as i128, "nanoseconds since 1970 TAI, not negative", RULE);
const SPAN: Number =
    Number::new(decimal, i64::MIN as i128, i64::MAX as i128, "a number of nanoseconds", RULE);

/// Whether a shell hands the word on as it is (but for `$NAME`, which people write for a device).
pub(crate) fn is_word(text: &str) -> bool {
    let is_plain = |octet: u8| octet.is_ascii_alphanumeric() || b"._:@$%+-/=,".contains(&octet);
    !text.is_empty() && text.len() <= 64 && text.bytes().all(is_plain) && !text.starts_with('-')
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
    if is_offloaded && taprio.is_clock_named {
        let expected = "no clock with flags 0x2: the device's own is used";
        found.push(("clockid", CLOCK.into(), expected.into()));
    }
    if taprio.txtime_delay.is_some() && taprio.flags != Some(1) && known.flags {
        found.push(("txtime-delay", "a delay".into(), "it only with flags 0x1 (txtime-assist)".into()));
    }
    found
}
