// SPDX-License-Identifier: Apache-2.0
//! A run without any cell that can be measured. In: its skipped cells. Out: the error, which names each system's reason.

use crate::error::LabError;
use ktsn_realtime::Cell;
use ktsn_realtime::results::Skip;

/// The error of a run in which all these cells are skipped: a line for each system and reason. Profiles are named where a system has several
/// reasons.
pub(super) fn all(cells: &[Cell]) -> LabError {
    let mut reasons: Vec<(&str, &Skip, Vec<String>)> = Vec::new();
    for cell in cells {
        let Some(skip) = &cell.skip else { continue };
        let profile = cell.profile.to_string();
        match reasons.iter_mut().find(|(system, reason, _)| *system == cell.system && *reason == skip) {
            Some((.., profiles)) => profiles.push(profile),
            None => reasons.push((&cell.system, skip, vec![profile])),
        }
    }
    let has_several = |system: &str| reasons.iter().filter(|(other, ..)| *other == system).count() > 1;
    let line = |(system, skip, profiles): &(&str, &Skip, Vec<String>)| {
        let Skip { kind, reason } = skip;
        let profiles =
            if has_several(system) { format!(", profile {}", profiles.join(", ")) } else { String::new() };
        format!("\n  {system}{profiles}: {reason} ({kind})")
    };
    LabError::Nothing(reasons.iter().map(line).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use ktsn_realtime::Profile;

    #[test]
    fn each_system_and_reason_has_a_line() {
        let cell = |system: &str, profile: usize, kind: &str| {
            let skip = Skip { kind: kind.to_owned(), reason: format!("why {kind}") };
            Cell { skip: Some(skip), ..Cell::new(system, Profile::ALL[profile - 1]) }
        };
        let cells = [
            cell("uml", 1, "guest_missing"),
            cell("uml", 3, "guest_missing"),
            cell("rtos", 1, "guest_failed"),
            cell("rtos", 3, "guest_failed"),
            cell("rtos", 4, "too_few_cpus"),
        ];
        let error = all(&cells);
        assert_eq!(
            error.to_string(),
            "nothing can be measured here:\n  uml: why guest_missing (guest_missing)\n  rtos, profile 1, 3: why guest_failed (guest_failed)\n  \
             rtos, profile 4: why too_few_cpus (too_few_cpus)"
        );
        assert_eq!(error.exit_status(), 3);
    }
}
