// SPDX-License-Identifier: Apache-2.0
//! A pod whose frames leave by its own interface, behind many rules of its own: each of its hand-overs takes long.

use std::fmt::Write as _;

use crate::faults::bed::Bed;
use crate::faults::daemon::Attachment;

/// So many rules at its own device make each frame of the pod take half a millisecond.
pub const RULES: usize = 20_000;

/// Makes `count` rules in the attacker's pod.
///
/// # Panics
/// When `nft` does not take them.
pub fn own(bed: &Bed, count: usize) {
    let mut text =
        "table netdev own {\n chain own_rules {\n type filter hook egress device \"eth0\" priority 0;\n"
            .to_owned();
    for rule in 0..count {
        let _ = writeln!(text, "  ip daddr 172.16.{}.{} counter", rule >> 8, rule & 255);
    }
    let directory = tempfile::tempdir().expect("temporary directory");
    let path = directory.path().join("rules");
    std::fs::write(&path, text + " }\n}\n").expect("the rules");
    bed.run(&format!("ip netns exec {} nft -f {}", bed.pod_q, path.display()));
}

/// The attachment's table without its overlay: frames leave by the pod's own interface.
#[must_use]
pub fn by_interface(attachment: Attachment) -> String {
    attachment.to(&["10.244.0.0/16"]).without_overlay()
}
