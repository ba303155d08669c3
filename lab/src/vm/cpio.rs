// SPDX-License-Identifier: Apache-2.0
//! Archives that the kernel unpacks as its first file tree (`newc`, the kernel's initramfs-buffer-format).
//!
//! In: a [`Tree`]. Out: octets that depend on names, modes and contents only: owner root, time 0, names in order. Archives may follow each
//! other in one file.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};

const MAGIC: &str = "070701";
/// The name of the entry that ends an archive.
const LAST: &str = "TRAILER!!!";
/// [`MAGIC`] and 13 fields.
const HEAD_OCTETS: usize = 110;
const PATH_OCTETS_MAX: usize = 4096;

/// What stands under a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Node {
    Directory,
    /// Permissions and content.
    File(u32, Vec<u8>),
    /// Where the symbolic link leads.
    Link(String),
}

/// Files by their path without the first slash.
#[derive(Debug, Default)]
pub(super) struct Tree(pub(super) BTreeMap<String, Node>);

impl Tree {
    /// Adds a file or link, and the directories above it.
    pub(super) fn add(&mut self, path: impl Into<String>, node: Node) {
        let path = path.into();
        for (at, _) in path.match_indices('/') {
            self.0.entry(path[..at].to_owned()).or_insert(Node::Directory);
        }
        self.0.insert(path, node);
    }

    /// Writes the tree as an archive.
    ///
    /// # Errors
    /// The writer's; `InvalidInput` for a file of 4 GiB or more.
    pub(super) fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let mut inode = 0;
        for (name, node) in &self.0 {
            inode += 1;
            match node {
                Node::Directory => entry(out, inode, name, 0o040_755, &[])?,
                Node::File(mode, content) => entry(out, inode, name, 0o100_000 | mode, content)?,
                Node::Link(target) => entry(out, inode, name, 0o120_777, target.as_bytes())?,
            }
        }
        entry(out, inode + 1, LAST, 0, &[])
    }
}

/// Takes name, permissions and content of a file.
pub(super) type Take<'a> = &'a mut dyn FnMut(&str, u32, &[u8]) -> io::Result<()>;

/// Calls `take` with name, permissions and content of each regular file of the first archive in `from`.
///
/// # Errors
/// The reader's and `take`'s; `InvalidData` for what [`Tree::write`] does not write.
pub(super) fn files(from: &mut impl Read, take: Take<'_>) -> io::Result<()> {
    let wrong = || io::Error::new(io::ErrorKind::InvalidData, "no archive of an image");
    loop {
        let mut head = [0; HEAD_OCTETS];
        from.read_exact(&mut head)?;
        let text =
            std::str::from_utf8(&head).ok().filter(|text| text.starts_with(MAGIC)).ok_or_else(wrong)?;
        let field = |number: usize| {
            let digits = text.get(MAGIC.len() + 8 * number..MAGIC.len() + 8 * number + 8);
            digits.and_then(|digits| u32::from_str_radix(digits, 16).ok()).ok_or_else(wrong)
        };
        let (mode, octets, named) = (field(1)?, field(6)? as usize, field(11)? as usize);
        let whole = |octets: usize| octets.next_multiple_of(4);
        if named > PATH_OCTETS_MAX {
            return Err(wrong());
        }
        let mut name = vec![0; whole(HEAD_OCTETS + named) - HEAD_OCTETS];
        from.read_exact(&mut name)?;
        let name = name.get(..named.saturating_sub(1)).and_then(|name| std::str::from_utf8(name).ok());
        let name = name.ok_or_else(wrong)?;
        if name == LAST {
            return Ok(());
        }
        let mut content = Vec::new();
        if from.by_ref().take(whole(octets) as u64).read_to_end(&mut content)? < octets {
            return Err(wrong());
        }
        if mode & 0o170_000 == 0o100_000 {
            take(name, mode & 0o7777, &content[..octets])?;
        }
    }
}

fn entry(out: &mut impl Write, inode: u32, name: &str, mode: u32, content: &[u8]) -> io::Result<()> {
    let short =
        |octets: usize| u32::try_from(octets).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput));
    // inode, mode, owner, group, links, time, octets, device (2), own device number (2), octets of the name with its NUL, checksum
    let fields = [inode, mode, 0, 0, 1, 0, short(content.len())?, 0, 0, 0, 0, short(name.len() + 1)?, 0];
    let mut head = String::from(MAGIC);
    for field in fields {
        head.push_str(&format!("{field:08X}"));
    }
    head.push_str(name);
    head.push('\0');
    // Head and content each begin at a multiple of four.
    let gap = |octets: usize| &[0_u8; 3][..octets.wrapping_neg() % 4];
    out.write_all(head.as_bytes())?;
    out.write_all(gap(head.len()))?;
    out.write_all(content)?;
    out.write_all(gap(content.len()))
}
