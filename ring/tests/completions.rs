// SPDX-License-Identifier: Apache-2.0
//! What became of frames: written into their slots, read once, never more than half of the slots, whatever the program does.

mod support;

use ktsn_ring::completion::{Completion, HEADERS_MAX, Outcome, kind};
use ktsn_ring::{ClientMapping, Consumer, Layout, layout};

const SLOTS: usize = 16;

fn region() -> (Consumer, ClientMapping) {
    let layout = Layout::new(SLOTS as u32, 512, 4, 1).expect("a valid layout");
    let (mut consumer, memfd) = Consumer::create(layout).expect("a region");
    support::register(&mut consumer, 4);
    (consumer, ClientMapping::open(&memfd).expect("a mapping"))
}

fn push(client: &ClientMapping, stream: u32, number: u64) -> u16 {
    let producer = client.producer();
    let claim = producer.claim().expect("a free slot");
    let slot = claim.slot();
    let payload = support::payload(stream, number, producer.payload_max());
    producer.fill(&claim, &support::frame(stream, number), [&payload[..]].into_iter()).expect("it fits");
    producer.publish(claim);
    slot
}

fn take(consumer: &mut Consumer) -> u16 {
    consumer.collect(usize::MAX).expect("honest links");
    consumer.take(&mut [0; 512]).expect("a frame").expect("an honest slot").slot
}

fn completion(number: u64) -> Completion {
    let mut headers = [0; HEADERS_MAX];
    for (index, octet) in headers.iter_mut().enumerate() {
        *octet = (number as u8).wrapping_add(index as u8);
    }
    Completion {
        kinds: kind::SCHEDULED | kind::SOFTWARE,
        outcome: Outcome::Missed,
        interface: 7,
        handed_at: number,
        scheduled_at: number + 1,
        done_at: number + 2,
        headers,
        headers_octets: 42,
    }
}

#[test]
fn what_is_posted_is_read() {
    let (mut consumer, client) = region();
    let producer = client.producer();
    push(&client, 1, 5);
    let slot = take(&mut consumer);
    assert_eq!(producer.completion(slot), None);
    let sequence = consumer.complete(slot, &completion(9)).expect("there is room");
    assert_eq!((consumer.held(), consumer.unread_count()), (0, 1));
    let (place, read, header) = producer.completion(slot).expect("it is told");
    assert_eq!((place.slot, place.sequence), (slot, sequence));
    let mut expected = completion(9);
    expected.headers[48..].fill(0); // whole words are written
    assert_eq!(
        Completion { headers: [0; HEADERS_MAX], ..read },
        Completion { headers: [0; HEADERS_MAX], ..expected }
    );
    assert_eq!(read.headers[..42], expected.headers[..42]);
    assert_eq!(header.frame, support::frame(1, 5));
    let payload = support::payload(1, 5, producer.payload_max());
    let mut copy = vec![0; payload.len()];
    producer.read_payload(slot, 0, &mut copy);
    assert_eq!(copy, payload);
    producer.read_payload(slot, producer.payload_max() - 8, &mut [1; 16]);

    assert_eq!(producer.take(place, kind::SCHEDULED), kind::SCHEDULED);
    assert_eq!(producer.take(place, kind::SCHEDULED), 0, "once");
    assert_eq!(producer.completion(slot).expect("one is left").1.kinds, kind::SOFTWARE);
    assert_eq!(producer.take(place, kind::ALL), kind::SOFTWARE);
    assert_eq!(producer.completion(slot), None);
    assert_eq!(push(&client, 1, 6), slot, "the slot is free again");
    assert_eq!(producer.take(place, kind::ALL), 0);
}

