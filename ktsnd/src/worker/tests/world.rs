// SPDX-License-Identifier: Apache-2.0
//! A worker on virtual clocks with a port in memory and clients in this process.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use ktsn_model::{DropReason, LatePolicy, PriorityMap};
use ktsn_port::memory::Memory;
use ktsn_resolve::{
    AttachmentIndex, AttachmentTables, Link, LinkTable, Neighbour, Overlay, Peer, PortIndex, Route, Tables,
    Tunnel, Via, Vxlan, VxlanRouted,
};
use ktsn_ring::{
    ClientMapping, ClockId, Consumer, Destination, DestinationAction, Layout, Producer, SlotFlags, SlotFrame,
    StreamCode, StreamStatus,
};
use ktsn_sched::policing::StreamIdentification;
use ktsn_sched::{TimeAware, TimeAwareOptions};
use ktsn_time::{Monotonic, Nanos, Tai};
use ktsn_wire::{MacAddress, Vni};
use rustix::io::Errno;

use super::super::*;
use crate::config::SpinMargin;
use crate::limits;
use crate::queue::Receiver;
use crate::stats::{AttachmentStats, PortStats};

/// Reading a clock takes this long, so that spinning makes time pass.
const READ: u64 = 20;
/// TAI − MONOTONIC at the start.
pub(super) const AHEAD: i64 = 1_000_000_000_000;
pub(super) const POD: Ipv4Addr = Ipv4Addr::new(10, 244, 0, 5);
pub(super) const REMOTE: Ipv4Addr = Ipv4Addr::new(10, 244, 1, 7);

/// What happens at an instant (MONOTONIC, nanoseconds), whatever the worker does then. It returns when it happens next.
pub(super) type Happening = Box<dyn FnMut(u64) -> Option<u64> + Send>;

#[derive(Clone, Default)]
pub(in crate::worker) struct Clocks {
    pub monotonic: Arc<AtomicU64>,
    pub tai_ahead: Arc<AtomicI64>,
    /// How late the next timed wake-ups are.
    pub lateness: Arc<AtomicU64>,
    /// From this instant (monotonic) on TAI is `tai_ahead` − `step_back`; 0 = never.
    pub step_at: Arc<AtomicU64>,
    pub step_back: Arc<AtomicI64>,
    /// The first reading of MONOTONIC after this instant comes 2.9 µs late; 0 = none.
    pub gap_at: Arc<AtomicU64>,
    /// The first reading of any clock from this instant on comes `stall` later; 0 = never.
    pub stall_at: Arc<AtomicU64>,
    pub stall: Arc<AtomicU64>,
    /// So much longer every reading takes: all that is done costs more.
    pub slowness: Arc<AtomicU64>,
    /// What was read and sent has taken so long, apart from jumps of the clock.
    pub cpu: Arc<AtomicU64>,
    /// So long a port's system call takes.
    pub hand_over: Arc<AtomicU64>,
    /// So long warming it up takes.
    pub warm_up: Arc<AtomicU64>,
    /// So long a rehearsal takes; 0 = there is none.
    pub rehearsal: Arc<AtomicU64>,
    /// When one began.
    pub rehearsed: Arc<Mutex<Vec<u64>>>,
    /// Places of clients that have rung.
    pub ringing: Arc<Mutex<Vec<u64>>>,
    /// What happens when, besides what a test does between two passes.
    pub(super) happens: Arc<Mutex<Vec<(u64, Happening)>>>,
    /// Nothing can be waited for.
    pub refuses_watch: Arc<AtomicBool>,
}

impl Clocks {
    pub(super) fn at(&self) -> u64 {
        self.monotonic.load(SeqCst)
    }
    pub(super) fn tai_now(&self) -> u64 {
        let (at, step_at) = (self.at(), self.step_at.load(SeqCst));
        let back = if step_at != 0 && at >= step_at { self.step_back.load(SeqCst) } else { 0 };
        at.saturating_add_signed(self.tai_ahead.load(SeqCst) - back)
    }
}

