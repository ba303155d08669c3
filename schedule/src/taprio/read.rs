// SPDX-License-Identifier: Apache-2.0
//! From a `tc` command to a schedule. As tc does, a word is looked at alone: what begins no option is a fault, and
//! reading goes on with the next one.

use ktsn_model::{AdminPort, GateControlEntry, GateOperation, GateStates, PriorityMap};
use ktsn_time::{Nanos, Tai};

use super::words::{Word, commands};
use super::{
    BASE_TIME, CLASS, CLOCK_EXPECTED, CLOCK_RULE, COMMENT, FLAGS, INTERVAL, Known, MASK, NUM_TC,
    QUEUES_EXPECTED, RULE, SDU, SPAN, TXTIME_DELAY, WORD_EXPECTED, contradictions, is_word, queue_range,
};
use crate::fault::{Fault, Position};
use crate::read::{about, admin_faults, sum};
use crate::schedule::{Schedule, Taprio};
use crate::units::Number;

/// tc's own limit of classes and of the lists about them.
const TC_MAX: usize = 16;

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
/// What may stand before it.
const PLACES: [&str; 5] = ["dev", "parent", "root", "handle", "taprio"];

/// Reads one command.
pub(crate) fn read(text: &str) -> Result<Schedule, Vec<Fault>> {
    let commands = commands(text);
    let Some(command) = commands.first() else {
        let expected = "a command: tc qdisc replace dev DEV parent root taprio …";
        return Err(vec![Fault::new(Position::START, "", "nothing", expected, RULE)]);
    };
    let mut reader = Command {
        words: command,
        next: 0,
        last: command[0],
        faults: Vec::new(),
        seen: Vec::new(),
        entries: Vec::new(),
        is_list_whole: true,
        cycle_time: None,
        is_cycle_time_known: true,
        schedule: Schedule::default(),
        taprio: Taprio { num_tc: None, queues: Vec::new(), is_clock_named: false, ..Taprio::default() },
    };
    if let Some(second) = commands.get(1) {
        let what = format!("a second command: {} …", second[0].text);
        reader.fault(second[0].at, "", what, "one command (does a line before it lack its \\?)", RULE);
    }
    reader.faults.extend(about(&comments(text), &mut reader.schedule));
    reader.command();
    reader.finish()
}

/// What KTSN says in comments, as YAML with every character where it stood.
fn comments(text: &str) -> String {
    let indent = " ".repeat(COMMENT.len());
    let line =
        |line: &str| line.strip_prefix(COMMENT).map(|said| format!("{indent}{said}")).unwrap_or_default();
    text.lines().map(line).collect::<Vec<_>>().join("\n")
}

struct Command<'a> {
    words: &'a [Word<'a>],
    next: usize,
    /// The word taken last: where something is missing.
    last: Word<'a>,
    faults: Vec<Fault>,
    /// Options that were read, with their places.
    seen: Vec<(&'static str, Position)>,
    /// Where each entry's interval stands.
    entries: Vec<Position>,
    is_list_whole: bool,
    cycle_time: Option<Nanos>,
    is_cycle_time_known: bool,
    schedule: Schedule,
    taprio: Taprio,
}

impl<'a> Command<'a> {
    fn fault(
        &mut self,
        at: Position,
        path: &str,
        value: impl std::fmt::Display,
        expected: impl Into<String>,
        rule: &'static str,
    ) {
        self.faults.push(Fault::new(at, path, value, expected, rule));
    }

