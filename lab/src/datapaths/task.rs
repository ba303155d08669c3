// SPDX-License-Identifier: Apache-2.0
//! What is asked of an end of a datapath that is not this host's, and what it answers: a guest, or the remote host. Pure.
//!
//! For a guest a [`Task`] is a frame on the datapath itself: so a guest that answers is reached. An answer is text, one fact on each line, on
//! the guest's port: `task NUMBER` when the guest begins, `late NUMBER` when the task came too late, facts, `over NUMBER`. The remote host
//! gets its task over ssh, and its answer is a file of facts. Neither is trusted: a line that is none of these, or one frame too many, is an
//! error.

use super::FRAMES_MAX;
use super::frame::{self, HEADERS, Kind};
use super::path::{Direction, Load};
use super::traffic::{Arrival, Receiving, Sending, SentFrame};
use ktsn_measure::payload::{PROBE_OCTETS, Probe};
use ktsn_time::{Nanos, Tai};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Octets of a task behind the probe: direction, load, count of frames.
const TASK_OCTETS: usize = 1 + 1 + 8;
/// The longest line of an answer.
const LINE_OCTETS_MAX: usize = 256;
/// Names of counters that an answer has at most.
const NAMES_MAX: usize = 64;
/// The highest count: a sum of all counts of an answer has room in 64 bits.
const COUNT_MAX: u64 = 1 << 40;
/// What the names of a guest's counters begin with.
const GUEST: &str = "guest";

/// What an end is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "AsJson", try_from = "AsJson")]
pub(super) struct Task {
    /// Tasks have rising numbers; a second frame with the same one is a repetition.
    pub(super) number: u64,
    /// When the first frame is due.
    pub(super) first: Tai,
    pub(super) direction: Direction,
    pub(super) load: Load,
    /// Measured frames.
    pub(super) frames: u64,
}

impl Task {
    /// The task as a frame to the guest.
    pub(super) fn frame(&self) -> Vec<u8> {
        let mut octets = frame::build(
            Direction::Ingress,
            Kind::Task,
            frame::PAYLOAD_OCTETS.max(PROBE_OCTETS + TASK_OCTETS),
        );
        frame::set_probe(&mut octets, Probe { sequence: self.number, tx_time: self.first });
        let behind = &mut octets[HEADERS + PROBE_OCTETS..][..TASK_OCTETS];
        behind[0] = u8::from(self.direction == Direction::Ingress);
        behind[1] = u8::from(self.load == Load::Udp);
        behind[2..].copy_from_slice(&self.frames.to_be_bytes());
        octets
    }

    /// The task of a received frame; `None`: it is none.
    pub(super) fn read(octets: &[u8]) -> Option<Self> {
        let (Kind::Task, probe) = frame::read(octets)? else { return None };
        let behind = octets.get(HEADERS + PROBE_OCTETS..)?.get(..TASK_OCTETS)?;
        Some(Self {
            number: probe.sequence,
            first: probe.tx_time,
            direction: if behind[0] == 0 { Direction::Egress } else { Direction::Ingress },
            load: if behind[1] == 0 { Load::Idle } else { Load::Udp },
            frames: u64::from_be_bytes(behind[2..].try_into().ok()?),
        })
    }
}

/// A task as JSON.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct AsJson {
    number: u64,
    first_ns: u64,
    direction: String,
    load: String,
    frames: u64,
}

impl From<Task> for AsJson {
    fn from(task: Task) -> Self {
        Self {
            number: task.number,
            first_ns: task.first.as_nanos(),
            direction: task.direction.to_string(),
            load: task.load.to_string(),
            frames: task.frames,
        }
    }
}

impl TryFrom<AsJson> for Task {
    type Error = String;

    fn try_from(plain: AsJson) -> Result<Self, String> {
        if plain.frames > FRAMES_MAX {
            return Err(format!("{} frames: at most {FRAMES_MAX}", plain.frames));
        }
        Ok(Self {
            number: plain.number,
            first: Tai::from_nanos(plain.first_ns),
            direction: plain.direction.parse().map_err(|error| format!("direction: {error}"))?,
            load: plain.load.parse().map_err(|error| format!("load: {error}"))?,
            frames: plain.frames,
        })
    }
}

/// What an end has seen of a task.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) sending: Sending,
    pub(super) receiving: Receiving,
    /// Frames that were dropped there, by counter.
    pub(super) drops: BTreeMap<String, u64>,
    /// A clock there was stepped.
    pub(super) stepped: bool,
    /// The state of a guest's clock, in a word, and the bound of its error.
    pub(super) clock: String,
    pub(super) clock_bound: Nanos,
}

