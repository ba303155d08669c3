// SPDX-License-Identifier: Apache-2.0
//! eBPF programs and how they are loaded: kernel capture of timed UDP frames at the host end of a pod's veth, and the short
//! way in at a node's uplink.
//!
//! In, [`Capture`]: which clocks, destinations and source addresses; the device. Out: [`Frames`], the ring with captured frames, and
//! [`Counters`]. In, [`Ingress`]: which VXLAN frames are for which pod; the uplink. Out: frames in pods. The programs themselves
//! are C (`programs/`), compiled by the build.
//!
//! Everything that is loaded hangs on descriptors of this process: when it ends, however it ends, the kernel takes the
//! program off the device and frees its maps, and frames go on the kernel's way. Nothing is pinned.

mod capture;
mod error;
mod frames;
mod ingress;
mod layout;
mod program;

#[allow(unsafe_code)]
mod sys;

pub use capture::{Capture, Destination, Options};
pub use error::BpfError;
pub use frames::{Counters, Frames, Taken};
pub use ingress::{Delivery, Ingress, Place, Routed, SLOTS_MAX, TARGETS_MAX, Tallied, Target};
pub use layout::{Clock, Counted, FRAME_OCTETS_MAX};

#[cfg(test)]
mod test_run {
    #[allow(unsafe_code)]
    mod sys;
    pub(crate) use sys::{own_network, run};
}
