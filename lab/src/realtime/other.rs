// SPDX-License-Identifier: Apache-2.0
//! Another machine as a system, reached by ssh. In: the host. Out: its end, and what it allows; or why it cannot be had.

use super::far::End;
use super::guests::one_line;
pub use super::plan::Other;
use super::plan::Plan;
use super::questions::{Asked, Looked, Question};
use crate::error::LabError;
use crate::remote::hosts::{ANSWER_MAX, Far};
use crate::vm::printable;
use ktsn_realtime::Profile;
use ktsn_realtime::causes::Cause;
use ktsn_realtime::results::Skip;
use serde_json::Value;

/// The name of the other side's command.
const EXPERIMENT: &str = "rt";
/// Most words that are taken of it.
const NOTICES_MAX: usize = 16;
const WORDS_MAX: usize = 300;

/// Begins a conversation; the other machine's environment comes with it.
pub(super) fn begin(other: &Other, plan: &Plan) -> Result<(End, Value), LabError> {
    let (far, environment) = Far::begin(&other.remote, EXPERIMENT, &Asked::of(plan))?;
    Ok((End::There(Box::new(far)), environment))
}

/// What is known of the other machine.
#[derive(Clone, Debug)]
pub(super) struct Host {
    looked: Looked,
    /// What it is, in words.
    pub(super) environment: String,
}

impl Host {
    /// Asks what it allows; `watch` hears what limits a run there.
    pub(super) fn find(other: &Other, plan: &Plan, watch: &mut dyn FnMut(&str)) -> Result<Self, LabError> {
        other.remote.check_version(&other.version)?;
        let (mut end, environment) = begin(other, plan)?;
        let mut looked: Looked = end.ask(Question::Look, ANSWER_MAX)?;
        for (_, skip) in &mut looked.skips {
            *skip = Skip { kind: words(&skip.kind), reason: words(&skip.reason) };
        }
        let notices = looked.notices.iter().take(NOTICES_MAX);
        notices.for_each(|notice| watch(&format!("{}: {}", other.remote.target, words(notice))));
        let environment = describe(&environment, &looked.unseen);
        Ok(Self { looked, environment })
    }

    /// Why a profile cannot be measured there.
    pub(super) fn skip(&self, profile: Profile) -> Option<&Skip> {
        self.looked.skips.iter().find(|(of, _)| *of == profile).map(|(_, skip)| skip)
    }
}

/// The other machine of a plan, or why it cannot be had; `None`: the plan names none.
///
/// # Errors
/// The caller was asked to stop.
pub(super) fn find(plan: &Plan, watch: &mut dyn FnMut(&str)) -> Result<Option<Result<Host, Skip>>, LabError> {
    let Some(other) = &plan.other else { return Ok(None) };
    match Host::find(other, plan, watch) {
        Err(LabError::Stopped) => Err(LabError::Stopped),
        Err(error) => {
            Ok(Some(Err(Skip { kind: "host_missing".to_owned(), reason: one_line(&error.reason()) })))
        }
        Ok(host) => Ok(Some(Ok(host))),
    }
}

/// Words of the other machine: one line without control characters.
fn words(text: &str) -> String {
    one_line(&printable(text.as_bytes())).chars().take(WORDS_MAX).collect()
}

/// What the other machine is, and which causes of late wake-ups it cannot show.
fn describe(environment: &Value, unseen: &[Cause]) -> String {
    let kernel = words(environment["kernel"].as_str().unwrap_or("?"));
    let cpus = environment["cpus"].as_u64().unwrap_or(0);
    // In the order of all, each once, whatever came.
    let unseen: Vec<&str> =
        Cause::ALL.iter().filter(|cause| unseen.contains(cause)).map(|cause| cause.word()).collect();
    let unseen = if unseen.is_empty() {
        "its counters show all causes".to_owned()
    } else {
        format!("causes that no counter shows there: {}", unseen.join(", "))
    };
    format!("Linux {kernel}, {cpus} CPUs, reached by ssh; {unseen}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn words_of_the_other_machine_are_short_and_control_nothing() {
        let environment = json!({"kernel": format!("6.1\u{1b}[2J{}", "x".repeat(5000)), "cpus": 4});
        let text = describe(&environment, &[Cause::FrequencyChanges, Cause::Smi, Cause::Smi]);
        assert!(text.starts_with("Linux 6.1[2Jxxx") && text.len() < 500, "{text}");
        assert!(
            text.ends_with(
                "4 CPUs, reached by ssh; causes that no counter shows there: smi, frequency_changes"
            )
        );
        assert!(describe(&json!([]), &[]).contains("Linux ?, 0 CPUs"));
    }
}
