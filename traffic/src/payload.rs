// SPDX-License-Identifier: Apache-2.0
//! The probe that every measured datagram begins with.
//!
//! In: a sequence number and the transmit time asked for. Out: 16 octets, both big-endian `u64`:
//!
//! ```text
//!   0..8   sequence number      8..16  tx_time, nanoseconds of CLOCK_TAI      16..  filling (0x4b)
//! ```
//!
//! The time is always TAI, whatever clock the talker schedules in, so that two hosts can compare it.
//! A payload with fewer than 16 octets is refused: nothing may be measured that cannot be matched.

use ktsn_time::Tai;

/// Octets that the probe needs; smaller payloads are refused.
pub const PROBE_OCTETS: usize = 16;
/// Largest payload of a UDP datagram over IPv4.
pub const PAYLOAD_OCTETS_MAX: usize = 65_507;
/// What the rest of a payload is filled with.
const FILLING: u8 = 0x4b;

/// Sequence number and transmit time of one frame; frames are matched by both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Probe {
    /// Counts from 0, one per frame the talker meant to send.
    pub sequence: u64,
    /// The transmit time asked for.
    pub tx_time: Tai,
}

/// A payload size that cannot be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PayloadError {
    /// No room for the probe.
    #[error("a payload of {0} octets is too small: sequence number and tx_time need 16 octets")]
    TooSmall(usize),
    /// More than a datagram can hold.
    #[error("a payload of {0} octets is too large: a UDP datagram holds at most 65507 octets")]
    TooLarge(usize),
}

impl Probe {
    /// A probe whose octets are all ones.
    pub(crate) const BLANK: Self = Self { sequence: u64::MAX, tx_time: Tai::MAX };

    /// Reads the probe from a payload; `None` when the payload is shorter than a probe.
    #[must_use]
    pub fn read(payload: &[u8]) -> Option<Self> {
        let (sequence, rest) = payload.split_first_chunk::<8>()?;
        let (tx_time, _) = rest.split_first_chunk::<8>()?;
        Some(Self {
            sequence: u64::from_be_bytes(*sequence),
            tx_time: Tai::from_nanos(u64::from_be_bytes(*tx_time)),
        })
    }

    /// Writes the probe over a payload's first 16 octets.
    ///
    /// # Errors
    /// [`PayloadError::TooSmall`] when it does not fit.
    pub fn write(self, payload: &mut [u8]) -> Result<(), PayloadError> {
        let size = payload.len();
        let head = payload.get_mut(..PROBE_OCTETS).ok_or(PayloadError::TooSmall(size))?;
        head[..8].copy_from_slice(&self.sequence.to_be_bytes());
        head[8..].copy_from_slice(&self.tx_time.as_nanos().to_be_bytes());
        Ok(())
    }
}

/// A filled payload of `octets` octets with an empty probe.
///
/// # Errors
/// [`PayloadError`] when no probe fits in, or no datagram holds so much.
pub fn blank(octets: usize) -> Result<Vec<u8>, PayloadError> {
    check_size(octets)?;
    let mut payload = vec![FILLING; octets];
    payload[..PROBE_OCTETS].fill(0);
    Ok(payload)
}

/// Whether a payload of `octets` octets can be measured.
///
/// # Errors
/// [`PayloadError`] says why not.
pub const fn check_size(octets: usize) -> Result<(), PayloadError> {
    if octets < PROBE_OCTETS {
        return Err(PayloadError::TooSmall(octets));
    }
    if octets > PAYLOAD_OCTETS_MAX {
        return Err(PayloadError::TooLarge(octets));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn layout_is_fixed() {
        let mut payload = blank(20).unwrap();
        Probe { sequence: 0x0102, tx_time: Tai::from_nanos(0x0a0b_0c0d) }.write(&mut payload).unwrap();
        assert_eq!(payload, [0, 0, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 10, 11, 12, 13, 0x4b, 0x4b, 0x4b, 0x4b]);
    }

    #[test]
    fn small_and_large_payloads_are_refused() {
        assert_eq!(blank(15), Err(PayloadError::TooSmall(15)));
        assert!(blank(15).unwrap_err().to_string().contains("16 octets"));
        assert_eq!(blank(65_508), Err(PayloadError::TooLarge(65_508)));
        assert_eq!(blank(16).unwrap().len(), 16);
        assert_eq!(Probe::read(&[0; 15]), None);
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(sequence: u64, tx_time: u64, octets in 16_usize..2000) {
            let probe = Probe { sequence, tx_time: Tai::from_nanos(tx_time) };
            let mut payload = blank(octets).unwrap();
            probe.write(&mut payload).unwrap();
            prop_assert_eq!(Probe::read(&payload), Some(probe));
        }
    }
}
