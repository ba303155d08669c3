// SPDX-License-Identifier: Apache-2.0
//! Programs that punch holes into their regions, and programs that want more memory than they may have.

use ktsn_eventually::eventually;
use ktsn_ring::ClientMapping;
use ktsn_ring::control::Unregister;
use rustix::fs::{FallocateFlags, SealFlags, fallocate, fcntl_add_seals, fstat};
use rustix::io::Errno;

use super::*;
use crate::limits;

/// Hello; the connection, the region's memfd and the doorbell.
fn attach(running: &Running) -> (OwnedFd, OwnedFd, OwnedFd) {
    let fd = running.connect();
    let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
    let abi = ABI as u16;
    let hello = Hello { abi_min: abi, abi_max: abi, interface_index: 0 }.encode();
    write(&fd, hello.as_slice(), &[udp.as_fd()]).unwrap();
    let [memfd, doorbell] = <[OwnedFd; 2]>::try_from(answer(&fd).descriptors).unwrap();
    (fd, memfd, doorbell)
}

fn punch(memfd: &OwnedFd) -> Result<(), Errno> {
    let octets = fstat(memfd).unwrap().st_size as u64;
    fallocate(memfd, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, octets)
}

fn register(fd: &OwnedFd, index: u32) {
    let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
    write(fd, &Register::new(index, index + 1).encode(), &[udp.as_fd()]).unwrap();
}

/// One that punches from its Hello on gets nowhere near a worker before its region is sealed; then it cannot punch any more.
#[test]
fn a_worker_gets_a_client_when_its_region_can_have_no_holes() {
    let running = start(4);
    let (fd, memfd, _doorbell) = attach(&running);
    let mapping = ClientMapping::open(&memfd).unwrap();
    punch(&memfd).unwrap();
    let punchers: Vec<_> = [(); 2]
        .map(|()| {
            let memfd = memfd.try_clone().unwrap();
            std::thread::spawn(move || {
                let began = Instant::now();
                while began.elapsed() < PATIENCE {
                    if punch(&memfd) == Err(Errno::PERM) {
                        return true;
                    }
                }
                false
            })
        })
        .into();
    register(&fd, 0);
    eventually("a stream", PATIENCE, || running.directory.clients()[0].streams.iter().count() == 1);
    assert_eq!(punch(&memfd), Err(Errno::PERM), "registered, so sealed");
    assert!(punchers.into_iter().all(|puncher| puncher.join().unwrap()));
    mapping.poke(8 << 10, 5);
    assert_eq!(mapping.peek(8 << 10), 5, "still writable");
    let size = fstat(&memfd).unwrap();
    assert_eq!(size.st_blocks * 512, size.st_size, "and all of it is there");
    assert_eq!(running.status(ABI as u16), Some(HelloStatus::Attached));
    drop(fd);
    running.wait_for_clients(0);
    assert_eq!(running.finish(), ["add", "register", "end"]);
}

/// A region that cannot be sealed is never read: its connection ends with the first registration.
#[test]
fn a_client_that_is_not_sealed_is_no_workers() {
    let running = start(1);
    let (fd, memfd, _doorbell) = attach(&running);
    fcntl_add_seals(&memfd, SealFlags::SEAL).unwrap();
    register(&fd, 0);
    assert!(running.ended(&fd));
    running.wait_for_clients(0);
    // One that registers nothing is none, either.
    let (silent, ..) = attach(&running);
    drop(silent);
    running.wait_for_clients(0);
    assert_eq!(running.status(ABI as u16), Some(HelloStatus::Attached));
    running.wait_for_clients(0);
    assert!(running.finish().is_empty());
}

/// What a program says at once is done in its order, though its region has to be sealed first.
#[test]
fn messages_keep_their_order_while_a_region_is_sealed() {
    let running = start(4);
    let (fd, ..) = attach(&running);
    (0..40).for_each(|index| register(&fd, index));
    write(&fd, &Unregister { stream_index: 3, token: 4 }.encode(), &[]).unwrap();
    register(&fd, 3);
    drop(fd);
    running.wait_for_clients(0);
    let mut expected = vec!["add"];
    expected.extend(["register"; 40]);
    expected.extend(["unregister", "register", "end"]);
    assert_eq!(running.finish(), expected);
}

impl Running {
    /// The same attachment with other limits.
    fn serve_instead(&self, change: impl Fn(ClientLimits) -> ClientLimits) {
        let mut served = self.attachment();
        served.attachment.clients = change(served.attachment.clients);
        self.directory.serve(Arc::new(served));
    }

