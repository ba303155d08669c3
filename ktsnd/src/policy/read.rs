// SPDX-License-Identifier: Apache-2.0
//! The node's rules as its tools print them.
//!
//! In: `iptables-save`, `ip6tables-save`, their older namesakes and `nft -j list ruleset`, where they are installed. Out:
//! rules, and the tool that failed; its rules stay as it last printed them. It waits for the tools, so it is for a thread that may
//! block. A tool that does not end within a limit is killed.

use std::io::{self, ErrorKind, Read as _};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{Rule, Unread, of_iptables, of_nft};

/// How long one tool may take. Thousands of rules take a second; a tool that takes this long hangs.
pub(super) const LIMIT: Duration = Duration::from_secs(10);
/// How long a killed tool may take to end. A tool that the kernel holds longer ends later by itself.
const END_LIMIT: Duration = Duration::from_millis(200);
const CHUNK_OCTETS: usize = 64 * 1024;

/// Which rules to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    All,
    /// The rules without notifications.
    Untold,
}

/// The tools that print rules.
struct Tool {
    program: &'static str,
    arguments: &'static [&'static str],
    /// Names the tables of the older interface; its tool runs only when there are some.
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

/// The answer of a tool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Said {
    /// The tool is not installed, or it has nothing to print.
    #[default]
    Nothing,
    Rules,
    Failed,
    /// The tool did not end within its limit.
    Silent,
    /// The tool is not installed, and the kernel has rules of it.
    Missing,
}

impl Said {
    fn is_answer(self) -> bool {
        matches!(self, Self::Nothing | Self::Rules)
    }
}

/// The last answer of each tool.
#[derive(Clone, Debug, Default)]
pub(super) struct Read {
    rules: [Vec<Rule>; TOOLS.len()],
    said: [Said; TOOLS.len()],
}

/// Whether there are rules of the older interface, which sends no notifications.
pub(super) fn has_older_tables() -> bool {
    [OLDER_V4, OLDER_V6].into_iter().any(is_named)
}

fn is_named(tables: &str) -> bool {
    std::fs::read_to_string(tables).is_ok_and(|names| !names.trim().is_empty())
}

impl Read {
    /// Runs the tools, each for at most [`LIMIT`].
    pub(super) fn again(mut self, wanted: Wanted) -> Self {
        for ((tool, rules), said) in TOOLS.iter().zip(&mut self.rules).zip(&mut self.said) {
            if wanted == Wanted::All || tool.older_tables.is_some() {
                let (now, found) = tool.ask(LIMIT);
                *said = now;
                if now.is_answer() {
                    *rules = found;
                }
            }
        }
        self
    }

    /// The tool that failed, so that the rules are not known.
    pub(super) fn unread(&self) -> Option<Unread> {
        unread(&self.said)
    }

    /// All rules.
    pub(super) fn rules(&self) -> Vec<Rule> {
        self.rules.iter().flatten().cloned().collect()
    }
}

/// nft also prints the rules of the newer iptables; those tools are needed only where nft does not answer.
fn unread(said: &[Said]) -> Option<Unread> {
    let is_shown = said.last() == Some(&Said::Rules);
    let is_missed = |tool: &Tool| tool.older_tables.is_some() || tool.program == "nft" || !is_shown;
    let mut all = TOOLS.iter().zip(said);
    let (tool, said) = all.find(|(tool, said)| !said.is_answer() && is_missed(tool))?;
    Some(match said {
        Said::Silent => Unread::Silent(tool.program),
        Said::Missing => Unread::Missing(tool.program),
        _ => Unread::Failed(tool.program),
    })
}

impl Tool {
    /// Runs the tool and reads what it prints.
    fn ask(&self, limit: Duration) -> (Said, Vec<Rule>) {
        if self.older_tables.is_some_and(|tables| !is_named(tables)) {
            return (Said::Nothing, Vec::new());
        }
        match output(self.program, self.arguments, limit) {
            Ok(Some(octets)) => (Said::Rules, (self.read)(&String::from_utf8_lossy(&octets))),
            Ok(None) => (Said::Failed, Vec::new()),
            // Where the kernel has the older tables, only that tool can say what is in them.
            Err(error) if error.kind() == ErrorKind::NotFound && self.older_tables.is_some() => {
                (Said::Missing, Vec::new())
            }
            Err(error) if error.kind() == ErrorKind::NotFound => (Said::Nothing, Vec::new()),
            Err(error) if error.kind() == ErrorKind::TimedOut => (Said::Silent, Vec::new()),
            Err(_) => (Said::Failed, Vec::new()),
        }
    }
}

/// Killed tools that the kernel has not released yet. Each is reaped later; until then the same tool is not started again.
static LEFT: Mutex<Vec<(&str, Child)>> = Mutex::new(Vec::new());

