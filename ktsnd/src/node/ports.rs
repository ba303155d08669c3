// SPDX-License-Identifier: Apache-2.0
//! The open ports: what is known of each, and which index it has.
//!
//! In: ports that were opened, news of their devices. Out: what a listing shows of a port, and by which thread the frames of a pod's
//! interface leave. The ports themselves are the workers'.

mod deferral;
mod keeper;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use ktsn_port::vhost_user::Status;
use ktsn_port::{AnyPort, LinkState, Port as _};
use ktsn_resolve::PortIndex;
use ktsn_time::Nanos;
use tracing::warn;

use crate::limits;
use crate::stats::{PortStats, StreamFilterStats};
use crate::worker::monotonic_now;
use deferral::DeferralState;
pub(super) use deferral::Inside;
pub(super) use keeper::{UplinkKeeper, UplinkNews, UplinkState, open_uplink, speed_of};

/// An open port. [`Ports`] gives no way to change one that is open.
pub(crate) struct OpenPort {
    pub(crate) device: String,
    /// Path of the pod's namespace; empty: it is an uplink.
    pub(crate) netns: String,
    pub(crate) adapter: &'static str,
    /// Why the port is not the best one; empty: it is.
    pub(super) reason: String,
    /// bit/s; 0 = unknown.
    pub(crate) link_speed: u64,
    up: bool,
    /// For an uplink: why there is no port now; empty: there is one.
    fault: String,
    /// For an uplink: the thread that keeps its device.
    keeper: Option<UplinkKeeper>,
    pub(crate) stats: Arc<PortStats>,
    /// Counters of the stream filters in front of the port, in the order of the filters.
    pub(crate) policing: Arc<[StreamFilterStats]>,
    /// For a pod's interface: whether an ordinary thread sends its frames instead of the worker, and since when.
    deferral: DeferralState,
    /// For a port to a virtual switch: its state.
    pub(super) backend: Option<Backend>,
    /// The number of frames that the device had sent when the port was opened.
    sent_before: u64,
}

impl OpenPort {
    pub(super) fn new(device: &str, netns: Option<&Path>, port: &AnyPort, speed: Option<u64>) -> Self {
        Self {
            device: device.to_owned(),
            netns: netns.map(|netns| netns.display().to_string()).unwrap_or_default(),
            adapter: port.capabilities().adapter,
            reason: String::new(),
            link_speed: speed.unwrap_or(0),
            up: port.link_up(),
            fault: String::new(),
            keeper: None,
            stats: Arc::default(),
            policing: Arc::from([]),
            deferral: DeferralState::default(),
            backend: None,
            sent_before: if netns.is_none() { frames_sent(device) } else { 0 },
        }
    }

    pub(crate) fn is_uplink(&self) -> bool {
        self.netns.is_empty()
    }

    /// Whether frames can leave.
    pub(crate) fn is_up(&self) -> bool {
        self.backend.as_ref().map_or(self.up, Backend::is_up)
    }

    /// Why there is no port, or why it is not the best one; empty: it is.
    pub(crate) fn why(&self) -> String {
        match &self.backend {
            Some(backend) => backend.reason(),
            None if self.fault.is_empty() => self.reason.clone(),
            None => self.fault.clone(),
        }
    }

    /// For how long an ordinary thread has sent the frames, and the longest hand-over of the last minute in nanoseconds; `None`: the
    /// worker sends them.
    pub(crate) fn deferred(&self) -> Option<(Nanos, u64)> {
        self.deferral.deferred(monotonic_now())
    }

    /// Frames that left by the device and are not ours. A device that was made again counts from zero.
    pub(crate) fn foreign_frames(&self) -> u64 {
        if !self.is_uplink() {
            return 0;
        }
        // The device first: a frame of ours that leaves between the two readings must not look like another's.
        let sent_by_device = frames_sent(&self.device);
        sent_by_device.saturating_sub(self.sent_before).saturating_sub(frames_of(&self.stats))
    }
}

/// What is known of the switch at the other end.
#[derive(Debug)]
pub(super) struct Backend {
    pub(super) socket: PathBuf,
    pub(super) status: Status,
}

impl Backend {
    /// Whether it is connected.
    fn is_up(&self) -> bool {
        self.status.is_up()
    }

