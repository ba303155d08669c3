// SPDX-License-Identifier: Apache-2.0
//! The talker: one datagram per period, at its transmit time.
//!
//! In: [`TalkerOptions`]. Out: datagrams that begin with a probe, and one record per datagram sent. It is an ordinary program:
//! libc's `sendmsg`, `sendto`, `clock_nanosleep`, nothing of KTSN. In the loop it allocates nothing, logs nothing and
//! never skips an instant: a late frame is sent late and seen as late.
//!
//! ```text
//!  mode txtime   wake at T − lead ── sendmsg(T) ┄┄┄ the scheduler sends at T
//!  mode sleep    wake at T ── sendto
//!  mode spin     wake at T − margin ── spin until T ── sendto
//! ```

use crate::clock::{self, RealTime, RealTimeError, ScheduleClock, StampClock};
use crate::payload::{self, PayloadError, Probe};
use crate::records::{TalkRecord, prefaulted};
use crate::socket::Udp;
use ktsn_time::{Nanos, Offset, Tai, TxTime};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;

/// The first transmit time is a period boundary at least this far ahead.
pub const START_MIN: Nanos = Nanos::from_millis(20);
/// Spin margin of the mode `spin`.
pub const SPIN_MARGIN: Nanos = Nanos::from_micros(60);
/// Errno values that are counted one by one.
const ERRORS: usize = 256;

/// How the transmit time is met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// `SO_TXTIME`: the send happens `lead` ahead, the kernel or ktsnd keeps the time.
    TxTime {
        /// How far ahead.
        lead: Nanos,
    },
    /// Sleep until the instant, then send.
    Sleep,
    /// Sleep until `margin` before the instant, spin, then send.
    Spin {
        /// How long to spin.
        margin: Nanos,
    },
}

/// The distances of transmit times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Gaps {
    /// All of them are the period.
    #[default]
    Equal,
    /// Random and independent: 100 µs and an exponentially distributed span, on average the period. Nothing can be
    /// predicted from earlier frames. Talkers with the same first sequence number draw the same gaps.
    Random,
}

/// Least random gap, so that the talker itself can keep up.
const GAP_MIN: Nanos = Nanos::from_micros(100);

impl Gaps {
    /// The gap before frame `number` of a stream with this mean distance.
    fn before(self, number: u64, mean: Nanos) -> Nanos {
        match self {
            Self::Equal => mean,
            Self::Random => {
                // splitmix64.
                let mut word = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
                word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
                word ^= word >> 31;
                // In (0, 1]: 53 bits, which a double holds.
                let share = ((word >> 11) + 1) as f64 / (1_u64 << 53) as f64;
                let beyond = mean.saturating_sub(GAP_MIN).get().max(0) as f64;
                GAP_MIN.saturating_add(Nanos::new((-share.ln() * beyond) as i64))
            }
        }
    }
}

/// What to send.
#[derive(Clone, Debug)]
pub struct TalkerOptions {
    /// Where to.
    pub destination: SocketAddr,
    /// How the time is met.
    pub mode: Mode,
    /// How much later than the transmit time the asked one is (`Mode::TxTime`): for etf, which sends before the asked one.
    pub ask_later: Nanos,
    /// The clock that periods are counted on.
    pub clock: ScheduleClock,
    /// Distance of two transmit times.
    pub period: Nanos,
    /// Whether all distances are the period.
    pub gaps: Gaps,
    /// Octets of payload, 16 or more.
    pub payload_octets: usize,
    /// Datagrams; 0 means until it is asked to stop.
    pub count: u64,
    /// Sequence number of the first one.
    pub first_sequence: u64,
    /// The first transmit time; without it the next period boundary at least [`START_MIN`] ahead.
    pub start_at: Option<Tai>,
    /// `SO_PRIORITY`.
    pub priority: Option<u8>,
    /// CPU, priority and timers of the thread.
    pub real_time: RealTime,
}

