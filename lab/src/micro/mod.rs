// SPDX-License-Identifier: Apache-2.0
//! Micro-benchmarks: what a call, a doorbell and the daemon cost.
//!
//! In: the programs, seconds per figure. Out: a document with `micro` entries and the bars beside them. Everything runs
//! on the testbed of the experiment `container`, under the measuring lock, one thing after the other.

mod calls;
mod cost;
mod plan;
mod receiver;
pub mod sender;
#[allow(unsafe_code)]
mod sys;

pub use plan::Plan;

use crate::carry_out::{Experiment, Measured, Session, Turn, carry_out};
use crate::error::LabError;
use crate::experiment::{Outcome, Watch};
use crate::testbed::Testbed;
use crate::worker_example::WorkerExample;
use cost::Costs;
use ktsn_measure::results::{Check, Document, Micro};

/// The checks of the shipped worker, which the daemon's own example measures.
const RATE: &str = "worker.memory_port.64 at least 1.5 M frames/s";
const BURST: &str = "worker.memory_port.burst32 at most 12 us";
/// A check of the worker: its name, its figure, whether the figure holds it, the figure in words.
type WorkerBar = (&'static str, &'static str, fn(f64) -> bool, fn(f64) -> String);
const WORKER_BARS: [WorkerBar; 2] = [
    (RATE, "worker.memory_port.64", |rate| rate >= 1.5e6, |rate| format!("{:.2} M frames/s", rate / 1e6)),
    (BURST, "worker.memory_port.burst32", |span| span <= 12e3, |span| format!("{:.1} us", span / 1e3)),
];

/// Greatest figures allowed; without a divisor the figure itself.
const BARS: [(&str, Option<&str>, f64); 19] = [
    ("sendmsg.intercepted.64", None, 300.0),
    ("sendmsg.intercepted.64", Some("sendmsg.kernel.64"), 1.0 / 3.0),
    ("sendmmsg64.intercepted.64", None, 150.0),
    ("sendmsg.intercepted.loop.64", None, 1_500.0),
    ("sendmsg.intercepted.loop.64", Some("sendmsg.kernel.loop.64"), 0.15),
    ("doorbell.per_frame.loop", None, 0.02),
    ("doorbell.per_frame.1khz", None, 0.02),
    ("doorbell.per_frame.now_plus_lead", None, 0.05),
    ("doorbell.per_frame.10_streams", None, 0.05),
    ("sendmsg.untimed.hooked.64", Some("sendmsg.untimed.kernel.64"), 1.05),
    ("recv.off.added", None, 10.0),
    ("poll.off.added", None, 10.0),
    ("recv.expect.added", None, 60.0),
    ("poll.expect.added", None, 60.0),
    ("ktsnd.cpu.nothing_attached", None, 0.001),
    ("ktsnd.cpu.armed_idle", None, 0.01),
    ("ktsnd.cpu.1_stream_1khz", None, 0.08),
    ("ktsnd.cpu.10_streams_1khz", None, 0.45),
    ("ktsnd.rss.1_client", None, 32.0 * 1024.0 * 1024.0),
];

/// Measures. `watch` hears what is measured next.
///
/// # Errors
/// [`LabError`]; everything that was set up is removed then, too.
pub fn run(plan: &Plan, watch: &mut Watch<'_>) -> Result<Outcome, LabError> {
    plan.setup.tools.check_daemon()?;
    let measure = |session: &mut Session<'_>| {
        let directory = crate::carry_out::directory()?;
        let directory = directory.path();
        session.document.parameters.insert("seconds".to_owned(), plan.seconds.into());
        let reading = "one is contained in every sendmsg sample";
        session.document.parameters.insert("clock_reading".to_owned(), reading.into());
        let testbed = Testbed::new()?;
        session.measure(&mut Figures(Costs { plan, testbed: &testbed, directory }), 1)
    };
    carry_out(&plan.setup.terms("micro"), watch, measure, |document, _| compare(document))
}

/// The figures by what yields them.
struct Figures<'a>(Costs<'a>);

/// A figure's name, and how it is measured.
type Row<'a> = (&'static str, fn(&Costs<'a>) -> Result<Vec<Micro>, LabError>);

impl<'a> Experiment for Figures<'a> {
    type Row = Row<'a>;
    type Extra = ();

    fn rows(&self) -> Vec<Row<'a>> {
        vec![
            ("the kernel's sendmsg", Costs::kernel),
            ("sockets that are not ours", Costs::not_ours),
            ("calls that find a datagram", Costs::receives),
            ("the intercepted sendmsg", Costs::intercepted),
            ("sends in a loop of 1 kHz", Costs::loops),
            ("CPU time of a daemon with nothing attached", Costs::nothing_attached),
            ("CPU time of an armed, idle daemon", Costs::armed_idle),
            ("CPU time of a daemon with one stream", Costs::one_stream),
            ("CPU time of a daemon with ten streams", Costs::ten_streams),
            ("CPU time of a daemon with ten streams beside it", Costs::ten_streams_beside),
            (RATE, Costs::throughput),
            (BURST, Costs::burst),
        ]
    }

    fn name(&self, (name, _): &Row<'a>) -> String {
        (*name).to_owned()
    }

    fn missing(&self, (name, _): &Row<'a>) -> Option<String> {
        let of_worker = [RATE, BURST].contains(name);
        WorkerExample::find(&self.0.plan.setup.tools).err().filter(|_| of_worker)
    }

    fn run(&mut self, (_, figure): &Row<'a>, _: &mut Turn<'_>) -> Result<Measured, LabError> {
        figure(&self.0).map(Measured::micro)
    }
}

fn compare(document: &mut Document) {
    for (name, to, bar) in BARS {
        document.compare_micro(name, to, bar);
    }
    for (check, name, holds, shown) in WORKER_BARS {
        if let Some(p50) = document.micro_p50(name) {
            document.checks.push(Check::unless(check, (!holds(p50)).then(|| shown(p50))));
        }
    }
}

#[cfg(test)]
mod tests;
