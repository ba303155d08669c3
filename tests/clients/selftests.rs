// SPDX-License-Identifier: Apache-2.0
//! The kernel's own selftests of SO_TXTIME, control messages and transmit timestamps, from Debian's
//! `linux-source-6.1`, which is fetched when they run.
//!
//! In: Debian's archive (or what an earlier run kept under `out/`). Out: one cell for each stream or argument list.
//! so_txtime has its own tolerance (4 ms, on the receiver): it runs under the measurement lock, with ktsnd's worker
//! in real time.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, ensure};
use ktsn_tests::faults::bed::{POD_A, POD_B, POD_B6, within};
use ktsn_tests::hook::Running;

use crate::languages::must;
use crate::report::Report;
use crate::world::{Mode, Receive, World, lines};

const POD_A6: &str = "fd10:244:0:0::5";
const FOLDER: &str = "linux-source-6.1/tools/testing/selftests";
const PROGRAMS: [&str; 3] = ["so_txtime", "cmsg_sender", "txtimestamp"];
/// Runs of a stream whose receiver said "exceeds variance": other people's load, not an answer.
const ATTEMPTS: usize = 4;

/// The sources, from the cache or Debian's archive.
fn fetch(cache: &Path) -> anyhow::Result<PathBuf> {
    let folder = cache.join(FOLDER);
    if PROGRAMS.iter().all(|name| folder.join(format!("net/{name}.c")).is_file()) {
        return Ok(folder);
    }
    std::fs::create_dir_all(cache)?;
    let download = || must(Command::new("apt-get").args(["download", "linux-source-6.1"]).current_dir(cache));
    if download().is_err() {
        must(Command::new("apt-get").arg("update"))?;
        download()?;
    }
    let wanted = PROGRAMS.map(|name| format!("{FOLDER}/net/{name}.c")).join(" ");
    let unpack = format!(
        "set -e -o pipefail; dpkg-deb --fsys-tarfile linux-source-6.1_*.deb | \
         tar -xO ./usr/src/linux-source-6.1.tar.xz | tar -xJ {FOLDER}/kselftest.h {wanted}; \
         rm linux-source-6.1_*.deb"
    );
    must(Command::new("bash").args(["-c", &unpack]).current_dir(cache))?;
    Ok(folder)
}

/// What the kernel alone showed of a program with these arguments: status and output.
pub(crate) type Recorded = BTreeMap<String, (String, String)>;

/// The programs, compiled.
pub(crate) fn build(root: &Path) -> anyhow::Result<PathBuf> {
    let cache = &root.join("out/cache");
    let folder = fetch(cache)?;
    for name in PROGRAMS {
        let source = folder.join(format!("net/{name}.c"));
        // Their own warnings are not ours.
        must(Command::new("gcc").args(["-O1", "-w", "-o"]).arg(cache.join(name)).arg(source))?;
    }
    Ok(cache.to_owned())
}

/// Runs all of them. `programs` is where [`build`] has left them, or why it did not.
///
/// # Errors
/// When the testbed cannot be made.
pub(crate) fn run(
    world: &mut World,
    (root, programs): (&Path, &anyhow::Result<PathBuf>),
    filter: &str,
    recorded: &mut Recorded,
    report: &mut Report,
) -> anyhow::Result<()> {
    let programs = match programs {
        Ok(programs) => programs,
        Err(error) => {
            report.skip(&world.cell("selftest/all"), "selftests_not_fetched", &format!("{error:#}"));
            return Ok(());
        }
    };
    so_txtime(world, &programs.join("so_txtime"), &root.join("out"), filter, report)?;
    if world.receive() == Receive::Kernel {
        prepare_marks(world);
    }
    compare_all(world, (&programs.join("cmsg_sender"), &cmsg_arguments()), filter, recorded, report);
    cmsg_time(world, &programs.join("cmsg_sender"), filter, report);
    compare_all(world, (&programs.join("txtimestamp"), &stamp_arguments()), filter, recorded, report);
    Ok(())
}

/// A stream of so_txtime.sh.
#[derive(Clone, Copy)]
struct Stream {
    clock: &'static str,
    sent: &'static str,
    received: &'static str,
    /// Whether the script expects the receiver to succeed.
    arrives: bool,
}

const fn stream(clock: &'static str, sent: &'static str, received: &'static str, arrives: bool) -> Stream {
    Stream { clock, sent, received, arrives }
}

/// All of the script's, for both families.
const STREAMS: [Stream; 11] = [
    stream("mono", "a,-1", "a,-1", true),
    stream("mono", "a,0", "a,0", true),
    stream("mono", "a,10", "a,10", true),
    stream("mono", "a,10,b,20", "a,10,b,20", true),
    stream("mono", "a,20,b,10", "b,20,a,20", true),
    // What docs/txtime.md says of that stream: KTSN sends b at its own time.
    stream("mono", "a,20,b,10", "b,10,a,20", true),
    stream("tai", "a,-1", "a,-1", false),
    stream("tai", "a,0", "a,0", false),
    stream("tai", "a,10", "a,10", true),
    stream("tai", "a,10,b,20", "a,10,b,20", true),
    stream("tai", "a,20,b,10", "b,10,a,20", true),
];

