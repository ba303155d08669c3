// SPDX-License-Identifier: Apache-2.0
//! Why a frame did not leave, and why a datagram was left to the kernel. One word each, everywhere.

macro_rules! reasons {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $number:literal, $word:literal;)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u16)]
        pub enum $name { $($(#[$vdoc])* $variant = $number,)+ }

        impl $name {
            /// Every reason, in the order of its number.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];
            /// How many reasons there are.
            pub const COUNT: usize = Self::ALL.len();
            /// The word used in counters, metrics, logs and documents.
            #[must_use]
            pub const fn word(self) -> &'static str {
                match self { $(Self::$variant => $word,)+ }
            }
            /// The stable number used in shared memory.
            #[must_use]
            pub const fn number(self) -> u16 { self as u16 }
            /// The reason with this number.
            #[must_use]
            pub const fn from_number(number: u16) -> Option<Self> {
                match number { $($number => Some(Self::$variant),)+ _ => None }
            }
        }

        impl core::fmt::Display for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.write_str(self.word())
            }
        }
    };
}

reasons!(
    /// Why a taken frame did not leave.
    DropReason {
        /// The program sent it after its transmit time (etf rule).
        Missed = 0, "missed";
        /// The transmit time cannot be one (for example 0 in TAI).
        InvalidTime = 1, "invalid_time";
        /// The transmit time lies further ahead than `horizon`.
        BeyondHorizon = 2, "beyond_horizon";
        /// Longer than the way allows (queueMaxSDU, MTU).
        TooLong = 3, "too_long";
        /// No room in the scheduler's queue.
        QueueFull = 4, "queue_full";
        /// No route to the destination.
        NoRoute = 5, "no_route";
        /// The next hop's MAC address is unknown.
        NoNeighbour = 6, "no_neighbour";
        /// Refused by a stream filter, gate or meter (802.1Q 8.6.5).
        Policed = 7, "policed";
        /// No open window of its class is ever long enough.
        GateNeverFits = 8, "gate_never_fits";
        /// The clock is unsynchronised and the policy is `drop`.
        Unsynchronised = 9, "unsynchronised";
        /// Sent while the daemon was away.
        DaemonAbsent = 10, "daemon_absent";
        /// Its attachment went away.
        Detached = 11, "detached";
        /// The link is down.
        LinkDown = 12, "link_down";
        /// The port refused it.
        PortError = 13, "port_error";
        /// The client wrote something impossible.
        PeerCorrupt = 14, "peer_corrupt";
        /// Our own fault; never expected.
        Bug = 15, "bug";
        /// A network policy that came after the attachment forbids it, or may forbid it, past the node's packet filter.
        NetworkPolicy = 16, "network_policy";
        /// The worker came later than its `overrun_limit` allows, or after its deadline.
        Overrun = 17, "overrun";
        /// The ring was full: its program waited for a slot until the transmit time had passed.
        Waited = 18, "waited";
    }
);

reasons!(
    /// Why a datagram was passed to the kernel instead of being taken.
    BypassReason {
        /// The datagram carries no SCM_TXTIME.
        NoTxtime = 0, "no_txtime";
        /// The socket's namespace has no attachment, or no daemon was ever there.
        NotAttached = 1, "not_attached";
        /// The destination is not on the attachment's list.
        NotAllowed = 2, "not_allowed";
        /// The destination is an address of this namespace.
        OwnAddress = 3, "own_address";
        /// The datagram does not fit into one frame.
        OverMtu = 4, "over_mtu";
        /// A flag, control message or socket option that only the kernel serves.
        UnsupportedOption = 5, "unsupported_option";
        /// A socket that is neither UDP over IPv4 nor over IPv6.
        UnsupportedFamily = 6, "unsupported_family";
        /// Only the kernel knows the way: a rule, several next hops or an encapsulation decides on it, or the pod's own packet filter.
        RoutingRules = 7, "routing_rules";
    }
);
