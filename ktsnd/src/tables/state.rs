// SPDX-License-Identifier: Apache-2.0
//! The state of the tables' task: namespaces watched, attachments built, tables published.
//!
//! In: calls of the task. Out: events. Every step is short and whole; nothing here waits, but for the kernel's answer
//! to a dump.

mod addresses;
mod filter;
mod overlays;
mod pod;
mod shared;
mod space;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::task::Poll;

use ktsn_resolve::{AttachmentIndex, AttachmentTables, NextHop, Side, Tables};

use super::manager::PeersOf;
use super::namespace::{Entered, Identity};
use super::netlink::Netlink;
use super::uplinks::Uplinks;
use super::watch::Watch;
use super::xfrm::Policies;
use super::{Added, AttachmentSpec, Event, OverlayNews, TablesError, build};
use crate::config::VxlanPeer;
use crate::policy::Rule;
use filter::Filter;
use overlays::Overlays;
use pod::Pod;
use space::Space;

/// Neighbours of one attachment that are kept fresh because a frame once needed them; the oldest goes first.
const WANTED_MAX: usize = 64;

/// Why the task was woken.
pub(super) enum Wake {
    /// Something was announced.
    Changed,
    /// A file went away beside a namespace's path.
    PathGone,
}

struct Attached {
    spec: AttachmentSpec,
    interface: u32,
    tables: Option<Arc<AttachmentTables>>,
    wanted: VecDeque<(Side, IpAddr)>,
    warned: Option<String>,
    /// Addresses that are not given were told.
    is_told: bool,
}

/// The state of the tables' task: what it knows of the host, of pods and of attachments, and what it published last.
pub(super) struct TablesState {
    report: Box<dyn Fn(Event) + Send>,
    host: Space,
    pods: BTreeMap<PathBuf, Pod>,
    attached: BTreeMap<u16, Attached>,
    overlays: Overlays,
    policies: Policies,
    filter: Filter,
    uplinks: Uplinks,
    /// Others were attached, or could not be, while the host changed: its attachments are built anew in a moment.
    is_stale: bool,
    watch: Option<Watch>,
    generation: u64,
    published: Option<Arc<Tables>>,
}

impl TablesState {
    pub(super) fn new(report: Box<dyn Fn(Event) + Send>) -> Result<Self, TablesError> {
        let netlink = Netlink::open().map_err(|source| TablesError::Netlink { what: "socket", source })?;
        let host = Space::own(netlink)?;
        let watch = Watch::new().map_err(|error| {
            report(Event::Warning(format!("inotify: {error}; removed namespaces are noticed within 250 ms")));
        });
        let (pods, attached) = (BTreeMap::new(), BTreeMap::new());
        let overlays = Overlays::default();
        let policies = Policies::open().unwrap_or_else(|error| {
            report(Event::Warning(format!(
                "IPsec policies cannot be read ({error}): overlays are left to the kernel but where \
                 allow_policy_bypass = true"
            )));
            Policies::unknown()
        });
        let (filter, uplinks, watch) = (Filter::default(), Uplinks::default(), watch.ok());
        let (is_stale, generation) = (false, 0);
        Ok(Self {
            report,
            host,
            pods,
            attached,
            overlays,
            policies,
            filter,
            uplinks,
            is_stale,
            watch,
            generation,
            published: None,
        })
    }

    /// Waits until something changed somewhere.
    pub(super) async fn wake(&mut self) -> Wake {
        std::future::poll_fn(|context| {
            // Each is polled, so that each knows whom to wake.
            let mut changed = self.host.poll(context).is_ready() | self.policies.poll(context).is_ready();
            for pod in self.pods.values_mut() {
                changed |= pod.space.poll(context).is_ready();
            }
            let gone = self.watch.as_mut().is_some_and(|watch| watch.poll(context).is_ready());
            match (gone, changed) {
                (true, _) => Poll::Ready(Wake::PathGone),
                (false, true) => Poll::Ready(Wake::Changed),
                (false, false) => Poll::Pending,
            }
        })
        .await
    }

    /// Whether something was announced that no dump, or not every table, has shown yet.
    pub(super) fn is_behind(&self) -> bool {
        self.is_stale
            || self.policies.is_behind()
            || self.host.hints.any()
            || self.pods.values().any(|pod| pod.space.hints.any())
    }

