// SPDX-License-Identifier: Apache-2.0
//! Compiles the eBPF programs with clang and writes their instructions down as Rust constants, with the places where
//! descriptors of maps belong. So nothing has to be parsed, and no C library linked, when a program is loaded.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Programs: what they are called, source, flags, the enumeration that names their maps.
const PROGRAMS: [(&str, &str, &[&str], &str); 3] = [
    ("CAPTURE", "programs/capture.bpf.c", &[], "CaptureMap"),
    ("CAPTURE_TEST", "programs/capture.bpf.c", &["-DKTSN_CAPTURE_TEST"], "CaptureMap"),
    ("INGRESS", "programs/ingress.bpf.c", &[], "IngressMap"),
];

/// The ELF section of the program (`SECTION` in the source).
const SECTION: &str = "tcx/ingress";

fn main() {
    println!("cargo:rerun-if-changed=programs");
    println!("cargo:rerun-if-env-changed=CLANG");
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let mut text = String::new();
    for (name, source, flags, maps) in PROGRAMS {
        let object = out.join(format!("{name}.o"));
        compile(Path::new(source), flags, &object);
        let octets = std::fs::read(&object).expect("clang wrote it");
        write_constants(&mut text, name, maps, &Elf(&octets));
    }
    std::fs::write(out.join("programs.rs"), text).expect("OUT_DIR can be written");
}

fn compile(source: &Path, flags: &[&str], object: &Path) {
    let clang = std::env::var("CLANG").unwrap_or_else(|_| "clang".to_owned());
    let target = std::env::var("TARGET").expect("cargo sets TARGET");
    let arch = target.split('-').next().unwrap_or_default();
    let endian = std::env::var("CARGO_CFG_TARGET_ENDIAN").unwrap_or_default();
    assert!(endian == "little", "the programs are written for little-endian machines, this is {target}");
    let result = Command::new(&clang)
        .args(["-target", "bpfel", "-mcpu=v2", "-std=gnu11", "-O2", "-g0", "-ffreestanding"])
        .args(["-fno-unwind-tables", "-fno-asynchronous-unwind-tables"])
        .args(["-Wall", "-Wextra", "-Werror", "-Wconversion"])
        // Debian's place for <asm/types.h>.
        .args(["-idirafter", &format!("/usr/include/{arch}-linux-gnu")])
        .args(flags)
        .arg("-c")
        .arg(source)
        .arg("-o")
        .arg(object)
        .output();
    match result {
        Ok(output) if output.status.success() => {}
        Ok(output) => {
            panic!("{clang} {}:\n{}", source.display(), String::from_utf8_lossy(&output.stderr))
        }
        Err(error) => panic!("{clang}: {error}; `make setup` installs it (Debian package clang)"),
    }
}

/// What is needed of a 64-bit little-endian object file, written by clang a moment ago.
struct Elf<'a>(&'a [u8]);

struct Section<'a> {
    name: &'a str,
    octets: &'a [u8],
}

impl<'a> Elf<'a> {
    fn number(&self, at: usize, octets: usize) -> usize {
        let mut word = [0; 8];
        word[..octets].copy_from_slice(&self.0[at..at + octets]);
        u64::from_le_bytes(word) as usize
    }

    fn section_octets(&self, index: usize) -> (usize, &'a [u8]) {
        let header = self.number(40, 8) + index * self.number(58, 2);
        let (start, size) = (self.number(header + 24, 8), self.number(header + 32, 8));
        (self.number(header, 4), &self.0[start..start + size])
    }

    fn section(&self, name: &str) -> Section<'a> {
        let names = self.section_octets(self.number(62, 2)).1;
        let found = (1..self.number(60, 2)).map(|index| self.section_octets(index));
        let mut named = found.map(|(at, octets)| Section { name: text(&names[at..]), octets });
        named.find(|section| section.name == name).unwrap_or_else(|| panic!("no section {name}"))
    }
}

fn text(octets: &[u8]) -> &str {
    let end = octets.iter().position(|octet| *octet == 0).expect("names end with a zero");
    std::str::from_utf8(&octets[..end]).expect("names are ASCII")
}

fn write_constants(into: &mut String, name: &str, map_type: &str, elf: &Elf<'_>) {
    let code = elf.section(SECTION).octets;
    let (symbols, names) = (elf.section(".symtab").octets, elf.section(".strtab").octets);
    if name.ends_with("_TEST") {
        into.push_str("#[cfg(test)]\n");
    }
    let head = format!("pub(crate) const {name}: Program<{map_type}> = Program {{ instructions: &[");
    writeln!(into, "{head}").expect("a String");
    for word in code.as_chunks::<8>().0 {
        writeln!(into, "    {:#018x},", u64::from_le_bytes(*word)).expect("a String");
    }
    into.push_str("], maps: &[\n");
    for entry in elf.section(&format!(".rel{SECTION}")).octets.as_chunks::<16>().0 {
        let entry = Elf(entry);
        let (at, kind, symbol) = (entry.number(0, 8), entry.number(8, 4), entry.number(12, 4));
        assert_eq!(kind, 1, "R_BPF_64_64 only: maps");
        let symbol = Elf(&symbols[symbol * 24..]).number(0, 4);
        let map = camel(text(&names[symbol..]));
        writeln!(into, "    ({}, {map_type}::{map}),", at / 8).expect("a String");
    }
    into.push_str("] };\n");
}

fn camel(name: &str) -> String {
    let mut letters = name.chars();
    letters.next().map(|first| first.to_ascii_uppercase()).into_iter().chain(letters).collect()
}
