// SPDX-License-Identifier: Apache-2.0
//! When the worker wakes, spins, rests and takes frames over: everything that follows from the next transmit time.
//!
//! In: the next frame that is due, readings of the clocks, how late wake-ups were. Out: how long to sleep, whether to spin, how many
//! frames may be taken over before the next one. It hands nothing over.
//!
//! ```text
//!   sleep ──► margin ──► rehearsal or a cold start ──► last stretch ──► transmit time
//!             (spin)      only after a pause            only the clock
//! ```

use std::sync::atomic::Ordering::Relaxed;

use ktsn_expect::{Margin, Margins, SpinBudget};
use ktsn_time::{Monotonic, Nanos, Now, Offset, TxTime};

use super::cpu_budget::{Allowed, CpuBudget};
use super::due::Next;
use super::environment::{Environment, Woken};
use super::warm_up::WarmUp;
use crate::config::SpinMargin;
use crate::limits;
use crate::stats::{WorkerStats, count};

/// How a worker is paced.
#[derive(Debug, Clone, Copy)]
pub struct WorkerOptions {
    /// Spin margin.
    pub spin_margin: SpinMargin,
    /// The margins that an earlier worker on this machine had learnt.
    pub known_margins: Option<Margins>,
    /// Greatest share of a second spent spinning, in parts per thousand.
    pub spin_duty_max_permille: u32,
}

/// What a port can do ahead of its next frame.
#[derive(Debug, Clone, Copy)]
pub(super) struct Preparation {
    /// The frame can be built in the port's buffer.
    pub is_made_ready: bool,
    /// A frame that goes nowhere can be handed over before.
    pub can_rehearse: bool,
}

/// Why frames are taken over. Each has its part of the time between frames that are always due.
#[derive(Debug, Clone, Copy)]
pub(super) enum IntakeCause {
    /// The clients' rings.
    Rings,
    /// Captured frames.
    Captures,
    /// Rings that are emptied to be closed.
    Closing,
}

impl IntakeCause {
    const COUNT: usize = 3;
}

/// The worker's use of time.
#[derive(Debug)]
pub(super) struct Pacing {
    margin: Margin,
    spin_budget: SpinBudget,
    cpu: CpuBudget,
    /// Only frames that are due are attended to.
    is_resting: bool,
    rehearsal: WarmUp,
    rehearsed_at: Monotonic,
    /// When a frame was handed over last.
    handed_over_at: Monotonic,
    /// What the worker waits for: intake stops short of it.
    next: Option<Next>,
    /// When a frame was taken over last, for each reason to take frames over.
    taken_at: [Monotonic; IntakeCause::COUNT],
    /// TAI − MONOTONIC at the last wake-up.
    offset: Option<Offset>,
    /// A clock stepped: promises by the other one are void.
    is_stepped: bool,
}

/// As many frames as are surely taken over before the last stretch of `ahead`, one at least.
fn intake_budget(ahead: Nanos) -> usize {
    let fitting = ahead.saturating_sub(limits::LAST_STRETCH).get() / limits::INTAKE_FRAME.get();
    usize::try_from(fitting).unwrap_or(0).clamp(1, limits::INTAKE_BUDGET)
}

impl Pacing {
    /// The worker was just made.
    pub(super) fn new(options: WorkerOptions) -> Self {
        Self {
            margin: match options.spin_margin {
                SpinMargin::Adaptive => Margin::adaptive(options.known_margins),
                SpinMargin::Fixed(margin) => Margin::fixed(margin),
            },
            spin_budget: SpinBudget::new(options.spin_duty_max_permille),
            cpu: CpuBudget::new(),
            is_resting: false,
            rehearsal: WarmUp::for_rehearsal(),
            rehearsed_at: Monotonic::ZERO,
            handed_over_at: Monotonic::ZERO,
            next: None,
            taken_at: [Monotonic::ZERO; IntakeCause::COUNT],
            offset: None,
            is_stepped: false,
        }
    }

    /// Publishes the margins.
    pub(super) fn show_margins(&self, stats: &WorkerStats) {
        stats.spin_margin_ns.store(self.margin.get().get().unsigned_abs(), Relaxed);
        for (shown, margin) in stats.margins_learnt.iter().zip(self.margin.learnt()) {
            shown.store(margin.map_or(0, |margin| margin.get().unsigned_abs()), Relaxed);
        }
    }
}

/// The next frame, and the intake before it.
impl Pacing {
    /// What the worker waits for.
    pub(super) fn next(&self) -> Option<Next> {
        self.next
    }

    /// The worker waits for this from now on.
    pub(super) fn set_next(&mut self, next: Option<Next>) {
        self.next = next;
    }

