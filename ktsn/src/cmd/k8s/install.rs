// SPDX-License-Identifier: Apache-2.0
//! `ktsn k8s install`: looks whether the cluster is fit, then makes it what the chart says, and waits until all nodes are ready.
//!
//! In: the chart's values. Out: a line for each thing that was looked at or done. A cluster with faults is not changed.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::{Value, json};

use super::{Failed, Images, Target, agent_command, architecture, seconds};
use crate::k8s::chart::{Chart, Object, Renderer, text_of};
use crate::k8s::cluster::{Cluster, Refused};
use crate::k8s::installed::{self, KINDS};
use crate::k8s::node_pods::Task;
use crate::k8s::preflight::{self, Facts, Wish};
use crate::k8s::ready::{State, last_words};

const EXAMPLES: &str = "\
Examples:
  ktsn k8s install                                     images were imported on each node
  ktsn k8s install --registry registry.example/ktsn --cidr 10.99.0.0/16
  ktsn k8s install --set ktsnd.wakeUps=true --values plant.yaml
  ktsn k8s install --dry-run > ktsn.yaml               what would be applied

The values are those of the Helm chart (docs/guide/kubernetes.md). A second run changes what is installed to the given values.";

/// Install KTSN, or change what is installed.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct InstallArgs {
    #[command(flatten)]
    pub(super) target: Target,
    #[command(flatten)]
    images: Images,
    /// Namespace of KTSN's own objects; it must be there.
    #[arg(short, long, default_value = "kube-system")]
    namespace: String,
    /// The TSN network's range, one of IPv4, one of IPv6, or both with a comma [default: the chart's, 10.99.0.0/16].
    #[arg(long, value_name = "PREFIXES")]
    cidr: Option<String>,
    /// A value of the chart.
    #[arg(long, value_name = "NAME=VALUE")]
    set: Vec<String>,
    /// A file with values of the chart, in YAML.
    #[arg(long, value_name = "FILE")]
    values: Vec<String>,
    /// Only look, and print what would be applied.
    #[arg(long)]
    dry_run: bool,
    /// How long to wait for the nodes.
    #[arg(long, value_name = "TIME", default_value = "3m", value_parser = seconds)]
    timeout: Duration,
}

impl InstallArgs {
    /// The chart with the values of the command line.
    pub(super) fn chart(&self, renderer: &dyn Renderer) -> Result<Chart, Failed> {
        let files = self.values.iter().map(|file| format!("--values={file}"));
        let words: Vec<_> = files.chain(self.set.iter().map(|text| format!("--set={text}"))).collect();
        Ok(renderer.chart(&words, None)?)
    }
}

/// Installs.
pub(super) fn run(
    cluster: &dyn Cluster,
    renderer: &dyn Renderer,
    chart: Chart,
    args: &InstallArgs,
) -> Result<(), Failed> {
    let mut values = chart.values;
    for name in ["node", "controller"] {
        let is_default = values["images"][name] == chart.defaults["images"][name];
        if is_default || args.images.registry.is_some() || args.images.tag.is_some() {
            values["images"][name] = json!(args.images.reference(name));
        }
    }
    if let Some(ranges) = &args.cidr {
        values["network"]["cidrs"] = json!(ranges);
    }
    let (facts, nodes) = preflight(cluster, args, &chart.version, &mut values)?;
    let objects = renderer.chart(&[format!("--namespace={}", args.namespace)], Some(&values))?.objects;
    let text = text_of(&objects);
    rights(cluster, &text)?;
    look_at_nodes(cluster, args, &values, &nodes)?;
    if args.dry_run {
        return crate::output::show(&text).map(drop).map_err(Failed::Broken);
    }
    cluster.apply(&text, &[])?;
    eprintln!("  done  {} objects applied in namespace {}", objects.len(), args.namespace);
    prune(cluster, &objects, &facts)?;
    wait(cluster, args.timeout)
}

