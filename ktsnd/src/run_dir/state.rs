// SPDX-License-Identifier: Apache-2.0
//! The state file's contents: what it holds, and how an older or a newer ktsnd reads it.
//!
//! In: octets of the file. Out: every entry that this ktsnd understands, and the others as they are, to be written back.
//! Each entry is read on its own: one that is damaged, or of a newer ktsnd, costs no other. The rules are in
//! docs/interfaces.md, "The state file".

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::config::{AttachmentConfig, EgressMode, Ethernet, PeerConfig};

/// The state that a daemon restores after a restart.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct State {
    /// Attachments that came by the control API.
    pub attachments: Vec<KeptAttachment>,
    /// Gate schedules that came by it.
    pub schedules: Vec<KeptSchedule>,
    /// Overlay peers that came by it.
    pub peers: Vec<KeptPeers>,
    /// What network policies leave of attachments' uplink egress and ingress fast path, where that is not everything.
    pub policies: Vec<KeptPolicy>,
    /// Entries that this ktsnd does not understand.
    pub foreign: Foreign,
}

/// An attachment of the file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct KeptAttachment {
    /// What this ktsnd understands of it.
    pub raw: AttachmentConfig,
    /// The entry as it was read, where it says more: what this ktsnd does not know is written back so.
    pub whole: Option<Value>,
}

impl From<AttachmentConfig> for KeptAttachment {
    fn from(raw: AttachmentConfig) -> Self {
        Self { raw, whole: None }
    }
}

/// Entries that this ktsnd does not understand, as they were read: they are kept for the ktsnd that wrote them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Foreign {
    /// Attachments; each has a name.
    pub attachments: Vec<Value>,
    /// Gate schedules.
    pub schedules: Vec<Value>,
    /// Overlay peers.
    pub peers: Vec<Value>,
    /// Other fields of the file.
    pub fields: Map<String, Value>,
}

/// The overlay peers of one attachment or of one VNI.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct KeptPeers {
    /// The attachment's name; none: the VNI's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attachment: Option<String>,
    /// The VNI, where no attachment is named.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vni: Option<u32>,
    /// The peers, as the request gave them.
    pub peers: Vec<PeerConfig>,
}

/// What network policies leave of one attachment's uplink egress and ingress fast path.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct KeptPolicy {
    /// The attachment's name.
    pub attachment: String,
    /// Destinations of frames that leave by the uplink; none: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub egress_allowed: Option<Vec<String>>,
    /// Whether nothing takes the ingress fast path.
    #[serde(default)]
    pub ingress_blocked: bool,
    /// Which policies.
    #[serde(default)]
    pub reason: String,
}

/// The gate schedule of one port.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct KeptSchedule {
    /// The device.
    pub port: String,
    /// What was applied, as `ktsn_schedule` writes it.
    pub schedule: Value,
}

/// The highest form of the file that is read. It goes up when an older ktsnd would misread even single entries.
pub(super) const VERSION: u64 = 2;

/// The form in which a state is written: 2 with overlay peers, else 1, so that an older ktsnd reads what it knows.
fn form_of(state: &State) -> u64 {
    if state.peers.is_empty() && state.foreign.peers.is_empty() { 1 } else { 2 }
}

/// Why nothing of a state file is used.
#[derive(Debug, thiserror::Error)]
pub(super) enum StateError {
    #[error(
        "it has form {0}, this ktsnd reads up to {VERSION}: a newer ktsnd wrote it; run that one with it, or attach again"
    )]
    Newer(u64),
    #[error("{0}")]
    Damaged(#[from] serde_json::Error),
}

impl StateError {
    /// The name under which the file is set aside.
    pub(super) fn aside(&self) -> &'static str {
        match self {
            Self::Newer(_) => "state.json.newer",
            Self::Damaged(_) => "state.json.damaged",
        }
    }
}

/// What was read, and what of it is lost or not served.
#[derive(Debug, Default)]
pub(super) struct Reading {
    pub(super) state: State,
    /// One line for each entry that is not used as it stands.
    pub(super) notes: Vec<String>,
    /// Entries are lost: the file is to be kept under another name.
    pub(super) is_damaged: bool,
}

impl Reading {
    fn lose(&mut self, list: &str, index: usize, why: &dyn std::fmt::Display) {
        self.notes.push(format!("{list}[{index}]: {why}; this entry is lost, the others are not"));
        self.is_damaged = true;
    }

