// SPDX-License-Identifier: Apache-2.0
//! `ktsn k8s connectivity-test`: a real talker and a real listener, on two nodes where there are two.
//!
//! In: a cluster with KTSN. Out: how many datagrams came, how late, and what ktsnd says of them. It makes a namespace of its own and
//! removes it, whatever happens. The talker's policy is `strict`: without ktsnd its sends fail, and are not made by the kernel.

use std::time::{Duration, Instant, SystemTime};

use clap::Args;
use serde_json::{Value, json};

use super::{Failed, Images, Target, seconds};
use crate::k8s::cluster::Cluster;
use crate::k8s::installed;
use crate::k8s::node_pods::waiting;
use crate::k8s::ready::State;
use crate::output::{self, span};

const EXAMPLES: &str = "\
Examples:
  ktsn k8s connectivity-test
  ktsn k8s connectivity-test --count 60000 --nodes worker1,worker2 --json";

/// The port of the listener.
const PORT: u16 = 5000;
/// A datagram each millisecond.
const PERIOD: Duration = Duration::from_millis(1);

/// Send timed datagrams from a pod to a pod, and show how late they were.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct ConnectivityArgs {
    #[command(flatten)]
    pub(super) target: Target,
    #[command(flatten)]
    images: Images,
    /// Datagrams to send, one each millisecond.
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(100..=10_000_000))]
    count: u32,
    /// Talker's and listener's node [default: the first two that are ready].
    #[arg(long, value_name = "A,B", value_delimiter = ',')]
    nodes: Vec<String>,
    /// JSON instead of text.
    #[arg(long)]
    json: bool,
    /// How long the pods may take to start.
    #[arg(long, value_name = "TIME", default_value = "90s", value_parser = seconds)]
    timeout: Duration,
}

/// Sends and shows.
pub(super) fn run(cluster: &dyn Cluster, args: &ConnectivityArgs) -> Result<(), Failed> {
    let state = State::read(cluster)?
        .ok_or_else(|| Failed::Broken("KTSN is not installed; run `ktsn k8s install`".to_owned()))?;
    let (talker, listener) = pair(&state, &args.nodes)?;
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
    let test = Test { cluster, args, state: &state, namespace: format!("ktsn-connectivity-{since}") };
    let found = test.run(&talker, &listener);
    let removed = cluster.delete("namespace", &test.namespace, "default");
    let figures = found?;
    removed?;
    let text = if args.json { format!("{figures:#}\n") } else { text_of(&figures) };
    output::show(&text).map_err(Failed::Broken)?;
    let faults = faults(&figures);
    if faults.is_empty() {
        Ok(())
    } else {
        Err(Failed::Broken(format!("connectivity test: {}", faults.join("; "))))
    }
}

/// The talker's and the listener's node.
fn pair(state: &State, asked: &[String]) -> Result<(String, String), Failed> {
    let ready: Vec<&String> = state.nodes.iter().filter(|node| node.ready).map(|node| &node.node).collect();
    if !matches!(asked.len(), 0 | 2) {
        return Err(Failed::Usage(format!(
            "--nodes {}: expected two nodes, as in --nodes a,b",
            asked.join(",")
        )));
    }
    if let [talker, listener] = asked {
        for node in [talker, listener] {
            if !ready.contains(&node) {
                return Err(Failed::Broken(format!("node {node} is not ready; `ktsn k8s status` says why")));
            }
        }
        return Ok((talker.clone(), listener.clone()));
    }
    match ready.as_slice() {
        [] => Err(Failed::Broken(format!("no node is ready: {}; `ktsn k8s status` says why", state.line()))),
        [only] => {
            eprintln!(
                "  note  one node is ready: talker and listener run there, and no frame passes its uplink"
            );
            Ok(((*only).clone(), (*only).clone()))
        }
        [talker, listener, ..] => Ok(((*talker).clone(), (*listener).clone())),
    }
}

struct Test<'t> {
    cluster: &'t dyn Cluster,
    args: &'t ConnectivityArgs,
    state: &'t State,
    namespace: String,
}

