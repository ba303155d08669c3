// SPDX-License-Identifier: Apache-2.0
//! A throw-away guest that runs one program.
//!
//! In: an image, a machine, a job. Out: what the program writes, as it comes, and a [`Report`]. The guest is not trusted: what it says is
//! read by [`Decoder`], and its console is shown without control characters. QEMU is killed when the call ends, or when the thread that
//! made the call ends; nothing else of a run lies outside its processes but its [`Record`].

use super::cache::Cache;
use super::cpio::{Node, Tree};
use super::guest::JOB;
use super::image::Image;
use super::machine::{Accelerator, Datapath, Descriptors, Machine, QEMU};
use super::protocol::{Decoder, Ended, Job, Message};
use super::runs::Record;
use crate::error::LabError;
use crate::process::end_of;
use crate::sys;
use crate::tools::Tools;
use ktsn_measure::clock::stop_requested;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, PipeReader, Read, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How often limits and signals are looked at.
const LOOK_AGAIN: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
/// How much of a console is kept.
const CONSOLE_OCTETS_MAX: usize = 16 << 10;
const READ_OCTETS: usize = 64 << 10;

/// Which of the program's outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// Where a run's words go.
pub trait Watch {
    /// The guest has booted; the program starts.
    fn ready(&mut self);
    /// The program wrote.
    ///
    /// # Errors
    /// The octets cannot be passed on; the run ends.
    fn wrote(&mut self, stream: Stream, octets: &[u8]) -> io::Result<()>;
}

/// What to run, and for how long.
#[derive(Clone, Debug)]
pub struct Request {
    /// The guest's machine.
    pub machine: Machine,
    /// How its instructions run.
    pub accelerator: Accelerator,
    /// What it does.
    pub job: Job,
    /// ktsn, ktsnd and libktsn.so, which the guest gets.
    pub tools: Tools,
    /// How long the boot may take.
    pub boot_within: Duration,
    /// How long the program may take.
    pub program_within: Option<Duration>,
}

/// How a run went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// From QEMU's start to the program's.
    pub boot: Duration,
    /// How long the program ran, as seen from the host.
    pub program: Duration,
    /// How it ended.
    pub ended: Ended,
}

/// Boots a guest and runs a program in it.
///
/// # Errors
/// [`LabError::Impossible`] without QEMU; [`LabError::Process`] with the guest's console if the guest does not boot, ends by itself, takes
/// too long or lies; [`LabError::Stopped`].
pub fn run(
    cache: &Cache,
    image: Image,
    request: &Request,
    watch: &mut dyn Watch,
) -> Result<Report, LabError> {
    let mut guest = Guest::start(cache, &image, request)?;
    // The cache stays locked until QEMU has read the image.
    let mut image = Some(image);
    let (mut ready_at, mut ended) = (None, None);
    let mut decoder = Decoder::default();
    let mut buffer = vec![0; READ_OCTETS];
    while ended.is_none() {
        guest.check_limits(request, ready_at)?;
        let Some(octets) = guest.wait(&mut buffer)? else { continue };
        if octets == 0 {
            return Err(guest.has_ended());
        }
        let mut cannot_pass_on = Ok(());
        let taken = decoder.take(&buffer[..octets], &mut |message| match message {
            Message::Ready => {
                ready_at = Some(Instant::now());
                image = None;
                watch.ready();
            }
            Message::Stdout(octets) if cannot_pass_on.is_ok() => {
                cannot_pass_on = watch.wrote(Stream::Stdout, octets);
            }
            Message::Stderr(octets) if cannot_pass_on.is_ok() => {
                cannot_pass_on = watch.wrote(Stream::Stderr, octets);
            }
            Message::Stdout(_) | Message::Stderr(_) => {}
            Message::Ended(how) => ended = Some(how),
        });
        taken.map_err(|violation| guest.failed(format!("sent {violation}, which no guest of ours does")))?;
        cannot_pass_on.map_err(LabError::system("output of the program"))?;
    }
    drop(image);
    let ready_at = ready_at.unwrap_or(guest.started);
    let ended = ended.unwrap_or(Ended::NotStarted(0));
    Ok(Report { boot: ready_at - guest.started, program: ready_at.elapsed(), ended })
}

/// A guest; killed on drop.
struct Guest {
    qemu: Child,
    started: Instant,
    port: UnixStream,
    /// QEMU's own words and the guest's serial line.
    console: Option<PipeReader>,
    said: Vec<u8>,
    /// Gone after QEMU.
    record: Record,
}

impl Drop for Guest {
    fn drop(&mut self) {
        // QEMU may have ended by itself; then both have nothing to do.
        let _ = self.qemu.kill();
        let _ = self.qemu.wait();
    }
}

