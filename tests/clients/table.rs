// SPDX-License-Identifier: Apache-2.0
//! The differential table: each small program in each mode against what the kernel showed first.
//!
//! In: cases, built interpreters. Out: one cell for each case, language and mode.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::cases::{Case, line_number};
use crate::languages::{Language, Languages};
use crate::report::Report;
use crate::world::{Mode, Peer, Seen, World};

const MODES: [Mode; 4] = [Mode::Library, Mode::Daemon, Mode::Run, Mode::Dies];

/// What the kernel alone showed of a case in a language, or why that is not known.
pub(crate) type Recorded = BTreeMap<(String, &'static str), Result<Seen, String>>;

/// Runs all cases whose cells contain `filter`, each world its share of them beside the others: a run mostly waits. What the kernel shows
/// is recorded once.
pub(crate) fn run(
    worlds: &mut [(World, Recorded)],
    languages: &Languages,
    cases: &[Case],
    filter: &str,
    report: &mut Report,
) {
    let (count, report) = (worlds.len(), Mutex::new(report));
    std::thread::scope(|scope| {
        for (turn, (world, recorded)) in worlds.iter_mut().enumerate() {
            let (share, report) = (cases.iter().skip(turn).step_by(count), &report);
            scope.spawn(move || {
                share.for_each(|case| run_case(world, languages, case, filter, recorded, report));
            });
        }
    });
}

fn locked<'a, 'b>(report: &'a Mutex<&'b mut Report>) -> MutexGuard<'a, &'b mut Report> {
    report.lock().unwrap_or_else(PoisonError::into_inner)
}

fn run_case(
    world: &mut World,
    languages: &Languages,
    case: &Case,
    filter: &str,
    recorded: &mut Recorded,
    report: &Mutex<&mut Report>,
) {
    for language in languages.of(case) {
        let cell = |world: &World, mode: Mode| {
            world.cell(&format!("table/{}/{}/{}", case.name, language.name(), mode.name()))
        };
        let is_wanted = |mode: Mode| {
            let is_of_case =
                case.modes.as_ref().is_none_or(|modes| modes.iter().any(|name| name == mode.name()));
            // A static program knows no library: with or without it nothing may change.
            let is_possible = match language {
                // It cannot be preloaded either.
                Language::Go => mode == Mode::Daemon,
                // One libktsn.so serves both C libraries: what a death of the daemon does is shown once.
                Language::Musl => mode != Mode::Dies,
                Language::Gnu | Language::Python => true,
            };
            is_of_case && is_possible && cell(world, mode).contains(filter)
        };
        let modes: Vec<Mode> = MODES.into_iter().filter(|mode| is_wanted(*mode)).collect();
        if modes.is_empty() {
            continue;
        }
        let Some(program) = languages.program(language) else {
            for mode in modes {
                let (word, reason) = language.missing();
                locked(report).skip(&cell(world, mode), word, reason);
            }
            continue;
        };
        let mut command = program.to_vec();
        command.extend(case.arguments());
        let peer = |expected| Peer { pod: &case.peer, group: case.group.as_deref(), expected };
        let kernel = recorded.entry((case.name.clone(), language.name())).or_insert_with(|| {
            record(world, language, &command, peer(0)).map_err(|error| format!("{error}"))
        });
        let kernel = match kernel {
            Ok(seen) => &*seen,
            Err(error) => {
                locked(report).add(&cell(world, Mode::Kernel), Err(format!("on the kernel alone: {error}")));
                continue;
            }
        };
        for mode in modes {
            let expected = expect(case, language, mode, kernel);
            // Where the number is open, the listener waits as long as it can.
            let count = if case.uncounted.is_empty() { expected.heard.len() } else { usize::MAX };
            let seen = world.run(&command, mode, peer(count));
            let result = match seen {
                Ok(seen) => compare(case, language, mode, &expected, &seen),
                Err(error) => Err(format!("{error:#}")),
            };
            locked(report).add(&cell(world, mode), result);
        }
    }
}

/// What the kernel alone shows. Recorded twice in C: what differs from itself cannot be compared.
fn record(world: &mut World, language: Language, command: &[String], peer: Peer<'_>) -> anyhow::Result<Seen> {
    let mut first = world.run(command, Mode::Kernel, peer)?;
    if language != Language::Gnu {
        first.heard.sort();
        anyhow::ensure!(first.status == "exit status: 0", "{first:?}");
        return Ok(first);
    }
    let mut second = world.run(command, Mode::Kernel, Peer { expected: first.heard.len(), ..peer })?;
    first.heard.sort();
    second.heard.sort();
    anyhow::ensure!(first.status == "exit status: 0", "{first:?}");
    anyhow::ensure!(first == second, "two runs differ: {first:?}\n{second:?}");
    Ok(first)
}

fn letter(line: &str) -> char {
    line.split(' ').nth(1).and_then(|word| word.chars().next()).unwrap_or('?')
}

/// The kernel's behaviour with what the case says a scheduler changes.
fn expect(case: &Case, language: Language, mode: Mode, kernel: &Seen) -> Seen {
    let mut expected = kernel.clone();
    expected.heard.retain(|line| !case.uncounted.contains(letter(line)));
    if language.is_static() || mode == Mode::Library {
        return expected;
    }
    for line in &case.daemon_says {
        let number = line_number(line);
        // One step may print several lines: all of them are replaced by all of the case's.
        let at =
            expected.says.iter().position(|old| line_number(old) >= number).unwrap_or(expected.says.len());
        expected.says.retain(|old| line_number(old) != number || case.daemon_says.contains(old));
        let already = case.daemon_says.iter().take_while(|other| *other != line);
        let before = already.filter(|other| line_number(other) == number).count();
        expected.says.insert(at + before, line.clone());
    }
    let lost = if mode == Mode::Dies { case.absent_letters() } else { String::new() };
    expected.heard.retain(|line| !case.dropped.contains(letter(line)) && !lost.contains(letter(line)));
    expected
}

fn compare(case: &Case, language: Language, mode: Mode, expected: &Seen, seen: &Seen) -> Result<(), String> {
    let mut faults = Vec::new();
    if seen.status != expected.status {
        faults.push(format!("{} instead of {}", seen.status, expected.status));
    }
    if seen.errors != expected.errors {
        faults.push(format!("standard error: {:?} instead of {:?}", seen.errors, expected.errors));
    }
    faults.extend(difference("says", &expected.says, &seen.says));
    let mut heard = seen.heard.clone();
    if let (Some(order), Mode::Daemon | Mode::Run, false) = (&case.order, mode, language.is_static()) {
        let found: String = heard.iter().map(|line| letter(line)).collect();
        if found != *order {
            faults.push(format!("arrived as {found} instead of {order}"));
        }
    }
    heard.retain(|line| !case.uncounted.contains(letter(line)));
    heard.sort();
    faults.extend(difference("heard", &expected.heard, &heard));
    if faults.is_empty() { Ok(()) } else { Err(faults.join("\n")) }
}

/// What is missing from `found` and what is too much in it.
fn difference(what: &str, expected: &[String], found: &[String]) -> Vec<String> {
    let mut left = found.to_vec();
    let mut faults = Vec::new();
    for line in expected {
        match left.iter().position(|other| other == line) {
            Some(at) => {
                left.remove(at);
            }
            None => faults.push(format!("{what}, missing: {line}")),
        }
    }
    faults.extend(left.iter().map(|line| format!("{what}, instead: {line}")));
    faults
}
