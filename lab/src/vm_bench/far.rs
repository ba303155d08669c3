// SPDX-License-Identifier: Apache-2.0
//! What the subscriber's side is asked, on this machine or on another one; there ([`serve`]) it has a [`Subscriber`] for each row, which ends
//! with the connection.

use super::counters::Reasons;
use super::ends::SCRIPT_EXTRA;
use super::plan::{Datapath, Load, Plan, Row};
use super::script::SUBSCRIBERS_FILES;
use super::site::{Host, Which};
use super::subscriber::{Heard, State, Subscriber};
use super::tap;
use crate::error::LabError;
use crate::experiment::Setup;
use crate::remote::hosts::{self, ANSWER_MAX, SetUp, Side};
use crate::testbed::{Echo, settle};
use crate::tools::Tools;
use crate::vm::{self, Accelerator, Cache, Choice, Kind, Renew};
use ktsn_time::Nanos;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// How long the guests' image may take there: its packages are fetched.
const IMAGE_MAX: Duration = Duration::from_secs(1800);
/// How long a virtual switch and the devices may take there.
const SITE_MAX: Duration = Duration::from_secs(120);
/// How often the other machine is asked how far it is: each question takes some of its time.
const ASK_AGAIN: Duration = Duration::from_millis(500);
/// What the other machine's samples are called.
const SAMPLES: &str = "samples.json";
/// So many rows of records have as many octets as the samples of a second.
const SAMPLE_ROWS: u64 = 40;
/// The load's program.
const LOAD_PROGRAM: &str = "iperf3";

/// A row, as the other machine hears of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Order {
    datapath: String,
    keeper: String,
    load: String,
    payloads: Vec<usize>,
    period_ns: i64,
    frames: u64,
    boot_within_ms: u64,
    clock: String,
}

impl Order {
    fn of(plan: &Plan, row: Row) -> Self {
        Self {
            datapath: row.datapath.to_string(),
            keeper: row.keeper.to_string(),
            load: row.load.to_string(),
            payloads: plan.payloads.clone(),
            period_ns: plan.period.get(),
            frames: plan.frames,
            boot_within_ms: plan.boot_within.as_millis() as u64,
            clock: plan.clock.to_string(),
        }
    }

    /// Row and plan; `None`: a word of it is none of this experiment.
    fn read(self, setup: &Setup, choice: Option<&Choice>) -> Option<(Plan, Row)> {
        let row = Row {
            datapath: self.datapath.parse().ok()?,
            keeper: self.keeper.parse().ok()?,
            load: self.load.parse().ok()?,
        };
        let no_guests = || Choice { accelerator: Accelerator::Tcg, reason: "there are no guests".to_owned() };
        let plan = Plan {
            datapaths: vec![row.datapath],
            keepers: vec![row.keeper],
            loads: vec![row.load],
            payloads: self.payloads,
            period: Nanos::new(self.period_ns),
            frames: self.frames,
            rounds: 1,
            load_mbit: 0,
            boot_within: Duration::from_millis(self.boot_within_ms),
            clock: self.clock.parse().ok()?,
            choice: choice.cloned().unwrap_or_else(no_guests),
            cache: Cache::find(None),
            hosts: None,
            setup: setup.clone(),
        };
        Some((plan, row))
    }
}

/// What the first host may ask.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub(super) enum Question {
    /// Answer datagrams on the cable until the first row.
    Wire,
    /// Make guests ready that run by this accelerator.
    Guests(String),
    /// Set the row's host up, and start the subscriber.
    Row(Order),
    /// [`State`].
    State,
    /// Start the load's receiver.
    Load,
    /// Octets of the load that have arrived.
    Octets,
    /// What is dropped from now on is of the run.
    Count,
    /// Give the row up.
    Stop,
    /// End the row: what was dropped, and the files.
    End,
}

/// The subscriber's side, here or there.
pub(super) type End = crate::remote::End<Served>;

/// Passes datagrams between both machines by their devices.
///
/// # Errors
/// [`LabError::Impossible`]: a device is missing or carries no macvlan, or nothing passes.
pub(super) fn try_wire(end: &mut End, uplink: (&str, u16), directory: &Path) -> Result<(), LabError> {
    let () = end.ask(Question::Wire, SITE_MAX)?;
    let host = Host::apart(Which::Publisher, Datapath::NoVm, uplink, directory)?;
    settle(&host.namespace, host.address(), host.addresses.ends[1])
}

/// Makes the other machine ready for guests that run as those of this one.
///
/// # Errors
/// [`LabError::Impossible`]: it has no KVM where this one has, or its image cannot be made.
pub(super) fn prepare(end: &mut End, choice: &Choice) -> Result<(), LabError> {
    end.ask(Question::Guests(choice.accelerator.to_string()), IMAGE_MAX)
}

/// A row's subscriber.
pub(super) struct Other<'a> {
    pub(super) end: &'a mut End,
    /// What the other machine said last: each question takes some of its time.
    asked: Option<(Instant, State)>,
    longest: Duration,
}

