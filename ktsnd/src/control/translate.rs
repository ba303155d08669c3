// SPDX-License-Identifier: Apache-2.0
//! Messages of the control API ↔ the daemon's own values.

use ktsn_proto::v1;

use crate::config::{Attachment, RawAttachment, RawOverlay, RawVxlan, RawVxlanPeer};
use crate::stats::Spans;

fn text(value: String) -> Option<String> {
    (!value.is_empty()).then_some(value)
}

fn nanos(value: u64) -> Option<String> {
    (value != 0).then(|| format!("{value}ns"))
}

fn count<T: Default + PartialEq>(value: T) -> Option<T> {
    (value != T::default()).then_some(value)
}

/// An attachment as it came in; checked afterwards like one from a file.
pub(super) fn raw_attachment(message: v1::Attachment) -> RawAttachment {
    let classes: Vec<u8> = message.classes.iter().map(|c| u8::try_from(*c).unwrap_or(u8::MAX)).collect();
    RawAttachment {
        name: text(message.name),
        netns: text(message.netns),
        interface: text(message.interface),
        uplink: text(message.uplink),
        overlay: message.vxlan.map(|v| RawOverlay::Vxlan(raw_vxlan(v))),
        destinations: (!message.destinations.is_empty()).then_some(message.destinations),
        classes: (!classes.is_empty()).then_some(classes),
        late: text(message.late),
        overrun_limit: nanos(message.overrun_limit_ns),
        horizon: nanos(message.horizon_ns),
        allow_tai: message.allow_tai,
        slots: count(message.slots),
        clients_max: count(message.clients_max),
        octets_max: count(message.octets_max),
    }
}

fn raw_vxlan(message: v1::Vxlan) -> RawVxlan {
    RawVxlan {
        mode: text(message.mode),
        vni: count(message.vni),
        // Out of range stays out of range, to be refused by the check with its field's name.
        port: count(message.port).map(|p| u16::try_from(p).unwrap_or(0)),
        local: text(message.local),
        device: text(message.device),
        peers: message
            .peers
            .into_iter()
            .map(|p| RawVxlanPeer { prefix: text(p.prefix), vtep: text(p.vtep), mac: text(p.mac) })
            .collect(),
    }
}

/// An attachment as it is listed: with every default filled in.
pub(crate) fn attachment_message(attachment: &Attachment) -> v1::Attachment {
    let nanos = |n: ktsn_time::Nanos| n.get().unsigned_abs();
    v1::Attachment {
        name: attachment.name.clone(),
        netns: attachment.netns.display().to_string(),
        interface: attachment.interface.clone(),
        uplink: attachment.uplink.clone().unwrap_or_default(),
        vxlan: attachment.overlay.as_ref().map(|v| v1::Vxlan {
            mode: "routed".to_owned(),
            vni: v.vni,
            port: u32::from(v.port),
            local: v.local.to_string(),
            device: v.device.clone(),
            peers: v
                .peers
                .iter()
                .map(|p| v1::VxlanPeer {
                    prefix: p.prefix.to_string(),
                    vtep: p.vtep.to_string(),
                    mac: p.mac.to_string(),
                })
                .collect(),
        }),
        destinations: attachment.allowed().iter().map(ToString::to_string).collect(),
        classes: (0..8).filter(|c| attachment.classes & (1 << c) != 0).collect(),
        late: attachment.late.word().to_owned(),
        overrun_limit_ns: nanos(attachment.overrun_limit),
        horizon_ns: nanos(attachment.horizon),
        allow_tai: Some(attachment.allow_tai),
        slots: attachment.slots,
        clients_max: attachment.clients_max,
        octets_max: attachment.octets_max,
    }
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
