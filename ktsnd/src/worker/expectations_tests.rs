// SPDX-License-Identifier: Apache-2.0
use proptest::prelude::*;

use super::*;

const MS: i64 = 1_000_000;

/// Expectations with the marks of one client, at an instant.
struct All {
    expectations: Expectations,
    marks: Box<[Mark]>,
    at: i64,
    attachment: u16,
}

impl All {
    fn new() -> Self {
        Self { expectations: Expectations::new(), marks: marks(), at: 1_000 * MS, attachment: 0 }
    }

    /// TAI is MONOTONIC + 37 s.
    fn now(&self) -> Now {
        Now { tai: tai(self.at), monotonic: monotonic(self.at) }
    }

    /// A frame of this stream is taken over `ahead` of its transmit time.
    fn take(&mut self, index: u32, tx_time: TxTime) -> Noted {
        let stream = StreamKey { client: 3, index, token: 7 };
        let frame = QueuedFrame { stream, attachment: AttachmentIndex(self.attachment), tx_time, port: 0 };
        let now = self.now();
        self.expectations.note_frame(&mut self.marks[index as usize], &frame, now)
    }

    /// Frames at `first` and each `period` after it, taken over 300 µs ahead: until one is expected.
    fn lock(&mut self, index: u32, first: i64, period: i64) -> i64 {
        for number in 0.. {
            let due = first + number * period;
            self.at = due - 300_000;
            if self.take(index, TxTime::Monotonic(monotonic(due))).is_expected {
                return due;
            }
            assert!(number < 20, "no frame is expected after {number} of them");
        }
        unreachable!()
    }

    /// The earliest expected instant, nanoseconds.
    fn from(&self) -> Option<i64> {
        self.expectations.nearest().map(|nearest| nearest.from.as_nanos().cast_signed())
    }

    /// Expected frames are not there, one after the other; how many.
    fn let_come_nothing(&mut self) -> usize {
        let mut absent = 0;
        while let Some(nearest) = self.expectations.nearest() {
            self.at = nearest.from.as_nanos().cast_signed();
            self.expectations.sleep_for(Some(nearest.entry));
            let now = self.now();
            assert!(self.expectations.note_absent(nearest.entry, now), "the worker woke for it");
            absent += 1;
            assert!(absent < 100);
        }
        absent
    }
}

fn monotonic(at: i64) -> Monotonic {
    Monotonic::from_nanos(at.cast_unsigned())
}

fn tai(at: i64) -> Tai {
    Tai::from_nanos(at.cast_unsigned() + 37_000_000_000)
}

#[test]
fn the_next_frame_of_a_grid_is_expected_no_later_than_it_comes() {
    let mut all = All::new();
    let last = all.lock(0, 2_000 * MS, MS);
    for number in 1..200 {
        let due = last + number * MS;
        let from = all.from().unwrap();
        assert!((due - 10_000..=due).contains(&from), "{} ns before", due - from);
        all.at = due - 80_000;
        assert_eq!(all.take(0, TxTime::Monotonic(monotonic(due))), Noted { is_met: true, is_expected: true });
    }
}

#[test]
fn a_stream_on_tai_is_expected_by_the_clock_that_the_worker_sleeps_on() {
    let mut all = All::new();
    for number in 0..20 {
        let due = 2_000 * MS + number * MS;
        all.at = due - 300_000;
        all.take(0, TxTime::Tai(tai(due)));
    }
    let from = all.from().unwrap();
    assert!((2_020 * MS - 10_000..=2_020 * MS).contains(&from), "{from}");
    all.expectations.note_step();
    assert_eq!(all.from(), None);
    // The stream is learnt again, on the other clock too.
    all.lock(0, 3_000 * MS, MS);
    let expected = all.from();
    all.expectations.note_step();
    assert_eq!(all.from(), expected, "MONOTONIC is not set");
}

/// A program that is several periods ahead: the frames that are queued are not expected once more.
#[test]
fn what_is_queued_is_not_expected() {
    let mut all = All::new();
    for number in 0..20 {
        let due = 2_000 * MS + number * MS;
        all.at = due - 5 * MS;
        all.take(0, TxTime::Monotonic(monotonic(due)));
    }
    assert!((all.from().unwrap() - 2_020 * MS).abs() < 10_000);
    // A frame between those that are queued does not change that.
    all.take(0, TxTime::Monotonic(monotonic(2_016 * MS + 100_000)));
    assert!(all.from().is_none_or(|from| from > 2_019 * MS + 500_000), "{:?}", all.from());
}

