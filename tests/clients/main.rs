// SPDX-License-Identifier: Apache-2.0
//! `make test-clients`: real programs under libktsn against the kernel.
//!
//! In: the built tree, root's rights; arguments: words that a cell's name must contain. Out: progress, a table,
//! `out/test/clients.json`, and the closing line 'N passed, N failed, N skipped'. It measures nothing. Every cell is run twice: as it is, and
//! with expected-arrival receive (`--receive expect`), which its daemon grants. In a few datagrams no arrival is expected, so the last
//! group is of listeners with periodic ones.

mod cases;
mod isochron;
mod languages;
mod periodic;
mod programs;
mod quic;
mod report;
mod selftests;
mod table;
mod world;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;

use languages::{Language, Languages};
use report::Report;
use world::{Receive, World};

/// Testbeds for the small programs.
const WORLDS: usize = 3;

fn run(filter: &str) -> anyhow::Result<bool> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize()?;
    report::self_test()?;
    let cases = cases::read(&root.join("tests/clients/cases"))?;
    let mut report = Report::new(&root, filter.is_empty())?;
    println!("test-clients: building the small programs");
    let languages = Languages::build(&root)?;
    let listener = languages.program(Language::Gnu).expect("always built")[0].clone();
    let world = || (World::new(Path::new(&listener)), table::Recorded::new());
    let mut worlds: Vec<_> = (0..WORLDS).map(|_| world()).collect();
    let selftests = selftests::build(&root);
    // What the kernel alone shows is recorded once.
    let mut large = selftests::Recorded::new();
    let (mut ordinary, mut isochron) = (programs::Recorded::new(), BTreeMap::new());
    for receive in [Receive::Kernel, Receive::Expect] {
        worlds.iter_mut().for_each(|(world, _)| world.set_receive(receive));
        println!("test-clients: --receive {}", receive.word());
        println!("test-clients: the table, {} small programs", cases.len());
        table::run(&mut worlds, &languages, &cases, filter, &mut report);
        let world = &mut worlds[0].0;
        println!("test-clients: the kernel's own selftests");
        selftests::run(world, (&root, &selftests), filter, &mut large, &mut report)?;
        println!("test-clients: ordinary programs");
        programs::run(world, &root, filter, &mut ordinary, &mut report)?;
        isochron::run(world, &root, filter, &mut isochron, &mut report);
        quic::run(world, filter, &mut report);
    }
    println!("test-clients: listeners of periodic datagrams");
    periodic::run(&mut worlds[0].0, &root, filter, &mut report)?;
    report.finish()
}

fn main() -> ExitCode {
    let filter = std::env::args().skip(1).find(|word| !word.starts_with('-')).unwrap_or_default();
    match run(&filter) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("test-clients: {error:#}");
            println!("0 passed, 1 failed, 0 skipped");
            ExitCode::FAILURE
        }
    }
}
