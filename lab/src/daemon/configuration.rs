// SPDX-License-Identifier: Apache-2.0
//! What a ktsnd of ours is configured with. In: hosts and pods. Out: TOML.

use super::ATTACHMENT;
use crate::testbed::{
    Host, POD_INTERFACE, Testbed, UPLINK, VXLAN_DEVICE, VXLAN_PORT, VXLAN_VNI, namespace_path,
};

/// The configuration of a ktsnd on host A that serves pod A.
#[must_use]
pub fn configuration(testbed: &Testbed) -> String {
    configuration_of(&testbed.a, &testbed.b)
}

/// The configuration of a ktsnd on `a` that serves its pod, with the pods of `b` as peers.
///
/// The other paths send a frame however late its program or its timer was; so does this one: a late frame is sent and
/// counted, instead of dropped as etf would, and stands in every distribution.
#[must_use]
pub fn configuration_of(a: &Host, b: &Host) -> String {
    format!("{}\n{}", without_attachment(), attachment_of(a, b, ATTACHMENT, &a.pod_namespace))
}

/// The configuration of a ktsnd on host A that serves pod A, whose frames go into a virtual switch behind `socket`. The uplink is
/// the switch's; ktsnd has it beside, for its worker.
#[must_use]
pub fn configuration_into_switch(testbed: &Testbed, socket: &std::path::Path) -> String {
    let Testbed { a, b } = testbed;
    format!(
        "{port}adapter = \"af_packet\"\n\n[[attachment]]\nname = \"{ATTACHMENT}\"\nnetns = \"{netns}\"\n\
         interface = \"{POD_INTERFACE}\"\nuplink = \"{UPLINK}\"\nlate = \"send\"\n\
         destinations = [\"{destinations}\"]\negress = \"vhost-user\"\nvhost_socket = \"{socket}\"\nallow_policy_bypass = true\n",
        port = without_attachment(),
        netns = namespace_path(&a.pod_namespace),
        destinations = b.pod_prefix,
        socket = socket.display(),
    )
}

/// The configuration of a ktsnd without attachments.
#[must_use]
pub fn without_attachment() -> String {
    format!("[[port]]\ndevice = \"{UPLINK}\"\ncpu = 1\npriority = 50\n")
}

/// The section of one more attachment of `a`, the pod in this namespace, with the pods of `b` as peers.
#[must_use]
pub fn attachment_of(a: &Host, b: &Host, name: &str, pod_namespace: &str) -> String {
    format!(
        "[[attachment]]\nname = \"{name}\"\n\
         netns = \"{netns}\"\ninterface = \"{POD_INTERFACE}\"\nuplink = \"{UPLINK}\"\n\
         late = \"send\"\noverlay = {{ vxlan = {{ mode = \"routed\", vni = {VXLAN_VNI}, port = {VXLAN_PORT}, local = \"{local}\", \
         device = \"{VXLAN_DEVICE}\", peers = [ {{ prefix = \"{prefix}\", vtep = \"{vtep}\", mac = \"{mac}\" }} ] }} }}\n",
        netns = namespace_path(pod_namespace),
        local = a.address,
        prefix = b.pod_prefix,
        vtep = b.address,
        mac = b.vxlan_mac,
    )
}