impl Clocks {
    /// MONOTONIC after a reading.
    fn read(&self) -> u64 {
        let takes = READ + self.slowness.load(SeqCst);
        self.cpu.fetch_add(takes, SeqCst);
        let now = self.monotonic.fetch_add(takes, SeqCst) + takes;
        self.happen_until(now, false);
        now
    }

    /// Lets happen what does up to `until`, in the order of its instants. In a sleep the clock goes from one to the next, until a
    /// client rings.
    fn happen_until(&self, until: u64, sleeps: bool) {
        let mut happens = self.happens.lock().unwrap();
        while !sleeps || self.ringing.lock().unwrap().is_empty() {
            let Some(place) = (0..happens.len()).min_by_key(|place| happens[*place].0) else { return };
            let (at, happening) = &mut happens[place];
            if *at > until {
                return;
            }
            if sleeps {
                self.monotonic.fetch_max(*at, SeqCst);
            }
            match happening(*at) {
                Some(next) => *at = next,
                None => drop(happens.swap_remove(place)),
            }
        }
    }

    fn stall(&self) {
        let at = self.stall_at.load(SeqCst);
        if at != 0 && self.at() >= at {
            self.stall_at.store(0, SeqCst);
            self.monotonic.fetch_add(self.stall.load(SeqCst), SeqCst);
        }
    }
}

