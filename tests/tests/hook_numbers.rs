// SPDX-License-Identifier: Apache-2.0
//! The system calls' numbers that libktsn writes down, of both architectures, are the kernel's: only one of them is ever run
//! on a machine.

const SOURCE: &str = include_str!("../../libktsn/src/sys/number.rs");
/// Debian's linux-libc-dev; x86-64 has a table of its own, AArch64 the generic one.
const X86: &str = "/usr/include/x86_64-linux-gnu/asm/unistd_64.h";
const GENERIC: &str = "/usr/include/asm-generic/unistd.h";

/// `NAME` and its number as the source has them for one architecture; calls that it does not have are left out.
fn written(architecture: &str) -> Vec<(String, u32)> {
    let begin = format!("#[cfg(target_arch = \"{architecture}\")]\nmod of_machine {{");
    let (_, rest) = SOURCE.split_once(&begin).expect("a table of this architecture");
    let (table, _) = rest.split_once("\n}").expect("its end");
    let number = |line: &str| {
        let (name, value) = line.trim().strip_prefix("pub(crate) const ")?.split_once(": usize = ")?;
        Some((name.to_lowercase(), value.trim_end_matches(';').parse().ok()?))
    };
    table.lines().filter_map(number).collect()
}

/// The number that a header gives a call. Where 64-bit and 32-bit machines differ, the generic one says `__NR3264_`.
fn given(header: &str, name: &str) -> Option<u32> {
    let value = |line: &str| {
        let mut words = line.split_whitespace();
        let is_it = words.next() == Some("#define")
            && words
                .next()
                .is_some_and(|word| word == format!("__NR_{name}") || word == format!("__NR3264_{name}"));
        is_it.then(|| words.next()?.parse().ok()).flatten()
    };
    header.lines().find_map(value)
}

#[test]
fn numbers_are_those_of_the_kernels_headers() {
    // The headers of x86-64 are on x86-64 machines only.
    let own = cfg!(target_arch = "x86_64").then_some(("x86_64", X86));
    for (architecture, header) in own.into_iter().chain([("aarch64", GENERIC)]) {
        let header = std::fs::read_to_string(header).expect("linux-libc-dev");
        let numbers = written(architecture);
        assert!(numbers.len() >= 20, "{architecture}: {numbers:?}");
        for (name, number) in numbers {
            assert_eq!(given(&header, &name), Some(number), "{name} on {architecture}");
        }
    }
}
