// SPDX-License-Identifier: Apache-2.0
//! What is judged the moment a frame is on the wire: never early, once, identity, and no frame that had to be dropped.

use crate::ledger::{Arrival, Disturbance, Frame, Kind, Ledger};

/// A frame with this id in its payload, from this tenant's address, is on the wire.
pub(crate) fn on_arrival(ledger: &mut Ledger, tenant: u16, id: u64, arrival: Arrival) {
    let at = arrival.handed.monotonic.as_nanos();
    let Some(frame) = ledger.frames.get_mut(id as usize) else {
        return ledger.violated("once", at, format!("frame {id} was never made"));
    };
    if frame.tenant != tenant {
        let detail = format!("frame {id} of tenant {} carries tenant {tenant}'s address", frame.tenant);
        return ledger.violated("identity", at, detail);
    }
    if frame.published_at.is_none() {
        return ledger.violated("once", at, format!("frame {id} was claimed but never published"));
    }
    if frame.arrival.is_some() {
        return ledger.violated("once", at, format!("frame {id} of tenant {tenant} arrived a second time"));
    }
    frame.arrival = Some(arrival);
    let frame = frame.clone();
    let (due, handed) = frame.due(arrival.handed);
    if handed < due && !frame.was_late() {
        let detail = format!("frame {id} of tenant {tenant} left {} ns before its TxTime", due - handed);
        ledger.violated("never-early", at, detail);
    }
    if must_not(&frame) && !stepped_since(ledger, &frame, at) {
        let detail = format!("frame {id} of tenant {tenant} arrived, but was {:?}", frame.kind);
        ledger.violated("reasons", at, detail);
    }
}

/// Whether it was to be dropped whatever happens.
fn must_not(frame: &Frame) -> bool {
    match frame.kind {
        Kind::Good => false,
        Kind::Late | Kind::Zero => frame.is_tai(),
        Kind::FarAhead | Kind::Policed | Kind::Corrupt => true,
    }
}

/// A step of TAI between push and intake changes what is late.
fn stepped_since(ledger: &Ledger, frame: &Frame, until: u64) -> bool {
    let pushed = frame.pushed.monotonic.as_nanos();
    frame.kind == Kind::Late && ledger.overlaps(pushed, until, |what| matches!(what, Disturbance::Step(_)))
}
