// SPDX-License-Identifier: Apache-2.0
//! eBPF programs and how they are loaded: kernel capture of timed UDP frames at the host end of a pod's veth, the ingress
//! fast path at a node's uplink, and forwarding between a virtual machine's tap and the uplink.
//!
//! In, [`Capture`]: which clocks, destinations and source addresses; the device. Out: [`Frames`], the ring with captured frames, and
//! [`Counters`]. In, [`Ingress`]: which VXLAN frames are for which pod; the uplink. Out: frames in pods. In, [`Forward`]: which
//! station is behind which device. Out: frames there. The programs themselves are C (`programs/`), compiled by the build.
//!
//! Everything that is loaded hangs on descriptors of this process: when it ends, however it ends, the kernel takes the
//! program off the device and frees its maps, and frames go on the kernel's way. Nothing is pinned.

mod capture;
mod error;
mod forward;
mod frames;
mod hook;
mod ingress;
mod layout;
mod mirror;
mod program;
mod signals {
    #[allow(unsafe_code)]
    mod sys;
    pub(crate) use sys::NoSignals;
}
#[allow(unsafe_code)]
mod sys;

pub use capture::{Capture, Destination, Options};
pub use error::BpfError;
pub use forward::{Forward, Forwarded, Mac, Pass, STATIONS_MAX};
pub use frames::{Counters, Frames, Taken};
pub use ingress::{Delivery, End, Ingress, Routed, SLOTS_MAX, TARGETS_MAX, Tallied, Target};
pub use layout::{Clock, Counted, FRAME_OCTETS_MAX};
pub use program::Place;

#[cfg(test)]
mod test_run {
    #[allow(unsafe_code)]
    mod sys;
    pub(crate) use sys::{disturbed, own_network, run, tap};

    /// Fields of an IPv4 header to try.
    pub(crate) struct Ipv4Fields<'a> {
        /// Length of header and options in words of four octets.
        pub(crate) words: usize,
        pub(crate) ds: u8,
        /// Behind the header.
        pub(crate) payload_octets: u16,
        pub(crate) fragment: u16,
        pub(crate) hop_limit: u8,
        pub(crate) protocol: u8,
        pub(crate) source: &'a [u8],
        pub(crate) destination: &'a [u8],
        /// What is wrong with its checksum.
        pub(crate) checksum_error: u16,
    }

    impl Ipv4Fields<'_> {
        /// The header; options are no-operations.
        pub(crate) fn octets(&self) -> Vec<u8> {
            let mut ip = vec![0x40 | self.words as u8, self.ds];
            ip.extend((self.payload_octets + self.words as u16 * 4).to_be_bytes());
            ip.extend([0, 1]);
            ip.extend(self.fragment.to_be_bytes());
            ip.extend([self.hop_limit, self.protocol, 0, 0]);
            ip.extend(self.source);
            ip.extend(self.destination);
            ip.resize(self.words * 4, 1);
            let mut sum = ktsn_wire::Checksum::new();
            sum.add(&ip);
            ip[10..12].copy_from_slice(&(sum.finish() ^ self.checksum_error).to_be_bytes());
            ip
        }
    }
}