impl Test<'_> {
    fn run(&self, talker: &str, listener: &str) -> Result<Value, Failed> {
        let namespace =
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.namespace}});
        // A frame that a busy node keeps waiting is sent and shown, not dropped.
        let network = json!({"cniVersion": "1.0.0", "name": "tsn", "type": "tsn-cni", "ipam": {"type": "host-local"},
            "late": "send", "overrun_limit": "5s"});
        let network = json!({"apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
            "metadata": {"name": "tsn", "namespace": self.namespace, "annotations": {"k8s.v1.cni.cncf.io/resourceName": installed::RESOURCE}},
            "spec": {"config": network.to_string()}});
        self.cluster.apply(&namespace.to_string(), &[])?;
        let count = self.args.count.to_string();
        let listen = format!("ktsn listen {PORT} --count {count} --timeout 15s --json -");
        let items = [network, self.pod("listener", listener, &listen, false)];
        self.cluster.apply(&json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string(), &[])?;
        let address = self.address("listener")?;
        eprintln!("  ok    the listener on node {listener} has the address {address}");
        let to =
            if address.contains(':') { format!("[{address}]:{PORT}") } else { format!("{address}:{PORT}") };
        let talk = format!("ktsn talk {to} --count {count} --json -");
        self.cluster.apply(&self.pod("talker", talker, &talk, true).to_string(), &[])?;
        let own = self.address("talker")?;
        eprintln!("  ok    the talker on node {talker} has the address {own}; it sends {count} datagrams");
        let patience = PERIOD * self.args.count + Duration::from_secs(30);
        let sent = self.document("talker", patience)?;
        let heard = self.document("listener", Duration::from_secs(30))?;
        let ktsnd = self.ktsnd(talker, &own)?;
        Ok(json!({"talker": talker, "listener": listener, "sent": sent, "heard": heard, "ktsnd": ktsnd}))
    }

    /// A pod that runs one command, and stays until its namespace goes: its attachment's counters are read afterwards.
    fn pod(&self, name: &str, node: &str, command: &str, has_slot: bool) -> Value {
        let limits = if has_slot { json!({installed::RESOURCE: 1}) } else { json!({}) };
        let stay = format!("trap exit TERM; {command}; sleep 86400 & wait");
        json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": self.namespace, "annotations": {"k8s.v1.cni.cncf.io/networks": "tsn"}},
            "spec": {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "automountServiceAccountToken": false,
                "enableServiceLinks": false, "nodeSelector": {"kubernetes.io/hostname": node}, "tolerations": [{"operator": "Exists"}],
                "containers": [{"name": "main", "image": self.args.images.reference("workload"), "imagePullPolicy": "IfNotPresent",
                    "command": ["/bin/busybox", "sh", "-c", stay],
                    "env": [{"name": "KTSN_POLICY", "value": "strict"}],
                    "resources": {"limits": limits},
                    "securityContext": {"allowPrivilegeEscalation": false, "runAsNonRoot": true, "capabilities": {"drop": ["ALL"]},
                                        "seccompProfile": {"type": "RuntimeDefault"}}}]}})
    }

    fn pod_path(&self, name: &str) -> String {
        format!("/api/v1/namespaces/{}/pods/{name}", self.namespace)
    }

    /// The pod's address in the TSN network, once it runs.
    fn address(&self, name: &str) -> Result<String, Failed> {
        let end = Instant::now() + self.args.timeout;
        loop {
            let pod = self.cluster.get(&self.pod_path(name))?;
            let status = &pod["metadata"]["annotations"]["k8s.v1.cni.cncf.io/network-status"];
            let networks: Value = serde_json::from_str(status.as_str().unwrap_or("[]")).unwrap_or_default();
            let own = networks.as_array().into_iter().flatten().find(|one| one["interface"] == "net1");
            let address = own.and_then(|one| one["ips"][0].as_str());
            match (pod["status"]["phase"].as_str(), address) {
                (Some("Running"), Some(address)) => return Ok(address.to_owned()),
                (Some("Failed"), _) => return Err(self.fault(name, "it failed")),
                _ if Instant::now() > end => {
                    let why = waiting(&pod)
                        .unwrap_or_else(|| "it does not run, or has no interface net1".to_owned());
                    return Err(self.fault(name, &why));
                }
                _ => std::thread::sleep(self.cluster.pause()),
            }
        }
    }

    /// Why a pod does not do its work: its last event says more than its state.
    fn fault(&self, name: &str, why: &str) -> Failed {
        let path = format!(
            "/api/v1/namespaces/{}/events?fieldSelector=involvedObject.name%3D{name}",
            self.namespace
        );
        let events = self.cluster.list(&path).unwrap_or_default();
        let warning = events.iter().rev().find(|event| event["type"] == "Warning");
        let event = warning.and_then(|event| event["message"].as_str()).unwrap_or("no event says more");
        Failed::Broken(format!("the pod {name}: {why}: {event}"))
    }

    /// The figures that a pod's command printed.
    fn document(&self, name: &str, patience: Duration) -> Result<Value, Failed> {
        let end = Instant::now() + patience;
        let path = format!("{}/log", self.pod_path(name));
        loop {
            let said = self.cluster.call(&["get", "--raw", &path], None)?;
            let found = said
                .lines()
                .rev()
                .find_map(|line| serde_json::from_str::<Value>(line).ok().filter(Value::is_object));
            if let Some(document) = found {
                return Ok(document);
            }
            if Instant::now() > end {
                return Err(self.fault(
                    name,
                    &format!("no figures within {} s; it said: {}", patience.as_secs(), said.trim()),
                ));
            }
            std::thread::sleep(self.cluster.pause());
        }
    }

    /// What the node's ktsnd counted of the interface with this address.
    fn ktsnd(&self, node: &str, address: &str) -> Result<Value, Failed> {
        let pod = self
            .state
            .nodes
            .iter()
            .find(|state| state.node == node)
            .map(|state| state.daemon.clone())
            .unwrap_or_default();
        let words =
            ["exec", "-n", &self.state.namespace, &pod, "-c", "ktsnd", "--", "ktsn", "status", "--json"];
        let said = self.cluster.call(&words, None)?;
        let status: Value = serde_json::from_str(&said)
            .map_err(|error| Failed::Broken(format!("ktsn status on node {node}: no JSON: {error}")))?;
        let has = |attachment: &Value| {
            let addresses = attachment["addresses"].as_array().into_iter().flatten();
            addresses.filter_map(Value::as_str).any(|one| one.split('/').next() == Some(address))
        };
        let attachments = status["attachments"].as_array().into_iter().flatten();
        let name = attachments.filter(|one| has(one)).map(|one| one["name"].clone()).next();
        let mut statistics = status["statistics"]["attachments"].as_array().into_iter().flatten();
        let own = statistics.find(|one| Some(&one["name"]) == name.as_ref()).cloned();
        own.ok_or_else(|| {
            Failed::Broken(format!("ktsnd on node {node} serves no interface with the address {address}"))
        })
    }
}

