// SPDX-License-Identifier: Apache-2.0
//! An experiment on two hosts: what both need, and the conversation with the other one's side.
//!
//! In: [`Hosts`], and what the experiment asks its other side. Out: answers as values, files, and how far the clocks may differ. Each question
//! and each answer is a line of JSON; the other side is a command of ktsn there (`ktsn remote side`), which [`serve`] runs.

use super::clock::{self, ClockFacts};
use super::{Remote, RemoteError, Said, Session, Task, cut, no_json, plain, words_or};
use crate::error::LabError;
use crate::exclusive::wait_until_quiet;
use ktsn_measure::clock::stop_requested;
use ktsn_measure::environment::Environment;
use ktsn_measure::hosts::{PARAMETER, TwoHosts};
use ktsn_measure::results::Document;
use ktsn_time::{Nanos, Tai};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::cell::OnceCell;
use std::io::{BufRead as _, Write as _};
use std::path::Path;
use std::time::{Duration, Instant};

/// What an answer may take beside its work.
pub(crate) const ANSWER_MAX: Duration = Duration::from_secs(30);
/// How long the other machine may take to be quiet.
const QUIET_MAX: Duration = Duration::from_secs(30);
/// Octets of a row of records, at most, and of what else a file of records has.
const ROW_OCTETS: u64 = 128;
const FILE_OCTETS: u64 = 1 << 20;
/// The most characters of a text in an answer.
const TEXT_CHARACTERS_MAX: usize = 1000;
/// Words that a look at the other side passes over, at most.
const WORDS_MAX: usize = 64;
/// An instant may lie so far outside of the run that it belongs to, beside the clocks' bound.
const OUTSIDE: Nanos = Nanos::from_seconds(2);

/// The two hosts of an experiment.
#[derive(Clone, Debug)]
pub struct Hosts {
    /// The other one.
    pub remote: Remote,
    /// Here and there, the device that leads to the other host.
    pub uplinks: [String; 2],
    /// How far the clocks may differ.
    pub within: Nanos,
    /// What `--version` says here.
    pub version: String,
}

/// What the other side is first asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetUp {
    /// The device there.
    pub uplink: String,
    /// The number that both halves share.
    pub number: u16,
    /// No SCHED_FIFO, no CPUs, no waiting.
    pub functional: bool,
}

/// Both clocks, as they were found.
#[derive(Clone, Debug)]
pub struct Clocks {
    here: ClockFacts,
    there: ClockFacts,
    /// Their largest difference.
    pub bound: Nanos,
}

/// What is known of both hosts before the first run.
#[derive(Clone, Debug)]
pub struct Known {
    /// The clocks.
    pub clocks: Clocks,
    /// The other host's environment.
    pub environment: Value,
}

impl Hosts {
    /// Whether an experiment is possible: the connection, the version, the clocks.
    ///
    /// # Errors
    /// [`RemoteError`] says why not.
    pub fn check(&self) -> Result<Clocks, RemoteError> {
        self.remote.check_version(&self.version)?;
        self.clocks()
    }

    /// # Errors
    /// As [`clock::check`].
    fn clocks(&self) -> Result<Clocks, RemoteError> {
        let (here, there) = (ClockFacts::here(), self.remote.clock()?);
        let bound = clock::check(&here, &there, &self.remote.target.to_string(), self.within)?;
        Ok(Clocks { here, there, bound })
    }

    /// Starts the other side of an experiment. Its answer to the first question is its environment.
    ///
    /// # Errors
    /// [`RemoteError`].
    pub fn begin(&self, experiment: &str, functional: bool) -> Result<(Far, SetUp, Value), RemoteError> {
        let number = rand_number();
        let set_up = SetUp { uplink: self.uplinks[1].clone(), number, functional };
        let (far, environment) = Far::begin(&self.remote, experiment, &set_up)?;
        Ok((far, set_up, environment))
    }

