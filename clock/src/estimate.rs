// SPDX-License-Identifier: Apache-2.0
//! The line between a guest's counter and its host's, from round trips.
//!
//! In: [`Exchange`]s. Out: a [`Line`] with a bound of its error that holds for every delay of the round trips: a request is seen after it was
//! sent, an answer returns after it was given. Each exchange so gives one point above the line and one below. The rates that pass between
//! all points are an interval; a rate of exactly 1 is taken while it is possible, because hypervisors scale a counter seldom.

use crate::exchange::Exchange;
use crate::{Guest, Host};
use std::collections::VecDeque;

/// Windows that are kept.
const KEPT: usize = 24;
/// A disagreement below this, in ticks of the host, is no change of the offset: the line is only made again.
const SMALL_TICKS: f64 = 3000.0;
/// Rates beyond are no hypervisor's.
const RATES: std::ops::RangeInclusive<f64> = 1e-3..=1e3;

/// `host = host₀ + rate · (guest − guest₀)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Line {
    /// The guest's counter at the newest exchange.
    pub guest: Guest,
    /// The host's counter then.
    pub host: Host,
    /// Ticks of the host in a tick of the guest.
    pub rate: f64,
    /// Bound of the error of `host`, in ticks of the host.
    pub error: f64,
    /// Bound of the error of `rate`; infinite after a single window.
    pub rate_error: f64,
}

impl Line {
    /// The host's counter when the guest's is `at`.
    #[must_use]
    pub fn host_at(&self, at: Guest) -> Host {
        let ticks = (i128::from(at.0) - i128::from(self.guest.0)) as f64 * self.rate;
        Host(self.host.0.wrapping_add_signed(ticks.round() as i64))
    }

    /// Bound of the error of [`Line::host_at`], in ticks of the host.
    #[must_use]
    pub fn error_at(&self, at: Guest) -> f64 {
        let away = (i128::from(at.0) - i128::from(self.guest.0)).unsigned_abs() as f64;
        // An infinite rate error at no distance is still no known error.
        self.error + if away == 0.0 { 0.0 } else { away * self.rate_error }
    }
}

/// What an exchange did.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Change {
    /// It agrees with those before.
    Agrees,
    /// It does not, by this many ticks of the host: the guest's counter is another one than before. All before is forgotten.
    Moved(f64),
}

/// Why an exchange was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The host answered before it received, or the guest had the answer before it asked.
    #[error("an exchange whose time stamps go back: {0:?}")]
    Order(Exchange),
    /// The time stamps of one window lie too far apart, or it is older than the newest one.
    #[error("an exchange that is older than the one before: {0:?}")]
    Old(Exchange),
}

/// The lines that are possible.
#[derive(Clone, Debug, Default)]
pub struct Estimator {
    exchanges: VecDeque<Exchange>,
    line: Option<Line>,
    /// The rate before the guest's counter moved.
    rate_before: Option<f64>,
}

/// A difference of counters as a number.
fn span(to: u64, from: u64) -> f64 {
    (i128::from(to) - i128::from(from)) as f64
}

impl Estimator {
    /// The best line, if there was an exchange.
    #[must_use]
    pub const fn line(&self) -> Option<&Line> {
        self.line.as_ref()
    }

    /// Forgets every exchange: the counter is another one.
    pub fn forget(&mut self) {
        self.rate_before = self.line.map(|line| line.rate).or(self.rate_before);
        self.exchanges.clear();
        self.line = None;
    }

