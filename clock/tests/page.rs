// SPDX-License-Identifier: Apache-2.0
//! The page: its octets are vmclock's, what is written is read, and every lie has its name.

use ktsn_clock::page::{CounterKind, Leap, Page, PageError, Status, WORDS};
use ktsn_clock::{Host, Utc};
use ktsn_time::Nanos;
use proptest::prelude::*;
use std::cell::Cell;

const KIND: CounterKind = CounterKind::X86Tsc;
const OCTETS: u32 = 65_536;

type Words = [Cell<u64>; WORDS];

fn words() -> Words {
    std::array::from_fn(|_| Cell::new(0))
}

fn octets(words: &Words) -> Vec<u8> {
    words.iter().flat_map(|word| word.get().to_le_bytes()).collect()
}

/// Changes octets of words.
fn put(words: &Words, offset: usize, octets: &[u8]) {
    for (index, &octet) in octets.iter().enumerate() {
        let (word, shift) = ((offset + index) / 8, (offset + index) % 8 * 8);
        words[word].set(words[word].get() & !(0xff << shift) | u64::from(octet) << shift);
    }
}

fn page() -> Page {
    Page {
        kind: KIND,
        marker: 0x1122_3344_5566_7788,
        status: Status::Synchronized,
        tai_offset: Some(37),
        has_older_sign: false,
        leap: Leap::InsertAhead,
        counter: Host(123_456_789_012_345),
        time: Utc(1_790_000_000_250_000_000),
        period: 1.0 / 3.0,
        period_error: 1e-6,
        estimated_error: Nanos::new(500),
        max_error: Nanos::new(20_000),
        interval: Nanos::from_millis(50),
        reading_error: Nanos::new(20),
        window: 9,
        windows: 3,
        cpu: Nanos::new(77),
    }
}

/// The offsets of `struct vmclock_abi` (Linux 6.13).
#[test]
fn the_page_has_the_kernels_layout() {
    let memory = words();
    page().write(&memory, OCTETS);
    let octets = octets(&memory);
    let number = |offset: usize, length: usize| {
        octets[offset..offset + length]
            .iter()
            .rev()
            .fold(0_u64, |value, &octet| value << 8 | u64::from(octet))
    };
    assert_eq!(&octets[..4], b"VCLK");
    assert_eq!(
        [number(4, 4), number(8, 2), number(10, 1), number(11, 1)],
        [65_536, 1, 1, 0],
        "size, version, TSC, UTC"
    );
    assert_eq!(
        [number(12, 4), number(16, 8)],
        [2, 0x1122_3344_5566_7788],
        "sequence count, disruption marker"
    );
    assert_eq!(
        number(24, 8),
        1 | 1 << 4 | 1 << 5 | 1 << 6,
        "flags: TAI, the period's maximum error, both errors of the time"
    );
    assert_eq!(
        [number(34, 1), number(35, 1), number(38, 1)],
        [2, 0, 1],
        "clock_status, leap_second_smearing_hint, leap_indicator"
    );
    // As ptp_vmclock has it (`tai_adjust`): of a UTC page, TAI is time_sec less tai_offset_sec.
    let tai_offset_sec = i16::from_le_bytes([octets[36], octets[37]]);
    assert_eq!(tai_offset_sec, -37, "tai_offset_sec is negative where TAI is ahead");
    assert_eq!(number(72, 8).checked_add_signed(-i64::from(tai_offset_sec)), Some(1_790_000_037), "TAI");
    assert_eq!(number(40, 8), 123_456_789_012_345, "counter");
    let period = number(48, 8) as f64 * 2_f64.powi(-64 - i32::try_from(number(39, 1)).unwrap());
    assert!((period * 3e9 - 1.0).abs() < 1e-12, "period {period}");
    assert!((number(64, 8) as f64 / number(48, 8) as f64 - 1e-6).abs() < 1e-9, "its maximum error");
    assert_eq!([number(72, 8), number(80, 8)], [1_790_000_000, 1 << 62], "a quarter of a second");
    assert_eq!([number(88, 8), number(96, 8)], [500, 20_000]);
}

