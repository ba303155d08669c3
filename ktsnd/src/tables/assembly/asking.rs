// SPDX-License-Identifier: Apache-2.0
//! Answers of the kernel about flows whose routes only the kernel knows.
//!
//! In: a flow that a worker asks about. Out: an [`AnsweredRoute`] as an event. It waits for nothing but the kernel's answer.

use ktsn_resolve::{Flow, InterfaceRoute, RouteAnswer};

use super::state::TablesState;
use crate::tables::kernel::ask::{Question, Reply, ask, ask_connected};
use crate::tables::news::{AnsweredRoute, Event};

impl TablesState {
    /// See [`crate::tables::Manager::ask_route`]. A kernel that does not answer is asked again with the flow's next frame.
    pub(crate) fn ask_route(&mut self, worker: u64, flow: &Flow) {
        let Some(tracked) = self.tracked.get(&flow.attachment.0) else { return };
        let Some(pod) = self.pods.get_mut(&tracked.attachment.netns) else { return };
        let question = Question {
            destination: flow.destination.to_canonical(),
            source: flow.bound,
            ports: (flow.source_port, flow.destination_port),
            traffic_class: flow.traffic_class,
            uid: flow.uid,
            device: flow.scope,
        };
        let revision = pod.space.answers;
        let netlink = &mut pod.space.socket.netlink;
        let is_kept = flow.is_connected && question.destination.is_ipv6();
        let reply = if is_kept { ask_connected(netlink, &question) } else { ask(netlink, &question) };
        let Ok(reply) = reply else { return };
        let answer = match reply {
            Reply::Plain(answer) if answer.device == tracked.interface_index => {
                RouteAnswer::Interface(InterfaceRoute {
                    gateway: answer.gateway,
                    source: answer.source,
                    mtu: answer.mtu,
                    hop_limit: answer.hop_limit,
                })
            }
            _ => RouteAnswer::Elsewhere,
        };
        (self.report)(Event::Route(worker, AnsweredRoute { flow: *flow, revision, answer }));
    }
}
