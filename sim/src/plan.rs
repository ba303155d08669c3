// SPDX-License-Identifier: Apache-2.0
//! A world from a seed: machine, link, tenants and what goes wrong when.
//!
//! In: a seed. Out: numbers only; nothing happens here. About a quarter of all seeds have no faults of the machine,
//! so that the strict bounds are tried as well.

use ktsn_ring::ClockId;

pub use crate::clocks::{MS, US};
use crate::event::Event;
use crate::gates::Schedule;
use crate::random::Random;

/// MONOTONIC at the start of every run.
pub const BEGAN: u64 = 1_000_000 * MS;
/// TAI at the start of every run: some day in 2026.
pub const TAI_BEGAN: u64 = 1_795_000_037 * 1_000 * MS;
/// Greatest oversleep at which a frame is sent. Longer than a cycle: a window that is missed by a hair is not a drop.
pub const OVERRUN_LIMIT: u64 = 3 * MS;
/// Furthest TxTime ahead.
pub const HORIZON: u64 = 10_000 * MS;

/// How a tenant behaves until the faults end. Afterwards all are good.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Behaviour {
    /// Frames on time, always.
    Good,
    /// Some frames after their TxTime.
    Late,
    /// Some frames 13 s ahead.
    FarAhead,
    /// Some frames with TxTime 0.
    Zero,
    /// Fills all its slots again and again.
    Flood,
    /// Processes that are killed, also between claim and publish.
    Dying,
    /// Threads that are held up between claim and publish.
    HeldUp,
    /// Writes shared words that are not its own.
    Corrupting,
    /// Uses a class that it was not granted, or a registration that is not its own.
    Cheating,
    /// Its attachment goes and comes back.
    Blinking,
    /// Rings its doorbell without end.
    Ringing,
    /// Keeps all its slots full of frames that may leave at once. Not one of a seed's.
    Saturating,
}

impl Behaviour {
    const BAD: [Self; 10] = [
        Self::Late,
        Self::FarAhead,
        Self::Zero,
        Self::Flood,
        Self::Dying,
        Self::HeldUp,
        Self::Corrupting,
        Self::Cheating,
        Self::Blinking,
        Self::Ringing,
    ];
}

/// A flow meter in front of a tenant's frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MeterPlan {
    /// Committed information rate, bit/s.
    pub rate: u64,
    /// Committed burst size, octets on the wire.
    pub burst: u32,
}

/// One tenant: an attachment with its programs.
#[derive(Clone, Copy, Debug)]
pub struct TenantPlan {
    /// What it does.
    pub behaviour: Behaviour,
    /// Priority of its frames, which is also their class.
    pub class: u8,
    /// Clock of its TxTimes.
    pub clock: ClockId,
    /// Between two frames.
    pub period: u64,
    /// From the push to the TxTime.
    pub ahead: u64,
    /// Octets of payload, at least those of the stamp.
    pub payload_octets: usize,
    /// Slots of each region.
    pub slots: u32,
    /// TxTimes at this offset after a multiple of the period on TAI; none: at any time.
    pub phase: Option<u64>,
    /// Its first frame, after the start.
    pub first: u64,
    /// What is policed; none: nothing.
    pub meter: Option<MeterPlan>,
}

/// The worker's machine.
#[derive(Clone, Copy, Debug)]
pub struct MachinePlan {
    /// Reading a clock takes so long.
    pub read: u64,
    /// Building a frame.
    pub stage: u64,
    /// The port's system call.
    pub commit: u64,
    /// Taking one slot over.
    pub intake: u64,
    /// A wake-up is typically so late.
    pub lateness: u64,
    /// And one in a hundred up to so much.
    pub lateness_max: u64,
    /// A fixed spin margin, or none: adaptive.
    pub margin: Option<u64>,
    /// Share of a second that may be spun.
    pub spin_permille: u32,
    /// TAI against MONOTONIC.
    pub drift_ppb: i64,
}

/// Whose link it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Everything on the link goes through KTSN.
    Dedicated,
    /// The kernel sends best effort into the same FIFO.
    Shared,
}

impl Mode {
    /// The configuration's word.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Dedicated => "dedicated",
            Self::Shared => "shared",
        }
    }
}

/// The link and the device in front of it.
#[derive(Clone, Copy, Debug)]
pub struct LinkPlan {
    /// Dedicated or shared.
    pub mode: Mode,
    /// Bit/s as negotiated.
    pub speed: u64,
    /// How much faster its clock runs (802.3 allows 100 either way).
    pub ppm: i64,
    /// From the kick to the first bit at least.
    pub hand_over: u64,
    /// And at most so much more.
    pub hand_over_spread: u64,
    /// Buffers of the port.
    pub stages: u16,
    /// Frames of the kernel that lie in the device at most.
    pub kernel_frames: u64,
}

