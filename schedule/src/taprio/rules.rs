// SPDX-License-Identifier: Apache-2.0
//! The rules of sch_taprio about a command as a whole, without those about the device.

use super::reader::Reader;
use super::{CYCLE_NANOS_MAX, refusals};
use crate::fault::Position;
use crate::limits::FAULTS_MAX;

/// Judges what was read, and leaves out what Linux ignores, with a remark.
pub(super) fn check(reader: &mut Reader<'_>) {
    let end = reader.last;
    // Of a command that is broken already, what is missing may stand in the broken part.
    let is_broken = !reader.faults.is_empty();
    if reader.entries.is_empty() && !is_broken {
        reader.fault(end, "sched-entry", "nothing", "at least one entry");
    }
    times(reader);
    classes(reader);
    if reader.taprio.num_tc.is_none() {
        let ignored: Vec<&str> =
            ["map", "queues"].into_iter().filter(|option| reader.is_seen(option)).collect();
        if !ignored.is_empty() {
            let at = reader.place_of(ignored[0]);
            reader.remark(at, format!("{} without num_tc: tc ignores it", ignored.join(" and ")));
        }
        reader.taprio.queues.clear();
    }
    let is_said = |value: &str| !is_broken || value != "nothing";
    let refused = refusals(&reader.taprio).into_iter().filter(|(_, value, _)| is_said(value));
    for (leaf, value, expected) in refused.take(FAULTS_MAX) {
        let at = reader.place_of(leaf);
        reader.fault(at, leaf, value, expected);
    }
}

fn times(reader: &mut Reader<'_>) {
    let (base_at, extension_at) = (reader.place_of("base-time"), reader.place_of("cycle-time-extension"));
    if reader.base_time < 0 {
        reader.remark(
            base_at,
            "base-time before 1970: only its place in the cycle counts, and is kept".to_owned(),
        );
    }
    if reader.extension < 0 {
        reader.remark(extension_at, "cycle-time-extension below 0: taken as 0".to_owned());
    }
    let admin = &reader.schedule.admin;
    let sum: i128 = admin.control_list.iter().map(|entry| i128::from(entry.interval.get())).sum();
    let expected = format!("0 to {CYCLE_NANOS_MAX} ns, which is all that Linux takes");
    if !(0..=CYCLE_NANOS_MAX).contains(&reader.cycle_time) {
        let (at, found) = (reader.place_of("cycle-time"), reader.cycle_time);
        reader.fault(at, "cycle-time", found, expected);
    } else if reader.cycle_time == 0 && sum > i128::from(CYCLE_NANOS_MAX) {
        let at = reader.entries.first().copied().unwrap_or(Position::START);
        reader.fault(at, "cycle-time", format!("{sum} as the sum of the intervals"), expected);
    }
}

fn classes(reader: &mut Reader<'_>) {
    let count = usize::from(reader.taprio.num_tc.unwrap_or(8));
    if let Some(num_tc) = reader.taprio.num_tc {
        let highest = reader.map.iter().copied().max().unwrap_or(0);
        if highest >= num_tc {
            let at = reader.place_of("map");
            reader.fault(at, "map", format!("class {highest}"), format!("classes below num_tc {num_tc}"));
        }
        cut(reader, "queues", count, reader.taprio.queues.len());
        reader.taprio.queues.truncate(count);
    }
    let limits = reader.max_sdu.iter().rposition(|octets| *octets > 0).map_or(0, |last| last + 1);
    cut(reader, "max-sdu", count, limits);
    for octets in reader.max_sdu.iter_mut().skip(count) {
        *octets = 0;
    }
    cut(reader, "fp", count, reader.taprio.is_preemptible.len());
    reader.taprio.is_preemptible.truncate(count);
}

fn cut(reader: &mut Reader<'_>, option: &'static str, count: usize, found: usize) {
    if found > count {
        let at = reader.place_of(option);
        reader.remark(
            at,
            format!(
                "{option} has {found} values for {count} classes: the others do nothing, and are left out"
            ),
        );
    }
}
