// SPDX-License-Identifier: Apache-2.0
//! A throw-away guest that runs one program.
//!
//! In: an image, a machine, a job. Out: what the program writes, as it comes, and a [`Report`]. The guest is not trusted: what it says is
//! read by [`Decoder`], and its console is shown without control characters. The guest is killed when the call ends, or when the thread
//! that made the call ends; nothing else of a run lies outside its processes but its [`Record`].

use super::cache::Cache;
use super::clock::HostClock;
use super::cpio::{Node, Tree};
use super::guest::JOB;
use super::image::Image;
use super::kind::Kind;
use super::machine::{Descriptors, QEMU};
use super::network::{Attachment, Datapath};
use super::protocol::{Decoder, Ended, Job, Message};
pub use super::request::Request;
use super::runs::Record;
use super::uml;
use crate::error::LabError;
use crate::process::end_of;
use crate::sys;
use ktsn_measure::clock::stop_requested;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, PipeReader, Read, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How often limits and signals are looked at.
const LOOK_AGAIN: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
/// How much of a console is kept.
const CONSOLE_OCTETS_MAX: usize = 16 << 10;
const READ_OCTETS: usize = 64 << 10;
/// The most that a guest's files have together.
pub(super) const FILES_OCTETS_MAX: usize = 256 << 20;

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
    /// The program wrote: takes octets from the beginning of `octets`, and says how many. It may wait a little, not long; 0: nothing can be
    /// taken now.
    ///
    /// # Errors
    /// The octets cannot be passed on; the run ends.
    fn wrote(&mut self, stream: Stream, octets: &[u8]) -> io::Result<usize>;
    /// The guest runs, as this process.
    fn started(&mut self, _process: u32) {}
    /// The guest waits until its clock follows.
    fn waits_for_clock(&mut self) {}
    /// Whether the run shall go on.
    fn is_wanted(&self) -> bool {
        true
    }
}

/// How a run went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// From the start of the guest's process to the program's.
    pub boot: Duration,
    /// How long the program ran, as seen from the host.
    pub program: Duration,
    /// How it ended.
    pub ended: Ended,
    /// What the guest's clock said at the end, as JSON.
    pub clock: Option<String>,
    /// The files that the job brings, by name; one that could not be read in the guest is missing.
    pub files: Vec<(PathBuf, Vec<u8>)>,
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
    watch.started(guest.process.id());
    // The cache stays locked until the guest has read the image.
    let mut image = Some(image);
    let (mut ready_at, mut ended) = (None, None);
    let (mut clock, mut impossible) = (None, None);
    let mut files = Files::default();
    let mut decoder = Decoder::default();
    let mut buffer = vec![0; READ_OCTETS];
    let mut held = VecDeque::new();
    while ended.is_none() || !held.is_empty() {
        guest.check_limits(request, ready_at, ended.is_some(), watch)?;
        // What was not taken yet goes first, and the guest waits meanwhile. The limits go on.
        if let Some((stream, octets)) = held.front_mut() {
            guest.keep_console()?;
            pass_on(*stream, octets, watch).map_err(LabError::system("output of the program"))?;
            if octets.is_empty() {
                held.pop_front();
            }
            continue;
        }
        let Some(octets) = guest.wait(&mut buffer)? else { continue };
        if octets == 0 {
            return Err(guest.has_ended());
        }
        let taken = decoder.take(&buffer[..octets], &mut |message| match message {
            Message::Ready => {
                ready_at = Some(Instant::now());
                image = None;
                watch.ready();
            }
            Message::Stdout(octets) => held.push_back((Stream::Stdout, octets.to_vec())),
            Message::Stderr(octets) => held.push_back((Stream::Stderr, octets.to_vec())),
            Message::Clock(_) if ready_at.is_none() => watch.waits_for_clock(),
            Message::Clock(state) => clock = Some(printable(state)),
            Message::Impossible(why) => impossible = Some(printable(why)),
            Message::File(name) => files.begin(name),
            Message::Part(octets) => files.add(octets),
            Message::Ended(how) => ended = Some((how, Instant::now())),
        });
        taken.map_err(|violation| guest.failed(format!("sent {violation}, which no guest of ours does")))?;
        files.check(&request.job.bring).map_err(|problem| guest.failed(problem))?;
        if let Some(what) = impossible.take() {
            return Err(LabError::Impossible { what, remedy: "--clock vptp".to_owned() });
        }
    }
    drop(image);
    let ready_at = ready_at.unwrap_or(guest.started);
    let (ended, ended_at) = ended.unwrap_or((Ended::NotStarted(0), ready_at));
    let (boot, program) = (ready_at - guest.started, ended_at - ready_at);
    Ok(Report { boot, program, ended, clock, files: files.files })
}

/// The files that a guest sends.
#[derive(Debug, Default)]
pub(super) struct Files {
    pub(super) files: Vec<(PathBuf, Vec<u8>)>,
    octets: usize,
}

impl Files {
    pub(super) fn begin(&mut self, name: &[u8]) {
        self.files.push((PathBuf::from(OsStr::from_bytes(name)), Vec::new()));
    }

