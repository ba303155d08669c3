// SPDX-License-Identifier: Apache-2.0
//! A pod's own interface as a port: by which thread its frames leave.
//!
//! In: an attachment; news of the worker that hand-overs by its interface are beyond their budget. Out: the port, replaced by one
//! whose frames leave by an ordinary thread, and back by the worker when hand-overs were within the budget for long. Both are
//! counted, shown and logged. Until a port is replaced the worker postpones its hand-overs (`worker/hand_over_budget.rs`).

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use ktsn_port::af_packet::AfPacket;
use ktsn_port::deferred::{Deferred, Left, Observer};
use ktsn_port::{AnyPort, Device, OpenError, Options, Port as _, in_namespace, link_speed};
use ktsn_time::{Monotonic, Nanos};
use tracing::{info, warn};

use super::{OpenPort, Ports};
use crate::clients::ServedAttachment;
use crate::config::Attachment;
use crate::hand_over_account::HandOverAccount;
use crate::limits;
use crate::stats::{AttachmentStats, count};
use crate::supervise::{self, in_words};
use crate::sys;
use crate::worker::monotonic_now;

/// Transmit buffers of a pod's interface.
const INTERFACE_STAGES: u16 = 4;

/// Which interface it is: the cookie of its namespace, and its index there.
type Identity = (Option<u64>, u32);

/// What the thread of a deferred port shows.
#[derive(Debug)]
pub(super) struct Seen {
    longest_ns: AtomicU64,
    /// When hand-overs were beyond the budget last, CLOCK_MONOTONIC.
    beyond_at_ns: AtomicU64,
}

/// Whether the frames of a pod's interface are deferred: an ordinary thread sends them instead of the worker.
#[derive(Debug, Default)]
pub(super) struct DeferralState {
    identity: Identity,
    /// Since when they leave by an ordinary thread.
    deferred: Option<(Monotonic, Arc<Seen>)>,
    /// How long hand-overs have to be within the budget for the way back.
    wait: Nanos,
    /// When the frames last went back to the worker.
    back_at: Option<Monotonic>,
    /// When ktsnd last tried to defer the frames.
    tried_at: Option<Monotonic>,
}

impl DeferralState {
    /// Whether frames are to be deferred that are not yet.
    fn is_to_defer(&mut self, now: Monotonic) -> bool {
        let is_soon = self.tried_at.is_some_and(|at| now.since(at) < limits::DEFER_PAUSE);
        if self.deferred.is_some() || is_soon {
            return false;
        }
        self.tried_at = Some(now);
        true
    }

    /// Frames are deferred from now on. Soon after the last time it is for twice as long.
    fn defer(&mut self, now: Monotonic, longest: Nanos) -> Arc<Seen> {
        let is_again = self.back_at.is_some_and(|at| now.since(at) < self.wait);
        self.wait = if is_again {
            self.wait.saturating_mul(2).min(limits::DEFERRED_MAX)
        } else {
            limits::DEFERRED_MIN
        };
        let seen = Arc::new(Seen {
            longest_ns: AtomicU64::new(longest.get().unsigned_abs()),
            beyond_at_ns: AtomicU64::new(now.as_nanos()),
        });
        self.deferred = Some((now, seen.clone()));
        seen
    }

    /// Whether hand-overs have been within the budget for long enough.
    fn is_to_go_back(&self, now: Monotonic) -> bool {
        self.deferred.as_ref().is_some_and(|(_, seen)| {
            now.since(Monotonic::from_nanos(seen.beyond_at_ns.load(Relaxed))) >= self.wait
        })
    }

    /// For how long frames have been deferred, and the longest hand-over of the last minute; `None`: they leave by the worker.
    pub(super) fn deferred(&self, now: Monotonic) -> Option<(Nanos, u64)> {
        let (since, seen) = self.deferred.as_ref()?;
        Some((now.since(*since), seen.longest_ns.load(Relaxed)))
    }
}