/// What happened.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// The figures.
    pub summary: Summary,
    /// One record per datagram sent.
    pub records: Vec<TalkRecord>,
}

/// The talker's figures, as its JSON shows them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Instants served or attempted.
    pub frames_intended: u64,
    /// Sends that succeeded.
    pub frames_sent: u64,
    /// Failed sends by the system's words.
    pub errors: BTreeMap<String, u64>,
    /// Sent without a record: the records were full.
    pub unrecorded: u64,
    /// CPU time of the thread over elapsed time, between the first and the last transmit time.
    pub cpu_ratio: f64,
    /// First transmit time, nanoseconds of TAI.
    pub first_tx_time: u64,
    /// A clock was stepped meanwhile: the records are void.
    pub clock_stepped: bool,
}

/// Why the talker cannot begin.
#[derive(Debug, thiserror::Error)]
pub enum TalkError {
    /// The payload.
    #[error("payload: {0}")]
    Payload(#[from] PayloadError),
    /// The period.
    #[error("period: {0} is no period; expected at least 1 us")]
    Period(Nanos),
    /// A lead or spin margin below zero.
    #[error("lead or margin: {0} is negative; expected 0 or more")]
    Ahead(Nanos),
    /// The first transmit time has passed or is too near to be met.
    #[error(
        "start-at: {at} is {late_by} before the earliest instant that can still be met; expected a later one"
    )]
    Start {
        /// The instant asked for.
        at: Tai,
        /// How much too early.
        late_by: Nanos,
    },
    /// The socket.
    #[error("socket to {destination}: {source}")]
    Socket {
        /// Where to.
        destination: SocketAddr,
        /// The kernel's answer.
        source: io::Error,
    },
    /// `SO_PRIORITY`.
    #[error("priority: {priority} is refused: {source}; 0 to 6 need no right, more needs CAP_NET_ADMIN")]
    Priority {
        /// The priority asked for.
        priority: u8,
        /// The kernel's answer.
        source: io::Error,
    },
    /// `SO_TXTIME`.
    #[error(
        "SO_TXTIME on {clock:?} is refused: {source}; remedy: run under `ktsn run`, or as root (CAP_NET_ADMIN), or \
         use the clock monotonic"
    )]
    TxTime {
        /// The clock asked for.
        clock: ScheduleClock,
        /// The kernel's answer.
        source: io::Error,
    },
    /// Scheduling rights.
    #[error(transparent)]
    RealTime(#[from] RealTimeError),
}

impl TalkError {
    /// Whether the options are wrong (exit status 2), rather than impossible here.
    #[must_use]
    pub const fn is_usage(&self) -> bool {
        matches!(self, Self::Payload(_) | Self::Period(_) | Self::Ahead(_) | Self::Start { .. })
    }
}

/// The first period boundary of `clock` that is at least [`START_MIN`] and the wake-up's lead ahead of `now`.
pub(crate) fn first_boundary(now: TxTime, ahead: Nanos, period: Nanos) -> TxTime {
    let earliest = clock::nanos_of(now.saturating_add(START_MIN).saturating_add(ahead));
    let period = u64::try_from(period.get()).unwrap_or(1).max(1);
    clock::clock_of(now).at(earliest.div_ceil(period).saturating_mul(period))
}

impl TalkerOptions {
    /// How far before the transmit time the thread wakes.
    const fn ahead(&self) -> Nanos {
        match self.mode {
            Mode::TxTime { lead } => lead,
            Mode::Sleep => Nanos::ZERO,
            Mode::Spin { margin } => margin,
        }
    }

    fn check(&self) -> Result<(), TalkError> {
        payload::check_size(self.payload_octets)?;
        if self.period < Nanos::from_micros(1) {
            return Err(TalkError::Period(self.period));
        }
        if self.ahead().is_negative() {
            return Err(TalkError::Ahead(self.ahead()));
        }
        Ok(())
    }