#[test]
fn a_stream_that_ends_costs_a_few_wake_ups_and_then_none() {
    let mut all = All::new();
    all.lock(0, 2_000 * MS, MS);
    assert_eq!(all.let_come_nothing(), usize::from(limits::EMPTY_IN_A_ROW));
    // It comes back after the pause only, and one more is enough then.
    let began = all.at + 100 * MS;
    let again = all.lock_after_pause(began);
    assert!(again >= i64::from(limits::EXPECTED_PAUSE), "after {again} frames");
    assert_eq!(all.let_come_nothing(), 1);
}

impl All {
    fn lock_after_pause(&mut self, first: i64) -> i64 {
        for number in 0.. {
            let due = first + number * MS;
            self.at = due - 300_000;
            if self.take(0, TxTime::Monotonic(monotonic(due))).is_expected {
                return number + 1;
            }
            assert!(number < 2_000);
        }
        unreachable!()
    }
}

/// The program sends less ahead than the worker wakes: its frames come, but never in time for the wake-up.
#[test]
fn frames_that_are_sent_too_late_cost_fewer_and_fewer_wake_ups() {
    let mut all = All::new();
    all.lock(0, 2_000 * MS, MS);
    let (mut empty, mut due) = (0, 2_030 * MS);
    for _ in 0..5_000 {
        due += MS;
        if let Some(nearest) = all.expectations.nearest() {
            all.at = nearest.from.as_nanos().cast_signed() - 80_000;
            let now = all.now();
            all.expectations.note_absent(nearest.entry, now);
            empty += 1;
        }
        all.at = due - 50_000;
        all.take(0, TxTime::Monotonic(monotonic(due)));
    }
    assert!((3..=15).contains(&empty), "{empty} in 5,000 frames");
}

#[test]
fn a_stream_without_a_period_gives_its_place_back() {
    let mut all = All::new();
    let mut due = 2_000 * MS;
    let mut random = 12_345u64;
    for _ in 0..limits::EXPECTED_LEARNS {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        due += 100_000 + (random >> 33).cast_signed() % (20 * MS);
        all.at = due - 300_000;
        all.take(0, TxTime::Monotonic(monotonic(due)));
    }
    assert_eq!(all.expectations.free.len(), limits::EXPECTED_MAX);
    // So many frames later it is learnt again.
    for number in 0..i64::from(limits::EXPECTED_PAUSE_MAX) {
        due += MS;
        all.at = due - 300_000;
        assert!(!all.take(0, TxTime::Monotonic(monotonic(due))).is_expected, "frame {number}");
    }
    all.lock(0, due + MS, MS);
}

#[test]
fn long_periods_are_not_expected() {
    let mut all = All::new();
    for number in 0..20 {
        let due = 2_000 * MS + number * 300 * MS;
        all.at = due - 300_000;
        assert!(!all.take(0, TxTime::Monotonic(monotonic(due))).is_expected);
    }
}

#[test]
fn frames_for_one_instant_are_counted_together() {
    let mut all = All::new();
    for index in 0..50 {
        all.lock(index, 2_000 * MS + i64::from(index) * 1_000, 10 * MS);
    }
    let nearest = all.expectations.nearest().unwrap();
    assert!((45..=50).contains(&nearest.together), "{}", nearest.together);
    // One that is due much later is not among them.
    let mut apart = All::new();
    apart.lock(0, 2_000 * MS, 10 * MS);
    apart.lock(1, 2_000 * MS + 50_000, 10 * MS);
    assert_eq!(apart.expectations.nearest().unwrap().together, 1);
}

#[test]
fn an_attachment_has_its_share_and_no_more() {
    let mut all = All::new();
    for index in 0..limits::EXPECTED_A_ATTACHMENT as u32 {
        all.lock(index, 2_000 * MS + i64::from(index) * 11_000, MS);
    }
    let more = limits::EXPECTED_A_ATTACHMENT as u32;
    for number in 0..30 {
        let due = 2_100 * MS + number * MS;
        assert!(!all.take(more, TxTime::Monotonic(monotonic(due))).is_expected);
    }
    all.attachment = 1;
    all.lock(more + 1, 2_200 * MS, MS);
    // A client that goes gives all its places back.
    let mut marks = std::mem::take(&mut all.marks);
    all.expectations.forget_client(&mut marks, 3);
    assert_eq!((all.expectations.free.len(), all.from()), (limits::EXPECTED_MAX, None));
    assert!(all.expectations.shares.iter().all(|share| *share == 0));
}

