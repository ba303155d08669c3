// SPDX-License-Identifier: Apache-2.0
//! `ktsn schedule show`: one cycle as a drawing.

use std::io::{self, IsTerminal as _};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use ktsn_schedule::analysis::analyse;
use ktsn_schedule::draw::{self, Paint};

use super::Input;
use crate::output;

/// The width if the terminal's is unknown.
const COLUMNS_DEFAULT: usize = 100;
/// Wider drawings show no more.
const COLUMNS_MAX: usize = 240;

const EXAMPLES: &str = "\
Examples:
  ktsn schedule show examples/schedules/three-classes.yaml
  ktsn schedule show schedule.yaml --link-speed 100M --hand-over 20us
  ktsn schedule show schedule.yaml --svg schedule.svg

A row a class, as wide as the terminal (COLUMNS or 100 where there is none); colours only on a terminal, and not \
with NO_COLOR. The guard band is the last part of a window, in which the class's largest frame may not start any more.

Exit status: 0 shown; 1 a file could not be written; 2 wrong usage, or the schedule has faults.";

/// Draw a schedule: windows, guard bands, what each class gets.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct ShowArgs {
    #[command(flatten)]
    input: Input,
    /// Write an SVG drawing instead; - is standard output.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

/// Draws.
pub(super) fn run(args: &ShowArgs) -> ExitCode {
    let Some((schedule, _)) = args.input.load() else { return 2.into() };
    let link = args.input.link.of(&schedule);
    let analysis = analyse(&schedule, &link);
    for warning in &analysis.warnings {
        eprintln!("{}: warning: {warning}", args.input.name());
    }
    let written = match &args.svg {
        None => {
            let is_painted =
                io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|no| no.is_empty());
            let paint = if is_painted { Paint::Colour } else { Paint::Plain };
            output::write(&draw::timeline(&schedule, &link, &analysis, columns(), paint)).map(|_| ())
        }
        Some(file) if file.as_os_str() == "-" => {
            output::write(&draw::svg(&schedule, &link, &analysis)).map(|_| ())
        }
        Some(file) => std::fs::write(file, draw::svg(&schedule, &link, &analysis))
            .map(|()| eprintln!("ktsn schedule show: wrote {}", file.display()))
            .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", file.display()))),
    };
    output::finish("schedule show", written)
}

/// The terminal's width, else what `COLUMNS` says.
fn columns() -> usize {
    let of_terminal = rustix::termios::tcgetwinsize(io::stdout()).ok().map(|size| usize::from(size.ws_col));
    let said = || std::env::var("COLUMNS").ok()?.parse().ok();
    of_terminal
        .filter(|columns| *columns > 0)
        .or_else(said)
        .filter(|columns| *columns > 0)
        .unwrap_or(COLUMNS_DEFAULT)
        .min(COLUMNS_MAX)
}
