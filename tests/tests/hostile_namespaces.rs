// SPDX-License-Identifier: Apache-2.0
//! A pod's root changes its own namespace: its attachment pays for that, and no other.
//!
//! Nothing here measures a time: what is judged is who is served, what is logged, and how much memory the daemon takes.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use ktsn_tests::faults::bed::{Bed, POD_B, UPLINK};
use ktsn_tests::faults::daemon::{Attachment, Daemon, pinned_port};
use ktsn_tests::faults::talker::arrive;
use ktsn_tests::faults::{Tap, eventually};
use ktsn_tests::hostile::{ATTACKER, VICTIM, attachments};

const SOON: Duration = Duration::from_secs(60);
/// Far more than are looked at.
const ROUTES: u32 = 60_000;
/// What the daemon may take more while a pod has as many: a part of them would be as much.
const MEMORY_KIB: usize = 8 << 10;

fn configuration(bed: &Bed) -> String {
    let patient = |attachment: Attachment| {
        Attachment { late: "send", ..attachment }.with("overrun_limit = \"10s\"").toml()
    };
    format!("{}{}", pinned_port("auto"), attachments(bed).map(patient).concat())
}

fn start(bed: &Bed) -> Daemon {
    let mut daemon = Daemon::prepare(&bed.host_a, &configuration(bed));
    daemon.spawn();
    daemon
}

/// Runs `ip` in pod Q's namespace, with one command for each line.
fn batch(bed: &Bed, lines: &str) {
    let file = tempfile::NamedTempFile::new().expect("file");
    std::fs::write(file.path(), lines).expect("file");
    bed.run(&format!("ip -n {} -batch {}", bed.pod_q, file.path().display()));
}

fn routes(count: u32) -> String {
    (0..count).fold(String::new(), |mut lines, n| {
        let [_, a, b, c] = n.to_be_bytes();
        let _ = writeln!(lines, "route add 100.{a}.{b}.{c}/32 dev eth0");
        lines
    })
}

fn names(daemon: &Daemon) -> Vec<String> {
    daemon.control().list().attachments.into_iter().map(|attached| attached.name).collect()
}

fn warning(daemon: &Daemon) -> Option<String> {
    let warnings = daemon.control().health().expect("health").warnings;
    warnings.into_iter().find(|text| text.contains(&format!("attachment {ATTACKER} is not attached")))
}

fn victim_is_served(bed: &Bed, daemon: &Daemon, sender: u32) {
    let tap = Tap::open(&bed.host_b, UPLINK);
    arrive(daemon, &tap, &bed.pod_a, POD_B, sender, 50);
}

/// Its routes are left to the kernel, and read no further than the bound; a restart serves the others; with fewer routes it is
/// served as before.
#[test]
fn a_pod_with_more_routes_than_are_looked_at_costs_its_own_attachment() {
    let bed = Bed::new();
    let mut daemon = start(&bed);
    let before = daemon.resident_kib_max();
    batch(&bed, &routes(ROUTES));
    eventually("it is said", SOON, || daemon.log().contains("routes: more than 8192 entries"));
    for n in 0..50 {
        batch(&bed, &format!("route add 99.0.0.{n}/32 dev eth0\nroute del 99.0.0.{n}/32 dev eth0\n"));
    }
    let taken = daemon.resident_kib_max() - before;
    assert!(taken < MEMORY_KIB, "{taken} KiB more");
    assert!(daemon.control().health().expect("health").serving);
    victim_is_served(&bed, &daemon, 1);
    // Another pod is attached meanwhile.
    let another = serde_json::json!({
        "name": "another", "netns": bed.host_a, "interface": "cni0", "uplink": UPLINK,
        "destinations": ["10.244.1.0/24"],
    });
    assert!(!daemon.control().attach(another).expect("attached"));
    daemon.control().detach("another").expect("detached");
    daemon.kill();
    daemon.spawn();
    assert_eq!(names(&daemon), [VICTIM], "{}", daemon.log());
    assert!(warning(&daemon).is_some_and(|text| text.contains("more than 8192 entries")), "{}", daemon.log());
    victim_is_served(&bed, &daemon, 2);
    bed.run(&format!("ip -n {} route flush root 100.0.0.0/8", bed.pod_q));
    eventually("it is attached", SOON, || names(&daemon).len() == 2);
    assert!(warning(&daemon).is_none());
}

