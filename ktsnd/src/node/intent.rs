// SPDX-License-Identifier: Apache-2.0
//! What the node is asked for: the configuration, and what came by the control API, which the state file keeps.
//!
//! In: checked values, entries of the state file. Out: what is meant to hold for a device or an attachment, and the state file.
//! It asks neither ports nor workers nor tables.

mod waiting;

use std::collections::BTreeMap;
use std::sync::Arc;

use ktsn_model::PriorityMap;
use ktsn_resolve::AttachmentIndex;
use ktsn_sched::policing::StreamIdentification;
use tracing::{info, warn};

use super::request::NodeError;
use crate::config::{
    Attachment, AttachmentConfig, Config, PeersTarget, Port as PortConfig, Schedule, VxlanPeer, check_peers,
    check_vni, read_schedule, write_schedule,
};
use crate::messages::restriction;
use crate::run_dir::{Foreign, KeptAttachment, KeptPeers, KeptPolicy, KeptSchedule, RunDir, State};
use crate::tables::Restriction;
use crate::worker::Policing;
use waiting::WaitingList;

/// What holds when the state file could not be written.
const UNCHANGED: &str = "nothing was changed";

/// What network policies leave of attachments, by name.
type Restrictions = BTreeMap<String, Arc<Restriction>>;
/// An attachment's name, its index where it is served, and its restriction from now on.
pub(super) type Change = (String, Option<AttachmentIndex>, Arc<Restriction>);

/// What the node is asked for.
pub(crate) struct Intent {
    config: Config,
    run_dir: RunDir,
    /// True while the node attaches what the configuration and the state file name. The file is written at the end of that.
    is_starting: bool,
    /// The attachments that came by the control API and are served.
    attachments: BTreeMap<AttachmentIndex, KeptAttachment>,
    /// Attachments of the state file that could not be attached after the restart. They stay in the file until they are detached.
    not_restored: Vec<KeptAttachment>,
    /// Attachments that are tried again until they succeed.
    pub(super) waiting: WaitingList,
    /// The gate schedules that the control API applied, by device.
    schedules: BTreeMap<String, Schedule>,
    /// The overlay peers that the control API set.
    peers: BTreeMap<PeersTarget, Vec<VxlanPeer>>,
    /// The restrictions that network policies put on attachments. An attachment without a restriction is not in it.
    restrictions: Restrictions,
    /// The parts of the state file that this ktsnd does not understand. They are written back unchanged.
    foreign: Foreign,
    /// True when an attachment has gone since the state file was written: the file must be written again.
    must_save: bool,
    /// True when the last restrictions are not in the state file because it could not be written.
    must_save_policies: bool,
    /// The warning that the state file could not be written, while that is so.
    unsaved: Option<String>,
}

impl Intent {
    pub(crate) fn new(config: Config, run_dir: RunDir) -> Self {
        Self {
            config,
            run_dir,
            is_starting: true,
            attachments: BTreeMap::new(),
            not_restored: Vec::new(),
            waiting: WaitingList::default(),
            schedules: BTreeMap::new(),
            peers: BTreeMap::new(),
            restrictions: BTreeMap::new(),
            foreign: Foreign::default(),
            must_save: false,
            must_save_policies: false,
            unsaved: None,
        }
    }

    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    pub(super) fn run_dir(&self) -> &RunDir {
        &self.run_dir
    }

    pub(super) fn is_starting(&self) -> bool {
        self.is_starting
    }

    /// What `Health` says of the state file, and of attachments that wait.
    pub(super) fn warnings(&self) -> impl Iterator<Item = String> {
        self.unsaved.iter().cloned().chain(self.waiting.warnings())
    }
}

/// The state file.
impl Intent {
    /// True when the state file could not be written, and is to be tried again.
    pub(super) fn is_unsaved(&self) -> bool {
        self.unsaved.is_some()
    }

    /// True when [`Self::must_save`] was called since the state file was written.
    pub(super) fn has_to_save(&self) -> bool {
        self.must_save
    }

