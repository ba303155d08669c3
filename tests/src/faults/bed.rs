// SPDX-License-Identifier: Apache-2.0
//! Two hosts as Flannel sets them up, a pod on each and a second pod on the first; IPv4 and IPv6.
//!
//! In: nothing but root's rights. Out: names, addresses, and a way to run things in a namespace. Removed on drop.
//! It is not for timing: rules and connection tracking are left out.
//!
//! ```text
//!   pod A ── cni0 ── flannel.1 ── uplink ════ uplink ── flannel.1 ── cni0 ── pod B
//!   pod Q ──┘        host A                     host B
//! ```

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// The device between the hosts, at both ends.
pub const UPLINK: &str = "uplink";
/// Address of pod A.
pub const POD_A: &str = "10.244.0.5";
/// Address of pod B.
pub const POD_B: &str = "10.244.1.5";
/// Address of the second pod on host A.
pub const POD_Q: &str = "10.244.0.6";
/// IPv6 address of pod B.
pub const POD_B6: &str = "fd10:244:0:1::5";
/// The prefix of the pods of host B.
pub const PODS_B: &str = "10.244.1.0/24";

static COUNTER: AtomicU32 = AtomicU32::new(0);

/// The namespaces of one test.
#[derive(Debug)]
pub struct Bed {
    /// Where ktsnd runs.
    pub host_a: String,
    /// The listening side's host.
    pub host_b: String,
    /// The attached pod.
    pub pod_a: String,
    /// The listening pod.
    pub pod_b: String,
    /// Another pod on host A, attached when a test says so.
    pub pod_q: String,
}

/// Runs `work` on a thread of its own inside a namespace. Processes that it starts are inside, too.
///
/// # Panics
/// When there is no such namespace, or `work` panics.
pub fn within<T: Send>(namespace: &str, work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let inside = scope.spawn(|| {
            let place = std::fs::File::open(path(namespace)).expect("namespace");
            move_into_link_name_space(std::os::fd::AsFd::as_fd(&place), Some(LinkNameSpaceType::Network))
                .expect("entering a namespace needs root's rights");
            work()
        });
        inside.join().expect("the thread inside the namespace")
    })
}

/// Where a namespace is mounted.
#[must_use]
pub fn path(namespace: &str) -> String {
    format!("/run/netns/{namespace}")
}

/// Runs a shell script; its complaint when it failed.
pub(super) fn script(text: &str) -> Result<(), String> {
    let mut shell = Command::new("sh")
        .arg("-e")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| e.to_string())?;
    let mut input = shell.stdin.take().ok_or("no input")?;
    input.write_all(text.as_bytes()).map_err(|e| e.to_string())?;
    drop(input);
    let output = shell.wait_with_output().map_err(|e| e.to_string())?;
    if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
}

impl Bed {
    /// Sets it up.
    ///
    /// # Panics
    /// When a command fails: the test cannot go on then.
    #[must_use]
    #[allow(clippy::new_without_default)]
    pub fn new() -> Self {
        let stem = format!("ktsnf{}-{}", std::process::id(), COUNTER.fetch_add(1, Relaxed));
        let name = |last: &str| format!("{stem}{last}");
        let bed = Self {
            host_a: name("ha"),
            host_b: name("hb"),
            pod_a: name("pa"),
            pod_b: name("pb"),
            pod_q: name("qa"),
        };
        if let Err(error) = script(&bed.commands()) {
            panic!("testbed: {error}");
        }
        bed
    }

    fn names(&self) -> [&str; 5] {
        [&self.host_a, &self.host_b, &self.pod_a, &self.pod_b, &self.pod_q]
    }

    fn commands(&self) -> String {
        let mut text = String::new();
        for name in self.names() {
            text += &format!(
                "ip netns add {name}\nip netns exec {name} sysctl -qw net.ipv6.conf.default.accept_dad=0 \
                 net.ipv6.conf.all.accept_dad=0\nip -n {name} link set lo up\n"
            );
        }
        let (a, b) = (&self.host_a, &self.host_b);
        text += &format!(
            "ip -n {a} link add {UPLINK} address 02:00:00:00:00:01 type veth peer name {UPLINK} address 02:00:00:00:00:02 netns {b}\n"
        );
        for (host, n, m) in [(a, 0, 1), (b, 1, 0)] {
            text += &host_commands(host, n, m);
        }
        for (host, pod, n, last) in [(a, &self.pod_a, 0, 5), (a, &self.pod_q, 0, 6), (b, &self.pod_b, 1, 5)] {
            text += &pod_commands(host, pod, n, last);
        }
        text
    }

    /// Runs one `ip` or other command line, without a shell's quoting.
    ///
    /// # Panics
    /// When it fails.
    pub fn run(&self, line: &str) {
        if let Err(error) = script(line) {
            panic!("{line}: {error}");
        }
    }

