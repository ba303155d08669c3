// SPDX-License-Identifier: Apache-2.0
//! The hosts of the experiment: each is a namespace of a machine, with a bridge, a virtual switch, or neither.
//!
//! In: which datapath, which of both hosts, and how they are connected: both on this machine by a veth pair, or one here and the other one
//! on another machine. Out: a [`Host`] with its names, and what its devices have counted. It is removed on drop; what a killed process left,
//! the next one or `ktsn vm clean` sweeps. Nothing is made in the caller's own namespace.
//!
//! ```text
//!   host A                                      host B
//!   guest ── tap ┐                        ┌ tap ── guest           bridge
//!   guest ══ vhost-user ── OVS-DPDK ┐  ┌ OVS-DPDK ══ vhost-user    ovs-dpdk
//!                        br0 ─ uplink ═══ uplink ─ br0             MTU 1500, a veth pair, or macvlans and a cable
//!   sender of the load ── load ┘                 └ load ── its receiver
//! ```

use super::plan::Datapath;
use crate::command::{output, run};
use crate::error::LabError;
use crate::ovs::{self, Ovs, Polling};
use crate::process::{Process, Program};
use crate::sys;
use crate::testbed::{Passes, check_rights, connect, namespace_path, new_stem};
use std::collections::BTreeMap;
use std::net::Ipv4Addr;
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
/// Length of the addresses' prefix.
pub(super) const PREFIX: u8 = 24;
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
pub(super) fn mac_of(address: Ipv4Addr) -> String {
    address.octets().iter().fold("02:4b".to_owned(), |mac, octet| format!("{mac}:{octet:02x}"))
}

/// The addresses of an experiment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Addresses {
    /// Of publisher and subscriber.
    pub(super) ends: [Ipv4Addr; 2],
    /// Of the load's sender and receiver.
    load: [Ipv4Addr; 2],
}

impl Addresses {
    /// Where both hosts are on this machine.
    pub(super) const HERE: Self = Self::of([10, 77, 0], 0);

    /// On a cable that others use: of the block for benchmarks (RFC 2544), which no site uses. `number`: both machines share it.
    pub(super) const fn apart(number: u16) -> Self {
        let [high, low] = number.to_be_bytes();
        // Fifteen experiments in a network.
        Self::of([198, 18 + (high & 1), low], (high >> 1) % 15 * 16)
    }

    const fn of([a, b, c]: [u8; 3], base: u8) -> Self {
        Self {
            ends: [Ipv4Addr::new(a, b, c, base + 2), Ipv4Addr::new(a, b, c, base + 3)],
            load: [Ipv4Addr::new(a, b, c, base + 12), Ipv4Addr::new(a, b, c, base + 13)],
        }
    }
}

/// Which one of the two hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Which {
    /// The publisher's.
    Publisher,
    /// The subscriber's.
    Subscriber,
}

impl Which {
    pub(super) const fn index(self) -> usize {
        match self {
            Self::Publisher => 0,
            Self::Subscriber => 1,
        }
    }

    /// In words.
    pub(super) const fn word(self) -> &'static str {
        match self {
            Self::Publisher => "publisher",
            Self::Subscriber => "subscriber",
        }
    }
}

/// One host; removed on drop.
#[derive(Debug)]
pub(super) struct Host {
    // Ends before the namespaces that it is in.
    switch: Option<Ovs>,
    pub(super) which: Which,
    pub(super) datapath: Datapath,
    /// Its namespace.
    pub(super) namespace: String,
    /// Where the load's program runs.
    load_namespace: String,
    /// The CPU of its guest and its switch.
    pub(super) cpu: usize,
    pub(super) addresses: Addresses,
    /// This machine's device that leads to the other host, if that is another machine.
    device: Option<String>,
    directory: PathBuf,
}

