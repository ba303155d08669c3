// SPDX-License-Identifier: Apache-2.0
//! An uplink's device that goes, and comes back as another one: a driver that is loaded again, a card that is reset.

use std::time::Duration;

use ktsn_proto::v1;
use ktsn_tests::faults::bed::{Bed, POD_B, UPLINK};
use ktsn_tests::faults::daemon::{Attachment, Daemon, configuration};
use ktsn_tests::faults::talker::{Talker, talk};
use ktsn_tests::faults::{Tap, eventually};

const SOON: Duration = Duration::from_secs(20);

fn uplink(daemon: &Daemon) -> v1::Port {
    let ports = daemon.control().list().ports;
    ports.into_iter().find(|port| port.netns.is_empty() && port.device == UPLINK).expect("the uplink")
}

fn delete(bed: &Bed) {
    bed.run(&format!("ip -n {} link del {UPLINK}", bed.host_a));
}

/// The device under a name of its own, as a driver makes it; then with the uplink's name. The VXLAN device above it went with it.
fn make_again(bed: &Bed) {
    let (a, b) = (&bed.host_a, &bed.host_b);
    bed.run(&format!(
        "ip -n {a} link add eth77 address 02:00:00:00:00:01 type veth peer name {UPLINK} address 02:00:00:00:00:02 netns {b}
ip -n {b} addr add 192.168.50.2/24 dev {UPLINK}
ip -n {b} link set {UPLINK} up
ip -n {a} link set eth77 name {UPLINK}
ip -n {a} addr add 192.168.50.1/24 dev {UPLINK}
ip -n {a} link set {UPLINK} up
ip -n {a} neigh replace 192.168.50.2 lladdr 02:00:00:00:00:02 dev {UPLINK} nud permanent
ip -n {a} link add flannel.1 address 02:00:00:00:01:01 mtu 1450 type vxlan id 1 local 192.168.50.1 dev {UPLINK} \
dstport 8472 nolearning
ip -n {a} link set flannel.1 up
"
    ));
}

/// Nobody sends: the link's own events close and open the port, and the list says what is so.
#[test]
fn a_device_that_returns_is_opened_by_its_link_event_and_link_states_are_true() {
    let bed = Bed::new();
    let daemon = Daemon::start(&bed, &[Attachment::pod_a(&bed)]);
    assert!(uplink(&daemon).up);
    let far = format!("ip -n {} link set {UPLINK}", bed.host_b);
    bed.run(&format!("{far} down"));
    eventually("no carrier is shown", SOON, || !uplink(&daemon).up);
    bed.run(&format!("{far} up"));
    eventually("the carrier is shown", SOON, || uplink(&daemon).up);
    for _ in 0..3 {
        delete(&bed);
        let gone =
            eventually("the missing device is shown", SOON, || Some(uplink(&daemon)).filter(|port| !port.up));
        assert!(gone.adapter_reason.contains("no such device"), "{gone:?}");
        make_again(&bed);
        let back = eventually("the port is shown", SOON, || Some(uplink(&daemon)).filter(|port| port.up));
        assert_eq!((back.adapter.as_str(), back.adapter_reason.as_str()), ("af_xdp", ""), "{}", daemon.log());
    }
    assert_eq!(daemon.log().matches("port opened again").count(), 3, "{}", daemon.log());
    let serves =
        || daemon.control().list().attachments[0].overlay.as_ref().is_some_and(|o| o.fault.is_empty());
    eventually("the tunnel is there again", SOON, serves);
    // No frame was lost for it.
    let tap = Tap::open(&bed.host_b, UPLINK);
    talk(&daemon, &bed.pod_a, POD_B, 1, "count=50");
    assert_eq!(tap.wait(1, 50, SOON).len(), 50, "{}", daemon.log());
    assert!(daemon.control().counters("pod-a").dropped.is_empty());
}

/// Frames fail while the device is away, and each failure is news: the port is opened once for each return, never beside
/// ktsnd's own socket.
#[test]
fn a_reload_under_traffic_opens_the_port_once_and_stays_with_af_xdp() {
    let bed = Bed::new();
    let daemon = Daemon::start(&bed, &[Attachment::pod_a(&bed)]);
    let tap = Tap::open(&bed.host_b, UPLINK);
    let talker = Talker::start(&daemon, &bed.pod_a, POD_B, 1, "count=100000 lead_us=20000 period_us=2000");
    eventually("traffic", SOON, || tap.of(1).len() > 20);
    for round in 1..=3 {
        delete(&bed);
        let lost = || daemon.control().counters("pod-a").dropped.values().sum::<u64>();
        let before = lost();
        eventually("frames fail", SOON, || lost() > before + 20);
        make_again(&bed);
        let tap = Tap::open(&bed.host_b, UPLINK);
        eventually("frames leave", SOON, || tap.of(1).len() > 20);
        let log = daemon.log();
        assert_eq!(log.matches("port opened again").count(), round, "{log}");
        assert_eq!(uplink(&daemon).adapter, "af_xdp", "{log}");
    }
    drop(talker);
}

/// The host's own programs send by the uplink itself. That device is gone for a while, and the attachment returns with it.
#[test]
fn an_attachment_on_a_device_that_is_made_again_is_attached_again() {
    let bed = Bed::new();
    let own = format!(
        "[[attachment]]\nname = \"host\"\nnetns = \"{}\"\ninterface = \"{UPLINK}\"\nuplink = \"{UPLINK}\"\n\
         destinations = [\"192.168.50.0/24\"]\noverrun_limit = \"10s\"\n",
        bed.host_a
    );
    let mut daemon = Daemon::prepare(&bed.host_a, &format!("{}{own}", configuration(&[])));
    daemon.spawn();
    let attached = |count| {
        eventually("the attachment", SOON, || daemon.control().list().attachments.len() == count);
    };
    attached(1);
    delete(&bed);
    attached(0);
    let warnings = daemon.control().health().expect("health").warnings;
    assert!(
        warnings.iter().any(|text| text.starts_with("attachment host is not attached: ")),
        "{warnings:?}"
    );
    make_again(&bed);
    attached(1);
    let warnings = daemon.control().health().expect("health").warnings;
    assert!(!warnings.iter().any(|text| text.contains("not attached")), "{warnings:?}");
    let tap = Tap::open(&bed.host_b, UPLINK);
    talk(&daemon, &bed.host_a, "192.168.50.2", 3, "count=20");
    assert_eq!(tap.wait(3, 20, SOON).len(), 20, "{}", daemon.log());
}
