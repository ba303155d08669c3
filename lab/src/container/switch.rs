// SPDX-License-Identifier: Apache-2.0
//! The paths through a virtual switch: a testbed of their own, whose host A has its uplink in a private OVS-DPDK.
//!
//! In: the plan. Out: that testbed, a ktsnd whose attachment sends into the switch, and DPDK's own sender into the same one. The
//! switch runs during these paths only: its polling thread keeps a CPU busy, and is stopped meanwhile.
//!
//! ```text
//!   pod A: talker ─ libktsn ─ ktsnd ══ vhost-user ═╗
//!                  DPDK's sender ═══ virtio-user ══╬═ br-pods ─ VXLAN ─ br-uplink ─ AF_XDP ─ uplink ═══ host B, as on the other paths
//! ```
//! Frames carry the MAC address of host B's VXLAN device, as Flannel's routes make them. So host B's own path takes them in.

pub(super) mod restart;

use super::path::Path;
use super::plan::Plan;
use crate::command::run;
use crate::daemon::{Daemon, configuration_into_switch};
use crate::error::LabError;
use crate::ovs::{self, Ovs, Polling};
use crate::process::Program;
use crate::testbed::{Host, POD_INTERFACE, Testbed, UPLINK, VXLAN_PORT, VXLAN_VNI};
use ktsn_proto::v1;
use std::path::{Path as FilePath, PathBuf};
use std::time::{Duration, Instant};

const PODS: &str = "br-pods";
const UNDERLAY: &str = "br-uplink";
const TUNNEL: &str = "vxlan";
/// Ports of the switch, and the names of their sockets.
const POD: &str = "pod-a";
const DPDK: &str = "dpdk";
/// The pod's interface, and the station that sends by DPDK.
const POD_MAC: &str = "02:4b:00:00:02:00";
const DPDK_MAC: &str = "02:4b:00:00:02:01";
/// The polling thread has CPU 0, where the listener preempts it; the switch's other threads are on the talker's CPU.
const POLLING: Polling = Polling::Spins { nice: -20 };
const CONNECTED_MAX: Duration = Duration::from_secs(30);
/// OVS reads the ring of a new device up to a second after it has connected.
const SETTLE: Duration = Duration::from_millis(1500);
/// The switch goes on: its threads have run once when a frame comes.
const GO_ON: Duration = Duration::from_millis(50);
/// Longest wait for DPDK's sender: memory, connection, settling.
pub(super) const SENDER_MAX: Duration = Duration::from_secs(20);

/// Why the path `dpdk-virtio-user` is not possible.
pub const NO_DPDK: &str = "ktsn-bench was built without DPDK";

/// Why a path through the switch is not possible here, before it is tried.
pub(super) fn missing(path: Path) -> Option<String> {
    if let Some(package) = ovs::missing() {
        return Some(format!("Debian's package {package} is not installed; remedy: `make setup`"));
    }
    let is_without = path == Path::DpdkVirtioUser && !cfg!(feature = "dpdk");
    is_without.then(|| format!("{NO_DPDK}; remedy: `make bench-overlay`"))
}

/// The switch on host A.
#[derive(Debug)]
pub(crate) struct Switch {
    ovs: Ovs,
    pub(super) directory: PathBuf,
}

/// The testbed. Fields end in this order.
pub(super) struct Switched {
    pub(super) daemon: Daemon,
    pub(super) switch: Switch,
    pub(super) testbed: Testbed,
}

impl Switched {
    /// Sets it up; the switch stands still.
    ///
    /// # Errors
    /// [`LabError::Impossible`] without huge pages; else what failed. Nothing is left behind.
    pub(super) fn start(plan: &Plan, directory: &FilePath) -> Result<Self, LabError> {
        let directory = directory.join("switch");
        std::fs::create_dir_all(&directory).map_err(LabError::file(&directory))?;
        let testbed = Testbed::new()?;
        let polling = if plan.setup.functional { Polling::default() } else { POLLING };
        let options = ovs::Options {
            cpu: 0,
            main_cpu: usize::from(!plan.setup.functional),
            polling,
            ..ovs::Options::default()
        };
        let ovs = Ovs::start(&testbed.a.namespace, &options)?;
        let switch = Switch { ovs, directory };
        switch.connect(&testbed)?;
        let configuration = configuration_into_switch(&testbed, &switch.socket(POD));
        let daemon = Daemon::start(&plan.setup.tools, &testbed.a, &switch.directory, &configuration)?;
        switch.wait_for(&daemon)?;
        switch.pin(&testbed)?;
        switch.ovs.pause()?;
        Ok(Self { daemon, switch, testbed })
    }
}

impl Switch {
    fn socket(&self, port: &str) -> PathBuf {
        self.directory.join(format!("{port}.sock"))
    }

