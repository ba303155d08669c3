// SPDX-License-Identifier: Apache-2.0
//! What a thread that expects an arrival does next: sleep, spin, or give the call back.
//!
//! In: now, the call's deadline, the next expected arrival, the margin of sleeps, the spin time that is left. Out: a [`Step`].
//! It reads no clock and makes no system call.
//!
//! ```text
//!    sleep                             spin, SPIN_MAX at most
//! ───────────────────────┬───margin───┬─spread─┬─spread─┬──► sleep for the next one
//!                     wake up        lead   expected    end
//! ```

use ktsn_expect::{Expected, Margins};
use ktsn_time::{Monotonic, Span};

/// One spin takes no longer.
pub(crate) const SPIN_MAX: Span = Span::from_nanos(200_000);
/// A spin of less than this is not worth its wake-up.
pub(crate) const SPIN_MIN: Span = Span::from_nanos(2_000);

/// What the thread does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Sleep in the kernel's wait until that instant; `None`: without end.
    Sleep(Option<Monotonic>),
    /// Look again and again until that instant.
    Spin(Monotonic),
    /// The expected arrival's window is over.
    Missed,
    /// The call's own time is over.
    Over,
}

/// The next step at `now`. `expected` is the arrival that the thread waits for, if there is one, and `left` the time that may still
/// be spun.
pub(crate) fn decide(
    now: Monotonic,
    deadline: Option<Monotonic>,
    expected: Option<Expected<Monotonic>>,
    margin: &Margins,
    left: Span,
) -> Step {
    if deadline.is_some_and(|deadline| now >= deadline) {
        return Step::Over;
    }
    let Some(expected) = expected else { return Step::Sleep(deadline) };
    let (lead, end) = (expected.at.before(expected.spread), expected.at.after(expected.spread));
    if now >= end {
        return Step::Missed;
    }
    let ahead = lead.span_since(now);
    let needed = Span::not_negative(margin.of(ahead.to_nanos()));
    if ahead > needed {
        return Step::Sleep(Some(earlier(deadline, lead.before(needed))));
    }
    let most = if left < SPIN_MAX { left } else { SPIN_MAX };
    if most < SPIN_MIN {
        return Step::Sleep(deadline);
    }
    Step::Spin(earlier(deadline, earlier(Some(end), now.after(most))))
}

fn earlier(deadline: Option<Monotonic>, at: Monotonic) -> Monotonic {
    deadline.map_or(at, |deadline| deadline.min(at))
}
