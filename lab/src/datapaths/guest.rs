// SPDX-License-Identifier: Apache-2.0
//! A guest as the end of a datapath, seen from the host: boots it, asks it for tasks by frames of the datapath, hears its answers.
//!
//! In: the image, where the guest's network device leads, tasks. Out: answers. The guest ends with the value, whatever it does; what it says
//! is not trusted.

use super::frame::GUEST;
use super::task::{Answer, Answers, Task};
use crate::error::LabError;
use crate::process::end_of;
use crate::tools::Tools;
use crate::vm::protocol::{Clock, Job};
use crate::vm::{self, Accelerator, Cache, Choice, Cpus, Machine, Renew, Report, Request, Stream, Watch};
use ktsn_measure::clock::stop_requested;
use ktsn_time::Nanos;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The guest's network device.
const DEVICE: &str = "eth0";
/// How much of a guest's words is kept for an error.
const SAID_OCTETS_MAX: usize = 16 << 10;
/// A task is sent so often until the guest has begun it, and so long.
const SEND_AGAIN: Duration = Duration::from_millis(20);
const BEGINS_MAX: Duration = Duration::from_secs(5);
/// The longest wait for an answer beyond its frames.
const ANSWERS_MAX: Duration = Duration::from_secs(30);

/// How guests run on this machine.
#[derive(Clone, Debug)]
pub struct Guests {
    /// Where images are kept.
    pub cache: Cache,
    /// How their instructions run.
    pub choice: Choice,
    /// How long a boot may take.
    pub boot_within: Duration,
}

/// What the guest's network device leads to.
pub(super) struct Wire {
    pub(super) datapath: vm::Datapath,
    /// The CPU of all of the guest's threads.
    pub(super) cpu: Option<usize>,
}

/// What is known of a guest that runs.
#[derive(Debug, Default)]
struct Heard {
    state: Mutex<State>,
    changed: Condvar,
    is_unwanted: AtomicBool,
    qemu: AtomicU32,
}

#[derive(Debug, Default)]
struct State {
    is_ready: bool,
    answers: Answers,
    said: Vec<u8>,
}

impl Heard {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits a little until `is_so`; whether it is.
    fn wait(&self, longest: Duration, is_so: impl Fn(&State) -> bool) -> bool {
        let state = self.state();
        let waited = self.changed.wait_timeout_while(state, longest, |state| !is_so(state));
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        is_so(&state)
    }
}

impl Watch for &Heard {
    fn started(&mut self, qemu: u32) {
        self.qemu.store(qemu, Ordering::Relaxed);
    }

    fn ready(&mut self) {
        self.state().is_ready = true;
        self.changed.notify_all();
    }

    fn wrote(&mut self, stream: Stream, octets: &[u8]) -> io::Result<usize> {
        let mut state = self.state();
        match stream {
            Stream::Stdout => state
                .answers
                .take(octets)
                .map_err(|problem| io::Error::new(io::ErrorKind::InvalidData, problem))?,
            Stream::Stderr => {
                state.said.extend_from_slice(octets);
                let excess = state.said.len().saturating_sub(SAID_OCTETS_MAX);
                state.said.drain(..excess);
            }
        }
        drop(state);
        self.changed.notify_all();
        Ok(octets.len())
    }

    fn is_wanted(&self) -> bool {
        !self.is_unwanted.load(Ordering::Relaxed)
    }
}

/// A guest that runs `ktsn vm station`; it ends with the value.
#[derive(Debug)]
pub(super) struct Guest {
    heard: Arc<Heard>,
    runs: Option<JoinHandle<Result<Report, LabError>>>,
    tasks: u64,
    pub(super) accelerator: Accelerator,
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.heard.is_unwanted.store(true, Ordering::Relaxed);
        if let Some(runs) = self.runs.take() {
            let _ended = runs.join();
        }
    }
}

