// SPDX-License-Identifier: Apache-2.0
//! A QUIC server on tokio-quiche that paces by SO_TXTIME and sends by UDP_SEGMENT: what its client gets is all of it.
//!
//! In: the program of `tests/quic`, named by KTSN_TEST_QUIC. Out: cells `program/quic/…`. Building it takes many minutes (it
//! brings BoringSSL), so nothing here does.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use ktsn_tests::faults::bed::within;
use ktsn_tests::faults::daemon::NAME;
use ktsn_tests::hook::Running;

use crate::languages::must;
use crate::report::Report;
use crate::world::{Mode, Receive, World, lines};

/// Octets of the answer.
const OCTETS: u64 = 2_000_000;
/// Where pod A serves.
const SERVER: &str = "10.244.0.5:4433";
/// Datagrams of it that KTSN must have sent at least: QUIC's are 1,200 octets and more.
const DATAGRAMS_MIN: u64 = OCTETS / 1500 / 2;

/// Runs the cells that contain `filter`.
pub(crate) fn run(world: &mut World, filter: &str, report: &mut Report) {
    let program = std::env::var_os("KTSN_TEST_QUIC").map(PathBuf::from);
    for mode in [Mode::Kernel, Mode::Library, Mode::Daemon] {
        // The kernel alone is run once.
        if mode == Mode::Kernel && world.receive() == Receive::Expect {
            continue;
        }
        let cell = world.cell(&format!("program/quic/{}", mode.name()));
        if !cell.contains(filter) {
            continue;
        }
        match &program {
            Some(program) => {
                report.add(&cell, one(world, program, mode).map_err(|error| format!("{error:#}")));
            }
            None => report.skip(&cell, "quic_not_built", "KTSN_TEST_QUIC names no program"),
        }
    }
}

fn one(world: &mut World, program: &Path, mode: Mode) -> anyhow::Result<()> {
    let place = ktsn_tests::hook::open_directory();
    let at = |name: &str| place.path().join(name).display().to_string();
    let (cert, key) = (at("cert"), at("key"));
    let args =
        ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost", "-batch"];
    must(Command::new("openssl").args(args).args(["-keyout", &key, "-out", &cert]))?;
    let mut sent = || if mode == Mode::Daemon { world.daemon().control().counters(NAME).sent } else { 0 };
    let before = sent();
    let mut server = Command::new(program);
    server.args(["server", &cert, &key, &OCTETS.to_string(), SERVER]).stdin(Stdio::null());
    server.stdout(Stdio::piped());
    world.prepare(&mut server, mode);
    let (pod_a, pod_b) = (world.bed().pod_a.clone(), world.bed().pod_b.clone());
    let mut server = Running(within(&pod_a, || server.spawn())?);
    let said = lines(server.0.stdout.take().context("stdout")?);
    ensure!(
        said.recv_timeout(Duration::from_secs(10)).is_ok_and(|line| line == "ready"),
        "it does not start"
    );
    let mut client = Command::new("timeout");
    client.args(["30"]).arg(program).args(["client", SERVER]).stdin(Stdio::null());
    let output = within(&pod_b, || client.output())?;
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success() && text == format!("octets {OCTETS}\n"),
        "{}: {text}{errors}",
        output.status
    );
    if mode == Mode::Daemon {
        let counters = world.daemon().control().counters(NAME);
        let by_ktsn = counters.sent - before;
        ensure!(by_ktsn >= DATAGRAMS_MIN, "KTSN sent {by_ktsn} datagrams: {counters:?}");
    }
    Ok(())
}
