// SPDX-License-Identifier: Apache-2.0
//! What a test's daemon answers.

use std::time::Duration;

use ktsn_ring::StreamCode;
use ktsn_ring::control::HelloStatus;
use ktsn_time::Nanos;

/// What the peer answers.
#[derive(Clone, Debug)]
pub struct Behaviour {
    /// Slots of each region.
    pub slots: u32,
    /// How many frames of all clients together are taken out; further ones stay in the ring.
    pub takes_max: usize,
    /// The answer to Hello.
    pub hello: HelloStatus,
    /// The answer to Register.
    pub stream: StreamCode,
    /// Index of the attachment's interface.
    pub interface_index: u32,
    /// Whether CLOCK_TAI is granted.
    pub grants_tai: bool,
    /// From which priority on datagrams without a transmit time are taken.
    pub takes_untimed_from: Option<u8>,
    /// Greatest payload, to any destination.
    pub payload_max: u16,
    /// Prefixes that are taken.
    pub destinations: Vec<([u8; 16], u8)>,
    /// Whether the port of a socket without one is taken in advance.
    pub takes_port: bool,
    /// How long a registration takes.
    pub register_delay: Duration,
    /// For how long ahead each pass promises the next one. A program rings for frames that are due before that, and waits for
    /// no peer that has broken its promise. By default none is ever broken.
    pub promise: Duration,
    /// Whether the destination table is for ever being written.
    pub is_writing: bool,
    /// How many connections are ended at their Hello, without an answer.
    pub cuts_off: usize,
    /// Whether each pass ends all connections, and says nothing.
    pub ends_clients: bool,
    /// Whether regions have a receive area; an older daemon has none.
    pub has_receive_area: bool,
    /// The share of one CPU, parts per thousand, that each pass grants to clients that asked; `None`: passes write no grant, and
    /// the last one ends by itself.
    pub receive_share: Option<u32>,
    /// For how long a pass grants it.
    pub receive_lease: Duration,
    /// The word of regions for the period of arrivals, nanoseconds.
    pub receive_period: Nanos,
}

impl Default for Behaviour {
    fn default() -> Self {
        let mut loopback = [0; 16];
        loopback[10..13].copy_from_slice(&[0xff, 0xff, 127]);
        let mut one = [0; 16];
        one[15] = 1;
        Self {
            slots: 1024,
            takes_max: usize::MAX,
            hello: HelloStatus::Attached,
            stream: StreamCode::Registered,
            interface_index: 1,
            grants_tai: true,
            takes_untimed_from: None,
            takes_port: false,
            payload_max: 1400,
            // 127.0.0.0/16: the rest of the loopback network stays the kernel's.
            destinations: vec![(loopback, 96 + 16), (one, 128)],
            register_delay: Duration::ZERO,
            promise: Duration::from_secs(10),
            is_writing: false,
            cuts_off: 0,
            ends_clients: false,
            has_receive_area: true,
            receive_share: Some(0),
            receive_lease: Duration::from_secs(5),
            receive_period: Nanos::ZERO,
        }
    }
}

impl Behaviour {
    /// Promises as a busy worker does, 2 ms ahead: a program rings only for frames with an earlier TxTime, and does not wait for a peer
    /// that is later than it promised.
    #[must_use]
    pub fn prompt() -> Self {
        Self { promise: Duration::from_millis(2), ..Self::default() }
    }
}