    /// The state file is to be written once the node has time for it.
    pub(super) fn must_save(&mut self) {
        self.must_save = true;
    }

    /// Writes the state file. Where that fails, it is tried again once a second, and `Health` shows the warning until it succeeds.
    pub(super) fn save(&mut self) {
        let before = self.unsaved.take();
        self.must_save = false;
        if let Err(error) = self.try_save() {
            let warning = format!("state file: {error}; what changed now is lost at the next restart");
            if before.as_ref() != Some(&warning) {
                warn!("{warning}");
            }
            self.unsaved = Some(warning);
        } else if before.is_some() {
            info!("the state file is written again");
        }
    }

    fn try_save(&self) -> std::io::Result<()> {
        let schedule = |(port, schedule): (&String, &Schedule)| KeptSchedule {
            port: port.clone(),
            schedule: write_schedule(schedule),
        };
        let peers = |(target, peers): (&PeersTarget, &Vec<VxlanPeer>)| {
            let (attachment, vni) = match target {
                PeersTarget::Attachment(name) => (Some(name.clone()), None),
                PeersTarget::Vni(vni) => (None, Some(*vni)),
            };
            KeptPeers { attachment, vni, peers: peers.iter().map(VxlanPeer::config).collect() }
        };
        let policy = |(name, of): (&String, &Arc<Restriction>)| KeptPolicy {
            attachment: name.clone(),
            egress_allowed: of.egress.as_ref().map(|all| all.iter().map(ToString::to_string).collect()),
            ingress_blocked: of.is_ingress_blocked,
            reason: of.reason.clone(),
        };
        self.run_dir.save(&State {
            attachments: self.attachments.values().chain(&self.not_restored).cloned().collect(),
            schedules: self.schedules.iter().map(schedule).collect(),
            peers: self.peers.iter().map(peers).collect(),
            policies: self.restrictions.iter().map(policy).collect(),
            foreign: self.foreign.clone(),
        })
    }

    /// Puts one entry into a list, or takes it out (`None`). Nothing is changed where that cannot be kept: what is in force must be
    /// what a restart takes up again.
    fn change<K: Ord + Clone, V>(
        &mut self,
        list: fn(&mut Self) -> &mut BTreeMap<K, V>,
        key: &K,
        value: Option<V>,
    ) -> Result<(), NodeError> {
        let put = |list: &mut BTreeMap<K, V>, value| match value {
            Some(value) => list.insert(key.clone(), value),
            None => list.remove(key),
        };
        let before = put(list(self), value);
        let Err(error) = self.try_save() else { return Ok(()) };
        put(list(self), before);
        Err(NodeError::Unsaved { error, then: UNCHANGED })
    }
}

/// Attachments.
impl Intent {
    /// An attachment is served from now on; `saved`: as the state file is to have it. It takes the place of an entry of the state file
    /// with this name.
    pub(super) fn attached(&mut self, index: AttachmentIndex, name: &str, saved: Option<AttachmentConfig>) {
        self.forget_not_restored(name);
        let Some(raw) = saved else { return };
        self.attachments.insert(index, raw.into());
        if !self.is_starting {
            self.save();
        }
    }

    /// An attachment is served no more. True when the state file has something of it, and must be written.
    pub(super) fn detached(&mut self, index: AttachmentIndex, name: &str) -> bool {
        let was_saved = self.attachments.remove(&index).is_some();
        // The state file may name it twice, or the configuration names it too.
        let had_other = self.forget_not_restored(name);
        self.forget_lists(name) || was_saved || had_other
    }

    /// Forgets an attachment that is not served. True when the state file, or what waits, had it.
    pub(super) fn forget(&mut self, name: &str) -> bool {
        let was_known = self.forget_not_restored(name);
        if was_known {
            self.forget_lists(name);
        }
        was_known
    }

    /// Forgets peers and restrictions of an attachment; whether there were any.
    fn forget_lists(&mut self, name: &str) -> bool {
        let had_peers = self.peers.remove(&PeersTarget::Attachment(name.to_owned())).is_some();
        self.restrictions.remove(name).is_some() || had_peers
    }

