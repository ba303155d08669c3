// SPDX-License-Identifier: Apache-2.0
//! From a `tc` command to a schedule: what tc and Linux take is read, what they refuse is a fault.
//!
//! In: text. Out: the schedule and remarks, or faults. tc's own steps: a list ends at the first word that is no part of it, of an option that
//! stands twice the last counts, or the second is refused. Then Linux' rules, without those about the device ([`super::needs`]).

use ktsn_model::{GateControlEntry, GateOperation, GateStates, PriorityMap};
use ktsn_time::{Nanos, Tai};

use super::numbers::{signed, unsigned};
use super::reader::{LIST_MAX, Reader};
use super::script::{self, Word};
use super::{COMMENT, OPTIONS, QUEUES_EXPECTED, message_octets, rules};
use crate::fault::{Fault, Position, Remark};
use crate::read::about;
use crate::schedule::{Clock, Schedule, Taprio};

const U32: u64 = u32::MAX as u64;

/// Reads the one taprio command of a text.
pub(crate) fn read(text: &str) -> Result<(Schedule, Vec<Remark>), Vec<Fault>> {
    let mut remarks = Vec::new();
    let (tc, words) = script::find(text, &mut remarks)?;
    let mut reader = Reader {
        last: tc.at,
        words,
        next: 0,
        faults: Vec::new(),
        remarks,
        list: None,
        ended: None,
        seen: Vec::new(),
        entries: Vec::new(),
        base_time: 0,
        cycle_time: 0,
        extension: 0,
        schedule: Schedule::default(),
        taprio: Taprio { num_tc: None, queues: Vec::new(), clock: None, ..Taprio::default() },
        map: [0; LIST_MAX],
        max_sdu: Vec::new(),
    };
    reader.faults.extend(about(&comments(text), &mut reader.schedule));
    if reader.place() {
        reader.options();
        reader.finish();
    }
    if reader.faults.is_empty() {
        return Ok((reader.schedule, reader.remarks));
    }
    if let Some((at, option, value)) = reader.ended.take() {
        let expected = "nanoseconds: tc ignores this and all that stands behind it, without a word";
        reader.fault(at, &option, value, expected);
    }
    Err(reader.faults)
}

/// What KTSN says in comments, as YAML with every character where it stood.
fn comments(text: &str) -> String {
    let indent = " ".repeat(COMMENT.len());
    let line =
        |line: &str| line.strip_prefix(COMMENT).map(|said| format!("{indent}{said}")).unwrap_or_default();
    text.lines().map(line).collect::<Vec<_>>().join("\n")
}

