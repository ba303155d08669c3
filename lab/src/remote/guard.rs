// SPDX-License-Identifier: Apache-2.0
//! The other host's side: runs a program for as long as the first host lives.
//!
//! In: a command, and lines of the first host on standard input ([`Order`]). Out: messages on standard output ([`Message`]): what the program
//! writes, how it ended, and its files. The program runs in a directory of its own, which is removed with everything in it. The end of
//! standard input, or silence on it, ends the program: sshd closes it when the connection ends, and a connection that was cut says nothing.

use super::frames::{Ended, Message, ORDER_OCTETS_MAX, Order, PAYLOAD_OCTETS_MAX};
use super::target::{GRACE, GUARDED};
use crate::error::LabError;
use crate::ovs;
use crate::sys;
use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
use rustix::process::{Pid, Signal, geteuid, kill_process, kill_process_group};
use std::ffi::OsString;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Read, Write as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::time::{Duration, Instant};

/// How long its outputs are read after its end; a child of it may hold them.
const OUTPUTS_MAX: Duration = Duration::from_secs(1);
const LOOK_AGAIN: Duration = Duration::from_millis(10);
/// Pieces of output, and lines for the program, that wait.
const WAITING_MAX: usize = 16;

/// What to run, and how.
#[derive(Debug)]
pub struct Guarded<'a> {
    /// The program.
    pub program: &'a Path,
    /// Its arguments.
    pub arguments: &'a [OsString],
    /// The program gets `--ready-fd N` and says there that it is ready.
    pub says_ready: bool,
    /// After this time without a word the first host counts as gone.
    pub silence_max: Duration,
}

/// How it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The first host has closed the connection after the program's end.
    Done,
    /// The first host is gone.
    Abandoned,
}

/// What the threads around the program see.
enum Event {
    Order(Order),
    /// The first host is gone.
    Gone,
    Ready,
    Wrote(bool, Vec<u8>),
    /// One of the two outputs has ended.
    Closed,
}

/// Runs the program until it ends or the first host is gone, then hands files over until the first host closes the connection.
///
/// # Errors
/// It cannot be started.
pub fn guard(guarded: &Guarded<'_>) -> Result<Outcome, LabError> {
    sweep();
    let directory = tempfile::Builder::new()
        .prefix(&format!("{GUARDED}{}-", std::process::id()))
        .tempdir()
        .map_err(LabError::system("temporary directory"))?;
    let (events, heard) = sync_channel(WAITING_MAX);
    let (mut child, ready) = start(guarded, directory.path())?;
    let group = Group(Arc::new(AtomicI32::new(i32::try_from(child.id()).unwrap_or(0))));
    watch_first_host(&events, guarded.silence_max, group.clone(), directory.path());
    for (is_error, pipe) in
        [(false, child.stdout.take().map(OwnedFd::from)), (true, child.stderr.take().map(OwnedFd::from))]
    {
        forward(pipe, is_error, events.clone());
    }
    if let Some(pipe) = ready {
        std::thread::spawn(move || {
            if matches!((&pipe).read(&mut [0]), Ok(1)) {
                let _ = events.send(Event::Ready);
            }
            // What else comes there must find a reader.
            let _ = std::io::copy(&mut &pipe, &mut std::io::sink());
        });
    }
    let input = feed(child.stdin.take());
    let mut ending = Ending { child, group, asked_at: None, is_killed: false };
    let outcome = serve(&mut ending, &heard, input, directory.path());
    ending.end();
    remove(directory.path());
    outcome
}

/// Starts the program in its directory; the pipe on which it says that it is ready.
fn start(guarded: &Guarded<'_>, directory: &Path) -> Result<(Child, Option<std::io::PipeReader>), LabError> {
    let mut command = Command::new(guarded.program);
    command.args(guarded.arguments).current_dir(directory).env("TMPDIR", directory);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let pipe = guarded.says_ready.then(std::io::pipe).transpose().map_err(LabError::system("pipe"))?;
    let inherited = pipe.as_ref().map(|(_, write)| write.as_raw_fd());
    if let Some(fd) = inherited {
        command.arg("--ready-fd").arg(fd.to_string());
    }
    sys::inherit(&mut command, inherited.as_slice());
    let child = command.spawn().map_err(|source| LabError::Start {
        command: guarded.program.display().to_string(),
        source,
        remedy: "",
    })?;
    Ok((child, pipe.map(|(read, _)| read)))
}

