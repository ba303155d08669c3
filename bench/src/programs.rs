// SPDX-License-Identifier: Apache-2.0
//! The programs of an experiment. In: the place of this one. Out: those beside it, as `make build` leaves them; else where packages put them.

use std::path::PathBuf;

use ktsn_cli::installed;
use ktsn_lab::{LabError, Tools};

/// `ktsn`, beside this program.
pub(crate) fn ktsn() -> Result<PathBuf, LabError> {
    let own = std::env::current_exe();
    own.map(|own| own.with_file_name("ktsn")).map_err(|source| LabError::System { what: "own path", source })
}

/// All of them; a part that is nowhere is looked for beside this program, and missed there by the experiment that needs it.
pub(crate) fn tools() -> Result<Tools, LabError> {
    let beside = Tools::beside(&ktsn()?);
    let libktsn = if beside.libktsn.is_file() { Ok(beside.libktsn.clone()) } else { installed::library() };
    Ok(Tools {
        ktsnd: installed::daemon().unwrap_or_else(|_| beside.ktsnd.clone()),
        libktsn: libktsn.unwrap_or_else(|_| beside.libktsn.clone()),
        ..beside
    })
}
