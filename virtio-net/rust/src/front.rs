// SPDX-License-Identifier: BSD-2-Clause
//! The front end's requests, by the crate vhost: features, memory, rings.
//!
//! In: a connected socket, started rings. Out: a backend that has all of it, or an error that names the request. The crate reads an
//! answer for as long as it takes and takes `EAGAIN` for a reason to read again, so a timeout of the socket does not end it.
//! [`Deadline`] does: it shuts the socket down.

use std::net::Shutdown;
use std::os::fd::AsRawFd as _;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use vhost::vhost_user::message::{VhostUserHeaderFlag, VhostUserProtocolFeatures};
use vhost::vhost_user::{Error as ProtocolError, Frontend, VhostUserFrontend as _};
use vhost::{Error as VhostError, VhostBackend as _, VhostUserMemoryRegionInfo, VringConfigData};
use vmm_sys_util::eventfd::EventFd;

use crate::error::OpenError;
use crate::sys::{Kicks, Pair, Shared, as_eventfd};

/// Bit 30 of the features: there are protocol features.
const PROTOCOL_FEATURES: u64 = 1 << 30;
const VERSION_1: u64 = 1 << 32;
/// How the backend calls the shared memory. It is no address of this process: the backend learns none.
pub(crate) const BUS: u64 = 1 << 32;
/// Rings that the crate allows.
const RINGS_MAX: u64 = 256;

/// Ends what waits for the backend, after a span.
struct Deadline {
    done: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
    is_over: Arc<AtomicBool>,
}

impl Deadline {
    fn new(socket: &UnixStream, limit: Duration) -> std::io::Result<Self> {
        let socket = socket.try_clone()?;
        let (done, waits) = channel::<()>();
        let is_over = Arc::new(AtomicBool::new(false));
        let over = is_over.clone();
        let thread = std::thread::Builder::new().name("ktsn-vhost-wait".to_owned()).spawn(move || {
            if waits.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
                over.store(true, Ordering::Release);
                let _closed_already = socket.shutdown(Shutdown::Both);
            }
        })?;
        Ok(Self { done: Some(done), thread: Some(thread), is_over })
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }
}

impl Drop for Deadline {
    fn drop(&mut self) {
        self.done = None;
        if let Some(thread) = self.thread.take() {
            let _cannot_panic = thread.join();
        }
    }
}

/// A backend that is being asked. Dropping it closes the connection.
pub(crate) struct Front {
    frontend: Frontend,
    deadline: Deadline,
    limit: Duration,
    offered: u64,
}

/// What the backend keeps of a ring: its ends of the sockets. They are passed with the requests and closed here.
pub(crate) struct Ends {
    kicks: [EventFd; 2],
    calls: [EventFd; 2],
}

