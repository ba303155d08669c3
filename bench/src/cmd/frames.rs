// SPDX-License-Identifier: Apache-2.0
//! `ktsn-bench frames`: a sender that has a device for itself and keeps the time by its own CPU, for `ktsn bench container` and `overlay`: the
//! rivals `packet-spin` (AF_PACKET without a qdisc) and `dpdk-virtio-user` (DPDK's driver, as its own programs are written).
//!
//! In: a device or a socket, addresses, a plan. Out: the files of `ktsn talk`. The frame of the next time is built before the wait, and
//! the way to the device is warmed up before it: the wait is followed by the hand-over alone. Exit status 0; 1 a frame was not taken; 2
//! wrong usage; 3 not possible here.

use std::collections::BTreeMap;
use std::net::SocketAddrV4;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use ktsn_measure::clock::{self, StampClock};
use ktsn_measure::payload::{self, Probe};
use ktsn_measure::records::{TalkRecord, prefaulted, save_talk};
use ktsn_measure::talker::{START_MIN, Summary};
use ktsn_port::{Device, Options, Port};
use ktsn_time::{Nanos, Tai, TxTime};
use ktsn_wire::template::Ends;
use ktsn_wire::{DsField, HeaderTemplate, MacAddress, Network, TemplateRepr, WireError};

use super::observer::{Failed, Files, Rights, span};

/// From the warm-up to the transmit time. On a slow machine a warm-up takes more than 5 µs, and the frame would be late.
const WARM_UP_AHEAD: Nanos = Nanos::from_micros(10);
const TTL: u8 = 64;

/// Send whole frames, each at its transmit time, which this program keeps itself.
#[derive(Args, Clone, Debug)]
#[command(
    hide = true,
    after_help = "Example:\n  ktsn-bench frames --device uplink --macs 02:00:00:00:00:01 02:00:00:00:00:02 \\\n    \
                  --ends 10.0.0.1:4000 10.0.0.2:7000"
)]
pub(crate) struct FramesArgs {
    /// The device, by AF_PACKET.
    #[arg(long, required_unless_present = "socket", conflicts_with = "socket")]
    device: Option<String>,
    /// A socket to which a virtual switch connects, by DPDK's virtio-user.
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// MAC addresses.
    #[arg(long, num_args = 2, value_names = ["SOURCE", "DESTINATION"], required = true)]
    macs: Vec<MacAddress>,
    /// Ends of the datagrams.
    #[arg(long, num_args = 2, value_names = ["SOURCE:PORT", "DESTINATION:PORT"], required = true)]
    ends: Vec<SocketAddrV4>,
    /// Octets of payload, 16 or more.
    #[arg(long, default_value_t = 64, value_name = "OCTETS")]
    payload: usize,
    /// Distance of two transmit times.
    #[arg(long, value_name = "TIME", default_value = "1ms", value_parser = span)]
    period: Nanos,
    /// Datagrams.
    #[arg(long, default_value_t = 1000)]
    count: u64,
    /// Sequence number of the first one.
    #[arg(long, default_value_t = 0, value_name = "N")]
    first_sequence: u64,
    /// How long before the transmit time to begin to spin.
    #[arg(long, value_name = "TIME", default_value = "60us", value_parser = span)]
    spin_margin: Nanos,
    #[command(flatten)]
    rights: Rights,
    #[command(flatten)]
    files: Files,
}

/// Sends and writes what was sent.
pub(crate) fn run(args: &FramesArgs) -> ExitCode {
    let done = match (&args.device, &args.socket) {
        (Some(device), _) => packet(args, device),
        (_, Some(socket)) => virtio_user(args, socket),
        _ => Err(Failed::Usage("expected --device or --socket".to_owned())),
    };
    done.unwrap_or_else(|failed| failed.report("frames"))
}

fn impossible(error: impl std::fmt::Display) -> Failed {
    Failed::NotPossible(error.to_string())
}

fn packet(args: &FramesArgs, device: &str) -> Result<ExitCode, Failed> {
    let (device, options) = (Device { ifname: device, netns: None }, Options::default());
    talk(args, ktsn_port::af_packet::AfPacket::open(&device, &options).map_err(impossible)?)
}

