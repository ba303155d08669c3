// SPDX-License-Identifier: Apache-2.0
//! How much earlier a program has to send that kernel capture serves.
//!
//! In: the laboratory's program, which measures (`ktsn-bench capture-lead`). Out: one finding, from a second of traffic in namespaces of its
//! own, which are gone when it ends.

use std::process::Stdio;

use serde::Deserialize;

use super::finding::{Finding, Look};
use crate::laboratory;

const LOOK: Look = Look::at("capture_lead", "a second of traffic in network namespaces of its own");
const CANNOT: &str = "whether programs that cannot be preloaded (static, Go) can be served here is not known";

/// What was measured.
#[derive(Deserialize)]
struct Measured {
    /// None: no frame was captured.
    lead: Option<Lead>,
    /// What must not happen, and did.
    violations: Vec<String>,
}

/// From sendmsg to ktsnd's queue.
#[derive(Deserialize)]
struct Lead {
    p50_ns: f64,
    p90_ns: f64,
    p99_ns: f64,
    samples: u64,
}

/// Measures; a few seconds.
pub(super) fn findings() -> Vec<Finding> {
    let Some(program) = laboratory::program() else {
        let remedy = "install the package ktsn-bench, or put its program beside ktsn";
        return vec![LOOK.not_known(laboratory::MISSING, CANNOT, remedy)];
    };
    let mut command = std::process::Command::new(&program);
    command.arg("capture-lead").stdin(Stdio::null());
    vec![match command.output() {
        Err(error) => LOOK.not_known(
            format!("{} cannot be started: {error}", program.display()),
            CANNOT,
            "install the package ktsn-bench again",
        ),
        Ok(said) if said.status.success() => read(&said.stdout),
        Ok(said) => {
            let remedy = "run it as root, with ktsnd beside ktsn, on Linux 6.11 or newer with two CPUs";
            let why = String::from_utf8_lossy(&said.stderr).trim().to_owned();
            LOOK.not_known(if why.is_empty() { said.status.to_string() } else { why }, CANNOT, remedy)
        }
    }]
}

fn read(text: &[u8]) -> Finding {
    let measured: Measured = match serde_json::from_slice(text) {
        Ok(measured) => measured,
        Err(error) => {
            let remedy = "install ktsn and ktsn-bench of the same version";
            return LOOK.not_known(format!("ktsn-bench said something else: {error}"), CANNOT, remedy);
        }
    };
    let micros = |nanos: f64| format!("{:.0} µs", nanos / 1000.0);
    let Some(lead) = measured.lead else {
        let remedy = "see docs/guide/capture.md for what capture needs";
        return LOOK.warn("no frame was captured", CANNOT, remedy);
    };
    let value = format!(
        "p50 {}, p90 {}, p99 {} from sendmsg to ktsnd's queue ({} frames)",
        micros(lead.p50_ns),
        micros(lead.p90_ns),
        micros(lead.p99_ns),
        lead.samples
    );
    let meaning = "a program under kernel capture has to send this much, and ktsnd's spin margin, ahead of the transmit time; it \
                   gets no error reports, no true software stamps, and CLOCK_TAI only with CAP_NET_ADMIN";
    match measured.violations.first() {
        None => LOOK.ok(value, meaning),
        Some(violated) => {
            let remedy = "look at `ktsn bench capture` on a quiet machine";
            LOOK.warn(format!("{value}; {violated}"), meaning, remedy)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::State;

    #[test]
    fn what_the_laboratory_measured_becomes_a_finding() {
        let lead = r#"{"p50_ns": 41000.0, "p90_ns": 50000.0, "p99_ns": 80000.0, "samples": 1000}"#;
        let fine = read(format!("{{\"lead\": {lead}, \"violations\": []}}").as_bytes());
        assert_eq!(fine.state, State::Ok);
        assert!(
            fine.value.starts_with("p50 41 µs, p90 50 µs, p99 80 µs") && fine.value.contains("1000 frames"),
            "{fine:?}"
        );
        let lost = read(format!("{{\"lead\": {lead}, \"violations\": [\"3 frames lost\"]}}").as_bytes());
        assert!(lost.state == State::Warn && lost.value.ends_with("; 3 frames lost"), "{lost:?}");
        let none = read(br#"{"lead": null, "violations": []}"#);
        assert_eq!((none.state, none.value.as_str()), (State::Warn, "no frame was captured"));
        assert_eq!(read(b"ktsn-bench 9.9").state, State::NotKnown);
    }
}