    fn take(&mut self) -> Option<Word<'a>> {
        let word = *self.words.get(self.next)?;
        self.next += 1;
        self.last = word;
        Some(word)
    }

    fn peek(&self) -> Option<Word<'a>> {
        self.words.get(self.next).copied()
    }

    /// The value of an option, or a fault that it is missing.
    fn value(&mut self, path: &str, expected: &str) -> Option<Word<'a>> {
        let word = self.take();
        if word.is_none() {
            self.fault(self.last.at, path, "the command's end", expected, RULE);
        }
        word
    }

    /// `tc qdisc VERB … taprio …`.
    fn command(&mut self) {
        if self.peek().is_some_and(|word| word.text == "sudo") {
            self.take();
        }
        for words in [&["tc"][..], &["qdisc"], &["add", "replace", "change"]] {
            let Some(word) = self.value("", &words.join(", ")) else { return };
            if !words.contains(&word.text) {
                let expected =
                    format!("{} (tc qdisc replace dev DEV parent root taprio …)", words.join(", "));
                self.fault(word.at, "", word.text, expected, RULE);
                return;
            }
        }
        while let Some(word) = self.take() {
            match word.text {
                "taprio" => {
                    self.options();
                    return;
                }
                "root" => self.is_first("parent", word.at),
                "dev" => self.taprio.device = self.named("dev", word.at).or(self.taprio.device.take()),
                "handle" => self.taprio.handle = self.named("handle", word.at).or(self.taprio.handle.take()),
                "parent" => {
                    if let Some(parent) = self.named("parent", word.at) {
                        self.taprio.parent = parent;
                    }
                }
                _ => self.unknown(word, &PLACES),
            }
        }
        self.fault(self.last.at, "", "the command's end", "taprio", RULE);
    }

    /// A word that begins no option, with those after it: they are reported together.
    fn unknown(&mut self, word: Word<'a>, known: &[&str]) {
        let mut words = word.text.to_owned();
        while let Some(next) = self.peek().filter(|next| !known.contains(&next.text)) {
            // What is shown is short; the rest only has to be passed.
            if words.len() < 100 {
                words.push(' ');
                words.push_str(next.text);
            }
            self.take();
        }
        self.fault(word.at, "", words, format!("one of {}", known.join(", ")), RULE);
    }

    /// Notes the option; a repeated one is a fault.
    fn is_first(&mut self, option: &'static str, at: Position) {
        if self.seen.iter().any(|(seen, _)| *seen == option) {
            self.fault(at, option, "the option again", "each option once", RULE);
        }
        self.seen.push((option, at));
    }

    /// An option whose value is a name.
    fn named(&mut self, option: &'static str, at: Position) -> Option<String> {
        self.is_first(option, at);
        let word = self.value(option, WORD_EXPECTED)?;
        if !is_word(word.text) {
            self.fault(word.at, option, word.text, WORD_EXPECTED, RULE);
            return None;
        }
        Some(word.text.to_owned())
    }

    fn options(&mut self) {
        while let Some(word) = self.take() {
            let Some(option) = OPTIONS.into_iter().find(|option| *option == word.text) else {
                self.unknown(word, &OPTIONS);
                continue;
            };
            if option == "sched-entry" {
                self.entry();
                continue;
            }
            self.is_first(option, word.at);
            match option {
                "map" => self.map(),
                "queues" => self.queues(),
                "max-sdu" => self.max_sdu(),
                "fp" => self.fp(),
                "clockid" => self.clock(),
                "num_tc" => self.taprio.num_tc = self.number(option, &NUM_TC),
                "flags" => self.taprio.flags = self.number(option, &FLAGS),
                "txtime-delay" => self.taprio.txtime_delay = self.number(option, &TXTIME_DELAY),
                "base-time" => {
                    let base_time = self.number(option, &BASE_TIME).map(Tai::from_nanos);
                    self.schedule.admin.base_time = base_time.unwrap_or_default();
                }
                "cycle-time" => {
                    self.cycle_time = self.number(option, &SPAN).map(Nanos::new);
                    self.is_cycle_time_known = self.cycle_time.is_some();
                }
                _ => {
                    let extension = self.number(option, &SPAN).map(Nanos::new);
                    self.schedule.admin.cycle_time_extension = extension.unwrap_or_default();
                }
            }
        }
    }

    fn number<T: TryFrom<i128>>(&mut self, path: &str, number: &Number) -> Option<T> {
        let word = self.value(path, number.expected)?;
        let value = number.read(word.text).ok().flatten();
        if value.is_none() {
            self.fault(word.at, path, word.text, number.expected, RULE);
        }
        value
    }

    /// The words up to the next one that begins with a letter: how tc finds the end of a list.
    fn list(&mut self) -> Vec<Word<'a>> {
        let mut list = Vec::new();
        while let Some(word) = self.peek() {
            if !word.text.starts_with(|c: char| c.is_ascii_digit() || c == '-') || list.len() == TC_MAX {
                break;
            }
            list.push(word);
            self.take();
        }
        list
    }

    /// An option's list, each word as `read` understands it, or a fault.
    fn each<T>(
        &mut self,
        option: &str,
        expected: &'static str,
        read: impl Fn(&str) -> Option<T>,
    ) -> Vec<(Word<'a>, Option<T>)> {
        let words = self.list();
        let mut values = Vec::with_capacity(words.len());
        for (index, word) in words.into_iter().enumerate() {
            let value = read(word.text);
            if value.is_none() {
                self.fault(word.at, &format!("{option}[{index}]"), word.text, expected, RULE);
            }
            values.push((word, value));
        }
        values
    }

    /// A fault where a list is empty.
    fn is_there<T>(&mut self, option: &str, list: &[T], expected: &str) {
        if list.is_empty() {
            self.fault(self.last.at, option, "nothing", expected, RULE);
        }
    }

    fn map(&mut self) {
        let list = self.each("map", CLASS.expected, |text| CLASS.read::<u8>(text).ok().flatten());
        self.is_there("map", &list, "up to 16 traffic classes");
        let mut classes = [0; 16];
        for (class, (_, value)) in classes.iter_mut().zip(list) {
            *class = value.unwrap_or_default();
        }
        self.schedule.priority_map = PriorityMap::new(classes).ok();
    }

    fn queues(&mut self) {
        let list = self.each("queues", QUEUES_EXPECTED, queue_range);
        self.is_there("queues", &list, QUEUES_EXPECTED);
        self.taprio.queues.extend(list.into_iter().map(|(_, range)| range.unwrap_or((1, 0))));
    }

    fn max_sdu(&mut self) {
        let list = self.each("max-sdu", SDU.expected, |text| SDU.read::<u32>(text).ok().flatten());
        self.is_there("max-sdu", &list, SDU.expected);
        for (index, (word, octets)) in list.into_iter().enumerate() {
            let octets = octets.filter(|octets| *octets > 0);
            match (self.schedule.queue_max_sdu.get_mut(index), octets) {
                (Some(limit), _) => *limit = octets,
                // tc has room for sixteen classes; 802.1Q has eight.
                (None, None) => {}
                (None, Some(_)) => {
                    let path = format!("max-sdu[{index}]");
                    self.fault(word.at, &path, word.text, "0 for a class above 7", "802.1Q-2022 8.6.6");
                }
            }
        }
    }

    fn fp(&mut self) {
        let faults_count = self.faults.len();
        while let Some(word) = self.peek().filter(|word| !OPTIONS.contains(&word.text)) {
            match word.text {
                "E" | "P" => self.taprio.is_preemptible.push(word.text == "P"),
                other => self.fault(word.at, "fp", other, "E or P, one a class", RULE),
            }
            self.take();
        }
        if self.taprio.is_preemptible.is_empty() && self.faults.len() == faults_count {
            self.fault(self.last.at, "fp", "nothing", "E or P, one a class", RULE);
        }
    }

    fn clock(&mut self) {
        self.taprio.is_clock_named = true;
        if let Some(word) = self.value("clockid", CLOCK_EXPECTED) {
            let name = word.text.to_ascii_uppercase();
            if name.strip_prefix("CLOCK_").unwrap_or(&name) != "TAI" {
                self.fault(word.at, "clockid", word.text, CLOCK_EXPECTED, CLOCK_RULE);
            }
        }
    }

    /// `sched-entry S MASK INTERVAL`.
    fn entry(&mut self) {
        let at = self.entries.len();
        let path = |leaf: &str| format!("sched-entry[{at}].{leaf}");
        const COMMAND: &str = "S (SetGateStates), the only command that tc knows";
        if let Some(word) = self.value(&path("command"), COMMAND)
            && word.text != "S"
        {
            self.fault(word.at, &path("command"), word.text, COMMAND, RULE);
        }
        let states = self.number(&path("gate-mask"), &MASK);
        let interval = self.number(&path("interval"), &INTERVAL);
        self.entries.push(self.last.at);
        self.is_list_whole &= interval.is_some();
        self.schedule.admin.control_list.push(GateControlEntry {
            operation: GateOperation::SetGateStates,
            states: GateStates::from_bits(states.unwrap_or_default()),
            interval: Nanos::new(interval.unwrap_or(1)),
        });
    }

    fn place(&self, option: &str) -> Position {
        let seen = self.seen.iter().find(|(seen, _)| *seen == option);
        seen.map_or_else(|| self.words[0].at, |(_, at)| *at)
    }

    /// The rules about the command as a whole.
    fn finish(mut self) -> Result<Schedule, Vec<Fault>> {
        if self.entries.is_empty() && self.faults.is_empty() {
            self.fault(self.last.at, "sched-entry", "nothing", "at least one entry", RULE);
        }
        let admin = &mut self.schedule.admin;
        admin.gate_enabled = true;
        // tc takes 0 for "as long as the list".
        let given = self.cycle_time.filter(|cycle| *cycle != Nanos::ZERO);
        let cycle_time = given.or_else(|| sum(admin).filter(|_| self.is_list_whole));
        admin.cycle_time = cycle_time.unwrap_or_default();
        let is_known = self.is_cycle_time_known && cycle_time.is_some();
        let admin: &AdminPort = &self.schedule.admin;
        let faults = admin_faults(admin, is_known, self.is_list_whole, |fault| match fault.entry_index {
            Some(index) => (self.entries[index], format!("sched-entry[{index}].interval")),
            None => {
                let option = fault.leaf.trim_start_matches("admin-");
                let option = if option == "control-list" { "sched-entry" } else { option };
                let is_list = option == "sched-entry" || given.is_none() && option == "cycle-time";
                let first = self.entries.first().copied().filter(|_| is_list);
                (first.unwrap_or_else(|| self.place(option)), option.to_owned())
            }
        });
        self.faults.extend(faults);
        let is_seen = |option: &str| self.seen.iter().any(|(seen, _)| *seen == option);
        // For tc an option `map` that is not there is one of zeros: all priorities have class 0.
        if self.taprio.num_tc.is_some() && !is_seen("map") {
            self.schedule.priority_map = PriorityMap::new([0; 16]).ok();
        }
        let known = Known {
            num_tc: self.taprio.num_tc.is_some() || !is_seen("num_tc"),
            flags: self.taprio.flags.is_some() || !is_seen("flags"),
        };
        for (leaf, value, expected) in contradictions(&self.taprio, known) {
            let option = if leaf == "num-tc" { "num_tc" } else { leaf };
            self.fault(self.place(option), option, value, expected, RULE);
        }
        for (option, value, expected) in super::write::beyond_num_tc(&self.schedule, self.taprio.num_tc) {
            self.fault(self.place(option), option, value, expected, RULE);
        }
        self.schedule.taprio = Some(self.taprio);
        if self.faults.is_empty() { Ok(self.schedule) } else { Err(self.faults) }
    }
}
