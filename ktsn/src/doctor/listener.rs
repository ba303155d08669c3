// SPDX-License-Identifier: Apache-2.0
//! How long a program waits for a datagram that is there already, and what would shorten that.
//!
//! In: this machine. Out: findings. Some hundred datagrams over the loopback device: its receive path runs in the sender's
//! system call as a veth's does: the sender's CPU stands for the one that takes the uplink's interrupts.

use std::fs;
use std::io;
use std::net::{Ipv4Addr, UdpSocket};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use super::finding::{Finding, Look};
use super::machine::text;

const WAKE_UP: Look = Look::at("listener_wake_up", "300 datagrams over 127.0.0.1 for each way to wait");
const DATAGRAMS: usize = 300;
/// Longer than a CPU needs to fall asleep.
const PAUSE: Duration = Duration::from_micros(500);
/// After so long without a datagram none comes any more: a busy machine may lose the last ones.
const SILENCE: Duration = Duration::from_secs(2);

/// How the listener waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waits {
    Blocking,
    Spinning,
}

pub(super) fn findings() -> Vec<Finding> {
    let mut findings = vec![wake_up()];
    findings.extend(busy_poll());
    findings.push(receive_steering(steered(Path::new("/sys/class/net")).as_deref()));
    findings
}

fn wake_up() -> Finding {
    let meaning = "half of all datagrams wait no longer between the softirq that delivers them and the program's recvmsg. Shorter: run the \
                   listener on the CPU that takes the uplink's interrupts (/proc/interrupts, /proc/irq/*/smp_affinity_list), \
                   or let it call recvmsg with MSG_DONTWAIT again and again on a CPU of its own (not under SCHED_FIFO all the time: \
                   the kernel stops such a thread for 50 ms each second)";
    match measured() {
        Ok(value) => WAKE_UP.ok(value, meaning),
        Err(error) => {
            let remedy = "run doctor where 127.0.0.1 and two CPUs may be used";
            WAKE_UP.not_known(format!("not measured: {error}"), meaning, remedy)
        }
    }
}

fn measured() -> io::Result<String> {
    let allowed = sched_getaffinity(None)?;
    let mut cpus = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu));
    let sender = cpus.next().ok_or_else(|| io::Error::other("no CPU"))?;
    let micros = |of: Duration| format!("{}.{} us", of.as_micros(), of.as_nanos() / 100 % 10);
    let same = micros(median(sender, sender, Waits::Blocking)?);
    let Some(other) = cpus.next() else { return Ok(format!("blocking: {same} on the only CPU")) };
    let blocking = micros(median(sender, other, Waits::Blocking)?);
    let spinning = micros(median(sender, other, Waits::Spinning)?);
    Ok(format!(
        "blocking: {blocking} on another CPU than the softirq, {same} on the same; spinning: {spinning}"
    ))
}

/// Keeps the calling thread on one CPU.
fn stay_on(cpu: usize) -> io::Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).map_err(Into::into)
}

/// Median of the time from just before a datagram is sent until its listener has it.
fn median(sender: usize, listener: usize, waits: Waits) -> io::Result<Duration> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    let to = socket.local_addr()?;
    socket.set_read_timeout(Some(SILENCE))?;
    socket.set_nonblocking(waits == Waits::Spinning)?;
    // The number of each datagram that arrived, and when.
    let listen = move || -> io::Result<Vec<(usize, Instant)>> {
        stay_on(listener)?;
        let (mut heard, mut last) = (Vec::with_capacity(DATAGRAMS), Instant::now());
        loop {
            let mut number = [0; size_of::<usize>()];
            match socket.recv(&mut number) {
                Ok(_) => {
                    last = Instant::now();
                    let number = usize::from_ne_bytes(number);
                    heard.push((number, last));
                    if number + 1 == DATAGRAMS {
                        return Ok(heard);
                    }
                }
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
                Err(_) if last.elapsed() >= SILENCE => return Ok(heard),
                Err(_) => {}
            }
        }
    };
    let talk = move || -> io::Result<Vec<Instant>> {
        stay_on(sender)?;
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        let mut sent = Vec::with_capacity(DATAGRAMS);
        for number in 0..DATAGRAMS {
            std::thread::sleep(PAUSE);
            sent.push(Instant::now());
            socket.send_to(&number.to_ne_bytes(), to)?;
        }
        Ok(sent)
    };
    let (listening, talking) = (std::thread::spawn(listen), std::thread::spawn(talk));
    let has_ended = |_| io::Error::other("a thread ended");
    let (sent, heard) = (talking.join().map_err(has_ended)??, listening.join().map_err(has_ended)??);
    let wait = |(number, at): &(usize, Instant)| Some(at.saturating_duration_since(*sent.get(*number)?));
    let mut waits: Vec<Duration> = heard.iter().filter_map(wait).collect();
    waits.sort_unstable();
    let arrived = waits.len();
    let median = waits.get(arrived / 2).filter(|_| arrived >= DATAGRAMS / 2).copied();
    median.ok_or_else(|| io::Error::other(format!("{arrived} of {DATAGRAMS} datagrams arrived")))
}

