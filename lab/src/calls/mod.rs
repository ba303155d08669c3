// SPDX-License-Identifier: Apache-2.0
//! When a thread's `sendto` calls began and ended, and when it had a CPU, by the kernel's own trace instead of the
//! daemon's statement.
//!
//! In: a thread. Out: its calls and runs, in order, on CLOCK_MONOTONIC, to the nanosecond. An instance of ftrace of its own
//! (tracefs, mounted privately), with a filter on the thread; removed on drop. Lost events are an error, never a gap.
//! The trace is read as text with the option `raw`, which prints an event as `PID CPU NANOSECONDS type: ID`. The PID is
//! the thread that has the CPU at that moment: at a switch the thread that leaves it.
//!
//! What it costs: about 0.3 µs at each end of a call and of a run, and a slower entry into every system call of the machine.

mod timeline;

pub(crate) use timeline::Mark;
pub use timeline::{Call, Run, Timeline};

use crate::command::run;
use crate::error::LabError;
use crate::sys;
use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::Duration;

const PREFIX: &str = "ktsnlab-";
/// What is traced. The first two bear the thread's number, the third those of the thread that leaves a CPU and of the next.
const EVENTS: [&str; 3] = ["syscalls/sys_enter_sendto", "syscalls/sys_exit_sendto", SWITCH];
const SWITCH: &str = "sched/sched_switch";
/// Octets that one call takes in the buffer: its two events, and on average a little more than one run.
const CALL_OCTETS: u64 = 300;

/// The namespace of our processes' numbers, and the one that the kernel begins with (`PROC_PID_INIT_INO`, fixed since 3.8).
const PROCESSES: &str = "/proc/self/ns/pid";
const FIRST_PROCESSES: &str = "pid:[4026531836]";

/// A running trace.
#[derive(Debug)]
pub struct Trace {
    tracefs: PathBuf,
    instance: PathBuf,
    thread: u32,
    ids: [u16; 3],
}

impl Trace {
    /// Traces `thread` from now on, with room for `calls` calls on one CPU. Its mount point is made in `directory`.
    ///
    /// # Errors
    /// [`LabError::Impossible`] where the kernel has no such trace, or numbers threads otherwise than we do.
    pub fn start(directory: &Path, thread: u32, calls: u64) -> Result<Self, LabError> {
        let tracefs = directory.join("tracefs");
        std::fs::create_dir_all(&tracefs).map_err(LabError::file(&tracefs))?;
        let impossible = |what: String| LabError::Impossible {
            what,
            remedy: "a kernel with CONFIG_FTRACE_SYSCALLS, and root's rights".to_owned(),
        };
        same_numbers(&std::fs::read_link(PROCESSES).map_err(LabError::file(Path::new(PROCESSES)))?)?;
        run(None, &format!("mount -t tracefs nodev {}", tracefs.display()))
            .map_err(|error| impossible(format!("the kernel's trace of system calls: {error}")))?;
        let instance = tracefs.join("instances").join(format!("{PREFIX}{}-{thread}", std::process::id()));
        // From here on drop undoes what exists.
        let mut trace = Self { tracefs, instance, thread, ids: [0; 3] };
        trace.sweep();
        std::fs::create_dir(&trace.instance).map_err(LabError::file(&trace.instance))?;
        for (index, event) in EVENTS.iter().enumerate() {
            let id = trace.read(&format!("events/{event}/id"));
            let id = id.ok().and_then(|text| text.trim().parse().ok());
            trace.ids[index] = id.ok_or_else(|| impossible(format!("no trace event {event}")))?;
        }
        trace.write("tracing_on", "0")?;
        trace.write("trace_clock", "mono")?;
        trace.write("options/raw", "1")?;
        trace.write("buffer_size_kb", &(calls * CALL_OCTETS / 1024 + 64).to_string())?;
        for event in EVENTS {
            let filter = match event {
                SWITCH => format!("prev_pid == {thread} || next_pid == {thread}"),
                _ => format!("common_pid == {thread}"),
            };
            trace.write(&format!("events/{event}/filter"), &filter)?;
            trace.write(&format!("events/{event}/enable"), "1")?;
        }
        trace.write("tracing_on", "1")?;
        Ok(trace)
    }

