// SPDX-License-Identifier: Apache-2.0
//! The receiving node's ktsnd. In: the testbed. Out: a daemon on host B; that of the path `ktsn-short` takes pod B's frames
//! straight into it, or there is a reason why it cannot.

use crate::daemon::{Daemon, configuration_of};
use crate::error::LabError;
use crate::testbed::Testbed;
use crate::tools::Tools;
use std::path::Path;

/// Starts that of `ktsn-short`.
pub(super) fn start(tools: &Tools, testbed: &Testbed, directory: &Path) -> Result<Daemon, LabError> {
    start_with(tools, testbed, directory, &configured(&configuration_of(&testbed.b, &testbed.a)))
}

/// Starts one with this configuration; its files go to a directory of its own below `directory`.
pub(crate) fn start_with(
    tools: &Tools,
    testbed: &Testbed,
    directory: &Path,
    configuration: &str,
) -> Result<Daemon, LabError> {
    let directory = directory.join("far");
    std::fs::create_dir_all(&directory).map_err(LabError::file(&directory))?;
    Daemon::start(tools, &testbed.b, &directory, configuration)
}

/// The configuration with the ingress fast path.
fn configured(plain: &str) -> String {
    plain.replacen("[[attachment]]\n", "[[attachment]]\ningress = \"short\"\n", 1)
}

/// Whether this ktsnd and this machine have the ingress fast path: before minutes are spent, not after.
pub(super) fn check(tools: &Tools, testbed: &Testbed, directory: &Path) -> Result<(), LabError> {
    match start(tools, testbed, directory) {
        Ok(daemon) => daemon.stop(),
        // It ended before it served: it says itself why.
        Err(LabError::Process { problem, stderr, .. }) => Err(LabError::Impossible {
            what: format!("the path ktsn-short: ktsnd with ingress = \"short\" {problem}{stderr}"),
            remedy: "a ktsnd and a kernel with the short way in, or leave the path out with --path"
                .to_owned(),
        }),
        Err(other) => Err(other),
    }
}
