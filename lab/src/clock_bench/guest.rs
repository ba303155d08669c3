// SPDX-License-Identifier: Apache-2.0
//! One guest of the experiment: its network, its samples, its pause, and what the host knows meanwhile.
//!
//! In: the plan and a clock. Out: [`Left`]: the guest's samples as text, the host's readings, QEMU's constant before and after the pause.

use super::{AFTER_PAUSE, EVERY, Plan};
use crate::command::run;
use crate::error::LabError;
use crate::testbed::{check_rights, namespace_path, new_stem};
use crate::vm::protocol::{Clock, Ended, Job};
use crate::vm::qmp::Monitor;
use crate::vm::{self, Kind, Machine, Renew, Request, Stream, Watch, truth};
use ktsn_clock::kernel::{Pair, pair};
use serde_json::Value;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

const BRIDGE: &str = "br0";
const SERVER: &str = "10.78.0.1/24";
const GUEST: &str = "10.78.0.2/24";
/// Time between two readings of the host's clock.
const READ_EVERY: Duration = Duration::from_millis(5);
/// How far the guest's clock may be off when QEMU's constant is looked for.
const NEAR: Duration = Duration::from_millis(50);
const MONITOR_WITHIN: Duration = Duration::from_secs(20);
/// How much longer a guest samples that is not paused.
const MARGIN: Duration = Duration::from_secs(2);
/// What a guest needs beyond its samples.
const EXTRA: Duration = Duration::from_secs(60);
/// The line of the guest's words that ends the samples.
pub(super) const END: &str = "# end";

/// The counter of the host at the pause's end, and QEMU's constant after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pause {
    /// The host's counter before QEMU was asked to go on.
    pub(super) resumed: u64,
    /// What the guest's counter is ahead of the host's from then on.
    pub(super) offset: i64,
}

/// What a guest and its host left.
#[derive(Clone, Debug)]
pub(super) struct Left {
    /// The samples and the clock's states, as the guest wrote them.
    pub(super) said: String,
    /// The host's readings, in order.
    pub(super) host: Vec<Pair>,
    /// What the guest's counter is ahead of the host's until the pause.
    pub(super) offset: i64,
    pub(super) pause: Option<Pause>,
}

/// A namespace with a bridge; removed on drop.
struct Network(String);

impl Network {
    fn new() -> Result<Self, LabError> {
        check_rights()?;
        let network = Self(format!("{}c", new_stem()?));
        let space = &network.0;
        run(None, &format!("ip netns add {space}"))?;
        run(None, &format!("ip -n {space} link set lo up"))?;
        run(None, &format!("ip -n {space} link add {BRIDGE} type bridge"))?;
        run(None, &format!("ip -n {space} addr add {SERVER} dev {BRIDGE}"))?;
        run(None, &format!("ip -n {space} link set {BRIDGE} up"))?;
        Ok(network)
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        if Path::new(&namespace_path(&self.0)).exists()
            && let Err(error) = run(None, &format!("ip netns del {}", self.0))
        {
            eprintln!("warning: {error}; remove it with `ip netns del {}`", self.0);
        }
    }
}

/// What the guest has said so far.
#[derive(Default)]
struct Said {
    text: Mutex<String>,
    words: Mutex<String>,
    is_unwanted: AtomicBool,
}

