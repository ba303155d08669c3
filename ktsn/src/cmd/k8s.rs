// SPDX-License-Identifier: Apache-2.0
//! `ktsn k8s`: KTSN in a Kubernetes cluster, by the user's kubectl.
//!
//! In: a subcommand. Out: what was done or found. Exit status 0 done; 1 failed, or not ready; 2 wrong usage; 3 no kubectl, no cluster, or
//! no package ktsn-k8s.

mod connectivity;
mod install;
mod status;
mod uninstall;

use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use crate::k8s::chart::{Fault, Program, Renderer as _};
use crate::k8s::cluster::{Cluster, Kubectl, Refused};

const EXAMPLES: &str = "\
Examples:
  ktsn k8s install --registry registry.example/ktsn --cidr 10.99.0.0/16
  ktsn k8s connectivity-test
  ktsn k8s status --wait
  ktsn k8s uninstall --crds

Exit status: 0 done; 1 failed, or not ready; 2 wrong usage; 3 no kubectl, no cluster, or no package ktsn-k8s.";

/// Install KTSN in a Kubernetes cluster, look at it, test it, remove it.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct K8sArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Clone, Debug)]
enum Command {
    Install(install::InstallArgs),
    Status(status::StatusArgs),
    ConnectivityTest(connectivity::ConnectivityArgs),
    Uninstall(uninstall::UninstallArgs),
}

/// Does what the subcommand says.
pub(crate) fn run(args: &K8sArgs) -> ExitCode {
    let done = match &args.command {
        Command::Install(args) => install(args),
        Command::Status(args) => args.target.open().and_then(|cluster| status::run(&cluster, args)),
        Command::ConnectivityTest(args) => {
            args.target.open().and_then(|cluster| connectivity::run(&cluster, args))
        }
        Command::Uninstall(args) => uninstall(args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failed) => {
            let (status, text) = match failed {
                Failed::Broken(text) => (1, text),
                Failed::Usage(text) => (2, text),
                Failed::NotPossible(text) => (3, format!("not possible here: {text}")),
            };
            eprintln!("ktsn k8s: {text}");
            ExitCode::from(status)
        }
    }
}

/// Values are read before the cluster is asked.
fn install(args: &install::InstallArgs) -> Result<(), Failed> {
    let renderer = Program::find()?;
    let chart = args.chart(&renderer)?;
    install::run(&args.target.open()?, &renderer, chart, args)
}

fn uninstall(args: &uninstall::UninstallArgs) -> Result<(), Failed> {
    let chart = Program::find()?.chart(&[], None)?;
    uninstall::run(&args.target.open()?, &chart.defaults, args)
}

/// Why a command was not done, by exit status.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Failed {
    /// It failed, or the cluster is not ready (1).
    Broken(String),
    /// Wrong usage or input (2).
    Usage(String),
    /// No kubectl, or no cluster (3).
    NotPossible(String),
}

impl From<Refused> for Failed {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Unreachable(text) => Self::NotPossible(text),
            Refused::Forbidden(text) => Self::Broken(format!(
                "{text}\n  this user lacks a right: use an administrator's kubeconfig or --context"
            )),
            Refused::NotFound(text) | Refused::Other(text) => Self::Broken(text),
        }
    }
}

impl From<Fault> for Failed {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Missing(text) => Self::NotPossible(text),
            Fault::Values(text) => Self::Usage(text),
            Fault::Broken(text) => Self::Broken(text),
        }
    }
}

/// Which cluster.
#[derive(Args, Clone, Debug)]
struct Target {
    /// The kubeconfig's context [default: its current one].
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
    /// The kubeconfig [default: kubectl's: KUBECONFIG, else ~/.kube/config].
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<String>,
    /// The kubectl to use.
    #[arg(long, value_name = "PROGRAM", default_value = "kubectl")]
    kubectl: String,
}

