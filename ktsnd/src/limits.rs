// SPDX-License-Identifier: Apache-2.0
//! Every fixed bound of the daemon, grouped by what it decides, and how the bounds relate.
//!
//! Spans are [`Nanos`]; sizes say their unit. "Measured" means: on the machine of `docs/design/wake-up.md`.

use ktsn_time::Nanos;

// How many there can be.

/// Most clients of one worker.
pub const CLIENTS_MAX: usize = 4096;
/// Most attachments of one daemon.
pub const ATTACHMENTS_MAX: usize = 1024;
/// Ports of one worker: the interface of each attachment, and the uplinks.
pub const PORTS_MAX: usize = 2 * ATTACHMENTS_MAX;
/// Streams that a client can register.
pub const STREAMS_MAX: u32 = 1024;
/// Connections of one process, where the kernel shows the process. libktsn keeps no more than 8 regions, each with one connection,
/// and those of a program that calls `exec` may end after the new ones begin.
pub const CLIENTS_A_PROCESS: usize = 16;
/// The furthest ahead that an attachment may allow a TxTime. It bounds how long a queue may hold a frame.
pub const HORIZON_MAX: Nanos = Nanos::from_seconds(3600);
/// How late the worker may come to a frame on TAI by default. A stall of the machine (1 to 20 ms on a busy virtual one) then delays
/// frames, each counted as `overrun`, and drops none (`docs/design/strategy.md`).
pub const OVERRUN_LIMIT_DEFAULT: Nanos = Nanos::from_millis(100);

// Memory.

/// Octets of memory that all clients together have at most, unless `[daemon]` says otherwise: regions, private copies and
/// [`CLIENT_KERNEL_OCTETS`].
pub const CLIENTS_MEMORY_MAX: u64 = 384 << 20;
/// Octets of memory that the clients of one attachment have at most, unless the attachment says otherwise: some eight clients with
/// all their slots, and sixty-four in all.
pub const MEMORY_MAX: u64 = 64 << 20;
/// For so many clients of an attachment memory is left, whatever the first ones get.
pub const CLIENTS_EXPECTED: u64 = 64;
/// So many attachments have a part of half the daemon's memory set aside: those that the Helm chart makes room for.
pub const MEMORY_SHARES: usize = 64;
/// Octets that a stream takes while attachments are listed: its message with two addresses as text, and the message encoded.
pub const LISTED_STREAM_OCTETS: u64 = 512;
/// Octets that the kernel keeps for a client: sockets, queued messages, page tables.
pub const CLIENT_KERNEL_OCTETS: u64 = 64 << 10;
/// Octets that ktsnd needs besides its clients: itself, the queues and captures of [`MEMORY_SHARES`] attachments.
pub const BASE_OCTETS: u64 = 128 << 20;

// Expected arrival.

/// Share of one CPU that all programs together may spin for expected arrivals, unless `[daemon]` says otherwise, parts per thousand.
pub const RECEIVE_SPIN_MAX: u32 = 200;
/// A grant ends so long after it was given last: a daemon that lives has renewed it by then.
pub const RECEIVE_LEASE: Nanos = Nanos::from_seconds(5);
/// Between two renewals of the grants.
pub const RECEIVE_RENEWAL: std::time::Duration = std::time::Duration::from_secs(1);

// Datagrams that the kernel is to send at their transmit times.

/// Datagrams that are kept for one client.
pub const LATER_OF_CLIENT_MAX: usize = 4096;
/// Octets that are kept for one client, with [`LATER_DATAGRAM_OCTETS`] for each datagram.
pub const LATER_OF_CLIENT_OCTETS: usize = 4 << 20;
/// Datagrams that are kept for the clients of one attachment: two of them may have all that a client may have.
pub const LATER_OF_ATTACHMENT_MAX: usize = 2 * LATER_OF_CLIENT_MAX;
/// Octets that are kept for the clients of one attachment.
pub const LATER_OF_ATTACHMENT_OCTETS: usize = 2 * LATER_OF_CLIENT_OCTETS;
/// Octets that are kept for all clients together: eight attachments may have all that one may have.
pub const LATER_OCTETS: usize = 8 * LATER_OF_ATTACHMENT_OCTETS;
/// Octets that a datagram takes besides its message.
pub const LATER_DATAGRAM_OCTETS: usize = 256;
/// Sockets of one namespace that are held for their datagrams: each is a descriptor of ktsnd.
pub const LATER_SOCKETS_MAX: usize = 256;
/// Sockets of one namespace that are kept for their streams: each is a descriptor of ktsnd.
pub const KEPT_OF_NAMESPACE_MAX: usize = 256;
/// What a program that has ended left to be sent from a namespace without attachment is sent within this: a socket holds its namespace.
pub const LATER_FOREIGN: Nanos = Nanos::from_millis(900);
/// A datagram that the worker has not judged so long after its transmit time is dropped.
pub const LATER_JUDGED: Nanos = Nanos::from_seconds(1);

