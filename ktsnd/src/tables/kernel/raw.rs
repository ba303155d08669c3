// SPDX-License-Identifier: Apache-2.0
//! Messages of netlink protocols of which only the header is read here.
//!
//! In: a protocol. Out: messages as a kind and the octets behind the header, for a [`Netlink`](super::netlink::Netlink) socket.

use std::marker::PhantomData;

use rtnetlink::packet_core::{DecodeError, NetlinkDeserializable, NetlinkHeader, NetlinkSerializable};
use rustix::net::Protocol;

use super::netlink::{Family, Hints};

/// A netlink protocol.
pub(crate) trait RawProtocol: Clone {
    /// The protocol's number.
    const PROTOCOL: Protocol;
    /// The groups of announcements, as bits.
    const GROUPS: u32;

    /// Notes what an announcement of this kind hints at.
    fn note(kind: u16, hints: &mut Hints);
}

/// A message: what follows its header.
#[derive(Clone, Debug)]
pub(crate) struct Raw<P> {
    pub(crate) kind: u16,
    pub(crate) octets: Vec<u8>,
    protocol: PhantomData<P>,
}

impl<P> Raw<P> {
    pub(crate) fn new(kind: u16, octets: Vec<u8>) -> Self {
        Self { kind, octets, protocol: PhantomData }
    }
}

impl<P> NetlinkSerializable for Raw<P> {
    fn message_type(&self) -> u16 {
        self.kind
    }
    fn buffer_len(&self) -> usize {
        self.octets.len()
    }
    fn serialize(&self, buffer: &mut [u8]) {
        buffer.copy_from_slice(&self.octets);
    }
}

impl<P> NetlinkDeserializable for Raw<P> {
    type Error = DecodeError;

    fn deserialize(header: &NetlinkHeader, payload: &[u8]) -> Result<Self, DecodeError> {
        Ok(Self::new(header.message_type, payload.to_vec()))
    }
}

impl<P: RawProtocol> Family for Raw<P> {
    const PROTOCOL: Option<Protocol> = Some(P::PROTOCOL);
    const GROUPS: u32 = P::GROUPS;

    fn note(&self, hints: &mut Hints, _: &[u32]) {
        P::note(self.kind, hints);
    }
}