/// A number, or `-`.
fn maybe(at: Option<Tai>) -> String {
    at.map_or_else(|| "-".to_owned(), |at| at.as_nanos().to_string())
}

impl Answer {
    /// The facts as lines.
    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        let mut line = |words: std::fmt::Arguments<'_>| {
            // Writing to a string does not fail.
            let _written = writeln!(text, "{words}");
        };
        for frame in &self.sending.frames {
            let (due, called, returned) =
                (frame.due.as_nanos(), frame.called_at.as_nanos(), frame.returned_at.as_nanos());
            line(format_args!("sent {} {due} {called} {returned} {}", frame.sequence, maybe(frame.stamp)));
        }
        for arrival in &self.receiving.arrivals {
            let (called, received) = (arrival.called_at.as_nanos(), arrival.received_at.as_nanos());
            let (stamp, gap) = (maybe(arrival.stamp), arrival.gap.get());
            line(format_args!("got {} {called} {stamp} {received} {gap}", arrival.sequence));
        }
        for (reason, count) in &self.sending.refused {
            line(format_args!("refused {reason} {count}"));
        }
        for (counter, count) in &self.drops {
            line(format_args!("dropped {counter} {count}"));
        }
        let (sending, receiving) = (&self.sending, &self.receiving);
        for (name, count) in [
            ("late_windows", sending.late_windows),
            ("load_sent", sending.load_sent),
            ("load_unsent", sending.load_unsent),
            ("load_received", receiving.load_received),
            ("strangers", receiving.strangers),
            ("stepped", u64::from(self.stepped)),
            ("clock_bound_ns", self.clock_bound.get().unsigned_abs()),
        ] {
            line(format_args!("count {name} {count}"));
        }
        line(format_args!("clock {}", self.clock));
        text
    }

    /// Reads a whole answer: the facts of a task of so many frames. `origin` begins the names of its counters.
    ///
    /// # Errors
    /// The first line that is no fact.
    pub(super) fn read(text: &str, origin: &str, frames: u64) -> Result<Self, String> {
        let mut answer = Self::default();
        for line in text.lines() {
            let taken = if line.len() > LINE_OCTETS_MAX { None } else { answer.take(line, origin, frames) };
            taken.ok_or_else(|| format!("its answer has the line {}", shown(line)))?;
        }
        Ok(answer)
    }

    /// Takes a fact; `None`: the line is none, or there are more of them than a task of so many frames has.
    fn take(&mut self, line: &str, origin: &str, frames: u64) -> Option<()> {
        let words: Vec<&str> = line.split(' ').collect();
        let number = |index: usize| words.get(index)?.parse::<u64>().ok();
        let count = |index: usize| number(index).filter(|count| *count <= COUNT_MAX);
        let at = |index: usize| number(index).map(Tai::from_nanos);
        let stamp =
            |index: usize| if words.get(index) == Some(&"-") { Some(None) } else { at(index).map(Some) };
        let nanos = |index: usize| Some(Nanos::new(i64::try_from(number(index)?).ok()?));
        let has_room = |length: usize| (length as u64) < frames;
        match (words[0], words.len()) {
            ("sent", 6) if has_room(self.sending.frames.len()) => self.sending.frames.push(SentFrame {
                sequence: number(1)?,
                due: at(2)?,
                called_at: at(3)?,
                returned_at: at(4)?,
                stamp: stamp(5)?,
            }),
            // A frame may arrive twice.
            ("got", 6) if has_room(self.receiving.arrivals.len() / 2) => {
                self.receiving.arrivals.push(Arrival {
                    sequence: number(1)?,
                    called_at: at(2)?,
                    stamp: stamp(3)?,
                    received_at: at(4)?,
                    gap: nanos(5)?,
                });
            }
            ("refused", 3) if self.sending.refused.len() < NAMES_MAX => {
                self.sending.refused.insert(name(words[1])?, count(2)?);
            }
            ("dropped", 3) if self.drops.len() < NAMES_MAX => {
                self.drops.insert(format!("{origin}_{}", name(words[1])?), count(2)?);
            }
            ("count", 3) => match words[1] {
                "late_windows" => self.sending.late_windows = count(2)?,
                "load_sent" => self.sending.load_sent = count(2)?,
                "load_unsent" => self.sending.load_unsent = count(2)?,
                "load_received" => self.receiving.load_received = count(2)?,
                "strangers" => self.receiving.strangers = count(2)?,
                "stepped" => self.stepped = number(2)? != 0,
                "clock_bound_ns" => self.clock_bound = nanos(2)?,
                _ => return None,
            },
            ("clock", 2) => self.clock = name(words[1])?,
            _ => return None,
        }
        Some(())
    }
}

