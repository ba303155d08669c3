// SPDX-License-Identifier: Apache-2.0
//! What a passed socket is: a client shows its rights by its sockets, and cannot claim them.
//!  
//! In: a descriptor from a client, which may be anything. Out: facts read from the kernel, or what it is instead. A program that
//! holds a socket's lock blocks a thread that reads the socket's addresses, and a file system blocks a thread that closes its
//! file: only threads that can be left behind call these functions.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrAny, SocketType, getpeername, getsockname, ipproto, sockopt};

use super::sys::{self, SockTxtime};
use crate::worker::LinkKind;

/// What the kernel says about a socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SocketFacts {
    /// Whether it is UDP over IPv4 or IPv6.
    pub udp: bool,
    /// For a packet socket (AF_PACKET): what its payloads are.
    pub link: Option<LinkKind>,
    /// SO_COOKIE.
    pub cookie: u64,
    /// SO_NETNS_COOKIE.
    pub netns_cookie: u64,
    /// Local address.
    pub local: SocketAddr,
    /// Peer, when connected.
    pub peer: Option<SocketAddr>,
    /// Interface index of SO_BINDTODEVICE, 0 = none.
    pub interface: u32,
    /// SO_MARK.
    pub mark: u32,
    /// The user that it belongs to, as routing rules see it.
    pub uid: u32,
    /// SO_TXTIME, where the kernel knows it: clock 0 if it was never set.
    pub txtime: SockTxtime,
}

/// Why a descriptor cannot be examined.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotASocket {
    /// The descriptor is no socket.
    #[error("the descriptor is not a socket")]
    Other,
    /// The kernel refused the request.
    #[error("the kernel does not tell about the socket: {0}")]
    Kernel(Errno),
}

/// Examines a descriptor and closes it: [`examine`], or another function in tests.
pub(super) type Examine = fn(OwnedFd) -> Result<SocketFacts, NotASocket>;

/// Reads the facts and closes the descriptor like `close`.
///
/// # Errors
/// [`NotASocket`].
pub fn examine(fd: OwnedFd) -> Result<SocketFacts, NotASocket> {
    let facts = facts(&fd);
    close(fd);
    facts.map_err(|errno| if errno == Errno::NOTSOCK { NotASocket::Other } else { NotASocket::Kernel(errno) })
}

/// The facts that the kernel returns without the socket's lock: all but addresses.
pub(super) fn facts_without_lock(fd: impl AsFd) -> Result<SocketFacts, Errno> {
    let fd = fd.as_fd();
    let domain = sockopt::socket_domain(fd)?;
    let kind = sockopt::socket_type(fd)?;
    let datagram = kind == SocketType::DGRAM;
    let protocol = sockopt::socket_protocol(fd)?;
    let inet = domain == AddressFamily::INET || domain == AddressFamily::INET6;
    let none = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);
    let kernel = |error: std::io::Error| Errno::from_io_error(&error).unwrap_or(Errno::IO);
    Ok(SocketFacts {
        udp: inet && datagram && protocol == Some(ipproto::UDP),
        link: match kind {
            SocketType::RAW if domain == AddressFamily::PACKET => Some(LinkKind::Frames),
            SocketType::DGRAM if domain == AddressFamily::PACKET => Some(LinkKind::Payloads),
            _ => None,
        },
        cookie: sockopt::socket_cookie(fd)?,
        netns_cookie: sys::netns_cookie(fd).map_err(kernel)?,
        local: none,
        peer: None,
        interface: sys::bound_interface(fd).unwrap_or(0),
        mark: sys::mark(fd).unwrap_or(0),
        uid: rustix::fs::fstat(fd)?.st_uid,
        txtime: sys::txtime(fd).unwrap_or_default(),
    })
}

fn facts(fd: &OwnedFd) -> Result<SocketFacts, Errno> {
    let mut facts = facts_without_lock(fd)?;
    if facts.udp {
        facts.local = address(getsockname(fd)?).unwrap_or(facts.local);
        facts.peer = getpeername(fd).ok().and_then(|a| address(a?));
    }
    Ok(facts)
}

impl SocketFacts {
    /// Whether its close does not block: the socket ignores SO_LINGER. A program that holds its lock holds it open, too.
    pub(super) fn closes_at_once(&self) -> bool {
        self.udp || self.link.is_some()
    }
}

fn address(any: SocketAddrAny) -> Option<SocketAddr> {
    SocketAddr::try_from(any).ok()
}

/// Closes any descriptor. The close may block as long as a file system, or the holder of a lock, likes: only for threads that can
/// be left behind.
pub(super) fn close(fd: OwnedFd) {
    // The close of a socket that lingers would wait for its peer. The call needs no lock, and is refused for other files.
    if matches!(sockopt::socket_linger(&fd), Ok(Some(_))) {
        let _ = sockopt::set_socket_linger(&fd, None);
    }
    drop(fd);
}

/// A descriptor that is readable when the process at the other end of `connection` ends, and its pid.
pub(super) fn process_of(connection: impl AsFd) -> (Option<OwnedFd>, u32) {
    let connection = connection.as_fd();
    let pid = sys::peer_credentials(connection).map_or(0, |(pid, _)| pid);
    let by_pid = || {
        let pid = rustix::process::Pid::from_raw(pid)?;
        rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).ok()
    };
    (sys::peer_pidfd(connection).ok().or_else(by_pid), u32::try_from(pid).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_udp_socket_tells_its_addresses_and_namespace() {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let local = socket.local_addr().unwrap();
        socket.connect("127.0.0.1:9").unwrap();
        let facts = examine(socket.into()).unwrap();
        assert!(facts.udp && facts.cookie != 0 && facts.netns_cookie != 0);
        assert_eq!(facts.local, local);
        assert_eq!(facts.peer, Some("127.0.0.1:9".parse().unwrap()));
    }

    #[test]
    fn anything_else_is_told_apart() {
        let file = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(examine(file.into()), Err(NotASocket::Other));
        let tcp = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        assert!(!examine(tcp.into()).unwrap().udp);
        let (unix, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        assert!(!examine(unix.into()).unwrap().udp);
    }

    #[test]
    fn a_lingering_socket_does_not_hold_us() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (_peer, _) = listener.accept().unwrap();
        sockopt::set_socket_linger(&stream, Some(Duration::from_secs(60))).unwrap();
        use std::io::Write;
        stream.set_nonblocking(true).unwrap();
        // Fill the way so that a lingering close would wait.
        while (&stream).write(&[0; 65536]).is_ok() {}
        let began = std::time::Instant::now();
        assert!(!examine(stream.into()).unwrap().udp);
        assert!(began.elapsed() < Duration::from_secs(5));
    }
}
