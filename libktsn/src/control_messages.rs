// SPDX-License-Identifier: Apache-2.0
//! The control data of one send: is there a transmit time, is there anything else?
//!
//! In: the program's octets. Out: a transmit time, or that the kernel must judge. It believes no length, and it
//! judges nothing that the kernel judges: garbage goes there and gets the kernel's own errno.

use crate::abi::{SO_TXTIME, SOL_SOCKET};

/// `sizeof(struct cmsghdr)`: length (8 octets), level, type.
const HEADER: usize = 16;
/// Octets of an SCM_TXTIME message without the padding.
const TXTIME: usize = HEADER + 8;

/// What the control data says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Control {
    /// No SCM_TXTIME in it.
    Untimed,
    /// Nothing but SCM_TXTIME; of several the last holds, as in the kernel.
    At(u64),
    /// SCM_TXTIME beside messages that only the kernel serves.
    AtWithOthers,
    /// Malformed: the kernel has an errno for it.
    Malformed,
}

/// A length with its padding.
const fn padded(octets: usize) -> usize {
    octets.saturating_add(7) & !7
}

/// One control message.
struct Item<'a> {
    level: i32,
    kind: i32,
    /// As the message's header says, without padding.
    octets: &'a [u8],
}

/// Walks control data as the kernel's `for_each_cmsghdr` does. `None` inside means a length that cannot be.
struct Walk<'a> {
    rest: &'a [u8],
    /// In musl's header the length has 32 bits and padding of unknown content.
    is_musl: bool,
}

fn word<const N: usize>(octets: &[u8], at: usize) -> Option<[u8; N]> {
    octets.get(at..at.checked_add(N)?)?.try_into().ok()
}

impl<'a> Iterator for Walk<'a> {
    type Item = Option<Item<'a>>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.len() < HEADER {
            return None;
        }
        let header = self.rest;
        let item = (|| {
            let mut len = u64::from_le_bytes(word(header, 0)?);
            if self.is_musl {
                len &= u64::from(u32::MAX);
            }
            let len = usize::try_from(len).ok().filter(|len| *len >= HEADER)?;
            let octets = header.get(..len)?;
            let level = i32::from_le_bytes(word(header, 8)?);
            Some(Item { level, kind: i32::from_le_bytes(word(header, 12)?), octets })
        })();
        let step = item.as_ref().map_or(header.len(), |item| padded(item.octets.len()));
        self.rest = header.get(step..).unwrap_or(&[]);
        Some(item)
    }
}

impl Item<'_> {
    const fn is_txtime(&self) -> bool {
        self.level == SOL_SOCKET && self.kind == SO_TXTIME
    }
}

/// Reads the control data of a send.
pub(crate) fn parse(control: &[u8], is_musl: bool) -> Control {
    let (mut tx_time, mut others) = (None, false);
    for item in (Walk { rest: control, is_musl }) {
        let Some(item) = item else { return Control::Malformed };
        if !item.is_txtime() {
            others = true;
            continue;
        }
        let value = word(item.octets, HEADER).filter(|_| item.octets.len() == TXTIME);
        let Some(value) = value else { return Control::Malformed };
        tx_time = Some(u64::from_le_bytes(value));
    }
    match tx_time {
        None => Control::Untimed,
        Some(_) if others => Control::AtWithOthers,
        Some(at) => Control::At(at),
    }
}

/// Control data without SCM_TXTIME, on the stack.
#[repr(C, align(8))]
pub(crate) struct Stripped {
    octets: [u8; Stripped::MAX],
    len: usize,
}

impl Stripped {
    /// The most that is copied. More fails with ENOBUFS, the kernel's own answer to too much control data:
    /// dropping what the program asked for would be worse.
    const MAX: usize = 1024;

    /// Copies everything but SCM_TXTIME; `None` when it does not fit or is malformed.
    pub(crate) fn of(control: &[u8], is_musl: bool) -> Option<Self> {
        let mut copy = Self { octets: [0; Self::MAX], len: 0 };
        for item in (Walk { rest: control, is_musl }) {
            let item = item?;
            if item.is_txtime() {
                continue;
            }
            let end = copy.len.checked_add(item.octets.len())?;
            copy.octets.get_mut(copy.len..end)?.copy_from_slice(item.octets);
            copy.len = padded(end);
        }
        copy.len = copy.len.min(Self::MAX);
        Some(copy)
    }

    /// The octets that are left.
    pub(crate) fn as_slice(&self) -> &[u8] {
        self.octets.get(..self.len).unwrap_or(&[])
    }
}

#[cfg(test)]
#[path = "control_messages_tests.rs"]
mod tests;