/// The sockets of one queue pair: this process's ends, and the backend's.
pub(crate) fn notifications() -> Result<(Kicks, Ends), OpenError> {
    // A datagram for a notification: read(2) of eight octets gets it whole, as from an eventfd.
    let pair = || {
        socketpair(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
            .map_err(|errno| OpenError::os("socketpair", errno))
    };
    // Nothing reads them: the rings are polled. A backend wants one before it starts a ring.
    let call = || {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        fd.map(as_eventfd).map_err(|errno| OpenError::os("eventfd", errno))
    };
    let ((receive, far_receive), (transmit, far_transmit)) = (pair()?, pair()?);
    let kicks = [as_eventfd(far_receive), as_eventfd(far_transmit)];
    Ok((Kicks([receive, transmit]), Ends { kicks, calls: [call()?, call()?] }))
}

impl Front {
    /// Asks for the features. All requests of this value together take at most `limit`.
    pub(crate) fn begin(socket: &UnixStream, queues: u16, limit: Duration) -> Result<Self, OpenError> {
        let copied = |error: std::io::Error| OpenError::io("socket", &error);
        let deadline = Deadline::new(socket, limit).map_err(copied)?;
        let frontend = Frontend::from_stream(socket.try_clone().map_err(copied)?, RINGS_MAX);
        let mut front = Self { frontend, deadline, limit, offered: 0 };
        front.ask("SET_OWNER", |frontend| frontend.set_owner())?;
        front.offered = front.ask("GET_FEATURES", |frontend| frontend.get_features())?;
        if front.offered & VERSION_1 == 0 {
            return Err(OpenError::Features { offered: front.offered });
        }
        if front.offered & PROTOCOL_FEATURES != 0 {
            let accepted = front.negotiate_protocol()?;
            if queues > 1 {
                front.check_pairs(queues, accepted)?;
                front.begin_again(socket.try_clone().map_err(copied)?, accepted)?;
            }
        } else if queues > 1 {
            return Err(OpenError::Queues { asked: queues, offered: 1 });
        }
        Ok(front)
    }

    /// Accepts what is known of the protocol features, and returns it.
    fn negotiate_protocol(&mut self) -> Result<VhostUserProtocolFeatures, OpenError> {
        let known = VhostUserProtocolFeatures::MQ | VhostUserProtocolFeatures::REPLY_ACK;
        let offered = self.ask("GET_PROTOCOL_FEATURES", |frontend| frontend.get_protocol_features())?;
        let accepted = offered & known;
        self.accept_protocol(accepted)?;
        Ok(accepted)
    }

    fn accept_protocol(&mut self, accepted: VhostUserProtocolFeatures) -> Result<(), OpenError> {
        self.ask("SET_PROTOCOL_FEATURES", |frontend| frontend.set_protocol_features(accepted))?;
        if accepted.contains(VhostUserProtocolFeatures::REPLY_ACK) {
            // From here on the backend answers each request: a refusal is known at once.
            self.frontend.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
        }
        Ok(())
    }

    /// A network backend answers GET_QUEUE_NUM with its queue pairs: QEMU compares the pairs that it wants with the answer. A backend that
    /// counts rings may name too many; then it refuses the requests for the rings that it does not have.
    fn check_pairs(&mut self, queues: u16, accepted: VhostUserProtocolFeatures) -> Result<(), OpenError> {
        let offered = match accepted.contains(VhostUserProtocolFeatures::MQ) {
            true => self.ask("GET_QUEUE_NUM", |frontend| frontend.get_queue_num())?,
            false => 1,
        };
        if offered < u64::from(queues) {
            return Err(OpenError::Queues { asked: queues, offered });
        }
        Ok(())
    }

    /// Goes on with a new value of the crate on the same connection: the crate takes the answer to GET_QUEUE_NUM for a number of rings, and
    /// sends no request for a ring beyond it. The new value has to hear the features, and what was accepted, itself.
    fn begin_again(
        &mut self,
        socket: UnixStream,
        accepted: VhostUserProtocolFeatures,
    ) -> Result<(), OpenError> {
        self.frontend = Frontend::from_stream(socket, RINGS_MAX);
        self.offered = self.ask("GET_FEATURES", |frontend| frontend.get_features())?;
        self.accept_protocol(accepted)
    }

    /// The features that the backend offers.
    pub(crate) fn offered(&self) -> u64 {
        self.offered
    }

    /// Hands over memory and rings, and starts the rings. The connection lasts as long as the value that is returned.
    pub(crate) fn finish(
        mut self,
        shared: &Shared,
        pairs: &[Pair],
        ends: &[Ends],
    ) -> Result<Frontend, OpenError> {
        let accepted = pairs.iter().fold(VERSION_1, |all, pair| all & pair.features());
        let features = accepted | (self.offered & PROTOCOL_FEATURES);
        self.ask("SET_FEATURES", |frontend| frontend.set_features(features))?;
        let region = VhostUserMemoryRegionInfo {
            guest_phys_addr: BUS,
            memory_size: shared.octets() as u64,
            userspace_addr: BUS,
            mmap_offset: 0,
            mmap_handle: shared.file().as_raw_fd(),
        };
        self.ask("SET_MEM_TABLE", |frontend| frontend.set_mem_table(&[region]).map(drop))?;
        for (index, (pair, ends)) in pairs.iter().zip(ends).enumerate() {
            for queue in 0..2 {
                self.hand_over_ring(2 * index + queue, pair, queue, ends)?;
            }
        }
        if self.offered & PROTOCOL_FEATURES != 0 {
            for ring in 0..2 * pairs.len() {
                self.ask("SET_VRING_ENABLE", |frontend| frontend.set_vring_enable(ring, true))?;
            }
        }
        // A backend that acknowledges nothing has read all of the above once it answers this.
        self.ask("GET_FEATURES", |frontend| frontend.get_features())?;
        Ok(self.frontend)
    }

    fn hand_over_ring(
        &mut self,
        number: usize,
        pair: &Pair,
        queue: usize,
        ends: &Ends,
    ) -> Result<(), OpenError> {
        let ring = pair.ring(queue as u32);
        let size = ring.size as u16;
        let place = VringConfigData {
            queue_max_size: size,
            queue_size: size,
            flags: 0,
            desc_table_addr: ring.descriptors,
            used_ring_addr: ring.used,
            avail_ring_addr: ring.available,
            log_addr: None,
        };
        self.ask("SET_VRING_NUM", |frontend| frontend.set_vring_num(number, size))?;
        self.ask("SET_VRING_BASE", |frontend| frontend.set_vring_base(number, 0))?;
        self.ask("SET_VRING_ADDR", |frontend| frontend.set_vring_addr(number, &place))?;
        self.ask("SET_VRING_CALL", |frontend| frontend.set_vring_call(number, &ends.calls[queue]))?;
        self.ask("SET_VRING_KICK", |frontend| frontend.set_vring_kick(number, &ends.kicks[queue]))
    }

    /// One request.
    fn ask<T>(
        &mut self,
        step: &'static str,
        request: impl FnOnce(&mut Frontend) -> Result<T, VhostError>,
    ) -> Result<T, OpenError> {
        let answer = request(&mut self.frontend);
        if self.deadline.is_over() {
            return Err(OpenError::Timeout { step, limit: self.limit });
        }
        answer.map_err(|error| sorted(step, &error))
    }
}

/// The crate's errors as ours.
fn sorted(step: &'static str, error: &VhostError) -> OpenError {
    let VhostError::VhostUserProtocol(error) = error else {
        return OpenError::Protocol { step, what: "an unknown error" };
    };
    match error {
        ProtocolError::Disconnected | ProtocolError::PartialMessage | ProtocolError::SocketBroken(_) => {
            OpenError::Closed { step }
        }
        ProtocolError::BackendInternalError => OpenError::Refused { step },
        ProtocolError::SocketError(error)
        | ProtocolError::SocketConnect(error)
        | ProtocolError::SocketRetry(error) => OpenError::io(step, error),
        ProtocolError::OversizedMsg => OpenError::Protocol { step, what: "too long" },
        ProtocolError::IncorrectFds => OpenError::Protocol { step, what: "unexpected descriptors" },
        ProtocolError::InvalidMessage => OpenError::Protocol { step, what: "wrong request, size or value" },
        _ => OpenError::Protocol { step, what: "not negotiated" },
    }
}
