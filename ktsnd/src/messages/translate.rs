// SPDX-License-Identifier: Apache-2.0
//! Messages of the control API ↔ the daemon's own values.

use std::collections::HashSet;

use ktsn_model::{
    AdminPort, GateControlEntry, GateOperation, GateStates, IpPrefix, PriorityMap, TrafficClass, UnknownWord,
};
use ktsn_proto::v1;
use ktsn_resolve::limits::ALLOWED_MAX;
use ktsn_time::{Nanos, Tai};

use crate::config::{
    ConfigError, PeerConfig, PeersTarget, Schedule, VxlanPeer, check_peers, check_vni, gate_fault,
};
use crate::run_dir::KeptPolicy;
use crate::stats::Spans;
use crate::tables::Restriction;

fn text(value: String) -> Option<String> {
    (!value.is_empty()).then_some(value)
}

fn count<T: Default + PartialEq>(value: T) -> Option<T> {
    (value != T::default()).then_some(value)
}

fn peer_configs(messages: Vec<v1::VxlanPeer>) -> Vec<PeerConfig> {
    let raw = |p: v1::VxlanPeer| PeerConfig { prefix: text(p.prefix), vtep: text(p.vtep), mac: text(p.mac) };
    messages.into_iter().map(raw).collect()
}

/// A list of overlay peers as it came in, checked.
///
/// # Errors
/// The field that is wrong, and what was expected.
pub fn peers(message: v1::SetPeersRequest) -> Result<(PeersTarget, Vec<VxlanPeer>), ConfigError> {
    use v1::set_peers_request::Target;
    let target = match message.target {
        Some(Target::Attachment(name)) if !name.is_empty() => PeersTarget::Attachment(name),
        Some(Target::Vni(vni)) => PeersTarget::Vni(check_vni("vni", vni)?),
        _ => {
            return Err(ConfigError::missing("attachment", "the name of an attachment, or a `vni`"));
        }
    };
    Ok((target, check_peers("peers", &peer_configs(message.peers))?))
}

/// Characters of a restriction's reason.
const REASON_MAX: usize = 1000;

/// Restrictions of network policies, checked.
///
/// # Errors
/// [`ConfigError`] for the first fault found.
pub fn policies(message: v1::SetPoliciesRequest) -> Result<Vec<(String, Restriction)>, ConfigError> {
    let (mut all, mut names) = (Vec::new(), HashSet::new());
    for (i, policy) in message.policies.into_iter().enumerate() {
        let field = format!("policies[{i}]");
        if !names.insert(policy.attachment.clone()) {
            return Err(ConfigError::duplicate(&format!("{field}.attachment"), policy.attachment));
        }
        if !policy.egress_restricted && !policy.egress_allowed.is_empty() {
            let (field, count) = (format!("{field}.egress_allowed"), policy.egress_allowed.len());
            return Err(ConfigError::value(&field, count, "none without egress_restricted"));
        }
        all.push(restriction(
            &field,
            KeptPolicy {
                attachment: policy.attachment,
                egress_allowed: policy.egress_restricted.then_some(policy.egress_allowed),
                ingress_blocked: policy.ingress_blocked,
                reason: policy.reason,
            },
        )?);
    }
    Ok(all)
}

/// The restriction of one attachment, checked; `field` is the path that errors begin with.
pub(crate) fn restriction(field: &str, policy: KeptPolicy) -> Result<(String, Restriction), ConfigError> {
    if policy.attachment.is_empty() {
        return Err(ConfigError::missing(&format!("{field}.attachment"), "the name of an attachment"));
    }
    let field = format!("{field}.egress_allowed");
    let prefix = |(at, text): (usize, &String)| {
        let fault = |_| ConfigError::value(&format!("{field}[{at}]"), text, "a prefix");
        text.parse::<IpPrefix>().map_err(fault)
    };
    let prefixes = |allowed: Vec<String>| {
        if allowed.len() > ALLOWED_MAX {
            return Err(ConfigError::value(&field, allowed.len(), format!("at most {ALLOWED_MAX} prefixes")));
        }
        allowed.iter().enumerate().map(prefix).collect::<Result<Vec<_>, _>>()
    };
    let restriction = Restriction {
        egress: policy.egress_allowed.map(prefixes).transpose()?,
        is_ingress_blocked: policy.ingress_blocked,
        reason: policy.reason.chars().filter(|c| !c.is_control()).take(REASON_MAX).collect(),
    };
    Ok((policy.attachment, restriction))
}

