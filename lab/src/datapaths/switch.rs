// SPDX-License-Identifier: Apache-2.0
//! The paths through a private Open vSwitch. In: a namespace with tap and uplink, how the switch may use the machine. Out: a running switch
//! with a bridge, whose stations are pinned to their ports; a vhost-user connection where that is the guest's port. Everything ends with the
//! value.

use crate::command::output;
use crate::error::LabError;
use crate::ovs::{self, Options, Ovs};
use crate::testbed::check_name;
use ktsn_virtio_net::{Link, Options as LinkOptions, Server};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

/// The bridge.
pub const BRIDGE: &str = "br0";
const CONNECTED_MAX: Duration = Duration::from_secs(30);
/// OVS reads the ring of a new device up to a second after it has connected.
const SETTLE: Duration = Duration::from_millis(1500);
const STEP: Duration = Duration::from_millis(10);
/// The first release whose polling thread can sleep (`pmd-maxsleep`).
const OLDEST: (u32, u32) = (3, 1);

/// How a device of the namespace becomes a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Port {
    /// By a packet socket, which the main thread reads.
    System,
    /// By AF_XDP, which a polling thread reads.
    Afxdp,
}

/// Why there is no switch here, before it is tried.
///
/// # Errors
/// [`LabError::Impossible`]: it is missing, or too old.
pub fn check() -> Result<(), LabError> {
    let remedy = "`make setup`".to_owned();
    if let Some(package) = ovs::missing() {
        return Err(LabError::Impossible {
            what: format!("Open vSwitch: Debian's {package} is missing"),
            remedy,
        });
    }
    let text = output(None, "ovs-vsctl --version")?;
    check_version(&text)
}

/// Holds what `ovs-vsctl --version` prints against the oldest release that serves.
fn check_version(text: &str) -> Result<(), LabError> {
    let version = text.lines().next().unwrap_or_default().split_whitespace().last().unwrap_or_default();
    let mut numbers = version.split('.').map(|number| number.parse::<u32>().ok());
    let found = numbers.next().flatten().zip(numbers.next().flatten());
    match found {
        Some(found) if found >= OLDEST => Ok(()),
        _ => Err(LabError::Impossible {
            what: format!("Open vSwitch {version:?} is too old"),
            remedy: format!("install {}.{} or newer", OLDEST.0, OLDEST.1),
        }),
    }
}

/// Starts a switch in the namespace with one bridge.
///
/// # Errors
/// What is missing, or what the switch said; nothing stays.
pub fn start(namespace: &str, options: &Options) -> Result<Ovs, LabError> {
    check()?;
    let ovs = Ovs::start(namespace, options)?;
    ovs.add_bridge(BRIDGE)?;
    Ok(ovs)
}

/// Makes a device of the switch's namespace a port.
///
/// # Errors
/// The name is too long, or the switch cannot read the device; its own words are in the error.
pub fn add_device(ovs: &Ovs, device: &str, port: Port) -> Result<(), LabError> {
    check_name(device)?;
    match port {
        Port::System => ovs.add_device(BRIDGE, device)?,
        Port::Afxdp => {
            ovs.vsctl(&["add-port", BRIDGE, device, "--", "set", "Interface", device, "type=afxdp"])?;
        }
    }
    let error = ovs.vsctl(&["get", "Interface", device, "error"])?;
    let error = error.trim().trim_matches(['[', ']', '"']);
    if error.is_empty() {
        return Ok(());
    }
    Err(LabError::Impossible {
        what: format!("the device {device} as a port of Open vSwitch: {error}"),
        remedy: "an Open vSwitch with AF_XDP (Debian's openvswitch-switch-dpdk), and a device with one queue"
            .to_owned(),
    })
}

