// SPDX-License-Identifier: Apache-2.0
//! Error reports and transmit timestamps: what a program reads, and when it is woken, against the kernel alone.
//!
//! Pod A sends to pod Q on the same bridge, so KTSN's frames are the kernel's own, octet by octet.

#[allow(dead_code)]
use std::net::UdpSocket;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use ktsn_tests::faults::bed::{Bed, POD_B, POD_B6, POD_Q, UPLINK, within};
use ktsn_tests::faults::daemon::{Attachment, Daemon, NAME};
use ktsn_tests::faults::{Tap, eventually};
use ktsn_tests::hook;

const POD_Q6: &str = "fd10:244:0:0::6";
const PORT: u16 = 7788;
/// Nobody's: the bridge floods it.
const LINK: &str = "02:00:00:00:99:01";
const SOON: Duration = Duration::from_secs(20);

// SOF_TIMESTAMPING_*
const TX_SOFTWARE: u32 = 1 << 1;
const SOFTWARE: u32 = 1 << 4;
const OPT_ID: u32 = 1 << 7;
const TX_SCHED: u32 = 1 << 8;
const OPT_CMSG: u32 = 1 << 10;
const OPT_TSONLY: u32 = 1 << 11;
const BOTH: u32 = TX_SOFTWARE | TX_SCHED | SOFTWARE;

fn program() -> &'static Path {
    hook::compiled("errors_program")
}

struct World {
    bed: Bed,
    daemon: Daemon,
    _listeners: [UdpSocket; 2],
}

impl World {
    fn new() -> Self {
        let bed = Bed::new();
        // The first datagram to an unknown neighbour waits in the kernel, and is dropped here by name.
        for to in [POD_Q, POD_Q6] {
            bed.run(&format!(
                "ip -n {} neigh replace {to} lladdr $(ip -n {} -br link show eth0 | awk '{{print $3}}') dev eth0 nud permanent",
                bed.pod_a, bed.pod_q
            ));
        }
        let attachment = Attachment::pod_a(&bed).to(&[
            "10.244.0.0/24",
            "fd10:244:0:0::/64",
            "10.244.1.0/24",
            "fd10:244:0:1::/64",
            LINK,
        ]);
        let daemon = Daemon::start(&bed, &[attachment.by_clock()]);
        let _listeners = within(&bed.pod_q, || {
            [POD_Q, POD_Q6].map(|address| UdpSocket::bind((address, PORT)).expect("listener"))
        });
        Self { bed, daemon, _listeners }
    }

    fn arguments(scenario: &str, to: &str, keys: &str) -> Vec<String> {
        let fixed = [scenario.to_owned(), to.to_owned(), PORT.to_string()];
        fixed.into_iter().chain(keys.split_whitespace().map(str::to_owned)).collect()
    }

    /// What the program prints on the kernel alone.
    fn by_kernel(&self, scenario: &str, to: &str, keys: &str) -> String {
        let mut command = Command::new(program());
        command.args(Self::arguments(scenario, to, keys)).stdin(Stdio::null());
        text(&within(&self.bed.pod_a, || command.output()).expect("program"))
    }

    /// What it prints with KTSN.
    fn by_ktsn(&self, scenario: &str, to: &str, keys: &str) -> String {
        let child = self.daemon.program(&self.bed.pod_a, program(), &Self::arguments(scenario, to, keys));
        text(&child.wait_with_output().expect("program"))
    }

    /// The program behaves alike; what it printed.
    fn alike(&self, scenario: &str, to: &str, keys: &str) -> String {
        let expected = self.by_kernel(scenario, to, keys);
        let sent = self.sent();
        let found = self.by_ktsn(scenario, to, keys);
        // Where KTSN sends nothing, the comparison says nothing.
        eventually("KTSN has sent", SOON, || self.sent() > sent);
        let dropped = self.daemon.control().counters(NAME).dropped;
        assert_eq!(found, expected, "{scenario} {to} {keys}: {dropped:?}");
        found
    }

    fn sent(&self) -> u64 {
        self.daemon.control().counters(NAME).sent
    }
}

