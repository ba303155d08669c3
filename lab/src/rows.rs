// SPDX-License-Identifier: Apache-2.0
//! Which row is measured when, and which ones are left out. In: an experiment's rows. Out: their turns in each round, and what happened to
//! them so far. Pure.

/// The rows of a round in their turn: each round begins with a later row, so that no row is always the first one or always
/// behind the same one.
pub(crate) fn turns(rows: usize, rounds: u32, round: u32) -> impl Iterator<Item = usize> {
    let rounds = usize::try_from(rounds.max(1)).unwrap_or(usize::MAX);
    let stride = (rows / rounds).max(1);
    let first = usize::try_from(round.saturating_sub(1)).unwrap_or(0) * stride;
    (0..rows).map(move |turn| (first + turn) % rows)
}

/// What happened to a subject so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Open,
    Measured,
    LeftOut,
}

/// The rows of a measurement as they stand.
pub(crate) struct Rows<R> {
    pub(crate) rows: Vec<R>,
    pub(crate) names: Vec<String>,
    /// Which subject a row has.
    subjects: Vec<usize>,
    states: Vec<State>,
    pub(crate) units: Vec<u64>,
    /// A line for each subject that is left out.
    pub(crate) reasons: Vec<String>,
}

impl<R> Rows<R> {
    /// Rows, each with its name, what it is of, and how many units of progress a run of it has.
    pub(crate) fn new(rows: Vec<R>, facts: impl Fn(&R) -> (String, String, u64)) -> Self {
        let facts: Vec<_> = rows.iter().map(facts).collect();
        let of = |subject: &String| facts.iter().position(|(_, other, _)| other == subject).unwrap_or(0);
        Self {
            names: facts.iter().map(|(name, ..)| name.clone()).collect(),
            subjects: facts.iter().map(|(_, subject, _)| of(subject)).collect(),
            states: vec![State::Open; rows.len()],
            units: facts.iter().map(|(.., units)| *units).collect(),
            reasons: Vec::new(),
            rows,
        }
    }

    pub(crate) fn state(&mut self, index: usize) -> &mut State {
        &mut self.states[self.subjects[index]]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_measured_once_in_a_round_and_none_is_always_first() {
        for rows in 1..12 {
            for rounds in 1..8 {
                let mut first = Vec::new();
                for round in 1..=rounds {
                    let mut order: Vec<usize> = turns(rows, rounds, round).collect();
                    first.push(order[0]);
                    order.sort_unstable();
                    assert_eq!(order, (0..rows).collect::<Vec<_>>());
                }
                assert!(
                    rows == 1 || first.windows(2).all(|pair| pair[0] != pair[1]),
                    "{rows} {rounds} {first:?}"
                );
            }
        }
        assert_eq!(turns(0, 3, 1).count(), 0);
    }
}
