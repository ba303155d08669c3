// SPDX-License-Identifier: Apache-2.0
//! `ktsn schedule status`: the gates of a running ktsnd's ports and their counters (802.1Q-2022 12.29.1).
//!
//! In: a run directory and perhaps a port. Out: text or JSON. Asks and changes nothing.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use ktsn_proto::v1;
use ktsn_schedule::units;
use serde_json::{Value, json};

use crate::control::{self, ControlError};
use crate::output::{self, span, table};

const EXAMPLES: &str = "\
Examples:
  ktsn schedule status
  ktsn schedule status --port eth1 --json | jq '.ports[0].config_pending'

Instants are TAI. Transmission overrun counts hand-overs that ended too late for their frame to end inside its window.

Exit status: 0 ktsnd answered; 1 it did not, or it has no such port; 2 wrong usage.";

/// Show the gates of a running ktsnd's ports: in force, asked for, counters.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct StatusArgs {
    /// The port's device [default: all].
    #[arg(long, value_name = "DEV")]
    port: Option<String>,
    /// Directory of the ktsnd to ask [default: KTSN_RUN_DIR, else /run/ktsn].
    #[arg(long, value_name = "DIR")]
    run_dir: Option<PathBuf>,
    /// JSON instead of text.
    #[arg(long)]
    json: bool,
}

/// The run directory meant.
pub(super) fn directory(flag: Option<&Path>) -> Result<PathBuf, ControlError> {
    control::run_dir(flag).map_err(|error| ControlError::Unusable(PathBuf::from("--run-dir"), error))
}

/// Asks and shows.
pub(super) fn run(args: &StatusArgs) -> ExitCode {
    let done = ask(args).map_err(|error| error.to_string()).and_then(|ports| {
        let text = if args.json { format!("{:#}\n", json_of(&ports)) } else { text_of(&ports) };
        output::show(&text).map(drop)
    });
    output::finish("schedule status", done)
}

fn ask(args: &StatusArgs) -> Result<Vec<v1::ScheduleState>, ControlError> {
    let run_dir = directory(args.run_dir.as_deref())?;
    let runtime = control::runtime().map_err(|error| ControlError::Unusable(run_dir.clone(), error))?;
    let port = args.port.clone().unwrap_or_default();
    runtime.block_on(async {
        let mut client = control::connect(&run_dir).await?;
        let request = v1::GetScheduleRequest { port };
        Ok(control::answer(&run_dir, client.get_schedule(request)).await?.ports)
    })
}

/// What the gates of a port do, in one word.
pub(in crate::cmd) fn word_of(state: &v1::ScheduleState) -> &'static str {
    match state {
        v1::ScheduleState { is_open: false, admin: Some(_), .. } => "waiting",
        v1::ScheduleState { config_pending: true, .. } => "pending",
        v1::ScheduleState { gate_enabled: true, .. } => "running",
        _ => "off",
    }
}

/// `write!` into a `String` cannot fail.
macro_rules! put {
    ($text:expr, $($arg:tt)*) => { let _ = writeln!($text, $($arg)*); };
}

/// The state of ports as text for people.
pub(super) fn text_of(ports: &[v1::ScheduleState]) -> String {
    let mut text = String::new();
    if ports.is_empty() {
        put!(
            text,
            "No ports: ktsnd opens one when an attachment uses it, or knows it from its configuration."
        );
    }
    for (index, state) in ports.iter().enumerate() {
        if index > 0 {
            text.push('\n');
        }
        put_port(&mut text, state);
    }
    text
}

fn put_port(text: &mut String, state: &v1::ScheduleState) {
    let name = if state.name.is_empty() { "no schedule".into() } else { format!("schedule {}", state.name) };
    let meaning = match word_of(state) {
        "waiting" => "waiting: no attachment uses the port yet",
        "pending" if state.gate_enabled => "running, a change is pending",
        "pending" => "a change is pending",
        "running" => "running",
        _ => "off: all gates open",
    };
    put!(text, "{}: {name}, {meaning}", state.port);
    if let Some(oper) = state.oper.as_ref().filter(|oper| oper.gate_enabled) {
        put!(text, "  in force    {}", parameters(oper));
    }
    if let Some(admin) = state.admin.as_ref().filter(|_| state.config_pending) {
        put!(text, "  asked for   {}", parameters(admin));
    }
    if state.config_change_time != 0 {
        put!(text, "  {}", change(state));
    }
    put!(text, "  open now    {}", open_classes(state.oper_gate_states));
    put!(text, "  config change errors {}", state.config_change_error);
    let speed = match state.link_speed {
        0 => "unknown".to_owned(),
        speed if speed % 1_000_000 == 0 => format!("{} Mbit/s", speed / 1_000_000),
        speed => format!("{}bit/s", units::show_speed(speed)),
    };
    put!(text, "  link {speed}, hand-over {}", span(state.hand_over_ns));
    let counter = |counters: &[u64], class: u32| counters.get(class as usize).copied().unwrap_or(0);
    let rows = (0..8).rev().map(|class| {
        let limit = state.queue_max_sdu.iter().find(|row| row.traffic_class == class);
        let counts = [counter(&state.frames, class), counter(&state.transmission_overrun, class)];
        (class, counts, limit.map(|row| row.queue_max_sdu))
    });
    text.push_str(&table(
        rows,
        &[
            ("class", |(class, ..)| class.to_string()),
            ("frames", |(_, [frames, _], _)| frames.to_string()),
            ("transmission overrun", |(_, [_, overrun], _)| overrun.to_string()),
            ("max SDU", |(.., limit)| limit.map_or("-".to_owned(), |octets| octets.to_string())),
        ],
    ));
}

