// SPDX-License-Identifier: Apache-2.0
use super::*;
use crate::command::output;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

fn gone(names: &[String]) -> bool {
    names.iter().all(|name| !Path::new(&namespace_path(name)).exists())
}

fn names(testbed: &Testbed) -> Vec<String> {
    testbed.namespaces().map(str::to_owned).to_vec()
}

#[test]
fn it_is_as_flannel_leaves_it_and_goes_without_a_trace() {
    let before = output(None, "ip -o link").unwrap();
    let testbed = Testbed::new().unwrap();
    let (ns, pod) = (testbed.a.namespace.clone(), testbed.a.pod_namespace.clone());
    let route = output(None, &format!("ip -n {ns} route get {}", testbed.b.pod_address)).unwrap();
    assert!(route.contains("via 10.244.1.0 dev flannel.1"), "{route}");
    let device = output(None, &format!("ip -n {ns} -d link show {VXLAN_DEVICE}")).unwrap();
    for part in ["mtu 1450", "vxlan id 1", "dstport 8472", "nolearning", &testbed.a.vxlan_mac] {
        assert!(device.contains(part), "{part}: {device}");
    }
    let way = output(Some(&pod), &format!("ip route get {}", testbed.b.pod_address)).unwrap();
    assert!(way.contains("via 10.244.0.1 dev eth0"), "{way}");
    // The set-up has sent a datagram both ways: rules were passed, connections were tracked.
    let rules = output(Some(&ns), "iptables -w -t filter -nvxL FLANNEL-FWD").unwrap();
    assert!(!rules.lines().nth(2).unwrap().trim_start().starts_with("0 "), "{rules}");
    assert_eq!(output(Some(&ns), "sysctl -n net.ipv4.ip_forward").unwrap().trim(), "1");
    let tracked = output(Some(&ns), "cat /proc/sys/net/netfilter/nf_conntrack_count").unwrap();
    assert_ne!(tracked.trim(), "0");

    let names = names(&testbed);
    drop(testbed);
    assert!(gone(&names));
    assert_eq!(output(None, "ip -o link").unwrap().lines().count(), before.lines().count());
}

#[test]
fn a_panic_removes_it_and_two_stand_beside_each_other() {
    let first = Testbed::new().unwrap();
    let mut made = Vec::new();
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let second = Testbed::new().unwrap();
        made = names(&second);
        panic!("on purpose");
    }));
    assert!(panicked.is_err());
    assert!(!made.is_empty() && gone(&made));
    assert!(!gone(&names(&first)));
}

#[test]
fn what_a_killed_process_left_is_swept() {
    // A number beyond pid_max: nobody has it.
    let left = vec![format!("{PREFIX}4999999-0-ha")];
    // Another testbed's sweep may find it half made: then it is made again.
    assert!((0..20).any(|_| run(None, &format!("ip netns add {}", left[0])).is_ok()));
    sweep();
    assert!(gone(&left));
}

#[test]
fn a_name_that_the_kernel_would_cut_is_refused() {
    for name in ["vm0", "exactly15octets"] {
        check_name(name).unwrap();
    }
    for name in ["", "sixteen-octets-x", "a b", "a/b", "a:b", ".", ".."] {
        let error = check_name(name).unwrap_err();
        assert_eq!(error.exit_status(), 2, "{error}");
        assert!(error.to_string().contains(&format!("{name:?} has {} octets", name.len())), "{error}");
    }
}
