// SPDX-License-Identifier: Apache-2.0
//! `make bench-recovery`: how soon ktsnd follows what happens around it.
//!
//! In: the built programs, root's rights. Out: progress, a table, `out/bench/recovery.json`; exit status 1 when a bar is missed.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use ktsn_lab::exclusive::{MeasureLock, check_machine, wait_until_quiet};
use ktsn_measure::results::{Check, CheckOutcome, Document, Micro};
use ktsn_tests::faults::bed::{Bed, POD_B, UPLINK, within};
use ktsn_tests::faults::control::reason;
use ktsn_tests::faults::daemon::{Attachment, Daemon, NAME, configuration};
use ktsn_tests::faults::talker::Talker;
use ktsn_tests::faults::tap::{Arrival, tai_now};
use ktsn_tests::faults::{Tap, eventually};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

const HELP: &str = "\
Measure how soon ktsnd follows what happens around it (root)

Usage: make bench-recovery [ROUNDS=10] [ONLY=taken-over,restarted]

Each case, or each of ONLY, runs ROUNDS times (1 to 100) on a quiet machine; the cases take turns. The longest round is held
against the bar.

Exit status: 0 all bars held, 1 a bar was missed, 2 it could not be measured.";

const PATIENCE: Duration = Duration::from_secs(30);

struct Case {
    name: &'static str,
    what: &'static str,
    bar: Duration,
    round: fn(&Path) -> Duration,
}

const CASES: [Case; 7] = [
    Case {
        name: "attached-again",
        what: "ktsnd is killed and started: until the program's frames leave again",
        bar: Duration::from_secs(1),
        round: attached_again,
    },
    Case {
        name: "taken-over",
        what: "the next ktsnd waits, the first ends: the longest span without a frame",
        bar: Duration::from_millis(300),
        round: taken_over,
    },
    Case {
        name: "restarted",
        what: "the same, but the next ktsnd is started when the first has ended",
        bar: Duration::from_secs(1),
        round: restarted,
    },
    Case {
        name: "found",
        what: "ktsnd starts after the program: until no frame goes by the kernel",
        bar: Duration::from_secs(2),
        round: found,
    },
    Case {
        name: "released",
        what: "a pod's namespace is deleted under traffic: until its attachment is gone",
        bar: Duration::from_secs(1),
        round: released,
    },
    Case {
        name: "address-seen",
        what: "an address appears in a pod: until ktsnd lists it",
        bar: Duration::from_millis(500),
        round: address_seen,
    },
    Case {
        name: "attached-in-flood",
        what: "silent connections come without end: until a new program is a client",
        bar: Duration::from_secs(2),
        round: attached_in_flood,
    },
];

fn start(bed: &Bed, program: &Path, attachments: &[Attachment]) -> Daemon {
    let mut daemon =
        Daemon::prepare(&bed.host_a, &configuration(attachments)).of(program).logging_as_shipped();
    daemon.spawn();
    daemon
}

fn nanoseconds(span: i64) -> Duration {
    Duration::from_nanos(u64::try_from(span).unwrap_or(0))
}

fn attached_again(program: &Path) -> Duration {
    let bed = Bed::new();
    let mut daemon = start(&bed, program, &[Attachment::pod_a(&bed)]);
    let tap = Tap::open(&bed.host_b, UPLINK);
    let talker = Talker::start(&daemon, &bed.pod_a, POD_B, 1, "count=3000 lead_us=100000");
    eventually("traffic", PATIENCE, || tap.of(1).len() > 300);
    daemon.kill();
    // The program sends while no ktsnd runs.
    std::thread::sleep(Duration::from_millis(500));
    daemon.spawn();
    let serving = tai_now();
    let tenth = || tap.of(1).iter().map(Arrival::at).filter(|at| *at > serving).nth(10);
    let took = eventually("attached again", PATIENCE, tenth) - serving;
    let _ = talker.finish();
    nanoseconds(took)
}

fn taken_over(program: &Path) -> Duration {
    passed_on(program, Daemon::spawn_waiting, |_| ())
}

fn restarted(program: &Path) -> Duration {
    passed_on(program, |_| (), Daemon::spawn)
}

