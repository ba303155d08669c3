// SPDX-License-Identifier: Apache-2.0
//! What an ELF file needs: a program's libraries, a kernel module's modules.
//!
//! In: the file's octets. Out: names, or nothing for a file without them. A damaged file gives nothing, never a panic.

use object::LittleEndian;
use object::elf::{DT_NEEDED, FileHeader64};
use object::read::elf::{Dyn as _, FileHeader as _, SectionHeader as _};

const ORDER: LittleEndian = LittleEndian;
type Header = FileHeader64<LittleEndian>;

/// The names of the shared libraries that a program or library is linked against (DT_NEEDED).
pub(super) fn libraries(file: &[u8]) -> Vec<String> {
    let read = || {
        let sections = Header::parse(file).ok()?.sections(ORDER, file).ok()?;
        let (entries, names) = sections.dynamic(ORDER, file).ok()??;
        let names = sections.strings(ORDER, file, names).ok()?;
        let needed = entries.iter().filter(|entry| entry.tag(ORDER) == DT_NEEDED);
        let name = |entry: &object::elf::Dyn64<LittleEndian>| entry.string(ORDER, names).ok();
        Some(needed.filter_map(name).map(|name| String::from_utf8_lossy(name).into_owned()).collect())
    };
    read().unwrap_or_default()
}

/// What a kernel module says of itself under `key` (`depends`, `alias`).
pub(super) fn module_says(module: &[u8], key: &str) -> Vec<String> {
    let read = || {
        let sections = Header::parse(module).ok()?.sections(ORDER, module).ok()?;
        let (_, section) = sections.section_by_name(ORDER, b".modinfo")?;
        let entries = section.data(ORDER, module).ok()?.split(|&octet| octet == 0);
        let value = |entry: &[u8]| {
            let entry = String::from_utf8_lossy(entry);
            entry.strip_prefix(key)?.strip_prefix('=').map(str::to_owned)
        };
        Some(entries.filter_map(value).collect())
    };
    read().unwrap_or_default()
}