/// Adds a vhost-user port and connects to it as a virtual machine would, by a socket in `directory`.
///
/// # Errors
/// The switch does not connect.
pub fn connect(ovs: &mut Ovs, port: &str, directory: &Path) -> Result<Link, LabError> {
    let socket = directory.join(format!("{port}.sock"));
    let failed = |what: String| LabError::Process {
        name: "ovs-vswitchd".to_owned(),
        problem: what,
        stderr: String::new(),
    };
    let options = LinkOptions { posted: 255, limit: CONNECTED_MAX, ..LinkOptions::default() };
    let server = Server::listen(&socket, &options).map_err(|error| failed(error.to_string()))?;
    ovs.add_front_end(BRIDGE, port, &socket, 1)?;
    let begun = Instant::now();
    loop {
        match server.accept() {
            Ok(Some(link)) => {
                std::thread::sleep(SETTLE);
                return Ok(link);
            }
            Ok(None) => {}
            Err(error) => return Err(failed(format!("did not take the vhost-user port: {error}"))),
        }
        ovs.check_running()?;
        if begun.elapsed() > CONNECTED_MAX {
            return Err(failed(format!(
                "did not connect to the vhost-user port within {CONNECTED_MAX:?}; it said:\n{}",
                ovs.log()
            )));
        }
        std::thread::sleep(STEP);
    }
}

/// Frames that the switch dropped, by counter.
///
/// # Errors
/// The switch's.
pub fn drops(ovs: &Ovs) -> Result<BTreeMap<String, u64>, LabError> {
    let mut drops = drops_in_coverage(&ovs.appctl(&["coverage/show"])?);
    drops.extend(drops_in_ports(&ovs.appctl(&["dpctl/show", "-s"])?));
    Ok(drops)
}

/// The events with `drop` in their name, of what `coverage/show` prints: `NAME RATE/sec … total: N`.
fn drops_in_coverage(text: &str) -> BTreeMap<String, u64> {
    let count = |line: &str| {
        let name = line.split_whitespace().next().filter(|name| name.contains("drop"))?;
        Some((format!("ovs_{name}"), line.rsplit("total:").next()?.trim().parse().ok()?))
    };
    text.lines().filter_map(count).collect()
}

/// The frames that ports dropped, of what `dpctl/show -s` prints.
fn drops_in_ports(text: &str) -> BTreeMap<String, u64> {
    let (mut port, mut drops) = (String::new(), BTreeMap::new());
    for line in text.lines().map(str::trim) {
        if let Some((_, name)) = line.strip_prefix("port ").and_then(|rest| rest.split_once(": ")) {
            port = name.split_whitespace().next().unwrap_or_default().to_owned();
        }
        let way = ["RX", "TX"].into_iter().find(|way| line.starts_with(&format!("{way} packets:")));
        for word in line.split_whitespace() {
            let count = word.split_once(':').filter(|(name, _)| matches!(*name, "errors" | "dropped"));
            if let Some((way, (name, count))) = way.zip(count)
                && let Ok(count) = count.parse()
            {
                drops.insert(format!("ovs_{port}_{way}_{name}").to_lowercase(), count);
            }
        }
    }
    drops
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_switch_is_refused_with_the_remedy() {
        check_version("ovs-vsctl (Open vSwitch) 3.1.0\nDB Schema 8.3.1\n").unwrap();
        check_version("ovs-vsctl (Open vSwitch) 10.0.0\n").unwrap();
        for old in ["ovs-vsctl (Open vSwitch) 2.17.9\n", "ovs-vsctl (Open vSwitch) 3.0.1\n", "what\n", ""] {
            let error = check_version(old).unwrap_err();
            assert_eq!(error.exit_status(), 3);
            assert!(error.to_string().contains("install 3.1 or newer"), "{error}");
        }
    }

    #[test]
    fn drops_are_read_by_their_names() {
        let text = "Event coverage, avg rate over last: 5 seconds, last minute, last hour,  hash=ab:\n\
                    datapath_drop_upcall_error   0.0/sec     0.000/sec        0.0000/sec   total: 3\n\
                    netdev_received    0.0/sec     0.000/sec        0.0000/sec   total: 33\n2 events never hit\n";
        assert_eq!(drops_in_coverage(text), [("ovs_datapath_drop_upcall_error".to_owned(), 3)].into());
        let text = "netdev@ovs-netdev:\n  port 2: up0 (afxdp: n_rxq=1)\n    RX packets:9 errors:1 dropped:2 overruns:0 frame:0\n    \
                    TX packets:7 errors:0 dropped:4 aborted:0 carrier:0\n    collisions:0\n";
        let drops = drops_in_ports(text);
        assert_eq!((drops["ovs_up0_rx_dropped"], drops["ovs_up0_tx_dropped"]), (2, 4));
        assert_eq!((drops["ovs_up0_rx_errors"], drops.len()), (1, 4));
    }
}
