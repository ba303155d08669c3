// SPDX-License-Identifier: Apache-2.0
//! A private Open vSwitch (Debian's openvswitch-switch-dpdk), with DPDK or without: database, sockets, logs and huge pages in a directory
//! of its own.
//!
//! In: a namespace, and how the switch may use the machine. Out: a running switch without any bridge, and calls that make bridges
//! and ports. It touches neither PCI nor the system's own Open vSwitch. Everything ends with the value, the reserved huge pages
//! too.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::command::output_of;
use crate::error::LabError;
use crate::process::{Process, Program};
use crate::sys;

mod left;
mod pages;

pub use left::sweep;
use left::{NOTED_PAGES, PREFIX};
pub(crate) use left::{is_used, sweep_in};
use pages::{HUGE_FILES, HugeFiles, PAGE_MIB, Pages};

const SWITCH: &str = "/usr/lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk";
const SCHEMA: &str = "/usr/share/openvswitch/vswitch.ovsschema";
/// DPDK prepares its memory before the switch answers: seconds, on a busy machine many.
const START_MAX: Duration = Duration::from_secs(90);
const STEP: Duration = Duration::from_millis(20);

/// How the switch may use the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// The CPU of its polling thread.
    pub cpu: usize,
    /// The CPU of all its other threads.
    pub main_cpu: usize,
    /// What that thread does when it found nothing.
    pub polling: Polling,
    /// Huge pages of the switch in MiB (`dpdk-socket-mem`, `dpdk-socket-limit`): one port and its buffers take some 200. Without DPDK
    /// none are needed.
    pub memory_mib: u32,
    /// Whether the switch has DPDK, which vhost-user ports need.
    pub dpdk: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { cpu: 0, main_cpu: 0, polling: Polling::default(), memory_mib: 512, dpdk: true }
    }
}

/// What the polling thread does when it found nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Polling {
    /// It sleeps for so many microseconds at most (`pmd-maxsleep`), as an ordinary thread.
    Sleeps {
        /// Microseconds.
        us_max: u32,
    },
    /// It never sleeps, as an ordinary thread with this nice value: it needs its CPU for itself. Under SCHED_FIFO the kernel would
    /// stop it for up to 50 ms in each second.
    Spins {
        /// The nice value.
        nice: i8,
    },
}

impl Default for Polling {
    fn default() -> Self {
        Self::Sleeps { us_max: 50 }
    }
}

/// A running switch. Fields end in this order.
#[derive(Debug)]
pub struct Ovs {
    switch: Option<Process>,
    _database: Process,
    _files: Option<HugeFiles>,
    _pages: Option<Pages>,
    namespace: String,
    directory: tempfile::TempDir,
    options: Options,
}

/// What Debian packages the switch needs and this machine lacks; `None`: nothing.
#[must_use]
pub fn missing() -> Option<&'static str> {
    let is_there = Path::new(SWITCH).exists() && Path::new(SCHEMA).exists();
    (!is_there).then_some("openvswitch-switch-dpdk")
}

impl Ovs {
    /// Starts database and switch in a network namespace.
    ///
    /// # Errors
    /// A program or huge pages are missing, or the switch does not come up; nothing stays.
    pub fn start(namespace: &str, options: &Options) -> Result<Self, LabError> {
        sweep();
        let prefix = format!("{PREFIX}{}-", std::process::id());
        let directory = tempfile::Builder::new().prefix(&prefix).tempdir();
        let directory = directory.map_err(LabError::system("mkdir"))?;
        let place = directory.path();
        let count = options.memory_mib / PAGE_MIB;
        let pages = options.dpdk.then(|| Pages::reserve(count)).transpose()?;
        if pages.is_some() {
            // For a process that cannot give them back.
            let noted = place.join(NOTED_PAGES);
            std::fs::write(&noted, count.to_string()).map_err(LabError::file(&noted))?;
        }
        let files = options.dpdk.then(|| HugeFiles::mount(place.join(HUGE_FILES))).transpose()?;
        let database = place.join("conf.db");
        run(place, "ovsdb-tool", &["create".as_ref(), database.as_os_str(), SCHEMA.as_ref()])?;
        let socket = place.join("db.sock");
        let database = Program::new("ovsdb-server", Path::new("ovsdb-server"))
            .args([database.as_os_str()])
            .args([format!("--remote=punix:{}", socket.display())])
            .args([format!("--unixctl={}", place.join("db.ctl").display())]);
        let database = private(database, place).within(namespace).start(place)?;
        let mut ovs = Self {
            switch: None,
            _database: database,
            _files: files,
            _pages: pages,
            namespace: namespace.to_owned(),
            directory,
            options: *options,
        };
        ovs.wait_for(&socket, "the database")?;
        ovs.vsctl(&["--no-wait", "init"])?;
        ovs.configure(options)?;
        ovs.start_switch()?;
        Ok(ovs)
    }

