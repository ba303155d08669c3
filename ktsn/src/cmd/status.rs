// SPDX-License-Identifier: Apache-2.0
//! `ktsn status`: what a running ktsnd does.
//!
//! In: a run directory. Out: a table or JSON of its ports, attachments, clients, streams and counters. Asks and
//! changes nothing.

use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use ktsn_proto::v1;
use serde_json::{Value, json};

use super::schedule;
use crate::control::{self, ControlError};
use crate::output::{self, Written, columns, span};
use crate::running::{self, Found};

mod addresses;
mod counters;
mod deferred;
mod health;
mod ingress;
mod overlay;
mod policing;
mod rules;

/// How often `--watch` looks.
const WATCH_PERIOD: Duration = Duration::from_secs(1);
/// Clears the terminal and puts the cursor to its top.
const CLEAR: &str = "\x1b[H\x1b[2J";

const EXAMPLES: &str = "\
Examples:
  ktsn status
  ktsn status --run-dir /run/ktsn-test --json | jq .statistics
  ktsn status --watch
  ktsn status --peers

Exit status: 0 ktsnd answered; 1 no ktsnd answers there; 2 wrong usage.";

/// Show what ktsnd does: ports, attachments, clients, streams, counters.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct StatusArgs {
    /// Directory of the ktsnd to ask [default: KTSN_RUN_DIR, else /run/ktsn, else that of the only `ktsn run --with-daemon`].
    #[arg(long, value_name = "DIR")]
    run_dir: Option<PathBuf>,
    /// JSON instead of tables; with --watch one line each second.
    #[arg(long)]
    json: bool,
    /// Again each second, until interrupted.
    #[arg(long)]
    watch: bool,
    /// The peers of each overlay too.
    #[arg(long)]
    peers: bool,
}

/// Everything that was answered.
#[derive(Clone, Debug, Default)]
struct Answers {
    version: v1::VersionReply,
    health: v1::HealthReply,
    list: v1::ListReply,
    statistics: v1::StatisticsReply,
    gates: Vec<v1::ScheduleState>,
    /// Where they were asked for.
    peers: Option<overlay::Peers>,
    /// Directories of the ktsnd that were not asked.
    others: Vec<PathBuf>,
}

/// Asks and shows.
pub(crate) fn run(args: &StatusArgs) -> ExitCode {
    match show(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(what) => {
            eprintln!("ktsn status: {what}");
            1.into()
        }
    }
}

fn show(args: &StatusArgs) -> Result<(), String> {
    let runtime = control::runtime().map_err(|error| error.to_string())?;
    let Found { run_dir, others } =
        runtime.block_on(running::find(args.run_dir.as_deref())).map_err(|error| error.to_string())?;
    loop {
        let mut answers = runtime.block_on(ask(&run_dir, args.peers)).map_err(|error| error.to_string())?;
        answers.others.clone_from(&others);
        let text = match (args.json, args.watch) {
            (true, true) => format!("{}\n", json_of(&run_dir, &answers)),
            (true, false) => format!("{:#}\n", json_of(&run_dir, &answers)),
            (false, true) if io::IsTerminal::is_terminal(&io::stdout()) => {
                format!("{CLEAR}{}", text_of(&run_dir, &answers))
            }
            (false, _) => text_of(&run_dir, &answers),
        };
        match output::write(&text) {
            Ok(Written::Whole) if args.watch => std::thread::sleep(WATCH_PERIOD),
            Ok(_) => return Ok(()),
            Err(error) => return Err(format!("standard output: {error}; write to another place")),
        }
    }
}

async fn ask(run_dir: &Path, with_peers: bool) -> Result<Answers, ControlError> {
    let mut client = control::connect(run_dir).await?;
    let mut answers = Answers {
        peers: None,
        others: Vec::new(),
        version: control::answer(run_dir, client.version(v1::VersionRequest {})).await?,
        health: control::answer(run_dir, client.health(v1::HealthRequest {})).await?,
        list: control::answer(run_dir, client.list(v1::ListRequest {})).await?,
        statistics: control::answer(run_dir, client.statistics(v1::StatisticsRequest::default())).await?,
        gates: control::answer(run_dir, client.get_schedule(v1::GetScheduleRequest::default())).await?.ports,
    };
    if with_peers {
        let overlaid = answers.list.attachments.iter().filter(|state| state.overlay.is_some());
        let mut all = Vec::new();
        for name in overlaid.filter_map(|state| Some(state.attachment.as_ref()?.name.clone())) {
            let request = v1::GetPeersRequest { attachment: name.clone() };
            all.push((name, control::answer(run_dir, client.get_peers(request)).await?.peers));
        }
        answers.peers = Some(all);
    }
    Ok(answers)
}

