// SPDX-License-Identifier: Apache-2.0
//! The interpreters of steps: the same small program in C against glibc and musl, in Python and in Go.
//!
//! In: sources of `programs/`. Out: command lines, or the reason why a language is missing here.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, ensure};

use ktsn_tests::hook::{self, Libc};

use crate::cases::Case;

/// Language and C library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Language {
    /// gcc and glibc.
    Gnu,
    /// musl-gcc, dynamically linked.
    Musl,
    /// python3.
    Python,
    /// Go: raw system calls in a static program.
    Go,
}

const LANGUAGES: [Language; 4] = [Language::Gnu, Language::Musl, Language::Python, Language::Go];

impl Language {
    /// Its name in cells.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Gnu => "c-glibc",
            Self::Musl => "c-musl",
            Self::Python => "python",
            Self::Go => "go",
        }
    }

    /// The word in cases.
    const fn word(self) -> &'static str {
        match self {
            Self::Gnu | Self::Musl => "c",
            Self::Python => "python",
            Self::Go => "go",
        }
    }

    /// Whether no library can be loaded into its programs.
    pub(crate) const fn is_static(self) -> bool {
        matches!(self, Self::Go)
    }

    /// The typed reason why it is missing.
    pub(crate) const fn missing(self) -> (&'static str, &'static str) {
        ("go_missing", "no Go toolchain on this machine")
    }
}

/// What is built.
pub(crate) struct Languages {
    _directory: tempfile::TempDir,
    programs: Vec<(Language, Vec<String>)>,
}

/// Runs a command to its end.
///
/// # Errors
/// When it cannot be started or fails.
pub(crate) fn must(command: &mut Command) -> anyhow::Result<String> {
    let output = command.output().with_context(|| format!("{command:?}"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure!(output.status.success(), "{command:?}: {text}{}", String::from_utf8_lossy(&output.stderr));
    Ok(text)
}

/// Whether a program is on the path.
pub(crate) fn has(program: &str) -> bool {
    std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|directory| directory.join(program).is_file()))
}

impl Languages {
    /// Builds them all.
    ///
    /// # Errors
    /// When one that is here does not build.
    pub(crate) fn build(root: &Path) -> anyhow::Result<Self> {
        let directory = hook::open_directory();
        let sources = root.join("tests/programs");
        let at = |name: &str| directory.path().join(name).display().to_string();
        let mut programs = Vec::new();
        for (language, libc) in [(Language::Gnu, Libc::Gnu), (Language::Musl, Libc::Musl)] {
            programs.push((language, vec![hook::steps(libc).display().to_string()]));
        }
        let python = sources.join("steps.py").display().to_string();
        programs.push((Language::Python, vec!["/usr/bin/python3".to_owned(), python]));
        if has("go") {
            let mut command = Command::new("go");
            command.args(["build", "-o", &at("go")]).arg(sources.join("steps.go"));
            command
                .env("CGO_ENABLED", "0")
                .env("GOFLAGS", "-mod=mod")
                .env("GOCACHE", directory.path().join("cache"));
            must(command.env("HOME", directory.path()))?;
            programs.push((Language::Go, vec![at("go")]));
        }
        Ok(Self { _directory: directory, programs })
    }

    /// The languages of a case.
    pub(crate) fn of(&self, case: &Case) -> Vec<Language> {
        LANGUAGES
            .into_iter()
            .filter(|language| {
                case.languages.iter().any(|word| word == language.word() || word == language.name())
            })
            .collect()
    }

    /// Its command line.
    pub(crate) fn program(&self, language: Language) -> Option<&[String]> {
        self.programs.iter().find(|(known, _)| *known == language).map(|(_, command)| command.as_slice())
    }
}
