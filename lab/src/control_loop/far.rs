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
use crate::remote::hosts::{self, ANSWER_MAX, Clocks, Far, Hosts, SetUp, Side};
use crate::testbed::{Echo, Half, Testbed};
use crate::tools::Tools;
use serde_json::{Value, json};
use std::path::Path as FilePath;
use std::time::Duration;

/// How long the other machine may take to be quiet.
const QUIET_MAX: Duration = Duration::from_secs(30);

/// Where the device is.
#[derive(Debug)]
pub(super) enum End {
    Here(Box<Device>),
    There(Box<Far>),
}

/// Both machines, set up.
pub(super) struct Apart {
    pub(super) testbed: Testbed,
    pub(super) far: Far,
    pub(super) clocks: Clocks,
    pub(super) environment: Value,
}

/// Checks the other host, and sets up both halves of the testbed.
///
/// # Errors
/// What is missing there or here.
pub(super) fn begin(hosts: &Hosts, functional: bool) -> Result<Apart, LabError> {
    let clocks = hosts.check()?;
    let (far, set_up, environment) = hosts.begin("loop", functional)?;
    let testbed = Testbed::half(Half::A, &hosts.uplinks[0], set_up.number)?;
    testbed.settle_with_echo()?;
    Ok(Apart { testbed, far, clocks, environment })
}

impl End {
    pub(super) fn check(&mut self, path: Path) -> Result<(), LabError> {
        match self {
            Self::Here(device) => device.check(path),
            Self::There(far) => {
                let question = json!({ "check": path.to_string() });
                far.ask(&question, ANSWER_MAX).map_err(LabError::from)
            }
        }
    }

    pub(super) fn wait_until_quiet(&mut self, watch: &mut Watch<'_>) -> Result<u32, LabError> {
        let Self::There(far) = self else { return Ok(0) };
        watch(Event::Step("waiting for the other host to be quiet"));
        Ok(far.ask(&json!({ "quiet": null }), QUIET_MAX)?)
    }

    pub(super) fn begin(&mut self, path: Path, cycles: u64) -> Result<(), LabError> {
        match self {
            Self::Here(device) => device.begin(path, cycles),
            Self::There(far) => {
                let question = json!({ "begin": { "path": path.to_string(), "cycles": cycles } });
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
        let share: Option<f64> = far.ask(&json!({ "end": null }), ANSWER_MAX)?;
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
    fn answer(&mut self, question: &Value) -> Result<Value, LabError> {
        let odd = || hosts::not_asked(&question.to_string());
        let path = |value: &Value| value.as_str().and_then(|text| text.parse::<Path>().ok()).ok_or_else(odd);
        match hosts::question(question).ok_or_else(odd)? {
            ("check", value) => self.device.check(path(value)?).map(|()| Value::Null),
            ("quiet", _) => self.setup.wait_until_quiet(&mut |_| {}).map(|refusals| json!(refusals)),
            ("begin", value) => {
                let cycles = value["cycles"].as_u64().ok_or_else(odd)?;
                self.device.begin(path(&value["path"])?, cycles).map(|()| Value::Null)
            }
            ("end", _) => self.device.end().map(|share| json!(share)),
            _ => Err(odd()),
        }
    }
}
