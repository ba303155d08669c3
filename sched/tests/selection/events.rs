// SPDX-License-Identifier: Apache-2.0
//! What can happen in a random world, and how to draw it.

use crate::world::{class, mono, now, tai};
use ktsn_model::LatePolicy;
use ktsn_sched::{Frame, FrameId};
use ktsn_time::{Nanos, Now, TxTime};
use proptest::prelude::*;

/// One thing that happens. Times of frames are relative to the instant of the offer.
#[derive(Clone, Debug)]
pub(crate) enum Event {
    Offer(Sent),
    Decide,
    Remove { attachment: u32 },
    Advance(u64),
    StepTai(i64),
}

#[derive(Clone, Debug)]
pub(crate) struct Sent {
    pub(crate) class: u8,
    pub(crate) attachment: u32,
    pub(crate) asks: Asks,
    pub(crate) age: i64,
    pub(crate) late: LatePolicy,
    pub(crate) overrun_limit: i64,
    pub(crate) horizon: i64,
}

#[derive(Clone, Debug)]
pub(crate) enum Asks {
    Nothing,
    Zero { on_tai: bool },
    After { span: i64, on_tai: bool },
    Anything { at: u64, on_tai: bool },
}

pub(crate) fn tx_time(at: u64, on_tai: bool) -> TxTime {
    if on_tai { tai(at) } else { mono(at) }
}

impl Sent {
    /// The frame with this id, sent at `now`.
    pub(crate) fn frame(&self, id: u64, now: Now) -> Frame {
        let asked = match self.asks {
            Asks::Nothing => None,
            Asks::Zero { on_tai } => Some(tx_time(0, on_tai)),
            Asks::After { span, on_tai: true } => Some(TxTime::Tai(now.tai.saturating_add(Nanos::new(span)))),
            Asks::After { span, on_tai: false } => {
                Some(TxTime::Monotonic(now.monotonic.saturating_add(Nanos::new(span))))
            }
            Asks::Anything { at, on_tai } => Some(tx_time(at, on_tai)),
        };
        Frame {
            id: FrameId(id),
            attachment: self.attachment,
            class: class(self.class),
            tx_time: asked,
            pushed_at: now.monotonic.saturating_sub(Nanos::new(self.age)),
            wire_octets: 64,
            sdu_octets: 46,
            late: self.late,
            overrun_limit: Nanos::new(self.overrun_limit),
            horizon: Nanos::new(self.horizon),
        }
    }
}

/// Frames close enough to each other that equal times, lateness, overruns and horizons all occur often.
pub(crate) fn sent() -> impl Strategy<Value = Sent> {
    let asks = prop_oneof![
        1 => Just(Asks::Nothing),
        1 => any::<bool>().prop_map(|on_tai| Asks::Zero { on_tai }),
        12 => (-12i64..24, any::<bool>()).prop_map(|(span, on_tai)| Asks::After { span, on_tai }),
        1 => (any::<u64>(), any::<bool>()).prop_map(|(at, on_tai)| Asks::Anything { at, on_tai }),
    ];
    let late = prop_oneof![
        Just(LatePolicy::ByClock),
        Just(LatePolicy::Drop),
        Just(LatePolicy::Send),
        Just(LatePolicy::Deadline)
    ];
    let age = prop_oneof![8 => -4i64..12, 1 => any::<i64>()];
    let overrun_limit = prop_oneof![3 => 0i64..12, 1 => any::<i64>()];
    let horizon = prop_oneof![3 => 8i64..30, 1 => any::<i64>()];
    let class = prop_oneof![2 => prop::sample::select(vec![0u8, 7]), 1 => 0u8..8];
    (class, 0u32..3, asks, age, late, overrun_limit, horizon).prop_map(
        |(class, attachment, asks, age, late, overrun_limit, horizon)| Sent {
            class,
            attachment,
            asks,
            age,
            late,
            overrun_limit,
            horizon,
        },
    )
}

pub(crate) fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        10 => sent().prop_map(Event::Offer),
        8 => Just(Event::Decide),
        6 => (1u64..10).prop_map(Event::Advance),
        2 => (-30i64..30).prop_map(Event::StepTai),
        1 => (0u32..3).prop_map(|attachment| Event::Remove { attachment }),
    ]
}

/// Like [`event`], but TAI never steps back: what has come stays come.
pub(crate) fn forward_event() -> impl Strategy<Value = Event> {
    event().prop_map(|event| match event {
        Event::StepTai(span) => Event::StepTai(span.abs()),
        other => other,
    })
}

/// Where the clocks begin: anywhere, with weight on the ends of the range.
pub(crate) fn begin() -> impl Strategy<Value = Now> {
    let one =
        || prop_oneof![2 => 20u64..200, 2 => any::<u64>(), 1 => u64::MAX - 200..=u64::MAX, 1 => 0u64..3];
    (one(), one()).prop_map(|(monotonic, tai)| now(monotonic, tai))
}

pub(crate) fn advance(now: &mut Now, span: u64) {
    now.monotonic = now.monotonic.saturating_add(Nanos::new(span as i64));
    now.tai = now.tai.saturating_add(Nanos::new(span as i64));
}

pub(crate) fn step_tai(now: &mut Now, span: i64) {
    now.tai = now.tai.saturating_add(Nanos::new(span));
}
