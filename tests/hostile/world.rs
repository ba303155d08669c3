// SPDX-License-Identifier: Apache-2.0
//! One side of one round: a daemon as users have it, the innocent stream, and beside it an attack or none.
//!
//! In: which programs, which case. Out: what the stream became on the wire, and the daemon's counters of it.
//!
//! ```text
//!  observer ready ── talker ready ── attack ready ── first frame ══════ (removal) ══════ last frame ── attack ends
//! ```

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use ktsn_lab::process::{Process, Program};
use ktsn_measure::clock::tai_now;
use ktsn_measure::environment::CpuUse;
use ktsn_tests::faults::bed::{Bed, POD_B, UPLINK};
use ktsn_tests::faults::daemon::Daemon;
use ktsn_tests::faults::eventually;
use ktsn_tests::hostile::judge::Round;
use ktsn_tests::hostile::wire::{PORT, Seen, Wire};
use ktsn_tests::hostile::{Attack, VICTIM, attachments, metered, rules};
use ktsn_time::{Nanos, Tai};
use serde::Serialize;

use crate::Options;
use crate::cases::{Beside, On};

/// From the talker's start to its first frame: the attack begins meanwhile.
const BEGIN: Duration = Duration::from_millis(900);
/// The talker's lead, as in the review that found these attacks.
const LEAD: &str = "5ms";
/// How often the talker may try to begin.
const TRIES_MAX: u32 = 4;
/// How long the talker may take to begin.
const READY_MAX: Duration = Duration::from_secs(20);
/// How much longer than planned the talker may take: its ring may be full.
const TALK_MORE: Duration = Duration::from_secs(4);
const END_MAX: Duration = Duration::from_secs(10);
/// Until the last frame is on the wire.
const LINGER: Duration = Duration::from_millis(60);

/// What one side of one round was.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Side {
    pub(crate) frames: u64,
    /// Frames that are not on the wire.
    pub(crate) lost: u64,
    /// Frames on the wire before their transmit time: the kernel sent them.
    pub(crate) early: u64,
    pub(crate) p50_ns: Option<i64>,
    pub(crate) p99_ns: Option<i64>,
    pub(crate) max_ns: Option<i64>,
    /// Why the daemon dropped frames of the stream.
    pub(crate) dropped: std::collections::BTreeMap<String, u64>,
    pub(crate) sent: u64,
    pub(crate) overrun: u64,
    /// What the attacking program counted.
    pub(crate) attack: String,
    /// The most resident memory that the daemon has had since it began, KiB.
    pub(crate) resident_kib_max: usize,
    pub(crate) steal_ratio: f64,
    pub(crate) cpu_pressure_some_ratio: Option<f64>,
}

impl Side {
    fn of(frames: u64, seen: &Seen) -> Self {
        Self {
            frames,
            lost: frames - seen.frames,
            early: seen.early,
            p50_ns: seen.p50,
            p99_ns: seen.p99,
            max_ns: seen.max,
            ..Self::default()
        }
    }

    /// For the judge: an early frame is as bad as a lost one.
    pub(crate) const fn round(&self) -> Round {
        Round { lost: self.lost + self.early, p50: self.p50_ns, p99: self.p99_ns }
    }
}

/// How the innocent stream begins.
pub(crate) struct Talk<'a> {
    pub(crate) options: &'a Options,
    pub(crate) bed: &'a Bed,
    pub(crate) run_dir: &'a Path,
    pub(crate) directory: &'a Path,
}

impl Talk<'_> {
    fn talker(&self, at: u64) -> Program {
        let words = [
            format!("{POD_B}:{PORT}"),
            format!("--count={}", self.options.frames),
            format!("--start-at={at}"),
            format!("--lead={LEAD}"),
        ];
        Program::new("talk", &self.options.programs.join("ktsn"))
            .args(["talk", "--cpu=0", "--fifo=40"])
            .args(words)
            .env("LD_PRELOAD", self.options.programs.join("libktsn.so"))
            .env("KTSN_RUN_DIR", self.run_dir)
            .within(&self.bed.pod_a)
            .says_ready()
    }

    /// The talker with its first transmit time. On a busy machine it may come too late for that: then it is tried again.
    pub(crate) fn begin(&self) -> anyhow::Result<(Process, Tai)> {
        let mut tries = 1;
        loop {
            let begin = BEGIN * tries;
            let at = tai_now().saturating_add(Nanos::from_millis(i64::try_from(begin.as_millis())?));
            let mut talker = self.talker(at.as_nanos()).start(self.directory)?;
            match talker.wait_ready(READY_MAX) {
                Ok(()) => return Ok((talker, at)),
                Err(error) if tries == TRIES_MAX => return Err(error.into()),
                Err(_) => tries += 1,
            }
        }
    }
}

/// Sleeps until half of the stream, which begins at `at`, has gone.
pub(crate) fn sleep_until_half(options: &Options, at: Tai) {
    let half = Nanos::from_micros(500).saturating_mul(options.frames.cast_signed());
    let wait = at.saturating_add(half).since(tai_now()).get();
    std::thread::sleep(Duration::from_nanos(u64::try_from(wait).unwrap_or(0)));
}

/// A testbed with a daemon of these programs.
pub(crate) struct World<'a> {
    options: &'a Options,
    beside: Beside,
    bed: Bed,
    daemon: Daemon,
    directory: tempfile::TempDir,
}

/// A daemon on host A as users have it who pin its worker.
pub(crate) fn daemon(options: &Options, bed: &Bed, tables: &str) -> Daemon {
    let text = format!("[[port]]\ndevice = \"{UPLINK}\"\ncpu = 1\npriority = 50\n{tables}");
    let mut daemon =
        Daemon::prepare(&bed.host_a, &text).of(&options.programs.join("ktsnd")).logging_as_shipped();
    daemon.spawn();
    daemon
}

