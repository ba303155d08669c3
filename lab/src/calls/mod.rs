// SPDX-License-Identifier: Apache-2.0
//! When a thread's `sendto` calls began and ended, by the kernel's own trace: nobody has to take the daemon's word.
//!
//! In: a thread. Out: its calls, in order, on CLOCK_MONOTONIC, to the nanosecond. An instance of ftrace of its own
//! (tracefs, mounted privately), with a filter on the thread; removed on drop. Lost events are an error, never a gap.
//!
//! What it costs: about 0.3 µs at each end of a call, and a slower entry into every system call of the machine.

mod pages;

use crate::command::run;
use crate::error::LabError;
use crate::sys;
use ktsn_time::Monotonic;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

const PREFIX: &str = "ktsnlab-";
const EVENTS: [&str; 2] = ["sys_enter_sendto", "sys_exit_sendto"];
/// Octets that one call takes in the buffer: both events.
const CALL_OCTETS: u64 = 100;

/// One call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// It begins.
    pub began_at: Monotonic,
    /// It has returned.
    pub ended_at: Monotonic,
}

/// A running trace.
#[derive(Debug)]
pub struct Trace {
    tracefs: PathBuf,
    instance: PathBuf,
    ids: [u16; 2],
    page_octets: usize,
}

impl Trace {
    /// Traces `thread` from now on, with room for `calls` calls on one CPU. Its mount point is made in `directory`.
    ///
    /// # Errors
    /// [`LabError::Impossible`] where the kernel has no such trace.
    pub fn start(directory: &Path, thread: u32, calls: u64) -> Result<Self, LabError> {
        let tracefs = directory.join("tracefs");
        std::fs::create_dir_all(&tracefs).map_err(LabError::file(&tracefs))?;
        let impossible = |what: String| LabError::Impossible {
            what,
            remedy: "a kernel with CONFIG_FTRACE_SYSCALLS, and root's rights".to_owned(),
        };
        run(None, &format!("mount -t tracefs nodev {}", tracefs.display()))
            .map_err(|error| impossible(format!("the kernel's trace of system calls: {error}")))?;
        let instance = tracefs.join("instances").join(format!("{PREFIX}{}-{thread}", std::process::id()));
        // From here on drop undoes what exists.
        let mut trace = Self { tracefs, instance, ids: [0; 2], page_octets: 4096 };
        trace.sweep();
        std::fs::create_dir(&trace.instance).map_err(LabError::file(&trace.instance))?;
        for (index, event) in EVENTS.iter().enumerate() {
            let id = trace.read(&format!("events/syscalls/{event}/id"));
            let id = id.ok().and_then(|text| text.trim().parse().ok());
            trace.ids[index] = id.ok_or_else(|| impossible(format!("no trace event {event}")))?;
        }
        let sub_buffer =
            trace.read("buffer_subbuf_size_kb").ok().and_then(|text| text.trim().parse::<usize>().ok());
        trace.page_octets = sub_buffer.map_or(4096, |kib| kib * 1024);
        trace.write("tracing_on", "0")?;
        trace.write("trace_clock", "mono")?;
        trace.write("buffer_size_kb", &(calls * CALL_OCTETS / 1024 + 64).to_string())?;
        for event in EVENTS {
            trace.write(&format!("events/syscalls/{event}/filter"), &format!("common_pid == {thread}"))?;
            trace.write(&format!("events/syscalls/{event}/enable"), "1")?;
        }
        trace.write("tracing_on", "1")?;
        Ok(trace)
    }

    /// Ends it and gives its calls.
    ///
    /// # Errors
    /// The kernel lost events, or gave what cannot be read.
    pub fn finish(self) -> Result<Vec<Call>, LabError> {
        self.write("tracing_on", "0")?;
        let mut marks = Vec::new();
        let per_cpu = self.instance.join("per_cpu");
        let mut cpus: Vec<PathBuf> = std::fs::read_dir(&per_cpu)
            .map_err(LabError::file(&per_cpu))?
            .flatten()
            .map(|entry| entry.path())
            .collect();
        cpus.sort();
        for cpu in cpus {
            self.check_lost(&cpu)?;
            self.read_cpu(&cpu, &mut marks)?;
        }
        Ok(calls(marks))
    }

