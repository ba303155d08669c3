// SPDX-License-Identifier: Apache-2.0
//! Hands datagrams to the kernel at their transmit times, through the sockets of the programs that sent them.
//!
//! In: a datagram with its socket, from a client. Out: one `sendmsg` at its transmit time, never before, and what became of it, counted.
//! Each namespace has a thread of its own (a lane): a program that holds its socket's lock delays its own namespace only. A lane has no
//! capability but that of locked memory, so the kernel judges control messages as those of any program. The kernel sends what the socket
//! may send: nothing here can do more than the program itself.

mod queue;

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{
    AtomicBool, AtomicI32, AtomicU64, AtomicUsize,
    Ordering::{Relaxed, SeqCst},
};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ktsn_model::DropReason;
use ktsn_resolve::AttachmentIndex;
use ktsn_ring::control::{self, Message};
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};
use rustix::time::{ClockId, DynamicClockId, clock_gettime, clock_gettime_dynamic};
use tracing::warn;

use super::hangs::{CPU_PATIENCE, Hangs, PATIENCE, waits};
use super::sys;
use crate::limits;
use crate::log_limit::LogLimit;
use crate::now::nanos;
use crate::stats::AttachmentStats;
use crate::worker::{ClientKey, Judged};
use queue::Queue;
pub(super) use queue::{Asked, Datagram};

/// A lane looks at the clocks so often: they may step.
const LOOK: Duration = Duration::from_millis(250);
/// SOF_TIMESTAMPING_OPT_ID.
const OPT_ID: u32 = 1 << 7;
const SCM_TS_OPT_ID: i32 = 81;
/// In a lane's word: its thread was left behind, and takes nothing more.
const LEFT: u64 = u64::MAX;

/// Reads a clock of a transmit time, in nanoseconds, by its Linux number. A clock that is not known stands still at 0: nothing is early.
pub(super) fn read_clock(clock: u32) -> u64 {
    match clock {
        0 => nanos(clock_gettime(ClockId::Realtime)),
        1 => nanos(clock_gettime(ClockId::Monotonic)),
        7 => clock_gettime_dynamic(DynamicClockId::Boottime).map_or(0, nanos),
        11 => clock_gettime_dynamic(DynamicClockId::Tai).map_or(0, nanos),
        _ => 0,
    }
}

/// Counts a datagram that the kernel does not send.
pub(super) fn count_dropped(stats: &AttachmentStats, reason: DropReason) {
    stats.kernel_dropped[usize::from(reason.number())].fetch_add(1, Relaxed);
}

/// Sends a datagram: [`send`], or another function in tests.
type SendOne = fn(&Datagram) -> io::Result<()>;

/// What a lane and the registrar share.
#[derive(Debug)]
struct Shared {
    queue: Mutex<Queue>,
    /// Something was added, or the lane is to end.
    changed: Condvar,
    /// The lane ends when its queue is empty.
    is_ending: AtomicBool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        // A panic elsewhere leaves a queue that is still right.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug, Default)]
struct ThreadState {
    /// The kernel's number of the thread.
    tid: AtomicI32,
    /// The number of the datagram that is being sent, 0 = none, or [`LEFT`].
    at: AtomicU64,
    is_over: Arc<AtomicBool>,
}

/// Reports that a thread is over, however it ends.
struct AtEnd(Arc<ThreadState>);

impl Drop for AtEnd {
    fn drop(&mut self) {
        self.0.is_over.store(true, SeqCst);
    }
}

/// The thread of a lane, and the datagram that it was sending when it was last looked at.
struct Thread {
    state: Arc<ThreadState>,
    seen: (u64, Instant),
}

impl Thread {
    fn start(shared: &Arc<Shared>, send: SendOne) -> Option<Self> {
        let state = Arc::new(ThreadState::default());
        let (own, shared) = (state.clone(), shared.clone());
        let run = move || {
            let at_end = AtEnd(own);
            run(&shared, &at_end.0, send);
        };
        std::thread::Builder::new().name("ktsn-later".into()).stack_size(256 << 10).spawn(run).ok()?;
        Some(Self { state, seen: (0, Instant::now()) })
    }

