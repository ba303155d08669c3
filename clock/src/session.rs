// SPDX-License-Identifier: Apache-2.0
//! A guest's follower at work: looks at the page, exchanges when it is time, and steers the kernel's clock.
//!
//! In: the two areas, and who steers. Out: a [`Look`] each time. Few exchanges: 0.1 s apart at first, then twice as far each time.

use crate::exchange::Client;
use crate::follower::{Event, Follower, Reading, Settings, State};
use crate::guest::{self, Areas};
use crate::kernel::{self, Claim, Pair};
use crate::page::{Leap, PageError, Status};
use crate::servo::{Command, Servo};
use crate::{Guest, counter};
use ktsn_time::Nanos;
use std::io;
use std::time::{Duration, Instant};

/// Time between two looks. A page that grows too old is seen at that moment, not at the next look.
pub const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Time between the first two exchanges after a start, a pause or a move.
const SPACING_MIN: Duration = Duration::from_millis(100);
const SPACING_MAX: Duration = Duration::from_secs(8);
/// A line with a larger error is not good: the exchanges go on at the shortest distance.
const LINE_ERROR_NS: f64 = 3000.0;
/// How often an exchange that failed is tried again.
/// Exchanges after a pause or a move in which the guest stays awake.
const HURRIED: u32 = 6;
const RETRY: Duration = Duration::from_millis(100);
/// How often a page is read that is being written.
const READS: u32 = 5;

/// What was done so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    /// Exchanges that were used.
    pub exchanges: u64,
    /// Windows without an answer, and exchanges that were refused.
    pub failures: u64,
    /// Round trip of the last exchange, in ticks of the guest.
    pub round_trip: u64,
    /// Steps of the kernel's clock.
    pub steps: u64,
}

/// What one look found.
#[derive(Clone, Debug)]
pub struct Look {
    /// Whether the time can be relied upon.
    pub state: State,
    /// The host's time, if it is known.
    pub reading: Option<Reading>,
    /// The host's time − `CLOCK_REALTIME`, before steering.
    pub offset: Option<Nanos>,
    /// `CLOCK_REALTIME` and the counter, to which `reading` belongs.
    pub pair: Pair,
    /// What a user has to hear.
    pub events: Vec<Event>,
    /// The step that the kernel's clock made.
    pub stepped: Option<Nanos>,
}

/// See the module.
#[derive(Debug)]
pub struct Session {
    areas: Areas,
    client: Client,
    follower: Follower,
    servo: Option<Servo>,
    counts: Counts,
    next_exchange: Instant,
    spacing: Duration,
    steered_at: Option<Instant>,
    /// When the page that was read last is too old.
    too_old_at: Option<Instant>,
    /// Exchanges that are in a hurry.
    hurried: u32,
}

impl Drop for Session {
    fn drop(&mut self) {
        // A clock that is steered no more must not go on with a correction. Where the kernel refuses, it has refused before.
        if let (Some(servo), Some(_)) = (&mut self.servo, self.steered_at) {
            let _ = kernel::set_rate(servo.coast());
        }
    }
}

impl Session {
    /// A follower on two areas; `servo`: it steers the kernel's clock.
    #[must_use]
    pub fn new(areas: Areas, settings: Settings, servo: Option<Servo>) -> Self {
        Self {
            areas,
            client: Client::new(counter::read()),
            follower: Follower::new(settings),
            servo,
            counts: Counts::default(),
            next_exchange: Instant::now(),
            spacing: SPACING_MIN,
            steered_at: None,
            too_old_at: None,
            hurried: 0,
        }
    }

    /// The follower.
    #[must_use]
    pub const fn follower(&self) -> &Follower {
        &self.follower
    }

    /// What was done so far.
    #[must_use]
    pub const fn counts(&self) -> Counts {
        self.counts
    }

    /// How long the caller sleeps before the next look.
    #[must_use]
    pub fn nap(&self) -> Duration {
        let next = self.too_old_at.map_or(self.next_exchange, |at| at.min(self.next_exchange));
        next.saturating_duration_since(Instant::now()).clamp(Duration::from_millis(5), LOOK_EVERY)
    }

    fn read_page(&mut self, events: &mut Vec<Event>) {
        let mut read = self.areas.read();
        for _ in 1..READS {
            if !matches!(read, Err(PageError::Busy(_))) {
                break;
            }
            // The writer writes 17 words: it was interrupted.
            std::thread::sleep(Duration::from_micros(50));
            read = self.areas.read();
        }
        self.follower.read(read, Guest(counter::read()), events);
    }

