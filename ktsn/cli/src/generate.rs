// SPDX-License-Identifier: Apache-2.0
//! `generate`, hidden, of both programs: the manual pages and completions that the packages install.
//!
//! In: the definition of the whole command line. Out: files in a directory, exit status 0; 1 the directory cannot be written.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use ktsn_pages::Kind;

use crate::output;

/// Write manual pages or completions.
#[derive(Args, Clone, Debug)]
pub struct GenerateArgs {
    /// What to write.
    kind: Kind,
    /// Directory to write into; made if it is missing.
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

impl GenerateArgs {
    /// Whether manual pages are asked for.
    #[must_use]
    pub fn is_man(&self) -> bool {
        self.kind == Kind::Man
    }
}

/// Writes the files for `command`, the whole command line.
pub fn run(command: clap::Command, args: &GenerateArgs) -> ExitCode {
    finish(args, |kind, place| ktsn_pages::write(command, kind, 1, place))
}

/// Writes the files for the commands of `command`, which are called as those of the program `name`: it has the page of the whole.
pub fn run_as_commands_of(name: &'static str, command: clap::Command, args: &GenerateArgs) -> ExitCode {
    finish(args, |kind, place| {
        if kind == Kind::Completions {
            return ktsn_pages::write(command, kind, 1, place);
        }
        let mut named = command.bin_name(name).display_name(name).disable_help_subcommand(true);
        // Now each command knows its whole name.
        named.build();
        let shown = named.get_subcommands().filter(|inner| !inner.is_hide_set());
        shown.cloned().try_for_each(|inner| ktsn_pages::write(inner, kind, 1, place))
    })
}

fn finish(args: &GenerateArgs, write: impl FnOnce(Kind, &Path) -> io::Result<()>) -> ExitCode {
    let place = args.directory.display();
    let done = write(args.kind, &args.directory)
        .map_err(|error| format!("{place}: {error}; give a directory that can be written"));
    output::finish("generate", done)
}