    fn attachment(&mut self, index: usize, entry: Value) {
        let Some(name) = entry.get("name").and_then(Value::as_str).map(str::to_owned) else {
            return self.lose("attachments", index, &"it has no name");
        };
        let mut fields = entry.clone();
        let needs = fields.as_object_mut().and_then(|fields| fields.remove("needs"));
        let keep = |reading: &mut Self, why: &dyn std::fmt::Display| {
            let note =
                format!("attachment {name}: {why}; it is not served, and kept for the ktsnd that wrote it");
            reading.notes.push(note);
            reading.state.foreign.attachments.push(entry.clone());
        };
        if let Some(missing) = missing_need(needs.as_ref(), &entry) {
            return keep(self, &format!("it needs {missing}, which this ktsnd does not know"));
        }
        let (raw, unknown) = match AttachmentConfig::read_known("attachment", fields) {
            Ok(read) => read,
            Err(fault) => return keep(self, &fault),
        };
        if !unknown.is_empty() {
            let list = unknown.join(", ");
            self.notes.push(format!("attachment {name}: this ktsnd does not know {list}: served without"));
        }
        let whole = (!unknown.is_empty()).then_some(entry);
        self.state.attachments.push(KeptAttachment { raw, whole });
    }

    fn schedule(&mut self, entry: Value) {
        match serde_json::from_value(entry.clone()) {
            Ok(schedule) => self.state.schedules.push(schedule),
            Err(error) => {
                self.notes.push(format!("a gate schedule: {error}; it is not applied, and kept"));
                self.state.foreign.schedules.push(entry);
            }
        }
    }

    /// Reads a restriction. An entry that is not understood forbids everything until a new request replaces it.
    fn policy(&mut self, index: usize, entry: Value) {
        let Some(attachment) = entry.get("attachment").and_then(Value::as_str).map(str::to_owned) else {
            return self.lose("policies", index, &"it names no attachment");
        };
        let policy = serde_json::from_value(entry).unwrap_or_else(|error| {
            let reason = format!("the state file's entry is not understood: {error}");
            self.notes
                .push(format!("network policies of {attachment}: {reason}; nothing leaves by the uplink"));
            KeptPolicy { attachment, egress_allowed: Some(Vec::new()), ingress_blocked: true, reason }
        });
        self.state.policies.push(policy);
    }

    fn peers(&mut self, entry: Value) {
        // Without a field that it does not know of a peer, frames could go to the wrong place: nothing is taken out.
        match serde_json::from_value(entry.clone()) {
            Ok(list) => self.state.peers.push(list),
            Err(error) => {
                self.notes.push(format!("overlay peers: {error}; they are not given, and kept"));
                self.state.foreign.peers.push(entry);
            }
        }
    }
}

/// The first of an attachment's needs that this ktsnd does not know: `needs` lists fields by name, and a ktsnd that does
/// not know one of them would serve the attachment wrongly. Whatever is no list of names is not known either.
fn missing_need(needs: Option<&Value>, entry: &Value) -> Option<String> {
    let needs = match needs {
        None => return None,
        Some(Value::Array(needs)) => needs,
        Some(other) => return Some(other.to_string()),
    };
    let is_known = |need: &&Value| {
        need.as_str().is_some_and(|name| AttachmentConfig::KEYS.contains(&name) && entry.get(name).is_some())
    };
    needs.iter().find(|need| !is_known(need)).map(ToString::to_string)
}

/// The list under `name`, taken out of the file's fields.
fn list(fields: &mut Map<String, Value>, name: &str) -> Result<Vec<Value>, StateError> {
    match fields.remove(name) {
        None => Ok(Vec::new()),
        Some(Value::Array(entries)) => Ok(entries),
        Some(_) => {
            let what = format!("{name}: expected a list");
            Err(StateError::Damaged(serde::de::Error::custom(what)))
        }
    }
}

