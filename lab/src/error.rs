// SPDX-License-Identifier: Apache-2.0
//! What can go wrong in the lab, and whether it is the lab, this machine, another host, or the thing measured. The machine's errors are
//! those of [`ktsn_host`], by the lab's name.

use crate::remote::target::{GRACE, SILENCE_MAX, Target};
pub use ktsn_host::HostError as LabError;
use ktsn_time::Nanos;

/// Whether another host said what it cannot have measured: then nothing of it is a result.
pub(crate) fn is_untrue(error: &LabError) -> bool {
    let LabError::Remote { error, .. } = error else { return false };
    matches!(error.downcast_ref(), Some(RemoteError::Untrue { .. }))
}

/// Why there is no result with another host.
#[derive(Debug, thiserror::Error)]
pub enum RemoteError {
    /// ssh did not get there.
    #[error(
        "{target}: no connection: {said}; try `ssh -o BatchMode=yes {host} true`, which must end without a question"
    )]
    Connection {
        /// The host as it was named.
        target: Target,
        /// The same for ssh.
        host: String,
        /// What ssh said.
        said: String,
    },
    /// There is no ktsn.
    #[error("{target}: there is no program {program}; copy this one there, or name its path (--remote-ktsn)")]
    Missing {
        /// The host.
        target: Target,
        /// The program.
        program: String,
    },
    /// Another ktsn, whose records may mean something else.
    #[error("{target}: {theirs} runs there, {ours} here; install the same one on both")]
    Version {
        /// The host.
        target: Target,
        /// What runs here.
        ours: String,
        /// What runs there.
        theirs: String,
    },
    /// A command there failed.
    #[error("{target}: `{command}` failed ({status}): {said}")]
    Command {
        /// The host.
        target: Target,
        /// The command.
        command: String,
        /// How it ended.
        status: String,
        /// What it said.
        said: String,
    },
    /// The connection ended while a command ran.
    #[error(
        "{target}: the connection ended in the middle of `{command}`: {said}; what ran there ends by itself within {} s",
        (SILENCE_MAX + GRACE).as_secs()
    )]
    Cut {
        /// The host.
        target: Target,
        /// The command.
        command: String,
        /// What ssh said.
        said: String,
    },
    /// The other host says what no ktsn says.
    #[error("{target}: {problem}; nothing of its answers is used")]
    Untrue {
        /// The host.
        target: Target,
        /// What it said.
        problem: String,
    },
    /// The other side of an experiment failed.
    #[error("{target}: {text}")]
    There {
        /// The host.
        target: Target,
        /// What it said.
        text: String,
        /// The exit status that belongs to it.
        status: u8,
    },
    /// The clocks of both hosts are not known to agree.
    #[error("no result: {0}")]
    Clock(#[from] ClockError),
    /// This machine.
    #[error(transparent)]
    Here(#[from] LabError),
}

impl From<RemoteError> for LabError {
    fn from(error: RemoteError) -> Self {
        match error {
            RemoteError::Here(error) => error,
            other => Self::Remote { exit_status: other.exit_status(), error: Box::new(other) },
        }
    }
}

impl RemoteError {
    /// The same error, if after it the other side answers nothing more: it has ended, gave no answer or broke a rule.
    pub(crate) fn again(&self) -> Option<Self> {
        Some(match self {
            Self::Connection { target, host, said } => {
                Self::Connection { target: target.clone(), host: host.clone(), said: said.clone() }
            }
            Self::Missing { target, program } => {
                Self::Missing { target: target.clone(), program: program.clone() }
            }
            Self::Command { target, command, status, said } => Self::Command {
                target: target.clone(),
                command: command.clone(),
                status: status.clone(),
                said: said.clone(),
            },
            Self::Cut { target, command, said } => {
                Self::Cut { target: target.clone(), command: command.clone(), said: said.clone() }
            }
            Self::Untrue { target, problem } => {
                Self::Untrue { target: target.clone(), problem: problem.clone() }
            }
            Self::Version { .. } | Self::There { .. } | Self::Clock(_) | Self::Here(_) => return None,
        })
    }

    /// The exit status that belongs to it: 1 this machine or a command failed, 3 not possible with this host.
    #[must_use]
    pub fn exit_status(&self) -> u8 {
        match self {
            Self::Here(error) => error.exit_status(),
            Self::There { status, .. } => *status,
            Self::Command { .. } | Self::Cut { .. } | Self::Untrue { .. } => 1,
            _ => 3,
        }
    }
}

/// Why the clocks are not known to agree.
#[derive(Debug, PartialEq, thiserror::Error)]
pub enum ClockError {
    /// Nothing holds a clock.
    #[error(
        "the clock of {host} is not held by chrony or ptp4l; start one of them there (chronyc tracking, pmc -u -b 0 'GET TIME_STATUS_NP' must answer)"
    )]
    Free {
        /// Which host.
        host: String,
    },
    /// It is, but not yet or no longer.
    #[error("the clock of {host} is not synchronised ({state}); wait until it is, or repair its source")]
    Lost {
        /// Which host.
        host: String,
        /// What says so.
        state: String,
    },
    /// Two time scales.
    #[error(
        "TAI - UTC is {here} s here and {there} s on {host}; set it on both (phc2sys -w, or chrony's leapsectz right/UTC)"
    )]
    Tai {
        /// The other host.
        host: String,
        /// This one's.
        here: i32,
        /// The other one's.
        there: i32,
    },
    /// Two PTP domains.
    #[error(
        "this host follows the grandmaster {here}, {host} follows {there}: how far they differ is not known; use one for both"
    )]
    Masters {
        /// The other host.
        host: String,
        /// This one's.
        here: String,
        /// The other one's.
        there: String,
    },
    /// Too far.
    #[error(
        "the clocks agree within {bound} only ({here} here, {there} on {host}), and {wanted} was asked for; let them settle, use PTP with hardware stamps, or allow more (--within)"
    )]
    TooFar {
        /// The other host.
        host: String,
        /// What is known.
        bound: Nanos,
        /// Of it, this host's part.
        here: Nanos,
        /// The other one's part.
        there: Nanos,
        /// What was asked for.
        wanted: Nanos,
    },
}
