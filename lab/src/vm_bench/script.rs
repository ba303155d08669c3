// SPDX-License-Identifier: Apache-2.0
//! What publisher and subscriber run: one shell script each, the same in a guest and in a host's namespace.
//!
//! In: a row's plan, names and addresses. Out: scripts, and what they write to their standard output, taken apart: files by name, each
//! behind a line with its name and length. The script of the subscriber says `ready` first.
//!
//! ```text
//!  subscriber  listen ─ ready ──────────────────────────────── mark heard ─ stop listening ─ files
//!  publisher                   frames of each payload ── mark ─ files
//! ```

use super::plan::{Keeper, Plan};
use std::collections::BTreeMap;
use std::net::Ipv4Addr;

/// The subscriber's port.
pub(super) const PORT: u16 = 7000;
/// The port of the frames that say that all others were sent.
const MARK_PORT: u16 = 7001;
/// The port that is heard by no program: what comes first teaches bridges and switches their stations.
const LEARN_PORT: u16 = 7002;
/// etf: so much before its transmit time a frame leaves the queue. The packets of a guest need some of it.
const ETF_DELTA: &str = "500us";
/// So far ahead the publisher sends for etf and for ktsnd. Not whole periods of 1 ms: in a guest with one CPU each send would run when an
/// earlier frame has to leave, and less than what ktsnd spins before a frame would come too late.
const LEAD: &str = "2700us";
/// Begins the line in front of a file.
const FILE: &str = "== ";
/// The name of the empty file that says that the subscriber listens.
pub(super) const READY: &str = "ready";
/// The files that the subscriber writes, the one that it writes last at the end.
pub(super) const SUBSCRIBERS_FILES: [&str; 4] = ["heard.json", "heard.csv.zst", "far-before", "far-after"];
/// Where `ktsn guest` keeps its record: hosts' namespaces share a file system.
const RECORDS: &str = "records";
/// Frames by which a schedule is checked before the first payload.
const VERIFY: u32 = 20;
/// The traffic class' priority.
const PRIORITY: u8 = 6;

/// One end of the experiment.
#[derive(Clone, Debug)]
pub(super) struct End {
    /// Its network device.
    pub(super) device: &'static str,
    /// The other end's address, and the MAC address to it.
    pub(super) peer: Ipv4Addr,
    /// See `peer`.
    pub(super) peer_mac: String,
    /// A directory of its own.
    pub(super) directory: String,
    /// SCHED_FIFO priority of its program.
    pub(super) fifo: Option<u8>,
    /// The CPU of its program.
    pub(super) cpu: Option<usize>,
}

impl End {
    /// Functions and variables of both scripts. `emit NAME` writes a file out; `counters NAME` reads what this end's kernel counts;
    /// `busy NAME` how long the threads of ktsnd have run.
    fn begin(&self) -> String {
        let Self { device, directory, peer, peer_mac, .. } = self;
        format!(
            "set -e\nmkdir -p {directory}\ncd {directory}\n\
             emit() {{ printf '{FILE}%s %s\\n' \"$1\" \"$(wc -c <\"$1\")\"; cat \"$1\"; }}\n\
             counters() {{ {{ ip -s -j link show dev {device}; echo; tc -s -j qdisc show dev {device}; echo; cat /proc/net/snmp; }} >\"$1\"; }}\n\
             busy() {{ {{ for of in /proc/[0-9]*; do if read -r name <$of/comm && [ \"$name\" = ktsnd ]; then cat $of/task/*/schedstat || true; fi; \
             done; }} 2>/dev/null >\"$1\"; }}\n\
             ip neigh replace {peer} lladdr {peer_mac} dev {device} nud permanent >&2\n"
        )
    }

    fn rights(&self) -> String {
        let fifo = self.fifo.map_or_else(String::new, |fifo| format!(" --fifo {fifo}"));
        self.cpu.map_or(fifo.clone(), |cpu| format!("{fifo} --cpu {cpu}"))
    }
}

/// The subscriber's script.
pub(super) fn subscriber(plan: &Plan, end: &End) -> String {
    let count = plan.frames * plan.payloads.len() as u64;
    let (begin, rights) = (end.begin(), end.rights());
    format!(
        "{begin}counters far-before\n\
         ktsn listen {PORT} --count {count} --records heard.csv.zst --json heard.json{rights} --ready-fd 3 3>up-1 >&2 &\n\
         listener=$!\n\
         ktsn listen {MARK_PORT} --count 1 --ready-fd 3 3>up-2 >&2 &\n\
         mark=$!\n\
         until [ -s up-1 ] && [ -s up-2 ]; do kill -0 $listener; kill -0 $mark; sleep 0.02; done\n\
         ktsn talk {}:{LEARN_PORT} --count 5 --period 20ms --mode sleep >&2 || true\n\
         : >{READY}\nemit {READY}\n\
         wait $mark\nsleep 0.3\nkill $listener 2>/dev/null || true\nwait $listener || true\n\
         counters far-after\n\
         for file in {}; do emit $file; done\n",
        end.peer,
        SUBSCRIBERS_FILES.join(" ")
    )
}

