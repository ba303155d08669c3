// SPDX-License-Identifier: Apache-2.0
//! The first process of a guest: mounts, says that the guest is ready, runs the program, and sends what it writes and how it ends.
//!
//! In: the job in the guest's first file tree. Out: messages on the guest's port; the guest's end is the host's business. Runs in guests only:
//! it refuses to be anything but process 1.

use super::guest_clock::{self, GuestClock};
use super::kind::Kind;
use super::machine::{HOST_TAG, PORT};
use super::protocol::{Clock, Ended, Job, Message, PAYLOAD_OCTETS_MAX};
use super::uml;
use crate::command;
use crate::error::LabError;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::mount::{MountFlags, mount, mount_bind_recursive};
use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Where a run's own archive has the job.
/// It is the last file, so it is missing where the files did not fit.
pub(super) const JOB: &str = "var/ktsn.job";
const PORTS: &str = "/sys/class/virtio-ports";
const PORT_WITHIN: Duration = Duration::from_secs(20);
const LOOK_AGAIN: Duration = Duration::from_millis(5);
/// How soon the end of a program is seen whose children hold its outputs open.
const LOOK_AGAIN_NS: i64 = 50_000_000;
/// The most reads of what a program left in its outputs: more than the largest pipe holds.
const ROUNDS_AFTER_END_MAX: u32 = 64;
/// The host's tree: as it is, what the guest changes, and both together.
const HOST: [&str; 4] = ["/run/host", "/run/guest", "/run/guest/changes", "/run/guest/work"];
const WHOLE: &str = "/run/whole";
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Whether this machine is a guest of `ktsn vm`.
#[must_use]
pub fn is_guest() -> bool {
    Path::new("/").join(JOB).exists()
}

