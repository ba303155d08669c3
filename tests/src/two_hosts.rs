// SPDX-License-Identifier: Apache-2.0
//! Two hosts, as network namespaces: the second one runs a sshd of its own, with own keys, own configuration, own directory.
//!
//! In: nothing but root's rights. Out: [`Hosts`]. chrony's answers are recorded ones, because no daemon may hold this machine's clock for a
//! test. Everything ends with the value.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::cli::{folder, ktsn, out};
use crate::hook;
use ktsn_eventually::{eventually, make_program};

const SSHD: &str = "/usr/sbin/sshd";
/// How long the other host may take to remove everything.
const CLEAN_MAX: Duration = Duration::from_secs(30);
/// `chronyc -n -c tracking` of chrony 4.3: off by 200 µs / 2 + 10 µs + 150 ns at most.
pub const CHRONY: &str = "C0A80101,192.168.1.1,3,1764155000.1,-0.000000150,0.000000021,0.000000180,-5.123,0.001,0.012,0.000200000,0.000010000,2.1,Normal";
/// Arguments with which the clocks of [`CHRONY`] are near enough.
pub const CLOSE: [&str; 2] = ["--remote-uplink=to-here", "--within=1ms"];

/// Two hosts, which are network namespaces; the second one runs sshd. All of it ends with the value.
pub struct Hosts {
    here: Child,
    there: Child,
    folder: tempfile::TempDir,
}

/// A namespace's first process; it has run `set_up`.
fn namespace(set_up: &str) -> Child {
    let mut child = Command::new("unshare")
        .args([
            "--net",
            "--mount",
            "--kill-child",
            "--fork",
            "sh",
            "-ec",
            &format!("{set_up}\necho ready\nexec cat"),
        ])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("unshare");
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    child
}

/// The process inside `unshare --fork`.
fn inner(child: &Child) -> u32 {
    let path = format!("/proc/{0}/task/{0}/children", child.id());
    std::fs::read_to_string(path).unwrap().trim().parse().unwrap()
}

