// SPDX-License-Identifier: Apache-2.0
//! An end of an experiment, in this process or on the other host. In: questions. Out: the same answers and files, wherever it is.

use super::RemoteError;
use super::hosts::{Far, Side, not_asked};
use crate::error::LabError;
use crate::experiment::{Event, Watch};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Where an end is that is asked.
#[derive(Debug)]
pub(crate) enum End<S> {
    Here(Box<S>),
    There(Box<Far>),
}

impl<S: Side<Question: Serialize>> End<S> {
    /// Asks, and waits for the answer: from the other host `longest`.
    ///
    /// # Errors
    /// The end's own; [`LabError::Impossible`] of the other host names it; its connection's.
    pub(crate) fn ask<T: DeserializeOwned>(
        &mut self,
        question: S::Question,
        longest: Duration,
    ) -> Result<T, LabError> {
        match self {
            Self::Here(side) => {
                let answer = side.answer(question)?;
                serde_json::from_value(answer).map_err(|error| not_asked(&error.to_string()))
            }
            Self::There(far) => far.ask(&question, longest).map_err(impossible),
        }
    }

    /// A file of records of `frames` frames at most, in `directory`, which is that of an end of this process.
    ///
    /// # Errors
    /// As [`Far::fetch`].
    pub(crate) fn fetch(&mut self, name: &str, directory: &Path, frames: u64) -> Result<PathBuf, LabError> {
        let path = directory.join(name);
        if let Self::There(far) = self {
            let _of_the_run_before = std::fs::remove_file(&path);
            far.fetch(name, &path, frames)?;
        }
        Ok(path)
    }

    /// Waits until the other machine, if there is one, is quiet; returns how often it was not.
    ///
    /// # Errors
    /// The connection's.
    pub(crate) fn wait_until_quiet(&mut self, watch: &mut Watch<'_>) -> Result<u32, LabError> {
        let Self::There(far) = self else { return Ok(0) };
        watch(Event::Step("waiting for the other host to be quiet"));
        Ok(far.wait_until_quiet()?)
    }

    /// Refuses what this end cannot have measured. Of another host nothing more is asked then.
    pub(crate) fn refuse(&self, problem: String) -> LabError {
        match self {
            Self::Here(_) => {
                let name = "an end of this process:".to_owned();
                LabError::Process { name, problem, stderr: String::new() }
            }
            Self::There(far) => far.refuse(problem).into(),
        }
    }

    /// # Errors
    /// The connection to the other host has ended; as [`Side::check`].
    pub(crate) fn check(&mut self) -> Result<(), LabError> {
        match self {
            Self::Here(side) => side.check(),
            Self::There(far) => Ok(far.check()?),
        }
    }

    /// The other host.
    pub(crate) fn far(&self) -> Option<&Far> {
        let Self::There(far) = self else { return None };
        Some(far)
    }
}

/// What a host that cannot have something says.
fn impossible(error: RemoteError) -> LabError {
    match &error {
        RemoteError::There { target, text, status: 3 } => {
            let text = text.strip_prefix("not possible here: ").unwrap_or(text);
            let (what, remedy) = text.split_once("; remedy: ").unwrap_or((text, "another host"));
            LabError::Impossible { what: format!("{target}: {what}"), remedy: remedy.to_owned() }
        }
        _ => error.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_other_machine_cannot_have_is_not_possible_here() {
        let target: crate::remote::Target = "ssh:b".parse().unwrap();
        let text = "not possible here: no OVS; remedy: `make setup`".to_owned();
        let error = impossible(RemoteError::There { target: target.clone(), text, status: 3 });
        assert_eq!(error.to_string(), "not possible here: ssh:b: no OVS; remedy: `make setup`");
        let error = impossible(RemoteError::There { target, text: "broken".to_owned(), status: 1 });
        assert!(!matches!(error, LabError::Impossible { .. }), "{error}");
    }
}
