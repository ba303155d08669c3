// SPDX-License-Identifier: Apache-2.0
//! An attachment whose egress is a private OVS-DPDK: from an ordinary program under libktsn through the switch to a device. The
//! switch is killed under traffic and starts again.

use std::time::{Duration, Instant};

use ktsn_lab::LabError;
use ktsn_lab::ovs::{Options, Ovs, missing};
use ktsn_proto::v1;
use ktsn_tests::faults::bed::{Bed, POD_A, POD_Q};
use ktsn_tests::faults::control::reason;
use ktsn_tests::faults::daemon::{Attachment, Daemon, NAME, pinned_port, worker_cpu};
use ktsn_tests::faults::talker::{Talker, talk};
use ktsn_tests::faults::{Tap, eventually};

const SOON: Duration = Duration::from_secs(60);
const COUNT: usize = 300;
const BRIDGE: &str = "br0";
const PORT: &str = "pod-a";
/// The switch's end of a veth whose other end is the tap.
const NEAR: &str = "sw0";
const FAR: &str = "sw1";

fn switch(bed: &Bed) -> Option<Ovs> {
    if let Some(package) = missing() {
        println!("SKIP ovs_dpdk_missing: Debian's {package} is not installed");
        return None;
    }
    // The worker has the other CPU, if there is one.
    let options = Options { cpu: usize::from(worker_cpu() == 0), ..Options::default() };
    match Ovs::start(&bed.host_a, &options) {
        Ok(ovs) => Some(ovs),
        Err(LabError::Impossible { what, .. }) => {
            println!("SKIP huge_pages_missing: {what}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn port(daemon: &Daemon) -> v1::Port {
    let ports = daemon.control().list().ports;
    ports.into_iter().find(|port| port.adapter == "vhost_user").expect("the port to the switch")
}

fn lost(daemon: &Daemon) -> u64 {
    let ports = daemon.control().statistics_of("").expect("statistics").ports;
    let port = ports.iter().find(|port| port.device == "eth0").expect("the port to the switch");
    reason(&port.refused, "lost")
}

fn connected(daemon: &Daemon, ovs: &Ovs) {
    let begun = Instant::now();
    let what = std::fmt::from_fn(|f| write!(f, "{:?} is up\n{}", port(daemon), ovs.log()));
    eventually(what, SOON, || port(daemon).up);
    println!("the switch was connected {:?} after it served", begun.elapsed());
}

/// Datagrams at the far end of the switch: all of them, in order, none early.
fn check(daemon: &Daemon, bed: &Bed, tap: &Tap, sender: u32) {
    let keys = format!("count={COUNT} period_us=1000 lead_us=50000 octets=200");
    let values = talk(daemon, &bed.pod_a, POD_Q, sender, &keys);
    assert_eq!((values["sent"], values["failed"]), (COUNT as i64, 0), "{values:?}");
    let arrived = tap.wait(sender, COUNT, SOON);
    assert!(
        arrived.iter().map(|arrival| arrival.sequence).eq(0..COUNT as u64),
        "once, in order: {}",
        arrived.len()
    );
    assert!(arrived.iter().all(|arrival| !arrival.is_overlay && arrival.source.to_string() == POD_A));
    let mut after: Vec<i64> = arrived.iter().map(|arrival| arrival.after_ns).collect();
    after.sort_unstable();
    println!(
        "through the switch: after its TxTime p50 {} ns, p90 {} ns",
        after[COUNT / 2],
        after[COUNT * 9 / 10]
    );
}

#[test]
fn timed_frames_pass_ovs_that_is_killed_under_traffic_and_comes_again() {
    let (bed, folder) = (Bed::new(), tempfile::tempdir().expect("folder"));
    let Some(mut ovs) = switch(&bed) else { return };
    let (host, pod) = (&bed.host_a, &bed.pod_b);
    bed.run(&format!(
        "ip -n {host} link add {NEAR} type veth peer name {FAR} netns {pod}\nip -n {host} link set {NEAR} up\n\
         ip -n {pod} link set {FAR} up"
    ));
    let socket = folder.path().join("vhost.sock");
    ovs.add_bridge(BRIDGE).expect("a bridge");
    ovs.add_device(BRIDGE, NEAR).expect("a device");
    ovs.add_front_end(BRIDGE, PORT, &socket, 2).expect("a port");
    let toml = Attachment::pod_a(&bed)
        .to(&["10.244.0.0/24"])
        .with("egress = \"vhost-user\"\nvhost_queues = 2\nallow_policy_bypass = true")
        .with(&format!("vhost_socket = \"{}\"", socket.display()))
        .without_overlay();
    let mut daemon = Daemon::prepare(&bed.host_a, &format!("{}{toml}", pinned_port("auto")));
    daemon.spawn();
    connected(&daemon, &ovs);
    // What else speaks in the pod's name does not move it.
    ovs.pin(BRIDGE, PORT, "02:00:00:00:00:99").expect("pinned");
    let stations = ovs.appctl(&["fdb/show", BRIDGE]).expect("stations");
    assert!(stations.contains("02:00:00:00:00:99  static"), "{stations}");
    let tap = Tap::open(pod, FAR);
    check(&daemon, &bed, &tap, 1);
    let pid = daemon.pid();
    // Killed while a program sends.
    let talker =
        Talker::start(&daemon, &bed.pod_a, POD_Q, 2, "count=4000 period_us=1000 lead_us=50000 octets=200");
    eventually("frames pass", SOON, || tap.of(2).len() > 500);
    ovs.kill().expect("killed");
    eventually("the hang-up is seen", SOON, || !port(&daemon).up);
    let (values, _) = talker.finish();
    assert_eq!(values["failed"], 0, "{values:?}");
    let counters = eventually("every frame has its end", SOON, || {
        let counters = daemon.control().counters(NAME);
        let dropped: u64 = counters.dropped.values().sum();
        (counters.sent + dropped == counters.taken && counters.taken == 4000 + COUNT as u64)
            .then_some(counters)
    });
    let (dropped, arrived) = (reason(&counters.dropped, "link_down"), tap.of(2).len() as u64);
    println!("killed: {arrived} of 4000 arrived, {dropped} link_down, {} lost in the ring", lost(&daemon));
    assert!(dropped > 0 && arrived + dropped + lost(&daemon) <= 4000, "{counters:?}");
    ovs.start_switch().expect("started again");
    connected(&daemon, &ovs);
    check(&daemon, &bed, &tap, 3);
    assert!(tap.early().is_empty(), "{:?}", tap.early());
    assert_eq!(daemon.pid(), pid);
    assert_eq!(daemon.terminate(SOON), Some(0), "{}", daemon.log());
}
