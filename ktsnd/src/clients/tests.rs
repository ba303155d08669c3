// SPDX-License-Identifier: Apache-2.0
//! Hostile connections against a real registrar: it answers or ends them, and goes on serving.

mod attacks;
mod crowds;
mod expecting;

use std::io::Read as _;
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use ktsn_eventually::eventually;
use ktsn_port::memory::Memory;
use ktsn_resolve::{AttachmentIndex, Tables};
use ktsn_ring::control::{Hello, HelloReply, HelloStatus, Register, TxtimeClaim};
use ktsn_ring::layout::ABI;
use ktsn_ring::stream_flags;
use ktsn_time::Nanos;
use proptest::prelude::*;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv, send,
    socket_with,
};

use super::connection::{Read, Received, read, write};
use super::fuzzing::served;
use super::*;
use crate::config::ClientLimits;
use crate::worker::{Command, Inbox, queues};

/// How long anything is waited for that comes at all.
const PATIENCE: Duration = Duration::from_secs(20);
/// Set when test `TEST` is over: its descriptors hang until then.
static IS_OVER: [AtomicBool; 4] = [const { AtomicBool::new(false) }; 4];

/// Sets [`IS_OVER`] of its test, also when an assertion fails: the registrar can end then.
struct Over<const TEST: usize>;

impl<const TEST: usize> Drop for Over<TEST> {
    fn drop(&mut self) {
        IS_OVER[TEST].store(true, SeqCst);
    }
}

/// Blocks like a system call that waits for a lock which a program holds.
fn hang_until_over<const TEST: usize>() {
    while !IS_OVER[TEST].load(SeqCst) {
        std::thread::sleep(Duration::from_millis(10));
    }
}

struct Running {
    _dir: tempfile::TempDir,
    path: std::path::PathBuf,
    registrar: Option<RegistrarHandle>,
    directory: Directory<Memory>,
    stop: Arc<AtomicBool>,
    commands: Option<std::thread::JoinHandle<Vec<String>>>,
}