    fn configure(&self, options: &Options) -> Result<(), LabError> {
        // It keeps off PCI: else DPDK would look at the machine's own network card.
        let prefix = self.directory.path().file_name().unwrap_or_default().to_string_lossy().into_owned();
        let sleep_us_max = match options.polling {
            Polling::Sleeps { us_max } => us_max,
            Polling::Spins { .. } => 0,
        };
        let dpdk = [
            ("dpdk-init", "true".to_owned()),
            ("dpdk-extra", format!("\"--no-pci --no-telemetry --file-prefix={prefix}\"")),
            ("dpdk-hugepage-dir", format!("\"{}\"", self.directory.path().join(HUGE_FILES).display())),
            ("dpdk-socket-mem", format!("\"{}\"", options.memory_mib)),
            // Without a limit the switch takes every page that it finds.
            ("dpdk-socket-limit", format!("\"{}\"", options.memory_mib)),
            ("dpdk-lcore-mask", format!("\"{:#x}\"", 1_u64 << options.main_cpu)),
        ];
        let polling = [
            ("pmd-cpu-mask", format!("\"{:#x}\"", 1_u64 << options.cpu)),
            ("pmd-maxsleep", format!("\"{sleep_us_max}\"")),
        ];
        for (key, value) in dpdk.into_iter().filter(|_| options.dpdk).chain(polling) {
            self.vsctl(&["--no-wait", "set", "Open_vSwitch", ".", &format!("other_config:{key}={value}")])?;
        }
        Ok(())
    }

    /// Starts the switch, which has ended or was killed. Bridges and ports come back from the database.
    ///
    /// # Errors
    /// It does not come up.
    pub fn start_switch(&mut self) -> Result<(), LabError> {
        self.switch = None;
        let place = self.directory.path();
        let control = self.control();
        let _none = std::fs::remove_file(&control);
        // DPDK places its main thread itself.
        let switch = match self.options.dpdk {
            true => Program::new("ovs-vswitchd", Path::new(SWITCH)),
            false => Program::new("ovs-vswitchd", Path::new("taskset")).args([
                "-c",
                &self.options.main_cpu.to_string(),
                SWITCH,
            ]),
        };
        let switch = switch
            .args([format!("unix:{}", place.join("db.sock").display())])
            .args([format!("--unixctl={}", control.display())]);
        self.switch = Some(private(switch, place).within(&self.namespace).start(place)?);
        self.wait_for(&control, "the switch")?;
        // It answers only when DPDK is up, if it has that.
        self.appctl(&["version"]).map(drop)
    }

    fn wait_for(&mut self, socket: &Path, what: &str) -> Result<(), LabError> {
        let begun = Instant::now();
        while !socket.exists() {
            if let Some(switch) = &mut self.switch
                && switch.wait_any(Duration::ZERO)?.is_some()
            {
                return Err(switch.failed("ended before it served".to_owned()));
            }
            if begun.elapsed() > START_MAX {
                let what = format!("{what} does not answer within {START_MAX:?}");
                return Err(LabError::Impossible { what, remedy: "a machine with less load".to_owned() });
            }
            std::thread::sleep(STEP);
        }
        Ok(())
    }

