// SPDX-License-Identifier: Apache-2.0
//! The file itself, and programs that have nothing to do with it.

use std::process::{Command, Output};

use ktsn_tests::hook::{self, LIBCS, Libc};
use ktsn_tests::peer::{Behaviour, Peer};

fn tool(name: &str, arguments: &[&str]) -> String {
    let output = Command::new(name).args(arguments).arg(hook::library()).output().expect(name);
    assert!(output.status.success());
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn it_needs_no_library_and_asks_for_two_symbols() {
    assert!(!tool("readelf", &["-d"]).contains("NEEDED"));
    let mut asked = Vec::new();
    let mut exported = Vec::new();
    for line in tool("nm", &["-D"]).lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["U" | "w", name] => asked.push(name.to_owned()),
            [_, "T", name] => exported.push(name.to_owned()),
            _ => panic!("{line}"),
        }
    }
    asked.sort();
    exported.sort();
    assert_eq!(asked, ["__errno_location", "dlsym"]);
    let hooks = [
        "__poll_chk",
        "__ppoll_chk",
        "__read_chk",
        "__recv_chk",
        "__recvfrom_chk",
        "bind",
        "close",
        "close_range",
        "closefrom",
        "connect",
        "dup",
        "dup2",
        "dup3",
        "epoll_ctl",
        "epoll_pwait",
        "epoll_pwait2",
        "epoll_wait",
        "fcntl",
        "fcntl64",
        "fork",
        "getsockopt",
        "ioctl",
        "poll",
        "ppoll",
        "pselect",
        "read",
        "readv",
        "recv",
        "recvfrom",
        "recvmmsg",
        "recvmsg",
        "select",
        "sendmmsg",
        "sendmsg",
        "setsockopt",
        "socket",
    ];
    assert_eq!(exported, hooks);
}

/// It asks for no allocator, lock, output or thread function (above), and no instruction in it can panic.
#[test]
fn it_is_small_and_cannot_panic() {
    let octets = std::fs::metadata(hook::library()).expect("library").len();
    // The way of the usual datagram is one function, inlined from the call to its slot: that is a tenth of it. A third is what
    // waits for arrivals, with its predictor.
    assert!(octets < 272 * 1024, "{octets} octets");
    let symbols = tool("nm", &["-C"]);
    let panics: Vec<&str> =
        symbols.lines().filter(|line| line.contains("panic") || line.contains("fail")).collect();
    assert!(symbols.contains(" T sendmsg") && panics.is_empty(), "{panics:?}");
}

fn run(command: &mut Command) -> Output {
    command.env("LC_ALL", "C").output().expect("program")
}

#[test]
fn ordinary_programs_behave_the_same() {
    let run_dir = hook::open_directory();
    let programs: [(&str, &[&str]); 7] = [
        ("true", &[]),
        ("false", &[]),
        ("ls", &["-la", "/usr"]),
        ("ls", &["/nonexistent"]),
        (
            "python3",
            &[
                "-c",
                "import socket,os;s=socket.socket(2,2);s.bind(('127.0.0.1',0));t=os.dup(s.fileno());print(s.family,s.sendto(b'x',s.getsockname()),s.recv(9));os.close(t)",
            ],
        ),
        ("curl", &["--version"]),
        ("bash", &["-c", "exec 9>/dev/null; echo a | cat | wc -c; ( exit 3 ); echo $?"]),
    ];
    for with_peer in [false, true] {
        let _peer = with_peer.then(|| Peer::start(run_dir.path(), Behaviour::default()));
        for (program, arguments) in programs {
            let plain = run(Command::new(program).args(arguments));
            let hooked = run(hook::hooked(program, run_dir.path()).args(arguments));
            assert_eq!(hooked, plain, "{program} {arguments:?}");
        }
    }
}

/// Whatever is wrong with a call is the kernel's to say: 500 odd calls, the same answers.
#[test]
fn garbage_gets_the_kernels_answers() {
    let run_dir = hook::open_directory();
    let receiver = std::net::UdpSocket::bind("127.0.0.1:0").expect("receiver");
    let port = receiver.local_addr().expect("address").port();
    let plain = run(&mut hook::unhooked(Libc::Gnu, "garbage", port));
    let lines = String::from_utf8_lossy(&plain.stdout).lines().count();
    assert!(plain.status.success() && lines > 250, "{lines} {plain:?}");
    let absent = run(&mut hook::scenario(Libc::Gnu, run_dir.path(), "garbage", port));
    assert_eq!(String::from_utf8_lossy(&absent.stdout), String::from_utf8_lossy(&plain.stdout));
    let peer = Peer::start(run_dir.path(), Behaviour::default());
    let attached = run(&mut hook::scenario(Libc::Gnu, run_dir.path(), "garbage", port));
    assert_eq!(String::from_utf8_lossy(&attached.stdout), String::from_utf8_lossy(&plain.stdout));
    assert_eq!(peer.events().clients, 1);
}

/// Without a daemon a timed send is the kernel's, and one line says where ktsnd was looked for, what becomes of the sends, and what
/// to do; `KTSN_LOG=off` hides it. With `KTSN_POLICY=strict` the send fails instead, and the line says so.
#[test]
fn without_a_daemon() {
    let run_dir = hook::open_directory();
    for libc in LIBCS {
        let receiver = std::net::UdpSocket::bind("127.0.0.1:0").expect("receiver");
        receiver.set_read_timeout(Some(std::time::Duration::from_secs(20))).expect("timeout");
        let port = receiver.local_addr().expect("address").port();
        let stream = |policy: &str, log: &str| {
            let mut command = hook::scenario(libc, run_dir.path(), "stream 3 100", port);
            let command = command.env("KTSN_POLICY", policy).env("KTSN_LOG", log);
            let output = run(command);
            (hook::values(&output)["failed"], String::from_utf8_lossy(&output.stderr).into_owned())
        };
        let (failed, said) = stream("kernel", "warn");
        assert_eq!(failed, 0);
        assert_eq!(said.lines().count(), 1, "{said}");
        let socket = run_dir.path().join("client/ktsn.sock").display().to_string();
        assert!(
            said.starts_with(&format!("ktsn: no ktsnd at {socket}: SO_TXTIME is left to the kernel. ")),
            "{said}"
        );
        assert!(said.contains("Start ktsnd"), "{said}");
        let mut datagram = [0; 16];
        for index in 0..3 {
            let octets = receiver.recv(&mut datagram).expect("datagram");
            assert_eq!(&datagram[..octets], format!("s{index}").as_bytes());
        }
        assert_eq!(stream("kernel", "off"), (0, String::new()));
        assert_eq!(stream("strict", "off"), (3, String::new()));
        let (failed, said) = stream("strict", "warn");
        let effect =
            format!("ktsn: no ktsnd at {socket}: timed sends fail with ENETDOWN (KTSN_POLICY=strict). ");
        assert_eq!((failed, said.lines().count()), (3, 1), "{said}");
        assert!(said.starts_with(&effect), "{said}");
    }
}