fn text(output: &Output) -> String {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{:?}\n{errors}", output.status);
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn value(text: &str, name: &str) -> i64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("{name} in {text}")).parse().expect("a number")
}

#[test]
fn entries_are_the_kernels_octet_by_octet() {
    let world = World::new();
    for (to, bind) in [(POD_Q, 7100), (POD_Q6, 7101), ("mapped", 7102)] {
        let (to, mapped) = if to == "mapped" { (POD_Q, "mapped=1") } else { (to, "") };
        for (flags, per) in [
            (BOTH, 2),
            (TX_SOFTWARE | SOFTWARE, 1),
            (TX_SCHED | SOFTWARE, 1),
            (TX_SOFTWARE, 1),
            (BOTH | OPT_ID, 2),
            (BOTH | OPT_ID | OPT_CMSG, 2),
            (BOTH | OPT_ID | OPT_TSONLY, 2),
            (BOTH | OPT_TSONLY, 2),
        ] {
            let keys = format!("{mapped} bind={bind} flags={flags} per={per} count=3 name=1");
            let found = world.alike("dump", to, &keys);
            assert_eq!(found.matches("entry ").count(), 3 * per, "{found}");
        }
    }
}

/// Packet sockets, whole frames and payloads, also one that hears every frame of every interface.
#[test]
fn entries_of_packet_sockets_are_the_kernels_octet_by_octet() {
    let world = World::new();
    // On a bridge the kernel tells of a packet socket's frame once more for each further device, as the frame keeps its socket.
    world.bed.run(&format!("ip -n {} link set pod5 nomaster", world.bed.host_a));
    for shape in ["raw=1", "raw=0", "raw=1 protocol=3"] {
        for (flags, per) in [
            (BOTH, 2),
            (TX_SOFTWARE, 1),
            (TX_SCHED | SOFTWARE, 1),
            (BOTH | OPT_ID | OPT_CMSG, 2),
            (BOTH | OPT_ID | OPT_TSONLY, 2),
            (BOTH | OPT_TSONLY, 2),
        ] {
            let found = world.alike("dump", LINK, &format!("{shape} flags={flags} per={per} count=3 name=1"));
            assert_eq!(found.matches("entry ").count(), 3 * per, "{found}");
        }
        for record in [TX_SOFTWARE, TX_SCHED] {
            world.alike(
                "dump",
                LINK,
                &format!("{shape} flags={} record={record} count=2", SOFTWARE | OPT_ID),
            );
        }
        for (room, control) in [(0, 0), (10, 40), (19, 31), (33, 32), (34, 100)] {
            world.alike(
                "dump",
                LINK,
                &format!("{shape} flags={BOTH} per=2 count=1 room={room} control={control}"),
            );
        }
        for mode in ["poll", "select", "edge"] {
            let found = world.alike(
                &format!("ready-{mode}"),
                LINK,
                &format!("{shape} flags={}", TX_SOFTWARE | SOFTWARE),
            );
            assert_eq!(
                ["woken", "read", "stray"].map(|name| value(&found, name)),
                [20, 20, 0],
                "{mode}: {found}"
            );
        }
    }
}

/// etf's reports (sch_etf), as a packet socket shows them.
#[test]
fn late_and_invalid_frames_are_reported() {
    let world = World::new();
    let found = world.by_ktsn("report", LINK, "clock=11 txtime=2");
    let lines = |start: &str| found.lines().filter(|line| line.starts_with(start)).collect::<Vec<_>>();
    assert_eq!(lines("events "), ["events 8"; 3], "POLLERR: {found}");
    assert_eq!(lines("entry "), ["entry 20 flags 2000 name 0 control 32"; 3], "{found}");
    assert!(
        lines("data ").iter().all(|line| line.ends_with("88b57265706f7274.")),
        "the whole frame: {found}"
    );
    assert_eq!(lines("report "), ["report 22 origin 6 code 1 time right"; 3], "{found}");
}