impl Said {
    fn text(&self) -> String {
        self.text.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Watch for &Said {
    fn ready(&mut self) {}

    fn wrote(&mut self, stream: Stream, octets: &[u8]) -> io::Result<usize> {
        let to = if stream == Stream::Stdout { &self.text } else { &self.words };
        to.lock().unwrap_or_else(PoisonError::into_inner).push_str(&String::from_utf8_lossy(octets));
        Ok(octets.len())
    }

    fn is_wanted(&self) -> bool {
        !self.is_unwanted.load(Ordering::Relaxed)
    }
}

fn failed(problem: impl Into<String>) -> LabError {
    LabError::Process { name: "the guest".to_owned(), problem: problem.into(), stderr: String::new() }
}

/// How long the guest samples, by its own clock: it stands still in the pause.
fn sampled(plan: &Plan) -> Duration {
    // Without a pause a little longer than what is measured, so that the guest does not end first.
    let after = if plan.pause.is_zero() { MARGIN } else { AFTER_PAUSE };
    plan.settle + plan.measured + after
}

/// Runs one guest.
pub(super) fn one_run(plan: &Plan, clock: Clock, directory: &Path) -> Result<Left, LabError> {
    let network = Network::new()?;
    let directory = tempfile::tempdir_in(directory).map_err(LabError::system("temporary directory"))?;
    let monitor = directory.path().join("qmp");
    let request = request(plan, clock, &network, &monitor);
    let (said, stop) = (Said::default(), AtomicBool::new(false));
    let image = vm::image(&plan.cache, Kind::Qemu, Renew::Nothing, &mut |_| {})?;
    std::thread::scope(|scope| {
        let readings = scope.spawn(|| {
            let mut readings = Vec::new();
            while !stop.load(Ordering::Relaxed) {
                readings.push(pair(3));
                std::thread::sleep(READ_EVERY);
            }
            readings
        });
        let control = scope.spawn(|| {
            let done = control(plan, &monitor, &said);
            if done.is_err() {
                said.is_unwanted.store(true, Ordering::Relaxed);
            }
            done
        });
        let ran = vm::run(&plan.cache, image, &request, &mut &said);
        let is_control_first = control.is_finished();
        // A control that waits for a guest that has failed gives up.
        said.is_unwanted.store(true, Ordering::Relaxed);
        let controlled = control.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        stop.store(true, Ordering::Relaxed);
        let host = readings.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let (offset, pause) = match (ran, controlled) {
            (_, Err(error)) if is_control_first => return Err(error),
            (Err(error), _) | (Ok(_), Err(error)) => return Err(error),
            (Ok(report), Ok(done)) if report.ended == Ended::Exited(0) => done,
            (Ok(report), Ok(_)) => {
                let words = said.words.lock().unwrap_or_else(PoisonError::into_inner);
                return Err(failed(format!(
                    "sampled its clock: {:?}: {}",
                    report.ended,
                    vm::printable(words.as_bytes())
                )));
            }
        };
        Ok(Left { said: said.text(), host, offset, pause })
    })
}

fn request(plan: &Plan, clock: Clock, network: &Network, monitor: &Path) -> Request {
    let count = sampled(plan).as_millis() / EVERY.as_millis();
    let script = format!(
        "ktsn clock status --json >/tmp/before 2>/dev/null; ktsn clock sample --count {count} --every {}ms || exit 1; \
         echo '{END}'; cat /tmp/before; ktsn clock status --json 2>/dev/null; true",
        EVERY.as_millis()
    );
    let last_cpu = std::thread::available_parallelism().map_or(0, |cpus| usize::from(cpus) - 1);
    Request {
        machine: Machine {
            datapath: vm::Datapath::Bridge(vm::Bridge::new(BRIDGE, Some(&network.0))),
            address: GUEST.parse().ok(),
            pin: (!plan.setup.functional).then(|| vm::Cpus::one(last_cpu)),
            monitor: Some(monitor.to_owned()),
            ..Machine::default()
        },
        accelerator: plan.choice.accelerator,
        job: Job {
            in_host_tree: false,
            has_user_network: false,
            address: GUEST.to_owned(),
            clock,
            time_server: String::new(),
            directory: "/root".into(),
            bring: Vec::new(),
            program: ["sh", "-c", &script].map(Into::into).into(),
        },
        tools: plan.setup.tools.clone(),
        boot_within: plan.boot_within,
        // The guest may sample more slowly than it was asked to.
        program_within: Some(4 * sampled(plan) + plan.pause + EXTRA),
    }
}

/// Looks for QEMU's constant, and pauses the guest when it was sampled.
fn control(plan: &Plan, monitor: &Path, said: &Said) -> Result<(i64, Option<Pause>), LabError> {
    let wait = |condition: &dyn Fn() -> bool| {
        while !condition() {
            if said.is_unwanted.load(Ordering::Relaxed) {
                return Err(failed("ended before it was sampled"));
            }
            std::thread::sleep(READ_EVERY);
        }
        Ok(())
    };
    wait(&|| said.text().lines().count() > 3)?;
    let began = Instant::now();
    let mut qemu = Monitor::connect(monitor, MONITOR_WITHIN)?;
    let process = qemu.process()?;
    wait(&|| began.elapsed() > plan.settle)?;
    let offset = find_offset(process, said)?;
    wait(&|| began.elapsed() > plan.settle + plan.measured)?;
    if plan.pause.is_zero() {
        return Ok((offset, None));
    }
    qemu.execute("stop", &Value::Null)?;
    let stopped = ktsn_clock::counter::read();
    let paused = Instant::now();
    wait(&|| paused.elapsed() > plan.pause)?;
    // QEMU keeps the guest's own count while the guest stands, and makes its constant when it goes on.
    let before = ktsn_clock::counter::read();
    qemu.execute("cont", &Value::Null)?;
    let ticks = i64::try_from(before.saturating_sub(stopped)).unwrap_or(i64::MAX);
    let after =
        the_one(&truth::counter_offsets(process, offset.saturating_sub(ticks), ticks.unsigned_abs() / 20)?)?;
    Ok((offset, Some(Pause { resumed: before, offset: after })))
}

fn the_one(found: &[i64]) -> Result<i64, LabError> {
    match found {
        [offset] => Ok(*offset),
        _ => Err(failed(format!("has no certain counter offset in QEMU's memory: {found:?}"))),
    }
}

/// QEMU's constant, looked for near to what the guest's clock gives if that is right.
fn find_offset(process: u32, said: &Said) -> Result<i64, LabError> {
    let text = said.text();
    // The last line may not be whole.
    let line = text.lines().rev().nth(1).unwrap_or_default();
    let mut fields = line.split(',').map(str::parse::<i128>);
    let (Some(Ok(counter)), Some(Ok(time))) = (fields.next(), fields.nth(1)) else {
        return Err(failed(format!("wrote {line:?}, which is no sample")));
    };
    let (first, began) = (pair(9), Instant::now());
    std::thread::sleep(NEAR);
    let (now, passed) = (pair(9), began.elapsed());
    let rate = (now.counter - first.counter) as f64 / passed.as_nanos().max(1) as f64;
    // The host's counter at the sample's time.
    let host = i128::from(now.counter) - ((i128::from(now.time.0) - time) as f64 * rate) as i128;
    let near = (NEAR.as_nanos() as f64 * rate) as u64;
    the_one(&truth::counter_offsets(process, i64::try_from(counter - host).unwrap_or(0), near)?)
}
