// SPDX-License-Identifier: Apache-2.0
//! How many frames a second one worker takes over, schedules, builds and commits, on one core, into the memory port.
//!
//! Eight clients in this process push 64-octet datagrams that are due at once; only the worker's passes are timed.
//! Prints one micro-benchmark entry of `ktsn.results/1` as JSON on standard output, and a line for people on
//! standard error. `--seconds S` (default 5), `--earliest` for that strategy, `--policed` with a flow meter in front that
//! passes everything.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use ktsn_model::{LatePolicy, PriorityMap};
use ktsn_port::memory::Memory;
use ktsn_resolve::{
    Attachment, AttachmentIndex, AttachmentTables, Link, LinkTable, Neighbour, Overlay, Peer, PortIndex,
    Route, Tables, Tunnel, Via, Vxlan, VxlanRouted,
};
use ktsn_ring::{
    ClientMapping, ClockId, Consumer, Destination, DestinationAction, Frame, Layout, Producer, SlotFlags,
    StreamCode, StreamStatus,
};
use ktsn_sched::policing::{FlowMeter, PolicingConfig, StreamFilter, StreamIdentification};
use ktsn_sched::{ClassOptions, EarliestTxTime, TimeAware, TimeAwareOptions};
use ktsn_time::{Monotonic, Nanos, Tai};
use ktsn_wire::{MacAddress, Vni};
use ktsnd::config::SpinMargin;
use ktsnd::limits;
use ktsnd::stats::{AttachmentStats, WorkerStats};
use ktsnd::worker::{
    AttachmentPolicy, Client, ClientKey, Command, Environment, HAND_OVER_AT_START, NewPort, Policing,
    Selection, StreamInfo, Woken, Worker, WorkerOptions, monotonic_now, queues, tai_now,
};

const CLIENTS: u64 = 8;
const SLOTS: u32 = 256;
const PAYLOAD: [u8; 64] = [0x5a; 64];

/// Real clocks; never sleeps, so that only work is timed.
struct Awake;

