// SPDX-License-Identifier: Apache-2.0
//! Carrying out one case. In: the case and the options. Out: what it showed, or why it could not be carried through.

use std::time::{Duration, Instant};

use anyhow::{anyhow, bail, ensure};
use ktsn_lab::exclusive::wait_until_quiet;
use ktsn_measure::clock::stop_requested;
use ktsn_measure::environment::CpuUse;
use ktsn_tests::faults::bed::{Bed, POD_A, POD_Q};
use ktsn_tests::hostile::foreign::{FOREIGN, FRAMES, NOT_ITS_OWN, Short, Tried, Way, segment, source};
use ktsn_tests::hostile::judge::{
    Bars, COMPUTING_P50_MAX_NS, Figures, Round, percentile, spoilt, void, worse,
};
use ktsn_tests::hostile::{Attack, attachments};
use serde_json::json;

use crate::Options;
use crate::cases::{Beside, Case, Kind};
use crate::fault;
use crate::report::{Found, columns, so_far};
use crate::world::{self, Side, World};

/// Another pod's first attach under attack, p99.
const ATTACH_MAX: Duration = Duration::from_millis(100);
/// Attaches of each side, in all rounds.
const ATTACHES_MIN: u32 = 100;
/// The span of an attach that failed, microseconds.
const NEVER_US: i64 = 60_000_000;
/// How long the attaches of one side of one round may take.
const ATTACHING_MAX: Duration = Duration::from_secs(15);

/// Carries it out. `computing`: the p50 of the case of that kind, nanoseconds.
///
/// # Errors
/// Why it could not be.
pub(crate) fn case(options: &Options, case: &Case, computing: &mut i64) -> anyhow::Result<Found> {
    match case.kind {
        Kind::Stream(beside) => stream(options, case.name, beside, *computing).map(|(found, _)| found),
        Kind::Computing(beside) => {
            let (mut found, figures) = stream(options, case.name, beside, COMPUTING_P50_MAX_NS)?;
            // It is no attack: nothing has to be shown.
            found.void = None;
            *computing = if found.worse.is_empty() { figures.p50 } else { 0 };
            Ok(found)
        }
        Kind::Attach(words) => attach(options, case.name, words),
        Kind::Source(way) => sources(options, way),
        Kind::Short => short(options),
        Kind::Fault(fault) => fault::case(options, fault),
    }
}

fn quiet(options: &Options) -> anyhow::Result<()> {
    if options.is_quiet {
        wait_until_quiet(|_| {})?;
    }
    if stop_requested() {
        bail!("stopped");
    }
    Ok(())
}

fn stream(
    options: &Options,
    name: &str,
    beside: Beside,
    computing_p50_ns: i64,
) -> anyhow::Result<(Found, Figures)> {
    let mut world = World::new(options, beside)?;
    let (mut control, mut attacked): (Vec<Side>, Vec<Side>) = (Vec::new(), Vec::new());
    let lost = |sides: &[Side]| sides.iter().map(|side| side.round().lost).collect::<Vec<_>>();
    for round in 1..=options.rounds {
        quiet(options)?;
        control.push(world.side(false)?);
        match world.side(true) {
            Ok(side) => attacked.push(side),
            // A daemon that the attack has ended is a verdict, not a failure of the test.
            Err(error) => bail!("round {round}: {}", world.fault().unwrap_or_else(|| error.to_string())),
        }
        let figures = so_far(&lost(&control), &lost(&attacked));
        println!("  {name}: round {round} of {}: {figures}", options.rounds);
        if options.is_verbose {
            println!("    {:?}\n    {:?}", control.last(), attacked.last());
        }
    }
    let rounds = |sides: &[Side]| sides.iter().map(Side::round).collect::<Vec<Round>>();
    let (before, after) = (rounds(&control), rounds(&attacked));
    let bars = Bars { p50_more_ns: beside.p50_more_ns, computing_p50_ns };
    let mut worse = worse(&before, &after, &bars);
    worse.extend(spoilt(&before, options.frames));
    let frames = options.frames * u64::from(options.rounds);
    let figures = Figures::of(&after);
    let mut row = columns(&Figures::of(&before), &figures, frames, &bars);
    if beside.is_memory {
        let most = attacked.iter().map(|side| side.resident_kib_max).max().unwrap_or(0) / 1024;
        row[1] += &format!(" memory {most} MiB");
        row[2] += &format!(" memory {} MiB", options.memory_mib);
        if most > options.memory_mib {
            worse.push(format!("{most} MiB of memory, the chart allows {}", options.memory_mib));
        }
    }
    let void = void(&before, &after, options.frames);
    Ok((Found { worse, void, row, rounds: json!({ "control": control, "attacked": attacked }) }, figures))
}