    fn refused(&self, reason: RefusedBy) -> u64 {
        let known = self.directory.lock();
        known.served[0].stats.clients_refused[reason as usize].load(SeqCst)
    }
}

/// The clients of an attachment never have more memory than it may have; the first ones have all their slots.
#[test]
fn an_attachment_keeps_to_its_memory() {
    let running = start(64);
    let max = 6 << 20;
    running.serve_instead(|limits| ClientLimits {
        slots: 1024,
        octets_max: 4 << 20,
        memory_max: max,
        ..limits
    });
    let mut clients = Vec::new();
    let mut sizes = Vec::new();
    while running.refused(RefusedBy::MemoryMax) == 0 {
        let (fd, reply) = running.hello(ABI as u16);
        let reply = reply.unwrap();
        match reply.status {
            HelloStatus::Attached => sizes.push(reply.region_octets),
            status => assert_eq!(status, HelloStatus::ClientsMax),
        }
        clients.push(fd);
        let used: u64 = running.directory.lock().clients.values().map(|client| client.octets).sum();
        assert!(used <= max, "{used} octets of {max}: {sizes:?}");
        assert!(clients.len() < limits::CLIENTS_A_PROCESS, "{sizes:?}");
    }
    assert!(sizes.len() > 4 && sizes.is_sorted_by(|a, b| a >= b), "{sizes:?}");
    let there = sizes.len();
    assert_eq!(running.refused(RefusedBy::ClientsMax), 0);
    // What one gives back is another's.
    drop(clients.remove(1));
    drop(clients.pop());
    running.wait_for_clients(there - 1);
    assert_eq!(running.status(ABI as u16), Some(HelloStatus::Attached));
}

/// One socket under all indices of each client: what the streams take counts, and beyond the budget they are refused.
#[test]
fn streams_count_as_memory() {
    let running = start(64);
    let max = 2 << 20;
    running.serve_instead(|limits| ClientLimits { memory_max: max, ..limits });
    let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
    let client = |at: usize| running.directory.clients().remove(at);
    let registered = |at: usize| client(at).streams.iter().count() as u64;
    let register_all = |fd: &OwnedFd| {
        for index in 0..limits::STREAMS_MAX {
            let message = Register::new(index, index + 1).encode();
            eventually("a message is taken", PATIENCE, || write(fd, &message, &[udp.as_fd()]).is_ok());
        }
    };
    let (first, ..) = attach(&running);
    let before = client(0).octets;
    register_all(&first);
    eventually("all streams", PATIENCE, || registered(0) == u64::from(limits::STREAMS_MAX));
    let own = size_of::<crate::worker::StreamInfo>() as u64 + limits::LISTED_STREAM_OCTETS;
    let beyond_the_first_page = registered(0) - 16;
    assert!(client(0).octets >= before + beyond_the_first_page * own, "{} of {before}", client(0).octets);
    assert_eq!(running.refused(RefusedBy::StreamsMemory), 0);
    let (second, ..) = attach(&running);
    register_all(&second);
    eventually("each is registered or refused", PATIENCE, || {
        registered(1) + running.refused(RefusedBy::StreamsMemory) == u64::from(limits::STREAMS_MAX)
    });
    assert!(registered(1) >= 16, "the first ones have room");
    assert!(running.refused(RefusedBy::StreamsMemory) > 0);
    let used: u64 = running.directory.clients().iter().map(|client| client.octets).sum();
    assert!(used <= max, "{used} octets of {max}");
    // What a stream gives back is another one's.
    for index in 0..limits::STREAMS_MAX {
        let message = Unregister { stream_index: index, token: index + 1 }.encode();
        eventually("a message is taken", PATIENCE, || write(&first, &message, &[]).is_ok());
    }
    eventually("no stream", PATIENCE, || registered(0) == 0);
    assert_eq!(client(0).octets, before);
    register(&second, 1_000);
    eventually("the last stream", PATIENCE, || client(1).streams.get(1_000).is_some());
}

/// Sixty-four processes of one pod attach with the defaults, though a process alone may not have as many connections.
#[test]
fn a_process_has_few_connections_and_a_pod_many() {
    let running = start(128);
    running.serve_instead(|limits| ClientLimits {
        slots: 1024,
        octets_max: 4 << 20,
        memory_max: limits::MEMORY_MAX,
        ..limits
    });
    let clients: Vec<OwnedFd> = (0..limits::CLIENTS_A_PROCESS).map(|_| attach(&running).0).collect();
    assert_eq!(running.status(ABI as u16), Some(HelloStatus::ClientsMax));
    assert_eq!(running.refused(RefusedBy::ProcessMax), 1);
    let others = limits::CLIENTS_EXPECTED as usize - clients.len();
    let mut program = std::process::Command::new("python3")
        .args(["-c", CROWD, running.path.to_str().unwrap(), &others.to_string()])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let (mut says, mut said) = (program.stdout.take().unwrap(), String::new());
    let mut byte = [0];
    while says.read(&mut byte).unwrap() == 1 && byte[0] != b'\n' {
        said.push(char::from(byte[0]));
    }
    assert_eq!(said, format!("{others} attached"));
    assert_eq!(running.directory.clients().len(), limits::CLIENTS_EXPECTED as usize);
    drop(program.stdin.take());
    assert!(program.wait().unwrap().success());
}

