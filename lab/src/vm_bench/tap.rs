// SPDX-License-Identifier: Apache-2.0
//! The observer at a guest's tap device. In: a host with a guest. Out: a process, and later the frames that the guest's device saw, by the
//! host's clock.

use super::figures::records_max;
use super::plan::Plan;
use super::script::PORT;
use super::site::{GUEST, Host, Which};
use crate::error::LabError;
use crate::observers::{Observers, READY_MAX};
use crate::process::Process;
use ktsn_measure::records::{self, ArrivalRecord};
use std::path::Path;
use std::time::{Duration, Instant};

const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// What the observer's files are called.
const fn name(which: Which) -> &'static str {
    match which {
        Which::Publisher => "tap-near",
        Which::Subscriber => "tap-far",
    }
}

/// The file of its records.
pub(super) fn file(which: Which) -> String {
    format!("{}.csv", name(which))
}

/// Starts it once the guest's device is there. `has_ended`: whether the guest will have none any more.
///
/// # Errors
/// The device does not come, or the observer is not ready.
pub(super) fn start(
    plan: &Plan,
    host: &Host,
    directory: &Path,
    has_ended: impl Fn() -> bool,
) -> Result<Process, LabError> {
    let line = format!("ip -n {} link show dev {GUEST}", host.namespace);
    // The device comes with the guest.
    let until = Instant::now() + READY_MAX;
    while crate::command::output(None, &line).is_err() {
        if has_ended() || Instant::now() > until {
            let path = format!("/run/netns/{}", host.namespace).into();
            let problem = format!("the device {GUEST} did not come");
            return Err(LabError::Contents { path, problem });
        }
        std::thread::sleep(LOOK_AGAIN);
    }
    let frames = plan.frames * plan.payloads.len() as u64;
    let program = Observers::new(&plan.setup, directory).program(name(host.which), "tap", frames);
    let program = program.args([GUEST, "--outgoing", "--port", &PORT.to_string()]);
    let mut tap = program.within(&host.namespace).start(directory)?;
    tap.wait_ready(READY_MAX)?;
    Ok(tap)
}

/// What both observers saw.
///
/// # Errors
/// A file that is none of records.
pub(super) fn seen(plan: &Plan, directory: &Path) -> Result<[Vec<ArrivalRecord>; 2], LabError> {
    let observers = Observers::new(&plan.setup, directory);
    let rows_max = records_max(plan);
    let of = |which| {
        let path = observers.file(name(which), "csv");
        records::load_arrivals_at_most(&path, rows_max)
            .map_err(|error| LabError::Contents { path, problem: error.to_string() })
    };
    Ok([of(Which::Publisher)?, of(Which::Subscriber)?])
}
