// SPDX-License-Identifier: Apache-2.0
//! The state of the tables' task: namespaces watched, attachments built, tables published.
//!
//! In: calls of the task. Out: events. Every step is short and whole; nothing here waits, but for the kernel's answer
//! to a dump.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::task::Poll;

use tokio::sync::mpsc;

use ktsn_resolve::{AttachmentIndex, AttachmentTables, TableError, Tables};

use super::filter::Filter;
use super::pod::Pod;
use super::uplinks::Uplinks;
use super::{attachment, given};
use crate::config::VxlanPeer;
use crate::policy::{Restriction, Rule};
use crate::tables::error::{TablesError, netlink_error};
use crate::tables::kernel::namespace::Identity;
use crate::tables::kernel::netlink::Netlink;
use crate::tables::kernel::reader::{Opened, Read};
use crate::tables::kernel::space::Space;
use crate::tables::kernel::watch::Watch;
use crate::tables::kernel::xfrm::Policies;
use crate::tables::news::{Added, Event, OverlayNews};
use crate::tables::overlay::overlays::{self, Overlays, PeersOf};
use crate::tables::overlay::state::OverlayState;
use crate::tables::tracked::TrackedAttachment;

/// Why the task was woken.
pub(crate) enum Wake {
    /// Something was announced.
    Changed,
    /// A file went away beside a namespace's path.
    PathGone,
    /// A pod's namespace was read.
    Read(Box<Read>),
}

/// An attachment's tables, and its overlay to show.
type Assembled = (AttachmentTables, Option<OverlayState>);

/// The attached interfaces of each namespace, by its cookie.
type Interfaces = BTreeMap<u64, Vec<u32>>;

/// The state of the tables' task: what it knows of the host, of pods and of attachments, and what it published last.
pub(crate) struct TablesState {
    pub(super) report: Box<dyn Fn(Event) + Send>,
    pub(super) host: Space,
    pub(super) pods: BTreeMap<PathBuf, Pod>,
    /// Readings of pods' namespaces so far.
    pub(super) readings_count: u64,
    pub(super) read_sender: mpsc::UnboundedSender<Read>,
    pub(super) reads: mpsc::UnboundedReceiver<Read>,
    pub(super) tracked: BTreeMap<u16, TrackedAttachment>,
    pub(super) overlays: Overlays,
    policies: Policies,
    filter: Filter,
    uplinks: Uplinks,
    /// Others were attached, or could not be, while the host changed: all attachments are built again in a moment.
    is_stale: bool,
    watch: Option<Watch>,
    published: Option<Arc<Tables>>,
}

impl TablesState {
    pub(crate) fn new(report: Box<dyn Fn(Event) + Send>) -> Result<Self, TablesError> {
        let netlink = Netlink::open().map_err(netlink_error("socket"))?;
        let host = Space::own(netlink)?;
        let watch = Watch::new().map_err(|error| {
            report(Event::Warning(format!("inotify: {error}; removed namespaces are noticed within 250 ms")));
        });
        let policies = Policies::open().unwrap_or_else(|error| {
            report(Event::Warning(format!(
                "IPsec policies cannot be read ({error}): overlays are left to the kernel but where \
                 allow_policy_bypass = true"
            )));
            Policies::unknown()
        });
        let (read_sender, reads) = mpsc::unbounded_channel();
        Ok(Self {
            report,
            host,
            pods: BTreeMap::new(),
            readings_count: 0,
            read_sender,
            reads,
            tracked: BTreeMap::new(),
            overlays: Overlays::default(),
            policies,
            filter: Filter::default(),
            uplinks: Uplinks::default(),
            is_stale: false,
            watch: watch.ok(),
            published: None,
        })
    }

    /// Waits until something changed somewhere.
    pub(crate) async fn wake(&mut self) -> Wake {
        std::future::poll_fn(|context| {
            // Each is polled, so that each knows whom to wake.
            let mut changed =
                self.host.socket.poll(context).is_ready() | self.policies.poll(context).is_ready();
            for pod in self.pods.values_mut() {
                changed |= pod.poll(context).is_ready();
            }
            let gone = self.watch.as_mut().is_some_and(|watch| watch.poll(context).is_ready());
            if let Poll::Ready(read) = self.poll_read(context) {
                return Poll::Ready(Wake::Read(read));
            }
            match (gone, changed) {
                (true, _) => Poll::Ready(Wake::PathGone),
                (false, true) => Poll::Ready(Wake::Changed),
                (false, false) => Poll::Pending,
            }
        })
        .await
    }

