// SPDX-License-Identifier: Apache-2.0
//! Micro-benchmarks: what a call, a doorbell and the daemon cost.
//!
//! In: the programs, seconds per figure. Out: a document with `micro` entries and the bars beside them. Everything runs
//! on the testbed of the experiment `container`, under the measuring lock, one thing after the other.

mod cost;
mod plan;
mod receiver;
pub mod sender;
#[allow(unsafe_code)]
mod sys;

pub use plan::Plan;

use crate::error::LabError;
use crate::experiment::{Event, Outcome, Watch};
use crate::testbed::Testbed;
use crate::worker_example::WorkerExample;
use cost::Costs;
use ktsn_measure::results::{Check, Document, Micro};

/// Frames per second that the worker must reach.
const THROUGHPUT_MIN: f64 = 1.5e6;
/// Nanoseconds in which it must hand over 32 frames for one instant.
const BURST_MAX_NS: f64 = 12e3;

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
    let (_lock, directory) = plan.setup.begin(watch)?;
    let mut document = Document::new("micro", plan.setup.command.clone());
    document.parameters.insert("seconds".to_owned(), plan.seconds.into());
    document.parameters.insert("clock_reading".to_owned(), "one is contained in every sendmsg sample".into());
    plan.setup.wait_until_quiet(watch)?;
    let testbed = Testbed::new()?;
    let costs = Costs { plan, testbed: &testbed, directory: directory.path() };
    watch(Event::Step("the kernel's sendmsg"));
    document.micro.extend(costs.kernel()?);
    watch(Event::Step("sockets that are not ours"));
    document.micro.extend(costs.not_ours()?);
    watch(Event::Step("calls that find a datagram"));
    document.micro.extend(costs.receives()?);
    watch(Event::Step("the intercepted sendmsg"));
    document.micro.extend(costs.intercepted()?);
    watch(Event::Step("sends in a loop of 1 kHz"));
    document.micro.extend(costs.loops()?);
    for measured in [
        Costs::nothing_attached,
        Costs::armed_idle,
        Costs::one_stream,
        Costs::ten_streams,
        Costs::ten_streams_beside,
    ] {
        watch(Event::Step("the daemon's CPU time"));
        document.micro.extend(measured(&costs)?);
    }
    watch(Event::Step("the worker's throughput"));
    throughput(plan, &mut document)?;
    compare(&mut document);
    Ok(document.into())
}

fn compare(document: &mut Document) {
    for (name, to, bar) in BARS {
        document.compare_micro(name, to, bar);
    }
}

/// Measures the shipped worker by the daemon's own example, where that is built.
fn throughput(plan: &Plan, document: &mut Document) -> Result<(), LabError> {
    let (rate, burst) =
        ("worker.memory_port.64 at least 1.5 M frames/s", "worker.memory_port.burst32 at most 12 us");
    let example = match WorkerExample::find(&plan.setup.tools) {
        Ok(example) => example,
        Err(reason) => {
            document.checks.extend([rate, burst].map(|name| Check::skipped(name, reason.clone())));
            return Ok(());
        }
    };
    let seconds = plan.seconds.ceil().clamp(1.0, 600.0) as u32;
    let read = |printed: &[u8]| {
        serde_json::from_slice::<Micro>(printed).map_err(|error| format!("its output: {error}"))
    };
    let micro = example.run(seconds, &[], read)?;
    let shown = format!("{:.2} M frames/s", micro.p50 / 1e6);
    document.checks.push(Check::unless(rate, (micro.p50 < THROUGHPUT_MIN).then_some(shown)));
    document.micro.push(micro);
    let micro = example.run(seconds, &["--burst"], read)?;
    let shown = format!("{:.1} us", micro.p50 / 1e3);
    document.checks.push(Check::unless(burst, (micro.p50 > BURST_MAX_NS).then_some(shown)));
    document.micro.push(micro);
    Ok(())
}

#[cfg(test)]
mod tests;
