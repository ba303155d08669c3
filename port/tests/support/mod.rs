// SPDX-License-Identifier: Apache-2.0
//! Two network namespaces joined by a veth pair, and a receiver at the far end.
//!
//! In: nothing but the right to make namespaces. Out: frames as they arrived, in order.
//! Names carry the process id and a counter; everything is removed when the value is dropped.
#![allow(dead_code, reason = "each test uses a part")]

use std::num::NonZeroU32;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::{self, Command};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use ktsn_port::{Device, OpenError, in_namespace};
use rustix::io::Errno;
use rustix::net::{AddressFamily, Protocol, RecvFlags, SocketFlags, SocketType, recv, socket_with, sockopt};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// IEEE 802 local experimental EtherType 1: no other program sends it.
pub(crate) const ETHERTYPE: [u8; 2] = [0x88, 0xb5];
/// The near device, which ports are opened on.
pub(crate) const NEAR: &str = "near0";
/// Its peer.
pub(crate) const FAR: &str = "far0";

static COUNTER: AtomicU32 = AtomicU32::new(0);

/// Two namespaces and the pair between them.
pub(crate) struct Bed {
    near: String,
    far: String,
}

/// Runs `ip` and panics with its complaint; what it said.
pub(crate) fn ip(arguments: &str) -> String {
    let output =
        Command::new("ip").args(arguments.split_whitespace()).output().expect("iproute2 is installed");
    assert!(output.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Whether `ip` agrees to do it.
pub(crate) fn ip_succeeds(arguments: &str) -> bool {
    Command::new("ip").args(arguments.split_whitespace()).output().is_ok_and(|output| output.status.success())
}

impl Bed {
    /// Both ends up, nothing else sending.
    pub(crate) fn new() -> Self {
        let number = COUNTER.fetch_add(1, Ordering::Relaxed);
        let name = |end| format!("kport-{}-{number}-{end}", process::id());
        let bed = Self { near: name("near"), far: name("far") };
        for namespace in [&bed.near, &bed.far] {
            ip(&format!("netns add {namespace}"));
            // A device without addresses says nothing, so that every frame seen is ours.
            ip(&format!("netns exec {namespace} sysctl -qw net.ipv6.conf.default.disable_ipv6=1"));
        }
        bed.make_pair();
        bed
    }

    /// Makes the pair (again) and brings both ends up.
    pub(crate) fn make_pair(&self) {
        self.near(&format!("link add {NEAR} type veth peer name {FAR} netns {}", self.far));
        self.near(&format!("link set {NEAR} up"));
        self.far(&format!("link set {FAR} up"));
    }

    /// `ip` in the near namespace.
    pub(crate) fn near(&self, arguments: &str) {
        ip(&format!("-n {} {arguments}", self.near));
    }

    /// `ip` in the far namespace.
    pub(crate) fn far(&self, arguments: &str) {
        ip(&format!("-n {} {arguments}", self.far));
    }

    /// What any command in the far namespace says.
    pub(crate) fn far_run(&self, command: &str) -> String {
        ip(&format!("netns exec {} {command}", self.far))
    }

    /// Whether the far device still exists.
    pub(crate) fn far_exists(&self) -> bool {
        ip_succeeds(&format!("-n {} link show {FAR}", self.far))
    }

    /// Removes the near namespace's name; it lives on as long as a process holds it.
    pub(crate) fn delete_near(&self) {
        ip(&format!("netns del {}", self.near));
    }

    /// The near namespace's file.
    pub(crate) fn near_path(&self) -> PathBuf {
        PathBuf::from(format!("/run/netns/{}", self.near))
    }

    /// The far namespace's file.
    pub(crate) fn far_path(&self) -> PathBuf {
        PathBuf::from(format!("/run/netns/{}", self.far))
    }

    /// Calls `f` with the near device.
    pub(crate) fn with_device<T>(&self, f: impl FnOnce(&Device<'_>) -> T) -> T {
        f(&Device { ifname: NEAR, netns: Some(&self.near_path()) })
    }

    /// A receiver of everything that arrives in the far namespace.
    pub(crate) fn receiver(&self) -> Receiver {
        in_namespace(Some(&self.far_path()), || Ok(Receiver::new()))
            .expect("the far namespace can be entered")
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        for namespace in [&self.near, &self.far] {
            let _already_gone = ip_succeeds(&format!("netns del {namespace}"));
        }
    }
}

/// How long a frame is waited for that must come, and one that must not.
const PATIENCE: Duration = Duration::from_secs(20);
const A_LITTLE: Duration = Duration::from_millis(200);

/// The calling thread, and those that it starts, keep to one CPU: what is sent through a veth from another one may overtake
/// what was sent before.
pub(crate) fn keep_to_one_cpu() {
    let all = sched_getaffinity(None).unwrap();
    let mut only = CpuSet::new();
    only.set((0..CpuSet::MAX_CPU).find(|cpu| all.is_set(*cpu)).unwrap());
    sched_setaffinity(None, &only).unwrap();
}

/// A packet socket that keeps frames with [`ETHERTYPE`] or IPv4.
pub(crate) struct Receiver {
    socket: OwnedFd,
}

impl Receiver {
    fn new() -> Self {
        let all = NonZeroU32::new(u32::from((libc::ETH_P_ALL as u16).to_be())).map(Protocol::from_raw);
        let socket = socket_with(AddressFamily::PACKET, SocketType::RAW, SocketFlags::CLOEXEC, all).unwrap();
        sockopt::set_socket_recv_buffer_size_force(&socket, 32 << 20).unwrap();
        Self { socket }
    }

    /// The octets of the next frame within `patience`.
    fn next(&self, buffer: &mut [u8], patience: Duration) -> Option<usize> {
        sockopt::set_socket_timeout(&self.socket, sockopt::Timeout::Recv, Some(patience)).unwrap();
        loop {
            let octets = match recv(&self.socket, &mut *buffer, RecvFlags::empty()) {
                Ok((octets, _)) => octets,
                Err(Errno::AGAIN | Errno::INTR) => return None,
                Err(error) => panic!("recv: {error}"),
            };
            if buffer[12..14] == ETHERTYPE || buffer[12..14] == [8, 0] || buffer[12..14] == [0x81, 0] {
                return Some(octets);
            }
        }
    }

    /// So many frames, waited for, and every one that comes a little later.
    pub(crate) fn drain(&self, expected: usize) -> Vec<Vec<u8>> {
        let mut buffer = vec![0; 65_536];
        let mut frames = Vec::new();
        let patience = |count| if count < expected { PATIENCE } else { A_LITTLE };
        while let Some(octets) = self.next(&mut buffer, patience(frames.len())) {
            frames.push(buffer[..octets].to_vec());
        }
        frames
    }
}

/// A frame of `octets` with a serial number and a body that depends on it.
pub(crate) fn frame(serial: u32, octets: usize) -> Vec<u8> {
    let mut frame = vec![0; octets];
    frame[..6].copy_from_slice(&[0xff; 6]);
    frame[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 1]);
    frame[12..14].copy_from_slice(&ETHERTYPE);
    frame[14..18].copy_from_slice(&serial.to_be_bytes());
    for (index, octet) in frame[18..].iter_mut().enumerate() {
        *octet = (serial as usize).wrapping_mul(31).wrapping_add(index) as u8;
    }
    frame
}

/// Whether an error means that this kernel can't do it at all.
pub(crate) fn unsupported(error: &OpenError) -> bool {
    matches!(error, OpenError::Unsupported { .. })
}
