// SPDX-License-Identifier: Apache-2.0
//! Two hosts with an uplink between them, as namespaces of this machine, each with a bridge, a virtual switch, or neither.
//!
//! In: which datapath. Out: a [`Site`] with its names, and what its devices have counted. It is removed on drop; what a killed process
//! left, the next one or `ktsn vm clean` sweeps. Nothing is made in the caller's own namespace.
//!
//! ```text
//!   host A                                      host B
//!   guest ── tap ┐                        ┌ tap ── guest           bridge
//!   guest ══ vhost-user ── OVS-DPDK ┐  ┌ OVS-DPDK ══ vhost-user    ovs-dpdk
//!                        br0 ─ uplink ═══ uplink ─ br0             MTU 1500, a veth pair
//!   sender of the load ── load ┘                 └ load ── its receiver
//! ```

use super::plan::{Datapath, Load};
use crate::command::{output, run};
use crate::error::LabError;
use crate::ovs::{self, Ovs, Polling};
use crate::process::{Process, Program};
use crate::testbed::{check_rights, namespace_path, new_stem};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The bridge of each host.
pub(super) const BRIDGE: &str = "br0";
/// The device between the hosts.
pub(super) const UPLINK: &str = "uplink";
/// The guest's tap device, or its port of the virtual switch.
pub(super) const GUEST: &str = "guest";
/// The device of the load, at the bridge and in the load's own namespace.
const LOAD: &str = "load";
/// The uplink's port of the virtual switch.
const UPLINK_PORT: &str = "up0";
/// Addresses of publisher and subscriber.
pub(super) const ADDRESSES: [&str; 2] = ["10.77.0.2", "10.77.0.3"];
/// Length of their prefix.
pub(super) const PREFIX: u8 = 24;
/// Addresses of the load's sender and receiver.
const LOAD_ADDRESSES: [&str; 2] = ["10.77.0.12", "10.77.0.13"];
/// Queues of the uplink: enough for mqprio without guests.
const UPLINK_QUEUES: u32 = 4;
/// iperf3's port.
const LOAD_PORT: &str = "5201";
/// Octets of payload of the load's datagrams.
const LOAD_OCTETS: u32 = 1400;
/// Longest wait for the load's first frames.
const LOAD_WITHIN: Duration = Duration::from_secs(10);
/// Most sleep of the virtual switch's polling thread: it shares its CPU.
const SWITCH_SLEEP_US: u32 = 50;
/// Huge pages of each virtual switch, MiB.
const SWITCH_MIB: u32 = 512;

/// The MAC address that belongs to an address: a guest has the same.
pub(super) fn mac_of(address: &str) -> String {
    let octets = address.split('.').filter_map(|octet| octet.parse::<u8>().ok());
    octets.fold("02:4b".to_owned(), |mac, octet| format!("{mac}:{octet:02x}"))
}

/// One host.
#[derive(Debug)]
pub(super) struct Host {
    /// Its namespace.
    pub(super) namespace: String,
    /// Where the load's program runs.
    load_namespace: String,
    /// The CPU of its guest and its switch.
    pub(super) cpu: usize,
}

/// Two hosts; removed on drop. Fields end in this order: the switch that was started last gives its huge pages back first.
#[derive(Debug)]
pub(super) struct Site {
    switch_b: Option<Ovs>,
    switch_a: Option<Ovs>,
    pub(super) datapath: Datapath,
    pub(super) hosts: [Host; 2],
    directory: PathBuf,
}

impl Site {
    /// Sets it up. Files of switches and load lie in `directory`.
    ///
    /// # Errors
    /// [`LabError::Impossible`] without root's rights, OVS or huge pages; else what failed. Nothing is left behind.
    pub(super) fn new(datapath: Datapath, directory: &Path) -> Result<Self, LabError> {
        check_rights()?;
        if datapath == Datapath::OvsDpdk
            && let Some(package) = ovs::missing()
        {
            return Err(LabError::Impossible {
                what: format!("Debian's package {package} is not installed"),
                remedy: "`make setup`, or leave ovs-dpdk out with --datapath".to_owned(),
            });
        }
        let stem = new_stem()?;
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let host = |letter: char, number: usize| Host {
            namespace: format!("{stem}v{letter}"),
            load_namespace: format!("{stem}l{letter}"),
            cpu: number.min(cpus - 1),
        };
        let hosts = [host('a', 0), host('b', 1)];
        // Made before anything exists, so that a failure on the way removes what already does.
        let mut site =
            Self { switch_b: None, switch_a: None, datapath, hosts, directory: directory.to_owned() };
        site.connect()?;
        Ok(site)
    }