/// The transmission selection of the port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Select {
    /// The preset `tx_time`: no gates.
    TxTime,
    /// The preset `gates` with the link's speed and, if the plan has any, gate schedules.
    Gates,
}

/// Everything about a run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What it was made from.
    pub seed: u64,
    /// The machine.
    pub machine: MachinePlan,
    /// The link.
    pub link: LinkPlan,
    /// Its transmission selection.
    pub select: Select,
    /// Gate schedules, the first one sent at the start.
    pub schedules: Vec<Schedule>,
    /// Tenants; the first two are good and use the highest classes.
    pub tenants: Vec<TenantPlan>,
    /// What happens when, nanoseconds after the start.
    pub events: Vec<(u64, Event)>,
    /// When all faults end.
    pub heal: u64,
    /// When fresh frames begin that must all be on time.
    pub fresh: u64,
    /// When the worker gets the command to drain.
    pub drain: u64,
    /// For everything that is drawn while it runs.
    pub random: Random,
    /// The port has no meters for the tenants: this shows that the checkers notice it.
    pub forgets_meters: bool,
}

impl Plan {
    /// The world of `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let calm = random.chance(250);
        let machine = machine(&mut random.fork());
        let link = link(machine.commit, &mut random.fork());
        let heal = random.between(120, 220) * MS;
        let (select, schedules) = selection(heal, &mut random.fork());
        let tenants = tenants(!schedules.is_empty(), &mut random.fork());
        let fresh = heal + 60 * MS;
        let drain = fresh + 60 * MS;
        let mut events = tenant_events(&tenants, heal, &mut random.fork());
        let schedule = |(index, one): (usize, &Schedule)| (one.sent, Event::Schedule { index: index as u16 });
        events.extend(schedules.iter().enumerate().map(schedule));
        let mut faults = random.fork();
        if !calm {
            machine_faults(&mut events, heal, &mut faults);
            link_faults(&mut events, heal, &mut faults);
        }
        if link.mode == Mode::Shared {
            bursts(&mut events, heal, &mut faults);
        }
        events.push((heal, Event::Heal));
        for tenant in 0..tenants.len() as u16 {
            events.push((fresh + u64::from(tenant) * 37 * US, Event::Fresh { tenant, left: 20 }));
        }
        if !schedules.is_empty() {
            events.push((fresh + 10 * MS, Event::LookAtGates));
        }
        events.push((drain, Event::Drain));
        let forgets_meters = false;
        Self {
            seed,
            machine,
            link,
            select,
            schedules,
            tenants,
            events,
            heal,
            fresh,
            drain,
            random,
            forgets_meters,
        }
    }
}

fn machine(random: &mut Random) -> MachinePlan {
    let lateness = random.between(2 * US, 9 * US);
    MachinePlan {
        read: random.between(25, 60),
        stage: random.between(250, 700),
        commit: random.between(900, 2_200),
        intake: random.between(200, 450),
        lateness,
        lateness_max: lateness + random.between(5 * US, 150 * US),
        margin: random.chance(400).then(|| random.between(20, 100) * US),
        spin_permille: random.of(&[800, 800, 800, 400, 100]),
        drift_ppb: if random.chance(500) { random.either_way(20_000) } else { 0 },
    }
}

/// The device has a frame before the system call returns; `ktsnd` computes with the same instant.
fn link(commit: u64, random: &mut Random) -> LinkPlan {
    LinkPlan {
        mode: random.of(&[Mode::Dedicated, Mode::Shared]),
        speed: 1_000_000_000,
        ppm: random.either_way(100),
        hand_over: random.between(commit / 4, commit * 2 / 3),
        hand_over_spread: random.between(1, commit / 4),
        stages: random.of(&[64, 128, 256]),
        kernel_frames: random.between(1, 4),
    }
}

fn selection(heal: u64, random: &mut Random) -> (Select, Vec<Schedule>) {
    if random.chance(250) {
        return (Select::TxTime, Vec::new());
    }
    let mut schedules = Vec::new();
    if random.chance(700) {
        schedules.push(Schedule { base_ahead: -5_000_000_000, ..Schedule::random(random, 0) });
        let mut changes = instants(random.between(0, 4), heal, random);
        changes.sort_unstable();
        for at in changes {
            schedules.push(Schedule::random(random, at));
        }
        for schedule in &mut schedules {
            if random.chance(600) {
                schedule.extension = random.between(1, schedule.cycle_time() * 3 / 2);
            }
        }
    }
    (Select::Gates, schedules)
}

