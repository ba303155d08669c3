// SPDX-License-Identifier: Apache-2.0
//! What an executable's headers say about how it starts.
//!
//! In: a file. Out: [`Elf`], or that it is none. Reads the ELF header, the program headers, the notes, the names of
//! the sections and the tables of strings, each within a bound; a damaged or hostile file gives an error, never a panic or much memory.

use std::io::{self, Read, Seek};

use object::elf::{
    EM_AARCH64, EM_X86_64, FileHeader64, Machine, PF_X, PT_DYNAMIC, PT_INTERP, PT_LOAD, PT_NOTE, SHT_STRTAB,
};
use object::read::elf::{FileHeader as _, NoteIterator, ProgramHeader as _, SectionHeader as _};
use object::{LittleEndian, ReadCache, ReadRef as _};

/// Octets of the identification and of `e_type` and `e_machine`, which are the same in every ELF file.
const IDENTITY_OCTETS: u64 = 20;
/// ioctl(2) requests: SIOCSHWTSTAMP and SIOCGHWTSTAMP.
const HWTSTAMP_REQUESTS: [u32; 2] = [0x89b0, 0x89b1];
/// The most octets of code that are searched.
const CODE_OCTETS_MAX: u64 = 64 << 20;
/// The most octets of the names of a program's functions that are read; larger tables are skipped.
const NAMES_OCTETS_MAX: u64 = 64 << 20;
/// The most octets of all notes and of the loader's name together.
const PARTS_OCTETS_MAX: u64 = 1 << 20;

/// The only byte order that is read.
const ORDER: LittleEndian = LittleEndian;
type Header = FileHeader64<LittleEndian>;

/// Libraries and functions of the tables of strings that matter to KTSN.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Names {
    /// liburing, or a function for io_uring.
    pub(crate) io_uring: bool,
    /// The runtime of the address sanitizer as a library (gcc's default).
    pub(crate) asan_library: bool,
    /// mlockall(2).
    pub(crate) mlockall: bool,
    /// chroot(2) or pivot_root(2).
    pub(crate) chroot: bool,
    /// daemon(3), or setsid(2) with fork(2).
    pub(crate) daemon: bool,
}

/// What kind of ELF file it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Elf {
    /// 64-bit, little-endian: only then the fields below are filled in.
    pub(crate) is_64_bit: bool,
    /// `e_machine`.
    pub(crate) machine: Machine,
    /// PT_INTERP: the dynamic loader; without one nothing can be preloaded.
    pub(crate) interpreter: Option<String>,
    /// PT_DYNAMIC is there (a static-pie has it too).
    pub(crate) has_dynamic: bool,
    /// Made by the Go tools.
    pub(crate) is_go: bool,
    /// What its tables of strings name; `None` where there is none, or one cannot be read.
    pub(crate) names: Option<Names>,
    /// Offset and octets of each executable segment in the file.
    code: Vec<(u64, u64)>,
}

/// Reads what [`Elf`] holds; `None` when the file is no ELF file at all.
///
/// # Errors
/// `InvalidData` for a file that cannot be read or is damaged.
pub(crate) fn read(file: &mut (impl Read + Seek)) -> io::Result<Option<Elf>> {
    let cache = ReadCache::new(file);
    let data = &cache;
    let damaged =
        |problem: &str| io::Error::new(io::ErrorKind::InvalidData, format!("a damaged ELF file: {problem}"));
    if !data.read_bytes_at(0, 4).is_ok_and(|start| start == b"\x7fELF") {
        return Ok(None);
    }
    let identity = data.read_bytes_at(0, IDENTITY_OCTETS).map_err(|()| damaged("it ends in its header"))?;
    let machine = Machine(u16::from_le_bytes([identity[18], identity[19]]));
    if identity[4..6] != [2, 1] {
        return Ok(Some(Elf { machine, ..Elf::default() }));
    }
    let wrong = |error: object::read::Error| damaged(&error.to_string());
    let header = Header::parse(data).map_err(wrong)?;
    let mut elf = Elf { is_64_bit: true, machine, ..Elf::default() };
    let mut left = PARTS_OCTETS_MAX;
    for segment in header.program_headers(ORDER, data).map_err(wrong)? {
        let kind = segment.p_type(ORDER);
        let (offset, octets) = segment.file_range(ORDER);
        if [PT_INTERP, PT_NOTE].contains(&kind) {
            left = left.checked_sub(octets).ok_or_else(|| damaged("its notes claim more than 1 MiB"))?;
        }
        if let Some(loader) = segment.interpreter(ORDER, data).map_err(wrong)? {
            elf.interpreter = Some(String::from_utf8_lossy(loader).into_owned());
        }
        match kind {
            PT_DYNAMIC => elf.has_dynamic = true,
            PT_LOAD if segment.p_flags(ORDER).contains(PF_X) => elf.code.push((offset, octets)),
            PT_NOTE => {
                let contents = segment.data(ORDER, data).map_err(|()| damaged("it ends in its notes"))?;
                elf.is_go |= has_go_note(contents, segment.p_align(ORDER));
            }
            _ => {}
        }
    }
    // The sections say more, where they are there and whole.
    if let Ok(sections) = header.sections(ORDER, data) {
        // The note can be linked away; the section with the build information stays.
        elf.is_go |= sections.section_by_name(ORDER, b".go.buildinfo").is_some();
        let tables = sections.iter().filter(|section| section.sh_type(ORDER) == SHT_STRTAB);
        let tables: Option<Vec<&[u8]>> = tables
            .map(|table| {
                let is_small = table.sh_size(ORDER) <= NAMES_OCTETS_MAX;
                is_small.then(|| table.data(ORDER, data).ok()).flatten()
            })
            .collect();
        elf.names = tables.filter(|tables| !tables.is_empty()).map(|tables| names(&tables));
    }
    Ok(Some(elf))
}

