// SPDX-License-Identifier: Apache-2.0
//! The table of small programs, read from `cases/*.toml`.
//!
//! In: TOML. Out: cases, checked. It runs nothing.

use std::path::Path;

use anyhow::{Context as _, ensure};
use serde::Deserialize;

/// One small program and what it may show that the kernel alone cannot.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Case {
    /// Unique.
    pub(crate) name: String,
    /// The system calls, one a step; `{b}` and the like are addresses.
    pub(crate) steps: Vec<String>,
    /// In which languages it is written.
    #[serde(default = "c_alone")]
    pub(crate) languages: Vec<String>,
    /// Modes that it is run in beside the kernel alone; all unless said otherwise.
    #[serde(default)]
    pub(crate) modes: Option<Vec<String>>,
    /// Who listens: `b`, a pod on the other node, or `q`, one on the same.
    #[serde(default = "pod_b")]
    pub(crate) peer: String,
    /// A multicast group that the listener joins.
    #[serde(default)]
    pub(crate) group: Option<String>,
    /// Lines that differ from the kernel's with the library, whatever the daemon; by their step's number.
    #[serde(default)]
    pub(crate) daemon_says: Vec<String>,
    /// First letters of datagrams that a scheduler drops and this kernel, which has none, sends.
    #[serde(default)]
    pub(crate) dropped: String,
    /// First letters of datagrams whose number is left open: they are not compared.
    #[serde(default)]
    pub(crate) uncounted: String,
    /// First letters of datagrams that are lost while the daemon is away; by default the timed ones after the pause.
    #[serde(default)]
    pub(crate) absent: Option<String>,
    /// First letters in the order of arrival with a daemon, where the order is promised.
    #[serde(default)]
    pub(crate) order: Option<String>,
    /// Why the expectation differs from the kernel's: the sentence of docs/txtime.md.
    #[serde(default)]
    pub(crate) because: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    case: Vec<Case>,
}

fn c_alone() -> Vec<String> {
    vec!["c".to_owned()]
}

fn pod_b() -> String {
    "b".to_owned()
}

/// Addresses that steps may name.
const ADDRESSES: [(&str, &str); 10] = [
    ("{b}", "10.244.1.5,7000"),
    ("{b6}", "fd10:244:0:1::5,7000"),
    ("{q}", "10.244.0.6,7000"),
    ("{q6}", "fd10:244:0:0::6,7000"),
    ("{own}", "10.244.0.5,7001"),
    ("{group}", "239.1.2.3,7000"),
    ("{group6}", "ff05::1:3%eth0,7000"),
    ("{broadcast}", "10.244.0.255,7000"),
    ("{mapped}", "::ffff:10.244.1.5,7000"),
    ("{foreign}", "192.168.50.2,7000"),
];

/// The port of the listener.
pub(crate) const PORT: &str = "7000";

impl Case {
    /// The steps as the program gets them: addresses filled in, and a pause before the last send unless the case
    /// has one of its own.
    pub(crate) fn arguments(&self) -> Vec<String> {
        let mut steps: Vec<String> = self.steps.iter().map(|step| fill(step)).collect();
        if !steps.iter().any(|step| step == "pause")
            && let Some(last) = steps.iter().rposition(|step| step.starts_with("send "))
        {
            steps.insert(last, "pause".to_owned());
        }
        steps
    }

    /// The letters that do not arrive when the daemon is killed at the pause.
    pub(crate) fn absent_letters(&self) -> String {
        if let Some(letters) = &self.absent {
            return letters.clone();
        }
        let steps = self.arguments();
        let pause = steps.iter().position(|step| step == "pause").unwrap_or(steps.len());
        steps[pause..]
            .iter()
            .filter(|s| s.starts_with("send ") && s.contains(" tx="))
            .flat_map(|s| letters(s))
            .collect()
    }

    fn check(&self) -> anyhow::Result<()> {
        ensure!(!self.steps.is_empty(), "{}: no steps", self.name);
        ensure!(["b", "q"].contains(&self.peer.as_str()), "{}: peer {}", self.name, self.peer);
        for language in &self.languages {
            ensure!(
                ["c", "c-glibc", "python", "go"].contains(&language.as_str()),
                "{}: language {language}",
                self.name
            );
        }
        for mode in self.modes.iter().flatten() {
            ensure!(
                ["library", "daemon", "run", "dies"].contains(&mode.as_str()),
                "{}: mode {mode}",
                self.name
            );
        }
        let differs = !self.daemon_says.is_empty() || !self.dropped.is_empty();
        ensure!(
            !differs || self.because.is_some(),
            "{}: what differs from the kernel needs `because`",
            self.name
        );
        for line in &self.daemon_says {
            ensure!(line_number(line).is_some(), "{}: {line}: no step's number", self.name);
        }
        let left: Vec<&String> = self.steps.iter().filter(|s| fill(s).contains('{')).collect();
        ensure!(left.is_empty(), "{}: unknown address in {left:?}", self.name);
        Ok(())
    }
}

fn fill(step: &str) -> String {
    ADDRESSES.iter().fold(step.to_owned(), |text, (name, address)| text.replace(name, address))
}

/// The first letters of what a send step sends.
fn letters(step: &str) -> Vec<char> {
    let of = |key: &str| step.split(' ').find_map(|word| word.strip_prefix(key));
    let first = of("fill=").and_then(|text| text.chars().next()).unwrap_or('a');
    let count: u8 = of("count=").and_then(|text| text.parse().ok()).unwrap_or(1);
    (0..count.max(1)).filter_map(|n| char::from_u32(u32::from(first) + u32::from(n))).collect()
}

/// The number that a line of a program begins with.
pub(crate) fn line_number(line: &str) -> Option<u32> {
    line.split(' ').next()?.parse().ok()
}

/// All cases of a directory, in the order of their files' names.
///
/// # Errors
/// When a file is not as it should be, or two cases share a name.
pub(crate) fn read(directory: &Path) -> anyhow::Result<Vec<Case>> {
    let mut paths: Vec<_> =
        std::fs::read_dir(directory)?.map(|entry| entry.map(|e| e.path())).collect::<Result<_, _>>()?;
    paths.sort();
    let mut cases: Vec<Case> = Vec::new();
    for path in paths {
        let text = std::fs::read_to_string(&path)?;
        let file: File = toml::from_str(&text).with_context(|| path.display().to_string())?;
        for case in file.case {
            case.check()?;
            ensure!(cases.iter().all(|other| other.name != case.name), "{} occurs twice", case.name);
            cases.push(case);
        }
    }
    ensure!(!cases.is_empty(), "no cases in {}", directory.display());
    Ok(cases)
}