    /// Whether something of the node was announced that no dump, or not every table, has shown yet.
    pub(crate) fn is_behind(&self) -> bool {
        self.is_stale || self.policies.is_behind() || self.host.is_behind()
    }

    /// Dumps what changed of the node and publishes what follows from it; false when the kernel refused.
    pub(crate) fn refresh(&mut self) -> bool {
        let mut is_whole = true;
        let mut changed = |refreshed: Result<bool, String>, otherwise: bool| {
            refreshed.unwrap_or_else(|error| {
                (self.report)(Event::Warning(error));
                is_whole = false;
                otherwise
            })
        };
        // Policies that cannot be read cover everything.
        let policies = self.policies.refresh().map_err(|error| format!("IPsec policies: {error}"));
        let mut host_changed = changed(policies, true) | std::mem::take(&mut self.is_stale);
        host_changed |= changed(self.host.refresh().map_err(|error| error.to_string()), false);
        if host_changed {
            self.learn();
            self.rebuild(|_| true);
        }
        is_whole
    }

    /// Takes over what the node's snapshot shows of the devices that attachments learn from.
    pub(super) fn learn(&mut self) {
        self.overlays.learn(self.tracked.values(), &self.host.snapshot);
    }

    /// See [`crate::tables::Manager::set_peers`].
    pub(crate) fn set_peers(&mut self, of: PeersOf, peers: Vec<VxlanPeer>) -> Vec<OverlayNews> {
        self.overlays.give(of, peers);
        self.rebuild(|tracked| tracked.attachment.overlay.routed().is_some());
        self.overlays.shown()
    }

    /// Whether the node's packet filter may have a say about any attachment.
    pub(crate) fn wants_rules(&self) -> bool {
        let concerns = |tracked: &TrackedAttachment| {
            tracked.tables.as_ref().is_some_and(|of| Filter::concerns(tracked, of))
        };
        self.tracked.values().any(concerns)
    }

    /// The rules of the node's packet filter are others. `is_whole`: all of them could be read.
    pub(crate) fn set_rules(&mut self, rules: Arc<Vec<Rule>>, is_whole: bool) {
        self.filter.set(rules);
        self.rebuild(|tracked| !tracked.attachment.allow_policy_bypass);
        if is_whole {
            (self.report)(Event::RulesRead);
        }
    }

    /// Makes the tables of the attachments that are `concerned` again; those whose interface is gone end here.
    pub(super) fn rebuild(&mut self, concerned: impl Fn(&TrackedAttachment) -> bool) {
        let (mut differs, mut ended) = (false, Vec::new());
        let interfaces = self.interfaces();
        let mut all = std::mem::take(&mut self.tracked);
        for tracked in all.values_mut().filter(|tracked| concerned(tracked)) {
            match self.follow(tracked, &interfaces) {
                Some(is_other) => differs |= is_other,
                None => ended.push(tracked.index),
            }
        }
        self.tracked = all;
        if !ended.is_empty() {
            self.end(&ended);
        } else if differs {
            self.publish();
        }
    }

    /// Makes the tables of one attachment again; whether they are others now. `None`: its interface is gone.
    fn follow(&mut self, tracked: &mut TrackedAttachment, interfaces: &Interfaces) -> Option<bool> {
        let inside = &self.pods.get(&tracked.attachment.netns)?.space.snapshot;
        let device = inside.devices.get(&tracked.interface_index)?;
        if device.name != tracked.interface {
            let (path, old) = (tracked.attachment.netns.display(), &tracked.interface);
            if tracked.log_limit.allows() {
                (self.report)(Event::Warning(format!("{path}: {old} is called {} now", device.name)));
            }
            tracked.interface.clone_from(&device.name);
        }
        let mut warning = None;
        if self.host.snapshot.device(&tracked.uplink).is_none() {
            warning = Some(format!("uplink {}: no such device; nothing leaves by it", tracked.uplink));
        }
        warning = warning.or_else(|| self.filter_fault(tracked));
        let assembled = self.assemble(tracked, interfaces);
        let assembled =
            assembled.map_err(|error| warning = Some(format!("{error}; left to the kernel"))).ok();
        tracked.fault = warning;
        tracked.tell(&*self.report);
        Some(self.accept(tracked, assembled))
    }

    /// Why the rules of the pod's own packet filter are not known, where they are not.
    fn filter_fault(&self, tracked: &TrackedAttachment) -> Option<String> {
        let fault = self.pods.get(&tracked.attachment.netns)?.space.snapshot.filter.fault.as_ref()?;
        Some(format!(
            "{}: the packet filter of its namespace cannot be read: {fault}; its datagrams are left to the kernel (routing_rules)",
            tracked.place()
        ))
    }

