// SPDX-License-Identifier: Apache-2.0
//! `ktsn report`: results as one HTML page.
//!
//! In: files of the schema `ktsn.results/1`; raw records beside them (`records/`) are found by themselves. Out: the
//! page, whole or not at all. Exit status 0; 1 the page could not be written; 2 a file or field is wrong.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use ktsn_measure::report::{self, ReportError, Source};

const EXAMPLES: &str = "\
Examples:
  ktsn report out/demo/results.json -o report.html
  ktsn report monday.json tuesday.json -o both.html

Raw records are taken from the directory records/ beside each file; without them the page draws what the \
statistics tell and says so. The page needs no network.

Exit status: 0 written; 1 the page could not be written; 2 wrong usage, or a file or field is wrong.";

/// Show results as one self-contained HTML page.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ReportArgs {
    /// Results (`ktsn.results/1`), shown in this order.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// The page to write.
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
}

/// Reads, renders, writes.
pub(crate) fn run(args: &ReportArgs) -> ExitCode {
    match write(args) {
        Ok(()) => {
            eprintln!("ktsn report: wrote {}", args.output.display());
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("ktsn report: {error}");
            ExitCode::from(if error.is_input() { 2 } else { 1 })
        }
    }
}

fn write(args: &ReportArgs) -> Result<(), ReportError> {
    let sources: Vec<Source> = args.files.iter().map(|file| Source::load(file)).collect::<Result<_, _>>()?;
    report::write(&args.output, &sources)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use std::path::Path;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: ReportArgs,
    }

    fn status(files: &[&Path], output: &Path) -> ExitCode {
        run(&ReportArgs {
            files: files.iter().map(|file| file.to_path_buf()).collect(),
            output: output.to_owned(),
        })
    }

    #[test]
    fn the_line_needs_a_file_and_an_output() {
        assert!(Line::try_parse_from(["report", "a.json", "b.json", "-o", "r.html"]).is_ok());
        assert!(Line::try_parse_from(["report", "-o", "r.html"]).is_err());
        assert!(Line::try_parse_from(["report", "a.json"]).is_err());
    }

    #[test]
    fn status_tells_whose_fault_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let directory = folder.path();
        let (file, page) = (directory.join("r.json"), directory.join("r.html"));
        std::fs::write(&file, "{\"schema\": \"ktsn.results/1\", \"experiment\": \"x\"}").unwrap();
        let same = |a: ExitCode, b: u8| assert_eq!(format!("{a:?}"), format!("{:?}", ExitCode::from(b)));
        same(status(&[&file, &file], &page), 0);
        assert!(page.exists());
        same(status(&[&file], &directory.join("no/r.html")), 1);
        same(status(&[&directory.join("none.json")], &page), 2);
        std::fs::write(&file, "{\"schema\": \"other\"}").unwrap();
        same(status(&[&file], &page), 2);
    }
}
