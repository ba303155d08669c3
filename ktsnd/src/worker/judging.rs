// SPDX-License-Identifier: Apache-2.0
//! Polices datagrams that only the kernel can send, and finds a window for them: those above the MTU leave as fragments.
//!
//! In: the flow and the length of a datagram, before it leaves. Out: when it may leave, for the thread that holds it, or why it may not.
//! The meter counts the octets of all fragments at once, the longest is the service data unit, and the gate is open for all of them: all
//! leave, or none. Where the tables know no port for the flow, it leaves by a way that KTSN does not police.

use ktsn_model::DropReason;
use ktsn_port::Port;
use ktsn_resolve::Resolved;
use ktsn_time::Nanos;

use super::Worker;
use super::command::{Judged, Judging};
use super::environment::Environment;
use super::passing::ForPasser;
use super::policing::stream_of;

/// Octet times on the link of all fragments, and octets of the longest one's service data unit.
fn lengths(resolved: &Resolved, payload_octets: u32, segment_octets: u16) -> (u32, u32) {
    let (template, payload) = (&resolved.template, payload_octets as usize);
    let is_whole = payload <= usize::from(resolved.payload_max);
    // Datagrams of their own (UDP_SEGMENT), or one.
    let segment = if segment_octets > 0 { usize::from(segment_octets) } else { payload };
    if is_whole || segment_octets > 0 {
        let count = payload.checked_div(segment).unwrap_or(1);
        let rest = payload - count.saturating_mul(segment).min(payload);
        let wire = |octets| u64::from(template.wire_octets(octets));
        let all = wire(segment) * count as u64 + if rest > 0 { wire(rest) } else { 0 };
        return (u32::try_from(all).unwrap_or(u32::MAX), template.sdu_octets(segment.min(payload)));
    }
    let udp_octets = 8;
    // RFC 8200 4.5: an extension header in each; RFC 791 3.2, RFC 8200 4.5: all but the last hold a multiple of 8 octets.
    let header_octets = if resolved.template.source().is_ipv6() { 8 } else { 0 };
    let room = (usize::from(resolved.payload_max) + udp_octets - header_octets) & !7;
    let mut left = payload_octets as usize + udp_octets;
    let mut wire = 0_u32;
    let of = |part: usize| (part + header_octets).saturating_sub(udp_octets);
    let longest = of(left.min(room));
    while left > 0 && room > 0 {
        let part = left.min(room);
        wire = wire.saturating_add(resolved.template.wire_octets(of(part)));
        left -= part;
    }
    (wire, resolved.template.sdu_octets(longest))
}

impl<P: Port, E: Environment> Worker<P, E> {
    /// Answers with [`ForPasser::Judged`].
    #[cold]
    pub(super) fn judge(&mut self, judging: &Judging) {
        let judged = self.burst(judging);
        let judged = ForPasser::Judged(judging.netns_cookie, judging.number, judged);
        // If the queue is full or has no reader, the lane drops the datagram (LATER_JUDGED).
        if let Some(passer) = &mut self.passer {
            let _ = passer.try_send(judged);
        }
    }

    fn burst(&mut self, judging: &Judging) -> Judged {
        let &Judging { flow, priority, payload_octets, segment_octets, tx_time, .. } = judging;
        let now = self.env.now();
        let ahead = tx_time.ahead_of(now).max(Nanos::ZERO);
        let policy = self.attachments.get_mut(flow.attachment).ok_or(DropReason::Detached)?;
        let Ok((resolved, _)) = self.resolver.find_ahead(&flow) else { return Ok(None) };
        let (lengths, port) = (lengths(resolved, payload_octets, segment_octets), resolved.port);
        let stream = stream_of(&policy.streams, &flow, resolved);
        let Some(state) = self.ports.at(port) else { return Ok(None) };
        let wait = state.judge_burst(stream, priority, lengths, ahead, now)?;
        Ok((wait > ahead).then(|| now.tai.saturating_add(wait)))
    }
}
