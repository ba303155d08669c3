// SPDX-License-Identifier: Apache-2.0
//! A 1 Gbit/s link that best effort saturates, with three classes: what gates can do on a `dedicated` uplink, where the
//! best effort comes through KTSN too, and on a `shared` one, where the kernel puts it into the same FIFO.
//!
//! ```text
//!   0          240 µs                                                    1 ms
//!   ├─ class 7 ──┼──────────── classes 0 to 6 ───────────────────────────┤
//!     ▲ TxTime 40 µs           ▲ class 5: TxTime 500 µs, among best effort
//! ```

mod babbling;

pub use babbling::{Babbling, METER, VICTIM, babbling, unmetered};

use ktsn_ring::ClockId;

use crate::control::Unmade;
use crate::event::Event;
use crate::gates::Schedule;
use crate::link::FRAME_MAX_WIRE_OCTETS;
use crate::plan::{Behaviour, LinkPlan, MS, MachinePlan, Mode, Plan, Select, TenantPlan, US};
use crate::random::Random;
use crate::run::{Options, Outcome, run_plan};

/// Frames of the kernel that a device holds: one queue for all with a byte queue limit of three of the longest frames, and
/// one more, as a limit is passed by the frame that reaches it.
pub const KERNEL_FRAMES: u64 = 4;

/// One run of the scenario.
#[derive(Debug)]
pub struct Saturated {
    /// Whose link it was.
    pub mode: Mode,
    /// How long the longest frame occupies the link, nanoseconds.
    pub frame_max: u64,
    /// What the kernel may put in front of a frame, nanoseconds; 0 when the link is ours alone.
    pub kernel_max: u64,
    /// What it showed.
    pub outcome: Outcome,
}

/// Runs both.
///
/// # Errors
/// Descriptors or memory of the machine ran out.
pub fn saturated(seed: u64) -> Result<Vec<Saturated>, Unmade> {
    [Mode::Dedicated, Mode::Shared].into_iter().map(|mode| one(seed, mode)).collect()
}

fn one(seed: u64, mode: Mode) -> Result<Saturated, Unmade> {
    let plan = plan(seed, mode);
    let frame_max = crate::link::Link::new(plan.link, Random::new(0)).span(FRAME_MAX_WIRE_OCTETS);
    let kernel_max = if mode == Mode::Shared { KERNEL_FRAMES * frame_max } else { 0 };
    Ok(Saturated { mode, frame_max, kernel_max, outcome: run_plan(plan, Options::default())? })
}

fn talker(class: u8, phase: u64, payload_octets: usize) -> TenantPlan {
    TenantPlan {
        behaviour: Behaviour::Good,
        class,
        clock: ClockId::Tai,
        period: MS,
        ahead: 3 * MS,
        payload_octets,
        slots: 64,
        phase: Some(phase),
        first: 2 * MS,
        meter: None,
    }
}

fn machine() -> MachinePlan {
    MachinePlan {
        read: 30,
        stage: 400,
        commit: 1_500,
        intake: 300,
        lateness: 4 * US,
        lateness_max: 40 * US,
        // It covers every wake-up: what is left is the link's doing.
        margin: Some(60 * US),
        // The default of 800 is spent by waiting for a busy link all the time; wake-ups would blur the figures then.
        spin_permille: 1_000,
        drift_ppb: 0,
    }
}

fn plan(seed: u64, mode: Mode) -> Plan {
    let link = LinkPlan {
        mode,
        speed: 1_000_000_000,
        ppm: -40,
        hand_over: 700,
        hand_over_spread: 300,
        stages: 256,
        kernel_frames: KERNEL_FRAMES,
    };
    let entries = vec![(0b1000_0000, 240 * US), (0b0111_1111, 760 * US)];
    let schedules = vec![Schedule { entries, extension: 0, sent: 0, base_ahead: -5_000_000_000 }];
    // The base time is aligned to whole cycles of TAI, as the talkers are: the run begins at a whole second of it.
    let mut tenants = vec![talker(7, 40 * US, 200), talker(5, 500 * US, 200)];
    if mode == Mode::Dedicated {
        tenants.push(TenantPlan {
            behaviour: Behaviour::Saturating,
            class: 0,
            clock: ClockId::Monotonic,
            period: 200 * US,
            payload_octets: 1_400,
            slots: 128,
            phase: None,
            ..talker(0, 0, 0)
        });
    }
    let more = [(0, Event::Schedule { index: 0 }), (MS, Event::BestEffort { on: true })];
    Plan { schedules, ..one_second(seed, link, tenants, &more, 120 * MS) }
}

/// One second of the tenants' traffic and of these events, then `drain_after` to the end. No gates.
fn one_second(
    seed: u64,
    link: LinkPlan,
    tenants: Vec<TenantPlan>,
    more: &[(u64, Event)],
    drain_after: u64,
) -> Plan {
    let heal = 1_000 * MS;
    let (fresh, drain) = (heal + 60 * MS, heal + drain_after);
    let mut events = more.to_vec();
    events.extend((0u16..).zip(&tenants).map(|(tenant, plan)| (plan.first, Event::Push { tenant })));
    events.extend([(heal, Event::Heal), (drain, Event::Drain)]);
    Plan {
        seed,
        machine: machine(),
        link,
        select: Select::Gates,
        schedules: Vec::new(),
        tenants,
        events,
        heal,
        fresh,
        drain,
        random: Random::new(seed),
        forgets_meters: false,
    }
}
