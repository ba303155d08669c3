// SPDX-License-Identifier: Apache-2.0
//! The program itself, run by the kernel on frames that it never sent (BPF_PROG_TEST_RUN; root), held against the parser of
//! `base/wire` and rules that are written down once more.

use std::cell::RefCell;
use std::net::{IpAddr, Ipv6Addr};

use ktsn_wire::dissect;
use proptest::prelude::*;

use super::*;
use crate::layout::{Counted, FRAME_OCTETS_MAX, RECORD_OCTETS};
use crate::program::CAPTURE_TEST;
use crate::test_run;

/// TCX's verdicts.
const GO_ON: i32 = -1;
const TAKEN: i32 = 2;
const PAYLOAD_OCTETS_MAX: u16 = 1_400;
const INNER_OCTETS_MAX: u16 = 64;
const SEGMENTS_MAX: usize = 128;

fn v6(text: &str) -> Ipv6Addr {
    match text.parse().unwrap() {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    }
}

/// Allowed, a hole in it, and a narrower way inside of the hole; for both families.
fn rules() -> Vec<Destination> {
    let rule = |text, bits, take| Destination { address: v6(text), bits, take };
    vec![
        rule("10.1.0.0", 96 + 16, Some(PAYLOAD_OCTETS_MAX)),
        rule("10.1.7.0", 96 + 24, None),
        rule("10.1.7.9", 128, Some(INNER_OCTETS_MAX)),
        rule("fd00:1::", 32, Some(PAYLOAD_OCTETS_MAX)),
        rule("fd00:1:7::", 48, None),
    ]
}

fn sources() -> Vec<Ipv6Addr> {
    vec![v6("10.1.0.2"), v6("fd00:1::2")]
}

fn loaded(clocks: &[Clock], ring_octets: usize) -> Capture {
    let options = Options { ring_octets, clocks: clocks.to_vec() };
    let mut capture = Capture::load_program(&CAPTURE_TEST, &options).expect("root may load programs");
    capture.set_destinations(&rules()).unwrap();
    capture.set_sources(&sources()).unwrap();
    capture
}

/// One frame with what the kernel would know beside it.
#[derive(Clone, Debug)]
struct Given {
    frame: Vec<u8>,
    clock: u32,
    tx_time: u64,
    segment_octets: u32,
}

/// `struct __sk_buff` as far as a test may set it.
fn context(given: &Given) -> [u32; 48] {
    let mut words = [0; 48];
    words[12] = given.clock; // cb[0]
    words[38] = given.tx_time as u32;
    words[39] = (given.tx_time >> 32) as u32;
    words[44] = given.segment_octets;
    words
}

fn run(capture: &Capture, given: &Given) -> i32 {
    test_run::run(&capture.loaded.program, &given.frame, &context(given), &mut Vec::new())
        .expect("the kernel runs it")
}

/// What is to be taken, by `base/wire` and the rules: how many octets of the frame, and its segments.
fn reference(given: &Given, clocks: &[Clock]) -> Option<(usize, u16)> {
    let is_clock = clocks.iter().any(|clock| *clock as u32 == given.clock);
    if given.tx_time == 0 || !is_clock {
        return None;
    }
    let frame = &given.frame;
    let inner = dissect(frame, None).ok()?.inner;
    let (headers, is_plain, is_mapped) = match (inner.source, inner.destination) {
        (IpAddr::V4(_), _) => (14 + 20, frame[14] & 0xf == 5, false),
        (IpAddr::V6(source), IpAddr::V6(to)) => {
            let mapped = source.to_ipv4_mapped().is_some() || to.to_ipv4_mapped().is_some();
            (14 + 40, frame[20] == 17, mapped)
        }
        (IpAddr::V6(_), IpAddr::V4(_)) => unreachable!("one family"),
    };
    let datagram = inner.datagram;
    let packet_octets = match inner.source {
        IpAddr::V4(_) => u16::from_be_bytes([frame[16], frame[17]]).wrapping_sub(20),
        IpAddr::V6(_) => u16::from_be_bytes([frame[18], frame[19]]),
    };
    if !is_plain
        || datagram.length() != packet_octets
        || is_mapped
        || inner.vlan.is_some()
        || inner.hop_limit == 0
        || datagram.destination_port() == 0
    {
        return None;
    }
    let as_v6 = |address: IpAddr| match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    };
    if !sources().contains(&as_v6(inner.source)) {
        return None;
    }
    let to = as_v6(inner.destination).to_bits();
    let covers = |rule: &&Destination| (rule.address.to_bits() ^ to).leading_zeros() >= u32::from(rule.bits);
    let most = usize::from(rules().iter().filter(covers).max_by_key(|rule| rule.bits)?.take?);
    let payload = datagram.payload().len();
    let segment = Some(given.segment_octets as usize).filter(|segment| *segment > 0 && *segment < payload);
    let fits = segment.unwrap_or(payload) <= most
        && segment.is_none_or(|segment| payload.div_ceil(segment) <= SEGMENTS_MAX);
    fits.then_some((headers + usize::from(datagram.length()), segment.unwrap_or(0) as u16))
}