/// The program's process group, until it has ended: its number may be another's then.
#[derive(Clone)]
struct Group(Arc<AtomicI32>);

impl Group {
    /// Asks the program to end. Its children are its own to end: an `ip netns del` of it must not be cut short.
    fn ask(&self) {
        if let Some(program) = Pid::from_raw(self.0.load(Ordering::Acquire)) {
            // It may have ended.
            let _ = kill_process(program, Signal::TERM);
        }
    }

    fn kill(&self) {
        if let Some(group) = Pid::from_raw(self.0.load(Ordering::Acquire)) {
            let _ = kill_process_group(group, Signal::KILL);
        }
    }

    /// Kills what is left of it, and forgets its number.
    fn finish(&self) {
        self.kill();
        self.0.store(0, Ordering::Release);
    }
}

/// The program, and how far its end is.
struct Ending {
    child: Child,
    group: Group,
    asked_at: Option<Instant>,
    is_killed: bool,
}

impl Ending {
    fn ask(&mut self) {
        if self.asked_at.is_none() {
            self.asked_at = Some(Instant::now());
            self.group.ask();
        }
    }

    /// Its status once it has ended. One that was asked to end and does not is killed.
    fn status(&mut self) -> Option<ExitStatus> {
        if !self.is_killed && self.asked_at.is_some_and(|at| at.elapsed() > GRACE) {
            self.is_killed = true;
            self.group.kill();
        }
        self.child.try_wait().ok().flatten()
    }

    /// Ends it, and its children with it.
    fn end(&mut self) {
        if self.status().is_none() {
            self.ask();
        }
        while self.status().is_none() {
            std::thread::sleep(LOOK_AGAIN);
        }
        self.group.finish();
    }
}

/// Passes on what comes until the first host has no more orders.
fn serve(
    ending: &mut Ending,
    heard: &Receiver<Event>,
    input: SyncSender<String>,
    directory: &Path,
) -> Result<Outcome, LabError> {
    let mut out = std::io::stdout().lock();
    // Closed when the program shall end: one that reads would wait for more.
    let mut input = Some(input);
    let (mut closed, mut ended_at, mut has_said) = (0, None, false);
    if Message::Started.write(&mut out).and_then(|()| out.flush()).is_err() {
        return Ok(Outcome::Abandoned);
    }
    loop {
        let message = match heard.recv_timeout(LOOK_AGAIN) {
            Ok(Event::Gone) | Err(RecvTimeoutError::Disconnected) => {
                return Ok(if has_said { Outcome::Done } else { Outcome::Abandoned });
            }
            Ok(Event::Order(Order::Alive)) => Ok(()),
            Ok(Event::Order(Order::End)) => {
                input = None;
                ending.ask();
                Ok(())
            }
            Ok(Event::Order(Order::Fetch(name))) => hand_over(directory, &name, &mut out),
            Ok(Event::Order(Order::Say(text))) => {
                // A program that does not read has its lines lost: it would hold up everything else.
                let _ = input.as_ref().map(|input| input.try_send(text));
                Ok(())
            }
            Ok(Event::Ready) if ended_at.is_none() => Message::Ready.write(&mut out),
            Ok(Event::Wrote(is_error, octets)) if !has_said => {
                let message = if is_error { Message::Stderr(&octets) } else { Message::Stdout(&octets) };
                message.write(&mut out)
            }
            Ok(Event::Closed) => {
                closed += 1;
                Ok(())
            }
            Ok(_) | Err(RecvTimeoutError::Timeout) => Ok(()),
        };
        let said = message.and_then(|()| out.flush());
        if said.is_err() {
            return Ok(Outcome::Abandoned);
        }
        let Some(status) = ending.status() else { continue };
        let since = ended_at.get_or_insert_with(Instant::now);
        if !has_said && (closed == 2 || since.elapsed() > OUTPUTS_MAX) {
            has_said = true;
            ending.group.finish();
            if Message::Ended(ended(status)).write(&mut out).and_then(|()| out.flush()).is_err() {
                return Ok(Outcome::Abandoned);
            }
        }
    }
}