#[cfg(feature = "dpdk")]
fn virtio_user(args: &FramesArgs, socket: &std::path::Path) -> Result<ExitCode, Failed> {
    use std::time::{Duration, Instant};
    /// Buffers: one would do, but a switch gives them back late.
    const STAGES: u16 = 256;
    /// Longest wait for a switch. OVS tries once a second.
    const LINK_MAX: Duration = Duration::from_secs(8);
    /// OVS reads the ring of a new device up to a second after it has connected.
    const SETTLE: Duration = Duration::from_millis(1500);
    /// The switch takes what lies in the ring before the device goes.
    const TAKEN: Duration = Duration::from_millis(100);
    let devargs =
        format!("net_virtio_user0,path={},server=1,queues=1,mac={}", socket.display(), args.macs[0]);
    let options = Options { stage_count: STAGES, ..Options::default() };
    let port = ktsn_port::dpdk::Dpdk::open(None, &devargs, &options).map_err(impossible)?;
    // The link comes up when the switch has connected; asking for it lets DPDK accept the connection.
    let begun = Instant::now();
    while !port.link_up() {
        if begun.elapsed() > LINK_MAX || clock::stop_requested() {
            return Err(Failed::NotPossible(format!("no switch has connected within {LINK_MAX:?}")));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    std::thread::sleep(SETTLE);
    let done = talk(args, port);
    std::thread::sleep(TAKEN);
    done
}

#[cfg(not(feature = "dpdk"))]
fn virtio_user(_: &FramesArgs, _: &std::path::Path) -> Result<ExitCode, Failed> {
    Err(Failed::NotPossible(format!("{}; remedy: `make bench-overlay`", ktsn_lab::container::NO_DPDK)))
}

/// What is sent and what was.
struct Sender<P> {
    port: P,
    headers: HeaderTemplate,
    payload: Vec<u8>,
    records: Vec<TalkRecord>,
    refused: u64,
}

impl<P: Port> Sender<P> {
    /// Sends one frame at `at`, awake from `margin` before it on.
    fn send(&mut self, probe: Probe, margin: Nanos) -> Result<(), Failed> {
        let at = probe.tx_time;
        probe.write(&mut self.payload).map_err(|error| Failed::Broken(error.to_string()))?;
        let (headers, payload) = (&self.headers, &self.payload);
        let staged = self.port.stage(&mut |buffer| headers.write_frame(payload, buffer).ok());
        let stage = staged.map_err(|error| Failed::Broken(error.to_string()))?;
        clock::sleep_until(TxTime::Tai(before(at, margin)));
        if poll_until(before(at, WARM_UP_AHEAD)) < at {
            self.port.warm_up();
        }
        let called_at = poll_until(at);
        match self.port.commit(stage) {
            Ok(()) => self.records.push(TalkRecord { probe, called_at, returned_at: clock::tai_now() }),
            Err(_) => self.refused += 1,
        }
        self.port.reap();
        Ok(())
    }
}

const fn before(at: Tai, span: Nanos) -> Tai {
    at.saturating_add(Nanos::new(-span.get()))
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

fn talk(args: &FramesArgs, port: impl Port) -> Result<ExitCode, Failed> {
    let headers = headers(args).map_err(|error| Failed::Usage(error.to_string()))?;
    let payload = payload::blank(args.payload).map_err(|error| Failed::Usage(format!("payload: {error}")))?;
    let records = prefaulted(args.count, TalkRecord::BLANK);
    let mut sender = Sender { port, headers, payload, records, refused: 0 };
    args.rights.warn("frames");
    clock::stop_on_signals();
    args.rights.real_time().apply().map_err(impossible)?;
    let stamps = StampClock::now();
    let period = u64::try_from(args.period.get()).unwrap_or(1).max(1);
    let earliest = clock::tai_now().saturating_add(START_MIN).saturating_add(args.spin_margin);
    let first = Tai::from_nanos(earliest.as_nanos().next_multiple_of(period));
    args.files.say_ready();
    let (mut tx_time, mut intended) = (first, 0);
    let (cpu, begun) = (clock::thread_cpu_time(), clock::monotonic_now());
    while intended < args.count && !clock::stop_requested() {
        sender.send(
            Probe { sequence: args.first_sequence.wrapping_add(intended), tx_time },
            args.spin_margin,
        )?;
        intended += 1;
        tx_time = tx_time.saturating_add(args.period);
    }
    let elapsed = clock::monotonic_now().since(begun);
    let used = clock::thread_cpu_time().saturating_sub(cpu);
    let Sender { records, refused, .. } = &sender;
    let named = [("not taken by the device".to_owned(), *refused)];
    let summary = Summary {
        frames_intended: intended,
        frames_sent: records.len() as u64,
        errors: BTreeMap::from_iter(named.into_iter().filter(|(_, count)| *count > 0)),
        unrecorded: 0,
        cpu_ratio: used.get() as f64 / elapsed.get().max(1) as f64,
        first_tx_time: first.as_nanos(),
        clock_stepped: stamps.stepped(&StampClock::now()),
    };
    if let Some(path) = &args.files.records {
        save_talk(path, records)?;
    }
    args.files.finish(&summary, &format!("sent {} of {intended} frames\n", records.len()))?;
    Ok(ExitCode::from(u8::from(*refused > 0 || summary.clock_stepped)))
}

fn headers(FramesArgs { macs, ends, .. }: &FramesArgs) -> Result<HeaderTemplate, WireError> {
    HeaderTemplate::new(&TemplateRepr {
        outer: None,
        ethernet: Ends { source: macs[0], destination: macs[1] },
        vlan: None,
        network: Network::V4 {
            source: *ends[0].ip(),
            destination: *ends[1].ip(),
            ttl: TTL,
            ds: DsField::default(),
            dont_fragment: true,
        },
        udp: Ends { source: ends[0].port(), destination: ends[1].port() },
        udp_checksum: true,
    })
}
