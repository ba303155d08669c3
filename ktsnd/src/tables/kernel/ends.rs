// SPDX-License-Identifier: Apache-2.0
//! The kernel's answers for the tunnel ends of the node, where its main table does not say how they are reached.
//!
//! In: tunnel ends, as overlays name them. Out: the device and the next hop by which the kernel's own tunnel would send to each. A
//! tunnel's source port is a hash of the inner flow: an end whose route depends on that port has no answer.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;

use super::ask::{Answer, Question, Reply, ask};
use super::netlink::Netlink;

/// Ends that are remembered at most; more are forgotten all together and asked about again.
const ENDS_MAX: usize = 8192;
/// The first of the source ports that a tunnel uses, and how many of them are tried, this far from each other.
const PORTS: (u16, u16, u16) = (49_152, 16, 1021);

/// A tunnel end, and what the kernel's tunnel to it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct End {
    pub(crate) vtep: IpAddr,
    pub(crate) local: IpAddr,
    pub(crate) port: u16,
}

/// The answers for tunnel ends; `None`: the kernel alone knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ends(BTreeMap<End, Option<Answer>>);

impl Ends {
    /// Whether the kernel was asked about `end`.
    pub(crate) fn has(&self, end: &End) -> bool {
        self.0.contains_key(end)
    }

    /// How many answers there are.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Asks about an end and notes the answer.
    pub(crate) fn ask(&mut self, netlink: &mut Netlink, end: End) -> io::Result<()> {
        if self.0.len() >= ENDS_MAX {
            self.0.clear();
        }
        let (first, count, step) = PORTS;
        let mut sole: Option<Option<Answer>> = None;
        for number in 0..count {
            let question = Question {
                destination: end.vtep,
                source: Some(end.local),
                ports: (first + number * step, end.port),
                traffic_class: 0,
                uid: 0,
                device: 0,
            };
            let answer = match ask(netlink, &question)? {
                Reply::Plain(answer) => Some(answer),
                Reply::Other | Reply::Refused => None,
            };
            if *sole.get_or_insert(answer) != answer {
                sole = Some(None);
                break;
            }
        }
        self.0.insert(end, sole.flatten());
        Ok(())
    }

    /// Asks about all ends once more, as routes or rules changed.
    pub(crate) fn ask_again(&mut self, netlink: &mut Netlink) -> io::Result<()> {
        let all: Vec<End> = self.0.keys().copied().collect();
        all.into_iter().try_for_each(|end| self.ask(netlink, end))
    }

    /// The answers for all tunnels to each address; `None` where they differ, too.
    pub(crate) fn answers(&self) -> impl Iterator<Item = (IpAddr, Option<Answer>)> {
        let mut answers: BTreeMap<IpAddr, Option<Answer>> = BTreeMap::new();
        for (end, answer) in &self.0 {
            let known = answers.entry(end.vtep).or_insert(*answer);
            if known != answer {
                *known = None;
            }
        }
        answers.into_iter()
    }

    /// The answer for an address; `None`: nobody asked.
    pub(crate) fn to(&self, vtep: IpAddr) -> Option<Option<Answer>> {
        let of = self.0.range(End { vtep, local: IpAddr::from([0; 4]), port: 0 }..);
        let mut of = of.take_while(|(end, _)| end.vtep == vtep).map(|(_, answer)| *answer);
        let first = of.next()?;
        Some(first.filter(|_| of.all(|answer| answer == first)))
    }
}
