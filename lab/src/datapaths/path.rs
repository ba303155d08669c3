// SPDX-License-Identifier: Apache-2.0
//! The datapaths, the directions and the loads: their names, and what they are. Pure.

ktsn_model::words! {
    /// A way between a virtual machine's network device and the uplink of its host.
    pub enum Path {
        /// The device itself, given to the guest.
        Vfio = "vfio",
        /// A macvtap on the uplink.
        Macvtap = "macvtap",
        /// A tap and the kernel's bridge.
        TapBridge = "tap-bridge",
        /// A tap and two eBPF programs in front of the bridge.
        TapXdp = "tap-xdp",
        /// A tap and Open vSwitch in user space, both devices by packet sockets.
        TapOvs = "tap-ovs",
        /// A tap and Open vSwitch in user space, both devices by AF_XDP.
        OvsAfxdp = "ovs-afxdp",
        /// vhost-user and Open vSwitch with DPDK, the uplink by AF_XDP.
        OvsDpdk = "ovs-dpdk",
    }
}

ktsn_model::words! {
    /// Which way the measured frames go.
    pub enum Direction {
        /// From the stand-in of the virtual machine to the remote host.
        Egress = "egress",
        /// From the remote host to the stand-in of the virtual machine.
        Ingress = "ingress",
    }
}

ktsn_model::words! {
    /// What the sender sends beside the measured frames.
    pub enum Load {
        /// Nothing.
        Idle = "idle",
        /// Three UDP streams, in their own window.
        Udp = "udp",
    }
}

ktsn_model::words! {
    /// What is on the virtual machine's side of a datapath.
    pub enum End {
        /// A thread that owns what QEMU's backend owns.
        StandIn = "stand-in",
        /// A guest under QEMU.
        Guest = "guest",
    }
}

ktsn_model::words! {
    /// Which of them are measured.
    pub enum Ends {
        /// The stand-in.
        StandIn = "stand-in",
        /// The guest.
        Guest = "guest",
        /// Both, by turns; their rows stand apart.
        Both = "both",
    }
}

impl Ends {
    /// The ends, in the order of their turns.
    #[must_use]
    pub const fn each(self) -> &'static [End] {
        match self {
            Self::StandIn => &[End::StandIn],
            Self::Guest => &[End::Guest],
            Self::Both => &End::ALL,
        }
    }
}

ktsn_model::words! {
    /// How the two ends and a switch share two CPUs.
    pub enum Sharing {
        /// Each end has a CPU; a switch shares the sender's.
        Apart = "apart",
        /// Both ends share CPU 0; a switch has CPU 1 for itself.
        Together = "together",
    }
}

impl Path {
    /// What it is, in a few words.
    #[must_use]
    pub const fn describe(self) -> &'static str {
        match self {
            Self::Vfio => "the network device itself, given to the guest",
            Self::Macvtap => "macvtap (bridge mode) on the uplink",
            Self::TapBridge => "tap, Linux bridge, uplink",
            Self::TapXdp => {
                "tap and uplink with an eBPF program each (XDP in the driver), the Linux bridge as slow path"
            }
            Self::TapOvs => "tap and uplink as system ports of Open vSwitch's user-space datapath",
            Self::OvsAfxdp => {
                "tap and uplink as AF_XDP ports of Open vSwitch's user-space datapath, one polling thread"
            }
            Self::OvsDpdk => {
                "vhost-user port and AF_XDP uplink of Open vSwitch with DPDK, one polling thread"
            }
        }
    }

    /// Its name in the publication; the two paths with AF_XDP share one, because the publication's guest port is vhost-user.
    #[must_use]
    pub const fn published(self) -> &'static str {
        match self {
            Self::Vfio => "VFIO",
            Self::Macvtap => "macvtap",
            Self::TapBridge => "tap+bridge",
            Self::TapXdp => "tap+XDP",
            Self::TapOvs => "tap+OVS",
            Self::OvsAfxdp | Self::OvsDpdk => "OVS+AF_XDP",
        }
    }

    /// Whether frames with partial checksums and large segments are lost on it, because XDP does not know them.
    #[must_use]
    pub const fn loses_offloads(self) -> bool {
        matches!(self, Self::TapXdp | Self::OvsAfxdp)
    }

    /// Whether Open vSwitch is on it.
    #[must_use]
    pub const fn has_switch(self) -> bool {
        matches!(self, Self::TapOvs | Self::OvsAfxdp | Self::OvsDpdk)
    }
}

/// The path of a series: a guest's rows have names of their own, so that they are never joined with a stand-in's.
#[must_use]
pub fn named(path: Path, end: End) -> String {
    match end {
        End::StandIn => path.to_string(),
        End::Guest => format!("guest-{path}"),
    }
}

/// The load of a series: direction and load.
#[must_use]
pub fn row(direction: Direction, load: Load) -> String {
    format!("{direction}-{load}")
}
