// SPDX-License-Identifier: Apache-2.0
//! Manual pages and completions: one page for each command of `--help`, which groff reads without a warning; completions that the shells
//! accept, and that offer what `--help` shows.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use ktsn_tests::cli::{err, folder, out, run};

/// A directory with what `ktsn`, `ktsn-bench` and `ktsnd` write of this kind.
fn written(kind: &str) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().to_str().unwrap();
    for program in ["ktsn", "ktsn-bench"] {
        let output = Command::new(folder().join(program)).args(["generate", kind, place]).output().unwrap();
        assert!(output.status.success(), "{program}: {}", err(&output));
    }
    let ktsnd = Command::new(folder().join("ktsnd")).args(["--generate", kind, place]).output().unwrap();
    assert!(ktsnd.status.success(), "{}", err(&ktsnd));
    directory
}

fn names(directory: &Path) -> BTreeSet<String> {
    fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

/// The commands below these words, as `--help` lists them: without words also the laboratory's.
fn commands(words: &[&str]) -> Vec<String> {
    let help = out(&run(&[words, &["--help"]].concat()));
    [listed(&help, "Commands:"), listed(&help, "Laboratory (")].concat()
}

fn listed(help: &str, head: &str) -> Vec<String> {
    let listed = help
        .lines()
        .skip_while(|line| !line.starts_with(head))
        .skip(1)
        .take_while(|line| line.starts_with("  "));
    let name = |line: &str| line.strip_prefix("  ")?.split_whitespace().next().map(str::to_owned);
    // A description that goes on in a second line is indented further.
    listed.filter(|line| !line.starts_with("   ")).filter_map(name).filter(|name| name != "help").collect()
}

fn expected_pages(words: &[&str], pages: &mut BTreeSet<String>) {
    pages.insert(format!("{}.1", [&["ktsn"], words].concat().join("-")));
    for name in commands(words) {
        expected_pages(&[words, &[&name]].concat(), pages);
    }
}

fn shell(program: &str, arguments: &[&str]) -> Output {
    Command::new(program).args(arguments).env("LC_ALL", "C.UTF-8").env("MANWIDTH", "80").output().unwrap()
}

#[test]
fn each_command_has_a_page_that_groff_reads_without_a_warning() {
    let directory = written("man");
    let mut expected = BTreeSet::from(["ktsnd.8".to_owned()]);
    expected_pages(&[], &mut expected);
    assert!(
        expected.contains("ktsn-schedule-show.1") && expected.contains("ktsn-bench-container.1"),
        "{expected:?}"
    );
    assert_eq!(names(directory.path()), expected);
    for name in expected {
        let page = directory.path().join(&name);
        let read = shell("groff", &["-man", "-Tutf8", "-P-cbou", "-ww", "-Kutf8", page.to_str().unwrap()]);
        assert!(read.status.success() && err(&read).is_empty(), "{name}: {}", err(&read));
        assert!(
            out(&read).contains("SYNOPSIS") && out(&read).contains("Print help"),
            "{name}: {}",
            out(&read)
        );
    }
}

#[test]
fn a_page_says_what_the_help_says() {
    let directory = written("man");
    let page = directory.path().join("ktsn-talk.1");
    let read = shell("groff", &["-man", "-Tascii", "-P-cbou", "-Kutf8", page.to_str().unwrap()]);
    let page = out(&read);
    let help = out(&run(&["talk", "--help"]));
    let flags: Vec<&str> =
        help.lines().filter_map(|line| line.split_whitespace().find(|word| word.starts_with("--"))).collect();
    assert!(flags.len() > 10, "{help}");
    for flag in flags {
        assert!(
            page.contains(flag.trim_matches(|c: char| !c.is_ascii_alphanumeric() && c != '-')),
            "{flag}: {page}"
        );
    }
    // An example stays in one line, and a hidden command is on no page.
    assert!(page.contains("ktsn talk 192.0.2.7:5000 --mode spin --fifo 50 --cpu 1"), "{page}");
    assert!(!fs::read_to_string(directory.path().join("ktsn.1")).unwrap().contains("generate"));
}

#[test]
fn bash_completes_commands_and_flags() {
    let directory = written("completions");
    let programs = ["ktsn", "ktsn-bench", "ktsnd"];
    let expected =
        programs.iter().flat_map(|one| [format!("_{one}"), format!("{one}.bash"), format!("{one}.fish")]);
    assert_eq!(names(directory.path()), expected.collect());
    let complete = |program: &str, words: &str| {
        let script = format!(
            "source {}/{program}.bash && COMP_WORDS=({words}) && COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)) && \
             _{program} {program} \"${{COMP_WORDS[COMP_CWORD]}}\" && printf '%s\\n' \"${{COMPREPLY[@]}}\"",
            directory.path().display()
        );
        let asked = shell("bash", &["--norc", "-c", &script]);
        assert!(asked.status.success() && err(&asked).is_empty(), "{}", err(&asked));
        out(&asked)
    };
    assert_eq!(complete("ktsn", "ktsn sta"), "status\n");
    assert_eq!(complete("ktsn", "ktsn gen"), "\n", "a hidden command is not offered");
    assert_eq!(complete("ktsn", "ktsn ben"), "bench\n", "the laboratory's commands are offered");
    assert_eq!(complete("ktsn-bench", "ktsn-bench rt c"), "compare\n");
    assert_eq!(complete("ktsn", "ktsn schedule c"), "check\nconvert\n");
    assert_eq!(complete("ktsn", "ktsn talk --random"), "--random-gaps\n");
    assert_eq!(complete("ktsnd", "ktsnd --conf"), "--config\n");
    assert_eq!(complete("ktsnd", "ktsnd --run-dir-"), "\n", "a hidden flag is not offered");
}

#[test]
fn a_place_that_cannot_be_written_is_named() {
    let asked = run(&["generate", "man", "/proc/none"]);
    assert_eq!(asked.status.code(), Some(1));
    assert!(err(&asked).contains("/proc/none"), "{}", err(&asked));
    let asked = Command::new(folder().join("ktsnd")).args(["--generate", "page", "/proc"]).output().unwrap();
    assert_eq!(asked.status.code(), Some(2));
    assert!(err(&asked).contains("\"page\""), "{}", err(&asked));
}
