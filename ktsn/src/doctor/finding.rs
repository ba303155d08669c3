// SPDX-License-Identifier: Apache-2.0
//! One thing that doctor looked at.

use serde::Serialize;

/// How good it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum State {
    /// Everything is fine.
    Ok,
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
            Self::Warn => "warn",
            Self::Fail => "fail",
        }
    }
}

/// A finding: what was looked at, what was seen, what that means, what to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Finding {
    /// Stable name, snake_case.
    pub(crate) name: String,
    /// How good it is.
    pub(crate) state: State,
    /// What was seen.
    pub(crate) value: String,
    /// What it means for KTSN.
    pub(crate) meaning: String,
    /// What to do; there is one whenever the state is not `ok`.
    pub(crate) remedy: Option<String>,
}

impl Finding {
    /// A finding that is fine.
    pub(crate) fn ok(name: impl Into<String>, value: impl Into<String>, meaning: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            state: State::Ok,
            value: value.into(),
            meaning: meaning.into(),
            remedy: None,
        }
    }

    /// Works, with less.
    pub(crate) fn warn(
        name: impl Into<String>,
        value: impl Into<String>,
        meaning: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        let remedy = Some(remedy.into());
        Self { remedy, state: State::Warn, ..Self::ok(name, value, meaning) }
    }

    /// Does not work.
    pub(crate) fn fail(
        name: impl Into<String>,
        value: impl Into<String>,
        meaning: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self { state: State::Fail, ..Self::warn(name, value, meaning, remedy) }
    }

    /// A failure that is only a warning when `mild`.
    pub(crate) fn milder_if(self, mild: bool) -> Self {
        if mild && self.state == State::Fail { Self { state: State::Warn, ..self } } else { self }
    }
}
