// SPDX-License-Identifier: Apache-2.0
//! Every small world, one after the other.

/// Calls `world` with every sequence of `length` indices below `choices`.
pub(crate) fn sequences(choices: usize, length: u32, mut world: impl FnMut(&[usize])) -> usize {
    let count = choices.pow(length);
    let mut picks = vec![0; length as usize];
    for number in 0..count {
        let mut rest = number;
        for pick in &mut picks {
            (*pick, rest) = (rest % choices, rest / choices);
        }
        world(&picks);
    }
    count
}
