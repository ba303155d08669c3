// SPDX-License-Identifier: Apache-2.0
//! Every file of `bad/` against the faults that stand beside it, all of them and nothing else.
//!
//! `KTSN_BLESS=1` writes what is found; the difference is then read by whoever commits it.

use std::path::{Path, PathBuf};

use ktsn_schedule::{Format, parse};

fn files() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/bad");
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(folder).expect("the folder").map(|file| file.expect("an entry").path()).collect();
    files.sort();
    files
}

#[test]
fn every_fault_is_told_with_its_place_and_rule() {
    let is_expectation = |path: &Path| path.extension().is_some_and(|extension| extension == "expected");
    let (expectations, inputs): (Vec<_>, Vec<_>) = files().into_iter().partition(|path| is_expectation(path));
    assert!(inputs.len() >= 25, "{}", inputs.len());
    for input in &inputs {
        let text = std::fs::read_to_string(input).expect("text");
        let format = match input.extension().and_then(|extension| extension.to_str()) {
            Some("json") => Format::Json,
            Some("taprio") => Format::Taprio,
            _ => Format::Yaml,
        };
        let faults = parse(&text, format).expect_err(&input.display().to_string());
        let found = format!("{faults}\n");
        let beside = PathBuf::from(format!("{}.expected", input.display()));
        if std::env::var_os("KTSN_BLESS").is_some() {
            std::fs::write(&beside, &found).expect("a writable folder");
        }
        let expected = std::fs::read_to_string(&beside).unwrap_or_default();
        assert_eq!(found, expected, "{}", input.display());
        for fault in faults.as_slice() {
            assert!(fault.at.line > 0 && fault.at.column > 0, "{fault}");
            assert!(fault.at.line <= text.lines().count().max(1) + 1, "{fault}");
            assert!(
                !fault.rule.is_empty() && !fault.expected.is_empty() && !fault.value.is_empty(),
                "{fault}"
            );
        }
    }
    assert_eq!(expectations.len(), inputs.len(), "no expectation without its file");
}
