// SPDX-License-Identifier: Apache-2.0
//! One client connection: Hello, then Register and Unregister until it ends.
//!
//! Messages come from an untrusted process. Any unexpected message ends the connection. Nothing here waits, except [`drain`],
//! which the examiner calls.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use ktsn_ring::control::LATER_OCTETS_MAX;
use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType, bind, listen,
    recvmsg, sendmsg, shutdown, socket_with, socketpair, sockopt,
};

use super::socket::{Examine, facts_without_lock};
use super::sys;

/// Octets of a buffer for messages: one more than the longest has, so a longer one is none.
pub(super) const BUFFER_OCTETS: usize = LATER_OCTETS_MAX + 1;
/// Descriptors that one message may carry (SCM_MAX_FD). There is room for all: the kernel would close others in this thread, and
/// a close may block.
const DESCRIPTORS_MAX: usize = 253;
/// Callers in the listener's queue.
const BACKLOG: i32 = 256;
/// Descriptors of an answer.
const PASSED_MAX: usize = 2;

/// The socket that clients connect to.
pub(super) fn listen_at(path: &Path) -> Result<OwnedFd, Errno> {
    // This process holds the lock of the run directory, so what lies here is a leftover.
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(Errno::from_io_error(&error).unwrap_or(Errno::IO));
        }
        _ => {}
    }
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let listener = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    bind(&listener, &SocketAddrUnix::new(path)?)?;
    // Any process may connect; the sockets that it passes decide what it may do.
    rustix::fs::chmod(path, rustix::fs::Mode::from_raw_mode(0o666))?;
    listen(&listener, BACKLOG)?;
    Ok(listener)
}

/// Waits for input.
pub(super) fn watch(epoll: &OwnedFd, fd: impl AsFd, token: u64) -> Result<(), Errno> {
    epoll::add(epoll, fd, epoll::EventData::new_u64(token), epoll::EventFlags::IN)
}

/// Stops waiting: not even a hang-up is reported.
pub(super) fn unwatch(epoll: &OwnedFd, fd: impl AsFd) {
    // It may have been removed already.
    let _ = epoll::delete(epoll, fd);
}

/// One message with the descriptors that came with it.
#[derive(Debug)]
pub(super) struct Received {
    /// What was read of it: all, or more than any message has.
    pub octets: Box<[u8]>,
    /// The passed descriptors.
    pub descriptors: Vec<OwnedFd>,
}

impl Received {
    pub(super) fn octets(&self) -> &[u8] {
        &self.octets
    }
}

/// The result of a read.
#[derive(Debug)]
pub(super) enum Read {
    Message(Box<Received>),
    Nothing,
    Ended,
}

/// Reads one message by a buffer of [`BUFFER_OCTETS`]; never waits.
pub(super) fn read(connection: BorrowedFd<'_>, buffer: &mut [u8]) -> Read {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let result = recvmsg(connection, &mut [IoSliceMut::new(buffer)], &mut ancillary, flags);
    let descriptors: Vec<OwnedFd> = ancillary
        .drain()
        .filter_map(|m| match m {
            RecvAncillaryMessage::ScmRights(fds) => Some(fds),
            _ => None,
        })
        .flatten()
        .collect();
    match result {
        // Any input with descriptors is a message: the reader closes them.
        Ok(received) if received.bytes > 0 || !descriptors.is_empty() => {
            Read::Message(Box::new(Received { octets: buffer[..received.bytes].into(), descriptors }))
        }
        Ok(_) => Read::Ended,
        Err(Errno::AGAIN | Errno::INTR) => Read::Nothing,
        Err(_) => Read::Ended,
    }
}

/// Sends one message with descriptors. A peer that does not read gets nothing.
pub(super) fn write(
    connection: impl AsFd,
    octets: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(PASSED_MAX))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(Errno::NOBUFS);
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    sendmsg(connection, &[IoSlice::new(octets)], &mut ancillary, flags).map(|_| ())
}

/// A doorbell: (ktsnd's end, the client's end).
pub(super) fn doorbell() -> Result<(OwnedFd, OwnedFd), Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    // The worker reads it, and the reader of a descriptor closes it: no descriptor may be sent (Linux 6.16 and later).
    let _ = sys::refuse_rights(&ours);
    Ok((ours, theirs))
}

