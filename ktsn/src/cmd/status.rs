// SPDX-License-Identifier: Apache-2.0
//! `ktsn status`: what a running ktsnd does.
//!
//! In: a run directory. Out: a table or JSON of its ports, attachments, clients, streams and counters. Asks and
//! changes nothing.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use ktsn_proto::v1;
use serde_json::{Value, json};

use super::{clock, schedule};
use crate::control::{self, ControlError};
use crate::output::{self, Written, or_dash, span, table};
use crate::running::{self, Found};

mod addresses;
mod counters;
mod deferred;
mod health;
mod ingress;
mod overlay;
mod policing;
mod receive;
mod rules;

/// How often `--watch` looks.
const WATCH_PERIOD: Duration = Duration::from_secs(1);

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
    /// In a guest: what keeps its clock by its host's.
    guest_clock: Option<clock::Snapshot>,
}

/// Asks and shows.
pub(crate) fn run(args: &StatusArgs) -> ExitCode {
    output::finish("status", show(args))
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
                format!("{}{}", output::CLEAR, text_of(&run_dir, &answers))
            }
            (false, _) => text_of(&run_dir, &answers),
        };
        match output::show(&text)? {
            Written::Whole if args.watch => std::thread::sleep(WATCH_PERIOD),
            _ => return Ok(()),
        }
    }
}

/// What `--json` shows of the ktsnd in this run directory.
///
/// # Errors
/// No ktsnd answers there, with what to do.
pub(super) fn document(run_dir: &Path) -> Result<Value, String> {
    let runtime = control::runtime().map_err(|error| error.to_string())?;
    let answers = runtime.block_on(ask(run_dir, true)).map_err(|error| error.to_string())?;
    Ok(json_of(run_dir, &answers))
}

async fn ask(run_dir: &Path, with_peers: bool) -> Result<Answers, ControlError> {
    let mut client = control::connect(run_dir).await?;
    let mut answers = Answers {
        peers: None,
        others: Vec::new(),
        guest_clock: clock::follower(),
        version: control::answer(run_dir, client.version(v1::VersionRequest {})).await?,
        health: control::answer(run_dir, client.health(v1::HealthRequest {})).await?,
        list: control::answer(run_dir, client.list(v1::ListRequest {})).await?,
        statistics: control::answer(run_dir, client.statistics(v1::StatisticsRequest::default())).await?,
        gates: control::answer(run_dir, client.get_schedule(v1::GetScheduleRequest::default())).await?.ports,
    };
    if with_peers {
        let overlaid = answers.list.attachments.iter().filter(|state| state.overlay.is_some());
        let mut all = Vec::new();
        for name in overlaid.map(|state| state.name.clone()) {
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
    text.push_str(&receive::text(&answers.list.attachments, &counters));
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
    if let Some(clock) = &answers.guest_clock {
        put!(text, "guest's {}", clock.line());
    }
}

fn put_ports(text: &mut String, answers: &Answers) {
    let ports = &answers.list.ports;
    put!(text, "\nPorts: {}", ports.len());
    let rows = ports.iter().map(|port| (port, gates_of(answers, port)));
    text.push_str(&table(
        rows,
        &[
            ("device", |(port, _)| port.device.clone()),
            ("netns", |(port, _)| or_dash(&port.netns)),
            ("link", |(port, _)| if port.up { "up" } else { "DOWN" }.to_owned()),
            ("Mbit/s", |(port, _)| match port.link_speed {
                0 => "-".to_owned(),
                speed => (speed / 1_000_000).to_string(),
            }),
            ("mode", |(port, _)| or_dash(&port.mode)),
            ("gates", |(_, gates)| gates.map_or("-", schedule::status::word_of).to_owned()),
            ("schedule", |(port, _)| or_dash(&port.schedule)),
            ("adapter", |(port, _)| port.adapter.clone()),
            ("why", |(port, _)| port.adapter_reason.clone()),
        ],
    ));
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
    let reasons: Vec<String> =
        port.refused.iter().map(|(reason, count)| format!("{count} {reason}")).collect();
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
    let rows = attachments.iter().map(|state| (state.fields(), state));
    text.push_str(&table(
        rows,
        &[
            ("name", |(_, state)| state.name.clone()),
            ("netns", |(attachment, _)| word(attachment, "netns").to_owned()),
            ("interface", |(attachment, _)| word(attachment, "interface").to_owned()),
            ("uplink", |(attachment, _)| or_dash(word(attachment, "uplink"))),
            ("overlay", |(attachment, _)| overlay_text(&attachment["overlay"]["vxlan"])),
            ("clients", |(_, state)| state.clients.len().to_string()),
            ("streams", |(_, state)| {
                state.clients.iter().map(|client| client.streams.len()).sum::<usize>().to_string()
            }),
        ],
    ));
}

fn put_clients(text: &mut String, attachments: &[v1::AttachmentState]) {
    let mut rows = Vec::new();
    for state in attachments {
        let name = &state.name;
        for client in &state.clients {
            rows.extend(client.streams.iter().map(|stream| (name, client, Some(stream))));
            if client.streams.is_empty() {
                rows.push((name, client, None));
            }
        }
    }
    put!(text, "\nClients and streams: {}", rows.len());
    text.push_str(&table(
        rows,
        &[
            ("attachment", |(name, ..)| (*name).to_owned()),
            ("pid", |(_, client, _)| if client.pid == 0 { "-".to_owned() } else { client.pid.to_string() }),
            ("socket cookie", |(.., stream)| {
                stream.map_or("-".to_owned(), |stream: &v1::Stream| stream.cookie.to_string())
            }),
            ("local", |(.., stream)| or_dash(stream.map_or("", |stream| &stream.local))),
            ("peer", |(.., stream)| or_dash(stream.map_or("", |stream| &stream.peer))),
        ],
    ));
}

/// The sums of the attachments that are gone, where there was one that did anything.
fn detached(statistics: &v1::StatisticsReply) -> Option<v1::AttachmentStatistics> {
    let sums = statistics.detached.clone()?;
    let received = sums.receive.and_then(|receive| receive.counts).is_some_and(|counts| counts.expected > 0);
    let is_any = sums.taken > 0 || sum(&sums.dropped) > 0 || sum(&sums.bypassed) > 0 || received;
    is_any.then(|| v1::AttachmentStatistics { name: "(detached)".to_owned(), ..sums })
}

fn put_workers(text: &mut String, workers: &[v1::WorkerStatistics]) {
    put!(text, "\nWorkers: {}", workers.len());
    text.push_str(&table(
        workers,
        &[
            ("uplink", |worker| worker.uplink.clone()),
            ("wake-ups", |worker| worker.wake_ups.to_string()),
            ("spin margin", |worker| span(worker.spin_margin_ns)),
            ("spun", |worker| span(worker.spin_ns)),
            ("spin budget spent", |worker| worker.spin_budget_spent.to_string()),
            ("CPU budget spent", |worker| worker.cpu_budget_spent.to_string()),
            ("clock steps", |worker| worker.clock_steps.to_string()),
            ("muted", |worker| worker.doorbells_muted.to_string()),
            ("regions retired", |worker| worker.regions_retired.to_string()),
            ("bugs", |worker| worker.bugs.to_string()),
            ("reports", |worker| worker.reports.to_string()),
            ("dropped", |worker| worker.reports_dropped.to_string()),
            ("notices lost", |worker| worker.notices_lost.to_string()),
        ],
    ));
}

type Counters = BTreeMap<String, u64>;

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
        "version": version,
        "health": health,
        "guest_clock": answers.guest_clock,
        "ports": list.ports.iter().map(|port| {
            let mut shown = json!(port);
            shown["gates"] = gates_of(answers, port).map(schedule::status::json_of_port).into();
            shown
        }).collect::<Vec<_>>(),
        "attachments": list.attachments.iter().map(json_of_attachment).collect::<Vec<_>>(),
        "peers": peers.iter().flatten().cloned().collect::<BTreeMap<_, _>>(),
        "statistics": statistics,
    })
}

