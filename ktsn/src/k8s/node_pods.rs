// SPDX-License-Identifier: Apache-2.0
//! One short pod on each node, that looks at it or clears it.
//!
//! In: nodes, and what to run. Out: for each node the words with which the pod ended. The pods are deleted whatever happens. They are
//! bound to their nodes by name, so neither the scheduler nor taints keep them away.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::cluster::{Cluster, Refused};
use super::installed;
use crate::plain::plain;

/// What runs on each node.
#[derive(Clone, Debug)]
pub(crate) struct Task<'t> {
    /// The pods' names begin with it.
    pub(crate) name: &'t str,
    pub(crate) namespace: &'t str,
    pub(crate) image: &'t str,
    pub(crate) pull_policy: &'t str,
    pub(crate) command: Vec<String>,
    /// Directories of the node, at the same paths in the pod.
    pub(crate) mounts: Vec<String>,
    pub(crate) capabilities: &'t [&'t str],
}

/// With what a node's pod ended: its message, or why there is none.
pub(crate) type Answers = BTreeMap<String, Result<String, String>>;

impl Task<'_> {
    fn pod(&self, node: &str, number: usize) -> Value {
        let mounts: Vec<Value> = self
            .mounts
            .iter()
            .enumerate()
            .map(|(at, path)| json!({"name": format!("m{at}"), "mountPath": path}))
            .collect();
        let volumes: Vec<Value> = self
            .mounts
            .iter()
            .enumerate()
            .map(|(at, path)| json!({"name": format!("m{at}"), "hostPath": {"path": path}}))
            .collect();
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": format!("{}-{number}", self.name), "namespace": self.namespace,
                         "labels": {"app.kubernetes.io/part-of": "ktsn", "ktsn.io/task": self.name}},
            "spec": {
                "nodeName": node, "hostNetwork": true, "restartPolicy": "Never", "automountServiceAccountToken": false,
                "enableServiceLinks": false, "terminationGracePeriodSeconds": 0, "priorityClassName": "system-node-critical",
                "tolerations": [{"operator": "Exists"}],
                "containers": [{
                    "name": "main", "image": self.image, "imagePullPolicy": self.pull_policy, "command": self.command,
                    "terminationMessagePolicy": "FallbackToLogsOnError",
                    "securityContext": {"runAsUser": 0, "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true,
                                        "capabilities": {"drop": ["ALL"], "add": self.capabilities}},
                    "volumeMounts": mounts,
                }],
                "volumes": volumes,
            },
        })
    }

    fn list(&self) -> String {
        format!("/api/v1/namespaces/{}/pods?labelSelector=ktsn.io%2Ftask%3D{}", self.namespace, self.name)
    }

    fn delete(&self, cluster: &dyn Cluster) -> Result<(), Refused> {
        let label = format!("ktsn.io/task={}", self.name);
        cluster.call(&["delete", "pods", "-n", self.namespace, "-l", &label, "--timeout=60s"], None).map(drop)
    }

    /// Runs it on these nodes at once.
    ///
    /// # Errors
    /// What the API server said. A pod that fails is an answer.
    pub(crate) fn run(
        &self,
        cluster: &dyn Cluster,
        nodes: &[String],
        patience: Duration,
    ) -> Result<Answers, Refused> {
        if nodes.is_empty() {
            return Ok(Answers::new());
        }
        // Of a run that was interrupted.
        if !cluster.list(&self.list())?.is_empty() {
            self.delete(cluster)?;
        }
        let pods: Vec<Value> =
            nodes.iter().enumerate().map(|(number, node)| self.pod(node, number)).collect();
        let made =
            cluster.apply(&json!({"apiVersion": "v1", "kind": "List", "items": pods}).to_string(), &[]);
        let answers = made.and_then(|_| self.wait(cluster, nodes, patience));
        let deleted = self.delete(cluster);
        let answers = answers?;
        deleted.map(|()| answers)
    }

    fn wait(&self, cluster: &dyn Cluster, nodes: &[String], patience: Duration) -> Result<Answers, Refused> {
        let end = Instant::now() + patience;
        loop {
            let mut answers = Answers::new();
            let mut why = BTreeMap::new();
            for pod in cluster.list(&self.list())? {
                let node = pod["spec"]["nodeName"].as_str().unwrap_or_default().to_owned();
                if let Some(answer) = outcome(&pod) {
                    answers.insert(node, answer);
                } else {
                    why.insert(node, waiting(&pod).unwrap_or_else(|| "the pod has not started".to_owned()));
                }
            }
            let is_late = Instant::now() > end;
            if is_late {
                for node in
                    nodes.iter().filter(|node| !answers.contains_key(*node)).cloned().collect::<Vec<_>>()
                {
                    let what = why.remove(&node).unwrap_or_else(|| "the pod is gone".to_owned());
                    answers.insert(node, Err(format!("not within {} s: {what}", patience.as_secs())));
                }
            }
            if is_late || nodes.iter().all(|node| answers.contains_key(node)) {
                return Ok(answers);
            }
            std::thread::sleep(cluster.pause());
        }
    }
}

