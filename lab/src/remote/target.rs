// SPDX-License-Identifier: Apache-2.0
//! The other host's name, and how long it is waited for. In: `ssh:HOST`. Out: a [`Target`]. Pure.

use std::str::FromStr;
use std::time::Duration;

/// After this time without a sign of life the other side ends what it runs.
pub const SILENCE_MAX: Duration = Duration::from_secs(10);
/// How long a program may take to end after SIGTERM: an experiment removes what it set up.
pub(crate) const GRACE: Duration = Duration::from_secs(10);

/// What the name of a command's directory begins with.
pub(crate) const GUARDED: &str = "ktsn-remote-";

/// The host at the other end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    host: String,
}

impl FromStr for Target {
    type Err = String;

    /// Reads `ssh:HOST` or `ssh:USER@HOST`.
    fn from_str(text: &str) -> Result<Self, String> {
        const EXPECTED: &str = "expected ssh:HOST or ssh:USER@HOST, a host that `ssh HOST` reaches";
        let host = text.strip_prefix("ssh:").ok_or(EXPECTED)?;
        let is_allowed = |octet: u8| octet.is_ascii_alphanumeric() || b"-_.:@%[]".contains(&octet);
        // A host that begins with '-' would be an option.
        let is_host = !host.is_empty() && !host.starts_with(['-', '@']) && host.bytes().all(is_allowed);
        let has_option = host.rsplit('@').next().is_none_or(|name| name.is_empty() || name.starts_with('-'));
        if is_host && !has_option { Ok(Self { host: host.to_owned() }) } else { Err(EXPECTED.to_owned()) }
    }
}

impl Target {
    /// What ssh gets.
    pub(super) fn host(&self) -> &str {
        &self.host
    }
}

impl std::fmt::Display for Target {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "ssh:{}", self.host)
    }
}
