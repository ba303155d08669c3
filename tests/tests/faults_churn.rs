// SPDX-License-Identifier: Apache-2.0
//! A stream of one attachment while fifty others come and go, with clients of their own: nothing of it is lost, early or out of
//! order, and the worker answers afterwards.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use ktsn_tests::faults::bed::{Bed, POD_B, UPLINK};
use ktsn_tests::faults::crowd::Crowd;
use ktsn_tests::faults::daemon::{Attachment, Daemon, NAME, worker_cpu};
use ktsn_tests::faults::talker::Talker;
use ktsn_tests::faults::{Tap, eventually, raw};

const SOON: Duration = Duration::from_secs(20);
const PODS: usize = 50;
const COUNT: u64 = 5000;
const ROUNDS_MIN: usize = 3;
const LONGEST: Duration = Duration::from_secs(120);

fn start(bed: &Bed) -> Daemon {
    Daemon::start_in_order(bed, &[Attachment::pod_a(bed)])
}

/// All pods attach, a program of each tenth with them, and detach again.
fn round(daemon: &Daemon, pods: &Crowd) {
    let mut control = daemon.control();
    for index in 0..PODS {
        assert!(!control.attach(pods.attachment(index)).expect("attach"));
    }
    let clients: Vec<_> =
        pods.names().iter().step_by(10).map(|pod| raw::accepted(daemon.run_dir(), pod)).collect();
    for index in 0..PODS {
        control.detach(&format!("crowd-{index}")).expect("detach");
    }
    drop(clients);
}

#[test]
fn a_stream_beside_attachments_that_come_and_go() {
    let bed = Bed::new();
    let daemon = start(&bed);
    let tap = Tap::open(&bed.host_b, UPLINK);
    let pods = Crowd::new(&bed, PODS);
    let keys = format!("count={COUNT} period_us=1000 lead_us=50000 priority=6");
    let talker = Talker::start(&daemon, &bed.pod_a, POD_B, 1, &keys);
    eventually("it talks", SOON, || !tap.of(1).is_empty());
    let over = AtomicBool::new(false);
    let rounds = std::thread::scope(|scope| {
        let churn = scope.spawn(|| {
            let mut rounds = 0;
            let begun = Instant::now();
            // The scope waits for this thread: it ends even where the talker's check panics before `over`.
            while (!over.load(Relaxed) && begun.elapsed() < LONGEST) || rounds < ROUNDS_MIN {
                round(&daemon, &pods);
                rounds += 1;
            }
            rounds
        });
        let (values, errors) = talker.finish();
        over.store(true, Relaxed);
        assert_eq!((values["sent"], values["failed"]), (COUNT.cast_signed(), 0), "{errors}");
        churn.join().expect("rounds")
    });
    let numbers: Vec<u64> = tap.wait(1, COUNT as usize, SOON).iter().map(|a| a.sequence).collect();
    assert_eq!(numbers, (0..COUNT).collect::<Vec<_>>(), "each once, in order");
    assert!(tap.early().is_empty(), "{:?}", tap.early());
    let mut control = daemon.control();
    assert!(!control.gates().expect("the worker answers").is_empty());
    let counters = control.counters_of(NAME, COUNT, SOON);
    assert_eq!((counters.taken, counters.sent, counters.dropped.len()), (COUNT, COUNT, 0), "{counters:?}");
    assert_eq!(control.list().attachments.len(), 1);
    println!("{rounds} rounds of {PODS} attachments");
}

/// A system call of another thread must not hold a worker up where the kernel is not preempted: as long as there is another CPU.
#[test]
fn other_threads_keep_off_the_workers_cpu() {
    let bed = Bed::new();
    let daemon = start(&bed);
    let tasks = std::fs::read_dir(format!("/proc/{}/task", daemon.pid())).expect("threads").flatten();
    let is_only = std::thread::available_parallelism().is_ok_and(|count| count.get() == 1);
    let threads: Vec<(String, bool)> = tasks
        // One of the runtime that ends right now has no state any more.
        .filter_map(|task| {
            let read = |name| std::fs::read_to_string(task.path().join(name)).ok();
            let status = read("status")?;
            let mask = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed:")).expect("its CPUs");
            let words: Vec<&str> = mask.trim().rsplit(',').collect();
            let word = u32::from_str_radix(words[worker_cpu() / 32], 16).expect("hex");
            Some((read("comm")?.trim().to_owned(), word >> (worker_cpu() % 32) & 1 != 0))
        })
        .collect();
    assert!(threads.len() > 3 && threads.iter().any(|(name, _)| name == "ktsn-worker"), "{threads:?}");
    assert!(threads.iter().all(|(name, on_it)| *on_it == (is_only || name == "ktsn-worker")), "{threads:?}");
}