#[test]
fn a_stream_that_is_registered_again_is_learnt_again() {
    let mut all = All::new();
    let last = all.lock(0, 2_000 * MS, MS);
    let stream = StreamKey { client: 3, index: 0, token: 8 };
    let tx_time = TxTime::Monotonic(monotonic(last + MS));
    let frame = QueuedFrame { stream, attachment: AttachmentIndex(0), tx_time, port: 0 };
    let now = all.now();
    assert!(!all.expectations.note_frame(&mut all.marks[0], &frame, now).is_expected);
    assert_eq!((all.expectations.free.len(), all.from()), (limits::EXPECTED_MAX - 1, None));
    // Of a mark that names the entry of another client nothing is believed.
    let mut other = Mark::names(all.marks[0].entry().unwrap());
    all.expectations.forget_stream(&mut other, 4, 0);
    assert_eq!((all.expectations.free.len(), other), (limits::EXPECTED_MAX - 1, Mark::NONE));
}

#[test]
fn a_stream_that_is_idle_gives_its_place_back() {
    let mut all = All::new();
    all.take(0, TxTime::Monotonic(monotonic(2_000 * MS)));
    let visit = |all: &mut All, at: i64| {
        for _ in 0..limits::EXPECTED_MAX / limits::EXPECTED_VISITS {
            all.expectations.housekeeping(monotonic(at));
        }
        all.expectations.free.len()
    };
    assert_eq!(visit(&mut all, 2_000 * MS), limits::EXPECTED_MAX - 1);
    assert_eq!(visit(&mut all, 2_000 * MS + limits::EXPECTED_IDLE.get()), limits::EXPECTED_MAX);
}

#[test]
fn what_is_left_to_the_doorbell_ends_too() {
    let mut all = All::new();
    all.lock(0, 2_000 * MS, MS);
    let mut passed = 0;
    while let Some(nearest) = all.expectations.nearest() {
        let now = all.now();
        all.expectations.pass_over(nearest.entry, now);
        passed += 1;
        assert!(passed < 100);
    }
    assert_eq!(passed, usize::from(limits::EMPTY_IN_A_ROW));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// Whatever streams send and whatever is absent, every entry is free or one stream's, and what is expected first lies ahead of the
    /// frame that was taken over last.
    #[test]
    fn entries_are_neither_lost_nor_shared(
        steps in proptest::collection::vec((0u32..80, 0i64..3, 0u8..10, any::<bool>()), 1..400),
    ) {
        let mut all = All::new();
        let mut due = [2_000 * MS; 80];
        for (index, step, what, is_tai) in steps {
            match what {
                0 => all.expectations.forget_stream(&mut all.marks[index as usize], 3, index),
                1 => all.expectations.note_step(),
                2 | 3 => {
                    if let Some(nearest) = all.expectations.nearest() {
                        let now = all.now();
                        if what == 2 {
                            all.expectations.note_absent(nearest.entry, now);
                        } else {
                            all.expectations.pass_over(nearest.entry, now);
                        }
                    }
                }
                4 => all.expectations.housekeeping(monotonic(all.at)),
                _ => {
                    for _ in 0..8 {
                        let at = &mut due[index as usize];
                        *at += (step + 1) * MS;
                        let at = *at;
                        all.at = all.at.max(at - 300_000);
                        let tx_time =
                            if is_tai { TxTime::Tai(tai(at)) } else { TxTime::Monotonic(monotonic(at)) };
                        all.take(index, tx_time);
                    }
                }
            }
            let used = all.expectations.entries.iter().flatten().count();
            prop_assert_eq!(used + all.expectations.free.len(), limits::EXPECTED_MAX);
            prop_assert_eq!(used, usize::from(all.expectations.shares[0]));
            let named = all.marks.iter().filter(|mark| mark.entry().is_some()).count();
            prop_assert!(used <= named, "{} entries, {} marks", used, named);
            for entry in all.expectations.entries.iter().flatten() {
                if let Some(awaited) = entry.awaited {
                    prop_assert!(span_between(entry.furthest, awaited.at).is_some_and(|span| span > Nanos::ZERO));
                }
            }
        }
    }
}
