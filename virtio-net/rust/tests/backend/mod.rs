// SPDX-License-Identifier: BSD-2-Clause
//! A backend of a few lines, with a lie for each message, and rings that a test moves by hand.
#![allow(dead_code)] // each test program uses its part

#[allow(unsafe_code)]
pub(crate) mod sys;

use std::collections::BTreeMap;
use std::io::{IoSlice, IoSliceMut, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{Ordering, fence};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};
use sys::Memory;

pub(crate) const VERSION_1: u64 = 1 << 32;
pub(crate) const PROTOCOL_FEATURES: u64 = 1 << 30;
const MQ: u64 = 1;
const REPLY_ACK: u64 = 1 << 3;
const REPLY: u32 = 1 << 2;
const NEED_REPLY: u32 = 1 << 3;
const RING_MASK: u64 = 0xff;

/// What the backend does instead of answering.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lie {
    Close,
    Silence,
    HalfAHeader,
    HalfABody,
    OtherRequest,
    NoReplyFlag,
    OtherVersion,
    HugeSize,
    NoSize,
    ADescriptor,
    Refusal,
}

pub(crate) const LIES: [Lie; 11] = [
    Lie::Close,
    Lie::Silence,
    Lie::HalfAHeader,
    Lie::HalfABody,
    Lie::OtherRequest,
    Lie::NoReplyFlag,
    Lie::OtherVersion,
    Lie::HugeSize,
    Lie::NoSize,
    Lie::ADescriptor,
    Lie::Refusal,
];

/// Where a ring lies, as offsets into the memory.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Ring {
    pub(crate) size: usize,
    pub(crate) descriptors: usize,
    pub(crate) used: usize,
    pub(crate) available: usize,
    pub(crate) is_on: bool,
}

/// What the front end has said.
pub(crate) struct Backend {
    socket: UnixStream,
    pub(crate) features: u64,
    pub(crate) pairs_count: u64,
    /// Rings that the backend has; a request for another one is refused.
    pub(crate) rings_count: usize,
    accepted_protocol: u64,
    pub(crate) accepted: u64,
    pub(crate) memory: Option<Memory>,
    base: u64,
    pub(crate) rings: BTreeMap<usize, Ring>,
    pub(crate) kicks: BTreeMap<usize, OwnedFd>,
    pub(crate) messages: usize,
    /// Which message is answered with a lie.
    pub(crate) lie: Option<(usize, Lie)>,
    told: BTreeMap<usize, (u16, u16)>, // next available to take, next used to give
}

fn number(body: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(body[at..at + 8].try_into().expect("eight octets"))
}

impl Backend {
    pub(crate) fn new(socket: UnixStream) -> Self {
        Self {
            socket,
            features: VERSION_1 | PROTOCOL_FEATURES,
            pairs_count: 8,
            rings_count: 16,
            accepted_protocol: 0,
            accepted: 0,
            memory: None,
            base: 0,
            rings: BTreeMap::new(),
            kicks: BTreeMap::new(),
            messages: 0,
            lie: None,
            told: BTreeMap::new(),
        }
    }

    /// Closes the connection, and keeps the memory.
    pub(crate) fn hang_up(&self) {
        self.socket.shutdown(std::net::Shutdown::Both).expect("shut down");
    }

    /// Whether the front end has closed the connection.
    pub(crate) fn is_closed(&self) -> bool {
        let read = rustix::net::recv(&self.socket, &mut [0; 8], RecvFlags::DONTWAIT);
        read.is_ok_and(|(_, count)| count == 0)
    }

    /// Answers until the GET_FEATURES behind the memory, which ends the negotiation. False: the connection ended before.
    pub(crate) fn negotiate(&mut self) -> bool {
        loop {
            match self.answer() {
                Some(1) if self.memory.is_some() => return true,
                Some(_) => {}
                None => return false,
            }
        }
    }

