// SPDX-License-Identifier: Apache-2.0
//! Where each word of a region lies.
//!
//! In: four counts. Out: offsets in octets, all inside the region. It reads no memory; [`Layout::from_words`] takes
//! an identity line that the caller has read. Every offset of ABI 1 follows from the counts, so an identity line
//! that names others is refused.

use thiserror::Error;

/// `KTSNRNG\0`, first word of every region and control message.
pub const MAGIC: u64 = u64::from_le_bytes(*b"KTSNRNG\0");
/// The ABI that this crate speaks.
pub const ABI: u32 = 1;
/// A cache line, in octets: what different writers keep between them.
pub const LINE_OCTETS: usize = 64;
/// A page, in octets: slots begin on one, and the region ends on one.
pub const PAGE_OCTETS: usize = 4096;

/// Octets of the receive area behind the region: one page.
pub const AREA_OCTETS: usize = PAGE_OCTETS;

/// Identity line: magic, ABI, size, counts and offsets. Written once.
pub const IDENTITY: usize = 0;
/// Octets of the identity line in use.
pub const IDENTITY_OCTETS: usize = 48;
/// State of the region, u32 (daemon).
pub const STATE: usize = 64;
/// How many other attachments the program's namespace has, u32 (daemon).
pub const OTHERS_COUNT: usize = 68;
/// "I look no later than this", nanoseconds of `CLOCK_MONOTONIC`, u64 (daemon).
pub const LOOKS_AT_MONOTONIC: usize = 72;
/// The instant of [`LOOKS_AT_MONOTONIC`] in `CLOCK_TAI`, u64 (daemon).
pub const LOOKS_AT_TAI: usize = 80;
/// Sequence of the destination table, odd while it is written, u64 (daemon).
pub const DESTINATIONS_VERSION: usize = 88;
/// Turn of the promise, u32: even as the daemon wrote it with [`LOOKS_AT_MONOTONIC`], 0 = it writes none; odd: the doorbell
/// was rung since (both).
pub const TURN: usize = 96;
/// Octets of the receive area, which begins at [`Layout::region_octets`], u32 (daemon, once); 0 = there is none.
pub const RECEIVE_OCTETS: usize = 100;
/// How far ahead a datagram's transmit time may be that the daemon takes by a [`crate::control::Later`], milliseconds, rounded up, u32
/// (daemon, once); 0 = an older daemon, which takes none.
pub const LATER_HORIZON: usize = 104;
/// Head of the list of published slots, u32: slot + 1, or 0 (both).
pub const HEAD: usize = 128;
/// What markers on an error queue carry to name this region, u64 (daemon, once).
pub const NONCE: usize = 192;
/// The stream whose socket the daemon holds for a moment, plus 1; 0 = none; u32 (daemon).
pub const NOTIFYING: usize = 200;
/// The IPv4 address of the attachment's interface where it has one only, in network order (daemon); 0 = none or several.
pub const SOLE_V4: usize = 204;
/// What packet sockets need to know, two u64 under the sequence of the destination table (daemon).
pub const LINK: usize = 208;
/// Interfaces of the namespace's other attachments, u32 each (daemon).
pub const OTHERS: usize = 224;
/// Most other attachments that a region names.
pub const OTHERS_MAX: usize = 8;
/// Counters, u64 each (client).
pub const COUNTERS: usize = 256;
/// Number of counters.
pub const COUNTERS_COUNT: usize = 32;
/// Free bitmap, u64 words, bit set = free (both).
pub const FREE: usize = 512;
/// Words of the free bitmap.
pub const FREE_WORDS: usize = 64;
/// Bitmap of slots whose frame is done and that hold an unread report, u64 words (both).
pub const DONE: usize = 1024;
/// Bitmap of streams whose last descriptor is being closed, u64 words (client).
pub const CLOSING: usize = 1536;
/// Stream table (daemon).
pub const STREAMS: usize = 1664;
/// Octets of a stream entry: status u64, limit u64.
pub const STREAM_OCTETS: usize = 16;
/// Octets of a destination entry.
pub const DESTINATION_OCTETS: usize = 32;

/// Most slots of a region.
pub const SLOTS_MAX: u32 = 4096;
/// Smallest slot, in octets.
pub const SLOT_OCTETS_MIN: u32 = 256;
/// Greatest slot, in octets.
pub const SLOT_OCTETS_MAX: u32 = 65_536;
/// Most streams of a region.
pub const STREAMS_MAX: u32 = 1024;
/// Most destination entries of a region.
pub const DESTINATIONS_MAX: u32 = 64;
/// Octets before a slot's payload.
pub const SLOT_HEADER_OCTETS: usize = 192;

