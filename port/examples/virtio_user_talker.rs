// SPDX-License-Identifier: Apache-2.0
//! A sender as DPDK's own programs are written: it owns a virtio-user device, polls a clock, and hands each frame to the driver in one
//! burst at its transmit time. `ktsn bench overlay` sets the path `ktsn-ovs-dpdk` against it.
//!
//! In: a socket that a virtual switch connects to, addresses, a plan. Out: the files that `ktsn talk` writes too. The frame of the
//! next time is built before the wait, so that the wait is followed by the burst alone. Exit status 0; 1 a frame was not taken, or a
//! file cannot be written; 2 wrong usage; 3 no switch, no rights.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use ktsn_measure::clock::{self, RealTime, StampClock};
use ktsn_measure::payload::{self, Probe};
use ktsn_measure::records::{TalkRecord, save_talk};
use ktsn_measure::results::save_json;
use ktsn_measure::talker::Summary;
use ktsn_port::dpdk::Dpdk;
use ktsn_port::{Options, Port as _, StageId};
use ktsn_time::{Nanos, Tai, TxTime};
use ktsn_wire::template::Ends;
use ktsn_wire::{DsField, HeaderTemplate, MacAddress, Network, TemplateRepr};

/// The first transmit time is so far ahead.
const START_MIN: Nanos = Nanos::from_millis(20);
/// Buffers: one would do, the switch gives them back late.
const STAGES: u16 = 256;
/// Longest wait for the switch. OVS tries once a second.
const SWITCH_MAX: Duration = Duration::from_secs(8);
/// OVS reads the ring of a new device up to a second after it has connected.
const SETTLE: Duration = Duration::from_millis(1500);
const TTL: u8 = 64;

/// Sends datagrams through DPDK's virtio-user, each at its transmit time.
#[derive(Debug, Parser)]
struct Arguments {
    /// The socket: this program listens, the switch connects.
    #[arg(long)]
    socket: PathBuf,
    /// Source and destination MAC address.
    #[arg(long, num_args = 2, value_names = ["SOURCE", "DESTINATION"], required = true)]
    macs: Vec<MacAddress>,
    /// Source and destination of the datagrams.
    #[arg(long, num_args = 2, value_names = ["SOURCE:PORT", "DESTINATION:PORT"], required = true)]
    ends: Vec<SocketAddrV4>,
    /// Octets of payload, 16 or more.
    #[arg(long, default_value_t = 64)]
    payload: usize,
    /// Distance of two transmit times in nanoseconds.
    #[arg(long, default_value_t = 1_000_000)]
    period_ns: u32,
    /// Datagrams.
    #[arg(long)]
    count: u32,
    /// Sequence number of the first one.
    #[arg(long, default_value_t = 0)]
    first_sequence: u64,
    /// Sleep until so long before the transmit time, in nanoseconds, instead of polling the clock all the time.
    #[arg(long)]
    sleep_until_ns: Option<u32>,
    /// CPU of the sending thread.
    #[arg(long)]
    cpu: Option<usize>,
    /// SCHED_FIFO priority of the sending thread.
    #[arg(long)]
    fifo: Option<u8>,
    /// One row for each frame (CSV).
    #[arg(long)]
    records: PathBuf,
    /// The figures.
    #[arg(long)]
    json: PathBuf,
    /// An open descriptor for the line `ready`.
    #[arg(long)]
    ready_fd: Option<u32>,
}

/// Why it ends early, with the exit status.
struct Failed(u8, String);

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    clock::stop_on_signals();
    match talk(&arguments) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(Failed(status, why)) => {
            eprintln!("virtio_user_talker: {why}");
            ExitCode::from(status)
        }
    }
}