    /// Stops all threads of the switch, until [`Self::go_on`]: they use no CPU. Connections stay.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn pause(&self) -> Result<(), LabError> {
        self.switch.as_ref().map_or(Ok(()), Process::pause)
    }

    /// Lets the threads of a paused switch go on, the polling thread under the scheduling that was asked for.
    ///
    /// # Errors
    /// The kernel refuses, or there is no polling thread.
    pub fn go_on(&self) -> Result<(), LabError> {
        let Some(switch) = &self.switch else { return Ok(()) };
        switch.go_on()?;
        self.place_polling_thread()
    }

    /// Gives the polling thread the scheduling that was asked for. There is one only while there are ports to poll.
    ///
    /// # Errors
    /// The kernel refuses, or there is no polling thread.
    pub fn place_polling_thread(&self) -> Result<(), LabError> {
        let Some(switch) = &self.switch else { return Ok(()) };
        if let Polling::Spins { nice } = self.options.polling {
            let (nice, thread) = (nice.to_string(), polling_thread(switch.pid())?);
            let arguments = ["-n".as_ref(), nice.as_ref(), "-p".as_ref(), thread.as_ref()];
            run(self.directory.path(), "renice", &arguments)?;
        }
        Ok(())
    }

    /// Whether the switch has not ended.
    ///
    /// # Errors
    /// It has ended; the error shows how, and what it said.
    pub fn check_running(&mut self) -> Result<(), LabError> {
        let Some(switch) = &mut self.switch else { return Ok(()) };
        match switch.wait_any(Duration::ZERO)? {
            Some(_) => Err(switch.failed("ended while it was needed".to_owned())),
            None => Ok(()),
        }
    }

    /// Kills the switch, as a crash does.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn kill(&mut self) -> Result<(), LabError> {
        match &mut self.switch {
            Some(switch) => switch.kill(),
            None => Ok(()),
        }
    }

    /// Makes a bridge in user space.
    ///
    /// # Errors
    /// The switch's.
    pub fn add_bridge(&self, bridge: &str) -> Result<(), LabError> {
        self.vsctl(&["add-br", bridge, "--", "set", "bridge", bridge, "datapath_type=netdev"]).map(drop)
    }

    /// Adds a port to a vhost-user front end that listens at `socket`.
    ///
    /// # Errors
    /// The switch's.
    pub fn add_front_end(
        &self,
        bridge: &str,
        port: &str,
        socket: &Path,
        queues: u16,
    ) -> Result<(), LabError> {
        let path = format!("options:vhost-server-path={}", socket.display());
        let queues = format!("options:n_rxq={queues}");
        let kind = "type=dpdkvhostuserclient";
        self.vsctl(&["add-port", bridge, port, "--", "set", "Interface", port, kind, &path, &queues])
            .map(drop)
    }

    /// Adds a network device of the switch's namespace, by a packet socket.
    ///
    /// # Errors
    /// The switch's.
    pub fn add_device(&self, bridge: &str, device: &str) -> Result<(), LabError> {
        self.vsctl(&["add-port", bridge, device]).map(drop)
    }

    /// Pins a station to a port: what others send in its name moves it no more.
    ///
    /// # Errors
    /// The switch's.
    pub fn pin(&self, bridge: &str, port: &str, mac: &str) -> Result<(), LabError> {
        self.appctl(&["fdb/add", bridge, port, "0", mac]).map(drop)
    }

    /// Frames that a port has received since the switch was last started.
    ///
    /// # Errors
    /// The switch's, or it has no such port.
    pub fn received(&self, port: &str) -> Result<u64, LabError> {
        let shown = self.appctl(&["dpctl/show", "-s"])?;
        received_in(&shown, port).ok_or_else(|| LabError::Contents {
            path: "dpctl/show".into(),
            problem: format!("expected the packets of the port {port}, got:\n{shown}"),
        })
    }

    /// Runs `ovs-vsctl`. Returns what it printed.
    ///
    /// # Errors
    /// It failed, or waited for longer than 30 s.
    pub fn vsctl(&self, arguments: &[&str]) -> Result<String, LabError> {
        let database = format!("--db=unix:{}", self.directory.path().join("db.sock").display());
        let mut all = vec![OsStr::new("--timeout=30"), database.as_ref()];
        all.extend(arguments.iter().map(OsStr::new));
        run(self.directory.path(), "ovs-vsctl", &all)
    }

    /// Runs `ovs-appctl` on the switch. Returns what it printed.
    ///
    /// # Errors
    /// It failed, or waited for longer than 30 s.
    pub fn appctl(&self, arguments: &[&str]) -> Result<String, LabError> {
        let control = self.control();
        let mut all = vec![OsStr::new("--timeout=30"), OsStr::new("-t"), control.as_os_str()];
        all.extend(arguments.iter().map(OsStr::new));
        run(self.directory.path(), "ovs-appctl", &all)
    }

    fn control(&self) -> PathBuf {
        self.directory.path().join("switch.ctl")
    }

    /// What the switch has logged since it was last started.
    #[must_use]
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.directory.path().join("ovs-vswitchd.log")).unwrap_or_default()
    }
}