    /// Takes the best exchange of a window: the one with the shortest round trip.
    ///
    /// # Errors
    /// [`Refused`]; nothing changes then.
    pub fn add(&mut self, exchange: Exchange) -> Result<Change, Refused> {
        if exchange.answered < exchange.received || exchange.returned < exchange.sent {
            return Err(Refused::Order(exchange));
        }
        if self.exchanges.back().is_some_and(|last| exchange.sent < last.returned) {
            return Err(Refused::Old(exchange));
        }
        let expected = self.line;
        self.exchanges.push_back(exchange);
        if self.exchanges.len() > KEPT {
            // The oldest stays: it gives the rate its longest baseline.
            self.exchanges.remove(1);
        }
        if let Some(line) = self.fit() {
            self.line = Some(line);
            return Ok(Change::Agrees);
        }
        self.rate_before = expected.map(|line| line.rate).or(self.rate_before);
        self.exchanges.clear();
        self.exchanges.push_back(exchange);
        self.line = self.fit();
        let off = expected.map_or(0.0, |line| outside(&line, &exchange));
        Ok(if off > SMALL_TICKS { Change::Moved(off) } else { Change::Agrees })
    }

    /// The line between all points; `None` if there is none.
    fn fit(&self) -> Option<Line> {
        let newest = *self.exchanges.back()?;
        // From here on everything is relative to the newest exchange.
        let above =
            |one: &Exchange| (span(one.sent.0, newest.returned.0), span(one.received.0, newest.answered.0));
        let below = |one: &Exchange| {
            (span(one.returned.0, newest.returned.0), span(one.answered.0, newest.answered.0))
        };
        let (mut least, mut most) = (*RATES.start(), *RATES.end());
        for low in self.exchanges.iter().map(below) {
            for high in self.exchanges.iter().map(above) {
                // low.1 − rate·low.0 ≤ high.1 − rate·high.0
                let (run, rise) = (high.0 - low.0, high.1 - low.1);
                if run > 0.0 {
                    most = most.min(rise / run);
                } else if run < 0.0 {
                    least = least.max(rise / run);
                } else if rise < 0.0 {
                    return None;
                }
            }
        }
        let is_single = self.exchanges.len() == 1;
        // Rounding: quotients of numbers with 53 bits.
        let slack = 4.0 * f64::EPSILON * most;
        if least > most + slack {
            return None;
        }
        let likely = self.rate_before.unwrap_or(1.0);
        let rate = if is_single || (least..=most).contains(&likely) {
            likely
        } else if (least..=most).contains(&1.0) {
            1.0
        } else {
            f64::midpoint(least, most)
        };
        // The host's counter at the newest exchange: at most and at least, with a given rate.
        let low =
            |rate: f64| self.exchanges.iter().map(below).map(|(x, y)| y - rate * x).fold(f64::MIN, f64::max);
        let high =
            |rate: f64| self.exchanges.iter().map(above).map(|(x, y)| y - rate * x).fold(f64::MAX, f64::min);
        let middle = f64::midpoint(low(rate), high(rate));
        let rates = if is_single { (rate / 2.0, rate * 2.0) } else { (least.min(most), most) };
        let error = (middle - lowest(rates, low)).max(-lowest(rates, |rate| -high(rate)) - middle).max(0.0);
        Some(Line {
            guest: newest.returned,
            host: Host(newest.answered.0.wrapping_add_signed(middle.round() as i64)),
            rate,
            error: error + 1.0,
            rate_error: if is_single {
                f64::INFINITY
            } else {
                (most - rate).max(rate - least).max(0.0) + slack
            },
        })
    }
}

/// The least value of a convex function in an interval.
fn lowest((mut from, mut to): (f64, f64), value: impl Fn(f64) -> f64) -> f64 {
    for _ in 0..80 {
        let third = (to - from) / 3.0;
        let (left, right) = (from + third, to - third);
        if value(left) <= value(right) {
            to = right;
        } else {
            from = left;
        }
    }
    value(f64::midpoint(from, to))
}

/// How far the line passes outside of an exchange's two points, in ticks of the host.
fn outside(line: &Line, exchange: &Exchange) -> f64 {
    let above = span(line.host_at(exchange.sent).0, exchange.received.0);
    let below = span(exchange.answered.0, line.host_at(exchange.returned).0);
    above.max(below).max(0.0)
}