    /// Dumps what changed and publishes what follows from it; false when the kernel refused.
    pub(super) fn refresh(&mut self) -> bool {
        let mut whole = true;
        let mut refreshed = |space: &mut Space| match space.refresh() {
            Ok(changed) => changed,
            Err(error) => {
                (self.report)(Event::Warning(error.to_string()));
                whole = false;
                false
            }
        };
        let mut whole_policies = true;
        let policies_changed = self.policies.refresh();
        let host_changed = refreshed(&mut self.host);
        let host_changed = match policies_changed {
            Ok(changed) => host_changed | changed,
            Err(error) => {
                (self.report)(Event::Warning(format!("IPsec policies: {error}")));
                whole_policies = false;
                true
            }
        };
        let changed: Vec<PathBuf> = self
            .pods
            .iter_mut()
            .filter_map(|(path, pod)| refreshed(&mut pod.space).then(|| path.clone()))
            .collect();
        let host_changed = host_changed | std::mem::take(&mut self.is_stale);
        if host_changed {
            self.learn();
        }
        if host_changed || !changed.is_empty() {
            self.rebuild(|spec| host_changed || changed.contains(&spec.attachment.netns));
        }
        whole && whole_policies
    }

    /// Takes over what the node's snapshot shows of the devices that attachments learn from.
    fn learn(&mut self) {
        let specs = self.attached.values().map(|attached| &attached.spec);
        self.overlays.learn(specs, &self.host.snapshot);
    }

    /// See [`super::Manager::set_peers`].
    pub(super) fn set_peers(&mut self, of: PeersOf, peers: Vec<VxlanPeer>) -> Vec<OverlayNews> {
        self.overlays.give(of, peers);
        self.rebuild(|spec| spec.attachment.overlay.routed().is_some());
        self.overlays.shown()
    }

    /// Whether the node's packet filter may have a say about any attachment.
    pub(super) fn wants_rules(&self) -> bool {
        let concerns = |attached: &Attached| {
            attached.tables.as_ref().is_some_and(|of| Filter::concerns(&attached.spec, of))
        };
        self.attached.values().any(concerns)
    }

    /// The rules of the node's packet filter are others. `is_whole`: all of them could be read.
    pub(super) fn set_rules(&mut self, rules: Arc<Vec<Rule>>, is_whole: bool) {
        self.filter.set(rules);
        self.rebuild(|spec| !spec.attachment.allow_policy_bypass);
        if is_whole {
            (self.report)(Event::RulesRead);
        }
    }

    /// Builds attachments anew; those whose interface is gone end here.
    fn rebuild(&mut self, concerned: impl Fn(&AttachmentSpec) -> bool) {
        let (mut differs, mut ended) = (false, Vec::new());
        let interfaces = self.interfaces();
        for (index, attached) in &mut self.attached {
            if !concerned(&attached.spec) {
                continue;
            }
            let Some(pod) = self.pods.get_mut(&attached.spec.attachment.netns) else { continue };
            pod.find_number(&attached.spec, &mut self.host);
            let Some(device) = pod.space.snapshot.device_at(attached.interface) else {
                ended.push(AttachmentIndex(*index));
                continue;
            };
            let mut warning = None;
            if device.name != attached.spec.interface {
                let (path, old) = (attached.spec.attachment.netns.display(), &attached.spec.interface);
                (self.report)(Event::Warning(format!("{path}: {old} is called {} now", device.name)));
                attached.spec.interface.clone_from(&device.name);
            }
            if self.host.snapshot.device(&attached.spec.uplink).is_none() {
                warning =
                    Some(format!("uplink {}: no such device; nothing leaves by it", attached.spec.uplink));
            }
            let pods = &pod.space.snapshot;
            let told = self.overlays.told(&attached.spec, &self.policies);
            let spec = &attached.spec;
            let mut node = node(&self.host, &mut self.uplinks);
            let others = shared::others(&interfaces, pod.cookie, attached.interface);
            let built =
                build::attachment(spec, attached.interface, &others, pods, &mut node, pod.number, told);
            let built = built.and_then(|(tables, overlay)| Ok((self.filter.apply(spec, tables)?, overlay)));
            let built = built.map_err(|error| warning = Some(format!("{error}; left to the kernel"))).ok();
            let (tables, overlay) = built.map_or((None, None), |(tables, overlay)| (Some(tables), overlay));
            self.overlays.show(*index, overlay, &*self.report);
            self.filter.show(*index, &attached.spec.place(), &*self.report);
            addresses::tell(&mut attached.is_told, &attached.spec, tables.as_ref(), &*self.report);
            if warning != attached.warned {
                if let Some(text) = &warning {
                    (self.report)(Event::Warning(text.clone()));
                }
                attached.warned = warning;
            }
            // Equal ones stay the same value: whoever compares two generations sees at once what is new.
            if tables.as_ref() != attached.tables.as_deref() {
                differs = true;
                attached.tables = tables.map(Arc::new);
            }
        }
        if ended.is_empty() {
            if differs {
                self.publish();
            }
        } else {
            self.end(&ended);
        }
    }