fn so_txtime(
    world: &mut World,
    program: &Path,
    out: &Path,
    filter: &str,
    report: &mut Report,
) -> anyhow::Result<()> {
    let cells: Vec<(Stream, &str, String)> = STREAMS
        .into_iter()
        .flat_map(|stream| ["4", "6"].map(|family| (stream, family)))
        .map(|(stream, family)| {
            let name = format!(
                "selftest/so_txtime/v{family} {} {}{}",
                stream.clock,
                stream.sent,
                if stream.sent == stream.received {
                    String::new()
                } else {
                    format!(" as {}", stream.received)
                }
            );
            (stream, family, world.cell(&name))
        })
        .filter(|(_, _, name)| name.contains(filter))
        .collect();
    if cells.is_empty() {
        return Ok(());
    }
    let lock = std::fs::File::create(out.join(".measure.lock"))?;
    lock.lock()?;
    world.restart_in_real_time();
    let mut alone = 0;
    let mut runs = 0;
    for (stream, family, name) in cells {
        // This kernel has neither fq nor etf: recorded, no verdict.
        if world.receive() == Receive::Kernel {
            alone += usize::from(once(world, program, Mode::Kernel, stream, family)?.is_ok());
        }
        let mut result = Ok(());
        for _ in 0..ATTEMPTS {
            runs += 1;
            result = once(world, program, Mode::Daemon, stream, family)?;
            if result.as_ref().err().is_none_or(|said| !said.contains("exceeds variance")) {
                break;
            }
        }
        report.add(&name, result);
    }
    if world.receive() == Receive::Kernel {
        report.fact("so_txtime_streams_passing_on_this_kernel_alone", alone);
        report.fact("so_txtime_runs", runs);
    }
    world.stop_daemon();
    Ok(())
}