    fn connect(&mut self) -> Result<(), LabError> {
        for name in self.namespaces() {
            run(None, &format!("ip netns add {name}"))?;
            run(None, &format!("ip -n {name} link set lo up"))?;
        }
        let [a, b] = &self.hosts;
        let queues = format!("numtxqueues {UPLINK_QUEUES} numrxqueues 1");
        run(
            None,
            &format!(
                "ip -n {} link add {UPLINK} {queues} type veth peer name {UPLINK} {queues} netns {}",
                a.namespace, b.namespace
            ),
        )?;
        for (host, address) in self.hosts.iter().zip(ADDRESSES) {
            let ns = &host.namespace;
            if self.datapath == Datapath::NoVm {
                run(None, &format!("ip -n {ns} link set {UPLINK} address {}", mac_of(address)))?;
                run(None, &format!("ip -n {ns} addr add {address}/{PREFIX} dev {UPLINK}"))?;
            }
            run(None, &format!("ip -n {ns} link set {UPLINK} up"))?;
        }
        match self.datapath {
            Datapath::NoVm => Ok(()),
            Datapath::Bridge => self.connect_load(|host| {
                let ns = &host.namespace;
                run(None, &format!("ip -n {ns} link add {BRIDGE} type bridge"))?;
                for device in [UPLINK, LOAD] {
                    run(None, &format!("ip -n {ns} link set {device} master {BRIDGE}"))?;
                }
                run(None, &format!("ip -n {ns} link set {BRIDGE} up"))
            }),
            Datapath::OvsDpdk => {
                self.connect_load(|_| Ok(()))?;
                self.switch_a = Some(self.switch(0)?);
                self.switch_b = Some(self.switch(1)?);
                Ok(())
            }
        }
    }

    /// The load's namespaces, each with a device whose other end is the host's; then `attach` for each host.
    fn connect_load(&self, attach: impl Fn(&Host) -> Result<(), LabError>) -> Result<(), LabError> {
        for (host, address) in self.hosts.iter().zip(LOAD_ADDRESSES) {
            let (ns, load) = (&host.namespace, &host.load_namespace);
            run(None, &format!("ip -n {load} link add {LOAD} type veth peer name {LOAD} netns {ns}"))?;
            run(None, &format!("ip -n {load} addr add {address}/{PREFIX} dev {LOAD}"))?;
            // A switch in user space gets no checksums that a device would have to fill in.
            run(Some(load.as_str()), &format!("ethtool -K {LOAD} tx off"))?;
            for space in [ns, load] {
                run(None, &format!("ip -n {space} link set {LOAD} up"))?;
            }
            attach(host)?;
        }
        Ok(())
    }

    /// A virtual switch on a host, with the uplink, the guest's socket and the load.
    fn switch(&self, number: usize) -> Result<Ovs, LabError> {
        let host = &self.hosts[number];
        let options = ovs::Options {
            cpu: host.cpu,
            main_cpu: host.cpu,
            polling: Polling::Sleeps { us_max: SWITCH_SLEEP_US },
            memory_mib: SWITCH_MIB,
            dpdk: true,
        };
        let switch = Ovs::start(&host.namespace, &options)?;
        switch.add_bridge(BRIDGE)?;
        let device = format!("options:dpdk-devargs=net_af_packet0,iface={UPLINK}");
        switch.vsctl(&[
            "add-port",
            BRIDGE,
            UPLINK_PORT,
            "--",
            "set",
            "Interface",
            UPLINK_PORT,
            "type=dpdk",
            &device,
        ])?;
        switch.add_front_end(BRIDGE, GUEST, &self.socket(number), 1)?;
        switch.add_device(BRIDGE, LOAD)?;
        Ok(switch)
    }

    /// The socket of a host's guest.
    pub(super) fn socket(&self, number: usize) -> PathBuf {
        self.directory.join(format!("{GUEST}-{number}.sock"))
    }

    /// # Errors
    /// A virtual switch has ended, with its log.
    pub(super) fn check_switches(&mut self) -> Result<(), LabError> {
        [&mut self.switch_a, &mut self.switch_b].into_iter().flatten().try_for_each(Ovs::check_running)
    }

