// SPDX-License-Identifier: Apache-2.0
//! What an executable's headers say about how it starts.
//!
//! In: a file. Out: [`Elf`], or that it is none. Reads the ELF header, the program headers, the notes, the names of
//! the sections and the tables of strings, each within a bound; a damaged or hostile file gives an error, never a panic or much memory.

use std::io::{self, Read, Seek, SeekFrom};

/// System V ABI, e_type and friends.
const CLASS_64: u8 = 2;
const LITTLE_ENDIAN: u8 = 1;
const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const PT_INTERP: u32 = 3;
const PT_NOTE: u32 = 4;

const PF_X: u32 = 1;

const SHT_STRTAB: u32 = 3;

const EM_X86_64: u16 = 62;
const EM_AARCH64: u16 = 183;

/// ioctl(2) requests: SIOCSHWTSTAMP and SIOCGHWTSTAMP.
const HWTSTAMP_REQUESTS: [u32; 2] = [0x89b0, 0x89b1];
/// More code is not looked at.
const CODE_OCTETS_MAX: u64 = 64 << 20;

/// The most octets of the names of a program's functions that are read; larger tables are not looked at.
const NAMES_OCTETS_MAX: u64 = 64 << 20;
/// The most octets of one table, note or string that are read.
const PART_OCTETS_MAX: u64 = 1 << 20;

/// What kind of ELF file it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Elf {
    /// 64-bit, little-endian: the only kind whose other fields are filled in.
    pub(crate) is_64_bit: bool,
    /// e_machine.
    pub(crate) machine: u16,
    /// PT_INTERP: the dynamic loader; without one nothing can be preloaded.
    pub(crate) interpreter: Option<String>,
    /// PT_DYNAMIC is there (a static-pie has it too).
    pub(crate) has_dynamic: bool,
    /// Made by the Go tools.
    pub(crate) is_go: bool,
    /// Its names of functions and libraries speak of io_uring.
    pub(crate) names_io_uring: bool,
    /// Where its code lies in the file: offset and octets of each executable segment.
    code: Vec<(u64, u64)>,
}

/// Reads what [`Elf`] holds; `None` when the file is no ELF file at all.
///
/// # Errors
/// The reader's, and `UnexpectedEof` or `InvalidData` for a damaged file.
pub(crate) fn read(file: &mut (impl Read + Seek)) -> io::Result<Option<Elf>> {
    file.seek(SeekFrom::Start(0))?;
    let mut header = Vec::new();
    file.take(64).read_to_end(&mut header)?;
    if header.get(..4) != Some(b"\x7fELF") {
        return Ok(None);
    }
    let machine = u16_at(&header, 18)?;
    if header.get(4) != Some(&CLASS_64) || header.get(5) != Some(&LITTLE_ENDIAN) {
        return Ok(Some(Elf { machine, ..Elf::default() }));
    }
    let mut elf = Elf { is_64_bit: true, machine, ..Elf::default() };
    let (table, entry_octets) = (u64_at(&header, 32)?, usize::from(u16_at(&header, 54)?));
    let count = usize::from(u16_at(&header, 56)?);
    let segments = part(file, table, (entry_octets * count) as u64)?;
    for segment in segments.chunks(entry_octets.max(1)) {
        let (offset, octets) = (u64_at(segment, 8)?, u64_at(segment, 32)?);
        match u32_at(segment, 0)? {
            PT_DYNAMIC => elf.has_dynamic = true,
            PT_INTERP => {
                let name = part(file, offset, octets)?;
                let name = name.split(|octet| *octet == 0).next().unwrap_or_default();
                elf.interpreter = Some(String::from_utf8_lossy(name).into_owned());
            }
            PT_LOAD if u32_at(segment, 4)? & PF_X != 0 => elf.code.push((offset, octets)),
            PT_NOTE => elf.is_go |= has_go_note(&part(file, offset, octets)?),
            _ => {}
        }
    }
    elf.is_go = elf.is_go || has_go_section(file, &header).unwrap_or(false);
    elf.names_io_uring = names_io_uring(file, &header).unwrap_or(false);
    Ok(Some(elf))
}

