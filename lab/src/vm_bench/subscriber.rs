// SPDX-License-Identifier: Apache-2.0
//! The subscriber's side of a row: its host, its script, the observer at its guest's tap device, the receiver of the load.
//!
//! In: a row, the host. Out: what the subscriber heard and what its host counted. It is the same on this machine and on another one: there
//! the questions come from the first host (`far.rs`). Everything ends with the value.

use super::counters::{self, Reasons};
use super::ends::Progress;
use super::places::{end, place};
use super::plan::{Datapath, Plan, Row};
use super::script::{Files, READY, SUBSCRIBERS_FILES, subscriber};
use super::site::Host;
use super::spikes::Sampler;
use super::tap;
use crate::datapaths::host::Sample;
use crate::error::LabError;
use crate::observers::finish;
use crate::process::Process;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

/// How far the subscriber's script is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct State {
    /// It listens.
    pub(super) is_ready: bool,
    /// It has ended, well or not.
    pub(super) has_ended: bool,
    /// It has ended without the files that it writes last.
    pub(super) has_failed: bool,
}

/// What a subscriber's side leaves.
#[derive(Debug, Default)]
pub(super) struct Heard {
    pub(super) files: Files,
    /// What its host dropped in the run.
    pub(super) dropped: Reasons,
    /// What its host counted, if that is another machine.
    pub(super) samples: Vec<Sample>,
}

/// The subscriber's side of a row.
#[derive(Debug)]
pub(super) struct Subscriber {
    plan: Plan,
    directory: PathBuf,
    progress: Arc<Progress>,
    runs: Option<JoinHandle<Result<(), LabError>>>,
    tap: Option<Process>,
    load: Option<Process>,
    sampler: Option<Sampler>,
    before: Reasons,
    host: Host,
}

impl Subscriber {
    /// Starts the script; its files go to `directory`. `counts`: the counters of this machine are taken as well.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(super) fn begin(
        plan: &Plan,
        row: Row,
        host: Host,
        directory: &Path,
        counts: bool,
    ) -> Result<Self, LabError> {
        let (plan, directory) = (plan.clone(), directory.to_owned());
        let script = subscriber(&plan, &end(&plan, &host, &directory));
        let place = place(&plan, row, &host);
        let progress = Arc::<Progress>::default();
        let (of_script, heard) = (plan.clone(), Arc::clone(&progress));
        let run = move || place.run("subscriber", &of_script, &script, &heard);
        let runs = std::thread::Builder::new().name("ktsn-subscriber".to_owned()).spawn(run);
        Ok(Self {
            plan,
            directory,
            progress,
            runs: Some(runs.map_err(LabError::system("thread"))?),
            tap: None,
            load: None,
            sampler: counts.then(Sampler::start),
            before: Reasons::new(),
            host,
        })
    }

    pub(super) fn state(&self) -> State {
        // In this order: an end after the look is seen at the next one.
        let has_ended = self.runs.as_ref().is_none_or(JoinHandle::is_finished);
        let has = |name| self.progress.has(name);
        State { is_ready: has(READY), has_ended, has_failed: has_ended && !has(SUBSCRIBERS_FILES[3]) }
    }

    /// Starts the receiver of the load.
    ///
    /// # Errors
    /// As [`Host::start_load_receiver`].
    pub(super) fn start_load(&mut self) -> Result<(), LabError> {
        self.load = Some(self.host.start_load_receiver()?);
        Ok(())
    }

    /// Octets of the load that have arrived.
    ///
    /// # Errors
    /// As [`Host::load_octets`].
    pub(super) fn load_octets(&self) -> Result<u64, LabError> {
        self.host.load_octets()
    }

    /// What is dropped from now on is of the run; starts the observer at the guest's tap device, where there is one.
    ///
    /// # Errors
    /// A counter cannot be read; the guest has no such device, or has ended.
    pub(super) fn count(&mut self) -> Result<(), LabError> {
        self.before = self.host.dropped()?;
        if self.host.datapath == Datapath::Bridge {
            let has_ended = || self.runs.as_ref().is_none_or(JoinHandle::is_finished);
            self.tap = Some(tap::start(&self.plan, &self.host, &self.directory, has_ended)?);
        }
        Ok(())
    }

    /// # Errors
    /// The virtual switch of the host has ended.
    pub(super) fn check(&mut self) -> Result<(), LabError> {
        self.host.check_switch()
    }

    /// Ends the script soon.
    pub(super) fn stop(&self) {
        self.progress.end();
    }

    /// Waits until the script has ended; what it left. The records of its tap device are in the directory.
    ///
    /// # Errors
    /// The script's, or the observer's.
    pub(super) fn finish(&mut self) -> Result<Heard, LabError> {
        let ended = self.runs.take().map(JoinHandle::join);
        ended.map_or(Ok(()), |ended| ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))?;
        let dropped = counters::since(&self.host.dropped()?, &self.before);
        self.tap.as_mut().map_or(Ok(()), finish)?;
        let samples = self.sampler.take().map_or_else(Vec::new, Sampler::end);
        Ok(Heard { files: self.progress.take_files(), dropped, samples })
    }
}

impl Drop for Subscriber {
    fn drop(&mut self) {
        // The guest ends before its host.
        self.stop();
        if let Some(runs) = self.runs.take() {
            let _its_error_was_not_asked_for = runs.join();
        }
    }
}