const _: () = assert!(STATE >= IDENTITY + IDENTITY_OCTETS);
const _: () = assert!(DESTINATIONS_VERSION + 8 <= TURN && TURN + 4 <= RECEIVE_OCTETS);
const _: () = assert!(RECEIVE_OCTETS + 4 <= LATER_HORIZON && LATER_HORIZON + 4 <= HEAD);
const _: () = assert!(HEAD.is_multiple_of(LINE_OCTETS));
const _: () = assert!(COUNTERS + 8 * COUNTERS_COUNT == FREE);
const _: () = assert!(NONCE.is_multiple_of(LINE_OCTETS) && NOTIFYING + 4 <= SOLE_V4 && SOLE_V4 + 4 <= LINK);
const _: () = assert!(LINK.is_multiple_of(8) && LINK + 16 <= OTHERS && OTHERS + 4 * OTHERS_MAX <= COUNTERS);
const _: () = assert!(FREE + 8 * FREE_WORDS == DONE && DONE + 8 * FREE_WORDS == CLOSING);
const _: () = assert!(CLOSING + STREAMS_MAX as usize / 8 == STREAMS && STREAMS.is_multiple_of(LINE_OCTETS));
const _: () = assert!(FREE_WORDS * 64 == SLOTS_MAX as usize);
const _: () = assert!(SLOT_OCTETS_MAX as usize - SLOT_HEADER_OCTETS <= u16::MAX as usize);
const _: () = assert!(SLOTS_MAX as u64 * SLOT_OCTETS_MAX as u64 + (1 << 20) <= i32::MAX as u64);
const _: () = assert!(SLOT_OCTETS_MIN as usize > SLOT_HEADER_OCTETS);

/// Counts that no region can have, or an identity line that no daemon of this ABI writes.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum LayoutError {
    /// Slots must be 1 to 4,096.
    #[error("slots_count {0} is not in 1..={SLOTS_MAX}")]
    Slots(u32),
    /// A slot must be a power of two from 256 to 65,536 octets.
    #[error("slot_octets {0} is not a power of two in {SLOT_OCTETS_MIN}..={SLOT_OCTETS_MAX}")]
    SlotOctets(u32),
    /// Streams must be 1 to 1,024.
    #[error("streams_count {0} is not in 1..={STREAMS_MAX}")]
    Streams(u32),
    /// Destinations must be 1 to 64.
    #[error("destinations_count {0} is not in 1..={DESTINATIONS_MAX}")]
    Destinations(u32),
    /// The first word is not `KTSNRNG\0`.
    #[error("no ring: the magic number is {0:#x}")]
    Magic(u64),
    /// A region of another ABI.
    #[error("ring ABI {0}, this side speaks {ABI}")]
    Abi(u32),
    /// Offsets or the size do not follow from the counts.
    #[error("the identity line contradicts itself")]
    Inconsistent,
    /// The mapping is smaller than the region, or does not begin on a page.
    #[error("{0} octets are mapped, the region needs {1} from a page on")]
    Mapping(usize, usize),
}

/// The places of one region: every offset it returns lies inside `region_octets`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    slots_count: u32,
    slot_shift: u32,
    streams_count: u32,
    destinations_count: u32,
    destinations_offset: u32,
    slots_offset: u32,
    region_octets: u32,
}

/// `octets` rounded up to a multiple of `unit` (a power of two); the arguments are small.
const fn round_up(octets: usize, unit: usize) -> usize {
    octets.wrapping_add(unit.wrapping_sub(1)) & !unit.wrapping_sub(1)
}

impl Layout {
    /// The layout of a region with these counts.
    ///
    /// # Errors
    /// A count outside its range.
    pub const fn new(
        slots_count: u32,
        slot_octets: u32,
        streams_count: u32,
        destinations_count: u32,
    ) -> Result<Self, LayoutError> {
        if slots_count == 0 || slots_count > SLOTS_MAX {
            return Err(LayoutError::Slots(slots_count));
        }
        if !slot_octets.is_power_of_two() || slot_octets < SLOT_OCTETS_MIN || slot_octets > SLOT_OCTETS_MAX {
            return Err(LayoutError::SlotOctets(slot_octets));
        }
        if streams_count == 0 || streams_count > STREAMS_MAX {
            return Err(LayoutError::Streams(streams_count));
        }
        if destinations_count == 0 || destinations_count > DESTINATIONS_MAX {
            return Err(LayoutError::Destinations(destinations_count));
        }
        // Wrapping only so that no panic path is compiled: the ranges above keep every sum under 2^29.
        let streams_octets = STREAM_OCTETS.wrapping_mul(streams_count as usize);
        let destinations_offset = round_up(STREAMS.wrapping_add(streams_octets), LINE_OCTETS);
        let destinations_octets = DESTINATION_OCTETS.wrapping_mul(destinations_count as usize);
        let slots_offset = round_up(destinations_offset.wrapping_add(destinations_octets), PAGE_OCTETS);
        let slots_octets = (slots_count as usize).wrapping_mul(slot_octets as usize);
        let region_octets = round_up(slots_offset.wrapping_add(slots_octets), PAGE_OCTETS);
        Ok(Self {
            slots_count,
            slot_shift: slot_octets.trailing_zeros(),
            streams_count,
            destinations_count,
            destinations_offset: destinations_offset as u32,
            slots_offset: slots_offset as u32,
            region_octets: region_octets as u32,
        })
    }

