// SPDX-License-Identifier: Apache-2.0
//! ktsnd as a process: configured, started in a namespace, watched, ended.
//!
//! In: a bed and a configuration. Out: the running process, its log and its control API. Its worker is an ordinary
//! thread (`priority = 0`), so that tests may run side by side.

use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use super::bed::{self, Bed, PODS_B, UPLINK, within};
use super::control::Control;
use super::eventually;
use crate::hook;

/// The name of the attachment that tests use unless they say otherwise.
pub const NAME: &str = "pod-a";

/// ktsnd, built once per test binary.
///
/// # Panics
/// When it does not build.
pub fn binary() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| ktsn_eventually::programs().join("ktsnd"))
}

/// One attachment of the configuration.
#[derive(Clone, Debug)]
pub struct Attachment {
    /// Its name.
    pub name: String,
    /// Name of the pod's namespace.
    pub namespace: String,
    /// Allowed prefixes; none = the peers'.
    pub destinations: Vec<&'static str>,
    /// What becomes of a frame whose TxTime has passed when it is sent.
    pub late: &'static str,
    /// More lines of its table.
    pub more: String,
}

impl Attachment {
    /// Pod A, its frames to pod B by VXLAN. A worker or a program that is not in real time may come late by any span:
    /// frames are sent all the same.
    #[must_use]
    pub fn pod_a(bed: &Bed) -> Self {
        Self {
            name: NAME.to_owned(),
            namespace: bed.pod_a.clone(),
            destinations: Vec::new(),
            late: "send",
            more: "overrun_limit = \"10s\"".to_owned(),
        }
    }

    /// This attachment with these allowed prefixes.
    #[must_use]
    pub fn to(mut self, destinations: &[&'static str]) -> Self {
        self.destinations = destinations.to_vec();
        self
    }

    /// This attachment with the default for late frames: on CLOCK_TAI they are dropped.
    #[must_use]
    pub fn by_clock(self) -> Self {
        Self { late: "by-clock", ..self }
    }

    /// This attachment with one more line of TOML.
    #[must_use]
    pub fn with(mut self, line: &str) -> Self {
        self.more = format!("{}\n{line}", self.more);
        self
    }

    /// Its table, with peers learnt from a device instead of written down.
    #[must_use]
    pub fn learning_from(&self, device: &str) -> String {
        format!("{}overlay = {{ vxlan = {{ learn_from = \"{device}\" }} }}\n", self.head())
    }

    /// Its table.
    #[must_use]
    pub fn toml(&self) -> String {
        self.head()
            + &format!(
                "overlay = {{ vxlan = {{ local = \"192.168.50.1\", peers = [\n  {{ prefix = \"{PODS_B}\", vtep = \
                 \"192.168.50.2\", mac = \"02:00:00:00:01:02\" }},\n  {{ prefix = \"fd10:244:0:1::/64\", vtep = \
                 \"192.168.50.2\", mac = \"02:00:00:00:01:02\" }} ] }} }}\n"
            )
    }

    /// Its table without an overlay: frames leave by the pod's own interface.
    #[must_use]
    pub fn without_overlay(&self) -> String {
        self.head()
    }

    fn head(&self) -> String {
        let mut text = format!(
            "[[attachment]]\nname = \"{}\"\nnetns = \"{}\"\ninterface = \"eth0\"\nuplink = \"{UPLINK}\"\nlate = \"{}\"\n{}\n",
            self.name, self.namespace, self.late, self.more
        );
        if !self.destinations.is_empty() {
            text += &format!("destinations = {:?}\n", self.destinations);
        }
        text
    }
}

/// The table of the uplink.
#[must_use]
pub fn port(adapter: &str) -> String {
    format!("[[port]]\ndevice = \"{UPLINK}\"\npriority = 0\nadapter = \"{adapter}\"\n")
}

/// The last CPU that the tests may use: a worker that keeps to it sends a veth's frames in order. From another one they
/// may overtake what was sent before.
///
/// # Panics
/// When the kernel does not tell.
#[must_use]
pub fn worker_cpu() -> usize {
    let all = rustix::thread::sched_getaffinity(None).expect("the CPUs");
    (0..rustix::thread::CpuSet::MAX_CPU).rev().find(|cpu| all.is_set(*cpu)).expect("a CPU")
}

/// The TOML of a port with a worker that keeps to one CPU.
#[must_use]
pub fn pinned_port(adapter: &str) -> String {
    format!("{}cpu = {}\n", port(adapter), worker_cpu())
}

/// A whole configuration.
#[must_use]
pub fn configuration(attachments: &[Attachment]) -> String {
    let tables: Vec<String> = attachments.iter().map(Attachment::toml).collect();
    format!("{}{}", port("auto"), tables.concat())
}

/// A run directory with a configuration file, and what runs there.
#[derive(Debug)]
pub struct Daemon {
    directory: tempfile::TempDir,
    run_dir: PathBuf,
    namespace: String,
    program: Option<PathBuf>,
    environment: Vec<(&'static str, OsString)>,
    log_filter: &'static str,
    child: Option<Child>,
}

impl Daemon {
    /// ktsnd on host A with these attachments, serving.
    ///
    /// # Panics
    /// When it does not come to serve.
    #[must_use]
    pub fn start(bed: &Bed, attachments: &[Attachment]) -> Self {
        let mut daemon = Self::prepare(&bed.host_a, &configuration(attachments));
        daemon.spawn();
        daemon
    }

