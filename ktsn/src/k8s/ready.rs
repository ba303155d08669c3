// SPDX-License-Identifier: Apache-2.0
//! What KTSN's installation does on each node. In: the cluster. Out: a [`State`]: ready, or why not.

use serde::Serialize;
use serde_json::Value;

use super::cluster::{Cluster, Refused};
use super::installed;
use super::node_pods::waiting;
use crate::plain::plain;

/// One node's part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct NodeState {
    pub(crate) node: String,
    pub(crate) ready: bool,
    /// Slots that pods can ask for.
    pub(crate) slots: u64,
    /// The node's prefixes of the TSN network.
    pub(crate) prefixes: String,
    /// Why it is not ready.
    pub(crate) reason: String,
    /// The node's pod.
    pub(crate) pod: String,
}

/// The installation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct State {
    pub(crate) namespace: String,
    pub(crate) version: String,
    pub(crate) nodes: Vec<NodeState>,
    /// Controllers that are ready.
    pub(crate) controllers: u64,
    /// Everything works, on all nodes that are Ready.
    pub(crate) ready: bool,
    /// Why not, beside the nodes' reasons.
    pub(crate) reason: String,
}

impl State {
    /// Asks the cluster; `None` where KTSN is not installed.
    ///
    /// # Errors
    /// What the API server said.
    pub(crate) fn read(cluster: &dyn Cluster) -> Result<Option<Self>, Refused> {
        let find = |path: &str| {
            let asked = format!("/apis/apps/v1/{path}?labelSelector=app.kubernetes.io%2Fname%3Dktsn");
            Ok::<_, Refused>(cluster.list(&asked)?.into_iter().next())
        };
        let Some(daemons) = find("daemonsets")? else { return Ok(None) };
        let controller = find("deployments")?;
        let namespace = daemons["metadata"]["namespace"].as_str().unwrap_or_default().to_owned();
        let pods = cluster.list(&format!(
            "/api/v1/namespaces/{namespace}/pods?labelSelector=app.kubernetes.io%2Fname%3Dktsn%2Capp.kubernetes.io%2Fcomponent%3Dnode"
        ))?;
        let nodes = cluster.list("/api/v1/nodes")?;
        Ok(Some(Self::of(&daemons, controller.as_ref(), &pods, &nodes)))
    }

    fn of(daemons: &Value, controller: Option<&Value>, pods: &[Value], nodes: &[Value]) -> Self {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let mut states: Vec<NodeState> = pods.iter().map(|pod| node_state(pod, nodes)).collect();
        states.sort_by(|left, right| left.node.cmp(&right.node));
        let status = &daemons["status"];
        let count = |name: &str| status[name].as_u64().unwrap_or(0);
        let is_seen = status["observedGeneration"] == daemons["metadata"]["generation"];
        let wanted = count("desiredNumberScheduled");
        let is_down = |name: &str| {
            nodes.iter().any(|node| installed::name(node) == name && !installed::condition(node, "Ready"))
        };
        let down = states.iter().filter(|state| is_down(&state.node)).count() as u64;
        let controllers = controller.and_then(|one| one["status"]["readyReplicas"].as_u64()).unwrap_or(0);
        let reason = if !is_seen || wanted == 0 {
            "the DaemonSet's pods are being made".to_owned()
        } else if count("updatedNumberScheduled") + down < wanted {
            format!("{} of {wanted} nodes have this version", count("updatedNumberScheduled"))
        } else if controllers == 0 {
            "no ktsn-controller is ready".to_owned()
        } else {
            String::new()
        };
        let works = states.iter().all(|state| state.ready || is_down(&state.node));
        Self {
            namespace: text(&daemons["metadata"]["namespace"]),
            version: text(&daemons["metadata"]["labels"]["app.kubernetes.io/version"]),
            ready: reason.is_empty() && works && states.iter().any(|state| state.ready),
            nodes: states,
            controllers,
            reason,
        }
    }

    /// In one line.
    pub(crate) fn line(&self) -> String {
        let ready = self.nodes.iter().filter(|node| node.ready).count();
        let mut line =
            format!("{ready} of {} nodes ready, {} controllers", self.nodes.len(), self.controllers);
        if !self.reason.is_empty() {
            line.push_str(&format!("; {}", self.reason));
        }
        line
    }
}