fn parameters(gates: &v1::GateParameters) -> String {
    if !gates.gate_enabled {
        return format!("gates disabled, open: {}", open_classes(gates.gate_states.unwrap_or(255)));
    }
    let base = tai(gates.base_time);
    match gates.control_list.len() {
        0 => format!("no entries, open: {}", open_classes(gates.gate_states.unwrap_or(255))),
        1 => format!("cycle {}, 1 entry, base time {base}", span(gates.cycle_time)),
        count => format!("cycle {}, {count} entries, base time {base}", span(gates.cycle_time)),
    }
}

fn change(state: &v1::ScheduleState) -> String {
    let at = tai(state.config_change_time);
    let ahead = state.config_change_time.saturating_sub(state.current_time);
    if state.config_pending {
        format!("changes at  {at}, in {}", span(ahead))
    } else {
        format!("since       {at}")
    }
}

/// Seconds with nine digits: how `phc_ctl` and `date +%s.%N` write instants.
fn tai(nanos: u64) -> String {
    format!("{}.{:09}", nanos / 1_000_000_000, nanos % 1_000_000_000)
}

fn open_classes(states: u32) -> String {
    match states & 0xff {
        0 => "none".to_owned(),
        0xff => "all classes".to_owned(),
        states => {
            let classes: Vec<String> = (0..8)
                .rev()
                .filter(|class| states >> class & 1 == 1)
                .map(|class| class.to_string())
                .collect();
            format!("class {}", classes.join(", "))
        }
    }
}

fn json_of(ports: &[v1::ScheduleState]) -> Value {
    json!({ "ports": ports.iter().map(json_of_port).collect::<Vec<_>>() })
}

/// The leaves of 12.29.1 with underscores, and the word.
pub(in crate::cmd) fn json_of_port(state: &v1::ScheduleState) -> Value {
    let mut port = json!(state);
    port["gates"] = word_of(state).into();
    port
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made() -> v1::ScheduleState {
        let entry = v1::GateControlEntry {
            gate_states_value: 128,
            time_interval_value: 1_000_000,
            ..Default::default()
        };
        let gates = v1::GateParameters {
            gate_enabled: true,
            base_time: 5_000_000_007,
            cycle_time: 1_000_000,
            control_list: vec![entry],
            ..Default::default()
        };
        v1::ScheduleState {
            port: "eth1".into(),
            name: "three".into(),
            is_open: true,
            gate_enabled: true,
            oper_gate_states: 0b1000_0001,
            oper: Some(gates.clone()),
            admin: Some(v1::GateParameters { cycle_time: 2_000_000, ..gates }),
            config_pending: true,
            config_change_time: 7_500_000_000,
            current_time: 6_000_000_000,
            link_speed: 1_000_000_000,
            hand_over_ns: 4_250,
            transmission_overrun: vec![0, 0, 0, 0, 0, 0, 0, 3],
            frames: vec![9, 0, 0, 0, 0, 0, 0, 120],
            queue_max_sdu: vec![v1::QueueMaxSdu { traffic_class: 7, queue_max_sdu: 256 }],
            ..Default::default()
        }
    }

    #[test]
    fn the_text_holds_what_is_asked_about() {
        let text = text_of(&[made()]);
        for part in [
            "eth1: schedule three, running, a change is pending",
            "in force    cycle 1.00 ms, 1 entry, base time 5.000000007",
            "asked for   cycle 2.00 ms",
            "changes at  7.500000000, in 1.50 s",
            "open now    class 7, 0",
            "link 1000 Mbit/s, hand-over 4.25 µs",
            "  7         120                     3      256",
        ] {
            assert!(text.contains(part), "{part:?} is not in\n{text}");
        }
        let waiting = v1::ScheduleState { is_open: false, ..made() };
        assert!(text_of(&[waiting]).contains("no attachment uses the port yet"));
        let off = v1::ScheduleState { port: "eth1".into(), oper_gate_states: 255, ..Default::default() };
        assert!(text_of(&[off]).contains("eth1: no schedule, off: all gates open"));
        assert!(text_of(&[]).contains("No ports"));
        let slow = v1::ScheduleState { link_speed: 64_000, ..made() };
        assert!(text_of(&[slow]).contains("link 64kbit/s, hand-over"));
    }

    #[test]
    fn json_holds_the_same() {
        let value = json_of(&[made()]);
        let port = &value["ports"][0];
        assert_eq!(port["gates"], "pending");
        assert_eq!(port["oper"]["control_list"][0]["gate_states_value"], 128);
        assert_eq!(port["admin"]["cycle_time"], 2_000_000);
        assert_eq!(port["transmission_overrun"][7], 3);
    }
}
