// SPDX-License-Identifier: Apache-2.0
//! Error reports and timestamps: written where a program asked, in the slot that brought the frame, and only there.

use std::sync::atomic::Ordering::SeqCst;

use ktsn_model::DropReason;
use ktsn_ring::completion::{Completion, Outcome, Place, kind};
use ktsn_ring::{ClockId, SlotFlags, SlotHeader};
use ktsn_wire::dissect;

use super::super::{ClientKey, Command, Notice};
use super::world::{AHEAD, App, World};
use crate::queue::{Receiver, worker_to_thread};

const MS: u64 = 1_000_000;

fn world() -> (World, App, Receiver<Notice>) {
    let mut world = World::new(800);
    let (notifier, notices) = worker_to_thread(64).unwrap();
    world.worker.reporter.set_notifier(notifier);
    let app = world.client(64);
    (world, app, notices)
}

fn push(app: &App, flags: SlotFlags, clock: ClockId, tx_time: u64, pushed_at: u64, payload: &[u8]) {
    let frame = App::frame(clock, tx_time, pushed_at);
    let frame = ktsn_ring::SlotFrame { flags, report_id: 5, descriptor: 9, ..frame };
    assert!(app.push_frame(&frame, payload));
}

fn reported(app: &App, notice: &Notice) -> (Completion, SlotHeader) {
    let (place, completion, header) = app.producer.completion(notice.slot).expect("there is a report");
    assert_eq!(place, Place { slot: notice.slot, sequence: notice.sequence });
    assert_eq!(completion.kinds, notice.kinds);
    (completion, header)
}

#[test]
fn a_report_says_when_a_frame_was_sent() {
    let (mut world, app, notices) = world();
    let now = world.clocks.at();
    let flags = SlotFlags::STAMP_SCHED.with(SlotFlags::STAMP_SOFTWARE).with(SlotFlags::REPORT);
    push(&app, flags, ClockId::Monotonic, now + MS, now, b"when did I go?");
    world.run_until(50, |w| !w.sent().is_empty());
    let notice = notices.try_recv().expect("a notice");
    assert_eq!((notice.client, notice.stream, notice.descriptor), (ClientKey(1), 0, 9));
    assert_eq!(notice.kinds, kind::SCHEDULED | kind::SOFTWARE, "there is no error to report");
    let (completion, header) = reported(&app, &notice);
    assert_eq!(completion.outcome, Outcome::Sent);
    // The virtual world's CLOCK_REALTIME is its TAI.
    let due = (now + MS).saturating_add_signed(AHEAD);
    assert!((due..due + 1_000).contains(&completion.handed_at), "{} after", completion.handed_at - due);
    assert!(completion.scheduled_at < due && completion.scheduled_at >= due - MS);
    assert_eq!(header.frame.report_id, 5);
    // The pod's own frame, without the tunnel.
    let mut frame = completion.headers[..usize::from(completion.headers_octets)].to_vec();
    frame.extend_from_slice(b"when did I go?");
    let (_, _, wire) = &world.sent()[0];
    assert!(wire.ends_with(&frame) && wire.len() == frame.len() + 50, "{frame:02x?}");
    assert_eq!(dissect(&frame, None).unwrap().payload(), b"when did I go?");
    assert_eq!(world.worker_stats.reports.load(SeqCst), 1);
}

/// The ones' complement sum of a datagram with its pseudo header (RFC 768): all ones where the checksum is right.
fn udp_sum(headers: &[u8], payload: &[u8]) -> u16 {
    let datagram = [&headers[34..], payload].concat();
    let length = u16::try_from(datagram.len()).unwrap().to_be_bytes();
    let octets = [&headers[26..34], &[0, 17], &length, &datagram].concat();
    let word = |pair: &[u8]| u32::from(u16::from_be_bytes([pair[0], *pair.get(1).unwrap_or(&0)]));
    let sum: u32 = octets.chunks(2).map(word).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    u16::try_from((folded & 0xffff) + (folded >> 16)).unwrap()
}

#[test]
fn drops_for_the_transmit_times_sake_are_reported_and_no_others() {
    let (mut world, app, notices) = world();
    let now = world.clocks.at();
    let tai = |at: u64| at.saturating_add_signed(AHEAD);
    push(&app, SlotFlags::REPORT, ClockId::Tai, tai(now - MS), now, b"missed");
    push(&app, SlotFlags::REPORT, ClockId::Tai, 0, now, b"invalid");
    push(&app, SlotFlags::REPORT, ClockId::Monotonic, now + 11_000 * MS, now, b"beyond the horizon");
    push(&app, SlotFlags::STAMP_SOFTWARE, ClockId::Tai, tai(now - MS), now, b"no stamp: it never left");
    push(&app, SlotFlags::REPORT, ClockId::Monotonic, now, now, b"sent: no error");
    push(&app, SlotFlags::NONE, ClockId::Tai, tai(now - MS), now, b"no report");
    world.run_until(10, |w| !w.sent().is_empty());
    let payloads: [&[u8]; 3] = [b"missed", b"invalid", b"beyond the horizon"];
    let outcomes: Vec<_> = notices
        .try_iter()
        .map(|notice| {
            let (completion, header) = reported(&app, &notice);
            assert_eq!(completion.kinds, kind::ERROR);
            assert!(completion.headers_octets == 42, "the report shows the whole frame");
            let payload =
                payloads[usize::from(header.payload_octets != 6) + usize::from(header.payload_octets > 7)];
            assert_eq!(
                udp_sum(&completion.headers[..42], payload),
                0xffff,
                "with the checksum of its payload"
            );
            (completion.outcome, header.payload_octets)
        })
        .collect();
    let expected = [(Outcome::Invalid, 6), (Outcome::Invalid, 7), (Outcome::Invalid, 18)];
    assert_eq!(outcomes, expected);
    // All other slots are free.
    let free = std::iter::from_fn(|| app.producer.claim()).count();
    assert_eq!(free, 64 - 3);
}