fn ended(status: ExitStatus) -> Ended {
    let number = |number: i32| u8::try_from(number).unwrap_or(u8::MAX);
    match status.signal() {
        Some(signal) => Ended::Killed(number(signal)),
        None => Ended::Exited(number(status.code().unwrap_or(1))),
    }
}

/// Sends a file, or why there is none: an ordinary file below the directory, not what a link points to.
fn hand_over(directory: &Path, name: &str, out: &mut impl std::io::Write) -> std::io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let opened = File::open(directory)
        .and_then(|directory| {
            let rules = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
            Ok(File::from(openat2(&directory, name, flags, Mode::empty(), rules)?))
        })
        .and_then(|file| file.metadata().map(|metadata| (file, metadata)));
    let (file, size) = match opened {
        Ok((file, metadata)) if metadata.is_file() => (file, metadata.len()),
        Ok(_) => return Message::NoFile(b"it is no ordinary file").write(out),
        Err(error) => return Message::NoFile(error.to_string().as_bytes()).write(out),
    };
    Message::File(size).write(out)?;
    let (mut file, mut sent) = (file.take(size), 0);
    let mut buffer = vec![0; PAYLOAD_OCTETS_MAX];
    while sent < size {
        let octets = file.read(&mut buffer)?;
        if octets == 0 {
            return Err(std::io::Error::other("a file became shorter while it was sent"));
        }
        Message::Data(&buffer[..octets]).write(out)?;
        sent += octets as u64;
    }
    Ok(())
}

/// Hears the first host on threads of their own. One that is gone ends the program although the main thread may hang in a write: a
/// connection that was cut takes nothing more.
fn watch_first_host(events: &SyncSender<Event>, silence_max: Duration, group: Group, directory: &Path) {
    let (life, signs): (Sender<()>, _) = channel();
    let (orders, directory) = (events.clone(), directory.to_owned());
    std::thread::spawn(move || {
        let mut input = BufReader::new(std::io::stdin());
        let mut line = Vec::new();
        loop {
            line.clear();
            let read = input.by_ref().take(ORDER_OCTETS_MAX as u64 + 1).read_until(b'\n', &mut line);
            if !matches!(read, Ok(1..)) || line.pop() != Some(b'\n') || life.send(()).is_err() {
                return;
            }
            let order = std::str::from_utf8(&line).ok().and_then(Order::of_line);
            // What is no order comes from no first host.
            let Some(order) = order else { return };
            if order != Order::Alive && orders.send(Event::Order(order)).is_err() {
                return;
            }
        }
    });
    let events = events.clone();
    std::thread::spawn(move || {
        while signs.recv_timeout(silence_max).is_ok() {}
        let until = Instant::now() + GRACE + OUTPUTS_MAX;
        group.ask();
        while let Err(std::sync::mpsc::TrySendError::Full(_)) = events.try_send(Event::Gone) {
            if Instant::now() >= until {
                break;
            }
            std::thread::sleep(LOOK_AGAIN);
        }
        // The main thread ends the process, unless it hangs.
        std::thread::sleep(until.saturating_duration_since(Instant::now()));
        group.finish();
        remove(&directory);
        std::process::exit(1);
    });
}

