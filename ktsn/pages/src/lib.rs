// SPDX-License-Identifier: Apache-2.0
//! Manual pages and shell completions of a command line, from the definitions that also make `--help`.
//!
//! In: a program's definition for clap, a directory. Out: one page for each command that is not hidden, or one file for each shell. The
//! same definition gives the same octets. Never: a date, a path of this machine.
#![forbid(unsafe_code)]

use std::fs;
use std::io;
use std::path::Path;

use clap::{Command, ValueEnum};
use clap_complete::{Generator as _, Shell};
use clap_mangen::Man;

/// What to write.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// One manual page for each command.
    Man,
    /// One file for each of bash, zsh and fish.
    Completions,
}

/// The shells that get completions.
pub const SHELLS: [Shell; 3] = [Shell::Bash, Shell::Zsh, Shell::Fish];

/// Writes the files of this kind for `command` into the directory, which is made where it is missing. `section` is the manual's
/// section of all its pages: 1 for programs, 8 for daemons.
///
/// # Errors
/// The kernel's, for a directory or a file that cannot be written.
pub fn write(command: Command, kind: Kind, section: u8, directory: &Path) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    match kind {
        Kind::Man => {
            // Each page has its own options; `help` as a command would only repeat them.
            let mut command = command.disable_help_subcommand(true);
            command.build();
            write_pages(&command, &section.to_string(), directory)
        }
        Kind::Completions => {
            let mut command = without_hidden(&command);
            let name = command.get_name().to_owned();
            SHELLS.into_iter().try_for_each(|shell| write_completions(&mut command, shell, &name, directory))
        }
    }
}

/// clap_complete takes a dash in a program's name for the beginning of a subcommand: the text is made for the name with another character.
fn write_completions(command: &mut Command, shell: Shell, name: &str, directory: &Path) -> io::Result<()> {
    let (without_dash, mut text) = (name.replace('-', "_"), Vec::new());
    clap_complete::generate(shell, command, without_dash.as_str(), &mut text);
    let text = String::from_utf8(text).map_err(io::Error::other)?;
    fs::write(directory.join(shell.file_name(name)), text.replace(&without_dash, name))
}

/// The same command without its hidden commands and arguments, which completions would offer.
fn without_hidden(command: &Command) -> Command {
    // clap keeps names for ever; a process that writes completions ends after it.
    let mut shown = Command::new(&*command.get_name().to_owned().leak());
    if let Some(about) = command.get_about() {
        shown = shown.about(about.clone());
    }
    if command.get_version().is_some() {
        shown = shown.version(env!("CARGO_PKG_VERSION"));
    }
    shown
        .args(command.get_arguments().filter(|argument| !argument.is_hide_set()).cloned())
        .subcommands(command.get_subcommands().filter(|inner| !inner.is_hide_set()).map(without_hidden))
}

fn write_pages(command: &Command, section: &str, directory: &Path) -> io::Result<()> {
    for inner in command.get_subcommands().filter(|inner| !inner.is_hide_set()) {
        write_pages(inner, section, directory)?;
    }
    let name = command.get_display_name().unwrap_or(command.get_name());
    fs::write(directory.join(format!("{name}.{section}")), page(command, section)?)
}

fn page(command: &Command, section: &str) -> io::Result<Vec<u8>> {
    // clap_mangen would break the examples' lines: what follows the options is laid out here.
    let extra = command.get_after_long_help().or(command.get_after_help()).map(ToString::to_string);
    let man = Man::new(command.clone()).section(section).source(concat!("KTSN ", env!("CARGO_PKG_VERSION")));
    let mut text = Vec::new();
    man.render_title(&mut text)?;
    man.render_name_section(&mut text)?;
    man.render_synopsis_section(&mut text)?;
    man.render_description_section(&mut text)?;
    if command.get_arguments().any(|argument| !argument.is_hide_set()) {
        man.render_options_section(&mut text)?;
    }
    if command.get_subcommands().any(|inner| !inner.is_hide_set()) {
        man.render_subcommands_section(&mut text)?;
    }
    text.extend(extra.as_deref().map(sections).unwrap_or_default().into_bytes());
    Ok(text)
}

