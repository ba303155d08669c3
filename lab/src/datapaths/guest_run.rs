// SPDX-License-Identifier: Apache-2.0
//! One run with one end in a guest: the guest has a task, the remote host's end is a thread of this process.
//!
//! ```text
//!  CPU 0: the guest (all of QEMU's threads), a switch's threads, the samples of the host      CPU 1: the remote host's end (FIFO)
//! ```

use super::carried::{Carried, LINGER, SAMPLE, What, placed};
use super::endpoint::Endpoint;
use super::guest::Guest;
use super::host::{Sample, cpu_time_of, own_thread, threads_of};
use super::path::Direction;
use super::task::Task;
use super::traffic::{self, Order};
use super::windows::{Gates, INTERVAL};
use crate::error::LabError;
use ktsn_measure::clock::{RealTime, StampClock, tai_now};
use ktsn_time::Nanos;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

/// From now to the first frame: a guest has to hear of it.
pub(super) const START_AHEAD: Nanos = Nanos::from_millis(1_000);
/// A task that was begun later than this before its first frame is repeated.
pub(super) const AHEAD_MIN: Nanos = Nanos::from_millis(20);
/// How often a task is repeated that was begun too late.
pub(super) const TRIES_MAX: u32 = 5;
/// The longest wait for the guest's answer after the remote host's end has ended.
pub(super) const ANSWER_WITHIN: Duration = Duration::from_secs(30);

/// A task that the guest has begun in time.
fn begin(guest: &mut Guest, remote: &mut Endpoint, what: What) -> Result<Task, LabError> {
    let What { direction, load, frames } = what;
    for _ in 0..TRIES_MAX {
        let first = tai_now().saturating_add(START_AHEAD);
        let task = Task { number: 0, first, direction, load, frames };
        let mut send =
            |task: &Task| remote.send(&task.frame(), false).map(drop).map_err(LabError::system("send"));
        let Some(task) = guest.ask(task, &mut send)? else { continue };
        if task.first.since(tai_now()) >= AHEAD_MIN {
            return Ok(task);
        }
        // It works on it, for nothing.
        guest.answer(traffic_time(frames))?;
    }
    Err(LabError::Process {
        name: "the guest".to_owned(),
        problem: format!("began {TRIES_MAX} tasks too late"),
        stderr: String::new(),
    })
}

pub(super) fn traffic_time(frames: u64) -> Nanos {
    INTERVAL.saturating_mul(i64::try_from(frames).unwrap_or(i64::MAX))
}

/// Carries a run out with a guest.
///
/// # Errors
/// An end's.
pub(super) fn carry_out(
    guest: &mut Guest,
    remote: &mut Endpoint,
    what: What,
    ends: Option<[RealTime; 2]>,
    stamps: &StampClock,
) -> Result<Carried, LabError> {
    let task = begin(guest, remote, what)?;
    let gates = Gates::from(task.first)?;
    let What { direction, load, frames } = what;
    let order = Order { direction, load, frames, gates: &gates, first: task.first, stamps };
    let place = ends.map(|[sender, receiver]| RealTime {
        // Its CPU is the sender's in both directions: the guest has the other one.
        cpu: sender.cpu,
        fifo: if direction == Direction::Egress { receiver.fifo } else { sender.fifo },
        ..sender
    });
    let over = AtomicBool::new(false);
    let (numbers, heard) = channel();
    let (qemu, mut samples) = (guest.qemu(), Vec::new());
    let (guest_cpu, begun) = (cpu_time_of(qemu), Instant::now());
    let local = std::thread::scope(|scope| {
        let (order, over) = (&order, &over);
        let sends = direction == Direction::Ingress;
        let work = move || traffic::take_part(order, remote, over, sends);
        let local = scope.spawn(move || placed(place, &numbers, work));
        let mut threads: Vec<_> = heard.iter().take(1).map(own_thread).collect();
        threads.extend(threads_of(qemu));
        let (mut answered, mut waits_since) = (None, None);
        loop {
            samples.push(Sample::now(&threads));
            std::thread::sleep(SAMPLE);
            if guest.has_answered() {
                answered.get_or_insert_with(Instant::now);
            }
            let lingers = answered.is_some_and(|at: Instant| at.elapsed() >= LINGER);
            let last = traffic_time(frames).saturating_add(START_AHEAD);
            if local.is_finished() || begun.elapsed().as_nanos() > u128::from(last.get().unsigned_abs()) {
                waits_since.get_or_insert_with(Instant::now);
            }
            let too_long = waits_since.is_some_and(|at: Instant| at.elapsed() > ANSWER_WITHIN);
            let failed = guest.has_ended() || (local.is_finished() && direction == Direction::Egress);
            if failed || too_long || (lingers && (local.is_finished() || direction == Direction::Egress)) {
                break;
            }
        }
        over.store(true, Ordering::Release);
        local.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    });
    let elapsed = begun.elapsed();
    let guest_cpu = cpu_time_of(qemu).saturating_sub(guest_cpu);
    guest.check()?;
    let ((sending, receiving), local_cpu) = local?;
    let answer = guest.answer(Nanos::ZERO)?;
    let (sending, receiving, sender_cpu, receiver_cpu) = match direction {
        Direction::Egress => (answer.sending, receiving, guest_cpu, local_cpu),
        Direction::Ingress => (sending, answer.receiving, local_cpu, guest_cpu),
    };
    Ok(Carried {
        sending,
        receiving,
        sender_cpu,
        receiver_cpu,
        samples,
        there: None,
        elapsed,
        drops: answer.drops,
        stepped: answer.stepped,
        guest_clock: Some((answer.clock, answer.clock_bound)),
    })
}
