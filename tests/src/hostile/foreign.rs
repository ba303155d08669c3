// SPDX-License-Identifier: Apache-2.0
//! Addresses that are not the pod's: as source of what it sends, and as destination of what it would take in.
//!
//! In: a testbed with its daemon. Out: how many frames got where they must not. Nothing is timed.
//!
//! ```text
//!  source   pod Q, 10.244.0.6, sends as 10.244.0.5 (pod A's), 10.244.1.7, 192.168.50.99, 8.8.8.8 ── uplink of host B: 0 frames
//!  short    pod A takes the address of pod Q, of the bridge or of flannel.1 ── frames to them: 0 redirected into pod A
//! ```

use std::net::{Ipv4Addr, UdpSocket};
use std::path::Path;
use std::time::Duration;

use super::{ATTACKER, Attack};
use crate::faults::bed::{Bed, POD_A, POD_Q, UPLINK, within};
use crate::faults::daemon::{self, Daemon};
use crate::faults::frames::Frames;
use ktsn_eventually::try_eventually;

/// Frames of each try.
pub const FRAMES: u64 = 50;
/// Addresses that are never pod Q's: pod A's, one that no pod has, one of the nodes' network, one of the world.
pub const FOREIGN: [&str; 4] = [POD_A, "10.244.1.7", "192.168.50.99", "8.8.8.8"];
/// Addresses that are never pod A's: pod Q's, the bridge's and the VXLAN device's.
pub const NOT_ITS_OWN: [&str; 3] = [POD_Q, "10.244.0.1", "10.244.0.0"];
/// Until the daemon knows of an address that has come, and frames have left.
const SETTLE: Duration = Duration::from_millis(400);
const SENDER: u32 = 31;
const PORT: u16 = 9;

/// How a pod comes to a foreign source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// A socket bound to it by `IP_FREEBIND`.
    Bound,
    /// The pod's root gives the interface that address first.
    Added,
    /// A packet socket's frame with that source.
    Raw,
    /// A packet socket's ARP request with that sender.
    Arp,
    /// A whole frame behind a VLAN tag.
    Tagged,
}

impl Way {
    /// The arguments of the attacking program.
    const fn keys(self) -> &'static str {
        match self {
            Self::Bound | Self::Added => "raw=0",
            Self::Raw => "raw=1",
            Self::Arp => "raw=1 arp=1",
            Self::Tagged => "raw=1 tag=5",
        }
    }

    /// Whether the attacker's attachment is a [`segment`].
    #[must_use]
    pub const fn is_raw(self) -> bool {
        !matches!(self, Self::Bound | Self::Added)
    }
}

/// What became of the frames of one try.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tried {
    /// The address.
    pub address: String,
    /// Frames that the program gave to the daemon.
    pub pushed: u64,
    /// Frames that got where this address must not: onto the wire, into the pod.
    pub reached: u64,
}

/// The attacker's table for whole frames: a segment of its own.
#[must_use]
pub fn segment(bed: &Bed) -> String {
    format!(
        "[[attachment]]\nname = \"{ATTACKER}\"\nnetns = \"{}\"\ninterface = \"eth0\"\nuplink = \"{UPLINK}\"\n\
         destinations = [\"02:00:00:00:09:09\", \"0.0.0.0/0\"]\n\
         overlay = {{ vxlan = {{ mode = \"bridged\", vni = 77, local = \"192.168.50.1\", peers = [ {{ mac = \
         \"02:00:00:00:09:09\", vtep = \"192.168.50.2\" }} ] }} }}\n",
        bed.pod_q
    )
}

/// Sends [`FRAMES`] frames from pod Q with the source `address`, and counts those at the uplink of host B.
///
/// # Errors
/// The attack could not begin.
pub fn source(bed: &Bed, run_dir: &Path, way: Way, address: &str) -> Result<Tried, String> {
    let wire = Frames::open(&bed.host_b, UPLINK);
    let is_added = way == Way::Added && address != POD_Q;
    if is_added {
        bed.run(&format!("ip -n {} addr add {address}/32 dev eth0", bed.pod_q));
        // ktsnd has seen the address by then. It tells nothing of an address that is not the attachment's.
        std::thread::sleep(SETTLE);
    }
    let words = format!("send frames={FRAMES} from={address} {} sender={SENDER}", way.keys());
    let pushed = Attack::start(run_dir, &bed.pod_q, &words).map(|mut attack| run(&mut attack));
    if is_added {
        bed.run(&format!("ip -n {} addr del {address}/32 dev eth0", bed.pod_q));
    }
    let wanted: Ipv4Addr = address.parse().map_err(|_| format!("{address}: no address"))?;
    let has_it = |frame: &[u8]| frame.windows(4).any(|octets| octets == wanted.octets());
    let reached = wire.arrived().iter().filter(|one| one.kind == SENDER && has_it(&one.frame)).count() as u64;
    Ok(Tried { address: address.to_owned(), pushed: pushed?, reached })
}

