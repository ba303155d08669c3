// SPDX-License-Identifier: Apache-2.0
//! A control loop: the controller asks once per period, the device answers at once.
//!
//! In: [`ControllerOptions`], or a port. Out: a record for each request that was sent and for each answer that came, and counts. Both
//! are ordinary programs: libc's `sendmsg`, `sendto`, `ppoll`, `recvmsg`, `recvfrom`, nothing of KTSN.
//!
//! ```text
//!  controller   wake at T − lead ── sendmsg(T) ── ppoll ………………………… recvmsg ── sleep
//!               wake at T ──────── sendto     ── ppoll ………………………… recvmsg ── sleep
//!  device       recvfrom ……………………………………………… recvfrom ── sendto ── recvfrom ………………
//! ```
//!
//! An answer that has not come when the next cycle begins is still taken, and recorded with its own cycle.

use crate::clock::{self, RealTime, ScheduleClock, StampClock};
use crate::payload::{self, Probe};
use crate::records::{ArrivalRecord, TalkRecord, prefaulted};
use crate::socket::Udp;
use crate::talker::{Mode, TalkError, first_boundary};
use ktsn_time::{Nanos, Offset, Tai, TxTime};
use serde::{Deserialize, Serialize};
use std::io;
use std::net::SocketAddr;

/// How often a device without requests checks whether it should stop.
const PATIENCE: Nanos = Nanos::from_millis(100);
/// How long the controller waits for missing answers after its last cycle.
const LAST_ANSWERS: Nanos = Nanos::from_millis(500);

/// What the controller does.
#[derive(Clone, Debug)]
pub struct ControllerOptions {
    /// The device.
    pub device: SocketAddr,
    /// Whether requests have a transmit time, or are sent when the controller has woken.
    pub mode: Mode,
    /// Length of a cycle.
    pub period: Nanos,
    /// Octets of a request, and of its answer.
    pub payload_octets: usize,
    /// Cycles.
    pub count: u64,
    /// Sequence number of the first request.
    pub first_sequence: u64,
    /// `SO_PRIORITY`.
    pub priority: u8,
    /// CPU, priority and timers of the thread.
    pub real_time: RealTime,
}

/// What happened.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// The figures.
    pub summary: Summary,
    /// One record per request sent.
    pub requests: Vec<TalkRecord>,
    /// One record per answer, with the sequence number and the transmit time of its request.
    pub answers: Vec<ArrivalRecord>,
}

/// The controller's figures, as its JSON shows them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Cycles.
    pub cycles: u64,
    /// Requests that were sent.
    pub frames_sent: u64,
    /// Answers, copies included.
    pub answers: u64,
    /// CPU time of the thread over elapsed time.
    pub cpu_ratio: f64,
    /// A clock was stepped meanwhile: the records are void.
    pub clock_stepped: bool,
}

/// The device's figures, as its JSON shows them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DeviceSummary {
    /// Requests that were answered.
    pub answered: u64,
    /// Answers that could not be sent.
    pub refused: u64,
    /// CPU time of the thread over elapsed time, between the first and the last request.
    pub cpu_ratio: f64,
}

/// What the device saw.
#[derive(Clone, Debug, Default)]
pub struct DeviceOutcome {
    /// The figures.
    pub summary: DeviceSummary,
    /// One record per request.
    pub requests: Vec<ArrivalRecord>,
}

struct Controller<'a> {
    options: &'a ControllerOptions,
    socket: Udp,
    offset: Offset,
    outcome: Outcome,
}

