// SPDX-License-Identifier: Apache-2.0
//! The attacks. In: nothing. Out: their table.

use ktsn_tests::hostile::foreign::Way;
use ktsn_tests::hostile::judge::ONE_FRAME_NS;

/// An attack beside the innocent stream.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Beside {
    /// The arguments of the program `attack`.
    pub(crate) words: &'static str,
    /// What the testbed is like, and what happens in the middle of a round.
    pub(crate) bed: On,
    /// How much later than in the control a frame may be, at p50, nanoseconds.
    pub(crate) p50_more_ns: i64,
    /// Whether the daemon's memory is judged, too.
    pub(crate) is_memory: bool,
}

/// Where an attack takes place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum On {
    /// Two ordinary attachments.
    Plain,
    /// The attacker is metered.
    Metered,
    /// The attacker's interface goes away in the middle.
    Removed,
    /// The attacker's root changes its namespace.
    Changed,
    /// The attacker's frames leave by its own interface, behind so many [`rules`](ktsn_tests::hostile::rules) of its own.
    OwnRules(usize),
}

/// What is tried, and how it is judged.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    /// The innocent stream, with and without.
    Stream(Beside),
    /// The innocent stream beside a computing program instead of an attack: its p50 bounds the p50 under attacks.
    Computing(Beside),
    /// Another pod's first attach, with and without.
    Attach(&'static str),
    /// Frames with a foreign source.
    Source(Way),
    /// Frames to a foreign address, by the ingress fast path.
    Short,
    /// The worker fails so.
    Fault(&'static str),
}

/// A case.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    /// Its name, for `ONLY=`.
    pub(crate) name: &'static str,
    /// In words.
    pub(crate) about: &'static str,
    /// What is tried.
    pub(crate) kind: Kind,
}

const fn stream(name: &'static str, about: &'static str, words: &'static str) -> Case {
    on(On::Plain, name, about, words)
}

const fn on(bed: On, name: &'static str, about: &'static str, words: &'static str) -> Case {
    Case { name, about, kind: Kind::Stream(Beside { words, bed, p50_more_ns: 0, is_memory: false }) }
}

/// The attacker's frames are due in the innocent stream's class: one that has begun is waited for.
const fn same_class(name: &'static str, about: &'static str, words: &'static str) -> Case {
    let beside = Beside { words, bed: On::Plain, p50_more_ns: ONE_FRAME_NS, is_memory: false };
    Case { name, about, kind: Kind::Stream(beside) }
}

const fn memory(name: &'static str, about: &'static str, words: &'static str) -> Case {
    Case {
        name,
        about,
        kind: Kind::Stream(Beside { words, bed: On::Plain, p50_more_ns: 0, is_memory: true }),
    }
}

const fn attach(name: &'static str, about: &'static str, words: &'static str) -> Case {
    Case { name, about, kind: Kind::Attach(words) }
}

/// What the cases of kind `Stream` are held against, besides their controls.
pub(crate) const COMPUTING: Case = Case {
    name: "computing",
    about: "no attack: a program without any contact to ktsnd computes on the worker's CPU",
    kind: Kind::Computing(Beside {
        words: "compute cpu=1",
        bed: On::Plain,
        p50_more_ns: 0,
        is_memory: false,
    }),
};