/// Accounts for the frames of a deferred port, in its thread.
fn observer(stats: Arc<AttachmentStats>, seen: Arc<Seen>, now: fn() -> Monotonic) -> Observer {
    let mut account = HandOverAccount::new();
    Box::new(move |left: Left| {
        count(if left.result.is_ok() { &stats.deferred } else { &stats.deferred_failed });
        let took = Nanos::new(i64::try_from(left.took.as_nanos()).unwrap_or(i64::MAX));
        let now = now();
        if !account.charge(took, now) {
            seen.beyond_at_ns.store(now.as_nanos(), Relaxed);
        }
        seen.longest_ns.store(account.longest().get().unsigned_abs(), Relaxed);
    })
}

/// The pod's namespace as it was found: what an attachment needs to know of it.
pub(in crate::node) struct Inside {
    port: AfPacket,
    speed: Option<u64>,
    /// Cookie of the namespace.
    cookie: Option<u64>,
}

impl Inside {
    /// Entering a namespace takes a thread: once for all.
    pub(in crate::node) fn open(attachment: &Attachment) -> Result<Self, OpenError> {
        let options = Options { stage_count: INTERFACE_STAGES, ..Options::default() };
        let open = || {
            in_namespace(Some(&attachment.netns), || {
                let device = Device { ifname: &attachment.interface, netns: None };
                let port = AfPacket::open(&device, &options)?;
                Ok(Self { port, speed: link_speed(&device), cookie: sys::own_netns_cookie().ok() })
            })
        };
        supervise::kernel("to open a pod's interface", open)
    }

    /// The port, and what is known of it; `interface` and `netns`: where it was opened.
    pub(in crate::node) fn into_port(self, interface: &str, netns: Option<&Path>) -> (OpenPort, AnyPort) {
        let identity = self.identity();
        let port = AnyPort::from(self.port);
        let mut open = OpenPort::new(interface, netns, &port, self.speed);
        open.deferral.identity = identity;
        (open, port)
    }

    fn identity(&self) -> Identity {
        (self.cookie, self.port.capabilities().ifindex)
    }
}

impl Ports {
    /// Hand-overs by a pod's interface are beyond their budget, the longest took `longest`: its frames leave by an ordinary thread
    /// from now on. Answers the port that takes the place of the worker's.
    pub(in crate::node) fn defer(&mut self, served: &ServedAttachment, longest: Nanos) -> Option<AnyPort> {
        let now = monotonic_now();
        let uplink = &served.uplink;
        let is_uplink_up = self.uplinks().find(|port| port.device == *uplink).is_none_or(|port| port.up);
        let port = self.open.get_mut(&served.interface_port).filter(|port| !port.is_uplink())?;
        if !port.deferral.is_to_defer(now) {
            return None;
        }
        let (name, interface) = (&served.attachment.name, &served.attachment.interface);
        let longest_us = longest.get() / 1000;
        let opened = Inside::open(&served.attachment).and_then(|inside| {
            if inside.identity() != port.deferral.identity {
                return Err(OpenError::NoDevice { ifname: interface.clone() });
            }
            let observer = observer(served.stats.clone(), port.deferral.defer(now, longest), monotonic_now);
            Deferred::start(inside.port, limits::DEFERRED_STAGES, observer)
        });
        let deferred = match opened {
            Ok(deferred) => AnyPort::from(deferred),
            Err(error) => {
                port.deferral.deferred = None;
                warn!(
                    attachment = name, interface, longest_us, %error,
                    "hand-overs by the pod's interface take too long, and it cannot be opened for a thread of its own: they \
                     wait for gaps between the frames of other attachments; tried again in {}", in_words(limits::DEFER_PAUSE)
                );
                return None;
            }
        };
        let wait = in_words(port.deferral.wait);
        let advice = if is_uplink_up {
            "look for packet-filter rules of this pod, and of pods on this node that it sends to (nft list ruleset)".to_owned()
        } else {
            format!(
                "{uplink} has no link, so the node's own stack takes what would leave by it: that costs time, and those frames \
                 are lost"
            )
        };
        warn!(
            attachment = name,
            interface,
            longest_us,
            "hand-overs by the pod's interface take too long: its frames leave by an ordinary thread, not on time, until that \
             has ended for {wait}; {advice}"
        );
        port.adapter = deferred.capabilities().adapter;
        port.reason = format!("a hand-over took {longest_us} µs: an ordinary thread sends");
        Some(deferred)
    }