#[test]
fn stamps_asked_for_one_message() {
    let world = World::new();
    for record in [0, TX_SOFTWARE, TX_SCHED, TX_SOFTWARE | TX_SCHED] {
        for flags in [SOFTWARE, BOTH, SOFTWARE | OPT_ID] {
            let keys = format!("bind=7100 flags={flags} record={record} per={} count=3", record.count_ones());
            world.alike("dump", POD_Q, &keys);
        }
    }
}

#[test]
fn small_buffers_are_filled_as_by_the_kernel() {
    let world = World::new();
    for to in [POD_Q, POD_Q6] {
        for (room, control) in
            [(0, 0), (0, 1024), (1, 16), (10, 40), (50, 63), (61, 64), (62, 100), (2048, 15)]
        {
            for more in ["", "cloexec=1 name=1"] {
                let keys =
                    format!("bind=7100 flags={BOTH} per=2 count=1 room={room} control={control} {more}");
                world.alike("dump", to, &keys);
            }
        }
    }
    // A frame longer than what is looked at, cut in the middle or not.
    for room in [100, 200, 1000, 4000] {
        world.alike("dump", POD_Q, &format!("bind=7100 flags={BOTH} per=2 count=1 size=900 room={room}"));
    }
}

/// `recv`, `recvfrom`, and pointers to nothing: EFAULT where the kernel says so, and the entry is gone where it is there.
#[test]
fn other_ways_of_reading_are_the_kernels() {
    let world = World::new();
    for how in 1..=10 {
        world.alike("otherwise", POD_Q, &format!("bind=7100 flags={BOTH} how={how}"));
        // Longer than what is looked at of an entry; the other family.
        let to = if how % 2 == 0 { POD_Q } else { POD_Q6 };
        world.alike("otherwise", to, &format!("bind=7100 flags={BOTH} how={how} size=900"));
    }
}

/// etf's reports (sch_etf): missed; a transmit time of 0; beyond the horizon. IPv4 and IPv6, on the overlay.
#[test]
fn missed_and_invalid_are_reported() {
    let world = World::new();
    for (to, headers, item) in [(POD_B, 42, "message 0 11 48 "), (POD_B6, 62, "message 41 25 60 ")] {
        let found = world.by_ktsn("report", to, "clock=11 txtime=2 bind=7100");
        let lines = |start: &str| found.lines().filter(|line| line.starts_with(start)).collect::<Vec<_>>();
        assert_eq!(lines("events "), ["events 8"; 3], "POLLERR: {found}");
        let entry = format!(
            "entry {} flags 2000 name 0 control {}",
            headers + 6,
            if headers == 42 { 48 } else { 64 }
        );
        assert_eq!(lines("entry "), [&entry[..]; 3], "{found}");
        assert!(
            lines("data ").iter().all(|line| line.ends_with("7265706f7274.")),
            "the whole frame: {found}"
        );
        assert_eq!(lines("message ").iter().filter(|line| line.starts_with(item)).count(), 3, "{found}");
        assert_eq!(lines("report "), ["report 22 origin 6 code 1 time right"; 3], "{found}");
        assert!(found.ends_with("then -1\n"), "{found}");
    }
    // Nobody asked: nothing is told.
    let silent = world.by_ktsn("report", POD_B, "clock=11 bind=7100");
    assert_eq!(silent.matches("events 0").count(), 3, "{silent}");
}

#[test]
fn every_way_of_waiting_is_woken_once() {
    let world = World::new();
    for mode in ["poll", "ppoll", "select", "pselect", "level", "edge", "oneshot"] {
        for (to, more) in [(POD_Q, ""), (POD_Q6, "select_error=1 connect=1")] {
            let keys = format!("flags={} count=20 bind=7100 {more}", TX_SOFTWARE | SOFTWARE);
            let found = world.alike(&format!("ready-{mode}"), to, &keys);
            let numbers = ["woken", "read", "stray"].map(|name| value(&found, name));
            assert_eq!(numbers, [20, 20, 0], "{mode}: {found}");
        }
    }
}

#[test]
fn late_readers_find_all_in_order() {
    let world = World::new();
    for more in ["", "batch=1"] {
        let found = world.alike("late", POD_Q, &format!("flags={} count=40 {more}", TX_SOFTWARE | SOFTWARE));
        assert_eq!((value(&found, "read"), value(&found, "ordered")), (40, 1), "{found}");
    }
}

