// SPDX-License-Identifier: Apache-2.0
//! Hundreds of attachments come and go: nothing of them stays, in the daemon, in the kernel or on disk.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use ktsn_tests::faults::bed::{Bed, POD_B, UPLINK};
use ktsn_tests::faults::control::with;
use ktsn_tests::faults::crowd::Crowd;
use ktsn_tests::faults::daemon::{self, Daemon};
use ktsn_tests::faults::talker::{arrive, talk};
use ktsn_tests::faults::{Tap, eventually, raw};
use serde_json::{Value, json};

const SOON: Duration = Duration::from_secs(20);
const PODS: usize = 100;
/// What the daemon may have more after the second round than after the first: the allocator's, not an attachment's.
const GROWTH_KIB: usize = 4096;
/// An attachment's share of resident memory: about half of this where nothing else grows meanwhile.
const ATTACHMENT_KIB: usize = 160;

/// What must be the same after all are gone.
#[derive(Debug)]
struct Held {
    /// Descriptors by kind; these may be fewer afterwards.
    descriptors: BTreeMap<String, usize>,
    /// Threads by name, but for the runtime's, which end when they were idle for some seconds.
    threads: BTreeMap<String, usize>,
    ports: usize,
    run_dir: BTreeSet<String>,
    /// Devices, addresses, routes, rules and filters of the host.
    network: BTreeSet<String>,
}

/// All paths below a directory.
fn below(directory: &Path, found: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(directory).expect("run directory").flatten() {
        found.insert(entry.path().display().to_string());
        if entry.path().is_dir() {
            below(&entry.path(), found);
        }
    }
}

/// What `ip`, `tc` and `bpftool` tell of the host, but for counters and what ages.
fn network(bed: &Bed) -> BTreeSet<String> {
    let host = &bed.host_a;
    let tell = |program: &str, arguments: &str| {
        let output = Command::new(program).args(arguments.split(' ')).output().expect(program);
        assert!(output.status.success(), "{program} {arguments}: {output:?}");
        String::from_utf8(output.stdout).expect("text")
    };
    let mut lines: BTreeSet<String> = BTreeSet::new();
    for what in
        ["-o link", "-o addr", "-4 route show table all", "-6 route show table all", "rule", "xfrm policy"]
    {
        let text = tell("ip", &format!("-n {host} {what}"));
        // A lifetime that runs down.
        let stable = |line: &str| line.split(" expires ").next().unwrap_or_default().trim().to_owned();
        lines.extend(text.lines().map(|line| format!("{what}: {}", stable(line))));
    }
    lines.extend(tell("tc", &format!("-n {host} qdisc")).lines().map(str::to_owned));
    lines
}

impl Held {
    /// Whether this is no more than what was `before`.
    fn is_as(&self, before: &Self) -> bool {
        let is_no_more = |(kind, count): (&String, &usize)| {
            before.descriptors.get(kind).is_some_and(|before| count <= before)
        };
        self.descriptors.iter().all(is_no_more)
            && (&self.threads, self.ports, &self.run_dir, &self.network)
                == (&before.threads, before.ports, &before.run_dir, &before.network)
    }
}

fn threads(daemon: &Daemon) -> BTreeMap<String, usize> {
    let mut names = BTreeMap::new();
    let tasks = std::fs::read_dir(format!("/proc/{}/task", daemon.pid())).expect("threads").flatten();
    // One that ends right now has no name any more.
    for name in tasks.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok()) {
        if name.starts_with("ktsn-") {
            *names.entry(name.trim().to_owned()).or_insert(0) += 1;
        }
    }
    names
}

fn held(bed: &Bed, daemon: &Daemon) -> Held {
    let mut run_dir = BTreeSet::new();
    below(daemon.run_dir(), &mut run_dir);
    Held {
        descriptors: daemon.descriptor_kinds(),
        threads: threads(daemon),
        ports: daemon.control().list().ports.len(),
        run_dir,
        network: network(bed),
    }
}