/// The received packets of a port in what `dpctl/show -s` prints.
fn received_in(shown: &str, port: &str) -> Option<u64> {
    let name = format!(": {port} (");
    let mut lines = shown.lines().skip_while(|line| !line.contains(&name)).skip(1);
    let packets = lines.next()?.trim().strip_prefix("RX packets:")?;
    packets.split_whitespace().next()?.parse().ok()
}

/// The number of the thread that polls the ports of a switch.
fn polling_thread(pid: u32) -> Result<String, LabError> {
    let tasks = PathBuf::from(format!("/proc/{pid}/task"));
    let threads = std::fs::read_dir(&tasks).map_err(LabError::file(&tasks))?.flatten();
    let is_polling = |name: std::io::Result<String>| name.is_ok_and(|name| name.starts_with("pmd-"));
    let mut polling =
        threads.filter(|thread| is_polling(std::fs::read_to_string(thread.path().join("comm"))));
    polling.next().map(|thread| thread.file_name().to_string_lossy().into_owned()).ok_or_else(|| {
        LabError::Contents {
            path: tasks.clone(),
            problem: "expected a thread pmd-…: the switch has no port to poll".to_owned(),
        }
    })
}

const PLACES: [&str; 4] = ["OVS_RUNDIR", "OVS_DBDIR", "OVS_LOGDIR", "OVS_SYSCONFDIR"];

/// A program whose files lie in `place`; DPDK's runtime directory as well.
fn private(program: Program, place: &Path) -> Program {
    PLACES.iter().chain(&["RUNTIME_DIRECTORY"]).fold(program, |program, key| program.env(key, place))
}

fn run(place: &Path, program: &str, arguments: &[&OsStr]) -> Result<String, LabError> {
    let mut command = Command::new(program);
    command.args(arguments).envs(PLACES.map(|key| (key, place))).stdin(Stdio::null());
    sys::inherit(&mut command, &[]);
    let shown = || format!("{program} {}", arguments.join(OsStr::new(" ")).to_string_lossy());
    output_of(command, shown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_packets_of_a_port_are_found_by_its_name() {
        let shown = "netdev@ovs-netdev:\n  lookups: hit:9 missed:1 lost:0\n  port 3: pod-a-2 (tap)\n    RX packets:9 errors:0\n  \
                     port 4: pod-a (dpdkvhostuserclient: configured_rx_queues=1)\n    RX packets:1234 errors:0 dropped:0\n    TX packets:7\n";
        assert_eq!(received_in(shown, "pod-a"), Some(1234));
        assert_eq!((received_in(shown, "pod"), received_in("", "pod-a")), (None, None));
    }
}
