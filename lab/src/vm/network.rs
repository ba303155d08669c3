// SPDX-License-Identifier: Apache-2.0
//! Where a guest's network device leads.
//!
//! In: a [`Datapath`]. Out: an [`Attachment`]: the device's other end, which the guest's process
//! inherits and which ends with the value. No device that existed before is changed.

use super::kind::Kind;
use crate::command;
use crate::error::LabError;
use crate::sys;
use crate::testbed::namespace_path;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketType};
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd as _, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

/// The device of [`Datapath::Tap`], in a network namespace of its own.
pub(super) const TAP: &str = "ktsn0";
/// The devices of [`Datapath::Bridge`]: the kernel puts the first free number in.
const BRIDGED_TAP: &str = "ktsn%d";
/// What the kernel allows for a device's name, in octets.
const NAME_OCTETS_MAX: usize = 15;
const EXPECTED: &str =
    "expected none, user, tap, bridge:BRIDGE, bridge:BRIDGE@NAMESPACE or vhost-user:SOCKET";

/// Where the guest's network device leads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Datapath {
    /// There is no device.
    #[default]
    None,
    /// To QEMU's own network, which reaches what the caller reaches; one queue.
    User,
    /// To a tap device in a network namespace of its own, which leads nowhere; several queues; root.
    Tap,
    /// To a tap device that is a port of a bridge; several queues; root.
    Bridge(Bridge),
    /// To a virtual switch that connects to this socket, which QEMU's end of vhost-user listens at; several queues.
    VhostUser(PathBuf),
    /// To a tap or macvtap device that the caller has opened; one queue.
    Opened(Opened),
}

/// The descriptor of a tap or macvtap device with virtio headers.
#[derive(Clone, Debug)]
pub struct Opened {
    /// The descriptor; QEMU gets a copy.
    pub end: Arc<OwnedFd>,
    /// Whether the guest may leave checksums and segments to the device.
    pub offloads: bool,
}

impl PartialEq for Opened {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.end, &other.end) && self.offloads == other.offloads
    }
}

impl Eq for Opened {}

/// A device without partial checksums and large segments.
pub(super) const NO_OFFLOADS: &str =
    ",csum=off,gso=off,guest_csum=off,guest_tso4=off,guest_tso6=off,guest_ufo=off,guest_ecn=off";

/// A bridge that is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bridge {
    /// Its name.
    pub name: String,
    /// Its network namespace's name; `None`: the caller's own namespace.
    pub namespace: Option<String>,
    /// The name of the guest's tap device; `%d` becomes the first free number.
    pub tap: String,
}

impl Bridge {
    /// A bridge of a network namespace (`None`: the caller's own); the tap device is `ktsn0`, `ktsn1`, ….
    #[must_use]
    pub fn new(name: &str, namespace: Option<&str>) -> Self {
        Self { name: name.to_owned(), namespace: namespace.map(str::to_owned), tap: BRIDGED_TAP.to_owned() }
    }
}

impl FromStr for Datapath {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match (text, text.split_once(':')) {
            ("none", _) => Ok(Self::None),
            ("user", _) => Ok(Self::User),
            ("tap", _) => Ok(Self::Tap),
            (_, Some(("bridge", place))) => bridge(place).map(Self::Bridge),
            (_, Some(("vhost-user", socket))) if !socket.is_empty() => Ok(Self::VhostUser(socket.into())),
            _ => Err(EXPECTED.to_owned()),
        }
    }
}

fn bridge(place: &str) -> Result<Bridge, String> {
    let (name, namespace) =
        place.split_once('@').map_or((place, None), |(name, namespace)| (name, Some(namespace)));
    let is_word = |word: &str| {
        !word.is_empty()
            && !word.starts_with(['-', '.'])
            && !word.contains(|c: char| c == '/' || c.is_whitespace())
    };
    if !is_word(name) {
        return Err(format!("{name:?} is no name of a bridge; {EXPECTED}"));
    }
    if name.len() > NAME_OCTETS_MAX {
        return Err(format!(
            "{name:?} has {} octets; a bridge's name has {NAME_OCTETS_MAX} at most",
            name.len()
        ));
    }
    if let Some(namespace) = namespace.filter(|namespace| !is_word(namespace)) {
        return Err(format!("{namespace:?} is no name of a network namespace; {EXPECTED}"));
    }
    Ok(Bridge::new(name, namespace))
}

