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
    /// The pod of the node's agent.
    pub(crate) pod: String,
    /// The pod of its ktsnd.
    pub(crate) daemon: String,
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
    /// A pod of ktsnd's update that does not run, while the one before serves.
    pub(crate) failing: String,
}

impl State {
    /// Asks the cluster; `None` where KTSN is not installed.
    ///
    /// # Errors
    /// What the API server said.
    pub(crate) fn read(cluster: &dyn Cluster) -> Result<Option<Self>, Refused> {
        let find = |path: &str| {
            cluster.list(&format!("/apis/apps/v1/{path}?labelSelector=app.kubernetes.io%2Fname%3Dktsn"))
        };
        let sets = find("daemonsets")?;
        let Some(first) = sets.first() else { return Ok(None) };
        let controller = find("deployments")?.into_iter().next();
        let namespace = first["metadata"]["namespace"].as_str().unwrap_or_default().to_owned();
        let pods = cluster.list(&format!(
            "/api/v1/namespaces/{namespace}/pods?labelSelector=app.kubernetes.io%2Fname%3Dktsn%2Capp.kubernetes.io%2Fcomponent%20in%20%28node%2Cdaemon%29"
        ))?;
        let nodes = cluster.list("/api/v1/nodes")?;
        Ok(Some(Self::of(&sets, controller.as_ref(), &pods, &nodes)))
    }

    fn of(sets: &[Value], controller: Option<&Value>, pods: &[Value], nodes: &[Value]) -> Self {
        let (daemons, agents): (Vec<&Value>, Vec<&Value>) =
            pods.iter().partition(|pod| installed::is_daemon(pod));
        // An older chart has ktsnd in the agent's pod.
        let is_split = sets.iter().any(installed::is_daemon);
        let mut states: Vec<NodeState> = agents
            .iter()
            .map(|agent| {
                node_state(agent, if is_split { daemon_of(agent, &daemons) } else { Some(agent) }, nodes)
            })
            .collect();
        states.sort_by(|left, right| left.node.cmp(&right.node));
        let is_down = |name: &str| {
            nodes.iter().any(|node| installed::name(node) == name && !installed::condition(node, "Ready"))
        };
        let down = states.iter().filter(|state| is_down(&state.node)).count() as u64;
        let controllers = controller.and_then(|one| one["status"]["readyReplicas"].as_u64()).unwrap_or(0);
        let failing = daemons.iter().find_map(|pod| Some((installed::name(pod), not_running(pod)?)));
        let unfinished = sets.iter().find_map(|set| unfinished(set, down));
        let mut reason = unfinished.unwrap_or_else(|| match controllers {
            0 => "no ktsn-controller is ready".to_owned(),
            _ => String::new(),
        });
        if let (false, Some((pod, why))) = (reason.is_empty(), &failing) {
            reason.push_str(&format!("; pod {pod}: {why}"));
        }
        let works = states.iter().all(|state| state.ready || is_down(&state.node));
        let metadata = sets.first().map_or(&Value::Null, |set| &set["metadata"]);
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        Self {
            namespace: text(&metadata["namespace"]),
            version: text(&metadata["labels"]["app.kubernetes.io/version"]),
            ready: reason.is_empty() && works && states.iter().any(|state| state.ready),
            nodes: states,
            controllers,
            reason,
            failing: failing.map(|(pod, _)| pod).unwrap_or_default(),
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

/// Why a DaemonSet is not what it is to be, while `down` nodes are not Ready.
fn unfinished(set: &Value, down: u64) -> Option<String> {
    let status = &set["status"];
    let count = |name: &str| status[name].as_u64().unwrap_or(0);
    let (wanted, updated) = (count("desiredNumberScheduled"), count("updatedNumberScheduled"));
    if status["observedGeneration"] != set["metadata"]["generation"] || wanted == 0 {
        return Some(format!("the pods of DaemonSet {} are being made", installed::name(set)));
    }
    (updated + down < wanted)
        .then(|| format!("{updated} of {wanted} nodes have this version of {}", installed::name(set)))
}

/// Why a pod that is to stay does not run: its containers, or that no node takes it.
fn not_running(pod: &Value) -> Option<String> {
    if !pod["metadata"]["deletionTimestamp"].is_null() {
        return None;
    }
    let conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
    let refused = conditions
        .filter(|one| one["type"] == "PodScheduled" && one["status"] == "False")
        .find_map(|one| one["message"].as_str());
    let mut statuses = pod["status"]["containerStatuses"].as_array().into_iter().flatten();
    let ended = statuses.find_map(|status| status["state"]["terminated"]["exitCode"].as_i64());
    waiting(pod)
        .or_else(|| ended.map(|status| format!("ended with status {status}")))
        .or_else(|| refused.map(plain))
}

/// The pod of ktsnd on the agent's node: while one takes over from another, one that is Ready.
fn daemon_of<'p>(agent: &Value, daemons: &[&'p Value]) -> Option<&'p Value> {
    let here = daemons.iter().filter(|pod| pod["spec"]["nodeName"] == agent["spec"]["nodeName"]);
    here.max_by_key(|pod| {
        (pod["metadata"]["deletionTimestamp"].is_null(), installed::condition(pod, "Ready"))
    })
    .copied()
}

