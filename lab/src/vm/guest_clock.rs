// SPDX-License-Identifier: Apache-2.0
//! The guest's side of its clock: starts what follows, and waits until the clock follows.
//!
//! In: which clock. Out: the clock's state as JSON, or why there is none.

use super::protocol::Clock;
use crate::command;
use crate::error::LabError;
use serde_json::Value;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The directory of the follower's files, which the program sees in the host's tree, too.
pub(super) const DIRECTORY: &str = "/run/ktsn-clock";
const STATUS: &str = "/run/ktsn-clock/status.json";
const SOCKET: &str = "/run/ktsn-clock/chrony.sock";
const CONFIGURATION: &str = "/run/ktsn-clock/chrony.conf";
/// How long the clock may take to follow.
const WITHIN: Duration = Duration::from_secs(45);
/// A clock that is further off has not settled.
const SETTLED_NS: i64 = 10_000;
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// chronyd listens for `chronyc` here.
pub(super) const CHRONY_DIRECTORY: &str = "/run/chrony";

/// What keeps the guest's clock.
#[derive(Debug)]
pub(super) struct GuestClock {
    clock: Clock,
    /// The processes run as long as the guest.
    _processes: Vec<Child>,
}

fn start(program: &str, arguments: &[&str]) -> Result<Child, LabError> {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null());
    command.spawn().map_err(|source| LabError::Start { command: program.to_owned(), source, remedy: "" })
}

fn failed(problem: String) -> LabError {
    LabError::Process { name: "the guest's clock".to_owned(), problem, stderr: String::new() }
}

/// Starts chronyd with these lines of configuration.
fn start_chronyd(lines: &str, arguments: &[&str]) -> Result<Child, LabError> {
    for directory in [DIRECTORY, CHRONY_DIRECTORY] {
        std::fs::create_dir_all(directory).map_err(LabError::file(directory))?;
    }
    let text =
        format!("{lines}\npidfile {DIRECTORY}/chronyd.pid\nbindcmdaddress {CHRONY_DIRECTORY}/chronyd.sock\n");
    std::fs::write(CONFIGURATION, text).map_err(LabError::file(CONFIGURATION))?;
    start("/usr/sbin/chronyd", &[&["-n", "-u", "root", "-f", CONFIGURATION], arguments].concat())
}

impl GuestClock {
    /// Starts the clock, and waits until it follows.
    ///
    /// # Errors
    /// Why it does not.
    pub(super) fn start(clock: Clock, time_server: &str) -> Result<Self, LabError> {
        let processes = match clock {
            Clock::None => Vec::new(),
            Clock::Vptp => vec![follow()?, watch_by_chrony()?],
            Clock::Kvm => vec![follow_phc()?],
            Clock::Chrony => vec![follow_network(time_server)?],
        };
        if clock != Clock::None {
            // Looks each 0.2 s.
            let looks = WITHIN.as_secs() * 5;
            command::run(None, &format!("/usr/bin/chronyc waitsync {looks} 0 0 0.2"))
                .map_err(|error| failed(format!("has no source that chronyd selects: {error}")))?;
        }
        Ok(Self { clock, _processes: processes })
    }

    /// The clock's state now, as JSON on one line.
    pub(super) fn state(&self) -> Option<String> {
        match self.clock {
            Clock::None => None,
            Clock::Vptp => std::fs::read_to_string(STATUS).ok(),
            Clock::Kvm | Clock::Chrony => tracking(),
        }
    }
}

/// vPTP's follower, which steers the clock itself.
fn follow() -> Result<Child, LabError> {
    std::fs::create_dir_all(DIRECTORY).map_err(LabError::file(DIRECTORY))?;
    let arguments = ["clock", "follow", "--discipline", "self", "--quiet", "--chrony-socket", SOCKET];
    let mut follower = start("/usr/bin/ktsn", &arguments)?;
    let until = Instant::now() + WITHIN;
    let mut last = "nothing".to_owned();
    while Instant::now() < until {
        if let Some(status) = follower.try_wait().map_err(LabError::system("waitpid"))? {
            return Err(failed(format!("ended ({status})")));
        }
        let text = std::fs::read_to_string(STATUS).unwrap_or_default();
        if let Ok(status) = serde_json::from_str::<Value>(&text) {
            let is_settled = status["error_ns"].as_i64().is_some_and(|error| error.abs() < SETTLED_NS);
            if status["state"] == "following" && is_settled {
                return Ok(follower);
            }
        }
        if !text.is_empty() {
            last = text;
        }
        std::thread::sleep(LOOK_AGAIN);
    }
    Err(failed(format!("does not follow after {WITHIN:?}: {last}")))
}

/// A chronyd that steers nothing: `chronyc tracking` shows the clock against the follower's time.
fn watch_by_chrony() -> Result<Child, LabError> {
    let _ = std::fs::remove_file(SOCKET);
    start_chronyd(&format!("refclock SOCK {SOCKET} refid VPTP poll 0 filter 3 precision 1e-7"), &["-x"])
}

/// The clock that the hypervisor offers, by chrony.
fn follow_phc() -> Result<Child, LabError> {
    // Built in, a module, or not there: the devices tell.
    let tried = command::run(None, "modprobe ptp_kvm");
    let clocks = std::fs::read_dir("/sys/class/ptp").into_iter().flatten().flatten();
    let named = |path: &Path| std::fs::read_to_string(path.join("clock_name")).unwrap_or_default();
    let offered = clocks.map(|entry| entry.path()).find(|path| {
        let name = named(path).to_lowercase();
        name.contains("kvm") || name.contains("vmclock")
    });
    let Some(device) = offered.as_deref().and_then(Path::file_name) else {
        let why = tried.err().map_or("there is no such device".to_owned(), |error| error.to_string());
        return Err(LabError::Impossible {
            what: format!("the hypervisor offers no clock (ptp_kvm, ptp_vmclock): {why}"),
            remedy: "--clock vptp".to_owned(),
        });
    };
    let device = Path::new("/dev").join(device);
    start_chronyd(
        &format!("refclock PHC {} refid PHCV poll 0 dpoll -2 stratum 1\nmakestep 0.0001 3", device.display()),
        &[],
    )
}

/// The host's clock over the network device, by chrony as well as it can: 16 questions in a second.
fn follow_network(time_server: &str) -> Result<Child, LabError> {
    let Some((address, port)) = time_server.split_once(' ') else {
        return Err(failed(format!("has no server ({time_server:?})")));
    };
    start_chronyd(
        &format!("server {address} port {port} iburst minpoll -4 maxpoll -4 xleave\nmakestep 0.0001 3"),
        &[],
    )
}

/// What chrony says about the clock: reference, offset, root dispersion.
fn tracking() -> Option<String> {
    // The host's tree may have no chronyc.
    let said = command::output(None, "/usr/bin/chronyc -c tracking").ok()?;
    let fields: Vec<&str> = said.trim().split(',').collect();
    let number = |index: usize| fields.get(index).and_then(|field| field.parse::<f64>().ok());
    let state = serde_json::json!({
        "state": if number(2).is_some_and(|stratum| stratum > 0.0) { "following" } else { "unsynchronised" },
        "reference": fields.get(1),
        "offset_seconds": number(4),
        "rms_offset_seconds": number(6),
        "frequency_ppm": number(7),
        "root_delay_seconds": number(10),
        "root_dispersion_seconds": number(11),
    });
    Some(state.to_string())
}
