// SPDX-License-Identifier: Apache-2.0
//! Two hosts with a pod on each, as namespaces of this machine.
//!
//! In: nothing but root's rights. Out: a [`Testbed`] with its names and addresses. It is removed on drop, so also
//! after an error, a panic, and a signal that [`ktsn_measure::clock::stop_on_signals`] turns into an error.
//! What a killed process left behind is swept by the next one. Nothing is ever made in the caller's own namespace.
//!
//! ```text
//!   pod A  eth0 ── vethpod ┐            ┌ vethpod ── eth0  pod B      10.244.N.5/24, default via 10.244.N.1
//!                        cni0          cni0                           10.244.N.1/24
//!                          │ forward, iptables │
//!                     flannel.1      flannel.1                        10.244.N.0/32, VNI 1, port 8472, MTU 1450
//!   host A            uplink ════════ uplink            host B        192.168.50.{1,2}/24, MTU 1500
//! ```

mod crowd;
mod flannel;
mod half;

pub use crowd::Crowd;
pub use half::{Echo, Half};
pub(crate) use half::{Passes, connect, settle};

use crate::command::run;
use crate::error::LabError;
use crate::sys;
use std::net::{Ipv4Addr, UdpSocket};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// The kernel's limit for the name of a device, without its zero.
const NAME_OCTETS_MAX: usize = 15;

/// Refuses a device name that the kernel would refuse or cut.
///
/// # Errors
/// [`LabError::Usage`].
pub(crate) fn check_name(name: &str) -> Result<(), LabError> {
    let is_odd = |letter: char| letter.is_whitespace() || letter == '/' || letter == ':';
    if name.is_empty() || name.len() > NAME_OCTETS_MAX || name.contains(is_odd) || name == "." || name == ".."
    {
        return Err(LabError::Usage(format!(
            "the device name {name:?} has {} octets; expected 1 to {NAME_OCTETS_MAX}, without blanks, '/' and ':'",
            name.len()
        )));
    }
    Ok(())
}

/// The device between the hosts, at both ends.
pub const UPLINK: &str = "uplink";
/// The pods' interface.
pub const POD_INTERFACE: &str = "eth0";
/// Flannel's VXLAN device.
pub const VXLAN_DEVICE: &str = "flannel.1";
/// Flannel's VXLAN network identifier.
pub const VXLAN_VNI: u32 = 1;
/// Flannel's VXLAN port.
pub const VXLAN_PORT: u16 = 8472;
/// MTU of everything that the overlay carries.
pub const OVERLAY_MTU: u32 = 1450;

/// Where the first datagrams go; the discard port.
const SETTLE_PORT: u16 = 9;
pub(crate) const PREFIX: &str = "ktsnlab-";
static COUNTER: AtomicU32 = AtomicU32::new(0);

/// One host with its pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// Namespace of the host.
    pub namespace: String,
    /// Namespace of its pod.
    pub pod_namespace: String,
    /// Address on the uplink; also the VXLAN tunnel end point.
    pub address: Ipv4Addr,
    /// MAC address of the uplink.
    pub uplink_mac: String,
    /// MAC address of the VXLAN device.
    pub vxlan_mac: String,
    /// Address of the VXLAN device, the gateway to this host's pods.
    pub vxlan_address: Ipv4Addr,
    /// Address of the bridge.
    pub bridge_address: Ipv4Addr,
    /// Address of the pod.
    pub pod_address: Ipv4Addr,
    /// The pods of this host (`10.244.N.0/24`).
    pub pod_prefix: String,
}

impl Host {
    fn new(stem: &str, letter: char, number: u8) -> Self {
        let pods = |last| Ipv4Addr::new(10, 244, number, last);
        Self {
            namespace: format!("{stem}h{letter}"),
            pod_namespace: format!("{stem}p{letter}"),
            address: Ipv4Addr::new(192, 168, 50, number + 1),
            uplink_mac: format!("02:4b:00:00:00:0{}", number + 1),
            vxlan_mac: format!("02:4b:00:00:01:0{}", number + 1),
            vxlan_address: pods(0),
            bridge_address: pods(1),
            pod_address: pods(5),
            pod_prefix: format!("{}/24", pods(0)),
        }
    }
}

/// The path of a namespace by name.
#[must_use]
pub fn namespace_path(name: &str) -> String {
    format!("/run/netns/{name}")
}

/// Two hosts, two pods; removed on drop.
#[derive(Debug)]
pub struct Testbed {
    /// The talker's host.
    pub a: Host,
    /// The listener's host.
    pub b: Host,
}