impl Environment for Awake {
    fn monotonic(&mut self) -> Monotonic {
        monotonic_now()
    }
    fn tai(&mut self) -> Tai {
        tai_now()
    }
    fn sleep(&mut self, _: Monotonic, woken: &mut Woken) {
        woken.doorbells.clear();
    }
    fn watch(&mut self, _: BorrowedFd<'_>, _: u64) -> Result<(), rustix::io::Errno> {
        Ok(())
    }
    fn mute(&mut self, _: BorrowedFd<'_>, _: u64, _: bool) {}
    fn unwatch(&mut self, _: BorrowedFd<'_>) {}
}

struct App {
    producer: Producer,
    _mapping: ClientMapping,
    _doorbell: OwnedFd,
}

fn link(
    port: u16,
    address: Ipv4Addr,
    mtu: u32,
    on_link: &str,
    neighbour: Ipv4Addr,
) -> anyhow::Result<LinkTable> {
    Ok(LinkTable::new(Link {
        port: PortIndex(port),
        if_index: u32::from(port) + 1,
        mac: MacAddress([2, 0, 0, 0, 0, 1]),
        mtu,
        addresses: vec![(IpAddr::V4(address), 24)],
        routes: vec![Route { prefix: on_link.parse()?, via: Via::OnLink, source: None }],
        neighbours: vec![Neighbour { address: IpAddr::V4(neighbour), mac: MacAddress([2, 0, 0, 0, 0, 2]) }],
    })?)
}

fn tables() -> anyhow::Result<Tables> {
    let peer = Ipv4Addr::new(192, 168, 50, 2);
    let vxlan = Vxlan {
        tunnel: Tunnel::new(Vni::new(1).context("VNI")?, 8472, IpAddr::V4(Ipv4Addr::new(192, 168, 50, 1))),
        device_mac: MacAddress([2, 0, 0, 0, 1, 1]),
        peers: vec![Peer {
            prefix: "10.244.1.0/24".parse()?,
            vtep: IpAddr::V4(peer),
            mac: MacAddress([2, 0, 0, 0, 1, 2]),
        }],
    };
    let gateway = Ipv4Addr::new(10, 244, 0, 1);
    let attachment = Attachment {
        interface: link(1, Ipv4Addr::new(10, 244, 0, 5), 1450, "10.244.0.0/24", gateway)?,
        uplink: link(0, Ipv4Addr::new(192, 168, 50, 1), 1500, "192.168.50.0/24", peer)?,
        overlay: Overlay::VxlanRouted(VxlanRouted::new(vxlan)?),
        destinations: None,
        own: Vec::new(),
        vlan: None,
    };
    Ok(Tables::new(1, vec![Some(AttachmentTables::new(attachment)?)])?)
}

fn client(number: u64) -> anyhow::Result<(Box<Client>, App)> {
    let layout = Layout::new(SLOTS, 2048, limits::STREAMS_MAX, 64)?;
    let (mut consumer, memfd) = Consumer::create(layout)?;
    let all =
        Destination { address: [0; 16], prefix_bits: 0, action: DestinationAction::Take, payload_max: 1422 };
    consumer.set_destinations(&[all])?;
    let mapping = ClientMapping::open(&memfd)?;
    let (ours, theirs) = rustix::net::socketpair(
        rustix::net::AddressFamily::UNIX,
        rustix::net::SocketType::SEQPACKET,
        rustix::net::SocketFlags::CLOEXEC,
        None,
    )?;
    let slots = layout.slots_count();
    let client =
        Client::new(ClientKey(number), AttachmentIndex(0), consumer, ours, slots, layout.payload_max());
    Ok((Box::new(client), App { producer: *mapping.producer(), _mapping: mapping, _doorbell: theirs }))
}

/// What a port has by default: time-aware, without gates; with `--earliest` the strategy that knows no gates at all.
fn selection(arguments: &[String]) -> Selection {
    if arguments.iter().any(|a| a == "--earliest") {
        return Selection::EarliestTxTime(EarliestTxTime::new(limits::QUEUE_MAX));
    }
    Selection::TimeAware(TimeAware::new(TimeAwareOptions {
        capacity: limits::QUEUE_MAX,
        link_speed: None,
        hand_over: HAND_OVER_AT_START,
        classes: [ClassOptions::default(); 8],
    }))
}

/// With `--policed` every frame is metered, and passes.
fn policing(arguments: &[String]) -> anyhow::Result<Option<Box<Policing>>> {
    if !arguments.iter().any(|a| a == "--policed") {
        return Ok(None);
    }
    let config = PolicingConfig {
        stream_filters: vec![StreamFilter { flow_meter: Some(0), ..StreamFilter::default() }],
        flow_meters: vec![FlowMeter {
            committed_information_rate: u64::MAX,
            committed_burst_size: u32::MAX,
            ..FlowMeter::default()
        }],
        ..PolicingConfig::default()
    };
    Ok(Some(Box::new(Policing::new(&config)?)))
}

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().collect();
    let seconds: u64 = match arguments.iter().position(|a| a == "--seconds") {
        Some(at) => arguments
            .get(at + 1)
            .and_then(|s| s.parse().ok())
            .filter(|s| (1..=600).contains(s))
            .ok_or_else(|| anyhow::anyhow!("--seconds: expected a whole number of seconds, 1 to 600"))?,
        None => 5,
    };
    let (outbox, inbox, returned, _wake) = queues()?;
    let options = WorkerOptions { spin_margin: SpinMargin::Fixed(Nanos::ZERO), spin_duty_max_permille: 0 };
    let worker_stats = Arc::new(WorkerStats::default());
    let mut worker = Worker::new(Awake, inbox, Arc::new(tables()?), options, worker_stats.clone());
    let selection = Box::new(selection(&arguments));
    let port = Box::new(Memory::new(256, 1500)?);
    let (priority_map, policing, stats) = (PriorityMap::default(), policing(&arguments)?, Arc::default());
    let new = NewPort { port, priority_map, selection, policing, stats };
    outbox.send(Command::AddPort(PortIndex(0), new))?;
    let stats = Arc::new(AttachmentStats::default());
    let policy = AttachmentPolicy {
        classes: 0xff,
        late: LatePolicy::Send,
        overrun_limit: Nanos::from_seconds(10),
        horizon: Nanos::from_seconds(10),
        streams: StreamIdentification::default(),
        stats: stats.clone(),
        queued: 0,
        neighbour_told_at: Monotonic::ZERO,
        horizon_told_at: Monotonic::ZERO,
    };
    outbox.send(Command::SetAttachment(AttachmentIndex(0), Box::new(policy)))?;
    let mut apps = Vec::new();
    for number in 0..CLIENTS {
        let (client, app) = client(number)?;
        outbox.send(Command::AddClient(client))?;
        outbox.send(Command::Register(ClientKey(number), 0, Box::new(stream(number))))?;
        apps.push(app);
        worker.pass();
    }
    worker.pass();
    let mut rates = Vec::new();
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(seconds) {
        rates.push(batch(&mut worker, &apps, &stats)?);
        while returned.try_recv().is_ok() {}
    }
    rates.sort_by(f64::total_cmp);
    let at = |q: f64| rates[((rates.len() - 1) as f64 * q).round() as usize];
    anyhow::ensure!(worker_stats.bugs.load(Relaxed) == 0, "the worker counted faults of its own");
    eprintln!(
        "worker into the memory port: median {:.2} M frames/s over {} batches",
        at(0.5) / 1e6,
        rates.len()
    );
    println!(
        "{{\"name\":\"worker.memory_port.64\",\"unit\":\"frames/s\",\"p50\":{:.0},\"p90\":{:.0},\"samples\":{}}}",
        at(0.5),
        // The rate that nine of ten batches reach.
        at(0.1),
        rates.len()
    );
    Ok(())
}

/// The one stream of client `number`.
fn stream(number: u64) -> StreamInfo {
    StreamInfo {
        token: 1,
        cookie: number,
        attachment: AttachmentIndex(0),
        local: SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 5000),
        peer: None,
        link: None,
        status: StreamStatus { token: 1, code: StreamCode::Registered, ..StreamStatus::default() },
    }
}