    /// Whether a program blocks it; it takes nothing more then.
    fn is_left(&mut self) -> bool {
        let at = self.state.at.load(SeqCst);
        if at == 0 || at != self.seen.0 {
            self.seen = (at, Instant::now());
            return false;
        }
        let took = self.seen.1.elapsed();
        let hangs = took >= CPU_PATIENCE || (took >= PATIENCE && waits(self.state.tid.load(SeqCst)));
        // A thread that has just gone on is not left behind.
        hangs && self.state.at.compare_exchange(at, LEFT, SeqCst, SeqCst).is_ok()
    }
}

/// Gives up the calling thread's capabilities but CAP_IPC_LOCK, which ktsnd's locked memory needs.
fn give_up_capabilities() -> io::Result<()> {
    let kept = capabilities(None)?.effective & CapabilitySet::IPC_LOCK;
    let sets = CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() };
    Ok(set_capabilities(None, sets)?)
}

/// Sends due datagrams until the lane ends or another thread takes the lane over.
fn run(shared: &Shared, state: &ThreadState, send: SendOne) {
    state.tid.store(rustix::thread::gettid().as_raw_nonzero().get(), SeqCst);
    if let Err(error) = give_up_capabilities() {
        warn!(%error, "a thread that hands datagrams to the kernel cannot give up its capabilities");
        return;
    }
    let (mut number, mut log_limit) = (0, LogLimit::default());
    let mut queue = shared.lock();
    loop {
        if let Some(datagram) = queue.take_due(read_clock) {
            drop(queue);
            number += 1;
            state.at.store(number, SeqCst);
            let sent = send(&datagram);
            let goes_on = state.at.compare_exchange(number, 0, SeqCst, SeqCst).is_ok();
            account(&datagram, sent, &mut log_limit);
            drop(datagram);
            if !goes_on {
                return;
            }
            queue = shared.lock();
            continue;
        }
        let left = queue.next_in(read_clock);
        if left.is_none() && shared.is_ending.load(SeqCst) {
            return;
        }
        let wait =
            |queue, time| shared.changed.wait_timeout(queue, time).unwrap_or_else(PoisonError::into_inner).0;
        queue = match left {
            Some(left) => wait(queue, left.min(LOOK)),
            None => shared.changed.wait(queue).unwrap_or_else(PoisonError::into_inner),
        };
    }
}

/// One `sendmsg`. An error that the socket met before is the kernel's first answer: then the datagram is tried once more.
fn send(datagram: &Datagram) -> io::Result<()> {
    let Ok(Message::Later(later)) = control::parse(&datagram.octets) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let flags = later.header.flags.cast_signed();
    let send = |control: &[u8]| sys::send_once(&datagram.socket, later.name, later.payload, control, flags);
    let Some(asked) = &datagram.asked else { return send(later.control).or_else(|_| send(later.control)) };
    let with_key = control_of(asked, later.control, &datagram.socket, asked.key);
    let sent = send(with_key.octets()).or_else(|_| send(with_key.octets()));
    // Before Linux 6.13 the key is the socket's own next key.
    let knows_no_keys = sent.as_ref().is_err_and(|error| error.raw_os_error() == Some(libc::EINVAL));
    if knows_no_keys && asked.key.is_some() {
        return send(control_of(asked, later.control, &datagram.socket, None).octets());
    }
    sent
}

/// The control messages of a frame: those that it has, and what its socket's options do not say.
fn control_of(asked: &Asked, control: &[u8], socket: &OwnedFd, key: Option<u32>) -> sys::Control {
    let mut control = sys::Control::with(control);
    let (level, class, hops, own_hops) = if asked.is_v4 {
        (libc::IPPROTO_IP, libc::IP_TOS, libc::IP_TTL, libc::IP_TTL)
    } else {
        (libc::IPPROTO_IPV6, libc::IPV6_TCLASS, libc::IPV6_HOPLIMIT, libc::IPV6_UNICAST_HOPS)
    };
    let mut add = |kind, option, value: u8| {
        if sys::int_option(socket, level, option).is_ok_and(|own| own != i32::from(value)) {
            control.push(level, kind, &i32::from(value).to_ne_bytes());
        }
    };
    add(class, class, asked.class);
    if let Some(hop_limit) = asked.hop_limit {
        add(hops, own_hops, hop_limit);
    }
    if let Some(key) = key.filter(|_| sys::timestamping(socket).is_ok_and(|flags| flags & OPT_ID != 0)) {
        control.push(libc::SOL_SOCKET, SCM_TS_OPT_ID, &key.to_ne_bytes());
    }
    control
}

