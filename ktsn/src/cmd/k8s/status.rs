// SPDX-License-Identifier: Apache-2.0
//! `ktsn k8s status`: what KTSN does on each node. In: the cluster. Out: a table or JSON. Exit status 1 where it is not ready.

use std::time::Duration;

use clap::Args;

use super::{Failed, Target, install, seconds};
use crate::k8s::cluster::Cluster;
use crate::k8s::ready::{NodeState, State};
use crate::output;

/// Show what KTSN does on each node.
#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Examples:\n  ktsn k8s status\n  ktsn k8s status --wait --timeout 5m\n  ktsn k8s status --json | jq .nodes"
)]
pub(super) struct StatusArgs {
    #[command(flatten)]
    pub(super) target: Target,
    /// Wait until all nodes are ready.
    #[arg(long)]
    wait: bool,
    /// How long --wait waits.
    #[arg(long, value_name = "TIME", default_value = "3m", value_parser = seconds)]
    timeout: Duration,
    /// JSON instead of a table.
    #[arg(long)]
    json: bool,
}

const TABLE: &[output::Column<NodeState>] = &[
    ("NODE", |node| node.node.clone()),
    ("READY", |node| if node.ready { "yes" } else { "no" }.to_owned()),
    ("SLOTS", |node| node.slots.to_string()),
    ("PREFIXES", |node| output::or_dash(&node.prefixes).to_owned()),
    ("WHY NOT", |node| output::or_dash(&node.reason).to_owned()),
];

/// Shows.
pub(super) fn run(cluster: &dyn Cluster, args: &StatusArgs) -> Result<(), Failed> {
    if args.wait {
        install::wait(cluster, args.timeout)?;
    }
    let state = State::read(cluster)?
        .ok_or_else(|| Failed::Broken("KTSN is not installed; run `ktsn k8s install`".to_owned()))?;
    let text = if args.json {
        format!("{:#}\n", serde_json::json!(state))
    } else {
        let head = format!("KTSN {} in namespace {}: {}\n\n", state.version, state.namespace, state.line());
        head + &output::table(state.nodes.clone(), TABLE)
    };
    output::show(&text).map_err(Failed::Broken)?;
    if state.ready { Ok(()) } else { Err(Failed::Broken(format!("not ready: {}", state.line()))) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::k8s::recorded::Recorded;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        args: StatusArgs,
    }

    #[test]
    fn a_cluster_without_ktsn_says_so() {
        let cluster = Recorded::new(&[("get --raw", Ok(r#"{"items": []}"#))]);
        for words in [&["status"][..], &["status", "--wait"]] {
            let Err(Failed::Broken(text)) = run(&cluster, &Line::try_parse_from(words).unwrap().args) else {
                panic!("ready")
            };
            assert!(text.contains("ktsn k8s install"), "{text}");
        }
    }
}
