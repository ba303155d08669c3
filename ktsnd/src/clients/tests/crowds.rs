// SPDX-License-Identifier: Apache-2.0
//! Many clients that hold the registrar up, each within its limits: another client is served meanwhile.

use std::io::{BufRead as _, Write as _};
use std::sync::atomic::AtomicUsize;

use super::*;
use ktsn_eventually::eventually;

/// Processes that pass a socket of their namespace, which its program holds: one with SO_BROADCAST here; or something
/// else that hangs in being closed: a pipe here.
const HOLDERS: &str = r#"
import os, socket, sys
held = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
held.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
print(int.from_bytes(held.getsockopt(socket.SOL_SOCKET, 71, 8), sys.byteorder), flush=True)
if sys.argv[3] == "file":
    held = os.fdopen(os.pipe()[0])
sys.stdin.readline()
for _ in range(int(sys.argv[2])):
    if os.fork() == 0:
        s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        s.connect(sys.argv[1])
        try:
            socket.send_fds(s, [b"KTSN"], [held.fileno()])
            s.recv(64)
        except (BrokenPipeError, ConnectionResetError):
            pass
        os._exit(0)
for _ in range(int(sys.argv[2])):
    os.wait()
print("ended", flush=True)
"#;

/// Hangs in what is not an ordinary socket until the test is over.
fn examine_what_is_held<const TEST: usize>(fd: OwnedFd) -> Result<SocketFacts, NotASocket> {
    if rustix::net::sockopt::socket_broadcast(&fd) != Ok(false) {
        hang_until_over::<TEST>();
    }
    examine(fd)
}

/// A network namespace whose program holds its socket.
struct Holders {
    program: std::process::Child,
    says: std::io::Lines<std::io::BufReader<std::process::ChildStdout>>,
}

impl Holders {
    /// Begins: a namespace with an attachment of its own, whose program waits.
    fn start(running: &Running, index: u16, processes: usize, what: &str) -> Self {
        let mut program = std::process::Command::new("unshare")
            .args([
                "-n",
                "python3",
                "-c",
                HOLDERS,
                running.path.to_str().unwrap(),
                &processes.to_string(),
                what,
            ])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut says = std::io::BufReader::new(program.stdout.take().unwrap()).lines();
        let netns_cookie = says.next().unwrap().unwrap().parse().unwrap();
        let index = AttachmentIndex(index);
        let theirs = ServedAttachment { index, netns_cookie, ..running.attachment() };
        running.directory.serve(Arc::new(theirs));
        Self { program, says }
    }

    /// Its processes pass the socket.
    fn go(&mut self) {
        self.program.stdin.take().unwrap().write_all(b"go\n").unwrap();
    }

    /// None of them is heard any more.
    fn end(mut self) {
        assert_eq!(self.says.next().unwrap().unwrap(), "ended");
        assert!(self.program.wait().unwrap().success());
    }
}

/// A program that forks has as many processes as it likes; its namespace's sockets are held against it all the same.
#[test]
fn processes_whose_sockets_hang_hold_up_their_own_namespace_only() {
    for what in ["socket", "file"] {
        IS_OVER[0].store(false, SeqCst);
        let running = start_with(8, examine_what_is_held::<0>);
        let _over = Over::<0>;
        let mut holders = Holders::start(&running, 1, 40, what);
        holders.go();
        holders.end();
        assert_eq!(running.status(ABI as u16), Some(HelloStatus::Attached), "{what}");
    }
}

/// Namespaces without an attachment count as one: all of them together have one place.
#[test]
fn namespaces_that_nobody_attached_hold_up_nobody() {
    let running = start_with(8, examine_what_is_held::<1>);
    let _over = Over::<1>;
    let mut all: Vec<Holders> = (1..=10).map(|index| Holders::start(&running, index, 5, "file")).collect();
    (1..=10).for_each(|index| running.directory.forget(AttachmentIndex(index)));
    all.iter_mut().for_each(Holders::go);
    all.into_iter().for_each(Holders::end);
    assert_eq!(running.status(ABI as u16), Some(HelloStatus::Attached));
}

static SLOW: AtomicUsize = AtomicUsize::new(0);

fn examine_slowly(fd: OwnedFd) -> Result<SocketFacts, NotASocket> {
    if rustix::net::sockopt::socket_broadcast(&fd) == Err(rustix::io::Errno::NOTSOCK) {
        SLOW.fetch_add(1, SeqCst);
        // Too short to be taken for hanging.
        std::thread::sleep(hangs::PATIENCE / 2);
    }
    examine(fd)
}

/// A slow request that does not hang keeps no other waiting: the requests behind it are served before it is done.
#[test]
fn descriptors_that_are_slow_wait_for_each_other_only() {
    let running = start_with(8, examine_slowly);
    let mut other = Holders::start(&running, 1, 1, "socket");
    let slow: Vec<OwnedFd> = (0..60).map(|_| running.connect()).collect();
    let (pipe, _end) = std::io::pipe().unwrap();
    for fd in &slow {
        write(fd, b"KTSN", &[pipe.as_fd(), pipe.as_fd()]).unwrap();
    }
    eventually("a slow one is examined", PATIENCE, || SLOW.load(SeqCst) > 0);
    other.go();
    other.end();
    assert!(SLOW.load(SeqCst) < 100, "it waited for them: {SLOW:?}");
}

/// More namespaces together than it takes for all closers there are.
#[test]
fn ten_namespaces_together_hold_up_nobody_else() {
    let running = start_with(8, examine_what_is_held::<2>);
    let _over = Over::<2>;
    let mut all: Vec<Holders> = (1..=10).map(|index| Holders::start(&running, index, 5, "socket")).collect();
    all.iter_mut().for_each(Holders::go);
    all.into_iter().for_each(Holders::end);
    assert_eq!(running.status(ABI as u16), Some(HelloStatus::Attached));
}

