// SPDX-License-Identifier: Apache-2.0
//! Target `qemu`: the command line of a process that `ktsn doctor --vm` looks at.
//!
//! In: words that end with NUL, as in /proc/PID/cmdline; the last one is the text of every file that they name. Out: nothing. Broken promise:
//! more cards and back ends than words, or others once a disk stands in front.

use crate::qemu_arguments::{config_files, read};

/// See the module.
pub fn qemu(data: &[u8]) {
    let words: Vec<String> =
        data.split(|octet| *octet == 0).map(|word| String::from_utf8_lossy(word).into_owned()).collect();
    let file = words.last().cloned().unwrap_or_default();
    let lines_count = file.lines().count();
    let named = config_files(&words).len();
    let found = read(&words, |_| Some(file.clone()));
    let most = words.len() + named * lines_count;
    assert!(found.cards.len() <= most && found.back_ends.len() <= most, "{found:?}");
    assert!(found.back_ends.iter().all(|end| end.kind.len() <= data.len().max(1) * 3));
    let none = read(&words, |_| None);
    assert_eq!(
        none.unread.iter().filter(|what| what.starts_with("-readconfig ")).count(),
        named.min(words.len())
    );
    if words.len() < 4_000 {
        let mut again = words.clone();
        again.insert(1.min(again.len()), "disk.qcow2".to_owned());
        assert_eq!(read(&again, |_| Some(file.clone())), found, "a disk is no option");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The corpus reaches what its names say.
    #[test]
    fn corpus_of_qemu_gets_far() {
        let of = |data: &[u8]| {
            let words: Vec<String> = data
                .split(|octet| *octet == 0)
                .map(|word| String::from_utf8_lossy(word).into_owned())
                .collect();
            read(&words, |_| words.last().cloned())
        };
        let plain = of(include_bytes!("../corpus/qemu/plain.bin"));
        assert_eq!((plain.cards.len(), plain.back_ends.len(), plain.accelerators.len()), (2, 2, 2));
        let json = of(include_bytes!("../corpus/qemu/json.bin"));
        assert!(json.cards.len() == 1 && json.cards[0].queues == Some(2), "{json:?}");
        let config = of(include_bytes!("../corpus/qemu/config.bin"));
        assert!(config.cards.len() == 1 && config.cards[0].queues == Some(4), "{config:?}");
    }
}