/// Only drivers of cards have it: a veth's receive path has no queue that could be polled.
fn busy_poll() -> Option<Finding> {
    const LOOK: Look = Look::at("busy_poll", "/proc/sys/net/core/busy_poll");
    let value = text("/proc/sys/net/core/busy_poll")?;
    let meaning = "poll and select look into a card's receive queue for so many us before they sleep, where its driver can (SO_BUSY_POLL for \
                   recvmsg); pods behind a veth gain nothing by it";
    Some(LOOK.ok(value, meaning))
}

/// The queues that pass their datagrams to other CPUs (RPS): `device/queue: mask`; `None` where no queue can be looked at.
fn steered(devices: &Path) -> Option<Vec<String>> {
    let entries = |directory: &Path| fs::read_dir(directory).into_iter().flatten().flatten();
    let (mut found, mut queues_count) = (Vec::new(), 0);
    for device in entries(devices) {
        for queue in entries(&device.path().join("queues")) {
            let Some(mask) = text(queue.path().join("rps_cpus")) else { continue };
            queues_count += 1;
            let names =
                [device.file_name(), queue.file_name()].map(|name| name.to_string_lossy().into_owned());
            if mask.contains(|c| !"0,".contains(c)) {
                found.push(format!("{}: {mask}", names.join("/")));
            }
        }
    }
    found.sort_unstable();
    (queues_count > 0).then_some(found)
}

/// What it costs is measured in docs/design/receive-path.md.
fn receive_steering(queues: Option<&[String]>) -> Finding {
    const LOOK: Look = Look::at("receive_steering", "/sys/class/net/*/queues/*/rps_cpus");
    let meaning = "a queue with rps_cpus passes each datagram to another CPU by one more interrupt: on the way of a listener that is awake \
                   (it spins, or expects its arrivals) that costs more than it saves, and one that sleeps gains nothing; only bursts gain";
    let Some(queues) = queues else {
        return LOOK.not_known(
            "no receive queue can be looked at",
            meaning,
            "mount /sys of this network namespace",
        );
    };
    if queues.is_empty() {
        return LOOK.ok("no queue passes datagrams to other CPUs (RPS)", meaning);
    }
    let remedy = "write 0 into rps_cpus of the uplink's and the pods' queues (/sys/class/net/DEVICE/queues/rx-N), and place interrupts by \
                  /proc/irq/N/smp_affinity_list instead";
    LOOK.warn(queues.join("; "), meaning, remedy)
}

#[cfg(test)]
mod tests {
    use super::super::finding::State;
    use super::*;

    #[test]
    fn queues_that_pass_datagrams_on_are_named() {
        let folder = tempfile::tempdir().unwrap();
        for (queue, mask) in
            [("a/queues/rx-0", "0"), ("a/queues/rx-1", "00000000,00000000"), ("b/queues/rx-0", "00,3\n")]
        {
            let queue = folder.path().join(queue);
            fs::create_dir_all(&queue).unwrap();
            fs::write(queue.join("rps_cpus"), mask).unwrap();
        }
        let found = steered(folder.path()).unwrap();
        assert_eq!(found, ["b/rx-0: 00,3"]);
        let state = |queues: Option<&[String]>| receive_steering(queues).state;
        assert_eq!(state(Some(&found)), State::Warn);
        assert_eq!((state(Some(&[])), state(None)), (State::Ok, State::NotKnown));
        assert_eq!(steered(&folder.path().join("nowhere")), None);
    }

    #[test]
    fn what_a_listener_waits_is_measured() {
        let waited = median(0, 0, Waits::Blocking).unwrap();
        assert!(waited > Duration::from_nanos(500) && waited < Duration::from_secs(1), "{waited:?}");
        let finding = wake_up();
        assert_eq!(finding.remedy, None, "{finding:?}");
        assert!(finding.value.contains("blocking: ") && finding.value.contains(" us"), "{finding:?}");
    }
}
