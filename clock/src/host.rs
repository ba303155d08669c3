// SPDX-License-Identifier: Apache-2.0
//! The host's side: publishes the page, and serves windows of exchanges.
//!
//! In: the host's clock and counter, a page and an exchange area of one guest. Out: the page, until the caller says stop. The time that windows
//! may take is bounded, whatever the guest asks for.

use crate::exchange::Server;
use crate::kernel::{self, Pair};
use crate::page::{Leap, Page, Status};
use crate::region::{OCTETS, Region};
use crate::{Host, counter};
use ktsn_time::Nanos;
use std::collections::VecDeque;
use std::io;
use std::time::{Duration, Instant};

/// How often a page is published.
pub const INTERVAL: Duration = Duration::from_millis(50);
/// How long a window may take.
const WINDOW: Duration = Duration::from_micros(2500);
/// The share of a CPU that windows may take on average.
const WINDOWS_SHARE: f64 = 0.002;
/// What may be saved of that share.
const SAVED_MAX: Duration = Duration::from_millis(25);
/// After a disruption a guest's requests are looked for this often, for this long: its first exchanges do not wait for pages.
const HURRY_EVERY: Duration = Duration::from_millis(2);
const HURRY_FOR: Duration = Duration::from_secs(2);
/// Windows that end the hurry: two exchanges give the counter's rate.
const HURRY_WINDOWS: u64 = 2;
/// A disruption gives all of the time that may be saved, this often at most: a guest can wake itself again and again.
const REFILL_EVERY: Duration = Duration::from_secs(10);
/// Pairs that give the period: half a second.
const PAIRS: usize = 10;
/// The kernel's clock may be steered between two pages.
const PERIOD_ERROR_MIN: f64 = 1e-6;
/// A larger difference to what was expected is a step.
const STEP_MIN_NS: f64 = 20_000.0;

/// What to publish, and how often.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Time between two pages: 1 ms to 1 s.
    pub interval: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self { interval: INTERVAL }
    }
}

/// What a publisher did.
#[derive(Clone, Copy, Debug, Default)]
pub struct Done {
    /// Pages.
    pub pages: u64,
    /// Windows that were opened.
    pub windows: u64,
    /// Answers in them.
    pub answers: u64,
    /// Steps of the host's clock that were seen.
    pub steps: u64,
    /// Disruptions that the hypervisor has reported.
    pub disruptions: u64,
}

/// Why a publisher's sleep ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Woken {
    /// It is over.
    Slept,
    /// The hypervisor says that the guest's counter has another relation to the host's: the guest was paused, or moved.
    Disrupted,
}

/// What a publisher asks its caller.
pub trait Pace {
    /// Whether it goes on; asked before each page.
    fn goes_on(&mut self) -> bool;
    /// Sleeps this long, or until the hypervisor says something.
    fn sleep(&mut self, nap: Duration) -> Woken {
        std::thread::sleep(nap);
        Woken::Slept
    }
}

/// The counter's period from pairs.
#[derive(Clone, Debug, Default)]
struct Period {
    pairs: VecDeque<Pair>,
    period: f64,
    error: f64,
}

impl Period {
    /// Takes a pair; whether the clock was set since the one before.
    fn add(&mut self, pair: Pair) -> bool {
        let mut is_step = false;
        if let Some(last) = self.pairs.back() {
            let ticks = pair.counter.wrapping_sub(last.counter) as f64;
            let off = pair.time.since(last.time).get() as f64 - ticks * self.period;
            is_step = self.period > 0.0 && off.abs() > STEP_MIN_NS + ticks * self.period * 600e-6;
        }
        if is_step {
            self.pairs.clear();
        }
        self.pairs.push_back(pair);
        if self.pairs.len() > PAIRS {
            self.pairs.pop_front();
        }
        if let (Some(first), Some(last)) = (self.pairs.front(), self.pairs.back())
            && self.pairs.len() > 1
        {
            let ticks = last.counter.wrapping_sub(first.counter) as f64;
            let period = last.time.since(first.time).get() as f64 / ticks;
            let reading = (first.error + last.error) as f64 / ticks;
            let changed = if self.period > 0.0 { (period / self.period - 1.0).abs() } else { 0.0 };
            // The clock's frequency may change again as it changed lately.
            self.error = (2.0 * changed).max(self.error * 0.9).max(reading).clamp(PERIOD_ERROR_MIN, 1e-3);
            self.period = period;
        }
        is_step
    }
}