/// The file's contents. Without a version they have form 1, or are attachments alone, as ktsnd wrote them at first.
pub(super) fn read_state(octets: &[u8]) -> Result<Reading, StateError> {
    let mut fields = match serde_json::from_slice(octets)? {
        Value::Object(fields) => fields,
        Value::Array(attachments) => Map::from_iter([("attachments".to_owned(), Value::Array(attachments))]),
        _ => return Err(StateError::Damaged(serde::de::Error::custom("expected an object"))),
    };
    match fields.remove("version").map(|version| version.as_u64().ok_or(version)) {
        Some(Ok(version)) if version > VERSION => return Err(StateError::Newer(version)),
        Some(Err(other)) => {
            let what = format!("version: {other}: expected a number");
            return Err(StateError::Damaged(serde::de::Error::custom(what)));
        }
        _ => {}
    }
    let mut reading = Reading::default();
    for (index, entry) in list(&mut fields, "attachments")?.into_iter().enumerate() {
        reading.attachment(index, entry);
    }
    list(&mut fields, "schedules")?.into_iter().for_each(|entry| reading.schedule(entry));
    list(&mut fields, "peers")?.into_iter().for_each(|entry| reading.peers(entry));
    for (index, entry) in list(&mut fields, "policies")?.into_iter().enumerate() {
        reading.policy(index, entry);
    }
    if !fields.is_empty() {
        let names: Vec<&str> = fields.keys().map(String::as_str).collect();
        reading.notes.push(format!("this ktsnd does not know {}: kept as it is", names.join(", ")));
    }
    reading.state.foreign.fields = fields;
    Ok(reading)
}

/// An attachment as it is written: nothing is copied for it.
#[derive(Serialize)]
#[serde(untagged)]
enum Entry<'a> {
    Foreign(&'a Value),
    Whole(Value),
    Known {
        #[serde(flatten)]
        raw: &'a AttachmentConfig,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        needs: Vec<&'static str>,
    },
}

#[derive(Serialize)]
#[serde(untagged)]
enum Either<'a, T> {
    Known(&'a T),
    Foreign(&'a Value),
}

#[derive(Serialize)]
struct Written<'a> {
    version: u64,
    attachments: Vec<Entry<'a>>,
    schedules: Vec<Either<'a, KeptSchedule>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    peers: Vec<Either<'a, KeptPeers>>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    policies: &'a [KeptPolicy],
    #[serde(flatten)]
    fields: &'a Map<String, Value>,
}

/// Fields of an attachment that say what it must not do, or where its frames go: a ktsnd that does not know one of them must not serve it.
fn needs(raw: &AttachmentConfig) -> Vec<&'static str> {
    let is_closed = raw.ethernet.as_deref() == Some(Ethernet::Listed.word());
    // Without it the frames would leave by the pod's interface, past the virtual switch.
    let is_elsewhere = raw.egress.is_some() && raw.egress.as_deref() != Some(EgressMode::Interface.word());
    [(raw.addresses.is_some(), "addresses"), (is_closed, "ethernet"), (is_elsewhere, "egress")]
        .into_iter()
        .filter_map(|(is_needed, field)| is_needed.then_some(field))
        .collect()
}

/// An entry that says more than this ktsnd knows, with what this one knows by now.
fn merged(whole: &Value, raw: &AttachmentConfig) -> serde_json::Result<Value> {
    let mut whole = whole.clone();
    if let (Some(fields), Value::Object(known)) = (whole.as_object_mut(), serde_json::to_value(raw)?) {
        fields.extend(known);
        let own = needs(raw);
        if !own.is_empty() {
            let listed = fields.entry("needs").or_insert_with(|| Value::Array(Vec::new()));
            if let Some(listed) = listed.as_array_mut() {
                let missing = own.into_iter().map(Value::from).filter(|need| !listed.contains(need));
                let missing: Vec<Value> = missing.collect();
                listed.extend(missing);
            }
        }
    }
    Ok(whole)
}

/// The octets of the file.
///
/// # Errors
/// None that a state can cause.
pub(super) fn write_state(state: &State) -> serde_json::Result<Vec<u8>> {
    let mut entries = Vec::with_capacity(state.attachments.len() + state.foreign.attachments.len());
    for kept in &state.attachments {
        entries.push(match &kept.whole {
            Some(whole) => Entry::Whole(merged(whole, &kept.raw)?),
            None => Entry::Known { raw: &kept.raw, needs: needs(&kept.raw) },
        });
    }
    let Foreign { attachments, schedules, peers, fields } = &state.foreign;
    entries.extend(attachments.iter().map(Entry::Foreign));
    let written = Written {
        version: form_of(state),
        attachments: entries,
        schedules: both(&state.schedules, schedules),
        peers: both(&state.peers, peers),
        policies: &state.policies,
        fields,
    };
    serde_json::to_vec_pretty(&written)
}

fn both<'a, T>(known: &'a [T], foreign: &'a [Value]) -> Vec<Either<'a, T>> {
    known.iter().map(Either::Known).chain(foreign.iter().map(Either::Foreign)).collect()
}

#[cfg(test)]
#[path = "state_tests.rs"]
mod tests;
