// SPDX-License-Identifier: Apache-2.0
//! `ktsn vm run --clock chrony`: an NTP server on the guest's host, which serves this machine's clock and steers nothing.
//!
//! In: the guest's machine, and the image, which has chronyd and its libraries. Out: a server in the bridge's network namespace, at the
//! bridge's own address and at a port of its own; it ends with the value. Nothing is installed.

use super::cpio;
use super::image::Image;
use super::machine::Machine;
use super::network::{Address, Datapath};
use super::runs::Record;
use crate::command;
use crate::error::LabError;
use crate::sys;
use rustix::fs::{MemfdFlags, memfd_create};
use serde_json::Value;
use std::fs::File;
use std::io::{Read as _, Seek as _};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// chronyd and what it is linked against, in the image's file tree.
const PROGRAM: &str = "usr/sbin/chronyd";
const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu/";
const LOADER: &str = "usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2";
/// How long the server may take to start.
const WITHIN: Duration = Duration::from_secs(10);
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// A server; killed on drop.
#[derive(Debug)]
pub(super) struct TimeServer {
    process: Child,
    address: SocketAddr,
}

impl Drop for TimeServer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The bridge's address from which the guest's is reached without a router, of those that `ip -j addr show` shows.
pub(super) fn address_of(shown: &str, guest: Address) -> Option<IpAddr> {
    let shown: Value = serde_json::from_str(shown).ok()?;
    let entries = shown.as_array()?.iter().filter_map(|device| device["addr_info"].as_array()).flatten();
    let mut addresses = entries.filter_map(|entry| entry["local"].as_str()?.parse::<IpAddr>().ok());
    // A link-local address would need the name of the guest's device, too.
    addresses.find(|&address| {
        guest.reaches(address) && !matches!(address, IpAddr::V6(address) if address.is_unicast_link_local())
    })
}

impl TimeServer {
    /// Starts a server that the machine's device reaches; `record` names it. It must, because chronyd gives up root's rights, and the kernel
    /// then ends it no more with its parent.
    ///
    /// # Errors
    /// [`LabError::Usage`]: the machine has no such device, or the bridge no address there; what keeps chronyd from starting.
    pub(super) fn start(image: &Image, machine: &Machine, record: &mut Record) -> Result<Self, LabError> {
        let (Datapath::Bridge(bridge), Some(guest)) = (&machine.datapath, machine.address) else {
            return Err(LabError::Usage(
                "--clock chrony: expected --datapath bridge:BRIDGE and --address, over which the guest asks this machine for the time"
                    .to_owned(),
            ));
        };
        let namespace = bridge.namespace.as_deref();
        let shown = command::output(namespace, &format!("ip -j addr show dev {}", bridge.name))
            .map_err(|error| LabError::Usage(format!("--clock chrony: {error}")))?;
        let Some(address) = address_of(&shown, guest) else {
            return Err(LabError::Usage(format!(
                "--clock chrony: the bridge {} has no address in the network of {guest}, at which the guest could ask; `ip addr add` gives it one",
                bridge.name
            )));
        };
        let port = free_port(namespace, address)?;
        let root = programs(image)?;
        let said = memfd_create("ktsn-chronyd", MemfdFlags::CLOEXEC)
            .map_err(|error| LabError::system("memfd_create")(error.into()))?;
        let mut said = File::from(said);
        let copy = || said.try_clone().map_err(LabError::system("dup"));
        let mut command = Command::new(root.join(LOADER));
        command.arg("--library-path").arg(root.join(LIBRARIES)).arg(root.join(PROGRAM));
        // -x: it steers nothing. It reads what a guest sends: as a user without rights, with a filter of system calls, and only that guest.
        command.args(["-n", "-x", "-u", "nobody", "-F", "1", if address.is_ipv4() { "-4" } else { "-6" }]);
        command.args([
            format!("port {port}"),
            format!("bindaddress {address}"),
            format!("allow {}", guest.address()),
        ]);
        command.args(["local stratum 8", "cmdport 0", "bindcmdaddress /"]);
        // chronyd insists on a file for its number.
        command.arg(format!("pidfile {}/pid", record.directory()?.display()));
        command.stdin(Stdio::null()).stdout(copy()?).stderr(copy()?);
        sys::inherit(&mut command, &[]);
        if let Some(namespace) = namespace {
            sys::enter_namespace(&mut command, namespace)?;
        }
        let process = command.spawn().map_err(|source| LabError::Start {
            command: root.join(LOADER).display().to_string(),
            source,
            remedy: "; `ktsn vm image --rebuild` makes it again",
        })?;
        let mut server = Self { process, address: SocketAddr::new(address, port) };
        record.name_process(server.process.id())?;
        server.wait(namespace, &mut said)?;
        Ok(server)
    }