/// Fields from which a frame is made; most are right most of the time.
#[derive(Clone, Debug)]
struct Fields {
    is_v4: bool,
    source: Ipv6Addr,
    destination: Ipv6Addr,
    port: u16,
    hop_limit: u8,
    protocol: u8,
    options: usize,
    fragment: u16,
    is_tagged: bool,
    payload: usize,
    length_error: i32,
    checksum_error: u16,
    trailer: usize,
    cut: usize,
}

fn addresses(
    own: &'static [&'static str],
    others: &'static [&'static str],
) -> impl Strategy<Value = Ipv6Addr> {
    prop_oneof![6 => prop::sample::select(own), 1 => prop::sample::select(others)].prop_map(v6)
}

fn fields() -> impl Strategy<Value = Fields> {
    let to_v4: &[&str] = &["10.1.0.9", "10.1.7.9", "10.1.255.255"];
    let not_v4: &[&str] = &["10.1.7.8", "10.2.0.1", "0.0.0.0", "224.0.0.1"];
    let to_v6: &[&str] = &["fd00:1::9", "fd00:1:8::1"];
    let not_v6: &[&str] = &["fd00:1:7::1", "ff02::1", "::ffff:10.1.0.9", "::"];
    let family = prop_oneof![
        (Just(true), addresses(&["10.1.0.2"], &["10.1.0.3", "fd00:1::2"]), addresses(to_v4, not_v4)),
        (Just(false), addresses(&["fd00:1::2"], &["fd00:1::3", "::ffff:10.1.0.2"]), addresses(to_v6, not_v6)),
    ];
    let mostly = |usual: i32, other: std::ops::Range<i32>| prop_oneof![9 => Just(usual), 1 => other];
    let payload = prop_oneof![4 => 0usize..200, 1 => 1_390usize..1_410, 1 => 200usize..2_600];
    let lengths = (payload, mostly(0, -9..9), 0usize..3, prop_oneof![9 => Just(0usize), 1 => 0usize..80]);
    let header =
        (mostly(5000, 0..3), mostly(64, 0..3), mostly(17, 0..70), mostly(0, 0..4), mostly(0, 0..0xffff));
    let odd = (prop::bool::weighted(0.05), mostly(0, 0..0xffff));
    (family, header, lengths, odd).prop_map(
        |(
            (is_v4, source, destination),
            header,
            (payload, length_error, trailer, cut),
            (is_tagged, wrong),
        )| {
            Fields {
                is_v4,
                source,
                destination,
                port: header.0 as u16,
                hop_limit: header.1 as u8,
                protocol: header.2 as u8,
                options: header.3 as usize,
                fragment: header.4 as u16,
                is_tagged,
                payload,
                length_error,
                checksum_error: wrong as u16,
                trailer: trailer * 10,
                cut,
            }
        },
    )
}

