// SPDX-License-Identifier: Apache-2.0
//! Every target over its corpus, and over seeded mutations of it.
//!
//! A failure prints target, seed and input. `KTSN_FUZZ_SECONDS` makes the mutations longer than the default bound.

use std::collections::BTreeSet;
use std::fs;
use std::panic::{self, AssertUnwindSafe};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ktsn_fuzz::mutate::{INPUT_OCTETS_MAX, Mutator};
use ktsn_fuzz::targets::{TARGETS, Target, find};

/// Mutations per target and run; the time bound ends a slow target's run earlier.
const MUTATIONS_COUNT: u64 = 200_000;
const SECONDS_DEFAULT: u64 = 1;
/// Places at which an input that a run found is cut; a seed is cut everywhere.
const CUTS: usize = 2;

fn corpus_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus")
}

/// The entries of one target, by name, so that runs are the same everywhere.
fn corpus(name: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let folder = corpus_folder().join(name);
    let files = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut paths: Vec<PathBuf> = files.map(|file| file.expect("a folder entry").path()).collect();
    paths.sort();
    paths.into_iter().map(|path| (path.clone(), fs::read(&path).expect("a readable corpus file"))).collect()
}

/// Whether a coverage-guided run found it: libFuzzer names inputs by their hash.
fn is_found(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().as_encoded_bytes();
    name.len() == 40 && name.iter().all(u8::is_ascii_hexdigit)
}

/// Runs the target; on its panic says on what.
fn run(target: Target, octets: &[u8], what: &dyn Fn() -> String) {
    if let Err(cause) = panic::catch_unwind(AssertUnwindSafe(|| target(octets))) {
        let hex: String = octets.iter().map(|octet| format!("{octet:02x}")).collect();
        eprintln!("{}, input {hex}", what());
        panic::resume_unwind(cause);
    }
}

#[test]
fn every_target_has_a_corpus_and_every_corpus_a_target() {
    let names: BTreeSet<String> = TARGETS.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(names.len(), TARGETS.len(), "names are unique");
    let folders = fs::read_dir(corpus_folder()).expect("the corpus folder");
    let folders: BTreeSet<String> =
        folders.map(|folder| folder.expect("a folder").file_name().to_string_lossy().into_owned()).collect();
    assert_eq!(names, folders);
    for name in &names {
        assert!(!corpus(name).is_empty(), "{name}");
        assert!(find(name).is_some(), "{name}");
    }
    assert!(find("no such target").is_none());
}

#[test]
fn every_target_over_its_corpus() {
    for (name, target) in TARGETS {
        run(*target, &[], &|| format!("{name}: nothing"));
        for (path, octets) in corpus(name) {
            let step = if is_found(&path) { octets.len().div_ceil(CUTS).max(1) } else { 1 };
            for end in (0..=octets.len()).rev().step_by(step) {
                run(*target, &octets[..end], &|| format!("{name}: {} cut at {end}", path.display()));
            }
        }
    }
}

#[test]
fn every_target_over_mutations() {
    let seconds = std::env::var("KTSN_FUZZ_SECONDS").ok();
    let bound =
        seconds.as_ref().map_or(SECONDS_DEFAULT, |text| text.parse().expect("KTSN_FUZZ_SECONDS: seconds"));
    // Asked for more time: as many mutations as fit into it.
    let mutations_count = if seconds.is_some() { u64::MAX } else { MUTATIONS_COUNT };
    for (name, target) in TARGETS {
        let entries: Vec<Vec<u8>> = corpus(name).into_iter().map(|(_, octets)| octets).collect();
        let end_at = Instant::now() + Duration::from_secs(bound);
        let mut done = 0;
        for seed in 0..mutations_count {
            let octets = Mutator::new(seed).mutated(&entries);
            run(*target, &octets, &|| format!("{name}: seed {seed}"));
            done += 1;
            // The clock is asked rarely: most targets are faster than it.
            if seed % 256 == 255 && Instant::now() >= end_at {
                break;
            }
        }
        println!("{name}: {done} mutations of {} entries", entries.len());
        assert!(done >= 256, "{name}: too slow to be fuzzed");
    }
}

#[test]
fn mutations_repeat_by_seed_and_differ_between_seeds() {
    let entries = vec![vec![0; 64], (0..=255).collect()];
    let of = |seed| Mutator::new(seed).mutated(&entries);
    let distinct: BTreeSet<Vec<u8>> = (0..1000).map(of).collect();
    assert!(distinct.len() > 900, "{}", distinct.len());
    for seed in 0..1000 {
        assert_eq!(of(seed), of(seed));
        assert!(of(seed).len() <= INPUT_OCTETS_MAX);
    }
    assert!((0..1000).all(|seed| Mutator::new(seed).mutated(&[]).len() <= INPUT_OCTETS_MAX));
}

/// A target that breaks must be noticed: the runner passes the panic on.
#[test]
fn a_broken_promise_is_found() {
    fn picky(octets: &[u8]) {
        assert!(!(octets.len() > 3 && octets[3] == 0xff), "the fourth octet is all ones");
    }
    let entries = vec![vec![0; 16]];
    let found = (0..10_000).find(|seed| {
        let octets = Mutator::new(*seed).mutated(&entries);
        panic::catch_unwind(|| picky(&octets)).is_err()
    });
    assert!(found.is_some());
    let broken = panic::catch_unwind(|| run(picky, &[0, 0, 0, 0xff], &|| "expected".to_owned()));
    assert!(broken.is_err());
}
