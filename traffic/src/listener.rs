// SPDX-License-Identifier: Apache-2.0
//! The listener: what arrived, and when.
//!
//! In: one UDP port or several. Out: one [`ArrivalRecord`] per datagram with a probe, and counts. It waits in libc's
//! `recvmsg` or `epoll_wait`, as an ordinary program does, or spins; it allocates and logs nothing in the loop, and never
//! leaves a datagram out: what cannot be recorded is counted.

use crate::clock::{self, RealTime, RealTimeError, StampClock};
use crate::payload::Probe;
use crate::records::{ArrivalRecord, prefaulted};
use crate::socket::{Epoll, Received, Udp};
use ktsn_time::{Monotonic, Nanos, Tai};
use serde::{Deserialize, Serialize};
use std::io;
use std::net::SocketAddr;

/// How often a listener without datagrams checks whether it should stop.
const PATIENCE: Nanos = Nanos::from_millis(100);
/// Receive buffer asked for: thousands of frames, so that a delayed listener loses none.
const BUFFER_OCTETS: i32 = 4 << 20;

/// How the listener waits for a datagram.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wait {
    /// In a blocking `recvmsg`; of one port only.
    #[default]
    Receive,
    /// In `epoll_wait`, level-triggered; then one `recvmsg` for each port that is ready.
    Epoll,
    /// Never: `recvmsg` with `MSG_DONTWAIT` again and again.
    Spin,
}

/// What to hear.
#[derive(Clone, Debug)]
pub struct ListenerOptions {
    /// Where to listen.
    pub local: SocketAddr,
    /// How many ports, from that of `local` on.
    pub ports: u16,
    /// How to wait.
    pub wait: Wait,
    /// Datagrams with a probe; 0 means until it is asked to stop.
    pub count: u64,
    /// Ends after this long without a datagram.
    pub timeout: Option<Nanos>,
    /// CPU, priority and timers of the thread.
    pub real_time: RealTime,
}

/// Why the listener ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ended {
    /// All datagrams asked for have arrived.
    #[default]
    Count,
    /// Nothing arrived for the time allowed.
    Timeout,
    /// It was asked to stop.
    Stopped,
}

/// What happened.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// The figures.
    pub summary: Summary,
    /// One record per datagram, in the order of arrival.
    pub records: Vec<ArrivalRecord>,
}

/// The listener's figures, as its JSON shows them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Why it ended.
    pub ended: Ended,
    /// Datagrams with a probe, copies included.
    pub frames_received: u64,
    /// Second and further copies.
    pub duplicates: u64,
    /// Frames that arrived after one with a higher sequence number.
    pub reordered: u64,
    /// Datagrams too short for a probe.
    pub foreign: u64,
    /// Received without a record: the records were full.
    pub unrecorded: u64,
    /// CPU time of the thread over elapsed time, between the first and the last datagram.
    pub cpu_ratio: f64,
    /// A clock was stepped meanwhile: the records are void.
    pub clock_stepped: bool,
}

/// Why the listener cannot begin or go on.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Several ports and no way to wait for all of them.
    #[error("{0} ports cannot be heard by one blocking recvmsg; wait by epoll, or spin")]
    Ports(u16),
    /// The socket.
    #[error("socket at {local}: {source}")]
    Socket {
        /// Where.
        local: SocketAddr,
        /// The kernel's answer.
        source: io::Error,
    },
    /// Scheduling rights.
    #[error(transparent)]
    RealTime(#[from] RealTimeError),
}

/// What the loop has heard so far.
struct Heard {
    records: Vec<ArrivalRecord>,
    received: u64,
    foreign: u64,
    /// When the first datagram came, and the CPU time used until then.
    first: Option<(Tai, Nanos)>,
    /// When the last datagram came, and the CPU time used until then: a listener that spins goes on without one.
    last: (Tai, Nanos),
    stamps: StampClock,
}

