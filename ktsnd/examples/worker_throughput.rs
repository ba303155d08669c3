// SPDX-License-Identifier: Apache-2.0
//! How many frames a second one worker takes over, schedules, builds and commits, on one core, into the memory port.
//!
//! Eight clients in this process push 64-octet datagrams that are due at once; only the worker's passes are timed.
//! Prints micro-benchmark entries of `ktsn.results/1` as JSON on standard output, one a line, and a line for people on
//! standard error. `--seconds S` (default 5), `--earliest` for that strategy, `--policed` with a flow meter in front that
//! passes everything.
//!
//! `--burst`: instead, nanoseconds from a transmit time until the last of 32 frames of one client for that instant is committed.
//!
//! `--peers N,M`: instead of frames by second, nanoseconds by frame of one worker for each of these numbers of peers. They
//! take turns, batch by batch; each frame goes to another peer, in a scattered order, to one pod behind each.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use ktsn_model::{IpPrefix, LatePolicy, PriorityMap};
use ktsn_port::memory::Memory;
use ktsn_resolve::limits::PEERS_MAX;
use ktsn_resolve::{
    AttachmentIndex, AttachmentTables, Link, LinkTable, Neighbour, Overlay, Peer, PortIndex, Route, Tables,
    Tunnel, Via, Vxlan, VxlanRouted,
};
use ktsn_ring::{
    ClientMapping, ClockId, Consumer, Destination, DestinationAction, Layout, Producer, SlotFlags, SlotFrame,
    StreamCode, StreamStatus,
};
use ktsn_sched::policing::{FlowMeter, PolicingConfig, StreamFilter, StreamIdentification};
use ktsn_sched::{TimeAware, TimeAwareOptions};
use ktsn_time::{Monotonic, Nanos, Tai};
use ktsn_wire::{MacAddress, Vni};
use ktsnd::config::SpinMargin;
use ktsnd::limits;
use ktsnd::queue::Receiver;
use ktsnd::stats::{AttachmentStats, WorkerStats};
use ktsnd::worker::{
    AttachmentPolicy, Client, ClientKey, Command, Environment, HAND_OVER_AT_START, NewPort, Outbox, Policing,
    Returned, StreamInfo, Usage, Woken, Worker, WorkerOptions, monotonic_now, queues, tai_now,
};

const CLIENTS: u64 = 8;
const SLOTS: u32 = 256;
/// Frames for one instant.
const BURST: u32 = 32;
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
        woken.clear();
    }
    // All of the CPU is measured here, not a worker's share of it: none is used up, so it never has to rest.
    fn cpu_time(&mut self) -> Option<Nanos> {
        Some(Nanos::ZERO)
    }
    fn doze(&mut self, _: Monotonic) {
        unreachable!("a worker that uses no CPU time rests");
    }
    fn read_doorbells(&mut self, _: usize, woken: &mut Woken) {
        woken.clear();
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

fn mac(number: u32) -> MacAddress {
    let [_, b, c, d] = number.to_be_bytes();
    MacAddress([2, 0, 0, b, c, d])
}

/// The tunnel end of peer `number`, of 192.168.0.0/16; 0 is ours.
fn end(number: u32) -> IpAddr {
    Ipv4Addr::from_bits(0xc0a8_0001 + number).into()
}

/// The pod behind peer `number`, which has a /24 of 10.0.0.0/8 for itself.
fn pod(number: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(0x0a00_0005 | number << 8)
}

fn link(
    port: u16,
    address: IpAddr,
    mtu: u32,
    on_link: &str,
    neighbours: Vec<Neighbour>,
) -> anyhow::Result<LinkTable> {
    Ok(LinkTable::new(Link {
        port: PortIndex(port),
        if_index: u32::from(port) + 1,
        mac: mac(0xff_0000 + u32::from(port)),
        mtu,
        addresses: vec![(address, 24)],
        routes: vec![Route { prefix: on_link.parse()?, via: Via::OnLink, source: None }],
        neighbours,
    })?)
}

fn tables(peers: u32) -> anyhow::Result<Tables> {
    let peer = |number| {
        Ok(Peer { prefix: IpPrefix::covering(pod(number).into(), 24)?, vtep: end(number), mac: mac(number) })
    };
    let vxlan = Vxlan {
        tunnel: Tunnel::new(Vni::new(1).context("VNI")?, 8472, end(0)),
        device_mac: mac(0xaa_0000),
        peers: (1..=peers).map(peer).collect::<anyhow::Result<_>>()?,
    };
    let ends = (1..=peers).map(|number| Neighbour { address: end(number), mac: mac(number) }).collect();
    let interface = link(1, pod(0).into(), 1450, "10.0.0.0/24", Vec::new())?;
    let uplink = link(0, end(0), 1500, "192.168.0.0/16", ends)?;
    let overlay = Overlay::VxlanRouted(VxlanRouted::new(vxlan)?);
    let attachment = AttachmentTables::new(interface, uplink.into(), overlay, None)?;
    Ok(Tables::new(1, vec![Some(attachment)])?)
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

/// The default of a port, with no gate program; with `--earliest` the preset that has no gates.
fn selection(arguments: &[String]) -> TimeAware {
    if arguments.iter().any(|a| a == "--earliest") {
        return TimeAware::new(TimeAwareOptions::tx_time(limits::QUEUE_MAX, limits::ATTACHMENTS_MAX));
    }
    TimeAware::new(TimeAwareOptions {
        hand_over: HAND_OVER_AT_START,
        ..TimeAwareOptions::gates(limits::QUEUE_MAX, limits::ATTACHMENTS_MAX)
    })
}

/// The policing of `--policed`: every frame is metered, and passes.
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

/// The value behind `name`.
fn option<'a>(arguments: &'a [String], name: &str) -> anyhow::Result<Option<&'a str>> {
    let Some(at) = arguments.iter().position(|a| a == name) else { return Ok(None) };
    arguments
        .get(at + 1)
        .map(|text| Some(text.as_str()))
        .with_context(|| format!("{name}: a value is missing"))
}

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().collect();
    let seconds: u64 = match option(&arguments, "--seconds")? {
        Some(text) => text
            .parse()
            .ok()
            .filter(|s| (1..=600).contains(s))
            .context("--seconds: expected a whole number of seconds, 1 to 600")?,
        None => 5,
    };
    let peers = option(&arguments, "--peers")?;
    let count = |text: &str| text.parse().ok().filter(|peers| (1..=PEERS_MAX as u32).contains(peers));
    let counts: Vec<u32> =
        peers.unwrap_or("1").split(',').map(count).collect::<Option<_>>().with_context(|| {
            format!("--peers: expected numbers from 1 to {PEERS_MAX} with commas between")
        })?;
    if arguments.iter().any(|a| a == "--burst") {
        return World::new(1, false, &arguments)?.print_bursts(Duration::from_secs(seconds));
    }
    let mut worlds = counts
        .iter()
        .map(|&count| World::new(count, peers.is_some(), &arguments))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(seconds) {
        for world in &mut worlds {
            world.turn()?;
        }
    }
    for world in &mut worlds {
        world.print()?;
    }
    Ok(())
}