fn frame(fields: &Fields) -> Vec<u8> {
    let mut frame = vec![2; 12];
    if fields.is_tagged {
        frame.extend([0x81, 0, 0, 5]);
    }
    let udp = (8 + fields.payload) as u16;
    let tail = |address: Ipv6Addr| address.octets()[12..].to_vec();
    if fields.is_v4 {
        frame.extend([8, 0]);
        frame.extend(
            test_run::Ipv4Fields {
                words: 5 + fields.options,
                ds: 0,
                payload_octets: udp,
                fragment: fields.fragment,
                hop_limit: fields.hop_limit,
                protocol: fields.protocol,
                source: &tail(fields.source),
                destination: &tail(fields.destination),
                checksum_error: fields.checksum_error,
            }
            .octets(),
        );
    } else {
        frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
        frame.extend(udp.to_be_bytes());
        frame.extend([fields.protocol, fields.hop_limit]);
        frame.extend(fields.source.octets());
        frame.extend(fields.destination.octets());
    }
    frame.extend([0x12, 0x34]);
    frame.extend(fields.port.to_be_bytes());
    frame.extend((i32::from(udp) + fields.length_error).max(0).to_be_bytes()[2..].iter());
    frame.extend([0xab, 0xcd]);
    frame.extend((0..fields.payload).map(|octet| octet as u8));
    frame.resize(frame.len() + fields.trailer, 0);
    frame.truncate(frame.len().saturating_sub(fields.cut).max(14));
    frame
}

fn given() -> impl Strategy<Value = Given> {
    let changes = prop_oneof![4 => Just(vec![]), 1 => prop::collection::vec((0usize..70, any::<u8>()), 1..4)];
    let segment = prop_oneof![4 => Just(0_u32), 1 => 1u32..1_500, 1 => 1u32..40];
    let clock = prop_oneof![6 => 1u32..3, 1 => 0u32..5];
    let tx_time = prop_oneof![9 => 1..u64::MAX, 1 => Just(0)];
    (fields(), changes, clock, tx_time, segment).prop_map(
        |(fields, changes, clock, tx_time, segment_octets)| {
            let mut frame = frame(&fields);
            for (at, value) in changes {
                if let Some(octet) = frame.get_mut(at) {
                    *octet = value;
                }
            }
            Given { frame, clock, tx_time, segment_octets }
        },
    )
}

#[test]
fn frames_are_taken_exactly_when_the_parser_and_the_rules_say_so() {
    for clocks in [&[Clock::Monotonic, Clock::Tai][..], &[Clock::Tai]] {
        let capture = loaded(clocks, 1 << 20);
        let counters = capture.counters().unwrap();
        let room = vec![0; FRAME_OCTETS_MAX + RECORD_OCTETS];
        let consumer = RefCell::new((capture.frames().unwrap(), room));
        let (mut taken_count, mut passed_count) = (0_u64, 0_u64);
        let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
            cases: 20_000,
            ..ProptestConfig::default()
        });
        let result = runner.run(&given(), |given| {
            let (frames, buffer) = &mut *consumer.borrow_mut();
            // BPF_PROG_TEST_RUN itself refuses frames that end inside of the IP header.
            let is_v4 = given.frame[12..14] == [8, 0];
            prop_assume!(given.frame.len() >= if is_v4 { 34 } else { 54 });
            let before = counters.read();
            let result = run(&capture, &given);
            let after = counters.read();
            let grown: u64 = after.iter().sum::<u64>() - before.iter().sum::<u64>();
            prop_assert_eq!(grown, 1, "each frame is counted once");
            let Some((octets, segment_octets)) = reference(&given, clocks) else {
                prop_assert_eq!(result, GO_ON);
                prop_assert!(!frames.is_waiting() && frames.take(buffer).is_none());
                prop_assert_eq!(after[Counted::Taken as usize], before[Counted::Taken as usize]);
                return Ok(());
            };
            prop_assert_eq!(result, TAKEN);
            prop_assert!(frames.is_waiting());
            let taken = frames.take(buffer).expect("a frame");
            prop_assert_eq!((taken.tx_time, taken.clock as u32), (given.tx_time, given.clock));
            prop_assert_eq!((taken.octets, taken.segment_octets), (octets, segment_octets));
            prop_assert!(taken.captured_at > 0);
            prop_assert_eq!(&buffer[..octets], &given.frame[..octets]);
            prop_assert_eq!(after[Counted::Taken as usize], before[Counted::Taken as usize] + 1);
            Ok(())
        });
        result.unwrap();
        let sums = counters.read();
        for (number, sum) in sums.iter().enumerate() {
            if number == Counted::Taken as usize { taken_count += sum } else { passed_count += sum }
        }
        assert!(
            taken_count > 2_000 && passed_count > 2_000,
            "both happened often: {taken_count}, {passed_count}"
        );
    }
}

