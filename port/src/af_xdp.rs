// SPDX-License-Identifier: Apache-2.0
//! AF_XDP, copy mode, transmit only: the shortest way out of a Linux host that every driver offers.
//!
//! In: staged frames in memory that the kernel reads directly (umem). Out: the device's own transmit function,
//! called inside the kick: no qdisc, no routing, no netfilter, no neighbour table, and no packet taps (`tcpdump`).
//! No program is loaded and the fill ring stays empty, so nothing is ever taken from other receivers. Zero-copy
//! is never asked for. One such socket can transmit on a queue: the second gets [`OpenError::QueueBusy`].
//!
//! The umem is pinned memory: with CAP_IPC_LOCK it is not counted, without it RLIMIT_MEMLOCK must allow it.

mod engine;
mod rings;
#[allow(unsafe_code)]
mod sys;
#[cfg(test)]
mod tests;

use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::xdp::{SocketAddrXdp, SocketAddrXdpFlags, XdpRingOffset, XdpUmemReg, XdpUmemRegFlags};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendFlags, SocketFlags, SocketType, socket_with, sockopt,
};

use crate::device::{
    Device, LinkInfo, LinkState, LinkWatch, Options, in_namespace, look_up_ethernet, widen_send_buffer,
};
use crate::error::OpenError;
use crate::limits::{CHUNK_OCTETS_MAX, CHUNK_OCTETS_MIN, ETHERNET_HEADER_OCTETS, VLAN_TAG_OCTETS};
use crate::stages::Stages;
use engine::{Engine, Kick};
use rings::{COMPLETION_OCTETS, CompletionRing, Layout, TX_DESCRIPTOR_OCTETS, TxRing};
use sys::{FrameMemory, RingMemory};

/// The kernel wants a fill ring to exist; it is never used.
const FILL_RING_COUNT: u32 = 1;

/// A transmit-only AF_XDP socket in copy mode. Dropping it releases the queue, the memory and the namespace.
///
/// The trait [`Port`](crate::Port) is implemented for `Engine`, in `af_xdp/engine.rs`.
pub type AfXdp = Engine<Socket>;

/// A bound AF_XDP socket and its device.
#[derive(Debug)]
pub struct Socket {
    socket: OwnedFd,
    watch: LinkWatch,
}

impl Kick for Socket {
    #[inline]
    fn kick(&mut self) -> Result<(), Errno> {
        rustix::net::send(&self.socket, &[], SendFlags::DONTWAIT).map(drop)
    }

    fn kick_empty(&mut self) {
        // The kernel's answer is that of the next kick. By sendmsg, so that a trace of sendto sees hand-overs alone.
        let _ =
            rustix::net::sendmsg(&self.socket, &[], &mut SendAncillaryBuffer::default(), SendFlags::DONTWAIT);
    }

    fn link_state(&self) -> LinkState {
        self.watch.state()
    }
}

impl AfXdp {
    /// Opens `device`'s queue for transmission. A queue whose owner has just closed it can still be busy for some
    /// milliseconds; [`crate::open`] waits for that, this does not.
    ///
    /// # Errors
    /// An [`OpenError`]; nothing stays open.
    pub fn open(device: &Device<'_>, options: &Options) -> Result<Self, OpenError> {
        in_namespace(device.netns, || open_here(device.ifname, options))
    }
}

/// The buffer size for frames of `frame_octets_max`: a power of two, at most a page.
fn chunk_octets(ifname: &str, link: &LinkInfo) -> Result<usize, OpenError> {
    let chunk_octets = link.frame_octets_max().next_power_of_two().max(CHUNK_OCTETS_MIN);
    if chunk_octets > CHUNK_OCTETS_MAX {
        return Err(OpenError::MtuTooLong {
            ifname: ifname.to_owned(),
            mtu_octets: link.mtu_octets,
            mtu_octets_max: CHUNK_OCTETS_MAX - ETHERNET_HEADER_OCTETS - VLAN_TAG_OCTETS,
        });
    }
    Ok(chunk_octets)
}

fn layout(offset: &XdpRingOffset, entry_count: u32) -> Layout {
    Layout {
        producer: offset.producer as usize,
        consumer: offset.consumer as usize,
        entries: offset.desc as usize,
        entry_count,
    }
}