fn number(value: &Value) -> i64 {
    value.as_i64().unwrap_or(0)
}

/// What must not be: lost datagrams, early ones, or some that ktsnd did not send.
fn faults(figures: &Value) -> Vec<String> {
    let (sent, heard, ktsnd) = (&figures["sent"], &figures["heard"], &figures["ktsnd"]);
    let (intended, received) =
        (number(&sent["frames_intended"]), number(&heard["frames_received"]) - number(&heard["duplicates"]));
    let mut faults = Vec::new();
    if number(&sent["frames_sent"]) != intended {
        faults.push(format!(
            "{} of {intended} datagrams were sent: {}",
            number(&sent["frames_sent"]),
            sent["errors"]
        ));
    }
    if received != intended {
        faults.push(format!(
            "{} of {intended} datagrams are lost; ktsnd dropped {}",
            intended - received,
            ktsnd["dropped"]
        ));
    }
    if number(&ktsnd["sent"]) < intended {
        faults.push(format!(
            "ktsnd sent {} of {intended}; the others left by the kernel: {}",
            number(&ktsnd["sent"]),
            ktsnd["bypassed"]
        ));
    }
    if number(&heard["latency_ns"]["min"]) < 0 {
        faults.push("datagrams came before their transmit times: the nodes' clocks differ (`chronyc tracking`, ptp4l)".to_owned());
    }
    faults
}

