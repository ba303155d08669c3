// SPDX-License-Identifier: Apache-2.0
//! What attachments that come and go cost: the stream of another attachment, whoever attaches, and whoever asks.
//!
//! In: which question, a ktsnd that was built for release (several, which take turns). Out: figures on standard output, one line a turn. It holds the
//! measuring lock and needs root. Frames lost or out of order end it with status 1; no time does.
//!
//! ```text
//!   lateness   a stream of 1 kHz, by turns alone and while all pods attach and detach without a pause
//!   attach     how long one attachment takes beside 0, 50, 200, 500 others
//!   storm      all pods attach and detach, 29 rounds without a pause; then the gates are asked for
//! ```
//! `cargo run --release -p ktsn-tests --example churn -- lateness target/release/ktsnd`

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use ktsn_lab::daemon::{Counters, Daemon as Asked};
use ktsn_lab::exclusive::{MeasureLock, wait_until_quiet};
use ktsn_tests::faults::Tap;
use ktsn_tests::faults::bed::{Bed, POD_B, UPLINK};
use ktsn_tests::faults::control::Control;
use ktsn_tests::faults::crowd::Crowd;
use ktsn_tests::faults::daemon::{Attachment, Daemon};
use ktsn_tests::faults::talker::Talker;

const LOCK: &str = "out/.measure.lock";
/// Pods that come and go.
const PODS: usize = 50;
/// Frames of a turn, one a millisecond.
const FRAMES: u64 = 5000;
const TURNS: u32 = 5;
/// How many others there are when an attachment is timed.
const OTHERS: [usize; 4] = [0, 50, 200, 500];
/// Attachments that are timed at each of these.
const TIMED: usize = 21;
/// After each: tables of many attachments are made by then.
const PAUSE: Duration = Duration::from_millis(300);
const STORM_ROUNDS: u32 = 29;
const SOON: Duration = Duration::from_secs(10);

/// Its worker on a CPU of its own, in real time; frames are sent however late. Its files lie in memory, as on most machines.
fn start(bed: &Bed, ktsnd: &Path, files: &Path) -> Daemon {
    let of = Attachment { name: "lab".to_owned(), ..Attachment::pod_a(bed) };
    let port = format!("[[port]]\ndevice = \"{UPLINK}\"\ncpu = 1\npriority = 50\n");
    let text = format!("{port}{}", of.toml());
    let mut daemon = Daemon::prepare(&bed.host_a, &text).of(ktsnd).at(files);
    daemon.spawn();
    daemon
}

/// Attaches each, then detaches each; how long each of both took.
fn round(control: &mut Control, pods: &Crowd) -> anyhow::Result<[Vec<Duration>; 2]> {
    let mut spans = [Vec::new(), Vec::new()];
    for index in 0..pods.names().len() {
        spans[0].push(attach(control, pods, index)?);
    }
    for index in 0..pods.names().len() {
        spans[1].push(detach(control, index)?);
    }
    Ok(spans)
}

fn attach(control: &mut Control, pods: &Crowd, index: usize) -> anyhow::Result<Duration> {
    let began = Instant::now();
    control.attach(pods.attachment(index)).context("attach")?;
    Ok(began.elapsed())
}

fn detach(control: &mut Control, index: usize) -> anyhow::Result<Duration> {
    let began = Instant::now();
    control.detach(&format!("crowd-{index}")).context("detach")?;
    Ok(began.elapsed())
}

/// The quantile of spans by nearest rank, milliseconds.
fn at(spans: &mut [Duration], quantile: f64) -> f64 {
    spans.sort_unstable();
    let rank = (spans.len() as f64 * quantile).ceil().max(1.0) as usize - 1;
    spans.get(rank).map_or(0.0, Duration::as_secs_f64) * 1e3
}

/// One turn; whether all of its frames arrived once and in order, none early.
fn turn(bed: &Bed, daemon: &Daemon, pods: &Crowd, sender: u32, churns: bool) -> anyhow::Result<bool> {
    let asked = Asked::elsewhere(daemon.run_dir(), daemon.pid())?;
    let tap = Tap::open(&bed.host_b, UPLINK);
    let before = asked.statistics()?;
    let keys = format!("count={FRAMES} period_us=1000 lead_us=5000 priority=6");
    let talker = Talker::start(daemon, &bed.pod_a, POD_B, sender, &keys);
    let over = AtomicBool::new(false);
    let churned = std::thread::scope(|scope| {
        let churn = scope.spawn(|| {
            let mut all = [Vec::new(), Vec::new()];
            let mut control = daemon.control();
            while churns && !over.load(Relaxed) {
                let spans = round(&mut control, pods)?;
                all.iter_mut().zip(spans).for_each(|(all, spans)| all.extend(spans));
            }
            anyhow::Ok(all)
        });
        let _ = talker.finish();
        over.store(true, Relaxed);
        churn.join().map_err(|_| anyhow::anyhow!("attaching panicked"))?
    });
    let arrived = tap.wait(sender, FRAMES as usize, SOON);
    let counted = asked.statistics()?.since(&before);
    let mut churned = churned?;
    let is_whole = arrived.iter().map(|arrival| arrival.sequence).eq(0..FRAMES);
    let early = arrived.iter().filter(|arrival| arrival.after_ns < 0).count();
    println!(
        "{} arrived {} in order {is_whole} early {early} {} attachments {} attach p50 {:.2} p99 {:.2} ms detach p50 {:.2} ms",
        if churns { "churn" } else { "alone" },
        arrived.len(),
        told(&counted),
        churned[0].len(),
        at(&mut churned[0], 0.5),
        at(&mut churned[0], 0.99),
        at(&mut churned[1], 0.5),
    );
    Ok(is_whole && early == 0)
}

