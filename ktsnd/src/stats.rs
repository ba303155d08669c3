// SPDX-License-Identifier: Apache-2.0
//! Counters: a worker writes them, any thread reads them. Relaxed atomics, no lock, fixed size.
//!
//! In: events and spans. Out: counts and distributions. To count must never cost more than a plain addition.

mod counted;

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use ktsn_model::{BypassReason, DropReason, TrafficClass};
use ktsn_sched::policing::{FilterCounters, Tripped};
use ktsn_time::Nanos;

pub use counted::Counted;

/// Two octaves share nothing: 128 sub-buckets each keep the error below 0.8 %.
const SUB_BITS: u32 = 7;
const SUBS: usize = 1 << SUB_BITS;
/// Values above 2^34 ns (17 s) count as that.
const VALUE_BITS: u32 = 34;
const BUCKETS: usize = SUBS * (VALUE_BITS - SUB_BITS + 1) as usize;

/// A distribution of spans, in nanoseconds, written by one thread and read by others at any time. Its room is 28 KiB.
pub struct Spans {
    buckets: OnceLock<Box<[AtomicU64]>>,
    max: AtomicU64,
}

impl Default for Spans {
    fn default() -> Self {
        let spans = Self::without_room();
        spans.make_room();
        spans
    }
}

impl std::fmt::Debug for Spans {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Spans(max {} ns)", self.max.load(Relaxed))
    }
}

fn bucket_of(value: u64) -> usize {
    let value = value.min((1 << VALUE_BITS) - 1);
    if value < SUBS as u64 {
        return value as usize;
    }
    let shift = value.ilog2() - SUB_BITS;
    // The leading bit is implied by the octave.
    SUBS * (shift as usize + 1) + ((value >> shift) as usize - SUBS)
}

fn lowest_of(bucket: usize) -> u64 {
    let (octave, sub) = (bucket / SUBS, bucket % SUBS);
    if octave == 0 { sub as u64 } else { ((SUBS + sub) as u64) << (octave - 1) }
}

impl Spans {
    /// An empty distribution. Nothing can be recorded before [`Self::make_room`].
    fn without_room() -> Self {
        Self { buckets: OnceLock::new(), max: AtomicU64::new(0) }
    }

    /// Allocates, where that was not done yet: not for the thread that records.
    pub fn make_room(&self) {
        self.buckets.get_or_init(|| (0..BUCKETS).map(|_| AtomicU64::new(0)).collect());
    }

    fn buckets(&self) -> &[AtomicU64] {
        self.buckets.get().map_or(&[], |buckets| buckets)
    }

    /// Adds one span; negative ones count as zero.
    pub fn record(&self, span: Nanos) {
        let value = u64::try_from(span.get()).unwrap_or(0);
        let bucket = self.buckets().get(bucket_of(value));
        debug_assert!(bucket.is_some(), "recorded without room");
        if let Some(bucket) = bucket {
            count(bucket);
        }
        if value > self.max.load(Relaxed) {
            self.max.store(value, Relaxed);
        }
    }

    /// Adds another distribution.
    fn join(&self, other: &Self) {
        if !other.buckets().is_empty() {
            self.make_room();
        }
        for (own, more) in self.buckets().iter().zip(other.buckets()) {
            add(own, more.load(Relaxed));
        }
        self.max.store(self.max.load(Relaxed).max(other.max.load(Relaxed)), Relaxed);
    }

    /// A copy in the form that tools know (3 significant digits).
    #[must_use]
    pub fn snapshot(&self) -> hdrhistogram::Histogram<u64> {
        let mut histogram = hdrhistogram::Histogram::<u64>::new(3).expect("3 digits are allowed");
        let max = self.max.load(Relaxed);
        for (bucket, count) in self.buckets().iter().enumerate() {
            let count = count.load(Relaxed);
            if count > 0 {
                // The middle of the bucket, never above the greatest value seen.
                let (low, next) = (lowest_of(bucket), lowest_of(bucket + 1));
                let _ = histogram.record_n((low + (next - 1 - low) / 2).min(max), count);
            }
        }
        histogram
    }
}

