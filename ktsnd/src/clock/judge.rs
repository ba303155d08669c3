// SPDX-License-Identifier: Apache-2.0
//! Whether the clock is good. In: what its source says, again and again, and steps. Out: good or not, with a reason. Pure.
//!
//! It does not follow each reading: a clock at the edge would hold and release frames all the time. The first reading counts at
//! once. Then the clock is not good after two readings in a row that say so, and good again after four. After a step it is not
//! good until four readings in a row were good: before that, its new value is not known to be right.

use ktsn_time::Nanos;

/// Readings in a row after which a good clock is not good any more.
const BAD_AFTER: u32 = 2;
/// Readings in a row after which it is good again.
const GOOD_AFTER: u32 = 4;

/// What a source reports about the clock at one instant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Reading {
    /// Why it is not to be trusted; `None`: it is.
    pub(super) fault: Option<String>,
    /// The greatest error that the source admits.
    pub(super) error: Option<Nanos>,
}

impl Reading {
    /// Good, with this error at most.
    pub(super) fn good(error: Option<Nanos>) -> Self {
        Self { fault: None, error }
    }

    /// A reading of a clock that is not good.
    pub(super) fn bad(why: impl Into<String>) -> Self {
        Self { fault: Some(why.into()), error: None }
    }

    /// Marks the reading as not good if its source reports a greater error than `most`.
    pub(super) fn within(mut self, most: Option<Nanos>) -> Self {
        if let (None, Some(error), Some(most)) = (&self.fault, self.error, most)
            && error > most
        {
            self.fault = Some(format!("its error may be {error}, more than {most}"));
        }
        self
    }
}

/// The verdict on the clock, and the readings that led to it.
#[derive(Clone, Debug, Default)]
pub(super) struct Judge {
    verdict: Option<Result<(), String>>,
    /// Readings in a row that contradict the verdict.
    against: u32,
    transitions: u64,
    steps: u64,
    error: Option<Nanos>,
}

impl Judge {
    /// Whether the last reading contradicted the verdict: the next reading then comes sooner.
    pub(super) fn is_contradicted(&self) -> bool {
        self.against > 0
    }

    /// Takes in a reading; true: the clock went from good to not good or back, or was judged first.
    pub(super) fn read(&mut self, reading: Reading) -> bool {
        self.error = reading.error;
        let is_first = self.verdict.is_none();
        match (&mut self.verdict, reading.fault) {
            (Some(Ok(())), None) => self.against = 0,
            // The reason may be another by now.
            (Some(Err(why)), Some(fault)) => {
                *why = fault;
                self.against = 0;
            }
            (verdict, fault) => {
                self.against += 1;
                let enough = if fault.is_some() { BAD_AFTER } else { GOOD_AFTER };
                if is_first || self.against >= enough {
                    *verdict = Some(fault.map_or(Ok(()), Err));
                    self.against = 0;
                    self.transitions += u64::from(!is_first);
                    return true;
                }
            }
        }
        false
    }

    /// The clock was set; true: it was good until now.
    pub(super) fn step(&mut self) -> bool {
        self.steps += 1;
        self.against = 0;
        let was_good = matches!(self.verdict, Some(Ok(())));
        if was_good {
            self.transitions += 1;
        }
        self.verdict = Some(Err("it was set a moment ago".to_owned()));
        was_good
    }

    /// Why it is not good; `None`: it is.
    pub(super) fn fault(&self) -> Option<&str> {
        match &self.verdict {
            None => Some("it was not looked at yet"),
            Some(Ok(())) => None,
            Some(Err(why)) => Some(why),
        }
    }

    /// How often it went from good to not good or back.
    pub(super) fn transitions(&self) -> u64 {
        self.transitions
    }

    /// How often it was set.
    pub(super) fn steps(&self) -> u64 {
        self.steps
    }

    /// The greatest error that the source admitted last.
    pub(super) fn error(&self) -> Option<Nanos> {
        self.error
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(judge: &mut Judge, is_good: bool) -> bool {
        judge.read(if is_good { Reading::good(None) } else { Reading::bad("unsynchronised") })
    }

    #[test]
    fn the_first_reading_counts_at_once_later_ones_must_agree() {
        let mut judge = Judge::default();
        assert!(judge.fault().is_some());
        assert!(read(&mut judge, true) && judge.fault().is_none());
        assert!(!read(&mut judge, false) && judge.fault().is_none());
        assert!(!read(&mut judge, true) && !read(&mut judge, false));
        assert!(read(&mut judge, false));
        assert_eq!((judge.fault(), judge.transitions()), (Some("unsynchronised"), 1));
        for _ in 0..3 {
            assert!(!read(&mut judge, true) && judge.fault().is_some());
        }
        assert!(read(&mut judge, true) && judge.fault().is_none());
        assert_eq!((judge.transitions(), judge.steps()), (2, 0));
    }

    #[test]
    fn after_a_step_it_is_not_good_until_it_was_for_a_while() {
        let mut judge = Judge::default();
        read(&mut judge, true);
        assert!(judge.step() && judge.fault().is_some_and(|why| why.contains("set")));
        assert!(!judge.step(), "it was not good already");
        assert!(!(0..3).any(|_| read(&mut judge, true)));
        assert!(read(&mut judge, true));
        assert_eq!((judge.transitions(), judge.steps()), (2, 2));
    }

    #[test]
    fn an_error_that_is_too_great_is_a_fault() {
        let most = Some(Nanos::from_micros(10));
        assert_eq!(Reading::good(most).within(most).fault, None);
        assert_eq!(Reading::good(None).within(most).fault, None);
        let fault = Reading::good(Some(Nanos::from_micros(11))).within(most).fault.unwrap();
        assert!(fault.contains("more than"), "{fault}");
    }

    proptest! {
        /// A change needs as many readings in a row as the module says, and each is counted once.
        #[test]
        fn it_follows_runs_of_readings(readings in proptest::collection::vec(0u8..12, 1..80)) {
            let mut judge = Judge::default();
            let (mut run, mut last, mut transitions, mut steps) = (0, None, 0, 0);
            for reading in readings {
                let before = judge.fault().is_none();
                let is_known = judge.verdict.is_some();
                if reading == 0 {
                    steps += 1;
                    (run, last) = (0, None);
                    prop_assert_eq!(judge.step(), before);
                    transitions += u64::from(before);
                    prop_assert!(judge.fault().is_some());
                    continue;
                }
                let is_good = reading > 5;
                run = if last == Some(is_good) { run + 1 } else { 1 };
                last = Some(is_good);
                let has_changed = read(&mut judge, is_good);
                let now = judge.fault().is_none();
                prop_assert_eq!(has_changed, now != before || !is_known);
                transitions += u64::from(is_known && now != before);
                if now != before && is_known {
                    let enough = if is_good { GOOD_AFTER } else { BAD_AFTER };
                    prop_assert!(run >= enough);
                }
                if run >= GOOD_AFTER {
                    prop_assert_eq!(now, is_good);
                }
            }
            prop_assert_eq!((judge.transitions(), judge.steps()), (transitions, steps));
        }
    }
}