impl Reader<'_> {
    fn options(&mut self) {
        while let Some(word) = self.take() {
            let Some(option) = OPTIONS.into_iter().find(|option| *option == word.text) else {
                self.unknown(&word);
                continue;
            };
            self.list = None;
            match option {
                "sched-entry" => self.entry(),
                "clockid" => {
                    self.first(option, word.at);
                    self.taprio.clock = self.checked(option, Clock::EXPECTED, Clock::read);
                }
                "flags" | "txtime-delay" | "cycle-time" | "cycle-time-extension" => {
                    if self.once(option, word.at) {
                        return;
                    }
                }
                "base-time" => {
                    self.again(option, word.at);
                    let Some(value) = self.value(option, "nanoseconds") else { return };
                    match signed(&value.text) {
                        Some(time) => self.base_time = time,
                        None => return self.ends_here(option, &value),
                    }
                }
                _ => {
                    self.again(option, word.at);
                    self.list(option);
                }
            }
        }
    }

    /// Options of which tc refuses a second one behind one that is not 0. True where tc reads no further.
    fn once(&mut self, option: &'static str, at: Position) -> bool {
        let before = match option {
            "flags" => self.taprio.flags.unwrap_or(0) != 0,
            "txtime-delay" => self.taprio.txtime_delay.unwrap_or(0) != 0,
            "cycle-time" => self.cycle_time != 0,
            _ => self.extension != 0,
        };
        if before {
            self.fault(at, option, "the option again", "each option once");
        }
        self.seen.push((option, at));
        let number = |text: &str| unsigned(text, 0, U32).map(|value| value as u32);
        match option {
            "flags" => {
                const EXPECTED: &str = "0x0, 0x1 (txtime-assist) or 0x2 (full offload)";
                let flags = |text: &str| number(text).filter(|flags| *flags <= 2);
                self.taprio.flags = self.checked(option, EXPECTED, flags);
            }
            "txtime-delay" => {
                // tc does not hand a 0 on.
                let delay = self.checked(option, "nanoseconds, 0 to 4294967295", number);
                self.taprio.txtime_delay = delay.filter(|delay| *delay != 0);
            }
            _ => {
                let Some(value) = self.value(option, "nanoseconds") else { return true };
                let Some(span) = signed(&value.text) else {
                    self.ends_here(option, &value);
                    return true;
                };
                *(if option == "cycle-time" { &mut self.cycle_time } else { &mut self.extension }) = span;
            }
        }
        false
    }

    /// Of an option that stands again the last counts.
    fn again(&mut self, option: &'static str, at: Position) {
        if self.is_seen(option) {
            self.remark(at, format!("{option} stands twice: tc takes the last"));
        }
        self.seen.push((option, at));
    }

    /// tc's parser ends at a time that is no number, says nothing, and goes on with what it has.
    fn ends_here(&mut self, option: &str, value: &Word<'_>) {
        let left = self.words.len() - self.next;
        let rest = if left > 0 { format!(", and the {left} words behind it") } else { String::new() };
        self.remark(
            value.at,
            format!(
                "{option} {} is no number of nanoseconds: tc ignores it{rest} without a word",
                crate::fault::shown(&value.text)
            ),
        );
        self.ended = Some((value.at, option.to_owned(), value.text.to_string()));
        self.next = self.words.len();
    }

    /// A word that begins no option, with those behind it: they are reported together.
    fn unknown(&mut self, word: &Word<'_>) {
        let mut words = word.text.to_string();
        while let Some(next) = self.peek_text().filter(|next| !OPTIONS.contains(&next.as_ref())) {
            // What is shown is short; the rest only has to be passed.
            if words.len() < 100 {
                words.push(' ');
                words.push_str(&next);
            }
            self.take();
        }
        let options = format!("one of {}", OPTIONS.join(", "));
        match self.list.take() {
            Some((option, expected)) => {
                self.fault(word.at, option, words, format!("{expected}, or {options}"));
            }
            None => self.fault(word.at, "", words, options),
        }
    }

    /// The words of a list: up to the first that `read` does not understand, or sixteen.
    fn words_of<T>(&mut self, read: impl Fn(&str) -> Option<T>) -> Vec<T> {
        let mut values = Vec::new();
        while let Some(value) =
            self.peek_text().filter(|_| values.len() < LIST_MAX).and_then(|word| read(&word))
        {
            self.take();
            values.push(value);
        }
        values
    }

    fn list(&mut self, option: &'static str) {
        match option {
            "num_tc" => {
                const EXPECTED: &str = "1 to 8 traffic classes (802.1Q has eight)";
                let number = |text: &str| unsigned(text, 10, 8).map(|count| count as u8);
                let count = self.checked(option, EXPECTED, number);
                // tc does not hand a 0 on.
                self.taprio.num_tc = count.filter(|count| *count != 0);
            }
            "map" => {
                let classes = self.words_of(|text| unsigned(text, 10, 255).map(|class| class as u8));
                self.map = [0; LIST_MAX];
                self.map[..classes.len()].copy_from_slice(&classes);
            }
            "queues" => {
                let ranges = self.words_of(queue_range);
                for (index, range) in ranges.into_iter().enumerate() {
                    match self.taprio.queues.get_mut(index) {
                        Some(place) => *place = range,
                        None => self.taprio.queues.push(range),
                    }
                }
            }
            "max-sdu" => {
                let octets = self.words_of(|text| unsigned(text, 10, U32).map(|octets| octets as u32));
                let count = self.max_sdu.len() + octets.len();
                self.max_sdu.splice(..octets.len().min(self.max_sdu.len()), octets);
                self.max_sdu.resize(count, 0);
            }
            _ => {
                let marks = self.words_of(|text| match text {
                    "E" => Some(false),
                    "P" => Some(true),
                    _ => None,
                });
                // tc counts the classes of both lists, and Linux refuses those without a mark.
                if !self.taprio.is_preemptible.is_empty() && !marks.is_empty() {
                    let at = self.last;
                    self.fault(at, option, "the option again", "each option once");
                }
                self.taprio.is_preemptible.extend(marks);
            }
        }
        self.list = match option {
            "map" => Some((option, "a traffic class, sixteen at most")),
            "queues" => Some((option, QUEUES_EXPECTED)),
            "max-sdu" => Some((option, "octets, 0 to 4294967295 (0: no limit), of sixteen classes at most")),
            "fp" => Some((option, "E or P, of sixteen classes at most")),
            _ => None,
        };
        // The lists of tc have sixteen places; what stands again is counted beyond them.
        let lengths = [self.max_sdu.len(), self.taprio.is_preemptible.len()];
        if lengths.iter().any(|length| *length > LIST_MAX) {
            let at = self.last;
            self.fault(at, option, "more than 16 classes", "at most 16 in all");
            self.max_sdu.truncate(LIST_MAX);
            self.taprio.is_preemptible.truncate(LIST_MAX);
        }
    }

    /// `sched-entry COMMAND MASK INTERVAL`.
    fn entry(&mut self) {
        let at = self.entries.len();
        let path = |leaf: &str| format!("sched-entry[{at}].{leaf}");
        let operation = self.checked(&path("command"), "S, H (hold) or R (release)", operation);
        let mask =
            self.checked(&path("gate-mask"), "a gate mask in hexadecimal", |text| unsigned(text, 16, U32));
        let beyond = mask.is_some_and(|mask| mask > 0xff).then_some(self.last);
        let interval =
            self.checked(&path("interval"), "nanoseconds, at most 4294967295", |text| unsigned(text, 0, U32));
        if let Some(at) = beyond {
            self.remark(
                at,
                format!(
                    "the gate mask {:x} has bits above class 7: they open nothing",
                    mask.unwrap_or_default()
                ),
            );
        }
        self.entries.push(self.last);
        if interval == Some(0) {
            let (at, path) = (self.last, path("interval"));
            self.fault(at, &path, "0", "more than 0 ns: no link is so fast that a frame takes no time");
        }
        self.schedule.admin.control_list.push(GateControlEntry {
            operation: operation.unwrap_or_default(),
            states: GateStates::from_bits(mask.unwrap_or_default() as u8),
            interval: Nanos::new(interval.unwrap_or(1) as i64),
        });
    }

    /// The rules about the command as a whole.
    fn finish(&mut self) {
        rules::check(self);
        if !self.faults.is_empty() {
            return;
        }
        let admin = &mut self.schedule.admin;
        admin.gate_enabled = true;
        let sum: i64 = admin.control_list.iter().map(|entry| entry.interval.get()).sum();
        let cycle = if self.cycle_time == 0 { sum } else { self.cycle_time };
        admin.cycle_time = Nanos::new(cycle);
        // Only its place in the cycle counts of a time before 1970.
        let base = if self.base_time < 0 { self.base_time.rem_euclid(cycle) } else { self.base_time };
        admin.base_time = Tai::from_nanos(base.unsigned_abs());
        // Linux takes any, and extends no cycle by less than nothing.
        admin.cycle_time_extension = Nanos::new(self.extension.max(0));
        if self.taprio.num_tc.is_some() {
            self.schedule.priority_map = PriorityMap::new(self.map).ok();
        }
        for (limit, octets) in self.schedule.queue_max_sdu.iter_mut().zip(&self.max_sdu) {
            *limit = Some(*octets).filter(|octets| *octets > 0);
        }
        self.schedule.taprio = Some(self.taprio.clone());
        let octets = message_octets(&self.schedule, self.max_sdu.len(), self.cycle_time != 0);
        if let Some(fault) = octets.err() {
            self.faults.push(Fault { at: self.entries.first().copied().unwrap_or(self.last), ..fault });
        }
    }
}

pub(super) fn operation(text: &str) -> Option<GateOperation> {
    match text {
        "S" => Some(GateOperation::SetGateStates),
        "H" => Some(GateOperation::SetAndHoldMac),
        "R" => Some(GateOperation::SetAndReleaseMac),
        _ => None,
    }
}

/// `COUNT@OFFSET`, as tc cuts it: what stands behind a second `@` is not looked at.
fn queue_range(text: &str) -> Option<(u16, u16)> {
    let mut parts = text.split('@').filter(|part| !part.is_empty());
    let mut number = || unsigned(parts.next()?, 10, u64::from(u16::MAX)).map(|number| number as u16);
    Some((number()?, number()?))
}
