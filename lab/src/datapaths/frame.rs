// SPDX-License-Identifier: Apache-2.0
//! The frames of the experiment: UDP over IPv4 over Ethernet, with the probe of every measured datagram. Pure.
//!
//! In: a direction, a kind, a size. Out: the octets of a frame, and what a received frame is. Frames carry no UDP checksum, which
//! IPv4 allows: so no device has to add one, and frames of one kind differ in their probe only.

use super::path::Direction;
use ktsn_measure::payload::{PROBE_OCTETS, Probe};

/// The station of the virtual machine or its stand-in: the one that `ktsn vm` gives to a guest with the address `GUEST`.
pub const GUEST_MAC: [u8; 6] = [0x02, 0x4b, GUEST[0], GUEST[1], GUEST[2], GUEST[3]];
/// The remote host's station.
pub const REMOTE_MAC: [u8; 6] = [0x02, 0x4b, REMOTE[0], REMOTE[1], REMOTE[2], REMOTE[3]];
/// The streams of the load.
pub const STREAMS: u16 = 3;
/// Octets of payload of the load's frames.
pub const LOAD_OCTETS: usize = 1_400;
/// Octets of a measured payload.
pub const PAYLOAD_OCTETS: usize = 64;

/// The address of the virtual machine or its stand-in.
pub(super) const GUEST: [u8; 4] = [10, 99, 0, 1];
const REMOTE: [u8; 4] = [10, 99, 0, 2];
const MEASURED_PORT: u16 = 7_100;
const LOAD_PORT: u16 = 7_101;
/// Frames that find out whether a path passes frames; they are not counted.
const TRIAL_PORT: u16 = 7_099;
/// Frames that tell a guest what to do next.
const TASK_PORT: u16 = 7_098;
const ETHERNET_OCTETS: usize = 14;
const IPV4_OCTETS: usize = 20;
/// Where the payload begins.
pub(super) const HEADERS: usize = ETHERNET_OCTETS + IPV4_OCTETS + 8;

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A measured one.
    Measured,
    /// One of a stream of the load, from 0.
    Load(u16),
    /// A trial.
    Trial,
    /// What a guest is to do next.
    Task,
}

impl Kind {
    const fn port(self) -> u16 {
        match self {
            Self::Measured => MEASURED_PORT,
            Self::Load(stream) => LOAD_PORT + stream,
            Self::Trial => TRIAL_PORT,
            Self::Task => TASK_PORT,
        }
    }

    fn of_port(port: u16) -> Option<Self> {
        match port {
            MEASURED_PORT => Some(Self::Measured),
            TRIAL_PORT => Some(Self::Trial),
            TASK_PORT => Some(Self::Task),
            LOAD_PORT.. if port < LOAD_PORT + STREAMS => Some(Self::Load(port - LOAD_PORT)),
            _ => None,
        }
    }
}

/// The station's address in text.
#[must_use]
pub fn text(mac: [u8; 6]) -> String {
    mac.map(|octet| format!("{octet:02x}")).join(":")
}

/// A frame with an empty probe.
#[must_use]
pub fn build(direction: Direction, kind: Kind, payload_octets: usize) -> Vec<u8> {
    let payload_octets = payload_octets.max(PROBE_OCTETS);
    let (guest, remote) = ((GUEST_MAC, GUEST), (REMOTE_MAC, REMOTE));
    let (from, to) = match direction {
        Direction::Egress => (guest, remote),
        Direction::Ingress => (remote, guest),
    };
    let udp_octets = 8 + payload_octets as u16;
    let mut ip = vec![0x45, 0];
    ip.extend((IPV4_OCTETS as u16 + udp_octets).to_be_bytes());
    // No identification, not to be fragmented, 64 hops, UDP, the checksum.
    ip.extend([0, 0, 0x40, 0, 64, 17, 0, 0]);
    ip.extend(from.1);
    ip.extend(to.1);
    let checksum = checksum(&ip);
    ip[10..12].copy_from_slice(&checksum.to_be_bytes());
    let mut frame = [&to.0[..], &from.0, &[8, 0], &ip].concat();
    for word in [kind.port(), kind.port(), udp_octets, 0] {
        frame.extend(word.to_be_bytes());
    }
    frame.resize(HEADERS + payload_octets, 0x4b);
    frame
}

/// The Internet checksum of a header (RFC 1071).
fn checksum(header: &[u8]) -> u16 {
    let words = header.chunks_exact(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])));
    let sum: u32 = words.sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    !((sum & 0xffff) + (sum >> 16)) as u16
}

/// Writes the probe into a frame of [`build`].
pub fn set_probe(frame: &mut [u8], probe: Probe) {
    // `build` has made room for it.
    let _has_room = probe.write(&mut frame[HEADERS..]);
}

/// What a received frame is, and its probe; `None`: none of the experiment's.
#[must_use]
pub fn read(frame: &[u8]) -> Option<(Kind, Probe)> {
    let udp = frame.get(ETHERNET_OCTETS + IPV4_OCTETS..HEADERS)?;
    let is_udp = frame[12..15] == [8, 0, 0x45] && frame[ETHERNET_OCTETS + 9] == 17;
    let kind = Kind::of_port(u16::from_be_bytes([udp[2], udp[3]])).filter(|_| is_udp)?;
    Some((kind, Probe::read(&frame[HEADERS..])?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ktsn_time::Tai;

    const KINDS: [Kind; 6] =
        [Kind::Measured, Kind::Load(0), Kind::Load(1), Kind::Load(2), Kind::Trial, Kind::Task];

    #[test]
    fn a_frame_is_read_as_it_was_built() {
        for (direction, kind) in Direction::ALL.into_iter().flat_map(|d| KINDS.map(|kind| (d, kind))) {
            let mut frame = build(direction, kind, PAYLOAD_OCTETS);
            assert_eq!(frame.len(), 42 + 64);
            let probe = Probe { sequence: 7, tx_time: Tai::from_nanos(9) };
            set_probe(&mut frame, probe);
            assert_eq!(read(&frame), Some((kind, probe)));
            let to = if direction == Direction::Egress { REMOTE_MAC } else { GUEST_MAC };
            assert_eq!(frame[..6], to);
            // RFC 1071: with its checksum a header sums up to all ones.
            assert_eq!(checksum(&frame[14..34]), 0);
        }
    }

    #[test]
    fn other_frames_are_none_of_ours() {
        let frame = build(Direction::Egress, Kind::Measured, 64);
        for cut in 0..HEADERS + PROBE_OCTETS {
            assert_eq!(read(&frame[..cut]), None, "{cut}");
        }
        for (at, octet) in [(12, 0x86), (14, 0x46), (23, 6), (36, 0), (37, 200)] {
            let mut other = frame.clone();
            other[at] = octet;
            assert_eq!(read(&other), None, "{at}");
        }
        assert_eq!(text(GUEST_MAC), "02:4b:0a:63:00:01");
    }
}
