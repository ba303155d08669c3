// SPDX-License-Identifier: Apache-2.0
//! A daemon's client side, small enough to be read: what libktsn is tested against.
//!
//! In: a run directory and what the peer is to answer. Out: every frame that a program handed over, every registration, in the order of
//! arrival. It accepts, answers Hello and Register, and empties the rings each millisecond; it schedules and sends nothing.

use std::collections::BTreeMap;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ktsn_eventually::{eventually, try_eventually};
use ktsn_ring::control::{
    self, Hello, HelloReply, HelloStatus, MESSAGE_OCTETS_MAX, Message, Register, ShowPort, TxtimeClaim,
};
use ktsn_ring::receive::Reading;
use ktsn_ring::{
    Consumer, Destination, DestinationAction, Layout, RegionState, SlotFrame, StreamStatus, stream_flags,
};
use ktsn_time::Monotonic;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

mod behaviour;

pub use behaviour::Behaviour;

/// How long the peer sleeps between two looks.
const NAP: Duration = Duration::from_millis(1);
/// A pass ends within this time, however busy the machine is.
const PASS_MAX: Duration = Duration::from_secs(10);

/// A frame that a program handed over.
#[derive(Clone, Debug)]
pub struct Received {
    /// Number of the client, counted from 0 in the order of attachment.
    pub client: usize,
    /// Its metadata.
    pub frame: SlotFrame,
    /// Its payload.
    pub payload: Vec<u8>,
    /// The stream's local address, from the passed socket.
    pub local: Option<SocketAddr>,
    /// The stream's peer, from the passed socket.
    pub peer: Option<SocketAddr>,
}

impl Received {
    /// The payload as text.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.payload).into_owned()
    }
}

/// What has happened so far.
#[derive(Debug, Default)]
pub struct Events {
    /// Frames, in the order of arrival.
    pub frames: Vec<Received>,
    /// Frames that said nothing usable.
    pub slot_errors: usize,
    /// Regions with a broken list.
    pub broken: usize,
    /// Clients so far.
    pub clients: usize,
    /// Connections ended without an answer so far.
    pub cut_off: usize,
    /// Registrations so far.
    pub registrations: usize,
    /// Ports shown in advance so far.
    pub ports_shown: usize,
    /// The flags of SO_TXTIME that were claimed for a socket, by its cookie.
    pub claims: BTreeMap<u64, u8>,
    /// Streams ended by the program.
    pub unregistrations: usize,
    /// Doorbells heard.
    pub doorbells: usize,
    /// The counters of each client, as last seen.
    pub counters: Vec<[u64; 32]>,
    /// Clients that asked for a grant of expected arrival, and how often.
    pub expects: BTreeMap<usize, usize>,
    /// What each client wrote into its receive area, as last seen.
    pub receiving: Vec<Reading>,
}