/// Programs, maps and links of bpf that the daemon holds, as (kind, number).
fn bpf_objects(daemon: &Daemon) -> BTreeSet<(&'static str, u32)> {
    let kinds = [("prog", "prog_id:"), ("map", "map_id:"), ("link", "link_id:")];
    let of =
        |(kind, field): (&'static str, &str)| daemon.bpf_numbers(field).into_iter().map(move |of| (kind, of));
    kinds.into_iter().flat_map(of).collect()
}

/// Whether the kernel still knows such an object; whoever has it.
fn is_known(&(kind, number): &(&'static str, u32)) -> bool {
    let arguments = [kind, "show", "id", &number.to_string()];
    Command::new("bpftool").args(arguments).output().expect("bpftool").status.success()
}

/// One of every kind: captured by the kernel, with the ingress fast path, plain.
fn attachment(pods: &Crowd, index: usize) -> Value {
    let changes = match index % 8 {
        0 => json!({ "capture": "kernel" }),
        1 => json!({ "ingress": "short" }),
        2 => json!({ "overlay": "none" }),
        _ => json!({}),
    };
    with(pods.attachment(index), &changes)
}

fn attach(daemon: &Daemon, pods: &Crowd) {
    let mut control = daemon.control();
    for index in 0..PODS {
        let existed =
            control.attach(attachment(pods, index)).unwrap_or_else(|error| panic!("{index}: {error}"));
        assert!(!existed, "{index}");
    }
}

/// A client of every eighth pod; each stays as long as what is returned.
fn clients(daemon: &Daemon, pods: &Crowd) -> Vec<raw::Accepted> {
    let namespaces = pods.names().iter().skip(3).step_by(8);
    namespaces.map(|pod| raw::accepted(daemon.run_dir(), pod)).collect()
}

/// Every attachment ends: it is detached, its namespace is deleted or its interface is.
fn end(bed: &Bed, daemon: &Daemon, pods: &Crowd, all_detached: bool) {
    let mut control = daemon.control();
    let (mut spaces, mut links) = (String::new(), String::new());
    for (index, pod) in pods.names().iter().enumerate() {
        match index % 3 {
            1 if !all_detached => spaces += &format!("netns del {pod}\n"),
            2 if !all_detached => links += &format!("link del {}\n", Crowd::host_end(index)),
            _ => control.detach(&format!("crowd-{index}")).expect("detach"),
        }
    }
    if !all_detached {
        bed.run(&format!("ip -n {} -batch - <<'E'\n{links}E\nip -batch - <<'E'\n{spaces}E\n", bed.host_a));
    }
    eventually("all but one are gone", SOON, || control.list().attachments.len() == 1);
}

/// Waits until [`held`] is what it was before.
fn released(what: &str, before: &Held, bed: &Bed, daemon: &Daemon) {
    let what = std::fmt::from_fn(|f| {
        let now = held(bed, daemon);
        let more: Vec<_> = now.network.symmetric_difference(&before.network).collect();
        let files: Vec<_> = now.run_dir.symmetric_difference(&before.run_dir).collect();
        write!(
            f,
            "{what}: descriptors {:?} → {:?}, threads {:?} → {:?}, ports {} → {}; files {files:?}; network {more:?}",
            before.descriptors, now.descriptors, before.threads, now.threads, before.ports, now.ports
        )
    });
    eventually(what, SOON, || held(bed, daemon).is_as(before));
}

/// Two hundred in two rounds: what the first one leaves is the allocator's, which keeps it for the second; that one leaves nothing.
#[test]
fn two_hundred_attachments_come_and_go() {
    let bed = Bed::new();
    let daemon = Daemon::start(&bed, &[daemon::Attachment::pod_a(&bed)]);
    talk(&daemon, &bed.pod_a, POD_B, 1, "count=5");
    eventually("no client is left", SOON, || daemon.clients() == 0);
    let bare = held(&bed, &daemon);
    let own = bpf_objects(&daemon);
    let pods = Crowd::new(&bed, PODS);
    let with_pods = held(&bed, &daemon);

    attach(&daemon, &pods);
    drop(clients(&daemon, &pods));
    end(&bed, &daemon, &pods, true);
    released("detached", &with_pods, &bed, &daemon);
    let after = daemon.resident_kib();

    attach(&daemon, &pods);
    let clients = clients(&daemon, &pods);
    let objects: BTreeSet<_> = bpf_objects(&daemon).difference(&own).copied().collect();
    assert!(objects.len() >= PODS / 8 * 3 && objects.iter().all(is_known), "{objects:?}");
    let most = daemon.resident_kib();
    end(&bed, &daemon, &pods, false);
    drop((clients, pods));
    released("deleted", &bare, &bed, &daemon);
    eventually("the kernel has nothing of them", SOON, || !objects.iter().any(is_known));
    let last = daemon.resident_kib();
    println!("resident after one round {after} KiB, at most {most} KiB, after two {last} KiB");
    assert!(last <= after + GROWTH_KIB, "{after} KiB after one round, {last} KiB after two");
    // It goes on serving.
    let tap = Tap::open(&bed.host_b, UPLINK);
    arrive(&daemon, &tap, &bed.pod_a, POD_B, 2, 5);
}

/// What an attachment without clients keeps resident: the figure of docs/guide/configuration.md, and some room.
#[test]
fn an_attachment_is_small() {
    let bed = Bed::new();
    let daemon = Daemon::start(&bed, &[daemon::Attachment::pod_a(&bed)]);
    let pods = Crowd::new(&bed, PODS);
    let mut control = daemon.control();
    let before = daemon.resident_kib();
    for index in 0..PODS {
        control.attach(pods.attachment(index)).expect("attach");
    }
    let each = daemon.resident_kib().saturating_sub(before) / PODS;
    println!("{each} KiB for each of {PODS} attachments");
    assert!(each <= ATTACHMENT_KIB, "{each} KiB for each of {PODS} attachments");
}
