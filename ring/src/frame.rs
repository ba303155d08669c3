// SPDX-License-Identifier: Apache-2.0
//! What a slot says, as a private value: nine words of 64 bits in the region, a [`SlotFrame`] on both sides.
//!
//! In: a frame, or words that a program wrote. Out: words, or a header that is not checked yet. It judges
//! nothing: the consumer does (`published::SlotFault`).

use core::sync::atomic::Ordering::Relaxed;

use crate::words::Words;

/// Clocks in which a transmit time may be asked, by Linux clock id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ClockId {
    /// `CLOCK_MONOTONIC`.
    Monotonic = 1,
    /// `CLOCK_TAI`.
    Tai = 11,
}

impl ClockId {
    /// The clock of a Linux clock id, if it is one of ours.
    #[must_use]
    pub const fn from_id(id: u8) -> Option<Self> {
        match id {
            1 => Some(Self::Monotonic),
            11 => Some(Self::Tai),
            _ => None,
        }
    }
    /// The Linux clock id.
    #[must_use]
    pub const fn id(self) -> u8 {
        self as u8
    }
}

/// Which fields of a frame hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SlotFlags(u32);

impl SlotFlags {
    /// Nothing special: to `address`, with the socket's own traffic class and hop limit.
    pub const NONE: Self = Self(0);
    /// To the connected peer; `address`, `scope` and `port` are unused.
    pub const CONNECTED: Self = Self(1);
    /// `traffic_class` is set (IP_TOS, IPV6_TCLASS).
    pub const TRAFFIC_CLASS: Self = Self(2);
    /// `hop_limit` is set (IP_TTL, IPV6_UNICAST_HOPS).
    pub const HOP_LIMIT: Self = Self(4);
    /// The payload is a whole Ethernet frame (AF_PACKET SOCK_RAW); `scope` is the interface's index.
    pub const LINK_FRAME: Self = Self(8);
    /// The payload follows an Ethernet header that is still to be made (AF_PACKET SOCK_DGRAM): `address[0..6]` is
    /// the destination's MAC address, `port` the EtherType, `scope` the interface's index.
    pub const LINK_PAYLOAD: Self = Self(16);
    /// The program wants a report of a drop because of the transmit time (SOF_TXTIME_REPORT_ERRORS).
    pub const REPORT: Self = Self(32);
    /// The program wants a report with the instant of the hand-over (SOF_TIMESTAMPING_TX_SOFTWARE).
    pub const STAMP_SOFTWARE: Self = Self(64);
    /// The program wants a report with the instant when ktsnd took the frame (SOF_TIMESTAMPING_TX_SCHED).
    pub const STAMP_SCHED: Self = Self(128);
    /// The program wants a report: only then the slot has `report_id` and `descriptor`.
    const REPORTS: u32 = Self::REPORT.0 | Self::STAMP_SOFTWARE.0 | Self::STAMP_SCHED.0;
    /// All flags of ABI 1.
    pub const ALL: Self = Self(7 | 8 | 16 | 32 | 64 | 128);

    /// Flags from their bits, unknown ones included.
    #[must_use]
    pub const fn from_bits(bits: u32) -> Self {
        Self(bits)
    }
    /// The bits.
    #[must_use]
    pub const fn bits(self) -> u32 {
        self.0
    }
    /// Whether it is a packet socket's.
    #[inline]
    #[must_use]
    pub const fn is_link(self) -> bool {
        self.0 & (Self::LINK_FRAME.0 | Self::LINK_PAYLOAD.0) != 0
    }
    /// Whether the program wants a report about the frame.
    #[inline]
    #[must_use]
    pub const fn wants_report(self) -> bool {
        self.0 & Self::REPORTS != 0
    }
    /// Whether these flags can stand together: a frame has one shape, and nothing of IP belongs to a packet socket.
    #[must_use]
    pub const fn is_consistent(self) -> bool {
        const LINK: u32 = SlotFlags::LINK_FRAME.0 | SlotFlags::LINK_PAYLOAD.0;
        const IP: u32 = SlotFlags::CONNECTED.0 | SlotFlags::TRAFFIC_CLASS.0 | SlotFlags::HOP_LIMIT.0;
        !self.is_link() || (self.0 & LINK != LINK && self.0 & IP == 0)
    }
    /// Whether all flags of `other` are set.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
    /// The flags of both.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// What the socket says of further header fields. An octet of zeros is a UDP socket under Linux as it was made, without a
/// flow label: what an older program means. Unknown bits mean nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct HeaderMarks(u8);

impl HeaderMarks {
    /// Nothing special.
    pub const NONE: Self = Self(0);
    /// IPv4: don't-fragment is clear (IP_PMTUDISC_DONT, _INTERFACE, _OMIT).
    pub const MAY_FRAGMENT: Self = Self(1);
    /// IPv4: without a peer the identification is [`SlotFrame::identification`], not counted (IP_PMTUDISC_DO, _PROBE).
    pub const NOT_COUNTED: Self = Self(2);
    /// IPv6: there is a flow label (IPV6_AUTOFLOWLABEL).
    pub const FLOW_LABEL: Self = Self(4);
    /// IPv4: `hop_limit` is the namespace's default (`ip_default_ttl`); the program set none.
    pub const DEFAULT_TTL: Self = Self(8);
    /// IPv6: `hop_limit` is the namespace's default; the program set none, so that of the device counts.
    pub const DEFAULT_HOPS: Self = Self(16);

