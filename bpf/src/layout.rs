// SPDX-License-Identifier: Apache-2.0
//! What the capture program and this crate both know: the numbers of `programs/capture.h` in Rust.

use std::net::Ipv6Addr;

/// Stripes of counters, one for a processor.
pub(crate) const STRIPES: usize = 64;
/// Counters of a stripe.
pub(crate) const COUNTERS: usize = 16;
/// Octets of all stripes.
pub(crate) const COUNTERS_OCTETS: usize = STRIPES * COUNTERS * 8;
/// Octets in front of each captured frame.
pub(crate) const RECORD_OCTETS: usize = 24;
/// Room of the longest record: the longest frame that is captured (a datagram of 65,535 octets behind an IPv6 header).
pub const FRAME_OCTETS_MAX: usize = 65_600;

/// Clock of a transmit time, numbered as `tstamp_type` of the kernel's `__sk_buff`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Clock {
    /// CLOCK_MONOTONIC.
    Monotonic = 1,
    /// CLOCK_TAI.
    Tai = 2,
}

impl Clock {
    pub(crate) fn from_number(number: u8) -> Option<Self> {
        match number {
            1 => Some(Self::Monotonic),
            2 => Some(Self::Tai),
            _ => None,
        }
    }
    pub(crate) fn bit(self) -> u32 {
        1 << self as u32
    }
}

/// Declares what a program counts: an enum in the order of the program's numbers, with a word for each.
macro_rules! counted {
    ($(#[$about:meta])* $name:ident { $($(#[$of:meta])* $variant:ident = $word:literal,)+ }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name { $($(#[$of])* $variant,)+ }

        impl $name {
            /// All counters, in the order of their numbers.
            pub const ALL: [Self; [$($word),+].len()] = [$(Self::$variant),+];

            /// The word that counters, the control API and the documents use.
            #[must_use]
            pub const fn word(self) -> &'static str {
                match self { $(Self::$variant => $word,)+ }
            }
        }
    };
}
pub(crate) use counted;

counted! {
    /// What the capture program counts.
    Counted {
        /// Frames put into the ring.
        Taken = "taken",
        /// Frames dropped because the ring was full: they must not leave before their time.
        RingFull = "ring_full",
        /// Passed: no transmit time.
        Untimed = "untimed",
        /// Passed: a time of a clock that is not taken.
        OtherClock = "other_clock",
        /// Passed: timed, but not UDP, or damaged.
        NotUdp = "not_udp",
        /// Passed: IP options, extension headers or a VLAN tag.
        Options = "options",
        /// Passed: a fragment.
        Fragment = "fragment",
        /// Passed: the destination is not on the list.
        NotAllowed = "not_allowed",
        /// Passed: the source is no address of the interface.
        Foreign = "foreign",
        /// Passed: longer than the egress allows.
        OverMtu = "over_mtu",
        /// Passed: the kernel refused the copy.
        Unreadable = "unreadable",
    }
}

/// Key of the destinations' trie: bits, then the address (IPv4 mapped).
pub(crate) fn destination_key(address: Ipv6Addr, bits: u8) -> [u8; 20] {
    let mut key = [0; 20];
    key[..4].copy_from_slice(&u32::from(bits).to_ne_bytes());
    key[4..].copy_from_slice(&address.octets());
    key
}

/// Value of the destinations' trie.
pub(crate) fn verdict(take: Option<u16>) -> [u8; 4] {
    let mut value = [0; 4];
    value[..2].copy_from_slice(&u16::from(take.is_some()).to_ne_bytes());
    value[2..].copy_from_slice(&take.unwrap_or(0).to_ne_bytes());
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_and_we_know_the_same_numbers() {
        let header = include_str!("../programs/capture.h");
        let has = |text: String| assert!(header.contains(&text), "{text}");
        has(format!("#define STRIPES {STRIPES}\n"));
        has(format!("#define COUNTERS {COUNTERS}\n"));
        has(format!("#define CLOCK_MONOTONIC_TYPE {}\n", Clock::Monotonic as u8));
        has(format!("#define CLOCK_TAI_TYPE {}\n", Clock::Tai as u8));
        for (number, counted) in Counted::ALL.into_iter().enumerate() {
            assert_eq!(counted as usize, number);
            has(format!("COUNT_{} = {number},", counted.word().to_uppercase()));
        }
        assert_eq!(header.matches("\tCOUNT_").count(), Counted::ALL.len());
        let program = include_str!("../programs/capture.bpf.c");
        assert!(program.contains(&format!("frame, {FRAME_OCTETS_MAX});")));
    }
}
