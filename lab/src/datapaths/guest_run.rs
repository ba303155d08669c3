// SPDX-License-Identifier: Apache-2.0
//! One run with one end in a guest: the guest has a task, the remote host's end has the same one.
//!
//! ```text
//!  one host:   CPU 0: the guest (all of QEMU's threads), a switch's threads, samples      CPU 1: the remote host's end (FIFO)
//!  two hosts:  CPU 0: the guest, samples      CPU 1: a switch; there the remote host's end (FIFO)
//! ```

use super::carried::{Beside, Carried, LINGER, Part, SAMPLE, What};
use super::far::{Question, over_at};
use super::guest::Guest;
use super::host::{Sample, cpu_time_of, threads_of};
use super::remote::{Remote, TRIES_MAX};
use super::task::Task;
use super::windows::INTERVAL;
use crate::error::LabError;
use ktsn_measure::clock::tai_now;
use ktsn_time::Nanos;
use std::path::PathBuf;
use std::time::Instant;

/// From now to the first frame: a guest has to hear of it.
const START_AHEAD: Nanos = Nanos::from_millis(1_000);
/// The longest wait for the guest's answer after the last frame's interval.
const ANSWER_WITHIN: Nanos = Nanos::from_seconds(30);

/// A task that both the guest and the remote host have begun in time, and the remote host's threads in this process.
fn begin(guest: &mut Guest, remote: &mut Remote, what: What) -> Result<(Task, Vec<PathBuf>), LabError> {
    let What { direction, load, frames } = what;
    for _ in 0..TRIES_MAX {
        let first = tai_now().saturating_add(START_AHEAD);
        let task = Task { number: 0, first, direction, load, frames };
        let Some(task) = guest.ask(task, &mut |&task| remote.ask(Question::Task(task)))? else { continue };
        if let Some(threads) = remote.begin_at(&task)? {
            return Ok((task, threads));
        }
        // The guest works on it, for nothing.
        guest.answer(INTERVAL.saturating_mul(i64::try_from(frames).unwrap_or(i64::MAX)))?;
    }
    Err(remote.is_late())
}

/// Carries a run out with a guest.
///
/// # Errors
/// An end's.
pub(super) fn carry_out(guest: &mut Guest, remote: &mut Remote, what: What) -> Result<Carried, LabError> {
    let asked_at = tai_now();
    let (task, mut threads) = begin(guest, remote, what)?;
    let (qemu, mut samples) = (guest.qemu(), Vec::new());
    threads.extend(threads_of(qemu));
    let (guest_cpu, begun) = (cpu_time_of(qemu), Instant::now());
    let last = over_at(&task).saturating_add(ANSWER_WITHIN);
    let mut answered = None;
    while !guest.has_ended() && tai_now() < last {
        samples.push(Sample::now(&threads));
        std::thread::sleep(SAMPLE);
        remote.end.check()?;
        if guest.has_answered() && tai_now() >= over_at(&task) {
            answered.get_or_insert_with(Instant::now);
        }
        if answered.is_some_and(|at: Instant| at.elapsed() >= LINGER) {
            break;
        }
    }
    samples.push(Sample::now(&threads));
    let elapsed = begun.elapsed();
    let cpu = cpu_time_of(qemu).saturating_sub(guest_cpu);
    guest.check()?;
    let (seen, there) = remote.end(&task, asked_at)?;
    let answer = guest.answer(Nanos::ZERO)?;
    let guest_clock = Some((answer.clock.clone(), answer.clock_bound));
    let beside = Beside { samples, there, elapsed };
    Ok(Carried { guest_clock, ..Carried::of(what.direction, Part { answer, cpu }, seen, beside) })
}
