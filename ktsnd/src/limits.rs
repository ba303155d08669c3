// SPDX-License-Identifier: Apache-2.0
//! Every fixed bound of the daemon, and how they relate.

use ktsn_time::Nanos;

/// Most clients of one worker.
pub const CLIENTS_MAX: usize = 4096;
/// Most attachments of one daemon.
pub const ATTACHMENTS_MAX: usize = 1024;
/// Ports of one worker: of each attachment its interface, and the uplinks.
pub const PORTS_MAX: usize = 2 * ATTACHMENTS_MAX;
/// Connections of one process, where the kernel shows the process: libktsn keeps no more than 8 regions, each with one, and
/// those of a program that calls `exec` may end after the new ones begin.
pub const CLIENTS_A_PROCESS: usize = 16;
/// Octets of memory that all clients together have at most, unless `[daemon]` says otherwise: regions, private copies and
/// [`CLIENT_KERNEL_OCTETS`].
pub const CLIENTS_MEMORY_MAX: u64 = 384 << 20;
/// The same of one attachment, unless it says otherwise: some eight clients with all their slots, and sixty-four in all.
pub const MEMORY_MAX: u64 = 64 << 20;
/// For so many clients of an attachment memory is left, whatever the first ones get.
pub const CLIENTS_EXPECTED: u64 = 64;
/// So many attachments have a part of half the daemon's memory set aside: those that the Helm chart makes room for.
pub const MEMORY_SHARES: usize = 64;
/// Octets that a stream takes while attachments are listed: its message with two addresses as text, and the same encoded.
pub const LISTED_STREAM_OCTETS: u64 = 512;
/// Octets that the kernel keeps for a client: sockets, queued messages, page tables.
pub const CLIENT_KERNEL_OCTETS: u64 = 64 << 10;
/// Octets that ktsnd needs besides its clients: itself, the queues and captures of [`MEMORY_SHARES`] attachments.
pub const BASE_OCTETS: u64 = 128 << 20;
/// Frames queued in one port at most.
pub const QUEUE_MAX: usize = 32_768;
/// Frames queued in a pod interface at most: as many as a client has slots by default. It is reserved for each attachment,
/// about 130 octets a frame, and its pages come with the first frames that need them.
pub const INTERFACE_QUEUE_MAX: usize = 1024;
/// Streams a client can register.
pub const STREAMS_MAX: u32 = 1024;
/// Slots of one client taken over in one pass.
pub const INTAKE_BUDGET: usize = 32;
/// Slots of one client taken over before the next attachment's turn, where several are active.
pub const INTAKE_QUANTUM: usize = 16;
/// Empty rings of an attachment that are looked at before the next attachment's turn.
pub const EMPTY_LOOKS: usize = 4;
/// Slots of all clients taken over in one pass: no frame that is due waits for more.
pub const INTAKE_A_PASS: usize = 64;
/// One pass of intake in so many begins at another level than the highest, each in turn.
pub const LOWER_FIRST_IN: usize = 4;
/// What a pass takes over is taken over within this.
pub const INTAKE_PASS: Nanos = Nanos::from_micros(INTAKE_A_PASS as i64 * 2);
/// Links that are followed between two looks at the clock …
pub const WORK_A_LOOK: usize = 16;
/// … where a frame counts as so many.
pub const WORK_OF_A_FRAME: usize = 4;
/// Earlier registrations of one client that are kept while frames of them may lie in its ring.
pub const EARLIER_MAX: usize = 64;
/// Clients that are closed, or begin to be, in one pass.
pub const CLOSED_A_PASS: usize = 8;
/// Places of clients that a removal looks at in one pass.
pub const PLACES_A_PASS: usize = 512;
/// Queued frames of a removed attachment that are dropped in one pass.
pub const REMOVED_A_PASS: usize = 32;
/// Captured frames that are still taken, or counted, when their attachment goes.
pub const CAPTURED_LEFT_MAX: usize = 65_536;
/// Clients that are looked after in one pass.
pub const TENDED_A_PASS: usize = 8;
/// So many promises that reach beyond a sleep are made nearer before it.
pub const PROMISES_MADE_NEARER: usize = 16;
/// To promise one more ring a look before a sleep, and to look at it, takes about this long with cold caches.
pub const PROMISE_COST: Nanos = Nanos::new(150);
/// Taking over one slot takes no longer, unless something interrupts it: twice what it takes with cold caches.
pub const INTAKE_FRAME: Nanos = Nanos::from_micros(2);
/// Of many rings a pass looks at so many, where a frame is due soon.
pub const LOOKS_A_PASS: usize = 16;
/// A ring that was empty for so long is not looked at any more until its client rings.
pub const QUIET_AFTER: Nanos = Nanos::from_millis(500);
/// A worker that does not sleep hears doorbells so often, where somebody's ring is not looked at: a system call of some
/// 300 ns.
pub const LISTEN_AFTER: Nanos = Nanos::from_micros(100);
/// The same where a frame is always due right away.
pub const LISTEN_AFTER_ALL: Nanos = Nanos::from_micros(500);
/// Of those that have rung it hears so many at once.
pub const HEARD_AT_ONCE: usize = 4;
/// While the worker is awake for long, what it promised is made young again when it is older than this.
pub const PROMISE_AGE: Nanos = Nanos::from_millis(1);
/// Frames that one port hands over before the next port's turn.
pub const FRAMES_A_TURN: usize = 32;
/// While more is due than a worker that should rest hands over in a turn, an attachment with so many queued frames gets no more.
pub const QUEUED_BEHIND: usize = FRAMES_A_TURN / 2;
/// Frames that one attachment may have queued: a quarter of an uplink's queue.
pub const ATTACHMENT_QUEUED_MAX: usize = QUEUE_MAX / 4;
/// In a queue that others use too it may have queued this part of the free room: with as much in the queue as free, a quarter.
pub const SHARE_OF_FREE: usize = 3;
/// Captures whose counters are read in one look.
pub const CAPTURED_TENDED: usize = 16;
/// Commands applied in one pass.
pub const COMMANDS_A_PASS: usize = 16;
/// So close before a transmit time no command is applied: most take less than this …
pub const COMMANDS_STOP: Nanos = Nanos::from_micros(50);
/// … but where a frame is always due so soon, no longer than this.
pub const COMMANDS_PUT_OFF_MAX: Nanos = Nanos::from_micros(500);
/// Commands that may wait for a worker.
pub const COMMANDS_QUEUED: usize = 4096;
/// What a worker handed back and other threads have not taken yet. Of what must not be lost there is at most a client for each
/// place, two ports for each attachment, and what the commands brought that may be applied ([`RETURNED_RESERVE`]).
pub const RETURNED_QUEUED: usize = 16_384;
/// No command is applied while less room than this is left for what it brings back.
pub const RETURNED_RESERVE: usize = 3 * CLIENTS_MAX;
/// Completions that may wait for the notifier; beyond, programs find them only when they look.
pub const NOTICES_QUEUED: usize = 32_768;
/// Of these, a client's in one second: it can't fill the queue alone.
pub const NOTICES_A_SECOND: u32 = 20_000;
/// Resolved (stream, destination) pairs kept ready.
pub const CACHE_ENTRIES: usize = 4096;
/// Of these, how many one hash may have.
pub const CACHE_WAYS: usize = 4;