/// So many processes attach; they end with the program's input.
const CROWD: &str = r#"
import os, socket, struct, sys
hello = b"KTSNRNG\0" + struct.pack("<HHHH", 1, 1, 1, 0)
def attach(done, go):
    s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    s.connect(sys.argv[1])
    u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    socket.send_fds(s, [hello], [u.fileno()])
    reply, fds, _, _ = socket.recv_fds(s, 64, 2)
    os.write(done, b"+" if len(fds) == 2 else b"-")
    os.read(go, 1)
    os._exit(0)
done_read, done = os.pipe()
go, go_write = os.pipe()
children = []
for _ in range(int(sys.argv[2])):
    pid = os.fork()
    if pid == 0:
        os.close(go_write)
        attach(done, go)
    children.append(pid)
seen = b""
while len(seen) < len(children):
    seen += os.read(done_read, 1)
print(seen.count(b"+"), "attached", flush=True)
sys.stdin.read()
os.close(go_write)
for pid in children:
    os.waitpid(pid, 0)
"#;

fn stream() -> crate::worker::StreamInfo {
    crate::worker::StreamInfo {
        interface: 0,
        uid: 0,
        token: 1,
        cookie: 7,
        attachment: AttachmentIndex(0),
        local: ([127, 0, 0, 1], 5).into(),
        peer: None,
        link: None,
        is_deadline: false,
        status: ktsn_ring::StreamStatus::default(),
    }
}

/// The Helm chart's limit holds all clients that the defaults allow, and each of the chart's containers has its share.
#[test]
fn the_charts_memory_limit_holds_the_budgets() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../k8s/deploy/helm/ktsn/values.yaml");
    let values = std::fs::read_to_string(path).unwrap();
    let value = |section: &str, key: &str| {
        let lines = values.lines().skip_while(|line| *line != format!("{section}:")).skip(1);
        let line = lines.take_while(|line| line.starts_with(' ') || line.is_empty());
        let found = line.into_iter().find_map(|line| line.trim().strip_prefix(key).map(str::to_owned));
        found.unwrap_or_else(|| panic!("{section}: no {key}"))
    };
    let limit = value("ktsnd", "limits: {memory: ");
    let limit = limit.strip_suffix("Mi}").and_then(|mib| mib.parse::<u64>().ok()).expect("MiB") << 20;
    let containers: usize = value("resource", "unscheduled: ").parse().unwrap();
    assert!(limits::CLIENTS_MEMORY_MAX + limits::BASE_OCTETS <= limit);
    assert!(containers <= limits::MEMORY_SHARES);
    let running = start(1);
    let mut served = running.attachment();
    let limits = ClientLimits { slots: 1024, octets_max: 4 << 20, ..served.attachment.clients };
    served.attachment.clients = limits;
    let least = answer::memory_of(&answer::layout_for(&served, 0).unwrap());
    let share = budget::set_aside(limits::CLIENTS_MEMORY_MAX, containers);
    assert!(4 * least <= share, "four programs in each container: {least} octets each of {share}");
    assert!(limits::CLIENTS_EXPECTED * least <= limits::MEMORY_MAX / 2, "{least} octets each");
    // As many clients as the budget holds, each with all its streams: those are kept twice, and listed.
    let streams = u64::from(limits::STREAMS_MAX);
    let with_streams = {
        let mut all = streams::Streams::default();
        (0..limits::STREAMS_MAX).for_each(|index| all.insert(index, stream()));
        least + all.octets()
    };
    let layout = answer::layout_for(&served, 0).unwrap();
    let of_stream = 2 * size_of::<crate::worker::StreamInfo>() as u64 + limits::LISTED_STREAM_OCTETS;
    let of_slot = 2 * layout.payload_max() as u64;
    let taken = streams * of_stream + layout.slots_count() as u64 * of_slot + limits::CLIENT_KERNEL_OCTETS;
    assert!(taken <= with_streams, "{taken} octets, {with_streams} of the budget");
}
