// SPDX-License-Identifier: Apache-2.0
//! What `Health` answers, whatever the node does meanwhile.
//!
//! In: what the node noted of itself last. Out: the reply, with the threads as they are now. The node may wait for the kernel's RTNL lock; the thread that answers clients does not wait for it.

use ktsn_proto::v1;
use ktsn_time::Offset;

use crate::node::watch::{ClockNotes, HealthBoard, HealthNotes};
use crate::supervise::{self, KERNEL_WAIT_SHOWN, RTNL, ThreadView, in_words};
use crate::worker::{monotonic_now, tai_now};

/// The reply, from the node's last notes.
pub(crate) fn reply(board: &HealthBoard) -> v1::HealthReply {
    let HealthNotes { mut warnings, needs_clock, is_stopping, clock } = board.read();
    let (clock_synchronised, tai_offset_seconds) = crate::sys::clock_state();
    if !clock_synchronised && needs_clock {
        warnings.push(
            "the clock is not synchronised: frames leave on time by this node's clock only \
             (run ptp4l + phc2sys or an NTP daemon)"
                .to_owned(),
        );
    }
    let threads = supervise::threads();
    warnings.extend(threads.iter().filter_map(thread_warning));
    v1::HealthReply {
        serving: !is_stopping && !threads.iter().any(|thread| thread.is_stuck),
        clock_synchronised,
        tai_minus_monotonic_ns: Offset::between(tai_now(), monotonic_now()).span().get(),
        tai_offset_seconds,
        warnings,
        threads: threads.into_iter().map(thread_message).collect(),
        clock: Some(clock_message(clock)),
    }
}

fn clock_message(noted: ClockNotes) -> v1::ClockState {
    let ClockNotes { source, view, holding } = noted;
    v1::ClockState {
        source: source.word().to_owned(),
        is_good: view.fault.is_none(),
        for_ns: monotonic_now().since(view.since).get().unsigned_abs(),
        transitions: view.transitions,
        steps: view.steps,
        error_ns: view.error.map(|error| error.get().unsigned_abs()),
        holding,
        reason: view.fault.unwrap_or_default(),
    }
}

fn of(thread: &ThreadView) -> String {
    if thread.device.is_empty() { String::new() } else { format!(" of {}", thread.device) }
}

fn thread_warning(thread: &ThreadView) -> Option<String> {
    let (name, of) = (thread.name, of(thread));
    if thread.is_stuck {
        let silent = in_words(thread.silent);
        return Some(format!("thread {name}{of} is stuck: it has not answered for {silent}"));
    }
    let (waited, what) = thread.kernel.filter(|(waited, _)| *waited >= KERNEL_WAIT_SHOWN)?;
    let waited = in_words(waited);
    Some(format!("thread {name}{of} has waited for the kernel for {waited}, {what}: {RTNL}"))
}

/// Why the node does not answer now: a thread that waits for the kernel, or nothing that is known.
pub(crate) fn why_busy() -> String {
    let waits = supervise::threads().iter().filter(|thread| thread.kernel.is_some()).find_map(thread_warning);
    waits.unwrap_or_else(|| "it is busy with other requests".to_owned())
}

fn thread_message(thread: ThreadView) -> v1::ThreadState {
    v1::ThreadState {
        name: thread.name.to_owned(),
        device: thread.device,
        silent_ns: thread.silent.get().unsigned_abs(),
        is_stuck: thread.is_stuck,
    }
}
