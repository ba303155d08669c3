// SPDX-License-Identifier: Apache-2.0
//! A second uplink and a second interface of pod A, beside those of the testbed.
//!
//! In: a testbed. Out: the links, their addresses, and the configuration of the second interface. All of it goes with the
//! testbed's namespaces.

use super::bed::{Bed, UPLINK};
use super::daemon::{Attachment, NAME};

/// Pod A's address in the second network.
pub const NET1: &str = "10.250.0.5";
/// The address of a pod of the second network on host B.
pub const FAR1: &str = "10.250.1.5";

/// Makes a second link between the hosts, `up2`, and a second interface of pod A, `net1`, behind which 10.250.0.0/16 lies.
pub fn link(bed: &Bed) {
    let (a, b, pod) = (&bed.host_a, &bed.host_b, &bed.pod_a);
    bed.run(&format!(
        "ip -n {a} link add up2 address 02:00:00:00:52:01 type veth peer name up2 address 02:00:00:00:52:02 netns {b}
ip -n {a} addr add 192.168.52.1/24 dev up2
ip -n {b} addr add 192.168.52.2/24 dev up2
ip -n {a} link set up2 up
ip -n {b} link set up2 up
ip -n {a} neigh replace 192.168.52.2 lladdr 02:00:00:00:52:02 dev up2 nud permanent
ip -n {a} link add second5 mtu 1450 type veth peer name net1 netns {pod}
ip -n {a} link set second5 up
ip -n {a} addr add 10.250.0.1/24 dev second5
ip -n {pod} link set net1 up
ip -n {pod} addr add {NET1}/24 dev net1
ip -n {pod} route add 10.250.0.0/16 via 10.250.0.1
"
    ));
}

/// The `[[attachment]]` of `net1`, which leaves by `up2`: otherwise as `first`, pod A's `eth0`.
#[must_use]
pub fn attachment(first: &Attachment) -> String {
    first
        .toml()
        .replace(&format!("name = \"{NAME}\""), "name = \"net1\"")
        .replace("interface = \"eth0\"", "interface = \"net1\"")
        .replace(&format!("uplink = \"{UPLINK}\""), "uplink = \"up2\"")
        .replace("192.168.50.", "192.168.52.")
        .replace(
            "peers = [",
            "peers = [ { prefix = \"10.250.1.0/24\", vtep = \"192.168.52.2\", mac = \"02:00:00:00:01:02\" },",
        )
}
