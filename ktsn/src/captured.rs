// SPDX-License-Identifier: Apache-2.0
//! Kernel capture: whether ktsnd takes what a program in this network namespace sends.
//!
//! In: a run directory. Out: nothing when it does, else what is missing and what to do. It asks ktsnd; nothing is
//! changed, and nothing of the program is looked at: capture serves any.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use ktsn_proto::v1::{AttachmentState, ListRequest};
use serde_json::Value;

use crate::control;

/// Why timed sends from here are not captured, as far as can be seen.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Missing {
    /// ktsnd cannot be asked.
    #[error("whether kernel capture serves this program cannot be seen: {0}")]
    Unknown(String),
    /// No attachment is of this network namespace.
    #[error(
        "ktsnd has no attachment of this network namespace; run `ktsnd --attach NETNS:INTERFACE,capture=kernel` at the \
         host end of the pod's veth, or add an [[attachment]] with capture = \"kernel\""
    )]
    Attachment,
    /// There is an attachment, without capture.
    #[error(
        "attachment {0} has capture = \"preload\": detach it and attach it again with capture = \"kernel\""
    )]
    Capture(String),
}

/// Which namespace a path leads to.
fn identity(path: &Path) -> Option<(u64, u64)> {
    std::fs::metadata(path).ok().map(|metadata| (metadata.dev(), metadata.ino()))
}

/// Asks the ktsnd of this run directory.
pub(crate) fn check(run_dir: &Path) -> Result<(), Missing> {
    judge(attachments_here(run_dir).map_err(Missing::Unknown)?.into_iter())
}

/// The attachments of this network namespace, as the ktsnd of this run directory lists them; else why it cannot be asked.
pub(crate) fn attachments_here(run_dir: &Path) -> Result<Vec<Value>, String> {
    let runtime = control::runtime().map_err(|error| error.to_string())?;
    let attachments = runtime.block_on(async {
        let mut client = control::connect(run_dir).await.map_err(|error| error.to_string())?;
        let asked = tokio::time::timeout(control::ANSWER_MAX, client.list(ListRequest {})).await;
        let reply = asked.map_err(|_| "ktsnd does not answer".to_owned())?;
        Ok::<_, String>(reply.map_err(|status| status.message().to_owned())?.into_inner().attachments)
    })?;
    let here = identity(Path::new("/proc/self/ns/net"));
    let is_here = |attachment: &Value| {
        let netns = attachment["netns"].as_str().unwrap_or_default();
        here.is_some() && identity(Path::new(netns)) == here
    };
    Ok(attachments.iter().map(AttachmentState::fields).filter(is_here).collect())
}

/// One attachment of this namespace with capture is enough: a program's frames leave by any interface.
fn judge(here: impl Iterator<Item = Value>) -> Result<(), Missing> {
    let mut without = None;
    for attachment in here {
        if attachment["capture"] == "kernel" {
            return Ok(());
        }
        without.get_or_insert_with(|| attachment["name"].as_str().unwrap_or_default().to_owned());
    }
    Err(without.map_or(Missing::Attachment, Missing::Capture))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attachment(name: &str, capture: &str) -> Value {
        serde_json::json!({ "name": name, "capture": capture })
    }

    #[test]
    fn one_with_capture_is_enough() {
        let (a, b) = (attachment("a", "preload"), attachment("b", "kernel"));
        assert_eq!(judge([a.clone(), b].into_iter()), Ok(()));
        assert_eq!(judge([a].into_iter()), Err(Missing::Capture("a".to_owned())));
        assert_eq!(judge([].into_iter()), Err(Missing::Attachment));
    }

    #[test]
    fn every_answer_says_what_to_do() {
        let directory = tempfile::tempdir().unwrap();
        let Err(absent) = check(directory.path()) else { panic!("no ktsnd answers there") };
        assert!(absent.to_string().contains("start one with"), "{absent}");
        assert!(Missing::Attachment.to_string().contains("capture=kernel"));
    }
}
