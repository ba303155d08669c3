// SPDX-License-Identifier: Apache-2.0
//! What would take the causes of late wake-ups away, as `ktsn doctor --rt` says.
//!
//! In: the program `ktsn`, the probe's CPU. Out: its findings that ask for a change, each with the causes that the change takes away.

use std::path::Path;
use std::process::{Command, Stdio};

use ktsn_lab::LabError;
use ktsn_realtime::advice::Advice;
use ktsn_realtime::causes::Cause;
use serde::Deserialize;

/// What is read of a finding.
#[derive(Deserialize)]
struct Finding {
    name: String,
    state: String,
    value: String,
    meaning: String,
    remedy: Option<String>,
    #[serde(default)]
    causes: Vec<Cause>,
}

#[derive(Deserialize)]
struct Findings {
    findings: Vec<Finding>,
}

/// The advice for a program on `cpu`.
///
/// # Errors
/// `ktsn` cannot be started, or says something else than findings.
pub(crate) fn advice(ktsn: &Path, cpu: u32) -> Result<Vec<Advice>, LabError> {
    let shown = format!("{} doctor --rt {cpu} --json", ktsn.display());
    let mut command = Command::new(ktsn);
    command.args(["doctor", "--rt", &cpu.to_string(), "--json"]).stdin(Stdio::null());
    let said = command.output().map_err(|source| LabError::Start {
        command: shown.clone(),
        source,
        remedy: "; `make build`",
    })?;
    // Its exit status is 1 where a finding is a failure: the findings are there all the same.
    read(&said.stdout).map_err(|_| LabError::Command {
        command: shown,
        status: said.status.to_string(),
        stderr: String::from_utf8_lossy(&said.stderr).trim().to_owned(),
    })
}

fn read(text: &[u8]) -> Result<Vec<Advice>, serde_json::Error> {
    let found: Findings = serde_json::from_slice(text)?;
    let advice = |one: Finding| Advice {
        finding: one.name,
        value: one.value,
        meaning: one.meaning,
        remedy: one.remedy.unwrap_or_default(),
        causes: one.causes,
        explained_ratio: 0.0,
    };
    Ok(found.findings.into_iter().filter(|one| one.state != "ok").map(advice).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_that_are_not_ok_become_advice() {
        let text = br#"{"ok": 1, "findings": [
            {"name": "rt_ticks", "state": "ok", "value": "none", "meaning": "m", "remedy": null, "source": "s"},
            {"name": "rt_governor", "state": "warn", "value": "powersave", "meaning": "m", "remedy": "r", "source": "s",
             "causes": ["frequency_changes"]}]}"#;
        let advice = read(text).unwrap();
        assert_eq!(advice.len(), 1);
        assert_eq!((advice[0].finding.as_str(), advice[0].remedy.as_str()), ("rt_governor", "r"));
        assert_eq!(advice[0].causes, [Cause::FrequencyChanges]);
        assert!(read(b"ktsn doctor: no such CPU").is_err());
    }

    #[test]
    fn a_program_that_is_not_there_is_named() {
        let error = advice(Path::new("/nowhere/ktsn"), 3).unwrap_err().to_string();
        assert!(error.contains("/nowhere/ktsn doctor --rt 3 --json"), "{error}");
    }
}