/// Whether its code loads the number of SIOCSHWTSTAMP or SIOCGHWTSTAMP; `None` where not all of the code can be read.
pub(crate) fn asks_hwtstamp(file: &mut (impl Read + Seek), elf: &Elf) -> Option<bool> {
    let cache = ReadCache::new(file);
    let mut left = CODE_OCTETS_MAX;
    let mut is_whole = !elf.code.is_empty() && [EM_X86_64, EM_AARCH64].contains(&elf.machine);
    for &(offset, octets) in &elf.code {
        let code = if octets <= left { (&cache).read_bytes_at(offset, octets).ok() } else { None };
        left = left.saturating_sub(octets);
        match code {
            Some(code) if loads_hwtstamp(code, elf.machine) => return Some(true),
            Some(_) => {}
            None => is_whole = false,
        }
    }
    is_whole.then_some(false)
}

/// Whether an instruction in `code` has the number of such a request as its constant. Four octets of other code may look the same:
/// once in some hundred programs of a megabyte.
fn loads_hwtstamp(code: &[u8], machine: Machine) -> bool {
    match machine {
        // The constant of `mov r32, imm32`, opcodes 0xb8 to 0xbf: in a register that ioctl's second argument is in, or is moved to.
        EM_X86_64 => code.windows(5).any(|octets| {
            octets[0] & 0xf8 == 0xb8
                && word(&octets[1..]).is_some_and(|constant| HWTSTAMP_REQUESTS.contains(&constant))
        }),
        // `movz wN, #imm16`, `movz xN, #imm16`.
        EM_AARCH64 => code.chunks_exact(4).any(|octets| {
            let is_it = |word: u32| {
                HWTSTAMP_REQUESTS.iter().any(|request| word & 0x7fff_ffe0 == 0x5280_0000 | request << 5)
            };
            word(octets).is_some_and(is_it)
        }),
        _ => false,
    }
}

fn word(octets: &[u8]) -> Option<u32> {
    octets.first_chunk().copied().map(u32::from_le_bytes)
}

/// Whether a note is named `Go`: it carries the build id.
fn has_go_note(notes: &[u8], align: u64) -> bool {
    NoteIterator::<Header>::new(ORDER, align, notes)
        .is_ok_and(|mut notes| notes.any(|note| note.is_ok_and(|note| note.name() == b"Go")))
}

