// SPDX-License-Identifier: Apache-2.0
//! The network of guests: a bridge, a vhost-user socket, addresses, CPUs; and a run with an output that is not read.

use std::io::Read as _;
use std::process::{Child, Command, Stdio};

use ktsn_tests::cli::{err, out};

use super::{Cache, image, qemu_of, skip, wait_until_gone};

/// A network namespace with a bridge, removed with the value.
pub(super) struct Space(pub(super) String);

impl Space {
    pub(super) fn new() -> Self {
        let space = Self(format!("ktsn-test-vm-{}", std::process::id()));
        ip(&format!("netns add {}", space.0));
        ip(&format!("-n {} link add br0 type bridge", space.0));
        ip(&format!("-n {} link set br0 up", space.0));
        space
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        let _is_gone = Command::new("ip").args(["netns", "del", &self.0]).status();
    }
}

pub(super) fn ip(line: &str) -> String {
    let output = Command::new("ip").args(line.split(' ')).output().expect("ip starts");
    assert!(output.status.success(), "ip {line}: {}", err(&output));
    out(&output)
}

/// Waits for the program's line `ready`.
pub(super) fn wait_ready(child: &mut Child) {
    let mut line = [0; 6];
    child.stdout.as_mut().unwrap().read_exact(&mut line).expect("the program is ready");
    assert_eq!(&line, b"ready\n");
}

#[test]
fn two_guests_on_a_bridge_hear_each_other_and_their_devices_are_gone() {
    let image = match image() {
        Ok(image) => image,
        Err(reason) => return skip(reason),
    };
    let (cache, space) = (Cache::new(image, true), Space::new());
    let datapath = format!("bridge:br0@{}", space.0);
    let guest = |address: &str, program: &[&str]| {
        let mut run = cache.vm(&["run", "--accelerator", "tcg", "--datapath", &datapath]);
        run.args(["--address", address, "--queues", "2", "--pin", "0", "--"]).args(program);
        run.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let listen = ["ktsn", "listen", "5000", "--ready-fd", "1", "--count", "200", "--timeout", "30s"];
    let mut far = guest("10.0.0.3/24", &listen);
    wait_ready(&mut far);
    let allowed = std::fs::read_to_string(format!("/proc/{}/status", qemu_of(&far))).unwrap();
    assert!(allowed.contains("Cpus_allowed_list:\t0\n"), "{allowed}");
    let talk = ["ktsn", "talk", "10.0.0.3:5000", "--count", "200", "--period", "5ms", "--mode", "sleep"];
    let near = guest("10.0.0.2/24", &talk).wait_with_output().unwrap();
    assert!(near.status.success() && out(&near).contains("sent 200 of 200"), "{}{}", out(&near), err(&near));
    let far = far.wait_with_output().unwrap();
    assert!(out(&far).starts_with("received 200 datagrams, 0 duplicates, 0 reordered"), "{far:?}");
    assert!(err(&far).contains(&format!("datapath {datapath} with 2 queue(s)")), "{}", err(&far));
    assert!(!ip(&format!("-n {} -o link show", space.0)).contains("ktsn"));
    let refused = cache.run(&["--datapath", &format!("bridge:br1@{}", space.0), "--", "true"]);
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    assert!(err(&refused).contains("there is no device br1 in the namespace"), "{}", err(&refused));
    assert_eq!(cache.records(), 0);
}

#[test]
fn a_guest_without_its_switch_says_so_and_its_socket_is_removed() {
    let image = match image() {
        Ok(image) => image,
        Err(reason) => return skip(reason),
    };
    let cache = Cache::new(image, true);
    let socket = cache.0.path().join("switch.sock");
    let datapath = format!("vhost-user:{}", socket.display());
    let run = ["--datapath", &datapath, "--boot-timeout", "3s", "--", "true"];
    let output = cache.run(&run);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let expected = format!("no virtual switch has connected to {}", socket.display());
    assert!(err(&output).contains(&expected), "{}", err(&output));
    assert!(!socket.exists());
    // A killed run leaves it; `clean` finds it.
    let mut killed = cache.vm(&["run", "--accelerator", "tcg", "--datapath", &datapath, "--", "true"]);
    let mut killed = killed.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let qemu = qemu_of(&killed);
    let second = cache.run(&run);
    assert_eq!(second.status.code(), Some(2), "{second:?}");
    assert!(err(&second).contains("it exists: another guest"), "{}", err(&second));
    killed.kill().unwrap();
    killed.wait().unwrap();
    wait_until_gone(qemu);
    assert!(socket.exists());
    let cleaned = cache.vm(&["clean"]).output().unwrap();
    assert!(out(&cleaned).contains("sockets of killed runs: 1 removed"), "{cleaned:?}");
    assert!(!socket.exists());
    assert_eq!(cache.records(), 0);
}

#[test]
fn limits_hold_while_nothing_reads_the_output() {
    let image = match image() {
        Ok(image) => image,
        Err(reason) => return skip(reason),
    };
    let cache = Cache::new(image, true);
    let mut run = cache.vm(&["run", "--accelerator", "tcg", "--timeout", "2s", "--", "yes"]);
    let mut run = run.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // Its end closes this pipe; the other one stays full until then.
    let mut said = String::new();
    run.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(said.contains("its program did not end within 2s"), "{said}");
    let output = run.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(output.stdout.len() >= 4096 && output.stdout.starts_with(b"y\ny\n"), "{}", output.stdout.len());
    assert_eq!(cache.records(), 0);
}