    /// The tables of an attachment. Attaching and every change make them by these steps.
    fn assemble(
        &mut self,
        tracked: &TrackedAttachment,
        interfaces: &Interfaces,
    ) -> Result<Assembled, TablesError> {
        let pod = self.pods.get_mut(&tracked.attachment.netns).ok_or(TablesError::Ended)?;
        if let Some(fault) = &pod.fault {
            return Err(TablesError::NotFollowed(fault.clone()));
        }
        pod.find_number(tracked, &mut self.host);
        let all = interfaces.get(&pod.cookie).map_or(&[][..], Vec::as_slice);
        let others: Vec<u32> =
            all.iter().copied().filter(|other| *other != tracked.interface_index).collect();
        let inputs = self.overlays.inputs(tracked, &self.policies);
        let (tables, overlay) =
            attachment::tables(tracked, &others, pod, &mut self.host, &mut self.uplinks, inputs)?;
        Ok((self.filter.apply(tracked, tables)?, overlay))
    }

    /// Puts what was assembled in force, `None`: nothing; shows what is new of it. Whether the tables are others now.
    fn accept(&mut self, tracked: &mut TrackedAttachment, assembled: Option<Assembled>) -> bool {
        let (index, report) = (tracked.index.0, &*self.report);
        let (tables, overlay) = assembled.unzip();
        self.overlays.show(index, overlay.flatten(), report);
        self.filter.show(index, &tracked.place(), report);
        if !tracked.has_warned_of_addresses
            && let Some(text) = tables.as_ref().and_then(|tables| given::warning(tracked, tables))
        {
            report(Event::Warning(text));
            tracked.has_warned_of_addresses = true;
        }
        // Equal ones stay the same value: two generations are compared by address first.
        let is_other = tables.as_ref() != tracked.tables.as_deref();
        if is_other {
            tracked.tables = tables.map(Arc::new);
        }
        is_other
    }

    /// The attached interfaces of each namespace.
    fn interfaces(&self) -> Interfaces {
        let mut interfaces = Interfaces::new();
        for tracked in self.tracked.values() {
            if let Some(pod) = self.pods.get(&tracked.attachment.netns) {
                interfaces.entry(pod.cookie).or_default().push(tracked.interface_index);
            }
        }
        interfaces
    }

    /// What network policies leave of these attachments' direct paths from now on; the tables that say so.
    pub(crate) fn restrict(
        &mut self,
        restrictions: Vec<(AttachmentIndex, Arc<Restriction>)>,
    ) -> Option<Arc<Tables>> {
        let mut changed = BTreeSet::new();
        for (index, restriction) in restrictions {
            if let Some(tracked) = self.tracked.get_mut(&index.0) {
                tracked.restriction = restriction;
                changed.insert(index);
            }
        }
        self.rebuild(|tracked| changed.contains(&tracked.index));
        self.published.clone()
    }

    /// Forgets attachments that went away by themselves, and says so.
    fn end(&mut self, ended: &[AttachmentIndex]) {
        for index in ended {
            self.tracked.remove(&index.0);
            self.overlays.forget(index.0);
            self.filter.forget(index.0);
        }
        self.release();
        self.publish();
        for index in ended {
            (self.report)(Event::NamespaceGone(*index));
        }
    }

    /// Lets go of namespaces and forwarding tables that no attachment needs.
    fn release(&mut self) {
        self.host.learnt = overlays::watched(self.tracked.values());
        self.learn();
        self.uplinks.keep(&self.tracked.values());
        let needed: BTreeSet<&Path> =
            self.tracked.values().map(|tracked| tracked.attachment.netns.as_path()).collect();
        self.pods.retain(|path, _| needed.contains(path.as_path()));
        if let Some(watch) = &mut self.watch {
            watch.set(self.pods.keys().map(PathBuf::as_path));
        }
    }

    /// Publishes the tables as they are now.
    fn publish(&mut self) -> Option<Arc<Tables>> {
        let all = self.tracked.keys().next_back().into_iter().flat_map(|last| 0..=*last);
        let attachments = all.map(|index| self.tracked.get(&index)?.tables.clone());
        let tables = match &self.published {
            Some(before) => before.next(attachments.collect()),
            None => Tables::shared(1, attachments.collect()),
        };
        let report = |error: TableError| (self.report)(Event::Warning(error.to_string()));
        let tables = Arc::new(tables.map_err(report).ok()?);
        self.published = Some(tables.clone());
        (self.report)(Event::Tables(tables.clone()));
        Some(tables)
    }

