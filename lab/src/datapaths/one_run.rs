// SPDX-License-Identifier: Apache-2.0
//! One run: a direction and a load over one datapath. In: the datapath, what is sent. Out: [`Seen`], before anything is computed.
//!
//! ```text
//!  apart:     CPU 0: receiver (FIFO 40), the samples of the host      CPU 1: sender (FIFO 41), a switch if there is no third CPU
//!  together:  CPU 0: sender (FIFO 41), receiver (FIFO 40), samples    CPU 1: a switch
//! ```

use super::apart::{self, There};
use super::datapath::{Datapath, Near};
use super::endpoint::Endpoint;
use super::guest_run;
use super::host::{Sample, own_thread};
use super::path::{Direction, Load};
use super::traffic::{self, Order, Receiving, Sending};
use super::windows::Gates;
use crate::error::LabError;
use ktsn_measure::clock::{RealTime, StampClock, tai_now, thread_cpu_time};
use ktsn_measure::environment::CpuUse;
use ktsn_time::Nanos;
use rustix::thread::gettid;
use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender as Channel, channel};
use std::time::{Duration, Instant};

/// From now to the first frame.
const START_AHEAD: Nanos = Nanos::from_millis(30);
/// Distance of two samples of the host.
pub(super) const SAMPLE: Duration = Duration::from_millis(100);
/// A frame that has not arrived this long after the last one was sent is lost.
pub(super) const LINGER: Duration = Duration::from_millis(300);

/// What a run sends.
#[derive(Clone, Copy, Debug)]
pub(super) struct What {
    pub(super) direction: Direction,
    pub(super) load: Load,
    /// Measured frames.
    pub(super) frames: u64,
}

/// What was seen.
pub(super) struct Seen {
    pub(super) carried: Carried,
    /// Frames that devices and switch dropped meanwhile, by counter.
    pub(super) drops: BTreeMap<String, u64>,
    /// A clock was stepped: the run is void.
    pub(super) stepped: bool,
    pub(super) machine: (CpuUse, CpuUse),
}

/// What the two ends saw.
pub(super) struct Carried {
    pub(super) sending: Sending,
    pub(super) receiving: Receiving,
    pub(super) samples: Vec<Sample>,
    /// The other host's name and samples, if there is one.
    pub(super) there: Option<(String, Vec<Sample>)>,
    pub(super) elapsed: Duration,
    pub(super) sender_cpu: Nanos,
    pub(super) receiver_cpu: Nanos,
    /// Frames that a guest or the other host dropped, by counter.
    pub(super) drops: BTreeMap<String, u64>,
    /// A clock of the guest or of the other host was stepped.
    pub(super) stepped: bool,
    /// The state of a guest's clock, in a word, and the bound of its error.
    pub(super) guest_clock: Option<(String, Nanos)>,
}

/// Runs `work` as a thread of the experiment: placed, known by its number, with its CPU time.
pub(super) fn placed<T>(
    place: Option<RealTime>,
    number: &Channel<i32>,
    work: impl FnOnce() -> io::Result<T>,
) -> Result<(T, Nanos), LabError> {
    // The other end waits for two numbers, and is there until then.
    let _heard = number.send(gettid().as_raw_nonzero().get());
    if let Some(place) = place {
        place.apply().map_err(|refusal| LabError::Impossible {
            what: refusal.to_string(),
            remedy: "run as root on a machine with two CPUs".to_owned(),
        })?;
    }
    let done = work().map_err(LabError::system("an end of the datapath"))?;
    Ok((done, thread_cpu_time()))
}

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