/// With what a pod has ended, or that it cannot begin; `None` while it may still.
fn outcome(pod: &Value) -> Option<Result<String, String>> {
    let state = &pod["status"]["containerStatuses"][0]["state"];
    let ended = &state["terminated"];
    if ended.is_object() {
        // The node's own words, which go to a terminal.
        let said = ended["message"].as_str().unwrap_or_default().trim().lines().map(plain);
        let said = said.collect::<Vec<_>>().join("\n");
        return Some(if ended["exitCode"] == 0 {
            Ok(said)
        } else {
            Err(format!("exit status {}: {said}", ended["exitCode"]))
        });
    }
    if pod["status"]["phase"] == "Failed" {
        let said = pod["status"]["message"].as_str().unwrap_or("the pod failed");
        return Some(Err(plain(said)));
    }
    let reason = state["waiting"]["reason"].as_str().unwrap_or_default();
    let is_final = matches!(
        reason,
        "ImagePullBackOff"
            | "ErrImageNeverPull"
            | "InvalidImageName"
            | "CreateContainerConfigError"
            | "RunContainerError"
    );
    if is_final { waiting(pod).map(Err) } else { None }
}

/// Why a pod's containers do not run, with what to do about a missing image.
pub(crate) fn waiting(pod: &Value) -> Option<String> {
    let statuses = pod["status"]["containerStatuses"].as_array()?;
    statuses.iter().find_map(|status| {
        let waits = &status["state"]["waiting"];
        let reason = waits["reason"].as_str()?;
        let image = status["image"].as_str().unwrap_or_default();
        Some(plain(&match reason {
            "ImagePullBackOff" | "ErrImagePull" | "ErrImageNeverPull" | "InvalidImageName" => format!(
                "{reason}: the node does not have the image {image}; import its archive there (`ctr -n k8s.io images import FILE`), \
                 or push it to a registry and name that with --registry"
            ),
            _ => {
                let message = waits["message"].as_str().unwrap_or_default();
                format!("{reason} {message}").trim().to_owned()
            }
        }))
    })
}

/// Nodes by name that are Ready, and the others.
pub(crate) fn by_readiness(nodes: &[Value]) -> (Vec<String>, Vec<String>) {
    let (ready, other): (Vec<&Value>, Vec<&Value>) =
        nodes.iter().partition(|node| installed::condition(node, "Ready"));
    let names = |nodes: Vec<&Value>| nodes.into_iter().map(installed::name).collect();
    (names(ready), names(other))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::k8s::recorded::Recorded;

    fn task<'t>() -> Task<'t> {
        Task {
            name: "ktsn-probe",
            namespace: "kube-system",
            image: "localhost/ktsn-node:dev",
            pull_policy: "IfNotPresent",
            command: vec!["/p".to_owned()],
            mounts: vec!["/run".to_owned()],
            capabilities: &["NET_ADMIN"],
        }
    }

    #[test]
    fn each_node_has_an_answer_and_the_pods_are_deleted() {
        let state = |node: &str, state: Value| json!({"spec": {"nodeName": node}, "status": {"containerStatuses": [{"image": "i", "state": state}]}});
        let pods = json!({"items": [
            state("a", json!({"terminated": {"exitCode": 0, "message": "fit\n"}})),
            state("b", json!({"terminated": {"exitCode": 1, "message": "no vxlan"}})),
            state("c", json!({"waiting": {"reason": "ErrImageNeverPull"}})),
            state("d", json!({"waiting": {"reason": "ContainerCreating"}})),
            // Words that a terminal would obey.
            state("e", json!({"terminated": {"exitCode": 0, "message": "note: \u{1b}[2J\nfit\n"}})),
            state("f", json!({"waiting": {"reason": "RunContainerError", "message": "\u{1b}]0;x\u{7}"}})),
        ]});
        let cluster = Recorded::new(&[
            (
                "get --raw /api/v1/namespaces/kube-system/pods?labelSelector=ktsn.io%2Ftask",
                Ok("{\"items\": []}"),
            ),
            ("apply", Ok("")),
            (
                "get --raw /api/v1/namespaces/kube-system/pods?labelSelector=ktsn.io%2Ftask",
                Ok(&pods.to_string()),
            ),
            ("delete pods", Ok("")),
        ]);
        let nodes = ["a", "b", "c", "d", "e", "f"].map(str::to_owned);
        let answers = task().run(&cluster, &nodes, Duration::from_millis(20)).unwrap();
        assert_eq!(answers["a"], Ok("fit".to_owned()));
        assert_eq!(answers["b"], Err("exit status 1: no vxlan".to_owned()));
        assert!(answers["c"].as_ref().unwrap_err().contains("--registry"), "{answers:?}");
        assert_eq!(answers["e"], Ok("note: \u{fffd}[2J\nfit".to_owned()));
        assert_eq!(answers["f"], Err("RunContainerError \u{fffd}]0;x\u{fffd}".to_owned()));
        assert!(answers["d"].as_ref().unwrap_err().contains("ContainerCreating"), "{answers:?}");
        assert!(cluster.calls().last().unwrap().starts_with("delete pods"), "{:?}", cluster.calls());
    }
}