    /// Why no frame leaves, or nothing.
    fn reason(&self) -> String {
        if self.is_up() {
            return String::new();
        }
        let fault =
            self.status.last_fault().map(|fault| format!("; the last one: {fault}")).unwrap_or_default();
        format!("waits for a switch to connect to {}{fault}", self.socket.display())
    }
}

/// Frames that the device has sent since it was made, whichever program sent them; 0 if the device has no counter.
fn frames_sent(device: &str) -> u64 {
    let path = format!("/sys/class/net/{device}/statistics/tx_packets");
    std::fs::read_to_string(path).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}

/// Frames that the worker has handed over.
fn frames_of(stats: &PortStats) -> u64 {
    stats.frames.iter().map(|count| count.load(Relaxed)).sum()
}

/// All open ports.
#[derive(Default)]
pub(crate) struct Ports {
    open: BTreeMap<PortIndex, OpenPort>,
    /// The next search for a free index begins here.
    next: u16,
}

impl Ports {
    pub(crate) fn iter(&self) -> impl Iterator<Item = (PortIndex, &OpenPort)> {
        self.open.iter().map(|(index, port)| (*index, port))
    }

    pub(crate) fn uplinks(&self) -> impl Iterator<Item = &OpenPort> {
        self.open.values().filter(|port| port.is_uplink())
    }

    pub(crate) fn get(&self, index: PortIndex) -> Option<&OpenPort> {
        self.open.get(&index)
    }

    /// The index of an uplink's port.
    pub(crate) fn uplink(&self, device: &str) -> Option<PortIndex> {
        self.iter().find(|(_, port)| port.is_uplink() && port.device == device).map(|(index, _)| index)
    }

    /// Adds a port. Its index is not that which was closed last: a worker may still be at work on it.
    pub(super) fn add(&mut self, port: OpenPort) -> (PortIndex, Arc<PortStats>) {
        let (next, most) = (self.next, limits::PORTS_MAX as u16);
        let is_free = |index: &u16| !self.open.contains_key(&PortIndex(*index));
        let free = (next..most).chain(0..next).find(is_free).unwrap_or(u16::MAX);
        self.next = free.wrapping_add(1) % most;
        let stats = port.stats.clone();
        self.open.insert(PortIndex(free), port);
        (PortIndex(free), stats)
    }

    /// A port that was opened again takes the place of the one before, and goes on counting.
    pub(super) fn replace(&mut self, index: PortIndex, port: OpenPort) {
        let Some(known) = self.open.get_mut(&index) else { return };
        let stats = known.stats.clone();
        *known = OpenPort {
            keeper: known.keeper.take(),
            policing: known.policing.clone(),
            sent_before: port.sent_before.saturating_sub(frames_of(&stats)),
            stats,
            ..port
        };
    }

    pub(super) fn remove(&mut self, index: PortIndex) {
        self.open.remove(&index);
    }

    /// This thread keeps the device of an uplink.
    pub(super) fn keep(&mut self, index: PortIndex, keeper: UplinkKeeper) {
        if let Some(port) = self.open.get_mut(&index) {
            port.keeper = Some(keeper);
        }
    }

    /// A worker has found the device of the port of this generation gone.
    pub(super) fn failed(&self, index: PortIndex, generation: u64) {
        // A pod's interface is watched with its namespace.
        if let Some(keeper) = self.get(index).and_then(|port| port.keeper.as_ref()) {
            keeper.failed(generation);
        }
    }

    /// An uplink's device as it is now. Answers its speed where that is another one; `is_speed_fixed`: the configuration says it.
    pub(super) fn seen(&mut self, index: PortIndex, seen: UplinkState, is_speed_fixed: bool) -> Option<u64> {
        let port = self.open.get_mut(&index)?;
        if port.fault != seen.fault && !seen.fault.is_empty() {
            warn!(device = port.device, "no port: {}", seen.fault);
        }
        port.up = seen.state == LinkState::Up;
        port.fault = seen.fault;
        // A link that is down says nothing; it keeps its speed until it is up again.
        let speed = seen.speed.filter(|speed| !is_speed_fixed && *speed != port.link_speed)?;
        let before = std::mem::replace(&mut port.link_speed, speed);
        warn!(device = port.device, before, speed, "the link has another speed now");
        Some(speed)
    }
}