ktsn_model::words! {
    /// Why a program does not become a client, or why a socket of a client does not become a stream.
    #[repr(u8)]
    pub enum RefusedBy {
        /// The attachment has as many clients as it may have.
        ClientsMax = "clients_max",
        /// There is no memory left in the attachment's budget, or in the daemon's.
        MemoryMax = "memory_max",
        /// The process has as many connections as one may have.
        ProcessMax = "process_max",
        /// There is no memory left for a further stream of a client: its socket is refused.
        StreamsMemory = "streams_memory",
    }
}

/// What happened to one attachment's frames.
#[derive(Debug, Default)]
pub struct AttachmentStats {
    /// Frames taken over from rings.
    pub taken: AtomicU64,
    /// Datagrams and frames handed to a port; of several copies the first.
    pub sent: AtomicU64,
    /// Further copies of them that were handed to a port (head-end replication).
    pub copies: AtomicU64,
    /// Copies that did not leave, while another one of the same datagram did or was still to.
    pub copies_lost: AtomicU64,
    /// Octets of all these, without FCS.
    pub sent_octets: AtomicU64,
    /// Sent frames that left by an ordinary thread, as hand-overs took too long. Only that thread writes it.
    pub deferred: AtomicU64,
    /// Sent frames that the device did not take from that thread.
    pub deferred_failed: AtomicU64,
    /// Frames sent although their transmit time had passed when the program sent them.
    pub late: AtomicU64,
    /// Frames sent although their transmit time had passed while the program waited for a slot of its ring.
    pub waited: AtomicU64,
    /// On-time frames sent more than 1 µs after their transmit time.
    pub overrun: AtomicU64,
    /// Frames not sent, by reason.
    pub dropped: [AtomicU64; DropReason::COUNT],
    /// Datagrams that the kernel sent at their transmit times, through their programs' sockets. Several threads add to it.
    pub kernel_sent: AtomicU64,
    /// Datagrams that the kernel was to send so, and did not, by reason. Several threads add to it.
    pub kernel_dropped: [AtomicU64; DropReason::COUNT],
    /// Frames taken over that were left to the kernel after all.
    pub passed: AtomicU64,
    /// Datagrams left to the kernel, as the clients report it, and those of `passed`.
    pub bypassed: [AtomicU64; BypassReason::COUNT],
    /// Sends that failed with EAGAIN as their socket had no slot left in its ring, as the clients report it.
    pub ring_full: AtomicU64,
    /// From the instant that a frame was captured at to its taking over.
    pub capture_lag: Spans,
    /// Times that the capture program was found taken off its device. Only the control thread writes it.
    pub capture_reattached: AtomicU64,
    /// Times that the ingress fast path was found taken off the uplink, or not in front. Only the control thread writes it.
    pub ingress_reattached: AtomicU64,
    /// Doorbells that were read.
    pub doorbells: AtomicU64,
    /// Registrations of sockets with CLOCK_TAI. Only the registrar writes it.
    pub tai_streams: AtomicU64,
    /// Programs that did not become clients, by reason. Only the registrar writes it.
    pub clients_refused: [AtomicU64; RefusedBy::ALL.len()],
    /// Expected arrivals, as the clients report it, in the order of [`RECEIVE_WORDS`].
    pub receive: [AtomicU64; RECEIVE_WORDS.len()],
    /// handed_at − tx_time of on-time frames.
    pub transmit_error: Spans,
}

/// What is counted of expected arrivals; the last one in nanoseconds.
pub const RECEIVE_WORDS: [&str; ktsn_ring::receive::COUNTS_COUNT] =
    ["expected", "hit", "early", "missed", "spun_ns"];

impl AttachmentStats {
    /// Counters of an attachment that may never have a frame: [`Spans::make_room`] comes before its first one.
    pub(crate) fn without_room() -> Self {
        let (capture_lag, transmit_error) = (Spans::without_room(), Spans::without_room());
        Self { capture_lag, transmit_error, ..Self::default() }
    }