/// The output of a program; `None`: it ended with a failure.
///
/// # Errors
/// The kernel's; `TimedOut` when the program did not end within the limit. It has been killed then.
fn output(program: &'static str, arguments: &[&str], limit: Duration) -> io::Result<Option<Vec<u8>>> {
    let left = || LEFT.lock().unwrap_or_else(PoisonError::into_inner);
    left().retain_mut(|(_, child)| matches!(child.try_wait(), Ok(None)));
    if left().iter().any(|(held, _)| *held == program) {
        return Err(ErrorKind::TimedOut.into());
    }
    let until = Instant::now() + limit;
    let mut command = Command::new(program);
    let command = command.args(arguments).stdin(Stdio::null()).stderr(Stdio::null());
    let mut child = command.stdout(Stdio::piped()).spawn()?;
    let printed = child.stdout.take().map_or(Ok(Vec::new()), |pipe| read_until(pipe, until));
    let ended = printed.and_then(|octets| Ok((octets, end(&mut child, until)?)));
    match ended {
        Ok((octets, is_success)) => Ok(is_success.then_some(octets)),
        Err(error) => {
            let _ = child.kill();
            if end(&mut child, Instant::now() + END_LIMIT).is_err() {
                left().push((program, child));
            }
            Err(error)
        }
    }
}

/// All that is printed until the pipe's other end is closed.
fn read_until(mut pipe: ChildStdout, until: Instant) -> io::Result<Vec<u8>> {
    let (mut octets, mut chunk) = (Vec::new(), vec![0; CHUNK_OCTETS]);
    loop {
        let left = Timespec::try_from(until.saturating_duration_since(Instant::now())).ok();
        match poll(&mut [PollFd::new(&pipe, PollFlags::IN)], left.as_ref()) {
            Ok(0) => return Err(ErrorKind::TimedOut.into()),
            Ok(_) => match pipe.read(&mut chunk) {
                Ok(0) => return Ok(octets),
                Ok(count) => octets.extend(chunk.iter().take(count)),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            },
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Waits until a child has ended; true when it succeeded.
fn end(child: &mut Child, until: Instant) -> io::Result<bool> {
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status.success());
        }
        if Instant::now() >= until {
            return Err(ErrorKind::TimedOut.into());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;
    use std::time::{Duration, Instant};

    use ktsn_eventually::eventually;

    use super::super::Unread;
    use super::{LIMIT, Said, Tool, iptables, output, unread};

    /// In the order of the tools: iptables, ip6tables, both older ones, nft.
    #[test]
    fn rules_are_known_only_when_each_tool_that_must_answer_has_answered() {
        use Said::{Failed, Missing, Nothing, Rules, Silent};
        for (said, expected) in [
            ([Nothing; 5], None),
            ([Rules, Rules, Nothing, Nothing, Rules], None),
            ([Failed, Failed, Nothing, Nothing, Rules], None),
            ([Failed, Rules, Nothing, Nothing, Nothing], Some(Unread::Failed("iptables-save"))),
            ([Rules, Rules, Nothing, Nothing, Failed], Some(Unread::Failed("nft"))),
            ([Silent, Rules, Nothing, Nothing, Rules], None),
            ([Rules, Rules, Nothing, Nothing, Silent], Some(Unread::Silent("nft"))),
            ([Rules, Rules, Nothing, Failed, Rules], Some(Unread::Failed("ip6tables-legacy-save"))),
            ([Rules, Rules, Missing, Nothing, Rules], Some(Unread::Missing("iptables-legacy-save"))),
        ] {
            assert_eq!(unread(&said), expected, "{said:?}");
        }
    }

    /// The rules are there, and nothing shows them.
    #[test]
    fn a_missing_tool_has_no_rules_only_where_the_kernel_has_no_tables_of_it() {
        let said = |tool: &Tool| tool.ask(LIMIT).0;
        let missing = |tables| iptables("ktsn-no-such-tool", tables);
        assert_eq!(said(&missing(None)), Said::Nothing);
        assert_eq!(said(&missing(Some("/dev/null"))), Said::Nothing, "no tables");
        assert_eq!(said(&missing(Some("/proc/self/status"))), Said::Missing, "a list with something in it");
        assert_eq!(said(&iptables("true", Some("/proc/self/status"))), Said::Rules);
        let text = Unread::Missing("iptables-legacy-save").to_string();
        assert!(
            text.contains("iptables-legacy-save is not installed") && text.contains("install it"),
            "{text}"
        );
    }

    /// The limit also ends a tool that closed its output, and one that prints without end.
    #[test]
    fn a_tool_that_hangs_is_ended_at_its_limit() {
        for line in ["exec sleep 60", "exec >&-; exec sleep 60", "exec yes"] {
            let began = Instant::now();
            let error = output("sh", &["-c", line], Duration::from_millis(200)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::TimedOut, "{line}");
            assert!(began.elapsed() < Duration::from_secs(30), "{line}");
        }
        let limit = Duration::from_secs(60);
        // One that is killed and has not ended yet is not started again.
        let rules = eventually("another start", limit, || match output("sh", &["-c", "echo rules"], limit) {
            Err(error) if error.kind() == ErrorKind::TimedOut => None,
            said => Some(said.unwrap()),
        });
        assert_eq!(rules, Some(b"rules\n".to_vec()));
        // More than a pipe holds.
        let long = output("sh", &["-c", "head -c 1000000 /dev/zero"], limit).unwrap();
        assert_eq!(long.map(|octets| octets.len()), Some(1_000_000));
        assert_eq!(output("false", &[], limit).unwrap(), None);
        let missing = output("ktsn-no-such-tool", &[], limit).unwrap_err();
        assert_eq!(missing.kind(), ErrorKind::NotFound);
    }
}
