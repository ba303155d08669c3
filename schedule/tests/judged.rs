// SPDX-License-Identifier: Apache-2.0
//! The reader of `tc` commands against the real tc and the real sch_taprio: their answers stand in `taprio/commands.toml`, which
//! `scripts/taprio-judge.py` writes.

use ktsn_model::GateOperation;
use ktsn_schedule::taprio::needs;
use ktsn_schedule::{Format, Schedule, parse, parse_with_remarks, write};
use serde::Deserialize;
use serde_json::Value;

const FILE: &str = include_str!("taprio/commands.toml");

#[derive(Deserialize)]
struct Judged {
    command: Vec<Command>,
}

#[derive(Deserialize)]
struct Command {
    source: String,
    text: String,
    verdict: String,
    #[serde(default)]
    message: String,
    #[serde(default)]
    shown: String,
}

fn commands() -> Vec<Command> {
    toml::from_str::<Judged>(FILE).expect("the file's form").command
}

#[test]
fn there_are_enough_of_each_kind() {
    let commands = commands();
    let count = |verdict: &str| commands.iter().filter(|command| command.verdict == verdict).count();
    assert!(commands.len() >= 200 && count("text") >= 60 && count("device") >= 20, "{}", commands.len());
    assert_eq!(count("text") + count("device") + count("accepted"), commands.len());
}

/// Each command is read exactly where its text is not what was refused.
#[test]
fn each_command_is_judged_as_tc_and_linux_do() {
    let mut wrong = Vec::new();
    for Command { source, text, verdict, message, .. } in commands() {
        let read = parse(&text, Format::Auto);
        if read.is_ok() == (verdict == "text") {
            let said = read.map_or_else(|faults| faults.to_string(), |_| "read".to_owned());
            wrong.push(format!("{verdict} ({message}): {source}: {text}\n    {said}"));
        }
    }
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
}

/// What was read is what the kernel showed.
#[test]
fn what_is_read_is_what_the_kernel_runs() {
    for Command { text, shown, .. } in commands().into_iter().filter(|command| !command.shown.is_empty()) {
        let schedule = parse(&text, Format::Taprio).unwrap_or_else(|faults| panic!("{text}: {faults}"));
        let options: Value = serde_json::from_str(&shown).expect("tc's JSON");
        same(&text, &schedule, &options);
    }
}

fn same(text: &str, schedule: &Schedule, options: &Value) {
    let taprio = schedule.taprio.as_ref().expect("a command");
    // tc shows a negative base time as an unsigned number.
    let number = |value: &Value| value.as_i64().or(value.as_u64().map(u64::cast_signed)).unwrap_or_default();
    assert_eq!(i64::from(taprio.num_tc.unwrap_or_default()), number(&options["tc"]), "{text}");
    let map = schedule.priority_map.expect("a map");
    let classes: Vec<i64> =
        (0..16).map(|priority| map.class(ktsn_model::Priority::capped(priority)).get().into()).collect();
    assert_eq!(Value::from(classes), options["map"], "{text}");
    let queues: Vec<Value> = taprio
        .queues
        .iter()
        .map(|(count, offset)| serde_json::json!({ "offset": offset, "count": count }))
        .collect();
    assert_eq!(Value::from(queues), options["queues"], "{text}");
    let clock = taprio.clock.map(|clock| clock.word().trim_start_matches("CLOCK_"));
    assert_eq!(clock, options["clockid"].as_str(), "{text}");
    let flags = taprio.flags.filter(|flags| *flags != 0).map(|flags| format!("{flags:#x}"));
    assert_eq!(flags.as_deref(), options["flags"].as_str(), "{text}");
    // A schedule that has not begun yet stands in `admin`.
    let list = if options["admin"].is_object() { &options["admin"] } else { options };
    let admin = &schedule.admin;
    assert_eq!(admin.cycle_time.get(), number(&list["cycle_time"]), "{text}");
    let base = number(&list["base_time"]);
    if base < 0 {
        assert_eq!(admin.base_time.as_nanos() as i64, base.rem_euclid(admin.cycle_time.get()), "{text}");
    } else {
        assert_eq!(admin.base_time.as_nanos() as i64, base, "{text}");
    }
    assert_eq!(admin.cycle_time_extension.get(), number(&list["cycle_time_extension"]).max(0), "{text}");
    let entry = |entry: &Value| {
        let mask =
            u32::from_str_radix(entry["gatemask"].as_str().unwrap_or_default().trim_start_matches("0x"), 16);
        (
            entry["cmd"].as_str().unwrap_or_default().to_owned(),
            mask.expect("a mask") as u8,
            number(&entry["interval"]),
        )
    };
    let shown: Vec<_> = list["schedule"].as_array().expect("entries").iter().map(entry).collect();
    let letter = |operation| match operation {
        GateOperation::SetGateStates => "S",
        GateOperation::SetAndHoldMac => "H",
        GateOperation::SetAndReleaseMac => "R",
    };
    let read = admin.control_list.iter();
    let read: Vec<_> = read
        .map(|entry| (letter(entry.operation).to_owned(), entry.states.bits(), entry.interval.get()))
        .collect();
    assert_eq!(read, shown, "{text}");
}

/// Where the device refused, the needs name what it lacked, or a remark says that a taprio has to be there.
#[test]
fn what_the_device_lacked_is_among_the_needs() {
    for Command { text, message, .. } in commands().into_iter().filter(|command| command.verdict == "device")
    {
        let (schedule, remarks) =
            parse_with_remarks(&text, Format::Taprio).unwrap_or_else(|faults| panic!("{text}: {faults}"));
        let needs = needs(&schedule).join("; ");
        let expected = match message.as_str() {
            said if said.contains("PTP clock") => "PTP hardware clock",
            said if said.contains("exceed the") => "transmit queues",
            said if said.contains("Invalid interval") || said.contains("too small") => "a link of at least",
            said if said.contains("max MTU") => "an MTU of",
            said if said.contains("'mqprio'") => "a taprio that runs already",
            said if said.contains("preemption") => "frame preemption",
            said if said.contains("Qdisc not found") => {
                assert!(
                    remarks.iter().any(|remark| remark.text.contains("where a taprio is there")),
                    "{text}"
                );
                continue;
            }
            other => panic!("a refusal that is not known: {other}"),
        };
        assert!(needs.contains(expected), "{text}: {needs}");
    }
}

/// What tc and Linux take is written again as a command that they take: it reads the same, and without a remark.
#[test]
fn what_is_written_is_read_again() {
    for Command { text, .. } in commands().into_iter().filter(|command| command.verdict != "text") {
        let schedule = parse(&text, Format::Taprio).unwrap_or_else(|faults| panic!("{text}: {faults}"));
        let written = write(&schedule, Format::Taprio).unwrap_or_else(|faults| panic!("{text}: {faults}"));
        let (again, remarks) =
            parse_with_remarks(&written, Format::Auto).unwrap_or_else(|faults| panic!("{written}: {faults}"));
        assert_eq!(again, schedule, "{text}\n{written}");
        assert_eq!(remarks, [], "{written}");
    }
}
