// SPDX-License-Identifier: Apache-2.0
//! What of KTSN is in the cluster. In: the cluster. Out: objects of ours by their labels, nodes, pods that are attached.

use serde_json::Value;

use super::cluster::{Cluster, Refused};

/// Labels that the chart gives each object.
pub(crate) const LABEL: &str = "app.kubernetes.io/name=ktsn";
/// Kinds of the chart's objects: kubectl's name, the path of their list, whether they are in a namespace. In the order of deletion:
/// what works first, what it works by last.
pub(crate) const KINDS: [(&str, &str, bool); 12] = [
    ("daemonset", "apis/apps/v1/daemonsets", true),
    ("deployment", "apis/apps/v1/deployments", true),
    ("service", "api/v1/services", true),
    ("configmap", "api/v1/configmaps", true),
    ("rolebinding", "apis/rbac.authorization.k8s.io/v1/rolebindings", true),
    ("role", "apis/rbac.authorization.k8s.io/v1/roles", true),
    ("clusterrolebinding", "apis/rbac.authorization.k8s.io/v1/clusterrolebindings", false),
    ("clusterrole", "apis/rbac.authorization.k8s.io/v1/clusterroles", false),
    (
        "validatingadmissionpolicybinding",
        "apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings",
        false,
    ),
    ("validatingadmissionpolicy", "apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies", false),
    ("serviceaccount", "api/v1/serviceaccounts", true),
    // A kind of the Prometheus operator: no list where it is not installed.
    ("prometheusrule", "apis/monitoring.coreos.com/v1/prometheusrules", true),
];
/// Annotations of KTSN on Nodes.
pub(crate) const ANNOTATIONS: [&str; 6] = [
    "ktsn.io/vtep",
    "ktsn.io/tsn-prefixes",
    "ktsn.io/schedule-status",
    "ktsn.io/stream-status",
    "ktsn.io/rt-check",
    "ktsn.io/rt-verdict",
];
/// CRDs of the chart.
pub(crate) const CRDS: [&str; 2] = ["gateschedules.ktsn.io", "streams.ktsn.io"];
/// The resource that pods ask for, unless the chart's value says otherwise.
pub(crate) const RESOURCE: &str = "ktsn.io/tsn";

/// An object of ours in the cluster.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub(crate) kind: &'static str,
    pub(crate) name: String,
    pub(crate) namespace: String,
    pub(crate) value: Value,
}

impl Found {
    /// `kind/name`, as kubectl writes it.
    pub(crate) fn shown(&self) -> String {
        format!("{}/{}", self.kind, self.name)
    }
}

/// All objects of the chart, in all namespaces, in the order of [`KINDS`].
///
/// # Errors
/// What the API server said.
pub(crate) fn objects(cluster: &dyn Cluster) -> Result<Vec<Found>, Refused> {
    let ask = |path: &str| {
        cluster.list(&format!("/{path}?labelSelector={}", LABEL.replace('=', "%3D").replace('/', "%2F")))
    };
    let lists = std::thread::scope(|scope| {
        let asked: Vec<_> =
            KINDS.iter().map(|(kind, path, _)| (*kind, scope.spawn(move || ask(path)))).collect();
        let joined = asked.into_iter().map(|(kind, one)| {
            (
                kind,
                one.join().unwrap_or_else(|_| Err(Refused::Other("a thread that asks has died".to_owned()))),
            )
        });
        joined.collect::<Vec<_>>()
    });
    let mut found = Vec::new();
    for (kind, list) in lists {
        for value in list? {
            let field = |name: &str| value["metadata"][name].as_str().unwrap_or_default().to_owned();
            found.push(Found { kind, name: field("name"), namespace: field("namespace"), value });
        }
    }
    Ok(found)
}

/// Whether this is the DaemonSet of ktsnd, or one of its pods.
pub(crate) fn is_daemon(value: &Value) -> bool {
    value["metadata"]["labels"]["app.kubernetes.io/component"] == "daemon"
}

/// The release of Helm that owns one of the objects: its name and namespace.
pub(crate) fn helm_release(objects: &[Found]) -> Option<(String, String)> {
    objects.iter().find_map(|object| {
        let annotations = &object.value["metadata"]["annotations"];
        let field =
            |name: &str| annotations[format!("meta.helm.sh/release-{name}")].as_str().map(str::to_owned);
        Some((field("name")?, field("namespace")?))
    })
}

/// The version of the chart that is installed.
pub(crate) fn version(objects: &[Found]) -> Option<String> {
    let label = |object: &Found| {
        object.value["metadata"]["labels"]["app.kubernetes.io/version"].as_str().map(str::to_owned)
    };
    objects.iter().find_map(label)
}

/// A pod that KTSN serves, or that waits for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Attached {
    pub(crate) name: String,
    pub(crate) node: String,
}

