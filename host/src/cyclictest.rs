// SPDX-License-Identifier: Apache-2.0
//! A running probe: `cyclictest`, or ours, which writes the same lines. In: its command line. Out: its latencies in order, as they come; it dies with its value and with its starter.
//!
//! A number that is missing in its output would be a lost latency, so it is an error.

use crate::error::HostError;
use crate::process::end_of;
use crate::sys;
use ktsn_time::Nanos;
use ktsn_traffic::clock::{RealTime, group_without_budget, stop_requested};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Resource, Signal, getrlimit, kill_process};
use rustix::thread::CapabilitySet;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// How often a probe is looked at that shall end.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// Highest priority of SCHED_FIFO.
pub const FIFO_MAX: u8 = 99;

/// What came in one turn.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// Latencies in nanoseconds; negative: the wake-up came before its instant.
    pub latencies: Vec<i64>,
    /// Whether the probe has ended.
    pub is_last: bool,
}

/// A probe that runs.
#[derive(Debug)]
pub struct Probe {
    /// What it is called in errors.
    name: &'static str,
    child: Child,
    out: ChildStdout,
    lines: Lines,
    log: PathBuf,
    /// Silent since.
    silent: Instant,
    silence_max: Duration,
    /// How long it may take to end by SIGTERM; zero: it is killed.
    end_max: Duration,
}

/// The lines of `cyclictest -v`: `thread: number: latency`.
#[derive(Debug, Default)]
struct Lines {
    rest: Vec<u8>,
    next: u64,
}

impl Lines {
    /// The latencies of the whole lines so far.
    fn take(&mut self, octets: &[u8]) -> Result<Vec<i64>, String> {
        self.rest.extend_from_slice(octets);
        let whole = self.rest.iter().rposition(|&octet| octet == b'\n').map_or(0, |at| at + 1);
        let lines: Vec<u8> = self.rest.drain(..whole).collect();
        let mut latencies = Vec::new();
        for line in String::from_utf8_lossy(&lines).lines() {
            let mut words = line.split(':').map(|word| word.trim().parse::<i64>());
            let (Some(Ok(0)), Some(Ok(number)), Some(Ok(latency)), None) =
                (words.next(), words.next(), words.next(), words.next())
            else {
                // Words about itself, before the first latency.
                continue;
            };
            if u64::try_from(number) != Ok(self.next) {
                return Err(format!("lost latencies: number {number} came after {} of them", self.next));
            }
            self.next += 1;
            latencies.push(latency);
        }
        Ok(latencies)
    }
}

