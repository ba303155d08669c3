// SPDX-License-Identifier: Apache-2.0
//! Ordinary files, opened so that nothing can make the opener wait.
//!
//! In: a path, which another user may have made. Out: the open file. Never a FIFO without a writer, on which a plain open would wait for
//! ever, nor a device, which an open may start.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use rustix::fs::OFlags;

/// Opens an ordinary file for reading; `flags` count in addition.
///
/// # Errors
/// The kernel's; `InvalidInput` for what is no ordinary file.
pub(crate) fn open_regular(path: &Path, flags: OFlags) -> io::Result<File> {
    let check = |about: &std::fs::Metadata| match about.is_file() {
        true => Ok(()),
        false if about.is_dir() => Err(io::ErrorKind::IsADirectory.into()),
        false => Err(io::Error::new(io::ErrorKind::InvalidInput, "no ordinary file")),
    };
    if !flags.contains(OFlags::NOFOLLOW) {
        check(&std::fs::metadata(path)?)?;
    }
    let flags = (flags | OFlags::NONBLOCK | OFlags::NOCTTY).bits().cast_signed();
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    // The name may lead elsewhere since.
    check(&file.metadata()?)?;
    Ok(file)
}

/// The octets of an ordinary file, at most `octets_max`.
///
/// # Errors
/// As [`open_regular`]; `FileTooLarge` for a longer file.
pub(crate) fn read_regular(path: &Path, octets_max: u64) -> io::Result<Vec<u8>> {
    let mut octets = Vec::new();
    open_regular(path, OFlags::empty())?.take(octets_max + 1).read_to_end(&mut octets)?;
    if octets.len() as u64 > octets_max {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    Ok(octets)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Without O_NONBLOCK the second of them would never return.
    #[test]
    fn what_is_no_ordinary_file_is_refused_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("fifo");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &fifo,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::from_raw_mode(0o600),
            0,
        )
        .unwrap();
        for flags in [OFlags::empty(), OFlags::NOFOLLOW] {
            let error = open_regular(&fifo, flags).unwrap_err();
            assert_eq!(
                (error.kind(), error.to_string().as_str()),
                (io::ErrorKind::InvalidInput, "no ordinary file")
            );
        }
        assert_eq!(
            open_regular(dir.path(), OFlags::empty()).unwrap_err().kind(),
            io::ErrorKind::IsADirectory
        );
        let file = dir.path().join("file");
        std::fs::write(&file, "1234").unwrap();
        assert_eq!(read_regular(&file, 4).unwrap(), b"1234");
        assert_eq!(read_regular(&file, 3).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
    }
}
