// SPDX-License-Identifier: Apache-2.0
//! The one taprio command of a text: a line as people paste it, or one among others in a shell script.
//!
//! In: text. Out: the words behind `tc`, as a shell would hand them on (quotes, continued lines, comments; nothing is expanded), and remarks
//! about what else stands there. Never a guess which of two commands is meant.

use std::borrow::Cow;
use std::iter::Peekable;
use std::str::CharIndices;

use super::{OPTIONS, RULE};
use crate::fault::{Fault, Position, Remark, shown};

/// A word of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Word<'a> {
    pub(super) at: Position,
    pub(super) text: Cow<'a, str>,
}

/// A command, and where its line ends in a `\` that blanks follow: there a shell ends it.
#[derive(Clone, Debug, Default)]
struct Command<'a> {
    words: Vec<Word<'a>>,
    broken_at: Option<Position>,
}

const EXPECTED: &str = "a command: tc qdisc replace dev DEV parent root taprio …";

/// The words behind `tc` of the text's taprio command.
pub(super) fn find<'a>(
    text: &'a str,
    remarks: &mut Vec<Remark>,
) -> Result<(Word<'a>, Vec<Word<'a>>), Vec<Fault>> {
    let mut commands = commands(text, false);
    let mut chosen = candidate(&commands);
    if chosen.is_none() {
        // `# tc …` is a comment, or a command behind the prompt of root.
        let with_prompts = self::commands(text, true);
        if let Some(found) = candidate(&with_prompts) {
            let at = with_prompts[found.0].words[0].at;
            remarks.push(Remark {
                at,
                text: "the command stands behind #: taken for a prompt, not for a comment".into(),
            });
            (commands, chosen) = (with_prompts, Some(found));
        }
    }
    let first = commands.first().and_then(|command| command.words.first());
    let Some((index, tc)) = chosen.or_else(|| any_tc(&commands)) else {
        let at = first.map_or(Position::START, |word| word.at);
        let found = first.map_or_else(|| "nothing".to_owned(), |word| format!("{} …", word.text));
        return Err(vec![Fault::new(at, "", found, EXPECTED, RULE)]);
    };
    let mut faults = Vec::new();
    let mut others = Vec::new();
    for (number, command) in commands.iter().enumerate().filter(|(number, _)| *number != index) {
        let word = &command.words[0];
        let expected = "one command (does a line before it lack its \\?)";
        if number > index && OPTIONS.contains(&word.text.as_ref()) {
            faults.push(Fault::new(
                word.at,
                "",
                format!("a second command: {} …", word.text),
                expected,
                RULE,
            ));
        } else if tc_of(command).is_some_and(|tc| says_taprio(&command.words[tc..])) {
            let expected = "one taprio command: put each into a file of its own";
            faults.push(Fault::new(
                word.at,
                "",
                format!("a second command: {} … taprio …", word.text),
                expected,
                RULE,
            ));
        } else {
            others.push(word);
        }
    }
    if let Some(at) = commands[index].broken_at {
        let expected = "\\ as the last character of its line: a shell ends the command here";
        faults.push(Fault::new(at, "", "\\ and blanks behind it", expected, RULE));
    }
    if !faults.is_empty() {
        return Err(faults);
    }
    remarks.extend(about_others(&others));
    let mut words = commands.swap_remove(index).words;
    if let Some(prompt) = words[..tc].iter().rfind(|word| is_prompt(&word.text)) {
        let text = format!("{} before tc is taken for a prompt", shown(&prompt.text));
        remarks.push(Remark { at: words[0].at, text });
    }
    let rest = words.split_off(tc + 1);
    Ok((words.swap_remove(tc), rest))
}

/// Whether a text is a taprio command, or has one among others.
pub(crate) fn has_command(text: &str) -> bool {
    any_tc(&commands(text, false)).is_some() || any_tc(&commands(text, true)).is_some()
}

