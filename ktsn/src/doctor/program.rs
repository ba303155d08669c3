// SPDX-License-Identifier: Apache-2.0
//! Whether libktsn can serve a program: preloading needs a dynamic loader and an unprivileged start.
//!
//! In: a name as given to a shell. Out: what would really be executed (scripts are followed to their interpreter) and
//! the obstacle, if any. Looks only at files; starts nothing.

use std::ffi::OsStr;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use ktsn_host::find_program;
use object::elf::Machine;
use rustix::fs::OFlags;

use super::elf::{self, Elf, Names};
use super::finding::{Finding, Look};
use super::habits;
use crate::files::open_regular;

/// Scripts may name scripts as interpreters: the kernel gives up after this many, and so does doctor.
const SCRIPT_DEPTH_MAX: usize = 5;

/// `e_machine` of the machine that we, and so libktsn.so, were built for.
#[cfg(target_arch = "x86_64")]
const MACHINE: Machine = object::elf::EM_X86_64;
#[cfg(target_arch = "aarch64")]
const MACHINE: Machine = object::elf::EM_AARCH64;

/// Why preloading cannot serve a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Obstacle {
    /// No dynamic loader.
    #[error("is statically linked: no loader reads LD_PRELOAD")]
    Static,
    /// Go's net package makes raw system calls.
    #[error("is a Go program: it sends by raw system calls, which a preloaded library never sees")]
    Go,
    /// Not of libktsn.so's machine.
    #[error("is built for another machine or word size than libktsn.so")]
    OtherMachine,
    /// The loader ignores LD_PRELOAD when a program gains rights.
    #[error("gains rights at its start (set-id bits or file capabilities): LD_PRELOAD is ignored")]
    Privileged,
}

impl Obstacle {
    /// The typed reason.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Static => "program_static",
            Self::Go => "program_go",
            Self::OtherMachine => "program_other_machine",
            Self::Privileged => "program_privileged",
        }
    }

    /// What to do about it.
    pub(crate) fn remedy(self) -> &'static str {
        match self {
            Self::Static => {
                "serve it by kernel capture (`ktsn run --capture kernel`), or link it dynamically (its timed sends leave at once meanwhile)"
            }
            Self::Go => {
                "serve it by kernel capture (`ktsn run --capture kernel`); Go's net package does not call the C library's sendmsg"
            }
            Self::OtherMachine => {
                "use a 64-bit build of the program for this machine, or kernel capture (`ktsn run --capture kernel`)"
            }
            Self::Privileged => {
                "start it as the user whose rights it gains, remove its set-id bits or file capabilities, or serve it by kernel capture (`ktsn run --capture kernel`)"
            }
        }
    }
}

/// What was found out about a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Inspection {
    /// The file that the kernel would load in the end.
    pub(crate) executed: PathBuf,
    /// The C library: `glibc`, `musl`, `other`; `none` without a loader.
    pub(crate) libc: &'static str,
    /// How it starts, for people.
    pub(crate) kind: &'static str,
    /// The obstacle that keeps libktsn out of the program, if there is one.
    pub(crate) obstacle: Option<Obstacle>,
    /// What its tables of strings name; `None` where they cannot be read.
    pub(crate) names: Option<Names>,
}

impl Inspection {
    /// Whether only the kernel can see its timed datagrams.
    pub(crate) fn needs_capture(&self) -> bool {
        self.obstacle.is_some()
    }

    /// Whether it asks interfaces for hardware timestamps, and may refuse one without them. It reads all of the program's code.
    /// `None`: the code cannot be read.
    fn asks_hwtstamp(&self) -> Option<bool> {
        let mut file = open_regular(&self.executed, OFlags::empty()).ok()?;
        let elf = elf::read(&mut file).ok()??;
        elf::asks_hwtstamp(&mut file, &elf)
    }

    /// The inspection as one object of JSON.
    pub(crate) fn to_json(&self) -> serde_json::Value {
        serde_json::json!({
            "executed": self.executed.to_string_lossy(),
            "kind": self.kind,
            "libc": self.libc,
            "obstacle": self.obstacle.map(Obstacle::word),
            "io_uring": self.names.map(|names| names.io_uring),
            "asan_library": self.names.map(|names| names.asan_library),
            "asks_hwtstamp": self.asks_hwtstamp(),
            "needs_capture": self.needs_capture(),
        })
    }
}