/// All cases, in the order in which they run.
pub(crate) const ALL: &[Case] = &[
    COMPUTING,
    stream(
        "full-1",
        "1 connection, its ring kept full, due now; the worker's CPU is wanted",
        "fill clients=1 busy=1 ring_us=500",
    ),
    stream(
        "full-64",
        "64 connections, rings kept full, due now; the worker's CPU is wanted",
        "fill clients=64 busy=1 ring_us=500",
    ),
    stream(
        "full-256",
        "256 connections, rings kept full, due now; the worker's CPU is wanted",
        "fill clients=256 busy=1 ring_us=500",
    ),
    on(On::Metered, "metered-1", "the same, 1, metered at 10 Mbit/s", "fill clients=1 busy=1 ring_us=500"),
    on(On::Metered, "metered-64", "the same, 64, metered", "fill clients=64 busy=1 ring_us=500"),
    on(On::Metered, "metered-256", "the same, 256, metered", "fill clients=256 busy=1 ring_us=500"),
    stream(
        "beyond-256",
        "256 connections, rings kept full, beyond the horizon",
        "fill clients=256 due=beyond",
    ),
    stream(
        "storm",
        "8 connections: full rings, Unregister, Register each 10 ms",
        "fill clients=8 due=beyond storm=1 every_us=10000",
    ),
    on(
        On::Removed,
        "removal",
        "256 connections with full rings, the interface goes away",
        "fill clients=256 due=beyond every_us=1000",
    ),
    stream("punch", "holes punched in the own region, doorbells each 0.5 ms", "punch"),
    stream("punch-idle", "the same by a SCHED_IDLE thread beside a busy one", "punch idle=1"),
    stream(
        "instant-other",
        "8,192 frames for one instant, each 100 ms, lower class",
        "fill clients=8 due=instant payload=200 every_us=100000",
    ),
    same_class(
        "instant-same",
        "8,192 frames for one instant, each 100 ms, same class",
        "fill clients=8 due=instant payload=200 every_us=100000 priority=6",
    ),
    same_class(
        "instant-again",
        "8,192 frames for one instant, each 35 ms, same class",
        "fill clients=8 due=instant payload=200 every_us=35000 priority=6",
    ),
    stream("bells-256", "256 connections ring without end", "bells clients=256"),
    stream(
        "phases",
        "256 streams of odd periods stop and begin again: the worker expects frames that never come",
        "phases clients=4 streams=64 payload=64",
    ),
    memory("memory-once", "256 connections, all slots once", "fill clients=256 due=beyond payload=1 once=1"),
    memory(
        "memory-again",
        "256 connections, all slots again and again",
        "fill clients=256 due=beyond payload=1",
    ),
    memory("memory-idle", "256 connections that say nothing more", "fill clients=256 frames=0"),
    on(
        On::OwnRules(0),
        "own-interface",
        "frames by the pod's own device, without a rule there",
        "fill clients=4 payload=200",
    ),
    on(
        On::OwnRules(3_500),
        "own-rules-3500",
        "the same, with 3,500 nftables rules there",
        "fill clients=4 payload=200",
    ),
    on(
        On::OwnRules(ktsn_tests::hostile::rules::RULES),
        "own-rules",
        "the same, with 8,000 rules",
        "fill clients=4 payload=200",
    ),
    on(On::Changed, "flap", "8,000 routes, one more comes and goes each 0.5 ms", "flap routes=8000"),
    on(On::Changed, "routes", "200,000 routes, one more comes and goes each 0.5 ms", "flap routes=200000"),
    on(On::Changed, "names", "the interface is renamed each ms", "names"),
    stream("later", "datagrams of 60,000 octets for the kernel, due now", "later clients=4"),
    stream(
        "later-again",
        "the same, due in 0.5 s: as many as may wait",
        "later clients=16 ahead_us=500000 payload=1000",
    ),
    stream("expect", "64 connections ask for the receive area without end", "expect clients=64"),
    attach("locks", "16 sockets locked 30 ms at a time on 32 connections", "locks cpu=-1"),
    attach("locks-no-right", "the same by hole punching, without any right", "locks rights=0"),
    attach("churn", "connections that open and close", "churn"),
    Case { name: "source-bound", about: "foreign source by IP_FREEBIND", kind: Kind::Source(Way::Bound) },
    Case {
        name: "source-added",
        about: "foreign source added to the interface",
        kind: Kind::Source(Way::Added),
    },
    Case {
        name: "source-raw",
        about: "foreign source in a packet socket's frame",
        kind: Kind::Source(Way::Raw),
    },
    Case {
        name: "source-arp",
        about: "foreign sender in a packet socket's ARP",
        kind: Kind::Source(Way::Arp),
    },
    Case { name: "source-tagged", about: "the same behind a VLAN tag", kind: Kind::Source(Way::Tagged) },
    Case { name: "short", about: "foreign addresses by the ingress fast path", kind: Kind::Short },
    Case { name: "panic", about: "the worker panics (debug build)", kind: Kind::Fault("panic ktsn-worker") },
    Case { name: "stall", about: "the worker hangs (debug build)", kind: Kind::Fault("stall ktsn-worker") },
];