    fn exchange(&mut self, events: &mut Vec<Event>) {
        let is_hurried = self.hurried > 0;
        self.hurried = self.hurried.saturating_sub(1);
        let made = guest::exchange(&self.areas, &mut self.client, &self.follower, is_hurried);
        let done = made.map(|made| (made, self.follower.exchanged(made)));
        if let Some((made, Ok(said))) = done {
            self.counts.exchanges += 1;
            self.counts.round_trip = made.returned.0 - made.sent.0;
            let error =
                self.follower.line().zip(self.follower.page()).map(|(line, page)| line.error * page.period);
            if !said.is_empty() || error.is_none_or(|error| error > LINE_ERROR_NS) {
                self.spacing = SPACING_MIN;
            }
            events.extend(said);
            self.next_exchange = Instant::now() + self.spacing;
            self.spacing = (self.spacing * 2).min(SPACING_MAX);
        } else {
            self.counts.failures += 1;
            self.next_exchange = Instant::now() + RETRY;
        }
    }

    /// Looks once.
    ///
    /// # Errors
    /// The kernel refuses to be steered.
    pub fn look(&mut self) -> io::Result<Look> {
        let mut events = Vec::new();
        self.read_page(&mut events);
        if self.follower.line().is_none() && self.spacing > SPACING_MIN {
            // Forgotten: a pause, a move, a new publisher.
            (self.spacing, self.next_exchange, self.hurried) = (SPACING_MIN, Instant::now(), HURRIED);
        }
        if self.follower.page().is_some() && Instant::now() >= self.next_exchange {
            self.exchange(&mut events);
            // The page is older now than it need be.
            self.read_page(&mut events);
        }
        let pair = kernel::pair(5);
        let reading = self.follower.time(Guest(pair.counter));
        let offset = reading.map(|reading| reading.time.since(pair.time));
        let state = reading.map_or(State::Starting, |reading| reading.state);
        // Beyond the limit, so that this look finds it. A page that is too old already stays so until the next one.
        let left =
            reading.map(|reading| self.follower.settings().page_age_max.get() - reading.page_age.get());
        self.too_old_at = left
            .and_then(|left| u64::try_from(left).ok())
            .map(|left| Instant::now() + Duration::from_nanos(left) + Duration::from_millis(2));
        let stepped = self.steer(reading.as_ref(), offset)?;
        Ok(Look { state, reading, offset, pair, events, stepped })
    }

    /// Steers the kernel's clock, and tells it how good it is.
    fn steer(&mut self, reading: Option<&Reading>, offset: Option<Nanos>) -> io::Result<Option<Nanos>> {
        let Some(servo) = &mut self.servo else { return Ok(None) };
        let followed = reading.filter(|reading| self.follower.is_steerable(reading));
        let (Some(reading), Some(offset)) = (followed, offset) else {
            // It goes on alone.
            if self.steered_at.take().is_some() {
                kernel::set_rate(servo.coast())?;
            }
            let max_error = reading.map_or(Nanos::from_seconds(16), |reading| reading.error);
            kernel::claim(&Claim {
                is_synchronised: false,
                estimated_error: max_error,
                max_error,
                tai_offset: None,
                leap: 0,
            })?;
            return Ok(None);
        };
        let passed =
            self.steered_at.replace(Instant::now()).map_or(0.0, |before| before.elapsed().as_secs_f64());
        let mut stepped = None;
        match servo.steer(offset, passed) {
            Command::Step(by, rate) => {
                kernel::step(by)?;
                kernel::set_rate(rate)?;
                self.counts.steps += 1;
                stepped = Some(by);
            }
            Command::Rate(rate) => kernel::set_rate(rate)?,
        }
        if let Some(page) = self.follower.page() {
            let off = if stepped.is_some() { Nanos::new(0) } else { offset.abs() };
            let error = reading.error.saturating_add(off);
            kernel::claim(&Claim {
                is_synchronised: page.status == Status::Synchronized
                    && reading.state != State::Unsynchronised,
                estimated_error: page.estimated_error.saturating_add(error),
                max_error: page.max_error.saturating_add(error),
                tai_offset: page.tai_offset,
                leap: match page.leap {
                    Leap::InsertAhead => 1,
                    Leap::DeleteAhead => -1,
                    _ => 0,
                },
            })?;
        }
        Ok(stepped)
    }
}
