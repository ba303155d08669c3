// SPDX-License-Identifier: Apache-2.0
//! What happens to a strategy besides offers and decisions. In: events. Out: a strategy, clocks and what is queued after them.

use crate::events::{Event, advance, step_tai};
use ktsn_sched::Frame;
use ktsn_time::Now;

/// What is no offer and no decision; `queued` is what the strategy holds.
pub(crate) fn happen(event: &Event, s: &mut ktsn_sched::TimeAware, at: &mut Now, queued: &mut Vec<Frame>) {
    match event {
        Event::Remove { attachment } => {
            s.remove(&mut |f| f.attachment == *attachment, &mut |_| ());
            queued.retain(|q| q.attachment != *attachment);
        }
        Event::Advance(span) => advance(at, *span),
        Event::StepTai(span) => step_tai(at, *span),
        Event::Offer(_) | Event::Decide => unreachable!("the caller's matter"),
    }
}

/// Takes out all that is left, in the order of their numbers.
pub(crate) fn rest(s: &mut ktsn_sched::TimeAware) -> Vec<Frame> {
    let mut rest = Vec::new();
    s.remove(&mut |_| true, &mut |f| rest.push(f));
    rest.sort_by_key(|f| f.id.0);
    rest
}
