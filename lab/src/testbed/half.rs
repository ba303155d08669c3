// SPDX-License-Identifier: Apache-2.0
//! One half of a testbed; the other half is on another machine.
//!
//! In: which half, the machine's device that leads to the other one, the number that both halves share. Out: a [`Testbed`] of which one host
//! exists here. The uplink is a macvlan on that device: the device itself, its addresses and its queueing discipline are not touched. All
//! that others on the same wire can see are frames between two MAC addresses of the testbed's own: the uplinks answer no ARP.

use super::{Host, SETTLE_PORT, Testbed, UPLINK, check_name, flannel, new_stem};
use crate::command::run;
use crate::error::LabError;
use crate::sys;
use std::net::{Ipv4Addr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long the first datagram through the new overlay may take.
const SETTLE_MAX: Duration = Duration::from_secs(5);
const TRY_AGAIN: Duration = Duration::from_millis(100);

/// Which half.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Half {
    /// The talker's or controller's host.
    A,
    /// The listener's or device's host.
    B,
}

impl Host {
    /// A host of a testbed on two machines. Addresses are of the block for benchmarks (RFC 2544), which no site uses.
    fn apart(stem: &str, letter: char, last: u8, number: u16) -> Self {
        let [high, low] = number.to_be_bytes();
        Self {
            address: Ipv4Addr::new(198, 18 + (high & 1), low, last + 1),
            uplink_mac: format!("02:4b:{high:02x}:{low:02x}:00:0{}", last + 1),
            ..Self::new(stem, letter, last)
        }
    }
}

/// What passes an uplink that is a macvlan.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Passes<'a> {
    /// Frames to this MAC address, which is the uplink's.
    Own(&'a str),
    /// Frames from the other host's stations with these MAC addresses, whatever their destination: the uplink is a port of a bridge or of a
    /// switch.
    From(&'a [String]),
}

/// Makes `uplink` in a namespace, as a macvlan on a device of the machine. `options`: further words for `ip link add`, or none.
///
/// # Errors
/// [`LabError::Impossible`]: there is no such device, or it carries no macvlan.
pub(crate) fn connect(
    namespace: &str,
    uplink: &str,
    passes: Passes<'_>,
    device: &str,
    options: &str,
) -> Result<(), LabError> {
    check_name(device)?;
    if device.starts_with('-') {
        return Err(LabError::Usage(format!("{device}: expected the name of a device")));
    }
    let impossible = |error: LabError| {
        LabError::Impossible {
        what: format!("the device {device} cannot be the uplink: {error}"),
        remedy: "name the wired device that leads to the other host (--uplink, --remote-uplink; `ip link` shows them)"
            .to_owned(),
    }
    };
    let (address, mode) = match passes {
        Passes::Own(mac) => (format!("address {mac}"), "private".to_owned()),
        Passes::From(stations) => (String::new(), format!("source macaddr set {}", stations.join(" "))),
    };
    let line = format!(
        "ip link add link {device} name {uplink} netns {namespace} {address} {options} type macvlan mode {mode}"
    );
    run(None, &line).map_err(impossible)
}

impl Testbed {
    /// Sets one half up. Frames pass once the other one stands, too ([`Self::settle_with_echo`]).
    ///
    /// # Errors
    /// [`LabError::Impossible`] without the rights or the device, else the command that failed. Nothing is left behind.
    pub fn half(half: Half, device: &str, number: u16) -> Result<Self, LabError> {
        let stem = new_stem()?;
        let host = |letter, last| Host::apart(&stem, letter, last, number);
        // Made before anything exists, so that a failure on the way removes what already does.
        let testbed = Self { a: host('a', 0), b: host('b', 1) };
        let (own, peer) = match half {
            Half::A => (&testbed.a, &testbed.b),
            Half::B => (&testbed.b, &testbed.a),
        };
        let ns = &own.namespace;
        for name in [ns, &own.pod_namespace] {
            run(None, &format!("ip netns add {name}"))?;
            run(None, &format!("ip -n {name} link set lo up"))?;
        }
        connect(ns, UPLINK, Passes::Own(&own.uplink_mac), device, "")?;
        // Nothing is asked on the wire and nothing is answered: both ends are known.
        for line in [
            format!("ip -n {ns} link set {UPLINK} arp off"),
            format!("ip -n {ns} addr add {}/24 dev {UPLINK}", own.address),
            format!("ip -n {ns} link set {UPLINK} up"),
            format!(
                "ip -n {ns} neigh replace {} lladdr {} dev {UPLINK} nud permanent",
                peer.address, peer.uplink_mac
            ),
        ] {
            run(None, &line)?;
        }
        flannel::host(own, peer)?;
        Ok(testbed)
    }

    /// Sends datagrams to the pod of host B on the other machine until its [`Echo`] answers.
    ///
    /// # Errors
    /// Nothing passes.
    pub fn settle_with_echo(&self) -> Result<(), LabError> {
        settle(&self.a.pod_namespace, self.a.pod_address, self.b.pod_address)
    }
}

/// Sends datagrams from an address of a namespace until the [`Echo`] at the other one answers.
///
/// # Errors
/// Nothing passes.
pub(crate) fn settle(namespace: &str, from: Ipv4Addr, to: Ipv4Addr) -> Result<(), LabError> {
    let socket = sys::within(namespace, || UdpSocket::bind((from, 0)))?;
    let begun = Instant::now();
    socket.set_read_timeout(Some(TRY_AGAIN)).map_err(LabError::system("setsockopt"))?;
    while begun.elapsed() < SETTLE_MAX {
        // The first ones may be refused or lost.
        if socket.send_to(b"settle", (to, SETTLE_PORT)).and_then(|_| socket.recv(&mut [0; 16])).is_ok() {
            return Ok(());
        }
        std::thread::sleep(TRY_AGAIN / 10);
    }
    Err(LabError::Impossible {
        what: "no datagram passes between both hosts by the given devices".to_owned(),
        remedy: "both devices must be on one Ethernet segment whose switches take frames of further MAC addresses \
                 (macvlan); name others with --uplink and --remote-uplink"
            .to_owned(),
    })
}

/// Answers datagrams; ends with the value.
#[derive(Debug)]
pub struct Echo {
    is_over: Arc<AtomicBool>,
}

impl Echo {
    /// Starts it.
    ///
    /// # Errors
    /// The socket cannot be made.
    pub fn start(host: &Host) -> Result<Self, LabError> {
        Self::at(&host.pod_namespace, host.pod_address)
    }

    /// The same at an address of a namespace.
    pub(crate) fn at(namespace: &str, at: Ipv4Addr) -> Result<Self, LabError> {
        let socket = sys::within(namespace, move || {
            let socket = UdpSocket::bind((at, SETTLE_PORT))?;
            socket.set_read_timeout(Some(TRY_AGAIN))?;
            Ok(socket)
        })?;
        let is_over = Arc::new(AtomicBool::new(false));
        let over = is_over.clone();
        std::thread::spawn(move || {
            let mut octets = [0; 16];
            while !over.load(Ordering::Relaxed) {
                if let Ok((length, from)) = socket.recv_from(&mut octets) {
                    // The sender asks again.
                    let _ = socket.send_to(&octets[..length], from);
                }
            }
        });
        Ok(Self { is_over })
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}
