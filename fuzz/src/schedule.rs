// SPDX-License-Identifier: Apache-2.0
//! Targets `schedule` and `taprio`: gate schedules as text.
//!
//! What is accepted must read the same after it was written in every format that can say it, must keep the model's rules,
//! and can be analysed and drawn; what is refused is refused with places inside the text and nothing that a terminal acts on.

use ktsn_schedule::analysis::{Link, analyse};
use ktsn_schedule::{Faults, Format, Schedule, draw, limits, parse, write};

/// YAML and JSON.
///
/// # Panics
/// When an invariant does not hold.
pub fn schedule(data: &[u8]) {
    let Ok(text) = core::str::from_utf8(data) else { return };
    let yaml = read(text, Format::Yaml);
    let json = read(text, Format::Json);
    // Two escapes for one character are JSON alone.
    if let Some(json) = json
        && !text.contains("\\u")
    {
        assert_eq!(yaml.as_ref(), Some(&json), "JSON is YAML");
    }
}

/// `tc` commands.
///
/// # Panics
/// When an invariant does not hold.
pub fn taprio(data: &[u8]) {
    let Ok(text) = core::str::from_utf8(data) else { return };
    if let Some(schedule) = read(text, Format::Taprio) {
        assert!(schedule.taprio.is_some(), "a command says where it is for");
        let again = write(&schedule, Format::Taprio).expect("a command can be written again");
        same(&schedule, &again, Format::Taprio);
    }
}

fn read(text: &str, format: Format) -> Option<Schedule> {
    match parse(text, format) {
        Ok(schedule) => {
            accepted(&schedule);
            Some(schedule)
        }
        Err(faults) => {
            refused(text, &faults);
            None
        }
    }
}

fn accepted(schedule: &Schedule) {
    // Of what tc and Linux take, some is not executed, and is said in no other format.
    if !schedule.limits().is_empty() {
        assert!(write(schedule, Format::Yaml).is_err() && write(schedule, Format::Json).is_err());
        return;
    }
    assert_eq!(schedule.admin.check(), Ok(()), "what is accepted keeps the rules");
    for format in [Format::Yaml, Format::Json] {
        let text = write(schedule, format).expect("everything can be said");
        same(schedule, &text, format);
        same(schedule, &text, Format::Auto);
    }
    if let Ok(command) = write(schedule, Format::Taprio) {
        let again = parse(&command, Format::Taprio).expect("what is written is read");
        assert_eq!(again.admin, schedule.admin);
        assert_eq!(again.queue_max_sdu, schedule.queue_max_sdu);
        assert_eq!(again.name, schedule.name);
    }
    let link = Link::of(schedule, None, None, None);
    let analysis = analyse(schedule, &link);
    for class in &analysis.classes {
        assert!(class.open <= analysis.cycle_time && class.exclusive <= class.open);
        assert!(class.usable.is_none_or(|usable| usable <= class.open));
        // A frame is at least as long as its guard band without hand-over: none in a window of no room.
        assert!(class.windows.len() <= schedule.admin.control_list.len().max(1));
    }
    let drawing = draw::timeline(schedule, &link, &analysis, 40, draw::Paint::Plain);
    assert!(!drawing.contains(|c: char| c.is_control() && c != '\n'), "nothing that a terminal acts on");
    assert!(draw::svg(schedule, &link, &analysis).ends_with("</svg>\n"));
}

fn same(schedule: &Schedule, text: &str, format: Format) {
    assert_eq!(parse(text, format).as_ref(), Ok(schedule), "read as written: {text}");
}

fn refused(text: &str, faults: &Faults) {
    assert!(!faults.as_slice().is_empty() && faults.as_slice().len() <= limits::FAULTS_MAX + 1);
    let lines_count = text.split(['\n', '\r']).count();
    for fault in faults.as_slice() {
        assert!((1..=lines_count + 1).contains(&fault.at.line) && fault.at.column > 0, "{fault:?}");
        let shown = fault.to_string();
        assert!(!shown.contains(char::is_control), "{shown:?}");
    }
}