    /// Forgets attachments that went away by themselves, and says so.
    fn end(&mut self, ended: &[AttachmentIndex]) {
        for index in ended {
            self.attached.remove(&index.0);
            self.overlays.forget(index.0);
            self.filter.forget(index.0);
        }
        self.release();
        self.publish();
        for index in ended {
            (self.report)(Event::NamespaceGone(*index));
        }
    }

    fn specs(&self) -> impl Iterator<Item = &AttachmentSpec> + Clone {
        self.attached.values().map(|attached| &attached.spec)
    }

    /// Lets go of namespaces and forwarding tables that no attachment needs.
    fn release(&mut self) {
        self.host.learnt = overlays::watched(self.specs());
        self.learn();
        self.uplinks.keep(&self.attached.values().map(|attached| &attached.spec));
        let needed: BTreeSet<&Path> =
            self.attached.values().map(|attached| attached.spec.attachment.netns.as_path()).collect();
        self.pods.retain(|path, _| needed.contains(path.as_path()));
        if let Some(watch) = &mut self.watch {
            watch.set(self.pods.keys().map(PathBuf::as_path));
        }
    }

    /// The tables as they are now, to everybody.
    fn publish(&mut self) -> Option<Arc<Tables>> {
        self.generation += 1;
        let end = self.attached.keys().next_back().map_or(0, |last| usize::from(*last) + 1);
        let mut attachments = vec![None; end];
        for (index, attached) in &self.attached {
            if let Some(slot) = attachments.get_mut(usize::from(*index)) {
                slot.clone_from(&attached.tables);
            }
        }
        match Tables::shared(self.generation, attachments) {
            Ok(tables) => {
                let tables = Arc::new(tables);
                self.published = Some(tables.clone());
                (self.report)(Event::Tables(tables.clone()));
                Some(tables)
            }
            Err(error) => {
                (self.report)(Event::Warning(error.to_string()));
                None
            }
        }
    }