/// One clear line about the other commands.
fn about_others(others: &[&Word<'_>]) -> Option<Remark> {
    const NAMED_MAX: usize = 3;
    let first = others.first()?;
    let mut names: Vec<String> = Vec::new();
    for word in others {
        let name = shown(&word.text);
        if !names.contains(&name) && names.len() < NAMED_MAX {
            names.push(name);
        }
    }
    let (count, verb) = if others.len() == 1 {
        ("1 other command".to_owned(), "is")
    } else {
        (format!("{} other commands", others.len()), "are")
    };
    Some(Remark {
        at: first.at,
        text: format!("{count} ({} …) {verb} not read: only the taprio command is", names.join(", ")),
    })
}

/// The first command that says taprio: its number, and where its `tc` is.
fn candidate(commands: &[Command<'_>]) -> Option<(usize, usize)> {
    commands.iter().enumerate().find_map(|(index, command)| {
        let tc = tc_of(command)?;
        says_taprio(&command.words[tc..]).then_some((index, tc))
    })
}

fn any_tc(commands: &[Command<'_>]) -> Option<(usize, usize)> {
    candidate(commands)
        .or_else(|| commands.iter().enumerate().find_map(|(index, command)| Some((index, tc_of(command)?))))
}

fn says_taprio(words: &[Word<'_>]) -> bool {
    words.iter().any(|word| word.text == "taprio")
}

/// Where `tc` is: behind a prompt, settings (`A=b`), sudo, `ip netns exec NAME`, or nothing.
fn tc_of(command: &Command<'_>) -> Option<usize> {
    let words = &command.words;
    let is_tc = |word: &Word<'_>| word.text == "tc" || word.text.ends_with("/tc");
    let tc = words.iter().position(is_tc)?;
    let begin = words[..tc].iter().rposition(|word| is_prompt(&word.text)).map_or(0, |prompt| prompt + 1);
    let mut before = words[begin..tc].iter().map(|word| word.text.as_ref());
    while let Some(word) = before.next() {
        match word {
            "sudo" | "doas" | "exec" | "command" | "time" | "env" | "then" | "do" | "else" | "-" => {}
            "ip" => {
                let is_netns = before.next().is_some_and(|word| "netns".starts_with(word));
                if !is_netns || before.next() != Some("exec") || before.next().is_none() {
                    return None;
                }
            }
            option if option.starts_with('-') => {}
            setting if is_setting(setting) => {}
            _ => return None,
        }
    }
    Some(tc)
}

/// `user@host:~#`, `$`, `~]#`.
fn is_prompt(word: &str) -> bool {
    word.ends_with(['#', '$', '%', '>'])
}

fn is_setting(word: &str) -> bool {
    let is_name = |name: &str| {
        !name.is_empty() && name.bytes().all(|octet| octet.is_ascii_alphanumeric() || octet == b'_')
    };
    word.split_once('=').is_some_and(|(name, _)| is_name(name))
}

/// The commands of a text, none of them empty. `is_prompted`: a line that begins with `# tc` or `# sudo` is no comment.
fn commands(text: &str, is_prompted: bool) -> Vec<Command<'_>> {
    let mut lexer = Lexer {
        text,
        signs: text.char_indices().peekable(),
        at: Position::START,
        commands: vec![Command::default()],
        is_line_start: true,
        is_prompted,
    };
    lexer.all();
    lexer.commands.retain(|command| !command.words.is_empty());
    lexer.commands
}

struct Lexer<'a> {
    text: &'a str,
    signs: Peekable<CharIndices<'a>>,
    at: Position,
    commands: Vec<Command<'a>>,
    /// Nothing but blanks stands before in this line.
    is_line_start: bool,
    is_prompted: bool,
}

impl<'a> Lexer<'a> {
    fn next(&mut self) -> Option<(usize, char)> {
        let (index, sign) = self.signs.next()?;
        if sign == '\n' {
            self.at = Position { line: self.at.line + 1, column: 1 };
        } else {
            self.at.column += 1;
        }
        Some((index, sign))
    }

    fn peek(&mut self) -> Option<char> {
        self.signs.peek().map(|(_, sign)| *sign)
    }

    fn command(&mut self) -> &mut Command<'a> {
        if self.commands.is_empty() {
            self.commands.push(Command::default());
        }
        let last = self.commands.len() - 1;
        &mut self.commands[last]
    }

    fn all(&mut self) {
        while let Some(sign) = self.peek() {
            let at = self.at;
            match sign {
                '\n' => {
                    self.next();
                    self.commands.push(Command::default());
                    self.is_line_start = true;
                }
                ';' | '&' | '|' => {
                    self.next();
                    self.commands.push(Command::default());
                }
                '\\' if self.is_continued() => self.is_line_start = true,
                '#' if self.is_prompt_here() => {
                    self.next();
                }
                '#' => self.pass_line(),
                '\\' if self.is_blank_behind() => {
                    self.command().broken_at.get_or_insert(at);
                    self.pass_line();
                }
                sign if sign.is_whitespace() || sign == '\u{feff}' => {
                    self.next();
                }
                _ => {
                    let word = self.word(at);
                    self.add(word);
                }
            }
        }
    }

    /// A `>` that begins a continued line is the shell's second prompt; elsewhere it leads output away.
    fn add(&mut self, word: Word<'a>) {
        let is_second_prompt = self.is_line_start && word.text == ">";
        self.is_line_start = false;
        if !is_second_prompt {
            self.command().words.push(word);
        }
    }

    /// Takes a `\` at the end of its line, and that end.
    fn is_continued(&mut self) -> bool {
        let mut ahead = self.signs.clone();
        ahead.next();
        let rest = ahead.peek().map_or("", |(index, _)| &self.text[*index..]);
        if !rest.is_empty() && !rest.starts_with('\n') && !rest.starts_with("\r\n") {
            return false;
        }
        while self.next().is_some_and(|(_, sign)| sign != '\n') {}
        true
    }

    fn is_blank_behind(&self) -> bool {
        let mut ahead = self.signs.clone();
        ahead.next();
        ahead.next().is_some_and(|(_, sign)| sign.is_whitespace())
    }

    fn is_prompt_here(&self) -> bool {
        let mut ahead = self.signs.clone();
        let rest = ahead.next().map_or("", |(index, _)| &self.text[index + 1..]);
        let mut words = rest.split_whitespace();
        self.is_prompted
            && self.is_line_start
            && rest.starts_with(' ')
            && matches!(words.next(), Some("tc" | "sudo"))
    }

    /// Passes the rest of the line, without its end.
    fn pass_line(&mut self) {
        while self.peek().is_some_and(|sign| sign != '\n') {
            self.next();
        }
    }

    fn word(&mut self, at: Position) -> Word<'a> {
        let begin = self.signs.peek().map_or(self.text.len(), |(index, _)| *index);
        let (mut changed, mut end, mut depth) = (None::<String>, begin, 0_usize);
        while let Some(sign) = self.peek() {
            let is_end = sign.is_whitespace() || matches!(sign, ';' | '&' | '|');
            if is_end && depth == 0 || sign == '\n' {
                break;
            }
            match sign {
                '\'' | '"' => {
                    let mut so_far = changed.take().unwrap_or_else(|| self.text[begin..end].to_owned());
                    self.next();
                    self.quoted(sign, &mut so_far);
                    changed = Some(so_far);
                }
                '\\' => {
                    let mut so_far = changed.take().unwrap_or_else(|| self.text[begin..end].to_owned());
                    let rest = &self.text[end..];
                    let is_line_end = rest.starts_with("\\\n") || rest.starts_with("\\\r\n");
                    if is_line_end || (depth == 0 && self.is_blank_behind()) {
                        // The line goes on, or is broken: the word ends here all the same.
                        changed = (!so_far.is_empty() && so_far != self.text[begin..end]).then_some(so_far);
                        break;
                    }
                    self.next();
                    so_far.extend(self.next().map(|(_, sign)| sign));
                    changed = Some(so_far);
                }
                _ => {
                    // `$(…)` is one word, whatever stands in it.
                    depth += usize::from(sign == '(' && (depth > 0 || self.text[..end].ends_with('$')));
                    depth -= usize::from(sign == ')' && depth > 0);
                    self.next();
                    if let Some(so_far) = &mut changed {
                        so_far.push(sign);
                    }
                }
            }
            end = self.signs.peek().map_or(self.text.len(), |(index, _)| *index);
        }
        Word { at, text: changed.map_or_else(|| Cow::Borrowed(&self.text[begin..end]), Cow::Owned) }
    }

    /// Up to the closing quote, or the text's end.
    fn quoted(&mut self, quote: char, so_far: &mut String) {
        while let Some((_, sign)) = self.next() {
            match sign {
                sign if sign == quote => return,
                '\\' if quote == '"' && matches!(self.peek(), Some('"' | '\\' | '$' | '`')) => {
                    so_far.extend(self.next().map(|(_, sign)| sign));
                }
                sign => so_far.push(sign),
            }
        }
    }
}
