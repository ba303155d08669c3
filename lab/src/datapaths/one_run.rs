// SPDX-License-Identifier: Apache-2.0
//! One run: a direction and a load over one datapath. In: the datapath, the remote host, what is sent. Out: [`Seen`], before anything is
//! computed.
//!
//! ```text
//!  apart:      CPU 0: receiver (FIFO 40), the samples of the host      CPU 1: sender (FIFO 41), a switch if there is no third CPU
//!  together:   CPU 0: sender (FIFO 41), receiver (FIFO 40), samples    CPU 1: a switch
//!  two hosts:  CPU 0: the stand-in (FIFO), samples                     CPU 1: a switch; there the remote host's end (FIFO)
//! ```

use super::carried::{Beside, Carried, LINGER, Part, SAMPLE, Seen, What, placed};
use super::datapath::Datapath;
use super::endpoint::Endpoint;
use super::far::over_at;
use super::guest_run;
use super::host::{Sample, own_thread};
use super::near::Near;
use super::path::Direction;
use super::remote::Remote;
use super::task::Answer;
use super::traffic::{self, Order};
use super::windows::Gates;
use crate::error::LabError;
use ktsn_measure::clock::{RealTime, StampClock, tai_now};
use ktsn_measure::environment::CpuUse;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::Instant;

/// Carries a run out.
///
/// # Errors
/// An end's, or a part of the datapath has ended.
pub(super) fn run(
    datapath: &mut Datapath,
    remote: &mut Remote,
    what: What,
    ends: Option<[RealTime; 2]>,
) -> Result<Seen, LabError> {
    let before = datapath.drops()?;
    let stamps = StampClock::now();
    let begun = CpuUse::now();
    let carried = match &mut datapath.near {
        Near::StandIn(near) => carry_out(near, remote, what, ends, &stamps),
        Near::Guest(guest) => guest_run::carry_out(guest, remote, what),
    };
    let ended = CpuUse::now();
    // A switch that has ended explains why an end failed, or why nothing arrived.
    datapath.check()?;
    let mut carried = carried?;
    let mut drops = datapath.drops()?;
    for (counter, count) in &mut drops {
        *count = count.saturating_sub(before.get(counter).copied().unwrap_or(0));
    }
    drops.append(&mut carried.drops);
    drops.retain(|_, count| *count > 0);
    let stepped = carried.stepped || stamps.stepped(&StampClock::now());
    if !stepped {
        remote.check_clocks(&carried)?;
    }
    Ok(Seen { carried, drops, stepped, machine: (begun, ended) })
}

/// Carries a run out between the stand-in, a thread of this process, and the remote host.
fn carry_out(
    near: &mut Endpoint,
    remote: &mut Remote,
    what: What,
    ends: Option<[RealTime; 2]>,
    stamps: &StampClock,
) -> Result<Carried, LabError> {
    let asked_at = tai_now();
    let (task, mut threads) = remote.begin_run(what)?;
    let gates = Gates::from(task.first)?;
    let What { direction, load, frames } = what;
    let order = Order { direction, load, frames, gates: &gates, first: task.first, stamps };
    let sends = direction == Direction::Egress;
    let place = ends.map(|[sender, receiver]| if sends { sender } else { receiver });
    let (over, begun) = (AtomicBool::new(false), Instant::now());
    let (numbers, heard) = channel();
    let mut samples = Vec::new();
    let (worked, seen, elapsed) = std::thread::scope(|scope| {
        let (order, over) = (&order, &over);
        let work = move || {
            // A run that began too late has sent one.
            while near.poll(&mut |_, _| ())? > 0 {}
            traffic::take_part(order, near, over, sends)
        };
        let worker = scope.spawn(move || placed(place, &numbers, work));
        threads.extend(heard.iter().take(1).map(own_thread));
        let (mut done, mut alive) = (None, Ok(()));
        while alive.is_ok() && done.is_none_or(|at: Instant| at.elapsed() < LINGER) {
            samples.push(Sample::now(&threads));
            std::thread::sleep(SAMPLE);
            // A sender that has ended has sent all, a receiver has failed; the remote host's sender keeps the time.
            if worker.is_finished() || (!sends && tai_now() >= over_at(&task)) {
                done.get_or_insert_with(Instant::now);
            }
            alive = remote.end.check();
        }
        let elapsed = begun.elapsed();
        let has_failed = !sends && worker.is_finished();
        let seen =
            alive.and_then(|()| if has_failed { Ok(None) } else { remote.end(&task, asked_at).map(Some) });
        if !sends && seen.is_ok() {
            // What a late sender has sent is under way.
            std::thread::sleep(LINGER);
        }
        samples.push(Sample::now(&threads));
        over.store(true, Ordering::Release);
        (worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)), seen, elapsed)
    });
    let ((sending, receiving), cpu) = worked?;
    let Some((seen, there)) = seen? else { return Err(LabError::Stopped) };
    let near = Part { answer: Answer { sending, receiving, ..Answer::default() }, cpu };
    Ok(Carried::of(direction, near, seen, Beside { samples, there, elapsed }))
}
