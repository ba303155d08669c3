// SPDX-License-Identifier: Apache-2.0
//! A babbling tenant behind a flow meter: how far it can move a frame of another tenant. It pushes all its slots full of frames
//! that may leave at once, a moment before the other one's TxTime, in a class above, the same class and one below.
//!
//! ```text
//!   babbler pushes ▼ (128 frames)                 the meter lets 8 of them pass
//!   ───────────────┼──────┼─[8 frames of the longest]─[victim]─────────── 1 ms
//!                470 µs   ▲ 500 µs: victim's TxTime
//! ```

use ktsn_ring::ClockId;

use super::{one_second, talker};
use crate::control::Unmade;
use crate::link::{FRAME_MAX_WIRE_OCTETS, Link};
use crate::plan::{Behaviour, LinkPlan, MS, MeterPlan, Mode, OVERRUN_LIMIT, Plan, TenantPlan, US};
use crate::random::Random;
use crate::run::{Options, Outcome, run_plan};

/// The other tenant's class.
pub const VICTIM: u8 = 5;
/// The babbling tenant's meter: a tenth of the link, eight frames at once.
pub const METER: MeterPlan = MeterPlan { rate: 100_000_000, burst: 8 * FRAME_MAX_WIRE_OCTETS };
const SPEED: u64 = 1_000_000_000;

/// One run.
#[derive(Debug)]
pub struct Babbling {
    /// The babbling tenant's class.
    pub class: u8,
    /// How far it may move a frame by `docs/guide/guarantees.md`, nanoseconds.
    pub bound: u64,
    /// What it showed.
    pub outcome: Outcome,
}

/// Runs all three.
///
/// # Errors
/// Descriptors or memory of the machine ran out.
pub fn babbling(seed: u64) -> Result<Vec<Babbling>, Unmade> {
    [VICTIM + 1, VICTIM, VICTIM - 1].into_iter().map(|class| one(seed, class, false)).collect()
}

/// Runs the talker of the higher class at a port without the meter.
///
/// # Errors
/// Descriptors or memory of the machine ran out.
pub fn unmetered(seed: u64) -> Result<Babbling, Unmade> {
    one(seed, VICTIM + 1, true)
}

fn one(seed: u64, class: u8, forgets_meters: bool) -> Result<Babbling, Unmade> {
    let plan = Plan { forgets_meters, ..plan(seed, class) };
    let frame = Link::new(plan.link, Random::new(0)).span(FRAME_MAX_WIRE_OCTETS);
    let octets = u64::from(METER.burst + FRAME_MAX_WIRE_OCTETS);
    let bound = if class < VICTIM { frame } else { octets * 8_000_000_000 / (SPEED - METER.rate) };
    Ok(Babbling { class, bound, outcome: run_plan(plan, Options::default())? })
}

fn plan(seed: u64, class: u8) -> Plan {
    let link = LinkPlan {
        mode: Mode::Dedicated,
        speed: SPEED,
        ppm: 0,
        hand_over: 700,
        hand_over_spread: 300,
        stages: 256,
        kernel_frames: 0,
    };
    let babbler = TenantPlan {
        behaviour: Behaviour::Saturating,
        class,
        clock: ClockId::Monotonic,
        // With headers as long as the longest frame of the link.
        payload_octets: 1_422,
        slots: 128,
        phase: None,
        first: 2 * MS + 470 * US,
        meter: Some(METER),
        ..talker(0, 0, 0)
    };
    let tenants = vec![talker(VICTIM, 500 * US, 200), babbler];
    one_second(seed, link, tenants, &[], 60 * MS + 2 * OVERRUN_LIMIT)
}