fn node_state(agent: &Value, daemon: Option<&Value>, nodes: &[Value]) -> NodeState {
    let name = agent["spec"]["nodeName"].as_str().unwrap_or_default().to_owned();
    let node = nodes.iter().find(|node| installed::name(node) == name).cloned().unwrap_or_default();
    let slots = &node["status"]["allocatable"][installed::RESOURCE];
    let slots = slots.as_str().and_then(|text| text.parse().ok()).unwrap_or(0);
    let prefixes =
        node["metadata"]["annotations"]["ktsn.io/tsn-prefixes"].as_str().unwrap_or_default().to_owned();
    let reason = if !installed::condition(&node, "Ready") {
        "the node is not Ready".to_owned()
    } else if let Some(why) = daemon.and_then(waiting).or_else(|| waiting(agent)) {
        why
    } else if !daemon.is_some_and(|pod| installed::condition(pod, "Ready")) {
        "ktsnd does not run".to_owned()
    } else if !installed::condition(agent, "Ready") {
        "the agent is not ready".to_owned()
    } else if slots == 0 {
        format!("kubelet does not offer {} yet", installed::RESOURCE)
    } else {
        String::new()
    };
    NodeState {
        node: name,
        ready: reason.is_empty(),
        slots,
        prefixes,
        reason,
        pod: installed::name(agent),
        daemon: daemon.map(installed::name).unwrap_or_default(),
    }
}

