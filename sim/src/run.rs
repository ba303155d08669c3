// SPDX-License-Identifier: Apache-2.0
//! One run: a world from a seed, the shipped worker in it, the checkers beside it.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use ktsn_model::PriorityMap;
use ktsn_resolve::PortIndex;
use ktsn_sched::{TimeAware, TimeAwareOptions};
use ktsn_time::Nanos;
use ktsnd::config::SpinMargin;
use ktsnd::limits;
use ktsnd::queue::Receiver;
use ktsnd::stats::WorkerStats;
use ktsnd::worker::{Command, HAND_OVER_AT_START, NewPort, Returned, Worker, WorkerOptions, queues};

use crate::broken::Broken;
use crate::check;
use crate::control::{self, Unmade};
use crate::figures::Figures;
use crate::host::VirtualHost;
use crate::ledger::{Disturbance, Violation};
use crate::plan::{BEGAN, MS, Plan, Select};
use crate::port::LinkPort;
use crate::world::World;

/// Conservation is looked at this often.
const LOOK_EVERY: u64 = 2 * MS;
/// After the drain everything is over by then: steps back of TAI make frames wait, no more than this.
const PATIENCE: u64 = 25_000 * MS;
/// A pass takes time; so many of them without an end are a fault by themselves.
const PASSES_MAX: u64 = 20_000_000;
/// Frames that the port's queue holds.
const QUEUE: usize = 4_096;
/// Broken rules kept for the report.
const VIOLATIONS_MAX: usize = 200;

/// How a run is watched.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// What is broken on purpose.
    pub broken: Broken,
    /// How many of the last notes are kept.
    pub kept_max: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self { broken: Broken::Nothing, kept_max: 40 }
    }
}

/// What a run showed.
#[derive(Debug)]
pub struct Outcome {
    /// Its seed.
    pub seed: u64,
    /// A hash of everything that happened.
    pub hash: u64,
    /// How many notes went into it.
    pub notes: u64,
    /// Frames published.
    pub published: u64,
    /// Frames on the wire.
    pub arrived: u64,
    /// Rules that were broken, in the order of their instants.
    pub violations: Vec<Violation>,
    /// The last notes before the first broken rule was found (or of the run), one line each.
    pub last: Vec<String>,
    /// Virtual nanoseconds from the start to the end.
    pub lasted: u64,
    /// Latency and jitter.
    pub figures: Figures,
}

type Bench =
    (Rc<RefCell<World>>, Worker<LinkPort, VirtualHost>, Receiver<Returned<LinkPort>>, Arc<WorkerStats>);

/// Runs the world of `seed`.
///
/// # Errors
/// Descriptors or memory of the machine ran out; nothing was learned about the worker.
pub fn run(seed: u64, options: Options) -> Result<Outcome, Unmade> {
    run_plan(Plan::new(seed), options)
}

/// Runs a world that was planned otherwise.
///
/// # Errors
/// Descriptors or memory of the machine ran out; nothing was learned about the worker.
pub fn run_plan(plan: Plan, options: Options) -> Result<Outcome, Unmade> {
    let (world, mut worker, returned, stats) = set_up(plan, options)?;
    let mut looked_at = 0;
    let mut passes = 0;
    let mut shown = None;
    loop {
        let goes_on = worker.pass();
        passes += 1;
        take_back(&world, &returned);
        let mut world = world.borrow_mut();
        let now = world.clocks.at();
        if now >= looked_at + LOOK_EVERY {
            looked_at = now;
            miscount(&world);
            check::conserved(&mut world);
        }
        if shown.is_none() && !world.ledger.violations.is_empty() {
            shown = Some(world.trace.lines(BEGAN));
        }
        let endless = now > BEGAN + world.plan.drain + PATIENCE || passes > PASSES_MAX;
        if endless {
            world.ledger.violated("progress", now, format!("no end after {passes} passes"));
        }
        if !goes_on || endless || world.ledger.violations.len() > VIOLATIONS_MAX {
            break;
        }
    }
    drop(worker);
    let mut world = world.borrow_mut();
    check::at_the_end(&mut world, &stats);
    world.ledger.violations.sort_by_key(|violation| violation.at);
    Ok(Outcome {
        seed: world.plan.seed,
        hash: world.trace.hash(),
        notes: world.trace.count(),
        published: world.ledger.published,
        arrived: world.ledger.arrived,
        violations: std::mem::take(&mut world.ledger.violations),
        last: shown.unwrap_or_else(|| world.trace.lines(BEGAN)),
        lasted: world.clocks.at() - BEGAN,
        figures: Figures::of(&world),
    })
}

fn set_up(plan: Plan, options: Options) -> Result<Bench, Unmade> {
    let (outbox, inbox, returned, _wake) = queues()?;
    let machine = plan.machine;
    let worker_options = WorkerOptions {
        spin_margin: match machine.margin {
            Some(margin) => SpinMargin::Fixed(Nanos::new(margin as i64)),
            None => SpinMargin::Adaptive,
        },
        known_margins: None,
        spin_duty_max_permille: machine.spin_permille,
    };
    let world = World::new(plan, outbox, options.broken, options.kept_max);
    let stats = Arc::new(WorkerStats::default());
    let tables = world.borrow().tables()?;
    let host = VirtualHost::new(world.clone());
    let worker = Worker::new(host, inbox, tables, worker_options, stats.clone());
    {
        let mut world = world.borrow_mut();
        let port = world.open_port();
        let policing = if world.plan.forgets_meters { None } else { control::policing(&world.plan.tenants)? };
        let new = NewPort {
            port,
            priority_map: PriorityMap::default(),
            selection: Box::new(select(&world.plan)),
            policing,
            stats: world.port_stats.clone(),
            is_pod_interface: false,
        };
        world.send(*b"AddPort ", Command::AddPort(PortIndex(0), new));
        for tenant in 0..world.tenants.len() as u16 {
            world.attach(tenant);
        }
    }
    Ok((world, worker, returned, stats))
}

/// The transmission selection of a plan.
fn select(plan: &Plan) -> TimeAware {
    match plan.select {
        Select::TxTime => TimeAware::new(TimeAwareOptions::tx_time(QUEUE, limits::ATTACHMENTS_MAX)),
        Select::Gates => TimeAware::new(TimeAwareOptions {
            link_speed: Some(plan.link.speed),
            hand_over: HAND_OVER_AT_START,
            ..TimeAwareOptions::gates(QUEUE, limits::ATTACHMENTS_MAX)
        }),
    }
}

/// What ktsnd's control plane does with what comes back; all of it is freed here.
fn take_back(world: &RefCell<World>, returned: &Receiver<Returned<LinkPort>>) {
    for back in returned.try_iter() {
        let mut world = world.borrow_mut();
        let now = world.clocks.at();
        match back {
            Returned::Port(..) => world.ledger.end(Disturbance::DeviceGone, now),
            Returned::Gates(_, view) => check::looked_at(&mut world, &view),
            _ => {}
        }
    }
}

/// Counters that are broken on purpose.
fn miscount(world: &World) {
    let stats = &world.tenants[0].stats;
    match world.broken {
        Broken::Count if world.healed && stats.sent.load(Relaxed).is_multiple_of(2) => {
            stats.sent.fetch_add(1, Relaxed);
        }
        Broken::ForgetDrop => {
            for tenant in &world.tenants {
                if let Some(counter) = tenant.stats.dropped.iter().find(|counter| counter.load(Relaxed) > 0) {
                    counter.fetch_sub(1, Relaxed);
                    return;
                }
            }
        }
        _ => {}
    }
}