/// A running peer; dropped, it dies as a killed daemon does.
#[derive(Debug)]
pub struct Peer {
    stop: Arc<AtomicBool>,
    passes: Arc<AtomicU64>,
    events: Arc<Mutex<Events>>,
    behaviour: Arc<Mutex<Behaviour>>,
    thread: Option<JoinHandle<()>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Peer {
    /// Listens at `run_dir/client/ktsn.sock`.
    ///
    /// # Panics
    /// When the socket cannot be made: a test cannot go on then.
    #[must_use]
    pub fn start(run_dir: &Path, behaviour: Behaviour) -> Self {
        let path = run_dir.join("client/ktsn.sock");
        std::fs::create_dir_all(run_dir.join("client")).expect("run directory");
        let _ = std::fs::remove_file(&path);
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let listener = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
            .expect("socket");
        rustix::net::bind(&listener, &SocketAddrUnix::new(&path).expect("path")).expect("bind");
        rustix::net::listen(&listener, 64).expect("listen");
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        std::fs::set_permissions(&path, open).expect("permissions");
        let (stop, events) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Events::default())));
        let (behaviour, passes) = (Arc::new(Mutex::new(behaviour)), Arc::new(AtomicU64::new(0)));
        let thread = {
            let (stop, events, behaviour) = (Arc::clone(&stop), Arc::clone(&events), Arc::clone(&behaviour));
            let passes = Arc::clone(&passes);
            std::thread::spawn(move || {
                let mut daemon = Daemon { listener, events, behaviour, clients: Vec::new() };
                while !stop.load(SeqCst) {
                    daemon.pass();
                    passes.fetch_add(1, SeqCst);
                    std::thread::sleep(NAP);
                }
            })
        };
        Self { stop, passes, events, behaviour, thread: Some(thread) }
    }

    /// What has happened so far.
    pub fn events(&self) -> MutexGuard<'_, Events> {
        lock(&self.events)
    }

    /// Changes the answers from now on.
    pub fn change(&self, change: impl FnOnce(&mut Behaviour)) {
        change(&mut lock(&self.behaviour));
    }

    /// Waits until `done`, at most `limit`; whether it came to that.
    #[must_use]
    pub fn wait(&self, limit: Duration, done: impl Fn(&Events) -> bool) -> bool {
        try_eventually(limit, || done(&self.events())).is_some()
    }

    /// Waits until two more passes end: what was published or changed before this call is taken by then.
    ///
    /// # Panics
    /// When the peer does not look any more.
    pub fn passes_again(&self) {
        let before = self.passes.load(SeqCst);
        eventually("the peer looks", PASS_MAX, || self.passes.load(SeqCst) >= before + 2);
    }

    /// The texts of all frames so far.
    ///
    /// # Panics
    /// When the peer does not look any more.
    #[must_use]
    pub fn texts(&self) -> Vec<String> {
        self.passes_again();
        self.events().frames.iter().map(Received::text).collect()
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.stop.store(true, SeqCst);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A registration's token, the socket's own address, and its peer's.
type Registered = (u32, Option<SocketAddr>, Option<SocketAddr>);

struct Client {
    number: usize,
    control: OwnedFd,
    ring: Option<(Consumer, OwnedFd)>,
    streams: Vec<Registered>,
    /// Earlier registrations, by stream and token: a thread may publish by one while another thread registers again.
    past: BTreeMap<(u32, u32), Registered>,
    /// What is to be answered: when, stream, token, the flags that the socket has of itself.
    pending: Vec<(Instant, u32, u32, u16)>,
    is_over: bool,
    /// It asked for a grant of expected arrival.
    expects: bool,
}

struct Daemon {
    listener: OwnedFd,
    events: Arc<Mutex<Events>>,
    behaviour: Arc<Mutex<Behaviour>>,
    clients: Vec<Client>,
}

fn monotonic() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}

fn tai() -> u64 {
    let now = rustix::time::clock_gettime_dynamic(rustix::time::DynamicClockId::Tai).expect("CLOCK_TAI");
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}

/// Writes a word of a region as an older or slower daemon has it.
fn write_word(memfd: &OwnedFd, octets: &[u8], at: usize) {
    let file = std::fs::File::from(memfd.try_clone().expect("memfd"));
    std::os::unix::fs::FileExt::write_all_at(&file, octets, at as u64).expect("a word of the region");
}

impl Daemon {
    fn pass(&mut self) {
        let behaviour = lock(&self.behaviour).clone();
        if behaviour.ends_clients {
            self.clients.clear();
        }
        while let Ok(control) =
            rustix::net::accept_with(&self.listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)
        {
            self.clients.push(Client {
                number: usize::MAX,
                control,
                ring: None,
                streams: Vec::new(),
                past: BTreeMap::new(),
                pending: Vec::new(),
                is_over: false,
                expects: false,
            });
        }
        let mut events = lock(&self.events);
        for client in &mut self.clients {
            // First the ring, then what was said: frames of an old registration come before the new one.
            client.take(&behaviour, &mut events);
            while !client.is_over && client.listen(&behaviour, &mut events) {}
            client.answer(&behaviour);
            if client.is_over {
                client.detach();
                client.take(&behaviour, &mut events);
            }
        }
        self.clients.retain(|client| !client.is_over);
    }
}