/// Looks at the API server's words; the nodes that KTSN will run on.
fn preflight(
    cluster: &dyn Cluster,
    args: &InstallArgs,
    version: &str,
    values: &mut Value,
) -> Result<(Facts, Vec<String>), Failed> {
    let facts = Facts::read(cluster)?;
    let ranges = values["network"]["cidrs"].as_str().unwrap_or_default().to_owned();
    let wish = Wish {
        namespace: &args.namespace,
        ranges: &ranges,
        architecture: architecture(),
        selector: &values["nodeSelector"],
        version,
    };
    let verdict = preflight::judge(&facts, &wish);
    for note in &verdict.notes {
        eprintln!("  note  {note}");
    }
    report(&verdict.faults)?;
    if verdict.is_mixed {
        for selector in ["/nodeSelector", "/controller/nodeSelector"] {
            if let Some(slot) = values.pointer_mut(selector) {
                slot["kubernetes.io/os"] = json!("linux");
                slot["kubernetes.io/arch"] = json!(architecture());
            }
        }
    }
    eprintln!(
        "  ok    Kubernetes {}, Multus, the range {ranges}; {} nodes",
        facts.version,
        verdict.nodes.len()
    );
    Ok((facts, verdict.nodes))
}

/// Shows faults; an error if there are any.
fn report(faults: &[String]) -> Result<(), Failed> {
    for fault in faults {
        eprintln!("  FAULT {fault}");
    }
    match faults.len() {
        0 => Ok(()),
        count => {
            Err(Failed::Broken(format!("{count} faults: mend them and run this again; nothing was changed")))
        }
    }
}

/// Whether the user may make all objects, and the API server would take them.
fn rights(cluster: &dyn Cluster, text: &str) -> Result<(), Failed> {
    match cluster.apply(text, &["--dry-run=server"]) {
        Ok(_) => {
            eprintln!("  ok    the API server takes all objects from this user");
            Ok(())
        }
        Err(Refused::Forbidden(said)) => {
            let faults: Vec<String> =
                said.lines().map(|line| line.trim_start_matches("Error from server ").to_owned()).collect();
            report(&faults)
                .map_err(|_| Failed::Broken("this user lacks rights: use an administrator's kubeconfig or --context; nothing was changed".to_owned()))
        }
        Err(refused) => Err(refused.into()),
    }
}

/// The kernel's features on each node, by a short pod there: the node's image is needed for that too.
fn look_at_nodes(
    cluster: &dyn Cluster,
    args: &InstallArgs,
    values: &Value,
    nodes: &[String],
) -> Result<(), Failed> {
    let word = |of: &Value| of.as_str().unwrap_or_default().to_owned();
    let host = &values["host"];
    let (image, pull_policy) = (word(&values["images"]["node"]), word(&values["images"]["pullPolicy"]));
    let task = Task {
        name: "ktsn-probe",
        namespace: &args.namespace,
        image: &image,
        pull_policy: &pull_policy,
        command: agent_command(
            "probe",
            host,
            &[
                format!("--tsn-cidr={}", word(&values["network"]["cidrs"])),
                format!("--vxlan-device={}", word(&values["network"]["vxlan"]["device"])),
            ],
        ),
        mounts: vec![word(&host["cniBinDir"]), format!("{}/device-plugins", word(&host["kubeletDir"]))],
        capabilities: &["NET_ADMIN", "NET_RAW", "SYS_ADMIN", "BPF", "PERFMON", "SYS_NICE", "IPC_LOCK"],
    };
    let answers = task.run(cluster, nodes, args.timeout)?;
    let mut faults = Vec::new();
    for (node, answer) in answers {
        match answer {
            Ok(said) => {
                for note in said.lines().filter_map(|line| line.strip_prefix("note: ")) {
                    eprintln!("  note  node {node}: {note}");
                }
                let found = said.lines().filter_map(|line| line.strip_prefix("fault: "));
                faults.extend(found.map(|fault| format!("node {node}: {fault}")));
            }
            Err(why) => faults.push(format!("node {node} could not be looked at: {why}")),
        }
    }
    report(&faults)?;
    eprintln!("  ok    the nodes' kernels have what KTSN needs, and the image {image}");
    Ok(())
}

/// Deletes what an older chart made and this one does not have.
fn prune(cluster: &dyn Cluster, objects: &[Object], facts: &Facts) -> Result<(), Failed> {
    let kept: BTreeSet<(String, String)> =
        objects.iter().map(|object| (object.kind().to_lowercase(), object.name().to_owned())).collect();
    for object in &facts.objects {
        let is_ours = KINDS.iter().any(|(kind, _, _)| *kind == object.kind);
        if is_ours && !kept.contains(&(object.kind.to_owned(), object.name.clone())) {
            cluster.delete(
                object.kind,
                &object.name,
                if object.namespace.is_empty() { "default" } else { &object.namespace },
            )?;
            eprintln!("  done  deleted {}, which this version does not have", object.shown());
        }
    }
    Ok(())
}