// Queues of frames.

/// Frames queued in one port at most.
pub const QUEUE_MAX: usize = 32_768;
/// Frames queued in a pod interface at most: as many as a client has slots by default. The room is reserved for each attachment,
/// about 130 octets a frame, and its pages come with the first frames that need them.
pub const INTERFACE_QUEUE_MAX: usize = 1024;
/// Frames that one attachment may have queued: a quarter of an uplink's queue.
pub const ATTACHMENT_QUEUED_MAX: usize = QUEUE_MAX / 4;
/// In a queue that others use too, an attachment may have queued this part of the free room. With as much in the queue as free, that
/// is a quarter.
pub const SHARE_OF_FREE: usize = 3;
/// Resolved (stream, destination) pairs kept ready.
pub const CACHE_ENTRIES: usize = 4096;
/// Entries of the resolved pairs that one hash may have.
pub const CACHE_WAYS: usize = 4;

// Intake: how much is taken over, and from whom.

/// Frames of one client taken over in one pass, where it is the only active one.
pub const INTAKE_BUDGET: usize = 32;
/// Frames of one client taken over before the next attachment's turn, where several are active.
pub const INTAKE_QUANTUM: usize = 16;
/// Frames of all clients taken over in one pass: no frame that is due waits for more.
pub const INTAKE_A_PASS: usize = 64;
/// One pass of intake in so many begins at another level than the highest, each in turn.
pub const LOWER_FIRST_IN: usize = 4;
/// Empty rings of an attachment that are polled before the next attachment's turn.
pub const EMPTY_LOOKS: usize = 4;
/// Rings of one level that are polled in a pass: many empty ones must not hold up a frame that is due soon.
pub const LOOKS_A_PASS: usize = 16;
/// Links of a list of published slots that are followed between two readings of the clock.
pub const WORK_A_LOOK: usize = 16;
/// So many links a frame counts as, in [`WORK_A_LOOK`]: to take one over takes about four times as long as to follow a link.
pub const WORK_OF_A_FRAME: usize = 4;
/// Registrations of one client that have ended and are kept while frames of them may lie in its ring.
pub const EARLIER_MAX: usize = 64;
/// While more is due than a worker that should rest hands over in a turn, an attachment with so many queued frames gets no more.
pub const QUEUED_BEHIND: usize = FRAMES_A_TURN / 2;

// Intake: when it stops for a frame that is due soon.

/// Taking over one frame takes no longer, unless something interrupts it: twice what it takes with cold caches (measured).
pub const INTAKE_FRAME: Nanos = Nanos::from_micros(2);
/// What a pass takes over is taken over within this: [`INTAKE_A_PASS`] frames.
pub const INTAKE_PASS: Nanos = Nanos::from_micros(INTAKE_A_PASS as i64 * 2);
/// Taking a frame over and making it ready takes about this long, from the end of a sleep on.
pub const INTAKE_COST: Nanos = Nanos::from_micros(10);
/// Intake stops when a frame is due within this: as long as ten frames take.
pub const INTAKE_STOPS: Nanos = Nanos::from_micros(20);
/// Where a frame is always due within [`INTAKE_STOPS`], one frame is still taken over when none was for this span.
pub const INTAKE_AFTER: Nanos = Nanos::from_micros(20);
/// Where the frames that are always due have no transmit time, one frame is taken over when none was for this span: they are late for
/// nothing.
pub const INTAKE_AFTER_UNTIMED: Nanos = Nanos::from_micros(5);

// Attention: when rings are polled and doorbells read.

