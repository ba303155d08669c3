// SPDX-License-Identifier: Apache-2.0
//! A cluster of recorded answers, for tests. In: beginnings of calls, each with its answer. Out: the answers; a call that is not recorded
//! is an error with its words.

use std::sync::Mutex;
use std::time::Duration;

use serde_json::{Value, json};

use super::chart::{Chart, Fault, Object, Renderer};
use super::cluster::{Cluster, Refused, refusal};

/// Answers by the beginning of the call. Of several with one beginning each is given once, the last one again and again.
pub(crate) struct Recorded {
    answers: Mutex<Vec<(String, Result<String, String>)>>,
    calls: Mutex<Vec<String>>,
    inputs: Mutex<Vec<String>>,
}

impl Recorded {
    pub(crate) fn new(answers: &[(&str, Result<&str, &str>)]) -> Self {
        let owned = |(call, answer): &(&str, Result<&str, &str>)| {
            ((*call).to_owned(), answer.map(str::to_owned).map_err(str::to_owned))
        };
        Self {
            answers: Mutex::new(answers.iter().map(owned).collect()),
            calls: Mutex::default(),
            inputs: Mutex::default(),
        }
    }

    /// All calls so far.
    pub(crate) fn calls(&self) -> Vec<String> {
        self.calls.lock().unwrap().clone()
    }

    /// What was given on standard input so far.
    pub(crate) fn inputs(&self) -> Vec<String> {
        self.inputs.lock().unwrap().clone()
    }
}

impl Cluster for Recorded {
    fn call(&self, words: &[&str], input: Option<&str>) -> Result<String, Refused> {
        let call = words.join(" ");
        self.calls.lock().unwrap().push(call.clone());
        self.inputs.lock().unwrap().extend(input.map(str::to_owned));
        let mut answers = self.answers.lock().unwrap();
        let fits: Vec<usize> = answers
            .iter()
            .enumerate()
            .filter(|(_, (begin, _))| call.starts_with(begin.as_str()))
            .map(|(at, _)| at)
            .collect();
        // The longest beginning counts.
        let longest = fits.iter().map(|at| answers[*at].0.len()).max();
        let fits: Vec<usize> = fits.into_iter().filter(|at| Some(answers[*at].0.len()) == longest).collect();
        let answer = match fits.as_slice() {
            [] => return Err(Refused::Other(format!("not recorded: {call}"))),
            [only] => answers[*only].1.clone(),
            [first, ..] => answers.remove(*first).1,
        };
        answer.map_err(|said| refusal(&said))
    }

    fn pause(&self) -> Duration {
        Duration::from_millis(1)
    }
}

/// The chart's values that `ktsn k8s` itself reads.
pub(crate) fn defaults() -> Value {
    json!({"images": {"node": "localhost/ktsn-node:dev", "controller": "localhost/ktsn-controller:dev", "pullPolicy": "IfNotPresent"},
        "network": {"cidrs": "10.99.0.0/16", "vxlan": {"device": "ktsn.1"}}, "resource": {"name": "ktsn.io/tsn"},
        "host": {"runDir": "/run/ktsn", "libDir": "/var/lib/ktsn", "cniBinDir": "/opt/cni/bin", "cniStateDir": "/var/lib/cni/ktsn",
                 "kubeletDir": "/var/lib/kubelet"}, "nodeSelector": {}, "controller": {"nodeSelector": {}}})
}

/// A chart of one object, which says what was asked of the renderer.
pub(crate) struct RecordedChart;

impl Renderer for RecordedChart {
    fn chart(&self, words: &[String], values: Option<&Value>) -> Result<Chart, Fault> {
        let values = values.cloned().unwrap_or_else(defaults);
        let text = format!("{} {values}", words.join(" "));
        let objects =
            vec![Object { text, value: json!({"kind": "ConfigMap", "metadata": {"name": "asked"}}) }];
        Ok(Chart { version: "0.1.0".to_owned(), defaults: defaults(), values, objects })
    }
}
