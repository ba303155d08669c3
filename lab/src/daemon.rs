// SPDX-License-Identifier: Apache-2.0
//! A ktsnd of our own on the talker's host.
//!
//! In: the testbed, the programs. Out: a [`Daemon`] with a private run directory, its counters before and after a run,
//! its CPU time and memory. It ends with its value.

mod configuration;
mod receive;

pub use configuration::{
    attachment_of, configuration, configuration_into_switch, configuration_of, without_attachment,
};

pub use receive::ReceiveCounters;

use crate::error::LabError;
use crate::process::{Process, Program};
use crate::testbed::{Host, Testbed, UPLINK};
use crate::tools::Tools;
use hdrhistogram::Histogram;
use hyper_util::rt::TokioIo;
use ktsn_measure::series::TransmitFigures;
use ktsn_proto::v1;
use ktsn_proto::v1::node_client::NodeClient;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint, Uri};

/// The attachment's name.
const ATTACHMENT: &str = "lab";
/// Longest wait for an answer.
const ANSWER_MAX: Duration = Duration::from_secs(3);
/// Longest wait for the daemon to serve.
const START_MAX: Duration = Duration::from_secs(10);

/// A running ktsnd.
#[derive(Debug)]
pub struct Daemon {
    /// `None`: a daemon that was running already; it is only asked.
    process: Option<Process>,
    pid: u32,
    run_dir: PathBuf,
    runtime: tokio::runtime::Runtime,
}

fn runtime() -> Result<tokio::runtime::Runtime, LabError> {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().build().map_err(LabError::system("tokio runtime"))
}

impl Daemon {
    /// Starts a daemon on `host` and waits until it serves. Its files go to `directory`.
    ///
    /// # Errors
    /// It cannot be started, or ends with what it said.
    pub fn start(
        tools: &Tools,
        host: &Host,
        directory: &Path,
        configuration: &str,
    ) -> Result<Self, LabError> {
        tools.check_capture()?;
        let config = directory.join("ktsnd.toml");
        std::fs::write(&config, configuration).map_err(LabError::file(&config))?;
        let run_dir = directory.join("run");
        let program = Program::new("ktsnd", &tools.ktsnd)
            .args(["--config".as_ref(), config.as_os_str(), "--run-dir".as_ref(), run_dir.as_os_str()])
            .args(["--log", "info"])
            .env("KTSN_CACHE_DIR", directory.join("cache").as_os_str())
            .within(&host.namespace);
        let process = program.start(directory)?;
        let pid = process.pid();
        let mut daemon = Self { process: Some(process), pid, run_dir, runtime: runtime()? };
        daemon.wait_until_serving()?;
        Ok(daemon)
    }

    /// A daemon that is running already: it can be asked, and is neither started nor ended.
    ///
    /// # Errors
    /// No runtime to ask it with.
    pub fn elsewhere(run_dir: &Path, pid: u32) -> Result<Self, LabError> {
        Ok(Self { process: None, pid, run_dir: run_dir.to_owned(), runtime: runtime()? })
    }

    fn wait_until_serving(&mut self) -> Result<(), LabError> {
        let until = Instant::now() + START_MAX;
        loop {
            if let Some(process) = &mut self.process
                && process.wait_any(Duration::from_millis(20))?.is_some()
            {
                return Err(self.failed("ended before it served".to_owned()));
            }
            match self.ask(|mut client| async move { client.health(v1::HealthRequest {}).await }) {
                Ok(health) if health.serving => return Ok(()),
                Ok(_) | Err(_) if Instant::now() < until => {}
                Ok(_) => return Err(self.failed(format!("did not serve within {START_MAX:?}"))),
                Err(error) => return Err(self.failed(format!("did not answer: {error}"))),
            }
        }
    }

    fn failed(&self, problem: String) -> LabError {
        match &self.process {
            Some(process) => process.failed(problem),
            None => LabError::Control(problem),
        }
    }

    /// The run directory of the daemon.
    #[must_use]
    pub fn run_dir(&self) -> &Path {
        &self.run_dir
    }

    /// The process number of the daemon.
    #[must_use]
    pub const fn pid(&self) -> u32 {
        self.pid
    }

    /// Asks it to end, and waits until it has taken everything back.
    ///
    /// # Errors
    /// It does not end, or not well.
    pub fn stop(self) -> Result<(), LabError> {
        let Some(mut process) = self.process else { return Ok(()) };
        process.ask_to_end()?;
        process.wait(ANSWER_MAX, &[0]).map(drop)
    }

    /// `program` in pod A, with libktsn preloaded and attached to this daemon.
    #[must_use]
    pub fn serve(&self, program: Program, tools: &Tools, testbed: &Testbed) -> Program {
        program
            .within(&testbed.a.pod_namespace)
            .env("LD_PRELOAD", tools.libktsn.as_os_str())
            .env("KTSN_RUN_DIR", self.run_dir.as_os_str())
            .env("KTSN_POLICY", "strict")
    }