    fn first(&self, offset: Offset) -> Result<TxTime, TalkError> {
        let now = self.clock.now();
        let Some(at) = self.start_at else { return Ok(first_boundary(now, self.ahead(), self.period)) };
        let earliest = clock::to_tai(now, offset).saturating_add(self.ahead());
        if at < earliest {
            return Err(TalkError::Start { at, late_by: earliest.since(at) });
        }
        Ok(match self.clock {
            ScheduleClock::Tai => TxTime::Tai(at),
            ScheduleClock::Monotonic => TxTime::Monotonic(offset.monotonic(at)),
        })
    }

    fn socket(&self) -> Result<Udp, TalkError> {
        let named = |source| TalkError::Socket { destination: self.destination, source };
        let socket = Udp::connected(self.destination).map_err(named)?;
        if let Some(priority) = self.priority {
            socket.set_priority(priority).map_err(|source| TalkError::Priority { priority, source })?;
        }
        if matches!(self.mode, Mode::TxTime { .. }) {
            let clock = self.clock;
            socket.set_tx_time(clock).map_err(|source| TalkError::TxTime { clock, source })?;
        }
        Ok(socket)
    }
}

/// Carries out `options`; `ready` is called once everything is in place, right before the first wait. Ends after
/// `count` frames or when `stop` says so.
///
/// # Errors
/// [`TalkError`]; nothing was sent then.
pub fn run(
    options: &TalkerOptions,
    ready: impl FnOnce(),
    stop: &dyn Fn() -> bool,
) -> Result<Outcome, TalkError> {
    options.check()?;
    let socket = options.socket()?;
    let mut payload = payload::blank(options.payload_octets)?;
    let mut records = prefaulted(options.count, TalkRecord::BLANK);
    options.real_time.apply()?;
    let both = clock::both_now();
    let offset = Offset::between(both.tai, both.monotonic);
    let stamps = StampClock::now();
    let first = options.first(offset)?;
    ready();

    let mut errors = [0_u64; ERRORS];
    let mut sent = 0;
    let (mut index, mut at) = (0, first);
    let (cpu, begun) = (clock::thread_cpu_time(), clock::monotonic_now());
    while (options.count == 0 || index < options.count) && !stop() {
        let sequence = options.first_sequence.wrapping_add(index);
        if index > 0 {
            at = at.saturating_add(options.gaps.before(sequence, options.period));
        }
        let probe = Probe { sequence, tx_time: clock::to_tai(at, offset) };
        probe.write(&mut payload)?;
        let called_at = wait(options, at);
        if stop() {
            break;
        }
        index += 1;
        if send(&socket, options.mode, &payload, at.saturating_add(options.ask_later), &mut errors) {
            sent += 1;
            let returned_at = clock::to_tai(options.clock.now(), offset);
            if records.len() < records.capacity() {
                records.push(TalkRecord { probe, called_at: clock::to_tai(called_at, offset), returned_at });
            }
        }
    }
    let elapsed = clock::monotonic_now().since(begun);
    let used = clock::thread_cpu_time().saturating_sub(cpu);
    let summary = Summary {
        frames_intended: index,
        frames_sent: sent,
        errors: named_errors(&errors),
        unrecorded: sent - records.len() as u64,
        cpu_ratio: used.get() as f64 / elapsed.get().max(1) as f64,
        first_tx_time: clock::to_tai(first, offset).as_nanos(),
        clock_stepped: stamps.stepped(&StampClock::now()),
    };
    Ok(Outcome { summary, records })
}

/// Waits as the mode says and returns the reading right before the send.
fn wait(options: &TalkerOptions, at: TxTime) -> TxTime {
    match options.mode {
        Mode::TxTime { lead } => clock::sleep_until(at.saturating_add(Nanos::new(-lead.get()))),
        Mode::Sleep => clock::sleep_until(at),
        Mode::Spin { margin } => {
            clock::sleep_until(at.saturating_add(Nanos::new(-margin.get())));
            if !clock::stop_requested() {
                return clock::spin_until(at);
            }
        }
    }
    options.clock.now()
}

