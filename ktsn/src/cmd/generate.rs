// SPDX-License-Identifier: Apache-2.0
//! `ktsn generate`, hidden: the manual pages and completions that the packages install.
//!
//! In: the definition of the whole command line. Out: files in a directory, exit status 0; 1 the directory cannot be written.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use ktsn_pages::Kind;

use crate::output;

/// Write manual pages or completions.
#[derive(Args, Clone, Debug)]
pub(crate) struct GenerateArgs {
    /// What to write.
    kind: Kind,
    /// Directory to write into; made if it is missing.
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

/// Writes the files for `command`, the whole command line.
pub(crate) fn run(command: clap::Command, args: &GenerateArgs) -> ExitCode {
    let place = args.directory.display();
    let done = ktsn_pages::write(command, args.kind, 1, &args.directory)
        .map_err(|error| format!("{place}: {error}; give a directory that can be written"));
    output::finish("generate", done)
}
