// SPDX-License-Identifier: Apache-2.0
//! The steps of an input: an octet for the kind, then its arguments.

use std::time::Duration;

use ktsn_ring::control::{Expect, Hello, LaterHeader, Register, ShowPort, TxtimeClaim, Unregister};
use ktsn_ring::layout::ABI;
use ktsnd::fuzzing::registrar::{Namespace, Passed};

use super::{Model, PEERS_MAX};

/// Octets of a message that is none of ours, at most: more than is read of one.
const ODD_OCTETS_MAX: u8 = 80;

type Octets<'a> = std::iter::Copied<std::slice::Iter<'a, u8>>;

/// What is passed with a message: the number of descriptors, then the kind of each.
fn passed(octets: &mut Octets<'_>) -> Option<Vec<Passed>> {
    let count = match octets.next()? % 8 {
        0..=4 => 1,
        5 => 0,
        6 => 2,
        _ => 16,
    };
    let mut all = Vec::with_capacity(count);
    for _ in 0..count {
        // The last kind counts for all that follow.
        let kind = octets.next().map(kind).or(all.last().copied())?;
        all.push(kind);
    }
    Some(all)
}

fn kind(octet: u8) -> Passed {
    match octet % 18 {
        0..=2 => Passed::Udp,
        3 => Passed::Bound,
        4 => Passed::UdpForeign,
        5 => Passed::Tcp,
        6 => Passed::TcpForeign,
        7 => Passed::Closed,
        8 => Passed::Packet,
        // As large as a region of four slots, too small, too large.
        9 => Passed::Memfd(1 << 16, false),
        10 => Passed::Memfd(1 << 16, true),
        11 => Passed::Memfd(0, octet > 127),
        12 => Passed::Memfd(1 << 30, octet > 127),
        13 => Passed::Event,
        14 => Passed::Null,
        15 => Passed::Pipe,
        16 => Passed::Itself,
        _ => {
            if octet > 127 {
                Passed::Region
            } else {
                Passed::Doorbell
            }
        }
    }
}

fn claim(octet: u8) -> TxtimeClaim {
    match octet % 4 {
        0 => TxtimeClaim::Kernel,
        1 => TxtimeClaim::Asked,
        _ => TxtimeClaim::Tai(octet >> 6),
    }
}

/// A datagram to be sent later. Some have an odd clock or flag, or a length that is not theirs; long ones soon fill a client's room.
fn later(octets: &mut Octets<'_>) -> Option<Vec<u8>> {
    let (odd, length) = (octets.next()?, octets.next()?);
    let count = if length > 250 { 65_507 } else { u32::from(length) };
    let header = LaterHeader {
        clock: [1, 11, 0, 7, 5].get(usize::from(odd & 7)).copied().unwrap_or(1),
        // Long past, or beyond every horizon.
        tx_time: if odd & 0x18 == 0x18 { u64::MAX } else { u64::from(odd) },
        flags: if odd & 0x60 == 0x60 { 0x8000 } else { 0 },
        name_octets: u32::from(length % 3) * 8,
        control_octets: u32::from(odd >> 7) * 16,
        payload_octets: count,
    };
    let lies = usize::from(length == 7);
    let parts = [header.name_octets, header.control_octets, header.payload_octets];
    let rest = parts.iter().sum::<u32>() as usize - lies;
    Some(header.encode().iter().flat_map(|word| word.to_ne_bytes()).chain(vec![odd; rest]).collect())
}