fn told(counted: &Counters) -> String {
    let errors = counted.transmit_figures().unwrap_or_default().statistics;
    format!(
        "transmit error p50 {} p90 {} p99 {} p99.9 {} max {} ns overrun {} late {} dropped {:?}",
        errors.p50,
        errors.p90,
        errors.p99,
        errors.p99_9,
        errors.max,
        counted.attachment.overrun,
        counted.attachment.late,
        counted.attachment.dropped
    )
}

/// Several daemons take turns, so that they can be compared on a machine that is not always equally quiet.
fn lateness(bed: &Bed, ktsnds: &[PathBuf], files: &Path) -> anyhow::Result<bool> {
    let pods = Crowd::new(bed, PODS);
    let (mut is_whole, mut sender) = (true, 0);
    for _ in 0..TURNS {
        for (number, ktsnd) in ktsnds.iter().enumerate() {
            let daemon = start(bed, ktsnd, &files.join(number.to_string()));
            for churns in [false, true] {
                let _ = wait_until_quiet(|_| ())?;
                sender += 1;
                print!("{}: ", ktsnd.display());
                is_whole &= turn(bed, &daemon, &pods, sender, churns)?;
            }
        }
    }
    Ok(is_whole)
}

/// Attachments are timed one after the other, each detached again: while nothing else changes, and right after the host got
/// a new device, as it does with each pod.
fn attaching(bed: &Bed, ktsnd: &Path, files: &Path) -> anyhow::Result<bool> {
    let daemon = start(bed, ktsnd, files);
    let most = OTHERS.into_iter().max().unwrap_or(0);
    let pods = Crowd::new(bed, most + 1);
    let mut control = daemon.control();
    let mut there = 0;
    for others in OTHERS {
        while there < others {
            attach(&mut control, &pods, there)?;
            there += 1;
        }
        for device in [false, true] {
            let mut spans = [Vec::new(), Vec::new()];
            for _ in 0..TIMED {
                if device {
                    let host = &bed.host_a;
                    bed.run(&format!(
                        "ip -n {host} link add churn type veth peer name churned\nip -n {host} link set churned up\n\
                         ip -n {host} link set churn up\n"
                    ));
                }
                spans[0].push(attach(&mut control, &pods, most)?);
                spans[1].push(detach(&mut control, most)?);
                if device {
                    bed.run(&format!("ip -n {} link del churn", bed.host_a));
                }
                std::thread::sleep(PAUSE);
            }
            let [attached, detached] = &mut spans;
            println!(
                "beside {} others{}: attach p50 {:.2} p99 {:.2} ms, detach p50 {:.2} ms",
                others + 1,
                if device { ", after a new device" } else { "" },
                at(attached, 0.5),
                at(attached, 0.99),
                at(detached, 0.5)
            );
        }
    }
    Ok(true)
}

/// Whether the worker answers two seconds after the storm, as `ktsn status` asks.
fn storm(bed: &Bed, ktsnd: &Path, files: &Path) -> anyhow::Result<bool> {
    let daemon = start(bed, ktsnd, files);
    let pods = Crowd::new(bed, PODS);
    let mut control = daemon.control();
    let began = Instant::now();
    for _ in 0..STORM_ROUNDS {
        round(&mut control, &pods)?;
    }
    let took = began.elapsed();
    let mut answers = true;
    for after in [0, 2] {
        std::thread::sleep(Duration::from_secs(after));
        let asked = Instant::now();
        let gates = control.gates();
        println!(
            "{STORM_ROUNDS} rounds of {PODS} attachments in {took:.1?}; {after} s later: {} in {:.1?}",
            gates.as_ref().map_or_else(|status| status.message(), |_| "gates told"),
            asked.elapsed()
        );
        answers &= gates.is_ok_and(|states| !states.is_empty());
    }
    Ok(answers)
}

fn run() -> anyhow::Result<bool> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [question, ktsnd, more @ ..] = &words[..] else {
        bail!("usage: churn lateness KTSND…, or: churn attach|storm KTSND")
    };
    let ktsnds: Vec<PathBuf> = std::iter::once(ktsnd).chain(more).map(PathBuf::from).collect();
    let ktsnd = &ktsnds[0];
    let _lock = MeasureLock::take(Path::new(LOCK), || eprintln!("waiting for {LOCK}"))?;
    let (bed, files) = (Bed::new(), tempfile::tempdir_in("/dev/shm")?);
    let files = files.path();
    match question.as_str() {
        "lateness" => lateness(&bed, &ktsnds, files),
        "attach" => attaching(&bed, ktsnd, files),
        "storm" => storm(&bed, ktsnd, files),
        other => bail!("{other:?}: expected lateness, attach or storm"),
    }
}

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("churn: {error:#}");
            ExitCode::from(2)
        }
    }
}
