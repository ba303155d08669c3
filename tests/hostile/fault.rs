// SPDX-License-Identifier: Apache-2.0
//! A worker that panics or hangs under the innocent stream. In: the fault, a debug build of ktsnd, which alone can be made to have
//! it. Out: how soon the daemon is red, how soon it runs again after its restart, and frames that are not counted.

use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use ktsn_eventually::try_eventually;
use ktsn_tests::faults::bed::{UPLINK, within};
use ktsn_tests::faults::control::Control;
use ktsn_tests::faults::daemon::Daemon;
use ktsn_tests::hook::Running;
use ktsn_tests::hostile::wire::Wire;
use ktsn_tests::hostile::{VICTIM, attachments};
use serde::Serialize;
use serde_json::json;

use crate::Options;
use crate::report::Found;
use crate::world::{self, Talk};

/// Until everybody can see that the worker is gone or stuck.
const RED_MAX: Duration = Duration::from_secs(2);
/// From the restart until it serves.
const RUNNING_MAX: Duration = Duration::from_secs(1);
/// Frames of a round; the fault is in the middle.
const FRAMES: u64 = 6_000;
/// How long either is waited for.
const PATIENCE: Duration = Duration::from_secs(15);

#[derive(Clone, Debug, Serialize)]
struct Round {
    red_ms: u128,
    running_ms: u128,
    frames: u64,
    on_wire: u64,
    counted: std::collections::BTreeMap<String, u64>,
    uncounted: i64,
}

fn is_serving(daemon: &Daemon) -> bool {
    Control::connect(daemon.run_dir())
        .ok()
        .and_then(|mut control| control.health().ok())
        .is_some_and(|it| it.serving)
}

/// How long it takes until `done`.
fn until(what: &str, mut done: impl FnMut() -> bool) -> anyhow::Result<Duration> {
    let began = Instant::now();
    let took = try_eventually(PATIENCE, || done().then(|| began.elapsed()));
    took.with_context(|| format!("{what}: not within {PATIENCE:?}"))
}

fn round(options: &Options, fault: &str) -> anyhow::Result<Round> {
    let bed = world::bed();
    let [victim, _] = attachments(&bed);
    // What is dropped then was lost with the daemon, not by a debug build's slowness.
    let table =
        ktsn_tests::faults::Attachment { late: "send", ..victim }.with("overrun_limit = \"10s\"").toml();
    let text = format!("[[port]]\ndevice = \"{UPLINK}\"\ncpu = 1\npriority = 50\n{table}");
    let daemon = Daemon::prepare(&bed.host_a, &text).of(&options.debug_ktsnd()).logging_as_shipped();
    let directory = tempfile::tempdir().context("temporary directory")?;
    let path = |name: &str| directory.path().join(name);
    let start = |is_faulty: bool| -> anyhow::Result<Running> {
        let mut command = daemon.command();
        command.stdout(Stdio::null()).stderr(std::fs::File::create(path("log"))?);
        if is_faulty {
            command.env("KTSND_TEST_FAULT", path("fault"));
        }
        Ok(Running(within(&bed.host_a, || command.spawn())?))
    };
    let mut process = start(true)?;
    until("ktsnd serves", || is_serving(&daemon))?;
    let wire = Wire::open(&bed.host_b, UPLINK);
    let talk = Talk { options, bed: &bed, run_dir: daemon.run_dir(), directory: directory.path() };
    let (mut talker, at) = talk.begin()?;
    world::sleep_until_half(options, at);
    std::fs::write(path("new"), fault)?;
    std::fs::rename(path("new"), path("fault"))?;
    let red = until("red", || matches!(process.0.try_wait(), Ok(Some(_))) || !is_serving(&daemon))?;
    drop(process);
    let _process = start(false)?;
    let running = until("runs again", || is_serving(&daemon))?;
    world::end_talker(&mut talker, Duration::from_millis(options.frames) + PATIENCE)?;
    let frames = options.frames;
    let counted = || daemon.control().counters(VICTIM).dropped;
    let missing =
        |on_wire: u64| frames.cast_signed() - (on_wire + counted().values().sum::<u64>()).cast_signed();
    // The last frames leave, and the ended program's counters are read.
    let _ = until("each frame has an end", || missing(wire.seen(frames).frames) == 0);
    let on_wire = wire.seen(frames).frames;
    Ok(Round {
        red_ms: red.as_millis(),
        running_ms: running.as_millis(),
        frames,
        on_wire,
        counted: counted().into_iter().collect(),
        uncounted: missing(on_wire),
    })
}

/// Carries the case out, three rounds of it.
///
/// # Errors
/// A round could not be carried through: the daemon never was red, or did not come back.
pub(crate) fn case(options: &Options, fault: &str) -> anyhow::Result<Found> {
    // The program outlives the daemon: if both were gone, no process could count.
    let options = Options { frames: FRAMES, ..options.clone() };
    let rounds: Vec<Round> = (0..3).map(|_| round(&options, fault)).collect::<Result<_, _>>()?;
    let most = |what: fn(&Round) -> u128| rounds.iter().map(what).max().unwrap_or(0);
    let (red, running) = (most(|round| round.red_ms), most(|round| round.running_ms));
    let uncounted: i64 = rounds.iter().map(|round| round.uncounted.abs()).sum();
    let mut worse = Vec::new();
    if red > RED_MAX.as_millis() {
        worse.push(format!("red after {red} ms"));
    }
    if running > RUNNING_MAX.as_millis() {
        worse.push(format!("running {running} ms after the restart"));
    }
    if uncounted != 0 {
        worse.push(format!("{uncounted} frames that nobody counted"));
    }
    let lost: u64 = rounds.iter().map(|round| round.frames - round.on_wire).sum();
    let row = [
        String::new(),
        format!("red {red} ms, running {running} ms, {lost} lost, {uncounted} uncounted"),
        format!("red {} ms, running {} ms, 0 uncounted", RED_MAX.as_millis(), RUNNING_MAX.as_millis()),
    ];
    Ok(Found { worse, void: None, row, rounds: json!(rounds) })
}