/// Lets it send all, and ends it.
fn run(attack: &mut Attack) -> u64 {
    try_eventually(25 * SETTLE, || !attack.values("pushed").is_empty() || attack.has_ended());
    // No frame may arrive.
    std::thread::sleep(SETTLE);
    attack.end();
    attack.value("pushed").unsigned_abs()
}

/// A daemon on host A whose pod A takes the ingress fast path, and one on host B that sends for pod B.
#[derive(Debug)]
pub struct Short {
    /// On host A.
    pub receiving: Daemon,
    /// On host B.
    pub sending: Daemon,
}

impl Short {
    /// Starts both, of this program or of this build's.
    #[must_use]
    pub fn start(bed: &Bed, program: Option<&Path>) -> Self {
        let table = |name: &str, namespace: &str, (local, remote): (u8, u8), more: &str| {
            format!(
                "{}[[attachment]]\nname = \"{name}\"\nnetns = \"{namespace}\"\ninterface = \"eth0\"\nuplink = \"{UPLINK}\"\n{more}\
                 overlay = {{ vxlan = {{ local = \"192.168.50.{local}\", peers = [\n  {{ prefix = \"10.244.{}.0/24\", vtep = \
                 \"192.168.50.{remote}\", mac = \"02:00:00:00:01:0{remote}\" }} ] }} }}\n",
                daemon::port("auto"),
                remote - 1
            )
        };
        let start = |host: &str, text: &str| {
            let daemon = Daemon::prepare(host, text);
            let mut daemon = match program {
                Some(program) => daemon.of(program),
                None => daemon,
            };
            daemon.spawn();
            daemon
        };
        Self {
            receiving: start(&bed.host_a, &table(ATTACKER, &bed.pod_a, (1, 2), "ingress = \"short\"\n")),
            sending: start(&bed.host_b, &table("sender", &bed.pod_b, (2, 1), "")),
        }
    }

    fn taken(&self) -> u64 {
        self.receiving.control().counters(ATTACKER).ingress.map_or(0, |counters| counters.taken)
    }

    /// Sends [`FRAMES`] frames to `address` after pod A has taken it, and counts those that come into pod A.
    ///
    /// # Errors
    /// The sender could not begin.
    pub fn redirected(&self, bed: &Bed, address: &str) -> Result<Tried, String> {
        let is_added = address != POD_A;
        if is_added {
            bed.run(&format!("ip -n {} addr add {address}/32 dev eth0", bed.pod_a));
            // As above.
            std::thread::sleep(SETTLE);
        }
        let before = self.taken();
        let words = format!("send frames={FRAMES} to={address} sender={SENDER}");
        let pushed =
            Attack::start(self.sending.run_dir(), &bed.pod_b, &words).map(|mut sender| run(&mut sender));
        let reached = self.taken() - before;
        if is_added {
            bed.run(&format!("ip -n {} addr del {address}/32 dev eth0", bed.pod_a));
        }
        Ok(Tried { address: address.to_owned(), pushed: pushed?, reached })
    }

    /// How many of the frames to pod Q arrive there, while pod A has its address too, and how many the sending ktsnd sent: on a busy
    /// machine it may drop one as late.
    ///
    /// # Errors
    /// The sender could not begin.
    ///
    /// # Panics
    /// When the socket cannot be made.
    pub fn arrive_where_they_belong(&self, bed: &Bed) -> Result<(u64, u64), String> {
        let socket = within(&bed.pod_q, || UdpSocket::bind((POD_Q, PORT)).expect("listener"));
        socket.set_read_timeout(Some(SETTLE)).expect("timeout");
        let sent = || self.sending.control().counters("sender").sent;
        let before = sent();
        self.redirected(bed, POD_Q)?;
        let mut octets = [0; 2000];
        let arrived = std::iter::from_fn(|| socket.recv(&mut octets).ok()).count() as u64;
        Ok((arrived, sent() - before))
    }
}