/// Whether its code loads the number of SIOCSHWTSTAMP or SIOCGHWTSTAMP. Code that cannot be read says nothing.
pub(crate) fn asks_hwtstamp(file: &mut (impl Read + Seek), elf: &Elf) -> bool {
    let mut left = CODE_OCTETS_MAX;
    elf.code.iter().any(|&(offset, octets)| {
        let code = part_within(file, offset, octets, left);
        left = left.saturating_sub(octets);
        code.is_ok_and(|code| loads_hwtstamp(&code, elf.machine))
    })
}

/// Whether an instruction in `code` has the number of such a request as its constant. Four octets of other code may look the same:
/// once in some hundred programs of a megabyte.
fn loads_hwtstamp(code: &[u8], machine: u16) -> bool {
    match machine {
        // The constant of `mov r32, imm32`, opcodes 0xb8 to 0xbf: in a register that ioctl's second argument is in, or is moved to.
        EM_X86_64 => code.windows(5).any(|octets| {
            octets[0] & 0xf8 == 0xb8
                && u32_at(octets, 1).is_ok_and(|constant| HWTSTAMP_REQUESTS.contains(&constant))
        }),
        // `movz wN, #imm16`, `movz xN, #imm16`.
        EM_AARCH64 => code.chunks_exact(4).any(|octets| {
            let is_it = |word: u32| {
                HWTSTAMP_REQUESTS.iter().any(|request| word & 0x7fff_ffe0 == 0x5280_0000 | request << 5)
            };
            u32_at(octets, 0).is_ok_and(is_it)
        }),
        _ => false,
    }
}

/// A note named `Go` carries the build id.
fn has_go_note(notes: &[u8]) -> bool {
    let mut rest = notes;
    while let (Ok(name_octets), Ok(data_octets)) = (u32_at(rest, 0), u32_at(rest, 4)) {
        let padded = |octets: u32| (octets as usize).next_multiple_of(4);
        if rest.get(12..).and_then(|name| name.get(..name_octets as usize)) == Some(b"Go\0") {
            return true;
        }
        match rest.get(12 + padded(name_octets) + padded(data_octets)..) {
            Some(next) => rest = next,
            None => break,
        }
    }
    false
}

/// The note can be linked away; the section with the build information stays.
fn has_go_section(file: &mut (impl Read + Seek), header: &[u8]) -> io::Result<bool> {
    let (table, entry_octets) = (u64_at(header, 40)?, usize::from(u16_at(header, 58)?));
    let (count, names_index) = (usize::from(u16_at(header, 60)?), usize::from(u16_at(header, 62)?));
    let sections = part(file, table, (entry_octets * count) as u64)?;
    let Some(names) = sections.chunks(entry_octets.max(1)).nth(names_index) else { return Ok(false) };
    let names = part(file, u64_at(names, 24)?, u64_at(names, 32)?)?;
    Ok(names.split(|octet| *octet == 0).any(|name| name == b".go.buildinfo"))
}

