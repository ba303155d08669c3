// SPDX-License-Identifier: Apache-2.0
//! Debian's isochron, a sender of TSN test traffic: SO_TXTIME on packet and UDP sockets, transmit timestamps.
//!
//! In: pod A with the library. Out: cells `program/isochron_…`: its words are the kernel's, all its frames are KTSN's, and
//! with the emulated hardware capability its scheduler and software stamps arrive. Its hardware stamps never do: no
//! hardware here makes any.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Stdio;

use anyhow::ensure;
use ktsn_tests::faults::bed::within;
use ktsn_tests::faults::daemon::NAME;

use crate::languages::has;
use crate::report::Report;
use crate::world::{Mode, World};

/// Frames of one run.
const COUNT: u64 = 20;
/// Over Ethernet and over UDP.
const WAYS: [(&str, &str); 2] =
    [("l2", "-2 -d 02:00:00:00:99:01"), ("l4", "-4 -J 10.244.1.5 -d 02:00:00:00:99:01")];
/// Its own words with times as `T`, and its status. `$P` is the folder of programs, `$W` a fresh directory.
const SCRIPT: &str = "cd $W; coproc PEER { exec /usr/bin/python3 $P/isochron_peer.py; }; read -r ready <&${PEER[0]}
isochron send -i eth0 -C 127.0.0.1 -o -s 64 -c 0.05 -a 0.045 -p 6 -x -n $COUNT $ARGS 2>&1 | sed -E 's/[0-9]+\\.[0-9]{6,}/T/g'
echo ${PIPESTATUS[0]}; wait";

/// Runs the cells that contain `filter`.
pub(crate) fn run(
    world: &mut World,
    root: &Path,
    filter: &str,
    recorded: &mut BTreeMap<&'static str, Result<String, String>>,
    report: &mut Report,
) {
    for (way, arguments) in WAYS {
        let cell = |world: &World, name: &str| world.cell(&format!("program/isochron_{way}/{name}"));
        let wanted: Vec<&str> = ["library", "daemon", "run", "stamps"]
            .into_iter()
            .filter(|name| cell(world, name).contains(filter))
            .collect();
        if wanted.is_empty() {
            continue;
        }
        if !has("isochron") {
            for name in wanted {
                report.skip(&cell(world, name), "isochron_missing", "no isochron on this machine");
            }
            continue;
        }
        let unstamped = format!("{arguments} -T");
        let kernel = recorded.entry(way).or_insert_with(|| {
            one(world, root, Mode::Kernel, &unstamped, false).map_err(|error| format!("{error:#}"))
        });
        for name in wanted {
            let result = match name {
                "stamps" => stamped(world, root, arguments),
                "daemon" => same(world, root, Mode::Daemon, &unstamped, kernel),
                "run" => same(world, root, Mode::Run, &unstamped, kernel),
                _ => same(world, root, Mode::Library, &unstamped, kernel),
            };
            report.add(&cell(world, name), result.map_err(|error| format!("{error:#}")));
        }
    }
}

/// Without stamps: what it says is what it says on the kernel alone.
fn same(
    world: &mut World,
    root: &Path,
    mode: Mode,
    arguments: &str,
    kernel: &Result<String, String>,
) -> anyhow::Result<()> {
    let kernel = kernel.as_ref().map_err(|error| anyhow::anyhow!("on the kernel alone: {error}"))?;
    ensure!(kernel.ends_with("\n0\nexit status: 0"), "on the kernel alone: {kernel}");
    let before = if mode == Mode::Daemon { sent(world) } else { 0 };
    let seen = one(world, root, mode, arguments, false)?;
    ensure!(seen == *kernel, "{seen}\ninstead of\n{kernel}");
    let by_ktsn = if mode == Mode::Daemon { sent(world) - before } else { COUNT };
    ensure!(by_ktsn == COUNT, "KTSN sent {by_ktsn} frames of {COUNT}");
    Ok(())
}

/// With stamps, which it asks for only where it finds a hardware clock's modes: all but the hardware's arrive.
fn stamped(world: &mut World, root: &Path, arguments: &str) -> anyhow::Result<()> {
    let before = sent(world);
    let seen = one(world, root, Mode::Daemon, arguments, true)?;
    let told = seen.lines().filter(|line| line.ends_with("missing timestamps: hw, ")).count() as u64;
    let missing = seen.lines().filter(|line| line.contains("missing timestamps")).count() as u64;
    ensure!((told, missing) == (COUNT, COUNT), "scheduler and software stamps of all frames: {seen}");
    ensure!(seen.ends_with("\n0\nexit status: 0"), "{seen}");
    let by_ktsn = sent(world) - before;
    ensure!(by_ktsn == COUNT, "KTSN sent {by_ktsn} frames of {COUNT}");
    Ok(())
}

fn sent(world: &mut World) -> u64 {
    world.daemon().control().counters(NAME).sent
}

/// Output and exit status of one run.
fn one(
    world: &mut World,
    root: &Path,
    mode: Mode,
    arguments: &str,
    is_emulated: bool,
) -> anyhow::Result<String> {
    let place = ktsn_tests::hook::open_directory();
    let arguments_of = ["timeout", "--kill-after=1", "30", "bash", "-c", SCRIPT].map(str::to_owned);
    let mut command = world.command(&arguments_of, mode);
    command.stdin(Stdio::null());
    command.env("W", place.path()).env("P", root.join("tests/programs"));
    command.env("ARGS", arguments).env("COUNT", COUNT.to_string());
    if is_emulated {
        command.env("KTSN_EMULATE_HWTSTAMP", "1");
    }
    let pod = world.bed().pod_a.clone();
    let output = within(&pod, || command.output())?;
    let [said, errors] = [&output.stdout, &output.stderr].map(|octets| String::from_utf8_lossy(octets));
    // Other lines of `ktsn run` would say that it dropped frames or passed them to the kernel. It receives nothing that is periodic.
    let allowed = ["ktsn run: ktsnd: warning: ", "ktsn run: --receive expect: no arrival was expected: "];
    let errors: Vec<&str> = errors
        .split_inclusive('\n')
        .filter(|line| !allowed.iter().any(|begin| line.starts_with(begin)))
        .collect();
    Ok(format!("{said}{}{}", errors.concat(), output.status))
}