/// The furthest ahead that an attachment may allow a TxTime.
pub const HORIZON_MAX: Nanos = Nanos::from_seconds(3600);

/// A worker with clients looks at its rings at least this often.
pub const SLEEP_MAX: Nanos = Nanos::from_millis(250);
/// A worker without clients wakes at least this often.
pub const SLEEP_IDLE: Nanos = Nanos::from_seconds(10);
/// Rings with muted doorbells that are looked at in one go …
pub const MUTED_LOOKS: usize = 8;
/// … so often.
pub const SLEEP_MUTED: Nanos = Nanos::from_millis(1);
/// Taking a frame over and making it ready takes about this long.
pub const INTAKE_COST: Nanos = Nanos::from_micros(10);
/// Sleeping is not worth it for less than margin + this.
pub const SLEEP_MIN: Nanos = Nanos::from_micros(12);
/// So close before a transmit time no further client's frames are taken over in a pass …
pub const INTAKE_STOPS: Nanos = Nanos::from_micros(20);
/// … but one frame, where none was taken over for so long.
pub const INTAKE_AFTER: Nanos = Nanos::from_micros(20);
/// The same where what is due so soon has no transmit time.
pub const INTAKE_AFTER_UNTIMED: Nanos = Nanos::from_micros(5);
/// From here on before a transmit time nothing but the clock is looked at.
pub const LAST_STRETCH: Nanos = Nanos::from_micros(5);
/// The same where no frame was handed over for [`COLD_AFTER`]: code and tables are in no cache then, and to build a frame takes longer.
pub const LAST_STRETCH_COLD: Nanos = Nanos::from_micros(40);
/// After so long without a hand-over a frame is built earlier.
pub const COLD_AFTER: Nanos = Nanos::from_millis(3);
/// The way into the kernel is made warm after such a pause where so much time is left.
pub const WARM_UP_COLD: Nanos = Nanos::from_micros(20);
/// After so long without a hand-over a frame is rehearsed …
pub const REHEARSE_AFTER: Nanos = Nanos::from_millis(20);
/// … so long before its time …
pub const REHEARSAL: Nanos = Nanos::from_micros(150);
/// … and not at all where less is left: a rehearsal takes 20 to 50 µs, seldom 150.
pub const REHEARSAL_LEAST: Nanos = Nanos::from_micros(90);
/// So long before a transmit time at least, the way into the kernel is made warm: that takes some 300 ns, or 1 µs with cold caches.
pub const WARM_UP: Nanos = Nanos::from_micros(2);
/// A transmit error above this counts as an overrun.
pub const OVERRUN_THRESHOLD: Nanos = Nanos::from_micros(1);