/// The last lines of a pod's container, for an error.
pub(crate) fn last_words(cluster: &dyn Cluster, namespace: &str, pod: &str, container: &str) -> String {
    let mut said = String::new();
    let path = format!("/api/v1/namespaces/{namespace}/pods/{pod}/log?container={container}&tailLines=3");
    for line in cluster.call(&["get", "--raw", &path], None).unwrap_or_default().lines() {
        said.push_str(&format!("\n    {container}: {}", plain(line)));
    }
    said
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// A DaemonSet of a component.
    fn set(component: &str, updated: u64) -> Value {
        let name = if component == "daemon" { "ktsnd" } else { "ktsn-node" };
        json!({"metadata": {"name": name, "namespace": "kube-system", "generation": 2,
                "labels": {"app.kubernetes.io/version": "0.1.0", "app.kubernetes.io/component": component}},
            "status": {"observedGeneration": 2, "desiredNumberScheduled": 2, "updatedNumberScheduled": updated}})
    }

    fn pod(component: &str, node: &str, status: &Value) -> Value {
        json!({"metadata": {"name": format!("{component}-{node}"), "labels": {"app.kubernetes.io/component": component}},
            "spec": {"nodeName": node}, "status": status})
    }

    fn node(name: &str, ready: &str, slots: &str) -> Value {
        json!({"metadata": {"name": name, "annotations": {"ktsn.io/tsn-prefixes": "10.99.1.0/24"}},
            "status": {"conditions": [{"type": "Ready", "status": ready}], "allocatable": {"ktsn.io/tsn": slots}}})
    }

    #[test]
    fn a_node_is_ready_with_its_pods_and_its_slots() {
        let ready = json!({"conditions": [{"type": "Ready", "status": "True"}]});
        let crashes = json!({"containerStatuses": [{"state": {"waiting": {"reason": "CrashLoopBackOff"}}}]});
        let controller = json!({"status": {"readyReplicas": 2}});
        let of = |updated, pods: &[Value], nodes: &[Value]| {
            State::of(&[set("node", 2), set("daemon", updated)], Some(&controller), pods, nodes)
        };
        let agents = [pod("node", "b", &ready), pod("node", "a", &ready)];
        let with = |daemons: &[Value]| [&agents[..], daemons].concat();
        let (a, b) = (pod("daemon", "a", &ready), pod("daemon", "b", &ready));
        let both = [node("a", "True", "64"), node("b", "True", "64")];
        let whole = of(2, &with(&[a.clone(), b.clone()]), &both);
        assert!(whole.ready && whole.line() == "2 of 2 nodes ready, 2 controllers", "{whole:?}");
        assert_eq!((whole.nodes[0].node.as_str(), whole.nodes[0].slots), ("a", 64));
        assert_eq!((whole.nodes[0].pod.as_str(), whole.nodes[0].daemon.as_str()), ("node-a", "daemon-a"));
        for (state, word) in [
            (of(1, &with(&[a.clone(), b.clone()]), &both), "1 of 2 nodes have this version of ktsnd"),
            (
                of(2, &with(&[a.clone(), b.clone()]), &[node("a", "True", "64"), node("b", "True", "0")]),
                "kubelet does not offer",
            ),
            (of(2, &with(std::slice::from_ref(&a)), &both), "ktsnd does not run"),
            (of(2, &with(&[a.clone(), pod("daemon", "b", &crashes)]), &both), "CrashLoopBackOff"),
            (
                of(2, &[a.clone(), b.clone(), agents[0].clone(), pod("node", "a", &json!({}))], &both),
                "agent is not ready",
            ),
        ] {
            let reasons: String =
                state.nodes.iter().map(|node| node.reason.clone()).chain([state.reason.clone()]).collect();
            assert!(!state.ready && reasons.contains(word), "{word}: {state:?}");
        }
        // The reason of an update that fails is shown, though the pod before serves the node; so is that of a pod without a node.
        let mut fails = pod("daemon", "b", &crashes);
        fails["metadata"]["name"] = json!("fails");
        let full = json!({"conditions": [{"type": "PodScheduled", "status": "False", "message": "Insufficient cpu"}]});
        let mut pending = pod("daemon", "", &full);
        pending["metadata"]["name"] = json!("pending");
        let ended = json!({"containerStatuses": [{"state": {"terminated": {"exitCode": 2}}}]});
        for (update, name, word) in [
            (fails, "fails", "CrashLoopBackOff"),
            (pending, "pending", "Insufficient cpu"),
            (pod("daemon", "b", &ended), "daemon-b", "ended with status 2"),
        ] {
            let state = of(1, &with(&[a.clone(), update, b.clone()]), &both);
            assert!(!state.ready && state.nodes.iter().all(|node| node.ready), "{state:?}");
            assert!(state.failing == name && state.reason.contains(word), "{state:?}");
        }
        // A node that is down does not make the others wait.
        let down = [node("a", "True", "64"), node("b", "Unknown", "64")];
        assert!(of(1, &with(&[a.clone(), b.clone()]), &down).ready);
        // Of two the one that ends is not looked at; an older chart has ktsnd in the agent's pod.
        let mut ends = pod("daemon", "a", &ready);
        ends["metadata"]["deletionTimestamp"] = json!("2026-11-27T16:00:00Z");
        ends["metadata"]["name"] = json!("ends");
        for two in [[ends.clone(), a.clone(), b.clone()], [a, ends, b]] {
            assert_eq!(of(2, &with(&two), &both).nodes[0].daemon, "daemon-a");
        }
        let older = State::of(&[set("node", 2)], Some(&controller), &agents, &both);
        assert!(older.ready && older.nodes[0].daemon == "node-a", "{older:?}");
    }
}
