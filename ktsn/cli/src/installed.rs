// SPDX-License-Identifier: Apache-2.0
//! Where the other parts of KTSN lie: libktsn.so and ktsnd.
//!
//! In: the environment and our own executable's place. Out: absolute paths, or where was looked.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use ktsn_host::{HostError, find_program};

use crate::output::listed;

/// Why a part cannot be used.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Missing {
    /// The part is in none of these places.
    #[error("{}; {}", self.what(), self.remedy())]
    Nowhere {
        /// Its name.
        part: &'static str,
        /// Where was looked.
        places: Vec<PathBuf>,
    },
    /// Its path holds a space or a colon, which separate the names in LD_PRELOAD.
    #[error("{}; {}", self.what(), self.remedy())]
    BadPath(PathBuf),
}

impl Missing {
    fn what(&self) -> String {
        match self {
            Self::Nowhere { part, places } => format!("{part} is not at {}", listed(places)),
            Self::BadPath(path) => {
                format!("{} cannot be preloaded: LD_PRELOAD ends a name at a space or colon", path.display())
            }
        }
    }

    fn remedy(&self) -> &'static str {
        match self {
            Self::Nowhere { part: "libktsn.so", .. } => {
                "`make build` puts it beside ktsn, or name it with KTSN_LIB"
            }
            Self::Nowhere { .. } => "`make build` puts it beside ktsn",
            Self::BadPath(_) => "copy libktsn.so to a path without them and name it with KTSN_LIB",
        }
    }
}

impl From<Missing> for HostError {
    fn from(missing: Missing) -> Self {
        Self::Impossible { what: missing.what(), remedy: missing.remedy().to_owned() }
    }
}

/// libktsn.so: what KTSN_LIB names, else beside us, else in `../lib/ktsn`.
///
/// # Errors
/// [`Missing`].
pub fn library() -> Result<PathBuf, Missing> {
    let named = std::env::var_os("KTSN_LIB").filter(|value| !value.is_empty());
    let places = match named {
        // A bad name is an error, not replaced by another library.
        Some(named) => vec![std::path::absolute(&named).unwrap_or_else(|_| named.into())],
        None => beside_us(&["libktsn.so", "../lib/ktsn/libktsn.so"]),
    };
    let found = first_file(&places).ok_or(Missing::Nowhere { part: "libktsn.so", places })?;
    if found.as_os_str().as_bytes().iter().any(|octet| matches!(octet, b' ' | b':')) {
        return Err(Missing::BadPath(found));
    }
    Ok(found)
}

/// ktsnd: beside us, else in `../sbin` (as packages install it), else on the search path.
///
/// # Errors
/// [`Missing::Nowhere`].
pub fn daemon() -> Result<PathBuf, Missing> {
    let places = beside_us(&["ktsnd", "../sbin/ktsnd"]);
    first_file(&places)
        .or_else(|| find_program(OsStr::new("ktsnd")))
        .ok_or(Missing::Nowhere { part: "ktsnd", places })
}

fn beside_us(names: &[&str]) -> Vec<PathBuf> {
    let own = std::env::current_exe().unwrap_or_default();
    let folder = own.parent().unwrap_or(Path::new("/"));
    names.iter().map(|name| folder.join(name)).collect()
}

fn first_file(places: &[PathBuf]) -> Option<PathBuf> {
    let file = places.iter().find(|place| place.is_file())?;
    Some(file.canonicalize().unwrap_or_else(|_| file.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_has_its_remedy_once() {
        let places = vec![PathBuf::from("/a/ktsnd"), PathBuf::from("/b/ktsnd")];
        let daemon = || Missing::Nowhere { part: "ktsnd", places: places.clone() };
        assert_eq!(
            daemon().to_string(),
            "ktsnd is not at /a/ktsnd, /b/ktsnd; `make build` puts it beside ktsn"
        );
        let library = Missing::Nowhere { part: "libktsn.so", places: places.clone() };
        for error in [HostError::from(daemon()), HostError::from(library)] {
            let text = error.to_string();
            assert!(text.matches("make build").count() == 1 && error.exit_status() == 3, "{text}");
        }
        let text = HostError::from(Missing::BadPath("/a b/libktsn.so".into())).to_string();
        assert!(
            text.contains("/a b/libktsn.so cannot be preloaded") && text.contains("remedy: copy"),
            "{text}"
        );
    }
}
