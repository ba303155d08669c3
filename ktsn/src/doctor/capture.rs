// SPDX-License-Identifier: Apache-2.0
//! How much earlier a program has to send that kernel capture serves.
//!
//! In: the programs beside this one. Out: one finding, from a second of traffic in namespaces of its own, which are gone
//! when it ends. Unlike `ktsn bench capture` it does not wait for a quiet machine or for other measurements: the figure is of the machine as it is.

use ktsn_lab::container::{self, Load, Path, Plan, bars};
use ktsn_lab::{Setup, Tools};
use ktsn_time::Nanos;

use super::finding::Finding;

const NAME: &str = "capture_lead";
const FRAMES: u64 = 1_000;
const CANNOT: &str = "whether programs that cannot be preloaded (static, Go) can be served here is not known";

/// Measures; a few seconds.
pub(super) fn findings() -> Vec<Finding> {
    let measured = plan().and_then(|plan| {
        container::run(&plan, &mut |_| ()).map(|outcome| outcome.document).map_err(|error| error.to_string())
    });
    let document = match measured {
        Ok(document) => document,
        Err(error) => {
            let remedy = "run it as root, with ktsnd beside ktsn, on Linux 6.11 or newer with two CPUs";
            return vec![Finding::warn(NAME, error, CANNOT, remedy)];
        }
    };
    let of = |name: &str| document.micro.iter().find(|figure| figure.name == name);
    let micros = |nanos: f64| format!("{:.0} µs", nanos / 1000.0);
    let (Some(lead), Some(tail)) = (of("capture.lead"), of("capture.lead.p99")) else {
        let remedy = "see docs/guide/capture.md for what capture needs";
        return vec![Finding::warn(NAME, "no frame was captured", CANNOT, remedy)];
    };
    let value = format!(
        "p50 {}, p90 {}, p99 {} from sendmsg to ktsnd's queue ({} frames)",
        micros(lead.p50),
        micros(lead.p90.unwrap_or(lead.p50)),
        micros(tail.p50),
        lead.samples
    );
    let meaning = "a program under kernel capture has to send this much, and ktsnd's spin margin, ahead of the transmit time; it \
                   gets no error reports, no true software stamps, and CLOCK_TAI only with CAP_NET_ADMIN";
    match bars::violations(&document).first() {
        None => vec![Finding::ok(NAME, value, meaning)],
        Some(violated) => {
            let remedy = "look at `ktsn bench capture` on a quiet machine";
            vec![Finding::warn(NAME, format!("{value}; {violated}"), meaning, remedy)]
        }
    }
}

fn plan() -> Result<Plan, String> {
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    Ok(Plan {
        experiment: "capture",
        paths: vec![Path::KtsnCapture],
        payloads: vec![bars::PAYLOAD_OCTETS],
        loads: vec![Load::Idle],
        rounds: 1,
        frames: FRAMES,
        period: Nanos::from_millis(1),
        setup: Setup {
            tools: Tools::beside(&own),
            lock: None,
            command: ["ktsn", "doctor", "--capture"].map(str::to_owned).to_vec(),
            functional: true,
        },
    })
}
