// SPDX-License-Identifier: Apache-2.0
//! The node's rules as its tools print them.
//!
//! In: `iptables-save`, `ip6tables-save`, their older namesakes and `nft -j list ruleset`, where they are installed. Out:
//! rules, and which tool failed; that one's rules stay as it printed them before. It waits for the tools: it is for a thread that may.

use std::io::ErrorKind;
use std::process::{Command, Stdio};

use super::{Rule, of_iptables, of_nft};

/// Which rules are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    All,
    /// Those that no notification tells of.
    Untold,
}

/// What prints rules.
struct Tool {
    program: &'static str,
    arguments: &'static [&'static str],
    /// Names the tables of the older interface; the tool is asked only when there are some.
    older_tables: Option<&'static str>,
    read: fn(&str) -> Vec<Rule>,
}

const fn iptables(program: &'static str, older_tables: Option<&'static str>) -> Tool {
    Tool { program, arguments: &[], older_tables, read: of_iptables }
}

const OLDER_V4: &str = "/proc/thread-self/net/ip_tables_names";
const OLDER_V6: &str = "/proc/thread-self/net/ip6_tables_names";
const TOOLS: [Tool; 5] = [
    iptables("iptables-save", None),
    iptables("ip6tables-save", None),
    iptables("iptables-legacy-save", Some(OLDER_V4)),
    iptables("ip6tables-legacy-save", Some(OLDER_V6)),
    Tool { program: "nft", arguments: &["-j", "list", "ruleset"], older_tables: None, read: of_nft },
];

/// What came of asking a tool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Said {
    /// It is not installed, or there is nothing to ask it for.
    #[default]
    Nothing,
    Rules,
    Failed,
}

/// What each tool said last.
#[derive(Clone, Debug, Default)]
pub(super) struct Read {
    rules: [Vec<Rule>; TOOLS.len()],
    said: [Said; TOOLS.len()],
}

/// Whether there are rules of the older interface, which tells nobody when they change.
pub(super) fn has_older_tables() -> bool {
    [OLDER_V4, OLDER_V6].into_iter().any(is_named)
}

fn is_named(tables: &str) -> bool {
    std::fs::read_to_string(tables).is_ok_and(|names| !names.trim().is_empty())
}

impl Read {
    /// Asks the tools.
    pub(super) fn again(mut self, wanted: Wanted) -> Self {
        for ((tool, rules), said) in TOOLS.iter().zip(&mut self.rules).zip(&mut self.said) {
            if wanted == Wanted::All || tool.older_tables.is_some() {
                let (now, found) = tool.ask();
                *said = now;
                if now != Said::Failed {
                    *rules = found;
                }
            }
        }
        self
    }

    /// The tool without whose answer rules are not known.
    pub(super) fn unread(&self) -> Option<&'static str> {
        unread(&self.said)
    }

    /// All of them.
    pub(super) fn rules(&self) -> Vec<Rule> {
        self.rules.iter().flatten().cloned().collect()
    }
}

/// nft shows what the newer iptables has made, too; that is only needed where nft does not answer.
fn unread(said: &[Said]) -> Option<&'static str> {
    let is_shown = said.last() == Some(&Said::Rules);
    let is_missed = |tool: &Tool| tool.older_tables.is_some() || tool.program == "nft" || !is_shown;
    let mut all = TOOLS.iter().zip(said);
    all.find(|(tool, said)| **said == Said::Failed && is_missed(tool)).map(|(tool, _)| tool.program)
}

impl Tool {
    /// What it prints.
    fn ask(&self) -> (Said, Vec<Rule>) {
        if self.older_tables.is_some_and(|tables| !is_named(tables)) {
            return (Said::Nothing, Vec::new());
        }
        let asked = Command::new(self.program)
            .args(self.arguments)
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .output();
        match asked {
            Ok(output) if output.status.success() => {
                (Said::Rules, (self.read)(&String::from_utf8_lossy(&output.stdout)))
            }
            Err(error) if error.kind() == ErrorKind::NotFound => (Said::Nothing, Vec::new()),
            _ => (Said::Failed, Vec::new()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Said, unread};

    /// In the order of the tools: iptables, ip6tables, both older ones, nft.
    #[test]
    fn rules_are_known_only_when_each_tool_that_must_answer_has_answered() {
        use Said::{Failed, Nothing, Rules};
        for (said, expected) in [
            ([Nothing; 5], None),
            ([Rules, Rules, Nothing, Nothing, Rules], None),
            ([Failed, Failed, Nothing, Nothing, Rules], None),
            ([Failed, Rules, Nothing, Nothing, Nothing], Some("iptables-save")),
            ([Rules, Rules, Nothing, Nothing, Failed], Some("nft")),
            ([Rules, Rules, Nothing, Failed, Rules], Some("ip6tables-legacy-save")),
        ] {
            assert_eq!(unread(&said), expected, "{said:?}");
        }
    }
}