    /// Takes the uplink away for 300 ms: another device comes back under its name, with its addresses and no neighbours.
    ///
    /// # Panics
    /// When that fails.
    pub fn replace_uplink(&self) {
        let (a, b) = (&self.host_a, &self.host_b);
        self.run(&format!("ip -n {a} link del {UPLINK}"));
        std::thread::sleep(std::time::Duration::from_millis(300));
        self.run(&format!(
            "ip -n {a} link add {UPLINK} address 02:00:00:00:00:11 type veth peer name {UPLINK} address 02:00:00:00:00:02 netns {b}
ip -n {a} addr add 192.168.50.1/24 dev {UPLINK}
ip -n {b} addr add 192.168.50.2/24 dev {UPLINK}
ip -n {a} link set {UPLINK} up
ip -n {b} link set {UPLINK} up
"
        ));
    }

    /// Gives pod Q an interface again after it has lost its own.
    ///
    /// # Panics
    /// When that fails.
    pub fn restore_pod_q(&self) {
        self.run(&pod_commands(&self.host_a, &self.pod_q, 0, 6));
    }

    /// Removes a namespace by name, as a container runtime does.
    ///
    /// # Panics
    /// When it fails.
    pub fn delete(&self, namespace: &str) {
        self.run(&format!("ip netns del {namespace}"));
    }

    /// Four megaoctets by TCP from pod A to pod B: they arrive as they were sent.
    ///
    /// # Panics
    /// When they do not.
    pub fn stream_is_byte_exact(&self) {
        let listener = within(&self.pod_b, || TcpListener::bind((POD_B, 7000)).expect("listener"));
        let octets: Vec<u8> =
            (0..4_000_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let mut heard = Vec::new();
                listener.accept().expect("a connection").0.read_to_end(&mut heard).expect("all of it");
                heard
            });
            let mut stream = within(&self.pod_a, || TcpStream::connect((POD_B, 7000)).expect("connect"));
            stream.write_all(&octets).expect("sent");
            drop(stream);
            assert!(reader.join().expect("read") == octets, "TCP is byte exact");
        });
    }

    /// Whether host A still has the host's end of a pod's interface.
    #[must_use]
    pub fn has_link(&self, device: &str) -> bool {
        script(&format!("ip -n {} link show {device}", self.host_a)).is_ok()
    }
}

fn host_commands(host: &str, n: u8, m: u8) -> String {
    let (local, remote) = (n + 1, m + 1);
    format!(
        "ip -n {host} addr add 192.168.50.{local}/24 dev {UPLINK}
ip -n {host} link set {UPLINK} up
ip -n {host} neigh replace 192.168.50.{remote} lladdr 02:00:00:00:00:0{remote} dev {UPLINK} nud permanent
ip netns exec {host} sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1
ip -n {host} link add cni0 type bridge
ip -n {host} link set cni0 mtu 1450 up
ip -n {host} addr add 10.244.{n}.1/24 dev cni0
ip -n {host} addr add fd10:244:0:{n}::1/64 dev cni0 nodad
ip -n {host} link add flannel.1 address 02:00:00:00:01:0{local} mtu 1450 type vxlan id 1 \
local 192.168.50.{local} dev {UPLINK} dstport 8472 nolearning
ip -n {host} addr add 10.244.{n}.0/32 dev flannel.1
ip -n {host} link set flannel.1 up
ip -n {host} neigh add 10.244.{m}.0 lladdr 02:00:00:00:01:0{remote} dev flannel.1 nud permanent
ip -n {host} neigh add fd10:244:0:{m}::aa lladdr 02:00:00:00:01:0{remote} dev flannel.1 nud permanent
ip -n {host} route add 10.244.{m}.0/24 via 10.244.{m}.0 dev flannel.1 onlink
ip -n {host} -6 route add fd10:244:0:{m}::/64 via fd10:244:0:{m}::aa dev flannel.1 onlink
bridge -n {host} fdb add 02:00:00:00:01:0{remote} dev flannel.1 dst 192.168.50.{remote}
"
    )
}

/// The host's end is called after the pod's address.
fn pod_commands(host: &str, pod: &str, n: u8, last: u8) -> String {
    format!(
        "ip -n {host} link add pod{last} mtu 1450 type veth peer name eth0 netns {pod}
ip -n {host} link set pod{last} master cni0 up
ip -n {pod} link set eth0 mtu 1450 up
ip -n {pod} addr add 10.244.{n}.{last}/24 brd + dev eth0
ip -n {pod} addr add fd10:244:0:{n}::{last}/64 dev eth0 nodad
ip -n {pod} route add default via 10.244.{n}.1
ip -n {pod} -6 route add default via fd10:244:0:{n}::1
"
    )
}

impl Drop for Bed {
    fn drop(&mut self) {
        for name in self.names() {
            if std::path::Path::new(&path(name)).exists() {
                let _ = script(&format!("ip netns del {name}"));
            }
        }
    }
}