/// 2,000 frames with stamps that the program never reads: all leave.
#[test]
fn who_never_reads_goes_on_sending() {
    let world = World::new();
    let tap = Tap::open(&world.bed.host_b, UPLINK);
    let before = world.sent();
    let found = world.by_ktsn("never", POD_B, &format!("flags={BOTH} txtime=2 count=2000"));
    assert_eq!(value(&found, "sent"), 2000);
    eventually("all are sent", SOON, || world.sent() - before == 2000);
    let (reports, dropped) = eventually("each report is sent or dropped", SOON, || {
        let workers = world.daemon.control().statistics_of("").expect("statistics").workers;
        let reports: u64 = workers.iter().map(|worker| worker.reports).sum();
        let dropped: u64 = workers.iter().map(|worker| worker.reports_dropped).sum();
        (reports + dropped == 2000).then_some((reports, dropped))
    });
    assert!(reports > 0 && dropped > 0, "{reports} reports, {dropped} dropped");
    let place = world.daemon.run_dir().display().to_string();
    let status: serde_json::Value =
        serde_json::from_str(&text(&ktsn_tests::cli::run(&["status", "--json", "--run-dir", &place])))
            .expect("JSON");
    let worker = &status["statistics"]["workers"][0];
    assert_eq!(
        (&worker["reports"], &worker["reports_dropped"]),
        (&reports.into(), &dropped.into()),
        "{status}"
    );
    assert!(worker["notices_lost"].is_u64(), "{status}");
    assert!(text(&ktsn_tests::cli::run(&["status", "--run-dir", &place])).contains("notices lost"));
    drop(tap);
}

#[test]
fn a_port_is_free_as_soon_as_it_is_closed() {
    let world = World::new();
    let found = world.by_ktsn("rebound", POD_Q, &format!("flags={BOTH} lead_us=100 bind=7100 count=200"));
    assert_eq!(value(&found, "failed"), 0);
}

#[test]
fn a_child_that_reads_takes_nothing_from_later_entries() {
    let world = World::new();
    let found = world.by_ktsn("forked", POD_Q, &format!("flags={}", TX_SOFTWARE | SOFTWARE));
    assert_eq!((value(&found, "child"), value(&found, "strays")), (0, 0), "{found}");
    // The entry that the child passed over is the parent's again, as no marker tells of it any more.
    assert!((4..=5).contains(&value(&found, "read")), "{found}");
}

#[test]
fn the_daemon_is_killed_in_between() {
    let mut world = World::new();
    let keys = format!("flags={} count=5000", TX_SOFTWARE | SOFTWARE);
    let arguments = World::arguments("stream", POD_Q, &keys);
    let child = world.daemon.program(&world.bed.pod_a, program(), &arguments);
    eventually("traffic", SOON, || world.daemon.control().counters(NAME).sent > 600);
    world.daemon.kill();
    // The program sends while no ktsnd runs.
    std::thread::sleep(Duration::from_millis(300));
    world.daemon.spawn();
    let found = text(&child.wait_with_output().expect("program"));
    assert_eq!(value(&found, "failed"), 0);
    assert!(value(&found, "read") > 500, "{found}");
    assert!(value(&found, "last") > 4500, "attached again, and told again: {found}");
    assert_eq!(value(&found, "waits"), 0, "it waits for no daemon: {found}");
}

/// What is taken of a program to tell it is given back.
#[test]
fn no_socket_is_kept() {
    let world = World::new();
    let found = world.by_ktsn("late", POD_Q, &format!("flags={BOTH} count=200"));
    assert!(value(&found, "read") > 0);
    eventually("no client is left", SOON, || world.daemon.clients() == 0);
    let descriptors = world.daemon.descriptors();
    let rest = world.by_ktsn("late", POD_Q, &format!("flags={BOTH} count=200"));
    assert!(value(&rest, "read") > 0);
    // The question itself has a descriptor.
    let is_back = || world.daemon.descriptors() <= descriptors + 1;
    eventually("descriptors are closed", SOON, is_back);
}