/// A testbed whose far host drops the frames behind the tap: its receive path would run inside the hand-over here.
pub(crate) fn bed() -> Bed {
    let bed = Bed::new();
    bed.run(&format!(
        "ip netns exec {} iptables -w -t raw -A PREROUTING -i {UPLINK} -p udp --dport 8472 -j DROP",
        bed.host_b
    ));
    bed
}

impl<'a> World<'a> {
    pub(crate) fn new(options: &'a Options, beside: Beside) -> anyhow::Result<Self> {
        let bed = bed();
        let [victim, attacker] = attachments(&bed);
        let mut tables = victim.toml();
        if let On::OwnRules(count) = beside.bed {
            rules::own(&bed, count);
            tables += &rules::by_interface(attacker);
        } else {
            tables += &attacker.toml();
        }
        if beside.bed == On::Metered {
            tables += &metered();
        }
        let daemon = daemon(options, &bed, &tables);
        let directory = tempfile::tempdir().context("temporary directory")?;
        Ok(Self { options, beside, bed, daemon, directory })
    }

    /// Why the daemon no longer serves, if it does not.
    pub(crate) fn fault(&mut self) -> Option<String> {
        self.daemon.has_ended().map(|status| format!("ktsnd ended: {status}"))
    }

    /// Runs one side: with the attack or without.
    pub(crate) fn side(&mut self, is_attacked: bool) -> anyhow::Result<Side> {
        let wire = Wire::open(&self.bed.host_b, UPLINK);
        let before = self.daemon.control().counters(VICTIM);
        let begun = CpuUse::now();
        let (mut talker, at) = Talk {
            options: self.options,
            bed: &self.bed,
            run_dir: self.daemon.run_dir(),
            directory: self.directory.path(),
        }
        .begin()?;
        let mut attack = self.begin(is_attacked)?;
        let late = tai_now().since(at);
        ensure!(
            late < Nanos::from_micros(500).saturating_mul(self.options.frames.cast_signed()),
            "the attack took too long to begin: half of the frames had gone"
        );
        if is_attacked && self.beside.bed == On::Removed {
            sleep_until_half(self.options, at);
            self.bed.run(&format!("ip -n {} link del eth0", self.bed.pod_q));
        }
        end_talker(&mut talker, Duration::from_millis(self.options.frames) + TALK_MORE)?;
        let disturbance = CpuUse::now().since(&begun);
        std::thread::sleep(LINGER);
        if let Some(attack) = &mut attack {
            attack.end();
            let did = ["pushed", "punched", "punch_errno", "rung", "walks", "flaps", "renames"]
                .iter()
                .any(|what| attack.value(what) > 0);
            let is_idle = self.beside.words.contains("frames=0");
            ensure!(did || is_idle, "the attack did nothing: {}", attack.said());
        }
        if let Some(fault) = self.fault() {
            bail!(fault);
        }
        let after = self.daemon.control().counters(VICTIM);
        let mut side = Side::of(self.options.frames, &wire.seen(self.options.frames));
        let news = |(reason, count): (&String, &u64)| {
            let news = count - before.dropped.get(reason).copied().unwrap_or(0);
            (news > 0).then(|| (reason.clone(), news))
        };
        side.dropped = after.dropped.iter().filter_map(news).collect();
        side.sent = after.sent - before.sent;
        side.overrun = after.overrun - before.overrun;
        side.attack = attack.map_or(String::new(), |attack| attack.said());
        side.resident_kib_max = self.daemon.resident_kib_max();
        side.steal_ratio = disturbance.steal_ratio;
        side.cpu_pressure_some_ratio = disturbance.cpu_pressure_some_ratio;
        self.tidy(is_attacked);
        Ok(side)
    }

    fn begin(&self, is_attacked: bool) -> anyhow::Result<Option<Attack>> {
        if !is_attacked {
            return Ok(None);
        }
        let begun = Attack::start(self.daemon.run_dir(), &self.bed.pod_q, self.beside.words);
        let attack = begun.map_err(anyhow::Error::msg)?;
        // Limits may let in fewer than it wants; without any it would prove nothing.
        let needs_client = self.beside.bed != On::Changed && !self.beside.words.starts_with("compute");
        ensure!(!needs_client || attack.value("clients") > 0, "the attack has no client: {}", attack.said());
        Ok(Some(attack))
    }

    /// Nothing of this side is left when the next begins.
    fn tidy(&mut self, is_attacked: bool) {
        eventually("the programs' clients go", Duration::from_secs(60), || self.daemon.clients() == 0);
        if is_attacked && self.beside.bed == On::Changed {
            self.bed.run(&format!("ip -n {} link del eth0", self.bed.pod_q));
        }
        if is_attacked && matches!(self.beside.bed, On::Removed | On::Changed) {
            self.bed.restore_pod_q();
            let [_, attacker] = attachments(&self.bed);
            // The attachment went with its interface.
            self.daemon.kill();
            let [victim, _] = attachments(&self.bed);
            self.daemon = daemon(self.options, &self.bed, &format!("{}{}", victim.toml(), attacker.toml()));
        }
    }
}

/// A talker that waits for room longer than this gets a signal to end, then is killed: what it has not sent is lost.
pub(crate) fn end_talker(talker: &mut Process, longest: Duration) -> anyhow::Result<()> {
    if talker.wait_any(longest + BEGIN)?.is_none() {
        talker.ask_to_end()?;
        if talker.wait_any(END_MAX / 5)?.is_none() {
            talker.kill()?;
            talker.wait_any(END_MAX)?;
        }
    }
    Ok(())
}