/// Looks at the program and, for a script, at its interpreter.
///
/// # Errors
/// The file's (missing, unreadable), and `InvalidData` for what no kernel would execute.
pub(crate) fn inspect(path: &Path) -> io::Result<Inspection> {
    let mut path = path.to_owned();
    for _ in 0..SCRIPT_DEPTH_MAX {
        let mut file = open_regular(&path, OFlags::empty())?;
        if let Some(elf) = elf::read(&mut file)? {
            return Ok(judge(path.clone(), &elf, gains_rights(&path)?));
        }
        let mut start = Vec::new();
        file.seek(SeekFrom::Start(0))?;
        file.take(4096).read_to_end(&mut start)?;
        path = interpreter(&start)?;
    }
    Err(io::Error::new(io::ErrorKind::InvalidData, "too many scripts that name scripts as interpreters"))
}

/// The interpreter of a script; a shell runs a text without `#!` itself.
fn interpreter(start: &[u8]) -> io::Result<PathBuf> {
    let Some(line) = start.strip_prefix(b"#!") else {
        if start.contains(&0) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "neither an ELF file nor a script"));
        }
        return Ok(PathBuf::from("/bin/sh"));
    };
    let line = line.split(|octet| *octet == b'\n').next().unwrap_or_default();
    let mut words = line.split(|octet| matches!(octet, b' ' | b'\t')).filter(|word| !word.is_empty());
    let missing =
        || io::Error::new(io::ErrorKind::InvalidData, "a script without an interpreter's name after #!");
    let first = PathBuf::from(OsStr::from_bytes(words.next().ok_or_else(missing)?));
    // `#!/usr/bin/env NAME` executes NAME of the search path.
    if first.file_name() == Some(OsStr::new("env")) {
        let named = words.find(|word| !word.starts_with(b"-") && !word.contains(&b'='));
        if let Some(found) = named.and_then(|word| find_program(OsStr::from_bytes(word))) {
            return Ok(found);
        }
    }
    Ok(first)
}

/// Whether the loader will see AT_SECURE: the file gives rights that this process lacks.
fn gains_rights(path: &Path) -> io::Result<bool> {
    const SET_USER_ID: u32 = 0o4000;
    const SET_GROUP_ID: u32 = 0o2000;
    const GROUP_EXECUTE: u32 = 0o0010;
    let file = std::fs::metadata(path)?;
    let (user, group) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let by_user = file.mode() & SET_USER_ID != 0 && file.uid() != user;
    // Without the group's x bit, set-group-id means mandatory locking and changes no group.
    let group_bits = SET_GROUP_ID | GROUP_EXECUTE;
    let by_group = file.mode() & group_bits == group_bits && file.gid() != group;
    let capabilities = rustix::fs::getxattr(path, "security.capability", &mut [0_u8; 64][..]);
    Ok(by_user || by_group || (user != 0 && capabilities.is_ok()))
}

fn judge(executed: PathBuf, elf: &Elf, gains_rights: bool) -> Inspection {
    let libc = match &elf.interpreter {
        None => "none",
        Some(loader) if loader.contains("ld-musl") => "musl",
        Some(loader) if loader.contains("ld-linux") || loader.contains("ld64") => "glibc",
        Some(_) => "other",
    };
    let kind = match (&elf.interpreter, elf.is_go, elf.has_dynamic) {
        (_, true, _) => "Go",
        (Some(_), ..) => "dynamic",
        (None, _, true) => "static-pie",
        (None, ..) => "static",
    };
    let obstacle = if !elf.is_64_bit || elf.machine != MACHINE {
        Some(Obstacle::OtherMachine)
    } else if elf.is_go {
        Some(Obstacle::Go)
    } else if elf.interpreter.is_none() {
        Some(Obstacle::Static)
    } else if gains_rights {
        Some(Obstacle::Privileged)
    } else {
        None
    };
    Inspection { executed, libc, kind, obstacle, names: elf.names }
}