    /// Ends it and gives what it saw.
    ///
    /// # Errors
    /// The kernel lost events, or gave what cannot be read.
    pub fn finish(self) -> Result<Timeline, LabError> {
        self.write("tracing_on", "0")?;
        let per_cpu = self.instance.join("per_cpu");
        for cpu in std::fs::read_dir(&per_cpu).map_err(LabError::file(&per_cpu))?.flatten() {
            Self::check_lost(&cpu.path())?;
        }
        let path = self.instance.join("trace");
        let file = File::open(&path).map_err(LabError::file(&path))?;
        let mut marks = Vec::new();
        for line in BufReader::new(file).lines() {
            let line = line.map_err(LabError::file(&path))?;
            if line.starts_with('#') {
                continue;
            }
            let mark = mark(&line, self.ids, self.thread).ok_or_else(|| LabError::Contents {
                path: path.clone(),
                problem: format!("a line of another form than expected: {line:?}"),
            })?;
            marks.push(mark);
        }
        Ok(Timeline::of(marks))
    }

    fn check_lost(cpu: &Path) -> Result<(), LabError> {
        let path = cpu.join("stats");
        let text = std::fs::read_to_string(&path).map_err(LabError::file(&path))?;
        let lost = |line: &&str| {
            ["overrun:", "commit overrun:", "dropped events:"]
                .iter()
                .any(|name| line.strip_prefix(name).is_some_and(|count| count.trim() != "0"))
        };
        match text.lines().find(lost) {
            Some(line) => {
                Err(LabError::Contents { path, problem: format!("the trace lost events ({line})") })
            }
            None => Ok(()),
        }
    }

    fn read(&self, name: &str) -> Result<String, LabError> {
        let path = self.instance.join(name);
        std::fs::read_to_string(&path).map_err(LabError::file(&path))
    }

    fn write(&self, name: &str, text: &str) -> Result<(), LabError> {
        let path = self.instance.join(name);
        std::fs::write(&path, text).map_err(LabError::file(&path))
    }

    /// Removes what lab processes left that no longer exist.
    fn sweep(&self) {
        for entry in std::fs::read_dir(self.tracefs.join("instances")).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let pid = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next()?.parse().ok());
            if pid.is_some_and(|pid| !sys::exists(pid)) {
                // Another process may sweep the same name at this moment.
                let _ = std::fs::remove_dir(entry.path());
            }
        }
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        // An instance that was never made has nothing to remove. A child that another thread is just starting holds its files until it runs
        // its program.
        for _ in 0..1_000 {
            match std::fs::remove_dir(&self.instance) {
                Err(error) if error.kind() == ErrorKind::ResourceBusy => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                _ => break,
            }
        }
        if let Err(error) = run(None, &format!("umount --lazy {}", self.tracefs.display())) {
            eprintln!("warning: {error}");
        }
    }
}

/// The trace has the numbers of the kernel's first process namespace. In another namespace a thread has another number there.
fn same_numbers(processes: &Path) -> Result<(), LabError> {
    if processes == Path::new(FIRST_PROCESSES) {
        return Ok(());
    }
    Err(LabError::Impossible {
        what: format!(
            "the kernel's trace of one thread in a process namespace of our own ({})",
            processes.display()
        ),
        remedy: "the host's process namespace (a container engine's --pid=host)".to_owned(),
    })
}

/// What a line of the trace says of `thread`, and when; `ids` are those of [`EVENTS`].
fn mark(line: &str, ids: [u16; 3], thread: u32) -> Option<(u64, Mark)> {
    let mut words = line.split_ascii_whitespace();
    let pid: u32 = words.next()?.parse().ok()?;
    let nanos = words.nth(1)?.parse().ok()?;
    let id: u16 = words.nth(1)?.parse().ok()?;
    let mark = match ids.iter().position(|&known| known == id)? {
        0 => Mark::Enter,
        1 => Mark::Exit,
        _ if pid == thread => Mark::Off,
        _ => Mark::On,
    };
    Some((nanos, mark))
}

