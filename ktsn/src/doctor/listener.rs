// SPDX-License-Identifier: Apache-2.0
//! How long a program waits for a datagram that is there already, and what would shorten that.
//!
//! In: this machine. Out: findings. Some hundred datagrams over the loopback device: its receive path runs in the sender's
//! system call as a veth's does: the sender's CPU stands for the one that takes the uplink's interrupts.

use std::io;
use std::net::{Ipv4Addr, UdpSocket};
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use super::finding::Finding;
use super::machine::text;

const NAME: &str = "listener_wake_up";
const DATAGRAMS: usize = 300;
/// Longer than a CPU needs to fall asleep.
const PAUSE: Duration = Duration::from_micros(500);

/// How the listener waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waits {
    Blocking,
    Spinning,
}

pub(super) fn findings() -> Vec<Finding> {
    let mut findings = vec![wake_up()];
    findings.extend(busy_poll());
    findings
}

fn wake_up() -> Finding {
    let meaning = "half of all datagrams wait no longer between the softirq that delivers them and the program's recvmsg. Shorter: run the \
                   listener on the CPU that takes the uplink's interrupts (/proc/interrupts, /proc/irq/*/smp_affinity_list, or rps_cpus of its \
                   queue), or let it call recvmsg with MSG_DONTWAIT again and again on a CPU of its own (not under SCHED_FIFO all the time: \
                   the kernel stops such a thread for 50 ms each second)";
    match measured() {
        Ok(value) => Finding::ok(NAME, value, meaning),
        Err(error) => {
            let remedy = "run doctor where 127.0.0.1 and two CPUs may be used";
            Finding::warn(NAME, format!("not measured: {error}"), meaning, remedy)
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
    socket.set_read_timeout(Some(Duration::from_secs(1)))?;
    socket.set_nonblocking(waits == Waits::Spinning)?;
    let listen = move || -> io::Result<Vec<Instant>> {
        stay_on(listener)?;
        let (mut heard, end) = (Vec::with_capacity(DATAGRAMS), Instant::now() + Duration::from_secs(5));
        while heard.len() < DATAGRAMS {
            match socket.recv(&mut [0; 8]) {
                Ok(_) => heard.push(Instant::now()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && Instant::now() < end => {}
                Err(error) => return Err(error),
            }
        }
        Ok(heard)
    };
    let talk = move || -> io::Result<Vec<Instant>> {
        stay_on(sender)?;
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        let mut sent = Vec::with_capacity(DATAGRAMS);
        for _ in 0..DATAGRAMS {
            std::thread::sleep(PAUSE);
            sent.push(Instant::now());
            socket.send_to(&[0; 8], to)?;
        }
        Ok(sent)
    };
    let (listening, talking) = (std::thread::spawn(listen), std::thread::spawn(talk));
    let ended = |result: std::thread::Result<io::Result<Vec<Instant>>>| {
        result.unwrap_or_else(|_| Err(io::Error::other("a thread ended")))
    };
    let (sent, heard) = (ended(talking.join())?, ended(listening.join())?);
    let mut waits: Vec<Duration> =
        sent.iter().zip(&heard).map(|(sent, heard)| heard.saturating_duration_since(*sent)).collect();
    waits.sort_unstable();
    waits.get(waits.len() / 2).copied().ok_or_else(|| io::Error::other("no datagram arrived"))
}

/// Only drivers of cards have it: a veth's receive path has no queue that could be polled.
fn busy_poll() -> Option<Finding> {
    let value = text("/proc/sys/net/core/busy_poll")?;
    let meaning = "poll and select look into a card's receive queue for so many us before they sleep, where its driver can (SO_BUSY_POLL for \
                   recvmsg); pods behind a veth gain nothing by it";
    Some(Finding::ok("busy_poll", value, meaning))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_listener_waits_is_measured() {
        let waited = median(0, 0, Waits::Blocking).unwrap();
        assert!(waited > Duration::from_nanos(500) && waited < Duration::from_secs(1), "{waited:?}");
        let finding = wake_up();
        assert_eq!(finding.remedy, None, "{finding:?}");
        assert!(finding.value.contains("blocking: ") && finding.value.contains(" us"), "{finding:?}");
    }
}
