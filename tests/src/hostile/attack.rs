// SPDX-License-Identifier: Apache-2.0
//! Running the program `attack` in a pod.
//!
//! In: a run directory, a namespace, the attack and its keys as `programs/attack_main.c` says. Out: the process, and the
//! values that it counted. It ends with its standard input, so also when whoever started it is killed.

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::faults::bed::within;
use crate::hook::{self, Running};
use ktsn_eventually::try_eventually;

/// How long an attack may take to begin: connections wait in the daemon's queue.
const BEGIN_MAX: Duration = Duration::from_secs(30);
/// How long it may take to end: its threads may wait in the kernel.
const END_MAX: Duration = Duration::from_secs(10);

/// An attack under way; killed when dropped.
#[derive(Debug)]
pub struct Attack {
    running: Running,
    lines: Arc<Mutex<Vec<String>>>,
    reader: Option<JoinHandle<()>>,
}

/// The program, compiled once per process.
///
/// # Panics
/// When it does not compile.
pub fn binary() -> &'static Path {
    hook::compiled("attack")
}

impl Attack {
    /// Starts `words`, an attack and its keys, in `namespace` against the daemon of `run_dir`, and waits until it has begun.
    ///
    /// # Errors
    /// It ended before, or did not begin in time; what it said.
    ///
    /// # Panics
    /// When the program cannot be started at all.
    pub fn start(run_dir: &Path, namespace: &str, words: &str) -> Result<Self, String> {
        let mut command = Command::new(binary());
        command.arg(run_dir).args(words.split_whitespace());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut running = Running(within(namespace, || command.spawn()).expect("the attacking program"));
        let lines = Arc::new(Mutex::new(Vec::new()));
        let output = running.0.stdout.take().expect("a pipe");
        let reader = {
            let lines = Arc::clone(&lines);
            std::thread::spawn(move || {
                for line in BufReader::new(output).lines().map_while(Result::ok) {
                    lock(&lines).push(line);
                }
            })
        };
        let mut attack = Self { running, lines, reader: Some(reader) };
        try_eventually(BEGIN_MAX, || attack.has_said("ready") || attack.has_ended());
        if !attack.has_said("ready") {
            return Err(format!("attack {words:?} did not begin: {}", attack.complaint()));
        }
        Ok(attack)
    }

    fn has_said(&self, line: &str) -> bool {
        lock(&self.lines).iter().any(|said| said == line)
    }

    /// Whether it has ended by itself.
    ///
    /// # Panics
    /// When the kernel does not tell.
    pub fn has_ended(&mut self) -> bool {
        self.running.0.try_wait().expect("the attacking program").is_some()
    }

    fn complaint(&mut self) -> String {
        let _ = self.running.0.kill();
        let mut errors = String::new();
        let _ = self.running.0.stderr.take().map(|mut pipe| pipe.read_to_string(&mut errors));
        format!("{errors}{:?}", lock(&self.lines))
    }

    /// All values of the lines `name VALUE` so far.
    #[must_use]
    pub fn values(&self, name: &str) -> Vec<i64> {
        let value = |line: &String| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok();
        lock(&self.lines).iter().filter_map(value).collect()
    }

    /// The last value of that name; 0 where there is none.
    #[must_use]
    pub fn value(&self, name: &str) -> i64 {
        self.values(name).last().copied().unwrap_or(0)
    }

    /// Ends it; its values stay. One that does not end is killed.
    pub fn end(&mut self) {
        drop(self.running.0.stdin.take());
        try_eventually(END_MAX, || !matches!(self.running.0.try_wait(), Ok(None)));
        let _ = self.running.0.kill();
        let _ = self.running.0.wait();
        let _ = self.reader.take().map(JoinHandle::join);
    }

    /// All that it said, without "ready", in one line.
    #[must_use]
    pub fn said(&self) -> String {
        let lines = lock(&self.lines);
        let said: Vec<&str> = lines
            .iter()
            .map(String::as_str)
            .filter(|line| *line != "ready" && !line.starts_with("us "))
            .collect();
        said.join(", ")
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