/// The thread of process `pid` that is called `name`.
///
/// # Errors
/// There is none.
pub fn thread_named(pid: u32, name: &str) -> Result<u32, LabError> {
    let tasks = PathBuf::from(format!("/proc/{pid}/task"));
    for task in std::fs::read_dir(&tasks).map_err(LabError::file(&tasks))?.flatten() {
        let called = std::fs::read_to_string(task.path().join("comm")).unwrap_or_default();
        let number = task.file_name().to_str().and_then(|number| number.parse().ok());
        if let (true, Some(number)) = (called.trim() == name, number) {
            return Ok(number);
        }
    }
    Err(LabError::Contents { path: tasks, problem: format!("expected a thread called {name:?}") })
}

#[cfg(test)]
mod tests {
    use super::*;
    use ktsn_measure::clock::monotonic_now;
    use std::net::UdpSocket;

    #[test]
    fn only_the_first_process_namespace_has_the_traces_numbers() {
        assert!(same_numbers(Path::new(FIRST_PROCESSES)).is_ok());
        let error = same_numbers(Path::new("pid:[4026532201]")).unwrap_err().to_string();
        assert!(error.contains("4026532201") && error.contains("--pid=host"), "{error}");
    }

    #[test]
    fn a_line_of_the_trace_is_a_mark() {
        let seen = |line| mark(line, [5, 6, 7], 42);
        assert_eq!(seen("42 1 76908227111599 type: 5"), Some((76_908_227_111_599, Mark::Enter)));
        assert_eq!(seen("42 0 9 type: 6"), Some((9, Mark::Exit)));
        assert_eq!(seen("42 0 9 type: 7"), Some((9, Mark::Off)));
        assert_eq!(seen("0 1 9 type: 7"), Some((9, Mark::On)));
        for wrong in ["", "CPU:1 [LOST 7 EVENTS]", "42 0 9 type: 8", "42 0 9", "42 0 -9 type: 5"] {
            assert_eq!(seen(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn the_trace_sees_every_call_of_the_thread_and_of_no_other() {
        const AFTER: usize = 20;
        let directory = tempfile::tempdir().unwrap();
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let to = socket.local_addr().unwrap();
        let own = u32::try_from(rustix::thread::gettid().as_raw_nonzero().get()).unwrap();
        let trace = match Trace::start(directory.path(), own, 1000) {
            Err(error @ LabError::Impossible { .. })
                if same_numbers(&std::fs::read_link(PROCESSES).unwrap()).is_err() =>
            {
                println!("SKIP trace_in_process_namespace: {error}");
                return;
            }
            trace => trace.unwrap(),
        };
        let instance = trace.instance.clone();
        let other = UdpSocket::bind("127.0.0.1:0").unwrap();
        let mut brackets = Vec::new();
        for _ in 0..200 {
            let before = monotonic_now();
            socket.send_to(b"x", to).unwrap();
            brackets.push((before, monotonic_now()));
            std::thread::scope(|scope| {
                scope.spawn(|| other.send_to(b"y", to).unwrap());
            });
        }
        let slept_from = monotonic_now();
        std::thread::sleep(Duration::from_millis(2));
        let slept_to = monotonic_now();
        // Others may take the CPU within one call, and the kernel leaves switches from idle out; not each time.
        for _ in 0..AFTER {
            socket.send_to(b"x", to).unwrap();
            std::thread::sleep(Duration::from_millis(1));
        }
        let seen = trace.finish().unwrap();
        assert_eq!(seen.calls().len(), brackets.len() + AFTER);
        for (call, (before, after)) in seen.calls().iter().zip(brackets) {
            assert!(before <= call.began_at && call.began_at < call.ended_at && call.ended_at <= after);
        }
        // A thread that sleeps leaves its CPU, and the trace says so.
        assert!(!seen.kept_cpu(slept_from, slept_to));
        let whole =
            |call: &Call| seen.runs().iter().any(|run| run.from <= call.began_at && call.ended_at <= run.to);
        assert!(seen.calls().iter().any(whole));
        assert!(!instance.exists() && !directory.path().join("tracefs/instances").exists());
        assert!(thread_named(std::process::id(), "no such thread").is_err());
    }
}