/// Passes an output of the program on.
fn forward(pipe: Option<OwnedFd>, is_error: bool, events: SyncSender<Event>) {
    let Some(pipe) = pipe else { return };
    std::thread::spawn(move || {
        let mut pipe = File::from(pipe);
        let mut buffer = vec![0; PAYLOAD_OCTETS_MAX];
        while let Ok(octets @ 1..) = pipe.read(&mut buffer) {
            if events.send(Event::Wrote(is_error, buffer[..octets].to_vec())).is_err() {
                return;
            }
        }
        let _ = events.send(Event::Closed);
    });
}

/// Writes lines to the program's standard input, which closes with the returned value.
fn feed(stdin: Option<std::process::ChildStdin>) -> SyncSender<String> {
    let (lines, taken) = sync_channel::<String>(WAITING_MAX);
    std::thread::spawn(move || {
        let Some(mut stdin) = stdin else { return };
        while let Ok(line) = taken.recv() {
            if stdin.write_all(format!("{line}\n").as_bytes()).is_err() {
                return;
            }
        }
    });
    lines
}

/// Removes a command's directory. What a killed command has there of virtual switches is more than files: mounts, reserved huge pages.
fn remove(directory: &Path) {
    let _switches = ovs::sweep_in(directory);
    let _ = std::fs::remove_dir_all(directory);
}

/// Removes directories of guards that were killed.
fn sweep() {
    for entry in std::fs::read_dir(std::env::temp_dir()).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let pid = name.strip_prefix(GUARDED).and_then(|rest| rest.split('-').next()?.parse().ok());
        let is_left = pid.is_some_and(|pid| !sys::exists(pid));
        // Others may make such names in a shared directory.
        let is_ours = |data: std::fs::Metadata| data.is_dir() && data.uid() == geteuid().as_raw();
        if is_left && entry.path().symlink_metadata().is_ok_and(is_ours) && !ovs::is_used(&entry.path()) {
            remove(&entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

    /// The directory of a switch of `switch` in the one of a guard of `guard`, with the note of its pages: none, so that the machine's own
    /// number stays as it is. Where this process may mount, it has a mount.
    fn left(guard: u32, switch: u32) -> tempfile::TempDir {
        let directory = tempfile::Builder::new().prefix(&format!("{GUARDED}{guard}-")).tempdir().unwrap();
        let huge = huge_of(&directory, switch);
        std::fs::create_dir_all(&huge).unwrap();
        std::fs::write(huge.with_file_name("pages"), "0").unwrap();
        if geteuid().is_root() {
            mount("nodev", &huge, "tmpfs", MountFlags::empty(), None).unwrap();
            std::fs::write(huge.join("rtemap_0"), "").unwrap();
        }
        directory
    }

    fn huge_of(guard: &tempfile::TempDir, switch: u32) -> std::path::PathBuf {
        guard.path().join(format!("ktsn-ovs-{switch}-x/huge"))
    }

    #[test]
    fn what_killed_commands_left_of_switches_is_removed() {
        let killed = std::process::Command::new("true").spawn().unwrap();
        let pid = killed.id();
        killed.wait_with_output().unwrap();
        let mounts = || std::fs::read_to_string("/proc/self/mounts").unwrap();
        let is_mounted = |directory: &Path| mounts().contains(&*directory.to_string_lossy());
        // The guard lives: its command was killed.
        let ended = left(std::process::id(), pid);
        remove(ended.path());
        assert!(!ended.path().exists() && !is_mounted(ended.path()));
        // The guard was killed; its command lives.
        let (all, guard_only) = (left(pid, pid), left(pid, std::process::id()));
        sweep();
        assert!(!all.path().exists() && !is_mounted(all.path()));
        let huge = huge_of(&guard_only, std::process::id());
        assert_eq!((huge.exists(), is_mounted(guard_only.path())), (true, geteuid().is_root()));
        if geteuid().is_root() {
            unmount(&huge, UnmountFlags::DETACH).unwrap();
        }
        // No guard follows: the next switch here looks, too.
        let all = left(pid, pid);
        ovs::sweep();
        assert!(!huge_of(&all, pid).exists() && !is_mounted(all.path()));
    }
}