impl Host {
    /// Both hosts of a datapath, on this machine. Files of switches and load lie in `directory`.
    ///
    /// # Errors
    /// [`LabError::Impossible`] without root's rights, OVS or huge pages; else what failed. Nothing is left behind.
    pub(super) fn pair(datapath: Datapath, directory: &Path) -> Result<[Self; 2], LabError> {
        check(datapath)?;
        let stem = new_stem()?;
        let host = |which| Self::new(which, &stem, datapath, Addresses::HERE, directory);
        let mut both = [host(Which::Publisher)?, host(Which::Subscriber)?];
        let queues = format!("numtxqueues {UPLINK_QUEUES} numrxqueues 1");
        run(
            None,
            &format!(
                "ip -n {} link add {UPLINK} {queues} type veth peer name {UPLINK} {queues} netns {}",
                both[0].namespace, both[1].namespace
            ),
        )?;
        both.iter_mut().try_for_each(Self::complete)?;
        Ok(both)
    }

    /// One host of a datapath; the other one is on another machine. `device` of this machine leads there, and both machines share `number`.
    ///
    /// # Errors
    /// As [`Self::pair`]; the device cannot be the uplink.
    pub(super) fn apart(
        which: Which,
        datapath: Datapath,
        (device, number): (&str, u16),
        directory: &Path,
    ) -> Result<Self, LabError> {
        check(datapath)?;
        let mut host = Self::new(which, &new_stem()?, datapath, Addresses::apart(number), directory)?;
        for namespace in host.namespaces() {
            // Its neighbour discovery would be on the cable. Where there is no IPv6, there is none to be switched off.
            let _no_ipv6 = sys::within(namespace, || {
                std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1")
            });
        }
        let Addresses { ends, load } = host.addresses;
        let other = 1 - which.index();
        let own = which.index();
        let (own, others) = (mac_of(ends[own]), [ends[other], load[other]].map(mac_of));
        let passes = if datapath == Datapath::NoVm { Passes::Own(&own) } else { Passes::From(&others) };
        connect(&host.namespace, UPLINK, passes, device, &format!("numtxqueues {UPLINK_QUEUES}"))?;
        host.device = Some(device.to_owned());
        // Nothing is asked on the cable: both ends are known.
        run(None, &format!("ip -n {} link set {UPLINK} arp off", host.namespace))?;
        host.complete()?;
        if datapath == Datapath::NoVm {
            let (ns, peer) = (&host.namespace, ends[other]);
            let mac = mac_of(peer);
            run(None, &format!("ip -n {ns} neigh replace {peer} lladdr {mac} dev {UPLINK} nud permanent"))?;
        }
        Ok(host)
    }

    /// A host with its namespaces and nothing else.
    fn new(
        which: Which,
        stem: &str,
        datapath: Datapath,
        addresses: Addresses,
        directory: &Path,
    ) -> Result<Self, LabError> {
        let letter = ['a', 'b'][which.index()];
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        // Made before anything exists, so that a failure on the way removes what already does.
        let host = Self {
            switch: None,
            which,
            datapath,
            namespace: format!("{stem}v{letter}"),
            load_namespace: format!("{stem}l{letter}"),
            cpu: which.index().min(cpus - 1),
            addresses,
            device: None,
            directory: directory.to_owned(),
        };
        for name in host.namespaces() {
            run(None, &format!("ip netns add {name}"))?;
            run(None, &format!("ip -n {name} link set lo up"))?;
        }
        Ok(host)
    }

    /// The address of this host's end.
    pub(super) fn address(&self) -> Ipv4Addr {
        self.addresses.ends[self.which.index()]
    }

    /// Sets up what is behind the uplink.
    fn complete(&mut self) -> Result<(), LabError> {
        let (ns, address) = (&self.namespace, self.address());
        if self.datapath == Datapath::NoVm {
            run(None, &format!("ip -n {ns} link set {UPLINK} address {}", mac_of(address)))?;
            run(None, &format!("ip -n {ns} addr add {address}/{PREFIX} dev {UPLINK}"))?;
        }
        run(None, &format!("ip -n {ns} link set {UPLINK} up"))?;
        match self.datapath {
            Datapath::NoVm => {}
            Datapath::Bridge => {
                self.connect_load()?;
                run(None, &format!("ip -n {ns} link add {BRIDGE} type bridge"))?;
                for device in [UPLINK, LOAD] {
                    run(None, &format!("ip -n {ns} link set {device} master {BRIDGE}"))?;
                }
                run(None, &format!("ip -n {ns} link set {BRIDGE} up"))?;
            }
            Datapath::OvsDpdk => {
                self.connect_load()?;
                self.switch = Some(self.switch()?);
            }
        }
        Ok(())
    }