fn open_here(ifname: &str, options: &Options) -> Result<AfXdp, OpenError> {
    let stages = Stages::new(options.stage_count)?;
    let (watch, link) = look_up_ethernet(ifname)?;
    let chunk_octets = chunk_octets(ifname, &link)?;
    let stage_count = u32::from(options.stage_count);
    let socket = socket_with(AddressFamily::XDP, SocketType::RAW, SocketFlags::CLOEXEC, None)
        .map_err(|errno| OpenError::os("socket(AF_XDP)", errno))?;
    let frames = register_frames(&socket, usize::from(options.stage_count), chunk_octets)?;
    // Twice the buffers: the ring can't fill up even if the kernel reports consumption late.
    let (tx, completion) = map_rings(&socket, stage_count * 2, stage_count)?;
    widen_send_buffer(&socket, usize::from(options.stage_count), chunk_octets);
    let address = SocketAddrXdp::new(SocketAddrXdpFlags::XDP_COPY, link.ifindex, options.queue);
    rustix::net::bind(&socket, &address).map_err(|errno| match errno {
        Errno::BUSY => OpenError::QueueBusy { ifname: ifname.to_owned(), queue: options.queue },
        Errno::INVAL => OpenError::NoQueue { ifname: ifname.to_owned(), queue: options.queue },
        Errno::NODEV => OpenError::NoDevice { ifname: ifname.to_owned() },
        other => OpenError::os("bind(AF_XDP)", other),
    })?;
    let capabilities = link.capabilities("af_xdp", options.stage_count);
    let kick = Socket { socket, watch };
    Ok(Engine { kick, tx, completion, stages, frames, chunk_octets, capabilities, is_one_remembered: false })
}

fn register_frames(
    socket: &OwnedFd,
    stage_count: usize,
    chunk_octets: usize,
) -> Result<FrameMemory, OpenError> {
    let octets = stage_count * chunk_octets;
    let frames = FrameMemory::new(octets).map_err(|errno| OpenError::os("mmap", errno))?;
    let register = XdpUmemReg {
        addr: frames.address(),
        len: frames.octets() as u64,
        chunk_size: chunk_octets as u32,
        headroom: 0,
        flags: XdpUmemRegFlags::empty(),
        tx_metadata_len: 0,
    };
    sockopt::set_xdp_umem_reg(socket, register).map_err(|errno| match errno {
        Errno::NOBUFS => OpenError::LockedMemory { octets },
        other => OpenError::os("setsockopt(XDP_UMEM_REG)", other),
    })?;
    Ok(frames)
}

fn map_rings(
    socket: &OwnedFd,
    tx_count: u32,
    completion_count: u32,
) -> Result<(TxRing, CompletionRing), OpenError> {
    let failed = |step| move |errno| OpenError::os(step, errno);
    sockopt::set_xdp_umem_fill_ring_size(socket, FILL_RING_COUNT)
        .map_err(failed("setsockopt(XDP_UMEM_FILL_RING)"))?;
    sockopt::set_xdp_umem_completion_ring_size(socket, completion_count)
        .map_err(failed("setsockopt(XDP_UMEM_COMPLETION_RING)"))?;
    sockopt::set_xdp_tx_ring_size(socket, tx_count).map_err(failed("setsockopt(XDP_TX_RING)"))?;
    let offsets = sockopt::xdp_mmap_offsets(socket).map_err(failed("getsockopt(XDP_MMAP_OFFSETS)"))?;
    let map = |layout: Layout, entry_octets, at| {
        RingMemory::of_socket(socket.as_fd(), layout.octets(entry_octets), at)
            .map_err(|errno| OpenError::os("mmap(AF_XDP ring)", errno))
    };
    let (tx, completion) = (layout(&offsets.tx, tx_count), layout(&offsets.cr, completion_count));
    let tx_memory = map(tx, TX_DESCRIPTOR_OCTETS, libc::XDP_PGOFF_TX_RING as u64)?;
    let completion_memory = map(completion, COMPLETION_OCTETS, libc::XDP_UMEM_PGOFF_COMPLETION_RING)?;
    let unfit = || OpenError::os("XDP_MMAP_OFFSETS", Errno::RANGE);
    let tx = TxRing::new(tx_memory, tx).ok_or_else(unfit)?;
    let completion = CompletionRing::new(completion_memory, completion).ok_or_else(unfit)?;
    Ok((tx, completion))
}