/// Passes a stream of 1 kHz from a ktsnd that gets SIGTERM to the next one, which `before` or `after` starts. The longest span between
/// two frames on the wire. No frame may be early, and each one that does not arrive must be counted.
fn passed_on(program: &Path, before: fn(&mut Daemon), after: fn(&mut Daemon)) -> Duration {
    let bed = Bed::new();
    let attachments = [Attachment::pod_a(&bed)];
    let mut first = start(&bed, program, &attachments);
    let next = Daemon::prepare(&bed.host_a, &configuration(&attachments)).at(first.run_dir());
    let mut next = next.of(program).logging_as_shipped();
    before(&mut next);
    let tap = Tap::open(&bed.host_b, UPLINK);
    let keys = "count=60000 last=300 lead_us=5000";
    let mut talker = Talker::start(&first, &bed.pod_a, POD_B, 1, keys);
    eventually("traffic", PATIENCE, || tap.of(1).len() > 500);
    assert_eq!(first.terminate(PATIENCE), Some(0), "{}", first.log());
    after(&mut next);
    let passed = tap.of(1).len();
    eventually("attached again", PATIENCE, || tap.of(1).len() > passed + 300);
    talker.go();
    let (values, errors) = talker.finish();
    let sent = values["sent"].cast_unsigned();
    eventually("the last frame", PATIENCE, || {
        tap.of(1).last().filter(|a| a.sequence == sent - 1).map(|_| ())
    });
    let arrived = tap.of(1);
    assert!(values["failed"] == 0 && tap.early().is_empty(), "{errors} early: {:?}", tap.early());
    let absent = reason(&next.control().counters(NAME).dropped, "daemon_absent");
    assert_eq!(absent, sent - arrived.len() as u64, "frames lost, and counted");
    let at: Vec<i64> = arrived.iter().map(Arrival::at).collect();
    nanoseconds(at.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or(0))
}

fn found(program: &Path) -> Duration {
    let bed = Bed::new();
    let mut daemon = start(&bed, program, &[Attachment::pod_a(&bed)]);
    let tap = Tap::open(&bed.host_b, UPLINK);
    daemon.kill();
    let talker = Talker::start(&daemon, &bed.pod_a, POD_B, 1, "count=500 period_us=10000 lead_us=1000000");
    eventually("the kernel's frames", PATIENCE, || tap.of(1).len() > 5);
    daemon.spawn();
    let serving = tai_now();
    let _ = talker.finish();
    eventually("the last frame", PATIENCE, || tap.of(1).last().filter(|a| a.sequence == 499).map(|_| ()));
    // The kernel sends at once, before the TxTime.
    nanoseconds(tap.early().iter().map(Arrival::at).max().unwrap_or(serving) - serving)
}

fn released(program: &Path) -> Duration {
    let bed = Bed::new();
    let daemon = start(&bed, program, &[Attachment::pod_a(&bed)]);
    let tap = Tap::open(&bed.host_b, UPLINK);
    let mut talker = Talker::start(&daemon, &bed.pod_a, POD_B, 1, "count=100000 lead_us=500000");
    eventually("traffic", PATIENCE, || tap.of(1).len() > 100);
    talker.child().kill().expect("kill");
    bed.delete(&bed.pod_a);
    let began = Instant::now();
    eventually("the attachment is gone", PATIENCE, || daemon.control().list().attachments.is_empty());
    began.elapsed()
}

fn address_seen(program: &Path) -> Duration {
    let bed = Bed::new();
    let daemon = start(&bed, program, &[Attachment::pod_a(&bed)]);
    bed.run(&format!("ip -n {} addr add 10.244.0.77/24 dev eth0\n", bed.pod_a));
    let began = Instant::now();
    eventually("the address is listed", PATIENCE, || {
        let listed = daemon.control().list().attachments;
        listed.iter().any(|one| one.withheld.iter().any(|address| address == "10.244.0.77"))
    });
    began.elapsed()
}

/// Opens connections and says nothing, as fast as they can be made, until `stop`.
fn open_silent_connections(path: &SocketAddrUnix, stop: &AtomicBool) {
    let mut connections = VecDeque::new();
    while !stop.load(Relaxed) {
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::NONBLOCK, None)
            .expect("socket");
        if connect(&socket, path).is_ok() {
            connections.push_back(socket);
        }
        if connections.len() > 100 {
            connections.pop_front();
        }
    }
}

fn attached_in_flood(program: &Path) -> Duration {
    let bed = Bed::new();
    let daemon = start(&bed, program, &[Attachment::pod_a(&bed)]);
    let path = SocketAddrUnix::new(daemon.run_dir().join("ktsn.sock")).expect("path");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| within(&bed.pod_a, || open_silent_connections(&path, &stop)));
        // The flood has filled the queue of callers by then.
        std::thread::sleep(Duration::from_millis(200));
        let began = Instant::now();
        let talker = Talker::start(&daemon, &bed.pod_a, POD_B, 1, "count=1000 lead_us=100000");
        let is_client = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            eventually("the program is a client", PATIENCE, || daemon.clients() > 0);
        }));
        let took = began.elapsed();
        stop.store(true, Relaxed);
        is_client.expect("the program becomes a client");
        let _ = talker.finish();
        took
    })
}

