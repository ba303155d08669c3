// SPDX-License-Identifier: Apache-2.0
//! The kernel's bridge. In: a namespace, names of devices in it. Out: a bridge of these devices that forwards at once. It ends with the
//! namespace.

use crate::command::run;
use crate::error::LabError;
use crate::testbed::check_name;

/// Makes a bridge without spanning tree, and makes the devices its ports; all of them are up afterwards.
///
/// # Errors
/// A name is too long, or the command that failed.
pub fn set_up(namespace: &str, bridge: &str, ports: &[&str]) -> Result<(), LabError> {
    ports.iter().chain([&bridge]).try_for_each(|name| check_name(name))?;
    run(None, &format!("ip -n {namespace} link add {bridge} type bridge stp_state 0 forward_delay 0"))?;
    run(None, &format!("ip -n {namespace} link set {bridge} up"))?;
    for port in ports {
        run(None, &format!("ip -n {namespace} link set {port} master {bridge}"))?;
        run(None, &format!("ip -n {namespace} link set {port} up"))?;
    }
    Ok(())
}

/// Says behind which port a station is: nothing is flooded to find it.
///
/// # Errors
/// The command failed.
pub fn pin(namespace: &str, port: &str, mac: &str) -> Result<(), LabError> {
    run(None, &format!("bridge -n {namespace} fdb replace {mac} dev {port} master static"))
}
