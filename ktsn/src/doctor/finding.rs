// SPDX-License-Identifier: Apache-2.0
//! One thing that doctor looked at.
//!
//! A finding is made from a [`Look`] only: each has the source that it was read from. What could not be read is
//! `not known`, never `ok`.

use ktsn_realtime::causes::Cause;
use serde::Serialize;

/// How good it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum State {
    /// Everything is fine.
    Ok,
    /// The source does not say, or cannot be read.
    #[serde(rename = "not known")]
    NotKnown,
    /// KTSN works, with less.
    Warn,
    /// KTSN does not work.
    Fail,
}

impl State {
    /// The word shown.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::NotKnown => "not known",
            Self::Warn => "warn",
            Self::Fail => "fail",
        }
    }
}

/// A finding: what was looked at, what was seen, what that means, what to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Finding {
    /// Stable name, snake_case.
    pub(crate) name: &'static str,
    /// How good it is.
    pub(crate) state: State,
    /// What was looked at: files, system calls, programs.
    pub(crate) source: &'static str,
    /// What was seen.
    pub(crate) value: String,
    /// What it means for KTSN.
    pub(crate) meaning: String,
    /// What to do; there is one whenever the state is not `ok`.
    pub(crate) remedy: Option<String>,
    /// The causes of late wake-ups that the remedy takes away.
    #[serde(skip_serializing_if = "<[Cause]>::is_empty")]
    pub(crate) causes: &'static [Cause],
}

/// A finding's name, and the source that it is read from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Look {
    name: &'static str,
    source: &'static str,
}

impl Look {
    pub(crate) const fn at(name: &'static str, source: &'static str) -> Self {
        Self { name, source }
    }

    /// A finding that is fine.
    pub(crate) fn ok(self, value: impl Into<String>, meaning: impl Into<String>) -> Finding {
        Finding {
            name: self.name,
            state: State::Ok,
            source: self.source,
            value: value.into(),
            meaning: meaning.into(),
            remedy: None,
            causes: &[],
        }
    }

    fn state(
        self,
        state: State,
        value: impl Into<String>,
        meaning: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Finding {
        Finding { state, remedy: Some(remedy.into()), ..self.ok(value, meaning) }
    }

    /// Whether it is fine cannot be said from this source; the remedy says how to find out.
    pub(crate) fn not_known(
        self,
        value: impl Into<String>,
        meaning: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Finding {
        self.state(State::NotKnown, value, meaning, remedy)
    }

    /// Works, with less.
    pub(crate) fn warn(
        self,
        value: impl Into<String>,
        meaning: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Finding {
        self.state(State::Warn, value, meaning, remedy)
    }

    /// Does not work.
    pub(crate) fn fail(
        self,
        value: impl Into<String>,
        meaning: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Finding {
        self.state(State::Fail, value, meaning, remedy)
    }
}

impl Finding {
    /// The same finding, of these causes of late wake-ups.
    pub(crate) fn of(self, causes: &'static [Cause]) -> Self {
        Self { causes, ..self }
    }

    /// A failure that is only a warning when `mild`.
    pub(crate) fn milder_if(self, mild: bool) -> Self {
        if mild && self.state == State::Fail { Self { state: State::Warn, ..self } } else { self }
    }
}