/// What tables of strings (the libraries and functions that the program needs, and its own) name.
fn names(tables: &[&[u8]]) -> Names {
    let (mut found, mut forks, mut has_session) = (Names::default(), false, false);
    for name in tables.iter().flat_map(|table| table.split(|octet| *octet == 0)) {
        let has = |what: &[u8]| name.windows(what.len()).any(|part| part == what);
        // io_uring functions of libuv do not count: it sends no datagrams that way.
        found.io_uring |=
            name.starts_with(b"liburing.so") || (has(b"io_uring") && !name.starts_with(b"uv__"));
        found.asan_library |= name.starts_with(b"libasan.so") || name.starts_with(b"libclang_rt.asan");
        // Where symbols were kept, a function has its version behind it.
        match name.split(|octet| *octet == b'@').next() {
            Some(b"mlockall") => found.mlockall = true,
            Some(b"chroot" | b"pivot_root") => found.chroot = true,
            Some(b"daemon") => found.daemon = true,
            Some(b"fork" | b"vfork") => forks = true,
            Some(b"setsid") => has_session = true,
            _ => {}
        }
    }
    found.daemon |= forks && has_session;
    found
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use object::elf::ProgramType;
    use std::io::Cursor;

    /// An x86-64 ELF file with these segments: type and contents.
    pub(crate) fn made(segments: &[(ProgramType, &[u8])]) -> Vec<u8> {
        let mut file = vec![0_u8; 64];
        file[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
        file[16..20].copy_from_slice(&[2, 0, 62, 0]);
        file[32] = 64;
        file[54] = 56;
        file[56] = u8::try_from(segments.len()).unwrap();
        let mut offset = 64 + 56 * segments.len() as u64;
        for (kind, contents) in segments {
            let mut entry = [0_u8; 56];
            entry[..4].copy_from_slice(&kind.0.to_le_bytes());
            entry[8..16].copy_from_slice(&offset.to_le_bytes());
            entry[32..40].copy_from_slice(&(contents.len() as u64).to_le_bytes());
            file.extend_from_slice(&entry);
            offset += contents.len() as u64;
        }
        for (_, contents) in segments {
            file.extend_from_slice(contents);
        }
        file
    }

    fn parsed(file: Vec<u8>) -> Elf {
        read(&mut Cursor::new(file)).unwrap().unwrap()
    }

    #[test]
    fn this_test_is_a_dynamic_program() {
        let mut own = std::fs::File::open("/proc/self/exe").unwrap();
        let elf = read(&mut own).unwrap().unwrap();
        assert!(elf.is_64_bit && elf.has_dynamic && !elf.is_go, "{elf:?}");
        assert!(elf.interpreter.unwrap().contains("ld-"));
    }

    #[test]
    fn made_files_are_told_apart() {
        assert_eq!(parsed(made(&[(PT_LOAD, b"")])).interpreter, None);
        let dynamic = parsed(made(&[(PT_INTERP, b"/lib/ld-musl-x86_64.so.1\0"), (PT_DYNAMIC, b"")]));
        assert_eq!(dynamic.interpreter.as_deref(), Some("/lib/ld-musl-x86_64.so.1"));
        assert!(dynamic.has_dynamic);
        let go = parsed(made(&[(
            PT_NOTE,
            b"\x04\0\0\0\x04\0\0\0\x01\0\0\0GNU\0abcd\x03\0\0\0\0\0\0\0\x04\0\0\0Go\0\0",
        )]));
        assert!(go.is_go && go.interpreter.is_none());
        let mut small = made(&[]);
        small[4] = 1;
        assert_eq!(parsed(small), Elf { machine: EM_X86_64, ..Elf::default() });
        assert_eq!(read(&mut Cursor::new(b"#!/bin/sh\n".to_vec())).unwrap(), None);
        assert_eq!(read(&mut Cursor::new(Vec::new())).unwrap(), None);
    }

    #[test]
    fn code_that_asks_for_hardware_timestamps_is_seen() {
        let with = |code: &[u8], machine: Machine, flags: u8| {
            let mut file = made(&[(PT_LOAD, code)]);
            file[18..20].copy_from_slice(&machine.0.to_le_bytes());
            file[64 + 4] = flags;
            asks_hwtstamp(&mut Cursor::new(file.clone()), &parsed(file))
        };
        // mov esi, 0x89b0; mov edx, 0x89b1
        assert_eq!(with(b"\x90\xbe\xb0\x89\0\0\xc3", EM_X86_64, 5), Some(true));
        assert_eq!(with(b"\xba\xb1\x89\0\0", EM_X86_64, 5), Some(true));
        assert_eq!(with(b"\xbe\xb0\x89\0\0", EM_X86_64, 4), None, "data, and no code");
        assert_eq!(with(b"\xbe\xb0\x89\0\x01\xbe\xb2\x89\0\0", EM_X86_64, 5), Some(false));
        // mov w1, #0x89b0
        assert_eq!(with(&0x5291_3601_u32.to_le_bytes(), EM_AARCH64, 5), Some(true));
        // mov x1, #0x89b1
        assert_eq!(with(&0xd291_3621_u32.to_le_bytes(), EM_AARCH64, 5), Some(true));
        assert_eq!(with(&0x5291_3601_u32.to_le_bytes(), EM_X86_64, 5), Some(false));
        assert_eq!(with(b"\xbe\xb0\x89\0\0", object::elf::EM_RISCV, 5), None, "code that is not understood");
    }

    #[test]
    fn names_are_whole_words_of_any_table() {
        let of = |table: &[u8]| names(&[b"\0printf\0", table]);
        assert_eq!(of(b"chrooted\0daemonise\0mlockall2\0mylibasan.so\0"), Names::default());
        assert!(of(b"\0daemon@GLIBC_2.2.5\0").daemon && of(b"daemon").daemon);
        assert!(!of(b"fork\0").daemon && of(b"fork\0setsid\0").daemon);
        assert!(
            of(b"mlockall\0").mlockall && of(b"pivot_root\0").chroot && of(b"libasan.so.8\0").asan_library
        );
        assert!(
            of(b"uv__io_uring_enter\0io_uring_submit\0").io_uring && !of(b"uv__io_uring_enter\0").io_uring
        );
        // Without sections nothing is known.
        assert_eq!(parsed(made(&[(PT_LOAD, b"daemon\0")])).names, None);
    }

    #[test]
    fn damage_is_an_error_and_never_a_panic() {
        let whole = made(&[(PT_INTERP, b"/lib/ld.so\0"), (PT_NOTE, &[255; 40]), (PT_DYNAMIC, b"")]);
        for end in 4..whole.len() {
            assert!(read(&mut Cursor::new(whole[..end].to_vec())).is_err(), "cut at {end}");
        }
        let mut huge = whole.clone();
        huge[64 + 32..64 + 40].copy_from_slice(&u64::MAX.to_le_bytes());
        assert!(read(&mut Cursor::new(huge)).is_err());
        for at in 4..whole.len() {
            for value in [0, 1, 0x7f, 0xff] {
                let mut bad = whole.clone();
                bad[at] = value;
                let _ = read(&mut Cursor::new(bad));
            }
        }
    }
}
