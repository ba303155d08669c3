// SPDX-License-Identifier: Apache-2.0
//! The true relation of a guest's counter to its host's, from the hypervisor itself.
//!
//! In: a QEMU under TCG. Out: what its guest's counter is ahead of the host's, in ticks. Under TCG that is one number of QEMU's own
//! (`cpu_ticks_offset`), constant while the guest runs. It is read from QEMU's memory: no exchange and no packet takes part.

use crate::error::LabError;
use std::fs::File;
use std::os::unix::fs::FileExt as _;

/// The different words of QEMU's static data that lie within `near` of `wanted`. There is one if `wanted` is about right: others would have
/// to be that near by chance, of 2⁶⁴ values.
///
/// # Errors
/// QEMU has ended, or its memory may not be read.
pub fn counter_offsets(qemu: u32, wanted: i64, near: u64) -> Result<Vec<i64>, LabError> {
    let path = format!("/proc/{qemu}/maps");
    let maps = std::fs::read_to_string(&path).map_err(LabError::file(path))?;
    let path = format!("/proc/{qemu}/mem");
    let memory = File::open(&path).map_err(LabError::file(path))?;
    let mut found = Vec::new();
    let mut is_of_qemu = false;
    for line in maps.lines() {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (Some(range), Some(access)) = (fields.first(), fields.get(1)) else { continue };
        // The zeroed part of the static data follows the program's file without a name.
        is_of_qemu = fields.get(5).map_or(is_of_qemu, |path| path.contains("qemu-system"));
        if !is_of_qemu || !access.starts_with("rw") {
            continue;
        }
        let address = |text: &str| u64::from_str_radix(text, 16).ok();
        let Some((from, to)) = range.split_once('-').and_then(|(from, to)| address(from).zip(address(to)))
        else {
            continue;
        };
        let mut octets = vec![0; usize::try_from(to.saturating_sub(from)).unwrap_or(0)];
        if memory.read_exact_at(&mut octets, from).is_ok() {
            let words = octets.as_chunks::<8>().0.iter().map(|word| i64::from_ne_bytes(*word));
            found.extend(words.filter(|word| word.abs_diff(wanted) <= near));
        }
    }
    found.sort_unstable();
    found.dedup();
    Ok(found)
}
