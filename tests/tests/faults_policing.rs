// SPDX-License-Identifier: Apache-2.0
//! `[policing]` of a running ktsnd: two tenants on one uplink, one of which babbles.

use std::time::{Duration, Instant};

use ktsn_proto::v1::StreamFilterStatistics;
use ktsn_tests::faults::bed::{Bed, POD_A, POD_B, UPLINK};
use ktsn_tests::faults::control::reason;
use ktsn_tests::faults::daemon::{Attachment, Daemon, NAME, configuration, pinned_port, port};
use ktsn_tests::faults::talker::{Talker, talk};
use ktsn_tests::faults::{Tap, eventually};

const SOON: Duration = Duration::from_secs(20);
const BABBLER: &str = "pod-q";
/// Octets on the wire of the talkers' frames: 64 of payload, 92 of headers, check sequence, preamble and gap.
const WIRE: u64 = 64 + 92 + 24;

fn babbler(bed: &Bed) -> Attachment {
    Attachment { name: BABBLER.to_owned(), namespace: bed.pod_q.clone(), ..Attachment::pod_a(bed) }
}

/// ktsnd with both tenants and these lines after `[policing]`.
fn start(bed: &Bed, babbler: Attachment, policing: &str) -> Daemon {
    let text = configuration(&[Attachment::pod_a(bed), babbler]).replace(&port("auto"), &pinned_port("auto"));
    let mut daemon =
        Daemon::prepare(&bed.host_a, &format!("{text}\n[policing]\nports = [\"{UPLINK}\"]\n{policing}"));
    daemon.spawn();
    daemon
}

/// The stream filters in front of the uplink.
fn filters(daemon: &Daemon) -> Vec<StreamFilterStatistics> {
    let ports = daemon.control().statistics_of("").expect("Statistics").ports;
    let uplink = ports.into_iter().find(|port| port.device == UPLINK && port.netns.is_empty());
    uplink.expect("uplink").stream_filters
}

/// 802.1Q 8.6.5.5: of a tenant that sends as fast as it can only what its meter has room for leaves, in order; the other
/// tenant's frames all leave, in order, none early.
#[test]
fn a_babbling_tenant_is_held_to_its_meter() {
    const BURST: u64 = 20;
    const RATE: u64 = 80_000;
    let bed = Bed::new();
    let policing = format!(
        "[[policing.stream-identity]]\nhandle = 7\nattachment = \"{BABBLER}\"\n\
         [[policing.stream-filter-instance-table]]\nstream-filter-instance-id = 1\nstream-handle = 7\nflow-meter-ref = 3\n\
         [[policing.flow-meter-instance-table]]\nflow-meter-instance-id = 3\ncommitted-information-rate = {RATE}\n\
         committed-burst-size = {}\n",
        BURST * WIRE
    );
    let daemon = start(&bed, babbler(&bed), &policing);
    let tap = Tap::open(&bed.host_b, UPLINK);
    let began = Instant::now();
    let victim = Talker::start(&daemon, &bed.pod_a, POD_B, 1, "count=400 lead_us=1000000");
    let flood = Talker::start(&daemon, &bed.pod_q, POD_B, 2, "count=20000 burst=1 clock=1 zero=1");
    let (values, errors) = flood.finish();
    assert_eq!(values["failed"], 0, "{errors}");
    let (values, errors) = victim.finish();
    assert_eq!(values["failed"], 0, "{errors}");
    let good = tap.wait(1, 400, SOON);
    let order: Vec<u64> = good.iter().map(|arrival| arrival.sequence).collect();
    assert_eq!(order, (0..400).collect::<Vec<_>>(), "{:?}", daemon.control().counters(NAME));
    assert!(good.iter().all(|arrival| arrival.after_ns >= 0), "{good:?}");

    eventually("all is taken", SOON, || daemon.control().counters(BABBLER).taken == 20_000);
    let counters = eventually("nothing waits", SOON, || {
        let counters = daemon.control().counters(BABBLER);
        (counters.sent + reason(&counters.dropped, "policed") == 20_000).then_some(counters)
    });
    let most = BURST + RATE * began.elapsed().as_secs() / (8 * WIRE) + RATE / (8 * WIRE) + 1;
    assert!((BURST..=most).contains(&counters.sent), "{} sent, {most} allowed", counters.sent);
    let arrived = tap.wait(2, usize::try_from(counters.sent).expect("count"), SOON);
    assert_eq!(arrived.len() as u64, counters.sent);
    assert!(arrived.is_sorted_by_key(|arrival| arrival.sequence), "{arrived:?}");
    assert!(arrived.iter().take(20).map(|arrival| arrival.sequence).eq(0..20), "the burst passes at once");

    let seen = &filters(&daemon)[0];
    assert_eq!(
        (seen.stream_filter_instance_id, seen.stream_handle, seen.flow_meter_ref),
        (1, Some(7), Some(3))
    );
    assert_eq!((seen.matching_frames_count, seen.passing_frames_count), (20_000, 20_000));
    assert_eq!(seen.red_frames_count, 20_000 - counters.sent);
    assert_eq!(reason(&daemon.control().counters(NAME).dropped, "policed"), 0);
}

