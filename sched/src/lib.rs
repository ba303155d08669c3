// SPDX-License-Identifier: Apache-2.0
//! Transmission selection of one port (802.1Q-2022 clause 8.6.8): which frame leaves next, and when.
//!
//! In: frames (their properties, never their octets) and the instant on both clocks, read by the caller.
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
//! Late and untimed frames are due when they were sent, not when they arrived here (the `now` of [`TimeAware::offer`]). Otherwise a
//! later frame of the same sender could overtake them: one with a TxTime that passes before both frames have arrived.
//! These frames, and a frame on time that fq's rule keeps, are due at most `overrun_limit` before they arrive. By etf's rule a frame
//! with an earlier TxTime is dropped, so it overtakes nothing.
//!
//! ```text
//!      TxTime    pushed_at        arrival        decide
//!  ──────┴───────────┴───────────────┴──────────────┴────►  late:     overrun = decide − pushed_at, any length
//!      pushed_at  TxTime          arrival        decide
//!  ──────┴───────────┴───────────────┴──────────────┴────►  on time:  overrun = decide − TxTime ≤ overrun_limit
//! ```
//! `pushed_at` is the sender's claim on MONOTONIC. A value after `now` counts as `now`. The offset of the pair `now` moves it to TAI.
//! A forged `pushed_at` in the past only hurts the sender (its frame counts as overrun) and gains it at most `overrun_limit`.
//! A due instant never lies before the frame's TxTime, so *never early* needs no second rule, whatever the clocks do.
//!
//! # Turns
//! Within a class attachments take turns. Each attachment waits with its first frame: the frame that is due first, equal ones by
//! arrival; in a class in order of arrival, the frame that arrived first. It waits since the later of two instants: when that frame
//! became due, and when a frame of the attachment was last chosen in this class (to leave or to be dropped). Among the attachments with
//! a first frame that is due, the one that has waited longest is next. Equal ones: an attachment that was not served since its frame is
//! due goes before one that was. The former go by the arrival of their frames, the latter by the order in which they were served.
//!
//! So a first frame that is due waits, within its class, for **one frame of each other attachment at most**, however many frames these
//! have for the same instant. A frame with k frames of its own attachment in front waits for k + 1 frames of each other one. With one
//! frame at a time from each attachment the order is that of one queue. A turn orders frames and never delays one: an attachment that is
//! alone is served at once. A turn is remembered while an attachment has no frames, so sending late frames one by one gains nothing.
//! Frames on both clocks have one turn together. A clock that shows an instant before the last turn makes all turns void.
//!
//! # Clocks
//! Due instants are compared with `now` on their own clock and are never converted. A step of TAI is seen by
//! the very next decision and needs no re-sorting. After a step back, frames that are due on TAI wait again
//! (a late frame until TAI shows the instant of its sending again). After a step forward they are due earlier. Frames that the step
//! passed by more than their `overrun_limit` are dropped as `overrun`, as etf does. Every lost frame is reported.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod credit;
mod decision;
mod frame;
mod gate;
pub mod policing;
mod queue;

mod time_aware;

pub use credit::{Credit, CreditOptions};
pub use decision::{Admission, Decision, Refused, Window, judge_time};
pub use frame::{Frame, FrameId};
pub use gate::GateProgram;
pub use time_aware::{ClassOptions, GateStatus, Order, Shaper, TimeAware, TimeAwareOptions};