/// Waits until the installation is ready, and shows each change.
pub(super) fn wait(cluster: &dyn Cluster, patience: Duration) -> Result<(), Failed> {
    let end = Instant::now() + patience;
    let mut shown = String::new();
    loop {
        let state = State::read(cluster)?;
        let Some(state) = state else {
            return Err(Failed::Broken("KTSN is not installed; run `ktsn k8s install`".to_owned()));
        };
        let line = state.line();
        if line != shown {
            eprintln!("  wait  {line}");
            shown = line;
        }
        if state.ready {
            let slots: u64 = state.nodes.iter().map(|node| node.slots).sum();
            eprintln!(
                "  ok    KTSN {} is ready: {slots} slots of {} on {} nodes",
                state.version,
                installed::RESOURCE,
                state.nodes.len()
            );
            return Ok(());
        }
        if Instant::now() > end {
            return Err(Failed::Broken(why(cluster, &state, patience)));
        }
        std::thread::sleep(cluster.pause());
    }
}

fn why(cluster: &dyn Cluster, state: &State, patience: Duration) -> String {
    let mut text = format!("not ready within {} s: {}", patience.as_secs(), state.line());
    for node in state.nodes.iter().filter(|node| !node.ready).take(3) {
        text.push_str(&format!("\n  node {}: {}", node.node, node.reason));
        for (pod, container) in [(&node.pod, "agent"), (&node.daemon, "ktsnd")] {
            if !pod.is_empty() {
                text.push_str(&last_words(cluster, &state.namespace, pod, container));
            }
        }
    }
    if !state.failing.is_empty() {
        text.push_str(&last_words(cluster, &state.namespace, &state.failing, "ktsnd"));
    }
    text.push_str(
        "\n  `ktsn k8s status --wait` waits longer; `ktsn k8s uninstall` takes everything away again",
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::k8s::installed::condition;
    use crate::k8s::recorded::{Recorded, RecordedChart};
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        args: InstallArgs,
    }

    fn args(words: &[&str]) -> InstallArgs {
        Line::try_parse_from(["install", "--timeout", "50ms"].iter().chain(words)).unwrap().args
    }

    const NODES: &str = r#"{"items": [{"metadata": {"name": "n1", "annotations": {"ktsn.io/tsn-prefixes": "10.99.1.0/24"}}, "spec": {},
        "status": {"nodeInfo": {"operatingSystem": "linux", "architecture": "amd64", "kernelVersion": "6.1"},
                   "allocatable": {"ktsn.io/tsn": "64"}, "conditions": [{"type": "Ready", "status": "True"}]}}]}"#;
    const DAEMONS: &str = r#"{"items": [{"metadata": {"namespace": "kube-system", "generation": 1, "name": "ktsn-node"},
        "status": {"observedGeneration": 1, "desiredNumberScheduled": 1, "updatedNumberScheduled": 1}}]}"#;
    const READY: &str = r#"{"items": [{"metadata": {"name": "ktsn-node-x"}, "spec": {"nodeName": "n1"},
        "status": {"readyReplicas": 1, "conditions": [{"type": "Ready", "status": "True"}]}}]}"#;

    /// A fit cluster; `answers` come first.
    fn cluster(answers: &[(&str, Result<&str, &str>)]) -> Recorded {
        let probe = "get --raw /api/v1/namespaces/kube-system/pods?labelSelector=ktsn.io%2Ftask";
        let looked = r#"{"items": [{"spec": {"nodeName": "n1"}, "status": {"containerStatuses": [{"state": {"terminated": {"exitCode": 0, "message": "note: no kernel.config"}}}]}}]}"#;
        let mut all = answers.to_vec();
        let has = |call: &str| answers.iter().any(|(known, _)| *known == call);
        for (call, answer) in [
            ("get --raw /version", r#"{"gitVersion": "v1.34.4"}"#),
            ("get --raw /apis", r#"{"groups": [{"name": "k8s.cni.cncf.io"}], "items": []}"#),
            ("get --raw /api/v1", r#"{"items": []}"#),
            ("get --raw /api/v1/nodes", NODES),
            ("get --raw /apis/apps/v1/daemonsets", r#"{"items": []}"#),
            ("get --raw /apis/apps/v1/daemonsets", DAEMONS),
            ("get --raw /apis/apps/v1/deployments", READY),
            ("get --raw /api/v1/namespaces/kube-system/pods?labelSelector=app", READY),
            (probe, r#"{"items": []}"#),
            (probe, looked),
            ("apply", ""),
            ("delete", ""),
        ] {
            if !has(call) {
                all.push((call, Ok(answer)));
            }
        }
        Recorded::new(&all)
    }

    fn installed(cluster: &Recorded, words: &[&str]) -> Result<(), Failed> {
        let args = args(words);
        run(cluster, &RecordedChart, args.chart(&RecordedChart).unwrap(), &args)
    }

    #[test]
    fn a_fit_cluster_is_looked_at_then_changed_then_waited_for() {
        let cluster = cluster(&[]);
        installed(&cluster, &["--registry", "r.example", "--tag", "1"]).unwrap();
        let applies: Vec<String> =
            cluster.calls().into_iter().filter(|call| call.starts_with("apply")).collect();
        assert_eq!(applies.len(), 3, "{applies:?}");
        assert!(applies[0].ends_with("--dry-run=server"), "{applies:?}");
        let inputs = cluster.inputs();
        assert!(
            inputs[1].contains("ktsn-probe-0") && inputs[1].contains("r.example/ktsn-node:1"),
            "{}",
            inputs[1]
        );
        assert!(
            inputs[2].contains(r#""controller":"r.example/ktsn-controller:1""#)
                && inputs[2].contains("--namespace=kube-system"),
            "{}",
            inputs[2]
        );
        assert_eq!(inputs[0], inputs[2]);
        assert!(condition(&serde_json::from_str::<Value>(READY).unwrap()["items"][0], "Ready"));
    }

    #[test]
    fn a_cluster_with_a_fault_is_not_changed() {
        let fault = r#"{"items": [{"spec": {"nodeName": "n1"}, "status": {"containerStatuses": [{"state": {"terminated": {"exitCode": 0, "message": "fault: no vxlan"}}}]}}]}"#;
        let probe = "get --raw /api/v1/namespaces/kube-system/pods?labelSelector=ktsn.io%2Ftask";
        for (answers, words, expected) in [
            (vec![("get --raw /apis", Ok(r#"{"groups": []}"#))], vec![], "1 faults"),
            (vec![], vec!["--cidr", "10.0.0.0/40"], "1 faults"),
            (
                vec![(
                    "apply",
                    Err("Error from server (Forbidden): clusterroles is forbidden: User \"u\" cannot patch"),
                )],
                vec![],
                "lacks rights",
            ),
            (vec![(probe, Ok(r#"{"items": []}"#)), (probe, Ok(fault))], vec![], "1 faults"),
        ] {
            let cluster = cluster(&answers);
            let Err(Failed::Broken(text)) = installed(&cluster, &words) else { panic!("{expected}") };
            assert!(text.contains(expected) && text.contains("nothing was changed"), "{text}");
            let changed = cluster
                .calls()
                .into_iter()
                .filter(|call| call.starts_with("apply") && !call.contains("dry-run"))
                .count();
            // The short pods alone.
            assert!(
                changed <= usize::from(answers.iter().any(|(call, _)| *call == probe)),
                "{:?}",
                cluster.calls()
            );
        }
    }

    #[test]
    fn what_does_not_become_ready_is_explained() {
        let pods = r#"{"items": [{"metadata": {"name": "ktsn-node-x"}, "spec": {"nodeName": "n1"},
            "status": {"containerStatuses": [{"image": "i", "state": {"waiting": {"reason": "ErrImageNeverPull"}}}]}}]}"#;
        let cluster =
            cluster(&[("get --raw /api/v1/namespaces/kube-system/pods?labelSelector=app", Ok(pods))]);
        let Err(Failed::Broken(text)) = installed(&cluster, &[]) else { panic!("ready") };
        assert!(
            ["not ready within", "node n1", "ErrImageNeverPull", "--registry", "uninstall"]
                .iter()
                .all(|word| text.contains(word)),
            "{text}"
        );
    }
}
