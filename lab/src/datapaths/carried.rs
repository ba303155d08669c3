// SPDX-License-Identifier: Apache-2.0
//! What a run sends, where its ends run, and what they saw.

use super::host::Sample;
use super::path::{Direction, Load};
use super::task::Answer;
use super::traffic::{Receiving, Sending};
use crate::error::LabError;
use ktsn_measure::clock::{RealTime, thread_cpu_time};
use ktsn_measure::environment::CpuUse;
use ktsn_time::Nanos;
use rustix::thread::gettid;
use std::collections::BTreeMap;
use std::io;
use std::sync::mpsc::Sender as Channel;
use std::time::Duration;

/// Distance of two samples of the host.
pub(super) const SAMPLE: Duration = Duration::from_millis(100);
/// A frame that has not arrived this long after the last one was sent is lost.
pub(super) const LINGER: Duration = Duration::from_millis(300);

/// The state of a guest's clock that follows the host's.
pub(super) const FOLLOWING: &str = "following";

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

/// The other host's name and samples, if there is one.
pub(super) type There = Option<(String, Vec<Sample>)>;

/// What the two ends saw.
pub(super) struct Carried {
    pub(super) sending: Sending,
    pub(super) receiving: Receiving,
    pub(super) samples: Vec<Sample>,
    pub(super) there: There,
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

/// An end's part of a run.
pub(super) struct Part {
    pub(super) answer: Answer,
    pub(super) cpu: Nanos,
}

/// What is seen from the first host beside the two ends.
pub(super) struct Beside {
    pub(super) samples: Vec<Sample>,
    pub(super) there: There,
    pub(super) elapsed: Duration,
}

impl Carried {
    /// A run between the virtual machine's side and the remote host.
    pub(super) fn of(direction: Direction, near: Part, remote: Part, beside: Beside) -> Self {
        let (sender, receiver) = match direction {
            Direction::Egress => (near, remote),
            Direction::Ingress => (remote, near),
        };
        let Beside { samples, there, elapsed } = beside;
        Self {
            sending: sender.answer.sending,
            receiving: receiver.answer.receiving,
            samples,
            there,
            elapsed,
            sender_cpu: sender.cpu,
            receiver_cpu: receiver.cpu,
            drops: sender.answer.drops.into_iter().chain(receiver.answer.drops).collect(),
            stepped: sender.answer.stepped || receiver.answer.stepped,
            guest_clock: None,
        }
    }
}

/// CPU and priority of a sender and of a receiver. The sender preempts the receiver where they share a CPU.
pub(super) fn places([sender, receiver]: [usize; 2]) -> [RealTime; 2] {
    let place = |cpu, fifo| RealTime { cpu: Some(cpu), fifo: Some(fifo), ..RealTime::default() };
    [place(sender, 41), place(receiver, 40)]
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