    /// Forgets what the state file said of an attachment that is not served; whether it said anything.
    fn forget_not_restored(&mut self, name: &str) -> bool {
        let was_waiting = self.waiting.remove(name);
        let known = self.not_restored.len() + self.foreign.attachments.len();
        self.not_restored.retain(|entry| entry.raw.name.as_deref() != Some(name));
        self.foreign.attachments.retain(|entry| entry["name"].as_str() != Some(name));
        was_waiting || known != self.not_restored.len() + self.foreign.attachments.len()
    }

    /// Whether it is an attachment of the state file that is not served.
    pub(super) fn is_not_restored(&self, name: &str) -> bool {
        let is_foreign = |entry: &serde_json::Value| entry["name"].as_str() == Some(name);
        self.not_restored.iter().any(|kept| kept.raw.name.as_deref() == Some(name))
            || self.foreign.attachments.iter().any(is_foreign)
    }

    /// Takes up what this ktsnd does not understand of the state file. An attachment whose namespace is gone is forgotten.
    pub(super) fn restore_foreign(&mut self, mut foreign: Foreign) {
        foreign
            .attachments
            .retain(|entry| entry["netns"].as_str().is_none_or(|path| netns_path(path).exists()));
        self.foreign = foreign;
    }

    /// An attachment of the state file could not be attached. It stays in the file.
    pub(super) fn not_restored(&mut self, kept: KeptAttachment) {
        self.not_restored.push(kept);
    }

    /// What the state file had of an attachment beside the fields that are known: written back as it is.
    pub(super) fn keep_whole(&mut self, index: Option<AttachmentIndex>, whole: Option<serde_json::Value>) {
        if let (Some(kept), Some(whole)) = (index.and_then(|index| self.attachments.get_mut(&index)), whole) {
            kept.whole = Some(whole);
        }
    }

    /// All that the state file had is taken up. Restrictions of attachments that did not come back are forgotten.
    pub(super) fn started(&mut self, is_attached: &dyn Fn(&str) -> bool) {
        self.is_starting = false;
        let mut all = std::mem::take(&mut self.restrictions);
        all.retain(|name, _| is_attached(name) || self.is_not_restored(name));
        self.restrictions = all;
        self.save();
    }
}

/// Attachments that cannot be attached now.
impl Intent {
    /// Tries to attach this again from now on.
    pub(super) fn wait_for(&mut self, attachment: Attachment, is_saved: bool, why: String) {
        warn!(attachment = attachment.name, "not attached: {why}; tried again until it succeeds");
        self.waiting.add(attachment, is_saved, why);
    }

    /// An attachment lost its namespace or its interface. One of the configuration comes back with them.
    pub(super) fn wait_for_configured(&mut self, name: &str) {
        let configured = self.config.attachments.iter().find(|attachment| attachment.name == name);
        if let Some(attachment) = configured.cloned() {
            self.waiting.add(attachment, false, "its network namespace or interface is gone".to_owned());
        }
    }

    /// What the state file has of an attachment that was not restored, beside the fields that are known.
    pub(super) fn whole_of(&self, name: &str) -> Option<serde_json::Value> {
        let kept = self.not_restored.iter().find(|kept| kept.raw.name.as_deref() == Some(name))?;
        kept.whole.clone()
    }
}

/// Ports and their gate schedules. An applied schedule goes before the configuration's and is kept in the state file until it is
/// forgotten.
impl Intent {
    /// The port's configuration; all defaults for a device that none names.
    pub(crate) fn port(&self, device: &str) -> PortConfig {
        let named = self.config.ports.iter().find(|p| p.device == device);
        named.cloned().unwrap_or_else(|| PortConfig::on(device))
    }

    /// The configuration's schedule with this name.
    pub(super) fn configured_schedule(&self, name: &str) -> Option<&Schedule> {
        self.config.schedules.iter().find(|schedule| schedule.name.as_deref() == Some(name))
    }

