// SPDX-License-Identifier: Apache-2.0
//! `[policing]`: stream identification (802.1CB) and the three tables of per-stream filtering and policing (802.1Q-2022
//! 12.31), with their YANG leaf names.
//!
//! In: the tables as they were written. Out: [`Policing`], which each uplink that it holds for gets its own copy of, or one
//! error that names leaf, value and what was expected. Instances are referred to by their identifiers; filters are tried in
//! the order of theirs (8.6.5.3).

use std::collections::BTreeSet;

use ktsn_model::{IpPrefix, Priority};
use ktsn_sched::policing::{
    FlowMeter, PolicingConfig, PolicingFault, StreamFilter, StreamGate, StreamGateEntry, StreamHandle,
    StreamIdentification, StreamIdentity, StreamMatch,
};
use serde::Deserialize;

use super::ConfigError;
use super::schedule;
use super::values::{Checked, choice, device_name, prefix, word};

const IDENTITIES: &str = "policing.stream-identity";
const FILTERS: &str = "policing.stream-filter-instance-table";
const GATES: &str = "policing.stream-gate-instance-table";
const METERS: &str = "policing.flow-meter-instance-table";

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct RawPolicing {
    ports: Option<Vec<String>>,
    #[serde(default)]
    stream_identity: Vec<RawIdentity>,
    #[serde(default, rename = "stream-filter-instance-table")]
    filters: Vec<RawFilter>,
    #[serde(default, rename = "stream-gate-instance-table")]
    gates: Vec<RawGate>,
    #[serde(default, rename = "flow-meter-instance-table")]
    meters: Vec<RawMeter>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct RawIdentity {
    handle: Option<u64>,
    attachment: Option<String>,
    null_stream_identification: Option<RawNull>,
    ip_stream_identification: Option<RawIp>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct RawNull {
    destination_mac: Option<String>,
    vlan: Option<u64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct RawIp {
    ip_source: Option<String>,
    ip_destination: Option<String>,
    next_protocol: Option<RawProtocol>,
    source_port: Option<u64>,
    destination_port: Option<u64>,
}

/// `"udp"`, `"tcp"` or a number.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum RawProtocol {
    Number(u64),
    Word(String),
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct RawFilter {
    #[serde(rename = "stream-filter-instance-id")]
    id: Option<u64>,
    stream_handle: Option<u64>,
    priority_spec: Option<u64>,
    max_sdu_size: Option<u64>,
    #[serde(rename = "stream-blocked-due-to-oversize-frame-enabled")]
    blocked: Option<bool>,
    stream_gate_ref: Option<u64>,
    flow_meter_ref: Option<u64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct RawGate {
    #[serde(rename = "stream-gate-instance-id")]
    id: Option<u64>,
    gate_enabled: Option<toml::Value>,
    admin_gate_states: Option<String>,
    admin_ipv: Option<u64>,
    admin_base_time: Option<toml::Value>,
    admin_cycle_time: Option<toml::Value>,
    admin_cycle_time_extension: Option<toml::Value>,
    admin_control_list: Option<Vec<RawGateEntry>>,
    #[serde(rename = "gate-closed-due-to-invalid-rx-enabled")]
    closed_due_to_invalid_rx: Option<bool>,
    #[serde(rename = "gate-closed-due-to-octets-exceeded-enabled")]
    closed_due_to_octets_exceeded: Option<bool>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct RawGateEntry {
    gate_state_value: Option<String>,
    ipv_spec: Option<u64>,
    time_interval_value: Option<toml::Value>,
    interval_octet_max: Option<u64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct RawMeter {
    #[serde(rename = "flow-meter-instance-id")]
    id: Option<u64>,
    committed_information_rate: Option<u64>,
    committed_burst_size: Option<u64>,
    excess_information_rate: Option<u64>,
    excess_burst_size: Option<u64>,
    coupling_flag: Option<bool>,
    drop_on_yellow: Option<bool>,
    mark_all_frames_red_enabled: Option<bool>,
}

/// `[[policing.stream-identity]]`: frames that are a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Frames of the attachment with this name alone; `None`: of any.
    pub attachment: Option<String>,
    /// Which of them, and their stream.
    pub identity: StreamIdentity,
}

/// What a stream filter is called and refers to, in the administrator's numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FilterName {
    /// `stream-filter-instance-id`.
    pub id: u32,
    /// `stream-gate-ref`.
    pub stream_gate_ref: Option<u32>,
    /// `flow-meter-ref`.
    pub flow_meter_ref: Option<u32>,
}

/// `[policing]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policing {
    /// Devices of the uplinks that it holds for; empty: all.
    pub ports: Vec<String>,
    /// `[[policing.stream-identity]]`, in order.
    pub identities: Vec<Identity>,
    /// The stream filters of `config` by their identifiers, ascending.
    pub filters: Vec<FilterName>,
    /// What is done with the streams.
    pub config: PolicingConfig,
}

impl Policing {
    /// Whether it holds for the uplink `device`.
    #[must_use]
    pub fn is_on(&self, device: &str) -> bool {
        self.ports.is_empty() || self.ports.iter().any(|port| port == device)
    }

    /// The table by which frames of one attachment are assigned to streams.
    ///
    /// # Errors
    /// [`PolicingFault`]; never for a table that was checked.
    pub fn identification(&self, attachment: &str) -> Result<StreamIdentification, PolicingFault> {
        let of_it = |entry: &&Identity| entry.attachment.as_deref().is_none_or(|name| name == attachment);
        let entries: Vec<_> = self.identities.iter().filter(of_it).map(|entry| entry.identity).collect();
        StreamIdentification::new(&entries)
    }

    /// `uplinks` are the devices that the rest of the file knows.
    pub(super) fn check(raw: RawPolicing, uplinks: &[&str]) -> Checked<Self> {
        let mut policing = Self::default();
        for (i, device) in raw.ports.iter().flatten().enumerate() {
            let field = format!("policing.ports[{i}]");
            let device = device_name(&field, Some(device))?;
            if !uplinks.contains(&device.as_str()) {
                let expected = "the device of a [[port]] or the uplink of an [[attachment]] of this file";
                return Err(ConfigError::value(&field, device, expected));
            }
            policing.ports.push(device);
        }
        if raw.ports.is_some_and(|ports| ports.is_empty()) {
            let expected = "at least one device; leave it out for all uplinks";
            return Err(ConfigError::value("policing.ports", "[]", expected));
        }
        for (i, identity) in raw.stream_identity.into_iter().enumerate() {
            policing.identities.push(check_identity(&format!("{IDENTITIES}[{i}]"), identity)?);
        }
        policing.check_identities()?;
        let (gate_ids, meter_ids) = policing.check_instances(raw.gates, raw.meters)?;
        policing.check_filters(raw.filters, &gate_ids, &meter_ids)?;
        Ok(policing)
    }

    /// The tables that attachments will get: each named one's, and that of all others.
    fn check_identities(&self) -> Checked<()> {
        let names: BTreeSet<&str> =
            self.identities.iter().filter_map(|entry| entry.attachment.as_deref()).collect();
        for name in names.into_iter().chain([""]) {
            let Err(fault) = self.identification(name) else { continue };
            let of_it = |(_, entry): &(usize, &Identity)| {
                entry.attachment.as_deref().is_none_or(|other| other == name)
            };
            let place = |at: usize| {
                let found = self.identities.iter().enumerate().filter(of_it).nth(at);
                found.map_or(at, |(index, _)| index)
            };
            let index = place(fault.index);
            if fault.leaf == StreamIdentification::SAME {
                let first = place(usize::try_from(fault.value).unwrap_or(usize::MAX));
                let field = format!("{IDENTITIES}[{index}]");
                return Err(ConfigError::value(&field, format!("the same as [{first}]"), fault.expected));
            }
            return Err(wrong(IDENTITIES, &PolicingFault { index, ..fault }));
        }
        Ok(())
    }

    fn check_instances(
        &mut self,
        gates: Vec<RawGate>,
        meters: Vec<RawMeter>,
    ) -> Checked<(Vec<u32>, Vec<u32>)> {
        let (mut gate_ids, mut meter_ids) = (Vec::new(), Vec::new());
        for (i, gate) in gates.into_iter().enumerate() {
            let field = format!("{GATES}[{i}]");
            new_id(&field, "stream-gate-instance-id", gate.id, &mut gate_ids)?;
            self.config.stream_gates.push(check_gate(&field, gate)?);
        }
        for (i, meter) in meters.into_iter().enumerate() {
            let field = format!("{METERS}[{i}]");
            new_id(&field, "flow-meter-instance-id", meter.id, &mut meter_ids)?;
            self.config.flow_meters.push(check_meter(&field, &meter)?);
        }
        self.config.check().map_err(|fault| {
            let table = if fault.list == "flow-meter" { METERS } else { GATES };
            wrong(table, &fault)
        })?;
        Ok((gate_ids, meter_ids))
    }

    fn check_filters(&mut self, raw: Vec<RawFilter>, gate_ids: &[u32], meter_ids: &[u32]) -> Checked<()> {
        if raw.is_empty() {
            let expected = "at least one stream filter; without one nothing is policed";
            return Err(ConfigError::missing(FILTERS, expected));
        }
        if raw.len() > PolicingConfig::INSTANCES_MAX {
            let expected = format!("at most {} stream filters", PolicingConfig::INSTANCES_MAX);
            return Err(ConfigError::value(FILTERS, raw.len(), expected));
        }
        let (mut ids, mut filters) = (Vec::new(), Vec::new());
        for (i, filter) in raw.into_iter().enumerate() {
            let field = format!("{FILTERS}[{i}]");
            let id = new_id(&field, "stream-filter-instance-id", filter.id, &mut ids)?;
            let instance = self.check_filter(&field, &filter, gate_ids, meter_ids)?;
            let reference = |value: Option<u64>| value.and_then(|value| u32::try_from(value).ok());
            let name = FilterName {
                id,
                stream_gate_ref: reference(filter.stream_gate_ref),
                flow_meter_ref: reference(filter.flow_meter_ref),
            };
            filters.push((name, instance));
        }
        filters.sort_unstable_by_key(|(name, _)| name.id);
        (self.filters, self.config.stream_filters) = filters.into_iter().unzip();
        Ok(())
    }

    fn check_filter(
        &self,
        field: &str,
        raw: &RawFilter,
        gate_ids: &[u32],
        meter_ids: &[u32],
    ) -> Checked<StreamFilter> {
        let path = |leaf: &str| format!("{field}.{leaf}");
        let stream = number(&path("stream-handle"), raw.stream_handle, 0, u32::MAX)?.map(StreamHandle);
        if let Some(handle) = stream.filter(|s| self.identities.iter().all(|i| i.identity.stream != *s)) {
            let expected = "the handle of a stream-identity; left out: any frame";
            return Err(ConfigError::value(&path("stream-handle"), handle.0, expected));
        }
        let reference = |leaf: &str, value: Option<u64>, ids: &[u32], of: &str| match value {
            None => Ok(None),
            Some(id) => ids.iter().position(|other| u64::from(*other) == id).map(Some).ok_or_else(|| {
                ConfigError::value(&path(leaf), id, format!("the {of} of an entry of this file"))
            }),
        };
        Ok(StreamFilter {
            stream,
            priority: number(&path("priority-spec"), raw.priority_spec, 0, 15)?.map(Priority::capped),
            max_sdu_octets: number(&path("max-sdu-size"), raw.max_sdu_size, 1, 65_535)?,
            blocked_due_to_oversize_frame_enabled: raw.blocked.unwrap_or_default(),
            stream_gate: reference(
                "stream-gate-ref",
                raw.stream_gate_ref,
                gate_ids,
                "stream-gate-instance-id",
            )?,
            flow_meter: reference("flow-meter-ref", raw.flow_meter_ref, meter_ids, "flow-meter-instance-id")?,
        })
    }
}

fn wrong(table: &str, fault: &PolicingFault) -> ConfigError {
    let entry = fault.entry_index.map_or_else(String::new, |at| format!("admin-control-list[{at}]."));
    let field = match fault.leaf {
        "count" => table.to_owned(),
        leaf => format!("{table}[{}].{entry}{leaf}", fault.index),
    };
    ConfigError::value(&field, fault.value, format!("{} ({})", fault.expected, fault.rule))
}

fn number(field: &str, value: Option<u64>, least: u32, most: u32) -> Checked<Option<u32>> {
    let Some(value) = value else { return Ok(None) };
    let fits = u32::try_from(value).ok().filter(|value| (least..=most).contains(value));
    fits.map(Some).ok_or_else(|| ConfigError::value(field, value, format!("{least} to {most}")))
}

/// An instance's identifier, which no other of its table has.
fn new_id(field: &str, leaf: &str, value: Option<u64>, known: &mut Vec<u32>) -> Checked<u32> {
    let field = format!("{field}.{leaf}");
    let Some(id) = number(&field, value, 0, u32::MAX)? else {
        return Err(ConfigError::missing(&field, "a number that is unique in its table"));
    };
    if known.contains(&id) {
        return Err(ConfigError::duplicate(&field, id));
    }
    known.push(id);
    Ok(id)
}

fn check_identity(field: &str, raw: RawIdentity) -> Checked<Identity> {
    let path = |leaf: &str| format!("{field}.{leaf}");
    let Some(handle) = number(&path("handle"), raw.handle, 0, u32::MAX)? else {
        let expected = "the stream's number, which stream filters name as stream-handle";
        return Err(ConfigError::missing(&path("handle"), expected));
    };
    if raw.attachment.as_deref() == Some("") {
        return Err(ConfigError::value(&path("attachment"), "", "the name of an attachment"));
    }
    let matches = match (raw.null_stream_identification, raw.ip_stream_identification) {
        (Some(_), Some(_)) => {
            let expected = "either this or ip-stream-identification".to_owned();
            return Err(ConfigError::value(&path("null-stream-identification"), "", expected));
        }
        (None, None) if raw.attachment.is_none() => {
            let expected = "attachment, ip-stream-identification or null-stream-identification";
            return Err(ConfigError::missing(field, expected));
        }
        (None, None) => StreamMatch::All { attachment: None },
        (Some(null), None) => {
            let leaf = path("null-stream-identification.destination-mac");
            let text = super::values::required(&leaf, null.destination_mac.as_deref(), "a MAC address")?;
            let mac: ktsn_wire::MacAddress = text
                .parse()
                .map_err(|_| ConfigError::value(&leaf, text, "six octets such as 02:00:00:00:00:01"))?;
            let vlan = number(&path("null-stream-identification.vlan"), null.vlan, 1, 4094)?;
            StreamMatch::MacVlan { destination: mac.0, vlan: vlan.map(|vid| vid as u16) }
        }
        (None, Some(ip)) => check_ip(&path("ip-stream-identification"), &ip)?,
    };
    let identity = StreamIdentity { matches, stream: StreamHandle(handle) };
    Ok(Identity { attachment: raw.attachment, identity })
}

fn check_ip(field: &str, raw: &RawIp) -> Checked<StreamMatch> {
    let path = |leaf: &str| format!("{field}.{leaf}");
    let prefix_of = |leaf: &str, text: &Option<String>| -> Checked<Option<IpPrefix>> {
        text.as_deref().map(|text| prefix(&path(leaf), text)).transpose()
    };
    let source = prefix_of("ip-source", &raw.ip_source)?;
    let destination = prefix_of("ip-destination", &raw.ip_destination)?;
    if let (Some(source), Some(destination)) = (source, destination)
        && source.address().is_ipv4() != destination.address().is_ipv4()
    {
        let expected = "a prefix of the same family as ip-destination";
        return Err(ConfigError::value(&path("ip-source"), source, expected));
    }
    let protocol = match &raw.next_protocol {
        None => None,
        Some(RawProtocol::Number(value)) => number(&path("next-protocol"), Some(*value), 0, 255)?,
        Some(RawProtocol::Word(word)) => match word.as_str() {
            "udp" => Some(17),
            "tcp" => Some(6),
            _ => return Err(ConfigError::value(&path("next-protocol"), word, "udp, tcp or 0 to 255")),
        },
    };
    let port = |leaf: &str, value| Ok(number(&path(leaf), value, 1, 65_535)?.map(|port| port as u16));
    Ok(StreamMatch::Ip {
        attachment: None,
        source,
        destination,
        protocol: protocol.map(|protocol| protocol as u8),
        source_port: port("source-port", raw.source_port)?,
        destination_port: port("destination-port", raw.destination_port)?,
    })
}

fn ipv(field: &str, value: Option<u64>) -> Checked<Option<Priority>> {
    Ok(number(field, value, 0, 7)?.map(Priority::capped))
}

/// Instants and spans are read, and checked as a whole, as those of a port's gates are.
fn check_gate(field: &str, raw: RawGate) -> Checked<StreamGate> {
    let path = |leaf: &str| format!("{field}.{leaf}");
    let mut table = serde_json::Map::new();
    let mut put = |leaf: &str, value: Option<toml::Value>| {
        if let Some(value) = value {
            table.insert(leaf.to_owned(), serde_json::to_value(value).unwrap_or_default());
        }
    };
    put("gate-enabled", raw.gate_enabled);
    put("admin-base-time", raw.admin_base_time);
    put("admin-cycle-time", raw.admin_cycle_time);
    put("admin-cycle-time-extension", raw.admin_cycle_time_extension);
    let (mut entries, mut rows) = (Vec::new(), Vec::new());
    for (i, entry) in raw.admin_control_list.into_iter().flatten().enumerate() {
        let (entry, row) = check_entry(&format!("{field}.admin-control-list[{i}]"), entry)?;
        entries.push(entry);
        rows.push(row);
    }
    if !rows.is_empty() {
        table.insert("admin-control-list".to_owned(), rows.into());
    }
    let admin = schedule::gate_parameters(field, &table)?;
    for (entry, read) in entries.iter_mut().zip(&admin.control_list) {
        entry.interval = read.interval;
    }
    Ok(StreamGate {
        gate_enabled: admin.gate_enabled,
        gate_state: word(&path("admin-gate-states"), raw.admin_gate_states.as_deref())?,
        ipv: ipv(&path("admin-ipv"), raw.admin_ipv)?,
        base_time: admin.base_time,
        cycle_time: admin.cycle_time,
        cycle_time_extension: admin.cycle_time_extension,
        control_list: entries,
        closed_due_to_invalid_rx_enabled: raw.closed_due_to_invalid_rx.unwrap_or_default(),
        closed_due_to_octets_exceeded_enabled: raw.closed_due_to_octets_exceeded.unwrap_or_default(),
    })
}

/// An entry but for its interval, and what the reader of port gates is given for that.
fn check_entry(field: &str, raw: RawGateEntry) -> Checked<(StreamGateEntry, serde_json::Value)> {
    let path = |leaf: &str| format!("{field}.{leaf}");
    let leaf = path("gate-state-value");
    let Some(state) = choice(&leaf, raw.gate_state_value.as_deref())? else {
        return Err(ConfigError::missing(&leaf, "open or closed"));
    };
    let entry = StreamGateEntry {
        state,
        ipv: ipv(&path("ipv-spec"), raw.ipv_spec)?,
        interval: ktsn_time::Nanos::ZERO,
        interval_octet_max: number(&path("interval-octet-max"), raw.interval_octet_max, 0, u32::MAX)?,
    };
    let mut row = serde_json::json!({ "gate-states-value": 255 });
    if let Some(span) = raw.time_interval_value {
        row["time-interval-value"] = serde_json::to_value(span).unwrap_or_default();
    }
    Ok((entry, row))
}

fn check_meter(field: &str, raw: &RawMeter) -> Checked<FlowMeter> {
    let burst =
        |leaf: &str, value| Ok(number(&format!("{field}.{leaf}"), value, 0, u32::MAX)?.unwrap_or_default());
    Ok(FlowMeter {
        committed_information_rate: raw.committed_information_rate.unwrap_or_default(),
        committed_burst_size: burst("committed-burst-size", raw.committed_burst_size)?,
        excess_information_rate: raw.excess_information_rate.unwrap_or_default(),
        excess_burst_size: burst("excess-burst-size", raw.excess_burst_size)?,
        coupling_flag: raw.coupling_flag.unwrap_or_default(),
        drop_on_yellow: raw.drop_on_yellow.unwrap_or_default(),
        mark_all_frames_red_enabled: raw.mark_all_frames_red_enabled.unwrap_or_default(),
    })
}
