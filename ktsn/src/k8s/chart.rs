// SPDX-License-Identifier: Apache-2.0
//! The Helm chart, as the program `ktsn-chart` renders it (k8s/cmd/ktsn-chart). That program has a package of its own.
//!
//! In: values. Out: the chart with these values, and its objects. Where the program is missing: which package brings it.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use ktsn_host::find_own;
use serde::Deserialize;
use serde_json::Value;

const PROGRAM: &str = "ktsn-chart";

/// What `ktsn-chart` prints.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Chart {
    /// The version of KTSN that the chart installs.
    pub(crate) version: String,
    pub(crate) defaults: Value,
    /// The defaults with the given values.
    pub(crate) values: Value,
    /// In the order in which they are made.
    pub(crate) objects: Vec<Object>,
}

/// One object of the cluster, as text and as a value.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Object {
    pub(crate) text: String,
    pub(crate) value: Value,
}

impl Object {
    pub(crate) fn kind(&self) -> &str {
        self.value["kind"].as_str().unwrap_or_default()
    }

    pub(crate) fn name(&self) -> &str {
        self.value["metadata"]["name"].as_str().unwrap_or_default()
    }
}

/// Why there is no chart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The program is not installed.
    Missing(String),
    /// The given values are wrong.
    Values(String),
    /// Everything else.
    Broken(String),
}

/// What renders.
pub(crate) trait Renderer {
    /// The chart by these words of `ktsn-chart`; `values` go before those that the words name.
    ///
    /// # Errors
    /// What the renderer said, by kind.
    fn chart(&self, words: &[String], values: Option<&Value>) -> Result<Chart, Fault>;
}

/// The program.
pub(crate) struct Program(PathBuf);

impl Program {
    /// # Errors
    /// It is not installed.
    pub(crate) fn find() -> Result<Self, Fault> {
        find_own(PROGRAM).map(Self).ok_or_else(|| {
            Fault::Missing(format!(
                "the program {PROGRAM} is neither beside ktsn nor on the search path; install the package ktsn-k8s"
            ))
        })
    }

    fn broken(&self, why: impl std::fmt::Display) -> Fault {
        Fault::Broken(format!("{}: {why}; install the package ktsn-k8s again", self.0.display()))
    }
}

impl Renderer for Program {
    fn chart(&self, words: &[String], values: Option<&Value>) -> Result<Chart, Fault> {
        let mut command = Command::new(&self.0);
        if values.is_some() {
            command.arg("--values=/dev/stdin").stdin(Stdio::piped());
        }
        let spawned = command.args(words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let mut child = spawned.map_err(|error| self.broken(error))?;
        if let (Some(values), Some(mut pipe)) = (values, child.stdin.take()) {
            // The program may end before it has read all; what it says then is the error.
            let _ = pipe.write_all(values.to_string().as_bytes());
        }
        let done = child.wait_with_output().map_err(|error| self.broken(error))?;
        let said = String::from_utf8_lossy(&done.stderr).trim().to_owned();
        match done.status.code() {
            Some(0) => serde_json::from_slice(&done.stdout).map_err(|error| self.broken(error)),
            Some(1) => Err(Fault::Broken(said)),
            Some(2) => Err(Fault::Values(said)),
            _ => Err(self.broken(format!("{} {said}", done.status))),
        }
    }
}

/// Objects as one text that `kubectl apply -f -` takes.
pub(crate) fn text_of<'o>(objects: impl IntoIterator<Item = &'o Object>) -> String {
    objects.into_iter().map(|object| format!("---\n{}\n", object.text)).collect()
}