    /// Starts a daemon with a worker that keeps to one CPU, for tests in which the order of frames counts.
    ///
    /// # Panics
    /// When it does not come to serve.
    #[must_use]
    pub fn start_in_order(bed: &Bed, attachments: &[Attachment]) -> Self {
        let tables: Vec<String> = attachments.iter().map(Attachment::toml).collect();
        let mut daemon = Self::prepare(&bed.host_a, &format!("{}{}", pinned_port("auto"), tables.concat()));
        daemon.spawn();
        daemon
    }

    /// Writes the configuration; nothing runs yet.
    ///
    /// # Panics
    /// When the files cannot be written.
    #[must_use]
    pub fn prepare(namespace: &str, configuration: &str) -> Self {
        let directory = hook::open_directory();
        std::fs::write(directory.path().join("ktsnd.toml"), configuration).expect("configuration");
        let run_dir = directory.path().join("run");
        let (namespace, environment) = (namespace.to_owned(), Vec::new());
        let log_filter = "info,ktsnd=debug";
        Self { directory, run_dir, namespace, program: None, environment, log_filter, child: None }
    }

    /// This daemon in another run directory.
    #[must_use]
    pub fn at(mut self, run_dir: &Path) -> Self {
        run_dir.clone_into(&mut self.run_dir);
        self
    }

    /// This daemon with another ktsnd program.
    #[must_use]
    pub fn of(mut self, program: &Path) -> Self {
        self.program = Some(program.to_owned());
        self
    }

    /// This daemon with an environment variable.
    #[must_use]
    pub fn with_variable(mut self, name: &'static str, value: impl Into<OsString>) -> Self {
        self.environment.push((name, value.into()));
        self
    }

    /// This daemon with the default log level: timed code must not wait for the log.
    #[must_use]
    pub fn logging_as_shipped(mut self) -> Self {
        self.log_filter = "info";
        self
    }

    /// The command line that starts it; inside the namespace when it is run by [`within`].
    #[must_use]
    pub fn command(&self) -> Command {
        let mut command = Command::new(self.program.as_deref().unwrap_or_else(|| binary()));
        command
            .arg("--config")
            .arg(self.directory.path().join("ktsnd.toml"))
            .arg("--run-dir")
            .arg(&self.run_dir)
            .args(["--log", self.log_filter])
            .env("KTSN_CACHE_DIR", self.directory.path().join("cache"))
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null());
        command
    }

    /// Starts it and waits until it serves.
    ///
    /// # Panics
    /// When it does not come to serve.
    pub fn spawn(&mut self) {
        self.spawn_as(self.command());
        eventually("ktsnd serves", Duration::from_secs(30), || {
            let ended = self.child.as_mut().and_then(|c| c.try_wait().ok().flatten());
            assert!(ended.is_none(), "ktsnd ended: {}", self.log());
            Control::connect(&self.run_dir).ok()?.health().ok()
        });
    }

    /// Starts it with `--take-over`, and waits until it waits for the end of the ktsnd that has its run directory.
    ///
    /// # Panics
    /// When it does not come to wait.
    pub fn spawn_waiting(&mut self) {
        let mut command = self.command();
        command.args(["--take-over", "60"]);
        self.spawn_as(command);
        self.until_logged("waits for pid");
    }

    fn spawn_as(&mut self, mut command: Command) {
        let log = File::options().create(true).append(true).open(self.log_path()).expect("log");
        command.stdout(Stdio::null()).stderr(log);
        self.child = Some(within(&self.namespace, || command.spawn()).expect("ktsnd"));
    }

    /// Waits until its log has this text.
    ///
    /// # Panics
    /// When it ends, or does not log it.
    pub fn until_logged(&mut self, text: &str) {
        eventually(text, Duration::from_secs(30), || {
            assert!(self.has_ended().is_none(), "ktsnd ended: {}", self.log());
            self.log().contains(text)
        });
    }

    /// Runs it to its end, for a start that must fail. One that serves instead is killed after 30 s.
    ///
    /// # Panics
    /// When it does not end.
    #[must_use]
    pub fn fails(&self, command: &mut Command) -> (Option<i32>, String) {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = within(&self.namespace, || command.spawn()).expect("ktsnd");
        let mut running = hook::Running(child);
        eventually("ktsnd refuses to start", Duration::from_secs(30), || running.0.try_wait().ok().flatten());
        let output = take_output(&mut running);
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    }

