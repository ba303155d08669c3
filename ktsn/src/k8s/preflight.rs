// SPDX-License-Identifier: Apache-2.0
//! Whether a cluster is fit for KTSN, before anything is changed.
//!
//! In: what the API server says of itself, its nodes and what is installed. Out: faults, each with what to do; notes; the nodes that
//! KTSN will run on, and those that it leaves out. Pure, but for [`Facts::read`].

use serde_json::Value;

use super::cluster::{Cluster, Refused};
use super::installed::{self, Found};
use super::prefix::Prefix;

/// Oldest Kubernetes: (major, minor).
const OLDEST: (u64, u64) = (1, 31);
/// Oldest Linux.
const OLDEST_KERNEL: (u64, u64) = (5, 15);

/// What was asked of the cluster.
#[derive(Clone, Debug, Default)]
pub(crate) struct Facts {
    pub(crate) version: String,
    /// API groups that the server has.
    pub(crate) groups: Vec<String>,
    pub(crate) nodes: Vec<Value>,
    pub(crate) objects: Vec<Found>,
    /// Ranges of the Services' addresses, or at least one address.
    pub(crate) services: Vec<String>,
}

impl Facts {
    /// Asks the cluster.
    ///
    /// # Errors
    /// What the API server or kubectl said.
    pub(crate) fn read(cluster: &dyn Cluster) -> Result<Self, Refused> {
        let version = cluster.get("/version")?["gitVersion"].as_str().unwrap_or_default().to_owned();
        let groups = cluster.get("/apis")?["groups"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|group| group["name"].as_str().map(str::to_owned))
            .collect();
        let mut services: Vec<String> = cluster
            .list("/apis/networking.k8s.io/v1/servicecidrs")
            .unwrap_or_default()
            .iter()
            .flat_map(|range| range["spec"]["cidrs"].as_array().cloned().unwrap_or_default())
            .filter_map(|range| range.as_str().map(str::to_owned))
            .collect();
        if services.is_empty() {
            let api = cluster.get("/api/v1/namespaces/default/services/kubernetes").unwrap_or_default();
            services.extend(api["spec"]["clusterIP"].as_str().map(str::to_owned));
        }
        Ok(Self {
            version,
            groups,
            nodes: cluster.list("/api/v1/nodes")?,
            objects: installed::objects(cluster)?,
            services,
        })
    }
}

/// What is asked for.
#[derive(Clone, Debug)]
pub(crate) struct Wish<'w> {
    pub(crate) namespace: &'w str,
    /// `network.cidrs` of the chart.
    pub(crate) ranges: &'w str,
    /// The images' architecture, as Kubernetes calls it.
    pub(crate) architecture: &'w str,
    /// The chart's `nodeSelector`.
    pub(crate) selector: &'w Value,
    /// The chart's version.
    pub(crate) version: &'w str,
}

/// What follows from the facts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Verdict {
    /// What must be mended first: what is wrong, and what to do.
    pub(crate) faults: Vec<String>,
    pub(crate) notes: Vec<String>,
    /// Nodes for KTSN, Ready ones.
    pub(crate) nodes: Vec<String>,
    /// Nodes of another architecture or system are there: the chart needs a node selector.
    pub(crate) is_mixed: bool,
}

/// Judges the facts.
pub(crate) fn judge(facts: &Facts, wish: &Wish<'_>) -> Verdict {
    let mut verdict = Verdict::default();
    server(facts, &mut verdict);
    nodes(facts, wish, &mut verdict);
    ranges(facts, wish, &mut verdict);
    earlier(facts, wish, &mut verdict);
    verdict
}

