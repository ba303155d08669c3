// SPDX-License-Identifier: Apache-2.0
//! The checkers. They stand outside of the worker and see three things only: what was pushed, what arrived on the
//! virtual wire and when, and the counters that everybody can read.

mod balance;
mod counters;
mod gates;
mod meter;
mod order;
mod reasons;
mod time;
mod window;

use crate::world::World;

pub use balance::conserved;
pub use gates::looked_at;
pub use time::{error_bound, wire_bound};

/// Every rule, in the order of a report, and what it says.
pub const RULES: [(&str, &str); 14] = [
    ("never-early", "no frame is handed over before its TxTime on the TxTime's own clock"),
    ("once", "each frame that was published arrives at most once, and no other arrives"),
    ("intact", "the payload arrives as it was pushed"),
    ("identity", "every frame carries the address of the attachment that it came from"),
    ("conservation", "published = on the wire + dropped by reason + still held, at every moment"),
    ("reasons", "each frame that did not arrive has a reason that happened, and the counters name it"),
    ("order", "frames of one program, class and clock leave in the order of their TxTimes"),
    ("counters", "every counter equals what the wire and the programs saw"),
    ("isolation", "a program that behaves loses nothing and is not moved by others beyond the bound"),
    (
        "window",
        "frames are handed over in an open gate, and end before it closes (shared: plus what the kernel put in)",
    ),
    ("meter", "of a tenant that is metered no span carries more than its burst and its rate allow"),
    ("wire", "a frame's first bit leaves within the bound after its hand-over"),
    ("progress", "after the faults fresh frames of every tenant arrive on time, and the daemon ends"),
    ("simulator", "the simulation itself could be carried out"),
];

/// Everything that can be said when the run is over.
pub fn at_the_end(world: &mut World, worker: &ktsnd::stats::WorkerStats) {
    balance::conserved(world);
    reasons::check(world);
    order::check(world);
    counters::check(world, worker);
    time::check(world);
    window::check(world);
    meter::check(world);
}