/// Fills all rings (not timed), then times the worker until every frame was committed.
fn batch(worker: &mut Worker<Memory, Awake>, apps: &[App], stats: &AttachmentStats) -> anyhow::Result<f64> {
    let before = stats.sent.load(Relaxed);
    let now = monotonic_now().as_nanos();
    let mut pushed = 0;
    for (number, app) in apps.iter().enumerate() {
        while let Some(claim) = app.producer.claim() {
            let frame = Frame {
                stream_index: 0,
                token: 1,
                flags: SlotFlags::NONE,
                clock: ClockId::Monotonic.id(),
                tx_time: now,
                pushed_at: now,
                address: Ipv4Addr::new(10, 244, 1, 1 + number as u8).to_ipv6_mapped().octets(),
                scope: 0,
                port: 6000,
                priority: (number % 8) as u8,
                traffic_class: 0,
                hop_limit: 0,
                report_id: 0,
                descriptor: 0,
            };
            app.producer.fill(&claim, &frame, [&PAYLOAD[..]].into_iter())?;
            app.producer.publish(claim);
            pushed += 1;
        }
    }
    let began = Instant::now();
    while stats.sent.load(Relaxed) - before < pushed {
        anyhow::ensure!(began.elapsed() < Duration::from_secs(5), "frames were lost");
        worker.pass();
    }
    Ok(pushed as f64 / began.elapsed().as_secs_f64())
}