/// 802.1Q 8.6.5.4: the gate's internal priority decides about the class, for the flow that is identified and no other; what
/// leaves by the pod's own interface is not the uplink's affair.
#[test]
fn a_stream_gate_moves_a_flow_to_another_class_and_stops_another_one() {
    let bed = Bed::new();
    let policing = "[[policing.stream-identity]]\nhandle = 1\nattachment = \"pod-a\"\n\
         ip-stream-identification = { ip-destination = \"10.244.1.0/24\", next-protocol = \"udp\", destination-port = 7788 }\n\
         [[policing.stream-identity]]\nhandle = 2\nattachment = \"pod-q\"\n\
         [[policing.stream-filter-instance-table]]\nstream-filter-instance-id = 5\nstream-handle = 2\nstream-gate-ref = 2\n\
         [[policing.stream-filter-instance-table]]\nstream-filter-instance-id = 4\nstream-handle = 1\nstream-gate-ref = 1\n\
         [[policing.stream-gate-instance-table]]\nstream-gate-instance-id = 1\ngate-enabled = false\nadmin-ipv = 2\n\
         [[policing.stream-gate-instance-table]]\nstream-gate-instance-id = 2\ngate-enabled = false\n\
         admin-gate-states = \"closed\"\n";
    let daemon = start(&bed, babbler(&bed).to(&["10.244.0.0/24", "10.244.1.0/24"]), policing);
    let tap = Tap::open(&bed.host_b, UPLINK);
    let near = Tap::open(&bed.pod_a, "eth0");
    talk(&daemon, &bed.pod_a, POD_B, 1, "count=10 priority=6 lead_us=300000");
    talk(&daemon, &bed.pod_q, POD_B, 2, "count=10 priority=6 lead_us=300000");
    // The first datagram may find no neighbour yet.
    eventually("a neighbour", SOON, || {
        talk(&daemon, &bed.pod_q, POD_A, 103, "count=1");
        !near.of(103).is_empty()
    });
    talk(&daemon, &bed.pod_q, POD_A, 3, "count=10 priority=6 lead_us=300000");
    assert_eq!(tap.wait(1, 10, SOON).len(), 10);
    assert_eq!(near.wait(3, 10, SOON).len(), 10);
    // Ten to pod B, ten to pod A, and one at least that found its neighbour.
    let counters = daemon.control().counters_of(BABBLER, 21, SOON);
    assert!(counters.sent >= 10, "{counters:?}");
    assert_eq!(reason(&counters.dropped, "policed"), 10, "{counters:?}");
    assert!(tap.of(2).is_empty());
    let ports = daemon.control().statistics_of("").expect("Statistics").ports;
    let uplink = ports.iter().find(|port| port.device == UPLINK && port.netns.is_empty()).expect("uplink");
    assert_eq!(uplink.frames, [0, 0, 10, 0, 0, 0, 0, 0]);
    let seen: Vec<_> = filters(&daemon)
        .iter()
        .map(|f| (f.stream_filter_instance_id, f.passing_frames_count, f.not_passing_frames_count))
        .collect();
    assert_eq!(seen, [(4, 10, 0), (5, 0, 10)]);
    assert!(ports.iter().filter(|port| !port.netns.is_empty()).all(|port| port.stream_filters.is_empty()));
}
