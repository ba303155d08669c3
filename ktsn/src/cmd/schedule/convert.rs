// SPDX-License-Identifier: Apache-2.0
//! `ktsn schedule convert`: the same schedule in another format.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use ktsn_schedule::Format;

use crate::output;

const EXAMPLES: &str = "\
Examples:
  ktsn schedule convert schedule.yaml --format json
  ktsn schedule convert schedule.yaml --format taprio --dev eth0
  ktsn schedule convert taprio.txt --format yaml > schedule.yaml

What the other format cannot say is an error that names it; nothing is left out in silence.

Exit status: 0 written; 1 standard output failed; 2 wrong usage, faults, or it cannot be said in that format.";

/// Write a schedule as YAML, JSON or a tc taprio command.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct ConvertArgs {
    /// The schedule; - is standard input. Its format is found from the text.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The format to write.
    #[arg(long, value_enum)]
    format: OutputFormat,
    /// The device of the tc command [default: the schedule's].
    #[arg(long, value_name = "DEVICE")]
    dev: Option<String>,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
enum OutputFormat {
    Yaml,
    Json,
    /// A `tc qdisc … taprio …` command.
    Taprio,
}

/// Reads one format, writes the other.
pub(super) fn run(args: &ConvertArgs) -> ExitCode {
    let text = match convert(args) {
        Ok(text) => text,
        Err(faults) => {
            eprintln!("{faults}");
            return 2.into();
        }
    };
    output::finish("schedule convert", output::write(&text).map(drop))
}

fn convert(args: &ConvertArgs) -> Result<String, String> {
    let (mut schedule, remarks) = ktsn_cli::schedule::read(&args.file, Format::Auto)?;
    for remark in remarks {
        eprintln!("{}:{remark}", args.file.display());
    }
    let format = match args.format {
        OutputFormat::Yaml => Format::Yaml,
        OutputFormat::Json => Format::Json,
        OutputFormat::Taprio => Format::Taprio,
    };
    if let Some(device) = &args.dev {
        if format != Format::Taprio {
            return Err("ktsn schedule convert: --dev is for --format taprio".into());
        }
        schedule.taprio.get_or_insert_default().device = Some(device.clone());
    }
    let named = |fault: &ktsn_schedule::Fault| format!("{}: {fault}", args.file.display());
    ktsn_schedule::write(&schedule, format)
        .map_err(|faults| faults.as_slice().iter().map(named).collect::<Vec<_>>().join("\n"))
}
