// SPDX-License-Identifier: BSD-2-Clause
//! A connection with its rings.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use vhost::vhost_user::Frontend;

use crate::error::{Fault, OpenError, QUEUES_MAX, SLOTS_MAX, SendError};
use crate::front::{BUS, Front, notifications};
use crate::sys::{Pair, Room, Shared};

/// How a link is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Queue pairs, 1 to [`QUEUES_MAX`].
    pub queues: u16,
    /// Receive buffers posted in each pair, 1 to [`SLOTS_MAX`]. A backend drops what finds none.
    pub posted: u16,
    /// Frames under way to the backend in each pair at most, 1 to [`SLOTS_MAX`].
    pub tx_slots: u16,
    /// How long the negotiation may take.
    pub limit: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self { queues: 1, posted: 128, tx_slots: SLOTS_MAX, limit: Duration::from_secs(1) }
    }
}

impl Options {
    pub(crate) fn check(&self) -> Result<(), OpenError> {
        let counts = [
            ("queues", self.queues, QUEUES_MAX),
            ("posted", self.posted, SLOTS_MAX),
            ("tx_slots", self.tx_slots, SLOTS_MAX),
        ];
        match counts.into_iter().find(|(_, value, max)| !(1..=*max).contains(value)) {
            Some((field, value, max)) => Err(OpenError::Count { field, value, max }),
            None => Ok(()),
        }
    }
}

/// A backend that has our rings. One thread uses it at a time. Dropping it closes the connection and unmaps the memory.
pub struct Link {
    // Dropped in this order: the connection ends before its memory does.
    _frontend: Frontend,
    socket: UnixStream,
    pairs: Box<[Pair]>,
    _shared: Shared,
    lost: Option<u64>,
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link")
            .field("queues", &self.pairs.len())
            .field("lost", &self.lost)
            .finish_non_exhaustive()
    }
}

impl Link {
    /// Negotiates over a connected socket. Blocks for at most [`Options::limit`].
    ///
    /// # Errors
    /// An [`OpenError`]; the connection is closed.
    pub fn open(socket: UnixStream, options: &Options) -> Result<Self, OpenError> {
        options.check()?;
        let front = Front::begin(&socket, options.queues, options.limit)?;
        let room = Room { posted: options.posted, tx_slots: options.tx_slots };
        let shared = Shared::new(usize::from(options.queues) * room.shared_octets())
            .map_err(|errno| OpenError::os("memfd", errno))?;
        let (mut pairs, mut ends) = (Vec::new(), Vec::new());
        for index in 0..usize::from(options.queues) {
            let (kicks, far) = notifications()?;
            let pair = Pair::start(&shared, index, BUS, front.offered(), room, kicks)
                .map_err(|status| OpenError::Driver { status })?;
            pairs.push(pair);
            ends.push(far);
        }
        let frontend = front.finish(&shared, &pairs, &ends)?;
        let mut pairs = pairs.into_boxed_slice();
        pairs.iter_mut().for_each(Pair::go_live);
        Ok(Self { _frontend: frontend, socket, pairs, _shared: shared, lost: None })
    }

    /// Queue pairs.
    #[must_use]
    pub fn queues(&self) -> u16 {
        self.pairs.len() as u16
    }

    /// Copies a frame into the transmit ring of `queue` and notifies the backend if the backend wants that. Does not block.
    ///
    /// # Errors
    /// A [`SendError`]: the backend does not have the frame.
    #[inline]
    pub fn send(&mut self, queue: u16, frame: &[u8]) -> Result<(), SendError> {
        let pair = self.pairs.get_mut(usize::from(queue)).ok_or(SendError::NoQueue { queue })?;
        match pair.send(frame) {
            0 => Ok(()),
            status => Err(refusal(pair, status, frame.len())),
        }
    }

    /// Takes back what the backend has sent by `queue`, so that the next [`Link::send`] there finds that done, and its code and data
    /// in the caches. Drops what has arrived. Does not block. A queue that does not exist is left alone.
    pub fn warm_up(&mut self, queue: u16) {
        if let Some(pair) = self.pairs.get_mut(usize::from(queue)) {
            pair.warm_up();
        }
    }

    /// Passes frames that have arrived in `queue` to `each`, at most [`crate::BATCH`]. Returns how many. Does not block.
    ///
    /// # Errors
    /// [`SendError::Broken`], [`SendError::NoQueue`].
    #[inline]
    pub fn receive(&mut self, queue: u16, each: &mut dyn FnMut(&[u8])) -> Result<usize, SendError> {
        let pair = self.pairs.get_mut(usize::from(queue)).ok_or(SendError::NoQueue { queue })?;
        let count = pair.receive(crate::BATCH, each);
        if count == 0 && pair.is_broken() {
            return Err(SendError::Broken(Fault::of(pair.fault())));
        }
        Ok(count)
    }

    /// Whether the backend has closed the connection, or has sent something unasked. A system call.
    #[must_use]
    pub fn is_hung_up(&self) -> bool {
        is_hung_up(&self.socket)
    }

    /// The connection alone, for a thread that waits for the hang-up while another one has the link.
    ///
    /// # Errors
    /// [`OpenError::Os`].
    pub fn watch(&self) -> Result<Watch, OpenError> {
        self.socket.try_clone().map(Watch).map_err(|error| OpenError::io("dup", &error))
    }

    /// The first rule that the backend broke.
    #[must_use]
    pub fn fault(&mut self) -> Option<Fault> {
        let broken = self.pairs.iter_mut().find(|pair| pair.is_broken())?;
        Some(Fault::of(broken.fault()))
    }

    /// Ends the rings. Returns how many sent frames the backend has not taken: they are lost.
    pub fn stop(&mut self) -> u64 {
        let pairs = &mut self.pairs;
        *self.lost.get_or_insert_with(|| pairs.iter_mut().map(Pair::stop).sum())
    }
}

#[cold]
fn refusal(pair: &mut Pair, status: i32, octets: usize) -> SendError {
    const LENGTH: i32 = -8;
    const FULL: i32 = -9;
    match status {
        LENGTH => SendError::Length { octets },
        FULL => SendError::Full,
        _ => SendError::Broken(Fault::of(pair.fault())),
    }
}

fn is_hung_up(socket: &UnixStream) -> bool {
    let mut connection = [PollFd::new(socket, PollFlags::IN | PollFlags::RDHUP)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut connection, Some(&now)).is_ok_and(|count| count > 0)
}

/// The connection of a link. It stays open as long as this value lives. Readable when the backend hangs up.
#[derive(Debug)]
pub struct Watch(UnixStream);

impl Watch {
    /// As [`Link::is_hung_up`].
    #[must_use]
    pub fn is_hung_up(&self) -> bool {
        is_hung_up(&self.0)
    }
}

impl AsFd for Watch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The connection: readable when the backend hangs up.
impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
