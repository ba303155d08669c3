// SPDX-License-Identifier: Apache-2.0
//! Many more pods on host A. In: a testbed, how many. Out: pods on its bridge, as the first one; removed on drop.
//!
//! They have IPv4 alone. Their IPv6 would speak by multicast, each word copied to every port of the bridge: thousands of frames in one
//! instant fill the backlog of the CPU (`net.core.netdev_max_backlog`), which the uplink's frames pass here too, as the
//! link between the hosts is a veth; the kernel then throws some of them away (`port_error`, at the port `dropped`).
//!
//! Host B's kernel then drops the overlay's frames behind the tap: on two machines its receive path would not run inside
//! the sender's system call, where with this many frames it would be all that is measured.

use super::{OVERLAY_MTU, POD_INTERFACE, Testbed, UPLINK, VXLAN_PORT, namespace_path};
use crate::command::run;
use crate::error::LabError;
use crate::sys::within;
use std::fmt::Write as _;
use std::path::Path;

/// The first of their addresses within the host's pods.
const FIRST: usize = 20;
/// As many fit into the host's /24.
pub(super) const PODS_MAX: usize = 230;

/// The pods; removed on drop.
#[derive(Debug)]
pub struct Crowd {
    namespaces: Vec<String>,
}

impl Crowd {
    /// Sets `count` pods up; their commands lie in `directory` meanwhile.
    ///
    /// # Errors
    /// [`LabError::Usage`] for more than the bridge has addresses for; else the command that failed. Nothing is left behind.
    pub fn new(testbed: &Testbed, count: usize, directory: &Path) -> Result<Self, LabError> {
        if count > PODS_MAX {
            return Err(LabError::Usage(format!("{count} pods: expected at most {PODS_MAX}")));
        }
        let host = &testbed.a;
        let namespaces: Vec<String> =
            (0..count).map(|index| format!("{}{index}", host.pod_namespace)).collect();
        // Made before anything exists, so that a failure on the way removes what already does.
        let crowd = Self { namespaces };
        let batch = |namespace: Option<&str>, lines: &str| {
            let path = directory.join("pods.batch");
            std::fs::write(&path, lines).map_err(LabError::file(&path))?;
            let within = namespace.map_or_else(String::new, |name| format!("-n {name} "));
            run(None, &format!("ip {within}-batch {}", path.display()))
        };
        let each = |line: &dyn Fn(&str, usize) -> String| {
            let mut lines = String::new();
            for (index, pod) in crowd.namespaces.iter().enumerate() {
                let _ = writeln!(lines, "{}", line(pod, index));
            }
            lines
        };
        batch(None, &each(&|pod, _| format!("netns add {pod}")))?;
        for name in crowd.namespaces.iter().chain([&host.namespace]) {
            within(name, no_more_ipv6)?;
        }
        let veth = |pod: &str, index: usize| {
            format!(
                "link add vethpod{index} mtu {OVERLAY_MTU} type veth peer name {POD_INTERFACE} netns {pod}\n\
                 link set vethpod{index} master cni0 up"
            )
        };
        batch(Some(&host.namespace), &each(&veth))?;
        let [first, second, third, _] = host.bridge_address.octets();
        for (index, pod) in crowd.namespaces.iter().enumerate() {
            let address = format!("{first}.{second}.{third}.{}", FIRST + index);
            let lines = format!(
                "link set lo up\nlink set {POD_INTERFACE} mtu {OVERLAY_MTU} up\naddr add {address}/24 brd + dev {POD_INTERFACE}\n\
                 route add default via {} dev {POD_INTERFACE}\n",
                host.bridge_address
            );
            batch(Some(pod), &lines)?;
        }
        let drop =
            format!("iptables -w -t raw -A PREROUTING -i {UPLINK} -p udp --dport {VXLAN_PORT} -j DROP");
        run(Some(&testbed.b.namespace), &drop)?;
        Ok(crowd)
    }

    /// The names of their namespaces.
    #[must_use]
    pub fn namespaces(&self) -> &[String] {
        &self.namespaces
    }
}

/// Devices that come from now on have no IPv6.
fn no_more_ipv6() -> std::io::Result<()> {
    match std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1") {
        // A kernel without IPv6.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        written => written,
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        for name in &self.namespaces {
            if Path::new(&namespace_path(name)).exists()
                && let Err(error) = run(None, &format!("ip netns del {name}"))
            {
                eprintln!("warning: {error}; remove it with `ip netns del {name}`");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::output;

    #[test]
    fn pods_reach_the_gateway_and_go_without_a_trace() {
        let directory = tempfile::tempdir().unwrap();
        let testbed = Testbed::new().unwrap();
        let crowd = Crowd::new(&testbed, 3, directory.path()).unwrap();
        let names = crowd.namespaces().to_vec();
        for pod in &names {
            let way = output(Some(pod), &format!("ip route get {}", testbed.b.pod_address)).unwrap();
            assert!(way.contains("via 10.244.0.1 dev eth0 src 10.244.0.2"), "{way}");
            let speaks = output(Some(pod), "ip -6 addr show dev eth0").unwrap();
            assert_eq!(speaks, "", "no multicast of its own");
        }
        let speaks =
            output(None, &format!("ip -n {} -6 addr show dev vethpod0", testbed.a.namespace)).unwrap();
        assert_eq!(speaks, "");
        let ports = output(None, &format!("bridge -n {} link show", testbed.a.namespace)).unwrap();
        assert_eq!(ports.matches("master cni0").count(), 4, "{ports}");
        drop(crowd);
        assert!(names.iter().all(|name| !Path::new(&namespace_path(name)).exists()));
        let error = Crowd::new(&testbed, PODS_MAX + 1, directory.path()).unwrap_err();
        assert_eq!(error.exit_status(), 2);
    }
}