    /// Answers one request. Returns its number; `None`: the connection has ended.
    fn answer(&mut self) -> Option<u32> {
        let mut header = [0; 12];
        let mut files = self.read(&mut header)?;
        let word = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().expect("four octets"));
        let (request, flags, size) = (word(0), word(4), word(8));
        let mut body = vec![0; size as usize];
        if size > 0 {
            files.extend(self.read(&mut body)?);
        }
        let value = self.obey(request, &body, files);
        let lie = self.lie.filter(|(at, _)| *at == self.messages).map(|(_, lie)| lie);
        self.messages += 1;
        let value = match value {
            Some(value) => Some(value),
            None => (flags & NEED_REPLY != 0 && self.accepted_protocol & REPLY_ACK != 0).then_some(0),
        };
        match (lie, value) {
            (None, None) => {}
            (None, Some(value)) => self.reply(request, 1 | REPLY, 8, &value.to_le_bytes(), false),
            (Some(lie), _) => return self.tell(lie, request, value.unwrap_or(0)),
        }
        Some(request)
    }

    fn tell(&mut self, lie: Lie, request: u32, value: u64) -> Option<u32> {
        let body = value.to_le_bytes();
        match lie {
            Lie::Close => return None,
            Lie::Silence => {
                // Until the front end gives up.
                let mut rest = [0; 1];
                while self.read(&mut rest).is_some() {}
                return None;
            }
            Lie::HalfAHeader => {
                let _broken_off = self.socket.write_all(&[0; 5]);
                return None;
            }
            Lie::HalfABody => {
                self.reply(request, 1 | REPLY, 8, &body[..3], false);
                return None;
            }
            Lie::OtherRequest => self.reply(request + 1, 1 | REPLY, 8, &body, false),
            Lie::NoReplyFlag => self.reply(request, 1, 8, &body, false),
            Lie::OtherVersion => self.reply(request, 2 | REPLY, 8, &body, false),
            Lie::HugeSize => self.reply(request, 1 | REPLY, u32::MAX, &body, false),
            Lie::NoSize => self.reply(request, 1 | REPLY, 0, &[], false),
            Lie::ADescriptor => self.reply(request, 1 | REPLY, 8, &body, true),
            Lie::Refusal => self.reply(request, 1 | REPLY, 8, &1_u64.to_le_bytes(), false),
        }
        Some(request)
    }

    fn reply(&mut self, request: u32, flags: u32, size: u32, body: &[u8], with_descriptor: bool) {
        let mut whole = Vec::new();
        for word in [request, flags, size] {
            whole.extend(word.to_le_bytes());
        }
        whole.extend(body);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let own = [self.socket.as_fd()];
        if with_descriptor {
            control.push(SendAncillaryMessage::ScmRights(&own));
        }
        let _gone =
            rustix::net::sendmsg(&self.socket, &[IoSlice::new(&whole)], &mut control, SendFlags::NOSIGNAL);
    }

    fn read(&mut self, to: &mut [u8]) -> Option<Vec<OwnedFd>> {
        let (mut at, mut files) = (0, Vec::new());
        while at < to.len() {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let mut into = [IoSliceMut::new(&mut to[at..])];
            let read = rustix::net::recvmsg(&self.socket, &mut into, &mut control, RecvFlags::CMSG_CLOEXEC);
            let count = read.ok()?.bytes;
            for message in control.drain() {
                if let RecvAncillaryMessage::ScmRights(rights) = message {
                    files.extend(rights);
                }
            }
            if count == 0 {
                return None;
            }
            at += count;
        }
        Some(files)
    }

    fn obey(&mut self, request: u32, body: &[u8], mut files: Vec<OwnedFd>) -> Option<u64> {
        let ring = || (number(body, 0) & RING_MASK) as usize;
        let value = || (number(body, 0) >> 32) as usize;
        match request {
            1 => return Some(self.features),
            2 => self.accepted = number(body, 0),
            5 => {
                self.base = number(body, 8);
                self.memory = Some(Memory::of(&files.remove(0)));
            }
            8..=13 if ring() >= self.rings_count => return Some(1),
            8 => self.rings.entry(ring()).or_default().size = value(),
            9 => {
                let offset = |at| (number(body, at) - self.base) as usize;
                let place = (offset(8), offset(16), offset(24));
                let ring = self.rings.entry(ring()).or_default();
                (ring.descriptors, ring.used, ring.available) = place;
            }
            12 => {
                self.kicks.insert(ring(), files.remove(0));
            }
            15 => return Some(MQ | REPLY_ACK),
            16 => self.accepted_protocol = number(body, 0),
            17 => return Some(self.pairs_count),
            18 => self.rings.entry(ring()).or_default().is_on = value() == 1,
            _ => {}
        }
        None
    }
}