fn rounds() -> anyhow::Result<usize> {
    let Some(text) = std::env::var("ROUNDS").ok().filter(|text| !text.is_empty()) else { return Ok(10) };
    let rounds = text.parse().with_context(|| format!("ROUNDS={text}: expected a number, 1 to 100"))?;
    ensure!((1..=100).contains(&rounds), "ROUNDS={text}: expected 1 to 100");
    Ok(rounds)
}

fn milliseconds(span: Duration) -> f64 {
    (span.as_secs_f64() * 1e6).round() / 1e3
}

/// What each round of each case took, in milliseconds; the cases take turns.
fn measure(cases: &[&Case], program: &Path, rounds: usize) -> anyhow::Result<Vec<Vec<f64>>> {
    let mut took = vec![Vec::new(); cases.len()];
    for _ in 0..rounds {
        for (case, took) in cases.iter().zip(&mut took) {
            wait_until_quiet(|_| ())?;
            took.push(milliseconds((case.round)(program)));
        }
    }
    Ok(took)
}

/// The cases that `ONLY` names, or all.
fn chosen() -> anyhow::Result<Vec<&'static Case>> {
    let Some(only) = std::env::var("ONLY").ok().filter(|text| !text.is_empty()) else {
        return Ok(CASES.iter().collect());
    };
    let names = CASES.map(|case| case.name).join(", ");
    let of = |name| {
        let found = CASES.iter().find(|case| case.name == name);
        found.with_context(|| format!("ONLY={only}: no case {name:?}, expected some of {names}"))
    };
    only.split(',').map(of).collect()
}

/// The figures of a case, and its longest round.
fn figures(case: &Case, mut took: Vec<f64>) -> (Micro, f64) {
    took.sort_by(f64::total_cmp);
    let [p50, p90] = [0.5, 0.9].map(|q| took[((took.len() - 1) as f64 * q).round() as usize]);
    let name = format!("recovery.{}", case.name);
    let micro = Micro { name, unit: "ms".to_owned(), p50, p90: Some(p90), samples: took.len() as u64 };
    (micro, took[took.len() - 1])
}

fn run(root: &Path) -> anyhow::Result<bool> {
    let (rounds, cases) = (rounds()?, chosen()?);
    let program: PathBuf = root.join("target/release/ktsnd");
    let program = std::env::var_os("KTSND").map_or(program, PathBuf::from);
    ensure!(program.is_file(), "{} is missing: `make build` makes it", program.display());
    check_machine()?;
    let _lock = MeasureLock::take(&root.join("out/.measure.lock"), || {
        println!("bench-recovery: another measurement holds out/.measure.lock; waiting");
    })?;
    let command = ["make", "bench-recovery"].map(str::to_owned).to_vec();
    let mut document = Document::new("recovery", command);
    document.parameters.insert("rounds".to_owned(), rounds.into());
    let mut all_hold = true;
    let took = measure(&cases, &program, rounds)?;
    println!("{:<18} {:>9} {:>9} {:>9}  case", "ms", "median", "longest", "bar");
    for (case, took) in cases.into_iter().zip(took) {
        let (micro, longest) = figures(case, took);
        let bar = milliseconds(case.bar);
        let holds = longest <= bar;
        all_hold &= holds;
        let verdict = if holds { "" } else { "  MISSED" };
        println!("{:<18} {:>9.1} {longest:>9.1} {bar:>9.0}  {}{verdict}", case.name, micro.p50, case.what);
        document.checks.push(Check {
            name: format!("{} at most {bar:.0} ms", micro.name),
            outcome: if holds { CheckOutcome::Passed } else { CheckOutcome::Failed },
            reason: (!holds).then(|| format!("{longest:.1} ms")),
        });
        document.micro.push(micro);
    }
    let path = root.join("out/bench/recovery.json");
    document.save(&path)?;
    println!("wrote {}", path.display());
    Ok(all_hold)
}

fn main() -> ExitCode {
    if std::env::args().any(|word| word == "--help" || word == "-h") {
        println!("{HELP}");
        return ExitCode::SUCCESS;
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    match run(&root) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("bench-recovery: {error:#}");
            ExitCode::from(2)
        }
    }
}
