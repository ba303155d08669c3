// SPDX-License-Identifier: Apache-2.0
//! The paths by name, and what each one is: who keeps the time, where it starts and ends.

ktsn_model::words! {
    /// A path of the experiment.
    pub enum Path {
        /// Host to host; the talker sleeps.
        Bare = "bare",
        /// Host to host; the talker spins.
        BareSpin = "bare-spin",
        /// Host to host; the talker owns the uplink by AF_PACKET, builds its frame before and warms the way up. It spins for so long that it
        /// takes the CPU that KTSN takes.
        PacketSpin = "packet-spin",
        /// The same; it spins for as long as helps.
        PacketSpinFree = "packet-spin-free",
        /// Host to host; SO_TXTIME on CLOCK_TAI, and etf on the uplink.
        BareEtf = "bare-etf",
        /// Host to host; SO_TXTIME on CLOCK_MONOTONIC, and fq on the uplink.
        BareFq = "bare-fq",
        /// Pod to pod on Flannel's path; SO_TXTIME on CLOCK_TAI, and etf on the uplink.
        PodEtf = "pod-etf",
        /// Pod to pod on Flannel's path; SO_TXTIME on CLOCK_MONOTONIC, and fq on the uplink.
        PodFq = "pod-fq",
        /// Pod to pod on Flannel's path; the talker sleeps.
        Flannel = "flannel",
        /// Pod to pod on Flannel's path; the talker spins.
        FlannelSpin = "flannel-spin",
        /// Pod to pod on Flannel's path; the talker is an ordinary process.
        FlannelOther = "flannel-other",
        /// Pod to pod; SO_TXTIME, libktsn, ktsnd.
        Ktsn = "ktsn",
        /// Pod to pod; SO_TXTIME without any library, kernel capture, ktsnd.
        KtsnCapture = "ktsn-capture",
        /// The path `ktsn`, and a ktsnd of the receiving node takes the frames straight into the pod.
        KtsnShort = "ktsn-short",
        /// Pod to pod; SO_TXTIME, libktsn, ktsnd, vhost-user, OVS-DPDK with its VXLAN tunnel.
        KtsnOvsDpdk = "ktsn-ovs-dpdk",
        /// A program of DPDK's kind on virtio-user, through the same switch.
        DpdkVirtioUser = "dpdk-virtio-user",
    }
}

impl Path {
    /// The paths that are measured unless some are named, in the order of tables.
    pub const USUAL: [Self; 7] = [
        Self::Bare,
        Self::BareSpin,
        Self::PacketSpin,
        Self::Flannel,
        Self::FlannelSpin,
        Self::FlannelOther,
        Self::Ktsn,
    ];

    /// The paths of the experiment `overlay`, in the order of its tables.
    pub const OVERLAY: [Self; 11] = [
        Self::Flannel,
        Self::FlannelSpin,
        Self::FlannelOther,
        Self::Ktsn,
        Self::KtsnShort,
        Self::KtsnOvsDpdk,
        Self::DpdkVirtioUser,
        Self::Bare,
        Self::BareSpin,
        Self::PacketSpin,
        Self::PacketSpinFree,
    ];

    /// Those that send whole frames by AF_PACKET.
    #[must_use]
    pub const fn is_packet(self) -> bool {
        matches!(self, Self::PacketSpin | Self::PacketSpinFree)
    }

    /// Whether talker and listener are in pods.
    #[must_use]
    pub const fn in_pods(self) -> bool {
        !matches!(self, Self::Bare | Self::BareSpin | Self::BareEtf | Self::BareFq) && !self.is_packet()
    }

    /// Those whose transmit times the kernel keeps, by a qdisc on the uplink.
    #[must_use]
    pub const fn has_qdisc(self) -> bool {
        matches!(self, Self::BareEtf | Self::BareFq | Self::PodEtf | Self::PodFq)
    }

    /// The clock of the talker's transmit times; fq knows one alone.
    pub(crate) const fn clock(self) -> &'static str {
        if matches!(self, Self::PodFq | Self::BareFq) { "monotonic" } else { "tai" }
    }

    /// Whether ktsnd sends its frames.
    #[must_use]
    pub const fn is_served(self) -> bool {
        matches!(self, Self::Ktsn | Self::KtsnCapture | Self::KtsnShort | Self::KtsnOvsDpdk)
    }

    /// Whether it leads through the virtual switch, on a testbed of its own.
    #[must_use]
    pub const fn is_switched(self) -> bool {
        matches!(self, Self::KtsnOvsDpdk | Self::DpdkVirtioUser)
    }

    /// Whether libktsn is preloaded into its talker.
    #[must_use]
    pub const fn is_preloaded(self) -> bool {
        matches!(self, Self::Ktsn | Self::KtsnShort | Self::KtsnOvsDpdk)
    }

    /// What takes its frames from the sender.
    pub(crate) const fn egress(self) -> &'static str {
        match self {
            Self::Ktsn | Self::KtsnCapture | Self::KtsnShort => "uplink",
            Self::KtsnOvsDpdk => "vhost-user",
            Self::DpdkVirtioUser => "virtio-user",
            _ => "kernel",
        }
    }

    /// How the receiving node takes its frames.
    pub(crate) const fn ingress(self) -> &'static str {
        if matches!(self, Self::KtsnShort) { "short" } else { "kernel" }
    }

    /// The talker's mode.
    pub(crate) const fn mode(self) -> &'static str {
        match self {
            Self::Bare | Self::Flannel | Self::FlannelOther => "sleep",
            Self::BareSpin | Self::FlannelSpin => "spin",
            Self::Ktsn | Self::KtsnCapture | Self::KtsnShort | Self::KtsnOvsDpdk => "txtime",
            Self::BareEtf | Self::BareFq | Self::PodEtf | Self::PodFq => "txtime",
            // Not `ktsn talk`: they poll their clock.
            Self::DpdkVirtioUser | Self::PacketSpin | Self::PacketSpinFree => "poll",
        }
    }

    /// The talker's SCHED_FIFO priority. Under KTSN it is below the worker's on the same CPU: it sends its frame 300 µs
    /// ahead, while the worker sleeps, so CPU 0 and its listener are as idle as on every other path.
    pub(crate) const fn fifo(self) -> Option<u8> {
        match self {
            Self::FlannelOther => None,
            Self::Ktsn | Self::KtsnCapture | Self::KtsnShort | Self::KtsnOvsDpdk => Some(40),
            _ => Some(50),
        }
    }
}