    /// The frames of a pod whose hand-overs have been within the budget for long leave by the worker again. Answers the port that takes
    /// the place of the deferred one.
    pub(in crate::node) fn end_deferral(&mut self, served: &ServedAttachment) -> Option<AnyPort> {
        let now = monotonic_now();
        let port =
            self.open.get_mut(&served.interface_port).filter(|port| port.deferral.is_to_go_back(now))?;
        // One with another identity: its namespace is on its way out.
        let inside = Inside::open(&served.attachment).ok();
        let inside = inside.filter(|inside| inside.identity() == port.deferral.identity)?;
        let (name, interface) = (&served.attachment.name, &served.attachment.interface);
        let wait = in_words(port.deferral.wait);
        (port.deferral.deferred, port.deferral.back_at, port.deferral.tried_at) = (None, Some(now), None);
        let direct = AnyPort::from(inside.port);
        port.adapter = direct.capabilities().adapter;
        port.reason.clear();
        info!(
            attachment = name,
            interface,
            "hand-overs by the pod's interface were within the budget for {wait}: its frames leave by the worker again, on \
             time; nothing is to be done"
        );
        Some(direct)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use ktsn_port::SendError;

    fn at(seconds: i64) -> Monotonic {
        Monotonic::from_nanos(0).saturating_add(Nanos::from_seconds(seconds))
    }

    #[test]
    fn frames_go_back_after_ten_minutes_within_the_budget() {
        let mut deferral = DeferralState::default();
        assert!(
            deferral.is_to_defer(at(100)) && !deferral.is_to_defer(at(109)),
            "an open that failed is tried again later"
        );
        assert!(deferral.is_to_defer(at(110)) && !deferral.is_to_go_back(at(100_000)));
        let seen = deferral.defer(at(110), Nanos::from_micros(512));
        assert!(!deferral.is_to_defer(at(100_000)));
        assert_eq!(deferral.deferred(at(115)), Some((Nanos::from_seconds(5), 512_000)));
        assert!(!deferral.is_to_go_back(at(709)) && deferral.is_to_go_back(at(710)));
        seen.beyond_at_ns.store(at(700).as_nanos(), Relaxed);
        assert!(!deferral.is_to_go_back(at(1299)) && deferral.is_to_go_back(at(1300)));
    }

    #[test]
    fn a_pod_that_toggles_waits_twice_as_long_each_time() {
        let (mut deferral, mut now) = (DeferralState::default(), 0);
        let mut waits = Vec::new();
        for _ in 0..10 {
            deferral.defer(at(now), Nanos::ZERO);
            waits.push(deferral.wait.get() / 1_000_000_000);
            now += 100_000;
            (deferral.deferred, deferral.back_at) = (None, Some(at(now)));
            now += 500;
        }
        assert_eq!(waits, [600, 1200, 2400, 4800, 9600, 19_200, 38_400, 76_800, 86_400, 86_400]);
        // It was sent by the worker for as long as the last wait: the waits begin again with the shortest.
        deferral.defer(at(now - 500 + 86_400), Nanos::ZERO);
        assert_eq!(deferral.wait, limits::DEFERRED_MIN);
    }

    #[test]
    fn each_frame_of_the_thread_is_counted_and_its_time_charged() {
        let stats = Arc::new(AttachmentStats::default());
        let mut deferral = DeferralState::default();
        let seen = deferral.defer(at(1), Nanos::ZERO);
        let mut observe = observer(stats.clone(), seen.clone(), || at(5));
        observe(Left { took: Duration::from_micros(9), result: Ok(()) });
        observe(Left { took: Duration::from_micros(600), result: Err(SendError::Dropped) });
        assert_eq!((stats.deferred.load(Relaxed), stats.deferred_failed.load(Relaxed)), (1, 1));
        assert_eq!(
            (seen.longest_ns.load(Relaxed), seen.beyond_at_ns.load(Relaxed)),
            (600_000, at(1).as_nanos())
        );
        observe(Left { took: Duration::from_micros(600), result: Ok(()) });
        assert_eq!(seen.beyond_at_ns.load(Relaxed), at(5).as_nanos());
    }
}
