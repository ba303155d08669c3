// SPDX-License-Identifier: Apache-2.0
//! What an adapter costs by itself: frames spun by hand onto a veth, stamped by the kernel at the peer.
//!
//! In: `--adapter af_xdp|af_packet|both --count N --rounds R --margin-us M --payload P --cpu C --fifo F`.
//! Out: per adapter the wire's lateness after the asked instant T, its jitter (the difference of neighbours), and how long
//! the commit call took. No daemon, no ring, no schedule: whatever the product adds is on top of these figures.
//! Needs root; makes two namespaces and removes them.
//!
//! ```text
//!   sleep            stage      spin on CLOCK_MONOTONIC     commit ── wire stamp
//!  ─────────────┼──────────┼───────────────────────────┼──────┼────────┤
//!            T − margin                                 T      └ lateness
//! ```

#[path = "../tests/support/mod.rs"]
mod support;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ktsn_port::af_packet::AfPacket;
use ktsn_port::af_xdp::AfXdp;
use ktsn_port::{AnyPort, LinkInfo, Options, Port, link_info};
use ktsn_time::{Monotonic, Nanos};
use rustix::mm::{MlockAllFlags, mlockall};
use rustix::thread::{CpuSet, sched_setaffinity};
use rustix::time::{ClockId, Timespec, clock_gettime};
use support::{Bed, Receiver};

type Anyhow<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

const PERIOD: Nanos = Nanos::from_millis(1);
const LISTENER_CPU: usize = 0;
const LISTENER_FIFO: i32 = 40;
/// Where the UDP payload starts: Ethernet 14, IPv4 20, UDP 8.
const PAYLOAD_AT: usize = 42;

struct Arguments {
    adapters: Vec<&'static str>,
    count: usize,
    rounds: usize,
    margin: Nanos,
    payload_octets: usize,
    cpu: usize,
    fifo: i32,
}

fn arguments() -> Anyhow<Arguments> {
    let mut found = Arguments {
        adapters: vec!["af_xdp", "af_packet"],
        count: 2000,
        rounds: 3,
        margin: Nanos::from_micros(60),
        payload_octets: 64,
        cpu: 1,
        fifo: 50,
    };
    let mut words = std::env::args().skip(1);
    while let Some(flag) = words.next() {
        let value = words.next().ok_or_else(|| format!("{flag} needs a value"))?;
        match flag.as_str() {
            "--adapter" => match value.as_str() {
                "af_xdp" => found.adapters = vec!["af_xdp"],
                "af_packet" => found.adapters = vec!["af_packet"],
                "both" => {}
                other => return Err(format!("unknown adapter {other}").into()),
            },
            "--count" => found.count = value.parse()?,
            "--rounds" => found.rounds = value.parse()?,
            "--margin-us" => found.margin = Nanos::from_micros(value.parse()?),
            "--payload" => found.payload_octets = value.parse::<usize>()?.clamp(4, 1472),
            "--cpu" => found.cpu = value.parse()?,
            "--fifo" => found.fifo = value.parse()?,
            other => return Err(format!("unknown flag {other}").into()),
        }
    }
    Ok(found)
}

fn nanos(at: Timespec) -> u64 {
    at.tv_sec as u64 * 1_000_000_000 + at.tv_nsec as u64
}

fn now() -> Monotonic {
    Monotonic::from_nanos(nanos(clock_gettime(ClockId::Monotonic)))
}

fn sleep_until(at: Monotonic) {
    let (seconds, rest) = (at.as_nanos() / 1_000_000_000, at.as_nanos() % 1_000_000_000);
    let request = Timespec { tv_sec: seconds as i64, tv_nsec: rest as i64 };
    while rustix::thread::clock_nanosleep_absolute(rustix::thread::ClockId::Monotonic, &request).is_err() {}
}