    /// The schedule that is meant to hold on a device.
    pub(crate) fn schedule_of(&self, device: &str) -> Option<&Schedule> {
        self.schedules.get(device).or_else(|| self.configured_schedule(&self.port(device).schedule?))
    }

    /// Whether any port has gates, or frames are policed.
    pub(super) fn has_gates(&self) -> bool {
        self.config.policing.is_some()
            || !self.schedules.is_empty()
            || self.config.ports.iter().any(|port| port.schedule.is_some())
    }

    /// Priority → traffic class of a device: what its port says, else its schedule, else identity.
    pub(super) fn priority_map(&self, device: &str) -> PriorityMap {
        let of_schedule = || self.schedule_of(device).and_then(|schedule| schedule.priority_map);
        self.port(device).priority_map.or_else(of_schedule).unwrap_or_default()
    }

    /// Applies a schedule to a device, or (`None`) gives it back to the configuration.
    ///
    /// # Errors
    /// [`NodeError::Unsaved`]: nothing changed.
    pub(super) fn apply_schedule(
        &mut self,
        device: &str,
        schedule: Option<Schedule>,
    ) -> Result<(), NodeError> {
        self.change(|all| &mut all.schedules, &device.to_owned(), schedule)
    }

    /// Takes up the schedules of the state file again; a schedule that is no longer valid is forgotten. Answers warnings.
    pub(super) fn restore_schedules(&mut self, kept: &[KeptSchedule]) -> Vec<String> {
        let mut warnings = Vec::new();
        for KeptSchedule { port, schedule } in kept {
            match read_schedule("state.json", schedule) {
                Ok(schedule) => {
                    if let Some(configured) = self.port(port).schedule {
                        info!(
                            device = port,
                            applied = schedule.name,
                            configured,
                            "the schedule applied last goes before the configuration's"
                        );
                    }
                    self.schedules.insert(port.clone(), schedule);
                }
                Err(error) => {
                    warnings.push(format!("schedule of port {port} in the state file is forgotten: {error}"));
                }
            }
        }
        warnings
    }

    /// What stands in front of an uplink's queue. Each uplink has buckets, gates and counters of its own.
    pub(super) fn policing(&self, device: &str) -> Result<Option<Box<Policing>>, NodeError> {
        let asked = self.config.policing.as_ref().filter(|policing| policing.is_on(device));
        Ok(asked.map(|asked| Policing::new(&asked.config)).transpose()?.map(Box::new))
    }

    /// The stream identities by which an attachment's frames are distinguished.
    pub(super) fn streams_of(&self, attachment: &str) -> StreamIdentification {
        let asked = self.config.policing.as_ref();
        // The configuration was checked: there is no fault to tell.
        asked.and_then(|policing| policing.identification(attachment).ok()).unwrap_or_default()
    }
}

/// Overlay peers.
impl Intent {
    /// Replaces a list as a whole.
    ///
    /// # Errors
    /// [`NodeError::Unsaved`]: nothing changed.
    pub(super) fn set_peers(&mut self, target: &PeersTarget, peers: Vec<VxlanPeer>) -> Result<(), NodeError> {
        self.change(|all| &mut all.peers, target, Some(peers).filter(|peers| !peers.is_empty()))
    }

    /// What was given for an attachment.
    pub(super) fn peers_of(&self, name: &str) -> Option<&Vec<VxlanPeer>> {
        self.peers.get(&PeersTarget::Attachment(name.to_owned()))
    }