/// Pods that ask for `resource`, or that have an interface of one of the `networks` (`namespace/name`), and that have not ended.
pub(crate) fn attached(pods: &[Value], resource: &str, networks: &[String]) -> Vec<Attached> {
    let mut found: Vec<Attached> = pods
        .iter()
        .filter(|pod| !matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed")))
        .filter(|pod| asks_for(pod, resource) || has_network(pod, networks))
        .map(|pod| {
            let field = |of: &str, name: &str| pod[of][name].as_str().unwrap_or_default().to_owned();
            Attached {
                name: format!("{}/{}", field("metadata", "namespace"), field("metadata", "name")),
                node: field("spec", "nodeName"),
            }
        })
        .collect();
    found.sort_by(|left, right| left.name.cmp(&right.name));
    found
}

fn asks_for(pod: &Value, resource: &str) -> bool {
    let containers = pod["spec"]["containers"].as_array().into_iter().flatten();
    containers.chain(pod["spec"]["initContainers"].as_array().into_iter().flatten()).any(|container| {
        !container["resources"]["limits"][resource].is_null()
            || !container["resources"]["requests"][resource].is_null()
    })
}

fn has_network(pod: &Value, networks: &[String]) -> bool {
    let namespace = pod["metadata"]["namespace"].as_str().unwrap_or_default();
    let asked = pod["metadata"]["annotations"]["k8s.v1.cni.cncf.io/networks"].as_str().unwrap_or_default();
    // Either a list of names, or JSON; the words between quotes are looked at there.
    let is_json = asked.trim_start().starts_with('[');
    let words: Vec<String> = match serde_json::from_str::<Value>(asked) {
        Ok(Value::Array(items)) if is_json => items
            .iter()
            .map(|item| {
                let within = item["namespace"].as_str().unwrap_or(namespace);
                format!("{within}/{}", item["name"].as_str().unwrap_or_default())
            })
            .collect(),
        _ => asked
            .split(',')
            .map(|word| word.split('@').next().unwrap_or_default().trim())
            .map(|word| if word.contains('/') { word.to_owned() } else { format!("{namespace}/{word}") })
            .collect(),
    };
    words.iter().any(|word| networks.contains(word))
}

/// Networks of tsn-cni, as `namespace/name`, from the list of NetworkAttachmentDefinitions.
pub(crate) fn networks(definitions: &[Value]) -> Vec<String> {
    definitions
        .iter()
        .filter(|definition| {
            let config = definition["spec"]["config"].as_str().unwrap_or_default();
            let config: Value = serde_json::from_str(config).unwrap_or_default();
            let chained = config["plugins"].as_array().into_iter().flatten();
            chained.chain([&config]).any(|plugin| plugin["type"] == "tsn-cni")
        })
        .map(|definition| {
            let field = |name: &str| definition["metadata"][name].as_str().unwrap_or_default();
            format!("{}/{}", field("namespace"), field("name"))
        })
        .collect()
}

/// The path of NetworkAttachmentDefinitions.
pub(crate) const DEFINITIONS: &str = "/apis/k8s.cni.cncf.io/v1/network-attachment-definitions";

/// Whether a condition of an object is True.
pub(crate) fn condition(value: &Value, kind: &str) -> bool {
    let conditions = value["status"]["conditions"].as_array().into_iter().flatten();
    conditions.filter(|one| one["type"] == kind).any(|one| one["status"] == "True")
}

/// The name of an object.
pub(crate) fn name(value: &Value) -> String {
    value["metadata"]["name"].as_str().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// The recorded manifests are what the chart renders (scripts/manifests.sh).
    #[test]
    fn each_kind_of_the_chart_is_known_to_uninstall() {
        let deploy = concat!(env!("CARGO_MANIFEST_DIR"), "/../k8s/deploy");
        let mut found = std::collections::BTreeSet::new();
        for name in ["manifests/ktsn.yaml", "check/variants/monitoring.yaml"] {
            let text = std::fs::read_to_string(format!("{deploy}/{name}")).unwrap();
            found.extend(text.lines().filter_map(|line| line.strip_prefix("kind: ")).map(str::to_lowercase));
        }
        assert!(found.remove("customresourcedefinition"));
        let known: std::collections::BTreeSet<_> =
            KINDS.iter().map(|(kind, ..)| (*kind).to_owned()).collect();
        assert_eq!(found, known);
    }

    #[test]
    fn pods_are_attached_by_resource_or_network() {
        let pod = |name: &str, networks: &str, slot: bool, phase: &str| {
            let limits = if slot { json!({"ktsn.io/tsn": "1"}) } else { json!({}) };
            json!({"metadata": {"namespace": "plant", "name": name, "annotations": {"k8s.v1.cni.cncf.io/networks": networks}},
                   "spec": {"nodeName": "n1", "containers": [{"resources": {"limits": limits}}]}, "status": {"phase": phase}})
        };
        let pods = [
            pod("slot", "", true, "Running"),
            pod("name", "other, tsn@net1", false, "Pending"),
            pod("json", r#"[{"name": "tsn", "namespace": "plant"}]"#, false, "Running"),
            pod("else", "default/tsn", false, "Running"),
            pod("ended", "tsn", true, "Succeeded"),
        ];
        let definitions = [
            json!({"metadata": {"namespace": "plant", "name": "tsn"}, "spec": {"config": r#"{"type": "tsn-cni"}"#}}),
            json!({"metadata": {"namespace": "plant", "name": "chain"}, "spec": {"config": r#"{"plugins": [{"type": "tsn-cni"}]}"#}}),
            json!({"metadata": {"namespace": "default", "name": "tsn"}, "spec": {"config": r#"{"type": "bridge"}"#}}),
        ];
        let networks = networks(&definitions);
        assert_eq!(networks, ["plant/tsn", "plant/chain"]);
        let names: Vec<_> = attached(&pods, RESOURCE, &networks).into_iter().map(|pod| pod.name).collect();
        assert_eq!(names, ["plant/json", "plant/name", "plant/slot"]);
    }
}