/// The help's last part in the manual's language. A paragraph with a heading (`Examples:`) becomes a section and keeps its lines; all
/// others become notes, and `Exit status:` a section of running text.
fn sections(help: &str) -> String {
    const STATUS: &str = "Exit status:";
    let mut text = String::new();
    let mut is_in_notes = false;
    let help = help.replace(&format!("\n{STATUS}"), &format!("\n\n{STATUS}"));
    for paragraph in help.split("\n\n").filter(|paragraph| !paragraph.trim().is_empty()) {
        let (first, rows) = paragraph.trim_matches('\n').split_once('\n').unwrap_or((paragraph, ""));
        let heading = first.strip_suffix(':').filter(|_| !first.starts_with(' ') && rows.starts_with(' '));
        if let Some(heading) = heading {
            text.push_str(&format!(".SH {}\n.nf\n", escaped(&heading.to_uppercase())));
            rows.lines().for_each(|row| text.push_str(&format!("{}\n", escaped(row))));
            text.push_str(".fi\n");
            is_in_notes = false;
            continue;
        }
        let (title, body) = match paragraph.split_once(STATUS) {
            Some(("", status)) => ("EXIT STATUS", status),
            _ => ("NOTES", paragraph),
        };
        let begin = if title == "NOTES" && is_in_notes { ".PP".to_owned() } else { format!(".SH {title}") };
        is_in_notes = title == "NOTES";
        text.push_str(&format!("{begin}\n"));
        body.lines().for_each(|line| text.push_str(&format!("{}\n", escaped(line.trim()))));
    }
    text
}

/// A line that groff prints as it is.
fn escaped(line: &str) -> String {
    let line = line.replace('\\', "\\e").replace('-', "\\-").replace('\'', "\\(aq");
    if line.starts_with('.') { format!("\\&{line}") } else { line }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Arg;

    fn example() -> Command {
        Command::new("tool")
            .about("Does things.")
            .subcommand(Command::new("inner").about("Does one."))
            .subcommand(
                Command::new("secret")
                    .hide(true)
                    .arg(Arg::new("x").long("unknown-flag").help("Nothing to see")),
            )
    }

    fn names(kind: Kind) -> (tempfile::TempDir, Vec<String>) {
        let directory = tempfile::tempdir().unwrap();
        write(example(), kind, 1, directory.path()).unwrap();
        let mut names: Vec<String> = fs::read_dir(directory.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        (directory, names)
    }

    #[test]
    fn hidden_commands_have_no_page_and_are_not_completed() {
        let (_pages, written) = names(Kind::Man);
        assert_eq!(written, ["tool-inner.1", "tool.1"]);
        let (completions, written) = names(Kind::Completions);
        assert_eq!(written, ["_tool", "tool.bash", "tool.fish"]);
        for name in written {
            let text = fs::read_to_string(completions.path().join(&name)).unwrap();
            assert!(
                text.contains("inner") && !text.contains("secret") && !text.contains("unknown-flag"),
                "{name}"
            );
        }
    }

    #[test]
    fn examples_keep_their_lines_and_headings_become_sections() {
        let help =
            "Examples:\n  tool a\n    --b 'c'\n\nOne.\nTwo.\n\nThree.\nExit status: 0 done;\n  2 wrong.";
        let expected = ".SH EXAMPLES\n.nf\n  tool a\n    \\-\\-b \\(aqc\\(aq\n.fi\n.SH NOTES\nOne.\nTwo.\n.PP\nThree.\n\
                        .SH EXIT STATUS\n0 done;\n2 wrong.\n";
        assert_eq!(sections(help), expected);
        assert_eq!(sections("See a\\b."), ".SH NOTES\nSee a\\eb.\n");
        assert_eq!(escaped(".x"), "\\&.x");
    }
}
