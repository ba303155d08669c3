// SPDX-License-Identifier: Apache-2.0
//! The end of a datapath in a guest: does what the frames of the datapath ask for, with the same code as the ends on the host.
//!
//! In: the name of the guest's network device, frames. Out: an answer for each task on standard output (`task.rs`). It ends with the guest,
//! and refuses to run elsewhere: it takes the device's addresses away.

use super::bed;
use super::carried::places;
use super::endpoint::{Endpoint, Packet};
use super::frame::{self, Kind, PAYLOAD_OCTETS};
use super::path::Direction;
use super::sys;
use super::task::{Answer, Task};
use super::traffic::{self, Order, Receiving, Sending};
use super::windows::{Gates, INTERVAL};
use crate::command::run;
use crate::error::LabError;
use crate::vm;
use ktsn_measure::clock::{StampClock, tai_now};
use ktsn_time::Nanos;
use std::convert::Infallible;
use std::io::Write as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How often a station without a task looks for one.
const LOOK_AGAIN: Duration = Duration::from_millis(2);
/// A task that begins sooner cannot be begun in time.
const AHEAD_MIN: Nanos = Nanos::from_millis(50);
/// The receiver gives up this long after the last frame's time.
const LINGER: Nanos = Nanos::from_millis(1_000);
/// Of the kernel's threads of soft interrupts: above both. A receiver that is behind polls without a pause on the guest's only CPU; below it
/// these threads would get what the kernel keeps for ordinary ones, 50 ms of each second, and no frame would arrive in the rest of it.
const SOFT_INTERRUPTS_FIFO: u8 = 45;
/// What the guest's clock follows, as `ktsn clock follow` says it.
const CLOCK_STATUS: &str = "/run/ktsn-clock/status.json";

/// Serves tasks on the device; returns only with an error.
///
/// # Errors
/// [`LabError::Usage`] outside of a guest; the device, or what the guest's kernel refuses.
pub fn serve(device: &str) -> Result<Infallible, LabError> {
    if !vm::is_guest() {
        return Err(LabError::Usage(
            "`ktsn vm station` runs in a guest of `ktsn bench datapaths`".to_owned(),
        ));
    }
    raise_soft_interrupts(Path::new("/proc"))?;
    // Frames of the guest's own would be strangers, and answers to measured frames a load.
    let _no_ipv6 = std::fs::write(format!("/proc/sys/net/ipv6/conf/{device}/disable_ipv6"), "1");
    run(None, &format!("ip addr flush dev {device}"))?;
    run(None, &format!("ip link set {device} up"))?;
    let path = format!("/sys/class/net/{device}/ifindex");
    let text = std::fs::read_to_string(&path).map_err(LabError::file(&path))?;
    let index = text.trim().parse().map_err(|_| LabError::Contents {
        path: path.into(),
        problem: format!("expected a number, got {text:?}"),
    })?;
    let mut end = Packet::open(index).map(Endpoint::Packet).map_err(LabError::system("packet socket"))?;
    let mut last = 0;
    loop {
        let Some(task) = next_task(&mut end, last)? else {
            std::thread::sleep(LOOK_AGAIN);
            continue;
        };
        last = task.number;
        if task.first.since(tai_now()) < AHEAD_MIN {
            say(&format!("late {}\n", task.number))?;
            continue;
        }
        say(&format!("task {}\n", task.number))?;
        let answer = carry_out(&task, device, &mut end)?;
        say(&format!("{}over {}\n", answer.text(), task.number))?;
    }
}

/// The threads of soft interrupts in a `/proc`.
fn soft_interrupt_threads(processes: &Path) -> Vec<i32> {
    let entries = std::fs::read_dir(processes).into_iter().flatten().flatten();
    let number = |entry: std::fs::DirEntry| {
        let name = std::fs::read_to_string(entry.path().join("comm")).ok()?;
        name.starts_with("ksoftirqd/").then(|| entry.file_name().to_str()?.parse().ok())?
    };
    entries.filter_map(number).collect()
}

fn raise_soft_interrupts(processes: &Path) -> Result<(), LabError> {
    soft_interrupt_threads(processes).into_iter().try_for_each(|thread| {
        sys::make_fifo(thread, SOFT_INTERRUPTS_FIFO).map_err(LabError::system("sched_setscheduler"))
    })
}

fn say(text: &str) -> Result<(), LabError> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(LabError::system("standard output"))
}