impl Model {
    /// Takes one step; `None` at the end of the octets.
    pub(super) fn step(&mut self, octets: &mut Octets<'_>) -> Option<()> {
        match octets.next()? % 16 {
            0 => self.connects(octets.next()?, 1),
            1 => self.connects(octets.next()?, PEERS_MAX),
            2 | 3 => self.says_hello(octets)?,
            4 | 5 => self.registers(octets)?,
            6 => {
                let at = self.pick(octets)?;
                let message = Unregister { stream_index: u32::from(octets.next()? % 4), token: 0 }.encode();
                let passed = if octets.next()? < 224 { vec![] } else { vec![Passed::Udp] };
                self.say(at, &message, &passed);
            }
            7 => {
                let at = self.pick(octets)?;
                let length = usize::from(octets.next()? % ODD_OCTETS_MAX);
                let message: Vec<u8> = octets.by_ref().take(length).collect();
                let passed = passed(octets)?;
                self.say(at, &message, &passed);
            }
            8 | 9 => {
                self.turn();
            }
            10 => {
                let spans = [1, 10, 60, 250, 1_100, 11_000];
                let span = spans.get(usize::from(octets.next()?) % spans.len()).copied().unwrap_or(1);
                self.pass(Duration::from_millis(span));
                self.turn();
            }
            11 => {
                let (at, spent) = (octets.next()?, octets.next()?);
                let at = usize::from(at) % self.driver.jobs().max(1);
                self.finish_job(at, Duration::from_millis(u64::from(spent & 0x7f)));
            }
            12 => {
                let ended =
                    self.clients.iter().filter(|(_, client)| client.is_ended && !client.is_given_back);
                let ended = ended.map(|(number, _)| *number).nth(usize::from(octets.next()? % 8));
                ended.into_iter().for_each(|number| self.give_back(number));
            }
            13 => self.ends(octets)?,
            14 => self.changes(octets.next()?),
            _ => {
                let (at, how) = (self.pick(octets)?, octets.next()?);
                if let Some(program) = self.programs.get(at) {
                    self.driver.spoil(&program.peer, how % 3);
                }
            }
        }
        Some(())
    }

    fn pick(&self, octets: &mut Octets<'_>) -> Option<usize> {
        // The youngest is number 0: what follows a connection says something on it.
        let back = usize::from(octets.next()?) % self.programs.len().max(1);
        Some(self.programs.len().saturating_sub(1 + back))
    }

    /// Some connections of one process, as far as there is room.
    fn connects(&mut self, octet: u8, most: usize) {
        let namespace = match octet >> 5 {
            0..=5 => Namespace::Own,
            6 => Namespace::Foreign,
            _ => Namespace::Unserved,
        };
        let count = most.min(PEERS_MAX.saturating_sub(self.programs.len()));
        (0..count).for_each(|_| {
            self.connect(u32::from(octet % 5), namespace);
        });
    }

    fn says_hello(&mut self, octets: &mut Octets<'_>) -> Option<()> {
        let (at, octet) = (self.pick(octets)?, octets.next()?);
        let abi = if octet % 8 == 7 { 7 } else { ABI as u16 };
        let interface_index = u32::from(octet >> 6);
        let hello = Hello { abi_min: abi, abi_max: abi, interface_index }.encode();
        let passed = passed(octets)?;
        self.say(at, hello.as_slice(), &passed);
        Some(())
    }

    fn registers(&mut self, octets: &mut Octets<'_>) -> Option<()> {
        let (at, octet) = (self.pick(octets)?, octets.next()?);
        let stream_index = match octet % 8 {
            7 => 1024,
            index => u32::from(index % 4),
        };
        let token = self.next_token;
        self.next_token += 1;
        if octet >> 3 == 0x1d {
            let message = later(octets)?;
            let passed = passed(octets)?;
            self.say(at, &message, &passed);
            return Some(());
        }
        let message = match octet >> 3 {
            0x1e => Expect.encode(),
            0x1f => ShowPort { stream_index, token }.encode(),
            claimed => {
                Register { stream_index, token, txtime: claim(claimed), is_kept: claimed % 2 == 1 }.encode()
            }
        };
        let passed = passed(octets)?;
        self.say(at, &message, &passed);
        Some(())
    }

    /// A program, or a process, ends.
    fn ends(&mut self, octets: &mut Octets<'_>) -> Option<()> {
        let octet = octets.next()?;
        if octet % 4 == 3 {
            self.driver.exit(u32::from(octet >> 2) % 5);
        } else if !self.programs.is_empty() {
            let at = usize::from(octet >> 2) % self.programs.len();
            self.programs.remove(at);
        }
        Some(())
    }

    /// The control thread, or the helpers' luck, changes.
    fn changes(&mut self, octet: u8) {
        match octet % 8 {
            0..=2 => self.driver.set_served(u16::from(octet % 8), octet & 0x40 != 0),
            3 | 4 => self.driver.set_tables(octet >> 4),
            5 | 6 => self.driver.set_helpers(octet & 0x40 != 0, octet & 0x80 == 0),
            _ if octet > 0xf0 => {
                self.admitted.get_or_insert_with(|| self.counted.clone());
                self.driver.admit_no_more();
            }
            _ => {}
        }
    }
}