impl Target {
    /// The cluster, if it answers. Says which one it is: a wrong context is found by reading this line.
    fn open(&self) -> Result<Kubectl, Failed> {
        let mut flags = Vec::new();
        for (flag, value) in [("--context", &self.context), ("--kubeconfig", &self.kubeconfig)] {
            flags.extend(value.iter().map(|value| format!("{flag}={value}")));
        }
        let kubectl = Kubectl { program: self.kubectl.clone(), flags };
        reach(&kubectl).map(|said| eprintln!("{said}")).map(|()| kubectl)
    }
}

/// The cluster's server and context, once it answers.
fn reach(cluster: &dyn Cluster) -> Result<String, Failed> {
    let config = cluster.call(&["config", "view", "--minify", "-o", "json"], None);
    let config: Value = match config {
        Ok(text) => serde_json::from_str(&text).unwrap_or_default(),
        Err(Refused::Unreachable(text)) if text.contains("install kubectl") => {
            return Err(Failed::NotPossible(text));
        }
        Err(refused) => {
            let known = cluster.call(&["config", "get-contexts", "-o", "name"], None).unwrap_or_default();
            let known: Vec<_> = known.split_whitespace().collect();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            return Err(Failed::NotPossible(format!(
                "{refused}; the kubeconfig's contexts: {known} (--context, --kubeconfig)"
            )));
        }
    };
    let server = config["clusters"][0]["cluster"]["server"].as_str().unwrap_or("?");
    let context = config["current-context"].as_str().unwrap_or("?");
    let version = cluster.get("/version").map_err(|refused| match refused {
        Refused::Unreachable(text) | Refused::Other(text) | Refused::NotFound(text) => Failed::NotPossible(format!(
            "{server} (context {context}) gives no answer: {text}; is the cluster up, and is this the right context?"
        )),
        refused @ Refused::Forbidden(_) => refused.into(),
    })?;
    Ok(format!(
        "cluster {server} (context {context}), Kubernetes {}",
        version["gitVersion"].as_str().unwrap_or("?")
    ))
}

/// Where the images are.
#[derive(Args, Clone, Debug)]
struct Images {
    /// Where the images are, before `/ktsn-node:TAG` [default: localhost, for images imported on each node].
    #[arg(long, value_name = "PLACE")]
    registry: Option<String>,
    /// The images' tag [default: that of this package; dev if ktsn was built from source].
    #[arg(long, value_name = "TAG")]
    tag: Option<String>,
}

/// The tag of the images that were made with this package; the package has it in a file.
const TAG_FILE: &str = "/usr/lib/ktsn/image-tag";

impl Images {
    fn tag(&self) -> String {
        let packaged = || std::fs::read_to_string(TAG_FILE).ok().map(|text| text.trim().to_owned());
        self.tag.clone().or_else(packaged).unwrap_or_else(|| "dev".to_owned())
    }

    /// The reference of one image: `node`, `controller` or `workload`.
    fn reference(&self, name: &str) -> String {
        let registry = self.registry.as_deref().unwrap_or("localhost").trim_end_matches('/');
        format!("{registry}/ktsn-{name}:{}", self.tag())
    }
}

/// This program's architecture, as Kubernetes calls it.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// A span of whole seconds, such as `90s`.
fn seconds(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text).map_err(|error| format!("expected a time such as 90s or 5m ({error})"))
}

/// The command line of the looking and clearing pods: the agent's program, and the node's directories by the chart's values.
fn agent_command(verb: &str, host: &Value, more: &[String]) -> Vec<String> {
    let mut words = vec!["/usr/local/bin/ktsn-node-agent".to_owned(), verb.to_owned()];
    for (flag, name) in [
        ("run-dir", "runDir"),
        ("lib-dir", "libDir"),
        ("cni-bin-dir", "cniBinDir"),
        ("cni-state-dir", "cniStateDir"),
        ("kubelet-dir", "kubeletDir"),
    ] {
        words.push(format!("--{flag}={}", host[name].as_str().unwrap_or_default()));
    }
    words.extend_from_slice(more);
    words
}