    fn check_lost(&self, cpu: &Path) -> Result<(), LabError> {
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

    fn read_cpu(&self, cpu: &Path, marks: &mut Vec<(u64, bool)>) -> Result<(), LabError> {
        let path = cpu.join("trace_pipe_raw");
        let failed = || LabError::file(&path);
        let mut file: File =
            File::options().read(true).custom_flags(libc::O_NONBLOCK).open(&path).map_err(failed())?;
        let mut page = vec![0; self.page_octets];
        loop {
            let octets = match file.read(&mut page) {
                Ok(0) => return Ok(()),
                Ok(octets) => octets,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(failed()(error)),
            };
            pages::events(&page[..octets], &mut |event| {
                let id = event.data.first_chunk().map(|id| u16::from_ne_bytes(*id));
                if let Some(place) = self.ids.iter().position(|&known| Some(known) == id) {
                    marks.push((event.nanos, place == 0));
                }
            })
            .ok_or_else(|| LabError::Contents {
                path: path.clone(),
                problem: "a page of another layout than expected".to_owned(),
            })?;
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
        // An instance that was never made has nothing to remove.
        let _ = std::fs::remove_dir(&self.instance);
        if let Err(error) = run(None, &format!("umount {}", self.tracefs.display())) {
            eprintln!("warning: {error}");
        }
    }
}

/// Entries and exits of one thread, on whichever CPU, as calls. An exit whose entry lies before the trace, and an entry
/// whose exit lies after it, are none.
fn calls(mut marks: Vec<(u64, bool)>) -> Vec<Call> {
    // An exit and the next entry never share an instant with their order unclear: exits first.
    marks.sort_unstable_by_key(|&(nanos, is_entry)| (nanos, is_entry));
    let mut calls = Vec::with_capacity(marks.len() / 2);
    let mut began = None;
    for (nanos, is_entry) in marks {
        if is_entry {
            began = Some(nanos);
        } else if let Some(began) = began.take() {
            calls.push(Call {
                began_at: Monotonic::from_nanos(began),
                ended_at: Monotonic::from_nanos(nanos),
            });
        }
    }
    calls
}

/// The call that a frame was handed over by: the one within which `seen_at` lies (on a veth the far end sees the frame
/// before the call returns), else the last one that ended no more than 50 µs before.
#[must_use]
pub fn call_of(calls: &[Call], seen_at: Monotonic) -> Option<Call> {
    const AFTER_MAX: ktsn_time::Nanos = ktsn_time::Nanos::from_micros(50);
    let after = calls.partition_point(|call| call.began_at <= seen_at);
    let call = *calls.get(after.checked_sub(1)?)?;
    (seen_at.since(call.ended_at) <= AFTER_MAX).then_some(call)
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
    fn entries_and_exits_become_calls() {
        let marks = vec![(5, false), (10, true), (14, false), (14, true), (20, false), (30, true)];
        let at = Monotonic::from_nanos;
        let expected =
            [Call { began_at: at(10), ended_at: at(14) }, Call { began_at: at(14), ended_at: at(20) }];
        assert_eq!(calls(marks), expected);
    }

    #[test]
    fn a_frame_belongs_to_the_call_that_it_was_seen_in() {
        let at = Monotonic::from_nanos;
        let call = |began, ended| Call { began_at: at(began), ended_at: at(ended) };
        let calls = [call(100, 200), call(300, 400), call(100_000, 100_010)];
        assert_eq!(call_of(&calls, at(99)), None);
        assert_eq!(call_of(&calls, at(100)), Some(calls[0]));
        assert_eq!(call_of(&calls, at(250)), Some(calls[0]));
        assert_eq!(call_of(&calls, at(350)), Some(calls[1]));
        assert_eq!(call_of(&calls, at(50_400)), Some(calls[1]));
        assert_eq!(call_of(&calls, at(50_401)), None);
        assert_eq!(call_of(&[], at(1)), None);
    }

    #[test]
    fn the_trace_sees_every_call_of_the_thread_and_of_no_other() {
        let directory = tempfile::tempdir().unwrap();
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let to = socket.local_addr().unwrap();
        let own = u32::try_from(rustix::thread::gettid().as_raw_nonzero().get()).unwrap();
        let trace = Trace::start(directory.path(), own, 1000).unwrap();
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
        let calls = trace.finish().unwrap();
        assert_eq!(calls.len(), brackets.len());
        for (call, (before, after)) in calls.iter().zip(brackets) {
            assert!(before <= call.began_at && call.began_at < call.ended_at && call.ended_at <= after);
        }
        assert!(!instance.exists() && !directory.path().join("tracefs/instances").exists());
        assert!(thread_named(std::process::id(), "no such thread").is_err());
    }
}