    /// Takes up the lists of the state file again. Answers those of a VNI.
    pub(super) fn restore_peers(
        &mut self,
        kept: &[KeptPeers],
        warnings: &mut Vec<String>,
    ) -> Vec<(u32, Vec<VxlanPeer>)> {
        let mut of_vnis = Vec::new();
        for list in kept {
            let peers = check_peers("state.json: peers", &list.peers);
            let target = match (&list.attachment, list.vni) {
                (Some(name), _) => Ok(PeersTarget::Attachment(name.clone())),
                (None, vni) => check_vni("state.json: vni", vni.unwrap_or(0)).map(PeersTarget::Vni),
            };
            match (target, peers) {
                (Ok(target), Ok(peers)) => {
                    if let PeersTarget::Vni(vni) = target {
                        of_vnis.push((vni, peers.clone()));
                    }
                    self.peers.insert(target, peers);
                }
                (Err(error), _) | (_, Err(error)) => {
                    warnings.push(format!("overlay peers of the state file are not taken up again: {error}"));
                }
            }
        }
        of_vnis
    }
}

/// Network policies: what they leave of the attachments' uplink egress and ingress fast path. A restriction is kept in the state file
/// before anything changes, so it is in force again from the first frame after a restart. Where it cannot be kept, what it takes
/// away is in force all the same.
impl Intent {
    /// What network policies leave of an attachment's uplink egress and ingress fast path.
    pub(crate) fn restriction_of(&self, name: &str) -> Arc<Restriction> {
        self.restriction(name).cloned().unwrap_or_default()
    }

    /// The same; `None`: everything.
    pub(crate) fn restriction(&self, name: &str) -> Option<&Arc<Restriction>> {
        self.restrictions.get(name)
    }

    /// Whether an attachment of the state file that is not served says that policies may be skipped.
    pub(super) fn skips_policies(&self, name: &str) -> bool {
        let mut all = self.not_restored.iter().map(|kept| &kept.raw);
        all.any(|raw| raw.name.as_deref() == Some(name) && raw.allow_policy_bypass == Some(true))
    }

    /// True when the last restrictions are not in the state file.
    pub(super) fn must_save_policies(&self) -> bool {
        self.must_save_policies
    }

    /// Puts restrictions in force. Answers what changed, and whether it is kept.
    pub(super) fn restrict(&mut self, changed: Vec<Change>) -> (Vec<Change>, std::io::Result<()>) {
        let before = self.restrictions.clone();
        for (name, _, restriction) in &changed {
            if restriction.is_any() {
                self.restrictions.insert(name.clone(), restriction.clone());
            } else {
                self.restrictions.remove(name);
            }
        }
        let saved = self.try_save();
        self.must_save_policies = saved.is_err();
        if saved.is_err() { (self.only_take_away(before, changed), saved) } else { (changed, saved) }
    }

    /// The restrictions could not be kept. One that a restart forgets is still better than none; one that a restart brings
    /// back must not be lifted. So of what changed only that is in force which takes away; answers those changes.
    fn only_take_away(&mut self, before: Restrictions, changed: Vec<Change>) -> Vec<Change> {
        self.restrictions = before;
        let mut taken = Vec::new();
        for (name, index, restriction) in changed {
            let held = self.restriction_of(&name);
            let both = Arc::new(held.and(&restriction));
            if (&both.egress, both.is_ingress_blocked) != (&held.egress, held.is_ingress_blocked) {
                self.restrictions.insert(name.clone(), both.clone());
                taken.push((name, index, both));
            }
        }
        taken
    }

    /// Takes up the restrictions of the state file again, before any attachment.
    pub(super) fn restore_policies(&mut self, kept: &[KeptPolicy], warnings: &mut Vec<String>) {
        for policy in kept.iter().cloned() {
            let name = policy.attachment.clone();
            let restriction = restriction("policies[0]", policy).map_or_else(
                |error| {
                    // Not knowing is no permission.
                    let reason = format!("the state file's restriction cannot be read: {error}");
                    warnings.push(format!("{name}: {reason}"));
                    Restriction { egress: Some(Vec::new()), is_ingress_blocked: true, reason }
                },
                |(_, restriction)| restriction,
            );
            self.restrictions.insert(name, Arc::new(restriction));
        }
    }
}

/// The file that a namespace's path or name means.
pub(super) fn netns_path(netns: &str) -> std::path::PathBuf {
    if netns.contains('/') { netns.into() } else { std::path::Path::new("/run/netns").join(netns) }
}

#[cfg(test)]
mod tests;
