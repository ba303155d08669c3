// SPDX-License-Identifier: Apache-2.0
//! `ktsn k8s uninstall`: takes KTSN out of the cluster and off its nodes.
//!
//! In: the cluster. Out: nothing of KTSN: objects, annotations of Nodes, files, devices and packet-filter rules of the nodes; the CRDs,
//! with all GateSchedules and Streams, where asked. While pods are attached it refuses, with their names. It can be run again.

use std::time::Duration;

use clap::Args;
use serde_json::Value;

use super::{Failed, Images, Target, agent_command, architecture, installed_values, seconds};
use crate::k8s::cluster::Cluster;
use crate::k8s::installed::{self, ANNOTATIONS, Attached, CRDS, DEFINITIONS, Found};
use crate::k8s::node_pods::{Task, by_readiness};

const EXAMPLES: &str = "\
Examples:
  ktsn k8s uninstall
  ktsn k8s uninstall --crds            with all GateSchedules and Streams
  ktsn k8s uninstall --force           while pods are attached: they lose their transmit times

With --force the nodes of attached pods keep tsn-cni and its states, so that these pods can end: run it again then.";

/// Take KTSN out of the cluster and off its nodes.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct UninstallArgs {
    #[command(flatten)]
    pub(super) target: Target,
    #[command(flatten)]
    images: Images,
    /// The custom resource definitions too, and so all GateSchedules and Streams.
    #[arg(long)]
    crds: bool,
    /// Even while pods are attached.
    #[arg(long)]
    force: bool,
    /// Namespace of the clearing pods, where KTSN is not installed any more.
    #[arg(short, long, default_value = "kube-system")]
    namespace: String,
    /// How long the clearing of the nodes may take.
    #[arg(long, value_name = "TIME", default_value = "2m", value_parser = seconds)]
    timeout: Duration,
}

/// Removes. `defaults`: the chart's values, for what the installed agent does not say.
pub(super) fn run(cluster: &dyn Cluster, defaults: &Value, args: &UninstallArgs) -> Result<(), Failed> {
    let objects = installed::objects(cluster)?;
    if let Some((name, namespace)) = installed::helm_release(&objects) {
        return Err(Failed::Broken(format!(
            "Helm's release {name} owns KTSN: run `helm uninstall {name} -n {namespace}`, then this again to clear the nodes"
        )));
    }
    // The agent's: its arguments say which directories the nodes have.
    let daemons =
        objects.iter().find(|object| object.kind == "daemonset" && !installed::is_daemon(&object.value));
    let mut values = installed_values(defaults, daemons.map(|found| &found.value));
    if daemons.is_none() || args.images.registry.is_some() || args.images.tag.is_some() {
        values["images"]["node"] = args.images.reference("node").into();
    }
    let attached = attached(cluster, &values)?;
    refuse_attached(&attached, args.force)?;
    let namespace = daemons.map_or_else(|| args.namespace.clone(), |found| found.namespace.clone());
    let works = |object: &Found| matches!(object.kind, "daemonset" | "deployment");
    // The agent's last: a second run reads the nodes' directories of it.
    let is_agent = |object: &Found| daemons.is_some_and(|found| found.name == object.name);
    delete(cluster, &objects, |object| works(object) && !is_agent(object))?;
    delete(cluster, &objects, |object| works(object) && is_agent(object))?;
    let left = clear_nodes(cluster, args, &values, &namespace, attached.is_empty())?;
    clear_annotations(cluster)?;
    delete(cluster, &objects, |object| !works(object))?;
    let has_crds = clear_crds(cluster, args.crds)?;
    for network in installed::networks(&cluster.list(DEFINITIONS)?) {
        eprintln!("  note  the network {network} names tsn-cni: pods that ask for it do not start any more");
    }
    if left.is_empty() {
        eprintln!("  ok    nothing of KTSN is left{}", if has_crds { " but its CRDs (--crds)" } else { "" });
        return Ok(());
    }
    Err(Failed::Broken(format!("something is left: {}; run this again when that is mended", left.join("; "))))
}

/// Pods that would lose their transmit times.
fn attached(cluster: &dyn Cluster, values: &Value) -> Result<Vec<Attached>, Failed> {
    let networks = installed::networks(&cluster.list(DEFINITIONS)?);
    let resource = values["resource"]["name"].as_str().unwrap_or(installed::RESOURCE);
    Ok(installed::attached(&cluster.list("/api/v1/pods")?, resource, &networks))
}

fn refuse_attached(attached: &[Attached], is_forced: bool) -> Result<(), Failed> {
    if attached.is_empty() {
        return Ok(());
    }
    let list: String =
        attached.iter().take(50).map(|pod| format!("\n  {} on {}", pod.name, pod.node)).collect();
    let more =
        if attached.len() > 50 { format!("\n  and {} more", attached.len() - 50) } else { String::new() };
    if is_forced {
        eprintln!("  note  {} pods lose their transmit times:{list}{more}", attached.len());
        return Ok(());
    }
    Err(Failed::Broken(format!(
        "not removed: {} pods are attached:{list}{more}\n  delete them first, or give --force: their timed sends then fail or go to the kernel",
        attached.len()
    )))
}