    pub(super) fn add(&mut self, octets: &[u8]) {
        if let Some((_, content)) = self.files.last_mut() {
            content.extend_from_slice(octets);
            self.octets += octets.len();
        }
    }

    /// # Errors
    /// A file that the job does not bring or that came before, or too many octets.
    pub(super) fn check(&self, wanted: &[PathBuf]) -> Result<(), String> {
        if self.octets > FILES_OCTETS_MAX {
            return Err(format!("sent files of more than {FILES_OCTETS_MAX} octets"));
        }
        let Some(((last, _), before)) = self.files.split_last() else { return Ok(()) };
        if !wanted.contains(last) || before.iter().any(|(name, _)| name == last) {
            return Err(format!("sent the file {last:?}, which was not asked for"));
        }
        Ok(())
    }
}

/// Lets `watch` take from the beginning of `octets`, and removes what it took.
fn pass_on(stream: Stream, octets: &mut Vec<u8>, watch: &mut dyn Watch) -> io::Result<()> {
    match watch.wrote(stream, octets) {
        Ok(taken) => drop(octets.drain(..taken.min(octets.len()))),
        Err(error) if matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock) => {}
        Err(error) => return Err(error),
    }
    Ok(())
}

/// A guest; killed on drop.
struct Guest {
    kind: Kind,
    process: Child,
    started: Instant,
    port: UnixStream,
    /// The words of QEMU and of the guest's kernel.
    console: Option<PipeReader>,
    said: Vec<u8>,
    /// Gone after the process.
    _attachment: Attachment,
    /// Ends after the process.
    _clock: HostClock,
    /// Gone after the process.
    record: Record,
}

impl Drop for Guest {
    fn drop(&mut self) {
        // The process may have ended by itself; then both have nothing to do.
        match self.kind {
            Kind::Qemu => drop(self.process.kill()),
            Kind::Uml => uml::end(&mut self.process),
        }
        let _ = self.process.wait();
    }
}

impl Guest {
    fn start(cache: &Cache, image: &Image, request: &Request) -> Result<Self, LabError> {
        let (kernel, kind) = (image.kernel(), image.kind);
        if kind != request.accelerator.kind() {
            return Err(LabError::Usage(format!(
                "a guest of {} has no image of {kind}",
                request.accelerator
            )));
        }
        if kind == Kind::Uml {
            request.machine.check_uml(request.job.clock)?;
        } else if kernel.to_string_lossy().contains(',') {
            return Err(LabError::Usage(format!(
                "{}: QEMU takes no path with a comma; name another cache",
                kernel.display()
            )));
        }
        // First, so that `ktsn vm clean` finds what is started, whenever this process is killed.
        let mut record = Record::new(cache)?;
        let clock = HostClock::start(image, request, &mut record)?;
        let files = files(image, request, clock.time_server())?;
        let octets = files.metadata().map_err(LabError::system("fstat"))?.len();
        request.machine.check_files(octets)?;
        let (port, far) = UnixStream::pair().map_err(LabError::system("socketpair"))?;
        let (console, write) = io::pipe().map_err(LabError::system("pipe"))?;
        let machine = &request.machine;
        let attachment =
            Attachment::new(&machine.datapath, machine.queues, machine.monitor.as_deref(), kind)?;
        for socket in &attachment.sockets {
            record.name_socket(socket)?;
        }
        let ends = attachment.ends();
        let descriptors = Descriptors { files: files.as_raw_fd(), port: far.as_raw_fd(), network: &ends };
        let mut command = match kind {
            Kind::Qemu => qemu(request, &kernel, descriptors, &clock),
            Kind::Uml => request.machine.uml(&kernel, descriptors),
        };
        command
            .stdin(Stdio::null())
            .stderr(write.try_clone().map_err(LabError::system("dup"))?)
            .stdout(write);
        sys::inherit(
            &mut command,
            &[&ends[..], &clock.descriptors(), &[descriptors.files, descriptors.port]].concat(),
        );
        if let Some(cpus) = &request.machine.pin {
            sys::pin(&mut command, cpus.numbers());
        }
        match kind {
            // Last: what comes before concerns the process that is started.
            Kind::Uml => uml::isolate(&mut command),
            Kind::Qemu if request.machine.datapath == Datapath::Tap => sys::leave_network(&mut command),
            Kind::Qemu => {}
        }
        let started = Instant::now();
        let process = command.spawn().map_err(|source| not_started(kind, &kernel, source))?;
        let (console, said) = (Some(console), Vec::new());
        let mut guest = Self {
            kind,
            process,
            started,
            port,
            console,
            said,
            _attachment: attachment,
            _clock: clock,
            record,
        };
        guest.record.name_process(guest.process.id())?;
        Ok(guest)
    }

