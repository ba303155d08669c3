// SPDX-License-Identifier: Apache-2.0
//! The predictor again, slowly: written from the rules in `docs/design/expected-arrival.md`, not from the code.
//!
//! Everything is a wide integer, slots are walked one by one, and no state is packed or cached.

use ktsn_expect::Seen;

const LATENESS: i128 = 30_000;
const CLOCK_END: i128 = u64::MAX as i128;

#[derive(Clone, Debug)]
struct Track {
    next: i128,
    /// In 1/256 ns.
    period: i128,
    deviation: i128,
    penalty: i128,
    unseen: i128,
    is_exact: bool,
    last_had_its_event: bool,
    is_shared: bool,
    outside: Option<i128>,
    /// The residual of an event that came early, until a better one comes or the slot passes.
    early: Option<i128>,
}

enum Followed {
    Yes,
    /// The event may be another's.
    Early,
    /// The track ends.
    End,
}

/// The reference: all tracks in places, so that "the first" and "the last one" mean the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reference {
    tracks: [Option<Track>; 4],
    /// The oldest first.
    past: Vec<i128>,
    last: i128,
    pub(crate) known: Option<i128>,
}

fn divide(a: i128, b: i128) -> i128 {
    a.div_euclid(b)
}

impl Track {
    fn new(slot: i128, period: i128, deviation: i128, how: Seen) -> Self {
        let period = period.clamp(50_000 * 256, 10_000_000_000 * 256);
        Self {
            next: (slot + divide(period, 256)).min(CLOCK_END),
            period,
            deviation: deviation.min(250_000),
            penalty: 0,
            unseen: 0,
            is_exact: how == Seen::Exact,
            last_had_its_event: true,
            is_shared: false,
            outside: None,
            early: None,
        }
    }

    fn whole_period(&self) -> i128 {
        divide(self.period, 256)
    }

    fn spread(&self, unseen: i128) -> i128 {
        let d = self.deviation;
        let mut spread = d + divide(d, 8) + divide(d * unseen, 16) + 1_000;
        if !self.is_exact {
            spread += LATENESS;
        }
        spread.min(250_000).min(divide(self.whole_period(), 4))
    }

    fn gate(&self) -> i128 {
        (4 * self.spread(self.unseen) + 32_000).min(divide(self.whole_period(), 4))
    }

    fn slot(&self, k: i128) -> i128 {
        self.next + divide(k * self.period, 256)
    }

    fn last_slot(&self) -> i128 {
        (self.next - self.whole_period()).max(0)
    }

    /// False when the track ends.
    fn pass(&mut self, slots: i128) -> bool {
        self.outside = None;
        if let Some(early) = self.early.take() {
            let moved = self.follow_outside(early);
            self.next = (self.next + moved).max(0);
            self.unseen = 0;
            if self.penalty >= 8 {
                return false;
            }
        }
        self.next = self.slot(slots);
        self.unseen += slots;
        self.last_had_its_event = false;
        self.is_shared = false;
        self.unseen <= 32 && self.next <= CLOCK_END
    }

    fn advance(&mut self, event: i128) -> bool {
        let gate = self.gate();
        let (mut slots, mut at) = (0, self.next);
        // More than 33 need not be counted: the track ends.
        while at + gate < event.max(gate) && slots < 40 {
            slots += 1;
            at = self.next + slots * self.whole_period();
        }
        if slots > 0 {
            return self.pass(slots);
        }
        if self.next - event > 2 * self.whole_period() {
            self.penalty += 2;
        }
        self.penalty < 8
    }

    /// The residual, and whether it is from the last slot.
    fn residual(&self, event: i128) -> Option<(i128, bool)> {
        if (event - self.next).abs() <= self.gate() {
            return Some((event - self.next, false));
        }
        let is_open = !self.last_had_its_event && (event - self.last_slot()).abs() <= self.gate();
        is_open.then(|| (event - self.last_slot(), true))
    }

    fn learn(&mut self, residual: i128) {
        let digits = format!("{:b}", self.unseen).trim_start_matches('0').len();
        self.period += divide(residual * 256 / 32, 2_i128.pow(digits as u32));
        self.period = self.period.clamp(50_000 * 256, 10_000_000_000 * 256);
    }

    /// By how much the phase moves.
    fn follow_outside(&mut self, residual: i128) -> i128 {
        let spread = self.spread(self.unseen);
        let limited = residual.clamp(-2 * spread, 2 * spread);
        let moved = divide(limited, 4);
        self.learn(limited);
        self.penalty += 1;
        self.deviation = (self.deviation + divide(self.deviation, 2) + 250).min(250_000);
        self.outside = Some(residual - moved).filter(|outside| *outside != 0);
        moved
    }