fn text_of(run_dir: &Path, answers: &Answers) -> String {
    let mut text = String::new();
    put_head(&mut text, run_dir, answers);
    put_ports(&mut text, answers);
    put_attachments(&mut text, answers);
    text.push_str(&overlay::text(&answers.list.attachments, answers.peers.as_ref()));
    text.push_str(&rules::text(&answers.list.attachments));
    text.push_str(&addresses::text(&answers.list.attachments));
    put_clients(&mut text, &answers.list.attachments);
    let mut counters = answers.statistics.attachments.clone();
    counters.extend(detached(&answers.statistics));
    counters::put(&mut text, &counters);
    text.push_str(&ingress::text(&answers.statistics.attachments));
    text.push_str(&deferred::text(&answers.statistics.attachments));
    text.push_str(&policing::text(&answers.statistics.ports));
    put_workers(&mut text, &answers.statistics.workers);
    text
}

/// `write!` into a `String` cannot fail.
macro_rules! put {
    ($text:expr, $($arg:tt)*) => { let _ = writeln!($text, $($arg)*); };
}

fn put_head(text: &mut String, run_dir: &Path, answers: &Answers) {
    let (version, health) = (&answers.version, &answers.health);
    let state = if health.serving { "serving" } else { "NOT SERVING" };
    let abi = format!("{}-{}", version.ring_abi_min, version.ring_abi_max);
    put!(text, "ktsnd {} in {}: {state}, ring ABI {abi}", version.version, run_dir.display());
    for other in &answers.others {
        put!(text, "another ktsnd, beside a program, in {}: see it with --run-dir", other.display());
    }
    text.push_str(&health::text(health));
}

fn put_ports(text: &mut String, answers: &Answers) {
    let ports = &answers.list.ports;
    put!(text, "\nPorts: {}", ports.len());
    let rows: Vec<Vec<String>> = ports
        .iter()
        .map(|port| {
            let speed =
                if port.link_speed == 0 { "-".into() } else { format!("{}", port.link_speed / 1_000_000) };
            let link = if port.up { "up" } else { "DOWN" };
            let gates = gates_of(answers, port);
            vec![
                port.device.clone(),
                or_dash(&port.netns),
                link.into(),
                speed,
                or_dash(&port.mode),
                gates.map_or("-", schedule::status::word_of).into(),
                or_dash(&port.schedule),
                port.adapter.clone(),
                port.adapter_reason.clone(),
            ]
        })
        .collect();
    let head = ["device", "netns", "link", "Mbit/s", "mode", "gates", "schedule", "adapter", "why"];
    put_table(text, &head, &rows);
    for gates in answers.gates.iter().filter(|gates| gates.transmission_overrun.iter().any(|n| *n > 0)) {
        let overruns: u64 = gates.transmission_overrun.iter().sum();
        put!(
            text,
            "{}: {overruns} transmission overruns (ktsn schedule status shows the classes)",
            gates.port
        );
    }
    for port in answers.statistics.ports.iter().filter(|port| !port.refused.is_empty()) {
        put!(text, "{}", refusals(port));
    }
}

/// `uplink: frames not taken: 3 busy, 1 dropped; 2 frames left when they were tried again`.
fn refusals(port: &v1::PortStatistics) -> String {
    let mut reasons: Vec<_> = port.refused.iter().collect();
    reasons.sort();
    let reasons: Vec<String> = reasons.iter().map(|(reason, count)| format!("{count} {reason}")).collect();
    let of = if port.netns.is_empty() { String::new() } else { format!(" of {}", port.netns) };
    let retried = port.retried;
    format!("{}{of}: not taken {}; {retried} frames left when tried again", port.device, reasons.join(", "))
}

/// The gates of an uplink; pod interfaces have none.
fn gates_of<'a>(answers: &'a Answers, port: &v1::Port) -> Option<&'a v1::ScheduleState> {
    answers.gates.iter().find(|gates| gates.port == port.device && port.netns.is_empty())
}