/// The two first numbers of a version.
fn numbers(version: &str) -> Option<(u64, u64)> {
    let mut numbers = version.trim_start_matches('v').split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

fn server(facts: &Facts, verdict: &mut Verdict) {
    if numbers(&facts.version).is_some_and(|version| version < OLDEST) {
        verdict.faults.push(format!(
            "Kubernetes {}: expected {}.{} or newer; upgrade the control plane",
            facts.version, OLDEST.0, OLDEST.1
        ));
    }
    if !facts.groups.iter().any(|group| group == "k8s.cni.cncf.io") {
        verdict.faults.push(
            "Multus is missing (no API group k8s.cni.cncf.io): pods get a second network by it; install it \
             (https://github.com/k8snetworkplumbingwg/multus-cni, deployments/multus-daemonset-thick.yml)"
                .to_owned(),
        );
    }
}

fn nodes(facts: &Facts, wish: &Wish<'_>, verdict: &mut Verdict) {
    for node in &facts.nodes {
        let (name, info) = (installed::name(node), &node["status"]["nodeInfo"]);
        let field = |field: &str| info[field].as_str().unwrap_or_default();
        let (system, architecture) = (field("operatingSystem"), field("architecture"));
        if (system, architecture) != ("linux", wish.architecture) {
            verdict.is_mixed = true;
            verdict.notes.push(format!(
                "node {name} is skipped: it is {system}/{architecture}, the images are linux/{}",
                wish.architecture
            ));
            continue;
        }
        if !is_selected(node, wish.selector) {
            verdict.notes.push(format!("node {name} is skipped: nodeSelector leaves it out"));
            continue;
        }
        if numbers(field("kernelVersion")).is_some_and(|kernel| kernel < OLDEST_KERNEL) {
            verdict.faults.push(format!(
                "node {name}: Linux {}: expected {}.{} or newer; upgrade it, or leave the node out (--set nodeSelector.LABEL=VALUE)",
                field("kernelVersion"),
                OLDEST_KERNEL.0,
                OLDEST_KERNEL.1
            ));
        } else if installed::condition(node, "DiskPressure") {
            verdict.faults.push(format!(
                "node {name}: its disk is full (DiskPressure), the kubelet evicts pods there: free space (`crictl rmi --prune`, \
                 `journalctl --vacuum-size=200M`), or leave the node out (--set nodeSelector.LABEL=VALUE)"
            ));
        } else if installed::condition(node, "Ready") {
            verdict.nodes.push(name);
        } else {
            verdict.notes.push(format!("node {name} is not Ready: it is not waited for"));
        }
    }
    if verdict.nodes.is_empty() && verdict.faults.is_empty() {
        verdict.faults.push(format!(
            "no node is Ready and linux/{}: look at `kubectl get nodes -o wide`",
            wish.architecture
        ));
    }
}

fn is_selected(node: &Value, selector: &Value) -> bool {
    let labels = &node["metadata"]["labels"];
    selector.as_object().into_iter().flatten().all(|(key, value)| labels[key] == *value)
}

fn ranges(facts: &Facts, wish: &Wish<'_>, verdict: &mut Verdict) {
    let mut taken: Vec<(String, String)> =
        facts.services.iter().map(|range| ("the Services' range".to_owned(), range.clone())).collect();
    for node in &facts.nodes {
        let name = installed::name(node);
        let pods = node["spec"]["podCIDRs"].as_array().into_iter().flatten().filter_map(Value::as_str);
        taken.extend(pods.map(|range| (format!("the pod range of node {name}"), range.to_owned())));
        let addresses = node["status"]["addresses"].as_array().into_iter().flatten();
        let addresses = addresses.filter_map(|one| one["address"].as_str());
        taken.extend(addresses.map(|address| (format!("an address of node {name}"), address.to_owned())));
    }
    for asked in wish.ranges.split(',') {
        let range = match Prefix::read(asked.trim()) {
            Ok(range) => range,
            Err(fault) => {
                verdict.faults.push(format!("network.cidrs: {fault}"));
                continue;
            }
        };
        // A node's address may be a name.
        let meets =
            taken.iter().find(|(_, other)| Prefix::read(other).is_ok_and(|other| other.overlaps(range)));
        if let Some((what, other)) = meets {
            verdict.faults.push(format!(
                "the range {asked} overlaps {what} ({other}); choose one that nothing in the cluster uses: --cidr 10.99.0.0/16"
            ));
        }
    }
}

/// Who else applied an older chart's DaemonSet, which has ktsnd in the agent's pod: a server-side apply takes away only what is its own.
fn other_owner(set: &Value) -> Option<String> {
    let managers = set["metadata"]["managedFields"].as_array()?;
    let other = managers.iter().find(|one| {
        let owned = &one["fieldsV1"]["f:spec"]["f:template"]["f:spec"]["f:containers"];
        one["manager"] != "ktsn" && !owned["k:{\"name\":\"ktsnd\"}"].is_null()
    })?;
    other["manager"].as_str().map(str::to_owned)
}

fn earlier(facts: &Facts, wish: &Wish<'_>, verdict: &mut Verdict) {
    if let Some((name, namespace)) = installed::helm_release(&facts.objects) {
        verdict.faults.push(format!(
            "Helm's release {name} in namespace {namespace} owns KTSN here: use `helm upgrade {name}`, or `helm uninstall {name}` first"
        ));
        return;
    }
    let daemons = facts
        .objects
        .iter()
        .find(|object| object.kind == "daemonset" && !installed::is_daemon(&object.value));
    if let Some(manager) = daemons.and_then(|object| other_owner(&object.value)) {
        verdict.faults.push(format!(
            "{manager} owns ktsnd's container in DaemonSet ktsn-node, so it would stay there: `kubectl delete daemonset ktsn-node -n {}` \
             first; frames stop until the new pods run",
            wish.namespace
        ));
    }
    let elsewhere = facts
        .objects
        .iter()
        .find(|object| !object.namespace.is_empty() && object.namespace != wish.namespace);
    if let Some(object) = elsewhere {
        verdict.faults.push(format!(
            "KTSN is in namespace {} already ({}): give -n {}, or run `ktsn k8s uninstall` first",
            object.namespace,
            object.shown(),
            object.namespace
        ));
    }
    let (Some(old), new) = (installed::version(&facts.objects), wish.version) else { return };
    if numbers(&old) > numbers(new) {
        verdict.faults.push(format!(
            "chart {old} is installed, and this ktsn has {new}: use a ktsn of version {old} or newer"
        ));
    } else if daemons.is_none() {
        verdict.notes.push(format!(
            "{} objects of an unfinished installation are there: they are completed",
            facts.objects.len()
        ));
    } else if old == new {
        verdict.notes.push(format!("chart {old} is installed: its values become the given ones"));
    } else {
        verdict.notes.push(format!("chart {old} is installed: it becomes {new}, one node after the other"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn node(name: &str, architecture: &str, kernel: &str) -> Value {
        json!({"metadata": {"name": name, "labels": {"line": "1"}}, "spec": {"podCIDRs": ["10.244.1.0/24"]},
            "status": {"nodeInfo": {"operatingSystem": "linux", "architecture": architecture, "kernelVersion": kernel},
                       "addresses": [{"type": "InternalIP", "address": "192.168.77.11"}, {"type": "Hostname", "address": name}],
                       "conditions": [{"type": "Ready", "status": "True"}]}})
    }

    fn facts() -> Facts {
        Facts {
            version: "v1.34.4".to_owned(),
            groups: vec!["apps".to_owned(), "k8s.cni.cncf.io".to_owned()],
            nodes: vec![node("node1", "amd64", "6.1.0-18-amd64"), node("node2", "amd64", "5.15.0")],
            objects: Vec::new(),
            services: vec!["10.96.0.0/16".to_owned()],
        }
    }

    fn object(kind: &'static str, namespace: &str, metadata: &Value) -> Found {
        Found {
            kind,
            name: "ktsn-node".to_owned(),
            namespace: namespace.to_owned(),
            value: json!({"metadata": metadata}),
        }
    }

    fn judged(facts: &Facts, ranges: &str) -> Verdict {
        let selector = json!({});
        let wish = Wish {
            namespace: "kube-system",
            ranges,
            architecture: "amd64",
            selector: &selector,
            version: "0.1.0",
        };
        judge(facts, &wish)
    }

    #[test]
    fn a_fit_cluster_has_no_fault() {
        let verdict = judged(&facts(), "10.99.0.0/16,fd99::/48");
        assert_eq!(
            verdict,
            Verdict { nodes: vec!["node1".to_owned(), "node2".to_owned()], ..Verdict::default() }
        );
    }

    #[test]
    fn each_fault_says_what_to_do() {
        type Change = fn(&mut Facts);
        let cases: [(Change, &str, &[&str]); 12] = [
            (
                |f| f.version = "v1.30.2+k3s1".to_owned(),
                "10.99.0.0/16",
                &["Kubernetes v1.30.2", "1.31", "upgrade"],
            ),
            (|f| f.groups.clear(), "10.99.0.0/16", &["Multus is missing", "install"]),
            (
                |f| f.nodes[1] = node("old", "amd64", "5.10.0-28-amd64"),
                "10.99.0.0/16",
                &["node old", "5.15", "nodeSelector"],
            ),
            (
                |f| {
                    f.nodes[1]["status"]["conditions"] = json!([{"type": "DiskPressure", "status": "True"},
                                                                {"type": "Ready", "status": "True"}]);
                },
                "10.99.0.0/16",
                &["node node2: its disk is full", "crictl rmi --prune", "nodeSelector"],
            ),
            (|_| (), "10.96.128.0/17", &["the Services' range (10.96.0.0/16)", "--cidr"]),
            (|_| (), "10.244.0.0/16", &["the pod range of node node1", "--cidr"]),
            (|_| (), "192.168.0.0/16", &["an address of node node1 (192.168.77.11)", "--cidr"]),
            (|_| (), "10.99.0.0", &[]),
            (|_| (), "10.99.0.0/x", &["expected a prefix"]),
            (|f| f.nodes.clear(), "10.99.0.0/16", &["no node is Ready", "kubectl get nodes"]),
            (
                |f| {
                    f.objects = vec![object(
                        "daemonset",
                        "kube-system",
                        &json!({"annotations": {"meta.helm.sh/release-name": "tsn", "meta.helm.sh/release-namespace": "plant"}}),
                    )];
                },
                "10.99.0.0/16",
                &["Helm's release tsn in namespace plant", "helm upgrade tsn"],
            ),
            (
                |f| f.objects = vec![object("daemonset", "plant", &json!({}))],
                "10.99.0.0/16",
                &["namespace plant already", "-n plant"],
            ),
        ];
        for (change, ranges, words) in cases {
            let mut facts = facts();
            change(&mut facts);
            let faults = judged(&facts, ranges).faults;
            assert_eq!(faults.len(), usize::from(!words.is_empty()), "{words:?}: {faults:?}");
            assert!(words.iter().all(|word| faults[0].contains(word)), "{words:?}: {faults:?}");
        }
    }

    #[test]
    fn nodes_of_another_architecture_are_said_and_skipped() {
        let mut facts = facts();
        facts.nodes.push(node("arm", "arm64", "6.1"));
        facts.nodes[1]["status"]["conditions"][0]["status"] = json!("Unknown");
        let verdict = judged(&facts, "10.99.0.0/16");
        assert!(verdict.faults.is_empty() && verdict.is_mixed, "{verdict:?}");
        assert_eq!(verdict.nodes, ["node1"]);
        assert!(verdict.notes[0].contains("node2 is not Ready"), "{verdict:?}");
        assert!(verdict.notes[1].contains("node arm is skipped: it is linux/arm64"), "{verdict:?}");
    }

    #[test]
    fn a_container_that_another_manager_keeps_is_a_fault() {
        let owns = |manager: &str, container: &str| {
            let owned = json!({format!("k:{{\"name\":\"{container}\"}}"): {}});
            let fields = json!({"f:spec": {"f:template": {"f:spec": {"f:containers": owned}}}});
            object(
                "daemonset",
                "kube-system",
                &json!({"managedFields": [{"manager": manager, "fieldsV1": fields}]}),
            )
        };
        for (object, is_fault) in [
            (owns("kubectl", "ktsnd"), true),
            (owns("ktsn", "ktsnd"), false),
            (owns("kubectl", "agent"), false),
        ] {
            let faults = judged(&Facts { objects: vec![object], ..facts() }, "10.99.0.0/16").faults;
            assert_eq!(
                faults.iter().any(|fault| fault.contains("kubectl delete daemonset ktsn-node")),
                is_fault
            );
        }
    }

    #[test]
    fn what_is_installed_already_is_said() {
        let labelled = |version: &str| json!({"labels": {"app.kubernetes.io/version": version}});
        for (object, note, fault) in [
            (
                object("daemonset", "kube-system", &labelled("0.0.9")),
                "chart 0.0.9 is installed: it becomes",
                "",
            ),
            (object("serviceaccount", "kube-system", &labelled("0.1.0")), "unfinished installation", ""),
            (object("daemonset", "kube-system", &labelled("0.1.0")), "values become the given ones", ""),
            (object("daemonset", "kube-system", &labelled("9.0.0")), "", "use a ktsn of version 9.0.0"),
        ] {
            let verdict = judged(&Facts { objects: vec![object], ..facts() }, "10.99.0.0/16");
            let has = |list: &[String], word: &str| {
                if word.is_empty() { list.is_empty() } else { list[0].contains(word) }
            };
            assert!(has(&verdict.notes, note) && has(&verdict.faults, fault), "{verdict:?}");
        }
    }
}