    /// A frame was just queued for `at`. The worker waits for it where it comes before the next one: intake stops short of it.
    #[inline]
    pub(super) fn note_sooner(&mut self, at: TxTime, port: usize, now: Now) {
        let ahead = at.ahead_of(now);
        if ahead < limits::INTAKE_PASS && self.next.is_none_or(|next| ahead < next.at.ahead_of(now)) {
            self.next = Some(Next { at, port });
        }
    }

    /// How far the next frame is ahead; `None`: there is none.
    pub(super) fn ahead(&self, env: &mut impl Environment) -> Option<Nanos> {
        self.next.map(|next| next.at.ahead_of(env.now()))
    }

    /// True when a frame is due within `span`, but not now.
    pub(super) fn is_close(&self, span: Nanos, env: &mut impl Environment) -> bool {
        self.ahead(env).is_some_and(|ahead| ahead > Nanos::ZERO && ahead < span)
    }

    /// True when a frame is due within `span`, or already.
    pub(super) fn is_next_within(&self, span: Nanos, env: &mut impl Environment) -> bool {
        self.ahead(env).is_some_and(|ahead| ahead < span)
    }

    /// How many frames surely can be taken over before the next one is due; `None`: it comes first. Where a frame is always due
    /// at once, one is taken over between two of them now and then, and more often where they have no transmit time and wait for
    /// the link or a gate (`is_timed` says of a port at an instant which of them it is).
    pub(super) fn time_for_intake(
        &self,
        intake: IntakeCause,
        env: &mut impl Environment,
        is_timed: impl FnOnce(usize, Now) -> bool,
    ) -> Option<usize> {
        let Some(next) = self.next else { return Some(limits::INTAKE_BUDGET) };
        let now = env.now();
        let ahead = next.at.ahead_of(now);
        if ahead >= limits::INTAKE_STOPS {
            return Some(intake_budget(ahead));
        }
        let passed = now.monotonic.since(self.taken_at[intake as usize]);
        if passed < limits::INTAKE_AFTER_UNTIMED {
            return None;
        }
        (!is_timed(next.port, now) || passed >= limits::INTAKE_AFTER).then_some(1)
    }

    /// Frames were taken over at `now`.
    #[inline]
    pub(super) fn note_taken(&mut self, intake: IntakeCause, now: Monotonic) {
        self.taken_at[intake as usize] = now;
    }

    /// How many frames a spinning worker takes over from one source before a frame that is due in `ahead`.
    pub(super) fn intake_in_spin(ahead: Nanos) -> usize {
        intake_budget(ahead).min(limits::INTAKE_QUANTUM)
    }
}

/// The CPU.
impl Pacing {
    /// Begins a pass; what the worker may do in it.
    #[inline]
    pub(super) fn begin_pass(&mut self, env: &mut impl Environment) -> Allowed {
        let began = env.monotonic();
        self.cpu.awake(began);
        if self.cpu.is_spent() {
            let used = env.cpu_time();
            self.cpu.correct(used);
        }
        self.cpu.allowed()
    }

    /// True where the worker works on although it should rest: more is due than it hands over in a rest.
    pub(super) fn is_behind(&self) -> bool {
        self.cpu.should_rest()
    }

    /// True while only frames that are due are attended to.
    pub(super) fn is_resting(&self) -> bool {
        self.is_resting
    }

    /// The worker rests from now on, or does not.
    pub(super) fn set_resting(&mut self, is_resting: bool) {
        self.is_resting = is_resting;
    }

    /// Sleeps until `at`, whatever comes.
    pub(super) fn doze(&mut self, at: Monotonic, env: &mut impl Environment) {
        self.cpu.awake(env.monotonic());
        env.doze(at);
        self.cpu.slept(env.monotonic());
    }

    /// Sleeps until `until` or until something happens; the instant after it. The lateness of waking teaches the margin.
    pub(super) fn sleep(
        &mut self,
        until: Monotonic,
        env: &mut impl Environment,
        woken: &mut Woken,
        stats: &WorkerStats,
    ) -> Now {
        let asleep = env.monotonic();
        self.cpu.awake(asleep);
        env.sleep(until, woken);
        count(&stats.wake_ups);
        let awake = env.now();
        self.cpu.slept(awake.monotonic);
        if woken.timed_out && until > asleep {
            self.margin.observe(until.since(asleep), awake.monotonic.since(until));
        }
        if self.watch_for_steps(awake) {
            count(&stats.clock_steps);
        }
        awake
    }
}

/// Sleep and spin.
impl Pacing {
    /// A frame that is due in less than this is not slept for.
    pub(super) fn sleep_least(&self) -> Nanos {
        self.margin.get().saturating_add(limits::SLEEP_MIN)
    }

