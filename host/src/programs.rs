// SPDX-License-Identifier: Apache-2.0
//! Programs on the search path. In: a name. Out: a path. Nothing is started.

use rustix::fs::Access;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

/// The file that a shell would execute for this name.
#[must_use]
pub fn find_program(name: &OsStr) -> Option<PathBuf> {
    if name.as_bytes().contains(&b'/') {
        let path = PathBuf::from(name);
        return path.exists().then_some(path);
    }
    if name.is_empty() {
        return None;
    }
    let places = std::env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
    let is_program = |path: &PathBuf| path.is_file() && rustix::fs::access(path, Access::EXEC_OK).is_ok();
    std::env::split_paths(&places).map(|place| place.join(name)).find(is_program)
}

/// A program of KTSN: beside the running one, else on the search path.
#[must_use]
pub fn find_own(name: &str) -> Option<PathBuf> {
    let beside = std::env::current_exe().ok().map(|own| own.with_file_name(name));
    beside.filter(|beside| beside.is_file()).or_else(|| find_program(OsStr::new(name)))
}

/// Whether a program of this name can be started.
#[must_use]
pub fn is_installed(name: &str) -> bool {
    find_program(OsStr::new(name)).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_as_a_shell_does() {
        assert!(find_program(OsStr::new("sh")).unwrap().is_absolute());
        assert_eq!(find_program(OsStr::new("/bin/sh")), Some(PathBuf::from("/bin/sh")));
        assert_eq!(find_program(OsStr::new("no-such-program-anywhere")), None);
        assert_eq!(find_program(OsStr::new("")), None);
    }
}