impl Hosts {
    /// Sets both up.
    ///
    /// # Panics
    /// When a part of it fails.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "it starts processes")]
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let key = |name: &str| {
            let made = Command::new("ssh-keygen")
                .args(["-q", "-t", "ed25519", "-N", "", "-f"])
                .arg(at(name))
                .status();
            assert!(made.expect("openssh-client").success());
            std::fs::read_to_string(at(&format!("{name}.pub"))).unwrap()
        };
        let (host_key, _) = (key("host"), std::fs::write(at("authorized"), key("user")).unwrap());
        std::fs::write(at("known"), format!("peer {host_key}")).unwrap();
        for side in ["here", "there", "scratch"] {
            std::fs::create_dir(at(side)).unwrap();
        }
        let here = namespace("ip link set lo up");
        let configuration = format!(
            "Port 2222\nHostKey {host}\nAuthorizedKeysFile {authorized}\nPidFile none\nUsePAM no\nStrictModes no\nPermitRootLogin \
             prohibit-password\nPasswordAuthentication no\nKbdInteractiveAuthentication no\nSetEnv PATH={there}:/usr/bin:/bin:/usr/sbin:/sbin TMPDIR={scratch}\n",
            host = at("host").display(),
            authorized = at("authorized").display(),
            there = at("there").display(),
            scratch = at("scratch").display()
        );
        std::fs::write(at("sshd_config"), configuration).unwrap();
        // sshd asks for a directory of its own, which this namespace alone sees.
        let there = namespace(&format!(
            "ip link set lo up; ip link add to-here type veth peer name to-there netns {}; ip addr add 192.0.2.2/24 dev to-here\nip link set \
             to-here up; mount -t tmpfs tmpfs /run; mkdir -m 755 /run/sshd; '{}' -f '{}' -E '{}'; until ss -Hltn | grep -q :2222; do sleep 0.02; done",
            inner(&here),
            SSHD,
            at("sshd_config").display(),
            at("sshd.log").display()
        ));
        let hosts = Self { here, there, folder };
        let inside = format!("--net=/proc/{}/ns/net", inner(&hosts.here));
        for line in ["ip addr add 192.0.2.1/24 dev to-there", "ip link set to-there up"] {
            assert!(Command::new("nsenter").arg(&inside).args(line.split(' ')).status().unwrap().success());
        }
        let client = format!(
            "Host peer\nUser root\nHostKeyAlias peer\nProxyCommand nsenter {inside} socat - TCP:192.0.2.2:2222\nIdentityFile {}\nIdentitiesOnly \
             yes\nUserKnownHostsFile {}\nStrictHostKeyChecking yes\n",
            hosts.at("user").display(),
            hosts.at("known").display()
        );
        std::fs::write(hosts.at("ssh_config"), client).unwrap();
        hosts
    }

    /// Two hosts with recorded answers of chrony.
    ///
    /// # Panics
    /// As [`Self::new`].
    #[must_use]
    pub fn held() -> Self {
        let hosts = Self::new();
        for side in ["here", "there"] {
            hosts.program(&format!("{side}/chronyc"), CHRONY);
        }
        hosts
    }

    /// `ktsn bench …` on the first host, with the second side on the second one.
    #[must_use]
    pub fn bench(&self, [here, there]: [&Path; 2], arguments: &[&str]) -> Command {
        let mut command = self.ktsn(here);
        command.current_dir(self.at("here")).arg("bench").args(arguments);
        command.args(["--functional", "--hosts=local,ssh:peer", "--uplink=to-there", "--ssh-config"]);
        command.arg(self.ssh_config()).arg("--remote-ktsn").arg(there);
        command
    }

    /// Namespaces that the second host has.
    ///
    /// # Panics
    /// When `ip` cannot be started there.
    #[must_use]
    pub fn namespaces_there(&self) -> String {
        out(&self.there().args(["ip", "netns", "list"]).output().unwrap())
    }

    /// Waits until the second host has nothing left.
    ///
    /// # Panics
    /// Something stays.
    pub fn wait_until_clean(&self) {
        let left = || (self.left(), self.namespaces_there());
        let what = std::fmt::from_fn(|f| write!(f, "the second host is clean: {:?}", left()));
        eventually(what, CLEAN_MAX, || {
            let (files, namespaces) = left();
            files.is_empty() && namespaces.is_empty()
        });
    }

    /// A file of the test's folder.
    #[must_use]
    pub fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The file for `--ssh-config`.
    #[must_use]
    pub fn ssh_config(&self) -> PathBuf {
        self.at("ssh_config")
    }

    /// This `ktsn` on the first host. It finds that host's programs first.
    #[must_use]
    pub fn ktsn(&self, path: &Path) -> Command {
        let program = ktsn();
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/proc/{}/ns/net", inner(&self.here)));
        for (name, value) in program.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        let search = format!("{}:{}", self.at("here").display(), std::env::var("PATH").unwrap_or_default());
        command.env("PATH", search).arg(path);
        command
    }

    /// A command in the first host's network.
    #[must_use]
    pub fn here(&self) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/proc/{}/ns/net", inner(&self.here)));
        command
    }

    /// A command in the second host's network and file systems.
    #[must_use]
    pub fn there(&self) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--net", "--mount", "--target", &inner(&self.there).to_string()]);
        command
    }

    /// What commands have left on the other host.
    ///
    /// # Panics
    /// When the folder is gone.
    #[must_use]
    pub fn left(&self) -> Vec<PathBuf> {
        std::fs::read_dir(self.at("scratch")).unwrap().flatten().map(|entry| entry.path()).collect()
    }

    /// A program of one side, which writes `text`.
    pub fn program(&self, path: &str, text: &str) -> PathBuf {
        self.script(path, &format!("cat <<'END'\n{text}\nEND"))
    }

    /// A program of one side.
    ///
    /// # Panics
    /// When it cannot be written.
    pub fn script(&self, path: &str, text: &str) -> PathBuf {
        let path = self.at(path);
        make_program(&path, format!("#!/bin/sh\n{text}\n").as_bytes());
        path
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        use std::os::unix::fs::MetadataExt as _;
        for child in [&mut self.there, &mut self.here] {
            // sshd is a daemon: it is found by its namespace, which is held open: a free number would go to the next namespace.
            let first = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", child.id()))
                .unwrap_or_default();
            let held = std::fs::File::open(format!("/proc/{}/ns/net", first.trim()))
                .or_else(|_| std::fs::File::open(format!("/proc/{}/ns/net", child.id())));
            let number = held.as_ref().ok().and_then(|held| held.metadata().ok()).map(|held| held.ino());
            for entry in std::fs::read_dir("/proc").unwrap().flatten() {
                let here = std::fs::metadata(entry.path().join("ns/net")).ok().map(|here| here.ino());
                if number.is_some() && here == number {
                    let _ =
                        Command::new("kill").args(["-KILL", &entry.file_name().to_string_lossy()]).status();
                }
            }
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The number of the process of ssh that carries the session, or the probe, of this `ktsn`.
#[must_use]
pub fn ssh_of(ktsn: u32) -> Option<u32> {
    let children = std::fs::read_to_string(format!("/proc/{ktsn}/task/{ktsn}/children")).ok()?;
    children.split_whitespace().filter_map(|child| child.parse().ok()).find(|child: &u32| {
        let line = std::fs::read(format!("/proc/{child}/cmdline")).unwrap_or_default();
        line.starts_with(b"ssh\0") && line.windows(5).any(|word| word == b"guard")
    })
}

/// `ktsn`, `ktsnd` and `libktsn.so` beside each other, as they are installed.
pub struct Programs {
    folder: tempfile::TempDir,
}

impl Programs {
    /// Puts them together.
    ///
    /// # Panics
    /// When they cannot be linked or copied.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "it builds programs")]
    pub fn new() -> Self {
        // A link needs no second copy of what a debug build is.
        let together = tempfile::tempdir_in(folder()).unwrap();
        let ours = ["ktsn", "ktsn-bench", "ktsnd"].map(|name| folder().join(name));
        for from in ours.iter().map(PathBuf::as_path).chain([hook::library()]) {
            let to = together.path().join(from.file_name().unwrap());
            std::fs::hard_link(from, &to).or_else(|_| std::fs::copy(from, &to).map(drop)).unwrap();
        }
        Self { folder: together }
    }

    /// The command line.
    #[must_use]
    pub fn ktsn(&self) -> PathBuf {
        self.folder.path().join("ktsn")
    }
}
