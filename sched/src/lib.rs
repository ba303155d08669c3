// SPDX-License-Identifier: Apache-2.0
//! Transmission selection of one port (802.1Q-2022 clause 8.6.8): which frame leaves next, and when.
//!
//! In: frames (what matters of them, never their octets) and the instant on both clocks, read by the caller.
//! Out: decisions: transmit this one, drop that one for this reason, nothing before that instant.
//! Never: reads a clock, does I/O, logs, waits, or allocates after construction.
//!
//! # Due
//! Every queued frame has one **due instant**, fixed when it is offered; it may leave from then on.
//!
//! | frame | due | called |
//! |---|---|---|
//! | TxTime ≥ `pushed_at` | its TxTime | on time |
//! | TxTime < `pushed_at`, policy keeps it | `pushed_at`, on the TxTime's clock | late |
//! | no TxTime, or 0 on MONOTONIC | `pushed_at` | untimed |
//!
//! A frame on time that comes later than its `overrun_limit` is dropped by etf's rule (TAI) and sent by fq's (MONOTONIC, unless its
//! policy drops late frames).
//!
//! Late and untimed frames are due when they were sent, not when they arrived here (the `now` of [`Strategy::offer`]): a
//! frame that is sent after one of them with a TxTime that passes before both have arrived would overtake it. They
//! are due no longer than `overrun_limit` before they arrive, and so is a frame on time that fq's rule keeps; what has a TxTime before
//! that by etf's rule is dropped, and overtakes nothing.
//!
//! ```text
//!      TxTime    pushed_at        arrival        decide
//!  ──────┴───────────┴───────────────┴──────────────┴────►  late:     overrun = decide − pushed_at, any length
//!      pushed_at  TxTime          arrival        decide
//!  ──────┴───────────┴───────────────┴──────────────┴────►  on time:  overrun = decide − TxTime ≤ overrun_limit
//! ```
//! `pushed_at` is the sender's word on MONOTONIC. It is cut off at `now` (nobody pushes in the future) and
//! moved to TAI by the offset that the pair `now` shows. A sender that writes one too far in the past makes
//! its own late frame an overrun one, or gets in front of others by `overrun_limit` at most, as with a TxTime in the past. A due instant never lies before its frame's TxTime, so
//! *never early* needs no second rule, whatever the clocks do.
//!
//! # Turns
//! Within a class attachments take turns. Each attachment stands there with its first frame: the one that is due first, equal ones by
//! arrival; where the class goes by arrival, the one that arrived first. It stands since that frame is due, or since a frame
//! of it was last chosen in this class (to leave or to be dropped), whichever is later. Of the attachments whose first frame is due the one that
//! has stood longest is next. Of those that stand since the same instant, one that was not served since its frame is due goes before
//! one that was; the former go by their frames' arrival, the latter by who was served first.
//!
//! So a first frame that is due waits, within its class, for **one frame of each other attachment at most**, however many they have for the
//! same instant; a frame with k of its own in front of it for k + 1 of each. With a frame at a time from each attachment the order is that of
//! one queue. A turn orders frames and never delays one: what is alone is served at once, however often it was before. A
//! turn outlives the frames, or who trickles in late ones would gain by it. Frames on both clocks have one turn together.
//! A clock that shows an instant before the last turn makes all turns void.
//!
//! # Clocks
//! Due instants are compared with `now` on their own clock and are never converted. A step of TAI is seen by
//! the very next decision and needs no re-sorting: after a step back, frames that are due on TAI wait again
//! (a late one until the instant of its sending comes round again); after a step forward they are due earlier, and those
//! stepped over by more than their `overrun_limit` are dropped as `overrun`, as etf does. Nothing is lost
//! without a word.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod admission;
mod credit;
mod credit_based;
mod earliest;
mod frame;
mod gate;
pub mod policing;
mod queue;
mod strategy;
mod strict_priority;
mod time_aware;

pub use admission::{Admission, admit, chosen};
pub use credit::{Credit, CreditOptions};
pub use credit_based::{CreditBased, CreditBasedOptions};
pub use earliest::EarliestTxTime;
pub use frame::{Frame, FrameId};
pub use gate::GateProgram;
pub use strategy::{Decision, Refused, Strategy, Window};
pub use strict_priority::StrictPriority;
pub use time_aware::{ClassOptions, GateStatus, Order, Shaper, TimeAware, TimeAwareOptions};