    /// Marks from their bits, unknown ones included.
    #[must_use]
    pub const fn from_bits(bits: u8) -> Self {
        Self(bits)
    }
    /// The bits.
    #[must_use]
    pub const fn bits(self) -> u8 {
        self.0
    }
    /// Whether all marks of `other` are set.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
    /// The marks of both.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
    /// These marks without those of `other`.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }
}

/// A datagram's metadata. Times are nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlotFrame {
    /// Index of the stream in the region's table.
    pub stream_index: u32,
    /// Token of the stream's registration.
    pub token: u32,
    /// Which of the following fields hold.
    pub flags: SlotFlags,
    /// Linux clock id of `tx_time`: [`ClockId`].
    pub clock: u8,
    /// When to transmit, by `clock`.
    pub tx_time: u64,
    /// When the program handed it over, by `CLOCK_MONOTONIC`.
    pub pushed_at: u64,
    /// IPv6 or IPv4-mapped destination, network order (packet sockets: [`SlotFlags::LINK_PAYLOAD`]).
    pub address: [u8; 16],
    /// IPv6 scope id of the destination, or the index of a packet socket's interface.
    pub scope: u32,
    /// UDP destination port, or EtherType, host order.
    pub port: u16,
    /// SO_PRIORITY, at most 15.
    pub priority: u8,
    /// TOS or traffic class.
    pub traffic_class: u8,
    /// TTL or hop limit.
    pub hop_limit: u8,
    /// The program waited for this slot: lateness until `pushed_at` is the ring's.
    pub has_waited: bool,
    /// Further header fields.
    pub marks: HeaderMarks,
    /// The IPv4 identification where [`HeaderMarks::NOT_COUNTED`] asks for one: the place among the datagrams that
    /// UDP_SEGMENT makes of one send, as the kernel numbers them.
    pub identification: u16,
    /// SOF_TIMESTAMPING_OPT_ID's key; the daemon does not look at it.
    pub report_id: u32,
    /// The descriptor whose error queue gets the report; only where a flag asks for one.
    pub descriptor: i32,
}

impl SlotFrame {
    /// The frame without a wish for a report.
    #[must_use]
    pub const fn without_reports(mut self) -> Self {
        self.flags = SlotFlags::from_bits(self.flags.bits() & !SlotFlags::REPORTS);
        self
    }
}

/// A frame with the length of its payload, as a slot holds it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlotHeader {
    /// The metadata.
    pub frame: SlotFrame,
    /// Octets of payload, as the program claims.
    pub payload_octets: u16,
}

/// The u32 after `next`.
pub(crate) const STREAM_INDEX: usize = 4;
/// The first u64 of a slot after `next` and `stream_index`.
pub(crate) const FIELDS: usize = 8;
/// The number of these u64.
pub(crate) const FIELDS_COUNT: usize = 7;
/// Where `report_id` and `descriptor` are, in a cache line that is not touched unless a report is wanted.
pub(crate) const REPORT: usize = FIELDS + 8 * FIELDS_COUNT;

impl SlotHeader {
    /// `stream_index`, the words from [`FIELDS`] on, and that at [`REPORT`].
    #[inline]
    pub(crate) const fn to_words(self) -> (u32, [u64; FIELDS_COUNT], u64) {
        let Self { frame, payload_octets } = self;
        let [id_low, id_high] = frame.identification.to_le_bytes();
        let [a0, a1, a2, a3, a4, a5, a6, a7, b0, b1, b2, b3, b4, b5, b6, b7] = frame.address;
        let fields = [
            frame.token as u64 | (frame.flags.bits() as u64) << 32,
            frame.tx_time,
            frame.pushed_at,
            u64::from_le_bytes([a0, a1, a2, a3, a4, a5, a6, a7]),
            u64::from_le_bytes([b0, b1, b2, b3, b4, b5, b6, b7]),
            frame.scope as u64 | (frame.port as u64) << 32 | (payload_octets as u64) << 48,
            u64::from_le_bytes([
                frame.clock,
                frame.priority,
                frame.traffic_class,
                frame.hop_limit,
                frame.has_waited as u8,
                frame.marks.0,
                id_low,
                id_high,
            ]),
        ];
        (frame.stream_index, fields, frame.report_id as u64 | (frame.descriptor.cast_unsigned() as u64) << 32)
    }