impl Guest {
    fn start(cache: &Cache, image: &Image, request: &Request) -> Result<Self, LabError> {
        let kernel = image.kernel();
        if kernel.to_string_lossy().contains(',') {
            return Err(LabError::Usage(format!(
                "{}: QEMU takes no path with a comma; name another cache",
                kernel.display()
            )));
        }
        let files = files(image, request)?;
        let octets = files.metadata().map_err(LabError::system("fstat"))?.len();
        request.machine.check_files(octets)?;
        let (port, far) = UnixStream::pair().map_err(LabError::system("socketpair"))?;
        let (console, write) = io::pipe().map_err(LabError::system("pipe"))?;
        let descriptors = Descriptors { files: files.as_raw_fd(), port: far.as_raw_fd() };
        let mut command = Command::new(QEMU);
        command.args(request.machine.arguments(
            request.accelerator,
            &kernel,
            descriptors,
            request.job.in_host_tree,
        ));
        command
            .stdin(Stdio::null())
            .stderr(write.try_clone().map_err(LabError::system("dup"))?)
            .stdout(write);
        sys::inherit(&mut command, &[descriptors.files, descriptors.port]);
        if request.machine.datapath == Datapath::Tap {
            sys::leave_network(&mut command);
        }
        let record = Record::new(cache)?;
        let started = Instant::now();
        let qemu = command.spawn().map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => LabError::Impossible {
                what: format!("{QEMU} is not here, which runs guests"),
                remedy: "apt-get install qemu-system-x86".to_owned(),
            },
            _ => LabError::Start { command: QEMU.to_owned(), source, remedy: "" },
        })?;
        let mut guest = Self { qemu, started, port, console: Some(console), said: Vec::new(), record };
        guest.record.name_process(guest.qemu.id())?;
        Ok(guest)
    }

    /// # Errors
    /// A limit is reached, or the caller was asked to stop.
    fn check_limits(&self, request: &Request, ready_at: Option<Instant>) -> Result<(), LabError> {
        if stop_requested() {
            return Err(LabError::Stopped);
        }
        match (ready_at, request.program_within) {
            (None, _) if self.started.elapsed() > request.boot_within => Err(self.failed(format!(
                "({}) has not booted within {:?}",
                request.accelerator, request.boot_within
            ))),
            (Some(ready_at), Some(longest)) if ready_at.elapsed() > longest => {
                Err(self.failed(format!("was ended: its program did not end within {longest:?}")))
            }
            _ => Ok(()),
        }
    }

    /// Waits a little for the guest's words: how many octets of its port are in `buffer` now; 0: QEMU has ended.
    fn wait(&mut self, buffer: &mut [u8]) -> Result<Option<usize>, LabError> {
        let mut polled = vec![PollFd::new(&self.port, PollFlags::IN)];
        polled.extend(self.console.iter().map(|console| PollFd::new(console, PollFlags::IN)));
        match poll(&mut polled, Some(&LOOK_AGAIN)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(LabError::system("poll")(error.into())),
        }
        let readable: Vec<bool> = polled.iter().map(|one| !one.revents().is_empty()).collect();
        drop(polled);
        if readable.get(1) == Some(&true) {
            self.read_console();
        }
        if readable[0] { self.port.read(buffer).map(Some).or_else(closed) } else { Ok(None) }
    }

    /// Keeps the end of what the console says.
    fn read_console(&mut self) {
        let mut part = [0; 4096];
        let octets = self.console.as_mut().map_or(0, |console| console.read(&mut part).unwrap_or(0));
        if octets == 0 {
            self.console = None;
        }
        self.said.extend_from_slice(&part[..octets]);
        let excess = self.said.len().saturating_sub(CONSOLE_OCTETS_MAX);
        self.said.drain(..excess);
    }

    /// The error of a QEMU that has ended before the program did.
    fn has_ended(&mut self) -> LabError {
        let status = self.qemu.wait().map_or_else(|error| error.to_string(), |status| status.to_string());
        while self.console.is_some() {
            self.read_console();
        }
        self.failed(format!("ended before its program did (QEMU: {status})"))
    }

    fn failed(&self, problem: String) -> LabError {
        let said = printable(&self.said);
        let said = end_of(&said);
        let stderr =
            if said.is_empty() { String::new() } else { format!("; the end of its console:\n{said}") };
        LabError::Process { name: "the guest".to_owned(), problem, stderr }
    }
}

/// A port that QEMU closed with octets in it is closed.
fn closed(error: io::Error) -> Result<Option<usize>, LabError> {
    match error.kind() {
        io::ErrorKind::ConnectionReset => Ok(Some(0)),
        io::ErrorKind::Interrupted => Ok(None),
        _ => Err(LabError::system("the guest's port")(error)),
    }
}

/// A console's text without what would control the reader's terminal.
pub(super) fn printable(console: &[u8]) -> String {
    let text = String::from_utf8_lossy(console);
    text.chars().filter(|&character| character == '\n' || !character.is_control()).collect()
}

/// The guest's files in memory: the image's, then those of this run.
fn files(image: &Image, request: &Request) -> Result<File, LabError> {
    let mut tree = Tree::default();
    let mut add = |path: &str, from: &Path| {
        let content = std::fs::read(from).map_err(LabError::file(from))?;
        tree.add(path, Node::File(0o755, content));
        Ok::<(), LabError>(())
    };
    add("usr/bin/ktsn", &request.tools.ktsn)?;
    add("usr/bin/ktsnd", &request.tools.ktsnd)?;
    add("usr/lib/ktsn/libktsn.so", &request.tools.libktsn)?;
    tree.add(JOB, Node::File(0o644, request.job.encode()));
    let memory = memfd_create("ktsn-vm", MemfdFlags::CLOEXEC)
        .map_err(|error| LabError::system("memfd_create")(error.into()))?;
    let mut memory = File::from(memory);
    let path = image.files();
    let mut base = File::open(&path).map_err(LabError::file(&path))?;
    io::copy(&mut base, &mut memory).map_err(LabError::file(&path))?;
    let mut out = io::BufWriter::new(memory);
    tree.write(&mut out)
        .and_then(|()| out.flush())
        .map_err(LabError::system("memory for the guest's files"))?;
    out.into_inner().map_err(|error| LabError::system("memory for the guest's files")(error.into_error()))
}
