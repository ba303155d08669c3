// SPDX-License-Identifier: Apache-2.0
//! The instructions of libktsn that receive calls run through. In: the library. Out: their addresses in it, by objdump.

use std::path::Path;
use std::process::Command;

/// Functions of these modules: the calls, and their waits with the spin.
const MODULES: [&str; 3] = ["ktsn::receive::calls::", "ktsn::receive::polls::", "ktsn::receive::wait::"];

/// Addresses of the instructions, as if the library lay at 0.
pub(super) fn of(library: &Path) -> Vec<u64> {
    let mut command = Command::new("objdump");
    let output =
        command.args(["-d", "-C", "--no-show-raw-insn"]).arg(library).output().expect("objdump (binutils)");
    let text = String::from_utf8_lossy(&output.stdout);
    let (mut found, mut is_wanted) = (Vec::new(), false);
    for line in text.lines() {
        if let Some((_, name)) = line.split_once(" <").filter(|_| line.ends_with(">:")) {
            is_wanted = MODULES.iter().any(|module| name.contains(module));
        } else if is_wanted && let Some((address, _)) = line.split_once(":\t") {
            found.extend(u64::from_str_radix(address.trim(), 16));
        }
    }
    assert!(found.len() > 500, "{} instructions in {}", found.len(), library.display());
    found
}