fn put_attachments(text: &mut String, answers: &Answers) {
    let attachments = &answers.list.attachments;
    put!(text, "\nAttachments: {}", attachments.len());
    let rows: Vec<Vec<String>> = attachments
        .iter()
        .map(|state| {
            let attachment = state.attachment.clone().unwrap_or_default();
            let streams: usize = state.clients.iter().map(|client| client.streams.len()).sum();
            let overlay = attachment.vxlan.map_or_else(|| "none".into(), |vxlan| overlay_text(&vxlan));
            vec![
                attachment.name,
                attachment.netns,
                attachment.interface,
                or_dash(&attachment.uplink),
                overlay,
                state.clients.len().to_string(),
                streams.to_string(),
            ]
        })
        .collect();
    put_table(text, &["name", "netns", "interface", "uplink", "overlay", "clients", "streams"], &rows);
}

fn put_clients(text: &mut String, attachments: &[v1::AttachmentState]) {
    let mut rows = Vec::new();
    for state in attachments {
        let name = state.attachment.as_ref().map_or("-", |attachment| &attachment.name);
        for client in &state.clients {
            let pid = if client.pid == 0 { "-".into() } else { client.pid.to_string() };
            if client.streams.is_empty() {
                rows.push(vec![name.into(), pid.clone(), "-".into(), "-".into(), "-".into()]);
            }
            for stream in &client.streams {
                rows.push(vec![
                    name.into(),
                    pid.clone(),
                    stream.cookie.to_string(),
                    or_dash(&stream.local),
                    or_dash(&stream.peer),
                ]);
            }
        }
    }
    put!(text, "\nClients and streams: {}", rows.len());
    put_table(text, &["attachment", "pid", "socket cookie", "local", "peer"], &rows);
}

/// The sums of the attachments that are gone, where there was one that did anything.
fn detached(statistics: &v1::StatisticsReply) -> Option<v1::AttachmentStatistics> {
    let sums = statistics.detached.clone()?;
    let is_any = sums.taken > 0 || sum(&sums.dropped) > 0 || sum(&sums.bypassed) > 0;
    is_any.then(|| v1::AttachmentStatistics { name: "(detached)".to_owned(), ..sums })
}

fn put_workers(text: &mut String, workers: &[v1::WorkerStatistics]) {
    put!(text, "\nWorkers: {}", workers.len());
    let rows: Vec<Vec<String>> = workers
        .iter()
        .map(|worker| {
            vec![
                worker.uplink.clone(),
                worker.wake_ups.to_string(),
                span(worker.spin_margin_ns),
                span(worker.spin_ns),
                worker.spin_budget_spent.to_string(),
                worker.cpu_budget_spent.to_string(),
                worker.clock_steps.to_string(),
                worker.doorbells_muted.to_string(),
                worker.regions_retired.to_string(),
                worker.bugs.to_string(),
                worker.reports.to_string(),
                worker.reports_dropped.to_string(),
                worker.notices_lost.to_string(),
            ]
        })
        .collect();
    let head = [
        "uplink",
        "wake-ups",
        "spin margin",
        "spun",
        "spin budget spent",
        "CPU budget spent",
        "clock steps",
        "muted",
        "regions retired",
        "bugs",
        "reports",
        "dropped",
        "notices lost",
    ];
    put_table(text, &head, &rows);
}

fn put_table(text: &mut String, head: &[&str], rows: &[Vec<String>]) {
    if !rows.is_empty() {
        text.push_str(&columns(head, rows));
    }
}

fn or_dash(text: &str) -> String {
    if text.is_empty() { "-".into() } else { text.into() }
}

type Counters = std::collections::HashMap<String, u64>;

fn sum(counters: &Counters) -> u64 {
    counters.values().fold(0, |sum, count| sum.saturating_add(*count))
}

/// Non-zero ones first, greatest first; then the names of those that never happened. A newer daemon may know reasons
/// that we do not: they are shown like the others.
fn reasons<'a>(counters: &Counters, known: impl Iterator<Item = &'a str>) -> String {
    let mut seen: Vec<(&str, u64)> = counters
        .iter()
        .filter(|(_, count)| **count > 0)
        .map(|(reason, count)| (reason.as_str(), *count))
        .collect();
    seen.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(b.0)));
    let mut parts: Vec<String> = seen.iter().map(|(reason, count)| format!("{reason} {count}")).collect();
    let never: Vec<&str> = known.filter(|reason| !seen.iter().any(|(name, _)| name == reason)).collect();
    if parts.is_empty() {
        parts.push("none".into());
    }
    format!("{} (0: {})", parts.join(", "), never.join(" "))
}

