// SPDX-License-Identifier: Apache-2.0
//! What this machine lets KTSN do, looked at one by one.
//!
//! In: the machine. Out: findings, each with what it means and what to do. Looks and tries; what a trial makes is
//! gone when it ends, and no setting is changed.

mod capture;
mod devices;
mod elf;
pub(crate) mod finding;
pub(crate) mod habits;
mod listener;
mod machine;
mod netlink;
mod network;
mod place;
mod policy;
pub(crate) mod program;
pub(crate) mod realtime;
mod receive;
mod rights;
pub(crate) mod vm;
pub(crate) mod wake_ups;

use std::path::Path;

use finding::Finding;

/// A guest, or the host of guests: `ktsn doctor --vm`.
pub(crate) fn look_at_vm(side: vm::Side) -> Vec<Finding> {
    vm::findings(side)
}

/// What makes wake-ups late, for a program on `cpu`: `ktsn doctor --rt`.
///
/// # Errors
/// There is no such CPU.
pub(crate) fn look_at_wake_ups(cpu: u32) -> Result<Vec<Finding>, String> {
    realtime::check_cpu(cpu)?;
    Ok(realtime::findings(cpu))
}

/// Everything, in the order in which it should be repaired.
///
/// `measure_capture`: with a second of traffic that shows what kernel capture needs.
pub(crate) fn look(run_dir: &Path, program: Option<&Path>, measure_capture: bool) -> Vec<Finding> {
    let place = place::look(run_dir);
    let is_captured = || crate::captured::check(run_dir).is_ok();
    let mut findings = program.map(|path| program::findings(path, is_captured)).unwrap_or_default();
    findings.extend(place.findings);
    findings.extend(rights::findings(place.is_served));
    findings.extend(network::findings(place.is_served));
    findings.push(devices::finding());
    findings.push(policy::finding());
    findings.extend(machine::findings());
    findings.extend(listener::findings());
    findings.extend(receive::findings(run_dir));
    if measure_capture {
        findings.extend(capture::findings());
    }
    findings
}