    /// The counters without reasons, by name.
    pub(crate) fn plain(&self) -> [(&'static str, &AtomicU64); 15] {
        [
            ("taken", &self.taken),
            ("sent", &self.sent),
            ("copies", &self.copies),
            ("copies_lost", &self.copies_lost),
            ("sent_octets", &self.sent_octets),
            ("deferred", &self.deferred),
            ("deferred_failed", &self.deferred_failed),
            ("late", &self.late),
            ("waited", &self.waited),
            ("overrun", &self.overrun),
            ("capture_reattached", &self.capture_reattached),
            ("ingress_reattached", &self.ingress_reattached),
            ("doorbells", &self.doorbells),
            ("kernel_sent", &self.kernel_sent),
            ("passed", &self.passed),
        ]
    }

    /// The counters by reason: what is counted, the reason, and the counter. Some are what the clients say.
    pub(crate) fn by_reason(&self) -> impl Iterator<Item = (&'static str, &'static str, &AtomicU64)> {
        let dropped = DropReason::ALL.iter().map(|reason| reason.word()).zip(&self.dropped);
        let bypassed = BypassReason::ALL.iter().map(|reason| reason.word()).zip(&self.bypassed);
        let by_kernel = DropReason::ALL.iter().map(|reason| reason.word()).zip(&self.kernel_dropped);
        let refused = RefusedBy::ALL.iter().map(|reason| reason.word()).zip(&self.clients_refused);
        let dropped = dropped.map(|(word, counter)| ("dropped", word, counter));
        let bypassed = bypassed.map(|(word, counter)| ("bypassed", word, counter));
        let by_kernel = by_kernel.map(|(word, counter)| ("kernel_dropped", word, counter));
        let refused = refused.map(|(word, counter)| ("clients_refused", word, counter));
        let receive = RECEIVE_WORDS.into_iter().zip(&self.receive);
        let receive = receive.map(|(word, counter)| ("receive", word, counter));
        let all = dropped.chain(by_kernel).chain(bypassed).chain(refused).chain(receive);
        all.chain([("sends", "ring_full", &self.ring_full)])
    }

    /// Adds all that another one counted.
    pub(crate) fn join(&self, other: &Self) {
        for ((_, own), (_, more)) in self.plain().into_iter().zip(other.plain()) {
            add(own, more.load(Relaxed));
        }
        for ((.., own), (.., more)) in self.by_reason().zip(other.by_reason()) {
            // What clients said may be any number.
            own.store(own.load(Relaxed).saturating_add(more.load(Relaxed)), Relaxed);
        }
        self.capture_lag.join(&other.capture_lag);
        self.transmit_error.join(&other.transmit_error);
    }

    /// Counts a frame that does not leave.
    pub fn drop_frame(&self, reason: DropReason) {
        count(&self.dropped[usize::from(reason.number())]);
    }
}

ktsn_model::words! {
    /// Why a port did not take a frame.
    pub enum PortRefusal {
        /// All its buffers are under way. The frame is tried again.
        NoBuffer = "no_buffer",
        /// The device's queue is stopped, or the socket's send buffer full (EAGAIN). The frame is tried again.
        Busy = "busy",
        /// The kernel had no memory for a copy (ENOBUFS, ENOMEM). The frame is tried again.
        NoMemory = "no_memory",
        /// The device, or the far end of a virtual one, threw the frame away (EBUSY of AF_XDP, ENOBUFS of AF_PACKET).
        Dropped = "dropped",
        /// The link is down.
        LinkDown = "link_down",
        /// There is no such device any more.
        DeviceGone = "device_gone",
        /// The device's MTU has shrunk.
        TooLong = "too_long",
        /// The backend of a vhost-user port went away before it took the frame, which was handed over already.
        Lost = "lost",
        /// Anything else.
        Other = "other",
    }
}

/// What happened at one port.
#[derive(Debug, Default)]
pub struct PortStats {
    /// Frames handed over, class n at index n.
    pub frames: [AtomicU64; TrafficClass::COUNT],
    /// Hand-overs that ended too late for their frame to end inside its window, class n at index n (802.1Q 12.29.1.1).
    pub transmission_overrun: [AtomicU64; TrafficClass::COUNT],
    /// Frames that lay ready when their window or their deadline had passed.
    pub put_back: AtomicU64,
    /// Times that it did not take a frame, [`PortRefusal`]s by their index.
    pub refused: [AtomicU64; PortRefusal::ALL.len()],
    /// Frames that it took when they were tried again.
    pub retried: AtomicU64,
    /// The span that the guard band allows for a hand-over, nanoseconds.
    pub hand_over_ns: AtomicU64,
}

/// What a stream filter has seen (802.1Q 12.31.2), and what blocks it.
#[derive(Debug, Default)]
pub struct StreamFilterStats {
    counters: [AtomicU64; 6],
    tripped: AtomicU64,
}

impl StreamFilterStats {
    /// Publishes what the filter's worker has counted so far.
    pub(crate) fn store(&self, seen: &FilterCounters, tripped: Tripped) {
        let counters = [
            seen.matching_frames,
            seen.passing_frames,
            seen.not_passing_frames,
            seen.passing_sdu,
            seen.not_passing_sdu,
            seen.red_frames,
        ];
        for (shown, counter) in self.counters.iter().zip(counters) {
            shown.store(counter, Relaxed);
        }
        let tripped = u64::from(tripped.blocked_due_to_oversize_frame)
            | u64::from(tripped.closed_due_to_invalid_rx) << 1
            | u64::from(tripped.closed_due_to_octets_exceeded) << 2
            | u64::from(tripped.all_frames_red) << 3;
        self.tripped.store(tripped, Relaxed);
    }