/// A ring that was empty for so long is quiet: it is not polled until its client rings.
pub const QUIET_AFTER: Nanos = Nanos::from_millis(500);
/// A worker that does not sleep reads doorbells so often, where a client is quiet: a system call of some 300 ns (measured).
pub const LISTEN_AFTER: Nanos = Nanos::from_micros(100);
/// Where a frame is always due at once, a worker that does not sleep reads doorbells so often.
pub const LISTEN_AFTER_ALL: Nanos = Nanos::from_micros(500);
/// Doorbells that a worker which does not sleep reads at once.
pub const DOORBELLS_AT_ONCE: usize = 4;
/// Doorbell messages read from one client at once; it rings once until its ring is polled.
pub const DOORBELLS_A_PASS: usize = 2;
/// Doorbells of all clients of one attachment in one second before each that rings on is muted.
pub const DOORBELLS_A_SECOND: u32 = 20_000;
/// Rings of muted clients that are polled in one go.
pub const MUTED_LOOKS: usize = 8;
/// How often [`MUTED_LOOKS`] rings of muted clients are polled.
pub const SLEEP_MUTED: Nanos = Nanos::from_millis(1);
/// A promise that is older than this is renewed while the worker is awake for long.
pub const PROMISE_AGE: Nanos = Nanos::from_millis(1);
/// So many promises that reach beyond a sleep are made nearer before it.
pub const PROMISES_MADE_NEARER: usize = 16;
/// To promise one more ring a poll before a sleep, and to poll it, takes about this long with cold caches (measured).
pub const PROMISE_COST: Nanos = Nanos::new(150);
/// Clients that housekeeping serves in one pass: their counters, their muted or lost doorbells.
pub const HOUSEKEEPING_A_PASS: usize = 8;
/// Captures whose counters are read in one go.
pub const CAPTURED_TENDED: usize = 16;

// Expectations: frames for which the worker wakes before their programs have sent them.

/// Streams that one worker expects: some 450 octets each.
pub const EXPECTED_MAX: usize = 1024;
/// Streams of one attachment that are expected: sixteen such attachments use all places; the streams of others ring doorbells then.
pub const EXPECTED_A_ATTACHMENT: usize = 64;
/// Streams with longer periods are not expected: a doorbell for each of their frames costs nothing, and a worker with clients wakes
/// so often anyway.
pub const EXPECTED_PERIOD_MAX: Nanos = SLEEP_MAX;
/// To take an expected frame over takes about this long, from the end of a sleep on: twice [`INTAKE_FRAME`]. It is made ready in the
/// spin, as one that is queued. Each microsecond of it is spun for every frame.
pub const EXPECTED_COST: Nanos = Nanos::from_micros(4);
/// Frames that are expected close together for which the worker wakes earlier: as many as one pass takes over.
pub const EXPECTED_TOGETHER_MAX: usize = INTAKE_A_PASS;
/// How often the frames are counted that are expected close together, each time over a longer span.
pub const EXPECTED_COUNTS: usize = 6;
/// Expectations that are judged before one sleep. Where more are to be judged, the worker goes on with the next pass.
pub const EXPECTED_JUDGED: usize = 16;
/// Frames of a stream after which it is given up as one without a period. It is tried again after [`EXPECTED_PAUSE_MAX`] frames.
pub const EXPECTED_LEARNS: u16 = 64;
/// A stream without a frame for so long gives its place back.
pub const EXPECTED_IDLE: Nanos = Nanos::from_seconds(10);
/// Places that housekeeping visits at once: all of them in four seconds.
pub const EXPECTED_VISITS: usize = 64;
/// After so many expected frames in a row that were not there the stream pauses: a stream that ends costs so many wake-ups.
pub const EMPTY_IN_A_ROW: u8 = 3;
/// Frames of a stream's first pause; each further one is twice as long. A program that sends too late for the wake-up costs one
/// wake-up in so many frames in the end.
pub const EXPECTED_PAUSE: u16 = 4;
/// Frames of a stream's longest pause.
pub const EXPECTED_PAUSE_MAX: u16 = 1024;
/// Wake-ups within a second for expected frames of one attachment that were not there; beyond, its frames ring doorbells for the rest
/// of the second. Each costs a wake-up and its margin, some 60 µs at most: 1.2 % of a CPU. [`EXPECTED_A_ATTACHMENT`] streams that end in one second stay below.
pub const EMPTY_WAKE_UPS_A_SECOND: u32 = 200;
/// A client is promised no poll for the sake of an expectation for so long after a frame that is wanted early: one that asks for a
/// report or a timestamp, has a deadline, or has a next hop without MAC address.
pub const EARLY_FOR: Nanos = Nanos::from_seconds(1);