    fn follow(&mut self, mut residual: i128, is_last: bool, how: Seen) -> Followed {
        let spread = self.spread(self.unseen);
        if self.is_exact && how == Seen::NotAfter && residual.abs() <= LATENESS {
            residual = 0;
        }
        let has_stepped =
            self.early.is_none() && self.outside.is_some_and(|outside| (residual - outside).abs() <= spread);
        let is_first_exact = !self.is_exact && how == Seen::Exact;
        let moved;
        if is_first_exact || residual.abs() <= spread || has_stepped {
            moved = if is_first_exact {
                self.is_exact = true;
                residual
            } else if residual.abs() <= spread {
                self.learn(residual);
                divide(residual, 4)
            } else {
                residual
            };
            self.penalty = (self.penalty - 1).max(0);
            self.deviation -= divide(self.deviation, 128);
            self.outside = None;
        } else if residual < 0 && !is_last {
            self.outside = None;
            self.early = Some(self.early.map_or(residual, |other| other.max(residual)));
            return Followed::Early;
        } else {
            moved = self.follow_outside(residual);
            if self.penalty >= 8 {
                return Followed::End;
            }
        }
        // The slot after it lies a period as it is now away.
        if !is_last {
            self.next = self.slot(1).min(CLOCK_END);
        }
        self.next = (self.next + moved).clamp(0, CLOCK_END);
        self.unseen = 0;
        self.last_had_its_event = true;
        self.is_shared = false;
        self.early = None;
        Followed::Yes
    }

    fn expected(&self, after: i128) -> Option<(i128, i128)> {
        let mut k = 0;
        while self.next + k * self.whole_period() <= after {
            k += 1;
            if self.unseen + k > 32 {
                return None;
            }
        }
        (self.slot(k) <= CLOCK_END).then(|| (self.slot(k), self.spread(self.unseen + k)))
    }
}

impl Reference {
    pub(crate) fn new(known: Option<u64>) -> Self {
        Self { known: known.map(i128::from), ..Self::default() }
    }

    pub(crate) fn observe(&mut self, at: u64, how: Seen) {
        let event = (i128::from(at) - if how == Seen::NotAfter { LATENESS } else { 0 }).max(0);
        for track in &mut self.tracks {
            track.take_if(|track| !track.advance(event));
        }
        let is_burst = (event - self.last).abs() < 25_000;
        self.last = event;

        let residuals: Vec<(usize, (i128, bool))> =
            (0..4).filter_map(|place| Some((place, self.tracks[place].as_ref()?.residual(event)?))).collect();
        if let Some(&(place, (residual, is_last))) = residuals.iter().min_by_key(|(_, (r, _))| r.abs()) {
            for &(other, (r, is_last)) in &residuals {
                let track = self.tracks[other].as_mut().expect("it has a residual");
                track.is_shared |= !is_last && r.abs() <= track.spread(track.unseen);
            }
            match self.tracks[place].as_mut().expect("it has a residual").follow(residual, is_last, how) {
                Followed::Yes => return,
                Followed::End => {
                    self.tracks[place] = None;
                    return;
                }
                Followed::Early => {}
            }
        }
        let is_repetition = |track: &Track| {
            track.last_had_its_event && (event - track.last_slot()).abs() <= track.spread(track.unseen)
        };
        if self.tracks.iter().flatten().any(is_repetition) || is_burst || self.restarts(event, how) {
            return;
        }
        if self.past.last().is_some_and(|newest| event <= *newest) {
            self.past.clear();
        }
        self.past.push(event);
        if self.past.len() > 16 {
            self.past.remove(0);
        }
        if let Some(members) = self.chain() {
            self.lock(&members, how);
        }
    }

    fn restarts(&mut self, event: i128, how: Seen) -> bool {
        for track in self.tracks.iter_mut().flatten().filter(|track| track.unseen >= 2) {
            let (wanted, reach) = ((event - track.whole_period()).max(0), track.spread(track.unseen));
            if let Some(place) = self.past.iter().rposition(|past| (past - wanted).abs() <= reach) {
                self.past.remove(place);
                let fresh = Track::new(event, track.period, track.deviation, how);
                *track = Track { penalty: divide(track.penalty, 2), ..fresh };
                return true;
            }
        }
        false
    }