    /// Looks at the clocks once more, and writes into the results what is known of both hosts. The larger bound of both looks counts.
    ///
    /// # Errors
    /// The clocks are not held any more: the run is no result.
    pub(crate) fn describe(&self, known: &Known, document: &mut Document) -> Result<(), RemoteError> {
        let Known { clocks: before, environment } = known;
        let after = self.clocks()?;
        let [uplink, remote_uplink] = &self.uplinks;
        let two = TwoHosts {
            remote: self.remote.target.to_string(),
            clock_bound_ns: before.bound.max(after.bound).get(),
            clock_within_ns: self.within.get(),
            clock_here: json!(before.here),
            clock_there: json!(before.there),
            uplink: uplink.clone(),
            remote_uplink: remote_uplink.clone(),
            environment_there: environment.clone(),
        };
        document.parameters.insert(PARAMETER.to_owned(), json!(two));
        Ok(())
    }
}

/// A number that makes the addresses of two experiments on one wire differ.
fn rand_number() -> u16 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let mixed = u64::from(now.subsec_nanos()) ^ (u64::from(std::process::id()) << 7);
    (mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48) as u16
}

/// The other side's answer.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
enum Answer {
    Done(Value),
    Failed { text: String, status: u8 },
}

/// The other side of a running experiment; it ends with the value, and everything it has set up.
#[derive(Debug)]
pub struct Far {
    session: Session,
    remote: Remote,
    /// Why nothing more can be asked: the first such reason.
    over: OnceCell<RemoteError>,
}

impl Far {
    /// Starts the other side of an experiment with its set-up. It answers with its environment.
    ///
    /// # Errors
    /// As [`Self::ask`].
    pub(crate) fn begin(
        remote: &Remote,
        experiment: &str,
        set_up: &impl Serialize,
    ) -> Result<(Self, Value), RemoteError> {
        let arguments = ["remote", "side", experiment].map(str::to_owned).to_vec();
        let task = Task { arguments, says_ready: false };
        let mut far = Self::of(remote.start(&task)?, remote);
        let environment = far.say(&json!(set_up), ANSWER_MAX)?;
        Ok((far, environment))
    }

    pub(super) fn of(session: Session, remote: &Remote) -> Self {
        Self { session, remote: remote.clone(), over: OnceCell::new() }
    }

    /// Asks, and waits for the answer.
    ///
    /// # Errors
    /// What the other side says; no answer within `longest`, or none of this form. After an end, a timeout or a broken rule every call fails
    /// at once with that reason.
    pub fn ask<T: DeserializeOwned>(
        &mut self,
        question: &impl Serialize,
        longest: Duration,
    ) -> Result<T, RemoteError> {
        self.say(&json!(Asked::Side(question)), longest)
    }

    /// Waits until the other machine is quiet; returns how often it was not.
    ///
    /// # Errors
    /// As [`Self::ask`].
    pub(crate) fn wait_until_quiet(&mut self) -> Result<u32, RemoteError> {
        self.say(&json!(Asked::<Value>::Quiet), QUIET_MAX)
    }

    fn say<T: DeserializeOwned>(&mut self, said: &Value, longest: Duration) -> Result<T, RemoteError> {
        self.check_over()?;
        let answered = self.answer(said, longest);
        self.keep(answered)
    }

    /// # Errors
    /// Nothing more can be asked.
    fn check_over(&self) -> Result<(), RemoteError> {
        self.over.get().and_then(RemoteError::again).map_or(Ok(()), Err)
    }

    /// Keeps an error after which nothing more can be asked.
    fn keep<T>(&self, done: Result<T, RemoteError>) -> Result<T, RemoteError> {
        if let Some(error) = done.as_ref().err().and_then(RemoteError::again) {
            let _the_first_counts = self.over.set(error);
        }
        done
    }