    /// What it has seen. A frame that is judged meanwhile may be in some of the numbers only.
    #[must_use]
    pub fn counters(&self) -> FilterCounters {
        let [matching, passing, not_passing, passing_sdu, not_passing_sdu, red] =
            [0, 1, 2, 3, 4, 5].map(|at: usize| self.counters[at].load(Relaxed));
        FilterCounters {
            matching_frames: matching,
            passing_frames: passing,
            not_passing_frames: not_passing,
            passing_sdu,
            not_passing_sdu,
            red_frames: red,
        }
    }

    /// What blocks it.
    #[must_use]
    pub fn tripped(&self) -> Tripped {
        let tripped = self.tripped.load(Relaxed);
        Tripped {
            blocked_due_to_oversize_frame: tripped & 1 != 0,
            closed_due_to_invalid_rx: tripped & 2 != 0,
            closed_due_to_octets_exceeded: tripped & 4 != 0,
            all_frames_red: tripped & 8 != 0,
        }
    }
}

/// What happened in one worker.
#[derive(Debug, Default)]
pub struct WorkerStats {
    /// Returns from sleep.
    pub wake_ups: AtomicU64,
    /// Frames that came when they were expected: their programs had no doorbell to ring.
    pub expected_frames: AtomicU64,
    /// Wake-ups for an expected frame that was not there.
    pub empty_wake_ups: AtomicU64,
    /// Time spent spinning, nanoseconds.
    pub spin_ns: AtomicU64,
    /// Spins not begun because the duty cap was reached.
    pub spin_budget_spent: AtomicU64,
    /// Rests because the worker had used its share of the CPU.
    pub cpu_budget_spent: AtomicU64,
    /// The margin now, nanoseconds.
    pub spin_margin_ns: AtomicU64,
    /// The margins that were learnt ([`ktsn_expect::Margins`]), nanoseconds; 0 = not yet.
    pub margins_learnt: [AtomicU64; 3],
    /// Steps of TAI against MONOTONIC seen.
    pub clock_steps: AtomicU64,
    /// Seconds in which a client's doorbell was muted.
    pub doorbells_muted: AtomicU64,
    /// Regions given up because a client wrote impossible links.
    pub regions_retired: AtomicU64,
    /// Completions for programs that asked: error reports, timestamps.
    pub reports: AtomicU64,
    /// Completions that were left out because the program has too many unread.
    pub reports_dropped: AtomicU64,
    /// Completions that reached no error queue because the notifier could not follow.
    pub notices_lost: AtomicU64,
    /// Own faults seen and survived.
    pub bugs: AtomicU64,
    /// Passes of its loop: its sign of life.
    pub passes: AtomicU64,
}

/// Adds one to a counter. Only the worker that a counter belongs to writes it, so that nothing has to be locked: a
/// locked addition costs it as much as a third of a decision.
#[inline]
pub fn count(counter: &AtomicU64) {
    add(counter, 1);
}

/// Adds to a counter, as [`count`] does.
#[inline]
pub fn add(counter: &AtomicU64, more: u64) {
    counter.store(counter.load(Relaxed).wrapping_add(more), Relaxed);
}

/// Most that a client's own counter may have grown by between two looks, a few a second: no program sends so much.
const CLAIMED_MAX: u64 = 1 << 32;

/// Adds what a client says that it counted. A client may say any number: the counter never goes back.
#[inline]
pub fn add_claimed(counter: &AtomicU64, more: u64) {
    counter.store(counter.load(Relaxed).saturating_add(more.min(CLAIMED_MAX)), Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_bucket_holds_its_values(value in 0u64..1 << VALUE_BITS) {
            let bucket = bucket_of(value);
            prop_assert!(bucket < BUCKETS);
            prop_assert!(lowest_of(bucket) <= value && value < lowest_of(bucket + 1));
            let width = lowest_of(bucket + 1) - lowest_of(bucket);
            prop_assert!(width == 1 || width * 128 <= value);
        }
    }

    proptest! {
        /// A counter of Prometheus that goes back looks like a restart.
        #[test]
        fn what_a_client_claims_never_takes_a_counter_back(claims in proptest::collection::vec(any::<u64>(), 0..20)) {
            let (counter, sums) = (AttachmentStats::default(), AttachmentStats::default());
            counter.bypassed[0].store(u64::MAX - 3 * CLAIMED_MAX, Relaxed);
            sums.bypassed[0].store(1, Relaxed);
            for more in claims {
                let before = counter.bypassed[0].load(Relaxed);
                add_claimed(&counter.bypassed[0], more);
                let grown = counter.bypassed[0].load(Relaxed).checked_sub(before);
                prop_assert!(grown.is_some_and(|grown| grown <= more.min(CLAIMED_MAX)));
                let before = sums.bypassed[0].load(Relaxed);
                sums.join(&counter);
                prop_assert!(sums.bypassed[0].load(Relaxed) >= before);
            }
        }
    }

    #[test]
    fn an_attachment_without_frames_has_no_distributions() {
        let (idle, sums) = (AttachmentStats::without_room(), AttachmentStats::without_room());
        assert!(idle.transmit_error.snapshot().is_empty() && idle.transmit_error.buckets().is_empty());
        sums.join(&idle);
        assert!(sums.transmit_error.buckets().is_empty());
        idle.transmit_error.make_room();
        idle.transmit_error.record(Nanos::new(500));
        idle.transmit_error.make_room();
        sums.join(&idle);
        assert_eq!(sums.transmit_error.snapshot().len(), 1);
        assert!(sums.capture_lag.buckets().is_empty());
    }

    #[test]
    fn a_snapshot_has_the_same_quantiles() {
        let spans = Spans::default();
        for n in 0..1000 {
            spans.record(Nanos::new(n));
        }
        spans.record(Nanos::new(-4));
        let h = spans.snapshot();
        assert_eq!(h.len(), 1001);
        assert!(h.value_at_quantile(0.5).abs_diff(500) <= 4, "{}", h.value_at_quantile(0.5));
        assert!(h.max() <= 999 + 1);
    }
}