fn account(datagram: &Datagram, sent: io::Result<()>, log_limit: &mut LogLimit) {
    let Err(error) = sent else {
        datagram.stats.kernel_sent.fetch_add(1, Relaxed);
        return;
    };
    let reason = match error.raw_os_error() {
        Some(libc::ENETUNREACH | libc::EHOSTUNREACH) => DropReason::NoRoute,
        Some(libc::EMSGSIZE) => DropReason::TooLong,
        Some(libc::ENETDOWN) => DropReason::LinkDown,
        _ => DropReason::PortError,
    };
    count_dropped(&datagram.stats, reason);
    if log_limit.allows() {
        let (client, reason) = (datagram.client.0, reason.word());
        warn!(client, reason, %error, "the kernel refuses a datagram at its transmit time");
    }
}

struct Lane {
    /// SO_NETNS_COOKIE of the attachment.
    netns_cookie: u64,
    shared: Arc<Shared>,
    thread: Option<Thread>,
}

/// The lanes of all namespaces.
pub(super) struct Later {
    /// By SO_NETNS_COOKIE of the attachment.
    lanes: BTreeMap<u64, Lane>,
    hangs: Hangs,
    log_limit: LogLimit,
    /// Octets of all datagrams that wait.
    all_octets: Arc<AtomicUsize>,
    /// `None`: no thread is started, and nothing is sent.
    send: Option<SendOne>,
    /// When all lanes were looked at last.
    looked_at: Instant,
}

impl std::fmt::Debug for Later {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Later").field("lanes", &self.lanes.len()).finish_non_exhaustive()
    }
}

impl Later {
    /// Lanes that send.
    pub(super) fn new() -> Self {
        let (lanes, hangs, log_limit) = (BTreeMap::new(), Hangs::default(), LogLimit::default());
        Self {
            lanes,
            hangs,
            log_limit,
            all_octets: Arc::default(),
            send: Some(send),
            looked_at: Instant::now(),
        }
    }

    /// Lanes that keep what they get.
    pub(super) fn without_threads() -> Self {
        Self { send: None, ..Self::new() }
    }

    /// Datagrams that wait.
    pub(super) fn len(&self) -> usize {
        self.lanes.values().map(|lane| lane.shared.lock().len()).sum()
    }

    /// True when no datagram waits: the lanes need no look.
    pub(super) fn is_empty(&self) -> bool {
        self.all_octets.load(Relaxed) == 0
    }

    /// Keeps a datagram of a client of this namespace until its transmit time. What does not fit is dropped.
    pub(super) fn give(&mut self, netns_cookie: u64, horizon: u64, datagram: Datagram) {
        if let Some(number) = self.give_unjudged(netns_cookie, horizon, datagram) {
            self.judge(netns_cookie, number, Ok(None));
        }
    }

    /// The same, but the datagram does not leave before [`Self::judge`] was called with the number that this answers.
    pub(super) fn give_unjudged(
        &mut self,
        netns_cookie: u64,
        horizon: u64,
        datagram: Datagram,
    ) -> Option<u64> {
        if datagram.tx_time.saturating_sub(read_clock(datagram.clock)) > horizon {
            count_dropped(&datagram.stats, DropReason::BeyondHorizon);
            return None;
        }
        let all_octets = &self.all_octets;
        let lane = self.lanes.entry(netns_cookie).or_insert_with(|| {
            let queue = Mutex::new(Queue::new(all_octets.clone()));
            let shared = Shared { queue, changed: Condvar::new(), is_ending: AtomicBool::new(false) };
            Lane { netns_cookie, shared: Arc::new(shared), thread: None }
        });
        let added = lane.shared.lock().add_unjudged(datagram);
        match added {
            Ok(number) => {
                lane.tend(&mut self.hangs, &mut self.log_limit, self.send);
                Some(number)
            }
            Err(datagram) => {
                count_dropped(&datagram.stats, DropReason::QueueFull);
                if self.log_limit.allows() {
                    warn!(
                        client = datagram.client.0,
                        "a client has too many datagrams that wait for the kernel: one is dropped"
                    );
                }
                None
            }
        }
    }

    /// A datagram may leave at its time, or at another one, or is dropped.
    pub(super) fn judge(&self, netns_cookie: u64, number: u64, judged: Judged) {
        let Some(lane) = self.lanes.get(&netns_cookie) else { return };
        let dropped = lane.shared.lock().judge(number, judged);
        lane.shared.changed.notify_one();
        if let (Some(datagram), Err(reason)) = (dropped, judged) {
            count_dropped(&datagram.stats, reason);
        }
    }