fn node_state(pod: &Value, nodes: &[Value]) -> NodeState {
    let name = pod["spec"]["nodeName"].as_str().unwrap_or_default().to_owned();
    let node = nodes.iter().find(|node| installed::name(node) == name).cloned().unwrap_or_default();
    let slots = &node["status"]["allocatable"][installed::RESOURCE];
    let slots = slots.as_str().and_then(|text| text.parse().ok()).unwrap_or(0);
    let prefixes =
        node["metadata"]["annotations"]["ktsn.io/tsn-prefixes"].as_str().unwrap_or_default().to_owned();
    let is_ready = installed::condition(pod, "Ready");
    let reason = if !installed::condition(&node, "Ready") {
        "the node is not Ready".to_owned()
    } else if let Some(why) = waiting(pod) {
        why
    } else if !is_ready {
        "the agent is not ready".to_owned()
    } else if slots == 0 {
        format!("kubelet does not offer {} yet", installed::RESOURCE)
    } else {
        String::new()
    };
    NodeState { node: name, ready: reason.is_empty(), slots, prefixes, reason, pod: installed::name(pod) }
}

/// The last lines of a pod's containers, for an error.
pub(crate) fn last_words(cluster: &dyn Cluster, namespace: &str, pod: &str, containers: &[&str]) -> String {
    let mut said = String::new();
    for container in containers {
        let path = format!("/api/v1/namespaces/{namespace}/pods/{pod}/log?container={container}&tailLines=3");
        for line in cluster.call(&["get", "--raw", &path], None).unwrap_or_default().lines() {
            said.push_str(&format!("\n    {container}: {}", plain(line)));
        }
    }
    said
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn daemons(updated: u64) -> Value {
        json!({"metadata": {"namespace": "kube-system", "generation": 2, "labels": {"app.kubernetes.io/version": "0.1.0"}},
            "status": {"observedGeneration": 2, "desiredNumberScheduled": 2, "updatedNumberScheduled": updated}})
    }

    fn pod(node: &str, status: &Value) -> Value {
        json!({"metadata": {"name": format!("ktsn-node-{node}")}, "spec": {"nodeName": node}, "status": status})
    }

    fn node(name: &str, ready: &str, slots: &str) -> Value {
        json!({"metadata": {"name": name, "annotations": {"ktsn.io/tsn-prefixes": "10.99.1.0/24"}},
            "status": {"conditions": [{"type": "Ready", "status": ready}], "allocatable": {"ktsn.io/tsn": slots}}})
    }

    #[test]
    fn a_node_is_ready_with_its_pod_and_its_slots() {
        let ready = json!({"conditions": [{"type": "Ready", "status": "True"}]});
        let controller = json!({"status": {"readyReplicas": 2}});
        let of = |updated, pods: &[Value], nodes: &[Value]| {
            State::of(&daemons(updated), Some(&controller), pods, nodes)
        };
        let (a, b) = (pod("a", &ready), pod("b", &ready));
        let whole = of(2, &[b.clone(), a.clone()], &[node("a", "True", "64"), node("b", "True", "64")]);
        assert!(whole.ready && whole.line() == "2 of 2 nodes ready, 2 controllers", "{whole:?}");
        assert_eq!((whole.nodes[0].node.as_str(), whole.nodes[0].slots), ("a", 64));
        for (state, word) in [
            (
                of(1, &[a.clone(), b.clone()], &[node("a", "True", "64"), node("b", "True", "64")]),
                "1 of 2 nodes have this version",
            ),
            (
                of(2, &[a.clone(), b.clone()], &[node("a", "True", "64"), node("b", "True", "0")]),
                "kubelet does not offer",
            ),
            (
                of(
                    2,
                    &[a.clone(), pod("b", &json!({}))],
                    &[node("a", "True", "64"), node("b", "True", "64")],
                ),
                "agent is not ready",
            ),
            (
                of(
                    2,
                    &[pod(
                        "a",
                        &json!({"containerStatuses": [{"state": {"waiting": {"reason": "CrashLoopBackOff"}}}]}),
                    )],
                    &[node("a", "True", "64")],
                ),
                "CrashLoopBackOff",
            ),
        ] {
            let reasons: String =
                state.nodes.iter().map(|node| node.reason.clone()).chain([state.reason.clone()]).collect();
            assert!(!state.ready && reasons.contains(word), "{word}: {state:?}");
        }
        // A node that is down does not make the others wait.
        assert!(of(1, &[a, b], &[node("a", "True", "64"), node("b", "Unknown", "64")]).ready);
    }
}
