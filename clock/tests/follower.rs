// SPDX-License-Identifier: Apache-2.0
//! The follower against a synthetic host with known offset, scale and time: the truth is computed, not measured.

use ktsn_clock::exchange::Exchange;
use ktsn_clock::follower::{Backward, Event, Follower, Reading, Settings, State};
use ktsn_clock::page::{CounterKind, Leap, Page, PageError, Status};
use ktsn_clock::{Guest, Host, Utc};
use ktsn_time::Nanos;
use proptest::prelude::*;

const MS: i64 = 1_000_000;
/// Nanoseconds of the world between two pages.
const INTERVAL: i64 = 50 * MS;
const START: u64 = 1_790_000_000_000_000_000;

/// A host and its guest. `now`: ns of the world.
struct World {
    now: i64,
    /// Host ticks in a nanosecond.
    host_rate: f64,
    /// Guest ticks in a tick of the host.
    scale: f64,
    /// The guest's counter when the host's is 0.
    offset: f64,
    /// How far the host's clock is from the world's, in ns, and its rate's error.
    host_clock: i64,
    rate_error: f64,
    marker: u64,
    tai_offset: Option<i16>,
    has_older_sign: bool,
    seed: u64,
    count: u32,
    follower: Follower,
    events: Vec<Event>,
    /// The last reading's time.
    shown: Utc,
}

impl World {
    fn new(scale: f64, seed: u64, settings: Settings) -> Self {
        Self {
            now: 1_000 * MS,
            host_rate: 2.9,
            scale,
            offset: 1e12 + seed as f64 % 1e9,
            host_clock: 0,
            rate_error: 0.0,
            marker: seed,
            tai_offset: None,
            has_older_sign: false,
            seed,
            count: 0,
            follower: Follower::new(settings),
            events: Vec::new(),
            shown: Utc(0),
        }
    }

