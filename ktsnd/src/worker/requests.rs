// SPDX-License-Identifier: Apache-2.0
//! What frames lack, asked of the node: MAC addresses of next hops, and the kernel's answers about routes.
//!
//! In: what a frame lacks. Out: notifications to the node, a bounded number for each attachment. The answers come as commands.

use ktsn_port::Port;
use ktsn_resolve::{AttachmentIndex, Flow, NextHop};

use super::Worker;
use super::command::Returned;
use super::content::FrameContent;
use super::environment::Environment;
use super::resolver::Missing;

impl<P: Port, E: Environment> Worker<P, E> {
    /// Has the node ask the kernel for what a frame lacks.
    #[inline]
    pub(super) fn request(
        &mut self,
        attachment: AttachmentIndex,
        missing: Option<Missing>,
        content: &FrameContent,
    ) {
        match (missing, content) {
            (None, _) | (Some(Missing::Route), FrameContent::Link(_)) => {}
            (Some(Missing::Neighbour(next_hop)), _) => self.request_neighbour(attachment, next_hop),
            (Some(Missing::Route), FrameContent::Datagram(flow, _)) => self.request_route(flow),
        }
    }

    #[cold]
    fn request_neighbour(&mut self, attachment: AttachmentIndex, next_hop: NextHop) {
        let now = self.env.monotonic();
        if self.attachments.should_request(attachment, next_hop, now) {
            self.inbox.notify(Returned::NeighbourWanted(attachment, next_hop));
        }
    }

    #[cold]
    fn request_route(&mut self, flow: &Flow) {
        let now = self.env.monotonic();
        if self.attachments.may_ask_route(flow.attachment, now) && self.resolver.should_ask(flow, now) {
            self.attachments.count_asked_route(flow.attachment);
            self.inbox.notify(Returned::RouteWanted(*flow));
        }
    }
}