fn plain(payload: usize) -> Given {
    let fields = Fields {
        is_v4: true,
        source: v6("10.1.0.2"),
        destination: v6("10.1.0.9"),
        port: 5000,
        hop_limit: 64,
        protocol: 17,
        options: 0,
        fragment: 0,
        is_tagged: false,
        payload,
        length_error: 0,
        checksum_error: 0,
        trailer: 0,
        cut: 0,
    };
    Given { frame: frame(&fields), clock: Clock::Tai as u32, tx_time: 7, segment_octets: 0 }
}

#[test]
fn a_full_ring_drops_and_counts_and_nothing_goes_on_early() {
    let capture = loaded(&[Clock::Tai], 4096);
    let (mut frames, counters) = (capture.frames().unwrap(), capture.counters().unwrap());
    let results: Vec<i32> = (0..100).map(|_| run(&capture, &plain(64))).collect();
    assert!(results.iter().all(|result| *result == TAKEN));
    let sums = counters.read();
    let (taken, full) = (sums[Counted::Taken as usize], sums[Counted::RingFull as usize]);
    assert!(taken > 10 && full > 10 && taken + full == 100, "{taken} + {full}");
    let mut buffer = vec![0; FRAME_OCTETS_MAX + RECORD_OCTETS];
    let read = std::iter::from_fn(|| frames.take(&mut buffer)).count() as u64;
    assert_eq!(read, taken);
    // There is room again, and positions go round many times.
    for round in 0..1_000 {
        assert_eq!(run(&capture, &plain(64 + round)), TAKEN);
        assert_eq!(frames.take(&mut buffer).map(|taken| taken.octets), Some(14 + 28 + 64 + round));
    }
}

#[test]
fn rules_are_replaced() {
    let mut capture = loaded(&[Clock::Tai], 1 << 20);
    assert_eq!(run(&capture, &plain(64)), TAKEN);
    capture.set_destinations(&rules()[1..]).unwrap();
    assert_eq!(run(&capture, &plain(64)), GO_ON);
    let shorter = Destination { take: Some(63), ..rules()[0] };
    capture.set_destinations(&[shorter]).unwrap();
    assert_eq!(run(&capture, &plain(64)), GO_ON);
    assert_eq!(run(&capture, &plain(63)), TAKEN);
    capture.set_sources(&[]).unwrap();
    assert_eq!(run(&capture, &plain(63)), GO_ON);
    capture.set_sources(&sources()).unwrap();
    assert_eq!(run(&capture, &plain(63)), TAKEN);
    let many = vec![shorter; DESTINATIONS_MAX];
    assert!(matches!(capture.set_destinations(&many), Err(BpfError::TooMany { .. })));
}

#[test]
fn the_shipped_program_loads_and_its_place_is_known() {
    let inside = || {
        test_run::own_network().unwrap();
        let mut capture = Capture::load(&Options::default()).unwrap();
        assert!(!capture.is_attached().unwrap());
        capture.attach(1).unwrap(); // lo of a namespace of this test's own
        assert!(capture.is_attached().unwrap());
        // Again, and somewhere that is nowhere.
        capture.attach(1).unwrap();
        assert!(capture.is_attached().unwrap());
        assert!(capture.attach(4242).is_err());
        assert!(!capture.is_attached().unwrap());
        capture.attach(1).unwrap();
        capture.detach();
        assert!(!capture.is_attached().unwrap());
    };
    std::thread::scope(|scope| scope.spawn(inside).join().expect("it ran"));
}

/// A daemon's children end, a timer rings: the kernel's verifier gives up at each signal that it sees.
#[test]
fn signals_do_not_keep_a_program_from_loading() {
    test_run::disturbed(|| Capture::load(&Options::default()).map(drop)).unwrap();
}