impl Client {
    /// Reads one message; whether there was one.
    fn listen(&mut self, behaviour: &Behaviour, events: &mut Events) -> bool {
        let mut octets = [0; MESSAGE_OCTETS_MAX + 1];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let received =
            rustix::net::recvmsg(&self.control, &mut [IoSliceMut::new(&mut octets)], &mut ancillary, flags);
        let received = match received {
            Ok(received) if received.bytes > 0 => received.bytes,
            Err(rustix::io::Errno::AGAIN) => return false,
            _ => {
                self.is_over = true;
                return false;
            }
        };
        let mut sockets = Vec::new();
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(passed) = message {
                sockets.extend(passed);
            }
        }
        match (control::parse(&octets[..received]), sockets.as_slice()) {
            (Ok(Message::Hello(hello)), [_]) if self.ring.is_none() => self.greet(hello, behaviour, events),
            (Ok(Message::Register(register)), [socket]) => {
                events.registrations += 1;
                let index = register.stream_index as usize;
                self.streams.resize(self.streams.len().max(index + 1), (0, None, None));
                let local = rustix::net::getsockname(socket).ok().and_then(|local| local.try_into().ok());
                let peer =
                    rustix::net::getpeername(socket).ok().flatten().and_then(|peer| peer.try_into().ok());
                let before = std::mem::replace(&mut self.streams[index], (register.token, local, peer));
                self.past.insert((register.stream_index, before.0), before);
                let cookie = rustix::net::sockopt::socket_cookie(socket).unwrap_or(0);
                if let TxtimeClaim::Tai(flags) = register.txtime {
                    events.claims.insert(cookie, flags);
                }
                let recalled = match register.txtime {
                    TxtimeClaim::Kernel => None,
                    _ => events.claims.get(&cookie).copied().filter(|_| behaviour.grants_tai),
                };
                let has_port = local.is_none_or(|local: SocketAddr| local.port() != 0);
                let flags = recalled.map_or(0, stream_flags::remembered)
                    | if behaviour.takes_port && !has_port { stream_flags::TAKES_PORT } else { 0 };
                let Register { stream_index, token, .. } = register;
                self.pending.push((Instant::now() + behaviour.register_delay, stream_index, token, flags));
            }
            (Ok(Message::ShowPort(shown)), [socket]) => {
                events.ports_shown += 1;
                let stream = &mut self.streams[shown.stream_index as usize];
                assert_eq!(stream.1.map(|local| local.port()), Some(0), "a socket that has a port");
                let local =
                    rustix::net::getsockname(socket).expect("a socket").try_into().expect("an address");
                (stream.0, stream.1) = (shown.token, Some(local));
                let flags = stream_flags::TAKES_PORT | stream_flags::PORT_SHOWN;
                let ShowPort { stream_index, token } = shown;
                self.pending.push((Instant::now() + behaviour.register_delay, stream_index, token, flags));
            }
            (Ok(Message::Expect(_)), []) => {
                assert!(behaviour.has_receive_area, "Expect is sent only where there is an area");
                *events.expects.entry(self.number).or_default() += 1;
                self.expects = true;
            }
            (Ok(Message::Unregister(over)), []) => {
                events.unregistrations += 1;
                if let Some((ring, _)) = &mut self.ring {
                    ring.clear_stream(over.stream_index).expect("stream");
                }
            }
            other => panic!("a message that libktsn must not send: {other:?}"),
        }
        true
    }

    fn greet(&mut self, hello: Hello, behaviour: &Behaviour, events: &mut Events) {
        assert_eq!((hello.abi_min, hello.abi_max), (1, 1));
        if events.cut_off < behaviour.cuts_off {
            events.cut_off += 1;
            self.is_over = true;
            return;
        }
        if behaviour.hello != HelloStatus::Attached {
            let reply = HelloReply::refusing(behaviour.hello);
            rustix::net::send(&self.control, &reply.encode(), SendFlags::NOSIGNAL).expect("reply");
            self.is_over = true;
            return;
        }
        let layout = Layout::new(behaviour.slots, 2048, 1024, 64).expect("layout");
        let (mut ring, memfd) = Consumer::create(layout).expect("region");
        let take = |&(address, prefix_bits): &([u8; 16], u8)| Destination {
            address,
            prefix_bits,
            action: DestinationAction::Take,
            payload_max: behaviour.payload_max,
        };
        // 127.255.255.255, the loopback network's.
        let mut address = [0xff; 16];
        address[..10].fill(0);
        address[12] = 127;
        let broadcast = Destination {
            address,
            prefix_bits: 128,
            action: DestinationAction::Broadcast,
            payload_max: behaviour.payload_max,
        };
        let rules = std::iter::once(broadcast).chain(behaviour.destinations.iter().map(take));
        ring.set_destinations(&rules.collect::<Vec<_>>()).expect("destinations");
        ring.set_sole_v4([127, 0, 0, 1]);
        ring.receive_area().set_period(behaviour.receive_period);
        if behaviour.is_writing {
            // Odd.
            write_word(&memfd, &3u64.to_le_bytes(), ktsn_ring::layout::DESTINATIONS_VERSION);
        }
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (ours, theirs) = rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
            .expect("doorbell");
        let octets = if behaviour.has_receive_area { layout.shared_octets() } else { layout.region_octets() };
        if !behaviour.has_receive_area {
            write_word(&memfd, &0u32.to_le_bytes(), ktsn_ring::layout::RECEIVE_OCTETS);
        }
        let octets = u32::try_from(octets).expect("size");
        let reply = HelloReply::attached(1, octets, behaviour.interface_index);
        let passed = [std::os::fd::AsFd::as_fd(&memfd), std::os::fd::AsFd::as_fd(&theirs)];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(&passed)));
        let reply = reply.encode();
        let sent =
            rustix::net::sendmsg(&self.control, &[IoSlice::new(&reply)], &mut ancillary, SendFlags::NOSIGNAL);
        (self.is_over, self.number) = (sent.is_err(), events.clients);
        events.clients += 1;
        events.counters.push([0; 32]);
        events.receiving.push(Reading::default());
        self.ring = Some((ring, ours));
    }

    fn answer(&mut self, behaviour: &Behaviour) {
        let Some((ring, _)) = &mut self.ring else { return };
        let streams = &self.streams;
        self.pending.retain(|&(at, index, token, flags)| {
            if Instant::now() < at {
                return true;
            }
            let is_newest = streams[index as usize].0 == token;
            if is_newest {
                let status = StreamStatus {
                    token,
                    flags: flags
                        | if behaviour.grants_tai { stream_flags::TAI_GRANTED } else { 0 }
                        | behaviour.takes_untimed_from.map_or(0, stream_flags::takes_untimed_from),
                    code: behaviour.stream,
                    limit: u32::from(behaviour.payload_max),
                    bypass: 0,
                    is_asked: false,
                };
                ring.set_stream(index, status).expect("stream");
            }
            false
        });
    }

    /// What is published from here on is not taken: a program that has only lost its connection finds out.
    fn detach(&self) {
        if let Some((ring, _)) = self.ring.as_ref().filter(|(ring, _)| ring.broken().is_none()) {
            ring.set_state(RegionState::Detached);
            ktsn_ring::sleep_fence();
        }
    }

    fn take(&mut self, behaviour: &Behaviour, events: &mut Events) {
        let past = &self.past;
        let Some((ring, doorbell)) = &mut self.ring else { return };
        while rustix::net::recv(&*doorbell, &mut [0u8; 8][..], RecvFlags::DONTWAIT)
            .is_ok_and(|read| read.0 > 0)
        {
            events.doorbells += 1;
        }
        events.counters[self.number] = ring.counters();
        events.receiving[self.number] = ring.receive_area().read();
        if let Some(share) = behaviour.receive_share.filter(|_| self.expects) {
            let lease = u64::try_from(behaviour.receive_lease.as_nanos()).unwrap_or(u64::MAX);
            ring.receive_area().grant(share, Monotonic::from_nanos(monotonic().saturating_add(lease)));
        }
        let promise = u64::try_from(behaviour.promise.as_nanos()).unwrap_or(u64::MAX);
        ring.promise_poll_by(monotonic().saturating_add(promise), tai().saturating_add(promise));
        while events.frames.len() < behaviour.takes_max {
            match ring.collect(4096) {
                Err(_) => {
                    events.broken += 1;
                    self.is_over = true;
                    return;
                }
                Ok(0) => break,
                Ok(_) => {}
            }
            let mut payload = [0; 2048];
            while events.frames.len() < behaviour.takes_max
                && let Some(taken) = ring.take_metadata(|index, token| past.contains_key(&(index, token)))
            {
                match taken {
                    Ok(taken) => {
                        ring.read_payload(taken.slot, &mut payload);
                        let (index, token) = (taken.frame.stream_index, taken.frame.token);
                        let (_, local, peer) =
                            past.get(&(index, token)).copied().unwrap_or(self.streams[index as usize]);
                        events.frames.push(Received {
                            client: self.number,
                            frame: taken.frame,
                            payload: payload[..taken.payload_octets].to_vec(),
                            local,
                            peer,
                        });
                        ring.release(taken.slot);
                    }
                    Err(error) => {
                        events.slot_errors += 1;
                        ring.release(error.slot);
                    }
                }
            }
        }
        events.counters[self.number] = ring.counters();
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // A killed daemon says nothing; only the test of a retired region does.
        if let Some((ring, _)) = &self.ring
            && ring.broken().is_some()
        {
            ring.set_state(RegionState::Retired);
        }
    }
}