fn delete(cluster: &dyn Cluster, objects: &[Found], which: impl Fn(&Found) -> bool) -> Result<(), Failed> {
    let mut count = 0;
    for object in objects.iter().filter(|object| which(object)) {
        let namespace = if object.namespace.is_empty() { "default" } else { &object.namespace };
        let words = [
            "delete",
            object.kind,
            &object.name,
            "-n",
            namespace,
            "--ignore-not-found",
            "--cascade=foreground",
            "--timeout=120s",
        ];
        cluster.call(&words, None)?;
        count += 1;
    }
    if count > 0 {
        eprintln!("  done  {count} objects deleted");
    }
    Ok(())
}

/// Clears each node by a short pod; what is left, by node.
fn clear_nodes(
    cluster: &dyn Cluster,
    args: &UninstallArgs,
    values: &Value,
    namespace: &str,
    is_all: bool,
) -> Result<Vec<String>, Failed> {
    let nodes: Vec<Value> = cluster
        .list("/api/v1/nodes")?
        .into_iter()
        .filter(|node| {
            let info = &node["status"]["nodeInfo"];
            info["operatingSystem"] == "linux" && info["architecture"] == architecture()
        })
        .collect();
    let (ready, down) = by_readiness(&nodes);
    let mut left: Vec<String> =
        down.iter().map(|node| format!("node {node} is not Ready and was not cleared")).collect();
    let word = |of: &Value| of.as_str().unwrap_or_default().to_owned();
    let host = &values["host"];
    let parent = |path: &Value| {
        let path = word(path);
        path.rsplit_once('/')
            .map(|(parent, _)| parent.to_owned())
            .filter(|parent| !parent.is_empty())
            .unwrap_or(path)
    };
    let mut mounts = vec![
        parent(&host["runDir"]),
        parent(&host["libDir"]),
        parent(&host["cniStateDir"]),
        "/var/lib/cni".to_owned(),
        word(&host["cniBinDir"]),
        format!("{}/device-plugins", word(&host["kubeletDir"])),
    ];
    mounts.sort();
    mounts.dedup();
    let (image, pull_policy) = (word(&values["images"]["node"]), word(&values["images"]["pullPolicy"]));
    let mut more = vec![
        format!("--vxlan-device={}", word(&values["network"]["vxlan"]["device"])),
        format!("--resource={}", word(&values["resource"]["name"])),
    ];
    // No pod is attached: states of interfaces are left-overs of pods that were lost.
    more.extend(is_all.then(|| "--all".to_owned()));
    let task = Task {
        name: "ktsn-remove",
        namespace,
        image: &image,
        pull_policy: &pull_policy,
        command: agent_command("remove", host, &more),
        mounts,
        capabilities: &["NET_ADMIN", "NET_RAW", "DAC_OVERRIDE"],
    };
    for (node, answer) in task.run(cluster, &ready, args.timeout)? {
        match answer {
            Ok(said) => {
                left.extend(
                    said.lines()
                        .filter_map(|line| line.strip_prefix("left: "))
                        .map(|what| format!("node {node}: {what}")),
                );
            }
            Err(why) => left.push(format!("node {node} was not cleared: {why}")),
        }
    }
    eprintln!("  done  {} nodes cleared", ready.len());
    Ok(left)
}

fn clear_annotations(cluster: &dyn Cluster) -> Result<(), Failed> {
    let nodes = cluster.list("/api/v1/nodes")?;
    let has = |node: &&Value| ANNOTATIONS.iter().any(|key| !node["metadata"]["annotations"][*key].is_null());
    let names: Vec<String> = nodes.iter().filter(has).map(installed::name).collect();
    for some in names.chunks(100) {
        let keys: Vec<String> = ANNOTATIONS.iter().map(|key| format!("{key}-")).collect();
        let mut words = vec!["annotate", "nodes"];
        words.extend(some.iter().map(String::as_str));
        words.extend(keys.iter().map(String::as_str));
        cluster.call(&words, None)?;
    }
    Ok(())
}

