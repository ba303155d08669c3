// SPDX-License-Identifier: BSD-2-Clause
//! DPDK's testpmd as a backend: one vhost-user port whose frames it sends back (io mode). No PCI, no huge pages, files of its own.

use std::io::Write as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

static COUNTER: AtomicU32 = AtomicU32::new(0);

/// A running testpmd; killed and its files removed when it is dropped.
pub(crate) struct Testpmd {
    child: Child,
    prefix: String,
}

/// Whether testpmd listens at the socket, or connects to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    Listens,
    Connects,
}

/// Whether Debian's package dpdk-dev is installed.
pub(crate) fn is_installed() -> bool {
    Command::new("dpdk-testpmd").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok()
}

impl Testpmd {
    pub(crate) fn start(folder: &Path, socket: &Path, role: Role, queues: u16) -> Self {
        let number = COUNTER.fetch_add(1, Ordering::Relaxed);
        let prefix = format!("ktsn-testpmd-{}-{number}", std::process::id());
        let client = u8::from(role == Role::Connects);
        let device = format!("net_vhost0,iface={},queues={queues},client={client}", socket.display());
        let log = std::fs::File::create(folder.join(format!("testpmd-{number}.log"))).expect("log");
        let last = std::thread::available_parallelism().map_or(1, usize::from) - 1;
        let child = Command::new("dpdk-testpmd")
            .args(["--no-pci", "--no-huge", "-m", "256", "--no-telemetry", "--no-shconf"])
            .args(["--file-prefix", &prefix, "--lcores", &format!("0@0,1@{last}"), "--vdev", &device])
            .args(["--", "-i", "--nb-cores=1", "--forward-mode=io", "--auto-start", "--total-num-mbufs=8192"])
            .args([format!("--rxq={queues}"), format!("--txq={queues}")])
            .env("RUNTIME_DIRECTORY", folder)
            .env("XDG_RUNTIME_DIR", folder)
            .stdin(Stdio::piped())
            .stdout(log.try_clone().expect("log"))
            .stderr(log)
            .spawn()
            .expect("dpdk-testpmd");
        Self { child, prefix }
    }

    /// As `kill -9`.
    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("killed");
        let status = self.child.wait().expect("status");
        assert_eq!(status.signal(), Some(9), "it ran until now: {status}");
    }
}

impl Drop for Testpmd {
    fn drop(&mut self) {
        if let Some(stdin) = &mut self.child.stdin {
            let _ended_already = stdin.write_all(b"quit\n");
        }
        let _ended_already = self.child.kill();
        let _ended_already = self.child.wait();
        let _none = std::fs::remove_dir_all(Path::new("/var/run/dpdk").join(&self.prefix));
    }
}