    /// Waits until it listens.
    fn wait(&mut self, namespace: Option<&str>, said: &mut File) -> Result<(), LabError> {
        let until = Instant::now() + WITHIN;
        let mut failed = |problem: String| {
            let mut text = String::new();
            let _ = said.rewind().and_then(|()| said.read_to_string(&mut text));
            LabError::Process { name: "chronyd".to_owned(), problem, stderr: format!("; it said: {text}") }
        };
        let line = format!("ss -Hlun sport = :{}", self.address.port());
        while command::output(namespace, &line)?.trim().is_empty() {
            if let Some(status) = self.process.try_wait().map_err(LabError::system("waitpid"))? {
                return Err(failed(format!("ended ({status})")));
            }
            if Instant::now() > until {
                return Err(failed(format!("does not listen at {} after {WITHIN:?}", self.address)));
            }
            std::thread::sleep(LOOK_AGAIN);
        }
        Ok(())
    }

    /// Where it answers: address and port.
    pub(super) const fn address(&self) -> SocketAddr {
        self.address
    }
}

fn bind(namespace: Option<&str>, address: SocketAddr) -> Result<UdpSocket, LabError> {
    match namespace {
        Some(namespace) => sys::within(namespace, || UdpSocket::bind(address)),
        None => UdpSocket::bind(address).map_err(LabError::system("a socket of the bridge's address")),
    }
}

/// A port that is free now: 123 may be this machine's own server's.
fn free_port(namespace: Option<&str>, address: IpAddr) -> Result<u16, LabError> {
    let socket = bind(namespace, SocketAddr::new(address, 0))?;
    socket.local_addr().map(|address| address.port()).map_err(LabError::system("getsockname"))
}

/// chronyd as the image has it, beside the image. It is made as a whole, once.
fn programs(image: &Image) -> Result<PathBuf, LabError> {
    let place = image.directory.join("server");
    if place.exists() {
        return Ok(place);
    }
    let images = image.directory.parent().unwrap_or(&image.directory);
    let work =
        tempfile::Builder::new().prefix(".making-").tempdir_in(images).map_err(LabError::file(images))?;
    let files = image.files();
    let archive = File::open(&files).map_err(LabError::file(&files))?;
    cpio::files(&mut std::io::BufReader::new(archive), &mut |name, mode, content| {
        if name != PROGRAM && !name.starts_with(LIBRARIES) {
            return Ok(());
        }
        let to = work.path().join(name);
        std::fs::create_dir_all(to.parent().unwrap_or(&to))?;
        let mut options = File::options();
        options.write(true).create_new(true).mode(mode);
        std::io::Write::write_all(&mut options.open(&to)?, content)
    })
    .map_err(LabError::file(&files))?;
    let made = work.path().join("server");
    std::fs::create_dir(&made).map_err(LabError::file(&made))?;
    std::fs::rename(work.path().join("usr"), made.join("usr")).map_err(LabError::file(&made))?;
    std::fs::set_permissions(&made, std::fs::Permissions::from_mode(0o755)).map_err(LabError::file(&made))?;
    match std::fs::rename(&made, &place) {
        // Another run was quicker.
        Err(_) if place.exists() => Ok(place),
        done => done.map(|()| place.clone()).map_err(LabError::file(&place)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_server_is_asked_in_the_guests_own_network() {
        let shown = r#"[{"ifname":"br0","addr_info":[{"family":"inet6","local":"fe80::1"},
            {"family":"inet","local":"10.1.0.1"},{"family":"inet","local":"10.0.0.2"},{"family":"inet","local":"10.0.0.1"}]}]"#;
        for (guest, server) in [
            ("10.0.0.2/24", Some("10.0.0.1")),
            ("10.0.0.9/32", None),
            ("10.1.7.7/16", Some("10.1.0.1")),
            ("fe80::2/64", None),
            ("fd00::2/64", None),
        ] {
            let found = address_of(shown, guest.parse().unwrap());
            assert_eq!(found, server.map(|server| server.parse().unwrap()), "{guest}");
        }
        assert_eq!(address_of("no JSON", "10.0.0.2/24".parse().unwrap()), None);
    }
}
