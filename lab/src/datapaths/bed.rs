// SPDX-License-Identifier: Apache-2.0
//! The place of a datapath: a host and a remote host, as namespaces with a veth between them; or the host here, the remote host on another
//! machine.
//!
//! In: nothing but root's rights; of two machines the devices that lead to each other. Out: a [`Bed`], there a [`RemoteBed`]. Both are removed
//! on drop; what a killed process left is swept by the next one. Nothing is made in the caller's own namespace.
//!
//! ```text
//!   host      [the datapath] ── up0 ════════ far0   remote host
//! ```

use crate::command::{output, run};
use crate::error::LabError;
use crate::sys;
use crate::testbed::{Passes, connect, new_stem, remove};
use std::collections::BTreeMap;

use super::frame::{REMOTE_MAC, text};

/// The host's end of the veth.
pub const UPLINK: &str = "up0";
/// The remote host's end.
pub const FAR: &str = "far0";
/// The tap of the virtual machine.
pub const TAP: &str = "vm0";
/// One queue: an AF_XDP port reads one.
const ONE_QUEUE: &str = "numtxqueues 1 numrxqueues 1";
/// A namespace without neighbour discovery.
fn make(namespace: &str) -> Result<(), LabError> {
    run(None, &format!("ip netns add {namespace}"))?;
    // Its frames would be those of a stranger. Where there is no IPv6, there is none to be switched off.
    let _no_ipv6 =
        sys::within(namespace, || std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1"));
    Ok(())
}

/// Removes devices of a namespace before it is removed itself: that ends them later, and until then their addresses are taken.
fn remove_with(namespace: &str, devices: &[&str]) {
    for device in devices {
        // A part of the path may have removed it.
        let _gone = run(None, &format!("ip -n {namespace} link del {device}"));
    }
    remove(namespace);
}

/// The remote host, where the host is another machine; removed on drop.
#[derive(Debug)]
pub struct RemoteBed {
    /// Its namespace.
    pub namespace: String,
}

impl RemoteBed {
    /// Sets it up, with `far0` on the machine's device that leads to the host.
    ///
    /// # Errors
    /// [`LabError::Impossible`] without the rights or the device, or while another experiment has it; else the command that failed. Nothing is
    /// left behind.
    pub fn new(device: &str) -> Result<Self, LabError> {
        let bed = Self { namespace: format!("{}vr", new_stem()?) };
        make(&bed.namespace)?;
        connect(&bed.namespace, FAR, Passes::Own(&text(REMOTE_MAC)), device, ONE_QUEUE)?;
        up(&bed.namespace, FAR, device)?;
        Ok(bed)
    }
}

impl Drop for RemoteBed {
    fn drop(&mut self) {
        remove_with(&self.namespace, &[FAR]);
    }
}

/// Two macvlans with one address cannot be on one device.
fn up(namespace: &str, name: &str, device: &str) -> Result<(), LabError> {
    run(None, &format!("ip -n {namespace} link set {name} up")).map_err(|error| LabError::Impossible {
        what: format!("the device {device} cannot be the uplink: {error}"),
        remedy: "wait until no other `ktsn bench datapaths` uses this device".to_owned(),
    })
}

/// The host of a virtual machine and, unless that is another machine, the remote host; removed on drop.
#[derive(Debug)]
pub struct Bed {
    /// Namespace of the host of the virtual machine.
    pub host: String,
    /// Namespace of the remote host; `None`: that is another machine.
    pub remote: Option<String>,
}

impl Bed {
    /// Sets it up.
    ///
    /// # Errors
    /// [`LabError::Impossible`] without the rights, else the command that failed. Nothing is left behind.
    pub fn new() -> Result<Self, LabError> {
        let stem = new_stem()?;
        // Made before anything exists, so that a failure on the way removes what already does.
        let remote = format!("{stem}vr");
        let bed = Self { host: format!("{stem}vh"), remote: Some(remote.clone()) };
        for name in [&bed.host, &remote] {
            make(name)?;
        }
        run(
            None,
            &format!(
                "ip -n {} link add {UPLINK} {ONE_QUEUE} type veth peer name {FAR} address {} {ONE_QUEUE} netns {remote}",
                bed.host,
                text(REMOTE_MAC),
            ),
        )?;
        run(None, &format!("ip -n {} link set {UPLINK} up", bed.host))?;
        run(None, &format!("ip -n {remote} link set {FAR} up"))?;
        Ok(bed)
    }

    /// Sets the host up, with `up0` on the machine's device that leads to the remote host. Frames of that one's station pass `up0`; it stays
    /// down unless `is_port` says that the path goes through it.
    ///
    /// # Errors
    /// As [`RemoteBed::new`].
    pub fn half(device: &str, is_port: bool) -> Result<Self, LabError> {
        let bed = Self { host: format!("{}vh", new_stem()?), remote: None };
        make(&bed.host)?;
        connect(&bed.host, UPLINK, Passes::From(&[text(REMOTE_MAC)]), device, ONE_QUEUE)?;
        if is_port {
            up(&bed.host, UPLINK, device)?;
        }
        Ok(bed)
    }

    /// The index of a device of a namespace.
    ///
    /// # Errors
    /// There is no such device.
    pub fn index(namespace: &str, device: &str) -> Result<u32, LabError> {
        let line = format!("ip -n {namespace} -j link show dev {device}");
        let text = output(None, &line)?;
        let links: Option<Vec<serde_json::Value>> = serde_json::from_str(&text).ok();
        let found = links.as_ref().and_then(|links| links.first()?["ifindex"].as_u64());
        let index = found.and_then(|index| u32::try_from(index).ok());
        index.ok_or(LabError::Command { command: line, status: "no index".to_owned(), stderr: text })
    }

    /// Frames that were dropped on the host, by device and counter: by the devices, and by packet sockets of programs (a switch reads its
    /// system ports by those).
    ///
    /// # Errors
    /// `ip` or `ss` fails.
    pub fn drops(&self) -> Result<BTreeMap<String, u64>, LabError> {
        let line = format!("ip -n {} -s -s -j link show", self.host);
        let text = output(None, &line)?;
        let mut drops = drops_in(&text).ok_or(LabError::Command {
            command: line,
            status: "no counters".to_owned(),
            stderr: text,
        })?;
        drops.extend(drops_of_sockets(&output(Some(&self.host), "ss -0 -m -n -H")?));
        Ok(drops)
    }
}

/// Frames that a device dropped, by counter.
///
/// # Errors
/// `ip` fails.
pub(super) fn drops_of(namespace: Option<&str>, device: &str) -> Result<BTreeMap<String, u64>, LabError> {
    let inside = namespace.map(|name| format!("-n {name} ")).unwrap_or_default();
    let line = format!("ip {inside}-s -s -j link show dev {device}");
    let text = output(None, &line)?;
    drops_in(&text).ok_or(LabError::Command { command: line, status: "no counters".to_owned(), stderr: text })
}

/// The counters of lost frames in what `ip -s -s -j link show` prints.
fn drops_in(text: &str) -> Option<BTreeMap<String, u64>> {
    const COUNTERS: [(&str, &str); 6] = [
        ("rx", "dropped"),
        ("rx", "errors"),
        ("rx", "over_errors"),
        ("tx", "dropped"),
        ("tx", "errors"),
        ("tx", "carrier_errors"),
    ];
    let links: Vec<serde_json::Value> = serde_json::from_str(text).ok()?;
    let mut drops = BTreeMap::new();
    for link in links {
        let name = link["ifname"].as_str().unwrap_or("?");
        for (way, counter) in COUNTERS {
            if let Some(count) = link["stats64"][way][counter].as_u64() {
                drops.insert(format!("{name}_{way}_{counter}"), count);
            }
        }
    }
    Some(drops)
}

/// What packet sockets dropped, by device, of what `ss -0 -m -n -H` prints: `p_raw 0 0 PROTOCOL:DEVICE * … skmem:(…,dCOUNT)`.
fn drops_of_sockets(text: &str) -> BTreeMap<String, u64> {
    let mut drops = BTreeMap::new();
    let mut device = "?";
    for line in text.lines() {
        let mut words = line.split_whitespace();
        if line.starts_with("p_") {
            let name = words.nth(3).and_then(|address| address.split_once(':')).map_or("?", |of| of.1);
            device = if name == "*" { "any" } else { name };
        }
        let memory = words.find_map(|word| word.strip_prefix("skmem:(")?.strip_suffix(')'));
        let count = memory.and_then(|memory| memory.rsplit_once(",d")?.1.parse::<u64>().ok());
        if let Some(count) = count {
            *drops.entry(format!("{device}_socket")).or_insert(0) += count;
        }
    }
    drops
}

impl Drop for Bed {
    fn drop(&mut self) {
        match &self.remote {
            Some(remote) => {
                remove(&self.host);
                remove(remote);
            }
            // The other machine's half is the other machine's.
            None => remove_with(&self.host, &[TAP, UPLINK]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drops_of_sockets_are_read_by_device() {
        let text = "p_raw 4608   0   *:up0               *     skmem:(r4608,rb4096,t0,tb212992,f0,w0,o0,bl0,d798)\n\
                    p_raw 0 0 *:up0 * skmem:(r0,d2)\np_dgr 0 0 ip:vm0 * skmem:(r0,d1)\n";
        let found = drops_of_sockets(text);
        assert_eq!((found["up0_socket"], found["vm0_socket"], found.len()), (800, 1, 2));
        assert!(drops_of_sockets("").is_empty());
    }

    #[test]
    fn drops_are_read_by_device_and_counter() {
        let text = r#"[{"ifname":"vm0","stats64":{"rx":{"packets":9,"dropped":1,"errors":0},"tx":{"packets":9,"dropped":4}}},
                       {"ifname":"up0"}]"#;
        let drops = drops_in(text).unwrap();
        assert_eq!(drops["vm0_tx_dropped"], 4);
        assert_eq!((drops["vm0_rx_dropped"], drops.len()), (1, 3));
        assert_eq!(drops_in("no json"), None);
    }
}