impl<'a> Other<'a> {
    /// Sets the row's host up on the other machine, and starts the subscriber's script.
    ///
    /// # Errors
    /// [`LabError::Impossible`]: that machine cannot have the row.
    pub(super) fn there(end: &'a mut End, plan: &Plan, row: Row) -> Result<Self, LabError> {
        let () = end.ask(Question::Row(Order::of(plan, row)), SITE_MAX)?;
        Ok(Self::of(end, plan))
    }

    /// One that runs.
    pub(super) fn of(end: &'a mut End, plan: &Plan) -> Self {
        let longest = plan.boot_within + plan.traffic() + SCRIPT_EXTRA + ANSWER_MAX;
        Self { end, asked: None, longest }
    }

    /// # Errors
    /// As [`Subscriber::check`]; the other machine does not answer.
    pub(super) fn state(&mut self) -> Result<State, LabError> {
        match self.asked {
            Some((at, state)) if self.end.far().is_some() && at.elapsed() < ASK_AGAIN => Ok(state),
            _ => {
                let state = self.ask(Question::State)?;
                self.asked = Some((Instant::now(), state));
                Ok(state)
            }
        }
    }

    /// # Errors
    /// As of the question.
    pub(super) fn ask<T: DeserializeOwned>(&mut self, question: Question) -> Result<T, LabError> {
        self.end.ask(question, ANSWER_MAX)
    }

    /// What the subscriber left in `directory`, once it has ended; the records of its tap device, too.
    ///
    /// # Errors
    /// As [`Subscriber::finish`]; a file of the other machine is too large.
    pub(super) fn finish(&mut self, plan: &Plan, row: Row, directory: &Path) -> Result<Heard, LabError> {
        let dropped: Reasons = self.end.ask(Question::End, self.longest)?;
        let frames = plan.frames * plan.payloads.len() as u64;
        let mut heard = Heard { dropped, ..Heard::default() };
        let mut fetch = |name: &str, frames| {
            let path = self.end.fetch(name, directory, frames)?;
            std::fs::read(&path).map_err(LabError::file(&path))
        };
        for name in SUBSCRIBERS_FILES {
            heard.files.insert(name, fetch(name, frames)?);
        }
        let samples = fetch(SAMPLES, self.longest.as_secs() * SAMPLE_ROWS)?;
        if row.datapath == Datapath::Bridge {
            self.end.fetch(&tap::file(Which::Subscriber), directory, frames)?;
        }
        heard.samples = serde_json::from_slice(&samples).map_err(|error| {
            let error = vm::printable(error.to_string().as_bytes());
            self.refuse(format!(
                "its {SAMPLES} is not JSON of samples: {error}; install the same ktsn on both"
            ))
        })?;
        Ok(heard)
    }

    /// What the other machine cannot have seen.
    pub(super) fn refuse(&self, problem: String) -> LabError {
        match self.end.far() {
            Some(far) => far.refuse(problem).into(),
            None => LabError::Usage(problem),
        }
    }
}

/// The subscriber's machine.
#[derive(Debug)]
pub(super) struct Served {
    // Ends before its directory.
    subscriber: Option<Subscriber>,
    /// Answers on the cable until the first row. Ends before its host.
    wire: Option<(Echo, Host)>,
    /// Where the files of the row are made.
    of_row: Option<TempDir>,
    choice: Option<Choice>,
    /// The device that leads to the first host, and the number that both share.
    uplink: (String, u16),
    setup: Setup,
    directory: PathBuf,
}

impl Served {
    fn new(setup: Setup, uplink: (String, u16), directory: PathBuf) -> Self {
        Self { subscriber: None, wire: None, of_row: None, choice: None, uplink, setup, directory }
    }

    /// The side on this machine, of a row that runs. Its files go to `directory`.
    pub(super) fn here(setup: &Setup, subscriber: Subscriber, directory: &Path) -> End {
        let served = Self::new(setup.clone(), Default::default(), directory.to_owned());
        End::Here(Box::new(Self { subscriber: Some(subscriber), ..served }))
    }
}

/// Serves the first host's questions until the connection ends.
///
/// # Errors
/// As [`hosts::serve`].
pub fn serve(tools: &Tools) -> Result<(), LabError> {
    hosts::serve(|set_up: &SetUp| {
        let setup = Setup::of_other_side(tools, set_up.functional)?;
        setup.tools.check_daemon()?;
        let directory = std::env::current_dir().map_err(LabError::system("working directory"))?;
        Ok(Served::new(setup, (set_up.uplink.clone(), set_up.number), directory))
    })
}

impl Side for Served {
    type Question = Question;

    fn answer(&mut self, question: Question) -> Result<Value, LabError> {
        match question {
            Question::Wire => self.wire().map(|()| Value::Null),
            Question::Guests(accelerator) => self.prepare(&accelerator).map(|()| Value::Null),
            Question::Row(order) => self.begin(order).map(|()| Value::Null),
            Question::State => {
                let subscriber = self.subscriber()?;
                subscriber.check()?;
                Ok(json!(subscriber.state()))
            }
            Question::Load => self.subscriber()?.start_load().map(|()| Value::Null),
            Question::Octets => self.subscriber()?.load_octets().map(|octets| json!(octets)),
            Question::Count => self.subscriber()?.count().map(|()| Value::Null),
            Question::Stop => {
                self.subscriber = None;
                Ok(Value::Null)
            }
            Question::End => self.end().map(|dropped| json!(dropped)),
        }
    }

