// SPDX-License-Identifier: Apache-2.0
//! Requests of the control API, answered.
//!
//! In: checked requests. Out: their answers; overlay peers that are given to the tables' task. A list is kept in the state file before
//! anything changes; where that fails, nothing does.

use ktsn_resolve::AttachmentIndex;
use tokio::sync::oneshot;
use tracing::info;

use super::{Node, NodeError, NodeRequest};
use crate::config::{ConfigError, PeersTarget, VxlanPeer};
use crate::messages::{health, listing, statistics};
use crate::tables::PeersOf;

impl Node {
    pub(super) async fn answer(&mut self, request: NodeRequest) {
        match request {
            NodeRequest::Attach(attachment, false, reply) => {
                answer(reply, self.attach(*attachment, true).await);
            }
            NodeRequest::Attach(attachment, true, reply) => {
                answer(reply, self.check_attach(&attachment).await);
            }
            NodeRequest::Detach(name, reply) => answer(reply, self.detach(&name).await),
            NodeRequest::SetPeers(target, peers, reply) => answer(reply, self.set_peers(target, peers).await),
            NodeRequest::GetPeers(name, reply) => answer(reply, listing::peers(self, &name)),
            NodeRequest::SetPolicies(policies, reply) => answer(reply, self.set_policies(policies).await),
            NodeRequest::List(reply) => answer(reply, listing::list(self)),
            NodeRequest::Statistics(name, reply) => answer(reply, statistics::statistics(self, &name)),
            NodeRequest::ApplySchedule(device, schedule, check_only, reply) => {
                self.apply_schedule(&device, schedule.map(|s| *s), check_only, reply);
            }
            NodeRequest::GetSchedule(device, reply) => self.get_schedule(&device, reply),
            NodeRequest::Health(reply) => {
                self.note_health();
                answer(reply, health::reply(&self.watch.board));
            }
            NodeRequest::Metrics(reply) => {
                self.note_health();
                answer(reply, Box::new(statistics::snapshot(self)));
            }
        }
    }

    /// Replaces a list as a whole.
    pub(super) async fn set_peers(
        &mut self,
        target: PeersTarget,
        peers: Vec<VxlanPeer>,
    ) -> Result<(), NodeError> {
        if self.stopping {
            return Err(NodeError::Ending);
        }
        let of = match &target {
            PeersTarget::Vni(vni) => PeersOf::Vni(*vni),
            PeersTarget::Attachment(name) => {
                let index = self.served.find(name).ok_or_else(|| NodeError::Unknown(name.clone()))?;
                self.check_family(index, &peers)?;
                PeersOf::Attachment(index)
            }
        };
        self.intent.set_peers(&target, peers.clone())?;
        info!(?target, count = peers.len(), "overlay peers given");
        for news in self.manager.set_peers(of, peers).await {
            self.served.note_overlay(news);
        }
        Ok(())
    }

    /// Peers of an attachment must have an overlay, and be of the family of its own tunnel end.
    fn check_family(&self, index: AttachmentIndex, peers: &[VxlanPeer]) -> Result<(), NodeError> {
        let Some(served) = self.served.get(index) else { return Ok(()) };
        let Some(vxlan) = served.attachment.overlay.routed() else {
            let name = served.name();
            return Err(NodeError::precondition(
                "attachment",
                &format_args!("{name:?} has no overlay; no peers are possible"),
            ));
        };
        let known =
            self.served.overlay_of(index).map(|overlay| overlay.state.local).filter(|a| !a.is_unspecified());
        let Some(local) = vxlan.local.or(known) else { return Ok(()) };
        match peers.iter().position(|peer| peer.vtep.is_ipv4() != local.is_ipv4()) {
            Some(i) => Err(NodeError::Invalid(ConfigError::value(
                &format!("peers[{i}].vtep"),
                peers[i].vtep,
                format!("an address of the same family as this node's {local}"),
            ))),
            None => Ok(()),
        }
    }

    /// What was given for an attachment before it came (at a restart).
    pub(super) async fn give_peers(&mut self, index: AttachmentIndex) {
        let Some(name) = self.served.name_of(index) else { return };
        if let Some(peers) = self.intent.peers_of(&name).cloned() {
            for news in self.manager.set_peers(PeersOf::Attachment(index), peers).await {
                self.served.note_overlay(news);
            }
        }
    }
}

/// A caller that has gone does not read the answer.
fn answer<T>(reply: oneshot::Sender<T>, answer: T) {
    let _ = reply.send(answer);
}
