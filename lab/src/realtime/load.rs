// SPDX-License-Identifier: Apache-2.0
//! What disturbs the probe from outside of it. In: a profile. Out: processes in containers of their own, which end with their value.

use super::commands::{self, Words};
use super::groups::{Group, Limits};
use super::guests::{BOOT_MAX, END_MAX, LOADED};
use super::limits::Machine;
use super::plan::{Plan, System};
use crate::command::run;
use crate::error::LabError;
use crate::process::{Process, Program};
use crate::testbed::{PREFIX, sweep};
use ktsn_realtime::Profile;
use ktsn_realtime::profile::Load as Kind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// How often a load is looked at that begins.
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// How long a load may take to begin that is not a guest's.
const BEGIN_MAX: Duration = Duration::from_secs(20);

/// A running load.
#[derive(Debug, Default)]
pub(super) struct Load {
    // In this order they end: processes, then what they live in.
    processes: Vec<Process>,
    /// Whether the processes are those of guests, which remove something at their end.
    are_guests: bool,
    _groups: Vec<Group>,
    _network: Option<Network>,
    files: Vec<PathBuf>,
}

/// The workers of a load inside the system under test.
pub(super) fn inside(plan: &Plan, machine: &Machine, profile: Profile) -> Words {
    let stress = commands::stress(machine.stress.unwrap_or("stress"), plan.workers, plan.worker_mib);
    commands::on_cpus(&commands::load_cpus(&machine.cpus, profile.is_pinned()), stress)
}

impl Load {
    /// Starts what a profile has beside the probe's system. The load inside a container is part of that.
    pub(super) fn start(
        plan: &Plan,
        machine: &Machine,
        system: System,
        profile: Profile,
        log: &Path,
    ) -> Result<Self, LabError> {
        let mut load = Self::default();
        let has_own_cpus = system.has_own_cpu(profile);
        let cpus = commands::load_cpus(&machine.cpus, profile.is_pinned() || has_own_cpus);
        match profile.load() {
            Kind::Inside if !system.is_container() && !system.is_guest() => {
                let command = commands::contained(false, inside(plan, machine, profile));
                load.begin("load", &command, None, log)?;
            }
            Kind::None | Kind::Inside => {}
            Kind::Neighbours => {
                // The paper's twenty workers, half of each kind in each neighbour.
                let workers = [plan.workers - plan.workers / 2, plan.workers / 2];
                let stress = machine.stress.unwrap_or("stress");
                for (name, workers) in ["neighbour-a", "neighbour-b"].into_iter().zip(workers) {
                    if let Some(guest) = machine.guests.linux(system) {
                        let command = guest.neighbour(plan, stress, workers, &cpus);
                        load.are_guests = true;
                        load.begin(name, &command, None, log)?;
                        continue;
                    }
                    let command = commands::stress(stress, workers, plan.worker_mib);
                    load.neighbour(machine, has_own_cpus, name, &cpus, command, None, log)?;
                }
            }
            Kind::Network => {
                let network = Network::new()?;
                let commands = commands::network(ADDRESSES[0]);
                let ends = network.ends.clone();
                load._network = Some(network);
                for ((name, command), end) in
                    ["neighbour-a", "neighbour-b"].into_iter().zip(commands).zip(&ends)
                {
                    load.neighbour(machine, has_own_cpus, name, &cpus, command, Some(end), log)?;
                }
            }
            Kind::Disk => {
                for name in ["neighbour-a", "neighbour-b"] {
                    let file = std::path::absolute(plan.out.join(format!("{name}.written")))
                        .map_err(LabError::file(&plan.out))?;
                    let command = commands::disk(machine.has_fio, &file);
                    load.files.push(file);
                    load.neighbour(machine, has_own_cpus, name, &cpus, command, None, log)?;
                }
            }
        }
        match profile.load() {
            Kind::Neighbours if system.is_linux_guest() => {
                load.wait(BOOT_MAX, |_, process| process.said().contains(LOADED))?;
            }
            Kind::Network => {
                // The first one is the server.
                load.wait(BEGIN_MAX, |index, process| {
                    index > 0 || process.said().contains(commands::CONNECTED)
                })?;
            }
            Kind::Disk => {
                let files = load.files.clone();
                load.wait(BEGIN_MAX, |index, _| {
                    std::fs::metadata(&files[index]).is_ok_and(|file| file.len() > 0)
                })?;
            }
            _ => {}
        }
        Ok(load)
    }