    fn answer<T: DeserializeOwned>(&mut self, question: &Value, longest: Duration) -> Result<T, RemoteError> {
        self.session.say(&question.to_string())?;
        let until = Instant::now() + longest;
        let untrue = |problem: String| RemoteError::Untrue { target: self.remote.target.clone(), problem };
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match self.session.next(left)? {
                Some(Said::Line(line)) => {
                    return match serde_json::from_str(&line) {
                        Ok(Answer::Done(value)) => serde_json::from_value(cleaned(value))
                            .map_err(|error| untrue(no_json(&answer_to(question), &error))),
                        Ok(Answer::Failed { text, status }) => Err(RemoteError::There {
                            target: self.remote.target.clone(),
                            text: self
                                .session
                                .with_words(words_or(text.as_bytes(), "it failed without a reason")),
                            status,
                        }),
                        Err(error) => Err(untrue(no_json(&answer_to(question), &error))),
                    };
                }
                // Words without end must not hold this side up.
                Some(Said::Word(_)) if Instant::now() < until => {}
                Some(Said::Ready) => return Err(untrue("it is ready without a question".to_owned())),
                Some(Said::Ended(ended)) => return Err(self.session.has_ended(ended)),
                Some(Said::Word(_)) | None => {
                    return Err(self.session.failed(&format!("gave no answer within {longest:?}")));
                }
            }
        }
    }

    /// Whether the other side still runs, and is silent; returns at once.
    ///
    /// # Errors
    /// The connection or the other side has ended, or it answers what it was not asked.
    pub(crate) fn check(&mut self) -> Result<(), RemoteError> {
        self.check_over()?;
        let silent = self.silent();
        self.keep(silent)
    }

    fn silent(&mut self) -> Result<(), RemoteError> {
        // Words without end must not hold this side up.
        for _ in 0..WORDS_MAX {
            match self.session.next(Duration::ZERO)? {
                None => break,
                Some(Said::Word(_)) => {}
                Some(Said::Ended(ended)) => return Err(self.session.has_ended(ended)),
                Some(Said::Line(_) | Said::Ready) => {
                    return Err(self.refuse("it answers without a question".to_owned()));
                }
            }
        }
        Ok(())
    }

    /// Fetches a file of records of `frames` frames at most.
    ///
    /// # Errors
    /// As [`Session::fetch`].
    pub fn fetch(&mut self, name: &str, to: &Path, frames: u64) -> Result<(), RemoteError> {
        self.check_over()?;
        let octets_max = frames.saturating_mul(ROW_OCTETS).saturating_add(FILE_OCTETS);
        match self.session.fetch(name, to, octets_max) {
            // There is no such file; other questions are answered.
            Err(error @ RemoteError::Command { .. }) => Err(error),
            fetched => self.keep(fetched),
        }
    }

    /// Refuses what the other side cannot have seen. Nothing more is asked then.
    pub(crate) fn refuse(&self, problem: String) -> RemoteError {
        let error = RemoteError::Untrue { target: self.remote.target.clone(), problem };
        let _the_first_counts = error.again().map(|again| self.over.set(again));
        error
    }
}

/// How an answer is called in errors: by the innermost word of its question.
fn answer_to(asked: &Value) -> String {
    let member =
        |value: &Value| Some(value.as_object().filter(|all| all.len() == 1)?.iter().next()?.0.clone());
    let asked = asked.get("side").unwrap_or(asked);
    let name = asked.as_str().map(str::to_owned).or_else(|| member(asked));
    format!("an answer to {}", name.as_deref().unwrap_or("the set-up"))
}

/// An answer whose texts are plain: names become parts of tables, reports and errors.
pub(super) fn cleaned(value: Value) -> Value {
    match value {
        Value::String(text) => Value::String(cut(&text, TEXT_CHARACTERS_MAX)),
        Value::Array(values) => values.into_iter().map(cleaned).collect(),
        Value::Object(members) => {
            members.into_iter().map(|(name, value)| (plain(&name), cleaned(value))).collect()
        }
        other => other,
    }
}

/// A frame from one host to the other, each instant by that host's clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Passage {
    pub(crate) sequence: u64,
    pub(crate) sent: Tai,
    pub(crate) arrived: Tai,
    /// So much before `sent` it may arrive.
    pub(crate) early_max: Nanos,
}