impl Guest {
    /// Boots it; returns at once.
    ///
    /// # Errors
    /// The image's, or what the machine cannot have.
    pub(super) fn start(guests: &Guests, tools: &Tools, wire: Wire) -> Result<Self, LabError> {
        let image = vm::image(&guests.cache, guests.choice.accelerator.kind(), Renew::Nothing, &mut |_| {})?;
        let [a, b, c, d] = GUEST;
        let address = format!("{a}.{b}.{c}.{d}/24");
        let machine = Machine {
            datapath: wire.datapath,
            address: address.parse().ok(),
            pin: wire.cpu.map(Cpus::one),
            ..Machine::default()
        };
        machine.check()?;
        let request = Request {
            machine,
            accelerator: guests.choice.accelerator,
            job: Job {
                in_host_tree: false,
                has_user_network: false,
                address,
                clock: Clock::Vptp,
                time_server: String::new(),
                directory: PathBuf::from("/root"),
                bring: Vec::new(),
                program: ["ktsn-bench", "vm", "station", DEVICE].map(Into::into).into(),
            },
            tools: tools.clone(),
            boot_within: guests.boot_within,
            program_within: None,
        };
        let (cache, heard) = (guests.cache.clone(), Arc::<Heard>::default());
        let hears = Arc::clone(&heard);
        let run = move || vm::run(&cache, image, &request, &mut &*hears);
        let runs = std::thread::Builder::new().name("ktsn-guest".to_owned()).spawn(run);
        let runs = runs.map_err(LabError::system("thread"))?;
        Ok(Self { heard, runs: Some(runs), tasks: 0, accelerator: guests.choice.accelerator })
    }

    /// Waits until its program runs.
    ///
    /// # Errors
    /// It does not boot, with its console.
    pub(super) fn wait_until_ready(&mut self) -> Result<(), LabError> {
        while !self.heard.wait(SEND_AGAIN, |state| state.is_ready) {
            self.check()?;
            if stop_requested() {
                return Err(LabError::Stopped);
            }
        }
        Ok(())
    }

    /// Whether it has ended.
    pub(super) fn has_ended(&self) -> bool {
        self.runs.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// # Errors
    /// The guest has ended, and why.
    pub(super) fn check(&mut self) -> Result<(), LabError> {
        let Some(runs) = self.runs.take_if(|runs| runs.is_finished()) else { return Ok(()) };
        let ended = runs.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let problem = match ended {
            Err(LabError::Process { problem, stderr, .. }) => {
                return Err(LabError::Process { name: "the guest".to_owned(), problem, stderr });
            }
            Err(error) => return Err(error),
            Ok(report) => format!("ended ({:?})", report.ended),
        };
        let said = vm::printable(&self.heard.state().said);
        let said = end_of(&said);
        let stderr = if said.is_empty() { String::new() } else { format!("; it said:\n{said}") };
        Err(LabError::Process { name: "the guest's program".to_owned(), problem, stderr })
    }

    /// The process number of its QEMU.
    pub(super) fn qemu(&self) -> u32 {
        self.heard.qemu.load(Ordering::Relaxed)
    }

    /// Asks for a task by frames that the remote host sends, until the guest has begun it. The task with its number; `None`: the guest heard
    /// of it too late.
    ///
    /// # Errors
    /// The guest has ended, or does not hear; `send`'s.
    pub(super) fn ask(
        &mut self,
        task: Task,
        send: &mut dyn FnMut(&Task) -> Result<(), LabError>,
    ) -> Result<Option<Task>, LabError> {
        self.tasks += 1;
        let task = Task { number: self.tasks, ..task };
        self.heard.state().answers.ask(&task);
        let begun = Instant::now();
        loop {
            send(&task)?;
            if self.heard.wait(SEND_AGAIN, |state| state.answers.begun || state.answers.late) {
                return Ok(self.heard.state().answers.begun.then_some(task));
            }
            self.check()?;
            if begun.elapsed() > BEGINS_MAX {
                return Err(self.silent(&format!("began no task within {BEGINS_MAX:?}")));
            }
        }
    }

    fn silent(&self, problem: &str) -> LabError {
        LabError::Process {
            name: "the guest".to_owned(),
            problem: problem.to_owned(),
            stderr: end_of(&vm::printable(&self.heard.state().said)).to_owned(),
        }
    }

    /// Whether the answer is whole.
    pub(super) fn has_answered(&self) -> bool {
        self.heard.state().answers.over
    }

    /// Waits for the answer of the task that began last.
    ///
    /// # Errors
    /// The guest has ended, or does not answer.
    pub(super) fn answer(&mut self, traffic: Nanos) -> Result<Answer, LabError> {
        let longest = ANSWERS_MAX + Duration::from_nanos(traffic.get().unsigned_abs());
        let begun = Instant::now();
        while !self.heard.wait(SEND_AGAIN, |state| state.answers.over) {
            self.check()?;
            if begun.elapsed() > longest {
                return Err(self.silent(&format!("did not answer within {longest:?}")));
            }
        }
        self.heard.state().answers.whole().ok_or_else(|| self.silent("took its answer back"))
    }
}
