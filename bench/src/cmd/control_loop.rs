// SPDX-License-Identifier: Apache-2.0
//! `ktsn control` and `ktsn answer`: the two ends of a control loop, for `ktsn bench loop`.
//!
//! In: the device's address, or a port. Out: a request per period with its answer, records, figures. Both are ordinary
//! programs with and without `ktsn run`. Exit status 0; 1 a clock was stepped; 2 wrong usage; 3 not possible here.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use ktsn_measure::clock;
use ktsn_measure::control::{self, ControllerOptions};
use ktsn_measure::records::{save_arrivals, save_talk};
use ktsn_measure::stats::Statistics;
use ktsn_measure::talker::Mode;
use ktsn_time::Nanos;
use serde::Serialize;

use super::observer::{Failed, Files, Rights, line, span};

/// Ask a device once per period, and wait for its answer.
#[derive(Args, Clone, Debug)]
#[command(
    hide = true,
    after_help = "Example:\n  ktsn run --receive expect -- ktsn control 192.0.2.7:5000 --mode txtime --count 1000"
)]
pub(crate) struct ControlArgs {
    /// The device, where `ktsn answer` runs.
    #[arg(value_name = "ADDRESS:PORT")]
    device: SocketAddr,
    /// Length of a cycle.
    #[arg(long, value_name = "TIME", default_value = "1ms", value_parser = span)]
    period: Nanos,
    /// Octets of a request.
    #[arg(long, default_value_t = 64, value_name = "OCTETS")]
    payload: usize,
    /// Cycles.
    #[arg(long, default_value_t = 1000)]
    count: u64,
    /// Send each request this far ahead of its cycle, with a transmit time (SO_TXTIME, CLOCK_TAI); without it the
    /// controller sleeps until its cycle begins and sends then.
    #[arg(long, value_name = "TIME", value_parser = span)]
    lead: Option<Nanos>,
    /// SO_PRIORITY of the socket, 0 to 15: it says which traffic class.
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u8).range(0..=15))]
    priority: u8,
    /// Sequence number of the first request.
    #[arg(long, default_value_t = 0, value_name = "N")]
    first_sequence: u64,
    /// Write one row per answer.
    #[arg(long, value_name = "FILE")]
    answers: Option<PathBuf>,
    #[command(flatten)]
    rights: Rights,
    #[command(flatten)]
    files: Files,
}

/// Answer each datagram at once.
#[derive(Args, Clone, Debug)]
#[command(hide = true, after_help = "Example:\n  ktsn answer 192.0.2.7:5000")]
pub(crate) struct AnswerArgs {
    /// Where requests arrive.
    #[arg(value_name = "ADDRESS:PORT")]
    local: SocketAddr,
    /// Requests to answer; 0: until SIGINT or SIGTERM.
    #[arg(long, default_value_t = 0)]
    count: u64,
    #[command(flatten)]
    rights: Rights,
    #[command(flatten)]
    files: Files,
}

#[derive(Serialize)]
struct Figures<'a> {
    #[serde(flatten)]
    summary: &'a control::Summary,
    #[serde(skip_serializing_if = "Option::is_none")]
    round_trip_ns: Option<Statistics>,
}

/// Asks and shows what was answered.
pub(crate) fn control(args: &ControlArgs) -> ExitCode {
    ask(args).unwrap_or_else(|failed| failed.report("control"))
}

/// Answers until SIGINT or SIGTERM.
pub(crate) fn answer(args: &AnswerArgs) -> ExitCode {
    answer_all(args).unwrap_or_else(|failed| failed.report("answer"))
}

fn ask(args: &ControlArgs) -> Result<ExitCode, Failed> {
    let options = ControllerOptions {
        device: args.device,
        mode: args.lead.map_or(Mode::Sleep, |lead| Mode::TxTime { lead }),
        period: args.period,
        payload_octets: args.payload,
        count: args.count,
        first_sequence: args.first_sequence,
        priority: args.priority,
        real_time: args.rights.real_time(),
    };
    args.rights.warn("control");
    clock::stop_on_signals();
    let outcome =
        control::run(&options, || args.files.say_ready(), &clock::stop_requested).map_err(|error| {
            let text = error.to_string();
            if error.is_usage() { Failed::Usage(text) } else { Failed::NotPossible(text) }
        })?;
    if let Some(path) = &args.files.records {
        save_talk(path, &outcome.requests)?;
    }
    if let Some(path) = &args.answers {
        save_arrivals(path, &outcome.answers)?;
    }
    let round_trips =
        outcome.answers.iter().filter_map(|answer| Some(answer.received_at?.since(answer.probe.tx_time)));
    let round_trip_ns = Statistics::of(round_trips);
    let summary = &outcome.summary;
    let text = format!(
        "{} cycles, {} answers, CPU {:.1} %\n{}",
        summary.cycles,
        summary.answers,
        summary.cpu_ratio * 100.0,
        line("round trip", round_trip_ns.as_ref())
    );
    args.files.finish(&Figures { summary, round_trip_ns }, &text)?;
    Ok(if summary.clock_stepped { ExitCode::from(1) } else { ExitCode::SUCCESS })
}

fn answer_all(args: &AnswerArgs) -> Result<ExitCode, Failed> {
    args.rights.warn("answer");
    clock::stop_on_signals();
    let real_time = args.rights.real_time();
    let ready = |_| args.files.say_ready();
    let outcome = control::answer(args.local, args.count, real_time, ready, &clock::stop_requested)
        .map_err(|error| Failed::NotPossible(format!("port {}: {error}", args.local)))?;
    if let Some(path) = &args.files.records {
        save_arrivals(path, &outcome.requests)?;
    }
    let summary = &outcome.summary;
    let cpu = summary.cpu_ratio * 100.0;
    args.files.finish(summary, &format!("answered {} requests, CPU {cpu:.1} %\n", summary.answered))?;
    Ok(ExitCode::SUCCESS)
}