/// The chart's values that say which directories a node has, and its VXLAN device: from the arguments of the installed agent.
fn installed_values(defaults: &Value, daemons: Option<&Value>) -> Value {
    let mut values = defaults.clone();
    let containers = daemons.and_then(|daemons| daemons["spec"]["template"]["spec"]["containers"].as_array());
    let agent = containers.into_iter().flatten().find(|container| container["name"] == "agent");
    let Some(agent) = agent else { return values };
    values["images"]["node"] = agent["image"].clone();
    values["images"]["pullPolicy"] = agent["imagePullPolicy"].clone();
    for argument in agent["args"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        let Some((flag, value)) = argument.trim_start_matches("--").split_once('=') else { continue };
        let slot = match flag {
            "run-dir" => &mut values["host"]["runDir"],
            "lib-dir" => {
                values["host"]["libDir"] = json!(value.trim_end_matches("/lib"));
                continue;
            }
            "cni-bin-dir" => &mut values["host"]["cniBinDir"],
            "cni-state-dir" => &mut values["host"]["cniStateDir"],
            "kubelet-dir" => &mut values["host"]["kubeletDir"],
            "vxlan-device" => &mut values["network"]["vxlan"]["device"],
            "resource" => &mut values["resource"]["name"],
            _ => continue,
        };
        *slot = json!(value);
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::k8s::recorded::{self, Recorded};

    #[test]
    fn a_cluster_that_cannot_be_reached_is_named() {
        let view = r#"{"current-context": "plant", "clusters": [{"cluster": {"server": "https://192.0.2.1:6443"}}]}"#;
        let refused = "Unable to connect to the server: dial tcp 192.0.2.1:6443: i/o timeout";
        let cluster = Recorded::new(&[("config view", Ok(view)), ("get --raw /version", Err(refused))]);
        let Failed::NotPossible(text) = reach(&cluster).unwrap_err() else { panic!("kind") };
        assert!(
            ["https://192.0.2.1:6443", "context plant", "i/o timeout", "right context"]
                .iter()
                .all(|word| text.contains(word)),
            "{text}"
        );
        let cluster = Recorded::new(&[
            ("config view", Err("error: context \"nowhere\" does not exist")),
            ("config get-contexts", Ok("plant\nlab\n")),
        ]);
        let Failed::NotPossible(text) = reach(&cluster).unwrap_err() else { panic!("kind") };
        assert!(text.contains("nowhere") && text.contains("plant, lab"), "{text}");
        let cluster = Recorded::new(&[
            ("config view", Ok(view)),
            ("get --raw /version", Ok("{\"gitVersion\": \"v1.34.4\"}")),
        ]);
        assert_eq!(
            reach(&cluster).unwrap(),
            "cluster https://192.0.2.1:6443 (context plant), Kubernetes v1.34.4"
        );
    }

    #[test]
    fn the_installed_agent_says_where_things_are() {
        let daemons = json!({"spec": {"template": {"spec": {"containers": [{"name": "agent", "image": "r/ktsn-node:1", "imagePullPolicy": "Never",
            "args": ["--run-dir=/run/other", "--lib-dir=/var/lib/other/lib", "--vxlan-device=tsn0", "--resource=a.b/c", "--log-level=info"]}]}}}});
        let values = installed_values(&recorded::defaults(), Some(&daemons));
        assert_eq!(
            (&values["host"]["runDir"], &values["host"]["libDir"]),
            (&json!("/run/other"), &json!("/var/lib/other"))
        );
        assert_eq!(
            (&values["images"]["node"], &values["resource"]["name"]),
            (&json!("r/ktsn-node:1"), &json!("a.b/c"))
        );
        let words = agent_command("remove", &values["host"], &["--force".to_owned()]);
        assert!(
            words.contains(&"--cni-bin-dir=/opt/cni/bin".to_owned())
                && words.ends_with(&["--force".to_owned()]),
            "{words:?}"
        );
    }
}