    /// The load's namespace, with a device whose other end is the host's.
    fn connect_load(&self) -> Result<(), LabError> {
        let (ns, load, index) = (&self.namespace, &self.load_namespace, self.which.index());
        let (own, peer) = (self.addresses.load[index], self.addresses.load[1 - index]);
        let mac = mac_of(own);
        run(
            None,
            &format!("ip -n {load} link add {LOAD} address {mac} type veth peer name {LOAD} netns {ns}"),
        )?;
        run(None, &format!("ip -n {load} addr add {own}/{PREFIX} dev {LOAD}"))?;
        // A switch in user space gets no checksums that a device would have to fill in.
        run(Some(load.as_str()), &format!("ethtool -K {LOAD} tx off"))?;
        for space in [ns, load] {
            run(None, &format!("ip -n {space} link set {LOAD} up"))?;
        }
        run(
            None,
            &format!("ip -n {load} neigh replace {peer} lladdr {} dev {LOAD} nud permanent", mac_of(peer)),
        )
    }

    /// A virtual switch, with the uplink, the guest's socket and the load.
    fn switch(&self) -> Result<Ovs, LabError> {
        let options = ovs::Options {
            cpu: self.cpu,
            main_cpu: self.cpu,
            polling: Polling::Sleeps { us_max: SWITCH_SLEEP_US },
            memory_mib: SWITCH_MIB,
            dpdk: true,
        };
        let switch = Ovs::start(&self.namespace, &options)?;
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
        switch.add_front_end(BRIDGE, GUEST, &self.socket(), 1)?;
        switch.add_device(BRIDGE, LOAD)?;
        Ok(switch)
    }

    /// The socket of its guest.
    pub(super) fn socket(&self) -> PathBuf {
        self.directory.join(format!("{GUEST}-{}.sock", self.which.index()))
    }

    /// # Errors
    /// The virtual switch has ended, with its log.
    pub(super) fn check_switch(&mut self) -> Result<(), LabError> {
        self.switch.as_mut().map_or(Ok(()), Ovs::check_running)
    }

    fn namespaces(&self) -> [&str; 2] {
        [&self.namespace, &self.load_namespace]
    }

    /// Frames that the host's devices and switch have dropped so far, by place and reason.
    ///
    /// # Errors
    /// The counters cannot be read.
    pub(super) fn dropped(&self) -> Result<BTreeMap<String, u64>, LabError> {
        let (mut dropped, end) = (BTreeMap::new(), self.which.word());
        let links = output(None, &format!("ip -n {} -s -j link show", self.namespace))?;
        super::counters::put_links(&mut dropped, &format!("{end}'s host"), &links);
        if let Some(device) = &self.device {
            let links = output(None, &format!("ip -s -s -j link show dev {device}"))?;
            super::counters::put_links(&mut dropped, &format!("{end}'s machine"), &links);
        }
        if let Some(switch) = &self.switch {
            for port in [GUEST, UPLINK_PORT, LOAD] {
                let counted = switch.vsctl(&["get", "Interface", port, "statistics"])?;
                super::counters::put_switch(&mut dropped, &format!("{end}'s switch, {port}"), &counted);
            }
        }
        Ok(dropped)
    }

    /// The namespace of this host's end of the load, and the address of its receiver.
    fn load_at(&self) -> (&str, Ipv4Addr) {
        match self.datapath {
            Datapath::NoVm => (&self.namespace, self.addresses.ends[1]),
            _ => (&self.load_namespace, self.addresses.load[1]),
        }
    }