impl fmt::Display for Datapath {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => out.write_str("none"),
            Self::User => out.write_str("user"),
            Self::Tap => out.write_str("tap"),
            Self::Bridge(Bridge { name, namespace: None, .. }) => write!(out, "bridge:{name}"),
            Self::Bridge(Bridge { name, namespace: Some(namespace), .. }) => {
                write!(out, "bridge:{name}@{namespace}")
            }
            Self::VhostUser(socket) => write!(out, "vhost-user:{}", socket.display()),
            Self::Opened(_) => out.write_str("opened"),
        }
    }
}

impl Datapath {
    /// Whether the guest's device may have an address of the caller's choice, and a MAC address that no other guest has.
    pub(super) const fn is_shared(&self) -> bool {
        matches!(self, Self::Tap | Self::Bridge(_) | Self::VhostUser(_) | Self::Opened(_))
    }
}

/// The address of the guest's network device, with the length of its prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    address: IpAddr,
    prefix: u8,
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || "expected an address with the length of its prefix, such as 10.0.0.2/24".to_owned();
        let (address, prefix) = text.split_once('/').ok_or_else(wrong)?;
        let (address, prefix): (IpAddr, u8) =
            (address.parse().map_err(|_| wrong())?, prefix.parse().map_err(|_| wrong())?);
        let longest = if address.is_ipv4() { 32 } else { 128 };
        if prefix == 0 || prefix > longest || address.is_unspecified() || address.is_multicast() {
            return Err(wrong());
        }
        Ok(Self { address, prefix })
    }
}

impl Address {
    /// Without the length of its prefix.
    pub(super) const fn address(self) -> IpAddr {
        self.address
    }

    /// Whether another address is in the same network, and another one.
    pub(super) fn reaches(self, other: IpAddr) -> bool {
        let bits = |address| match address {
            IpAddr::V4(address) => u128::from(address.to_bits()) << 96,
            IpAddr::V6(address) => address.to_bits(),
        };
        let differ = (bits(self.address) ^ bits(other)).leading_zeros();
        self.address.is_ipv4() == other.is_ipv4() && self.address != other && differ >= self.prefix.into()
    }
}

impl fmt::Display for Address {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}/{}", self.address, self.prefix)
    }
}

/// The other end of a guest's network device; it ends with the value.
#[derive(Debug, Default)]
pub(super) struct Attachment {
    ends: Vec<OwnedFd>,
    /// The names of sockets at which QEMU listens; they are removed.
    pub(super) sockets: Vec<PathBuf>,
}

impl Drop for Attachment {
    fn drop(&mut self) {
        for socket in &self.sockets {
            // Where it cannot be removed, `ktsn vm clean` finds it.
            let _ = std::fs::remove_file(socket);
        }
    }
}

impl Attachment {
    /// Makes the other end of a network device with so many queues, and takes the names of its sockets and the monitor's.
    ///
    /// # Errors
    /// [`LabError::Usage`]: there is no such bridge, or the socket's name is in use; [`LabError::Impossible`] without root's rights; what
    /// the kernel refuses. Nothing stays.
    pub(super) fn new(
        datapath: &Datapath,
        queues: u32,
        monitor: Option<&Path>,
        kind: Kind,
    ) -> Result<Self, LabError> {
        let mut made = match datapath {
            Datapath::Bridge(bridge) => Self::to_bridge(bridge, queues, kind)?,
            Datapath::Tap if kind == Kind::Uml => Self::to_nowhere()?,
            Datapath::VhostUser(socket) => {
                let option = format!("--datapath vhost-user:{}", socket.display());
                Self { ends: Vec::new(), sockets: vec![take_name(&option, socket)?] }
            }
            Datapath::Opened(opened) => {
                let end = opened.end.try_clone().map_err(LabError::system("dup"))?;
                Self { ends: vec![end], sockets: Vec::new() }
            }
            Datapath::None | Datapath::User | Datapath::Tap => Self::default(),
        };
        if let Some(socket) = monitor {
            made.sockets.push(take_name(&format!("--qmp {}", socket.display()), socket)?);
        }
        Ok(made)
    }