    /// The layout that an identity line (its six u64 words) describes, for `mapped_octets` of memory.
    ///
    /// # Errors
    /// Another magic number or ABI, counts out of range, offsets that do not follow from them, too little memory.
    pub const fn from_words(words: [u64; 6], mapped_octets: usize) -> Result<Self, LayoutError> {
        let [magic, size, slots, streams, destinations, last] = words;
        if magic != MAGIC {
            return Err(LayoutError::Magic(magic));
        }
        if size as u32 != ABI {
            return Err(LayoutError::Abi(size as u32));
        }
        // Pairs of u32, low half first: see `to_words`.
        let (slots_count, slot_octets) = (slots as u32, (slots >> 32) as u32);
        let (streams_count, destinations_count) = ((streams >> 32) as u32, (destinations >> 32) as u32);
        let layout = match Self::new(slots_count, slot_octets, streams_count, destinations_count) {
            Ok(layout) => layout,
            Err(error) => return Err(error),
        };
        let expected = layout.to_words();
        if size != expected[1] || streams != expected[3] || destinations != expected[4] || last != expected[5]
        {
            return Err(LayoutError::Inconsistent);
        }
        if mapped_octets < layout.region_octets() {
            return Err(LayoutError::Mapping(mapped_octets, layout.region_octets()));
        }
        Ok(layout)
    }

    /// The identity line: magic, (abi, region_octets), (slots_count, slot_octets), (slots_offset, streams_count),
    /// (streams_offset, destinations_count), (destinations_offset, counters_offset).
    #[must_use]
    pub const fn to_words(&self) -> [u64; 6] {
        const fn pair(low: u32, high: u32) -> u64 {
            low as u64 | (high as u64) << 32
        }
        [
            MAGIC,
            pair(ABI, self.region_octets),
            pair(self.slots_count, self.slot_octets() as u32),
            pair(self.slots_offset, self.streams_count),
            pair(STREAMS as u32, self.destinations_count),
            pair(self.destinations_offset, COUNTERS as u32),
        ]
    }

    /// Octets of the region, a multiple of a page.
    #[must_use]
    pub const fn region_octets(&self) -> usize {
        self.region_octets as usize
    }
    /// Octets of the memory that a daemon shares: the region, and the receive area behind it.
    #[must_use]
    pub const fn shared_octets(&self) -> usize {
        self.region_octets().wrapping_add(AREA_OCTETS)
    }
    /// Number of slots.
    #[must_use]
    pub const fn slots_count(&self) -> usize {
        self.slots_count as usize
    }
    /// Octets of a slot, header included.
    #[must_use]
    pub const fn slot_octets(&self) -> usize {
        1usize.wrapping_shl(self.slot_shift)
    }
    /// Number of streams.
    #[must_use]
    pub const fn streams_count(&self) -> usize {
        self.streams_count as usize
    }
    /// Number of destination entries.
    #[must_use]
    pub const fn destinations_count(&self) -> usize {
        self.destinations_count as usize
    }
    /// Greatest payload of a slot, in octets.
    #[must_use]
    pub const fn payload_max(&self) -> usize {
        self.slot_octets().wrapping_sub(SLOT_HEADER_OCTETS)
    }
    /// Words of the free bitmap in use.
    #[must_use]
    pub const fn free_words(&self) -> usize {
        self.slots_count().div_ceil(64)
    }
    /// The bits of word `word` of the free bitmap that stand for slots.
    #[must_use]
    pub const fn free_mask(&self, word: usize) -> u64 {
        let before = word.wrapping_mul(64);
        match self.slots_count().saturating_sub(before) {
            0 => 0,
            slots @ 1..64 => 1u64.wrapping_shl(slots as u32).wrapping_sub(1),
            _ => u64::MAX,
        }
    }
    /// Where slot `slot` begins, or `None` when there is no such slot.
    #[must_use]
    pub const fn slot(&self, slot: u16) -> Option<usize> {
        if (slot as u32) < self.slots_count {
            Some((self.slots_offset as usize).wrapping_add((slot as usize).wrapping_shl(self.slot_shift)))
        } else {
            None
        }
    }
    /// Where the entry of stream `index` begins, or `None` when there is no such stream.
    #[must_use]
    pub const fn stream(&self, index: u32) -> Option<usize> {
        if index < self.streams_count {
            Some(STREAMS.wrapping_add(STREAM_OCTETS.wrapping_mul(index as usize)))
        } else {
            None
        }
    }
    /// Where destination entry `index` begins, or `None` when there is no such entry.
    #[must_use]
    pub const fn destination(&self, index: usize) -> Option<usize> {
        if index < self.destinations_count as usize {
            Some((self.destinations_offset as usize).wrapping_add(DESTINATION_OCTETS.wrapping_mul(index)))
        } else {
            None
        }
    }
}
