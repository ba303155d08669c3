// SPDX-License-Identifier: Apache-2.0
//! Whether timed frames leave a device: sends some and counts what becomes of each.
//!
//! In: a device, a rhythm. Out: [`Verified`]. The frames have a local experimental EtherType and a locally administered unicast address that
//! no station has, so no receiver takes them. Says nothing of the wire: stamps are the kernel's (under libktsn: ktsnd's) at the hand-over.

use super::device::{self, Qdisc};
use super::plan::Rhythm;
use super::sys::{Fate, TimedSocket};
use ktsn_host::HostError;
use ktsn_time::{Nanos, Tai};
use ktsn_traffic::clock::{self, RealTime, ScheduleClock, StampClock, stop_requested};
use ktsn_traffic::stats::Statistics;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// No station has this address.
const NO_STATION: [u8; 6] = [0x02, 0x6b, 0x74, 0x73, 0x6e, 0x00];
/// IEEE 802's first EtherType for local experiments.
const ETHERTYPE: [u8; 2] = [0x88, 0xb5];
/// Octets of a frame, the least that Ethernet has without its checksum.
const FRAME_OCTETS: usize = 60;
/// How far ahead the first transmit time is.
const START: Nanos = Nanos::from_millis(50);
/// A frame that left so long after its transmit time is late.
const LATE: Nanos = Nanos::from_micros(100);
/// By how much the clocks of stamps and transmit times may differ when they are read one after the other.
const EARLY: Nanos = Nanos::from_micros(20);
/// How long to wait for the fates of the last frames.
const LINGER: Duration = Duration::from_secs(1);
const LOOK_AGAIN: Duration = Duration::from_millis(5);
/// The priority of the check under SCHED_FIFO: above that of a ktsnd (50), which may spin on the only CPU.
const FIFO: u8 = 60;
/// The kernel's code of a frame whose transmit time had passed.
const MISSED: u8 = 2;

/// Which frames to send.
#[derive(Clone, Debug)]
pub(crate) struct Check {
    /// The device.
    pub(crate) device: String,
    /// When frames leave.
    pub(crate) rhythm: Rhythm,
    /// How many.
    pub(crate) count: u32,
    /// Least distance of two transmit times.
    pub(crate) period: Nanos,
    /// How far ahead of its transmit time a frame is sent.
    pub(crate) lead: Nanos,
    /// How long before its transmit time a frame may leave: `etf` hands over up to its delta too early.
    pub(crate) early_max: Nanos,
}

/// What became of the frames.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Verified {
    /// Frames to send.
    pub(crate) frames: u32,
    /// Distance of two transmit times in nanoseconds.
    pub(crate) period_ns: i64,
    /// Frames that the kernel (or ktsnd) took.
    pub(crate) sent: u32,
    /// Sends that failed, by the system's words.
    pub(crate) errors: BTreeMap<String, u32>,
    /// Frames that were handed to the device.
    pub(crate) left: u32,
    /// Of these: more than 100 µs after their transmit time.
    pub(crate) late: u32,
    /// Of these: sooner than may be. Where all are, no scheduler keeps the time.
    pub(crate) early: u32,
    /// Reported as dropped because the transmit time had passed.
    pub(crate) missed: u32,
    /// Reported as dropped for another reason.
    pub(crate) invalid: u32,
    /// Drops that the device's qdiscs counted meanwhile, of whatever frames: refused sends, reported drops, and those without a report.
    pub(crate) qdisc_drops: u64,
    /// Frames that were taken, and of which neither a stamp nor a report came. A drop by a gate of `taprio` has no report, only a count.
    pub(crate) unaccounted: u32,
    /// Hand-over to the device less transmit time. Negative: `etf` hands over up to its delta too early.
    pub(crate) offset_ns: Option<Statistics>,
}

impl Verified {
    /// Whether at least half of the frames left, not too early.
    #[must_use]
    pub(crate) const fn is_good(&self) -> bool {
        self.frames > 0 && self.left.saturating_sub(self.early) >= self.frames.div_ceil(2)
    }

