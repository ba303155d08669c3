// SPDX-License-Identifier: Apache-2.0
//! The kernel of a guest, and those of its modules that guests use.
//!
//! In: a kernel package's files. Out: where the uncompressed kernel lies in its image; modules with all that they need, and the two lists
//! that `modprobe` reads. Pure, but for the module files that are read.

use super::elf;
use crate::error::LabError;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// What guests use: their devices, the host's files, and the queueing disciplines of TSN.
const MODULES: [&str; 36] = [
    "virtio_pci",
    "virtio_net",
    "virtio_console",
    "virtio_rng",
    "9p",
    "9pnet_virtio",
    "overlay",
    "sch_taprio",
    "sch_etf",
    "sch_mqprio",
    "sch_netem",
    "sch_ingress",
    "sch_cbs",
    "sch_fq",
    "sch_prio",
    "cls_flower",
    "cls_bpf",
    "cls_matchall",
    "cls_u32",
    "act_gate",
    "act_gact",
    "act_mirred",
    "act_skbedit",
    "af_packet_diag",
    "ipv6",
    "8021q",
    "veth",
    "bridge",
    "vxlan",
    "dummy",
    "ifb",
    "tun",
    "macvtap",
    "ptp_kvm",
    "uio_pci_generic",
    "vmw_vsock_virtio_transport",
];

/// The compressed kernel inside `vmlinuz` (Documentation/arch/x86/boot.rst: setup_sects, version, payload_offset and payload_length), if
/// it is compressed by xz. Without it a guest boots the whole `vmlinuz`, which unpacks itself, seconds slower under TCG.
pub(super) fn xz_payload(vmlinuz: &[u8]) -> Option<&[u8]> {
    let u32_at = |at: usize| Some(u32::from_le_bytes(vmlinuz.get(at..at + 4)?.try_into().ok()?) as usize);
    let version = u16::from_le_bytes(vmlinuz.get(0x206..0x208)?.try_into().ok()?);
    if vmlinuz.get(0x202..0x206)? != b"HdrS" || version < 0x208 {
        return None;
    }
    let setup_sectors = match *vmlinuz.get(0x1f1)? {
        0 => 4,
        sectors => usize::from(sectors),
    };
    let begin = (setup_sectors + 1) * 512 + u32_at(0x248)?;
    let payload = vmlinuz.get(begin..begin.checked_add(u32_at(0x24c)?)?)?;
    payload.starts_with(b"\xfd7zXZ\0").then_some(payload)
}

/// A module of the guest.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Module {
    /// Its file, below the directory of the kernel's version.
    pub(super) path: String,
    pub(super) content: Vec<u8>,
    pub(super) needs: BTreeSet<String>,
    pub(super) aliases: Vec<String>,
}

/// The modules that guests use and those that these need, by name. `directory` is `lib/modules/VERSION`. A module that this kernel does
/// not have is left out: a program that uses it fails in the guest, with the kernel's own error.
///
/// # Errors
/// A file cannot be read.
pub(super) fn modules(directory: &Path) -> Result<BTreeMap<String, Module>, LabError> {
    let files = find(&directory.join("kernel"))?;
    let mut wanted: Vec<String> = MODULES.iter().map(|&name| name.to_owned()).collect();
    let mut found = BTreeMap::new();
    while let Some(name) = wanted.pop() {
        let Some(path) = files.get(&name).filter(|_| !found.contains_key(&name)) else { continue };
        let content = std::fs::read(path).map_err(LabError::file(path))?;
        let depends = elf::module_says(&content, "depends").join(",");
        let needs: BTreeSet<String> =
            depends.split(',').filter(|name| !name.is_empty()).map(canonical).collect();
        wanted.extend(needs.iter().cloned());
        let aliases = elf::module_says(&content, "alias");
        let path = path.strip_prefix(directory).unwrap_or(path).to_string_lossy().into_owned();
        found.insert(name, Module { path, content, needs, aliases });
    }
    Ok(found)
}

/// A module's name in one form: files may have a dash where the kernel writes an underscore.
fn canonical(name: &str) -> String {
    name.replace('-', "_")
}

/// Every module file below `directory`, by module name.
fn find(directory: &Path) -> Result<BTreeMap<String, PathBuf>, LabError> {
    let mut files = BTreeMap::new();
    let mut directories = vec![directory.to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(&directory).map_err(LabError::file(&directory))? {
            let path = entry.map_err(LabError::file(&directory))?.path();
            if path.is_dir() {
                directories.push(path);
            } else if path.extension().is_some_and(|extension| extension == "ko") {
                files.insert(canonical(&path.file_stem().unwrap_or_default().to_string_lossy()), path);
            }
        }
    }
    Ok(files)
}

/// `modules.dep` and `modules.alias` (modules.dep(5)).
pub(super) fn lists(modules: &BTreeMap<String, Module>) -> (String, String) {
    let (mut dep, mut alias) = (String::new(), String::new());
    for (name, module) in modules {
        let mut line = format!("{}:", module.path);
        let mut seen = BTreeSet::new();
        for path in needed(modules, module, &mut seen) {
            line.push(' ');
            line.push_str(path);
        }
        dep.push_str(&line);
        dep.push('\n');
        for pattern in &module.aliases {
            alias.push_str(&format!("alias {pattern} {name}\n"));
        }
    }
    (dep, alias)
}

/// All that a module needs: each one before what it needs itself, as modprobe loads from the end.
fn needed<'a>(
    modules: &'a BTreeMap<String, Module>,
    module: &'a Module,
    seen: &mut BTreeSet<&'a str>,
) -> Vec<&'a str> {
    let mut behind = Vec::new();
    for name in &module.needs {
        if let Some(other) = modules.get(name).filter(|_| seen.insert(name)) {
            // What was named before is needed earlier in the load, so it stands later in the list.
            let mut with_own = vec![other.path.as_str()];
            with_own.extend(needed(modules, other, seen));
            with_own.extend(behind);
            behind = with_own;
        }
    }
    behind
}