/// The rings, moved by hand.
impl Backend {
    fn memory(&self) -> &Memory {
        self.memory.as_ref().expect("a memory table")
    }

    /// Takes the next buffer that the driver has made available: its descriptor's number, offset and length.
    pub(crate) fn take(&mut self, number: usize) -> Option<(u16, usize, usize)> {
        let ring = self.rings[&number];
        let next = self.told.entry(number).or_default().0;
        if self.memory().get::<u16>(ring.available + 2) == next {
            return None;
        }
        fence(Ordering::Acquire);
        self.told.entry(number).or_default().0 = next.wrapping_add(1);
        let place = ring.available + 4 + 2 * (usize::from(next) % ring.size);
        let id: u16 = self.memory().get(place);
        let descriptor = ring.descriptors + 16 * usize::from(id);
        let offset = (self.memory().get::<u64>(descriptor) - self.base) as usize;
        Some((id, offset, self.memory().get::<u32>(descriptor + 8) as usize))
    }

    /// Gives a buffer back, of which `octets` were written.
    pub(crate) fn give(&mut self, number: usize, id: u32, octets: u32) {
        let ring = self.rings[&number];
        let next = self.told.entry(number).or_default().1;
        let element = ring.used + 4 + 8 * (usize::from(next) % ring.size);
        self.memory().put(element, id);
        self.memory().put(element + 4, octets);
        fence(Ordering::Release);
        self.memory().put(ring.used + 2, next.wrapping_add(1));
        self.told.entry(number).or_default().1 = next.wrapping_add(1);
    }

    /// Moves the used index without giving anything.
    pub(crate) fn move_used(&mut self, number: usize, by: u16) {
        let place = self.rings[&number].used + 2;
        let now: u16 = self.memory().get(place);
        self.memory().put(place, now.wrapping_add(by));
    }

    /// Asks the driver for no notifications, or for some.
    pub(crate) fn want_notifications(&mut self, number: usize, on: bool) {
        self.memory().put(self.rings[&number].used, u16::from(!on));
    }

    /// Sends one frame of the driver's ring of pair `pair` back to it. False: there is none, or no buffer for it.
    pub(crate) fn echo(&mut self, pair: usize) -> bool {
        let Some((id, from, octets)) = self.take(2 * pair + 1) else { return false };
        self.give(2 * pair + 1, u32::from(id), 0);
        let Some((to_id, to, _room)) = self.take(2 * pair) else { return false };
        for at in 0..octets {
            let octet: u8 = self.memory().get(from + at);
            self.memory().put(to + at, octet);
        }
        self.give(2 * pair, u32::from(to_id), octets as u32);
        true
    }

    /// Notifications of a ring that wait to be read.
    pub(crate) fn notifications(&self, number: usize) -> usize {
        let mut buffer = [0; 8];
        let socket = &self.kicks[&number];
        std::iter::from_fn(|| {
            let read = rustix::net::recv(socket, &mut buffer, RecvFlags::DONTWAIT);
            read.ok().map(|(_, count)| assert_eq!(count, 8, "as an eventfd"))
        })
        .count()
    }
}
