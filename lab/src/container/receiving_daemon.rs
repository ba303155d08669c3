// SPDX-License-Identifier: Apache-2.0
//! The receiving node's ktsnd. In: the testbed, what it is configured with. Out: a daemon on host B, or the reason why this
//! machine or this ktsnd cannot have it.

use crate::daemon::{Daemon, configuration_of};
use crate::error::LabError;
use crate::testbed::{Host, Testbed};
use crate::tools::Tools;
use std::path::Path;

/// Starts that of `ktsn-short`.
pub(super) fn start(tools: &Tools, testbed: &Testbed, directory: &Path) -> Result<Daemon, LabError> {
    start_with(tools, testbed, directory, &short(testbed))
}

/// Starts one with this configuration; its files go to a directory of its own below `directory`.
pub(crate) fn start_with(
    tools: &Tools,
    testbed: &Testbed,
    directory: &Path,
    configuration: &str,
) -> Result<Daemon, LabError> {
    start_on(tools, &testbed.b, directory, configuration)
}

fn start_on(tools: &Tools, host: &Host, directory: &Path, configuration: &str) -> Result<Daemon, LabError> {
    let directory = directory.join("far");
    std::fs::create_dir_all(&directory).map_err(LabError::file(&directory))?;
    Daemon::start(tools, host, &directory, configuration)
}

/// The configuration of the path `ktsn-short`.
pub(super) fn short(testbed: &Testbed) -> String {
    with_keys(&configuration_of(&testbed.b, &testbed.a), true, false)
}

/// The configuration `plain` with the ingress fast path, with a grant for expected-arrival receive, or without them.
pub(crate) fn with_keys(plain: &str, short: bool, expect: bool) -> String {
    const ATTACHMENT: &str = "[[attachment]]\n";
    let ingress = if short { "ingress = \"short\"\n" } else { "" };
    let receive = if expect { "receive = \"expect\"\n" } else { "" };
    plain.replacen(ATTACHMENT, &format!("{ATTACHMENT}{ingress}{receive}"), 1)
}

/// Whether this ktsnd and this machine have what `configuration` asks for, which the path of this name needs: before minutes
/// are spent, not after.
pub(crate) fn check(
    tools: &Tools,
    testbed: &Testbed,
    directory: &Path,
    path: &str,
    configuration: &str,
) -> Result<(), LabError> {
    check_on(tools, &testbed.b, directory, path, configuration)
}

/// The same on this host.
pub(crate) fn check_on(
    tools: &Tools,
    host: &Host,
    directory: &Path,
    path: &str,
    configuration: &str,
) -> Result<(), LabError> {
    match start_on(tools, host, directory, configuration) {
        Ok(daemon) => daemon.stop(),
        // It ended before it served: it says itself why.
        Err(LabError::Process { problem, stderr, .. }) => Err(LabError::Impossible {
            what: format!("the path {path}: its ktsnd {problem}{stderr}"),
            remedy: "a ktsnd and a kernel that can do it, or leave the path out with --path".to_owned(),
        }),
        Err(other) => Err(other),
    }
}