    /// # Errors
    /// A limit is reached, or the caller was asked to stop.
    fn check_limits(
        &self,
        request: &Request,
        ready_at: Option<Instant>,
        has_ended: bool,
        watch: &dyn Watch,
    ) -> Result<(), LabError> {
        if stop_requested() {
            return Err(LabError::Stopped);
        }
        if !watch.is_wanted() {
            return Err(self.failed("was ended: its run is not wanted any more".to_owned()));
        }
        match (ready_at, request.program_within) {
            (None, _) if self.started.elapsed() > request.boot_within => Err(self.failed(format!(
                "({}) has not booted within {:?}{}",
                request.accelerator,
                request.boot_within,
                self.what_boot_waits_for(&request.machine.datapath)
            ))),
            (Some(ready_at), Some(longest)) if !has_ended && ready_at.elapsed() > longest => {
                Err(self.failed(format!("was ended: its program did not end within {longest:?}")))
            }
            _ => Ok(()),
        }
    }

    /// What keeps a guest from booting, as far as QEMU says it.
    fn what_boot_waits_for(&self, datapath: &Datapath) -> String {
        match datapath {
            Datapath::VhostUser(socket) if printable(&self.said).contains("waiting for connection") => {
                format!(": no virtual switch has connected to {}", socket.display())
            }
            _ => String::new(),
        }
    }

    /// Reads what the console has said, so that the guest never waits for it.
    fn keep_console(&mut self) -> Result<(), LabError> {
        let Some(console) = &self.console else { return Ok(()) };
        match poll(&mut [PollFd::new(console, PollFlags::IN)], Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) {
            Ok(0) | Err(Errno::INTR) => {}
            Ok(_) => self.read_console(),
            Err(error) => return Err(LabError::system("poll")(error.into())),
        }
        Ok(())
    }

    /// Waits a little for the guest's words: how many octets of its port are in `buffer` now; 0: it has ended.
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

    /// The error of a guest that has ended before its program did.
    fn has_ended(&mut self) -> LabError {
        let status = self.process.wait().map_or_else(|error| error.to_string(), |status| status.to_string());
        while self.console.is_some() {
            self.read_console();
        }
        self.failed(format!("ended before its program did ({status})"))
    }

    fn failed(&self, problem: String) -> LabError {
        let said = printable(&self.said);
        let said = end_of(before_trace(&said));
        let stderr =
            if said.is_empty() { String::new() } else { format!("; the end of its console:\n{said}") };
        LabError::Process { name: "the guest".to_owned(), problem, stderr }
    }
}

/// What a console said up to the kernel's panic. The first process says why it ends; the trace behind the panic says nothing about that.
pub(super) fn before_trace(said: &str) -> &str {
    let panic = said.find("Kernel panic - not syncing: Attempted to kill init");
    let end = panic.and_then(|panic| Some(panic + said[panic..].find('\n')?));
    end.map_or(said, |end| &said[..end])
}

/// A port that the guest closed with octets in it is closed.
fn closed(error: io::Error) -> Result<Option<usize>, LabError> {
    match error.kind() {
        io::ErrorKind::ConnectionReset => Ok(Some(0)),
        io::ErrorKind::Interrupted => Ok(None),
        _ => Err(LabError::system("the guest's port")(error)),
    }
}

/// The error of a process that cannot be started.
fn not_started(kind: Kind, kernel: &Path, source: io::Error) -> LabError {
    match (kind, source.kind()) {
        (Kind::Uml, _) => uml::not_started(kernel, &source),
        (Kind::Qemu, io::ErrorKind::NotFound) => LabError::Impossible {
            what: format!("{QEMU} is not here, which runs guests"),
            remedy: "apt-get install qemu-system-x86".to_owned(),
        },
        (Kind::Qemu, _) => LabError::Start { command: QEMU.to_owned(), source, remedy: "" },
    }
}

fn qemu(request: &Request, kernel: &Path, descriptors: Descriptors<'_>, clock: &HostClock) -> Command {
    let host_tree = request.job.in_host_tree;
    let mut command = Command::new(QEMU);
    command.args(request.machine.arguments(request.accelerator, kernel, descriptors, host_tree));
    command.args(clock.arguments());
    command
}

/// A console's text without what would control the reader's terminal.
pub(crate) fn printable(console: &[u8]) -> String {
    let text = String::from_utf8_lossy(console);
    text.chars().filter(|&character| character == '\n' || !character.is_control()).collect()
}

/// The guest's files in memory: the image's, then those of this run.
fn files(image: &Image, request: &Request, time_server: String) -> Result<File, LabError> {
    let mut tree = Tree::default();
    let mut add = |path: &str, from: &Path| {
        let content = std::fs::read(from).map_err(LabError::file(from))?;
        tree.add(path, Node::File(0o755, content));
        Ok::<(), LabError>(())
    };
    add("usr/bin/ktsn", &request.tools.ktsn)?;
    add("usr/bin/ktsn-bench", &request.tools.bench)?;
    add("usr/bin/ktsnd", &request.tools.ktsnd)?;
    add("usr/lib/ktsn/libktsn.so", &request.tools.libktsn)?;
    let job = Job { time_server, ..request.job.clone() };
    tree.add(JOB, Node::File(0o644, job.encode()));
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
