// SPDX-License-Identifier: Apache-2.0
//! The guest's view of its host's clock.
//!
//! In: pages as they are read, exchanges as they are made, values of the guest's counter. Out: the host's time with a bound of its error, and
//! [`Event`]s. The time never runs backwards, and every jump is an event. Pure: the caller reads the counter.

use crate::estimate::{Change, Estimator, Line, Refused};
use crate::exchange::Exchange;
use crate::page::{Page, PageError};
use crate::{Guest, Utc};
use ktsn_time::Nanos;

/// How long a publisher may be interrupted between its reading and its writing, in ns.
const INTERRUPTED_NS: f64 = 1e9;

/// What happens after the host's clock was set back.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Backward {
    /// The time runs slower by this share until the host's time is reached.
    Slew(f64),
    /// The time stands until the host's time is reached.
    Hold,
}

/// How a follower behaves.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// After a backward step of the host.
    pub backward: Backward,
    /// A page this old is no longer followed: the clock is `unsynchronised`.
    pub page_age_max: Nanos,
    /// A clock with a larger bound is `unsynchronised`.
    pub error_max: Nanos,
    /// A larger jump of the host is taken for a lie.
    pub jump_max: Nanos,
    /// A smaller change between two pages is no jump: the host's clock is steered.
    pub jump_min: Nanos,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            backward: Backward::Slew(500e-6),
            page_age_max: Nanos::from_millis(1500),
            error_max: Nanos::from_micros(100),
            jump_max: Nanos::from_seconds(86_400),
            jump_min: Nanos::from_micros(20),
        }
    }
}

/// Whether the guest's time is the host's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// No page yet, or not two exchanges: there is no reading.
    Starting,
    /// The page is fresh, and the bound is small.
    Following,
    /// The page is late; the clock goes on, and its bound grows.
    HoldOver,
    /// The page is too old, or the bound is too large.
    Unsynchronised,
}

impl State {
    /// The word for it in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Following => "following",
            Self::HoldOver => "hold-over",
            Self::Unsynchronised => "unsynchronised",
        }
    }
}

/// What a user has to hear.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Event {
    /// The host's clock was set forward; the time jumps with it.
    Forward(Nanos),
    /// The host's clock was set back; the time runs slower, or stands, until the host's is reached.
    Back(Nanos),
    /// A leap second: the time went back or forward by one second as UTC does.
    LeapSecond(Nanos),
    /// The guest's counter is another one than before: the guest was paused, or moved. Ticks of the host.
    Moved(f64),
    /// The page has another disruption marker: its publisher is a new one, or the guest was moved.
    Disrupted,
    /// TAI − UTC changed.
    TaiOffset(Option<i16>, Option<i16>),
    /// The page is an older ktsn's. Once for each publisher.
    OlderPage,
    /// The page cannot be used. Once for each kind of lie.
    Refused(PageError),
}

impl std::fmt::Display for Event {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let seconds =
            |offset: &Option<i16>| offset.map_or("unknown".to_owned(), |value| format!("{value} s"));
        match self {
            Self::Forward(by) => {
                write!(out, "the host's clock was set forward by {by}: the time jumps forward with it")
            }
            Self::Back(by) => {
                write!(
                    out,
                    "the host's clock was set back by {by}: the time runs slower or stands until it agrees"
                )
            }
            Self::LeapSecond(by) => write!(out, "a leap second: UTC changed by {by}"),
            Self::Moved(ticks) => {
                write!(
                    out,
                    "the counter's offset changed by {ticks:.0} ticks: the guest was paused or moved; exchanging again"
                )
            }
            Self::Disrupted => out.write_str("the page has a new disruption marker: exchanging again"),
            Self::TaiOffset(from, to) => {
                write!(out, "TAI - UTC changed from {} to {}", seconds(from), seconds(to))
            }
            Self::OlderPage => out.write_str(
                "the host's ktsn is older than this one: the page has TAI - UTC where UTC - TAI is expected; update the host, the next version does not read such a page",
            ),
            Self::Refused(error) => write!(out, "the page is not used: {error}"),
        }
    }
}