impl Probe {
    /// Starts it; `silence_max` without a latency is an error.
    pub fn start(
        name: &'static str,
        line: &[String],
        log: &Path,
        silence_max: Duration,
    ) -> Result<Self, HostError> {
        let mut command = Command::new(&line[0]);
        let stderr = File::create(log).map_err(HostError::file(log))?;
        command.args(&line[1..]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(stderr);
        sys::inherit(&mut command, &[]);
        let mut child = command.spawn().map_err(|source| HostError::Start {
            command: line.join(" "),
            remedy: "; `make setup` installs it",
            source,
        })?;
        let out =
            child.stdout.take().ok_or_else(|| HostError::Usage("the probe has no output".to_owned()))?;
        rustix::io::ioctl_fionbio(&out, true).map_err(|error| HostError::system("fionbio")(error.into()))?;
        let lines = Lines::default();
        let (log, silent, end_max) = (log.to_owned(), Instant::now(), Duration::ZERO);
        Ok(Self { name, child, out, lines, log, silent, silence_max, end_max })
    }

    /// Where it has to end before its own end, it gets SIGTERM first, and `longest` to remove what it has made.
    pub fn ask_before_kill(&mut self, longest: Duration) {
        self.end_max = longest;
    }

    /// The first process of the probe.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What comes until `turn` has passed, or the probe ends.
    pub fn read(&mut self, turn: Duration) -> Result<Batch, HostError> {
        let until = Instant::now() + turn;
        let mut batch = Batch::default();
        loop {
            if stop_requested() {
                return Err(HostError::Stopped);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let timeout = Timespec { tv_sec: 0, tv_nsec: i64::from(left.subsec_nanos()) };
            match poll(&mut [PollFd::new(&self.out, PollFlags::IN)], Some(&timeout)) {
                Ok(0) | Err(rustix::io::Errno::INTR) => continue,
                Ok(_) => {}
                Err(error) => return Err(HostError::system("poll")(error.into())),
            }
            let mut octets = [0; 16 * 1024];
            match self.out.read(&mut octets) {
                Ok(0) => {
                    batch.is_last = true;
                    break;
                }
                Ok(count) => {
                    let taken = self.lines.take(&octets[..count]);
                    batch.latencies.extend(taken.map_err(|problem| self.failed(problem))?);
                }
                Err(error)
                    if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
                Err(error) => return Err(HostError::system("the probe's output")(error)),
            }
        }
        if !batch.latencies.is_empty() || batch.is_last {
            self.silent = Instant::now();
        } else if self.silent.elapsed() > self.silence_max {
            return Err(self.failed(format!("wrote no latency for {:?}", self.silence_max)));
        }
        if batch.is_last {
            let status = self.child.wait().map_err(HostError::system("waitpid"))?;
            if !status.success() {
                return Err(self.failed(format!("ended with {status}")));
            }
        }
        Ok(batch)
    }

    fn failed(&self, problem: String) -> HostError {
        let said = std::fs::read_to_string(&self.log).unwrap_or_default();
        let said = end_of(&said);
        let stderr = if said.is_empty() { String::new() } else { format!("; it said:\n{said}") };
        HostError::Process { name: self.name.to_owned(), problem, stderr }
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        let has_ended = |child: &mut Child| !matches!(child.try_wait(), Ok(None));
        if !self.end_max.is_zero() && !has_ended(&mut self.child) {
            let until = Instant::now() + self.end_max;
            // Not waited for yet: the number is its own.
            let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
            let _ = pid.map(|pid| kill_process(pid, Signal::TERM));
            while !has_ended(&mut self.child) && Instant::now() < until {
                std::thread::sleep(LOOK_AGAIN);
            }
        }
        // It may have ended by itself; then both have nothing to do.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The probe's command line: one thread that writes each latency in nanoseconds, `loops` of them. `fifo`: its priority under SCHED_FIFO;
/// `cpu`: the only one that it runs on.
#[must_use]
pub fn command_line(period: Nanos, fifo: Option<u8>, cpu: Option<u32>, loops: u64) -> Vec<String> {
    let mut line = vec!["cyclictest", "-v", "-N", "-u", "-m", "-t", "1", "-d", "0"];
    let (micros, loops) = ((period.get() / 1000).to_string(), loops.to_string());
    line.extend(["-i", &micros, "-l", &loops]);
    let (priority, cpu) = (fifo.map(|fifo| fifo.to_string()), cpu.map(|cpu| cpu.to_string()));
    match &priority {
        Some(priority) => line.extend(["--policy", "fifo", "-p", priority]),
        None => line.extend(["--policy", "other"]),
    }
    if let Some(cpu) = &cpu {
        line.extend(["-a", cpu]);
    }
    line.into_iter().map(str::to_owned).collect()
}

/// The highest priority under SCHED_FIFO that the kernel grants.
///
/// # Errors
/// Why it grants none.
pub fn fifo() -> Result<u8, String> {
    let held = rustix::thread::capabilities(None).map_or(CapabilitySet::empty(), |sets| sets.effective);
    let limit = getrlimit(Resource::Rtprio).current.unwrap_or(u64::from(FIFO_MAX));
    let highest = if held.contains(CapabilitySet::SYS_NICE) { u64::from(FIFO_MAX) } else { limit };
    let highest = u8::try_from(highest).unwrap_or(FIFO_MAX).min(FIFO_MAX);
    if highest == 0 {
        return Err(
            "neither CAP_SYS_NICE nor RLIMIT_RTPRIO grants it: run as root, or set LimitRTPRIO=99".to_owned()
        );
    }
    // On a thread of its own, so that the caller stays an ordinary thread.
    let request = RealTime { fifo: Some(highest), ..RealTime::default() };
    match std::thread::spawn(move || request.apply()).join() {
        Ok(Ok(())) => Ok(highest),
        Ok(Err(refusal)) => {
            let group = group_without_budget().map(|file| format!(" ({} is 0)", file.display()));
            Err(format!("{refusal}{}", group.unwrap_or_default()))
        }
        Err(_) => Err("the trial ended early".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_taken_whole_and_a_gap_is_an_error() {
        let mut lines = Lines::default();
        let begun =
            lines.take(b"# /dev/cpu_dma_latency set to 0us\nThread 0 Interval: 10000\n   0:   0:  323");
        assert_eq!(begun, Ok(Vec::new()));
        assert_eq!(lines.take(b"90\n   0:  1:  -5\n").unwrap(), [32_390, -5]);
        assert_eq!(lines.take(b"   0:  2:  7\n").unwrap(), [7]);
        let error = lines.take(b"   0:  4:  7\n").unwrap_err();
        assert!(error.contains("number 4 came after 3"), "{error}");
    }

    fn start(script: &str, silence: Duration) -> (tempfile::TempDir, Probe) {
        let folder = tempfile::tempdir().unwrap();
        let line = ["sh", "-c", script].map(str::to_owned);
        let probe = Probe::start("cyclictest", &line, &folder.path().join("log"), silence).unwrap();
        (folder, probe)
    }

    fn all(probe: &mut Probe) -> Result<Vec<i64>, HostError> {
        let mut latencies = Vec::new();
        loop {
            let batch = probe.read(Duration::from_millis(20))?;
            latencies.extend(batch.latencies);
            if batch.is_last {
                return Ok(latencies);
            }
        }
    }

    #[test]
    fn latencies_come_until_the_end_and_failures_say_why() {
        let (_folder, mut probe) =
            start("echo ' 0: 0: 5'; sleep 0.05; echo ' 0: 1: 6'", Duration::from_secs(10));
        assert_eq!(all(&mut probe).unwrap(), [5, 6]);
        let (_folder, mut probe) =
            start("echo ' 0: 0: 5'; echo no right >&2; exit 3", Duration::from_secs(10));
        let error = all(&mut probe).unwrap_err().to_string();
        assert!(
            error.contains("cyclictest ended with exit status: 3") && error.contains("no right"),
            "{error}"
        );
        let (_folder, mut probe) = start("exec sleep 600", Duration::from_millis(100));
        let pid = probe.pid();
        let error = all(&mut probe).unwrap_err().to_string();
        assert!(error.contains("wrote no latency"), "{error}");
        drop(probe);
        assert!(!sys::exists(pid));
    }

    #[test]
    fn a_probe_may_remove_at_its_end_what_it_has_made() {
        let script = "trap 'rm mark; exit' TERM; touch mark; echo ' 0: 0: 5'; while :; do sleep 0.01; done";
        for (longest, is_left) in [(Duration::from_secs(10), false), (Duration::ZERO, true)] {
            let folder = tempfile::tempdir().unwrap();
            let script = format!("cd {}; {script}", folder.path().display());
            let (_log, mut probe) = start(&script, Duration::from_secs(10));
            probe.ask_before_kill(longest);
            while probe.read(Duration::from_millis(20)).unwrap().latencies.is_empty() {}
            let pid = probe.pid();
            drop(probe);
            assert!(!sys::exists(pid));
            assert_eq!(folder.path().join("mark").exists(), is_left);
        }
        // One that does not end is killed.
        let (_log, mut probe) =
            start("trap '' TERM; echo ' 0: 0: 5'; exec sleep 600", Duration::from_secs(10));
        probe.ask_before_kill(Duration::from_millis(50));
        while probe.read(Duration::from_millis(20)).unwrap().latencies.is_empty() {}
        let pid = probe.pid();
        drop(probe);
        assert!(!sys::exists(pid));
    }
}