    /// Bridges, tunnel and ports, and the pod's route into them.
    fn connect(&self, testbed: &Testbed) -> Result<(), LabError> {
        let (a, b, ovs) = (&testbed.a, &testbed.b, &self.ovs);
        ovs.add_bridge(UNDERLAY)?;
        let address = format!("other-config:hwaddr=\"{}\"", a.uplink_mac);
        ovs.vsctl(&["set", "bridge", UNDERLAY, &address])?;
        // The host's address moves to the bridge, where the tunnel finds it.
        run(None, &format!("ip -n {} addr flush dev {UPLINK}", a.namespace))?;
        ovs.vsctl(&["add-port", UNDERLAY, UPLINK, "--", "set", "Interface", UPLINK, "type=afxdp"])?;
        self.be_underlay(testbed)?;
        ovs.add_bridge(PODS)?;
        let options = [
            format!("options:local_ip={}", a.address),
            format!("options:remote_ip={}", b.address),
            format!("options:key={VXLAN_VNI}"),
            format!("options:dst_port={VXLAN_PORT}"),
        ];
        let mut tunnel = vec!["add-port", PODS, TUNNEL, "--", "set", "Interface", TUNNEL, "type=vxlan"];
        tunnel.extend(options.iter().map(String::as_str));
        ovs.vsctl(&tunnel)?;
        for port in [POD, DPDK] {
            ovs.add_front_end(PODS, port, &self.socket(port), 1)?;
        }
        let pod = &a.pod_namespace;
        run(None, &format!("ip -n {pod} link set {POD_INTERFACE} address {POD_MAC}"))?;
        run(
            None,
            &format!(
                "ip -n {pod} route replace {} via {} dev {POD_INTERFACE} onlink",
                b.pod_prefix, b.vxlan_address
            ),
        )?;
        let neighbour =
            format!("{} lladdr {} dev {POD_INTERFACE} nud permanent", b.vxlan_address, b.vxlan_mac);
        run(None, &format!("ip -n {pod} neigh replace {neighbour}"))
    }

    /// Gives the host's address to the bridge of the uplink. A switch that starts again makes a new device for the bridge.
    fn be_underlay(&self, testbed: &Testbed) -> Result<(), LabError> {
        let (a, b) = (&testbed.a, &testbed.b);
        run(None, &format!("ip -n {} addr replace {}/24 dev {UNDERLAY}", a.namespace, a.address))?;
        run(None, &format!("ip -n {} link set {UNDERLAY} up", a.namespace))?;
        // As ARP leaves it, without its expiry in the middle of a run.
        self.ovs.appctl(&["tnl/neigh/set", UNDERLAY, &b.address.to_string(), &b.uplink_mac]).map(drop)
    }

    /// Waits until the switch has connected to ktsnd and reads its ring.
    fn wait_for(&self, daemon: &Daemon) -> Result<(), LabError> {
        let begun = Instant::now();
        while !is_connected(daemon)? {
            if begun.elapsed() > CONNECTED_MAX {
                return Err(LabError::Process {
                    name: "ovs-vswitchd".to_owned(),
                    problem: format!("did not connect to ktsnd within {CONNECTED_MAX:?}"),
                    stderr: format!("; it said:\n{}", self.ovs.log()),
                });
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        std::thread::sleep(SETTLE);
        Ok(())
    }

    /// Frames that the switch has taken from ktsnd since it was last started.
    fn taken_of_pod(&self) -> Result<u64, LabError> {
        self.ovs.received(POD)
    }

    /// Pins each station to its port: nothing is learnt or flooded.
    fn pin(&self, testbed: &Testbed) -> Result<(), LabError> {
        for (port, mac) in [(POD, POD_MAC), (DPDK, DPDK_MAC), (TUNNEL, testbed.b.vxlan_mac.as_str())] {
            self.ovs.pin(PODS, port, mac)?;
        }
        Ok(())
    }

    /// Lets it run as long as the value lives.
    pub(super) fn go_on(&self) -> Result<Running<'_>, LabError> {
        self.ovs.go_on()?;
        std::thread::sleep(GO_ON);
        Ok(Running(&self.ovs))
    }

    /// The program as DPDK's sender: its socket and its MAC addresses.
    pub(super) fn sender(&self, program: Program, b: &Host) -> Program {
        program.args(["--socket".as_ref(), self.socket(DPDK).as_os_str()]).args([
            "--macs",
            DPDK_MAC,
            &b.vxlan_mac,
        ])
    }
}

/// Whether the switch has connected to ktsnd.
fn is_connected(daemon: &Daemon) -> Result<bool, LabError> {
    let ports = daemon.ask(|mut client| async move { client.list(v1::ListRequest {}).await })?.ports;
    Ok(ports.iter().any(|port| port.adapter == "vhost_user" && port.up))
}

/// The running switch; it stands still again when this is dropped.
pub(super) struct Running<'a>(&'a Ovs);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.0.pause() {
            eprintln!("warning: {error}");
        }
    }
}