/// REALTIME − MONOTONIC in nanoseconds, from the tightest of many bracketed readings.
fn realtime_offset() -> i128 {
    let reading = || {
        let before = i128::from(nanos(clock_gettime(ClockId::Monotonic)));
        let realtime = i128::from(nanos(clock_gettime(ClockId::Realtime)));
        let after = i128::from(nanos(clock_gettime(ClockId::Monotonic)));
        (after - before, realtime - (before + after) / 2)
    };
    (0..1000).map(|_| reading()).min().map_or(0, |(_, offset)| offset)
}

fn pin(cpu: usize, fifo: i32) -> Anyhow<()> {
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set)?;
    support::sys::set_fifo(fifo)?;
    Ok(())
}

/// One UDP datagram in IPv4 in Ethernet; the serial number goes to the payload's start.
fn template(near: &LinkInfo, far: &LinkInfo, payload_octets: usize) -> Vec<u8> {
    let mut frame = Vec::with_capacity(PAYLOAD_AT + payload_octets);
    frame.extend(far.mac);
    frame.extend(near.mac);
    frame.extend([8, 0]);
    frame.extend([0x45, 0]);
    frame.extend(((28 + payload_octets) as u16).to_be_bytes());
    frame.extend([0, 0, 0x40, 0, 64, 17, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2]);
    let sum: u32 = frame[14..34].chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum();
    let checksum = !((sum & 0xffff) + (sum >> 16)) as u16;
    frame[24..26].copy_from_slice(&checksum.to_be_bytes());
    frame.extend([0x13, 0x88, 0x13, 0x89]);
    frame.extend(((8 + payload_octets) as u16).to_be_bytes());
    frame.extend([0, 0]); // no UDP checksum: allowed over IPv4
    frame.resize(PAYLOAD_AT + payload_octets, 0);
    frame
}

/// One frame, as sent.
#[derive(Clone, Copy)]
struct Sent {
    asked_at: Monotonic,
    handed_at: Monotonic,
    returned_at: Monotonic,
}

fn spin(port: &mut AnyPort, template: &[u8], arguments: &Arguments) -> Anyhow<Vec<Sent>> {
    pin(arguments.cpu, arguments.fifo)?;
    let start = now().saturating_add(Nanos::from_millis(20));
    let none = Sent { asked_at: start, handed_at: start, returned_at: start };
    let mut sent = vec![none; arguments.count];
    for (serial, slot) in sent.iter_mut().enumerate() {
        let asked_at = start.saturating_add(PERIOD.saturating_mul(serial as i64));
        sleep_until(asked_at.saturating_sub(arguments.margin));
        let stage = port.stage(&mut |buffer| {
            buffer[..template.len()].copy_from_slice(template);
            buffer[PAYLOAD_AT..PAYLOAD_AT + 4].copy_from_slice(&(serial as u32).to_be_bytes());
            Some(template.len())
        })?;
        let mut handed_at = now();
        while handed_at < asked_at {
            handed_at = now();
        }
        port.commit(stage)?;
        *slot = Sent { asked_at, handed_at, returned_at: now() };
        port.reap();
    }
    Ok(sent)
}

/// The stamps by serial number, until the sender is done and nothing comes any more.
fn listen(receiver: &Receiver, count: usize, done: &AtomicBool) -> Anyhow<Vec<Option<u64>>> {
    pin(LISTENER_CPU, LISTENER_FIFO)?;
    let mut stamps = vec![None; count];
    let mut buffer = [0; 2048];
    loop {
        match receiver.next_stamped(&mut buffer, Duration::from_millis(100)) {
            Some((octets, stamp)) if octets >= PAYLOAD_AT + 4 => {
                let serial = u32::from_be_bytes(buffer[PAYLOAD_AT..PAYLOAD_AT + 4].try_into()?);
                let slot = stamps.get_mut(serial as usize).ok_or("a serial number that was never sent")?;
                if slot.replace(stamp).is_some() {
                    return Err(format!("frame {serial} arrived twice").into());
                }
            }
            Some(_) => {}
            None if done.load(Ordering::Acquire) => return Ok(stamps),
            None => {}
        }
    }
}