/// One stream: the receiver's verdict, as the script takes it, and the sender's success.
fn once(
    world: &mut World,
    program: &Path,
    mode: Mode,
    stream: Stream,
    family: &str,
) -> anyhow::Result<Result<(), String>> {
    let start = SystemTime::now().duration_since(UNIX_EPOCH)? + Duration::from_millis(200);
    let (from, to) = if family == "4" { (POD_A, POD_B) } else { (POD_A6, POD_B6) };
    let command = |payload: &str| {
        let mut command = Command::new(program);
        command.arg(format!("-{family}")).args(["-c", stream.clock, "-S", from, "-D", to]);
        command.args(["-t", &start.as_nanos().to_string(), payload]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        command
    };
    let mut receiver = command(stream.received);
    receiver.arg("-r");
    let mut sender = command(stream.sent);
    world.prepare(&mut sender, mode);
    let (pod_a, pod_b) = (world.bed().pod_a.clone(), world.bed().pod_b.clone());
    let mut receiver = Running(within(&pod_b, || receiver.spawn()).context("so_txtime -r")?);
    let mut sender = Running(within(&pod_a, || sender.spawn()).context("so_txtime")?);
    let sent = sender.0.wait()?;
    let arrived = receiver.0.wait()?;
    let mut said = Vec::new();
    for child in [&mut sender, &mut receiver] {
        said.extend(lines(child.0.stderr.take().context("stderr")?).iter().filter(|line| !line.is_empty()));
    }
    let is_as_expected = sent.success() && arrived.success() == stream.arrives;
    Ok(if is_as_expected {
        Ok(())
    } else {
        Err(format!("sender {sent}, receiver {arrived}: {}", said.join("; ")))
    })
}

/// A route that a mark forbids, as in cmsg_so_mark.sh, and ICMP sockets for all.
fn prepare_marks(world: &World) {
    let pod = &world.bed().pod_a;
    world.bed().run(&format!(
        "ip netns exec {pod} sysctl -qw net.ipv4.ping_group_range='0 2147483647'
ip -n {pod} rule add fwmark 1000 lookup 300
ip -6 -n {pod} rule add fwmark 1000 lookup 300
ip -n {pod} route add prohibit default table 300
ip -6 -n {pod} route add prohibit default table 300"
    ));
}

fn cmsg_arguments() -> Vec<String> {
    let mut all = Vec::new();
    for (family, to) in [("-4", POD_B), ("-6", POD_B6)] {
        for protocol in ["u", "i", "r"] {
            for more in [
                "",
                "-t",
                "-d 2000",
                "-t -d 2000",
                "-M 1001",
                "-m 1001",
                "-m 1000",
                "-M 1000 -m 1001",
                "-M 1001 -m 1000 -s",
                "-S 1000",
            ] {
                all.push(format!("{family} -p {protocol} {more} {to} 1234"));
            }
            if family == "-6" {
                for more in [
                    "-f 1",
                    "-F 1",
                    "-c 8",
                    "-C 8 -d 2000",
                    "-l 9",
                    "-L 9 -d 2000",
                    "-H h",
                    "-H d",
                    "-H r",
                    "-c 8 -d 2000 -t",
                ] {
                    all.push(format!("{family} -p {protocol} {more} {to} 1234"));
                }
            }
        }
    }
    all
}

/// Its own tolerance is 500 µs, of which a busy machine knows nothing: times are left out here.
fn stamp_arguments() -> Vec<String> {
    let mut all = Vec::new();
    for local in ["-4 -L 127.0.0.1", "-6 -L ::1"] {
        for protocol in ["", "-u", "-r", "-R", "-P"] {
            all.push(format!("{protocol} -t 2000000 -c 2 {local}"));
        }
        for more in ["-u -C", "-u -n", "-u -e", "-u -E", "-u -I", "-u -x -l 40", "-C", "-P -n"] {
            all.push(format!("{more} -t 2000000 -c 2 {local}"));
        }
    }
    all
}

/// What a program prints, times and other numbers of this run aside.
fn timeless(text: &str) -> String {
    let mut out = String::new();
    for line in text.lines().filter(|line| !line.starts_with("server port")) {
        let mut digits = false;
        // Addresses and checksums are in a payload's octets: they are written in hexadecimal.
        let is_payload = line.starts_with("payload: ") && line.len() > 40;
        for c in line.chars() {
            let is_digit = if is_payload { c.is_ascii_hexdigit() } else { c.is_ascii_digit() };
            if !is_digit {
                out.push(c);
            } else if !digits {
                out.push('N');
            }
            digits = is_digit;
        }
        out.push('\n');
    }
    out
}

fn output(
    world: &mut World,
    program: &Path,
    arguments: &str,
    mode: Mode,
) -> anyhow::Result<(String, String)> {
    let mut command = Command::new(program);
    command.args(arguments.split_whitespace()).stdin(Stdio::null());
    world.prepare(&mut command, mode);
    let pod = world.bed().pod_a.clone();
    let output = within(&pod, || command.output())?;
    let text =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    Ok((output.status.to_string(), text))
}

fn compare_all(
    world: &mut World,
    (program, all): (&Path, &[String]),
    filter: &str,
    recorded: &mut Recorded,
    report: &mut Report,
) {
    let name = program.file_name().and_then(std::ffi::OsStr::to_str).unwrap_or_default();
    for arguments in all {
        let words: Vec<&str> = arguments.split_whitespace().collect();
        let name = format!("selftest/{name}/{}", words.join(" "));
        let cell = world.cell(&name);
        if !cell.contains(filter) {
            continue;
        }
        let mut both = |mode| -> anyhow::Result<(String, String)> {
            let (status, text) = output(world, program, arguments, mode)?;
            Ok((status, timeless(&text)))
        };
        let kernel = recorded.get(&name).cloned().map_or_else(|| both(Mode::Kernel), Ok);
        let result = kernel.and_then(|kernel| {
            recorded.insert(name, kernel.clone());
            let library = both(Mode::Library)?;
            let daemon = both(Mode::Daemon)?;
            ensure!(library == kernel, "without a daemon {library:?} instead of {kernel:?}");
            ensure!(daemon == kernel, "with a daemon {daemon:?} instead of {kernel:?}");
            Ok(())
        });
        report.add(&cell, result.map_err(|error| error.to_string()));
    }
}

/// What cmsg_time.sh asks of a kernel with fq: SND not before the transmit time, which this kernel alone cannot do.
fn cmsg_time(world: &mut World, program: &Path, filter: &str, report: &mut Report) {
    for (family, to) in [("-4", POD_B), ("-6", POD_B6)] {
        let cell = world.cell(&format!("selftest/cmsg_time/UDP{family}"));
        if !cell.contains(filter) {
            continue;
        }
        let arguments = format!("{family} -p u {to} 1234 -t -d 200000");
        let result = output(world, program, &arguments, Mode::Daemon).and_then(|(status, text)| {
            let micros = |what: &str| -> Option<i64> {
                let line = text.lines().find(|line| line.trim_start().starts_with(what))?;
                line.rsplit(' ').next()?.trim_end_matches("us").parse().ok()
            };
            ensure!(status == "exit status: 0", "{status}: {text}");
            let (sched, snd) = (micros("SCHED").context(text.clone())?, micros("SND").context(text.clone())?);
            ensure!(snd > 200_000, "SND before the transmit time: {text}");
            ensure!(snd - sched > 50_000, "SCHED is not before the waiting: {text}");
            Ok(())
        });
        report.add(&cell, result.map_err(|error| error.to_string()));
    }
}