    /// How long the worker may sleep where nothing else bounds it: it learns from sleeps of some lengths first.
    pub(super) fn sleep_bound(&self, bound: Nanos) -> Nanos {
        self.margin.practice().map_or(bound, |span| span.min(bound))
    }

    /// How long the worker sleeps for a frame that is due in `ahead`.
    pub(super) fn sleep_span(&self, ahead: Nanos) -> Nanos {
        ahead.saturating_sub(self.margin.of(ahead))
    }

    /// How long the worker sleeps for a frame that is expected in `ahead`, to be taken over and made ready after it and after `more`;
    /// `None`: it is too late to sleep.
    pub(super) fn sleep_for_expected(&self, ahead: Nanos, more: Nanos) -> Option<Nanos> {
        // The rest of a sleep may be shorter, and its margin longer.
        let margin = self.margin.of(ahead).max(self.margin.of(self.sleep_span(ahead)));
        let needed = margin.saturating_add(limits::EXPECTED_COST).saturating_add(more);
        Some(ahead.saturating_sub(needed)).filter(|span| *span > limits::SLEEP_MIN)
    }

    /// What the worker needs from the end of a sleep of `span` to a transmit time, with an intake that takes `cost`.
    pub(super) fn needed_after(&self, span: Nanos, cost: Nanos) -> Nanos {
        self.margin.of(span).saturating_add(cost)
    }

    /// True when the spin budget lasts for a spin of `ahead`. A flood of frames without transmit time, each waiting for the link,
    /// must not use up what timed frames need: the last part is spent only where one of those would be overslept
    /// (`is_timed_within` a span).
    pub(super) fn may_spin(
        &mut self,
        now: Monotonic,
        ahead: Nanos,
        is_timed_within: impl FnOnce(Nanos) -> bool,
    ) -> bool {
        if self.spin_budget.allows_untimed(now) {
            return true;
        }
        let awake = ahead.max(Nanos::ZERO).saturating_add(self.sleep_least());
        self.spin_budget.allows(now) && is_timed_within(awake)
    }

    /// A spin took so long.
    pub(super) fn spent_spinning(&mut self, span: Nanos) {
        self.spin_budget.spend(span);
    }

    /// The worker woke at `now`; true when a clock was stepped since the last time.
    fn watch_for_steps(&mut self, now: Now) -> bool {
        let offset = Offset::between(now.tai, now.monotonic);
        // Reading two clocks is not one instant; slewing moves neither. 100 µs is a step.
        let is_step = self.offset.is_some_and(|before| {
            offset.span().saturating_sub(before.span()).abs() > Nanos::from_micros(100)
        });
        self.offset = Some(offset);
        self.is_stepped |= is_step;
        is_step
    }

    /// True when a clock was stepped since the last call.
    pub(super) fn take_stepped(&mut self) -> bool {
        std::mem::take(&mut self.is_stepped)
    }
}

/// A frame after a pause.
impl Pacing {
    /// A frame was handed over at `now`.
    pub(super) fn note_handed_over(&mut self, now: Monotonic) {
        self.handed_over_at = now;
    }

    /// How long nothing will have been handed over when a frame is due in `ahead`.
    fn pause_until(&self, ahead: Nanos, now: Monotonic) -> Nanos {
        now.since(self.handed_over_at).saturating_add(ahead)
    }

    /// How long before its time a frame is made ready that is due in `ahead`.
    pub(super) fn stretch(&self, ahead: Nanos, now: Monotonic, port: Preparation) -> Nanos {
        let is_cold = self.pause_until(ahead, now) > limits::COLD_AFTER;
        if is_cold && port.is_made_ready { limits::LAST_STRETCH_COLD } else { limits::LAST_STRETCH }
    }

    /// True when a frame that goes nowhere is handed over before the one that is due in `ahead`.
    pub(super) fn is_rehearsed(&self, ahead: Nanos, now: Monotonic, port: Preparation) -> bool {
        // A frame that is dropped when it is due counts too, and no frame has two.
        let since = now.since(self.rehearsed_at).saturating_add(ahead);
        let is_rare = self.pause_until(ahead, now).min(since) > limits::REHEARSE_AFTER;
        is_rare && port.can_rehearse && port.is_made_ready
    }

    /// How much earlier the worker wakes for a frame after a pause, which is due in `ahead`.
    pub(super) fn more_if_cold(&self, ahead: Nanos, now: Monotonic, port: Preparation) -> Nanos {
        if self.is_rehearsed(ahead, now, port) {
            return limits::REHEARSAL;
        }
        self.stretch(ahead, now, port).saturating_sub(limits::LAST_STRETCH)
    }

