// SPDX-License-Identifier: Apache-2.0
//! Programs that lose libktsn's descriptors, and that end at once: ktsnd has sent or counted each of their frames.

use std::time::Duration;

use ktsn_tests::faults::bed::{Bed, POD_B};
use ktsn_tests::faults::control::reason;
use ktsn_tests::faults::daemon::{Attachment, Daemon, NAME};
use ktsn_tests::faults::eventually;
use ktsn_tests::hook::{self, Libc};

const SOON: Duration = Duration::from_secs(20);
/// Frames of a program.
const FRAMES: u64 = 10;

#[test]
fn each_frame_of_a_program_that_ends_is_sent_or_counted() {
    let bed = Bed::new();
    let daemon = Daemon::start(&bed, &[Attachment::pod_a(&bed)]);
    let mut expected = 0;
    for way in ["dup2", "raw-dup3", "raw-close", "raw-range"] {
        for how in ["exit", "_exit", "exec", "abort", "kill"] {
            let steps = ["quiet", &format!("defaults to={POD_B},9"), &format!("put {way} 40 {how}")]
                .map(str::to_owned);
            let mut child = hook::Running(daemon.program(&bed.pod_a, hook::steps(Libc::Gnu), &steps));
            let _ = child.0.wait().expect("program");
            expected += FRAMES;
            eventually(format!("all frames are accounted for: {steps:?}"), SOON, || {
                let now = daemon.control().counters(NAME);
                let absent = reason(&now.dropped, "daemon_absent");
                assert!(now.sent + absent <= expected, "{steps:?}: counted twice: {now:?}");
                assert!(way != "dup2" || absent == 0, "{now:?}");
                now.sent + absent == expected && daemon.clients() == 0
            });
        }
    }
}