/// Publishes for one guest.
#[derive(Debug)]
pub struct Publisher {
    page: Region,
    area: Region,
    options: Options,
    server: Server,
    marker: u64,
    period: Period,
    saved: Duration,
    /// Since when a disruption makes the publisher look often, and the windows until then.
    hurry: Option<(Instant, u64)>,
    refilled_at: Option<Instant>,
    done: Done,
}

impl Publisher {
    /// Takes over a guest's two areas.
    ///
    /// # Errors
    /// The interval is none that a page may have.
    pub fn new(page: Region, area: Region, options: Options) -> io::Result<Self> {
        if !(Duration::from_millis(1)..=Duration::from_secs(1)).contains(&options.interval) {
            let problem = format!("{:?} between two pages, expected 1 ms to 1 s", options.interval);
            return Err(io::Error::new(io::ErrorKind::InvalidInput, problem));
        }
        let server = Server::new(&area);
        let marker = kernel::pair(1).time.0 ^ counter::read().rotate_left(32);
        Ok(Self {
            page,
            area,
            options,
            server,
            marker,
            period: Period::default(),
            saved: SAVED_MAX,
            hurry: None,
            refilled_at: None,
            done: Done::default(),
        })
    }

    /// Says that the guest's counter has another relation to the host's from now on: it was paused, or moved.
    pub fn disrupt(&mut self) {
        self.marker = self.marker.wrapping_add(1);
    }

    /// What was done.
    #[must_use]
    pub const fn done(&self) -> Done {
        self.done
    }

    /// Publishes until the pace says no.
    ///
    /// # Errors
    /// The kernel does not tell its clock's state.
    pub fn run(&mut self, pace: &mut dyn Pace) -> io::Result<()> {
        // A first period, from two pairs close to each other.
        self.period.add(kernel::pair(9));
        std::thread::sleep(Duration::from_millis(5));
        let mut next = Instant::now();
        while pace.goes_on() {
            self.publish(0)?;
            if let Some(window) = self.server.wanted(&self.area) {
                self.serve(window)?;
            }
            let earned = self.options.interval.mul_f64(WINDOWS_SHARE);
            self.saved = (self.saved + earned).min(SAVED_MAX);
            next += self.options.interval;
            let now = Instant::now();
            if next < now {
                // The host stood still: no pages are made up for.
                next = now + self.options.interval;
            }
            self.sleep_until(next, pace)?;
        }
        Ok(())
    }

    /// Sleeps until the next page. A disruption is published at once, and windows are then served without waiting for pages.
    fn sleep_until(&mut self, next: Instant, pace: &mut dyn Pace) -> io::Result<()> {
        loop {
            let left = next.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            let nap = if self.hurry.is_some() { left.min(HURRY_EVERY) } else { left };
            if pace.sleep(nap) == Woken::Disrupted {
                self.disrupt();
                self.done.disruptions += 1;
                self.hurry = Some((Instant::now(), self.done.windows));
                if self.refilled_at.is_none_or(|at| at.elapsed() > REFILL_EVERY) {
                    (self.saved, self.refilled_at) = (SAVED_MAX, Some(Instant::now()));
                }
                self.publish(0)?;
            }
            let Some((since, windows)) = self.hurry else { continue };
            if since.elapsed() > HURRY_FOR || self.done.windows >= windows + HURRY_WINDOWS {
                self.hurry = None;
            } else if let Some(window) = self.server.wanted(&self.area) {
                self.serve(window)?;
            }
        }
    }

    /// Opens a window if there is time saved for it.
    fn serve(&mut self, window: u64) -> io::Result<()> {
        if self.saved < WINDOW {
            return Ok(());
        }
        self.done.windows += 1;
        self.server.begin(&self.area);
        self.publish(window)?;
        let began = Instant::now();
        let answers =
            self.server.serve(&self.area, window, &mut counter::read, &mut || began.elapsed() < WINDOW);
        self.done.answers += u64::from(answers);
        self.saved = self.saved.saturating_sub(began.elapsed());
        self.publish(0)
    }

    fn take(&mut self, pair: Pair, window: u64) {
        // The host slept, or was moved itself: without another marker its guests would refuse every page.
        if self.period.pairs.back().is_some_and(|last| pair.counter < last.counter) {
            self.disrupt();
            self.period.pairs.clear();
        }
        // Right after the pair before, a pair says nothing about the period.
        if window == 0 && self.period.add(pair) {
            self.done.steps += 1;
        }
    }