/// Takes commands as a worker would, and remembers their kinds.
fn collect(mut inbox: Inbox<Memory>, directory: &Directory<Memory>, stop: &AtomicBool) -> Vec<String> {
    let mut kinds = Vec::new();
    loop {
        match inbox.next() {
            Some(Command::SetClientTables(_, client_tables)) => {
                kinds.push(format!("others {:?}", client_tables.others));
            }
            Some(command) => kinds.push(
                match command {
                    Command::AddClient(_) => "add",
                    Command::Register(_, _, info) => match stream_flags::recalled(info.status.flags) {
                        None => "register",
                        Some(2) => "register with TAI remembered",
                        Some(_) => "register with other flags",
                    },
                    Command::Refuse(..) => "refuse",
                    Command::Unregister(..) => "unregister",
                    Command::EndClient(key) => {
                        directory.over(key);
                        "end"
                    }
                    _ => "other",
                }
                .to_owned(),
            ),
            None if stop.load(SeqCst) => return kinds,
            None => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}

fn start(clients_max: u32) -> Running {
    start_with(clients_max, examine)
}

fn start_with(clients_max: u32, look: socket::Examine) -> Running {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("ktsn.sock");
    let (worker, inbox, _returned, _wake) = queues::<Memory>().unwrap();
    let directory = Directory::new(Arc::new(Tables::new(0, Vec::new()).unwrap()));
    let netns_cookie = examine(UdpSocket::bind("127.0.0.1:0").unwrap().into()).unwrap().netns_cookie;
    let limits = ClientLimits {
        slots: 64,
        octets_max: 1 << 20,
        clients_max,
        memory_max: 64 << 20,
        receive_period: Some(Nanos::from_millis(4)),
        ..ClientLimits::default()
    };
    let attachment = served(AttachmentIndex(0), 1450, limits, worker);
    directory.serve(Arc::new(ServedAttachment { netns_cookie, ..attachment }));
    let registrar = RegistrarHandle::start_with(&path, directory.clone(), look).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let (stopped, known) = (stop.clone(), directory.clone());
    let commands = std::thread::spawn(move || collect(inbox, &known, &stopped));
    Running { _dir: dir, path, registrar: Some(registrar), directory, stop, commands: Some(commands) }
}

impl Running {
    /// The attachment that is served first, to be changed.
    fn attachment(&self) -> ServedAttachment<Memory> {
        let first = self.directory.lock().served[0].clone();
        let limits = first.attachment.clients;
        ServedAttachment {
            netns_cookie: first.netns_cookie,
            stats: first.stats.clone(),
            ..served(first.index, first.mtu, limits, first.worker.clone())
        }
    }

    fn connect(&self) -> OwnedFd {
        let fd = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        connect(&fd, &SocketAddrUnix::new(&self.path).unwrap()).unwrap();
        rustix::net::sockopt::set_socket_timeout(&fd, rustix::net::sockopt::Timeout::Recv, Some(PATIENCE))
            .unwrap();
        fd
    }

    fn hello(&self, abi: u16) -> (OwnedFd, Option<HelloReply>) {
        self.hello_at(abi, 0)
    }

    fn hello_at(&self, abi: u16, interface_index: u32) -> (OwnedFd, Option<HelloReply>) {
        let fd = self.connect();
        let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
        write(&fd, Hello { abi_min: abi, abi_max: abi, interface_index }.encode().as_slice(), &[udp.as_fd()])
            .unwrap();
        let mut octets = [0; 64];
        let reply = match recv(&fd, &mut octets, RecvFlags::empty()) {
            Ok((count, _)) if count > 0 => HelloReply::parse(&octets[..count]).ok(),
            _ => None,
        };
        (fd, reply)
    }

    fn status(&self, abi: u16) -> Option<HelloStatus> {
        self.hello(abi).1.map(|r| r.status)
    }

    fn ended(&self, fd: &OwnedFd) -> bool {
        matches!(recv(fd, &mut [0u8; 64][..], RecvFlags::empty()), Ok((0, _)) | Err(_))
    }

    fn wait_for_clients(&self, count: usize) {
        let what = std::fmt::from_fn(|f| write!(f, "{count} clients of {:?}", self.directory.clients()));
        // One that is ending counts until its worker is done with it.
        eventually(what, PATIENCE, || self.directory.lock().clients.len() == count);
    }

    fn finish(mut self) -> Vec<String> {
        drop(self.registrar.take());
        self.stop.store(true, SeqCst);
        self.commands.take().unwrap().join().unwrap()
    }
}

/// The registrar's next message.
fn answer(fd: &OwnedFd) -> Box<Received> {
    eventually("an answer", PATIENCE, || match read(fd.as_fd(), &mut vec![0; connection::BUFFER_OCTETS]) {
        Read::Message(message) => Some(message),
        _ => None,
    })
}

#[test]
fn a_client_attaches_registers_and_ends() {
    let running = start(4);
    let (fd, reply) = running.hello(ABI as u16);
    assert_eq!(reply.map(|r| r.status), Some(HelloStatus::Attached));
    let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
    let local = udp.local_addr().unwrap();
    write(&fd, &Register::new(3, 9).encode(), &[udp.as_fd()]).unwrap();
    let began = Instant::now();
    while running.directory.clients()[0].streams.is_empty() {
        assert!(began.elapsed() < PATIENCE);
    }
    let client = running.directory.clients().remove(0);
    assert_eq!(client.pid, std::process::id());
    assert_eq!(client.streams.get(3).unwrap().local, local);
    drop(fd);
    running.wait_for_clients(0);
    assert_eq!(running.finish(), ["add", "register", "end"]);
}

#[test]
fn a_grant_is_the_sockets_and_outlives_its_client() {
    let running = start(4);
    let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
    let other = UdpSocket::bind("127.0.0.1:0").unwrap();
    let register = |fd: &OwnedFd, socket: &UdpSocket, txtime| {
        write(
            fd,
            &Register { stream_index: 0, token: 1, txtime, is_kept: false }.encode(),
            &[socket.as_fd()],
        )
        .unwrap();
    };
    let (first, reply) = running.hello(ABI as u16);
    assert_eq!(reply.map(|r| r.interface_index), Some(1));
    register(&first, &udp, TxtimeClaim::Asked);
    register(&first, &udp, TxtimeClaim::Tai(2));
    drop(first);
    running.wait_for_clients(0);
    let (second, _) = running.hello(ABI as u16);
    register(&second, &udp, TxtimeClaim::Asked);
    register(&second, &other, TxtimeClaim::Asked);
    register(&second, &udp, TxtimeClaim::Kernel);
    drop(second);
    running.wait_for_clients(0);
    let remembered = "register with TAI remembered";
    let expected = ["add", "register", remembered, "end", "add", remembered, "register", "register", "end"];
    assert_eq!(running.finish(), expected);
}

/// A namespace's second attachment: asked for by its interface, announced to the clients of the first, with its own limits.
#[test]
fn each_attachment_of_a_namespace_is_asked_for_by_its_interface() {
    let running = start(1);
    let (first, reply) = running.hello(ABI as u16);
    assert_eq!(reply.map(|r| (r.status, r.interface_index)), Some((HelloStatus::Attached, 1)));
    let second = ServedAttachment { index: AttachmentIndex(1), interface_index: 7, ..running.attachment() };
    running.directory.serve(Arc::new(second));
    running.registrar.as_ref().unwrap().tables_changed();
    let (net1, reply) = running.hello_at(ABI as u16, 7);
    assert_eq!(reply.map(|r| (r.status, r.interface_index)), Some((HelloStatus::Attached, 7)));
    assert_eq!(running.hello_at(ABI as u16, 7).1.map(|r| r.status), Some(HelloStatus::ClientsMax));
    assert_eq!(running.hello_at(ABI as u16, 8).1.map(|r| r.status), Some(HelloStatus::NotAttached));
    // The socket's grant is known to both.
    let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
    let register = |fd: &OwnedFd, txtime| {
        write(fd, &Register { stream_index: 0, token: 1, txtime, is_kept: false }.encode(), &[udp.as_fd()])
            .unwrap();
    };
    register(&first, TxtimeClaim::Tai(2));
    let registered = |at: usize| running.directory.clients()[at].streams.iter().count() == 1;
    eventually("the first is registered", PATIENCE, || registered(0));
    register(&net1, TxtimeClaim::Asked);
    eventually("the second is registered", PATIENCE, || registered(1));
    drop((first, net1));
    running.wait_for_clients(0);
    let done = running.finish();
    let count = |what: &str| done.iter().filter(|each| *each == what).count();
    assert_eq!((count("add"), count("register with TAI remembered")), (2, 2), "{done:?}");
    assert_eq!(done.iter().filter(|each| *each == "others [7]").count(), 1, "{done:?}");
}

#[test]
fn another_abi_is_answered_with_version() {
    let running = start(4);
    assert_eq!(running.status(7), Some(HelloStatus::Version));
    assert_eq!(running.status(2), Some(HelloStatus::Version));
    assert!(running.finish().is_empty());
}

#[test]
fn clients_max_holds_and_frees_up() {
    let running = start(2);
    let (first, _) = running.hello(ABI as u16);
    let (_second, reply) = running.hello(ABI as u16);
    assert_eq!(reply.map(|r| r.status), Some(HelloStatus::Attached));
    assert_eq!(running.status(ABI as u16), Some(HelloStatus::ClientsMax));
    drop(first);
    running.wait_for_clients(1);
    assert_eq!(running.status(ABI as u16), Some(HelloStatus::Attached));
}

#[test]
fn silent_strangers_go_and_others_are_served_meanwhile() {
    let running = start(4);
    let silent: Vec<OwnedFd> = (0..500).map(|_| running.connect()).collect();
    assert_eq!(running.status(ABI as u16), Some(HelloStatus::Attached));
    for fd in &silent {
        assert!(running.ended(fd));
    }
}

#[test]
fn a_listening_tcp_socket_and_a_pipe_are_refused() {
    let running = start(4);
    let (fd, _) = running.hello(ABI as u16);
    let tcp = std::net::TcpListener::bind((IpAddr::V4(Ipv4Addr::LOCALHOST), 0)).unwrap();
    write(&fd, &Register::new(0, 1).encode(), &[tcp.as_fd()]).unwrap();
    let (mut reader, writer) = std::io::pipe().unwrap();
    write(&fd, &Register::new(1, 2).encode(), &[writer.as_fd()]).unwrap();
    drop(writer);
    // The daemon closed its copy: the pipe ends.
    assert_eq!(reader.read(&mut [0u8; 1]).unwrap(), 0);
    drop(fd);
    running.wait_for_clients(0);
    assert_eq!(running.finish(), ["add", "refuse", "refuse", "end"]);
}

/// No message of ours brings several descriptors: all that its connection holds is closed, not one message at a time.
#[test]
fn several_descriptors_at_once_end_their_connection() {
    let running = start(4);
    let (fd, _) = running.hello(ABI as u16);
    let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
    let (mut reader, writer) = std::io::pipe().unwrap();
    write(&fd, &Register::new(0, 1).encode(), &[udp.as_fd()]).unwrap();
    write(&fd, &Register::new(1, 2).encode(), &[udp.as_fd(), udp.as_fd()]).unwrap();
    // More than one namespace's pace, where the daemon has not ended it yet.
    for _ in 0..200 {
        if write(&fd, &Register::new(1, 2).encode(), &[writer.as_fd()]).is_err() {
            break;
        }
    }
    drop(writer);
    assert_eq!(reader.read(&mut [0u8; 1]).unwrap(), 0, "all are closed");
    assert!(running.ended(&fd));
    running.wait_for_clients(0);
    assert_eq!(running.finish(), ["add", "register", "end"]);
}

/// A stream that is registered again with what is refused is neither the worker's nor listed any more.
#[test]
fn a_refused_registration_ends_the_stream() {
    let running = start(4);
    let (fd, _) = running.hello(ABI as u16);
    let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
    let streams =
        || running.directory.clients()[0].streams.iter().map(|(index, _)| index).collect::<Vec<_>>();
    write(&fd, &Register::new(0, 1).encode(), &[udp.as_fd()]).unwrap();
    write(&fd, &Register::new(1, 2).encode(), &[udp.as_fd()]).unwrap();
    eventually("both streams", PATIENCE, || streams() == [0, 1]);
    let tcp = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    write(&fd, &Register::new(0, 3).encode(), &[tcp.as_fd()]).unwrap();
    eventually("one stream", PATIENCE, || streams() == [1]);
    drop(fd);
    running.wait_for_clients(0);
    assert_eq!(running.finish(), ["add", "register", "register", "refuse", "end"]);
}

#[test]
fn a_flood_of_registrations_is_slowed_down() {
    let running = start(4);
    let (fd, _) = running.hello(ABI as u16);
    let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
    let message = Register::new(0, 1).encode();
    let began = Instant::now();
    let mut written = 0;
    while began.elapsed() < Duration::from_millis(300) || written < 500 {
        assert!(began.elapsed() < PATIENCE, "{written} registrations");
        // A full queue is all that the sender sees of it.
        match write(&fd, &message, &[udp.as_fd()]) {
            Ok(()) => written += 1,
            Err(error) => {
                assert!(
                    matches!(error, rustix::io::Errno::AGAIN | rustix::io::Errno::TOOMANYREFS),
                    "{error}"
                );
            }
        }
    }
    let windows = u32::try_from(began.elapsed().as_millis() / 10).unwrap() + 2;
    assert_eq!(running.status(ABI as u16), Some(HelloStatus::Attached));
    drop(fd);
    running.wait_for_clients(0);
    let registered = running.finish().iter().filter(|kind| *kind == "register").count();
    assert!(registered > 128 && registered <= 128 * windows as usize, "{registered} in {windows}");
}

/// A socket whose lock its program holds: a stream socket here.
fn examine_a_held_socket(fd: OwnedFd) -> Result<SocketFacts, NotASocket> {
    if rustix::net::sockopt::socket_type(&fd) == Ok(SocketType::STREAM) {
        hang_until_over::<3>();
    }
    examine(fd)
}

/// Connects so often, passes a stream socket by each of its messages, waits for the ends, is refused then.
const HOLDER: &str = r#"
import socket, sys
path, often = sys.argv[1], int(sys.argv[2])
held = socket.socket()
def begin():
    s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    s.connect(path)
    return s
def ended(s):
    try:
        return s.recv(64) == b""
    except ConnectionResetError:
        return True
begun = [begin() for _ in range(often)]
for s in begun:
    for _ in range(3):
        try:
            socket.send_fds(s, [b"KTSN"], [held.fileno()] * 2)
        except (BrokenPipeError, ConnectionResetError):
            pass
assert not [s for s in begun if not ended(s)]
for _ in range(often):
    s = begin()
    try:
        socket.send_fds(s, [b"KTSN"], [held.fileno()])
    except (BrokenPipeError, ConnectionResetError):
        pass
    assert ended(s)
print("ended", flush=True)
sys.stdin.read()
"#;

/// `getsockname` and others wait for the socket's lock, which a program holds as long as it likes.
#[test]
fn a_socket_that_hangs_ends_its_process_and_nothing_else() {
    let running = start_with(8, examine_a_held_socket);
    let _over = Over::<3>;
    let (honest, reply) = running.hello(ABI as u16);
    assert_eq!(reply.map(|r| r.status), Some(HelloStatus::Attached));
    let mut holder = std::process::Command::new("python3")
        .args(["-c", HOLDER, running.path.to_str().unwrap(), "40"])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let (mut says, mut said) = (holder.stdout.take().unwrap(), [0; 6]);
    says.read_exact(&mut said).unwrap();
    assert_eq!(&said, b"ended\n");
    // Other clients are served meanwhile.
    assert_eq!(running.status(ABI as u16), Some(HelloStatus::Attached));
    let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
    write(&honest, &Register::new(0, 1).encode(), &[udp.as_fd()]).unwrap();
    eventually("a stream", PATIENCE, || !running.directory.clients()[0].streams.is_empty());
    drop(holder.stdin.take());
    assert!(holder.wait().unwrap().success());
    drop(honest);
    running.wait_for_clients(0);
    let mut kinds = running.finish();
    kinds.sort();
    assert_eq!(kinds, ["add", "end", "register"]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    /// Whatever comes in, the connection ends or is answered, and the next client is served.
    #[test]
    fn garbage_ends_a_connection_and_nothing_else(
        messages in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..100), 1..20),
        after_hello in any::<bool>(),
        with_socket in any::<bool>(),
    ) {
        let running = start(4);
        let fd = if after_hello { running.hello(ABI as u16).0 } else { running.connect() };
        let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
        for message in &messages {
            // A connection that was ended refuses more; that is an answer, too.
            let _ = if with_socket {
                write(&fd, message, &[udp.as_fd()])
            } else {
                send(&fd, message, SendFlags::DONTWAIT | SendFlags::NOSIGNAL).map(|_| ())
            };
        }
        prop_assert_eq!(running.status(ABI as u16), Some(HelloStatus::Attached));
    }
}