    /// Its run directory.
    #[must_use]
    pub fn run_dir(&self) -> &Path {
        &self.run_dir
    }

    fn log_path(&self) -> PathBuf {
        self.directory.path().join("log")
    }

    /// What it has logged so far.
    #[must_use]
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.log_path()).unwrap_or_default()
    }

    /// Its control API.
    ///
    /// # Panics
    /// When it does not answer.
    #[must_use]
    pub fn control(&self) -> Control {
        Control::connect(&self.run_dir).expect("control API")
    }

    /// Whether it has ended by itself, and how.
    pub fn has_ended(&mut self) -> Option<std::process::ExitStatus> {
        self.child.as_mut()?.try_wait().ok().flatten()
    }

    /// Its process.
    ///
    /// # Panics
    /// When it does not run.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("running").id()
    }

    /// Number of its open descriptors.
    ///
    /// # Panics
    /// When it does not run.
    #[must_use]
    pub fn descriptors(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.pid())).expect("descriptors").count()
    }

    /// Numbers of its bpf links.
    ///
    /// # Panics
    /// When it does not run.
    #[must_use]
    pub fn links(&self) -> Vec<u32> {
        self.bpf_numbers("link_id:")
    }

    /// Numbers of the bpf objects that it holds, of the kind that this field of fdinfo names.
    ///
    /// # Panics
    /// When it does not run.
    #[must_use]
    pub fn bpf_numbers(&self, field: &str) -> Vec<u32> {
        let entries = std::fs::read_dir(format!("/proc/{}/fdinfo", self.pid())).expect("descriptors");
        let texts = entries.flatten().filter_map(|entry| std::fs::read_to_string(entry.path()).ok());
        let number =
            |text: String| text.lines().find_map(|line| line.strip_prefix(field)?.trim().parse().ok());
        texts.filter_map(number).collect()
    }

    /// What its descriptors are, for a message.
    #[must_use]
    pub fn descriptor_kinds(&self) -> std::collections::BTreeMap<String, usize> {
        let mut kinds = std::collections::BTreeMap::new();
        for entry in std::fs::read_dir(format!("/proc/{}/fd", self.pid())).into_iter().flatten().flatten() {
            let target = std::fs::read_link(entry.path()).unwrap_or_default().display().to_string();
            let kind = target.split([':', '[']).next().unwrap_or_default().to_owned();
            *kinds.entry(kind).or_insert(0) += 1;
        }
        kinds
    }

    /// Its resident memory, KiB.
    ///
    /// # Panics
    /// When it does not run.
    #[must_use]
    pub fn resident_kib(&self) -> usize {
        self.memory_kib("VmRSS:")
    }

    /// The most resident memory that it has ever had, KiB.
    ///
    /// # Panics
    /// When it does not run.
    #[must_use]
    pub fn resident_kib_max(&self) -> usize {
        self.memory_kib("VmHWM:")
    }

    fn memory_kib(&self, field: &str) -> usize {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).expect("status");
        let line = status.lines().find_map(|l| l.strip_prefix(field)).expect("a field of status");
        line.trim().trim_end_matches(" kB").parse().expect("KiB")
    }

    /// SIGKILL; it is gone when this returns.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// SIGTERM; the code that it ended with.
    ///
    /// # Panics
    /// When it does not end within `limit`.
    pub fn terminate(&mut self, limit: Duration) -> Option<i32> {
        let mut child = self.child.take()?;
        let pid = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("signal");
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            eventually("ktsnd drains", limit, || child.try_wait().ok().flatten())
        }));
        let _ = child.kill();
        let _ = child.wait();
        ended.unwrap_or_else(|_| panic!("ktsnd did not end within {limit:?}: {}", self.log())).code()
    }

    /// Number of clients of all attachments.
    #[must_use]
    pub fn clients(&self) -> usize {
        self.control().list().attachments.iter().map(|a| a.clients.len()).sum()
    }

    /// A program inside `namespace` with the library preloaded, for this daemon; its standard input is open until a test
    /// closes it.
    ///
    /// # Panics
    /// When it cannot be started.
    #[must_use]
    pub fn program(&self, namespace: &str, program: &Path, arguments: &[String]) -> Child {
        let mut command = hook::hooked(program, &self.run_dir);
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        within(namespace, || command.spawn()).expect("program")
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            eprintln!("ktsnd's log:\n{}", self.log());
        }
    }
}

fn take_output(running: &mut hook::Running) -> Output {
    use std::io::Read as _;
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    if let Some(mut pipe) = running.0.stdout.take() {
        let _ = pipe.read_to_end(&mut stdout);
    }
    if let Some(mut pipe) = running.0.stderr.take() {
        let _ = pipe.read_to_end(&mut stderr);
    }
    Output { status: running.0.wait().expect("ended"), stdout, stderr }
}

/// The path that a configuration names for a namespace.
#[must_use]
pub fn namespace_path(namespace: &str) -> String {
    bed::path(namespace)
}