    fn publish(&mut self, window: u64) -> io::Result<()> {
        let pair = kernel::pair(5);
        self.take(pair, window);
        let state = kernel::state()?;
        let nanos = |span: Duration| Nanos::new(i64::try_from(span.as_nanos()).unwrap_or(i64::MAX));
        let page = Page {
            kind: counter::KIND,
            marker: self.marker,
            status: if state.is_synchronised { Status::Synchronized } else { Status::FreeRunning },
            tai_offset: i16::try_from(state.tai_offset).ok().filter(|&offset| offset != 0),
            has_older_sign: false,
            leap: match state.leap {
                1 => Leap::InsertAhead,
                -1 => Leap::DeleteAhead,
                _ => Leap::None,
            },
            counter: Host(pair.counter),
            time: pair.time,
            period: self.period.period,
            period_error: self.period.error,
            estimated_error: state.estimated_error,
            max_error: state.max_error,
            interval: nanos(self.options.interval),
            reading_error: Nanos::new((pair.error as f64 * self.period.period) as i64 + 1),
            window,
            windows: self.done.windows,
            cpu: kernel::thread_cpu(),
        };
        page.write(&self.page, OCTETS);
        self.done.pages += 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Utc;

    /// A counter that began again makes another marker, so that guests go on; the period stays what it was.
    #[test]
    fn a_counter_that_went_back_is_said() {
        let directory = tempfile::tempdir().unwrap();
        let area = |name| Region::create(&directory.path().join(name)).unwrap();
        let mut publisher = Publisher::new(area("page"), area("exchange"), Options::default()).unwrap();
        let pair = |counter, millis| Pair {
            counter,
            time: Utc(1_790_000_000_000_000_000 + millis * 1_000_000),
            error: 10,
        };
        for millis in 0..5 {
            publisher.take(pair(1_000_000_000_000 + millis * 3_000_000, millis), 0);
        }
        let (marker, period) = (publisher.marker, publisher.period.period);
        publisher.take(pair(5_000, 9_000), 0);
        assert_ne!(publisher.marker, marker);
        publisher.take(pair(5_000 + 3_000_000, 9_001), 0);
        assert!((publisher.period.period / period - 1.0).abs() < 1e-6, "{period} {:?}", publisher.period);
    }

    /// A guest that asks as soon as it runs again.
    struct Resumed {
        area: Region,
        client: crate::exchange::Client,
        asked: u32,
        naps: Vec<Duration>,
    }

    impl Pace for Resumed {
        fn goes_on(&mut self) -> bool {
            self.asked < 2
        }

        fn sleep(&mut self, nap: Duration) -> Woken {
            self.naps.push(nap);
            if self.asked < 2 {
                self.asked += 1;
                self.client.ask(&self.area);
            }
            if self.asked == 1 {
                return Woken::Disrupted;
            }
            std::thread::sleep(nap);
            Woken::Slept
        }
    }

    /// A pause that the hypervisor tells of makes another marker and serves two windows before the next page, then the hurry ends.
    #[test]
    fn after_a_pause_windows_do_not_wait_for_pages() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        let options = Options { interval: Duration::from_millis(400) };
        let (page, area) =
            Region::create_both(&path("page"), &path("exchange")).map_err(|(_, error)| error).unwrap();
        let mut publisher = Publisher::new(page, area, options).unwrap();
        // The windows before the pause left no time.
        publisher.saved = Duration::ZERO;
        let marker = publisher.marker;
        let area = Region::open(&path("exchange"), true).unwrap();
        let client = crate::exchange::Client::new(7);
        let mut guest = Resumed { area, client, asked: 0, naps: Vec::new() };
        publisher.run(&mut guest).unwrap();
        assert_eq!((publisher.done.disruptions, publisher.done.windows), (1, 2));
        let page = Region::open(&path("page"), false).unwrap();
        assert_ne!(Page::read(&page, counter::KIND).unwrap().0.marker, marker);
        let hurried = guest.naps.iter().filter(|nap| **nap <= HURRY_EVERY).count();
        assert!((1..=3).contains(&hurried) && guest.naps[0] > HURRY_EVERY, "{:?}", guest.naps);
        assert!(
            guest.naps.last().is_some_and(|nap| *nap > HURRY_EVERY),
            "the hurry went on: {:?}",
            guest.naps
        );
    }
}