    fn iperf3(&self, name: &str) -> Program {
        Program::new(name, Path::new("nice"))
            .args(["-n", "19", "iperf3", "--port", LOAD_PORT, "--affinity"])
            .args([self.cpu.to_string()])
            .within(self.load_at().0)
    }

    /// Starts the load's receiver, and waits until it listens.
    ///
    /// # Errors
    /// The program is missing or ended.
    pub(super) fn start_load_receiver(&self) -> Result<Process, LabError> {
        let (namespace, address) = self.load_at();
        let program = self.iperf3("load-receiver").args(["--server", "--bind", &address.to_string()]);
        let mut receiver = program.start(&self.directory)?;
        let begun = Instant::now();
        while output(Some(namespace), &format!("ss -Hltn sport = :{LOAD_PORT}"))?.trim().is_empty() {
            check_load(&mut receiver, begun)?;
        }
        Ok(receiver)
    }

    /// Starts the load's sender, `mbit` Mbit/s, or all that it can; waits until `has_come` says that its first octets have arrived.
    ///
    /// # Errors
    /// The program is missing or ended; nothing arrives.
    pub(super) fn start_load_sender(
        &self,
        mbit: u32,
        mut has_come: impl FnMut(u64) -> Result<bool, LabError>,
    ) -> Result<Process, LabError> {
        let address = self.load_at().1.to_string();
        let mut sender = self
            .iperf3("load-sender")
            .args(["--client", &address, "--udp", "--time=86400", "--interval=0"])
            .args([format!("--bitrate={mbit}M"), format!("--length={LOAD_OCTETS}")])
            .start(&self.directory)?;
        let begun = Instant::now();
        while !has_come(100 * u64::from(LOAD_OCTETS))? {
            check_load(&mut sender, begun)?;
        }
        Ok(sender)
    }

    /// Octets that this host's end of the load has received.
    ///
    /// # Errors
    /// The counters cannot be read.
    pub(super) fn load_octets(&self) -> Result<u64, LabError> {
        let device = if self.datapath == Datapath::NoVm { UPLINK } else { LOAD };
        let line = format!("ip -n {} -s -j link show dev {device}", self.load_at().0);
        let text = output(None, &line)?;
        super::counters::received_octets(&text).ok_or(LabError::Command {
            command: line,
            status: "no counters".to_owned(),
            stderr: text,
        })
    }
}

/// # Errors
/// [`LabError::Impossible`]: root's rights or OVS are missing.
fn check(datapath: Datapath) -> Result<(), LabError> {
    check_rights()?;
    match ovs::missing().filter(|_| datapath == Datapath::OvsDpdk) {
        Some(package) => Err(LabError::Impossible {
            what: format!("Debian's package {package} is not installed"),
            remedy: "`make setup`, or leave ovs-dpdk out with --datapath".to_owned(),
        }),
        None => Ok(()),
    }
}

fn check_load(process: &mut Process, begun: Instant) -> Result<(), LabError> {
    if process.wait_any(Duration::from_millis(10))?.is_some() {
        return Err(process.failed("ended before the load flowed".to_owned()));
    }
    if begun.elapsed() > LOAD_WITHIN {
        return Err(process.failed(format!("runs, and none of the load arrived within {LOAD_WITHIN:?}")));
    }
    Ok(())
}

impl Drop for Host {
    fn drop(&mut self) {
        // Before the namespaces that it is in.
        self.switch = None;
        if self.device.is_some() {
            // A namespace ends some time after its removal; until then no other macvlan has this MAC address.
            let _may_not_exist = run(None, &format!("ip -n {} link del {UPLINK}", self.namespace));
        }
        for name in self.namespaces() {
            if Path::new(&namespace_path(name)).exists()
                && let Err(error) = run(None, &format!("ip netns del {name}"))
            {
                eprintln!("warning: {error}; remove it with `ip netns del {name}`");
            }
        }
    }
}
