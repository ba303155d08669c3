// SPDX-License-Identifier: Apache-2.0
//! `ktsn listen`: what arrived, and when.
//!
//! In: a port. Out: counts, latency and jitter of what `ktsn talk` sent, records. Exit status 0; 1 fewer datagrams than
//! asked for, or a clock was stepped; 2 wrong usage; 3 the port or a right is not to be had.

use std::net::{Ipv4Addr, SocketAddr};
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use ktsn_time::Nanos;
use ktsn_traffic::clock;
use ktsn_traffic::listener::{self, Ended, ListenError, ListenerOptions, Outcome, Wait};
use ktsn_traffic::records::{ArrivalRecord, save_arrivals};
use ktsn_traffic::stats::{Jitter, Statistics};
use serde::Serialize;

use super::observer::{Failed, Files, Rights, line, span};

const EXAMPLES: &str = "\
Examples:
  ktsn listen 5000 --count 1000
  ktsn listen 192.0.2.7:5000 --timeout 2s --records heard.csv --json -
  ktsn listen [::]:5000 --fifo 40 --cpu 0

Latency is received_at − tx_time: it means something where both hosts' clocks agree.

Exit status: 0 done; 1 fewer datagrams than asked for, or a clock was stepped; 2 wrong usage; 3 not possible here.";

/// How to wait for a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum WaitName {
    /// In a blocking recvmsg.
    Recv,
    /// In epoll_wait, for all ports.
    Epoll,
    /// Not at all: ask again and again; takes a whole CPU.
    Spin,
}

/// Receive what `ktsn talk` sends.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ListenArgs {
    /// Where to listen; without an address on all of IPv4.
    #[arg(value_name = "[ADDR:]PORT", value_parser = local)]
    local: SocketAddr,
    /// How to wait for a datagram.
    #[arg(long, default_value = "recv", value_name = "HOW")]
    wait: WaitName,
    /// How many ports, from PORT on; more than one with --wait epoll or spin.
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    ports: u16,
    /// Datagrams to wait for; 0: until SIGINT or SIGTERM.
    #[arg(long, default_value_t = 0)]
    count: u64,
    /// End after this long without a datagram, such as 500ms or 2s.
    #[arg(long, value_name = "TIME", value_parser = span)]
    timeout: Option<Nanos>,
    #[command(flatten)]
    rights: Rights,
    #[command(flatten)]
    files: Files,
}

#[derive(Serialize)]
struct Figures<'a> {
    #[serde(flatten)]
    summary: &'a listener::Summary,
    #[serde(skip_serializing_if = "Option::is_none")]
    latency_ns: Option<Statistics>,
    #[serde(skip_serializing_if = "Option::is_none")]
    jitter_ns: Option<Statistics>,
}

fn local(text: &str) -> Result<SocketAddr, String> {
    if let Ok(port) = text.parse() {
        return Ok((Ipv4Addr::UNSPECIFIED, port).into());
    }
    text.parse().map_err(|_| "expected PORT, ADDRESS:PORT or [ADDRESS]:PORT".to_owned())
}

/// Listens and shows what was received.
pub(crate) fn run(args: &ListenArgs) -> ExitCode {
    listen(args).unwrap_or_else(|failed| failed.report("listen"))
}

fn listen(args: &ListenArgs) -> Result<ExitCode, Failed> {
    let real_time = args.rights.real_time();
    let wait = match args.wait {
        WaitName::Recv => Wait::Receive,
        WaitName::Epoll => Wait::Epoll,
        WaitName::Spin => Wait::Spin,
    };
    let (local, count) = (args.local, args.count);
    let options = ListenerOptions { local, ports: args.ports, wait, count, timeout: args.timeout, real_time };
    args.rights.warn("listen");
    clock::stop_on_signals();
    let outcome =
        listener::run(&options, |_| args.files.say_ready(), &clock::stop_requested).map_err(|error| {
            match error {
                ListenError::Ports(_) => Failed::Usage(error.to_string()),
                _ => Failed::NotPossible(error.to_string()),
            }
        })?;
    if let Some(path) = &args.files.records {
        save_arrivals(path, &outcome.records)?;
    }
    let latencies =
        outcome.records.iter().filter_map(|record| Some(record.received_at?.since(record.probe.tx_time)));
    let latency_ns = Statistics::of(latencies);
    let jitter_ns = jitter(&outcome.records).statistics();
    let figures = Figures { summary: &outcome.summary, latency_ns, jitter_ns };
    args.files.finish(&figures, &text(&outcome, latency_ns.as_ref(), jitter_ns.as_ref()))?;
    let summary = &outcome.summary;
    let missing = summary.ended == Ended::Timeout && summary.frames_received < args.count;
    Ok(if missing || summary.clock_stepped { ExitCode::from(1) } else { ExitCode::SUCCESS })
}

/// Jitter in order of sequence number; a gap in the numbers is a lost frame.
fn jitter(records: &[ArrivalRecord]) -> Jitter {
    let mut records = records.to_vec();
    records.sort_by_key(|record| record.probe);
    records.dedup_by_key(|record| record.probe);
    let mut frames = Vec::with_capacity(records.len());
    let mut before: Option<u64> = None;
    for record in records {
        if before.is_some_and(|before| before.checked_add(1) != Some(record.probe.sequence)) {
            frames.push((record.probe.tx_time, None));
        }
        before = Some(record.probe.sequence);
        frames.push((record.probe.tx_time, record.received_at));
    }
    Jitter::of(frames)
}

fn text(outcome: &Outcome, latency: Option<&Statistics>, jitter: Option<&Statistics>) -> String {
    let s = &outcome.summary;
    let mut text = format!(
        "received {} datagrams, {} duplicates, {} reordered, CPU {:.1} %\n",
        s.frames_received,
        s.duplicates,
        s.reordered,
        s.cpu_ratio * 100.0
    );
    text.push_str(&line("latency", latency));
    text.push_str(&line("jitter", jitter));
    if s.foreign > 0 {
        text.push_str(&format!("  {} datagrams too short for a probe\n", s.foreign));
    }
    if s.unrecorded > 0 {
        text.push_str(&format!("  {} received without a record: the records are full\n", s.unrecorded));
    }
    if s.clock_stepped {
        text.push_str("  a clock was stepped meanwhile: the records mean nothing\n");
    }
    if s.ended == Ended::Timeout {
        text.push_str("  ended because nothing more arrived\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use ktsn_time::Tai;
    use ktsn_traffic::payload::Probe;

    #[test]
    fn a_place_to_listen_is_a_port_or_an_address_with_one() {
        assert_eq!(local("5000").unwrap(), "0.0.0.0:5000".parse().unwrap());
        assert_eq!(local("[::1]:5000").unwrap(), "[::1]:5000".parse().unwrap());
        for wrong in ["", "70000", "host", "1.2.3.4"] {
            assert!(local(wrong).unwrap_err().contains("ADDRESS:PORT"));
        }
    }

    #[test]
    fn jitter_leaves_out_what_follows_a_gap() {
        let record = |sequence: u64, late: u64| ArrivalRecord {
            probe: Probe { sequence, tx_time: Tai::from_nanos(1_000 * sequence) },
            kernel_at: None,
            received_at: Some(Tai::from_nanos(1_000 * sequence + late)),
        };
        let jitter = jitter(&[record(0, 5), record(1, 8), record(1, 99), record(4, 50), record(5, 40)]);
        assert_eq!(jitter.values, [Nanos::new(3), Nanos::new(-10)]);
        assert_eq!(jitter.left_out_count, 1);
    }
}
