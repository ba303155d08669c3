// SPDX-License-Identifier: Apache-2.0
//! Compiles the eBPF programs with clang and writes their instructions down as Rust constants, with the places where
//! descriptors of maps belong. So no object file is parsed, and no C library linked, when a program is loaded.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use object::elf::R_BPF_64_64;
use object::{Object as _, ObjectSection as _, ObjectSymbol as _, RelocationFlags, RelocationTarget};

/// Programs: what they are called, source, flags, the enumeration that names their maps, the hook.
const PROGRAMS: [(&str, &str, &[&str], &str, &Hook); 6] = [
    ("CAPTURE", "programs/capture.bpf.c", &[], "CaptureMap", &TCX),
    ("CAPTURE_TEST", "programs/capture.bpf.c", &["-DKTSN_CAPTURE_TEST"], "CaptureMap", &TCX),
    ("INGRESS", "programs/ingress.bpf.c", &[], "IngressMap", &TCX),
    ("FORWARD_UPLINK", "programs/forward.bpf.c", &[], "ForwardMap", &XDP),
    ("FORWARD_GUEST", "programs/forward.bpf.c", &["-DKTSN_GUEST"], "ForwardMap", &XDP),
    ("PASS", "programs/pass.bpf.c", &[], "ForwardMap", &XDP),
];

/// Where a program is attached: the ELF section of the program (`SECTION` in the source), and the hook's name in Rust.
struct Hook {
    section: &'static str,
    name: &'static str,
}

const TCX: Hook = Hook { section: "tcx/ingress", name: "TcxIngress" };
const XDP: Hook = Hook { section: "xdp", name: "Xdp" };

fn main() {
    println!("cargo:rerun-if-changed=programs");
    println!("cargo:rerun-if-env-changed=CLANG");
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let mut text = String::new();
    for (name, source, flags, maps, hook) in PROGRAMS {
        let object = out.join(format!("{name}.o"));
        compile(Path::new(source), flags, &object);
        let octets = std::fs::read(&object).expect("clang wrote it");
        write_constants(&mut text, name, maps, hook, &octets);
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

/// Writes the program of `object` down: its instructions, and which of them load the address of which map.
fn write_constants(into: &mut String, name: &str, maps: &str, hook: &Hook, object: &[u8]) {
    let object = object::File::parse(object).expect("clang writes ELF");
    let section = object.section_by_name(hook.section);
    let section = section.unwrap_or_else(|| panic!("no section {}", hook.section));
    let code = section.data().expect("clang wrote it");
    if name.ends_with("_TEST") {
        into.push_str("#[cfg(test)]\n");
    }
    let hook = hook.name;
    writeln!(into, "pub(crate) const {name}: Program = Program {{ hook: Hook::{hook}, instructions: &[")
        .expect("a String");
    for word in code.as_chunks::<8>().0 {
        writeln!(into, "    {:#018x},", u64::from_le_bytes(*word)).expect("a String");
    }
    into.push_str("], maps: &[\n");
    for (at, entry) in section.relocations() {
        let RelocationTarget::Symbol(symbol) = entry.target() else { panic!("maps have names: {entry:?}") };
        assert_eq!(entry.flags(), RelocationFlags::Elf { r_type: R_BPF_64_64 }, "maps only");
        let map = object.symbol_by_index(symbol).and_then(|symbol| symbol.name().map(camel));
        let map = map.expect("clang wrote it");
        writeln!(into, "    ({}, {maps}::{map} as usize),", at / 8).expect("a String");
    }
    into.push_str("] };\n");
}

fn camel(name: &str) -> String {
    let mut letters = name.chars();
    letters.next().map(|first| first.to_ascii_uppercase()).into_iter().chain(letters).collect()
}