    /// 0 ≤ x < 1.
    fn random(&mut self) -> f64 {
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.seed >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn host_at(&self, now: i64) -> Host {
        Host((now as f64 * self.host_rate) as u64)
    }

    fn guest_at(&self, now: i64) -> Guest {
        Guest((now as f64 * self.host_rate * self.scale + self.offset) as u64)
    }

    /// The truth: the host's clock.
    fn true_at(&self, now: i64) -> Utc {
        Utc(START.wrapping_add_signed(now + self.host_clock + (now as f64 * self.rate_error) as i64))
    }

    fn page(&self) -> Page {
        Page {
            kind: CounterKind::X86Tsc,
            marker: self.marker,
            status: Status::Synchronized,
            tai_offset: self.tai_offset,
            has_older_sign: self.has_older_sign,
            leap: Leap::None,
            counter: self.host_at(self.now),
            time: self.true_at(self.now),
            period: (1.0 + self.rate_error) / self.host_rate,
            period_error: 1e-6,
            estimated_error: Nanos::new(0),
            max_error: Nanos::new(1000),
            interval: Nanos::new(INTERVAL),
            reading_error: Nanos::new(2),
            window: 0,
            windows: 0,
            cpu: Nanos::new(0),
        }
    }

    /// Publishes, and lets the follower read up to 10 ms later.
    fn publish(&mut self) {
        self.count += 2;
        let page = self.page();
        self.now += (self.random() * 10.0 * MS as f64) as i64;
        self.read(Ok((page, self.count)));
    }

    fn read(&mut self, read: Result<(Page, u32), PageError>) {
        let at = self.guest_at(self.now);
        self.follower.read(read, at, &mut self.events);
    }

    /// The best round trip of a window: 0.2 µs to 1 µs each way, asymmetric as it likes.
    fn exchange(&mut self) {
        let (there, back) = (200 + (self.random() * 800.0) as i64, 200 + (self.random() * 800.0) as i64);
        let sent = self.guest_at(self.now);
        let received = self.host_at(self.now + there);
        let answered = self.host_at(self.now + there + 20);
        self.now += there + 20 + back;
        let exchange = Exchange { sent, received, answered, returned: self.guest_at(self.now) };
        let events = self.follower.exchanged(exchange).unwrap();
        self.events.extend(events);
    }

    /// Reads the follower's time, and holds the bound, and that time does not run back, against the truth.
    fn check(&mut self) -> Reading {
        let reading = self.follower.time(self.guest_at(self.now)).expect("a time");
        let error = reading.time.since(self.true_at(self.now)).get();
        // A tick of rounding in each of two counters.
        assert!(
            error.abs() <= reading.error.get() + 2,
            "error {error} ns, bound {}, at {} {:?}",
            reading.error,
            self.now,
            reading.state
        );
        assert!(reading.time >= self.shown, "{:?} after {:?}", reading.time, self.shown);
        self.shown = reading.time;
        reading
    }

    /// Pages each 50 ms, exchanges at growing distances.
    fn follow(&mut self, times: u32) {
        for round in 0..times {
            self.publish();
            if self.follower.line().is_none() || round.is_power_of_two() || round % 100 == 99 {
                self.exchange();
            }
            if self.follower.line().is_some_and(|line| line.rate_error.is_finite()) {
                self.check();
            }
            self.now += INTERVAL;
        }
    }

    fn error(&mut self) -> i64 {
        let reading = self.check();
        reading.time.since(self.true_at(self.now)).get().abs()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Any offset and scale: within a microsecond after a second, always within the bound, never back.
    #[test]
    fn it_follows_any_offset_and_scale(
        scale in prop_oneof![Just(1.0), 0.3..3.0_f64, 0.9999..1.0001_f64],
        ppm in -50.0..50.0_f64,
        seed in any::<u64>(),
    ) {
        let mut world = World::new(scale, seed, Settings::default());
        world.rate_error = ppm * 1e-6;
        world.follow(200);
        let reading = world.check();
        prop_assert_eq!(reading.state, State::Following);
        prop_assert!(world.error() < 1200, "{}", world.error());
        prop_assert!(reading.error.get() < 2000, "{}", reading.error);
        prop_assert!((world.follower.line().unwrap().rate * scale - 1.0).abs() < 2e-7);
        let silent: Vec<_> = world.events.iter().filter(|event| !matches!(event, Event::Moved(_))).collect();
        prop_assert!(silent.is_empty(), "{:?}", silent);
    }

    /// The host's clock is set forward or back: said, and never back.
    #[test]
    fn steps_of_the_host_are_said(by in -3_000_000_000_i64..3_000_000_000, hold in any::<bool>(), seed in any::<u64>()) {
        prop_assume!(by.abs() > 100_000);
        let backward = if hold { Backward::Hold } else { Backward::Slew(0.05) };
        let mut world = World::new(1.0, seed, Settings { backward, error_max: Nanos::from_millis(10), ..Settings::default() });
        world.follow(40);
        world.host_clock += by;
        world.publish();
        let reading = world.check();
        match world.events[..] {
            [Event::Forward(size)] => prop_assert!(by > 0 && (size.get() - by).abs() < 1000),
            [Event::Back(size)] => {
                prop_assert!(by < 0 && (size.get() - by).abs() < 1000);
                // The follower looks 60 ms apart: a smaller step may be held already.
                let is_ahead = reading.time > reading.host_time;
                prop_assert!(is_ahead || hold && by > -70 * MS);
            }
            ref other => prop_assert!(false, "{:?}", other),
        }
        let ahead = reading.time.since(reading.host_time).get();
        world.now += 5 * MS;
        let later = world.check();
        if by < -70 * MS {
            // Holding stands, slewing goes on slower.
            let passed = later.time.since(reading.time).get();
            prop_assert!(if hold { passed == 0 } else { (4_700_000..4_800_000).contains(&passed) }, "{}", passed);
        }
        // It is made up for: at once forward, at 5 % back.
        let wait = if hold { ahead } else { ahead * 20 } / INTERVAL + 4;
        world.follow(u32::try_from(wait).unwrap());
        prop_assert!(world.error() < 1500, "{}", world.error());
        prop_assert_eq!(world.check().state, State::Following);
    }

    /// A pause of the guest's counter longer than a page's interval: said at the next page, and mended by the next exchange.
    #[test]
    fn a_pause_is_seen_and_mended(pause_ms in 61_i64..10_000, seed in any::<u64>()) {
        let mut world = World::new(1.0, seed, Settings::default());
        world.follow(40);
        // The guest's counter stood still.
        world.now += pause_ms * MS;
        world.offset -= (pause_ms * MS) as f64 * world.host_rate;
        world.publish();
        prop_assert!(matches!(world.events[..], [Event::Moved(_)]), "{:?}", world.events);
        prop_assert!(world.follower.time(world.guest_at(world.now)).is_none());
        world.exchange();
        world.now += 100 * MS;
        world.exchange();
        prop_assert!(world.error() < 1500);
        world.follow(5);
        prop_assert_eq!(world.check().state, State::Following);
    }
}

#[test]
fn a_guest_that_was_moved_follows_its_new_host() {
    // With a new marker, and without one: the guest's counter is set forward by an hour, its scale changed.
    for has_marker in [true, false] {
        let mut world = World::new(1.0, 5, Settings::default());
        world.follow(40);
        world.offset += 3600e9 * world.host_rate;
        world.scale = if has_marker { 1.25 } else { 1.0 };
        world.marker += u64::from(has_marker);
        world.publish();
        if !has_marker {
            // It may have slept for an hour while the publisher died, until a second page is as old.
            let at = world.guest_at(world.now);
            assert!(world.follower.time(at).is_none() && world.events.is_empty());
            world.now += INTERVAL;
            world.publish();
        }
        let is_said = match world.events[..] {
            [Event::Disrupted] => has_marker,
            [Event::Moved(_)] => !has_marker,
            _ => false,
        };
        assert!(is_said, "{:?}", world.events);
        // The rate before is tried first; the second exchange shows that it is wrong.
        world.follow(40);
        assert!(world.error() < 1500, "{}", world.error());
        assert_eq!(world.check().state, State::Following);
    }
}

#[test]
fn a_dead_publisher_is_hold_over_and_then_unsynchronised_within_2_s() {
    let mut world = World::new(1.0, 9, Settings::default());
    world.follow(40);
    let died = world.now;
    let (mut states, mut errors) = (Vec::new(), Vec::new());
    let page = world.page();
    for _ in 0..40 {
        world.now += INTERVAL;
        let at = world.guest_at(world.now);
        let count = world.count;
        world.read(Ok((Page { window: 1, ..page }, count)));
        let reading = world.follower.time(at).unwrap();
        states.push((world.now - died, reading.state));
        errors.push(reading.error);
    }
    assert!(errors.is_sorted() && errors[39].get() > errors[0].get() + 1000, "{errors:?}");
    let first = |state| states.iter().find(|(_, one)| *one == state).map(|(after, _)| *after);
    assert!(first(State::HoldOver).unwrap() < 500 * MS, "{states:?}");
    assert!(first(State::Unsynchronised).unwrap() < 2000 * MS, "{states:?}");
    // The time goes on, and a publisher that comes back is followed again.
    world.marker += 1;
    world.follow(10);
    assert!(world.error() < 1500);
    assert!(world.events.contains(&Event::Disrupted));
}

/// An older host's page is followed. It is said once, and again only after a newer one.
#[test]
fn a_page_of_an_older_ktsn_is_followed_and_said_once() {
    let mut world = World::new(1.0, 9, Settings::default());
    let said = |world: &World| world.events.iter().filter(|event| **event == Event::OlderPage).count();
    (world.tai_offset, world.has_older_sign) = (Some(37), true);
    world.follow(40);
    assert_eq!((world.check().tai_offset, said(&world)), (Some(37), 1));
    // The host is updated, and the update is taken back.
    for has_older_sign in [false, true] {
        (world.marker, world.has_older_sign) = (world.marker + 1, has_older_sign);
        world.follow(40);
        assert_eq!(world.check().state, State::Following);
    }
    assert_eq!(said(&world), 2);
}

/// After a backward step a clock is steered to the time that runs slower, and not after its publisher has died.
#[test]
fn a_clock_that_slews_is_steered_and_one_without_pages_is_not() {
    for backward in [Backward::Slew(500e-6), Backward::Hold] {
        let mut world = World::new(1.0, 7, Settings { backward, ..Settings::default() });
        world.follow(40);
        let reading = world.check();
        assert!(world.follower.is_steerable(&reading) && reading.held_back.get() < 1000, "{reading:?}");
        world.host_clock -= 200 * MS;
        world.publish();
        let reading = world.check();
        assert_eq!(reading.state, State::Unsynchronised);
        assert!(
            world.follower.is_steerable(&reading) && reading.held_back > Nanos::from_millis(50),
            "{reading:?}"
        );
        // It died.
        for _ in 0..40 {
            world.now += INTERVAL;
            let (page, count) = (world.page(), world.count);
            world.read(Ok((page, count)));
        }
        let reading = world.follower.time(world.guest_at(world.now)).unwrap();
        assert!(!world.follower.is_steerable(&reading), "{reading:?}");
    }
}

#[test]
fn tai_and_leap_seconds_are_said() {
    let mut world = World::new(1.0, 3, Settings::default());
    world.follow(20);
    world.tai_offset = Some(37);
    world.publish();
    assert_eq!(world.events, [Event::TaiOffset(None, Some(37))]);
    assert_eq!(world.check().tai_offset, Some(37));
    world.events.clear();
    // 23:59:60: UTC goes back by a second, TAI goes on.
    world.now += INTERVAL;
    (world.tai_offset, world.host_clock) = (Some(38), -1_000_000_000);
    world.shown = Utc(world.shown.0 - 1_000_000_000);
    world.publish();
    assert!(
        matches!(world.events[..], [Event::TaiOffset(..), Event::LeapSecond(by)] if (by.get() + 1_000_000_000).abs() < 1000),
        "{:?}",
        world.events
    );
    assert!(world.error() < 1500);
}

/// Ten seconds at once are no leap second: the time does not go back by them.
#[test]
fn a_lie_about_tai_sets_no_time_back() {
    let mut world = World::new(1.0, 3, Settings::default());
    world.tai_offset = Some(37);
    world.follow(20);
    world.events.clear();
    world.now += INTERVAL;
    (world.tai_offset, world.host_clock) = (Some(47), -10_000_000_000);
    world.publish();
    assert!(matches!(world.events[..], [Event::TaiOffset(..), Event::Back(_)]), "{:?}", world.events);
    world.check();
}

/// A page of the future before the first exchange, and unreadable ones after it: nothing to steer a clock by.
#[test]
fn a_page_of_the_future_is_not_followed() {
    let mut world = World::new(1.0, 6, Settings::default());
    let mut page = world.page();
    page.counter = Host(page.counter.0 + 1_000_000_000_000_000);
    world.read(Ok((page, 2)));
    for _ in 0..3 {
        world.now += 100 * MS;
        world.exchange();
        world.read(Err(PageError::Busy(3)));
    }
    let reading = world.follower.time(world.guest_at(world.now));
    assert!(reading.is_none_or(|reading| reading.state == State::Unsynchronised), "{reading:?}");
}

#[test]
fn lies_are_refused_by_name_and_said_once() {
    let mut world = World::new(1.0, 4, Settings::default());
    world.follow(20);
    for _ in 0..60 {
        world.now += INTERVAL;
        world.count += 2;
        let page = Page { time: Utc(world.page().time.0 + 200_000_000_000_000), ..world.page() };
        let count = world.count;
        world.read(Ok((page, count)));
        world.read(Err(PageError::Busy(7)));
    }
    let refused = |event: &Event| matches!(event, Event::Refused(PageError::Jump { .. }));
    assert!(world.events.iter().all(refused), "{:?}", world.events);
    // Lies that are none of time: the last good page ages, and the clock says so.
    for _ in 0..60 {
        world.now += INTERVAL;
        world.read(Err(PageError::Period(0.0)));
    }
    let count = |wanted: fn(&Event) -> bool| world.events.iter().filter(|event| wanted(event)).count();
    assert_eq!(count(|event| matches!(event, Event::Refused(PageError::Period(_)))), 1);
    world.events.retain(refused);
    // A look at a page that is being written makes no event, and a lie is not followed: the last good page ages.
    assert!(!world.events.is_empty());
    assert_eq!(world.check().state, State::Unsynchronised);
    world.events.clear();
    world.publish();
    assert_eq!(world.check().state, State::Following);
}

/// Pages of the future, each consistent in itself: the guest's clock does not follow them, and follows the host's again by itself.
#[test]
fn lies_far_ahead_are_forgotten() {
    for (lies, has_marker, begins_with_lie) in
        [(1, false, false), (1, true, false), (7, false, false), (40, true, false), (5, false, true)]
    {
        let mut world = World::new(1.0, 4, Settings::default());
        if !begins_with_lie {
            world.follow(20);
        }
        for lie in 1..=lies {
            world.now += INTERVAL;
            world.count += 2;
            let (good, ahead) = (world.page(), i64::from(lie) * 3600);
            let page = Page {
                counter: Host(good.counter.0 + (ahead as f64 * 1e9 * world.host_rate) as u64),
                time: Utc(good.time.0 + ahead.unsigned_abs() * 1_000_000_000),
                marker: good.marker + u64::from(has_marker),
                ..good
            };
            let count = world.count;
            world.read(Ok((page, count)));
            world.read(Ok((page, count)));
            let reading = world.follower.time(world.guest_at(world.now));
            assert!(reading.is_none_or(|reading| reading.state == State::Unsynchronised), "{reading:?}");
            world.exchange();
            world.read(Ok((page, count)));
        }
        let refused = |event: &&Event| matches!(event, Event::Refused(PageError::CounterAhead(_)));
        let said = world.events.iter().filter(refused).count();
        assert!((1..=lies as usize).contains(&said), "{:?}", world.events);
        world.follow(20);
        assert_eq!(world.check().state, State::Following, "{lies} {has_marker}");
        assert!(world.error() < 1500, "{}", world.error());
    }
}

#[test]
fn an_exchange_that_goes_back_is_refused() {
    let mut world = World::new(1.0, 6, Settings::default());
    world.follow(4);
    let at = world.guest_at(world.now + MS);
    let good = Exchange { sent: at, received: Host(10), answered: Host(11), returned: Guest(at.0 + 3) };
    let line = *world.follower.line().unwrap();
    assert!(world.follower.exchanged(Exchange { answered: Host(9), ..good }).is_err());
    assert!(world.follower.exchanged(Exchange { returned: Guest(at.0 - 1), ..good }).is_err());
    assert!(world.follower.exchanged(Exchange { sent: Guest(1), returned: Guest(2), ..good }).is_err());
    assert_eq!(*world.follower.line().unwrap(), line);
}
