// SPDX-License-Identifier: Apache-2.0
//! The cluster, by the user's `kubectl`: its contexts, its log-ins, its proxies.
//!
//! In: paths of the API and objects. Out: answers as values, or a refusal that says what to do. It must never take an error for an
//! answer, and never wait for ever: each call has a time limit.

use std::io::Write as _;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;

/// Why a call had no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// The object, or its kind, is not there.
    NotFound(String),
    /// The user lacks a right.
    Forbidden(String),
    /// No API server answers, or there is no kubectl: the cluster cannot be reached from here.
    Unreachable(String),
    /// Everything else, in kubectl's words.
    Other(String),
}

impl std::fmt::Display for Refused {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (Self::NotFound(text) | Self::Forbidden(text) | Self::Unreachable(text) | Self::Other(text)) =
            self;
        out.write_str(text)
    }
}

impl From<Refused> for String {
    fn from(refused: Refused) -> Self {
        refused.to_string()
    }
}

/// What answers.
pub(crate) trait Cluster: Sync {
    /// kubectl's standard output for these words and this standard input.
    ///
    /// # Errors
    /// What it said, by kind.
    fn call(&self, words: &[&str], input: Option<&str>) -> Result<String, Refused>;

    /// How long to wait between two looks at what changes.
    fn pause(&self) -> Duration {
        Duration::from_millis(500)
    }

    /// The API's answer to a path.
    ///
    /// # Errors
    /// What the API server or kubectl said.
    fn get(&self, path: &str) -> Result<Value, Refused> {
        let text = self.call(&["get", "--raw", path], None)?;
        serde_json::from_str(&text)
            .map_err(|error| Refused::Other(format!("{path}: the answer is no JSON: {error}")))
    }

    /// The items of a list; none where the kind does not exist.
    ///
    /// # Errors
    /// What the API server or kubectl said.
    fn list(&self, path: &str) -> Result<Vec<Value>, Refused> {
        match self.get(path) {
            Err(Refused::NotFound(_)) => Ok(Vec::new()),
            answer => Ok(answer?["items"].as_array().cloned().unwrap_or_default()),
        }
    }

    /// Makes or changes objects, given as one text.
    ///
    /// # Errors
    /// What the API server or kubectl said.
    fn apply(&self, objects: &str, more: &[&str]) -> Result<String, Refused> {
        let mut words =
            vec!["apply", "--server-side", "--field-manager=ktsn", "--force-conflicts", "-f", "-"];
        words.extend(more);
        self.call(&words, Some(objects))
    }

    /// Deletes an object, given as `KIND NAME`, and waits until it is gone; one that is not there is no error.
    ///
    /// # Errors
    /// What the API server or kubectl said.
    fn delete(&self, kind: &str, name: &str, namespace: &str) -> Result<(), Refused> {
        let words = ["delete", kind, name, "-n", namespace, "--ignore-not-found", "--timeout=120s"];
        self.call(&words, None).map(drop)
    }
}

/// The user's kubectl.
pub(crate) struct Kubectl {
    pub(crate) program: String,
    /// `--context` and `--kubeconfig`, where given.
    pub(crate) flags: Vec<String>,
}

impl Cluster for Kubectl {
    fn call(&self, words: &[&str], input: Option<&str>) -> Result<String, Refused> {
        let spawned = Command::new(&self.program)
            .args(&self.flags)
            .args(words)
            .args(limit(words))
            .stdin(if input.is_some() { Stdio::piped() } else { Stdio::null() })
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        let mut child = spawned.map_err(|error| {
            Refused::Unreachable(format!(
                "{}: {error}; install kubectl (https://kubernetes.io/docs/tasks/tools), or name it with --kubectl",
                self.program
            ))
        })?;
        if let (Some(input), Some(mut pipe)) = (input, child.stdin.take()) {
            // kubectl may end before it has read all; what it says then is the error.
            let _ = pipe.write_all(input.as_bytes());
        }
        let done =
            child.wait_with_output().map_err(|error| Refused::Other(format!("{}: {error}", self.program)))?;
        if done.status.success() {
            return Ok(String::from_utf8_lossy(&done.stdout).into_owned());
        }
        Err(refusal(&String::from_utf8_lossy(&done.stderr)))
    }
}

/// The time limit of one request. `kubectl delete` and `kubectl wait` have limits of their own, longer than a request.
fn limit(words: &[&str]) -> Option<&'static str> {
    matches!(words.first(), Some(&("get" | "apply" | "version"))).then_some("--request-timeout=60s")
}

/// The kind of an error, by kubectl's words.
pub(crate) fn refusal(said: &str) -> Refused {
    const UNREACHABLE: [&str; 13] = [
        "Unable to connect to the server",
        "was refused - did you specify the right host",
        "connection refused",
        "no such host",
        "i/o timeout",
        "deadline exceeded",
        "no route to host",
        "network is unreachable",
        "certificate signed by unknown authority",
        "does not exist",
        "no context exists",
        "invalid configuration",
        "You must be logged in",
    ];
    let said = said.trim();
    let has = |words: &[&str]| words.iter().any(|word| said.contains(word));
    if has(&[
        "(NotFound)",
        "the server doesn't have a resource type",
        "the server could not find the requested resource",
    ]) {
        Refused::NotFound(said.to_owned())
    } else if has(&["(Forbidden)", "is forbidden"]) {
        Refused::Forbidden(said.to_owned())
    } else if has(&UNREACHABLE) || said.contains("(Unauthorized)") {
        Refused::Unreachable(said.to_owned())
    } else if said.is_empty() {
        Refused::Other("kubectl failed and said nothing".to_owned())
    } else {
        Refused::Other(said.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_kubectl_says_has_a_kind() {
        type Kind = fn(String) -> Refused;
        let table: [(&str, Kind); 6] = [
            ("Error from server (NotFound): nodes \"x\" not found", Refused::NotFound),
            (
                "Error from server (Forbidden): nodes is forbidden: User \"u\" cannot list resource \"nodes\" in API group \"\"",
                Refused::Forbidden,
            ),
            (
                "The connection to the server localhost:8080 was refused - did you specify the right host or port?",
                Refused::Unreachable,
            ),
            ("error: context \"nowhere\" does not exist", Refused::Unreachable),
            ("error: You must be logged in to the server (Unauthorized)", Refused::Unreachable),
            ("error: something else", Refused::Other),
        ];
        for (said, kind) in table {
            assert_eq!(refusal(said), kind(said.to_owned()));
        }
    }

    #[test]
    fn requests_have_a_time_limit() {
        let echo = Kubectl { program: "echo".to_owned(), flags: vec!["--context=a".to_owned()] };
        assert_eq!(
            echo.call(&["get", "--raw", "/api"], None),
            Ok("--context=a get --raw /api --request-timeout=60s\n".to_owned())
        );
        assert_eq!(
            echo.call(&["delete", "pod", "--timeout=120s"], None),
            Ok("--context=a delete pod --timeout=120s\n".to_owned())
        );
    }

    #[test]
    fn a_missing_kubectl_says_how_to_get_one() {
        let kubectl = Kubectl { program: "/nowhere/kubectl".to_owned(), flags: Vec::new() };
        let Refused::Unreachable(said) = kubectl.call(&["version"], None).unwrap_err() else {
            panic!("kind")
        };
        assert!(said.contains("install kubectl") && said.contains("--kubectl"), "{said}");
    }
}