/// The text of a key; empty where there is none.
fn word<'a>(attachment: &'a Value, key: &str) -> &'a str {
    attachment[key].as_str().unwrap_or_default()
}

/// `vxlan 7`, and for bridged mode the number of tunnel ends that get copies; `none` without an overlay.
fn overlay_text(vxlan: &Value) -> String {
    if vxlan.is_null() {
        return "none".to_owned();
    }
    let vni = vxlan["vni"].as_u64().unwrap_or_default();
    match word(vxlan, "mode") {
        "bridged" => format!("vxlan {vni} bridged, flood {}", vxlan["flood"].as_array().map_or(0, Vec::len)),
        _ => format!("vxlan {vni}"),
    }
}

/// `overlay.vxlan` with a value for each key: an empty text, a 0 or an empty list where ktsnd knows none.
fn json_of_vxlan(vxlan: &Value) -> Value {
    let text = |key: &str| match &vxlan[key] {
        Value::Number(number) => number.to_string(),
        other => other.as_str().unwrap_or_default().to_owned(),
    };
    let number = |key: &str| vxlan[key].as_u64().unwrap_or_default();
    let list = |key: &str| vxlan[key].as_array().cloned().unwrap_or_default();
    let peers = list("peers").into_iter().map(|peer| {
        json!({ "prefix": word(&peer, "prefix"), "vtep": word(&peer, "vtep"), "mac": word(&peer, "mac") })
    });
    json!({
        "mode": text("mode"), "vni": number("vni"), "port": number("port"), "local": text("local"),
        "device": text("device"), "flood": list("flood"), "flood_interface": vxlan["flood_interface"],
        "ttl": text("ttl"), "tos": text("tos"), "df": text("df"), "udp_checksum": vxlan["udp_checksum"],
        "peers": peers.collect::<Vec<_>>(),
    })
}

fn json_of_attachment(state: &v1::AttachmentState) -> Value {
    let attachment = state.fields();
    let vxlan = &attachment["overlay"]["vxlan"];
    let addresses = match &attachment["addresses"] {
        Value::String(word) => json!([word]),
        Value::Null => json!([]),
        list => list.clone(),
    };
    json!({
        "name": state.name, "netns": attachment["netns"], "interface": attachment["interface"],
        "uplink": word(&attachment, "uplink"), "destinations": attachment["destinations"],
        "late": attachment["late"], "receive": attachment["receive"], "addresses": addresses, "withheld": state.withheld,
        "vxlan": (!vxlan.is_null()).then(|| json_of_vxlan(vxlan)),
        "overlay": state.overlay,
        "rules": rules::json_of(state),
        "clients": state.clients,
    })
}

#[cfg(test)]
#[path = "status_tests.rs"]
mod tests;
