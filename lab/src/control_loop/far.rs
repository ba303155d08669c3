// SPDX-License-Identifier: Apache-2.0
//! What the device's end is asked, on this machine or on another one; there ([`serve`]) it has half of a testbed, which ends with the
//! connection.

use super::device::Device;
use crate::error::LabError;
use crate::experiment::Setup;
use crate::receive::Path;
use crate::remote::hosts::{self, Hosts, Known, SetUp, Side};
use crate::testbed::{Echo, Half, Testbed};
use crate::tools::Tools;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// What the device's machine is asked.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub(super) enum Question {
    /// Whether a path is possible there.
    Check(String),
    /// Begin a run on a path.
    Begin { path: String, cycles: u64 },
    /// End it, once what is under way has arrived: the share of a CPU that its daemon used, and the device's files.
    End,
}

/// The device's end, here or there.
pub(super) type End = crate::remote::End<Served>;

/// Checks the other host, and sets up both halves of the testbed.
///
/// # Errors
/// What is missing there or here.
pub(super) fn begin(hosts: &Hosts, functional: bool) -> Result<(Testbed, End, Known), LabError> {
    let clocks = hosts.check()?;
    let (far, set_up, environment) = hosts.begin("loop", functional)?;
    let testbed = Testbed::half(Half::A, &hosts.uplinks[0], set_up.number)?;
    testbed.settle_with_echo()?;
    Ok((testbed, End::There(Box::new(far)), Known { clocks, environment }))
}

/// The device, on its machine.
#[derive(Debug)]
pub(super) struct Served {
    // Ends in this order.
    device: Device,
    _testbed: Option<(Echo, Testbed)>,
}

/// The device's end on this machine.
pub(super) fn here(device: Device) -> End {
    End::Here(Box::new(Served { device, _testbed: None }))
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
        Ok(Served { device, _testbed: Some((echo, testbed)) })
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
        self.device.is_timed()
    }
}