// Sleep.

/// A worker with clients polls its rings at least this often: a doorbell may be lost.
pub const SLEEP_MAX: Nanos = Nanos::from_millis(250);
/// A worker without clients wakes at least this often.
pub const SLEEP_IDLE: Nanos = Nanos::from_seconds(10);
/// Sleeping is not worth it for less than the margin and this: a system call that sleeps takes some 10 µs (measured).
pub const SLEEP_MIN: Nanos = Nanos::from_micros(12);

// Spin: the last moments before a transmit time.

/// From here on before a transmit time only the clock is read: the frame is built, and its port warmed up.
pub const LAST_STRETCH: Nanos = Nanos::from_micros(10);
/// After a pause of [`COLD_AFTER`] the last stretch is so long: code and tables are in no cache then, and to build a frame takes up
/// to 15 µs (measured).
pub const LAST_STRETCH_COLD: Nanos = Nanos::from_micros(40);
/// After so long without a hand-over the caches count as cold.
pub const COLD_AFTER: Nanos = Nanos::from_millis(3);
/// The way into the kernel is warmed up where so much time is left: that takes 0.3 to 2.5 µs (measured).
pub const WARM_UP: Nanos = Nanos::from_micros(6);
/// After a pause of [`COLD_AFTER`] the way into the kernel is warmed up once more where so much time is left.
pub const WARM_UP_COLD: Nanos = Nanos::from_micros(20);
/// After so long without a hand-over a frame is rehearsed.
pub const REHEARSE_AFTER: Nanos = Nanos::from_millis(20);
/// A rehearsal begins so long before the transmit time: it takes 20 to 50 µs, seldom 150 (measured).
pub const REHEARSAL: Nanos = Nanos::from_micros(150);
/// No rehearsal begins where less time than this is left.
pub const REHEARSAL_LEAST: Nanos = Nanos::from_micros(90);
/// A transmit error above this counts as an overrun.
pub const OVERRUN_THRESHOLD: Nanos = Nanos::from_micros(1);

// Hand-over: how much leaves in one turn, and what a pod's interface may cost.

/// Frames that one port hands over before the next port's turn.
pub const FRAMES_A_TURN: usize = 32;
/// What a hand-over by a pod's interface takes longer than this is charged to the pod: ordinary ones stay below it (measured).
pub const HAND_OVER_USUAL: Nanos = Nanos::from_micros(20);
/// One hand-over is charged no more than this, as the machine may have stalled.
pub const HAND_OVER_CHARGE_MAX: Nanos = Nanos::from_micros(400);
/// So much a pod may be charged within a second. Beyond it, its frames leave by an ordinary thread: `docs/design/deferred.md`.
pub const HAND_OVER_BUDGET: Nanos = Nanos::from_micros(500);
/// A pod's frames leave by the ordinary thread until they were within the budget there for so long.
pub const DEFERRED_MIN: Nanos = Nanos::from_seconds(600);
/// That span doubles up to this, each time that the pod is beyond its budget again soon.
pub const DEFERRED_MAX: Nanos = Nanos::from_seconds(86_400);
/// Transmit buffers of a port with frames that leave by an ordinary thread.
pub const DEFERRED_STAGES: u16 = 64;
/// A port that could not be opened for an ordinary thread is opened again after this.
pub const DEFER_PAUSE: Nanos = Nanos::from_seconds(10);

// Retry: a frame that its port did not take.

/// A frame that its port did not take is tried again after this, then after twice as long each time.
pub const RETRY_PAUSE: Nanos = Nanos::from_micros(10);
/// No pause between two tries is longer than this.
pub const RETRY_PAUSE_MAX: Nanos = Nanos::from_micros(320);
/// A frame is tried again for so long, then it is dropped: a device that is stuck for longer loses frames anyway.
pub const RETRY_MAX: Nanos = Nanos::from_millis(10);

// Commands, and what they begin.