    /// Rehearses before `next` if that is worth it; the instant after it.
    pub(super) fn rehearse(&mut self, next: Next, ahead: Nanos, env: &mut impl Environment) -> Option<Now> {
        if !self.rehearsal.is_worth(ahead) {
            return None;
        }
        env.rehearse();
        let now = env.now();
        self.rehearsal.took(ahead.saturating_sub(next.at.ahead_of(now)));
        self.rehearsed_at = now.monotonic;
        Some(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker::tests::Clocks;

    const MARGIN: Nanos = Nanos::from_micros(60);

    fn pacing() -> Pacing {
        Pacing::new(WorkerOptions {
            spin_margin: SpinMargin::Fixed(MARGIN),
            known_margins: None,
            spin_duty_max_permille: 800,
        })
    }

    fn clocks() -> Clocks {
        let clocks = Clocks::default();
        clocks.monotonic.store(1_000_000_000, std::sync::atomic::Ordering::SeqCst);
        clocks
    }

    fn at(env: &mut Clocks, ahead: Nanos) -> TxTime {
        TxTime::Monotonic(env.monotonic().saturating_add(ahead))
    }

    #[test]
    fn intake_stops_short_of_the_next_frame() {
        let (mut pacing, mut env) = (pacing(), clocks());
        let time = |pacing: &Pacing, env: &mut Clocks, is_timed| {
            pacing.time_for_intake(IntakeCause::Rings, env, |_, _| is_timed)
        };
        assert_eq!(time(&pacing, &mut env, true), Some(limits::INTAKE_BUDGET));
        let soon = at(&mut env, Nanos::from_micros(31));
        pacing.note_sooner(soon, 3, env.now());
        assert_eq!(time(&pacing, &mut env, true), Some(10));
        let sooner = at(&mut env, Nanos::from_micros(10));
        pacing.note_sooner(sooner, 4, env.now());
        assert_eq!(pacing.next().map(|next| next.port), Some(4));
        let now = env.monotonic();
        pacing.note_taken(IntakeCause::Rings, now);
        assert_eq!(time(&pacing, &mut env, false), None);
        // Where nothing was taken over for a while, one frame is.
        let before = |micros| now.saturating_sub(Nanos::from_micros(micros));
        pacing.note_taken(IntakeCause::Rings, before(6));
        assert_eq!(time(&pacing, &mut env, false), Some(1));
        assert_eq!(time(&pacing, &mut env, true), None);
        pacing.note_taken(IntakeCause::Rings, before(21));
        assert_eq!(time(&pacing, &mut env, true), Some(1));
    }

    #[test]
    fn a_frame_after_a_pause_is_made_ready_earlier() {
        let (mut pacing, port) = (pacing(), Preparation { is_made_ready: true, can_rehearse: true });
        let now = Monotonic::from_nanos(10_000_000_000);
        pacing.note_handed_over(now);
        let more = |millis| pacing.more_if_cold(Nanos::from_millis(millis), now, port);
        assert_eq!(more(1), Nanos::ZERO);
        assert_eq!(more(4), limits::LAST_STRETCH_COLD.saturating_sub(limits::LAST_STRETCH));
        assert_eq!(more(30), limits::REHEARSAL);
        let held = Preparation { is_made_ready: false, ..port };
        assert_eq!(pacing.more_if_cold(Nanos::from_millis(30), now, held), Nanos::ZERO);
    }

    #[test]
    fn the_last_part_of_the_spin_budget_is_for_timed_frames() {
        let (mut pacing, now) = (pacing(), Monotonic::from_nanos(10_000_000_000));
        pacing.spent_spinning(Nanos::ZERO);
        assert!(pacing.may_spin(now, MARGIN, |_| false));
        pacing.spent_spinning(Nanos::from_millis(700));
        assert!(!pacing.may_spin(now, MARGIN, |_| false));
        let asked = pacing.may_spin(now, MARGIN, |span| {
            assert_eq!(span, MARGIN.saturating_add(MARGIN).saturating_add(limits::SLEEP_MIN));
            true
        });
        assert!(asked);
        pacing.spent_spinning(Nanos::from_millis(200));
        assert!(!pacing.may_spin(now, MARGIN, |_| true));
    }

    #[test]
    fn a_step_is_seen_and_slewing_is_not() {
        let (mut pacing, mut env) = (pacing(), clocks());
        assert!(!pacing.watch_for_steps(env.now()) && !pacing.watch_for_steps(env.now()));
        env.tai_ahead.fetch_sub(99_000, std::sync::atomic::Ordering::SeqCst);
        assert!(!pacing.watch_for_steps(env.now()) && !pacing.take_stepped());
        env.tai_ahead.fetch_sub(101_000, std::sync::atomic::Ordering::SeqCst);
        assert!(pacing.watch_for_steps(env.now()) && pacing.take_stepped() && !pacing.take_stepped());
    }
}