    /// See [`super::Manager::add`].
    pub(super) fn add(
        &mut self,
        spec: AttachmentSpec,
        entered: Option<Entered>,
    ) -> Result<Added, TablesError> {
        let before = self.attached.remove(&spec.index.0);
        self.overlays.forget(spec.index.0);
        self.filter.forget(spec.index.0);
        let added = self.try_add(spec, entered);
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

    fn try_add(&mut self, mut spec: AttachmentSpec, entered: Option<Entered>) -> Result<Added, TablesError> {
        self.look_at(&spec.attachment.netns);
        let learnt = overlays::watched(self.specs().chain([&spec]));
        let learns_more = learnt != self.host.learnt;
        self.host.learnt = learnt;
        self.host.hints.forwarding |= learns_more;
        let host_changed = self.host.catch_up()? || learns_more;
        let specs = self.attached.values().map(|attached| &attached.spec);
        self.overlays.learn(specs.chain([&spec]), &self.host.snapshot);
        build::check_devices(&spec.attachment, &spec.uplink, &self.host.snapshot)?;
        let pod = pod::open(&mut self.pods, &spec.attachment.netns, entered)?;
        let found = pod.space.snapshot.device(&spec.interface).filter(|(_, device)| device.mac.is_some());
        let Some((interface, device)) = found else {
            let place = spec.attachment.netns.display().to_string();
            return Err(TablesError::Device { field: "interface", device: spec.interface, place });
        };
        let (cookie, mtu) = (pod.cookie, device.mtu);
        addresses::settle(&mut spec, interface, &pod.space.snapshot, pod.identity);
        let others = self.others_of(&spec, cookie, interface)?;
        let pod = self.pods.get_mut(&spec.attachment.netns).ok_or(TablesError::Ended)?;
        pod.find_number(&spec, &mut self.host);
        let told = self.overlays.told(&spec, &self.policies);
        let (inside, mut node) = (&pod.space.snapshot, node(&self.host, &mut self.uplinks));
        let built = build::attachment(&spec, interface, &others, inside, &mut node, pod.number, told);
        let (tables, overlay) = built?;
        let tables = self.filter.apply(&spec, tables)?;
        let index = spec.index;
        self.overlays.show(index.0, overlay, &*self.report);
        self.filter.show(index.0, &spec.place(), &*self.report);
        let (wanted, netns, addresses) =
            (VecDeque::new(), spec.attachment.netns.clone(), spec.addresses.clone());
        let mut is_told = false;
        addresses::tell(&mut is_told, &spec, Some(&tables), &*self.report);
        let tables = Some(Arc::new(tables));
        self.attached.insert(index.0, Attached { spec, interface, tables, wanted, warned: None, is_told });
        // Those of this namespace yield to it. What else the host's refresh above changed need not be waited for: many
        // attachments come one after the other, each with a device of its own.
        self.is_stale |= host_changed;
        self.rebuild(|other| other.index != index && other.attachment.netns == netns);
        self.probe_for(index);
        let tables = self.publish().ok_or(TablesError::Ended)?;
        let overlay = self.overlays.shown_of(index);
        Ok(Added { tables, netns_cookie: cookie, interface_index: interface, mtu, overlay, addresses })
    }

    /// See [`super::Manager::remove`].
    pub(super) fn remove(&mut self, index: AttachmentIndex) {
        let Some(gone) = self.attached.remove(&index.0) else { return };
        self.overlays.forget(index.0);
        self.filter.forget(index.0);
        // What led to its interface is nobody's now.
        self.rebuild(|other| other.attachment.netns == gone.spec.attachment.netns);
        self.release();
        self.publish();
    }

    /// See [`super::Manager::ensure_neighbour`].
    pub(super) fn ensure_neighbour(&mut self, index: AttachmentIndex, next_hop: NextHop) {
        let Some(attached) = self.attached.get_mut(&index.0) else { return };
        let wanted = (next_hop.side, next_hop.address);
        if !attached.wanted.contains(&wanted) {
            if attached.wanted.len() >= WANTED_MAX {
                attached.wanted.pop_front();
            }
            attached.wanted.push_back(wanted);
        }
        self.ask(index, &[wanted]);
    }

    /// As [`Self::look`], where one path leads elsewhere by now.
    fn look_at(&mut self, path: &Path) {
        if self.pods.get(path).is_some_and(|pod| Identity::of(path).ok() != Some(pod.identity)) {
            self.look();
        }
    }

    /// Looks where the paths lead; lets go of what is gone.
    pub(super) fn look(&mut self) {
        let gone = |(path, pod): (&PathBuf, &Pod)| {
            (Identity::of(path).ok() != Some(pod.identity)).then(|| path.clone())
        };
        let gone: Vec<PathBuf> = self.pods.iter().filter_map(gone).collect();
        if gone.is_empty() {
            return;
        }
        let concerned =
            self.attached.iter().filter(|(_, attached)| gone.contains(&attached.spec.attachment.netns));
        let ended: Vec<AttachmentIndex> = concerned.map(|(index, _)| AttachmentIndex(*index)).collect();
        // First of all: an open socket keeps the namespace and its devices alive.
        self.pods.retain(|path, _| !gone.contains(path));
        self.end(&ended);
    }

    /// Has the kernel probe what it does not know, or what nobody confirmed for a while.
    pub(super) fn probe(&mut self) {
        if self.overlays.is_due() {
            self.learn();
            self.rebuild(|spec| spec.attachment.overlay.routed().is_some());
        }
        for (device, gateway) in self.overlays.gateways(&self.host.snapshot) {
            if let Err(error) = self.host.ask(device, gateway) {
                (self.report)(Event::Warning(format!("neighbour {gateway}: {error}")));
            }
        }
        let all: Vec<AttachmentIndex> = self.attached.keys().copied().map(AttachmentIndex).collect();
        for index in all {
            self.probe_for(index);
        }
    }

    fn probe_for(&mut self, index: AttachmentIndex) {
        let Some(attached) = self.attached.get(&index.0) else { return };
        let mut hops = attached.tables.as_deref().map(build::next_hops).unwrap_or_default();
        hops.extend(&attached.wanted);
        hops.sort_unstable();
        hops.dedup();
        self.ask(index, &hops);
    }

    /// One request for each of these that is not fresh.
    fn ask(&mut self, index: AttachmentIndex, hops: &[(Side, IpAddr)]) {
        let Some(attached) = self.attached.get(&index.0) else { return };
        let Some(pod) = self.pods.get_mut(&attached.spec.attachment.netns) else { return };
        let uplink = self.host.snapshot.device(&attached.spec.uplink).map(|(index, _)| index);
        for &(side, address) in hops {
            let (space, device) = match side {
                Side::Interface => (&mut pod.space, Some(attached.interface)),
                Side::Uplink => (&mut self.host, uplink),
            };
            let Some(device) = device.filter(|device| !space.snapshot.is_fresh(*device, address)) else {
                continue;
            };
            if let Err(error) = space.ask(device, address) {
                (self.report)(Event::Warning(format!("neighbour {address}: {error}")));
            }
        }
    }
}

fn node<'a>(host: &'a Space, uplinks: &'a mut Uplinks) -> build::Node<'a> {
    build::Node { host: &host.snapshot, revision: host.revision, uplinks }
}