impl Testbed {
    /// Sets it up.
    ///
    /// # Errors
    /// [`LabError::Impossible`] without the rights, else the command that failed. Nothing is left behind.
    pub fn new() -> Result<Self, LabError> {
        let stem = new_stem()?;
        // Made before anything exists, so that a failure on the way removes what already does.
        let testbed = Self { a: Host::new(&stem, 'a', 0), b: Host::new(&stem, 'b', 1) };
        for name in testbed.namespaces() {
            run(None, &format!("ip netns add {name}"))?;
            run(None, &format!("ip -n {name} link set lo up"))?;
        }
        testbed.connect_hosts()?;
        flannel::host(&testbed.a, &testbed.b)?;
        flannel::host(&testbed.b, &testbed.a)?;
        testbed.settle()?;
        Ok(testbed)
    }

    /// The names of all four namespaces.
    #[must_use]
    pub fn namespaces(&self) -> [&str; 4] {
        [&self.a.namespace, &self.b.namespace, &self.a.pod_namespace, &self.b.pod_namespace]
    }

    fn connect_hosts(&self) -> Result<(), LabError> {
        let (a, b) = (&self.a, &self.b);
        run(
            None,
            &format!(
                "ip -n {} link add {UPLINK} address {} type veth peer name {UPLINK} address {} netns {}",
                a.namespace, a.uplink_mac, b.uplink_mac, b.namespace
            ),
        )?;
        for (host, peer) in [(a, b), (b, a)] {
            let ns = &host.namespace;
            run(None, &format!("ip -n {ns} addr add {}/24 dev {UPLINK}", host.address))?;
            run(None, &format!("ip -n {ns} link set {UPLINK} up"))?;
            // As ARP leaves it, without its expiry in the middle of a run.
            run(
                None,
                &format!(
                    "ip -n {ns} neigh replace {} lladdr {} dev {UPLINK} nud permanent",
                    peer.address, peer.uplink_mac
                ),
            )?;
        }
        Ok(())
    }

    /// Sends a datagram each way, so that every neighbour, bridge and connection tracking entry exists.
    fn settle(&self) -> Result<(), LabError> {
        let timeout = Some(Duration::from_secs(3));
        for (host, peer) in [(&self.a, &self.b), (&self.b, &self.a)] {
            let open = |at: Ipv4Addr, port: u16| move || UdpSocket::bind((at, port));
            let listener = sys::within(&peer.pod_namespace, open(peer.pod_address, SETTLE_PORT))?;
            // Any free port: a child that another thread is just starting may still hold the last listener's.
            let talker = sys::within(&host.pod_namespace, open(host.pod_address, 0))?;
            let passed = listener
                .set_read_timeout(timeout)
                .and_then(|()| talker.send_to(b"settle", (peer.pod_address, SETTLE_PORT)))
                .and_then(|_| listener.recv(&mut [0; 16]));
            passed.map_err(LabError::system("a datagram through the new overlay did not arrive"))?;
        }
        Ok(())
    }
}

impl Drop for Testbed {
    fn drop(&mut self) {
        self.namespaces().into_iter().for_each(remove);
    }
}

/// Removes a namespace if it is there; a failure is shown.
pub(crate) fn remove(namespace: &str) {
    if std::path::Path::new(&namespace_path(namespace)).exists()
        && let Err(error) = run(None, &format!("ip netns del {namespace}"))
    {
        eprintln!("warning: {error}; remove it with `ip netns del {namespace}`");
    }
}

/// Whether this process may make namespaces.
///
/// # Errors
/// [`LabError::Impossible`] without root's rights.
pub(crate) fn check_rights() -> Result<(), LabError> {
    if rustix::process::geteuid().is_root() {
        return Ok(());
    }
    Err(LabError::Impossible {
        what: "network namespaces need root's rights".to_owned(),
        remedy: "run the command as root".to_owned(),
    })
}

/// What the names of a new testbed's namespaces begin with. Those that lab processes left which no longer exist are removed.
///
/// # Errors
/// [`LabError::Impossible`] without root's rights.
pub(crate) fn new_stem() -> Result<String, LabError> {
    check_rights()?;
    sweep();
    Ok(format!("{PREFIX}{}-{}-", std::process::id(), COUNTER.fetch_add(1, Ordering::Relaxed)))
}

/// Removes what lab processes left that no longer exist: the names of the namespaces.
pub fn sweep() -> Vec<String> {
    let mut removed = Vec::new();
    for entry in std::fs::read_dir("/run/netns").into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let pid = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next()?.parse().ok());
        if pid.is_some_and(|pid| !sys::exists(pid)) {
            // Another process may sweep the same name at this moment.
            if run(None, &format!("ip netns del {name}")).is_ok() {
                removed.push(name);
            }
        }
    }
    removed
}

#[cfg(test)]
mod tests;
