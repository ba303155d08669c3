// SPDX-License-Identifier: Apache-2.0
//! Which adapter: AF_XDP in copy mode where it can be had, else AF_PACKET, with the reason.
//!
//! In: a device. Out: an open [`AnyPort`], one type for all adapters without a virtual call per frame.

use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::af_packet::AfPacket;
use crate::af_xdp::AfXdp;
use crate::deferred::Deferred;
use crate::device::{Device, Options};
#[cfg(feature = "dpdk")]
use crate::dpdk::Dpdk;
use crate::error::{OpenError, SendError, StageError};
use crate::memory::Memory;
use crate::traits::{Builder, Capabilities, Counters, Occupancy, Port, StageId};
use crate::vhost_user::VhostUser;

/// How long a queue may take to become free after its last owner closed it.
const QUEUE_RELEASE_MAX: Duration = Duration::from_millis(800);
/// Each attempt registers memory that Linux, too, takes back later.
const QUEUE_RELEASE_STEP: Duration = Duration::from_millis(25);

/// What [`open`] opened.
#[derive(Debug)]
pub struct Opened {
    /// The port.
    pub port: AnyPort,
    /// Why it is not AF_XDP, for the log.
    pub fallback: Option<OpenError>,
}

/// Opens `device` with the best adapter it offers. An error of the device itself (missing, not Ethernet) is not
/// tried around; if both adapters fail, the second one's error is returned.
///
/// Linux gives a closed AF_XDP socket's queue back from a work queue, milliseconds later. So a queue that is
/// taken is tried again for up to 800 ms (blocking the caller): otherwise a port that is opened again, or by a
/// restarted daemon, would meet its own past and fall back.
///
/// # Errors
/// An [`OpenError`]; nothing stays open.
pub fn open(device: &Device<'_>, options: &Options) -> Result<Opened, OpenError> {
    match open_af_xdp(device, options) {
        Ok(port) => Ok(Opened { port: port.into(), fallback: None }),
        Err(error) if error.concerns_the_device() => Err(error),
        Err(error) => {
            let port = AfPacket::open(device, options)?;
            Ok(Opened { port: port.into(), fallback: Some(error) })
        }
    }
}

fn open_af_xdp(device: &Device<'_>, options: &Options) -> Result<AfXdp, OpenError> {
    let until = Instant::now() + QUEUE_RELEASE_MAX;
    loop {
        match AfXdp::open(device, options) {
            Err(OpenError::QueueBusy { .. }) if Instant::now() < until => sleep(QUEUE_RELEASE_STEP),
            answer => return answer,
        }
    }
}

/// Any adapter.
#[derive(Debug)]
pub enum AnyPort {
    /// AF_XDP, copy mode.
    AfXdp(Box<AfXdp>),
    /// AF_PACKET, qdisc bypass.
    AfPacket(Box<AfPacket>),
    /// A driver of DPDK.
    #[cfg(feature = "dpdk")]
    Dpdk(Box<Dpdk>),
    /// AF_PACKET by a thread of its own.
    Deferred(Box<Deferred>),
    /// A backend behind a socket.
    VhostUser(Box<VhostUser>),
    /// In this process.
    Memory(Box<Memory>),
}

macro_rules! adapters {
    ($($variant:ident($type:ty)),+ $(,)?) => {
        $(impl From<$type> for AnyPort {
            fn from(port: $type) -> Self {
                Self::$variant(Box::new(port))
            }
        })+
    };
}
adapters!(AfXdp(AfXdp), AfPacket(AfPacket), Deferred(Deferred), VhostUser(VhostUser), Memory(Memory),);
#[cfg(feature = "dpdk")]
adapters!(Dpdk(Dpdk));

macro_rules! each {
    ($self:ident, $port:ident => $call:expr) => {
        match $self {
            Self::AfXdp($port) => $call,
            Self::AfPacket($port) => $call,
            #[cfg(feature = "dpdk")]
            Self::Dpdk($port) => $call,
            Self::Deferred($port) => $call,
            Self::VhostUser($port) => $call,
            Self::Memory($port) => $call,
        }
    };
}

impl Port for AnyPort {
    #[inline]
    fn stage(&mut self, build: &mut Builder<'_>) -> Result<StageId, StageError> {
        each!(self, port => port.stage(build))
    }

    fn staged_frame(&self, stage: StageId) -> Option<&[u8]> {
        each!(self, port => port.staged_frame(stage))
    }

    #[inline]
    fn commit(&mut self, stage: StageId) -> Result<(), SendError> {
        each!(self, port => port.commit(stage))
    }

    #[inline]
    fn warm_up(&mut self) {
        each!(self, port => port.warm_up());
    }

    fn abandon(&mut self, stage: StageId) {
        each!(self, port => port.abandon(stage));
    }

    #[inline]
    fn reap(&mut self) -> usize {
        each!(self, port => port.reap())
    }

    fn capabilities(&self) -> &Capabilities {
        each!(self, port => port.capabilities())
    }

    fn link_up(&self) -> bool {
        each!(self, port => port.link_up())
    }

    fn occupancy(&self) -> Occupancy {
        each!(self, port => port.occupancy())
    }

    fn counters(&self) -> Counters {
        each!(self, port => port.counters())
    }
}
