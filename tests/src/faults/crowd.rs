// SPDX-License-Identifier: Apache-2.0
//! Many more pods on host A: a namespace and a veth each.
//!
//! In: a bed, how many. Out: their names, and their attachments as the control API takes them. Removed on drop. Nothing
//! can be sent between them: their host ends are ports of no bridge.

use std::fmt::Write as _;
use std::process::Command;
use std::time::Duration;

use serde_json::json;

use super::bed::{Bed, PODS_B, UPLINK, path, script};
use super::eventually;

/// The first of their addresses within the host's pods.
const FIRST: usize = 20;
/// So many are in the host's prefix, and as many in each further one.
const PREFIX_PODS: usize = 200;

/// Within this time all their links are up.
const SETTLED_MAX: Duration = Duration::from_secs(30);

/// The pods.
#[derive(Debug)]
pub struct Crowd {
    names: Vec<String>,
}

/// How `ip` is given many commands.
fn batch(namespace: &str, lines: &str) -> String {
    format!("ip {namespace} -batch - <<'END'\n{lines}END\n")
}

impl Crowd {
    /// Sets `count` pods up, 1,000 at most.
    ///
    /// # Panics
    /// When a command fails.
    #[must_use]
    pub fn new(bed: &Bed, count: usize) -> Self {
        let crowd = Self { names: (0..count).map(|index| format!("{}c{index}", bed.pod_a)).collect() };
        let (mut spaces, mut links, mut insides) = (String::new(), String::new(), String::new());
        for (index, pod) in crowd.names.iter().enumerate() {
            let _ = writeln!(spaces, "netns add {pod}");
            let host_end = Self::host_end(index);
            let _ = writeln!(
                links,
                "link add {host_end} mtu 1450 type veth peer name eth0 netns {pod}\nlink set {host_end} up"
            );
            let net = match index / PREFIX_PODS {
                0 => "10.244.0".to_owned(),
                further => format!("10.244.{}", 100 + further),
            };
            let inside = format!(
                "link set eth0 up\naddr add {net}.{}/24 brd + dev eth0\nroute add default via {net}.1\n",
                FIRST + index % PREFIX_PODS
            );
            insides += &batch(&format!("-n {pod}"), &inside);
        }
        let links = batch(&format!("-n {}", bed.host_a), &links);
        if let Err(error) = script(&format!("{}{links}{insides}", batch("", &spaces))) {
            panic!("pods: {error}");
        }
        // The kernel brings links up later, and then gives them their link-local addresses.
        let settled = || {
            let words = ["-n", &bed.host_a, "-o", "-6", "addr", "show", "scope", "link", "-tentative"];
            let output = Command::new("ip").args(words).output().expect("ip");
            let text = String::from_utf8(output.stdout).expect("text");
            text.lines().filter(|line| line.contains(": crowd")).count() == count
        };
        eventually("all pods' links are up", SETTLED_MAX, settled);
        crowd
    }

    /// The pods' namespaces.
    #[must_use]
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// The host's end of a pod's interface.
    #[must_use]
    pub fn host_end(index: usize) -> String {
        format!("crowd{index}")
    }

    /// A pod's attachment, its frames to pod B by VXLAN.
    #[must_use]
    pub fn attachment(&self, index: usize) -> serde_json::Value {
        let peer = json!({ "prefix": PODS_B, "vtep": "192.168.50.2", "mac": "02:00:00:00:01:02" });
        json!({
            "name": format!("crowd-{index}"), "netns": path(&self.names[index]), "interface": "eth0",
            "uplink": UPLINK, "overlay": { "vxlan": { "local": "192.168.50.1", "peers": [peer] } },
        })
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        let left = self.names.iter().filter(|name| std::path::Path::new(&path(name)).exists());
        let lines: String = left.map(|name| format!("netns del {name}\n")).collect();
        let _ = script(&batch("", &lines));
    }
}
