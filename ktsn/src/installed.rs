// SPDX-License-Identifier: Apache-2.0
//! Where the other parts of KTSN lie: libktsn.so and ktsnd.
//!
//! In: the environment and our own executable's place. Out: absolute paths, or where was looked.

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use crate::doctor::program;

/// Why a part cannot be used.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Missing {
    /// It is in none of these places.
    Nowhere { part: &'static str, places: Vec<PathBuf> },
    /// Its path holds a space or a colon, which separate the names in LD_PRELOAD.
    BadPath(PathBuf),
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nowhere { part, places } => {
                let places: Vec<String> = places.iter().map(|place| place.display().to_string()).collect();
                write!(f, "{part} is not at {}; `make build` puts it beside ktsn", places.join(", "))?;
                if *part == "libktsn.so" { f.write_str(", or name it with KTSN_LIB") } else { Ok(()) }
            }
            Self::BadPath(path) => write!(
                f,
                "{} cannot be preloaded: LD_PRELOAD ends a name at a space or colon; copy libktsn.so to a path \
                 without them and name it with KTSN_LIB",
                path.display()
            ),
        }
    }
}

/// libktsn.so: what KTSN_LIB names, else beside us, else in `../lib/ktsn`.
///
/// # Errors
/// [`Missing`].
pub(crate) fn library() -> Result<PathBuf, Missing> {
    let named = std::env::var_os("KTSN_LIB").filter(|value| !value.is_empty());
    let places = match named {
        // A bad name is told, not replaced by another library.
        Some(named) => vec![std::path::absolute(&named).unwrap_or_else(|_| named.into())],
        None => beside_us(&["libktsn.so", "../lib/ktsn/libktsn.so"]),
    };
    let found = first_file(&places).ok_or(Missing::Nowhere { part: "libktsn.so", places })?;
    if found.as_os_str().as_bytes().iter().any(|octet| matches!(octet, b' ' | b':')) {
        return Err(Missing::BadPath(found));
    }
    Ok(found)
}

/// ktsnd: beside us, else on the search path.
///
/// # Errors
/// [`Missing::Nowhere`].
pub(crate) fn daemon() -> Result<PathBuf, Missing> {
    let places = beside_us(&["ktsnd"]);
    first_file(&places)
        .or_else(|| program::find(OsStr::new("ktsnd")))
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