    fn namespaces(&self) -> impl Iterator<Item = &str> {
        self.hosts.iter().flat_map(|host| [host.namespace.as_str(), host.load_namespace.as_str()])
    }

    /// Frames that the hosts' devices and switches have dropped so far, by place and reason.
    ///
    /// # Errors
    /// The counters cannot be read.
    pub(super) fn dropped(&self) -> Result<BTreeMap<String, u64>, LabError> {
        let mut dropped = BTreeMap::new();
        for (host, name) in self.hosts.iter().zip(["publisher's host", "subscriber's host"]) {
            let links = output(None, &format!("ip -n {} -s -j link show", host.namespace))?;
            super::counters::put_links(&mut dropped, name, &links);
        }
        let switches = [&self.switch_a, &self.switch_b];
        for (switch, name) in switches.into_iter().zip(["publisher's switch", "subscriber's switch"]) {
            let Some(switch) = switch else { continue };
            for port in [GUEST, UPLINK_PORT, LOAD] {
                let counted = switch.vsctl(&["get", "Interface", port, "statistics"])?;
                super::counters::put_switch(&mut dropped, &format!("{name}, {port}"), &counted);
            }
        }
        Ok(dropped)
    }

    /// Starts the load, and waits until it flows.
    ///
    /// # Errors
    /// A program is missing or ended.
    pub(super) fn start_load(&self, load: Load, mbit: u32) -> Result<Vec<Process>, LabError> {
        if load == Load::Idle {
            return Ok(Vec::new());
        }
        let [a, b] = &self.hosts;
        let (from, to, address) = if self.datapath == Datapath::NoVm {
            (&a.namespace, &b.namespace, ADDRESSES[1])
        } else {
            (&a.load_namespace, &b.load_namespace, LOAD_ADDRESSES[1])
        };
        let iperf3 = |name: &str, cpu: usize, namespace: &str| {
            Program::new(name, Path::new("nice"))
                .args(["-n", "19", "iperf3", "--port", LOAD_PORT, "--affinity"])
                .args([cpu.to_string()])
                .within(namespace)
        };
        let mut running = Vec::new();
        running.push(
            iperf3("load-receiver", b.cpu, to)
                .args(["--server", "--bind", address])
                .start(&self.directory)?,
        );
        let begun = Instant::now();
        while output(Some(to), &format!("ss -Hltn sport = :{LOAD_PORT}"))?.trim().is_empty() {
            self.check_load(&mut running, begun)?;
        }
        running.push(
            iperf3("load-sender", a.cpu, from)
                .args(["--client", address, "--udp", "--time=86400", "--interval=0"])
                .args([format!("--bitrate={mbit}M"), format!("--length={LOAD_OCTETS}")])
                .start(&self.directory)?,
        );
        let begun = Instant::now();
        let before = self.load_octets()?;
        while self.load_octets()? < before + 100 * u64::from(LOAD_OCTETS) {
            self.check_load(&mut running, begun)?;
        }
        Ok(running)
    }

    fn check_load(&self, running: &mut [Process], begun: Instant) -> Result<(), LabError> {
        for process in &mut *running {
            if process.wait_any(Duration::from_millis(10))?.is_some() {
                return Err(process.failed("ended before the load flowed".to_owned()));
            }
        }
        match running.last() {
            Some(last) if begun.elapsed() > LOAD_WITHIN => {
                Err(last.failed(format!("sent nothing within {LOAD_WITHIN:?}")))
            }
            _ => Ok(()),
        }
    }

    /// Octets that the load's receiver has received.
    ///
    /// # Errors
    /// The counters cannot be read.
    pub(super) fn load_octets(&self) -> Result<u64, LabError> {
        let host = &self.hosts[1];
        let (namespace, device) = match self.datapath {
            Datapath::NoVm => (&host.namespace, UPLINK),
            _ => (&host.load_namespace, LOAD),
        };
        let line = format!("ip -n {namespace} -s -j link show dev {device}");
        let text = output(None, &line)?;
        super::counters::received_octets(&text).ok_or(LabError::Command {
            command: line,
            status: "no counters".to_owned(),
            stderr: text,
        })
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        // Before the namespaces that they are in; the one that was started last first.
        self.switch_b = None;
        self.switch_a = None;
        for name in self.namespaces() {
            if Path::new(&namespace_path(name)).exists()
                && let Err(error) = run(None, &format!("ip netns del {name}"))
            {
                eprintln!("warning: {error}; remove it with `ip netns del {name}`");
            }
        }
    }
}