    /// `program` with libktsn preloaded, expecting its arrivals as this daemon grants it.
    #[must_use]
    pub fn expect(&self, program: Program, tools: &Tools) -> Program {
        program
            .env("LD_PRELOAD", tools.libktsn.as_os_str())
            .env("KTSN_RUN_DIR", self.run_dir.as_os_str())
            .env("KTSN_RECEIVE", "expect")
    }

    /// The counters of the daemon now.
    ///
    /// # Errors
    /// It does not answer, or knows nothing of the attachment.
    pub fn statistics(&self) -> Result<Counters, LabError> {
        let request = v1::StatisticsRequest { attachment: ATTACHMENT.to_owned() };
        let reply = self.ask(|mut client| async move { client.statistics(request).await })?;
        let worker = reply.workers.first().cloned().unwrap_or_default();
        let port = reply.ports.into_iter().find(|port| port.device == UPLINK).unwrap_or_default();
        let attachment = reply.attachments.into_iter().find(|attachment| attachment.name == ATTACHMENT);
        let attachment = attachment
            .ok_or_else(|| LabError::Control(format!("no statistics of the attachment {ATTACHMENT:?}")))?;
        Ok(Counters { port, ..Counters::read(attachment, worker, self.cpu_time()?)? })
    }

    /// The counters of all its attachments together, and its CPU time. Worker and port are left out.
    ///
    /// # Errors
    /// It does not answer.
    pub fn sums(&self) -> Result<Counters, LabError> {
        let request = v1::StatisticsRequest { attachment: String::new() };
        let reply = self.ask(|mut client| async move { client.statistics(request).await })?;
        let mut sums = Counters { cpu: self.cpu_time()?, ..Counters::default() };
        for attachment in reply.attachments {
            sums = sums.plus(&Counters::read(attachment, v1::WorkerStatistics::default(), Duration::ZERO)?);
        }
        Ok(sums)
    }

    /// CPU time of all its threads since their start, to the nanosecond.
    ///
    /// # Errors
    /// It has ended.
    pub fn cpu_time(&self) -> Result<Duration, LabError> {
        let tasks = PathBuf::from(format!("/proc/{}/task", self.pid()));
        let mut nanos = 0;
        for task in std::fs::read_dir(&tasks).map_err(LabError::file(&tasks))?.flatten() {
            let file = task.path().join("schedstat");
            // A thread may end between the listing and the reading.
            let Ok(text) = std::fs::read_to_string(&file) else { continue };
            let field = text.split_whitespace().next().and_then(|word| word.parse::<u64>().ok());
            nanos += field.ok_or_else(|| LabError::Contents {
                path: file,
                problem: "expected the CPU time of a thread in nanoseconds".to_owned(),
            })?;
        }
        Ok(Duration::from_nanos(nanos))
    }

    /// The resident memory of the daemon, in octets.
    ///
    /// # Errors
    /// It has ended.
    pub fn resident_octets(&self) -> Result<u64, LabError> {
        let path = PathBuf::from(format!("/proc/{}/status", self.pid()));
        let text = std::fs::read_to_string(&path).map_err(LabError::file(&path))?;
        let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
        kib.map(|kib| kib * 1024)
            .ok_or_else(|| LabError::Contents { path, problem: "expected a line VmRSS".to_owned() })
    }

    /// Asks its control API.
    pub(crate) fn ask<T, F>(&self, question: impl FnOnce(NodeClient<Channel>) -> F) -> Result<T, LabError>
    where
        F: Future<Output = Result<tonic::Response<T>, tonic::Status>>,
    {
        let path = self.run_dir.join("ktsnd.sock");
        let control = |error: &dyn std::fmt::Display| LabError::Control(error.to_string());
        self.runtime.block_on(async move {
            let exchange = async {
                let stream = UnixStream::connect(&path).await.map_err(|error| control(&error))?;
                let mut once = Some(TokioIo::new(stream));
                let connector = tower::service_fn(move |_: Uri| {
                    let stream = once.take().ok_or(std::io::ErrorKind::NotConnected);
                    async move { stream.map_err(std::io::Error::from) }
                });
                let endpoint = Endpoint::from_static("http://ktsnd");
                let channel =
                    endpoint.connect_with_connector(connector).await.map_err(|error| control(&error))?;
                let reply = question(NodeClient::new(channel)).await.map_err(|error| control(&error))?;
                Ok(reply.into_inner())
            };
            tokio::time::timeout(ANSWER_MAX, exchange)
                .await
                .unwrap_or_else(|_| Err(LabError::Control(format!("no answer within {ANSWER_MAX:?}"))))
        })
    }
}

/// The daemon's counters at one moment.
#[derive(Clone, Debug, Default)]
pub struct Counters {
    /// The attachment's own; of several, their sums.
    pub attachment: v1::AttachmentStatistics,
    /// Transmit error: nanoseconds and how often.
    pub(crate) errors: BTreeMap<u64, u64>,
    /// The worker's own counters.
    pub worker: v1::WorkerStatistics,
    /// The uplink's counters.
    pub port: v1::PortStatistics,
    /// CPU time used so far.
    pub cpu: Duration,
}

