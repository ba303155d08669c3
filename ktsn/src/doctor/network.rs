// SPDX-License-Identifier: Apache-2.0
//! What the kernel's network lets us do: tried, not guessed.
//!
//! The trials run on a thread in a network namespace of its own, with devices of its own; all of it is gone when the
//! thread ends, and nothing outside is touched.

use std::io;
use std::net::UdpSocket;

use rustix::io::Errno;
use rustix::net::netdevice::name_to_index;
use rustix::net::sockopt::{
    set_txtime, set_xdp_tx_ring_size, set_xdp_umem_completion_ring_size, set_xdp_umem_fill_ring_size,
    set_xdp_umem_reg,
};
use rustix::net::xdp::{SocketAddrXdp, SocketAddrXdpFlags, XdpUmemReg, XdpUmemRegFlags};
use rustix::net::{AddressFamily, SocketFlags, SocketType, TxTimeFlags, bind, socket_with};
use rustix::time::ClockId;

use super::finding::{Finding, Look};
use super::netlink::Netlink;
use crate::sys;

const PAGE_OCTETS: usize = 4096;
const PAGES: usize = 4;
const RING_SIZE: u32 = 8;
const DEVICE: &str = "ktsndr0";
const PEER: &str = "ktsndr1";

const IN_OWN_NAMESPACE: &str = "a network namespace of its own";
const TRIALS: Look = Look::at("network_trials", IN_OWN_NAMESPACE);
const PACKET: Look = Look::at("af_packet", "socket(AF_PACKET) in a network namespace of its own");
const XDP: Look =
    Look::at("af_xdp", "bind(AF_XDP, XDP_COPY) on a veth device in a network namespace of its own");
const QDISCS: Look = Look::at(
    "tsn_qdiscs",
    "a request for each in a network namespace of its own (the kernel may load its modules, and keeps them)",
);

/// Memory that AF_XDP accepts: whole pages.
#[repr(C, align(65536))] // the largest page of any kernel: the umem begins on one
struct Pages([u8; PAGE_OCTETS * PAGES]);