/// A reading of the guest's view of the host's clock.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reading {
    /// The time.
    pub time: Utc,
    /// The host's time as the page says, without what is held back after a backward step.
    pub host_time: Utc,
    /// Bound of the difference of `time` to the host's clock, with `held_back`.
    pub error: Nanos,
    /// How far `time` is ahead of `host_time` after a backward step of the host.
    pub held_back: Nanos,
    /// TAI − UTC in seconds.
    pub tai_offset: Option<i16>,
    /// How old the page is.
    pub page_age: Nanos,
    /// Whether it can be relied upon.
    pub state: State,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Follower {
    settings: Settings,
    estimator: Estimator,
    page: Option<Page>,
    /// The count of the page's write.
    count: u32,
    /// The last page that is known to be none of the future, while `page` is not known to be one: the next exchange tells.
    page_before: Option<Page>,
    /// The count of a page of the future, which is not read again.
    count_refused: Option<u32>,
    /// What the time is ahead of the host's after a backward step, in ns, and since when it shrinks.
    ahead: (f64, Guest),
    last: Utc,
    /// When the page was read before.
    read_at: Option<Guest>,
    /// Until then the guest's counter may be another one.
    doubt_until: Option<Guest>,
    /// The last refusal, by kind, so that each is said once.
    refused: Option<std::mem::Discriminant<PageError>>,
}