impl Environment for Clocks {
    fn monotonic(&mut self) -> Monotonic {
        self.stall();
        let gap_at = self.gap_at.load(SeqCst);
        if gap_at != 0 && self.at() >= gap_at {
            self.gap_at.store(0, SeqCst);
            self.monotonic.fetch_add(2_900, SeqCst);
        }
        Monotonic::from_nanos(self.read())
    }
    fn tai(&mut self) -> Tai {
        self.stall();
        self.read();
        Tai::from_nanos(self.tai_now())
    }
    fn sleep(&mut self, until: Monotonic, woken: &mut Woken) {
        self.happen_until(until.as_nanos(), true);
        self.read_doorbells(usize::MAX, woken);
        woken.timed_out = woken.doorbells.is_empty();
        let lateness = self.lateness.load(SeqCst);
        if !woken.timed_out {
            self.monotonic.fetch_add(lateness, SeqCst);
        } else {
            let until = until.as_nanos() + lateness;
            self.monotonic.fetch_max(until, SeqCst);
        }
    }
    fn cpu_time(&mut self) -> Option<Nanos> {
        Some(Nanos::new(self.cpu.load(SeqCst) as i64))
    }
    fn can_rehearse(&self) -> bool {
        self.rehearsal.load(SeqCst) != 0
    }
    fn rehearse(&mut self) {
        self.rehearsed.lock().unwrap().push(self.at());
        self.monotonic.fetch_add(self.rehearsal.load(SeqCst), SeqCst);
    }
    fn doze(&mut self, until: Monotonic) {
        self.monotonic.fetch_max(until.as_nanos(), SeqCst);
    }
    fn read_doorbells(&mut self, most: usize, woken: &mut Woken) {
        woken.clear();
        let mut ringing = self.ringing.lock().unwrap();
        let most = ringing.len().min(most);
        woken.doorbells.extend(ringing.drain(..most));
    }
    fn watch(&mut self, _: BorrowedFd<'_>, _: u64) -> Result<(), Errno> {
        if self.refuses_watch.load(SeqCst) { Err(Errno::NOSPC) } else { Ok(()) }
    }
    fn mute(&mut self, _: BorrowedFd<'_>, _: u64, _: bool) {}
    fn unwatch(&mut self, _: BorrowedFd<'_>) {}
}

/// What reached the wire: when (monotonic, TAI) and the octets.
pub(super) type Wire = Arc<Mutex<Vec<(u64, u64, Vec<u8>)>>>;

pub(super) struct World {
    pub worker: Worker<Memory, Clocks>,
    pub clocks: Clocks,
    pub outbox: Outbox<Memory>,
    pub returned: Receiver<Returned<Memory>>,
    pub wire: Wire,
    /// When the port was warmed up.
    pub warmed: Arc<Mutex<Vec<u64>>>,
    pub stats: Arc<AttachmentStats>,
    pub port_stats: Arc<PortStats>,
    pub worker_stats: Arc<WorkerStats>,
    next_client: u64,
}

pub(in crate::worker) struct App {
    pub producer: Producer,
    pub key: ClientKey,
    mapping: ClientMapping,
    _doorbell: OwnedFd,
}

pub(super) fn link(
    port: u16,
    mac: u8,
    address: Ipv4Addr,
    mtu: u32,
    routes: Vec<Route>,
    neighbour: Ipv4Addr,
) -> LinkTable {
    LinkTable::new(Link {
        port: PortIndex(port),
        if_index: u32::from(port) + 1,
        mac: MacAddress([2, 0, 0, 0, 0, mac]),
        mtu,
        addresses: vec![(IpAddr::V4(address), 24)],
        routes,
        neighbours: vec![Neighbour { address: IpAddr::V4(neighbour), mac: MacAddress([2, 0, 0, 0, 9, mac]) }],
    })
    .unwrap()
}

pub(super) fn tables(generation: u64, with_neighbour: bool) -> Tables {
    tables_of(generation, with_neighbour, 1)
}

/// Tables for so many attachments.
pub(super) fn tables_of(generation: u64, with_neighbour: bool, count: usize) -> Tables {
    Tables::new(generation, (0..count).map(|_| Some(attachment_tables(with_neighbour))).collect()).unwrap()
}

/// Tables with another address of the pod's interface.
pub(super) fn tables_with_interface_mac(generation: u64, mac: [u8; 6]) -> Tables {
    let interface = link(1, mac[5], POD, 1450, Vec::new(), POD);
    let attachment = AttachmentTables::new(interface, uplink(), overlay(true), None).unwrap();
    Tables::new(generation, vec![Some(attachment)]).unwrap()
}

fn attachment_tables(with_neighbour: bool) -> AttachmentTables {
    let on_link = |text: &str| Route { prefix: text.parse().unwrap(), via: Via::OnLink, source: None };
    let gateway = Ipv4Addr::new(10, 244, 0, 1);
    let default =
        Route { prefix: "0.0.0.0/0".parse().unwrap(), via: Via::Gateway(IpAddr::V4(gateway)), source: None };
    let interface = link(1, 5, POD, 1450, vec![on_link("10.244.0.0/24"), default], gateway);
    AttachmentTables::new(interface, uplink(), overlay(with_neighbour), None).unwrap()
}

pub(super) fn uplink() -> Arc<LinkTable> {
    let on_link = Route { prefix: "192.168.50.0/24".parse().unwrap(), via: Via::OnLink, source: None };
    let (own, neighbour) = (Ipv4Addr::new(192, 168, 50, 1), Ipv4Addr::new(192, 168, 50, 2));
    link(0, 1, own, 1500, vec![on_link], neighbour).into()
}

fn overlay(with_neighbour: bool) -> Overlay {
    let vtep = Ipv4Addr::new(192, 168, 50, if with_neighbour { 2 } else { 3 });
    let vxlan = Vxlan {
        tunnel: Tunnel {
            udp_checksum: false,
            ..Tunnel::new(Vni::new(1).unwrap(), 8472, IpAddr::V4(Ipv4Addr::new(192, 168, 50, 1)))
        },
        device_mac: MacAddress([2, 0, 0, 0, 1, 1]),
        peers: vec![Peer {
            prefix: "10.244.1.0/24".parse().unwrap(),
            vtep: IpAddr::V4(vtep),
            mac: MacAddress([2, 0, 0, 0, 1, 2]),
        }],
    };
    Overlay::VxlanRouted(VxlanRouted::new(vxlan).unwrap())
}

pub(in crate::worker) fn policy(stats: &Arc<AttachmentStats>) -> AttachmentPolicy {
    AttachmentPolicy {
        classes: 0xff,
        late: LatePolicy::ByClock,
        overrun_limit: Nanos::from_millis(1),
        horizon: Nanos::from_seconds(10),
        streams: StreamIdentification::default(),
        stats: stats.clone(),
        usage: Usage::default(),
    }
}

impl World {
    /// The default selection, without gates.
    pub(super) fn new(permille: u32) -> Self {
        Self::with(permille, Self::time_aware(None))
    }

    pub(super) fn time_aware(link_speed: Option<u64>) -> TimeAware {
        Self::time_aware_for(4096, link_speed)
    }

    pub(super) fn time_aware_for(capacity: usize, link_speed: Option<u64>) -> TimeAware {
        TimeAware::new(TimeAwareOptions {
            link_speed,
            hand_over: HAND_OVER_AT_START,
            ..TimeAwareOptions::gates(capacity, limits::ATTACHMENTS_MAX)
        })
    }

    pub(super) fn with(permille: u32, selection: TimeAware) -> Self {
        Self::policed(permille, selection, None)
    }

    /// With policing in front of the port.
    pub(super) fn policed(permille: u32, selection: TimeAware, policing: Option<Policing>) -> Self {
        let clocks = Clocks::default();
        clocks.monotonic.store(1_000_000_000, SeqCst);
        clocks.tai_ahead.store(AHEAD, SeqCst);
        let (outbox, inbox, returned, _wake) = queues().unwrap();
        let worker_stats = Arc::new(WorkerStats::default());
        let options = WorkerOptions {
            spin_margin: SpinMargin::Fixed(Nanos::from_micros(60)),
            known_margins: None,
            spin_duty_max_permille: permille,
        };
        let tables = Arc::new(tables(1, true));
        let worker = Worker::new(clocks.clone(), inbox, tables, options, worker_stats.clone());
        let wire: Wire = Arc::default();
        let (seen, clock) = (wire.clone(), clocks.clone());
        let port = Memory::new(64, 1500).unwrap().with_sink(Box::new(move |frame: &[u8]| {
            seen.lock().unwrap().push((clock.at(), clock.tai_now(), frame.to_vec()));
            let takes = clock.hand_over.load(SeqCst);
            clock.cpu.fetch_add(takes, SeqCst);
            clock.monotonic.fetch_add(takes, SeqCst);
        }));
        let warmed = Arc::<Mutex<Vec<u64>>>::default();
        let (looks, clock) = (warmed.clone(), clocks.clone());
        let port = port.with_look(Box::new(move || {
            looks.lock().unwrap().push(clock.at());
            clock.monotonic.fetch_add(clock.warm_up.load(SeqCst), SeqCst);
        }));
        let stats = Arc::new(AttachmentStats::default());
        let port_stats = Arc::new(PortStats::default());
        let new = NewPort {
            port: Box::new(port),
            priority_map: PriorityMap::default(),
            selection: Box::new(selection),
            policing: policing.map(Box::new),
            stats: port_stats.clone(),
            is_pod_interface: false,
        };
        outbox.send(Command::AddPort(PortIndex(0), new)).unwrap();
        outbox.send(Command::SetAttachment(AttachmentIndex(0), Box::new(policy(&stats)))).unwrap();
        let mut world = Self {
            worker,
            clocks,
            outbox,
            returned,
            wire,
            warmed,
            stats,
            port_stats,
            worker_stats,
            next_client: 1,
        };
        world.worker.apply_commands();
        world
    }

    pub(super) fn client(&mut self, slots: u32) -> App {
        self.client_of(AttachmentIndex(0), slots)
    }

    pub(super) fn client_of(&mut self, attachment: AttachmentIndex, slots: u32) -> App {
        let layout = Layout::new(slots, 2048, crate::limits::STREAMS_MAX, 64).unwrap();
        let (mut consumer, memfd) = Consumer::create(layout).unwrap();
        let (address, prefix_bits) = ("10.244.1.0/24".parse::<ktsn_model::IpPrefix>().unwrap()).mapped();
        let all = Destination {
            address: address.octets(),
            prefix_bits,
            action: DestinationAction::Take,
            payload_max: 1422,
        };
        consumer.set_destinations(&[all]).unwrap();
        let mapping = ClientMapping::open(&memfd).unwrap();
        let producer = *mapping.producer();
        let key = ClientKey(self.next_client);
        self.next_client += 1;
        let (ours, theirs) = App::doorbell();
        let client = Client::new(key, attachment, consumer, ours, layout.slots_count(), layout.payload_max());
        self.outbox.send(Command::AddClient(Box::new(client))).unwrap();
        let status = StreamStatus { token: 7, code: StreamCode::Registered, ..StreamStatus::default() };
        let info = StreamInfo {
            interface: 0,
            uid: 0,
            token: 7,
            cookie: 1,
            attachment,
            local: SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 5000),
            peer: None,
            link: None,
            is_deadline: false,
            status,
        };
        self.outbox.send(Command::Register(key, 0, Box::new(info))).unwrap();
        self.worker.apply_commands();
        App { producer, key, mapping, _doorbell: theirs }
    }

    /// Runs passes until `done` or for `most` passes.
    pub(super) fn run_until(&mut self, most: usize, mut done: impl FnMut(&Self) -> bool) {
        for _ in 0..most {
            if done(self) || !self.worker.pass() {
                return;
            }
        }
    }

    pub(super) fn sent(&self) -> Vec<(u64, u64, Vec<u8>)> {
        self.wire.lock().unwrap().clone()
    }
    pub(super) fn dropped(&self, reason: DropReason) -> u64 {
        self.stats.dropped[usize::from(reason.number())].load(SeqCst)
    }
}

impl App {
    /// Both ends of a doorbell: the worker's and the program's.
    pub(in crate::worker) fn doorbell() -> (OwnedFd, OwnedFd) {
        rustix::net::socketpair(
            rustix::net::AddressFamily::UNIX,
            rustix::net::SocketType::SEQPACKET,
            rustix::net::SocketFlags::CLOEXEC,
            None,
        )
        .unwrap()
    }

    pub(in crate::worker) fn frame(clock: ClockId, tx_time: u64, pushed_at: u64) -> SlotFrame {
        SlotFrame {
            stream_index: 0,
            token: 7,
            flags: SlotFlags::NONE,
            clock: clock.id(),
            tx_time,
            pushed_at,
            address: REMOTE.to_ipv6_mapped().octets(),
            scope: 0,
            port: 6000,
            priority: 6,
            traffic_class: 0,
            has_waited: false,
            marks: ktsn_ring::HeaderMarks::NONE,
            identification: 0,
            hop_limit: 0,
            report_id: 0,
            descriptor: 0,
        }
    }

    pub(super) fn poke(&self, at: usize, value: u64) {
        self.mapping.poke(at, value);
    }

    pub(super) fn push_frame(&self, frame: &SlotFrame, payload: &[u8]) -> bool {
        let Some(claim) = self.producer.claim() else { return false };
        self.producer.fill(&claim, frame, [payload].into_iter()).unwrap();
        self.producer.publish(claim);
        true
    }

    pub(super) fn push(&self, clock: ClockId, tx_time: u64, pushed_at: u64, payload: &[u8]) -> bool {
        self.push_frame(&Self::frame(clock, tx_time, pushed_at), payload)
    }
}
