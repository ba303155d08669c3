// SPDX-License-Identifier: Apache-2.0
//! What the tables' task says: of an attachment that was added, and of what happens by itself.

use std::sync::Arc;

use ktsn_resolve::{AttachmentIndex, Flow, RouteAnswer, Tables};

use super::overlay::state::OverlayState;
use crate::config::Given;
use crate::policy::Hindrance;

/// The facts about an attachment that was just added.
#[derive(Clone, Debug)]
pub struct Added {
    /// Tables that contain it.
    pub tables: Arc<Tables>,
    /// SO_NETNS_COOKIE of its namespace.
    pub netns_cookie: u64,
    /// Number of the pod's interface in its namespace.
    pub interface_index: u32,
    /// Largest IP packet of the pod's interface, octets.
    pub mtu: u32,
    /// Its overlay, when it has one.
    pub overlay: Option<OverlayNews>,
    /// The addresses that are given to it: of an attachment that names none, those that its interface had.
    pub addresses: Given,
}

/// An attachment's overlay as it is in force.
#[derive(Clone, Debug)]
pub struct OverlayNews {
    /// Which attachment.
    pub index: AttachmentIndex,
    /// Its overlay.
    pub state: Arc<OverlayState>,
    /// Conflicts among its peers that have appeared so far.
    pub conflicts_count: u64,
    /// Grows with each change: the higher one is the newer.
    pub revision: u64,
}

/// The rules of the node's packet filter that are about an attachment's datagrams.
#[derive(Clone, Debug)]
pub struct RulesNews {
    /// Which attachment.
    pub index: AttachmentIndex,
    /// The rules, and the destinations that are the kernel's for them.
    pub hindrances: Arc<Vec<Hindrance>>,
    /// Rules that have appeared so far.
    pub rules_count: u64,
    /// Grows with each change: the higher one is the newer.
    pub revision: u64,
}

/// The kernel's answer about a flow's route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnsweredRoute {
    /// The flow.
    pub flow: Flow,
    /// The revision of the answer: it holds while the attachment's tables name this one.
    pub revision: u64,
    /// The answer.
    pub answer: RouteAnswer,
}

/// A change that no request caused.
#[derive(Clone, Debug)]
pub enum Event {
    /// New tables, generation one higher than before.
    Tables(Arc<Tables>),
    /// An attachment's namespace or its interface is gone. Nothing of it is held any more; it does not come back.
    NamespaceGone(AttachmentIndex),
    /// An attachment's overlay is another one now.
    Overlay(OverlayNews),
    /// Other rules of the node's packet filter are about an attachment now.
    Rules(RulesNews),
    /// All rules of the node's packet filter have been read, and the tables of all attachments hold to them.
    RulesRead,
    /// The kernel's answer for the worker of this number.
    Route(u64, AnsweredRoute),
    /// Something that an operator should know.
    Warning(String),
}
