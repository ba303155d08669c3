// SPDX-License-Identifier: Apache-2.0
//! How the node delivers what arrives for a pod.
//!
//! In: what the daemon knows of the pod's host end and of the overlay's arriving side. Out: the same, in the tables that
//! the maps of the ingress fast path are filled from.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::IpAddr;

use ktsn_wire::{MacAddress, Vni};

/// Frames of an overlay that arrive for an attachment, and how the host hands them into the pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// VXLAN network identifier.
    pub vni: Vni,
    /// UDP destination port.
    pub port: u16,
    /// This node's tunnel end: the outer destination.
    pub local: IpAddr,
    /// Inner destination MAC address of such frames. Routed: this node's VXLAN device; bridged: the pod's interface.
    pub station: MacAddress,
    /// Routed: the source MAC address that the host delivers with, its bridge's or the host end's. `None`: bridged, the frame
    /// keeps its addresses.
    pub gateway: Option<MacAddress>,
    /// Number of the host end of the pod's veth in the daemon's namespace.
    pub host_end: u32,
    /// Longest IP packet that the host would send into the pod, octets.
    pub packet_octets_max: u32,
    /// Inner destinations: addresses of the attachment that the node itself would deliver to this pod.
    pub addresses: Vec<IpAddr>,
    /// Outer sources: the tunnel ends that are known in this network.
    pub ends: Vec<IpAddr>,
    /// Addresses of the node: no frame that comes by the uplink has one as its source.
    pub own: Arc<[IpAddr]>,
}
