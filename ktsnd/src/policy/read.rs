// SPDX-License-Identifier: Apache-2.0
//! The node's rules as its tools print them.
//!
//! In: `iptables-save`, `ip6tables-save`, their older namesakes and `nft -j list ruleset`, where they are installed. Out:
//! rules. A tool that fails leaves what it said before. It waits for the tools: it is for a thread that may.

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

/// What each tool said last.
#[derive(Clone, Debug, Default)]
pub(super) struct Read([Vec<Rule>; TOOLS.len()]);

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
        for (tool, rules) in TOOLS.iter().zip(&mut self.0) {
            let is_wanted = wanted == Wanted::All || tool.older_tables.is_some();
            if is_wanted && let Some(now) = tool.ask() {
                *rules = now;
            }
        }
        self
    }

    /// All of them.
    pub(super) fn rules(&self) -> Vec<Rule> {
        self.0.iter().flatten().cloned().collect()
    }
}

impl Tool {
    /// What it prints; `None` when it fails.
    fn ask(&self) -> Option<Vec<Rule>> {
        if self.older_tables.is_some_and(|tables| !is_named(tables)) {
            return Some(Vec::new());
        }
        let asked = Command::new(self.program)
            .args(self.arguments)
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .output();
        match asked {
            Ok(output) if output.status.success() => {
                Some((self.read)(&String::from_utf8_lossy(&output.stdout)))
            }
            Err(error) if error.kind() == ErrorKind::NotFound => Some(Vec::new()),
            _ => None,
        }
    }
}
