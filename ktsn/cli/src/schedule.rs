// SPDX-License-Identifier: Apache-2.0
//! Gate schedules in files, or from standard input. In: a path, a format. Out: the schedule, or an error with file, line and column.

use std::io::Read as _;
use std::path::Path;

use ktsn_schedule::{Format, Remark, Schedule, limits};

/// Reads a schedule that KTSN can execute; an error is ready to be shown. Remarks of the reader go to standard error.
pub fn load(file: &Path, format: Format) -> Result<Schedule, String> {
    let (schedule, remarks) = read(file, format)?;
    let limits: Vec<String> =
        schedule.limits().iter().map(|limit| format!("{}: {limit}", file.display())).collect();
    if !limits.is_empty() {
        return Err(limits.join("\n"));
    }
    for remark in remarks {
        eprintln!("{}:{remark}", file.display());
    }
    Ok(schedule)
}

/// Reads a schedule, also one that only tc and Linux take; an error is ready to be shown.
pub fn read(file: &Path, format: Format) -> Result<(Schedule, Vec<Remark>), String> {
    let is_standard_input = file.as_os_str() == "-";
    let name = if is_standard_input { "standard input".into() } else { file.display().to_string() };
    // One octet more than is read: a longer text is refused as a whole.
    let limit = limits::OCTETS_MAX as u64 + 1;
    let mut octets = Vec::new();
    let read = if is_standard_input {
        std::io::stdin().lock().take(limit).read_to_end(&mut octets)
    } else {
        std::fs::File::open(file).and_then(|file| file.take(limit).read_to_end(&mut octets))
    };
    read.map_err(|error| format!("{name}: {error}"))?;
    let text = String::from_utf8(octets).map_err(|error| {
        let valid =
            String::from_utf8_lossy(&error.as_bytes()[..error.utf8_error().valid_up_to()]).into_owned();
        let line = valid.matches('\n').count() + 1;
        let column = valid.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        format!("{name}:{line}:{column}: found octets that are no UTF-8, expected text")
    })?;
    ktsn_schedule::parse_with_remarks(&text, format).map_err(|faults| {
        let lines: Vec<String> = faults.as_slice().iter().map(|fault| format!("{name}:{fault}")).collect();
        lines.join("\n")
    })
}