/// The `per_mille` quantile of nanoseconds, as microseconds with two decimals.
fn quantile(sorted: &[i64], per_mille: usize) -> String {
    let Some(last) = sorted.len().checked_sub(1) else { return "-".to_owned() };
    let value = sorted[last * per_mille / 1000];
    format!("{}{}.{:02}", if value < 0 { "-" } else { "" }, value.abs() / 1000, value.abs() % 1000 / 10)
}

fn report(adapter: &str, round: usize, sent: &[Sent], stamps: &[Option<u64>], offset: i128) {
    let late_of = |(sent, stamp): (&Sent, &Option<u64>)| {
        Some((i128::from((*stamp)?) - offset - i128::from(sent.asked_at.as_nanos())) as i64)
    };
    let by_serial: Vec<Option<i64>> = sent.iter().zip(stamps).map(late_of).collect();
    // A lost frame has no neighbours: the differences around it are left out.
    let mut jitter: Vec<i64> =
        by_serial.windows(2).filter_map(|pair| Some((pair[1]? - pair[0]?).abs())).collect();
    let mut lateness: Vec<i64> = by_serial.into_iter().flatten().collect();
    let mut commit: Vec<i64> = sent.iter().map(|sent| sent.returned_at.since(sent.handed_at).get()).collect();
    let mut error: Vec<i64> = sent.iter().map(|sent| sent.handed_at.since(sent.asked_at).get()).collect();
    for values in [&mut lateness, &mut jitter, &mut commit, &mut error] {
        values.sort_unstable();
    }
    let early = lateness.iter().filter(|late| **late < 0).count();
    println!(
        "{adapter:<10} {round:>5} {:>6} {early:>5}   {:>6} {:>6} {:>6}   {:>6}   {:>6} {:>6}   {:>5} {:>5}",
        sent.len() - lateness.len(),
        quantile(&lateness, 500),
        quantile(&lateness, 900),
        quantile(&lateness, 990),
        quantile(&jitter, 500),
        quantile(&commit, 500),
        quantile(&commit, 900),
        quantile(&error, 500),
        quantile(&error, 900),
    );
}

fn main() -> Anyhow<()> {
    let arguments = arguments()?;
    let bed = Bed::new();
    let far = link_info(&ktsn_port::Device { ifname: support::FAR, netns: Some(&bed.far_path()) })?;
    let near = bed.with_device(link_info)?;
    let template = template(&near, &far, arguments.payload_octets);
    let mut ports = Vec::new();
    for adapter in &arguments.adapters {
        let port: AnyPort = bed.with_device(|device| match *adapter {
            "af_xdp" => AfXdp::open(device, &Options::default()).map(AnyPort::from),
            _ => AfPacket::open(device, &Options::default()).map(AnyPort::from),
        })?;
        ports.push((*adapter, port));
    }
    mlockall(MlockAllFlags::CURRENT | MlockAllFlags::FUTURE)?;
    println!(
        "us after T; {} frames a round, period 1 ms, {} octets of payload",
        arguments.count, arguments.payload_octets
    );
    println!("adapter    round   lost early   wire50 wire90 wire99   jitter   call50 call90   err50 err90");
    for round in 0..arguments.rounds {
        for (adapter, port) in &mut ports {
            let receiver = bed.receiver();
            let done = AtomicBool::new(false);
            let offset = realtime_offset();
            let (sent, stamps) = std::thread::scope(|scope| {
                let listener = scope.spawn(|| listen(&receiver, arguments.count, &done));
                let sender = scope.spawn(|| spin(port, &template, &arguments));
                let sent = sender.join();
                done.store(true, Ordering::Release);
                (sent, listener.join())
            });
            let sent = sent.map_err(|_| "the sender panicked")??;
            let stamps = stamps.map_err(|_| "the listener panicked")??;
            report(adapter, round, &sent, &stamps, offset);
            let drift = realtime_offset() - offset;
            if drift.abs() > 500 {
                println!("           the clocks moved {drift} ns apart during this round");
            }
        }
    }
    Ok(())
}
