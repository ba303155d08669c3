// SPDX-License-Identifier: Apache-2.0
//! A pod whose frames leave by its own interface, behind many rules of its own: each of its hand-overs takes long.

use std::fmt::Write as _;

use crate::faults::bed::Bed;
use crate::faults::daemon::Attachment;

/// So many rules at its own device make each frame of the pod take half a millisecond. More than 8,192 are not looked at: then its
/// frames are the kernel's.
pub const RULES: usize = 8_000;

/// Makes `count` rules in the attacker's pod.
///
/// # Panics
/// When `nft` does not take them.
pub fn own(bed: &Bed, count: usize) {
    let mut text =
        "table netdev own {\n chain own_rules {\n type filter hook egress device \"eth0\" priority 0;\n"
            .to_owned();
    for rule in 0..count {
        let (high, low) = (rule >> 8, rule & 255);
        // Each test is passed, so that the next one follows.
        for net in 16..20 {
            let _ = write!(text, " ip daddr != 172.{net}.{high}.{low}");
        }
        text += " counter\n";
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
