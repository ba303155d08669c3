// SPDX-License-Identifier: Apache-2.0
//! One line for standard error, put together without an allocation. In: pieces. Out: the line, cut where it is too long.

/// Room for any of our lines with the longest path.
const ROOM: usize = 512;

/// A line in a buffer of its own.
pub(crate) struct Line {
    octets: [u8; ROOM],
    used: usize,
}

impl Line {
    /// Joins the pieces and ends the line.
    pub(crate) fn join(pieces: &[&[u8]]) -> Self {
        let mut line = Self { octets: [0; ROOM], used: 0 };
        // The last place is for the end, however long the pieces are.
        let places = line.octets.iter_mut().take(ROOM - 1);
        for (place, octet) in places.zip(pieces.iter().copied().flatten()) {
            *place = *octet;
            line.used = line.used.wrapping_add(1);
        }
        if let Some(end) = line.octets.get_mut(line.used) {
            *end = b'\n';
        }
        line.used = line.used.wrapping_add(1);
        line
    }

    /// The octets of the line.
    pub(crate) fn octets(&self) -> &[u8] {
        self.octets.get(..self.used).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_its_pieces_and_ends_however_long_they_are() {
        assert_eq!(Line::join(&[b"no ktsnd at ", b"/run/ktsn", b""]).octets(), b"no ktsnd at /run/ktsn\n");
        assert_eq!(Line::join(&[]).octets(), b"\n");
        for length in [ROOM - 1, ROOM, ROOM + 1, 3 * ROOM] {
            let long = vec![b'x'; length];
            let line = Line::join(&[&long, b"y"]);
            assert_eq!(line.octets().len(), ROOM);
            assert!(line.octets().strip_suffix(b"\n").unwrap().iter().all(|octet| *octet == b'x'));
        }
    }
}