/// Sends; failures are counted by errno.
fn send(socket: &Udp, mode: Mode, payload: &[u8], at: TxTime, errors: &mut [u64; ERRORS]) -> bool {
    let once = || match mode {
        Mode::TxTime { .. } => socket.send_at(payload, at),
        Mode::Sleep | Mode::Spin { .. } => socket.send(payload),
    };
    // The kernel reports an ICMP error that an earlier frame caused on this call, and this frame has not been sent yet.
    for _ in 0..2 {
        match once() {
            Ok(_) => return true,
            Err(error) => {
                let errno = error.raw_os_error().and_then(|errno| usize::try_from(errno).ok()).unwrap_or(0);
                errors[errno.min(ERRORS - 1)] += 1;
                if error.kind() != io::ErrorKind::ConnectionRefused {
                    return false;
                }
            }
        }
    }
    false
}

fn named_errors(errors: &[u64; ERRORS]) -> BTreeMap<String, u64> {
    let seen = errors.iter().enumerate().filter(|(_, count)| **count > 0);
    seen.map(|(errno, &count)| (io::Error::from_raw_os_error(errno as i32).to_string(), count)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn options(destination: SocketAddr) -> TalkerOptions {
        TalkerOptions {
            destination,
            mode: Mode::Sleep,
            ask_later: Nanos::ZERO,
            clock: ScheduleClock::Tai,
            period: Nanos::from_millis(2),
            gaps: Gaps::Equal,
            payload_octets: 20,
            count: 5,
            first_sequence: 100,
            start_at: None,
            priority: None,
            real_time: RealTime::default(),
        }
    }

    fn listener() -> (Udp, SocketAddr) {
        let socket = Udp::bound("127.0.0.1:0".parse().unwrap()).unwrap();
        socket.set_receive_timeout(Nanos::from_seconds(2)).unwrap();
        let address = socket.local().unwrap();
        (socket, address)
    }

    #[test]
    fn every_mode_and_clock_serves_each_period_once_and_never_early() {
        let (socket, address) = listener();
        let lead = Nanos::from_micros(300);
        let modes = [Mode::Sleep, Mode::Spin { margin: SPIN_MARGIN }, Mode::TxTime { lead }];
        for (mode, clock) in modes.into_iter().flat_map(|mode| {
            // CLOCK_TAI with SO_TXTIME needs a right; the others don't.
            let clocks: &[ScheduleClock] = match mode {
                Mode::TxTime { .. } => &[ScheduleClock::Monotonic],
                _ => &[ScheduleClock::Tai, ScheduleClock::Monotonic],
            };
            clocks.iter().map(move |&clock| (mode, clock))
        }) {
            let mut readied = false;
            let options = TalkerOptions { mode, clock, ..options(address) };
            let outcome = run(&options, || readied = true, &|| false).unwrap();
            assert!(readied);
            assert_eq!((outcome.summary.frames_intended, outcome.summary.frames_sent), (5, 5));
            assert!(outcome.summary.errors.is_empty() && !outcome.summary.clock_stepped);
            assert!((0.0..1.0).contains(&outcome.summary.cpu_ratio));
            for (index, record) in outcome.records.iter().enumerate() {
                assert_eq!(record.probe.sequence, 100 + index as u64);
                let step = record.probe.tx_time.since(outcome.records[0].probe.tx_time);
                assert_eq!(step, options.period.saturating_mul(index as i64));
                let earliest = match mode {
                    Mode::TxTime { lead } => record.probe.tx_time.saturating_sub(lead),
                    _ => record.probe.tx_time,
                };
                assert!(record.called_at >= earliest && record.returned_at >= record.called_at);
                let mut buffer = [0; 64];
                assert_eq!(socket.receive(&mut buffer).unwrap().octets, 20);
                assert_eq!(Probe::read(&buffer), Some(record.probe));
            }
        }
    }

    #[test]
    fn the_first_transmit_time_is_the_one_asked_for_or_refused() {
        let (_socket, address) = listener();
        let at = clock::tai_now().saturating_add(Nanos::from_millis(30));
        let outcome =
            run(&TalkerOptions { start_at: Some(at), count: 1, ..options(address) }, || (), &|| false)
                .unwrap();
        assert_eq!(outcome.records[0].probe.tx_time, at);
        let past = Some(clock::tai_now().saturating_sub(Nanos::from_seconds(1)));
        let refused =
            run(&TalkerOptions { start_at: past, ..options(address) }, || (), &|| false).unwrap_err();
        assert!(matches!(refused, TalkError::Start { .. }) && refused.is_usage());
    }

    #[test]
    fn wrong_plans_name_the_field_the_value_and_what_is_expected() {
        let (_socket, address) = listener();
        let small =
            run(&TalkerOptions { payload_octets: 15, ..options(address) }, || (), &|| false).unwrap_err();
        assert!(small.is_usage());
        let text = small.to_string();
        assert!(["payload", "15", "16"].iter().all(|word| text.contains(word)), "{text}");
        let period =
            run(&TalkerOptions { period: Nanos::ZERO, ..options(address) }, || (), &|| false).unwrap_err();
        assert!(period.is_usage() && period.to_string().contains("1 us"));
    }

    #[test]
    fn a_stop_ends_an_endless_plan() {
        let (_socket, address) = listener();
        // It asks before each frame.
        let asked = std::cell::Cell::new(0);
        let stop = || {
            asked.set(asked.get() + 1);
            asked.get() > 50
        };
        let outcome = run(&TalkerOptions { count: 0, ..options(address) }, || (), &stop).unwrap();
        assert!(outcome.summary.frames_sent > 0);
        assert_eq!(
            (outcome.records.len() as u64, outcome.summary.unrecorded),
            (outcome.summary.frames_sent, 0)
        );
    }

    #[test]
    fn failed_sends_are_counted_by_name() {
        let refused = "127.0.0.1:9".parse().unwrap();
        let outcome = run(&TalkerOptions { count: 3, ..options(refused) }, || (), &|| false).unwrap();
        // Port 9 is closed: each frame leaves, each answer is told to the next send, which then still sends.
        assert_eq!(outcome.summary.frames_sent, 3);
        assert_eq!(outcome.summary.errors.values().sum::<u64>(), 2);
    }

    #[test]
    fn random_gaps_have_the_period_as_mean_and_no_pattern() {
        let mean = Nanos::from_millis(2);
        let gaps: Vec<i64> = (0..20_000).map(|number| Gaps::Random.before(number, mean).get()).collect();
        let average = gaps.iter().sum::<i64>() as f64 / gaps.len() as f64;
        assert!((average / 2e6 - 1.0).abs() < 0.03, "{average}");
        assert!(gaps.iter().all(|&gap| gap >= GAP_MIN.get()));
        // Of an exponential distribution, 63 % are below the mean.
        let below = gaps.iter().filter(|&&gap| gap < mean.get()).count() as f64 / gaps.len() as f64;
        assert!((below - 0.632).abs() < 0.02, "{below}");
        assert_eq!(Gaps::Equal.before(7, mean), mean);
    }

    proptest! {
        #[test]
        fn the_first_boundary_is_the_next_multiple(now in 0_u64..1 << 60, ahead in 0_i64..1_000_000, period in 1_000_i64..1_000_000_000) {
            let at = clock::nanos_of(first_boundary(ScheduleClock::Tai.at(now), Nanos::new(ahead), Nanos::new(period)));
            let earliest = now + 20_000_000 + ahead as u64;
            prop_assert_eq!(at % period as u64, 0);
            prop_assert!(at >= earliest && at - earliest < period as u64);
        }
    }
}
