// SPDX-License-Identifier: Apache-2.0
//! Stream identification (802.1CB-2017 clauses 6.4 and 6.7): which stream a frame belongs to.
//!
//! In: a table, and of each frame its attachment, addresses and ports. Out: the stream handle of the first entry that matches.
//! Never: allocates when asked. A look-up visits at most [`StreamIdentification::ENTRIES_MAX`] entries; a sender of many
//! frames with the same addresses asks once and remembers.

use super::config::{OWN_LIMIT, PolicingFault, StreamHandle, fault};
use alloc::boxed::Box;
use core::net::IpAddr;
use ktsn_model::IpPrefix;

/// What decides about a frame's stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameKey {
    /// Index of the attachment it came from.
    pub attachment: u32,
    /// Destination MAC address.
    pub destination: [u8; 6],
    /// VLAN id of its tag; `None`: untagged or priority-tagged.
    pub vlan: Option<u16>,
    /// The flow, for an IP packet.
    pub flow: Option<FlowKey>,
}

/// The five values of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowKey {
    /// Source address.
    pub source: IpAddr,
    /// Destination address.
    pub destination: IpAddr,
    /// Protocol, or next header.
    pub protocol: u8,
    /// Source port; `None` where the protocol has none, or in a later fragment.
    pub source_port: Option<u16>,
    /// Destination port.
    pub destination_port: Option<u16>,
}

/// What an entry asks of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamMatch {
    /// IP stream identification (802.1CB 6.7) of one attachment or any; `None` matches everything.
    Ip {
        /// The attachment.
        attachment: Option<u32>,
        /// Source addresses.
        source: Option<IpPrefix>,
        /// Destination addresses.
        destination: Option<IpPrefix>,
        /// Protocol, or next header.
        protocol: Option<u8>,
        /// Source port.
        source_port: Option<u16>,
        /// Destination port.
        destination_port: Option<u16>,
    },
    /// Every frame of one attachment, or of any attachment.
    All {
        /// The attachment.
        attachment: Option<u32>,
    },
    /// Null stream identification (802.1CB 6.4): destination MAC address and VLAN.
    MacVlan {
        /// Destination MAC address.
        destination: [u8; 6],
        /// VLAN id; `None`: untagged or priority-tagged.
        vlan: Option<u16>,
    },
}

impl StreamMatch {
    /// Whether `frame` is one of the stream's.
    #[must_use]
    pub fn matches(&self, frame: &FrameKey) -> bool {
        fn is<T: PartialEq + Copy>(wanted: Option<T>, found: Option<T>) -> bool {
            wanted.is_none() || wanted == found
        }
        match *self {
            Self::All { attachment } => is(attachment, Some(frame.attachment)),
            Self::MacVlan { destination, vlan } => destination == frame.destination && vlan == frame.vlan,
            Self::Ip { attachment, source, destination, protocol, source_port, destination_port } => {
                let Some(flow) = &frame.flow else { return false };
                is(attachment, Some(frame.attachment))
                    && is(protocol, Some(flow.protocol))
                    && is(destination_port, flow.destination_port)
                    && is(source_port, flow.source_port)
                    && destination.is_none_or(|prefix| prefix.contains(flow.destination))
                    && source.is_none_or(|prefix| prefix.contains(flow.source))
            }
        }
    }
}

/// An entry of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamIdentity {
    /// The frames.
    pub matches: StreamMatch,
    /// Their stream. Several entries may name one stream.
    pub stream: StreamHandle,
}

/// The table of streams.
///
/// # Examples
/// ```
/// use ktsn_sched::policing::{FlowKey, FrameKey, StreamHandle, StreamIdentification, StreamIdentity, StreamMatch};
///
/// let table = StreamIdentification::new(&[StreamIdentity {
///     matches: StreamMatch::Ip {
///         attachment: None,
///         source: None,
///         destination: Some("10.244.1.0/24".parse()?),
///         protocol: Some(17),
///         source_port: None,
///         destination_port: Some(5_000),
///     },
///     stream: StreamHandle(1),
/// }])?;
/// let flow = FlowKey {
///     source: "10.244.0.2".parse()?,
///     destination: "10.244.1.9".parse()?,
///     protocol: 17,
///     source_port: Some(40_000),
///     destination_port: Some(5_000),
/// };
/// let mut frame = FrameKey { attachment: 0, destination: [2, 0, 0, 0, 0, 1], vlan: None, flow: Some(flow) };
/// assert_eq!(table.identify(&frame), Some(StreamHandle(1)));
/// frame.flow = None;
/// assert_eq!(table.identify(&frame), None);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct StreamIdentification {
    entries: Box<[StreamIdentity]>,
}

impl StreamIdentification {
    /// Entries that a table may have.
    pub const ENTRIES_MAX: usize = 256;
    /// The `leaf` of the fault of an entry that is the same as an earlier one; its `value` is that one's index.
    pub const SAME: &'static str = "same as entry";

    /// A table; of entries that match the same frame the first one counts.
    ///
    /// # Errors
    /// [`PolicingFault`]: too many entries, a VLAN id that cannot be one, or an entry that no frame reaches because an earlier one is
    /// the same.
    pub fn new(entries: &[StreamIdentity]) -> Result<Self, PolicingFault> {
        let list = "stream-identity";
        if entries.len() > Self::ENTRIES_MAX {
            return Err(fault(list, Self::ENTRIES_MAX, "count", entries.len(), "at most 256", OWN_LIMIT));
        }
        for (index, entry) in entries.iter().enumerate() {
            if let StreamMatch::MacVlan { vlan: Some(vlan), .. } = entry.matches
                && !(1..=4094).contains(&vlan)
            {
                return Err(fault(list, index, "vlan", vlan.into(), "1 to 4094", "802.1Q-2022 table 9-2"));
            }
            if let Some(first) = entries[..index].iter().position(|other| other.matches == entry.matches) {
                let expected = "frames that no earlier entry asks for";
                return Err(fault(list, index, Self::SAME, first, expected, "802.1CB-2017 9.1"));
            }
        }
        Ok(Self { entries: entries.into() })
    }

    /// The stream that `frame` belongs to; `None`: no known one.
    #[must_use]
    pub fn identify(&self, frame: &FrameKey) -> Option<StreamHandle> {
        self.entries.iter().find(|entry| entry.matches.matches(frame)).map(|entry| entry.stream)
    }
}
