// SPDX-License-Identifier: Apache-2.0
//! `ktsnd` in a guest against etf in the same guest (`ktsn_lab::vm::schedule_scene`).
//!
//! In: the directory with `ktsn`, `ktsnd` and `libktsn.so`; rounds, frames of a turn, period and lead in µs, etf's deltas in µs. Out: the results on standard output.

use ktsn_lab::vm::schedule_scene::{Plan, run};
use ktsn_lab::{LabError, Setup, Tools};
use ktsn_time::Nanos;
use std::path::Path;
use std::process::ExitCode;

fn plan(arguments: &[String]) -> Result<Plan, LabError> {
    let usage = || {
        LabError::Usage(
            "usage: guest_sender DIRECTORY [ROUNDS [FRAMES [PERIOD_US [LEAD_US [DELTA_US,…]]]]]".to_owned(),
        )
    };
    let number = |at: usize, default: u32| match arguments.get(at) {
        None => Ok(default),
        Some(text) => text.parse::<u32>().map_err(|_| usage()),
    };
    let deltas = arguments.get(6).map_or("200,300,400,500,700", String::as_str).split(',');
    let deltas = deltas.map(|delta| delta.parse().map(Nanos::from_micros).map_err(|_| usage()));
    let directory = arguments.get(1).ok_or_else(usage)?;
    let tools = Tools::beside(&Path::new(directory).join("ktsn"));
    Ok(Plan {
        rounds: number(2, 3)?,
        frames: number(3, 2_000)?.into(),
        period: Nanos::from_micros(number(4, 1_000)?.into()),
        lead: Nanos::from_micros(number(5, 2_800)?.into()),
        deltas: deltas.collect::<Result<_, _>>()?,
        payload_octets: 64,
        accelerator: "auto".to_owned(),
        setup: Setup { tools, lock: None, command: arguments.to_vec(), functional: true },
    })
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    let done = plan(&arguments).and_then(|plan| run(&plan, &mut |_| {}));
    match done.map(|outcome| serde_json::to_string_pretty(&outcome.document)) {
        Ok(Ok(text)) => {
            println!("{text}");
            ExitCode::SUCCESS
        }
        Ok(Err(error)) => {
            eprintln!("guest_sender: {error}");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("guest_sender: {error}");
            ExitCode::from(error.exit_status())
        }
    }
}