/// The begin of a line, in quotes and without control characters.
fn shown(line: &str) -> String {
    format!("{:?}", line.chars().take(80).collect::<String>())
}

/// A word that may stand in a results document.
fn name(word: &str) -> Option<String> {
    let is_letter = |letter: char| letter.is_ascii_alphanumeric() || "_-.".contains(letter);
    (!word.is_empty() && word.chars().all(is_letter)).then(|| word.to_owned())
}

/// What a guest has said so far of one task.
#[derive(Debug, Default)]
pub(super) struct Answers {
    /// The task that is asked for, and its frames.
    asked: (u64, u64),
    rest: Vec<u8>,
    pub(super) begun: bool,
    pub(super) late: bool,
    pub(super) over: bool,
    answer: Answer,
}

impl Answers {
    /// Forgets what was said before: the next words are about this task.
    pub(super) fn ask(&mut self, task: &Task) {
        let rest = std::mem::take(&mut self.rest);
        *self = Self { asked: (task.number, task.frames), rest, ..Self::default() };
    }

    /// Takes what the guest wrote.
    ///
    /// # Errors
    /// The line that no guest of ours writes.
    pub(super) fn take(&mut self, octets: &[u8]) -> Result<(), String> {
        self.rest.extend_from_slice(octets);
        let mut rest = std::mem::take(&mut self.rest);
        let mut begin = 0;
        while let Some(length) = rest[begin..].iter().position(|&octet| octet == b'\n') {
            let line = String::from_utf8_lossy(&rest[begin..begin + length]).into_owned();
            begin += length + 1;
            self.line(&line).ok_or_else(|| format!("wrote the line {}", shown(&line)))?;
        }
        rest.drain(..begin);
        if rest.len() > LINE_OCTETS_MAX {
            return Err(format!("wrote {} octets without a line's end", rest.len()));
        }
        self.rest = rest;
        Ok(())
    }

    fn line(&mut self, line: &str) -> Option<()> {
        let (asked, frames) = self.asked;
        let of = |word: &str| line.strip_prefix(word)?.parse::<u64>().ok().filter(|number| *number <= asked);
        if line.len() > LINE_OCTETS_MAX || self.over {
            return None;
        }
        // AsJson about an earlier task, which was given up, are no fault.
        if let Some(number) = of("task ") {
            self.begun |= number == asked;
        } else if let Some(number) = of("late ") {
            self.late |= number == asked;
        } else if let Some(number) = of("over ") {
            self.over = self.begun && number == asked;
        } else if self.begun {
            self.answer.take(line, GUEST, frames)?;
        } else {
            Answer::default().take(line, GUEST, frames)?;
        }
        Some(())
    }