/// Carries out `options`; `ready` is called once everything is in place. Ends after `count` cycles or when `stop` says so.
///
/// # Errors
/// [`TalkError`]; nothing was sent then.
pub fn run(
    options: &ControllerOptions,
    ready: impl FnOnce(),
    stop: &dyn Fn() -> bool,
) -> Result<Outcome, TalkError> {
    let mut payload = payload::blank(options.payload_octets)?;
    if options.period < Nanos::from_micros(1) {
        return Err(TalkError::Period(options.period));
    }
    let named = |source| TalkError::Socket { destination: options.device, source };
    let socket = Udp::connected(options.device).map_err(named)?;
    let priority = options.priority;
    socket.set_priority(priority).map_err(|source| TalkError::Priority { priority, source })?;
    let clock = ScheduleClock::Tai;
    let ahead = match options.mode {
        Mode::TxTime { lead } => {
            socket.set_tx_time(clock).map_err(|source| TalkError::TxTime { clock, source })?;
            lead
        }
        Mode::Sleep | Mode::Spin { .. } => Nanos::ZERO,
    };
    let requests = prefaulted(options.count, TalkRecord::BLANK);
    let answers = prefaulted(options.count, ArrivalRecord::BLANK);
    let outcome = Outcome { summary: Summary::default(), requests, answers };
    options.real_time.apply()?;
    let both = clock::both_now();
    let offset = Offset::between(both.tai, both.monotonic);
    let stamps = StampClock::now();
    let mut controller = Controller { options, socket, offset, outcome };
    let first = first_boundary(clock.now(), ahead, options.period);
    ready();
    let (cpu, begun) = (clock::thread_cpu_time(), clock::monotonic_now());
    for index in 0..options.count {
        let at =
            first.saturating_add(options.period.saturating_mul(i64::try_from(index).unwrap_or(i64::MAX)));
        let wake = at.saturating_add(Nanos::new(-ahead.get()));
        clock::sleep_until(wake);
        if stop() {
            break;
        }
        let sequence = options.first_sequence.wrapping_add(index);
        controller.request(at, sequence, &mut payload)?;
        controller.await_answer(sequence, wake.saturating_add(options.period)).map_err(named)?;
    }
    let used = clock::thread_cpu_time().saturating_sub(cpu);
    let elapsed = clock::monotonic_now().since(begun);
    controller.await_missing().map_err(named)?;
    let mut outcome = controller.outcome;
    outcome.summary.cpu_ratio = used.get() as f64 / elapsed.get().max(1) as f64;
    outcome.summary.clock_stepped = stamps.stepped(&StampClock::now());
    Ok(outcome)
}

impl Controller<'_> {
    /// Sends the request for `at`. A refused one is counted by what is missing in `frames_sent`.
    fn request(&mut self, at: TxTime, sequence: u64, payload: &mut [u8]) -> Result<(), TalkError> {
        let probe = Probe { sequence, tx_time: clock::to_tai(at, self.offset) };
        probe.write(payload)?;
        let called_at = clock::tai_now();
        let sent = match self.options.mode {
            Mode::TxTime { .. } => self.socket.send_at(payload, at),
            Mode::Sleep | Mode::Spin { .. } => self.socket.send(payload),
        };
        let returned_at = clock::tai_now();
        self.outcome.summary.cycles += 1;
        if sent.is_ok() {
            self.outcome.summary.frames_sent += 1;
            self.outcome.requests.push(TalkRecord { probe, called_at, returned_at });
        }
        Ok(())
    }

    /// Takes answers until that of `sequence` has come, or until `until`.
    fn await_answer(&mut self, sequence: u64, until: TxTime) -> io::Result<()> {
        let until = clock::to_tai(until, self.offset);
        while let Some(answered) = self.take_answer(until)? {
            if answered == sequence {
                break;
            }
        }
        Ok(())
    }

    /// Takes the answers that are missing after the last cycle, for a while.
    fn await_missing(&mut self) -> io::Result<()> {
        let until = clock::tai_now().saturating_add(LAST_ANSWERS);
        while self.outcome.summary.answers < self.outcome.summary.frames_sent {
            if self.take_answer(until)?.is_none() {
                break;
            }
        }
        Ok(())
    }

    /// Takes one answer and returns the number of its request; `None` when none has come until `until`.
    fn take_answer(&mut self, until: Tai) -> io::Result<Option<u64>> {
        let mut buffer = [0_u8; 2048];
        loop {
            let remaining = until.since(clock::tai_now());
            if remaining <= Nanos::ZERO || clock::stop_requested() {
                return Ok(None);
            }
            match self.socket.wait_readable(remaining).and_then(|_| self.socket.receive_now(&mut buffer)) {
                Ok(datagram) => {
                    let received_at = Some(clock::tai_now());
                    let Some(probe) = Probe::read(&buffer[..datagram.octets]) else { continue };
                    self.outcome.summary.answers += 1;
                    if self.outcome.answers.len() < self.outcome.answers.capacity() {
                        self.outcome.answers.push(ArrivalRecord { probe, kernel_at: None, received_at });
                    }
                    return Ok(Some(probe.sequence));
                }
                // A refused connection reports an earlier request: the device is not there yet, or no longer.
                Err(error) if is_passing(&error) => {}
                Err(error) => return Err(error),
            }
        }
    }
}

