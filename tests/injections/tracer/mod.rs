// SPDX-License-Identifier: Apache-2.0
//! A traced listener (`tests/programs/steps_traced.c`): it is stopped at instructions of libktsn, and its system calls are followed.
//!
//! In: a running program. Out: where it is, which signals it blocks, what its call answered. It judges nothing. x86-64 alone: a trap is
//! one octet there.

use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::process::{Command, Stdio};

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use ktsn_tests::hook::Running;

#[allow(unsafe_code)]
mod sys;

pub(crate) use sys::{Go, Registers, Stop};

/// The trap instruction.
pub(crate) const TRAP: u8 = 0xcc;

/// The traced program. It is killed on drop.
pub(crate) struct Traced {
    _running: Running,
    process: i32,
    memory: File,
}

/// Puts both on one CPU: a stop is a change of threads there, and no wake-up of another CPU.
fn share_cpu(process: i32) {
    let all = sched_getaffinity(None).expect("the CPUs");
    let last = (0..CpuSet::MAX_CPU).rev().find(|cpu| all.is_set(*cpu)).expect("a CPU");
    let mut one = CpuSet::new();
    one.set(last);
    sched_setaffinity(None, &one).expect("one CPU");
    sched_setaffinity(Pid::from_raw(process), &one).expect("one CPU");
}

impl Traced {
    /// Starts the program and traces it; program and caller share a CPU from now on. The program waits for a line before its first trap.
    ///
    /// # Panics
    /// When this machine does not let it be traced.
    #[must_use]
    pub(crate) fn start(mut command: Command) -> Self {
        let mut running = Running(command.stdin(Stdio::piped()).spawn().expect("program"));
        let process = i32::try_from(running.0.id()).expect("process number");
        sys::seize(process).expect("ptrace");
        share_cpu(process);
        running.0.stdin.as_mut().expect("input").write_all(b"\n").expect("it reads");
        let memory = File::options().read(true).write(true).open(format!("/proc/{process}/mem"));
        Self { _running: running, process, memory: memory.expect("memory") }
    }

    /// Waits for the next stop.
    ///
    /// # Panics
    /// When it cannot be waited for.
    #[must_use]
    pub(crate) fn stopped(&self) -> Stop {
        sys::wait(self.process).expect("waitpid")
    }

    /// Lets it go on to the next stop, with a signal that it gets first; 0: none.
    ///
    /// # Panics
    /// When it is not stopped.
    #[must_use]
    pub(crate) fn go(&self, how: Go, signal: i32) -> Stop {
        sys::go(self.process, how, signal).expect("ptrace");
        self.stopped()
    }

    /// Its registers.
    ///
    /// # Panics
    /// When it is not stopped.
    #[must_use]
    pub(crate) fn registers(&self) -> Registers {
        sys::registers(self.process).expect("registers")
    }

    /// Whether it blocks a signal.
    ///
    /// # Panics
    /// When it is not stopped.
    #[must_use]
    pub(crate) fn blocks(&self, signal: i32) -> bool {
        sys::blocked(self.process).expect("mask") >> (signal - 1) & 1 != 0
    }

    /// Sends it a signal.
    ///
    /// # Panics
    /// When it is gone.
    pub(crate) fn send(&self, signal: i32) {
        sys::send(self.process, signal).expect("kill");
    }

    /// Eight octets of its memory.
    #[must_use]
    pub(crate) fn word(&self, at: u64) -> Option<u64> {
        let mut octets = [0; 8];
        self.memory.read_exact_at(&mut octets, at).ok()?;
        Some(u64::from_le_bytes(octets))
    }

    /// Octets of its memory.
    ///
    /// # Panics
    /// When nothing is there.
    #[must_use]
    pub(crate) fn octets(&self, at: u64, count: usize) -> Vec<u8> {
        let mut octets = vec![0; count];
        self.memory.read_exact_at(&mut octets, at).expect("its memory");
        octets
    }

    /// Puts octets into its memory, instructions too.
    ///
    /// # Panics
    /// When nothing is there.
    pub(crate) fn put(&self, at: u64, octets: &[u8]) {
        self.memory.write_all_at(octets, at).expect("its memory");
    }

    /// It goes on at this address.
    ///
    /// # Panics
    /// When it is not stopped.
    pub(crate) fn move_to(&self, at: u64) {
        let registers = Registers { rip: at, ..self.registers() };
        sys::set_registers(self.process, &registers).expect("registers");
    }

    /// Where the first mapping of a file of this name lies.
    ///
    /// # Panics
    /// When there is none.
    #[must_use]
    pub(crate) fn base(&self, name: &str) -> u64 {
        let text = std::fs::read_to_string(format!("/proc/{}/maps", self.process)).expect("maps");
        let line = text.lines().find(|line| line.ends_with(&format!("/{name}"))).expect("it is mapped");
        u64::from_str_radix(line.split('-').next().unwrap_or_default(), 16).expect("an address")
    }
}