    /// The whole answer, once it is over.
    pub(super) fn whole(&mut self) -> Option<Answer> {
        self.over.then(|| std::mem::take(&mut self.answer))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TASK: Task = Task {
        number: 3,
        first: Tai::from_nanos(77),
        direction: Direction::Ingress,
        load: Load::Udp,
        frames: 1 << 40,
    };

    #[test]
    fn a_task_is_read_as_it_was_sent() {
        for task in [TASK, Task { direction: Direction::Egress, load: Load::Idle, frames: 0, ..TASK }] {
            assert_eq!(Task::read(&task.frame()), Some(task));
        }
        let frame = TASK.frame();
        assert_eq!(Task::read(&frame[..HEADERS + PROBE_OCTETS + TASK_OCTETS - 1]), None);
        assert_eq!(Task::read(&frame::build(Direction::Ingress, Kind::Measured, 64)), None);
    }

    fn answer() -> Answer {
        let at = Tai::from_nanos;
        let sent =
            SentFrame { sequence: 1, due: at(5), called_at: at(6), returned_at: at(9), stamp: Some(at(8)) };
        let gap = Nanos::new(7);
        let got = Arrival { sequence: 2, called_at: at(6), stamp: None, received_at: at(30), gap };
        Answer {
            sending: Sending {
                frames: vec![sent, SentFrame { sequence: 2, stamp: None, ..sent }],
                refused: [("device_full".to_owned(), 4)].into(),
                late_windows: 1,
                load_sent: 2,
                load_unsent: 3,
            },
            receiving: Receiving { arrivals: vec![got, got], load_received: 5, strangers: 6 },
            drops: [("guest_eth0_rx_dropped".to_owned(), 9)].into(),
            stepped: true,
            clock: "following".to_owned(),
            clock_bound: Nanos::new(400),
        }
    }

    #[test]
    fn an_answer_is_read_as_it_was_written_in_pieces_of_any_length() {
        let text = format!("task 3\n{}over 3\n", answer().text().replace("dropped guest_", "dropped "));
        for size in [1, 7, 4096] {
            let mut answers = Answers::default();
            answers.ask(&Task { frames: 2, ..TASK });
            for piece in text.as_bytes().chunks(size) {
                assert!(!answers.over);
                answers.take(piece).unwrap();
            }
            assert_eq!(answers.whole(), Some(answer()), "{size}");
        }
    }

    #[test]
    fn what_no_guest_of_ours_writes_is_an_error() {
        let sent = "sent 1 5 6 9 8\n";
        for (text, word) in [
            ("task 3\nsent 1 5 6 9\n", "sent 1 5 6 9"),
            ("task 3\nsent x 5 6 9 8\n", "sent x"),
            ("task 4\n", "task 4"),
            ("task 3\ncount other 1\n", "count other"),
            ("task 3\nclock a<b\n", "a<b"),
            ("task 3\ncount load_sent 18446744073709551615\n", "load_sent"),
            ("task 3\ndropped eth0 1099511627777\n", "eth0"),
            ("task 3\nover 3\nclock x\n", "clock x"),
            (&format!("task 3\n{sent}{sent}{sent}"), "sent 1"),
            (&"x".repeat(300), "without a line's end"),
            ("\u{0}\n", "wrote the line"),
        ] {
            let mut answers = Answers::default();
            answers.ask(&Task { frames: 2, ..TASK });
            let error = answers.take(text.as_bytes()).unwrap_err();
            assert!(error.contains(word), "{text}: {error}");
        }
    }

    #[test]
    fn a_task_in_json_is_read_as_it_was_written_and_nothing_else() {
        let task = Task { frames: 60, ..TASK };
        let text = serde_json::to_string(&task).unwrap();
        assert_eq!(serde_json::from_str::<Task>(&text).unwrap(), task);
        for (from, to, word) in [
            ("\"ingress\"", "\"up\"", "egress"),
            ("\"udp\"", "\"much\"", "idle"),
            ("60", "1000001", "at most 1000000"),
            ("\"number\"", "\"count\"", "count"),
        ] {
            let error = serde_json::from_str::<Task>(&text.replace(from, to)).unwrap_err();
            assert!(error.to_string().contains(word), "{error}");
        }
    }

    #[test]
    fn an_answer_in_a_file_is_read_as_it_was_written_and_nothing_else() {
        let (text, sent) = (answer().text().replace("dropped guest_", "dropped "), "sent 1 5 6 9 8\n");
        assert_eq!(Answer::read(&text, GUEST, 2), Ok(answer()));
        let other = Answer::read(&text, "remote", 2).unwrap();
        assert_eq!(other.drops, [("remote_eth0_rx_dropped".to_owned(), 9)].into());
        for (text, word) in [
            (format!("{text}task 3\n"), "task 3"),
            (format!("{text}\n"), "\"\""),
            (format!("{sent}{sent}{sent}"), "sent 1"),
            ("got 1 5 6 9 8\n".repeat(5), "got 1"),
            ("count load_sent 1099511627777\n".to_owned(), "load_sent"),
            ((0..65).map(|number| format!("dropped d{number} 1\n")).collect(), "dropped d64"),
            ((0..65).map(|number| format!("refused r{number} 1\n")).collect(), "refused r64"),
            ("dropped a\u{1b}b 1\n".to_owned(), "\\u{1b}"),
            (format!("clock {}\n", "x".repeat(300)), "clock x"),
        ] {
            let error = Answer::read(&text, "remote", 2).unwrap_err();
            assert!(error.contains(word) && error.len() < 200, "{text}: {error}");
        }
    }

    #[test]
    fn words_about_an_earlier_task_are_passed_over() {
        let mut answers = Answers::default();
        answers.ask(&Task { frames: 2, ..TASK });
        answers.take(b"late 2\nover 2\nsent 9 5 6 9 8\nlate 3\n").unwrap();
        assert!(answers.late && !answers.begun && !answers.over && answers.whole().is_none());
        answers.ask(&Task { number: 4, frames: 2, ..TASK });
        assert!(!answers.late);
        answers.take(b"task 4\nover 4\n").unwrap();
        assert_eq!(answers.whole(), Some(Answer::default()));
    }
}