/// A frame that its port does not take is tried again after this, then after twice as long, …
pub const HELD_PAUSE: Nanos = Nanos::from_micros(10);
/// … but no longer than this …
pub const HELD_PAUSE_MAX: Nanos = Nanos::from_micros(320);
/// … until it has been held for so long.
pub const HELD_MAX: Nanos = Nanos::from_millis(10);

/// A hand-over by a pod's interface may take this long; what it takes longer is charged to the pod …
pub const HAND_OVER_USUAL: Nanos = Nanos::from_micros(20);
/// … this much at most for one hand-over, as the machine may have stalled. …
pub const HAND_OVER_CHARGE_MAX: Nanos = Nanos::from_micros(400);
/// … Within a second a pod may be charged so much. Beyond, its frames leave by an ordinary thread …
pub const HAND_OVER_BUDGET: Nanos = Nanos::from_micros(500);
/// … until they were within the budget there for so long. …
pub const DEFERRED_MIN: Nanos = Nanos::from_seconds(600);
/// … Twice as long each time, where they are beyond it again soon, up to this.
pub const DEFERRED_MAX: Nanos = Nanos::from_seconds(86_400);
/// Transmit buffers of a port whose frames leave by an ordinary thread.
pub const DEFERRED_STAGES: u16 = 64;
/// A port that could not be opened for that is tried again after this.
pub const DEFER_PAUSE: Nanos = Nanos::from_seconds(10);

/// The same news (a missing neighbour, a failed port) is told no more often than this.
pub const NEWS_PAUSE: Nanos = Nanos::from_millis(10);

/// Missing neighbours of one attachment that are told in that time: as many as are kept fresh for it.
pub const NEIGHBOURS_TOLD: usize = 64;
/// A program's mistake is told no more often than this.
pub const HINT_PAUSE: Nanos = Nanos::from_seconds(10);
/// TAI − UTC since 2017. A TxTime that lies this much too far ahead (and up to 10 s of lead) is the usual mistake.
pub const TAI_MINUS_UTC: Nanos = Nanos::from_seconds(37);

/// Doorbell messages read from one client at once; it rings once until its ring is looked at.
pub const DOORBELLS_A_PASS: usize = 2;
/// Doorbells of all clients of one attachment in one second before each that rings on is muted.
pub const DOORBELLS_A_SECOND: u32 = 20_000;

const _: () =
    assert!((CACHE_ENTRIES / CACHE_WAYS).is_power_of_two() && CACHE_ENTRIES.is_multiple_of(CACHE_WAYS));
const _: () = assert!(CACHE_ENTRIES <= 1 << 16);
const _: () = assert!(HAND_OVER_CHARGE_MAX.get() < HAND_OVER_BUDGET.get());
const _: () = assert!(SLEEP_MUTED.get() < SLEEP_MAX.get() && SLEEP_MAX.get() < SLEEP_IDLE.get());
const _: () = assert!(CLIENTS_MAX <= 1 << 16 && QUEUE_MAX >= 4096);