    fn is_timed(&self) -> bool {
        !self.setup.functional
    }
}

/// # Errors
/// [`LabError::Impossible`]: this machine has not the load's program.
pub(super) fn check_programs(row: Row) -> Result<(), LabError> {
    let search = std::env::var_os("PATH").unwrap_or_default();
    let is_there = std::env::split_paths(&search).any(|directory| directory.join(LOAD_PROGRAM).is_file());
    if row.load == Load::Idle || is_there {
        return Ok(());
    }
    Err(LabError::Impossible {
        what: format!("the load's program {LOAD_PROGRAM} is missing"),
        remedy: format!("apt-get install {LOAD_PROGRAM}, or --load idle"),
    })
}

impl Served {
    fn subscriber(&mut self) -> Result<&mut Subscriber, LabError> {
        self.subscriber.as_mut().ok_or_else(|| LabError::Usage("no row runs".to_owned()))
    }

    /// Answers on the cable.
    fn wire(&mut self) -> Result<(), LabError> {
        self.wire = None;
        let host = Host::apart(Which::Subscriber, Datapath::NoVm, self.uplink(), &self.directory)?;
        self.wire = Some((Echo::at(&host.namespace, host.address())?, host));
        Ok(())
    }

    fn uplink(&self) -> (&str, u16) {
        (&self.uplink.0, self.uplink.1)
    }

    /// The image, and whether guests run here as on the first host.
    fn prepare(&mut self, accelerator: &str) -> Result<(), LabError> {
        let cache = Cache::find(None);
        vm::clean(&cache)?;
        let mut image = || vm::image(&cache, Kind::Qemu, Renew::Nothing, &mut |_| {});
        drop(image()?);
        let mut choice = Choice { accelerator: Accelerator::Tcg, reason: String::new() };
        if accelerator == Accelerator::Kvm.to_string() {
            choice = vm::choose(&cache, &self.setup.tools, &mut image, &mut |_| {})?;
        }
        if choice.accelerator.to_string() != accelerator {
            return Err(LabError::Impossible {
                what: format!(
                    "guests run by {accelerator} on the first host and not here: {}",
                    choice.reason
                ),
                remedy: "--accelerator tcg, so that both run alike".to_owned(),
            });
        }
        self.choice = Some(choice);
        Ok(())
    }

    fn begin(&mut self, order: Order) -> Result<(), LabError> {
        let odd = || hosts::not_asked("a word of its row is unknown");
        let (plan, row) = order.read(&self.setup, self.choice.as_ref()).ok_or_else(odd)?;
        plan.check()?;
        check_programs(row)?;
        (self.wire, self.subscriber) = (None, None);
        let of_row =
            tempfile::tempdir_in(&self.directory).map_err(LabError::system("temporary directory"))?;
        let host = Host::apart(Which::Subscriber, row.datapath, self.uplink(), of_row.path())?;
        self.subscriber = Some(Subscriber::begin(&plan, row, host, of_row.path(), true)?);
        self.of_row = Some(of_row);
        Ok(())
    }

    /// Ends the row: what was dropped. Its files lie in the directory then.
    fn end(&mut self) -> Result<Reasons, LabError> {
        let ended = self.subscriber()?.finish();
        self.subscriber = None;
        let heard = ended?;
        for name in SUBSCRIBERS_FILES {
            super::ends::keep(&heard.files, name, &self.directory)?;
        }
        let path = self.directory.join(SAMPLES);
        let samples = serde_json::to_vec(&heard.samples).unwrap_or_default();
        std::fs::write(&path, samples).map_err(LabError::file(&path))?;
        let tap = tap::file(Which::Subscriber);
        let of_row = self.of_row.take();
        if let Some(from) = of_row.as_ref().map(|row| row.path().join(&tap)).filter(|from| from.exists()) {
            std::fs::rename(&from, self.directory.join(&tap)).map_err(LabError::file(&from))?;
        }
        Ok(heard.dropped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vm_bench::Keeper;

    #[test]
    fn a_row_is_read_as_it_was_ordered() {
        let plan = super::super::tests::plan();
        let row = Row { datapath: Datapath::Bridge, keeper: Keeper::Ktsnd, load: Load::Udp };
        let text = serde_json::to_string(&Order::of(&plan, row)).unwrap();
        let order: Order = serde_json::from_str(&text).unwrap();
        let (there, read) = order.clone().read(&plan.setup, None).unwrap();
        assert_eq!(read, row);
        assert_eq!((there.frames, there.period, &there.payloads), (plan.frames, plan.period, &plan.payloads));
        assert_eq!((there.boot_within, there.clock), (plan.boot_within, plan.clock));
        there.check().unwrap();
        let odd = Order { datapath: "cable".to_owned(), ..order };
        assert!(odd.read(&plan.setup, None).is_none());
    }
}