/// What a pod did before ktsnd started: it starts, serves the other pod, says why this one is not attached, and attaches it when
/// that is mended.
#[test]
fn a_namespace_that_cannot_be_attached_at_the_start_keeps_no_other_from_being_served() {
    let bed = Bed::new();
    let rename = |from: &str, to: &str| {
        batch(&bed, &format!("link set {from} down\nlink set {from} name {to}\nlink set {to} up\n"));
    };
    for (sender, is_deleted) in [(1, false), (2, true)] {
        if is_deleted {
            batch(&bed, "link del eth0\n");
        } else {
            rename("eth0", "other");
        }
        let daemon = start(&bed);
        assert_eq!(names(&daemon), [VICTIM], "{}", daemon.log());
        assert!(warning(&daemon).is_some(), "{}", daemon.log());
        victim_is_served(&bed, &daemon, sender);
        if is_deleted {
            bed.restore_pod_q();
        } else {
            rename("other", "eth0");
        }
        eventually("it is attached", SOON, || names(&daemon).len() == 2);
        assert!(warning(&daemon).is_none());
    }
}

/// Too much of anything but routes, at a restart: of an attachment of the configuration, and of one that the state file has.
#[test]
fn too_much_of_anything_at_a_restart_costs_its_own_attachment() {
    let bed = Bed::new();
    let many = |count: u32, what: &str, more: &str| {
        (0..count).fold(String::new(), |mut lines, n| {
            let _ = writeln!(lines, "{what} 10.77.{}.{}{more}", n / 250, n % 250 + 1);
            lines
        })
    };
    let too_many = [
        (
            "addresses, at most 1024",
            many(2000, "addr add", "/32 dev eth0"),
            "addr flush dev eth0 to 10.77.0.0/16".to_owned(),
        ),
        (
            "neighbours: more than 8192 entries",
            many(9000, "neigh add", " lladdr 02:00:00:00:00:01 nud permanent dev eth0"),
            "neigh flush to 10.77.0.0/16 dev eth0 nud permanent".to_owned(),
        ),
        (
            "routing rules: more than 8192 entries",
            many(9000, "rule add from", " lookup main pref 1000"),
            many(9000, "rule del from", " lookup main pref 1000"),
        ),
    ];
    for is_by_api in [false, true] {
        let mut daemon = if is_by_api {
            let [victim, _] = attachments(&bed);
            let victim = Attachment { late: "send", ..victim }.with("overrun_limit = \"10s\"").toml();
            Daemon::prepare(&bed.host_a, &format!("{}{victim}", pinned_port("auto")))
        } else {
            Daemon::prepare(&bed.host_a, &configuration(&bed))
        };
        daemon.spawn();
        if is_by_api {
            let attacker = serde_json::json!({
                "name": ATTACKER, "netns": bed.pod_q, "interface": "eth0", "uplink": UPLINK,
                "destinations": ["10.244.1.0/24"],
            });
            daemon.control().attach(attacker).expect("attached");
        }
        for (sender, (what, lines, undo)) in (1..).zip(&too_many) {
            daemon.kill();
            batch(&bed, lines);
            daemon.spawn();
            assert_eq!(names(&daemon), [VICTIM], "{}", daemon.log());
            assert!(warning(&daemon).is_some_and(|text| text.contains(what)), "{what}: {}", daemon.log());
            victim_is_served(&bed, &daemon, sender);
            batch(&bed, undo);
            eventually("it is attached", SOON, || (names(&daemon).len() == 2).then_some(()));
        }
    }
}

/// The names have control characters, which reach no terminal.
#[test]
fn an_interface_that_is_renamed_without_end_writes_a_bounded_log() {
    let bed = Bed::new();
    let daemon = start(&bed);
    let began = Instant::now();
    let mut before = "eth0".to_owned();
    batch(&bed, "link set eth0 down\n");
    for n in 0..400 {
        let name = format!("\x1b[8m{n}");
        batch(&bed, &format!("link set {before} name {name}\n"));
        before = name;
    }
    victim_is_served(&bed, &daemon, 1);
    let lines = daemon.log().matches(" now").count();
    let most = usize::try_from(began.elapsed().as_secs()).expect("short") + 3;
    assert!((1..=most).contains(&lines), "{lines} lines within {:?}: {}", began.elapsed(), daemon.log());
    assert!(!daemon.log().contains('\x1b'), "{:?}", daemon.log());
}
