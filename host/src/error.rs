// SPDX-License-Identifier: Apache-2.0
//! What can go wrong on a machine: a command, a process, a file, a system call; or the machine cannot do what is asked.

use std::io;
use std::path::PathBuf;

/// A failure on this machine, or on the other one of an experiment.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// A command of the system failed.
    #[error("`{command}` failed ({status}): {stderr}")]
    Command {
        /// The command line.
        command: String,
        /// How it ended.
        status: String,
        /// What it said.
        stderr: String,
    },
    /// A command could not be started.
    #[error("`{command}` cannot be started: {source}{remedy}")]
    Start {
        /// The command line.
        command: String,
        /// The kernel's answer.
        source: io::Error,
        /// What to do, or nothing.
        remedy: &'static str,
    },
    /// A process of ours did not say that it is ready, ended too soon, or did not end.
    #[error("{name} {problem}{stderr}")]
    Process {
        /// Which one.
        name: String,
        /// What it did.
        problem: String,
        /// What it said, after a line break, or nothing.
        stderr: String,
    },
    /// The machine cannot do what is asked.
    #[error("not possible here: {what}; remedy: {remedy}")]
    Impossible {
        /// What is missing.
        what: String,
        /// How to get it.
        remedy: String,
    },
    /// Nothing of what was asked for can be measured.
    #[error("nothing can be measured here:{0}")]
    Nothing(
        /// Each part and its reason, a line each, after a line break.
        String,
    ),
    /// A wrong argument.
    #[error("{0}")]
    Usage(String),
    /// A file.
    #[error("{path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// A file that holds something else than expected.
    #[error("{path}: {problem}")]
    Contents {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// The daemon's control socket.
    #[error("ktsnd's control socket: {0}")]
    Control(String),
    /// The other host of an experiment.
    #[error("{error}")]
    Remote {
        /// What went wrong.
        error: Box<dyn std::error::Error + Send + Sync>,
        /// The exit status that belongs to it.
        exit_status: u8,
    },
    /// SIGINT or SIGTERM.
    #[error("stopped by a signal; everything that was set up is removed")]
    Stopped,
    /// A system call.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
}

impl HostError {
    /// The exit status that belongs to it: 2 wrong usage, 3 not possible here, 1 everything else.
    #[must_use]
    pub fn exit_status(&self) -> u8 {
        match self {
            Self::Usage(_) => 2,
            Self::Impossible { .. } | Self::Nothing(_) => 3,
            Self::Remote { exit_status, .. } => *exit_status,
            _ => 1,
        }
    }

    /// What is wrong and what to do, as a part of another sentence.
    #[must_use]
    pub fn reason(&self) -> String {
        match self {
            Self::Impossible { what, remedy } => format!("{}; {remedy}", what.trim()),
            other => other.to_string(),
        }
    }

    /// The kernel's answer about a file.
    pub fn file(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::File { path, source }
    }

    /// The kernel's answer to what was tried.
    pub fn system(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::System { what, source }
    }
}
