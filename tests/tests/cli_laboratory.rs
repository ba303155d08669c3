// SPDX-License-Identifier: Apache-2.0
//! The laboratory's commands: `ktsn bench` and the like become the program `ktsn-bench` with the same words; where it is missing, ktsn says
//! which package brings it.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use ktsn_eventually::make_program;
use ktsn_tests::cli::{err, folder, out, run};

/// A directory with a copy of `ktsn`, as a package installs it alone.
struct Alone(tempfile::TempDir);

impl Alone {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join("bin")).unwrap();
        fs::create_dir(directory.path().join("other")).unwrap();
        let program = fs::read(folder().join("ktsn")).unwrap();
        make_program(&directory.path().join("bin/ktsn"), &program);
        Self(directory)
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Puts a shell script in the laboratory's place.
    fn put(&self, place: &str, script: &str) {
        make_program(&self.at(place).join("ktsn-bench"), format!("#!/bin/sh\n{script}\n").as_bytes());
    }

    /// `ktsn` with a search path on which `other` stands first.
    fn ktsn<S: AsRef<OsStr>>(&self, words: &[S]) -> Command {
        let mut command = Command::new(self.at("bin/ktsn"));
        command
            .args(words)
            .env("PATH", format!("{}:/usr/bin:/bin", self.at("other").display()))
            .stdin(Stdio::null());
        command
    }
}

/// Prints its name and its words, each with a NUL behind it.
const SHOW: &str = "printf '%s\\0' \"${0%/ktsn-bench}\" \"$@\"";

#[test]
fn the_words_arrive_octet_by_octet() {
    let alone = Alone::new();
    alone.put("bin", SHOW);
    for first in ["bench", "rt", "vm", "remote", "report", "control", "answer"] {
        let hard: [&[u8]; 9] = [
            first.as_bytes(),
            b"",
            b" a  b ",
            b"\"'$(x)`y`\\",
            b"line\nline",
            b"\xff\xfe",
            b"--",
            b"-x=*",
            b"--help",
        ];
        let words: Vec<&OsStr> = hard.iter().map(|word| OsStr::from_bytes(word)).collect();
        let output = alone.ktsn(&words).output().unwrap();
        assert!(output.status.success(), "{}", err(&output));
        let place = alone.at("bin");
        let expected = [&[place.as_os_str().as_bytes()], &hard[..]].concat().join(&0);
        assert_eq!(output.stdout.strip_suffix(&[0]), Some(&expected[..]), "{}", out(&output));
    }
    // `help` with one of its commands is the laboratory's, too.
    let output = alone.ktsn(&["help", "bench"]).output().unwrap();
    assert!(out(&output).ends_with("\0help\0bench\0"), "{}", out(&output));
}

#[test]
fn the_program_beside_ktsn_counts_before_the_search_path() {
    let alone = Alone::new();
    alone.put("other", SHOW);
    let place =
        |output: &std::process::Output| out(output).split('\0').next().map(Path::new).map(Path::to_owned);
    let output = alone.ktsn(&["bench", "micro"]).output().unwrap();
    assert_eq!(place(&output), Some(alone.at("other")), "{}", err(&output));
    alone.put("bin", SHOW);
    let output = alone.ktsn(&["bench", "micro"]).output().unwrap();
    assert_eq!(place(&output), Some(alone.at("bin")), "{}", err(&output));
}

#[test]
fn exit_status_signals_and_the_process_itself_pass() {
    let alone = Alone::new();
    alone.put("bin", "exit 42");
    assert_eq!(alone.ktsn(&["rt", "run"]).output().unwrap().status.code(), Some(42));
    alone.put("bin", "kill -TERM $$");
    assert_eq!(alone.ktsn(&["rt", "run"]).output().unwrap().status.signal(), Some(15));
    alone.put("bin", "echo $$");
    let child = alone.ktsn(&["vm", "run"]).stdout(Stdio::piped()).spawn().unwrap();
    let number = child.id().to_string();
    assert_eq!(out(&child.wait_with_output().unwrap()).trim(), number);
}

#[test]
fn without_the_program_ktsn_names_its_package() {
    let alone = Alone::new();
    for words in [&["bench", "container"][..], &["rt"], &["report", "a.json"], &["help", "vm"]] {
        let output = alone.ktsn(words).output().unwrap();
        assert_eq!(output.status.code(), Some(3), "{}", err(&output));
        let name = words.iter().find(|word| **word != "help").unwrap();
        let expected = format!(
            "ktsn {name}: the program ktsn-bench is neither beside ktsn nor on the search path; install the package ktsn-bench\n"
        );
        assert_eq!(err(&output), expected);
    }
    // One that cannot be started is named.
    alone.put("bin", "exit 0");
    fs::set_permissions(alone.at("bin/ktsn-bench"), fs::Permissions::from_mode(0o644)).unwrap();
    let output = alone.ktsn(&["bench"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(err(&output).contains("bin/ktsn-bench cannot be started: Permission denied"), "{}", err(&output));
}

#[test]
fn the_help_lists_the_laboratory_and_its_program_speaks_as_ktsn() {
    let help = out(&run(&["--help"]));
    let listed = help.split_once("\nLaboratory (package ktsn-bench):\n").unwrap().1;
    for (name, about) in [
        ("bench", "Run an experiment"),
        ("rt", "fit for real time"),
        ("vm", ""),
        ("remote", ""),
        ("report", ""),
    ] {
        assert!(
            listed.lines().any(|line| line.starts_with(&format!("  {name} ")) && line.contains(about)),
            "{help}"
        );
    }
    // What the list says is what the laboratory's own help says.
    let own = out(&Command::new(folder().join("ktsn-bench")).arg("--help").output().unwrap());
    for line in listed.lines().take_while(|line| line.starts_with("  ")) {
        let about = line.trim_start().split_once(' ').unwrap().1.trim();
        assert!(own.contains(about), "{about}: {own}");
    }
    assert!(out(&run(&["rt", "run", "--help"])).contains("Usage: ktsn rt run"));
    assert!(out(&run(&["help", "bench"])).contains("Usage: ktsn bench <COMMAND>"));
    let version = out(&Command::new(folder().join("ktsn-bench")).arg("--version").output().unwrap());
    assert!(version.starts_with("ktsn-bench "), "{version}");
    // A misspelt one is a usage error that suggests it.
    let output = run(&["benhc"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(err(&output).contains("'bench'"), "{}", err(&output));
}
