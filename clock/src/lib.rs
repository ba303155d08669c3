// SPDX-License-Identifier: Apache-2.0
//! vPTP: a guest's clock that follows its host's clock through shared memory.
//!
//! In: a page that the host writes and the guest only reads ([`page`]), and an exchange area that both write ([`exchange`]). Out: the host's
//! time in the guest, with a bound of its error ([`follower`]), and how the guest's kernel clock has to be steered ([`servo`]).
//!
//! - [`seqlock`], [`page`], [`estimate`], [`follower`], [`servo`] are pure: they read no clock and make no system call.
//! - [`counter`] reads the processor's counter: the only code here that knows an architecture.
//! - [`host`] is the host's loop, [`guest`] finds the devices and makes the exchanges, [`kernel`] reads and steers the kernel's clock.
//!
//! docs/design/vptp.md says why it is as it is.

pub mod counter;
pub mod estimate;
pub mod exchange;
pub mod follower;
pub mod guest;
pub mod host;
pub mod kernel;
pub mod page;
pub mod region;
pub mod seqlock;
pub mod servo;
pub mod session;
#[allow(unsafe_code)]
mod sys;

/// A value of the host's counter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Host(pub u64);

/// A value of the guest's counter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Guest(pub u64);

/// An instant of `CLOCK_REALTIME`: nanoseconds since 1970, without leap seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Utc(pub u64);

impl Utc {
    /// `self - earlier`, limited to the range of the result.
    #[must_use]
    pub fn since(self, earlier: Self) -> ktsn_time::Nanos {
        let span = i128::from(self.0) - i128::from(earlier.0);
        ktsn_time::Nanos::new(i64::try_from(span).unwrap_or(if span > 0 { i64::MAX } else { i64::MIN }))
    }

    /// The instant `span` later, limited to the range.
    #[must_use]
    pub fn saturating_add(self, span: ktsn_time::Nanos) -> Self {
        Self(self.0.saturating_add_signed(span.get()))
    }
}
