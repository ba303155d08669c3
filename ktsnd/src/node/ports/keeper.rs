// SPDX-License-Identifier: Apache-2.0
//! An uplink's device, kept by a thread of its own.
//!
//! In: announcements of the node's links; news of a worker that its port's device is gone. Out: the device's state and speed
//! for the listing, and the port, opened again when another device has the uplink's name. These questions wait for the kernel's
//! RTNL lock for as long as a driver holds it, so neither the worker nor the node asks them. An announcement is only a hint:
//! what holds is asked for. A port has a generation, so that news of an older one opens nothing.

use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use ktsn_port::{
    AnyPort, Device, LinkState, LinkWatch, OpenError, Opened, Options, Port as _, link_info, link_speed, open,
};
use ktsn_port::{af_packet::AfPacket, af_xdp::AfXdp};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, bind, recv, socket_with};
use tracing::warn;

use crate::config::{AdapterChoice, Port as PortConfig};
use crate::supervise::{self, Watched};

/// Transmit buffers of an uplink.
const UPLINK_STAGES: u16 = 256;
/// RTMGRP_LINK as a bit.
const GROUP_LINK: u32 = 1;
/// How often a device is looked at that nothing is announced of: not every driver announces another speed.
const LOOK: Duration = Duration::from_secs(1);
/// Announcements that come within this time are one.
const GATHER: Duration = Duration::from_millis(20);

/// What is known of an uplink's device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UplinkState {
    pub(super) state: LinkState,
    pub(super) speed: Option<u64>,
    /// Why there is no port on it; empty: there is one.
    pub(super) fault: String,
}

/// News of an uplink's device.
#[derive(Debug)]
pub(crate) enum UplinkNews {
    Seen(UplinkState),
    /// The port, opened again, and its device's speed.
    Reopened(Box<Opened>, Option<u64>),
}

#[derive(Debug)]
struct Shared {
    wake: OwnedFd,
    is_over: AtomicBool,
    /// The newest port whose device a worker has found gone, by its generation and 1; 0: none.
    failed: AtomicU64,
}

impl Shared {
    fn ring(&self) {
        // It cannot be full, and a reader that is gone needs no bell.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }
}

/// The thread of one uplink; it ends soon after this is dropped, which does not wait for it.
#[derive(Debug)]
pub(in crate::node) struct UplinkKeeper(Arc<Shared>);

impl UplinkKeeper {
    /// Starts the thread for the device of `config`, whose port is open on the interface `ifindex`. `send` passes news to the node, and
    /// returns false when the node has ended.
    pub(in crate::node) fn start(
        config: PortConfig,
        ifindex: u32,
        send: impl Fn(UplinkNews) -> bool + Send + 'static,
    ) -> std::io::Result<Self> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let shared = Arc::new(Shared { wake, is_over: AtomicBool::new(false), failed: AtomicU64::new(0) });
        let of_thread = shared.clone();
        std::thread::Builder::new().name("ktsn-uplink".into()).stack_size(256 << 10).spawn(move || {
            let watched = Watched::enter("ktsn-uplink", &config.device);
            let mut keeper =
                Keeper { config, ifindex, generation: 0, watch: None, seen: None, is_gone: false };
            keeper.run(&of_thread, &watched, &send);
        })?;
        Ok(Self(shared))
    }

    /// A worker has found the device of the port of this generation gone.
    pub(super) fn failed(&self, generation: u64) {
        self.0.failed.fetch_max(generation + 1, Relaxed);
        self.0.ring();
    }
}

impl Drop for UplinkKeeper {
    fn drop(&mut self) {
        self.0.is_over.store(true, Relaxed);
        self.0.ring();
    }
}

struct Keeper {
    config: PortConfig,
    /// The device that the port is open on.
    ifindex: u32,
    generation: u64,
    /// Hears when that device goes.
    watch: Option<LinkWatch>,
    seen: Option<UplinkState>,
    /// No device had the name since the port was opened, or that of the port has gone.
    is_gone: bool,
}

impl Keeper {
    fn run(&mut self, shared: &Shared, watched: &Watched, send: &dyn Fn(UplinkNews) -> bool) {
        let links = hear_links().inspect_err(|error| {
            warn!(device = self.config.device, %error, "changes of the link are noticed within a second");
        });
        let links = links.ok();
        while !shared.is_over.load(Relaxed) && self.look(shared.failed.load(Relaxed), send) {
            watched.waits();
            wait(shared, links.as_ref());
            watched.works();
        }
    }