fn text_of(figures: &Value) -> String {
    let (heard, ktsnd) = (&figures["heard"], &figures["ktsnd"]);
    let spans = |of: &Value, names: &[&str]| {
        let one =
            |name: &&str| format!("{} {}", name.replace('_', "."), span(number(&of[*name]).unsigned_abs()));
        names.iter().map(one).collect::<Vec<_>>().join("  ")
    };
    let is_early = number(&heard["latency_ns"]["min"]) < 0;
    let verdict = if faults(figures).is_empty() { "passed" } else { "FAILED" };
    let word = |of: &str| figures[of].as_str().unwrap_or_default().to_owned();
    format!(
        "connectivity test {verdict}: {} of {} datagrams from {} to {}, {} duplicates, {} reordered{}\n  \
         handed over after the transmit time  {}\n  received after the transmit time     {}\n  \
         late {}  overrun {}  dropped {}\n",
        number(&heard["frames_received"]) - number(&heard["duplicates"]),
        number(&figures["sent"]["frames_intended"]),
        word("talker"),
        word("listener"),
        number(&heard["duplicates"]),
        number(&heard["reordered"]),
        if is_early { ", some early" } else { ", 0 early" },
        spans(&ktsnd["transmit_error_ns"], &["p50", "p99", "max"]),
        spans(&heard["latency_ns"], &["p50", "p99", "max"]),
        number(&ktsnd["late"]),
        number(&ktsnd["overrun"]),
        ktsnd["dropped"].as_object().into_iter().flatten().map(|(_, count)| number(count)).sum::<i64>(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::k8s::recorded::Recorded;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        args: ConnectivityArgs,
    }

    fn figures() -> Value {
        json!({"talker": "a", "listener": "b", "sent": {"frames_intended": 100, "frames_sent": 100},
            "heard": {"frames_received": 101, "duplicates": 1, "reordered": 0, "latency_ns": {"min": 900, "p50": 1_500, "p99": 20_000, "max": 1_000_000}},
            "ktsnd": {"sent": 100, "late": 0, "overrun": 2, "dropped": {}, "transmit_error_ns": {"p50": 700, "p99": 2_000, "max": 3_000}}})
    }

    #[test]
    fn figures_are_judged() {
        assert_eq!(faults(&figures()), [] as [String; 0]);
        let text = text_of(&figures());
        assert!(text.starts_with("connectivity test passed: 100 of 100 datagrams from a to b, 1 duplicates, 0 reordered, 0 early\n"), "{text}");
        assert!(
            text.contains("p50 700 ns") && text.contains("max 1.00 ms") && text.contains("overrun 2"),
            "{text}"
        );
        for (path, value, word) in [
            ("/sent/frames_sent", 99, "99 of 100 datagrams were sent"),
            ("/heard/frames_received", 90, "11 of 100 datagrams are lost"),
            ("/ktsnd/sent", 0, "left by the kernel"),
            ("/heard/latency_ns/min", -5, "clocks differ"),
        ] {
            let mut figures = figures();
            *figures.pointer_mut(path).unwrap() = json!(value);
            assert!(faults(&figures)[0].contains(word) && text_of(&figures).contains("FAILED"), "{word}");
        }
    }

    #[test]
    fn the_namespace_is_removed_whatever_happens() {
        let daemons = r#"{"items": [{"metadata": {"namespace": "kube-system", "generation": 1}, "status": {"observedGeneration": 1, "desiredNumberScheduled": 1}}]}"#;
        let pods = r#"{"items": [{"metadata": {"name": "p"}, "spec": {"nodeName": "n"}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}}]}"#;
        let nodes = r#"{"items": [{"metadata": {"name": "n"}, "status": {"conditions": [{"type": "Ready", "status": "True"}], "allocatable": {"ktsn.io/tsn": "4"}}}]}"#;
        let event = r#"{"status": {"phase": "Pending"}, "items": [{"type": "Warning", "message": "tsn-cni: this node's prefixes are not known"}]}"#;
        let cluster = Recorded::new(&[
            ("get --raw /apis/apps/v1/daemonsets", Ok(daemons)),
            ("get --raw /apis/apps/v1/deployments", Ok(r#"{"items": []}"#)),
            ("get --raw /api/v1/namespaces/kube-system/pods", Ok(pods)),
            ("get --raw /api/v1/nodes", Ok(nodes)),
            ("apply", Ok("")),
            // Answers the pod's path and that of its events.
            ("get --raw /api/v1/namespaces/ktsn-connectivity-", Ok(event)),
            ("delete namespace ktsn-connectivity-", Ok("")),
        ]);
        let args = Line::try_parse_from(["test", "--timeout", "10ms"]).unwrap().args;
        let Err(Failed::Broken(text)) = run(&cluster, &args) else { panic!("passed") };
        assert!(text.contains("the pod listener: it does not run"), "{text}");
        assert!(
            cluster.calls().last().unwrap().starts_with("delete namespace ktsn-connectivity-"),
            "{:?}",
            cluster.calls()
        );
        assert!(text.contains("prefixes are not known"), "{text}");
    }
}
