// SPDX-License-Identifier: BSD-2-Clause
//! A link to DPDK's own backend: testpmd sends each frame back. `make test-dpdk`.

mod dpdk;

use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use dpdk::{Role, Testpmd, is_installed};
use ktsn_eventually::eventually;
use ktsn_virtio_net::{Link, Options, Server, connect};

/// More than any step takes, on a machine under load.
const LONG: Duration = Duration::from_secs(100);
const COUNT: u64 = 20_000;
/// Frames under way at most: fewer than receive buffers are posted, so none is dropped for want of one.
const WINDOW: u64 = 96;

fn options(queues: u16) -> Options {
    Options { queues, limit: Duration::from_secs(20), ..Options::default() }
}

fn frame(number: u64, octets: usize) -> Vec<u8> {
    let mut frame = vec![number as u8; octets];
    frame[..14].copy_from_slice(&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x88, 0xb5]);
    frame[14..22].copy_from_slice(&number.to_be_bytes());
    frame
}

fn octets(number: u64) -> usize {
    60 + (number as usize * 7) % 1459
}

/// Sends `count` frames and takes the echoes. Returns how many came, each whole and in order.
fn echo(link: &mut Link, queue: u16, count: u64) -> u64 {
    let (mut sent, mut received, mut heard) = (0, 0_u64, Instant::now());
    while received < count && heard.elapsed() < Duration::from_secs(20) {
        while sent < count && sent - received < WINDOW && link.send(queue, &frame(sent, octets(sent))).is_ok()
        {
            sent += 1;
        }
        let taken = link.receive(queue, &mut |echo| {
            assert_eq!(echo, frame(received, octets(received)), "frame {received}");
            received += 1;
        });
        match taken.expect("testpmd keeps the rules") {
            0 => sleep(Duration::from_micros(20)),
            _ => heard = Instant::now(),
        }
    }
    received
}

fn skips() -> bool {
    if is_installed() {
        return false;
    }
    println!("SKIP testpmd_missing: dpdk-testpmd (Debian: dpdk-dev) is not installed");
    true
}

fn attach(server: &Server) -> Link {
    eventually("a connection", LONG, || server.accept().unwrap_or_else(|error| panic!("{error}")))
}

fn log(folder: &Path) -> String {
    let logs = std::fs::read_dir(folder).expect("folder").filter_map(Result::ok);
    logs.filter_map(|entry| std::fs::read_to_string(entry.path()).ok()).collect()
}

#[test]
fn twenty_thousand_frames_come_back_on_each_queue_and_none_is_lost() {
    if skips() {
        return;
    }
    let folder = tempfile::tempdir().expect("folder");
    let socket = folder.path().join("vhost.sock");
    let _testpmd = Testpmd::start(folder.path(), &socket, Role::Listens, 2);
    let mut link = eventually("testpmd listens", LONG, || connect(&socket, &options(2)).ok());
    for queue in 0..2 {
        // A ring's first frames may be dropped while testpmd starts its port.
        eventually("an echo", LONG, || echo(&mut link, queue, 1) == 1);
        assert_eq!(echo(&mut link, queue, COUNT), COUNT, "{}", log(folder.path()));
    }
    assert!(!link.is_hung_up());
    assert_eq!(link.stop(), 0);
}

#[test]
fn testpmd_killed_under_traffic_is_seen_and_the_next_one_is_served() {
    if skips() {
        return;
    }
    let folder = tempfile::tempdir().expect("folder");
    let socket = folder.path().join("vhost.sock");
    let server = Server::listen(&socket, &options(1)).expect("listening");
    for round in 0..3 {
        let mut testpmd = Testpmd::start(folder.path(), &socket, Role::Connects, 1);
        let mut link = attach(&server);
        eventually("an echo", LONG, || echo(&mut link, 0, 1) == 1);
        assert_eq!(echo(&mut link, 0, 2_000), 2_000, "round {round}: {}", log(folder.path()));
        let mut sent = 0;
        let mut killed = false;
        // Until the ring is full: nothing takes from it any more.
        while link.send(0, &frame(sent, 60)).is_ok() || !killed {
            sent += 1;
            let _echoes = link.receive(0, &mut |_| ());
            if sent == 5_000 {
                testpmd.kill();
                killed = true;
            }
        }
        eventually("the connection ends", LONG, || link.is_hung_up());
        let lost = link.stop();
        println!("round {round}: {sent} frames tried, {lost} in the ring when testpmd was killed");
        assert_eq!(lost, 256, "a full ring");
    }
}