    /// The counts in one line.
    #[must_use]
    pub(crate) fn line(&self) -> String {
        let micros = |nanos: i64| nanos as f64 / 1e3;
        let mut text = format!(
            "{} of {} frames left, one in {:.0} µs; {} late (over 100 µs), {} too early; dropped: {} missed, {} invalid, {} by the qdiscs' count; \
             unaccounted: {}",
            self.left,
            self.frames,
            micros(self.period_ns),
            self.late,
            self.early,
            self.missed,
            self.invalid,
            self.qdisc_drops,
            self.unaccounted
        );
        if let Some(offset) = &self.offset_ns {
            text.push_str(&format!(
                "; hand-over less transmit time: p50 {:.1}, p99 {:.1}, max {:.1} µs",
                micros(offset.p50),
                micros(offset.p99),
                micros(offset.max)
            ));
        }
        for (error, count) in &self.errors {
            text.push_str(&format!("; {count} not sent: {error}"));
        }
        text
    }
}

/// What qdiscs dropped: those that only add up what the ones below count are left out.
pub(super) fn drops(qdiscs: &[Qdisc]) -> u64 {
    qdiscs
        .iter()
        .filter(|qdisc| !matches!(qdisc.kind.as_str(), "mq" | "mqprio"))
        .map(|qdisc| qdisc.drops)
        .sum()
}

/// The first transmit time, and the distance of two: whole cycles.
pub(super) fn times(rhythm: &Rhythm, period: Nanos, now: Tai, ahead: Nanos) -> (Tai, Nanos) {
    // Base and cycle are the user's or a file's, up to the ends of their range.
    let (cycle, period) = (i128::from(rhythm.cycle.get().max(1)), i128::from(period.get().max(1)));
    let earliest = i128::from(now.saturating_add(ahead).as_nanos());
    let base = i128::from(rhythm.base.as_nanos());
    let first = base + ((earliest - base).div_euclid(cycle) + 1) * cycle;
    let whole = (period + cycle - 1) / cycle * cycle;
    let limited = |value: i128| i64::try_from(value).unwrap_or(i64::MAX);
    (Tai::from_nanos(u64::try_from(first).unwrap_or(u64::MAX)), Nanos::new(limited(whole)))
}

/// Sends the frames and waits for the fate of each.
///
/// # Errors
/// [`HostError::Usage`] for a wrong value; [`HostError::Impossible`] without the right; the kernel's.
pub(crate) fn verify(check: &Check) -> Result<Verified, HostError> {
    if check.lead.is_negative() || check.lead > Nanos::from_seconds(1) {
        return Err(HostError::Usage(format!("--lead {}: expected 0 to 1s", check.lead)));
    }
    if !(100_000..=10_000_000_000).contains(&check.period.get()) {
        return Err(HostError::Usage(format!("--period {}: expected 100us to 10s", check.period)));
    }
    let facts = device::facts(&check.device)?;
    if !facts.is_up {
        return Err(HostError::Usage(format!(
            "--device {}: it is down; expected one that is up: `ip link set {} up`",
            check.device, check.device
        )));
    }
    let socket =
        TimedSocket::new(facts.ifindex, check.rhythm.priority).map_err(|error| match error.kind() {
            std::io::ErrorKind::PermissionDenied => HostError::Impossible {
                what: format!("a packet socket with transmit times on CLOCK_TAI: {error}"),
                remedy: "run it as root (CAP_NET_RAW and CAP_NET_ADMIN)".to_owned(),
            },
            _ => HostError::system("packet socket with SO_TXTIME and SO_TIMESTAMPING")(error),
        })?;
    // Where it may not, the check runs as an ordinary thread.
    let _ = RealTime { fifo: Some(FIFO), ..RealTime::default() }.apply();
    let before = drops(&device::qdiscs(&check.device)?);
    let mut fates = Fates::new(check, &socket);
    fates.send(&facts.mac)?;
    fates.linger()?;
    let dropped = drops(&device::qdiscs(&check.device)?).saturating_sub(before);
    Ok(fates.verified(dropped))
}

/// What became of a frame, as far as is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Refused,
    Taken,
    Left(Nanos),
    Missed,
    Invalid,
}

/// The frames and what became of them.
struct Fates<'a> {
    check: &'a Check,
    socket: &'a TimedSocket,
    stamps: StampClock,
    first: Tai,
    period: Nanos,
    outcomes: Vec<Outcome>,
    /// The frames in the kernel's numbers, which leave out the sends that fail before the device's queue.
    numbered: Vec<usize>,
    errors: BTreeMap<String, u32>,
}

