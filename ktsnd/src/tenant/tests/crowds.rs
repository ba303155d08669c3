// SPDX-License-Identifier: Apache-2.0
//! Many who hold the registrar up, each within what one may do: who comes in between is served.

use std::io::{BufRead as _, Write as _};

use super::*;
use crate::stalls::Stalls;

/// Processes that pass a socket of their namespace, which its program holds: one with SO_BROADCAST here.
const HOLDERS: &str = r#"
import os, socket, sys
held = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
held.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
print(int.from_bytes(held.getsockopt(socket.SOL_SOCKET, 71, 8), sys.byteorder), flush=True)
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

fn examine_a_held_datagram_socket(fd: OwnedFd) -> Result<SocketFacts, NotASocket> {
    if rustix::net::sockopt::socket_broadcast(&fd) == Ok(true) {
        std::thread::sleep(HELD);
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
    fn start(running: &Running, index: u16, processes: usize) -> Self {
        let mut program = std::process::Command::new("unshare")
            .args(["-n", "python3", "-c", HOLDERS, running.path.to_str().unwrap(), &processes.to_string()])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut says = std::io::BufReader::new(program.stdout.take().unwrap()).lines();
        let netns_cookie = says.next().unwrap().unwrap().parse().unwrap();
        let theirs = {
            let known = running.directory.lock();
            Served { index: AttachmentIndex(index), netns_cookie, ..known.served[0].clone() }
        };
        running.directory.serve(theirs);
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
    let running = start_with(8, examine_a_held_datagram_socket);
    let mut holders = Holders::start(&running, 1, 40);
    let began = Instant::now();
    holders.go();
    holders.end();
    assert_eq!(running.status(ABI as u16), Some(HelloStatus::Attached));
    assert!(began.elapsed() < HELD * 3 / 4, "{:?}", began.elapsed());
}

/// More namespaces together than it takes for all closers there are.
#[test]
fn ten_namespaces_together_hold_up_nobody_else() {
    let running = start_with(8, examine_a_held_datagram_socket);
    let mut all: Vec<Holders> = (1..=10).map(|index| Holders::start(&running, index, 5)).collect();
    let began = Instant::now();
    all.iter_mut().for_each(Holders::go);
    all.into_iter().for_each(Holders::end);
    assert_eq!(running.status(ABI as u16), Some(HelloStatus::Attached));
    assert!(began.elapsed() < HELD * 9 / 10, "{:?}", began.elapsed());
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
                connections.push_back(fd);
            }
            if connections.len() > 100 {
                connections.pop_front();
            }
        }
    };
    let attached = || {
        // They are at it.
        std::thread::sleep(Duration::from_millis(200));
        let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
        let hello = Hello { abi_min: ABI as u16, abi_max: ABI as u16, interface_index: 0 }.encode();
        [(); 3].map(|()| {
            let (stalls, began) = (Stalls::watched(), Instant::now());
            let mut took = Duration::MAX;
            while took == Duration::MAX && began.elapsed() < PATIENCE {
                let fd = call(path);
                let _ = write(&fd, hello.as_slice(), &[udp.as_fd()]);
                let mut poll = [rustix::event::PollFd::new(&fd, rustix::event::PollFlags::IN)];
                let most = rustix::event::Timespec { tv_sec: 5, tv_nsec: 0 };
                let _ = rustix::event::poll(&mut poll, Some(&most));
                if recv(&fd, &mut [0u8; 64][..], RecvFlags::empty()).is_ok_and(|(count, _)| count > 0) {
                    took = began.elapsed().saturating_sub(2 * stalls.lost());
                }
            }
            took
        })
    };
    let took = std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(silent);
        }
        let took = scope.spawn(attached).join();
        stop.store(true, SeqCst);
        took
    });
    let took = took.unwrap();
    assert!(took.iter().all(|took| *took < Duration::from_secs(2)), "{took:?}");
}