#[test]
fn what_is_queued_is_neither_free_nor_told() {
    let (mut consumer, client) = region();
    let queued = || {
        let mut found = Vec::new();
        client.producer().for_each_queued(|frame, octets| found.push((frame.stream_index, octets)));
        found
    };
    assert_eq!(queued(), []);
    let octets = |number| support::payload(1, number, client.producer().payload_max()).len() as u16;
    push(&client, 1, 5);
    push(&client, 2, 6);
    assert_eq!(queued().iter().map(|(stream, _)| *stream).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(queued()[0].1, octets(5));
    let told = take(&mut consumer);
    assert_eq!(queued().len(), 2, "taken over, not yet sent");
    consumer.complete(told, &completion(9)).expect("there is room");
    assert_eq!(queued().iter().map(|(stream, _)| *stream).collect::<Vec<_>>(), [2]);
    let sent = take(&mut consumer);
    consumer.release(sent);
    assert_eq!(queued(), []);
}

#[test]
fn the_oldest_of_a_stream_is_found_and_a_stream_is_dropped() {
    let (mut consumer, client) = region();
    let producer = client.producer();
    for number in 0..6 {
        push(&client, (number % 2) as u32, number);
    }
    let slots: Vec<u16> = (0..6).map(|_| take(&mut consumer)).collect();
    for slot in slots.iter().rev() {
        consumer.complete(*slot, &completion(1)).expect("there is room");
    }
    assert_eq!(
        producer.oldest_completion(|frame| frame.stream_index == 0).expect("stream 0").2.frame.tx_time,
        4
    );
    assert_eq!(
        producer.oldest_completion(|frame| frame.stream_index == 1).expect("stream 1").2.frame.tx_time,
        5
    );
    assert_eq!(producer.oldest_completion(|frame| frame.stream_index == 2), None);
    producer.drop_completions(|frame| frame.stream_index == 1);
    assert_eq!(producer.oldest_completion(|frame| frame.stream_index == 1), None);
    assert!(producer.oldest_completion(|frame| frame.stream_index == 0).is_some());
    let claims: Vec<_> = std::iter::from_fn(|| producer.claim()).collect();
    assert_eq!(claims.len(), SLOTS - 3, "three outcomes of stream 0 are left");
}

#[test]
fn a_program_that_never_reads_keeps_half_of_the_slots() {
    let (mut consumer, client) = region();
    let (mut told, mut dropped) = (0, 0);
    for number in 0..2_000 {
        push(&client, 0, number);
        let slot = take(&mut consumer);
        if consumer.complete(slot, &completion(number)).is_some() {
            told += 1;
        } else {
            consumer.release(slot);
            dropped += 1;
        }
    }
    assert_eq!((told, dropped), (SLOTS / 2, 2_000 - SLOTS / 2));
    // What is read makes room, without a message to the daemon.
    for number in 0..3 * SLOTS as u64 {
        client.producer().drop_completions(|frame| frame.stream_index == 0);
        push(&client, 0, number);
        let slot = take(&mut consumer);
        assert!(consumer.complete(slot, &completion(number)).is_some());
        assert!(consumer.unread_count() <= SLOTS / 2);
    }
    assert_eq!(consumer.double_releases(), 0);
}

/// A program that writes anything into its region loses reports, and nothing else happens.
#[test]
fn lies_about_slots_hurt_nobody() {
    let (mut consumer, client) = region();
    let mut random = support::Random::new(3);
    let mut ours = Vec::new();
    for number in 0..20_000u64 {
        if let Some(claim) = client.producer().claim() {
            let frame = support::frame(0, number);
            client.producer().fill(&claim, &frame, std::iter::empty()).expect("it fits");
            client.producer().publish(claim);
        }
        match random.below(4) {
            0 => client.poke(layout::FREE, random.next()),
            1 => client.poke(layout::DONE, random.next()),
            2 => client.poke(client.producer().layout().slot(3).expect("slot 3") + 72, random.next()),
            _ => client.producer().drop_completions(|frame| frame.stream_index == 0),
        }
        if consumer.collect(64).is_err() {
            break;
        }
        while let Some(taken) = consumer.take(&mut [0; 512]) {
            ours.push(taken.map_or_else(|error| error.slot, |taken| taken.slot));
        }
        while let Some(slot) = ours.pop() {
            if consumer.complete(slot, &completion(number)).is_none() {
                consumer.release(slot);
            }
        }
        assert!(consumer.unread_count() <= SLOTS && consumer.held() <= SLOTS);
    }
    assert_eq!(consumer.double_releases(), 0);
}

#[test]
fn a_closing_stream_is_left_alone() {
    let (consumer, client) = region();
    let producer = client.producer();
    let markers = consumer.markers();
    assert_eq!((markers.nonce(), markers.nonce() & 1), (producer.nonce(), 1));
    let held = markers.begin(2, support::TOKEN).expect("no thread closes it");
    assert!(producer.is_notified(2) && !producer.is_notified(1));
    producer.closing(2);
    assert!(producer.is_notified(2), "the program waits");
    drop(held);
    assert!(!producer.is_notified(2));
    assert!(markers.begin(2, support::TOKEN).is_none() && !producer.is_notified(2));
    assert!(markers.begin(1, support::TOKEN).is_some());
    producer.opened(2);
    assert!(markers.begin(2, support::TOKEN).is_some());
    assert!(markers.begin(4, support::TOKEN).is_none(), "no such stream");
    assert!(markers.begin(2, support::TOKEN + 1).is_none(), "another registration's");
    // The daemon's handle outlives its consumer.
    drop(consumer);
    assert!(markers.begin(2, support::TOKEN).is_some());
}