/// A worker with its clients.
struct World {
    peers: u32,
    /// Its cost is asked for; else each client has a pod of its own.
    is_cost: bool,
    worker: Worker<Memory, Awake>,
    returned: Receiver<Returned<Memory>>,
    _outbox: Outbox<Memory>,
    apps: Vec<App>,
    stats: Arc<AttachmentStats>,
    worker_stats: Arc<WorkerStats>,
    /// Frames pushed so far.
    pushed: u32,
    /// Nanoseconds by frame, a batch each.
    costs: Vec<f64>,
}

impl World {
    fn new(peers: u32, is_cost: bool, arguments: &[String]) -> anyhow::Result<Self> {
        let (outbox, inbox, returned, _wake) = queues()?;
        let options = WorkerOptions {
            spin_margin: SpinMargin::Fixed(Nanos::ZERO),
            known_margins: None,
            spin_duty_max_permille: 0,
        };
        let worker_stats = Arc::new(WorkerStats::default());
        let mut worker = Worker::new(Awake, inbox, Arc::new(tables(peers)?), options, worker_stats.clone());
        let selection = Box::new(selection(arguments));
        let port = Box::new(Memory::new(256, 1500)?);
        let (priority_map, policing, stats) = (PriorityMap::default(), policing(arguments)?, Arc::default());
        let new = NewPort { port, priority_map, selection, policing, stats, is_pod_interface: false };
        outbox.send(Command::AddPort(PortIndex(0), new))?;
        let stats = Arc::new(AttachmentStats::default());
        let policy = AttachmentPolicy {
            classes: 0xff,
            late: LatePolicy::Send,
            overrun_limit: Nanos::from_seconds(10),
            horizon: Nanos::from_seconds(10),
            streams: StreamIdentification::default(),
            stats: stats.clone(),
            usage: Usage::default(),
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
        let costs = Vec::new();
        Ok(Self {
            peers,
            is_cost,
            worker,
            returned,
            _outbox: outbox,
            apps,
            stats,
            worker_stats,
            pushed: 0,
            costs,
        })
    }

    fn turn(&mut self) -> anyhow::Result<()> {
        let cost = self.batch()?;
        self.costs.push(cost);
        while self.returned.try_recv().is_ok() {}
        Ok(())
    }

    fn print(&mut self) -> anyhow::Result<()> {
        anyhow::ensure!(self.worker_stats.bugs.load(Relaxed) == 0, "the worker counted faults of its own");
        let ((p50, p90, batches), peers) = (self.figures(), self.peers);
        if self.is_cost {
            eprintln!(
                "worker into the memory port, {peers} peers: {:.0} ns a frame over {batches} batches",
                p50
            );
            println!(
                "{{\"name\":\"worker.frame.peers{peers}\",\"unit\":\"ns\",\"p50\":{:.1},\"p90\":{:.1},\"samples\":{batches}}}",
                p50, p90,
            );
            return Ok(());
        }
        eprintln!("worker into the memory port: median {:.2} M frames/s over {batches} batches", 1e3 / p50);
        println!(
            "{{\"name\":\"worker.memory_port.64\",\"unit\":\"frames/s\",\"p50\":{:.0},\"p90\":{:.0},\"samples\":{batches}}}",
            1e9 / p50,
            // The rate that nine of ten batches reach.
            1e9 / p90,
        );
        Ok(())
    }

    /// Median, 90th percentile and number of the costs.
    fn figures(&mut self) -> (f64, f64, usize) {
        self.costs.sort_by(f64::total_cmp);
        let at = |q: f64| self.costs[((self.costs.len() - 1) as f64 * q).round() as usize];
        (at(0.5), at(0.9), self.costs.len())
    }

    /// Sends bursts for `span`.
    fn print_bursts(mut self, span: Duration) -> anyhow::Result<()> {
        let began = Instant::now();
        while began.elapsed() < span {
            let took = self.burst()?;
            self.costs.push(took);
        }
        let (p50, p90, samples) = self.figures();
        eprintln!(
            "worker into the memory port: {BURST} frames for one instant in {:.1} us over {samples} bursts",
            p50 / 1e3
        );
        println!(
            "{{\"name\":\"worker.memory_port.burst{BURST}\",\"unit\":\"ns\",\"p50\":{p50:.0},\"p90\":{p90:.0},\"samples\":{samples}}}"
        );
        Ok(())
    }

    /// A burst: nanoseconds from its transmit time until its last frame was committed.
    fn burst(&mut self) -> anyhow::Result<f64> {
        let before = self.stats.sent.load(Relaxed);
        let tx_time = monotonic_now().as_nanos() + 300_000;
        for _ in 0..BURST {
            anyhow::ensure!(self.push(0, 1, tx_time)?, "the ring is full");
        }
        let until = Instant::now() + Duration::from_secs(5);
        while self.stats.sent.load(Relaxed) - before < u64::from(BURST) {
            anyhow::ensure!(Instant::now() < until, "frames were lost");
            self.worker.pass();
        }
        Ok((monotonic_now().as_nanos() - tx_time) as f64)
    }

    /// A frame from client `number` to the pod behind `peer`; false where its ring is full.
    fn push(&self, number: u32, peer: u32, tx_time: u64) -> anyhow::Result<bool> {
        let Some(app) = self.apps.get(number as usize) else { return Ok(false) };
        let Some(claim) = app.producer.claim() else { return Ok(false) };
        let apart = u32::from(!self.is_cost);
        let frame = SlotFrame {
            stream_index: 0,
            token: 1,
            flags: SlotFlags::NONE,
            clock: ClockId::Monotonic.id(),
            tx_time,
            pushed_at: monotonic_now().as_nanos().min(tx_time),
            address: Ipv4Addr::from_bits(pod(peer).to_bits() + apart * number).to_ipv6_mapped().octets(),
            scope: 0,
            port: 6000,
            priority: (number % 8) as u8,
            traffic_class: 0,
            has_waited: false,
            marks: ktsn_ring::HeaderMarks::NONE,
            identification: 0,
            hop_limit: 0,
            report_id: 0,
            descriptor: 0,
        };
        app.producer.fill(&claim, &frame, [&PAYLOAD[..]].into_iter())?;
        app.producer.publish(claim);
        Ok(true)
    }

    /// Fills all rings (not timed), then times the worker until every frame was committed: nanoseconds by frame.
    fn batch(&mut self) -> anyhow::Result<f64> {
        let before = self.stats.sent.load(Relaxed);
        let now = monotonic_now().as_nanos();
        let mut pushed: u32 = 0;
        for number in 0..CLIENTS as u32 {
            // A step that shares no factor with 10 or 1,000.
            let peer = |pushed: u32| 1 + self.pushed.wrapping_add(pushed).wrapping_mul(7919) % self.peers;
            while self.push(number, peer(pushed), now)? {
                pushed += 1;
            }
        }
        self.pushed = self.pushed.wrapping_add(pushed);
        let began = Instant::now();
        while self.stats.sent.load(Relaxed) - before < u64::from(pushed) {
            anyhow::ensure!(began.elapsed() < Duration::from_secs(5), "frames were lost");
            self.worker.pass();
        }
        Ok(began.elapsed().as_nanos() as f64 / f64::from(pushed))
    }
}

/// The one stream of client `number`.
fn stream(number: u64) -> StreamInfo {
    StreamInfo {
        interface: 0,
        uid: 0,
        token: 1,
        cookie: number,
        attachment: AttachmentIndex(0),
        local: SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 5000),
        peer: None,
        link: None,
        is_deadline: false,
        status: StreamStatus { token: 1, code: StreamCode::Registered, ..StreamStatus::default() },
    }
}
