// SPDX-License-Identifier: Apache-2.0
//! Pages of the kernel's trace ring buffer. In: octets as `trace_pipe_raw` gives them, the layout that
//! `events/header_page` tells. Out: events with their instants in nanoseconds. Anything that does not fit is an error:
//! no event is guessed at.
//!
//! ```text
//!  page:  u64 instant │ u64 commit (octets of data; flags above bit 20) │ events …
//!  event: u32 = type_len (5 bits) │ delta (27 bits), then by type_len:
//!         1..=28  type_len · 4 octets of data            29  padding (delta 0: to the end; else a u32 length)
//!         0       u32 length, that many − 4 of data      30  delta |= u32 << 27      31  instant = u32 << 27 | delta
//! ```

/// One event of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Event<'a> {
    /// On the trace's clock.
    pub(super) nanos: u64,
    /// Its fields.
    pub(super) data: &'a [u8],
}

const HEADER: usize = 16;
const DATA_MAX: u32 = 28;
const PADDING: u32 = 29;
const TIME_EXTEND: u32 = 30;
/// Octets of data: the bits below the flags.
const COMMIT_MASK: u64 = (1 << 20) - 1;

fn word(octets: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*octets.get(at..)?.first_chunk()?))
}

fn long(octets: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(*octets.get(at..)?.first_chunk()?))
}

/// Calls `each` with the events of a page, in order. `None`: the octets are no such page.
pub(super) fn events<'a>(page: &'a [u8], each: &mut dyn FnMut(Event<'a>)) -> Option<()> {
    let mut nanos = long(page, 0)?;
    let octets = usize::try_from(long(page, 8)? & COMMIT_MASK).ok()?;
    let page = page.get(..HEADER + octets)?;
    let mut at = HEADER;
    while at < page.len() {
        let head = word(page, at)?;
        let (kind, delta) = (head & 0x1f, u64::from(head >> 5));
        at += 4;
        match kind {
            PADDING if delta == 0 => return Some(()),
            PADDING => {
                at += usize::try_from(word(page, at)?).ok()?.max(4);
            }
            TIME_EXTEND => {
                nanos += (u64::from(word(page, at)?) << 27) + delta;
                at += 4;
            }
            31 => {
                // 59 bits of the instant; those above stay.
                nanos = nanos & !((1 << 59) - 1) | u64::from(word(page, at)?) << 27 | delta;
                at += 4;
            }
            _ => {
                nanos += delta;
                let length = if (1..=DATA_MAX).contains(&kind) {
                    kind as usize * 4
                } else {
                    let whole = usize::try_from(word(page, at)?).ok()?.checked_sub(4)?;
                    at += 4;
                    whole.next_multiple_of(4)
                };
                each(Event { nanos, data: page.get(at..at.checked_add(length)?)? });
                at += length;
            }
        }
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Page(Vec<u8>);

    impl Page {
        fn new(nanos: u64) -> Self {
            let mut octets = nanos.to_ne_bytes().to_vec();
            octets.extend([0; 8]);
            Self(octets)
        }
        fn words(mut self, words: &[u32]) -> Self {
            words.iter().for_each(|word| self.0.extend(word.to_ne_bytes()));
            self
        }
        fn end(mut self, flags: u64) -> Vec<u8> {
            let octets = (self.0.len() - HEADER) as u64 | flags;
            self.0[8..16].copy_from_slice(&octets.to_ne_bytes());
            self.0
        }
    }

    fn read(page: &[u8]) -> Option<Vec<(u64, Vec<u8>)>> {
        let mut found = Vec::new();
        events(page, &mut |event| found.push((event.nanos, event.data.to_vec())))?;
        Some(found)
    }

    #[test]
    fn every_kind_of_event_is_read() {
        let page = Page::new(1_000)
            .words(&[2 | 5 << 5, 0xaaaa_aaaa, 0xbbbb_bbbb])
            .words(&[30 | 7 << 5, 1])
            .words(&[1 | 3 << 5, 0xcccc_cccc])
            .words(&[PADDING | 9 << 5, 8, 0])
            .words(&[2 << 5, 8, 0xdddd_dddd])
            .words(&[31 | 4 << 5, 2])
            .words(&[1 | 1 << 5, 0xeeee_eeee])
            .words(&[PADDING, 1, 2, 3])
            .end(1 << 31);
        let extended = 1_005 + (1 << 27) + 7;
        let expected = [
            (1_005, vec![0xaa, 0xaa, 0xaa, 0xaa, 0xbb, 0xbb, 0xbb, 0xbb]),
            (extended + 3, vec![0xcc; 4]),
            (extended + 5, vec![0xdd; 4]),
            ((2 << 27) + 5, vec![0xee; 4]),
        ];
        assert_eq!(read(&page).unwrap(), expected);
    }

    #[test]
    fn broken_pages_are_refused() {
        assert_eq!(read(&[0; 15]), None);
        let mut short = Page::new(0).words(&[2, 1]).end(0);
        assert_eq!(read(&short), None, "an event that reaches beyond the data");
        short = Page::new(0).words(&[0, 2]).end(0);
        assert_eq!(read(&short), None, "a length below its own size");
        let mut long = Page::new(0).words(&[1, 1]).end(0);
        long[8] = 200;
        assert_eq!(read(&long), None, "more data than octets");
        assert_eq!(read(&Page::new(5).end(0)).unwrap(), []);
    }
}