impl Heard {
    /// Takes note of a datagram that was just received.
    fn take(&mut self, datagram: Received, buffer: &[u8]) {
        let received_at = clock::tai_now();
        self.last = (received_at, clock::thread_cpu_time());
        self.first = self.first.or(Some(self.last));
        let Some(probe) = Probe::read(&buffer[..datagram.octets]) else {
            self.foreign += 1;
            return;
        };
        self.received += 1;
        let kernel_at = datagram.stamp_realtime.map(|stamp| self.stamps.tai(stamp));
        if self.records.len() < self.records.capacity() {
            self.records.push(ArrivalRecord { probe, kernel_at, received_at: Some(received_at) });
        }
    }

    /// CPU time over elapsed time, between the first and the last datagram.
    fn cpu_ratio(&self) -> f64 {
        let Some((begun, cpu)) = self.first else { return 0.0 };
        let (ended, used) = self.last;
        used.saturating_sub(cpu).get() as f64 / ended.since(begun).get().max(1) as f64
    }
}

/// Carries out `options`; `ready` is called with the first address once the ports are open. Ends by count, timeout, or when
/// `stop` says so (asked ten times a second while nothing arrives).
///
/// # Errors
/// [`ListenError`].
pub fn run(
    options: &ListenerOptions,
    ready: impl FnOnce(SocketAddr),
    stop: &dyn Fn() -> bool,
) -> Result<Outcome, ListenError> {
    if options.wait == Wait::Receive && options.ports > 1 {
        return Err(ListenError::Ports(options.ports));
    }
    let named = |source| ListenError::Socket { local: options.local, source };
    let patience =
        options.timeout.map_or(PATIENCE, |timeout| timeout.min(PATIENCE)).max(Nanos::from_micros(1));
    let sockets = open(options, patience).map_err(named)?;
    let epoll = (options.wait == Wait::Epoll).then(|| Epoll::of(&sockets)).transpose().map_err(named)?;
    let local = sockets[0].local().map_err(named)?;
    options.real_time.apply()?;
    let stamps = StampClock::now();
    let records = prefaulted(options.count, ArrivalRecord::BLANK);
    let mut heard =
        Heard { records, received: 0, foreign: 0, first: None, last: (Tai::ZERO, Nanos::ZERO), stamps };
    let waiting = Waiting { sockets: &sockets, epoll: epoll.as_ref(), patience };
    ready(local);
    let ended = hear(options, &waiting, &mut heard, stop).map_err(named)?;
    let summary = Summary {
        ended,
        frames_received: heard.received,
        duplicates: duplicates(&heard.records),
        reordered: reordered(&heard.records),
        foreign: heard.foreign,
        unrecorded: heard.received - heard.records.len() as u64,
        cpu_ratio: heard.cpu_ratio(),
        clock_stepped: stamps.stepped(&StampClock::now()),
    };
    Ok(Outcome { summary, records: heard.records })
}

/// The sockets of the ports that the options name. One whose datagrams `recvmsg` waits for has a time limit: the loop looks at `stop`.
fn open(options: &ListenerOptions, patience: Nanos) -> io::Result<Vec<Udp>> {
    let open = |index| {
        let mut local = options.local;
        if options.local.port() > 0 {
            local.set_port(options.local.port().checked_add(index).ok_or(io::ErrorKind::AddrNotAvailable)?);
        }
        let socket = Udp::bound(local)?;
        socket.stamp_receives()?;
        socket.set_receive_buffer(BUFFER_OCTETS)?;
        socket.set_receive_timeout(patience)?;
        Ok(socket)
    };
    (0..options.ports.max(1)).map(open).collect()
}

/// What the listener waits for.
struct Waiting<'a> {
    sockets: &'a [Udp],
    /// The set of all sockets, for [`Wait::Epoll`].
    epoll: Option<&'a Epoll>,
    patience: Nanos,
}

