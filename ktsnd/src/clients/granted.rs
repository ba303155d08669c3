// SPDX-License-Identifier: Apache-2.0
//! The sockets to which CLOCK_TAI was granted. The grant belongs to the socket, like SO_TXTIME in a kernel, so it outlives the
//! process that asked (exec, a socket passed on).
//!  
//! In: the claim of a registration, and the socket's cookie, which the kernel never gives out twice. Out: the stream flags of
//! the answer. This type grants nothing itself. It keeps a bounded number of sockets: it forgets the one that was registered
//! longest ago first.

use std::collections::BTreeMap;

use ktsn_ring::control::TxtimeClaim;
use ktsn_ring::stream_flags;

/// Sockets of one attachment: as many as its processes could have at the default limits of 16 full clients.
const SOCKETS_MAX: usize = 16_384;

/// The grants of one attachment.
#[derive(Debug, Default)]
pub(super) struct Granted {
    /// Sockets by SO_COOKIE: when each was last registered (a count), and its SO_TXTIME flags.
    sockets: BTreeMap<u64, (u64, u8)>,
    /// SO_COOKIE by age: the key is when it was last registered.
    ages: BTreeMap<u64, u64>,
    age: u64,
}

impl Granted {
    /// The flags of the answer to a registration; `flags` are those of the attachment. Where the attachment does not grant
    /// CLOCK_TAI, nothing is remembered and nothing recalled.
    pub(super) fn answer(&mut self, flags: u16, claim: TxtimeClaim, cookie: u64) -> u16 {
        if flags & stream_flags::TAI_GRANTED == 0 {
            return flags;
        }
        let granted = match claim {
            TxtimeClaim::Kernel => None,
            TxtimeClaim::Asked => self.sockets.get(&cookie).map(|(_, txtime)| *txtime),
            TxtimeClaim::Tai(txtime) => Some(txtime),
        };
        match granted {
            None => flags,
            Some(txtime) => {
                self.remember(cookie, txtime);
                flags | stream_flags::remembered(txtime)
            }
        }
    }

    fn remember(&mut self, cookie: u64, txtime: u8) {
        self.age += 1;
        if let Some((age, _)) = self.sockets.insert(cookie, (self.age, txtime)) {
            self.ages.remove(&age);
        }
        self.ages.insert(self.age, cookie);
        if self.sockets.len() > SOCKETS_MAX
            && let Some((_, oldest)) = self.ages.pop_first()
        {
            self.sockets.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRANTS: u16 = stream_flags::TAI_GRANTED;

    fn recalled(granted: &mut Granted, cookie: u64) -> Option<u8> {
        stream_flags::recalled(granted.answer(GRANTS, TxtimeClaim::Asked, cookie))
    }

    #[test]
    fn a_grant_belongs_to_its_socket() {
        let mut granted = Granted::default();
        assert_eq!(recalled(&mut granted, 7), None);
        assert_eq!(granted.answer(GRANTS, TxtimeClaim::Kernel, 7), GRANTS);
        assert_eq!(recalled(&mut granted, 7), None);
        assert_eq!(granted.answer(GRANTS, TxtimeClaim::Tai(2), 7), GRANTS | stream_flags::remembered(2));
        assert_eq!((recalled(&mut granted, 7), recalled(&mut granted, 8)), (Some(2), None));
        let _ = granted.answer(GRANTS, TxtimeClaim::Tai(1), 7);
        assert_eq!(recalled(&mut granted, 7), Some(1));
    }

    #[test]
    fn without_the_right_nothing_is_recalled() {
        let mut granted = Granted::default();
        let _ = granted.answer(GRANTS, TxtimeClaim::Tai(0), 7);
        assert_eq!(granted.answer(0, TxtimeClaim::Asked, 7), 0);
        assert_eq!(granted.answer(0, TxtimeClaim::Tai(0), 8), 0);
        assert_eq!(recalled(&mut granted, 8), None);
    }

    #[test]
    fn the_oldest_goes_first() {
        let mut granted = Granted::default();
        for cookie in 0..SOCKETS_MAX as u64 {
            let _ = granted.answer(GRANTS, TxtimeClaim::Tai(0), cookie);
        }
        assert_eq!(recalled(&mut granted, 0), Some(0)); // and so it is the youngest
        let _ = granted.answer(GRANTS, TxtimeClaim::Tai(0), u64::MAX);
        assert_eq!((recalled(&mut granted, 0), recalled(&mut granted, 1)), (Some(0), None));
        assert_eq!((granted.sockets.len(), granted.ages.len()), (SOCKETS_MAX, SOCKETS_MAX));
    }
}
