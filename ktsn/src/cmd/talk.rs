// SPDX-License-Identifier: Apache-2.0
//! `ktsn talk`: one datagram per period, at its transmit time.
//!
//! In: a destination and a options. Out: datagrams that `ktsn listen` understands, records, figures. It is an ordinary
//! program with and without `ktsn run`. Exit status 0; 1 a send failed or a clock was stepped; 2 wrong usage; 3 a right or
//! the network is missing.

use std::net::{SocketAddr, ToSocketAddrs as _};
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use ktsn_time::{Nanos, Tai};
use ktsn_traffic::clock::{self, ScheduleClock};
use ktsn_traffic::records::save_talk;
use ktsn_traffic::stats::Statistics;
use ktsn_traffic::talker::{self, Gaps, Mode, Outcome, TalkError, TalkerOptions};
use serde::Serialize;

use super::observer::{Failed, Files, Rights, line, span};

const EXAMPLES: &str = "\
Examples:
  ktsn talk 192.0.2.7:5000 --count 1000                         the kernel (if it can) keeps time
  ktsn run --with-daemon eth0 -- ktsn talk 192.0.2.7:5000       ktsnd keeps it
  ktsn talk 192.0.2.7:5000 --mode spin --fifo 50 --cpu 1        this program keeps it itself
  ktsn talk 192.0.2.7:5000 --clock monotonic --records sent.csv without any right

A payload begins with a sequence number and the transmit time, 16 octets: smaller payloads are refused.

Exit status: 0 done; 1 a send failed or a clock was stepped; 2 wrong usage; 3 not possible here.";

/// How the transmit time is met.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Keeper {
    /// SO_TXTIME: sent `--lead` ahead; the kernel or ktsnd keeps the time.
    Txtime,
    /// Sleep until the instant, then send.
    Sleep,
    /// Sleep until shortly before, spin, then send.
    Spin,
}

/// The clock that periods are counted on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ClockName {
    /// CLOCK_TAI, etf's clock; the kernel gives it to SO_TXTIME only with a right.
    Tai,
    /// CLOCK_MONOTONIC, fq's clock.
    Monotonic,
}

/// Send one datagram per period, each at its transmit time.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct TalkArgs {
    /// Where to: an address or name, and a port.
    #[arg(value_name = "DEST:PORT")]
    destination: String,
    /// Distance of two transmit times, such as 250us, 1ms or 2s.
    #[arg(long, value_name = "TIME", default_value = "1ms", value_parser = span)]
    period: Nanos,
    /// Let the distances be random, --period on average: nothing can be predicted then.
    #[arg(long)]
    random_gaps: bool,
    /// Octets of payload, 16 or more.
    #[arg(long, default_value_t = 64, value_name = "OCTETS")]
    payload: usize,
    /// Datagrams to send; 0: until SIGINT or SIGTERM.
    #[arg(long, default_value_t = 0)]
    count: u64,
    /// Mode txtime: how far ahead of its transmit time a datagram is sent.
    #[arg(long, value_name = "TIME", default_value = "300us", value_parser = span)]
    lead: Nanos,
    /// Mode txtime: ask for a time that is so much later. For etf, which sends its delta before the asked one.
    #[arg(long, value_name = "TIME", default_value = "0ns", value_parser = span, hide = true)]
    ask_later: Nanos,
    /// The clock that transmit times are counted on.
    #[arg(long, default_value = "tai")]
    clock: ClockName,
    /// SO_PRIORITY of the socket, 0 to 15: it says which traffic class.
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u8).range(0..=15))]
    priority: u8,
    /// How the transmit time is met.
    #[arg(long, default_value = "txtime")]
    mode: Keeper,
    /// Mode spin: how long before the transmit time to begin.
    #[arg(long, value_name = "TIME", default_value = "60us", value_parser = span)]
    spin_margin: Nanos,
    /// First transmit time, nanoseconds of CLOCK_TAI [default: the next whole period at least 20 ms ahead].
    #[arg(long, value_name = "NANOS")]
    start_at: Option<u64>,
    /// Sequence number of the first datagram.
    #[arg(long, default_value_t = 0, value_name = "N")]
    first_sequence: u64,
    #[command(flatten)]
    rights: Rights,
    #[command(flatten)]
    files: Files,
}

#[derive(Serialize)]
struct Figures<'a> {
    #[serde(flatten)]
    summary: &'a talker::Summary,
    /// How late the call was made, where the talker keeps the time itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    transmit_error_ns: Option<Statistics>,
}

/// Talks and shows what was sent.
pub(crate) fn run(args: &TalkArgs) -> ExitCode {
    talk(args).unwrap_or_else(|failed| failed.report("talk"))
}

fn destination(text: &str) -> Result<SocketAddr, Failed> {
    let expected = "expected ADDRESS:PORT, [ADDRESS]:PORT or NAME:PORT";
    let wrong = |why: &str| Failed::Usage(format!("destination {text:?}: {why}; {expected}"));
    let mut found = text.to_socket_addrs().map_err(|error| wrong(&error.to_string()))?;
    found.next().ok_or_else(|| wrong("no address of that name"))
}