impl Waiting<'_> {
    /// Waits once, as the options say, and takes note of what came; `WouldBlock` when nothing did.
    fn once(&self, wait: Wait, buffer: &mut [u8], heard: &mut Heard) -> io::Result<()> {
        if let Some(epoll) = self.epoll {
            return epoll.wait(self.patience, |index| {
                let datagram = self.sockets[index].receive(buffer)?;
                heard.take(datagram, buffer);
                Ok(())
            });
        }
        for socket in self.sockets {
            let now = wait == Wait::Spin;
            match if now { socket.receive_now(buffer) } else { socket.receive(buffer) } {
                Ok(datagram) => heard.take(datagram, buffer),
                Err(error) if now && error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

fn hear(
    options: &ListenerOptions,
    waiting: &Waiting<'_>,
    heard: &mut Heard,
    stop: &dyn Fn() -> bool,
) -> io::Result<Ended> {
    let mut buffer = vec![1_u8; 1 << 16];
    let mut quiet_since: Monotonic = clock::monotonic_now();
    while options.count == 0 || heard.received < options.count {
        let before = heard.received + heard.foreign;
        match waiting.once(options.wait, &mut buffer, heard) {
            Ok(()) => {}
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            Err(error) => return Err(error),
        }
        if stop() {
            return Ok(Ended::Stopped);
        }
        let Some(timeout) = options.timeout else { continue };
        if heard.received + heard.foreign > before {
            quiet_since = clock::monotonic_now();
        } else if clock::monotonic_now().since(quiet_since) >= timeout {
            return Ok(Ended::Timeout);
        }
    }
    Ok(Ended::Count)
}

/// Second and further copies among `records`.
#[must_use]
pub fn duplicates(records: &[ArrivalRecord]) -> u64 {
    let mut probes: Vec<Probe> = records.iter().map(|record| record.probe).collect();
    probes.sort_unstable();
    probes.dedup();
    (records.len() - probes.len()) as u64
}

/// Frames of `records` (in order of arrival) that came after one with a later transmit time; copies are not
/// counted twice.
#[must_use]
pub fn reordered(records: &[ArrivalRecord]) -> u64 {
    let mut seen = std::collections::HashSet::new();
    let mut greatest = None;
    let mut count = 0;
    for record in records.iter().filter(|record| seen.insert(record.probe)) {
        // Several runs may pass one listener: time orders them, their sequence numbers need not.
        let place = (record.probe.tx_time, record.probe.sequence);
        count += u64::from(greatest.is_some_and(|greatest| place < greatest));
        greatest = greatest.max(Some(place));
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::sync::mpsc;

    fn options() -> ListenerOptions {
        ListenerOptions {
            local: "127.0.0.1:0".parse().unwrap(),
            ports: 1,
            wait: Wait::Receive,
            count: 3,
            timeout: None,
            real_time: RealTime::default(),
        }
    }

    fn heard(options: &ListenerOptions, datagrams: &[&[u8]]) -> Outcome {
        let (address, port) = mpsc::channel();
        std::thread::scope(|scope| {
            let listener =
                scope.spawn(move || run(options, |at| address.send(at).unwrap(), &|| false).unwrap());
            let talker = Udp::connected(port.recv().unwrap()).unwrap();
            for datagram in datagrams {
                talker.send(datagram).unwrap();
            }
            listener.join().unwrap()
        })
    }

    fn datagram(sequence: u64) -> Vec<u8> {
        let mut payload = crate::payload::blank(32).unwrap();
        Probe { sequence, tx_time: Tai::from_nanos(1_000 * sequence) }.write(&mut payload).unwrap();
        payload
    }

    #[test]
    fn arrivals_are_recorded_with_both_stamps_in_order() {
        for wait in [Wait::Receive, Wait::Epoll, Wait::Spin] {
            arrivals_are_recorded(wait);
        }
    }

    fn arrivals_are_recorded(wait: Wait) {
        let datagrams = [datagram(7), datagram(9), datagram(8)];
        let parts: Vec<&[u8]> = datagrams.iter().map(Vec::as_slice).collect();
        let begun = clock::tai_now();
        let outcome =
            heard(&ListenerOptions { wait, ..options() }, &[parts[0], b"short", parts[1], parts[2]]);
        let sequences: Vec<u64> = outcome.records.iter().map(|record| record.probe.sequence).collect();
        assert_eq!(sequences, [7, 9, 8]);
        for record in &outcome.records {
            let (kernel_at, received_at) = (record.kernel_at.unwrap(), record.received_at.unwrap());
            assert!(begun <= kernel_at && kernel_at <= received_at && received_at <= clock::tai_now());
        }
        let summary = outcome.summary;
        assert_eq!((summary.frames_received, summary.foreign, summary.ended), (3, 1, Ended::Count));
        assert_eq!((summary.reordered, summary.duplicates, summary.unrecorded), (1, 0, 0));
    }

    #[test]
    fn silence_and_a_stop_end_it() {
        let quiet = ListenerOptions { timeout: Some(Nanos::from_millis(30)), ..options() };
        let one = datagram(1);
        let outcome = heard(&quiet, &[&one, &one]);
        assert_eq!((outcome.summary.ended, outcome.summary.frames_received), (Ended::Timeout, 2));
        assert_eq!(outcome.summary.duplicates, 1);
        let stopped = run(&ListenerOptions { count: 0, ..options() }, |_| (), &|| true).unwrap();
        assert_eq!(stopped.summary.ended, Ended::Stopped);
    }

    #[test]
    fn several_ports_are_heard_by_one_set() {
        // A range of free ports is found by trying: others may take one meanwhile.
        let (address, port) = mpsc::channel();
        let several = |first: u16, wait| ListenerOptions {
            local: ([127, 0, 0, 1], first).into(),
            ports: 3,
            wait,
            ..options()
        };
        std::thread::scope(|scope| {
            let listener = scope.spawn(move || {
                (20_000..60_000).step_by(7).find_map(|first| {
                    run(&several(first, Wait::Epoll), |at| address.send(at).unwrap(), &|| false).ok()
                })
            });
            let first = port.recv().unwrap();
            for index in 0..3_u16 {
                let to = (first.ip(), first.port() + index).into();
                Udp::connected(to).unwrap().send(&datagram(u64::from(index))).unwrap();
            }
            assert_eq!(listener.join().unwrap().unwrap().summary.frames_received, 3);
        });
        let refused = run(&several(20_000, Wait::Receive), |_| (), &|| true).unwrap_err();
        assert!(refused.to_string().contains("3 ports"), "{refused}");
    }

    #[test]
    fn a_taken_port_is_named() {
        let taken = Udp::bound("127.0.0.1:0".parse().unwrap()).unwrap();
        let local = taken.local().unwrap();
        let error = run(&ListenerOptions { local, ..options() }, |_| (), &|| true).unwrap_err();
        assert!(error.to_string().contains(&local.to_string()), "{error}");
    }

    proptest! {
        /// Against the definition: has any frame of a later place arrived before?
        #[test]
        fn copies_and_disorder_meet_their_definition(order in prop::collection::vec(0_u64..20, 0..40)) {
            let record = |&sequence: &u64| ArrivalRecord {
                probe: Probe { sequence, tx_time: Tai::from_nanos(1_000 * sequence) },
                kernel_at: None,
                received_at: None,
            };
            let records: Vec<ArrivalRecord> = order.iter().map(record).collect();
            let is_first = |index: usize| !order[..index].contains(&order[index]);
            let copies = (0..order.len()).filter(|&index| !is_first(index)).count();
            let late = (0..order.len())
                .filter(|&index| is_first(index) && order[..index].iter().any(|&before| before > order[index]))
                .count();
            prop_assert_eq!(duplicates(&records), copies as u64);
            prop_assert_eq!(reordered(&records), late as u64);
        }
    }
}