    /// Waits until each process has begun its load; none may end before all have.
    fn wait(
        &mut self,
        longest: Duration,
        has_begun: impl Fn(usize, &Process) -> bool,
    ) -> Result<(), LabError> {
        let until = Instant::now() + longest;
        loop {
            let mut waits_for = None;
            for (index, process) in self.processes.iter_mut().enumerate() {
                if process.wait_any(Duration::ZERO)?.is_some() {
                    return Err(process.failed("ended before its load began".to_owned()));
                }
                if waits_for.is_none() && !has_begun(index, process) {
                    waits_for = Some(index);
                }
            }
            let Some(index) = waits_for else { return Ok(()) };
            if Instant::now() > until {
                return Err(self.processes[index].failed(format!("had no load within {longest:?}")));
            }
            std::thread::sleep(LOOK_AGAIN);
        }
    }

    #[allow(clippy::too_many_arguments)]
    fn neighbour(
        &mut self,
        machine: &Machine,
        has_own_cpus: bool,
        name: &str,
        cpus: &[u32],
        command: Words,
        namespace: Option<&str>,
        log: &Path,
    ) -> Result<(), LabError> {
        let hierarchy =
            machine.hierarchy.as_ref().ok_or_else(|| LabError::Usage("no control groups".to_owned()))?;
        let limits = Limits { cpus: has_own_cpus.then(|| cpus.to_vec()), ..Limits::default() };
        let group = Group::new(hierarchy, &limits)?;
        let command = commands::contained(namespace.is_none(), commands::on_cpus(cpus, command));
        let command = commands::joined(group.folders(), commands::ordinary(command));
        self._groups.push(group);
        self.begin(name, &command, namespace, log)
    }

    fn begin(
        &mut self,
        name: &str,
        command: &[String],
        namespace: Option<&str>,
        log: &Path,
    ) -> Result<(), LabError> {
        let program = Program::new(name, Path::new(&command[0])).args(&command[1..]);
        let program = namespace.map_or(program.clone(), |namespace| program.within(namespace));
        self.processes.push(program.start(log)?);
        Ok(())
    }

    /// # Errors
    /// A part of the load has ended.
    pub(super) fn check(&mut self) -> Result<(), LabError> {
        for process in &mut self.processes {
            if process.wait_any(Duration::ZERO)?.is_some() {
                return Err(process.failed("ended while the probe ran".to_owned()));
            }
        }
        Ok(())
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        if self.are_guests {
            // All at once, then one by one. One that cannot be asked is killed.
            self.processes.iter_mut().for_each(|guest| drop(guest.ask_to_end()));
            self.processes.iter_mut().for_each(|guest| guest.end_within(END_MAX));
        }
        self.processes.clear();
        for file in &self.files {
            // Where the writer never began there is none.
            let _ = std::fs::remove_file(file);
        }
    }
}

const ADDRESSES: [&str; 2] = ["10.77.0.1", "10.77.0.2"];
static COUNTER: AtomicU32 = AtomicU32::new(0);

/// Two namespaces at the ports of a bridge, which is in a third one.
#[derive(Debug)]
struct Network {
    switch: String,
    ends: [String; 2],
}

impl Network {
    fn new() -> Result<Self, LabError> {
        sweep();
        let stem = format!("{PREFIX}{}-r{}-", std::process::id(), COUNTER.fetch_add(1, Ordering::Relaxed));
        // Made before anything exists, so that a failure on the way removes what already does.
        let network = Self { switch: format!("{stem}s"), ends: ["a", "b"].map(|end| format!("{stem}{end}")) };
        let switch = &network.switch;
        run(None, &format!("ip netns add {switch}"))?;
        run(None, &format!("ip -n {switch} link add bridge type bridge"))?;
        run(None, &format!("ip -n {switch} link set bridge up"))?;
        for ((end, address), port) in network.ends.iter().zip(ADDRESSES).zip(["port-a", "port-b"]) {
            run(None, &format!("ip netns add {end}"))?;
            run(None, &format!("ip -n {end} link set lo up"))?;
            run(None, &format!("ip -n {end} link add eth0 type veth peer name {port} netns {switch}"))?;
            run(None, &format!("ip -n {end} addr add {address}/24 dev eth0"))?;
            run(None, &format!("ip -n {end} link set eth0 up"))?;
            run(None, &format!("ip -n {switch} link set {port} master bridge up"))?;
        }
        Ok(network)
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for name in self.ends.iter().chain([&self.switch]) {
            if Path::new("/run/netns").join(name).exists()
                && let Err(error) = run(None, &format!("ip netns del {name}"))
            {
                eprintln!("warning: {error}; remove it with `ip netns del {name}`");
            }
        }
    }
}
