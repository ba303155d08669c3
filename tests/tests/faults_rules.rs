// SPDX-License-Identifier: Apache-2.0
//! Rules of the node's packet filter that the short cut would skip: the attachment is refused, unless it says that it may.

use ktsn_tests::faults::bed::{Bed, POD_A, POD_B, UPLINK};
use ktsn_tests::faults::daemon::{Attachment, Daemon};
use ktsn_tests::faults::talker::talk;
use ktsn_tests::faults::{Tap, eventually};
use std::time::Duration;

const SOON: Duration = Duration::from_secs(10);

#[test]
fn a_rule_about_the_pod_refuses_its_attachment() {
    let bed = Bed::new();
    let nft = |text: &str| bed.run(&format!("ip netns exec {} nft '{text}'", bed.host_a));
    nft("add table inet rules");
    nft("add chain inet rules forward { type filter hook forward priority 0; }");
    // Another pod's rule, and a service's address: nobody's will about pod A.
    nft("add rule inet rules forward ip saddr 10.244.0.77 drop");
    nft("add rule inet rules forward ip daddr 10.96.0.10 counter reject");
    let daemon = Daemon::start(&bed, &[Attachment::pod_a(&bed)]);
    let tap = Tap::open(&bed.host_b, UPLINK);
    talk(&daemon, &bed.pod_a, POD_B, 1, "count=5");
    let mut control = daemon.control();
    let model = control.list().attachments[0].attachment.clone().expect("an attachment");
    control.detach(&model.name).expect("detach");
    eventually("its client is gone", SOON, || (daemon.clients() == 0).then_some(()));
    nft(&format!("add rule inet rules forward ip saddr {POD_A} udp dport 7788 drop"));
    // Rules are read again when they are a second old.
    std::thread::sleep(Duration::from_millis(1100));
    let before = (daemon.descriptors(), control.list().ports.len());
    let refused = control.attach(model.clone()).expect_err("a pod with a rule");
    assert_eq!(refused.code(), tonic::Code::FailedPrecondition, "{refused}");
    let text = refused.message();
    assert!(text.contains("allow_policy_bypass: false") && text.contains(POD_A), "{text}");
    eventually("nothing is held of it", SOON, || {
        (daemon.descriptors() <= before.0 && control.list().ports.len() == before.1).then_some(())
    });
    assert!(control.list().attachments.is_empty());
    let willing = ktsn_proto::v1::Attachment { allow_policy_bypass: Some(true), ..model };
    control.attach(willing).expect("attach");
    talk(&daemon, &bed.pod_a, POD_B, 2, "count=20");
    assert_eq!(tap.wait(2, 20, SOON).len(), 20);
}