/// The publisher's script.
pub(super) fn publisher(plan: &Plan, end: &End, keeper: Keeper) -> String {
    let (begin, rights) = (end.begin(), end.rights());
    let End { device, peer, .. } = end;
    let mut script = format!(
        "{begin}ktsn talk {peer}:{LEARN_PORT} --count 5 --period 20ms --mode sleep >&2 || true\n{}",
        schedule(end, keeper)
    );
    let run = if keeper == Keeper::Ktsnd { "ktsn run --policy strict --run-dir run -- " } else { "" };
    let how = if keeper == Keeper::Send {
        "--mode sleep".to_owned()
    } else {
        format!("--mode txtime --lead {LEAD}")
    };
    let period = plan.period.get();
    let mut files = vec!["near-0".to_owned()];
    script.push_str("counters near-0\n");
    for (index, payload) in plan.payloads.iter().enumerate() {
        let first = plan.frames * index as u64;
        let after = index + 1;
        let [begun, ended] = if keeper == Keeper::Ktsnd {
            let names = [0, 1].map(|number| busy_file(index, number));
            let lines = names.each_ref().map(|name| format!("busy {name}\n"));
            files.extend(names);
            lines
        } else {
            [const { String::new() }; 2]
        };
        // A talker that could not send everything says so by its exit status, and its files say what.
        script.push_str(&format!(
            "{begun}{run}ktsn talk {peer}:{PORT} --payload {payload} --count {frames} --first-sequence {first} --period {period}ns \
             --priority {PRIORITY} {how}{rights} --records sent-{index}.csv.zst --json sent-{index}.json >&2 || [ $? = 1 ]\n\
             {ended}sleep 0.2\ncounters near-{after}\n",
            frames = plan.frames,
        ));
        if keeper == Keeper::Ktsnd {
            script.push_str(&format!("ktsn status --run-dir run --json >daemon-{after}\n"));
            files.push(format!("daemon-{after}"));
        }
        files.extend([
            format!("sent-{index}.json"),
            format!("sent-{index}.csv.zst"),
            format!("near-{after}"),
        ]);
    }
    if keeper != Keeper::Send {
        script.push_str(&format!("ktsn guest undo --device {device} --records {RECORDS} >&2\n"));
    }
    script.push_str(&format!(
        "ktsn talk {peer}:{MARK_PORT} --count 3 --period 100ms --mode sleep >&2 || true\n\
         for file in {}; do emit $file; done\n",
        files.join(" ")
    ));
    script
}

/// What ktsnd's threads had run before (0) and after (1) the frames of a payload, as the scheduler counts it.
pub(super) fn busy_file(payload: usize, number: usize) -> String {
    format!("busy-{payload}-{number}")
}

/// The command that makes the publisher's schedule: the one that users have (docs/guide/virtual-machines.md).
fn schedule(end: &End, keeper: Keeper) -> String {
    let mode = match keeper {
        Keeper::Send => return String::new(),
        // Priority 6 has a queue of its own; all else shares the other one.
        Keeper::Etf => format!("etf --classes 2 --delta {ETF_DELTA}"),
        Keeper::Ktsnd => "ktsnd --run-dir run --attach late=send".to_owned(),
    };
    let device = end.device;
    format!(
        "ktsn guest setup --device {device} --records {RECORDS} --priority {PRIORITY} --verify {VERIFY} --mode {mode} >&2\n"
    )
}

/// Files that a script has written out, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Files {
    whole: BTreeMap<String, Vec<u8>>,
    rest: Vec<u8>,
}

impl Files {
    /// Takes what the script wrote next. The script is not trusted: what is no file stays in `rest`, which has at most so many octets.
    pub(super) fn take(&mut self, octets: &[u8], octets_max: usize) -> Result<(), String> {
        self.rest.extend_from_slice(octets);
        while let Some(end) = self.rest.iter().position(|&octet| octet == b'\n') {
            let head = String::from_utf8_lossy(&self.rest[..end]).into_owned();
            let (name, length) = head
                .strip_prefix(FILE)
                .and_then(|head| head.split_once(' '))
                .and_then(|(name, length)| Some((name.to_owned(), length.parse::<usize>().ok()?)))
                .ok_or_else(|| format!("wrote the line {head:?}, which begins no file"))?;
            if length > octets_max {
                return Err(format!("wrote a file {name} of {length} octets; expected {octets_max} at most"));
            }
            let Some(content) = self.rest.get(end + 1..end + 1 + length) else { break };
            self.whole.insert(name, content.to_vec());
            self.rest.drain(..end + 1 + length);
        }
        if self.rest.len() > octets_max + 4096 {
            return Err(format!("wrote {} octets without a file", self.rest.len()));
        }
        Ok(())
    }

    /// Adds a file that came in another way.
    pub(super) fn insert(&mut self, name: &str, content: Vec<u8>) {
        self.whole.insert(name.to_owned(), content);
    }

    /// Whether a file is there.
    pub(super) fn has(&self, name: &str) -> bool {
        self.whole.contains_key(name)
    }

    /// A file's content.
    pub(super) fn get(&self, name: &str) -> Option<&[u8]> {
        self.whole.get(name).map(Vec::as_slice)
    }
}