impl Follower {
    /// A follower that knows nothing.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            estimator: Estimator::default(),
            page: None,
            count: 0,
            page_before: None,
            count_refused: None,
            ahead: (0.0, Guest(0)),
            last: Utc(0),
            read_at: None,
            doubt_until: None,
            refused: None,
        }
    }

    /// How it behaves.
    #[must_use]
    pub const fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Whether a clock may be steered to this reading: the host's time is known. After a backward step of the host the reading is off it by
    /// intent, and `unsynchronised`; a clock that is not steered then would never come back.
    #[must_use]
    pub fn is_steerable(&self, reading: &Reading) -> bool {
        let known = Nanos::new(reading.error.get().saturating_sub(reading.held_back.get()));
        match reading.state {
            State::Following | State::HoldOver => true,
            State::Unsynchronised => {
                reading.page_age.abs() <= self.settings.page_age_max && known <= self.settings.error_max
            }
            State::Starting => false,
        }
    }

    /// The line between the counters.
    #[must_use]
    pub const fn line(&self) -> Option<&Line> {
        self.estimator.line()
    }

    /// The last page that was used.
    #[must_use]
    pub const fn page(&self) -> Option<&Page> {
        self.page.as_ref()
    }

    /// Takes an exchange. The page was read before it was made.
    ///
    /// # Errors
    /// [`Refused`].
    pub fn exchanged(&mut self, exchange: Exchange) -> Result<Vec<Event>, Refused> {
        let before = self.readable(exchange.returned);
        let mut events = match self.estimator.add(exchange)? {
            Change::Agrees => Vec::new(),
            Change::Moved(ticks) => vec![Event::Moved(ticks)],
        };
        if events.is_empty() {
            self.keep_time(before, exchange.returned);
        }
        let page_before = self.page_before.take();
        match self.page {
            // The host's counter had not reached the page when it was read. The page before it goes on, and ages.
            Some(page) if page.counter > exchange.answered => {
                (self.page, self.count_refused) = (page_before, Some(self.count));
                self.refuse(PageError::CounterAhead(page.counter.0 - exchange.answered.0), &mut events);
            }
            Some(_) => self.refused = None,
            None => {}
        }
        Ok(events)
    }

    /// A better line moves the time a little: not backwards.
    fn keep_time(&mut self, before: Option<f64>, at: Guest) {
        if let (Some(before), Some(after)) = (before, self.readable(at)) {
            let back = before - after;
            let ahead = self.ahead_at(at);
            if back > 0.0 && matches!(self.settings.backward, Backward::Slew(_)) {
                self.ahead = (ahead + back, at);
            }
        }
    }

    /// The host's time at `at` by line and page, in ns since the page; for differences.
    fn readable(&self, at: Guest) -> Option<f64> {
        let (page, line) = (self.page?, self.line().filter(|line| line.rate_error.is_finite())?);
        Some((i128::from(line.host_at(at).0) - i128::from(page.counter.0)) as f64 * page.period)
    }

    /// Takes a page, or why there is none; it was read when the guest's counter was at most `at`.
    pub fn read(&mut self, read: Result<(Page, u32), PageError>, at: Guest, events: &mut Vec<Event>) {
        let read_before = self.read_at.replace(at);
        self.doubt(read_before, at);
        let (page, count) = match read {
            Ok(read) => read,
            Err(error) => return self.refuse(error, events),
        };
        if self.count_refused == Some(count) {
            return;
        }
        if self.page.is_some() && count == self.count {
            self.check_offset(None, at, events);
            return;
        }
        let Some(before) = self.page else {
            (self.page, self.count) = (Some(page), count);
            if page.has_older_sign {
                events.push(Event::OlderPage);
            }
            return;
        };
        if let Err(error) = page.check_after(&before, self.settings.jump_max) {
            return self.refuse(error, events);
        }
        if page.marker != before.marker {
            self.estimator.forget();
            events.push(Event::Disrupted);
        }
        if page.has_older_sign && !before.has_older_sign {
            events.push(Event::OlderPage);
        }
        if page.tai_offset != before.tai_offset {
            events.push(Event::TaiOffset(before.tai_offset, page.tai_offset));
        }
        let ahead = self.ahead_at(at);
        // Across another counter the two pages cannot be compared by it.
        if page.marker == before.marker {
            self.take_step(&page, &before, ahead, at, events);
        }
        (self.page, self.count) = (Some(page), count);
        self.check_offset(read_before, at, events);
        if self.line().is_some_and(|line| line.rate_error.is_finite()) {
            (self.page_before, self.refused) = (None, None);
        } else {
            self.page_before.get_or_insert(before);
        }
    }

    fn refuse(&mut self, error: PageError, events: &mut Vec<Event>) {
        let kind = std::mem::discriminant(&error);
        // A look that met a write is no fault of the page; one that stays so ages.
        if self.refused.replace(kind) != Some(kind) && !matches!(error, PageError::Busy(_)) {
            events.push(Event::Refused(error));
        }
    }

    /// The host's clock may have been set between two pages.
    fn take_step(&mut self, page: &Page, before: &Page, ahead: f64, at: Guest, events: &mut Vec<Event>) {
        let by = page.time.since(before.time_at(page.counter));
        // What the frequency may have changed meanwhile is no step.
        let age = before.age(page.counter).get() as f64;
        let steered = self.settings.jump_min.get() as f64 + age * (before.period_error + page.period_error);
        let leap = match (before.tai_offset, page.tai_offset) {
            (Some(before), Some(after)) => f64::from(before - after) * 1e9,
            _ => 0.0,
        };
        let size = by.get() as f64;
        // More than one second at once is no leap second, whatever the offsets are said to be.
        if leap.abs() == 1e9 && (size - leap).abs() <= steered {
            events.push(Event::LeapSecond(by));
            self.last = self.last.saturating_add(by);
        } else if size > steered {
            events.push(Event::Forward(by));
            // What was held back is reached sooner.
            self.ahead = ((ahead - size).max(0.0), at);
        } else {
            if size < -steered {
                events.push(Event::Back(by));
            }
            if size < 0.0 && matches!(self.settings.backward, Backward::Slew(_)) {
                self.ahead = (ahead - size, at);
            }
        }
    }

    /// Whether the counters' distance says that it is more than the limit since `before`.
    fn is_long_since(&self, before: Guest, at: Guest) -> bool {
        let (Some(page), Some(line)) = (self.page, self.line()) else { return false };
        let passed = (i128::from(at.0) - i128::from(before.0)) as f64 * line.rate * page.period;
        !(0.0..=self.settings.page_age_max.get() as f64).contains(&passed)
    }

    /// The guest slept long, or its counter was set: the pages that come now tell.
    fn doubt(&mut self, read_before: Option<Guest>, at: Guest) {
        if read_before.is_some_and(|before| self.is_long_since(before, at))
            && let (Some(page), Some(line)) = (self.page, self.line())
        {
            let ticks = 4.0 * page.interval.get() as f64 / (page.period * line.rate);
            self.doubt_until = Some(Guest(at.0.saturating_add(ticks as u64)));
        }
        if self.doubt_until.is_some_and(|until| at > until) {
            self.doubt_until = None;
        }
    }

    /// A host's counter value in the page that the guest's counter has not reached: the guest stood still meanwhile. One that is far older
    /// than the read before, at which the page was another one: the guest's counter was set forward.
    fn check_offset(&mut self, read_before: Option<Guest>, at: Guest, events: &mut Vec<Event>) {
        let (Some(page), Some(line)) = (self.page, self.line().copied()) else { return };
        let error = line.error_at(at);
        if !error.is_finite() {
            return;
        }
        let ahead_of = |at: Guest| (i128::from(page.counter.0) - i128::from(line.host_at(at).0)) as f64;
        let early = ahead_of(at) - error - 1.0;
        // A publisher may be interrupted between its reading and its writing.
        let late =
            read_before.map_or(f64::MIN, |before| -ahead_of(before) - error - INTERRUPTED_NS / page.period);
        if early > 0.0 || late > 0.0 {
            self.estimator.forget();
            events.push(Event::Moved(early.max(late)));
        }
    }

    /// What the time is ahead of the host's.
    fn ahead_at(&self, at: Guest) -> f64 {
        let (ahead, since) = self.ahead;
        let Backward::Slew(share) = self.settings.backward else { return 0.0 };
        let (Some(page), Some(line)) = (self.page, self.line()) else { return ahead };
        let passed = at.0.saturating_sub(since.0) as f64 * line.rate * page.period;
        (ahead - passed * share).max(0.0)
    }

    /// The time when the guest's counter is `at`. `None` before the first page and the second exchange, which gives the counter's rate;
    /// and when the page was not read for longer than it may be old: what the counter did meanwhile is not known.
    pub fn time(&mut self, at: Guest) -> Option<Reading> {
        let (page, line) = (self.page?, *self.line().filter(|line| line.rate_error.is_finite())?);
        let host = line.host_at(at);
        let host_time = page.time_at(host);
        let is_unseen = self.read_at.is_none_or(|read_at| at > read_at && self.is_long_since(read_at, at));
        // A fresh page takes the doubt away.
        let is_doubtful = self.doubt_until.is_some() && page.age(host) > self.settings.page_age_max;
        if is_unseen || is_doubtful {
            return None;
        }
        let ahead = self.ahead_at(at);
        let shown = host_time.saturating_add(Nanos::new(ahead as i64)).max(self.last);
        self.last = shown;
        let page_age = page.age(host);
        let drift = page_age.get().max(0) as f64 * page.period_error;
        let held_back = shown.since(host_time).get().max(0);
        let error = line.error_at(at) * page.period + drift + page.reading_error.get() as f64;
        let error = Nanos::new(error as i64).saturating_add(Nanos::new(held_back.saturating_add(1)));
        let late = Nanos::new((4 * page.interval.get()).max(200_000_000));
        // A page of the future is no fresh one.
        let state = if page_age.abs() > self.settings.page_age_max || error > self.settings.error_max {
            State::Unsynchronised
        } else if page_age > late {
            State::HoldOver
        } else {
            State::Following
        };
        let held_back = Nanos::new(held_back);
        Some(Reading {
            time: shown,
            host_time,
            error,
            held_back,
            tai_offset: page.tai_offset,
            page_age,
            state,
        })
    }
}