/// Commands applied in one pass.
pub const COMMANDS_A_PASS: usize = 16;
/// Commands are deferred when a frame is due within this: most take less (measured).
pub const COMMANDS_STOP: Nanos = Nanos::from_micros(50);
/// Commands are deferred no longer than this, even where a frame is always due within [`COMMANDS_STOP`].
pub const COMMANDS_DEFERRED_MAX: Nanos = Nanos::from_micros(500);
/// Commands that may wait for a worker.
pub const COMMANDS_QUEUED: usize = 4096;
/// What a worker handed back and other threads have not taken yet. Of what must not be lost there is at most a client for each
/// place, two ports for each attachment, and what the commands brought that may be applied ([`RETURNED_RESERVE`]).
pub const RETURNED_QUEUED: usize = 16_384;
/// No command is applied while less room than this is left for what it brings back.
pub const RETURNED_RESERVE: usize = 3 * CLIENTS_MAX;
/// Clients that are closed, or begin to be, in one pass.
pub const CLOSED_A_PASS: usize = 8;
/// Places of clients that a removal visits in one pass.
pub const PLACES_A_PASS: usize = 512;
/// Queued frames of a removed attachment that are dropped in one pass.
pub const REMOVED_A_PASS: usize = 32;
/// Captured frames that are still taken, or counted, when their attachment goes.
pub const CAPTURED_LEFT_MAX: usize = 65_536;

// Notifications of the node and of programs.

/// The node is notified of the same thing (a missing neighbour, a failed port) no more often than this.
pub const NEWS_PAUSE: Nanos = Nanos::from_millis(10);
/// Missing neighbours of one attachment that are requested within [`NEWS_PAUSE`]: as many as are kept fresh for it.
pub const NEIGHBOURS_REQUESTED: usize = 64;
/// Flows of one attachment about whose routes the kernel is asked within [`NEWS_PAUSE`]. A question costs the
/// control thread some 20 µs.
pub const ROUTES_ASKED: u32 = 64;
/// Flows of one attachment that may be asked about at once after a quiet time.
pub const ROUTES_ASKED_MAX: u32 = 1024;
/// A program's mistake is reported no more often than this.
pub const HINT_PAUSE: Nanos = Nanos::from_seconds(10);
/// TAI − UTC since 2017. A TxTime that lies this much too far ahead (and up to 10 s of lead) is the usual mistake.
pub const TAI_MINUS_UTC: Nanos = Nanos::from_seconds(37);
/// Completions that may wait for the notifier; beyond, programs find them only when they look.
pub const NOTICES_QUEUED: usize = 32_768;
/// Frames of one worker that are the kernel's and whose datagrams have not been read yet.
pub const PASSED_QUEUED: usize = 32_768;
/// Such frames of one client: it cannot fill the queue alone.
pub const PASSED_OF_CLIENT_MAX: usize = 1024;
/// Frames that wait for the kernel's answer about their routes, and that are looked at when an answer comes. Others end at their time.
pub const UNANSWERED_NOTED: usize = 1024;
/// Clients and streams of one worker that end, while their sockets may be needed. Those of others are let go at once.
pub const SETTLING_MAX: usize = 1024;
/// How long after its time a frame waits for the kernel's answer about its route where its socket is not at hand.
pub const UNANSWERED_WAIT: Nanos = Nanos::from_millis(2);
/// How often it waits so.
pub const UNANSWERED_WAITS: u8 = 50;
/// Completions of one client in one second that may wait for the notifier: it cannot fill the queue alone.
pub const NOTICES_A_SECOND: u32 = 20_000;

const _: () =
    assert!((CACHE_ENTRIES / CACHE_WAYS).is_power_of_two() && CACHE_ENTRIES.is_multiple_of(CACHE_WAYS));
const _: () = assert!(CACHE_ENTRIES <= 1 << 16);
const _: () = assert!(HAND_OVER_CHARGE_MAX.get() < HAND_OVER_BUDGET.get());
const _: () = assert!(SLEEP_MUTED.get() < SLEEP_MAX.get() && SLEEP_MAX.get() < SLEEP_IDLE.get());
const _: () = assert!(LAST_STRETCH.get() < INTAKE_STOPS.get() && INTAKE_STOPS.get() < COMMANDS_STOP.get());
const _: () = assert!(EXPECTED_MAX < 1 << 15 && EXPECTED_PAUSE_MAX < 1 << 15);
const _: () = assert!(EXPECTED_A_ATTACHMENT * (EMPTY_IN_A_ROW as usize) < EMPTY_WAKE_UPS_A_SECOND as usize);
const _: () = assert!(CLIENTS_MAX <= 1 << 16 && QUEUE_MAX >= 4096);