/// One connection, as libktsn makes it: where the queue of callers is full it tries again a moment later.
fn call(path: &std::path::Path) -> OwnedFd {
    loop {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let fd = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        match connect(&fd, &SocketAddrUnix::new(path).unwrap()) {
            Ok(()) => return fd,
            Err(error) => assert_eq!(error, rustix::io::Errno::AGAIN),
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Silent connections that were made so far.
static SILENT: AtomicUsize = AtomicUsize::new(0);

/// More silent connections than are kept, and a new one for each that is ended, as fast as they can be made.
#[test]
fn silent_connections_that_come_again_at_once_hold_up_nobody() {
    let running = start(4);
    let stop = AtomicBool::new(false);
    let path = &running.path;
    let silent = || {
        let mut connections = std::collections::VecDeque::new();
        while !stop.load(SeqCst) {
            let fd =
                socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::NONBLOCK, None).unwrap();
            if connect(&fd, &SocketAddrUnix::new(path).unwrap()).is_ok() {
                SILENT.fetch_add(1, SeqCst);
                connections.push_back(fd);
            }
            if connections.len() > 100 {
                connections.pop_front();
            }
        }
    };
    let attached = || {
        let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
        let hello = Hello { abi_min: ABI as u16, abi_max: ABI as u16, interface_index: 0 }.encode();
        let answered = || {
            let fd = call(path);
            let _ = write(&fd, hello.as_slice(), &[udp.as_fd()]);
            let mut poll = [rustix::event::PollFd::new(&fd, rustix::event::PollFlags::IN)];
            let most = rustix::event::Timespec { tv_sec: 5, tv_nsec: 0 };
            let _ = rustix::event::poll(&mut poll, Some(&most));
            recv(&fd, &mut [0u8; 64][..], RecvFlags::empty()).is_ok_and(|(count, _)| count > 0)
        };
        // The flood has begun.
        eventually("a thousand connections", PATIENCE, || SILENT.load(SeqCst) > 1000);
        (0..3).for_each(|_| eventually("an answer", PATIENCE, answered));
    };
    let served = std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(silent);
        }
        let served = scope.spawn(attached).join();
        stop.store(true, SeqCst);
        served
    });
    served.unwrap();
}

/// Hello and a registration from a namespace of its own; then it waits for the end of its input.
const CALLER: &str = r#"
import socket, struct, sys
u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
print(int.from_bytes(u.getsockopt(socket.SOL_SOCKET, 71, 8), sys.byteorder), flush=True)
sys.stdin.readline()
s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
s.connect(sys.argv[1])
magic = b"KTSNRNG\0"
socket.send_fds(s, [magic + struct.pack("<HHHH", 1, 1, 1, 0)], [u.fileno()])
reply, fds, _, _ = socket.recv_fds(s, 64, 2)
assert len(fds) == 2, reply
socket.send_fds(s, [magic + struct.pack("<IIII", 3, 0, 1, 0)], [u.fileno()])
sys.stdin.read()
"#;

static LOCKED: AtomicUsize = AtomicUsize::new(0);

/// A socket whose lock is held, but never long enough to be taken for one that hangs.
fn examine_a_socket_that_is_locked_for_a_moment(fd: OwnedFd) -> Result<SocketFacts, NotASocket> {
    if rustix::net::sockopt::socket_broadcast(&fd) == Ok(true) {
        std::thread::sleep(Duration::from_millis(45));
        LOCKED.fetch_add(1, SeqCst);
    }
    examine(fd)
}

/// Fifteen clients of one namespace register such sockets without end; who comes from another one waits for none of these.
#[test]
fn locks_held_for_a_moment_hold_up_their_own_namespace_only() {
    let running = start_with(64, examine_a_socket_that_is_locked_for_a_moment);
    let mut caller = std::process::Command::new("unshare")
        .args(["-n", "python3", "-c", CALLER, running.path.to_str().unwrap()])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut says = std::io::BufReader::new(caller.stdout.take().unwrap()).lines();
    let netns_cookie = says.next().unwrap().unwrap().parse().unwrap();
    let theirs = ServedAttachment { index: AttachmentIndex(1), netns_cookie, ..running.attachment() };
    running.directory.serve(Arc::new(theirs));
    let locked = UdpSocket::bind("127.0.0.1:0").unwrap();
    locked.set_broadcast(true).unwrap();
    let hello = Hello { abi_min: ABI as u16, abi_max: ABI as u16, interface_index: 0 }.encode();
    let clients: Vec<OwnedFd> = (0..15).map(|_| running.connect()).collect();
    for fd in &clients {
        write(fd, hello.as_slice(), &[locked.as_fd()]).unwrap();
        for index in 0..16 {
            let _ = write(fd, &Register::new(index, 1).encode(), &[locked.as_fd()]);
        }
    }
    eventually("a locked one is examined", PATIENCE, || LOCKED.load(SeqCst) > 0);
    let before = LOCKED.load(SeqCst);
    let mut input = caller.stdin.take().unwrap();
    input.write_all(b"go\n").unwrap();
    let is_there = || {
        let known = running.directory.lock();
        known.clients.values().any(|c| c.attachment == AttachmentIndex(1) && !c.streams.is_empty())
    };
    eventually("its stream", PATIENCE, is_there);
    let waited_for = LOCKED.load(SeqCst) - before;
    assert!(waited_for < 64, "{waited_for} of theirs came first, of {}", 15 * 17);
    drop(input);
    assert!(caller.wait().unwrap().success());
}