    /// Looks at the device, and opens the port again where it is another one. False: nobody hears of it.
    fn look(&mut self, failed: u64, send: &dyn Fn(UplinkNews) -> bool) -> bool {
        let device = Device { ifname: &self.config.device, netns: None };
        let found = supervise::kernel("for the state of the uplink's device", || {
            if self.watch.is_none() && self.seen.is_none() {
                self.watch = LinkWatch::open(&device).ok();
            }
            link_info(&device)
        });
        let heard = self.watch.as_ref().map_or(LinkState::Unknown, LinkWatch::state);
        let has_failed = failed == self.generation + 1;
        // A device that has another name meanwhile is still the port's.
        self.is_gone |= heard == LinkState::Gone || has_failed && heard == LinkState::Unknown;
        let mut seen = match &found {
            Ok(info) => UplinkState { state: info.state, speed: info.link_speed, fault: String::new() },
            Err(OpenError::NoDevice { .. }) => {
                let fault = "no such device; the port is opened again when there is one".to_owned();
                UplinkState { state: LinkState::Gone, speed: None, fault }
            }
            Err(error) => UplinkState { state: LinkState::Unknown, speed: None, fault: error.to_string() },
        };
        if found.is_ok_and(|info| self.is_gone || info.ifindex != self.ifindex) {
            match self.reopen() {
                Ok(opened) => {
                    let speed = self.config.link_speed.or(seen.speed);
                    if !send(UplinkNews::Reopened(Box::new(opened), speed)) {
                        return false;
                    }
                    self.seen = None;
                }
                Err(error) => seen.fault = format!("{error}; tried again each second"),
            }
        }
        if self.seen.as_ref() == Some(&seen) {
            return true;
        }
        self.seen = Some(seen.clone());
        send(UplinkNews::Seen(seen))
    }

    fn reopen(&mut self) -> Result<Opened, OpenError> {
        supervise::kernel("to open the uplink's device again", || {
            let opened = open_uplink(&self.config)?;
            self.ifindex = opened.port.capabilities().ifindex;
            self.watch = LinkWatch::open(&Device { ifname: &self.config.device, netns: None }).ok();
            self.is_gone = false;
            self.generation += 1;
            Ok(opened)
        })
    }
}

/// A socket that hears of all links in ktsnd's namespace.
fn hear_links() -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
    bind(&socket, &SocketAddrNetlink::new(0, GROUP_LINK))?;
    Ok(socket)
}

/// Waits for an announcement, for the bell, or for [`LOOK`].
fn wait(shared: &Shared, links: Option<&OwnedFd>) {
    let mut events = vec![PollFd::from_borrowed_fd(shared.wake.as_fd(), PollFlags::IN)];
    events.extend(links.map(|links| PollFd::from_borrowed_fd(links.as_fd(), PollFlags::IN)));
    let timeout = Timespec { tv_sec: LOOK.as_secs() as i64, tv_nsec: i64::from(LOOK.subsec_nanos()) };
    if poll(&mut events, Some(&timeout)).is_err() || shared.is_over.load(Relaxed) {
        return;
    }
    std::thread::sleep(GATHER);
    let _ = rustix::io::read(&shared.wake, &mut [0u8; 8]);
    // Lost announcements are a hint as well.
    while links.is_some_and(|links| {
        let heard = recv(links, &mut [0u8; 32], RecvFlags::DONTWAIT);
        !matches!(heard, Err(rustix::io::Errno::AGAIN))
    }) {}
}

/// An uplink's speed in bit/s as configured, else as the device says.
pub(in crate::node) fn speed_of(config: &PortConfig) -> Option<u64> {
    config.link_speed.or_else(|| link_speed(&Device { ifname: &config.device, netns: None }))
}

/// Opens an uplink's device with the adapter of its configuration.
pub(in crate::node) fn open_uplink(config: &PortConfig) -> Result<Opened, OpenError> {
    let device = Device { ifname: &config.device, netns: None };
    let options = Options { stage_count: UPLINK_STAGES, ..Options::default() };
    match &config.adapter {
        AdapterChoice::Auto => open(&device, &options),
        AdapterChoice::AfXdp => {
            AfXdp::open(&device, &options).map(|port| Opened { port: AnyPort::from(port), fallback: None })
        }
        AdapterChoice::AfPacket => {
            AfPacket::open(&device, &options).map(|port| Opened { port: AnyPort::from(port), fallback: None })
        }
        #[cfg(feature = "dpdk")]
        AdapterChoice::Dpdk { devargs } => ktsn_port::dpdk::Dpdk::open(Some(&device), devargs, &options)
            .map(|port| Opened { port: AnyPort::from(port), fallback: None }),
    }
}
