// SPDX-License-Identifier: Apache-2.0
//! Lists of CPUs as the kernel writes them. In: text. Out: numbers.

/// The CPUs of a list in its order; `None`: it is no list, or has a CPU above `most`.
#[must_use]
pub fn cpus_of(list: &str, most: usize) -> Option<Vec<usize>> {
    let number = |word: &str| word.parse::<usize>().ok().filter(|&cpu| cpu <= most);
    let mut cpus = Vec::new();
    for part in list.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (number(first)?, number(last)?);
        if first > last {
            return None;
        }
        cpus.extend(first..=last);
    }
    Some(cpus)
}