/// Whether nothing is unread in a connection that was shut: then its close does not block. In doubt the answer is false.
pub(super) fn is_empty(connection: &OwnedFd) -> bool {
    // With this option a message brings a control message, even one without octets; the end of the stream brings nothing.
    if sockopt::set_socket_passcred(connection, true).is_err() {
        return false;
    }
    let flags = RecvFlags::DONTWAIT | RecvFlags::PEEK;
    let peek =
        || recvmsg(connection, &mut [IoSliceMut::new(&mut [0])], &mut RecvAncillaryBuffer::default(), flags);
    // A peer that left something unread is reported first, once; what it sent is still here.
    let seen = match peek() {
        Err(Errno::CONNRESET) => peek(),
        seen => seen,
    };
    seen.is_ok_and(|received| received.bytes == 0 && !received.flags.contains(ReturnFlags::CTRUNC))
}

/// Whether nothing is to be read from a connection that is open.
pub(super) fn is_silent(connection: &OwnedFd) -> bool {
    let flags = RecvFlags::DONTWAIT | RecvFlags::PEEK;
    let none = &mut RecvAncillaryBuffer::default();
    matches!(recvmsg(connection, &mut [IoSliceMut::new(&mut [0])], none, flags), Err(Errno::AGAIN))
}

/// Ends a connection for its peer, which can send nothing more.
pub(super) fn shut(connection: &OwnedFd) {
    let _ = shutdown(connection, Shutdown::Both);
}

/// Closes what was passed on a connection that was shut; `examine` closes each descriptor.
pub(super) fn drain(connection: &OwnedFd, examine: Examine) {
    let mut buffer = vec![0; BUFFER_OCTETS];
    while let Read::Message(message) = read(connection.as_fd(), &mut buffer) {
        for descriptor in message.descriptors {
            // The close of most descriptors does not block.
            if !facts_without_lock(&descriptor).is_ok_and(|facts| facts.closes_at_once()) {
                let _ = examine(descriptor);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Neither a message without octets nor one without descriptors is taken for the end.
    #[test]
    fn a_connection_is_empty_when_nothing_lies_in_it() {
        let sent = |messages: &[(&[u8], bool)]| {
            let (ours, theirs) = pair();
            for (octets, has_descriptor) in messages {
                let passed = [theirs.as_fd()];
                write(&theirs, octets, &passed[..usize::from(*has_descriptor)]).unwrap();
            }
            shut(&ours);
            is_empty(&ours)
        };
        assert!(sent(&[]));
        assert!(!sent(&[(b"KTSN", false)]) && !sent(&[(b"", false)]));
        assert!(!sent(&[(b"KTSN", true)]) && !sent(&[(b"", true)]) && !sent(&[(b"", false), (b"", true)]));
    }

    /// A peer that goes without reading what it was sent resets the connection; what it sent stays readable.
    #[test]
    fn a_connection_that_was_reset_is_not_empty() {
        for (octets, is_left) in [(&b"KTSN"[..], false), (b"", false), (b"", true)] {
            let (ours, theirs) = pair();
            write(&ours, b"unread", &[]).unwrap();
            if !is_left {
                write(&theirs, octets, &[ours.as_fd()]).unwrap();
            }
            drop(theirs);
            shut(&ours);
            assert_eq!(is_empty(&ours), is_left, "{octets:?}");
        }
    }

    /// The reader of a message closes what came with it, however long that takes; the registrar must not.
    #[test]
    fn what_came_with_a_message_is_the_readers() {
        for length in [0, 1, BUFFER_OCTETS, BUFFER_OCTETS + 1] {
            let (ours, theirs) = pair();
            write(&theirs, &vec![7; length], &[theirs.as_fd()]).unwrap();
            let Read::Message(message) = read(ours.as_fd(), &mut vec![0; BUFFER_OCTETS]) else {
                panic!("{length} octets are a message")
            };
            assert_eq!(message.descriptors.len(), 1);
            assert!(ktsn_ring::control::parse(message.octets()).is_err());
        }
    }

    fn pair() -> (OwnedFd, OwnedFd) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap()
    }

    /// A hang-up is reported whatever events are asked for: a paused connection would be served without end.
    #[test]
    fn a_connection_that_is_not_watched_does_not_wake_us() {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let (ours, theirs) = doorbell().unwrap();
        watch(&epoll, &ours, 1).unwrap();
        unwatch(&epoll, &ours);
        drop(theirs);
        let wait = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        let woken = || {
            let mut events = Vec::with_capacity(4);
            epoll::wait(&epoll, rustix::buffer::spare_capacity(&mut events), Some(&wait)).unwrap();
            events.len()
        };
        assert_eq!(woken(), 0);
        watch(&epoll, &ours, 1).unwrap();
        assert_eq!(woken(), 1);
    }
}