/// Whether each frame was taken.
fn talk(arguments: &Arguments) -> Result<bool, Failed> {
    let usage = |error: &dyn std::fmt::Display| Failed(2, error.to_string());
    let impossible = |error: &dyn std::fmt::Display| Failed(3, error.to_string());
    let headers = headers(arguments).map_err(|error| usage(&error))?;
    let mut payload = payload::blank(arguments.payload).map_err(|error| usage(&error))?;
    let devargs = format!(
        "net_virtio_user0,path={},server=1,queues=1,mac={}",
        arguments.socket.display(),
        arguments.macs[0]
    );
    let options = Options { stage_count: STAGES, ..Options::default() };
    let mut port = Dpdk::open(None, &devargs, &options).map_err(|error| impossible(&error))?;
    wait_for_switch(&port)?;
    let real_time = RealTime {
        cpu: arguments.cpu,
        fifo: arguments.fifo,
        exact_timers: true,
        lock_memory: arguments.fifo.is_some(),
    };
    // Its memory is there before the first frame: a page fault would be measured as a delay.
    let blank = TalkRecord {
        probe: Probe { sequence: u64::MAX, tx_time: Tai::MAX },
        called_at: Tai::MAX,
        returned_at: Tai::MAX,
    };
    let mut records = vec![blank; arguments.count as usize];
    records.clear();
    real_time.apply().map_err(|error| impossible(&error))?;
    let stamps = StampClock::now();
    let period = Nanos::new(i64::from(arguments.period_ns.max(1)));
    let earliest = clock::tai_now().saturating_add(START_MIN).as_nanos();
    let first = Tai::from_nanos(earliest.next_multiple_of(u64::from(arguments.period_ns.max(1))));
    say_ready(arguments.ready_fd)?;
    let (mut at, mut intended, mut refused) = (first, 0, 0);
    let (cpu, begun) = (clock::thread_cpu_time(), clock::monotonic_now());
    while intended < u64::from(arguments.count) && !clock::stop_requested() {
        let probe = Probe { sequence: arguments.first_sequence.wrapping_add(intended), tx_time: at };
        probe.write(&mut payload).map_err(|error| usage(&error))?;
        let stage = build(&mut port, &headers, &payload).map_err(|why| Failed(1, why))?;
        if let Some(margin) = arguments.sleep_until_ns {
            clock::sleep_until(TxTime::Tai(at.saturating_add(Nanos::new(-i64::from(margin)))));
        }
        let called_at = poll_until(at);
        let taken = port.commit(stage).is_ok();
        if taken {
            records.push(TalkRecord { probe, called_at, returned_at: clock::tai_now() });
        } else {
            refused += 1;
        }
        intended += 1;
        at = at.saturating_add(period);
    }
    let elapsed = clock::monotonic_now().since(begun);
    let used = clock::thread_cpu_time().saturating_sub(cpu);
    let summary = Summary {
        frames_intended: intended,
        frames_sent: records.len() as u64,
        errors: BTreeMap::from([("not taken by the driver".to_owned(), refused)]),
        unrecorded: 0,
        cpu_ratio: used.get() as f64 / elapsed.get().max(1) as f64,
        first_tx_time: first.as_nanos(),
        clock_stepped: stamps.stepped(&StampClock::now()),
    };
    // The switch takes what lies in the ring before the device goes.
    std::thread::sleep(Duration::from_millis(100));
    save_talk(&arguments.records, &records).map_err(|error| Failed(1, error.to_string()))?;
    save_json(&summary, &arguments.json).map_err(|error| Failed(1, error.to_string()))?;
    Ok(refused == 0 && !summary.clock_stepped)
}

/// Reads the clock until it says `at` or later; returns that reading. Nothing rests in between: the CPU is this program's alone.
fn poll_until(at: Tai) -> Tai {
    loop {
        let now = clock::tai_now();
        if now >= at {
            return now;
        }
    }
}

fn headers(arguments: &Arguments) -> Result<HeaderTemplate, ktsn_wire::WireError> {
    let (macs, ends) = (&arguments.macs, &arguments.ends);
    let address = |index: usize| -> Ipv4Addr { *ends[index].ip() };
    HeaderTemplate::new(&TemplateRepr {
        outer: None,
        ethernet: Ends { source: macs[0], destination: macs[1] },
        vlan: None,
        network: Network::V4 {
            source: address(0),
            destination: address(1),
            ttl: TTL,
            ds: DsField::default(),
            dont_fragment: true,
        },
        udp: Ends { source: ends[0].port(), destination: ends[1].port() },
        udp_checksum: true,
    })
}

/// The next frame, in a buffer of the driver.
fn build(port: &mut Dpdk, headers: &HeaderTemplate, payload: &[u8]) -> Result<StageId, String> {
    port.stage(&mut |buffer| headers.write_frame(payload, buffer).ok()).map_err(|error| error.to_string())
}

/// The link comes up when the switch has connected; asking for it lets DPDK accept the connection.
fn wait_for_switch(port: &Dpdk) -> Result<(), Failed> {
    let begun = Instant::now();
    while !port.link_up() {
        if begun.elapsed() > SWITCH_MAX || clock::stop_requested() {
            return Err(Failed(3, format!("no switch has connected within {SWITCH_MAX:?}")));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    std::thread::sleep(SETTLE);
    Ok(())
}

fn say_ready(descriptor: Option<u32>) -> Result<(), Failed> {
    let Some(descriptor) = descriptor else { return Ok(()) };
    let file = std::fs::OpenOptions::new().write(true).open(format!("/proc/self/fd/{descriptor}"));
    file.and_then(|mut file| file.write_all(b"ready\n"))
        .map_err(|error| Failed(2, format!("--ready-fd {descriptor}: {error}; expected an open pipe")))
}