/// The results of the trials.
struct Trials {
    af_xdp: io::Result<()>,
    af_packet: io::Result<()>,
    qdiscs: Vec<(&'static str, io::Result<bool>)>,
}

/// All findings about the network.
pub(super) fn findings(daemon_elsewhere: bool) -> Vec<Finding> {
    let trials = std::thread::spawn(|| {
        sys::enter_new_network_namespace()?;
        let netlink = Netlink::open()?;
        // Without veth the loopback device serves the trials as well.
        let device = match netlink.make_veth(DEVICE, PEER) {
            Ok(()) => DEVICE,
            Err(_) => "lo",
        };
        let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
        let index = name_to_index(&socket, device)?;
        let kernel_index = i32::try_from(index).map_err(io::Error::other)?;
        netlink.set_up(index)?;
        Ok::<_, io::Error>(Trials {
            af_xdp: try_af_xdp(index),
            af_packet: try_af_packet(),
            qdiscs: ["etf", "taprio", "fq", "mqprio"]
                .map(|kind| (kind, netlink.has_qdisc(kernel_index, kind)))
                .into(),
        })
    });
    let mut findings = match trials.join() {
        Ok(Ok(trials)) => of_trials(trials),
        Ok(Err(error)) => vec![TRIALS.not_known(
            format!("no network namespace for trials: {error}"),
            "whether AF_XDP and AF_PACKET work here is unknown",
            "run doctor as root, or with CAP_SYS_ADMIN, CAP_NET_ADMIN and CAP_NET_RAW",
        )],
        Err(_) => vec![TRIALS.not_known(
            "the trial's thread ended early",
            "whether AF_XDP and AF_PACKET work here is unknown",
            "report it: this is a fault of doctor",
        )],
    };
    findings.push(txtime());
    findings.into_iter().map(|finding| finding.milder_if(daemon_elsewhere)).collect()
}

/// Which of these queueing disciplines the kernel has, tried on a device of a namespace of its own.
///
/// # Errors
/// The kernel's: EPERM without CAP_SYS_ADMIN.
pub(super) fn qdiscs(kinds: &[&'static str]) -> io::Result<Vec<(&'static str, io::Result<bool>)>> {
    let kinds = kinds.to_vec();
    let trial = std::thread::spawn(move || {
        sys::enter_new_network_namespace()?;
        let netlink = Netlink::open()?;
        let device = netlink.make_veth(DEVICE, PEER).map_or("lo", |()| DEVICE);
        let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
        let index = i32::try_from(name_to_index(&socket, device)?).map_err(io::Error::other)?;
        Ok(kinds.into_iter().map(|kind| (kind, netlink.has_qdisc(index, kind))).collect())
    });
    trial.join().unwrap_or_else(|_| Err(io::Error::other("the trial's thread ended early")))
}

fn of_trials(trials: Trials) -> Vec<Finding> {
    let has_packet = trials.af_packet.is_ok();
    let af_packet = match trials.af_packet {
        Ok(()) => PACKET.ok("a socket was opened", "a port can always fall back to it"),
        Err(error) => PACKET.fail(
            format!("refused: {error}"),
            "ktsnd has no port that works everywhere",
            remedy_of(&error, "CAP_NET_RAW", "CONFIG_PACKET"),
        ),
    };
    let af_xdp = match trials.af_xdp {
        Ok(()) => {
            XDP.ok("a copy-mode socket was bound", "ports use the fastest adapter that needs no driver")
        }
        Err(error) => XDP.warn(
            format!("refused: {error}"),
            if has_packet {
                "ports fall back to AF_PACKET: about 1 µs later on the wire"
            } else {
                "no fast port"
            },
            remedy_of(
                &error,
                "CAP_NET_RAW, CAP_NET_ADMIN and, for its memory, CAP_IPC_LOCK",
                "CONFIG_XDP_SOCKETS",
            ),
        ),
    };
    vec![af_xdp, af_packet, tsn_qdiscs(trials.qdiscs)]
}

fn tsn_qdiscs(answers: Vec<(&'static str, io::Result<bool>)>) -> Finding {
    let (mut there, mut missing, mut unknown) = (Vec::new(), Vec::new(), Vec::new());
    for (kind, answer) in answers {
        match answer {
            Ok(true) => there.push(kind),
            Ok(false) => missing.push(kind),
            Err(error) => unknown.push(format!("{kind} ({error})")),
        }
    }
    let list = |names: &[&str]| if names.is_empty() { "none".to_owned() } else { names.join(" ") };
    let value = format!("available: {}; missing: {}", list(&there), list(&missing));
    let meaning = "KTSN needs none of them; without etf and taprio the kernel itself cannot send by TxTime";
    if unknown.is_empty() && !(there.is_empty() && missing.is_empty()) {
        return QDISCS.ok(value, meaning);
    }
    let remedy = "run doctor as root: it asks the kernel in a network namespace of its own";
    QDISCS.not_known(format!("{value}; not known: {}", unknown.join(", ")), meaning, remedy)
}

fn remedy_of(error: &io::Error, capability: &str, option: &str) -> String {
    match Errno::from_io_error(error) {
        Some(Errno::PERM | Errno::ACCESS) => {
            format!("grant {capability} to ktsnd, for example by running it as root")
        }
        Some(Errno::NOBUFS | Errno::NOMEM) => {
            "raise the limit of locked memory (ulimit -l) or grant CAP_IPC_LOCK".into()
        }
        _ => format!("use a kernel with {option}=y, and a sandbox that allows the socket"),
    }
}

/// Binds a socket in copy mode, as a port does, and lets it go.
fn try_af_xdp(interface_index: u32) -> io::Result<()> {
    // Freed after the socket: the kernel holds the pages as long as the socket lives.
    let memory = Box::new(Pages([0; PAGE_OCTETS * PAGES]));
    let socket = socket_with(AddressFamily::XDP, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
    let region = XdpUmemReg {
        addr: (&raw const *memory).addr() as u64,
        len: (PAGE_OCTETS * PAGES) as u64,
        chunk_size: 2048,
        headroom: 0,
        flags: XdpUmemRegFlags::empty(),
        tx_metadata_len: 0,
    };
    set_xdp_umem_reg(&socket, region)?;
    set_xdp_umem_fill_ring_size(&socket, RING_SIZE)?;
    set_xdp_umem_completion_ring_size(&socket, RING_SIZE)?;
    set_xdp_tx_ring_size(&socket, RING_SIZE)?;
    bind(&socket, &SocketAddrXdp::new(SocketAddrXdpFlags::XDP_COPY, interface_index, 0))?;
    drop(socket);
    drop(memory);
    Ok(())
}

fn try_af_packet() -> io::Result<()> {
    // Protocol 0: nothing is received, and sending needs no more.
    socket_with(AddressFamily::PACKET, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
    Ok(())
}

/// Whether this namespace's kernel honours SO_TXTIME by itself.
fn txtime() -> Finding {
    const LOOK: Look = Look::at(
        "txtime",
        "setsockopt(SO_TXTIME) on a UDP socket; the list of queueing disciplines (RTM_GETQDISC)",
    );
    let accepted = UdpSocket::bind("127.0.0.1:0").and_then(|socket| {
        set_txtime(&socket, ClockId::Monotonic, TxTimeFlags::empty())?;
        Ok(set_txtime(&socket, ClockId::Tai, TxTimeFlags::empty()).is_ok())
    });
    let with_tai = match accepted {
        Ok(with_tai) => with_tai,
        Err(error) => {
            return LOOK.fail(
                format!("setsockopt(SO_TXTIME): {error}"),
                "programs cannot ask for a transmit time, with or without KTSN",
                "use Linux 4.19 or newer, and a sandbox that allows the socket option",
            );
        }
    };
    let clocks = if with_tai {
        "CLOCK_MONOTONIC and CLOCK_TAI"
    } else {
        "CLOCK_MONOTONIC (CLOCK_TAI needs CAP_NET_ADMIN)"
    };
    let qdiscs = match Netlink::open().and_then(|netlink| netlink.qdiscs()) {
        Ok(qdiscs) => qdiscs,
        Err(error) => {
            return LOOK.not_known(
                format!("accepted with {clocks}; queueing disciplines of devices: {error}"),
                "whether the kernel alone delays timed frames here is unknown",
                "allow netlink sockets in the sandbox",
            );
        }
    };
    let mut timed: Vec<&str> =
        qdiscs.iter().map(String::as_str).filter(|kind| matches!(*kind, "etf" | "taprio" | "fq")).collect();
    timed.dedup();
    if timed.is_empty() {
        let value = format!("accepted with {clocks}; no device here has etf, taprio or fq");
        return LOOK
            .ok(value, "the kernel alone would send timed frames at once: run programs by `ktsn run`");
    }
    let value = format!("accepted with {clocks}; devices here have {}", timed.join(" "));
    LOOK.ok(value, "the kernel delays timed frames on those devices; frames that KTSN takes pass them by")
}

#[cfg(test)]
mod tests {
    use super::super::finding::State;
    use super::*;

    #[test]
    fn what_is_refused_has_a_remedy_that_fits() {
        let trials = |error: Errno| Trials {
            af_xdp: Err(error.into()),
            af_packet: Err(error.into()),
            qdiscs: vec![("etf", Ok(false)), ("fq", Ok(true))],
        };
        let findings = of_trials(trials(Errno::PERM));
        assert!(findings[0].remedy.as_deref().unwrap().contains("CAP_NET_RAW"), "{findings:?}");
        assert_eq!(
            (findings[2].state, findings[2].value.as_str()),
            (State::Ok, "available: fq; missing: etf")
        );
        let blind = tsn_qdiscs(vec![("etf", Err(Errno::PERM.into())), ("fq", Ok(true))]);
        assert!(blind.state == State::NotKnown && blind.value.contains("not known: etf ("), "{blind:?}");
        let findings = of_trials(trials(Errno::AFNOSUPPORT));
        assert!(findings[0].remedy.as_deref().unwrap().contains("CONFIG_XDP_SOCKETS"), "{findings:?}");
        assert_eq!(findings[1].state, State::Fail);
    }

    #[test]
    fn the_trials_leave_nothing_behind() {
        let findings = findings(false);
        assert!(findings.iter().any(|finding| finding.name == "txtime"), "{findings:?}");
        assert!(!std::path::Path::new("/sys/class/net").join(DEVICE).exists());
    }
}
