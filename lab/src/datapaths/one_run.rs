// SPDX-License-Identifier: Apache-2.0
//! One run: a direction and a load over one datapath. In: the datapath, what is sent. Out: [`Seen`], before anything is computed.
//!
//! ```text
//!  apart:     CPU 0: receiver (FIFO 40), the samples of the host      CPU 1: sender (FIFO 41), a switch if there is no third CPU
//!  together:  CPU 0: sender (FIFO 41), receiver (FIFO 40), samples    CPU 1: a switch
//! ```

use super::apart::{self, There};
use super::carried::{Carried, LINGER, SAMPLE, Seen, What, placed};
use super::datapath::Datapath;
use super::endpoint::Endpoint;
use super::guest_run;
use super::host::{Sample, own_thread};
use super::near::Near;
use super::path::Direction;
use super::traffic::{self, Order};
use super::windows::Gates;
use crate::error::LabError;
use ktsn_measure::clock::{RealTime, StampClock, tai_now};
use ktsn_measure::environment::CpuUse;
use ktsn_time::Nanos;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::Instant;

/// From now to the first frame.
const START_AHEAD: Nanos = Nanos::from_millis(30);
/// Carries a run out.
///
/// # Errors
/// An end's, or a part of the datapath has ended.
pub(super) fn run(
    datapath: &mut Datapath,
    there: Option<&mut There>,
    what: What,
    ends: Option<[RealTime; 2]>,
) -> Result<Seen, LabError> {
    let before = datapath.drops()?;
    let stamps = StampClock::now();
    // What the end dropped before was of another run.
    datapath.receiver_drops(what.direction)?;
    let begun = CpuUse::now();
    let Datapath { near, remote, .. } = datapath;
    let mut there = there;
    let carried = match (near, remote, there.as_deref_mut()) {
        (Near::StandIn(near), Some(remote), _) => carry_out(near, remote, what, ends, &stamps),
        (Near::Guest(guest), Some(remote), _) => guest_run::carry_out(guest, remote, what, ends, &stamps),
        (Near::StandIn(near), None, Some(there)) => apart::carry_out(near, there, what, ends, &stamps),
        (Near::Guest(guest), None, Some(there)) => apart::with_guest(guest, there, what),
        (_, None, None) => Err(LabError::Usage("the datapath has no end at the remote host".to_owned())),
    };
    let ended = CpuUse::now();
    // A switch that has ended explains why an end failed, or why nothing arrived.
    datapath.check()?;
    let mut carried = carried?;
    let mut drops = datapath.drops()?;
    for (counter, count) in &mut drops {
        *count = count.saturating_sub(before.get(counter).copied().unwrap_or(0));
    }
    drops.insert("receiver_socket".to_owned(), datapath.receiver_drops(what.direction)?);
    drops.append(&mut carried.drops);
    drops.retain(|_, count| *count > 0);
    let stepped = carried.stepped || stamps.stepped(&StampClock::now());
    if let (Some(there), false) = (there, stepped) {
        there.check_clocks(&carried)?;
    }
    Ok(Seen { carried, drops, stepped, machine: (begun, ended) })
}

/// Carries out a run; both ends are threads of this process.
fn carry_out(
    near: &mut Endpoint,
    remote: &mut Endpoint,
    what: What,
    ends: Option<[RealTime; 2]>,
    stamps: &StampClock,
) -> Result<Carried, LabError> {
    let What { direction, load, frames } = what;
    let (sender_end, receiver_end) = match direction {
        Direction::Egress => (near, remote),
        Direction::Ingress => (remote, near),
    };
    let first = tai_now().saturating_add(START_AHEAD);
    let gates = Gates::from(first)?;
    let order = Order { direction, load, frames, gates: &gates, first, stamps };
    let begun = Instant::now();
    let over = AtomicBool::new(false);
    let (numbers, heard) = channel();
    let [of_sender, of_receiver] = ends.map_or([None; 2], |ends| ends.map(Some));
    let mut samples = Vec::new();
    let (sent, received) = std::thread::scope(|scope| {
        let (order, over, number) = (&order, &over, numbers.clone());
        let receiver =
            scope.spawn(move || placed(of_receiver, &number, || traffic::receive(order, receiver_end, over)));
        let sender =
            scope.spawn(move || placed(of_sender, &numbers, || traffic::send(order, sender_end, over)));
        let threads: Vec<_> = heard.iter().take(2).map(own_thread).collect();
        let mut ended = None;
        // An end that fails ends the run; the other one is not waited for any longer then.
        while ended.is_none_or(|at: Instant| at.elapsed() < LINGER) && !receiver.is_finished() {
            samples.push(Sample::now(&threads));
            std::thread::sleep(SAMPLE);
            if sender.is_finished() {
                ended.get_or_insert_with(Instant::now);
            }
        }
        samples.push(Sample::now(&threads));
        over.store(true, Ordering::Release);
        let receiver = receiver.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        (sender.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)), receiver)
    });
    let elapsed = begun.elapsed();
    let ((sending, sender_cpu), (receiving, receiver_cpu)) = (sent?, received?);
    Ok(Carried {
        sending,
        receiving,
        samples,
        there: None,
        elapsed,
        sender_cpu,
        receiver_cpu,
        drops: BTreeMap::new(),
        stepped: false,
        guest_clock: None,
    })
}