/// Spans of attaches, microseconds; what had not ended counts with the time that it had taken.
fn attaches(run_dir: &std::path::Path, bed: &Bed, count: u32) -> anyhow::Result<Vec<i64>> {
    // Another user than the attacker: descriptors under way in messages are limited by user, and by the kernel.
    let words = format!("attach frames={count} cpu=-1 user=1001");
    let mut pod = Attack::start(run_dir, &bed.pod_a, &words).map_err(|text| anyhow!(text))?;
    let began = Instant::now();
    let (mut seen, mut last) = (0, began);
    while pod.values("done").is_empty() && !pod.has_ended() && began.elapsed() < ATTACHING_MAX {
        let now = pod.values("us").len();
        if now > seen {
            (seen, last) = (now, Instant::now());
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    let mut spans = pod.values("us");
    // One that failed was not served at all: 100 + its stream's status, or -errno.
    let failed = pod.values("failed");
    if !failed.is_empty() {
        println!("    {} attaches failed: {failed:?}", failed.len());
    }
    spans.extend(failed.iter().map(|_| NEVER_US));
    if pod.values("done").is_empty() {
        spans.push(i64::try_from(last.elapsed().as_micros())?);
    }
    Ok(spans)
}

fn attach(options: &Options, name: &str, words: &str) -> anyhow::Result<Found> {
    let bed = world::bed();
    let [victim, attacker] = attachments(&bed);
    let daemon = world::daemon(options, &bed, &(victim.toml() + &attacker.toml()));
    let each = ATTACHES_MIN.div_ceil(options.rounds);
    let (mut control, mut attacked, mut rounds) = (Vec::new(), Vec::new(), Vec::new());
    for round in 1..=options.rounds {
        quiet(options)?;
        let begun = CpuUse::now();
        let before = attaches(daemon.run_dir(), &bed, each)?;
        let mut attack = Attack::start(daemon.run_dir(), &bed.pod_q, words).map_err(|text| anyhow!(text))?;
        // Its connections are there; their messages queue up.
        std::thread::sleep(Duration::from_secs(1));
        let after = attaches(daemon.run_dir(), &bed, each)?;
        attack.end();
        let did = ["held", "opened"].iter().any(|what| attack.value(what) > 0);
        ensure!(did, "the attack did nothing: {}", attack.said());
        let most = |spans: &[i64]| spans.iter().max().copied().unwrap_or(0) as f64 / 1000.0;
        println!(
            "  {name}: round {round} of {}: max {:.1} / {:.1} ms, {} of {each} attached",
            options.rounds,
            most(&before),
            most(&after),
            after.len()
        );
        if options.is_verbose {
            println!("    {}", attack.said());
        }
        rounds.push(json!({ "control_us": before, "attacked_us": after, "attack": attack.said(),
            "steal_ratio": CpuUse::now().since(&begun).steal_ratio }));
        control.extend(before);
        attacked.extend(after);
    }
    control.sort_unstable();
    attacked.sort_unstable();
    let figure = |spans: &[i64], per_mille| percentile(spans, per_mille).unwrap_or(i64::MAX) as f64 / 1000.0;
    let side = |spans: &[i64]| {
        let (p50, p99) = (figure(spans, 500), figure(spans, 990));
        format!("{} attaches p50 {p50:.1} ms p99 {p99:.1} ms", spans.len())
    };
    let (p99, bar) = (figure(&attacked, 990), ATTACH_MAX.as_secs_f64() * 1000.0);
    let worse = if p99 > bar { vec![format!("attach p99 {p99:.1} ms")] } else { Vec::new() };
    let row = [side(&control), side(&attacked), format!("p99 {bar} ms")];
    Ok(Found { worse, void: None, row, rounds: json!(rounds) })
}

/// `own` must reach, the others must not.
fn verdict(own: &Tried, others: &[Tried]) -> Found {
    let mut worse = Vec::new();
    // The first ones may go before the way is there.
    if own.reached * 2 < FRAMES {
        worse.push(format!("{}, its own: {} of {FRAMES}", own.address, own.reached));
    }
    let reached = others.iter().filter(|tried| tried.reached > 0);
    worse.extend(reached.map(|tried| format!("{}: {} of {}", tried.address, tried.reached, tried.pushed)));
    let each = |tried: &Tried| format!("{} {}", tried.address, tried.reached);
    let row = [
        each(own),
        others.iter().map(each).collect::<Vec<_>>().join(", "),
        format!("its own {FRAMES}, others 0"),
    ];
    let all: Vec<_> = std::iter::once(own)
        .chain(others)
        .map(|tried| json!({ "address": tried.address, "pushed": tried.pushed, "reached": tried.reached }))
        .collect();
    Found { worse, void: None, row, rounds: json!(all) }
}

fn sources(options: &Options, way: Way) -> anyhow::Result<Found> {
    let bed = world::bed();
    let [victim, attacker] = attachments(&bed);
    let attacker = if way.is_raw() { segment(&bed) } else { attacker.toml() };
    let daemon = world::daemon(options, &bed, &(victim.toml() + &attacker));
    let tried = |address: &str| source(&bed, daemon.run_dir(), way, address).map_err(|text| anyhow!(text));
    let own = tried(POD_Q)?;
    let others: anyhow::Result<Vec<Tried>> = FOREIGN.into_iter().map(tried).collect();
    Ok(verdict(&own, &others?))
}

fn short(options: &Options) -> anyhow::Result<Found> {
    let bed = Bed::new();
    let both = Short::start(&bed, Some(&options.programs.join("ktsnd")));
    let tried = |address: &str| both.redirected(&bed, address).map_err(|text| anyhow!(text));
    let own = tried(POD_A)?;
    let others: anyhow::Result<Vec<Tried>> = NOT_ITS_OWN.into_iter().map(tried).collect();
    let mut found = verdict(&own, &others?);
    let (arrived, sent) = both.arrive_where_they_belong(&bed).map_err(|text| anyhow!(text))?;
    if arrived != sent || sent * 2 < FRAMES {
        found.worse.push(format!("{arrived} of {sent} arrive in the pod whose address it is"));
    }
    Ok(found)
}