impl Counters {
    fn read(
        attachment: v1::AttachmentStatistics,
        worker: v1::WorkerStatistics,
        cpu: Duration,
    ) -> Result<Self, LabError> {
        let octets = attachment.transmit_error.as_ref().map_or(&[][..], |histogram| &histogram.hdr_v2);
        let mut errors = BTreeMap::new();
        if !octets.is_empty() {
            let histogram: Histogram<u64> = hdrhistogram::serialization::Deserializer::new()
                .deserialize(&mut &octets[..])
                .map_err(|error| LabError::Control(format!("transmit_error.hdr_v2: {error}")))?;
            errors.extend(
                histogram.iter_recorded().map(|step| (step.value_iterated_to(), step.count_at_value())),
            );
        }
        Ok(Self { attachment, errors, worker, port: v1::PortStatistics::default(), cpu })
    }

    /// The sums of these counters and those of another attachment.
    fn plus(mut self, other: &Self) -> Self {
        for (&value, &count) in &other.errors {
            *self.errors.entry(value).or_default() += count;
        }
        Self { attachment: self.attachment.plus(&other.attachment), ..self }
    }

    /// What was counted between `earlier` and `self`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let mut errors = self.errors.clone();
        for (&value, &count) in &earlier.errors {
            take_out(&mut errors, value, count);
        }
        Self {
            errors,
            attachment: self.attachment.since(&earlier.attachment),
            worker: self.worker.since(&earlier.worker),
            port: self.port.since(&earlier.port),
            cpu: self.cpu.saturating_sub(earlier.cpu),
        }
    }

    /// The transmit errors as figures; `None` when nothing was sent.
    #[must_use]
    pub fn transmit_figures(&self) -> Option<TransmitFigures> {
        let mut histogram = Histogram::<u64>::new(3).ok()?;
        for (&value, &count) in &self.errors {
            // Values come out of such a histogram and fit into one.
            let _ = histogram.record_n(value, count);
        }
        // The daemon counts this exactly; the histogram knows it to its resolution only.
        let v1::AttachmentStatistics { overrun, late, waited, sent, .. } = self.attachment;
        let late = (overrun + late + waited) as f64 / sent.max(1) as f64;
        TransmitFigures::of_histogram(&histogram, 0)
            .map(|figures| TransmitFigures { late_over_1us_ratio: late, ..figures })
    }
}

/// The CPU time that a daemon has used so far, where there is one.
pub(crate) fn cpu_time_of(daemon: Option<&Daemon>) -> Result<Option<Duration>, LabError> {
    daemon.map(Daemon::cpu_time).transpose()
}

/// The share of one CPU used between two readings that are `elapsed` seconds apart.
pub(crate) fn cpu_share(before: Option<Duration>, after: Option<Duration>, elapsed: f64) -> Option<f64> {
    after.zip(before).map(|(now, then)| now.saturating_sub(then).as_secs_f64() / elapsed)
}

/// Takes `count` samples of `value` out. The daemon cuts its greatest bucket at the greatest value seen, so a sample
/// may have moved up since: then it is the next one above.
fn take_out(errors: &mut BTreeMap<u64, u64>, value: u64, mut count: u64) {
    let keys: Vec<u64> = errors.range(value..).map(|(&key, _)| key).collect();
    for key in keys {
        let Some(here) = errors.get_mut(&key) else { continue };
        let taken = count.min(*here);
        *here -= taken;
        count -= taken;
        if *here == 0 {
            errors.remove(&key);
        }
        if count == 0 {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counters(errors: &[(u64, u64)], sent: u64, overrun: u64) -> Counters {
        let attachment = v1::AttachmentStatistics { sent, overrun, ..v1::AttachmentStatistics::default() };
        Counters { attachment, errors: errors.iter().copied().collect(), ..Counters::default() }
    }

    #[test]
    fn a_run_is_the_difference_of_two_readings() {
        let before = counters(&[(40, 3), (130, 1)], 4, 0);
        // The greatest value of `before` stood in a bucket whose middle is 133.
        let after = counters(&[(40, 10), (133, 2), (5000, 1)], 13, 1);
        let run = after.since(&before);
        assert_eq!(run.errors, BTreeMap::from([(40, 7), (133, 1), (5000, 1)]));
        let figures = run.transmit_figures().unwrap();
        assert_eq!((figures.statistics.p50, figures.statistics.min), (40, 40));
        assert!((figures.late_over_1us_ratio - 1.0 / 9.0).abs() < 1e-9);
        assert!(after.since(&after).transmit_figures().is_none());
    }

    #[test]
    fn attachments_are_summed() {
        let sums = counters(&[(40, 1)], 1, 1).plus(&counters(&[(40, 2), (50, 1)], 3, 0));
        assert_eq!((sums.attachment.sent, sums.attachment.overrun), (4, 1));
        assert_eq!(sums.errors, BTreeMap::from([(40, 3), (50, 1)]));
    }
}