/// Why what the other host says is no result of a run from `begun` to `ended`, if so: an instant outside of the run, or a frame that arrived
/// before it was sent. Then the clocks do not agree, whatever was said of them. Such an instant makes a latency that no frame had.
pub(crate) fn impossible(
    [begun, ended]: [Tai; 2],
    within: Nanos,
    instants: impl IntoIterator<Item = Tai>,
    passages: impl IntoIterator<Item = Passage>,
) -> Option<String> {
    let slack = Nanos::new(OUTSIDE.get().saturating_add(within.get()));
    let run = begun.saturating_sub(slack)..=ended.saturating_add(slack);
    let outside = instants.into_iter().find(|at| !run.contains(at)).map(|at| {
        format!("the clocks do not agree: it has an instant at {} ns, outside of the run", at.as_nanos())
    });
    outside.or_else(|| {
        passages.into_iter().find_map(|Passage { sequence, sent, arrived, early_max }| {
            let early = sent.since(arrived);
            (early > early_max).then(|| {
                format!(
                    "the clocks do not agree: frame {sequence} arrived {early} before it was sent, and {early_max} are possible"
                )
            })
        })
    })
}

/// What the other side is asked.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
enum Asked<Q> {
    /// Wait until this machine is quiet: how often it was not.
    Quiet,
    /// A question of the experiment.
    Side(Q),
}

/// The side of an experiment on the other host.
pub trait Side {
    /// What the experiment asks it.
    type Question: DeserializeOwned;

    /// Answers a question.
    ///
    /// # Errors
    /// Shown to the first host.
    fn answer(&mut self, question: Self::Question) -> Result<Value, LabError>;

    /// Whether times count: then the machine is waited for.
    fn is_timed(&self) -> bool;

    /// Looks at what was begun, in the first host's process.
    ///
    /// # Errors
    /// It has failed, or the caller was asked to stop.
    fn check(&mut self) -> Result<(), LabError> {
        Ok(())
    }
}

/// Answers the first host's questions until it has no more; the first one is the set-up.
///
/// # Errors
/// Standard input or output; a question that is none. An error of the experiment is an answer.
pub fn serve<U: DeserializeOwned, S: Side>(
    make: impl FnOnce(&U) -> Result<S, LabError>,
) -> Result<(), LabError> {
    let (mut lines, mut out) = (std::io::stdin().lock().lines(), std::io::stdout().lock());
    let mut say = |answered: Result<Value, LabError>| {
        let answer = match answered {
            Ok(value) => Answer::Done(value),
            Err(error) => Answer::Failed { status: error.exit_status(), text: error.to_string() },
        };
        let line = serde_json::to_string(&answer).unwrap_or_default();
        writeln!(out, "{line}").and_then(|()| out.flush()).map_err(LabError::system("standard output"))
    };
    let Some(first) = lines.next() else { return Ok(()) };
    let set_up: U = read(&first.map_err(LabError::system("standard input"))?)?;
    let mut side = match make(&set_up) {
        Ok(side) => side,
        Err(error) => return say(Err(error)),
    };
    say(Ok(json!(Environment::read())))?;
    for line in lines {
        say(match read(&line.map_err(LabError::system("standard input"))?)? {
            Asked::Quiet if side.is_timed() => wait_until_quiet(|_| ()).map(|refusals| json!(refusals)),
            Asked::Quiet => Ok(json!(0)),
            Asked::Side(question) => side.answer(question),
        })?;
        if stop_requested() {
            return Err(LabError::Stopped);
        }
    }
    Ok(())
}

fn read<T: DeserializeOwned>(line: &str) -> Result<T, LabError> {
    serde_json::from_str(line)
        .map_err(|error| not_asked(&format!("{error}: {}", cut(line, TEXT_CHARACTERS_MAX))))
}

/// The error of a question that this ktsn cannot answer.
pub(crate) fn not_asked(problem: &str) -> LabError {
    LabError::Usage(format!(
        "ktsn {} of this host does not know the question: {problem}; install the same ktsn on both hosts",
        env!("CARGO_PKG_VERSION")
    ))
}
