// SPDX-License-Identifier: Apache-2.0
//! The tests and targets of iptables (linux/netfilter/x_tables.h), which the older tables and nftables' `match` share.

/// What a test of iptables says of a datagram without a mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Test {
    Always,
    Never,
    Perhaps,
}

/// A test by its name and its parameters.
pub(super) fn test(name: &[u8], revision: u32, info: &[u8]) -> Test {
    /// RTN_LOCAL as a bit, and XT_ADDRTYPE_INVERT_DEST.
    const LOCAL: u16 = 1 << 2;
    const IS_INVERTED: u8 = 2;
    match name {
        b"comment" => Test::Always,
        b"mark" => match (word(info, 0), word(info, 4), info.get(8)) {
            (Some(mark), Some(_), Some(inverted)) if (mark == 0) != (*inverted != 0) => Test::Always,
            (Some(_), Some(_), Some(_)) => Test::Never,
            _ => Test::Perhaps,
        },
        // No datagram to an address of the namespace is taken.
        b"addrtype"
            if revision == 1
                && half(info, 2) == Some(LOCAL)
                && info.get(4).is_some_and(|of| of & IS_INVERTED == 0) =>
        {
            Test::Never
        }
        _ => Test::Perhaps,
    }
}

/// Whether a target changes datagrams of UDP, drops them, or may.
pub(super) fn changes(target: &[u8]) -> bool {
    const OTHERS: [&[u8]; 12] = [
        b"AUDIT",
        b"CHECKSUM",
        b"CONNSECMARK",
        b"CT",
        b"IDLETIMER",
        b"LED",
        b"LOG",
        b"NFLOG",
        b"NOTRACK",
        b"RATEEST",
        b"SECMARK",
        b"TRACE",
    ];
    !OTHERS.contains(&target)
}

pub(super) fn half(octets: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(octets.get(at..at + 2)?.try_into().ok()?))
}

pub(super) fn word(octets: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(octets.get(at..at + 4)?.try_into().ok()?))
}