fn options(args: &TalkArgs) -> Result<TalkerOptions, Failed> {
    Ok(TalkerOptions {
        destination: destination(&args.destination)?,
        mode: match args.mode {
            Keeper::Txtime => Mode::TxTime { lead: args.lead },
            Keeper::Sleep => Mode::Sleep,
            Keeper::Spin => Mode::Spin { margin: args.spin_margin },
        },
        ask_later: args.ask_later,
        clock: match args.clock {
            ClockName::Tai => ScheduleClock::Tai,
            ClockName::Monotonic => ScheduleClock::Monotonic,
        },
        period: args.period,
        gaps: if args.random_gaps { Gaps::Random } else { Gaps::Equal },
        payload_octets: args.payload,
        count: args.count,
        first_sequence: args.first_sequence,
        start_at: args.start_at.map(Tai::from_nanos),
        priority: Some(args.priority),
        real_time: args.rights.real_time(),
    })
}

fn talk(args: &TalkArgs) -> Result<ExitCode, Failed> {
    let options = options(args)?;
    args.rights.warn("talk");
    clock::stop_on_signals();
    let outcome = talker::run(&options, || args.files.say_ready(), &clock::stop_requested)
        .map_err(|error| refused(&error))?;
    if let Some(path) = &args.files.records {
        save_talk(path, &outcome.records)?;
    }
    let own = args.mode != Keeper::Txtime;
    let errors = outcome.records.iter().map(|record| record.called_at.since(record.probe.tx_time));
    let transmit_error_ns = if own { Statistics::of(errors) } else { None };
    let figures = Figures { summary: &outcome.summary, transmit_error_ns };
    args.files.finish(&figures, &text(&outcome, transmit_error_ns.as_ref()))?;
    let summary = &outcome.summary;
    let whole = summary.frames_sent == summary.frames_intended && !summary.clock_stepped;
    Ok(if whole { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

fn refused(error: &TalkError) -> Failed {
    let text = error.to_string();
    if error.is_usage() { Failed::Usage(text) } else { Failed::NotPossible(text) }
}

fn text(outcome: &Outcome, transmit_error: Option<&Statistics>) -> String {
    let s = &outcome.summary;
    let mut text = format!(
        "sent {} of {} datagrams, CPU {:.1} %\n",
        s.frames_sent,
        s.frames_intended,
        s.cpu_ratio * 100.0
    );
    text.push_str(&line("call late by", transmit_error));
    for (error, count) in &s.errors {
        text.push_str(&format!("  {count} × {error}\n"));
    }
    if s.unrecorded > 0 {
        text.push_str(&format!("  {} sent without a record: the records are full\n", s.unrecorded));
    }
    if s.clock_stepped {
        text.push_str("  a clock was stepped meanwhile: the records mean nothing\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        args: TalkArgs,
    }

    fn args(words: &[&str]) -> Result<TalkArgs, clap::Error> {
        Line::try_parse_from(["talk"].iter().chain(words)).map(|line| line.args)
    }

    #[test]
    fn the_defaults_are_the_documented_ones() {
        let options = options(&args(&["127.0.0.1:5000"]).unwrap()).unwrap();
        assert_eq!(options.mode, Mode::TxTime { lead: Nanos::from_micros(300) });
        assert_eq!((options.period, options.payload_octets), (Nanos::from_millis(1), 64));
        assert_eq!((options.clock, options.priority, options.count), (ScheduleClock::Tai, Some(6), 0));
        assert!(
            options.real_time.fifo.is_none()
                && !options.real_time.exact_timers
                && !options.real_time.lock_memory
        );
    }

    #[test]
    fn wrong_values_are_refused_with_field_value_and_expectation() {
        for (words, expected) in [
            (&["127.0.0.1:5000", "--period", "1"][..], ["--period", "1ms"]),
            (&["127.0.0.1:5000", "--fifo", "100"], ["--fifo", "1..=99"]),
            (&["127.0.0.1:5000", "--mode", "fast"], ["fast", "spin"]),
            (&["127.0.0.1:5000", "--priority", "16"], ["--priority", "0..=15"]),
        ] {
            let text = args(words).unwrap_err().to_string();
            assert!(expected.iter().all(|word| text.contains(word)), "{text}");
        }
        let Err(Failed::Usage(text)) = options(&args(&["127.0.0.1"]).unwrap()) else {
            panic!("a port is needed")
        };
        assert!(text.contains("127.0.0.1") && text.contains("ADDRESS:PORT"), "{text}");
    }

    #[test]
    fn a_small_payload_is_wrong_usage() {
        let failed =
            talk(&args(&["127.0.0.1:5000", "--payload", "15", "--count", "1"]).unwrap()).unwrap_err();
        assert!(
            matches!(failed, Failed::Usage(ref text) if text.contains("15") && text.contains("16")),
            "{failed:?}"
        );
    }
}
