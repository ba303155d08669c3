// SPDX-License-Identifier: Apache-2.0
//! Running `faults_talker`, an ordinary program with SO_TXTIME.
//!
//! In: where it runs and its keys. Out: the process, then what it counted.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Child;
use std::time::Duration;

use super::{Daemon, Tap, eventually};
use crate::hook;

/// The port that talkers send to.
pub const PORT: u16 = 7788;

/// The program, compiled once per test binary.
///
/// # Panics
/// When it does not compile.
pub fn binary() -> &'static Path {
    hook::compiled("faults_talker")
}

/// A running talker; killed when dropped.
#[derive(Debug)]
pub struct Talker(hook::Running);

impl Talker {
    /// Starts one in `namespace` that sends to `to` as `sender`; `keys` as the program's head says.
    ///
    /// # Panics
    /// When it does not start.
    #[must_use]
    pub fn start(daemon: &Daemon, namespace: &str, to: &str, sender: u32, keys: &str) -> Self {
        let mut arguments = vec![to.to_owned(), PORT.to_string(), format!("sender={sender}")];
        arguments.extend(keys.split_whitespace().map(str::to_owned));
        Self(hook::Running(daemon.program(namespace, binary(), &arguments)))
    }

    /// Its process.
    #[must_use]
    pub fn child(&mut self) -> &mut Child {
        &mut self.0.0
    }

    /// Closes its standard input: one with `go=1` or `last=N` sends the rest now.
    pub fn go(&mut self) {
        drop(self.child().stdin.take());
    }

    /// Waits until it has ended; what it printed, and its standard error under the key of that text.
    ///
    /// # Panics
    /// When it fails, or does not end within 60 s.
    #[must_use]
    pub fn finish(mut self) -> (BTreeMap<String, i64>, String) {
        use std::io::Read as _;
        let status =
            eventually("the talker ends", Duration::from_secs(60), || self.child().try_wait().ok().flatten());
        let (mut stdout, mut errors) = (Vec::new(), String::new());
        let _ = self.child().stdout.take().map(|mut pipe| pipe.read_to_end(&mut stdout));
        let _ = self.child().stderr.take().map(|mut pipe| pipe.read_to_string(&mut errors));
        let output = std::process::Output { status, stdout, stderr: errors.clone().into_bytes() };
        (hook::values(&output), errors)
    }
}

/// Runs a talker to its end; every send must have succeeded.
///
/// # Panics
/// When a send failed.
pub fn talk(daemon: &Daemon, namespace: &str, to: &str, sender: u32, keys: &str) -> BTreeMap<String, i64> {
    let (values, errors) = Talker::start(daemon, namespace, to, sender, keys).finish();
    assert_eq!(values["failed"], 0, "{values:?} {errors}");
    values
}

/// Runs a talker to its end, and waits until all of its datagrams have arrived.
///
/// # Panics
/// When a send failed, or a datagram is lost.
pub fn arrive(daemon: &Daemon, tap: &Tap, namespace: &str, to: &str, sender: u32, count: usize) {
    talk(daemon, namespace, to, sender, &format!("count={count}"));
    eventually("all arrive", Duration::from_secs(20), || tap.of(sender).len() == count);
}
