// SPDX-License-Identifier: Apache-2.0
//! Best-effort traffic of the same pods. In: the testbed. Out: a flow through Flannel's own path from pod A to pod B that
//! runs as long as its value lives, and how much of it arrived.
//!
//! A packet of the load costs some 25 µs of this machine, both nodes together, and none of that can be interrupted by a
//! real-time thread (no preemption in the kernel). So its rate leaves the machine measurable, and its programs stay on
//! the listener's CPU: what is compared is how each path bears the same load, not how much a small machine can bear.

use crate::command::output;
use crate::error::LabError;
use crate::process::{Process, Program};
use crate::testbed::{POD_INTERFACE, Testbed};
use std::path::Path as FilePath;
use std::time::{Duration, Instant};

/// What iperf3 sends, in bit/s of payload.
pub const BIT_RATE: u64 = 100_000_000;
/// Octets of payload of its datagrams: they fill the overlay's MTU.
const DATAGRAM_OCTETS: u32 = 1400;
/// iperf3's own port.
const PORT: &str = "5201";
/// CPU of its programs: the listener's.
const CPU: &str = "0";
/// Longest wait for its first packets.
const START_MAX: Duration = Duration::from_secs(5);

ktsn_model::words! {
    /// What goes through the same nodes while a path is measured.
    pub enum Load {
        /// Nothing but the experiment.
        Idle = "idle",
        /// iperf3 in UDP mode from pod A to pod B.
        Iperf3Udp = "iperf3-udp",
    }
}

impl Load {
    /// What it does, in words.
    #[must_use]
    pub fn describe(self) -> String {
        match self {
            Self::Idle => "idle: nothing but the experiment".to_owned(),
            Self::Iperf3Udp => format!(
                "iperf3-udp: {} Mbit/s of {DATAGRAM_OCTETS} octets a datagram from pod A to pod B through Flannel, sender \
                 and receiver ordinary, nice 19, on CPU {CPU}",
                BIT_RATE / 1_000_000
            ),
        }
    }

    /// Whether its programs are here.
    pub(crate) fn check(self) -> Result<(), LabError> {
        if self == Self::Idle {
            return Ok(());
        }
        output(None, "iperf3 --version").map(drop).map_err(|error| LabError::Impossible {
            what: format!("the load {self}: {error}"),
            remedy: "`make setup`, or --load idle".to_owned(),
        })
    }

    /// Starts it and waits until it flows.
    pub(crate) fn start(
        self,
        testbed: &Testbed,
        directory: &FilePath,
        functional: bool,
    ) -> Result<Running, LabError> {
        let mut running = Running { processes: Vec::new() };
        if self == Self::Idle {
            return Ok(running);
        }
        let (a, b) = (&testbed.a, &testbed.b);
        let to = b.pod_address.to_string();
        let iperf3 = |name: &str, namespace: &str| {
            let program =
                Program::new(name, FilePath::new("nice")).args(["-n", "19", "iperf3", "--port", PORT]);
            let program = if functional { program } else { program.args(["--affinity", CPU]) };
            program.within(namespace)
        };
        let server = iperf3("iperf3-server", &b.pod_namespace).args(["--server", "--bind", &to]);
        running.processes.push(server.start(directory)?);
        running.wait(|| is_listening(&b.pod_namespace))?;
        let client = iperf3("iperf3-client", &a.pod_namespace).args([
            "--client".to_owned(),
            to,
            "--udp".to_owned(),
            format!("--bitrate={BIT_RATE}"),
            format!("--length={DATAGRAM_OCTETS}"),
            // Until it is killed.
            "--time=86400".to_owned(),
            "--interval=0".to_owned(),
        ]);
        running.processes.push(client.start(directory)?);
        let flowing = delivered(testbed)? + 100 * u64::from(DATAGRAM_OCTETS);
        running.wait(|| Ok(delivered(testbed)? > flowing))?;
        Ok(running)
    }
}

/// A load that flows; it ends with its value.
pub(crate) struct Running {
    processes: Vec<Process>,
}

impl Running {
    /// What pod B has received so far; `None` where there is no load.
    pub(crate) fn octets(&self, testbed: &Testbed) -> Result<Option<u64>, LabError> {
        if self.processes.is_empty() { Ok(None) } else { delivered(testbed).map(Some) }
    }

    /// Waits until `done`; a program that ends meanwhile is an error with its output.
    fn wait(&mut self, mut done: impl FnMut() -> Result<bool, LabError>) -> Result<(), LabError> {
        let until = Instant::now() + START_MAX;
        while !done()? {
            for process in &mut self.processes {
                if process.wait_any(Duration::from_millis(5))?.is_some() {
                    return Err(process.failed("ended before the load flowed".to_owned()));
                }
            }
            if Instant::now() >= until {
                let last =
                    self.processes.last().map(|last| last.failed(format!("sent nothing in {START_MAX:?}")));
                return Err(last.unwrap_or_else(|| LabError::Usage("an empty load does not flow".to_owned())));
            }
        }
        Ok(())
    }
}

fn is_listening(namespace: &str) -> Result<bool, LabError> {
    Ok(!output(Some(namespace), &format!("ss -Hltn sport = :{PORT}"))?.trim().is_empty())
}

/// Octets that pod B's interface has received.
fn delivered(testbed: &Testbed) -> Result<u64, LabError> {
    let line = format!("ip -n {} -s -j link show dev {POD_INTERFACE}", testbed.b.pod_namespace);
    let text = output(None, &line)?;
    let counted = serde_json::from_str::<serde_json::Value>(&text)
        .ok()
        .and_then(|links| links[0]["stats64"]["rx"]["bytes"].as_u64());
    counted.ok_or(LabError::Command { command: line, status: "no counters".to_owned(), stderr: text })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_results() {
        for load in Load::ALL {
            assert_eq!(load.word().parse(), Ok(load));
            assert!(load.describe().starts_with(load.word()));
        }
        assert!("flood".parse::<Load>().unwrap_err().to_string().contains("iperf3-udp"));
    }
}