/// The findings of `doctor --program`. `is_captured`: whether kernel capture takes what programs send here.
pub(crate) fn findings(path: &Path, is_captured: impl FnOnce() -> bool) -> Vec<Finding> {
    const LOOK: Look = Look::at("program", "the program's file, followed to its interpreter");
    let inspection = match inspect(path) {
        Ok(inspection) => inspection,
        Err(error) => {
            return vec![LOOK.fail(
                format!("{}: {error}", path.display()),
                "whether libktsn can serve it is unknown",
                "name a program that this user may read, for example with its whole path",
            )];
        }
    };
    let kind = if inspection.obstacle == Some(Obstacle::OtherMachine) {
        "another machine's"
    } else {
        inspection.kind
    };
    let value = format!("{}: {kind}, C library {}", inspection.executed.display(), inspection.libc);
    let served = match inspection.obstacle {
        Some(_) if is_captured() => {
            LOOK.ok(value, "libktsn cannot serve it, and kernel capture does: the attachment here has it")
        }
        Some(obstacle) => LOOK.fail(value, format!("it {obstacle}"), obstacle.remedy()),
        None if inspection.libc == "other" => LOOK.warn(
            value,
            "libktsn is tried with the loaders of glibc and musl only",
            "run it under `ktsn run` with KTSN_LOG=debug and look whether it attaches",
        ),
        None => LOOK.ok(value, "`ktsn run` can serve it, and the dynamic programs that it starts"),
    };
    const HARDWARE: Look = Look::at("program_hwtstamp", "the machine code in the program's file");
    let by_hardware = match inspection.asks_hwtstamp() {
        Some(true) => HARDWARE.warn(
            "it calls SIOCSHWTSTAMP or SIOCGHWTSTAMP",
            "it asks the interface for hardware timestamps; an interface without them (veth, most virtual ones) refuses, and the \
             program may end there",
            "run it with `ktsn run --emulate-hwtstamp`: libktsn grants them, and makes none (docs/guide/programs.md)",
        ),
        Some(false) => HARDWARE.ok("not called", "it does not ask interfaces for hardware timestamps"),
        None => HARDWARE.not_known(
            "its code cannot be read",
            "whether it asks interfaces for hardware timestamps is unknown",
            "name a program that this user may read",
        ),
    };
    let mut findings = vec![served, by_hardware];
    findings.extend(habits::findings(inspection.names));
    findings
}

#[cfg(test)]
mod tests {
    use super::super::elf::tests::made;
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    const INTERP: object::elf::ProgramType = object::elf::PT_INTERP;

    fn obstacle_of(dir: &Path, contents: &[u8], mode: u32) -> Option<Obstacle> {
        let path = dir.join("program");
        let _ = std::fs::remove_file(&path);
        std::fs::write(&path, contents).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        inspect(&path).unwrap().obstacle
    }

    #[test]
    fn each_obstacle_is_seen() {
        let dir = tempfile::tempdir().unwrap();
        let dynamic = {
            let mut file = made(&[(INTERP, b"/lib64/ld-linux-x86-64.so.2\0")]);
            file[18..20].copy_from_slice(&MACHINE.0.to_le_bytes());
            file
        };
        let mut other = dynamic.clone();
        other[18..20].copy_from_slice(&[243, 0]);
        let mut fixed = made(&[]);
        fixed[18..20].copy_from_slice(&MACHINE.0.to_le_bytes());
        assert_eq!(obstacle_of(dir.path(), &dynamic, 0o755), None);
        assert_eq!(obstacle_of(dir.path(), &other, 0o755), Some(Obstacle::OtherMachine));
        assert_eq!(obstacle_of(dir.path(), &fixed, 0o755), Some(Obstacle::Static));
        // Set-user-id of our own user gives nothing, of another one it does.
        assert_eq!(obstacle_of(dir.path(), &dynamic, 0o4755), None);
        let path = dir.path().join("program");
        if std::os::unix::fs::chown(&path, Some(12345), None).is_ok() {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o4755)).unwrap();
            assert_eq!(inspect(&path).unwrap().obstacle, Some(Obstacle::Privileged));
        }
    }

    #[test]
    fn scripts_are_followed() {
        let dir = tempfile::tempdir().unwrap();
        let script = dir.path().join("script");
        for text in ["#!/bin/sh\n", "#! /usr/bin/env -S A=1 sh -e\n", "echo no first line\n", "#!/bin/sh -e"]
        {
            std::fs::write(&script, text).unwrap();
            let executed = inspect(&script).unwrap().executed;
            assert!(executed.ends_with("sh"), "{text}: {}", executed.display());
        }
        std::fs::write(&script, format!("#!{}\n", script.display())).unwrap();
        assert!(inspect(&script).is_err(), "a script that interprets itself");
        std::fs::write(&script, b"\0\x01\x02").unwrap();
        assert!(inspect(&script).is_err());
        std::fs::write(&script, "#!\n").unwrap();
        assert!(inspect(&script).is_err());
        assert!(inspect(dir.path()).is_err());
    }
}