fn json_of(run_dir: &Path, answers: &Answers) -> Value {
    let Answers { version, health, list, statistics, peers, .. } = answers;
    json!({
        "run_dir": run_dir.to_string_lossy(),
        "other_run_dirs": answers.others.iter().map(|other| other.to_string_lossy()).collect::<Vec<_>>(),
        "version": {
            "version": version.version, "ring_abi_min": version.ring_abi_min, "ring_abi_max": version.ring_abi_max,
        },
        "health": health::json_of(health),
        "ports": list.ports.iter().map(|port| json!({
            "device": port.device, "netns": port.netns, "adapter": port.adapter,
            "adapter_reason": port.adapter_reason, "link_speed": port.link_speed, "up": port.up,
            "mode": port.mode, "strategy": port.strategy, "schedule": port.schedule,
            "foreign_frames": port.foreign_frames, "unsynchronised": port.unsynchronised,
            "gates": gates_of(answers, port).map(schedule::status::json_of_port),
        })).collect::<Vec<_>>(),
        "attachments": list.attachments.iter().map(json_of_attachment).collect::<Vec<_>>(),
        "peers": peers.iter().flatten().map(|(name, peers)| {
            (name.clone(), overlay::json_of_peers(peers))
        }).collect::<serde_json::Map<_, _>>(),
        "statistics": {
            "at_monotonic_ns": statistics.at_monotonic_ns,
            "attachments": statistics.attachments.iter().map(counters::json_of).collect::<Vec<_>>(),
            "detached": statistics.detached.as_ref().map(counters::json_of),
            "workers": statistics.workers.iter().map(|worker| json!({
                "uplink": worker.uplink, "wake_ups": worker.wake_ups, "spin_ns": worker.spin_ns,
                "spin_budget_spent": worker.spin_budget_spent, "cpu_budget_spent": worker.cpu_budget_spent,
                "spin_margin_ns": worker.spin_margin_ns,
                "clock_steps": worker.clock_steps, "doorbells_muted": worker.doorbells_muted,
                "regions_retired": worker.regions_retired, "bugs": worker.bugs, "reports": worker.reports,
                "reports_dropped": worker.reports_dropped, "notices_lost": worker.notices_lost,
            })).collect::<Vec<_>>(),
            "ports": statistics.ports.iter().map(|port| json!({
                "device": port.device, "netns": port.netns, "frames": port.frames,
                "transmission_overrun": port.transmission_overrun, "put_back": port.put_back,
                "refused": port.refused, "retried": port.retried, "hand_over_ns": port.hand_over_ns, "stream_filters": policing::json_of(port),
            })).collect::<Vec<_>>(),
        },
    })
}

/// `vxlan 7`, and what a segment adds.
fn overlay_text(vxlan: &v1::Vxlan) -> String {
    match vxlan.mode.as_str() {
        "bridged" => format!("vxlan {} bridged, flood {}", vxlan.vni, vxlan.flood.len()),
        _ => format!("vxlan {}", vxlan.vni),
    }
}

fn json_of_attachment(state: &v1::AttachmentState) -> Value {
    let attachment = state.attachment.clone().unwrap_or_default();
    json!({
        "name": attachment.name, "netns": attachment.netns, "interface": attachment.interface,
        "uplink": attachment.uplink, "destinations": attachment.destinations, "late": attachment.late,
        "addresses": attachment.addresses, "withheld": state.withheld,
        "vxlan": attachment.vxlan.map(|vxlan| json!({
            "mode": vxlan.mode, "vni": vxlan.vni, "port": vxlan.port, "local": vxlan.local, "device": vxlan.device,
            "flood": vxlan.flood, "flood_interface": vxlan.flood_interface, "ttl": vxlan.ttl, "tos": vxlan.tos,
            "df": vxlan.df, "udp_checksum": vxlan.udp_checksum,
            "peers": vxlan.peers.iter().map(|peer| json!({
                "prefix": peer.prefix, "vtep": peer.vtep, "mac": peer.mac,
            })).collect::<Vec<_>>(),
        })),
        "overlay": state.overlay.as_ref().map(overlay::json_of),
        "rules": rules::json_of(state),
        "clients": state.clients.iter().map(|client| json!({
            "pid": client.pid,
            "streams": client.streams.iter().map(|stream| json!({
                "cookie": stream.cookie, "local": stream.local, "peer": stream.peer,
            })).collect::<Vec<_>>(),
        })).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
#[path = "status_tests.rs"]
mod tests;
