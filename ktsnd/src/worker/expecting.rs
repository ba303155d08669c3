// SPDX-License-Identifier: Apache-2.0
//! Sleeping for frames that are expected (`expectations`): when the worker wakes for them, and what it learns from each frame.
//!
//! In: frames as they are queued; the instant before a sleep. Out: how long to sleep. The worker wakes once for such a frame: its
//! program finds a promise that reaches no further than the frame's transmit time, and rings no doorbell.
//!
//! ```text
//!            sleep                 intake        spin
//!  ────────────────────────┬─margin─┬──┬─spread─┬──────┬──►
//!                     wake target      │    expected TxTime
//!                                   promise
//! ```
//!
//! Some frames need the early wake-up that a doorbell gives: frames that ask for reports or timestamps, that have a deadline, or whose next
//! hop has no MAC address yet. The worker expects no frames of such a stream, and makes no promise to its client for them.

use ktsn_port::Port;
use ktsn_time::{Monotonic, Nanos, Now, TxTime};

use super::attachments::Attachments;
use super::clients::Clients;
use super::expectations::{Nearest, QueuedFrame, StreamKey};
use super::frame_admission::Accepted;
use super::pacing::Pacing;
use super::ports::Ports;
use super::source::Offered;
use crate::limits;
use crate::stats::{WorkerStats, count};

/// What is to be done about the next expected frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Expecting {
    /// None is expected within the sleep.
    Nothing,
    /// The worker sleeps for no longer than this.
    Sleep(Nanos),
    /// A frame that was expected lies in its ring, or more expectations are to be judged: the worker does not sleep.
    Awake,
}

/// A frame of the client in place `at` was queued.
#[inline]
pub(super) fn note_queued(
    clients: &mut Clients,
    stats: &WorkerStats,
    at: usize,
    offered: &Offered,
    accepted: &Accepted,
    now: Now,
) {
    let Some((client, expectations)) = clients.with_expectations(at) else { return };
    let (index, token) = offered.stream;
    if offered.wants_report || offered.is_deadline || accepted.missing.is_some() {
        let (mark, attention) = client.expected(index);
        attention.note_wanted_early(now.monotonic);
        return mark.into_iter().for_each(|mark| expectations.forget_stream(mark, at, index));
    }
    let tx_time = offered.tx_time;
    let (Some(mark), attention) = client.expected(index) else { return };
    if tx_time == TxTime::Monotonic(Monotonic::ZERO) {
        return;
    }
    let stream = StreamKey { client: at, index, token };
    let attachment = offered.attachment;
    let frame = QueuedFrame { stream, attachment, tx_time, port: accepted.port };
    let noted = expectations.note_frame(mark, &frame, now);
    if noted.is_expected {
        attention.note_expected(now.monotonic);
    }
    if noted.is_met {
        count(&stats.expected_frames);
    }
}

/// The parts that a sleep for an expected frame follows from.
pub(super) struct ExpectedSleep<'a, P> {
    pub clients: &'a mut Clients,
    pub attachments: &'a mut Attachments,
    pub ports: &'a Ports<P>,
    pub pacing: &'a Pacing,
    pub stats: &'a WorkerStats,
    /// A frame that goes nowhere can be handed over before a frame after a pause.
    pub can_rehearse: bool,
}

impl<P: Port> ExpectedSleep<'_, P> {
    /// What is to be done about the next expected frame before a sleep that takes `span` at most. Frames that are not there when they
    /// had to be are left to the doorbell; so are those of streams that ended and of attachments that are beyond their budget.
    pub(super) fn choose(&mut self, now: Now, span: Nanos) -> Expecting {
        for _ in 0..limits::EXPECTED_JUDGED {
            let Some(nearest) = self.clients.expectations().nearest() else {
                self.clients.expectations().sleep_for(None);
                return Expecting::Nothing;
            };
            if !self.is_served(&nearest) {
                self.clients.expectations().release(nearest.entry);
                continue;
            }
            let is_polled = self.clients.is_polled(nearest.stream.client);
            if !is_polled || !self.attachments.may_expect(nearest.attachment, now.monotonic) {
                self.clients.expectations().pass_over(nearest.entry, now);
                continue;
            }
            if let Some(expected) = self.sleep_for_expected(&nearest, now) {
                let is_first = expected < span;
                self.clients.expectations().sleep_for(is_first.then_some(nearest.entry));
                self.clients.make_nearer(nearest.stream.client);
                return if is_first { Expecting::Sleep(expected) } else { Expecting::Nothing };
            }
            if self.clients.get(nearest.stream.client).is_some_and(super::Client::is_waiting) {
                return Expecting::Awake;
            }
            self.note_absent(&nearest, now);
        }
        Expecting::Awake
    }

    /// How long the worker sleeps for this frame; `None`: the rings had to be polled for it by now.
    fn sleep_for_expected(&self, nearest: &Nearest, now: Now) -> Option<Nanos> {
        let ahead = nearest.from.since(now.monotonic);
        let port = self.ports.preparation(nearest.port, now.monotonic, self.can_rehearse);
        let intake = limits::INTAKE_FRAME.saturating_mul(nearest.together as i64 - 1); // EXPECTED_TOGETHER_MAX at most
        let more = self.pacing.more_if_cold(ahead, now.monotonic, port).saturating_add(intake);
        self.pacing.sleep_for_expected(ahead, more)
    }

    /// True when the stream is still registered, and its client's ring is open.
    fn is_served(&self, nearest: &Nearest) -> bool {
        let StreamKey { client, index, token } = nearest.stream;
        self.clients.get(client).is_some_and(|client| {
            client.is_open() && client.stream(index).is_some_and(|stream| stream.token == token)
        })
    }

    fn note_absent(&mut self, nearest: &Nearest, now: Now) {
        if self.clients.expectations().note_absent(nearest.entry, now) {
            count(&self.stats.empty_wake_ups);
            self.attachments.count_empty_wake_up(nearest.attachment);
        }
    }
}