    /// Leaves blocked threads behind, and gives each lane with datagrams a thread where its namespace may have one. Not more often than
    /// each [`PATIENCE`].
    pub(super) fn look(&mut self) {
        if !self.is_empty() && self.looked_at.elapsed() >= PATIENCE {
            self.looked_at = Instant::now();
            for lane in self.lanes.values_mut() {
                drop_all(lane.shared.lock().take_unjudged(read_clock), DropReason::PortError);
                lane.tend(&mut self.hangs, &mut self.log_limit, self.send);
            }
        }
    }

    /// Drops the datagrams of attachments that are gone: their sockets hold the namespace.
    pub(super) fn keep_served(&mut self, is_served: impl Fn(u64, AttachmentIndex) -> bool) {
        self.lanes.retain(|netns_cookie, lane| {
            let is_kept = |datagram: &Datagram| is_served(*netns_cookie, datagram.attachment);
            let mut queue = lane.shared.lock();
            drop_all(queue.take_unless(is_kept), DropReason::Detached);
            let is_over = queue.is_empty();
            drop(queue);
            if is_over {
                // The next datagram starts the lane again. A blocked thread still counts.
                lane.end();
                if let Some(thread) = lane.thread.take().filter(|thread| thread.state.at.load(SeqCst) != 0) {
                    self.hangs.add(*netns_cookie, thread.state.is_over.clone());
                }
            }
            !is_over
        });
    }

    /// A client is over: what it has sent is sent. Of a socket in another namespace no attachment tells when the namespace goes, so what
    /// would hold that for longer than a moment is dropped.
    pub(super) fn end_client(&mut self, netns_cookie: u64, client: ClientKey) {
        let Some(lane) = self.lanes.get(&netns_cookie) else { return };
        let moment = limits::LATER_FOREIGN;
        let is_kept = |datagram: &Datagram| {
            let left = datagram.tx_time.saturating_sub(read_clock(datagram.clock));
            datagram.client != client || !datagram.is_foreign || left <= moment.get().unsigned_abs()
        };
        drop_all(lane.shared.lock().take_unless(is_kept), DropReason::Detached);
    }

    /// Waits until all datagrams are sent, but for those of blocked threads. The caller gives no more.
    pub(super) fn finish(&mut self, works: &dyn Fn()) {
        self.lanes.values().for_each(Lane::end);
        let is_at_work = |lane: &Lane| lane.thread.as_ref().is_some_and(|t| !t.state.is_over.load(SeqCst));
        while self.lanes.values().any(is_at_work) {
            for lane in self.lanes.values_mut() {
                lane.thread.take_if(Thread::is_left);
            }
            works();
            std::thread::sleep(Duration::from_millis(1));
        }
        for lane in self.lanes.values() {
            drop_all(lane.shared.lock().take_unless(|_| false), DropReason::PortError);
        }
    }
}

impl Lane {
    /// Leaves its thread behind where a program blocks it, and gives it one where it needs one and may have one.
    fn tend(&mut self, hangs: &mut Hangs, log_limit: &mut LogLimit, send: Option<SendOne>) {
        if let Some(left) = self.thread.take_if(Thread::is_left) {
            hangs.add(self.netns_cookie, left.state.is_over.clone());
            if log_limit.allows() {
                warn!(
                    "a program holds the lock of a socket with a datagram that is due: its thread is left behind"
                );
            }
        }
        // It could not give up its capabilities, or its own fault: nothing is sent by such a thread.
        if self.thread.take_if(|thread| thread.state.is_over.load(SeqCst)).is_some() {
            drop_all(self.shared.lock().take_unless(|_| false), DropReason::PortError);
        }
        let needs = self.thread.is_none() && !self.shared.lock().is_empty();
        if let Some(send) = send.filter(|_| needs && !hangs.is_full_of(self.netns_cookie)) {
            self.thread = Thread::start(&self.shared, send);
        }
    }

    /// Lets its thread end when the queue is empty.
    fn end(&self) {
        // Under the lock: a thread that found the queue empty waits by now, or reads the word afterwards.
        let _queue = self.shared.lock();
        self.shared.is_ending.store(true, SeqCst);
        self.shared.changed.notify_one();
    }
}

fn drop_all(datagrams: Vec<Datagram>, reason: DropReason) {
    for datagram in datagrams {
        count_dropped(&datagram.stats, reason);
    }
}

#[cfg(test)]
#[path = "later_tests.rs"]
mod tests;
