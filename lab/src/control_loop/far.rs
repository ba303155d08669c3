// SPDX-License-Identifier: Apache-2.0
//! The device's end on another machine.
//!
//! In, here: the other host. Out: the same answers as of an end on this machine, and its files. There ([`serve`]): questions, and half of a
//! testbed, which ends with the connection.

use super::device::{Device, NAME};
use crate::error::LabError;
use crate::experiment::{Event, Setup, Watch};
use crate::observers::READY_MAX;
use crate::receive::Path;
use crate::remote::hosts::{self, ANSWER_MAX, Far, Hosts, Known, SetUp, Side};
use crate::testbed::{Echo, Half, Testbed};
use crate::tools::Tools;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::path::Path as FilePath;

/// What the device's machine is asked.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
enum Question {
    /// Whether a path is possible there.
    Check(String),
    /// Begin a run on a path.
    Begin { path: String, cycles: u64 },
    /// End it: the CPU share of the daemon there, and the device's files.
    End,
}

/// Where the device is.
#[derive(Debug)]
pub(super) enum End {
    Here(Box<Device>),
    There(Box<Far>),
}

/// Checks the other host, and sets up both halves of the testbed.
///
/// # Errors
/// What is missing there or here.
pub(super) fn begin(hosts: &Hosts, functional: bool) -> Result<(Testbed, Far, Known), LabError> {
    let clocks = hosts.check()?;
    let (far, set_up, environment) = hosts.begin("loop", functional)?;
    let testbed = Testbed::half(Half::A, &hosts.uplinks[0], set_up.number)?;
    testbed.settle_with_echo()?;
    Ok((testbed, far, Known { clocks, environment }))
}

impl End {
    pub(super) fn check(&mut self, path: Path) -> Result<(), LabError> {
        match self {
            Self::Here(device) => device.check(path),
            Self::There(far) => {
                far.ask(&Question::Check(path.to_string()), ANSWER_MAX).map_err(LabError::from)
            }
        }
    }

    pub(super) fn wait_until_quiet(&mut self, watch: &mut Watch<'_>) -> Result<u32, LabError> {
        let Self::There(far) = self else { return Ok(0) };
        watch(Event::Step("waiting for the other host to be quiet"));
        Ok(far.wait_until_quiet()?)
    }

    pub(super) fn begin(&mut self, path: Path, cycles: u64) -> Result<(), LabError> {
        match self {
            Self::Here(device) => device.begin(path, cycles),
            Self::There(far) => {
                let question = Question::Begin { path: path.to_string(), cycles };
                far.ask(&question, ANSWER_MAX + READY_MAX).map_err(LabError::from)
            }
        }
    }

    /// Ends the device; its files are in `directory` then.
    pub(super) fn end(&mut self, directory: &FilePath, cycles: u64) -> Result<Option<f64>, LabError> {
        let far = match self {
            Self::Here(device) => return device.end(),
            Self::There(far) => far,
        };
        let share: Option<f64> = far.ask(&Question::End, ANSWER_MAX)?;
        for ending in ["csv", "json"] {
            let name = format!("{NAME}.{ending}");
            let to = directory.join(&name);
            let _of_the_run_before = std::fs::remove_file(&to);
            far.fetch(&name, &to, cycles)?;
        }
        Ok(share.filter(|share| share.is_finite()))
    }
}

/// The device's machine.
struct Served {
    // Ends in this order.
    device: Device,
    _echo: Echo,
    _testbed: Testbed,
    setup: Setup,
}

/// Serves the first host's questions until the connection ends.
///
/// # Errors
/// As [`hosts::serve`].
pub fn serve(tools: &Tools) -> Result<(), LabError> {
    hosts::serve(|set_up: &SetUp| {
        let setup = Setup::of_other_side(tools, set_up.functional)?;
        let testbed = Testbed::half(Half::B, &set_up.uplink, set_up.number)?;
        let echo = Echo::start(&testbed.b)?;
        let directory = std::env::current_dir().map_err(LabError::system("working directory"))?;
        let device = Device::new(&setup, &testbed.b, &testbed.a, directory);
        Ok(Served { device, _echo: echo, _testbed: testbed, setup })
    })
}

impl Side for Served {
    type Question = Question;

    fn answer(&mut self, question: Question) -> Result<Value, LabError> {
        let read = |path: &str| path.parse::<Path>().map_err(|error| hosts::not_asked(&error.to_string()));
        match question {
            Question::Check(path) => self.device.check(read(&path)?).map(|()| Value::Null),
            Question::Begin { path, cycles } => self.device.begin(read(&path)?, cycles).map(|()| Value::Null),
            Question::End => self.device.end().map(|share| json!(share)),
        }
    }

    fn is_timed(&self) -> bool {
        !self.setup.functional
    }
}