fn is_passing(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionRefused, Interrupted, WouldBlock};
    matches!(error.kind(), WouldBlock | Interrupted | ConnectionRefused)
}

/// Answers each datagram that arrives at `local` with itself. Ends after `count` requests (0: no end), or when `stop` says
/// so (asked ten times a second while nothing arrives); `ready` is called with the address once the port is open.
///
/// # Errors
/// The socket's, or a right that is missing.
pub fn answer(
    local: SocketAddr,
    count: u64,
    real_time: RealTime,
    ready: impl FnOnce(SocketAddr),
    stop: &dyn Fn() -> bool,
) -> io::Result<DeviceOutcome> {
    let socket = Udp::bound(local)?;
    socket.set_receive_timeout(PATIENCE)?;
    let mut requests = prefaulted(count, ArrivalRecord::BLANK);
    real_time.apply().map_err(io::Error::other)?;
    ready(socket.local()?);
    let mut buffer = [0_u8; 2048];
    let mut summary = DeviceSummary::default();
    let mut first: Option<(Tai, Nanos)> = None;
    let mut last = (Tai::ZERO, Nanos::ZERO);
    while !stop() && (count == 0 || summary.answered + summary.refused < count) {
        match socket.receive_from(&mut buffer) {
            Ok((octets, peer)) => {
                let received_at = clock::tai_now();
                match socket.send_to(&buffer[..octets], &peer) {
                    Ok(_) => summary.answered += 1,
                    Err(_) => summary.refused += 1,
                }
                last = (received_at, clock::thread_cpu_time());
                first = first.or(Some(last));
                if let Some(probe) =
                    Probe::read(&buffer[..octets]).filter(|_| requests.len() < requests.capacity())
                {
                    requests.push(ArrivalRecord { probe, kernel_at: None, received_at: Some(received_at) });
                }
            }
            Err(error) if is_passing(&error) => {}
            Err(error) => return Err(error),
        }
    }
    if let Some((begun, cpu)) = first {
        let (ended, used) = last;
        summary.cpu_ratio = used.saturating_sub(cpu).get() as f64 / ended.since(begun).get().max(1) as f64;
    }
    Ok(DeviceOutcome { summary, requests })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc;

    fn options(device: SocketAddr) -> ControllerOptions {
        ControllerOptions {
            device,
            mode: Mode::Sleep,
            period: Nanos::from_millis(2),
            payload_octets: 64,
            count: 20,
            first_sequence: 100,
            priority: 6,
            real_time: RealTime::default(),
        }
    }

    #[test]
    fn every_request_is_answered_with_its_own_number_and_time() {
        let (address, port) = mpsc::channel();
        let stop = AtomicBool::new(false);
        let (outcome, device) = std::thread::scope(|scope| {
            let device = scope.spawn(|| {
                let local = "127.0.0.1:0".parse().unwrap();
                let ready = move |at| address.send(at).unwrap();
                answer(local, 20, RealTime::default(), ready, &|| stop.load(Ordering::Relaxed)).unwrap()
            });
            let outcome = run(&options(port.recv().unwrap()), || (), &|| false).unwrap();
            stop.store(true, Ordering::Relaxed);
            (outcome, device.join().unwrap())
        });
        assert_eq!((outcome.summary.cycles, outcome.summary.frames_sent), (20, 20));
        assert_eq!((device.summary.answered, device.summary.refused), (20, 0));
        assert_eq!((outcome.answers.len(), device.requests.len()), (20, 20));
        for (index, answer) in outcome.answers.iter().enumerate() {
            let request = outcome.requests[index];
            assert_eq!(answer.probe, request.probe);
            assert_eq!(answer.probe.sequence, 100 + index as u64);
            assert!(
                request.called_at >= request.probe.tx_time && answer.received_at >= Some(request.called_at)
            );
        }
    }

    #[test]
    fn a_device_that_is_not_there_answers_nothing() {
        let nowhere = Udp::bound("127.0.0.1:0".parse().unwrap()).unwrap().local().unwrap();
        let outcome = run(&ControllerOptions { count: 3, ..options(nowhere) }, || (), &|| false).unwrap();
        assert_eq!((outcome.summary.cycles, outcome.summary.answers), (3, 0));
    }
}