/// Deletes the CRDs where asked; whether some stay.
fn clear_crds(cluster: &dyn Cluster, is_asked: bool) -> Result<bool, Failed> {
    if is_asked {
        for name in CRDS {
            cluster.delete("customresourcedefinition", name, "default")?;
        }
        eprintln!("  done  the CRDs, all GateSchedules and all Streams deleted");
        return Ok(false);
    }
    let known = cluster.list("/apis/apiextensions.k8s.io/v1/customresourcedefinitions")?;
    Ok(known.iter().any(|one| CRDS.contains(&installed::name(one).as_str())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::k8s::recorded::{Recorded, defaults};
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        args: UninstallArgs,
    }

    const NODES: &str = r#"{"items": [{"metadata": {"name": "n1", "annotations": {"ktsn.io/vtep": "{}"}},
        "status": {"nodeInfo": {"operatingSystem": "linux", "architecture": "amd64"}, "conditions": [{"type": "Ready", "status": "True"}]}},
        {"metadata": {"name": "n2"}, "status": {"nodeInfo": {"operatingSystem": "linux", "architecture": "amd64"}}}]}"#;
    const DAEMONS: &str = r#"{"items": [{"metadata": {"name": "ktsnd", "namespace": "plant", "labels": {"app.kubernetes.io/component": "daemon"}}},
        {"metadata": {"name": "ktsn-node", "namespace": "plant"}, "spec": {"template": {"spec": {"containers":
        [{"name": "agent", "image": "r/ktsn-node:9", "imagePullPolicy": "Never", "args": ["--run-dir=/run/ktsn"]}]}}}}]}"#;

    fn args(words: &[&str]) -> UninstallArgs {
        Line::try_parse_from(["uninstall"].iter().chain(words)).unwrap().args
    }

    fn cluster(pods: &str, daemons: &str, said: &str) -> Recorded {
        let pod = format!(
            r#"{{"items": [{{"spec": {{"nodeName": "n1"}}, "status": {{"containerStatuses": [{{"state": {{"terminated": {{"exitCode": 0, "message": "{said}"}}}}}}]}}}}]}}"#
        );
        let task = "get --raw /api/v1/namespaces/";
        Recorded::new(&[
            ("get --raw", Ok(r#"{"items": []}"#)),
            ("get --raw /apis/apps/v1/daemonsets", Ok(daemons)),
            ("get --raw /api/v1/pods", Ok(pods)),
            ("get --raw /api/v1/nodes", Ok(NODES)),
            (task, Ok(r#"{"items": []}"#)),
            (task, Ok(&pod)),
            ("apply", Ok("")),
            ("delete", Ok("")),
            ("annotate nodes n1 ktsn.io/vtep-", Ok("")),
        ])
    }

    const PODS: &str = r#"{"items": [{"metadata": {"namespace": "plant", "name": "axis-1"}, "status": {"phase": "Running"},
        "spec": {"nodeName": "n1", "containers": [{"resources": {"limits": {"ktsn.io/tsn": "1"}}}]}}]}"#;
    const NONE: &str = r#"{"items": []}"#;

    #[test]
    fn attached_pods_are_listed_and_keep_ktsn_unless_forced() {
        let refused = cluster(PODS, DAEMONS, "");
        let Err(Failed::Broken(text)) = run(&refused, &defaults(), &args(&[])) else { panic!("removed") };
        assert!(text.contains("\n  plant/axis-1 on n1") && text.contains("--force"), "{text}");
        assert!(
            !refused.calls().iter().any(|call| call.starts_with("delete") || call.starts_with("apply")),
            "{:?}",
            refused.calls()
        );
        let forced = cluster(PODS, DAEMONS, "left: states of 1 interfaces");
        let Err(Failed::Broken(text)) = run(&forced, &defaults(), &args(&["--force"])) else {
            panic!("clean")
        };
        assert!(
            text.contains("node n1: states of 1 interfaces") && text.contains("n2 is not Ready"),
            "{text}"
        );
        let calls = forced.calls();
        let at = |word: &str| {
            calls
                .iter()
                .position(|call| call.starts_with(word))
                .unwrap_or_else(|| panic!("{word}: {calls:?}"))
        };
        assert!(at("delete daemonset ktsn-node -n plant") < at("apply") && at("apply") < at("annotate"));
        assert!(forced.inputs()[0].contains("r/ktsn-node:9"), "{:?}", forced.inputs());
        assert!(!calls.iter().any(|call| call.starts_with("delete customresourcedefinition")), "{calls:?}");
    }

    #[test]
    fn a_second_run_clears_what_the_first_one_left() {
        let cluster = cluster(NONE, NONE, "removed: all");
        let Err(Failed::Broken(text)) = run(&cluster, &defaults(), &args(&["--crds", "--tag", "7"])) else {
            panic!("n2 is not Ready")
        };
        assert!(!text.contains("node n1"), "{text}");
        assert!(cluster.inputs()[0].contains("localhost/ktsn-node:7"), "{:?}", cluster.inputs());
        assert!(
            cluster
                .calls()
                .iter()
                .any(|call| call.starts_with("delete customresourcedefinition streams.ktsn.io"))
        );
    }

    #[test]
    fn a_release_of_helm_is_helms() {
        let daemons = r#"{"items": [{"metadata": {"name": "ktsn-node", "annotations": {"meta.helm.sh/release-name": "tsn", "meta.helm.sh/release-namespace": "kube-system"}}}]}"#;
        let Err(Failed::Broken(text)) = run(&cluster(NONE, daemons, ""), &defaults(), &args(&[])) else {
            panic!("removed")
        };
        assert!(text.contains("helm uninstall tsn -n kube-system"), "{text}");
    }
}
