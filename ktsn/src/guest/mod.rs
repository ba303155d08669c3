// SPDX-License-Identifier: Apache-2.0
//! Sets the network device of a guest up for timed frames, checks it, and takes that back.
//!
//! In: a [`Request`]. Out: the device's queues and qdiscs, or a `ktsnd` on it, and [`Done`]. What a set-up changed stands in a record,
//! written before each change (of a `ktsnd`: as soon as it runs), so [`undo`] also takes back what a killed set-up left. A set-up that fails takes back what it did, and a
//! second one replaces the first. docs/design/vm.md has the reasons.

mod apply;
mod device;
mod plan;
mod record;
#[allow(unsafe_code)]
mod sys;
mod verify;
mod wake_up;

pub(crate) use plan::{Daemon, Gates, Mode, Request, Rhythm};
pub(crate) use verify::{Check, Verified, verify};
pub(crate) use wake_up::spin_margin;

use ktsn_host::HostError;
use record::Record;
use serde::Serialize;
use std::path::Path;

/// Where records are kept; gone with the machine's next start.
pub(crate) const RECORDS: &str = "/run/ktsn-guest";

/// What a set-up did.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Done {
    /// Who keeps the transmit times.
    pub(crate) mode: Mode,
    /// The device.
    pub(crate) device: String,
    /// The mode of the set-up that this one replaced.
    pub(crate) replaced: Option<Mode>,
    /// What was changed, in order.
    pub(crate) steps: Vec<String>,
    /// What the user should know.
    pub(crate) notes: Vec<String>,
    /// What became of the frames of the check; `None`: none were sent.
    pub(crate) verified: Option<Verified>,
}

/// Sets a device up. `check` sends frames in the rhythm of the set-up, or none; a bad result takes the set-up back.
///
/// # Errors
/// [`HostError::Usage`], [`HostError::Impossible`]; [`HostError::Process`] if fewer than half of the frames left in time. The device is then as it was
/// before the call, or before an earlier set-up; what could not be taken back is named and stays in the record.
pub(crate) fn setup(
    request: &Request,
    records: &Path,
    check: &mut dyn FnMut(Rhythm) -> Result<Option<Verified>, HostError>,
) -> Result<Done, HostError> {
    // What is wrong with the request alone is found before an earlier set-up ends.
    let facts = device::facts(&request.device)?;
    let mut record = Record::open(records, &request.device, facts.ifindex)?;
    let is_ours = record.mode.is_some();
    plan::plan(request, &device::Facts { root: facts.root.clone().filter(|_| !is_ours), ..facts })?;
    let replaced = record.mode;
    take_all_back(&mut record)?;
    let plan = plan::plan(request, &device::facts(&request.device)?)?;
    record.begin(request.mode)?;
    let done = carry_out(&plan, &mut record).and_then(|steps| {
        let verified = check(plan.rhythm)?;
        match &verified {
            Some(found) if !found.is_good() => Err(HostError::Process {
                name: format!("mode {} on {}", request.mode, request.device),
                problem: "was taken back: fewer than half of the frames left in time".to_owned(),
                stderr: format!(": {}", found.line()),
            }),
            _ => Ok((steps, verified)),
        }
    });
    match done {
        Ok((steps, verified)) => Ok(Done {
            mode: request.mode,
            device: request.device.clone(),
            replaced,
            steps,
            notes: plan.notes,
            verified,
        }),
        Err(error) => match take_all_back(&mut record) {
            Ok(_) => Err(error),
            Err(left) => Err(HostError::Process {
                name: format!("mode {} on {}", request.mode, request.device),
                problem: format!("failed: {error}"),
                stderr: format!("; and could not be taken back: {left}; `ktsn guest undo` tries again"),
            }),
        },
    }
}

/// Does the steps. The record has what takes a step back before the step is done; of a step that fails it is removed again.
fn carry_out(plan: &plan::Plan, record: &mut Record) -> Result<Vec<String>, HostError> {
    let mut steps = Vec::new();
    for step in &plan.steps {
        if let Some(undo) = &step.undo {
            record.push(undo.clone())?;
        }
        let device = record.device.clone();
        match apply::carry_out(&device, &step.action, &mut |undo| record.push(undo)) {
            Ok(()) => {}
            Err(error) => {
                if step.undo.is_some() {
                    // On a full disk it stays, and is taken back with the rest.
                    let _ = record.remove(record.undo.len() - 1);
                }
                return Err(error);
            }
        }
        steps.push(apply::describe(&step.action));
    }
    Ok(steps)
}

/// Takes back what the record has, the last first. An error does not keep the rest from being taken back.
fn take_all_back(record: &mut Record) -> Result<Vec<String>, HostError> {
    let (mut undone, mut first) = (Vec::new(), None);
    for at in (0..record.undo.len()).rev() {
        let undo = record.undo[at].clone();
        match apply::take_back(&record.device, &undo) {
            Ok(()) => {
                undone.push(apply::describe(&undo));
                // Afterwards, and on a full disk not at all: taking back twice does no harm.
                let _ = record.remove(at);
            }
            Err(error) => {
                first.get_or_insert(error);
            }
        }
    }
    first.map_or_else(|| record.end().map(|()| undone), Err)
}

/// Takes a set-up back; `None` where there was none.
///
/// # Errors
/// What could not be taken back; it stays in the record.
pub(crate) fn undo(device: &str, records: &Path) -> Result<Option<(Mode, Vec<String>)>, HostError> {
    device::check_name(device)?;
    let mut record = Record::open(records, device, device::ifindex(device).unwrap_or(0))?;
    let Some(mode) = record.mode else { return Ok(None) };
    take_all_back(&mut record).map(|undone| Some((mode, undone)))
}

#[cfg(test)]
mod tests;
