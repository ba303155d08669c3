// SPDX-License-Identifier: Apache-2.0
//! `ktsn-bench capture-lead`, hidden: the measurement of `ktsn doctor --capture`.
//!
//! In: nothing. Out: how much earlier a captured program has to send, as JSON, from a second of traffic in namespaces of its own, which are
//! gone when it ends. Unlike `ktsn bench capture` it does not wait for a quiet machine or for other measurements: the figure is of the
//! machine as it is. Exit status as of `ktsn bench`.

use std::process::ExitCode;

use clap::Args;
use ktsn_lab::container::{self, Load, Path, Plan, bars};
use ktsn_lab::{LabError, Setup};
use ktsn_measure::clock;
use ktsn_measure::results::Document;
use ktsn_time::Nanos;
use serde_json::{Value, json};

use crate::{output, programs};

const FRAMES: u64 = 1_000;

/// Measure how much earlier a captured program has to send.
#[derive(Args, Clone, Debug)]
pub(crate) struct CaptureLeadArgs {}

/// Measures; a few seconds.
pub(crate) fn run(_: &CaptureLeadArgs) -> ExitCode {
    clock::stop_on_signals();
    let measured = plan().and_then(|plan| container::run(&plan, &mut |_| ()));
    match measured {
        Ok(outcome) => output::finish(
            "capture-lead",
            output::show(&format!("{}\n", figures(&outcome.document))).map(drop),
        ),
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(error.exit_status())
        }
    }
}

/// The member `lead` is null when no frame was captured.
fn figures(document: &Document) -> Value {
    let of = |name: &str| document.micro.iter().find(|figure| figure.name == name);
    let lead = of("capture.lead").zip(of("capture.lead.p99")).map(|(lead, tail)| {
        json!({"p50_ns": lead.p50, "p90_ns": lead.p90.unwrap_or(lead.p50), "p99_ns": tail.p50, "samples": lead.samples})
    });
    json!({ "lead": lead, "violations": bars::violations(document) })
}

fn plan() -> Result<Plan, LabError> {
    Ok(Plan {
        experiment: "capture",
        paths: vec![Path::KtsnCapture],
        payloads: vec![bars::PAYLOAD_OCTETS],
        loads: vec![Load::Idle],
        rounds: 1,
        frames: FRAMES,
        period: Nanos::from_millis(1),
        lead: container::LEAD,
        setup: Setup {
            tools: programs::tools()?,
            lock: None,
            command: ["ktsn", "doctor", "--capture"].map(str::to_owned).to_vec(),
            functional: true,
        },
    })
}
