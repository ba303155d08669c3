// SPDX-License-Identifier: Apache-2.0
//! What the engine, the reference and the engine's faulty twins have in common, so that every property can be
//! asked of each of them.

use crate::reference::Reference;
use ktsn_model::{AdminPort, DropReason, GateStates};
use ktsn_sched::{Decision, Frame, FrameId, Refused, Window};
use ktsn_time::{Monotonic, Nanos, Now, Tai, TxTime};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Order {
    #[default]
    TxTime,
    Fifo,
}

/// One class; strict priority unless it has an idle slope (bit/s).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ClassSetup {
    pub(crate) order: Order,
    pub(crate) queue_max_sdu: Option<u32>,
    pub(crate) idle_slope: Option<u64>,
}

/// So many attachments take turns; the worlds draw fewer.
pub(crate) const ATTACHMENTS: u32 = 4;

/// What a port is made of.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) capacity: usize,
    pub(crate) link_speed: Option<u64>,
    pub(crate) hand_over: u64,
    pub(crate) classes: [ClassSetup; 8],
}

/// What management reads (12.29); instants of TAI in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Status {
    pub(crate) states: GateStates,
    pub(crate) config_pending: bool,
    pub(crate) config_change_time: Option<i128>,
    pub(crate) config_change_error: u64,
    pub(crate) cycle_start: Option<i128>,
}

/// The decision that the rules ask for.
#[derive(Clone, Debug)]
pub(crate) enum Wanted {
    Transmit {
        frame: Frame,
        overrun: i128,
        late: bool,
        /// When it opened, and the latest instant of hand-over.
        window: Option<(i128, i128)>,
    },
    Drop {
        frame: Frame,
        reason: DropReason,
    },
    /// In so many nanoseconds; where several causes meet, either clock may be named.
    WakeAt {
        after: i128,
        on_tai: bool,
        on_monotonic: bool,
        next: FrameId,
    },
    Idle,
}

fn nanos(span: i128) -> Nanos {
    Nanos::new(i64::try_from(span).unwrap_or(i64::MAX))
}

impl Wanted {
    /// This decision as the engine's type, with the first clock that may be named.
    pub(crate) fn decision(&self, now: Now) -> Decision {
        match *self {
            Self::Idle => Decision::Idle,
            Self::Drop { frame, reason } => Decision::Drop { frame, reason },
            Self::WakeAt { after, on_tai, next, .. } => {
                let at = if on_tai { TxTime::Tai(now.tai) } else { TxTime::Monotonic(now.monotonic) };
                Decision::WakeAt { at: at.saturating_add(nanos(after)), next }
            }
            Self::Transmit { frame, overrun, late, window } => {
                let tai = |at: i128| Tai::from_nanos(u64::try_from(at.max(0)).unwrap_or(u64::MAX));
                let window =
                    window.map(|(opens_at, latest)| Window { opens_at: tai(opens_at), latest: tai(latest) });
                Decision::Transmit { frame, overrun: nanos(overrun), late, window }
            }
        }
    }

    /// Whether `decision` says the same.
    pub(crate) fn allows(&self, decision: &Decision, now: Now) -> bool {
        match (self, decision) {
            (&Self::WakeAt { after, on_tai, on_monotonic, next }, Decision::WakeAt { at, next: other }) => {
                let clock_allowed = match at {
                    TxTime::Tai(_) => on_tai,
                    TxTime::Monotonic(_) => on_monotonic,
                };
                clock_allowed && at.ahead_of(now) == nanos(after) && next == *other
            }
            _ => self.decision(now) == *decision,
        }
    }
}

/// A port under test.
pub(crate) trait Port {
    fn offer(&mut self, frame: Frame, now: Now) -> Result<(), Refused>;
    fn decide(&mut self, now: Now) -> Decision;
    fn remove_attachment(&mut self, attachment: u32) -> Vec<Frame>;
    fn set_admin(&mut self, admin: &AdminPort, now: Now);
    fn status(&mut self, now: Now) -> Status;
    fn set_hand_over(&mut self, hand_over: u64);
    fn set_link_speed(&mut self, link_speed: Option<u64>);
    fn set_classes(&mut self, classes: [ClassSetup; 8]);
    fn len(&self) -> usize;
}

impl Port for Reference {
    fn offer(&mut self, frame: Frame, now: Now) -> Result<(), Refused> {
        self.take(frame, now)
    }
    fn decide(&mut self, now: Now) -> Decision {
        self.wanted(now).decision(now)
    }
    fn remove_attachment(&mut self, attachment: u32) -> Vec<Frame> {
        self.remove(|frame| frame.attachment == attachment)
    }
    fn set_admin(&mut self, admin: &AdminPort, now: Now) {
        self.configure(admin, now);
    }
    fn status(&mut self, now: Now) -> Status {
        self.observe(now)
    }
    fn set_hand_over(&mut self, hand_over: u64) {
        self.hand_over = hand_over.into();
    }
    fn set_link_speed(&mut self, link_speed: Option<u64>) {
        self.change_link_speed(link_speed);
    }
    fn set_classes(&mut self, classes: [ClassSetup; 8]) {
        self.classes = classes;
    }
    fn len(&self) -> usize {
        self.waiting_count()
    }
}

/// Both clocks, in nanoseconds.
pub(crate) fn now(monotonic: u64, tai: u64) -> Now {
    Now { tai: Tai::from_nanos(tai), monotonic: Monotonic::from_nanos(monotonic) }
}