/// A gate schedule as it came in, checked; `None`: the configuration's is wanted.
///
/// # Errors
/// The field that is wrong, and what was expected.
pub fn gate_schedule(message: v1::ApplyScheduleRequest) -> Result<Option<Schedule>, ConfigError> {
    let Some(admin) = message.admin else {
        if let Some(row) = message.queue_max_sdu.first() {
            let expected = "no limits without `admin`: nothing is applied";
            return Err(ConfigError::value("queue_max_sdu[0]", row.queue_max_sdu, expected));
        }
        return Ok(None);
    };
    let admin = admin_port(&admin)?;
    admin.check().map_err(|fault| gate_fault("admin", &fault))?;
    let mut schedule = Schedule { name: text(message.name), admin, ..Schedule::default() };
    for (i, row) in message.queue_max_sdu.iter().enumerate() {
        let field = format!("queue_max_sdu[{i}].traffic_class");
        let limit = schedule.queue_max_sdu.get_mut(row.traffic_class as usize);
        let limit = limit.ok_or_else(|| ConfigError::value(&field, row.traffic_class, "0 to 7"))?;
        if limit.is_some() {
            return Err(ConfigError::duplicate(&field, row.traffic_class));
        }
        *limit = count(row.queue_max_sdu);
    }
    schedule.link_speed = count(message.link_speed);
    if !message.priority_map.is_empty() {
        let wrong = |found: String| ConfigError::value("priority_map", found, "16 traffic classes, 0 to 7");
        let classes: Vec<u8> =
            message.priority_map.iter().map(|c| u8::try_from(*c).unwrap_or(u8::MAX)).collect();
        let classes: [u8; 16] =
            classes.as_slice().try_into().map_err(|_| wrong(format!("{} classes", classes.len())))?;
        let map = PriorityMap::new(classes).map_err(|e| wrong(e.value.to_string()))?;
        schedule.priority_map = Some(map);
    }
    Ok(Some(schedule))
}

fn admin_port(message: &v1::GateParameters) -> Result<AdminPort, ConfigError> {
    let states = |field: &str, bits: u32| {
        let wrong = |_| ConfigError::value(field, bits, "0 to 255, one bit a class, bit 7 = class 7");
        u8::try_from(bits).map(GateStates::from_bits).map_err(wrong)
    };
    let span = |field: &str, value: u64| {
        let wrong = |_| ConfigError::value(field, value, "nanoseconds, less than 2^63");
        i64::try_from(value).map(Nanos::new).map_err(wrong)
    };
    let mut control_list = Vec::with_capacity(message.control_list.len());
    for (i, entry) in message.control_list.iter().enumerate() {
        let path = |name: &str| format!("admin.control_list[{i}].{name}");
        let word = if entry.operation_name.is_empty() {
            GateOperation::default().word()
        } else {
            &entry.operation_name
        };
        let wrong = |UnknownWord(words)| ConfigError::value(&path("operation_name"), word, words.to_string());
        let operation: GateOperation = word.parse().map_err(wrong)?;
        control_list.push(GateControlEntry {
            operation,
            states: states(&path("gate_states_value"), entry.gate_states_value)?,
            interval: span(&path("time_interval_value"), entry.time_interval_value)?,
        });
    }
    Ok(AdminPort {
        gate_enabled: message.gate_enabled,
        gate_states: states("admin.gate_states", message.gate_states.unwrap_or(255))?,
        base_time: Tai::from_nanos(message.base_time),
        cycle_time: span("admin.cycle_time", message.cycle_time)?,
        cycle_time_extension: span("admin.cycle_time_extension", message.cycle_time_extension)?,
        control_list,
    })
}

/// The classes that have a limit.
pub(crate) fn queue_max_sdu_messages(limits: &[Option<u32>; TrafficClass::COUNT]) -> Vec<v1::QueueMaxSdu> {
    let limited = (0u32..).zip(limits).filter_map(|(traffic_class, octets)| {
        octets.map(|queue_max_sdu| v1::QueueMaxSdu { traffic_class, queue_max_sdu })
    });
    limited.collect()
}

/// A distribution with its usual quantiles.
pub(crate) fn histogram_message(spans: &Spans) -> v1::Histogram {
    use hdrhistogram::serialization::{Serializer as _, V2Serializer};
    let histogram = spans.snapshot();
    let mut hdr_v2 = Vec::new();
    // Serialising into memory fails only for histograms larger than ours.
    if V2Serializer::new().serialize(&histogram, &mut hdr_v2).is_err() {
        hdr_v2.clear();
    }
    let at = |quantile| histogram.value_at_quantile(quantile);
    v1::Histogram {
        hdr_v2,
        count: histogram.len(),
        p50: at(0.5),
        p90: at(0.9),
        p99: at(0.99),
        p99_9: at(0.999),
        max: histogram.max(),
    }
}