/// Whether a table of strings (of the libraries and functions that it wants, and of its own) names liburing or a
/// function for io_uring. libuv's are left out: it sends no datagrams that way.
fn names_io_uring(file: &mut (impl Read + Seek), header: &[u8]) -> io::Result<bool> {
    let (table, entry_octets) = (u64_at(header, 40)?, usize::from(u16_at(header, 58)?));
    let sections = part(file, table, (entry_octets * usize::from(u16_at(header, 60)?)) as u64)?;
    for section in sections.chunks(entry_octets.max(1)) {
        let (offset, octets) = (u64_at(section, 24)?, u64_at(section, 32)?);
        if u32_at(section, 4)? != SHT_STRTAB || octets > NAMES_OCTETS_MAX {
            continue;
        }
        let names = part_within(file, offset, octets, NAMES_OCTETS_MAX)?;
        let mut names = names.split(|octet| *octet == 0);
        if names.any(|name| {
            let has = |what: &[u8]| name.windows(what.len()).any(|part| part == what);
            name.starts_with(b"liburing.so") || (has(b"io_uring") && !name.starts_with(b"uv__"))
        }) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn part(file: &mut (impl Read + Seek), offset: u64, octets: u64) -> io::Result<Vec<u8>> {
    part_within(file, offset, octets, PART_OCTETS_MAX)
}

fn part_within(file: &mut (impl Read + Seek), offset: u64, octets: u64, most: u64) -> io::Result<Vec<u8>> {
    if octets > most {
        let what = format!("a header claims more than {} MiB", most >> 20);
        return Err(io::Error::new(io::ErrorKind::InvalidData, what));
    }
    file.seek(SeekFrom::Start(offset))?;
    let mut octets_read = Vec::new();
    file.take(octets).read_to_end(&mut octets_read)?;
    if octets_read.len() as u64 == octets {
        Ok(octets_read)
    } else {
        Err(io::ErrorKind::UnexpectedEof.into())
    }
}

fn bytes_at<const N: usize>(from: &[u8], at: usize) -> io::Result<[u8; N]> {
    from.get(at..)
        .and_then(|rest| rest.first_chunk::<N>())
        .copied()
        .ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
}
fn u16_at(from: &[u8], at: usize) -> io::Result<u16> {
    bytes_at(from, at).map(u16::from_le_bytes)
}
fn u32_at(from: &[u8], at: usize) -> io::Result<u32> {
    bytes_at(from, at).map(u32::from_le_bytes)
}
fn u64_at(from: &[u8], at: usize) -> io::Result<u64> {
    bytes_at(from, at).map(u64::from_le_bytes)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::io::Cursor;

    /// An x86-64 ELF file with these segments: type and contents.
    pub(crate) fn made(segments: &[(u32, &[u8])]) -> Vec<u8> {
        let mut file = vec![0_u8; 64];
        file[..6].copy_from_slice(b"\x7fELF\x02\x01");
        file[16..20].copy_from_slice(&[2, 0, 62, 0]);
        file[32] = 64;
        file[54] = 56;
        file[56] = u8::try_from(segments.len()).unwrap();
        let mut offset = 64 + 56 * segments.len() as u64;
        for (kind, contents) in segments {
            let mut entry = [0_u8; 56];
            entry[..4].copy_from_slice(&kind.to_le_bytes());
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
        assert_eq!(parsed(made(&[(1, b"")])).interpreter, None);
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
        assert_eq!(parsed(small), Elf { machine: 62, ..Elf::default() });
        assert_eq!(read(&mut Cursor::new(b"#!/bin/sh\n".to_vec())).unwrap(), None);
        assert_eq!(read(&mut Cursor::new(Vec::new())).unwrap(), None);
    }

    #[test]
    fn code_that_asks_for_hardware_timestamps_is_seen() {
        let with = |code: &[u8], machine: u16, flags: u8| {
            let mut file = made(&[(PT_LOAD, code)]);
            file[18..20].copy_from_slice(&machine.to_le_bytes());
            file[64 + 4] = flags;
            asks_hwtstamp(&mut Cursor::new(file.clone()), &parsed(file))
        };
        // mov esi, 0x89b0; mov edx, 0x89b1
        assert!(with(b"\x90\xbe\xb0\x89\0\0\xc3", EM_X86_64, 5));
        assert!(with(b"\xba\xb1\x89\0\0", EM_X86_64, 5));
        assert!(!with(b"\xbe\xb0\x89\0\0", EM_X86_64, 4), "data");
        assert!(!with(b"\xbe\xb0\x89\0\x01\xbe\xb2\x89\0\0", EM_X86_64, 5));
        // mov w1, #0x89b0
        assert!(with(&0x5291_3601_u32.to_le_bytes(), EM_AARCH64, 5));
        // mov x1, #0x89b1
        assert!(with(&0xd291_3621_u32.to_le_bytes(), EM_AARCH64, 5));
        assert!(!with(&0x5291_3601_u32.to_le_bytes(), EM_X86_64, 5));
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