/// Runs the job in a guest of this kind. Does not return in a guest that works.
///
/// # Errors
/// [`LabError::Usage`] outside of a guest; what the guest's kernel refuses.
pub fn run(kind: Kind) -> Result<(), LabError> {
    if std::process::id() != 1 {
        return Err(LabError::Usage(
            "`ktsn vm guest` is the first process of a guest; use `ktsn vm run`".to_owned(),
        ));
    }
    for (kind, place) in
        [("proc", "/proc"), ("sysfs", "/sys"), ("devtmpfs", "/dev"), ("tmpfs", "/run"), ("tmpfs", "/tmp")]
    {
        attach(kind, kind, place, "")?;
    }
    attach("devpts", "devpts", "/dev/pts", "")?;
    attach("tmpfs", "tmpfs", "/dev/shm", "")?;
    modules(match kind {
        Kind::Qemu => "virtio_pci virtio_console virtio_net virtio_rng",
        Kind::Uml => "ipv6",
    })?;
    let path = Path::new("/").join(JOB);
    let job = std::fs::read(&path).map_err(|error| LabError::Contents {
        path,
        problem: format!("{error}: the guest's files are not complete; give it more --memory"),
    })?;
    let job = Job::decode(&job).ok_or_else(|| LabError::Usage("the guest's job is damaged".to_owned()))?;
    let mut port = match kind {
        Kind::Qemu => open_port()?,
        Kind::Uml => open_line(uml::PORT)?,
    };
    command::run(None, "ip link set lo up")?;
    if Path::new("/sys/class/net").join(uml::DEVICE).exists() {
        command::run(None, &format!("ip link set {} name eth0", uml::DEVICE))?;
    }
    if job.has_user_network {
        join_user_network()?;
    }
    if !job.address.is_empty() {
        // An IPv6 address serves at once: no other host has it.
        let at_once = if job.address.contains(':') { " nodad" } else { "" };
        command::run(None, &format!("ip addr add {} dev eth0{at_once}", job.address))?;
        command::run(None, "ip link set eth0 up")?;
    }
    // Before the host's tree, in which ktsn may lie elsewhere.
    if job.clock != Clock::None {
        send(&mut port, Message::Clock(br#"{"state":"starting"}"#))?;
    }
    let clock = match GuestClock::start(job.clock, &job.time_server) {
        Ok(clock) => clock,
        Err(LabError::Impossible { what, .. }) => {
            send(&mut port, Message::Impossible(what.as_bytes()))?;
            loop {
                std::thread::sleep(PORT_WITHIN);
            }
        }
        Err(error) => return Err(error),
    };
    if job.in_host_tree {
        enter_host_tree(kind)?;
    }
    send(&mut port, Message::Ready)?;
    let ended = run_program(&job, &mut port)?;
    if let Some(state) = clock.state() {
        send(&mut port, Message::Clock(state.as_bytes()))?;
    }
    for name in &job.bring {
        bring(name, &mut port)?;
    }
    send(&mut port, Message::Ended(ended))?;
    loop {
        std::thread::sleep(PORT_WITHIN);
    }
}

fn attach(kind: &str, source: &str, place: &str, options: &str) -> Result<(), LabError> {
    std::fs::create_dir_all(place).map_err(LabError::file(place))?;
    let options = std::ffi::CString::new(options).map_err(|_| LabError::Usage(options.to_owned()))?;
    mount(source, place, kind, MountFlags::empty(), options.as_c_str())
        .map_err(|error| LabError::File { path: place.into(), source: error.into() })
}

fn modules(names: &str) -> Result<(), LabError> {
    command::run(None, &format!("modprobe -a {names}"))
}

/// The port whose name is [`PORT`].
fn open_port() -> Result<File, LabError> {
    let until = Instant::now() + PORT_WITHIN;
    loop {
        for entry in std::fs::read_dir(PORTS).into_iter().flatten().flatten() {
            let is_ours =
                std::fs::read_to_string(entry.path().join("name")).is_ok_and(|name| name.trim() == PORT);
            let device = PathBuf::from("/dev").join(entry.file_name());
            if is_ours && device.exists() {
                return OpenOptions::new().write(true).open(&device).map_err(LabError::file(&device));
            }
        }
        if Instant::now() >= until {
            return Err(LabError::Usage(format!("no port {PORT} in {PORTS} within {PORT_WITHIN:?}")));
        }
        std::thread::sleep(LOOK_AGAIN);
    }
}

/// A serial line that passes every octet on as it is.
fn open_line(path: &str) -> Result<File, LabError> {
    use rustix::termios::{OptionalActions, tcgetattr, tcsetattr};
    let failed = |error: Errno| LabError::file(path)(error.into());
    let line = OpenOptions::new().read(true).write(true).open(path).map_err(LabError::file(path))?;
    let mut settings = tcgetattr(&line).map_err(failed)?;
    settings.make_raw();
    tcsetattr(&line, OptionalActions::Now, &settings).map_err(failed)?;
    Ok(line)
}

/// Sends a file; what is no file or cannot be opened is not named.
fn bring(name: &Path, port: &mut File) -> Result<(), LabError> {
    let Some(mut file) = name.is_file().then(|| File::open(name).ok()).flatten() else { return Ok(()) };
    send(port, Message::File(name.as_os_str().as_bytes()))?;
    let mut buffer = vec![0; PAYLOAD_OCTETS_MAX];
    loop {
        match file.read(&mut buffer).map_err(LabError::file(name))? {
            0 => return Ok(()),
            octets => send(port, Message::Part(&buffer[..octets]))?,
        }
    }
}

/// The addresses that QEMU's own network expects.
fn join_user_network() -> Result<(), LabError> {
    for line in
        ["ip addr add 10.0.2.15/24 dev eth0", "ip link set eth0 up", "ip route add default via 10.0.2.2"]
    {
        command::run(None, line)?;
    }
    std::fs::write("/etc/resolv.conf", "nameserver 10.0.2.3\n").map_err(LabError::file("/etc/resolv.conf"))
}

/// The host's files become the guest's, below what the guest changes. `/proc`, `/sys`, `/dev`, `/run` and `/tmp` stay the guest's own.
fn enter_host_tree(kind: Kind) -> Result<(), LabError> {
    let [host, guest, changes, work] = HOST;
    match kind {
        Kind::Qemu => {
            attach("9p", HOST_TAG, host, "trans=virtio,version=9p2000.L,cache=loose,msize=524288")?;
        }
        Kind::Uml => attach("hostfs", "none", host, "/")?,
    }
    attach("tmpfs", "tmpfs", guest, "")?;
    for directory in [changes, work] {
        std::fs::create_dir(directory).map_err(LabError::file(directory))?;
    }
    attach("overlay", "overlay", WHOLE, &format!("lowerdir={host},upperdir={changes},workdir={work}"))?;
    for place in ["/proc", "/sys", "/dev"] {
        let inside = format!("{WHOLE}{place}");
        std::fs::create_dir_all(&inside).map_err(LabError::file(&inside))?;
        mount_bind_recursive(place, &inside)
            .map_err(|error| LabError::File { path: inside.into(), source: error.into() })?;
    }
    for place in ["run", "tmp"] {
        attach("tmpfs", "tmpfs", &format!("{WHOLE}/{place}"), "")?;
    }
    for place in [guest_clock::DIRECTORY, guest_clock::CHRONY_DIRECTORY] {
        if Path::new(place).exists() {
            let inside = format!("{WHOLE}{place}");
            std::fs::create_dir_all(&inside).map_err(LabError::file(&inside))?;
            mount_bind_recursive(place, &inside)
                .map_err(|error| LabError::File { path: inside.into(), source: error.into() })?;
        }
    }
    rustix::process::chroot(WHOLE).map_err(|error| LabError::system("chroot")(error.into()))?;
    std::env::set_current_dir("/").map_err(LabError::file("/"))
}

fn send(port: &mut File, message: Message<'_>) -> Result<(), LabError> {
    message.write(port).map_err(LabError::system("the guest's port"))
}

fn run_program(job: &Job, port: &mut File) -> Result<Ended, LabError> {
    let mut program = Command::new(&job.program[0]);
    program.args(&job.program[1..]).env_clear().env("PATH", PATH).env("HOME", "/root").env("LANG", "C.UTF-8");
    let directory = if job.directory.is_dir() { &job.directory } else { Path::new("/") };
    program.current_dir(directory).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = match program.spawn() {
        Ok(child) => child,
        Err(error) => {
            let number = error.raw_os_error().and_then(|number| u8::try_from(number).ok());
            return Ok(Ended::NotStarted(number.unwrap_or(u8::MAX)));
        }
    };
    forward(&mut child, port).map(ended)
}

fn ended(status: ExitStatus) -> Ended {
    let number = |value: i32| u8::try_from(value).unwrap_or(u8::MAX);
    match status.signal() {
        Some(signal) => Ended::Killed(number(signal)),
        None => Ended::Exited(number(status.code().unwrap_or(i32::MAX))),
    }
}

/// One of the program's outputs.
struct Output {
    pipe: Box<dyn Pipe>,
    is_stdout: bool,
    is_open: bool,
}

trait Pipe: Read + AsFd {}
impl<T: Read + AsFd> Pipe for T {}

impl Output {
    /// Sends what is in the pipe, one read of it.
    fn send(&mut self, buffer: &mut [u8], port: &mut File) -> Result<(), LabError> {
        let octets = self.pipe.read(buffer).map_err(LabError::system("read"))?;
        self.is_open = octets > 0;
        let message = if self.is_stdout { Message::Stdout } else { Message::Stderr };
        if octets > 0 { send(port, message(&buffer[..octets])) } else { Ok(()) }
    }
}

/// Sends what the program writes until it has ended, and what is then in its pipes. What its children write later is lost.
fn forward(child: &mut Child, port: &mut File) -> Result<ExitStatus, LabError> {
    let mut outputs = Vec::new();
    if let Some(pipe) = child.stdout.take() {
        outputs.push(Output { pipe: Box::new(pipe), is_stdout: true, is_open: true });
    }
    if let Some(pipe) = child.stderr.take() {
        outputs.push(Output { pipe: Box::new(pipe), is_stdout: false, is_open: true });
    }
    let mut buffer = vec![0; PAYLOAD_OCTETS_MAX];
    let mut rounds_after_end = 0;
    loop {
        outputs.retain(|output| output.is_open);
        if outputs.is_empty() {
            return child.wait().map_err(LabError::system("waitpid"));
        }
        // Before the look into the pipes: what it wrote before its end is in them then.
        let status = child.try_wait().map_err(LabError::system("waitpid"))?;
        let wait_ns = if status.is_some() { 0 } else { LOOK_AGAIN_NS };
        let has_sent = send_readable(&mut outputs, wait_ns, &mut buffer, port)?;
        if let Some(status) = status {
            // A child of the program may hold the pipes open, and write without end.
            rounds_after_end += 1;
            if !has_sent || rounds_after_end == ROUNDS_AFTER_END_MAX {
                return Ok(status);
            }
        }
    }
}

/// Waits until an output can be read, and sends what is in each that can. Whether there was one.
fn send_readable(
    outputs: &mut [Output],
    wait_ns: i64,
    buffer: &mut [u8],
    port: &mut File,
) -> Result<bool, LabError> {
    let readable: Vec<bool> = {
        let mut polled: Vec<PollFd<'_>> = outputs
            .iter()
            .map(|output| PollFd::from_borrowed_fd(output.pipe.as_fd(), PollFlags::IN))
            .collect();
        match poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: wait_ns })) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(LabError::system("poll")(error.into())),
        }
        polled.iter().map(|one| !one.revents().is_empty()).collect()
    };
    for (output, _) in outputs.iter_mut().zip(&readable).filter(|(_, is_readable)| **is_readable) {
        output.send(buffer, port)?;
    }
    Ok(readable.contains(&true))
}