    /// The descriptors that the guest's process inherits.
    pub(super) fn ends(&self) -> Vec<RawFd> {
        self.ends.iter().map(|end| end.as_raw_fd()).collect()
    }

    /// A tap device; without its descriptors it is gone.
    fn to_bridge(bridge: &Bridge, queues: u32, kind: Kind) -> Result<Self, LabError> {
        let Bridge { name, namespace, tap } = bridge;
        let place =
            || namespace.as_ref().map_or_else(String::new, |space| format!(" in the namespace {space}"));
        let usage = |problem: String| LabError::Usage(format!("--datapath bridge:{name}: {problem}"));
        if let Some(space) = namespace
            && !Path::new(&namespace_path(space)).exists()
        {
            return Err(usage(format!("there is no network namespace {space}; `ip netns` lists them")));
        }
        let namespace = namespace.as_deref();
        let shown = command::output(namespace, &format!("ip -d -o link show dev {name}")).map_err(|_| {
            usage(format!("there is no device {name}{}; `ip link add {name} type bridge` makes one", place()))
        })?;
        if !shown.contains(" bridge ") {
            return Err(usage(format!("the device {name}{} is no bridge", place())));
        }
        let open = || sys::open_tap(tap, queues, kind == Kind::Qemu);
        let opened = match namespace {
            Some(namespace) => sys::within(namespace, open),
            None => open().map_err(LabError::file("/dev/net/tun")),
        };
        let (tap, ends) = opened.map_err(without_right)?;
        // Before it is up: so it never has an address of its own.
        command::run(namespace, &format!("ip link set dev {tap} master {name} up"))?;
        Ok(Self { ends, sockets: Vec::new() })
    }

    /// A tap device that is up in a network namespace of its own, which ends with the device. QEMU makes its own.
    fn to_nowhere() -> Result<Self, LabError> {
        let opened = sys::in_new_network(|| {
            let (tap, ends) = sys::open_tap(TAP, 1, false).map_err(LabError::file("/dev/net/tun"))?;
            command::run(None, &format!("ip link set dev {tap} up"))?;
            Ok(ends)
        });
        Ok(Self { ends: opened.map_err(without_right)?, sockets: Vec::new() })
    }
}

/// Takes the name of a socket that QEMU listens at; `option` is the caller's word for it. The path, which does not depend on the directory.
fn take_name(option: &str, socket: &Path) -> Result<PathBuf, LabError> {
    let usage = |problem: &str| LabError::Usage(format!("{option}: {problem}"));
    if socket.to_str().is_none_or(|name| name.contains('\n')) {
        return Err(usage("expected a name in UTF-8 without a line break"));
    }
    let refused = |errno: Errno| match errno {
        Errno::ADDRINUSE => usage(
            "it exists: another guest or a switch uses it, or a killed one left it; name another, or remove it",
        ),
        errno => usage(&io::Error::from(errno).to_string()),
    };
    // A name that does not depend on the directory, for `ktsn vm clean`.
    let path = std::path::absolute(socket).map_err(LabError::file(socket))?;
    // QEMU takes every name over that it is given, so the name is taken here first. Nothing listens until QEMU does.
    let address = SocketAddrUnix::new(&path).map_err(refused)?;
    let holder = rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None).map_err(refused)?;
    rustix::net::bind(&holder, &address).map_err(refused)?;
    Ok(path)
}

fn without_right(error: LabError) -> LabError {
    match error {
        LabError::File { source, .. } | LabError::System { source, .. }
            if source.kind() == io::ErrorKind::PermissionDenied =>
        {
            LabError::Impossible {
                what: format!("a tap device: {source}"),
                remedy: "run the command as root, or use --kind qemu --datapath user".to_owned(),
            }
        }
        error => error,
    }
}
