// SPDX-License-Identifier: Apache-2.0
//! The device's end of the control loop.
//!
//! In: a path. Out: the device that answers, with the ktsnd of its node where the path has one, until it is ended; then its files in the
//! directory. It is the same on one machine and on another one: there the questions come from the first host ([`super::far`]).

use super::{PORT, configure};
use crate::container::receiving_daemon;
use crate::daemon::{Daemon, cpu_share, cpu_time_of};
use crate::error::LabError;
use crate::experiment::Setup;
use crate::observers::{Observers, READY_MAX, finish};
use crate::process::{Process, Program};
use crate::receive::{Path, Receiver};
use crate::testbed::Host;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// What the device's files are called.
pub(super) const NAME: &str = "answer";

/// The device's end.
#[derive(Debug)]
pub(super) struct Device {
    setup: Setup,
    host: Host,
    peer: Host,
    directory: PathBuf,
    running: Option<Running>,
}

/// Ends in the order of its fields.
#[derive(Debug)]
struct Running {
    device: Process,
    daemon: Option<Daemon>,
    before: Option<Duration>,
    begun: Instant,
}

impl Device {
    /// The end on `host`; the controller is on `peer`.
    pub(super) fn new(setup: &Setup, host: &Host, peer: &Host, directory: PathBuf) -> Self {
        Self { setup: setup.clone(), host: host.clone(), peer: peer.clone(), directory, running: None }
    }

    /// Whether times count.
    pub(super) const fn is_timed(&self) -> bool {
        !self.setup.functional
    }

    /// # Errors
    /// [`LabError::Impossible`]: this machine or its ktsnd cannot have the path.
    pub(super) fn check(&self, path: Path) -> Result<(), LabError> {
        let configuration = configure(&self.host, &self.peer, path);
        receiving_daemon::check_on(
            &self.setup.tools,
            &self.host,
            &self.directory,
            &path.to_string(),
            &configuration,
        )
    }

    /// Starts it for a run of `cycles`; it is ready then.
    ///
    /// # Errors
    /// Device or daemon cannot be started.
    pub(super) fn begin(&mut self, path: Path, cycles: u64) -> Result<(), LabError> {
        self.running = None;
        let observers = Observers::new(&self.setup, &self.directory);
        observers.forget(&[NAME])?;
        let directory = self.directory.join("far");
        std::fs::create_dir_all(&directory).map_err(LabError::file(&directory))?;
        let configuration = configure(&self.host, &self.peer, path);
        let start = || Daemon::start(&self.setup.tools, &self.host, &directory, &configuration);
        let daemon = path.has_far_daemon().then(start).transpose()?;
        let mut device = self.program(path, cycles, daemon.as_ref()).start(&self.directory)?;
        device.wait_ready(READY_MAX)?;
        let before = cpu_time_of(daemon.as_ref())?;
        self.running = Some(Running { device, daemon, before, begun: Instant::now() });
        Ok(())
    }

    fn program(&self, path: Path, cycles: u64, daemon: Option<&Daemon>) -> Program {
        let observers = Observers::new(&self.setup, &self.directory);
        let host = &self.host;
        let (address, namespace) = if path.way.in_pods() {
            (host.pod_address, &host.pod_namespace)
        } else {
            (host.address, &host.namespace)
        };
        // One more than come: it ends when it is asked to.
        let program = observers.program(NAME, "answer", cycles + 1);
        let program = program.args([format!("{address}:{PORT}")]).within(namespace);
        let program = observers.placed(program, 0, Some(40));
        match daemon {
            Some(daemon) if path.receiver == Receiver::Expect => daemon.expect(program, &self.setup.tools),
            _ => program,
        }
    }

    /// Ends it, once what is under way has arrived; the share of a CPU that its daemon used.
    ///
    /// # Errors
    /// It does not end well.
    pub(super) fn end(&mut self) -> Result<Option<f64>, LabError> {
        let Some(mut running) = self.running.take() else {
            return Err(LabError::Usage("no device runs".to_owned()));
        };
        let (after, elapsed) = (cpu_time_of(running.daemon.as_ref())?, running.begun.elapsed());
        finish(&mut running.device)?;
        // Written last: a device whose disk is full has none, and says why.
        if !Observers::new(&self.setup, &self.directory).file(NAME, "json").exists() {
            return Err(running.device.failed("wrote no figures".to_owned()));
        }
        running.daemon.map_or(Ok(()), Daemon::stop)?;
        Ok(cpu_share(running.before, after, elapsed.as_secs_f64()))
    }
}