    /// Reads the slot at `at`, each word once.
    #[inline]
    pub(crate) fn load(words: &impl Words, at: usize) -> Self {
        let mut fields = [0; FIELDS_COUNT];
        for (index, word) in fields.iter_mut().enumerate() {
            *word = words.load64(at.wrapping_add(FIELDS).wrapping_add(index.wrapping_mul(8)), Relaxed);
        }
        let stream_index = words.load32(at.wrapping_add(STREAM_INDEX), Relaxed);
        let wants_report = SlotFlags::from_bits((fields[0] >> 32) as u32).wants_report();
        let report = if wants_report { words.load64(at.wrapping_add(REPORT), Relaxed) } else { 0 };
        Self::from_words(stream_index, fields, report)
    }

    /// The reverse of [`Self::to_words`]; any words make a header.
    #[inline]
    fn from_words(stream_index: u32, fields: [u64; FIELDS_COUNT], report: u64) -> Self {
        let [token, tx_time, pushed_at, address_low, address_high, scope, last] = fields;
        let [clock, priority, traffic_class, hop_limit, has_waited, marks, id_low, id_high] =
            last.to_le_bytes();
        let address = u128::from(address_low) | u128::from(address_high) << 64;
        Self {
            frame: SlotFrame {
                stream_index,
                token: token as u32,
                flags: SlotFlags::from_bits((token >> 32) as u32),
                clock,
                tx_time,
                pushed_at,
                address: address.to_le_bytes(),
                scope: scope as u32,
                port: (scope >> 32) as u16,
                priority,
                traffic_class,
                hop_limit,
                has_waited: has_waited != 0,
                marks: HeaderMarks(marks),
                identification: u16::from_le_bytes([id_low, id_high]),
                report_id: report as u32,
                descriptor: ((report >> 32) as u32).cast_signed(),
            },
            payload_octets: (scope >> 48) as u16,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{ClockId, HeaderMarks, SlotFlags, SlotFrame, SlotHeader};

    #[test]
    fn words_follow_the_page() {
        let header = SlotHeader {
            frame: SlotFrame {
                stream_index: 7,
                token: 0x0102_0304,
                flags: SlotFlags::TRAFFIC_CLASS.with(SlotFlags::HOP_LIMIT),
                clock: ClockId::Tai.id(),
                tx_time: 0x1122_3344_5566_7788,
                pushed_at: 99,
                address: [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9],
                scope: 3,
                port: 0x1234,
                priority: 6,
                traffic_class: 0xb8,
                hop_limit: 64,
                has_waited: true,
                marks: HeaderMarks::MAY_FRAGMENT.with(HeaderMarks::FLOW_LABEL),
                identification: 0x0203,
                report_id: 5,
                descriptor: -2,
            },
            payload_octets: 0x5678,
        };
        let (stream, words, report) = header.to_words();
        assert_eq!(stream, 7);
        assert_eq!(words[0], 6 << 32 | 0x0102_0304);
        assert_eq!(words[1], 0x1122_3344_5566_7788);
        assert_eq!(words[2], 99);
        assert_eq!(words[3].to_ne_bytes(), [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0]);
        assert_eq!(words[4].to_ne_bytes(), [0, 0, 0, 0, 0, 0, 0, 9]);
        assert_eq!(words[5], 0x5678_1234_0000_0003);
        assert_eq!(words[6], 0x0203_0501_40b8_060b);
        assert_eq!(report, 0xffff_fffe_0000_0005);
        assert_eq!(SlotHeader::from_words(stream, words, report), header);
    }

    #[test]
    fn a_packet_sockets_frame_has_one_shape_and_nothing_of_ip() {
        let (frame, payload) = (SlotFlags::LINK_FRAME, SlotFlags::LINK_PAYLOAD);
        let ip = SlotFlags::CONNECTED.with(SlotFlags::TRAFFIC_CLASS).with(SlotFlags::HOP_LIMIT);
        for fine in [SlotFlags::NONE, ip, frame, payload] {
            assert!(fine.is_consistent(), "{fine:?}");
        }
        assert!(!frame.with(payload).is_consistent());
        for link in [frame, payload] {
            for other in [SlotFlags::CONNECTED, SlotFlags::TRAFFIC_CLASS, SlotFlags::HOP_LIMIT, ip] {
                assert!(!link.with(other).is_consistent(), "{link:?} {other:?}");
            }
        }
    }
}