    /// The instants of a sure chain, the newest first.
    fn chain(&self) -> Option<Vec<i128>> {
        let newest = *self.past.last()?;
        for second in self.past.iter().rev().skip(1) {
            let period = newest - second;
            if !(50_000..=10_000_000_000).contains(&period) {
                continue;
            }
            // Of a known period the first gap is a link too.
            let off = |known: i128| ((period - known).abs() - divide(known, 8192)).max(0);
            let first = self.known.map(off).filter(|off| *off <= 100_000);
            let tolerance = divide(period, 8).min(100_000);
            let (mut members, mut slot, mut step, mut worst) =
                (vec![newest, *second], *second, period, first.unwrap_or(0).max(1_000));
            loop {
                let links = members.len() as i128 - 1;
                let gaps =
                    self.past.iter().filter(|event| *event >= members.last().unwrap()).count() as i128 - 1;
                let link = (lg(period) + lg(links) - lg(gaps) - lg(2 * worst)).clamp(0, 8 * 256);
                let bits = link * if first.is_some() { links } else { links - 1 };
                if bits >= 24 * 256 {
                    return Some(members);
                }
                let target = slot - step;
                let older = self.past.iter().rev().filter(|event| *event < members.last().unwrap());
                let Some(nearest) = older.min_by_key(|event| (*event - target).abs()) else { break };
                let residual = nearest - target;
                if residual.abs() > tolerance || target < 0 {
                    break;
                }
                worst = worst.max(residual.abs());
                slot = target + divide(residual, 2);
                step -= divide(residual, 4);
                members.push(*nearest);
            }
        }
        None
    }

    fn lock(&mut self, members: &[i128], how: Seen) {
        let links = members.len() as i128 - 1;
        let (newest, oldest) = (members[0], *members.last().unwrap());
        let period = divide((newest - oldest) * 256, links);
        let residuals: Vec<i128> =
            (0..).zip(members).map(|(k, at)| at - (newest - divide(k * period, 256)).max(0)).collect();
        let mean = divide(residuals.iter().sum(), links + 1);
        let furthest = residuals.iter().map(|residual| (residual - mean).abs()).max().unwrap();
        let track = Track::new((newest + mean).max(0), period, furthest + divide(furthest, 2), how);
        let forget = |past: &mut Vec<i128>| past.retain(|event| !members.contains(event));
        for other in self.tracks.iter_mut().flatten() {
            let is_alike = (other.period - track.period).abs() <= divide(other.period, 256);
            let half = divide(other.period, 2);
            let off = ((other.next - track.next).abs() - divide(half, 256)).abs();
            if is_alike && half >= 50_000 * 256 && off <= other.spread(other.unseen) + track.spread(0) {
                other.period = half;
                other.next = other.next.min(track.next);
                other.deviation = other.deviation.max(track.deviation);
                other.outside = None;
                other.early = None;
                other.last_had_its_event = true;
                other.is_shared = false;
                return forget(&mut self.past);
            }
        }
        let unused = (0..4).rev().find(|place| self.tracks[*place].is_none());
        let penalties = (0..4).filter_map(|place| Some((self.tracks[place].as_ref()?.penalty, place)));
        let weakest = penalties.max().filter(|(penalty, _)| *penalty > 0).map(|(_, place)| place);
        if let Some(place) = unused.or(weakest) {
            self.tracks[place] = Some(track);
            forget(&mut self.past);
        }
    }

    pub(crate) fn expected(&self, after: u64) -> Option<(u64, u64)> {
        let slots = self.tracks.iter().flatten().filter_map(|track| track.expected(after.into()));
        // Of several at one instant the first track's.
        let (at, spread) = slots.min_by_key(|(at, _)| *at)?;
        (at > i128::from(after)).then_some((at as u64, spread as u64))
    }

    pub(crate) fn missed(&mut self, at: u64) {
        for track in &mut self.tracks {
            track.take_if(|track| {
                let Some(k) = (0..=32).find(|k| track.slot(*k) == i128::from(at)) else { return false };
                track.penalty += match (track.early, track.is_shared) {
                    (Some(_), _) => 0,
                    (None, true) => 1,
                    (None, false) => 2,
                };
                !track.pass(k + 1) || track.penalty >= 8
            });
        }
    }

    pub(crate) fn period(&self) -> Option<i64> {
        self.tracks.iter().flatten().map(|track| track.whole_period() as i64).min()
    }
}

/// The logarithm of the rules, in 1/256.
fn lg(value: i128) -> i128 {
    let exponent = (value as f64).log2().floor();
    let below = 2_f64.powf(exponent);
    (256.0 * exponent + (256.0 * (value as f64 / below - 1.0)).floor()) as i128
}
