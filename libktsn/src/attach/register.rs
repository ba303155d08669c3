// SPDX-License-Identifier: Apache-2.0
//! A stream made known to ktsnd: attaches if need be, registers the stream, and waits for the answer.
//!
//! In: a stream and its socket. Out: what the daemon answered. [`attach_and_register`] waits up to [`ATTACH_WAIT`] for the region and
//! as long again for the answer, but only for a daemon that is there: an absent one is known at once.

use core::ffi::c_int;

use ktsn_ring::{StreamCode, StreamStatus, stream_flags};

use crate::attach::handshake::{self, ATTACH_WAIT};
use crate::process::page::{self, Page};
use crate::process::region::{self, RegionUse};
use crate::streams::{Registration, Stream, fds};
use crate::{process::clock, process::sys};

/// Attaches if need be and registers, with all attachments of the namespace; the answer of one that serves this stream,
/// preferably in all clocks.
pub(crate) fn attach_and_register(stream: Stream, fd: c_int) -> Option<StreamStatus> {
    let page = page::make()?;
    let deadline = clock::monotonic().saturating_add(ATTACH_WAIT);
    if !handshake::wait(page, fd, deadline) {
        return None;
    }
    // The daemon is there: its answer has a second of its own, however long attaching took.
    let deadline = clock::monotonic().saturating_add(ATTACH_WAIT);
    let is_best = |status: &StreamStatus| status.flags & stream_flags::TAI_GRANTED != 0;
    let mut best: Option<StreamStatus> = None;
    for held in RegionUse::all(page) {
        let answer = await_grant(stream, &held, fd, deadline);
        best = best.filter(is_best).or(answer.filter(is_best)).or(best).or(answer);
    }
    best
}

/// Shows the port that a socket without one will have, and waits for the answers: the first send finds them.
pub(crate) fn reserve_and_show_port(stream: Stream, fd: c_int) {
    stream.reserve_port(fd);
    let deadline = clock::monotonic().saturating_add(ATTACH_WAIT);
    for held in page::get().into_iter().flat_map(RegionUse::all) {
        let _ = await_grant(stream, &held, fd, deadline);
    }
}

/// The answer of one attachment, if it serves this stream.
fn await_grant(stream: Stream, held: &RegionUse, fd: c_int, deadline: u64) -> Option<StreamStatus> {
    loop {
        match stream.register_if_stale(held, fd, 0) {
            Registration::Known(status) => return (status.code == StreamCode::Registered).then_some(status),
            Registration::NoRoom => return None,
            Registration::Unknown | Registration::Late if clock::monotonic() >= deadline => return None,
            Registration::Unknown | Registration::Late => {
                sys::nap(500_000);
            }
        }
    }
}

/// After a region was given up because the program displaced a descriptor of ours: attaches again, and registers the socket's stream, or
/// any. It waits, as the first attachment does: the daemon is there, a frame that is sent meanwhile would be lost, and the daemon reads the
/// counters of clients that have registered.
#[cold]
pub(crate) fn return_if_displaced(page: &Page, socket: c_int) {
    if region::take_displaced(page)
        && let Some((fd, stream)) = fds::stream_of(socket).or_else(fds::any_stream)
    {
        let _ = attach_and_register(stream, fd);
    }
}

/// Counts frames of the attachment at `place` that no daemon takes. The program may end next: the count is in a region then, if there is a
/// daemon.
pub(crate) fn count_absent(page: &Page, place: usize, frames: u64) {
    region::count_absent(place, frames);
    return_if_displaced(page, -1);
    if let Some(held) = RegionUse::at(page, place) {
        held.producer().add(ktsn_ring::counter::DAEMON_ABSENT, region::take_absent(place));
    }
}