/// The program was in time, the worker was not: etf's other word.
#[test]
fn a_frame_that_the_worker_overslept_is_missed() {
    let (mut world, app, notices) = world();
    world.clocks.lateness.store(3 * MS, SeqCst);
    let now = world.clocks.at();
    push(&app, SlotFlags::REPORT, ClockId::Tai, (now + 2 * MS).saturating_add_signed(AHEAD), now, b"overrun");
    world.run_until(10, |w| w.dropped(DropReason::Overrun) == 1);
    let outcomes: Vec<_> = notices.try_iter().map(|notice| reported(&app, &notice).0.outcome).collect();
    assert_eq!(outcomes, [Outcome::Missed]);
}

#[test]
fn a_program_that_never_reads_goes_on_sending() {
    let (mut world, app, notices) = world();
    for number in 0..2_000u64 {
        let now = world.clocks.at();
        push(&app, SlotFlags::STAMP_SOFTWARE, ClockId::Monotonic, now, now, b"");
        world.run_until(10, |w| w.sent().len() as u64 > number);
    }
    assert_eq!(world.sent().len(), 2_000);
    assert_eq!(notices.try_iter().count(), 32, "half of the slots");
    let stats = &world.worker_stats;
    assert_eq!((stats.reports.load(SeqCst), stats.reports_dropped.load(SeqCst)), (32, 2_000 - 32));
    app.producer.drop_completions(|frame| frame.stream_index == 0);
    let now = world.clocks.at();
    push(&app, SlotFlags::STAMP_SOFTWARE, ClockId::Monotonic, now, now, b"");
    world.run_until(10, |w| w.sent().len() > 2_000);
    assert_eq!(notices.try_iter().count(), 1);
}

#[test]
fn a_notifier_that_cannot_follow_holds_up_no_frame() {
    let (mut world, app, notices) = world();
    let (notifier, _full) = worker_to_thread(0).unwrap();
    world.worker.reporter.set_notifier(notifier);
    drop(notices);
    let now = world.clocks.at();
    push(&app, SlotFlags::STAMP_SOFTWARE, ClockId::Monotonic, now, now, b"");
    world.run_until(10, |w| !w.sent().is_empty());
    assert_eq!(world.worker_stats.notices_lost.load(SeqCst), 1);
    assert!(
        app.producer.oldest_completion(|frame| frame.stream_index == 0).is_some(),
        "it is found by looking"
    );
}

/// A socket that is closed has no reader.
#[test]
fn a_stream_that_is_over_gets_no_report() {
    let (mut world, app, notices) = world();
    let now = world.clocks.at();
    push(&app, SlotFlags::STAMP_SOFTWARE, ClockId::Monotonic, now + MS, now, b"sent after the close");
    world.run_until(1, |_| false);
    assert!(world.sent().is_empty());
    world.outbox.send(Command::Unregister(app.key, 0)).unwrap();
    world.run_until(50, |w| !w.sent().is_empty());
    assert_eq!(world.sent().len(), 1);
    assert!(notices.try_recv().is_err());
    assert!(app.producer.oldest_completion(|frame| frame.stream_index == 0).is_none());
    assert_eq!(std::iter::from_fn(|| app.producer.claim()).count(), 64);
}

/// The queue to the notifier is everybody's: one client's flood loses that client's notices, no other's.
#[test]
fn a_client_has_its_share_of_notices() {
    let (mut world, flood, notices) = world();
    let other = world.client(64);
    // The first look after clients is past.
    push(&flood, SlotFlags::NONE, ClockId::Monotonic, world.clocks.at(), world.clocks.at(), b"");
    world.run_until(50, |w| w.sent().len() == 1);
    let now = world.clocks.at();
    let client = world.worker.clients.named(ClientKey(1)).unwrap();
    let begin = ktsn_time::Monotonic::from_nanos(now);
    assert!((1..crate::limits::NOTICES_A_SECOND).all(|_| client.count_notice(begin)));
    for app in [&flood, &flood, &flood, &other] {
        push(app, SlotFlags::STAMP_SOFTWARE, ClockId::Monotonic, now, now, b"");
    }
    world.run_until(50, |w| w.sent().len() == 5);
    let clients: Vec<ClientKey> = notices.try_iter().map(|notice| notice.client).collect();
    assert_eq!(clients.iter().filter(|key| **key == ClientKey(1)).count(), 1);
    assert_eq!(clients.len(), 2);
    assert_eq!(world.worker_stats.notices_lost.load(SeqCst), 2);
    // All are reported, and found by looking.
    assert_eq!(world.worker_stats.reports.load(SeqCst), 4);
}