/// One octet or more of a good page changed, and what comes of it.
#[test]
fn every_lie_has_a_name() {
    type Expected = fn(&PageError) -> bool;
    let lies: &[(usize, &[u8], Expected)] = &[
        (0, b"XCLK", |error| matches!(error, PageError::Magic(_))),
        (4, &[16, 0, 0, 0], |error| matches!(error, PageError::Size(16))),
        (8, &[2], |error| matches!(error, PageError::Version(2))),
        (10, &[0], |error| matches!(error, PageError::Counter(0))),
        (11, &[2], |error| matches!(error, PageError::TimeType(2))),
        (12, &[3], |error| matches!(error, PageError::Busy(3))),
        (34, &[5], |error| matches!(error, PageError::Status(5))),
        (34, &[4], |error| matches!(error, PageError::Unusable(Status::Unreliable))),
        (34, &[0], |error| matches!(error, PageError::Unusable(Status::Unknown))),
        (36, &(-200_i16).to_le_bytes(), |error| matches!(error, PageError::Tai(-200))),
        (36, &[100, 0], |error| matches!(error, PageError::Tai(100))),
        (38, &[6], |error| matches!(error, PageError::Leap(6))),
        (39, &[64], |error| matches!(error, PageError::Shift(64))),
        (39, &[63], |error| matches!(error, PageError::Period(_))),
        (48, &[0; 8], |error| matches!(error, PageError::Period(_))),
        (48, &[0xff; 8], |error| matches!(error, PageError::Period(_) | PageError::PeriodError(_))),
        (64, &[0xff; 8], |error| matches!(error, PageError::PeriodError(_))),
        (72, &[0; 8], |error| matches!(error, PageError::Time(0))),
        (79, &[0x80], |error| matches!(error, PageError::Time(_))),
        // 2242, to which Linux sets no clock.
        (72, &[0xff, 0xff, 0xff, 0xff, 1, 0, 0, 0], |error| matches!(error, PageError::Time(0x1_ffff_ffff))),
        (256, b"?", |error| matches!(error, PageError::NotOurs(_))),
        (264, &[0; 8], |error| matches!(error, PageError::Interval(0))),
        // 2 s: between two such pages no clock follows.
        (264, &[0, 0x94, 0x35, 0x77], |error| matches!(error, PageError::Interval(2_000_000_000))),
        (295, &[1], |error| matches!(error, PageError::ReadingError(_))),
    ];
    for (offset, octets, expected) in lies {
        let memory = words();
        page().write(&memory, OCTETS);
        put(&memory, *offset, octets);
        let read = Page::read(&memory, KIND);
        let is_period = *offset == 48 && octets[0] == 0xff;
        assert!(read.as_ref().err().is_some_and(expected) || is_period && read.is_ok(), "{offset}: {read:?}");
        if let Err(error) = read {
            assert!(error.to_string().len() > 20);
        }
    }
    assert!(matches!(Page::read(&words(), KIND), Err(PageError::Magic(0))));
}

/// A host may be updated after its guests: an older ktsn wrote TAI − UTC.
#[test]
fn the_sign_of_an_older_publisher_is_read() {
    let memory = words();
    page().write(&memory, OCTETS);
    put(&memory, 36, &37_i16.to_le_bytes());
    let read = Page::read(&memory, KIND).map(|(read, _)| (read.tai_offset, read.has_older_sign));
    assert_eq!(read, Ok((Some(37), true)));
}

#[test]
fn a_page_is_held_against_the_one_before() {
    let first = page();
    let day = Nanos::from_seconds(86_400);
    let later = |change: fn(&mut Page)| {
        let mut later = first;
        later.counter = Host(first.counter.0 + 150_000_000);
        later.time = first.time.saturating_add(Nanos::from_millis(50));
        change(&mut later);
        later.check_after(&first, day)
    };
    assert_eq!(later(|_| {}), Ok(()));
    assert!(matches!(later(|page| page.counter = Host(5)), Err(PageError::CounterBack(_))));
    assert!(matches!(later(|page| page.period *= 1.01), Err(PageError::PeriodJump { .. })));
    assert!(matches!(later(|page| page.time = Utc(page.time.0 * 2)), Err(PageError::Jump { .. })));
    assert!(matches!(
        later(|page| page.time = Utc(page.time.0 - 90_000_000_000_000)),
        Err(PageError::Jump { .. })
    ));
    // Another marker: the counter is another one.
    assert_eq!(later(|page| (page.counter, page.marker) = (Host(5), 1)), Ok(()));
}

proptest! {
    #[test]
    fn what_is_written_is_read(
        numbers in any::<[u64; 6]>(),
        nanos in 1_500_000_000_000_000_000_u64..8_000_000_000_000_000_000,
        period in 0.0101..999.0_f64,
        small in (0..3_usize, proptest::option::of(0_i16..=99), 0..6_usize, 1_000_000_i64..=1_000_000_000, 0..1_000_000_000_i64),
    ) {
        let (status, tai_offset, leap, interval, reading_error) = small;
        let half = |value: u64| Nanos::new(i64::try_from(value >> 1).unwrap());
        let written = Page {
            marker: numbers[0], counter: Host(numbers[1]), window: numbers[2], windows: numbers[3],
            estimated_error: half(numbers[4]), max_error: half(numbers[5]), time: Utc(nanos), period, tai_offset,
            status: [Status::Initializing, Status::Synchronized, Status::FreeRunning][status],
            leap: [Leap::None, Leap::InsertAhead, Leap::DeleteAhead, Leap::Inserting, Leap::Inserted, Leap::Deleted][leap],
            interval: Nanos::new(interval), reading_error: Nanos::new(reading_error), ..page()
        };
        let memory = words();
        for count in 1..3_u32 {
            written.write(&memory, OCTETS);
            let (read, read_count) = Page::read(&memory, KIND).unwrap();
            prop_assert!((read.period / period - 1.0).abs() < 1e-15);
            prop_assert!((read.period_error - 1e-6).abs() < 1e-12);
            prop_assert_eq!(Page { period, period_error: 1e-6, ..read }, written);
            prop_assert_eq!(read_count, 2 * count);
        }
    }
}