fn tenants(gated: bool, random: &mut Random) -> Vec<TenantPlan> {
    let count = random.between(3, 7);
    (0..count)
        .map(|index| {
            let good = index < 2 || random.chance(150);
            TenantPlan {
                behaviour: if good { Behaviour::Good } else { random.of(&Behaviour::BAD) },
                class: match index {
                    0 => 7,
                    1 => 6,
                    _ => random.between(0, 6) as u8,
                },
                clock: random.of(&[ClockId::Tai, ClockId::Monotonic]),
                // Windows are long enough for one frame of each tenant a cycle.
                period: random.between(if gated { 1_000 } else { 250 }, 2_000) * US
                    + random.between(0, 1_000),
                ahead: random.between(1_000, 20_000) * US,
                payload_octets: random.between(32, 1_400) as usize,
                slots: random.of(&[64, 128, 256]),
                phase: None,
                first: random.between(2 * MS, 4 * MS),
                meter: None,
            }
        })
        .collect()
}

/// Instants of something that happens `count` times before the faults end.
fn instants(count: u64, heal: u64, random: &mut Random) -> Vec<u64> {
    (0..count).map(|_| random.between(6 * MS, heal - 10 * MS)).collect()
}

fn tenant_events(tenants: &[TenantPlan], heal: u64, random: &mut Random) -> Vec<(u64, Event)> {
    let mut events = Vec::new();
    for (index, plan) in tenants.iter().enumerate() {
        let tenant = index as u16;
        events.push((plan.first, Event::Push { tenant }));
        let count = random.between(2, 8);
        match plan.behaviour {
            Behaviour::Dying => {
                events
                    .extend(instants(count, heal, random).into_iter().map(|at| (at, Event::Kill { tenant })));
            }
            Behaviour::Corrupting => {
                events
                    .extend(instants(count, heal, random).into_iter().map(|at| (at, Event::Poke { tenant })));
            }
            Behaviour::Blinking => {
                for at in instants(count.min(3), heal, random) {
                    events.push((at, Event::Detach { tenant }));
                    let back = (at + random.between(MS, 9 * MS)).min(heal);
                    events.push((back, Event::Attach { tenant }));
                }
            }
            Behaviour::Ringing => {
                let ring = |at| (at, Event::Ring { tenant, left: 400 });
                events.extend(instants(count, heal, random).into_iter().map(ring));
            }
            _ => {}
        }
    }
    events
}

fn machine_faults(events: &mut Vec<(u64, Event)>, heal: u64, random: &mut Random) {
    if random.chance(600) {
        for at in instants(random.between(1, 12), heal, random) {
            let most = random.of(&[30 * US, 500 * US, 4 * MS]);
            events.push((at, Event::Stall { span: random.between(5 * US, most) }));
        }
    }
    if random.chance(500) {
        for at in instants(random.between(1, 5), heal, random) {
            let most = random.of(&[2 * US, 300 * US, 50 * MS, 2_000 * MS]);
            events.push((at, Event::Step { span: random.either_way(most) }));
        }
    }
    if random.chance(400) {
        for at in instants(random.between(1, 4), heal, random) {
            let tenant = random.between(0, 3) as u16;
            events.push((at, Event::Neighbour { tenant, known: false }));
            let back = (at + random.between(US, 5 * MS)).min(heal);
            events.push((back, Event::Neighbour { tenant, known: true }));
        }
    }
}

fn link_faults(events: &mut Vec<(u64, Event)>, heal: u64, random: &mut Random) {
    if random.chance(350) {
        for at in instants(random.between(1, 3), heal, random) {
            events.push((at, Event::Link { up: false }));
            events.push(((at + random.between(10 * US, 8 * MS)).min(heal), Event::Link { up: true }));
        }
    }
    if random.chance(250) {
        for at in instants(random.between(1, 2), heal, random) {
            events.push((at, Event::DeviceGone));
        }
    }
    if random.chance(300) {
        for at in instants(random.between(1, 3), heal, random) {
            events.push((at, Event::PortErrors { permille: random.between(10, 800) as u32 }));
            let end = (at + random.between(MS, 10 * MS)).min(heal);
            events.push((end, Event::PortErrors { permille: 0 }));
        }
    }
}

fn bursts(events: &mut Vec<(u64, Event)>, heal: u64, random: &mut Random) {
    for at in instants(random.between(1, 6), heal, random) {
        events.push((at, Event::BestEffort { on: true }));
        events.push(((at + random.between(MS, 40 * MS)).min(heal), Event::BestEffort { on: false }));
    }
}
