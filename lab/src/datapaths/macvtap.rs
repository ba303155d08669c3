// SPDX-License-Identifier: Apache-2.0
//! macvtap. In: a namespace, an uplink in it, a name, a station's address. Out: the open device node of a new macvtap.
//!
//! The node that the kernel makes in `/dev` is named by the index of the device, and several namespaces have devices of one index. So
//! it is not used: a node of the same numbers is made in a directory of its own, opened, and removed.

use crate::command::run;
use crate::error::LabError;
use crate::sys;
use crate::testbed::check_name;
use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Makes a macvtap in bridge mode, and opens it. The device ends with the namespace or with its uplink.
///
/// # Errors
/// A name is too long, the kernel has no macvtap, or the command that failed.
pub fn set_up(namespace: &str, uplink: &str, name: &str, mac: &str) -> Result<File, LabError> {
    check_name(name)?;
    let line = format!(
        "ip -n {namespace} link add link {uplink} name {name} address {mac} type macvtap mode bridge"
    );
    run(None, &line)?;
    run(None, &format!("ip -n {namespace} link set {name} up"))?;
    let (major, minor) = numbers(namespace, name)?;
    let directory = crate::carry_out::directory()?;
    open(directory.path(), major, minor)
}

/// A node that lives as long as it takes to open it: in the directory, or in `/dev` where the directory has no device nodes.
fn open(directory: &Path, major: u32, minor: u32) -> Result<File, LabError> {
    let in_dev = PathBuf::from(format!("/dev/.ktsn-macvtap-{}-{minor}", std::process::id()));
    let mut refused = None;
    for node in [directory.join("tap"), in_dev] {
        let mode = Mode::RUSR | Mode::WUSR;
        mknodat(CWD, &node, FileType::CharacterDevice, mode, makedev(major, minor))
            .map_err(|errno| LabError::file(&node)(errno.into()))?;
        let opened = File::options().read(true).write(true).open(&node);
        std::fs::remove_file(&node).map_err(LabError::file(&node))?;
        match opened {
            Ok(file) => return Ok(file),
            Err(error) => refused = Some(LabError::file(&node)(error)),
        }
    }
    Err(refused.unwrap_or_else(|| LabError::Usage("no place for a device node".to_owned())))
}

/// The numbers of the device node of a macvtap, from the sysfs of its namespace.
fn numbers(namespace: &str, name: &str) -> Result<(u32, u32), LabError> {
    let script = format!("cat /sys/class/net/{name}/macvtap/tap*/dev");
    let mut command = Command::new("ip");
    // `ip netns exec` mounts the sysfs of the namespace.
    command.args(["netns", "exec", namespace, "sh", "-c", &script]);
    sys::inherit(&mut command, &[]);
    let shown = || format!("ip netns exec {namespace} sh -c '{script}'");
    let text = crate::command::output_of(command, shown)?;
    let numbers = text.trim().split_once(':').and_then(|(major, minor)| {
        let number = |text: &str| text.parse::<u32>().ok();
        number(major).zip(number(minor))
    });
    numbers.ok_or_else(|| LabError::Contents {
        path: script.into(),
        problem: format!("expected MAJOR:MINOR, got {text:?}"),
    })
}