impl<'a> Fates<'a> {
    fn new(check: &'a Check, socket: &'a TimedSocket) -> Self {
        let ahead = START.saturating_add(check.lead);
        let (first, period) = times(&check.rhythm, check.period, clock::tai_now(), ahead);
        let stamps = StampClock::now();
        let (outcomes, numbered, errors) = (Vec::new(), Vec::new(), BTreeMap::new());
        Self { check, socket, stamps, first, period, outcomes, numbered, errors }
    }

    fn tx_time(&self, frame: usize) -> Tai {
        self.first.saturating_add(self.period.saturating_mul(i64::try_from(frame).unwrap_or(i64::MAX)))
    }

    fn send(&mut self, source: &[u8; 6]) -> Result<(), HostError> {
        let mut frame = [0_u8; FRAME_OCTETS];
        frame[..6].copy_from_slice(&NO_STATION);
        frame[6..12].copy_from_slice(source);
        frame[12..14].copy_from_slice(&ETHERTYPE);
        for number in 0..self.check.count as usize {
            if stop_requested() {
                return Err(HostError::Stopped);
            }
            let at = self.tx_time(number);
            clock::sleep_until(ScheduleClock::Tai.at(at.saturating_sub(self.check.lead).as_nanos()));
            let sent = self.socket.send_at(&frame, at.as_nanos());
            // ENOBUFS: the qdisc refused the frame, which has a number then.
            if sent.as_ref().map_or_else(|error| error.raw_os_error() == Some(libc::ENOBUFS), |()| true) {
                self.numbered.push(number);
            }
            self.outcomes.push(if sent.is_ok() { Outcome::Taken } else { Outcome::Refused });
            if let Err(error) = sent {
                *self.errors.entry(error.to_string()).or_default() += 1;
            }
            self.read()?;
        }
        Ok(())
    }

    /// Takes what the error queue has. The first that is said of a frame holds.
    fn read(&mut self) -> Result<(), HostError> {
        while let Some(fate) = self.socket.next_fate().map_err(HostError::system("MSG_ERRQUEUE"))? {
            let (frame, outcome) = match fate {
                Fate::Left(number, stamp) => {
                    let frame = usize::try_from(number).ok().and_then(|number| self.numbered.get(number));
                    let Some(&frame) = frame else { continue };
                    (frame, Outcome::Left(self.stamps.tai(stamp).since(self.tx_time(frame))))
                }
                Fate::Dropped(tx_time, code) => {
                    let since = Tai::from_nanos(tx_time).since(self.first).get() / self.period.get().max(1);
                    let Ok(frame) = usize::try_from(since) else { continue };
                    (frame, if code == MISSED { Outcome::Missed } else { Outcome::Invalid })
                }
            };
            if let Some(one) = self.outcomes.get_mut(frame).filter(|one| **one == Outcome::Taken) {
                *one = outcome;
            }
        }
        Ok(())
    }

    fn linger(&mut self) -> Result<(), HostError> {
        let last = self.outcomes.len().saturating_sub(1);
        clock::sleep_until(ScheduleClock::Tai.at(self.tx_time(last).as_nanos()));
        let until = Instant::now() + LINGER;
        loop {
            self.read()?;
            if !self.outcomes.contains(&Outcome::Taken) || Instant::now() >= until {
                return Ok(());
            }
            std::thread::sleep(LOOK_AGAIN);
        }
    }

    fn verified(self, qdisc_drops: u64) -> Verified {
        let earliest = Nanos::ZERO.saturating_sub(self.check.early_max).saturating_sub(EARLY);
        let count = |is: &dyn Fn(Outcome) -> bool| {
            u32::try_from(self.outcomes.iter().filter(|&&outcome| is(outcome)).count()).unwrap_or(u32::MAX)
        };
        let offset = |outcome: Outcome| if let Outcome::Left(offset) = outcome { Some(offset) } else { None };
        Verified {
            frames: self.check.count,
            period_ns: self.period.get(),
            sent: count(&|outcome| outcome != Outcome::Refused),
            left: count(&|outcome| offset(outcome).is_some()),
            late: count(&|outcome| offset(outcome).is_some_and(|offset| offset > LATE)),
            early: count(&|outcome| offset(outcome).is_some_and(|offset| offset < earliest)),
            missed: count(&|outcome| outcome == Outcome::Missed),
            invalid: count(&|outcome| outcome == Outcome::Invalid),
            qdisc_drops,
            unaccounted: count(&|outcome| outcome == Outcome::Taken),
            offset_ns: Statistics::of(self.outcomes.iter().filter_map(|&outcome| offset(outcome))),
            errors: self.errors,
        }
    }
}
