// SPDX-License-Identifier: Apache-2.0
//! What a frame costs when the overlay has many peers.
//!
//! In: how often, and where the daemon's example `worker_throughput` lies: it runs the shipped worker, which no other crate may
//! link. Out: nanoseconds by frame of one worker with 10 peers in its tables and of one with 1,000, and
//! their ratio beside the bar. Both are in one process and take turns, a batch of 2,048 frames each; every frame goes to another
//! peer, through all of them. It is the worker's whole way: taking over, resolving, queueing, choosing, writing the frame.

use crate::carry_out::{Measured, Session};
use crate::container;
use crate::error::LabError;
use crate::worker_example::WorkerExample;
use ktsn_measure::results::{Check, Document, Micro};

/// The numbers of peers that are compared.
const COUNTS: [u32; 2] = [10, 1000];
/// Greatest cost with many, as a part of that with few.
const COST_MAX: f64 = 1.1;
/// Seconds of one round.
const SECONDS: u32 = 4;

fn name(peers: u32) -> String {
    format!("worker.frame.peers{peers}")
}

/// Measures, where the example is built.
pub(super) fn measure(plan: &container::Plan, session: &mut Session<'_>) -> Result<(), LabError> {
    match WorkerExample::find(&plan.setup.tools) {
        Ok(example) => {
            let seconds = if plan.setup.functional { 1 } else { SECONDS };
            let peers = COUNTS.map(|count| count.to_string()).join(",");
            session.repeat(
                &format!("a frame's cost with {} and {} peers", COUNTS[0], COUNTS[1]),
                plan.rounds,
                |_| Ok(Measured::default().with(example.run(seconds, &["--peers", &peers], read)?)),
                // The document has the medians of the rounds.
                |rounds, document| {
                    let text = describe(&rounds, seconds);
                    document.parameters.insert("peers".to_owned(), text.into());
                    document.micro.extend(medians(&rounds));
                },
            )
        }
        Err(reason) => {
            let name = format!("cost of a frame with {} peers, of that with {}", COUNTS[1], COUNTS[0]);
            session.document.checks.push(Check::skipped(name, reason));
            Ok(())
        }
    }
}

/// The entries for all the numbers of peers, in their order.
fn read(output: &[u8]) -> Result<Vec<Micro>, String> {
    let lines = output.split(|octet| *octet == b'\n').filter(|line| !line.is_empty());
    let found: Result<Vec<Micro>, _> = lines.map(serde_json::from_slice).collect();
    let found = found.map_err(|error| format!("its output: {error}"))?;
    let names: Vec<&str> = found.iter().map(|micro| micro.name.as_str()).collect();
    if names == COUNTS.map(name) { Ok(found) } else { Err(format!("its output is of {names:?}")) }
}

/// The median of the rounds of each entry.
fn medians(rounds: &[Vec<Micro>]) -> Vec<Micro> {
    let Some(first) = rounds.first() else { return Vec::new() };
    let one = |(at, of): (usize, &Micro)| {
        let mut same: Vec<&Micro> = rounds.iter().filter_map(|round| round.get(at)).collect();
        same.sort_by(|a, b| a.p50.total_cmp(&b.p50));
        let samples = same.iter().map(|micro| micro.samples).sum();
        let middle = same.get(same.len() / 2).copied().unwrap_or(of);
        Micro { samples, ..middle.clone() }
    };
    first.iter().enumerate().map(one).collect()
}

fn describe(rounds: &[Vec<Micro>], seconds: u32) -> String {
    let ratio = |round: &Vec<Micro>| match round.as_slice() {
        [few, many] => format!("{:.3}", many.p50 / few.p50),
        _ => "–".to_owned(),
    };
    let ratios: Vec<String> = rounds.iter().map(ratio).collect();
    format!(
        "worker.frame.peersN: nanoseconds by frame of 64 octets through the whole worker into a port of memory, with N peers of \
         a routed overlay, one pod behind each, all of them in turn; both workers in one process, batches of 2,048 frames in \
         turn, {seconds} s a round. Ratios of the rounds: {}",
        ratios.join(", ")
    )
}

/// Holds the figures against each other.
pub(super) fn compare(document: &mut Document) {
    let [few, many] = COUNTS.map(name);
    if document.micro_p50(&few).is_some() && document.micro_p50(&many).is_some() {
        document.compare_micro(&many, Some(&few), COST_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(few: f64, many: f64) -> Vec<Micro> {
        let line = |peers: u32, p50: f64| {
            format!(
                r#"{{"name":"worker.frame.peers{peers}","unit":"ns","p50":{p50:.1},"p90":900.0,"samples":5}}"#
            )
        };
        read(format!("{}\n{}\n", line(10, few), line(1000, many)).as_bytes()).unwrap()
    }

    #[test]
    fn the_medians_of_the_rounds_are_held_against_each_other() {
        for (third, ratio, holds) in [(430.0, 1.075, true), (900.0, 1.125, false)] {
            let rounds = [round(400.0, 450.0), round(410.0, 420.0), round(390.0, third)];
            let mut document = Document::new("overlay", Vec::new());
            compare(&mut document);
            assert!(document.comparisons.is_empty());
            document.micro = medians(&rounds);
            assert_eq!(document.micro.iter().map(|micro| micro.samples).collect::<Vec<_>>(), [15, 15]);
            compare(&mut document);
            let found = &document.comparisons[0];
            assert_eq!((found.ratio, found.bar, found.holds), (Some(ratio), Some(1.1), Some(holds)));
            assert!(describe(&rounds, 4).contains("1.125, 1.024, "), "{}", describe(&rounds, 4));
        }
    }

    #[test]
    fn another_programs_output_is_refused() {
        assert!(read(b"{}\n").is_err());
        let one = r#"{"name":"worker.memory_port.64","unit":"frames/s","p50":1,"samples":5}"#;
        assert!(read(one.as_bytes()).unwrap_err().contains("memory_port"));
    }
}