    /// See [`crate::tables::Manager::add`].
    pub(crate) fn add(&mut self, tracked: TrackedAttachment, opened: Opened) -> Result<Added, TablesError> {
        let index = tracked.index.0;
        let before = self.tracked.remove(&index);
        self.overlays.forget(index);
        self.filter.forget(index);
        let added = self.try_add(tracked, opened);
        self.release();
        if added.is_err() {
            // What was read on the way is the others' too.
            self.is_stale = true;
        }
        if before.is_some() && added.is_err() {
            self.publish();
        }
        added
    }

    fn try_add(&mut self, mut tracked: TrackedAttachment, opened: Opened) -> Result<Added, TablesError> {
        let (index, netns) = (tracked.index, tracked.attachment.netns.clone());
        self.look_at(&netns);
        let learnt = overlays::watched(self.tracked.values().chain([&tracked]));
        let learns_more = learnt != self.host.learnt;
        self.host.learnt = learnt;
        self.host.socket.netlink.hints.forwarding |= learns_more;
        let host_changed = self.host.catch_up()? || learns_more;
        self.overlays.learn(self.tracked.values().chain([&tracked]), &self.host.snapshot);
        attachment::check_devices(&tracked.attachment, &tracked.uplink, &self.host.snapshot)?;
        // A device that was made a moment ago is not in what was read before.
        let pod = self.hold(&netns, opened)?;
        let place = || netns.display().to_string();
        let found = pod.space.snapshot.device(&tracked.interface).filter(|(_, device)| device.mac.is_some());
        let Some((interface_index, device)) = found else {
            return Err(TablesError::Device {
                field: "interface",
                device: tracked.interface,
                place: place(),
            });
        };
        let (netns_cookie, mtu) = (pod.cookie, device.mtu);
        tracked.interface_index = interface_index;
        tracked.addresses = given::settled(&tracked, &pod.space.snapshot, pod.identity);
        let interfaces = self.interfaces();
        if interfaces.get(&netns_cookie).is_some_and(|all| all.contains(&interface_index)) {
            return Err(TablesError::Attached { device: tracked.interface, place: place() });
        }
        let assembled = self.assemble(&tracked, &interfaces)?;
        tracked.fault = self.filter_fault(&tracked);
        tracked.tell(&*self.report);
        self.accept(&mut tracked, Some(assembled));
        let addresses = tracked.addresses.clone();
        self.tracked.insert(index.0, tracked);
        // Those of this namespace yield to it. What else the host's refresh above changed need not be waited for: many
        // attachments come one after the other, each with a device of its own.
        self.is_stale |= host_changed;
        self.rebuild(|other| other.index != index && other.attachment.netns == netns);
        self.probe_for(index);
        let tables = self.publish().ok_or(TablesError::Ended)?;
        let overlay = self.overlays.shown_of(index);
        Ok(Added { tables, netns_cookie, interface_index, mtu, overlay, addresses })
    }

    /// See [`crate::tables::Manager::remove`].
    pub(crate) fn remove(&mut self, index: AttachmentIndex) {
        let Some(gone) = self.tracked.remove(&index.0) else { return };
        self.overlays.forget(index.0);
        self.filter.forget(index.0);
        // What led to its interface leads to no attachment now.
        self.rebuild(|other| other.attachment.netns == gone.attachment.netns);
        self.release();
        self.publish();
    }

    /// Calls [`Self::look`] if `path` leads to another namespace by now.
    fn look_at(&mut self, path: &Path) {
        if self.pods.get(path).is_some_and(|pod| Identity::of(path).ok() != Some(pod.identity)) {
            self.look();
        }
    }

    /// Whether there is a path to look at.
    pub(crate) fn has_pods(&self) -> bool {
        !self.pods.is_empty()
    }

    /// Looks where the paths lead; lets go of what is gone.
    pub(crate) fn look(&mut self) {
        let gone = |(path, pod): (&PathBuf, &Pod)| {
            (Identity::of(path).ok() != Some(pod.identity)).then(|| path.clone())
        };
        let gone: Vec<PathBuf> = self.pods.iter().filter_map(gone).collect();
        self.pods.values_mut().for_each(Pod::look);
        if gone.is_empty() {
            return;
        }
        let concerned = self.tracked.iter().filter(|(_, tracked)| gone.contains(&tracked.attachment.netns));
        let ended: Vec<AttachmentIndex> = concerned.map(|(index, _)| AttachmentIndex(*index)).collect();
        // First of all: an open socket keeps the namespace and its devices alive.
        self.pods.retain(|path, _| !gone.contains(path));
        self.end(&ended);
    }
}
