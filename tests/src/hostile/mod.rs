// SPDX-License-Identifier: Apache-2.0
//! Pods that attack the daemon, and what they must not reach.
//!
//! In: a testbed with its daemon. Out: the attacking process ([`attack`]), whether foreign addresses get anywhere
//! ([`foreign`]), the innocent stream on the wire ([`wire`]), and the rule by which it is judged ([`judge`]). `make test-hostile` and the functional
//! tests share it. [`rules`] are of a pod that makes its own hand-overs long.

pub mod attack;
pub mod foreign;
pub mod judge;
pub mod rules;
pub mod wire;

pub use attack::Attack;

use crate::faults::bed::Bed;
use crate::faults::daemon::Attachment;

/// The attachment of pod A, the innocent one.
pub const VICTIM: &str = "victim";
/// The attachment of pod Q.
pub const ATTACKER: &str = "attacker";

/// Both attachments as a user has them who says nothing but where their peers are: the innocent one, then the attacker's.
#[must_use]
pub fn attachments(bed: &Bed) -> [Attachment; 2] {
    let plain = |name: &str, namespace: &str| Attachment {
        name: name.to_owned(),
        namespace: namespace.to_owned(),
        destinations: Vec::new(),
        late: "by-clock",
        more: String::new(),
    };
    [plain(VICTIM, &bed.pod_a), plain(ATTACKER, &bed.pod_q)]
}

/// `[policing]` that holds the attacker to 10 Mbit/s.
#[must_use]
pub fn metered() -> String {
    format!(
        "\n[policing]\n[[policing.stream-identity]]\nhandle = 7\nattachment = \"{ATTACKER}\"\n\
         [[policing.stream-filter-instance-table]]\nstream-filter-instance-id = 1\nstream-handle = 7\nflow-meter-ref = 3\n\
         [[policing.flow-meter-instance-table]]\nflow-meter-instance-id = 3\ncommitted-information-rate = 10000000\n\
         committed-burst-size = 100000\n"
    )
}