/// Takes what has arrived: a trial is answered by another one; the newest task after `last`, if there is one.
fn next_task(end: &mut Endpoint, last: u64) -> Result<Option<Task>, LabError> {
    let (mut task, mut tried) = (None, false);
    let each = &mut |octets: &[u8], _| {
        tried |= frame::read(octets).is_some_and(|(kind, _)| kind == Kind::Trial);
        task = Task::read(octets).filter(|task: &Task| task.number > last).or(task);
    };
    while end.poll(each).map_err(LabError::system("receive"))? > 0 {}
    if tried {
        let trial = frame::build(Direction::Egress, Kind::Trial, PAYLOAD_OCTETS);
        let _may_be_refused = end.send(&trial, false).map_err(LabError::system("send"))?;
    }
    Ok(task)
}

/// Sends or receives as the task says.
fn carry_out(task: &Task, device: &str, end: &mut Endpoint) -> Result<Answer, LabError> {
    let before = bed::drops_of(None, device)?;
    end.drops().map_err(LabError::system("getsockopt"))?;
    let stamps = StampClock::now();
    let gates = Gates::from(task.first)?;
    let Task { direction, load, frames, first, .. } = *task;
    let order = Order { direction, load, frames, gates: &gates, first, stamps: &stamps };
    let over = AtomicBool::new(false);
    let (mut sending, mut receiving) = (Sending::default(), Receiving::default());
    // A thread of its own: the next look for a task is no real-time work.
    let worked = std::thread::scope(|scope| {
        let work = scope.spawn(|| -> Result<(), LabError> {
            // The priorities are below those of the guest's threads of interrupts.
            let [sender, receiver] = places([0, 0]);
            let place = if direction == Direction::Egress { sender } else { receiver };
            place.apply().map_err(|refusal| LabError::Impossible {
                what: refusal.to_string(),
                remedy: "a guest of `ktsn vm`".to_owned(),
            })?;
            match direction {
                Direction::Egress => {
                    // A guest that is late sends all of its frames.
                    let never = AtomicBool::new(false);
                    sending = traffic::send(&order, end, &never).map_err(LabError::system("send"))?;
                }
                Direction::Ingress => {
                    receiving = traffic::receive(&order, end, &over).map_err(LabError::system("receive"))?;
                }
            }
            Ok(())
        });
        let last = order.due(frames).saturating_add(INTERVAL).saturating_add(LINGER);
        while !work.is_finished() && tai_now() < last {
            std::thread::sleep(LOOK_AGAIN);
        }
        over.store(true, Ordering::Release);
        work.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    });
    worked?;
    let mut drops = bed::drops_of(None, device)?;
    for (counter, count) in &mut drops {
        *count = count.saturating_sub(before.get(counter).copied().unwrap_or(0));
    }
    drops.insert("socket".to_owned(), end.drops().map_err(LabError::system("getsockopt"))?);
    drops.retain(|_, count| *count > 0);
    let (clock, clock_bound) = clock();
    Ok(Answer { sending, receiving, drops, stepped: stamps.stepped(&StampClock::now()), clock, clock_bound })
}

/// The state of the guest's clock, in a word, and the bound of its error.
fn clock() -> (String, Nanos) {
    let text = std::fs::read_to_string(CLOCK_STATUS).unwrap_or_default();
    let status: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
    let state = status["state"].as_str().unwrap_or("unknown").to_owned();
    (state, Nanos::new(status["error_bound_ns"].as_i64().unwrap_or(i64::MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::datapaths::host::own_thread;

    #[test]
    fn the_threads_of_soft_interrupts_are_found_by_name_and_made_real_time_ones() {
        let processes = tempfile::tempdir().unwrap();
        for (number, name) in
            [("14", "ksoftirqd/0"), ("15", "ktimers/0"), ("21", "ksoftirqd/1"), ("30", "ktsn")]
        {
            std::fs::create_dir(processes.path().join(number)).unwrap();
            std::fs::write(processes.path().join(number).join("comm"), format!("{name}\n")).unwrap();
        }
        let mut found = soft_interrupt_threads(processes.path());
        found.sort_unstable();
        assert_eq!(found, [14, 21]);
        let made = std::thread::spawn(|| {
            let number = rustix::thread::gettid().as_raw_nonzero().get();
            sys::make_fifo(number, SOFT_INTERRUPTS_FIFO).unwrap();
            std::fs::read_to_string(own_thread(number).join("sched")).unwrap()
        });
        // The kernel's own scale: 99 less the priority.
        let made = made.join().unwrap();
        let value = |name: &str| {
            let line = made.lines().find(|line| line.starts_with(name)).expect("a line");
            line.rsplit(' ').next().unwrap().to_owned()
        };
        assert_eq!(
            (value("policy"), value("prio")),
            ("1".to_owned(), (99 - SOFT_INTERRUPTS_FIFO).to_string())
        );
    }
}
